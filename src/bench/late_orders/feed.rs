//! The feed: order items, their orders, and which of them come late, out of order or never. A function of the settings
//! alone.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};

use super::Settings;
use crate::error::{Error, Result};

/// First sequence of a feed: 2026-01-01, in microseconds since 1970.
const ORIGIN: i64 = 1_767_225_600_000_000;
/// Sequences of neighbouring epochs are so many microseconds apart.
const STRIDE: i64 = 60_000_000;

/// One change of an order item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Item {
    /// The item.
    pub(super) item: u64,
    /// Its order.
    pub(super) order: u64,
    /// How many of the product.
    pub(super) quantity: i64,
    /// When the change happened at its sender, in microseconds since 1970.
    pub(super) sequence: i64,
}

/// What arrives in one epoch.
#[derive(Clone, Debug, Default)]
pub(super) struct Arrival {
    /// Changes of items.
    pub(super) items: Vec<Item>,
    /// Orders, with the number of epochs that each came after its items.
    pub(super) orders: Vec<(u64, u64)>,
}

/// A well mixed function of a number.
fn scatter(n: u64) -> u64 {
    let mut x = n.wrapping_add(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// A number in `[0, 1)`.
fn share(seed: u64, what: u64, n: u64) -> f64 {
    (scatter(seed ^ scatter(what ^ scatter(n))) >> 11) as f64 / (1u64 << 53) as f64
}

/// The epoch in which an order's items come, and the one in which the order does, if ever.
fn fate(settings: &Settings, order: u64) -> Option<u64> {
    let at = order * settings.items_per_order / settings.batch.max(1);
    if share(settings.seed, 1, order) < settings.never {
        return None;
    }
    if share(settings.seed, 2, order) >= settings.late {
        return Some(at);
    }
    let (least, most) = settings.lag;
    let lag = least + (share(settings.seed, 3, order) * (most - least + 1) as f64) as u64;
    Some(at + lag.min(most))
}

/// The whole feed, epoch by epoch. After the epochs with items come those in which the last late orders arrive.
pub(super) fn feed(settings: &Settings) -> Vec<Arrival> {
    let items = settings.batch * settings.epochs;
    let orders = items.div_ceil(settings.items_per_order.max(1));
    let mut epochs: Vec<Arrival> = Vec::new();
    epochs.resize_with(settings.epochs as usize, Arrival::default);
    for order in 0..orders {
        let first = order * settings.items_per_order / settings.batch.max(1);
        let Some(arrives) = fate(settings, order) else { continue };
        if epochs.len() <= arrives as usize {
            epochs.resize_with(arrives as usize + 1, Arrival::default);
        }
        if let Some(epoch) = epochs.get_mut(arrives as usize) {
            epoch.orders.push((order, arrives - first));
        }
    }
    for event in 0..items {
        let epoch = event / settings.batch.max(1);
        // A correction of an earlier item that is older than what is known of it splits its history.
        let old = event > 0 && share(settings.seed, 4, event) < settings.out_of_order;
        let item = if old { scatter(settings.seed ^ event) % event } else { event };
        let at = ORIGIN + STRIDE * (item / settings.batch.max(1)) as i64;
        let sequence = if old { at - 1 - (scatter(event) % 1_000_000) as i64 } else { at };
        let change = Item {
            item,
            order: item / settings.items_per_order.max(1),
            quantity: 1 + (scatter(event ^ 7) % 9) as i64,
            sequence,
        };
        if let Some(epoch) = epochs.get_mut(epoch as usize) {
            epoch.items.push(change);
        }
    }
    epochs
}

/// Columns of an item's change, as the definitions declare them.
pub(super) fn item_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("item_id", DataType::Utf8, true),
        Field::new("order_id", DataType::Utf8, true),
        Field::new("product_id", DataType::Utf8, true),
        Field::new("quantity", DataType::Int64, true),
        Field::new("updated_at", utc(), true),
    ]))
}

/// Columns of an order.
pub(super) fn order_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("order_id", DataType::Utf8, true),
        Field::new("customer_id", DataType::Utf8, true),
        Field::new("updated_at", utc(), true),
    ]))
}

fn utc() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
}

fn names(prefix: &str, numbers: impl Iterator<Item = u64>) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(numbers.map(|n| format!("{prefix}-{n:012}"))))
}

fn instants(values: impl Iterator<Item = i64>) -> ArrayRef {
    Arc::new(TimestampMicrosecondArray::from_iter_values(values).with_timezone("UTC"))
}

impl Arrival {
    /// The items as rows.
    pub(super) fn item_rows(&self) -> Result<RecordBatch> {
        let columns = vec![
            names("item", self.items.iter().map(|x| x.item)),
            names("order", self.items.iter().map(|x| x.order)),
            names("product", self.items.iter().map(|x| scatter(x.item) % 10_000)),
            Arc::new(Int64Array::from_iter_values(self.items.iter().map(|x| x.quantity))),
            instants(self.items.iter().map(|x| x.sequence)),
        ];
        RecordBatch::try_new(item_schema(), columns).map_err(|e| Error::internal("a feed of items").caused_by(e))
    }

    /// The orders as rows.
    pub(super) fn order_rows(&self) -> Result<RecordBatch> {
        let columns = vec![
            names("order", self.orders.iter().map(|x| x.0)),
            names("customer", self.orders.iter().map(|x| scatter(x.0) % 100_000)),
            instants(self.orders.iter().map(|x| ORIGIN + x.0 as i64)),
        ];
        RecordBatch::try_new(order_schema(), columns).map_err(|e| Error::internal("a feed of orders").caused_by(e))
    }
}
