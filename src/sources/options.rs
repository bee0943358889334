//! Options of `read_files`, by Auto Loader's names.

use std::collections::BTreeMap;

use super::hints::{Hint, parse_hints};
use crate::error::{Error, Result};
use crate::pipeline::parse_bytes;

/// How a file's bytes are to be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One JSON value a line, or values over several lines.
    Json,
    /// Separated values.
    Csv,
    /// Parquet.
    Parquet,
}

impl Format {
    /// From a name or the end of a file name.
    pub(super) fn from_name(name: &str) -> Option<Format> {
        match name.to_lowercase().as_str() {
            "json" | "jsonl" | "ndjson" => Some(Format::Json),
            "csv" => Some(Format::Csv),
            "parquet" => Some(Format::Parquet),
            _ => None,
        }
    }
}

/// What happens to a record that cannot be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Nulls where nothing fits.
    Permissive,
    /// Left out and counted.
    DropMalformed,
    /// Nothing is read.
    FailFast,
}

#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) format: Option<Format>,
    pub(super) mode: Mode,
    pub(super) corrupt_column: String,
    pub(super) rescued_column: Option<String>,
    pub(super) rescue_inferred: bool,
    pub(super) infer_types: Option<bool>,
    pub(super) hints: Vec<Hint>,
    pub(super) recursive: bool,
    pub(super) name_glob: Option<glob::Pattern>,
    pub(super) max_files: usize,
    pub(super) max_bytes: Option<u64>,
    pub(super) multi_line: bool,
    pub(super) header: bool,
    pub(super) separator: u8,
    pub(super) quote: Option<u8>,
    pub(super) escape: Option<u8>,
    pub(super) comment: Option<u8>,
    pub(super) null_value: Option<String>,
    pub(super) trim: (bool, bool),
}

impl Default for Options {
    fn default() -> Self {
        Options {
            format: None,
            mode: Mode::Permissive,
            corrupt_column: "_corrupt_record".into(),
            rescued_column: None,
            rescue_inferred: true,
            infer_types: None,
            hints: Vec::new(),
            recursive: false,
            name_glob: None,
            max_files: 1000,
            max_bytes: None,
            multi_line: false,
            header: false,
            separator: b',',
            quote: Some(b'"'),
            escape: Some(b'\\'),
            comment: None,
            null_value: None,
            trim: (false, false),
        }
    }
}

/// Options that are understood.
const KNOWN: [&str; 23] = [
    "format",
    "mode",
    "columnNameOfCorruptRecord",
    "rescuedDataColumn",
    "schemaEvolutionMode",
    "inferSchema",
    "inferColumnTypes",
    "schemaHints",
    "recursiveFileLookup",
    "pathGlobFilter",
    "fileNamePattern",
    "maxFilesPerTrigger",
    "maxBytesPerTrigger",
    "multiLine",
    "header",
    "sep",
    "delimiter",
    "quote",
    "escape",
    "comment",
    "nullValue",
    "ignoreLeadingWhiteSpace",
    "ignoreTrailingWhiteSpace",
];

/// Options that exist elsewhere, with the only value that holds here.
const FIXED: [(&str, &str); 24] = [
    ("allowOverwrites", "false"),
    ("includeExistingFiles", "true"),
    ("ignoreMissingFiles", "false"),
    ("ignoreCorruptFiles", "false"),
    ("useNotifications", "false"),
    ("readerCaseSensitive", "false"),
    ("encoding", "utf-8"),
    ("charset", "utf-8"),
    ("compression", "none"),
    ("lineSep", "\n"),
    ("timeZone", "utc"),
    ("primitivesAsString", "false"),
    ("prefersDecimal", "false"),
    ("cleanSource", "off"),
    ("schemaLocation", ""),
    ("partitionColumns", ""),
    ("modifiedAfter", ""),
    ("modifiedBefore", ""),
    ("maxFileAge", ""),
    ("timestampFormat", ""),
    ("timestampNTZFormat", ""),
    ("dateFormat", ""),
    ("emptyValue", ""),
    ("samplingRatio", "1.0"),
];

impl Options {
    pub(super) fn parse(given: &BTreeMap<String, String>) -> Result<Options> {
        let mut options = Options::default();
        for (key, value) in given {
            let folded = key.to_lowercase();
            let name = folded.strip_prefix("cloudfiles.").unwrap_or(&folded);
            if let Some((name, only)) = FIXED.iter().find(|x| x.0.eq_ignore_ascii_case(name)) {
                if value.eq_ignore_ascii_case(only) {
                    continue;
                }
                let held = if only.is_empty() { String::new() } else { format!(" (it is {only} here)") };
                return Err(Error::user(
                    "NOT_SUPPORTED",
                    format!("the read_files option {name} is not supported{held}"),
                ));
            }
            options.set(name, key, value)?;
        }
        Ok(options)
    }

    fn set(&mut self, name: &str, key: &str, value: &str) -> Result<()> {
        let wrong = |wanted: &str| {
            Error::user("INVALID_OPTION", format!("the read_files option {key} is {value:?}, it must be {wanted}"))
        };
        let flag = || match value.to_lowercase().as_str() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(wrong("true or false")),
        };
        let byte = || match value {
            "" => Ok(None),
            "\\t" => Ok(Some(b'\t')),
            _ => match value.as_bytes() {
                [one] if one.is_ascii() => Ok(Some(*one)),
                _ => Err(wrong("one ASCII character")),
            },
        };
        let globbed = || glob::Pattern::new(value).map(Some).map_err(|_| wrong("a file name with * and ?"));
        match name {
            "format" => {
                self.format = Some(Format::from_name(value).ok_or_else(|| {
                    Error::user("NOT_SUPPORTED", format!("files of the format {value} are not supported"))
                        .help("json, csv and parquet are")
                })?);
            }
            "mode" => {
                self.mode = match value.to_uppercase().as_str() {
                    "PERMISSIVE" => Mode::Permissive,
                    "DROPMALFORMED" => Mode::DropMalformed,
                    "FAILFAST" => Mode::FailFast,
                    _ => return Err(wrong("PERMISSIVE, DROPMALFORMED or FAILFAST")),
                }
            }
            "columnnameofcorruptrecord" => self.corrupt_column = value.to_owned(),
            "rescueddatacolumn" => self.rescued_column = Some(value.to_owned()).filter(|x| !x.is_empty()),
            "schemaevolutionmode" => match value.to_lowercase().as_str() {
                "rescue" => self.rescue_inferred = true,
                "none" => self.rescue_inferred = false,
                "addnewcolumns" | "failonnewcolumns" | "addnewcolumnswithtypewidening" => {
                    return Err(Error::user(
                        "NOT_SUPPORTED",
                        format!("the schemaEvolutionMode {value} is not supported"),
                    )
                    .help("rescue and none are; a schema that was inferred stays as it is"));
                }
                _ => return Err(wrong("rescue or none")),
            },
            "inferschema" | "infercolumntypes" => self.infer_types = Some(flag()?),
            "schemahints" => self.hints = parse_hints(value)?,
            "recursivefilelookup" => self.recursive = flag()?,
            "pathglobfilter" | "filenamepattern" => self.name_glob = globbed()?,
            "maxfilespertrigger" => {
                self.max_files = value.parse().ok().filter(|x| *x > 0).ok_or_else(|| wrong("a number of files"))?
            }
            "maxbytespertrigger" => {
                self.max_bytes = Some(parse_bytes(value).ok_or_else(|| wrong("a number of bytes, such as 10g"))?)
            }
            "multiline" => self.multi_line = flag()?,
            "header" => self.header = flag()?,
            "sep" | "delimiter" => self.separator = byte()?.ok_or_else(|| wrong("one ASCII character"))?,
            "quote" => self.quote = byte()?,
            "escape" => self.escape = byte()?,
            "comment" => self.comment = byte()?,
            "nullvalue" => self.null_value = Some(value.to_owned()),
            "ignoreleadingwhitespace" => self.trim.0 = flag()?,
            "ignoretrailingwhitespace" => self.trim.1 = flag()?,
            _ => {
                let error = Error::user("UNKNOWN_OPTION", format!("read_files has no option {key}"));
                let near = KNOWN
                    .iter()
                    .map(|x| (strsim::damerau_levenshtein(&x.to_lowercase(), name), x))
                    .min()
                    .filter(|(distance, x)| *distance <= 1 + x.len() / 4);
                return Err(match near {
                    Some((_, near)) => error.help(format!("did you mean {near}?")),
                    None => error,
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<Options> {
        Options::parse(&pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
    }

    #[test]
    fn names_count_in_any_case_and_with_the_prefix() {
        let options = parse(&[
            ("cloudFiles.FORMAT", "CSV"),
            ("Delimiter", "\\t"),
            ("cloudfiles.maxBytesPerTrigger", "10g"),
            ("mode", "failfast"),
            ("cloudFiles.useNotifications", "false"),
        ])
        .unwrap();
        assert_eq!(options.format, Some(Format::Csv));
        assert_eq!((options.separator, options.max_bytes, options.mode), (b'\t', Some(10 << 30), Mode::FailFast));
    }

    #[test]
    fn what_is_unknown_wrong_or_unsupported_is_said() {
        let code = |pairs: &[(&str, &str)]| parse(pairs).unwrap_err().code();
        let error = parse(&[("multilines", "true")]).unwrap_err();
        assert_eq!((error.code(), error.advice()), ("UNKNOWN_OPTION", Some("did you mean multiLine?")));
        assert_eq!(parse(&[("zzzzzzzz", "true")]).unwrap_err().advice(), None);
        assert_eq!(code(&[("header", "yes")]), "INVALID_OPTION");
        assert_eq!(code(&[("maxBytesPerTrigger", "0")]), "INVALID_OPTION");
        assert_eq!(code(&[("sep", "||")]), "INVALID_OPTION");
        assert_eq!(code(&[("format", "xml")]), "NOT_SUPPORTED");
        assert_eq!(code(&[("allowOverwrites", "true")]), "NOT_SUPPORTED");
        assert_eq!(code(&[("schemaEvolutionMode", "addNewColumns")]), "NOT_SUPPORTED");
        assert_eq!(code(&[("schemaHints", "a BOGUS")]), "INVALID_SCHEMA_HINTS");
    }
}
