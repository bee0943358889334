//! What an operation does: answers a question, takes up a definition, runs a pipeline.

use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;
use uuid::Uuid;

use super::answer::Tables;
use super::fields::known;
use super::graph::{Graph, Home};
use super::operation::Operation;
use super::relation::decode;
use super::session::Session;
use super::wire::spark::command::CommandType;
use super::wire::spark::execute_plan_response::{ResponseType, SqlCommandResult};
use super::wire::spark::pipeline_command::{CommandType as PipelineType, StartRun};
use super::wire::spark::pipeline_command_result::{
    CreateDataflowGraphResult, DefineFlowResult, DefineOutputResult, ResultType,
};
use super::wire::spark::plan::OpType;
use super::wire::spark::relation::RelType;
use super::wire::spark::{
    Command, PipelineAnalysisContext, PipelineCommand, PipelineCommandResult, PipelineEvent, PipelineEventResult, Plan,
    Relation, ResolvedIdentifier, Sql, UserContext,
};
use super::{ServeOptions, project_of};
use crate::error::{Error, Result};
use crate::pipeline::Pipeline;
use crate::runtime::{self, RunOptions, RunReport, Selection};

/// Deep queries are read and planned by functions that call themselves.
const STACK: usize = 256 << 20;

/// Does on a thread of its own what a plan says, and ends the operation with it.
pub(super) fn start(
    session: Arc<Session>,
    operation: Arc<Operation>,
    plan: Vec<u8>,
    context: Flow,
    options: Arc<ServeOptions>,
) {
    let on_failure = Arc::clone(&operation);
    let started =
        std::thread::Builder::new().name("silverflow-connect".to_owned()).stack_size(STACK).spawn(move || {
            let work = AssertUnwindSafe(|| {
                Work { session: &session, operation: &operation, options: &options }.plan(&plan, &context)
            });
            let result = catch_unwind(work)
                .unwrap_or_else(|_| Err(Error::internal("a panic while a request of a client was worked on")));
            operation.end(result.map_err(|error| session.failed(error)));
        });
    if started.is_err() {
        on_failure.end(Err(tonic::Status::resource_exhausted("no thread for another operation")));
    }
}

/// Runs `f` where deep queries have room.
pub(super) async fn with_room<T: Send + 'static>(f: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    std::thread::Builder::new()
        .name("silverflow-connect".to_owned())
        .stack_size(STACK)
        .spawn(move || {
            let result = catch_unwind(AssertUnwindSafe(f));
            let _ = sender.send(
                result.unwrap_or_else(|_| Err(Error::internal("a panic while a request of a client was worked on"))),
            );
        })
        .map_err(|e| Error::external("NO_THREADS", "no thread for another request").caused_by(e))?;
    receiver.await.unwrap_or_else(|_| Err(Error::internal("a request was dropped")))
}

/// The flow function inside which a client is.
pub(super) struct Flow(Option<String>);

impl Flow {
    pub(super) fn of(context: Option<&UserContext>) -> Flow {
        let contexts = context.into_iter().flat_map(|c| &c.extensions);
        let mut found = contexts
            .filter(|any| any.type_url.ends_with("spark.connect.PipelineAnalysisContext"))
            .filter_map(|any| PipelineAnalysisContext::decode(any.value.as_slice()).ok());
        Flow(found.find_map(|context| context.flow_name).filter(|name| !name.is_empty()))
    }

    /// Rows and columns are not known while definitions are.
    pub(super) fn outside(&self, what: &str) -> Result<()> {
        match &self.0 {
            None => Ok(()),
            Some(flow) => Err(Error::user(
                "ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION",
                format!("the function of {flow} asks for {what}, and no data is there while a pipeline is defined"),
            )
            .help("return the data frame; collect, count, show, toPandas, schema and columns are for outside of it")),
        }
    }
}

/// What questions of a session are put to.
pub(super) fn tables(session: &Session, options: &ServeOptions) -> Tables {
    match session.pipeline() {
        Some((pipeline, root)) => Tables { pipeline, root },
        None => Tables::none(engine_settings(session), &options.root),
    }
}

/// Settings of a session that mean something to the engine.
fn engine_settings(session: &Session) -> std::collections::BTreeMap<String, String> {
    let mut conf = session.conf();
    conf.retain(|key, _| !key.starts_with("spark.sql.connect.") && !key.starts_with("spark.remote"));
    conf
}

struct Work<'a> {
    session: &'a Arc<Session>,
    operation: &'a Arc<Operation>,
    options: &'a ServeOptions,
}

fn not_supported(what: &str) -> Error {
    Error::user("NOT_SUPPORTED", format!("{what} is not supported yet"))
}

impl Work<'_> {
    fn plan(&self, plan: &[u8], flow: &Flow) -> Result<()> {
        let decoded = Plan::decode(plan)
            .map_err(|e| Error::user("INVALID_PLAN_INPUT", "a plan cannot be decoded").caused_by(e))?;
        known("spark.connect.Plan", plan)?;
        match &decoded.op_type {
            Some(OpType::Root(relation)) => {
                flow.outside("rows")?;
                tables(self.session, self.options).answer(relation, self.operation)
            }
            Some(OpType::Command(command)) => self.command(command, flow),
            Some(OpType::CompressedOperation(_)) => Err(not_supported("a compressed plan")),
            None => Err(Error::user("INVALID_PLAN_INPUT", "a plan that says nothing")),
        }
    }

    fn command(&self, command: &Command, flow: &Flow) -> Result<()> {
        let missing = || Error::user("INVALID_PLAN_INPUT", "a command that says nothing");
        match command.command_type.as_ref().ok_or_else(missing)? {
            CommandType::SqlCommand(sql) => {
                let relation = if sql.input.is_empty() {
                    let sql = Sql {
                        query: sql.sql.clone(),
                        args: sql.args.clone(),
                        pos_args: sql.pos_args.clone(),
                        named_arguments: sql.named_arguments.clone(),
                        pos_arguments: sql.pos_arguments.clone(),
                    };
                    Relation { common: None, rel_type: Some(RelType::Sql(sql)) }.encode_to_vec()
                } else {
                    sql.input.clone()
                };
                if let Some(RelType::Sql(sql)) = decode(&relation)?.rel_type {
                    is_query(&sql.query)?;
                }
                self.operation.send(ResponseType::SqlCommandResult(SqlCommandResult { relation }));
                Ok(())
            }
            CommandType::PipelineCommand(command) => self.pipeline(command),
            CommandType::RegisterFunction(function) => Err(Error::user(
                "UNSUPPORTED_UDF",
                format!(
                    "the function {} is written in Python, and data never passes through Python",
                    function.function_name
                ),
            )
            .help("write it with pyspark.sql.functions or as an expression of SQL")),
            CommandType::RegisterTableFunction(_) => Err(not_supported("a table function of Python")),
            CommandType::WriteOperation(_) | CommandType::WriteOperationV2(_) => {
                let _ = flow;
                Err(not_supported("writing a data frame").help("tables change through the pipeline's own flows"))
            }
            CommandType::CreateDataframeView(_) => {
                Err(not_supported("a temporary view of the session").help("declare it with @temporary_view"))
            }
            CommandType::WriteStreamOperationStart(_)
            | CommandType::StreamingQueryCommand(_)
            | CommandType::StreamingQueryManagerCommand(_)
            | CommandType::StreamingQueryListenerBusCommand(_) => {
                Err(not_supported("a streaming query of its own").help("declare a streaming table"))
            }
            CommandType::RegisterDataSource(_) => Err(not_supported("a data source of Python")),
            CommandType::CheckpointCommand(_) | CommandType::RemoveCachedRemoteRelationCommand(_) => {
                Err(not_supported("checkpoint"))
            }
            CommandType::MergeIntoTableCommand(_) => Err(not_supported("MERGE").help("declare an AUTO CDC flow")),
            CommandType::MlCommand(_) => Err(not_supported("machine learning")),
            CommandType::GetResourcesCommand(_) | CommandType::CreateResourceProfileCommand(_) => {
                Err(not_supported("asking for resources"))
            }
            CommandType::ExecuteExternalCommand(_) => Err(not_supported("an external command")),
            CommandType::Extension(any) => Err(not_supported(&format!("the extension {}", any.type_url))),
        }
    }

    fn done(&self, result: Option<ResultType>) {
        self.operation.send(ResponseType::PipelineCommandResult(PipelineCommandResult { result_type: result }));
    }

    fn pipeline(&self, command: &PipelineCommand) -> Result<()> {
        let missing = || Error::user("INVALID_PLAN_INPUT", "a pipeline command that says nothing");
        match command.command_type.as_ref().ok_or_else(missing)? {
            PipelineType::CreateDataflowGraph(create) => {
                let id = Uuid::new_v4().to_string();
                let graph = Graph::new(create, &engine_settings(self.session), self.options.home());
                self.session.graphs().insert(id.clone(), graph);
                self.done(Some(ResultType::CreateDataflowGraphResult(CreateDataflowGraphResult {
                    dataflow_graph_id: Some(id),
                })));
            }
            PipelineType::DropDataflowGraph(drop) => {
                self.session.graphs().remove(drop.dataflow_graph_id.as_deref().unwrap_or(""));
                self.done(None);
            }
            PipelineType::DefineOutput(output) => {
                self.with_graph(output.dataflow_graph_id.as_deref(), |graph| {
                    self.settle(graph, output.source_code_location.as_ref().and_then(|l| l.file_name.as_deref()));
                    graph.output(output);
                })?;
                let name = output.output_name.clone().unwrap_or_default();
                self.done(Some(ResultType::DefineOutputResult(DefineOutputResult {
                    resolved_identifier: Some(identifier(&name)),
                })));
            }
            PipelineType::DefineFlow(flow) => {
                let name = self.with_graph(flow.dataflow_graph_id.as_deref(), |graph| {
                    self.settle(graph, flow.source_code_location.as_ref().and_then(|l| l.file_name.as_deref()));
                    graph.flow(flow)
                })?;
                self.done(Some(ResultType::DefineFlowResult(DefineFlowResult {
                    resolved_identifier: Some(identifier(&name)),
                })));
            }
            PipelineType::DefineSqlGraphElements(sql) => {
                self.with_graph(sql.dataflow_graph_id.as_deref(), |graph| {
                    graph.sql(sql.sql_file_path.as_deref().unwrap_or("<sql>"), sql.sql_text.as_deref().unwrap_or(""));
                })?;
                self.done(None);
            }
            PipelineType::StartRun(run) => self.run(run)?,
            PipelineType::GetQueryFunctionExecutionSignalStream(_) | PipelineType::DefineFlowQueryFunctionResult(_) => {
                return Err(not_supported("a query function that is evaluated later"));
            }
            PipelineType::ExecuteOutputFlows(_) => return Err(not_supported("running one output by itself")),
            PipelineType::Extension(any) => return Err(not_supported(&format!("the extension {}", any.type_url))),
        }
        Ok(())
    }

    fn with_graph<T>(&self, id: Option<&str>, f: impl FnOnce(&mut Graph) -> T) -> Result<T> {
        let id = id.unwrap_or("");
        let mut graphs = self.session.graphs();
        let graph = graphs.get_mut(id).ok_or_else(|| no_graph(id))?;
        Ok(f(graph))
    }

    /// A client says nowhere which folder its project is in, but its first definition shows.
    fn settle(&self, graph: &mut Graph, file: Option<&str>) {
        if self.options.fixed_root {
            return;
        }
        if let Some(home) = file.and_then(|file| project_of(Path::new(file))) {
            graph.settle(home);
        }
    }

    fn run(&self, run: &StartRun) -> Result<()> {
        let id = run.dataflow_graph_id.as_deref().unwrap_or("");
        let graph = self.session.graphs().remove(id).ok_or_else(|| no_graph(id))?;
        let storage = run.storage.as_deref().unwrap_or("");
        if storage.is_empty() {
            return Err(Error::user("INVALID_PLAN_INPUT", "a run needs a storage"));
        }
        self.done(None);
        let loaded = graph.load(storage)?;
        for lint in &loaded.lints {
            self.event(&format!("[{}] {} ({})", lint.code, lint.message, lint.span));
        }
        let pipeline = Arc::new(loaded.pipeline);
        self.session.set_pipeline(Arc::clone(&pipeline), loaded.root);
        if run.dry == Some(true) {
            let dry = runtime::dry_run(&pipeline)?;
            for recompute in &dry.recompute {
                self.event(&format!("a run would compute {} anew", recompute.name));
            }
            self.event("Run is COMPLETED.");
            return Ok(());
        }
        self.event("Run is STARTING.");
        let report = runtime::run(&pipeline, &self.options_of(run, &pipeline))?;
        for line in lines(&report) {
            self.event(&line);
        }
        self.event("Run is COMPLETED.");
        Ok(())
    }

    fn options_of(&self, run: &StartRun, pipeline: &Pipeline) -> RunOptions {
        let accept =
            pipeline.configuration.get("silverflow.accept.loss").is_some_and(|v| v.eq_ignore_ascii_case("true"));
        let operation = Arc::clone(self.operation);
        RunOptions {
            workers: self.options.workers,
            selection: Selection {
                refresh: run.refresh_selection.clone(),
                full_refresh: run.full_refresh_selection.clone(),
                full_refresh_all: run.full_refresh_all == Some(true),
                accept_loss: accept,
            },
            progress: Some(Arc::new(move |line: &str| event(&operation, line))),
            ..RunOptions::default()
        }
    }

    fn event(&self, message: &str) {
        event(self.operation, message);
    }
}

fn event(operation: &Operation, message: &str) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let timestamp = prost_types::Timestamp {
        seconds: i64::try_from(now.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(now.subsec_nanos()).unwrap_or(0),
    };
    let event = PipelineEvent { timestamp: Some(timestamp), message: Some(message.to_owned()) };
    operation.send(ResponseType::PipelineEventResult(PipelineEventResult { event: Some(event) }));
}

/// What a run did, a line a table.
fn lines(report: &RunReport) -> Vec<String> {
    if report.epochs.is_empty() {
        return vec!["nothing is new; nothing was committed".to_owned()];
    }
    report
        .tables
        .iter()
        .map(|table| {
            let mut line = format!(
                "Flow {} has COMPLETED: {} rows read, {} in, {} out",
                table.name, table.read, table.inserted, table.deleted
            );
            if table.quarantined != 0 || table.dropped != 0 {
                let _ = write!(line, "; {} quarantined, {} dropped", table.quarantined, table.dropped);
            }
            line
        })
        .collect()
}

fn no_graph(id: &str) -> Error {
    Error::user("DATAFLOW_GRAPH_NOT_FOUND", format!("there is no dataflow graph {}", id.escape_debug()))
}

fn identifier(name: &str) -> ResolvedIdentifier {
    let mut parts: Vec<String> = super::expression::parts(name).unwrap_or_else(|_| vec![name.to_owned()]);
    let table_name = parts.pop().unwrap_or_default();
    let catalog_name = if parts.len() > 1 { parts.remove(0) } else { String::new() };
    ResolvedIdentifier { catalog_name, namespace: parts, table_name }
}

/// How statements of Spark begin that are no queries.
#[rustfmt::skip]
const STATEMENTS: &[&str] = &[
    "add", "alter", "analyze", "begin", "cache", "call", "clear", "comment", "commit", "create", "declare", "delete", "desc",
    "describe", "drop", "execute", "explain", "export", "grant", "import", "insert", "list", "load", "lock", "merge", "msck",
    "optimize", "prepare", "refresh", "repair", "replace", "reset", "restore", "revoke", "rollback", "set", "show",
    "start", "truncate", "uncache", "unlock", "update", "use", "vacuum",
];

/// Statements that change something are the pipeline's own.
fn is_query(text: &str) -> Result<()> {
    let mut rest = text.trim_start();
    while let Some(after) = rest.strip_prefix("--") {
        rest = after.split_once('\n').map_or("", |(_, rest)| rest).trim_start();
    }
    let word: String = rest.chars().take_while(|c| c.is_alphanumeric()).collect();
    let starts = ["select", "with", "values", "from"].iter().any(|start| word.eq_ignore_ascii_case(start));
    if starts || rest.starts_with('(') || rest.starts_with("/*") {
        return Ok(());
    }
    if !STATEMENTS.iter().any(|start| word.eq_ignore_ascii_case(start)) {
        let found = rest.split_whitespace().next().unwrap_or("the end");
        return Err(Error::user("PARSE_SYNTAX_ERROR", format!("no statement starts with {}", found.escape_debug())));
    }
    Err(Error::user("NOT_A_QUERY", format!("`{word}` starts no query"))
        .help("tables change through the pipeline's own flows; spark.sql takes one SELECT"))
}

impl ServeOptions {
    fn home(&self) -> Home {
        Home { root: self.root.clone(), shown: self.shown.clone(), name: self.name.clone() }
    }
}
