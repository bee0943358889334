//! JSON text to values and back.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int32Array, ListBuilder, StringBuilder};
use arrow::datatypes::{DataType, Decimal128Type, Field, Float32Type, Float64Type, TimestampMicrosecondType};
use base64::prelude::{BASE64_STANDARD, Engine};
use datafusion::common::{Result, ScalarValue, plan_err};
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::function::Kind::{Any, Str};
use super::function::{Asked, Body, Call, Function, Typed, fault};
use super::json_values::{Options, read};
use super::map::ends;
use super::pattern::compiled;
use super::types::list_of;
use super::zone::Zone;
use super::{ddl, show};

pub(super) fn functions() -> Vec<Function> {
    vec![
        Function::new(
            "get_json_object",
            &[Str, Str],
            Body::Text(|r| {
                let Some(path) = steps(r.str(1)) else { return Ok(None) };
                Ok(parse(r.str(0)).and_then(|root| {
                    let found = along(root, &path)?;
                    match found.as_slice() {
                        [] => None,
                        [one] => shown(one),
                        many => {
                            Some(format!("[{}]", many.iter().filter_map(|v| compact(v)).collect::<Vec<_>>().join(",")))
                        }
                    }
                }))
            }),
        ),
        Function::new(
            "json_array_length",
            &[Str],
            Body::Arrays(
                |_| Ok(Typed { arguments: vec![DataType::Utf8], result: DataType::Int32 }),
                |call| {
                    let lengths =
                        (0..call.rows).map(|index| match call.row(index).opt_str(0).and_then(parse).and_then(shape) {
                            Some(Shape::Array(items)) => i32::try_from(items.len()).ok(),
                            _ => None,
                        });
                    Ok(Arc::new(lengths.collect::<Int32Array>()))
                },
            ),
        ),
        Function::new(
            "json_object_keys",
            &[Str],
            Body::Arrays(
                |_| Ok(Typed { arguments: vec![DataType::Utf8], result: list_of(DataType::Utf8) }),
                |call| {
                    let mut builder =
                        ListBuilder::new(StringBuilder::new()).with_field(Field::new("element", DataType::Utf8, true));
                    for index in 0..call.rows {
                        match call.row(index).opt_str(0).and_then(parse).and_then(shape) {
                            Some(Shape::Object(members)) => {
                                builder.append_value(members.into_iter().map(|(key, _)| Some(key)));
                            }
                            _ => builder.append_null(),
                        }
                    }
                    Ok(Arc::new(builder.finish()))
                },
            ),
        ),
        Function::new("from_json", &[Str, Str, Any], Body::Arrays(from_type, from)).optional(1),
        Function::new("to_json", &[Any, Any], Body::Arrays(to_type, to)).optional(1),
        Function::new(
            "schema_of_json",
            &[Str],
            Body::Text(|r| match parse(r.str(0)).and_then(inferred) {
                Some(found) => Ok(Some(spelled(&found))),
                None => Err(fault("INVALID_JSON_RECORD", format!("'{}' is no JSON", r.str(0)))),
            }),
        ),
    ]
}

/// A JSON value by what it is; its parts are not looked into yet.
pub(super) enum Shape<'a> {
    Null,
    Bool(bool),
    Number(&'a str),
    Text(String),
    Array(Vec<&'a RawValue>),
    Object(Vec<(String, &'a RawValue)>),
}

/// JSON text as one checked value.
pub(super) fn parse(text: &str) -> Option<&RawValue> {
    serde_json::from_str(text).ok()
}

struct Members;

impl<'de> Visitor<'de> for Members {
    type Value = Vec<(String, &'de RawValue)>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self::Value, A::Error> {
        let mut members = Vec::new();
        while let Some(member) = map.next_entry()? {
            members.push(member);
        }
        Ok(members)
    }
}

/// Looks at a value.
pub(super) fn shape(raw: &RawValue) -> Option<Shape<'_>> {
    let text = raw.get();
    Some(match text.as_bytes().first()? {
        b'n' => Shape::Null,
        b't' => Shape::Bool(true),
        b'f' => Shape::Bool(false),
        b'"' => Shape::Text(serde_json::from_str(text).ok()?),
        b'[' => Shape::Array(serde_json::from_str(text).ok()?),
        b'{' => Shape::Object(serde_json::Deserializer::from_str(text).deserialize_map(Members).ok()?),
        _ => Shape::Number(text),
    })
}

/// A number as Spark writes it again.
fn number(text: &str) -> String {
    if text.contains(['.', 'e', 'E']) {
        text.parse::<f64>().map_or_else(|_| text.to_owned(), show::double)
    } else {
        text.to_owned()
    }
}

pub(super) fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

/// The value without blanks.
pub(super) fn compact(raw: &RawValue) -> Option<String> {
    Some(match shape(raw)? {
        Shape::Text(text) => quoted(&text),
        Shape::Number(text) => number(text),
        Shape::Array(items) => {
            format!("[{}]", items.into_iter().map(compact).collect::<Option<Vec<_>>>()?.join(","))
        }
        Shape::Object(members) => {
            let members = members.into_iter().map(|(key, value)| Some(format!("{}:{}", quoted(&key), compact(value)?)));
            format!("{{{}}}", members.collect::<Option<Vec<_>>>()?.join(","))
        }
        Shape::Null | Shape::Bool(_) => raw.get().to_owned(),
    })
}

/// The value as text of its own: a string without its quotes; null is none.
pub(super) fn shown(raw: &RawValue) -> Option<String> {
    match shape(raw)? {
        Shape::Null => None,
        Shape::Text(text) => Some(text),
        _ => compact(raw),
    }
}

enum Step {
    Key(String),
    Index(usize),
    Every,
}

/// The steps of a path such as `$.a[0]['b c'][*]`.
fn steps(path: &str) -> Option<Vec<Step>> {
    let mut rest = path.strip_prefix('$')?;
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('.') {
            let length = after.find(['.', '[']).unwrap_or(after.len());
            let (key, after) = after.split_at(length);
            if key.is_empty() {
                return None;
            }
            steps.push(if key == "*" { Step::Every } else { Step::Key(key.to_owned()) });
            rest = after;
        } else if let Some(after) = rest.strip_prefix("['") {
            let (key, after) = after.split_once("']")?;
            steps.push(Step::Key(key.to_owned()));
            rest = after;
        } else {
            let (index, after) = rest.strip_prefix('[')?.split_once(']')?;
            steps.push(if index == "*" { Step::Every } else { Step::Index(index.parse().ok()?) });
            rest = after;
        }
    }
    Some(steps)
}

/// What is found along a path.
fn along<'a>(root: &'a RawValue, path: &[Step]) -> Option<Vec<&'a RawValue>> {
    let mut found = vec![root];
    for step in path {
        let mut next = Vec::new();
        for value in found {
            match (step, shape(value)?) {
                (Step::Key(key), Shape::Object(members)) => {
                    next.extend(members.into_iter().find(|(name, _)| name == key).map(|(_, value)| value));
                }
                (Step::Index(index), Shape::Array(items)) => next.extend(items.get(*index).copied()),
                (Step::Every, Shape::Array(items)) => next.extend(items),
                _ => {}
            }
        }
        found = next;
    }
    Some(found)
}

/// The type that JSON text shows.
fn inferred(raw: &RawValue) -> Option<DataType> {
    Some(match shape(raw)? {
        Shape::Null => DataType::Null,
        Shape::Bool(_) => DataType::Boolean,
        Shape::Text(_) => DataType::Utf8,
        Shape::Number(text) if text.contains(['.', 'e', 'E']) => DataType::Float64,
        Shape::Number(text) if text.parse::<i64>().is_ok() => DataType::Int64,
        Shape::Number(text) => match u8::try_from(text.trim_start_matches('-').len()) {
            Ok(digits) if digits <= 38 => DataType::Decimal128(digits, 0),
            _ => DataType::Float64,
        },
        Shape::Array(items) => {
            let mut of = DataType::Null;
            for item in items {
                of = merged(of, inferred(item)?);
            }
            list_of(of)
        }
        Shape::Object(members) => {
            let mut fields = Vec::new();
            for (name, value) in members {
                fields.push(Field::new(name, inferred(value)?, true));
            }
            fields.sort_by(|a, b| a.name().cmp(b.name()));
            DataType::Struct(fields.into())
        }
    })
}

fn merged(a: DataType, b: DataType) -> DataType {
    match (a, b) {
        (a, b) if a == b => a,
        (DataType::Null, t) | (t, DataType::Null) => t,
        (a, b) if a.is_numeric() && b.is_numeric() => super::types::common_number(&a, &b).unwrap_or(DataType::Float64),
        (DataType::List(a), DataType::List(b)) => list_of(merged(a.data_type().clone(), b.data_type().clone())),
        (DataType::Struct(a), DataType::Struct(b)) => {
            let mut fields: Vec<Field> = a.iter().map(|f| f.as_ref().clone()).collect();
            for field in &b {
                match fields.iter_mut().find(|f| f.name() == field.name()) {
                    Some(known) => {
                        let both = merged(known.data_type().clone(), field.data_type().clone());
                        *known = Field::new(field.name(), both, true);
                    }
                    None => fields.push(field.as_ref().clone()),
                }
            }
            fields.sort_by(|a, b| a.name().cmp(b.name()));
            DataType::Struct(fields.into())
        }
        _ => DataType::Utf8,
    }
}

/// A type as `schema_of_json` writes it.
fn spelled(t: &DataType) -> String {
    match t {
        DataType::Null => "STRING".to_owned(),
        DataType::List(item) => format!("ARRAY<{}>", spelled(item.data_type())),
        DataType::Struct(fields) => {
            let plain = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            let name =
                |name: &str| if plain(name) { name.to_owned() } else { format!("`{}`", name.replace('`', "``")) };
            let members: Vec<String> =
                fields.iter().map(|f| format!("{}: {}", name(f.name()), spelled(f.data_type()))).collect();
            format!("STRUCT<{}>", members.join(", "))
        }
        other => super::conditional::spelled(other).to_uppercase(),
    }
}

/// The schema of a JSON text as `schema_of_json` gives it, for planning.
pub(in crate::plan) fn schema_of(text: &str) -> Option<String> {
    parse(text).and_then(inferred).map(|found| spelled(&found))
}

/// A type in which every value may be absent, since text may lack it whatever a schema says.
fn absent(t: &DataType) -> DataType {
    let inner = |field: &Arc<Field>| Arc::new(Field::new(field.name(), absent(field.data_type()), true));
    match t {
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(inner).collect()),
        DataType::List(item) => DataType::List(inner(item)),
        other => other.clone(),
    }
}

fn from_type(asked: &Asked<'_>) -> Result<Typed> {
    let Some(ScalarValue::Utf8(Some(schema))) = asked.literal(1) else {
        return plan_err!("the schema of from_json is a literal such as 'a INT, b STRING'");
    };
    // Python says types in JSON.
    let written = match crate::sql::type_of_json(schema) {
        None => schema.clone(),
        Some(Ok(written)) => written,
        Some(Err(error)) => return plan_err!("the schema of from_json: {}", error.message()),
    };
    let schema = written.as_str();
    let result = match crate::sql::parse_schema(schema) {
        Ok(found) => DataType::Struct(found.fields().clone()),
        Err(columns) => match ddl(schema) {
            Ok(found) => found,
            Err(_) => return plan_err!("the schema of from_json: {}", columns.message()),
        },
    };
    let mut arguments = vec![DataType::Utf8, DataType::Utf8];
    arguments.extend(asked.types.get(2).cloned());
    Ok(Typed { arguments, result: absent(&result) })
}

fn options(call: &Call<'_>, argument: usize) -> Result<Options> {
    let mut options = Options::default();
    let Some(given) = call.arguments.get(argument) else { return Ok(options) };
    let Some(map) = given.array.as_map_opt().filter(|m| !m.is_empty()) else { return Ok(options) };
    let (keys, values) = (map.keys().as_string_opt::<i32>(), map.values().as_string_opt::<i32>());
    let (Some(keys), Some(values)) = (keys, values) else { return plan_err!("options are a map of text to text") };
    for at in ends(map.offsets(), 0) {
        let value = values.value(at);
        match keys.value(at).to_ascii_lowercase().as_str() {
            "dateformat" => options.date = Some(compiled(value)?),
            "timestampformat" => options.timestamp = Some(compiled(value)?),
            "mode" => options.strict = value.eq_ignore_ascii_case("FAILFAST"),
            "ignorenullfields" => options.nulls = value.eq_ignore_ascii_case("false"),
            other => return plan_err!("{} knows no option {other}", call.function),
        }
    }
    Ok(options)
}

fn from(call: &Call<'_>) -> Result<ArrayRef> {
    let texts = call.array(0)?;
    let texts: Vec<Option<&str>> = texts.as_string::<i32>().iter().collect();
    read(call.result, &texts, &options(call, 2)?, &call.settings.zone)
}

fn to_type(asked: &Asked<'_>) -> Result<Typed> {
    let given = asked.of(0)?;
    if !given.is_nested() {
        return plan_err!("to_json takes a struct, an array or a map, not {given}");
    }
    Ok(Typed { arguments: asked.types.to_vec(), result: DataType::Utf8 })
}

fn to(call: &Call<'_>) -> Result<ArrayRef> {
    let array = call.array(0)?;
    let options = options(call, 1)?;
    let mut builder = StringBuilder::new();
    for at in 0..call.rows {
        if array.is_null(at) {
            builder.append_null();
            continue;
        }
        let mut out = String::new();
        write(&array, at, &options, &call.settings.zone, &mut out)?;
        builder.append_value(out);
    }
    Ok(Arc::new(builder.finish()))
}

fn style(zone: &Zone) -> show::Style<'_> {
    show::Style { zone, exponents: false }
}

fn write(array: &ArrayRef, at: usize, options: &Options, zone: &Zone, out: &mut String) -> Result<()> {
    if array.is_null(at) {
        out.push_str("null");
        return Ok(());
    }
    match array.data_type() {
        DataType::Struct(fields) => {
            out.push('{');
            let mut first = true;
            for (field, column) in fields.iter().zip(array.as_struct().columns()) {
                if column.is_null(at) && !options.nulls {
                    continue;
                }
                if !first {
                    out.push(',');
                }
                first = false;
                out.push_str(&quoted(field.name()));
                out.push(':');
                write(column, at, options, zone, out)?;
            }
            out.push('}');
        }
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            out.push('[');
            for (index, item) in ends(list.offsets(), at).enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write(list.values(), item, options, zone, out)?;
            }
            out.push(']');
        }
        DataType::Map(..) => {
            let map = array.as_map();
            out.push('{');
            for (index, item) in ends(map.offsets(), at).enumerate() {
                if index > 0 {
                    out.push(',');
                }
                out.push_str(&quoted(&show::value(map.keys(), item, &style(zone))?.unwrap_or_default()));
                out.push(':');
                write(map.values(), item, options, zone, out)?;
            }
            out.push('}');
        }
        DataType::Float64 => finite(array.as_primitive::<Float64Type>().value(at).is_finite(), array, at, zone, out)?,
        DataType::Float32 => finite(array.as_primitive::<Float32Type>().value(at).is_finite(), array, at, zone, out)?,
        DataType::Decimal128(_, scale) => {
            out.push_str(&show::decimal(array.as_primitive::<Decimal128Type>().value(at), *scale));
        }
        DataType::Timestamp(_, with_zone) => {
            let micros = array.as_primitive::<TimestampMicrosecondType>().value(at);
            let own = if with_zone.is_some() { zone.clone() } else { Zone::utc() };
            let usual = if with_zone.is_some() { "yyyy-MM-dd'T'HH:mm:ss.SSSXXX" } else { "yyyy-MM-dd'T'HH:mm:ss.SSS" };
            let pattern = match &options.timestamp {
                Some(pattern) => std::rc::Rc::clone(pattern),
                None => compiled(usual)?,
            };
            out.push_str(&quoted(&pattern.written(micros, &own)));
        }
        DataType::Date32 if options.date.is_some() => {
            let days = array.as_primitive::<arrow::datatypes::Date32Type>().value(at);
            let start = options.date.as_ref().zip(super::parse::start_of(days));
            let text = start.map(|(pattern, start)| pattern.written(start, &Zone::utc())).unwrap_or_default();
            out.push_str(&quoted(&text));
        }
        DataType::Binary => out.push_str(&quoted(&BASE64_STANDARD.encode(array.as_binary::<i32>().value(at)))),
        t if t.is_integer() || *t == DataType::Boolean => {
            out.push_str(&show::value(array, at, &style(zone))?.unwrap_or_default());
        }
        _ => out.push_str(&quoted(&show::value(array, at, &style(zone))?.unwrap_or_default())),
    }
    Ok(())
}

/// JSON has no form for what is not finite: it is text.
fn finite(finite: bool, array: &ArrayRef, at: usize, zone: &Zone, out: &mut String) -> Result<()> {
    let text = show::value(array, at, &style(zone))?.unwrap_or_default();
    out.push_str(&if finite { text } else { quoted(&text) });
    Ok(())
}
