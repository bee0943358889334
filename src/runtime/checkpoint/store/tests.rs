#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;

use silverflow_operators::{DedupState, Row, STATE_FORMAT, State};

use super::*;
use crate::dataflow::{ROW_FORMAT, UNUSABLE};
use crate::plan::SEMANTICS;

fn manifest(epoch: u64) -> Manifest {
    Manifest {
        epoch,
        wall_micros: 7,
        state_format: STATE_FORMAT,
        row_format: ROW_FORMAT,
        semantics: SEMANTICS,
        workers: 1,
        fingerprints: [("t".to_owned(), "f".to_owned())].into(),
        versions: [("t".to_owned(), 3)].into(),
        objects: Vec::new(),
        operators: BTreeMap::new(),
    }
}

fn grow(state: &mut DedupState, numbers: std::ops::Range<u64>, diff: isize) {
    let rows: Vec<_> = numbers
        .map(|n| ((Row::from(format!("key {}", n % 700).as_bytes()), Row::from(&n.to_be_bytes())), diff))
        .collect();
    state.apply(&rows, &mut Vec::new());
}

/// The rows of a restored state, by taking them all back.
fn content(restored: Restored) -> Vec<Row> {
    let mut states = crate::dataflow::States::new(Some(restored.into()), None, 0, 1);
    let state = states.register("t", DedupState::new()).unwrap();
    let mut out = Vec::new();
    for n in 0..3_000u64 {
        let key = Row::from(format!("key {}", n % 700).as_bytes());
        state.borrow_mut().apply(&[((key, Row::from(&n.to_be_bytes())), -1)], &mut out);
    }
    out.into_iter().map(|(row, _)| row).collect()
}

struct Case {
    folder: tempfile::TempDir,
    lake: Lake,
    io: tokio::runtime::Runtime,
}

impl Case {
    fn new() -> Case {
        let folder = tempfile::tempdir().unwrap();
        let io = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let lake = io.block_on(Lake::open(folder.path().to_str().unwrap())).unwrap();
        Case { folder, lake, io }
    }

    fn write(&self, store: &mut Store, epoch: u64, state: &mut DedupState) -> Written {
        let states = States::from([(0, vec![("t/0".to_owned(), state.snapshot())])]);
        let staged = self.io.block_on(store.stage(epoch, &states)).unwrap();
        self.io.block_on(store.publish(manifest(epoch), staged)).unwrap()
    }

    fn find(&self, store: &mut Store) -> (Option<Found>, Vec<String>) {
        let warnings = Mutex::new(Vec::new());
        let warn = |line: &str| warnings.lock().unwrap().push(line.to_owned());
        let found = self.io.block_on(store.find(|m| m.epoch <= 100, self.folder.path(), &warn)).unwrap();
        (found, warnings.into_inner().unwrap())
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.folder.path().join("_silverflow/checkpoints")).unwrap();
        let mut files: Vec<PathBuf> = entries.map(|e| e.unwrap().path()).collect();
        files.sort();
        files
    }
}

#[test]
fn only_what_is_new_is_written_and_what_nobody_needs_goes() {
    let case = Case::new();
    let mut store = Store::new(&case.lake);
    let mut state = DedupState::new();
    let mut plain = DedupState::new();
    grow(&mut state, 0..200_000, 1);
    grow(&mut plain, 0..200_000, 1);
    let first = case.write(&mut store, 1, &mut state);
    assert!(first.bytes > 1_000_000 && first.reused == 0, "{first:?}");
    let mut all = 0;
    for epoch in 2..20 {
        let numbers = epoch * 1_000..epoch * 1_000 + 300;
        grow(&mut state, 200_000 + numbers.start..200_000 + numbers.end, 1);
        grow(&mut state, numbers, -1);
        let written = case.write(&mut store, epoch, &mut state);
        assert!(written.bytes + written.reused > 1_000_000, "{written:?}");
        all += written.bytes;
        let manifests = case.files().iter().filter(|f| f.extension().unwrap() == "json").count();
        assert_eq!(manifests, 2);
    }
    assert!(all < first.bytes * 2, "{all} of {}", first.bytes);
    let size: u64 = case.files().iter().map(|f| f.metadata().unwrap().len()).sum();
    assert!(size < first.bytes * 4, "{size} of {}", first.bytes);
    // A run that begins with it knows what is written already.
    let mut store = Store::new(&case.lake);
    let (found, warnings) = case.find(&mut store);
    assert_eq!(warnings, Vec::<String>::new());
    let found = found.unwrap();
    assert_eq!(found.manifest.epoch, 19);
    let mut states = crate::dataflow::States::new(Some(found.state.into()), None, 0, 1);
    let again = states.register("t", DedupState::new()).unwrap();
    assert_eq!(again.borrow().len(), state.len());
    let written = case.write(&mut store, 20, &mut again.borrow_mut());
    assert!(written.bytes < 100_000 && written.reused > 1_000_000, "{written:?}");
}

#[test]
fn no_byte_of_a_checkpoint_leads_to_a_panic_or_to_other_state() {
    let case = Case::new();
    let mut state = DedupState::new();
    grow(&mut state, 0..40, 1);
    case.write(&mut Store::new(&case.lake), 1, &mut state);
    let whole: Vec<(PathBuf, Vec<u8>)> = case.files().into_iter().map(|f| (f.clone(), fs::read(&f).unwrap())).collect();
    let expected = content(case.find(&mut Store::new(&case.lake)).0.unwrap().state);
    assert_eq!(expected.len(), 40);
    for (path, bytes) in &whole {
        let mut tried = Vec::new();
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            tried.push((flipped, format!("{} with byte {at} flipped", path.display())));
        }
        for cut in (0..bytes.len()).step_by(13) {
            tried.push((bytes[..cut].to_vec(), format!("{} cut at {cut}", path.display())));
        }
        for (bytes, context) in tried {
            fs::write(path, bytes).unwrap();
            let (found, warnings) = case.find(&mut Store::new(&case.lake));
            match found {
                None => assert_eq!(warnings.len(), 1, "{context}"),
                Some(found) => assert_eq!(content(found.state), expected, "{context}"),
            }
        }
        fs::write(path, bytes).unwrap();
    }
    for (path, bytes) in &whole {
        fs::remove_file(path).unwrap();
        let (found, warnings) = case.find(&mut Store::new(&case.lake));
        assert!(found.is_none(), "{warnings:?}");
        fs::write(path, bytes).unwrap();
    }
}

#[test]
fn checkpoints_of_other_releases_are_passed_over_and_older_ones_used() {
    let case = Case::new();
    let mut state = DedupState::new();
    grow(&mut state, 0..40, 1);
    let mut store = Store::new(&case.lake);
    case.write(&mut store, 1, &mut state);
    for change in 0..4 {
        let mut foreign = manifest(2);
        match change {
            0 => foreign.state_format += 1,
            1 => foreign.row_format += 1,
            2 => foreign.semantics += 1,
            _ => {}
        }
        let mut bytes = String::from_utf8(foreign.encode().unwrap()).unwrap();
        if change == 3 {
            bytes = bytes.replacen("\"format\":2", "\"format\":9", 1);
        }
        let path = case.folder.path().join("_silverflow/checkpoints/00000000000000000002.json");
        fs::write(&path, bytes).unwrap();
        let mut store = Store::new(&case.lake);
        let (found, warnings) = case.find(&mut store);
        assert_eq!(found.unwrap().manifest.epoch, 1);
        assert!(warnings[0].contains("is not the one of this version"), "{warnings:?}");
        // The next one takes its place.
        if change == 3 {
            case.write(&mut store, 2, &mut state);
            assert_eq!(case.find(&mut Store::new(&case.lake)).0.unwrap().manifest.epoch, 2);
        }
    }
}

#[test]
fn state_of_other_operators_is_unusable() {
    let case = Case::new();
    let mut state = DedupState::new();
    grow(&mut state, 0..40, 1);
    case.write(&mut Store::new(&case.lake), 1, &mut state);
    let states = || {
        let found = case.find(&mut Store::new(&case.lake)).0.unwrap();
        crate::dataflow::States::new(Some(found.state.into()), None, 0, 1)
    };
    let error = states().register("other", DedupState::new()).map(drop).unwrap_err();
    assert_eq!(error.code(), UNUSABLE);
    let error = states().register("t", silverflow_operators::DistinctState::new()).map(drop).unwrap_err();
    assert_eq!(error.code(), UNUSABLE);
    assert_eq!(states().finish().map(drop).unwrap_err().code(), UNUSABLE);
}

/// A large block is read a part at a time: damage is found by whoever looks at it, and nobody else.
#[test]
fn damage_of_a_large_block_raises_the_alarm_when_it_is_looked_at() {
    let case = Case::new();
    let (mut state, rows) = (DedupState::new(), 60_000u64);
    let row = |n: u64| (Row::from(&n.to_be_bytes()), Row::from(vec![n as u8; 100]));
    let all: Vec<_> = (0..rows).map(|n| (row(n), 1)).collect();
    state.apply(&all, &mut Vec::new());
    case.write(&mut Store::new(&case.lake), 1, &mut state);
    let path = case.files().into_iter().find(|path| path.metadata().unwrap().len() > 6_000_000).unwrap();
    let whole = fs::read(&path).unwrap();
    // In the block: rows are behind 100 bytes of another one, so the last part of it is theirs.
    for at in [whole.len() / 2, whole.len() - whole.len() / 4, whole.len() - 400] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let found = case.find(&mut Store::new(&case.lake));
        if at == whole.len() - 400 {
            assert!(found.0.is_none(), "the checksums are looked at first");
            continue;
        }
        let Found { state, alarm, .. } = found.0.unwrap();
        assert!(!alarm.is_raised());
        let mut states = crate::dataflow::States::new(Some(state.into()), None, 0, 1);
        let state = states.register("t", DedupState::new()).unwrap();
        assert_eq!((state.borrow().len() as u64, alarm.is_raised()), (rows, false));
        let mut looked = 0;
        let mut out = Vec::new();
        while looked < rows && !alarm.is_raised() {
            out.clear();
            state.borrow_mut().apply(&[(row(looked), -1)], &mut out);
            // What is given before the alarm is right.
            if !alarm.is_raised() {
                assert_eq!(out, [(row(looked).1, -1)]);
            }
            looked += 1;
        }
        assert!(looked > 1 && looked < rows, "looked at {looked}");
        // No checkpoint is made of it.
        let mut store = Store::new(&case.lake);
        case.find(&mut store);
        let again = States::from([(0, vec![("t/0".to_owned(), state.borrow_mut().snapshot())])]);
        let staged = case.io.block_on(store.stage(2, &again)).unwrap();
        store.alarm = alarm;
        let error = case.io.block_on(store.publish(manifest(2), staged)).map(drop).unwrap_err();
        assert_eq!(error.code(), DAMAGED);
    }
}
