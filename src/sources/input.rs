//! A file's bytes as the readers want them: unpacked by the file's name, and texts in UTF-8 without a byte-order mark.

use std::fs::File;
use std::io::{self, BufReader, Cursor, Read};

use encoding_rs::{CoderResult, Decoder, Encoding, UTF_16BE, UTF_16LE};

/// What a file is read from.
pub(super) type Bytes = Box<dyn Read + Send>;

/// Bytes that are decoded at a time.
const CHUNK: usize = 64 << 10;

/// How a file is packed, as its name tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    Gzip,
    Zstd,
    Bzip2,
}

/// The packing that a file name ends with, and the name without it.
///
/// # Errors
/// The ending, if it is one of a packing that cannot be read.
pub(super) fn packing(path: &str) -> Result<(Option<Packing>, &str), &str> {
    let Some((rest, end)) = path.rsplit_once('.') else { return Ok((None, path)) };
    match end.to_lowercase().as_str() {
        "gz" | "gzip" => Ok((Some(Packing::Gzip), rest)),
        "zst" | "zstd" => Ok((Some(Packing::Zstd), rest)),
        "bz2" | "bzip2" => Ok((Some(Packing::Bzip2), rest)),
        "zip" | "xz" | "lz4" | "lzo" | "deflate" | "snappy" | "sz" | "br" | "7z" | "tar" | "tgz" => Err(end),
        _ => Ok((None, path)),
    }
}

/// The bytes of a file, unpacked while they are read.
pub(super) fn unpacked(file: File, packing: Option<Packing>) -> io::Result<Bytes> {
    let input = BufReader::with_capacity(CHUNK, file);
    Ok(match packing {
        None => Box::new(input),
        Some(Packing::Gzip) => Box::new(flate2::bufread::MultiGzDecoder::new(input)),
        Some(Packing::Zstd) => Box::new(zstd::Decoder::with_buffer(input)?),
        Some(Packing::Bzip2) => Box::new(bzip2::bufread::MultiBzDecoder::new(input)),
    })
}

/// How characters are written as bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Charset {
    /// UTF-8; what is none is left as it is, for the reader to judge.
    Utf8,
    /// The byte order is that of the mark, else big.
    Utf16,
    Utf16Le,
    Utf16Be,
    /// The byte order is that of the mark, else big.
    Utf32,
    Utf32Le,
    Utf32Be,
    /// ISO-8859-1, each byte a character.
    Latin1,
    Ascii,
    Other(&'static Encoding),
}

impl Charset {
    /// By one of the names that Java or the web know it by.
    pub(super) fn parse(name: &str) -> Option<Charset> {
        Some(match name.trim().to_lowercase().replace('_', "-").as_str() {
            "utf-8" | "utf8" => Charset::Utf8,
            "utf-16" | "utf16" => Charset::Utf16,
            "utf-16le" | "utf16le" | "x-utf-16le-bom" => Charset::Utf16Le,
            "utf-16be" | "utf16be" => Charset::Utf16Be,
            "utf-32" | "utf32" => Charset::Utf32,
            "utf-32le" | "utf32le" => Charset::Utf32Le,
            "utf-32be" | "utf32be" => Charset::Utf32Be,
            "iso-8859-1" | "iso8859-1" | "latin1" | "l1" => Charset::Latin1,
            "us-ascii" | "ascii" => Charset::Ascii,
            other => Charset::Other(Encoding::for_label(other.as_bytes())?),
        })
    }
}

/// The text of a file as UTF-8. A byte-order mark is taken off and, if no encoding is given, believed.
pub(super) fn text(mut input: Bytes, charset: Option<Charset>) -> io::Result<Bytes> {
    let mut first = Vec::with_capacity(4);
    input.by_ref().take(4).read_to_end(&mut first)?;
    let (charset, mark) = sniff(&first, charset);
    let rest = first.split_off(mark.min(first.len()));
    let input = Cursor::new(rest).chain(input);
    let decoder = match charset {
        Charset::Utf8 => return Ok(Box::new(input)),
        Charset::Utf16Le => Some(UTF_16LE.new_decoder_without_bom_handling()),
        Charset::Utf16Be | Charset::Utf16 => Some(UTF_16BE.new_decoder_without_bom_handling()),
        Charset::Other(other) => Some(other.new_decoder_without_bom_handling()),
        Charset::Utf32 | Charset::Utf32Le | Charset::Utf32Be | Charset::Latin1 | Charset::Ascii => None,
    };
    Ok(Box::new(Decode { input, charset, decoder, raw: Vec::new(), text: String::new(), at: 0, ended: false }))
}

/// The encoding and the length of the mark, by the first four bytes.
pub(super) fn sniff(first: &[u8], given: Option<Charset>) -> (Charset, usize) {
    use Charset as C;
    let marks: [(&[u8], C); 5] = [
        (b"\xff\xfe\0\0", C::Utf32Le),
        (b"\0\0\xfe\xff", C::Utf32Be),
        (b"\xef\xbb\xbf", C::Utf8),
        (b"\xff\xfe", C::Utf16Le),
        (b"\xfe\xff", C::Utf16Be),
    ];
    let fits = |marked: C| match given {
        None => true,
        Some(C::Utf16) => matches!(marked, C::Utf16Le | C::Utf16Be),
        Some(C::Utf32) => matches!(marked, C::Utf32Le | C::Utf32Be),
        Some(given) => given == marked,
    };
    match marks.into_iter().find(|(mark, marked)| first.starts_with(mark) && fits(*marked)) {
        Some((mark, marked)) => (marked, mark.len()),
        None => (given.unwrap_or(C::Utf8), 0),
    }
}

/// Decodes as it is read.
struct Decode<R> {
    input: R,
    charset: Charset,
    decoder: Option<Decoder>,
    /// Bytes that are not decoded yet: a part of a character.
    raw: Vec<u8>,
    text: String,
    /// How much of the text has been handed out.
    at: usize,
    ended: bool,
}

impl<R: Read> Decode<R> {
    fn refill(&mut self) -> io::Result<()> {
        self.text.clear();
        self.at = 0;
        let kept = self.raw.len();
        self.raw.resize(kept + CHUNK, 0);
        let read = loop {
            match self.input.read(self.raw.get_mut(kept..).unwrap_or_default()) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        self.raw.truncate(kept + read);
        self.ended = read == 0;
        if let Some(decoder) = &mut self.decoder {
            // Three bytes of UTF-8 a byte are the most that any encoding needs, and room for what was left before.
            self.text.reserve(self.raw.len() * 3 + 16);
            let (result, used, _) = decoder.decode_to_string(&self.raw, &mut self.text, self.ended);
            debug_assert_eq!((result, used), (CoderResult::InputEmpty, self.raw.len()));
            self.raw.drain(..used);
            return Ok(());
        }
        let wide = |quad: [u8; 4]| match self.charset {
            Charset::Utf32Le => u32::from_le_bytes(quad),
            _ => u32::from_be_bytes(quad),
        };
        match self.charset {
            Charset::Latin1 => self.text.extend(self.raw.drain(..).map(char::from)),
            Charset::Ascii => {
                let character = |byte: u8| if byte.is_ascii() { char::from(byte) } else { char::REPLACEMENT_CHARACTER };
                self.text.extend(self.raw.drain(..).map(character));
            }
            _ => {
                let (quads, rest) = self.raw.as_chunks::<4>();
                let character = |quad: &[u8; 4]| char::from_u32(wide(*quad)).unwrap_or(char::REPLACEMENT_CHARACTER);
                self.text.extend(quads.iter().map(character));
                if self.ended && !rest.is_empty() {
                    self.text.push(char::REPLACEMENT_CHARACTER);
                }
                let used = quads.len() * 4;
                self.raw.drain(..used);
            }
        }
        Ok(())
    }
}

impl<R: Read> Read for Decode<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at >= self.text.len() {
            if self.ended {
                return Ok(0);
            }
            self.refill()?;
        }
        let ready = self.text.as_bytes().get(self.at..).unwrap_or_default();
        let count = ready.len().min(buffer.len());
        if let (Some(to), Some(from)) = (buffer.get_mut(..count), ready.get(..count)) {
            to.copy_from_slice(from);
        }
        self.at += count;
        Ok(count)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Hands out a byte at a time, so that every character is cut.
    struct Dripping(Cursor<Vec<u8>>);

    impl Read for Dripping {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let some = buffer.len().min(1);
            self.0.read(buffer.get_mut(..some).unwrap())
        }
    }

    fn read(bytes: &[u8], charset: Option<&str>) -> String {
        let charset = charset.map(|name| Charset::parse(name).unwrap());
        let mut out = Vec::new();
        text(Box::new(Dripping(Cursor::new(bytes.to_vec()))), charset).unwrap().read_to_end(&mut out).unwrap();
        String::from_utf8_lossy(&out).into_owned()
    }

    fn wide(text: &str, encode: impl Fn(char) -> Vec<u8>) -> Vec<u8> {
        text.chars().flat_map(encode).collect()
    }

    #[test]
    fn every_encoding_gives_the_same_text_with_and_without_a_mark() {
        let plain = "aé€😀\n";
        let le = wide(plain, |c| c.encode_utf16(&mut [0; 2]).iter().flat_map(|x| x.to_le_bytes()).collect());
        let be = wide(plain, |c| c.encode_utf16(&mut [0; 2]).iter().flat_map(|x| x.to_be_bytes()).collect());
        let le32 = wide(plain, |c| u32::from(c).to_le_bytes().to_vec());
        let be32 = wide(plain, |c| u32::from(c).to_be_bytes().to_vec());
        let cases = [
            (b"\xef\xbb\xbf".as_slice(), plain.as_bytes().to_vec(), "utf-8"),
            (b"\xff\xfe", le, "UTF-16LE"),
            (b"\xfe\xff", be.clone(), "UTF-16BE"),
            (b"\xfe\xff", be, "UTF-16"),
            (b"\xff\xfe\0\0", le32, "UTF-32LE"),
            (b"\0\0\xfe\xff", be32.clone(), "UTF-32BE"),
            (b"\0\0\xfe\xff", be32, "utf_32"),
        ];
        for (mark, bytes, name) in cases {
            let marked = [mark, &bytes].concat();
            assert_eq!(read(&bytes, Some(name)), plain, "{name} without a mark");
            assert_eq!(read(&marked, Some(name)), plain, "{name} with a mark");
            assert_eq!(read(&marked, None), plain, "{name} by its mark");
        }
        assert_eq!(read(b"a\xe9\x80", Some("ISO-8859-1")), "aé\u{80}");
        assert_eq!(read(b"a\x80", Some("windows-1252")), "a€");
        assert_eq!(read(b"a\xe9", Some("US-ASCII")), "a\u{fffd}");
        assert_eq!(Charset::parse("klingon"), None);
    }

    #[test]
    fn what_is_cut_off_is_a_replacement_and_no_hang() {
        assert_eq!(read(b"a\0b", Some("UTF-16LE")), "a\u{fffd}");
        assert_eq!(read(b"a\0\0\0b", Some("UTF-32LE")), "a\u{fffd}");
        assert_eq!(read(b"\0\0\xd8\0", Some("UTF-32BE")), "\u{fffd}");
        assert_eq!(read(b"", Some("UTF-16")), "");
        assert_eq!(read(b"\xff", None).as_bytes(), "\u{fffd}".as_bytes());
    }

    #[test]
    fn names_tell_the_packing() {
        assert_eq!(packing("/a/b.json.gz"), Ok((Some(Packing::Gzip), "/a/b.json")));
        assert_eq!(packing("b.CSV.ZST"), Ok((Some(Packing::Zstd), "b.CSV")));
        assert_eq!(packing("b.bz2"), Ok((Some(Packing::Bzip2), "b")));
        assert_eq!(packing("b.gz.parquet"), Ok((None, "b.gz.parquet")));
        assert_eq!(packing("b"), Ok((None, "b")));
        assert_eq!(packing("b.zip"), Err("zip"));
    }
}
