//! The bytes of a checkpoint: blocks of operator state in objects, and the manifest that names them.
//!
//! An object is a header and blocks, end to end. The manifest is a JSON document `{"format", "crc32", "body"}` whose
//! checksum is that of the body's bytes as they stand; the body says where each block is and what its checksum is.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use silverflow_operators::{CHUNK, Frozen, STATE_FORMAT, Sealed, Snapshot};

use crate::dataflow::{Alarm, ROW_FORMAT, Restored};
use crate::error::{Error, Result};
use crate::plan::SEMANTICS;

/// Raised whenever a manifest or an object means something else than before.
const FORMAT: u32 = 2;
const MAGIC: &[u8; 8] = b"SFBLOCKS";
/// Magic and format.
pub const HEADER: usize = 12;
/// A block that has an object of its own begins here, so that its chunks are those of the system's pages.
pub const LARGE_AT: usize = 1 << 12;

/// A block of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// The object, by its place in [`Manifest::objects`].
    pub object: usize,
    /// Where the block begins.
    pub offset: u64,
    /// Its length.
    pub length: u64,
    /// XXH3 (64 bits, seed 0) of its bytes; of a block in chunks, of the checksums that follow it.
    pub xxh3: u64,
    /// Behind the block are the checksums of its chunks, so that it is read where it is needed and checked then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub chunked: bool,
}

/// A run of entries of one keyed state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Entries, which no later checkpoint changes.
    pub entries: Block,
    /// Their counts at this epoch; absent where all are one.
    pub counts: Option<Block>,
}

/// What one worker held of one operator: for each of the operator's keyed states the runs.
pub type Shard = Vec<Vec<Run>>;

/// One stateful operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operator {
    /// What it is.
    pub kind: String,
    /// A shard a worker.
    pub shards: Vec<Shard>,
}

/// What a checkpoint is of, and where its state is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The epoch at whose end it was taken.
    pub epoch: u64,
    /// The wall of the epoch: two histories do not agree in it.
    pub wall_micros: i64,
    /// Format of operator state.
    pub state_format: u32,
    /// Format of packed rows.
    pub row_format: u32,
    /// Meaning of operators and functions.
    pub semantics: u32,
    /// Workers that held the state.
    pub workers: usize,
    /// Fingerprint of every dataset.
    pub fingerprints: BTreeMap<String, String>,
    /// Delta versions of the tables at the end of the epoch.
    pub versions: BTreeMap<String, i64>,
    /// Names of the objects.
    pub objects: Vec<String>,
    /// Operators, by name.
    pub operators: BTreeMap<String, Operator>,
}

#[derive(Serialize, Deserialize)]
struct Envelope<'a> {
    format: u32,
    crc32: u32,
    #[serde(borrow)]
    body: &'a RawValue,
}

impl Manifest {
    /// As bytes.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let failed = |e| Error::internal("a checkpoint's manifest cannot be written").caused_by(e);
        let body = serde_json::value::to_raw_value(self).map_err(failed)?;
        let crc32 = crc32fast::hash(body.get().as_bytes());
        serde_json::to_vec(&Envelope { format: FORMAT, crc32, body: &body }).map_err(failed)
    }

    /// From bytes.
    ///
    /// # Errors
    /// Why they are no manifest that this release understands.
    pub fn decode(bytes: &[u8]) -> Result<Manifest, String> {
        let envelope: Envelope<'_> = serde_json::from_slice(bytes).map_err(|e| format!("it is damaged ({e})"))?;
        let same = |what: &str, found: u32, own: u32| {
            let message = || format!("its {what} {found} is not the one of this version, {own}");
            if found == own { Ok(()) } else { Err(message()) }
        };
        same("format", envelope.format, FORMAT)?;
        if crc32fast::hash(envelope.body.get().as_bytes()) != envelope.crc32 {
            return Err("its checksum does not match".to_owned());
        }
        let manifest: Manifest =
            serde_json::from_str(envelope.body.get()).map_err(|e| format!("it is damaged ({e})"))?;
        same("format of state", manifest.state_format, STATE_FORMAT)?;
        same("format of rows", manifest.row_format, ROW_FORMAT)?;
        same("meaning of operators", manifest.semantics, SEMANTICS)?;
        Ok(manifest)
    }

    /// The operators' state, from the objects' bytes in the manifest's order. Calls `known` with the entries of every run
    /// and where they and their counts are. The `alarm` is raised when something is looked at that is not what was written.
    ///
    /// # Errors
    /// What is wrong with the objects.
    pub fn restore(
        &self,
        objects: &[Bytes],
        alarm: &Alarm,
        mut known: impl FnMut(&Sealed, &Run),
    ) -> Result<Restored, String> {
        let damaged = |name: &str| format!("{name} is damaged");
        for (object, name) in objects.iter().zip(&self.objects) {
            if !object.starts_with(&header()) {
                return Err(damaged(name));
            }
        }
        let name = |block: &Block| self.objects.get(block.object).map_or("an object", String::as_str);
        let slice = |block: &Block, offset: u64, length: u64| {
            let start = usize::try_from(offset).ok()?;
            let end = start.checked_add(usize::try_from(length).ok()?)?;
            objects.get(block.object).filter(|object| end <= object.len()).map(|object| object.slice(start..end))
        };
        let sound = |bytes: Option<Bytes>, block: &Block| {
            let sound = bytes.filter(|bytes| xxhash_rust::xxh3::xxh3_64(bytes) == block.xxh3);
            sound.ok_or_else(|| damaged(name(block)))
        };
        let whole = |block: &Block| sound(slice(block, block.offset, block.length), block);
        let entries = |block: &Block| {
            if !block.chunked {
                return Sealed::decode(whole(block)?).map_err(|e| e.to_string());
            }
            let sums = block.offset.checked_add(block.length);
            let sums = sums.and_then(|at| slice(block, at, block.length.div_ceil(CHUNK as u64).checked_mul(8)?));
            let sums = sound(sums, block)?;
            let bytes = slice(block, block.offset, block.length).ok_or_else(|| damaged(name(block)))?;
            Sealed::open(bytes, sums, alarm.bell()).map_err(|_| damaged(name(block)))
        };
        let mut run = |run: &Run| {
            let entries = entries(&run.entries)?;
            known(&entries, run);
            let counts = run.counts.as_ref().map(&whole).transpose()?.unwrap_or_default();
            Frozen::new(entries, counts).map_err(|e| e.to_string())
        };
        let mut operators = BTreeMap::new();
        for (name, operator) in &self.operators {
            if operator.shards.len() != self.workers {
                return Err(format!("it has not one shard of {name} a worker"));
            }
            let mut snapshots = Vec::with_capacity(operator.shards.len());
            for shard in &operator.shards {
                let parts = shard.iter().map(|part| part.iter().map(&mut run).collect::<Result<Vec<_>, String>>());
                snapshots.push(Snapshot::new(&operator.kind, parts.collect::<Result<Vec<_>, String>>()?));
            }
            operators.insert(name.clone(), snapshots);
        }
        Ok(Restored::new(self.workers, operators, alarm.clone()))
    }
}

/// The beginning of an object.
pub fn header() -> [u8; HEADER] {
    let mut header = [0; HEADER];
    let (magic, format) = header.split_at_mut(MAGIC.len());
    magic.copy_from_slice(MAGIC);
    format.copy_from_slice(&FORMAT.to_le_bytes());
    header
}
