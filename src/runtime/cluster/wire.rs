//! How errors go from process to process.

use std::collections::BTreeSet;
use std::sync::{Mutex, OnceLock, PoisonError};

use serde::{Deserialize, Serialize};
use silverflow_operators::Epoch;

use crate::dataflow::RowFault;
use crate::error::{Error, Fault, Place};

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
    use super::*;
    use crate::error::Span;

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
