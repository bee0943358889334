//! Known mistakes that are no errors.

use super::Pipeline;
use crate::error::Span;

/// A remark on a pipeline that runs, but probably not as meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lint {
    /// SCREAMING_SNAKE_CASE and stable.
    pub code: &'static str,
    /// What stands out.
    pub message: String,
    /// Where.
    pub span: Span,
    /// What to do.
    pub help: String,
}

/// All remarks that names and syntax give rise to.
pub(super) fn lint(_pipeline: &Pipeline) -> Vec<Lint> {
    Vec::new()
}
