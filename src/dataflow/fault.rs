//! Errors that data causes inside the dataflow. They travel beside the data and belong to its epoch; nothing stops on them
//! before the epoch is closed.

use silverflow_operators::{Epoch, HasEpoch};

use crate::error::{Error, Fault};

/// At most this many rows of a violated expectation are shown.
pub const SHOWN_ROWS: usize = 10;

/// A row that cannot be processed, or that violates an expectation with the action FAIL.
#[derive(Clone, Debug)]
pub struct RowFault {
    /// Epoch of the row.
    pub epoch: Epoch,
    /// Dataset whose definition it is.
    pub dataset: String,
    /// Flow, if known.
    pub flow: Option<String>,
    /// Expectation, if it is one.
    pub rule: Option<String>,
    /// Stable code.
    pub code: &'static str,
    /// Whose fault.
    pub fault: Fault,
    /// What happened.
    pub message: String,
    /// How many rows.
    pub count: u64,
    /// Some of the rows, as JSON.
    pub rows: Vec<String>,
}

impl HasEpoch for Box<RowFault> {
    fn epoch(&self) -> Epoch {
        self.epoch
    }
}

impl RowFault {
    /// Whether two faults are of the same kind and place, so that one report serves both.
    pub fn alike(&self, other: &RowFault) -> bool {
        (self.epoch, self.code, &self.dataset, &self.flow, &self.rule)
            == (other.epoch, other.code, &other.dataset, &other.flow, &other.rule)
    }

    /// As an error for the user.
    pub fn into_error(self) -> Error {
        let mut error = Error::new(self.fault, self.code, self.message).dataset(self.dataset).epoch(self.epoch);
        if let Some(flow) = self.flow {
            error = error.flow(flow);
        }
        if let Some(rule) = self.rule {
            error = error.rule(rule);
        }
        let shown = self.rows.len() as u64;
        let more = self.count.saturating_sub(shown);
        let rows = self.rows.into_iter().map(|row| format!("row: {row}"));
        error.details(rows.chain((more > 0).then(|| format!("and {more} more"))))
    }
}
