//! What a scalar means: the types of YAML 1.1 as `sigs.k8s.io/yaml` takes them, and the strings that keys become.

use std::borrow::Cow;

use granit_parser::{ScalarStyle, Tag};
use serde_json::{Number, Value};

/// What a scalar is. Anything that is not one of the others, a time among it, is the text itself.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Scalar<'t> {
    Null,
    Boolean(bool),
    Integer(i64),
    /// One beyond those of 64 bits with a sign.
    Large(u64),
    Float(f64),
    Text(Cow<'t, str>),
}

/// Where the tags of YAML's own types are.
pub(super) const TYPES: &str = "tag:yaml.org,2002:";
/// From here on Go's JSON prints a float with an exponent, and it stays a float.
const LARGEST_WITHOUT_EXPONENT: f64 = 1e21;

impl<'t> Scalar<'t> {
    /// The meaning of a scalar, or why it has none.
    pub(super) fn of(text: Cow<'t, str>, style: ScalarStyle, tag: Option<&Tag>) -> Result<Self, &'static str> {
        const WRONG: &str = "a value that its tag does not allow";
        let Some(tag) = tag else {
            return Ok(if style == ScalarStyle::Plain { Self::plain(text) } else { Self::Text(text) });
        };
        match tag.suffix_in_namespace(TYPES).as_deref() {
            Some("binary") => {
                use base64::Engine;
                let base64: String = text.chars().filter(|letter| !matches!(letter, '\r' | '\n')).collect();
                let bytes = base64::engine::general_purpose::STANDARD.decode(base64).map_err(|_| WRONG)?;
                Ok(Self::Text(String::from_utf8_lossy(&bytes).into_owned().into()))
            }
            Some(name @ ("null" | "bool" | "int" | "float")) => match (name, Self::plain(text)) {
                ("null", Self::Null) => Ok(Self::Null),
                ("bool", found @ Self::Boolean(_))
                | ("int", found @ (Self::Integer(_) | Self::Large(_)))
                | ("float", found @ Self::Float(_)) => Ok(found),
                #[expect(clippy::cast_precision_loss, reason = "whoever tags an integer as a float wants a float")]
                ("float", Self::Integer(integer)) => Ok(Self::Float(integer as f64)),
                _ => Err(WRONG),
            },
            _ => Ok(Self::Text(text)),
        }
    }

    /// The meaning of a plain scalar without a tag.
    fn plain(text: Cow<'t, str>) -> Self {
        match &*text {
            "" | "~" | "null" | "Null" | "NULL" => Self::Null,
            "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => Self::Boolean(true),
            "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
                Self::Boolean(false)
            }
            ".nan" | ".NaN" | ".NAN" => Self::Float(f64::NAN),
            ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Self::Float(f64::INFINITY),
            "-.inf" | "-.Inf" | "-.INF" => Self::Float(f64::NEG_INFINITY),
            number => Self::number(number).unwrap_or(Self::Text(text)),
        }
    }

    fn number(text: &str) -> Option<Self> {
        let first = text.bytes().next()?;
        let are_between_digits = || {
            let parts: Vec<&str> = text.split('_').collect();
            parts.windows(2).all(|pair| {
                let is_digit = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_digit());
                is_digit(pair.first().and_then(|before| before.bytes().last()))
                    && is_digit(pair.last().and_then(|behind| behind.bytes().next()))
            })
        };
        let is_number = match first {
            b'0'..=b'9' | b'+' | b'-' => true,
            b'.' => are_between_digits(),
            _ => false,
        };
        if !is_number {
            return None;
        }
        let text = text.replace('_', "");
        // Go reads what is behind `0b` once more, there with a sign.
        let binary = || i64::from_str_radix(text.strip_prefix("0b")?, 2).ok().map(Self::Integer);
        integer(&text).or_else(|| float(&text)).or_else(binary)
    }

    /// The value as it is after it has gone through Go's JSON: a whole float is an integer.
    pub(super) fn value(self) -> Result<Value, &'static str> {
        Ok(match self {
            Self::Null => Value::Null,
            Self::Boolean(value) => Value::Bool(value),
            Self::Integer(value) => value.into(),
            Self::Large(value) => value.into(),
            Self::Float(value) => Value::Number(number(value).ok_or("a number that is not finite")?),
            Self::Text(text) => Value::String(text.into_owned()),
        })
    }

    /// The key that it becomes.
    pub(super) fn key(self) -> Result<String, &'static str> {
        match self {
            Self::Boolean(value) => Ok(value.to_string()),
            Self::Integer(value) => Ok(value.to_string()),
            Self::Float(value) => Ok(short(value)),
            Self::Text(text) => Ok(text.into_owned()),
            Self::Null | Self::Large(_) => Err(super::NO_KEY),
        }
    }
}

/// An integer of Go's `ParseInt` with base 0: `0b`, `0o` and `0x` say the base, and so does a leading `0`, which is octal.
fn integer(text: &str) -> Option<Scalar<'static>> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (base, digits) = match unsigned.as_bytes() {
        [b'0', b'b' | b'B', _, ..] => (2, unsigned.get(2..)?),
        [b'0', b'o' | b'O', _, ..] => (8, unsigned.get(2..)?),
        [b'0', b'x' | b'X', _, ..] => (16, unsigned.get(2..)?),
        [b'0', _, ..] => (8, unsigned.get(1..)?),
        _ => (10, unsigned),
    };
    // The standard library takes a sign here.
    if !digits.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    let magnitude = u64::from_str_radix(digits, base).ok()?;
    let signed = match text.bytes().next()? {
        b'-' => 0_i64.checked_sub_unsigned(magnitude),
        _ => i64::try_from(magnitude).ok(),
    };
    match signed {
        Some(value) => Some(Scalar::Integer(value)),
        None => (unsigned.len() == text.len()).then_some(Scalar::Large(magnitude)),
    }
}

/// A decimal float: `[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?`, if a double can hold it.
fn float(text: &str) -> Option<Scalar<'static>> {
    let are_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let mantissa = match unsigned.split_once(['e', 'E']) {
        None => unsigned,
        Some((mantissa, exponent)) => {
            let exponent = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            if exponent.is_empty() || !are_digits(exponent) {
                return None;
            }
            mantissa
        }
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if (whole.is_empty() && fraction.is_empty()) || !are_digits(whole) || !are_digits(fraction) {
        return None;
    }
    text.parse().ok().filter(|value: &f64| value.is_finite()).map(Scalar::Float)
}

/// A whole float is the integer of its shortest digits, as Go prints and reads it.
fn number(value: f64) -> Option<Number> {
    let is_printed_whole = value.fract() == 0.0 && value.abs() < LARGEST_WITHOUT_EXPONENT;
    let whole = if is_printed_whole { value.to_string().parse::<i64>().ok() } else { None };
    whole.map(Number::from).or_else(|| Number::from_f64(value))
}

/// The key of a float: Go's `FormatFloat(value, 'g', -1, 32)`.
fn short(value: f64) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "keys have the digits of a float of 32 bits")]
    let value = value as f32;
    if value.is_nan() {
        return ".nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { ".inf" } else { "-.inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..6).contains(&exponent) {
        return value.to_string();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// `integration/tests/contract/templates` compares far more of them with Kubernetes' own decoder.
    #[test]
    fn plain_scalars_have_the_types_of_yaml_1_1() {
        for (text, value) in [
            ("0400", json!(256)),
            ("0o400", json!(256)),
            ("-0b11", json!(-3)),
            ("0b-11", json!(-3)),
            ("0x1F", json!(31)),
            ("1_000", json!(1000)),
            ("08", json!(8)),
            ("+12", json!(12)),
            ("9223372036854775808", json!(9_223_372_036_854_775_808_u64)),
            ("1.0", json!(1)),
            ("-.5e1", json!(-5)),
            (".1_5", json!(0.15)),
            ("-0.0", json!(0)),
            ("4611686018427388928.0", json!(4_611_686_018_427_389_000_i64)),
            ("9223372036854775808.0", json!(9_223_372_036_854_775_808.0)),
            ("1e21", json!(1e21)),
            ("1e400", json!("1e400")),
            ("1:30", json!("1:30")),
            ("2001-01-01", json!("2001-01-01")),
            ("_1", json!("_1")),
            ("-_", json!("-_")),
            ("+", json!("+")),
            ("0x", json!("0x")),
            ("y", json!(true)),
            ("No", json!(false)),
            ("oN", json!("oN")),
            ("~", json!(null)),
            ("NULL", json!(null)),
            ("nULL", json!("nULL")),
            ("<<", json!("<<")),
        ] {
            let resolved = Scalar::of(text.into(), ScalarStyle::Plain, None).and_then(Scalar::value);
            assert_eq!(resolved, Ok(value), "{text}");
            let quoted = Scalar::of(text.into(), ScalarStyle::SingleQuoted, None).and_then(Scalar::value);
            assert_eq!(quoted, Ok(json!(text)));
        }
        assert!(Scalar::of(".inf".into(), ScalarStyle::Plain, None).and_then(Scalar::value).is_err());
    }

    #[test]
    fn a_key_is_the_string_that_go_makes_of_its_value() {
        let key = |text: &'static str| Scalar::of(text.into(), ScalarStyle::Plain, None).and_then(Scalar::key).ok();
        for (text, expected) in [
            ("y", Some("true")),
            ("010", Some("8")),
            ("1.10", Some("1.1")),
            ("123456.0", Some("123456")),
            ("1e6", Some("1e+06")),
            ("0.00001", Some("1e-05")),
            ("1.23456789", Some("1.2345679")),
            (".inf", Some(".inf")),
            ("a", Some("a")),
            ("~", None),
        ] {
            assert_eq!(key(text).as_deref(), expected, "{text}");
        }
    }
}
