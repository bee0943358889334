//! A stack that is large enough for whatever a definition may nest, whichever thread asks: parsing, checking and planning
//! walk trees recursively.

use crate::error::{Error, Result};

/// Of which the system gives what is used.
const SIZE: usize = 256 << 20;

/// Does the work on a thread with a large stack, and waits for it.
///
/// # Errors
/// `NO_THREADS` (external) if no thread can be started; else what the work gives.
pub(crate) fn on_large_stack<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("silverflow-plan".to_owned())
            .stack_size(SIZE)
            .spawn_scoped(scope, work)
            .map_err(|e| Error::external("NO_THREADS", "a thread for planning cannot start").caused_by(e))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
