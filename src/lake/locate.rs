//! Finding the rows that an epoch takes away: the index proposes positions, the rows there are read and compared.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::data::{DataFile, rows_at};
use super::difference::Difference;
use super::index::{Position, RowHash, RowHasher};
use super::storage::blocking;
use super::table::Table;
use super::types::stored_schema;
use crate::error::{Error, Result};

/// A row to delete, and where it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    /// Its hash.
    pub(crate) hash: RowHash,
    /// Where the index says it is.
    pub(crate) indexed: Position,
    /// Where it is.
    pub(crate) position: Position,
}

/// A place to look at: the row in the file, which wanted hash, and what the index says.
type Place = (u32, usize, Position);

/// Rows of one hash that are still to be found.
struct Wanted {
    hash: RowHash,
    /// How many of each of the differing rows of that hash.
    left: Vec<usize>,
    /// Positions that were looked at.
    seen: usize,
}

/// What was found at a place: of which wanted hash, where, and which of its rows is there, if any.
struct Looked {
    at: usize,
    indexed: Position,
    position: Position,
    which: Option<usize>,
}

impl Table {
    /// Finds every row to delete; of equal rows those at the lowest positions.
    ///
    /// Costs the reading of the pages in which the rows are.
    pub(crate) async fn locate(&self, difference: &Arc<Difference>) -> Result<Vec<Found>> {
        let mut found = Vec::new();
        if difference.deletes.is_empty() {
            return Ok(found);
        }
        let index = self.index.as_ref().ok_or_else(|| Error::internal("no index of rows"))?;
        let counts = difference.deletes.iter();
        let mut wanted: Vec<Wanted> = counts
            .map(|(hash, going)| Wanted { hash: *hash, left: going.iter().map(|x| x.count).collect(), seen: 0 })
            .collect();
        while !wanted.is_empty() {
            let mut places: BTreeMap<u32, Vec<Place>> = BTreeMap::new();
            for (at, row) in wanted.iter_mut().enumerate() {
                let missing: usize = row.left.iter().sum();
                let known = index.lowest(&row.hash, row.seen + missing);
                let fresh = known.get(row.seen..).unwrap_or_default();
                if fresh.is_empty() {
                    return Err(Error::internal(format!(
                        "{missing} rows to delete are not in the table {}",
                        self.location()
                    )));
                }
                row.seen += fresh.len();
                for indexed in fresh {
                    let position = self.moves.resolve(*indexed);
                    places.entry(position.file).or_default().push((position.row, at, *indexed));
                }
            }
            let hashes: Vec<RowHash> = wanted.iter().map(|x| x.hash).collect();
            for Looked { at, indexed, position, which } in self.look(difference, hashes, places).await? {
                let Some(row) = wanted.get_mut(at) else { continue };
                if let Some(left) = which.and_then(|x| row.left.get_mut(x))
                    && *left > 0
                {
                    *left -= 1;
                    found.push(Found { hash: row.hash, indexed, position });
                }
            }
            wanted.retain(|x| x.left.iter().any(|count| *count > 0));
        }
        Ok(found)
    }

    /// Reads the rows at some places and compares them with those that are wanted there. Lowest positions first.
    async fn look(
        &self,
        difference: &Arc<Difference>,
        hashes: Vec<RowHash>,
        places: BTreeMap<u32, Vec<Place>>,
    ) -> Result<Vec<Looked>> {
        let files = places
            .into_iter()
            .map(|(id, rows)| match self.files.get(&id) {
                Some(file) => Ok((id, file.clone(), rows)),
                None => Err(Error::internal("a row in a file that is not in the table")),
            })
            .collect::<Result<Vec<(u32, DataFile, Vec<Place>)>>>()?;
        let (lake, location) = (self.lake.clone(), self.location.clone());
        let schema = stored_schema(&self.schema)?;
        let difference = Arc::clone(difference);
        let runtime = tokio::runtime::Handle::current();
        blocking(move || {
            let hasher = RowHasher::new(&schema)?;
            let mut looked = Vec::new();
            for (id, file, mut places) in files {
                places.sort_unstable();
                let rows: Vec<u32> = places.iter().map(|x| x.0).collect();
                let batch = rows_at(&lake, &location, &file, &schema, &rows, &runtime)?;
                let mut places = places.into_iter();
                hasher.each(&batch, |_, bytes| {
                    let Some((row, at, indexed)) = places.next() else { return };
                    let going = hashes.get(at).and_then(|hash| difference.deletes.get(hash));
                    let which = going.into_iter().flatten().position(|x| *x.row == *bytes);
                    looked.push(Looked { at, indexed, position: Position { file: id, row }, which });
                })?;
                if places.next().is_some() {
                    return Err(Error::external(
                        "TABLE_NOT_READABLE",
                        format!("the data file {} has fewer rows than the log says", file.path),
                    ));
                }
            }
            Ok(looked)
        })
        .await
    }
}
