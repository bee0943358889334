//! Schemas and types as Spark writes them in JSON, as DDL.

use arrow::datatypes::SchemaRef;
use serde_json::Value;

use super::types::parse_schema;
use crate::error::{Error, Result};

/// How deep types may nest.
const DEPTH: usize = 64;

/// Columns from `{"type": "struct", "fields": […]}`.
///
/// # Errors
/// `INVALID_JSON_SCHEMA` (user); those of [`parse_schema`].
pub(crate) fn schema_of_json(text: &str) -> Result<SchemaRef> {
    parse_schema(&fields(&read(text)?, " ", DEPTH)?)
}

/// The DDL of a type such as `{"type": "array", …}` or `"long"`; none for text that is not such JSON.
///
/// # Errors
/// `INVALID_JSON_SCHEMA` (user).
pub(crate) fn type_of_json(text: &str) -> Option<Result<String>> {
    let text = text.trim_start();
    text.starts_with(['{', '"']).then(|| read(text).and_then(|json| ddl(&json, DEPTH)))
}

fn read(text: &str) -> Result<Value> {
    serde_json::from_str(text).map_err(|e| Error::user("INVALID_JSON_SCHEMA", "the schema is no JSON").caused_by(e))
}

fn wrong(what: &str) -> Error {
    Error::user("INVALID_JSON_SCHEMA", format!("the schema has no {what}"))
}

fn fields(json: &Value, between: &str, depth: usize) -> Result<String> {
    let fields = json.get("fields").and_then(Value::as_array).ok_or_else(|| wrong("`fields`"))?;
    let mut shown = Vec::with_capacity(fields.len());
    for field in fields {
        let title = field.get("name").and_then(Value::as_str).ok_or_else(|| wrong("`name` of a field"))?;
        let data_type = field.get("type").ok_or_else(|| wrong("`type` of a field"))?;
        let null = if field.get("nullable").and_then(Value::as_bool) == Some(false) { " NOT NULL" } else { "" };
        let title = title.replace('`', "``");
        shown.push(format!("`{title}`{between}{}{null}", ddl(data_type, depth)?));
    }
    Ok(shown.join(", "))
}

fn ddl(json: &Value, depth: usize) -> Result<String> {
    let too_deep = || Error::user("NESTS_TOO_DEEP", "the schema nests too deep");
    let depth = depth.checked_sub(1).ok_or_else(too_deep)?;
    let part = |key: &str| json.get(key).ok_or_else(|| wrong(&format!("`{key}`"))).and_then(|value| ddl(value, depth));
    match (json.as_str(), json.get("type").and_then(Value::as_str)) {
        (Some("integer"), _) => Ok("INT".to_owned()),
        (Some("long"), _) => Ok("BIGINT".to_owned()),
        (Some(simple), _) => Ok(simple.to_uppercase()),
        (None, Some("struct")) => Ok(format!("STRUCT<{}>", fields(json, ": ", depth)?)),
        (None, Some("array")) => Ok(format!("ARRAY<{}>", part("elementType")?)),
        (None, Some("map")) => Ok(format!("MAP<{}, {}>", part("keyType")?, part("valueType")?)),
        _ => Err(wrong("type that is known")),
    }
}
