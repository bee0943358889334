//! Compaction, vacuum, tables without vectors, and what others did between two runs.

use super::*;
use crate::lake::data::DataFile;
use crate::lake::policy::Aim;
use crate::lake::vacuum::Retention;

fn of(properties: &[(&str, &str)]) -> TableSpec {
    let properties = properties.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    TableSpec { properties, ..spec(&ints(&[]).schema()) }
}

fn names(folder: &tempfile::TempDir, inside: &str) -> Vec<String> {
    let all = std::fs::read_dir(folder.path().join("main/default/t").join(inside)).unwrap();
    all.map(|x| x.unwrap()).filter(|x| !x.path().is_dir()).map(|x| x.file_name().into_string().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_go_while_their_file_is_rewritten_are_gone_afterwards() {
    let (folder, lake) = new_lake().await;
    let mut table = Table::open_or_create(&lake, of(&[])).await.unwrap();
    table.commit(change(1, &[1, 2, 3, 4], &[])).await.unwrap();
    table.commit(change(2, &[5, 6, 7, 7], &[2])).await.unwrap();
    let done = table.plan_compaction(Aim::Order).unwrap().unwrap().run().await.unwrap();
    table.commit(change(3, &[8], &[3, 7])).await.unwrap();
    assert_eq!(table.settle(upkeep::Done::from(done)).await.unwrap().rewritten, 2);
    assert_eq!(numbers(&table).await, [1, 4, 5, 6, 7, 8]);
    table.commit(change(4, &[9], &[1, 7, 8])).await.unwrap().unwrap();
    assert_eq!(numbers(&table).await, [4, 5, 6, 9]);
    table.commit(change(5, &[], &[4])).await.unwrap().unwrap();
    assert_eq!(numbers(&table).await, [5, 6, 9]);
    // Work whose files are gone comes to nothing and leaves nothing.
    let late = table.plan_compaction(Aim::Order).unwrap().unwrap().run().await.unwrap();
    table.optimize(None).await.unwrap();
    let before = (table.version(), names(&folder, "").len());
    assert_eq!(table.settle(upkeep::Done::from(late)).await.unwrap(), Maintained::default());
    assert_eq!((table.version(), names(&folder, "").len()), (before.0, before.1 - 1));
    assert_eq!(numbers(&Table::open(&lake, "main/default/t").await.unwrap().unwrap()).await, [5, 6, 9]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_run_reads_no_data_to_know_where_rows_are() {
    let (folder, lake) = new_lake().await;
    let rows = folder.path().join("_silverflow/rows/main/default/t");
    let stored = || {
        let all = std::fs::read_dir(&rows).map(|all| all.map(|x| x.unwrap().path()).collect::<Vec<_>>());
        all.unwrap_or_default()
    };
    let mut table = Table::open_or_create(&lake, of(&[])).await.unwrap();
    table.commit(change(1, &[1, 2, 3, 4, 5], &[])).await.unwrap();
    table.commit(change(2, &[6, 7], &[2])).await.unwrap();
    assert_eq!((table.learned, table.is_unlearned(), stored().len()), (5, false, 0));
    assert_eq!(table.maintain(None).await.unwrap(), Maintained { learned: 1, ..Maintained::default() });
    assert_eq!((table.is_unlearned(), stored().len()), (false, 1));
    let run = async |epoch, row: i64, columns: &[(&str, &str)]| {
        let mut table = Table::open_or_create(&lake, of(columns)).await.unwrap();
        table.commit(change(epoch, &[], &[row])).await.unwrap().unwrap();
        let learned = table.learned;
        table.maintain(None).await.unwrap();
        assert!(!table.is_unlearned());
        learned
    };
    // The file of two rows is not worth it.
    assert_eq!(run(3, 3, &[]).await, 2);
    // What is damaged is made again, from the rows that are left.
    let damaged = stored().remove(0);
    std::fs::write(&damaged, b"SFROWS").unwrap();
    assert_eq!(run(4, 6, &[]).await, 3 + 2);
    assert!(std::fs::read(&damaged).unwrap().len() > 6);
    assert_eq!(run(5, 5, &[]).await, 1);
    // What is of files that are gone goes with them.
    let mut table = Table::open(&lake, "main/default/t").await.unwrap().unwrap();
    table.commit(change(6, &[8, 9, 10], &[])).await.unwrap();
    table.retention = Retention::none();
    table.learn().await.unwrap();
    table.optimize(Some(table.version() + 1)).await.unwrap();
    table.maintain(None).await.unwrap();
    let names: Vec<_> = stored().iter().map(|x| x.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    let data: Vec<_> = table.files.values().map(|x| format!("{}.rows", x.path)).collect();
    assert_eq!(names, data);
    assert_eq!(numbers(&table).await, [1, 4, 7, 8, 9, 10]);
    assert_eq!(run(7, 9, &[]).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_row_that_goes_waits_for_no_reading_of_the_table() {
    let (folder, lake) = new_lake().await;
    let wanted = TableSpec { rows_go: true, ..of(&[]) };
    let open = async || Table::open_or_create(&lake, wanted.clone()).await.unwrap();
    let rows = folder.path().join("_silverflow/rows/main/default/t");
    let stored = || std::fs::read_dir(&rows).map_or(0, Iterator::count);
    // In the run that wrote them.
    let mut table = open().await;
    table.commit(change(1, &[1, 2, 3, 3], &[])).await.unwrap().unwrap();
    table.commit(change(2, &[4], &[3, 1])).await.unwrap().unwrap();
    assert_eq!((numbers(&table).await, table.learned, stored()), (vec![2, 3, 4], 0, 0));
    // In one that follows it at once, also where they have been moved to another file meanwhile.
    table.commit(change(3, &[5, 6, 7], &[])).await.unwrap().unwrap();
    for moved in [false, true] {
        let mut table = open().await;
        let epoch = table.epoch().unwrap() + 1;
        table.commit(change(epoch, &[10, 11, 12, 13], &[])).await.unwrap().unwrap();
        if moved {
            table.optimize(None).await.unwrap();
        }
        let work = table.unstored().unwrap().unwrap();
        assert!(!work.is_learning());
        let done = work.run().await.unwrap();
        assert_eq!(table.settle(done).await.unwrap().learned, 1);
        assert!(table.index.is_none() && table.noted.is_empty() && table.unstored().unwrap().is_none());
        let mut table = open().await;
        let small: u64 = table.files.values().map(DataFile::live).filter(|rows| *rows < 3).sum();
        let others = table.files.values().filter(|x| x.live() >= 3 && !rows.join(format!("{}.rows", x.path)).exists());
        let others: u64 = others.map(DataFile::live).sum();
        table.commit(change(epoch + 1, &[], &[11, 13])).await.unwrap().unwrap();
        assert_eq!(table.learned, small + others);
        assert!(!moved || table.learned == 0);
    }
    assert_eq!(numbers(&open().await).await, [2, 3, 4, 5, 6, 7, 10, 10, 12, 12]);
    // Nothing is noted where no row will go.
    let mut table = Table::open_or_create(&lake, of(&[])).await.unwrap();
    table.commit(change(20, &[1, 2, 3, 3], &[])).await.unwrap().unwrap();
    assert!(table.index.is_none() && table.noted.is_empty() && table.unstored().unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rewriting_that_meets_a_foreign_one_gives_way() {
    let (_folder, lake) = new_lake().await;
    let mut table = Table::open_or_create(&lake, of(&[])).await.unwrap();
    for epoch in 1..5 {
        table.commit(change(epoch, &[epoch as i64], &[])).await.unwrap();
    }
    let done = table.plan_compaction(Aim::Order).unwrap().unwrap().run().await.unwrap();
    lake.load_delta("main/default/t", None).await.unwrap().unwrap().optimize().await.unwrap();
    assert_eq!(table.settle(upkeep::Done::from(done)).await.unwrap(), Maintained::default());
    table.commit(change(9, &[9], &[3])).await.unwrap().unwrap();
    assert_eq!(numbers(&table).await, [1, 2, 4, 9]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vacuum_removes_what_no_kept_version_needs_and_nothing_else() {
    let (folder, lake) = new_lake().await;
    let mut table = Table::open_or_create(&lake, of(&[])).await.unwrap();
    let mut kept = None;
    for epoch in 1..=120 {
        let n = epoch as i64;
        table.commit(change(epoch, &[n, n + 1000], &if n > 1 { vec![n - 1] } else { vec![] })).await.unwrap();
        table.maintain(None).await.unwrap();
        if epoch == 110 {
            kept = Some((table.version(), numbers(&table).await));
        }
    }
    let (keep, then) = kept.unwrap();
    let now = numbers(&table).await;
    // Orphans of a crash.
    for name in ["part-0.parquet", "deletion_vector_0.bin", "_delta_log/00000000000000000999.json#7"] {
        std::fs::write(folder.path().join("main/default/t").join(name), "x").unwrap();
    }
    std::fs::write(folder.path().join("main/default/t/notes.txt"), "x").unwrap();
    let everything = names(&folder, "").len();
    // Nothing is old yet; where rows are in files that have gone is of no use.
    table.plan_vacuum(keep).run().await.unwrap();
    assert_eq!(names(&folder, "").len(), everything);
    table.retention = Retention::none();

    let (removed, bytes) = table.plan_vacuum(keep).run().await.unwrap();
    let (data, log) = (names(&folder, ""), names(&folder, "_delta_log"));
    assert!(removed > 150 && bytes > 50_000, "{removed} files, {bytes} bytes of {everything}");
    assert!(data.len() < 60 && data.contains(&"notes.txt".to_owned()), "{data:?}");
    assert!(log.len() < 40 && !log.iter().any(|x| x.contains('#')), "{log:?}");
    let again = Table::open(&lake, "main/default/t").await.unwrap().unwrap();
    assert_eq!(numbers(&again).await, now);
    for version in [keep, keep + 4] {
        assert!(!by_delta_rs(&lake, Some(version)).await.is_empty());
    }
    let at: Vec<_> = again.scan_at(keep).await.unwrap().try_collect().await.unwrap();
    assert_eq!(multiset(&at, &ints(&[]).schema()), multiset(&[ints(&then)], &ints(&[]).schema()));
    // With the newest version alone to keep, next to nothing is left.
    table.optimize(Some(i64::MAX)).await.unwrap();
    let data = names(&folder, "");
    assert_eq!(data.len(), 2, "{data:?}");
    assert!(names(&folder, "_delta_log").len() < 6);
    assert_eq!(numbers(&Table::open(&lake, "main/default/t").await.unwrap().unwrap()).await, now);
    assert_eq!(
        multiset(&by_delta_rs(&lake, None).await, &ints(&[]).schema()),
        multiset(&[ints(&now)], &ints(&[]).schema())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_of_thousands_of_epochs_stays_small() {
    let lake = Lake::in_memory();
    let mut table = Table::open_or_create(&lake, of(&[])).await.unwrap();
    table.retention = Retention::none();
    let count = async |inside: &str| lake.stored(&format!("main/default/t{inside}")).await.unwrap().len();
    let mut most = (0, 0, 0);
    for epoch in 1..=2000u64 {
        let n = epoch as i64;
        table.commit(change(epoch, &[n], &if n > 40 { vec![n - 40] } else { vec![] })).await.unwrap().unwrap();
        table.maintain(Some(table.version())).await.unwrap();
        most.0 = most.0.max(table.files());
        if epoch % 100 == 0 {
            most = (most.0, most.1.max(count("").await), most.2.max(count("/_delta_log").await));
        }
    }
    assert!(most.0 <= 40 && most.1 < 1300 && most.2 < 700, "{most:?} live files, files and log entries at most");
    table.optimize(Some(i64::MAX)).await.unwrap();
    let left = (table.files(), count("").await, count("/_delta_log").await);
    assert!(left.0 == 1 && left.1 < 4 && left.2 < 6, "{left:?}");
    let again = Table::open(&lake, "main/default/t").await.unwrap().unwrap();
    assert_eq!(numbers(&again).await, (1961..=2000).collect::<Vec<i64>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_can_do_without_vectors_and_with_them_again() {
    let (folder, lake) = new_lake().await;
    let rewrite = of(&[("silverflow.sink", "rewrite")]);
    let protocol = |version: i64| {
        let path = folder.path().join(format!("main/default/t/_delta_log/{version:020}.json"));
        let text = std::fs::read_to_string(path).unwrap();
        let actions = log::parse(text.as_bytes()).unwrap();
        actions.iter().find_map(|x| x.get("protocol")).cloned()
    };
    let mut table = Table::open_or_create(&lake, rewrite.clone()).await.unwrap();
    assert_eq!(protocol(0), Some(serde_json::json!({"minReaderVersion": 1, "minWriterVersion": 2})));
    table.commit(change(1, &[1, 2, 3], &[])).await.unwrap();
    table.commit(change(2, &[4], &[2])).await.unwrap();
    assert_eq!(table.files.len(), 1, "what is left of a touched file and new rows share a file");
    assert_eq!(numbers(&table).await, [1, 3, 4]);
    // With vectors.
    let mut table = Table::open_or_create(&lake, of(&[])).await.unwrap();
    assert_eq!(protocol(table.version()).unwrap()["minReaderVersion"], 3);
    table.commit(change(3, &[5], &[1])).await.unwrap();
    assert!(table.files.values().any(|x| x.vector.is_some()));
    let version = table.version();
    assert_eq!(Table::open_or_create(&lake, of(&[])).await.unwrap().version(), version, "nothing is left to change");
    // And without.
    let mut table = Table::open_or_create(&lake, rewrite.clone()).await.unwrap();
    assert!(table.files.values().all(|x| x.vector.is_none()));
    table.commit(change(4, &[6], &[3, 5])).await.unwrap();
    assert!(table.files.values().all(|x| x.vector.is_none()));
    let version = table.version();
    assert_eq!(Table::open_or_create(&lake, rewrite).await.unwrap().version(), version, "nothing is left to change");
    let rows = multiset(&by_delta_rs(&lake, None).await, &ints(&[]).schema());
    assert_eq!(rows, multiset(&[ints(&[4, 6])], &ints(&[]).schema()));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_others_did_between_two_runs_is_noticed_unless_it_is_harmless() {
    let (_folder, lake) = new_lake().await;
    let mut table = Table::open_or_create(&lake, of(&[])).await.unwrap();
    table.commit(change(1, &[1, 2], &[])).await.unwrap();
    table.commit(change(2, &[3], &[1])).await.unwrap();
    let known = table.version();
    lake.load_delta("main/default/t", None).await.unwrap().unwrap().optimize().await.unwrap();
    let mut table = Table::open_or_create(&lake, TableSpec { generation: 2, comment: Some("new".into()), ..of(&[]) })
        .await
        .unwrap();
    table.fence(2).await.unwrap();
    table.commit(change(3, &[4], &[])).await.unwrap();
    table.unchanged_since(known).await.unwrap();
    let delta = lake.load_delta("main/default/t", None).await.unwrap().unwrap();
    delta.delete().with_predicate(datafusion::prelude::col("n").eq(datafusion::prelude::lit(2))).await.unwrap();
    let table = Table::open(&lake, "main/default/t").await.unwrap().unwrap();
    let error = table.unchanged_since(known).await.unwrap_err();
    assert_eq!((error.code(), error.fault()), ("TABLE_CHANGED_OUTSIDE", crate::error::Fault::External));
    let text = error.to_string();
    assert!(text.contains("DELETE") && text.contains("--full-refresh"), "{text}");
    table.unchanged_since(table.version()).await.unwrap();
    assert_eq!(table.unchanged_since(table.version() + 1).await.unwrap_err().code(), "TABLE_CHANGED_OUTSIDE");
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_that_is_no_interval_is_refused() {
    let (_folder, lake) = new_lake().await;
    let error = Table::open_or_create(&lake, of(&[("delta.logRetentionDuration", "a week")])).await.unwrap_err();
    assert_eq!(error.code(), "INVALID_PROPERTY_VALUE");
    let table = Table::open_or_create(&lake, of(&[("DELTA.logretentionduration", "interval 2 weeks")])).await.unwrap();
    assert_eq!(table.retention.log, Some(14 * 86_400_000));
    assert_eq!(table.retention.files, 3 * 86_400_000);
}
