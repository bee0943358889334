//! Parts of URLs, as `java.net.URI` divides them.

use super::function::{Answer, Row, fault};

/// Characters that no URI has unescaped.
const FORBIDDEN: [char; 12] = [' ', '"', '<', '>', '\\', '^', '`', '{', '|', '}', '\t', '\n'];

struct Parts<'a> {
    scheme: Option<&'a str>,
    authority: Option<&'a str>,
    path: &'a str,
    query: Option<&'a str>,
    fragment: Option<&'a str>,
}

fn divided(url: &str) -> Option<Parts<'_>> {
    if url.contains(FORBIDDEN) {
        return None;
    }
    let (rest, fragment) = match url.split_once('#') {
        Some((rest, fragment)) => (rest, Some(fragment)),
        None => (url, None),
    };
    let (rest, query) = match rest.split_once('?') {
        Some((rest, query)) => (rest, Some(query)),
        None => (rest, None),
    };
    let scheme = rest.split_once(':').filter(|(scheme, _)| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
    });
    let (scheme, rest) = match scheme {
        Some((scheme, rest)) => (Some(scheme), rest),
        None => (None, rest),
    };
    let (authority, path) = match rest.strip_prefix("//") {
        Some(rest) => {
            let at = rest.find('/').unwrap_or(rest.len());
            let (authority, path) = rest.split_at(at);
            (Some(authority).filter(|a| !a.is_empty()), path)
        }
        None => (None, rest),
    };
    Some(Parts { scheme, authority, path, query, fragment })
}

fn host(authority: &str) -> &str {
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    }
}

/// `parse_url(url, part[, key])`.
pub(super) fn part(row: &Row<'_>) -> Answer<String> {
    let Some(parts) = divided(row.str(0)) else {
        return if row.ansi() && row.function() == "parse_url" {
            Err(fault("INVALID_URL", format!("'{}' is no URL; try_parse_url gives null instead", row.str(0))))
        } else {
            Ok(None)
        };
    };
    let found = match row.str(1) {
        "HOST" => parts.authority.map(|a| host(a).to_owned()),
        "PATH" => Some(parts.path.to_owned()),
        "QUERY" if row.count() > 2 => parts.query.and_then(|query| {
            query.split('&').find_map(|pair| pair.strip_prefix(row.str(2))?.strip_prefix('=').map(str::to_owned))
        }),
        "QUERY" => parts.query.map(str::to_owned),
        "REF" => parts.fragment.map(str::to_owned),
        "PROTOCOL" => parts.scheme.map(str::to_owned),
        "FILE" => Some(match parts.query {
            Some(query) => format!("{}?{query}", parts.path),
            None => parts.path.to_owned(),
        }),
        "AUTHORITY" => parts.authority.map(str::to_owned),
        "USERINFO" => parts.authority.and_then(|a| a.rsplit_once('@')).map(|(user, _)| user.to_owned()),
        _ => None,
    };
    Ok(found.filter(|_| row.count() < 3 || row.str(1) == "QUERY"))
}
