//! Columns in paths: `…/day=2024-01-31/…` gives every row below it a column `day`.

use std::path::Path;
use std::rc::Rc;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field, Fields, SchemaRef};
use percent_encoding::percent_decode_str;

use super::columns::{Group, Reading};
use super::infer::Kind;
use crate::error::{Error, Result};
use crate::lake::FileId;
use crate::lake::types::position;

/// What a folder is called for rows that have no value.
const NO_VALUE: &str = "__HIVE_DEFAULT_PARTITION__";

/// Which keys of paths are columns.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wanted<'a> {
    /// All that are there.
    All,
    /// These.
    Names(&'a [String]),
    None,
}

impl Wanted<'_> {
    fn has(self, name: &str) -> bool {
        match self {
            Wanted::All => true,
            Wanted::Names(names) => names.iter().any(|x| x.eq_ignore_ascii_case(name)),
            Wanted::None => false,
        }
    }
}

/// The keys and values in the folders of a path below a root, outermost first.
fn pairs<'a>(root: &Path, path: &'a str, wanted: Wanted<'a>) -> impl Iterator<Item = (String, Option<String>)> + 'a {
    let folders = Path::new(path).parent().and_then(|x| x.strip_prefix(root).ok()).unwrap_or(Path::new(""));
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    folders.components().filter_map(move |part| {
        let (name, value) = part.as_os_str().to_str()?.split_once('=')?;
        let name = decoded(name);
        (!name.is_empty() && wanted.has(&name)).then(|| (name, (value != NO_VALUE).then(|| decoded(value))))
    })
}

/// The columns that the paths of files have, with types that hold all values.
pub(super) fn columns(root: &Path, files: &[FileId], wanted: Wanted<'_>, typed: bool) -> Vec<(String, DataType)> {
    let mut found: Vec<(String, Kind)> = Vec::new();
    for file in files {
        for (name, value) in pairs(root, &file.path, wanted) {
            let kind = match value {
                Some(value) if typed => Kind::of_text(&value),
                Some(_) => Kind::Text,
                None => Kind::Null,
            };
            match found.iter_mut().find(|x| x.0.eq_ignore_ascii_case(&name)) {
                Some(known) => known.1 = std::mem::replace(&mut known.1, Kind::Null).join(kind),
                None => found.push((name, kind)),
            }
        }
    }
    found.into_iter().map(|(name, kind)| (name, kind.data_type())).collect()
}

/// The columns of a schema that the path of a file gives, each with an array of its value.
///
/// # Errors
/// `INVALID_PARTITION_VALUE` (external), naming the file, for a value that is not of its column's type.
pub(super) fn values(
    root: &Path,
    file: &FileId,
    wanted: Wanted<'_>,
    schema: &SchemaRef,
    reading: &Rc<Reading>,
) -> Result<Vec<(usize, ArrayRef)>> {
    let mut out: Vec<(usize, ArrayRef)> = Vec::new();
    for (name, value) in pairs(root, &file.path, wanted) {
        let Some((at, field)) = position(schema.fields(), &name).and_then(|at| Some((at, schema.fields().get(at)?)))
        else {
            reading.miss("", &name);
            continue;
        };
        let data_type = field.data_type();
        let mut group = Group::new(&Fields::from(vec![Field::new(&name, data_type.clone(), true)]), reading)?;
        let fits = match (value.as_deref(), group.column(0)) {
            (Some(value), Some(column)) => column.append_text(value),
            (_, column) => {
                column.into_iter().for_each(super::columns::Column::append_null);
                true
            }
        };
        if !fits {
            return Err(Error::external(
                "INVALID_PARTITION_VALUE",
                format!("{name}={} in the path of {} is no {data_type}", value.unwrap_or_default(), file.path),
            )
            .help("rename the folder, or give the column another type with schema or schemaHints"));
        }
        out.retain(|x| x.0 != at);
        out.extend(group.finish()?.into_iter().next().map(|value| (at, value)));
    }
    Ok(out)
}
