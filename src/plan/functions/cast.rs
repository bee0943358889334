//! Casts as Spark makes them, between all types, with errors, nulls or wrap-around as the session wants.

mod function;
mod instants;

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BooleanArray, ListArray, MapArray, PrimitiveArray, StringArray,
    StringBuilder, StructArray, new_null_array,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    TimeUnit, TimestampMicrosecondType,
};
use datafusion::common::{Result, plan_err};

use super::conditional::spelled;
use super::function::fault;
use super::types::{binary, decimal, entry, integral, item, number, text};
use super::zone::Zone;
use super::{parse, show};
use instants::{to_date, to_instant, to_local};

pub(in crate::plan) use function::SparkCast;
pub(super) use instants::day_of;

/// What becomes of a value that has no form in the wanted type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Misfit {
    /// The row fails.
    Fail,
    /// Null.
    Null,
    /// Null, or for numbers whatever Java's narrowing gives.
    Wrap,
}

/// Whether Spark casts between the types at all.
pub(super) fn allowed(from: &DataType, to: &DataType, ansi: bool) -> bool {
    use DataType::{Boolean, Date32, Null, Timestamp};
    if from == to || *from == Null || alike(from, to) {
        return true;
    }
    if text(to) {
        return true;
    }
    match (from, to) {
        (from, to) if from.is_nested() || to.is_nested() => match (item(from), item(to)) {
            (Some(a), Some(b)) => allowed(a, b, ansi),
            _ => match (entry(from), entry(to)) {
                (Some((ka, va)), Some((kb, vb))) => allowed(ka, kb, ansi) && allowed(va, vb, ansi),
                _ => match (from, to) {
                    (DataType::Struct(a), DataType::Struct(b)) => {
                        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| allowed(a.data_type(), b.data_type(), ansi))
                    }
                    _ => false,
                },
            },
        },
        (from, _) if text(from) => true,
        (from, to) if binary(to) => integral(from) && !ansi,
        (from, _) if binary(from) => false,
        (from, to) if (number(from) || *from == Boolean) && (number(to) || *to == Boolean) => true,
        (from, Timestamp(_, Some(_))) if number(from) => true,
        (Boolean, Timestamp(_, Some(_))) => !ansi,
        (Timestamp(_, Some(_)), to) if number(to) => true,
        (Timestamp(_, Some(_)), Boolean) => !ansi,
        (Date32, to) if number(to) || *to == Boolean => !ansi,
        (Date32 | Timestamp(..), Date32 | Timestamp(..)) => true,
        _ => false,
    }
}

/// Equal but for the names that arrays and maps give their parts.
fn alike(a: &DataType, b: &DataType) -> bool {
    a.equals_datatype(b)
        || match (item(a), item(b)) {
            (Some(a), Some(b)) => alike(a, b),
            _ => match (entry(a), entry(b)) {
                (Some((ka, va)), Some((kb, vb))) => alike(ka, kb) && alike(va, vb),
                _ => match (a, b) {
                    (DataType::Struct(a), DataType::Struct(b)) => {
                        a.len() == b.len()
                            && a.iter().zip(b).all(|(a, b)| a.name() == b.name() && alike(a.data_type(), b.data_type()))
                    }
                    _ => false,
                },
            },
        }
}

/// The array as another type of the same layout.
pub(super) fn relabel(array: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    if array.data_type() == to {
        return Ok(Arc::clone(array));
    }
    if array.data_type().is_null() {
        return Ok(new_null_array(to, array.len()));
    }
    match (array.data_type(), to) {
        (DataType::List(_), DataType::List(field)) => {
            let list = array.as_list::<i32>();
            let values = relabel(list.values(), field.data_type())?;
            Ok(Arc::new(ListArray::try_new(Arc::clone(field), list.offsets().clone(), values, list.nulls().cloned())?))
        }
        (DataType::Struct(_), DataType::Struct(fields)) => {
            let given = array.as_struct();
            let columns = given
                .columns()
                .iter()
                .zip(fields)
                .map(|(column, field)| relabel(column, field.data_type()))
                .collect::<Result<Vec<_>>>()?;
            Ok(Arc::new(StructArray::try_new_with_length(
                fields.clone(),
                columns,
                given.nulls().cloned(),
                given.len(),
            )?))
        }
        (DataType::Map(..), DataType::Map(field, sorted)) => {
            let map = array.as_map();
            let entries: ArrayRef = Arc::new(map.entries().clone());
            let entries = relabel(&entries, field.data_type())?;
            Ok(Arc::new(MapArray::try_new(
                Arc::clone(field),
                map.offsets().clone(),
                entries.as_struct().clone(),
                map.nulls().cloned(),
                *sorted,
            )?))
        }
        _ => Ok(arrow::compute::cast(array, to)?),
    }
}

fn invalid(shown: impl std::fmt::Display, to: &DataType) -> datafusion::common::DataFusionError {
    fault("CAST_INVALID_INPUT", format!("the value '{shown}' cannot be cast to {}", spelled(to).to_uppercase()))
}

fn overflow(shown: impl std::fmt::Display, to: &DataType) -> datafusion::common::DataFusionError {
    fault("CAST_OVERFLOW", format!("the value {shown} is outside the range of {}", spelled(to).to_uppercase()))
}

/// Casts every value.
pub(super) fn cast(array: &ArrayRef, to: &DataType, misfit: Misfit, zone: &Zone) -> Result<ArrayRef> {
    let from = array.data_type();
    if from == to {
        return Ok(Arc::clone(array));
    }
    if from.is_null() {
        return Ok(new_null_array(to, array.len()));
    }
    if alike(from, to) {
        return relabel(array, to);
    }
    if let Some(plain) = plain_form(from) {
        let array = arrow::compute::cast(array, &plain)?;
        return cast(&array, to, misfit, zone);
    }
    if from.is_nested() && !text(to) {
        return nested(array, to, misfit, zone);
    }
    match to {
        DataType::Utf8 => to_text(array, misfit, zone),
        DataType::LargeUtf8 | DataType::Utf8View => Ok(arrow::compute::cast(&to_text(array, misfit, zone)?, to)?),
        DataType::Binary => to_binary(array),
        DataType::Boolean => to_boolean(array, to, misfit),
        DataType::Int8 => to_integer::<Int8Type>(array, to, misfit, |v| i8::try_from(v).ok(), |v| v as i8),
        DataType::Int16 => to_integer::<Int16Type>(array, to, misfit, |v| i16::try_from(v).ok(), |v| v as i16),
        DataType::Int32 => to_integer::<Int32Type>(array, to, misfit, |v| i32::try_from(v).ok(), |v| v as i32),
        DataType::Int64 => to_integer::<Int64Type>(array, to, misfit, |v| i64::try_from(v).ok(), |v| v as i64),
        DataType::Float32 => {
            let doubles = to_double(array, to, misfit)?;
            // From text in one step: through a double the last bit may differ.
            if let Some(texts) = array.as_string_opt::<i32>() {
                let floats = texts.iter().zip(doubles.iter()).map(|(text, double)| {
                    let direct = text.and_then(|t| parse::trimmed(t).parse::<f32>().ok());
                    double.map(|d| direct.unwrap_or(d as f32))
                });
                return Ok(Arc::new(floats.collect::<PrimitiveArray<Float32Type>>()));
            }
            Ok(Arc::new(doubles.iter().map(|v| v.map(|v| v as f32)).collect::<PrimitiveArray<Float32Type>>()))
        }
        DataType::Float64 => Ok(Arc::new(to_double(array, to, misfit)?)),
        DataType::Decimal128(precision, scale) => to_decimal(array, to, *precision, *scale, misfit),
        DataType::Date32 => to_date(array, to, misfit, zone),
        DataType::Timestamp(TimeUnit::Microsecond, Some(_)) => to_instant(array, to, misfit, zone),
        DataType::Timestamp(TimeUnit::Microsecond, None) => to_local(array, to, misfit, zone),
        _ => Ok(arrow::compute::cast(array, to)?),
    }
}

/// The one form of a type that the casts know, where it is not that already.
fn plain_form(t: &DataType) -> Option<DataType> {
    Some(match t {
        DataType::LargeUtf8 | DataType::Utf8View => DataType::Utf8,
        DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => DataType::Binary,
        DataType::UInt8 => DataType::Int16,
        DataType::UInt16 => DataType::Int32,
        DataType::UInt32 => DataType::Int64,
        DataType::UInt64 => DataType::Decimal128(20, 0),
        DataType::Float16 => DataType::Float32,
        DataType::Date64 => DataType::Date32,
        DataType::Decimal32(p, s) | DataType::Decimal64(p, s) => DataType::Decimal128(*p, *s),
        DataType::Timestamp(TimeUnit::Microsecond, _) => return None,
        DataType::Timestamp(_, zone) => DataType::Timestamp(TimeUnit::Microsecond, zone.clone()),
        DataType::Dictionary(_, value) => value.as_ref().clone(),
        DataType::LargeList(f) | DataType::FixedSizeList(f, _) => DataType::List(Arc::clone(f)),
        _ => return None,
    })
}

fn nested(array: &ArrayRef, to: &DataType, misfit: Misfit, zone: &Zone) -> Result<ArrayRef> {
    match (array.data_type(), to) {
        (DataType::List(_), DataType::List(field)) => {
            let list = array.as_list::<i32>();
            let (offsets, used) = used(list.offsets());
            let values = cast(&list.values().slice(used.start, used.len()), field.data_type(), misfit, zone)?;
            Ok(Arc::new(ListArray::try_new(Arc::clone(field), offsets, values, list.nulls().cloned())?))
        }
        (DataType::Struct(_), DataType::Struct(fields)) if fields.len() == array.as_struct().num_columns() => {
            let given = array.as_struct();
            let columns = given
                .columns()
                .iter()
                .zip(fields)
                .map(|(column, field)| {
                    // What stands below a null struct counts for nothing.
                    let column = super::structs::masked(column, given.nulls())?;
                    cast(&column, field.data_type(), misfit, zone)
                })
                .collect::<Result<Vec<_>>>()?;
            let nulls = given.nulls().cloned();
            Ok(Arc::new(StructArray::try_new_with_length(fields.clone(), columns, nulls, given.len())?))
        }
        (DataType::Map(..), DataType::Map(field, sorted)) => {
            let map = array.as_map();
            let (offsets, used) = used(map.offsets());
            let entries: ArrayRef = Arc::new(map.entries().slice(used.start, used.len()));
            let entries = cast(&entries, field.data_type(), misfit, zone)?;
            Ok(Arc::new(MapArray::try_new(
                Arc::clone(field),
                offsets,
                entries.as_struct().clone(),
                map.nulls().cloned(),
                *sorted,
            )?))
        }
        (from, to) => plan_err!("{from} cannot be cast to {to}"),
    }
}

/// The part of the values that offsets point to, and the offsets into that part.
fn used(offsets: &OffsetBuffer<i32>) -> (OffsetBuffer<i32>, Range<usize>) {
    let end = |offset: Option<&i32>| offset.and_then(|o| usize::try_from(*o).ok()).unwrap_or_default();
    let part = end(offsets.first())..end(offsets.last());
    (OffsetBuffer::from_lengths(offsets.lengths()), part)
}

fn to_text(array: &ArrayRef, misfit: Misfit, zone: &Zone) -> Result<ArrayRef> {
    let style = show::Style { zone, exponents: misfit == Misfit::Wrap };
    let mut builder = StringBuilder::new();
    for at in 0..array.len() {
        builder.append_option(show::value(array, at, &style)?);
    }
    Ok(Arc::new(builder.finish()))
}

fn to_binary(array: &ArrayRef) -> Result<ArrayRef> {
    macro_rules! bytes {
        ($t:ty) => {
            Ok(Arc::new(
                array.as_primitive::<$t>().iter().map(|v| v.map(|v| v.to_be_bytes().to_vec())).collect::<BinaryArray>(),
            ))
        };
    }
    match array.data_type() {
        DataType::Utf8 => {
            Ok(Arc::new(array.as_string::<i32>().iter().map(|v| v.map(str::as_bytes)).collect::<BinaryArray>()))
        }
        DataType::Int8 => bytes!(Int8Type),
        DataType::Int16 => bytes!(Int16Type),
        DataType::Int32 => bytes!(Int32Type),
        DataType::Int64 => bytes!(Int64Type),
        from => plan_err!("{from} cannot be cast to BINARY"),
    }
}

/// A number as one of the three forms that all conversions start from.
enum Numbers<'a> {
    Integers(Box<dyn Iterator<Item = Option<i128>> + 'a>),
    Doubles(Box<dyn Iterator<Item = Option<f64>> + 'a>),
    Decimals(Box<dyn Iterator<Item = Option<i128>> + 'a>, i8),
}

fn numbers(array: &ArrayRef) -> Option<Numbers<'_>> {
    macro_rules! integers {
        ($t:ty) => {
            Numbers::Integers(Box::new(array.as_primitive::<$t>().iter().map(|v| v.map(i128::from))))
        };
    }
    Some(match array.data_type() {
        DataType::Int8 => integers!(Int8Type),
        DataType::Int16 => integers!(Int16Type),
        DataType::Int32 => integers!(Int32Type),
        DataType::Int64 => integers!(Int64Type),
        DataType::Boolean => Numbers::Integers(Box::new(array.as_boolean().iter().map(|v| v.map(i128::from)))),
        DataType::Float32 => {
            Numbers::Doubles(Box::new(array.as_primitive::<Float32Type>().iter().map(|v| v.map(f64::from))))
        }
        DataType::Float64 => Numbers::Doubles(Box::new(array.as_primitive::<Float64Type>().iter())),
        DataType::Decimal128(_, scale) => {
            Numbers::Decimals(Box::new(array.as_primitive::<Decimal128Type>().iter()), *scale)
        }
        // Whole seconds.
        DataType::Timestamp(_, Some(_)) => Numbers::Integers(Box::new(
            array
                .as_primitive::<TimestampMicrosecondType>()
                .iter()
                .map(|v| v.map(|v| i128::from(v.div_euclid(1_000_000)))),
        )),
        _ => return None,
    })
}

fn impossible<T>(array: &ArrayRef, to: &DataType) -> Result<T> {
    plan_err!("{} cannot be cast to {to}", array.data_type())
}

fn to_integer<T>(
    array: &ArrayRef,
    to: &DataType,
    misfit: Misfit,
    exact: fn(i128) -> Option<T::Native>,
    narrow: fn(i128) -> T::Native,
) -> Result<ArrayRef>
where
    T: ArrowPrimitiveType,
{
    if let Some(texts) = array.as_string_opt::<i32>() {
        let values = texts.iter().map(|text| {
            let Some(text) = text else { return Ok(None) };
            match parse::integer(text, misfit == Misfit::Wrap).and_then(exact) {
                Some(value) => Ok(Some(value)),
                None if misfit == Misfit::Fail => Err(invalid(text, to)),
                None => Ok(None),
            }
        });
        return Ok(Arc::new(values.collect::<Result<PrimitiveArray<T>>>()?));
    }
    let whole = |value: i128, shown: &dyn Fn() -> String| match exact(value) {
        Some(value) => Ok(Some(value)),
        None => match misfit {
            Misfit::Fail => Err(overflow(shown(), to)),
            Misfit::Null => Ok(None),
            Misfit::Wrap => Ok(Some(narrow(value))),
        },
    };
    let found: PrimitiveArray<T> = match numbers(array) {
        Some(Numbers::Integers(values)) => {
            values.map(|v| v.map_or(Ok(None), |v| whole(v, &|| v.to_string()))).collect::<Result<_>>()?
        }
        Some(Numbers::Decimals(values, scale)) => {
            let unit = 10i128.pow(u32::try_from(scale).unwrap_or_default());
            values
                .map(|v| v.map_or(Ok(None), |v| whole(v / unit, &|| show::decimal(v, scale))))
                .collect::<Result<_>>()?
        }
        Some(Numbers::Doubles(values)) => values
            .map(|v| {
                let Some(v) = v else { return Ok(None) };
                let bounded = match misfit {
                    // Java goes to INT or BIGINT first, and stays at its ends.
                    Misfit::Wrap if matches!(to, DataType::Int64) => i128::from(v as i64),
                    Misfit::Wrap => i128::from(v as i32),
                    _ if v.is_nan() => i128::MAX,
                    _ => v.trunc() as i128,
                };
                whole(bounded, &|| show::double(v))
            })
            .collect::<Result<_>>()?,
        None => match array.data_type() {
            DataType::Date32 => return Ok(new_null_array(to, array.len())),
            _ => return impossible(array, to),
        },
    };
    Ok(Arc::new(found))
}

fn to_double(array: &ArrayRef, to: &DataType, misfit: Misfit) -> Result<PrimitiveArray<Float64Type>> {
    if let Some(texts) = array.as_string_opt::<i32>() {
        return texts
            .iter()
            .map(|text| {
                let Some(text) = text else { return Ok(None) };
                match parse::double(text) {
                    Some(value) => Ok(Some(value)),
                    None if misfit == Misfit::Fail => Err(invalid(text, to)),
                    None => Ok(None),
                }
            })
            .collect();
    }
    if let DataType::Timestamp(_, Some(_)) = array.data_type() {
        let values = array.as_primitive::<TimestampMicrosecondType>().iter();
        return Ok(values.map(|v| v.map(|v| v as f64 / 1e6)).collect());
    }
    Ok(match numbers(array) {
        Some(Numbers::Integers(values)) => values.map(|v| v.map(|v| v as f64)).collect(),
        Some(Numbers::Doubles(values)) => values.collect(),
        // Through text: dividing by a power of ten may miss the nearest double.
        Some(Numbers::Decimals(values, scale)) => {
            values.map(|v| v.and_then(|v| show::decimal(v, scale).parse().ok())).collect()
        }
        None if *array.data_type() == DataType::Date32 => PrimitiveArray::new_null(array.len()),
        None => return impossible(array, to),
    })
}

fn to_boolean(array: &ArrayRef, to: &DataType, misfit: Misfit) -> Result<ArrayRef> {
    if let Some(texts) = array.as_string_opt::<i32>() {
        let values = texts.iter().map(|text| {
            let Some(text) = text else { return Ok(None) };
            match parse::boolean(text) {
                Some(value) => Ok(Some(value)),
                None if misfit == Misfit::Fail => Err(invalid(text, to)),
                None => Ok(None),
            }
        });
        return Ok(Arc::new(values.collect::<Result<BooleanArray>>()?));
    }
    let values: BooleanArray = match numbers(array) {
        Some(Numbers::Integers(values)) | Some(Numbers::Decimals(values, _)) => {
            values.map(|v| v.map(|v| v != 0)).collect()
        }
        Some(Numbers::Doubles(values)) => values.map(|v| v.map(|v| v != 0.0)).collect(),
        None if *array.data_type() == DataType::Date32 => BooleanArray::new_null(array.len()),
        None => return impossible(array, to),
    };
    Ok(Arc::new(values))
}

/// The value rounded half up from one scale to another.
pub(super) fn rescaled(value: i128, from: i8, to: i8) -> Option<i128> {
    match i32::from(to) - i32::from(from) {
        0 => Some(value),
        up @ 1.. => value.checked_mul(10i128.checked_pow(up.unsigned_abs())?),
        down => match 10i128.checked_pow(down.unsigned_abs()) {
            Some(unit) => {
                let rest = value % unit;
                let up = rest.unsigned_abs() >= unit.unsigned_abs() / 2 + unit.unsigned_abs() % 2;
                Some(value / unit + if up { value.signum() } else { 0 })
            }
            None => Some(0),
        },
    }
}

fn to_decimal(array: &ArrayRef, to: &DataType, precision: u8, scale: i8, misfit: Misfit) -> Result<ArrayRef> {
    let limit = 10i128.pow(u32::from(precision.min(38)));
    let fitting = |value: Option<i128>, shown: &dyn Fn() -> String| match value.filter(|v| v.abs() < limit) {
        Some(value) => Ok(Some(value)),
        None if misfit == Misfit::Fail => Err(fault(
            "NUMERIC_VALUE_OUT_OF_RANGE",
            format!("the value {} has no place in DECIMAL({precision}, {scale})", shown()),
        )),
        None => Ok(None),
    };
    let values: PrimitiveArray<Decimal128Type> = if let Some(texts) = array.as_string_opt::<i32>() {
        texts
            .iter()
            .map(|text| {
                let Some(text) = text else { return Ok(None) };
                if parse::decimal(text).is_none() {
                    return if misfit == Misfit::Fail { Err(invalid(text, to)) } else { Ok(None) };
                }
                fitting(parse::scaled(text, i32::from(scale)), &|| text.to_owned())
            })
            .collect::<Result<_>>()?
    } else {
        match numbers(array) {
            Some(Numbers::Integers(values)) => values
                .map(|v| v.map_or(Ok(None), |v| fitting(rescaled(v, 0, scale), &|| v.to_string())))
                .collect::<Result<_>>()?,
            Some(Numbers::Decimals(values, from)) => values
                .map(|v| v.map_or(Ok(None), |v| fitting(rescaled(v, from, scale), &|| show::decimal(v, from))))
                .collect::<Result<_>>()?,
            Some(Numbers::Doubles(values)) => values
                .map(|v| {
                    let Some(v) = v else { return Ok(None) };
                    // Spark has no error for this, whatever the mode.
                    if !v.is_finite() {
                        return Ok(None);
                    }
                    fitting(parse::scaled(&format!("{v:e}"), i32::from(scale)), &|| show::double(v))
                })
                .collect::<Result<_>>()?,
            None if *array.data_type() == DataType::Date32 => PrimitiveArray::new_null(array.len()),
            None => return impossible(array, to),
        }
    };
    Ok(Arc::new(values.with_precision_and_scale(precision, scale)?))
}

fn parsed<T: ArrowPrimitiveType>(
    texts: &StringArray,
    to: &DataType,
    misfit: Misfit,
    read: impl Fn(&str) -> Option<T::Native>,
) -> Result<PrimitiveArray<T>> {
    texts
        .iter()
        .map(|text| {
            let Some(text) = text else { return Ok(None) };
            match read(text) {
                Some(value) => Ok(Some(value)),
                None if misfit == Misfit::Fail => Err(invalid(text, to)),
                None => Ok(None),
            }
        })
        .collect()
}

/// Whether a decimal type stands anywhere in the cast, or text: then it is Spark's alone. All other widenings mean the
/// same everywhere, and stay with the planner, which can move them about.
pub(super) fn plain(from: &DataType, to: &DataType) -> bool {
    let rank = |t: &DataType| match t {
        DataType::Int8 => Some(1),
        DataType::Int16 => Some(2),
        DataType::Int32 => Some(3),
        DataType::Int64 => Some(4),
        _ => None,
    };
    match (rank(from), rank(to)) {
        (Some(a), Some(b)) => a <= b,
        (Some(_), None) => matches!(to, DataType::Float64),
        _ => match (from, to) {
            (DataType::Null, _) => true,
            (a, b) if text(a) && text(b) => true,
            (DataType::Float32, DataType::Float64) => true,
            (a, DataType::Decimal128(p, s)) if decimal(a) => match a {
                DataType::Decimal128(ap, as_) => {
                    as_ <= s && i32::from(*p) - i32::from(*s) >= i32::from(*ap) - i32::from(*as_)
                }
                _ => false,
            },
            _ => false,
        },
    }
}
