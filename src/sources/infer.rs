//! Finding a schema in records.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, TimeUnit};
use serde_json::value::RawValue;

use super::columns::{Members, utc};
use super::files::Input;
use super::options::{Format, Options};
use super::{avro, csv, json, parquet};
use crate::lake::types::stored_type;
use crate::plan::{Instants, Zone};

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
    pub(super) fn join(self, other: Kind) -> Kind {
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

    pub(super) fn data_type(self) -> DataType {
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
    pub(super) fn of_text(text: &str) -> Kind {
        let Ok(instants) = Instants::new(None, None, None, &Zone::utc()) else { return Kind::Text };
        Kind::of_value(text, &instants)
    }

    /// With dates and times as they are written in a source.
    fn of_value(text: &str, instants: &Instants) -> Kind {
        let text = text.trim();
        if text.eq_ignore_ascii_case("true") || text.eq_ignore_ascii_case("false") {
            return Kind::Boolean;
        }
        if text.starts_with(|c: char| c == '-' || c == '.' || c.is_ascii_digit()) {
            // What does not fit 64 bits is more likely a name than a number.
            match Kind::of_number(text) {
                Kind::Text | Kind::Big => {}
                kind => return kind,
            }
        }
        // A year alone is a number, and a bare month is more likely a name.
        if text.contains(|c: char| c.is_ascii_digit()) && text.len() >= 6 {
            if !text.contains(['T', ' ', ':']) && instants.date(text).is_some() {
                return Kind::Date;
            }
            if instants.timestamp(text).is_some() {
                return Kind::Timestamp;
            }
        }
        Kind::Text
    }

    /// With every value that is no object or list a text.
    fn texts(self) -> Kind {
        match self {
            Kind::List(item) => Kind::List(Box::new(item.texts())),
            Kind::Struct(members) => {
                Kind::Struct(members.into_iter().map(|(key, (name, kind))| (key, (name, kind.texts()))).collect())
            }
            Kind::Null => Kind::Null,
            _ => Kind::Text,
        }
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
    texts: bool,
    members: Known,
    /// Names in the order of a file that has one.
    order: Option<Vec<String>>,
}

impl Inference {
    pub(super) fn new(options: &Options) -> Inference {
        let (types, texts) = (options.infer_types, options.primitives_as_string);
        Inference { types, texts, members: Known::new(), order: None }
    }

    pub(super) fn add(
        &mut self,
        format: Format,
        input: Input,
        options: &Options,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        match (format, input) {
            (Format::Json, Input::Bytes(input)) => {
                let (typed, texts) = (self.types.unwrap_or(true), self.texts);
                json::each_object(input, options, |members| {
                    for (name, value) in members {
                        let kind = match typed {
                            true if texts => Kind::of_json(value.get()).texts(),
                            true => Kind::of_json(value.get()),
                            false => Kind::Text,
                        };
                        match self.members.get_mut(name.as_ref()) {
                            // The usual case, without copying the name.
                            Some(slot) if slot.1 == kind => {}
                            _ => add_member(&mut self.members, name.clone().into_owned(), kind),
                        }
                    }
                })?;
            }
            (Format::Csv, Input::Bytes(input)) => {
                let typed = self.types.unwrap_or(false);
                let instants = options.instants()?;
                let order = self.order.get_or_insert_default();
                csv::each_value(input, options, |name, text| {
                    if !self.members.contains_key(&name.to_lowercase()) {
                        order.push(name.to_lowercase());
                    }
                    let kind = match text {
                        Some(text) if typed => Kind::of_value(text, &instants),
                        Some(_) => Kind::Text,
                        None => Kind::Null,
                    };
                    add_member(&mut self.members, name.to_owned(), kind);
                })?;
            }
            (Format::Parquet, Input::File(input)) => self.add_typed(parquet::schema(input)?.fields())?,
            (Format::Avro, Input::Bytes(input)) => self.add_typed(avro::schema(input)?.fields())?,
            _ => return Err("it has no schema of its own".into()),
        }
        Ok(())
    }

    fn add_typed(&mut self, fields: &Fields) -> Result<(), String> {
        let order = self.order.get_or_insert_default();
        for field in fields {
            let data_type = relaxed(field.data_type())
                .ok_or_else(|| format!("its column {} of type {} is not supported", field.name(), field.data_type()))?;
            let folded = field.name().to_lowercase();
            if !self.members.contains_key(&folded) {
                order.push(folded);
            }
            add_member(&mut self.members, field.name().clone(), Kind::Typed(data_type));
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
