//! Splits a template into text and actions, and actions into words.

use super::InvalidTemplate;
use crate::config::text;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Piece {
    /// Text outside of actions.
    Text(String),
    /// The words of an action, with the line where it begins.
    Action(usize, Vec<Word>),
}

/// A word of an action.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Word {
    /// A name: a function or keyword.
    Name(String),
    /// A variable, without `$`.
    Variable(String),
    Text(String),
    Integer(i64),
    /// `:=`.
    Declare,
    /// `=`.
    Assign,
    /// `|`.
    Pipe,
    /// `(`.
    Open,
    /// `)`.
    Close,
}

/// Most words and actions of a template. As expressions each takes more than a hundred bytes.
const MOST_WORDS: usize = 20_000;

/// What Go's templates take for space. Other spaces of Unicode are text.
const SPACES: [char; 4] = [' ', '\t', '\r', '\n'];

pub(super) fn pieces(text: &str) -> Result<Vec<Piece>, InvalidTemplate> {
    let mut pieces = Vec::new();
    let mut rest = text;
    let mut trims = false;
    let mut left = MOST_WORDS;
    // `uncounted` begins in this line.
    let (mut line, mut uncounted) = (1, text);
    loop {
        let Some((before, action)) = rest.split_once("{{") else {
            push_text(&mut pieces, rest, trims, false);
            return Ok(pieces);
        };
        let read = uncounted.len().saturating_sub(action.len());
        line += uncounted.get(..read).map_or(0, |read| read.matches('\n').count());
        uncounted = action;
        // A minus trims only with a space beside it: `{{-3}}` is a number.
        let (action, trims_before) = match action.strip_prefix('-') {
            Some(inner) if inner.starts_with(SPACES) => (inner, true),
            _ => (action, false),
        };
        push_text(&mut pieces, before, trims, trims_before);
        let wrong = |reason: &str| InvalidTemplate { line, reason: reason.to_owned() };
        if let Some(comment) = action.trim_start_matches(SPACES).strip_prefix("/*") {
            let (_, after) = comment.split_once("*/").ok_or_else(|| wrong("a comment that does not end"))?;
            (trims, rest) = end(after).ok_or_else(|| wrong("a comment with something beside it in the action"))?;
            continue;
        }
        let (words, after, trims_after) = words(action, line, &mut left)?;
        pieces.push(Piece::Action(line, words));
        (rest, trims) = (after, trims_after);
    }
}

fn push_text(pieces: &mut Vec<Piece>, text: &str, trims_start: bool, trims_end: bool) {
    let text = if trims_start { text.trim_start_matches(SPACES) } else { text };
    let text = if trims_end { text.trim_end_matches(SPACES) } else { text };
    if !text.is_empty() {
        pieces.push(Piece::Text(text.to_owned()));
    }
}

/// The end of an action, if it is here: whether it trims, and what is behind it.
fn end(action: &str) -> Option<(bool, &str)> {
    if let Some(rest) = action.strip_prefix("}}") {
        return Some((false, rest));
    }
    let trimmed = action.trim_start_matches(SPACES);
    if trimmed.len() < action.len()
        && let Some(rest) = trimmed.strip_prefix("-}}")
    {
        return Some((true, rest));
    }
    trimmed.strip_prefix("}}").map(|rest| (false, rest))
}

/// The words of an action, what is behind it, and whether it trims that. The end counts as a word.
fn words<'t>(
    mut action: &'t str,
    line: usize,
    left: &mut usize,
) -> Result<(Vec<Word>, &'t str, bool), InvalidTemplate> {
    let wrong = |reason: String| InvalidTemplate { line, reason };
    let mut words = Vec::new();
    loop {
        let too_many = || wrong(format!("more than {MOST_WORDS} words and actions in the template"));
        *left = left.checked_sub(1).ok_or_else(too_many)?;
        if let Some((trims, after)) = end(action) {
            return Ok((words, after, trims));
        }
        action = action.trim_start_matches(SPACES);
        let Some(first) = action.chars().next() else {
            return Err(wrong("an action that does not end".to_owned()));
        };
        let (word, length) = match first {
            '(' => (Word::Open, 1),
            ')' => (Word::Close, 1),
            '|' => (Word::Pipe, 1),
            '=' => (Word::Assign, 1),
            ':' if action.starts_with(":=") => (Word::Declare, 2),
            '"' => quoted(action)
                .ok_or_else(|| wrong("a text in quotes that does not end or has an unknown escape".to_owned()))?,
            '`' => {
                let inner = action.get(1..).and_then(|rest| rest.split_once('`')).map(|(inner, _)| inner);
                let inner = inner.ok_or_else(|| wrong("a text in quotes that does not end".to_owned()))?;
                (Word::Text(inner.to_owned()), inner.len() + 2)
            }
            '$' => {
                let name = name(action.get(1..).unwrap_or_default());
                if name.is_empty() {
                    return Err(wrong("`$`, the data, of which there is none".to_owned()));
                }
                (Word::Variable(name.to_owned()), name.len() + 1)
            }
            '0'..='9' | '-' | '+' => {
                let length = action
                    .char_indices()
                    .skip(1)
                    .find(|(_, next)| !is_in_name(*next) && *next != '.')
                    .map_or(action.len(), |(at, _)| at);
                let number = action.get(..length).unwrap_or_default();
                // To Go, 010 is 8.
                let digits = number.trim_start_matches(['+', '-']);
                let is_decimal = digits == "0" || !digits.starts_with('0');
                let parsed = number.parse().ok().filter(|_| is_decimal);
                let parsed =
                    parsed.ok_or_else(|| wrong(format!("{}, which is no whole number", text::quoted(number))))?;
                (Word::Integer(parsed), length)
            }
            _ if is_in_name(first) => {
                let name = name(action);
                (Word::Name(name.to_owned()), name.len())
            }
            '.' => return Err(wrong("a field of the data, of which there is none".to_owned())),
            other => return Err(wrong(format!("{other:?}, which has no meaning here"))),
        };
        words.push(word);
        action = action.get(length..).unwrap_or_default();
        // Words that are not separated, such as `$a.b` and `"a""b"`.
        let is_separated = action.is_empty()
            || action.starts_with(|next: char| SPACES.contains(&next) || "()|:=}".contains(next))
            || matches!(words.last(), Some(Word::Open | Word::Pipe | Word::Declare | Word::Assign));
        if !is_separated {
            let next = action.chars().next().unwrap_or_default();
            return Err(wrong(format!("{next:?} right behind a word")));
        }
    }
}

fn is_in_name(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

fn name(text: &str) -> &str {
    let end = text.find(|character| !is_in_name(character)).unwrap_or(text.len());
    text.get(..end).unwrap_or_default()
}

/// A text in double quotes with Go's escapes, and its length in the action.
fn quoted(action: &str) -> Option<(Word, usize)> {
    let mut text = String::new();
    let mut characters = action.char_indices().skip(1);
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((Word::Text(text), at + 1)),
            '\n' => return None,
            '\\' => text.push(match characters.next()?.1 {
                'n' => '\n',
                't' => '\t',
                'r' => '\r',
                '"' => '"',
                '\\' => '\\',
                'a' => '\u{7}',
                'b' => '\u{8}',
                'f' => '\u{c}',
                'v' => '\u{b}',
                'x' => code(&mut characters, 2).filter(char::is_ascii)?,
                'u' => code(&mut characters, 4)?,
                'U' => code(&mut characters, 8)?,
                _ => return None,
            }),
            other => text.push(other),
        }
    }
    None
}

/// A character by its number in hexadecimal digits.
fn code(characters: &mut impl Iterator<Item = (usize, char)>, digits: usize) -> Option<char> {
    let mut number = 0_u32;
    for _ in 0..digits {
        number = number.checked_mul(16)?.checked_add(characters.next()?.1.to_digit(16)?)?;
    }
    char::from_u32(number).filter(|character| *character != '\0')
}
