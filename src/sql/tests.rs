//! Whatever stands in a file, reading it ends with declarations or with errors that have a place in the file.

#![allow(clippy::unwrap_used)]
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::{Context, parse_file};
use crate::pipeline::Source;
use crate::pipeline::declaration::{Declarations, Defaults};

const WORDS: &[&str] = &[
    "CREATE",
    "OR",
    "REFRESH",
    "STREAMING",
    "TABLE",
    "VIEW",
    "FLOW",
    "AS",
    "AUTO",
    "CDC",
    "INTO",
    "FROM",
    "STREAM",
    "KEYS",
    "SEQUENCE",
    "BY",
    "SELECT",
    "WHERE",
    "CONSTRAINT",
    "EXPECT",
    "ON",
    "VIOLATION",
    "DROP",
    "ROW",
    "COLUMNS",
    "EXCEPT",
    "STORED",
    "SCD",
    "TYPE",
    "TRACK",
    "HISTORY",
    "INSERT",
    "ONCE",
    "NAME",
    "SET",
    "WITH",
    "JOIN",
    "UNION",
    "CASE",
    "WHEN",
    "END",
    "STRUCT",
    "ARRAY",
    "MAP",
    "INT",
    "TBLPROPERTIES",
    "COMMENT",
    "read_files",
    "LIVE",
    "t",
    "main.t",
    "`a b`",
    "x",
    "1",
    "2.5D",
    "'s'",
    "\"d\"",
    "r'\\'",
    "(",
    ")",
    ",",
    "*",
    ";",
    "=",
    "<",
    ">",
    ">>",
    "=>",
    "->",
    ".",
    "${k}",
    "${",
    "--",
    "/*",
    "*/",
    "'",
    "`",
    "\\",
    "é",
    "\u{1}",
    "$0",
    "[",
    "]",
    ":",
    "?",
    "\n",
    "\t",
    "\r\n",
];

fn read(text: &str) {
    let file = Arc::new(Source::new("f.sql", text));
    let defaults = Defaults { catalog: "main".into(), schema: "default".into() };
    let mut context = Context::new(&file, Path::new("/p"), defaults);
    let configuration = [("k".to_owned(), "v w".to_owned())].into();
    let mut declarations = Declarations::default();
    let lines = text.split('\n').count();
    for error in parse_file(&mut context, &configuration, &mut declarations) {
        let span = error.place().span.clone().unwrap();
        assert!((1..=lines).contains(&span.line) && span.column >= 1, "{error}");
        assert!(!error.to_string().contains('\u{1}') || text.contains('\u{1}'), "{error:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    #[test]
    fn words_in_any_order_are_read_or_refused(words in prop::collection::vec(prop::sample::select(WORDS), 0..40)) {
        read(&words.join(" "));
        read(&format!("CREATE VIEW v AS SELECT {}", words.join(" ")));
        read(&format!("CREATE STREAMING TABLE t ({}", words.join(" ")));
        read(&format!("APPLY CHANGES INTO t FROM STREAM s {}", words.join(" ")));
    }

    #[test]
    fn any_text_is_read_or_refused(text in any::<String>()) {
        read(&text);
    }
}

#[test]
fn deep_nesting_is_refused_and_not_followed() {
    for text in [
        format!("CREATE VIEW v AS SELECT {}1{}", "(".repeat(5000), ")".repeat(5000)),
        format!("CREATE VIEW v AS SELECT * FROM {}", "(SELECT * FROM ".repeat(300)),
        format!("CREATE STREAMING TABLE t (a {}", "ARRAY<".repeat(5000)),
        "/*".repeat(5000),
    ] {
        read(&text);
    }
}
