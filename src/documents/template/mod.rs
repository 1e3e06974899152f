//! Templates in resources and patches of syncsets: Go's syntax without data.
//!
//! A [`Template`] is text with actions in `{{` and `}}`: values, variables, and `if`. A value is made of literals, variables and
//! functions, each of which takes at most so many values as [`Function`] says. Everything else of Go's language is refused when a
//! document is written: fields (`.`), `range`, `with`, `define`, `template`, `block`, and other functions. What is accepted here and
//! by Go means the same in both; `integration/templates` compares them.

mod format;
mod lexer;
mod parser;
mod render;

use std::fmt;
use std::rc::Rc;

pub use render::TextBudget;

/// A template that was parsed.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    nodes: Vec<Node>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct InvalidTemplate {
    /// Where, from 1.
    pub line: usize,
    /// What is wrong. It repeats words of actions, and never the text around them.
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    Text(String),
    /// A value that is printed.
    Print(Expression),
    /// `{{ $name := value }}` and `{{ $name = value }}`: sets a variable and prints nothing.
    Set {
        /// The variable, without `$`.
        name: String,
        /// Whether it is declared here, and ends with the block.
        declares: bool,
        value: Expression,
    },
    /// `{{ if … }}` with its alternatives.
    If {
        /// Conditions, each with what it prints; the first that is true counts.
        branches: Vec<(Expression, Vec<Node>)>,
        /// What is printed if none is true.
        otherwise: Vec<Node>,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub enum Expression {
    Text(String),
    Integer(i64),
    Boolean(bool),
    /// A variable, without `$`.
    Variable(String),
    Call(Function, Vec<Expression>),
    /// The last value of `and` or `or` if a pipe brings it: it is evaluated before the others, even if it does not count.
    Piped(Box<Expression>),
}

/// The known functions: a closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// The value of a label of the cluster, empty if it has none. Also by the name `fromClusterLabel`.
    FromClusterLabel,
    /// Whether the first value equals one of the others.
    Equal,
    NotEqual,
    /// The first value that is false, or the last.
    And,
    /// The first value that is true, or the last.
    Or,
    /// The opposite of a value's truth.
    Not,
    Printf,
}

impl Function {
    /// By their names in templates.
    const NAMES: [(&'static str, Self); 8] = [
        ("fromCDLabel", Self::FromClusterLabel),
        ("fromClusterLabel", Self::FromClusterLabel),
        ("eq", Self::Equal),
        ("ne", Self::NotEqual),
        ("and", Self::And),
        ("or", Self::Or),
        ("not", Self::Not),
        ("printf", Self::Printf),
    ];

    fn of_name(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, function)| *function)
    }

    /// How many values it takes: at least, and at most.
    fn values(self) -> (usize, usize) {
        match self {
            Self::FromClusterLabel | Self::Not => (1, 1),
            Self::NotEqual => (2, 2),
            Self::Equal => (2, usize::MAX),
            Self::And | Self::Or | Self::Printf => (1, usize::MAX),
        }
    }
}

impl Template {
    /// Parses a text. Without an action it is a template that prints itself.
    pub fn parse(text: &str) -> Result<Self, InvalidTemplate> {
        parser::parse(text).map(|nodes| Self { nodes })
    }

    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }
}

impl fmt::Display for Function {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, function)| function == self).map_or("", |(name, _)| name);
        formatter.write_str(name)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Datum {
    Text(Rc<str>),
    Integer(i64),
    Boolean(bool),
}

impl Datum {
    /// As Go's templates see it.
    fn is_true(&self) -> bool {
        match self {
            Self::Text(text) => !text.is_empty(),
            Self::Integer(number) => *number != 0,
            Self::Boolean(value) => *value,
        }
    }

    /// As Go calls its type.
    fn type_name(&self) -> &'static str {
        match self {
            Self::Text(_) => "string",
            Self::Integer(_) => "int",
            Self::Boolean(_) => "bool",
        }
    }

    /// For messages.
    fn with_article(&self) -> &'static str {
        match self {
            Self::Text(_) => "a string",
            Self::Integer(_) => "a number",
            Self::Boolean(_) => "a boolean",
        }
    }
}

#[cfg(test)]
mod tests;
