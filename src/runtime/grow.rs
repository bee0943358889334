//! Schemas that grow by the columns that new files have.

use super::supervisor::Supervisor;
use crate::error::{Error, Result};
use crate::lake::{Position, schemas};
use crate::plan::SourceKind;
use crate::sources::FileSource;

/// Code of the error with which an epoch ends that is to begin again with a schema that has grown.
pub(super) const SCHEMA_GREW: &str = "SCHEMA_GREW";

impl Supervisor {
    /// Gives a source the columns that its new files have and it lacks. Gives the error with which the epoch ends: what
    /// depends on the source has to be planned again.
    pub(super) fn grow(&self, source: usize, position: Option<&Position>, found: Error) -> Result<Error> {
        let source = self.plan.sources.get(source);
        let (Some(source), Some(Position::Files(files))) = (source, position) else { return Ok(found) };
        let SourceKind::Files(read) = &source.kind else { return Ok(found) };
        let Some(known) = self.io.block_on(schemas::load(&self.lake, &source.id))? else { return Ok(found) };
        let grown = FileSource::new(read)?.grown(&known, files)?;
        if grown == known {
            return Ok(found.help("its columns are not the ones that a look at the whole file finds; this is a bug"));
        }
        self.io.block_on(schemas::grow(&self.lake, &source.id, &grown))?;
        Ok(Error::external(SCHEMA_GREW, format!("the schema of the files in {} has grown", read.path))
            .details([found.message().to_owned()])
            .help("run again: the tables get the new columns"))
    }
}
