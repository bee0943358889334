//! Casts to dates and timestamps.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, PrimitiveArray, make_array};
use arrow::datatypes::{DataType, Date32Type, TimestampMicrosecondType};
use datafusion::common::Result;

use super::{Misfit, Numbers, impossible, invalid, numbers, overflow, parsed, relabel};
use crate::plan::functions::types::instant;
use crate::plan::functions::zone::Zone;
use crate::plan::functions::{parse, show};

/// The day of local microseconds.
pub(in crate::plan::functions) fn day_of(micros: i64) -> i32 {
    i32::try_from(micros.div_euclid(parse::DAY_MICROS)).unwrap_or(i32::MAX)
}

pub(super) fn to_date(array: &ArrayRef, to: &DataType, misfit: Misfit, zone: &Zone) -> Result<ArrayRef> {
    Ok(Arc::new(match array.data_type() {
        DataType::Utf8 => parsed::<Date32Type>(array.as_string::<i32>(), to, misfit, parse::date)?,
        DataType::Timestamp(_, with_zone) => {
            let local = |v: i64| if with_zone.is_some() { zone.local(v) } else { v };
            array.as_primitive::<TimestampMicrosecondType>().iter().map(|v| v.map(|v| day_of(local(v)))).collect()
        }
        _ => return impossible(array, to),
    }))
}

/// The starts of days. A column can hold days that no timestamp reaches.
fn starts(
    array: &ArrayRef,
    to: &DataType,
    misfit: Misfit,
    at: impl Fn(i64) -> i64,
) -> Result<PrimitiveArray<TimestampMicrosecondType>> {
    let start = |day: i32| match parse::start_of(day) {
        Some(local) => Ok(Some(at(local))),
        None if misfit == Misfit::Null => Ok(None),
        None => Err(overflow(show::date(day), to)),
    };
    array.as_primitive::<Date32Type>().iter().map(|day| day.map_or(Ok(None), start)).collect()
}

pub(super) fn to_instant(array: &ArrayRef, to: &DataType, misfit: Misfit, zone: &Zone) -> Result<ArrayRef> {
    let out_of_range = |shown: String| match misfit {
        Misfit::Fail => Err(overflow(shown, to)),
        _ => Ok(None),
    };
    let values: PrimitiveArray<TimestampMicrosecondType> = match array.data_type() {
        DataType::Utf8 => parsed(array.as_string::<i32>(), to, misfit, |text| parse::timestamp(text, zone))?,
        DataType::Date32 => starts(array, to, misfit, |local| zone.instant(local))?,
        DataType::Timestamp(_, None) => {
            array.as_primitive::<TimestampMicrosecondType>().iter().map(|v| v.map(|v| zone.instant(v))).collect()
        }
        DataType::Timestamp(_, Some(_)) => array.as_primitive::<TimestampMicrosecondType>().clone(),
        _ => match numbers(array) {
            Some(Numbers::Integers(values)) => values
                .map(|v| {
                    let Some(v) = v else { return Ok(None) };
                    match i64::try_from(v * 1_000_000) {
                        Ok(micros) => Ok(Some(micros)),
                        // Spark stays at the ends.
                        Err(_) => Ok(Some(if v < 0 { i64::MIN } else { i64::MAX })),
                    }
                })
                .collect::<Result<_>>()?,
            Some(Numbers::Decimals(values, scale)) => values
                .map(|v| {
                    v.map_or(Ok(None), |v| {
                        let unit = 10i128.pow(u32::try_from(scale).unwrap_or_default());
                        match v.checked_mul(1_000_000).map(|v| v / unit).and_then(|v| i64::try_from(v).ok()) {
                            Some(micros) => Ok(Some(micros)),
                            None => out_of_range(show::decimal(v, scale)),
                        }
                    })
                })
                .collect::<Result<_>>()?,
            Some(Numbers::Doubles(values)) => values
                .map(|v| match v {
                    Some(v) if v.is_finite() => Ok(Some((v * 1e6) as i64)),
                    Some(v) if misfit == Misfit::Fail => Err(invalid(show::double(v), to)),
                    _ => Ok(None),
                })
                .collect::<Result<_>>()?,
            None => return impossible(array, to),
        },
    };
    let data = values.with_timezone("UTC").into_data();
    relabel(&make_array(data), &if *to == instant() { instant() } else { to.clone() })
}

pub(super) fn to_local(array: &ArrayRef, to: &DataType, misfit: Misfit, zone: &Zone) -> Result<ArrayRef> {
    let values: PrimitiveArray<TimestampMicrosecondType> = match array.data_type() {
        DataType::Utf8 => {
            parsed(array.as_string::<i32>(), to, misfit, |text| parse::local_timestamp(text).map(|(local, _)| local))?
        }
        DataType::Date32 => starts(array, to, misfit, |local| local)?,
        DataType::Timestamp(_, Some(_)) => {
            array.as_primitive::<TimestampMicrosecondType>().iter().map(|v| v.map(|v| zone.local(v))).collect()
        }
        _ => return impossible(array, to),
    };
    Ok(Arc::new(values))
}
