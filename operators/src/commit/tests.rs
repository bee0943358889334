#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::sync::{Arc, Mutex};

use differential_dataflow::input::InputSession;

use super::*;
use crate::Diff;

type Change = (u64, Epoch, Diff);
type Calls = Vec<(Epoch, Vec<Change>, Vec<Change>)>;

/// One worker, by hand: what is closed when.
#[test]
fn an_epoch_closes_when_both_inputs_have_passed_it() {
    timely::execute_directly(|worker| {
        let mut changes: InputSession<Epoch, u64, Diff> = InputSession::new();
        let mut errors: InputSession<Epoch, u64, Diff> = InputSession::new();
        let calls: Rc<std::cell::RefCell<Calls>> = Rc::default();
        let seen = calls.clone();
        let closed = worker.dataflow::<Epoch, _, _>(|scope| {
            let (changes, errors) = (changes.to_collection(scope), errors.to_collection(scope));
            commit(changes.inner, errors.inner, "commit", move |epoch, changes, errors| {
                seen.borrow_mut().push((epoch, changes, errors));
            })
        });
        let mut settle = |changes: &mut InputSession<Epoch, u64, Diff>, errors: &mut InputSession<Epoch, u64, Diff>| {
            changes.flush();
            errors.flush();
            for _ in 0..10 {
                worker.step();
            }
        };
        // A message with two epochs.
        changes.update_at(10, 0, 1);
        changes.update_at(12, 2, 1);
        changes.advance_to(1);
        settle(&mut changes, &mut errors);
        assert_eq!((closed.below(), calls.borrow().len()), (0, 0), "errors may still come");
        errors.update_at(20, 0, 1);
        errors.advance_to(3);
        settle(&mut changes, &mut errors);
        assert_eq!(calls.borrow_mut().drain(..).collect::<Calls>(), [(0, vec![(10, 0, 1)], vec![(20, 0, 1)])]);
        assert!(closed.is_closed(0) && !closed.is_closed(1));
        // Epoch 1 is empty and closes in silence.
        changes.advance_to(2);
        settle(&mut changes, &mut errors);
        assert_eq!((closed.below(), calls.borrow().len()), (2, 0));
        changes.advance_to(7);
        errors.advance_to(7);
        settle(&mut changes, &mut errors);
        assert_eq!(calls.borrow_mut().drain(..).collect::<Calls>(), [(2, vec![(12, 2, 1)], vec![])]);
        assert_eq!(closed.below(), 7);
        // An epoch of errors alone, and the end of the input.
        errors.update_at(21, 9, 1);
        drop((changes, errors));
        for _ in 0..10 {
            worker.step();
        }
        assert_eq!(calls.borrow_mut().drain(..).collect::<Calls>(), [(9, vec![], vec![(21, 9, 1)])]);
        assert_eq!(closed.below(), Epoch::MAX);
    });
}

/// With two workers an epoch closes on one only when the other has passed it too.
#[test]
fn no_epoch_closes_before_all_its_changes_have_arrived() {
    for in_flight in [1u64, 4] {
        let epochs = 30u64;
        let calls = Arc::new(Mutex::new(Vec::new()));
        let sink = calls.clone();
        let guards = timely::execute(timely::Config::process(2), move |worker| {
            let (index, sink) = (worker.index() as u64, sink.clone());
            let mut changes: InputSession<Epoch, u64, Diff> = InputSession::new();
            let mut errors: InputSession<Epoch, u64, Diff> = InputSession::new();
            let closed = worker.dataflow::<Epoch, _, _>(|scope| {
                // Exchanged by value: the other worker's items come here.
                let changes = changes.to_collection(scope).consolidate();
                let errors = errors.to_collection(scope).consolidate();
                commit(changes.inner, errors.inner, "commit", move |epoch, changes, errors| {
                    sink.lock().unwrap().push((index, epoch, changes, errors));
                })
            });
            for epoch in 0..epochs {
                for i in 0..epoch % 4 {
                    changes.insert(epoch * 100 + index * 10 + i);
                    errors.insert(i);
                }
                changes.advance_to(epoch + 1);
                errors.advance_to(epoch + 1);
                changes.flush();
                errors.flush();
                while epoch >= in_flight && !closed.is_closed(epoch - in_flight) {
                    worker.step();
                }
            }
        })
        .unwrap();
        for guard in guards.join() {
            guard.unwrap();
        }
        let calls = calls.lock().unwrap();
        for worker in 0..2 {
            let order: Vec<_> = calls.iter().filter(|call| call.0 == worker).map(|call| call.1).collect();
            assert!(order.is_sorted_by(|a, b| a < b), "{order:?}");
        }
        for epoch in 0..epochs {
            let here = || calls.iter().filter(|call| call.1 == epoch);
            let mut changes: Vec<u64> = here().flat_map(|call| call.2.iter().map(|c| c.0)).collect();
            changes.sort_unstable();
            let expected: Vec<u64> =
                (0..2).flat_map(|w| (0..epoch % 4).map(move |i| epoch * 100 + w * 10 + i)).collect();
            assert_eq!(changes, expected);
            let errors: Diff = here().flat_map(|call| call.3.iter().map(|c| c.2)).sum();
            assert_eq!(errors as u64, epoch % 4 * 2);
        }
    }
}
