//! Tables of others against the rows that they hold by delta-rs's own account.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;

use arrow::array::{Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use deltalake::protocol::SaveMode;
use url::Url;

use super::*;
use crate::lake::{Commit, Table, TableSpec};

fn mode(mode: ReadMode) -> ReadTable {
    ReadTable { mode, ..ReadTable::appended() }
}

fn rows(values: &[i64]) -> RecordBatch {
    let schema = Schema::new(vec![Field::new("n", DataType::Int64, true), Field::new("p", DataType::Utf8, true)]);
    let parts: Vec<&str> = values.iter().map(|x| if x % 2 == 0 { "even 0/1" } else { "odd" }).collect();
    RecordBatch::try_new(
        Arc::new(schema),
        vec![Arc::new(Int64Array::from(values.to_vec())), Arc::new(StringArray::from(parts))],
    )
    .unwrap()
}

async fn numbers(stream: Result<RowStream>) -> Vec<i64> {
    let batches: Vec<_> = stream.unwrap().try_collect().await.unwrap();
    let mut out = Vec::new();
    for batch in &batches {
        let parts = batch.column_by_name("p").unwrap();
        let numbers = batch.column_by_name("n").unwrap();
        for row in 0..batch.num_rows() {
            let n = numbers.as_any().downcast_ref::<Int64Array>().unwrap().value(row);
            let part = parts.as_any().downcast_ref::<StringArray>().unwrap().value(row);
            assert_eq!(part, if n % 2 == 0 { "even 0/1" } else { "odd" });
            out.push(n);
        }
    }
    out.sort_unstable();
    out
}

fn code(result: Result<RowStream>) -> &'static str {
    match result {
        Ok(_) => panic!("no error"),
        Err(e) => e.code(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partitioned_table_of_others_is_read_by_version() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a table");
    std::fs::create_dir(&path).unwrap();
    let url = Url::from_directory_path(&path).unwrap();
    let open = || async { deltalake::DeltaTable::try_from_url(url.clone()).await.unwrap() };
    open().await.write(vec![rows(&[1, 2])]).with_partition_columns(["p"]).await.unwrap();
    open().await.write(vec![rows(&[3, 4])]).await.unwrap();
    open().await.optimize().await.unwrap();
    open().await.write(vec![rows(&[5])]).await.unwrap();
    let source = DeltaSource::open(path.to_str().unwrap(), &ReadTable::appended()).await.unwrap();
    assert_eq!(source.version(), 3);
    assert_eq!(numbers(source.snapshot(0).await).await, [1, 2]);
    assert_eq!(numbers(source.snapshot(3).await).await, [1, 2, 3, 4, 5]);
    assert_eq!(numbers(source.rows(Some(0), 3).await).await, [3, 4, 5]);
    assert_eq!(numbers(source.rows(Some(2), 3).await).await, [5]);
    assert!(numbers(source.rows(Some(3), 3).await).await.is_empty());

    open().await.write(vec![rows(&[7])]).with_save_mode(SaveMode::Overwrite).await.unwrap();
    open().await.write(vec![rows(&[8])]).await.unwrap();
    assert_eq!(code(source.rows(Some(3), 5).await), "SOURCE_TABLE_CHANGED");
    let skipping = DeltaSource::open(url.as_str(), &mode(ReadMode::SkipChangeCommits)).await.unwrap();
    assert_eq!(numbers(skipping.rows(Some(3), 5).await).await, [8]);
    std::fs::remove_file(path.join("_delta_log/00000000000000000001.json")).unwrap();
    assert_eq!(code(skipping.rows(Some(0), 5).await), "SOURCE_VERSION_GONE");
}

#[tokio::test(flavor = "multi_thread")]
async fn deletion_vectors_of_the_table_are_honoured() {
    let folder = tempfile::tempdir().unwrap();
    let lake = Lake::open(folder.path().to_str().unwrap()).await.unwrap();
    let spec = TableSpec::new("t", "t", rows(&[]).schema());
    let mut table = Table::open_or_create(&lake, spec).await.unwrap();
    let commit = |epoch, inserts: &[i64], deletes: &[i64]| Commit {
        epoch,
        inserts: vec![rows(inserts)],
        deletes: vec![rows(deletes)],
        ..Commit::default()
    };
    table.commit(commit(1, &[1, 2, 3], &[])).await.unwrap();
    table.commit(commit(2, &[4], &[2])).await.unwrap();
    table.commit(commit(3, &[5, 6], &[])).await.unwrap();
    let source = DeltaSource::in_lake(&lake, "t", &ReadTable::appended()).await.unwrap();
    assert_eq!(numbers(source.snapshot(3).await).await, [1, 3, 4, 5, 6]);
    assert_eq!(numbers(source.snapshot(1).await).await, [1, 2, 3]);
    assert_eq!(numbers(source.rows(Some(2), 3).await).await, [5, 6]);
    assert_eq!(code(source.rows(Some(1), 3).await), "SOURCE_TABLE_CHANGED");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_is_not_there_is_an_external_error_with_its_path() {
    let folder = tempfile::tempdir().unwrap();
    for path in ["none", "no/where"] {
        let path = folder.path().join(path);
        let error = DeltaSource::open(path.to_str().unwrap(), &ReadTable::appended()).await.unwrap_err();
        assert_eq!(error.code(), "SOURCE_NOT_FOUND");
        assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        assert!(!path.exists());
    }
}

async fn net(source: &DeltaSource, from: i64, to: i64) -> BTreeMap<i64, i64> {
    let mut found = BTreeMap::new();
    let mut parts = source.changes(from, to).await.unwrap();
    while let Some(part) = parts.next().await {
        let (rows, diffs) = part.unwrap();
        let numbers = rows.column_by_name("n").unwrap().as_primitive::<arrow::datatypes::Int64Type>().clone();
        for (n, diff) in numbers.values().iter().zip(diffs) {
            *found.entry(*n).or_insert(0) += diff;
        }
    }
    found.retain(|_, diff| *diff != 0);
    found
}

async fn fed(source: &DeltaSource, from: Option<i64>, to: i64) -> Vec<String> {
    let batches: Vec<_> = source.rows(from, to).await.unwrap().try_collect().await.unwrap();
    let mut found = Vec::new();
    for batch in batches {
        assert_eq!(batch.schema(), *source.schema());
        let numbers = batch.column(0).as_primitive::<arrow::datatypes::Int64Type>();
        let versions = batch.column_by_name(COMMIT_VERSION).unwrap().as_primitive::<arrow::datatypes::Int64Type>();
        let kinds = batch.column_by_name(CHANGE_TYPE).unwrap().as_string::<i32>();
        for row in 0..batch.num_rows() {
            found.push(format!("{} {} {}", versions.value(row), kinds.value(row), numbers.value(row)));
            assert!(batch.column_by_name(COMMIT_TIMESTAMP).unwrap().is_valid(row));
        }
    }
    found.sort();
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_deletion_vector_only_the_difference_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let local = Lake::open(folder.path().to_str().unwrap()).await.unwrap();
    let remote = Lake::in_memory();
    for lake in [local, remote] {
        let spec = TableSpec::new("t", "t", rows(&[]).schema());
        let mut table = Table::open_or_create(&lake, spec).await.unwrap();
        let commit = |epoch, inserts: &[i64], deletes: &[i64]| Commit {
            epoch,
            inserts: vec![rows(inserts)],
            deletes: vec![rows(deletes)],
            ..Commit::default()
        };
        let many: Vec<i64> = (0..20_000).collect();
        table.commit(commit(1, &many, &[])).await.unwrap();
        table.commit(commit(2, &[20_000], &[3, 9_000])).await.unwrap();
        table.commit(commit(3, &[], &[4, 19_999, 20_000])).await.unwrap();
        let source = DeltaSource::in_lake(&lake, "t", &mode(ReadMode::Changes)).await.unwrap();
        assert_eq!(net(&source, 1, 2).await, BTreeMap::from([(3, -1), (9_000, -1), (20_000, 1)]));
        assert_eq!(net(&source, 2, 3).await, BTreeMap::from([(4, -1), (19_999, -1), (20_000, -1)]));
        let both = BTreeMap::from([(3, -1), (4, -1), (9_000, -1), (19_999, -1)]);
        assert_eq!(net(&source, 1, 3).await, both);
        // A table's own account of what came and went.
        let mut own = BTreeMap::new();
        let mut changed = table.changes(1, table.version()).await.unwrap();
        while let Some(part) = changed.next().await {
            let (rows, diff) = part.unwrap();
            for n in rows.column(0).as_primitive::<arrow::datatypes::Int64Type>().values() {
                *own.entry(*n).or_insert(0) += diff;
            }
        }
        own.retain(|_, diff| *diff != 0);
        assert_eq!(own, both);
        let ignoring = DeltaSource::in_lake(&lake, "t", &mode(ReadMode::IgnoreDeletes)).await.unwrap();
        assert!(numbers(ignoring.rows(Some(2), 3).await).await.is_empty());
        assert_eq!(code(ignoring.rows(Some(1), 2).await), "SOURCE_TABLE_CHANGED");
        let feed = |keys: &[&str], preimages| {
            mode(ReadMode::ChangeFeed { keys: keys.iter().map(|x| (*x).to_owned()).collect(), preimages })
        };
        let plain = DeltaSource::in_lake(&lake, "t", &feed(&[], true)).await.unwrap();
        let expected =
            ["2 delete 3", "2 delete 9000", "2 insert 20000", "3 delete 19999", "3 delete 20000", "3 delete 4"];
        assert_eq!(fed(&plain, Some(1), 3).await, expected);
        assert_eq!(fed(&plain, None, 1).await.len(), 20_000);
        let keyed = DeltaSource::in_lake(&lake, "t", &feed(&["P"], true)).await.unwrap();
        let expected = ["2 delete 3", "2 update_postimage 20000", "2 update_preimage 9000"];
        assert_eq!(fed(&keyed, Some(1), 2).await, expected);
        let keyed = DeltaSource::in_lake(&lake, "t", &feed(&["p"], false)).await.unwrap();
        assert_eq!(fed(&keyed, Some(1), 2).await, ["2 delete 3", "2 update_postimage 20000"]);
        let error = DeltaSource::in_lake(&lake, "t", &feed(&["q"], false)).await.unwrap_err();
        assert_eq!(error.code(), "UNKNOWN_COLUMN");
    }
}
