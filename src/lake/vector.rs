//! Deletion vectors: which rows of a data file are gone, in the bytes that Delta lays down.

use roaring::{RoaringBitmap, RoaringTreemap};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::error::{Error, Result};

/// First four bytes of a vector, little endian: an array of 32-bit bitmaps in the portable format.
const MAGIC: u32 = 1_681_511_377;
/// First byte of a file of vectors.
const FILE_VERSION: u8 = 1;
const Z85: &[u8; 85] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";

/// Where the bytes of a vector are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    /// File name, relative to the table's root.
    pub(crate) file: Uuid,
    /// Position of the size field in the file.
    pub(crate) offset: u32,
    /// Size of the vector, magic included, checksum excluded.
    pub(crate) size: u32,
    /// Rows that are gone.
    pub(crate) cardinality: u64,
}

impl Descriptor {
    /// As an `add` or `remove` of the log says it.
    pub(crate) fn to_json(&self) -> Value {
        json!({
            "storageType": "u",
            "pathOrInlineDv": z85_encode(self.file.as_bytes()),
            "offset": self.offset,
            "sizeInBytes": self.size,
            "cardinality": self.cardinality,
        })
    }

    /// From the parts that the log holds. Only vectors that this module writes are understood: in a file of their own,
    /// with a random id and no prefix.
    pub(crate) fn from_parts(kind: &str, path: &str, offset: Option<i32>, size: i32, cardinality: i64) -> Result<Self> {
        let foreign = || {
            Error::external(
                "TABLE_CHANGED_OUTSIDE",
                format!("the table has a deletion vector of another writer ({kind}{path})"),
            )
        };
        if kind != "u" {
            return Err(foreign());
        }
        let id: [u8; 16] = z85_decode(path).and_then(|x| x.try_into().ok()).ok_or_else(foreign)?;
        Ok(Descriptor {
            file: Uuid::from_bytes(id),
            offset: offset.and_then(|x| u32::try_from(x).ok()).ok_or_else(foreign)?,
            size: u32::try_from(size).map_err(|_| foreign())?,
            cardinality: u64::try_from(cardinality).map_err(|_| foreign())?,
        })
    }

    /// As an action of the log says it; `None` if it is of another kind than this module writes.
    pub(crate) fn from_json(json: &Value) -> Option<Self> {
        let number = |name: &str| json.get(name).and_then(Value::as_i64);
        let small = |name: &str| number(name).and_then(|x| i32::try_from(x).ok());
        let text = |name: &str| json.get(name).and_then(Value::as_str);
        let (kind, path) = (text("storageType")?, text("pathOrInlineDv")?);
        Descriptor::from_parts(kind, path, small("offset"), small("sizeInBytes")?, number("cardinality")?).ok()
    }

    /// Name of the file.
    pub(crate) fn file_name(&self) -> String {
        file_name(self.file)
    }
}

fn file_name(id: Uuid) -> String {
    format!("deletion_vector_{id}.bin")
}

/// Puts vectors into one file.
pub(crate) struct VectorFile {
    id: Uuid,
    bytes: Vec<u8>,
}

impl VectorFile {
    /// An empty one with a random name.
    pub(crate) fn new() -> Self {
        VectorFile { id: Uuid::new_v4(), bytes: vec![FILE_VERSION] }
    }

    /// Adds one vector.
    pub(crate) fn push(&mut self, rows: &RoaringBitmap) -> Result<Descriptor> {
        let too_large = |_| Error::internal("a deletion vector file of more than 2 GiB");
        let offset = self.bytes.len();
        let data = encode(rows)?;
        let size = i32::try_from(data.len()).map_err(too_large)?;
        self.bytes.extend(size.to_be_bytes());
        self.bytes.extend(&data);
        self.bytes.extend(crc32fast::hash(&data).to_be_bytes());
        i32::try_from(self.bytes.len()).map_err(too_large)?;
        Ok(Descriptor {
            file: self.id,
            offset: u32::try_from(offset).map_err(too_large)?,
            size: size.unsigned_abs(),
            cardinality: rows.len(),
        })
    }

    /// The file's name and contents; `None` if nothing was added.
    pub(crate) fn finish(self) -> Option<(String, Vec<u8>)> {
        (self.bytes.len() > 1).then(|| (file_name(self.id), self.bytes))
    }
}

/// Reads one vector out of the bytes of its file. The error says what is wrong, without a place.
pub(crate) fn read(file: &[u8], descriptor: &Descriptor) -> Result<RoaringBitmap, String> {
    let word = |at: usize| -> Option<[u8; 4]> { file.get(at..at.checked_add(4)?)?.try_into().ok() };
    let at = descriptor.offset as usize;
    let size = descriptor.size as usize;
    if file.first() != Some(&FILE_VERSION) {
        return Err("unknown version of a deletion vector file".into());
    }
    if word(at).map(u32::from_be_bytes) != Some(descriptor.size) {
        return Err("the size of the deletion vector is not the one in the log".into());
    }
    let data = file.get(at + 4..at + 4 + size).ok_or("the deletion vector is cut off")?;
    if word(at + 4 + size).map(u32::from_be_bytes) != Some(crc32fast::hash(data)) {
        return Err("the checksum of the deletion vector does not match".into());
    }
    decode(data, descriptor.cardinality)
}

/// The rows of a vector.
fn decode(data: &[u8], cardinality: u64) -> Result<RoaringBitmap, String> {
    let Some((magic, body)) = data.split_first_chunk::<4>() else {
        return Err("the deletion vector is cut off".into());
    };
    if u32::from_le_bytes(*magic) != MAGIC {
        return Err("unknown format of a deletion vector".into());
    }
    let rows = RoaringTreemap::deserialize_from(body).map_err(|e| e.to_string())?;
    if rows.len() != cardinality {
        return Err("the deletion vector has another number of rows than the log says".into());
    }
    let mut out = RoaringBitmap::new();
    for (bucket, bitmap) in rows.bitmaps() {
        if bucket != 0 {
            return Err("a deletion vector for a file of more than 2^32 rows".into());
        }
        out |= bitmap;
    }
    Ok(out)
}

/// The bytes of a vector.
fn encode(rows: &RoaringBitmap) -> Result<Vec<u8>> {
    let mut data = Vec::with_capacity(16 + rows.serialized_size());
    data.extend(MAGIC.to_le_bytes());
    // One bucket, for the rows below 2^32.
    data.extend(1u64.to_le_bytes());
    data.extend(0u32.to_le_bytes());
    rows.serialize_into(&mut data).map_err(|e| Error::internal("a deletion vector cannot be written").caused_by(e))?;
    Ok(data)
}

/// Where a vector of any writer is.
pub(crate) enum Foreign {
    /// In a file, by its name relative to the table's root.
    File(String, Descriptor),
    /// Nowhere else: these are its rows.
    Rows(RoaringBitmap),
    /// In a file outside the table.
    Elsewhere,
}

/// What the log says of a vector of any writer. The error says what is wrong, without a place.
pub(crate) fn foreign(descriptor: &Value) -> Result<Foreign, String> {
    let missing = "the log describes a deletion vector in part only";
    let text = |key: &str| descriptor.get(key).and_then(Value::as_str).ok_or(missing);
    let number = |key: &str| descriptor.get(key).and_then(Value::as_u64).ok_or(missing);
    let (path, size, cardinality) = (text("pathOrInlineDv")?, number("sizeInBytes")?, number("cardinality")?);
    let small = |x: u64| u32::try_from(x).map_err(|_| missing);
    Ok(match text("storageType")? {
        "u" => {
            let (prefix, id) = path.len().checked_sub(20).and_then(|at| path.split_at_checked(at)).ok_or(missing)?;
            let id: [u8; 16] = z85_decode(id).and_then(|x| x.try_into().ok()).ok_or(missing)?;
            let file = Uuid::from_bytes(id);
            let offset = descriptor.get("offset").and_then(Value::as_u64).unwrap_or(1);
            let slash = if prefix.is_empty() { "" } else { "/" };
            let descriptor = Descriptor { file, offset: small(offset)?, size: small(size)?, cardinality };
            Foreign::File(format!("{prefix}{slash}{}", file_name(file)), descriptor)
        }
        "i" => {
            let bytes = z85_decode(path).ok_or(missing)?;
            Foreign::Rows(decode(bytes.get(..small(size)? as usize).ok_or(missing)?, cardinality)?)
        }
        _ => Foreign::Elsewhere,
    })
}

/// A vector as it stands in the log itself.
pub(crate) fn inline(rows: &RoaringBitmap) -> Result<Value> {
    let mut data = encode(rows)?;
    let size = data.len();
    data.resize(size.next_multiple_of(4), 0);
    Ok(json!({
        "storageType": "i",
        "pathOrInlineDv": z85_encode(&data),
        "sizeInBytes": size,
        "cardinality": rows.len(),
    }))
}

fn z85_encode(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() / 4 * 5);
    for chunk in bytes.as_chunks::<4>().0 {
        let word = u32::from_be_bytes(*chunk);
        for power in [52_200_625, 614_125, 7_225, 85, 1] {
            let digit = (word / power % 85) as usize;
            out.push(char::from(Z85.get(digit).copied().unwrap_or(b'0')));
        }
    }
    out
}

fn z85_decode(text: &str) -> Option<Vec<u8>> {
    let (chunks, rest) = text.as_bytes().as_chunks::<5>();
    if !rest.is_empty() {
        return None;
    }
    let mut out = Vec::with_capacity(chunks.len() * 4);
    for chunk in chunks {
        let mut word = 0u32;
        for c in chunk {
            let digit = Z85.iter().position(|x| x == c)?;
            word = word.checked_mul(85)?.checked_add(u32::try_from(digit).ok()?)?;
        }
        out.extend(word.to_be_bytes());
    }
    Some(out)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]
mod tests {
    use super::*;

    #[test]
    fn two_vectors_in_one_file_have_the_published_bytes() {
        let mut file = VectorFile::new();
        let first = file.push(&RoaringBitmap::from([3, 4, 7, 11, 18, 29])).unwrap();
        let second = file.push(&RoaringBitmap::from([0])).unwrap();
        assert_eq!((first.offset, first.size, first.cardinality), (1, 44, 6));
        assert_eq!((second.offset, second.size, second.cardinality), (53, 34, 1));
        let (_, bytes) = file.finish().unwrap();
        let hex: String = bytes.iter().map(|x| format!("{x:02x}")).collect();
        let expected = "010000002cd1d339640100000000000000000000003a300000010000000000050010000000030004\
                        0007000b0012001d00acd74a7900000022d1d339640100000000000000000000003a3000000100000000000000100000000000f7a6b4b5";
        assert_eq!(hex, expected.replace(' ', ""));
        assert_eq!(read(&bytes, &first).unwrap().iter().collect::<Vec<_>>(), [3, 4, 7, 11, 18, 29]);
        assert_eq!(read(&bytes, &second).unwrap().iter().collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn damage_of_any_byte_is_noticed() {
        let mut file = VectorFile::new();
        let descriptor = file.push(&RoaringBitmap::from_sorted_iter(0..70_000).unwrap()).unwrap();
        let (_, bytes) = file.finish().unwrap();
        for at in (0..bytes.len()).step_by(97).chain(0..20) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x40;
            assert!(read(&damaged, &descriptor).is_err(), "byte {at}");
        }
        assert!(read(&bytes[..bytes.len() - 1], &descriptor).is_err());
    }

    #[test]
    fn a_descriptor_survives_the_log() {
        let mut file = VectorFile::new();
        let a = file.push(&RoaringBitmap::from([5])).unwrap();
        let json = a.to_json();
        let b = Descriptor::from_parts("u", json["pathOrInlineDv"].as_str().unwrap(), Some(1), 34, 1).unwrap();
        assert_eq!(a, b);
        let Foreign::File(name, c) = foreign(&json).unwrap() else { panic!("a file") };
        assert_eq!((name, c), (a.file_name(), a));
        let rows = RoaringBitmap::from_sorted_iter((0..5000).filter(|x| x % 7 != 3)).unwrap();
        let Foreign::Rows(back) = foreign(&inline(&rows).unwrap()).unwrap() else { panic!("rows") };
        assert_eq!(back, rows);
        assert_eq!(Descriptor::from_parts("i", "abc", None, 3, 1).unwrap_err().code(), "TABLE_CHANGED_OUTSIDE");
    }
}
