//! Rows as JSON lines, for whoever reads what is printed.

use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{DataType, FieldRef, Float32Type, Float64Type};
use arrow::error::ArrowError;
use arrow::json::writer::{LineDelimited, NullableEncoder};
use arrow::json::{Encoder, EncoderFactory, EncoderOptions, WriterBuilder};

/// One object a row, nulls included. JSON has no form for what is not finite: that is text, `"NaN"`, `"Infinity"`,
/// `"-Infinity"`.
///
/// # Errors
/// A type that JSON has no form for.
pub fn json_lines<'a>(batches: impl IntoIterator<Item = &'a RecordBatch>) -> Result<String, ArrowError> {
    let mut writer = WriterBuilder::new()
        .with_explicit_nulls(true)
        .with_encoder_factory(Arc::new(Floats))
        .build::<_, LineDelimited>(Vec::new());
    for batch in batches {
        writer.write(batch)?;
    }
    writer.finish()?;
    Ok(String::from_utf8_lossy(&writer.into_inner()).into_owned())
}

#[derive(Debug)]
struct Floats;

struct Finite<F>(F);

impl<F: Fn(usize) -> f64> Encoder for Finite<F> {
    fn encode(&mut self, at: usize, out: &mut Vec<u8>) {
        let value = (self.0)(at);
        let text = if value.is_finite() {
            serde_json::Number::from_f64(value).map(|n| n.to_string()).unwrap_or_default()
        } else if value.is_nan() {
            "\"NaN\"".to_owned()
        } else if value > 0.0 {
            "\"Infinity\"".to_owned()
        } else {
            "\"-Infinity\"".to_owned()
        };
        out.extend(text.into_bytes());
    }
}

impl EncoderFactory for Floats {
    fn make_default_encoder<'a>(
        &self,
        _: &'a FieldRef,
        array: &'a dyn Array,
        _: &'a EncoderOptions,
    ) -> Result<Option<NullableEncoder<'a>>, ArrowError> {
        let encoder: Box<dyn Encoder + 'a> = match array.data_type() {
            DataType::Float64 => {
                let values = array.as_primitive::<Float64Type>();
                Box::new(Finite(|at| values.value(at)))
            }
            DataType::Float32 => {
                let values = array.as_primitive::<Float32Type>();
                // By its own digits: 0.1 and not what is nearest to it among doubles.
                Box::new(Finite(|at| values.value(at).to_string().parse().unwrap_or(f64::from(values.value(at)))))
            }
            _ => return Ok(None),
        };
        Ok(Some(NullableEncoder::new(encoder, array.nulls().cloned())))
    }
}
