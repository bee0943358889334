//! Hashes: of bytes as text, and of any values as Spark folds them with a seed.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int32Array, Int64Array};
use arrow::datatypes::{
    DataType, Date32Type, Decimal128Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    TimestampMicrosecondType,
};
use datafusion::common::{Result, not_impl_err};
use md5::{Digest, Md5};
use sha1::Sha1;
use sha2::{Sha224, Sha256, Sha384, Sha512};
use xxhash_rust::xxh64::xxh64;

use super::function::Kind::{Any, Binary, Int};
use super::function::{Asked, Body, Call, Function, Typed};
use super::map::ends;

pub(super) fn functions() -> Vec<Function> {
    vec![
        Function::new("md5", &[Binary], Body::Text(|r| Ok(Some(hex::encode(Md5::digest(r.bytes(0))))))),
        Function::new("sha1", &[Binary], Body::Text(|r| Ok(Some(hex::encode(Sha1::digest(r.bytes(0)))))))
            .also(&["sha"]),
        Function::new(
            "sha2",
            &[Binary, Int],
            Body::Text(|r| {
                let bytes = r.bytes(0);
                Ok(match r.int(1) {
                    0 | 256 => Some(hex::encode(Sha256::digest(bytes))),
                    224 => Some(hex::encode(Sha224::digest(bytes))),
                    384 => Some(hex::encode(Sha384::digest(bytes))),
                    512 => Some(hex::encode(Sha512::digest(bytes))),
                    _ => None,
                })
            }),
        ),
        Function::new("crc32", &[Binary], Body::Long(|r| Ok(Some(i64::from(crc32fast::hash(r.bytes(0))))))),
        Function::new(
            "hash",
            &[Any],
            Body::Arrays(
                |asked| typed(asked, DataType::Int32),
                |call| {
                    let seeds = folded::<Murmur3>(call)?;
                    Ok(Arc::new(seeds.into_iter().map(u32::cast_signed).collect::<Int32Array>()))
                },
            ),
        )
        .variadic(),
        Function::new(
            "xxhash64",
            &[Any],
            Body::Arrays(
                |asked| typed(asked, DataType::Int64),
                |call| {
                    let seeds = folded::<XxHash64>(call)?;
                    Ok(Arc::new(seeds.into_iter().map(u64::cast_signed).collect::<Int64Array>()))
                },
            ),
        )
        .variadic(),
    ]
}

fn typed(asked: &Asked<'_>, result: DataType) -> Result<Typed> {
    Ok(Typed { arguments: asked.types.to_vec(), result })
}

/// A hash that values are folded into one by one, the hash so far as the seed.
trait Fold {
    type State: Copy;
    const SEED: Self::State;
    fn int(value: i32, seed: Self::State) -> Self::State;
    fn long(value: i64, seed: Self::State) -> Self::State;
    fn bytes(value: &[u8], seed: Self::State) -> Self::State;
}

struct XxHash64;

impl Fold for XxHash64 {
    type State = u64;
    const SEED: u64 = 42;

    fn int(value: i32, seed: u64) -> u64 {
        xxh64(&value.to_le_bytes(), seed)
    }

    fn long(value: i64, seed: u64) -> u64 {
        xxh64(&value.to_le_bytes(), seed)
    }

    fn bytes(value: &[u8], seed: u64) -> u64 {
        xxh64(value, seed)
    }
}

/// Murmur3 in Spark's form, in which each byte behind the last whole word is a word of its own.
struct Murmur3;

impl Murmur3 {
    fn mix(state: u32, word: u32) -> u32 {
        let word = word.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
        (state ^ word).rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64)
    }

    fn finish(state: u32, length: u32) -> u32 {
        let mut state = state ^ length;
        state = (state ^ state >> 16).wrapping_mul(0x85eb_ca6b);
        state = (state ^ state >> 13).wrapping_mul(0xc2b2_ae35);
        state ^ state >> 16
    }
}

impl Fold for Murmur3 {
    type State = u32;
    const SEED: u32 = 42;

    fn int(value: i32, seed: u32) -> u32 {
        Murmur3::finish(Murmur3::mix(seed, value.cast_unsigned()), 4)
    }

    fn long(value: i64, seed: u32) -> u32 {
        let value = value.cast_unsigned();
        let (low, high) = (value as u32, (value >> 32) as u32);
        Murmur3::finish(Murmur3::mix(Murmur3::mix(seed, low), high), 8)
    }

    fn bytes(value: &[u8], seed: u32) -> u32 {
        let mut state = seed;
        let words = value.chunks_exact(4);
        let rest = words.remainder();
        for word in words {
            let word = word.iter().rev().fold(0u32, |word, byte| word << 8 | u32::from(*byte));
            state = Murmur3::mix(state, word);
        }
        for byte in rest {
            state = Murmur3::mix(state, i32::from(byte.cast_signed()).cast_unsigned());
        }
        Murmur3::finish(state, u32::try_from(value.len()).unwrap_or(u32::MAX))
    }
}

fn folded<F: Fold>(call: &Call<'_>) -> Result<Vec<F::State>> {
    let arrays = (0..call.arguments.len()).map(|i| call.array(i)).collect::<Result<Vec<_>>>()?;
    (0..call.rows).map(|row| arrays.iter().try_fold(F::SEED, |seed, array| fold::<F>(array, row, seed))).collect()
}

fn fold<F: Fold>(array: &ArrayRef, at: usize, seed: F::State) -> Result<F::State> {
    if array.is_null(at) {
        return Ok(seed);
    }
    macro_rules! value {
        ($t:ty) => {
            array.as_primitive::<$t>().value(at)
        };
    }
    Ok(match array.data_type() {
        DataType::Null => seed,
        DataType::Boolean => F::int(i32::from(array.as_boolean().value(at)), seed),
        DataType::Int8 => F::int(i32::from(value!(Int8Type)), seed),
        DataType::Int16 => F::int(i32::from(value!(Int16Type)), seed),
        DataType::Int32 => F::int(value!(Int32Type), seed),
        DataType::Date32 => F::int(value!(Date32Type), seed),
        DataType::Int64 => F::long(value!(Int64Type), seed),
        DataType::Timestamp(..) => F::long(value!(TimestampMicrosecondType), seed),
        // One zero and one NaN.
        DataType::Float32 => {
            let value = value!(Float32Type);
            let value = if value.is_nan() { f32::NAN } else { value + 0.0 };
            F::int(value.to_bits().cast_signed(), seed)
        }
        DataType::Float64 => {
            let value = value!(Float64Type);
            let value = if value.is_nan() { f64::NAN } else { value + 0.0 };
            F::long(value.to_bits().cast_signed(), seed)
        }
        DataType::Decimal128(precision, _) => {
            let value = value!(Decimal128Type);
            match i64::try_from(value) {
                Ok(value) if *precision <= 18 => F::long(value, seed),
                _ => {
                    // The fewest bytes in two's complement, the highest first.
                    let bytes = value.to_be_bytes();
                    let fill = if value < 0 { 0xff } else { 0 };
                    let spare = bytes
                        .windows(2)
                        .take_while(|pair| match pair {
                            [first, second] => *first == fill && (second ^ fill) & 0x80 == 0,
                            _ => false,
                        })
                        .count();
                    F::bytes(bytes.get(spare..).unwrap_or(&bytes), seed)
                }
            }
        }
        DataType::Utf8 => F::bytes(array.as_string::<i32>().value(at).as_bytes(), seed),
        DataType::Binary => F::bytes(array.as_binary::<i32>().value(at), seed),
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            ends(list.offsets(), at).try_fold(seed, |seed, item| fold::<F>(list.values(), item, seed))?
        }
        DataType::Struct(_) => {
            array.as_struct().columns().iter().try_fold(seed, |seed, column| fold::<F>(column, at, seed))?
        }
        other => return not_impl_err!("a hash of {other}"),
    })
}
