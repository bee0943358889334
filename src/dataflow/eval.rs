//! DataFusion expressions over batches. A batch whose evaluation fails is evaluated row by row, so that the fault lies with
//! the row that has it.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch};
use arrow::error::ArrowError;
use datafusion::error::DataFusionError;
use datafusion::physical_expr::PhysicalExpr;

use super::batch::{Batch, relabel};
use super::codec::join_arrays;
use super::unnest::unnest;
use crate::plan::Step;
use crate::rows::json_lines;

/// What is wrong with one row.
pub struct BadRow {
    /// Its place in the batch.
    pub index: usize,
    /// The message.
    pub message: String,
}

/// Evaluates to one value a row.
pub fn evaluate(expr: &Arc<dyn PhysicalExpr>, rows: &RecordBatch) -> Result<ArrayRef, DataFusionError> {
    expr.evaluate(rows)?.into_array(rows.num_rows())
}

/// Evaluates; on failure finds the first row that fails.
pub fn evaluate_rows(expr: &Arc<dyn PhysicalExpr>, rows: &RecordBatch) -> Result<ArrayRef, BadRow> {
    match evaluate(expr, rows) {
        Ok(array) => Ok(array),
        Err(_) if rows.num_rows() > 1 => {
            let mut parts = Vec::with_capacity(rows.num_rows());
            for index in 0..rows.num_rows() {
                parts.push(evaluate(expr, &rows.slice(index, 1)).map_err(|e| bad(index, &e))?);
            }
            join_arrays(&parts).map_err(|e| BadRow { index: 0, message: e.to_string() })
        }
        Err(error) => Err(bad(0, &error)),
    }
}

fn bad(index: usize, error: &DataFusionError) -> BadRow {
    let text = error.strip_backtrace();
    BadRow { index, message: text.lines().next().unwrap_or_default().to_owned() }
}

/// The outcome of a condition for each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// True.
    True,
    /// False.
    False,
    /// Null.
    Null,
    /// The expression fails on the row.
    Error,
}

/// Evaluates a condition; a failing row is an outcome of its own.
pub fn judge(condition: &Arc<dyn PhysicalExpr>, rows: &RecordBatch) -> Vec<Outcome> {
    let outcome = |array: &ArrayRef| -> Vec<Outcome> {
        match array.as_boolean_opt() {
            Some(values) => values
                .iter()
                .map(|value| match value {
                    Some(true) => Outcome::True,
                    Some(false) => Outcome::False,
                    None => Outcome::Null,
                })
                .collect(),
            None => vec![Outcome::Null; array.len()],
        }
    };
    match evaluate(condition, rows) {
        Ok(array) => outcome(&array),
        Err(_) => (0..rows.num_rows())
            .map(|index| match evaluate(condition, &rows.slice(index, 1)) {
                Ok(array) => outcome(&array).first().copied().unwrap_or(Outcome::Null),
                Err(_) => Outcome::Error,
            })
            .collect(),
    }
}

/// True where the condition is true; null and absent conditions are false.
pub fn holds(condition: Option<&Arc<dyn PhysicalExpr>>, rows: &RecordBatch) -> Result<BooleanArray, BadRow> {
    match condition {
        None => Ok(BooleanArray::from(vec![false; rows.num_rows()])),
        Some(condition) => {
            let values = evaluate_rows(condition, rows)?;
            Ok(match values.as_boolean_opt() {
                Some(values) => values.iter().map(|v| Some(v == Some(true))).collect(),
                None => BooleanArray::from(vec![false; rows.num_rows()]),
            })
        }
    }
}

/// Runs row-wise steps; a batch becomes several where its rows become many. `Err` carries the offending row as it entered
/// the failing step.
pub fn run_steps(steps: &[Step], mut batch: Batch) -> Result<Vec<Batch>, (BadRow, RecordBatch)> {
    for (index, step) in steps.iter().enumerate() {
        if batch.rows.num_rows() == 0 && matches!(step, Step::Filter { .. }) {
            continue;
        }
        match step {
            Step::Filter { predicate } => {
                let mask = holds(Some(predicate), &batch.rows).map_err(|e| (e, batch.rows.clone()))?;
                batch = batch.filter(&mask).map_err(|e| (broken(&e), batch.rows.clone()))?;
            }
            Step::Project { columns, schema } => {
                let mut arrays = Vec::with_capacity(columns.len());
                for column in columns {
                    arrays.push(evaluate_rows(column, &batch.rows).map_err(|e| (e, batch.rows.clone()))?);
                }
                let rows =
                    relabel(schema, arrays, batch.rows.num_rows()).map_err(|e| (broken(&e), batch.rows.clone()))?;
                batch = batch.with_rows(rows);
            }
            Step::Unnest { column, schema } => {
                let parts = unnest(&batch, *column, schema).map_err(|e| (e, batch.rows.clone()))?;
                let rest = steps.get(index + 1..).unwrap_or_default();
                let mut done = Vec::with_capacity(parts.len());
                for part in parts {
                    done.extend(run_steps(rest, part)?);
                }
                return Ok(done);
            }
        }
    }
    Ok(vec![batch])
}

fn broken(error: &ArrowError) -> BadRow {
    BadRow { index: 0, message: error.to_string() }
}

/// One row as JSON, without silverflow's hidden columns.
pub fn row_json(rows: &RecordBatch, index: usize) -> String {
    let shown: Vec<usize> = rows
        .schema()
        .fields()
        .iter()
        .enumerate()
        .filter(|(_, f)| !crate::plan::is_hidden(f) && !f.name().starts_with("__common_expr"))
        .map(|(i, _)| i)
        .collect();
    let one = rows.slice(index.min(rows.num_rows().saturating_sub(1)), rows.num_rows().min(1));
    match one.project(&shown).and_then(|one| json_lines([&one])) {
        Ok(text) => text.trim_end().to_owned(),
        Err(error) => format!("(not shown: {error})"),
    }
}
