//! Known mistakes that are no errors.

use std::collections::BTreeSet;
use std::fmt;

use datafusion::sql::sqlparser::ast::Spanned;

use super::graph::Graph;
use super::lineage::{Lineage, clean_columns, columns_of, reads_clock};
use super::names::near_miss;
use super::{AutoCdc, ColumnList, Dataset, DatasetKind, Flow, Pipeline, Relation, RelationSource, ScdType, TableName};
use crate::error::Span;

/// Code of the remark on a clause that is read and changes nothing. It is for `dry-run` alone.
pub const NO_EFFECT: &str = "NO_EFFECT";

/// A remark on a pipeline that runs, but probably not as meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lint {
    /// SCREAMING_SNAKE_CASE and stable.
    pub code: &'static str,
    /// What stands out.
    pub message: String,
    /// Where.
    pub span: Span,
    /// What to do.
    pub help: String,
}

impl fmt::Display for Lint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lint { code, message, span, help } = self;
        write!(f, "[{code}] {message}\n --> {span}\n  help: {help}")
    }
}

/// All remarks that names and syntax give rise to.
pub(super) fn lint(pipeline: &Pipeline) -> Vec<Lint> {
    // The pipeline has been checked, so it has no cycle.
    let Ok(graph) = Graph::new(pipeline) else { return Vec::new() };
    let lineage = Lineage::new(pipeline, &graph);
    let merged = merged(pipeline, &graph);
    let mut lints = Vec::new();
    lints.extend(pipeline.datasets.values().flat_map(unknown_properties));
    for flow in pipeline.flows.values() {
        match flow.auto_cdc() {
            Some(cdc) => {
                lints.extend(raw_source(pipeline, flow, cdc));
                lints.extend(leftover_verdicts(pipeline, &lineage, flow, cdc));
                lints.extend(sequence(&lineage, cdc));
                lints.extend(noise(pipeline, &lineage, flow, cdc));
            }
            None => late_filters(pipeline, &lineage, &merged, flow, &mut lints),
        }
    }
    lints
}

/// Table properties `pipelines.…` of Lakeflow; of ours an unknown one is an error.
const PROPERTIES: [&str; 7] = [
    "pipelines.reset.allowed",
    "pipelines.autoOptimize.managed",
    "pipelines.autoOptimize.zOrderCols",
    "pipelines.cdc.tombstoneGCThresholdInSeconds",
    "pipelines.channel",
    "pipelines.trigger.interval",
    "pipelines.tableType",
];

/// Properties that are read by nobody, so that they may be misspelt.
fn unknown_properties(dataset: &Dataset) -> Vec<Lint> {
    let ours = dataset.properties.keys().filter(|key| key.to_lowercase().starts_with("pipelines."));
    let unknown = ours.filter(|key| !PROPERTIES.iter().any(|known| known.eq_ignore_ascii_case(key)));
    let lint = |key: &String| Lint {
        code: "UNKNOWN_PROPERTY",
        message: format!("the table property `{key}` of `{}` is not known, and changes nothing", dataset.name),
        span: dataset.span.clone(),
        help: match near_miss(key, PROPERTIES) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "leave it out, or give it a prefix of your own".to_owned(),
        },
    };
    unknown.map(lint).collect()
}

/// Targets of AUTO CDC and everything that reads them.
fn merged(pipeline: &Pipeline, graph: &Graph) -> BTreeSet<TableName> {
    let targets: BTreeSet<TableName> =
        pipeline.flows.values().filter(|flow| flow.auto_cdc().is_some()).map(|flow| flow.target.clone()).collect();
    let mut all = graph.downstream(&targets);
    all.extend(targets);
    all
}

/// An AUTO CDC flow that streams from outside, with nothing but views in between.
fn raw_source(pipeline: &Pipeline, flow: &Flow, cdc: &AutoCdc) -> Option<Lint> {
    if flow.once || !streams_from_outside(pipeline, &cdc.source) {
        return None;
    }
    let target = pipeline.short(&flow.target);
    Some(Lint {
        code: "AUTOCDC_READS_RAW_SOURCE",
        message: format!(
            "`{target}` is merged straight from outside: no stored table keeps its events for a rebuild or a contract"
        ),
        span: cdc.source.span.clone(),
        help: "store the events first: CREATE STREAMING TABLE … AS SELECT * FROM STREAM …, and merge from that"
            .to_owned(),
    })
}

fn streams_from_outside(pipeline: &Pipeline, relation: &Relation) -> bool {
    match &relation.source {
        RelationSource::Files(_) | RelationSource::External { .. } => relation.stream,
        RelationSource::Quarantine(_) => false,
        RelationSource::Dataset(name) => {
            let view = pipeline.datasets.get(name).is_some_and(|dataset| dataset.kind == DatasetKind::TemporaryView);
            view && pipeline
                .flows_into(name)
                .flat_map(Flow::relations)
                .any(|inner| inner.stream && streams_from_outside(pipeline, inner))
        }
    }
}

/// Verdicts that a filter has settled before the merge, and that the target keeps all the same.
fn leftover_verdicts(pipeline: &Pipeline, lineage: &Lineage, flow: &Flow, cdc: &AutoCdc) -> Vec<Lint> {
    let source = lineage.relation(&cdc.source);
    let left = source.iter().filter(|(name, traits)| traits.verdict && traits.settled && cdc.keeps(name));
    left.map(|(name, _)| Lint {
        code: "VERDICT_COLUMN_IN_TARGET",
        message: format!(
            "`{name}` is filtered on before the merge, so in `{}` it says the same of every row",
            pipeline.short(&flow.target)
        ),
        span: cdc.source.span.clone(),
        help: format!("leave it out: COLUMNS * EXCEPT ({name})"),
    })
    .collect()
}

/// A sequence that tells when an event was seen, and not when it happened.
fn sequence(lineage: &Lineage, cdc: &AutoCdc) -> Option<Lint> {
    let source = lineage.relation(&cdc.source);
    let columns = columns_of(&cdc.sequence_by);
    let clock = columns.iter().find(|column| source.get(*column).is_some_and(|traits| traits.clock));
    let why = if reads_clock(&cdc.sequence_by) {
        "reads a clock".to_owned()
    } else if let Some(column) = clock {
        format!("is `{column}`, which reads a clock")
    } else {
        format!("is `{}`", columns.iter().find(|column| ingestion(column))?)
    };
    Some(Lint {
        code: "SEQUENCE_LOOKS_LIKE_INGESTION",
        message: format!("the sequence {why}: it looks like when an event was loaded, not when it happened"),
        span: cdc.sequence_span.clone(),
        help: "order by a column that the source system sets, or late events win over newer ones".to_owned(),
    })
}

/// Names that loaders give to their own columns.
fn ingestion(folded: &str) -> bool {
    let bare = folded.trim_start_matches('_');
    let verbs = [
        "ingest",
        "ingested",
        "ingestion",
        "load",
        "loaded",
        "process",
        "processed",
        "processing",
        "sync",
        "synced",
        "extracted",
    ];
    let units = ["at", "time", "ts", "timestamp", "date", "datetime"];
    let words: Vec<&str> = bare.split('_').collect();
    let pair = matches!(words.as_slice(), [verb, unit] if verbs.contains(verb) && units.contains(unit));
    pair || ["fivetran_synced", "file_modification_time", "epoch"].contains(&bare)
}

/// Columns that differ in every event and are tracked, so that every event opens a version.
fn noise(pipeline: &Pipeline, lineage: &Lineage, flow: &Flow, cdc: &AutoCdc) -> Option<Lint> {
    if cdc.scd != ScdType::Two || matches!(cdc.track_history, Some(ColumnList::Include(_))) {
        return None;
    }
    let listed = |names: &[super::Name], column: &str| names.iter().any(|name| name.text.to_lowercase() == column);
    let tracked = |column: &String| {
        cdc.keeps(column)
            && !listed(&cdc.keys, column)
            && !cdc.track_history.as_ref().is_some_and(|list| listed(list.names(), column))
    };
    let mut named: BTreeSet<String> = lineage.relation(&cdc.source).into_keys().collect();
    if let Some(ColumnList::Include(names)) = &cdc.columns {
        named.extend(names.iter().map(|name| name.text.to_lowercase()));
    }
    let (span, column) = match columns_of(&cdc.sequence_by).into_iter().find(|column| tracked(column)) {
        Some(column) => (cdc.sequence_span.clone(), column),
        None => (cdc.source.span.clone(), named.into_iter().find(|column| ingestion(column) && tracked(column))?),
    };
    Some(Lint {
        code: "EVERY_EVENT_IS_A_VERSION",
        message: format!(
            "`{column}` is kept and tracked in `{}`: it changes with every event, so each one opens a version",
            pipeline.short(&flow.target)
        ),
        span,
        help: format!("COLUMNS * EXCEPT ({column}), or TRACK HISTORY ON * EXCEPT ({column})"),
    })
}

/// Filters for clean verdicts behind a merge, where earlier versions of the same key are merged in already.
fn late_filters(
    pipeline: &Pipeline,
    lineage: &Lineage,
    merged: &BTreeSet<TableName>,
    flow: &Flow,
    lints: &mut Vec<Lint>,
) {
    let Some(query) = flow.query() else { return };
    lineage.filters(query, &mut |condition, relations, columns| {
        let Some(source) = relations.iter().find_map(|relation| match &relation.source {
            RelationSource::Dataset(name) if merged.contains(name) => Some(name),
            _ => None,
        }) else {
            return;
        };
        for column in clean_columns(condition) {
            if columns.get(&column).is_some_and(|traits| traits.verdict) {
                lints.push(Lint {
                    code: "VERDICT_FILTER_AFTER_MERGE",
                    message: format!("rows of `{}` are filtered by `{column}` after the merge, where rejected events have already closed and opened versions", pipeline.short(source)),
                    span: pipeline.locate(&query.span, condition.span()),
                    help: "filter in the view that the AUTO CDC flow reads".to_owned(),
                });
            }
        }
    });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::pipeline::Settings;
    use crate::project::load_sql;

    const BRONZE: &str = "CREATE STREAMING TABLE bronze AS SELECT * FROM STREAM read_files('in', schema => 'id INT, qty INT, op STRING, ts TIMESTAMP, loaded_at TIMESTAMP');\n";
    const TAGGED: &str = "CREATE VIEW tagged AS SELECT b.*, array_except(array(CASE WHEN qty < 0 THEN 'negative' END, CASE WHEN qty IS NULL THEN 'missing' END), array(CAST(NULL AS STRING))) AS critical FROM STREAM bronze b;\n";
    const MERGE: &str = "AUTO CDC FROM STREAM clean KEYS (id) SEQUENCE BY ts STORED AS SCD TYPE 2";

    fn lints(text: &str) -> Vec<String> {
        let loaded = load_sql(&[("x.sql", text)], &Settings::default()).unwrap();
        loaded
            .lints
            .iter()
            .map(|l| format!("{}:{} {} {} | {}", l.span.line, l.span.column, l.code, l.message, l.help))
            .collect()
    }

    #[test]
    fn the_usual_shape_is_not_remarked() {
        for rest in [
            format!("CREATE VIEW clean AS SELECT * EXCEPT (critical) FROM STREAM tagged WHERE size(critical) = 0;
                CREATE STREAMING TABLE silver FLOW {MERGE} COLUMNS * EXCEPT (op, ts, loaded_at) APPLY AS DELETE WHEN op = 'D';
                CREATE MATERIALIZED VIEW m AS SELECT * FROM silver WHERE __END_AT IS NULL;"),
            // A warning is kept on purpose, and rows with one are looked for.
            format!("CREATE VIEW clean AS SELECT *, critical AS _dq_warnings FROM STREAM tagged;
                CREATE STREAMING TABLE silver FLOW {MERGE} COLUMNS * EXCEPT (critical, op, ts, loaded_at);
                CREATE MATERIALIZED VIEW m AS SELECT * FROM silver WHERE size(_dq_warnings) > 0;"),
            // One branch is settled, the other is not.
            format!("CREATE VIEW clean AS SELECT * FROM STREAM tagged WHERE size(critical) = 0 UNION ALL SELECT * FROM STREAM tagged;
                CREATE STREAMING TABLE silver FLOW {MERGE} TRACK HISTORY ON qty;"),
            format!("CREATE VIEW clean AS SELECT * FROM STREAM bronze;
                CREATE STREAMING TABLE silver FLOW {MERGE} TRACK HISTORY ON * EXCEPT (ts, loaded_at);"),
        ] {
            assert_eq!(lints(&format!("{BRONZE}{TAGGED}{rest}")), [""; 0], "{rest}");
        }
    }

    #[test]
    fn known_mistakes_are_remarked_with_their_place() {
        for (rest, expected) in [
            (
                "CREATE VIEW clean AS SELECT * FROM STREAM read_files('in');
CREATE STREAMING TABLE silver FLOW AUTO CDC FROM STREAM clean KEYS (id) SEQUENCE BY ts".to_owned(),
                "4:57 AUTOCDC_READS_RAW_SOURCE `silver` is merged straight from outside: no stored table keeps its events for a rebuild or a contract | store the events first: CREATE STREAMING TABLE … AS SELECT * FROM STREAM …, and merge from that",
            ),
            (
                format!("CREATE VIEW clean AS WITH c AS (SELECT * FROM STREAM tagged) SELECT x.* FROM c x WHERE (qty > 0 AND size(x.critical) = 0);
CREATE STREAMING TABLE silver FLOW {MERGE} TRACK HISTORY ON qty"),
                "4:57 VERDICT_COLUMN_IN_TARGET `critical` is filtered on before the merge, so in `silver` it says the same of every row | leave it out: COLUMNS * EXCEPT (critical)",
            ),
            (
                format!("CREATE VIEW clean AS SELECT * FROM STREAM tagged;
CREATE STREAMING TABLE silver FLOW {MERGE} TRACK HISTORY ON qty;
CREATE VIEW v AS SELECT * FROM silver s;
CREATE MATERIALIZED VIEW m AS SELECT id FROM v WHERE __END_AT IS NULL AND cardinality(v.critical) = 0"),
                "6:54 VERDICT_FILTER_AFTER_MERGE rows of `v` are filtered by `critical` after the merge, where rejected events have already closed and opened versions | filter in the view that the AUTO CDC flow reads",
            ),
            (
                "CREATE STREAMING TABLE silver FLOW AUTO CDC FROM STREAM bronze KEYS (id) SEQUENCE BY loaded_at".to_owned(),
                "3:86 SEQUENCE_LOOKS_LIKE_INGESTION the sequence is `loaded_at`: it looks like when an event was loaded, not when it happened | order by a column that the source system sets, or late events win over newer ones",
            ),
            (
                "CREATE VIEW clean AS SELECT *, current_timestamp() AS seq FROM STREAM bronze;
CREATE STREAMING TABLE silver FLOW AUTO CDC FROM STREAM clean KEYS (id) SEQUENCE BY struct(ts, seq)".to_owned(),
                "4:85 SEQUENCE_LOOKS_LIKE_INGESTION the sequence is `seq`, which reads a clock: it looks like when an event was loaded, not when it happened | order by a column that the source system sets, or late events win over newer ones",
            ),
            (
                "CREATE STREAMING TABLE silver FLOW AUTO CDC FROM STREAM bronze KEYS (id) SEQUENCE BY _metadata.file_modification_time".to_owned(),
                "3:86 SEQUENCE_LOOKS_LIKE_INGESTION the sequence reads a clock: it looks like when an event was loaded, not when it happened | order by a column that the source system sets, or late events win over newer ones",
            ),
            (
                format!("CREATE VIEW clean AS SELECT * FROM STREAM bronze;
CREATE STREAMING TABLE silver FLOW {MERGE}"),
                "4:85 EVERY_EVENT_IS_A_VERSION `ts` is kept and tracked in `silver`: it changes with every event, so each one opens a version | COLUMNS * EXCEPT (ts), or TRACK HISTORY ON * EXCEPT (ts)",
            ),
            (
                format!("CREATE VIEW clean AS SELECT * FROM STREAM bronze;
CREATE STREAMING TABLE silver FLOW {MERGE} COLUMNS * EXCEPT (ts)"),
                "4:57 EVERY_EVENT_IS_A_VERSION `loaded_at` is kept and tracked in `silver`: it changes with every event, so each one opens a version | COLUMNS * EXCEPT (loaded_at), or TRACK HISTORY ON * EXCEPT (loaded_at)",
            ),
        ] {
            assert_eq!(lints(&format!("{BRONZE}{TAGGED}{rest}")), [expected], "{rest}");
        }
    }
}
