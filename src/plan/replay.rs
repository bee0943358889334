//! Which streaming tables are replay points: stored exactly as the outside gives them, so that everything downstream can be
//! rebuilt from them. Whoever else reads the outside gets a private replay point.

use std::collections::BTreeSet;

use datafusion::logical_expr::LogicalPlan;

use crate::pipeline::DatasetKind;

/// What decides it for one dataset.
pub(super) struct Candidate<'a> {
    pub(super) kind: DatasetKind,
    /// The only query that feeds it, if there is just one.
    pub(super) query: Option<&'a LogicalPlan>,
    /// What it reads.
    pub(super) reads: Vec<Reads>,
}

/// One relation of a dataset's flows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reads {
    /// Appended rows from outside.
    Stream,
    /// Current rows of something outside.
    Snapshot,
    /// A dataset, by index.
    Dataset(usize),
}

/// Indices of the replay points and of the views that are part of their queries.
///
/// A table qualifies if its one query makes each row from one row of one stream, directly or through views that only such
/// tables read.
pub(super) fn replay_points(datasets: &[Candidate<'_>]) -> BTreeSet<usize> {
    let mut chosen: BTreeSet<usize> = datasets
        .iter()
        .enumerate()
        .filter(|(_, d)| d.kind != DatasetKind::MaterializedView && d.query.is_some_and(row_wise) && d.reads.len() == 1)
        .map(|(i, _)| i)
        .collect();
    loop {
        let keeps = |index: usize| {
            let Some(dataset) = datasets.get(index) else { return false };
            let fed = match dataset.reads.first() {
                Some(Reads::Stream) => true,
                Some(Reads::Dataset(from)) => {
                    chosen.contains(from) && datasets.get(*from).is_some_and(|d| d.kind == DatasetKind::TemporaryView)
                }
                Some(Reads::Snapshot) | None => false,
            };
            let private = dataset.kind != DatasetKind::TemporaryView
                || datasets
                    .iter()
                    .enumerate()
                    .all(|(reader, d)| !d.reads.contains(&Reads::Dataset(index)) || chosen.contains(&reader));
            fed && private
        };
        let kept: BTreeSet<usize> = chosen.iter().copied().filter(|i| keeps(*i)).collect();
        if kept == chosen {
            return kept;
        }
        chosen = kept;
    }
}

fn row_wise(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::TableScan(_) => true,
        LogicalPlan::Projection(p) => row_wise(&p.input),
        LogicalPlan::Filter(f) => row_wise(&f.input),
        LogicalPlan::SubqueryAlias(a) => row_wise(&a.input),
        LogicalPlan::Unnest(u) => row_wise(&u.input),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view<'a>(plan: &'a LogicalPlan, reads: Reads) -> Candidate<'a> {
        Candidate { kind: DatasetKind::TemporaryView, query: Some(plan), reads: vec![reads] }
    }

    fn table<'a>(plan: &'a LogicalPlan, reads: Reads) -> Candidate<'a> {
        Candidate { kind: DatasetKind::StreamingTable, query: Some(plan), reads: vec![reads] }
    }

    #[test]
    fn a_view_that_anyone_else_reads_is_no_part_of_a_replay_point() {
        let plan = datafusion::logical_expr::logical_plan::builder::table_scan(
            Some("$0"),
            &arrow::datatypes::Schema::new(vec![arrow::datatypes::Field::new(
                "a",
                arrow::datatypes::DataType::Int64,
                true,
            )]),
            None,
        )
        .and_then(|b| b.build());
        let Ok(plan) = plan else { unreachable!("a scan of one column") };
        let merge = Candidate { kind: DatasetKind::StreamingTable, query: None, reads: vec![Reads::Dataset(0)] };
        let shared = [view(&plan, Reads::Stream), table(&plan, Reads::Dataset(0)), merge];
        assert!(replay_points(&shared).is_empty());
        let alone = [view(&plan, Reads::Stream), table(&plan, Reads::Dataset(0))];
        assert_eq!(replay_points(&alone), BTreeSet::from([0, 1]));
        let chained = [table(&plan, Reads::Stream), table(&plan, Reads::Dataset(0))];
        assert_eq!(replay_points(&chained), BTreeSet::from([0]));
    }
}
