//! The arguments of `read_files`.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use datafusion::sql::sqlparser::ast::{
    Expr, FunctionArg, FunctionArgExpr, FunctionArguments, Spanned, UnaryOperator, Value,
};
use datafusion::sql::sqlparser::tokenizer::{Location, Span as AstSpan};

use super::statement::Context;
use super::types::parse_schema;
use crate::error::{Error, Result};
use crate::pipeline::ReadFiles;
use crate::pipeline::declaration::WrittenName;

pub(super) fn read_files(context: &Context<'_>, args: &[FunctionArg], at: AstSpan) -> Result<ReadFiles> {
    let file = context.file;
    let mut path = None;
    let mut schema = None;
    let mut options = BTreeMap::new();
    let twice = |key: &str, at: AstSpan| {
        Error::user("DUPLICATE_OPTION", format!("read_files is given `{key}` twice")).at(&file.span(at))
    };
    for arg in args {
        let (key, value, place) = match arg {
            FunctionArg::Unnamed(value) => ("path".to_owned(), value, arg.span()),
            FunctionArg::Named { name, arg: value, .. } => (name.value.to_lowercase(), value, arg.span()),
            FunctionArg::ExprNamed { name, arg: value, .. } => (name.to_string().to_lowercase(), value, arg.span()),
        };
        let text = literal(value).ok_or_else(|| {
            Error::user("INVALID_OPTION", format!("`{key}` of read_files takes a literal")).at(&file.span(place))
        })?;
        match key.as_str() {
            "path" if path.is_none() => path = Some(absolute(context.root, &text)),
            "schema" if schema.is_none() => {
                let literal = value.span();
                schema = Some(parse_schema(&text).map_err(|error| in_literal(context, &error, literal))?);
            }
            "path" | "schema" => return Err(twice(&key, place)),
            _ if key.ends_with("cleansource.movedestination") || key == "sourcearchivedir" => {
                if options.insert(key.clone(), absolute(context.root, &text)).is_some() {
                    return Err(twice(&key, place));
                }
            }
            _ => {
                if options.insert(key.clone(), text).is_some() {
                    return Err(twice(&key, place));
                }
            }
        }
    }
    match path {
        Some(path) if !path.is_empty() => Ok(ReadFiles { path, schema, options, kept: None }),
        _ => Err(Error::user("INVALID_OPTION", "read_files needs a path")
            .at(&file.span(at))
            .help("read_files('landing/orders', format => 'json')")),
    }
}

/// `cloud_files(path, format, map('key', 'value', …))`: files as a stream, in the older spelling.
pub(super) fn cloud_files(context: &Context<'_>, args: &[FunctionArg], at: AstSpan) -> Result<ReadFiles> {
    let file = context.file;
    let help = "cloud_files('landing/orders', 'json', map('schema', 'id INT'))";
    let wrong = |message: &str, at: AstSpan| Error::user("INVALID_OPTION", message).at(&file.span(at)).help(help);
    let mut texts = Vec::new();
    let mut options = BTreeMap::new();
    let mut schema = None;
    for arg in args {
        let FunctionArg::Unnamed(value) = arg else {
            return Err(wrong("the arguments of cloud_files have no names", arg.span()));
        };
        if let Some(text) = literal(value) {
            texts.push(text);
            continue;
        }
        let FunctionArgExpr::Expr(Expr::Function(function)) = value else {
            return Err(wrong("cloud_files takes a path, a format and a map of options", arg.span()));
        };
        let given = match &function.args {
            FunctionArguments::List(list) if function.name.to_string().eq_ignore_ascii_case("map") => &list.args,
            _ => return Err(wrong("cloud_files takes its options as map('key', 'value', …)", arg.span())),
        };
        for pair in given.chunks(2) {
            let [FunctionArg::Unnamed(key), FunctionArg::Unnamed(value)] = pair else {
                return Err(wrong("an option has a key and a value", arg.span()));
            };
            let (Some(key), Some(text)) = (literal(key), literal(value)) else {
                return Err(wrong("options are literals", arg.span()));
            };
            let key = key.to_lowercase();
            let key = key.strip_prefix("cloudfiles.").unwrap_or(&key).to_owned();
            if key == "schema" {
                schema = Some(parse_schema(&text).map_err(|error| in_literal(context, &error, value.span()))?);
            } else if options.insert(key.clone(), text).is_some() {
                return Err(wrong(&format!("cloud_files is given `{key}` twice"), arg.span()));
            }
        }
    }
    match <[String; 2]>::try_from(texts) {
        Ok([path, format]) if !path.is_empty() => {
            options.insert("format".to_owned(), format);
            Ok(ReadFiles { path: absolute(context.root, &path), schema, options, kept: None })
        }
        _ => Err(wrong("cloud_files needs a path and a format", at)),
    }
}

/// A name such as `json`.`/landing/orders`, which means files in Spark.
pub(super) fn not_a_path(name: WrittenName) -> Result<WrittenName> {
    let [format, path] = name.parts.as_slice() else { return Ok(name) };
    let format = format.to_lowercase();
    let known = ["json", "csv", "parquet", "orc", "avro", "text", "binaryfile", "xml", "delta"];
    if !known.contains(&format.as_str()) || !path.contains('/') {
        return Ok(name);
    }
    let error = Error::user("NOT_SUPPORTED", format!("{format}.`{path}` as a table is not supported")).at(&name.span);
    Err(if format == "delta" {
        error.help("give the table a name, and set silverflow.table.<name> in the configuration to its path")
    } else {
        error.help(format!("read_files('{path}', format => '{format}')"))
    })
}

/// The text of a literal, however it is written.
pub(super) fn literal(arg: &FunctionArgExpr) -> Option<String> {
    let FunctionArgExpr::Expr(expr) = arg else { return None };
    match expr {
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) | Value::Number(text, _) => Some(text.clone()),
            Value::Boolean(value) => Some(value.to_string()),
            _ => None,
        },
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => match expr.as_ref() {
            Expr::Value(value) => match &value.value {
                Value::Number(text, _) => Some(format!("-{text}")),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    }
}

/// An error inside a string, at its place in the file as far as the string is on one line.
fn in_literal(context: &Context<'_>, error: &Error, literal: AstSpan) -> Error {
    let mut at = literal;
    if let Some(inner) = &error.place().span
        && literal.start.line == literal.end.line
    {
        let column = (literal.start.column + inner.column as u64).min(literal.end.column.saturating_sub(1));
        let start = Location { line: literal.start.line, column };
        at = AstSpan { start, end: Location { column: column + inner.length as u64, ..start } };
    }
    let moved = Error::user(error.code(), error.message()).at(&context.file.span(at));
    match error.advice() {
        Some(advice) => moved.help(advice),
        None => moved,
    }
}

/// A path as it is opened: URLs stay (but `file:` is taken off), relative paths count from the project's folder.
pub(crate) fn absolute(root: &Path, path: &str) -> String {
    let path = match path.strip_prefix("file:") {
        Some(local) => {
            let slashes = local.len() - local.trim_start_matches('/').len();
            local.get(slashes.saturating_sub(1)..).unwrap_or(local)
        }
        None if path.is_empty() || path.contains("://") || path.starts_with("dbfs:") => return path.to_owned(),
        None => path,
    };
    let joined: PathBuf = root.join(path).components().filter(|part| *part != Component::CurDir).collect();
    let mut text = joined.to_string_lossy().into_owned();
    if path.ends_with('/') && !text.ends_with('/') {
        text.push('/');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_made_absolute() {
        for (path, expected) in [
            ("landing/orders", "/project/landing/orders"),
            ("./landing/*.json", "/project/landing/*.json"),
            ("../data/", "/project/../data/"),
            ("/abs/x", "/abs/x"),
            ("file:///abs/x", "/abs/x"),
            ("file:/abs/x", "/abs/x"),
            ("s3://bucket/x", "s3://bucket/x"),
            ("", ""),
        ] {
            assert_eq!(absolute(Path::new("/project"), path), expected, "{path}");
        }
    }
}
