//! Expectations: one pass that judges every row by every rule and sends it where the verdicts say.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, ListBuilder, RecordBatch, StringBuilder};
use arrow::datatypes::{Field, SchemaRef};
use arrow::error::ArrowError;
use silverflow_operators::Epoch;

use super::batch::{Batch, relabel};
use super::eval::{Outcome, evaluate, judge, outcomes, row_json};
use super::fault::{RowFault, SHOWN_ROWS};
use super::metrics::Tally;
use crate::error::Fault;
use crate::pipeline::Action;
use crate::plan::{Rule, Together};

/// Judges the rows of one dataset.
#[derive(Clone)]
pub struct Judge {
    /// Index of the dataset in the plan.
    pub dataset: usize,
    /// Its name for reports.
    pub label: String,
    /// The rules.
    pub rules: Arc<[Rule]>,
    /// Their conditions, where several of them compute the same.
    pub together: Option<Together>,
    /// Columns of the dataset's edge, the wall last if it carries one.
    pub schema: SchemaRef,
    /// Columns of the quarantine's edge: those of the table, then the wall if the dataset carries one.
    pub quarantine: Option<SchemaRef>,
    /// Rows carry the wall.
    pub wall: bool,
    /// Rows carry the moment at which they stand, which goes no further.
    pub now: bool,
    /// DROP is for rows that arrive: at a replay point nothing else keeps the row, so a rule that is added later takes none
    /// of those away that are stored already.
    pub drop_is_final: bool,
    /// Rows of epochs up to this one were judged by an earlier run.
    pub stored_through: Epoch,
    /// Where to count.
    pub tally: Tally,
}

/// Where the rows of a batch go.
pub struct Judged {
    /// To the dataset.
    pub kept: Batch,
    /// Which rows are not left out: those, and pairs of which nothing changes.
    pub keep: BooleanArray,
    /// To the quarantine, with the names of the violated rules.
    pub quarantined: Option<Batch>,
    /// Violations of rules with the action FAIL.
    pub faults: Vec<Box<RowFault>>,
}

/// Why a row is in quarantine for another reason than a rule.
pub struct Reason<'a> {
    /// Name in `_dq_failed`.
    pub name: &'a str,
    /// The rows, by index.
    pub rows: &'a BooleanArray,
}

impl Judge {
    /// Judges a batch. FAIL comes before QUARANTINE, QUARANTINE before DROP, DROP before WARN. A row that is taken back is
    /// judged as it was when it came, and never fails the epoch. Nor does one of which the clock has changed nothing else.
    pub fn judge(&self, batch: Batch) -> Result<Judged, ArrowError> {
        let rows = batch.rows.num_rows();
        let coming = batch.coming();
        if self.rules.is_empty() || rows == 0 {
            self.tally.count(batch.epoch, self.dataset, |c| {
                c.yielded += coming;
                c.kept += coming;
            });
            let keep = BooleanArray::from(vec![true; rows]);
            return Ok(Judged { kept: self.visible(batch)?, keep, quarantined: None, faults: Vec::new() });
        }
        let outcomes = self.outcomes(&batch.rows);
        let changes = self.changes(&batch, &outcomes);
        let stored = batch.epoch <= self.stored_through;
        let mut faults = Vec::new();
        for (rule, outcomes) in self.rules.iter().zip(&outcomes) {
            // What was stored has passed, whatever the clock has come to since.
            if rule.action == Action::Fail && !rule.constraint && !(stored && rule.live) {
                faults.extend(self.fault(rule, outcomes, &batch, &changes));
            }
        }
        let verdict = |index: usize| {
            self.rules
                .iter()
                .zip(&outcomes)
                .filter(|(_, o)| o.get(index) != Some(&Outcome::True))
                .map(|(r, _)| r.action)
                .filter(|a| *a != Action::Fail && !(stored && self.drop_is_final && *a == Action::Drop))
                .max()
        };
        let verdicts: Vec<Option<Action>> = (0..rows).map(verdict).collect();
        let is = |action: Action| {
            let chosen = verdicts.iter().zip(changes.iter()).map(|(v, c)| Some(*v == Some(action) && c == Some(true)));
            chosen.collect::<BooleanArray>()
        };
        let quarantine = is(Action::Quarantine);
        let drop = is(Action::Drop);
        let keep: BooleanArray =
            verdicts.iter().map(|v| Some(!matches!(v, Some(Action::Quarantine | Action::Drop)))).collect();
        let written = arrow::compute::and(&keep, &changes)?;
        for (rule, outcomes) in self.rules.iter().zip(&outcomes).filter(|(rule, _)| rule.constraint) {
            faults.extend(self.fault(rule, outcomes, &batch, &written));
        }
        let kept = self.visible(batch.filter(&written)?)?;
        let quarantined = if quarantine.true_count() > 0 {
            let failed = self.failed(&outcomes, &quarantine);
            Some(self.quarantine(&batch.filter(&quarantine)?, failed)?)
        } else {
            None
        };
        let dropped = batch.filter(&drop)?.coming();
        let coming = if batch.pairs { batch.filter(&changes)?.coming() } else { coming };
        self.tally.count(batch.epoch, self.dataset, |c| {
            c.yielded += coming;
            c.kept += kept.coming();
            c.dropped += if drop.true_count() > 0 { dropped } else { 0 };
            if let Some(quarantined) = &quarantined {
                c.quarantined += quarantined.coming();
                c.withdrawn += quarantined.going();
            }
            for (index, outcomes) in outcomes.iter().enumerate() {
                let counts = c.rule(index);
                let come = outcomes.iter().zip(batch.each_diff()).zip(changes.iter());
                for ((outcome, diff), _) in come.filter(|((_, d), c)| *d > 0 && *c == Some(true)) {
                    match outcome {
                        Outcome::True => counts.passed += diff,
                        Outcome::False => counts.failed += diff,
                        Outcome::Null => {
                            counts.failed += diff;
                            counts.null += diff;
                        }
                        Outcome::Error => {
                            counts.failed += diff;
                            counts.error += diff;
                        }
                    }
                }
            }
        });
        Ok(Judged { kept, keep, quarantined, faults })
    }

    /// The outcomes of each rule. Where something fails, the rules that need it are judged by themselves.
    pub(super) fn outcomes(&self, rows: &RecordBatch) -> Vec<Vec<Outcome>> {
        let prepared = self.together.as_ref().and_then(|together| {
            let mut columns = rows.columns().to_vec();
            for common in &together.common {
                columns.push(evaluate(common, rows).ok()?);
            }
            Some((relabel(&together.schema, columns, rows.num_rows()).ok()?, &together.conditions))
        });
        let Some((prepared, conditions)) = prepared else {
            return self.rules.iter().map(|rule| judge(&rule.condition, rows)).collect();
        };
        let each = self.rules.iter().zip(conditions);
        each.map(|(rule, condition)| match evaluate(condition, &prepared) {
            Ok(values) => outcomes(&values),
            Err(_) => judge(&rule.condition, rows),
        })
        .collect()
    }

    /// Quarantines rows for a reason that is no rule of the user's.
    pub fn quarantine_for(&self, batch: &Batch, reasons: &[Reason<'_>]) -> Result<Batch, ArrowError> {
        let mut names = ListBuilder::new(StringBuilder::new()).with_field(Field::new(
            "element",
            arrow::datatypes::DataType::Utf8,
            true,
        ));
        for index in 0..batch.rows.num_rows() {
            for reason in reasons {
                if reason.rows.value(index) {
                    names.values().append_value(reason.name);
                }
            }
            names.append(true);
        }
        let coming = batch.coming();
        self.tally.count(batch.epoch, self.dataset, |c| {
            c.yielded += coming;
            c.quarantined += coming;
            c.withdrawn += batch.going();
        });
        self.quarantine(batch, Arc::new(names.finish()))
    }

    /// Which rows something changes of: of a pair nothing does if both are judged alike. FAIL keeps rows out, so that it has
    /// no part in it.
    fn changes(&self, batch: &Batch, outcomes: &[Vec<Outcome>]) -> BooleanArray {
        if !batch.pairs {
            return BooleanArray::from(vec![true; batch.rows.num_rows()]);
        }
        let judged = |rule: &Rule, outcomes: &[Outcome], index: usize| {
            rule.action == Action::Fail || outcomes.get(index) == Some(&Outcome::True)
        };
        let pairs = (0..batch.rows.num_rows()).map(|index| index - index % 2);
        let differs = pairs.map(|first| {
            let both = |(rule, o): (&Rule, &Vec<Outcome>)| judged(rule, o, first) != judged(rule, o, first + 1);
            Some(self.rules.iter().zip(outcomes).any(both))
        });
        differs.collect()
    }

    /// The rows as the dataset hands them on.
    fn visible(&self, batch: Batch) -> Result<Batch, ArrowError> {
        let mut batch = batch;
        batch.pairs = false;
        if !self.now {
            return Ok(batch);
        }
        let width = batch.rows.num_columns().saturating_sub(1);
        let rows = batch.rows.project(&(0..width).collect::<Vec<_>>())?;
        Ok(batch.with_rows(rows))
    }

    fn failed(&self, outcomes: &[Vec<Outcome>], chosen: &BooleanArray) -> ArrayRef {
        let mut names = ListBuilder::new(StringBuilder::new()).with_field(Field::new(
            "element",
            arrow::datatypes::DataType::Utf8,
            true,
        ));
        for (index, _) in chosen.iter().enumerate().filter(|(_, c)| *c == Some(true)) {
            for (rule, outcomes) in self.rules.iter().zip(outcomes).filter(|(rule, _)| rule.action != Action::Fail) {
                if outcomes.get(index) != Some(&Outcome::True) {
                    names.values().append_value(&rule.name);
                }
            }
            names.append(true);
        }
        Arc::new(names.finish())
    }

    fn quarantine(&self, batch: &Batch, failed: ArrayRef) -> Result<Batch, ArrowError> {
        let Some(schema) = &self.quarantine else {
            return Err(ArrowError::SchemaError(format!("{} has no quarantine", self.label)));
        };
        let batch = self.visible(batch.clone())?;
        let mut columns: Vec<ArrayRef> = batch.rows.columns().to_vec();
        let at = if self.wall { columns.len().saturating_sub(1) } else { columns.len() };
        columns.insert(at, failed);
        Ok(batch.with_rows(relabel(schema, columns, batch.rows.num_rows())?))
    }

    fn fault(&self, rule: &Rule, outcomes: &[Outcome], batch: &Batch, of: &BooleanArray) -> Option<Box<RowFault>> {
        let violating: Vec<usize> = outcomes
            .iter()
            .enumerate()
            .filter(|(i, o)| **o != Outcome::True && batch.diff(*i) > 0 && of.value(*i))
            .map(|(i, _)| i)
            .collect();
        if violating.is_empty() {
            return None;
        }
        Some(Box::new(RowFault {
            epoch: batch.epoch,
            dataset: self.label.clone(),
            flow: None,
            rule: Some(rule.name.clone()),
            code: "EXPECTATION_VIOLATED",
            fault: Fault::Data,
            message: format!("rows violate the expectation {} ({}), whose action is FAIL", rule.name, rule.text),
            count: violating.len() as u64,
            rows: violating.iter().take(SHOWN_ROWS).map(|i| row_json(&batch.rows, *i)).collect(),
        }))
    }

    /// A fault of ours.
    pub fn broken(&self, epoch: Epoch, error: &ArrowError) -> Box<RowFault> {
        internal(epoch, &self.label, error.to_string())
    }
}

/// A fault that data should not be able to cause.
pub fn internal(epoch: Epoch, dataset: &str, message: String) -> Box<RowFault> {
    Box::new(RowFault {
        epoch,
        dataset: dataset.to_owned(),
        flow: None,
        rule: None,
        code: "INTERNAL",
        fault: Fault::Internal,
        message,
        count: 0,
        rows: Vec::new(),
    })
}

/// A row on which an expression of a definition fails.
pub fn bad_row(
    epoch: Epoch,
    dataset: &str,
    flow: Option<&str>,
    message: String,
    rows: &RecordBatch,
    index: usize,
) -> Box<RowFault> {
    Box::new(RowFault {
        epoch,
        dataset: dataset.to_owned(),
        flow: flow.map(str::to_owned),
        rule: None,
        code: "ROW_EXPRESSION_FAILED",
        fault: Fault::User,
        message: format!("an expression fails on a row: {message}"),
        count: 1,
        rows: vec![row_json(rows, index)],
    })
}
