//! `from_json`: values of a schema from JSON text. What does not fit its type is null, and what is no JSON has nulls only.

use std::rc::Rc;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, ListArray, MapArray, PrimitiveArray, StringArray, StructArray, make_array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, TimestampMicrosecondType,
};
use datafusion::common::{Result, not_impl_err};
use serde_json::value::RawValue;

use super::function::fault;
use super::json::{Shape, parse, shape, shown};
use super::parse as text;
use super::pattern::Pattern;
use super::zone::Zone;

/// Options of reading and writing.
#[derive(Default)]
pub(super) struct Options {
    pub(super) date: Option<Rc<Pattern>>,
    pub(super) timestamp: Option<Rc<Pattern>>,
    /// What is no JSON fails the row.
    pub(super) strict: bool,
    /// Nulls are written.
    pub(super) nulls: bool,
}

/// A value that fits its type.
#[derive(Clone)]
enum Value {
    Null,
    Bool(bool),
    Whole(i64),
    Real(f64),
    Fixed(i128),
    Text(String),
    Bytes(Vec<u8>),
    List(Vec<Value>),
    Members(Vec<Value>),
    Entries(Vec<(String, Value)>),
}

struct Reader<'a> {
    options: &'a Options,
    zone: &'a Zone,
}

/// Reads each text as a value of `to`.
pub(super) fn read(to: &DataType, texts: &[Option<&str>], options: &Options, zone: &Zone) -> Result<ArrayRef> {
    let reader = Reader { options, zone };
    let mut values = Vec::with_capacity(texts.len());
    for text in texts {
        let Some(text) = text.filter(|t| !t.trim().is_empty()) else {
            values.push(Value::Null);
            continue;
        };
        let found = parse(text).and_then(|raw| reader.root(to, raw));
        values.push(match (found, to) {
            (Some(value), _) => value,
            (None, _) if options.strict => {
                return Err(fault("MALFORMED_RECORD_IN_PARSING", format!("'{text}' is not of the schema")));
            }
            (None, DataType::Struct(fields)) => Value::Members(vec![Value::Null; fields.len()]),
            (None, _) => Value::Null,
        });
    }
    built(to, values)
}

impl Reader<'_> {
    /// The outermost value: an object stands for an array of itself.
    fn root(&self, to: &DataType, raw: &RawValue) -> Option<Value> {
        match (to, shape(raw)?) {
            (DataType::List(item), Shape::Object(_)) if matches!(item.data_type(), DataType::Struct(_)) => {
                Some(Value::List(vec![self.value(item.data_type(), raw)?]))
            }
            (_, Shape::Null) => None,
            _ => self.value(to, raw),
        }
    }

    /// `None` for what does not fit.
    fn value(&self, to: &DataType, raw: &RawValue) -> Option<Value> {
        let given = shape(raw)?;
        if matches!(given, Shape::Null) {
            return Some(Value::Null);
        }
        let whole = |least: i64, most: i64, given: Shape<'_>| match given {
            Shape::Number(digits) => {
                digits.parse::<i64>().ok().filter(|v| (least..=most).contains(v)).map(Value::Whole)
            }
            _ => None,
        };
        match (to, given) {
            (DataType::Utf8, _) => shown(raw).map(Value::Text),
            (DataType::Boolean, Shape::Bool(value)) => Some(Value::Bool(value)),
            (DataType::Int8, given) => whole(i8::MIN.into(), i8::MAX.into(), given),
            (DataType::Int16, given) => whole(i16::MIN.into(), i16::MAX.into(), given),
            (DataType::Int32, given) => whole(i32::MIN.into(), i32::MAX.into(), given),
            (DataType::Int64, given) => whole(i64::MIN, i64::MAX, given),
            (DataType::Float32 | DataType::Float64, Shape::Number(digits)) => digits.parse().ok().map(Value::Real),
            (DataType::Float32 | DataType::Float64, Shape::Text(word)) => match word.as_str() {
                "NaN" => Some(Value::Real(f64::NAN)),
                "Infinity" | "+Infinity" | "INF" | "+INF" => Some(Value::Real(f64::INFINITY)),
                "-Infinity" | "-INF" => Some(Value::Real(f64::NEG_INFINITY)),
                _ => None,
            },
            (DataType::Decimal128(precision, scale), given) => {
                let digits = match &given {
                    Shape::Number(digits) => digits,
                    Shape::Text(digits) => digits.as_str(),
                    _ => return None,
                };
                let limit = 10i128.checked_pow(u32::from(*precision))?;
                text::scaled(digits, i32::from(*scale)).filter(|v| v.abs() < limit).map(Value::Fixed)
            }
            (DataType::Date32, Shape::Text(word)) => {
                let days = match &self.options.date {
                    Some(pattern) => pattern.read(&word).map(|(local, _)| super::cast::day_of(local)),
                    None => text::date(&word),
                };
                days.map(|d| Value::Whole(d.into()))
            }
            (DataType::Timestamp(_, with_zone), Shape::Text(word)) => {
                let (local, zone) = match &self.options.timestamp {
                    Some(pattern) => pattern.read(&word)?,
                    None => text::local_timestamp(&word)?,
                };
                let zone = zone.as_ref().unwrap_or(self.zone);
                Some(Value::Whole(if with_zone.is_some() { zone.instant(local) } else { local }))
            }
            (DataType::Timestamp(_, Some(_)), Shape::Number(digits)) => {
                digits.parse::<i64>().ok().and_then(|s| s.checked_mul(1_000_000)).map(Value::Whole)
            }
            (DataType::Binary, Shape::Text(word)) => super::encode::from_base64(&word).map(Value::Bytes),
            (DataType::List(item), Shape::Array(items)) => {
                let items = items.into_iter().map(|raw| self.value(item.data_type(), raw));
                items.collect::<Option<Vec<_>>>().map(Value::List)
            }
            (DataType::Struct(fields), Shape::Object(members)) => {
                let member = |name: &str| members.iter().rev().find(|(key, _)| key == name).map(|(_, raw)| *raw);
                let values = fields.iter().map(|field| {
                    member(field.name()).and_then(|raw| self.value(field.data_type(), raw)).unwrap_or(Value::Null)
                });
                Some(Value::Members(values.collect()))
            }
            (DataType::Map(..), Shape::Object(members)) => {
                let (key, value) = super::types::entry(to)?;
                if !super::types::text(key) {
                    return None;
                }
                let mut entries: Vec<(String, Value)> = Vec::with_capacity(members.len());
                for (name, raw) in members {
                    let value = self.value(value, raw)?;
                    match entries.iter_mut().find(|(known, _)| *known == name) {
                        Some((_, old)) => *old = value,
                        None => entries.push((name, value)),
                    }
                }
                Some(Value::Entries(entries))
            }
            _ => None,
        }
    }
}

fn primitive<T: ArrowPrimitiveType>(
    values: Vec<Value>,
    native: impl Fn(Value) -> Option<T::Native>,
) -> PrimitiveArray<T> {
    values.into_iter().map(native).collect()
}

/// Values of one type as an array.
fn built(to: &DataType, values: Vec<Value>) -> Result<ArrayRef> {
    fn whole<N: TryFrom<i64>>(value: Value) -> Option<N> {
        match value {
            Value::Whole(v) => N::try_from(v).ok(),
            _ => None,
        }
    }
    let real = |value: Value| match value {
        Value::Real(v) => Some(v),
        _ => None,
    };
    Ok(match to {
        DataType::Boolean => Arc::new(
            values
                .into_iter()
                .map(|v| match v {
                    Value::Bool(v) => Some(v),
                    _ => None,
                })
                .collect::<BooleanArray>(),
        ),
        DataType::Int8 => Arc::new(primitive::<Int8Type>(values, whole)),
        DataType::Int16 => Arc::new(primitive::<Int16Type>(values, whole)),
        DataType::Int32 => Arc::new(primitive::<Int32Type>(values, whole)),
        DataType::Int64 => Arc::new(primitive::<Int64Type>(values, whole)),
        DataType::Date32 => Arc::new(primitive::<Date32Type>(values, whole)),
        DataType::Timestamp(_, zone) => {
            let array = primitive::<TimestampMicrosecondType>(values, whole);
            Arc::new(array.with_timezone_opt(zone.clone()))
        }
        DataType::Float32 => Arc::new(primitive::<Float32Type>(values, |v| real(v).map(|v| v as f32))),
        DataType::Float64 => Arc::new(primitive::<Float64Type>(values, real)),
        DataType::Decimal128(precision, scale) => {
            let array = primitive::<Decimal128Type>(values, |v| match v {
                Value::Fixed(v) => Some(v),
                _ => None,
            });
            Arc::new(array.with_precision_and_scale(*precision, *scale)?)
        }
        DataType::Utf8 => Arc::new(
            values
                .into_iter()
                .map(|v| match v {
                    Value::Text(v) => Some(v),
                    _ => None,
                })
                .collect::<StringArray>(),
        ),
        DataType::Binary => Arc::new(
            values
                .into_iter()
                .map(|v| match v {
                    Value::Bytes(v) => Some(v),
                    _ => None,
                })
                .collect::<BinaryArray>(),
        ),
        DataType::List(field) => {
            let mut items = Vec::new();
            let mut lengths = Vec::with_capacity(values.len());
            let mut there = Vec::with_capacity(values.len());
            for value in values {
                let (own, present) = match value {
                    Value::List(own) => (own, true),
                    _ => (Vec::new(), false),
                };
                there.push(present);
                lengths.push(own.len());
                items.extend(own);
            }
            let items = built(field.data_type(), items)?;
            let offsets = OffsetBuffer::from_lengths(lengths);
            Arc::new(ListArray::try_new(Arc::clone(field), offsets, items, Some(NullBuffer::from(there)))?)
        }
        DataType::Struct(fields) => {
            let mut columns: Vec<Vec<Value>> = vec![Vec::with_capacity(values.len()); fields.len()];
            let mut there = Vec::with_capacity(values.len());
            let length = values.len();
            for value in values {
                let (members, present) = match value {
                    Value::Members(members) => (members, true),
                    _ => (vec![Value::Null; fields.len()], false),
                };
                there.push(present);
                for (column, member) in columns.iter_mut().zip(members) {
                    column.push(member);
                }
            }
            let columns = columns
                .into_iter()
                .zip(fields)
                .map(|(column, field)| built(field.data_type(), column))
                .collect::<Result<Vec<_>>>()?;
            let nulls = Some(NullBuffer::from(there));
            // Members may be null whatever the schema says of them.
            let fields: arrow::datatypes::Fields =
                fields.iter().map(|f| f.as_ref().clone().with_nullable(true)).collect();
            let array = StructArray::try_new_with_length(fields, columns, nulls, length)?;
            super::cast::relabel(&(Arc::new(array) as ArrayRef), to)?
        }
        DataType::Map(field, sorted) => {
            let DataType::Struct(members) = field.data_type() else { return not_impl_err!("JSON as {to}") };
            let (mut keys, mut items) = (Vec::new(), Vec::new());
            let mut lengths = Vec::with_capacity(values.len());
            let mut there = Vec::with_capacity(values.len());
            for value in values {
                let (own, present) = match value {
                    Value::Entries(own) => (own, true),
                    _ => (Vec::new(), false),
                };
                there.push(present);
                lengths.push(own.len());
                for (key, value) in own {
                    keys.push(Value::Text(key));
                    items.push(value);
                }
            }
            let value_type = members.get(1).map_or(DataType::Null, |f| f.data_type().clone());
            let columns = vec![built(&DataType::Utf8, keys)?, built(&value_type, items)?];
            let entries = StructArray::try_new(members.clone(), columns, None)?;
            let offsets = OffsetBuffer::from_lengths(lengths);
            let nulls = Some(NullBuffer::from(there));
            Arc::new(MapArray::try_new(Arc::clone(field), offsets, entries, nulls, *sorted)?)
        }
        DataType::Null => make_array(arrow::array::new_null_array(to, values.len()).to_data()),
        other => return not_impl_err!("JSON as {other}"),
    })
}
