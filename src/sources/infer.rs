//! Finding a schema in records.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, TimeUnit};
use serde_json::value::RawValue;

use super::columns::{Members, utc};
use super::csv;
use super::instants::{parse_date, parse_timestamp};
use super::json;
use super::options::{Format, Options};
use super::parquet;
use crate::lake::types::stored_type;

/// What values are so far; the join of two kinds holds the values of both.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    Null,
    Boolean,
    Long,
    /// Integers of more than 64 bits and up to 38 digits.
    Big,
    Double,
    Date,
    Timestamp,
    Text,
    List(Box<Kind>),
    Struct(Known),
    /// A type of a file that has types of its own.
    Typed(DataType),
}

/// Fields by their folded name: the name as first written, and the kind.
type Known = BTreeMap<String, (String, Kind)>;

impl Kind {
    fn join(self, other: Kind) -> Kind {
        use Kind as K;
        match (self, other) {
            (K::Null, x) | (x, K::Null) => x,
            (a, b) if a == b => a,
            (K::Long | K::Big, K::Long | K::Big) => K::Big,
            (K::Long | K::Big | K::Double, K::Long | K::Big | K::Double) => K::Double,
            (K::Date | K::Timestamp, K::Date | K::Timestamp) => K::Timestamp,
            (K::List(a), K::List(b)) => K::List(Box::new(a.join(*b))),
            (K::Struct(a), K::Struct(b)) => K::Struct(join_members(a, b)),
            (K::Typed(a), K::Typed(b)) => join_types(a, b).map_or(K::Text, K::Typed),
            _ => K::Text,
        }
    }

    fn data_type(self) -> DataType {
        match self {
            Kind::Null | Kind::Text => DataType::Utf8,
            Kind::Boolean => DataType::Boolean,
            Kind::Long => DataType::Int64,
            Kind::Big => DataType::Decimal128(38, 0),
            Kind::Double => DataType::Float64,
            Kind::Date => DataType::Date32,
            Kind::Timestamp => utc(),
            Kind::List(item) => DataType::List(Arc::new(Field::new("element", item.data_type(), true))),
            Kind::Struct(members) => DataType::Struct(fields_of(members)),
            Kind::Typed(data_type) => data_type,
        }
    }

    fn of_json(json: &str) -> Kind {
        match json.as_bytes().first() {
            Some(b'n') => Kind::Null,
            Some(b't' | b'f') => Kind::Boolean,
            Some(b'"') => Kind::Text,
            Some(b'{') => match serde_json::from_str::<Members<'_>>(json) {
                Ok(Members(members)) if !members.is_empty() => Kind::Struct(members_of(&members)),
                // An object without fields says nothing of its type.
                Ok(_) => Kind::Null,
                Err(_) => Kind::Text,
            },
            Some(b'[') => match serde_json::from_str::<Vec<&RawValue>>(json) {
                Ok(values) => {
                    Kind::List(Box::new(values.iter().fold(Kind::Null, |kind, x| kind.join(Kind::of_json(x.get())))))
                }
                Err(_) => Kind::Text,
            },
            _ => Kind::of_number(json),
        }
    }

    fn of_number(text: &str) -> Kind {
        let digits = text.trim_start_matches('-');
        if digits.bytes().all(|x| x.is_ascii_digit()) {
            return match text.parse::<i64>() {
                Ok(_) => Kind::Long,
                Err(_) if digits.len() <= 38 => Kind::Big,
                Err(_) => Kind::Text,
            };
        }
        match text.parse::<f64>() {
            Ok(x) if x.is_finite() => Kind::Double,
            _ => Kind::Text,
        }
    }

    /// Of a text that stands for a value.
    fn of_text(text: &str) -> Kind {
        let text = text.trim();
        if text.eq_ignore_ascii_case("true") || text.eq_ignore_ascii_case("false") {
            return Kind::Boolean;
        }
        if text.starts_with(|c: char| c == '-' || c == '.' || c.is_ascii_digit()) {
            if text.len() == 10 && parse_date(text).is_some() {
                return Kind::Date;
            }
            if parse_timestamp(text).is_some() {
                return Kind::Timestamp;
            }
            // What does not fit 64 bits is more likely a name than a number.
            return match Kind::of_number(text) {
                Kind::Big => Kind::Text,
                kind => kind,
            };
        }
        Kind::Text
    }
}

fn members_of(members: &[(std::borrow::Cow<'_, str>, &RawValue)]) -> Known {
    let mut out = Known::new();
    for (name, value) in members {
        add_member(&mut out, name.clone().into_owned(), Kind::of_json(value.get()));
    }
    out
}

fn add_member(members: &mut Known, name: String, kind: Kind) {
    let slot = members.entry(name.to_lowercase()).or_insert_with(|| (name, Kind::Null));
    slot.1 = std::mem::replace(&mut slot.1, Kind::Null).join(kind);
}

fn join_members(mut a: Known, b: Known) -> Known {
    for (name, kind) in b.into_values() {
        add_member(&mut a, name, kind);
    }
    a
}

fn fields_of(members: Known) -> Fields {
    members.into_values().map(|(name, kind)| Field::new(name, kind.data_type(), true)).collect()
}

/// The wider of two types of files; `None` if neither holds the other's values.
fn join_types(a: DataType, b: DataType) -> Option<DataType> {
    use crate::lake::types::widens;
    match (&a, &b) {
        (DataType::Struct(x), DataType::Struct(y)) => {
            let members = |fields: &Fields| -> Known {
                fields
                    .iter()
                    .map(|f| (f.name().to_lowercase(), (f.name().clone(), Kind::Typed(f.data_type().clone()))))
                    .collect()
            };
            Some(DataType::Struct(fields_of(join_members(members(x), members(y)))))
        }
        (DataType::List(x), DataType::List(y)) => {
            let item = join_types(x.data_type().clone(), y.data_type().clone())?;
            Some(DataType::List(Arc::new(Field::new("element", item, true))))
        }
        _ if a == b || widens(&b, &a) => Some(a),
        _ if widens(&a, &b) => Some(b),
        _ => None,
    }
}

/// Nullable everywhere, and timestamps in microseconds.
fn relaxed(data_type: &DataType) -> Option<DataType> {
    Some(match data_type {
        DataType::Timestamp(_, zone) => DataType::Timestamp(TimeUnit::Microsecond, zone.as_ref().map(|_| "UTC".into())),
        DataType::Struct(fields) => DataType::Struct(
            fields
                .iter()
                .map(|x| Some(Field::new(x.name(), relaxed(x.data_type())?, true)))
                .collect::<Option<Fields>>()?,
        ),
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            DataType::List(Arc::new(Field::new("element", relaxed(item.data_type())?, true)))
        }
        other => stored_type(other)?,
    })
}

/// Gathers a schema over several files.
pub(super) struct Inference {
    /// What the user said; the default depends on the format.
    types: Option<bool>,
    members: Known,
    /// Names in the order of a file that has one.
    order: Option<Vec<String>>,
}

impl Inference {
    pub(super) fn new(types: Option<bool>) -> Inference {
        Inference { types, members: Known::new(), order: None }
    }

    pub(super) fn add(
        &mut self,
        format: Format,
        input: File,
        options: &Options,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        match format {
            Format::Json => {
                let typed = self.types.unwrap_or(true);
                json::each_object(input, options.multi_line, |members| {
                    for (name, value) in members {
                        let kind = if typed { Kind::of_json(value.get()) } else { Kind::Text };
                        match self.members.get_mut(name.as_ref()) {
                            // The usual case, without copying the name.
                            Some(slot) if slot.1 == kind => {}
                            _ => add_member(&mut self.members, name.clone().into_owned(), kind),
                        }
                    }
                })?;
            }
            Format::Csv => {
                let typed = self.types.unwrap_or(false);
                let order = self.order.get_or_insert_default();
                csv::each_value(input, options, |name, text| {
                    if !self.members.contains_key(&name.to_lowercase()) {
                        order.push(name.to_lowercase());
                    }
                    let kind = match text {
                        Some(text) if typed => Kind::of_text(text),
                        Some(_) => Kind::Text,
                        None => Kind::Null,
                    };
                    add_member(&mut self.members, name.to_owned(), kind);
                })?;
            }
            Format::Parquet => {
                let order = self.order.get_or_insert_default();
                for field in parquet::schema(input)?.fields() {
                    let data_type = relaxed(field.data_type()).ok_or_else(|| {
                        format!("its column {} of type {} is not supported", field.name(), field.data_type())
                    })?;
                    let folded = field.name().to_lowercase();
                    if !self.members.contains_key(&folded) {
                        order.push(folded);
                    }
                    add_member(&mut self.members, field.name().clone(), Kind::Typed(data_type));
                }
            }
        }
        Ok(())
    }

    /// The fields: in the files' own order where they have one, else by name.
    pub(super) fn finish(mut self) -> Option<Fields> {
        if self.members.is_empty() {
            return None;
        }
        let members = match self.order.take() {
            Some(order) => order.iter().filter_map(|x| self.members.remove(x)).collect::<Vec<_>>(),
            None => self.members.into_values().collect(),
        };
        Some(members.into_iter().map(|(name, kind)| Field::new(name, kind.data_type(), true)).collect())
    }
}
