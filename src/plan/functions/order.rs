//! The order of values as Spark has it: nulls apart, NaN above all numbers, one zero.

use std::cmp::Ordering;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, DynComparator, make_comparator};
use arrow::compute::SortOptions;
use arrow::datatypes::{DataType, Float32Type, Float64Type};
use datafusion::common::Result;

use super::cast::relabel;

/// The array with one zero and one NaN, at every depth.
pub(super) fn normal(array: &ArrayRef) -> Result<ArrayRef> {
    Ok(match array.data_type() {
        DataType::Float32 => std::sync::Arc::new(
            array
                .as_primitive::<Float32Type>()
                .unary::<_, Float32Type>(|v| if v.is_nan() { f32::NAN } else { v + 0.0 }),
        ),
        DataType::Float64 => std::sync::Arc::new(
            array
                .as_primitive::<Float64Type>()
                .unary::<_, Float64Type>(|v| if v.is_nan() { f64::NAN } else { v + 0.0 }),
        ),
        DataType::List(field) => {
            let list = array.as_list::<i32>();
            let values = normal(list.values())?;
            std::sync::Arc::new(arrow::array::ListArray::try_new(
                std::sync::Arc::clone(field),
                list.offsets().clone(),
                values,
                list.nulls().cloned(),
            )?)
        }
        DataType::Struct(fields) => {
            let given = array.as_struct();
            let columns = given.columns().iter().map(normal).collect::<Result<Vec<_>>>()?;
            std::sync::Arc::new(arrow::array::StructArray::try_new_with_length(
                fields.clone(),
                columns,
                given.nulls().cloned(),
                given.len(),
            )?)
        }
        _ => ArrayRef::clone(array),
    })
}

/// Compares a value of one array with one of another; nulls come first.
pub(super) fn comparator(left: &ArrayRef, right: &ArrayRef) -> Result<DynComparator> {
    let (left, right) = (normal(left)?, relabel(&normal(right)?, left.data_type())?);
    Ok(make_comparator(&left, &right, SortOptions { descending: false, nulls_first: true })?)
}

/// For each row, whether `next` takes the place of `best`: it is not null, and greater or less, or `best` is null.
pub(super) fn compare(next: &ArrayRef, best: &ArrayRef, greater: bool) -> Result<BooleanArray> {
    let order = comparator(next, best)?;
    let wanted = if greater { Ordering::Greater } else { Ordering::Less };
    Ok((0..next.len())
        .map(|row| Some(!next.is_null(row) && (best.is_null(row) || order(row, row) == wanted)))
        .collect())
}
