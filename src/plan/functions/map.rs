//! Functions over maps. A key is not null and stands once.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, ListArray, MapArray, StringArray, StructArray, new_null_array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, Fields};
use arrow::row::{RowConverter, Rows, SortField};
use datafusion::common::{Result, plan_err};

use super::cast::relabel;
use super::function::Kind::{Any, Str};
use super::function::{Asked, Body, Call, Function, Typed, fault, mismatch};
use super::order::normal;
use super::types::{common, common_two, entry, item, list_of, map_of};

pub(super) fn functions() -> Vec<Function> {
    vec![
        Function::new("map", &[Any], Body::Arrays(map_type, map)).variadic().optional(1),
        Function::new("map_keys", &[Any], Body::Arrays(|asked| side(asked, true), |call| column(call, 0))),
        Function::new("map_values", &[Any], Body::Arrays(|asked| side(asked, false), |call| column(call, 1))),
        Function::new("map_entries", &[Any], Body::Arrays(entries_type, entries)),
        Function::new("map_from_arrays", &[Any, Any], Body::Arrays(arrays_type, from_arrays)),
        Function::new("map_from_entries", &[Any], Body::Arrays(from_type, from_entries)),
        Function::new("map_concat", &[Any], Body::Arrays(concat_type, concat)).variadic().optional(1),
        Function::new("map_contains_key", &[Any, Any], Body::Arrays(contains_type, contains)),
        Function::new("str_to_map", &[Str, Str, Str], Body::Arrays(text_type, from_text)).optional(2),
    ]
}

pub(super) fn ends(offsets: &OffsetBuffer<i32>, row: usize) -> Range<usize> {
    let end = |i: usize| offsets.get(i).and_then(|o| usize::try_from(*o).ok()).unwrap_or_default();
    end(row)..end(row + 1)
}

type Place = (usize, usize);

/// Keys of several arrays of one type, comparable with each other.
fn rows_of(sources: &[ArrayRef]) -> Result<Vec<Rows>> {
    let Some(first) = sources.first() else { return Ok(Vec::new()) };
    let converter = RowConverter::new(vec![SortField::new(first.data_type().clone())])?;
    sources.iter().map(|s| Ok(converter.convert_columns(&[normal(s)?])?)).collect()
}

/// Maps from the places of their keys and values.
pub(super) fn assembled(
    to: &DataType,
    keys: &[ArrayRef],
    values: &[ArrayRef],
    rows: usize,
    mut row: impl FnMut(usize, &mut Vec<(Place, Place)>) -> Result<bool>,
) -> Result<ArrayRef> {
    let DataType::Map(field, sorted) = to else { return plan_err!("a map is wanted, not {to}") };
    let DataType::Struct(members) = field.data_type() else { return plan_err!("entries of a map are structs") };
    let key_rows = rows_of(keys)?;
    let mut places = Vec::new();
    let mut lengths = Vec::with_capacity(rows);
    let mut there = Vec::with_capacity(rows);
    for index in 0..rows {
        let before = places.len();
        there.push(row(index, &mut places)?);
        let new = places.get(before..).unwrap_or_default();
        let mut seen = HashSet::with_capacity(new.len());
        for ((source, at), _) in new {
            if keys.get(*source).is_none_or(|k| k.is_null(*at)) {
                return Err(fault("NULL_MAP_KEY", "a key of a map is not null"));
            }
            if !key_rows.get(*source).is_some_and(|rows| seen.insert(rows.row(*at))) {
                return Err(fault("DUPLICATED_MAP_KEY", "a map has each key once"));
            }
        }
        lengths.push(places.len() - before);
    }
    let gathered = |sources: &[ArrayRef], places: Vec<Place>, to: &DataType| -> Result<ArrayRef> {
        if places.is_empty() {
            return Ok(new_null_array(to, 0));
        }
        let sources: Vec<&dyn Array> = sources.iter().map(AsRef::as_ref).collect();
        relabel(&arrow::compute::interleave(&sources, &places)?, to)
    };
    let part = |i: usize| members.get(i).map_or(DataType::Null, |f| f.data_type().clone());
    let (key_places, value_places): (Vec<Place>, Vec<Place>) = places.into_iter().unzip();
    let columns = vec![gathered(keys, key_places, &part(0))?, gathered(values, value_places, &part(1))?];
    let entries = StructArray::try_new(members.clone(), columns, None)?;
    let nulls = Some(NullBuffer::from(there));
    let offsets = OffsetBuffer::from_lengths(lengths);
    Ok(Arc::new(MapArray::try_new(Arc::clone(field), offsets, entries, nulls, *sorted)?))
}

fn map_type(asked: &Asked<'_>) -> Result<Typed> {
    if !asked.types.len().is_multiple_of(2) {
        return plan_err!("map takes keys and values in turn");
    }
    let every = |odd: usize| common(asked.types.iter().skip(odd).step_by(2), asked.settings.ansi);
    let (Some(key), Some(value)) = (every(0), every(1)) else {
        return plan_err!("the keys or values of the map have no type in common");
    };
    let arguments = (0..asked.types.len()).map(|i| if i % 2 == 0 { key.clone() } else { value.clone() }).collect();
    Ok(Typed { arguments, result: map_of(key, value) })
}

fn map(call: &Call<'_>) -> Result<ArrayRef> {
    let arrays = (0..call.arguments.len()).map(|i| call.array(i)).collect::<Result<Vec<_>>>()?;
    let keys: Vec<ArrayRef> = arrays.iter().step_by(2).cloned().collect();
    let values: Vec<ArrayRef> = arrays.iter().skip(1).step_by(2).cloned().collect();
    assembled(call.result, &keys, &values, call.rows, |row, out| {
        out.extend((0..keys.len()).map(|source| ((source, row), (source, row))));
        Ok(true)
    })
}

fn parts<'a>(asked: &Asked<'a>, index: usize) -> Result<(&'a DataType, &'a DataType)> {
    let Some(given) = asked.types.get(index) else { return plan_err!("{} takes a map", asked.function) };
    match entry(given) {
        Some(parts) => Ok(parts),
        None => mismatch(asked.function, "a map", given),
    }
}

fn side(asked: &Asked<'_>, keys: bool) -> Result<Typed> {
    let (key, value) = parts(asked, 0)?;
    let of = if keys { key } else { value };
    Ok(Typed { arguments: vec![map_of(key.clone(), value.clone())], result: list_of(of.clone()) })
}

fn column(call: &Call<'_>, index: usize) -> Result<ArrayRef> {
    let array = call.array(0)?;
    let map = array.as_map();
    let DataType::List(field) = call.result else { return plan_err!("{} gives an array", call.function) };
    let values = relabel(map.entries().column(index), field.data_type())?;
    Ok(Arc::new(ListArray::try_new(Arc::clone(field), map.offsets().clone(), values, map.nulls().cloned())?))
}

fn entries_type(asked: &Asked<'_>) -> Result<Typed> {
    let (key, value) = parts(asked, 0)?;
    let members = Fields::from(vec![Field::new("key", key.clone(), true), Field::new("value", value.clone(), true)]);
    Ok(Typed { arguments: vec![map_of(key.clone(), value.clone())], result: list_of(DataType::Struct(members)) })
}

fn entries(call: &Call<'_>) -> Result<ArrayRef> {
    let array = call.array(0)?;
    let map = array.as_map();
    let DataType::List(field) = call.result else { return plan_err!("map_entries gives an array") };
    let entries: ArrayRef = Arc::new(map.entries().clone());
    let values = relabel(&entries, field.data_type())?;
    Ok(Arc::new(ListArray::try_new(Arc::clone(field), map.offsets().clone(), values, map.nulls().cloned())?))
}

fn arrays_type(asked: &Asked<'_>) -> Result<Typed> {
    match (item(asked.of(0)?), item(asked.of(1)?)) {
        (Some(key), Some(value)) => Ok(Typed {
            arguments: vec![list_of(key.clone()), list_of(value.clone())],
            result: map_of(key.clone(), value.clone()),
        }),
        _ => plan_err!("map_from_arrays takes two arrays"),
    }
}

fn from_arrays(call: &Call<'_>) -> Result<ArrayRef> {
    let (keys, values) = (call.array(0)?, call.array(1)?);
    let (keys, values) = (keys.as_list::<i32>(), values.as_list::<i32>());
    let sources = ([Arc::clone(keys.values())], [Arc::clone(values.values())]);
    assembled(call.result, &sources.0, &sources.1, call.rows, |row, out| {
        if keys.is_null(row) || values.is_null(row) {
            return Ok(false);
        }
        let (of_keys, of_values) = (ends(keys.offsets(), row), ends(values.offsets(), row));
        if of_keys.len() != of_values.len() {
            return Err(fault("INVALID_PARAMETER_VALUE", "a map has as many keys as values"));
        }
        out.extend(of_keys.zip(of_values).map(|(k, v)| ((0, k), (0, v))));
        Ok(true)
    })
}

fn from_type(asked: &Asked<'_>) -> Result<Typed> {
    let given = asked.of(0)?;
    match item(given) {
        Some(DataType::Struct(fields)) if fields.len() == 2 => {
            let part = |i: usize| fields.get(i).map_or(DataType::Null, |f| f.data_type().clone());
            Ok(Typed { arguments: vec![given.clone()], result: map_of(part(0), part(1)) })
        }
        _ => mismatch("map_from_entries", "an array of pairs", given),
    }
}

fn from_entries(call: &Call<'_>) -> Result<ArrayRef> {
    let array = call.array(0)?;
    let list = array.as_list::<i32>();
    let pairs = list.values().as_struct();
    let sources = ([Arc::clone(pairs.column(0))], [Arc::clone(pairs.column(1))]);
    assembled(call.result, &sources.0, &sources.1, call.rows, |row, out| {
        if list.is_null(row) || ends(list.offsets(), row).any(|at| pairs.is_null(at)) {
            return Ok(false);
        }
        out.extend(ends(list.offsets(), row).map(|at| ((0, at), (0, at))));
        Ok(true)
    })
}

fn concat_type(asked: &Asked<'_>) -> Result<Typed> {
    match common(asked.types, asked.settings.ansi) {
        Some(one) if entry(&one).is_some() => {
            Ok(Typed { arguments: vec![one.clone(); asked.types.len()], result: one })
        }
        _ => plan_err!("map_concat takes maps of one type"),
    }
}

fn concat(call: &Call<'_>) -> Result<ArrayRef> {
    let arrays = (0..call.arguments.len()).map(|i| call.array(i)).collect::<Result<Vec<_>>>()?;
    let maps: Vec<&MapArray> = arrays.iter().map(|a| a.as_map()).collect();
    let keys: Vec<ArrayRef> = maps.iter().map(|m| Arc::clone(m.keys())).collect();
    let values: Vec<ArrayRef> = maps.iter().map(|m| Arc::clone(m.values())).collect();
    assembled(call.result, &keys, &values, call.rows, |row, out| {
        for (source, map) in maps.iter().enumerate() {
            if map.is_null(row) {
                return Ok(false);
            }
            out.extend(ends(map.offsets(), row).map(|at| ((source, at), (source, at))));
        }
        Ok(true)
    })
}

fn contains_type(asked: &Asked<'_>) -> Result<Typed> {
    let (key, value) = parts(asked, 0)?;
    let Some(one) = common_two(key, asked.of(1)?, asked.settings.ansi) else {
        return plan_err!("a map with keys of {key} has none of {}", asked.of(1)?);
    };
    Ok(Typed { arguments: vec![map_of(one.clone(), value.clone()), one], result: DataType::Boolean })
}

fn contains(call: &Call<'_>) -> Result<ArrayRef> {
    let (array, wanted) = (call.array(0)?, call.array(1)?);
    let map = array.as_map();
    let rows = rows_of(&[Arc::clone(map.keys()), Arc::clone(&wanted)])?;
    let [keys, wanted_keys] = rows.as_slice() else { return plan_err!("map_contains_key takes two arguments") };
    Ok(Arc::new(
        (0..call.rows)
            .map(|row| {
                let there = !map.is_null(row) && !wanted.is_null(row);
                there.then(|| ends(map.offsets(), row).any(|at| keys.row(at) == wanted_keys.row(row)))
            })
            .collect::<BooleanArray>(),
    ))
}

fn text_type(asked: &Asked<'_>) -> Result<Typed> {
    Ok(Typed { arguments: vec![DataType::Utf8; asked.types.len()], result: map_of(DataType::Utf8, DataType::Utf8) })
}

fn from_text(call: &Call<'_>) -> Result<ArrayRef> {
    let mut keys: Vec<String> = Vec::new();
    let mut values: Vec<Option<String>> = Vec::new();
    let mut counts = Vec::with_capacity(call.rows);
    for row in (0..call.rows).map(|index| call.row(index)) {
        if row.any_null() {
            counts.push(None);
            continue;
        }
        let pairs = super::regex::parts(row.str(0), if row.count() > 1 { row.str(1) } else { "," }, None)?;
        counts.push(Some(pairs.len()));
        for pair in pairs {
            let mut halves =
                super::regex::parts(&pair, if row.count() > 2 { row.str(2) } else { ":" }, Some(2))?.into_iter();
            keys.push(halves.next().unwrap_or_default());
            values.push(halves.next());
        }
    }
    let keys: [ArrayRef; 1] = [Arc::new(StringArray::from(keys))];
    let values: [ArrayRef; 1] = [Arc::new(StringArray::from(values))];
    let mut next = 0;
    assembled(call.result, &keys, &values, call.rows, |row, out| {
        let Some(count) = counts.get(row).copied().flatten() else { return Ok(false) };
        out.extend((next..next + count).map(|at| ((0, at), (0, at))));
        next += count;
        Ok(true)
    })
}
