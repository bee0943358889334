//! Whatever stands in a file, reading it ends with declarations or with errors that have a place in the file.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]
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
    "LATERAL",
    "explode",
    "OUTER",
    "cloud_files",
    "INTERVAL",
    "DAY",
    "HOURS",
    "TO",
    "TIMESTAMP_LTZ",
    "PRIMARY",
    "KEY",
    "GENERATED",
    "ALWAYS",
    "CLUSTER",
    "PARTITIONED",
    "SCHEDULE",
    "EVERY",
    "EXTEND",
    "LIKE",
    "ANY",
    "ALL",
    "EXCEPT",
    "|>",
    "::",
    ">>>",
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

/// The pipelines of `tests/sql`, as runs of characters that mean something together.
fn examples() -> Vec<Vec<String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sql");
    let mut texts = Vec::new();
    for folder in ["accepted", "refused", "lints"] {
        let mut paths: Vec<_> = std::fs::read_dir(root.join(folder)).unwrap().map(|e| e.unwrap().path()).collect();
        paths.sort();
        texts.extend(paths.iter().map(|path| std::fs::read_to_string(path).unwrap()));
    }
    assert!(texts.len() > 50);
    let kind = |c: char| (c.is_alphanumeric() || c == '_', c.is_whitespace());
    texts
        .iter()
        .map(|text| {
            let mut pieces: Vec<String> = Vec::new();
            for c in text.chars() {
                match pieces.last_mut() {
                    Some(last) if last.chars().all(|before| kind(before) == kind(c) && kind(c) != (false, false)) => {
                        last.push(c)
                    }
                    _ => pieces.push(c.to_string()),
                }
            }
            pieces
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, rng_seed: RngSeed::Fixed(2), ..ProptestConfig::default() })]

    #[test]
    fn damaged_pipelines_are_read_or_refused(
        which in any::<prop::sample::Index>(),
        damages in prop::collection::vec((0..5u8, any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..6),
    ) {
        let examples = examples_once();
        let mut pieces = which.get(examples).clone();
        for (kind, at, other, from) in damages {
            let place = at.index(pieces.len() + 1);
            let donor = other.get(examples);
            match kind {
                0 => drop((place < pieces.len()).then(|| pieces.remove(place))),
                1 => pieces.insert(place, donor[from.index(donor.len())].clone()),
                2 => {
                    let start = from.index(donor.len());
                    let run = donor[start..(start + 12).min(donor.len())].to_vec();
                    drop(pieces.splice(place..place, run));
                }
                3 => pieces.insert(place, WORDS[from.index(WORDS.len())].to_owned()),
                _ if pieces.len() > 1 => {
                    let last = pieces.len() - 1;
                    pieces.swap(place.min(last), from.index(last + 1));
                }
                _ => {}
            }
        }
        read(&pieces.concat());
    }
}

fn examples_once() -> &'static [Vec<String>] {
    static EXAMPLES: std::sync::OnceLock<Vec<Vec<String>>> = std::sync::OnceLock::new();
    EXAMPLES.get_or_init(examples)
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
