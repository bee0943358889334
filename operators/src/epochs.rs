//! The shell of a stateful operator: updates wait until their epoch is complete.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use differential_dataflow::{AsCollection, ExchangeData, VecCollection};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::generic::Operator;
use timely::dataflow::operators::{Capability, InputCapability};
use timely::progress::frontier::MutableAntichain;

use crate::{Diff, Epoch};

/// A collection whose changes come in epochs.
pub type Rows<'s, D> = VecCollection<'s, Epoch, D, Diff>;

/// State that an operator owns while it runs and the worker loop may look at between steps, to
/// write a snapshot. It must not be borrowed across a step of the worker.
pub type Shared<S> = Rc<RefCell<S>>;

/// Puts `state` where an operator and the worker loop can both reach it.
pub fn shared<S>(state: S) -> Shared<S> {
    Rc::new(RefCell::new(state))
}

type Out<E> = CapacityContainerBuilder<Vec<(E, Epoch, Diff)>>;

/// Updates of epochs that are not complete.
struct Stash<D> {
    epochs: BTreeMap<Epoch, Vec<(D, Diff)>>,
}

impl<D> Stash<D> {
    fn new() -> Self {
        Stash { epochs: BTreeMap::new() }
    }

    fn take_in(&mut self, updates: &mut Vec<(D, Epoch, Diff)>) {
        // Nearly always a message holds one epoch: look the epoch up once per stretch.
        let mut updates = updates.drain(..).peekable();
        while let Some((first, epoch, diff)) = updates.next() {
            let list = self.epochs.entry(epoch).or_default();
            list.push((first, diff));
            while let Some((item, _, diff)) = updates.next_if(|(_, at, _)| *at == epoch) {
                list.push((item, diff));
            }
        }
    }

    fn least(&self) -> Option<Epoch> {
        self.epochs.keys().next().copied()
    }
}

/// The right to produce output at the least stashed epoch and after it.
struct Permit(Option<Capability<Epoch>>);

impl Permit {
    fn retain(&mut self, cap: &InputCapability<Epoch>) {
        let least = cap.least().copied();
        if least.is_some_and(|least| self.0.as_ref().is_none_or(|held| least < *held.time())) {
            self.0 = cap.retain_least(0);
        }
    }

    fn downgrade(&mut self, least: Option<Epoch>) {
        match (least, &mut self.0) {
            // An epoch that was delayed past its message's capability keeps the earlier one.
            (Some(least), Some(held)) => _ = held.try_downgrade(&least),
            _ => self.0 = None,
        }
    }
}

fn complete(frontier: &MutableAntichain<Epoch>, epoch: Epoch) -> bool {
    !frontier.less_equal(&epoch)
}

/// Calls `logic` once for each epoch with updates, in order, when no more of them can come.
/// `hash` says which worker an update belongs to.
pub(crate) fn unary<'s, D: ExchangeData, E: Clone + 'static>(
    input: Rows<'s, D>,
    name: &str,
    hash: impl Fn(&D) -> u64 + 'static,
    mut logic: impl FnMut(Epoch, Vec<(D, Diff)>, &mut Vec<(E, Diff)>) + 'static,
) -> Rows<'s, E> {
    let pact = Exchange::new(move |update: &(D, Epoch, Diff)| hash(&update.0));
    input
        .inner
        .unary_frontier::<Out<E>, _, _, _>(pact, name, move |_, _| {
            let mut stash = Stash::new();
            let mut permit = Permit(None);
            let mut out = Vec::new();
            move |(input, frontier), output| {
                input.for_each(|cap, updates| {
                    permit.retain(&cap);
                    stash.take_in(updates);
                });
                while let Some(epoch) = stash.least().filter(|epoch| complete(frontier, *epoch)) {
                    let updates = stash.epochs.remove(&epoch).unwrap_or_default();
                    logic(epoch, updates, &mut out);
                    if let Some(cap) = permit.0.as_ref().map(|cap| cap.delayed(&epoch)) {
                        output.session(&cap).give_iterator(out.drain(..).map(|(row, diff)| (row, epoch, diff)));
                    }
                }
                permit.downgrade(stash.least());
            }
        })
        .as_collection()
}

/// As [`unary`], with two inputs: an epoch is complete when it is complete in both.
pub(crate) fn binary<'s, D1: ExchangeData, D2: ExchangeData, E: Clone + 'static>(
    left: Rows<'s, D1>,
    right: Rows<'s, D2>,
    name: &str,
    left_hash: impl Fn(&D1) -> u64 + 'static,
    right_hash: impl Fn(&D2) -> u64 + 'static,
    mut logic: impl FnMut(Epoch, Vec<(D1, Diff)>, Vec<(D2, Diff)>, &mut Vec<(E, Diff)>) + 'static,
) -> Rows<'s, E> {
    let left_pact = Exchange::new(move |update: &(D1, Epoch, Diff)| left_hash(&update.0));
    let right_pact = Exchange::new(move |update: &(D2, Epoch, Diff)| right_hash(&update.0));
    left.inner
        .binary_frontier::<_, Out<E>, _, _, _, _>(right.inner, left_pact, right_pact, name, move |_, _| {
            let (mut lefts, mut rights) = (Stash::new(), Stash::new());
            let mut permit = Permit(None);
            let mut out = Vec::new();
            move |(left, left_frontier), (right, right_frontier), output| {
                left.for_each(|cap, updates| {
                    permit.retain(&cap);
                    lefts.take_in(updates);
                });
                right.for_each(|cap, updates| {
                    permit.retain(&cap);
                    rights.take_in(updates);
                });
                let least =
                    |lefts: &Stash<D1>, rights: &Stash<D2>| lefts.least().into_iter().chain(rights.least()).min();
                while let Some(epoch) = least(&lefts, &rights)
                    .filter(|epoch| complete(left_frontier, *epoch) && complete(right_frontier, *epoch))
                {
                    let left = lefts.epochs.remove(&epoch).unwrap_or_default();
                    let right = rights.epochs.remove(&epoch).unwrap_or_default();
                    logic(epoch, left, right, &mut out);
                    if let Some(cap) = permit.0.as_ref().map(|cap| cap.delayed(&epoch)) {
                        output.session(&cap).give_iterator(out.drain(..).map(|(row, diff)| (row, epoch, diff)));
                    }
                }
                permit.downgrade(least(&lefts, &rights));
            }
        })
        .as_collection()
}
