//! Text as dates and timestamps, by patterns.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Date32Type, TimestampMicrosecondType};
use datafusion::common::{Result, plan_err};

use crate::plan::functions::cast::{Misfit, cast, day_of};
use crate::plan::functions::function::{Asked, Call, Typed, fault};
use crate::plan::functions::pattern::{Pattern, compiled};
use crate::plan::functions::types::{instant, local, text};

pub(super) fn misfit(call: &Call<'_>) -> Misfit {
    match (call.settings.ansi, call.function.starts_with("try_")) {
        (_, true) | (false, _) => Misfit::Null,
        (true, false) => Misfit::Fail,
    }
}

/// With a pattern the argument is text; without, it is cast.
fn read_type(asked: &Asked<'_>, result: DataType) -> Result<Typed> {
    let given = asked.of(0)?;
    let first = match asked.types.len() {
        1 => given.clone(),
        _ if matches!(given, DataType::Date32 | DataType::Timestamp(..)) => given.clone(),
        _ => DataType::Utf8,
    };
    let mut arguments = vec![first];
    arguments.extend(asked.types.iter().skip(1).map(|_| DataType::Utf8));
    Ok(Typed { arguments, result })
}

pub(super) fn date_type(asked: &Asked<'_>) -> Result<Typed> {
    read_type(asked, DataType::Date32)
}

pub(super) fn instant_type(asked: &Asked<'_>) -> Result<Typed> {
    read_type(asked, instant())
}

pub(super) fn local_type(asked: &Asked<'_>) -> Result<Typed> {
    read_type(asked, local())
}

/// Reads text by the pattern in each row.
fn read<T>(call: &Call<'_>, read: impl Fn(&Pattern, &str) -> Option<T>) -> Result<Vec<Option<T>>> {
    let strict = misfit(call) == Misfit::Fail;
    (0..call.rows)
        .map(|index| call.row(index))
        .map(|row| {
            if row.any_null() {
                return Ok(None);
            }
            let pattern = compiled(row.str(1))?;
            pattern.for_reading(row.str(1))?;
            match read(&pattern, row.str(0)) {
                Some(value) => Ok(Some(value)),
                None if strict => Err(fault(
                    "CANNOT_PARSE_TIMESTAMP",
                    format!(
                        "'{}' is not of the form '{}'; try_to_timestamp gives null instead",
                        row.str(0),
                        row.str(1)
                    ),
                )),
                None => Ok(None),
            }
        })
        .collect()
}

fn by_cast(call: &Call<'_>) -> Option<Result<ArrayRef>> {
    let first = call.arguments.first()?;
    let is_text = text(first.array.data_type());
    if call.arguments.len() > 1 && is_text {
        return None;
    }
    Some(call.array(0).and_then(|array| cast(&array, call.result, misfit(call), &call.settings.zone)))
}

pub(super) fn to_date(call: &Call<'_>) -> Result<ArrayRef> {
    if let Some(done) = by_cast(call) {
        return done;
    }
    let found = read(call, |pattern, text| pattern.read(text).map(|(local, _)| day_of(local)))?;
    Ok(Arc::new(found.into_iter().collect::<arrow::array::PrimitiveArray<Date32Type>>()))
}

pub(super) fn to_instant(call: &Call<'_>) -> Result<ArrayRef> {
    if let Some(done) = by_cast(call) {
        return done;
    }
    let found = read(call, |pattern, text| pattern.instant(text, &call.settings.zone))?;
    let array: arrow::array::PrimitiveArray<TimestampMicrosecondType> = found.into_iter().collect();
    Ok(Arc::new(array.with_timezone("UTC")))
}

pub(super) fn to_local(call: &Call<'_>) -> Result<ArrayRef> {
    if let Some(done) = by_cast(call) {
        return done;
    }
    let found = read(call, |pattern, text| pattern.read(text).map(|(local, _)| local))?;
    Ok(Arc::new(found.into_iter().collect::<arrow::array::PrimitiveArray<TimestampMicrosecondType>>()))
}

pub(super) fn unix_type(asked: &Asked<'_>) -> Result<Typed> {
    read_type(asked, DataType::Int64)
}

pub(super) fn unix(call: &Call<'_>) -> Result<ArrayRef> {
    let zone = &call.settings.zone;
    let Some(first) = call.arguments.first() else { return plan_err!("unix_timestamp of nothing") };
    // Towards zero, other than in a cast.
    let seconds = |micros: i64| micros / 1_000_000;
    let found: Vec<Option<i64>> = if text(first.array.data_type()) {
        if call.arguments.len() > 1 {
            read(call, |pattern, text| pattern.instant(text, zone))?
        } else {
            let pattern = compiled("yyyy-MM-dd HH:mm:ss")?;
            let strict = misfit(call) == Misfit::Fail;
            let array = call.array(0)?;
            let texts = array.as_string::<i32>().iter().map(|text| {
                let Some(text) = text else { return Ok(None) };
                match pattern.instant(text, zone) {
                    None if strict => Err(fault("CANNOT_PARSE_TIMESTAMP", format!("'{text}' is no timestamp"))),
                    found => Ok(found),
                }
            });
            texts.collect::<Result<Vec<_>>>()?
        }
    } else {
        let array = cast(&call.array(0)?, &instant(), misfit(call), zone)?;
        array.as_primitive::<TimestampMicrosecondType>().iter().collect()
    };
    Ok(Arc::new(found.into_iter().map(|v| v.map(seconds)).collect::<arrow::array::Int64Array>()))
}
