//! Options of `read_files`, by the names that Auto Loader and Spark have for them.

use std::collections::BTreeMap;

use super::csv::{self, Syntax};
use super::hints::{Hint, parse_hints};
use super::input::Charset;
use super::lenient::Lenient;
use super::names::{Effect, effect_of, unknown};
use super::pattern::Globs;
use crate::error::{Error, Result};
use crate::pipeline::parse_bytes;
use crate::plan::{Instants, Zone};

/// How a file's bytes are to be understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One JSON value a line, or values over several lines.
    Json,
    /// Separated values.
    Csv,
    /// Parquet.
    Parquet,
    /// Avro object container files.
    Avro,
    /// Lines of text, or whole texts.
    Text,
    /// Files as they are.
    Binary,
}

/// The formats, for messages.
pub(super) const FORMATS: &str = "json, csv, parquet, avro, text and binaryFile";

impl Format {
    /// From a name.
    pub(super) fn from_name(name: &str) -> Option<Format> {
        match name.to_lowercase().as_str() {
            "json" | "jsonl" | "ndjson" => Some(Format::Json),
            "csv" => Some(Format::Csv),
            "parquet" => Some(Format::Parquet),
            "avro" => Some(Format::Avro),
            "text" => Some(Format::Text),
            "binaryfile" => Some(Format::Binary),
            _ => None,
        }
    }

    /// From the end of a file name.
    pub(super) fn from_ending(end: &str) -> Option<Format> {
        match end.to_lowercase().as_str() {
            "txt" | "log" => Some(Format::Text),
            "tsv" => None,
            "text" | "binaryfile" => None,
            end => Format::from_name(end),
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

/// What becomes of fields that the schema lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evolution {
    /// The schema grows.
    AddNewColumns,
    /// They are kept as rescued data.
    Rescue,
    /// Nothing is read.
    FailOnNewColumns,
    /// They are passed over.
    None,
}

/// What becomes of files that have been read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clean {
    /// They stay.
    Off,
    /// They are removed.
    Delete,
    /// They go to this folder.
    Move(String),
}

#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) format: Option<Format>,
    pub(super) mode: Mode,
    pub(super) corrupt_column: String,
    pub(super) rescued_column: Option<String>,
    pub(super) evolution: Option<Evolution>,
    pub(super) case_sensitive: bool,
    pub(super) infer_types: Option<bool>,
    pub(super) primitives_as_string: bool,
    pub(super) hints: Vec<Hint>,
    /// All folders below with partitions from their names, if nothing is said.
    pub(super) recursive: Option<bool>,
    pub(super) partition_columns: Option<Vec<String>>,
    pub(super) name_glob: Option<Globs>,
    pub(super) modified_after: Option<i64>,
    pub(super) modified_before: Option<i64>,
    pub(super) include_existing: bool,
    pub(super) allow_overwrites: bool,
    pub(super) ignore_missing: bool,
    pub(super) ignore_corrupt: bool,
    pub(super) clean: Clean,
    /// In microseconds.
    pub(super) retention: i64,
    pub(super) max_files: usize,
    pub(super) max_bytes: Option<u64>,
    pub(super) charset: Option<Charset>,
    pub(super) line_end: Option<Vec<u8>>,
    pub(super) multi_line: bool,
    pub(super) whole_text: bool,
    pub(super) lenient: Lenient,
    pub(super) header: bool,
    pub(super) enforce_schema: Option<bool>,
    pub(super) syntax: Syntax,
    pub(super) null_value: String,
    pub(super) empty_value: String,
    pub(super) skip_rows: u64,
    pub(super) date_format: Option<String>,
    pub(super) timestamp_format: Option<String>,
    pub(super) local_format: Option<String>,
    pub(super) zone: Zone,
    /// What is said of options that have no effect, or that nobody knows.
    pub(super) warnings: Vec<(&'static str, String)>,
}

/// Thirty days in microseconds.
const RETENTION: i64 = 30 * 86_400_000_000;

impl Default for Options {
    fn default() -> Self {
        Options {
            format: None,
            mode: Mode::Permissive,
            corrupt_column: "_corrupt_record".into(),
            rescued_column: None,
            evolution: None,
            case_sensitive: true,
            infer_types: None,
            primitives_as_string: false,
            hints: Vec::new(),
            recursive: None,
            partition_columns: None,
            name_glob: None,
            modified_after: None,
            modified_before: None,
            include_existing: true,
            allow_overwrites: false,
            ignore_missing: false,
            ignore_corrupt: false,
            clean: Clean::Off,
            retention: RETENTION,
            max_files: 1000,
            max_bytes: None,
            charset: None,
            line_end: None,
            multi_line: false,
            whole_text: false,
            lenient: Lenient::default(),
            header: false,
            enforce_schema: None,
            syntax: Syntax::default(),
            null_value: String::new(),
            empty_value: String::new(),
            skip_rows: 0,
            date_format: None,
            timestamp_format: None,
            local_format: None,
            zone: Zone::utc(),
            warnings: Vec::new(),
        }
    }
}

impl Options {
    pub(super) fn parse(given: &BTreeMap<String, String>) -> Result<Options> {
        let mut options = Options::default();
        let mut moments = Vec::new();
        let mut destination = None;
        for (key, value) in given {
            let folded = key.to_lowercase();
            let name = folded.strip_prefix("cloudfiles.").unwrap_or(&folded);
            match effect_of(name, value) {
                Effect::Some => match name {
                    "modifiedafter" | "modifiedbefore" => moments.push((name == "modifiedafter", key, value)),
                    "cleansource.movedestination" | "sourcearchivedir" => destination = Some(value.clone()),
                    _ => options.set(name, key, value)?,
                },
                Effect::Default => {}
                Effect::None(why) => {
                    options.warnings.push(("OPTION_WITHOUT_EFFECT", format!("the read_files option {key} {why}")));
                }
                Effect::Refused(why) => {
                    return Err(Error::user(
                        "NOT_SUPPORTED",
                        format!("the read_files option {key} => '{value}' is not supported"),
                    )
                    .help(why));
                }
                Effect::Unknown => options.warnings.push(("UNKNOWN_OPTION", unknown(key, name))),
            }
        }
        let instants = options.instants()?;
        for (after, key, value) in moments {
            let moment = Instants::new(None, None, None, &options.zone).ok().and_then(|x| x.timestamp(value));
            let moment = moment.ok_or_else(|| {
                Error::user(
                    "INVALID_OPTION",
                    format!("the read_files option {key} is {value:?}, which is no timestamp"),
                )
            })?;
            *(if after { &mut options.modified_after } else { &mut options.modified_before }) = Some(moment);
        }
        drop(instants);
        options.clean = match (options.clean, destination) {
            (Clean::Move(_), Some(to)) if !to.is_empty() => Clean::Move(to),
            (Clean::Move(_), _) => {
                return Err(Error::user("INVALID_OPTION", "cleanSource => 'MOVE' needs a folder to move files to")
                    .help("`cloudFiles.cleanSource.moveDestination` => 'archive/orders'"));
            }
            (other, _) => other,
        };
        csv::check(&options.syntax)?;
        Ok(options)
    }

    /// How dates and times stand in texts.
    ///
    /// # Errors
    /// `INVALID_OPTION` (user) for a pattern that is none.
    pub(super) fn instants(&self) -> Result<Instants> {
        let formats = [&self.date_format, &self.timestamp_format, &self.local_format];
        let [date, timestamp, local] = formats.map(Option::as_deref);
        Instants::new(date, timestamp, local, &self.zone).map_err(|why| {
            Error::user("INVALID_OPTION", format!("a format of dates of read_files cannot be used: {why}"))
        })
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
        let byte = || match unescaped(value).as_bytes() {
            [] | [0] => Ok(None),
            [one] if one.is_ascii() => Ok(Some(*one)),
            _ => Err(wrong("one ASCII character")),
        };
        match name {
            "format" => {
                self.format = Some(Format::from_name(value).ok_or_else(|| {
                    Error::user("NOT_SUPPORTED", format!("files of the format {value} are not supported"))
                        .help(format!("{FORMATS} are"))
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
            "schemaevolutionmode" => {
                self.evolution = Some(match value.to_lowercase().as_str() {
                    "addnewcolumns" => Evolution::AddNewColumns,
                    "rescue" => Evolution::Rescue,
                    "failonnewcolumns" => Evolution::FailOnNewColumns,
                    "none" => Evolution::None,
                    "addnewcolumnswithtypewidening" => {
                        return Err(Error::user("NOT_SUPPORTED", "types of columns are not widened in place")
                            .help("addNewColumns adds columns and keeps values of other types as rescued data"));
                    }
                    _ => return Err(wrong("addNewColumns, rescue, failOnNewColumns or none")),
                });
            }
            "readercasesensitive" => self.case_sensitive = flag()?,
            "inferschema" | "infercolumntypes" => self.infer_types = Some(flag()?),
            "primitivesasstring" => self.primitives_as_string = flag()?,
            "schemahints" => self.hints = parse_hints(value)?,
            "recursivefilelookup" => self.recursive = Some(flag()?),
            "partitioncolumns" => {
                let names = value.split(',').map(str::trim).filter(|x| !x.is_empty());
                self.partition_columns = Some(names.map(str::to_owned).collect());
            }
            "pathglobfilter" | "filenamepattern" => {
                self.name_glob =
                    Some(Globs::parse(value).ok_or_else(|| wrong("a file name with *, ?, [ab] or {a,b}"))?);
            }
            "includeexistingfiles" => self.include_existing = flag()?,
            "allowoverwrites" => self.allow_overwrites = flag()?,
            "ignoremissingfiles" => self.ignore_missing = flag()?,
            "ignorecorruptfiles" => self.ignore_corrupt = flag()?,
            "cleansource" => {
                self.clean = match value.to_uppercase().as_str() {
                    "OFF" => Clean::Off,
                    "DELETE" => Clean::Delete,
                    "MOVE" | "ARCHIVE" => Clean::Move(String::new()),
                    _ => return Err(wrong("OFF, DELETE or MOVE")),
                }
            }
            "cleansource.retentionduration" => {
                self.retention = span(value).ok_or_else(|| wrong("a span of time such as '14 days'"))?;
            }
            "maxfilespertrigger" => {
                self.max_files = value.parse().ok().filter(|x| *x > 0).ok_or_else(|| wrong("a number of files"))?
            }
            "maxbytespertrigger" => {
                self.max_bytes = Some(parse_bytes(value).ok_or_else(|| wrong("a number of bytes, such as 10g"))?)
            }
            "encoding" | "charset" => {
                self.charset = Some(Charset::parse(value).ok_or_else(|| wrong("the name of an encoding"))?);
            }
            "linesep" => self.line_end = Some(unescaped(value).into_bytes()).filter(|x| !x.is_empty()),
            "multiline" => self.multi_line = flag()?,
            "wholetext" => self.whole_text = flag()?,
            "allowsinglequotes" => self.lenient.single_quotes = flag()?,
            "allownonnumericnumbers" => self.lenient.non_numbers = flag()?,
            "allowcomments" => self.lenient.comments = flag()?,
            "allowunquotedfieldnames" => self.lenient.unquoted_names = flag()?,
            "allownumericleadingzeros" => self.lenient.leading_zeros = flag()?,
            "allowbackslashescapinganycharacter" => self.lenient.any_escape = flag()?,
            "allowunquotedcontrolchars" => self.lenient.control_characters = flag()?,
            "header" => self.header = flag()?,
            "enforceschema" => self.enforce_schema = Some(flag()?),
            "sep" | "delimiter" => {
                self.syntax.separator = unescaped(value).into_bytes();
                if self.syntax.separator.is_empty() {
                    return Err(wrong("one or more characters"));
                }
            }
            "quote" => self.syntax.quote = byte()?,
            "escape" => self.syntax.escape = byte()?,
            "comment" => self.syntax.comment = byte()?,
            "nullvalue" => self.null_value = value.to_owned(),
            "emptyvalue" => self.empty_value = value.to_owned(),
            "skiprows" => self.skip_rows = value.parse().map_err(|_| wrong("a number of rows"))?,
            "ignoreleadingwhitespace" => self.syntax.trim.0 = flag()?,
            "ignoretrailingwhitespace" => self.syntax.trim.1 = flag()?,
            "dateformat" => self.date_format = Some(value.to_owned()),
            "timestampformat" => self.timestamp_format = Some(value.to_owned()),
            "timestampntzformat" => self.local_format = Some(value.to_owned()),
            "timezone" => self.zone = Zone::parse(value).ok_or_else(|| wrong("a time zone"))?,
            _ => return Err(Error::internal(format!("the read_files option {key} is known and not read"))),
        }
        Ok(())
    }
}

/// With `\t`, `\n`, `\r`, `\0` and `\\` as the characters that they stand for.
fn unescaped(text: &str) -> String {
    let mut out = String::new();
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        let after = characters.as_str();
        match (c, after.chars().next()) {
            ('\\', Some(next @ ('t' | 'n' | 'r' | '0' | '\\'))) => {
                characters.next();
                out.push(match next {
                    't' => '\t',
                    'n' => '\n',
                    'r' => '\r',
                    '0' => '\0',
                    other => other,
                });
            }
            _ => out.push(c),
        }
    }
    out
}

/// Microseconds of `30 days`, `interval 12 hours 5 minutes`.
fn span(text: &str) -> Option<i64> {
    let words: Vec<String> = text.split_whitespace().map(str::to_lowercase).collect();
    let words = words.strip_prefix(&["interval".to_owned()]).unwrap_or(&words);
    let (pairs, []) = words.as_chunks::<2>() else { return None };
    if pairs.is_empty() {
        return None;
    }
    pairs.iter().try_fold(0_i64, |total, [number, unit]| {
        let unit = match unit.trim_end_matches('s') {
            "second" => 1_000_000,
            "minute" => 60_000_000,
            "hour" => 3_600_000_000,
            "day" => 86_400_000_000,
            "week" => 604_800_000_000,
            _ => return None,
        };
        total.checked_add(i64::from(number.parse::<u32>().ok()?).checked_mul(unit)?)
    })
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
            ("cloudFiles.prefersDecimal", "false"),
        ])
        .unwrap();
        assert_eq!(options.format, Some(Format::Csv));
        assert_eq!(
            (options.syntax.separator, options.max_bytes, options.mode),
            (b"\t".to_vec(), Some(10 << 30), Mode::FailFast)
        );
    }

    #[test]
    fn what_is_unknown_wrong_or_unsupported_is_said() {
        let code = |pairs: &[(&str, &str)]| parse(pairs).unwrap_err().code();
        let said = |pairs: &[(&str, &str)]| parse(pairs).unwrap().warnings;
        let unknown = |text: &str| vec![("UNKNOWN_OPTION", format!("read_files has no option {text}"))];
        assert_eq!(said(&[("multilines", "true")]), unknown("multilines; did you mean multiLine?"));
        assert_eq!(said(&[("zzzzzzzz", "true")]), unknown("zzzzzzzz"));
        assert_eq!(
            said(&[("cloudFiles.useNotifications", "true")]).first().map(|x| x.0),
            Some("OPTION_WITHOUT_EFFECT")
        );
        assert!(said(&[("multiLine", "true"), ("locale", "en-US")]).is_empty());
        assert_eq!(code(&[("header", "yes")]), "INVALID_OPTION");
        assert_eq!(code(&[("maxBytesPerTrigger", "0")]), "INVALID_OPTION");
        assert_eq!(code(&[("sep", "||"), ("quote", "|")]), "INVALID_OPTION");
        assert_eq!(code(&[("dateFormat", "yyyy-QQ")]), "INVALID_OPTION");
        assert_eq!(code(&[("modifiedAfter", "yesterday")]), "INVALID_OPTION");
        assert_eq!(code(&[("cleanSource", "MOVE")]), "INVALID_OPTION");
        assert_eq!(code(&[("encoding", "klingon")]), "INVALID_OPTION");
        assert_eq!(code(&[("prefersDecimal", "true")]), "NOT_SUPPORTED");
        assert_eq!(code(&[("rowTag", "book")]), "NOT_SUPPORTED");
        assert_eq!(code(&[("format", "xml")]), "NOT_SUPPORTED");
        assert_eq!(code(&[("schemaEvolutionMode", "addNewColumnsWithTypeWidening")]), "NOT_SUPPORTED");
        assert_eq!(code(&[("schemaHints", "a BOGUS")]), "INVALID_SCHEMA_HINTS");
    }
}
