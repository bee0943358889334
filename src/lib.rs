//! silverflow.
