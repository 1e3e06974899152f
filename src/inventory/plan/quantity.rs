//! Kubernetes' quantities, as whole bytes.
//!
//! The API server stores some quantities in another form than they were written in (`1.5Gi` as `1536Mi`, `0.5` as `500m`) and others as
//! they are (`1e3`, `1E`, `100m`), so every form is read.

/// Digits that are read behind the point. The API server stores at most nine.
const FRACTION: usize = 12;

/// A number of bytes: fractions are rounded up, and what exceeds an `i64` is its largest value. None for what is no quantity, or below
/// zero.
pub(in crate::inventory) fn bytes(text: &str) -> Option<i64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at_checked(end)?;
    let (factor, tenths) = scale(suffix)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let (kept, rest) = fraction.split_at_checked(FRACTION).unwrap_or((fraction, ""));
    let digits = format!("{whole}{kept}");
    let digits = digits.trim_start_matches('0');
    let mut numerator: u128 = match digits {
        "" => 0,
        // Only the number of digits can be wrong.
        digits => digits.parse().unwrap_or(u128::MAX),
    };
    if rest.bytes().any(|digit| digit != b'0') {
        // It is rounded up in any case.
        numerator = numerator.saturating_add(1);
    }
    if numerator == 0 {
        return Some(0);
    }
    let exponent = tenths - i32::try_from(kept.len()).ok()?;
    let power = 10_u128.checked_pow(exponent.unsigned_abs());
    let value = match (exponent < 0, power) {
        (false, None) => u128::MAX,
        (false, Some(power)) => numerator.saturating_mul(factor).saturating_mul(power),
        (true, None) => 1,
        (true, Some(power)) => numerator.saturating_mul(factor).div_ceil(power),
    };
    Some(i64::try_from(value).unwrap_or(i64::MAX))
}

/// The factor of a suffix, and the power of ten that it stands for in addition.
fn scale(suffix: &str) -> Option<(u128, i32)> {
    let binary = |power: u32| Some((1024_u128.pow(power), 0));
    match suffix {
        "" => Some((1, 0)),
        "n" => Some((1, -9)),
        "u" => Some((1, -6)),
        "m" => Some((1, -3)),
        "k" => Some((1, 3)),
        "M" => Some((1, 6)),
        "G" => Some((1, 9)),
        "T" => Some((1, 12)),
        "P" => Some((1, 15)),
        "E" => Some((1, 18)),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        exponent => {
            let digits = exponent.strip_prefix(['e', 'E'])?;
            let is_number = digits.strip_prefix(['+', '-']).unwrap_or(digits).bytes().all(|byte| byte.is_ascii_digit());
            // More than three digits are far beyond what can be stored.
            Some((1, digits.parse::<i32>().ok().filter(|_| is_number)?.clamp(-999, 999)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_quantity_is_a_number_of_bytes() {
        for (text, expected) in [
            ("8Gi", 8 << 30),
            ("1536Mi", 1536 << 20),
            ("1.5Gi", 1536 << 20),
            ("1e3", 1_000),
            ("1E3", 1_000),
            ("1E", 1_000_000_000_000_000_000),
            ("12e-1", 2),
            ("5", 5),
            ("+5", 5),
            ("5.", 5),
            (".5k", 500),
            ("3Ki", 3 << 10),
            ("3Ti", 3 << 40),
            ("3Pi", 3 << 50),
            ("2Ei", 2 << 60),
            ("7k", 7_000),
            ("7M", 7_000_000),
            ("7G", 7_000_000_000),
            ("7T", 7_000_000_000_000),
            ("7P", 7_000_000_000_000_000),
            ("0", 0),
            ("0.000", 0),
        ] {
            assert_eq!(bytes(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn fractions_of_a_byte_round_up() {
        for (text, expected) in [
            ("100m", 1),
            ("500m", 1),
            ("0.5", 1),
            ("1000m", 1),
            ("1001m", 2),
            ("1u", 1),
            ("1n", 1),
            ("1e-30", 1),
            ("2.0000000000000000001", 3),
            ("0.0000000000000000001Ki", 1),
        ] {
            assert_eq!(bytes(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_exceeds_64_bits_is_the_largest_number() {
        for text in ["9223372036854775808", "8Ei", "10E", "1e99", "1e999999999", &"9".repeat(60)] {
            assert_eq!(bytes(text), Some(i64::MAX), "{text}");
        }
        assert_eq!(bytes("9223372036854775807"), Some(i64::MAX));
        assert_eq!(bytes("9223372036854775806"), Some(i64::MAX - 1));
        assert_eq!(bytes("0e999999999"), Some(0));
    }

    #[test]
    fn what_is_no_quantity_is_none() {
        for text in ["", "Gi", "-1", "1 Gi", "1gi", "1.2.3", ".", "1e", "1e+", "1ee3", "é", "1é", "1e1.5", "0x10"] {
            assert_eq!(bytes(text), None, "{text:?}");
        }
    }
}
