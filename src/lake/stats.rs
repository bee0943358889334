//! What the log says of a data file: rows, nulls, and bounds of the usual column types.

use std::collections::BTreeMap;

use arrow::array::{Array, ArrayRef, ArrowNumericType, AsArray, RecordBatch};
use arrow::compute::{max, max_string, min, min_string};
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, Schema,
    TimeUnit, TimestampMicrosecondType,
};
use chrono::{DateTime, Datelike, Duration, NaiveDate};
use serde::Serialize;
use serde_json::value::RawValue;

/// As many columns as Delta readers look at.
const COLUMNS: usize = 32;
/// Longer bounds of texts are cut.
const CHARACTERS: usize = 32;

/// Gathers the statistics of one data file.
pub(crate) struct Stats {
    rows: u64,
    columns: Vec<Column>,
}

struct Column {
    name: String,
    data_type: DataType,
    nulls: u64,
    range: Range,
}

enum Range {
    /// Only nulls so far.
    Empty,
    Integer(i128, i128),
    Float(f64, f64),
    Text(String, String),
    /// No bound can be given: a NaN, or a type without bounds.
    Unknown,
}

/// A bound as JSON, and whether it is the value itself.
struct Bound {
    json: String,
    tight: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    num_records: u64,
    tight_bounds: bool,
    min_values: BTreeMap<&'a str, Box<RawValue>>,
    max_values: BTreeMap<&'a str, Box<RawValue>>,
    null_count: BTreeMap<&'a str, u64>,
}

impl Stats {
    /// Of an empty file of this schema: its first columns, and one that is always wanted.
    pub(crate) fn new(schema: &Schema, always: Option<&str>) -> Self {
        let wanted =
            schema.fields().iter().enumerate().filter(|(i, x)| *i < COLUMNS || Some(x.name().as_str()) == always);
        let plain = wanted.map(|(_, x)| x).filter(|x| !x.data_type().is_nested());
        let columns = plain
            .map(|x| Column { name: x.name().clone(), data_type: x.data_type().clone(), nulls: 0, range: Range::Empty })
            .collect();
        Stats { rows: 0, columns }
    }

    /// Adds the rows of a batch of that schema.
    pub(crate) fn update(&mut self, batch: &RecordBatch) {
        self.rows += batch.num_rows() as u64;
        for column in &mut self.columns {
            if let Some(array) = batch.column_by_name(&column.name) {
                column.nulls += array.null_count() as u64;
                if array.null_count() < array.len() {
                    let range = std::mem::replace(&mut column.range, Range::Unknown);
                    column.range = range.merge(Range::of(array));
                }
            }
        }
    }

    /// The statistics as the log holds them. Where a bound was cut, all bounds are declared wide, so that no reader
    /// answers MIN or MAX from them.
    pub(crate) fn to_json(&self) -> String {
        let mut document = Document {
            num_records: self.rows,
            tight_bounds: true,
            min_values: BTreeMap::new(),
            max_values: BTreeMap::new(),
            null_count: self.columns.iter().map(|x| (x.name.as_str(), x.nulls)).collect(),
        };
        for column in &self.columns {
            let (low, high) = column.range.bounds(&column.data_type);
            for (bound, values) in [(low, &mut document.min_values), (high, &mut document.max_values)] {
                if let Some(Bound { json, tight }) = bound
                    && let Ok(value) = RawValue::from_string(json)
                {
                    document.tight_bounds &= tight;
                    values.insert(&column.name, value);
                }
            }
        }
        // Strings, numbers and valid JSON: there is nothing that could fail; the count alone is valid too.
        serde_json::to_string(&document).unwrap_or_else(|_| format!("{{\"numRecords\":{}}}", self.rows))
    }
}

fn pair<T: ArrowNumericType>(array: &ArrayRef) -> Option<(T::Native, T::Native)> {
    let array = array.as_primitive::<T>();
    Some((min(array)?, max(array)?))
}

impl Range {
    fn of(array: &ArrayRef) -> Range {
        let integer = |x: Option<(i64, i64)>| x.map(|(a, b)| Range::Integer(a.into(), b.into()));
        let found = match array.data_type() {
            DataType::Int8 => integer(pair::<Int8Type>(array).map(|(a, b)| (a.into(), b.into()))),
            DataType::Int16 => integer(pair::<Int16Type>(array).map(|(a, b)| (a.into(), b.into()))),
            DataType::Int32 => integer(pair::<Int32Type>(array).map(|(a, b)| (a.into(), b.into()))),
            DataType::Int64 => integer(pair::<Int64Type>(array)),
            DataType::Date32 => integer(pair::<Date32Type>(array).map(|(a, b)| (a.into(), b.into()))),
            DataType::Timestamp(TimeUnit::Microsecond, _) => integer(pair::<TimestampMicrosecondType>(array)),
            DataType::Decimal128(..) => pair::<Decimal128Type>(array).map(|(a, b)| Range::Integer(a, b)),
            DataType::Float32 => pair::<Float32Type>(array).map(|(a, b)| Range::Float(a.into(), b.into())),
            DataType::Float64 => pair::<Float64Type>(array).map(|(a, b)| Range::Float(a, b)),
            DataType::Utf8 => {
                let texts = array.as_string::<i32>();
                min_string(texts).zip(max_string(texts)).map(|(a, b)| Range::Text(a.to_owned(), b.to_owned()))
            }
            _ => None,
        };
        match found {
            // NaN sorts above all numbers or, with its sign set, below them.
            Some(Range::Float(a, b)) if !a.is_finite() || !b.is_finite() => Range::Unknown,
            Some(range) => range,
            None => Range::Unknown,
        }
    }

    fn merge(self, other: Range) -> Range {
        match (self, other) {
            (Range::Empty, x) | (x, Range::Empty) => x,
            (Range::Integer(a, b), Range::Integer(c, d)) => Range::Integer(a.min(c), b.max(d)),
            (Range::Float(a, b), Range::Float(c, d)) => Range::Float(a.min(c), b.max(d)),
            (Range::Text(a, b), Range::Text(c, d)) => Range::Text(a.min(c), b.max(d)),
            _ => Range::Unknown,
        }
    }

    fn bounds(&self, data_type: &DataType) -> (Option<Bound>, Option<Bound>) {
        match (self, data_type) {
            (Range::Integer(a, b), DataType::Date32) => (date(*a), date(*b)),
            (Range::Integer(a, b), DataType::Timestamp(_, zone)) => {
                (instant(*a, zone.is_some(), false), instant(*b, zone.is_some(), true))
            }
            (Range::Integer(a, b), DataType::Decimal128(_, scale)) => {
                (Some(decimal(*a, *scale)), Some(decimal(*b, *scale)))
            }
            (Range::Integer(a, b), _) => {
                (Some(Bound { json: a.to_string(), tight: true }), Some(Bound { json: b.to_string(), tight: true }))
            }
            (Range::Float(a, b), _) => {
                // The two zeros are equal for readers but not in order here.
                let low = if *a == 0.0 { -0.0 } else { *a };
                let high = if *b == 0.0 { 0.0 } else { *b };
                let bound = |x: f64| serde_json::to_string(&x).ok().map(|json| Bound { json, tight: true });
                (bound(low), bound(high))
            }
            (Range::Text(a, b), _) => (text(a, false), text(b, true)),
            (Range::Empty | Range::Unknown, _) => (None, None),
        }
    }
}

fn quoted(text: &str, tight: bool) -> Option<Bound> {
    serde_json::to_string(text).ok().map(|json| Bound { json, tight })
}

fn text(value: &str, upper: bool) -> Option<Bound> {
    let Some((cut, _)) = value.char_indices().nth(CHARACTERS) else { return quoted(value, true) };
    let (head, tail) = value.split_at(cut);
    if !upper {
        return quoted(head, false);
    }
    // Above everything that begins so, unless what was cut begins with the greatest character itself.
    (!tail.starts_with(char::MAX)).then(|| quoted(&format!("{head}{}", char::MAX), false)).flatten()
}

fn date(days: i128) -> Option<Bound> {
    let day = NaiveDate::default().checked_add_signed(Duration::try_days(i64::try_from(days).ok()?)?)?;
    (0..=9999).contains(&day.year()).then(|| quoted(&day.format("%Y-%m-%d").to_string(), true)).flatten()
}

/// Readers may take bounds for milliseconds, so they are widened to those.
fn instant(micros: i128, utc: bool, upper: bool) -> Option<Bound> {
    let micros = i64::try_from(micros).ok()?;
    let tight = micros.rem_euclid(1000) == 0;
    let millis = micros.div_euclid(1000) + i64::from(upper && !tight);
    let moment = DateTime::from_timestamp_millis(millis)?.naive_utc();
    let zone = if utc { "Z" } else { "" };
    (0..=9999)
        .contains(&moment.year())
        .then(|| quoted(&format!("{}{zone}", moment.format("%Y-%m-%dT%H:%M:%S%.3f")), tight))
        .flatten()
}

fn decimal(value: i128, scale: i8) -> Bound {
    let scale = usize::from(scale.unsigned_abs());
    let digits = format!("{:0>width$}", value.unsigned_abs(), width = scale + 1);
    let (whole, part) = digits.split_at(digits.len() - scale);
    let sign = if value < 0 { "-" } else { "" };
    let point = if scale == 0 { "" } else { "." };
    Bound { json: format!("{sign}{whole}{point}{part}"), tight: true }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{Decimal128Array, Float64Array, Int64Array, StringArray, TimestampMicrosecondArray};
    use arrow::datatypes::Field;
    use serde_json::{Value, json};

    use super::*;

    fn stats(arrays: Vec<(&str, ArrayRef)>) -> Value {
        let fields: Vec<_> = arrays.iter().map(|(name, x)| Field::new(*name, x.data_type().clone(), true)).collect();
        let schema = Arc::new(Schema::new(fields));
        let batch = RecordBatch::try_new(Arc::clone(&schema), arrays.into_iter().map(|x| x.1).collect()).unwrap();
        let mut stats = Stats::new(&schema, None);
        stats.update(&batch);
        stats.update(&batch);
        serde_json::from_str(&stats.to_json()).unwrap()
    }

    #[test]
    fn bounds_nulls_and_rows_of_the_usual_types() {
        let found = stats(vec![
            ("n", Arc::new(Int64Array::from(vec![Some(3), None, Some(-5)]))),
            (
                "d",
                Arc::new(
                    Decimal128Array::from(vec![Some(-5), Some(1234), None]).with_precision_and_scale(9, 2).unwrap(),
                ),
            ),
            ("t", Arc::new(TimestampMicrosecondArray::from(vec![1_000, 2_000, 3_000]).with_timezone("UTC"))),
            ("z", Arc::new(Float64Array::from(vec![0.0, 0.0, -1.5]))),
        ]);
        assert_eq!(found["numRecords"], 6);
        assert_eq!(found["tightBounds"], true);
        assert_eq!(found["nullCount"], json!({"n": 2, "d": 2, "t": 0, "z": 0}));
        assert_eq!(found["minValues"], json!({"n": -5, "d": -0.05, "t": "1970-01-01T00:00:00.001Z", "z": -1.5}));
        assert_eq!(found["maxValues"], json!({"n": 3, "d": 12.34, "t": "1970-01-01T00:00:00.003Z", "z": 0.0}));
    }

    #[test]
    fn cut_bounds_are_wide_and_said_to_be() {
        let long = "ä".repeat(40);
        let found = stats(vec![
            ("s", Arc::new(StringArray::from(vec![long.as_str()]))),
            ("t", Arc::new(TimestampMicrosecondArray::from(vec![-1]))),
        ]);
        assert_eq!(found["tightBounds"], false);
        let (low, high) = (found["minValues"]["s"].as_str().unwrap(), found["maxValues"]["s"].as_str().unwrap());
        assert!(low < long.as_str() && long.as_str() < high, "{low} {high}");
        assert_eq!(found["minValues"]["t"], "1969-12-31T23:59:59.999");
        assert_eq!(found["maxValues"]["t"], "1970-01-01T00:00:00.000");
    }

    #[test]
    fn a_nan_or_only_nulls_give_no_bound() {
        let found = stats(vec![
            ("f", Arc::new(Float64Array::from(vec![1.0, f64::NAN]))),
            ("n", Arc::new(Int64Array::from(vec![None, None]))),
        ]);
        assert_eq!(found["minValues"], json!({}));
        assert_eq!(found["maxValues"], json!({}));
        assert_eq!(found["nullCount"]["n"], 4);
    }
}
