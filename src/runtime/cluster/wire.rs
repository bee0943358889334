//! How rows and errors go from process to process.

use std::collections::BTreeSet;
use std::io::Cursor;
use std::sync::{Mutex, OnceLock, PoisonError};

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use silverflow_operators::Epoch;

use crate::dataflow::{Batch, RowFault};
use crate::error::{Error, Fault, Place};

/// Bytes, as one string.
#[derive(Debug, Default)]
pub(super) struct Blob(pub(super) Vec<u8>);

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

struct BlobVisitor;

impl<'de> Visitor<'de> for BlobVisitor {
    type Value = Blob;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("bytes")
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Blob, E> {
        Ok(Blob(bytes.to_vec()))
    }

    fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> Result<Blob, E> {
        Ok(Blob(bytes))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<Blob, A::Error> {
        Err(A::Error::custom("bytes are expected"))
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Blob, D::Error> {
        deserializer.deserialize_byte_buf(BlobVisitor)
    }
}

/// A batch in Arrow's stream format, and what goes with its rows.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Sent {
    epoch: Epoch,
    arrived: Epoch,
    pairs: bool,
    diffs: Option<Vec<i64>>,
    rows: Blob,
}

impl Sent {
    pub(super) fn of(batch: &Batch) -> Result<Sent, ArrowError> {
        let mut writer = StreamWriter::try_new(Vec::new(), batch.rows.schema_ref())?;
        writer.write(&batch.rows)?;
        let rows = Blob(writer.into_inner()?);
        let diffs = batch.diffs.as_ref().map(|diffs| diffs.to_vec());
        Ok(Sent { epoch: batch.epoch, arrived: batch.arrived, pairs: batch.pairs, diffs, rows })
    }

    pub(super) fn batch(self) -> Result<Batch, ArrowError> {
        let mut reader = StreamReader::try_new(Cursor::new(self.rows.0), None)?;
        let schema = reader.schema();
        let rows = reader.next().unwrap_or_else(|| Ok(RecordBatch::new_empty(schema)))?;
        let diffs = self.diffs.map(Into::into);
        Ok(Batch { epoch: self.epoch, arrived: self.arrived, rows, diffs, pairs: self.pairs })
    }

    /// Bytes, nearly.
    pub(super) fn size(&self) -> usize {
        self.rows.0.len() + self.diffs.as_ref().map_or(0, |diffs| diffs.len() * 8)
    }
}

/// A code that has come from elsewhere. There are as many as releases have.
fn code(text: String) -> &'static str {
    static KNOWN: OnceLock<Mutex<BTreeSet<&'static str>>> = OnceLock::new();
    let mut known = KNOWN.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(code) = known.get(text.as_str()) {
        return code;
    }
    let code: &'static str = text.leak();
    known.insert(code);
    code
}

/// An error. What caused it comes as text.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SentError {
    code: String,
    fault: Fault,
    message: String,
    place: Place,
    help: Option<String>,
    details: Vec<String>,
    more: Vec<SentError>,
}

impl From<&Error> for SentError {
    fn from(error: &Error) -> SentError {
        let mut message = error.message().to_owned();
        let mut cause = std::error::Error::source(error);
        while let Some(error) = cause {
            message.push_str(&format!(": {error}"));
            cause = error.source();
        }
        SentError {
            code: error.code().to_owned(),
            fault: error.fault(),
            message,
            place: error.place().clone(),
            help: error.advice().map(str::to_owned),
            details: error.detail_lines().to_vec(),
            more: error.others().iter().map(SentError::from).collect(),
        }
    }
}

impl SentError {
    pub(super) fn error(self) -> Error {
        let mut error = Error::new(self.fault, code(self.code), self.message).details(self.details);
        let Place { span, dataset, flow, rule, epoch } = self.place;
        if let Some(span) = span {
            error = error.at(&span);
        }
        if let Some(dataset) = dataset {
            error = error.dataset(dataset);
        }
        if let Some(flow) = flow {
            error = error.flow(flow);
        }
        if let Some(rule) = rule {
            error = error.rule(rule);
        }
        if let Some(epoch) = epoch {
            error = error.epoch(epoch);
        }
        if let Some(help) = self.help {
            error = error.help(help);
        }
        let more = self.more.into_iter().map(SentError::error).collect::<Vec<_>>();
        match Error::all([error].into_iter().chain(more)) {
            Some(error) => error,
            None => Error::internal("an error without content"),
        }
    }
}

/// A fault of rows.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SentFault {
    epoch: Epoch,
    dataset: String,
    flow: Option<String>,
    rule: Option<String>,
    code: String,
    fault: Fault,
    message: String,
    count: u64,
    rows: Vec<String>,
}

impl From<Box<RowFault>> for SentFault {
    fn from(fault: Box<RowFault>) -> SentFault {
        let RowFault { epoch, dataset, flow, rule, code, fault, message, count, rows } = *fault;
        SentFault { epoch, dataset, flow, rule, code: code.to_owned(), fault, message, count, rows }
    }
}

impl From<SentFault> for Box<RowFault> {
    fn from(sent: SentFault) -> Box<RowFault> {
        let SentFault { epoch, dataset, flow, rule, code: text, fault, message, count, rows } = sent;
        Box::new(RowFault { epoch, dataset, flow, rule, code: code(text), fault, message, count, rows })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Int64Array, RecordBatchOptions, StringArray};
    use arrow::datatypes::{DataType, Field, Schema};

    use super::*;
    use crate::error::Span;

    #[test]
    fn rows_come_out_as_they_went_in() {
        let field = Field::new("a", DataType::Int64, true).with_metadata([("k".into(), "v".into())].into());
        let schema = Arc::new(Schema::new(vec![field, Field::new("b", DataType::Utf8, true)]));
        let columns: Vec<arrow::array::ArrayRef> = vec![
            Arc::new(Int64Array::from(vec![Some(1), None, Some(3)])),
            Arc::new(StringArray::from(vec![None, Some(""), Some("ü")])),
        ];
        let rows = RecordBatch::try_new(Arc::clone(&schema), columns).unwrap();
        let none = RecordBatchOptions::new().with_row_count(Some(5));
        let empty = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), vec![], &none).unwrap();
        for (rows, diffs) in [
            (rows.clone(), None),
            (rows.slice(1, 2), Some(vec![-1, 2])),
            (rows.slice(0, 0), Some(vec![])),
            (empty, None),
        ] {
            let batch = Batch { epoch: 7, arrived: 3, rows, diffs: diffs.map(Into::into), pairs: true };
            let bytes = bincode::serialize(&Sent::of(&batch).unwrap()).unwrap();
            let back = bincode::deserialize::<Sent>(&bytes).unwrap().batch().unwrap();
            assert_eq!((back.epoch, back.arrived, back.pairs), (7, 3, true));
            assert_eq!(back.rows, batch.rows);
            assert_eq!(back.diffs, batch.diffs);
        }
    }

    #[test]
    fn an_error_says_the_same_elsewhere() {
        let span = Span { file: "a.sql".into(), line: 3, column: 8, length: 4, text: "SELECT nope".into() };
        let cause = std::io::Error::other("disk on fire");
        let one = Error::external("SOURCE_NOT_READABLE", "no").caused_by(cause).at(&span).flow("f").epoch(3).help("h");
        let two = Error::user("X", "y").dataset("d").rule("r").details(["row: 1".to_owned()]);
        let error = Error::all([one, two]).unwrap();
        let bytes = bincode::serialize(&SentError::from(&error)).unwrap();
        let back = bincode::deserialize::<SentError>(&bytes).unwrap().error();
        assert_eq!(back.to_string(), error.to_string());
        assert_eq!((back.code(), back.fault()), (error.code(), error.fault()));
    }
}
