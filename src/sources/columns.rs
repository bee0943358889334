//! Building columns out of JSON values and of texts.
//!
//! A value that does not fit its type becomes null and is reported, never rounded into something else.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::rc::Rc;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryBuilder, BooleanBuilder, Date32Builder, Decimal128Builder, Float32Builder, Float64Builder,
    Int8Builder, Int16Builder, Int32Builder, Int64Builder, ListArray, MapArray, NullBufferBuilder, StringBuilder,
    StructArray, TimestampMicrosecondBuilder,
};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, FieldRef, Fields, TimeUnit};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::numbers::{not_finite, parse_decimal};
use crate::error::{Error, Result};
use crate::pipeline::Kept;
use crate::plan::{Instants, double};

/// A timestamp in UTC.
pub(super) fn utc() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
}

/// `fields` with the field at a path set to a type; structs on the way are made.
pub(super) fn with_field(fields: &Fields, path: &[String], data_type: &DataType) -> Fields {
    let Some((name, inner)) = path.split_first() else { return fields.clone() };
    let mut out: Vec<FieldRef> = fields.iter().cloned().collect();
    let at = out.iter().position(|x| x.name().eq_ignore_ascii_case(name));
    let old = at.and_then(|i| out.get(i)).map(|x| x.data_type().clone());
    let new = match (inner, old) {
        ([], _) => data_type.clone(),
        (_, Some(DataType::Struct(old))) => DataType::Struct(with_field(&old, inner, data_type)),
        _ => DataType::Struct(with_field(&Fields::empty(), inner, data_type)),
    };
    match at.and_then(|i| out.get_mut(i)) {
        Some(field) => *field = Arc::new(Field::new(field.name(), new, true)),
        None => out.push(Arc::new(Field::new(name, new, true))),
    }
    out.into()
}

/// How well a value went into its column.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// Wholly.
    Whole,
    /// Not at all; the column has a null.
    Not,
    /// All but some fields inside, which are given as a JSON object.
    Partly(String),
}

/// A key of a JSON object, or a text.
#[derive(Deserialize)]
pub(super) struct Text<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

/// The members of a JSON object, in order.
pub(super) struct Members<'a>(pub(super) Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::with_capacity(16);
                while let Some((Text(key), value)) = map.next_entry::<Text<'de>, &'de RawValue>()? {
                    members.push((key, value));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

/// What holds for all columns of a reader.
pub(super) struct Reading {
    pub(super) instants: Instants,
    /// Fields that do not fit are wanted back.
    pub(super) rescue: bool,
    /// A name that is spelt otherwise is another one.
    pub(super) exact: bool,
    /// Fields that the schema lacks, by their paths, where they are asked for.
    pub(super) unknown: Option<RefCell<BTreeSet<String>>>,
    /// Rows that are of use, if not all are.
    pub(super) kept: Option<Kept>,
}

impl Reading {
    /// Takes note of a field that the schema lacks.
    pub(super) fn miss(&self, inside: &str, name: &str) {
        if let Some(unknown) = &self.unknown {
            unknown.borrow_mut().insert(format!("{inside}{name}"));
        }
    }
}

/// Names of fields, looked up exactly, then without regard to case.
struct Names {
    exact: Vec<String>,
    folded: HashMap<String, usize>,
}

impl Names {
    fn new(fields: &Fields) -> Names {
        Names {
            exact: fields.iter().map(|x| x.name().clone()).collect(),
            folded: fields.iter().enumerate().map(|(i, x)| (x.name().to_lowercase(), i)).collect(),
        }
    }

    /// Whether there is a field of that name, however it is spelt.
    fn has(&self, name: &str) -> bool {
        self.folded.contains_key(name) || self.folded.contains_key(&name.to_lowercase())
    }

    /// The field of that name, and whether it is spelt the same. `guess` is tried first.
    fn find(&self, name: &str, guess: usize) -> Option<(usize, bool)> {
        if self.exact.get(guess).is_some_and(|x| x == name) {
            return Some((guess, true));
        }
        let at = match self.folded.get(name) {
            Some(at) => *at,
            None => *self.folded.get(&name.to_lowercase())?,
        };
        Some((at, self.exact.get(at).is_some_and(|x| x == name)))
    }
}

/// The columns of a struct, or of whole rows.
pub(super) struct Group {
    fields: Fields,
    names: Names,
    columns: Vec<Column>,
    reading: Rc<Reading>,
    /// Path of the struct, with a point at its end.
    inside: String,
    /// What is in a list is rescued with the whole list.
    rescue: bool,
}

/// One column while it is built.
pub(super) struct Column {
    kind: Kind,
    reading: Rc<Reading>,
}

enum Kind {
    Boolean(BooleanBuilder),
    Int8(Int8Builder),
    Int16(Int16Builder),
    Int32(Int32Builder),
    Int64(Int64Builder),
    Float32(Float32Builder),
    Float64(Float64Builder),
    Decimal(Decimal128Builder, u8, i8),
    Date(Date32Builder),
    Timestamp(TimestampMicrosecondBuilder),
    TimestampNtz(TimestampMicrosecondBuilder),
    Text(StringBuilder),
    Binary(BinaryBuilder),
    Struct { group: Group, validity: NullBufferBuilder },
    List { field: FieldRef, item: Box<Column>, offsets: Vec<i32>, validity: NullBufferBuilder },
    Map { entries: FieldRef, keys: StringBuilder, values: Box<Column>, offsets: Vec<i32>, validity: NullBufferBuilder },
}

impl Group {
    pub(super) fn new(fields: &Fields, reading: &Rc<Reading>) -> Result<Group> {
        Group::inside(fields, reading, String::new(), reading.rescue)
    }

    fn inside(fields: &Fields, reading: &Rc<Reading>, inside: String, rescue: bool) -> Result<Group> {
        let columns = fields
            .iter()
            .map(|x| {
                Column::new(x.data_type(), reading, || format!("{inside}{}.", x.name()), rescue).ok_or_else(|| {
                    Error::user(
                        "UNSUPPORTED_DATA_TYPE",
                        format!("the column {} cannot be read as {} from such files", x.name(), x.data_type()),
                    )
                })
            })
            .collect::<Result<_>>()?;
        let reading = Rc::clone(reading);
        Ok(Group { fields: fields.clone(), names: Names::new(fields), columns, reading, inside, rescue })
    }

    /// Appends the members of an object, each by its name; a name that occurs twice counts the last time, but an
    /// exactly spelt one comes before others.
    pub(super) fn append(&mut self, members: &[(Cow<'_, str>, &RawValue)]) -> Fit {
        let mut slots: Vec<Option<(usize, bool)>> = vec![None; self.columns.len()];
        let mut rescued = self.rescue.then(Rescued::default);
        let mut guess = 0;
        for (i, (name, value)) in members.iter().enumerate() {
            match self.names.find(name, guess).filter(|found| found.1 || !self.reading.exact) {
                Some((at, exact)) => {
                    guess = at + 1;
                    if let Some(slot) = slots.get_mut(at)
                        && slot.is_none_or(|(_, before)| exact || !before)
                    {
                        *slot = Some((i, exact));
                    }
                }
                None => {
                    if self.reading.unknown.is_some() && !self.names.has(name) {
                        self.reading.miss(&self.inside, name);
                    }
                    if let Some(rescued) = &mut rescued {
                        rescued.add(name, value.get());
                    }
                }
            }
        }
        let mut whole = true;
        for (column, slot) in self.columns.iter_mut().zip(slots) {
            let Some((name, value)) = slot.and_then(|(i, _)| members.get(i)) else {
                column.append_null();
                continue;
            };
            let lost = match column.append_json(value.get()) {
                Fit::Whole => continue,
                Fit::Not => Cow::Borrowed(value.get()),
                Fit::Partly(inside) => Cow::Owned(inside),
            };
            whole = false;
            if let Some(rescued) = &mut rescued {
                rescued.add(name, &lost);
            }
        }
        match rescued.and_then(Rescued::finish) {
            Some(rescued) => Fit::Partly(rescued),
            None if whole => Fit::Whole,
            None => Fit::Partly(String::new()),
        }
    }

    pub(super) fn append_null(&mut self) {
        self.columns.iter_mut().for_each(Column::append_null);
    }

    /// The column at a place.
    pub(super) fn column(&mut self, at: usize) -> Option<&mut Column> {
        self.columns.get_mut(at)
    }

    /// The finished columns; the group is empty again.
    pub(super) fn finish(&mut self) -> Result<Vec<ArrayRef>> {
        self.columns.iter_mut().map(Column::finish).collect()
    }
}

/// A JSON object that is put together from members as they stood.
#[derive(Default)]
pub(super) struct Rescued {
    text: String,
}

impl Rescued {
    /// Adds a member; `value` is JSON.
    pub(super) fn add(&mut self, name: &str, value: &str) {
        let separator = if self.text.is_empty() { '{' } else { ',' };
        let name = serde_json::to_string(name).unwrap_or_default();
        // Writing to a string does not fail.
        let _ = write!(self.text, "{separator}{name}:{value}");
    }

    /// The object, if it has members.
    pub(super) fn finish(mut self) -> Option<String> {
        if self.text.is_empty() {
            return None;
        }
        self.text.push('}');
        Some(self.text)
    }
}

macro_rules! all_builders {
    ($kind:expr, $builder:ident => $do:expr, $other:pat => $else:expr) => {
        match $kind {
            Kind::Boolean($builder) => $do,
            Kind::Int8($builder) => $do,
            Kind::Int16($builder) => $do,
            Kind::Int32($builder) => $do,
            Kind::Int64($builder) => $do,
            Kind::Float32($builder) => $do,
            Kind::Float64($builder) => $do,
            Kind::Decimal($builder, ..) => $do,
            Kind::Date($builder) => $do,
            Kind::Timestamp($builder) | Kind::TimestampNtz($builder) => $do,
            Kind::Text($builder) => $do,
            Kind::Binary($builder) => $do,
            $other => $else,
        }
    };
}

impl Column {
    /// For a type; `None` if there is no way to it from JSON.
    fn new(data_type: &DataType, reading: &Rc<Reading>, inside: impl Fn() -> String, rescue: bool) -> Option<Column> {
        let kind = match data_type {
            DataType::Boolean => Kind::Boolean(BooleanBuilder::new()),
            DataType::Int8 => Kind::Int8(Int8Builder::new()),
            DataType::Int16 => Kind::Int16(Int16Builder::new()),
            DataType::Int32 => Kind::Int32(Int32Builder::new()),
            DataType::Int64 => Kind::Int64(Int64Builder::new()),
            DataType::Float32 => Kind::Float32(Float32Builder::new()),
            DataType::Float64 => Kind::Float64(Float64Builder::new()),
            DataType::Decimal128(p, s) if *s >= 0 => {
                Kind::Decimal(Decimal128Builder::new().with_precision_and_scale(*p, *s).ok()?, *p, *s)
            }
            DataType::Date32 => Kind::Date(Date32Builder::new()),
            DataType::Timestamp(TimeUnit::Microsecond, Some(_)) => {
                Kind::Timestamp(TimestampMicrosecondBuilder::new().with_data_type(data_type.clone()))
            }
            DataType::Timestamp(TimeUnit::Microsecond, None) => Kind::TimestampNtz(TimestampMicrosecondBuilder::new()),
            DataType::Utf8 => Kind::Text(StringBuilder::new()),
            DataType::Binary => Kind::Binary(BinaryBuilder::new()),
            DataType::Struct(fields) => {
                let group = Group::inside(fields, reading, inside(), rescue).ok()?;
                Kind::Struct { group, validity: NullBufferBuilder::new(0) }
            }
            DataType::List(field) => Kind::List {
                field: Arc::clone(field),
                item: Box::new(Column::new(field.data_type(), reading, inside, false)?),
                offsets: vec![0],
                validity: NullBufferBuilder::new(0),
            },
            DataType::Map(entries, false) => {
                let DataType::Struct(pair) = entries.data_type() else { return None };
                let [key, value] = pair.as_ref() else { return None };
                if key.data_type() != &DataType::Utf8 {
                    return None;
                }
                Kind::Map {
                    entries: Arc::clone(entries),
                    keys: StringBuilder::new(),
                    values: Box::new(Column::new(value.data_type(), reading, inside, false)?),
                    offsets: vec![0],
                    validity: NullBufferBuilder::new(0),
                }
            }
            _ => return None,
        };
        Some(Column { kind, reading: Rc::clone(reading) })
    }

    pub(super) fn append_null(&mut self) {
        all_builders!(&mut self.kind, builder => builder.append_null(), nested => match nested {
            Kind::Struct { group, validity } => {
                group.append_null();
                validity.append_null();
            }
            Kind::List { offsets, validity, .. } | Kind::Map { offsets, validity, .. } => {
                offsets.push(offsets.last().copied().unwrap_or(0));
                validity.append_null();
            }
            _ => {}
        });
    }

    /// Appends a value given as valid JSON.
    pub(super) fn append_json(&mut self, json: &str) -> Fit {
        if json == "null" {
            self.append_null();
            return Fit::Whole;
        }
        let fits = match &mut self.kind {
            Kind::Struct { group, validity } => match serde_json::from_str::<Members<'_>>(json) {
                Ok(Members(members)) => {
                    validity.append_non_null();
                    return group.append(&members);
                }
                Err(_) => false,
            },
            Kind::List { item, offsets, validity, .. } => match serde_json::from_str::<Vec<&RawValue>>(json) {
                Ok(values) => {
                    let mut whole = true;
                    for value in &values {
                        whole &= item.append_json(value.get()) == Fit::Whole;
                    }
                    offsets.push(
                        offsets
                            .last()
                            .copied()
                            .unwrap_or(0)
                            .saturating_add(i32::try_from(values.len()).unwrap_or(i32::MAX)),
                    );
                    validity.append_non_null();
                    return if whole { Fit::Whole } else { Fit::Partly(json.to_owned()) };
                }
                Err(_) => false,
            },
            Kind::Map { keys, values, offsets, validity, .. } => match serde_json::from_str::<Members<'_>>(json) {
                Ok(Members(members)) => {
                    let last: HashMap<&str, usize> =
                        members.iter().enumerate().map(|(i, (name, _))| (name.as_ref(), i)).collect();
                    let mut whole = true;
                    for (i, (name, value)) in members.iter().enumerate() {
                        if last.get(name.as_ref()) == Some(&i) {
                            keys.append_value(name);
                            whole &= values.append_json(value.get()) == Fit::Whole;
                        }
                    }
                    offsets.push(
                        offsets
                            .last()
                            .copied()
                            .unwrap_or(0)
                            .saturating_add(i32::try_from(last.len()).unwrap_or(i32::MAX)),
                    );
                    validity.append_non_null();
                    return if whole { Fit::Whole } else { Fit::Partly(json.to_owned()) };
                }
                Err(_) => false,
            },
            Kind::Text(builder) => match json.as_bytes().first() {
                Some(b'"') => match serde_json::from_str::<Text<'_>>(json) {
                    Ok(Text(text)) => {
                        builder.append_value(text);
                        true
                    }
                    Err(_) => false,
                },
                _ => {
                    builder.append_value(json);
                    true
                }
            },
            Kind::Boolean(builder) => match json {
                "true" => append(builder, Some(true), BooleanBuilder::append_value),
                "false" => append(builder, Some(false), BooleanBuilder::append_value),
                _ => false,
            },
            _ if json.starts_with('"') => match serde_json::from_str::<Text<'_>>(json) {
                Ok(Text(text)) => self.append_quoted(&text),
                Err(_) => false,
            },
            // An integer is taken for seconds since 1970.
            Kind::Timestamp(builder) => {
                let micros = json.parse::<i64>().ok().and_then(|x| x.checked_mul(1_000_000));
                append(builder, micros, TimestampMicrosecondBuilder::append_value)
            }
            Kind::Date(_) | Kind::TimestampNtz(_) => false,
            _ => json.starts_with(|c: char| c == '-' || c.is_ascii_digit()) && self.append_number(json),
        };
        if !fits {
            self.append_null();
            return Fit::Not;
        }
        Fit::Whole
    }

    /// A JSON text in a column that is none: instants, decimals and what is no finite number.
    fn append_quoted(&mut self, text: &str) -> bool {
        let instants = &self.reading.instants;
        match &mut self.kind {
            Kind::Date(builder) => append(builder, instants.date(text), Date32Builder::append_value),
            Kind::Timestamp(builder) => {
                append(builder, instants.timestamp(text), TimestampMicrosecondBuilder::append_value)
            }
            Kind::TimestampNtz(builder) => {
                append(builder, instants.local(text), TimestampMicrosecondBuilder::append_value)
            }
            Kind::Binary(builder) => {
                use base64::Engine;
                let bytes = base64::engine::general_purpose::STANDARD.decode(text).ok();
                append(builder, bytes, BinaryBuilder::append_value)
            }
            Kind::Decimal(builder, p, s) => {
                append(builder, parse_decimal(text, *p, *s), Decimal128Builder::append_value)
            }
            Kind::Float64(builder) => append(builder, not_finite(text), Float64Builder::append_value),
            Kind::Float32(builder) => append(builder, not_finite(text).map(|x| x as f32), Float32Builder::append_value),
            _ => false,
        }
    }

    fn append_number(&mut self, text: &str) -> bool {
        match &mut self.kind {
            Kind::Int8(builder) => append(builder, text.parse().ok(), Int8Builder::append_value),
            Kind::Int16(builder) => append(builder, text.parse().ok(), Int16Builder::append_value),
            Kind::Int32(builder) => append(builder, text.parse().ok(), Int32Builder::append_value),
            Kind::Int64(builder) => append(builder, text.parse().ok(), Int64Builder::append_value),
            Kind::Float32(builder) => {
                append(builder, text.parse().ok().filter(|x: &f32| x.is_finite()), Float32Builder::append_value)
            }
            Kind::Float64(builder) => {
                append(builder, text.parse().ok().filter(|x: &f64| x.is_finite()), Float64Builder::append_value)
            }
            Kind::Decimal(builder, p, s) => {
                append(builder, parse_decimal(text, *p, *s), Decimal128Builder::append_value)
            }
            _ => false,
        }
    }

    /// Appends a text that stands for a value, as in separated values; false if it does not fit, and then a null.
    pub(super) fn append_text(&mut self, text: &str) -> bool {
        let fits = match &mut self.kind {
            Kind::Text(builder) => append(builder, Some(text), StringBuilder::append_value),
            Kind::Binary(builder) => append(builder, Some(text), BinaryBuilder::append_value),
            Kind::Boolean(builder) => {
                let value = match text {
                    x if x.eq_ignore_ascii_case("true") => Some(true),
                    x if x.eq_ignore_ascii_case("false") => Some(false),
                    _ => None,
                };
                append(builder, value, BooleanBuilder::append_value)
            }
            Kind::Float64(builder) => append(builder, double(text), Float64Builder::append_value),
            Kind::Float32(builder) => append(builder, double(text).map(|x| x as f32), Float32Builder::append_value),
            Kind::Date(_) | Kind::Timestamp(_) | Kind::TimestampNtz(_) => self.append_quoted(text),
            _ => self.append_number(text),
        };
        if !fits {
            self.append_null();
        }
        fits
    }

    fn finish(&mut self) -> Result<ArrayRef> {
        let wrong = |e| Error::internal("columns cannot be put together").caused_by(e);
        Ok(all_builders!(&mut self.kind, builder => Arc::new(builder.finish()), nested => match nested {
            Kind::Struct { group, validity } => {
                let nulls = validity.finish();
                let columns = group.finish()?;
                match (&nulls, columns.is_empty()) {
                    (Some(nulls), true) => Arc::new(StructArray::new_empty_fields(nulls.len(), Some(nulls.clone()))),
                    _ => Arc::new(StructArray::try_new(group.fields.clone(), columns, nulls).map_err(wrong)?),
                }
            }
            Kind::List { field, item, offsets, validity } => {
                let offsets = OffsetBuffer::new(ScalarBuffer::from(std::mem::replace(offsets, vec![0])));
                Arc::new(ListArray::try_new(Arc::clone(field), offsets, item.finish()?, validity.finish()).map_err(wrong)?)
            }
            Kind::Map { entries, keys, values, offsets, validity } => {
                let DataType::Struct(pair) = entries.data_type() else { return Err(Error::internal("a map without entries")) };
                let offsets = OffsetBuffer::new(ScalarBuffer::from(std::mem::replace(offsets, vec![0])));
                let pairs = StructArray::try_new(pair.clone(), vec![Arc::new(keys.finish()), values.finish()?], None).map_err(wrong)?;
                Arc::new(MapArray::try_new(Arc::clone(entries), offsets, pairs, validity.finish(), false).map_err(wrong)?)
            }
            _ => return Err(Error::internal("a column of an unknown kind")),
        }))
    }
}

fn append<B, V>(builder: &mut B, value: Option<V>, with: impl FnOnce(&mut B, V)) -> bool {
    match value {
        Some(value) => {
            with(builder, value);
            true
        }
        None => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
