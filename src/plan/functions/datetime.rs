//! Dates and times: their parts, arithmetic, and their way to and from text and numbers.

mod making;
mod reading;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Decimal128Builder, Int32Builder, TimestampMicrosecondBuilder};
use arrow::datatypes::{
    DataType, Date32Type, DurationMicrosecondType, Int64Type, IntervalMonthDayNanoType, IntervalUnit, TimeUnit,
    TimestampMicrosecondType,
};
use chrono::{Datelike, Months, NaiveDate, Weekday};
use datafusion::common::{Result, ScalarValue, plan_err};

use super::cast::{cast, day_of};
use super::function::Kind::{Any, Bool, Date, Int, Long, Str, Timestamp};
use super::function::{Answer, Asked, Body, Call, Function, Row, Typed, fault};
use super::parse::{DAY_MICROS, date_of, days, days_of, start_of};
use super::pattern::{compiled, day_name, month_name};
use super::types::{decimal, double, instant, integral, local, number, text};
use super::zone::Zone;
use reading::{date_type, instant_type, local_type, misfit, to_date, to_instant, to_local, unix, unix_type};

pub(super) fn functions() -> Vec<Function> {
    let mut all = texts();
    all.extend(parts());
    all.extend(steps());
    all.extend(counts());
    all.extend(making::functions());
    all
}

fn texts() -> Vec<Function> {
    vec![
        Function::new(
            "date_format",
            &[Timestamp, Str],
            Body::Text(|r| Ok(Some(compiled(r.str(1))?.written(r.micros(0), &r.settings().zone)))),
        ),
        Function::new("to_date", &[Any, Str], Body::Arrays(date_type, to_date)).optional(1).also(&["try_to_date"]),
        Function::new("to_timestamp", &[Any, Str], Body::Arrays(instant_type, to_instant))
            .optional(1)
            .also(&["try_to_timestamp", "to_timestamp_ltz"]),
        Function::new("to_timestamp_ntz", &[Any, Str], Body::Arrays(local_type, to_local)).optional(1),
        Function::new("unix_timestamp", &[Any, Str], Body::Arrays(unix_type, unix))
            .optional(1)
            .also(&["to_unix_timestamp"]),
        Function::new(
            "from_unixtime",
            &[Long, Str],
            Body::Text(|r| {
                let pattern = if r.count() > 1 { r.str(1) } else { "yyyy-MM-dd HH:mm:ss" };
                Ok(Some(compiled(pattern)?.written(r.long(0).saturating_mul(1_000_000), &r.settings().zone)))
            }),
        )
        .optional(1),
        Function::new("current_timezone", &[], Body::Text(|r| Ok(Some(r.settings().zone.name().to_owned())))),
        Function::new(
            "dayname",
            &[Date],
            Body::Text(|r| Ok(on(r.date(0), |d| day_name(d).get(..3).map(str::to_owned)))),
        ),
        Function::new(
            "monthname",
            &[Date],
            Body::Text(|r| Ok(on(r.date(0), |d| month_name(d.month()).get(..3).map(str::to_owned)))),
        ),
    ]
}

fn parts() -> Vec<Function> {
    vec![
        Function::new("year", &[Date], Body::Int(|r| Ok(on(r.date(0), |d| Some(d.year()))))),
        Function::new("quarter", &[Date], Body::Int(|r| Ok(on(r.date(0), |d| small((d.month() - 1) / 3 + 1))))),
        Function::new("month", &[Date], Body::Int(|r| Ok(on(r.date(0), |d| small(d.month()))))),
        Function::new("day", &[Date], Body::Int(|r| Ok(on(r.date(0), |d| small(d.day()))))).also(&["dayofmonth"]),
        Function::new(
            "dayofweek",
            &[Date],
            Body::Int(|r| Ok(on(r.date(0), |d| small(d.weekday().number_from_sunday())))),
        ),
        Function::new(
            "weekday",
            &[Date],
            Body::Int(|r| Ok(on(r.date(0), |d| small(d.weekday().num_days_from_monday())))),
        ),
        Function::new("dayofyear", &[Date], Body::Int(|r| Ok(on(r.date(0), |d| small(d.ordinal()))))),
        Function::new("weekofyear", &[Date], Body::Int(|r| Ok(on(r.date(0), |d| small(d.iso_week().week()))))),
        Function::new("hour", &[Timestamp], Body::Int(|r| Ok(i32::try_from(time(r) / 3_600_000_000).ok()))),
        Function::new("minute", &[Timestamp], Body::Int(|r| Ok(i32::try_from(time(r) / 60_000_000 % 60).ok()))),
        Function::new("second", &[Timestamp], Body::Int(|r| Ok(i32::try_from(time(r) / 1_000_000 % 60).ok()))),
        Function::new("date_part", &[Str, Any], Body::Arrays(part_type, part)).also(&["datepart"]),
    ]
}

fn steps() -> Vec<Function> {
    vec![
        Function::new(
            "date_trunc",
            &[Str, Timestamp],
            Body::Timestamp(|r| {
                let zone = &r.settings().zone;
                Ok(truncated(r.str(0), zone.local(r.micros(1))).map(|t| zone.instant(t)))
            }),
        ),
        Function::new(
            "trunc",
            &[Date, Str],
            Body::Date(|r| {
                let unit = r.str(1).to_ascii_lowercase();
                let coarse = ["year", "yyyy", "yy", "quarter", "month", "mon", "mm", "week"].contains(&unit.as_str());
                let start = start_of(r.date(0)).filter(|_| coarse);
                Ok(start.and_then(|start| truncated(&unit, start)).map(day_of))
            }),
        ),
        Function::new("add_months", &[Date, Int], Body::Date(|r| Ok(plus_months(r.date(0), i64::from(r.int(1)))))),
        Function::new("months_between", &[Timestamp, Timestamp, Bool], Body::Double(months_between)).optional(1),
        Function::new(
            "last_day",
            &[Date],
            Body::Date(|r| {
                Ok(on(r.date(0), |d| {
                    let next = d.with_day(1)?.checked_add_months(Months::new(1))?;
                    next.pred_opt().map(days)
                }))
            }),
        ),
        Function::new("next_day", &[Date, Str], Body::Date(next_day)),
        Function::new("date_add", &[Date, Int], Body::Date(|r| Ok(r.date(0).checked_add(r.int(1))))).also(&["dateadd"]),
        Function::new("date_sub", &[Date, Int], Body::Date(|r| Ok(r.date(0).checked_sub(r.int(1))))),
        Function::new("datediff", &[Date, Date], Body::Int(|r| Ok(r.date(0).checked_sub(r.date(1)))))
            .also(&["date_diff"]),
        Function::new(
            "timestampadd",
            &[Str, Int, Timestamp],
            Body::Timestamp(|r| match plus_units(r.str(0), i64::from(r.int(1)), r.micros(2), &r.settings().zone) {
                Some(found) => {
                    found.map(Some).ok_or_else(|| fault("DATETIME_OVERFLOW", "the timestamp is out of range"))
                }
                None => Err(fault("INVALID_PARAMETER_VALUE.DATETIME_UNIT", format!("{} is no unit of time", r.str(0)))),
            }),
        ),
        Function::new(
            "timestampdiff",
            &[Str, Timestamp, Timestamp],
            Body::Long(|r| match units_between(r.str(0), r.micros(1), r.micros(2), &r.settings().zone) {
                Some(found) => Ok(Some(found)),
                None => Err(fault("INVALID_PARAMETER_VALUE.DATETIME_UNIT", format!("{} is no unit of time", r.str(0)))),
            }),
        ),
        Function::new(
            "make_date",
            &[Int, Int, Int],
            Body::Date(|r| {
                let part = |i: usize| u32::try_from(r.int(i)).ok();
                let made = part(1).zip(part(2)).and_then(|(month, day)| days_of(r.int(0), month, day));
                out_of_bounds(made, r.ansi(), || format!("{}-{}-{} is no date", r.int(0), r.int(1), r.int(2)))
            }),
        ),
        Function::new(
            "from_utc_timestamp",
            &[Timestamp, Str],
            Body::Timestamp(|r| Ok(Some(zone(r.str(1))?.local(r.micros(0))))),
        ),
        Function::new(
            "to_utc_timestamp",
            &[Timestamp, Str],
            Body::Timestamp(|r| Ok(Some(zone(r.str(1))?.instant(r.micros(0))))),
        ),
        Function::new("convert_timezone", &[Str, Str, Any], Body::Arrays(convert_type, convert)).optional(1),
    ]
}

fn counts() -> Vec<Function> {
    vec![
        Function::new("plus_interval", &[Timestamp, Any], Body::Arrays(interval_type, plus_interval))
            .also(&["minus_interval"]),
        Function::new("interval_micros", &[Any], Body::Arrays(micros_type, interval_micros)),
        Function::new(
            "timestamp_seconds",
            &[Any],
            Body::Arrays(seconds_type, |call| cast(&call.array(0)?, &instant(), misfit(call), &call.settings.zone)),
        ),
        Function::new(
            "timestamp_millis",
            &[Long],
            Body::Timestamp(|r| {
                r.long(0).checked_mul(1000).map(Some).ok_or_else(|| fault("ARITHMETIC_OVERFLOW", "long overflow"))
            }),
        ),
        Function::new("timestamp_micros", &[Long], Body::Timestamp(|r| Ok(Some(r.long(0))))),
        Function::new("unix_date", &[Date], Body::Int(|r| Ok(Some(r.date(0))))),
        Function::new("date_from_unix_date", &[Int], Body::Date(|r| Ok(Some(r.int(0))))),
        Function::new("unix_seconds", &[Timestamp], Body::Long(|r| Ok(Some(r.micros(0).div_euclid(1_000_000))))),
        Function::new("unix_millis", &[Timestamp], Body::Long(|r| Ok(Some(r.micros(0).div_euclid(1000))))),
        Function::new("unix_micros", &[Timestamp], Body::Long(|r| Ok(Some(r.micros(0))))),
    ]
}

fn on<T>(date: i32, f: impl FnOnce(NaiveDate) -> Option<T>) -> Option<T> {
    date_of(date).and_then(f)
}

fn small(value: u32) -> Option<i32> {
    i32::try_from(value).ok()
}

/// Local time of the day in microseconds.
fn time(row: &Row<'_>) -> i64 {
    row.settings().zone.local(row.micros(0)).rem_euclid(DAY_MICROS)
}

fn zone(name: &str) -> Result<Zone> {
    Zone::parse(name).ok_or_else(|| fault("INVALID_TIMEZONE", format!("there is no time zone {name}")))
}

fn part_name(name: &str) -> Option<&'static str> {
    Some(match name.to_ascii_lowercase().as_str() {
        "year" | "y" | "years" | "yr" | "yrs" => "year",
        "yearofweek" => "yearofweek",
        "quarter" | "qtr" => "quarter",
        "month" | "mon" | "mons" | "months" => "month",
        "week" | "w" | "weeks" => "week",
        "day" | "d" | "days" => "day",
        "dayofweek" | "dow" => "dayofweek",
        "dayofweek_iso" | "dow_iso" => "dayofweek_iso",
        "doy" => "doy",
        "hour" | "h" | "hours" | "hr" | "hrs" => "hour",
        "minute" | "m" | "min" | "mins" | "minutes" => "minute",
        "second" | "s" | "sec" | "seconds" | "secs" => "second",
        _ => return None,
    })
}

fn part_type(asked: &Asked<'_>) -> Result<Typed> {
    let name = match asked.literal(0) {
        Some(ScalarValue::Utf8(Some(name))) => name.clone(),
        Some(_) => return plan_err!("{} takes the name of a part, such as 'month'", asked.function),
        None => String::new(),
    };
    let given = asked.of(1)?;
    let second = if text(given) || given.is_null() { instant() } else { given.clone() };
    let result = match part_name(&name) {
        Some("second") => DataType::Decimal128(8, 6),
        Some(_) => DataType::Int32,
        None if name.is_empty() => DataType::Int32,
        None => return plan_err!("there is no part {name} of a date or time"),
    };
    Ok(Typed { arguments: vec![DataType::Utf8, second], result })
}

fn part(call: &Call<'_>) -> Result<ArrayRef> {
    let zone = &call.settings.zone;
    let values = call.array(1)?;
    let local: Vec<Option<i64>> = match values.data_type() {
        DataType::Date32 => values.as_primitive::<Date32Type>().iter().map(|day| day.and_then(start_of)).collect(),
        DataType::Timestamp(_, with_zone) => values
            .as_primitive::<TimestampMicrosecondType>()
            .iter()
            .map(|v| v.map(|v| if with_zone.is_some() { zone.local(v) } else { v }))
            .collect(),
        other => return plan_err!("{} takes a date or a timestamp, not {other}", call.function),
    };
    let Some(name) = (call.rows > 0).then(|| call.row(0).opt_str(0)).flatten().and_then(part_name) else {
        return Ok(arrow::array::new_null_array(call.result, call.rows));
    };
    if name == "second" {
        let mut builder = Decimal128Builder::new().with_data_type(DataType::Decimal128(8, 6));
        for value in local {
            builder.append_option(value.map(|v| i128::from(v.rem_euclid(60_000_000))));
        }
        return Ok(Arc::new(builder.finish()));
    }
    let mut builder = Int32Builder::new();
    for value in local {
        let found = value.and_then(|value| {
            let time = value.rem_euclid(DAY_MICROS);
            let date = date_of(day_of(value))?;
            match name {
                "year" => Some(date.year()),
                "yearofweek" => Some(date.iso_week().year()),
                "quarter" => small((date.month() - 1) / 3 + 1),
                "month" => small(date.month()),
                "week" => small(date.iso_week().week()),
                "day" => small(date.day()),
                "dayofweek" => small(date.weekday().number_from_sunday()),
                "dayofweek_iso" => small(date.weekday().number_from_monday()),
                "doy" => small(date.ordinal()),
                "hour" => i32::try_from(time / 3_600_000_000).ok(),
                _ => i32::try_from(time / 60_000_000 % 60).ok(),
            }
        });
        builder.append_option(found);
    }
    Ok(Arc::new(builder.finish()))
}

/// Local microseconds at the start of a unit.
fn truncated(unit: &str, local: i64) -> Option<i64> {
    let unit = unit.to_ascii_lowercase();
    let down = |size: i64| Some(local - local.rem_euclid(size));
    let date = date_of(day_of(local))?;
    let start = match unit.as_str() {
        "microsecond" => return Some(local),
        "millisecond" => return down(1000),
        "second" => return down(1_000_000),
        "minute" => return down(60_000_000),
        "hour" => return down(3_600_000_000),
        "day" | "dd" => return down(DAY_MICROS),
        "week" => date - chrono::Duration::days(i64::from(date.weekday().num_days_from_monday())),
        "month" | "mon" | "mm" => date.with_day(1)?,
        "quarter" => NaiveDate::from_ymd_opt(date.year(), (date.month() - 1) / 3 * 3 + 1, 1)?,
        "year" | "yyyy" | "yy" => NaiveDate::from_ymd_opt(date.year(), 1, 1)?,
        _ => return None,
    };
    Some(i64::from(days(start)) * DAY_MICROS)
}

/// A date some months later, on the same day of the month or its last.
pub(super) fn plus_months(date: i32, months: i64) -> Option<i32> {
    let from = date_of(date)?;
    let by = Months::new(u32::try_from(months.unsigned_abs()).ok()?);
    if months >= 0 { from.checked_add_months(by) } else { from.checked_sub_months(by) }.map(days)
}

/// An instant some months later by local time.
pub(super) fn instant_plus_months(micros: i64, months: i64, zone: &Zone) -> Option<i64> {
    let local = zone.local(micros);
    let moved = plus_months(day_of(local), months)?;
    Some(zone.instant(i64::from(moved) * DAY_MICROS + local.rem_euclid(DAY_MICROS)))
}

fn months_between(row: &Row<'_>) -> Answer<f64> {
    let zone = &row.settings().zone;
    let (a, b) = (zone.local(row.micros(0)), zone.local(row.micros(1)));
    let (Some(da), Some(db)) = (date_of(day_of(a)), date_of(day_of(b))) else { return Ok(None) };
    let months = f64::from((da.year() - db.year()) * 12) + f64::from(da.month()) - f64::from(db.month());
    let last = |d: NaiveDate| d.succ_opt().is_some_and(|next| next.day() == 1);
    if da.day() == db.day() || last(da) && last(db) {
        return Ok(Some(months));
    }
    let seconds = |local: i64| local.rem_euclid(DAY_MICROS) / 1_000_000;
    let within = i64::from(da.day()) * 86_400 + seconds(a) - i64::from(db.day()) * 86_400 - seconds(b);
    let exact = months + within as f64 / (31.0 * 86_400.0);
    let rounded = row.count() < 3 || row.bool(2);
    Ok(Some(if rounded { (exact * 1e8).round() / 1e8 } else { exact }))
}

fn next_day(row: &Row<'_>) -> Answer<i32> {
    let wanted = match row.str(1).to_ascii_uppercase().as_str() {
        "SU" | "SUN" | "SUNDAY" => Weekday::Sun,
        "MO" | "MON" | "MONDAY" => Weekday::Mon,
        "TU" | "TUE" | "TUESDAY" => Weekday::Tue,
        "WE" | "WED" | "WEDNESDAY" => Weekday::Wed,
        "TH" | "THU" | "THURSDAY" => Weekday::Thu,
        "FR" | "FRI" | "FRIDAY" => Weekday::Fri,
        "SA" | "SAT" | "SATURDAY" => Weekday::Sat,
        _ if row.ansi() => return Err(fault("ILLEGAL_DAY_OF_WEEK", format!("'{}' is no day of the week", row.str(1)))),
        _ => return Ok(None),
    };
    Ok(on(row.date(0), |date| {
        let ahead = 7 + i64::from(wanted.num_days_from_monday()) - i64::from(date.weekday().num_days_from_monday());
        let ahead = if ahead % 7 == 0 { 7 } else { ahead % 7 };
        date.checked_add_signed(chrono::Duration::days(ahead)).map(days)
    }))
}

/// `None` where the unit is unknown, `Some(None)` where the result is out of range.
fn plus_units(unit: &str, count: i64, micros: i64, zone: &Zone) -> Option<Option<i64>> {
    let unit = unit.to_ascii_lowercase();
    let exact = |size: i64| Some(count.checked_mul(size).and_then(|by| micros.checked_add(by)));
    let months = |size: i64| Some(count.checked_mul(size).and_then(|by| instant_plus_months(micros, by, zone)));
    let days = |size: i64| {
        let by = count.checked_mul(size * DAY_MICROS);
        Some(by.and_then(|by| zone.local(micros).checked_add(by)).map(|local| zone.instant(local)))
    };
    match unit.as_str() {
        "microsecond" => exact(1),
        "millisecond" => exact(1000),
        "second" => exact(1_000_000),
        "minute" => exact(60_000_000),
        "hour" => exact(3_600_000_000),
        "day" | "dayofyear" => days(1),
        "week" => days(7),
        "month" => months(1),
        "quarter" => months(3),
        "year" => months(12),
        _ => None,
    }
}

fn units_between(unit: &str, from: i64, to: i64, zone: &Zone) -> Option<i64> {
    let unit = unit.to_ascii_lowercase();
    let (a, b) = (zone.local(from), zone.local(to));
    let months = |size: i64| {
        let (da, db) = (date_of(day_of(a))?, date_of(day_of(b))?);
        let mut count = i64::from((db.year() - da.year()) * 12) + i64::from(db.month()) - i64::from(da.month());
        let place = |date: NaiveDate, local: i64| (date.day(), local.rem_euclid(DAY_MICROS));
        if count > 0 && place(db, b) < place(da, a) {
            count -= 1;
        } else if count < 0 && place(db, b) > place(da, a) {
            count += 1;
        }
        Some(count / size)
    };
    match unit.as_str() {
        "microsecond" => Some(to - from),
        "millisecond" => Some((to - from) / 1000),
        "second" => Some((to - from) / 1_000_000),
        "minute" => Some((to - from) / 60_000_000),
        "hour" => Some((to - from) / 3_600_000_000),
        "day" => Some((b - a) / DAY_MICROS),
        "week" => Some((b - a) / DAY_MICROS / 7),
        "month" => months(1),
        "quarter" => months(3),
        "year" => months(12),
        _ => None,
    }
}

fn interval_type(_: &Asked<'_>) -> Result<Typed> {
    Ok(Typed { arguments: vec![instant(), DataType::Interval(IntervalUnit::MonthDayNano)], result: instant() })
}

/// Months and days pass by local time, the rest by the clock.
fn plus_interval(call: &Call<'_>) -> Result<ArrayRef> {
    let zone = &call.settings.zone;
    let (from, by) = (call.array(0)?, call.array(1)?);
    let (from, by) = (from.as_primitive::<TimestampMicrosecondType>(), by.as_primitive::<IntervalMonthDayNanoType>());
    let sign = if call.function == "minus_interval" { -1 } else { 1 };
    let moved = from.iter().zip(by.iter()).map(|pair| {
        let (Some(from), Some(by)) = pair else { return Ok(None) };
        let months = instant_plus_months(from, sign * i64::from(by.months), zone);
        let days = months.zip(start_of(by.days)).and_then(|(at, days)| zone.local(at).checked_add(sign * days));
        let found = days.and_then(|local| zone.instant(local).checked_add(sign * (by.nanoseconds / 1000)));
        found.map(Some).ok_or_else(|| fault("DATETIME_OVERFLOW", "the timestamp is out of range"))
    });
    let moved = moved.collect::<Result<arrow::array::PrimitiveArray<TimestampMicrosecondType>>>()?;
    Ok(Arc::new(moved.with_timezone("UTC")))
}

fn micros_type(asked: &Asked<'_>) -> Result<Typed> {
    let argument = match asked.of(0)? {
        DataType::Duration(_) => DataType::Duration(TimeUnit::Microsecond),
        DataType::Interval(_) => DataType::Interval(IntervalUnit::MonthDayNano),
        DataType::Null => DataType::Duration(TimeUnit::Microsecond),
        other => return plan_err!("{other} and an interval cannot be compared"),
    };
    Ok(Typed { arguments: vec![argument], result: DataType::Int64 })
}

/// An interval of days and less in microseconds.
fn interval_micros(call: &Call<'_>) -> Result<ArrayRef> {
    let array = call.array(0)?;
    if let Some(durations) = array.as_primitive_opt::<DurationMicrosecondType>() {
        return Ok(Arc::new(durations.unary::<_, Int64Type>(|v| v)));
    }
    let intervals = array.as_primitive::<IntervalMonthDayNanoType>();
    let found = intervals.iter().map(|v| match v {
        Some(v) if v.months != 0 => Err(fault("INTERVAL_NOT_COMPARABLE", "months have no fixed length")),
        Some(v) => {
            let micros = start_of(v.days).and_then(|days| days.checked_add(v.nanoseconds / 1000));
            micros.map(Some).ok_or_else(|| fault("INTERVAL_ARITHMETIC_OVERFLOW", "the interval is out of range"))
        }
        None => Ok(None),
    });
    Ok(Arc::new(found.collect::<Result<arrow::array::Int64Array>>()?))
}

fn out_of_bounds<T>(made: Option<T>, ansi: bool, message: impl Fn() -> String) -> Answer<T> {
    match made {
        None if ansi => Err(fault("DATETIME_FIELD_OUT_OF_BOUNDS", message())),
        made => Ok(made),
    }
}

fn convert_type(asked: &Asked<'_>) -> Result<Typed> {
    let mut arguments = vec![DataType::Utf8; asked.types.len() - 1];
    arguments.push(local());
    Ok(Typed { arguments, result: local() })
}

fn convert(call: &Call<'_>) -> Result<ArrayRef> {
    let mut builder = TimestampMicrosecondBuilder::new();
    for row in (0..call.rows).map(|index| call.row(index)) {
        if row.any_null() {
            builder.append_null();
            continue;
        }
        let last = row.count() - 1;
        let to = zone(row.str(last - 1))?;
        let from = if last > 1 { zone(row.str(0))? } else { call.settings.zone.clone() };
        builder.append_value(to.local(from.instant(row.micros(last))));
    }
    Ok(Arc::new(builder.finish()))
}

fn seconds_type(asked: &Asked<'_>) -> Result<Typed> {
    let argument = match asked.of(0)? {
        t if integral(t) => DataType::Int64,
        t if decimal(t) => t.clone(),
        t if number(t) || text(t) || t.is_null() => double(),
        other => return plan_err!("timestamp_seconds takes a number, not {other}"),
    };
    Ok(Typed { arguments: vec![argument], result: instant() })
}
