//! What the stateful operators of a dataflow remember: registered under stable names as they are built, so that a
//! checkpoint can hold it and another dataflow of the same plan, on any number of workers, can begin with it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use silverflow_operators::{Share, Shared, Shelf, Snapshot, State, shared};

use crate::error::{Error, Result};

/// The state of one operator on this worker, and its name: dataset, and place among the stateful operators that the
/// dataset's definition is built into. Equal fingerprints give equal names.
pub struct Registered {
    /// The name.
    pub name: String,
    /// The state. Not to be borrowed across a step of the worker.
    pub state: Rc<RefCell<dyn State>>,
}

/// Raised when state that was read back turned out not to be what was written: nothing that operators gave since is
/// looked at, and the epoch is given up.
#[derive(Clone, Debug, Default)]
pub struct Alarm(Arc<AtomicBool>);

impl Alarm {
    /// Whether it was raised.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// For whoever raises it.
    pub fn bell(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }
}

/// What all stateful operators remembered at the end of an epoch.
#[derive(Debug)]
pub struct Restored {
    workers: usize,
    alarm: Alarm,
    operators: Mutex<BTreeMap<String, Vec<Snapshot>>>,
}

impl Restored {
    /// What `workers` workers held: by name of the operator, a snapshot a worker. The alarm is that of what the snapshots
    /// were read from.
    pub fn new(workers: usize, operators: BTreeMap<String, Vec<Snapshot>>, alarm: Alarm) -> Restored {
        Restored { workers, alarm, operators: Mutex::new(operators) }
    }

    /// Lets go of it, once all workers have what they need: it shares memory with their state.
    pub fn release(&self) {
        self.operators().clear();
    }

    fn operators(&self) -> MutexGuard<'_, BTreeMap<String, Vec<Snapshot>>> {
        self.operators.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The states of a dataflow that is being built.
pub struct States {
    restored: Option<Arc<Restored>>,
    shelf: Option<Arc<dyn Shelf>>,
    worker: usize,
    workers: usize,
    known: Vec<Registered>,
    /// How many operators each dataset has so far.
    places: BTreeMap<String, usize>,
}

impl States {
    /// None so far, on one of `workers` workers. They are put on the shelf, if there is one.
    pub fn new(
        restored: Option<Arc<Restored>>,
        shelf: Option<Arc<dyn Shelf>>,
        worker: usize,
        workers: usize,
    ) -> States {
        States { restored, shelf, worker, workers, known: Vec::new(), places: BTreeMap::new() }
    }

    /// Restores a state and keeps hold of it.
    ///
    /// # Errors
    /// `CHECKPOINT_UNUSABLE` (external) if what is to be restored is not of this operator.
    pub fn register<S: State + 'static>(&mut self, label: &str, mut state: S) -> Result<Shared<S>> {
        let place = self.places.entry(label.to_owned()).or_default();
        let name = format!("{label}/{place}");
        *place += 1;
        if let Some(shelf) = &self.shelf {
            state.put_on(shelf);
        }
        if let Some(restored) = &self.restored {
            let shards = restored.operators().get(&name).cloned();
            let shards = shards.ok_or_else(|| unusable(&format!("it has no state of {name}")))?;
            let (worker, workers) = (self.worker as u64, self.workers as u64);
            for (shard, snapshot) in shards.iter().enumerate() {
                // Keys are where they were, if there are as many workers.
                let same = restored.workers == self.workers;
                if same && shard != self.worker {
                    continue;
                }
                let share = if same { Share::ALL } else { Share::new(worker, workers) };
                state.restore(snapshot, share).map_err(|e| unusable(&format!("the state of {name}: {e}")))?;
            }
        }
        let state = shared(state);
        self.known.push(Registered { name, state: Rc::clone(&state) as Rc<RefCell<dyn State>> });
        Ok(state)
    }

    /// The alarm of what is restored.
    pub fn alarm(&self) -> Alarm {
        self.restored.as_ref().map(|restored| restored.alarm.clone()).unwrap_or_default()
    }

    /// All of them.
    ///
    /// # Errors
    /// `CHECKPOINT_UNUSABLE` (external) if there is state of an operator that was not built.
    pub fn finish(self) -> Result<Vec<Registered>> {
        if let Some(restored) = &self.restored
            && let Some(name) = restored.operators().keys().find(|name| self.known.iter().all(|k| k.name != **name))
        {
            return Err(unusable(&format!("it has state of {name}, which is not there")));
        }
        Ok(self.known)
    }
}

/// A checkpoint that does not fit. Whoever restores starts without it.
pub const UNUSABLE: &str = "CHECKPOINT_UNUSABLE";

fn unusable(why: &str) -> Error {
    Error::external(UNUSABLE, format!("the checkpoint does not fit the pipeline: {why}"))
}
