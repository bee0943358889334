//! The stage `operators`: byte rows through one lookup and one SCD2 history.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use differential_dataflow::AsCollection;
use silverflow_operators::{Change, Epoch, Lookup, LookupKind, Row, Scd2, Upsert};
use timely::container::CapacityContainerBuilder;
use timely::dataflow::InputHandle;
use timely::dataflow::operators::Inspect;
use timely::dataflow::operators::Probe;

use super::Measured;
use super::feed::{Arrival, Item};
use crate::error::Result;

type Input<D> = InputHandle<Epoch, CapacityContainerBuilder<Vec<(D, Epoch, isize)>>>;

/// A row of 64 bytes that begins with its item and its sequence.
fn value(item: &Item) -> Row {
    let mut bytes = [0u8; 64];
    for (slot, number) in bytes.chunks_exact_mut(8).zip([item.item, item.sequence as u64, item.quantity as u64]) {
        slot.copy_from_slice(&number.to_be_bytes());
    }
    Row::from(&bytes[..])
}

fn key(prefix: &str, number: u64) -> Row {
    Row::from(format!("{prefix}-{number:012}").into_bytes())
}

/// The part of a row at `from`, eight bytes of it.
fn part(row: &Row, from: usize) -> &[u8] {
    row.as_bytes().get(from..from + 8).unwrap_or_default()
}

pub(super) fn run(feed: &[Arrival], progress: &mut dyn FnMut(u64, u64)) -> Result<Measured> {
    // The worker's closure must own what it uses; the feed is only read.
    let mut measured = Measured::default();
    let allocator = timely::communication::Allocator::Thread(timely::communication::allocator::Thread::default());
    let mut worker = timely::worker::Worker::new(timely::WorkerConfig::default(), allocator, Some(Instant::now()));
    let mut items: Input<(Option<Row>, Row)> = Input::new_with_builder();
    let mut orders: Input<(Row, Row)> = Input::new_with_builder();
    let touched = Rc::new(Cell::new(0u64));
    let count = Rc::clone(&touched);
    let probe = worker.dataflow::<Epoch, _, _>(|scope| {
        let rows = items.to_stream(scope).as_collection();
        let reference = orders.to_stream(scope).as_collection();
        let checked = rows.lookup(reference, LookupKind::Left, "order of an item");
        let resolved = checked.flat_map(|(value, order)| {
            order.map(|_| {
                let upsert = Upsert { tracked: part(&value, 16), ..Upsert::of(&value) };
                (value.part(part(&value, 0)), Change::new(part(&value, 8), Some(upsert)))
            })
        });
        let history = resolved.scd2("history of an item", |_, _| {});
        let (probe, _) = history
            .inner
            .inspect_core(move |event| {
                if let Ok((_, rows)) = event {
                    count.set(count.get() + rows.len() as u64);
                }
            })
            .probe();
        probe
    });
    for (number, arrival) in feed.iter().enumerate() {
        let epoch = number as Epoch;
        let mut item_rows: Vec<_> =
            arrival.items.iter().map(|x| ((Some(key("order", x.order)), value(x)), epoch, 1)).collect();
        let mut order_rows: Vec<_> =
            arrival.orders.iter().map(|x| ((key("order", x.0), Row::default()), epoch, 1)).collect();
        let before = touched.get();
        let start = Instant::now();
        items.send_batch(&mut item_rows);
        orders.send_batch(&mut order_rows);
        items.advance_to(epoch + 1);
        orders.advance_to(epoch + 1);
        items.flush();
        orders.flush();
        while probe.less_than(&(epoch + 1)) {
            worker.step();
        }
        let took = start.elapsed();
        // An operator emits the net difference of an epoch, so nothing here cancels out.
        let rows = touched.get() - before;
        measured.epoch(took, rows, Some(rows));
        progress(epoch + 1, feed.len() as u64);
    }
    Ok(measured)
}
