//! Messages of the planner in the words of those who write the queries.

use std::borrow::Cow;
use std::sync::LazyLock;

use regex::{Captures, Regex};

/// Types as the planner spells them; none if the pattern is none, which a test rules out.
static TYPES: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(concat!(
        r#"\bTimestamp\((?:s|ms|µs|ns)(?P<zone>, "[^"]*")?\)"#,
        r"|\bDecimal(?:32|64|128|256)\((?P<digits>\d+, ?-?\d+)\)",
        r"|\b(?:Interval|Duration)\(\w+\)",
        r"|\b(?:Large)?List\((?P<item>\w+)(?:, field: '\w+')?\)",
        r"|\b(?:Boolean|U?Int(?:8|16|32|64)|Float(?:16|32|64)|(?:Large)?Utf8(?:View)?|(?:Large)?Binary(?:View)?|Date(?:32|64))\b",
    ))
    .ok()
});

/// A message with types as Spark's DDL has them, and without the names that the planner has for kinds of errors.
pub(super) fn in_spark_terms(message: &str) -> String {
    let mut plain = message.trim();
    for kind in ["Execution error: ", "Error during planning: ", "External error: ", "Arrow error: ", "type_coercion\n"]
    {
        plain = plain.strip_prefix(kind).unwrap_or(plain).trim_start();
    }
    // The condition of a fault stands before what it says.
    let plain = match plain.strip_prefix('[').and_then(|rest| rest.split_once("] ")) {
        Some((code, said)) if code.bytes().all(|b| b.is_ascii_uppercase() || matches!(b, b'_' | b'.')) => said,
        _ => plain,
    };
    match TYPES.as_ref() {
        Some(types) => types.replace_all(plain, |found: &Captures<'_>| spelled(found).into_owned()).into_owned(),
        None => plain.to_owned(),
    }
}

fn spelled(found: &Captures<'_>) -> Cow<'static, str> {
    let whole = found.get(0).map_or("", |m| m.as_str());
    if let Some(digits) = found.name("digits") {
        return format!("DECIMAL({})", digits.as_str().replace(' ', "")).into();
    }
    if let Some(item) = found.name("item") {
        return format!("ARRAY<{}>", in_spark_terms(item.as_str())).into();
    }
    let name = match whole {
        "Boolean" => "BOOLEAN",
        "Int8" => "TINYINT",
        "Int16" | "UInt8" => "SMALLINT",
        "Int32" | "UInt16" => "INT",
        "Int64" | "UInt32" | "UInt64" => "BIGINT",
        "Float16" | "Float32" => "FLOAT",
        "Float64" => "DOUBLE",
        "Date32" | "Date64" => "DATE",
        text if text.contains("Utf8") => "STRING",
        bytes if bytes.contains("Binary") => "BINARY",
        moment if moment.starts_with("Timestamp") && found.name("zone").is_none() => "TIMESTAMP_NTZ",
        moment if moment.starts_with("Timestamp") => "TIMESTAMP",
        _ => "INTERVAL",
    };
    name.into()
}

#[cfg(test)]
mod tests {
    use super::in_spark_terms;

    #[test]
    fn types_are_those_of_ddl() {
        for (given, expected) in [
            ("date_add takes Int32, not Interval(MonthDayNano)", "date_add takes INT, not INTERVAL"),
            ("Timestamp(µs, \"UTC\") and Timestamp(µs) differ", "TIMESTAMP and TIMESTAMP_NTZ differ"),
            ("Execution error: [CAST_INVALID_INPUT] 'x' is no Decimal128(10, 2)", "'x' is no DECIMAL(10,2)"),
            ("Error during planning: List(Utf8) or List(Int64, field: 'element')", "ARRAY<STRING> or ARRAY<BIGINT>"),
            ("Binary Float64 LargeUtf8 Int8", "BINARY DOUBLE STRING TINYINT"),
            ("[a] column Int32_x stays", "[a] column Int32_x stays"),
        ] {
            assert_eq!(in_spark_terms(given), expected);
        }
    }
}
