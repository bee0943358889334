//! The stored form of the index of one data file, beside the tables. It can be deleted at any time.

use arrow::datatypes::Schema;

use super::index::FileIndex;
use super::storage::Lake;

/// How files begin. The last byte counts the formats, of which the bytes that are hashed are a part.
const MAGIC: &[u8; 8] = b"SFROWS\0\x01";
/// How they are named.
const SUFFIX: &str = ".rows";

/// Where the indexes of a table's files lie.
pub(crate) fn folder(lake: &Lake, location: &str) -> String {
    lake.private_location(&format!("rows/{location}"))
}

/// Where the index of a data file lies.
pub(crate) fn place(lake: &Lake, location: &str, data: &str) -> String {
    format!("{}/{data}{SUFFIX}", folder(lake, location))
}

/// The data file to which a file in the folder belongs; temporary files belong to none.
pub(crate) fn data_file(name: &str) -> Option<&str> {
    name.strip_suffix(SUFFIX)
}

/// Bytes of a file: what it is of, how many rows, their hashes, the rows, and a checksum of all that.
pub(crate) fn encode(index: &FileIndex, schema: &Schema) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(32 + index.len() * 12);
    bytes.extend(MAGIC);
    bytes.extend(columns(schema).to_le_bytes());
    bytes.extend((index.len() as u64).to_le_bytes());
    index.hashes().iter().for_each(|x| bytes.extend(x.to_le_bytes()));
    index.rows().iter().for_each(|x| bytes.extend(x.to_le_bytes()));
    bytes.extend(xxhash_rust::xxh3::xxh3_64(&bytes).to_le_bytes());
    bytes
}

/// What was encoded; `None` if it is damaged, of another format, or of rows with other columns.
pub(crate) fn decode(bytes: &[u8], schema: &Schema) -> Option<FileIndex> {
    let (body, sum) = bytes.split_last_chunk::<8>()?;
    if xxhash_rust::xxh3::xxh3_64(body) != u64::from_le_bytes(*sum) {
        return None;
    }
    let body = body.strip_prefix(MAGIC)?;
    let (of, body) = body.split_first_chunk::<8>()?;
    let (count, body) = body.split_first_chunk::<8>()?;
    let count = usize::try_from(u64::from_le_bytes(*count)).ok()?;
    if u64::from_le_bytes(*of) != columns(schema) || body.len() != count.checked_mul(12)? {
        return None;
    }
    let (hashes, rows) = body.split_at_checked(count * 8)?;
    let hashes = hashes.as_chunks::<8>().0.iter().map(|x| u64::from_le_bytes(*x)).collect();
    let rows = rows.as_chunks::<4>().0.iter().map(|x| u32::from_le_bytes(*x)).collect();
    FileIndex::restored(hashes, rows)
}

/// A row's hash is that of all its columns, as they are in the table now.
fn columns(schema: &Schema) -> u64 {
    let columns: Vec<String> = schema.fields().iter().map(|x| format!("{:?} {:?}", x.name(), x.data_type())).collect();
    xxhash_rust::xxh3::xxh3_64(columns.join(",").as_bytes())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use arrow::datatypes::{DataType, Field};
    use proptest::prelude::*;

    use super::*;

    fn schema(names: &[&str]) -> Schema {
        Schema::new(names.iter().map(|x| Field::new(*x, DataType::Int64, true)).collect::<Vec<_>>())
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_stored_comes_back_or_is_refused(
            rows in prop::collection::vec((any::<u64>(), any::<u32>()), 0..40),
            at in any::<prop::sample::Index>(), flip in 1u8..,
        ) {
            let index = FileIndex::new(rows);
            let bytes = encode(&index, &schema(&["a", "b"]));
            prop_assert_eq!(decode(&bytes, &schema(&["a", "b"])), Some(index));
            prop_assert_eq!(decode(&bytes, &schema(&["a", "b", "c"])), None);
            let at = at.index(bytes.len());
            prop_assert_eq!(decode(&bytes[..at], &schema(&["a", "b"])), None);
            let mut damaged = bytes;
            damaged[at] ^= flip;
            prop_assert_eq!(decode(&damaged, &schema(&["a", "b"])), None);
        }
    }

    #[test]
    fn a_file_is_told_by_its_name() {
        let lake = Lake::in_memory();
        let place = place(&lake, "main/default/t", "part-1.parquet");
        assert_eq!(place, format!("{}/part-1.parquet.rows", folder(&lake, "main/default/t")));
        assert_eq!(data_file("part-1.parquet.rows"), Some("part-1.parquet"));
        assert_eq!(data_file("part-1.parquet.rows#7"), None);
    }
}
