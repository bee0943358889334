//! Arrow batches on the edges between stateless operators.

use std::fmt;
use std::io::Cursor;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Int64Array, RecordBatch};
use arrow::compute::{filter_record_batch, take_record_batch};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use silverflow_operators::{Epoch, HasEpoch};
use timely::dataflow::Stream;

/// Rows that come into or leave a dataset in one epoch.
#[derive(Clone, Debug)]
pub struct Batch {
    /// When the change happens.
    pub epoch: Epoch,
    /// When the rows arrived from outside; differs from `epoch` for rows that come from a replay point's table. Known up
    /// to the replay point, not behind a stateful operator.
    pub arrived: Epoch,
    /// The rows.
    pub rows: RecordBatch,
    /// By how much the multiplicity of each row changes; absent where each is added once.
    pub diffs: Option<Arc<[i64]>>,
    /// Rows come in pairs, each as it was and as it is, of which only the clock has changed the meaning.
    pub pairs: bool,
}

/// A stream of batches.
pub type Batches<'s> = Stream<'s, Epoch, Vec<Batch>>;

/// A batch as it goes to another process: its rows in Arrow's stream format.
#[derive(Serialize, Deserialize)]
struct Packed {
    epoch: Epoch,
    arrived: Epoch,
    pairs: bool,
    diffs: Option<Vec<i64>>,
    rows: Blob,
}

/// Bytes, as one string.
struct Blob(Vec<u8>);

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

struct BlobVisitor;

impl Visitor<'_> for BlobVisitor {
    type Value = Blob;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Blob, E> {
        Ok(Blob(bytes.to_vec()))
    }

    fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> Result<Blob, E> {
        Ok(Blob(bytes))
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Blob, D::Error> {
        deserializer.deserialize_byte_buf(BlobVisitor)
    }
}

impl Serialize for Batch {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rows = StreamWriter::try_new(Vec::new(), self.rows.schema_ref()).and_then(|mut writer| {
            writer.write(&self.rows)?;
            writer.into_inner()
        });
        let rows = Blob(rows.map_err(serde::ser::Error::custom)?);
        let diffs = self.diffs.as_ref().map(|diffs| diffs.to_vec());
        let Batch { epoch, arrived, pairs, .. } = *self;
        Packed { epoch, arrived, pairs, diffs, rows }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Batch {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Batch, D::Error> {
        let Packed { epoch, arrived, pairs, diffs, rows } = Packed::deserialize(deserializer)?;
        let rows = StreamReader::try_new(Cursor::new(rows.0), None).and_then(|mut reader| {
            let schema = reader.schema();
            reader.next().unwrap_or_else(|| Ok(RecordBatch::new_empty(schema)))
        });
        let rows = rows.map_err(serde::de::Error::custom)?;
        Ok(Batch { epoch, arrived, rows, diffs: diffs.map(Into::into), pairs })
    }
}

impl HasEpoch for Batch {
    fn epoch(&self) -> Epoch {
        self.epoch
    }
}

impl Batch {
    /// Rows that are each added once.
    pub fn added(epoch: Epoch, rows: RecordBatch) -> Self {
        Batch { epoch, arrived: epoch, rows, diffs: None, pairs: false }
    }

    /// The change of multiplicity of row `index`.
    pub fn diff(&self, index: usize) -> i64 {
        self.diffs.as_ref().map_or(1, |d| d.get(index).copied().unwrap_or(0))
    }

    /// The changes of all rows in order.
    pub fn each_diff(&self) -> impl Iterator<Item = i64> + '_ {
        (0..self.rows.num_rows()).map(|i| self.diff(i))
    }

    /// How many rows come, not counting those that go.
    pub fn coming(&self) -> i64 {
        match &self.diffs {
            None => i64::try_from(self.rows.num_rows()).unwrap_or(i64::MAX),
            Some(diffs) => diffs.iter().filter(|d| **d > 0).sum(),
        }
    }

    /// How many rows go.
    pub fn going(&self) -> i64 {
        self.diffs.as_ref().map_or(0, |diffs| diffs.iter().filter(|d| **d < 0).map(|d| -d).sum())
    }

    /// The same changes of other rows, one for one.
    pub fn with_rows(&self, rows: RecordBatch) -> Self {
        Batch { rows, diffs: self.diffs.clone(), ..*self }
    }

    /// The rows for which `mask` is true; all of them without a copy.
    pub fn filter(&self, mask: &BooleanArray) -> Result<Batch, ArrowError> {
        let chosen = mask.iter().filter(|m| *m == Some(true)).count();
        if chosen == self.rows.num_rows() {
            return Ok(self.clone());
        }
        let diffs = self.diffs.as_ref().map(|diffs| {
            diffs.iter().zip(mask.iter()).filter(|(_, m)| *m == Some(true)).map(|(d, _)| *d).collect::<Arc<[i64]>>()
        });
        Ok(Batch { rows: filter_record_batch(&self.rows, mask)?, diffs, pairs: false, ..*self })
    }

    /// Splits into rows to add and rows to remove, each row as often as it is to be added or removed.
    pub fn into_parts(self) -> Result<(RecordBatch, RecordBatch), ArrowError> {
        let Some(diffs) = &self.diffs else {
            let none = self.rows.slice(0, 0);
            return Ok((self.rows, none));
        };
        let pick = |sign: i64| -> Result<RecordBatch, ArrowError> {
            let mut indices = Vec::new();
            for (index, diff) in (0i64..).zip(diffs.iter()) {
                for _ in 0..(diff * sign).max(0) {
                    indices.push(index);
                }
            }
            take_record_batch(&self.rows, &Int64Array::from(indices))
        };
        Ok((pick(1)?, pick(-1)?))
    }
}

/// Puts columns under another schema of the same types.
pub fn relabel(schema: &SchemaRef, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch, ArrowError> {
    let columns = columns
        .into_iter()
        .zip(schema.fields())
        .map(|(column, field)| {
            if column.data_type() == field.data_type() {
                Ok(column)
            } else {
                arrow::compute::cast(&column, field.data_type())
            }
        })
        .collect::<Result<Vec<_>, _>>()?;
    let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(Arc::clone(schema), columns, &options)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use arrow::array::{RecordBatchOptions, StringArray};
    use arrow::datatypes::{DataType, Field, Schema};

    use super::*;

    #[test]
    fn rows_come_out_as_they_went_in() {
        let field = Field::new("a", DataType::Int64, true).with_metadata([("k".into(), "v".into())].into());
        let schema = Arc::new(Schema::new(vec![field, Field::new("b", DataType::Utf8, true)]));
        let columns: Vec<arrow::array::ArrayRef> = vec![
            Arc::new(Int64Array::from(vec![Some(1), None, Some(3)])),
            Arc::new(StringArray::from(vec![None, Some(""), Some("ü")])),
        ];
        let rows = RecordBatch::try_new(Arc::clone(&schema), columns).unwrap();
        let none = RecordBatchOptions::new().with_row_count(Some(5));
        let empty = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), vec![], &none).unwrap();
        for (rows, diffs) in [
            (rows.clone(), None),
            (rows.slice(1, 2), Some(vec![-1, 2])),
            (rows.slice(0, 0), Some(vec![])),
            (empty, None),
        ] {
            let batch = Batch { epoch: 7, arrived: 3, rows, diffs: diffs.map(Into::into), pairs: true };
            let bytes = bincode::serialize(&batch).unwrap();
            let back = bincode::deserialize::<Batch>(&bytes).unwrap();
            assert_eq!((back.epoch, back.arrived, back.pairs), (7, 3, true));
            assert_eq!(back.rows, batch.rows);
            assert_eq!(back.diffs, batch.diffs);
        }
    }
}
