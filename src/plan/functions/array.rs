//! Functions over arrays. Elements are compared by their row-format bytes, so that one mechanism serves all types.

mod element;
mod except;
mod types;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Int32Array, Int64Array, ListArray, StringBuilder, StructArray,
    new_null_array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field};
use arrow::row::{Row as Key, RowConverter, Rows, SortField};
use datafusion::common::{Result, plan_err};

use super::function::Kind::{Any, Int};
use super::function::{Body, CALL_ELEMENTS, Call, Function, MOST_BYTES, MOST_ELEMENTS, TOO_LARGE, fault};
use super::order::normal;
use super::types::text;
use element::at;
use except::except;
use types::{
    array_type, at_type, contains_type, flatten_type, insert_type, item_type, join_type, overlap_type, pair_type,
    position_type, remove_type, repeat_type, reverse_type, same_type, size_type, slice_type, sort_type, zip_type,
};

pub(super) fn functions() -> Vec<Function> {
    let mut all = making();
    all.extend(asking());
    all.extend(changing());
    all
}

fn making() -> Vec<Function> {
    vec![
        Function::new("array", &[Any], Body::Arrays(array_type, array)).variadic().optional(1),
        Function::new("array_repeat", &[Any, Int], Body::Arrays(repeat_type, repeat)),
        Function::new("sequence", &[Any, Any, Any], Body::Arrays(super::sequence::typing, super::sequence::compute))
            .optional(1),
        Function::new("arrays_zip", &[Any], Body::Arrays(zip_type, zip)).variadic().optional(1),
    ]
}

fn asking() -> Vec<Function> {
    vec![
        Function::new("array_contains", &[Any, Any], Body::Arrays(contains_type, contains)),
        Function::new("array_position", &[Any, Any], Body::Arrays(position_type, position)),
        Function::new("arrays_overlap", &[Any, Any], Body::Arrays(overlap_type, overlap)),
        Function::new("array_max", &[Any], Body::Arrays(item_type, |call| extreme(call, true))),
        Function::new("array_min", &[Any], Body::Arrays(item_type, |call| extreme(call, false))),
        Function::new("array_join", &[Any, Any, Any], Body::Arrays(join_type, join)).optional(1),
        Function::new("array_size", &[Any], Body::Arrays(size_type, size)).also(&["size", "cardinality"]),
        Function::new("element_at", &[Any, Any], Body::Arrays(at_type, at)).also(&[
            "try_element_at",
            "get",
            "subscript",
        ]),
    ]
}

fn changing() -> Vec<Function> {
    vec![
        Function::new(
            "array_distinct",
            &[Any],
            Body::Arrays(same_type, |call| {
                sets(call, |own, _, out| {
                    let mut seen = HashSet::new();
                    out.extend(own.iter().filter(|(key, _)| seen.insert(*key)).map(|(_, place)| *place));
                })
            }),
        ),
        Function::new("array_except", &[Any, Any], Body::Arrays(pair_type, except)),
        Function::new(
            "array_intersect",
            &[Any, Any],
            Body::Arrays(pair_type, |call| {
                sets(call, |own, other, out| {
                    let there: HashSet<Key<'_>> = other.iter().map(|(key, _)| *key).collect();
                    let mut seen = HashSet::new();
                    out.extend(
                        own.iter().filter(|(key, _)| there.contains(key) && seen.insert(*key)).map(|(_, place)| *place),
                    );
                })
            }),
        ),
        Function::new(
            "array_union",
            &[Any, Any],
            Body::Arrays(pair_type, |call| {
                sets(call, |own, other, out| {
                    let mut seen = HashSet::new();
                    out.extend(own.iter().chain(other).filter(|(key, _)| seen.insert(*key)).map(|(_, place)| *place));
                })
            }),
        ),
        Function::new("array_remove", &[Any, Any], Body::Arrays(remove_type, remove)),
        Function::new(
            "array_compact",
            &[Any],
            Body::Arrays(same_type, |call| {
                picked(call, |list, row, out| {
                    out.extend(range(list, row).filter(|at| !list.values().is_null(*at)));
                    Ok(())
                })
            }),
        ),
        Function::new("array_append", &[Any, Any], Body::Arrays(remove_type, |call| insert(call, Edge::Back))),
        Function::new("array_prepend", &[Any, Any], Body::Arrays(remove_type, |call| insert(call, Edge::Front))),
        Function::new("array_insert", &[Any, Int, Any], Body::Arrays(insert_type, |call| insert(call, Edge::At))),
        Function::new("sort_array", &[Any, Any], Body::Arrays(sort_type, sort)).optional(1).also(&["array_sort"]),
        Function::new("slice", &[Any, Int, Int], Body::Arrays(slice_type, slice)),
        Function::new("flatten", &[Any], Body::Arrays(flatten_type, flatten)),
        Function::new("reverse", &[Any], Body::Arrays(reverse_type, reverse)),
    ]
}

fn range(list: &ListArray, row: usize) -> Range<usize> {
    if list.is_null(row) {
        return 0..0;
    }
    let ends = list.value_offsets();
    let end = |i: usize| ends.get(i).and_then(|o| usize::try_from(*o).ok()).unwrap_or_default();
    end(row)..end(row + 1)
}

fn list(array: &ArrayRef) -> Result<&ListArray> {
    match array.as_list_opt::<i32>() {
        Some(list) => Ok(list),
        None => plan_err!("{} is no array", array.data_type()),
    }
}

fn element(call: &Call<'_>) -> Result<Arc<Field>> {
    match call.result {
        DataType::List(field) => Ok(Arc::clone(field)),
        other => plan_err!("{} gives an array, not {other}", call.function),
    }
}

/// An array of lists from the places of their elements in `sources`; `None` is a null list.
pub(super) fn assembled(
    field: &Arc<Field>,
    sources: &[&dyn Array],
    rows: usize,
    mut row: impl FnMut(usize, &mut Vec<(usize, usize)>) -> Result<bool>,
) -> Result<ArrayRef> {
    let mut places = Vec::new();
    let mut lengths = Vec::with_capacity(rows);
    let mut there = Vec::with_capacity(rows);
    for index in 0..rows {
        let before = places.len();
        there.push(row(index, &mut places)?);
        lengths.push(places.len() - before);
        if places.len() > CALL_ELEMENTS {
            return Err(fault(TOO_LARGE, format!("one call gives more than {CALL_ELEMENTS} elements")));
        }
    }
    let values = if places.is_empty() {
        new_null_array(field.data_type(), 0)
    } else {
        super::cast::relabel(&arrow::compute::interleave(sources, &places)?, field.data_type())?
    };
    Ok(Arc::new(ListArray::try_new(
        Arc::clone(field),
        OffsetBuffer::from_lengths(lengths),
        values,
        Some(NullBuffer::from(there)),
    )?))
}

/// Keys of the elements of several arrays, comparable with each other.
fn keys(arrays: &[&ArrayRef]) -> Result<Vec<Rows>> {
    let of = match arrays.first() {
        Some(first) => first.data_type().clone(),
        None => return Ok(Vec::new()),
    };
    let converter = RowConverter::new(vec![SortField::new(of)])?;
    arrays.iter().map(|array| Ok(converter.convert_columns(&[normal(array)?])?)).collect()
}

type Keyed<'a> = Vec<(Key<'a>, (usize, usize))>;

fn keyed<'a>(list: &ListArray, row: usize, rows: &'a Rows, source: usize) -> Keyed<'a> {
    range(list, row).map(|at| (rows.row(at), (source, at))).collect()
}

/// A list from one or two lists, whose elements `f` picks.
fn sets(call: &Call<'_>, f: impl Fn(&Keyed<'_>, &Keyed<'_>, &mut Vec<(usize, usize)>)) -> Result<ArrayRef> {
    let arrays = (0..call.arguments.len()).map(|i| call.array(i)).collect::<Result<Vec<_>>>()?;
    let lists = arrays.iter().map(list).collect::<Result<Vec<_>>>()?;
    let rows = keys(&lists.iter().map(|l| l.values()).collect::<Vec<_>>())?;
    let sources: Vec<&dyn Array> = lists.iter().map(|l| l.values().as_ref()).collect();
    assembled(&element(call)?, &sources, call.rows, |row, out| {
        if lists.iter().any(|l| l.is_null(row)) {
            return Ok(false);
        }
        let of = |index: usize| match (lists.get(index), rows.get(index)) {
            (Some(list), Some(rows)) => keyed(list, row, rows, index),
            _ => Vec::new(),
        };
        f(&of(0), &of(1), out);
        Ok(true)
    })
}

/// A list of some elements of the first argument; null where any argument is.
fn picked(call: &Call<'_>, mut f: impl FnMut(&ListArray, usize, &mut Vec<usize>) -> Result<()>) -> Result<ArrayRef> {
    let array = call.array(0)?;
    let list = list(&array)?;
    let mut found = Vec::new();
    assembled(&element(call)?, &[list.values().as_ref()], call.rows, |row, out| {
        if call.row(row).any_null() {
            return Ok(false);
        }
        found.clear();
        f(list, row, &mut found)?;
        out.extend(found.iter().map(|at| (0, *at)));
        Ok(true)
    })
}

fn array(call: &Call<'_>) -> Result<ArrayRef> {
    let arrays = (0..call.arguments.len()).map(|i| call.array(i)).collect::<Result<Vec<_>>>()?;
    let sources: Vec<&dyn Array> = arrays.iter().map(AsRef::as_ref).collect();
    assembled(&element(call)?, &sources, call.rows, |row, out| {
        out.extend((0..arrays.len()).map(|source| (source, row)));
        Ok(true)
    })
}

/// Arrays one behind the other.
pub(super) fn concat(call: &Call<'_>) -> Result<ArrayRef> {
    let arrays = (0..call.arguments.len()).map(|i| call.array(i)).collect::<Result<Vec<_>>>()?;
    let lists = arrays.iter().map(list).collect::<Result<Vec<_>>>()?;
    let sources: Vec<&dyn Array> = lists.iter().map(|l| l.values().as_ref()).collect();
    assembled(&element(call)?, &sources, call.rows, |row, out| {
        for (source, list) in lists.iter().enumerate() {
            if list.is_null(row) {
                return Ok(false);
            }
            out.extend(range(list, row).map(|at| (source, at)));
        }
        Ok(true)
    })
}

fn repeat(call: &Call<'_>) -> Result<ArrayRef> {
    let values = call.array(0)?;
    assembled(&element(call)?, &[values.as_ref()], call.rows, |row, out| {
        let Some(count) = call.row(row).opt_int(1) else { return Ok(false) };
        let count = usize::try_from(count).unwrap_or_default();
        let size = values.slice(row, 1).to_data().get_slice_memory_size().unwrap_or(1);
        if count > MOST_ELEMENTS || count.saturating_mul(size) > 64 * MOST_BYTES {
            return Err(fault(TOO_LARGE, format!("array_repeat gives at most {MOST_ELEMENTS} elements and 64 MiB")));
        }
        out.extend(std::iter::repeat_n((0, row), count));
        Ok(true)
    })
}

fn contains(call: &Call<'_>) -> Result<ArrayRef> {
    let (array, wanted) = (call.array(0)?, call.array(1)?);
    let list = list(&array)?;
    let rows = keys(&[list.values(), &wanted])?;
    let [of, wanted_keys] = rows.as_slice() else { return plan_err!("array_contains takes two arguments") };
    Ok(Arc::new(
        (0..call.rows)
            .map(|row| {
                if list.is_null(row) || wanted.is_null(row) {
                    return None;
                }
                if range(list, row).any(|at| of.row(at) == wanted_keys.row(row)) {
                    return Some(true);
                }
                (!range(list, row).any(|at| list.values().is_null(at))).then_some(false)
            })
            .collect::<BooleanArray>(),
    ))
}

fn position(call: &Call<'_>) -> Result<ArrayRef> {
    let (array, wanted) = (call.array(0)?, call.array(1)?);
    let list = list(&array)?;
    let rows = keys(&[list.values(), &wanted])?;
    let [of, wanted_keys] = rows.as_slice() else { return plan_err!("array_position takes two arguments") };
    Ok(Arc::new(
        (0..call.rows)
            .map(|row| {
                if list.is_null(row) || wanted.is_null(row) {
                    return None;
                }
                let found = range(list, row).position(|at| of.row(at) == wanted_keys.row(row));
                Some(found.and_then(|at| i64::try_from(at + 1).ok()).unwrap_or_default())
            })
            .collect::<Int64Array>(),
    ))
}

fn overlap(call: &Call<'_>) -> Result<ArrayRef> {
    let (a, b) = (call.array(0)?, call.array(1)?);
    let (a, b) = (list(&a)?, list(&b)?);
    let rows = keys(&[a.values(), b.values()])?;
    let [ka, kb] = rows.as_slice() else { return plan_err!("arrays_overlap takes two arguments") };
    Ok(Arc::new(
        (0..call.rows)
            .map(|row| {
                if a.is_null(row) || b.is_null(row) {
                    return None;
                }
                let there: HashSet<Key<'_>> =
                    range(a, row).filter(|at| !a.values().is_null(*at)).map(|at| ka.row(at)).collect();
                if range(b, row).any(|at| !b.values().is_null(at) && there.contains(&kb.row(at))) {
                    return Some(true);
                }
                let both = !range(a, row).is_empty() && !range(b, row).is_empty();
                let null = |list: &ListArray| range(list, row).any(|at| list.values().is_null(at));
                (!(both && (null(a) || null(b)))).then_some(false)
            })
            .collect::<BooleanArray>(),
    ))
}

fn extreme(call: &Call<'_>, greatest: bool) -> Result<ArrayRef> {
    let array = call.array(0)?;
    let list = list(&array)?;
    let rows = keys(&[list.values()])?;
    let Some(keys) = rows.first() else { return plan_err!("{} takes an array", call.function) };
    let null = new_null_array(list.values().data_type(), 1);
    let places: Vec<(usize, usize)> = (0..call.rows)
        .map(|row| {
            let there = range(list, row).filter(|at| !list.values().is_null(*at));
            let best = if greatest {
                there.max_by(|a, b| keys.row(*a).cmp(&keys.row(*b)))
            } else {
                there.min_by(|a, b| keys.row(*a).cmp(&keys.row(*b)))
            };
            best.map_or((1, 0), |at| (0, at))
        })
        .collect();
    if places.is_empty() {
        return Ok(new_null_array(call.result, 0));
    }
    Ok(arrow::compute::interleave(&[list.values().as_ref(), null.as_ref()], &places)?)
}

fn join(call: &Call<'_>) -> Result<ArrayRef> {
    let array = call.array(0)?;
    let list = list(&array)?;
    let mut builder = StringBuilder::new();
    for index in 0..call.rows {
        let row = call.row(index);
        if row.any_null() {
            builder.append_null();
            continue;
        }
        let items = list.value(index);
        let replacement = if row.count() > 2 { row.opt_str(2) } else { None };
        let parts: Vec<&str> = items.as_string::<i32>().iter().filter_map(|v| v.or(replacement)).collect();
        builder.append_value(parts.join(row.str(1)));
    }
    Ok(Arc::new(builder.finish()))
}

fn size(call: &Call<'_>) -> Result<ArrayRef> {
    let array = call.array(0)?;
    // The older functions count a null as -1 unless ANSI is on.
    let of_null = (!call.settings.ansi && call.function != "array_size").then_some(-1);
    let lengths: Vec<usize> = match array.data_type() {
        DataType::Map(..) => array.as_map().offsets().lengths().collect(),
        _ => list(&array)?.offsets().lengths().collect(),
    };
    Ok(Arc::new(
        lengths
            .into_iter()
            .enumerate()
            .map(|(row, length)| if array.is_null(row) { of_null } else { i32::try_from(length).ok() })
            .collect::<Int32Array>(),
    ))
}

fn remove(call: &Call<'_>) -> Result<ArrayRef> {
    let (array, wanted) = (call.array(0)?, call.array(1)?);
    let lists = list(&array)?;
    let rows = keys(&[lists.values(), &wanted])?;
    let [of, wanted_keys] = rows.as_slice() else { return plan_err!("array_remove takes two arguments") };
    picked(call, |list, row, out| {
        out.extend(range(list, row).filter(|at| of.row(*at) != wanted_keys.row(row)));
        Ok(())
    })
}

#[derive(Clone, Copy, PartialEq)]
enum Edge {
    Front,
    Back,
    At,
}

fn insert(call: &Call<'_>, edge: Edge) -> Result<ArrayRef> {
    let (array, new) = (call.array(0)?, call.array(call.arguments.len() - 1)?);
    let list = list(&array)?;
    let null = new_null_array(new.data_type(), 1);
    let sources: [&dyn Array; 3] = [list.values().as_ref(), new.as_ref(), null.as_ref()];
    assembled(&element(call)?, &sources, call.rows, |row, out| {
        if list.is_null(row) {
            return Ok(false);
        }
        let old = range(list, row).map(|at| (0, at));
        let length = range(list, row).len();
        let place = match edge {
            Edge::Front => 0,
            Edge::Back => length,
            Edge::At => {
                let Some(wanted) = call.row(row).opt_int(1) else { return Ok(false) };
                let away = usize::try_from(wanted.unsigned_abs()).unwrap_or_default();
                match wanted {
                    0 => {
                        return Err(fault(
                            "INVALID_INDEX_OF_ZERO",
                            "the index 0 is invalid; elements are counted from 1",
                        ));
                    }
                    1.. => away - 1,
                    _ if away <= length + 1 => length + 1 - away,
                    _ => {
                        // In front of the front: nulls fill the gap.
                        out.push((1, row));
                        out.extend(std::iter::repeat_n((2, 0), away - length - 1));
                        out.extend(old);
                        return Ok(true);
                    }
                }
            }
        };
        out.extend(old);
        if place > length {
            out.extend(std::iter::repeat_n((2, 0), place - length));
        }
        let at = out.len() - length.max(place) + place;
        out.insert(at, (1, row));
        Ok(true)
    })
}

fn sort(call: &Call<'_>) -> Result<ArrayRef> {
    let array = call.array(0)?;
    let rows = keys(&[list(&array)?.values()])?;
    let Some(keys) = rows.first() else { return plan_err!("{} takes an array", call.function) };
    // array_sort has nulls last, sort_array first, or last when it descends.
    let nulls_last = call.function == "array_sort";
    picked(call, |list, row, out| {
        out.extend(range(list, row));
        out.sort_by(|a, b| keys.row(*a).cmp(&keys.row(*b)));
        if call.arguments.len() > 1 && !call.row(row).bool(1) {
            out.reverse();
        }
        if nulls_last {
            out.sort_by_key(|at| list.values().is_null(*at));
        }
        Ok(())
    })
}

fn slice(call: &Call<'_>) -> Result<ArrayRef> {
    picked(call, |list, row, out| {
        let (start, length) = (call.row(row).int(1), call.row(row).int(2));
        if start == 0 {
            return Err(fault(
                "INVALID_PARAMETER_VALUE.START",
                "slice counts from 1, or from the end by negative numbers",
            ));
        }
        let Ok(length) = usize::try_from(length) else {
            return Err(fault("INVALID_PARAMETER_VALUE.LENGTH", "the length of a slice is not negative"));
        };
        let all = range(list, row);
        let away = usize::try_from(start.unsigned_abs()).unwrap_or_default();
        let from = if start > 0 {
            away - 1
        } else if away <= all.len() {
            all.len() - away
        } else {
            return Ok(());
        };
        out.extend(all.skip(from).take(length));
        Ok(())
    })
}

fn flatten(call: &Call<'_>) -> Result<ArrayRef> {
    let array = call.array(0)?;
    let outer = list(&array)?;
    let inner = list(outer.values())?;
    assembled(&element(call)?, &[inner.values().as_ref()], call.rows, |row, out| {
        if outer.is_null(row) || range(outer, row).any(|at| inner.is_null(at)) {
            return Ok(false);
        }
        out.extend(range(outer, row).flat_map(|at| range(inner, at)).map(|at| (0, at)));
        Ok(true)
    })
}

fn reverse(call: &Call<'_>) -> Result<ArrayRef> {
    if !text(call.result) {
        return picked(call, |list, row, out| {
            out.extend(range(list, row).rev());
            Ok(())
        });
    }
    let mut builder = StringBuilder::new();
    for row in (0..call.rows).map(|index| call.row(index)) {
        builder.append_option(row.opt_str(0).map(|text| text.chars().rev().collect::<String>()));
    }
    Ok(Arc::new(builder.finish()))
}

fn zip(call: &Call<'_>) -> Result<ArrayRef> {
    let arrays = (0..call.arguments.len()).map(|i| call.array(i)).collect::<Result<Vec<_>>>()?;
    let lists = arrays.iter().map(list).collect::<Result<Vec<_>>>()?;
    let there: Vec<bool> = (0..call.rows).map(|row| lists.iter().all(|l| !l.is_null(row))).collect();
    let lengths: Vec<usize> = there
        .iter()
        .enumerate()
        .map(
            |(row, there)| if *there { lists.iter().map(|l| range(l, row).len()).max().unwrap_or_default() } else { 0 },
        )
        .collect();
    let field = element(call)?;
    let DataType::Struct(fields) = field.data_type() else { return plan_err!("arrays_zip gives structs") };
    let total: usize = lengths.iter().sum();
    let mut columns = Vec::with_capacity(lists.len());
    for (list, member) in lists.iter().zip(fields) {
        let null = new_null_array(list.values().data_type(), 1);
        let mut places = Vec::with_capacity(total);
        for (row, length) in lengths.iter().enumerate() {
            let own = range(list, row);
            places.extend((0..*length).map(|i| if i < own.len() { (0, own.start + i) } else { (1, 0) }));
        }
        columns.push(if places.is_empty() {
            new_null_array(member.data_type(), 0)
        } else {
            arrow::compute::interleave(&[list.values().as_ref(), null.as_ref()], &places)?
        });
    }
    let values = StructArray::try_new_with_length(fields.clone(), columns, None, total)?;
    Ok(Arc::new(ListArray::try_new(
        Arc::clone(&field),
        OffsetBuffer::from_lengths(lengths),
        Arc::new(values),
        Some(NullBuffer::from(there)),
    )?))
}
