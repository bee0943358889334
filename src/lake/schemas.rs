//! Schemas that were inferred, and hold until they grow.

use arrow::datatypes::{Schema, SchemaRef};
use deltalake::kernel::StructType;

use super::storage::Lake;
use super::types::{from_delta, stored_schema, to_delta};
use crate::error::{Error, Result};

/// Folder of the schemas, and the beginning of the names of a source's.
fn place(lake: &Lake, source: &str) -> (String, String) {
    // The name tells people what it is, the hash tells sources apart.
    let readable: String = source.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).take(60).collect();
    (lake.private_location("schemas"), format!("{readable}-{:016x}", xxhash_rust::xxh3::xxh3_64(source.as_bytes())))
}

/// The first schema of a source has no number.
fn location(folder: &str, name: &str, version: u64) -> String {
    match version {
        0 => format!("{folder}/{name}.json"),
        _ => format!("{folder}/{name}.{version}.json"),
    }
}

/// The last schema of a source that was saved before, and its number.
async fn last(lake: &Lake, source: &str) -> Result<Option<(SchemaRef, u64)>> {
    let (folder, name) = place(lake, source);
    let version = |file: &String| match file.strip_prefix(&name)?.strip_suffix("json")? {
        "." => Some(0),
        number => number.strip_prefix('.')?.strip_suffix('.')?.parse::<u64>().ok(),
    };
    let Some(version) = lake.list(&folder).await?.iter().filter_map(version).max() else { return Ok(None) };
    let path = location(&folder, &name, version);
    let Some(bytes) = lake.get(&path).await? else { return Ok(None) };
    let damaged = |e| Error::external("SCHEMA_DAMAGED", format!("cannot use {}", lake.display(&path))).caused_by(e);
    let schema: StructType = serde_json::from_slice(&bytes).map_err(damaged)?;
    Ok(Some((from_delta(&schema)?, version)))
}

/// The schema of a source as it was saved last.
///
/// # Errors
/// `SCHEMA_DAMAGED` (external), naming the file; external errors of the storage.
pub async fn load(lake: &Lake, source: &str) -> Result<Option<SchemaRef>> {
    Ok(last(lake, source).await?.map(|(schema, _)| schema))
}

/// Saves the schema of a source, unless one is saved already; gives the one that holds.
///
/// # Errors
/// As [`load`]; `UNSUPPORTED_DATA_TYPE` (user) for a type that no table can hold.
pub async fn save(lake: &Lake, source: &str, schema: &Schema) -> Result<SchemaRef> {
    put(lake, source, schema, 0).await
}

/// Saves a schema of a source that holds from now on; if someone else has done that meanwhile, theirs does.
///
/// # Errors
/// As [`save`].
pub async fn grow(lake: &Lake, source: &str, schema: &Schema) -> Result<SchemaRef> {
    let version = last(lake, source).await?.map_or(0, |(_, version)| version + 1);
    put(lake, source, schema, version).await
}

async fn put(lake: &Lake, source: &str, schema: &Schema, version: u64) -> Result<SchemaRef> {
    let stored = stored_schema(schema)?;
    let text = serde_json::to_vec(&to_delta(&stored)?)
        .map_err(|e| Error::internal("a schema has no JSON form").caused_by(e))?;
    let (folder, name) = place(lake, source);
    if lake.put_new(&location(&folder, &name, version), text).await? {
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
        assert_eq!(grow(&lake, "a/b*.json", &second).await.unwrap().as_ref(), &second);
        assert_eq!(load(&lake, "a/b*.json").await.unwrap().unwrap().as_ref(), &second);
        for _ in 0..12 {
            grow(&lake, "a/b*.json", &first).await.unwrap();
        }
        assert_eq!(load(&lake, "a/b*.json").await.unwrap().unwrap().as_ref(), &first);
    }
}
