//! `silverflow init`.

use clap::Args;
use silverflow::error::{Error, Result};
use silverflow::project;

use super::print;

/// Arguments of `init`.
#[derive(Args)]
pub(super) struct Init {
    /// Name of the project; a folder of that name is made here.
    name: String,
}

impl Init {
    pub(super) fn run(&self) -> Result<()> {
        let here = std::env::current_dir()
            .map_err(|e| Error::external("NO_CURRENT_FOLDER", "the current folder cannot be read").caused_by(e))?;
        let folder = project::init(&self.name, &here)?;
        print(&format!("made {}\n\n  cd {}\n  silverflow run\n", folder.display(), self.name))
    }
}
