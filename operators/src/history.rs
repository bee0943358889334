//! The shell of operators on changes by key, which truncates delete all at once and of which some lose to others.

use crate::epochs::{Apply, Rows, Second, Shared, binary, unary};
use crate::event::Change;
use crate::row::{Row, stable_hash};
use crate::truncate::{ForWorker, for_all_workers, received};
use crate::{Diff, Epoch};

/// What makes rows `E` of changes.
pub(crate) trait History<E> {
    /// Applies a portion of an epoch, as [`Apply::portion`], and returns by how much the number of losing changes moved.
    fn portion(
        &mut self,
        changes: &[((Row, Change), Diff)],
        truncates: &[(Row, Diff)],
        out: &mut Vec<(E, Diff)>,
    ) -> i64;

    /// The epoch has no further portions.
    fn settle(&mut self);
}

impl<E, S: History<E>> History<E> for Shared<S> {
    fn portion(
        &mut self,
        changes: &[((Row, Change), Diff)],
        truncates: &[(Row, Diff)],
        out: &mut Vec<(E, Diff)>,
    ) -> i64 {
        self.borrow_mut().portion(changes, truncates, out)
    }

    fn settle(&mut self) {
        self.borrow_mut().settle();
    }
}

/// A history, and who is told of changes that lose.
struct Told<H, T> {
    history: H,
    ties: T,
    /// By how much their number has moved in the epoch so far.
    moved: i64,
}

impl<E, H: History<E>, T: FnMut(Epoch, i64)> Apply<(Row, Change), ForWorker, E> for Told<H, T> {
    fn portion(
        &mut self,
        _: Epoch,
        changes: Vec<((Row, Change), Diff)>,
        truncates: Vec<(ForWorker, Diff)>,
        out: &mut Vec<(E, Diff)>,
    ) {
        self.moved += self.history.portion(&changes, &received(truncates), out);
    }

    fn end(&mut self, epoch: Epoch) {
        self.history.settle();
        let moved = std::mem::take(&mut self.moved);
        if moved != 0 {
            (self.ties)(epoch, moved);
        }
    }
}

/// The operator on `history`. `ties` is called for each epoch in which the number of losing changes moved.
pub(crate) fn historise<'s, E: Clone + 'static>(
    changes: Rows<'s, (Row, Change)>,
    truncates: Option<Rows<'s, Row>>,
    name: &str,
    history: impl History<E> + 'static,
    ties: impl FnMut(Epoch, i64) + 'static,
) -> Rows<'s, E> {
    let hash = |(key, _): &(Row, Change)| stable_hash(key);
    let logic = Told { history, ties, moved: 0 };
    match truncates {
        None => unary::<_, ForWorker, _>(changes, name, hash, logic),
        Some(truncates) => {
            let worker = |(worker, _): &ForWorker| *worker;
            binary(changes, for_all_workers(truncates), Second::Indivisible, name, hash, worker, logic)
        }
    }
}
