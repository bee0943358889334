//! `+ - * / % DIV` and their relatives over integers, doubles and decimals: overflow and division by zero are faults of
//! the row in ANSI mode; decimals have Spark's precision and scale, rounded half up.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, PrimitiveArray};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type,
    Int64Type, i256,
};
use datafusion::common::{Result, plan_err};

use super::function::{Asked, Body, Call, Function, Kind, Typed, fault};
use super::types::{as_decimal, bounded, common_number, decimal, integral, number, text};

pub(super) const ADD: &str = "add";
pub(super) const SUBTRACT: &str = "subtract";
pub(super) const MULTIPLY: &str = "multiply";
pub(super) const DIVIDE: &str = "divide";

const TWO: &[Kind] = &[Kind::Number, Kind::Number];

pub(super) fn functions() -> Vec<Function> {
    vec![
        Function::new(ADD, TWO, Body::Arrays(sum, compute)).also(&["try_add"]),
        Function::new(SUBTRACT, TWO, Body::Arrays(sum, compute)).also(&["try_subtract"]),
        Function::new(MULTIPLY, TWO, Body::Arrays(product, compute)).also(&["try_multiply"]),
        Function::new(DIVIDE, TWO, Body::Arrays(quotient, compute)).also(&["try_divide"]),
        Function::new("mod", TWO, Body::Arrays(rest, compute)).also(&["try_mod", "pmod"]),
        Function::new("div", TWO, Body::Arrays(whole, compute)),
        Function::new("negative", &[Kind::Number], Body::Arrays(same, negative)),
        Function::new("positive", &[Kind::Number], Body::Arrays(same, |call| call.array(0))),
        Function::new("abs", &[Kind::Number], Body::Arrays(same, absolute)),
    ]
}

/// Text beside an integer is a BIGINT in ANSI mode, otherwise a double.
fn numeric(asked: &Asked<'_>) -> Result<Vec<DataType>> {
    let beside = asked.types.iter().find(|t| number(t));
    asked
        .types
        .iter()
        .map(|t| match t {
            t if number(t) => Ok(t.clone()),
            DataType::Null => Ok(beside.cloned().unwrap_or(DataType::Float64)),
            t if text(t) => Ok(match beside {
                Some(other) if integral(other) && asked.settings.ansi => DataType::Int64,
                _ => DataType::Float64,
            }),
            other => plan_err!("{} takes numbers, not {other}", asked.function),
        })
        .collect()
}

/// Both operands as one type, or as decimals of their own.
fn operands(asked: &Asked<'_>) -> Result<(Vec<DataType>, Option<DataType>)> {
    let types = numeric(asked)?;
    let [a, b] = types.as_slice() else { return plan_err!("{} takes two arguments", asked.function) };
    if decimal(a) || decimal(b) {
        let literal = |index: usize| asked.literal(index).and_then(digits);
        if let (Some(pa), Some(pb)) = (literal(0).or_else(|| as_decimal(a)), literal(1).or_else(|| as_decimal(b))) {
            return Ok((vec![DataType::Decimal128(pa.0, pa.1), DataType::Decimal128(pb.0, pb.1)], None));
        }
        return Ok((vec![DataType::Float64; 2], Some(DataType::Float64)));
    }
    let common = match common_number(a, b) {
        Some(DataType::Float32) if asked.settings.ansi && (integral(a) || integral(b)) => DataType::Float64,
        Some(common) => common,
        None => return plan_err!("{} takes numbers, not {a} and {b}", asked.function),
    };
    Ok((vec![common.clone(); 2], Some(common)))
}

/// A literal integer beside a decimal has just the digits that it shows.
fn digits(value: &datafusion::common::ScalarValue) -> Option<(u8, i8)> {
    use datafusion::common::ScalarValue::{Int8, Int16, Int32, Int64};
    let value = match value {
        Int8(Some(v)) => i64::from(*v),
        Int16(Some(v)) => i64::from(*v),
        Int32(Some(v)) => i64::from(*v),
        Int64(Some(v)) => *v,
        _ => return None,
    };
    Some((u8::try_from(value.unsigned_abs().to_string().len()).ok()?, 0))
}

fn decimals(types: &[DataType]) -> Option<((i32, i32), (i32, i32))> {
    match types {
        [DataType::Decimal128(p1, s1), DataType::Decimal128(p2, s2)] => {
            Some(((i32::from(*p1), i32::from(*s1)), (i32::from(*p2), i32::from(*s2))))
        }
        _ => None,
    }
}

fn typed(asked: &Asked<'_>, result: impl Fn((i32, i32), (i32, i32)) -> DataType) -> Result<Typed> {
    let (arguments, common) = operands(asked)?;
    let result = match (common, decimals(&arguments)) {
        (Some(common), _) => common,
        (None, Some((a, b))) => result(a, b),
        (None, None) => return plan_err!("{} takes numbers", asked.function),
    };
    Ok(Typed { arguments, result })
}

fn sum(asked: &Asked<'_>) -> Result<Typed> {
    if let [DataType::Date32, other] = asked.types
        && (integral(other) || other.is_null())
    {
        return Ok(Typed { arguments: vec![DataType::Date32, DataType::Int32], result: DataType::Date32 });
    }
    typed(asked, |(p1, s1), (p2, s2)| {
        let scale = s1.max(s2);
        bounded((p1 - s1).max(p2 - s2) + scale + 1, scale)
    })
}

fn product(asked: &Asked<'_>) -> Result<Typed> {
    typed(asked, |(p1, s1), (p2, s2)| bounded(p1 + p2 + 1, s1 + s2))
}

fn quotient(asked: &Asked<'_>) -> Result<Typed> {
    let types = numeric(asked)?;
    if !types.iter().any(decimal) {
        return Ok(Typed { arguments: vec![DataType::Float64; 2], result: DataType::Float64 });
    }
    typed(asked, |(p1, s1), (p2, s2)| {
        let scale = 6.max(s1 + p2 + 1);
        bounded(p1 - s1 + s2 + scale, scale)
    })
}

fn rest(asked: &Asked<'_>) -> Result<Typed> {
    typed(asked, |(p1, s1), (p2, s2)| {
        let scale = s1.max(s2);
        bounded((p1 - s1).min(p2 - s2) + scale, scale)
    })
}

fn whole(asked: &Asked<'_>) -> Result<Typed> {
    let types = numeric(asked)?;
    let (arguments, _) = if types.iter().any(decimal) { operands(asked)? } else { (vec![DataType::Int64; 2], None) };
    Ok(Typed { arguments, result: DataType::Int64 })
}

fn same(asked: &Asked<'_>) -> Result<Typed> {
    let arguments = numeric(asked)?;
    let result = arguments.first().cloned().unwrap_or(DataType::Float64);
    Ok(Typed { arguments, result })
}

/// What a pair of values gives.
enum Outcome<T> {
    Value(T),
    Overflow,
    Zero,
}

/// Whether faults are nulls.
fn lenient(call: &Call<'_>) -> bool {
    call.function.starts_with("try_")
}

fn each<A: ArrowPrimitiveType, R: ArrowPrimitiveType>(
    call: &Call<'_>,
    f: impl Fn(A::Native, A::Native) -> Outcome<R::Native>,
) -> Result<PrimitiveArray<R>> {
    let (left, right) = (call.array(0)?, call.array(1)?);
    let (left, right) = (left.as_primitive::<A>(), right.as_primitive::<A>());
    let strict = call.settings.ansi && !lenient(call);
    left.iter()
        .zip(right.iter())
        .map(|pair| {
            let (Some(a), Some(b)) = pair else { return Ok(None) };
            match f(a, b) {
                Outcome::Value(value) => Ok(Some(value)),
                Outcome::Zero if strict => Err(division_by_zero(call.function)),
                Outcome::Overflow if strict => Err(fault(
                    "ARITHMETIC_OVERFLOW",
                    format!("{} of {a:?} and {b:?} is out of the range of its type", call.function),
                )),
                _ => Ok(None),
            }
        })
        .collect()
}

fn division_by_zero(function: &str) -> datafusion::common::DataFusionError {
    let condition = if matches!(function, DIVIDE | "div") { "DIVIDE_BY_ZERO" } else { "REMAINDER_BY_ZERO" };
    fault(condition, "division by zero; try_divide and try_mod give null instead")
}

fn or_overflow<T>(value: Option<T>) -> Outcome<T> {
    value.map_or(Outcome::Overflow, Outcome::Value)
}

macro_rules! integers {
    ($call:expr, $t:ty) => {{
        let call = $call;
        // Without ANSI integers wrap around.
        let wrap = !call.settings.ansi && !lenient(call);
        type N = <$t as ArrowPrimitiveType>::Native;
        let found: PrimitiveArray<$t> = match call.function {
            ADD | "try_add" if wrap => each::<$t, $t>(call, |a, b| Outcome::Value(a.wrapping_add(b)))?,
            ADD | "try_add" => each::<$t, $t>(call, |a, b| or_overflow(a.checked_add(b)))?,
            SUBTRACT | "try_subtract" if wrap => each::<$t, $t>(call, |a, b| Outcome::Value(a.wrapping_sub(b)))?,
            SUBTRACT | "try_subtract" => each::<$t, $t>(call, |a, b| or_overflow(a.checked_sub(b)))?,
            MULTIPLY | "try_multiply" if wrap => each::<$t, $t>(call, |a, b| Outcome::Value(a.wrapping_mul(b)))?,
            MULTIPLY | "try_multiply" => each::<$t, $t>(call, |a, b| or_overflow(a.checked_mul(b)))?,
            "pmod" => each::<$t, $t>(call, |a: N, b: N| match b {
                0 => Outcome::Zero,
                b => {
                    let rest = a.wrapping_rem(b);
                    Outcome::Value(if rest < 0 { rest.wrapping_add(b).wrapping_rem(b) } else { rest })
                }
            })?,
            _ => each::<$t, $t>(call, |a: N, b: N| match b {
                0 => Outcome::Zero,
                b => Outcome::Value(a.wrapping_rem(b)),
            })?,
        };
        Ok(Arc::new(found) as ArrayRef)
    }};
}

macro_rules! floats {
    ($call:expr, $t:ty) => {{
        let call = $call;
        let found: PrimitiveArray<$t> = match call.function {
            ADD | "try_add" => each::<$t, $t>(call, |a, b| Outcome::Value(a + b))?,
            SUBTRACT | "try_subtract" => each::<$t, $t>(call, |a, b| Outcome::Value(a - b))?,
            MULTIPLY | "try_multiply" => each::<$t, $t>(call, |a, b| Outcome::Value(a * b))?,
            DIVIDE | "try_divide" => {
                each::<$t, $t>(call, |a, b| if b == 0.0 { Outcome::Zero } else { Outcome::Value(a / b) })?
            }
            "pmod" => each::<$t, $t>(call, |a, b| {
                if b == 0.0 {
                    return Outcome::Zero;
                }
                let rest = a % b;
                Outcome::Value(if rest < 0.0 { (rest + b) % b } else { rest })
            })?,
            _ => each::<$t, $t>(call, |a, b| if b == 0.0 { Outcome::Zero } else { Outcome::Value(a % b) })?,
        };
        Ok(Arc::new(found) as ArrayRef)
    }};
}

fn compute(call: &Call<'_>) -> Result<ArrayRef> {
    let types: Vec<DataType> = call.arguments.iter().map(|a| a.array.data_type().clone()).collect();
    if let Some((a, b)) = decimals(&types) {
        return fixed(call, a, b);
    }
    match types.first() {
        Some(DataType::Date32) => {
            let back = call.function == "try_subtract";
            let found = (0..call.rows).map(|index| call.row(index)).map(|row| {
                let moved =
                    || if back { row.date(0).checked_sub(row.int(1)) } else { row.date(0).checked_add(row.int(1)) };
                if row.any_null() { None } else { moved() }
            });
            Ok(Arc::new(found.collect::<PrimitiveArray<Date32Type>>()))
        }
        Some(DataType::Int64) if call.function == "div" => {
            let wrap = !call.settings.ansi;
            let found: PrimitiveArray<Int64Type> = each::<Int64Type, Int64Type>(call, |a, b| match b {
                0 => Outcome::Zero,
                b if wrap => Outcome::Value(a.wrapping_div(b)),
                b => or_overflow(a.checked_div(b)),
            })?;
            Ok(Arc::new(found))
        }
        Some(DataType::Int8) => integers!(call, Int8Type),
        Some(DataType::Int16) => integers!(call, Int16Type),
        Some(DataType::Int32) => integers!(call, Int32Type),
        Some(DataType::Int64) => integers!(call, Int64Type),
        Some(DataType::Float32) => floats!(call, Float32Type),
        Some(DataType::Float64) => floats!(call, Float64Type),
        other => plan_err!("{} takes numbers, not {other:?}", call.function),
    }
}

fn power(exponent: i32) -> Option<i256> {
    let ten = i256::from_i128(10);
    let mut value = i256::ONE;
    for _ in 0..exponent {
        value = value.checked_mul(ten)?;
    }
    Some(value)
}

/// `value / divisor` rounded half away from zero.
fn divided(value: i256, divisor: i256) -> Option<i256> {
    let quotient = value.checked_div(divisor)?;
    let rest = value.checked_rem(divisor)?;
    let twice = rest.wrapping_abs().checked_mul(i256::from_i128(2))?;
    if twice < divisor.wrapping_abs() {
        return Some(quotient);
    }
    let negative = value.is_negative() != divisor.is_negative();
    quotient.checked_add(if negative { i256::MINUS_ONE } else { i256::ONE })
}

/// A value of one scale in another, rounded half up.
fn rescaled(value: i256, from: i32, to: i32) -> Option<i256> {
    if to >= from { value.checked_mul(power(to - from)?) } else { divided(value, power(from - to)?) }
}

fn fixed(call: &Call<'_>, (_, s1): (i32, i32), (_, s2): (i32, i32)) -> Result<ArrayRef> {
    let wide = i256::from_i128;
    if call.function == "div" {
        let found = each::<Decimal128Type, Int64Type>(call, |a, b| {
            if b == 0 {
                return Outcome::Zero;
            }
            let scale = s1.max(s2);
            let value = rescaled(wide(a), s1, scale)
                .zip(rescaled(wide(b), s2, scale))
                .and_then(|(a, b)| a.checked_div(b))
                .and_then(|v| v.to_i128())
                .and_then(|v| i64::try_from(v).ok());
            or_overflow(value)
        })?;
        return Ok(Arc::new(found));
    }
    let DataType::Decimal128(precision, scale) = call.result else {
        return plan_err!("{} of decimals gives a decimal", call.function);
    };
    let to = i32::from(*scale);
    let limit = 10i128.pow(u32::from(*precision));
    let fit = |value: Option<i256>| or_overflow(value.and_then(|v| v.to_i128()).filter(|v| v.abs() < limit));
    let aligned = |a: i128, b: i128| {
        let scale = s1.max(s2);
        Some((rescaled(wide(a), s1, scale)?, rescaled(wide(b), s2, scale)?, scale))
    };
    let found: PrimitiveArray<Decimal128Type> = match call.function {
        ADD | "try_add" => each::<Decimal128Type, Decimal128Type>(call, |a, b| {
            fit(aligned(a, b).and_then(|(a, b, scale)| rescaled(a.checked_add(b)?, scale, to)))
        })?,
        SUBTRACT | "try_subtract" => each::<Decimal128Type, Decimal128Type>(call, |a, b| {
            fit(aligned(a, b).and_then(|(a, b, scale)| rescaled(a.checked_sub(b)?, scale, to)))
        })?,
        MULTIPLY | "try_multiply" => each::<Decimal128Type, Decimal128Type>(call, |a, b| {
            fit(wide(a).checked_mul(wide(b)).and_then(|v| rescaled(v, s1 + s2, to)))
        })?,
        DIVIDE | "try_divide" => each::<Decimal128Type, Decimal128Type>(call, |a, b| {
            if b == 0 {
                return Outcome::Zero;
            }
            let shift = to + s2 - s1;
            let value = if shift >= 0 {
                power(shift).and_then(|unit| divided(wide(a).checked_mul(unit)?, wide(b)))
            } else {
                power(-shift).and_then(|unit| divided(wide(a), wide(b).checked_mul(unit)?))
            };
            fit(value)
        })?,
        function => each::<Decimal128Type, Decimal128Type>(call, |a, b| {
            if b == 0 {
                return Outcome::Zero;
            }
            fit(aligned(a, b).and_then(|(a, b, scale)| {
                let mut rest = a.checked_rem(b)?;
                if function == "pmod" && rest.is_negative() {
                    rest = rest.checked_add(b)?.checked_rem(b)?;
                }
                rescaled(rest, scale, to)
            }))
        })?,
    };
    Ok(Arc::new(found.with_precision_and_scale(*precision, *scale)?))
}

fn signed(call: &Call<'_>, negate: impl Fn(bool) -> bool) -> Result<ArrayRef> {
    let array = call.array(0)?;
    macro_rules! integers {
        ($t:ty) => {{
            let values = array.as_primitive::<$t>().iter().map(|v| match v {
                Some(v) if negate(v < 0) => match v.checked_neg() {
                    Some(v) => Ok(Some(v)),
                    None if call.settings.ansi => {
                        Err(fault("ARITHMETIC_OVERFLOW", format!("{} of {v}", call.function)))
                    }
                    None => Ok(Some(v)),
                },
                other => Ok(other),
            });
            Arc::new(values.collect::<Result<PrimitiveArray<$t>>>()?) as ArrayRef
        }};
    }
    macro_rules! floats {
        ($t:ty) => {
            Arc::new(array.as_primitive::<$t>().unary::<_, $t>(|v| if negate(v.is_sign_negative()) { -v } else { v }))
        };
    }
    Ok(match array.data_type() {
        DataType::Int8 => integers!(Int8Type),
        DataType::Int16 => integers!(Int16Type),
        DataType::Int32 => integers!(Int32Type),
        DataType::Int64 => integers!(Int64Type),
        DataType::Float32 => floats!(Float32Type),
        DataType::Float64 => floats!(Float64Type),
        DataType::Decimal128(p, s) => Arc::new(
            array
                .as_primitive::<Decimal128Type>()
                .unary::<_, Decimal128Type>(|v| if negate(v < 0) { -v } else { v })
                .with_precision_and_scale(*p, *s)?,
        ),
        other => return plan_err!("{} takes a number, not {other}", call.function),
    })
}

fn negative(call: &Call<'_>) -> Result<ArrayRef> {
    signed(call, |_| true)
}

fn absolute(call: &Call<'_>) -> Result<ArrayRef> {
    signed(call, |negative| negative)
}
