//! Batches to keyed rows for the stateful operators, and back.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, new_null_array};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{FieldRef, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::row::Rows as Encoded;
use datafusion::physical_expr::PhysicalExpr;
use differential_dataflow::{AsCollection, ExchangeData};
use silverflow_operators::{
    Dedup, DedupState, Diff, Distinct, DistinctState, Epoch, EquiJoin, JoinKind, JoinState, Lookup, LookupKind,
    LookupState, Once, OnceKind, OnceState, Row, Rows,
};
use timely::communication::Pull;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::Stream;
use timely::dataflow::channels::Message;
use timely::dataflow::channels::pact::Pipeline;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::{InputHandleCore, Operator};

use super::batch::{Batch, Batches, relabel};
use super::build::Builder;
use super::codec::{Codec, normalise, varies};
use super::eval::evaluate_rows;
use super::fan::{Fan, fan_out};
use super::fault::RowFault;
use super::pack::Pack;
use super::rules::{bad_row, internal};
use super::states::Alarm;
use crate::error::{Error, Result};
use crate::plan::{MatchKind, MatchNode, is_hidden};

/// Rows in a batch that leaves a stateful operator.
const BATCH_ROWS: usize = 8192;

type Update<D> = (D, Epoch, Diff);
/// Changes, by epoch.
type ByEpoch<D> = BTreeMap<Epoch, Vec<(D, i64)>>;

/// Encodes batches to keyed rows; a failing batch becomes a fault.
pub fn encode<'s, D: ExchangeData>(
    builder: &mut Builder<'s>,
    input: Batches<'s>,
    name: &str,
    mut rows: impl FnMut(&Batch) -> Result<Vec<Option<D>>, Box<RowFault>> + 'static,
) -> Rows<'s, D> {
    let (updates, faults, _, _) =
        fan_out(input, name, move |batch, fan: &mut Fan<Update<D>, Box<RowFault>, (), ()>| {
            if batch.rows.num_rows() == 0 {
                return;
            }
            match rows(&batch) {
                Ok(items) => {
                    for (index, item) in items.into_iter().enumerate() {
                        if let Some(item) = item {
                            fan.first.push((item, batch.epoch, isize::try_from(batch.diff(index)).unwrap_or_default()));
                        }
                    }
                }
                Err(fault) => fan.second.push(fault),
            }
        });
    builder.faults.push(faults);
    updates.as_collection()
}

/// What arrives in one activation, by epoch, so that batches stay large; with the right to answer it. Nothing, once the
/// alarm is raised: it may be no rows.
pub(super) fn gather<D, P: Pull<Message<Epoch, Vec<Update<D>>>>>(
    input: &mut InputHandleCore<Epoch, Vec<Update<D>>, P>,
    alarm: &Alarm,
) -> Option<(Capability<Epoch>, ByEpoch<D>)> {
    let mut epochs = ByEpoch::<D>::new();
    let mut permit: Option<Capability<Epoch>> = None;
    input.for_each(|cap, data| {
        if let Some(cap) = cap.retain_least(0)
            && permit.as_ref().is_none_or(|held| cap.time() < held.time())
        {
            permit = Some(cap);
        }
        for (item, epoch, diff) in data.drain(..) {
            epochs.entry(epoch).or_default().push((item, diff as i64));
        }
    });
    Some((permit?, epochs)).filter(|_| !alarm.is_raised())
}

/// Decodes keyed rows to batches of at most [`BATCH_ROWS`] rows.
pub fn decode<'s, D: Clone + 'static>(
    builder: &mut Builder<'s>,
    input: Rows<'s, D>,
    name: &str,
    label: &str,
    mut columns: impl FnMut(Epoch, &[(D, i64)]) -> Result<arrow::array::RecordBatch, ArrowError> + 'static,
) -> Batches<'s> {
    let label = label.to_owned();
    let alarm = builder.states.alarm();
    let decoded: Stream<'s, Epoch, Vec<Result<Batch, Box<RowFault>>>> =
        input.inner.unary_frontier::<CapacityContainerBuilder<Vec<Result<Batch, Box<RowFault>>>>, _, _, _>(
            Pipeline,
            name,
            move |_, _| {
                move |(input, _), output| {
                    let Some((permit, epochs)) = gather(input, &alarm) else { return };
                    for (epoch, items) in epochs {
                        let cap = permit.delayed(&epoch);
                        let mut session = output.session(&cap);
                        for chunk in items.chunks(BATCH_ROWS) {
                            session.give(match columns(epoch, chunk) {
                                Ok(rows) => {
                                    Ok(Batch { epoch, arrived: epoch, rows, diffs: diffs(chunk), pairs: false })
                                }
                                Err(error) => Err(internal(epoch, &label, error.to_string())),
                            });
                        }
                    }
                }
            },
        );
    builder.split_faults(decoded)
}

fn diffs<D>(chunk: &[(D, i64)]) -> Option<Arc<[i64]>> {
    if chunk.iter().all(|(_, d)| *d == 1) { None } else { Some(chunk.iter().map(|(_, d)| *d).collect()) }
}

fn broken(epoch: Epoch, label: &str) -> impl Fn(ArrowError) -> Box<RowFault> + '_ {
    move |error| internal(epoch, label, error.to_string())
}

pub(super) fn codec(schema: &SchemaRef, label: &str) -> Result<Codec> {
    Codec::of(schema).map_err(|e| {
        Error::user("NOT_SUPPORTED", "rows of these types cannot be kept in state yet").caused_by(e).dataset(label)
    })
}

/// DISTINCT over all columns.
pub fn distinct<'s>(
    builder: &mut Builder<'s>,
    input: Batches<'s>,
    schema: &SchemaRef,
    name: &str,
    label: &str,
) -> Result<Batches<'s>> {
    let out = codec(schema, label)?;
    let rows_name = format!("{name}: rows");
    let operator = format!("{name}: distinct");
    let owner = label.to_owned();
    let unique = if schema.fields().iter().any(|f| varies(f.data_type())) {
        let (keys, values) = (codec(schema, label)?, codec(schema, label)?);
        let mut pack = Pack::new(builder.lanes.add(label, codec(schema, label)?));
        encode(builder, input, &rows_name, move |batch| {
            let wrong = broken(batch.epoch, &owner);
            let normal = normalise(batch.rows.columns()).map_err(&wrong)?;
            let keys = keys.encode_all(&normal).map_err(&wrong)?;
            let values = values.encode_all(batch.rows.columns()).map_err(&wrong)?;
            for (key, value) in keys.iter().zip(values.iter()) {
                pack.push(key.data(), |out| out.extend_from_slice(value.data()));
            }
            Ok(pack.take().map(Some).collect())
        })
        .dedup_with(&operator, builder.state(label, DedupState::new())?)
    } else {
        let values = codec(schema, label)?;
        let mut pack = Pack::new(builder.lanes.add(label, codec(schema, label)?));
        encode(builder, input, &rows_name, move |batch| {
            let values = values.encode_all(batch.rows.columns()).map_err(broken(batch.epoch, &owner))?;
            values.iter().for_each(|value| pack.push(value.data(), |_| {}));
            Ok(pack.take().map(|(row, _)| Some(row)).collect())
        })
        .distinct_rows_with(&operator, builder.state(label, DistinctState::new())?)
    };
    let schema = Arc::clone(schema);
    Ok(decode(builder, unique, &format!("{name}: batches"), label, move |_, items: &[(Row, i64)]| {
        let columns = out.decode(items.iter().map(|(row, _)| row.as_bytes()))?;
        relabel(&schema, columns, items.len())
    }))
}

/// The key of each row, and which of them match, where some match nothing because of a null.
fn keys(
    exprs: &[Arc<dyn PhysicalExpr>],
    batch: &Batch,
    codec: &Codec,
    null_equal: bool,
    label: &str,
) -> Result<(Encoded, Option<NullBuffer>), Box<RowFault>> {
    let wrong = broken(batch.epoch, label);
    let mut arrays = Vec::with_capacity(exprs.len());
    for expr in exprs {
        let array = evaluate_rows(expr, &batch.rows)
            .map_err(|e| bad_row(batch.epoch, label, None, e.message, &batch.rows, e.index))?;
        arrays.push(array);
    }
    let rows = normalise(&arrays).and_then(|columns| codec.encode_all(&columns)).map_err(wrong)?;
    if null_equal {
        return Ok((rows, None));
    }
    let mut nulls: Option<NullBuffer> = None;
    for array in &arrays {
        nulls = NullBuffer::union(nulls.as_ref(), array.logical_nulls().as_ref());
    }
    Ok((rows, nulls))
}

/// Pairs of a key and a row, `None` instead of a key that matches nothing.
fn pairs(
    pack: &mut Pack,
    (keys, matches): (Encoded, Option<NullBuffer>),
    values: Option<&Encoded>,
) -> impl Iterator<Item = (Option<Row>, Row)> {
    let mut values = values.into_iter().flat_map(Encoded::iter);
    let matches = move |index| matches.as_ref().is_none_or(|nulls| nulls.is_valid(index));
    for (index, key) in keys.iter().enumerate() {
        let value = values.next();
        let put = |out: &mut Vec<u8>| out.extend_from_slice(value.as_ref().map_or(&[], |value| value.data()));
        if matches(index) {
            pack.push(key.data(), put);
        } else {
            pack.push_keyless(put);
        }
    }
    pack.take().enumerate().map(move |(index, (key, value))| (matches(index).then_some(key), value))
}

/// An equality join of `rows` with `reference`.
pub fn match_rows<'s>(
    builder: &mut Builder<'s>,
    node: &MatchNode,
    rows: Batches<'s>,
    reference: Batches<'s>,
    name: &str,
    label: &str,
) -> Result<Batches<'s>> {
    let presence = matches!(node.kind, MatchKind::Semi | MatchKind::Anti | MatchKind::Mark);
    let key_type = |exprs: &[Arc<dyn PhysicalExpr>], schema: &SchemaRef| {
        exprs.iter().map(|e| e.data_type(schema)).collect::<Result<Vec<_>, _>>()
    };
    let wrong = |e| Error::internal("the type of a join key").caused_by(e).dataset(label);
    let row_types = key_type(&node.row_key, node.rows.schema()).map_err(wrong)?;
    let reference_types = key_type(&node.reference_key, node.reference.schema()).map_err(wrong)?;
    if row_types != reference_types {
        return Err(Error::user(
            "JOIN_TYPE_MISMATCH",
            format!("the sides of a join compare {row_types:?} with {reference_types:?}; cast one of them"),
        )
        .dataset(label));
    }
    let new_codec = || {
        Codec::new(&row_types).map_err(|e| {
            Error::user("NOT_SUPPORTED", "a join key of this type is not supported").caused_by(e).dataset(label)
        })
    };
    let null_equal = node.null_equal;

    let (key_codec, value_codec) = (new_codec()?, codec(node.rows.schema(), label)?);
    let (exprs, owner) = (node.row_key.clone(), label.to_owned());
    let mut pack = Pack::new(builder.lanes.add(label, new_codec()?));
    let rows = encode(builder, rows, &format!("{name}: rows"), move |batch| {
        let wrong = broken(batch.epoch, &owner);
        let keys = keys(&exprs, batch, &key_codec, null_equal, &owner)?;
        let values = value_codec.encode_all(batch.rows.columns()).map_err(&wrong)?;
        Ok(pairs(&mut pack, keys, Some(&values)).map(Some).collect())
    });

    let (key_codec, value_codec) = (new_codec()?, codec(node.reference.schema(), label)?);
    let (exprs, owner) = (node.reference_key.clone(), label.to_owned());
    let mut pack = Pack::new(builder.lanes.add(label, new_codec()?));
    let reference = encode(builder, reference, &format!("{name}: reference"), move |batch| {
        let wrong = broken(batch.epoch, &owner);
        let keys = keys(&exprs, batch, &key_codec, null_equal, &owner)?;
        let values = if presence { None } else { Some(value_codec.encode_all(batch.rows.columns()).map_err(&wrong)?) };
        Ok(pairs(&mut pack, keys, values.as_ref()).map(|(key, value)| Some((key?, value))).collect())
    });

    let what = match (node.once, node.unique) {
        (true, _) => "lookup at arrival",
        (false, true) => "lookup",
        (false, false) => "join",
    };
    let operator = format!("{name}: {what}");
    let kind = match node.kind {
        MatchKind::Left | MatchKind::Mark => LookupKind::Left,
        MatchKind::Inner => LookupKind::Inner,
        MatchKind::Semi => LookupKind::Semi,
        MatchKind::Anti => LookupKind::Anti,
    };
    let matched = match (node.unique, node.kind) {
        _ if node.once => {
            let kind = match node.kind {
                MatchKind::Left | MatchKind::Mark => OnceKind::Left,
                MatchKind::Inner => OnceKind::Inner,
                MatchKind::Semi => OnceKind::Semi,
                MatchKind::Anti => OnceKind::Anti,
            };
            let state = OnceState::new(kind, node.unique, builder.hydrated);
            rows.once_with(reference, &operator, builder.state(label, state)?)
        }
        (false, MatchKind::Left | MatchKind::Inner) => {
            let kind = if node.kind == MatchKind::Left { JoinKind::Left } else { JoinKind::Inner };
            rows.equi_join_with(reference, &operator, builder.state(label, JoinState::new(kind))?)
        }
        _ => {
            let state = if node.settled { LookupState::settled(kind) } else { LookupState::new(kind) };
            rows.lookup_with(reference, &operator, builder.state(label, state)?)
        }
    };

    let row_codec = codec(node.rows.schema(), label)?;
    let reference_schema = if presence { Arc::new(Schema::empty()) } else { Arc::clone(node.reference.schema()) };
    let reference_codec = codec(&reference_schema, label)?;
    let nulls: Vec<ArrayRef> =
        reference_schema.fields().iter().map(|f: &FieldRef| new_null_array(f.data_type(), 1)).collect();
    let null_row = if presence {
        Row::default()
    } else {
        let encoded = reference_codec.encode(&nulls).map_err(|e| Error::internal("a null row").caused_by(e))?;
        encoded.into_iter().next().unwrap_or_default()
    };
    let (schema, kind) = (Arc::clone(&node.schema), node.kind);
    let hidden = node.rows.schema().fields().iter().filter(|f| is_hidden(f)).count();
    Ok(decode(builder, matched, &format!("{name}: batches"), label, move |_, items: &[((Row, Option<Row>), i64)]| {
        let mut columns = row_codec.decode(items.iter().map(|((row, _), _)| row.as_bytes()))?;
        let hidden = columns.split_off(columns.len().saturating_sub(hidden));
        match kind {
            MatchKind::Left | MatchKind::Inner => {
                let found = items.iter().map(|((_, r), _)| r.as_ref().unwrap_or(&null_row).as_bytes());
                columns.extend(reference_codec.decode(found)?);
            }
            MatchKind::Mark => {
                let found: BooleanArray = items.iter().map(|((_, r), _)| Some(r.is_some())).collect();
                columns.push(Arc::new(found));
            }
            MatchKind::Semi | MatchKind::Anti => {}
        }
        columns.extend(hidden);
        relabel(&schema, columns, items.len())
    }))
}
