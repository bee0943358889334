//! Choices between values, and what is said of them.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, StringArray, new_null_array};
use arrow::compute::kernels::{cmp, zip::zip};
use datafusion::common::{Result, plan_err};

use arrow::datatypes::DataType;

use super::function::Kind::{Any, Bool, Common, Str};
use super::function::{Asked, Body, Call, Function, Typed, fault};
use super::types::{common, common_two};

pub(super) fn functions() -> Vec<Function> {
    vec![
        Function::new("isnull", &[Any], Body::Bool(|r| Ok(Some(r.null(0))))).with_nulls(),
        Function::new("isnotnull", &[Any], Body::Bool(|r| Ok(Some(!r.null(0))))).with_nulls(),
        Function::new(
            "equal_null",
            &[Common, Common],
            Body::Arrays(equal_type, |call| {
                let (left, right) = (super::order::normal(&call.array(0)?)?, super::order::normal(&call.array(1)?)?);
                Ok(Arc::new(cmp::not_distinct(&left, &right)?))
            }),
        ),
        Function::new("coalesce", &[Any], Body::Arrays(any_type, coalesce)).variadic(),
        Function::new("nvl", &[Any, Any], Body::Arrays(any_type, coalesce)).also(&["ifnull"]),
        Function::new(
            "nvl2",
            &[Any, Any, Any],
            Body::Arrays(nvl2_type, |call| {
                let test: BooleanArray = call.array(0)?.logical_nulls().map_or_else(
                    || BooleanArray::from(vec![true; call.rows]),
                    |nulls| nulls.iter().map(Some).collect(),
                );
                Ok(zip(&test, &call.array(1)?, &call.array(2)?)?)
            }),
        ),
        Function::new(
            "nullif",
            &[Any, Any],
            Body::Arrays(nullif_type, |call| {
                let value = call.array(0)?;
                let (left, right) = (
                    super::cast::cast(
                        &value,
                        call.array(1)?.data_type(),
                        super::cast::Misfit::Fail,
                        &call.settings.zone,
                    )?,
                    call.array(1)?,
                );
                let equal = cmp::eq(&super::order::normal(&left)?, &super::order::normal(&right)?)?;
                Ok(arrow::compute::nullif(&value, &equal)?)
            }),
        ),
        Function::new(
            "nullifzero",
            &[Any],
            Body::Arrays(first_type, |call| {
                let value = call.array(0)?;
                let zero = arrow::compute::cast(&arrow::array::Int32Array::from(vec![0]), value.data_type())?;
                let equal = cmp::eq(&super::order::normal(&value)?, &arrow::array::Scalar::new(zero))?;
                Ok(arrow::compute::nullif(&value, &equal)?)
            }),
        ),
        Function::new(
            "zeroifnull",
            &[Any],
            Body::Arrays(first_type, |call| {
                let value = call.array(0)?;
                let zero = arrow::compute::cast(&arrow::array::Int32Array::from(vec![0]), value.data_type())?;
                let test: BooleanArray = arrow::compute::is_not_null(&value)?;
                Ok(zip(&test, &value, &arrow::array::Scalar::new(zero))?)
            }),
        ),
        Function::new("assert_true", &[Bool, Str], Body::Arrays(assert_type, assert_true)).optional(1),
        Function::new(
            "raise_error",
            &[Str],
            Body::Arrays(raise_type, |call| match (0..call.rows).map(|index| call.row(index)).next() {
                Some(row) => Err(fault("USER_RAISED_EXCEPTION", row.opt_str(0).unwrap_or("null"))),
                None => Ok(new_null_array(call.result, 0)),
            }),
        ),
        Function::new(
            "typeof",
            &[Any],
            Body::Arrays(typeof_type, |call| {
                let name = call.arguments.first().map(|a| spelled(a.array.data_type())).unwrap_or_default();
                Ok(Arc::new(StringArray::from(vec![name; call.rows])))
            }),
        ),
    ]
}

fn equal_type(asked: &Asked<'_>) -> Result<Typed> {
    let typed = any_type(asked)?;
    Ok(Typed { result: DataType::Boolean, ..typed })
}

fn any_type(asked: &Asked<'_>) -> Result<Typed> {
    match common(asked.types, asked.settings.ansi) {
        Some(one) => Ok(Typed { arguments: vec![one.clone(); asked.types.len()], result: one }),
        None => plan_err!("the arguments of {} have no type in common", asked.function),
    }
}

fn coalesce(call: &Call<'_>) -> Result<ArrayRef> {
    let mut found = call.array(0)?;
    for index in 1..call.arguments.len() {
        if found.null_count() == 0 {
            break;
        }
        let there = arrow::compute::is_not_null(&found)?;
        found = zip(&there, &found, &call.array(index)?)?;
    }
    Ok(found)
}

fn nvl2_type(asked: &Asked<'_>) -> Result<Typed> {
    let Some(result) = common_two(asked.of(1)?, asked.of(2)?, asked.settings.ansi) else {
        return plan_err!("the arguments of nvl2 have no type in common");
    };
    Ok(Typed { arguments: vec![asked.of(0)?.clone(), result.clone(), result.clone()], result })
}

fn nullif_type(asked: &Asked<'_>) -> Result<Typed> {
    let Some(one) = common_two(asked.of(0)?, asked.of(1)?, asked.settings.ansi) else {
        return plan_err!("the arguments of nullif have no type in common");
    };
    let result = asked.of(0)?.clone();
    Ok(Typed { arguments: vec![result.clone(), one], result })
}

fn first_type(asked: &Asked<'_>) -> Result<Typed> {
    let given = asked.of(0)?;
    if !given.is_numeric() {
        return plan_err!("{} takes a number, not {given}", asked.function);
    }
    Ok(Typed { arguments: vec![given.clone()], result: given.clone() })
}

fn assert_type(asked: &Asked<'_>) -> Result<Typed> {
    let mut arguments = vec![DataType::Boolean];
    arguments.extend(asked.types.iter().skip(1).map(|_| DataType::Utf8));
    Ok(Typed { arguments, result: DataType::Null })
}

fn assert_true(call: &Call<'_>) -> Result<ArrayRef> {
    for row in (0..call.rows).map(|index| call.row(index)) {
        if row.null(0) || !row.bool(0) {
            let said = if row.count() > 1 { row.opt_str(1).unwrap_or("null") } else { "the assertion is not true" };
            return Err(fault("USER_RAISED_EXCEPTION", said));
        }
    }
    Ok(new_null_array(call.result, call.rows))
}

fn raise_type(_: &Asked<'_>) -> Result<Typed> {
    Ok(Typed { arguments: vec![DataType::Utf8], result: DataType::Null })
}

fn typeof_type(asked: &Asked<'_>) -> Result<Typed> {
    Ok(Typed { arguments: vec![asked.of(0)?.clone()], result: DataType::Utf8 })
}

/// A type as Spark's DDL writes it.
pub(in crate::plan) fn spelled(t: &DataType) -> String {
    match t {
        DataType::Null => "void".to_owned(),
        DataType::Boolean => "boolean".to_owned(),
        DataType::Int8 => "tinyint".to_owned(),
        DataType::Int16 => "smallint".to_owned(),
        DataType::Int32 => "int".to_owned(),
        DataType::Int64 => "bigint".to_owned(),
        DataType::Float32 => "float".to_owned(),
        DataType::Float64 => "double".to_owned(),
        DataType::Decimal128(p, s) => format!("decimal({p},{s})"),
        DataType::Date32 => "date".to_owned(),
        DataType::Timestamp(_, Some(_)) => "timestamp".to_owned(),
        DataType::Timestamp(_, None) => "timestamp_ntz".to_owned(),
        DataType::Binary => "binary".to_owned(),
        DataType::Utf8 => "string".to_owned(),
        DataType::List(item) => format!("array<{}>", spelled(item.data_type())),
        DataType::Struct(fields) => {
            let members: Vec<String> =
                fields.iter().map(|f| format!("{}:{}", f.name(), spelled(f.data_type()))).collect();
            format!("struct<{}>", members.join(","))
        }
        DataType::Map(..) => match super::types::entry(t) {
            Some((key, value)) => format!("map<{},{}>", spelled(key), spelled(value)),
            None => "map".to_owned(),
        },
        other => other.to_string().to_lowercase(),
    }
}
