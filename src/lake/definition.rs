//! What a table is declared to be: making it, and bringing columns, comment and properties to a new definition.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use deltalake::DeltaTable;
use deltalake::kernel::{MetadataExt, StructType};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::log::{Entry, Outcome, Writer, now_millis};
use super::storage::Lake;
use super::table::{APP_ID, Evolution, Table, TableSpec, unreadable};
use super::types::{position, stored_schema, to_delta};
use crate::error::{Error, Result};

/// Properties of Delta that a user may set; the others change what readers and writers must do.
const FREE_PROPERTIES: [&str; 4] = [
    "delta.logRetentionDuration",
    "delta.deletedFileRetentionDuration",
    "delta.enableExpiredLogCleanup",
    "delta.dataSkippingNumIndexedCols",
];
/// How long old versions of a new table can be read, unless the user says otherwise.
const RETENTION: [(&str, &str); 2] =
    [("delta.deletedFileRetentionDuration", "interval 3 days"), ("delta.logRetentionDuration", "interval 4 days")];
const NTZ: &str = "timestampNtz";
const VECTORS: &str = "deletionVectors";
const VECTORS_ENABLED: &str = "delta.enableDeletionVectors";
/// Table property that decides what becomes of a file in which rows go.
const SINK: &str = "silverflow.sink";

impl Table {
    /// Makes sure that the table can get these columns in place.
    ///
    /// # Errors
    /// As [`open_or_create`](Self::open_or_create) for a specification with this schema.
    pub fn fits(&self, name: &str, schema: &Schema) -> Result<()> {
        let wanted = stored_schema(schema)?;
        merge_fields(self.stored.fields(), wanted.fields()).map_err(|conflict| misfit(name, conflict)).map(drop)
    }

    /// Brings columns, comment and properties to the specification, in one commit if anything differs.
    pub(crate) async fn evolve(
        &mut self,
        spec: &TableSpec,
        wanted: &SchemaRef,
        mut properties: BTreeMap<String, String>,
        delta: &DeltaTable,
    ) -> Result<()> {
        let merged = merge_fields(self.stored.fields(), wanted.fields());
        let lost = lacks(self.stored.fields(), wanted.fields());
        let replaced = match (&merged, spec.evolution) {
            (Err(_), Evolution::Replace) => true,
            (Ok(_), Evolution::Follow | Evolution::Replace) => lost,
            _ => false,
        };
        let merged = match merged {
            _ if replaced => wanted.fields().clone(),
            Ok(merged) => merged,
            Err(conflict) => return Err(misfit(&spec.name, conflict)),
        };
        let state = delta.snapshot().map_err(|e| unreadable(&self.lake, &self.location, e))?;
        let metadata = state.metadata();
        let stored = Arc::new(Schema::new(merged));
        let rewrites = rewrites(&properties);
        if rewrites != self.rewrites {
            if rewrites && !replaced {
                self.drop_vectors().await?;
            } else if !rewrites {
                properties.insert(SINK.into(), "vectors".into());
            }
            properties.insert(VECTORS_ENABLED.into(), (!rewrites).to_string());
        }
        let same_schema = stored == self.stored;
        let same_comment = spec.comment.is_none() || spec.comment.as_deref() == metadata.description();
        let same_properties = properties.iter().all(|(k, v)| metadata.configuration().get(k) == Some(v));
        if same_schema && same_comment && same_properties {
            return Ok(());
        }
        let failed =
            |e: deltalake::kernel::Error| Error::internal("the table's metadata cannot be changed").caused_by(e);
        let mut changed = metadata.clone().with_schema(&to_delta(&stored)?).map_err(failed)?;
        if let Some(comment) = &spec.comment {
            changed = changed.with_description(comment.clone()).map_err(failed)?;
        }
        for (key, value) in &properties {
            changed = changed.add_config_key(key.clone(), value.clone()).map_err(failed)?;
        }
        let metadata = serde_json::to_value(&changed)
            .map_err(|e| Error::internal("the table's metadata has no JSON form").caused_by(e))?;
        let known = serde_json::to_value(state.protocol())
            .map_err(|e| Error::internal("the table's protocol has no JSON form").caused_by(e))?;
        let knows = |feature: &str| {
            let all = known.get("readerFeatures").and_then(Value::as_array);
            all.is_some_and(|all| all.iter().any(|x| x == feature))
        };
        // A feature that was there stays.
        let (ntz, vectors) = (knows(NTZ) || needs_ntz(&stored), knows(VECTORS) || !rewrites);
        let mut actions = Vec::new();
        if (ntz, vectors) != (knows(NTZ), knows(VECTORS)) {
            actions.push(protocol(ntz, vectors));
        }
        actions.push(json!({ "metaData": metadata }));
        if replaced {
            (self.replacement, self.stored, self.rewrites) = (Some(actions), stored, rewrites);
            return Ok(());
        }
        let (now, version) = (now_millis(), self.version + 1);
        let mut entry = self.entry("SET TABLE DEFINITION", Map::new(), Map::new(), now)?;
        actions.into_iter().for_each(|action| entry.push(action));
        match entry.create(&self.lake, &self.location, version, entry.bytes(), Vec::new()).await? {
            Outcome::Committed => {
                self.committed(version);
                self.stored = stored;
                self.rewrites = rewrites;
                Ok(())
            }
            Outcome::Rewritten | Outcome::Repeated | Outcome::Earlier => Err(Error::external(
                "TABLE_CHANGED_OUTSIDE",
                format!("the table {} was rewritten while it was opened", self.location()),
            )
            .help("run again")),
        }
    }
}

/// Makes a table that is not there.
pub(crate) async fn create(
    lake: &Lake,
    spec: &TableSpec,
    stored: &SchemaRef,
    properties: &BTreeMap<String, String>,
) -> Result<()> {
    let now = now_millis();
    let schema: StructType = to_delta(stored)?;
    let schema =
        serde_json::to_string(&schema).map_err(|e| Error::internal("the schema has no JSON form").caused_by(e))?;
    let mut configuration: Map<String, Value> = properties.iter().map(|(k, v)| (k.clone(), json!(v))).collect();
    let rewrites = rewrites(properties);
    if !rewrites {
        configuration.insert(VECTORS_ENABLED.into(), json!("true"));
    }
    for (key, value) in RETENTION {
        if !configuration.keys().any(|x| x.eq_ignore_ascii_case(key)) {
            configuration.insert(key.into(), json!(value));
        }
    }
    configuration.insert("delta.checkpointInterval".into(), json!(super::upkeep::CHECKPOINT_INTERVAL.to_string()));
    let writer = Writer { app_id: Uuid::new_v4().to_string(), generation: spec.generation };
    configuration.insert(APP_ID.into(), json!(writer.app_id));
    let mut metadata = json!({
        "id": Uuid::new_v4().to_string(),
        "name": spec.name,
        "format": { "provider": "parquet", "options": {} },
        "schemaString": schema,
        "partitionColumns": [],
        "configuration": configuration,
        "createdTime": now,
    });
    if let (Some(comment), Some(fields)) = (&spec.comment, metadata.as_object_mut()) {
        fields.insert("description".into(), json!(comment));
    }
    let mut entry = Entry::new(&writer, "CREATE TABLE", Map::new(), Map::new(), now);
    entry.push(protocol(needs_ntz(stored), !rewrites));
    entry.push(json!({ "metaData": metadata }));
    if writer.generation > 0 {
        entry.fence(now)?;
    }
    entry.create(lake, &spec.location, 0, entry.bytes(), Vec::new()).await.map(drop)
}

fn protocol(ntz: bool, vectors: bool) -> Value {
    let mut reader = Vec::new();
    let mut writer = vec!["invariants", "appendOnly"];
    for (needed, feature) in [(vectors, VECTORS), (ntz, NTZ)] {
        if needed {
            reader.push(feature);
            writer.push(feature);
        }
    }
    // What every reader knows has no features.
    if reader.is_empty() {
        return json!({ "protocol": { "minReaderVersion": 1, "minWriterVersion": 2 } });
    }
    json!({ "protocol": { "minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": reader, "writerFeatures": writer } })
}

fn needs_ntz(schema: &Schema) -> bool {
    fn inside(data_type: &DataType) -> bool {
        match data_type {
            DataType::Timestamp(_, None) => true,
            DataType::List(item) | DataType::Map(item, _) => inside(item.data_type()),
            DataType::Struct(fields) => fields.iter().any(|x| inside(x.data_type())),
            _ => false,
        }
    }
    schema.fields().iter().any(|x| inside(x.data_type()))
}

/// Whether touched files are rewritten instead of given vectors.
pub(crate) fn rewrites(properties: &BTreeMap<String, String>) -> bool {
    properties.get(SINK).is_some_and(|x| x.eq_ignore_ascii_case("rewrite"))
}

/// The properties that a user may set, in Delta's own spelling.
pub(crate) fn checked_properties(spec: &TableSpec) -> Result<BTreeMap<String, String>> {
    let mut checked = BTreeMap::new();
    for (key, value) in &spec.properties {
        let free = FREE_PROPERTIES.into_iter().find(|x| x.eq_ignore_ascii_case(key));
        if free.is_none() && key.to_lowercase().starts_with("delta.") || key == APP_ID {
            return Err(Error::user("UNSUPPORTED_TABLE_PROPERTY", format!("the table property {key} cannot be set"))
                .dataset(&spec.name)
                .help("silverflow decides how its tables are written; retention and data skipping can be set"));
        }
        if free.is_some_and(|x| x.ends_with("Duration")) && !is_interval(value) {
            let message = format!("the table property {key} is '{value}', which is no interval");
            return Err(Error::user("INVALID_PROPERTY_VALUE", message)
                .dataset(&spec.name)
                .help("write it like 'interval 7 days'"));
        }
        checked.insert(free.unwrap_or(key).to_owned(), value.clone());
    }
    Ok(checked)
}

/// What Delta takes for an interval: `interval`, a number, and a unit of fixed length.
fn is_interval(text: &str) -> bool {
    const UNITS: [&str; 7] = ["microsecond", "millisecond", "second", "minute", "hour", "day", "week"];
    let words: Vec<&str> = text.split_whitespace().collect();
    let [interval, number, unit] = words.as_slice() else { return false };
    *interval == "interval" && number.parse::<u32>().is_ok() && UNITS.contains(&unit.trim_end_matches('s'))
}

fn misfit(name: &str, (column, old, new): Conflict) -> Error {
    Error::user(
        "CANNOT_MERGE_INCOMPATIBLE_DATA_TYPE",
        format!("the column {column} of {name} is {old} in the table and {new} in the definition"),
    )
    .help(format!("cast the column to {old}, or replace the table: --full-refresh {name}"))
    .dataset(name)
}

/// Whether a table has columns, or members of structs, that are wanted no more.
fn lacks(table: &Fields, wanted: &Fields) -> bool {
    fn inside(old: &Field, new: &Field) -> bool {
        match (old.data_type(), new.data_type()) {
            (DataType::Struct(a), DataType::Struct(b)) => lacks(a, b),
            (DataType::List(a), DataType::List(b)) | (DataType::Map(a, _), DataType::Map(b, _)) => inside(a, b),
            _ => false,
        }
    }
    table.iter().any(|old| match position(wanted, old.name()).and_then(|i| wanted.get(i)) {
        Some(new) => inside(old, new),
        None => true,
    })
}

type Conflict = (String, DataType, DataType);

/// The table's fields with those of the definition: new ones at the end, nullable where either is. A conflict names
/// the column and both types.
fn merge_fields(table: &Fields, wanted: &Fields) -> Result<Fields, Conflict> {
    let mut merged = Vec::with_capacity(table.len());
    for old in table {
        let field = match position(wanted, old.name()).and_then(|i| wanted.get(i)) {
            Some(new) => merge_field(old, new)?,
            None => Field::new(old.name(), old.data_type().clone(), true),
        };
        merged.push(field);
    }
    for new in wanted.iter().filter(|x| position(table, x.name()).is_none()) {
        merged.push(Field::new(new.name(), new.data_type().clone(), true));
    }
    Ok(merged.into())
}

fn merge_field(old: &Field, new: &Field) -> Result<Field, Conflict> {
    let conflict = || (old.name().clone(), old.data_type().clone(), new.data_type().clone());
    let inside = |(_, _, _): Conflict| conflict();
    let data_type = match (old.data_type(), new.data_type()) {
        (a, b) if a == b => a.clone(),
        (DataType::Struct(a), DataType::Struct(b)) => DataType::Struct(merge_fields(a, b).map_err(inside)?),
        (DataType::List(a), DataType::List(b)) => DataType::List(Arc::new(merge_field(a, b).map_err(inside)?)),
        (DataType::Map(a, _), DataType::Map(b, _)) => {
            DataType::Map(Arc::new(merge_field(a, b).map_err(inside)?), false)
        }
        _ => return Err(conflict()),
    };
    Ok(Field::new(old.name(), data_type, old.is_nullable() || new.is_nullable()))
}
