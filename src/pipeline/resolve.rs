//! Declarations of all files to one pipeline: every name is resolved, whatever the order of files.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::check::check;
use super::declaration::{
    DatasetDeclaration, Declarations, Defaults, FlowBody, FlowDeclaration, WithoutEffect, WrittenName, WrittenQuery,
    WrittenRelation, WrittenSource,
};
use super::lint::{Lint, NO_EFFECT, lint};
use super::names::near_miss;
use super::source::Source;
use super::{Dataset, Flow, FlowKind, Pipeline, Query, ReadTable, Relation, RelationSource, TableName};
use crate::error::{Error, Result, Span};
use crate::sql::{Context, Snippets, absolute};
use crate::stack::on_large_stack;

/// What the project file (or the embedding program) says of the pipeline as a whole.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name of the pipeline.
    pub name: String,
    /// Root of tables and state.
    pub storage: String,
    /// Default catalog.
    pub catalog: String,
    /// Default schema.
    pub schema: String,
    /// Configuration, for `${key}` and for the engine.
    pub configuration: BTreeMap<String, String>,
    /// Folder from which relative paths count.
    pub root: PathBuf,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            name: "pipeline".to_owned(),
            storage: String::new(),
            catalog: "main".to_owned(),
            schema: "default".to_owned(),
            configuration: BTreeMap::new(),
            root: PathBuf::from("."),
        }
    }
}

/// Resolves and checks everything.
///
/// # Errors
/// All mistakes that names and syntax show, joined into one error.
pub(crate) fn resolve(settings: &Settings, mut declarations: Declarations) -> Result<(Pipeline, Vec<Lint>)> {
    let place = |span: &Span| (span.file.clone(), span.line, span.column);
    declarations.datasets.sort_by_key(|dataset| place(&dataset.span));
    declarations.flows.sort_by_key(|flow| place(&flow.span));
    declarations.settings.sort_by_key(|(_, _, span)| place(span));

    let mut resolver = Resolver { settings, datasets: BTreeMap::new(), lints: Vec::new(), errors: Vec::new() };
    let configuration = resolver.configuration(&declarations.settings);
    let mut refused = Vec::new();
    for dataset in declarations.datasets {
        let span = dataset.span.clone();
        if !resolver.dataset(dataset) {
            refused.push(span);
        }
    }
    resolver.quarantines();
    // The own flow of a dataset that is declared a second time is no second mistake.
    declarations.flows.retain(|flow| flow.name.is_some() || !refused.contains(&flow.span));
    let mut flows: BTreeMap<String, Flow> = BTreeMap::new();
    let mut seen: BTreeMap<String, Span> = BTreeMap::new();
    for flow in declarations.flows {
        let Some(flow) = resolver.flow(flow) else { continue };
        match seen.get(&flow.name.to_lowercase()) {
            Some(first) => {
                let message = format!("two flows are called `{}`; the other is at {first}", flow.name);
                let error = Error::user("PIPELINE_DUPLICATE_IDENTIFIERS.FLOW", message).at(&flow.span);
                resolver.errors.push(error.help("give each its own name: CREATE FLOW name AS …"));
            }
            None => {
                seen.insert(flow.name.to_lowercase(), flow.span.clone());
                flows.insert(flow.name.clone(), flow);
            }
        }
    }
    let Resolver { datasets, mut lints, mut errors, .. } = resolver;
    let pipeline = Pipeline {
        name: settings.name.clone(),
        storage: settings.storage.clone(),
        catalog: settings.catalog.clone(),
        schema: settings.schema.clone(),
        configuration,
        datasets,
        flows,
        sources: declarations
            .sources
            .into_iter()
            .map(|source| (source.name().to_owned(), Arc::clone(&source)))
            .collect(),
        root: settings.root.clone(),
    };
    errors.extend(check(&pipeline));
    if let Some(error) = Error::all(errors) {
        return Err(error);
    }
    lints.extend(without_effect(declarations.without_effect));
    lints.extend(lint(&pipeline));
    lints.sort_by_key(|lint| place(&lint.span));
    Ok((pipeline, lints))
}

/// One remark a clause, however often it stands.
fn without_effect(mut found: Vec<WithoutEffect>) -> Vec<Lint> {
    found.sort_by(|a, b| {
        (a.clause, &a.span.file, a.span.line, a.span.column).cmp(&(b.clause, &b.span.file, b.span.line, b.span.column))
    });
    found
        .chunk_by(|a, b| a.clause == b.clause)
        .filter_map(|same| same.split_first())
        .map(|(first, more)| {
            let mut help = "it can stay".to_owned();
            if let Some(next) = more.first() {
                help.push_str(&format!("; it also stands at {}", next.span));
                if more.len() > 1 {
                    help.push_str(&format!(" and in {} more places", more.len() - 1));
                }
            }
            Lint {
                code: NO_EFFECT,
                message: format!("{} has no effect: {}", first.clause, first.why),
                span: first.span.clone(),
                help,
            }
        })
        .collect()
}

impl Pipeline {
    /// Reads a query that stands outside the definitions, such as one of the command line, in the dialect of the
    /// definitions and with the same rules for names. Relative paths count from the current folder.
    ///
    /// # Errors
    /// `PARSE_SYNTAX_ERROR`, or `NOT_A_QUERY` for any other statement, with the place in `<query>`; everything that is
    /// refused in a query of a definition; `INVALID_STREAM`, since such a query reads tables as they are.
    pub fn read_query(&self, sql: &str) -> Result<Query> {
        on_large_stack(|| self.query_of(sql))
    }

    fn query_of(&self, sql: &str) -> Result<Query> {
        let root = std::path::absolute(".")
            .map_err(|e| Error::external("CANNOT_READ", "no path to the current folder").caused_by(e))?;
        let defaults = Defaults { catalog: self.catalog.clone(), schema: self.schema.clone() };
        let file = Arc::new(Source::new("<query>", sql));
        let context = Context::new(&file, &root, defaults.clone());
        let written = Snippets::new(context, &self.configuration).lone_query(&(0..sql.len()))?;
        self.resolve_query(written, root)
    }

    /// Resolves the names of a query that stands outside the definitions.
    ///
    /// # Errors
    /// As for [`Pipeline::read_query`], at the places in the query.
    pub(crate) fn resolve_query(&self, written: WrittenQuery, root: PathBuf) -> Result<Query> {
        let defaults = Defaults { catalog: self.catalog.clone(), schema: self.schema.clone() };
        let settings = Settings {
            catalog: self.catalog.clone(),
            schema: self.schema.clone(),
            configuration: self.configuration.clone(),
            root,
            ..Settings::default()
        };
        let mut resolver =
            Resolver { settings: &settings, datasets: self.datasets.clone(), lints: Vec::new(), errors: Vec::new() };
        let query = resolver.query(written, &defaults);
        match (Error::all(resolver.errors), query) {
            (None, Some(query)) => match query.relations.iter().find(|relation| relation.stream) {
                None => Ok(query),
                Some(stream) => {
                    Err(Error::user("INVALID_STREAM", "this query reads tables as they are, not as streams")
                        .at(&stream.span)
                        .help("leave out STREAM"))
                }
            },
            (Some(error), _) => Err(error),
            (None, None) => Err(Error::internal("a relation was dropped without an error")),
        }
    }
}

struct Resolver<'a> {
    settings: &'a Settings,
    datasets: BTreeMap<TableName, Dataset>,
    lints: Vec<Lint>,
    errors: Vec<Error>,
}

impl Resolver<'_> {
    /// The project's configuration and the engine settings of all files, which must agree.
    fn configuration(&mut self, set: &[(String, String, Span)]) -> BTreeMap<String, String> {
        let mut result = self.settings.configuration.clone();
        for (key, value, span) in set {
            match result.get(key) {
                Some(other) if other != value => {
                    let message = format!("`{key}` is `{value}` here and `{other}` elsewhere");
                    let error = Error::user("CONFLICTING_CONFIGURATION", message).at(span);
                    self.errors.push(error.help("set it once, under `configuration` in the project file"));
                }
                _ => {
                    result.insert(key.clone(), value.clone());
                }
            }
        }
        result
    }

    /// Takes a dataset up, unless one of its name is there.
    fn dataset(&mut self, declared: DatasetDeclaration) -> bool {
        let name = declared.name.full(&declared.defaults);
        if let Some(first) = self.datasets.get(&name) {
            let message = format!("`{name}` is declared twice; the other is at {}", first.span);
            self.errors
                .push(Error::user("PIPELINE_DUPLICATE_IDENTIFIERS.DATASET", message).at(&declared.span).dataset(&name));
            return false;
        }
        let DatasetDeclaration { kind, private, columns, expectations, comment, properties, span, .. } = declared;
        let dataset = Dataset { name: name.clone(), kind, private, columns, expectations, comment, properties, span };
        self.datasets.insert(name, dataset);
        true
    }

    fn quarantines(&mut self) {
        for dataset in self.datasets.values().filter(|dataset| dataset.quarantines()) {
            let name = dataset.name.quarantine();
            if let Some(declared) = self.datasets.get(&name) {
                let message = format!(
                    "`{name}` is declared, and it is also the table to which `{}` (at {}) sends its quarantined rows",
                    dataset.name, dataset.span
                );
                let error = Error::user("QUARANTINE_TABLE_DECLARED", message).at(&declared.span).dataset(&name);
                self.errors.push(error.help("give the declared table another name, or read the automatic one"));
            }
        }
    }

    fn flow(&mut self, declared: FlowDeclaration) -> Option<Flow> {
        let FlowDeclaration { name, target, defaults, once, body, comment, span } = declared;
        let full = target.full(&defaults);
        let Some(found) = self.datasets.get(&full).map(|dataset| dataset.name.clone()) else {
            let error =
                Error::user("FLOW_TARGET_NOT_DECLARED", format!("no dataset `{target}` is declared")).at(&target.span);
            self.errors.push(match self.near(&target, &full) {
                Some(near) => error.help(format!("did you mean `{near}`?")),
                None => error.help(format!("CREATE STREAMING TABLE {target};")),
            });
            return None;
        };
        let kind = match body {
            FlowBody::Query { query, by_name } => FlowKind::Query { query: self.query(query, &defaults)?, by_name },
            FlowBody::AutoCdc { source, clauses } => {
                FlowKind::AutoCdc(Box::new(clauses.with_source(self.relation(source, &defaults)?)))
            }
        };
        let name = name.map_or_else(|| found.to_string(), |name| name.text);
        Some(Flow { name, target: found, once, kind, comment, span })
    }

    fn query(&mut self, query: WrittenQuery, defaults: &Defaults) -> Option<Query> {
        let count = query.relations.len();
        let relations: Vec<Relation> = query.relations.into_iter().filter_map(|r| self.relation(r, defaults)).collect();
        (relations.len() == count).then_some(Query { body: query.body, relations, text: query.text, span: query.span })
    }

    fn relation(&mut self, relation: WrittenRelation, defaults: &Defaults) -> Option<Relation> {
        let WrittenRelation { stream, options, source, span } = relation;
        let mut source = match source {
            WrittenSource::Files(files) => RelationSource::Files(files),
            WrittenSource::Table(name) => self.table(&name, defaults)?,
            WrittenSource::Delta(location) => {
                let table = location.trim_end_matches('/').rsplit('/').next().unwrap_or(&location).to_owned();
                let name = TableName { catalog: defaults.catalog.clone(), schema: defaults.schema.clone(), table };
                RelationSource::External { name, location: Some(location), read: ReadTable::current() }
            }
        };
        match (&mut source, options.first()) {
            (RelationSource::External { read, .. }, _) if stream => match ReadTable::of_stream(&options) {
                Ok(options) => *read = options,
                Err(error) => {
                    self.errors.push(error);
                    return None;
                }
            },
            (_, Some((option, _))) => {
                let message = format!("`{}` is an option for a table outside the pipeline", option.text);
                self.errors.push(Error::user("INVALID_OPTION", message).at(&option.span).help(
                    "leave it out: changes of a dataset of the pipeline, also of its verdicts, flow on by themselves",
                ));
                return None;
            }
            (_, None) => {}
        }
        Some(Relation { stream, source, span })
    }

    fn table(&mut self, written: &WrittenName, defaults: &Defaults) -> Option<RelationSource> {
        let name = written.full(defaults);
        if let Some(dataset) = self.datasets.get(&name) {
            return Some(RelationSource::Dataset(dataset.name.clone()));
        }
        let base = self.quarantined(&name);
        if let Some(dataset) = base.filter(|dataset| dataset.quarantines()) {
            return Some(RelationSource::Quarantine(dataset.name.clone()));
        }
        if written.live {
            let error = Error::user("UNRESOLVED_DATASET", format!("LIVE.{written} is no dataset of this pipeline"))
                .at(&written.span);
            self.errors.push(match self.near(written, &name) {
                Some(near) => error.help(format!("did you mean `{near}`?")),
                None => error.help("a table outside the pipeline is read without LIVE"),
            });
            return None;
        }
        let location = self.location(written, &name);
        if location.is_none() {
            let lint = if let Some(dataset) = base {
                Some(Lint {
                    code: "QUARANTINE_NEVER_FILLED",
                    message: format!(
                        "`{}` has no rule with the action QUARANTINE, so nothing ever fills `{written}`",
                        dataset.name
                    ),
                    span: written.span.clone(),
                    help: format!("add ON VIOLATION QUARANTINE to a rule of `{}`", dataset.name),
                })
            } else {
                self.near(written, &name).map(|near| Lint {
                    code: "EXTERNAL_TABLE_LIKE_DATASET",
                    message: format!(
                        "`{written}` is read from outside the pipeline as `{name}`, and the pipeline has `{near}`"
                    ),
                    span: written.span.clone(),
                    help: format!(
                        "write `{near}` to read the dataset, or set silverflow.table.{written} to where the table is"
                    ),
                })
            };
            self.lints.extend(lint);
        }
        Some(RelationSource::External { name, location, read: ReadTable::current() })
    }

    /// The dataset whose quarantine table would bear this name.
    fn quarantined(&self, name: &TableName) -> Option<&Dataset> {
        let table = name.table.to_lowercase();
        let base = table.strip_suffix("_quarantine").filter(|base| !base.is_empty())?;
        self.datasets.get(&TableName { table: base.to_owned(), ..name.clone() })
    }

    fn location(&self, written: &WrittenName, name: &TableName) -> Option<String> {
        let configuration = &self.settings.configuration;
        let key = |name: &dyn std::fmt::Display| format!("silverflow.table.{name}");
        let location = configuration.get(&key(written)).or_else(|| configuration.get(&key(name)))?;
        Some(absolute(&self.settings.root, location))
    }

    /// A dataset whose name is nearly this one: the same table elsewhere, or a slip of the pen.
    fn near(&self, written: &WrittenName, name: &TableName) -> Option<String> {
        let elsewhere = self.datasets.keys().find(|other| other.table.to_lowercase() == name.table.to_lowercase());
        let shown = |found: &TableName| {
            let home = found.catalog == self.settings.catalog && found.schema == self.settings.schema;
            if home && written.parts.len() == 1 { found.table.clone() } else { found.to_string() }
        };
        if let Some(found) = elsewhere {
            return Some(found.to_string());
        }
        let near = near_miss(written.table(), self.datasets.keys().map(|other| other.table.as_str()))?;
        self.datasets.keys().find(|other| other.table == near).map(shown)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::project::load_sql;
    use crate::project::tests::errors;

    #[test]
    fn a_query_of_the_command_line_is_read_like_one_of_a_definition() {
        let text = "CREATE STREAMING TABLE s.Orders (CONSTRAINT c EXPECT (x) ON VIOLATION QUARANTINE) AS SELECT * FROM STREAM outside;";
        let pipeline = load_sql(&[("a.sql", text)], &Settings::default()).unwrap().pipeline;
        for (sql, expected) in [
            ("SELECT s.orders.id FROM s.orders;", "SELECT orders.id FROM `$0` AS orders | main.s.Orders"),
            (
                "-- note\nSELECT 'a\\'b' FROM s.orders_quarantine q; ",
                "SELECT 'a''b' FROM `$0` q | quarantine of main.s.Orders",
            ),
            ("SELECT * FROM outside", "SELECT * FROM `$0` AS outside | outside main.default.outside"),
            ("SELECT 1", "SELECT 1 | "),
            ("", "<query>:1:1 PARSE_SYNTAX_ERROR expected a query, the statement ends"),
            ("DROP TABLE x", "<query>:1:1 NOT_A_QUERY `DROP` starts no query"),
            ("SELECT *\nFROM x WHERE", "<query>:2:13 PARSE_SYNTAX_ERROR expected an expression, the statement ends"),
            (
                "SELECT * FROM STREAM s.orders",
                "<query>:1:22 INVALID_STREAM this query reads tables as they are, not as streams",
            ),
            (
                "SELECT 1; SELECT 2",
                "<query>:1:11 PARSE_SYNTAX_ERROR one thing stands here, and what follows the semicolon is another",
            ),
        ] {
            let found = match pipeline.read_query(sql) {
                Ok(query) => {
                    let relations = query.relations.iter().map(|relation| match &relation.source {
                        RelationSource::Dataset(name) => name.to_string(),
                        RelationSource::Quarantine(name) => format!("quarantine of {name}"),
                        RelationSource::External { name, .. } => format!("outside {name}"),
                        RelationSource::Files(files) => files.path.clone(),
                    });
                    format!("{} | {}", query.body.sql(), relations.collect::<Vec<_>>().join(", "))
                }
                Err(error) => errors(&error),
            };
            assert_eq!(found, expected, "{sql}");
        }
    }
}
