//! Checkpoints in the storage: found, read, written, and removed when newer ones are durable.

mod pen;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use silverflow_operators::{Frozen, Sealed, Snapshot};

use self::pen::Pen;
use super::format::{Block, Manifest, Operator, Run, Shard};
use crate::dataflow::{Alarm, Restored};
use crate::error::{Error, Result};
use crate::lake::Lake;

/// Checkpoints that are kept: the newest one may turn out to be damaged.
const KEPT: usize = 2;

/// What the workers remember, by worker and operator.
pub type States = BTreeMap<usize, Vec<(String, Snapshot)>>;

/// Where a block lies.
#[derive(Clone)]
struct Place {
    object: String,
    offset: u64,
    length: u64,
    xxh3: u64,
    chunked: bool,
}

impl Place {
    fn of(block: &Block, objects: &[String]) -> Option<Place> {
        let Block { object, offset, length, xxh3, chunked } = *block;
        Some(Place { object: objects.get(object)?.clone(), offset, length, xxh3, chunked })
    }

    fn block(&self, pen: &mut Pen) -> Block {
        let Place { offset, length, xxh3, chunked, .. } = *self;
        Block { object: pen.object(&self.object), offset, length, xxh3, chunked }
    }
}

/// Where a run of entries lies, and its counts at one moment.
#[derive(Clone)]
struct Known {
    entries: Place,
    counts: Option<Place>,
    /// [`Frozen::changes`] of that moment.
    changes: u64,
}

impl Known {
    fn of(run: &Run, changes: u64, objects: &[String]) -> Option<Known> {
        let counts = run.counts.as_ref().map(|counts| Place::of(counts, objects));
        Some(Known { entries: Place::of(&run.entries, objects)?, counts: counts.flatten(), changes })
    }
}

/// The checkpoints of a storage.
pub struct Store {
    lake: Lake,
    folder: String,
    /// What has been written or read, by the label of the entries.
    known: HashMap<u64, Known>,
    next_label: u64,
    /// Bytes of the objects that hold it.
    sizes: HashMap<String, u64>,
    /// Objects of the checkpoints that are good, by epoch.
    good: BTreeMap<u64, BTreeSet<String>>,
    /// That of the checkpoint that was read.
    alarm: Alarm,
}

/// A checkpoint that can be used.
pub struct Found {
    /// What it is of.
    pub manifest: Manifest,
    /// The state.
    pub state: Restored,
    /// Bytes that it consists of.
    pub bytes: u64,
    /// Raised when something of it is looked at that is not what was written: then what was computed is worth nothing.
    pub alarm: Alarm,
}

/// What was written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Written {
    /// Bytes in new objects.
    pub bytes: u64,
    /// Bytes that are in objects of earlier checkpoints.
    pub reused: u64,
}

/// State that is durable, and of which no manifest tells yet.
pub struct Staged {
    objects: Vec<String>,
    operators: BTreeMap<String, Operator>,
    /// Entries and counts that are in no earlier checkpoint.
    fresh: Vec<(Frozen, Run)>,
    sizes: HashMap<String, u64>,
    written: Written,
}

/// State that another process of the run has made durable: what whoever publishes it has to know.
#[derive(Debug, Serialize, Deserialize)]
pub struct Part {
    objects: Vec<String>,
    operators: BTreeMap<String, Operator>,
    sizes: BTreeMap<String, u64>,
    bytes: u64,
    reused: u64,
}

impl Staged {
    /// What another process has to know to publish it.
    pub fn part(&self) -> Part {
        Part {
            objects: self.objects.clone(),
            operators: self.operators.clone(),
            sizes: self.sizes.iter().map(|(name, size)| (name.clone(), *size)).collect(),
            bytes: self.written.bytes,
            reused: self.written.reused,
        }
    }

    /// Adds the state of the workers after those whose state is here.
    pub fn add(&mut self, part: Part) {
        let mut places: Vec<usize> = Vec::new();
        for name in part.objects {
            let known = self.objects.iter().position(|object| *object == name);
            places.push(known.unwrap_or_else(|| {
                self.objects.push(name);
                self.objects.len() - 1
            }));
        }
        let moved = |block: &mut Block| block.object = places.get(block.object).copied().unwrap_or(usize::MAX);
        for (name, mut operator) in part.operators {
            for run in operator.shards.iter_mut().flatten().flatten() {
                moved(&mut run.entries);
                run.counts.iter_mut().for_each(moved);
            }
            let known = Operator { kind: operator.kind, shards: Vec::new() };
            self.operators.entry(name).or_insert(known).shards.extend(operator.shards);
        }
        self.sizes.extend(part.sizes);
        self.written.bytes += part.bytes;
        self.written.reused += part.reused;
    }
}

/// State that was read from a checkpoint is not what was written. Without checkpoints all is right.
pub const DAMAGED: &str = "CHECKPOINT_DAMAGED";

/// An error with that code.
pub fn damaged() -> Error {
    Error::external(DAMAGED, "the checkpoint that the run has begun with is damaged")
        .help("the run begins again without checkpoints; look after the disk")
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
            known: HashMap::new(),
            next_label: 0,
            sizes: HashMap::new(),
            good: BTreeMap::new(),
            alarm: Alarm::default(),
        }
    }

    fn at(&self, name: &str) -> String {
        format!("{}/{name}", self.folder)
    }

    /// The newest checkpoint that `fits` and, as far as that is looked at, is intact. What is wrong with those that are not
    /// goes to `warn`. Objects that have to be fetched lie in `scratch`.
    ///
    /// # Errors
    /// External, if the storage cannot be listed.
    pub async fn find(
        &mut self,
        fits: impl Fn(&Manifest) -> bool,
        scratch: &Path,
        warn: &dyn Fn(&str),
    ) -> Result<Option<Found>> {
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
                match self.read(&manifest, scratch).await {
                    Ok(state) => found = Some(state),
                    Err(why) => {
                        unusable(&why);
                        continue;
                    }
                }
            }
            self.good.insert(manifest.epoch, manifest.objects.iter().cloned().collect());
        }
        Ok(found)
    }

    async fn read(&mut self, manifest: &Manifest, scratch: &Path) -> Result<Found, String> {
        let reads = manifest.objects.iter().map(|name| {
            let (lake, at) = (self.lake.clone(), self.at(name));
            async move {
                match lake.open_whole(&at, scratch).await {
                    Ok(Some(bytes)) => Ok(bytes),
                    Ok(None) => Err(format!("{} is missing", lake.display(&at))),
                    Err(error) => Err(error.to_string()),
                }
            }
        });
        let objects: Vec<Bytes> = futures::future::try_join_all(reads).await?;
        let alarm = Alarm::default();
        let mut known = Vec::new();
        let state = manifest.restore(&objects, &alarm, |sealed, run| known.push((sealed.clone(), *run)))?;
        for (sealed, run) in known {
            self.remember(&sealed, &run, 0, &manifest.objects);
        }
        self.alarm = alarm.clone();
        let sizes = manifest.objects.iter().cloned().zip(objects.iter().map(|object| object.len() as u64));
        self.sizes.extend(sizes);
        let bytes = objects.iter().map(|object| object.len() as u64).sum();
        Ok(Found { manifest: manifest.clone(), state, bytes, alarm })
    }

    fn remember(&mut self, sealed: &Sealed, run: &Run, changes: u64, objects: &[String]) {
        let label = sealed.label().unwrap_or(self.next_label);
        sealed.set_label(label);
        self.next_label = self.next_label.max(label + 1);
        self.known.extend(Known::of(run, changes, objects).map(|known| (label, known)));
    }

    /// Writes the state of a checkpoint that is in no earlier one, durable when this returns. It is removed some time if no
    /// manifest follows.
    ///
    /// # Errors
    /// External, of the storage.
    pub async fn stage(&self, epoch: u64, states: &States) -> Result<Staged> {
        let stale = self.mostly_waste(states);
        let mut pen = Pen::new(epoch);
        let mut fresh: Vec<(Frozen, Run)> = Vec::new();
        let mut operators: BTreeMap<String, Operator> = BTreeMap::new();
        let mut reused = 0;
        for (name, snapshot) in states.values().flatten() {
            let mut parts: Shard = Vec::new();
            for part in snapshot.parts() {
                let mut runs = Vec::new();
                for frozen in part.iter().filter(|run| !run.sealed().is_empty()) {
                    let known = frozen.sealed().label().and_then(|label| self.known.get(&label));
                    let mut again = |place: &Place, pen: &mut Pen| {
                        reused += place.length;
                        place.block(pen)
                    };
                    let usable = |place: &&Place| !stale.contains(&place.object);
                    let old = known.map(|known| &known.entries).filter(usable);
                    let entries = match old {
                        Some(place) => again(place, &mut pen),
                        None => pen.entries(frozen.sealed()),
                    };
                    let old_counts = known.filter(|known| known.changes == frozen.changes());
                    let old_counts = old_counts.and_then(|known| known.counts.as_ref()).filter(usable);
                    let counts = match (frozen.counts(), old_counts) {
                        (counts, _) if counts.is_empty() => None,
                        (_, Some(place)) => Some(again(place, &mut pen)),
                        (counts, None) => Some(pen.small(vec![counts.clone()])),
                    };
                    let run = Run { entries, counts };
                    if old.is_none() || counts.is_some() && old_counts.is_none() {
                        fresh.push((frozen.clone(), run));
                    }
                    runs.push(run);
                }
                parts.push(runs);
            }
            let kind = snapshot.kind().to_owned();
            let operator = Operator { kind, shards: Vec::new() };
            operators.entry(name.clone()).or_insert(operator).shards.push(parts);
        }
        let (objects, files) = pen.finish();
        let size = |parts: &[Bytes]| parts.iter().map(|part| part.len() as u64).sum::<u64>();
        let sizes: HashMap<String, u64> = files.iter().map(|(name, parts)| (name.clone(), size(parts))).collect();
        let written = Written { bytes: sizes.values().sum(), reused };
        // Names are random: nobody else has made them.
        self.lake.store(files.into_iter().map(|(name, parts)| (self.at(&name), parts)).collect()).await?;
        Ok(Staged { objects, operators, fresh, sizes, written })
    }

    /// Makes a checkpoint of staged state. `manifest` has no objects and operators yet. When this returns it is durable,
    /// and older ones are gone.
    ///
    /// # Errors
    /// External, of the storage, or because the checkpoint that the run began with is damaged. There is no new checkpoint
    /// then; earlier ones are as they were.
    pub async fn publish(&mut self, mut manifest: Manifest, staged: Staged) -> Result<Written> {
        let epoch = manifest.epoch;
        if self.good.contains_key(&epoch) {
            return Ok(Written::default());
        }
        if self.alarm.is_raised() {
            return Err(damaged());
        }
        (manifest.objects, manifest.operators) = (staged.objects, staged.operators);
        let at = self.at(&name_of(epoch));
        // One that is there was found to be no good, or is another run's for the same epoch.
        self.lake.remove(vec![at.clone()]).await?;
        self.lake.put_new(&at, manifest.encode()?).await?;
        for (frozen, run) in staged.fresh {
            self.remember(frozen.sealed(), &run, frozen.changes(), &manifest.objects);
        }
        self.sizes.extend(staged.sizes);
        self.good.insert(epoch, manifest.objects.into_iter().collect());
        self.clean().await?;
        Ok(staged.written)
    }

    /// Objects of the checkpoints that are good.
    pub fn needed(&self) -> BTreeSet<String> {
        self.good.values().flatten().cloned().collect()
    }

    /// Another process has published what was staged here, and these are the objects that are there now.
    pub fn published(&mut self, staged: Staged, needed: &BTreeSet<String>) {
        for (frozen, run) in staged.fresh {
            self.remember(frozen.sealed(), &run, frozen.changes(), &staged.objects);
        }
        self.sizes.extend(staged.sizes);
        self.forget_all_but(needed);
    }

    fn forget_all_but(&mut self, needed: &BTreeSet<String>) {
        self.known.retain(|_, known| {
            known.counts.take_if(|counts| !needed.contains(&counts.object));
            needed.contains(&known.entries.object)
        });
        self.sizes.retain(|name, _| needed.contains(name));
    }

    /// Removes all checkpoints: what they share is no good.
    ///
    /// # Errors
    /// External, of the storage.
    pub async fn clear(&mut self) -> Result<()> {
        self.good.clear();
        self.clean().await
    }

    /// Objects of which these states use less than half.
    fn mostly_waste(&self, states: &States) -> BTreeSet<String> {
        let runs = states.values().flatten().flat_map(|(_, snapshot)| snapshot.parts().iter().flatten());
        let mut used: HashMap<&str, u64> = HashMap::new();
        for run in runs {
            let Some(known) = run.sealed().label().and_then(|label| self.known.get(&label)) else { continue };
            let counts = known.counts.as_ref().filter(|_| known.changes == run.changes());
            for place in std::iter::once(&known.entries).chain(counts) {
                *used.entry(&place.object).or_default() += place.length;
            }
        }
        let waste =
            self.sizes.iter().filter(|(name, size)| used.get(name.as_str()).is_none_or(|used| used * 2 < **size));
        waste.map(|(name, _)| name.clone()).collect()
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
        self.forget_all_but(&needed);
        Ok(())
    }
}
