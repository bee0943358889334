//! How a Delta table outside the pipeline is read: the options of a stream, by Spark's names.

use arrow::compute::kernels::cast_utils::string_to_timestamp_nanos;

use super::Name;
use super::names::near_miss;
use crate::error::{Error, Result};

/// How a Delta table outside the pipeline is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadTable {
    /// What its commits mean.
    pub mode: ReadMode,
    /// Where to begin; with all rows that are there, if absent.
    pub start: Option<StartAt>,
    /// Files after which an epoch takes no further version.
    pub max_files: Option<u64>,
    /// Bytes after which an epoch takes no further version.
    pub max_bytes: Option<u64>,
}

/// What the commits of a table mean for those who read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadMode {
    /// Rows are appended; a commit that changes or removes rows is an error.
    Append,
    /// Rows are appended; a commit that changes or removes rows is passed over, with the rows that it adds.
    SkipChangeCommits,
    /// Rows are appended; a commit that only removes rows is passed over, one that changes rows is an error.
    IgnoreDeletes,
    /// Rows come and go as they do in the table.
    Changes,
    /// Each change is a row, with `_change_type`, `_commit_version` and `_commit_timestamp`.
    ChangeFeed {
        /// Columns that identify a row: a delete and an insert of one key in one version are an update.
        keys: Vec<String>,
        /// Rows as they were before an update are given too.
        preimages: bool,
    },
}

/// Where reading begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartAt {
    /// With the changes of this version.
    Version(i64),
    /// With the changes of the version that comes next.
    Latest,
    /// With the first version that is not older, in microseconds since 1970.
    Timestamp(i64),
}

const KNOWN: [&str; 9] = [
    "skipChangeCommits",
    "ignoreDeletes",
    "readChangeFeed",
    "startingVersion",
    "startingTimestamp",
    "maxFilesPerTrigger",
    "maxBytesPerTrigger",
    "silverflow.mode",
    "silverflow.keys",
];

impl ReadTable {
    /// The rows of a table, whatever they are now.
    #[must_use]
    pub fn current() -> ReadTable {
        ReadTable { mode: ReadMode::Changes, ..ReadTable::appended() }
    }

    /// Rows that are appended to a table.
    #[must_use]
    pub fn appended() -> ReadTable {
        ReadTable { mode: ReadMode::Append, start: None, max_files: None, max_bytes: None }
    }

    /// Rows are taken back when they are in the table no more.
    pub fn retracts(&self) -> bool {
        self.mode == ReadMode::Changes
    }

    /// From the options of a stream; names count in any case.
    ///
    /// # Errors
    /// `UNKNOWN_OPTION`, `INVALID_OPTION`, `DUPLICATE_OPTION`, `CANNOT_SET_TOGETHER` (user), with the place.
    pub fn of_stream(options: &[(Name, String)]) -> Result<ReadTable> {
        let mut read = ReadTable::appended();
        let mut modes: Vec<(&Name, ReadMode)> = Vec::new();
        let mut keys: Option<(&Name, Vec<String>)> = None;
        let mut seen: Vec<String> = Vec::new();
        for (name, value) in options {
            let folded = name.text.to_lowercase();
            if seen.contains(&folded) {
                let message = format!("the option `{}` is given twice", name.text);
                return Err(Error::user("DUPLICATE_OPTION", message).at(&name.span));
            }
            let wrong = |takes: &str| {
                let message = format!("the option `{}` takes {takes}, not `{value}`", name.text);
                Error::user("INVALID_OPTION", message).at(&name.span)
            };
            let count = || value.trim().parse().ok().filter(|x: &u64| *x > 0).ok_or_else(|| wrong("a number above 0"));
            let mut mode = |mode: ReadMode| match value.trim().to_lowercase().as_str() {
                "true" => {
                    modes.push((name, mode));
                    Ok(())
                }
                "false" => Ok(()),
                _ => Err(wrong("true or false")),
            };
            match folded.as_str() {
                "skipchangecommits" => mode(ReadMode::SkipChangeCommits)?,
                "ignoredeletes" => mode(ReadMode::IgnoreDeletes)?,
                "readchangefeed" | "readchangedata" => {
                    mode(ReadMode::ChangeFeed { keys: Vec::new(), preimages: true })?;
                }
                "silverflow.mode" => match value.trim().to_lowercase().as_str() {
                    "append" => {}
                    "changes" => modes.push((name, ReadMode::Changes)),
                    _ => return Err(wrong("append or changes")),
                },
                "silverflow.keys" => {
                    let columns: Vec<String> = value.split(',').map(|x| x.trim().to_owned()).collect();
                    if columns.iter().any(String::is_empty) {
                        return Err(wrong("names of columns with commas between"));
                    }
                    keys = Some((name, columns));
                }
                "startingversion" => {
                    let version = value.trim();
                    read.start = Some(match version.parse() {
                        Ok(version) if version >= 0 => StartAt::Version(version),
                        _ if version.eq_ignore_ascii_case("latest") => StartAt::Latest,
                        _ => return Err(wrong("a version or `latest`")),
                    });
                }
                "startingtimestamp" => {
                    let nanos = string_to_timestamp_nanos(value.trim()).map_err(|_| wrong("a date or a timestamp"))?;
                    read.start = Some(StartAt::Timestamp(nanos.div_euclid(1000)));
                }
                "maxfilespertrigger" => read.max_files = Some(count()?),
                "maxbytespertrigger" => {
                    read.max_bytes = Some(bytes(value).ok_or_else(|| wrong("a number of bytes, such as 10g"))?);
                }
                "ignorechanges" => {
                    let message = "ignoreChanges would give rows again that a commit only copied";
                    return Err(Error::user("NOT_SUPPORTED", message).at(&name.span).help(
                        "skipChangeCommits = true passes such commits over; silverflow.mode = changes takes them exactly",
                    ));
                }
                _ => {
                    let message = format!("a stream of a table has no option `{}`", name.text);
                    let error = Error::user("UNKNOWN_OPTION", message).at(&name.span);
                    return Err(match near_miss(&name.text, KNOWN) {
                        Some(near) => error.help(format!("did you mean {near}?")),
                        None => error.help(format!("the options are {}", KNOWN.join(", "))),
                    });
                }
            }
            seen.push(folded);
        }
        let together = |one: &Name, other: &str| {
            let message = format!("`{}` and `{other}` exclude each other", one.text);
            Error::user("CANNOT_SET_TOGETHER", message).at(&one.span)
        };
        if let [first, second, ..] = modes.as_slice() {
            return Err(together(second.0, &first.0.text));
        }
        if let (Some(_), Some(_)) = (position(&seen, "startingversion"), position(&seen, "startingtimestamp"))
            && let Some((name, _)) =
                options.iter().find(|(name, _)| name.text.eq_ignore_ascii_case("startingTimestamp"))
        {
            return Err(together(name, "startingVersion"));
        }
        if let Some((name, mode)) = modes.pop() {
            if mode == ReadMode::Changes && read.start.is_some() {
                let message = "rows that were never read cannot be taken back";
                return Err(together(name, "startingVersion").caused_by(message));
            }
            read.mode = mode;
        }
        match (&mut read.mode, keys) {
            (ReadMode::ChangeFeed { keys, .. }, Some((_, columns))) => *keys = columns,
            (_, Some((name, _))) => {
                let message = "silverflow.keys tells updates from deletes and inserts in a change feed";
                return Err(Error::user("INVALID_OPTION", message).at(&name.span).help("add readChangeFeed = true"));
            }
            (_, None) => {}
        }
        Ok(read)
    }
}

fn position(seen: &[String], name: &str) -> Option<usize> {
    seen.iter().position(|x| x == name)
}

/// A number of bytes with or without a unit (`10g`, `512 MB`).
pub(crate) fn bytes(text: &str) -> Option<u64> {
    let text = text.trim().to_lowercase();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match text.get(digits.len()..)? {
        "" | "b" => 1,
        "k" | "kb" => 1 << 10,
        "m" | "mb" => 1 << 20,
        "g" | "gb" => 1 << 30,
        "t" | "tb" => 1 << 40,
        _ => return None,
    };
    digits.trim().parse::<u64>().ok()?.checked_mul(unit).filter(|x| *x > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_say_what_commits_mean_and_where_to_begin() {
        let feed = |keys: &[&str]| {
            format!(
                "{:?}",
                ReadMode::ChangeFeed { keys: keys.iter().map(|x| (*x).to_owned()).collect(), preimages: true }
            )
        };
        for (options, expected) in [
            ("", "Append".to_owned()),
            ("skipChangeCommits=false;silverflow.mode=append", "Append".to_owned()),
            ("SKIPCHANGECOMMITS=true", "SkipChangeCommits".to_owned()),
            ("ignoreDeletes=True;startingVersion=3", "IgnoreDeletes from Version(3)".to_owned()),
            ("silverflow.mode=changes", "Changes".to_owned()),
            ("readChangeFeed=true", feed(&[])),
            ("readChangeFeed=true;silverflow.keys=id, region", feed(&["id", "region"])),
            ("startingVersion=latest;maxFilesPerTrigger=5", "Append from Latest".to_owned()),
            (
                "startingTimestamp=1970-01-01 00:00:01;maxBytesPerTrigger=1k",
                "Append from Timestamp(1000000)".to_owned(),
            ),
            ("startingTimestamp=1970-01-02", "Append from Timestamp(86400000000)".to_owned()),
            ("skipChangeCommit=true", "UNKNOWN_OPTION did you mean skipChangeCommits?".to_owned()),
            ("skipChangeCommits=yes", "INVALID_OPTION ".to_owned()),
            ("startingVersion=-1", "INVALID_OPTION ".to_owned()),
            ("startingTimestamp=soon", "INVALID_OPTION ".to_owned()),
            ("maxFilesPerTrigger=0", "INVALID_OPTION ".to_owned()),
            ("startingVersion=1;StartingVersion=2", "DUPLICATE_OPTION ".to_owned()),
            ("startingVersion=1;startingTimestamp=1970-01-02", "CANNOT_SET_TOGETHER ".to_owned()),
            ("skipChangeCommits=true;readChangeFeed=true", "CANNOT_SET_TOGETHER ".to_owned()),
            ("silverflow.mode=changes;startingVersion=1", "CANNOT_SET_TOGETHER ".to_owned()),
            ("silverflow.keys=id", "INVALID_OPTION add readChangeFeed = true".to_owned()),
        ] {
            let pairs: Vec<(Name, String)> = options
                .split(';')
                .filter_map(|x| x.split_once('='))
                .map(|(k, v)| (Name { text: k.to_owned(), span: crate::error::Span::default() }, v.to_owned()))
                .collect();
            let found = match ReadTable::of_stream(&pairs) {
                Ok(read) => {
                    format!("{:?}{}", read.mode, read.start.map_or_else(String::new, |x| format!(" from {x:?}")))
                }
                Err(e) => format!("{} {}", e.code(), e.advice().unwrap_or_default()),
            };
            assert_eq!(found, expected, "{options}");
        }
    }

    #[test]
    fn bytes_have_units() {
        for (text, expected) in
            [("10", Some(10)), ("2 kb", Some(2048)), ("1G", Some(1 << 30)), ("0", None), ("x", None)]
        {
            assert_eq!(bytes(text), expected, "{text}");
        }
    }
}
