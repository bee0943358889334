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

/// Which exception a client raises: the names of Spark's own, the most special one first.
#[derive(Clone, Copy)]
enum Exception {
    Analysis,
    Argument,
    Arithmetic,
    Array,
    DateTime,
    Missing,
    Number,
    Parse,
    Plan,
    Runtime,
    Spark,
    Unsupported,
}

impl Exception {
    fn names(self) -> &'static [&'static str] {
        match self {
            Exception::Analysis => &["org.apache.spark.sql.AnalysisException"],
            Exception::Argument => {
                &["org.apache.spark.SparkIllegalArgumentException", "java.lang.IllegalArgumentException"]
            }
            Exception::Arithmetic => &["org.apache.spark.SparkArithmeticException", "java.lang.ArithmeticException"],
            Exception::Array => {
                &["org.apache.spark.SparkArrayIndexOutOfBoundsException", "java.lang.ArrayIndexOutOfBoundsException"]
            }
            Exception::DateTime => &["org.apache.spark.SparkDateTimeException", "java.time.DateTimeException"],
            Exception::Missing => &["org.apache.spark.SparkNoSuchElementException", "java.util.NoSuchElementException"],
            Exception::Number => &[
                "org.apache.spark.SparkNumberFormatException",
                "java.lang.NumberFormatException",
                "java.lang.IllegalArgumentException",
            ],
            Exception::Parse => {
                &["org.apache.spark.sql.catalyst.parser.ParseException", "org.apache.spark.sql.AnalysisException"]
            }
            Exception::Plan => &["org.apache.spark.sql.connect.common.InvalidPlanInput"],
            Exception::Runtime => &["org.apache.spark.SparkRuntimeException", "java.lang.RuntimeException"],
            Exception::Spark => &["org.apache.spark.SparkException"],
            Exception::Unsupported => {
                &["org.apache.spark.SparkUnsupportedOperationException", "java.lang.UnsupportedOperationException"]
            }
        }
    }
}

/// An error as Spark has it.
struct Condition {
    /// Our code, or the condition of a fault of a row.
    ours: &'static str,
    class: &'static str,
    state: &'static str,
    exception: Exception,
    /// A parameter of the class, and what stands before and behind its value in our message.
    parameter: Option<(&'static str, &'static str, &'static str)>,
}

const fn same(class: &'static str, state: &'static str, exception: Exception) -> Condition {
    Condition { ours: class, class, state, exception, parameter: None }
}

const fn named(
    ours: &'static str,
    class: &'static str,
    state: &'static str,
    parameter: (&'static str, &'static str, &'static str),
) -> Condition {
    Condition { ours, class, state, exception: Exception::Analysis, parameter: Some(parameter) }
}

const CONDITIONS: &[Condition] = &[
    named("UNKNOWN_COLUMN", "UNRESOLVED_COLUMN.WITH_SUGGESTION", "42703", ("objectName", "there is no column ", "")),
    named("AMBIGUOUS_COLUMN", "AMBIGUOUS_REFERENCE", "42704", ("name", "column ", " stands in more than one relation")),
    named("UNKNOWN_FUNCTION", "UNRESOLVED_ROUTINE", "42883", ("routineName", "there is no function ", "")),
    named(
        "TABLE_OR_VIEW_NOT_FOUND",
        "TABLE_OR_VIEW_NOT_FOUND",
        "42P01",
        ("relationName", "the pipeline has no table ", ""),
    ),
    same("COLUMN_ALREADY_EXISTS", "42711", Exception::Analysis),
    same("PARSE_SYNTAX_ERROR", "42601", Exception::Parse),
    same("NOT_A_QUERY", "0A000", Exception::Unsupported),
    same("NOT_SUPPORTED", "0A000", Exception::Unsupported),
    same("UNSUPPORTED_UDF", "0A000", Exception::Unsupported),
    same("UNSUPPORTED_DATATYPE", "0A000", Exception::Unsupported),
    same("UNSUPPORTED_GENERATOR", "42K0E", Exception::Analysis),
    same("UNBOUND_SQL_PARAMETER", "42P02", Exception::Analysis),
    same("SQL_CONF_NOT_FOUND", "42K0I", Exception::Missing),
    same("INVALID_PLAN_INPUT", "56K00", Exception::Plan),
    same("ARITHMETIC_OVERFLOW", "22003", Exception::Arithmetic),
    same("CAST_OVERFLOW", "22003", Exception::Arithmetic),
    same("DATETIME_OVERFLOW", "22008", Exception::Arithmetic),
    same("DIVIDE_BY_ZERO", "22012", Exception::Arithmetic),
    same("INTERVAL_ARITHMETIC_OVERFLOW", "22015", Exception::Arithmetic),
    same("REMAINDER_BY_ZERO", "22012", Exception::Arithmetic),
    same("INVALID_ARRAY_INDEX", "22003", Exception::Array),
    same("CANNOT_PARSE_TIMESTAMP", "22007", Exception::DateTime),
    same("DATETIME_FIELD_OUT_OF_BOUNDS", "22023", Exception::DateTime),
    same("INVALID_TIMEZONE", "22009", Exception::DateTime),
    same("CAST_INVALID_INPUT", "22018", Exception::Number),
    same("INVALID_PARAMETER_VALUE", "22023", Exception::Runtime),
    same("DUPLICATED_MAP_KEY", "23505", Exception::Runtime),
    same("NULL_MAP_KEY", "2200E", Exception::Runtime),
    same("INVALID_INDEX_OF_ZERO", "22003", Exception::Runtime),
    same("USER_RAISED_EXCEPTION", "P0001", Exception::Runtime),
    same("CONVERSION_INVALID_INPUT", "22018", Exception::Runtime),
    same("MALFORMED_RECORD_IN_PARSING", "22023", Exception::Spark),
    same("INVALID_DATETIME_PATTERN", "22007", Exception::Argument),
    same("INVALID_URL", "22P02", Exception::Argument),
];

/// What a client is told of an error.
struct Told {
    class: String,
    state: Option<&'static str>,
    exception: Exception,
    parameters: HashMap<String, String>,
    message: String,
}

impl Told {
    fn of(error: &Error) -> Told {
        let whole = error.to_string();
        let head = format!("[{}] ", error.code());
        let rest = whole.strip_prefix(&head).unwrap_or(&whole);
        let (ours, rest) = fault_of_a_row(rest).unwrap_or((error.code(), rest));
        let known = CONDITIONS.iter().find(|condition| condition.ours == ours);
        let exception = match (known, error.fault()) {
            // Moments are cast by other means than numbers are.
            (Some(Condition { class: "CAST_INVALID_INPUT", .. }), _)
                if [" cast to Date", " cast to Timestamp", " cast to DATE", " cast to TIMESTAMP"]
                    .iter()
                    .any(|end| rest.contains(end)) =>
            {
                Exception::DateTime
            }
            (Some(known), _) => known.exception,
            (None, Fault::User) => Exception::Analysis,
            (None, _) => Exception::Spark,
        };
        let class = known.map_or(ours, |known| known.class).to_owned();
        let message = format!("[{class}] {rest}");
        let mut parameters = HashMap::new();
        if let Some((name, before, behind)) = known.and_then(|known| known.parameter)
            && let Some(value) = error.message().strip_prefix(before).and_then(|rest| rest.strip_suffix(behind))
        {
            let value: Vec<String> = value.split('.').map(|part| format!("`{part}`")).collect();
            parameters.insert(name.to_owned(), value.join("."));
        }
        if class == "UNRESOLVED_COLUMN.WITH_SUGGESTION" {
            let advice = error.advice().unwrap_or_default();
            let near = advice.strip_prefix("did you mean ").and_then(|rest| rest.strip_suffix('?'));
            let names = near.or(advice.strip_prefix("the columns are ")).unwrap_or_default();
            let names: Vec<String> = names.split(", ").take(5).map(|name| format!("`{name}`")).collect();
            parameters.insert("proposal".to_owned(), names.join(", "));
        }
        Told { class, state: known.map(|known| known.state), exception, parameters, message }
    }

    fn classes(&self) -> Vec<String> {
        self.exception.names().iter().chain(&["java.lang.Exception"]).map(|name| (*name).to_owned()).collect()
    }
}

/// The condition and the rest of a message such as `Execution error: [DIVIDE_BY_ZERO] …`.
fn fault_of_a_row(message: &str) -> Option<(&str, &str)> {
    let inner = message.strip_prefix("Execution error: ").unwrap_or(message).strip_prefix('[')?;
    let (condition, rest) = inner.split_once("] ")?;
    let word = |c: char| c.is_ascii_uppercase() || c == '_' || c == '.';
    (!condition.is_empty() && condition.chars().all(word)).then_some((condition, rest))
}

/// The error of a call; `id` is that under which the whole of it can be fetched.
pub(super) fn status(error: &Error, id: &str) -> Status {
    let code = match error.fault() {
        Fault::User | Fault::Data => Code::InvalidArgument,
        Fault::External => Code::FailedPrecondition,
        Fault::Internal => Code::Internal,
    };
    let told = Told::of(error);
    let classes = told.classes();
    let message: String = if told.message.chars().count() > SHORT {
        told.message.chars().take(SHORT).chain("…".chars()).collect()
    } else {
        told.message
    };
    let mut metadata = HashMap::from([
        ("classes".to_owned(), serde_json::json!(classes).to_string()),
        ("errorClass".to_owned(), told.class),
        ("messageParameters".to_owned(), serde_json::json!(told.parameters).to_string()),
        ("errorId".to_owned(), id.to_owned()),
    ]);
    metadata.extend(told.state.map(|state| ("sqlState".to_owned(), state.to_owned())));
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
    let told = Told::of(error);
    FetchErrorDetailsResponse {
        server_side_session_id: server.to_owned(),
        session_id: session.to_owned(),
        root_error_idx: Some(0),
        errors: vec![Detail {
            error_type_hierarchy: told.classes(),
            message: told.message,
            stack_trace: Vec::new(),
            cause_idx: None,
            spark_throwable: Some(SparkThrowable {
                error_class: Some(told.class),
                message_parameters: told.parameters,
                query_contexts: Vec::new(),
                sql_state: told.state.map(str::to_owned),
                breaking_change_info: None,
            }),
        }],
    }
}
