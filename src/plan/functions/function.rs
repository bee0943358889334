//! What a function of Spark is here: its name, the types it takes and gives, and how it is computed, row by row or over
//! whole arrays; and how DataFusion calls it.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryBuilder, BooleanBuilder, Date32Builder, Float64Builder, Int32Builder, Int64Builder,
    StringBuilder, TimestampMicrosecondBuilder, new_null_array,
};
use arrow::datatypes::{
    DataType, Date32Type, Field, FieldRef, Float64Type, Int32Type, Int64Type, TimestampMicrosecondType,
};
use datafusion::common::{DataFusionError, Result, ScalarValue, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature,
    Volatility,
};

use super::types::{binary, common, instant, integral, number, text};
use super::zone::Zone;

/// What of a session decides the meaning of expressions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// Errors instead of nulls and wrap-around (`spark.sql.ansi.enabled`).
    pub ansi: bool,
    /// Session time zone (`spark.sql.session.timeZone`).
    pub zone: Zone,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { ansi: true, zone: Zone::utc() }
    }
}

/// What a parameter takes. An argument of another type is cast to it where Spark would.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Str,
    Int,
    Long,
    Double,
    Bool,
    Date,
    Timestamp,
    Binary,
    /// Any number as it is; text becomes a double.
    Number,
    /// All arguments of this kind become their common type.
    Common,
    /// Text or binary as it is, all else becomes text.
    TextOrBinary,
    /// As it is.
    Any,
}

impl Kind {
    fn target(self, from: &DataType, function: &str) -> Result<DataType> {
        let nested = from.is_nested();
        let target = match self {
            Kind::Str => DataType::Utf8,
            Kind::Int => DataType::Int32,
            Kind::Long => DataType::Int64,
            Kind::Double => DataType::Float64,
            Kind::Bool => DataType::Boolean,
            Kind::Date => DataType::Date32,
            Kind::Timestamp => instant(),
            Kind::Binary => DataType::Binary,
            Kind::Number => match from {
                DataType::Null => return Ok(DataType::Float64),
                from if text(from) => return Ok(DataType::Float64),
                from if number(from) => return Ok(from.clone()),
                _ => return mismatch(function, "a number", from),
            },
            Kind::TextOrBinary => match from {
                from if binary(from) => DataType::Binary,
                _ => DataType::Utf8,
            },
            Kind::Common | Kind::Any => return Ok(from.clone()),
        };
        let fits = match self {
            _ if from.is_null() => true,
            Kind::Int | Kind::Long => integral(from) || text(from),
            Kind::Double => number(from) || text(from),
            Kind::Bool => *from == DataType::Boolean || text(from),
            Kind::Date | Kind::Timestamp => {
                text(from) || matches!(from, DataType::Date32 | DataType::Date64 | DataType::Timestamp(..))
            }
            Kind::Binary => text(from) || binary(from),
            _ => !nested,
        };
        if fits { Ok(target) } else { mismatch(function, &format!("{target}"), from) }
    }
}

pub(super) fn mismatch<T>(function: &str, wanted: &str, given: &DataType) -> Result<T> {
    plan_err!("{function} takes {wanted}, not {given}")
}

/// Types of a call: what its arguments are cast to, and what it gives.
pub(super) struct Typed {
    pub(super) arguments: Vec<DataType>,
    pub(super) result: DataType,
}

/// A call whose types are wanted.
pub(super) struct Asked<'a> {
    pub(super) function: &'a str,
    pub(super) types: &'a [DataType],
    /// Values of the arguments that are literals.
    pub(super) literals: &'a [Option<&'a ScalarValue>],
    pub(super) settings: &'a Settings,
}

impl Asked<'_> {
    /// The type of an argument.
    pub(super) fn of(&self, index: usize) -> Result<&DataType> {
        match self.types.get(index) {
            Some(found) => Ok(found),
            None => plan_err!("{} takes more arguments than {}", self.function, self.types.len()),
        }
    }

    /// The value of a literal argument.
    pub(super) fn literal(&self, index: usize) -> Option<&ScalarValue> {
        self.literals.get(index).copied().flatten()
    }
}

pub(super) type Answer<T> = Result<Option<T>>;
/// An error says what is wrong with the literals among the arguments.
type Check = fn(&Asked<'_>) -> Result<()>;
pub(super) type Typing = fn(&Asked<'_>) -> Result<Typed>;

/// How a function is computed.
#[derive(Clone)]
pub(super) enum Body {
    Text(fn(&Row<'_>) -> Answer<String>),
    Int(fn(&Row<'_>) -> Answer<i32>),
    Long(fn(&Row<'_>) -> Answer<i64>),
    Double(fn(&Row<'_>) -> Answer<f64>),
    Bool(fn(&Row<'_>) -> Answer<bool>),
    Date(fn(&Row<'_>) -> Answer<i32>),
    Timestamp(fn(&Row<'_>) -> Answer<i64>),
    Binary(fn(&Row<'_>) -> Answer<Vec<u8>>),
    /// Over whole arrays, with types of its own.
    Arrays(Typing, fn(&Call<'_>) -> Result<ArrayRef>),
    /// A function of a library that means the same once its arguments have the right types.
    Library(Arc<ScalarUDF>),
}

/// A function as Spark defines it.
#[derive(Clone)]
pub(super) struct Function {
    pub(super) name: &'static str,
    aliases: &'static [&'static str],
    parameters: &'static [Kind],
    /// How many arguments may be left out.
    optional: usize,
    /// The last parameter may come any number of times.
    variadic: bool,
    /// Computed for nulls, too; else a null gives null.
    nulls: bool,
    /// What has to hold of arguments that are literals.
    check: Option<Check>,
    body: Body,
}

impl Function {
    pub(super) const fn new(name: &'static str, parameters: &'static [Kind], body: Body) -> Function {
        Function { name, aliases: &[], parameters, optional: 0, variadic: false, nulls: false, check: None, body }
    }

    /// A function of a library under its own name.
    pub(super) fn library(name: &'static str, parameters: &'static [Kind], udf: Arc<ScalarUDF>) -> Function {
        Function::new(name, parameters, Body::Library(udf))
    }

    pub(super) const fn also(mut self, aliases: &'static [&'static str]) -> Function {
        self.aliases = aliases;
        self
    }

    pub(super) const fn optional(mut self, count: usize) -> Function {
        self.optional = count;
        self
    }

    pub(super) const fn variadic(mut self) -> Function {
        self.variadic = true;
        self
    }

    pub(super) const fn checked(mut self, check: Check) -> Function {
        self.check = Some(check);
        self
    }

    pub(super) const fn with_nulls(mut self) -> Function {
        self.nulls = true;
        self
    }

    /// The function for a session, once a name.
    pub(super) fn for_session(&self, settings: &Settings) -> impl Iterator<Item = ScalarUDF> {
        let signature = if self.parameters.len() == self.optional {
            let either = vec![TypeSignature::Nullary, TypeSignature::UserDefined];
            Signature::one_of(either, Volatility::Immutable)
        } else {
            Signature::user_defined(Volatility::Immutable)
        };
        let make = |name: &'static str| {
            let function = Function { name, ..self.clone() };
            ScalarUDF::new_from_impl(SparkFunction {
                function,
                settings: settings.clone(),
                signature: signature.clone(),
            })
        };
        std::iter::once(self.name).chain(self.aliases.iter().copied()).map(make).collect::<Vec<_>>().into_iter()
    }

    fn typed(&self, asked: &Asked<'_>) -> Result<Typed> {
        let given = asked.types.len();
        let most = self.parameters.len();
        if given > most && !self.variadic || given + self.optional < most {
            let wanted = match (self.variadic, self.optional) {
                (true, _) => format!("at least {}", most - self.optional),
                (false, 0) => most.to_string(),
                (false, optional) => format!("{} to {most}", most - optional),
            };
            return plan_err!("{} takes {wanted} arguments, not {given}", self.name);
        }
        if let Some(check) = self.check {
            check(asked)?;
        }
        if let Body::Arrays(typing, _) = self.body {
            return typing(asked);
        }
        let kind = |index: usize| self.parameters.get(index).or(self.parameters.last()).copied().unwrap_or(Kind::Any);
        let mut arguments = Vec::with_capacity(given);
        for (index, from) in asked.types.iter().enumerate() {
            arguments.push(kind(index).target(from, self.name)?);
        }
        let shared: Vec<&DataType> =
            arguments.iter().enumerate().filter(|(i, _)| kind(*i) == Kind::Common).map(|(_, t)| t).collect();
        if !shared.is_empty() {
            let Some(one) = common(shared.iter().copied(), asked.settings.ansi) else {
                return plan_err!("the arguments of {} have no type in common", self.name);
            };
            for (index, argument) in arguments.iter_mut().enumerate() {
                if kind(index) == Kind::Common {
                    argument.clone_from(&one);
                }
            }
        }
        let result = match &self.body {
            Body::Text(_) => DataType::Utf8,
            Body::Int(_) => DataType::Int32,
            Body::Long(_) => DataType::Int64,
            Body::Double(_) => DataType::Float64,
            Body::Bool(_) => DataType::Boolean,
            Body::Date(_) => DataType::Date32,
            Body::Timestamp(_) => instant(),
            Body::Binary(_) => DataType::Binary,
            Body::Arrays(..) => DataType::Null,
            Body::Library(udf) => {
                let fields: Vec<FieldRef> =
                    arguments.iter().map(|t| Arc::new(Field::new("", t.clone(), true))).collect();
                arguments = datafusion::logical_expr::type_coercion::functions::fields_with_udf(&fields, udf.as_ref())?
                    .iter()
                    .map(|f| f.data_type().clone())
                    .collect();
                let fields: Vec<FieldRef> =
                    arguments.iter().map(|t| Arc::new(Field::new("", t.clone(), true))).collect();
                let asked = ReturnFieldArgs { arg_fields: &fields, scalar_arguments: asked.literals };
                udf.return_field_from_args(asked)?.data_type().clone()
            }
        };
        Ok(Typed { arguments, result })
    }

    fn compute(&self, call: &Call<'_>) -> Result<ArrayRef> {
        macro_rules! rows {
            ($body:expr, $builder:expr) => {{
                let mut builder = $builder;
                for index in 0..call.rows {
                    let row = Row { call, index };
                    if !self.nulls && row.any_null() {
                        builder.append_null();
                    } else {
                        builder.append_option($body(&row)?);
                    }
                }
                Ok(Arc::new(builder.finish()) as ArrayRef)
            }};
        }
        macro_rules! bytes {
            ($body:expr, $builder:expr) => {{
                let mut builder = $builder;
                let mut made = 0;
                for index in 0..call.rows {
                    let row = Row { call, index };
                    let value = if !self.nulls && row.any_null() { None } else { $body(&row)? };
                    made += value.as_ref().map_or(0, |value| value.len());
                    if made > CALL_BYTES {
                        return Err(fault(TOO_LARGE, format!("{} makes more than {CALL_BYTES} bytes", self.name)));
                    }
                    builder.append_option(value);
                }
                Ok(Arc::new(builder.finish()) as ArrayRef)
            }};
        }
        match &self.body {
            Body::Text(f) => bytes!(f, StringBuilder::new()),
            Body::Int(f) => rows!(f, Int32Builder::new()),
            Body::Long(f) => rows!(f, Int64Builder::new()),
            Body::Double(f) => rows!(f, Float64Builder::new()),
            Body::Bool(f) => rows!(f, BooleanBuilder::new()),
            Body::Date(f) => rows!(f, Date32Builder::new()),
            Body::Timestamp(f) => rows!(f, TimestampMicrosecondBuilder::new().with_timezone("UTC")),
            Body::Binary(f) => bytes!(f, BinaryBuilder::new()),
            Body::Arrays(_, f) => f(call),
            Body::Library(_) => Ok(new_null_array(call.result, call.rows)),
        }
    }
}

/// An argument of a call.
pub(super) struct Argument {
    /// One value a row, or one for all rows.
    pub(super) array: ArrayRef,
    pub(super) constant: bool,
}

/// A call with its arguments.
pub(super) struct Call<'a> {
    pub(super) arguments: &'a [Argument],
    pub(super) rows: usize,
    pub(super) result: &'a DataType,
    pub(super) settings: &'a Settings,
    pub(super) function: &'static str,
}

impl Call<'_> {
    /// An argument with one value a row.
    pub(super) fn array(&self, index: usize) -> Result<ArrayRef> {
        match self.arguments.get(index) {
            Some(argument) if argument.constant && self.rows != 1 => {
                let value = ScalarValue::try_from_array(&argument.array, 0)?;
                value.to_array_of_size(self.rows)
            }
            Some(argument) => Ok(Arc::clone(&argument.array)),
            None => plan_err!("{} misses an argument", self.function),
        }
    }

    pub(super) fn row(&self, index: usize) -> Row<'_> {
        Row { call: self, index }
    }
}

/// One row of a call. A value that is asked for must not be null.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    call: &'a Call<'a>,
    index: usize,
}

macro_rules! getter {
    ($name:ident, $arrow:ty, $native:ty) => {
        /// The value of an argument.
        pub(super) fn $name(&self, argument: usize) -> $native {
            self.at(argument)
                .and_then(|(array, at)| array.as_primitive_opt::<$arrow>().map(|a| a.value(at)))
                .unwrap_or_default()
        }
    };
}

impl<'a> Row<'a> {
    pub(super) fn count(&self) -> usize {
        self.call.arguments.len()
    }

    pub(super) fn call(&self) -> &'a Call<'a> {
        self.call
    }

    pub(super) fn settings(&self) -> &'a Settings {
        self.call.settings
    }

    pub(super) fn function(&self) -> &'static str {
        self.call.function
    }

    pub(super) fn ansi(&self) -> bool {
        self.call.settings.ansi
    }

    /// The array in which an argument's value stands, and where.
    pub(super) fn at(&self, argument: usize) -> Option<(&'a ArrayRef, usize)> {
        let argument = self.call.arguments.get(argument)?;
        Some((&argument.array, if argument.constant { 0 } else { self.index }))
    }

    pub(super) fn null(&self, argument: usize) -> bool {
        self.at(argument).is_none_or(|(array, at)| array.is_null(at) || array.data_type().is_null())
    }

    pub(super) fn any_null(&self) -> bool {
        (0..self.count()).any(|argument| self.null(argument))
    }

    pub(super) fn str(&self, argument: usize) -> &'a str {
        self.at(argument).and_then(|(array, at)| array.as_string_opt::<i32>().map(|a| a.value(at))).unwrap_or_default()
    }

    pub(super) fn bytes(&self, argument: usize) -> &'a [u8] {
        self.at(argument)
            .and_then(|(array, at)| match array.as_binary_opt::<i32>() {
                Some(array) => Some(array.value(at)),
                None => array.as_string_opt::<i32>().map(|a| a.value(at).as_bytes()),
            })
            .unwrap_or_default()
    }

    pub(super) fn bool(&self, argument: usize) -> bool {
        self.at(argument).and_then(|(array, at)| array.as_boolean_opt().map(|a| a.value(at))).unwrap_or_default()
    }

    getter!(int, Int32Type, i32);
    getter!(long, Int64Type, i64);
    getter!(double, Float64Type, f64);
    getter!(date, Date32Type, i32);
    getter!(micros, TimestampMicrosecondType, i64);

    pub(super) fn opt_str(&self, argument: usize) -> Option<&'a str> {
        (!self.null(argument)).then(|| self.str(argument))
    }

    pub(super) fn opt_int(&self, argument: usize) -> Option<i32> {
        (!self.null(argument)).then(|| self.int(argument))
    }
}

/// The fault of a row, with Spark's condition.
pub(super) fn fault(condition: &str, message: impl std::fmt::Display) -> DataFusionError {
    DataFusionError::Execution(format!("[{condition}] {message}"))
}

/// Condition of a fault for what would become too large.
pub(super) const TOO_LARGE: &str = "COLLECTION_SIZE_LIMIT_EXCEEDED";

/// Most bytes of one text that a count makes long.
pub(super) const MOST_BYTES: usize = 1 << 20;

/// Most elements of one array that a count makes long.
pub(super) const MOST_ELEMENTS: usize = 1_000_000;

/// Most bytes that one call makes of a batch; arrays have half as many elements times eight.
const CALL_BYTES: usize = 1 << 30;

/// Most elements that one call makes of a batch.
pub(super) const CALL_ELEMENTS: usize = CALL_BYTES / 16;

/// How often a count says, if so many pieces of this size are not too large.
///
/// # Errors
/// A fault of the row otherwise.
pub(super) fn times(function: &str, size: usize, count: i32) -> Result<usize> {
    let count = usize::try_from(count).unwrap_or_default();
    if size.saturating_mul(count) > MOST_BYTES {
        return Err(fault(TOO_LARGE, format!("{function} makes at most {MOST_BYTES} bytes of one value")));
    }
    Ok(count)
}

/// A [`Function`] in a session.
pub(super) struct SparkFunction {
    function: Function,
    settings: Settings,
    signature: Signature,
}

impl std::fmt::Debug for SparkFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SparkFunction").field("name", &self.function.name).field("settings", &self.settings).finish()
    }
}

impl PartialEq for SparkFunction {
    fn eq(&self, other: &SparkFunction) -> bool {
        self.function.name == other.function.name && self.settings == other.settings
    }
}

impl Eq for SparkFunction {}

impl std::hash::Hash for SparkFunction {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.function.name.hash(state);
        self.settings.hash(state);
    }
}

impl SparkFunction {
    /// What the arguments of a call must be cast to.
    pub(super) fn typed(&self, types: &[DataType], literals: &[Option<&ScalarValue>]) -> Result<Typed> {
        self.function.typed(&Asked { function: self.function.name, types, literals, settings: &self.settings })
    }
}

impl ScalarUDFImpl for SparkFunction {
    fn name(&self) -> &str {
        self.function.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        super::title::of_call(self.function.name, args)
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let none = vec![None; types.len()];
        Ok(self.typed(types, &none).map_or_else(|_| types.to_vec(), |typed| typed.arguments))
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        let none = vec![None; types.len()];
        Ok(self.typed(types, &none)?.result)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let types: Vec<DataType> = args.arg_fields.iter().map(|f| f.data_type().clone()).collect();
        let typed = self.typed(&types, args.scalar_arguments)?;
        Ok(Arc::new(Field::new(self.function.name, typed.result, true)))
    }

    fn invoke_with_args(&self, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if let Body::Library(udf) = &self.function.body {
            args.arg_fields =
                args.arg_fields.iter().map(|f| Arc::new(f.as_ref().clone().with_nullable(true))).collect();
            return udf.invoke_with_args(args);
        }
        let constant = args.args.iter().all(|a| matches!(a, ColumnarValue::Scalar(_)));
        let rows = if constant { 1 } else { args.number_rows };
        let mut arguments = Vec::with_capacity(args.args.len());
        for value in args.args {
            arguments.push(match value {
                ColumnarValue::Array(array) => Argument { array, constant: false },
                ColumnarValue::Scalar(value) => Argument { array: value.to_array()?, constant: true },
            });
        }
        let result = args.return_field.data_type();
        let call = Call { arguments: &arguments, rows, result, settings: &self.settings, function: self.function.name };
        let array = self.function.compute(&call)?;
        let array = if array.data_type() == result { array } else { super::cast::relabel(&array, result)? };
        Ok(if constant {
            ColumnarValue::Scalar(ScalarValue::try_from_array(&array, 0)?)
        } else {
            ColumnarValue::Array(array)
        })
    }
}
