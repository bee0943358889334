//! What stands in a query after its relations are listed, and what is refused there.

#![allow(clippy::unwrap_used)]
use std::path::Path;

use super::*;
use crate::pipeline::declaration::Defaults;
use crate::sql::token::tokens_of;

fn rewritten(text: &str) -> String {
    let file = Arc::new(Source::new("q.sql", text));
    let defaults = Defaults { catalog: "main".into(), schema: "default".into() };
    let context = Context::new(&file, Path::new("/p"), defaults);
    let end = file.location(text.len());
    let tokens = tokens_of(&file).unwrap();
    match parse_query(&context, tokens, AstSpan { start: end, end }) {
        Ok(query) => {
            let relations: Vec<String> = query.relations.iter().map(shown).collect();
            format!("{} | {}", query.body.sql(), relations.join(", "))
        }
        Err(error) => std::iter::once(&error)
            .chain(error.others())
            .map(|e| format!("{}: {} {}", e.place().span.as_ref().unwrap(), e.code(), e.message()))
            .collect::<Vec<_>>()
            .join("\n"),
    }
}

fn shown(relation: &WrittenRelation) -> String {
    let source = match &relation.source {
        WrittenSource::Table(name) => format!("{}{name}", if name.live { "live " } else { "" }),
        WrittenSource::Delta(location) => location.clone(),
        WrittenSource::Files(files) => {
            let schema = files.schema.as_ref().map_or(0, |schema| schema.fields().len());
            format!("{} {:?} {schema}", files.path, files.options)
        }
    };
    let options = relation.options.iter().map(|(name, value)| format!(" {}={value}", name.text));
    format!("{}{source}{}", if relation.stream { "stream " } else { "" }, options.collect::<String>())
}

#[test]
fn relations_are_numbered_and_qualifiers_follow() {
    for (text, expected) in [
        ("SELECT * FROM x", "SELECT * FROM `$0` AS x | x"),
        ("SELECT * FROM STREAM x y", "SELECT * FROM `$0` y | stream x"),
        ("SELECT * FROM STREAM(LIVE.x)", "SELECT * FROM `$0` AS x | stream live x"),
        ("SELECT LIVE.x.id FROM LIVE.x", "SELECT x.id FROM `$0` AS x | live x"),
        (
            "SELECT ORDERS.id, default.orders.id, main.default.Orders.*, orders.a[0], main.default.orders.b.c[1] FROM Orders",
            "SELECT Orders.id, Orders.id, Orders.*, Orders.a[0], Orders.b.c[1] FROM `$0` AS Orders | Orders",
        ),
        (
            "SELECT o.id, c.id FROM m.s.orders O JOIN m.s.c ON s.C.id = o.cid ORDER BY m.s.c.id",
            "SELECT O.id, c.id FROM `$0` O JOIN `$1` AS c ON c.id = O.cid ORDER BY c.id | m.s.orders, m.s.c",
        ),
        (
            "WITH orders AS (SELECT * FROM STREAM orders), o2 AS (SELECT * FROM Orders) SELECT * FROM o2, orders x",
            "WITH orders AS (SELECT * FROM `$0` AS orders), o2 AS (SELECT * FROM orders AS orders) SELECT * FROM o2, orders x | stream orders",
        ),
        (
            "SELECT * FROM a WHERE EXISTS (SELECT 1 FROM b WHERE b.id = A.id) AND x IN (SELECT y FROM c UNION SELECT y FROM a)",
            "SELECT * FROM `$0` AS a WHERE EXISTS (SELECT 1 FROM `$1` AS b WHERE b.id = a.id) AND x IN (SELECT y FROM `$2` AS c UNION SELECT y FROM `$3` AS a) | a, b, c, a",
        ),
        ("SELECT * FROM (x) t", "SELECT * FROM `$0` t | x"),
        (
            "SELECT * FROM (x JOIN STREAM y USING (id))",
            "SELECT * FROM (`$0` AS x JOIN `$1` AS y USING(id)) | x, stream y",
        ),
        (
            "SELECT * FROM a LEFT ANTI JOIN b ON a.x = b.x",
            "SELECT * FROM `$0` AS a LEFT ANTI JOIN `$1` AS b ON a.x = b.x | a, b",
        ),
        (
            "SELECT * FROM STREAM read_files('in/*.json', format => 'json', schema => 'a INT, b STRING', Header => true)",
            "SELECT * FROM `$0` AS read_files | stream /p/in/*.json {\"format\": \"json\", \"header\": \"true\"} 2",
        ),
        (
            "SELECT f.a FROM read_files(path => '/abs', maxFilesPerTrigger => 10) f",
            "SELECT f.a FROM `$0` f | /abs {\"maxfilespertrigger\": \"10\"} 0",
        ),
        (
            "SELECT _metadata.file_path, x.y.z FROM STREAM x",
            "SELECT _metadata.file_path, x.y.z FROM `$0` AS x | stream x",
        ),
        (
            "SELECT 7 DIV 2 + 1, a <=> b, filter(c, x -> x > 1) FROM t",
            "SELECT 7 DIV 2 + 1, a <=> b, filter(c, x -> x > 1) FROM `$0` AS t | t",
        ),
        (
            "SELECT * EXCEPT (a), CAST(x AS TIMESTAMP), cast(y as decimal(10,2)), `a b` FROM t",
            "SELECT * EXCEPT (a), CAST(x AS TIMESTAMP), CAST(y AS DECIMAL(10,2)), `a b` FROM `$0` AS t | t",
        ),
        (
            "SELECT x.a FROM STREAM s.x WITH (readChangeFeed = true) JOIN STREAM(y) WITH ('silverflow.mode' = 'changes') z ON s.x.a = z.a",
            "SELECT x.a FROM `$0` AS x JOIN `$1` z ON x.a = z.a | stream s.x readChangeFeed=true, stream y silverflow.mode=changes",
        ),
        (
            "SELECT * FROM STREAM read_stream(\"s.x\", skipChangeCommits => true, startingVersion => 3) r",
            "SELECT * FROM `$0` r | stream s.x skipChangeCommits=true startingVersion=3",
        ),
        ("SELECT * FROM VALUES (1, 'a') AS t(x, y)", "SELECT * FROM (VALUES (1, 'a')) AS t (x, y) | "),
        (
            "SELECT a FROM STREAM x UNION ALL SELECT a FROM STREAM y",
            "SELECT a FROM `$0` AS x UNION ALL SELECT a FROM `$1` AS y | stream x, stream y",
        ),
    ] {
        assert_eq!(rewritten(text), expected, "{text}");
    }
}

#[test]
fn mistakes_in_queries_have_their_place() {
    for (text, expected) in [
        ("SELECT FROM", "q.sql:1:8: PARSE_SYNTAX_ERROR expected an expression, found `FROM`"),
        ("SELECT a b c FROM t", "q.sql:1:12: PARSE_SYNTAX_ERROR expected the end of the query, found `c`"),
        (
            "SELECT * FROM (SELECT a FROM (SELECT a FROM\n  t WHERE)) x",
            "q.sql:2:10: PARSE_SYNTAX_ERROR expected an expression, the statement ends",
        ),
        (
            "SELECT * FROM a.b.c.d",
            "q.sql:1:15: INVALID_TABLE_NAME `a.b.c.d` is no table name: it has one to three parts",
        ),
        (
            "SELECT * FROM t VERSION AS OF 3",
            "q.sql:1:15: NOT_SUPPORTED time travel (VERSION AS OF, TIMESTAMP AS OF) is not supported yet",
        ),
        (
            "SELECT * FROM STREAM read_kafka('x')",
            "q.sql:1:22: NOT_SUPPORTED the table function `read_kafka` is not supported yet",
        ),
        (
            "WITH RECURSIVE r AS (SELECT 1) SELECT * FROM r",
            "q.sql:1:1: NOT_SUPPORTED a recursive WITH is not supported yet",
        ),
        (
            "SELECT * FROM STREAM read_stream(startingVersion => 3)",
            "q.sql:1:22: INVALID_OPTION read_stream needs a table",
        ),
        (
            "SELECT * FROM t WITH (skipChangeCommits = true)",
            "q.sql:1:15: NOT_SUPPORTED an option clause on a table that is not read as a STREAM is not supported yet",
        ),
        ("SELECT * FROM read_files(schema => 'a INT')", "q.sql:1:15: INVALID_OPTION read_files needs a path"),
        (
            "SELECT * FROM read_files('x', format => 'a', FORMAT => 'b')",
            "q.sql:1:46: DUPLICATE_OPTION read_files is given `format` twice",
        ),
        (
            "SELECT * FROM read_files('x', format => y)",
            "q.sql:1:31: INVALID_OPTION `format` of read_files takes a literal",
        ),
        (
            "SELECT * FROM read_files('x', schema => 'a INT, b STRNG')",
            "q.sql:1:51: UNSUPPORTED_DATATYPE `STRNG` is no type that is supported",
        ),
    ] {
        assert_eq!(rewritten(text), expected, "{text}");
    }
}
