//! Structs, and members of structs in arrays.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, StructArray, make_array};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, Fields};
use datafusion::common::{Result, ScalarValue, plan_err};
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::expr::ScalarFunction;

use super::function::Kind::{Any, Str};
use super::function::{Asked, Body, Call, Function, Settings, Typed};
use super::types::{item, list_of};

pub(super) fn functions() -> Vec<Function> {
    vec![
        Function::new("named_struct", &[Any], Body::Arrays(struct_type, named_struct)).variadic(),
        Function::new("member", &[Any, Str], Body::Arrays(member_type, member)),
        NORMAL,
    ]
}

const NORMAL: Function = Function::new(
    "one_zero",
    &[Any],
    Body::Arrays(
        |asked| {
            let given = asked.of(0)?.clone();
            Ok(Typed { arguments: vec![given.clone()], result: given })
        },
        |call| super::order::normal(&call.array(0)?),
    ),
);

/// The expression with one zero and one NaN.
pub(super) fn normal(expr: Expr) -> Expr {
    let func = NORMAL.for_session(&Settings::default()).next();
    match func {
        Some(func) => Expr::ScalarFunction(ScalarFunction { func: Arc::new(func), args: vec![expr] }),
        None => expr,
    }
}

fn struct_type(asked: &Asked<'_>) -> Result<Typed> {
    if !asked.types.len().is_multiple_of(2) {
        return plan_err!("named_struct takes names and values in turn");
    }
    let mut fields = Vec::new();
    for index in (0..asked.types.len()).step_by(2) {
        let name = match asked.literal(index) {
            Some(ScalarValue::Utf8(Some(name))) => name.clone(),
            Some(_) => return plan_err!("a member's name is text"),
            None => format!("col{}", index / 2 + 1),
        };
        fields.push(Field::new(name, asked.of(index + 1)?.clone(), true));
    }
    Ok(Typed { arguments: asked.types.to_vec(), result: DataType::Struct(Fields::from(fields)) })
}

fn named_struct(call: &Call<'_>) -> Result<ArrayRef> {
    let DataType::Struct(fields) = call.result else { return plan_err!("named_struct gives a struct") };
    let columns = (0..fields.len()).map(|i| call.array(i * 2 + 1)).collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(StructArray::try_new_with_length(fields.clone(), columns, None, call.rows)?))
}

fn member_type(asked: &Asked<'_>) -> Result<Typed> {
    let given = asked.of(0)?;
    let Some(ScalarValue::Utf8(Some(name))) = asked.literal(1) else { return plan_err!("a member's name is text") };
    match item(given) {
        Some(DataType::Struct(fields)) => match fields.iter().find(|f| f.name().eq_ignore_ascii_case(name)) {
            Some(field) => {
                Ok(Typed { arguments: vec![given.clone(), DataType::Utf8], result: list_of(field.data_type().clone()) })
            }
            None => plan_err!("the structs of the array have no member {name}"),
        },
        _ => plan_err!("{given} has no members"),
    }
}

fn member(call: &Call<'_>) -> Result<ArrayRef> {
    let (array, DataType::List(field)) = (call.array(0)?, call.result) else {
        return plan_err!("a member of an array of structs is an array");
    };
    let Some(list) = array.as_list_opt::<i32>() else { return plan_err!("{} has no members", array.data_type()) };
    let structs = list.values().as_struct();
    let name = if call.rows > 0 { call.row(0).str(1) } else { "" };
    let position = structs.fields().iter().position(|f| f.name().eq_ignore_ascii_case(name));
    let Some(column) = position.map(|at| structs.column(at)) else {
        return Ok(arrow::array::new_null_array(call.result, call.rows));
    };
    let values = super::cast::relabel(&masked(column, structs.nulls())?, field.data_type())?;
    Ok(Arc::new(ListArray::try_new(Arc::clone(field), list.offsets().clone(), values, list.nulls().cloned())?))
}

/// A member of structs, null where its struct is.
pub(super) fn masked(column: &ArrayRef, structs: Option<&NullBuffer>) -> Result<ArrayRef> {
    match structs {
        Some(structs) if structs.null_count() > 0 && !column.data_type().is_null() => {
            let nulls = NullBuffer::union(column.nulls(), Some(structs));
            Ok(make_array(column.to_data().into_builder().nulls(nulls).build()?))
        }
        _ => Ok(Arc::clone(column)),
    }
}
