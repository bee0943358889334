//! Change events, and how they are kept in state.

use std::cmp::Ordering;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::row::Row;
use crate::state::{KeyMut, Order, prefix};

/// A change of one key: an upsert, or a delete.
///
/// It is one row, as it also lies in state. Ordered by precedence: sequence; a delete above all upserts; rank, tracked,
/// value. The last of the changes at one sequence is the one that counts.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Change(Row);

/// The content of an upsert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Upsert<'a> {
    /// Decides between upserts of one key at one sequence: the greatest wins.
    pub rank: &'a [u8],
    /// The part whose change makes a new version; decides where `rank` is equal.
    pub tracked: &'a [u8],
    /// The row to show; decides where `rank` and `tracked` are equal.
    pub value: &'a [u8],
}

impl<'a> Upsert<'a> {
    /// An upsert of which every part is the value.
    #[must_use]
    pub fn of(value: &'a [u8]) -> Self {
        Upsert { rank: value, tracked: value, value }
    }
}

impl Change {
    /// What the key becomes at `sequence`; `None` deletes it.
    #[must_use]
    pub fn new(sequence: &[u8], upsert: Option<Upsert<'_>>) -> Self {
        let content = upsert.map_or(0, |upsert| upsert.rank.len() + upsert.tracked.len() + upsert.value.len());
        let mut bytes = Vec::with_capacity(sequence.len() + content + 8);
        Change::put(sequence, upsert, &mut bytes);
        Change(Row::from(bytes))
    }

    /// A delete at `sequence`.
    #[must_use]
    pub fn delete(sequence: &[u8]) -> Self {
        Change::new(sequence, None)
    }

    /// Appends to `out` the bytes of which [`Change::packed`] makes the change that [`Change::new`] would.
    pub fn put(sequence: &[u8], upsert: Option<Upsert<'_>>, out: &mut Vec<u8>) {
        let Some(Upsert { rank, tracked, value }) = upsert else {
            out.push(DELETE | RANK_IS_VALUE | TRACKED_IS_VALUE);
            return put(out, sequence);
        };
        let flag = |same: bool, flag: u8| if same { flag } else { 0 };
        out.push(UPSERT | flag(rank == value, RANK_IS_VALUE) | flag(tracked == value, TRACKED_IS_VALUE));
        put(out, sequence);
        if rank != value {
            put(out, rank);
        }
        if tracked != value {
            put(out, tracked);
        }
        out.extend_from_slice(value);
    }

    /// A change from the bytes that [`Change::put`] has appended. Other bytes are some change, too, though not one that is
    /// equal to what it says.
    #[must_use]
    pub fn packed(row: Row) -> Self {
        Change(row)
    }

    /// Where the change stands among the changes of its key; compared bytewise.
    #[must_use]
    pub fn sequence(&self) -> &[u8] {
        sequence(&self.0)
    }

    /// What the key becomes; `None` deletes it.
    #[must_use]
    pub fn upsert(&self) -> Option<Upsert<'_>> {
        let Event { rank, tracked, value, .. } = self.event();
        (!self.is_delete()).then_some(Upsert { rank, tracked, value })
    }

    /// Whether it deletes the key.
    #[must_use]
    pub fn is_delete(&self) -> bool {
        self.event().is_delete()
    }

    /// As it lies in state.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn event(&self) -> Event<'_> {
        Event::decode(&self.0)
    }

    /// A piece of the change as a row that shares its bytes.
    pub(crate) fn part(&self, piece: &[u8]) -> Row {
        self.0.part(piece)
    }
}

impl PartialOrd for Change {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Change {
    fn cmp(&self, other: &Self) -> Ordering {
        ByPrecedence::compare(&self.0, &other.0)
    }
}

impl fmt::Debug for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
        match self.upsert() {
            None => write!(f, "delete at {}", text(self.sequence())),
            Some(Upsert { rank, tracked, value }) => {
                let [rank, tracked, value] = [rank, tracked, value].map(text);
                write!(f, "upsert at {}: {value} (rank {rank}, tracked {tracked})", text(self.sequence()))
            }
        }
    }
}

const UPSERT: u8 = 0;
const DELETE: u8 = 1;
/// Above every event of a sequence; never stored.
const ABOVE: u8 = 2;
const KIND: u8 = 3;
/// `rank` is `value` and not stored.
const RANK_IS_VALUE: u8 = 4;
/// `tracked` is `value` and not stored.
const TRACKED_IS_VALUE: u8 = 8;

/// An event as it lies in state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event<'a> {
    pub(crate) sequence: &'a [u8],
    kind: u8,
    pub(crate) rank: &'a [u8],
    pub(crate) tracked: &'a [u8],
    pub(crate) value: &'a [u8],
}

fn put_length(out: &mut Vec<u8>, mut length: usize) {
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    put_length(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// Splits a length-prefixed string off the front. Empty where the bytes end early.
fn take<'a>(bytes: &mut &'a [u8]) -> &'a [u8] {
    let (mut length, mut shift) = (0usize, 0);
    while let Some((byte, rest)) = bytes.split_first() {
        *bytes = rest;
        length |= usize::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 || shift > 56 {
            break;
        }
    }
    let (head, rest) = bytes.split_at_checked(length).unwrap_or((bytes, &[]));
    *bytes = rest;
    head
}

impl<'a> Event<'a> {
    pub(crate) fn decode(mut bytes: &'a [u8]) -> Self {
        let flags = bytes.split_off_first().copied().unwrap_or(UPSERT);
        let sequence = take(&mut bytes);
        let rank = if flags & RANK_IS_VALUE == 0 { Some(take(&mut bytes)) } else { None };
        let tracked = if flags & TRACKED_IS_VALUE == 0 { Some(take(&mut bytes)) } else { None };
        Event {
            sequence,
            kind: flags & KIND,
            rank: rank.unwrap_or(bytes),
            tracked: tracked.unwrap_or(bytes),
            value: bytes,
        }
    }

    pub(crate) fn is_delete(&self) -> bool {
        self.kind == DELETE
    }

    /// What SCD2 compares: deletes and absence are alike.
    pub(crate) fn tracked(&self) -> Option<&'a [u8]> {
        (!self.is_delete()).then_some(self.tracked)
    }
}

/// A bound just above all events at `sequence`.
pub(crate) fn above(sequence: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.push(ABOVE | RANK_IS_VALUE | TRACKED_IS_VALUE);
    put(out, sequence);
}

/// A bound at or below all events at `sequence`.
pub(crate) fn below(sequence: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.push(UPSERT | RANK_IS_VALUE | TRACKED_IS_VALUE);
    put(out, sequence);
}

/// Encoded events in the order of [`precedence`].
#[derive(Debug)]
pub(crate) struct ByPrecedence;

impl Order for ByPrecedence {
    #[inline]
    fn compare(a: &[u8], b: &[u8]) -> Ordering {
        sequence(a).cmp(sequence(b)).then_with(|| {
            let (a, b) = (Event::decode(a), Event::decode(b));
            a.kind.cmp(&b.kind).then_with(|| (a.rank, a.tracked, a.value).cmp(&(b.rank, b.tracked, b.value)))
        })
    }

    fn prefix(order: &[u8]) -> u128 {
        prefix(sequence(order))
    }
}

/// The sequence of an encoded event.
#[inline]
pub(crate) fn sequence(event: &[u8]) -> &[u8] {
    match event {
        // Nearly always the length is one byte.
        [_, length, rest @ ..] if *length < 0x80 && rest.len() >= usize::from(*length) => {
            rest.get(..usize::from(*length)).unwrap_or_default()
        }
        [_, rest @ ..] => take(&mut &*rest),
        [] => &[],
    }
}

/// The winner at `sequence`, encoded. `above` is the bound above that sequence.
pub(crate) fn winner_at<'e>(events: &'e KeyMut<'_, ByPrecedence>, sequence: &[u8], above: &[u8]) -> Option<&'e [u8]> {
    events.before(above).map(|entry| entry.order).filter(|event| self::sequence(event) == sequence)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::testing::Random;

    struct Drawn {
        sequence: Vec<u8>,
        upsert: Option<[Vec<u8>; 3]>,
    }

    fn draw(random: &mut Random) -> Drawn {
        let mut row = |sizes: &[usize]| {
            let size = sizes.get(random.below(sizes.len() as u64) as usize).copied().unwrap_or(0);
            vec![random.below(2) as u8; size]
        };
        let sequence = row(&[0, 1, 9]);
        let (rank, tracked, value) = (row(&[0, 1, 200]), row(&[0, 1, 128]), row(&[0, 1, 20_000]));
        let upsert = match random.below(4) {
            0 => None,
            1 => Some([value.clone(), value.clone(), value]),
            _ => Some([rank, tracked, value]),
        };
        Drawn { sequence, upsert }
    }

    impl Drawn {
        fn upsert(&self) -> Option<Upsert<'_>> {
            self.upsert.as_ref().map(|[rank, tracked, value]| Upsert { rank, tracked, value })
        }

        fn change(&self) -> Change {
            Change::new(&self.sequence, self.upsert())
        }
    }

    fn precedence(a: &Drawn, b: &Drawn) -> Ordering {
        a.sequence.cmp(&b.sequence).then_with(|| match (&a.upsert, &b.upsert) {
            (None, None) => Ordering::Equal,
            (None, Some(_)) => Ordering::Greater,
            (Some(_), None) => Ordering::Less,
            (Some(a), Some(b)) => a.cmp(b),
        })
    }

    #[test]
    fn encoding_keeps_content_and_order() {
        let mut random = Random::new(3);
        let mut bound = Vec::new();
        for _ in 0..5000 {
            let (a, b) = (draw(&mut random), draw(&mut random));
            let (x, y) = (a.change(), b.change());
            assert_eq!(x.cmp(&y), precedence(&a, &b), "{x:?} {y:?}");
            assert_eq!(x == y, precedence(&a, &b) == Ordering::Equal);
            assert_eq!((x.sequence(), x.upsert()), (a.sequence.as_slice(), a.upsert()));
            above(&a.sequence, &mut bound);
            assert_eq!(ByPrecedence::compare(&bound, x.as_bytes()), Ordering::Greater);
            assert_eq!(
                ByPrecedence::compare(&bound, y.as_bytes()),
                a.sequence.cmp(&b.sequence).then(Ordering::Greater)
            );
            below(&a.sequence, &mut bound);
            assert_ne!(ByPrecedence::compare(&bound, x.as_bytes()), Ordering::Greater);
        }
    }

    #[test]
    fn damaged_bytes_decode_to_something() {
        for bytes in
            [&[][..], &[0], &[0, 0xff], &[0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], &[0, 9, 1]]
        {
            Event::decode(bytes);
            let change = Change::packed(Row::from(bytes));
            let _ = (change.sequence(), change.upsert());
        }
    }
}
