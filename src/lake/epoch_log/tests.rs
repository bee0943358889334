#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

use std::sync::Arc;

use url::Url;

use super::*;
use crate::lake::faults::Guard;
use crate::lake::objects::Objects;
use crate::lake::{FileId, Position};

fn begin(epoch: u64, files: &[&str]) -> Begin {
    let files = files.iter().map(|x| FileId { path: (*x).into(), size: 1, modified_micros: 2 }).collect();
    Begin {
        epoch,
        wall_micros: 1000 + epoch as i64,
        sources: [
            ("raw".to_owned(), Position::Files(files)),
            ("t".to_owned(), Position::Delta { from: None, to: epoch as i64, table: Some("id".to_owned()) }),
        ]
        .into(),
        fingerprints: [("a".to_owned(), format!("f{epoch}"))].into(),
        once: if epoch == 1 { vec!["o".into()] } else { vec![] },
        ..Begin::default()
    }
}

fn complete(epoch: u64) -> Complete {
    Complete {
        epoch,
        versions: [("main.default.a".to_owned(), epoch as i64 + 7)].into(),
        returned: BTreeSet::new(),
        stray: BTreeSet::new(),
        due_micros: Some(epoch as i64),
    }
}

fn abort(epoch: u64) -> Abort {
    Abort { epoch, reason: "no".into(), stray: [format!("t{epoch}")].into() }
}

fn owner(id: &str) -> Owner {
    Owner { id: id.into(), host: "here".into(), boot: None, pid: 7, since_micros: 0, beat_millis: 1000 }
}

fn lake() -> Lake {
    Lake::with_store(
        Objects::remote(Arc::new(object_store::memory::InMemory::new()), Guard::default()),
        &Url::parse("memory:///log").unwrap(),
    )
    .unwrap()
}

/// A log that a run has taken.
async fn taken(lake: &Lake, id: &str) -> EpochLog {
    let (mut log, _) = EpochLog::load(lake).await.unwrap();
    log.take(owner(id)).await.unwrap().unwrap();
    log
}

/// Where the records are.
async fn records(lake: &Lake) -> Vec<String> {
    let names = lake.list("_silverflow/epochs").await.unwrap();
    names.into_iter().map(|name| format!("_silverflow/epochs/{name}")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_is_what_the_next_run_reads() {
    let lake = lake();
    let (mut log, history) = EpochLog::load(&lake).await.unwrap();
    assert_eq!(history, History::default());
    assert_eq!(log.begin(&begin(1, &[])).await.unwrap_err().code(), "INTERNAL", "nobody has taken the storage");
    assert_eq!(log.take(owner("a")).await.unwrap(), Some(1));
    log.begin(&begin(1, &["x", "y"])).await.unwrap();
    log.complete(&complete(1)).await.unwrap();
    log.begin(&begin(2, &["z"])).await.unwrap();
    log.abort(&abort(2)).await.unwrap();
    log.begin(&begin(5, &["z"])).await.unwrap();
    let (again, history) = EpochLog::load(&lake).await.unwrap();
    assert_eq!(&history, log.history());
    assert_eq!(history.generation.as_ref().unwrap().owner, owner("a"));
    assert_eq!(history.last_complete, Some(1));
    assert_eq!(history.next, 6);
    assert_eq!(history.due_micros, Some(1));
    assert_eq!(history.stray, ["t2".to_owned()].into());
    assert_eq!(history.open, Some(begin(5, &["z"])));
    assert!(history.has_seen("raw", "x") && !history.has_seen("raw", "z"));
    assert_eq!(history.delta_position("t"), Some(1));
    assert_eq!(history.walls, [(1, 1001)].into());
    assert_eq!(history.finished_once, ["o".to_owned()].into());
    drop(again);
}

/// A run that was taken over writes nothing, whatever it was about to write, and the new one knows all that it had written.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_taken_over_writes_nothing() {
    for written in 0..5 {
        let lake = lake();
        let mut old = taken(&lake, "old").await;
        for step in 0..written {
            match step {
                0 => old.begin(&begin(1, &["x"])).await.unwrap(),
                1 => old.complete(&complete(1)).await.unwrap(),
                2 => old.begin(&begin(2, &["y"])).await.unwrap(),
                _ => old.abort(&abort(2)).await.unwrap(),
            }
        }
        let mut new = taken(&lake, "new").await;
        let mut known = new.history().clone();
        known.generation.clone_from(&old.history().generation);
        assert_eq!(&known, old.history());
        let before = new.history().clone();
        let next = before.next;
        let late = match before.open.as_ref().map(|x| x.epoch) {
            Some(epoch) => [old.abort(&abort(epoch)).await, old.complete(&complete(epoch)).await],
            None => [old.begin(&begin(next, &["z"])).await, old.begin(&begin(next + 1, &["z"])).await],
        };
        for result in late {
            let error = result.unwrap_err();
            assert_eq!((error.code(), error.fault().exit_code()), ("FENCED", 3));
            assert!(error.to_string().contains("generation 2: process 7 on here"), "{error}");
        }
        assert_eq!(EpochLog::load(&lake).await.unwrap().1, before);
        match before.open.as_ref().map(|x| x.epoch) {
            Some(epoch) => new.complete(&complete(epoch)).await.unwrap(),
            None => new.begin(&begin(next, &["z"])).await.unwrap(),
        }
        assert_eq!(&EpochLog::load(&lake).await.unwrap().1, new.history());
        let (mut again, _) = EpochLog::load(&lake).await.unwrap();
        assert_eq!(again.resume(1).unwrap_err().code(), "FENCED");
        again.resume(2).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_runs_that_take_the_storage_at_once_each_generation_has_one() {
    let lake = lake();
    let takers = (0..8).map(|i| {
        let lake = lake.clone();
        tokio::spawn(async move {
            let mut lost = 0;
            loop {
                let (mut log, _) = EpochLog::load(&lake).await.unwrap();
                match log.take(owner(&i.to_string())).await.unwrap() {
                    Some(generation) => return (generation, lost),
                    None => lost += 1,
                }
            }
        })
    });
    let mut generations = Vec::new();
    for taker in takers.collect::<Vec<_>>() {
        generations.push(taker.await.unwrap().0);
    }
    generations.sort_unstable();
    assert_eq!(generations, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(EpochLog::load(&lake).await.unwrap().1.generation(), 8);
}

/// The store said no, or nothing at all, and the record is there nevertheless.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_seemed_not_to_be_written_is_written_once() {
    let lake = lake();
    let mut log = taken(&lake, "a").await;
    let (mut twin, _) = EpochLog::load(&lake).await.unwrap();
    twin.resume(1).unwrap();
    twin.begin(&begin(1, &["x"])).await.unwrap();
    log.begin(&begin(1, &["x"])).await.unwrap();
    assert_eq!(records(&lake).await.len(), 2);
    twin.abort(&abort(1)).await.unwrap();
    assert_eq!(log.complete(&complete(1)).await.unwrap_err().code(), "EPOCH_LOG_DAMAGED", "an epoch ends once");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_records_become_a_base_and_nothing_is_forgotten() {
    let lake = lake();
    let mut idle = taken(&lake, "idle").await;
    let mut log = taken(&lake, "a").await;
    for epoch in 1..=250 {
        log.begin(&begin(epoch, &[&format!("f{epoch}")])).await.unwrap();
        log.complete(&complete(epoch)).await.unwrap();
        if epoch % 40 == 0 {
            let (again, history) = EpochLog::load(&lake).await.unwrap();
            assert_eq!(&history, log.history());
            drop(again);
            log = taken(&lake, "b").await;
        }
    }
    let count = records(&lake).await.len();
    assert!(count <= RECORDS + 12, "{count}");
    let (_, history) = EpochLog::load(&lake).await.unwrap();
    assert_eq!(&history, log.history());
    assert_eq!(history.seen("raw").unwrap().len(), 250);
    assert_eq!(history.walls.len(), 250);
    assert_eq!(history.past.len(), 200);
    assert_eq!(history.past.last_key_value(), Some((&250, &complete(250).versions)));
    // The record that shut out the first run is still there.
    assert_eq!(idle.begin(&begin(1, &[])).await.unwrap_err().code(), "FENCED");
    assert_eq!(EpochLog::load(&lake).await.unwrap().1, history);
}

#[tokio::test(flavor = "multi_thread")]
async fn records_of_generations_do_not_pile_up() {
    let lake = lake();
    for epoch in 1..=RECORDS as u64 * 2 {
        let mut log = taken(&lake, "a").await;
        log.begin(&begin(epoch, &[])).await.unwrap();
        log.complete(&complete(epoch)).await.unwrap();
    }
    let count = records(&lake).await.len();
    assert!(count <= RECORDS + GENERATIONS + 4, "{count}");
    assert_eq!(EpochLog::load(&lake).await.unwrap().1.generation(), RECORDS as u64 * 2);
}

/// A crash after the base was written and before the records were removed.
#[tokio::test(flavor = "multi_thread")]
async fn records_that_a_base_replaces_are_not_read() {
    let lake = lake();
    let mut log = taken(&lake, "a").await;
    let mut replaced = Vec::new();
    let mut epoch = 0;
    while log.base.is_none() {
        epoch += 1;
        log.begin(&begin(epoch, &[])).await.unwrap();
        replaced = records(&lake).await;
        log.complete(&complete(epoch)).await.unwrap();
    }
    for path in replaced {
        lake.replace(&path, b"not a record".to_vec()).await.unwrap();
    }
    assert_eq!(&EpochLog::load(&lake).await.unwrap().1, log.history());
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_is_an_external_error_that_names_the_record() {
    let lake = lake();
    let mut log = taken(&lake, "a").await;
    log.begin(&begin(1, &["some/path"])).await.unwrap();
    log.complete(&complete(1)).await.unwrap();
    let all = records(&lake).await;
    for path in &all {
        let whole = lake.get(path).await.unwrap().unwrap();
        let damaged = async |why: &str| match EpochLog::load(&lake).await {
            Err(e) => {
                assert_eq!(e.code(), "EPOCH_LOG_DAMAGED");
                assert!(e.to_string().contains(path), "{e}");
            }
            Ok(_) => panic!("{path}: {why} unnoticed"),
        };
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            lake.replace(path, bytes).await.unwrap();
            damaged(&format!("byte {at} changed")).await;
        }
        lake.replace(path, whole[..whole.len() / 2].to_vec()).await.unwrap();
        damaged("half").await;
        if Some(path) != all.last() {
            lake.remove(vec![path.clone()]).await.unwrap();
            damaged("gone").await;
        }
        lake.replace(path, whole).await.unwrap();
    }
}
