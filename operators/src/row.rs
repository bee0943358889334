//! Opaque byte rows and the hash that routes them.

use std::borrow::Borrow;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use xxhash_rust::xxh3::xxh3_64;

/// An immutable byte string. Cloning shares the bytes; the order is the order of the bytes.
///
/// The operators never look inside: whoever encodes rows chooses an encoding whose byte equality
/// is the equality that is meant, and whose byte order is the order that is meant.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row(Arc<[u8]>);

impl Row {
    /// The bytes of the row.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Deref for Row {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for Row {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Borrow<[u8]> for Row {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

// `Borrow<[u8]>` requires the same hash as the slice has.
impl Hash for Row {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl From<&[u8]> for Row {
    fn from(bytes: &[u8]) -> Self {
        Row(Arc::from(bytes))
    }
}

impl<const N: usize> From<&[u8; N]> for Row {
    fn from(bytes: &[u8; N]) -> Self {
        Row(Arc::from(bytes.as_slice()))
    }
}

impl From<Vec<u8>> for Row {
    fn from(bytes: Vec<u8>) -> Self {
        Row(Arc::from(bytes))
    }
}

impl From<Arc<[u8]>> for Row {
    fn from(bytes: Arc<[u8]>) -> Self {
        Row(bytes)
    }
}

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Row(\"{}\")", self.as_bytes().escape_ascii())
    }
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self)
    }
}

struct RowVisitor;

impl<'de> Visitor<'de> for RowVisitor {
    type Value = Row;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a byte string")
    }

    fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Row, E> {
        Ok(Row::from(bytes))
    }

    fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Row, E> {
        Ok(Row::from(bytes))
    }

    // Self-describing formats without a byte type, such as JSON, store a sequence of numbers.
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Row, A::Error> {
        let mut bytes = Vec::new();
        while let Some(byte) = seq.next_element()? {
            bytes.push(byte);
        }
        Ok(Row::from(bytes))
    }
}

impl<'de> Deserialize<'de> for Row {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Row, D::Error> {
        deserializer.deserialize_bytes(RowVisitor)
    }
}

/// The hash that decides which worker owns a key: the owner is `stable_hash(key) % workers`.
///
/// It is XXH3 (64 bits, seed 0) of the bytes and part of the persistent format: snapshots are
/// split by it, so it is the same on every machine and in every release.
#[must_use]
pub fn stable_hash(key: &[u8]) -> u64 {
    xxh3_64(key)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn hash_never_changes() {
        assert_eq!(stable_hash(b""), 0x2d06_8005_38d3_94c2);
        assert_eq!(stable_hash(b"silverflow"), 0xf4fa_a010_da7b_67ec);
    }

    #[test]
    fn serialises_as_one_byte_string() {
        let row = Row::from(&[0, 1, 255]);
        let bytes = bincode::serialize(&row).unwrap();
        assert_eq!(bytes, [3, 0, 0, 0, 0, 0, 0, 0, 0, 1, 255]);
        assert_eq!(bincode::deserialize::<Row>(&bytes).unwrap(), row);
    }

    #[test]
    fn ordered_and_hashed_as_bytes() {
        assert!(Row::from(&[1]) < Row::from(&[1, 0]));
        assert!(Row::from(&[1, 255]) < Row::from(&[2]));
        let set: std::collections::HashSet<Row> = [Row::from(b"a")].into();
        assert!(set.contains(b"a".as_slice()));
    }
}
