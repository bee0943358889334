//! Pipelines built in Rust, for programs that embed the engine.

mod cdc;
mod read;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::Arc;

use super::declaration::{Declarations, Defaults};
use super::source::Source;
use super::{Action, DatasetKind, Pipeline, Settings};
use crate::error::{Error, Result};
use crate::project::{Loaded, finish};
use crate::sql::{Context, Snippets, absolute, parse_file};

pub use cdc::AutoCdcBuilder;
use cdc::Lists;
use read::{KeptLists, Piece, Prepared, Reader};

/// Name under which messages show what was given to the builder.
const FILE: &str = "<builder>";

impl Pipeline {
    /// Starts a pipeline.
    ///
    /// ```
    /// use silverflow::pipeline::{Action, Pipeline, ScdType};
    ///
    /// let loaded = Pipeline::builder("shop")
    ///     .storage("shop-lakehouse")
    ///     .streaming_table("orders_raw", |t| {
    ///         t.query("SELECT * FROM STREAM read_files('/data/orders', format => 'json')")
    ///             .expect("has_key", "order_id IS NOT NULL", Action::Fail)
    ///     })
    ///     .streaming_table("orders", |t| t.comment("every version of every order"))
    ///     .auto_cdc("orders_history", "orders", "orders_raw", |f| {
    ///         f.keys(["order_id"]).sequence_by("updated_at").except_columns(["op", "updated_at"]).scd(ScdType::Two)
    ///     })
    ///     .build()?;
    /// assert_eq!(loaded.pipeline.datasets.len(), 2);
    /// # Ok::<(), silverflow::error::Error>(())
    /// ```
    pub fn builder(name: impl Into<String>) -> PipelineBuilder {
        PipelineBuilder {
            settings: Settings { name: name.into(), ..Settings::default() },
            text: String::new(),
            parts: Vec::new(),
            sql: Vec::new(),
        }
    }
}

/// Collects declarations. Nothing is checked before [`PipelineBuilder::build`], and then everything at once.
#[derive(Debug)]
#[must_use]
pub struct PipelineBuilder {
    settings: Settings,
    /// Everything that was given as SQL, one piece after the other, so that a message can show it.
    text: String,
    parts: Vec<Part>,
    sql: Vec<String>,
}

#[derive(Debug)]
enum Part {
    Dataset { name: Piece, kind: DatasetKind, table: TableBuilder },
    Append { name: Piece, target: Piece, query: Piece, once: bool },
    AutoCdc { name: Piece, target: Piece, source: Piece, flow: Box<AutoCdcBuilder> },
}

impl PipelineBuilder {
    /// Root of tables and state: a local path or the URL of an object store.
    pub fn storage(mut self, storage: impl Into<String>) -> Self {
        self.settings.storage = storage.into();
        self
    }

    /// Folder from which relative paths count; the current folder by default.
    pub fn root(mut self, root: impl Into<PathBuf>) -> Self {
        self.settings.root = root.into();
        self
    }

    /// Default catalog, `main` if not given.
    pub fn catalog(mut self, catalog: impl Into<String>) -> Self {
        self.settings.catalog = catalog.into();
        self
    }

    /// Default schema, `default` if not given.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.settings.schema = schema.into();
        self
    }

    /// Sets a key of the configuration; also the value of `${key}` in SQL.
    pub fn configuration(mut self, key: impl Into<String>, value: impl Display) -> Self {
        self.settings.configuration.insert(key.into(), value.to_string());
        self
    }

    /// Declares a streaming table, with its query or to be fed by flows.
    pub fn streaming_table(self, name: &str, table: impl FnOnce(TableBuilder) -> TableBuilder) -> Self {
        self.dataset(name, DatasetKind::StreamingTable, table)
    }

    /// Declares a materialized view.
    pub fn materialized_view(self, name: &str, table: impl FnOnce(TableBuilder) -> TableBuilder) -> Self {
        self.dataset(name, DatasetKind::MaterializedView, table)
    }

    /// Declares a view, which is not stored.
    pub fn view(self, name: &str, query: &str) -> Self {
        self.dataset(name, DatasetKind::TemporaryView, |view| view.query(query))
    }

    /// Appends the rows of a query to a streaming table, columns matched by name.
    pub fn append_flow(self, name: &str, target: &str, query: &str) -> Self {
        self.append(name, target, query, false)
    }

    /// Appends what a query yields when it first runs, and never again.
    pub fn append_once(self, name: &str, target: &str, query: &str) -> Self {
        self.append(name, target, query, true)
    }

    /// Merges the change events of a source into a streaming table.
    pub fn auto_cdc(
        mut self,
        name: &str,
        target: &str,
        source: &str,
        flow: impl FnOnce(AutoCdcBuilder) -> AutoCdcBuilder,
    ) -> Self {
        let flow = Box::new(flow(AutoCdcBuilder::default()));
        let part = Part::AutoCdc { name: self.keep(name), target: self.keep(target), source: self.keep(source), flow };
        self.parts.push(part);
        self
    }

    /// Adds statements of pipeline SQL, as one definition file.
    pub fn sql(mut self, text: impl Into<String>) -> Self {
        self.sql.push(text.into());
        self
    }

    /// Checks everything.
    ///
    /// # Errors
    /// All mistakes at once, as when a project is loaded; the places are in what was given as SQL.
    pub fn build(mut self) -> Result<Loaded> {
        let root = std::path::absolute(&self.settings.root).map_err(|e| {
            let message = format!("no path to {}", self.settings.root.display());
            Error::external("CANNOT_READ", message).caused_by(e)
        })?;
        self.settings.storage = absolute(&root, &self.settings.storage);
        self.settings.root = root;
        // Pieces are put into the text before its positions can be asked for.
        let parts: Vec<Part> = std::mem::take(&mut self.parts);
        let parts: Vec<Prepared> = parts.into_iter().map(|part| self.prepare(part)).collect();
        let PipelineBuilder { settings, text, sql, .. } = self;
        let defaults = Defaults { catalog: settings.catalog.clone(), schema: settings.schema.clone() };
        let mut declarations = Declarations::default();
        let mut errors = Vec::new();
        let file = Arc::new(Source::new(FILE, text));
        let context = Context::new(&file, &settings.root, defaults.clone());
        let reader = Reader { snippets: Snippets::new(context, &settings.configuration), defaults: defaults.clone() };
        for part in parts {
            errors.extend(reader.part(part, &mut declarations).err());
        }
        declarations.sources.push(Arc::clone(&file));
        for (i, text) in sql.into_iter().enumerate() {
            let file = Arc::new(Source::new(format!("<sql {}>", i + 1), text));
            let mut context = Context::new(&file, &settings.root, defaults.clone());
            errors.extend(parse_file(&mut context, &settings.configuration, &mut declarations));
        }
        match Error::all(errors) {
            Some(error) => Err(error),
            None => finish(&settings, declarations),
        }
    }

    fn dataset(mut self, name: &str, kind: DatasetKind, table: impl FnOnce(TableBuilder) -> TableBuilder) -> Self {
        let table = table(TableBuilder::default());
        let name = self.keep(name);
        self.parts.push(Part::Dataset { name, kind, table });
        self
    }

    fn append(mut self, name: &str, target: &str, query: &str, once: bool) -> Self {
        let part = Part::Append { name: self.keep(name), target: self.keep(target), query: self.keep(query), once };
        self.parts.push(part);
        self
    }

    /// Adds a piece to the text, on lines of its own.
    fn keep(&mut self, piece: &str) -> Piece {
        let start = self.text.len();
        self.text.push_str(piece);
        let end = self.text.len();
        self.text.push('\n');
        start..end
    }

    fn prepare(&mut self, part: Part) -> Prepared {
        match part {
            Part::Append { name, target, query, once } => Prepared::Append { name, target, query, once },
            Part::Dataset { name, kind, table } => Prepared::Dataset {
                name,
                kind,
                query: table.query.as_deref().map(|query| self.keep(query)),
                columns: table.columns.as_deref().map(|columns| self.keep(columns)),
                expectations: table
                    .expectations
                    .iter()
                    .map(|(name, condition, action)| (name.clone(), self.keep(condition), *action))
                    .collect(),
                table,
            },
            Part::AutoCdc { name, target, source, flow } => Prepared::AutoCdc {
                name,
                target,
                source,
                sequence_by: flow.sequence_by.as_deref().map(|expr| self.keep(expr)),
                delete_when: flow.delete_when.as_deref().map(|expr| self.keep(expr)),
                truncate_when: flow.truncate_when.as_deref().map(|expr| self.keep(expr)),
                keys: self.keep_all(flow.keys.as_deref().unwrap_or_default()),
                columns: self.keep_list(&flow.columns),
                track_history: self.keep_list(&flow.track_history),
                ignore_null: self.keep_list(&flow.ignore_null_on),
                flow,
            },
        }
    }

    fn keep_all(&mut self, names: &[String]) -> Vec<(String, Piece)> {
        names.iter().map(|name| (name.clone(), self.keep(name))).collect()
    }

    fn keep_list(&mut self, list: &Lists) -> KeptLists {
        KeptLists {
            include: list.include.as_ref().map(|names| self.keep_all(names)),
            except: list.except.as_ref().map(|names| self.keep_all(names)),
        }
    }
}

/// A streaming table, a materialized view or a view.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct TableBuilder {
    query: Option<String>,
    columns: Option<String>,
    expectations: Vec<(String, String, Action)>,
    comment: Option<String>,
    properties: BTreeMap<String, String>,
    private: bool,
}

impl TableBuilder {
    /// The query that feeds it.
    pub fn query(mut self, query: impl Into<String>) -> Self {
        self.query = Some(query.into());
        self
    }

    /// Its columns, as in `id STRING NOT NULL COMMENT 'key', amount DECIMAL(10, 2)`.
    pub fn columns(mut self, ddl: impl Into<String>) -> Self {
        self.columns = Some(ddl.into());
        self
    }

    /// A condition that its rows should meet, and what happens to those that do not.
    pub fn expect(mut self, name: impl Into<String>, condition: impl Into<String>, action: Action) -> Self {
        self.expectations.push((name.into(), condition.into(), action));
        self
    }

    /// A comment for the table.
    pub fn comment(mut self, comment: impl Into<String>) -> Self {
        self.comment = Some(comment.into());
        self
    }

    /// A table property.
    pub fn property(mut self, key: impl Into<String>, value: impl Display) -> Self {
        self.properties.insert(key.into(), value.to_string());
        self
    }

    /// Not to be published.
    pub fn private(mut self) -> Self {
        self.private = true;
        self
    }
}
