//! Where DataFusion reads an expression otherwise than Spark, its meaning is put right here, or the expression is refused.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DFSchema, Result, ScalarValue, internal_err, not_impl_err, plan_err};
use datafusion::functions::core::named_struct;
use datafusion::functions_nested::extract::array_element_udf;
use datafusion::functions_nested::map_extract::map_extract_udf;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::expr_rewriter::FunctionRewrite;
use datafusion::logical_expr::{
    BinaryExpr, Cast, ColumnarValue, Expr, ExprSchemable, Operator, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl,
    Signature, Volatility, lit, when,
};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::BinaryExpr as PhysicalBinary;

/// Functions whose meaning differs from that of Spark's function of the same name; they are not offered.
pub(super) const NOT_OFFERED: [&str; 2] = ["date_format", "to_char"];

const ELEMENT_AT: &str = "element_at";

/// `element_at(array, position)` and `element_at(map, key)`, until the types are known.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ElementAt {
    signature: Signature,
}

/// The functions that [`SparkMeaning`] takes the place of.
pub(super) fn markers() -> Vec<ScalarUDF> {
    vec![ScalarUDF::new_from_impl(ElementAt { signature: Signature::any(2, Volatility::Immutable) })]
}

impl ScalarUDFImpl for ElementAt {
    fn name(&self) -> &str {
        ELEMENT_AT
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types.first() {
            Some(DataType::List(item)) => Ok(item.data_type().clone()),
            Some(DataType::Map(entries, _)) => match entries.data_type() {
                DataType::Struct(fields) => match fields.get(1) {
                    Some(value) => Ok(value.data_type().clone()),
                    None => plan_err!("a map without values"),
                },
                other => plan_err!("entries of a map are a struct, not {other}"),
            },
            Some(other) => plan_err!("element_at takes an array or a map, not {other}"),
            None => plan_err!("element_at takes an array or a map"),
        }
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        internal_err!("element_at was not resolved by its argument's type")
    }
}

/// `/` of integers is fractional, `a[i]` counts from 0, `element_at` gives the element, `substring` counts from both ends,
/// `struct(a, b)` has members of those names.
#[derive(Debug)]
pub(super) struct SparkMeaning;

impl FunctionRewrite for SparkMeaning {
    fn name(&self) -> &str {
        "spark_meaning"
    }

    fn rewrite(&self, expr: Expr, schema: &DFSchema, _: &ConfigOptions) -> Result<Transformed<Expr>> {
        match expr {
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::Divide, right })
                if left.get_type(schema)?.is_integer() && right.get_type(schema)?.is_integer() =>
            {
                let double = |e: &Expr| Expr::Cast(Cast::new(Box::new(e.clone()), DataType::Float64));
                let whole = Expr::BinaryExpr(BinaryExpr::new(left.clone(), Operator::Divide, right.clone()));
                let fraction = Expr::BinaryExpr(BinaryExpr::new(
                    Box::new(double(&left)),
                    Operator::Divide,
                    Box::new(double(&right)),
                ));
                // A division by zero fails as one of integers; as one of doubles it would be infinite.
                let zero = Expr::Cast(Cast::new(Box::new(lit(0i64)), right.get_type(schema)?));
                Ok(Transformed::yes(when((*right).eq(zero), double(&whole)).otherwise(fraction)?))
            }
            Expr::ScalarFunction(ScalarFunction { func, args }) => function(func, args, schema),
            other => Ok(Transformed::no(other)),
        }
    }
}

fn call(func: Arc<ScalarUDF>, args: Vec<Expr>) -> Transformed<Expr> {
    Transformed::yes(Expr::ScalarFunction(ScalarFunction { func, args }))
}

fn function(func: Arc<ScalarUDF>, args: Vec<Expr>, schema: &DFSchema) -> Result<Transformed<Expr>> {
    match (func.name(), args.as_slice()) {
        ("array_element", [array, index]) => {
            let index = match index {
                Expr::Literal(value, _) => value.cast_to(&DataType::Int64).ok(),
                _ => None,
            };
            match index {
                Some(ScalarValue::Int64(Some(index))) if index >= 0 => {
                    Ok(call(func, vec![array.clone(), lit(index + 1)]))
                }
                _ => not_impl_err!("an array subscript that is no number; write element_at(array, position)"),
            }
        }
        (ELEMENT_AT, [from, key]) => match from.get_type(schema)? {
            DataType::List(_) => Ok(call(array_element_udf(), vec![from.clone(), key.clone()])),
            _ => {
                let found = Expr::ScalarFunction(ScalarFunction { func: map_extract_udf(), args });
                Ok(call(array_element_udf(), vec![found, lit(1i64)]))
            }
        },
        ("substr", _) => Ok(call(datafusion_spark::function::string::substring(), args)),
        ("struct", _) => {
            let mut named = Vec::with_capacity(args.len() * 2);
            for (index, arg) in args.into_iter().enumerate() {
                let name = match &arg {
                    Expr::Column(column) => column.name.clone(),
                    Expr::Alias(alias) => alias.name.clone(),
                    _ => format!("col{}", index + 1),
                };
                named.extend([lit(name), arg]);
            }
            Ok(call(named_struct(), named))
        }
        _ => Ok(Transformed::no(Expr::ScalarFunction(ScalarFunction { func, args }))),
    }
}

/// Integer arithmetic that overflows fails, as it does in Spark's ANSI mode, instead of wrapping around.
pub(super) fn checked(expr: Arc<dyn PhysicalExpr>) -> Result<Arc<dyn PhysicalExpr>> {
    Ok(expr
        .transform_up(|e| {
            let Some(binary) = (e.as_ref() as &dyn std::any::Any).downcast_ref::<PhysicalBinary>() else {
                return Ok(Transformed::no(e));
            };
            if !matches!(binary.op(), Operator::Plus | Operator::Minus | Operator::Multiply) {
                return Ok(Transformed::no(e));
            }
            let strict = PhysicalBinary::new(Arc::clone(binary.left()), *binary.op(), Arc::clone(binary.right()));
            Ok(Transformed::yes(Arc::new(strict.with_fail_on_overflow(true)) as Arc<dyn PhysicalExpr>))
        })?
        .data)
}
