//! Tables in SQL: the rows of a Delta table at a fixed version, as a DataFusion table.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::catalog::memory::{MemoryCatalogProvider, MemorySchemaProvider};
use datafusion::prelude::SessionContext;

use super::storage::Lake;
use super::table::{Table, files_at};
use crate::error::{Error, Result};
use crate::pipeline::TableName;

/// A Delta table at a version (the newest if none is given) for DataFusion; `None` if there is no table.
///
/// # Errors
/// `TABLE_NOT_READABLE` (external) if the log cannot be read or has no such version.
pub async fn provider(lake: &Lake, location: &str, version: Option<i64>) -> Result<Option<Arc<dyn TableProvider>>> {
    let Some(delta) = lake.load_delta(location, version).await? else { return Ok(None) };
    let provider = delta.table_provider().await.map_err(|e| {
        Error::external("TABLE_NOT_READABLE", format!("cannot read the table {}", lake.display(location))).caused_by(e)
    })?;
    Ok(Some(provider))
}

/// Whether a version of a table can still be read as a whole; otherwise its files, or the entries that name them, have been
/// removed since. Lists the table's folder, and reads its log and its vectors.
///
/// # Errors
/// `TABLE_NOT_READABLE` (external) if not even the newest version can be read; external errors of the storage.
pub async fn is_kept(lake: &Lake, location: &str, version: i64) -> Result<bool> {
    let Ok(files) = files_at(lake, location, version).await else {
        // Damage would show in the newest version as well.
        return Table::open(lake, location).await.map(|_| false);
    };
    let names: BTreeSet<String> = lake.list(location).await?.into_iter().collect();
    Ok(files.iter().all(|file| names.contains(&file.path)))
}

/// Registers a dataset's table under its full name, at a version; says whether there is such a table. Catalog and
/// schema are made as needed, all names in lower case.
///
/// # Errors
/// As [`provider`].
pub async fn register(context: &SessionContext, lake: &Lake, name: &TableName, version: Option<i64>) -> Result<bool> {
    let Some(provider) = provider(lake, &lake.table_location(name), version).await? else { return Ok(false) };
    let failed = |e| Error::internal(format!("the table {name} cannot be registered")).caused_by(e);
    let (catalog_name, schema_name) = (name.catalog.to_lowercase(), name.schema.to_lowercase());
    let catalog = context.catalog(&catalog_name).unwrap_or_else(|| {
        let catalog: Arc<dyn datafusion::catalog::CatalogProvider> = Arc::new(MemoryCatalogProvider::new());
        context.register_catalog(&catalog_name, Arc::clone(&catalog));
        catalog
    });
    let schema = match catalog.schema(&schema_name) {
        Some(schema) => schema,
        None => {
            let schema: Arc<dyn datafusion::catalog::SchemaProvider> = Arc::new(MemorySchemaProvider::new());
            catalog.register_schema(&schema_name, Arc::clone(&schema)).map_err(failed)?;
            schema
        }
    };
    let table = name.table.to_lowercase();
    schema.deregister_table(&table).map_err(failed)?;
    schema.register_table(table, provider).map_err(failed)?;
    Ok(true)
}
