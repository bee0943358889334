//! Lines of a text, one at a time.

use std::io::{self, BufRead, BufReader};

use super::input::Bytes;

/// The most that one record may have, in bytes: a file that is one endless line fails and does not fill the memory.
pub(super) const RECORD_BYTES: usize = 256 << 20;

/// Reads lines, which end with `\n`, `\r\n` or `\r`, or with a text that the user has given.
pub(super) struct Lines {
    input: BufReader<Bytes>,
    end: Option<Vec<u8>>,
    line: Vec<u8>,
    /// Lines before the one that was read last.
    number: u64,
    /// The last line ended with `\r`, so that a `\n` after it is a part of that end.
    returned: bool,
}

impl Lines {
    pub(super) fn new(input: Bytes, end: Option<Vec<u8>>) -> Lines {
        let input = BufReader::with_capacity(256 << 10, input);
        Lines { input, end: end.filter(|x| !x.is_empty()), line: Vec::new(), number: 0, returned: false }
    }

    /// The next line without its end, and its number, counted from 1.
    pub(super) fn next(&mut self) -> io::Result<Option<(&[u8], u64)>> {
        self.line.clear();
        let ended = match self.end.take() {
            Some(end) => {
                let ended = self.until(&end);
                self.end = Some(end);
                ended?
            }
            None => self.until_break()?,
        };
        if !ended && self.line.is_empty() {
            return Ok(None);
        }
        self.number += 1;
        Ok(Some((&self.line, self.number)))
    }

    /// Whether a line end was found.
    fn until_break(&mut self) -> io::Result<bool> {
        loop {
            let ready = fill(&mut self.input)?;
            if ready.is_empty() {
                return Ok(false);
            }
            if std::mem::take(&mut self.returned) && ready.first() == Some(&b'\n') {
                self.input.consume(1);
                continue;
            }
            let found = memchr::memchr2(b'\n', b'\r', ready);
            let content = ready.get(..found.unwrap_or(ready.len())).unwrap_or_default();
            keep(&mut self.line, content)?;
            let used = content.len() + usize::from(found.is_some());
            self.returned = found.and_then(|at| ready.get(at)) == Some(&b'\r');
            self.input.consume(used);
            if found.is_some() {
                return Ok(true);
            }
        }
    }

    fn until(&mut self, end: &[u8]) -> io::Result<bool> {
        let Some(last) = end.last() else { return Ok(false) };
        loop {
            let ready = fill(&mut self.input)?;
            if ready.is_empty() {
                return Ok(false);
            }
            let used = memchr::memchr(*last, ready).map_or(ready.len(), |at| at + 1);
            keep(&mut self.line, ready.get(..used).unwrap_or_default())?;
            self.input.consume(used);
            if self.line.ends_with(end) {
                self.line.truncate(self.line.len() - end.len());
                return Ok(true);
            }
        }
    }
}

fn fill(input: &mut BufReader<Bytes>) -> io::Result<&[u8]> {
    loop {
        match input.fill_buf() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            // Once more, since the borrow of a returned buffer would outlast the loop.
            Ok(_) => break,
            Err(e) => return Err(e),
        }
    }
    input.fill_buf()
}

/// Adds to a record.
pub(super) fn keep(record: &mut Vec<u8>, more: &[u8]) -> io::Result<()> {
    if record.len() + more.len() > RECORD_BYTES {
        return Err(io::Error::other(format!("a record has more than {} MiB", RECORD_BYTES >> 20)));
    }
    record.extend_from_slice(more);
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Cursor;

    use super::*;

    fn lines(text: &str, end: Option<&str>) -> Vec<String> {
        let mut lines = Lines::new(Box::new(Cursor::new(text.to_owned())), end.map(|x| x.as_bytes().to_vec()));
        let mut out = Vec::new();
        while let Some((line, number)) = lines.next().unwrap() {
            assert_eq!(number, out.len() as u64 + 1);
            out.push(String::from_utf8(line.to_vec()).unwrap());
        }
        out
    }

    #[test]
    fn lines_end_as_they_do_anywhere_or_as_is_said() {
        assert_eq!(lines("a\nb\r\nc\rd\n\n\re", None), ["a", "b", "c", "d", "", "", "e"]);
        assert_eq!(lines("a\r\n\r\nb\r\n", None), ["a", "", "b"]);
        assert_eq!(lines("", None), [""; 0]);
        assert_eq!(lines("a|;b;c||;;d", Some("|;")), ["a", "b;c|", ";d"]);
        assert_eq!(lines("a;b;", Some(";")), ["a", "b"]);
    }
}
