//! An epoch's updates, by key.

use std::cmp::Ordering;

use crate::Diff;
use crate::row::{Row, stable_hash};

/// The updates of one epoch, grouped by key.
///
/// Keys come in the order of (hash, key), which is the order of the segments in state: a large
/// epoch then reads and writes state front to back.
pub(crate) struct Batch<'a, V> {
    items: &'a [((Row, V), Diff)],
    index: Vec<(u64, usize)>,
}

/// One key's updates: distinct values in order, each with a net change other than zero.
pub(crate) type Group<'a, V> = Vec<(&'a V, i64)>;

impl<'a, V> Batch<'a, V> {
    pub(crate) fn new(items: &'a [((Row, V), Diff)]) -> Self {
        let mut index: Vec<(u64, usize)> =
            items.iter().enumerate().map(|(i, ((key, _), _))| (stable_hash(key), i)).collect();
        index.sort_unstable_by_key(|(hash, _)| *hash);
        // Different keys with one hash are as good as impossible, but must not mix.
        for same in index.chunk_by_mut(|a, b| a.0 == b.0).filter(|same| same.len() > 1) {
            same.sort_by(|a, b| Self::key_of(items, a.1).cmp(&Self::key_of(items, b.1)));
        }
        Batch { items, index }
    }

    fn key_of(items: &[((Row, V), Diff)], i: usize) -> Option<&Row> {
        items.get(i).map(|((key, _), _)| key)
    }

    /// Calls `logic` for each key with its group, sorted by `order`. `Equal` means the same value.
    pub(crate) fn for_each(
        &self,
        order: impl Fn(&V, &V) -> Ordering,
        mut logic: impl FnMut(&'a Row, &Group<'a, V>),
    ) {
        let mut group: Group<'a, V> = Vec::new();
        let same_key = |a: &(u64, usize), b: &(u64, usize)| {
            a.0 == b.0 && Self::key_of(self.items, a.1) == Self::key_of(self.items, b.1)
        };
        for members in self.index.chunk_by(same_key) {
            group.clear();
            group.extend(members.iter().filter_map(|(_, i)| {
                let ((_, value), diff) = self.items.get(*i)?;
                Some((value, *diff as i64))
            }));
            net(&mut group, &order);
            let key = members.first().and_then(|(_, i)| Self::key_of(self.items, *i));
            if let Some(key) = key
                && !group.is_empty()
            {
                logic(key, &group);
            }
        }
    }
}

/// Sorts and adds up equal values; drops what cancels.
fn net<V>(group: &mut Group<'_, V>, order: impl Fn(&V, &V) -> Ordering) {
    if group.len() > 1 {
        group.sort_by(|a, b| order(a.0, b.0));
        group.dedup_by(|next, kept| {
            let same = order(next.0, kept.0) == Ordering::Equal;
            if same {
                kept.1 += next.1;
            }
            same
        });
    }
    group.retain(|(_, diff)| *diff != 0);
}

/// Adds up equal updates from `start` on; drops what cancels.
pub(crate) fn consolidate_from<D: Ord>(updates: &mut Vec<(D, Diff)>, start: usize) {
    if updates.len() > start + 1 {
        let mut tail = updates.split_off(start);
        differential_dataflow::consolidation::consolidate(&mut tail);
        updates.append(&mut tail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_net_and_ordered() {
        let row = |s: &str| Row::from(s.as_bytes());
        let items: Vec<((Row, u8), Diff)> = vec![
            ((row("a"), 3), 1),
            ((row("b"), 1), 1),
            ((row("a"), 1), 2),
            ((row("c"), 1), 1),
            ((row("a"), 3), -2),
            ((row("c"), 1), -1),
        ];
        let mut seen = Vec::new();
        Batch::new(&items).for_each(Ord::cmp, |key, group| {
            seen.push((key.clone(), group.iter().map(|(v, d)| (**v, *d)).collect::<Vec<_>>()));
        });
        seen.sort();
        assert_eq!(seen, [(row("a"), vec![(1, 2), (3, -1)]), (row("b"), vec![(1, 1)])]);
    }
}
