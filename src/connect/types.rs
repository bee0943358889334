//! Types of the protocol, of Arrow, and of Spark's DDL.

use std::sync::Arc;

use arrow::datatypes::{DataType as Arrow, Field, Fields, Schema, SchemaRef, TimeUnit};

use super::wire::spark::DataType;
use super::wire::spark::data_type::{self, Kind};
use crate::error::{Error, Result};
use crate::sql::parse_schema;

fn refused(what: &str) -> Error {
    Error::user("UNSUPPORTED_DATATYPE", format!("the type {what} is not supported yet"))
}

/// A type as DDL writes it.
pub(super) fn ddl(data_type: &DataType) -> Result<String> {
    let missing = || Error::user("INVALID_PLAN_INPUT", "a type that says nothing");
    Ok(match data_type.kind.as_ref().ok_or_else(missing)? {
        Kind::Boolean(_) => "BOOLEAN".to_owned(),
        Kind::Byte(_) => "TINYINT".to_owned(),
        Kind::Short(_) => "SMALLINT".to_owned(),
        Kind::Integer(_) => "INT".to_owned(),
        Kind::Long(_) => "BIGINT".to_owned(),
        Kind::Float(_) => "FLOAT".to_owned(),
        Kind::Double(_) => "DOUBLE".to_owned(),
        Kind::Decimal(decimal) => {
            format!("DECIMAL({}, {})", decimal.precision.unwrap_or(10), decimal.scale.unwrap_or(0))
        }
        Kind::String(_) => "STRING".to_owned(),
        Kind::Char(char) => format!("CHAR({})", char.length),
        Kind::VarChar(char) => format!("VARCHAR({})", char.length),
        Kind::Binary(_) => "BINARY".to_owned(),
        Kind::Date(_) => "DATE".to_owned(),
        Kind::Timestamp(_) => "TIMESTAMP".to_owned(),
        Kind::TimestampNtz(_) => "TIMESTAMP_NTZ".to_owned(),
        Kind::Array(array) => {
            format!("ARRAY<{}>", ddl(array.element_type.as_deref().ok_or_else(missing)?)?)
        }
        Kind::Map(map) => {
            let (key, value) = (map.key_type.as_deref(), map.value_type.as_deref());
            format!("MAP<{}, {}>", ddl(key.ok_or_else(missing)?)?, ddl(value.ok_or_else(missing)?)?)
        }
        Kind::Struct(structure) => format!("STRUCT<{}>", fields(structure, ": ")?),
        Kind::Unparsed(text) => text.data_type_string.clone(),
        Kind::Null(_) => return Err(refused("VOID")),
        Kind::CalendarInterval(_) | Kind::YearMonthInterval(_) | Kind::DayTimeInterval(_) => {
            return Err(refused("INTERVAL"));
        }
        Kind::Variant(_) => return Err(refused("VARIANT")),
        Kind::Udt(_) => return Err(refused("of a user")),
        Kind::Geometry(_) | Kind::Geography(_) => return Err(refused("of geography")),
        Kind::Time(_) => return Err(refused("TIME")),
        Kind::TimestampNtzNanos(_) | Kind::TimestampLtzNanos(_) => return Err(refused("TIMESTAMP with nanoseconds")),
    })
}

fn fields(structure: &data_type::Struct, between: &str) -> Result<String> {
    let mut shown = Vec::with_capacity(structure.fields.len());
    for field in &structure.fields {
        let missing = || Error::user("INVALID_PLAN_INPUT", format!("the field {} has no type", field.name));
        let null = if field.nullable { "" } else { " NOT NULL" };
        shown.push(format!(
            "{}{between}{}{null}",
            name(&field.name),
            ddl(field.data_type.as_ref().ok_or_else(missing)?)?
        ));
    }
    Ok(shown.join(", "))
}

/// A name in backquotes.
pub(super) fn name(text: &str) -> String {
    format!("`{}`", text.replace('`', "``"))
}

/// The columns of a struct, as DDL of a table.
pub(super) fn columns(data_type: &DataType) -> Result<String> {
    match &data_type.kind {
        Some(Kind::Struct(structure)) => fields(structure, " "),
        Some(Kind::Unparsed(text)) => Ok(text.data_type_string.clone()),
        _ => Err(Error::user("INVALID_PLAN_INPUT", "a schema is a struct")),
    }
}

/// The columns of a struct in Arrow's terms.
pub(super) fn schema(data_type: &DataType) -> Result<SchemaRef> {
    match &data_type.kind {
        Some(Kind::Struct(structure)) if structure.fields.is_empty() => Ok(Arc::new(Schema::empty())),
        _ => parse_schema(&columns(data_type)?),
    }
}

/// An Arrow schema as the client knows it.
pub(super) fn from_schema(schema: &Schema) -> Result<DataType> {
    Ok(DataType { kind: Some(Kind::Struct(structure(schema.fields())?)) })
}

fn structure(fields: &Fields) -> Result<data_type::Struct> {
    let fields = fields.iter().map(|field| {
        Ok(data_type::StructField {
            name: field.name().clone(),
            data_type: Some(from_arrow(field.data_type())?),
            nullable: field.is_nullable(),
            metadata: None,
        })
    });
    Ok(data_type::Struct { fields: fields.collect::<Result<_>>()?, type_variation_reference: 0 })
}

/// An Arrow type as the client knows it.
pub(super) fn from_arrow(arrow: &Arrow) -> Result<DataType> {
    let kind = match arrow {
        Arrow::Null => Kind::Null(data_type::Null::default()),
        Arrow::Boolean => Kind::Boolean(data_type::Boolean::default()),
        Arrow::Int8 => Kind::Byte(data_type::Byte::default()),
        Arrow::Int16 => Kind::Short(data_type::Short::default()),
        Arrow::Int32 => Kind::Integer(data_type::Integer::default()),
        Arrow::Int64 | Arrow::UInt32 | Arrow::UInt64 => Kind::Long(data_type::Long::default()),
        Arrow::Float32 => Kind::Float(data_type::Float::default()),
        Arrow::Float64 => Kind::Double(data_type::Double::default()),
        Arrow::Decimal128(precision, scale) => Kind::Decimal(data_type::Decimal {
            precision: Some(i32::from(*precision)),
            scale: Some(i32::from(*scale)),
            type_variation_reference: 0,
        }),
        Arrow::Utf8 | Arrow::LargeUtf8 | Arrow::Utf8View => {
            Kind::String(data_type::String { collation: "UTF8_BINARY".to_owned(), type_variation_reference: 0 })
        }
        Arrow::Binary | Arrow::LargeBinary | Arrow::BinaryView => Kind::Binary(data_type::Binary::default()),
        Arrow::Date32 => Kind::Date(data_type::Date::default()),
        Arrow::Timestamp(_, Some(_)) => Kind::Timestamp(data_type::Timestamp::default()),
        Arrow::Timestamp(_, None) => Kind::TimestampNtz(data_type::TimestampNtz::default()),
        Arrow::Duration(_) => Kind::DayTimeInterval(data_type::DayTimeInterval {
            start_field: Some(0),
            end_field: Some(3),
            type_variation_reference: 0,
        }),
        Arrow::List(item) | Arrow::LargeList(item) | Arrow::ListView(item) => Kind::Array(Box::new(data_type::Array {
            element_type: Some(Box::new(from_arrow(item.data_type())?)),
            contains_null: item.is_nullable(),
            type_variation_reference: 0,
        })),
        Arrow::Struct(fields) => Kind::Struct(structure(fields)?),
        Arrow::Map(entries, _) => {
            let Arrow::Struct(pair) = entries.data_type() else { return Err(refused("MAP")) };
            let [key, value] = pair.as_ref() else { return Err(refused("MAP")) };
            Kind::Map(Box::new(data_type::Map {
                key_type: Some(Box::new(from_arrow(key.data_type())?)),
                value_type: Some(Box::new(from_arrow(value.data_type())?)),
                value_contains_null: value.is_nullable(),
                type_variation_reference: 0,
            }))
        }
        other => return Err(refused(&other.to_string())),
    };
    Ok(DataType { kind: Some(kind) })
}

/// An Arrow type in the form in which a client expects its batches.
pub(super) fn plain(arrow: &Arrow) -> Arrow {
    let inner =
        |field: &Arc<Field>, name: &str| Arc::new(Field::new(name, plain(field.data_type()), field.is_nullable()));
    match arrow {
        Arrow::LargeUtf8 | Arrow::Utf8View => Arrow::Utf8,
        Arrow::LargeBinary | Arrow::BinaryView => Arrow::Binary,
        Arrow::UInt32 | Arrow::UInt64 => Arrow::Int64,
        Arrow::Timestamp(_, zone) => Arrow::Timestamp(TimeUnit::Microsecond, zone.clone()),
        Arrow::List(item) | Arrow::LargeList(item) | Arrow::ListView(item) => Arrow::List(inner(item, "element")),
        Arrow::Struct(fields) => Arrow::Struct(fields.iter().map(|field| inner(field, field.name())).collect()),
        Arrow::Map(entries, sorted) => {
            Arrow::Map(Arc::new(Field::new("entries", plain(entries.data_type()), false)), *sorted)
        }
        other => other.clone(),
    }
}
