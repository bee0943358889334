//! Delta tables of others as a source: their rows at a version, and the rows appended since another.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use futures::{StreamExt, TryStreamExt, stream};

use crate::error::{Error, Result};
use crate::lake::external::ExternalTable;
use crate::lake::{Lake, RowStream};

/// How a table is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeltaOptions {
    /// Commits that change or remove rows are passed over, instead of being an error.
    pub skip_change_commits: bool,
}

/// A Delta table outside the pipeline.
#[derive(Clone, Debug)]
pub struct DeltaSource {
    table: ExternalTable,
    options: DeltaOptions,
    schema: SchemaRef,
}

impl DeltaSource {
    /// Opens the table at a path or URL. Its schema is the one of the newest version, and stays that.
    ///
    /// # Errors
    /// `SOURCE_NOT_FOUND`, `SOURCE_NOT_READABLE` (external), naming the table; `UNSUPPORTED_STORAGE`,
    /// `UNSUPPORTED_DATA_TYPE` (user).
    pub async fn open(location: &str, options: DeltaOptions) -> Result<DeltaSource> {
        DeltaSource::of(ExternalTable::open(location).await?, options).await
    }

    /// Opens the table at a location in a lake.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn in_lake(lake: &Lake, location: &str, options: DeltaOptions) -> Result<DeltaSource> {
        DeltaSource::of(ExternalTable::in_lake(lake, location), options).await
    }

    async fn of(table: ExternalTable, options: DeltaOptions) -> Result<DeltaSource> {
        let (_, schema) = table.latest().await?;
        Ok(DeltaSource { table, options, schema })
    }

    /// Path or URL, for people.
    pub fn location(&self) -> String {
        self.table.location()
    }

    /// The rows' schema.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The newest version of the table now.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn latest_version(&self) -> Result<i64> {
        Ok(self.table.latest().await?.0)
    }

    /// All rows at a version.
    ///
    /// # Errors
    /// `SOURCE_NOT_READABLE` (external), also if the table no longer has the version.
    pub async fn snapshot(&self, version: i64) -> Result<RowStream> {
        self.table.rows_at(version, &self.schema).await
    }

    /// The rows that versions after `from` and up to `to` appended, version by version. Commits that only move rows to
    /// other files add nothing.
    ///
    /// Costs one reading of the log for each version that appended something.
    ///
    /// # Errors
    /// Before the first row, so that nothing is read in half: `SOURCE_TABLE_CHANGED` (external) if a version changed or
    /// removed rows; `SOURCE_SCHEMA_CHANGED` (external) if one changed the type of a column; `SOURCE_VERSION_GONE`
    /// (external). Items: `SOURCE_NOT_READABLE` (external).
    pub async fn appended(&self, from: i64, to: i64) -> Result<RowStream> {
        let mut versions = Vec::new();
        let mut redefined = false;
        for version in from.saturating_add(1)..=to {
            let changes = self.table.changes(version).await?;
            redefined |= changes.redefines;
            if changes.removes {
                if self.options.skip_change_commits {
                    continue;
                }
                return Err(Error::external(
                    "SOURCE_TABLE_CHANGED",
                    format!(
                        "version {version} of {} changes or removes rows, but it is read as a stream of appended rows",
                        self.location()
                    ),
                )
                .help("set skipChangeCommits, or read the table without STREAM"));
            }
            if changes.adds() {
                versions.push((version, changes));
            }
        }
        if redefined {
            self.check_schema().await?;
        }
        let (table, schema) = (self.table.clone(), Arc::clone(&self.schema));
        let rows = stream::iter(versions)
            .then(move |(version, changes)| {
                let (table, schema) = (table.clone(), Arc::clone(&schema));
                async move { table.added_rows(version, changes, &schema).await }
            })
            .try_flatten();
        Ok(rows.boxed())
    }

    /// Columns may have come or gone; those that are known must have kept their type.
    async fn check_schema(&self) -> Result<()> {
        let (_, now) = self.table.latest().await?;
        for field in self.schema.fields() {
            if let Some(found) =
                crate::lake::types::position(now.fields(), field.name()).and_then(|i| now.fields().get(i))
                && found.data_type() != field.data_type()
            {
                return Err(Error::external(
                    "SOURCE_SCHEMA_CHANGED",
                    format!(
                        "the column {} of {} was {} and is {} now",
                        field.name(),
                        self.location(),
                        field.data_type(),
                        found.data_type()
                    ),
                )
                .help("run again to take up the new schema"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {

    use arrow::array::{Int64Array, RecordBatch, StringArray};
    use arrow::datatypes::{DataType, Field, Schema};
    use deltalake::protocol::SaveMode;
    use url::Url;

    use super::*;
    use crate::lake::{Commit, Table, TableSpec};

    fn rows(values: &[i64]) -> RecordBatch {
        let schema = Schema::new(vec![Field::new("n", DataType::Int64, true), Field::new("p", DataType::Utf8, true)]);
        let parts: Vec<&str> = values.iter().map(|x| if x % 2 == 0 { "even 0/1" } else { "odd" }).collect();
        RecordBatch::try_new(
            Arc::new(schema),
            vec![Arc::new(Int64Array::from(values.to_vec())), Arc::new(StringArray::from(parts))],
        )
        .unwrap()
    }

    async fn numbers(stream: Result<RowStream>) -> Vec<i64> {
        let batches: Vec<_> = stream.unwrap().try_collect().await.unwrap();
        let mut out = Vec::new();
        for batch in &batches {
            let parts = batch.column_by_name("p").unwrap();
            let numbers = batch.column_by_name("n").unwrap();
            for row in 0..batch.num_rows() {
                let n = numbers.as_any().downcast_ref::<Int64Array>().unwrap().value(row);
                let part = parts.as_any().downcast_ref::<StringArray>().unwrap().value(row);
                assert_eq!(part, if n % 2 == 0 { "even 0/1" } else { "odd" });
                out.push(n);
            }
        }
        out.sort_unstable();
        out
    }

    fn code(result: Result<RowStream>) -> &'static str {
        match result {
            Ok(_) => panic!("no error"),
            Err(e) => e.code(),
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_partitioned_table_of_others_is_read_by_version() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a table");
        std::fs::create_dir(&path).unwrap();
        let url = Url::from_directory_path(&path).unwrap();
        let open = || async { deltalake::DeltaTable::try_from_url(url.clone()).await.unwrap() };
        open().await.write(vec![rows(&[1, 2])]).with_partition_columns(["p"]).await.unwrap();
        open().await.write(vec![rows(&[3, 4])]).await.unwrap();
        open().await.optimize().await.unwrap();
        open().await.write(vec![rows(&[5])]).await.unwrap();
        let source = DeltaSource::open(path.to_str().unwrap(), DeltaOptions::default()).await.unwrap();
        assert_eq!(source.latest_version().await.unwrap(), 3);
        assert_eq!(numbers(source.snapshot(0).await).await, [1, 2]);
        assert_eq!(numbers(source.snapshot(3).await).await, [1, 2, 3, 4, 5]);
        assert_eq!(numbers(source.appended(0, 3).await).await, [3, 4, 5]);
        assert_eq!(numbers(source.appended(2, 3).await).await, [5]);
        assert!(numbers(source.appended(3, 3).await).await.is_empty());

        open().await.write(vec![rows(&[7])]).with_save_mode(SaveMode::Overwrite).await.unwrap();
        open().await.write(vec![rows(&[8])]).await.unwrap();
        assert_eq!(code(source.appended(3, 5).await), "SOURCE_TABLE_CHANGED");
        let skipping = DeltaSource::open(url.as_str(), DeltaOptions { skip_change_commits: true }).await.unwrap();
        assert_eq!(numbers(skipping.appended(3, 5).await).await, [8]);
        std::fs::remove_file(path.join("_delta_log/00000000000000000001.json")).unwrap();
        assert_eq!(code(skipping.appended(0, 5).await), "SOURCE_VERSION_GONE");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn deletion_vectors_of_the_table_are_honoured() {
        let folder = tempfile::tempdir().unwrap();
        let lake = Lake::open(folder.path().to_str().unwrap()).await.unwrap();
        let spec = TableSpec::new("t", "t", rows(&[]).schema());
        let mut table = Table::open_or_create(&lake, spec).await.unwrap();
        let commit = |epoch, inserts: &[i64], deletes: &[i64]| Commit {
            epoch,
            inserts: vec![rows(inserts)],
            deletes: vec![rows(deletes)],
            ..Commit::default()
        };
        table.commit(commit(1, &[1, 2, 3], &[])).await.unwrap();
        table.commit(commit(2, &[4], &[2])).await.unwrap();
        table.commit(commit(3, &[5, 6], &[])).await.unwrap();
        let source = DeltaSource::in_lake(&lake, "t", DeltaOptions::default()).await.unwrap();
        assert_eq!(numbers(source.snapshot(3).await).await, [1, 3, 4, 5, 6]);
        assert_eq!(numbers(source.snapshot(1).await).await, [1, 2, 3]);
        assert_eq!(numbers(source.appended(2, 3).await).await, [5, 6]);
        assert_eq!(code(source.appended(1, 3).await), "SOURCE_TABLE_CHANGED");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_table_that_is_not_there_is_an_external_error_with_its_path() {
        let folder = tempfile::tempdir().unwrap();
        for path in ["none", "no/where"] {
            let path = folder.path().join(path);
            let error = DeltaSource::open(path.to_str().unwrap(), DeltaOptions::default()).await.unwrap_err();
            assert_eq!(error.code(), "SOURCE_NOT_FOUND");
            assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
            assert!(!path.exists());
        }
    }
}
