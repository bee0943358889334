//! Where the runs of a key begin.
//!
//! A head is a sequence whose winner differs in `tracked` from the winner before it, where a delete
//! and the absence of a winner are alike. Keys with few changes have no heads in state, so a key
//! with an index carries a mark, below all heads.

use crate::row::Row;
use crate::state::KeyMut;

pub(super) const MARK: &[u8] = &[0];

/// A head as it is ordered in state.
pub(super) fn head(sequence: &[u8]) -> Row {
    let mut order = Vec::with_capacity(sequence.len() + 1);
    order.push(1);
    order.extend_from_slice(sequence);
    Row::from(order)
}

fn sequence(order: &[u8]) -> Option<&[u8]> {
    order.strip_prefix(&[1])
}

/// Whether the key has an index.
pub(super) fn indexed(heads: &KeyMut<'_>) -> bool {
    heads.get(MARK).is_some()
}

/// The head of the run that `sequence` is in.
pub(super) fn up_to<'a>(heads: &'a KeyMut<'_>, at: &[u8]) -> Option<&'a [u8]> {
    let at = head(at);
    let found = heads.get(&at).or_else(|| heads.before(&at));
    found.and_then(|entry| sequence(entry.order))
}

/// The first head after `sequence`.
pub(super) fn after<'a>(heads: &'a KeyMut<'_>, at: &[u8]) -> Option<&'a [u8]> {
    heads.after(&head(at)).and_then(|entry| sequence(entry.order))
}

pub(super) fn set(heads: &mut KeyMut<'_>, sequence: &[u8], is_head: bool) {
    heads.set(&head(sequence), b"", i64::from(is_head));
}
