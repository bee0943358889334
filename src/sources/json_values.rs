//! The JSON values of a text, one at a time: those that stand one after the other, and those of an outer array.

use std::io::{self, BufRead, BufReader};

use super::input::Bytes;
use super::lines::keep;

/// Tells values apart by brackets and quotes alone, so that a damaged value ends where its brackets close.
pub(super) struct JsonValues {
    input: BufReader<Bytes>,
    value: Vec<u8>,
    /// Inside the outer array.
    inside: bool,
    /// The line of the next byte.
    line: u64,
}

/// Where in a value the last byte was.
#[derive(Default)]
struct State {
    depth: usize,
    /// The quote that is open.
    quote: Option<u8>,
    escaped: bool,
}

impl State {
    /// Takes in a byte; true if it ends the value, which has begun with a bracket.
    fn ends(&mut self, byte: u8) -> bool {
        if let Some(quote) = self.quote {
            if self.escaped {
                self.escaped = false;
            } else if byte == b'\\' {
                self.escaped = true;
            } else if byte == quote {
                self.quote = None;
                return self.depth == 0;
            }
            return false;
        }
        match byte {
            b'"' | b'\'' => self.quote = Some(byte),
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                return self.depth == 0;
            }
            _ => {}
        }
        false
    }
}

impl JsonValues {
    pub(super) fn new(input: Bytes) -> JsonValues {
        let input = BufReader::with_capacity(256 << 10, input);
        JsonValues { input, value: Vec::new(), inside: false, line: 1 }
    }

    /// The next value, and the line on which it begins.
    pub(super) fn next(&mut self) -> io::Result<Option<(&[u8], u64)>> {
        self.value.clear();
        let Some(first) = self.begin()? else { return Ok(None) };
        let line = self.line;
        let bracketed = matches!(first, b'{' | b'[' | b'"' | b'\'');
        let mut state = State::default();
        loop {
            let ready = self.input.fill_buf()?;
            if ready.is_empty() {
                break;
            }
            let end = if bracketed {
                ready.iter().position(|x| state.ends(*x)).map(|x| x + 1)
            } else {
                // A number, a word, or nothing that is known.
                ready.iter().position(|x| matches!(x, b',' | b'\n' | b'\r' | b'{' | b'[' | b']'))
            };
            let part = ready.get(..end.unwrap_or(ready.len())).unwrap_or_default();
            let used = part.len();
            self.line += memchr::memchr_iter(b'\n', part).count() as u64;
            keep(&mut self.value, part)?;
            self.input.consume(used);
            if end.is_some() {
                break;
            }
        }
        if self.value.is_empty() {
            // Something that begins no value and is none, such as a bracket too many.
            self.value.push(first);
            self.input.consume(1);
        }
        Ok(Some((self.value.trim_ascii_end(), line)))
    }

    /// Passes over what stands between values; gives the first byte of the next one, which is not consumed.
    fn begin(&mut self) -> io::Result<Option<u8>> {
        loop {
            let Some(byte) = self.input.fill_buf()?.first().copied() else { return Ok(None) };
            match byte {
                b'\n' => self.line += 1,
                b' ' | b'\t' | b'\r' => {}
                b',' if self.inside => {}
                b']' if self.inside => self.inside = false,
                b'[' if !self.inside => self.inside = true,
                other => return Ok(Some(other)),
            }
            self.input.consume(1);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Cursor;

    use proptest::prelude::*;

    use super::*;

    fn values(text: &str) -> Vec<(String, u64)> {
        let mut values = JsonValues::new(Box::new(Cursor::new(text.to_owned())));
        let mut out = Vec::new();
        while let Some((value, line)) = values.next().unwrap() {
            out.push((String::from_utf8_lossy(value).into_owned(), line));
        }
        out
    }

    #[test]
    fn values_are_told_apart_one_after_the_other_and_in_an_array() {
        let found = values("{\"a\":\n[1,\"]}\\\"\"]}\n[ {\"b\":1} , 7,\n[2]]{\"c\" oops}\n true \n]{\"d\":\"x");
        let found: Vec<_> = found.iter().map(|(value, line)| (value.as_str(), *line)).collect();
        assert_eq!(
            found,
            [
                ("{\"a\":\n[1,\"]}\\\"\"]}", 1),
                ("{\"b\":1}", 3),
                ("7", 3),
                ("[2]", 4),
                ("{\"c\" oops}", 4),
                ("true", 5),
                ("]", 6),
                ("{\"d\":\"x", 6),
            ]
        );
        assert!(values(" \n ").is_empty() && values("[]\n[ ]").is_empty());
    }

    fn any_value() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Into::into),
            any::<i32>().prop_map(Into::into),
            "[\\[\\]{}\"',:\\\\a]{0,4}".prop_map(Into::into)
        ];
        leaf.prop_recursive(3, 12, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
                prop::collection::vec(("[a'\"]{1,2}", inner), 0..4)
                    .prop_map(|x| serde_json::Value::Object(x.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// An array of objects in any layout is its objects.
        #[test]
        fn an_array_is_its_objects(objects in prop::collection::vec(prop::collection::vec(("[a'\"]{1,2}", any_value()), 0..3), 0..5), pretty: bool) {
            let objects: Vec<serde_json::Value> = objects.into_iter().map(|x| serde_json::Value::Object(x.into_iter().collect())).collect();
            let text = if pretty { serde_json::to_string_pretty(&objects) } else { serde_json::to_string(&objects) }.unwrap();
            let found: Vec<serde_json::Value> = values(&text).iter().map(|x| serde_json::from_str(&x.0).unwrap()).collect();
            prop_assert_eq!(found, objects);
        }
    }
}
