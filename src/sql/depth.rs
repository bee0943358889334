//! How deep a query nests, told from its tokens before anything is built of them: trees are walked, copied and dropped
//! recursively, and a chain of operators is as deep as it is long.

use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};

use super::relation::not_supported;
use crate::error::{Error, Result};
use crate::pipeline::source::Source;

/// How deep a tree may be. AND and OR count once, all else twice.
const LIMIT: usize = 500;

/// What stands between two parentheses, or between CASE and END.
#[derive(Default)]
struct Level {
    /// AND and OR since the expression began.
    logical: usize,
    /// Comparisons since the last of these.
    compared: usize,
    /// Other operators since the last of those.
    computed: usize,
    /// Joins, set operations, pipes, lateral views and common tables; these nest whatever stands between them.
    relations: usize,
    /// The deepest of what is complete.
    below: usize,
    /// CASE opened it.
    case: bool,
    with: bool,
    /// Commas join tables.
    from: bool,
}

impl Level {
    fn own(&self) -> usize {
        self.logical + 2 * (self.compared + self.computed + self.relations)
    }

    fn depth(&self) -> usize {
        self.own() + self.below
    }

    fn next_expression(&mut self) {
        let chain = self.logical + 2 * (self.compared + self.computed);
        self.below = self.below.max(chain);
        (self.logical, self.compared, self.computed) = (0, 0, 0);
    }
}

/// Refuses what nests too deep.
pub(super) fn check_depth(file: &Source, tokens: &[TokenWithSpan]) -> Result<()> {
    let mut levels = vec![Level::default()];
    // The depth of all levels that are open but the last.
    let mut outer = 0;
    for (index, TokenWithSpan { token, span }) in tokens.iter().enumerate() {
        let before = index.checked_sub(1).and_then(|i| tokens.get(i)).map(|t| &t.token);
        let Some(level) = levels.last_mut() else { return Ok(()) };
        let closes_case = |level: &Level| level.case;
        match token {
            // sqlparser would try what is in the brackets in two ways, and so on inwards.
            Token::LBracket if matches!(before, Some(Token::Word(word)) if word.keyword == Keyword::ARRAY && word.quote_style.is_none()) =>
            {
                return Err(not_supported("ARRAY[…]").at(&file.span(*span)).help("array(…)"));
            }
            Token::LParen | Token::LBracket => {
                if *token == Token::LBracket {
                    level.computed += 1;
                }
                if level.with && matches!(before, Some(Token::Word(word)) if word.keyword == Keyword::AS) {
                    level.relations += 1;
                }
                outer += level.own();
                levels.push(Level::default());
            }
            Token::RParen | Token::RBracket => {
                // An unfinished CASE ends with its parentheses.
                while levels.len() > 1 && levels.last().is_some_and(closes_case) {
                    close(&mut levels, &mut outer);
                }
                close(&mut levels, &mut outer);
            }
            Token::Comma => {
                level.next_expression();
                level.relations += usize::from(level.from);
            }
            Token::VerticalBarRightAngleBracket => {
                level.next_expression();
                level.relations += 1;
            }
            Token::Eq
            | Token::DoubleEq
            | Token::Neq
            | Token::Lt
            | Token::Gt
            | Token::LtEq
            | Token::GtEq
            | Token::Spaceship => {
                level.compared += 1;
                level.computed = 0;
            }
            Token::Plus
            | Token::Minus
            | Token::Mul
            | Token::Div
            | Token::Mod
            | Token::StringConcat
            | Token::Pipe
            | Token::Ampersand
            | Token::Caret
            | Token::Tilde
            | Token::ExclamationMark
            | Token::ShiftLeft
            | Token::ShiftRight
            | Token::Arrow
            | Token::DoubleColon => level.computed += 1,
            Token::Word(word) if word.quote_style.is_none() => match word.keyword {
                Keyword::AND | Keyword::OR => {
                    level.logical += 1;
                    (level.compared, level.computed) = (0, 0);
                }
                Keyword::IS
                | Keyword::IN
                | Keyword::LIKE
                | Keyword::ILIKE
                | Keyword::RLIKE
                | Keyword::REGEXP
                | Keyword::BETWEEN
                | Keyword::NOT => level.compared += 1,
                Keyword::DIV | Keyword::COLLATE | Keyword::AT => level.computed += 1,
                Keyword::FROM => {
                    level.next_expression();
                    level.from = true;
                }
                Keyword::SELECT
                | Keyword::WHERE
                | Keyword::GROUP
                | Keyword::HAVING
                | Keyword::ORDER
                | Keyword::ON
                | Keyword::WHEN
                | Keyword::THEN
                | Keyword::ELSE => {
                    level.next_expression();
                    level.from = false;
                }
                Keyword::WITH => level.with = true,
                Keyword::JOIN
                | Keyword::LATERAL
                | Keyword::UNION
                | Keyword::EXCEPT
                | Keyword::INTERSECT
                | Keyword::MINUS => {
                    level.next_expression();
                    level.relations += 1;
                }
                Keyword::CASE => {
                    outer += level.own();
                    levels.push(Level { case: true, ..Level::default() });
                }
                Keyword::END if level.case => close(&mut levels, &mut outer),
                _ => {}
            },
            _ => {}
        }
        if outer + levels.last().map_or(0, Level::depth) > LIMIT {
            return Err(Error::user("NESTED_TOO_DEEP", "this is a chain of too many operators, joins or queries")
                .at(&file.span(*span))
                .help("write IN (…) for alternatives and concat(…) for texts, or cut it into views"));
        }
    }
    Ok(())
}

fn close(levels: &mut Vec<Level>, outer: &mut usize) {
    let Some(done) = (if levels.len() > 1 { levels.pop() } else { None }) else { return };
    if let Some(level) = levels.last_mut() {
        *outer -= level.own();
        level.below = level.below.max(done.depth() + 1);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::sql::token::tokens_of;

    fn refused(text: &str) -> bool {
        let file = Source::new("q.sql", text);
        check_depth(&file, &tokens_of(&file).unwrap()).is_err()
    }

    #[test]
    fn chains_are_as_deep_as_they_are_long_and_lists_are_not() {
        let chain = |link: &str, n: usize| vec!["a"; n].join(link);
        for (fine, deep) in [
            (chain(" OR ", 400), chain(" OR ", 600)),
            (chain(" + ", 200), chain(" + ", 300)),
            (chain(" = ", 200), chain(" = ", 300)),
            (format!("a{}", "::INT".repeat(200)), format!("a{}", "::INT".repeat(300))),
            (chain(" UNION SELECT ", 200), chain(" UNION SELECT ", 300)),
            (format!("FROM t {}", "|> WHERE a ".repeat(200)), format!("FROM t {}", "|> WHERE a ".repeat(300))),
            (chain(" JOIN ", 200), chain(" JOIN ", 300)),
            (format!("SELECT {}", chain(", ", 5000)), format!("SELECT a FROM {}", chain(", ", 300))),
            (vec!["a = 1 + 2 * b"; 400].join(" AND "), vec!["a = 1 + 2 * b"; 600].join(" AND ")),
            (
                format!("{}a{}", "(".repeat(40), " + a + a)".repeat(40)),
                format!("{}a{}", "(".repeat(40), &format!("{})", " + a".repeat(20)).repeat(40)),
            ),
            (
                format!("SELECT {}", vec!["CASE WHEN a + b = c THEN 1 ELSE 2 END"; 2000].join(", ")),
                vec![format!("CASE WHEN {} THEN 1 END", chain(" + ", 20)); 300].join(" + "),
            ),
            (format!("a IN ({})", vec!["1"; 5000].join(", ")), chain(" CASE WHEN x THEN y END + ", 300)),
            (
                format!("WITH {}", vec!["c AS (SELECT a)"; 200].join(", ")),
                format!("WITH {}", vec!["c AS (SELECT a)"; 300].join(", ")),
            ),
        ] {
            assert!(!refused(&fine), "{fine}");
            assert!(refused(&deep), "{deep}");
        }
        assert!(!refused("))) END ]] END (("));
    }
}
