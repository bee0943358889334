//! At which moments a condition on the clock changes its truth: comparisons of a function of the clock with a function of
//! the row are turned around, so that from a row follow the moments at which they change.

use std::sync::Arc;

use arrow::array::timezone::Tz;
use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::{BinaryExpr, Expr, ExprSchemable, Operator, lit};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::scalar::ScalarValue;

use super::chain::{Finder, comparable, interval, per_second, shift};
use super::clock::{bind_clock, is_reading, reads_clock};
use super::functions::Zone;
use super::readings::Readings;
use super::schema::NOW_COLUMN;

/// A comparison of a function of the clock with a value of the row. `E` is an expression over the row.
#[derive(Clone, Debug)]
pub struct Boundary<E = Arc<dyn PhysicalExpr>> {
    /// The value of the row: a date, a timestamp, a duration or an integer, which counts the least steps of its type.
    pub value: E,
    /// The truth changes when the function of the clock reaches the value.
    pub at: bool,
    /// The truth changes when the function of the clock goes beyond the value.
    pub beyond: bool,
    /// The function of the clock, step by step from the clock's microseconds to the type of the value.
    pub steps: Vec<ClockStep<E>>,
}

impl<E> Boundary<E> {
    /// The same over other expressions.
    pub(super) fn bind<F, Error>(
        &self,
        f: impl Fn(&E) -> std::result::Result<F, Error>,
    ) -> std::result::Result<Boundary<F>, Error> {
        let steps = self.steps.iter().map(|step| {
            Ok(match step {
                ClockStep::Local { zone, second } => ClockStep::Local { zone: *zone, second: *second },
                ClockStep::Instant(zone) => ClockStep::Instant(zone.clone()),
                ClockStep::Floor(by) => ClockStep::Floor(*by),
                ClockStep::Scale(by) => ClockStep::Scale(*by),
                ClockStep::Divide(by) => ClockStep::Divide(*by),
                ClockStep::Shift(by) => ClockStep::Shift(*by),
                ClockStep::ShiftBy { by, minus } => ClockStep::ShiftBy { by: f(by)?, minus: *minus },
                ClockStep::Rest(of) => ClockStep::Rest(f(of)?),
                ClockStep::Months { months, day } => ClockStep::Months { months: *months, day: *day },
                ClockStep::MonthsSince { from, day } => ClockStep::MonthsSince { from: f(from)?, day: *day },
                ClockStep::Truncate { to, day } => ClockStep::Truncate { to: *to, day: *day },
            })
        });
        Ok(Boundary {
            value: f(&self.value)?,
            at: self.at,
            beyond: self.beyond,
            steps: steps.collect::<std::result::Result<_, Error>>()?,
        })
    }
}

/// One step of a function of the clock, from a whole number to a whole number.
#[derive(Clone, Debug)]
pub enum ClockStep<E = Arc<dyn PhysicalExpr>> {
    /// From time since 1970 to what clocks in a time zone show.
    Local {
        /// The zone.
        zone: Tz,
        /// What makes a second.
        second: i64,
    },
    /// From what clocks in a time zone show to microseconds since 1970.
    Instant(Zone),
    /// Divided by a positive number, and rounded down.
    Floor(i64),
    /// Divided by a positive number, and rounded towards zero.
    Divide(i64),
    /// Times a positive number.
    Scale(i64),
    /// Plus a number.
    Shift(i64),
    /// Plus or minus a value of the row.
    ShiftBy {
        /// The value.
        by: E,
        /// Minus.
        minus: bool,
    },
    /// A value of the row minus it.
    Rest(E),
    /// Months later, on the same day of the month or the last one; before 1970 counts as any other date.
    Months {
        /// How many.
        months: i32,
        /// What makes a day.
        day: i64,
    },
    /// Whole months since a value of the row, towards zero: a month is over on the same day, at the same time of the day.
    MonthsSince {
        /// The value.
        from: E,
        /// What makes a day.
        day: i64,
    },
    /// The start of the stretch of time in which it lies.
    Truncate {
        /// The stretch.
        to: Span,
        /// What makes a day.
        day: i64,
    },
}

/// A stretch of the calendar or the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// Part of a day: that many of them.
    PartOfDay(i64),
    /// A day.
    Day,
    /// From Monday on.
    Week,
    /// That many months, from January on.
    Months(i64),
}

/// An expression whose conditions on the clock are read ever anew.
pub(super) struct Live {
    /// The expression; conditions read the column [`NOW_COLUMN`], and what is left of the clock is read at arrival.
    pub(super) expr: Expr,
    /// Where the conditions change.
    pub(super) boundaries: Vec<Boundary<Expr>>,
    /// Something is left that reads the clock at arrival.
    pub(super) at_arrival: bool,
    /// A condition is left that reads a column which holds what the clock showed at arrival.
    pub(super) by_column: bool,
    /// It is a value of the clock, which decides nothing.
    value: bool,
}

impl Live {
    /// Whether some condition is evaluated once although it might change.
    pub(super) fn is_partial(&self) -> bool {
        self.by_column || self.at_arrival && !self.value
    }
}

/// Finds the conditions in `expr`, over columns `schema`, whose changes can be foretold. With `once` they are read at
/// arrival all the same. `readings` tells which of the columns hand on what the clock shows.
pub(super) fn live(expr: &Expr, schema: &DFSchema, zone: &Arc<str>, once: bool, readings: &Readings) -> Result<Live> {
    let finder = Finder { schema, zone };
    let mut boundaries = Vec::new();
    let found = expr.clone().transform_down(|e| {
        // The body of a lambda is over more than the row.
        let lambda = matches!(e, Expr::Lambda(_) | Expr::HigherOrderFunction(_));
        let by_column = readings.touch(&e, schema);
        if lambda || !reads_clock(&e) && !by_column {
            return Ok(Transformed::new(e, false, TreeNodeRecursion::Jump));
        }
        let put = if by_column { &readings.put_into(&e, schema)? } else { &e };
        match finder.condition(put, &mut boundaries) {
            // The columns have what is read at arrival.
            Some(_) if once && by_column => Ok(Transformed::new(e, false, TreeNodeRecursion::Jump)),
            Some(condition) => {
                let bound = if once { condition } else { bind_clock(condition, NOW_COLUMN, zone)? };
                Ok(Transformed::new(bound, true, TreeNodeRecursion::Jump))
            }
            None => Ok(Transformed::no(e)),
        }
    })?;
    if once {
        boundaries.clear();
    }
    let at_arrival = reads_clock(&found.data);
    let by_column = readings.decide(&found.data, schema);
    let value = at_arrival
        && (is_reading(&found.data) || found.data.column_refs().is_empty() && finder.chain(&found.data).is_some());
    Ok(Live { expr: found.data, boundaries, at_arrival, by_column, value })
}

impl Finder<'_> {
    /// The condition, perhaps written otherwise, if its changes can be foretold; they go to `boundaries`.
    fn condition(&self, expr: &Expr, boundaries: &mut Vec<Boundary<Expr>>) -> Option<Expr> {
        let before = boundaries.len();
        let found = match expr {
            Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
                self.comparison(left, *op, right, boundaries).map(|written| written.unwrap_or_else(|| expr.clone()))
            }
            Expr::Between(between) => self
                .comparison(&between.expr, Operator::GtEq, &between.low, boundaries)
                .and_then(|_| self.comparison(&between.expr, Operator::LtEq, &between.high, boundaries))
                .map(|_| expr.clone()),
            Expr::InList(list) => list
                .list
                .iter()
                .try_for_each(|item| self.comparison(&list.expr, Operator::Eq, item, boundaries).map(drop))
                .map(|()| expr.clone()),
            _ => None,
        };
        if found.is_none() {
            boundaries.truncate(before);
        }
        found
    }

    /// The outer option is for whether its changes can be foretold, the inner one for another way to write it.
    fn comparison(
        &self,
        left: &Expr,
        op: Operator,
        right: &Expr,
        boundaries: &mut Vec<Boundary<Expr>>,
    ) -> Option<Option<Expr>> {
        let (clock, op, value) = match (reads_clock(left), reads_clock(right)) {
            (false, false) => return Some(None),
            (true, false) => (left, op, right),
            (false, true) => (right, op.swap()?, left),
            (true, true) => return None,
        };
        let (at, beyond) = match op {
            Operator::Lt | Operator::GtEq => (true, false),
            Operator::LtEq | Operator::Gt => (false, true),
            Operator::Eq | Operator::NotEq | Operator::IsDistinctFrom | Operator::IsNotDistinctFrom => (true, true),
            _ => return None,
        };
        if let Some((clock, value)) = self.elapsed(clock, value) {
            let (steps, _) = self.chain(&clock)?;
            boundaries.push(Boundary { value: value.clone(), at, beyond, steps });
            return Some(Some(Expr::BinaryExpr(BinaryExpr::new(Box::new(clock), op, Box::new(value)))));
        }
        let (steps, data_type) = self.chain(clock)?;
        if !comparable(&data_type, &value.get_type(self.schema).ok()?) {
            return None;
        }
        boundaries.push(Boundary { value: value.clone(), at, beyond, steps });
        Some(None)
    }

    /// `current_timestamp() - at > INTERVAL …` compares durations: as intervals, a day would be more than any hours.
    fn elapsed(&self, clock: &Expr, value: &Expr) -> Option<(Expr, Expr)> {
        let Expr::Cast(cast) = clock else { return None };
        let DataType::Duration(unit) = cast.expr.get_type(self.schema).ok()? else { return None };
        let (months, days, nanos) = interval(value)?;
        let length = shift(months, days, nanos, TimeUnit::Nanosecond)?;
        let least = per_second(TimeUnit::Nanosecond) / per_second(unit);
        if months != 0 || length % least != 0 {
            return None;
        }
        let length = length / least;
        let literal = match unit {
            TimeUnit::Second => ScalarValue::DurationSecond(Some(length)),
            TimeUnit::Millisecond => ScalarValue::DurationMillisecond(Some(length)),
            TimeUnit::Microsecond => ScalarValue::DurationMicrosecond(Some(length)),
            TimeUnit::Nanosecond => ScalarValue::DurationNanosecond(Some(length)),
        };
        Some((cast.expr.as_ref().clone(), lit(literal)))
    }
}
