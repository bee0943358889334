//! One record of CSV to values and back: `from_csv`, `to_csv`, `schema_of_csv`.

use std::rc::Rc;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringArray, StringBuilder, StructArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Date32Type, Field, TimestampMicrosecondType};
use datafusion::common::{Result, ScalarValue, plan_err};

use super::cast::{Misfit, cast, day_of};
use super::conditional::spelled;
use super::function::Kind::{Any, Str};
use super::function::{Answer, Asked, Body, Call, Function, Row, Typed, fault};
use super::map::ends;
use super::pattern::{Pattern, compiled};
use super::zone::Zone;
use super::{parse, show};

pub(super) fn functions() -> Vec<Function> {
    vec![
        Function::new("from_csv", &[Str, Str, Any], Body::Arrays(from_type, from)).optional(1),
        Function::new("to_csv", &[Any, Any], Body::Arrays(to_type, to)).optional(1),
        Function::new("schema_of_csv", &[Str, Any], Body::Text(schema)).optional(1),
    ]
}

struct Options {
    separator: String,
    quote: char,
    escape: char,
    /// How a null stands.
    null: String,
    date: Option<Rc<Pattern>>,
    timestamp: Option<Rc<Pattern>>,
    /// What does not fit fails the row.
    strict: bool,
}

fn options(call: &Call<'_>, argument: usize) -> Result<Options> {
    let mut options = Options {
        separator: ",".to_owned(),
        quote: '"',
        escape: '\\',
        null: String::new(),
        date: None,
        timestamp: None,
        strict: false,
    };
    let Some(given) = call.arguments.get(argument) else { return Ok(options) };
    let Some(map) = given.array.as_map_opt().filter(|m| !m.is_empty()) else { return Ok(options) };
    let (keys, values) = (map.keys().as_string_opt::<i32>(), map.values().as_string_opt::<i32>());
    let (Some(keys), Some(values)) = (keys, values) else { return plan_err!("options are a map of text to text") };
    for at in ends(map.offsets(), 0) {
        let value = values.value(at);
        let mut one = value.chars();
        match (keys.value(at).to_ascii_lowercase().as_str(), one.next(), one.next()) {
            ("sep" | "delimiter", Some(_), _) => value.clone_into(&mut options.separator),
            ("quote", Some(quote), None) => options.quote = quote,
            ("escape", Some(escape), None) => options.escape = escape,
            ("nullvalue", ..) => value.clone_into(&mut options.null),
            ("dateformat", ..) => options.date = Some(compiled(value)?),
            ("timestampformat", ..) => options.timestamp = Some(compiled(value)?),
            ("mode", ..) => options.strict = value.eq_ignore_ascii_case("FAILFAST"),
            ("sep" | "delimiter" | "quote" | "escape", ..) => {
                return plan_err!("the option {} of {} cannot be '{value}'", keys.value(at), call.function);
            }
            (other, ..) => return plan_err!("{} knows no option {other}", call.function),
        }
    }
    Ok(options)
}

/// The fields of one record; of several lines the first, unless a quoted field goes on.
fn fields(text: &str, options: &Options) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = text;
    loop {
        let (field, after) = quoted(rest, options).unwrap_or_else(|| plain(rest, options));
        found.push(field);
        match after.strip_prefix(options.separator.as_str()) {
            Some(more) => rest = more,
            None => return found,
        }
    }
}

/// A field up to the separator or the end of the line, and what comes then.
fn plain<'a>(text: &'a str, options: &Options) -> (String, &'a str) {
    let line = text.find(['\n', '\r']).unwrap_or(text.len());
    let end = text.find(options.separator.as_str()).map_or(line, |at| at.min(line));
    let (field, after) = text.split_at(end);
    (field.to_owned(), after)
}

/// A field in quotes; none where the quotes end before the field does, since then they are a part of it.
fn quoted<'a>(text: &'a str, options: &Options) -> Option<(String, &'a str)> {
    let inside = text.strip_prefix(options.quote)?;
    let mut field = String::new();
    let mut characters = inside.char_indices().peekable();
    while let Some((at, c)) = characters.next() {
        if c == options.escape && characters.peek().is_some_and(|(_, next)| *next == options.quote) {
            field.push(options.quote);
            characters.next();
        } else if c == options.quote {
            let after = inside.get(at + c.len_utf8()..)?;
            let ends = after.is_empty() || after.starts_with(['\n', '\r']) || after.starts_with(&options.separator);
            return ends.then_some((field, after));
        } else {
            field.push(c);
        }
    }
    None
}

fn from_type(asked: &Asked<'_>) -> Result<Typed> {
    let Some(ScalarValue::Utf8(Some(schema))) = asked.literal(1) else {
        return plan_err!("the schema of from_csv is a literal such as 'a INT, b STRING'");
    };
    let found = match crate::sql::parse_schema(schema) {
        Ok(found) => found,
        Err(error) => return plan_err!("the schema of from_csv: {}", error.message()),
    };
    if let Some(field) = found.fields().iter().find(|f| f.data_type().is_nested()) {
        return plan_err!("a field of CSV holds one value, and {} is {}", field.name(), spelled(field.data_type()));
    }
    let fields: Vec<Field> = found.fields().iter().map(|f| f.as_ref().clone().with_nullable(true)).collect();
    let mut arguments = vec![DataType::Utf8, DataType::Utf8];
    arguments.extend(asked.types.get(2).cloned());
    Ok(Typed { arguments, result: DataType::Struct(fields.into()) })
}

fn from(call: &Call<'_>) -> Result<ArrayRef> {
    let DataType::Struct(wanted) = call.result else { return plan_err!("from_csv gives a struct") };
    let options = options(call, 2)?;
    let texts = call.array(0)?;
    let mut columns: Vec<Vec<Option<String>>> = vec![Vec::with_capacity(call.rows); wanted.len()];
    for text in texts.as_string::<i32>().iter() {
        let mut given = text.map(|text| fields(text, &options)).unwrap_or_default().into_iter();
        if options.strict && text.is_some() && given.len() != wanted.len() {
            return Err(malformed(text));
        }
        for column in &mut columns {
            column.push(given.next().filter(|field| *field != options.null));
        }
    }
    let mut arrays = Vec::with_capacity(wanted.len());
    for (field, texts) in wanted.iter().zip(columns) {
        let made = column(field.data_type(), &texts, &options, &call.settings.zone)?;
        if options.strict
            && let Some(at) =
                (0..texts.len()).find(|at| made.is_null(*at) && texts.get(*at).is_some_and(Option::is_some))
        {
            return Err(malformed(call.row(at).opt_str(0)));
        }
        arrays.push(made);
    }
    let nulls = texts.nulls().cloned();
    Ok(Arc::new(StructArray::try_new_with_length(wanted.clone(), arrays, nulls.filter(has_nulls), call.rows)?))
}

fn has_nulls(nulls: &NullBuffer) -> bool {
    nulls.null_count() > 0
}

fn malformed(text: Option<&str>) -> datafusion::common::DataFusionError {
    fault("MALFORMED_RECORD_IN_PARSING", format!("'{}' is not of the schema", text.unwrap_or_default()))
}

/// The texts as values of a type; null where they are none.
fn column(to: &DataType, texts: &[Option<String>], options: &Options, zone: &Zone) -> Result<ArrayRef> {
    let whole = |text: &str| {
        let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
        !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
    };
    let fits = |text: &&str| match to {
        DataType::Utf8 | DataType::Binary => true,
        DataType::Boolean => text.eq_ignore_ascii_case("true") || text.eq_ignore_ascii_case("false"),
        t if t.is_integer() => whole(text),
        _ => text.trim() == *text,
    };
    let texts = texts.iter().map(|text| text.as_deref().filter(fits));
    match (to, &options.date, &options.timestamp) {
        (DataType::Date32, Some(pattern), _) => {
            let days = texts.map(|text| text.and_then(|text| pattern.read(text)).map(|(local, _)| day_of(local)));
            Ok(Arc::new(days.collect::<arrow::array::PrimitiveArray<Date32Type>>()))
        }
        (DataType::Timestamp(_, with_zone), _, Some(pattern)) => {
            let micros = texts.map(|text| {
                let (local, own) = pattern.read(text?)?;
                Some(if with_zone.is_some() { own.as_ref().unwrap_or(zone).instant(local) } else { local })
            });
            let array: arrow::array::PrimitiveArray<TimestampMicrosecondType> = micros.collect();
            Ok(Arc::new(array.with_timezone_opt(with_zone.clone())))
        }
        _ => {
            let array: ArrayRef = Arc::new(texts.collect::<StringArray>());
            cast(&array, to, Misfit::Null, zone)
        }
    }
}

fn to_type(asked: &Asked<'_>) -> Result<Typed> {
    match asked.of(0)? {
        DataType::Struct(fields) if fields.iter().all(|f| !f.data_type().is_nested()) => {
            Ok(Typed { arguments: asked.types.to_vec(), result: DataType::Utf8 })
        }
        other => plan_err!("to_csv takes a struct of single values, not {}", spelled(other)),
    }
}

fn to(call: &Call<'_>) -> Result<ArrayRef> {
    let array = call.array(0)?;
    let options = options(call, 1)?;
    let (local, zoned) = (compiled("yyyy-MM-dd'T'HH:mm:ss.SSS")?, compiled("yyyy-MM-dd'T'HH:mm:ss.SSSXXX")?);
    let style = show::Style { zone: &call.settings.zone, exponents: false };
    let mut builder = StringBuilder::new();
    for at in 0..call.rows {
        if array.is_null(at) {
            builder.append_null();
            continue;
        }
        let mut record = String::new();
        for (index, column) in array.as_struct().columns().iter().enumerate() {
            if index > 0 {
                record.push_str(&options.separator);
            }
            let field = match column.data_type() {
                _ if column.is_null(at) => None,
                DataType::Timestamp(_, with_zone) => {
                    let micros = column.as_primitive::<TimestampMicrosecondType>().value(at);
                    let usual = if with_zone.is_some() { &zoned } else { &local };
                    let zone = if with_zone.is_some() { call.settings.zone.clone() } else { Zone::utc() };
                    Some(options.timestamp.as_ref().unwrap_or(usual).written(micros, &zone))
                }
                DataType::Date32 => match &options.date {
                    Some(pattern) => parse::start_of(column.as_primitive::<Date32Type>().value(at))
                        .map(|start| pattern.written(start, &Zone::utc())),
                    None => show::value(column, at, &style)?,
                },
                _ => show::value(column, at, &style)?,
            };
            match field {
                None => record.push_str(&options.null),
                Some(field) => record.push_str(&written(field.trim_matches(|c: char| c <= ' '), &options)),
            }
        }
        builder.append_value(record);
    }
    Ok(Arc::new(builder.finish()))
}

/// A field, in quotes where it would be taken for something else.
fn written(field: &str, options: &Options) -> String {
    let Options { separator, quote, escape, .. } = options;
    if !field.is_empty() && !field.contains(separator.as_str()) && !field.contains([*quote, '\n', '\r']) {
        return field.to_owned();
    }
    format!("{quote}{}{quote}", field.replace(*quote, &format!("{escape}{quote}")))
}

fn schema(row: &Row<'_>) -> Answer<String> {
    let options = options(row.call(), 1)?;
    let columns = fields(row.str(0), &options).into_iter().enumerate().map(|(at, field)| {
        let kind = kind(&field, &options, &row.settings().zone)?;
        Ok(format!("_c{at}: {}", spelled(&kind).to_uppercase()))
    });
    Ok(Some(format!("STRUCT<{}>", columns.collect::<Result<Vec<_>>>()?.join(", "))))
}

/// The narrowest type that a field has the form of.
fn kind(field: &str, options: &Options, zone: &Zone) -> Result<DataType> {
    use DataType::{Boolean, Date32, Float64, Int32, Int64, Utf8};
    if *field == options.null {
        return Ok(Utf8);
    }
    let texts = [Some(field.to_owned())];
    for kind in [Int32, Int64, Float64, Date32, super::types::instant(), Boolean] {
        let dated = kind != Date32 || field.len() == 10;
        if dated && !column(&kind, &texts, options, zone)?.is_null(0) {
            return Ok(kind);
        }
    }
    Ok(Utf8)
}
