//! Formats of `printf`, as Go's package `fmt` defines them, with the verbs `%s`, `%q`, `%d`, `%v` and `%%`.
//!
//! A value that its verb can't print is no error: Go writes `%!d(string=west)`, and so does this.

use super::Datum;

/// Largest width and precision in a format.
pub(super) const WIDEST: usize = 1_000;
const FLAGS: [char; 5] = ['-', '+', '#', ' ', '0'];

#[derive(Clone, Copy, Debug)]
pub(super) enum Part<'f> {
    /// Text, and the sign of `%%`.
    Text(&'f str),
    /// What stands for a value.
    Verb(Verb<'f>),
}

/// How a value is printed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Verb<'f> {
    flags: &'f str,
    width: usize,
    precision: Option<usize>,
    letter: Letter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Letter {
    Text,
    Quoted,
    Decimal,
    Value,
}

/// Why a text is no format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InvalidFormat {
    /// A width or precision above [`WIDEST`].
    TooWide,
    /// A verb that is not known, or none.
    UnknownVerb,
}

/// The parts of a format, up to the first that is wrong.
pub(super) fn parts(format: &str) -> impl Iterator<Item = Result<Part<'_>, InvalidFormat>> {
    let mut rest = format;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let text = rest.find('%').unwrap_or(rest.len());
        if text > 0 {
            let (text, after) = rest.split_at_checked(text)?;
            rest = after;
            return Some(Ok(Part::Text(text)));
        }
        match verb(rest.strip_prefix('%')?) {
            Ok((part, after)) => {
                rest = after;
                Some(Ok(part))
            }
            Err(error) => {
                rest = "";
                Some(Err(error))
            }
        }
    })
}

/// What is behind a percent sign, and the rest.
fn verb(text: &str) -> Result<(Part<'_>, &str), InvalidFormat> {
    let (flags, after) = split_while(text, |character| FLAGS.contains(&character));
    let (width, after) = number(after)?;
    let (precision, after) = match after.strip_prefix('.') {
        Some(after) => {
            let (precision, after) = number(after)?;
            (Some(precision), after)
        }
        None => (None, after),
    };
    let letter = match after.chars().next() {
        // It takes no value, and neither width nor precision.
        Some('%') => None,
        Some('s') => Some(Letter::Text),
        Some('q') => Some(Letter::Quoted),
        Some('d') => Some(Letter::Decimal),
        Some('v') => Some(Letter::Value),
        _ => return Err(InvalidFormat::UnknownVerb),
    };
    let part = letter.map_or(Part::Text("%"), |letter| Part::Verb(Verb { flags, width, precision, letter }));
    Ok((part, after.get(1..).unwrap_or_default()))
}

/// The digits at the start of a text as a number, 0 if there are none, and what is behind them.
fn number(text: &str) -> Result<(usize, &str), InvalidFormat> {
    let (digits, after) = split_while(text, |character| character.is_ascii_digit());
    if digits.is_empty() {
        return Ok((0, after));
    }
    let number = digits.parse().ok().filter(|number| *number <= WIDEST);
    number.map(|number| (number, after)).ok_or(InvalidFormat::TooWide)
}

fn split_while(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    let end = text.find(|character| !belongs(character)).unwrap_or(text.len());
    text.split_at_checked(end).unwrap_or((text, ""))
}

impl Verb<'_> {
    pub(super) fn print(&self, value: &Datum, into: &mut String) {
        let is_value = self.letter == Letter::Value;
        match (self.letter, value) {
            // With `#`, `%v` prints what Go's source would have.
            (Letter::Value, Datum::Text(text)) if self.has('#') => {
                self.pad(&quoted(self.cut(text), '"', self.has('+') && !is_value), self.has('0'), into);
            }
            (Letter::Quoted, Datum::Text(text)) => self.print_quoted(self.cut(text), into),
            (Letter::Quoted, Datum::Integer(number)) => {
                let character = u32::try_from(*number).ok().and_then(char::from_u32);
                let character = character.unwrap_or(char::REPLACEMENT_CHARACTER);
                self.pad(&quoted(character.encode_utf8(&mut [0; 4]), '\'', self.has('+')), self.has('0'), into);
            }
            (Letter::Text | Letter::Value, Datum::Text(_))
            | (Letter::Decimal, Datum::Integer(_))
            | (Letter::Value, Datum::Integer(_) | Datum::Boolean(_)) => {
                self.print_plain(value, self.has('+') && !is_value, into);
            }
            (Letter::Text | Letter::Quoted, Datum::Boolean(_))
            | (Letter::Text, Datum::Integer(_))
            | (Letter::Decimal, Datum::Text(_) | Datum::Boolean(_)) => self.print_misfit(value, into),
        }
    }

    /// As Go does it for a verb that is not made for the value: with the flags of the verb.
    fn print_misfit(&self, value: &Datum, into: &mut String) {
        let letter = match self.letter {
            Letter::Text => 's',
            Letter::Quoted => 'q',
            Letter::Decimal => 'd',
            Letter::Value => 'v',
        };
        into.push_str("%!");
        into.push(letter);
        into.push('(');
        into.push_str(value.type_name());
        into.push('=');
        self.print_plain(value, self.has('+'), into);
        into.push(')');
    }

    fn print_plain(&self, value: &Datum, has_sign: bool, into: &mut String) {
        match value {
            Datum::Text(text) => self.pad(self.cut(text), self.has('0'), into),
            Datum::Integer(number) => self.print_integer(*number, has_sign, into),
            Datum::Boolean(true) => self.pad("true", self.has('0'), into),
            Datum::Boolean(false) => self.pad("false", self.has('0'), into),
        }
    }

    fn print_quoted(&self, text: &str, into: &mut String) {
        let breaks_back_quotes =
            |character: char| matches!(character, '`' | '\u{7f}' | '\u{feff}') || character < ' ' && character != '\t';
        if self.has('#') && !text.contains(breaks_back_quotes) {
            self.pad(&format!("`{text}`"), self.has('0'), into);
        } else {
            self.pad(&quoted(text, '"', self.has('+')), self.has('0'), into);
        }
    }

    fn print_integer(&self, number: i64, has_sign: bool, into: &mut String) {
        let magnitude = number.unsigned_abs();
        if magnitude == 0 && self.precision == Some(0) {
            return self.pad("", false, into);
        }
        let sign = match number {
            ..0 => "-",
            _ if has_sign => "+",
            _ if self.has(' ') => " ",
            _ => "",
        };
        // Zeros on the left are digits behind the sign. A precision replaces them.
        let is_filled = self.has('0') && !self.has('-');
        let filled = if is_filled { self.width.saturating_sub(sign.len()) } else { 0 };
        let least = self.precision.unwrap_or(filled);
        self.pad(&format!("{sign}{magnitude:0>least$}"), false, into);
    }

    /// Appends a text, filled up to the width.
    fn pad(&self, text: &str, with_zeros: bool, into: &mut String) {
        let missing = self.width.saturating_sub(text.chars().count());
        let is_left = self.has('-');
        if is_left {
            into.push_str(text);
        }
        into.extend(std::iter::repeat_n(if with_zeros && !is_left { '0' } else { ' ' }, missing));
        if !is_left {
            into.push_str(text);
        }
    }

    /// A text cut to the precision, in characters.
    fn cut<'t>(&self, text: &'t str) -> &'t str {
        let end = self.precision.and_then(|most| text.char_indices().nth(most));
        end.and_then(|(end, _)| text.get(..end)).unwrap_or(text)
    }

    fn has(&self, flag: char) -> bool {
        self.flags.contains(flag)
    }
}

/// A text in quotes with the escapes of Go's `strconv.Quote`.
fn quoted(text: &str, quote: char, in_ascii: bool) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push(quote);
    for character in text.chars() {
        match character {
            '\\' => quoted.push_str("\\\\"),
            _ if character == quote => quoted.extend(['\\', quote]),
            _ if is_printable(character) && (character.is_ascii() || !in_ascii) => quoted.push(character),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            _ => {
                let number = u32::from(character);
                let escape = match number {
                    ..0x20 | 0x7f => format!("\\x{number:02x}"),
                    ..0x1_0000 => format!("\\u{number:04x}"),
                    _ => format!("\\U{number:08x}"),
                };
                quoted.push_str(&escape);
            }
        }
    }
    quoted.push(quote);
    quoted
}

/// Whether Go prints a character as it is: letters, marks, numbers, punctuation, symbols and the space of ASCII. Rust's
/// `escape_debug` decides by the same classes, of a newer edition of Unicode; only at the start of a text does it escape marks too.
fn is_printable(character: char) -> bool {
    if character.is_ascii() {
        return matches!(character, ' '..='~');
    }
    let text = ['a', character].iter().collect::<String>();
    text.escape_debug().nth(1) == Some(character)
}
