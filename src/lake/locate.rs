//! Finding the rows that an epoch takes away: the indexes of files propose positions, the rows there are read and compared.

use std::collections::BTreeMap;
use std::sync::Arc;

use roaring::RoaringBitmap;

use super::data::{DataFile, rows_at};
use super::difference::Difference;
use super::index::{Position, RowHash, RowHasher, short};
use super::storage::blocking;
use super::table::Table;
use super::types::stored_schema;
use crate::error::{Error, Result};

/// Looking up so many times fewer rows than a file has costs less than a pass over all of them.
const SPARSE: usize = 16;

/// A place to look at: the row in the file, and which wanted hash.
type Place = (u32, usize);

/// Rows of one hash that are still to be found.
struct Wanted {
    hash: RowHash,
    /// How many of each of the differing rows of that hash.
    left: Vec<usize>,
    /// Places up to here were looked at.
    seen: Option<Position>,
    /// How many more places are to be looked at now.
    open: usize,
}

impl Wanted {
    /// Asks for places among these rows of a file.
    fn propose(&mut self, file: u32, rows: &[u32], dead: &RoaringBitmap, mut place: impl FnMut(u32)) {
        for row in rows {
            let position = Position { file, row: *row };
            if self.open > 0 && self.seen.is_none_or(|seen| position > seen) && !dead.contains(*row) {
                place(*row);
                self.seen = Some(position);
                self.open -= 1;
            }
        }
    }
}

/// What was found at a place: of which wanted hash, where, and which of its rows is there, if any.
struct Looked {
    at: usize,
    position: Position,
    which: Option<usize>,
}

impl Table {
    /// Finds every row to delete; of equal rows those at the lowest positions. All files have been learned.
    ///
    /// Costs a few steps for each row and file, and the reading of the pages in which the rows are.
    pub(crate) async fn locate(&self, difference: &Arc<Difference>) -> Result<Vec<Position>> {
        let mut found = Vec::new();
        let counts = difference.deletes.iter();
        let mut wanted: Vec<Wanted> = counts
            .map(|(hash, going)| {
                let left = going.iter().map(|x| x.count).collect();
                Wanted { hash: *hash, left, seen: None, open: 0 }
            })
            .collect();
        // As files have them.
        wanted.sort_unstable_by_key(|x| x.hash);
        while !wanted.is_empty() {
            let places = self.propose(&mut wanted)?;
            let hashes: Vec<RowHash> = wanted.iter().map(|x| x.hash).collect();
            for Looked { at, position, which } in self.look(difference, hashes, places).await? {
                let Some(row) = wanted.get_mut(at) else { continue };
                if let Some(left) = which.and_then(|x| row.left.get_mut(x))
                    && *left > 0
                {
                    *left -= 1;
                    found.push(position);
                }
            }
            wanted.retain(|x| x.left.iter().any(|count| *count > 0));
        }
        Ok(found)
    }

    /// Places that have not been looked at, as many for each hash as there are rows to be found.
    fn propose(&self, wanted: &mut [Wanted]) -> Result<BTreeMap<u32, Vec<Place>>> {
        let mut places: BTreeMap<u32, Vec<Place>> = BTreeMap::new();
        for row in wanted.iter_mut() {
            row.open = row.left.iter().sum();
        }
        let mut open: Vec<usize> = (0..wanted.len()).collect();
        for (id, file) in &self.files {
            let known = self.index.as_ref().and_then(|x| x.get(id));
            let index = &known.ok_or_else(|| Error::internal("a file whose rows are not known"))?.index;
            let hashes = open.iter().filter_map(|at| wanted.get(*at)).map(|row| short(&row.hash));
            let mut candidates: Vec<(usize, &[u32])> = Vec::new();
            if open.len() * SPARSE > index.len() {
                index.merge(hashes, |ordinal, rows| candidates.push((ordinal, rows)));
            } else {
                candidates.extend(hashes.map(|hash| index.places(hash)).enumerate());
            }
            for (ordinal, rows) in candidates.into_iter().filter(|x| !x.1.is_empty()) {
                let Some(at) = open.get(ordinal) else { continue };
                let Some(row) = wanted.get_mut(*at) else { continue };
                row.propose(*id, rows, &file.dead, |place| places.entry(*id).or_default().push((place, *at)));
            }
            open.retain(|at| wanted.get(*at).is_some_and(|row| row.open > 0));
            if open.is_empty() {
                return Ok(places);
            }
        }
        for at in open {
            let Some(row) = wanted.get(at) else { continue };
            let missing: usize = row.left.iter().sum();
            if row.open == missing {
                let table = self.location();
                return Err(Error::internal(format!("{missing} rows to delete are not in the table {table}")));
            }
        }
        Ok(places)
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
                    let Some((row, at)) = places.next() else { return };
                    let going = hashes.get(at).and_then(|hash| difference.deletes.get(hash));
                    let which = going.into_iter().flatten().position(|x| *x.row == *bytes);
                    looked.push(Looked { at, position: Position { file: id, row }, which });
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
