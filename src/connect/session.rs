//! Sessions of clients: settings, the graphs they declare, what they execute.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tonic::Status;
use uuid::Uuid;

use super::graph::Graph;
use super::operation::Operation;
use super::status::{handle, status};
use crate::error::Error;
use crate::pipeline::Pipeline;

/// How many sessions there can be at once.
const SESSIONS: usize = 200;
/// How many executions of one session can be under way.
const OPERATIONS: usize = 64;
/// A session that has not been heard of for so long makes room for another.
const IDLE: Duration = Duration::from_secs(3600);
/// How many errors of a session can be fetched.
const ERRORS: usize = 50;

/// What a client reads of settings that nobody has set.
const DEFAULTS: &[(&str, &str)] = &[
    ("spark.sql.session.timeZone", "UTC"),
    ("spark.sql.ansi.enabled", "true"),
    ("spark.sql.timestampType", "TIMESTAMP_LTZ"),
    ("spark.sql.caseSensitive", "false"),
    ("spark.sql.execution.arrow.maxRecordsPerBatch", "10000"),
    ("spark.sql.execution.arrow.useLargeVarTypes", "false"),
    ("spark.sql.execution.pandas.convertToArrowArraySafely", "false"),
    ("spark.sql.execution.pandas.inferPandasDictAsMap", "false"),
    ("spark.sql.execution.pandas.structHandlingMode", "legacy"),
    ("spark.sql.execution.pyspark.binaryAsBytes", "true"),
    ("spark.sql.pyspark.inferNestedDictAsStruct.enabled", "false"),
    ("spark.sql.pyspark.legacy.inferArrayTypeFromFirstElement.enabled", "false"),
    ("spark.sql.pyspark.legacy.inferMapTypeFromFirstPair.enabled", "false"),
    ("spark.sql.pyspark.inferTimestampNTZ.enabled", "false"),
    ("spark.sql.pyspark.jvmStacktrace.enabled", "false"),
    ("spark.sql.connect.serverStacktrace.enabled", "false"),
    ("spark.sql.legacy.dataset.nameNonStructGroupingKeyAsValue", "false"),
    ("spark.sql.repl.eagerEval.enabled", "false"),
    ("spark.sql.repl.eagerEval.maxNumRows", "20"),
    ("spark.sql.repl.eagerEval.truncate", "20"),
    ("spark.sql.session.localRelationCacheThreshold", "67108864"),
    ("spark.sql.session.localRelationChunkSizeRows", "1000000"),
    ("spark.sql.session.localRelationChunkSizeBytes", "67108864"),
    ("spark.sql.session.localRelationSizeLimit", "67108864"),
    ("spark.sql.session.localRelationBatchOfChunksSizeBytes", "67108864"),
    ("spark.sql.execution.arrow.pyspark.enabled", "true"),
    ("spark.sql.execution.arrow.pyspark.fallback.enabled", "true"),
    ("spark.sql.execution.arrow.pyspark.selfDestruct.enabled", "false"),
    ("spark.sql.execution.pythonUDF.arrow.enabled", "false"),
    ("spark.sql.execution.pythonUDTF.arrow.enabled", "false"),
    ("spark.sql.leafNodeDefaultParallelism", "1"),
    ("spark.connect.session.planCompression.threshold", "-1"),
    ("spark.connect.session.planCompression.defaultAlgorithm", "NONE"),
];

/// A session.
pub(super) struct Session {
    pub(super) id: String,
    /// Tells the client that it still speaks with the same server.
    pub(super) server: String,
    conf: Mutex<BTreeMap<String, String>>,
    pub(super) graphs: Mutex<HashMap<String, Graph>>,
    operations: Mutex<HashMap<String, Arc<Operation>>>,
    errors: Mutex<VecDeque<(String, Error)>>,
    /// The pipeline whose tables are read outside of flows.
    pipeline: Mutex<Option<(Arc<Pipeline>, PathBuf)>>,
    heard: Mutex<Instant>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    fn new(id: String, pipeline: Option<(Arc<Pipeline>, PathBuf)>) -> Session {
        Session {
            id,
            server: Uuid::new_v4().to_string(),
            conf: Mutex::default(),
            graphs: Mutex::default(),
            operations: Mutex::default(),
            errors: Mutex::default(),
            pipeline: Mutex::new(pipeline),
            heard: Mutex::new(Instant::now()),
        }
    }

    /// A setting, or what is so if nobody has set it.
    pub(super) fn get(&self, key: &str) -> Option<String> {
        let set = lock(&self.conf).get(key).cloned();
        set.or_else(|| DEFAULTS.iter().find(|(name, _)| *name == key).map(|(_, value)| (*value).to_owned()))
    }

    pub(super) fn set(&self, key: &str, value: Option<String>) {
        let mut conf = lock(&self.conf);
        match value {
            Some(value) => conf.insert(key.to_owned(), value),
            None => conf.remove(key),
        };
    }

    /// Everything that has been set.
    pub(super) fn conf(&self) -> BTreeMap<String, String> {
        lock(&self.conf).clone()
    }

    pub(super) fn graphs(&self) -> MutexGuard<'_, HashMap<String, Graph>> {
        lock(&self.graphs)
    }

    pub(super) fn pipeline(&self) -> Option<(Arc<Pipeline>, PathBuf)> {
        lock(&self.pipeline).clone()
    }

    pub(super) fn set_pipeline(&self, pipeline: Arc<Pipeline>, root: PathBuf) {
        *lock(&self.pipeline) = Some((pipeline, root));
    }

    /// An error as the answer of a call, to be fetched in full later.
    pub(super) fn failed(&self, error: Error) -> Status {
        let id = Uuid::new_v4().to_string();
        let status = status(&error, &id);
        let mut errors = lock(&self.errors);
        if errors.len() >= ERRORS {
            errors.pop_front();
        }
        errors.push_back((id, error));
        status
    }

    /// Reads an error that was told before.
    pub(super) fn error<T>(&self, id: &str, read: impl FnOnce(&Error) -> T) -> Option<T> {
        lock(&self.errors).iter().find(|(known, _)| known == id).map(|(_, error)| read(error))
    }

    /// A new execution.
    pub(super) fn begin(&self, id: String, tags: Vec<String>) -> Result<Arc<Operation>, Status> {
        let mut operations = lock(&self.operations);
        if operations.contains_key(&id) {
            return Err(handle("OPERATION_ALREADY_EXISTS", "there is an operation of that number"));
        }
        if operations.values().filter(|operation| !operation.is_done()).count() >= OPERATIONS {
            return Err(Status::resource_exhausted("too many operations are under way in this session"));
        }
        // What is done and was never released by its client.
        if operations.len() >= OPERATIONS * 4 {
            operations.retain(|_, operation| !operation.is_done());
        }
        let operation = Operation::new(id.clone(), self.id.clone(), self.server.clone(), tags);
        operations.insert(id, Arc::clone(&operation));
        Ok(operation)
    }

    pub(super) fn operation(&self, id: &str) -> Option<Arc<Operation>> {
        lock(&self.operations).get(id).cloned()
    }

    pub(super) fn operations(&self) -> Vec<Arc<Operation>> {
        lock(&self.operations).values().cloned().collect()
    }

    pub(super) fn forget(&self, id: &str) {
        lock(&self.operations).remove(id);
    }
}

/// All sessions.
pub(super) struct Sessions {
    open: Mutex<HashMap<String, Arc<Session>>>,
    /// What sessions read before they have declared a pipeline.
    pipeline: Option<(Arc<Pipeline>, PathBuf)>,
}

impl Sessions {
    /// No sessions yet; they read a pipeline's tables until they have their own.
    pub(super) fn reading(pipeline: Option<(Arc<Pipeline>, PathBuf)>) -> Sessions {
        Sessions { open: Mutex::default(), pipeline }
    }

    /// The session of a client, which begins with its first call.
    pub(super) fn open(&self, id: &str) -> Result<Arc<Session>, Status> {
        if Uuid::parse_str(id).is_err() {
            return Err(handle("FORMAT", "the number of a session is a UUID"));
        }
        let mut open = lock(&self.open);
        if let Some(session) = open.get(id) {
            *lock(&session.heard) = Instant::now();
            return Ok(Arc::clone(session));
        }
        if open.len() >= SESSIONS {
            open.retain(|_, session| {
                lock(&session.heard).elapsed() < IDLE || session.operations().iter().any(|o| !o.is_done())
            });
        }
        if open.len() >= SESSIONS {
            return Err(Status::resource_exhausted("too many sessions are open"));
        }
        let session = Arc::new(Session::new(id.to_owned(), self.pipeline.clone()));
        open.insert(id.to_owned(), Arc::clone(&session));
        Ok(session)
    }

    /// A new session with the settings and the pipeline of another; what it has under way stays its own.
    pub(super) fn copy(&self, from: &Session, id: &str) -> Result<Arc<Session>, Status> {
        if lock(&self.open).contains_key(id) {
            return Err(handle("SESSION_ALREADY_EXISTS", "there is a session of that number"));
        }
        let copy = self.open(id)?;
        *lock(&copy.conf) = from.conf();
        *lock(&copy.pipeline) = from.pipeline();
        Ok(copy)
    }

    /// Ends a session.
    pub(super) fn close(&self, id: &str) -> Option<Arc<Session>> {
        lock(&self.open).remove(id)
    }

    /// Takes a graph out of whatever session has declared it.
    pub(super) fn take_graph(&self, id: &str) -> Option<Graph> {
        let sessions: Vec<Arc<Session>> = lock(&self.open).values().cloned().collect();
        sessions.iter().find_map(|session| session.graphs().remove(id))
    }
}
