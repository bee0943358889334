//! Parameters in a query of SQL, `:name` and `?`.

use std::collections::BTreeMap;

use crate::error::{Error, Result};

/// The text with a value in place of each parameter. What stands in quotes or comments stays.
pub(super) fn fill(text: &str, named: &BTreeMap<String, String>, positional: &[String]) -> Result<String> {
    let mut out = String::with_capacity(text.len());
    let mut values = positional.iter();
    let mut chars = text.chars().peekable();
    let unbound =
        |name: &str| Error::user("UNBOUND_SQL_PARAMETER", format!("no value is given for the parameter {name}"));
    while let Some(c) = chars.next() {
        match c {
            '\'' | '"' | '`' => {
                out.push(c);
                while let Some(inside) = chars.next() {
                    out.push(inside);
                    if inside == '\\' && c != '`' {
                        out.extend(chars.next());
                    } else if inside == c {
                        break;
                    }
                }
            }
            '-' if chars.peek() == Some(&'-') => {
                out.push(c);
                while let Some(inside) = chars.next_if(|c| *c != '\n') {
                    out.push(inside);
                }
            }
            ':' if chars.peek().is_some_and(|next| next.is_alphabetic() || *next == '_') && !out.ends_with(':') => {
                let mut name = String::new();
                while let Some(next) = chars.next_if(|c| c.is_alphanumeric() || *c == '_') {
                    name.push(next);
                }
                out.push_str(named.get(&name).ok_or_else(|| unbound(&name))?);
            }
            '?' => out.push_str(values.next().ok_or_else(|| unbound("?"))?),
            _ => out.push(c),
        }
    }
    Ok(out)
}
