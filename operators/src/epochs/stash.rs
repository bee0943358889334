//! Updates that wait for their epoch.

use std::collections::BTreeMap;

use crate::{Diff, Epoch};

/// How many portions a large epoch has: one for each first byte of a key's hash.
pub(super) const PORTIONS: usize = 256;

/// The updates of an epoch on one input.
pub(super) enum Updates<D> {
    Together(Vec<(D, Diff)>),
    Split {
        portions: Vec<Vec<(D, Diff)>>,
        /// Updates in all of them.
        len: usize,
    },
}

impl<D> Updates<D> {
    fn new() -> Self {
        Updates::Together(Vec::new())
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Updates::Together(all) => all.len(),
            Updates::Split { len, .. } => *len,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn is_split(&self) -> bool {
        matches!(self, Updates::Split { .. })
    }

    /// Takes out one portion.
    pub(super) fn portion(&mut self, at: usize) -> Vec<(D, Diff)> {
        match self {
            Updates::Together(all) if at == 0 => std::mem::take(all),
            Updates::Together(_) => Vec::new(),
            Updates::Split { portions, len } => {
                let portion = portions.get_mut(at).map(std::mem::take).unwrap_or_default();
                *len -= portion.len();
                portion
            }
        }
    }

    /// All in one piece.
    pub(super) fn join(self) -> Self {
        match self {
            Updates::Split { portions, .. } => Updates::Together(portions.into_iter().flatten().collect()),
            together => together,
        }
    }
}

/// The updates of the epochs that are not complete, on one input.
pub(super) struct Stash<D, H> {
    epochs: BTreeMap<Epoch, Updates<D>>,
    hash: H,
    /// An epoch with more updates is split, while they arrive.
    split: usize,
}

impl<D, H: Fn(&D) -> u64> Stash<D, H> {
    pub(super) fn new(hash: H, split: usize) -> Self {
        Stash { epochs: BTreeMap::new(), hash, split }
    }

    pub(super) fn take_in(&mut self, updates: &mut Vec<(D, Epoch, Diff)>) {
        // Nearly always a message holds one epoch: look the epoch up once per stretch.
        let mut updates = updates.drain(..).peekable();
        while let Some(epoch) = updates.peek().map(|(_, epoch, _)| *epoch) {
            let list = self.epochs.entry(epoch).or_insert_with(Updates::new);
            let stretch = std::iter::from_fn(|| updates.next_if(|(_, at, _)| *at == epoch));
            let stretch = stretch.map(|(item, _, diff)| (item, diff));
            match list {
                Updates::Together(all) => {
                    all.extend(stretch);
                    if all.len() > self.split {
                        *list = split(std::mem::take(all), &self.hash);
                    }
                }
                Updates::Split { portions, len } => place(portions, len, stretch, &self.hash),
            }
        }
    }

    pub(super) fn least(&self) -> Option<Epoch> {
        self.epochs.keys().next().copied()
    }

    pub(super) fn remove(&mut self, epoch: Epoch) -> Updates<D> {
        self.epochs.remove(&epoch).unwrap_or_else(Updates::new)
    }

    /// The same updates in portions.
    pub(super) fn split(&self, updates: Updates<D>) -> Updates<D> {
        match updates {
            Updates::Together(all) => split(all, &self.hash),
            split => split,
        }
    }
}

fn split<D>(updates: Vec<(D, Diff)>, hash: impl Fn(&D) -> u64) -> Updates<D> {
    let mut portions: Vec<_> = (0..PORTIONS).map(|_| Vec::new()).collect();
    let mut len = 0;
    place(&mut portions, &mut len, updates, hash);
    Updates::Split { portions, len }
}

fn place<D>(
    portions: &mut [Vec<(D, Diff)>],
    len: &mut usize,
    updates: impl IntoIterator<Item = (D, Diff)>,
    hash: impl Fn(&D) -> u64,
) {
    for update in updates {
        if let Some(portion) = portions.get_mut((hash(&update.0) >> 56) as usize) {
            portion.push(update);
            *len += 1;
        }
    }
}
