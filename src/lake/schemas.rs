//! Schemas that were inferred once and hold from then on.

use arrow::datatypes::{Schema, SchemaRef};
use deltalake::kernel::StructType;

use super::storage::Lake;
use super::types::{from_delta, stored_schema, to_delta};
use crate::error::{Error, Result};

fn location(lake: &Lake, source: &str) -> String {
    // The name tells people what it is, the hash tells sources apart.
    let readable: String = source.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(60).collect();
    format!(
        "{}/{readable}-{:016x}.json",
        lake.private_location("schemas"),
        xxhash_rust::xxh3::xxh3_64(source.as_bytes())
    )
}

/// The schema of a source that was saved before.
///
/// # Errors
/// `SCHEMA_DAMAGED` (external), naming the file; external errors of the storage.
pub async fn load(lake: &Lake, source: &str) -> Result<Option<SchemaRef>> {
    let path = location(lake, source);
    let Some(bytes) = lake.get(&path).await? else { return Ok(None) };
    let damaged = |e| Error::external("SCHEMA_DAMAGED", format!("cannot use {}", lake.display(&path))).caused_by(e);
    let schema: StructType = serde_json::from_slice(&bytes).map_err(damaged)?;
    from_delta(&schema).map(Some)
}

/// Saves the schema of a source, unless one is saved already; gives the one that holds.
///
/// # Errors
/// As [`load`]; `UNSUPPORTED_DATA_TYPE` (user) for a type that no table can hold.
pub async fn save(lake: &Lake, source: &str, schema: &Schema) -> Result<SchemaRef> {
    let stored = stored_schema(schema)?;
    let text = serde_json::to_vec(&to_delta(&stored)?)
        .map_err(|e| Error::internal("a schema has no JSON form").caused_by(e))?;
    if lake.put_new(&location(lake, source), text).await? {
        return Ok(stored);
    }
    load(lake, source)
        .await?
        .ok_or_else(|| Error::external("STORAGE_FAILED", format!("the schema of {source} vanished")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::{DataType, Field, TimeUnit};

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn the_first_schema_holds() {
        let folder = tempfile::tempdir().unwrap();
        let lake = Lake::open(folder.path().to_str().unwrap()).await.unwrap();
        assert!(load(&lake, "a/b*.json").await.unwrap().is_none());
        let first = Schema::new(vec![
            Field::new("s", DataType::List(Arc::new(Field::new("element", DataType::Utf8, true))), true),
            Field::new("t", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), true),
        ]);
        assert_eq!(save(&lake, "a/b*.json", &first).await.unwrap().as_ref(), &first);
        let second = Schema::new(vec![Field::new("s", DataType::Int64, true)]);
        assert_eq!(save(&lake, "a/b*.json", &second).await.unwrap().as_ref(), &first);
        assert_eq!(load(&lake, "a/b*.json").await.unwrap().unwrap().as_ref(), &first);
        assert!(load(&lake, "a/b_.json").await.unwrap().is_none());
    }
}
