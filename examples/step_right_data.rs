//! Makes change feeds for the `step_right` example, of any size, the same for the same seed.
//!
//! ```text
//! cargo run --example step_right_data -- OUT --orders 12000 --batches 10 --format json --seed 1
//! ```
//!
//! Writes `OUT/<feed>/batch_<k>.<format>` for customers, products, orders and order items. A row goes to the batch in
//! which it would arrive, so later batches bring late customers, products and status changes, items come before their
//! orders, and every feed has the defects of a real one: references that nobody knows, missing and impossible values,
//! rows sent twice, a clock that runs ahead, deletes, and (JSON only) lines cut off and words where numbers belong.
//! `--defects 4` makes each defect four times as frequent, so that a small feed shows all of them.

use std::error::Error;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{
    ArrayRef, Date32Array, Decimal128Array, Int32Array, RecordBatch, StringArray, TimestampMicrosecondArray,
};
use arrow::json::LineDelimitedWriter;
use clap::{Parser, ValueEnum};
use parquet::arrow::ArrowWriter;
use xxhash_rust::xxh3::xxh3_64_with_seed;

#[derive(Parser)]
#[command(about = "Makes change feeds for the step_right example")]
struct Arguments {
    /// Folder that gets one folder a feed.
    out: PathBuf,
    /// Number of orders; customers, products and items follow from it.
    #[arg(long, default_value_t = 12_000)]
    orders: u64,
    /// Number of batches in which the rows arrive.
    #[arg(long, default_value_t = 10)]
    batches: u64,
    /// File format.
    #[arg(long, value_enum, default_value_t = Format::Json)]
    format: Format,
    /// The same seed makes the same feeds.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Multiplies the rate of every defect.
    #[arg(long, default_value_t = 1.0)]
    defects: f64,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Format {
    Json,
    Parquet,
}

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

/// 2025-01-01T00:00:00Z in seconds.
const START: i64 = 1_735_689_600;
const DAY: i64 = 86_400;
const HOUR: i64 = 3_600;
/// 2099-12-31T00:00:00Z in seconds: the future, whenever the example is run.
const FUTURE: i64 = 4_102_358_400;
const STATUSES: [&str; 4] = ["PLACED", "SHIPPED", "DELIVERED", "CANCELLED"];
const REGIONS: [&str; 4] = ["NORTHEAST", "SOUTHEAST", "MIDWEST", "WEST"];
const CATEGORIES: [&str; 6] = ["Running", "Trail", "Basketball", "Casual", "Training", "Sandals"];

/// The source of every random decision: a hash of what is decided about which thing.
struct Dice {
    seed: u64,
    batches: u64,
    defects: f64,
}

impl Dice {
    /// Uniform in `[0, 1)`, a function of the question and the thing alone.
    fn roll(&self, question: &str, thing: u64) -> f64 {
        let mut bytes = question.as_bytes().to_vec();
        bytes.extend_from_slice(&thing.to_le_bytes());
        (xxh3_64_with_seed(&bytes, self.seed) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn below(&self, question: &str, thing: u64, limit: u64) -> u64 {
        (self.roll(question, thing) * limit as f64) as u64
    }

    /// True for the given share of things, times `--defects`.
    fn defect(&self, question: &str, thing: u64, share: f64) -> bool {
        self.roll(question, thing) < share * self.defects
    }

    /// The batch for a point of the feed's life in `[0, 1)`, `late` batches later.
    fn batch(&self, life: f64, late: u64) -> u64 {
        ((self.batches as f64 * life) as u64 + late).min(self.batches - 1)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Damage {
    None,
    /// The line ends in the middle.
    Cut,
    /// The quantity is a word.
    Word,
}

/// One row of a feed, when it arrives, and what happened to it on the way.
#[derive(Clone)]
struct Arrival<R> {
    batch: u64,
    damage: Damage,
    row: R,
}

fn arrival<R>(batch: u64, row: R) -> Arrival<R> {
    Arrival { batch, damage: Damage::None, row }
}

type Columns = Vec<(&'static str, ArrayRef)>;

/// A kind of row that can be written.
trait Feed: Clone {
    const NAME: &'static str;
    fn columns(rows: &[&Self]) -> Outcome<Columns>;
    /// The same row as a clock that runs ahead would have stamped it.
    fn ahead(self) -> Self;
}

#[derive(Clone)]
struct Customer {
    id: u64,
    profile: Option<Profile>,
    updated: i64,
}

#[derive(Clone)]
struct Profile {
    email: Option<String>,
    region: Option<&'static str>,
    signup: i32,
}

#[derive(Clone)]
struct Product {
    id: u64,
    price: i128,
    updated: i64,
}

#[derive(Clone)]
struct Order {
    id: u64,
    placed: Option<(u64, Option<i32>, &'static str)>,
    updated: i64,
}

#[derive(Clone)]
struct Item {
    id: u64,
    line: Option<Line>,
    updated: i64,
}

#[derive(Clone)]
struct Line {
    product: u64,
    quantity: Option<i32>,
    price: i128,
    discount: i128,
}

fn text<T: AsRef<str>>(values: impl Iterator<Item = Option<T>>) -> ArrayRef {
    Arc::new(values.collect::<StringArray>())
}

fn day(values: impl Iterator<Item = Option<i32>>) -> ArrayRef {
    Arc::new(values.collect::<Date32Array>())
}

fn instant(values: impl Iterator<Item = i64>) -> ArrayRef {
    let micros = values.map(|seconds| Some(seconds * 1_000_000)).collect::<TimestampMicrosecondArray>();
    Arc::new(micros.with_timezone("UTC"))
}

fn decimal(values: impl Iterator<Item = Option<i128>>, precision: u8, scale: i8) -> Outcome<ArrayRef> {
    Ok(Arc::new(values.collect::<Decimal128Array>().with_precision_and_scale(precision, scale)?))
}

fn operation(deleted: impl Iterator<Item = bool>) -> ArrayRef {
    text(deleted.map(|deleted| Some(if deleted { "DELETE" } else { "UPSERT" })))
}

/// An id beyond those in use stands for a reference that nobody knows.
fn known(id: u64, unknown: &str, name: impl Fn(u64) -> String) -> String {
    if id == u64::MAX { unknown.to_string() } else { name(id) }
}

fn customer_id(id: u64) -> String {
    known(id, "CUST-999999", |id| format!("CUST-{id:06}"))
}

fn product_id(id: u64) -> String {
    known(id, "PROD-99999", |id| format!("PROD-{id:05}"))
}

fn order_id(id: u64) -> String {
    format!("ORD-{id:07}")
}

impl Feed for Customer {
    const NAME: &'static str = "customers";

    fn columns(rows: &[&Self]) -> Outcome<Columns> {
        let profiles = || rows.iter().map(|r| r.profile.as_ref());
        Ok(vec![
            ("customer_id", text(rows.iter().map(|r| Some(customer_id(r.id))))),
            ("first_name", text(rows.iter().map(|r| r.profile.as_ref().map(|_| format!("First{}", r.id % 997))))),
            ("last_name", text(rows.iter().map(|r| r.profile.as_ref().map(|_| format!("Last{}", r.id % 1009))))),
            ("email", text(profiles().map(|p| p.and_then(|p| p.email.as_ref())))),
            ("region", text(profiles().map(|p| p.and_then(|p| p.region)))),
            ("signup_date", day(profiles().map(|p| p.map(|p| p.signup)))),
            ("operation", operation(rows.iter().map(|r| r.profile.is_none()))),
            ("updated_at", instant(rows.iter().map(|r| r.updated))),
        ])
    }

    fn ahead(self) -> Self {
        Customer { updated: FUTURE, ..self }
    }
}

impl Feed for Product {
    const NAME: &'static str = "products";

    fn columns(rows: &[&Self]) -> Outcome<Columns> {
        let category = |r: &Product| CATEGORIES.get(r.id as usize % CATEGORIES.len()).copied();
        Ok(vec![
            ("product_id", text(rows.iter().map(|r| Some(product_id(r.id))))),
            ("product_name", text(rows.iter().map(|r| Some(format!("Shoe {}", r.id))))),
            ("category", text(rows.iter().map(|r| category(r)))),
            ("list_price", decimal(rows.iter().map(|r| Some(r.price)), 10, 2)?),
            ("launch_date", day(rows.iter().map(|_| Some((START / DAY) as i32)))),
            ("updated_at", instant(rows.iter().map(|r| r.updated))),
        ])
    }

    fn ahead(self) -> Self {
        Product { updated: FUTURE, ..self }
    }
}

impl Feed for Order {
    const NAME: &'static str = "orders";

    fn columns(rows: &[&Self]) -> Outcome<Columns> {
        Ok(vec![
            ("order_id", text(rows.iter().map(|r| Some(order_id(r.id))))),
            ("customer_id", text(rows.iter().map(|r| r.placed.map(|p| customer_id(p.0))))),
            ("order_date", day(rows.iter().map(|r| r.placed.and_then(|p| p.1)))),
            ("status", text(rows.iter().map(|r| r.placed.map(|p| p.2)))),
            ("operation", operation(rows.iter().map(|r| r.placed.is_none()))),
            ("updated_at", instant(rows.iter().map(|r| r.updated))),
        ])
    }

    fn ahead(self) -> Self {
        Order { updated: FUTURE, ..self }
    }
}

impl Feed for Item {
    const NAME: &'static str = "order_items";

    fn columns(rows: &[&Self]) -> Outcome<Columns> {
        let lines = || rows.iter().map(|r| r.line.as_ref());
        Ok(vec![
            ("order_item_id", text(rows.iter().map(|r| Some(format!("ITEM-{:08}", r.id))))),
            ("order_id", text(rows.iter().map(|r| r.line.as_ref().map(|_| order_id(r.id / 4))))),
            ("product_id", text(lines().map(|l| l.map(|l| product_id(l.product))))),
            ("quantity", Arc::new(lines().map(|l| l.and_then(|l| l.quantity)).collect::<Int32Array>())),
            ("unit_price", decimal(lines().map(|l| l.map(|l| l.price)), 10, 2)?),
            ("discount_pct", decimal(lines().map(|l| l.map(|l| l.discount)), 5, 1)?),
            ("operation", operation(rows.iter().map(|r| r.line.is_none()))),
            ("updated_at", instant(rows.iter().map(|r| r.updated))),
        ])
    }

    fn ahead(self) -> Self {
        Item { updated: FUTURE, ..self }
    }
}

fn customers(dice: &Dice, count: u64) -> Vec<Arrival<Customer>> {
    let mut rows = Vec::new();
    for id in 0..count {
        let life = dice.roll("customer changes", id);
        for change in 0..2u64 {
            if change == 1 && life >= 0.33 {
                continue;
            }
            let region = match dice.roll("customer region", id) / dice.defects {
                r if r < 0.02 => None,
                r if r < 0.03 => Some("ATLANTIS"),
                _ => REGIONS.get((id + change) as usize % REGIONS.len()).copied(),
            };
            let email = (!dice.defect("customer email", id, 0.02)).then(|| format!("c{id}@example.com"));
            let signup = 19_358 + (id % 700) as i32;
            // The first event is there from the start, but for a few customers who come late.
            let when = match change {
                0 if dice.defect("customer late", id, 0.05) => 0.3 + 0.7 * dice.roll("customer lateness", id),
                0 => 0.0,
                _ => 0.5 + 0.5 * life,
            };
            let updated = START + (life * (20 * DAY) as f64) as i64 + change as i64 * 30 * DAY;
            let profile = Some(Profile { email, region, signup });
            rows.push(arrival(dice.batch(when, 0), Customer { id, profile, updated }));
        }
        if dice.defect("customer leaves", id, 0.02) {
            let when = 0.5 + 0.5 * dice.roll("customer leaving", id);
            rows.push(arrival(dice.batch(when, 0), Customer { id, profile: None, updated: START + 90 * DAY }));
        }
    }
    rows
}

fn products(dice: &Dice, count: u64) -> Vec<Arrival<Product>> {
    let product = |id| {
        let late = dice.defect("product late", id, 0.05);
        let when = if late { dice.roll("product lateness", id) } else { 0.0 };
        let price = 3_999 + dice.below("product price", id, 15_000) as i128;
        arrival(dice.batch(when, 0), Product { id, price, updated: START + id as i64 })
    };
    (0..count).map(product).collect()
}

fn orders(dice: &Dice, count: u64, customers: u64) -> Vec<Arrival<Order>> {
    let mut rows = Vec::new();
    for id in 0..count {
        let life = dice.roll("order life", id);
        let unknown = dice.defect("order customer", id, 0.01);
        let customer = if unknown { u64::MAX } else { dice.below("order buyer", id, customers) };
        let date = match dice.roll("order date", id) / dice.defects {
            r if r < 0.01 => None,
            r if r < 0.02 => Some((FUTURE / DAY) as i32),
            _ => Some((START / DAY) as i32 + (life * 180.0) as i32),
        };
        let placed = START + (life * (180 * DAY) as f64) as i64;
        let changes = 1 + dice.below("order changes", id, 4);
        for change in 0..changes {
            let thing = id * 8 + change;
            let lost = change == 3 && dice.defect("order lost", id, 0.05);
            let status = if lost { "LOST" } else { STATUSES.get(change as usize).copied().unwrap_or("PLACED") };
            let late = dice.defect("order late", thing, 0.05);
            let late = if late { 1 + dice.below("order lateness", thing, 3) } else { 0 };
            let updated = placed + change as i64 * HOUR;
            rows.push(arrival(dice.batch(life, late), Order { id, placed: Some((customer, date, status)), updated }));
        }
        if dice.defect("order purged", id, 0.01) {
            let late = dice.below("order purge late", id, 2);
            rows.push(arrival(dice.batch(life, late), Order { id, placed: None, updated: placed + DAY }));
        }
    }
    rows
}

fn items(dice: &Dice, orders: u64, products: u64) -> Vec<Arrival<Item>> {
    let mut rows = Vec::new();
    for order in 0..orders {
        // Items come with their order's first batch, so before an order that is late.
        let life = dice.roll("order life", order);
        let placed = START + (life * (180 * DAY) as f64) as i64;
        for id in order * 4..=order * 4 + dice.below("order items", order, 4) {
            let unknown = dice.defect("item product", id, 0.02);
            let product = if unknown { u64::MAX } else { dice.below("item product id", id, products) };
            let first = 1 + dice.below("item quantity", id, 3) as i32;
            let odd = dice.roll("item odd quantity", id) / dice.defects;
            let negative = dice.defect("item negative price", id, 0.005);
            let price = if negative { -999 } else { 3_999 + dice.below("item price", id, 15_000) as i128 };
            let impossible = dice.defect("item discount", id, 0.003);
            let discount = if impossible { 1_500 } else { dice.below("item discount rate", id, 300) as i128 };
            let line = |quantity| Some(Line { product, quantity, price, discount });
            let quantity = |n: i32| match odd {
                r if r < 0.01 => None,
                r if r < 0.02 => Some(12),
                _ => Some(first + n),
            };
            rows.push(arrival(dice.batch(life, 0), Item { id, line: line(quantity(0)), updated: placed }));
            if dice.roll("item corrected", id) < 0.1 {
                let gone = dice.roll("item removed", id) < 0.2;
                let line = if gone { None } else { line(quantity(1)) };
                rows.push(arrival(dice.batch(life, 1), Item { id, line, updated: placed + 2 * HOUR }));
            }
            if dice.defect("item word", id, 0.003) {
                let damage = Damage::Word;
                let row = Item { id, line: line(Some(first)), updated: placed + 3 * HOUR };
                rows.push(Arrival { batch: dice.batch(life, 0), damage, row });
            }
        }
    }
    rows
}

/// What the transport does to a feed: rows sent twice, lines cut off, clocks ahead.
fn transport<R: Feed>(dice: &Dice, mut rows: Vec<Arrival<R>>) -> Vec<Arrival<R>> {
    let question = |what: &str| format!("{} {what}", R::NAME);
    for i in 0..rows.len() {
        let Some(sent) = rows.get(i).filter(|sent| sent.damage == Damage::None).cloned() else {
            continue;
        };
        let thing = i as u64;
        if dice.defect(&question("twice"), thing, 0.01) {
            let batch = (sent.batch + dice.below(&question("again"), thing, 2)).min(dice.batches - 1);
            rows.push(Arrival { batch, ..sent.clone() });
        }
        if dice.defect(&question("cut"), thing, 0.002) {
            rows.push(Arrival { damage: Damage::Cut, ..sent.clone() });
        }
        if dice.defect(&question("ahead"), thing, 0.002) {
            rows.push(Arrival { row: sent.row.ahead(), ..sent });
        }
    }
    rows
}

fn json_lines(batch: &RecordBatch, damage: &[Damage], out: &mut impl Write) -> Outcome {
    let mut lines = LineDelimitedWriter::new(Vec::new());
    lines.write(batch)?;
    lines.finish()?;
    for (line, damage) in String::from_utf8(lines.into_inner())?.lines().zip(damage) {
        match damage {
            Damage::None => writeln!(out, "{line}")?,
            Damage::Cut => writeln!(out, "{}", line.get(..line.len() / 2).unwrap_or(line))?,
            Damage::Word => {
                let (before, after) = line.split_once("\"quantity\":").unwrap_or((line, ""));
                let rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
                writeln!(out, "{before}\"quantity\":\"two\"{rest}")?;
            }
        }
    }
    Ok(())
}

fn write_file<R: Feed>(path: &Path, format: Format, rows: &[&Arrival<R>]) -> Outcome {
    let mut file = BufWriter::new(File::create(path)?);
    let parts = rows.chunks(50_000).map(|part| {
        let columns = R::columns(&part.iter().map(|sent| &sent.row).collect::<Vec<_>>())?;
        let columns = columns.into_iter().map(|(name, array)| (name, array, true));
        Ok::<_, Box<dyn Error>>((part, RecordBatch::try_from_iter_with_nullable(columns)?))
    });
    match format {
        Format::Json => {
            for part in parts {
                let (sent, batch) = part?;
                json_lines(&batch, &sent.iter().map(|sent| sent.damage).collect::<Vec<_>>(), &mut file)?;
            }
        }
        Format::Parquet => {
            let mut parts = parts.peekable();
            let Some(Ok((_, first))) = parts.peek() else {
                return parts.next().map_or(Ok(()), |part| part.map(|_| ()));
            };
            let mut writer = ArrowWriter::try_new(&mut file, first.schema(), None)?;
            for part in parts {
                writer.write(&part?.1)?;
            }
            writer.close()?;
        }
    }
    Ok(file.flush()?)
}

fn write_feed<R: Feed>(arguments: &Arguments, dice: &Dice, rows: Vec<Arrival<R>>) -> Outcome {
    let mut rows = transport(dice, rows);
    if arguments.format == Format::Parquet {
        rows.retain(|sent| sent.damage == Damage::None);
    }
    let folder = arguments.out.join(R::NAME);
    fs::create_dir_all(&folder)?;
    for batch in 0..dice.batches {
        let arrived = rows.iter().enumerate().filter(|(_, sent)| sent.batch == batch);
        let mut arrived = arrived.map(|(i, sent)| (dice.roll(R::NAME, i as u64), sent)).collect::<Vec<_>>();
        arrived.sort_by(|a, b| a.0.total_cmp(&b.0));
        let arrived = arrived.into_iter().map(|(_, sent)| sent).collect::<Vec<_>>();
        let extension = if arguments.format == Format::Json { "json" } else { "parquet" };
        let path = folder.join(format!("batch_{batch:03}.{extension}"));
        // A batch without rows has no file: Parquet readers would take its schema from nothing.
        if !arrived.is_empty() {
            write_file(&path, arguments.format, &arrived)?;
        }
    }
    println!("{:12} {:>9} events", R::NAME, rows.len());
    Ok(())
}

fn main() -> Outcome {
    let arguments = Arguments::parse();
    if arguments.batches == 0 || arguments.orders == 0 || arguments.defects <= 0.0 {
        return Err("--orders, --batches and --defects must be greater than zero".into());
    }
    let dice = Dice { seed: arguments.seed, batches: arguments.batches, defects: arguments.defects };
    let buyers = (arguments.orders / 6).max(12);
    let catalogue = (arguments.orders / 20).clamp(20, 400);
    write_feed(&arguments, &dice, customers(&dice, buyers))?;
    write_feed(&arguments, &dice, products(&dice, catalogue))?;
    write_feed(&arguments, &dice, orders(&dice, arguments.orders, buyers))?;
    write_feed(&arguments, &dice, items(&dice, arguments.orders, catalogue))
}
