//! Row groups that a filter leaves out.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Date32Array, Float64Array, Int16Array, Int32Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::Operator::{And, Eq, Gt, Lt, NotEq, Or};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, is_not_null, is_null, lit};

use crate::pipeline::{Kept, ReadFiles};
use crate::sources::FileSource;

/// Row groups that statistics rule out are not read, and no row that meets the filter is lost: against all rows, filtered.
#[test]
fn a_filter_leaves_out_row_groups_and_no_row() {
    let schema = |fields: &[(&str, DataType)]| -> SchemaRef {
        Arc::new(Schema::new(fields.iter().map(|(n, t)| Field::new(*n, t.clone(), true)).collect::<Vec<_>>()))
    };
    let file_schema = schema(&[
        ("ID", DataType::Int32),
        ("name", DataType::Utf8),
        ("x", DataType::Float64),
        ("small", DataType::Int16),
        ("day", DataType::Date32),
    ]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.parquet");
    let ids: Int32Array = (0..60).map(|i| (i % 7 != 0 && i < 50).then_some(i)).collect();
    let names: StringArray = (0..60).map(|i| (i >= 10).then(|| format!("n{:02}", i / 10))).collect();
    let xs: Float64Array = (0..60).map(|i| Some(if i == 5 { f64::NAN } else { f64::from(i % 10) })).collect();
    let small: Int16Array = (0..60).map(|i| Some(i16::try_from(i).unwrap())).collect();
    let days: Date32Array = (0..60).map(Some).collect();
    let columns: Vec<ArrayRef> = vec![Arc::new(ids), Arc::new(names), Arc::new(xs), Arc::new(small), Arc::new(days)];
    let batch = RecordBatch::try_new(Arc::clone(&file_schema), columns).unwrap();
    let properties =
        ::parquet::file::properties::WriterProperties::builder().set_max_row_group_row_count(Some(10)).build();
    let mut writer = ::parquet::arrow::ArrowWriter::try_new(
        std::fs::File::create(&path).unwrap(),
        Arc::clone(&file_schema),
        Some(properties),
    )
    .unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();

    // The schema spells a column otherwise, has one in a wider type, and has one that the file lacks.
    let wanted = schema(&[
        ("id", DataType::Int32),
        ("name", DataType::Utf8),
        ("x", DataType::Float64),
        ("small", DataType::Int64),
        ("day", DataType::Date32),
        ("absent", DataType::Int32),
    ]);
    let col = |name: &str| -> Arc<dyn PhysicalExpr> { Arc::new(Column::new(name, wanted.index_of(name).unwrap())) };
    let op = |left: Arc<dyn PhysicalExpr>, op, right: Arc<dyn PhysicalExpr>| -> Arc<dyn PhysicalExpr> {
        Arc::new(BinaryExpr::new(left, op, right))
    };
    let late = || op(col("id"), Gt, lit(35));
    let cases: Vec<(Arc<dyn PhysicalExpr>, u64)> = vec![
        (late(), 20),
        (op(late(), And, op(col("name"), Lt, lit("n04"))), 10),
        (op(late(), Or, op(col("name"), Eq, lit("n01"))), 30),
        (op(col("name"), NotEq, lit("n01")), 40),
        (is_null(col("name")).unwrap(), 10),
        (is_not_null(col("id")).unwrap(), 50),
        (op(col("day"), Lt, lit(ScalarValue::Date32(Some(10)))), 10),
        (op(col("x"), Gt, lit(100.0)), 60),
        (op(col("small"), Gt, lit(35i64)), 60),
        (is_null(col("absent")).unwrap(), 60),
        (op(col("id"), Gt, lit(1000)), 0),
    ];
    let files = |kept: Option<Kept>| {
        let read = ReadFiles {
            path: dir.path().to_str().unwrap().into(),
            schema: Some(Arc::clone(&wanted)),
            options: BTreeMap::from([("format".to_owned(), "parquet".to_owned())]),
            kept,
        };
        let source = FileSource::new(&read).unwrap();
        let file = source.discover(|_| false, false).unwrap().remove(0);
        let mut reader = source.read(&file, &wanted).unwrap();
        let batches: Vec<RecordBatch> = reader.by_ref().map(Result::unwrap).collect();
        (batches, reader.stats().rows)
    };
    for (predicate, rows) in cases {
        let meeting = |batches: &[RecordBatch]| {
            let kept = batches.iter().map(|batch| {
                let mask = predicate.evaluate(batch).unwrap().into_array(batch.num_rows()).unwrap();
                arrow::compute::filter_record_batch(batch, mask.as_boolean()).unwrap()
            });
            let kept: Vec<RecordBatch> = kept.collect();
            let kept = arrow::compute::concat_batches(&wanted, &kept).unwrap();
            arrow::util::pretty::pretty_format_batches(&[kept]).unwrap().to_string()
        };
        let (all, _) = files(None);
        let (some, read) = files(Some(Kept { predicate: Arc::clone(&predicate), schema: Arc::clone(&wanted) }));
        assert_eq!(meeting(&some), meeting(&all), "{predicate}");
        assert_eq!(read, rows, "{predicate}");
    }
}
