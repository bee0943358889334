//! Requests that no honest client sends: whatever the bytes are, they end as a plan or an error.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, ListArray, NullArray, StringArray, StructArray};
use arrow::datatypes::{DataType, Field, Int64Type};
use arrow::ipc::writer::StreamWriter;
use arrow::record_batch::RecordBatch;
use datafusion::sql::sqlparser::tokenizer::Span as AstSpan;
use futures::StreamExt;
use prost::Message;

use super::ServeOptions;
use super::execute::{Flow, start};
use super::operation::Operation;
use super::relation::{Place, query};
use super::session::Sessions;
use super::wire::spark::expression::{self, ExprType, UnresolvedAttribute, UnresolvedFunction, literal::LiteralType};
use super::wire::spark::pipeline_command::define_flow::{self, AutoCdcFlowDetails, WriteRelationFlowDetails};
use super::wire::spark::pipeline_command::define_output::{self, TableDetails, table_details};
use super::wire::spark::pipeline_command::{CreateDataflowGraph, DefineFlow, DefineOutput, DefineSqlGraphElements};
use super::wire::spark::relation::RelType;
use super::wire::spark::{
    Command, ExecutePlanRequest, LocalRelation, OutputType, PipelineCommand, Plan, ShowString, SourceCodeLocation,
    SqlCommand, command, execute_plan_response, pipeline_command, pipeline_command_result, plan,
};
use super::wire::spark::{
    Expression, Filter, Join, Limit, Project, Read, Relation, Sql, SubqueryAlias, WithColumns, read,
};
use crate::error::Span;
use crate::pipeline::declaration::Defaults;

fn place<'a>(configuration: &'a BTreeMap<String, String>) -> Place<'a> {
    Place {
        root: Path::new("/p"),
        defaults: Defaults { catalog: "main".to_owned(), schema: "default".to_owned() },
        configuration,
        span: Span { file: "a.py".to_owned(), line: 3, column: 1, length: 1, text: "@table".to_owned() },
        at: AstSpan::empty(),
        file: None,
    }
}

fn relation(rel_type: RelType) -> Vec<u8> {
    Relation { common: None, rel_type: Some(rel_type) }.encode_to_vec()
}

fn expr(expr_type: ExprType) -> Vec<u8> {
    Expression { common: None, expr_type: Some(expr_type) }.encode_to_vec()
}

fn attribute(name: &str, plan_id: Option<i64>) -> Vec<u8> {
    let unparsed_identifier = name.to_owned();
    expr(ExprType::UnresolvedAttribute(UnresolvedAttribute { unparsed_identifier, plan_id, is_metadata_column: None }))
}

fn text(value: &str) -> Vec<u8> {
    let literal_type = Some(LiteralType::String(value.to_owned()));
    expr(ExprType::Literal(expression::Literal { data_type: None, literal_type }))
}

fn call(name: &str, arguments: Vec<Vec<u8>>) -> Vec<u8> {
    expr(ExprType::UnresolvedFunction(UnresolvedFunction {
        function_name: name.to_owned(),
        arguments,
        ..UnresolvedFunction::default()
    }))
}

fn table(name: &str, is_streaming: bool) -> Vec<u8> {
    let named = read::NamedTable { unparsed_identifier: name.to_owned(), ..read::NamedTable::default() };
    relation(RelType::Read(Read { read_type: Some(read::ReadType::NamedTable(named)), is_streaming }))
}

/// Requests as a client sends them.
fn requests() -> Vec<Vec<u8>> {
    let alias = |input, alias: &str| {
        relation(RelType::SubqueryAlias(SubqueryAlias { input, alias: alias.to_owned(), qualifier: Vec::new() }))
    };
    let joined = relation(RelType::Join(Join {
        left: alias(table("orders", true), "o"),
        right: alias(table("cat.s.customers", false), "c"),
        join_condition: call("==", vec![attribute("o.id", Some(4)), attribute("c.`a b`", None)]),
        join_type: 3,
        using_columns: Vec::new(),
        join_data_type: None,
    }));
    let case =
        call("when", vec![call("isNull", vec![attribute("x", None)]), text("it's"), call("upper", vec![text("é")])]);
    let with = relation(RelType::WithColumns(WithColumns {
        input: relation(RelType::Filter(Filter {
            input: joined.clone(),
            condition: expr(ExprType::ExpressionString(expression::ExpressionString {
                expression: "a > 1 AND b".to_owned(),
            })),
        })),
        aliases: vec![expression::Alias { expr: case, name: vec!["tag".to_owned()], metadata: None }],
    }));
    let star = expr(ExprType::UnresolvedStar(expression::UnresolvedStar::default()));
    let project = relation(RelType::Project(Project { input: with, expressions: vec![star, attribute("s.f", None)] }));
    let sql = Sql { query: "SELECT * FROM STREAM x WHERE y = 1".to_owned(), ..Sql::default() };
    vec![
        joined,
        project.clone(),
        relation(RelType::Sql(sql)),
        relation(RelType::Limit(Limit { input: project, limit: 5 })),
    ]
}

/// A generator of numbers that needs no seed from outside.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((z ^ (z >> 31)) % u64::try_from(end).unwrap()).unwrap()
    }
}

#[test]
fn requests_of_a_client_are_read() {
    let configuration = BTreeMap::new();
    for request in requests() {
        let written = query(&request, &place(&configuration)).unwrap();
        assert!(!written.relations.is_empty());
    }
}

#[test]
fn truncated_and_damaged_requests_end_as_a_plan_or_an_error() {
    let configuration = BTreeMap::new();
    let place = place(&configuration);
    let (mut read, mut refused) = (0, 0);
    let mut count = |bytes: &[u8]| match query(bytes, &place) {
        Ok(_) => read += 1,
        Err(error) => {
            assert_ne!(error.code(), "INTERNAL", "{error}");
            refused += 1;
        }
    };
    let mut numbers = Numbers(7);
    for request in requests() {
        for length in 0..request.len() {
            count(&request[..length]);
        }
        for _ in 0..400 {
            let mut damaged = request.clone();
            for _ in 0..=numbers.below(3) {
                let at = numbers.below(damaged.len());
                damaged[at] ^= 1 << numbers.below(8);
            }
            count(&damaged);
        }
        for _ in 0..100 {
            let noise: Vec<u8> = (0..numbers.below(64)).map(|_| u8::try_from(numbers.below(256)).unwrap()).collect();
            count(&noise);
        }
    }
    assert!(read > 50 && refused > 500, "{read} read, {refused} refused");
}

#[test]
fn a_request_that_nests_without_end_is_refused() {
    let mut deep = table("x", false);
    for _ in 0..3000 {
        deep = relation(RelType::Limit(Limit { input: deep, limit: 1 }));
    }
    let mut condition = attribute("x", None);
    for _ in 0..3000 {
        condition = call("not", vec![condition]);
    }
    let filter = relation(RelType::Filter(Filter { input: table("x", false), condition }));
    let refused = std::thread::Builder::new().stack_size(256 << 20).spawn(move || {
        let configuration = BTreeMap::new();
        [deep, filter].map(|bytes| query(&bytes, &place(&configuration)).unwrap_err().code())
    });
    assert_eq!(refused.unwrap().join().unwrap(), ["NESTS_TOO_DEEP", "NESTS_TOO_DEEP"]);
}

/// A table as a client sends it: numbers, texts, lists, structs and nulls.
fn sent_rows() -> LocalRelation {
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1), None]), None, Some(vec![])]);
    let names: ArrayRef = Arc::new(StringArray::from(vec![Some("ann"), None, Some("bob")]));
    let inner = StructArray::from(vec![(Arc::new(Field::new("name", DataType::Utf8, true)), Arc::clone(&names))]);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(Int32Array::from(vec![1, 2, 3]))),
        ("name", names),
        ("tags", Arc::new(lists)),
        ("inner", Arc::new(inner)),
        ("nothing", Arc::new(NullArray::new(3))),
    ];
    let batch = RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, c)| (n, c, true))).unwrap();
    let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    LocalRelation { data: Some(writer.into_inner().unwrap()), schema: None }
}

/// A copy with some bits turned over, or cut off.
fn damaged(bytes: &[u8], numbers: &mut Numbers) -> Vec<u8> {
    let mut damaged = bytes.to_vec();
    if numbers.below(4) == 0 {
        damaged.truncate(numbers.below(bytes.len()));
    }
    for _ in 0..=numbers.below(3) {
        if !damaged.is_empty() {
            let at = numbers.below(damaged.len());
            damaged[at] ^= 1 << numbers.below(8);
        }
    }
    damaged
}

#[test]
fn damaged_rows_are_rows_or_an_error_and_no_panic() {
    let whole = sent_rows();
    assert!(super::rows::local(&whole).is_ok());
    let mut numbers = Numbers(11);
    let (mut read, mut refused) = (0, 0);
    for _ in 0..1500 {
        let data = Some(damaged(whole.data.as_ref().unwrap(), &mut numbers));
        match super::rows::local(&LocalRelation { data, schema: None }) {
            Ok(_) => read += 1,
            Err(error) => {
                assert_eq!(error.code(), "INVALID_PLAN_INPUT", "{error}");
                refused += 1;
            }
        }
    }
    assert!(read > 100 && refused > 300, "{read} read, {refused} refused");
}

#[test]
fn the_ends_of_a_range_may_lie_as_far_apart_as_numbers_do() {
    let range = |start, end, step| spark_range(start, end, step).unwrap();
    let third = i64::MAX / 3;
    let expected = [i64::MIN, i64::MIN + third * 2, i64::MIN + third * 2 + third * 2, i64::MAX - 3];
    assert_eq!(range(i64::MIN, i64::MAX, third * 2), expected);
    assert_eq!(range(5, -5, -4), [5, 1, -3]);
    assert!(range(5, 5, 1).is_empty());
}

fn spark_range(start: i64, end: i64, step: i64) -> Option<Vec<i64>> {
    use crate::pipeline::frame::FrameOp;
    let range = super::wire::spark::Range { start: Some(start), end, step, num_partitions: None };
    let Ok(FrameOp::Rows { batches, .. }) = super::rows::range(&range) else { return None };
    let column = batches[0].column(0).as_any().downcast_ref::<arrow::array::Int64Array>()?;
    Some(column.values().to_vec())
}

/// Works on a plan as the server does, and gives the answers or the status at its end.
fn executed(sessions: &Sessions, plan: Vec<u8>) -> Vec<Result<execute_plan_response::ResponseType, tonic::Status>> {
    let session = sessions.open("00112233-4455-6677-8899-aabbccddeeff").unwrap();
    let operation = Operation::new("o".to_owned(), "s".to_owned(), "t".to_owned(), Vec::new());
    let options = ServeOptions::at(([127, 0, 0, 1], 0).into()).unwrap();
    start(session, Arc::clone(&operation), plan, Flow::of(None), Arc::new(options));
    let answers = operation.answers(None).unwrap();
    let answers = answers.map(|answer| answer.map(|answer| answer.response_type.unwrap_or(COMPLETE)));
    futures::executor::block_on(answers.collect())
}

const COMPLETE: execute_plan_response::ResponseType =
    execute_plan_response::ResponseType::ResultComplete(execute_plan_response::ResultComplete {});

fn pipeline(command_type: pipeline_command::CommandType) -> Vec<u8> {
    let command = PipelineCommand { command_type: Some(command_type) };
    let command = Command { command_type: Some(command::CommandType::PipelineCommand(command)) };
    Plan { op_type: Some(plan::OpType::Command(command)) }.encode_to_vec()
}

#[test]
fn damaged_plans_and_commands_end_as_an_answer_or_an_error_of_the_client() {
    let sessions = Sessions::reading(None);
    let created = executed(
        &sessions,
        pipeline(pipeline_command::CommandType::CreateDataflowGraph(CreateDataflowGraph::default())),
    );
    let Some(Ok(execute_plan_response::ResponseType::PipelineCommandResult(result))) = created.into_iter().next()
    else {
        panic!("no graph")
    };
    let Some(pipeline_command_result::ResultType::CreateDataflowGraphResult(graph)) = result.result_type else {
        panic!("no graph")
    };
    let graph = graph.dataflow_graph_id;
    let place = Some(SourceCodeLocation {
        file_name: Some("/p/a.py".to_owned()),
        line_number: Some(3),
        ..SourceCodeLocation::default()
    });
    let output = DefineOutput {
        dataflow_graph_id: graph.clone(),
        output_name: Some("orders".to_owned()),
        output_type: Some(OutputType::Table as i32),
        source_code_location: place.clone(),
        details: Some(define_output::Details::TableDetails(TableDetails {
            table_properties: [("a".to_owned(), "b".to_owned())].into(),
            schema: Some(table_details::Schema::SchemaString("id INT, name STRING NOT NULL".to_owned())),
            ..TableDetails::default()
        })),
        ..DefineOutput::default()
    };
    let flow = |details| {
        pipeline(pipeline_command::CommandType::DefineFlow(DefineFlow {
            dataflow_graph_id: graph.clone(),
            flow_name: Some("f".to_owned()),
            target_dataset_name: Some("orders".to_owned()),
            source_code_location: place.clone(),
            details: Some(details),
            ..DefineFlow::default()
        }))
    };
    let cdc = AutoCdcFlowDetails {
        source: Some("x".to_owned()),
        keys: vec![attribute("id", None)],
        sequence_by: Some(attribute("at", None)),
        stored_as_scd_type: 2,
        track_history_column_list: vec![attribute("name", None)],
        ..AutoCdcFlowDetails::default()
    };
    let sql = Sql { query: "SELECT 1 AS a".to_owned(), ..Sql::default() };
    let command = SqlCommand { input: relation(RelType::Sql(sql)), ..SqlCommand::default() };
    let command = Command { command_type: Some(command::CommandType::SqlCommand(command)) };
    let rows = relation(RelType::LocalRelation(sent_rows()));
    let root = |root| Plan { op_type: Some(plan::OpType::Root(root)) }.encode_to_vec();
    let show = ShowString { input: rows.clone(), num_rows: 2, truncate: 20, vertical: false };
    let mut plans = vec![
        pipeline(pipeline_command::CommandType::DefineOutput(output)),
        flow(define_flow::Details::RelationFlowDetails(WriteRelationFlowDetails {
            relation: Some(requests().remove(1)),
        })),
        flow(define_flow::Details::AutoCdcFlowDetails(cdc)),
        pipeline(pipeline_command::CommandType::DefineSqlGraphElements(DefineSqlGraphElements {
            dataflow_graph_id: graph,
            sql_file_path: Some("a.sql".to_owned()),
            sql_text: Some("CREATE STREAMING TABLE t AS SELECT * FROM STREAM x".to_owned()),
        })),
        Plan { op_type: Some(plan::OpType::Command(command)) }.encode_to_vec(),
        root(relation(RelType::ShowString(show))),
        root(rows),
    ];
    for plan in &plans {
        let answers = executed(&sessions, plan.clone());
        assert!(answers.last().is_some_and(Result::is_ok), "{answers:?}");
    }
    let mut numbers = Numbers(13);
    let (mut answered, mut refused) = (0, 0);
    plans.extend(requests().into_iter().map(root));
    for plan in plans {
        let request = ExecutePlanRequest { session_id: "s".to_owned(), plan, ..ExecutePlanRequest::default() };
        let request = request.encode_to_vec();
        for _ in 0..120 {
            let Ok(ExecutePlanRequest { plan, .. }) =
                ExecutePlanRequest::decode(damaged(&request, &mut numbers).as_slice())
            else {
                refused += 1;
                continue;
            };
            match executed(&sessions, plan).pop() {
                Some(Err(status)) => {
                    assert_ne!(status.code(), tonic::Code::Internal, "{status:?}");
                    refused += 1;
                }
                _ => answered += 1,
            }
        }
    }
    assert!(answered > 100 && refused > 300, "{answered} answered, {refused} refused");
}
