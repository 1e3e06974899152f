//! Durations as programs in Go take them, in the variables of those that Towline takes the place of.

use std::time::Duration;

/// Parses a Go duration: `300ms`, `1.5h`, `1m30s`. None if it is invalid, negative, or longer than a year. The parser of
/// `kube_core::Duration` can't be used for input from outside: it accepts `""`, `--5s` and `5s0`, and panics at `1h-5m` and at
/// numbers that overflow.
pub fn go_duration(text: &str) -> Option<Duration> {
    const LONGEST: f64 = 365.0 * 24.0 * 3600.0;
    let text = text.strip_prefix('+').unwrap_or(text);
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut seconds = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
        let (number, tail) = rest.split_at(digits);
        let unit_ends = tail.find(|letter: char| letter.is_ascii_digit() || letter == '.').unwrap_or(tail.len());
        let (unit, next) = tail.split_at(unit_ends);
        let factor = match unit {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        seconds += number.parse::<f64>().ok()? * factor;
        rest = next;
    }
    (!text.is_empty() && seconds <= LONGEST).then(|| Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_durations_are_parsed() {
        for (text, millis) in [
            ("5s", 5_000),
            ("1m30s", 90_000),
            ("300ms", 300),
            ("1.5h", 5_400_000),
            ("0", 0),
            (".5s", 500),
            ("+2s", 2_000),
        ] {
            assert_eq!(go_duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for wrong in ["", "5", "-5s", "5 s", "s", "1x", "1h-5m", "9999999h", "1..5s"] {
            assert_eq!(go_duration(wrong), None, "{wrong}");
        }
    }
}
