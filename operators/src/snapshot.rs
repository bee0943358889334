//! The envelope of a snapshot: what it is of, its version, its checksum.

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: &[u8; 8] = b"SFSTATE\0";
/// Raised whenever the meaning or the layout of any operator's state changes.
const VERSION: u32 = 1;
const HEADER: usize = 8 + 4 + 4 + 8;

/// Why a snapshot could not be written or read. None of these loses data: state can always be
/// rebuilt from the input.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// The bytes are not a snapshot, or are cut short.
    #[error("these bytes are not a snapshot of operator state")]
    NotASnapshot,
    /// Written by a release with another state format.
    #[error("snapshot has format {found}, this build reads format {expected}")]
    Version {
        /// The format of the snapshot.
        found: u32,
        /// The format this build writes and reads.
        expected: u32,
    },
    /// A snapshot of another operator.
    #[error("snapshot is not of `{expected}`")]
    Kind {
        /// The operator that was to be restored.
        expected: &'static str,
    },
    /// The checksum does not match, or the content contradicts itself.
    #[error("snapshot is damaged")]
    Damaged,
    /// The state could not be encoded.
    #[error("state cannot be encoded: {0}")]
    Encode(#[source] bincode::Error),
}

fn tag(kind: &str) -> [u8; 4] {
    // Four bytes of the hash tell the few kinds of this crate apart.
    (xxh3_64(kind.as_bytes()) as u32).to_le_bytes()
}

/// Encodes `state` behind a header that names `kind`.
pub(crate) fn seal<S: Serialize>(kind: &'static str, state: &S) -> Result<Vec<u8>, SnapshotError> {
    let size = bincode::serialized_size(state).map_err(SnapshotError::Encode)?;
    let mut bytes = Vec::with_capacity(HEADER + usize::try_from(size).unwrap_or(0));
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&tag(kind));
    bytes.extend_from_slice(&[0; 8]);
    bincode::serialize_into(&mut bytes, state).map_err(SnapshotError::Encode)?;
    let sum = xxh3_64(bytes.get(HEADER..).unwrap_or_default());
    if let Some(slot) = bytes.get_mut(HEADER - 8..HEADER) {
        slot.copy_from_slice(&sum.to_le_bytes());
    }
    Ok(bytes)
}

/// Decodes what [`seal`] wrote for `kind`.
pub(crate) fn open<S: DeserializeOwned>(kind: &'static str, bytes: &[u8]) -> Result<S, SnapshotError> {
    let rest = bytes.strip_prefix(MAGIC).ok_or(SnapshotError::NotASnapshot)?;
    let (version, rest) = rest.split_first_chunk::<4>().ok_or(SnapshotError::NotASnapshot)?;
    let found = u32::from_le_bytes(*version);
    if found != VERSION {
        return Err(SnapshotError::Version { found, expected: VERSION });
    }
    let (written, rest) = rest.split_first_chunk::<4>().ok_or(SnapshotError::NotASnapshot)?;
    if *written != tag(kind) {
        return Err(SnapshotError::Kind { expected: kind });
    }
    let (sum, payload) = rest.split_first_chunk::<8>().ok_or(SnapshotError::NotASnapshot)?;
    if u64::from_le_bytes(*sum) != xxh3_64(payload) {
        return Err(SnapshotError::Damaged);
    }
    bincode::deserialize(payload).map_err(|_| SnapshotError::Damaged)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    #[test]
    fn tells_what_is_wrong() {
        let good = seal("scd2", &vec![1u64, 2, 3]).unwrap();
        assert_eq!(open::<Vec<u64>>("scd2", &good).unwrap(), [1, 2, 3]);
        assert!(matches!(open::<Vec<u64>>("scd1", &good), Err(SnapshotError::Kind { expected: "scd1" })));
        for cut in 0..good.len() {
            assert!(open::<Vec<u64>>("scd2", &good[..cut]).is_err(), "cut at {cut}");
        }
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x40;
            assert!(open::<Vec<u64>>("scd2", &bad).is_err(), "flipped at {at}");
        }
        let mut old = good;
        old[8] = 99;
        assert!(matches!(open::<Vec<u64>>("scd2", &old), Err(SnapshotError::Version { found: 99, expected: 1 })));
    }
}
