//! The language by example: `tests/sql` has pipelines, one feature a file, and snapshots of what becomes of them.
//!
//! `accepted/` are planned, explained, and run on the rows of `landing/`; `--@ show t` puts a table into the snapshot.
//! `refused/` are mistakes with their messages, one a part between `--@ next`. `lints/` have a file that a remark's code
//! names, which gives rise to it, and a quiet one beside it. `INSTA_UPDATE=always` writes the snapshots anew.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use silverflow::error::Fault;
use silverflow::plan::explain;
use silverflow::project::{self, Loaded};
use silverflow::runtime::{self, DryRun};

use crate::support::{Project, copy_folder};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sql")
}

/// The files of a folder, by name.
pub(crate) fn files(of: &str) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = fs::read_dir(folder().join(of))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(&path).unwrap()))
        .collect();
    found.sort();
    assert!(found.len() > 3, "{of} has few files");
    found
}

fn directives<'a>(text: &'a str, of: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().filter_map(move |line| line.strip_prefix("--@ ")?.strip_prefix(of)).map(str::trim)
}

pub(crate) fn project(text: &str, alone: bool) -> Project {
    let project = Project::new(text);
    if !alone {
        fs::copy(folder().join("prelude.sql"), project.path("transformations/a_prelude.sql")).unwrap();
    }
    copy_folder(&folder().join("landing"), &project.path("landing"));
    project
}

fn plan(project: &Project) -> silverflow::error::Result<(Loaded, DryRun)> {
    let loaded = project::load(&project.spec())?;
    let found = runtime::dry_run(&loaded.pipeline)?;
    Ok((loaded, found))
}

/// A text without the folder in which the project happens to be.
fn anywhere(project: &Project, text: &str) -> String {
    text.replace(project.path("").to_str().unwrap().trim_end_matches('/'), "<project>")
}

fn check(name: &str, text: &str, failures: &mut Vec<String>) {
    let mut settings = insta::Settings::new();
    settings.set_snapshot_path(folder().join("snapshots"));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    if catch_unwind(AssertUnwindSafe(|| settings.bind(|| insta::assert_snapshot!(name, text)))).is_err() {
        failures.push(name.to_owned());
    }
}

#[test]
fn accepted_pipelines_are_planned_and_run_as_they_read() {
    let mut failures = Vec::new();
    for (name, text) in files("accepted") {
        let alone = directives(&text, "alone").next().is_some();
        let project = project(&text, alone);
        let (loaded, found) = match plan(&project) {
            Ok(planned) => planned,
            Err(error) => {
                failures.push(format!("{name}: {error}"));
                continue;
            }
        };
        let mut out = String::new();
        for dataset in explain(&found.plan) {
            if alone || !["main.default.r", "main.default.s"].contains(&dataset.name.as_str()) {
                writeln!(out, "{dataset}").unwrap();
            }
        }
        for lint in &loaded.lints {
            writeln!(out, "[{}] {} ({}); {}", lint.code, lint.message, lint.span, lint.help).unwrap();
        }
        for lint in &found.plan.lints {
            writeln!(out, "[{}] {} ({})", lint.code, lint.message, lint.span).unwrap();
        }
        let shown: Vec<&str> = directives(&text, "show").collect();
        if !shown.is_empty() {
            if let Err(error) = project.run_at("2024-06-01T00:00:00Z", 2) {
                failures.push(format!("{name}: {error}"));
                continue;
            }
            project.assert_clean(&name);
        }
        for table in shown {
            writeln!(out, "\n{table}").unwrap();
            let rows = project.query(&format!("SELECT * FROM {table}"));
            let mut rows: Vec<String> =
                rows.unwrap_or_else(|e| panic!("{name}: {e}")).iter().map(ToString::to_string).collect();
            rows.sort();
            rows.iter().for_each(|row| writeln!(out, "{row}").unwrap());
        }
        check(&format!("accepted_{name}"), &anywhere(&project, &out), &mut failures);
    }
    assert!(failures.is_empty(), "these differ:\n{}", failures.join("\n"));
}

#[test]
fn refused_pipelines_say_what_where_and_what_to_write() {
    let mut failures = Vec::new();
    for (name, text) in files("refused") {
        let alone = directives(&text, "alone").next().is_some();
        let mut out = String::new();
        for part in text.split("--@ next\n") {
            let part: String = part.lines().filter(|l| !l.starts_with("--@")).map(|l| format!("{l}\n")).collect();
            let project = project(&part, alone);
            match plan(&project) {
                Ok(_) => writeln!(out, "accepted:\n{part}").unwrap(),
                Err(error) => {
                    assert!(error.fault() != Fault::Internal, "{error}");
                    assert!(error.place().span.is_some(), "{error} has no place");
                    writeln!(out, "{}\n", anywhere(&project, &error.to_string())).unwrap();
                }
            }
        }
        assert!(!out.contains("accepted:"), "{name}: {out}");
        check(&format!("refused_{name}"), &out, &mut failures);
    }
    assert!(failures.is_empty(), "{failures:?} differ");
}

#[test]
fn each_remark_has_a_pipeline_that_gives_rise_to_it_and_one_that_does_not() {
    let mut failures = Vec::new();
    let mut seen: BTreeSet<(String, bool)> = BTreeSet::new();
    for (name, text) in files("lints") {
        let (code, quiet) = match name.strip_suffix(".quiet") {
            Some(code) => (code.to_owned(), true),
            None => (name.clone(), false),
        };
        let project = project(&text, false);
        // A table outside that is not there is an error of the plan, behind the remark on its name.
        let loaded = project::load(&project.spec()).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut remarks: Vec<(String, String)> = loaded
            .lints
            .iter()
            .map(|l| (l.code.to_owned(), format!("[{}] {} ({}); {}", l.code, l.message, l.span, l.help)))
            .collect();
        if let Ok(found) = runtime::dry_run(&loaded.pipeline) {
            let planned = found.plan.lints.iter();
            remarks.extend(planned.map(|l| (l.code.to_owned(), format!("[{}] {} ({})", l.code, l.message, l.span))));
        }
        let said = remarks.iter().any(|(found, _)| *found == code);
        assert_eq!(said, !quiet, "{name}: {remarks:?}");
        if !quiet {
            let text: String = remarks.iter().map(|(_, text)| format!("{text}\n")).collect();
            check(&format!("lint_{name}"), &anywhere(&project, &text), &mut failures);
        }
        seen.insert((code, quiet));
    }
    for (code, quiet) in &seen {
        assert!(seen.contains(&(code.clone(), !quiet)), "{code} has only one of its two pipelines");
    }
    assert!(failures.is_empty(), "{failures:?} differ");
}

/// Words in capitals.
fn keywords(text: &str) -> BTreeSet<String> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.len() > 1 && word.starts_with(|c: char| c.is_ascii_uppercase()))
        .filter(|word| word.chars().all(|c| !c.is_ascii_lowercase()))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_page_on_sql_names_nothing_that_no_pipeline_shows() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/sql.md")).unwrap();
    let section = |from: &str, to: &str| {
        let start = page.find(from).unwrap() + from.len();
        page[start..].split(to).next().unwrap().to_owned()
    };
    let all = |folders: &[&str]| -> BTreeSet<String> {
        let texts = folders.iter().flat_map(|folder| files(folder)).map(|(_, text)| text.to_uppercase());
        texts.flat_map(|text| keywords(&text)).collect()
    };
    // In the tables the first column is what is meant, and the last one is advice.
    let first_column = |text: &str| -> String {
        text.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next()).map(|c| format!("{c}\n")).collect()
    };
    let missing = |named: &str, shown: BTreeSet<String>| -> Vec<String> {
        let prose = ["JSON", "SQL", "AUTO", "UTF8_BINARY", "SELECT", "SCD", "ON", "AS", "LIMIT"];
        keywords(named).into_iter().filter(|w| !shown.contains(w) && !prose.contains(&w.as_str())).collect()
    };
    let accepted = section("## Accepted\n", "\n## ");
    assert_eq!(missing(&accepted, all(&["accepted", "lints"])), [""; 0], "accepted");
    let idle = first_column(&section("## Accepted without effect\n", "\n## "));
    assert_eq!(missing(&idle, all(&["accepted", "lints"])), [""; 0], "without effect");
    let refused = first_column(&section("## Refused\n", "\n## "));
    assert_eq!(missing(&refused, all(&["refused"])), [""; 0], "refused");
}

/// What a line of `grammar.txt` is as a pipeline of its own.
fn as_pipeline(kind: &str, example: &str) -> String {
    match kind {
        "statement" => format!("{example};"),
        "query" if example.contains("STREAM") => format!("CREATE STREAMING TABLE g AS {example};"),
        "query" => format!("CREATE MATERIALIZED VIEW g AS {example};"),
        "expression" | "literal" => format!("CREATE STREAMING TABLE g AS SELECT {example} AS x FROM STREAM s;"),
        "type" => format!(
            "CREATE STREAMING TABLE g (x {example});
             CREATE FLOW f AS INSERT INTO g BY NAME SELECT CAST(NULL AS {example}) AS x FROM STREAM s;"
        ),
        other => panic!("{other} is no section"),
    }
}

/// Whether a pipeline is accepted, idle in part, or refused, and then by which code.
fn verdict(text: &str) -> String {
    let project = project(text, false);
    match plan(&project) {
        Ok((loaded, _)) if loaded.lints.iter().any(|lint| lint.code == "NO_EFFECT") => "idle".to_owned(),
        Ok(_) => "accepted".to_owned(),
        Err(error) => {
            assert!(error.fault() != Fault::Internal, "{text}: {error}");
            error.code().to_owned()
        }
    }
}

#[test]
fn every_alternative_of_the_grammar_is_what_the_page_says() {
    const HEAD: &str = "## Spark's grammar\n";
    let text = fs::read_to_string(folder().join("grammar.txt")).unwrap();
    let (mut kind, mut page, mut wrong) = ("", HEAD.to_owned(), Vec::new());
    page.push_str("\nEvery alternative of the grammar by its name there, with what an example of it is in a pipeline: accepted, idle (accepted\nwithout effect), or the code that refuses it. A query or an expression is that of a streaming table.\n");
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        if let Some(name) = line.strip_prefix('[') {
            kind = name.trim_end_matches(']');
            write!(page, "\n| {kind} | here | example |\n|---|---|---|\n").unwrap();
            continue;
        }
        let [name, expected, example] = line.splitn(3, " | ").collect::<Vec<_>>()[..] else { panic!("{line}") };
        let found = verdict(&as_pipeline(kind, example));
        if found != expected {
            wrong.push(format!("{name}: {found}, not {expected}: {example}"));
        }
        writeln!(page, "| {name} | {expected} | `{}` |", example.replace('|', "\\|").replace('`', "")).unwrap();
    }
    assert_eq!(wrong, [""; 0]);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/sql.md");
    let written = fs::read_to_string(&path).unwrap();
    let (before, after) = written
        .split_once(HEAD)
        .map_or((written.as_str(), ""), |(before, rest)| (before, rest.find("\n## ").map_or("", |at| &rest[at..])));
    let whole = format!("{}\n\n{page}{after}", before.trim_end());
    if std::env::var_os("SILVERFLOW_UPDATE").is_some() {
        fs::write(&path, &whole).unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), whole, "docs/sql.md differs; run with SILVERFLOW_UPDATE=1");
}
