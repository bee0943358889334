//! Patterns of paths and file names.

/// The most alternatives that braces may stand for.
const ALTERNATIVES: usize = 1000;

/// A pattern of file names: `*`, `?`, `[ab]`, `[^ab]`, `{a,b}`.
#[derive(Clone, Debug)]
pub(super) struct Globs(Vec<glob::Pattern>);

impl Globs {
    pub(super) fn parse(text: &str) -> Option<Globs> {
        alternatives(text)?.iter().map(|x| glob::Pattern::new(x).ok()).collect::<Option<Vec<_>>>().map(Globs)
    }

    pub(super) fn matches(&self, name: &str) -> bool {
        self.0.iter().any(|x| x.matches(name))
    }
}

/// Whether a path has something of a pattern.
pub(super) fn is_pattern(path: &str) -> bool {
    path.contains(['*', '?', '[', '{'])
}

/// The patterns without braces that a pattern with braces stands for; `None` if brackets do not close, or if it stands for
/// too many.
pub(super) fn alternatives(text: &str) -> Option<Vec<String>> {
    let mut out = vec![String::new()];
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        match c {
            '{' => {
                let (choices, after) = choices(rest.get(1..)?)?;
                let mut expanded = Vec::new();
                for choice in choices {
                    expanded.extend(alternatives(choice)?);
                }
                if out.len().checked_mul(expanded.len())? > ALTERNATIVES {
                    return None;
                }
                out = out.iter().flat_map(|before| expanded.iter().map(move |x| format!("{before}{x}"))).collect();
                rest = after;
                continue;
            }
            '[' => {
                // A class as it stands, but it is denied with an exclamation mark here.
                let end = rest.char_indices().skip(2).find(|x| x.1 == ']')?.0;
                let class = rest.get(..=end)?;
                let class = class.strip_prefix("[^").map_or_else(|| class.to_owned(), |x| format!("[!{x}"));
                out.iter_mut().for_each(|x| x.push_str(&class));
                rest = rest.get(end + 1..)?;
                continue;
            }
            '}' => return None,
            _ => out.iter_mut().for_each(|x| x.push(c)),
        }
        rest = rest.get(c.len_utf8()..)?;
    }
    Some(out)
}

/// The choices of a brace that has been opened, and what comes after it.
fn choices(text: &str) -> Option<(Vec<&str>, &str)> {
    let (mut depth, mut start, mut choices) = (0_usize, 0, Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            ',' if depth == 0 => {
                choices.push(text.get(start..at)?);
                start = at + 1;
            }
            '}' if depth == 0 => {
                choices.push(text.get(start..at)?);
                return Some((choices, text.get(at + 1..)?));
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn braces_are_alternatives() {
        let cases: [(&str, Option<&[&str]>); 8] = [
            ("/a/*.json", Some(&["/a/*.json"])),
            ("{ab,c{de,fh}}x", Some(&["abx", "cdex", "cfhx"])),
            ("{a,b}/{1,2}", Some(&["a/1", "a/2", "b/1", "b/2"])),
            ("[^a-c][]x]{,y}", Some(&["[!a-c][]x]", "[!a-c][]x]y"])),
            ("{a,b", None),
            ("a}", None),
            ("[a", None),
            ("{1,2,3,4,5,6,7,8,9,0}{1,2,3,4,5,6,7,8,9,0}{1,2,3,4,5,6,7,8,9,0}{1,2}", None),
        ];
        for (text, expected) in cases {
            let found = alternatives(text);
            assert_eq!(
                found.as_deref().map(|x| x.iter().map(String::as_str).collect::<Vec<_>>()),
                expected.map(<[_]>::to_vec),
                "{text}"
            );
        }
        let globs = Globs::parse("{part,chunk}-[0-9][^0].csv").unwrap();
        let matches: Vec<bool> =
            ["part-01.csv", "chunk-99.csv", "part-00.csv", "part-1.csv"].iter().map(|x| globs.matches(x)).collect();
        assert_eq!(matches, [true, true, false, false]);
    }
}
