//! Column types: which Arrow types a table can hold, and bringing arrays to a type without losing anything.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, LargeListArray, ListArray, MapArray, RecordBatch, RecordBatchOptions,
    StructArray, new_null_array,
};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef, TimeUnit};
use deltalake::kernel::StructType;
use deltalake::kernel::engine::arrow_conversion::{TryIntoArrow, TryIntoKernel};

use crate::error::{Error, Result};

/// The Arrow type in which a table keeps a column of the given type; `None` if it cannot be kept exactly.
///
/// What comes out is what a Delta schema knows: no views, no large offsets, no dictionaries, timestamps in
/// microseconds (UTC or without a zone), lists of `element`, maps of `key_value`.
pub fn stored_type(data_type: &DataType) -> Option<DataType> {
    use DataType as T;
    Some(match data_type {
        T::Boolean | T::Int8 | T::Int16 | T::Int32 | T::Int64 | T::Float32 | T::Float64 | T::Date32 => {
            data_type.clone()
        }
        T::UInt8 => T::Int16,
        T::UInt16 => T::Int32,
        T::UInt32 => T::Int64,
        T::UInt64 => T::Decimal128(20, 0),
        T::Float16 => T::Float32,
        T::Utf8 | T::LargeUtf8 | T::Utf8View => T::Utf8,
        T::Binary | T::LargeBinary | T::BinaryView | T::FixedSizeBinary(_) => T::Binary,
        T::Decimal32(p, s) | T::Decimal64(p, s) | T::Decimal128(p, s) if (0..=38).contains(s) => T::Decimal128(*p, *s),
        T::Timestamp(TimeUnit::Nanosecond, _) => return None,
        T::Timestamp(_, zone) => T::Timestamp(TimeUnit::Microsecond, zone.as_ref().map(|_| "UTC".into())),
        T::Dictionary(_, value) => stored_type(value)?,
        T::List(item) | T::LargeList(item) | T::FixedSizeList(item, _) => {
            T::List(Arc::new(Field::new("element", stored_type(item.data_type())?, item.is_nullable())))
        }
        T::Map(entries, _) => {
            let T::Struct(pair) = entries.data_type() else { return None };
            let [key, value] = pair.as_ref() else { return None };
            let pair = vec![
                Field::new("key", stored_type(key.data_type())?, false),
                Field::new("value", stored_type(value.data_type())?, value.is_nullable()),
            ];
            T::Map(Arc::new(Field::new("key_value", T::Struct(pair.into()), false)), false)
        }
        T::Struct(fields) => T::Struct(stored_fields(fields)?),
        _ => return None,
    })
}

fn stored_fields(fields: &Fields) -> Option<Fields> {
    fields.iter().map(|x| Some(Field::new(x.name(), stored_type(x.data_type())?, x.is_nullable()))).collect()
}

/// The schema in which a table keeps rows of the given schema.
///
/// # Errors
/// `UNSUPPORTED_DATA_TYPE` (user), naming the column; `DUPLICATE_COLUMN` (user) if two names differ in case alone.
pub fn stored_schema(schema: &Schema) -> Result<SchemaRef> {
    let mut seen = std::collections::HashSet::new();
    let mut fields = Vec::with_capacity(schema.fields().len());
    for field in schema.fields() {
        if !seen.insert(field.name().to_lowercase()) {
            return Err(Error::user("DUPLICATE_COLUMN", format!("the column {} occurs twice", field.name())));
        }
        let data_type = stored_type(field.data_type()).ok_or_else(|| {
            Error::user(
                "UNSUPPORTED_DATA_TYPE",
                format!("a Delta table cannot hold the column {} of type {}", field.name(), field.data_type()),
            )
            .help("cast it in the query to a type that Delta has")
        })?;
        fields.push(Field::new(field.name(), data_type, field.is_nullable()));
    }
    Ok(Arc::new(Schema::new(fields)))
}

/// A stored schema as Delta writes it down.
pub(crate) fn to_delta(stored: &Schema) -> Result<StructType> {
    stored.try_into_kernel().map_err(|e| Error::internal("the schema has no Delta form").caused_by(e))
}

/// The Arrow form of a Delta schema, without Delta's own field metadata.
pub(crate) fn from_delta(schema: &StructType) -> Result<SchemaRef> {
    let arrow: Schema = schema.try_into_arrow().map_err(|e| {
        Error::external("TABLE_NOT_READABLE", "the table has a column type that cannot be read").caused_by(e)
    })?;
    stored_schema(&arrow)
}

/// A batch as rows of another schema: columns by name without regard to case, absent ones null.
///
/// # Errors
/// An explanation without a place if a column's type does not fit (see [`conform_array`]) or a column that must not
/// be null is.
pub fn conform(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    if batch.schema_ref() == schema {
        return Ok(batch.clone());
    }
    let rows = batch.num_rows();
    let columns = schema
        .fields()
        .iter()
        .map(|field| match position(batch.schema_ref().fields(), field.name()) {
            Some(i) => conform_array(batch.column(i), field.data_type())
                .ok_or_else(|| misfit(field, batch.column(i).data_type())),
            None => Ok(new_null_array(field.data_type(), rows)),
        })
        .collect::<Result<Vec<_>>>()?;
    RecordBatch::try_new_with_options(
        Arc::clone(schema),
        columns,
        &RecordBatchOptions::new().with_row_count(Some(rows)),
    )
    .map_err(|e| Error::internal("rows do not fit their schema").caused_by(e))
}

/// Where the field of that name is: exactly so written, else without regard to case.
pub fn position(fields: &Fields, name: &str) -> Option<usize> {
    fields.iter().position(|x| x.name() == name).or_else(|| {
        let folded = name.to_lowercase();
        fields.iter().position(|x| x.name().to_lowercase() == folded)
    })
}

fn misfit(field: &Field, found: &DataType) -> Error {
    Error::user(
        "INCOMPATIBLE_DATA_TYPE",
        format!("the column {} is {found}, which cannot become {}", field.name(), field.data_type()),
    )
}

/// An array brought to a type without loss: nested fields by name, absent ones null, integers and floats widened,
/// encodings and time units changed (nanoseconds are cut to microseconds). `None` where that is not possible.
pub fn conform_array(array: &ArrayRef, to: &DataType) -> Option<ArrayRef> {
    use DataType as T;
    let from = array.data_type();
    if from == to {
        return Some(Arc::clone(array));
    }
    match (from, to) {
        (T::Struct(_), T::Struct(fields)) => {
            let array = array.as_struct();
            let columns = fields
                .iter()
                .map(|field| match position(array.fields(), field.name()) {
                    Some(i) => conform_array(array.column(i), field.data_type()),
                    None => Some(new_null_array(field.data_type(), array.len())),
                })
                .collect::<Option<Vec<_>>>()?;
            let rebuilt = if fields.is_empty() {
                StructArray::new_empty_fields(array.len(), array.nulls().cloned())
            } else {
                StructArray::try_new(fields.clone(), columns, array.nulls().cloned()).ok()?
            };
            Some(Arc::new(rebuilt))
        }
        (T::List(_), T::List(item)) => {
            let array = array.as_list::<i32>();
            let values = conform_array(array.values(), item.data_type())?;
            let rebuilt =
                ListArray::try_new(Arc::clone(item), array.offsets().clone(), values, array.nulls().cloned()).ok()?;
            Some(Arc::new(rebuilt))
        }
        (T::LargeList(_), T::LargeList(item)) => {
            let array = array.as_list::<i64>();
            let values = conform_array(array.values(), item.data_type())?;
            let rebuilt =
                LargeListArray::try_new(Arc::clone(item), array.offsets().clone(), values, array.nulls().cloned())
                    .ok()?;
            Some(Arc::new(rebuilt))
        }
        (T::FixedSizeList(_, n), T::FixedSizeList(item, m)) if n == m => {
            let array = array.as_fixed_size_list();
            let values = conform_array(array.values(), item.data_type())?;
            Some(Arc::new(FixedSizeListArray::try_new(Arc::clone(item), *m, values, array.nulls().cloned()).ok()?))
        }
        (
            T::List(item) | T::LargeList(item) | T::FixedSizeList(item, _),
            T::List(_) | T::LargeList(_) | T::FixedSizeList(..),
        ) => conform_array(&cast(array, &list_like(to, item)?)?, to),
        (T::Map(..), T::Map(entries, sorted)) => {
            let T::Struct(pair) = entries.data_type() else { return None };
            let [key, value] = pair.as_ref() else { return None };
            let array = array.as_map();
            let columns =
                vec![conform_array(array.keys(), key.data_type())?, conform_array(array.values(), value.data_type())?];
            let pairs = StructArray::try_new(pair.clone(), columns, array.entries().nulls().cloned()).ok()?;
            let rebuilt =
                MapArray::try_new(Arc::clone(entries), array.offsets().clone(), pairs, array.nulls().cloned(), *sorted)
                    .ok()?;
            Some(Arc::new(rebuilt))
        }
        (T::Dictionary(_, value), _) => conform_array(&cast(array, value)?, to),
        _ if widens(from, to) => cast(array, to),
        _ => None,
    }
}

/// The list type of the kind of `to` with another item.
fn list_like(to: &DataType, item: &FieldRef) -> Option<DataType> {
    Some(match to {
        DataType::List(_) => DataType::List(Arc::clone(item)),
        DataType::LargeList(_) => DataType::LargeList(Arc::clone(item)),
        DataType::FixedSizeList(_, n) => DataType::FixedSizeList(Arc::clone(item), *n),
        _ => return None,
    })
}

fn cast(array: &ArrayRef, to: &DataType) -> Option<ArrayRef> {
    cast_with_options(array, to, &CastOptions { safe: false, ..CastOptions::default() }).ok()
}

/// Whether every value of one type has the same value in the other.
pub fn widens(from: &DataType, to: &DataType) -> bool {
    use DataType as T;
    let digits = |t: &DataType| match t {
        T::Int8 | T::UInt8 => Some(3),
        T::Int16 | T::UInt16 => Some(5),
        T::Int32 | T::UInt32 => Some(10),
        T::Int64 => Some(19),
        T::UInt64 => Some(20),
        _ => None,
    };
    let text = |t: &DataType| matches!(t, T::Utf8 | T::LargeUtf8 | T::Utf8View);
    let bytes = |t: &DataType| matches!(t, T::Binary | T::LargeBinary | T::BinaryView | T::FixedSizeBinary(_));
    let width = |t: &DataType| t.primitive_width().unwrap_or(usize::MAX);
    match (from, to) {
        (T::Null, _) => true,
        _ if text(from) && text(to) => true,
        // A stored fixed-size binary comes back to its own width; a wrong length fails in the cast.
        _ if bytes(from) && bytes(to) => true,
        (T::Timestamp(_, a), T::Timestamp(_, b)) => a.is_some() == b.is_some(),
        (
            T::Decimal32(p, s) | T::Decimal64(p, s) | T::Decimal128(p, s),
            T::Decimal32(q, t) | T::Decimal64(q, t) | T::Decimal128(q, t),
        ) => t >= s && i16::from(*q) - i16::from(*t) >= i16::from(*p) - i16::from(*s),
        // The stored form of unsigned 64-bit integers, on its way back; a value out of range fails in the cast.
        (T::Decimal128(20, 0), T::UInt64) => true,
        (_, T::Decimal128(p, s)) => digits(from).is_some_and(|n| i16::from(*p) - i16::from(*s) >= n),
        (T::Float16, T::Float32 | T::Float64) | (T::Float32, T::Float64) => true,
        // Stored forms on their way back; a value out of range fails in the cast.
        (T::Float32, T::Float16) | (T::Int16, T::UInt8) | (T::Int32, T::UInt16) | (T::Int64, T::UInt32) => true,
        (T::Int8 | T::Int16 | T::Int32, T::Float64) | (T::Int8 | T::Int16, T::Float32) => true,
        _ if from.is_signed_integer() && to.is_signed_integer() => width(from) <= width(to),
        _ if from.is_unsigned_integer() && to.is_integer() => {
            if to.is_signed_integer() {
                width(from) < width(to)
            } else {
                width(from) <= width(to)
            }
        }
        (_, T::Dictionary(_, value)) => widens(from, value) || from == value.as_ref(),
        _ => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use arrow::array::{Int32Array, Int64Array, StringArray, TimestampNanosecondArray};

    use super::*;

    #[test]
    fn rows_are_brought_to_a_schema_by_name_and_without_loss() {
        let narrow = Arc::new(Schema::new(vec![
            Field::new("A", DataType::Int32, true),
            Field::new("gone", DataType::Utf8, true),
        ]));
        let batch = RecordBatch::try_new(
            narrow,
            vec![Arc::new(Int32Array::from(vec![Some(1), None])), Arc::new(StringArray::from(vec!["x", "y"]))],
        )
        .unwrap();
        let wide =
            Arc::new(Schema::new(vec![Field::new("b", DataType::Utf8, true), Field::new("a", DataType::Int64, true)]));
        let out = conform(&batch, &wide).unwrap();
        assert_eq!(out.column(0).null_count(), 2);
        assert_eq!(out.column(1).as_ref(), &Int64Array::from(vec![Some(1), None]));
        let back = Arc::new(Schema::new(vec![Field::new("a", DataType::Int32, true)]));
        assert_eq!(conform(&out, &back).unwrap_err().code(), "INCOMPATIBLE_DATA_TYPE");
    }

    #[test]
    fn a_nested_field_that_is_absent_is_null_and_nanoseconds_are_cut() {
        let inner = Fields::from(vec![Field::new("t", DataType::Timestamp(TimeUnit::Nanosecond, None), true)]);
        let array: ArrayRef = Arc::new(StructArray::new(
            inner,
            vec![Arc::new(TimestampNanosecondArray::from(vec![1_999])) as ArrayRef],
            None,
        ));
        let to = DataType::Struct(Fields::from(vec![
            Field::new("new", DataType::Boolean, true),
            Field::new("T", DataType::Timestamp(TimeUnit::Microsecond, None), true),
        ]));
        let out = conform_array(&array, &to).unwrap();
        let out = out.as_struct();
        assert_eq!(out.column(0).null_count(), 1);
        assert_eq!(out.column(1).as_primitive::<arrow::datatypes::TimestampMicrosecondType>().value(0), 1);
    }

    #[test]
    fn what_delta_cannot_hold_is_an_error_with_the_column() {
        let schema = Schema::new(vec![Field::new("t", DataType::Time64(TimeUnit::Microsecond), true)]);
        let error = stored_schema(&schema).unwrap_err();
        assert_eq!(error.code(), "UNSUPPORTED_DATA_TYPE");
        assert!(error.to_string().contains("column t"));
        let twice = Schema::new(vec![Field::new("a", DataType::Int8, true), Field::new("A", DataType::Int8, true)]);
        assert_eq!(stored_schema(&twice).unwrap_err().code(), "DUPLICATE_COLUMN");
    }
}
