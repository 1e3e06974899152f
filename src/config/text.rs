//! Texts of somebody else in messages: in one line, cut, and in quotes.

use serde_json::Value;

/// Characters of a value that a fault shows.
pub const SHOWN: usize = 64;

/// A text whose control characters are replaced, so that none reaches a terminal.
pub fn one_line(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect()
}

/// At most so many characters of a text, of which the last one is `…` if more are left out.
pub fn cut(text: &str, most: usize) -> String {
    if text.chars().nth(most).is_none() {
        return text.to_owned();
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// At most so many characters of a text, [cut] and in one line.
pub fn shortened(text: &str, most: usize) -> String {
    one_line(&cut(text, most))
}

/// A text that is not secret, cut, and quoted as in JSON.
pub fn quoted(text: &str) -> String {
    escaped(&Value::String(cut(text, SHOWN)).to_string())
}

/// JSON whose strings have none of the control characters that JSON may have as they are.
pub fn escaped(json: &str) -> String {
    let escaped = |letter: char| match letter {
        '\u{7f}'..='\u{9f}' => format!("\\u{:04x}", u32::from(letter)),
        _ => letter.to_string(),
    };
    json.chars().map(escaped).collect()
}

/// A value that is not secret: a scalar as JSON, cut if it is long, and of the rest what it is.
pub fn described(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(text),
        Value::Array(_) | Value::Object(_) => kind_of(value).to_owned(),
        scalar => scalar.to_string(),
    }
}

/// What a value is, in words.
pub fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters_and_within_its_bound() {
        assert_eq!((cut("äöü", 3), cut("äöü", 2), cut("ä", 0)), ("äöü".to_owned(), "ä…".to_owned(), "…".to_owned()));
        assert_eq!(shortened("a\nb\u{1b}c", 4), "a b…");
        assert_eq!(quoted(&"\"".repeat(65)), format!("\"{}…\"", "\\\"".repeat(63)));
    }

    #[test]
    fn what_is_quoted_is_json_without_control_characters() {
        for (text, shown) in [
            ("a\u{7e}\u{a0}ä", "\"a~\u{a0}ä\""),
            ("\u{7f}", r#""\u007f""#),
            ("\u{80}\u{9b}31m\u{9f}", r#""\u0080\u009b31m\u009f""#),
            ("\u{1b}[31m\n\"", r#""\u001b[31m\n\"""#),
            (r"\u009b", r#""\\u009b""#),
        ] {
            assert_eq!(quoted(text), shown);
            assert_eq!(serde_json::from_str::<Value>(shown).ok(), Some(json!(text)));
        }
    }

    #[test]
    fn a_value_is_shown_if_it_is_a_scalar() {
        for (value, shown) in
            [(json!("a"), "\"a\""), (json!(1.50), "1.5"), (json!(null), "null"), (json!(["a"]), "a list")]
        {
            assert_eq!(described(&value), shown);
        }
    }
}
