//! JSON that is not quite JSON, as Spark reads it by default or when asked to.

/// Which departures from JSON are understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lenient {
    pub(super) single_quotes: bool,
    /// `NaN`, `Infinity` and the like; they become texts.
    pub(super) non_numbers: bool,
    pub(super) comments: bool,
    pub(super) unquoted_names: bool,
    pub(super) leading_zeros: bool,
    pub(super) any_escape: bool,
    pub(super) control_characters: bool,
}

impl Default for Lenient {
    fn default() -> Lenient {
        Lenient {
            single_quotes: true,
            non_numbers: true,
            comments: false,
            unquoted_names: false,
            leading_zeros: false,
            any_escape: false,
            control_characters: false,
        }
    }
}

impl Lenient {
    /// The text as JSON should have it; `None` if nothing in it is to be written otherwise. What is no JSON for another
    /// reason stays none.
    pub(super) fn strict(self, text: &str) -> Option<String> {
        let mut out = String::with_capacity(text.len() + 16);
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let after = rest.get(c.len_utf8()..).unwrap_or_default();
            rest = match c {
                '"' => self.quoted(after, '"', &mut out),
                '\'' if self.single_quotes => self.quoted(after, '\'', &mut out),
                '/' if self.comments && after.starts_with('*') => after.split_once("*/").map_or("", |x| x.1),
                '/' if self.comments && after.starts_with('/') => after.split_once('\n').map_or("", |x| x.1),
                '0'..='9' | '-' | '+' => self.number(rest, &mut out),
                _ if c.is_alphabetic() || matches!(c, '_' | '$') => self.word(rest, "", &mut out),
                _ => {
                    out.push(c);
                    after
                }
            };
        }
        (out != text).then_some(out)
    }

    /// The rest after a text in quotes, which is written with double ones.
    fn quoted<'a>(self, text: &'a str, quote: char, out: &mut String) -> &'a str {
        out.push('"');
        let mut characters = text.char_indices();
        while let Some((at, c)) = characters.next() {
            match c {
                _ if c == quote => {
                    out.push('"');
                    return text.get(at + c.len_utf8()..).unwrap_or_default();
                }
                '"' => out.push_str("\\\""),
                '\\' => match characters.next() {
                    Some((_, '\'')) if quote == '\'' || self.any_escape => out.push('\''),
                    Some((_, next)) if self.any_escape && !"\"\\/bfnrtu".contains(next) => out.push(next),
                    Some((_, next)) => out.extend(['\\', next]),
                    None => out.push('\\'),
                },
                _ if c < ' ' && self.control_characters => out.push_str(&format!("\\u{:04x}", u32::from(c))),
                _ => out.push(c),
            }
        }
        ""
    }

    fn number<'a>(self, text: &'a str, out: &mut String) -> &'a str {
        let digits = text.trim_start_matches(['-', '+']);
        let sign = text.get(..text.len() - digits.len()).unwrap_or_default();
        if digits.starts_with(['I', 'N']) {
            return self.word(digits, sign, out);
        }
        out.push_str(sign);
        let end =
            digits.find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '.' | '+' | '-')).unwrap_or(digits.len());
        let (number, rest) = digits.split_at(end);
        let whole = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
        let zeros = number.bytes().take(whole.saturating_sub(1)).take_while(|x| *x == b'0').count();
        out.push_str(number.get(if self.leading_zeros { zeros } else { 0 }..).unwrap_or_default());
        rest
    }

    fn word<'a>(self, text: &'a str, sign: &str, out: &mut String) -> &'a str {
        let end = text.find(|c: char| !c.is_alphanumeric() && !matches!(c, '_' | '$' | '-')).unwrap_or(text.len());
        let (word, rest) = text.split_at(end);
        let name = sign.is_empty() && self.unquoted_names && rest.trim_start().starts_with(':');
        let number = self.non_numbers && (matches!(word, "Infinity" | "INF") || (word == "NaN" && sign.is_empty()));
        if name || number {
            out.extend(["\"", sign, word, "\""]);
        } else {
            out.extend([sign, word]);
        }
        rest
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_asked_for_is_understood_and_nothing_else() {
        let all = Lenient {
            comments: true,
            unquoted_names: true,
            leading_zeros: true,
            any_escape: true,
            control_characters: true,
            ..Lenient::default()
        };
        let none = Lenient { single_quotes: false, non_numbers: false, ..Lenient::default() };
        let cases = [
            ("{'a':'x\"\\'y'}", Some("{\"a\":\"x\\\"'y\"}")),
            ("{\"a\":[NaN,-Infinity,+INF]}", Some("{\"a\":[\"NaN\",\"-Infinity\",\"+INF\"]}")),
            ("/* c */{\"a\":1} // d", Some("{\"a\":1} ")),
            ("{a_1 : true}", Some("{\"a_1\" : true}")),
            ("{\"a\":007,\"b\":-00.50,\"c\":0}", Some("{\"a\":7,\"b\":-0.50,\"c\":0}")),
            ("{\"a\":\"\\x\\n\\$\\u0041\"}", Some("{\"a\":\"x\\n$\\u0041\"}")),
            ("{\"a\":\"x\ty\"}", Some("{\"a\":\"x\\u0009y\"}")),
            ("{\"a\":\"it's NaN // 007\"}", None),
        ];
        for (text, strict) in cases {
            assert_eq!(all.strict(text).as_deref(), strict, "{text}");
            assert_eq!(none.strict(text), None, "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// JSON means the same however it is read, and nothing makes it fail.
        #[test]
        fn json_stays_what_it_is(text in "[\\[\\]{}\"':,/*0-9a\\\\ \u{e9}NI$+-]{0,20}", flags in any::<[bool; 7]>()) {
            let [single_quotes, non_numbers, comments, unquoted_names, leading_zeros, any_escape, control_characters] = flags;
            let lenient = Lenient { single_quotes, non_numbers, comments, unquoted_names, leading_zeros, any_escape, control_characters };
            let strict = lenient.strict(&text);
            if let (Ok(before), Some(strict)) = (serde_json::from_str::<serde_json::Value>(&text), strict) {
                prop_assert_eq!(serde_json::from_str::<serde_json::Value>(&strict).ok(), Some(before));
            }
        }
    }
}
