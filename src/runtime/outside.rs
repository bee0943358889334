//! Schemas of what lies outside, for the planner. An inferred schema is remembered, so that it never changes later.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{Field, FieldRef, Schema, SchemaRef};
use tokio::runtime::Handle;

use crate::error::{Error, Result};
use crate::lake::{Lake, Table, schemas};
use crate::pipeline::{EPOCH_COLUMN, TableName};
use crate::plan::{Outside, SourceKind};
use crate::sources::{DeltaSource, FileSource, metadata_field};

/// The world outside, as seen from a storage.
pub struct LakeOutside {
    /// The storage; absent for a dry run before the first run, which must not make it.
    pub lake: Option<Lake>,
    /// Where input and output run.
    pub io: Handle,
    /// Keep inferred schemas; `dry-run` does not.
    pub remember: bool,
    /// Flows that were renamed, and the names under which their sources are known.
    pub renamed: BTreeMap<String, String>,
}

impl Outside for LakeOutside {
    fn origin(&self, flow: &str) -> Result<String> {
        if let Some(origin) = self.renamed.get(flow) {
            return Ok(origin.clone());
        }
        match self.renamed.iter().find(|(_, origin)| *origin == flow) {
            Some((new, _)) => Err(Error::user(
                "FLOW_NAME_TAKEN",
                format!("flow {new} was named {flow} once, and what it has read is kept under that name"),
            )
            .help("give this flow another name")),
            None => Ok(flow.to_owned()),
        }
    }

    fn schema(&self, id: &str, kind: &SourceKind) -> Result<SchemaRef> {
        match kind {
            SourceKind::Files(read) => {
                let source = FileSource::new(read)?;
                if let Some(schema) = &read.schema {
                    return Ok(source.declared(schema));
                }
                if let Some(lake) = &self.lake
                    && let Some(schema) = self.io.block_on(schemas::load(lake, id))?
                {
                    return Ok(schema);
                }
                let schema = source.infer(&source.discover(|_| false, false)?)?;
                match &self.lake {
                    Some(lake) if self.remember => self.io.block_on(schemas::save(lake, id, &schema)),
                    _ => Ok(schema),
                }
            }
            SourceKind::Delta { location, read } => {
                let table = self.io.block_on(DeltaSource::open(location, read))?;
                // The epoch of arrival of another pipeline is no column of its rows.
                let columns = table.schema().fields().iter().filter(|f| f.name() != EPOCH_COLUMN);
                Ok(Arc::new(Schema::new(columns.cloned().collect::<Vec<_>>())))
            }
        }
    }

    fn warnings(&self, kind: &SourceKind) -> Vec<(&'static str, String)> {
        match kind {
            SourceKind::Files(read) => FileSource::new(read).map(|x| x.warnings().to_vec()).unwrap_or_default(),
            SourceKind::Delta { .. } => Vec::new(),
        }
    }

    fn stored(&self, name: &TableName) -> Result<Option<SchemaRef>> {
        let Some(lake) = &self.lake else { return Ok(None) };
        let table = self.io.block_on(Table::open(lake, &lake.table_location(name)))?;
        Ok(table.map(|table| {
            let own = |field: &&FieldRef| field.name() != EPOCH_COLUMN;
            Arc::new(Schema::new(table.schema().fields().iter().filter(own).cloned().collect::<Vec<_>>()))
        }))
    }

    fn metadata(&self) -> Field {
        metadata_field()
    }

    fn location(&self, name: &TableName) -> String {
        match &self.lake {
            Some(lake) => lake.display(&lake.table_location(name)),
            None => name.to_string(),
        }
    }
}
