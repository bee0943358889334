//! The end of an epoch.

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use timely::container::CapacityContainerBuilder;
use timely::dataflow::Stream;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::generic::Operator;
use timely::progress::frontier::MutableAntichain;

use crate::Epoch;

/// Something that belongs to an epoch. A message of a stream may carry several epochs, so each
/// item says its own.
pub trait HasEpoch {
    /// The epoch of the item.
    fn epoch(&self) -> Epoch;
}

impl<D, R> HasEpoch for (D, Epoch, R) {
    fn epoch(&self) -> Epoch {
        self.1
    }
}

/// How far the epochs of one [`commit`] are closed on this worker.
#[derive(Clone, Debug, Default)]
pub struct Closed(Rc<Cell<Epoch>>);

impl Closed {
    /// The least epoch that may still receive something: every epoch below it is closed, whether or
    /// not there was anything in it, and has been handed to `on_close` if there was.
    /// [`Epoch::MAX`] once the inputs have ended.
    #[must_use]
    pub fn below(&self) -> Epoch {
        self.0.get()
    }

    /// Whether `epoch` is closed on this worker.
    #[must_use]
    pub fn is_closed(&self, epoch: Epoch) -> bool {
        epoch < self.below()
    }
}

/// Collects the changes and the errors of a table, and hands over each epoch when it is complete.
///
/// `on_close` is called once for each epoch in which this worker has changes or errors, in the
/// order of the epochs, as soon as neither input can bring more of it on any worker. For epochs
/// with nothing it is not called; [`Closed`] tells of these too. Within an epoch, items come as
/// they arrived on this worker. `on_close` must not block: it runs on the worker.
///
/// State: the open epochs. Cost: the items.
pub fn commit<'s, C, E>(
    changes: Stream<'s, Epoch, Vec<C>>,
    errors: Stream<'s, Epoch, Vec<E>>,
    name: &str,
    mut on_close: impl FnMut(Epoch, Vec<C>, Vec<E>) + 'static,
) -> Closed
where
    C: HasEpoch + 'static,
    E: HasEpoch + 'static,
{
    let closed = Closed::default();
    let progress = closed.clone();
    let _ = changes.binary_frontier::<_, CapacityContainerBuilder<Vec<()>>, _, _, _, _>(
        errors,
        Pipeline,
        Pipeline,
        name,
        move |_, _| {
            let mut open: BTreeMap<Epoch, (Vec<C>, Vec<E>)> = BTreeMap::new();
            move |(changes, change_frontier), (errors, error_frontier), _| {
                changes.for_each(|_, items| {
                    for item in items.drain(..) {
                        open.entry(item.epoch()).or_default().0.push(item);
                    }
                });
                errors.for_each(|_, items| {
                    for item in items.drain(..) {
                        open.entry(item.epoch()).or_default().1.push(item);
                    }
                });
                let below = least(change_frontier).min(least(error_frontier));
                let ended = change_frontier.is_empty() && error_frontier.is_empty();
                while let Some(first) = open.first_entry().filter(|first| ended || *first.key() < below) {
                    let (epoch, (changes, errors)) = first.remove_entry();
                    on_close(epoch, changes, errors);
                }
                progress.0.set(below);
            }
        },
    );
    closed
}

fn least(frontier: &MutableAntichain<Epoch>) -> Epoch {
    frontier.frontier().first().copied().unwrap_or(Epoch::MAX)
}
