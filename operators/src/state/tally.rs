//! The counts of a segment's entries, as far as they have changed.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::live::Live;
use super::stored::Stored;
use crate::snapshot::put_number;

/// Where more than one part of so many entries has a count of its own, all counts are kept in a list.
const DENSE: usize = 8;
/// Fewer are never worth a list.
const FEW: usize = 1 << 10;

/// Places are spread by a multiplication.
#[derive(Default)]
pub(super) struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, _: &[u8]) {}
    fn write_usize(&mut self, place: usize) {
        self.0 = (place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
    fn finish(&self) -> u64 {
        self.0
    }
}

#[derive(Debug)]
enum Own {
    /// By place; the others have the count that they had at first.
    Some(HashMap<usize, i64, BuildHasherDefault<Spread>>),
    /// One an entry.
    All(Vec<i64>),
}

impl Default for Own {
    fn default() -> Self {
        Own::Some(HashMap::default())
    }
}

/// Which entries are live, and the counts of those that have one other than at first.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// The entries with a positive count; absent while all are positive.
    live: Option<Live>,
    own: Own,
    dead: usize,
    changes: u64,
}

impl Tally {
    /// Entries with a count of zero.
    pub(super) fn dead(&self) -> usize {
        self.dead
    }

    /// How often a count has changed.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    pub(super) fn live(&self) -> Option<&Live> {
        self.live.as_ref()
    }

    pub(super) fn bytes(&self) -> usize {
        let own = match &self.own {
            Own::Some(some) => some.capacity() * 17,
            Own::All(all) => all.capacity() * 8,
        };
        own + self.live.as_ref().map_or(0, Live::bytes)
    }

    /// The count of the `i`-th entry. `births` are the counts at first, none where all were one.
    #[inline]
    pub(super) fn count(&self, i: usize, births: &Stored) -> i64 {
        let some = match &self.own {
            Own::All(all) => return all.get(i).copied().unwrap_or(0),
            Own::Some(some) => some,
        };
        if !some.is_empty()
            && let Some(count) = some.get(&i)
        {
            return *count;
        }
        if self.live.as_ref().is_some_and(|live| !live.has(i)) { 0 } else { birth(i, births) }
    }

    /// Sets the count of one of `entries`.
    pub(super) fn set(&mut self, i: usize, count: i64, births: &Stored, entries: usize) {
        let before = self.count(i, births);
        self.put(i, count, births, entries);
        self.dead = self.dead + usize::from(count == 0) - usize::from(before == 0);
        self.changes += 1;
    }

    fn put(&mut self, i: usize, count: i64, births: &Stored, entries: usize) {
        if count <= 0 || self.live.is_some() {
            self.live.get_or_insert_with(|| Live::all(entries)).set(i, count > 0);
        }
        match &mut self.own {
            Own::All(all) => {
                if let Some(slot) = all.get_mut(i) {
                    *slot = count;
                }
                return;
            }
            Own::Some(some) if count == 0 || count == birth(i, births) && count > 0 => _ = some.remove(&i),
            Own::Some(some) => _ = some.insert(i, count),
        }
        if matches!(&self.own, Own::Some(some) if some.len() > FEW && some.len() > entries / DENSE) {
            self.own = Own::All((0..entries).map(|i| self.count(i, births)).collect());
        }
    }

    /// Takes over negative counts of entries that have had them from the first and have them still.
    pub(super) fn born_negative(&mut self, births: &Stored, entries: usize) {
        let Own::Some(some) = &mut self.own else { return };
        for i in 0..entries {
            let count = birth(i, births);
            if count < 0 && !some.contains_key(&i) && self.live.as_ref().is_none_or(|live| live.has(i)) {
                some.insert(i, count);
                self.live.get_or_insert_with(|| Live::all(entries)).set(i, false);
            }
        }
    }

    /// The counts as bytes; none if all are as at first.
    ///
    /// After a number that says how: (0) how many have a count of their own, each with its place, then the places of the
    /// dead; (1) all counts; (2) as 0, but then a bit an entry, set for those that live.
    pub(super) fn encode(&self, entries: usize) -> Vec<u8> {
        let mut out = Vec::new();
        let some = match &self.own {
            Own::All(all) => {
                put_number(&mut out, 1);
                all.iter().for_each(|count| put_number(&mut out, count.cast_unsigned()));
                return out;
            }
            Own::Some(some) if some.is_empty() && self.dead == 0 => return out,
            Own::Some(some) => some,
        };
        let mut own: Vec<(usize, i64)> = some.iter().map(|(place, count)| (*place, *count)).collect();
        own.sort_unstable();
        let bits = self.dead > entries / 64;
        put_number(&mut out, if bits { 2 } else { 0 });
        put_number(&mut out, own.len() as u64);
        for (place, count) in &own {
            put_number(&mut out, *place as u64);
            put_number(&mut out, count.cast_unsigned());
        }
        let Some(live) = &self.live else { return out };
        if bits {
            live.words().iter().for_each(|word| put_number(&mut out, *word));
        } else {
            let absent = live.absent(entries).filter(|place| !some.contains_key(place));
            absent.for_each(|place| put_number(&mut out, place as u64));
        }
        out
    }

    /// What [`Tally::encode`] wrote of so many entries. `None` if it cannot be that.
    pub(super) fn decode(bytes: &[u8], entries: usize) -> Option<Tally> {
        let (numbers, rest) = bytes.as_chunks::<8>();
        let mut numbers = numbers.iter().map(|number| u64::from_le_bytes(*number));
        let mut tally = Tally::default();
        let Some(kind) = numbers.next() else { return rest.is_empty().then_some(tally) };
        let place = |number: u64| usize::try_from(number).ok().filter(|place| *place < entries);
        if kind == 1 {
            let all: Vec<i64> = numbers.map(u64::cast_signed).collect();
            for (i, count) in all.iter().enumerate().filter(|(_, count)| **count <= 0) {
                tally.live.get_or_insert_with(|| Live::all(entries)).set(i, false);
                tally.dead += usize::from(*count == 0);
            }
            let fits = all.len() == entries && rest.is_empty();
            tally.own = Own::All(all);
            return fits.then_some(tally);
        }
        let own = usize::try_from(numbers.next()?).ok().filter(|own| *own <= bytes.len() / 16)?;
        let mut some = HashMap::with_capacity_and_hasher(own, BuildHasherDefault::default());
        let mut negative = 0;
        for _ in 0..own {
            let (place, count) = (place(numbers.next()?)?, numbers.next()?.cast_signed());
            let new = some.insert(place, count).is_none();
            if !new || count == 0 {
                return None;
            }
            negative += usize::from(count < 0);
            if count < 0 {
                tally.live.get_or_insert_with(|| Live::all(entries)).set(place, false);
            }
        }
        match kind {
            0 => {
                for number in numbers {
                    let place = place(number)?;
                    let live = tally.live.get_or_insert_with(|| Live::all(entries));
                    if !live.has(place) {
                        return None;
                    }
                    live.set(place, false);
                    tally.dead += 1;
                }
            }
            2 => {
                let live = Live::of(numbers.collect(), entries)?;
                tally.dead = live.absent(entries).count().checked_sub(negative)?;
                if some.iter().any(|(place, count)| live.has(*place) != (*count > 0)) {
                    return None;
                }
                tally.live = Some(live);
            }
            _ => return None,
        }
        tally.own = Own::Some(some);
        rest.is_empty().then_some(tally)
    }
}

#[inline]
fn birth(i: usize, births: &Stored) -> i64 {
    if births.is_empty() { 1 } else { births.large(i).cast_signed() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn counts_are_those_of_a_plain_list_also_when_read_back() {
        for (seed, entries) in [(0, 1usize), (1, 63), (2, 64), (3, 200), (4, 20_000), (5, 20_000)] {
            let mut random = Random::new(seed);
            let born: Vec<i64> = match seed % 2 {
                0 => vec![1; entries],
                _ => (0..entries).map(|_| random.below(5) as i64 - 1).map(|n| if n == 0 { 1 } else { n }).collect(),
            };
            let births: Stored = match seed % 2 {
                0 => Stored::default(),
                _ => bytes::Bytes::from(born.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>()).into(),
            };
            let mut model = born.clone();
            let mut tally = Tally::default();
            tally.born_negative(&births, entries);
            // Few changes at first, then so many that they become a list.
            for round in 0..40 {
                for _ in 0..(entries / 20).max(1) {
                    let i = random.below(entries as u64) as usize;
                    let i = if round < 20 && seed != 5 { i / 16 } else { i };
                    model[i] = [0, 1, born[i], 7, -2][random.below(5) as usize];
                    tally.set(i, model[i], &births, entries);
                }
                let mut read = Tally::decode(&tally.encode(entries), entries).unwrap();
                read.born_negative(&births, entries);
                for tally in [&tally, &read] {
                    assert_eq!((0..entries).map(|i| tally.count(i, &births)).collect::<Vec<_>>(), model);
                    assert_eq!(tally.dead(), model.iter().filter(|n| **n == 0).count());
                    let alive = |i: usize| tally.live().is_none_or(|live| live.has(i));
                    assert!((0..entries).all(|i| alive(i) == (model[i] > 0)));
                }
                tally = if round % 3 == 0 { read } else { tally };
            }
        }
    }

    #[test]
    fn no_bytes_lead_to_a_panic_or_to_more_entries() {
        let mut tally = Tally::default();
        let births = Stored::default();
        for (i, count) in [(3, 0), (5, 2), (9, -1), (40, 0), (41, 0), (42, 0)] {
            tally.set(i, count, &births, 100);
        }
        let whole = tally.encode(100);
        for cut in 0..whole.len() {
            if let Some(tally) = Tally::decode(&whole[..cut], 100) {
                assert!(tally.dead() <= 100);
            }
        }
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut bytes = whole.clone();
                bytes[at] ^= 1 << bit;
                if let Some(tally) = Tally::decode(&bytes, 100) {
                    let counts: Vec<i64> = (0..100).map(|i| tally.count(i, &births)).collect();
                    assert_eq!(tally.dead(), counts.iter().filter(|n| **n == 0).count());
                }
            }
        }
    }
}
