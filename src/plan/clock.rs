//! The clock in expressions. `current_timestamp()`, `now()` and `current_date()` are planned as volatile markers (so that
//! the optimizer neither folds nor moves them) and then become expressions over a hidden column: [`WALL_COLUMN`](super::schema::WALL_COLUMN) where the
//! clock is read when a row arrives, [`NOW_COLUMN`](super::schema::NOW_COLUMN) where it is read ever anew.

use std::any::Any;
use std::sync::Arc;

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, DataFusionError, Result, ScalarValue, internal_err};
use datafusion::functions::datetime;
use datafusion::logical_expr::{
    Cast, ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::functions::Zone;
use super::schema::wall_type;
use super::spark::cast_of;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Reading {
    Timestamp,
    Date,
    Local,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Clock {
    name: &'static str,
    reading: Reading,
    /// What a question reads: its own beginning, and the zone of its session.
    shown: Option<(i64, Zone)>,
    signature: Signature,
}

impl ScalarUDFImpl for Clock {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(match self.reading {
            Reading::Timestamp => wall_type(),
            Reading::Date => DataType::Date32,
            Reading::Local => DataType::Timestamp(TimeUnit::Microsecond, None),
        })
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let Some((micros, zone)) = &self.shown else { return internal_err!("the clock was not bound to an epoch") };
        let shown = match self.reading {
            Reading::Timestamp => ScalarValue::TimestampMicrosecond(Some(*micros), Some("UTC".into())),
            Reading::Date => ScalarValue::Date32(i32::try_from(zone.local(*micros).div_euclid(DAY)).ok()),
            Reading::Local => ScalarValue::TimestampMicrosecond(Some(zone.local(*micros)), None),
        };
        Ok(ColumnarValue::Scalar(shown))
    }
}

/// Microseconds of a day.
const DAY: i64 = 86_400_000_000;

/// The functions that read the clock: as markers for flows, or as they read it now, in a zone, for a question.
pub(super) fn clock_functions(question: Option<&Zone>) -> Vec<ScalarUDF> {
    let shown = question.map(|zone| (chrono::Utc::now().timestamp_micros(), zone.clone()));
    [
        ("now", Reading::Timestamp),
        ("current_timestamp", Reading::Timestamp),
        ("current_date", Reading::Date),
        ("curdate", Reading::Date),
        ("today", Reading::Date),
        ("localtimestamp", Reading::Local),
    ]
    .into_iter()
    .map(|(name, reading)| {
        let signature = Signature::nullary(Volatility::Volatile);
        ScalarUDF::new_from_impl(Clock { name, reading, shown: shown.clone(), signature })
    })
    .collect()
}

/// How the expression itself reads the clock.
pub(super) fn reading(expr: &Expr) -> Option<Reading> {
    match expr {
        Expr::ScalarFunction(function) => {
            (function.func.inner().as_ref() as &dyn Any).downcast_ref::<Clock>().map(|clock| clock.reading)
        }
        _ => None,
    }
}

/// Whether the expression reads the clock.
pub(super) fn reads_clock(expr: &Expr) -> bool {
    expr.exists(|e| Ok(reading(e).is_some())).unwrap_or(false)
}

/// Whether the expression hands on what the clock shows, as it is or cast.
pub(super) fn is_reading(expr: &Expr) -> bool {
    match expr {
        Expr::Alias(alias) => is_reading(&alias.expr),
        other => reading(other).is_some() || cast_of(other).is_some_and(is_reading),
    }
}

/// Turns the clock into expressions over the hidden column `column`, in the session's time zone.
pub(super) fn bind_clock(expr: Expr, column: &str, zone: &Arc<str>) -> Result<Expr, DataFusionError> {
    Ok(expr
        .transform_up(|e| {
            let Some(reading) = reading(&e) else { return Ok(Transformed::no(e)) };
            let shown = Expr::Column(Column::new_unqualified(column));
            let zoned = |expr: Expr| {
                Expr::Cast(Cast::new(
                    Box::new(expr),
                    DataType::Timestamp(TimeUnit::Microsecond, Some(Arc::clone(zone))),
                ))
            };
            Ok(Transformed::yes(match reading {
                Reading::Timestamp => shown,
                Reading::Date => Expr::Cast(Cast::new(Box::new(zoned(shown)), DataType::Date32)),
                Reading::Local => datetime::to_local_time().call(vec![zoned(shown)]),
            }))
        })?
        .data)
}
