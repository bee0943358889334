//! Where the runs of a key begin.
//!
//! A head is a sequence whose winner differs in `tracked` from the winner before it, where a delete
//! and the absence of a winner are alike. Keys with few changes have no heads in state, so a key
//! with an index carries a mark, below all heads.

use crate::state::KeyMut;

pub(super) const MARK: &[u8] = &[0];

/// Makes `order` a head as it is ordered in state.
pub(super) fn head(sequence: &[u8], order: &mut Vec<u8>) {
    order.clear();
    order.push(1);
    order.extend_from_slice(sequence);
}

fn sequence(order: &[u8]) -> Option<&[u8]> {
    order.strip_prefix(&[1])
}

/// Whether the key has an index.
pub(super) fn indexed(heads: &KeyMut<'_>) -> bool {
    heads.get(MARK).is_some()
}

/// The head of the run that `sequence` is in.
pub(super) fn up_to<'a>(heads: &'a KeyMut<'_>, at: &[u8], order: &mut Vec<u8>) -> Option<&'a [u8]> {
    head(at, order);
    let found = heads.get(order).or_else(|| heads.before(order));
    found.and_then(|entry| sequence(entry.order))
}

/// The first head after `sequence`.
pub(super) fn after<'a>(heads: &'a KeyMut<'_>, at: &[u8], order: &mut Vec<u8>) -> Option<&'a [u8]> {
    head(at, order);
    heads.after(order).and_then(|entry| sequence(entry.order))
}

pub(super) fn set(heads: &mut KeyMut<'_>, sequence: &[u8], is_head: bool, order: &mut Vec<u8>) {
    head(sequence, order);
    heads.set(order, b"", i64::from(is_head));
}
