//! What one late row costs in a table of 100,000 versions. `--nocapture` shows the times beside those of bare syncs.

use std::io::Write;
use std::time::{Duration, Instant};

use super::*;

const KEYS: i64 = 25_000;

/// Key, start and end in hours.
type Version = (i64, i64, Option<i64>);

fn versions(rows: impl Iterator<Item = Version>) -> RecordBatch {
    let rows: Vec<_> = rows.collect();
    let text =
        |f: fn(i64) -> String| -> ArrayRef { Arc::new(rows.iter().map(|x| Some(f(x.0))).collect::<StringArray>()) };
    let time = |f: fn(&Version) -> Option<i64>| -> ArrayRef {
        Arc::new(rows.iter().map(f).collect::<TimestampMicrosecondArray>().with_timezone("UTC"))
    };
    RecordBatch::try_from_iter_with_nullable([
        ("order_id", text(|x| format!("ORD-{x:07}")), true),
        ("customer_id", text(|x| format!("CUST-{:06}", x * 7919 % 5000)), true),
        ("status", text(|x| ["PLACED", "SHIPPED", "DELIVERED"][(x % 3) as usize].to_owned()), true),
        ("note", text(|x| format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&x.to_le_bytes()))), true),
        ("__START_AT", time(|x| Some(x.1 * 3_600_000_000)), true),
        ("__END_AT", time(|x| x.2.map(|end| end * 3_600_000_000)), true),
    ])
    .unwrap()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_row_costs_kilobytes_in_a_table_of_a_hundred_thousand() {
    let (folder, lake) = new_lake().await;
    let all = versions((0..KEYS).flat_map(|key| (0..4).map(move |n| (key, n * 10, (n < 3).then_some(n * 10 + 10)))));
    let mut wanted = spec(&all.schema());
    wanted.layout = Layout { sort: vec!["order_id".into(), "__START_AT".into()], open: Some("__END_AT".into()) };
    let mut table = Table::open_or_create(&lake, wanted).await.unwrap();
    table.commit(Commit { epoch: 1, inserts: vec![all], ..Commit::default() }).await.unwrap();
    // The first delete learns where the rows are.
    let split = |key: i64, at: i64| Commit {
        epoch: 0,
        inserts: vec![versions([(key, 10, Some(at)), (key, at, Some(20))].into_iter())],
        deletes: vec![versions([(key, 10, Some(20))].into_iter())],
        ..Commit::default()
    };
    table.commit(Commit { epoch: 2, ..split(0, 13) }).await.unwrap().unwrap();
    table.optimize(None).await.unwrap();
    let (mut times, mut bytes) = (Vec::new(), Vec::new());
    for i in 0..20u64 {
        let commit = Commit { epoch: 3 + i, ..split(1 + 1201 * i as i64, 15) };
        let before = Instant::now();
        bytes.push(table.commit(commit).await.unwrap().unwrap().bytes);
        times.push(before.elapsed());
    }
    assert!(bytes.iter().all(|x| *x < 8_000), "{bytes:?}");
    assert_eq!(table.rows(), 4 * KEYS as u64 + 21);
    // A commit syncs three files and two folders, and creates a name.
    let bare = |i: usize| {
        let before = Instant::now();
        for part in 0..3 {
            let mut file = std::fs::File::create(folder.path().join(format!("bare-{i}-{part}"))).unwrap();
            file.write_all(&[7; 2000]).unwrap();
            file.sync_all().unwrap();
        }
        std::fs::File::open(folder.path()).unwrap().sync_all().unwrap();
        before.elapsed()
    };
    let bare = median((0..20).map(bare).collect());
    println!(
        "late row: median {:?}, {} bytes; bare syncs of three files and a folder: {bare:?}",
        median(times),
        bytes[19]
    );
}
