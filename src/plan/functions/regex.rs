//! Regular expressions. The `regex` crate has linear time and no look-around and back-references; a pattern with these is
//! left to `fancy_regex`, which goes back a bounded number of steps.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, ListBuilder, StringBuilder};
use arrow::datatypes::{DataType, Field};
use datafusion::common::{Result, ScalarValue, plan_err};
use fancy_regex::RegexBuilder;
use regex::Regex;

use super::function::Kind::{Int, Str};
use super::function::{Answer, Asked, Body, Call, Function, Row, Typed, fault};
use super::types::list_of;

pub(super) fn functions() -> Vec<Function> {
    vec![
        Function::new("rlike", &[Str, Str], Body::Bool(|r| compiled(r.str(1))?.is_match(r.str(0)).map(Some)))
            .also(&["regexp", "regexp_like"])
            .checked(pattern),
        Function::new("regexp_extract", &[Str, Str, Int], Body::Text(extract)).optional(1).checked(pattern),
        Function::new("regexp_extract_all", &[Str, Str, Int], Body::Arrays(texts, extract_all))
            .optional(1)
            .checked(pattern),
        Function::new("regexp_replace", &[Str, Str, Str, Int], Body::Text(replace)).optional(1).checked(pattern),
        Function::new(
            "regexp_count",
            &[Str, Str],
            Body::Int(|r| Ok(i32::try_from(compiled(r.str(1))?.matches(r.str(0))?.len()).ok())),
        )
        .checked(pattern),
        Function::new(
            "regexp_substr",
            &[Str, Str],
            Body::Text(|r| Ok(compiled(r.str(1))?.find(r.str(0))?.and_then(|m| r.str(0).get(m)).map(str::to_owned))),
        )
        .checked(pattern),
        Function::new(
            "regexp_instr",
            &[Str, Str, Int],
            Body::Int(|r| {
                let found = compiled(r.str(1))?.find(r.str(0))?.and_then(|m| r.str(0).get(..m.start));
                Ok(Some(found.and_then(|before| i32::try_from(before.chars().count() + 1).ok()).unwrap_or_default()))
            }),
        )
        .optional(1)
        .checked(pattern),
        Function::new("split", &[Str, Str, Int], Body::Arrays(texts, split)).optional(1).checked(pattern),
    ]
}

/// A pattern that is written out is looked at when the query is planned.
fn pattern(asked: &Asked<'_>) -> Result<()> {
    let Some(ScalarValue::Utf8(Some(text))) = asked.literal(1) else { return Ok(()) };
    if let Err(reason) = made(text) {
        return plan_err!("'{text}' is no regular expression: {reason}");
    }
    Ok(())
}

/// How many patterns a thread keeps.
const KEPT: usize = 256;

/// Steps that looking for one match may take where they can be exponentially many.
const STEPS: usize = 1_000_000;

/// Where groups of a match stand; the first is all of it.
type Groups = Vec<Option<Range<usize>>>;

/// A compiled pattern.
#[derive(Clone)]
enum Compiled {
    Plain(Regex),
    Backtracking(Arc<fancy_regex::Regex>),
}

fn too_long(error: &fancy_regex::Error) -> datafusion::common::DataFusionError {
    fault("REGEX_TOO_COMPLEX", format!("a regular expression tries too many ways to match a text: {error}"))
}

impl Compiled {
    fn is_match(&self, text: &str) -> Result<bool> {
        match self {
            Compiled::Plain(regex) => Ok(regex.is_match(text)),
            Compiled::Backtracking(regex) => regex.is_match(text).map_err(|e| too_long(&e)),
        }
    }

    fn find(&self, text: &str) -> Result<Option<Range<usize>>> {
        match self {
            Compiled::Plain(regex) => Ok(regex.find(text).map(|m| m.range())),
            Compiled::Backtracking(regex) => regex.find(text).map(|m| m.map(|m| m.range())).map_err(|e| too_long(&e)),
        }
    }

    fn matches(&self, text: &str) -> Result<Vec<Range<usize>>> {
        match self {
            Compiled::Plain(regex) => Ok(regex.find_iter(text).map(|m| m.range()).collect()),
            Compiled::Backtracking(regex) => {
                regex.find_iter(text).map(|m| m.map(|m| m.range()).map_err(|e| too_long(&e))).collect()
            }
        }
    }

    fn captures(&self, text: &str) -> Result<Option<Groups>> {
        match self {
            Compiled::Plain(regex) => {
                Ok(regex.captures(text).map(|c| c.iter().map(|m| m.map(|m| m.range())).collect()))
            }
            Compiled::Backtracking(regex) => regex
                .captures(text)
                .map(|c| c.map(|c| c.iter().map(|m| m.map(|m| m.range())).collect()))
                .map_err(|e| too_long(&e)),
        }
    }

    fn all_captures(&self, text: &str) -> Result<Vec<Groups>> {
        match self {
            Compiled::Plain(regex) => {
                Ok(regex.captures_iter(text).map(|c| c.iter().map(|m| m.map(|m| m.range())).collect()).collect())
            }
            Compiled::Backtracking(regex) => regex
                .captures_iter(text)
                .map(|c| c.map(|c| c.iter().map(|m| m.map(|m| m.range())).collect()).map_err(|e| too_long(&e)))
                .collect(),
        }
    }

    /// Groups, with that of the whole match.
    fn groups(&self) -> usize {
        match self {
            Compiled::Plain(regex) => regex.captures_len(),
            Compiled::Backtracking(regex) => regex.captures_len(),
        }
    }

    fn named(&self, name: &str) -> Option<usize> {
        match self {
            Compiled::Plain(regex) => regex.capture_names().position(|n| n == Some(name)),
            Compiled::Backtracking(regex) => regex.capture_names().position(|n| n == Some(name)),
        }
    }
}

thread_local! {
    static PATTERNS: RefCell<HashMap<String, Compiled>> = RefCell::new(HashMap::new());
}

/// A pattern, or in words why it is none.
fn made(pattern: &str) -> std::result::Result<Compiled, String> {
    let text = translated(pattern);
    let plain = match Regex::new(&text) {
        Ok(regex) => return Ok(Compiled::Plain(regex)),
        Err(error) => error,
    };
    // What is too large is not a matter of syntax.
    let other = match plain {
        regex::Error::Syntax(_) => RegexBuilder::new(&text).backtrack_limit(STEPS).build(),
        _ => return Err(plain.to_string()),
    };
    other.map(|regex| Compiled::Backtracking(Arc::new(regex))).map_err(|_| {
        let reason = plain.to_string();
        reason.lines().last().unwrap_or_default().trim().trim_start_matches("error: ").to_owned()
    })
}

/// A pattern, compiled once a thread.
fn compiled(pattern: &str) -> Result<Compiled> {
    PATTERNS.with_borrow_mut(|patterns| {
        if let Some(found) = patterns.get(pattern) {
            return Ok(found.clone());
        }
        let made = made(pattern).map_err(|reason| {
            fault("INVALID_PARAMETER_VALUE.PATTERN", format!("'{pattern}' is no regular expression: {reason}"))
        })?;
        if patterns.len() >= KEPT {
            patterns.clear();
        }
        patterns.insert(pattern.to_owned(), made.clone());
        Ok(made)
    })
}

/// Java's classes hold ASCII only, where the crate's hold all of Unicode; `\Q…\E` is quoted text.
fn translated(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut in_class = false;
    let mut characters = pattern.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '\\' => match characters.next() {
                Some('d') => out.push_str(if in_class { "0-9" } else { "[0-9]" }),
                Some('D') => out.push_str("[^0-9]"),
                Some('w') => out.push_str(if in_class { "a-zA-Z_0-9" } else { "[a-zA-Z_0-9]" }),
                Some('W') => out.push_str("[^a-zA-Z_0-9]"),
                Some('s') => out.push_str(if in_class { r" \t\n\x0B\f\r" } else { r"[ \t\n\x0B\f\r]" }),
                Some('S') => out.push_str(r"[^ \t\n\x0B\f\r]"),
                Some('Z') => out.push_str(r"\z"),
                Some('Q') => {
                    let rest: String = characters.clone().collect();
                    let quoted = rest.split("\\E").next().unwrap_or_default();
                    out.push_str(&regex::escape(quoted));
                    let skipped = quoted.chars().count() + if quoted.len() < rest.len() { 2 } else { 0 };
                    for _ in 0..skipped {
                        characters.next();
                    }
                }
                Some(other) => {
                    out.push('\\');
                    out.push(other);
                }
                None => out.push('\\'),
            },
            '[' => {
                in_class = true;
                out.push(c);
            }
            ']' => {
                in_class = false;
                out.push(c);
            }
            other => out.push(other),
        }
    }
    out
}

fn group(row: &Row<'_>, regex: &Compiled) -> Result<usize> {
    let wanted = if row.count() > 2 { row.int(2) } else { 1 };
    match usize::try_from(wanted) {
        Ok(group) if group < regex.groups() => Ok(group),
        _ => Err(fault(
            "INVALID_PARAMETER_VALUE.REGEX_GROUP_INDEX",
            format!("the pattern '{}' has {} groups, there is no {wanted}", row.str(1), regex.groups() - 1),
        )),
    }
}

fn extract(row: &Row<'_>) -> Answer<String> {
    let regex = compiled(row.str(1))?;
    let Some(captures) = regex.captures(row.str(0))? else { return Ok(Some(String::new())) };
    let group = group(row, &regex)?;
    Ok(Some(part(row.str(0), &captures, group).to_owned()))
}

/// What a group holds; nothing where it took no part.
fn part<'a>(text: &'a str, groups: &Groups, group: usize) -> &'a str {
    groups.get(group).cloned().flatten().and_then(|range| text.get(range)).unwrap_or_default()
}

fn texts(asked: &Asked<'_>) -> Result<Typed> {
    let mut arguments = vec![DataType::Utf8; asked.types.len().min(2)];
    arguments.extend(std::iter::repeat_n(DataType::Int32, asked.types.len().saturating_sub(2)));
    Ok(Typed { arguments, result: list_of(DataType::Utf8) })
}

fn lists(call: &Call<'_>, f: impl Fn(&Row<'_>) -> Result<Vec<String>>) -> Result<ArrayRef> {
    let mut builder = ListBuilder::new(StringBuilder::new()).with_field(Field::new("element", DataType::Utf8, true));
    for row in (0..call.rows).map(|index| call.row(index)) {
        if row.any_null() {
            builder.append_null();
            continue;
        }
        builder.append_value(f(&row)?.into_iter().map(Some));
    }
    Ok(Arc::new(builder.finish()))
}

fn extract_all(call: &Call<'_>) -> Result<ArrayRef> {
    lists(call, |row| {
        let regex = compiled(row.str(1))?;
        let mut found = Vec::new();
        for captures in regex.all_captures(row.str(0))? {
            let group = group(row, &regex)?;
            found.push(part(row.str(0), &captures, group).to_owned());
        }
        Ok(found)
    })
}

fn replace(row: &Row<'_>) -> Answer<String> {
    let regex = compiled(row.str(1))?;
    let text = row.str(0);
    let start = if row.count() > 3 { row.int(3) } else { 1 };
    let Some(skipped) = usize::try_from(start).ok().and_then(|s| s.checked_sub(1)) else {
        return Err(fault("DATATYPE_MISMATCH.VALUE_OUT_OF_RANGE", "a position is counted from 1"));
    };
    let Some((from, _)) = text.char_indices().chain([(text.len(), ' ')]).nth(skipped) else {
        return Ok(Some(text.to_owned()));
    };
    let mut out = text.get(..from).unwrap_or_default().to_owned();
    let mut last = from;
    for captures in regex.all_captures(text)? {
        let Some(all) = captures.first().cloned().flatten().filter(|m| m.start >= from) else { continue };
        out.push_str(text.get(last..all.start).unwrap_or_default());
        expand(row.str(2), &regex, (text, &captures), &mut out)?;
        last = all.end;
    }
    out.push_str(text.get(last..).unwrap_or_default());
    Ok(Some(out))
}

/// Java's replacement text: `$n` is a group, `\` takes the next character as it is.
fn expand(replacement: &str, regex: &Compiled, (text, found): (&str, &Groups), out: &mut String) -> Result<()> {
    let mut characters = replacement.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '\\' => out.extend(characters.next()),
            '$' if characters.peek() == Some(&'{') => {
                characters.next();
                let name: String = characters.by_ref().take_while(|c| *c != '}').collect();
                out.push_str(regex.named(&name).map_or("", |group| part(text, found, group)));
            }
            '$' => {
                let mut group = None;
                while let Some(digit) = characters.peek().and_then(|c| c.to_digit(10)) {
                    let next = group.unwrap_or(0) * 10 + usize::try_from(digit).unwrap_or_default();
                    if group.is_some() && next >= found.len() {
                        break;
                    }
                    group = Some(next);
                    characters.next();
                }
                match group {
                    Some(group) if group < found.len() => out.push_str(part(text, found, group)),
                    _ => {
                        return Err(fault(
                            "INVALID_PARAMETER_VALUE.REGEX_GROUP_INDEX",
                            format!("the replacement '{replacement}' names a group that is not there"),
                        ));
                    }
                }
            }
            other => out.push(other),
        }
    }
    Ok(())
}

fn split(call: &Call<'_>) -> Result<ArrayRef> {
    lists(call, |row| {
        let limit = if row.count() > 2 { usize::try_from(row.int(2)).ok().filter(|l| *l > 0) } else { None };
        parts(row.str(0), row.str(1), limit)
    })
}

/// The parts of text between matches, at most so many.
pub(super) fn parts(text: &str, pattern: &str, limit: Option<usize>) -> Result<Vec<String>> {
    let most = limit.unwrap_or(usize::MAX);
    if pattern.is_empty() {
        let mut parts: Vec<String> = text.chars().take(most.saturating_sub(1)).map(String::from).collect();
        let rest: String = text.chars().skip(parts.len()).collect();
        if !rest.is_empty() || parts.is_empty() {
            parts.push(rest);
        }
        return Ok(parts);
    }
    let regex = compiled(pattern)?;
    let mut parts = Vec::new();
    let mut last = 0;
    for found in regex.matches(text)? {
        if parts.len() + 1 >= most {
            break;
        }
        // An empty match at the very start splits nothing off.
        if found.end == 0 {
            continue;
        }
        parts.push(text.get(last..found.start).unwrap_or_default().to_owned());
        last = found.end;
    }
    parts.push(text.get(last..).unwrap_or_default().to_owned());
    Ok(parts)
}
