//! Hundreds of epochs of history with late events, while files are rewritten beside them and the log gets checkpoints.

use std::collections::BTreeMap;

use super::*;
use crate::lake::data::{DataFile, Reader, load_vectors};
use crate::lake::log::{entry_path, parse};
use crate::lake::policy::Aim;
use crate::lake::vector::Descriptor;

/// A version of a key: key, value, start, end.
type Version = (i64, String, i64, Option<i64>);
type Multiset = BTreeMap<Version, i64>;

/// Events of each key by sequence; no value is a delete.
#[derive(Default)]
struct Events(BTreeMap<i64, BTreeMap<i64, Option<u64>>>);

impl Events {
    fn versions(&self, key: i64) -> Vec<Version> {
        let Some(events) = self.0.get(&key) else { return Vec::new() };
        let ends = events.keys().skip(1).copied().map(Some).chain([None]);
        let version = |((start, value), end): ((&i64, &Option<u64>), Option<i64>)| {
            value.map(|x| (key, format!("value {x} of {key}"), *start, end))
        };
        events.iter().zip(ends).filter_map(version).collect()
    }
}

fn batch(rows: &[Version]) -> RecordBatch {
    RecordBatch::try_new(
        Arc::new(Schema::new(vec![
            Field::new("key", DataType::Int64, true),
            Field::new("value", DataType::Utf8, true),
            Field::new("start", DataType::Int64, true),
            Field::new("end", DataType::Int64, true),
        ])),
        vec![
            Arc::new(rows.iter().map(|x| Some(x.0)).collect::<Int64Array>()),
            Arc::new(rows.iter().map(|x| Some(x.1.as_str())).collect::<StringArray>()),
            Arc::new(rows.iter().map(|x| Some(x.2)).collect::<Int64Array>()),
            Arc::new(rows.iter().map(|x| x.3).collect::<Int64Array>()),
        ],
    )
    .unwrap()
}

fn versions(batch: &RecordBatch) -> Vec<Version> {
    let ints = |i: usize| batch.column(i).as_any().downcast_ref::<Int64Array>().unwrap().clone();
    let texts = arrow::compute::cast(batch.column(1), &DataType::Utf8).unwrap();
    let texts = texts.as_any().downcast_ref::<StringArray>().unwrap().clone();
    let (keys, starts, ends) = (ints(0), ints(2), ints(3));
    (0..batch.num_rows())
        .map(|i| (keys.value(i), texts.value(i).to_owned(), starts.value(i), ends.iter().nth(i).flatten()))
        .collect()
}

fn counted(batches: &[RecordBatch]) -> Multiset {
    let mut out = Multiset::new();
    batches.iter().flat_map(versions).for_each(|x| *out.entry(x).or_default() += 1);
    out
}

/// Rows that an action of the log adds or takes, as the file stood in it.
fn rows_of(
    lake: &Lake,
    action: &serde_json::Value,
    files: &BTreeMap<String, u64>,
) -> impl Future<Output = Vec<Version>> {
    let path = action["path"].as_str().unwrap().to_owned();
    let mut file = [DataFile {
        rows: files[&path],
        path,
        size: 0,
        modified: 0,
        stats: String::new(),
        vector: action.get("deletionVector").map(|x| Descriptor::from_json(x).unwrap()),
        dead: Arc::default(),
        open: false,
    }];
    let lake = lake.clone();
    async move {
        load_vectors(&lake, "main/default/t", &mut file).await.unwrap();
        let runtime = tokio::runtime::Handle::current();
        tokio::task::spawn_blocking(move || {
            let mut reader = Reader::open(&lake, "main/default/t", &file[0], &batch(&[]).schema(), &runtime).unwrap();
            let mut rows = Vec::new();
            while let Some(next) = reader.next_rows() {
                rows.extend(versions(&next.unwrap().0));
            }
            rows
        })
        .await
        .unwrap()
    }
}

/// The table as its own log tells its changes.
async fn replayed(table: &Table) -> Multiset {
    let mut rows = Multiset::new();
    let mut sizes = BTreeMap::new();
    for version in 0..=table.version() {
        let entry = table.lake.get(&entry_path(&table.location, version)).await.unwrap().unwrap();
        for action in parse(&entry).unwrap() {
            if let Some(add) = action.get("add") {
                let stats: serde_json::Value = serde_json::from_str(add["stats"].as_str().unwrap()).unwrap();
                sizes.insert(add["path"].as_str().unwrap().to_owned(), stats["numRecords"].as_u64().unwrap());
            }
            for (kind, diff) in [("add", 1), ("remove", -1)] {
                if let Some(action) = action.get(kind).filter(|x| x["dataChange"] == true) {
                    for row in rows_of(&table.lake, action, &sizes).await {
                        *rows.entry(row).or_default() += diff;
                    }
                }
            }
        }
    }
    rows.retain(|_, count| *count != 0);
    rows
}

async fn history(seed: u64, epochs: u64, rewrites: bool) {
    let (folder, lake) = new_lake().await;
    let mut seed_bytes = [0; 32];
    seed_bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut rng = TestRng::from_seed(prop::test_runner::RngAlgorithm::ChaCha, &seed_bytes);
    let mut pick = move |n: u64| rng.next_u64() % n;
    let mut wanted = spec(&batch(&[]).schema());
    wanted.layout = Layout { sort: vec!["key".into(), "start".into()], open: Some("end".into()) };
    if rewrites {
        wanted.properties.insert("silverflow.sink".into(), "rewrite".into());
    }
    let mut table = Table::open_or_create(&lake, wanted.clone()).await.unwrap();
    let mut events = Events::default();
    let mut model = Multiset::new();
    let mut work: Option<(u64, Upkeep)> = None;
    let mut done: Option<(u64, Done)> = None;
    let (mut settled, mut overlapped, mut splits, mut past, mut learned) = (0, 0, 0, Vec::new(), 0);
    for epoch in 1..=epochs {
        let mut change = Multiset::new();
        for _ in 0..1 + pick(12) {
            let key = pick(60) as i64;
            let late = pick(4) == 0;
            let sequence = (if late { pick(epoch * 10) } else { epoch * 10 + pick(10) }) as i64;
            splits += u64::from(late);
            events.versions(key).into_iter().for_each(|x| *change.entry(x).or_default() -= 1);
            let value = (pick(8) > 0).then(|| pick(3));
            events.0.entry(key).or_default().insert(sequence, value);
            events.versions(key).into_iter().for_each(|x| *change.entry(x).or_default() += 1);
        }
        change.retain(|_, count| *count != 0);
        let side = |wanted: i64| -> Vec<Version> {
            change.iter().filter(|x| x.1.signum() == wanted).map(|x| x.0.clone()).collect()
        };
        let (inserts, deletes) = (batch(&side(1)), batch(&side(-1)));
        for (row, count) in change {
            *model.entry(row).or_default() += count;
        }
        model.retain(|_, count| *count != 0);
        table
            .commit(Commit { epoch, inserts: vec![inserts], deletes: vec![deletes], ..Commit::default() })
            .await
            .unwrap();
        // Work that is planned in one epoch is done in a later one and brought in in a still later one.
        if let Some((at, finished)) = done.take_if(|x| x.0 <= epoch) {
            let result = table.settle(finished).await.unwrap();
            settled += u32::from(result.rewritten > 0);
            overlapped += u32::from(result.rewritten > 0 && table.files.values().any(|x| x.vector.is_some()) && at > 0);
        }
        if done.is_none()
            && let Some((at, planned)) = work.take()
        {
            done = Some((at + 1 + pick(3), planned.run().await.unwrap()));
        }
        if work.is_none() && done.is_none() {
            // Sooner than a real table would ask for it.
            let planned = match pick(4) {
                0 => table.plan_compaction(Aim::Order).unwrap().map(Upkeep::from),
                _ => table.upkeep(None).unwrap(),
            };
            work = planned.map(|x| (epoch, x));
            if rewrites && let Some((_, planned)) = work.take() {
                settled += u32::from(table.settle(planned.run().await.unwrap()).await.unwrap().rewritten > 0);
            }
        }
        if epoch % 60 == 59 {
            // Another run goes on from what is there; work that was under way is lost.
            table = Table::open_or_create(&lake, wanted.clone()).await.unwrap();
            table.learn().await.unwrap();
            learned = table.learned;
            (work, done) = (None, None);
        }
        // Whatever goes on beside, a row that goes needs nothing to be read but itself.
        assert!(epoch < 60 || table.learned == learned, "seed {seed} epoch {epoch}: {} rows", table.learned - learned);
        if epoch % 10 == 0 {
            let found: Vec<_> = table.scan().try_collect().await.unwrap();
            assert_eq!(counted(&found), model, "seed {seed} epoch {epoch}");
        }
        if epoch % 50 == 0 {
            assert_eq!(counted(&by_delta_rs(&lake, None).await), model, "seed {seed} epoch {epoch}");
            past.push((table.version(), model.clone()));
        }
    }
    assert!(splits > epochs / 2, "{splits} late events");
    assert!(rewrites || settled > 5, "{settled} rewritings");
    assert!(rewrites || overlapped > 3, "{overlapped} rewritings with rows that went meanwhile");
    assert!(folder.path().join("main/default/t/_delta_log/_last_checkpoint").exists());
    for (version, then) in past {
        let found: Vec<_> = table.scan_at(version).await.unwrap().try_collect().await.unwrap();
        assert_eq!(counted(&found), then, "seed {seed} version {version}");
    }
    assert_eq!(replayed(&table).await, model, "seed {seed}");
    table.optimize(None).await.unwrap();
    let found: Vec<_> = table.scan().try_collect().await.unwrap();
    assert_eq!(counted(&found), model);
    if rewrites {
        return;
    }
    // In the end closed versions lie sorted in files of their own.
    let kinds: Vec<_> = table.files.values().map(|x| (x.open, x.vector.is_some())).collect();
    assert_eq!(kinds, [(true, false), (false, false)]);
    let rows: Vec<Version> = found.iter().flat_map(versions).collect();
    let (open, closed): (Vec<_>, Vec<_>) = rows.into_iter().partition(|x| x.3.is_none());
    assert!([open, closed].iter().all(|rows| rows.is_sorted_by_key(|x| (x.0, x.2))));
}

#[tokio::test(flavor = "multi_thread")]
async fn history_is_right_while_files_are_rewritten_beside_the_epochs() {
    history(1, 240, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn history_is_right_in_a_table_without_vectors() {
    history(3, 120, true).await;
}
