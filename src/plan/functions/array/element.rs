//! One element of an array or a map.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, new_null_array};
use datafusion::common::{Result, plan_err};

use super::{keys, list, range};
use crate::plan::functions::cast::relabel;
use crate::plan::functions::function::{Call, fault};

/// `element_at`, its forgiving forms, and `a[i]`: arrays count from 1 (`get` and `a[i]` from 0), maps have keys.
pub(super) fn at(call: &Call<'_>) -> Result<ArrayRef> {
    let (array, wanted) = (call.array(0)?, call.array(1)?);
    let null = new_null_array(call.result, 1);
    let mut places = Vec::with_capacity(call.rows);
    let values: ArrayRef;
    if let Some(map) = array.as_map_opt() {
        let rows = keys(&[map.keys(), &wanted])?;
        let [of, wanted_keys] = rows.as_slice() else { return plan_err!("element_at takes two arguments") };
        values = Arc::clone(map.values());
        for row in 0..call.rows {
            if map.is_null(row) || wanted.is_null(row) {
                places.push((1, 0));
                continue;
            }
            let ends = map.value_offsets();
            let end = |i: usize| ends.get(i).and_then(|o| usize::try_from(*o).ok()).unwrap_or_default();
            let found = (end(row)..end(row + 1)).find(|at| of.row(*at) == wanted_keys.row(row));
            places.push(found.map_or((1, 0), |at| (0, at)));
        }
    } else {
        let list = list(&array)?;
        values = Arc::clone(list.values());
        let from_zero = matches!(call.function, "get" | "subscript");
        for index in 0..call.rows {
            let row = call.row(index);
            if row.any_null() {
                places.push((1, 0));
                continue;
            }
            let wanted = row.int(1);
            let all = range(list, index);
            let away = usize::try_from(wanted.unsigned_abs()).unwrap_or_default();
            let found = match wanted {
                0.. if from_zero => (away < all.len()).then_some(all.start + away),
                _ if from_zero => None,
                0 => {
                    return Err(fault("INVALID_INDEX_OF_ZERO", "the index 0 is invalid; elements are counted from 1"));
                }
                1.. => (away <= all.len()).then(|| all.start + away - 1),
                _ => (away <= all.len()).then(|| all.end - away),
            };
            let lenient = !call.settings.ansi || matches!(call.function, "get" | "try_element_at");
            match found {
                Some(at) => places.push((0, at)),
                None if lenient => places.push((1, 0)),
                None => {
                    return Err(fault(
                        "INVALID_ARRAY_INDEX",
                        format!(
                            "the array has {} elements, there is no {wanted}; get and try_element_at give null",
                            all.len()
                        ),
                    ));
                }
            }
        }
    }
    if places.is_empty() {
        return Ok(new_null_array(call.result, 0));
    }
    let values = relabel(&values, call.result)?;
    Ok(arrow::compute::interleave(&[values.as_ref(), null.as_ref()], &places)?)
}
