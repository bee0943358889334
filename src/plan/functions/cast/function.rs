//! A cast as a function that DataFusion calls.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, ScalarValue, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility,
};

use super::{Misfit, cast};
use crate::plan::functions::conditional::spelled;
use crate::plan::functions::function::Settings;
use crate::plan::functions::title;
use crate::plan::functions::zone::Zone;

/// A cast to a type, as a function of one argument.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(in crate::plan) struct SparkCast {
    pub(in crate::plan::functions) to: DataType,
    pub(in crate::plan::functions) misfit: Misfit,
    pub(in crate::plan::functions) zone: Zone,
    name: String,
    signature: Signature,
}

impl SparkCast {
    pub(in crate::plan::functions) fn new(to: DataType, attempt: bool, settings: &Settings) -> SparkCast {
        let misfit = match (attempt, settings.ansi) {
            (true, _) => Misfit::Null,
            (false, true) => Misfit::Fail,
            (false, false) => Misfit::Wrap,
        };
        let kind = if misfit == Misfit::Null { "try_cast" } else { "cast" };
        // The type is part of the name: a plan as text tells one cast from another.
        let name = format!("{kind} to {}", spelled(&to));
        let signature = Signature::any(1, Volatility::Immutable);
        SparkCast { to, misfit, zone: settings.zone.clone(), name, signature }
    }
}

impl ScalarUDFImpl for SparkCast {
    fn name(&self) -> &str {
        &self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn display_name(&self, args: &[Expr]) -> Result<String> {
        match title::beyond(args)? {
            None => self.schema_name(args),
            // A plan is told from others by what it displays, which is therefore the whole.
            Some(_) => Ok(args.iter().map(ToString::to_string).collect()),
        }
    }

    /// As the planner's own cast: the name of what is cast.
    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        match title::beyond(args)? {
            None => Ok(args.iter().map(|a| a.schema_name().to_string()).collect()),
            Some(_) => title::of_call(&self.name, args),
        }
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.to.clone())
    }

    fn return_field_from_args(&self, _: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        Ok(Arc::new(Field::new("cast", self.to.clone(), true)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let convert = |array: &ArrayRef| cast(array, &self.to, self.misfit, &self.zone);
        match args.args.first() {
            Some(ColumnarValue::Array(array)) => Ok(ColumnarValue::Array(convert(array)?)),
            Some(ColumnarValue::Scalar(value)) => {
                Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&convert(&value.to_array()?)?, 0)?))
            }
            None => plan_err!("a cast of nothing"),
        }
    }
}
