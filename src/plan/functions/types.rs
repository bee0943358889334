//! Types as Spark relates them: which one two have in common, and what decimal arithmetic gives.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, TimeUnit};

/// Most digits that a decimal has.
pub(super) const DIGITS: u8 = 38;

pub(in crate::plan) fn instant() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
}

pub(super) fn local() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, None)
}

pub(super) fn double() -> DataType {
    DataType::Float64
}

pub(super) fn list_of(item: DataType) -> DataType {
    DataType::List(Arc::new(Field::new("element", item, true)))
}

pub(super) fn map_of(key: DataType, value: DataType) -> DataType {
    let fields = Fields::from(vec![Field::new("key", key, false), Field::new("value", value, true)]);
    DataType::Map(Arc::new(Field::new("key_value", DataType::Struct(fields), false)), false)
}

/// Element type of an array.
pub(super) fn item(list: &DataType) -> Option<&DataType> {
    match list {
        DataType::List(f) | DataType::LargeList(f) | DataType::FixedSizeList(f, _) => Some(f.data_type()),
        _ => None,
    }
}

/// Key and value type of a map.
pub(super) fn entry(map: &DataType) -> Option<(&DataType, &DataType)> {
    match map {
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(fields) => match fields.as_ref() {
                [key, value] => Some((key.data_type(), value.data_type())),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    }
}

pub(in crate::plan) fn text(t: &DataType) -> bool {
    matches!(t, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

pub(super) fn binary(t: &DataType) -> bool {
    matches!(t, DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_))
}

pub(super) fn integral(t: &DataType) -> bool {
    t.is_integer()
}

pub(super) fn decimal(t: &DataType) -> bool {
    matches!(t, DataType::Decimal32(..) | DataType::Decimal64(..) | DataType::Decimal128(..) | DataType::Decimal256(..))
}

pub(super) fn number(t: &DataType) -> bool {
    t.is_numeric()
}

/// Precision and scale that hold every value of a number's type exactly.
pub(super) fn as_decimal(t: &DataType) -> Option<(u8, i8)> {
    Some(match t {
        DataType::Decimal32(p, s) | DataType::Decimal64(p, s) | DataType::Decimal128(p, s) => (*p, *s),
        DataType::Int8 | DataType::UInt8 => (3, 0),
        DataType::Int16 | DataType::UInt16 => (5, 0),
        DataType::Int32 | DataType::UInt32 => (10, 0),
        DataType::Int64 | DataType::UInt64 => (20, 0),
        _ => return None,
    })
}

/// A decimal type of at most 38 digits that keeps the integral ones, and of the scale at least six if there were so many.
pub(super) fn bounded(precision: i32, scale: i32) -> DataType {
    let most = i32::from(DIGITS);
    if precision <= most {
        return DataType::Decimal128(precision as u8, scale as i8);
    }
    let whole = precision - scale;
    let scale = (most - whole).max(scale.min(6));
    DataType::Decimal128(DIGITS, scale as i8)
}

fn wider(a: (u8, i8), b: (u8, i8)) -> DataType {
    let scale = i32::from(a.1.max(b.1));
    let whole = (i32::from(a.0) - i32::from(a.1)).max(i32::from(b.0) - i32::from(b.1));
    let most = i32::from(DIGITS);
    if whole + scale > most {
        // Digits behind the point go first.
        DataType::Decimal128(DIGITS, (most - whole.min(most)) as i8)
    } else {
        DataType::Decimal128((whole + scale) as u8, scale as i8)
    }
}

fn rank(t: &DataType) -> Option<u8> {
    Some(match t {
        DataType::Int8 => 1,
        DataType::UInt8 | DataType::Int16 => 2,
        DataType::UInt16 | DataType::Int32 => 3,
        DataType::UInt32 | DataType::Int64 | DataType::UInt64 => 4,
        DataType::Float16 | DataType::Float32 => 5,
        DataType::Float64 => 6,
        _ => return None,
    })
}

/// The common type of two numbers.
pub(super) fn common_number(a: &DataType, b: &DataType) -> Option<DataType> {
    if decimal(a) || decimal(b) {
        return Some(match (as_decimal(a), as_decimal(b)) {
            (Some(a), Some(b)) => wider(a, b),
            _ => DataType::Float64,
        });
    }
    let (ra, rb) = (rank(a)?, rank(b)?);
    // A float holds no integer exactly; with ANSI or without, the two meet in the wider of them.
    Some(match ra.max(rb) {
        1 => DataType::Int8,
        2 => DataType::Int16,
        3 => DataType::Int32,
        4 => DataType::Int64,
        5 => DataType::Float32,
        _ => DataType::Float64,
    })
}

/// The type that two have in common, as in CASE, coalesce and comparisons.
pub(super) fn common_two(a: &DataType, b: &DataType, ansi: bool) -> Option<DataType> {
    use DataType::{Boolean, Date32, Null, Timestamp, Utf8};
    Some(match (a, b) {
        (a, b) if a == b => a.clone(),
        (Null, other) | (other, Null) => other.clone(),
        (a, b) if text(a) && text(b) => Utf8,
        (a, b) if number(a) && number(b) => {
            let float = |t: &DataType| matches!(t, DataType::Float32);
            if ansi && (float(a) && integral(b) || float(b) && integral(a)) {
                DataType::Float64
            } else {
                common_number(a, b)?
            }
        }
        (Date32, Timestamp(_, zone)) | (Timestamp(_, zone), Date32) => {
            if zone.is_some() {
                instant()
            } else {
                local()
            }
        }
        (Timestamp(..), Timestamp(..)) => instant(),
        (string, other) | (other, string) if text(string) && !other.is_nested() => {
            if !ansi {
                return (!binary(other) && *other != Boolean).then_some(Utf8);
            }
            match other {
                other if integral(other) => DataType::Int64,
                other if number(other) => DataType::Float64,
                other => other.clone(),
            }
        }
        (a, b) => match (item(a), item(b)) {
            (Some(a), Some(b)) => list_of(common_two(a, b, ansi)?),
            _ => match (entry(a), entry(b)) {
                (Some((ka, va)), Some((kb, vb))) => map_of(common_two(ka, kb, ansi)?, common_two(va, vb, ansi)?),
                _ => match (a, b) {
                    (DataType::Struct(a), DataType::Struct(b)) if a.len() == b.len() => DataType::Struct(
                        a.iter()
                            .zip(b)
                            .map(|(a, b)| {
                                Some(Field::new(a.name(), common_two(a.data_type(), b.data_type(), ansi)?, true))
                            })
                            .collect::<Option<Fields>>()?,
                    ),
                    _ => return None,
                },
            },
        },
    })
}

/// The type that all have in common.
pub(in crate::plan) fn common<'a>(types: impl IntoIterator<Item = &'a DataType>, ansi: bool) -> Option<DataType> {
    let mut found = DataType::Null;
    for t in types {
        found = common_two(&found, t, ansi)?;
    }
    Some(found)
}
