//! Spark's functions. Each family is a file; what a function is, and how DataFusion calls it, is in `function`. A function
//! is offered where cases of it are recorded from Spark (`tests/cases/functions.json`).

mod arithmetic;
mod array;
mod cast;
mod conditional;
mod csv;
mod datetime;
mod encode;
mod function;
mod grouped;
mod hash;
mod json;
mod json_values;
mod lambda;
mod map;
mod math;
mod numerals;
mod order;
mod parse;
mod pattern;
mod reading;
mod regex;
mod sequence;
mod show;
mod string;
mod structs;
#[cfg(test)]
mod tests;
mod title;
mod types;
mod url;
mod variant;
mod zone;

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::{DFSchema, Result, ScalarValue, not_impl_err, plan_err};
use datafusion::execution::SessionStateDefaults;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{Cast, Expr, ExprSchemable, HigherOrderUDF, ScalarUDF, ScalarUDFImpl, lit};

use self::function::SparkFunction;
use crate::error::{Error, Result as Outcome};

pub(super) use self::cast::SparkCast;
pub(super) use self::conditional::spelled;
pub use self::function::Settings;
pub(super) use self::json::schema_of;
pub(crate) use self::reading::{Instants, double};
pub(super) use self::structs::{PATH, member_of, members_of};
pub(super) use self::types::{common, instant, text};
pub use self::zone::Zone;

/// Names that expressions are turned into and nobody writes.
const INTERNAL: [&str; 12] = [
    SORTED_BY,
    LIMITED_LENGTH,
    "add",
    "subtract",
    "multiply",
    "divide",
    "subscript",
    "member",
    "one_zero",
    "plus_interval",
    "minus_interval",
    "interval_micros",
];

/// `array_sort` with a comparison, for which the planner has no function of two kinds.
pub(super) const SORTED_BY: &str = "array_sort_by";

/// What makes a text one of `VARCHAR(n)`.
const LIMITED_LENGTH: &str = "varchar_of_length";

/// Names that a front end writes for what has no name in SQL.
const UNNAMED: [&str; 4] = [NOT, PATH, "with_field", "without_field"];

/// Functions that are read as others, apart from casts.
const WRITTEN: [&str; 6] = ["if", "struct", "variant_get", "try_variant_get", "to_variant_object", "is_variant_null"];

/// What `~` is read as, before types are known.
pub(super) const NOT: &str = "bitwise_not";

impl Settings {
    /// Reads `spark.sql.ansi.enabled` and `spark.sql.session.timeZone`.
    ///
    /// # Errors
    /// A value that neither can be.
    pub fn of(configuration: &BTreeMap<String, String>) -> Outcome<Settings> {
        let mut settings = Settings::default();
        if let Some(ansi) = configuration.get("spark.sql.ansi.enabled") {
            settings.ansi = match ansi.to_ascii_lowercase().as_str() {
                "true" => true,
                "false" => false,
                other => {
                    return Err(Error::user("INVALID_CONFIGURATION", format!("spark.sql.ansi.enabled is {other}"))
                        .help("it is true or false"));
                }
            };
        }
        if let Some(name) = configuration.get("spark.sql.session.timeZone") {
            settings.zone = Zone::parse(name).ok_or_else(|| {
                Error::user("INVALID_TIMEZONE", format!("there is no time zone {name}"))
                    .help("name one like Europe/Berlin, or an offset like +02:00")
            })?;
        }
        Ok(settings)
    }
}

/// Names that stand for others, or for what is known when a definition is read.
const RENAMED: [&str; 5] = ["charindex", "current_catalog", "current_database", "current_schema", "input_file_name"];

/// The names of all that can be called: functions of a row, of the clock and of many rows, and what makes rows.
pub fn all_names() -> Vec<String> {
    let aggregates = SessionStateDefaults::default_aggregate_functions().into_iter().map(|f| f.name().to_owned());
    let clock = super::clock::clock_functions(None).into_iter().map(|f| f.name().to_owned());
    let others = crate::sql::GENERATORS.iter().chain(&RENAMED).map(|name| (*name).to_owned());
    let mut all: Vec<String> = names().into_iter().chain(aggregates).chain(clock).chain(others).collect();
    all.sort();
    all.dedup();
    all
}

/// The names of functions of a row whose answers are recorded, in order.
pub(super) fn names() -> Vec<String> {
    let settings = Settings::default();
    let scalar = scalar(&settings).into_iter().map(|f| f.name().to_owned());
    let scalar = scalar.filter(|name| callable(name) && !UNNAMED.contains(&name.as_str()));
    let higher = higher_order(&settings).into_iter().map(|f| f.name().to_owned()).filter(|name| callable(name));
    // These are read as something else before there are functions.
    let written = super::syntax::CASTS.iter().chain(&WRITTEN).map(|name| (*name).to_owned());
    let mut names: Vec<String> = scalar.chain(higher).chain(written).collect();
    names.sort();
    names.dedup();
    names
}

/// Every function for a session, those that nobody writes included.
pub(super) fn scalar(settings: &Settings) -> Vec<Arc<ScalarUDF>> {
    [
        arithmetic::functions(),
        array::functions(),
        conditional::functions(),
        csv::functions(),
        datetime::functions(),
        encode::functions(),
        hash::functions(),
        json::functions(),
        map::functions(),
        math::functions(),
        numerals::functions(),
        regex::functions(),
        string::functions(),
        structs::functions(),
        variant::functions(),
    ]
    .iter()
    .flatten()
    .flat_map(|function| function.for_session(settings))
    .map(Arc::new)
    .collect()
}

/// Functions that take functions.
pub(super) fn higher_order(settings: &Settings) -> Vec<Arc<HigherOrderUDF>> {
    lambda::functions(settings)
}

/// Whether a query can call the function by its name.
pub(super) fn callable(name: &str) -> bool {
    !INTERNAL.contains(&name)
}

/// What a function wants its arguments cast to; `None` for one that is not ours.
pub(super) fn argument_types(
    function: &ScalarUDF,
    types: &[DataType],
    literals: &[Option<&ScalarValue>],
) -> Result<Option<Vec<DataType>>> {
    match (function.inner().as_ref() as &dyn Any).downcast_ref::<SparkFunction>() {
        Some(own) => Ok(Some(own.typed(types, literals)?.arguments)),
        None => Ok(None),
    }
}

/// The type of an expression, as the planner knows it.
pub(super) trait TypeIn {
    /// As `get_type`, which makes the names of all that a call is made of before it tells the type.
    fn type_in(&self, schema: &DFSchema) -> Result<DataType>;
}

impl TypeIn for Expr {
    fn type_in(&self, schema: &DFSchema) -> Result<DataType> {
        let Expr::ScalarFunction(call) = self else { return self.get_type(schema) };
        let inner = call.func.inner().as_ref() as &dyn Any;
        if let Some(cast) = inner.downcast_ref::<SparkCast>() {
            return cast.return_type(&[]);
        }
        let Some(own) = inner.downcast_ref::<SparkFunction>() else { return self.get_type(schema) };
        let types = call.args.iter().map(|arg| arg.type_in(schema)).collect::<Result<Vec<_>>>()?;
        let literals: Vec<Option<&ScalarValue>> = call
            .args
            .iter()
            .map(|arg| match arg {
                Expr::Literal(value, _) => Some(value),
                _ => None,
            })
            .collect();
        Ok(own.typed(&types, &literals)?.result)
    }
}

/// A text as a column of `VARCHAR(most)` holds it.
pub(super) fn of_length(text: Expr, most: i32, settings: &Settings) -> Result<Expr> {
    match scalar(settings).into_iter().find(|function| function.name() == LIMITED_LENGTH) {
        Some(function) => Ok(function.call(vec![text, lit(most)])),
        None => not_impl_err!("{LIMITED_LENGTH}"),
    }
}

/// A cast as Spark makes it; of a literal it is made at once.
pub(super) fn cast(expr: Expr, from: &DataType, to: &DataType, attempt: bool, settings: &Settings) -> Result<Expr> {
    if from == to {
        return Ok(expr);
    }
    if !cast::allowed(from, to, settings.ansi) {
        return plan_err!("{} cannot be cast to {}", conditional::spelled(from), conditional::spelled(to));
    }
    let own = SparkCast::new(to.clone(), attempt, settings);
    // A number from text stays a cast: beside a decimal a literal counts with the digits that it shows.
    if let Expr::Literal(value, metadata) = &expr
        && !(text(from) && to.is_integer())
    {
        let made = cast::cast(&value.to_array()?, to, own.misfit, &settings.zone);
        if let Ok(value) = made.and_then(|array| ScalarValue::try_from_array(&array, 0)) {
            return Ok(Expr::Literal(value, metadata.clone()));
        }
    }
    if cast::plain(from, to) {
        return Ok(Expr::Cast(Cast::new(Box::new(expr), to.clone())));
    }
    Ok(Expr::ScalarFunction(ScalarFunction { func: Arc::new(ScalarUDF::new_from_impl(own)), args: vec![expr] }))
}

/// The type in which two values are compared.
pub(super) fn compared(a: &DataType, b: &DataType, ansi: bool) -> Option<DataType> {
    if ansi || !(text(a) ^ text(b)) {
        return types::common_two(a, b, ansi);
    }
    // Without ANSI text is read as what it is compared with, an integer as widely as it can be.
    let other = if text(a) { b } else { a };
    Some(match other {
        DataType::Null => DataType::Utf8,
        t if types::decimal(t) => DataType::Float64,
        t => t.clone(),
    })
}

/// Whether an expression is a literal other than zero.
pub(super) fn nonzero(expr: &Expr) -> bool {
    match expr {
        Expr::Literal(ScalarValue::Float64(Some(v)), _) => *v != 0.0,
        Expr::Literal(ScalarValue::Float32(Some(v)), _) => *v != 0.0,
        _ => false,
    }
}

/// The expression with one zero: adding zero takes the sign of a negative one.
pub(super) fn normal(expr: Expr) -> Expr {
    structs::normal(expr)
}

/// A type from its name in DDL.
pub(super) fn ddl(name: &str) -> std::result::Result<DataType, String> {
    let schema = crate::sql::parse_schema(&format!("c {name}")).map_err(|e| e.message().to_owned())?;
    match schema.fields().as_ref() {
        [only] => Ok(only.data_type().clone()),
        _ => Err(format!("{name} is no type")),
    }
}
