//! The sink against a model: random schemas, rows and deletes over many epochs, read back by us and by delta-rs.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int8Array, Int64Array,
    ListBuilder, MapBuilder, RecordBatch, StringArray, StringBuilder, StructArray, TimestampMicrosecondArray,
    UInt32Array,
};
use arrow::compute::{concat_batches, take_record_batch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::row::{RowConverter, SortField};
use datafusion::prelude::SessionContext;
use futures::TryStreamExt;
use proptest::prelude::*;
use proptest::test_runner::TestRng;

use super::*;
use crate::pipeline::TableName;

mod cost;
mod stress;
mod upkeep;

/// One column of a random table: a type and a way to make values.
fn column(kind: usize, name: &str, rng: &mut TestRng, rows: usize) -> (Field, ArrayRef) {
    let mut pick = |n: u64| rng.next_u64() % n;
    macro_rules! values {
        ($some:expr) => {
            (0..rows).map(|_| if pick(4) == 0 { None } else { Some($some) }).collect::<Vec<_>>()
        };
    }
    let array: ArrayRef = match kind {
        0 => Arc::new(Int64Array::from(values!(pick(3) as i64 - 1))),
        1 => Arc::new(StringArray::from(values!(
            ["", "a", "ä\u{10FFFF}", "a long text of more than thirty-two characters"][pick(4) as usize]
        ))),
        2 => Arc::new(Float64Array::from(values!([0.0, -0.0, f64::NAN, f64::INFINITY, 1.5e-300][pick(5) as usize]))),
        3 => Arc::new(
            Decimal128Array::from(values!(i128::from(pick(3)) * 10_i128.pow(36) - 1))
                .with_precision_and_scale(38, 4)
                .unwrap(),
        ),
        4 => Arc::new(
            TimestampMicrosecondArray::from(values!(pick(3) as i64 * 1_234_567 - 2_000_000)).with_timezone("UTC"),
        ),
        5 => Arc::new(TimestampMicrosecondArray::from(values!(
            [0, i64::from(i32::MAX) * 1_000_001, -62_135_596_800_000_000][pick(3) as usize]
        ))),
        6 => Arc::new(Date32Array::from(values!([0, -719_162, 20_000][pick(3) as usize]))),
        7 => Arc::new(BinaryArray::from_opt_vec(values!([&b""[..], &b"\0\xff"[..]][pick(2) as usize]))),
        8 => Arc::new(BooleanArray::from(values!(pick(2) == 0))),
        9 => Arc::new(Int8Array::from(values!(pick(256) as u8 as i8))),
        10 => Arc::new(UInt32Array::from(values!([0, u32::MAX][pick(2) as usize]))),
        11 => {
            let mut list = ListBuilder::new(StringBuilder::new());
            for _ in 0..rows {
                for _ in 0..pick(3) {
                    list.values().append_option((pick(2) == 0).then_some("x"));
                }
                list.append(pick(4) > 0);
            }
            Arc::new(list.finish())
        }
        12 => {
            let mut map = MapBuilder::new(None, StringBuilder::new(), arrow::array::Int64Builder::new());
            for _ in 0..rows {
                for key in 0..pick(3) {
                    map.keys().append_value(format!("k{key}"));
                    map.values().append_option((pick(2) == 0).then_some(key as i64));
                }
                map.append(pick(4) > 0).unwrap();
            }
            Arc::new(map.finish())
        }
        _ => {
            let inner = Int64Array::from(values!(pick(2) as i64));
            let fields = vec![Field::new("in", DataType::Int64, true)];
            let nulls: Vec<bool> = (0..rows).map(|_| pick(4) > 0).collect();
            Arc::new(StructArray::new(fields.into(), vec![Arc::new(inner)], Some(nulls.into())))
        }
    };
    (Field::new(name, array.data_type().clone(), true), array)
}

fn random_rows(kinds: &[usize], rng: &mut TestRng, rows: usize) -> RecordBatch {
    let (fields, arrays): (Vec<_>, Vec<_>) =
        kinds.iter().enumerate().map(|(i, kind)| column(*kind, &format!("c{i}"), rng, rows)).unzip();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap()
}

/// Rows as sorted bytes: equal exactly if the multisets are.
fn multiset(batches: &[RecordBatch], schema: &SchemaRef) -> Vec<Vec<u8>> {
    let converter =
        RowConverter::new(schema.fields().iter().map(|x| SortField::new(x.data_type().clone())).collect()).unwrap();
    let mut out = Vec::new();
    for batch in batches {
        let batch = types::conform(batch, schema).unwrap();
        let rows = converter.convert_columns(batch.columns()).unwrap();
        out.extend(rows.iter().map(|x| x.as_ref().to_vec()));
    }
    out.sort();
    out
}

fn spec(schema: &SchemaRef) -> TableSpec {
    TableSpec {
        comment: Some("a test".into()),
        ..TableSpec::new("main.default.t", "main/default/t", Arc::clone(schema))
    }
}

fn name() -> TableName {
    TableName::new("main", "default", "t")
}

async fn new_lake() -> (tempfile::TempDir, Lake) {
    let folder = tempfile::tempdir().unwrap();
    let lake = Lake::open(folder.path().to_str().unwrap()).await.unwrap();
    (folder, lake)
}

async fn by_delta_rs(lake: &Lake, version: Option<i64>) -> Vec<RecordBatch> {
    let context = SessionContext::new();
    assert!(query::register(&context, lake, &name(), version).await.unwrap());
    context.sql("SELECT * FROM main.default.t").await.unwrap().collect().await.unwrap()
}

async fn random_run(seed: u64, kinds: Vec<usize>, rewrites: bool) {
    let (_folder, lake) = new_lake().await;
    let mut seed_bytes = [0; 32];
    seed_bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut rng = TestRng::from_seed(prop::test_runner::RngAlgorithm::ChaCha, &seed_bytes);
    let schema = random_rows(&kinds, &mut rng, 0).schema();
    let stored = types::stored_schema(&schema).unwrap();
    let mut wanted = spec(&schema);
    if rewrites {
        wanted.properties.insert("silverflow.sink".into(), "rewrite".into());
    }
    if seed.is_multiple_of(3) {
        wanted.layout = Layout { sort: vec!["c0".into()], open: Some("c1".into()) };
    }
    let mut table = Table::open_or_create(&lake, wanted.clone()).await.unwrap();
    let mut model = RecordBatch::new_empty(Arc::clone(&schema));
    let mut past = Vec::new();
    for epoch in 0..40u64 {
        let count = (rng.next_u64() % 12) as usize;
        let fresh = random_rows(&kinds, &mut rng, count);
        let keep: Vec<bool> = (0..model.num_rows()).map(|_| !rng.next_u64().is_multiple_of(3)).collect();
        let chosen = |wanted: bool| -> RecordBatch {
            let rows: Vec<u32> = (0..).zip(&keep).filter(|x| *x.1 == wanted).map(|x| x.0).collect();
            take_record_batch(&model, &UInt32Array::from(rows)).unwrap()
        };
        let (kept, mut gone) = (chosen(true), chosen(false));
        // Some rows come and go in one epoch.
        let mut coming = fresh.clone();
        if epoch % 3 == 0 {
            let passing = random_rows(&kinds, &mut rng, 3);
            coming = concat_batches(&schema, [&coming, &passing]).unwrap();
            gone = concat_batches(&schema, [&passing, &gone]).unwrap();
        }
        let commit =
            Commit { epoch, inserts: vec![coming], deletes: vec![gone], metrics: [("rowsRead".to_owned(), 5)].into() };
        let before = table.version();
        let done = table.commit(commit.clone()).await.unwrap();
        model = concat_batches(&schema, [&kept, &fresh]).unwrap();
        assert_eq!(done.is_some(), table.version() > before);
        if done.is_some() {
            assert!(table.commit(commit.clone()).await.unwrap().is_none(), "an epoch is committed once");
        }
        if epoch % 7 == 6 {
            table = Table::open_or_create(&lake, wanted.clone()).await.unwrap();
            if done.is_some() {
                assert_eq!(table.epoch(), Some(epoch));
                assert!(table.commit(commit).await.unwrap().is_none());
            }
        }
        table.maintain(None).await.unwrap();
        let expected = multiset(std::slice::from_ref(&model), &schema);
        let scanned: Vec<_> = table.scan().try_collect().await.unwrap();
        assert!(scanned.iter().all(|x| x.schema() == schema));
        assert_eq!(multiset(&scanned, &schema), expected, "seed {seed} epoch {epoch}");
        assert_eq!(table.rows(), model.num_rows() as u64);
        assert!(!rewrites || table.files.values().all(|x| x.vector.is_none()));
        if epoch % 8 == 7 {
            let stored_rows = multiset(&[types::conform(&model, &stored).unwrap()], &stored);
            assert_eq!(multiset(&by_delta_rs(&lake, None).await, &stored), stored_rows, "seed {seed} epoch {epoch}");
            past.push((table.version(), expected, stored_rows));
        }
    }
    for (version, expected, stored_rows) in past {
        let scanned: Vec<_> = table.scan_at(version).await.unwrap().try_collect().await.unwrap();
        assert_eq!(multiset(&scanned, &schema), expected);
        assert_eq!(multiset(&by_delta_rs(&lake, Some(version)).await, &stored), stored_rows);
    }
}

#[test]
fn a_table_equals_the_model_for_random_schemas_and_rows() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let config =
        ProptestConfig { cases: 10, max_shrink_iters: 8, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(seed in any::<u64>(), kinds in prop::collection::vec(0usize..14, 1..6), rewrites in any::<bool>())| {
        runtime.block_on(random_run(seed, kinds, rewrites));
    });
}

fn ints(values: &[i64]) -> RecordBatch {
    let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true)]));
    RecordBatch::try_new(schema, vec![Arc::new(Int64Array::from(values.to_vec()))]).unwrap()
}

fn change(epoch: u64, inserts: &[i64], deletes: &[i64]) -> Commit {
    Commit { epoch, inserts: vec![ints(inserts)], deletes: vec![ints(deletes)], metrics: BTreeMap::new() }
}

async fn numbers(table: &Table) -> Vec<i64> {
    let batches: Vec<_> = table.scan().try_collect().await.unwrap();
    let mut out: Vec<i64> = batches
        .iter()
        .flat_map(|x| x.column(0).as_any().downcast_ref::<Int64Array>().unwrap().values().to_vec())
        .collect();
    out.sort_unstable();
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn a_difference_is_committed_once_and_an_empty_one_never() {
    let (_folder, lake) = new_lake().await;
    let mut table = Table::open_or_create(&lake, spec(&ints(&[]).schema())).await.unwrap();
    assert_eq!(table.epoch(), None);
    assert!(table.commit(change(1, &[], &[])).await.unwrap().is_none());
    assert!(table.commit(change(1, &[4, 4], &[4, 4])).await.unwrap().is_none());
    let done = table.commit(change(2, &[1, 1, 2, 3], &[3])).await.unwrap().unwrap();
    assert_eq!((done.inserted, done.deleted, done.version), (3, 0, 1));
    assert_eq!(table.epoch(), Some(2));
    assert!(table.commit(change(2, &[9], &[])).await.unwrap().is_none());
    let done = table.commit(change(3, &[5], &[1])).await.unwrap().unwrap();
    assert_eq!((done.inserted, done.deleted), (1, 1));
    assert_eq!(numbers(&table).await, [1, 2, 5]);
    let error = table.commit(change(4, &[6], &[1, 1])).await.unwrap_err();
    assert_eq!(error.code(), "INTERNAL");
    assert!(error.to_string().contains("main.default.t") && error.to_string().contains("epoch 4"), "{error}");
    assert_eq!(numbers(&table).await, [1, 2, 5]);
    table.commit(change(4, &[6], &[1, 2, 5])).await.unwrap();
    assert_eq!(numbers(&table).await, [6]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_knows_its_rows_before_any_goes_is_changed_alike() {
    let (_folder, lake) = new_lake().await;
    let wanted = spec(&ints(&[]).schema());
    let mut table = Table::open_or_create(&lake, wanted.clone()).await.unwrap();
    table.commit(change(1, &[1, 2, 2, 3], &[])).await.unwrap().unwrap();
    let mut table = Table::open_or_create(&lake, wanted).await.unwrap();
    assert!(table.index.is_none());
    table.prepare();
    table.maintain(None).await.unwrap();
    assert_eq!((table.learned, table.is_unlearned()), (4, false));
    // Rows that come after it are known as well.
    table.commit(change(2, &[4, 5], &[])).await.unwrap().unwrap();
    table.commit(change(3, &[], &[2, 4])).await.unwrap().unwrap();
    assert_eq!(numbers(&table).await, [1, 2, 3, 5]);
    assert_eq!(table.learned, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_is_compared_before_it_is_deleted() {
    let (_folder, lake) = new_lake().await;
    let mut table = Table::open_or_create(&lake, spec(&ints(&[]).schema())).await.unwrap();
    table.commit(change(1, &[1, 2, 3, 3, 4], &[])).await.unwrap().unwrap();
    table.commit(change(2, &[5], &[2])).await.unwrap().unwrap();
    // As if other rows had the hash of 3: they stand at the lowest positions.
    let three = index::RowHasher::new(&ints(&[]).schema()).unwrap().hash(&ints(&[3])).unwrap()[0];
    let file = *table.files.keys().next().unwrap();
    let known = &table.index.as_ref().unwrap()[&file].index;
    let rows = known.hashes().iter().copied().zip(known.rows().iter().copied());
    let mistaken = index::FileIndex::new(rows.chain([0, 4].map(|row| (index::short(&three), row))).collect());
    table.index.as_mut().unwrap().insert(file, index::Known::fresh(mistaken));
    let error = table.commit(change(3, &[], &[3, 3, 3])).await.unwrap_err();
    assert_eq!(error.code(), "INTERNAL");
    table.commit(change(3, &[], &[3])).await.unwrap().unwrap();
    assert_eq!(numbers(&table).await, [1, 3, 4, 5]);
    table.commit(change(4, &[], &[3])).await.unwrap().unwrap();
    assert_eq!(numbers(&table).await, [1, 4, 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn files_without_their_log_entry_are_not_in_the_table() {
    let (folder, lake) = new_lake().await;
    let schema = ints(&[]).schema();
    let mut table = Table::open_or_create(&lake, spec(&schema)).await.unwrap();
    table.commit(change(1, &[1, 2], &[])).await.unwrap();
    table.commit(change(2, &[3], &[1])).await.unwrap();
    // The machine stopped before the entry was there: data and vector are, the entry is not.
    std::fs::remove_file(folder.path().join("main/default/t/_delta_log/00000000000000000002.json")).unwrap();
    let mut table = Table::open_or_create(&lake, spec(&schema)).await.unwrap();
    assert_eq!(table.epoch(), Some(1));
    assert_eq!(numbers(&table).await, [1, 2]);
    table.commit(change(2, &[3], &[1])).await.unwrap().unwrap();
    assert_eq!(numbers(&table).await, [2, 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_writer_is_noticed() {
    let (_folder, lake) = new_lake().await;
    let schema = ints(&[]).schema();
    let mut a = Table::open_or_create(&lake, spec(&schema)).await.unwrap();
    a.commit(change(1, &[1], &[])).await.unwrap();
    let mut b = Table::open_or_create(&lake, spec(&schema)).await.unwrap();
    // The same epoch by another hand is the epoch.
    a.commit(change(2, &[2], &[])).await.unwrap();
    assert!(b.commit(change(2, &[2], &[])).await.unwrap().is_none());
    assert_eq!(numbers(&b).await, [1, 2]);
    // Rows that others put in are not.
    lake.load_delta("main/default/t", None).await.unwrap().unwrap().write(vec![ints(&[77])]).await.unwrap();
    let error = b.commit(change(3, &[3], &[])).await.unwrap_err();
    assert_eq!(error.code(), "TABLE_CHANGED_OUTSIDE");
    assert!(error.to_string().contains("WRITE"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_taken_over_can_commit_nothing() {
    let (_folder, lake) = new_lake().await;
    let of = |generation| TableSpec { generation, ..spec(&ints(&[]).schema()) };
    let mut old = Table::open_or_create(&lake, of(3)).await.unwrap();
    old.commit(change(1, &[1], &[])).await.unwrap().unwrap();
    let mut new = Table::open_or_create(&lake, of(4)).await.unwrap();
    // What the old run still commits before the fence is seen by the new one.
    old.commit(change(2, &[2], &[])).await.unwrap().unwrap();
    let before = old.version();
    new.fence(4).await.unwrap();
    assert_eq!((new.epoch(), new.version()), (Some(2), before + 1));
    new.fence(4).await.unwrap();
    assert_eq!(new.version(), before + 1, "a table that has the generation gets no second entry");
    for epoch in [2, 3, 3] {
        let error = match old.commit(change(epoch, &[3], &[1])).await {
            Ok(None) if epoch == 2 => continue,
            other => other.unwrap_err(),
        };
        assert_eq!((error.code(), error.fault()), ("FENCED", crate::error::Fault::External));
    }
    new.commit(change(3, &[30], &[1])).await.unwrap().unwrap();
    assert_eq!(old.commit(change(3, &[3], &[1])).await.unwrap_err().code(), "FENCED");
    assert_eq!(Table::open_or_create(&lake, of(3)).await.unwrap_err().code(), "FENCED");
    assert_eq!(numbers(&new).await, [2, 30]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_commit_of_a_generation_carries_it() {
    let (_folder, lake) = new_lake().await;
    let of = |generation| TableSpec { generation, ..spec(&ints(&[]).schema()) };
    let mut old = Table::open_or_create(&lake, of(0)).await.unwrap();
    old.commit(change(1, &[1], &[])).await.unwrap().unwrap();
    let mut new = Table::open_or_create(&lake, of(9)).await.unwrap();
    let version = new.version();
    new.commit(change(2, &[2], &[])).await.unwrap().unwrap();
    new.fence(9).await.unwrap();
    assert_eq!(new.version(), version + 1);
    assert_eq!(old.commit(change(2, &[2], &[])).await.unwrap_err().code(), "FENCED");
    assert_eq!(Table::open_or_create(&lake, of(8)).await.unwrap_err().code(), "FENCED");
    assert_eq!(numbers(&Table::open_or_create(&lake, of(9)).await.unwrap()).await, [1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rewriting_by_others_is_taken_over() {
    let (_folder, lake) = new_lake().await;
    let schema = ints(&[]).schema();
    let mut table = Table::open_or_create(&lake, spec(&schema)).await.unwrap();
    for epoch in 0..6 {
        table
            .commit(change(
                epoch,
                &[epoch as i64, 100 + epoch as i64],
                &if epoch > 0 { vec![99 + epoch as i64] } else { vec![] },
            ))
            .await
            .unwrap();
    }
    lake.load_delta("main/default/t", None).await.unwrap().unwrap().optimize().await.unwrap();
    table.commit(change(6, &[6], &[105, 3])).await.unwrap().unwrap();
    assert_eq!(numbers(&table).await, [0, 1, 2, 4, 5, 6]);
}

#[tokio::test(flavor = "multi_thread")]
async fn columns_are_added_and_types_are_not_changed() {
    let (_folder, lake) = new_lake().await;
    let mut table = Table::open_or_create(&lake, spec(&ints(&[]).schema())).await.unwrap();
    table.commit(change(1, &[1, 2], &[])).await.unwrap();
    let wide = Arc::new(Schema::new(vec![
        Field::new("t", DataType::Timestamp(TimeUnit::Microsecond, None), true),
        Field::new("n", DataType::Int64, true),
    ]));
    let rows = |t: Vec<Option<i64>>, n: Vec<i64>| {
        RecordBatch::try_new(
            Arc::clone(&wide),
            vec![Arc::new(TimestampMicrosecondArray::from(t)), Arc::new(Int64Array::from(n))],
        )
        .unwrap()
    };
    let mut table = Table::open_or_create(&lake, spec(&wide)).await.unwrap();
    let commit = Commit {
        epoch: 2,
        inserts: vec![rows(vec![Some(5)], vec![3])],
        deletes: vec![rows(vec![None], vec![1])],
        ..Commit::default()
    };
    table.commit(commit).await.unwrap().unwrap();
    let found: Vec<_> = table.scan().try_collect().await.unwrap();
    assert_eq!(multiset(&found, &wide), multiset(&[rows(vec![None, Some(5)], vec![2, 3])], &wide));
    assert_eq!(multiset(&by_delta_rs(&lake, None).await, &wide), multiset(&found, &wide));
    // A definition that has lost the column leaves it in the table.
    let mut table = Table::open_or_create(&lake, spec(&ints(&[]).schema())).await.unwrap();
    table.commit(change(3, &[8], &[3])).await.unwrap().unwrap();
    assert_eq!(numbers(&table).await, [2, 8]);
    let text = Arc::new(Schema::new(vec![Field::new("N", DataType::Utf8, true)]));
    let error = Table::open_or_create(&lake, spec(&text)).await.unwrap_err();
    assert_eq!(error.code(), "CANNOT_MERGE_INCOMPATIBLE_DATA_TYPE");
    assert!(error.to_string().contains("column n"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_epochs_stay_in_few_files_and_survive_a_log_checkpoint() {
    let (folder, lake) = new_lake().await;
    let schema = ints(&[]).schema();
    let mut table = Table::open_or_create(&lake, spec(&schema)).await.unwrap();
    let mut checkpoints = 0;
    for epoch in 0..230u64 {
        let n = epoch as i64;
        table
            .commit(change(epoch, &[n, n + 1000], &if n > 0 { vec![n + 999] } else { vec![] }))
            .await
            .unwrap()
            .unwrap();
        checkpoints += u32::from(table.maintain(None).await.unwrap().checkpoint);
    }
    assert_eq!(checkpoints, 2);
    assert!(folder.path().join("main/default/t/_delta_log/_last_checkpoint").exists());
    let mut expected: Vec<i64> = (0..230).collect();
    expected.push(1229);
    assert_eq!(numbers(&table).await, expected);
    let again = Table::open(&lake, "main/default/t").await.unwrap().unwrap();
    assert_eq!((again.version(), again.epoch()), (table.version(), Some(229)));
    assert_eq!(numbers(&again).await, expected);
    assert!(again.files.len() < 70, "{}", again.files.len());
    assert_eq!(multiset(&by_delta_rs(&lake, None).await, &schema), multiset(&[ints(&expected)], &schema));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_in_an_object_store_is_the_same() {
    let lake = Lake::in_memory();
    let schema = ints(&[]).schema();
    let mut table = Table::open_or_create(&lake, spec(&schema)).await.unwrap();
    table.commit(change(1, &[1, 2, 3], &[])).await.unwrap();
    table.commit(change(2, &[4], &[2])).await.unwrap();
    let table = Table::open(&lake, "main/default/t").await.unwrap().unwrap();
    assert_eq!(numbers(&table).await, [1, 3, 4]);
    assert_eq!(multiset(&by_delta_rs(&lake, Some(1)).await, &schema), multiset(&[ints(&[1, 2, 3])], &schema));
    let (mut log, _) = EpochLog::load(&lake).await.unwrap();
    let owner = Owner { id: "a".into(), host: "b".into(), boot: None, pid: 1, since_micros: 0, beat_millis: 1 };
    log.take(owner).await.unwrap();
    let begin = Begin { epoch: 3, ..Begin::default() };
    log.begin(&begin).await.unwrap();
    assert_eq!(EpochLog::load(&lake).await.unwrap().1.open, Some(begin));
}

#[tokio::test(flavor = "multi_thread")]
async fn storage_that_cannot_be_used_is_an_external_error_with_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("no/where");
    let error = Lake::open(missing.to_str().unwrap()).await.unwrap_err();
    assert_eq!(error.fault(), crate::error::Fault::External);
    assert!(error.to_string().contains(missing.to_str().unwrap()));
    let file = folder.path().join("file");
    std::fs::write(&file, "x").unwrap();
    assert_eq!(Lake::open(file.to_str().unwrap()).await.unwrap_err().code(), "STORAGE_NOT_ACCESSIBLE");
    assert_eq!(Lake::open("ftp://x/y").await.unwrap_err().code(), "UNSUPPORTED_STORAGE");
    let lake = Lake::open(&format!("file://{}", folder.path().join("Ä b").display())).await.unwrap();
    let odd = TableName::new("main", "Default", "Größe/../x.y z");
    assert_eq!(lake.table_location(&odd), "main/default/größe~2f~..~2f~x.y~20~z");
    let mut spec = spec(&ints(&[]).schema());
    spec.location = lake.table_location(&odd);
    let mut table = Table::open_or_create(&lake, spec.clone()).await.unwrap();
    table.commit(change(1, &[1], &[])).await.unwrap();
    let table = Table::open(&lake, &spec.location).await.unwrap().unwrap();
    assert_eq!(numbers(&table).await, [1]);
    spec.properties.insert("delta.columnMapping.mode".into(), "name".into());
    assert_eq!(Table::open_or_create(&lake, spec).await.unwrap_err().code(), "UNSUPPORTED_TABLE_PROPERTY");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delta_table_of_others_is_not_written_to() {
    let (_folder, lake) = new_lake().await;
    let url = lake.table_url("main/default/t").unwrap();
    std::fs::create_dir_all(url.to_file_path().unwrap()).unwrap();
    deltalake::DeltaTable::try_from_url(url).await.unwrap().write(vec![ints(&[1])]).await.unwrap();
    let error = Table::open_or_create(&lake, spec(&ints(&[]).schema())).await.unwrap_err();
    assert_eq!(error.code(), "TABLE_NOT_OURS");
}
