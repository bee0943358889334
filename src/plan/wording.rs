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

/// Conditions under which a function fails: the codes of errors of expressions without columns, whose one value is
/// computed while the query is planned.
const CONDITIONS: &[&str] = &[
    "ARITHMETIC_OVERFLOW",
    "CANNOT_PARSE_TIMESTAMP",
    "CAST_INVALID_INPUT",
    "CAST_OVERFLOW",
    "COMPARATOR_RETURNS_NULL",
    "CONVERSION_INVALID_INPUT",
    "DATETIME_FIELD_OUT_OF_BOUNDS",
    "DATETIME_OVERFLOW",
    "DIVIDE_BY_ZERO",
    "DUPLICATED_MAP_KEY",
    "EXCEED_LIMIT_LENGTH",
    "ILLEGAL_DAY_OF_WEEK",
    "INTERVAL_ARITHMETIC_OVERFLOW",
    "INTERVAL_NOT_COMPARABLE",
    "INVALID_ARRAY_INDEX",
    "INVALID_DATETIME_PATTERN",
    "INVALID_INDEX_OF_ZERO",
    "INVALID_JSON_RECORD",
    "INVALID_PARAMETER_VALUE",
    "INVALID_TIMEZONE",
    "INVALID_URL",
    "MALFORMED_CHARACTER_CODING",
    "MALFORMED_RECORD_IN_PARSING",
    "NULL_MAP_KEY",
    "NUMERIC_VALUE_OUT_OF_RANGE",
    "REGEX_TOO_COMPLEX",
    "REMAINDER_BY_ZERO",
    "USER_RAISED_EXCEPTION",
];

/// The code for a message of the planner.
pub(super) fn code_of(message: &str) -> &'static str {
    let plain = message.trim().strip_prefix("Execution error: ").unwrap_or(message);
    let condition = plain.strip_prefix('[').and_then(|rest| rest.split_once("] "));
    let known = condition.and_then(|(code, _)| CONDITIONS.iter().find(|known| **known == code));
    known.copied().unwrap_or("INVALID_QUERY")
}

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
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;

    /// What stands in `fault(…)` of the functions is known here.
    #[test]
    fn every_condition_of_a_function_is_a_code() {
        let mut folders = vec![std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/plan")];
        let call = Regex::new(r#"\bfault\(\s*"([A-Z_]+)""#).unwrap();
        let mut seen = 0;
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                for found in call.captures_iter(&std::fs::read_to_string(path).unwrap()) {
                    let name = &found[1];
                    assert_eq!(code_of(&format!("Execution error: [{name}] so it is")), name);
                    seen += 1;
                }
            }
        }
        assert!(seen > 20, "only {seen}");
        assert_eq!(code_of("[OTHER] so it is"), "INVALID_QUERY");
    }

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
