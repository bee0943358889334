//! Frames: a length of four bytes, little endian, and as many bytes.

use std::io::{self, Read, Write};

/// Bytes of a frame at most. What is larger is not sent.
pub const MOST: usize = 1 << 30;

/// Writes a frame, whose body comes in parts.
///
/// # Errors
/// Of the connection; `InvalidInput` if the body is too large.
pub fn write_frame(out: &mut impl Write, parts: &[&[u8]]) -> io::Result<()> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let header = u32::try_from(length).ok().filter(|_| length <= MOST);
    let header = header.ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("a message of {length} bytes is too large"))
    })?;
    if length < 1 << 16 {
        let mut whole = Vec::with_capacity(length + 4);
        whole.extend(header.to_le_bytes());
        parts.iter().for_each(|part| whole.extend_from_slice(part));
        out.write_all(&whole)?;
    } else {
        out.write_all(&header.to_le_bytes())?;
        parts.iter().try_for_each(|part| out.write_all(part))?;
    }
    out.flush()
}

/// Reads a frame of `limit` bytes at most. Memory grows with the bytes that come, not with the length that is claimed.
///
/// # Errors
/// Of the connection, `UnexpectedEof` included; `InvalidData` if the frame is larger.
pub fn read_frame(input: &mut impl Read, limit: usize) -> io::Result<Vec<u8>> {
    let mut header = [0; 4];
    input.read_exact(&mut header)?;
    let length = u64::from(u32::from_le_bytes(header));
    if length > limit as u64 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message of {length} bytes")));
    }
    let mut body = Vec::new();
    input.take(length).read_to_end(&mut body)?;
    if (body.len() as u64) < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(body)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_else_is() {
        let long = vec![7; 100_000];
        let mut bytes = Vec::new();
        let parts: [&[&[u8]]; 3] = [&[], &[b"ab", b"", b"c"], &[&long]];
        for parts in parts {
            write_frame(&mut bytes, parts).unwrap();
        }
        let mut input = bytes.as_slice();
        assert_eq!(read_frame(&mut input, MOST).unwrap(), b"");
        assert_eq!(read_frame(&mut input, MOST).unwrap(), b"abc");
        assert_eq!(read_frame(&mut input, MOST).unwrap(), long);
        assert_eq!(read_frame(&mut input, MOST).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(read_frame(&mut &bytes[11..], 99_999).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(read_frame(&mut &bytes[11..200], MOST).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
