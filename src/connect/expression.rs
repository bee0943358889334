//! Expressions of the protocol as SQL, which the SQL front end reads: a function works in both or in neither.

use std::sync::Arc;

use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::tokenizer::{Location, Span as AstSpan};
use prost::Message;

use super::fields::known;
use super::literal::{self, quoted, too_deep};
use super::types::{ddl, name};
use super::wire::spark::expression::cast::CastToType;
use super::wire::spark::expression::cast::EvalMode;
use super::wire::spark::expression::sort_order::{NullOrdering, SortDirection};
use super::wire::spark::expression::window::window_frame::{FrameBoundary, FrameType, frame_boundary::Boundary};
use super::wire::spark::expression::{ExprType, SortOrder, UnresolvedFunction, Window};
use super::wire::spark::origin::Function;
use super::wire::spark::{Expression, expression};
use crate::error::{Error, Result};
use crate::pipeline::Source;
use crate::pipeline::frame::{FRAME_MARK, Item, SortKey};
use crate::sql::read_built;

/// How deep expressions may nest.
const DEPTH: usize = 500;

/// One level of an expression.
pub(super) fn decode(bytes: &[u8]) -> Result<Expression> {
    let expression = Expression::decode(bytes)
        .map_err(|e| Error::user("INVALID_PLAN_INPUT", "an expression cannot be decoded").caused_by(e))?;
    known("spark.connect.Expression", bytes)?;
    Ok(expression)
}

/// Reads expressions, each part of which is said to stand where the client made it, or else where its flow is defined.
#[derive(Clone, Copy)]
pub(super) struct Expressions<'a> {
    pub(super) at: AstSpan,
    /// The definition file, whose lines can be told.
    pub(super) file: Option<&'a DefinitionFile>,
}

/// A definition file of the client.
#[derive(Debug)]
pub(super) struct DefinitionFile {
    /// The path by which the client knows it.
    pub(super) path: String,
    pub(super) source: Arc<Source>,
}

impl DefinitionFile {
    /// A line without what indents it.
    pub(super) fn line(&self, number: u64) -> AstSpan {
        let line = self.source.line(usize::try_from(number).unwrap_or(0));
        let indent = line.chars().take_while(|c| c.is_whitespace()).count() as u64;
        let end = line.trim_end().chars().count() as u64;
        AstSpan {
            start: Location { line: number, column: indent + 1 },
            end: Location { line: number, column: end + 1 },
        }
    }
}

impl Expressions<'_> {
    /// An expression.
    pub(super) fn expr(&self, bytes: &[u8]) -> Result<ast::Expr> {
        let at = self.place(&decode(bytes)?);
        let text = Writer::default().expr(bytes, DEPTH).map_err(|error| self.placed(error, at))?;
        read_built(&text, at).map_err(|error| self.placed(error, at))
    }

    /// An error of an expression at the line of the definition, if that can be told, rather than inside of the expression.
    fn placed(&self, error: Error, at: AstSpan) -> Error {
        let Some(file) = self.file.filter(|_| at != AstSpan::empty()) else { return error };
        let span = file.source.span(at);
        let Some(inside) = &error.place().span else { return error.at(&span) };
        let text = inside.text.clone();
        let moved = Error::user(error.code(), error.message()).details([text]).at(&span);
        match error.advice() {
            Some(advice) => moved.help(advice),
            None => moved,
        }
    }

    /// Where the client made an expression.
    fn place(&self, expression: &Expression) -> AstSpan {
        let origin = expression.common.as_ref().and_then(|common| common.origin.as_ref());
        let Some(Function::PythonOrigin(python)) = origin.and_then(|origin| origin.function.as_ref()) else {
            return self.at;
        };
        let Some((path, line)) = python.call_site.rsplit_once(':') else { return self.at };
        match (self.file, line.parse()) {
            (Some(file), Ok(line)) if file.path == path && line > 0 => file.line(line),
            _ => self.at,
        }
    }

    /// An expression as an entry of a select list.
    pub(super) fn item(&self, bytes: &[u8]) -> Result<Item> {
        let expression = decode(bytes)?;
        let at = self.place(&expression);
        match expression.expr_type {
            Some(ExprType::UnresolvedStar(star)) => {
                let qualifier = match star.unparsed_target.as_deref() {
                    None => None,
                    Some(target) => Some(parts(target.strip_suffix(".*").unwrap_or(target))?),
                };
                Ok(Item::Star { qualifier, frame: star.plan_id })
            }
            Some(ExprType::Alias(alias)) => match alias.name.as_slice() {
                [name] => Ok(Item::Expr(Box::new(Expressions { at, ..*self }.expr(&alias.expr)?), Some(name.clone()))),
                names => Ok(Item::Rows(Box::new(Expressions { at, ..*self }.expr(&alias.expr)?), names.to_vec())),
            },
            Some(ExprType::ExpressionString(text)) => Expressions { at, ..*self }.text_item(&text.expression),
            _ => Ok(Item::Expr(Box::new(self.expr(bytes)?), None)),
        }
    }

    /// An entry of a select list in SQL.
    fn text_item(&self, text: &str) -> Result<Item> {
        let trimmed = text.trim();
        if trimmed == "*" {
            return Ok(Item::Star { qualifier: None, frame: None });
        }
        if let Some(target) = trimmed.strip_suffix(".*")
            && let Ok(parts) = parts(target)
        {
            return Ok(Item::Star { qualifier: Some(parts), frame: None });
        }
        let (text, alias) = aliased(trimmed).map_err(|error| self.placed(error, self.at))?;
        Ok(Item::Expr(Box::new(self.read(text)?), alias))
    }

    /// A key of a sort; ascending, with nulls first, if nothing is said.
    pub(super) fn sort_key(&self, order: &SortOrder) -> Result<SortKey> {
        let ascending = order.direction() != SortDirection::Descending;
        Ok(SortKey {
            expr: self.expr(&order.child)?,
            ascending,
            nulls_first: match order.null_ordering() {
                NullOrdering::SortNullsFirst => true,
                NullOrdering::SortNullsLast => false,
                NullOrdering::SortNullsUnspecified => ascending,
            },
        })
    }

    /// Text in SQL as an expression.
    pub(super) fn read(&self, text: &str) -> Result<ast::Expr> {
        read_built(text, self.at).map_err(|error| self.placed(error, self.at))
    }
}

/// An expression in SQL by itself, and the alias behind it.
fn aliased(text: &str) -> Result<(&str, Option<String>)> {
    let Err(error) = read_built(text, AstSpan::empty()) else { return Ok((text, None)) };
    match alias_at_end(text) {
        Some((before, alias)) => read_built(before, AstSpan::empty()).map(|_| (before, Some(alias))),
        None => Err(error),
    }
}

/// `… AS name` or `… name`, with a name that is no keyword of the language's operators.
fn alias_at_end(text: &str) -> Option<(&str, String)> {
    let (before, last) = match text.strip_suffix('`') {
        Some(open) => {
            let start = open.rfind('`')?;
            (text.get(..start)?, text.get(start + 1..text.len() - 1)?)
        }
        None => text.rsplit_once(char::is_whitespace)?,
    };
    let word = |c: char| c.is_alphanumeric() || c == '_';
    if last.is_empty() || (!text.ends_with('`') && !last.chars().all(word)) {
        return None;
    }
    let before = before.trim_end();
    let cut = before.len().checked_sub(3).and_then(|at| Some((before.get(..at)?, before.get(at..)?)));
    let before = match cut {
        Some((rest, tail)) if tail.trim_start().eq_ignore_ascii_case("as") && tail.starts_with(char::is_whitespace) => {
            rest
        }
        _ => before,
    };
    Some((before, last.to_owned()))
}

/// The parts of a name such as ``a.`b.c`.d``.
pub(super) fn parts(text: &str) -> Result<Vec<String>> {
    let wrong =
        || Error::user("INVALID_ATTRIBUTE_NAME_SYNTAX", format!("`{}` is no name of a column", text.escape_debug()));
    if text.contains(|c: char| c < ' ') {
        return Err(wrong());
    }
    let mut found = Vec::new();
    let mut chars = text.chars().peekable();
    loop {
        let mut part = String::new();
        if chars.next_if_eq(&'`').is_some() {
            loop {
                match chars.next().ok_or_else(wrong)? {
                    '`' if chars.next_if_eq(&'`').is_some() => part.push('`'),
                    '`' => break,
                    c => part.push(c),
                }
            }
        } else {
            while let Some(c) = chars.next_if(|c| *c != '.' && *c != '`') {
                part.push(c);
            }
        }
        if part.is_empty() {
            return Err(wrong());
        }
        found.push(part);
        match chars.next() {
            None => return Ok(found),
            Some('.') => {}
            Some(_) => return Err(wrong()),
        }
    }
}

fn not_supported(what: &str) -> Error {
    Error::user("NOT_SUPPORTED", format!("{what} is not supported yet"))
}

/// Writes expressions. Parameters of lambdas are named by where they stand, since a client numbers them as they come.
#[derive(Default)]
struct Writer {
    parameters: Vec<(String, String)>,
    lambdas: usize,
}

impl Writer {
    fn expr(&mut self, bytes: &[u8], depth: usize) -> Result<String> {
        let depth = depth.checked_sub(1).ok_or_else(too_deep)?;
        let missing = || Error::user("INVALID_PLAN_INPUT", "an expression that says nothing");
        Ok(match decode(bytes)?.expr_type.ok_or_else(missing)? {
            ExprType::Literal(value) => literal::sql(&value, depth)?,
            ExprType::UnresolvedAttribute(attribute) => {
                if attribute.is_metadata_column == Some(true) {
                    return Err(not_supported("a metadata column (metadataColumn)"));
                }
                let mut written: Vec<String> =
                    parts(&attribute.unparsed_identifier)?.iter().map(|part| name(part)).collect();
                if let Some(id) = attribute.plan_id {
                    written.insert(0, name(&format!("{FRAME_MARK}{id}")));
                }
                written.join(".")
            }
            ExprType::UnresolvedFunction(function) => self.function(&function, depth)?,
            ExprType::CallFunction(call) => {
                let arguments = self.all(&call.arguments, depth)?;
                plain_call(&call.function_name, &arguments, false)?
            }
            ExprType::ExpressionString(text) => format!("({})", aliased(text.expression.trim())?.0),
            ExprType::UnresolvedStar(star) if star.unparsed_target.is_none() => "*".to_owned(),
            ExprType::UnresolvedStar(star) if star.plan_id.is_none() => {
                let target = star.unparsed_target.unwrap_or_default();
                let qualifier = parts(target.strip_suffix(".*").unwrap_or(&target))?;
                format!("{}.*", qualifier.iter().map(|part| name(part)).collect::<Vec<_>>().join("."))
            }
            ExprType::UnresolvedStar(_) => return Err(not_supported("df['*'] inside an expression")),
            // What a part of an expression is called does not matter, but as the field of a struct.
            ExprType::Alias(alias) => match alias.name.as_slice() {
                [_] => self.expr(&alias.expr, depth)?,
                _ => return Err(not_supported("an alias of several names")),
            },
            ExprType::Cast(cast) => {
                let to = match &cast.cast_to_type {
                    Some(CastToType::Type(data_type)) => ddl(data_type)?,
                    Some(CastToType::TypeStr(text)) => text.clone(),
                    None => return Err(Error::user("INVALID_PLAN_INPUT", "a cast to nothing")),
                };
                let word = if cast.eval_mode() == EvalMode::Try { "TRY_CAST" } else { "CAST" };
                format!("{word}({} AS {to})", self.expr(&cast.expr, depth)?)
            }
            ExprType::LambdaFunction(lambda) => self.lambda(&lambda, depth)?,
            ExprType::UnresolvedNamedLambdaVariable(variable) => {
                let wanted = variable.name_parts.first().map_or("", String::as_str);
                let found = self.parameters.iter().rev().find(|(written, _)| written == wanted);
                let Some((_, own)) = found else {
                    return Err(Error::user(
                        "INVALID_PLAN_INPUT",
                        format!("{wanted} is no parameter of a lambda here"),
                    ));
                };
                let mut written = vec![own.clone()];
                written.extend(variable.name_parts.iter().skip(1).map(|part| name(part)));
                written.join(".")
            }
            ExprType::UnresolvedExtractValue(extract) => {
                let child = self.expr(&extract.child, depth)?;
                match decode(&extract.extraction)?.expr_type {
                    Some(ExprType::Literal(expression::Literal {
                        literal_type: Some(expression::literal::LiteralType::String(field)),
                        ..
                    })) => format!("({child})[{}]", quoted(&field)),
                    _ => format!("({child})[{}]", self.expr(&extract.extraction, depth)?),
                }
            }
            ExprType::Window(window) => self.window(&window, depth)?,
            ExprType::SortOrder(_) => return Err(not_supported("a sort order inside an expression")),
            ExprType::UnresolvedRegex(_) => return Err(not_supported("a column by regular expression (colRegex)")),
            ExprType::UpdateFields(update) => {
                let structure = self.expr(&update.struct_expression, depth)?;
                let value = match update.value_expression.as_slice() {
                    [] => None,
                    value => Some(self.expr(value, depth)?),
                };
                updated(&structure, &parts(&update.field_name)?, value.as_deref())
            }
            ExprType::CommonInlineUserDefinedFunction(function) => {
                return Err(Error::user(
                    "UNSUPPORTED_UDF",
                    format!(
                        "the function {} is written in Python, and data never passes through Python",
                        function.function_name
                    ),
                )
                .help("write it with pyspark.sql.functions or as an expression of SQL"));
            }
            ExprType::NamedArgumentExpression(named) => {
                format!("{} => {}", name(&named.key), self.expr(&named.value, depth)?)
            }
            ExprType::MergeAction(_) => return Err(not_supported("MERGE")),
            ExprType::TypedAggregateExpression(_) => return Err(not_supported("a typed aggregate")),
            ExprType::SubqueryExpression(_) => return Err(not_supported("a subquery inside an expression")),
            ExprType::DirectShufflePartitionId(_) => return Err(not_supported("a partition number")),
            ExprType::Extension(any) => return Err(not_supported(&format!("the extension {}", any.type_url))),
        })
    }

    fn all(&mut self, arguments: &[Vec<u8>], depth: usize) -> Result<Vec<String>> {
        arguments.iter().map(|argument| self.expr(argument, depth)).collect()
    }

    /// Arguments with the names that they have.
    fn fields(&mut self, arguments: &[Vec<u8>], depth: usize) -> Result<Vec<String>> {
        let field = |argument: &Vec<u8>| {
            let value = self.expr(argument, depth)?;
            let title = match decode(argument)?.expr_type {
                Some(ExprType::Alias(alias)) => alias.name.into_iter().next(),
                Some(ExprType::ExpressionString(text)) => aliased(text.expression.trim())?.1,
                _ => None,
            };
            Ok(title.map_or_else(|| value.clone(), |title| format!("{value} AS {}", name(&title))))
        };
        arguments.iter().map(field).collect()
    }

    fn lambda(&mut self, lambda: &expression::LambdaFunction, depth: usize) -> Result<String> {
        let before = self.parameters.len();
        let mut names = Vec::new();
        for variable in &lambda.arguments {
            let own = format!("x{}", self.lambdas);
            self.lambdas += 1;
            names.push(own.clone());
            self.parameters.push((variable.name_parts.join("."), own));
        }
        let body = self.expr(&lambda.function, depth);
        self.parameters.truncate(before);
        let body = body?;
        Ok(match names.as_slice() {
            [only] => format!("{only} -> {body}"),
            _ => format!("({}) -> {body}", names.join(", ")),
        })
    }

    fn function(&mut self, function: &UnresolvedFunction, depth: usize) -> Result<String> {
        if function.is_user_defined_function {
            return Err(not_supported(&format!("the user-defined function {}", function.function_name)));
        }
        let called = function.function_name.to_lowercase();
        let arguments = match called.as_str() {
            "struct" => self.fields(&function.arguments, depth)?,
            _ => self.all(&function.arguments, depth)?,
        };
        let infix = match called.as_str() {
            "==" | "=" => Some("="),
            "<=>" => Some("<=>"),
            "!=" | "<>" => Some("<>"),
            "<" | "<=" | ">" | ">=" | "+" | "-" | "*" | "/" | "%" | "&" | "|" | "^" | "||" => Some(called.as_str()),
            "and" => Some("AND"),
            "or" => Some("OR"),
            "like" if arguments.len() == 2 => Some("LIKE"),
            "ilike" if arguments.len() == 2 => Some("ILIKE"),
            "rlike" if arguments.len() == 2 => Some("RLIKE"),
            "div" => Some("DIV"),
            _ => None,
        };
        Ok(match (called.as_str(), infix, arguments.as_slice()) {
            (_, Some(operator), [left, right]) => format!("({} {operator} {})", operand(left), operand(right)),
            ("not" | "!", _, [only]) => format!("(NOT ({only}))"),
            ("-" | "negative", _, [only]) => format!("(- ({only}))"),
            ("+" | "positive", _, [only]) => format!("(+ ({only}))"),
            ("~", _, [only]) => format!("(~ ({only}))"),
            ("isnull", _, [only]) => format!("({} IS NULL)", operand(only)),
            ("isnotnull", _, [only]) => format!("({} IS NOT NULL)", operand(only)),
            ("in", _, [only, list @ ..]) if !list.is_empty() => format!("({} IN ({}))", operand(only), list.join(", ")),
            ("in", _, [only]) => format!("(({only}) IS NULL AND NULL)"),
            ("when", _, arguments) => {
                let mut out = "CASE".to_owned();
                let mut rest = arguments;
                while let [condition, value, more @ ..] = rest {
                    out.push_str(&format!(" WHEN {condition} THEN {value}"));
                    rest = more;
                }
                if let [otherwise] = rest {
                    out.push_str(&format!(" ELSE {otherwise}"));
                }
                out.push_str(" END");
                format!("({out})")
            }
            (_, _, arguments) => plain_call(&function.function_name, arguments, function.is_distinct)?,
        })
    }

    fn window(&mut self, window: &Window, depth: usize) -> Result<String> {
        let function = self.expr(&window.window_function, depth)?;
        let mut over = Vec::new();
        let partitions = self.all(&window.partition_spec, depth)?;
        if !partitions.is_empty() {
            over.push(format!("PARTITION BY {}", partitions.join(", ")));
        }
        let mut keys = Vec::new();
        for order in &window.order_spec {
            let descending = order.direction() == SortDirection::Descending;
            let nulls = match order.null_ordering() {
                NullOrdering::SortNullsLast => "LAST",
                NullOrdering::SortNullsUnspecified if descending => "LAST",
                _ => "FIRST",
            };
            let direction = if descending { "DESC" } else { "ASC" };
            keys.push(format!("{} {direction} NULLS {nulls}", self.expr(&order.child, depth)?));
        }
        if !keys.is_empty() {
            over.push(format!("ORDER BY {}", keys.join(", ")));
        }
        if let Some(frame) = &window.frame_spec {
            let kind = if frame.frame_type() == FrameType::Range { "RANGE" } else { "ROWS" };
            let (lower, upper) = (frame.lower.as_ref(), frame.upper.as_ref());
            let (lower, upper) = (self.boundary(lower, true, depth)?, self.boundary(upper, false, depth)?);
            over.push(format!("{kind} BETWEEN {lower} AND {upper}"));
        }
        Ok(format!("{function} OVER ({})", over.join(" ")))
    }

    fn boundary(&mut self, boundary: Option<&FrameBoundary>, lower: bool, depth: usize) -> Result<String> {
        let side = |preceding: bool| if preceding { "PRECEDING" } else { "FOLLOWING" };
        match boundary.and_then(|b| b.boundary.as_ref()) {
            Some(Boundary::CurrentRow(_)) => Ok("CURRENT ROW".to_owned()),
            Some(Boundary::Unbounded(_)) => Ok(format!("UNBOUNDED {}", side(lower))),
            Some(Boundary::Value(value)) => {
                let value = self.expr(value, depth)?;
                let digits: String = value.chars().filter(|c| c.is_ascii_digit()).collect();
                Ok(format!("{digits} {}", side(value.contains('-'))))
            }
            None => Err(Error::user("INVALID_PLAN_INPUT", "a window frame without a boundary")),
        }
    }
}

/// A struct with a field put in, or left out where there is no value; the field may lie deeper.
fn updated(structure: &str, path: &[String], value: Option<&str>) -> String {
    match path {
        [] => structure.to_owned(),
        [field] => match value {
            Some(value) => format!("with_field({structure}, {}, {value})", quoted(field)),
            None => format!("without_field({structure}, {})", quoted(field)),
        },
        [field, deeper @ ..] => {
            let inner = updated(&format!("({structure})[{}]", quoted(field)), deeper, value);
            format!("with_field({structure}, {}, {inner})", quoted(field))
        }
    }
}

/// An operand that cannot run into the operator beside it.
fn operand(text: &str) -> String {
    if stands_alone(text) { text.to_owned() } else { format!("({text})") }
}

/// Whether there is nothing but names, calls, quotes and parentheses at the outermost level.
fn stands_alone(text: &str) -> bool {
    let mut depth = 0usize;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\'' | '`' => {
                while let Some(inside) = chars.next() {
                    match inside {
                        '\\' if c == '\'' => drop(chars.next()),
                        inside if inside == c => break,
                        _ => {}
                    }
                }
            }
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            c if depth == 0 && !c.is_alphanumeric() && c != '_' && c != '.' => return false,
            _ => {}
        }
    }
    true
}

fn plain_call(function: &str, arguments: &[String], distinct: bool) -> Result<String> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if function.is_empty() || !function.chars().all(word) {
        return Err(Error::user("UNKNOWN_FUNCTION", format!("there is no function {}", function.escape_debug())));
    }
    let distinct = if distinct { "DISTINCT " } else { "" };
    Ok(format!("{function}({distinct}{})", arguments.join(", ")))
}
