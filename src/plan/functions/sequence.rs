//! `sequence(start, stop[, step])` over integers, dates and timestamps.

use std::sync::Arc;

use arrow::array::{ArrayBuilder, ArrayRef, AsArray, ListBuilder, PrimitiveBuilder};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Date32Type, Field, Int8Type, Int16Type, Int32Type, Int64Type, IntervalMonthDayNano,
    IntervalMonthDayNanoType, IntervalUnit, TimestampMicrosecondType,
};
use datafusion::common::{Result, plan_err};

use super::datetime::{instant_plus_months, plus_months};
use super::function::{Asked, CALL_ELEMENTS, Call, MOST_ELEMENTS, TOO_LARGE, Typed, fault};
use super::parse::DAY_MICROS;
use super::types::{common_two, instant, integral, list_of, text};

pub(super) fn typing(asked: &Asked<'_>) -> Result<Typed> {
    let (start, stop) = (asked.of(0)?, asked.of(1)?);
    let Some(one) = common_two(start, stop, asked.settings.ansi) else {
        return plan_err!("sequence takes a start and a stop of one type");
    };
    let of = match one {
        t if integral(&t) => t,
        DataType::Date32 => DataType::Date32,
        DataType::Timestamp(..) => instant(),
        t if t.is_null() => DataType::Int32,
        other => return plan_err!("sequence takes integers, dates or timestamps, not {other}"),
    };
    let mut arguments = vec![of.clone(), of.clone()];
    if let Some(step) = asked.types.get(2) {
        arguments.push(match (&of, step) {
            (t, s) if integral(t) && (integral(s) || s.is_null() || text(s)) => t.clone(),
            (t, DataType::Interval(_)) if !integral(t) => DataType::Interval(IntervalUnit::MonthDayNano),
            (t, s) => return plan_err!("a sequence of {t} takes no step of {s}"),
        });
    }
    Ok(Typed { arguments, result: list_of(of) })
}

pub(super) fn compute(call: &Call<'_>) -> Result<ArrayRef> {
    let DataType::List(field) = call.result else { return plan_err!("sequence gives an array") };
    match field.data_type() {
        DataType::Int8 => integers::<Int8Type>(call),
        DataType::Int16 => integers::<Int16Type>(call),
        DataType::Int32 => integers::<Int32Type>(call),
        DataType::Int64 => integers::<Int64Type>(call),
        DataType::Date32 => moments::<Date32Type>(call),
        _ => moments::<TimestampMicrosecondType>(call),
    }
}

fn boundaries(shown: impl std::fmt::Display) -> datafusion::common::DataFusionError {
    fault("INVALID_PARAMETER_VALUE.SEQUENCE", format!("no sequence leads there: {shown}"))
}

fn too_long() -> datafusion::common::DataFusionError {
    fault(TOO_LARGE, format!("a sequence has at most {MOST_ELEMENTS} elements"))
}

fn integers<T>(call: &Call<'_>) -> Result<ArrayRef>
where
    T: ArrowPrimitiveType,
    T::Native: Into<i64> + TryFrom<i64>,
{
    let arrays = (0..call.arguments.len()).map(|i| call.array(i)).collect::<Result<Vec<_>>>()?;
    let value = |argument: usize, row: usize| -> Option<i64> {
        arrays.get(argument).map(|a| a.as_primitive::<T>().value(row).into())
    };
    let mut builder =
        ListBuilder::new(PrimitiveBuilder::<T>::new()).with_field(Field::new("element", T::DATA_TYPE, true));
    for row in 0..call.rows {
        if call.row(row).any_null() {
            builder.append_null();
            continue;
        }
        let (start, stop) = (value(0, row).unwrap_or_default(), value(1, row).unwrap_or_default());
        let step = value(2, row).unwrap_or(if start <= stop { 1 } else { -1 });
        let leads = step > 0 && start <= stop || step < 0 && start >= stop || step == 0 && start == stop;
        if !leads {
            return Err(boundaries(format!("{start} to {stop} by {step}")));
        }
        let count = if step == 0 { 0 } else { (i128::from(stop) - i128::from(start)) / i128::from(step) };
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count >= MOST_ELEMENTS || builder.values_ref().len() > CALL_ELEMENTS {
            return Err(too_long());
        }
        let mut next = i128::from(start);
        for _ in 0..=count {
            builder.values().append_option(i64::try_from(next).ok().and_then(|v| T::Native::try_from(v).ok()));
            next += i128::from(step);
        }
        builder.append(true);
    }
    Ok(Arc::new(builder.finish()))
}

/// Dates and timestamps, each so many steps from the start that the end of a month does not wear off.
fn moments<T>(call: &Call<'_>) -> Result<ArrayRef>
where
    T: ArrowPrimitiveType,
    T::Native: Into<i64> + TryFrom<i64>,
{
    let arrays = (0..call.arguments.len()).map(|i| call.array(i)).collect::<Result<Vec<_>>>()?;
    let dates = T::DATA_TYPE == DataType::Date32;
    let element = if dates { DataType::Date32 } else { instant() };
    let values = PrimitiveBuilder::<T>::new().with_data_type(element.clone());
    let mut builder = ListBuilder::new(values).with_field(Field::new("element", element, true));
    let zone = &call.settings.zone;
    for row in 0..call.rows {
        if call.row(row).any_null() {
            builder.append_null();
            continue;
        }
        let value = |argument: usize| -> i64 {
            arrays.get(argument).map(|a| a.as_primitive::<T>().value(row).into()).unwrap_or_default()
        };
        let (start, stop) = (value(0), value(1));
        let step = match arrays.get(2) {
            Some(steps) => steps.as_primitive::<IntervalMonthDayNanoType>().value(row),
            None => IntervalMonthDayNano::new(0, if start <= stop { 1 } else { -1 }, 0),
        };
        // Wide enough for any step so often: no sum here overflows.
        let day = i128::from(DAY_MICROS);
        let fixed = i128::from(step.days) * day + i128::from(step.nanoseconds / 1000);
        let forward = i128::from(step.months) * 31 * day + fixed;
        if forward == 0 && start != stop || forward > 0 && start > stop || forward < 0 && start < stop {
            return Err(boundaries("the step goes the other way"));
        }
        let mut count = 0i64;
        loop {
            let months = i64::from(step.months) * count;
            let rest = fixed * i128::from(count);
            let next = if dates {
                let moved = i32::try_from(start).ok().and_then(|day| plus_months(day, months)).map(i128::from);
                moved.map(|moved| moved + rest.div_euclid(day))
            } else {
                instant_plus_months(start, months, zone).map(|at| i128::from(at) + rest)
            };
            let Some(next) = next.and_then(|next| i64::try_from(next).ok()) else { break };
            if forward >= 0 && next > stop || forward < 0 && next < stop {
                break;
            }
            builder.values().append_option(T::Native::try_from(next).ok());
            count += 1;
            if usize::try_from(count).unwrap_or(usize::MAX) > MOST_ELEMENTS
                || builder.values_ref().len() > CALL_ELEMENTS
            {
                return Err(too_long());
            }
            if forward == 0 {
                break;
            }
        }
        builder.append(true);
    }
    Ok(Arc::new(builder.finish()))
}
