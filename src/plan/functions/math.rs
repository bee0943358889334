//! Numbers: rounding, powers, logarithms, angles, bits.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, PrimitiveArray};
use arrow::datatypes::{
    ArrowPrimitiveType, DataType, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
};
use datafusion::common::{Result, ScalarValue, plan_err};

use super::function::Kind::{Any, Double, Int, Long, Str};
use super::function::{Answer, Asked, Body, Call, Function, Row, Typed, fault};
use super::types::{as_decimal, bounded, common, decimal, double, integral, number, text};
use super::{parse, show};

/// A function of doubles.
macro_rules! of_double {
    ($name:literal, $f:expr) => {
        Function::new($name, &[Double], Body::Double(|r| Ok(Some($f(r.double(0))))))
    };
}

/// A function of doubles that is null outside its domain.
macro_rules! partial {
    ($name:literal, $domain:expr, $f:expr) => {
        Function::new(
            $name,
            &[Double],
            Body::Double(|r| {
                let value = r.double(0);
                Ok(if $domain(value) { Some($f(value)) } else { None })
            }),
        )
    };
}

pub(super) fn functions() -> Vec<Function> {
    let mut all = real();
    all.extend(rounding());
    all.extend(bits());
    all.extend(choices());
    all
}

fn real() -> Vec<Function> {
    vec![
        of_double!("sqrt", f64::sqrt),
        of_double!("cbrt", f64::cbrt),
        of_double!("exp", f64::exp),
        of_double!("expm1", f64::exp_m1),
        of_double!("sin", f64::sin),
        of_double!("cos", f64::cos),
        of_double!("tan", f64::tan),
        of_double!("cot", |x: f64| 1.0 / x.tan()),
        of_double!("sec", |x: f64| 1.0 / x.cos()),
        of_double!("csc", |x: f64| 1.0 / x.sin()),
        of_double!("asin", f64::asin),
        of_double!("acos", f64::acos),
        of_double!("atan", f64::atan),
        of_double!("sinh", f64::sinh),
        of_double!("cosh", f64::cosh),
        of_double!("tanh", f64::tanh),
        of_double!("asinh", f64::asinh),
        of_double!("acosh", f64::acosh),
        of_double!("atanh", f64::atanh),
        of_double!("degrees", f64::to_degrees),
        of_double!("radians", f64::to_radians),
        of_double!("rint", f64::round_ties_even),
        of_double!("sign", |x: f64| if x == 0.0 || x.is_nan() { x } else { x.signum() }).also(&["signum"]),
        partial!("ln", |x: f64| x > 0.0, f64::ln),
        partial!("log10", |x: f64| x > 0.0, f64::log10),
        partial!("log2", |x: f64| x > 0.0, f64::log2),
        partial!("log1p", |x: f64| x > -1.0, f64::ln_1p),
        Function::new("log", &[Double, Double], Body::Double(log)).optional(1),
        Function::new("pow", &[Double, Double], Body::Double(|r| Ok(Some(r.double(0).powf(r.double(1))))))
            .also(&["power"]),
        Function::new(
            "atan2",
            &[Double, Double],
            Body::Double(|r| {
                // A negative zero counts as zero.
                Ok(Some((r.double(0) + 0.0).atan2(r.double(1) + 0.0)))
            }),
        ),
        Function::new("hypot", &[Double, Double], Body::Double(|r| Ok(Some(r.double(0).hypot(r.double(1)))))),
        Function::new("pi", &[], Body::Double(|_| Ok(Some(std::f64::consts::PI)))),
        Function::new("e", &[], Body::Double(|_| Ok(Some(std::f64::consts::E)))),
        Function::new("isnan", &[Any], Body::Arrays(is_nan_type, is_nan)),
        Function::new(
            "nanvl",
            &[Double, Double],
            Body::Double(|r| {
                if r.null(0) {
                    return Ok(None);
                }
                let value = r.double(0);
                Ok(if !value.is_nan() { Some(value) } else { (!r.null(1)).then(|| r.double(1)) })
            }),
        )
        .with_nulls(),
        Function::new("width_bucket", &[Double, Double, Double, Long], Body::Long(bucket)),
        Function::new(
            "factorial",
            &[Int],
            Body::Long(|r| {
                let n = i64::from(r.int(0));
                Ok((0..=20).contains(&n).then(|| (1..=n).product()))
            }),
        ),
    ]
}

fn rounding() -> Vec<Function> {
    vec![
        Function::new("round", &[Any, Int], Body::Arrays(round_type, round)).optional(1).also(&["bround"]),
        Function::new("ceil", &[Any, Int], Body::Arrays(edge_type, edge)).optional(1).also(&["ceiling", "floor"]),
        Function::new("bin", &[Long], Body::Text(|r| Ok(Some(format!("{:b}", r.long(0)))))),
        Function::new("conv", &[Str, Int, Int], Body::Text(conv)),
    ]
}

fn bits() -> Vec<Function> {
    vec![
        Function::new("bit_count", &[Any], Body::Arrays(count_type, bit_count)),
        Function::new("bit_get", &[Long, Int], Body::Arrays(get_type, bit_get)).also(&["getbit"]),
        Function::new("bitwise_not", &[Any], Body::Arrays(same_whole, |call| whole(call, |v, _| !v, |v, _| !v))),
        Function::new(
            "shiftleft",
            &[Any, Int],
            Body::Arrays(shift_type, |call| whole(call, |v, n| v.wrapping_shl(n), |v, n| v.wrapping_shl(n))),
        ),
        Function::new(
            "shiftright",
            &[Any, Int],
            Body::Arrays(shift_type, |call| whole(call, |v, n| v.wrapping_shr(n), |v, n| v.wrapping_shr(n))),
        ),
        Function::new(
            "shiftrightunsigned",
            &[Any, Int],
            Body::Arrays(shift_type, |call| {
                whole(
                    call,
                    |v, n| v.cast_unsigned().wrapping_shr(n).cast_signed(),
                    |v, n| v.cast_unsigned().wrapping_shr(n).cast_signed(),
                )
            }),
        ),
    ]
}

fn choices() -> Vec<Function> {
    vec![
        Function::new("greatest", &[Any], Body::Arrays(choice_type, |call| choice(call, true))).variadic(),
        Function::new("least", &[Any], Body::Arrays(choice_type, |call| choice(call, false))).variadic(),
    ]
}

fn log(row: &Row<'_>) -> Answer<f64> {
    if row.count() < 2 {
        let value = row.double(0);
        return Ok((value > 0.0).then(|| value.ln()));
    }
    let (base, value) = (row.double(0), row.double(1));
    Ok((base > 0.0 && value > 0.0).then(|| value.ln() / base.ln()))
}

fn bucket(row: &Row<'_>) -> Answer<i64> {
    let (value, low, high, count) = (row.double(0), row.double(1), row.double(2), row.long(3));
    if count <= 0 || count == i64::MAX || value.is_nan() || low == high || !low.is_finite() || !high.is_finite() {
        return Ok(None);
    }
    let (below, above) = if low < high { (value < low, value >= high) } else { (value > low, value <= high) };
    Ok(Some(if below {
        0
    } else if above {
        count + 1
    } else {
        (count as f64 * (value - low) / (high - low)) as i64 + 1
    }))
}

fn is_nan_type(asked: &Asked<'_>) -> Result<Typed> {
    let argument = match asked.of(0)? {
        DataType::Float32 => DataType::Float32,
        t if number(t) || text(t) || t.is_null() => double(),
        other => return plan_err!("isnan takes a number, not {other}"),
    };
    Ok(Typed { arguments: vec![argument], result: DataType::Boolean })
}

/// False for a null, too.
fn is_nan(call: &Call<'_>) -> Result<ArrayRef> {
    let array = call.array(0)?;
    let found: arrow::array::BooleanArray = match array.data_type() {
        DataType::Float32 => {
            array.as_primitive::<Float32Type>().iter().map(|v| Some(v.is_some_and(f32::is_nan))).collect()
        }
        _ => array.as_primitive::<Float64Type>().iter().map(|v| Some(v.is_some_and(f64::is_nan))).collect(),
    };
    Ok(Arc::new(found))
}

fn places(asked: &Asked<'_>) -> Result<i32> {
    match asked.literal(1) {
        None if asked.types.len() < 2 => Ok(0),
        Some(ScalarValue::Int32(Some(places))) => Ok(*places),
        Some(value) => match value.cast_to(&DataType::Int32)? {
            ScalarValue::Int32(Some(places)) => Ok(places),
            _ => Ok(0),
        },
        None => Ok(0),
    }
}

fn numeric(t: &DataType, function: &str) -> Result<DataType> {
    match t {
        t if text(t) || t.is_null() => Ok(double()),
        t if number(t) => Ok(t.clone()),
        other => plan_err!("{function} takes a number, not {other}"),
    }
}

fn round_type(asked: &Asked<'_>) -> Result<Typed> {
    let given = numeric(asked.of(0)?, asked.function)?;
    let result = match as_decimal(&given).filter(|_| decimal(&given)) {
        Some((precision, scale)) => {
            let places = places(asked)?;
            let (precision, scale) = (i32::from(precision), i32::from(scale));
            let whole = precision - scale + 1;
            if places < 0 {
                bounded(whole.max(1 - places), 0)
            } else {
                let kept = scale.min(places);
                bounded(whole + kept, kept)
            }
        }
        None => given.clone(),
    };
    let mut arguments = vec![given];
    arguments.extend(asked.types.iter().skip(1).map(|_| DataType::Int32));
    Ok(Typed { arguments, result })
}

/// How a digit behind the last kept one counts.
#[derive(Clone, Copy, PartialEq)]
enum Rounding {
    HalfUp,
    HalfEven,
    Up,
    Down,
}

/// `value / 10^dropped`, rounded.
fn shortened(value: i128, dropped: u32, rounding: Rounding) -> Option<i128> {
    let Some(unit) = 10i128.checked_pow(dropped) else { return Some(0) };
    let (quotient, rest) = (value.div_euclid(unit), value.rem_euclid(unit));
    let up = match rounding {
        Rounding::Up => rest > 0,
        Rounding::Down => false,
        Rounding::HalfUp if value < 0 => rest * 2 > unit,
        Rounding::HalfUp => rest * 2 >= unit,
        Rounding::HalfEven => rest * 2 > unit || rest * 2 == unit && quotient % 2 != 0,
    };
    quotient.checked_add(i128::from(up))
}

fn rounded_double(value: f64, places: i32, rounding: Rounding) -> f64 {
    if !value.is_finite() {
        return value;
    }
    // The shortest digits that mean the value are what is rounded, as in Java's BigDecimal.valueOf.
    let shown = show::double(value);
    let Some((negative, digits, scale)) = parse::decimal(&shown) else { return value };
    if scale <= places {
        return value;
    }
    let dropped = u32::try_from(scale - places).unwrap_or(u32::MAX);
    let Ok(digits) = digits.parse::<i128>() else { return value };
    let signed = if negative { -digits } else { digits };
    let Some(kept) = shortened(signed, dropped, rounding) else { return value };
    let text = if places >= 0 {
        show::decimal(kept, i8::try_from(places.min(127)).unwrap_or(127))
    } else {
        format!("{kept}e{}", -places)
    };
    text.parse().unwrap_or(value)
}

fn round(call: &Call<'_>) -> Result<ArrayRef> {
    let rounding = if call.function == "bround" { Rounding::HalfEven } else { Rounding::HalfUp };
    let values = call.array(0)?;
    let places: Vec<Option<i32>> = if call.arguments.len() > 1 {
        call.array(1)?.as_primitive::<Int32Type>().iter().collect()
    } else {
        vec![Some(0); call.rows]
    };
    let pairs = |index: usize| places.get(index).copied().flatten();
    macro_rules! integers {
        ($t:ty) => {{
            let found = values.as_primitive::<$t>().iter().enumerate().map(|(index, value)| {
                let (Some(value), Some(places)) = (value, pairs(index)) else { return Ok(None) };
                if places >= 0 {
                    return Ok(Some(value));
                }
                let dropped = places.unsigned_abs();
                let rounded = shortened(i128::from(value), dropped, rounding)
                    .and_then(|kept| 10i128.checked_pow(dropped).map(|unit| kept * unit))
                    .unwrap_or(0);
                match <$t as ArrowPrimitiveType>::Native::try_from(rounded) {
                    Ok(rounded) => Ok(Some(rounded)),
                    Err(_) if call.settings.ansi => {
                        Err(fault("ARITHMETIC_OVERFLOW", format!("{value} rounded is out of the range of its type")))
                    }
                    Err(_) => Ok(Some(rounded as <$t as ArrowPrimitiveType>::Native)),
                }
            });
            Ok(Arc::new(found.collect::<Result<PrimitiveArray<$t>>>()?) as ArrayRef)
        }};
    }
    match values.data_type() {
        DataType::Int8 => integers!(Int8Type),
        DataType::Int16 => integers!(Int16Type),
        DataType::Int32 => integers!(Int32Type),
        DataType::Int64 => integers!(Int64Type),
        DataType::Float32 => {
            let found = values.as_primitive::<Float32Type>().iter().enumerate().map(|(index, value)| {
                let (value, places) = (value?, pairs(index)?);
                let shown: f64 = show::float(value).parse().ok()?;
                Some(rounded_double(shown, places, rounding) as f32)
            });
            Ok(Arc::new(found.collect::<PrimitiveArray<Float32Type>>()))
        }
        DataType::Float64 => {
            let found = values.as_primitive::<Float64Type>().iter().enumerate();
            let found = found.map(|(index, value)| Some(rounded_double(value?, pairs(index)?, rounding)));
            Ok(Arc::new(found.collect::<PrimitiveArray<Float64Type>>()))
        }
        DataType::Decimal128(_, scale) => fixed(call, &values, i32::from(*scale), pairs, rounding),
        other => plan_err!("{} takes a number, not {other}", call.function),
    }
}

fn fixed(
    call: &Call<'_>,
    values: &ArrayRef,
    scale: i32,
    places: impl Fn(usize) -> Option<i32>,
    rounding: Rounding,
) -> Result<ArrayRef> {
    let DataType::Decimal128(precision, kept) = call.result else {
        return plan_err!("{} of a decimal gives a decimal", call.function);
    };
    let (precision, kept) = (*precision, i32::from(*kept));
    let found = values.as_primitive::<Decimal128Type>().iter().enumerate().map(|(index, value)| {
        let (value, places) = (value?, places(index)?);
        if places >= scale {
            return super::cast::rescaled(value, i8::try_from(scale).ok()?, i8::try_from(kept).ok()?);
        }
        let dropped = u32::try_from(scale - places).ok()?;
        let rounded = shortened(value, dropped, rounding)?;
        let up = u32::try_from(kept - places).ok()?;
        rounded.checked_mul(10i128.checked_pow(up)?)
    });
    let found: PrimitiveArray<Decimal128Type> = found.collect();
    Ok(Arc::new(found.with_precision_and_scale(precision, i8::try_from(kept).unwrap_or_default())?))
}

fn edge_type(asked: &Asked<'_>) -> Result<Typed> {
    let given = match numeric(asked.of(0)?, asked.function)? {
        t if integral(&t) && asked.types.len() < 2 => DataType::Int64,
        DataType::Float32 => double(),
        t => t,
    };
    if asked.types.len() > 1 {
        // With places a number is a decimal, as wide as its type needs.
        let as_fixed = match &given {
            DataType::Float64 => DataType::Decimal128(30, 15),
            t => as_decimal(t).map_or(DataType::Decimal128(20, 0), |(p, s)| DataType::Decimal128(p, s)),
        };
        let (precision, scale) = as_decimal(&as_fixed).unwrap_or((20, 0));
        let places = places(asked)?;
        let whole = i32::from(precision) - i32::from(scale) + 1;
        let result = if places < 0 {
            bounded(whole.max(1 - places), 0)
        } else {
            let kept = i32::from(scale).min(places);
            bounded(whole + kept, kept)
        };
        return Ok(Typed { arguments: vec![as_fixed, DataType::Int32], result });
    }
    let result = match as_decimal(&given).filter(|_| decimal(&given)) {
        Some((precision, scale)) => bounded(i32::from(precision) - i32::from(scale) + 1, 0),
        None => DataType::Int64,
    };
    Ok(Typed { arguments: vec![given], result })
}

/// The first double above BIGINT; its negative is the least of BIGINT.
const UPPER: f64 = (1u64 << 63) as f64;

fn edge(call: &Call<'_>) -> Result<ArrayRef> {
    let up = call.function != "floor";
    let values = call.array(0)?;
    match values.data_type() {
        DataType::Int64 => Ok(values),
        DataType::Float64 => {
            let found = values.as_primitive::<Float64Type>().iter().map(|v| {
                let Some(v) = v else { return Ok(None) };
                let whole = if up { v.ceil() } else { v.floor() };
                if call.settings.ansi && !(-UPPER..UPPER).contains(&whole) && !whole.is_nan() {
                    return Err(fault(
                        "ARITHMETIC_OVERFLOW",
                        format!("{} of {v} is outside the range of BIGINT", call.function),
                    ));
                }
                Ok(Some(whole as i64))
            });
            Ok(Arc::new(found.collect::<Result<PrimitiveArray<Int64Type>>>()?))
        }
        DataType::Decimal128(_, scale) => {
            let places: Vec<Option<i32>> = if call.arguments.len() > 1 {
                call.array(1)?.as_primitive::<Int32Type>().iter().collect()
            } else {
                vec![Some(0); call.rows]
            };
            let rounding = if up { Rounding::Up } else { Rounding::Down };
            fixed(call, &values, i32::from(*scale), |index| places.get(index).copied().flatten(), rounding)
        }
        other => plan_err!("{} takes a number, not {other}", call.function),
    }
}

fn conv(row: &Row<'_>) -> Answer<String> {
    let (from, to) = (row.int(1), row.int(2));
    if !(2..=36).contains(&from) || !(2..=36).contains(&to.abs()) {
        return Ok(None);
    }
    let text = row.str(0).trim();
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    if text.is_empty() {
        return Ok(None);
    }
    let (base, radix) = (u64::from(from.unsigned_abs()), from.unsigned_abs());
    let mut value: u64 = 0;
    for digit in digits.chars().map_while(|c| c.to_digit(radix)) {
        match value.checked_mul(base).and_then(|v| v.checked_add(u64::from(digit))) {
            Some(next) => value = next,
            None if row.ansi() => return Err(fault("ARITHMETIC_OVERFLOW", format!("conv of '{text}' is too large"))),
            None => {
                value = u64::MAX;
                break;
            }
        }
    }
    if negative {
        value = value.wrapping_neg();
    }
    let (sign, mut rest) = if to < 0 && value.cast_signed() < 0 { ("-", value.wrapping_neg()) } else { ("", value) };
    let base = u64::from(to.unsigned_abs());
    let mut out = Vec::new();
    loop {
        let digit = u32::try_from(rest % base).unwrap_or_default();
        out.push(char::from_digit(digit, 36).unwrap_or('0').to_ascii_uppercase());
        rest /= base;
        if rest == 0 {
            break;
        }
    }
    Ok(Some(sign.chars().chain(out.into_iter().rev()).collect()))
}

fn whole_argument(asked: &Asked<'_>) -> Result<DataType> {
    match asked.of(0)? {
        t if integral(t) => Ok(t.clone()),
        DataType::Boolean => Ok(DataType::Boolean),
        t if t.is_null() => Ok(DataType::Int32),
        other => plan_err!("{} takes an integer, not {other}", asked.function),
    }
}

fn count_type(asked: &Asked<'_>) -> Result<Typed> {
    let given = whole_argument(asked)?;
    let argument = if given == DataType::Boolean { DataType::Int32 } else { DataType::Int64 };
    Ok(Typed { arguments: vec![argument], result: DataType::Int32 })
}

fn bit_count(call: &Call<'_>) -> Result<ArrayRef> {
    let array = call.array(0)?;
    let count = |v: i64| i32::try_from(v.count_ones()).unwrap_or_default();
    let found: PrimitiveArray<Int32Type> = match array.data_type() {
        DataType::Int32 => array.as_primitive::<Int32Type>().iter().map(|v| v.map(|v| count(i64::from(v)))).collect(),
        _ => array.as_primitive::<Int64Type>().iter().map(|v| v.map(count)).collect(),
    };
    Ok(Arc::new(found))
}

fn get_type(asked: &Asked<'_>) -> Result<Typed> {
    whole_argument(asked)?;
    Ok(Typed { arguments: vec![DataType::Int64, DataType::Int32], result: DataType::Int8 })
}

fn bit_get(call: &Call<'_>) -> Result<ArrayRef> {
    let found = (0..call.rows).map(|index| call.row(index)).map(|row| {
        if row.any_null() {
            return Ok(None);
        }
        match u32::try_from(row.int(1)) {
            Ok(at) if at < 64 => Ok(i8::try_from(row.long(0) >> at & 1).ok()),
            _ => Err(fault("INVALID_PARAMETER_VALUE.BIT_POSITION_RANGE", format!("there is no bit {}", row.int(1)))),
        }
    });
    Ok(Arc::new(found.collect::<Result<PrimitiveArray<Int8Type>>>()?))
}

fn same_whole(asked: &Asked<'_>) -> Result<Typed> {
    let given = whole_argument(asked)?;
    Ok(Typed { arguments: vec![given.clone()], result: given })
}

fn shift_type(asked: &Asked<'_>) -> Result<Typed> {
    let given = match whole_argument(asked)? {
        DataType::Int64 => DataType::Int64,
        _ => DataType::Int32,
    };
    Ok(Typed { arguments: vec![given.clone(), DataType::Int32], result: given })
}

fn whole(call: &Call<'_>, int: fn(i32, u32) -> i32, long: fn(i64, u32) -> i64) -> Result<ArrayRef> {
    let values = call.array(0)?;
    let by: Vec<Option<u32>> = if call.arguments.len() > 1 {
        call.array(1)?.as_primitive::<Int32Type>().iter().map(|v| v.map(i32::cast_unsigned)).collect()
    } else {
        vec![Some(0); call.rows]
    };
    let by = by.into_iter();
    Ok(match values.data_type() {
        DataType::Int64 => Arc::new(
            values
                .as_primitive::<Int64Type>()
                .iter()
                .zip(by)
                .map(|(v, n)| Some(long(v?, n?)))
                .collect::<PrimitiveArray<Int64Type>>(),
        ),
        DataType::Int32 => Arc::new(
            values
                .as_primitive::<Int32Type>()
                .iter()
                .zip(by)
                .map(|(v, n)| Some(int(v?, n?)))
                .collect::<PrimitiveArray<Int32Type>>(),
        ),
        DataType::Int16 => {
            Arc::new(values.as_primitive::<Int16Type>().unary::<_, Int16Type>(|v| int(i32::from(v), 0) as i16))
        }
        DataType::Int8 => {
            Arc::new(values.as_primitive::<Int8Type>().unary::<_, Int8Type>(|v| int(i32::from(v), 0) as i8))
        }
        other => return plan_err!("{} takes an integer, not {other}", call.function),
    })
}

fn choice_type(asked: &Asked<'_>) -> Result<Typed> {
    match common(asked.types, asked.settings.ansi) {
        Some(one) if asked.types.len() > 1 => {
            Ok(Typed { arguments: vec![one.clone(); asked.types.len()], result: one })
        }
        Some(_) => plan_err!("{} takes at least 2 arguments", asked.function),
        None => plan_err!("the arguments of {} have no type in common", asked.function),
    }
}

/// The greatest or least of what is not null.
fn choice(call: &Call<'_>, greatest: bool) -> Result<ArrayRef> {
    let arrays = (0..call.arguments.len()).map(|i| call.array(i)).collect::<Result<Vec<_>>>()?;
    let mut arrays = arrays.into_iter();
    let Some(mut best) = arrays.next() else { return plan_err!("{} of nothing", call.function) };
    for next in arrays {
        let better = super::order::compare(&next, &best, greatest)?;
        best = arrow::compute::kernels::zip::zip(&better, &next, &best)?;
    }
    Ok(best)
}
