//! Timestamps and intervals from their parts.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, IntervalMonthDayNanoBuilder, TimestampMicrosecondBuilder};
use arrow::datatypes::{DataType, Decimal128Type, IntervalMonthDayNano, IntervalUnit};
use datafusion::common::{DataFusionError, Result};

use super::super::function::Kind::{Any, Int, Str};
use super::super::function::{Asked, Body, Call, Function, Row, Typed, fault};
use super::super::parse::{DAY_MICROS, days_of};
use super::super::types::{instant, local};
use super::{out_of_bounds, zone};

pub(super) fn functions() -> Vec<Function> {
    vec![
        Function::new("make_timestamp", &[Int, Int, Int, Int, Int, Any, Str], Body::Arrays(instant_type, timestamp))
            .optional(1)
            .also(&["make_timestamp_ltz", "try_make_timestamp", "try_make_timestamp_ltz"]),
        Function::new("make_timestamp_ntz", &[Int, Int, Int, Int, Int, Any], Body::Arrays(local_type, timestamp))
            .also(&["try_make_timestamp_ntz"]),
        Function::new(
            "make_interval",
            &[Int, Int, Int, Int, Int, Int, Any],
            Body::Arrays(|asked| interval_type(asked, 6), |call| intervals(call, mixed)),
        )
        .optional(7)
        .also(&["try_make_interval"]),
        Function::new(
            "make_dt_interval",
            &[Int, Int, Int, Any],
            Body::Arrays(|asked| interval_type(asked, 3), |call| intervals(call, days_and_less)),
        )
        .optional(4),
        Function::new(
            "make_ym_interval",
            &[Int, Int],
            Body::Arrays(|asked| interval_type(asked, usize::MAX), |call| intervals(call, years_and_months)),
        )
        .optional(2),
    ]
}

fn parts(asked: &Asked<'_>) -> Vec<DataType> {
    let mut arguments = vec![DataType::Int32; 5];
    arguments.push(DataType::Decimal128(16, 6));
    arguments.extend(asked.types.iter().skip(6).map(|_| DataType::Utf8));
    arguments
}

fn instant_type(asked: &Asked<'_>) -> Result<Typed> {
    Ok(Typed { arguments: parts(asked), result: instant() })
}

fn local_type(asked: &Asked<'_>) -> Result<Typed> {
    Ok(Typed { arguments: parts(asked), result: local() })
}

/// Microseconds of a decimal of seconds.
fn seconds(row: &Row<'_>, argument: usize) -> Option<i64> {
    let (array, at) = row.at(argument)?;
    i64::try_from(array.as_primitive_opt::<Decimal128Type>()?.value(at)).ok()
}

fn timestamp(call: &Call<'_>) -> Result<ArrayRef> {
    let with_zone = *call.result == instant();
    let strict = call.settings.ansi && !call.function.starts_with("try_");
    let mut builder = TimestampMicrosecondBuilder::new().with_timezone_opt(with_zone.then_some("UTC"));
    for row in (0..call.rows).map(|index| call.row(index)) {
        if row.any_null() {
            builder.append_null();
            continue;
        }
        let part = |i: usize| u32::try_from(row.int(i)).ok();
        let seconds = seconds(&row, 5).unwrap_or(-1);
        let date = part(1).zip(part(2)).and_then(|(month, day)| days_of(row.int(0), month, day));
        let in_time =
            (0..24).contains(&row.int(3)) && (0..60).contains(&row.int(4)) && (0..=60_000_000).contains(&seconds);
        let local = date.filter(|_| in_time).map(|date| {
            i64::from(date) * DAY_MICROS
                + i64::from(row.int(3)) * 3_600_000_000
                + i64::from(row.int(4)) * 60_000_000
                + seconds
        });
        let own = if row.count() > 6 { Some(zone(row.str(6))?) } else { None };
        let made = match with_zone {
            true => local.map(|local| own.as_ref().unwrap_or(&call.settings.zone).instant(local)),
            false => local,
        };
        builder.append_option(out_of_bounds(made, strict, || "the parts make no timestamp".to_owned())?);
    }
    Ok(Arc::new(builder.finish()))
}

/// Whole numbers, but for seconds, which stand at one place.
fn interval_type(asked: &Asked<'_>, seconds: usize) -> Result<Typed> {
    let kind = |at: usize| if at == seconds { DataType::Decimal128(18, 6) } else { DataType::Int32 };
    let arguments = (0..asked.types.len()).map(kind).collect();
    Ok(Typed { arguments, result: DataType::Interval(IntervalUnit::MonthDayNano) })
}

fn intervals(call: &Call<'_>, make: fn(&Row<'_>) -> Option<IntervalMonthDayNano>) -> Result<ArrayRef> {
    // An interval of one kind has no null for what is too large.
    let nullable = call.function == "try_make_interval" || call.function == "make_interval" && !call.settings.ansi;
    let mut builder = IntervalMonthDayNanoBuilder::new();
    for row in (0..call.rows).map(|index| call.row(index)) {
        match if row.any_null() { None } else { Some(make(&row)) } {
            None => builder.append_null(),
            Some(None) if !nullable => return Err(too_large()),
            Some(made) => builder.append_option(made),
        }
    }
    Ok(Arc::new(builder.finish()))
}

fn too_large() -> DataFusionError {
    fault("INTERVAL_ARITHMETIC_OVERFLOW", "the interval is out of range")
}

/// An argument; zero if it was left out.
fn part(row: &Row<'_>, argument: usize) -> i64 {
    if argument < row.count() { row.int(argument).into() } else { 0 }
}

/// Microseconds of hours, minutes and seconds that begin at an argument.
fn time(row: &Row<'_>, first: usize) -> Option<i64> {
    let seconds = if first + 2 < row.count() { seconds(row, first + 2)? } else { 0 };
    let hours = part(row, first).checked_mul(3_600_000_000)?;
    hours.checked_add(part(row, first + 1) * 60_000_000)?.checked_add(seconds)
}

fn mixed(row: &Row<'_>) -> Option<IntervalMonthDayNano> {
    let months = i32::try_from(part(row, 0) * 12 + part(row, 1)).ok()?;
    let days = i32::try_from(part(row, 2) * 7 + part(row, 3)).ok()?;
    Some(IntervalMonthDayNano::new(months, days, time(row, 4)?.checked_mul(1000)?))
}

fn days_and_less(row: &Row<'_>) -> Option<IntervalMonthDayNano> {
    let micros = part(row, 0).checked_mul(DAY_MICROS)?.checked_add(time(row, 1)?)?;
    let days = i32::try_from(micros / DAY_MICROS).ok()?;
    Some(IntervalMonthDayNano::new(0, days, micros % DAY_MICROS * 1000))
}

fn years_and_months(row: &Row<'_>) -> Option<IntervalMonthDayNano> {
    Some(IntervalMonthDayNano::new(i32::try_from(part(row, 0) * 12 + part(row, 1)).ok()?, 0, 0))
}
