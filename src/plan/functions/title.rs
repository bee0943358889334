//! Names of calls. The planner asks for the name of an expression wherever it asks for its type, at every level, so that a
//! name which grows with the expression would make planning cubic in its depth.

use std::collections::VecDeque;

use datafusion::common::Result;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::Expr;
use xxhash_rust::xxh3::Xxh3;

/// How many nodes an expression may have whose name says all of it.
const WHOLE: usize = 32;

/// The name of a call: all of it, or that of the function with what tells its upper part from others. Names of columns come
/// from it, and nothing else does: what a plan computes is told apart by its expressions.
pub(super) fn of_call(name: &str, args: &[Expr]) -> Result<String> {
    match beyond(args)? {
        None => {
            let names: Vec<String> = args.iter().map(|arg| arg.schema_name().to_string()).collect();
            Ok(format!("{name}({})", names.join(",")))
        }
        Some(mark) => Ok(format!("{name}(… {mark:08x})")),
    }
}

/// A mark of the upper nodes, where there are more than a name can hold.
pub(super) fn beyond(args: &[Expr]) -> Result<Option<u32>> {
    let mut seen = Xxh3::new();
    let mut waiting: VecDeque<&Expr> = args.iter().collect();
    for _ in 0..WHOLE {
        let Some(node) = waiting.pop_front() else { return Ok(None) };
        match node {
            Expr::Column(column) => seen.update(column.flat_name().as_bytes()),
            Expr::Literal(value, _) => seen.update(value.to_string().as_bytes()),
            Expr::ScalarFunction(call) => seen.update(call.func.name().as_bytes()),
            Expr::BinaryExpr(binary) => seen.update(binary.op.to_string().as_bytes()),
            other => seen.update(other.variant_name().as_bytes()),
        }
        node.apply_children(|child| {
            waiting.push_back(child);
            Ok(TreeNodeRecursion::Continue)
        })?;
    }
    if waiting.is_empty() {
        return Ok(None);
    }
    let [a, b, c, d, ..] = seen.digest().to_le_bytes();
    Ok(Some(u32::from_le_bytes([a, b, c, d])))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use datafusion::logical_expr::{Operator, binary_expr, col, lit};

    use super::*;

    /// A sum of many terms, with one of its own at the top.
    fn sum(terms: usize, last: i32) -> Expr {
        let one = |left, right| binary_expr(left, Operator::Plus, right);
        one((1..terms).fold(col("a"), |left, _| one(left, col("a"))), lit(last))
    }

    #[test]
    fn names_of_long_sums_do_not_grow_and_tell_them_apart() {
        assert_eq!(of_call("add", &[col("a"), lit(1)]).unwrap(), "add(a,Int32(1))");
        let long = of_call("add", &[sum(200, 1)]).unwrap();
        assert!(long.len() < 20, "{long}");
        assert_eq!(long, of_call("add", &[sum(200, 1)]).unwrap());
        assert_ne!(long, of_call("add", &[sum(200, 2)]).unwrap());
    }
}
