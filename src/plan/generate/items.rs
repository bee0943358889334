//! The items of a value: a list of structs, one a row that is made of it.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int32Array, ListArray, StructArray, UInt64Array, make_array};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, FieldRef, Fields};
use datafusion::common::{Result, exec_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility,
};

use crate::plan::functions::spelled;

/// What a generator makes of a value, as a function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Items {
    name: String,
    /// With the place of each item.
    places: bool,
    /// A value without items has one that is null.
    outer: bool,
    /// The members of the items, and not the items.
    members: bool,
    signature: Signature,
}

impl Items {
    /// The function of a generator; `outer` comes on top of what the name says.
    pub(super) fn new(name: &str, outer: bool) -> Items {
        let name = name.to_lowercase();
        let (base, outer) = match name.strip_suffix("_outer") {
            Some(base) => (base, true),
            None => (name.as_str(), outer),
        };
        Items {
            places: base == "posexplode",
            members: base == "inline",
            outer,
            name: if outer { format!("items of {base}_outer") } else { format!("items of {base}") },
            signature: Signature::any(1, Volatility::Immutable),
        }
    }

    /// The columns that a value of this type yields.
    pub(super) fn columns(&self, from: &DataType) -> Result<Fields> {
        let nullable = |field: &Field| Arc::new(field.clone().with_nullable(true));
        let mut fields: Vec<FieldRef> = Vec::new();
        if self.places {
            fields.push(Arc::new(Field::new("pos", DataType::Int32, true)));
        }
        match (from, self.members) {
            (DataType::List(item), true) => match item.data_type() {
                DataType::Struct(members) => fields.extend(members.iter().map(|f| nullable(f))),
                other => {
                    return plan_err!("inline takes an array of structs, and this is an array of {}", spelled(other));
                }
            },
            (DataType::List(item), false) => fields.push(nullable(&item.as_ref().clone().with_name("col"))),
            (DataType::Map(entries, _), false) => match entries.data_type() {
                DataType::Struct(pair) => {
                    for (field, name) in pair.iter().zip(["key", "value"]) {
                        fields.push(nullable(&field.as_ref().clone().with_name(name)));
                    }
                }
                other => return plan_err!("a map of {}", spelled(other)),
            },
            (DataType::Null, false) => fields.push(Arc::new(Field::new("col", DataType::Null, true))),
            (other, true) => return plan_err!("inline takes an array of structs, and this is {}", spelled(other)),
            (other, false) => return plan_err!("explode takes an array or a map, and this is {}", spelled(other)),
        }
        Ok(fields.into())
    }

    fn list(&self, from: &DataType) -> Result<DataType> {
        Ok(DataType::List(Arc::new(Field::new("element", DataType::Struct(self.columns(from)?), true))))
    }

    fn items(&self, value: &ArrayRef) -> Result<ArrayRef> {
        let columns = self.columns(value.data_type())?;
        let (offsets, children, present): (Vec<i32>, Vec<ArrayRef>, Option<NullBuffer>) = match value.data_type() {
            DataType::List(_) => {
                let list = value.as_list::<i32>();
                let values = list.values();
                match values.as_struct_opt() {
                    Some(items) if self.members => {
                        (list.value_offsets().to_vec(), items.columns().to_vec(), items.nulls().cloned())
                    }
                    _ => (list.value_offsets().to_vec(), vec![Arc::clone(values)], None),
                }
            }
            DataType::Map(..) => {
                let map = value.as_map();
                (map.value_offsets().to_vec(), vec![Arc::clone(map.keys()), Arc::clone(map.values())], None)
            }
            _ => {
                (vec![0; value.len() + 1], vec![make_array(arrow::array::ArrayData::new_empty(&DataType::Null))], None)
            }
        };
        let mut chosen: Vec<Option<u64>> = Vec::new();
        let mut places: Vec<Option<i32>> = Vec::new();
        let mut lengths: Vec<usize> = Vec::with_capacity(value.len());
        for (row, bounds) in offsets.windows(2).enumerate() {
            let [from, to] = bounds else { continue };
            let range = if value.is_null(row) { 0..0 } else { *from..*to };
            let before = chosen.len();
            for (place, item) in (0..).zip(range) {
                let item = u64::try_from(item).unwrap_or_default();
                let there = present.as_ref().is_none_or(|p| usize::try_from(item).is_ok_and(|i| p.is_valid(i)));
                chosen.push(there.then_some(item));
                places.push(Some(place));
            }
            if self.outer && chosen.len() == before {
                chosen.push(None);
                places.push(None);
            }
            lengths.push(chosen.len() - before);
        }
        if i32::try_from(chosen.len()).is_err() {
            return exec_err!("these are more items than one batch can hold");
        }
        let indices = UInt64Array::from(chosen);
        let mut arrays: Vec<ArrayRef> = Vec::with_capacity(columns.len());
        if self.places {
            arrays.push(Arc::new(Int32Array::from(places)));
        }
        for child in &children {
            arrays.push(match child.data_type() {
                DataType::Null => arrow::array::new_null_array(&DataType::Null, indices.len()),
                _ => take(child, &indices, None)?,
            });
        }
        let items = StructArray::try_new_with_length(columns, arrays, None, indices.len())?;
        let field = Arc::new(Field::new("element", items.data_type().clone(), true));
        Ok(Arc::new(ListArray::try_new(field, OffsetBuffer::from_lengths(lengths), Arc::new(items), None)?))
    }
}

impl ScalarUDFImpl for Items {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [from] => self.list(from),
            _ => plan_err!("{} takes one argument", self.name),
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let types: Vec<DataType> = args.arg_fields.iter().map(|f| f.data_type().clone()).collect();
        Ok(Arc::new(Field::new(&self.name, self.return_type(&types)?, true)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let rows = args.number_rows;
        let [value] = <[ColumnarValue; 1]>::try_from(args.args)
            .map_err(|_| datafusion::common::DataFusionError::Execution("one argument".to_owned()))?;
        Ok(ColumnarValue::Array(self.items(&value.into_array(rows)?)?))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]
    use super::*;
    use arrow::datatypes::Int32Type;
    use arrow::util::display::{ArrayFormatter, FormatOptions};

    fn shown(items: &Items, value: &ArrayRef) -> Vec<String> {
        let list = items.items(value).unwrap();
        let options = FormatOptions::default().with_null("null");
        let format = ArrayFormatter::try_new(&list, &options).unwrap();
        (0..list.len()).map(|i| format.value(i).to_string()).collect()
    }

    #[test]
    fn rows_have_the_items_of_their_values_also_in_a_slice() {
        let list: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>([
            Some(vec![Some(9)]),
            Some(vec![Some(1), None]),
            None,
            Some(vec![]),
            Some(vec![Some(3)]),
        ]));
        let list = list.slice(1, 4);
        let of = |name: &str, outer| shown(&Items::new(name, outer), &list);
        assert_eq!(of("explode", false), ["[{col: 1}, {col: null}]", "[]", "[]", "[{col: 3}]"]);
        assert_eq!(of("EXPLODE_outer", false), of("explode", true));
        assert_eq!(of("explode", true)[1..3], ["[{col: null}]", "[{col: null}]"]);
        assert_eq!(of("posexplode", false)[0], "[{pos: 0, col: 1}, {pos: 1, col: null}]");
        assert_eq!(of("posexplode_outer", false)[1], "[{pos: null, col: null}]");
    }

    #[test]
    fn a_null_struct_has_null_members_whatever_lies_beneath() {
        let field = Arc::new(Field::new("a", DataType::Int32, true));
        let inner = StructArray::new(
            vec![field].into(),
            vec![Arc::new(Int32Array::from(vec![1, 2])) as ArrayRef],
            Some(NullBuffer::from(vec![true, false])),
        );
        let item = Arc::new(Field::new("element", inner.data_type().clone(), true));
        let list: ArrayRef = Arc::new(ListArray::new(item, OffsetBuffer::from_lengths([2]), Arc::new(inner), None));
        assert_eq!(shown(&Items::new("inline", false), &list), ["[{a: 1}, {a: null}]"]);
        assert_eq!(shown(&Items::new("explode", false), &list), ["[{col: {a: 1}}, {col: null}]"]);
    }

    #[test]
    fn what_has_no_items_is_refused() {
        let of = |name: &str, from: &DataType| Items::new(name, false).columns(from).unwrap_err().to_string();
        assert!(of("explode", &DataType::Int32).contains("explode takes an array or a map, and this is int"));
        let list = DataType::List(Arc::new(Field::new("element", DataType::Int32, true)));
        assert!(of("inline", &list).contains("inline takes an array of structs, and this is an array of int"));
    }
}
