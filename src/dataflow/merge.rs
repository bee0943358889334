//! AUTO CDC: change events to keyed changes, the merge, and versions back to rows of the target.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, RecordBatch, new_null_array};
use arrow::compute::{and, is_not_null, is_null, not};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;
use arrow::row::Rows as Encoded;
use datafusion::physical_expr::PhysicalExpr;
use differential_dataflow::AsCollection;
use silverflow_operators::{
    Change, Diff, Epoch, Fill, FillState, Row, Rows, Scd1, Scd1State, Scd2, Scd2State, Upsert, Version,
};
use timely::dataflow::operators::core::Concatenate;

use super::batch::{Batch, Batches, relabel};
use super::build::Builder;
use super::codec::{Cells, Codec, normalise};
use super::eval::{BadRow, evaluate_rows, holds, row_json};
use super::fan::{Fan, fan_out};
use super::fault::RowFault;
use super::keyed::{codec, decode};
use super::metrics::Tally;
use super::pack::Pack;
use super::rules::{Judge, Reason, bad_row, internal};
use crate::error::{Error, Fault, Result};
use crate::pipeline::ScdType;
use crate::plan::{CdcFlow, CdcPlan, is_hidden};

type Keyed = ((Row, Change), Epoch, Diff);
type Truncate = (Row, Epoch, Diff);

/// The dataset and the quarantine of an AUTO CDC target.
pub struct Merged<'s> {
    /// Rows of the target.
    pub rows: Batches<'s>,
    /// Quarantined events.
    pub quarantine: Batches<'s>,
}

/// Builds the merge. `inputs` are the flows' sources in order.
pub fn merge<'s>(
    builder: &mut Builder<'s>,
    cdc: &CdcPlan,
    target: &SchemaRef,
    judge: &Judge,
    inputs: Vec<Batches<'s>>,
) -> Result<Merged<'s>> {
    let label = judge.label.clone();
    let scope = builder.scope;
    let (mut changes, mut truncates, mut quarantine) = (Vec::new(), Vec::new(), Vec::new());
    for (flow, input) in cdc.flows.iter().zip(inputs) {
        let keys = Codec::new(types_of(&cdc.layout, &cdc.keys));
        let keys = keys.map_err(|e| Error::internal("the key of a merge").caused_by(e).dataset(&label))?;
        let lane = builder.lanes.add(&label, keys);
        let mut events = Events::new(cdc, flow, judge, Pack::new(lane))?;
        let (keyed, truncate, invalid, faults) = fan_out(
            input,
            &format!("flow {}: events", flow.name),
            move |batch, fan: &mut Fan<Keyed, Truncate, Batch, Box<RowFault>>| {
                events.read(&batch, fan);
            },
        );
        changes.push(keyed);
        truncates.push(truncate);
        quarantine.push(invalid);
        builder.faults.push(faults);
    }
    let changes = scope.concatenate(changes).as_collection();
    let truncates = scope.concatenate(truncates).as_collection();
    let quarantine = scope.concatenate(quarantine);
    let (changes, truncates) = if cdc.fill.is_empty() {
        (changes, truncates)
    } else {
        let (tally, dataset) = (judge.tally.clone(), judge.dataset);
        let filled = changes.fill_with(
            truncates.clone(),
            &format!("{label}: ignore null updates"),
            builder.state(&label, FillState::new())?,
            Cells::merge,
            move |epoch, moved| tally.count(epoch, dataset, |c| c.ties += moved),
        );
        (encode_filled(builder, cdc, filled, &label)?, truncates)
    };
    let rows = match cdc.scd {
        ScdType::Two => {
            let (tally, dataset) = (judge.tally.clone(), judge.dataset);
            let state = builder.state(&label, Scd2State::new())?;
            let versions = changes.scd2_with(&format!("{label}: SCD type 2"), state, move |epoch, moved| {
                tally.count(epoch, dataset, |c| c.ties += moved);
            });
            decode_versions(builder, cdc, target, versions, judge)?
        }
        ScdType::One => {
            let (tally, dataset) = (judge.tally.clone(), judge.dataset);
            // Filling in nulls takes back what it has completed before, whatever the source does.
            let state =
                if cdc.append_only && cdc.fill.is_empty() { Scd1State::append_only() } else { Scd1State::new() };
            let name = format!("{label}: SCD type 1");
            let state = builder.state(&label, state)?;
            let newest = changes.scd1_with(truncates, &name, state, move |epoch, moved| {
                tally.count(epoch, dataset, |c| c.ties += moved);
            });
            decode_newest(builder, cdc, target, newest, judge)?
        }
    };
    Ok(Merged { rows, quarantine })
}

/// Reads change events from the batches of one flow.
struct Events {
    flow: String,
    layout: Vec<Arc<dyn PhysicalExpr>>,
    schema: SchemaRef,
    sequence: Arc<dyn PhysicalExpr>,
    delete: Option<Arc<dyn PhysicalExpr>>,
    truncate: Option<Arc<dyn PhysicalExpr>>,
    keys: Vec<usize>,
    kept: Vec<usize>,
    tracked: Vec<usize>,
    own: usize,
    key_codec: Codec,
    sequence_codec: Codec,
    tracked_codec: Codec,
    rank_codec: Codec,
    values: Values,
    judge: Judge,
    quarantine_invalid: bool,
    pack: Pack,
}

/// How a value is packed.
enum Values {
    Plain(Codec),
    /// Cell by cell, for IGNORE NULL UPDATES.
    Cells(Cells),
}

fn pick(columns: &[ArrayRef], indices: &[usize]) -> Vec<ArrayRef> {
    indices.iter().filter_map(|i| columns.get(*i).cloned()).collect()
}

fn types_of<'a>(schema: &'a SchemaRef, indices: &'a [usize]) -> impl Iterator<Item = &'a DataType> + 'a {
    indices.iter().filter_map(|i| schema.fields().get(*i).map(|f| f.data_type()))
}

impl Events {
    fn new(cdc: &CdcPlan, flow: &CdcFlow, judge: &Judge, pack: Pack) -> Result<Self> {
        let unsupported = |e| {
            Error::user("NOT_SUPPORTED", "values of these types cannot be kept in state yet")
                .caused_by(e)
                .dataset(&judge.label)
        };
        let own: Vec<usize> = (0..cdc.own).collect();
        Ok(Events {
            flow: flow.name.clone(),
            layout: flow.layout.clone(),
            schema: Arc::clone(&cdc.layout),
            sequence: Arc::clone(&flow.sequence),
            delete: flow.delete.clone(),
            truncate: flow.truncate.clone(),
            keys: cdc.keys.clone(),
            kept: cdc.kept.clone(),
            tracked: if cdc.scd == ScdType::Two { cdc.tracked.clone() } else { Vec::new() },
            own: cdc.own,
            key_codec: Codec::new(types_of(&cdc.layout, &cdc.keys)).map_err(unsupported)?,
            sequence_codec: Codec::new([cdc.sequence.data_type()]).map_err(unsupported)?,
            tracked_codec: Codec::new(types_of(&cdc.layout, &cdc.tracked)).map_err(unsupported)?,
            rank_codec: Codec::new(types_of(&cdc.layout, &own)).map_err(unsupported)?,
            values: if cdc.fill.is_empty() {
                Values::Plain(Codec::of(&cdc.layout).map_err(unsupported)?)
            } else {
                Values::Cells(Cells::new(&cdc.layout, &cdc.fill).map_err(unsupported)?)
            },
            judge: judge.clone(),
            quarantine_invalid: cdc.quarantine_invalid,
            pack,
        })
    }

    fn read(&mut self, batch: &Batch, fan: &mut Fan<Keyed, Truncate, Batch, Box<RowFault>>) {
        if batch.rows.num_rows() == 0 {
            return;
        }
        match self.evaluate(batch) {
            Err(bad) => fan.fourth.push(bad_row(
                batch.epoch,
                &self.judge.label,
                Some(&self.flow),
                bad.message,
                &batch.rows,
                bad.index,
            )),
            Ok(events) => {
                if let Err(error) = self.route(batch, &events, fan) {
                    fan.fourth.push(internal(batch.epoch, &self.judge.label, error.to_string()));
                }
            }
        }
    }

    fn evaluate(&self, batch: &Batch) -> Result<Evaluated, BadRow> {
        let rows = &batch.rows;
        let columns = self.layout.iter().map(|e| evaluate_rows(e, rows)).collect::<Result<Vec<_>, _>>()?;
        Ok(Evaluated {
            sequence: evaluate_rows(&self.sequence, rows)?,
            delete: holds(self.delete.as_ref(), rows)?,
            truncate: holds(self.truncate.as_ref(), rows)?,
            columns,
        })
    }

    fn route(
        &mut self,
        batch: &Batch,
        events: &Evaluated,
        fan: &mut Fan<Keyed, Truncate, Batch, Box<RowFault>>,
    ) -> Result<(), ArrowError> {
        let rows = batch.rows.num_rows();
        let layout = relabel(&self.schema, events.columns.clone(), rows)?;
        let no_sequence = is_null(&events.sequence)?;
        let mut no_key = BooleanArray::from(vec![false; rows]);
        for key in pick(layout.columns(), &self.keys) {
            no_key = arrow::compute::or(&no_key, &logical_null(&key)?)?;
        }
        // A truncate needs only a sequence.
        no_key = and(&no_key, &not(&events.truncate)?)?;
        let invalid = arrow::compute::or(&no_key, &no_sequence)?;
        if invalid.true_count() > 0 {
            self.reject(batch, &layout, &invalid, &no_key, &no_sequence, fan)?;
        }
        let valid = not(&invalid)?;

        let truncate = and(&valid, &events.truncate)?;
        if truncate.true_count() > 0 {
            let sequences = self.sequence_codec.encode(&normalise(std::slice::from_ref(&events.sequence))?)?;
            let mut coming = 0;
            for (index, sequence) in sequences.into_iter().enumerate().filter(|(i, _)| truncate.value(*i)) {
                coming += batch.diff(index).max(0);
                fan.second.push((sequence, batch.epoch, diff(batch, index)));
            }
            self.passed(batch.epoch, coming);
        }

        let change = and(&valid, &not(&truncate)?)?;
        let delete = and(&change, &events.delete)?;
        if delete.true_count() > 0 {
            let deleted = Chosen::new(batch, &layout, &events.sequence, &delete)?;
            self.passed(batch.epoch, deleted.batch.coming());
            let (keys, sequences) = self.identify(&deleted)?;
            for (key, sequence) in keys.iter().zip(sequences.iter()) {
                self.pack.push(key.data(), |out| Change::put(sequence.data(), None, out));
            }
            self.send(&deleted.batch, fan);
        }

        let upsert = and(&change, &not(&delete)?)?;
        if upsert.true_count() > 0 {
            let upserts = Chosen::new(batch, &layout, &events.sequence, &upsert)?;
            let upserts = self.judged(upserts, fan)?;
            self.upserts(&upserts, fan)?;
        }
        Ok(())
    }

    fn passed(&self, epoch: Epoch, coming: i64) {
        self.judge.tally.count(epoch, self.judge.dataset, |c| {
            c.yielded += coming;
            c.kept += coming;
        });
    }

    /// Expectations see the kept columns of an upsert, before the merge.
    fn judged(
        &self,
        upserts: Chosen,
        fan: &mut Fan<Keyed, Truncate, Batch, Box<RowFault>>,
    ) -> Result<Chosen, ArrowError> {
        if self.judge.rules.is_empty() {
            self.passed(upserts.batch.epoch, upserts.batch.coming());
            return Ok(upserts);
        }
        let judged = self.judge.judge(self.visible(&upserts)?)?;
        fan.third.extend(judged.quarantined);
        fan.fourth.extend(judged.faults.into_iter().map(|mut fault| {
            fault.flow = Some(self.flow.clone());
            fault
        }));
        upserts.filter(&judged.keep)
    }

    fn visible(&self, chosen: &Chosen) -> Result<Batch, ArrowError> {
        let mut columns = pick(chosen.layout.columns(), &self.kept);
        let hidden = self.judge.schema.fields().iter().filter(|f| is_hidden(f));
        columns.extend(hidden.filter_map(|f| chosen.batch.rows.column_by_name(f.name()).cloned()));
        Ok(chosen.batch.with_rows(relabel(&self.judge.schema, columns, chosen.batch.rows.num_rows())?))
    }

    fn reject(
        &self,
        batch: &Batch,
        layout: &RecordBatch,
        invalid: &BooleanArray,
        no_key: &BooleanArray,
        no_sequence: &BooleanArray,
        fan: &mut Fan<Keyed, Truncate, Batch, Box<RowFault>>,
    ) -> Result<(), ArrowError> {
        if self.quarantine_invalid {
            let chosen = Chosen::new(batch, layout, &new_null_array(&DataType::Null, invalid.len()), invalid)?;
            let (no_key, no_sequence) = (only(no_key, invalid)?, only(no_sequence, invalid)?);
            let reasons =
                [Reason { name: "null_key", rows: &no_key }, Reason { name: "null_sequence", rows: &no_sequence }];
            fan.third.push(self.judge.quarantine_for(&self.visible(&chosen)?, &reasons)?);
            return Ok(());
        }
        for (rows, code, what) in [
            (
                no_sequence,
                "AUTOCDC_MICROBATCH_VALIDATION.NULL_SEQUENCE",
                "a change event has no sequence (SEQUENCE BY is null)",
            ),
            (no_key, "AUTOCDC_MICROBATCH_VALIDATION.NULL_KEY", "a change event has no key (a key column is null)"),
        ] {
            let bad: Vec<usize> = (0..rows.len()).filter(|i| rows.value(*i) && batch.diff(*i) > 0).collect();
            if bad.is_empty() {
                continue;
            }
            fan.fourth.push(Box::new(RowFault {
                epoch: batch.epoch,
                dataset: self.judge.label.clone(),
                flow: Some(self.flow.clone()),
                rule: None,
                code,
                fault: Fault::Data,
                message: format!("{what}; with the table property silverflow.cdc.invalid = 'quarantine' such events go to the target's quarantine"),
                count: bad.len() as u64,
                rows: bad.iter().take(super::fault::SHOWN_ROWS).map(|i| row_json(&batch.rows, *i)).collect(),
            }));
        }
        Ok(())
    }

    fn identify(&self, chosen: &Chosen) -> Result<(Encoded, Encoded), ArrowError> {
        let keys = self.key_codec.encode_all(&normalise(&pick(chosen.layout.columns(), &self.keys))?)?;
        let sequences = self.sequence_codec.encode_all(&normalise(std::slice::from_ref(&chosen.sequence))?)?;
        Ok((keys, sequences))
    }

    /// The changes that are packed, one for each row of the batch.
    fn send(&mut self, batch: &Batch, fan: &mut Fan<Keyed, Truncate, Batch, Box<RowFault>>) {
        for (index, (key, change)) in self.pack.take().enumerate() {
            fan.first.push(((key, Change::packed(change)), batch.epoch, diff(batch, index)));
        }
    }

    fn upserts(
        &mut self,
        chosen: &Chosen,
        fan: &mut Fan<Keyed, Truncate, Batch, Box<RowFault>>,
    ) -> Result<(), ArrowError> {
        let rows = chosen.batch.rows.num_rows();
        if rows == 0 {
            return Ok(());
        }
        let (keys, sequences) = self.identify(chosen)?;
        let columns = chosen.layout.columns();
        // Where nulls are filled in, `tracked` is known only after that; with SCD type 1 nothing is tracked.
        let tracks = matches!(self.values, Values::Plain(_)) && !self.tracked.is_empty();
        let tracked = if tracks {
            Some(self.tracked_codec.encode_all(&normalise(&pick(columns, &self.tracked))?)?)
        } else {
            None
        };
        let mut tracked = tracked.iter().flat_map(Encoded::iter);
        let ids = keys.iter().zip(sequences.iter());
        match &self.values {
            // The layout begins with the sources' own columns, so that the value ranks itself.
            Values::Plain(codec) => {
                let values = codec.encode_all(columns)?;
                for ((key, sequence), value) in ids.zip(values.iter()) {
                    let tracked = tracked.next().map_or(&[][..], |tracked| tracked.data());
                    let upsert = Upsert { tracked, ..Upsert::of(value.data()) };
                    self.pack.push(key.data(), |out| Change::put(sequence.data(), Some(upsert), out));
                }
            }
            Values::Cells(cells) => {
                let own: Vec<usize> = (0..self.own).collect();
                let values = cells.encode(columns)?;
                let ranks = self.rank_codec.encode_all(&pick(columns, &own))?;
                for ((key, sequence), (value, rank)) in ids.zip(values.iter().zip(ranks.iter())) {
                    let upsert = Upsert { rank: rank.data(), tracked: &[], value };
                    self.pack.push(key.data(), |out| Change::put(sequence.data(), Some(upsert), out));
                }
            }
        }
        self.send(&chosen.batch, fan);
        Ok(())
    }
}

fn diff(batch: &Batch, index: usize) -> Diff {
    isize::try_from(batch.diff(index)).unwrap_or_default()
}

fn logical_null(array: &ArrayRef) -> Result<BooleanArray, ArrowError> {
    not(&is_not_null(array)?)
}

fn only(mask: &BooleanArray, chosen: &BooleanArray) -> Result<BooleanArray, ArrowError> {
    let filtered = arrow::compute::filter(mask, chosen)?;
    Ok(filtered
        .as_any()
        .downcast_ref::<BooleanArray>()
        .cloned()
        .unwrap_or_else(|| BooleanArray::from(Vec::<bool>::new())))
}

struct Evaluated {
    columns: Vec<ArrayRef>,
    sequence: ArrayRef,
    delete: BooleanArray,
    truncate: BooleanArray,
}

/// Some of the events of a batch.
struct Chosen {
    batch: Batch,
    layout: RecordBatch,
    sequence: ArrayRef,
}

impl Chosen {
    fn new(batch: &Batch, layout: &RecordBatch, sequence: &ArrayRef, mask: &BooleanArray) -> Result<Self, ArrowError> {
        Chosen { batch: batch.clone(), layout: layout.clone(), sequence: Arc::clone(sequence) }.filter(mask)
    }

    fn filter(self, mask: &BooleanArray) -> Result<Self, ArrowError> {
        if mask.true_count() == mask.len() {
            return Ok(self);
        }
        Ok(Chosen {
            batch: self.batch.filter(mask)?,
            layout: arrow::compute::filter_record_batch(&self.layout, mask)?,
            sequence: arrow::compute::filter(&self.sequence, mask)?,
        })
    }
}

/// After the nulls are filled in, values are packed as the layout again and the tracked part is known.
fn encode_filled<'s>(
    builder: &mut Builder<'s>,
    cdc: &CdcPlan,
    filled: Rows<'s, (Row, Change)>,
    label: &str,
) -> Result<Rows<'s, (Row, Change)>> {
    let unsupported = |e| {
        Error::user("NOT_SUPPORTED", "values of these types cannot be kept in state yet").caused_by(e).dataset(label)
    };
    let cells = Cells::new(&cdc.layout, &cdc.fill).map_err(unsupported)?;
    let values = codec(&cdc.layout, label)?;
    let tracked_codec = Codec::new(types_of(&cdc.layout, &cdc.tracked)).map_err(unsupported)?;
    let tracked = if cdc.scd == ScdType::Two { cdc.tracked.clone() } else { Vec::new() };
    Ok(builder.map_chunks(
        filled,
        &format!("{label}: filled values"),
        label,
        move |chunk: &mut [((Row, Change), Epoch, Diff)]| {
            let upserts = chunk.iter().filter_map(|((_, change), _, _)| change.upsert());
            let bytes: Vec<&[u8]> = upserts.map(|upsert| upsert.value).collect();
            if bytes.is_empty() {
                return Ok(());
            }
            let columns = cells.decode(&bytes)?;
            let packed = values.encode_all(&columns)?;
            let tracked = if tracked.is_empty() {
                None
            } else {
                Some(tracked_codec.encode_all(&normalise(&pick(&columns, &tracked))?)?)
            };
            let mut tracked = tracked.iter().flat_map(Encoded::iter);
            let upserts = chunk.iter_mut().map(|((_, change), _, _)| change).filter(|change| !change.is_delete());
            for (change, value) in upserts.zip(packed.iter()) {
                let tracked = tracked.next().map_or(&[][..], |tracked| tracked.data());
                *change = Change::new(change.sequence(), Some(Upsert { tracked, ..Upsert::of(value.data()) }));
            }
            Ok(())
        },
    ))
}

fn decode_versions<'s>(
    builder: &mut Builder<'s>,
    cdc: &CdcPlan,
    target: &SchemaRef,
    versions: Rows<'s, (Row, Version)>,
    judge: &Judge,
) -> Result<Batches<'s>> {
    let label = judge.label.clone();
    let values = codec(&cdc.layout, &label)?;
    let sequence_type = cdc.sequence.data_type().clone();
    let sequences = Codec::new([&sequence_type]).map_err(|e| Error::internal("the sequence's type").caused_by(e))?;
    let null = sequences
        .encode(&[new_null_array(&sequence_type, 1)])
        .map_err(|e| Error::internal("a null sequence").caused_by(e))?
        .pop()
        .unwrap_or_default();
    let (kept, schema) = (cdc.kept.clone(), Arc::clone(target));
    let (tally, dataset): (Tally, usize) = (judge.tally.clone(), judge.dataset);
    Ok(decode(
        builder,
        versions,
        &format!("{label}: versions"),
        &label,
        move |epoch, items: &[((Row, Version), i64)]| {
            let layout = values.decode(items.iter().map(|((_, v), _)| v.value.as_bytes()))?;
            let mut columns = pick(&layout, &kept);
            columns.extend(sequences.decode(items.iter().map(|((_, v), _)| v.start.as_bytes()))?);
            columns
                .extend(sequences.decode(items.iter().map(|((_, v), _)| v.end.as_ref().unwrap_or(&null).as_bytes()))?);
            tally.count(epoch, dataset, |c| {
                c.versions += items.iter().map(|(_, d)| d).sum::<i64>();
                c.closed += items.iter().filter(|((_, v), _)| v.end.is_some()).map(|(_, d)| d).sum::<i64>();
            });
            relabel(&schema, columns, items.len())
        },
    ))
}

fn decode_newest<'s>(
    builder: &mut Builder<'s>,
    cdc: &CdcPlan,
    target: &SchemaRef,
    newest: Rows<'s, (Row, Row)>,
    judge: &Judge,
) -> Result<Batches<'s>> {
    let label = judge.label.clone();
    let values = codec(&cdc.layout, &label)?;
    let (kept, schema) = (cdc.kept.clone(), Arc::clone(target));
    let (tally, dataset) = (judge.tally.clone(), judge.dataset);
    Ok(decode(builder, newest, &format!("{label}: rows"), &label, move |epoch, items: &[((Row, Row), i64)]| {
        let layout = values.decode(items.iter().map(|((_, v), _)| v.as_bytes()))?;
        tally.count(epoch, dataset, |c| c.versions += items.iter().map(|(_, d)| d).sum::<i64>());
        relabel(&schema, pick(&layout, &kept), items.len())
    }))
}
