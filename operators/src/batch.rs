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

    /// The stretches of the index that share a key, with that key.
    fn stretches(&self) -> impl Iterator<Item = (u64, &'a Row, &[(u64, usize)])> {
        let same_key = |a: &(u64, usize), b: &(u64, usize)| {
            a.0 == b.0 && Self::key_of(self.items, a.1) == Self::key_of(self.items, b.1)
        };
        self.index.chunk_by(same_key).filter_map(|members| {
            let (hash, first) = members.first()?;
            Some((*hash, Self::key_of(self.items, *first)?, members))
        })
    }

    fn fill(&self, members: &[(u64, usize)], order: impl Fn(&V, &V) -> Ordering, group: &mut Group<'a, V>) {
        group.extend(members.iter().filter_map(|(_, i)| {
            let ((_, value), diff) = self.items.get(*i)?;
            Some((value, *diff as i64))
        }));
        net(group, order);
    }

    /// Calls `logic` for each key with its group, sorted by `order`. `Equal` means the same value.
    pub(crate) fn for_each(&self, order: impl Fn(&V, &V) -> Ordering, mut logic: impl FnMut(&'a Row, &Group<'a, V>)) {
        let mut group: Group<'a, V> = Vec::new();
        for (_, key, members) in self.stretches() {
            group.clear();
            self.fill(members, &order, &mut group);
            if !group.is_empty() {
                logic(key, &group);
            }
        }
    }
}

/// Calls `logic` for each key of either batch with its group in both.
pub(crate) fn for_each_pair<'a, A: Ord, B: Ord>(
    left: &Batch<'a, A>,
    right: &Batch<'a, B>,
    mut logic: impl FnMut(&'a Row, &Group<'a, A>, &Group<'a, B>),
) {
    let (mut left_group, mut right_group) = (Group::new(), Group::new());
    let (mut lefts, mut rights) = (left.stretches().peekable(), right.stretches().peekable());
    loop {
        let next = match (lefts.peek(), rights.peek()) {
            (Some(l), Some(r)) => (l.0, l.1).min((r.0, r.1)),
            (Some(l), None) => (l.0, l.1),
            (None, Some(r)) => (r.0, r.1),
            (None, None) => return,
        };
        left_group.clear();
        right_group.clear();
        if let Some((_, _, members)) = lefts.next_if(|l| (l.0, l.1) == next) {
            left.fill(members, A::cmp, &mut left_group);
        }
        if let Some((_, _, members)) = rights.next_if(|r| (r.0, r.1) == next) {
            right.fill(members, B::cmp, &mut right_group);
        }
        if !left_group.is_empty() || !right_group.is_empty() {
            logic(next.1, &left_group, &right_group);
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
