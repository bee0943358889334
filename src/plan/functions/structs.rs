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
        Function::new(
            PATH,
            &[Any, Str],
            Body::Arrays(path_type, |_| plan_err!("a path is read as what it goes into before it is evaluated")),
        ),
        Function::new("with_field", &[Any, Str, Any], Body::Arrays(with_type, with_field)),
        Function::new("without_field", &[Any, Str], Body::Arrays(without_type, without_field)),
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

/// `x:a.b`, before it is known what `x` is.
pub(in crate::plan) const PATH: &str = "colon_path";

/// The names of a path such as `$.a['b c']` or `$['a'].b`.
pub(in crate::plan) fn members_of(path: &str) -> Vec<String> {
    let path = path.strip_prefix('$').unwrap_or(path).replace("['", ".").replace("']", "");
    path.split('.').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The member of a struct, in any case.
pub(in crate::plan) fn member_of(of: &DataType, name: &str) -> Result<Arc<Field>> {
    match of {
        DataType::Struct(fields) => match fields.iter().find(|field| is(field, name)) {
            Some(field) => Ok(Arc::clone(field)),
            None => plan_err!("the struct has no member {name}"),
        },
        other => plan_err!("{other} has no members, and so no {name}"),
    }
}

fn path_type(asked: &Asked<'_>) -> Result<Typed> {
    let given = asked.of(0)?.clone();
    let mut result = DataType::Utf8;
    if let (DataType::Struct(_), Some(ScalarValue::Utf8(Some(path)))) = (&given, asked.literal(1)) {
        result = given.clone();
        for name in members_of(path) {
            result = member_of(&result, &name)?.data_type().clone();
        }
    }
    Ok(Typed { arguments: vec![given, DataType::Utf8], result })
}

/// The fields of a struct, and the name of the one that is put in or left out.
fn named_field<'a>(asked: &'a Asked<'_>) -> Result<(&'a Fields, &'a str)> {
    match (asked.of(0)?, asked.literal(1)) {
        (DataType::Struct(fields), Some(ScalarValue::Utf8(Some(name)))) => Ok((fields, name)),
        (DataType::Struct(_), _) => plan_err!("a field's name is text"),
        (other, _) => plan_err!("{other} has no fields; only those of a struct can be put in or left out"),
    }
}

fn is(field: &Field, name: &str) -> bool {
    field.name().eq_ignore_ascii_case(name)
}

fn with_type(asked: &Asked<'_>) -> Result<Typed> {
    let (fields, name) = named_field(asked)?;
    let new = Arc::new(Field::new(name, asked.of(2)?.clone(), true));
    let mut all: Vec<Arc<Field>> =
        fields.iter().map(|field| if is(field, name) { Arc::clone(&new) } else { Arc::clone(field) }).collect();
    if !fields.iter().any(|field| is(field, name)) {
        all.push(new);
    }
    Ok(Typed { arguments: asked.types.to_vec(), result: DataType::Struct(Fields::from(all)) })
}

/// Puts a field into structs in place of those of its name, or else behind them all.
fn with_field(call: &Call<'_>) -> Result<ArrayRef> {
    let (structs, value, DataType::Struct(fields)) = (call.array(0)?, call.array(2)?, call.result) else {
        return plan_err!("a field is put into a struct");
    };
    let structs = structs.as_struct();
    let name = if call.rows > 0 { call.row(0).str(1) } else { "" };
    let mut columns: Vec<ArrayRef> = Vec::with_capacity(fields.len());
    for (field, column) in structs.fields().iter().zip(structs.columns()) {
        columns.push(Arc::clone(if is(field, name) { &value } else { column }));
    }
    if columns.len() < fields.len() {
        columns.push(value);
    }
    if call.rows == 0 {
        return Ok(arrow::array::new_empty_array(call.result));
    }
    Ok(Arc::new(StructArray::try_new_with_length(fields.clone(), columns, structs.nulls().cloned(), call.rows)?))
}

fn without_type(asked: &Asked<'_>) -> Result<Typed> {
    let (fields, name) = named_field(asked)?;
    let kept: Fields = fields.iter().filter(|field| !is(field, name)).cloned().collect();
    if kept.is_empty() {
        return plan_err!("a struct keeps at least one field, and {name} is its last");
    }
    Ok(Typed { arguments: asked.types.to_vec(), result: DataType::Struct(kept) })
}

/// Leaves the fields of a name out of structs.
fn without_field(call: &Call<'_>) -> Result<ArrayRef> {
    let (structs, DataType::Struct(fields)) = (call.array(0)?, call.result) else {
        return plan_err!("a field is left out of a struct");
    };
    let structs = structs.as_struct();
    let name = if call.rows > 0 { call.row(0).str(1) } else { "" };
    let kept = structs.fields().iter().zip(structs.columns()).filter(|(field, _)| !is(field, name));
    let columns: Vec<ArrayRef> = kept.map(|(_, column)| Arc::clone(column)).collect();
    if call.rows == 0 {
        return Ok(arrow::array::new_empty_array(call.result));
    }
    Ok(Arc::new(StructArray::try_new_with_length(fields.clone(), columns, structs.nulls().cloned(), call.rows)?))
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
