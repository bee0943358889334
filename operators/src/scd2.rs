//! Slowly changing dimensions, type 2: the history of each key.

mod heads;
mod near;
#[cfg(test)]
mod tests;
mod whole;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::batch::{Batch, consolidate_from};
use crate::epochs::{Rows, Shared, shared};
use crate::event::{ByPrecedence, Change};
use crate::history::{History, historise};
use crate::row::Row;
use crate::snapshot::{Share, Snapshot, SnapshotError, State};
use crate::state::{KeyedState, Run, Shelf};
use crate::{Diff, Epoch};
use near::Scratch;

/// A key with at most so many changes is looked at as a whole.
const SMALL: usize = 64;
/// So is a larger one when an epoch changes more than this fraction of it.
const WHOLE: usize = 8;

/// A stretch of a key's history with one value: `[start, end)` in sequence order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Version {
    /// Sequence of the first change of the run.
    pub start: Row,
    /// Sequence of the change that ended it; `None` while it lasts.
    pub end: Option<Row>,
    /// Value of the last change of the run.
    pub value: Row,
}

/// [`Scd2::scd2`] on a collection of changes by key.
pub trait Scd2<'s> {
    /// The history of each key.
    ///
    /// The input is a multiset of changes; a change counts once however often it is in there, and
    /// retractions are as normal as insertions. At one key and sequence one change wins: a delete
    /// over upserts, among upserts the greatest by (rank, tracked, value). The losers contribute
    /// nothing until the winner is retracted. Among the winners in sequence order, a maximal block
    /// of consecutive upserts with equal `tracked` is one version. A delete shows as the end of
    /// the version before it, or not at all.
    ///
    /// The result depends on the multiset alone, never on the order or the epochs in which it
    /// came. The changes of an epoch are net: at most one record a version.
    ///
    /// `ties` is called for each epoch in which the number of changes that lose to another one of
    /// the same key and sequence moved, with the net movement on this worker.
    ///
    /// State: every distinct change, and the sequence at which each run begins. Cost of a change:
    /// O(log n), whatever the length of the key's history or of its runs. The first changes of a
    /// key cost a sort and one pass.
    #[must_use]
    fn scd2(self, name: &str, ties: impl FnMut(Epoch, i64) + 'static) -> Rows<'s, (Row, Version)>
    where
        Self: Sized,
    {
        self.scd2_with(name, shared(Scd2State::new()), ties)
    }

    /// [`Scd2::scd2`] on state that the caller holds too, to restore or to snapshot it. What
    /// restored state already showed is not emitted again.
    #[must_use]
    fn scd2_with(
        self,
        name: &str,
        state: Shared<Scd2State>,
        ties: impl FnMut(Epoch, i64) + 'static,
    ) -> Rows<'s, (Row, Version)>;
}

impl<'s> Scd2<'s> for Rows<'s, (Row, Change)> {
    fn scd2_with(
        self,
        name: &str,
        state: Shared<Scd2State>,
        ties: impl FnMut(Epoch, i64) + 'static,
    ) -> Rows<'s, (Row, Version)> {
        historise(self, None, name, state, ties)
    }
}

/// The state of [`Scd2::scd2`].
#[derive(Debug)]
pub struct Scd2State {
    /// All changes; the last one of a sequence is its winner.
    events: KeyedState<ByPrecedence>,
    /// Where runs begin, of the keys with so many changes that a pass over them is not cheap.
    heads: KeyedState,
    small: usize,
    /// Events and heads of keys that are new in the epoch.
    new: (Run<ByPrecedence>, Run),
    scratch: Scratch,
}

impl Default for Scd2State {
    fn default() -> Self {
        Scd2State {
            events: KeyedState::new(),
            heads: KeyedState::new(),
            small: SMALL,
            new: Default::default(),
            scratch: Scratch::default(),
        }
    }
}

impl Scd2State {
    /// Empty state.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    #[cfg(test)]
    fn with_overlay(limit: usize) -> Self {
        Scd2State {
            events: KeyedState::with_overlay(limit),
            heads: KeyedState::with_overlay(limit),
            small: limit / 4,
            ..Self::default()
        }
    }

    /// Applies the changes of one epoch, appends what it does to the versions to `out`, and
    /// returns by how much the number of losing changes moved.
    pub fn apply(&mut self, changes: &[((Row, Change), Diff)], out: &mut Vec<((Row, Version), Diff)>) -> i64 {
        let ties = self.portion(changes, &[], out);
        self.settle();
        ties
    }
}

impl History<(Row, Version)> for Scd2State {
    fn portion(
        &mut self,
        changes: &[((Row, Change), Diff)],
        _: &[(Row, Diff)],
        out: &mut Vec<((Row, Version), Diff)>,
    ) -> i64 {
        let mut ties = 0;
        Batch::new(changes).for_each(Ord::cmp, |key, group| {
            let mut events = self.events.at(key);
            if events.is_new() {
                let index = group.len() > self.small;
                ties += whole::begin(key, group, index, &mut self.scratch.bound, &mut self.new, out);
                return;
            }
            let mut heads = self.heads.at(key);
            let (indexed, size) = (heads::indexed(&heads), events.size_hint());
            ties += if indexed && group.len() * WHOLE < size {
                let start = out.len();
                let ties = near::change(key, group, &mut events, &mut heads, &mut self.scratch, out);
                if group.len() > 1 {
                    consolidate_from(out, start);
                }
                ties
            } else {
                let index = indexed || size + group.len() > self.small;
                whole::change(key, group, &mut events, index.then_some(&mut heads), out)
            };
        });
        self.events.absorb(&mut self.new.0);
        self.heads.absorb(&mut self.new.1);
        ties
    }

    fn settle(&mut self) {
        let (events, heads) = std::mem::take(&mut self.new);
        self.events.load(events);
        self.heads.load(heads);
    }
}

impl State for Scd2State {
    fn kind(&self) -> &'static str {
        "scd2"
    }

    fn snapshot(&mut self) -> Snapshot {
        Snapshot::new(self.kind(), vec![self.events.freeze(), self.heads.freeze()])
    }

    fn restore(&mut self, snapshot: &Snapshot, share: Share) -> Result<(), SnapshotError> {
        let [events, heads] = snapshot.expect(self.kind())?;
        self.events.thaw(events, share)?;
        self.heads.thaw(heads, share)?;
        Ok(())
    }

    fn put_on(&mut self, shelf: &Arc<dyn Shelf>) {
        self.events.put_on(shelf);
        self.heads.put_on(shelf);
    }

    fn bytes(&self) -> usize {
        self.events.bytes() + self.heads.bytes()
    }

    fn len(&self) -> usize {
        self.events.len() + self.heads.len()
    }
}
