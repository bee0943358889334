//! The shell of a stateful operator: updates wait until their epoch is complete, and are then applied a portion at a
//! time, so that no epoch keeps a worker from its other operators.

mod stash;

use std::cell::RefCell;
use std::rc::Rc;

use differential_dataflow::{AsCollection, ExchangeData, VecCollection};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::channels::pact::Exchange;
use timely::dataflow::operators::generic::{Operator, OutputBuilderSession};
use timely::dataflow::operators::{Capability, InputCapability};
use timely::progress::frontier::MutableAntichain;
use timely::scheduling::Activator;

use crate::{Diff, Epoch};
use stash::{PORTIONS, Stash, Updates};

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

/// How much an operator does before the worker turns to the others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Updates applied and rows given in one go.
    pub(crate) fuel: usize,
    /// An epoch with more updates is applied in portions.
    pub(crate) split: usize,
}

impl Limits {
    const OWN: Limits = Limits { fuel: 1 << 12, split: 1 << 15 };

    /// Those of operators that are built on this thread.
    fn here() -> Limits {
        #[cfg(test)]
        return LIMITS.get();
        #[cfg(not(test))]
        Limits::OWN
    }
}

#[cfg(test)]
thread_local! {
    pub(crate) static LIMITS: std::cell::Cell<Limits> = const { std::cell::Cell::new(Limits::OWN) };
}

/// What an operator does with the updates of an epoch: `L` on its first input, `R` on its second one.
pub(crate) trait Apply<L, R, E> {
    /// Applies a portion of the epoch: all updates of some keys, whose hashes are above those of earlier portions. What
    /// that does to the result goes to `out`, unless it is out of proportion to the portion.
    fn portion(&mut self, epoch: Epoch, left: Vec<(L, Diff)>, right: Vec<(R, Diff)>, out: &mut Vec<(E, Diff)>);

    /// Appends about `fuel` rows of what the last portion does beyond what it has given. False when that was all.
    fn more(&mut self, _out: &mut Vec<(E, Diff)>, _fuel: usize) -> bool {
        false
    }

    /// The epoch has no further portions.
    fn end(&mut self, _epoch: Epoch) {}
}

impl<L, R, E, S: Apply<L, R, E>> Apply<L, R, E> for Shared<S> {
    fn portion(&mut self, epoch: Epoch, left: Vec<(L, Diff)>, right: Vec<(R, Diff)>, out: &mut Vec<(E, Diff)>) {
        self.borrow_mut().portion(epoch, left, right, out);
    }

    fn more(&mut self, out: &mut Vec<(E, Diff)>, fuel: usize) -> bool {
        self.borrow_mut().more(out, fuel)
    }

    fn end(&mut self, epoch: Epoch) {
        self.borrow_mut().end(epoch);
    }
}

/// What the second input of an operator has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Second {
    /// Updates by the same keys.
    Keyed,
    /// A few updates for all keys: they come with the first portion of an epoch.
    ForAll,
    /// A few updates for all keys: an epoch with any is one portion.
    Indivisible,
}

/// An epoch that is being applied.
struct Work<L, R> {
    epoch: Epoch,
    left: Updates<L>,
    right: Updates<R>,
    next: usize,
    portions: usize,
}

/// The right to produce output at the least epoch that is there and after it.
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

/// A stateful operator, whatever its inputs.
struct Shell<L, R, E, HL, HR, A> {
    left: Stash<L, HL>,
    right: Stash<R, HR>,
    second: Second,
    logic: A,
    work: Option<Work<L, R>>,
    permit: Permit,
    out: Vec<(E, Diff)>,
    fuel: usize,
    again: Activator,
}

impl<L, R, E, HL, HR, A> Shell<L, R, E, HL, HR, A>
where
    E: Clone + 'static,
    HL: Fn(&L) -> u64,
    HR: Fn(&R) -> u64,
    A: Apply<L, R, E>,
{
    fn new(left: HL, right: HR, second: Second, logic: A, again: Activator) -> Self {
        let Limits { fuel, split } = Limits::here();
        Shell {
            left: Stash::new(left, split),
            right: Stash::new(right, if second == Second::Keyed { split } else { usize::MAX }),
            second,
            logic,
            work: None,
            permit: Permit(None),
            out: Vec::new(),
            fuel,
            again,
        }
    }

    fn least(&self) -> Option<Epoch> {
        self.left.least().into_iter().chain(self.right.least()).min()
    }

    fn begin(&mut self, epoch: Epoch) -> Work<L, R> {
        let (mut left, mut right) = (self.left.remove(epoch), self.right.remove(epoch));
        match self.second {
            Second::Keyed if left.is_split() || right.is_split() => {
                left = self.left.split(left);
                right = self.right.split(right);
            }
            Second::Indivisible if !right.is_empty() => left = left.join(),
            _ => {}
        }
        let portions = if left.is_split() { PORTIONS } else { 1 };
        Work { epoch, left, right, next: 0, portions }
    }

    /// Goes on with an epoch. Its next portion comes when all is given of the one before it. `None` when it is done.
    fn go_on(&mut self, mut work: Work<L, R>) -> Option<Work<L, R>> {
        if self.logic.more(&mut self.out, self.fuel) {
            return Some(work);
        }
        while work.next < work.portions {
            let (left, right) = (work.left.portion(work.next), work.right.portion(work.next));
            work.next += 1;
            if !left.is_empty() || !right.is_empty() {
                self.logic.portion(work.epoch, left, right, &mut self.out);
                return Some(work);
            }
        }
        self.logic.end(work.epoch);
        None
    }

    /// Applies the epochs that are `complete`, in order. When the fuel is used up, the rest waits for the next time.
    fn run(&mut self, complete: impl Fn(Epoch) -> bool, output: &mut OutputBuilderSession<'_, Epoch, Out<E>>) {
        let mut spent = 0;
        while spent < self.fuel {
            let work = match self.work.take() {
                Some(work) => work,
                None => match self.least().filter(|epoch| complete(*epoch)) {
                    Some(epoch) => self.begin(epoch),
                    None => break,
                },
            };
            let (epoch, before) = (work.epoch, work.left.len() + work.right.len());
            self.work = self.go_on(work);
            let left = self.work.as_ref().map_or(0, |work| work.left.len() + work.right.len());
            spent = spent.saturating_add(1 + before.saturating_sub(left) + self.out.len());
            if let Some(cap) = self.permit.0.as_ref().map(|cap| cap.delayed(&epoch))
                && !self.out.is_empty()
            {
                output.session(&cap).give_iterator(self.out.drain(..).map(|(row, diff)| (row, epoch, diff)));
            }
            self.out.clear();
        }
        let under_way = self.work.as_ref().map(|work| work.epoch);
        if under_way.is_some() || self.least().is_some_and(complete) {
            self.again.activate();
        }
        self.permit.downgrade(under_way.or_else(|| self.least()));
    }
}

/// Gives each complete epoch with updates to `logic`, in order. `hash` says which worker an update belongs to. There is
/// no second input.
pub(crate) fn unary<'s, D: ExchangeData, R: 'static, E: Clone + 'static>(
    input: Rows<'s, D>,
    name: &str,
    hash: impl Fn(&D) -> u64 + Clone + 'static,
    logic: impl Apply<D, R, E> + 'static,
) -> Rows<'s, E> {
    let route = hash.clone();
    let pact = Exchange::new(move |update: &(D, Epoch, Diff)| route(&update.0));
    let scope = input.inner.scope();
    input
        .inner
        .unary_frontier::<Out<E>, _, _, _>(pact, name, move |_, info| {
            let again = scope.activator_for(info.address);
            let mut shell = Shell::new(hash, |_: &R| 0, Second::ForAll, logic, again);
            move |(input, frontier), output| {
                input.for_each(|cap, updates| {
                    shell.permit.retain(&cap);
                    shell.left.take_in(updates);
                });
                shell.run(|epoch| complete(frontier, epoch), output);
            }
        })
        .as_collection()
}

/// As [`unary`], with two inputs: an epoch is complete when it is complete in both.
pub(crate) fn binary<'s, L: ExchangeData, R: ExchangeData, E: Clone + 'static>(
    left: Rows<'s, L>,
    right: Rows<'s, R>,
    second: Second,
    name: &str,
    left_hash: impl Fn(&L) -> u64 + Clone + 'static,
    right_hash: impl Fn(&R) -> u64 + Clone + 'static,
    logic: impl Apply<L, R, E> + 'static,
) -> Rows<'s, E> {
    let (left_route, right_route) = (left_hash.clone(), right_hash.clone());
    let left_pact = Exchange::new(move |update: &(L, Epoch, Diff)| left_route(&update.0));
    let right_pact = Exchange::new(move |update: &(R, Epoch, Diff)| right_route(&update.0));
    let scope = left.inner.scope();
    left.inner
        .binary_frontier::<_, Out<E>, _, _, _, _>(right.inner, left_pact, right_pact, name, move |_, info| {
            let again = scope.activator_for(info.address);
            let mut shell = Shell::new(left_hash, right_hash, second, logic, again);
            move |(left, left_frontier), (right, right_frontier), output| {
                left.for_each(|cap, updates| {
                    shell.permit.retain(&cap);
                    shell.left.take_in(updates);
                });
                right.for_each(|cap, updates| {
                    shell.permit.retain(&cap);
                    shell.right.take_in(updates);
                });
                shell.run(|epoch| complete(left_frontier, epoch) && complete(right_frontier, epoch), output);
            }
        })
        .as_collection()
}
