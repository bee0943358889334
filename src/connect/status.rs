//! Our errors as those of a call, with the classes by which the client chooses an exception.

use std::collections::HashMap;

use prost::Message;
use tonic::{Code, Status};

use super::wire::rpc;
use super::wire::spark::FetchErrorDetailsResponse;
use super::wire::spark::fetch_error_details_response::{Error as Detail, SparkThrowable};
use crate::error::{Error, Fault};

/// A message in the trailer of a call is cut here; the whole one can be fetched.
const SHORT: usize = 1500;

fn classes(error: &Error) -> Vec<String> {
    let names: &[&str] = match (error.fault(), error.code()) {
        (_, "PARSE_SYNTAX_ERROR") => &[
            "org.apache.spark.sql.catalyst.parser.ParseException",
            "org.apache.spark.sql.AnalysisException",
            "java.lang.Exception",
        ],
        (Fault::User, "UNSUPPORTED_UDF" | "NOT_SUPPORTED") => &[
            "org.apache.spark.SparkUnsupportedOperationException",
            "java.lang.UnsupportedOperationException",
            "java.lang.Exception",
        ],
        (Fault::User, _) => &["org.apache.spark.sql.AnalysisException", "java.lang.Exception"],
        _ => &["org.apache.spark.SparkException", "java.lang.Exception"],
    };
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// The error of a call; `id` is that under which the whole of it can be fetched.
pub(super) fn status(error: &Error, id: &str) -> Status {
    let code = match error.fault() {
        Fault::User | Fault::Data => Code::InvalidArgument,
        Fault::External => Code::FailedPrecondition,
        Fault::Internal => Code::Internal,
    };
    let whole = error.to_string();
    let message: String =
        if whole.chars().count() > SHORT { whole.chars().take(SHORT).chain("…".chars()).collect() } else { whole };
    let classes = classes(error);
    let metadata = HashMap::from([
        ("classes".to_owned(), serde_json::json!(classes).to_string()),
        ("errorClass".to_owned(), error.code().to_owned()),
        ("messageParameters".to_owned(), "{}".to_owned()),
        ("errorId".to_owned(), id.to_owned()),
    ]);
    let info = rpc::ErrorInfo {
        reason: classes.into_iter().next().unwrap_or_default(),
        domain: "org.apache.spark".to_owned(),
        metadata,
    };
    plain(code, message, &info)
}

fn plain(code: Code, message: String, info: &rpc::ErrorInfo) -> Status {
    let any = prost_types::Any {
        type_url: "type.googleapis.com/google.rpc.ErrorInfo".to_owned(),
        value: info.encode_to_vec(),
    };
    let details = rpc::Status { code: code as i32, message: message.clone(), details: vec![any] };
    Status::with_details(code, message, details.encode_to_vec().into())
}

/// The error of a call that belongs to no session.
pub(super) fn refused(error: &Error) -> Status {
    status(error, &uuid::Uuid::new_v4().to_string())
}

/// The error of a call on something that is not there.
pub(super) fn handle(kind: &str, what: &str) -> Status {
    let class = format!("INVALID_HANDLE.{kind}");
    let message = format!("[{class}] the handle {} is invalid: {what}", uuid::Uuid::nil());
    let info = rpc::ErrorInfo {
        reason: "org.apache.spark.SparkSQLException".to_owned(),
        domain: "org.apache.spark".to_owned(),
        metadata: HashMap::from([
            ("classes".to_owned(), r#"["org.apache.spark.SparkSQLException","java.lang.Exception"]"#.to_owned()),
            ("errorClass".to_owned(), class),
            ("messageParameters".to_owned(), "{}".to_owned()),
        ]),
    };
    plain(Code::Internal, message, &info)
}

/// What a client fetches of an error.
pub(super) fn details(error: &Error, session: &str, server: &str) -> FetchErrorDetailsResponse {
    let throwable = SparkThrowable {
        error_class: Some(error.code().to_owned()),
        message_parameters: HashMap::new(),
        query_contexts: Vec::new(),
        sql_state: None,
        breaking_change_info: None,
    };
    FetchErrorDetailsResponse {
        server_side_session_id: server.to_owned(),
        session_id: session.to_owned(),
        root_error_idx: Some(0),
        errors: vec![Detail {
            error_type_hierarchy: classes(error),
            message: error.to_string(),
            stack_trace: Vec::new(),
            cause_idx: None,
            spark_throwable: Some(throwable),
        }],
    }
}
