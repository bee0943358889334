//! What a newer client says and this server has no word for: left out, it would change a result in silence.

use std::collections::HashMap;
use std::sync::LazyLock;

use prost::Message;
use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FileDescriptorSet};

use crate::error::{Error, Result};

/// The wire definitions, as compiled.
const DEFINITIONS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/messages.bin"));

/// What only says where something stands, or does not matter here.
const NO_MATTER: [&str; 4] = [
    ".spark.connect.RelationCommon",
    ".spark.connect.ExpressionCommon",
    ".spark.connect.SourceCodeLocation",
    ".spark.connect.Opaque",
];

/// How deep messages may nest that are decoded at once.
const DEPTH: usize = 120;

enum Kind {
    Plain,
    Enumeration(String),
    Message(String),
}

#[derive(Default)]
struct Definitions {
    messages: HashMap<String, HashMap<u32, Kind>>,
    enumerations: HashMap<String, Vec<i32>>,
}

static KNOWN: LazyLock<Definitions> = LazyLock::new(|| {
    let mut known = Definitions::default();
    for file in FileDescriptorSet::decode(DEFINITIONS).unwrap_or_default().file {
        let scope = format!(".{}", file.package());
        for message in &file.message_type {
            known.add(&scope, message);
        }
        for enumeration in &file.enum_type {
            let values = enumeration.value.iter().map(|value| value.number()).collect();
            known.enumerations.insert(format!("{scope}.{}", enumeration.name()), values);
        }
    }
    known
});

impl Definitions {
    fn add(&mut self, scope: &str, message: &DescriptorProto) {
        let full = format!("{scope}.{}", message.name());
        let fields = message.field.iter().map(|field| {
            let of = field.type_name().to_owned();
            let kind = match field.r#type() {
                Type::Message => Kind::Message(of),
                Type::Enum => Kind::Enumeration(of),
                _ => Kind::Plain,
            };
            (u32::try_from(field.number()).unwrap_or(0), kind)
        });
        let fields = fields.collect();
        for nested in &message.nested_type {
            self.add(&full, nested);
        }
        for enumeration in &message.enum_type {
            let values = enumeration.value.iter().map(|value| value.number()).collect();
            self.enumerations.insert(format!("{full}.{}", enumeration.name()), values);
        }
        self.messages.insert(full, fields);
    }
}

/// Refuses fields and values of enumerations that a message has and the wire definitions have not. `message` is its full
/// name, such as `spark.connect.Relation`. What is bytes there is not looked into.
///
/// # Errors
/// `NOT_SUPPORTED`, with the number; `INVALID_PLAN_INPUT` for bytes that are no message.
pub(super) fn known(message: &str, bytes: &[u8]) -> Result<()> {
    check(&format!(".{message}"), bytes, DEPTH)
}

fn check(message: &str, mut bytes: &[u8], depth: usize) -> Result<()> {
    let depth = depth.checked_sub(1).ok_or_else(super::literal::too_deep)?;
    let Some(fields) = KNOWN.messages.get(message).filter(|_| !NO_MATTER.contains(&message)) else { return Ok(()) };
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let number = u32::try_from(key >> 3).map_err(|_| damaged())?;
        let (value, content) = match key & 7 {
            0 => (Some(varint(&mut bytes)?), None),
            1 => (None, Some(take(&mut bytes, 8)?)),
            2 => {
                let length = varint(&mut bytes)?;
                (None, Some(take(&mut bytes, usize::try_from(length).map_err(|_| damaged())?)?))
            }
            5 => (None, Some(take(&mut bytes, 4)?)),
            _ => return Err(damaged()),
        };
        match fields.get(&number) {
            None => return Err(unknown(&format!("field {number}"), message)),
            Some(Kind::Plain) => {}
            Some(Kind::Message(of)) => check(of, content.unwrap_or_default(), depth)?,
            Some(Kind::Enumeration(of)) => {
                let mut packed = content.unwrap_or_default();
                let mut values: Vec<u64> = value.into_iter().collect();
                while !packed.is_empty() {
                    values.push(varint(&mut packed)?);
                }
                let named = KNOWN.enumerations.get(of);
                // An enumeration travels as the low half of what is written.
                let is_named = |value: &u64| named.is_none_or(|named| named.contains(&(*value as u32 as i32)));
                if let Some(value) = values.iter().find(|value| !is_named(value)) {
                    return Err(unknown(&format!("value {value}"), of));
                }
            }
        }
    }
    Ok(())
}

fn unknown(what: &str, of: &str) -> Error {
    let of = of.trim_start_matches(".spark.connect.");
    Error::user("NOT_SUPPORTED", format!("the client says what this server does not know: {what} of {of}"))
        .help("a client of an older release says it in another way, or not at all")
}

fn damaged() -> Error {
    Error::user("INVALID_PLAN_INPUT", "a message that cannot be decoded")
}

fn varint(bytes: &mut &[u8]) -> Result<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().ok_or_else(damaged)?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(damaged())
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Result<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(length).ok_or_else(damaged)?;
    *bytes = rest;
    Ok(taken)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::super::wire::spark::pipeline_command::{CommandType, DefineFlow, define_flow};
    use super::super::wire::spark::{PipelineCommand, Relation};
    use super::*;

    fn flow(details: Vec<u8>) -> Vec<u8> {
        let mut details_of_flow = vec![0x52, u8::try_from(details.len()).unwrap()];
        details_of_flow.extend(details);
        let mut flow = DefineFlow { flow_name: Some("f".to_owned()), ..DefineFlow::default() }.encode_to_vec();
        flow.extend(details_of_flow);
        let mut command = vec![0x1a, u8::try_from(flow.len()).unwrap()];
        command.extend(flow);
        command
    }

    #[test]
    fn what_a_newer_client_says_of_a_flow_is_refused_and_not_left_out() {
        use define_flow::{AutoCdcFlowDetails, Details};
        let details =
            AutoCdcFlowDetails { source: Some("s".to_owned()), stored_as_scd_type: 2, ..AutoCdcFlowDetails::default() };
        let mut bytes = details.encode_to_vec();
        let message = "spark.connect.PipelineCommand";
        assert!(known(message, &flow(bytes.clone())).is_ok());
        let command = PipelineCommand::decode(flow(bytes.clone()).as_slice()).unwrap();
        let Some(CommandType::DefineFlow(DefineFlow { details: Some(Details::AutoCdcFlowDetails(read)), .. })) =
            command.command_type
        else {
            panic!("{command:?}")
        };
        assert_eq!(read, details);
        // Field 13 of the details, and a third type.
        bytes.extend([0x68, 1]);
        let error = known(message, &flow(bytes)).unwrap_err();
        assert_eq!(error.code(), "NOT_SUPPORTED");
        assert!(error.message().ends_with("field 13 of PipelineCommand.DefineFlow.AutoCdcFlowDetails"), "{error}");
        let error = known(message, &flow(vec![0x50, 3])).unwrap_err();
        assert!(error.message().ends_with("value 3 of PipelineCommand.DefineFlow.SCDType"), "{error}");
    }

    #[test]
    fn a_join_of_an_unknown_kind_is_no_inner_join() {
        // Field 4 of a join that is field 5 of a relation.
        assert!(known("spark.connect.Relation", &[0x2a, 2, 0x20, 1]).is_ok());
        assert!(Relation::decode(&[0x2a, 2, 0x20, 9][..]).is_ok());
        assert!(known("spark.connect.Relation", &[0x2a, 2, 0x20, 9]).is_err());
    }
}
