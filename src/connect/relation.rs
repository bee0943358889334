//! Relations of the protocol as frames, with the list of what they read.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::Schema;
use datafusion::sql::sqlparser::ast::{self, ObjectName, ObjectNamePart, TableFactor, VisitMut, VisitorMut};
use datafusion::sql::sqlparser::tokenizer::Span as AstSpan;
use prost::Message;

use super::expression::{DefinitionFile, Expressions, decode as decode_expression, parts};
use super::fields::known;
use super::literal::{self, too_deep};
use super::rows;
use super::types;
use super::wire::spark::aggregate::GroupType;
use super::wire::spark::expression::ExprType;
use super::wire::spark::join::JoinType;
use super::wire::spark::read::{DataSource, NamedTable, ReadType};
use super::wire::spark::relation::RelType;
use super::wire::spark::set_operation::SetOpType;
use super::wire::spark::{self, Relation};
use crate::error::{Error, Result, Span};
use crate::pipeline::declaration::{Defaults, WrittenQuery, WrittenRelation, WrittenSource};
use crate::pipeline::frame::{Frame, FrameOp, Item, JoinFrame, JoinKind, SortKey};
use crate::pipeline::{Name, QueryBody, ReadFiles, Source};
use crate::sql::{Context, Snippets, absolute, parse_schema, schema_of_json, written_name};

/// How deep relations may nest.
const DEPTH: usize = 400;

/// One level of a relation.
pub(super) fn decode(bytes: &[u8]) -> Result<Relation> {
    let relation = Relation::decode(bytes)
        .map_err(|e| Error::user("INVALID_PLAN_INPUT", "a relation cannot be decoded").caused_by(e))?;
    known("spark.connect.Relation", bytes)?;
    Ok(relation)
}

/// Where a relation is defined.
pub(super) struct Place<'a> {
    /// The project's folder.
    pub(super) root: &'a Path,
    /// What completes short names.
    pub(super) defaults: Defaults,
    /// Values for `${key}` in SQL.
    pub(super) configuration: &'a BTreeMap<String, String>,
    /// The line that defines it.
    pub(super) span: Span,
    /// The same line, for the parts of expressions; nowhere if it is not known.
    pub(super) at: AstSpan,
    /// The file, if it can be seen.
    pub(super) file: Option<&'a DefinitionFile>,
}

/// Reads a relation.
pub(super) fn query(bytes: &[u8], place: &Place<'_>) -> Result<WrittenQuery> {
    let mut reader = Reader { place, relations: Vec::new(), named: Vec::new() };
    let frame = reader.frame(bytes, DEPTH).map_err(|e| e.at(&place.span))?;
    let text = place.span.text.clone();
    Ok(WrittenQuery {
        body: QueryBody::Frame(Box::new(frame)),
        relations: reader.relations,
        text,
        span: place.span.clone(),
    })
}

fn not_supported(what: &str) -> Error {
    Error::user("NOT_SUPPORTED", format!("{what} is not supported yet"))
}

struct Reader<'a> {
    place: &'a Place<'a>,
    relations: Vec<WrittenRelation>,
    /// Relations that SQL of the same request knows by name.
    named: Vec<String>,
}

impl Reader<'_> {
    fn expressions(&self) -> Expressions<'_> {
        Expressions { at: self.place.at, file: self.place.file }
    }

    fn items(&self, expressions: &[Vec<u8>]) -> Result<Vec<Item>> {
        expressions.iter().map(|e| self.expressions().item(e)).collect()
    }

    fn exprs(&self, expressions: &[Vec<u8>]) -> Result<Vec<ast::Expr>> {
        expressions.iter().map(|e| self.expressions().expr(e)).collect()
    }

    fn literal(&self, value: &spark::expression::Literal) -> Result<ast::Expr> {
        self.expressions().read(&literal::sql(value, 32)?)
    }

    fn frame(&mut self, bytes: &[u8], depth: usize) -> Result<Frame> {
        let depth = depth.checked_sub(1).ok_or_else(too_deep)?;
        let relation = decode(bytes)?;
        let id = relation.common.as_ref().and_then(|common| common.plan_id);
        let missing = || Error::user("INVALID_PLAN_INPUT", "a relation that says nothing");
        let op = self.op(relation.rel_type.ok_or_else(missing)?, depth)?;
        Ok(Frame { op, id })
    }

    fn input(&mut self, bytes: &[u8], depth: usize) -> Result<Box<Frame>> {
        self.frame(bytes, depth).map(Box::new)
    }

    fn op(&mut self, relation: RelType, depth: usize) -> Result<FrameOp> {
        Ok(match relation {
            RelType::Read(read) => match read.read_type {
                Some(ReadType::NamedTable(table)) => self.table(&table, read.is_streaming)?,
                Some(ReadType::DataSource(source)) => self.source(&source, read.is_streaming)?,
                None => return Err(Error::user("INVALID_PLAN_INPUT", "a read of nothing")),
            },
            RelType::Project(project) => {
                let items = self.items(&project.expressions)?;
                if project.input.is_empty() {
                    let one = RecordBatch::try_new_with_options(
                        Arc::new(Schema::empty()),
                        Vec::new(),
                        &arrow::array::RecordBatchOptions::new().with_row_count(Some(1)),
                    );
                    let one = one.map_err(|e| Error::internal("one row").caused_by(e))?;
                    let rows = FrameOp::Rows { schema: one.schema(), batches: Arc::new(vec![one]) };
                    return Ok(FrameOp::Project(Box::new(Frame::of(rows)), items));
                }
                FrameOp::Project(self.input(&project.input, depth)?, items)
            }
            RelType::Filter(filter) => {
                let condition = self.expressions().expr(&filter.condition)?;
                FrameOp::Filter(self.input(&filter.input, depth)?, Box::new(condition))
            }
            RelType::Join(join) => self.join(&join, depth)?,
            RelType::SetOp(set) => self.set(&set, depth)?,
            RelType::Sort(sort) => {
                let keys = sort
                    .order
                    .iter()
                    .map(|order| self.expressions().sort_key(order))
                    .collect::<Result<Vec<SortKey>>>()?;
                FrameOp::Sort(self.input(&sort.input, depth)?, keys)
            }
            RelType::Limit(limit) => FrameOp::Limit {
                input: self.input(&limit.input, depth)?,
                skip: 0,
                fetch: Some(count(limit.limit, "limit")?),
            },
            RelType::Offset(offset) => FrameOp::Limit {
                input: self.input(&offset.input, depth)?,
                skip: count(offset.offset, "offset")?,
                fetch: None,
            },
            RelType::Aggregate(aggregate) => {
                let what = match aggregate.group_type() {
                    GroupType::Unspecified => {
                        return Err(Error::user("INVALID_PLAN_INPUT", "an aggregation of no kind"));
                    }
                    GroupType::Groupby => None,
                    GroupType::Rollup => Some("rollup"),
                    GroupType::Cube => Some("cube"),
                    GroupType::Pivot => Some("pivot"),
                    GroupType::GroupingSets => Some("groupingSets"),
                };
                if let Some(what) = what {
                    return Err(not_supported(what));
                }
                FrameOp::Aggregate {
                    keys: self.items(&aggregate.grouping_expressions)?,
                    aggregates: self.items(&aggregate.aggregate_expressions)?,
                    input: self.input(&aggregate.input, depth)?,
                }
            }
            RelType::Sql(sql) => self.sql(&sql)?,
            RelType::WithRelations(with) => {
                let before = self.named.len();
                for reference in &with.references {
                    match decode(reference)?.rel_type {
                        Some(RelType::SubqueryAlias(alias)) => self.named.push(alias.alias),
                        _ => return Err(not_supported("a subquery")),
                    }
                }
                let frame = self.frame(&with.root, depth);
                self.named.truncate(before);
                return Ok(frame?.op);
            }
            RelType::LocalRelation(local) => rows::local(&local)?,
            RelType::Range(range) => rows::range(&range)?,
            RelType::Deduplicate(deduplicate) => {
                let all = deduplicate.all_columns_as_keys == Some(true) || deduplicate.column_names.is_empty();
                let names = (!all).then_some(deduplicate.column_names);
                FrameOp::Distinct(self.input(&deduplicate.input, depth)?, names)
            }
            RelType::SubqueryAlias(alias) => FrameOp::Alias(self.input(&alias.input, depth)?, alias.alias),
            RelType::WithColumns(with) => {
                let mut columns = Vec::with_capacity(with.aliases.len());
                for alias in &with.aliases {
                    let [name] = alias.name.as_slice() else { return Err(not_supported("a column of several names")) };
                    columns.push((name.clone(), self.expressions().expr(&alias.expr)?));
                }
                FrameOp::WithColumns(self.input(&with.input, depth)?, columns)
            }
            RelType::WithColumnsRenamed(renamed) => {
                let mut names: Vec<(String, String)> =
                    renamed.renames.into_iter().map(|rename| (rename.col_name, rename.new_col_name)).collect();
                let mut older: Vec<(String, String)> = renamed.rename_columns_map.into_iter().collect();
                older.sort();
                names.extend(older);
                FrameOp::Rename(self.input(&renamed.input, depth)?, names)
            }
            RelType::Drop(drop) => {
                let exprs = self.exprs(&drop.columns)?;
                FrameOp::Drop(self.input(&drop.input, depth)?, drop.column_names, exprs)
            }
            RelType::ToDf(to) => FrameOp::Names(self.input(&to.input, depth)?, to.column_names),
            RelType::ToSchema(to) => {
                let schema = to.schema.as_ref().map(types::schema).transpose()?;
                let schema = schema.ok_or_else(|| Error::user("INVALID_PLAN_INPUT", "a schema that says nothing"))?;
                FrameOp::Conform(self.input(&to.input, depth)?, schema)
            }
            RelType::FillNa(fill) => FrameOp::FillNull {
                values: fill.values.iter().map(|value| self.literal(value)).collect::<Result<_>>()?,
                columns: fill.cols,
                input: self.input(&fill.input, depth)?,
            },
            RelType::DropNa(drop) => FrameOp::DropNull {
                input: self.input(&drop.input, depth)?,
                columns: drop.cols,
                at_least: drop.min_non_nulls,
            },
            RelType::Replace(replace) => {
                let absent = || Error::user("INVALID_PLAN_INPUT", "a replacement without a value");
                let mut values = Vec::with_capacity(replace.replacements.len());
                for replacement in &replace.replacements {
                    let old = replacement.old_value.as_ref().ok_or_else(absent)?;
                    let new = replacement.new_value.as_ref().ok_or_else(absent)?;
                    values.push((self.literal(old)?, self.literal(new)?));
                }
                FrameOp::Replace { input: self.input(&replace.input, depth)?, columns: replace.cols, values }
            }
            RelType::Unpivot(unpivot) => FrameOp::Unpivot {
                ids: self.exprs(&unpivot.ids)?,
                values: unpivot.values.as_ref().map(|values| self.exprs(&values.values)).transpose()?,
                input: self.input(&unpivot.input, depth)?,
                variable: unpivot.variable_column_name,
                value: unpivot.value_column_name,
            },
            // What only says how to compute changes nothing here.
            RelType::Hint(hint) => return Ok(self.frame(&hint.input, depth)?.op),
            RelType::Repartition(repartition) => return Ok(self.frame(&repartition.input, depth)?.op),
            RelType::RepartitionByExpression(repartition) => return Ok(self.frame(&repartition.input, depth)?.op),
            // Nothing is dropped for being late, so that a watermark is not needed.
            RelType::WithWatermark(watermark) => return Ok(self.frame(&watermark.input, depth)?.op),
            other => return Err(not_supported(refused(&other))),
        })
    }

    fn add(&mut self, stream: bool, options: Vec<(Name, String)>, source: WrittenSource) -> usize {
        self.relations.push(WrittenRelation { stream, options, source, span: self.place.span.clone() });
        self.relations.len() - 1
    }

    fn table(&mut self, table: &NamedTable, stream: bool) -> Result<FrameOp> {
        let parts = parts(&table.unparsed_identifier)?;
        let quoted = table.unparsed_identifier.starts_with('`');
        let written = written_name(parts, quoted, self.place.span.clone())?;
        let full = written.full(&self.place.defaults);
        let full = [full.catalog, full.schema, full.table];
        let mut options: Vec<(Name, String)> = table
            .options
            .iter()
            .map(|(key, value)| (Name { text: key.clone(), span: self.place.span.clone() }, value.clone()))
            .collect();
        options.sort_by(|a, b| a.0.text.cmp(&b.0.text));
        if !stream && let Some((option, _)) = options.first() {
            let message = format!("the option {} on a table that is not read as a stream", option.text);
            return Err(not_supported(&message));
        }
        let relation = self.add(stream, options, WrittenSource::Table(written));
        let qualifiers = (0..3).rev().filter_map(|i| full.get(i..).map(<[String]>::to_vec)).collect();
        Ok(FrameOp::Read { relation, qualifiers })
    }

    fn source(&mut self, source: &DataSource, stream: bool) -> Result<FrameOp> {
        let format = source.format.as_deref().unwrap_or("").to_lowercase();
        if !source.predicates.is_empty() || format == "jdbc" {
            return Err(not_supported("reading a database (jdbc)"));
        }
        let mut options: BTreeMap<String, String> = BTreeMap::new();
        for (key, value) in &source.options {
            options.insert(key.to_lowercase(), value.clone());
        }
        let given = options.remove("path");
        let paths: Vec<String> =
            if source.paths.is_empty() { given.into_iter().collect() } else { source.paths.clone() };
        if paths.is_empty() {
            return Err(Error::user("INVALID_OPTION", format!("reading {format} needs a path")));
        }
        if format == "delta" {
            return self.delta(&paths, options, stream);
        }
        let format = match format.as_str() {
            "cloudfiles" => {
                let inner = options
                    .remove("cloudfiles.format")
                    .ok_or_else(|| Error::user("INVALID_OPTION", "cloudFiles needs the option cloudFiles.format"))?;
                let hidden: Vec<String> =
                    options.keys().filter(|key| key.starts_with("cloudfiles.")).cloned().collect();
                for key in hidden {
                    let value = options.remove(&key).unwrap_or_default();
                    let plain = key.trim_start_matches("cloudfiles.").to_owned();
                    // The engine keeps what it has inferred by itself.
                    if !["schemalocation", "usenotifications", "backfillinterval"].contains(&plain.as_str()) {
                        options.insert(plain, value);
                    }
                }
                inner.to_lowercase()
            }
            "kafka" | "kinesis" | "pubsub" | "pulsar" | "rate" | "socket" => {
                return Err(not_supported(&format!("reading {format}")));
            }
            "" => {
                return Err(Error::user("INVALID_OPTION", "reading files needs a format")
                    .help("spark.readStream.format('json')"));
            }
            // Which formats of files there are, the sources know.
            _ => format,
        };
        options.insert("format".to_owned(), format);
        let declared = match source.schema.as_deref().filter(|schema| !schema.is_empty()) {
            None => None,
            Some(schema) if schema.trim_start().starts_with('{') => Some(schema_of_json(schema)?),
            Some(schema) => Some(parse_schema(schema)?),
        };
        let place = self.place;
        let files = paths.iter().map(|path| {
            let (path, schema) = (absolute(place.root, path), declared.clone());
            WrittenSource::Files(ReadFiles { path, schema, options: options.clone(), kept: None })
        });
        self.united(files.collect(), Vec::new(), stream)
    }

    /// Delta tables by their paths, as tables outside the pipeline.
    fn delta(&mut self, paths: &[String], options: BTreeMap<String, String>, stream: bool) -> Result<FrameOp> {
        if !stream && let Some(option) = options.keys().next() {
            return Err(not_supported(&format!("the option {option} on a table that is not read as a stream")));
        }
        let named = |(key, value)| (Name { text: key, span: self.place.span.clone() }, value);
        let options: Vec<(Name, String)> = options.into_iter().map(named).collect();
        let root = self.place.root;
        self.united(paths.iter().map(|path| WrittenSource::Delta(absolute(root, path))).collect(), options, stream)
    }

    /// The rows of all sources. A column that one of them lacks is null there.
    fn united(&mut self, sources: Vec<WrittenSource>, options: Vec<(Name, String)>, stream: bool) -> Result<FrameOp> {
        let mut all: Option<FrameOp> = None;
        for source in sources {
            let relation = self.add(stream, options.clone(), source);
            let read = FrameOp::Read { relation, qualifiers: Vec::new() };
            all = Some(match all {
                None => read,
                Some(left) => FrameOp::Union {
                    left: Box::new(Frame::of(left)),
                    right: Box::new(Frame::of(read)),
                    by_name: true,
                    allow_missing: true,
                },
            });
        }
        all.ok_or_else(|| Error::internal("a read without sources"))
    }

    fn join(&mut self, join: &spark::Join, depth: usize) -> Result<FrameOp> {
        if join.join_data_type.is_some_and(|t| t.is_left_struct || t.is_right_struct) {
            return Err(not_supported("joinWith"));
        }
        let kind = match join.join_type() {
            JoinType::Unspecified => return Err(Error::user("INVALID_PLAN_INPUT", "a join of no kind")),
            JoinType::Inner | JoinType::Cross => JoinKind::Inner,
            JoinType::LeftOuter => JoinKind::Left,
            JoinType::RightOuter => JoinKind::Right,
            JoinType::FullOuter => JoinKind::Full,
            JoinType::LeftSemi => JoinKind::Semi,
            JoinType::LeftAnti => JoinKind::Anti,
        };
        let on =
            if join.join_condition.is_empty() { None } else { Some(self.expressions().expr(&join.join_condition)?) };
        Ok(FrameOp::Join(Box::new(JoinFrame {
            left: self.frame(&join.left, depth)?,
            right: self.frame(&join.right, depth)?,
            kind,
            on,
            using: join.using_columns.clone(),
        })))
    }

    fn set(&mut self, set: &spark::SetOperation, depth: usize) -> Result<FrameOp> {
        let left = self.input(&set.left_input, depth)?;
        let right = self.input(&set.right_input, depth)?;
        let all = set.is_all == Some(true);
        Ok(match set.set_op_type() {
            SetOpType::Union => {
                let union = FrameOp::Union {
                    left,
                    right,
                    by_name: set.by_name == Some(true),
                    allow_missing: set.allow_missing_columns == Some(true),
                };
                if all { union } else { FrameOp::Distinct(Box::new(Frame::of(union)), None) }
            }
            SetOpType::Intersect => FrameOp::Compare { left, right, intersect: true, all },
            SetOpType::Except => FrameOp::Compare { left, right, intersect: false, all },
            SetOpType::Unspecified => return Err(Error::user("INVALID_PLAN_INPUT", "a set operation of no kind")),
        })
    }

    /// A query in SQL. What it reads is numbered behind what has been read so far.
    fn sql(&mut self, sql: &spark::Sql) -> Result<FrameOp> {
        let file = Arc::new(Source::new("<spark.sql>", self.with_arguments(sql)?));
        let length = file.text().len();
        let context = Context::new(&file, self.place.root, self.place.defaults.clone());
        let written = Snippets::new(context, self.place.configuration).lone_query(&(0..length))?;
        let QueryBody::Sql(mut ast) = written.body else {
            return Err(Error::internal("SQL was read as something else"));
        };
        for relation in &written.relations {
            if let WrittenSource::Table(name) = &relation.source
                && name.parts.len() == 1
                && self.named.iter().any(|alias| alias.eq_ignore_ascii_case(name.table()))
            {
                return Err(not_supported("a data frame inside spark.sql")
                    .help("declare the data frame with @temporary_view, and name that in the query"));
            }
        }
        let offset = self.relations.len();
        let mut shift = Shift(offset);
        let _ = VisitMut::visit(ast.as_mut(), &mut shift);
        self.relations.extend(
            written.relations.into_iter().map(|relation| WrittenRelation { span: self.place.span.clone(), ..relation }),
        );
        Ok(FrameOp::Sql(ast))
    }

    /// The text with the values of its parameters.
    fn with_arguments(&self, sql: &spark::Sql) -> Result<String> {
        let expressions = |bytes: &[u8]| -> Result<String> {
            match decode_expression(bytes)?.expr_type {
                Some(ExprType::Literal(value)) => literal::sql(&value, 32),
                _ => Err(not_supported("an argument of spark.sql that is no literal")),
            }
        };
        let mut named: BTreeMap<String, String> = BTreeMap::new();
        for (key, value) in &sql.args {
            named.insert(key.clone(), literal::sql(value, 32)?);
        }
        for (key, value) in &sql.named_arguments {
            named.insert(key.clone(), expressions(value)?);
        }
        let mut positional = Vec::new();
        for value in &sql.pos_args {
            positional.push(literal::sql(value, 32)?);
        }
        for value in &sql.pos_arguments {
            positional.push(expressions(value)?);
        }
        if named.is_empty() && positional.is_empty() {
            return Ok(sql.query.clone());
        }
        super::parameters::fill(&sql.query, &named, &positional)
    }
}

struct Shift(usize);

impl VisitorMut for Shift {
    type Break = ();

    /// Places in the text of the query are none of the file.
    fn pre_visit_expr(&mut self, expr: &mut ast::Expr) -> std::ops::ControlFlow<()> {
        match expr {
            ast::Expr::Identifier(ident) => ident.span = AstSpan::empty(),
            ast::Expr::CompoundIdentifier(idents) => idents.iter_mut().for_each(|ident| ident.span = AstSpan::empty()),
            _ => {}
        }
        std::ops::ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> std::ops::ControlFlow<()> {
        if let TableFactor::Table { name, .. } = factor
            && let [ObjectNamePart::Identifier(ident)] = name.0.as_slice()
            && let Some(number) = ident.value.strip_prefix('$').and_then(|n| n.parse::<usize>().ok())
        {
            let mut ident = ident.clone();
            ident.value = format!("${}", number + self.0);
            *name = ObjectName::from(vec![ident]);
        }
        std::ops::ControlFlow::Continue(())
    }
}

fn count(value: i32, what: &str) -> Result<usize> {
    usize::try_from(value)
        .map_err(|_| Error::user("INVALID_LIMIT", format!("{what} takes a number from 0 on, not {value}")))
}

/// A relation that is known by name only.
fn refused(relation: &RelType) -> &'static str {
    match relation {
        RelType::Sample(_) => "sample",
        RelType::Tail(_) => "tail",
        RelType::MapPartitions(_) => "a function of Python over rows (mapInPandas, mapInArrow)",
        RelType::GroupMap(_) | RelType::CoGroupMap(_) => "a function of Python over groups (applyInPandas)",
        RelType::ApplyInPandasWithState(_) => "applyInPandasWithState",
        RelType::CollectMetrics(_) => "observe",
        RelType::Parse(_) => "parsing rows as JSON or CSV (spark.read.json over rows)",
        RelType::CachedLocalRelation(_) | RelType::ChunkedCachedLocalRelation(_) => "a table of Python of that size",
        RelType::CachedRemoteRelation(_) => "checkpoint",
        RelType::CommonInlineUserDefinedTableFunction(_) => "a table function of Python",
        RelType::CommonInlineUserDefinedDataSource(_) => "a data source of Python",
        RelType::UnresolvedTableValuedFunction(_) => "a table-valued function",
        RelType::AsOfJoin(_) => "an as-of join",
        RelType::LateralJoin(_) => "a lateral join",
        RelType::NearestByJoin(_) => "a nearest-by join",
        RelType::Zip(_) => "zip",
        RelType::Transpose(_) => "transpose",
        RelType::RelationChanges(_) => "changes of a table",
        RelType::Summary(_) => "summary",
        RelType::Describe(_) => "describe",
        RelType::Crosstab(_) => "crosstab",
        RelType::Cov(_) => "cov",
        RelType::Corr(_) => "corr",
        RelType::ApproxQuantile(_) => "approxQuantile",
        RelType::FreqItems(_) => "freqItems",
        RelType::SampleBy(_) => "sampleBy",
        RelType::MlRelation(_) => "machine learning",
        RelType::Catalog(_) => "spark.catalog inside another relation",
        RelType::ShowString(_) | RelType::HtmlString(_) => "show inside another relation",
        RelType::Extension(_) => "an extension of the protocol",
        _ => "this relation",
    }
}

/// Whether anything in a relation is read as a stream.
pub(super) fn streams(query: &WrittenQuery) -> bool {
    query.relations.iter().any(|relation| relation.stream)
}
