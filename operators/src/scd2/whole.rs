//! Changes of a key that is looked at as a whole: one pass over its events.

use std::cmp::Ordering;

use super::{Version, heads};
use crate::Diff;
use crate::batch::Group;
use crate::event::{ByPrecedence, Change, Event};
use crate::row::Row;
use crate::state::{KeyMut, Order, Run};

/// The run that is open: the change that began it, and the last one of it.
type Open<'a> = ((&'a Change, Event<'a>), (&'a Change, Event<'a>));

/// The changes of a key that has no state.
pub(super) fn begin(
    key: &Row,
    group: &Group<'_, Change>,
    index: bool,
    buffer: &mut Vec<u8>,
    (events, heads): &mut (Run<ByPrecedence>, Run),
    out: &mut Vec<((Row, Version), Diff)>,
) -> i64 {
    let mut ties = 0;
    let mut open: Option<Open<'_>> = None;
    let mut emit = |run: Option<Open<'_>>, end: Option<Row>| {
        if let Some(((first, head), (last, event))) = run {
            let version = Version { start: first.part(head.sequence), end, value: last.part(event.value) };
            out.push(((key.clone(), version), 1));
        }
    };
    if index {
        heads.push(heads::MARK, b"", 1);
    }
    for same in group.chunk_by(|a, b| a.0.sequence() == b.0.sequence()) {
        for (change, count) in same {
            events.push(change.as_bytes(), b"", *count);
        }
        let live = same.iter().filter(|(_, count)| *count > 0).count() as i64;
        ties += (live - 1).max(0);
        let Some((winner, _)) = same.iter().rfind(|(_, count)| *count > 0) else {
            continue;
        };
        let event = winner.event();
        if event.tracked() != open.and_then(|(_, (_, last))| last.tracked()) {
            if index {
                heads::head(event.sequence, buffer);
                heads.push(buffer, b"", 1);
            }
            emit(open.take(), Some(winner.part(event.sequence)));
        }
        open = (!event.is_delete()).then(|| (open.map_or((*winner, event), |(first, _)| first), (*winner, event)));
    }
    emit(open, None);
    events.close_key(key);
    heads.close_key(key);
    ties
}

/// The changes of a key that has state. `heads` is given if the key has an index of heads or is to
/// have one.
pub(super) fn change(
    key: &Row,
    group: &Group<'_, Change>,
    events: &mut KeyMut<'_, ByPrecedence>,
    heads: Option<&mut KeyMut<'_>>,
    out: &mut Vec<((Row, Version), Diff)>,
) -> i64 {
    let (mut old, mut new) = (History::default(), History::default());
    let mut stored = events.scan().peekable();
    let mut arriving = group.iter().peekable();
    loop {
        let order = match (stored.peek(), arriving.peek()) {
            (None, None) => break,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(stored), Some((change, _))) => ByPrecedence::compare(stored.order, change.as_bytes()),
        };
        let here = if order == Ordering::Greater { None } else { stored.next() };
        let diff = if order == Ordering::Less { None } else { arriving.next() };
        let before = here.map_or(0, |entry| entry.count);
        let after = before + diff.map_or(0, |(_, diff)| *diff);
        let bytes = here.map(|entry| entry.order).or(diff.map(|(change, _)| change.as_bytes()));
        let event = Event::decode(bytes.unwrap_or_default());
        if before > 0 {
            old.push(event);
        }
        if after > 0 {
            new.push(event);
        }
    }
    drop(stored);
    old.finish();
    new.finish();
    difference(key, &old.runs, &new.runs, out);
    let ties = new.losers - old.losers;
    let moves = heads.map(|heads| {
        let known = if heads::indexed(heads) { old.heads.as_slice() } else { &[] };
        (moved(known, &new.heads), heads)
    });
    for (change, diff) in group {
        events.add(change.as_bytes(), *diff);
    }
    if let Some((moves, heads)) = moves {
        if !heads::indexed(heads) {
            heads.set(heads::MARK, b"", 1);
        }
        let mut buffer = Vec::new();
        for (sequence, is_head) in &moves {
            heads::set(heads, sequence, *is_head, &mut buffer);
        }
    }
    ties
}

/// One version, not yet copied out of state.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Stretch<'a> {
    pub(super) start: &'a [u8],
    pub(super) end: Option<&'a [u8]>,
    pub(super) value: &'a [u8],
}

/// Rows that were made a moment ago. Neighbouring versions share most of theirs.
#[derive(Default)]
struct Recent(Vec<Row>);

/// How far back it is worth to look.
const RECENT: usize = 8;

impl Recent {
    fn row(&mut self, bytes: &[u8]) -> Row {
        if let Some(row) = self.0.iter().rev().take(RECENT).find(|row| row.as_bytes() == bytes) {
            return row.clone();
        }
        let row = Row::from(bytes);
        self.0.push(row.clone());
        row
    }

    fn version(&mut self, stretch: &Stretch<'_>) -> Version {
        Version {
            start: self.row(stretch.start),
            end: stretch.end.map(|end| self.row(end)),
            value: self.row(stretch.value),
        }
    }
}

/// Versions and heads, from live events in the order of precedence.
#[derive(Default)]
struct History<'a> {
    runs: Vec<Stretch<'a>>,
    heads: Vec<&'a [u8]>,
    losers: i64,
    /// The last event: the winner of its sequence unless another one follows.
    last: Option<Event<'a>>,
    /// `tracked` of the last winner.
    tracked: Option<&'a [u8]>,
}

impl<'a> History<'a> {
    fn push(&mut self, event: Event<'a>) {
        match self.last {
            Some(last) if last.sequence == event.sequence => self.losers += 1,
            _ => self.finish(),
        }
        self.last = Some(event);
    }

    /// The last event is the winner of its sequence.
    fn finish(&mut self) {
        let Some(winner) = self.last.take() else {
            return;
        };
        let tracked = winner.tracked();
        let open = if self.tracked.is_some() { self.runs.last_mut() } else { None };
        if tracked == self.tracked {
            if let Some(run) = open {
                run.value = winner.value;
            }
            return;
        }
        self.heads.push(winner.sequence);
        if let Some(run) = open {
            run.end = Some(winner.sequence);
        }
        if tracked.is_some() {
            self.runs.push(Stretch { start: winner.sequence, end: None, value: winner.value });
        }
        self.tracked = tracked;
    }
}

/// Emits what is in one list only. Both are sorted by start.
pub(super) fn difference(key: &Row, old: &[Stretch<'_>], new: &[Stretch<'_>], out: &mut Vec<((Row, Version), Diff)>) {
    let mut recent = Recent::default();
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => return,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(a), Some(b)) => a.start.cmp(b.start),
        };
        let gone = if order == Ordering::Greater { None } else { old.next() };
        let come = if order == Ordering::Less { None } else { new.next() };
        if gone != come {
            out.extend(gone.map(|stretch| ((key.clone(), recent.version(stretch)), -1)));
            out.extend(come.map(|stretch| ((key.clone(), recent.version(stretch)), 1)));
        }
    }
}

/// The sequences that are in one list only, each with whether it is the new one. Both are sorted.
fn moved(old: &[&[u8]], new: &[&[u8]]) -> Vec<(Row, bool)> {
    let gone = old.iter().filter(|sequence| new.binary_search(sequence).is_err());
    let come = new.iter().filter(|sequence| old.binary_search(sequence).is_err());
    gone.map(|sequence| (Row::from(*sequence), false))
        .chain(come.map(|sequence| (Row::from(*sequence), true)))
        .collect()
}
