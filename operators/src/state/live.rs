//! Which entries of a segment are live.

/// A set of numbers below a fixed bound, with the next and the previous member of any number.
///
/// Two levels of bits: a run of a million absent numbers is skipped in about 250 steps.
#[derive(Debug)]
pub(super) struct Live {
    words: Vec<u64>,
    /// Bit `i` is set iff `words[i] != 0`.
    summary: Vec<u64>,
}

/// The least set bit at or above `from`.
fn up(words: &[u64], from: usize) -> Option<usize> {
    let first = from / 64;
    let head = *words.get(first)? & (u64::MAX << (from % 64));
    if head != 0 {
        return Some(first * 64 + head.trailing_zeros() as usize);
    }
    let (skip, word) = words.get(first + 1..)?.iter().enumerate().find(|(_, word)| **word != 0)?;
    Some((first + 1 + skip) * 64 + word.trailing_zeros() as usize)
}

/// The greatest set bit below `before`.
fn down(words: &[u64], before: usize) -> Option<usize> {
    let last = before.checked_sub(1)?;
    let tail = words.get(last / 64).copied().unwrap_or(0) & (u64::MAX >> (63 - last % 64));
    if tail != 0 {
        return Some(last / 64 * 64 + 63 - tail.leading_zeros() as usize);
    }
    let (at, word) = words.get(..last / 64)?.iter().enumerate().rev().find(|(_, word)| **word != 0)?;
    Some(at * 64 + 63 - word.leading_zeros() as usize)
}

fn assign(words: &mut [u64], i: usize, value: bool) {
    if let Some(word) = words.get_mut(i / 64) {
        let bit = 1 << (i % 64);
        if value { *word |= bit } else { *word &= !bit }
    }
}

impl Live {
    /// All numbers below `bound`.
    pub(super) fn all(bound: usize) -> Self {
        let full = |n: usize| {
            let mut words = vec![u64::MAX; n.div_ceil(64)];
            if !n.is_multiple_of(64)
                && let Some(last) = words.last_mut()
            {
                *last = u64::MAX >> (64 - n % 64);
            }
            words
        };
        let words = full(bound);
        let summary = full(words.len());
        Live { words, summary }
    }

    /// The set whose members are the set bits; `None` if there are not as many bits as the bound needs, or more members.
    pub(super) fn of(words: Vec<u64>, bound: usize) -> Option<Self> {
        let surplus = words.last().map_or(0, |last| if bound.is_multiple_of(64) { 0 } else { last >> (bound % 64) });
        if words.len() != bound.div_ceil(64) || surplus != 0 {
            return None;
        }
        let mut summary = vec![0; words.len().div_ceil(64)];
        for (i, _) in words.iter().enumerate().filter(|(_, word)| **word != 0) {
            assign(&mut summary, i, true);
        }
        Some(Live { words, summary })
    }

    pub(super) fn words(&self) -> &[u64] {
        &self.words
    }

    pub(super) fn bytes(&self) -> usize {
        (self.words.capacity() + self.summary.capacity()) * 8
    }

    #[inline]
    pub(super) fn has(&self, i: usize) -> bool {
        self.words.get(i / 64).is_some_and(|word| word & (1 << (i % 64)) != 0)
    }

    /// The numbers below the bound that are no members, ascending.
    pub(super) fn absent(&self, bound: usize) -> impl Iterator<Item = usize> {
        let places = self.words.iter().enumerate().filter(|(_, word)| **word != u64::MAX).flat_map(|(at, word)| {
            let mut gaps = !word;
            std::iter::from_fn(move || {
                let place = (gaps != 0).then(|| at * 64 + gaps.trailing_zeros() as usize);
                gaps &= gaps.wrapping_sub(1);
                place
            })
        });
        places.filter(move |place| *place < bound)
    }

    pub(super) fn set(&mut self, i: usize, value: bool) {
        assign(&mut self.words, i, value);
        let any = self.words.get(i / 64).is_some_and(|word| *word != 0);
        assign(&mut self.summary, i / 64, any);
    }

    /// The least member at or above `from`.
    pub(super) fn next(&self, from: usize) -> Option<usize> {
        let word = self.words.get(from / 64)?;
        let here = word & (u64::MAX << (from % 64));
        if here != 0 {
            return Some(from / 64 * 64 + here.trailing_zeros() as usize);
        }
        let word = up(&self.summary, from / 64 + 1)?;
        Some(word * 64 + self.words.get(word)?.trailing_zeros() as usize)
    }

    /// The greatest member below `before`.
    pub(super) fn previous(&self, before: usize) -> Option<usize> {
        let last = before.checked_sub(1)?;
        let here = self.words.get(last / 64).copied().unwrap_or(0) & (u64::MAX >> (63 - last % 64));
        if here != 0 {
            return Some(last / 64 * 64 + 63 - here.leading_zeros() as usize);
        }
        let word = down(&self.summary, last / 64)?;
        Some(word * 64 + 63 - self.words.get(word)?.leading_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn agrees_with_an_ordered_set() {
        for bound in [1usize, 63, 64, 65, 4096, 4097, 9000] {
            let mut live = Live::all(bound);
            let mut model: BTreeSet<usize> = (0..bound).collect();
            let mut seed = 0x9e37_79b9_u64 + bound as u64;
            for step in 0..bound * 4 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let i = (seed >> 33) as usize % bound;
                // Mostly removals, then mostly insertions.
                let insert = (seed >> 20) % 8 < if step < bound * 3 { 1 } else { 6 };
                live.set(i, insert);
                if insert {
                    model.insert(i)
                } else {
                    model.remove(&i)
                };
                let at = (seed >> 40) as usize % (bound + 1);
                assert_eq!(live.next(at), model.range(at..).next().copied(), "next {at} of {bound}");
                assert_eq!(live.previous(at), model.range(..at).next_back().copied(), "previous {at} of {bound}");
                assert_eq!(live.has(i), insert);
            }
            assert!(live.absent(bound).eq((0..bound).filter(|i| !model.contains(i))));
            let read = Live::of(live.words().to_vec(), bound).unwrap_or_else(|| Live::all(0));
            assert_eq!((read.words, read.summary), (live.words, live.summary));
        }
    }
}
