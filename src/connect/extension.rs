//! What the protocol has no field for and our own Python module says beside: a `google.protobuf.Struct` among the
//! extensions of a definition's source location. The keys are those that `docs/python.md` lists.

use prost::Message;
use prost_types::value::Kind;
use prost_types::{Struct, Value};

use super::wire::spark::SourceCodeLocation;
use crate::error::{Error, Result};
use crate::pipeline::Action;

const TYPE: &str = "google.protobuf.Struct";

/// What is said beside a definition.
#[derive(Debug, Default)]
pub(super) struct Extension(Struct);

/// What stands beside a definition, or nothing.
pub(super) fn extension(location: Option<&SourceCodeLocation>) -> Result<Extension> {
    let found = location.into_iter().flat_map(|l| &l.extension).find(|any| any.type_url.ends_with(TYPE));
    match found {
        None => Ok(Extension::default()),
        Some(any) => {
            match Struct::decode(any.value.as_slice()) {
                Ok(given) => Ok(Extension(given)),
                Err(error) => Err(Error::user("INVALID_PLAN_INPUT", "the extension of a definition cannot be decoded")
                    .caused_by(error)),
            }
        }
    }
}

fn text(value: &Value) -> Option<String> {
    match &value.kind {
        Some(Kind::StringValue(text)) => Some(text.clone()),
        _ => None,
    }
}

impl Extension {
    fn get(&self, key: &str) -> Option<&Kind> {
        self.0.fields.get(key).and_then(|value| value.kind.as_ref())
    }

    pub(super) fn flag(&self, key: &str) -> bool {
        matches!(self.get(key), Some(Kind::BoolValue(true)))
    }

    pub(super) fn text(&self, key: &str) -> Option<String> {
        self.0.fields.get(key).and_then(text)
    }

    /// A list of texts, if it is given.
    pub(super) fn list(&self, key: &str) -> Option<Vec<String>> {
        match self.get(key) {
            Some(Kind::ListValue(list)) => Some(list.values.iter().filter_map(text).collect()),
            _ => None,
        }
    }

    pub(super) fn texts(&self, key: &str) -> Vec<String> {
        self.list(key).unwrap_or_default()
    }

    /// Name, condition and action of each expectation.
    pub(super) fn expectations(&self) -> Result<Vec<(String, String, Action)>> {
        let Some(Kind::ListValue(list)) = self.get("expectations") else { return Ok(Vec::new()) };
        let mut found = Vec::with_capacity(list.values.len());
        for value in &list.values {
            let Some(Kind::StructValue(given)) = &value.kind else { continue };
            let part = |key: &str| {
                given
                    .fields
                    .get(key)
                    .and_then(text)
                    .ok_or_else(|| Error::user("INVALID_EXPECTATION", format!("an expectation has no {key}")))
            };
            let action = match part("action")?.as_str() {
                "warn" => Action::Warn,
                "drop" => Action::Drop,
                "fail" => Action::Fail,
                "quarantine" => Action::Quarantine,
                other => return Err(Error::user("INVALID_EXPECTATION", format!("there is no action {other}"))),
            };
            found.push((part("name")?, part("condition")?, action));
        }
        Ok(found)
    }
}
