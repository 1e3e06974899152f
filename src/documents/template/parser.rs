//! Builds a template from its pieces.

use super::format::{self, InvalidFormat, Part, WIDEST};
use super::lexer::{Piece, Word, pieces};
use super::{Expression, Function, InvalidTemplate, Node};
use crate::config::text::{SHOWN, cut};

/// Deepest nesting of blocks and parentheses, which recursion follows.
const DEEPEST: usize = 32;
/// Most pipes in an action. Each value is part of the next one, so that recursion follows them too.
const PIPES: usize = 32;
/// Most variables of all blocks that are open: each use looks through them.
const VARIABLES: usize = 1_000;

pub(super) fn parse(text: &str) -> Result<Vec<Node>, InvalidTemplate> {
    let mut parser = Parser { pieces: pieces(text)?.into_iter(), line: 1, scopes: vec![Vec::new()] };
    match parser.block()? {
        (nodes, Ending::Text) => Ok(nodes),
        (_, Ending::Block | Ending::Else(_)) => Err(parser.wrong("`end` or `else` without `if`")),
    }
}

struct Parser {
    pieces: std::vec::IntoIter<Piece>,
    line: usize,
    /// The variables of each block that is open.
    scopes: Vec<Vec<String>>,
}

/// What ended a block.
enum Ending {
    /// The end of the template.
    Text,
    /// `end`.
    Block,
    /// With the condition of `else if`.
    Else(Option<Vec<Word>>),
}

impl Parser {
    fn wrong(&self, reason: impl Into<String>) -> InvalidTemplate {
        InvalidTemplate { line: self.line, reason: reason.into() }
    }

    fn block(&mut self) -> Result<(Vec<Node>, Ending), InvalidTemplate> {
        let mut nodes = Vec::new();
        while let Some(piece) = self.pieces.next() {
            let (line, words) = match piece {
                Piece::Text(text) => {
                    nodes.push(Node::Text(text));
                    continue;
                }
                Piece::Action(line, words) => (line, words),
            };
            self.line = line;
            match words.as_slice() {
                [] => return Err(self.wrong("an empty action")),
                [Word::Name(name)] if name == "end" => return Ok((nodes, Ending::Block)),
                [Word::Name(name)] if name == "else" => return Ok((nodes, Ending::Else(None))),
                [Word::Name(name), Word::Name(second), condition @ ..] if name == "else" && second == "if" => {
                    return Ok((nodes, Ending::Else(Some(condition.to_vec()))));
                }
                [Word::Name(name), condition @ ..] if name == "if" => nodes.push(self.condition(condition)?),
                [Word::Variable(name), Word::Declare, value @ ..] => {
                    let value = self.expression(value)?;
                    self.declare(name)?;
                    nodes.push(Node::Set { name: name.clone(), declares: true, value });
                }
                [Word::Variable(name), Word::Assign, value @ ..] => {
                    let value = self.expression(value)?;
                    self.check_variable(name)?;
                    nodes.push(Node::Set { name: name.clone(), declares: false, value });
                }
                words => nodes.push(Node::Print(self.expression(words)?)),
            }
        }
        Ok((nodes, Ending::Text))
    }

    /// Adds a variable to the innermost block. Declared again there it is the same one.
    fn declare(&mut self, name: &str) -> Result<(), InvalidTemplate> {
        let count: usize = self.scopes.iter().map(Vec::len).sum();
        let innermost = self.scopes.last_mut().filter(|scope| !scope.iter().any(|known| known == name));
        if let Some(scope) = innermost {
            if count >= VARIABLES {
                return Err(self.wrong(format!("more than {VARIABLES} variables")));
            }
            scope.push(name.to_owned());
        }
        Ok(())
    }

    /// `if`, up to its `end`. A variable that is declared inside of it ends with it.
    fn condition(&mut self, first: &[Word]) -> Result<Node, InvalidTemplate> {
        if self.scopes.len() > DEEPEST {
            return Err(self.wrong(format!("more than {DEEPEST} blocks in each other")));
        }
        let begin = self.line;
        let mut branches = Vec::new();
        let mut condition = Some(self.expression(first)?);
        let mut otherwise = Vec::new();
        loop {
            self.scopes.push(Vec::new());
            let (nodes, end) = self.block()?;
            self.scopes.pop();
            let is_last = condition.is_none();
            match condition.take() {
                Some(condition) => branches.push((condition, nodes)),
                None => otherwise = nodes,
            }
            condition = match end {
                Ending::Block => return Ok(Node::If { branches, otherwise }),
                Ending::Text => {
                    self.line = begin;
                    return Err(self.wrong("`if` without `end`"));
                }
                Ending::Else(_) if is_last => return Err(self.wrong("a second `else`")),
                Ending::Else(None) => None,
                Ending::Else(Some(words)) => Some(self.expression(&words)?),
            };
        }
    }

    /// The whole words as one value.
    fn expression(&self, words: &[Word]) -> Result<Expression, InvalidTemplate> {
        if words.iter().filter(|word| matches!(word, Word::Pipe)).count() > PIPES {
            return Err(self.wrong(format!("more than {PIPES} pipes in an action")));
        }
        let mut rest = words;
        let value = self.pipeline(&mut rest, 0)?;
        if rest.is_empty() { Ok(value) } else { Err(self.wrong("a `)` without `(`, or `=` where no variable is set")) }
    }

    /// Commands separated by `|`: each value is the last one of the next function.
    fn pipeline(&self, words: &mut &[Word], depth: usize) -> Result<Expression, InvalidTemplate> {
        if depth > DEEPEST {
            return Err(self.wrong(format!("more than {DEEPEST} parentheses in each other")));
        }
        let mut value = self.command(words, None, depth)?;
        while let [Word::Pipe, rest @ ..] = *words {
            *words = rest;
            value = self.command(words, Some(value), depth)?;
        }
        Ok(value)
    }

    fn command(
        &self,
        words: &mut &[Word],
        piped: Option<Expression>,
        depth: usize,
    ) -> Result<Expression, InvalidTemplate> {
        let function = match *words {
            [Word::Name(name), rest @ ..] if !matches!(name.as_str(), "true" | "false") => {
                *words = rest;
                Some(self.function(name)?)
            }
            _ => None,
        };
        let mut values = Vec::new();
        while let Some(value) = self.operand(words, depth)? {
            values.push(value);
        }
        let piped = piped.map(|value| match function {
            Some(Function::And | Function::Or) => Expression::Piped(Box::new(value)),
            _ => value,
        });
        values.extend(piped);
        match function {
            Some(function) => self.call(function, values),
            None => match (values.pop(), values.is_empty()) {
                (Some(value), true) => Ok(value),
                (None, _) => Err(self.wrong("a value is missing")),
                (Some(_), false) => Err(self.wrong("values beside each other without a function")),
            },
        }
    }

    fn operand(&self, words: &mut &[Word], depth: usize) -> Result<Option<Expression>, InvalidTemplate> {
        let [first, rest @ ..] = *words else {
            return Ok(None);
        };
        let value = match first {
            Word::Text(text) => Expression::Text(text.clone()),
            Word::Integer(number) => Expression::Integer(*number),
            Word::Variable(name) => {
                self.check_variable(name)?;
                Expression::Variable(name.clone())
            }
            Word::Name(name) if name == "true" || name == "false" => Expression::Boolean(name == "true"),
            // A function without values beside others: of the known ones none makes sense.
            Word::Name(name) => {
                let function = self.function(name)?;
                return Err(self.wrong(format!("`{function}` as a value; put it into parentheses")));
            }
            Word::Open => {
                *words = rest;
                let value = self.pipeline(words, depth + 1)?;
                let [Word::Close, rest @ ..] = *words else {
                    return Err(self.wrong("a `(` without `)`"));
                };
                *words = rest;
                return Ok(Some(value));
            }
            Word::Close | Word::Pipe | Word::Declare | Word::Assign => return Ok(None),
        };
        *words = rest;
        Ok(Some(value))
    }

    fn function(&self, name: &str) -> Result<Function, InvalidTemplate> {
        Function::of_name(name).ok_or_else(|| {
            let known = Function::NAMES.iter().map(|(known, _)| *known).chain(["if", "else", "end"]);
            let hint = crate::config::fault::nearest(name, known).map(|near| format!("; did you mean `{near}`?"));
            let name = cut(name, SHOWN);
            self.wrong(format!("`{name}` is not known{}", hint.unwrap_or_default()))
        })
    }

    fn call(&self, function: Function, values: Vec<Expression>) -> Result<Expression, InvalidTemplate> {
        let (least, most) = function.values();
        if values.len() < least || values.len() > most {
            let count = if least == most { format!("{least}") } else { format!("at least {least}") };
            return Err(self.wrong(format!("`{function}` with {} values; it takes {count}", values.len())));
        }
        match (function, values.first()) {
            (Function::FromClusterLabel, Some(Expression::Integer(_) | Expression::Boolean(_))) => {
                return Err(self.wrong(format!("`{function}` with a value that is no text")));
            }
            (Function::Printf, Some(Expression::Text(format))) => self.format(format, values.len() - 1)?,
            (Function::Printf, _) => return Err(self.wrong("`printf` whose first value is no text in quotes")),
            _ => {}
        }
        Ok(Expression::Call(function, values))
    }

    fn check_variable(&self, name: &str) -> Result<(), InvalidTemplate> {
        if self.scopes.iter().flatten().any(|known| known == name) {
            return Ok(());
        }
        let name = cut(name, SHOWN);
        Err(self.wrong(format!("the variable `${name}` is not set before")))
    }

    /// Checks a format: its verbs, as many as there are values.
    fn format(&self, format: &str, values: usize) -> Result<(), InvalidTemplate> {
        let mut verbs = 0;
        for part in format::parts(format) {
            match part {
                Ok(Part::Text(_)) => {}
                Ok(Part::Verb(_)) => verbs += 1,
                Err(InvalidFormat::TooWide) => {
                    return Err(self.wrong(format!("a width or precision above {WIDEST} in the format")));
                }
                Err(InvalidFormat::UnknownVerb) => {
                    return Err(self.wrong("a verb in the format that is none of %s, %q, %d, %v and %%"));
                }
            }
        }
        if verbs == values {
            return Ok(());
        }
        Err(self.wrong(format!("a format with {verbs} verbs for {values} values")))
    }
}
