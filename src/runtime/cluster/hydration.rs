//! Hydration in several processes: each reads its part of a table.

use crossbeam_channel::Receiver;

use super::Lead;
use crate::dataflow::TableId;
use crate::error::{Error, Result};

/// What other processes hydrate with, while this one does the same.
pub(in crate::runtime) struct Elsewhere<'a> {
    lead: &'a Lead,
    hydrated: Receiver<Result<u64>>,
    others: usize,
    /// Parts that are being read.
    open: usize,
}

impl<'a> Elsewhere<'a> {
    pub(super) fn new(lead: &'a Lead, hydrated: Receiver<Result<u64>>, others: usize) -> Self {
        Elsewhere { lead, hydrated, others, open: 0 }
    }

    /// Lets the others read their parts of a table as of a version. Gives this process's part.
    ///
    /// # Errors
    /// `PEER_LOST` (external).
    pub fn begin(&mut self, table: TableId, version: i64) -> Result<(usize, usize)> {
        self.lead.hydrate(table, version)?;
        self.open += self.others;
        Ok((0, self.others + 1))
    }

    /// Waits until all is read, and gives the rows.
    ///
    /// # Errors
    /// `PEER_LOST`, and whatever keeps another process from reading.
    pub fn end(mut self) -> Result<u64> {
        let mut rows = 0;
        while self.open > 0 {
            rows += self.hydrated.recv().map_err(|_| Error::internal("nobody tells of hydration"))??;
            self.open -= 1;
        }
        Ok(rows)
    }
}
