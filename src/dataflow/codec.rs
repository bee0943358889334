//! Columns as packed byte rows, and back: the Arrow row format, whose byte order is SQL's order with nulls first.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, Float16Array, Float32Array, Float64Array, ListArray, MapArray, StructArray, UInt32Array,
};
use arrow::compute::{SortColumn, SortOptions, concat, lexsort_to_indices, take};
use arrow::datatypes::{DataType, Field, Fields, Float16Type, Float32Type, Float64Type, SchemaRef};
use arrow::error::ArrowError;
use arrow::row::{RowConverter, Rows, SortField};
use silverflow_operators::Row;

pub use crate::plan::varies;

/// Raised whenever the bytes of a packed row mean something else than before, for whatever keeps them longer than a run.
pub const ROW_FORMAT: u32 = 1;

/// Encodes rows of one list of column types.
pub struct Codec {
    converter: RowConverter,
}

impl Codec {
    /// A codec for columns of `types`.
    pub fn new<'a>(types: impl IntoIterator<Item = &'a DataType>) -> Result<Self, ArrowError> {
        let options = SortOptions { descending: false, nulls_first: true };
        let fields = types.into_iter().map(|t| SortField::new_with_options(t.clone(), options)).collect();
        Ok(Codec { converter: RowConverter::new(fields)? })
    }

    /// A codec for the columns of `schema`.
    pub fn of(schema: &SchemaRef) -> Result<Self, ArrowError> {
        Codec::new(schema.fields().iter().map(|f| f.data_type()))
    }

    /// Encodes all rows, each for itself.
    pub fn encode(&self, columns: &[ArrayRef]) -> Result<Vec<Row>, ArrowError> {
        Ok(self.encode_all(columns)?.iter().map(|row| Row::from(row.data())).collect())
    }

    /// Encodes all rows in one piece.
    pub fn encode_all(&self, columns: &[ArrayRef]) -> Result<Rows, ArrowError> {
        self.converter.convert_columns(columns)
    }

    /// Decodes rows that this codec, or one of the same types, has encoded.
    pub fn decode<'a>(&self, rows: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<ArrayRef>, ArrowError> {
        let parser = self.converter.parser();
        self.converter.convert_rows(rows.into_iter().map(|bytes| parser.parse(bytes)))
    }
}

/// Columns in the form in which values are compared: one zero and one NaN, map entries by key. Types stay.
pub fn normalise(columns: &[ArrayRef]) -> Result<Vec<ArrayRef>, ArrowError> {
    columns.iter().map(normal).collect()
}

fn normal(column: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    if !varies(column.data_type()) {
        return Ok(Arc::clone(column));
    }
    Ok(match column.data_type() {
        DataType::Float16 => {
            let values: Float16Array = column
                .as_primitive::<Float16Type>()
                .unary(|v| if f32::from(v) == 0.0 { Default::default() } else { v });
            Arc::new(values)
        }
        DataType::Float32 => {
            let values: Float32Array = column.as_primitive::<Float32Type>().unary(|v| {
                if v == 0.0 {
                    0.0
                } else if v.is_nan() {
                    f32::NAN
                } else {
                    v
                }
            });
            Arc::new(values)
        }
        DataType::Float64 => {
            let values: Float64Array = column.as_primitive::<Float64Type>().unary(|v| {
                if v == 0.0 {
                    0.0
                } else if v.is_nan() {
                    f64::NAN
                } else {
                    v
                }
            });
            Arc::new(values)
        }
        DataType::Struct(fields) => {
            let parts = column.as_struct();
            let columns = parts.columns().iter().map(normal).collect::<Result<Vec<_>, _>>()?;
            if fields.is_empty() {
                return Ok(Arc::clone(column));
            }
            Arc::new(StructArray::try_new(fields.clone(), columns, parts.nulls().cloned())?)
        }
        DataType::List(item) => {
            let list = column.as_list::<i32>();
            let values = normal(list.values())?;
            Arc::new(ListArray::try_new(Arc::clone(item), list.offsets().clone(), values, list.nulls().cloned())?)
        }
        DataType::Map(entries, sorted) => Arc::new(sort_entries(column.as_map(), entries, *sorted)?),
        _ => Arc::clone(column),
    })
}

fn sort_entries(map: &MapArray, entries: &Arc<Field>, sorted: bool) -> Result<MapArray, ArrowError> {
    let keys = normal(map.keys())?;
    let values = normal(map.values())?;
    let mut order: Vec<u32> = Vec::with_capacity(keys.len());
    for window in map.offsets().windows(2) {
        let (from, to) = match window {
            [a, b] => (usize::try_from(*a).unwrap_or(0), usize::try_from(*b).unwrap_or(0)),
            _ => continue,
        };
        let part = keys.slice(from, to.saturating_sub(from));
        let ranks = lexsort_to_indices(&[SortColumn { values: part, options: None }], None)?;
        let base = u32::try_from(from).unwrap_or(0);
        order.extend(ranks.values().iter().map(|rank| base + rank));
    }
    let start = map.offsets().first().copied().unwrap_or(0);
    let offsets = arrow::buffer::OffsetBuffer::new(map.offsets().iter().map(|o| o - start).collect());
    let order = UInt32Array::from(order);
    let fields: Fields = match entries.data_type() {
        DataType::Struct(fields) => fields.clone(),
        other => return Err(ArrowError::SchemaError(format!("entries of a map are a struct, not {other}"))),
    };
    let pairs = StructArray::try_new(fields, vec![take(&keys, &order, None)?, take(&values, &order, None)?], None)?;
    MapArray::try_new(Arc::clone(entries), offsets, pairs, map.nulls().cloned(), sorted)
}

/// Values of ignore-null columns as separate cells, so that a merge picks cell by cell without decoding: for each leaf a
/// 4-byte little-endian length and the leaf's encoding; length 0 is a null that keeps the value before it.
pub struct Cells {
    leaves: Vec<Leaf>,
    fields: Fields,
}

struct Leaf {
    /// Column, then members of nested structs.
    path: Vec<usize>,
    codec: Codec,
    /// A null keeps the value before it.
    fills: bool,
    data_type: DataType,
}

impl Cells {
    /// Cells for rows of `schema`; the columns in `fill` are taken apart to their leaves.
    pub fn new(schema: &SchemaRef, fill: &[usize]) -> Result<Self, ArrowError> {
        let mut leaves = Vec::new();
        for (index, field) in schema.fields().iter().enumerate() {
            let fills = fill.contains(&index);
            add_leaves(field.data_type(), &mut vec![index], fills, &mut leaves)?;
        }
        Ok(Cells { leaves, fields: schema.fields().clone() })
    }

    /// Encodes rows.
    pub fn encode(&self, columns: &[ArrayRef]) -> Result<Vec<Row>, ArrowError> {
        let rows = columns.first().map_or(0, |c| c.len());
        let mut out: Vec<Vec<u8>> = vec![Vec::new(); rows];
        for leaf in &self.leaves {
            let values = leaf.values(columns)?;
            let encoded = leaf.codec.converter.convert_columns(std::slice::from_ref(&values))?;
            for ((index, out), row) in out.iter_mut().enumerate().zip(encoded.iter()) {
                if leaf.fills && values.is_null(index) {
                    out.extend_from_slice(&0u32.to_le_bytes());
                } else {
                    let bytes = row.data();
                    out.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes());
                    out.extend_from_slice(bytes);
                }
            }
        }
        Ok(out.into_iter().map(Row::from).collect())
    }

    /// The row `own` after `before`: a cell without a value keeps the one before it.
    pub fn merge(before: Option<&[u8]>, own: &[u8]) -> Row {
        let Some(mut before) = before else { return Row::from(own) };
        let mut own = own;
        let mut out = Vec::with_capacity(before.len().max(own.len()));
        while let Some(cell) = next_cell(&mut own) {
            let earlier = next_cell(&mut before).unwrap_or_default();
            let kept = if cell.is_empty() { earlier } else { cell };
            out.extend_from_slice(&u32::try_from(kept.len()).unwrap_or(u32::MAX).to_le_bytes());
            out.extend_from_slice(kept);
        }
        Row::from(out)
    }

    /// Decodes rows to columns.
    pub fn decode(&self, rows: &[&[u8]]) -> Result<Vec<ArrayRef>, ArrowError> {
        let mut rest: Vec<&[u8]> = rows.to_vec();
        let mut values = Vec::with_capacity(self.leaves.len());
        for leaf in &self.leaves {
            let null = arrow::array::new_null_array(&leaf.data_type, 1);
            let null = leaf.codec.encode(&[null])?;
            let null = null.first().map(Row::as_bytes).unwrap_or_default();
            let cells: Vec<&[u8]> = rest
                .iter_mut()
                .map(|row| match next_cell(row) {
                    Some([]) | None => null,
                    Some(cell) => cell,
                })
                .collect();
            let mut columns = leaf.codec.decode(cells)?;
            values.push((
                leaf,
                columns.pop().unwrap_or_else(|| arrow::array::new_null_array(&leaf.data_type, rows.len())),
            ));
        }
        self.fields.iter().enumerate().map(|(index, field)| assemble(field.data_type(), &[index], &values)).collect()
    }
}

fn add_leaves(data_type: &DataType, path: &mut Vec<usize>, fills: bool, out: &mut Vec<Leaf>) -> Result<(), ArrowError> {
    match data_type {
        DataType::Struct(fields) if fills && !fields.is_empty() => {
            for (index, field) in fields.iter().enumerate() {
                path.push(index);
                add_leaves(field.data_type(), path, fills, out)?;
                path.pop();
            }
        }
        other => out.push(Leaf { path: path.clone(), codec: Codec::new([other])?, fills, data_type: other.clone() }),
    }
    Ok(())
}

impl Leaf {
    fn values(&self, columns: &[ArrayRef]) -> Result<ArrayRef, ArrowError> {
        let missing = || ArrowError::InvalidArgumentError("a leaf that is not in the row".to_owned());
        let (first, rest) = self.path.split_first().ok_or_else(missing)?;
        let mut array = Arc::clone(columns.get(*first).ok_or_else(missing)?);
        for member in rest {
            let parts = array.as_struct_opt().ok_or_else(missing)?;
            let child = parts.columns().get(*member).ok_or_else(missing)?;
            // A null struct has null members.
            array = match parts.nulls() {
                Some(nulls) => {
                    let mask = arrow::array::BooleanArray::new(!nulls.inner(), None);
                    arrow::compute::nullif(child, &mask)?
                }
                None => Arc::clone(child),
            };
        }
        Ok(array)
    }
}

/// A struct whose leaves are all null is null.
fn assemble(data_type: &DataType, path: &[usize], leaves: &[(&Leaf, ArrayRef)]) -> Result<ArrayRef, ArrowError> {
    if let Some((_, array)) = leaves.iter().find(|(leaf, _)| leaf.path == path) {
        return Ok(Arc::clone(array));
    }
    let DataType::Struct(fields) = data_type else {
        return Err(ArrowError::InvalidArgumentError("a column without leaves".to_owned()));
    };
    let mut columns = Vec::with_capacity(fields.len());
    for (index, field) in fields.iter().enumerate() {
        let mut inner = path.to_vec();
        inner.push(index);
        columns.push(assemble(field.data_type(), &inner, leaves)?);
    }
    let length = columns.first().map_or(0, |c| c.len());
    let valid: arrow::buffer::NullBuffer = (0..length).map(|i| columns.iter().any(|c| c.is_valid(i))).collect();
    Ok(Arc::new(StructArray::try_new(fields.clone(), columns, Some(valid))?))
}

fn next_cell<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    let (cell, rest) = rest.split_at_checked(length)?;
    *bytes = rest;
    Some(cell)
}

/// Joins arrays of one type; a single one is not copied.
pub fn join_arrays(parts: &[ArrayRef]) -> Result<ArrayRef, ArrowError> {
    match parts {
        [only] => Ok(Arc::clone(only)),
        many => concat(&many.iter().map(|a| a.as_ref()).collect::<Vec<_>>()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use arrow::array::{BooleanArray, Int64Array, StringArray};
    use arrow::datatypes::Schema;

    #[test]
    fn zeros_and_nans_are_one_each() {
        let column: ArrayRef =
            Arc::new(Float64Array::from(vec![0.0, -0.0, f64::NAN, f64::from_bits(0xfff8_0000_0000_0001), 1.0]));
        let codec = Codec::new([&DataType::Float64]).unwrap();
        let rows = codec.encode(&normalise(&[Arc::clone(&column)]).unwrap()).unwrap();
        assert_eq!(rows[0], rows[1]);
        assert_eq!(rows[2], rows[3]);
        assert!(rows[0] < rows[4]);
        let kept = codec.encode(&[column]).unwrap();
        assert_ne!(kept[0], kept[1]);
    }

    /// Checkpoints hold such bytes. Where this fails, [`ROW_FORMAT`] has to be raised.
    #[test]
    fn packed_rows_are_what_checkpoints_of_this_format_hold() {
        let inner: ArrayRef = Arc::new(Int64Array::from(vec![Some(7)]));
        let fields = Fields::from(vec![Field::new("x", DataType::Int64, true)]);
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from(vec![Some(-2)])),
            Arc::new(Int64Array::from(vec![None])),
            Arc::new(StringArray::from(vec!["a longer text of more than thirty-two bytes"])),
            Arc::new(StringArray::from(vec![""])),
            Arc::new(Float64Array::from(vec![-1.5])),
            Arc::new(BooleanArray::from(vec![true])),
            Arc::new(StructArray::try_new(fields, vec![inner], None).unwrap()),
            Arc::new(ListArray::from_iter_primitive::<arrow::datatypes::Int32Type, _, _>([Some([Some(1), None])])),
        ];
        let codec = Codec::new(columns.iter().map(|c| c.data_type())).unwrap();
        let bytes = codec.encode(&columns).unwrap().remove(0).to_vec();
        let cells = Cells::new(
            &Arc::new(Schema::new(
                columns
                    .iter()
                    .enumerate()
                    .map(|(i, c)| Field::new(i.to_string(), c.data_type().clone(), true))
                    .collect::<Vec<_>>(),
            )),
            &[1, 6],
        )
        .unwrap();
        let cells = cells.encode(&columns).unwrap().remove(0).to_vec();
        let sums = [bytes, cells].map(|bytes| xxhash_rust::xxh3::xxh3_64(&bytes));
        assert_eq!((ROW_FORMAT, sums), (1, [8_974_737_741_896_007_709, 17_048_829_615_508_677_029]));
    }

    #[test]
    fn maps_with_the_same_entries_are_equal() {
        use arrow::array::{Int32Builder, MapBuilder, StringBuilder};
        let mut builder = MapBuilder::new(None, StringBuilder::new(), Int32Builder::new());
        for entries in [[("a", 1), ("b", 2)], [("b", 2), ("a", 1)], [("a", 2), ("b", 1)]] {
            for (key, value) in entries {
                builder.keys().append_value(key);
                builder.values().append_value(value);
            }
            builder.append(true).unwrap();
        }
        let map: ArrayRef = Arc::new(builder.finish());
        let codec = Codec::new([map.data_type()]).unwrap();
        for column in [map.clone(), map.slice(0, 3)] {
            let rows = codec.encode(&normalise(&[column]).unwrap()).unwrap();
            assert_eq!(rows[0], rows[1]);
            assert_ne!(rows[0], rows[2]);
        }
        let tail = codec.encode(&normalise(&[map.slice(1, 2)]).unwrap()).unwrap();
        assert_eq!(tail[0], codec.encode(&normalise(&[map]).unwrap()).unwrap()[0]);
    }

    #[test]
    fn a_null_cell_keeps_the_value_before_it_leaf_by_leaf() {
        let inner = Fields::from(vec![Field::new("x", DataType::Int64, true), Field::new("y", DataType::Utf8, true)]);
        let schema: SchemaRef = Arc::new(Schema::new(vec![
            Field::new("id", DataType::Int64, true),
            Field::new("s", DataType::Struct(inner.clone()), true),
            Field::new("whole", DataType::Struct(inner.clone()), true),
        ]));
        let pair = |x: Vec<Option<i64>>, y: Vec<Option<&str>>| -> ArrayRef {
            Arc::new(
                StructArray::try_new(
                    inner.clone(),
                    vec![Arc::new(Int64Array::from(x)), Arc::new(StringArray::from(y))],
                    None,
                )
                .unwrap(),
            )
        };
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from(vec![1, 1])),
            pair(vec![Some(5), None], vec![None, Some("b")]),
            pair(vec![Some(5), None], vec![None, Some("b")]),
        ];
        let cells = Cells::new(&schema, &[1]).unwrap();
        let rows = cells.encode(&columns).unwrap();
        let merged = Cells::merge(Some(&rows[0]), &rows[1]);
        let decoded = cells.decode(&[&merged, &rows[0]]).unwrap();
        let expected = pair(vec![Some(5), Some(5)], vec![Some("b"), None]);
        assert_eq!(decoded[1].as_struct().columns(), expected.as_struct().columns());
        let whole = pair(vec![None, Some(5)], vec![Some("b"), None]);
        assert_eq!(decoded[2].as_struct().columns(), whole.as_struct().columns());
    }
}
