//! A pipeline as a client declares it, output by output and flow by flow.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::tokenizer::Span as AstSpan;

use super::expression::{DefinitionFile, Expressions, decode, parts};
use super::extension::{Extension, extension};
use super::relation::{Place, query, streams};
use super::types;
use super::wire::spark::expression::ExprType;
use super::wire::spark::pipeline_command::define_flow::{
    AutoCdcFlowDetails, Details as FlowDetails, ScdType as WireType,
};
use super::wire::spark::pipeline_command::define_output::table_details::Schema as DeclaredSchema;
use super::wire::spark::pipeline_command::define_output::{Details as OutputDetails, TableDetails};
use super::wire::spark::pipeline_command::{CreateDataflowGraph, DefineFlow, DefineOutput};
use super::wire::spark::{OutputType, SourceCodeLocation};
use crate::error::{Error, Result, Span};
use crate::pipeline::declaration::{
    CdcParts, DatasetDeclaration, Declarations, Defaults, FlowBody, FlowDeclaration, WithoutEffect, WrittenName,
    WrittenRelation, WrittenSource,
};
use crate::pipeline::{
    Column, ColumnList, DatasetKind, Expectation, IgnoreNull, Name, QueryBody, ScdType, Settings, Source,
};
use crate::project::{Loaded, finish};
use crate::sql::{Context, Snippets, absolute, parse_file, written_name};

/// Arguments that are taken and change nothing, with the reason.
const WITHOUT_EFFECT: [(&str, &str); 6] = [
    ("partition_cols", "where rows lie is the engine's own matter"),
    ("cluster_by", "where rows lie is the engine's own matter"),
    ("cluster_by_auto", "where rows lie is the engine's own matter"),
    ("path", "tables are under the storage"),
    ("spark_conf", "settings are those of the project"),
    ("refresh_policy", "every table is kept up to date by the difference"),
];

/// A definition file that is larger is not shown in messages.
const SHOWN: u64 = 4 << 20;

/// Where definitions come from, as far as the server knows.
#[derive(Clone, Debug)]
pub(super) struct Home {
    /// Folder from which relative paths count.
    pub(super) root: PathBuf,
    /// How messages name that folder; empty for names relative to it.
    pub(super) shown: PathBuf,
    /// Name of the pipeline.
    pub(super) name: String,
}

/// Where a definition stands.
struct Definition {
    span: Span,
    /// Its line, for the parts of expressions; nowhere if it cannot be seen.
    at: AstSpan,
    file: Option<Arc<DefinitionFile>>,
}

impl Default for Definition {
    fn default() -> Self {
        Definition { span: Span::default(), at: AstSpan::empty(), file: None }
    }
}

impl Definition {
    fn expressions(&self) -> Expressions<'_> {
        Expressions { at: self.at, file: self.file.as_deref() }
    }
}

/// A pipeline in the making. Mistakes are kept until it is asked for, so that all are told at once.
pub(crate) struct Graph {
    defaults: Defaults,
    configuration: BTreeMap<String, String>,
    home: Home,
    declarations: Declarations,
    /// Datasets that are streaming tables or materialized views by what their query reads.
    undecided: Vec<String>,
    sources: BTreeMap<String, Arc<DefinitionFile>>,
    errors: Vec<Error>,
}

impl Graph {
    pub(super) fn new(create: &CreateDataflowGraph, session: &BTreeMap<String, String>, home: Home) -> Graph {
        let settings = Settings::default();
        let mut configuration: BTreeMap<String, String> = session.clone();
        configuration.extend(create.sql_conf.iter().map(|(key, value)| (key.clone(), value.clone())));
        Graph {
            defaults: Defaults {
                catalog: create.default_catalog.clone().unwrap_or(settings.catalog),
                schema: create.default_database.clone().unwrap_or(settings.schema),
            },
            configuration,
            home,
            declarations: Declarations::default(),
            undecided: Vec::new(),
            sources: BTreeMap::new(),
            errors: Vec::new(),
        }
    }

    /// Says where the project is, while nothing has been declared.
    pub(super) fn settle(&mut self, home: Home) {
        if self.declarations.datasets.is_empty() && self.declarations.flows.is_empty() && self.sources.is_empty() {
            self.home = home;
        }
    }

    /// Where a declaration stands, with the line itself if the file is one of the project.
    fn place(&mut self, location: Option<&SourceCodeLocation>) -> Definition {
        let Some(location) = location else { return Definition::default() };
        let path = PathBuf::from(location.file_name.clone().unwrap_or_default());
        let inside = path.strip_prefix(&self.home.root).ok().map(Path::to_path_buf);
        let shown = match &inside {
            Some(inside) => self.home.shown.join(inside).to_string_lossy().into_owned(),
            None => path.to_string_lossy().into_owned(),
        };
        let number = location.line_number.and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
        if inside.is_some() && !self.sources.contains_key(&shown) {
            let small = std::fs::metadata(&path).is_ok_and(|m| m.is_file() && m.len() <= SHOWN);
            if let Some(text) = small.then(|| std::fs::read_to_string(&path).ok()).flatten() {
                let source = Arc::new(Source::new(shown.clone(), text));
                self.declarations.sources.push(Arc::clone(&source));
                let file = DefinitionFile { path: path.to_string_lossy().into_owned(), source };
                self.sources.insert(shown.clone(), Arc::new(file));
            }
        }
        match self.sources.get(&shown) {
            Some(file) if number > 0 => {
                let at = file.line(number);
                Definition { span: file.source.span(at), at, file: Some(Arc::clone(file)) }
            }
            _ => {
                let line = usize::try_from(number).unwrap_or(0);
                let span = Span { file: shown, line, column: 1, length: 1, text: String::new() };
                Definition { span, at: AstSpan::empty(), file: None }
            }
        }
    }

    fn keep(&mut self, result: Result<()>, span: &Span) {
        self.errors.extend(result.err().map(|error| error.at(span)));
    }

    /// Takes an output up.
    pub(super) fn output(&mut self, output: &DefineOutput) {
        let definition = self.place(output.source_code_location.as_ref());
        let result = self.declare(output, &definition);
        self.keep(result, &definition.span);
    }

    fn declare(&mut self, output: &DefineOutput, definition: &Definition) -> Result<()> {
        let span = &definition.span;
        let name = table_name(output.output_name.as_deref().unwrap_or(""), span)?;
        let more = extension(output.source_code_location.as_ref())?;
        let kind = match output.output_type() {
            OutputType::MaterializedView => DatasetKind::MaterializedView,
            OutputType::Table => DatasetKind::StreamingTable,
            OutputType::TemporaryView => DatasetKind::TemporaryView,
            OutputType::Sink => {
                return Err(not_supported("a sink").help("tables are what a pipeline gives; read them from there"));
            }
            OutputType::Unspecified => return Err(Error::user("INVALID_PLAN_INPUT", "an output of no kind")),
        };
        let nothing = TableDetails::default();
        let details = match &output.details {
            Some(OutputDetails::TableDetails(details)) => details,
            None => &nothing,
            Some(_) => return Err(not_supported("this kind of output")),
        };
        if let Some(format) = details.format.as_deref().filter(|f| !f.is_empty() && !f.eq_ignore_ascii_case("delta")) {
            return Err(not_supported(&format!("the table format {format}")).help("tables are Delta tables"));
        }
        let mut ignored = more.texts("ignored");
        for (given, argument) in
            [(&details.partition_cols, "partition_cols"), (&details.clustering_columns, "cluster_by")]
        {
            if !given.is_empty() {
                ignored.push(argument.to_owned());
            }
        }
        self.without_effect(&ignored, span);
        let columns = match &details.schema {
            None => None,
            Some(DeclaredSchema::SchemaDataType(data_type)) => Some(self.columns(&types::columns(data_type)?, span)?),
            Some(DeclaredSchema::SchemaString(text)) if text.trim().is_empty() => None,
            Some(DeclaredSchema::SchemaString(text)) => Some(self.columns(text, span)?),
        };
        let expectations = more.expectations()?.into_iter().map(|(title, condition, action)| {
            let condition = definition
                .expressions()
                .read(&condition)
                .map_err(|e| in_text(&e, "the expectation", &title, &condition))?;
            Ok(Expectation { name: title, condition, action, span: span.clone() })
        });
        let expectations = expectations.collect::<Result<_>>()?;
        if more.flag("again") {
            let full = name.full(&self.defaults).to_string().to_lowercase();
            let declared = &mut self.declarations.datasets;
            let known = declared.iter_mut().rev().find(|d| d.name.full(&d.defaults).to_string().to_lowercase() == full);
            let missing = || Error::user("INVALID_PLAN_INPUT", format!("there is no output {full} to add to"));
            known.ok_or_else(missing)?.expectations = expectations;
            return Ok(());
        }
        if more.flag("auto") {
            self.undecided.push(name.full(&self.defaults).to_string().to_lowercase());
        }
        self.declarations.datasets.push(DatasetDeclaration {
            name,
            defaults: self.defaults.clone(),
            kind,
            private: kind == DatasetKind::TemporaryView || more.flag("private"),
            columns,
            expectations,
            comment: output.comment.clone(),
            properties: details.table_properties.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
            span: span.clone(),
        });
        Ok(())
    }

    /// Remembers which arguments of a definition do nothing here.
    fn without_effect(&mut self, arguments: &[String], span: &Span) {
        for argument in arguments {
            let known = WITHOUT_EFFECT.iter().find(|(clause, _)| clause == argument);
            let (clause, why) = known.copied().unwrap_or(("an argument", "there is nothing that it could change"));
            self.declarations.without_effect.push(WithoutEffect { clause, why, span: span.clone() });
        }
    }

    fn columns(&self, ddl: &str, span: &Span) -> Result<Vec<Column>> {
        let file = Arc::new(Source::new("<schema>", ddl));
        let context = Context::new(&file, &self.home.root, self.defaults.clone());
        let columns = Snippets::new(context, &BTreeMap::new())
            .columns(&(0..ddl.len()))
            .map_err(|e| in_text(&e, "the", "schema", ddl))?;
        Ok(columns.into_iter().map(|column| Column { span: span.clone(), ..column }).collect())
    }

    /// Takes a flow up, and gives its name.
    pub(super) fn flow(&mut self, flow: &DefineFlow) -> String {
        let definition = self.place(flow.source_code_location.as_ref());
        let result = self.feed(flow, &definition);
        self.keep(result, &definition.span);
        flow.flow_name.clone().or_else(|| flow.target_dataset_name.clone()).unwrap_or_default()
    }

    fn feed(&mut self, flow: &DefineFlow, definition: &Definition) -> Result<()> {
        let span = &definition.span;
        let written = flow.target_dataset_name.as_deref().unwrap_or("");
        let target = table_name(written, span)?;
        let more = extension(flow.source_code_location.as_ref())?;
        let name = match flow.flow_name.as_deref() {
            Some(name) if !name.is_empty() && !name.eq_ignore_ascii_case(written) => {
                if parts(name)?.len() > 1 {
                    let message = "the name of a flow has one part";
                    return Err(Error::user("MULTIPART_FLOW_NAME_NOT_SUPPORTED", message));
                }
                Some(Name { text: name.to_owned(), span: span.clone() })
            }
            _ => None,
        };
        let mut ignored = more.texts("ignored");
        if !flow.sql_conf.is_empty() {
            ignored.push("spark_conf".to_owned());
        }
        self.without_effect(&ignored, span);
        let body = match &flow.details {
            Some(FlowDetails::RelationFlowDetails(details)) => {
                let place = Place {
                    root: &self.home.root,
                    defaults: self.defaults.clone(),
                    configuration: &self.configuration,
                    span: span.clone(),
                    at: definition.at,
                    file: definition.file.as_deref(),
                };
                let mut query = query(details.relation.as_deref().unwrap_or_default(), &place)?;
                if let QueryBody::Frame(frame) = &mut query.body {
                    frame.without_order();
                }
                let full = target.full(&self.defaults).to_string().to_lowercase();
                if let Some(place) = self.undecided.iter().position(|undecided| *undecided == full) {
                    self.undecided.swap_remove(place);
                    if !streams(&query)
                        && let Some(dataset) = self
                            .declarations
                            .datasets
                            .iter_mut()
                            .rev()
                            .find(|d| d.name.full(&d.defaults).to_string().to_lowercase() == full)
                    {
                        dataset.kind = DatasetKind::MaterializedView;
                    }
                }
                FlowBody::Query { query, by_name: true }
            }
            Some(FlowDetails::AutoCdcFlowDetails(details)) => self.auto_cdc(details, &more, definition)?,
            Some(FlowDetails::Extension(_)) => return Err(not_supported("this kind of flow")),
            None => return Err(Error::user("INVALID_PLAN_INPUT", "a flow of no kind")),
        };
        self.declarations.flows.push(FlowDeclaration {
            name,
            target,
            defaults: self.defaults.clone(),
            once: flow.once == Some(true),
            body,
            comment: more.text("comment"),
            span: span.clone(),
        });
        Ok(())
    }

    fn auto_cdc(&self, details: &AutoCdcFlowDetails, more: &Extension, definition: &Definition) -> Result<FlowBody> {
        let span = &definition.span;
        let expr = |bytes: &Option<Vec<u8>>| -> Result<Option<ast::Expr>> {
            bytes.as_deref().map(|bytes| definition.expressions().expr(bytes).map(bare)).transpose()
        };
        let names =
            |columns: &[Vec<u8>]| columns.iter().map(|column| column_name(column, span)).collect::<Result<Vec<_>>>();
        let list = |include: Option<Vec<Name>>, except: Option<Vec<Name>>, clause: &str| match (include, except) {
            (Some(_), Some(_)) => {
                let message = format!("{clause} and except_{clause} exclude each other");
                Err(Error::user("CANNOT_SET_TOGETHER", message))
            }
            (Some(names), None) => Ok(Some(ColumnList::Include(names))),
            (None, Some(names)) => Ok(Some(ColumnList::Except(names))),
            (None, None) => Ok(None),
        };
        let given = |columns: &[Vec<u8>]| -> Result<Option<Vec<Name>>> {
            if columns.is_empty() { Ok(None) } else { names(columns).map(Some) }
        };
        // Clients before 4.3 have no field for it.
        let history = |key: &str, columns: &[Vec<u8>]| {
            let named = |text: String| Name { text, span: span.clone() };
            match more.list(key) {
                Some(texts) => Ok(Some(texts.into_iter().map(named).collect::<Vec<_>>())),
                None => given(columns),
            }
        };
        let ignored = list(
            given(&details.ignore_null_updates_column_list)?,
            given(&details.ignore_null_updates_except_column_list)?,
            "ignore_null_updates_column_list",
        )?;
        let parts = CdcParts {
            keys: Some(names(&details.keys)?),
            sequence_by: expr(&details.sequence_by)?.map(|expr| (expr, span.clone())),
            apply_as_deletes: expr(&details.apply_as_deletes)?,
            apply_as_truncates: expr(&details.apply_as_truncates)?,
            columns: list(given(&details.column_list)?, given(&details.except_column_list)?, "column_list")?,
            track_history: list(
                history("track_history_column_list", &details.track_history_column_list)?,
                history("track_history_except_column_list", &details.track_history_except_column_list)?,
                "track_history_column_list",
            )?,
            ignore_null_updates: match ignored {
                Some(list) => Some(IgnoreNull::Columns(list)),
                None => more.flag("ignore_null_updates").then_some(IgnoreNull::All),
            },
            scd: match (more.text("stored_as_scd_type").as_deref(), details.stored_as_scd_type()) {
                (Some("2"), _) | (None, WireType::ScdType2) => Some(ScdType::Two),
                (None | Some("1"), _) => Some(ScdType::One),
                (Some(other), _) => return Err(not_supported(&format!("stored_as_scd_type={other}"))),
            },
        };
        let source = table_name(details.source.as_deref().unwrap_or(""), span)?;
        let source = WrittenRelation {
            stream: true,
            options: Vec::new(),
            source: WrittenSource::Table(source),
            span: span.clone(),
        };
        Ok(FlowBody::AutoCdc { source, clauses: Box::new(parts.finish(span)?) })
    }

    /// Takes the statements of a file up.
    pub(super) fn sql(&mut self, path: &str, text: &str) {
        let shown = self.home.shown.join(path).to_string_lossy().into_owned();
        let file = Arc::new(Source::new(shown, text));
        let mut context = Context::new(&file, &self.home.root, self.defaults.clone());
        let errors = parse_file(&mut context, &self.configuration, &mut self.declarations);
        self.errors.extend(errors);
    }

    /// The whole pipeline, checked.
    pub(super) fn load(self, storage: &str) -> Result<Loaded> {
        let Graph { defaults, configuration, home, declarations, errors, .. } = self;
        if let Some(error) = Error::all(errors) {
            return Err(error);
        }
        let settings = Settings {
            name: home.name,
            storage: absolute(&home.root, storage),
            catalog: defaults.catalog,
            schema: defaults.schema,
            configuration,
            root: home.root,
        };
        finish(&settings, declarations)
    }

    /// What has been declared so far, for a project that declares more in files.
    pub(crate) fn into_declarations(self) -> Result<Declarations> {
        Error::all(self.errors).map_or(Ok(self.declarations), Err)
    }
}

fn not_supported(what: &str) -> Error {
    Error::user("NOT_SUPPORTED", format!("{what} is not supported yet"))
}

fn table_name(text: &str, span: &Span) -> Result<WrittenName> {
    let parts = parts(text).map_err(|_| Error::user("INVALID_TABLE_NAME", format!("`{text}` is no table name")))?;
    written_name(parts, text.starts_with('`'), span.clone())
}

/// An error inside a text that a definition holds, as one of the definition.
fn in_text(error: &Error, what: &str, name: &str, text: &str) -> Error {
    let moved = Error::user(error.code(), format!("{what} {name}: {}", error.message())).details([text.to_owned()]);
    match error.advice() {
        Some(advice) => moved.help(advice),
        None => moved,
    }
}

/// Parentheses around a whole expression say nothing.
fn bare(expr: ast::Expr) -> ast::Expr {
    match expr {
        ast::Expr::Nested(inner) => bare(*inner),
        other => other,
    }
}

/// A column that is named by itself.
fn column_name(bytes: &[u8], span: &Span) -> Result<Name> {
    let attribute = match decode(bytes)?.expr_type {
        Some(ExprType::UnresolvedAttribute(attribute)) => attribute.unparsed_identifier,
        Some(ExprType::ExpressionString(text)) => text.expression,
        _ => {
            return Err(Error::user("AUTOCDC_NON_COLUMN_IDENTIFIER", "a key or a column of a list is no column")
                .help("compute it in a view and name the column here"));
        }
    };
    match parts(&attribute)?.as_slice() {
        [only] => Ok(Name { text: only.clone(), span: span.clone() }),
        _ => {
            let message = format!("`{attribute}` has several parts: a column is named by itself here");
            Err(Error::user("AUTOCDC_MULTIPART_COLUMN_IDENTIFIER", message))
        }
    }
}
