//! Checkpoints in the storage: found, read, written, and removed when newer ones are durable.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use silverflow_operators::{Sealed, Snapshot};

use super::format::{Block, Manifest, Operator, Run, Shard, header};
use crate::dataflow::Restored;
use crate::error::Result;
use crate::lake::Lake;

/// Checkpoints that are kept: the newest one may turn out to be damaged.
const KEPT: usize = 2;
/// Blocks of this size have an object of their own, so that it goes when they do.
const LARGE: usize = 4 << 20;
/// Size at which an object of small blocks is full.
const FULL: usize = 64 << 20;

/// What the workers remember, by worker and operator.
pub type States = BTreeMap<usize, Vec<(String, Snapshot)>>;

/// Where a run of entries lies.
#[derive(Clone)]
struct Place {
    object: String,
    offset: u64,
    length: u64,
    xxh3: u64,
}

/// The checkpoints of a storage.
pub struct Store {
    lake: Lake,
    folder: String,
    /// Where entries lie that have been written or read, by their label.
    places: HashMap<u64, Place>,
    next_label: u64,
    /// Objects of the checkpoints that are good, by epoch.
    good: BTreeMap<u64, BTreeSet<String>>,
}

/// A checkpoint that can be used.
pub struct Found {
    /// What it is of.
    pub manifest: Manifest,
    /// The state.
    pub state: Restored,
    /// Bytes that were read.
    pub bytes: u64,
}

/// What was written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Written {
    /// Bytes in new objects.
    pub bytes: u64,
    /// Bytes that are in objects of earlier checkpoints.
    pub reused: u64,
}

fn name_of(epoch: u64) -> String {
    format!("{epoch:020}.json")
}

fn epoch_of(name: &str) -> Option<u64> {
    let number = name.strip_suffix(".json")?;
    (number.len() == 20).then(|| number.parse().ok()).flatten()
}

impl Store {
    /// The checkpoints of a lake.
    pub fn new(lake: &Lake) -> Store {
        Store {
            lake: lake.clone(),
            folder: lake.private_location("checkpoints"),
            places: HashMap::new(),
            next_label: 0,
            good: BTreeMap::new(),
        }
    }

    fn at(&self, name: &str) -> String {
        format!("{}/{name}", self.folder)
    }

    /// The newest checkpoint that is intact and `fits`. What is wrong with those that are not goes to `warn`.
    ///
    /// # Errors
    /// External, if the storage cannot be listed.
    pub async fn find(&mut self, fits: impl Fn(&Manifest) -> bool, warn: &dyn Fn(&str)) -> Result<Option<Found>> {
        let mut names = self.lake.list(&self.folder).await?;
        names.retain(|name| epoch_of(name).is_some());
        let mut found = None;
        for name in names.iter().rev() {
            let shown = self.lake.display(&self.at(name));
            let unusable = |why: &str| warn(&format!("the checkpoint {shown} cannot be used: {why}"));
            let bytes = match self.lake.get(&self.at(name)).await {
                Ok(bytes) => bytes.unwrap_or_default(),
                Err(error) => {
                    unusable(&error.to_string());
                    continue;
                }
            };
            let manifest = match Manifest::decode(&bytes) {
                Ok(manifest) if epoch_of(name) == Some(manifest.epoch) => manifest,
                Ok(_) => {
                    unusable("it is of another epoch");
                    continue;
                }
                Err(why) => {
                    unusable(&why);
                    continue;
                }
            };
            if found.is_none() && fits(&manifest) {
                match self.read(&manifest).await {
                    Ok(state) => found = Some((manifest.clone(), state)),
                    Err(why) => {
                        unusable(&why);
                        continue;
                    }
                }
            }
            self.good.insert(manifest.epoch, manifest.objects.iter().cloned().collect());
        }
        let Some((manifest, (objects, state))) = found else { return Ok(None) };
        Ok(Some(Found { manifest, state, bytes: objects }))
    }

    async fn read(&mut self, manifest: &Manifest) -> Result<(u64, Restored), String> {
        let reads = manifest.objects.iter().map(|name| {
            let (lake, at) = (self.lake.clone(), self.at(name));
            async move {
                match lake.get(&at).await {
                    Ok(Some(bytes)) => Ok(Bytes::from(bytes)),
                    Ok(None) => Err(format!("{} is missing", lake.display(&at))),
                    Err(error) => Err(error.to_string()),
                }
            }
        });
        let objects: Vec<Bytes> = futures::future::try_join_all(reads).await?;
        let mut labelled = Vec::new();
        let mut label = self.next_label;
        let state = manifest.restore(&objects, |sealed, block| {
            sealed.set_label(label);
            labelled.push((label, block));
            label += 1;
        })?;
        self.next_label = label;
        for (label, block) in labelled {
            let object = manifest.objects.get(block.object).cloned().unwrap_or_default();
            let Block { offset, length, xxh3, .. } = block;
            self.places.insert(label, Place { object, offset, length, xxh3 });
        }
        Ok((objects.iter().map(|o| o.len() as u64).sum(), state))
    }

    /// Writes a checkpoint: state that is in no earlier one, then the manifest. `manifest` has no objects and operators
    /// yet. When this returns it is durable, and older ones are gone.
    ///
    /// # Errors
    /// External, of the storage. There is no new checkpoint then; earlier ones are as they were.
    pub async fn write(&mut self, mut manifest: Manifest, states: &States) -> Result<Written> {
        let epoch = manifest.epoch;
        if self.good.contains_key(&epoch) {
            return Ok(Written::default());
        }
        let stale = self.mostly_waste(states);
        let mut pen = Pen::new(epoch);
        let mut fresh: Vec<(Sealed, Block)> = Vec::new();
        let mut written = Written::default();
        for shard in states.values() {
            for (name, snapshot) in shard {
                let mut parts: Shard = Vec::new();
                for part in snapshot.parts() {
                    let mut runs = Vec::new();
                    for run in part.iter().filter(|run| !run.sealed().is_empty()) {
                        let sealed = run.sealed();
                        let place = sealed.label().and_then(|label| self.places.get(&label));
                        let entries = match place.filter(|place| !stale.contains(&place.object)) {
                            Some(place) => {
                                written.reused += place.length;
                                Block {
                                    object: pen.object(&place.object),
                                    offset: place.offset,
                                    length: place.length,
                                    xxh3: place.xxh3,
                                }
                            }
                            None => {
                                let mut bytes = Vec::with_capacity(sealed.encoded_len() + super::format::HEADER);
                                let block = if sealed.encoded_len() >= LARGE {
                                    bytes.extend(header());
                                    sealed.encode(&mut bytes);
                                    let (block, name) = pen.large(&bytes);
                                    written.bytes += bytes.len() as u64;
                                    self.put(name, bytes).await?;
                                    block
                                } else {
                                    sealed.encode(&mut bytes);
                                    pen.small(&bytes)
                                };
                                fresh.push((sealed.clone(), block));
                                block
                            }
                        };
                        let counts = run.counts();
                        let counts = (!counts.is_empty()).then(|| pen.small(&counts));
                        runs.push(Run { entries, counts });
                        if let Some((name, bytes)) = pen.full() {
                            written.bytes += bytes.len() as u64;
                            self.put(name, bytes).await?;
                        }
                    }
                    parts.push(runs);
                }
                let kind = snapshot.kind().to_owned();
                let operator = Operator { kind, shards: Vec::new() };
                manifest.operators.entry(name.clone()).or_insert(operator).shards.push(parts);
            }
        }
        let last = pen.last();
        written.bytes += last.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>();
        manifest.objects = pen.objects;
        self.publish(last, &manifest).await?;
        for (sealed, Block { object, offset, length, xxh3 }) in fresh {
            let Some(object) = manifest.objects.get(object).cloned() else { continue };
            let label = sealed.label().unwrap_or(self.next_label);
            sealed.set_label(label);
            self.next_label = self.next_label.max(label + 1);
            self.places.insert(label, Place { object, offset, length, xxh3 });
        }
        self.good.insert(epoch, manifest.objects.into_iter().collect());
        self.clean().await?;
        Ok(written)
    }

    async fn put(&self, name: String, bytes: Vec<u8>) -> Result<()> {
        // The name is random: nobody else has made it.
        self.lake.put_new(&self.at(&name), bytes).await.map(drop)
    }

    async fn publish(&self, objects: Vec<(String, Vec<u8>)>, manifest: &Manifest) -> Result<()> {
        let objects = objects.into_iter().map(|(name, bytes)| (self.at(&name), bytes)).collect();
        let at = self.at(&name_of(manifest.epoch));
        // One that is there was found to be no good, or is another run's for the same epoch.
        self.lake.remove(vec![at.clone()]).await?;
        self.lake.publish(objects, &at, manifest.encode()?).await.map(drop)
    }

    /// Objects of small blocks of which these states use less than half.
    fn mostly_waste(&self, states: &States) -> BTreeSet<String> {
        let sealed = states.values().flatten().flat_map(|(_, snapshot)| snapshot.parts().iter().flatten());
        let labels: BTreeSet<u64> = sealed.filter_map(|run| run.sealed().label()).collect();
        let mut used: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for (label, place) in &self.places {
            let (live, all) = used.entry(&place.object).or_default();
            *all += place.length;
            *live += if labels.contains(label) { place.length } else { 0 };
        }
        used.iter().filter(|(_, (live, all))| live * 2 < *all).map(|(object, _)| (*object).to_owned()).collect()
    }

    /// Removes all but the newest good checkpoints, and then the objects that none of these needs.
    async fn clean(&mut self) -> Result<()> {
        while self.good.len() > KEPT {
            self.good.pop_first();
        }
        let names = self.lake.list(&self.folder).await?;
        let is_good = |name: &String| epoch_of(name).is_some_and(|epoch| self.good.contains_key(&epoch));
        let manifests = names.iter().filter(|name| epoch_of(name).is_some() && !is_good(name));
        self.lake.remove(manifests.map(|name| self.at(name)).collect()).await?;
        let needed: BTreeSet<&String> = self.good.values().flatten().collect();
        let objects = names.iter().filter(|name| name.ends_with(".state") && !needed.contains(name));
        let gone: Vec<String> = objects.map(|name| self.at(name)).collect();
        self.lake.remove(gone).await?;
        let needed: BTreeSet<String> = needed.into_iter().cloned().collect();
        self.places.retain(|_, place| needed.contains(&place.object));
        Ok(())
    }
}

/// Puts blocks into objects.
struct Pen {
    prefix: String,
    objects: Vec<String>,
    known: HashMap<String, usize>,
    /// The object that small blocks go to.
    open: Option<(usize, Vec<u8>)>,
}

impl Pen {
    fn new(epoch: u64) -> Pen {
        let prefix = format!("{epoch:020}-{}", uuid::Uuid::new_v4().simple());
        Pen { prefix, objects: Vec::new(), known: HashMap::new(), open: None }
    }

    /// The place of an object among the manifest's.
    fn object(&mut self, name: &str) -> usize {
        if let Some(known) = self.known.get(name) {
            return *known;
        }
        self.objects.push(name.to_owned());
        self.known.insert(name.to_owned(), self.objects.len() - 1);
        self.objects.len() - 1
    }

    fn new_object(&mut self) -> usize {
        let name = format!("{}.{}.state", self.prefix, self.objects.len());
        self.object(&name)
    }

    fn name(&self, object: usize) -> String {
        self.objects.get(object).cloned().unwrap_or_default()
    }

    /// Names the object that `bytes` are: a header and one block.
    fn large(&mut self, bytes: &[u8]) -> (Block, String) {
        let object = self.new_object();
        let block = bytes.get(super::format::HEADER..).unwrap_or_default();
        let (length, xxh3) = (block.len() as u64, xxhash_rust::xxh3::xxh3_64(block));
        (Block { object, offset: super::format::HEADER as u64, length, xxh3 }, self.name(object))
    }

    fn small(&mut self, block: &[u8]) -> Block {
        let (object, mut bytes) = match self.open.take() {
            Some(open) => open,
            None => (self.new_object(), header().to_vec()),
        };
        let (offset, length) = (bytes.len() as u64, block.len() as u64);
        bytes.extend_from_slice(block);
        self.open = Some((object, bytes));
        Block { object, offset, length, xxh3: xxhash_rust::xxh3::xxh3_64(block) }
    }

    /// The object of small blocks, if it is full.
    fn full(&mut self) -> Option<(String, Vec<u8>)> {
        let (object, bytes) = self.open.take_if(|(_, bytes)| bytes.len() >= FULL)?;
        Some((self.name(object), bytes))
    }

    /// The object of small blocks that is left.
    fn last(&mut self) -> Vec<(String, Vec<u8>)> {
        let open = self.open.take();
        open.map(|(object, bytes)| (self.name(object), bytes)).into_iter().collect()
    }
}
