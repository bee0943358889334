//! What others did to a table while no one was looking.

use serde_json::Value;

use super::log::{Writer, changed_outside, entry_path, harmless, parse};
use super::table::Table;
use crate::error::Result;

/// Operations of ours that carry no epoch and yet more than moved rows.
const OURS: [&str; 2] = ["CREATE TABLE", "SET TABLE DEFINITION"];

impl Table {
    /// Makes sure that since `version` no one but us has changed the table. Rows that were only moved to other files are
    /// no change.
    ///
    /// Costs the reading of the log entries since then.
    ///
    /// # Errors
    /// `TABLE_CHANGED_OUTSIDE` (external), naming the first version at fault; external errors of the storage.
    pub async fn unchanged_since(&self, version: i64) -> Result<()> {
        let changed = |what: String| changed_outside(&self.location(), &what);
        if self.version < version {
            return Err(changed(format!("it is at version {}, and was at {version} before", self.version)));
        }
        let fence = Writer::fence_id(&self.writer.app_id);
        for version in version + 1..=self.version {
            let Some(bytes) = self.lake.get(&entry_path(&self.location, version)).await? else {
                return Err(changed(format!("version {version} is gone from its log")));
            };
            let actions =
                parse(&bytes).map_err(|e| changed(format!("version {version} is not readable")).caused_by(e))?;
            let app = |x: &Value| x.get("appId").and_then(Value::as_str) == Some(&self.writer.app_id);
            let epoch = actions.iter().filter_map(|x| x.get("txn")).any(app);
            let info = actions.iter().find_map(|x| x.get("commitInfo"));
            let field = |name: &str| info.and_then(|x| x.get(name)).and_then(Value::as_str).unwrap_or("unknown");
            let ours = field("engineInfo").starts_with("silverflow/") && OURS.contains(&field("operation"));
            if !epoch && !ours && !harmless(&actions, &fence) {
                return Err(changed(format!("version {version} is {} by {}", field("operation"), field("engineInfo"))));
            }
        }
        Ok(())
    }
}
