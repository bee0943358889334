//! Types of the functions over arrays.

use arrow::datatypes::{DataType, Field, Fields};
use datafusion::common::{Result, plan_err};

use crate::plan::functions::function::{Asked, Typed, mismatch};
use crate::plan::functions::types::{common, common_two, entry, item, list_of};

fn no_array<T>(asked: &Asked<'_>, index: usize) -> Result<T> {
    mismatch(asked.function, "an array", asked.of(index)?)
}

fn list_argument(asked: &Asked<'_>, index: usize) -> Result<DataType> {
    match asked.of(index)? {
        DataType::Null => Ok(list_of(DataType::Null)),
        t => match item(t) {
            Some(item) => Ok(list_of(item.clone())),
            None => no_array(asked, index),
        },
    }
}

pub(super) fn same_type(asked: &Asked<'_>) -> Result<Typed> {
    let given = list_argument(asked, 0)?;
    Ok(Typed { arguments: vec![given.clone()], result: given })
}

pub(super) fn pair_type(asked: &Asked<'_>) -> Result<Typed> {
    let (a, b) = (list_argument(asked, 0)?, list_argument(asked, 1)?);
    match common_two(&a, &b, asked.settings.ansi) {
        Some(one) => Ok(Typed { arguments: vec![one.clone(), one.clone()], result: one }),
        None => plan_err!("the arrays of {} have no type in common", asked.function),
    }
}

/// An array and an element.
fn with_item(asked: &Asked<'_>, at: usize) -> Result<(DataType, DataType)> {
    let given = list_argument(asked, 0)?;
    let of = item(&given).cloned().unwrap_or(DataType::Null);
    match common_two(&of, asked.of(at)?, asked.settings.ansi) {
        Some(one) => Ok((list_of(one.clone()), one)),
        None => plan_err!("{} of {given} takes no {}", asked.function, asked.of(at)?),
    }
}

pub(super) fn remove_type(asked: &Asked<'_>) -> Result<Typed> {
    let (list, one) = with_item(asked, 1)?;
    Ok(Typed { arguments: vec![list.clone(), one], result: list })
}

pub(super) fn insert_type(asked: &Asked<'_>) -> Result<Typed> {
    let (list, one) = with_item(asked, 2)?;
    Ok(Typed { arguments: vec![list.clone(), DataType::Int32, one], result: list })
}

pub(super) fn contains_type(asked: &Asked<'_>) -> Result<Typed> {
    Ok(Typed { result: DataType::Boolean, ..remove_type(asked)? })
}

pub(super) fn position_type(asked: &Asked<'_>) -> Result<Typed> {
    Ok(Typed { result: DataType::Int64, ..remove_type(asked)? })
}

pub(super) fn overlap_type(asked: &Asked<'_>) -> Result<Typed> {
    Ok(Typed { result: DataType::Boolean, ..pair_type(asked)? })
}

pub(super) fn item_type(asked: &Asked<'_>) -> Result<Typed> {
    let typed = same_type(asked)?;
    let result = item(&typed.result).cloned().unwrap_or(DataType::Null);
    Ok(Typed { result, ..typed })
}

pub(super) fn size_type(asked: &Asked<'_>) -> Result<Typed> {
    let given = asked.of(0)?;
    let argument = if entry(given).is_some() { given.clone() } else { list_argument(asked, 0)? };
    Ok(Typed { arguments: vec![argument], result: DataType::Int32 })
}

pub(super) fn array_type(asked: &Asked<'_>) -> Result<Typed> {
    match common(asked.types, asked.settings.ansi) {
        Some(one) => Ok(Typed { arguments: vec![one.clone(); asked.types.len()], result: list_of(one) }),
        None => plan_err!("the elements of the array have no type in common"),
    }
}

pub(super) fn repeat_type(asked: &Asked<'_>) -> Result<Typed> {
    let of = asked.of(0)?.clone();
    Ok(Typed { arguments: vec![of.clone(), DataType::Int32], result: list_of(of) })
}

pub(super) fn join_type(asked: &Asked<'_>) -> Result<Typed> {
    list_argument(asked, 0)?;
    let mut arguments = vec![list_of(DataType::Utf8)];
    arguments.extend(asked.types.iter().skip(1).map(|_| DataType::Utf8));
    Ok(Typed { arguments, result: DataType::Utf8 })
}

pub(super) fn sort_type(asked: &Asked<'_>) -> Result<Typed> {
    let given = list_argument(asked, 0)?;
    let mut arguments = vec![given.clone()];
    arguments.extend(asked.types.iter().skip(1).map(|_| DataType::Boolean));
    Ok(Typed { arguments, result: given })
}

pub(super) fn slice_type(asked: &Asked<'_>) -> Result<Typed> {
    let given = list_argument(asked, 0)?;
    Ok(Typed { arguments: vec![given.clone(), DataType::Int32, DataType::Int32], result: given })
}

pub(super) fn flatten_type(asked: &Asked<'_>) -> Result<Typed> {
    let given = list_argument(asked, 0)?;
    let inner = match item(&given) {
        Some(DataType::Null) => list_of(DataType::Null),
        Some(inner) => match item(inner) {
            Some(of) => list_of(of.clone()),
            None => return plan_err!("flatten takes an array of arrays, not {given}"),
        },
        None => return no_array(asked, 0),
    };
    Ok(Typed { arguments: vec![list_of(inner.clone())], result: inner })
}

pub(super) fn reverse_type(asked: &Asked<'_>) -> Result<Typed> {
    let given = asked.of(0)?;
    if item(given).is_some() {
        return same_type(asked);
    }
    if given.is_nested() {
        return mismatch("reverse", "an array or text", given);
    }
    Ok(Typed { arguments: vec![DataType::Utf8], result: DataType::Utf8 })
}

pub(super) fn zip_type(asked: &Asked<'_>) -> Result<Typed> {
    let arguments = (0..asked.types.len()).map(|i| list_argument(asked, i)).collect::<Result<Vec<_>>>()?;
    let fields: Fields = arguments
        .iter()
        .enumerate()
        .map(|(i, t)| Field::new(i.to_string(), item(t).cloned().unwrap_or(DataType::Null), true))
        .collect();
    Ok(Typed { arguments, result: list_of(DataType::Struct(fields)) })
}

pub(super) fn at_type(asked: &Asked<'_>) -> Result<Typed> {
    let given = asked.of(0)?;
    if let Some((key, value)) = entry(given) {
        let Some(one) = common_two(key, asked.of(1)?, asked.settings.ansi) else {
            return plan_err!("a map with keys of {key} has none of {}", asked.of(1)?);
        };
        let map = crate::plan::functions::types::map_of(one.clone(), value.clone());
        return Ok(Typed { arguments: vec![map, one], result: value.clone() });
    }
    let Some(of) = item(given) else { return mismatch(asked.function, "an array or a map", given) };
    Ok(Typed { arguments: vec![list_of(of.clone()), DataType::Int32], result: of.clone() })
}
