//! The calls of the protocol.

use std::pin::Pin;
use std::sync::Arc;

use futures::Stream;
use tonic::{Request, Response, Status, Streaming};

use super::ServeOptions;
use super::execute::{Flow, start, tables, with_room};
use super::operation::Operation;
use super::session::{Session, Sessions};
use super::status::{details, handle, refused};
use super::types::{from_schema, schema as arrow_schema};
use super::wire::spark::analyze_plan_request::Analyze;
use super::wire::spark::analyze_plan_response::{self as analysed, Result as Analysed};
use super::wire::spark::config_request::operation::OpType as ConfigOp;
use super::wire::spark::data_type::{Kind, Unparsed};
use super::wire::spark::interrupt_request::{Interrupt, InterruptType};
use super::wire::spark::plan::OpType;
use super::wire::spark::release_execute_request::Release;
use super::wire::spark::spark_connect_service_server::SparkConnectService;
use super::wire::spark::{
    AddArtifactsRequest, AddArtifactsResponse, AnalyzePlanRequest, AnalyzePlanResponse, ArtifactStatusesRequest,
    ArtifactStatusesResponse, CloneSessionRequest, CloneSessionResponse, ConfigRequest, ConfigResponse, DataType,
    ExecutePlanRequest, ExecutePlanResponse, FetchErrorDetailsRequest, FetchErrorDetailsResponse, GetStatusRequest,
    GetStatusResponse, InterruptRequest, InterruptResponse, KeyValue, Plan, ReattachExecuteRequest,
    ReleaseExecuteRequest, ReleaseExecuteResponse, ReleaseSessionRequest, ReleaseSessionResponse,
};
use crate::error::{Error, Result};
use crate::sql::{parse_schema, schema_of_json};

/// The version of the protocol that is spoken.
const SPARK_VERSION: &str = "4.2.0";

/// The service.
pub(super) struct Service {
    pub(super) sessions: Arc<Sessions>,
    pub(super) options: Arc<ServeOptions>,
}

type Answers = Pin<Box<dyn Stream<Item = std::result::Result<ExecutePlanResponse, Status>> + Send>>;
type Answer<T> = std::result::Result<Response<T>, Status>;

fn answers(operation: &Arc<Operation>, after: Option<&str>) -> std::result::Result<Response<Answers>, Status> {
    Ok(Response::new(Box::pin(operation.answers(after)?)))
}

fn relation_of(plan: Option<Plan>) -> Result<Vec<u8>> {
    match plan.and_then(|plan| plan.op_type) {
        Some(OpType::Root(relation)) => Ok(relation),
        _ => Err(Error::user("INVALID_PLAN_INPUT", "only a relation can be analysed")),
    }
}

impl Service {
    /// The session of a call, which must be the one that the client knows.
    fn session(&self, id: &str, observed: Option<&str>) -> std::result::Result<Arc<Session>, Status> {
        let session = self.sessions.open(id)?;
        match observed {
            Some(observed) if observed != session.server => {
                Err(handle("SESSION_CHANGED", "the server was restarted; make a new session"))
            }
            _ => Ok(session),
        }
    }

    async fn analyse(&self, session: &Arc<Session>, request: AnalyzePlanRequest) -> Result<Analysed> {
        let flow = Flow::of(request.user_context.as_ref());
        let missing = || Error::user("INVALID_PLAN_INPUT", "an analysis of nothing");
        let (tables, not) = (tables(session, &self.options), |what: &str| {
            Err(Error::user("NOT_SUPPORTED", format!("{what} is not supported yet")))
        });
        Ok(match request.analyze.ok_or_else(missing)? {
            Analyze::Schema(schema) => {
                flow.outside("columns")?;
                let relation = relation_of(schema.plan)?;
                let schema = with_room(move || tables.schema(&relation)).await?;
                Analysed::Schema(analysed::Schema { schema: Some(from_schema(&schema)?) })
            }
            Analyze::TreeString(tree) => {
                flow.outside("columns")?;
                let relation = relation_of(tree.plan)?;
                let schema = with_room(move || tables.schema(&relation)).await?;
                let mut text = "root\n".to_owned();
                for field in schema.fields() {
                    let data_type = super::types::from_arrow(field.data_type())?;
                    let shown = super::types::ddl(&data_type)?.to_lowercase();
                    text.push_str(&format!(" |-- {}: {shown} (nullable = {})\n", field.name(), field.is_nullable()));
                }
                Analysed::TreeString(analysed::TreeString { tree_string: text })
            }
            Analyze::IsStreaming(is) => {
                let relation = relation_of(is.plan)?;
                let is_streaming = with_room(move || tables.streaming(&relation)).await?;
                Analysed::IsStreaming(analysed::IsStreaming { is_streaming })
            }
            Analyze::IsLocal(_) => Analysed::IsLocal(analysed::IsLocal { is_local: false }),
            Analyze::InputFiles(_) => Analysed::InputFiles(analysed::InputFiles { files: Vec::new() }),
            Analyze::SparkVersion(_) => {
                Analysed::SparkVersion(analysed::SparkVersion { version: SPARK_VERSION.to_owned() })
            }
            Analyze::DdlParse(ddl) => {
                let text = ddl.ddl_string;
                let unparsed = DataType { kind: Some(Kind::Unparsed(Unparsed { data_type_string: text.clone() })) };
                let parsed = match parse_schema(&text) {
                    Ok(schema) => from_schema(&schema)?,
                    // One type by itself, such as `INT`, is none of a table.
                    Err(error) => {
                        match parse_schema(&format!("value {text}")).ok().or_else(|| arrow_schema(&unparsed).ok()) {
                            Some(schema) => match schema.fields().first() {
                                Some(field) => super::types::from_arrow(field.data_type())?,
                                None => return Err(error),
                            },
                            None => return Err(error),
                        }
                    }
                };
                Analysed::DdlParse(analysed::DdlParse { parsed: Some(parsed) })
            }
            Analyze::Persist(_) => Analysed::Persist(analysed::Persist {}),
            Analyze::Unpersist(_) => Analysed::Unpersist(analysed::Unpersist {}),
            Analyze::Explain(_) => return not("explain"),
            Analyze::SameSemantics(_) | Analyze::SemanticHash(_) => return not("comparing plans"),
            Analyze::GetStorageLevel(_) => return not("asking for a storage level"),
            Analyze::JsonToDdl(json) => {
                let schema = schema_of_json(&json.json_string)?;
                Analysed::JsonToDdl(analysed::JsonToDdl { ddl_string: super::types::columns(&from_schema(&schema)?)? })
            }
        })
    }

    fn configure(&self, session: &Session, request: ConfigRequest) -> Result<Vec<KeyValue>> {
        let missing = || Error::user("INVALID_PLAN_INPUT", "a request that says nothing");
        let pair = |key: String, value: Option<String>| KeyValue { key, value };
        let unknown = |key: &str| {
            Error::user("SQL_CONF_NOT_FOUND", format!("the setting {} is not there", key.escape_debug()))
                .help("set it under `configuration` in the project file")
        };
        Ok(match request.operation.and_then(|o| o.op_type).ok_or_else(missing)? {
            ConfigOp::Set(set) => {
                for KeyValue { key, value } in set.pairs {
                    session.set(&key, Some(value.unwrap_or_default()));
                }
                Vec::new()
            }
            ConfigOp::Get(get) => get
                .keys
                .into_iter()
                .map(|key| match session.get(&key) {
                    Some(value) => Ok(pair(key, Some(value))),
                    None => Err(unknown(&key)),
                })
                .collect::<Result<_>>()?,
            ConfigOp::GetWithDefault(get) => get
                .pairs
                .into_iter()
                .map(|KeyValue { key, value }| {
                    let found = session.get(&key).or(value);
                    pair(key, found)
                })
                .collect(),
            ConfigOp::GetOption(get) => get
                .keys
                .into_iter()
                .map(|key| {
                    let found = session.get(&key);
                    pair(key, found)
                })
                .collect(),
            ConfigOp::GetAll(get) => {
                let prefix = get.prefix.unwrap_or_default();
                let all = session.conf().into_iter();
                all.filter_map(|(key, value)| Some(pair(key.strip_prefix(&prefix)?.to_owned(), Some(value)))).collect()
            }
            ConfigOp::Unset(unset) => {
                for key in unset.keys {
                    session.set(&key, None);
                }
                Vec::new()
            }
            ConfigOp::IsModifiable(is) => is.keys.into_iter().map(|key| pair(key, Some("true".to_owned()))).collect(),
        })
    }
}

#[tonic::async_trait]
impl SparkConnectService for Service {
    type ExecutePlanStream = Answers;
    type ReattachExecuteStream = Answers;

    async fn execute_plan(&self, request: Request<ExecutePlanRequest>) -> Answer<Answers> {
        let request = request.into_inner();
        let session = self.session(&request.session_id, request.client_observed_server_side_session_id.as_deref())?;
        let id = request.operation_id.unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
        if uuid::Uuid::parse_str(&id).is_err() {
            return Err(handle("FORMAT", "the number of an operation is a UUID"));
        }
        let operation = session.begin(id, request.tags)?;
        let flow = Flow::of(request.user_context.as_ref());
        start(session, Arc::clone(&operation), request.plan, flow, Arc::clone(&self.options));
        answers(&operation, None)
    }

    async fn analyze_plan(&self, request: Request<AnalyzePlanRequest>) -> Answer<AnalyzePlanResponse> {
        let request = request.into_inner();
        let session = self.session(&request.session_id, request.client_observed_server_side_session_id.as_deref())?;
        let result = self.analyse(&session, request).await.map_err(|error| session.failed(error))?;
        Ok(Response::new(AnalyzePlanResponse {
            session_id: session.id.clone(),
            server_side_session_id: session.server.clone(),
            result: Some(result),
        }))
    }

    async fn config(&self, request: Request<ConfigRequest>) -> Answer<ConfigResponse> {
        let request = request.into_inner();
        let session = self.session(&request.session_id, request.client_observed_server_side_session_id.as_deref())?;
        let pairs = self.configure(&session, request).map_err(|error| session.failed(error))?;
        Ok(Response::new(ConfigResponse {
            session_id: session.id.clone(),
            server_side_session_id: session.server.clone(),
            pairs,
            warnings: Vec::new(),
        }))
    }

    async fn add_artifacts(&self, _: Request<Streaming<AddArtifactsRequest>>) -> Answer<AddArtifactsResponse> {
        Err(refused(
            &Error::user("NOT_SUPPORTED", "files, archives and tables of Python beyond 64 MiB are not taken").help(
                "put the modules beside the definitions and the rows into a file; data never passes through Python",
            ),
        ))
    }

    async fn artifact_status(&self, request: Request<ArtifactStatusesRequest>) -> Answer<ArtifactStatusesResponse> {
        let request = request.into_inner();
        let session = self.session(&request.session_id, request.client_observed_server_side_session_id.as_deref())?;
        Ok(Response::new(ArtifactStatusesResponse {
            session_id: session.id.clone(),
            server_side_session_id: session.server.clone(),
            statuses: request.names.into_iter().map(|name| (name, Default::default())).collect(),
        }))
    }

    async fn interrupt(&self, request: Request<InterruptRequest>) -> Answer<InterruptResponse> {
        let request = request.into_inner();
        let session = self.session(&request.session_id, request.client_observed_server_side_session_id.as_deref())?;
        let wanted = |operation: &Operation| match (request.interrupt_type(), &request.interrupt) {
            (InterruptType::All, _) => true,
            (InterruptType::Tag, Some(Interrupt::OperationTag(tag))) => operation.tags.contains(tag),
            (InterruptType::OperationId, Some(Interrupt::OperationId(id))) => operation.id == *id,
            _ => false,
        };
        let operations = session.operations();
        let hit = operations.iter().filter(|operation| wanted(operation) && operation.interrupt());
        Ok(Response::new(InterruptResponse {
            session_id: session.id.clone(),
            server_side_session_id: session.server.clone(),
            interrupted_ids: hit.map(|operation| operation.id.clone()).collect(),
        }))
    }

    async fn reattach_execute(&self, request: Request<ReattachExecuteRequest>) -> Answer<Answers> {
        let request = request.into_inner();
        let session = self.session(&request.session_id, request.client_observed_server_side_session_id.as_deref())?;
        let operation = session
            .operation(&request.operation_id)
            .ok_or_else(|| handle("OPERATION_NOT_FOUND", "there is no operation of that number"))?;
        answers(&operation, request.last_response_id.as_deref())
    }

    async fn release_execute(&self, request: Request<ReleaseExecuteRequest>) -> Answer<ReleaseExecuteResponse> {
        let request = request.into_inner();
        let session = self.session(&request.session_id, request.client_observed_server_side_session_id.as_deref())?;
        let operation = session.operation(&request.operation_id);
        match (&operation, &request.release) {
            (Some(operation), Some(Release::ReleaseUntil(until))) => operation.release(&until.response_id),
            (Some(operation), _) if operation.is_done() => session.forget(&request.operation_id),
            _ => {}
        }
        Ok(Response::new(ReleaseExecuteResponse {
            session_id: session.id.clone(),
            server_side_session_id: session.server.clone(),
            operation_id: operation.map(|operation| operation.id.clone()),
        }))
    }

    async fn release_session(&self, request: Request<ReleaseSessionRequest>) -> Answer<ReleaseSessionResponse> {
        let request = request.into_inner();
        let closed = self.sessions.close(&request.session_id);
        for operation in closed.iter().flat_map(|session| session.operations()) {
            operation.interrupt();
        }
        Ok(Response::new(ReleaseSessionResponse {
            session_id: request.session_id,
            server_side_session_id: closed.map(|session| session.server.clone()).unwrap_or_default(),
        }))
    }

    async fn fetch_error_details(
        &self,
        request: Request<FetchErrorDetailsRequest>,
    ) -> Answer<FetchErrorDetailsResponse> {
        let request = request.into_inner();
        let session = self.session(&request.session_id, request.client_observed_server_side_session_id.as_deref())?;
        let found = session.error(&request.error_id, |error| details(error, &session.id, &session.server));
        Ok(Response::new(found.unwrap_or_else(|| FetchErrorDetailsResponse {
            session_id: session.id.clone(),
            server_side_session_id: session.server.clone(),
            ..FetchErrorDetailsResponse::default()
        })))
    }

    async fn clone_session(&self, request: Request<CloneSessionRequest>) -> Answer<CloneSessionResponse> {
        let request = request.into_inner();
        let session = self.session(&request.session_id, request.client_observed_server_side_session_id.as_deref())?;
        let wanted = request.new_session_id.unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
        let copy = self.sessions.copy(&session, &wanted)?;
        Ok(Response::new(CloneSessionResponse {
            session_id: session.id.clone(),
            server_side_session_id: session.server.clone(),
            new_session_id: copy.id.clone(),
            new_server_side_session_id: copy.server.clone(),
        }))
    }

    async fn get_status(&self, _: Request<GetStatusRequest>) -> Answer<GetStatusResponse> {
        Err(refused(&Error::user("NOT_SUPPORTED", "asking for the status of operations is not supported yet")))
    }
}
