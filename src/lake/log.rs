//! The log of one table: entries are created put-if-absent, one version after the other, and whoever won is read.

use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::storage::Lake;
use crate::error::{Error, Result};

/// Who writes, as the log says it.
const ENGINE: &str = concat!("silverflow/", env!("CARGO_PKG_VERSION"));

/// What became of an attempt to write the next version.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The entry is this version now.
    Committed,
    /// Another writer only moved rows to other files; the attempt can be repeated on the new version.
    Rewritten,
    /// The same epoch is there already: an attempt that had seemed to fail.
    Repeated,
    /// An earlier epoch of the same table: another run has been writing.
    Earlier,
}

/// Who writes a table: the table's application id and the generation of the run.
#[derive(Clone, Debug)]
pub(crate) struct Writer {
    /// Under this id epochs are committed.
    pub(crate) app_id: String,
    /// A run with a greater one has taken over.
    pub(crate) generation: u64,
}

impl Writer {
    /// The id under which generations are committed.
    pub(crate) fn fence_id(app_id: &str) -> String {
        format!("{app_id}.generation")
    }
}

/// One entry of the log while it is put together.
pub(crate) struct Entry {
    id: Uuid,
    writer: Writer,
    epoch: Option<i64>,
    lines: Vec<Value>,
}

impl Entry {
    /// An entry for an operation, told in terms of Delta's `commitInfo`.
    pub(crate) fn new(
        writer: &Writer,
        operation: &str,
        parameters: Map<String, Value>,
        metrics: Map<String, Value>,
        now: i64,
    ) -> Self {
        let id = Uuid::new_v4();
        let info = json!({ "commitInfo": {
            "timestamp": now,
            "operation": operation,
            "operationParameters": parameters,
            "operationMetrics": metrics,
            "isBlindAppend": false,
            "engineInfo": ENGINE,
            "txnId": id.to_string(),
        }});
        Entry { id, writer: writer.clone(), epoch: None, lines: vec![info] }
    }

    /// Adds an action.
    pub(crate) fn push(&mut self, action: Value) {
        self.lines.push(action);
    }

    /// Adds the epoch, which makes the entry happen once.
    pub(crate) fn epoch(&mut self, epoch: u64, now: i64) -> Result<()> {
        let epoch = countable(epoch)?;
        self.epoch = Some(epoch);
        self.push(json!({ "txn": { "appId": self.writer.app_id, "version": epoch, "lastUpdated": now } }));
        Ok(())
    }

    /// Adds the writer's generation, after which no earlier one can write.
    pub(crate) fn fence(&mut self, now: i64) -> Result<()> {
        let (id, generation) = (Writer::fence_id(&self.writer.app_id), countable(self.writer.generation)?);
        self.push(json!({ "txn": { "appId": id, "version": generation, "lastUpdated": now } }));
        Ok(())
    }

    /// The entry's bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.lines.len() * 400);
        for line in &self.lines {
            out.extend(line.to_string().into_bytes());
            out.push(b'\n');
        }
        out
    }

    /// Creates the entry as `version` of the table at `location`, where `bytes` are its bytes, once the files that it
    /// refers to are durable.
    ///
    /// Never tries another version: whether the entry still means the same there is for the caller to know.
    pub(crate) async fn create(
        &self,
        lake: &Lake,
        location: &str,
        version: i64,
        bytes: Vec<u8>,
        mut files: Vec<(String, Vec<u8>)>,
    ) -> Result<Outcome> {
        let path = entry_path(location, version);
        // A store may report a conflict although nothing landed, so a winner that cannot be found is looked for again.
        for _ in 0..5 {
            if lake.publish(std::mem::take(&mut files), &path, bytes.clone()).await? {
                return Ok(Outcome::Committed);
            }
            if let Some(winner) = lake.get(&path).await? {
                return self.judge(&winner, lake, location, version);
            }
        }
        Err(Error::external("STORAGE_FAILED", format!("{} can neither be created nor read", lake.display(&path))))
    }

    fn judge(&self, winner: &[u8], lake: &Lake, location: &str, version: i64) -> Result<Outcome> {
        let changed = |what: &str| changed_outside(&lake.display(location), &format!("version {version} is {what}"));
        let actions = parse(winner).map_err(|e| changed("not readable").caused_by(e))?;
        let info = actions.iter().find_map(|x| x.get("commitInfo"));
        let field = |name: &str| info.and_then(|x| x.get(name)).and_then(Value::as_str).unwrap_or("unknown");
        if field("txnId") == self.id.to_string() {
            return Ok(Outcome::Committed);
        }
        let fence_id = Writer::fence_id(&self.writer.app_id);
        let newest = |id: &str| {
            let of_id = |x: &&Value| x.get("appId").and_then(Value::as_str) == Some(id);
            let transactions = actions.iter().filter_map(|x| x.get("txn")).filter(of_id);
            transactions.filter_map(|x| x.get("version").and_then(Value::as_i64)).max()
        };
        if let Some(generation) = newest(&fence_id).and_then(|x| u64::try_from(x).ok())
            && generation > self.writer.generation
        {
            return Err(fenced(&lake.display(location), generation, self.writer.generation));
        }
        if let Some(epoch) = newest(&self.writer.app_id) {
            let repeated = self.epoch.is_some_and(|x| epoch >= x);
            return Ok(if repeated { Outcome::Repeated } else { Outcome::Earlier });
        }
        if harmless(&actions, &fence_id) {
            return Ok(Outcome::Rewritten);
        }
        Err(changed(&format!("{} by {}", field("operation"), field("engineInfo"))))
    }
}

/// The entry changes no row: it moves some to other files, or holds a generation, or nothing.
pub(crate) fn harmless(actions: &[Value], fence_id: &str) -> bool {
    actions.iter().all(|action| {
        let moves = |kind: &str| action.get(kind).is_none_or(|x| x.get("dataChange") == Some(&json!(false)));
        let fence = |x: &Value| x.get("appId").and_then(Value::as_str) == Some(fence_id);
        ["metaData", "protocol", "cdc"].iter().all(|x| action.get(*x).is_none())
            && action.get("txn").is_none_or(fence)
            && moves("add")
            && moves("remove")
    })
}

/// Someone else changed the table.
pub(crate) fn changed_outside(table: &str, what: &str) -> Error {
    Error::external("TABLE_CHANGED_OUTSIDE", format!("the table {table} changed outside the pipeline: {what}")).help(
        "let no one else write to the tables of a pipeline; `silverflow run --full-refresh` with the dataset's name makes \
         the table what its definition says",
    )
}

/// A run with a greater generation writes the table now.
pub(crate) fn fenced(table: &str, found: u64, own: u64) -> Error {
    Error::external(
        "FENCED",
        format!("another run (generation {found}) has taken over the table {table}; this one (generation {own}) stops"),
    )
    .help("nothing is half written; the other run goes on from here")
}

fn countable(number: u64) -> Result<i64> {
    i64::try_from(number).map_err(|_| Error::internal(format!("{number} is beyond what Delta can count")))
}

/// Where an entry lies.
pub(crate) fn entry_path(location: &str, version: i64) -> String {
    format!("{location}/_delta_log/{version:020}.json")
}

/// The actions of an entry.
pub(crate) fn parse(bytes: &[u8]) -> Result<Vec<Value>, serde_json::Error> {
    serde_json::Deserializer::from_slice(bytes).into_iter().collect()
}

/// Milliseconds of the machine's clock, for the fields of the log that want it. No result depends on it.
pub(crate) fn now_millis() -> i64 {
    chrono::Utc::now().timestamp_millis()
}
