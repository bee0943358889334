//! Functions of the clock, step by step from its microseconds to a value that is compared.

use std::sync::Arc;

use arrow::datatypes::{DataType, IntervalMonthDayNanoType, TimeUnit};
use datafusion::common::DFSchema;
use datafusion::functions::datetime;
use datafusion::logical_expr::{BinaryExpr, Cast, Expr, ExprSchemable, Operator, lit};
use datafusion::scalar::ScalarValue;

use super::clock::{Reading, reading, reads_clock};
use super::functions::Zone;
use super::moments::{ClockStep, Span};
use super::schema::wall_type;
use super::spark::cast_of;

/// Finds the steps, over columns `schema`, in the session's time zone.
pub(super) struct Finder<'a> {
    pub(super) schema: &'a DFSchema,
    pub(super) zone: &'a Arc<str>,
}

/// Steps, and the type of the value to which they lead.
pub(super) type Chain = (Vec<ClockStep<Expr>>, DataType);

impl Finder<'_> {
    /// From an instant to what clocks in the session's zone show.
    fn zone(&self) -> Option<Vec<ClockStep<Expr>>> {
        local(self.zone, TimeUnit::Microsecond)
    }

    /// From what clocks in the session's zone show to an instant.
    fn instant(&self) -> Option<Vec<ClockStep<Expr>>> {
        if is_utc(self.zone) {
            return Some(Vec::new());
        }
        Some(vec![ClockStep::Instant(Zone::parse(self.zone)?)])
    }

    /// The steps from the clock to `expr`, and its type.
    pub(super) fn chain(&self, expr: &Expr) -> Option<Chain> {
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
                let steps = self.call(call.func.name(), &call.args, &result)?;
                Some((steps, result))
            }
            _ => None,
        }
    }

    /// The steps from the clock to the value of a call.
    fn call(&self, name: &str, arguments: &[Expr], result: &DataType) -> Option<Vec<ClockStep<Expr>>> {
        match (name, arguments) {
            ("date_add" | "dateadd" | "date_sub", [date, days]) if !reads_clock(days) => {
                let (mut steps, from) = self.chain(date)?;
                let whole = days.get_type(self.schema).ok()?.is_integer();
                if from != DataType::Date32 || !whole {
                    return None;
                }
                steps.push(ClockStep::ShiftBy { by: days.clone(), minus: name == "date_sub" });
                Some(steps)
            }
            ("add_months", [date, months]) => {
                let (mut steps, from) = self.chain(date)?;
                if from != DataType::Date32 || *result != DataType::Date32 {
                    return None;
                }
                steps.push(ClockStep::Months { months: i32::try_from(whole(months)?).ok()?, day: 1 });
                Some(steps)
            }
            (
                "to_date" | "try_to_date" | "to_timestamp" | "try_to_timestamp" | "to_timestamp_ltz"
                | "to_timestamp_ntz",
                [value],
            ) => {
                let (mut steps, from) = self.chain(value)?;
                self.cast(&from, result, &mut steps)?;
                Some(steps)
            }
            ("add" | "subtract" | "datediff" | "date_diff", [left, right]) => {
                let op = if name == "add" { Operator::Plus } else { Operator::Minus };
                let binary = BinaryExpr::new(Box::new(left.clone()), op, Box::new(right.clone()));
                self.arithmetic(&binary, result.clone()).map(|(steps, _)| steps)
            }
            ("timestampadd", [unit, count, value]) => self.later(&text(unit)?, count, value),
            ("timestampdiff", [unit, from, to]) => self.between(&text(unit)?, from, to),
            ("plus_interval" | "minus_interval", [value, by]) => {
                let sign = if name == "minus_interval" { -1 } else { 1 };
                let (months, days, nanos) = interval(by)?;
                let days = i64::from(days).checked_mul(sign * per_day(TimeUnit::Microsecond))?;
                let (mut steps, from) = self.chain(value)?;
                if from != wall_type() || nanos % 1_000 != 0 {
                    return None;
                }
                steps.extend(self.zone()?);
                if months != 0 {
                    let months = i32::try_from(i64::from(months) * sign).ok()?;
                    steps.push(ClockStep::Months { months, day: per_day(TimeUnit::Microsecond) });
                }
                steps.push(ClockStep::Shift(days));
                steps.extend(self.instant()?);
                steps.push(ClockStep::Shift((nanos / 1_000).checked_mul(sign)?));
                Some(steps)
            }
            ("interval_micros", [value]) => {
                let (steps, from) = self.chain(value)?;
                (from == DataType::Duration(TimeUnit::Microsecond)).then_some(steps)
            }
            ("unix_date", [value]) => {
                let (steps, from) = self.chain(value)?;
                (from == DataType::Date32).then_some(steps)
            }
            ("unix_micros" | "unix_millis" | "unix_seconds", [value]) => {
                let (mut steps, from) = self.chain(value)?;
                match name {
                    _ if from != wall_type() => return None,
                    "unix_seconds" => steps.push(ClockStep::Floor(1_000_000)),
                    "unix_millis" => steps.push(ClockStep::Floor(1_000)),
                    _ => {}
                }
                Some(steps)
            }
            ("unix_timestamp" | "to_unix_timestamp", [value]) => {
                let (mut steps, from) = self.chain(value)?;
                self.cast(&from, &wall_type(), &mut steps)?;
                steps.push(ClockStep::Divide(1_000_000));
                Some(steps)
            }
            ("to_local_time", [value]) => {
                let (mut steps, from) = self.chain(value)?;
                let DataType::Timestamp(unit, zone) = from else { return None };
                if let Some(zone) = zone {
                    steps.extend(local(&zone, unit)?);
                }
                Some(steps)
            }
            ("trunc", [value, unit]) => {
                let (mut steps, from) = self.chain(value)?;
                let to = span(unit).filter(|to| matches!(to, Span::Week | Span::Months(_)))?;
                if from != DataType::Date32 {
                    return None;
                }
                steps.push(ClockStep::Truncate { to, day: 1 });
                Some(steps)
            }
            ("last_day", [value]) => {
                let (mut steps, from) = self.chain(value)?;
                if from != DataType::Date32 {
                    return None;
                }
                steps.push(ClockStep::Truncate { to: Span::Months(1), day: 1 });
                steps.push(ClockStep::Months { months: 1, day: 1 });
                steps.push(ClockStep::Shift(-1));
                Some(steps)
            }
            ("date_trunc", [unit, value]) => {
                let (mut steps, from) = self.chain(value)?;
                let to = span(unit)?;
                let DataType::Timestamp(unit, zone) = &from else { return None };
                if !is_plain(zone.as_ref()) || from != *result {
                    return None;
                }
                let truncate = ClockStep::Truncate { to, day: per_day(*unit) };
                match zone {
                    Some(_) if !is_utc(self.zone) && *unit == TimeUnit::Microsecond => {
                        steps.extend(self.zone()?);
                        steps.push(truncate);
                        steps.extend(self.instant()?);
                    }
                    Some(_) if !is_utc(self.zone) => return None,
                    _ => steps.push(truncate),
                }
                Some(steps)
            }
            _ => None,
        }
    }

    /// `timestampadd(unit, count, clock)`: units from a day on pass by local time.
    fn later(&self, unit: &str, count: &Expr, value: &Expr) -> Option<Vec<ClockStep<Expr>>> {
        if reads_clock(count) {
            return None;
        }
        let (mut steps, from) = self.chain(value)?;
        if from != wall_type() {
            return None;
        }
        let day = per_day(TimeUnit::Microsecond);
        let (length, by_local_time) = match exact(unit) {
            Some(length) => (length, false),
            None => match unit {
                "day" | "dayofyear" => (day, true),
                "week" => (7 * day, true),
                _ => {
                    let months = i32::try_from(months(unit)?.checked_mul(whole(count)?)?).ok()?;
                    steps.extend(self.zone()?);
                    steps.push(ClockStep::Months { months, day });
                    steps.extend(self.instant()?);
                    return Some(steps);
                }
            },
        };
        if by_local_time {
            steps.extend(self.zone()?);
        }
        steps.push(match whole(count) {
            Some(count) => ClockStep::Shift(count.checked_mul(length)?),
            None => {
                let count = Expr::Cast(Cast::new(Box::new(count.clone()), DataType::Int64));
                ClockStep::ShiftBy { by: count * lit(length), minus: false }
            }
        });
        if by_local_time {
            steps.extend(self.instant()?);
        }
        Some(steps)
    }

    /// `timestampdiff(unit, from, to)`: whole units, towards zero, and from a day on by local time.
    fn between(&self, unit: &str, from: &Expr, to: &Expr) -> Option<Vec<ClockStep<Expr>>> {
        let (clock, other, up) = match (reads_clock(from), reads_clock(to)) {
            (false, true) => (to, from, true),
            (true, false) => (from, to, false),
            _ => return None,
        };
        let (mut steps, clock_type) = self.chain(clock)?;
        if clock_type != wall_type() || other.get_type(self.schema).ok()? != wall_type() {
            return None;
        }
        let difference = |other: Expr| match up {
            true => ClockStep::ShiftBy { by: other, minus: true },
            false => ClockStep::Rest(other),
        };
        if let Some(length) = exact(unit) {
            steps.extend([difference(other.clone()), ClockStep::Divide(length)]);
            return Some(steps);
        }
        let shown = if is_utc(self.zone) {
            other.clone()
        } else {
            let zoned = DataType::Timestamp(TimeUnit::Microsecond, Some(Arc::clone(self.zone)));
            datetime::to_local_time().call(vec![Expr::Cast(Cast::new(Box::new(other.clone()), zoned))])
        };
        steps.extend(self.zone()?);
        let days = match unit {
            "day" => Some(1),
            "week" => Some(7),
            _ => None,
        };
        if let Some(days) = days {
            steps.extend([difference(shown), ClockStep::Divide(days * per_day(TimeUnit::Microsecond))]);
            return Some(steps);
        }
        steps.push(ClockStep::MonthsSince { from: shown, day: per_day(TimeUnit::Microsecond) });
        if !up {
            steps.push(ClockStep::Rest(lit(0_i64)));
        }
        steps.push(ClockStep::Divide(months(unit)?));
        Some(steps)
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
pub(super) fn comparable(a: &DataType, b: &DataType) -> bool {
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
pub(super) fn interval(expr: &Expr) -> Option<(i32, i32, i64)> {
    let Expr::Literal(value, _) = expr else { return None };
    match value {
        ScalarValue::IntervalMonthDayNano(Some(v)) => Some(IntervalMonthDayNanoType::to_parts(*v)),
        ScalarValue::IntervalYearMonth(Some(months)) => Some((*months, 0, 0)),
        ScalarValue::IntervalDayTime(Some(v)) => Some((0, v.days, i64::from(v.milliseconds).checked_mul(1_000_000)?)),
        _ => None,
    }
}

/// Days and nanoseconds in a unit, if it can hold them.
pub(super) fn shift(_: i32, days: i32, nanos: i64, unit: TimeUnit) -> Option<i64> {
    let least = per_second(TimeUnit::Nanosecond) / per_second(unit);
    if nanos % least != 0 {
        return None;
    }
    i64::from(days).checked_mul(per_day(unit))?.checked_add(nanos / least)
}

pub(super) fn per_second(unit: TimeUnit) -> i64 {
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

/// A constant text, in small letters.
fn text(expr: &Expr) -> Option<String> {
    let Expr::Literal(value, _) = uncast(expr) else { return None };
    Some(value.try_as_str().flatten()?.to_lowercase())
}

/// A constant whole number.
fn whole(expr: &Expr) -> Option<i64> {
    let Expr::Literal(value, _) = uncast(expr) else { return None };
    match value.cast_to(&DataType::Int64).ok()? {
        ScalarValue::Int64(number) if value.data_type().is_integer() => number,
        _ => None,
    }
}

/// Microseconds of a unit of time that is always as long.
fn exact(unit: &str) -> Option<i64> {
    Some(match unit {
        "microsecond" => 1,
        "millisecond" => 1_000,
        "second" => 1_000_000,
        "minute" => 60_000_000,
        "hour" => 3_600_000_000,
        _ => return None,
    })
}

/// Months of a unit of the calendar.
fn months(unit: &str) -> Option<i64> {
    Some(match unit {
        "month" => 1,
        "quarter" => 3,
        "year" => 12,
        _ => return None,
    })
}

fn span(unit: &Expr) -> Option<Span> {
    Some(match text(unit)?.as_str() {
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
