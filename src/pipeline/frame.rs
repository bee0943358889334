//! A query as a program builds it, operator by operator, with Spark's rules for names: a column is found by its name, by
//! the alias of what it comes from, or by the data frame that it was taken from.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::sql::sqlparser::ast::{self, Ident};

/// Stands before the number of the frame that a column was taken from, which is the first part of its name. No name of a user
/// holds it.
pub const FRAME_MARK: char = '\u{1}';

/// An operator with what it works on.
#[derive(Clone, Debug)]
pub struct Frame {
    /// What it does.
    pub op: FrameOp,
    /// The number by which columns are taken from it.
    pub id: Option<i64>,
}

/// What an operator does.
#[derive(Clone, Debug)]
pub enum FrameOp {
    /// Reads relation `$n`; the qualifiers name it, longest last.
    Read {
        /// Number of the relation.
        relation: usize,
        /// Names by which its columns can be qualified.
        qualifiers: Vec<Vec<String>>,
    },
    /// A query in SQL over relations `$n`.
    Sql(Box<ast::Query>),
    /// Rows that came with the query.
    Rows {
        /// Columns.
        schema: SchemaRef,
        /// Rows.
        batches: Arc<Vec<RecordBatch>>,
    },
    /// Computes columns.
    Project(Box<Frame>, Vec<Item>),
    /// Keeps rows.
    Filter(Box<Frame>, Box<ast::Expr>),
    /// Joins.
    Join(Box<JoinFrame>),
    /// UNION ALL.
    Union {
        /// The left side, whose names count.
        left: Box<Frame>,
        /// The right side.
        right: Box<Frame>,
        /// Columns are matched by name.
        by_name: bool,
        /// A column that one side does not have is null there.
        allow_missing: bool,
    },
    /// Rows of the left side that are, or are not, in the right one.
    Compare {
        /// The left side.
        left: Box<Frame>,
        /// The right side.
        right: Box<Frame>,
        /// INTERSECT, or else EXCEPT.
        intersect: bool,
        /// Copies count.
        all: bool,
    },
    /// Sorts.
    Sort(Box<Frame>, Vec<SortKey>),
    /// Skips rows and keeps so many.
    Limit {
        /// Input.
        input: Box<Frame>,
        /// Rows to leave out.
        skip: usize,
        /// Rows to keep.
        fetch: Option<usize>,
    },
    /// Groups.
    Aggregate {
        /// Input.
        input: Box<Frame>,
        /// Keys.
        keys: Vec<Item>,
        /// Aggregates.
        aggregates: Vec<Item>,
    },
    /// One row of those that are equal in the named columns, or in all.
    Distinct(Box<Frame>, Option<Vec<String>>),
    /// Another name for everything below.
    Alias(Box<Frame>, String),
    /// Adds columns, or replaces those of the same name.
    WithColumns(Box<Frame>, Vec<(String, ast::Expr)>),
    /// Renames the columns that are there.
    Rename(Box<Frame>, Vec<(String, String)>),
    /// Renames all columns.
    Names(Box<Frame>, Vec<String>),
    /// Leaves columns out: by name where they are there, or as taken from a frame.
    Drop(Box<Frame>, Vec<String>, Vec<ast::Expr>),
    /// Brings columns into an order and to types.
    Conform(Box<Frame>, SchemaRef),
    /// Puts values in place of nulls, in columns of a fitting type.
    FillNull {
        /// Input.
        input: Box<Frame>,
        /// Columns; all if empty.
        columns: Vec<String>,
        /// One value, or one a column.
        values: Vec<ast::Expr>,
    },
    /// Keeps rows with at least so many values that are not null, or with nothing but values.
    DropNull {
        /// Input.
        input: Box<Frame>,
        /// Columns that count; all if empty.
        columns: Vec<String>,
        /// How many values are needed.
        at_least: Option<i32>,
    },
    /// Puts values in place of others, in columns of a fitting type.
    Replace {
        /// Input.
        input: Box<Frame>,
        /// Columns; all if empty.
        columns: Vec<String>,
        /// Old and new values.
        values: Vec<(ast::Expr, ast::Expr)>,
    },
    /// Turns columns into rows.
    Unpivot {
        /// Input.
        input: Box<Frame>,
        /// Columns that stay.
        ids: Vec<ast::Expr>,
        /// Columns that become rows; all others if absent.
        values: Option<Vec<ast::Expr>>,
        /// Name of the column of names.
        variable: String,
        /// Name of the column of values.
        value: String,
    },
}

/// A join.
#[derive(Clone, Debug)]
pub struct JoinFrame {
    /// Left side.
    pub left: Frame,
    /// Right side.
    pub right: Frame,
    /// Kind.
    pub kind: JoinKind,
    /// Condition.
    pub on: Option<ast::Expr>,
    /// Columns that both sides have, which must be equal, and stand once in the result.
    pub using: Vec<String>,
}

/// Kind of a join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinKind {
    /// INNER, and CROSS where there is no condition.
    Inner,
    /// LEFT OUTER.
    Left,
    /// RIGHT OUTER.
    Right,
    /// FULL OUTER.
    Full,
    /// LEFT SEMI.
    Semi,
    /// LEFT ANTI.
    Anti,
}

/// One entry of a select list.
#[derive(Clone, Debug)]
pub enum Item {
    /// All columns: of everything, of a qualifier, or of a frame.
    Star {
        /// Qualifier.
        qualifier: Option<Vec<String>>,
        /// Frame.
        frame: Option<i64>,
    },
    /// An expression with the name of its column, if it is given one.
    Expr(Box<ast::Expr>, Option<String>),
    /// A call that gives several rows, with the names of its columns.
    Rows(Box<ast::Expr>, Vec<String>),
}

/// A key of a sort.
#[derive(Clone, Debug)]
pub struct SortKey {
    /// What is sorted by.
    pub expr: ast::Expr,
    /// Smallest first.
    pub ascending: bool,
    /// Nulls first.
    pub nulls_first: bool,
}

impl Frame {
    /// An operator that nothing is taken from by number.
    #[must_use]
    pub fn of(op: FrameOp) -> Frame {
        Frame { op, id: None }
    }

    /// What it works on.
    pub fn inputs(&self) -> Vec<&Frame> {
        match &self.op {
            FrameOp::Read { .. } | FrameOp::Sql(_) | FrameOp::Rows { .. } => Vec::new(),
            FrameOp::Project(input, _)
            | FrameOp::Filter(input, _)
            | FrameOp::Sort(input, _)
            | FrameOp::Limit { input, .. }
            | FrameOp::Aggregate { input, .. }
            | FrameOp::Distinct(input, _)
            | FrameOp::Alias(input, _)
            | FrameOp::WithColumns(input, _)
            | FrameOp::Rename(input, _)
            | FrameOp::Names(input, _)
            | FrameOp::Drop(input, ..)
            | FrameOp::Conform(input, _)
            | FrameOp::FillNull { input, .. }
            | FrameOp::DropNull { input, .. }
            | FrameOp::Replace { input, .. }
            | FrameOp::Unpivot { input, .. } => vec![input],
            FrameOp::Join(join) => vec![&join.left, &join.right],
            FrameOp::Union { left, right, .. } | FrameOp::Compare { left, right, .. } => vec![left, right],
        }
    }

    /// Takes off what only orders the rows: a table has no order. Behind a limit an order decides which rows there are.
    pub fn without_order(&mut self) {
        if let FrameOp::Sort(input, _) = &mut self.op {
            let input =
                std::mem::replace(input, Box::new(Frame::of(FrameOp::Read { relation: 0, qualifiers: Vec::new() })));
            self.op = FrameOp::Project(input, vec![Item::Star { qualifier: None, frame: None }]);
        }
        match &mut self.op {
            FrameOp::Project(input, _)
            | FrameOp::Filter(input, _)
            | FrameOp::Distinct(input, None)
            | FrameOp::Alias(input, _)
            | FrameOp::WithColumns(input, _)
            | FrameOp::Rename(input, _)
            | FrameOp::Names(input, _)
            | FrameOp::Drop(input, ..)
            | FrameOp::Conform(input, _) => input.without_order(),
            FrameOp::Union { left, right, .. } => {
                left.without_order();
                right.without_order();
            }
            _ => {}
        }
    }

    /// Expressions of this operator alone.
    pub fn exprs(&self) -> Vec<&ast::Expr> {
        match &self.op {
            FrameOp::Project(_, items) => items.iter().filter_map(Item::expr).collect(),
            FrameOp::Aggregate { keys, aggregates, .. } => {
                keys.iter().chain(aggregates).filter_map(Item::expr).collect()
            }
            FrameOp::Filter(_, condition) => vec![condition],
            FrameOp::Join(join) => join.on.iter().collect(),
            FrameOp::Sort(_, keys) => keys.iter().map(|key| &key.expr).collect(),
            FrameOp::WithColumns(_, columns) => columns.iter().map(|(_, expr)| expr).collect(),
            FrameOp::Drop(_, _, exprs) => exprs.iter().collect(),
            FrameOp::Unpivot { ids, values, .. } => ids.iter().chain(values.iter().flatten()).collect(),
            _ => Vec::new(),
        }
    }
}

impl Item {
    /// The expression, unless it is a star.
    pub fn expr(&self) -> Option<&ast::Expr> {
        match self {
            Item::Expr(expr, _) | Item::Rows(expr, _) => Some(expr),
            Item::Star { .. } => None,
        }
    }
}

/// A column by the parts of its name, as an expression; `frame` is the one that it was taken from.
pub fn column(parts: &[String], frame: Option<i64>) -> ast::Expr {
    let mut idents: Vec<Ident> = parts.iter().map(|part| Ident::with_quote('`', part.as_str())).collect();
    if let Some(id) = frame {
        idents.insert(0, Ident::new(format!("{FRAME_MARK}{id}")));
    }
    match idents.as_slice() {
        [only] => ast::Expr::Identifier(only.clone()),
        _ => ast::Expr::CompoundIdentifier(idents),
    }
}
