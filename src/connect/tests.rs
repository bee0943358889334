//! Requests that no honest client sends: whatever the bytes are, they end as a plan or an error.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::path::Path;

use datafusion::sql::sqlparser::tokenizer::Span as AstSpan;
use prost::Message;

use super::relation::{Place, query};
use super::wire::spark::expression::{self, ExprType, UnresolvedAttribute, UnresolvedFunction, literal::LiteralType};
use super::wire::spark::relation::RelType;
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
