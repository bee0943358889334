//! Column types as tables hold them, and the columns that silverflow adds.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef, TimeUnit};

/// Hidden last column of a batch: the wall of the epoch in which the row arrived.
pub const WALL_COLUMN: &str = "__wall";

/// Hidden last column of a batch: a moment that stands for the stretch of time in which the conditions on the clock have the
/// truth they have now.
pub const NOW_COLUMN: &str = "__now";

/// Whether a column is one of ours, which no query yields.
pub fn is_hidden(field: &Field) -> bool {
    [WALL_COLUMN, NOW_COLUMN].contains(&field.name().as_str())
}

pub(super) fn wall_type() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
}

pub(super) fn wall_field() -> FieldRef {
    Arc::new(Field::new(WALL_COLUMN, wall_type(), true))
}

/// The type in which a table stores values of `data_type`: one string, binary and list type, timestamps in microseconds,
/// signed integers. Delta has no others.
pub(super) fn stored_type(data_type: &DataType) -> DataType {
    use DataType::{
        Binary, BinaryView, Date32, Date64, Decimal32, Decimal64, Decimal128, Dictionary, FixedSizeBinary,
        FixedSizeList, Float16, Float32, Int16, Int32, Int64, LargeBinary, LargeList, LargeListView, LargeUtf8, List,
        ListView, Map, Null, Struct, Timestamp, UInt8, UInt16, UInt32, UInt64, Utf8, Utf8View,
    };
    match data_type {
        Null | LargeUtf8 | Utf8View => Utf8,
        LargeBinary | BinaryView | FixedSizeBinary(_) => Binary,
        Timestamp(_, zone) => Timestamp(TimeUnit::Microsecond, zone.as_ref().map(|_| "UTC".into())),
        Date64 => Date32,
        UInt8 => Int16,
        UInt16 => Int32,
        UInt32 => Int64,
        UInt64 => Decimal128(20, 0),
        Float16 => Float32,
        Decimal32(p, s) | Decimal64(p, s) => Decimal128(*p, *s),
        Dictionary(_, value) => stored_type(value),
        List(f) | LargeList(f) | FixedSizeList(f, _) | ListView(f) | LargeListView(f) => {
            List(Arc::new(Field::new("element", stored_type(f.data_type()), true)))
        }
        Struct(fields) => Struct(fields.iter().map(|f| stored_field(f)).collect()),
        Map(entries, _) => {
            let inner = match entries.data_type() {
                Struct(fields) => fields.iter().map(|f| f.data_type().clone()).collect::<Vec<_>>(),
                _ => Vec::new(),
            };
            let part = |i: usize| inner.get(i).map_or(Utf8, stored_type);
            let fields = Fields::from(vec![Field::new("key", part(0), false), Field::new("value", part(1), true)]);
            Map(Arc::new(Field::new("key_value", Struct(fields), false)), false)
        }
        other => other.clone(),
    }
}

pub(super) fn stored_field(field: &Field) -> FieldRef {
    Arc::new(Field::new(field.name(), stored_type(field.data_type()), true))
}

/// The columns of a table that holds rows of `schema`. Every column is nullable; NOT NULL is an expectation.
pub fn stored_schema(schema: &Schema) -> SchemaRef {
    Arc::new(Schema::new(schema.fields().iter().map(|f| stored_field(f)).collect::<Vec<_>>()))
}

/// `schema` with the hidden wall column behind it.
pub fn with_wall(schema: &Schema) -> SchemaRef {
    let mut fields: Vec<FieldRef> = schema.fields().iter().cloned().collect();
    fields.push(wall_field());
    Arc::new(Schema::new(fields))
}

/// `schema` with the hidden column [`NOW_COLUMN`] behind it.
pub fn with_now(schema: &Schema) -> SchemaRef {
    let mut fields: Vec<FieldRef> = schema.fields().iter().cloned().collect();
    fields.push(Arc::new(Field::new(NOW_COLUMN, wall_type(), true)));
    Arc::new(Schema::new(fields))
}

/// Index of a column by name, without regard to case; an exact match wins.
pub(super) fn position(schema: &Schema, name: &str) -> Option<usize> {
    let fields = schema.fields();
    fields
        .iter()
        .position(|f| f.name() == name)
        .or_else(|| fields.iter().position(|f| f.name().eq_ignore_ascii_case(name)))
}

/// Whether equal values of the type can differ in their bits.
pub fn varies(data_type: &DataType) -> bool {
    match data_type {
        DataType::Float16 | DataType::Float32 | DataType::Float64 | DataType::Map(..) => true,
        DataType::List(item) => varies(item.data_type()),
        DataType::Struct(fields) => fields.iter().any(|f| varies(f.data_type())),
        _ => false,
    }
}
