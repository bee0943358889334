//! What is asked outside of flows: rows of the pipeline's tables as Arrow batches, and what `show` prints.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, RecordBatch, RecordBatchOptions, StringArray, make_array};
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};
use arrow::ipc::writer::StreamWriter;
use datafusion::sql::sqlparser::tokenizer::Span as AstSpan;

use super::expression::Expressions;
use super::operation::Operation;
use super::relation::{Place, decode, query};
use super::types::{from_schema, name, plain};
use super::wire::spark::execute_plan_response::{ArrowBatch, ResponseType};
use super::wire::spark::relation::RelType;
use super::wire::spark::{ExecutePlanResponse, ShowString};
use crate::error::{Error, Result, Span};
use crate::pipeline::declaration::{Defaults, WrittenQuery};
use crate::pipeline::frame::{Frame, FrameOp, Item};
use crate::pipeline::{Dataset, Pipeline, Query, QueryBody, Settings};
use crate::runtime::{describe_resolved, query_resolved};

/// Rows of one batch of an answer.
const ROWS: usize = 10_000;
/// An answer that is larger is refused: it is in memory, here and there.
const BYTES: usize = 1 << 30;

/// What questions are put to.
pub(super) struct Tables {
    pub(super) pipeline: Arc<Pipeline>,
    pub(super) root: PathBuf,
}

impl Tables {
    /// No tables at all, but settings.
    pub(super) fn none(configuration: BTreeMap<String, String>, root: &Path) -> Tables {
        let Settings { catalog, schema, .. } = Settings::default();
        let pipeline = Pipeline { configuration, catalog, schema, ..Pipeline::default() };
        Tables { pipeline: Arc::new(pipeline), root: root.to_owned() }
    }

    /// What a session can name.
    pub(super) fn datasets(&self) -> impl Iterator<Item = &Dataset> {
        self.pipeline.datasets.values().filter(|dataset| !dataset.private)
    }

    fn written(&self, relation: &[u8]) -> Result<WrittenQuery> {
        let place = Place {
            root: &self.root,
            defaults: Defaults { catalog: self.pipeline.catalog.clone(), schema: self.pipeline.schema.clone() },
            configuration: &self.pipeline.configuration,
            span: Span::default(),
            at: AstSpan::empty(),
            file: None,
        };
        query(relation, &place)
    }

    fn resolved(&self, written: WrittenQuery) -> Result<Query> {
        self.pipeline.resolve_query(written, self.root.clone())
    }

    /// The columns of a relation.
    pub(super) fn schema(&self, relation: &[u8]) -> Result<SchemaRef> {
        let schema = describe_resolved(&self.pipeline, &self.resolved(self.written(relation)?)?)?;
        Ok(shaped(&schema))
    }

    /// Whether a relation is read as a stream.
    pub(super) fn streaming(&self, relation: &[u8]) -> Result<bool> {
        Ok(super::relation::streams(&self.written(relation)?))
    }

    /// Sends the rows of a relation.
    pub(super) fn answer(&self, relation: &[u8], operation: &Operation) -> Result<()> {
        let asked = decode(relation)?.rel_type;
        if let Some(RelType::Catalog(catalog)) = &asked {
            let batch = super::catalog::answer(self, catalog)?;
            return send(&batch.schema(), std::slice::from_ref(&batch), operation);
        }
        if let Some(RelType::ShowString(show)) = asked {
            let text = self.show(&show)?;
            let schema: SchemaRef = Arc::new(Schema::new(vec![Field::new("show_string", DataType::Utf8, false)]));
            let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(StringArray::from(vec![text]))])
                .map_err(|e| Error::internal("the text of show").caused_by(e))?;
            return send(&schema, &[batch], operation);
        }
        let result = query_resolved(&self.pipeline, &self.resolved(self.written(relation)?)?)?;
        send(&shaped(&result.schema), &result.batches, operation)
    }

    /// The table that `show` prints, as Spark draws it.
    fn show(&self, show: &ShowString) -> Result<String> {
        let limit = usize::try_from(show.num_rows).unwrap_or(0);
        let written = self.written(&show.input)?;
        let names: Vec<String> = {
            let described = describe_resolved(&self.pipeline, &self.resolved(written.clone())?)?;
            described.fields().iter().map(|field| field.name().clone()).collect()
        };
        let QueryBody::Frame(frame) = written.body else { return Err(Error::internal("a relation is no frame")) };
        let expressions = Expressions { at: AstSpan::empty(), file: None };
        let items = names.iter().map(|title| {
            let text = format!("CAST({} AS STRING)", name(title));
            Ok(Item::Expr(Box::new(expressions.read(&text)?), Some(title.clone())))
        });
        let items = items.collect::<Result<Vec<_>>>()?;
        let limited = Frame::of(FrameOp::Limit { input: frame, skip: 0, fetch: Some(limit.saturating_add(1)) });
        let shown = Frame::of(FrameOp::Project(Box::new(limited), items));
        let written = WrittenQuery { body: QueryBody::Frame(Box::new(shown)), ..written };
        let result = query_resolved(&self.pipeline, &self.resolved(written)?)?;
        let mut rows: Vec<Vec<String>> = Vec::new();
        for batch in &result.batches {
            for row in 0..batch.num_rows() {
                rows.push(batch.columns().iter().map(|column| cell(column, row)).collect());
            }
        }
        let more = rows.len() > limit;
        rows.truncate(limit);
        let width = usize::try_from(show.truncate).unwrap_or(0);
        Ok(drawn(&names, &rows, width, show.vertical, more.then_some(limit)))
    }
}

fn cell(column: &Arc<dyn Array>, row: usize) -> String {
    match column.as_any().downcast_ref::<StringArray>() {
        Some(texts) if texts.is_valid(row) => texts.value(row).replace('\n', "\\n").replace('\t', "\\t"),
        _ => "NULL".to_owned(),
    }
}

fn drawn(names: &[String], rows: &[Vec<String>], width: usize, vertical: bool, more: Option<usize>) -> String {
    let cut = |text: &String| -> String {
        let length = text.chars().count();
        if width == 0 || length <= width {
            text.clone()
        } else if width < 4 {
            text.chars().take(width).collect()
        } else {
            text.chars().take(width - 3).chain("...".chars()).collect()
        }
    };
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(cut).collect()).collect();
    let names: Vec<String> = names.iter().map(cut).collect();
    let mut out = String::new();
    if vertical {
        let title = names.iter().map(|n| n.chars().count()).max().unwrap_or(0).max(3);
        let data = rows.iter().flatten().map(|c| c.chars().count()).max().unwrap_or(0).max(3);
        for (number, row) in rows.iter().enumerate() {
            let head = format!("-RECORD {number}");
            out.push_str(&format!("{head:-<width$}\n", width = title + data + 5));
            for (name, value) in names.iter().zip(row) {
                out.push_str(&format!(" {name:<title$} | {value:<data$} \n"));
            }
        }
        if rows.is_empty() {
            out.push_str("(0 rows)\n");
        }
    } else {
        let widths: Vec<usize> = names
            .iter()
            .enumerate()
            .map(|(at, name)| {
                let cells = rows.iter().filter_map(|row| row.get(at)).map(|c| c.chars().count());
                cells.chain([name.chars().count(), 3]).max().unwrap_or(3)
            })
            .collect();
        let line: String = widths.iter().map(|width| format!("+{}", "-".repeat(*width))).collect();
        let line = format!("{line}+\n");
        let row = |cells: &[String]| -> String {
            let cells = cells
                .iter()
                .zip(&widths)
                .map(|(cell, size)| if width > 0 { format!("|{cell:>size$}") } else { format!("|{cell:<size$}") });
            format!("{}|\n", cells.collect::<String>())
        };
        out.push_str(&line);
        out.push_str(&row(&names));
        out.push_str(&line);
        rows.iter().for_each(|cells| out.push_str(&row(cells)));
        out.push_str(&line);
    }
    if let Some(limit) = more {
        let noun = if limit == 1 { "row" } else { "rows" };
        out.push_str(&format!("only showing top {limit} {noun}\n"));
    }
    out
}

/// The columns in the types that a client reads.
fn shaped(schema: &Schema) -> SchemaRef {
    let fields = schema.fields().iter().map(|f| Field::new(f.name(), plain(f.data_type()), f.is_nullable()));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// Sends columns and rows.
pub(super) fn send(schema: &SchemaRef, batches: &[RecordBatch], operation: &Operation) -> Result<()> {
    operation.push(ExecutePlanResponse { schema: Some(from_schema(schema)?), ..ExecutePlanResponse::default() });
    let wrong = |e: arrow::error::ArrowError| Error::internal("the rows of an answer").caused_by(e);
    let mut offset = 0usize;
    let mut bytes = 0usize;
    for batch in batches {
        let columns = batch.columns().iter().zip(schema.fields());
        let columns = columns.map(|(column, field)| arrow::compute::cast(column, field.data_type()));
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        // Whether a column can be null is known only roughly where it is computed.
        let columns = columns.collect::<std::result::Result<Vec<_>, _>>().map_err(wrong)?;
        let (columns, fields) = distinct(columns, schema)?;
        let batch = RecordBatch::try_new_with_options(fields, columns, &options).map_err(wrong)?;
        for start in (0..batch.num_rows()).step_by(ROWS) {
            let part = batch.slice(start, ROWS.min(batch.num_rows() - start));
            let data = encoded(&part)?;
            bytes += data.len();
            if bytes > BYTES {
                return Err(Error::user("RESULT_TOO_LARGE", "the answer is larger than 1 GiB")
                    .help("read the Delta tables themselves, or ask for fewer rows"));
            }
            operation.send(ResponseType::ArrowBatch(arrow_batch(part.num_rows(), offset, data)));
            offset += part.num_rows();
        }
    }
    if offset == 0 {
        let data = encoded(&RecordBatch::new_empty(Arc::clone(schema)))?;
        operation.send(ResponseType::ArrowBatch(arrow_batch(0, 0, data)));
    }
    Ok(())
}

/// The columns as they travel: the fields of one struct have names that differ, for which a client knows the true ones
/// from the schema that came before.
fn distinct(columns: Vec<ArrayRef>, schema: &SchemaRef) -> Result<(Vec<ArrayRef>, SchemaRef)> {
    let schema = relaxed(schema);
    let names = numbered(&DataType::Struct(schema.fields().clone()));
    let DataType::Struct(fields) = names else { return Err(Error::internal("columns are no struct")) };
    let fields: Fields = fields
        .iter()
        .zip(schema.fields())
        .map(|(field, named)| Arc::new(field.as_ref().clone().with_name(named.name())))
        .collect();
    let columns = columns.into_iter().zip(&fields).map(|(column, field)| {
        if column.data_type() == field.data_type() {
            return Ok(column);
        }
        // Names are all that differs, so that the values stay where they are.
        let data = renamed(&column.to_data(), field.data_type());
        data.map(make_array).map_err(|e| Error::internal("the names of a struct").caused_by(e))
    });
    Ok((columns.collect::<Result<_>>()?, Arc::new(Schema::new(fields))))
}

/// A type in which no struct has two fields of one name.
fn numbered(data_type: &DataType) -> DataType {
    let inner = |field: &FieldRef| Arc::new(field.as_ref().clone().with_data_type(numbered(field.data_type())));
    match data_type {
        DataType::Struct(fields) => {
            let count = |name: &str| fields.iter().filter(|field| field.name() == name).count();
            let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
            let fields = fields.iter().map(|field| {
                let number = seen.entry(field.name()).and_modify(|n| *n += 1).or_insert(0);
                let named = inner(field);
                if count(field.name()) > 1 {
                    Arc::new(named.as_ref().clone().with_name(format!("{}_{number}", field.name())))
                } else {
                    named
                }
            });
            DataType::Struct(fields.collect())
        }
        DataType::List(item) => DataType::List(inner(item)),
        DataType::Map(entries, sorted) => DataType::Map(inner(entries), *sorted),
        other => other.clone(),
    }
}

fn renamed(data: &ArrayData, to: &DataType) -> std::result::Result<ArrayData, arrow::error::ArrowError> {
    let inner: Vec<&DataType> = match to {
        DataType::Struct(fields) => fields.iter().map(|field| field.data_type()).collect(),
        DataType::List(item) | DataType::Map(item, _) => vec![item.data_type()],
        _ => Vec::new(),
    };
    let children = data.child_data().iter().zip(inner).map(|(child, to)| renamed(child, to));
    let children = children.collect::<std::result::Result<Vec<_>, _>>()?;
    data.clone().into_builder().data_type(to.clone()).child_data(children).build()
}

fn relaxed(schema: &SchemaRef) -> SchemaRef {
    Arc::new(Schema::new(schema.fields().iter().map(|f| f.as_ref().clone().with_nullable(true)).collect::<Vec<_>>()))
}

fn arrow_batch(rows: usize, offset: usize, data: Vec<u8>) -> ArrowBatch {
    ArrowBatch {
        row_count: i64::try_from(rows).unwrap_or(i64::MAX),
        data,
        start_offset: Some(i64::try_from(offset).unwrap_or(i64::MAX)),
        chunk_index: None,
        num_chunks_in_batch: None,
    }
}

fn encoded(batch: &RecordBatch) -> Result<Vec<u8>> {
    let wrong = |e: arrow::error::ArrowError| Error::internal("the rows of an answer cannot be written").caused_by(e);
    let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).map_err(wrong)?;
    writer.write(batch).map_err(wrong)?;
    writer.into_inner().map_err(wrong)
}
