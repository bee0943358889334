//! At which moments a condition on the clock changes its truth: comparisons of a function of the clock with a function of
//! the row are turned around, so that from a row follow the moments at which they change.

use std::sync::Arc;

use arrow::array::timezone::Tz;
use arrow::datatypes::{DataType, IntervalMonthDayNanoType, TimeUnit};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, Result};
use datafusion::logical_expr::{BinaryExpr, Cast, Expr, ExprSchemable, Operator, lit};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::scalar::ScalarValue;

use super::clock::{Reading, bind_clock, is_reading, reading, reads_clock};
use super::functions::Zone;
use super::schema::{NOW_COLUMN, wall_type};
use super::spark::cast_of;

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
                ClockStep::Shift(by) => ClockStep::Shift(*by),
                ClockStep::ShiftBy { by, minus } => ClockStep::ShiftBy { by: f(by)?, minus: *minus },
                ClockStep::Rest(of) => ClockStep::Rest(f(of)?),
                ClockStep::Months { months, day } => ClockStep::Months { months: *months, day: *day },
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
}

impl Live {
    /// Whether some condition is evaluated once although it might change.
    pub(super) fn is_partial(&self) -> bool {
        self.at_arrival && !is_reading(&self.expr)
    }
}

/// Finds the conditions in `expr`, over columns `schema`, whose changes can be foretold. With `once` they are read at
/// arrival all the same.
pub(super) fn live(expr: &Expr, schema: &DFSchema, zone: &Arc<str>, once: bool) -> Result<Live> {
    let finder = Finder { schema, zone };
    let mut boundaries = Vec::new();
    let found = expr.clone().transform_down(|e| {
        // The body of a lambda is over more than the row.
        if !reads_clock(&e) || matches!(e, Expr::Lambda(_) | Expr::HigherOrderFunction(_)) {
            return Ok(Transformed::new(e, false, TreeNodeRecursion::Jump));
        }
        match finder.condition(&e, &mut boundaries) {
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
    Ok(Live { expr: found.data, boundaries, at_arrival })
}

struct Finder<'a> {
    schema: &'a DFSchema,
    zone: &'a Arc<str>,
}

type Chain = (Vec<ClockStep<Expr>>, DataType);

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

    fn zone(&self) -> Option<Vec<ClockStep<Expr>>> {
        local(self.zone, TimeUnit::Microsecond)
    }

    /// The steps from the clock to `expr`, and its type.
    fn chain(&self, expr: &Expr) -> Option<Chain> {
        if let Some(reading) = reading(expr) {
            return match reading {
                Reading::Timestamp => Some((Vec::new(), wall_type())),
                Reading::Local => Some((self.zone()?, DataType::Timestamp(TimeUnit::Microsecond, None))),
                Reading::Date => {
                    let mut steps = self.zone()?;
                    steps.push(ClockStep::Floor(per_day(TimeUnit::Microsecond)));
                    Some((steps, DataType::Date32))
                }
            };
        }
        match expr {
            Expr::Alias(alias) => self.chain(&alias.expr),
            Expr::Cast(Cast { expr, field }) => {
                let (mut steps, from) = self.chain(expr)?;
                cast(&from, field.data_type(), &mut steps)?;
                Some((steps, field.data_type().clone()))
            }
            Expr::BinaryExpr(binary) => self.arithmetic(binary, expr.get_type(self.schema).ok()?),
            Expr::ScalarFunction(call) => {
                let result = expr.get_type(self.schema).ok()?;
                if let Some(inner) = cast_of(expr) {
                    let (mut steps, from) = self.chain(inner)?;
                    self.cast(&from, &result, &mut steps)?;
                    return Some((steps, result));
                }
                match (call.func.name(), call.args.as_slice()) {
                    (name @ ("date_add" | "date_sub"), [date, days]) if !reads_clock(days) => {
                        let (mut steps, from) = self.chain(date)?;
                        let whole = days.get_type(self.schema).ok()?.is_integer();
                        if from != DataType::Date32 || !whole {
                            return None;
                        }
                        steps.push(ClockStep::ShiftBy { by: days.clone(), minus: name == "date_sub" });
                        Some((steps, result))
                    }
                    ("add_months", [date, months]) => {
                        let (mut steps, from) = self.chain(date)?;
                        let Expr::Literal(months, _) = uncast(months) else { return None };
                        let ScalarValue::Int32(Some(months)) = months.cast_to(&DataType::Int32).ok()? else {
                            return None;
                        };
                        if from != DataType::Date32 || result != DataType::Date32 {
                            return None;
                        }
                        steps.push(ClockStep::Months { months, day: 1 });
                        Some((steps, result))
                    }
                    ("to_date", [value]) => {
                        let (mut steps, from) = self.chain(value)?;
                        self.cast(&from, &result, &mut steps)?;
                        Some((steps, result))
                    }
                    (name @ ("add" | "subtract" | "datediff"), [left, right]) => {
                        let op = if name == "add" { Operator::Plus } else { Operator::Minus };
                        self.arithmetic(&BinaryExpr::new(Box::new(left.clone()), op, Box::new(right.clone())), result)
                    }
                    ("to_local_time", [value]) => {
                        let (mut steps, from) = self.chain(value)?;
                        let DataType::Timestamp(unit, zone) = from else { return None };
                        if let Some(zone) = zone {
                            steps.extend(local(&zone, unit)?);
                        }
                        Some((steps, result))
                    }
                    ("date_trunc", [unit, value]) => {
                        let (mut steps, from) = self.chain(value)?;
                        let to = span(unit)?;
                        let DataType::Timestamp(unit, zone) = &from else { return None };
                        if !is_plain(zone.as_ref()) || from != result {
                            return None;
                        }
                        let truncate = ClockStep::Truncate { to, day: per_day(*unit) };
                        match zone {
                            Some(_) if !is_utc(self.zone) && *unit == TimeUnit::Microsecond => {
                                steps.extend(self.zone()?);
                                steps.extend([truncate, ClockStep::Instant(Zone::parse(self.zone)?)]);
                            }
                            Some(_) if !is_utc(self.zone) => return None,
                            _ => steps.push(truncate),
                        }
                        Some((steps, result))
                    }
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// What a cast of ours does: it reads local time in the session's zone.
    fn cast(&self, from: &DataType, to: &DataType, steps: &mut Vec<ClockStep<Expr>>) -> Option<()> {
        match (from, to) {
            (DataType::Timestamp(unit, Some(_)), DataType::Date32 | DataType::Timestamp(_, None)) => {
                steps.extend(local(self.zone, *unit)?);
                cast(&DataType::Timestamp(*unit, None), to, steps)
            }
            (DataType::Date32 | DataType::Timestamp(_, None), DataType::Timestamp(TimeUnit::Microsecond, Some(_)))
                if !is_utc(self.zone) =>
            {
                cast(from, &DataType::Timestamp(TimeUnit::Microsecond, None), steps)?;
                steps.push(ClockStep::Instant(Zone::parse(self.zone)?));
                Some(())
            }
            _ => cast(from, to, steps),
        }
    }

    /// Sums and differences.
    fn arithmetic(&self, binary: &BinaryExpr, result: DataType) -> Option<Chain> {
        let minus = match binary.op {
            Operator::Plus => false,
            Operator::Minus => true,
            _ => return None,
        };
        let (clock, other, first) = match (reads_clock(&binary.left), reads_clock(&binary.right)) {
            (true, false) => (&binary.left, &binary.right, true),
            (false, true) => (&binary.right, &binary.left, false),
            _ => return None,
        };
        let (mut steps, from) = self.chain(clock)?;
        if let Some((months, days, nanos)) = interval(other) {
            if minus && !first {
                return None;
            }
            let sign = if minus { -1 } else { 1 };
            let (day, shift) = match &from {
                DataType::Date32 => {
                    let shift = shift(months, days, nanos, TimeUnit::Nanosecond)?;
                    let day = per_day(TimeUnit::Nanosecond);
                    (1, (shift % day == 0).then_some(shift / day)?)
                }
                DataType::Timestamp(unit, zone) if is_plain(zone.as_ref()) => {
                    (per_day(*unit), shift(months, days, nanos, *unit)?)
                }
                _ => return None,
            };
            if result != from {
                return None;
            }
            if months != 0 {
                steps.push(ClockStep::Months { months: months.checked_mul(sign)?, day });
            }
            if shift != 0 {
                steps.push(ClockStep::Shift(shift.checked_mul(i64::from(sign))?));
            }
            return Some((steps, result));
        }
        let counted = |t: &DataType| t.is_integer() || matches!(t, DataType::Duration(_));
        let value_type = other.get_type(self.schema).ok()?;
        let difference = minus && comparable(&from, &value_type) && counted(&result);
        let same_unit = match (&from, &result) {
            (DataType::Timestamp(unit, _), DataType::Duration(of)) => unit == of,
            (DataType::Timestamp(..), _) => false,
            _ => true,
        };
        let sum = from.is_integer() && value_type.is_integer();
        if !(difference && same_unit || sum) {
            return None;
        }
        steps.push(if minus && !first {
            ClockStep::Rest(other.as_ref().clone())
        } else {
            ClockStep::ShiftBy { by: other.as_ref().clone(), minus }
        });
        Some((steps, result))
    }
}

/// Whether values of the two types are compared by the whole numbers that they are.
fn comparable(a: &DataType, b: &DataType) -> bool {
    match (a, b) {
        (DataType::Timestamp(a, _), DataType::Timestamp(b, _)) | (DataType::Duration(a), DataType::Duration(b)) => {
            a == b
        }
        (DataType::Date32, DataType::Date32) => true,
        (a, b) => a.is_signed_integer() && b.is_signed_integer(),
    }
}

fn uncast(expr: &Expr) -> &Expr {
    match expr {
        Expr::Cast(cast) => uncast(&cast.expr),
        other => other,
    }
}

/// Months, days and nanoseconds of a constant interval.
fn interval(expr: &Expr) -> Option<(i32, i32, i64)> {
    let Expr::Literal(value, _) = expr else { return None };
    match value {
        ScalarValue::IntervalMonthDayNano(Some(v)) => Some(IntervalMonthDayNanoType::to_parts(*v)),
        ScalarValue::IntervalYearMonth(Some(months)) => Some((*months, 0, 0)),
        ScalarValue::IntervalDayTime(Some(v)) => Some((0, v.days, i64::from(v.milliseconds).checked_mul(1_000_000)?)),
        _ => None,
    }
}

/// Days and nanoseconds in a unit, if it can hold them.
fn shift(_: i32, days: i32, nanos: i64, unit: TimeUnit) -> Option<i64> {
    let least = per_second(TimeUnit::Nanosecond) / per_second(unit);
    if nanos % least != 0 {
        return None;
    }
    i64::from(days).checked_mul(per_day(unit))?.checked_add(nanos / least)
}

fn per_second(unit: TimeUnit) -> i64 {
    match unit {
        TimeUnit::Second => 1,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => 1_000_000,
        TimeUnit::Nanosecond => 1_000_000_000,
    }
}

fn per_day(unit: TimeUnit) -> i64 {
    86_400 * per_second(unit)
}

fn is_utc(zone: &str) -> bool {
    ["UTC", "+00:00", "Z", "Etc/UTC"].contains(&zone)
}

/// Whether days begin where those of UTC begin.
fn is_plain(zone: Option<&Arc<str>>) -> bool {
    zone.is_none_or(|zone| is_utc(zone))
}

fn local(zone: &str, unit: TimeUnit) -> Option<Vec<ClockStep<Expr>>> {
    if is_utc(zone) {
        return Some(Vec::new());
    }
    Some(vec![ClockStep::Local { zone: zone.parse().ok()?, second: per_second(unit) }])
}

/// What a cast does to the whole numbers. Casts that may fail or that keep no order are not known.
fn cast(from: &DataType, to: &DataType, steps: &mut Vec<ClockStep<Expr>>) -> Option<()> {
    let rescale = |from: TimeUnit, to: TimeUnit, steps: &mut Vec<ClockStep<Expr>>| {
        let (from, to) = (per_second(from), per_second(to));
        if to > from {
            steps.push(ClockStep::Scale(to / from));
        } else if from > to {
            steps.push(ClockStep::Floor(from / to));
        }
    };
    match (from, to) {
        (DataType::Timestamp(from, zone), DataType::Timestamp(to, target)) => {
            if zone.is_none() && !is_plain(target.as_ref()) {
                return None;
            }
            rescale(*from, *to, steps);
        }
        (DataType::Timestamp(unit, zone), DataType::Date32) => {
            if let Some(zone) = zone {
                steps.extend(local(zone, *unit)?);
            }
            steps.push(ClockStep::Floor(per_day(*unit)));
        }
        (DataType::Date32, DataType::Timestamp(unit, zone)) if is_plain(zone.as_ref()) => {
            steps.push(ClockStep::Scale(per_day(*unit)));
        }
        (DataType::Duration(from), DataType::Duration(to)) => rescale(*from, *to, steps),
        (a, b) if a == b || a.is_signed_integer() && b.is_signed_integer() => {}
        _ => return None,
    }
    Some(())
}

fn span(unit: &Expr) -> Option<Span> {
    let Expr::Literal(value, _) = uncast(unit) else { return None };
    let name = value.try_as_str().flatten()?.to_lowercase();
    Some(match name.as_str() {
        "second" => Span::PartOfDay(86_400),
        "minute" => Span::PartOfDay(1_440),
        "hour" => Span::PartOfDay(24),
        "day" | "dd" => Span::Day,
        "week" => Span::Week,
        "month" | "mon" | "mm" => Span::Months(1),
        "quarter" => Span::Months(3),
        "year" | "yyyy" | "yy" => Span::Months(12),
        _ => return None,
    })
}
