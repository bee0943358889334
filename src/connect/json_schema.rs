//! Schemas as the client writes them in JSON.

use serde_json::Value;

use super::types::name;
use crate::error::{Error, Result};
use crate::sql::parse_schema;

/// Columns from `{"type": "struct", "fields": […]}`.
pub(super) fn parse(text: &str) -> Result<arrow::datatypes::SchemaRef> {
    let json: Value = serde_json::from_str(text)
        .map_err(|e| Error::user("INVALID_JSON_SCHEMA", "the schema is no JSON").caused_by(e))?;
    parse_schema(&fields(&json, " ", 64)?)
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
        shown.push(format!("{}{between}{}{null}", name(title), ddl(data_type, depth)?));
    }
    Ok(shown.join(", "))
}

fn ddl(json: &Value, depth: usize) -> Result<String> {
    let depth = depth.checked_sub(1).ok_or_else(super::literal::too_deep)?;
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
