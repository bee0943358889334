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
#[derive(Debug)]
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

/// Most bytes of the values of one expression that are put together from those of single rows.
const LARGEST: usize = 2 << 30;

/// Evaluates; on failure finds the first row that fails, by halves.
pub fn evaluate_rows(expr: &Arc<dyn PhysicalExpr>, rows: &RecordBatch) -> Result<ArrayRef, BadRow> {
    match evaluate(expr, rows) {
        Ok(array) => Ok(array),
        Err(_) if rows.num_rows() > 1 => {
            let mut parts = Vec::new();
            evaluate_halves(expr, rows, 0, &mut 0, &mut parts)?;
            join_arrays(&parts).map_err(|e| BadRow { index: 0, message: e.to_string() })
        }
        Err(error) => Err(bad(0, &error)),
    }
}

/// The halves of rows that fail together, which begin at row `index`.
fn evaluate_halves(
    expr: &Arc<dyn PhysicalExpr>,
    rows: &RecordBatch,
    index: usize,
    size: &mut usize,
    parts: &mut Vec<ArrayRef>,
) -> Result<(), BadRow> {
    let half = rows.num_rows() / 2;
    for (start, length) in [(0, half), (half, rows.num_rows() - half)] {
        let part = rows.slice(start, length);
        let index = index + start;
        match evaluate(expr, &part) {
            Ok(array) => {
                *size += array.get_array_memory_size();
                if *size > LARGEST {
                    let message = format!("the values of one batch of rows have more than {LARGEST} bytes");
                    return Err(BadRow { index, message });
                }
                parts.push(array);
            }
            Err(_) if length > 1 => evaluate_halves(expr, &part, index, size, parts)?,
            Err(error) => return Err(bad(index, &error)),
        }
    }
    Ok(())
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

/// Evaluates a condition; a failing row is an outcome of its own, and is looked for by halves.
pub fn judge(condition: &Arc<dyn PhysicalExpr>, rows: &RecordBatch) -> Vec<Outcome> {
    let mut all = Vec::with_capacity(rows.num_rows());
    judge_halves(condition, rows, &mut all);
    all
}

fn judge_halves(condition: &Arc<dyn PhysicalExpr>, rows: &RecordBatch, all: &mut Vec<Outcome>) {
    match evaluate(condition, rows) {
        Ok(array) => all.extend(outcomes(&array)),
        Err(_) if rows.num_rows() > 1 => {
            let half = rows.num_rows() / 2;
            judge_halves(condition, &rows.slice(0, half), all);
            judge_halves(condition, &rows.slice(half, rows.num_rows() - half), all);
        }
        Err(_) => all.extend((0..rows.num_rows()).map(|_| Outcome::Error)),
    }
}

/// The values of a condition as outcomes.
pub fn outcomes(array: &ArrayRef) -> Vec<Outcome> {
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

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use arrow::array::Int64Array;
    use arrow::datatypes::{DataType, Field, Int64Type, Schema};
    use datafusion::common::DFSchema;
    use datafusion::logical_expr::{ColumnarValue, Expr, Volatility, col, create_udf, lit};

    use super::*;
    use crate::dataflow::Tally;
    use crate::dataflow::rules::Judge;
    use crate::pipeline::Action;
    use crate::plan::{Rule, together};

    fn rows(values: impl IntoIterator<Item = i64>) -> RecordBatch {
        let schema = Schema::new(vec![Field::new("n", DataType::Int64, true)]);
        RecordBatch::try_new(Arc::new(schema), vec![Arc::new(Int64Array::from_iter_values(values))]).unwrap()
    }

    /// `check(n)`, which is n, fails on negative rows, and counts its calls and the rows that it sees.
    fn check(calls: &Arc<AtomicUsize>, seen: &Arc<AtomicUsize>) -> Expr {
        let (calls, seen) = (Arc::clone(calls), Arc::clone(seen));
        let check = move |arguments: &[ColumnarValue]| {
            let ColumnarValue::Array(values) = &arguments[0] else { panic!("a column") };
            calls.fetch_add(1, Ordering::Relaxed);
            seen.fetch_add(values.len(), Ordering::Relaxed);
            match values.as_primitive::<Int64Type>().iter().flatten().any(|n| n < 0) {
                true => Err(DataFusionError::Execution("a negative row".to_owned())),
                false => Ok(ColumnarValue::Array(Arc::clone(values))),
            }
        };
        let kind = DataType::Int64;
        create_udf("check", vec![kind.clone()], kind, Volatility::Immutable, Arc::new(check)).call(vec![col("n")])
    }

    fn physical(expr: &Expr) -> Arc<dyn PhysicalExpr> {
        let columns = DFSchema::try_from(rows([]).schema().as_ref().clone()).unwrap();
        crate::plan::tests::physical(expr, &columns)
    }

    #[test]
    fn a_row_that_fails_is_found_without_looking_at_each_row() {
        let (calls, seen) = (Arc::default(), Arc::default());
        let bad = |n: i64| [700, 5_000].contains(&n);
        let batch = rows((0..8192).map(|n| if bad(n) { -1 } else { n }));
        let outcomes = judge(&physical(&check(&calls, &seen).gt(lit(10_i64))), &batch);
        let expected = |n: i64| match n {
            n if bad(n) => Outcome::Error,
            n if n > 10 => Outcome::True,
            _ => Outcome::False,
        };
        assert_eq!(outcomes, (0..8192).map(expected).collect::<Vec<_>>());
        assert!(calls.load(Ordering::Relaxed) <= 55, "{calls:?} calls");
        let Err(BadRow { index, message }) = evaluate_rows(&physical(&check(&calls, &seen)), &batch) else {
            panic!("a row fails")
        };
        assert_eq!((index, message.contains("a negative row")), (700, true));
        let good = rows(0..100);
        assert_eq!(evaluate_rows(&physical(&check(&calls, &seen)), &good).unwrap().as_ref(), good.column(0).as_ref());
    }

    #[test]
    fn what_rules_have_in_common_is_computed_once_a_batch() {
        let (calls, seen): (Arc<AtomicUsize>, Arc<AtomicUsize>) = (Arc::default(), Arc::default());
        let value = check(&calls, &seen);
        let conditions = [value.clone().gt(lit(3_i64)), value.clone().lt(lit(90_i64)), col("n").not_eq(lit(5_i64))];
        let schema = rows([]).schema();
        let columns = DFSchema::try_from(schema.as_ref().clone()).unwrap();
        let pairs: Vec<(&Expr, &DFSchema)> = conditions.iter().map(|c| (c, &columns)).collect();
        let shared = together(&pairs, &schema, &"UTC".into()).unwrap().unwrap();
        assert_eq!(shared.common.len(), 1);
        let rule = |condition: &Expr| Rule {
            name: condition.to_string(),
            text: condition.to_string(),
            condition: physical(condition),
            action: Action::Warn,
            live: false,
            constraint: false,
        };
        let mut judge = Judge {
            dataset: 0,
            label: String::new(),
            rules: conditions.iter().map(rule).collect(),
            together: Some(shared),
            schema,
            quarantine: None,
            wall: false,
            now: false,
            drop_is_final: false,
            stored_through: 0,
            tally: Tally::default(),
        };
        let batch = rows(0..100);
        let once = judge.outcomes(&batch);
        assert_eq!(seen.load(Ordering::Relaxed), 100, "each row once");
        let failing = rows((0..100).map(|n| if n % 17 == 3 { -1 } else { n }));
        let fallen = judge.outcomes(&failing);
        judge.together = None;
        assert_eq!(once, judge.outcomes(&batch));
        assert_eq!(fallen, judge.outcomes(&failing));
        assert!(fallen[0].contains(&Outcome::Error) && !fallen[2].contains(&Outcome::Error));
    }
}
