//! The moments at which the meaning of rows changes, from the boundaries of the plan.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::timezone::Tz;
use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Date32Type, Int64Type};
use arrow::error::ArrowError;
use chrono::{DateTime, Datelike, Months, NaiveDate, Offset, TimeZone};
use datafusion::physical_expr::PhysicalExpr;

use super::eval::evaluate;
use crate::plan::{Boundary, ClockStep, TimeSpan, Zone};

/// The boundaries of one operator, evaluated on batches.
pub struct Moments {
    boundaries: Vec<Boundary>,
    /// When clocks in a zone first show a time: dates come again and again.
    local: HashMap<(String, i64), Vec<i64>>,
}

/// Microseconds of a day.
const DAY: i64 = 86_400_000_000;

/// Zones have few offsets, and data few dates; beyond this many it starts anew.
const REMEMBERED: usize = 1 << 16;

impl Moments {
    /// Of these boundaries.
    pub fn new(boundaries: Vec<Boundary>) -> Moments {
        Moments { boundaries, local: HashMap::new() }
    }

    /// For each row the moments at which the truth of a condition changes: microseconds since 1970, ascending, distinct,
    /// and after 1970. They may be too many, never too few. A value that is null, that fails, or that the clock cannot
    /// reach gives none.
    pub fn of(&mut self, rows: &RecordBatch) -> Result<Vec<Vec<i64>>, ArrowError> {
        let mut all: Vec<Vec<i64>> = vec![Vec::new(); rows.num_rows()];
        for boundary in &self.boundaries {
            let values = whole(&boundary.value, rows)?;
            let mut steps = Vec::with_capacity(boundary.steps.len());
            for step in boundary.steps.iter().rev() {
                let by = match step {
                    ClockStep::ShiftBy { by, .. } | ClockStep::Rest(by) | ClockStep::MonthsSince { from: by, .. } => {
                        Some(whole(by, rows)?)
                    }
                    _ => None,
                };
                steps.push((step, by));
            }
            for (row, moments) in all.iter_mut().enumerate().filter(|(row, _)| values.is_valid(*row)) {
                let value = values.value(row);
                let first = boundary.at.then_some(value);
                let next = boundary.beyond.then(|| value.checked_add(1)).flatten();
                for reached in first.into_iter().chain(next) {
                    back(&steps, reached, row, &mut self.local, moments);
                }
            }
            if self.local.len() > REMEMBERED {
                self.local.clear();
            }
        }
        for moments in &mut all {
            moments.retain(|moment| *moment > 0);
            moments.sort_unstable();
            moments.dedup();
        }
        Ok(all)
    }
}

/// One whole number a row. A row on which the expression fails has none.
fn whole(expr: &Arc<dyn PhysicalExpr>, rows: &RecordBatch) -> Result<Int64Array, ArrowError> {
    if let Ok(values) = evaluate(expr, rows) {
        return numbers(&values);
    }
    let mut all = Vec::with_capacity(rows.num_rows());
    for row in 0..rows.num_rows() {
        let value = evaluate(expr, &rows.slice(row, 1)).ok().map(|value| numbers(&value)).transpose()?;
        all.push(value.filter(|value| value.is_valid(0)).map(|value| value.value(0)));
    }
    Ok(Int64Array::from(all))
}

fn numbers(values: &ArrayRef) -> Result<Int64Array, ArrowError> {
    match values.data_type() {
        DataType::Date32 => Ok(values.as_primitive::<Date32Type>().unary(i64::from)),
        _ => Ok(arrow::compute::cast(values, &DataType::Int64)?.as_primitive::<Int64Type>().clone()),
    }
}

type Steps<'a> = [(&'a ClockStep, Option<Int64Array>)];
type Local = HashMap<(String, i64), Vec<i64>>;

/// The moments at which "the steps, the last of them first, lead to `reached` or more" changes.
fn back(steps: &Steps<'_>, reached: i64, row: usize, local: &mut Local, out: &mut Vec<i64>) {
    let Some(((step, by), rest)) = steps.split_first() else {
        out.push(reached);
        return;
    };
    let by = by.as_ref().filter(|by| by.is_valid(row)).map(|by| by.value(row));
    // What the step before must reach; where that is beyond all numbers, it never does.
    let before: Option<i64> = match step {
        ClockStep::Shift(by) => reached.checked_sub(*by),
        ClockStep::ShiftBy { minus, .. } => match by {
            Some(by) if *minus => reached.checked_add(by),
            Some(by) => reached.checked_sub(by),
            None => None,
        },
        // The difference falls as the clock goes on.
        ClockStep::Rest(_) => by.and_then(|by| by.checked_sub(reached)?.checked_add(1)),
        ClockStep::Scale(by) => Some(ceiling(reached, *by)),
        ClockStep::Divide(by) if reached > 0 => reached.checked_mul(*by),
        ClockStep::Divide(by) => reached.checked_sub(1).and_then(|r| r.checked_mul(*by)?.checked_add(1)),
        ClockStep::MonthsSince { day, .. } => by.and_then(|from| months_after(from, reached, *day)),
        ClockStep::Floor(by) => reached.checked_mul(*by),
        ClockStep::Truncate { to, day } => start(reached, *to, *day),
        ClockStep::Months { months, day } => {
            for before in months_before(reached, *months, *day).unwrap_or_default() {
                back(rest, before, row, local, out);
            }
            return;
        }
        ClockStep::Instant(zone) => {
            for before in shown_before(zone, reached) {
                back(rest, before, row, local, out);
            }
            return;
        }
        ClockStep::Local { zone, second } => {
            let known = local.entry((zone.to_string(), reached));
            let moments = known.or_insert_with(|| shown(zone, reached, *second).unwrap_or_default()).clone();
            for before in moments {
                back(rest, before, row, local, out);
            }
            return;
        }
    };
    if let Some(before) = before {
        back(rest, before, row, local, out);
    }
}

/// What clocks in a zone show where "the instant is `reached` or later" changes: once for each offset from UTC around it, and
/// where clocks are set.
fn shown_before(zone: &Zone, reached: i64) -> Vec<i64> {
    let shows = |at: i64, ahead: i64| at.saturating_add(ahead * 1_000_000);
    let (mut same, mut other) = (reached.saturating_sub(2 * DAY), reached.saturating_add(2 * DAY));
    let (early, late) = (zone.ahead(same), zone.ahead(other));
    if early == late {
        return vec![shows(reached, early)];
    }
    while other - same > 1 {
        let middle = same + (other - same) / 2;
        if zone.ahead(middle) == early { same = middle } else { other = middle }
    }
    vec![shows(reached, early), shows(reached, late), shows(other, early), shows(other, late)]
}

fn ceiling(value: i64, by: i64) -> i64 {
    value.div_euclid(by) + i64::from(value.rem_euclid(by) != 0)
}

/// Days since 1970 as a date.
fn date(days: i64) -> Option<NaiveDate> {
    NaiveDate::from_num_days_from_ce_opt(i32::try_from(days.checked_add(719_163)?).ok()?)
}

fn days(date: NaiveDate) -> i64 {
    i64::from(date.num_days_from_ce()) - 719_163
}

/// The first start of a stretch that is not before `value`.
fn start(value: i64, to: TimeSpan, day: i64) -> Option<i64> {
    let whole = ceiling(value, day);
    match to {
        TimeSpan::PartOfDay(parts) => {
            let part = (day / parts).max(1);
            ceiling(value, part).checked_mul(part)
        }
        TimeSpan::Day => whole.checked_mul(day),
        // 1970 began on a Thursday.
        TimeSpan::Week => ceiling(whole.checked_add(3)?, 7).checked_mul(7)?.checked_sub(3)?.checked_mul(day),
        TimeSpan::Months(length) => {
            let date = date(whole)?;
            let month = i64::from(date.year()) * 12 + i64::from(date.month0()) + i64::from(date.day() > 1);
            let first = ceiling(month, length) * length;
            let year = i32::try_from(first.div_euclid(12)).ok()?;
            let first = NaiveDate::from_ymd_opt(year, u32::try_from(first.rem_euclid(12)).ok()? + 1, 1)?;
            days(first).checked_mul(day)
        }
    }
}

/// When "so many months later it is `reached` or more" changes. The last days of a month may lead to one day, so that with
/// the time of day it can become true, false, and true again.
fn months_before(reached: i64, months: i32, day: i64) -> Option<Vec<i64>> {
    let time = reached.rem_euclid(day);
    let wanted = date(reached.div_euclid(day))?;
    let first = wanted.with_day(1)?;
    let away = Months::new(months.unsigned_abs());
    let from = if months >= 0 { first.checked_sub_months(away)? } else { first.checked_add_months(away)? };
    let length = |month: NaiveDate| Some(days(month.checked_add_months(Months::new(1))?) - days(month));
    let (at, of) = (i64::from(wanted.day()), length(from)?);
    let begin = |of_month: i64| (days(from) + of_month - 1).checked_mul(day);
    if at > of {
        return Some(vec![begin(of + 1)?]);
    }
    if at < length(first)? || time == 0 {
        return Some(vec![begin(at)?.checked_add(time)?]);
    }
    let mut moments = Vec::new();
    for of_month in at..=of {
        moments.push(begin(of_month)?.checked_add(time)?);
        moments.push(begin(of_month + 1)?);
    }
    Some(moments)
}

/// When so many months have passed since `from`. Where the month has no such day, with the month after it.
fn months_after(from: i64, months: i64, day: i64) -> Option<i64> {
    let (time, on) = (from.rem_euclid(day), date(from.div_euclid(day))?);
    // Counted backwards, a month is over only beyond the moment.
    let (months, beyond) = if months > 0 { (months, 0) } else { (months.checked_sub(1)?, 1) };
    let away = Months::new(u32::try_from(months.unsigned_abs()).ok()?);
    let first = on.with_day(1)?;
    let first = if months >= 0 { first.checked_add_months(away)? } else { first.checked_sub_months(away)? };
    match first.with_day(on.day()) {
        Some(reached) => days(reached).checked_mul(day)?.checked_add(time)?.checked_add(beyond),
        None => days(first.checked_add_months(Months::new(1))?).checked_mul(day),
    }
}

/// Further than any clock is from UTC, in seconds.
const FURTHEST: i64 = 26 * 3600;

/// When "clocks in the zone show `time` or later" changes: once, unless they are set back over it.
fn shown(zone: &Tz, time: i64, second: i64) -> Option<Vec<i64>> {
    let offset = |at: i64| -> Option<i64> {
        let at = DateTime::from_timestamp(at, 0)?;
        Some(i64::from(zone.offset_from_utc_datetime(&at.naive_utc()).fix().local_minus_utc()))
    };
    let whole = time.div_euclid(second);
    let end = whole.checked_add(FURTHEST)?;
    let mut at = whole.checked_sub(FURTHEST)?;
    let mut here = offset(at)?;
    let mut is = false;
    let mut moments = Vec::new();
    while at < end {
        let mut next = (at + FURTHEST / 2).min(end);
        if offset(next)? != here {
            // The first second with another offset.
            let (mut same, mut other) = (at, next);
            while other - same > 1 {
                let middle = same + (other - same) / 2;
                if offset(middle)? == here { same = middle } else { other = middle }
            }
            next = other;
        }
        let shows = |at: i64| at.checked_add(here)?.checked_mul(second).map(|shown| shown >= time);
        let begins = at.checked_mul(second)?;
        if shows(at)? != is {
            is = !is;
            moments.push(begins);
        }
        let reaches = time.checked_sub(here.checked_mul(second)?)?;
        if !is && reaches > begins && reaches < next.checked_mul(second)? {
            is = true;
            moments.push(reaches);
        }
        at = next;
        here = offset(at)?;
    }
    Some(moments)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    /// Every change of a condition between two moments, by looking at each step.
    fn looked(from: i64, to: i64, step: i64, holds: impl Fn(i64) -> bool) -> Vec<i64> {
        (1..=(to - from) / step).map(|i| from + i * step).filter(|at| holds(*at) != holds(*at - step)).collect()
    }

    #[test]
    fn clocks_that_are_set_show_a_time_when_one_looks_at_them() {
        // Zones whose clocks are set at midnight, over it, by half an hour, or past a whole day.
        let cases = [
            ("Europe/Berlin", "2025-03-28", 6),
            ("Europe/Berlin", "2025-10-24", 6),
            ("America/Sao_Paulo", "2018-11-02", 6),
            ("America/Sao_Paulo", "2018-02-15", 6),
            ("America/St_Johns", "2006-10-27", 6),
            ("Australia/Lord_Howe", "2025-04-04", 5),
            ("Pacific/Apia", "2011-12-28", 5),
            ("Asia/Beirut", "2022-03-25", 5),
            ("America/Havana", "2025-10-31", 5),
            ("Asia/Kathmandu", "2025-06-01", 3),
        ];
        for (name, from, count) in cases {
            let zone: Tz = name.parse().unwrap();
            let first = days(from.parse().unwrap()) * 86_400;
            let local = |at: i64| {
                let naive = DateTime::from_timestamp(at, 0).unwrap().naive_utc();
                at + i64::from(zone.offset_from_utc_datetime(&naive).fix().local_minus_utc())
            };
            for quarter in 0..count * 96 {
                let time = first + quarter * 900;
                let expected = looked(time - 100_800, time + 100_800, 60, |at| local(at) >= time);
                assert_eq!(shown(&zone, time, 1).unwrap(), expected, "{name} {time}");
                let fine: Vec<i64> = expected.iter().map(|at| at * 1000).collect();
                assert_eq!(shown(&zone, time * 1000, 1000).unwrap(), fine, "{name} {time}");
            }
        }
    }

    #[test]
    fn months_later_is_reached_when_one_looks_at_every_hour() {
        let later = |at: i64, months: i32| {
            let date = date(at.div_euclid(24)).unwrap();
            let away = Months::new(months.unsigned_abs());
            let there = if months >= 0 { date.checked_add_months(away) } else { date.checked_sub_months(away) };
            days(there.unwrap()) * 24 + at.rem_euclid(24)
        };
        let begin = days("2023-12-20".parse().unwrap()) * 24;
        for months in [1, -1, 2, -11, 12, -12, 25] {
            // Over a leap day and the ends of all months.
            for reached in (begin..begin + 24 * 440).step_by(7) {
                let around = reached - 24 * 31 * i64::from(months);
                let expected = looked(around - 24 * 70, around + 24 * 70, 1, |at| later(at, months) >= reached);
                let mut found = months_before(reached, months, 24).unwrap();
                found.retain(|at| (later(*at, months) >= reached) != (later(*at - 1, months) >= reached));
                assert_eq!(found, expected, "{months} {reached}");
            }
        }
    }

    #[test]
    fn stretches_begin_when_one_looks_at_every_hour() {
        let begin = days("2023-12-20".parse().unwrap()) * 24;
        let floor = |at: i64, to: TimeSpan| {
            let day = at.div_euclid(24);
            let month = |length: u32| {
                let date = date(day).unwrap();
                days(NaiveDate::from_ymd_opt(date.year(), date.month0() / length * length + 1, 1).unwrap()) * 24
            };
            match to {
                TimeSpan::PartOfDay(parts) => at - at.rem_euclid(24 / parts),
                TimeSpan::Day => day * 24,
                TimeSpan::Week => (day - i64::from(date(day).unwrap().weekday().num_days_from_monday())) * 24,
                TimeSpan::Months(length) => month(u32::try_from(length).unwrap()),
            }
        };
        let spans = [1, 3, 12].map(TimeSpan::Months).into_iter();
        for to in spans.chain([TimeSpan::PartOfDay(4), TimeSpan::Day, TimeSpan::Week]) {
            for reached in (begin..begin + 24 * 420).step_by(5) {
                let expected = (reached - 1..).find(|at| floor(*at, to) >= reached).unwrap();
                assert_eq!(start(reached, to, 24), Some(expected), "{to:?} {reached}");
            }
        }
    }
}
