//! The clauses of an AUTO CDC flow, given one by one.

use crate::pipeline::ScdType;

/// The clauses of an AUTO CDC flow. The names are those of the SQL clauses.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct AutoCdcBuilder {
    pub(super) keys: Option<Vec<String>>,
    pub(super) sequence_by: Option<String>,
    pub(super) delete_when: Option<String>,
    pub(super) truncate_when: Option<String>,
    pub(super) columns: Lists,
    pub(super) track_history: Lists,
    pub(super) ignore_null: bool,
    pub(super) ignore_null_on: Lists,
    pub(super) scd: Option<ScdType>,
    pub(super) once: bool,
}

/// Columns in and out; only one of the two can be given.
#[derive(Clone, Debug, Default)]
pub(super) struct Lists {
    pub(super) include: Option<Vec<String>>,
    pub(super) except: Option<Vec<String>>,
}

fn owned<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Option<Vec<String>> {
    Some(names.into_iter().map(Into::into).collect())
}

impl AutoCdcBuilder {
    /// Columns that identify a row.
    pub fn keys<S: Into<String>>(mut self, keys: impl IntoIterator<Item = S>) -> Self {
        self.keys = owned(keys);
        self
    }

    /// Expression by which changes are ordered.
    pub fn sequence_by(mut self, expr: impl Into<String>) -> Self {
        self.sequence_by = Some(expr.into());
        self
    }

    /// Condition of events that delete.
    pub fn delete_when(mut self, condition: impl Into<String>) -> Self {
        self.delete_when = Some(condition.into());
        self
    }

    /// Condition of events that empty the table; SCD type 1 only.
    pub fn truncate_when(mut self, condition: impl Into<String>) -> Self {
        self.truncate_when = Some(condition.into());
        self
    }

    /// Columns to keep.
    pub fn columns<S: Into<String>>(mut self, columns: impl IntoIterator<Item = S>) -> Self {
        self.columns.include = owned(columns);
        self
    }

    /// Columns to leave out.
    pub fn except_columns<S: Into<String>>(mut self, columns: impl IntoIterator<Item = S>) -> Self {
        self.columns.except = owned(columns);
        self
    }

    /// Columns whose change opens a version; SCD type 2 only.
    pub fn track_history<S: Into<String>>(mut self, columns: impl IntoIterator<Item = S>) -> Self {
        self.track_history.include = owned(columns);
        self
    }

    /// Columns whose change opens no version; SCD type 2 only.
    pub fn track_history_except<S: Into<String>>(mut self, columns: impl IntoIterator<Item = S>) -> Self {
        self.track_history.except = owned(columns);
        self
    }

    /// A null keeps the value before it, in every column.
    pub fn ignore_null_updates(mut self) -> Self {
        self.ignore_null = true;
        self
    }

    /// A null keeps the value before it, in these columns.
    pub fn ignore_null_updates_on<S: Into<String>>(mut self, columns: impl IntoIterator<Item = S>) -> Self {
        self.ignore_null_on.include = owned(columns);
        self
    }

    /// A null keeps the value before it, in all but these columns.
    pub fn ignore_null_updates_except<S: Into<String>>(mut self, columns: impl IntoIterator<Item = S>) -> Self {
        self.ignore_null_on.except = owned(columns);
        self
    }

    /// SCD type, 1 if not given.
    pub fn scd(mut self, scd: ScdType) -> Self {
        self.scd = Some(scd);
        self
    }

    /// Read what is there when it first runs, and never again.
    pub fn once(mut self) -> Self {
        self.once = true;
        self
    }
}
