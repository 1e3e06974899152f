//! Rendering a template: what Go's `text/template` makes of it, within limits.
//!
//! There are no loops, so each part of a template is evaluated at most once. But `printf` can double a variable as often as it is
//! written, and so a short template could make texts without end: the lengths of all texts that are made and compared count
//! against a [`TextBudget`], and so do the variables that are looked through for one.

use super::format::{self, Part};
use super::{Datum, Expression, Function, Node, Template};
use crate::config::text::{SHOWN, cut};

/// Longest text that a template makes, in bytes.
pub(super) const LONGEST: usize = 1 << 20;
/// What the templates of one syncset may make in all, in bytes: four times the largest document.
const BUDGET: usize = 16 << 20;

/// Bytes of a name that are compared in about the time in which a byte is made.
const COMPARED_AT_ONCE: usize = 32;

/// How much text may still be made, by all templates that share it.
#[derive(Clone, Debug)]
pub struct TextBudget {
    left: usize,
}

/// Why a template can't be rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unrenderable {
    /// A function was given a value of another type.
    #[error("`{function}` with {found}, where it takes a string")]
    WrongType { function: Function, found: &'static str },
    /// Values of different types don't compare.
    #[error("`{function}` with {left} and {right}, which don't compare")]
    Incomparable {
        function: Function,
        /// What the first value is.
        left: &'static str,
        /// What it was compared with.
        right: &'static str,
    },
    /// A variable that no block has. Parsing refuses it.
    #[error("the variable `${0}` is not set before")]
    UnknownVariable(String),
    #[error("`printf` with a format that can't be read")]
    InvalidFormat,
    /// The result, or a value on the way to it, is too long.
    #[error("a text of more than 1 MiB")]
    TooLong,
    /// The templates make too much in all, or look through too many variables.
    #[error("the templates of the syncset make more than 16 MiB of text in all")]
    TooMuch,
}

impl Default for TextBudget {
    fn default() -> Self {
        Self { left: BUDGET }
    }
}

impl TextBudget {
    fn take(&mut self, bytes: usize) -> Result<(), Unrenderable> {
        self.left = self.left.checked_sub(bytes).ok_or(Unrenderable::TooMuch)?;
        Ok(())
    }
}

impl Template {
    /// What the template makes with these labels; `label` returns the value of a key, if it has one.
    pub fn render<'l>(
        &self,
        label: &dyn Fn(&str) -> Option<&'l str>,
        budget: &mut TextBudget,
    ) -> Result<String, Unrenderable> {
        let mut renderer = Renderer { label, budget, scopes: Vec::new(), output: String::new() };
        renderer.block(self.nodes())?;
        Ok(renderer.output)
    }
}

struct Renderer<'r, 'l> {
    label: &'r dyn Fn(&str) -> Option<&'l str>,
    budget: &'r mut TextBudget,
    /// The variables of each block that is open.
    scopes: Vec<Vec<(&'r str, Datum)>>,
    output: String,
}

impl<'r> Renderer<'r, '_> {
    fn block(&mut self, nodes: &'r [Node]) -> Result<(), Unrenderable> {
        self.scopes.push(Vec::new());
        for node in nodes {
            match node {
                Node::Text(text) => self.print(text)?,
                Node::Print(value) => match self.value(value)? {
                    Datum::Text(text) => self.print(&text)?,
                    Datum::Integer(number) => self.print(&number.to_string())?,
                    Datum::Boolean(value) => self.print(&value.to_string())?,
                },
                Node::Set { name, declares, value } => {
                    let value = self.value(value)?;
                    self.set(name, *declares, value)?;
                }
                Node::If { branches, otherwise } => {
                    let mut chosen = otherwise;
                    for (condition, nodes) in branches {
                        if self.value(condition)?.is_true() {
                            chosen = nodes;
                            break;
                        }
                    }
                    self.block(chosen)?;
                }
            }
        }
        self.scopes.pop();
        Ok(())
    }

    fn print(&mut self, text: &str) -> Result<(), Unrenderable> {
        if text.len() > LONGEST.saturating_sub(self.output.len()) {
            return Err(Unrenderable::TooLong);
        }
        self.budget.take(text.len())?;
        self.output.push_str(text);
        Ok(())
    }

    fn set(&mut self, name: &'r str, declares: bool, value: Datum) -> Result<(), Unrenderable> {
        let innermost = self.scopes.last_mut().filter(|_| declares);
        if let Some(scope) = innermost
            && !scope.iter().any(|(known, _)| *known == name)
        {
            scope.push((name, value));
            return Ok(());
        }
        *self.variable(name)? = value;
        Ok(())
    }

    /// The innermost variable of a name.
    fn variable(&mut self, name: &str) -> Result<&mut Datum, Unrenderable> {
        let mut passed = 0;
        let mut variables = self.scopes.iter_mut().rev().flatten();
        let found = variables.find(|(known, _)| {
            passed += 1 + known.len() / COMPARED_AT_ONCE;
            *known == name
        });
        self.budget.take(passed)?;
        let value = found.map(|(_, value)| value);
        value.ok_or_else(|| Unrenderable::UnknownVariable(cut(name, SHOWN)))
    }

    fn value(&mut self, expression: &Expression) -> Result<Datum, Unrenderable> {
        match expression {
            Expression::Text(text) => Ok(Datum::Text(text.as_str().into())),
            Expression::Integer(number) => Ok(Datum::Integer(*number)),
            Expression::Boolean(value) => Ok(Datum::Boolean(*value)),
            Expression::Variable(name) => self.variable(name).map(|value| value.clone()),
            Expression::Piped(value) => self.value(value),
            Expression::Call(function, values) => self.call(*function, values),
        }
    }

    fn call(&mut self, function: Function, values: &[Expression]) -> Result<Datum, Unrenderable> {
        match function {
            Function::And => self.first(values, false),
            Function::Or => self.first(values, true),
            Function::FromClusterLabel => match self.all(values)?.as_slice() {
                [Datum::Text(key)] => {
                    let value = (self.label)(key).unwrap_or_default();
                    self.text(value.to_owned())
                }
                others => {
                    let found = others.first().map_or("nothing", Datum::with_article);
                    Err(Unrenderable::WrongType { function, found })
                }
            },
            Function::Not => Ok(Datum::Boolean(!self.all(values)?.first().is_some_and(Datum::is_true))),
            Function::Equal => self.is_any_equal(function, values).map(Datum::Boolean),
            Function::NotEqual => Ok(Datum::Boolean(!self.is_any_equal(function, values)?)),
            Function::Printf => self.formatted(values),
        }
    }

    fn all(&mut self, values: &[Expression]) -> Result<Vec<Datum>, Unrenderable> {
        values.iter().map(|value| self.value(value)).collect()
    }

    /// The first value of this truth, or the last; those behind it are not evaluated, but a piped one always is.
    fn first(&mut self, values: &[Expression], truth: bool) -> Result<Datum, Unrenderable> {
        let piped = match values.last() {
            Some(Expression::Piped(value)) => Some(self.value(value)?),
            _ => None,
        };
        let mut last = Datum::Boolean(false);
        for value in values.iter().take(values.len() - usize::from(piped.is_some())) {
            last = self.value(value)?;
            if last.is_true() == truth {
                return Ok(last);
            }
        }
        Ok(piped.unwrap_or(last))
    }

    /// Whether the first value equals one of the others. Go compares them in turn, up to the first that is equal.
    fn is_any_equal(&mut self, function: Function, values: &[Expression]) -> Result<bool, Unrenderable> {
        let values = self.all(values)?;
        let Some((left, others)) = values.split_first() else {
            return Ok(false);
        };
        for right in others {
            let is_equal = match (left, right) {
                (Datum::Text(left), Datum::Text(right)) => {
                    self.budget.take(left.len().min(right.len()))?;
                    left == right
                }
                (Datum::Integer(left), Datum::Integer(right)) => left == right,
                (Datum::Boolean(left), Datum::Boolean(right)) => left == right,
                _ => {
                    let (left, right) = (left.with_article(), right.with_article());
                    return Err(Unrenderable::Incomparable { function, left, right });
                }
            };
            if is_equal {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn formatted(&mut self, values: &[Expression]) -> Result<Datum, Unrenderable> {
        let values = self.all(values)?;
        let Some((Datum::Text(format), values)) = values.split_first() else {
            return Err(Unrenderable::InvalidFormat);
        };
        let mut values = values.iter();
        let mut text = String::new();
        for part in format::parts(format) {
            match part.map_err(|_| Unrenderable::InvalidFormat)? {
                Part::Text(part) => text.push_str(part),
                Part::Verb(verb) => verb.print(values.next().ok_or(Unrenderable::InvalidFormat)?, &mut text),
            }
            if text.len() > LONGEST {
                return Err(Unrenderable::TooLong);
            }
        }
        self.text(text)
    }

    fn text(&mut self, text: String) -> Result<Datum, Unrenderable> {
        if text.len() > LONGEST {
            return Err(Unrenderable::TooLong);
        }
        self.budget.take(text.len())?;
        Ok(Datum::Text(text.into()))
    }
}

#[cfg(test)]
mod tests;
