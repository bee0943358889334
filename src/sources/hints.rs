//! Types that a user gives some columns of an inferred schema.

use arrow::datatypes::DataType;

use crate::error::{Error, Result};
use crate::sql::parse_schema;

fn invalid(text: &str, why: impl std::fmt::Display) -> Error {
    Error::user("INVALID_SCHEMA_HINTS", format!("cannot read the schemaHints {text:?}: {why}"))
}

/// A path to a column, or to a field inside one, and the type it has.
pub(super) type Hint = (Vec<String>, DataType);

/// Columns and types of `a INT, b.c DATE`; a name with dots is a field inside a struct.
pub(super) fn parse_hints(text: &str) -> Result<Vec<Hint>> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let hint = |part: &str| {
        let (path, written) = path(part).ok_or_else(|| invalid(text, format!("{part:?} is no column and type")))?;
        let schema = parse_schema(&format!("c {written}")).map_err(|e| invalid(text, e.message()))?;
        match schema.fields().as_ref() {
            [one] => Ok((path, one.data_type().clone())),
            _ => Err(invalid(text, format!("{written:?} is no type"))),
        }
    };
    parts(text).iter().map(|part| hint(part.trim())).collect()
}

/// What stands between the commas that are in no brackets and no quotes.
fn parts(text: &str) -> Vec<&str> {
    let (mut depth, mut quoted, mut start, mut parts) = (0_usize, false, 0, Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '`' => quoted = !quoted,
            _ if quoted => {}
            '<' | '(' => depth += 1,
            '>' | ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.extend(text.get(start..at));
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.extend(text.get(start..));
    parts
}

/// The names of a path, and the type after it.
fn path(part: &str) -> Option<(Vec<String>, &str)> {
    let (mut names, mut rest) = (Vec::new(), part);
    loop {
        let (name, after) = match rest.strip_prefix('`') {
            Some(quoted) => quoted.split_once('`')?,
            None => rest.split_at_checked(rest.find(|c: char| c == '.' || c == ':' || c.is_whitespace())?)?,
        };
        if name.is_empty() {
            return None;
        }
        names.push(name.to_owned());
        match after.strip_prefix('.') {
            Some(inner) => rest = inner,
            None => return Some((names, after.trim_start_matches(':').trim())),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn hints_name_columns_and_fields_inside() {
        let hints = parse_hints(
            "a INT, b.c DATE, b.d DECIMAL(9, 2), e ARRAY<STRING>, `f g` TIMESTAMP, h TIMESTAMP_NTZ, i bigint, j: MAP<STRING, INT>",
        )
        .unwrap();
        let text: Vec<_> = hints.iter().map(|(path, data_type)| format!("{} {data_type}", path.join("/"))).collect();
        assert_eq!(
            text.get(..4).unwrap(),
            ["a Int32", "b/c Date32", "b/d Decimal128(9, 2)", "e List(Utf8, field: 'element')"]
        );
        assert_eq!(text.get(4..7).unwrap(), ["f g Timestamp(µs, \"UTC\")", "h Timestamp(µs)", "i Int64"]);
        assert!(text.last().unwrap().starts_with("j Map("));
        assert!(parse_hints("").unwrap().is_empty());
        for wrong in ["a", "a INT b INT", "a MAP<INT", "a DECIMAL(50, 2)", ",", "a INT,", "`a", ". INT"] {
            assert_eq!(parse_hints(wrong).unwrap_err().code(), "INVALID_SCHEMA_HINTS", "{wrong}");
        }
    }
}
