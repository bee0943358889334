//! temp
use crate::error::*; use crate::lake::*; use arrow::datatypes::SchemaRef;
/// t
pub struct DeltaSource;
impl DeltaSource {
/// t
pub async fn open(_l:&Lake,_s:&str)->Result<Self>{Ok(Self)}
/// t
pub async fn schema(&self)->Result<SchemaRef>{Err(Error::internal("x"))}
/// t
pub async fn latest_version(&self)->Result<i64>{Ok(0)}
/// t
pub async fn snapshot(&self,_v:i64)->Result<RowStream>{Err(Error::internal("x"))}
/// t
pub async fn appended(&self,_f:Option<i64>,_v:i64)->Result<RowStream>{Err(Error::internal("x"))}
}
