//! `spark.catalog`: what the pipeline that a session reads has, told as Spark tells it.

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, ListBuilder, RecordBatch, StringArray, StringBuilder};
use arrow::datatypes::{DataType, Field, Schema};

use super::answer::Tables;
use super::expression::parts;
use super::types::{ddl, from_arrow, name};
use super::wire::spark::catalog::CatType;
use super::wire::spark::read::{NamedTable, ReadType};
use super::wire::spark::relation::RelType;
use super::wire::spark::{Catalog, Read, Relation};
use crate::error::{Error, Result};
use crate::pipeline::{Dataset, DatasetKind, TableName};
use crate::plan::function_names;
use crate::runtime::chosen;
use prost::Message;

/// One column of an answer.
enum Answer {
    Texts(&'static str, Vec<Option<String>>),
    Flags(&'static str, Vec<bool>),
    /// The schemas of tables, each a list of one name.
    Lists(&'static str, Vec<String>),
}

/// Answers a call.
///
/// # Errors
/// Calls that would change something, and what is not there (user).
pub(super) fn answer(tables: &Tables, catalog: &Catalog) -> Result<RecordBatch> {
    let missing = || Error::user("INVALID_PLAN_INPUT", "a call of spark.catalog that says nothing");
    let pipeline = &tables.pipeline;
    let text = |value: &str| batch(vec![Answer::Texts("value", vec![Some(value.to_owned())])]);
    let flag = |value: bool| batch(vec![Answer::Flags("value", vec![value])]);
    match catalog.cat_type.as_ref().ok_or_else(missing)? {
        CatType::CurrentDatabase(_) => text(&pipeline.schema),
        CatType::CurrentCatalog(_) => text(&pipeline.catalog),
        CatType::SetCurrentDatabase(set) => same("the schema", &set.db_name, &pipeline.schema),
        CatType::SetCurrentCatalog(set) => same("the catalog", &set.catalog_name, &pipeline.catalog),
        CatType::ListCatalogs(list) => {
            let mut names: Vec<String> = tables.datasets().map(|d| d.name.catalog.clone()).collect();
            names.push(pipeline.catalog.clone());
            let names = chosen(names, list.pattern.as_deref())?;
            let nothing = vec![None; names.len()];
            batch(vec![Answer::Texts("name", some(names)), Answer::Texts("description", nothing)])
        }
        CatType::ListDatabases(list) => databases(tables, chosen(schemas(tables), list.pattern.as_deref())?),
        CatType::GetDatabase(get) => {
            let wanted = last(&get.db_name)?;
            let found = schemas(tables).into_iter().find(|schema| schema.eq_ignore_ascii_case(&wanted));
            let unknown = || Error::user("SCHEMA_NOT_FOUND", format!("the pipeline has no schema {wanted}"));
            databases(tables, vec![found.ok_or_else(unknown)?])
        }
        CatType::DatabaseExists(exists) => {
            let wanted = last(&exists.db_name)?;
            flag(schemas(tables).iter().any(|schema| schema.eq_ignore_ascii_case(&wanted)))
        }
        CatType::ListTables(list) => {
            let schema = list.db_name.as_deref().map_or_else(|| Ok(pipeline.schema.clone()), last)?;
            let in_schema = tables.datasets().filter(|d| d.name.schema.eq_ignore_ascii_case(&schema));
            let mut found: Vec<&Dataset> = in_schema.collect();
            if let Some(pattern) = list.pattern.as_deref() {
                let names = chosen(found.iter().map(|d| d.name.table.clone()).collect(), Some(pattern))?;
                found.retain(|d| names.contains(&d.name.table));
            }
            listed(&found)
        }
        CatType::GetTable(get) => listed(&[table(tables, &get.table_name, get.db_name.as_deref())?]),
        CatType::TableExists(exists) => flag(table(tables, &exists.table_name, exists.db_name.as_deref()).is_ok()),
        CatType::ListColumns(list) => columns(tables, table(tables, &list.table_name, list.db_name.as_deref())?),
        CatType::ListFunctions(list) => functions(chosen(function_names(), list.pattern.as_deref())?),
        CatType::FunctionExists(exists) => {
            let wanted = last(&exists.function_name)?;
            flag(function_names().iter().any(|function| function.eq_ignore_ascii_case(&wanted)))
        }
        CatType::GetFunction(get) => {
            let wanted = last(&get.function_name)?;
            let found = function_names().into_iter().find(|function| function.eq_ignore_ascii_case(&wanted));
            let unknown = || Error::user("UNKNOWN_FUNCTION", format!("there is no function {wanted}"));
            functions(vec![found.ok_or_else(unknown)?])
        }
        // Nothing is cached; a table is read as of the last complete epoch anyway.
        CatType::IsCached(cached) => {
            table(tables, &cached.table_name, cached.db_name.as_deref())?;
            flag(false)
        }
        CatType::CacheTable(_)
        | CatType::UncacheTable(_)
        | CatType::ClearCache(_)
        | CatType::RefreshTable(_)
        | CatType::RefreshByPath(_) => nothing(),
        other => Err(Error::user("NOT_SUPPORTED", format!("spark.catalog.{} is not supported", refused(other)))
            .help("what there is, the pipeline's definitions say; spark.catalog tells it and changes nothing")),
    }
}

fn refused(call: &CatType) -> &'static str {
    match call {
        CatType::CreateExternalTable(_) => "createExternalTable",
        CatType::CreateTable(_) => "createTable",
        CatType::DropTempView(_) => "dropTempView",
        CatType::DropGlobalTempView(_) => "dropGlobalTempView",
        CatType::RecoverPartitions(_) => "recoverPartitions",
        CatType::DropTable(_) => "dropTable",
        CatType::DropView(_) => "dropView",
        CatType::CreateDatabase(_) => "createDatabase",
        CatType::DropDatabase(_) => "dropDatabase",
        CatType::ListPartitions(_) => "listPartitions",
        CatType::ListViews(_) => "listViews",
        CatType::GetTableProperties(_) => "getTableProperties",
        CatType::GetCreateTableString(_) => "getCreateTableString",
        CatType::TruncateTable(_) => "truncateTable",
        CatType::AnalyzeTable(_) => "analyzeTable",
        _ => "this call",
    }
}

/// Short names mean what the project file says; a session cannot change that under its tables.
fn same(what: &str, wanted: &str, is: &str) -> Result<RecordBatch> {
    if last(wanted)?.eq_ignore_ascii_case(is) {
        return nothing();
    }
    Err(Error::user("NOT_SUPPORTED", format!("{what} of a session is {is}, as the project says, and stays so"))
        .help(format!("qualify the name: {wanted}.table")))
}

fn last(text: &str) -> Result<String> {
    Ok(parts(text)?.pop().unwrap_or_default())
}

fn schemas(tables: &Tables) -> Vec<String> {
    let mut names: Vec<String> = tables.datasets().map(|d| d.name.schema.clone()).collect();
    names.push(tables.pipeline.schema.clone());
    names.sort();
    names.dedup();
    names
}

fn table<'a>(tables: &'a Tables, written: &str, schema: Option<&str>) -> Result<&'a Dataset> {
    let mut names = parts(written)?;
    if let (Some(schema), [_]) = (schema, names.as_slice()) {
        names.insert(0, last(schema)?);
    }
    let (catalog, default) = (tables.pipeline.catalog.as_str(), tables.pipeline.schema.as_str());
    let wanted = match names.as_slice() {
        [table] => TableName::new(catalog, default, table),
        [schema, table] => TableName::new(catalog, schema, table),
        [catalog, schema, table] => TableName::new(catalog, schema, table),
        _ => return Err(Error::user("INVALID_TABLE_NAME", format!("`{written}` is no table name"))),
    };
    tables
        .pipeline
        .datasets
        .get(&wanted)
        .ok_or_else(|| Error::user("TABLE_OR_VIEW_NOT_FOUND", format!("the pipeline has no table {written}")))
}

/// The names that fit a pattern of Spark's: `*` is anything, `|` is or, letters are letters in any case.
fn databases(tables: &Tables, names: Vec<String>) -> Result<RecordBatch> {
    let count = names.len();
    batch(vec![
        Answer::Texts("name", some(names)),
        Answer::Texts("catalog", vec![Some(tables.pipeline.catalog.clone()); count]),
        Answer::Texts("description", vec![None; count]),
        Answer::Texts("locationUri", vec![Some(tables.pipeline.storage.clone()); count]),
    ])
}

fn listed(found: &[&Dataset]) -> Result<RecordBatch> {
    let kind = |dataset: &&Dataset| {
        let kind = match dataset.kind {
            DatasetKind::StreamingTable => "STREAMING_TABLE",
            DatasetKind::MaterializedView => "MATERIALIZED_VIEW",
            DatasetKind::TemporaryView => "TEMPORARY",
        };
        Some(kind.to_owned())
    };
    batch(vec![
        Answer::Texts("name", found.iter().map(|d| Some(d.name.table.clone())).collect()),
        Answer::Texts("catalog", found.iter().map(|d| Some(d.name.catalog.clone())).collect()),
        Answer::Lists("namespace", found.iter().map(|d| d.name.schema.clone()).collect()),
        Answer::Texts("description", found.iter().map(|d| d.comment.clone()).collect()),
        Answer::Texts("tableType", found.iter().map(kind).collect()),
        Answer::Flags("isTemporary", found.iter().map(|d| d.kind == DatasetKind::TemporaryView).collect()),
    ])
}

fn functions(names: Vec<String>) -> Result<RecordBatch> {
    let count = names.len();
    batch(vec![
        Answer::Texts("name", some(names)),
        Answer::Texts("catalog", vec![None; count]),
        Answer::Texts("namespace", vec![None; count]),
        Answer::Texts("description", vec![None; count]),
        Answer::Texts("className", vec![Some(String::new()); count]),
        Answer::Flags("isTemporary", vec![true; count]),
    ])
}

/// The columns that the stored table has.
fn columns(tables: &Tables, dataset: &Dataset) -> Result<RecordBatch> {
    let full = [&dataset.name.catalog, &dataset.name.schema, &dataset.name.table].map(|part| name(part)).join(".");
    let named = NamedTable { unparsed_identifier: full, ..NamedTable::default() };
    let read = Read { read_type: Some(ReadType::NamedTable(named)), is_streaming: false };
    let schema = tables.schema(&Relation { common: None, rel_type: Some(RelType::Read(read)) }.encode_to_vec())?;
    let declared = |field: &str| {
        let column = dataset.columns.iter().flatten().find(|column| column.name.eq_ignore_ascii_case(field));
        column.and_then(|column| column.comment.clone())
    };
    let kinds = schema.fields().iter().map(|field| Ok(Some(ddl(&from_arrow(field.data_type())?)?.to_lowercase())));
    let none = vec![false; schema.fields().len()];
    batch(vec![
        Answer::Texts("name", schema.fields().iter().map(|f| Some(f.name().clone())).collect()),
        Answer::Texts("description", schema.fields().iter().map(|f| declared(f.name())).collect()),
        Answer::Texts("dataType", kinds.collect::<Result<_>>()?),
        Answer::Flags("nullable", schema.fields().iter().map(|f| f.is_nullable()).collect()),
        Answer::Flags("isPartition", none.clone()),
        Answer::Flags("isBucket", none.clone()),
        Answer::Flags("isCluster", none),
    ])
}

fn some(names: Vec<String>) -> Vec<Option<String>> {
    names.into_iter().map(Some).collect()
}

fn nothing() -> Result<RecordBatch> {
    batch(vec![Answer::Texts("value", Vec::new())])
}

fn batch(answers: Vec<Answer>) -> Result<RecordBatch> {
    let mut fields = Vec::new();
    let mut columns: Vec<ArrayRef> = Vec::new();
    for answer in answers {
        let (title, column): (_, ArrayRef) = match answer {
            Answer::Texts(title, values) => (title, Arc::new(StringArray::from(values))),
            Answer::Flags(title, values) => (title, Arc::new(BooleanArray::from(values))),
            Answer::Lists(title, values) => {
                let element = Field::new("element", DataType::Utf8, true);
                let mut lists = ListBuilder::new(StringBuilder::new()).with_field(element);
                for value in values {
                    lists.values().append_value(value);
                    lists.append(true);
                }
                (title, Arc::new(lists.finish()))
            }
        };
        fields.push(Field::new(title, column.data_type().clone(), true));
        columns.push(column);
    }
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)
        .map_err(|e| Error::internal("an answer of spark.catalog").caused_by(e))
}
