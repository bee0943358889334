//! Functions of two elements at a time: `array_sort` by a comparison, and `map_zip_with`.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::{DataType, Int64Type};
use arrow::row::{RowConverter, SortField};
use datafusion::common::Result;
use datafusion::logical_expr::LambdaArgument;

use super::super::cast::{cast, relabel};
use super::super::function::fault;
use super::super::map;
use super::super::order::normal;
use super::{Lambda, evaluated, list_field, small};

/// A list that is being sorted: elements in order so far, and where the next one belongs.
struct Sorting {
    row: usize,
    sorted: Vec<u32>,
    rest: std::vec::IntoIter<u32>,
    next: Option<(u32, usize, usize)>,
}

impl Sorting {
    /// Takes the next element, which may stand anywhere.
    fn advance(&mut self) {
        self.next = self.rest.next().map(|element| (element, 0, self.sorted.len()));
    }
}

impl Lambda {
    /// Puts the elements of all lists in place by bisection, a comparison of each list at a time. What compares as equal
    /// stays in order.
    pub(super) fn sorted(&self, array: &ArrayRef, lambda: &LambdaArgument, result: &DataType) -> Result<ArrayRef> {
        let Some(list) = array.as_list_opt::<i32>() else { return self.wrong() };
        let mut lists: Vec<Sorting> = (0..list.len())
            .map(|row| {
                let own = if list.is_null(row) { 0..0 } else { map::ends(list.offsets(), row) };
                let elements: Vec<u32> = own.map(small).collect();
                Sorting { row, sorted: Vec::with_capacity(elements.len()), rest: elements.into_iter(), next: None }
            })
            .collect();
        lists.iter_mut().for_each(Sorting::advance);
        loop {
            let (mut left, mut right, mut rows) = (Vec::new(), Vec::new(), Vec::new());
            for sorting in &mut lists {
                // What has its place goes there.
                while let Some((element, from, to)) = sorting.next {
                    if from < to {
                        break;
                    }
                    sorting.sorted.insert(from, element);
                    sorting.advance();
                }
                if let Some((element, from, to)) = sorting.next {
                    left.push(element);
                    right.push(sorting.sorted.get(usize::midpoint(from, to)).copied().unwrap_or_default());
                    rows.push(small(sorting.row));
                }
            }
            if rows.is_empty() {
                break;
            }
            let left = take(list.values(), &UInt32Array::from(left), None)?;
            let right = take(list.values(), &UInt32Array::from(right), None)?;
            let made = evaluated(lambda, &[&left, &right], &UInt32Array::from(rows))?;
            let made = cast(&made, &DataType::Int64, self.misfit(), &self.settings.zone)?;
            let compared = made.as_primitive::<Int64Type>();
            let waiting = lists.iter_mut().filter_map(|sorting| sorting.next.as_mut());
            for ((_, from, to), order) in waiting.zip(compared.iter()) {
                let middle = usize::midpoint(*from, *to);
                match order {
                    None => return Err(fault("COMPARATOR_RETURNS_NULL", "the comparison of array_sort gives null")),
                    Some(order) if order < 0 => *to = middle,
                    Some(_) => *from = middle + 1,
                }
            }
        }
        let places: Vec<u32> = lists.into_iter().flat_map(|sorting| sorting.sorted).collect();
        let field = list_field(result)?;
        let lengths =
            (0..list.len()).map(|row| if list.is_null(row) { 0 } else { map::ends(list.offsets(), row).len() });
        let offsets = arrow::buffer::OffsetBuffer::from_lengths(lengths);
        let values = relabel(&take(list.values(), &UInt32Array::from(places), None)?, field.data_type())?;
        Ok(Arc::new(ListArray::try_new(field, offsets, values, list.nulls().cloned())?))
    }

    /// Keys in the order of the first map, then those that the second one has alone.
    pub(super) fn map_zip_with(
        &self,
        first: &ArrayRef,
        second: &ArrayRef,
        lambda: &LambdaArgument,
        result: &DataType,
    ) -> Result<ArrayRef> {
        let (Some(a), Some(b)) = (first.as_map_opt(), second.as_map_opt()) else { return self.wrong() };
        let converter = RowConverter::new(vec![SortField::new(a.keys().data_type().clone())])?;
        let more = cast(b.keys(), a.keys().data_type(), self.misfit(), &self.settings.zone)?;
        let of_a = converter.convert_columns(&[normal(a.keys())?])?;
        let of_b = converter.convert_columns(&[normal(&more)?])?;
        let (mut places, mut left, mut right, mut rows) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut lengths, mut there) = (Vec::with_capacity(a.len()), Vec::with_capacity(a.len()));
        for row in 0..a.len() {
            let before = places.len();
            let present = !a.is_null(row) && !b.is_null(row);
            there.push(present);
            if present {
                let in_b = map::ends(b.offsets(), row);
                let mut by_key: HashMap<_, usize> = in_b.clone().map(|at| (of_b.row(at), at)).collect();
                for at in map::ends(a.offsets(), row) {
                    let other = by_key.remove(&of_a.row(at));
                    places.push((0, at));
                    left.push(Some(small(at)));
                    right.push(other.map(small));
                }
                for at in in_b.filter(|at| by_key.contains_key(&of_b.row(*at))) {
                    places.push((1, at));
                    left.push(None);
                    right.push(Some(small(at)));
                }
            }
            lengths.push(places.len() - before);
            rows.extend(std::iter::repeat_n(small(row), places.len() - before));
        }
        let rows = UInt32Array::from(rows);
        let sources: [&dyn Array; 2] = [a.keys().as_ref(), more.as_ref()];
        let found = arrow::compute::interleave(&sources, &places)?;
        let left = take(a.values(), &UInt32Array::from(left), None)?;
        let right = take(b.values(), &UInt32Array::from(right), None)?;
        let made = evaluated(lambda, &[&found, &left, &right], &rows)?;
        let mut next = 0;
        map::assembled(result, &[found], &[made], a.len(), |row, out| {
            let length = lengths.get(row).copied().unwrap_or_default();
            out.extend((next..next + length).map(|at| ((0, at), (0, at))));
            next += length;
            Ok(there.get(row).copied().unwrap_or_default())
        })
    }
}
