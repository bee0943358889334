//! Change events, and how they are kept in state.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use crate::row::Row;
use crate::state::{KeyMut, Order, prefix};

/// A change of one key: an upsert, or a delete.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Change {
    /// Where the change stands among the changes of its key; compared bytewise.
    pub sequence: Row,
    /// What the key becomes; `None` deletes it.
    pub upsert: Option<Upsert>,
}

impl Change {
    /// A delete at `sequence`.
    #[must_use]
    pub fn delete(sequence: Row) -> Self {
        Change { sequence, upsert: None }
    }
}

/// The content of an upsert.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Upsert {
    /// Decides between upserts of one key at one sequence: the greatest wins.
    pub rank: Row,
    /// The part whose change makes a new version; decides where `rank` is equal.
    pub tracked: Row,
    /// The row to show; decides where `rank` and `tracked` are equal.
    pub value: Row,
}

/// Ascending by precedence: sequence; a delete above all upserts; rank, tracked, value. The last
/// of the changes at one sequence is the one that counts.
pub(crate) fn precedence(a: &Change, b: &Change) -> Ordering {
    a.sequence.cmp(&b.sequence).then_with(|| match (&a.upsert, &b.upsert) {
        (None, None) => Ordering::Equal,
        (None, Some(_)) => Ordering::Greater,
        (Some(_), None) => Ordering::Less,
        (Some(a), Some(b)) => a.cmp(b),
    })
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

/// Encodes `change` to `out`, which is cleared.
pub(crate) fn encode(change: &Change, out: &mut Vec<u8>) {
    out.clear();
    let Some(upsert) = &change.upsert else {
        out.push(DELETE | RANK_IS_VALUE | TRACKED_IS_VALUE);
        return put(out, &change.sequence);
    };
    let rank = upsert.rank != upsert.value;
    let tracked = upsert.tracked != upsert.value;
    let flag = |stored: bool, flag: u8| if stored { 0 } else { flag };
    out.push(UPSERT | flag(rank, RANK_IS_VALUE) | flag(tracked, TRACKED_IS_VALUE));
    put(out, &change.sequence);
    if rank {
        put(out, &upsert.rank);
    }
    if tracked {
        put(out, &upsert.tracked);
    }
    out.extend_from_slice(&upsert.value);
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

    fn change(random: &mut Random) -> Change {
        let mut row = |sizes: &[usize]| {
            let size = sizes.get(random.below(sizes.len() as u64) as usize).copied().unwrap_or(0);
            Row::from(vec![random.below(2) as u8; size])
        };
        let sequence = row(&[0, 1, 9]);
        let (rank, tracked, value) = (row(&[0, 1, 200]), row(&[0, 1, 128]), row(&[0, 1, 20_000]));
        match random.below(4) {
            0 => Change::delete(sequence),
            1 => Change { sequence, upsert: Some(Upsert { rank: value.clone(), tracked: value.clone(), value }) },
            _ => Change { sequence, upsert: Some(Upsert { rank, tracked, value }) },
        }
    }

    #[test]
    fn encoding_keeps_content_and_order() {
        let mut random = Random::new(3);
        let (mut x, mut y, mut bound) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..5000 {
            let (a, b) = (change(&mut random), change(&mut random));
            encode(&a, &mut x);
            encode(&b, &mut y);
            assert_eq!(ByPrecedence::compare(&x, &y), precedence(&a, &b), "{a:?} {b:?}");
            let event = Event::decode(&x);
            assert_eq!(event.sequence, a.sequence.as_bytes());
            assert_eq!(event.is_delete(), a.upsert.is_none());
            if let Some(upsert) = &a.upsert {
                assert_eq!((event.rank, event.tracked, event.value), (&*upsert.rank, &*upsert.tracked, &*upsert.value));
            }
            above(&a.sequence, &mut bound);
            assert_eq!(ByPrecedence::compare(&bound, &x), Ordering::Greater);
            assert_eq!(ByPrecedence::compare(&bound, &y), a.sequence.cmp(&b.sequence).then(Ordering::Greater));
            below(&a.sequence, &mut bound);
            assert_ne!(ByPrecedence::compare(&bound, &x), Ordering::Greater);
        }
    }

    #[test]
    fn damaged_bytes_decode_to_something() {
        for bytes in
            [&[][..], &[0], &[0, 0xff], &[0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], &[0, 9, 1]]
        {
            Event::decode(bytes);
        }
    }
}
