//! Changes of a key with a long history: only the neighbourhood of each is looked at.

use super::whole::{Stretch, difference};
use super::{Version, heads};
use crate::Diff;
use crate::batch::Group;
use crate::event::{ByPrecedence, Change, Event, above, below, winner_at};
use crate::row::Row;
use crate::state::KeyMut;

/// Bounds for searching, kept to reuse their allocation.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    below: Vec<u8>,
    above: Vec<u8>,
    /// The winner of a sequence before the change, encoded.
    old: Vec<u8>,
    /// Any other order that is looked for.
    pub(super) bound: Vec<u8>,
}

/// A piece of history around the sequence that changes: `tracked` is `None` where there is no row.
#[derive(Clone, Copy)]
struct Piece<'a> {
    start: &'a [u8],
    tracked: Option<&'a [u8]>,
    value: &'a [u8],
}

impl<'a> Piece<'a> {
    fn of(event: Event<'a>) -> Self {
        Piece { start: event.sequence, tracked: event.tracked(), value: event.value }
    }
}

/// Each sequence in turn. The key has an index of heads.
pub(super) fn change(
    key: &Row,
    group: &Group<'_, Change>,
    events: &mut KeyMut<'_, ByPrecedence>,
    heads: &mut KeyMut<'_>,
    scratch: &mut Scratch,
    out: &mut Vec<((Row, Version), Diff)>,
) -> i64 {
    let mut ties = 0;
    for same in group.chunk_by(|a, b| a.0.sequence() == b.0.sequence()) {
        let Some((first, _)) = same.first() else {
            continue;
        };
        let sequence = first.sequence();
        below(sequence, &mut scratch.below);
        above(sequence, &mut scratch.above);
        scratch.old.clear();
        if let Some(old) = winner_at(events, sequence, &scratch.above) {
            scratch.old.extend_from_slice(old);
        }
        let mut appeared = 0;
        for (change, diff) in same {
            let (before, after) = events.add(change.as_bytes(), *diff);
            appeared += i64::from(after > 0) - i64::from(before > 0);
        }
        let old = (!scratch.old.is_empty()).then(|| Event::decode(&scratch.old));
        let new = winner_at(events, sequence, &scratch.above).map(Event::decode);
        ties += appeared - (i64::from(new.is_some()) - i64::from(old.is_some()));
        if old != new {
            let around = (scratch.below.as_slice(), scratch.above.as_slice());
            rewrite(key, sequence, old, new, events, heads, around, &mut scratch.bound, out);
        }
    }
    ties
}

/// The winner at `sequence` has changed from `old` to `new`: emits what that does to the versions
/// and moves the run heads. `events` are already as they are with `new`.
#[allow(clippy::too_many_arguments, reason = "the two winners, the state of the key, and where results go")]
fn rewrite(
    key: &Row,
    sequence: &[u8],
    old: Option<Event<'_>>,
    new: Option<Event<'_>>,
    events: &KeyMut<'_, ByPrecedence>,
    heads: &mut KeyMut<'_>,
    (under, over): (&[u8], &[u8]),
    bound: &mut Vec<u8>,
    out: &mut Vec<((Row, Version), Diff)>,
) {
    let previous = events.before(under).map(|entry| Event::decode(entry.order));
    // The least event of the next sequence leads to that sequence's winner.
    let next = events.after(over).and_then(|entry| {
        above(Event::decode(entry.order).sequence, bound);
        events.before(bound).map(|entry| Event::decode(entry.order))
    });
    // Neither the head of the previous run nor the head after the next event depends on `sequence`.
    let before = previous.map(|event| Piece {
        start: heads::up_to(heads, event.sequence, bound).unwrap_or(event.sequence),
        ..Piece::of(event)
    });
    let mut end = None;
    let after = next.map(|event| {
        end = heads::after(heads, event.sequence, bound);
        let last = match end {
            None => events.last(),
            Some(end) => {
                below(end, bound);
                events.before(bound)
            }
        };
        let value = last.map_or(event.value, |last| Event::decode(last.order).value);
        Piece { value, ..Piece::of(event) }
    });
    let [gone, come] = [old, new].map(|winner| fold([before, winner.map(Piece::of), after], end));
    difference(key, &gone, &come, out);

    let previous_tracked = previous.and_then(|event| event.tracked());
    let new_tracked = new.and_then(|event| event.tracked());
    let is_head = new.is_some() && new_tracked != previous_tracked;
    heads::set(heads, sequence, is_head, bound);
    if let Some(event) = next {
        let left = if new.is_some() { new_tracked } else { previous_tracked };
        heads::set(heads, event.sequence, event.tracked() != left, bound);
    }
}

/// Joins neighbours with equal `tracked`; of them come those that are rows, each with its end. The last one ends at
/// `end`.
fn fold<'a>(pieces: [Option<Piece<'a>>; 3], end: Option<&'a [u8]>) -> Vec<Stretch<'a>> {
    let mut rows = Vec::with_capacity(pieces.len());
    let mut open: Option<Piece<'a>> = None;
    let mut close = |piece: Option<Piece<'a>>, end| {
        let row = piece.filter(|piece| piece.tracked.is_some());
        rows.extend(row.map(|piece| Stretch { start: piece.start, end, value: piece.value }));
    };
    for piece in pieces.into_iter().flatten() {
        match &mut open {
            Some(run) if run.tracked == piece.tracked => run.value = piece.value,
            run => close(run.replace(piece), Some(piece.start)),
        }
    }
    close(open, end);
    rows
}
