//! Numbers in texts.

/// A float that JSON has no number for.
pub(super) fn not_finite(text: &str) -> Option<f64> {
    match text {
        "NaN" => Some(f64::NAN),
        "Infinity" | "+Infinity" | "INF" | "+INF" => Some(f64::INFINITY),
        "-Infinity" | "-INF" => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

/// A decimal of at most `precision` digits, rounded half away from zero to `scale` places; `None` if it is larger.
pub(super) fn parse_decimal(text: &str, precision: u8, scale: i8) -> Option<i128> {
    let (mantissa, exponent) = match text.find(['e', 'E']) {
        Some(at) => (text.get(..at)?, text.get(at + 1..)?.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (negative, mantissa) = match mantissa.as_bytes().first()? {
        b'-' => (true, mantissa.get(1..)?),
        b'+' => (false, mantissa.get(1..)?),
        _ => (false, mantissa),
    };
    let (whole, part) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if (whole.is_empty() && part.is_empty()) || !whole.bytes().chain(part.bytes()).all(|x| x.is_ascii_digit()) {
        return None;
    }
    // Digits that stand before the last kept place.
    let kept = i64::try_from(whole.len()).ok()? + i64::from(exponent) + i64::from(scale);
    let mut value: i128 = 0;
    let mut place = 0;
    let limit = 10_i128.checked_pow(u32::from(precision))?;
    for digit in whole.bytes().chain(part.bytes()) {
        let digit = i128::from(digit - b'0');
        if place < kept {
            value = value.checked_mul(10)?.checked_add(digit)?;
            if value >= limit {
                return None;
            }
        } else {
            value += i128::from(place == kept && digit >= 5);
            break;
        }
        place += 1;
    }
    while place < kept && value != 0 {
        value = value.checked_mul(10).filter(|x| *x < limit)?;
        place += 1;
    }
    (value < limit).then_some(if negative { -value } else { value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_exact_rounded_once_and_never_too_large() {
        let cases = [
            ("123.454", Some(12345)),
            ("-123.455", Some(-12346)),
            ("0.004999", Some(0)),
            ("5e-3", Some(1)),
            ("1.2E2", Some(12000)),
            ("0e999999999", Some(0)),
            ("1e-999999999", Some(0)),
            (".5", Some(50)),
            ("5.", Some(500)),
            ("+7", Some(700)),
            ("999.99", Some(99999)),
            ("999.995", None),
            ("1000", None),
            ("1e99", None),
            ("1e99999999999", None),
            ("", None),
            (".", None),
            ("-", None),
            ("1.2.3", None),
            ("1 2", None),
            ("ä", None),
        ];
        for (text, value) in cases {
            assert_eq!(parse_decimal(text, 5, 2), value, "{text}");
        }
        assert_eq!(parse_decimal(&"9".repeat(38), 38, 0), Some(10_i128.pow(38) - 1));
        assert_eq!(parse_decimal(&"9".repeat(39), 38, 0), None);
    }
}
