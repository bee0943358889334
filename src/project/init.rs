//! A first project: small, and it runs.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

const BRONZE: &str = "\
-- Bronze: what arrived, as it arrived.
CREATE OR REFRESH STREAMING TABLE orders_raw (
  CONSTRAINT has_key EXPECT (order_id IS NOT NULL) ON VIOLATION QUARANTINE,
  CONSTRAINT has_sequence EXPECT (updated_at IS NOT NULL) ON VIOLATION QUARANTINE
)
COMMENT 'Changes of orders'
AS SELECT *
FROM STREAM read_files(
  'landing/orders',
  format => 'json',
  schema => 'order_id STRING, status STRING, amount DECIMAL(10,2), operation STRING, updated_at TIMESTAMP'
);
";

const SILVER: &str = "\
-- Silver: every version of every order, right in whatever order its changes arrive.
CREATE OR REFRESH STREAMING TABLE orders (
  CONSTRAINT known_status EXPECT (status IN ('PLACED', 'SHIPPED', 'DELIVERED', 'CANCELLED')) ON VIOLATION QUARANTINE,
  CONSTRAINT has_amount EXPECT (amount > 0)
);

CREATE FLOW orders_history AS AUTO CDC INTO orders
FROM STREAM(orders_raw)
KEYS (order_id)
APPLY AS DELETE WHEN operation = 'DELETE'
SEQUENCE BY updated_at
COLUMNS * EXCEPT (operation, updated_at)
STORED AS SCD TYPE 2;
";

const DATA: [(&str, &str); 2] = [
    (
        "batch_1.json",
        r#"{"order_id":"A1","status":"PLACED","amount":20.00,"operation":"UPSERT","updated_at":"2026-01-01T08:00:00Z"}
{"order_id":"A1","status":"DELIVERED","amount":20.00,"operation":"UPSERT","updated_at":"2026-01-03T17:30:00Z"}
{"order_id":"A2","status":"PLACED","amount":0,"operation":"UPSERT","updated_at":"2026-01-02T09:15:00Z"}
{"order_id":"A3","status":"LOST","amount":12.50,"operation":"UPSERT","updated_at":"2026-01-02T10:00:00Z"}
"#,
    ),
    (
        "batch_2.json",
        r#"{"order_id":"A1","status":"SHIPPED","amount":20.00,"operation":"UPSERT","updated_at":"2026-01-02T12:00:00Z"}
{"order_id":"A2","status":"PLACED","amount":0,"operation":"DELETE","updated_at":"2026-01-04T09:00:00Z"}
{"order_id":"A4","status":"PLACED","amount":99.90,"operation":"UPSERT","updated_at":"2026-01-04T11:00:00Z"}
"#,
    ),
];

/// Writes a project called `name` to a new folder of that name in `dir`: a project file, two definition files, a few
/// rows to read. Returns the folder.
///
/// # Errors
/// `PROJECT_EXISTS` if something by that name is there already: nothing is overwritten. `INVALID_PROJECT_NAME` for a name
/// that cannot be a folder's.
pub fn init(name: &str, dir: &Path) -> Result<PathBuf> {
    let valid = !name.is_empty()
        && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ' '))
        && !name.starts_with(['.', '-', ' '])
        && !name.ends_with(' ');
    if !valid {
        let message = format!("`{name}` cannot name a project");
        return Err(Error::user("INVALID_PROJECT_NAME", message).help("use letters, digits, _ and -"));
    }
    let root = dir.join(name);
    if root.exists() {
        let error = Error::user("PROJECT_EXISTS", format!("{} is there already", root.display()));
        return Err(error.help("choose another name; nothing is overwritten"));
    }
    let spec = format!(
        "name: \"{name}\"\n# Tables and state: a folder beside this file, or the URL of an object store.\nstorage: storage\n\
         libraries:\n  - glob:\n      include: transformations/**\n"
    );
    let write = |path: PathBuf, text: &str| -> Result<()> {
        let failed = |e: std::io::Error| {
            Error::external("CANNOT_WRITE", format!("cannot write {}", path.display())).caused_by(e)
        };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(failed)?;
        }
        std::fs::write(&path, text).map_err(failed)
    };
    write(root.join("spark-pipeline.yml"), &spec)?;
    write(root.join(".gitignore"), "/storage/\n")?;
    write(root.join("transformations").join("bronze.sql"), BRONZE)?;
    write(root.join("transformations").join("silver.sql"), SILVER)?;
    for (file, rows) in DATA {
        write(root.join("landing").join("orders").join(file), rows)?;
    }
    Ok(root)
}
