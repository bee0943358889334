//! `silverflow query`.

use std::collections::BTreeSet;

use arrow::array::RecordBatch;
use clap::{Args, ValueEnum};
use silverflow::error::{Error, Result};
use silverflow::runtime::{self, QueryResult};

use super::{Project, print};

/// Arguments of `query`.
#[derive(Args)]
pub(super) struct Query {
    #[command(flatten)]
    project: Project,
    /// How to show the rows.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Shows every table as it was at the end of this epoch; the last complete one otherwise.
    #[arg(long, value_name = "EPOCH")]
    as_of_epoch: Option<u64>,
    /// A SELECT.
    #[arg(allow_hyphen_values = true)]
    sql: String,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    /// Lined up for reading.
    Table,
    /// One JSON object a line.
    Json,
    /// Comma-separated values with a header.
    Csv,
}

impl Query {
    pub(super) fn run(&self) -> Result<()> {
        let loaded = self.project.load()?;
        let result = match self.as_of_epoch {
            Some(epoch) => runtime::query_as_of(&loaded.pipeline, &self.sql, epoch)?,
            None => runtime::query(&loaded.pipeline, &self.sql)?,
        };
        print(&self.render(&result)?)
    }

    fn render(&self, result: &QueryResult) -> Result<String> {
        let wrong = |e| Error::internal("the rows cannot be shown").caused_by(e);
        let batches: &[RecordBatch] = &result.batches;
        match self.format {
            Format::Table => {
                let empty = [RecordBatch::new_empty(result.schema.clone())];
                let shown = if batches.is_empty() { &empty } else { batches };
                let table = arrow::util::pretty::pretty_format_batches(shown).map_err(wrong)?;
                Ok(format!("{table}\n"))
            }
            Format::Json => {
                let mut names = BTreeSet::new();
                if let Some(twice) = result.schema.fields().iter().find(|f| !names.insert(f.name())) {
                    return Err(Error::user("DUPLICATE_COLUMN", format!("two columns are named {}", twice.name()))
                        .help("name them apart with AS: a JSON object has each name once"));
                }
                silverflow::rows::json_lines(batches).map_err(wrong)
            }
            Format::Csv => {
                let mut writer = arrow::csv::WriterBuilder::new().with_header(true).build(Vec::new());
                let empty = [RecordBatch::new_empty(result.schema.clone())];
                for batch in if batches.is_empty() { &empty } else { batches } {
                    writer.write(batch).map_err(|e| {
                        Error::user("CSV_NOT_POSSIBLE", "CSV has no form for a column of this type")
                            .caused_by(e)
                            .help("use --format json, or select plain columns")
                    })?;
                }
                Ok(String::from_utf8_lossy(&writer.into_inner()).into_owned())
            }
        }
    }
}
