//! CEL expressions about an object, as `status.phase == 'ready'`, within bounds.
//!
//! `cel` bounds neither the parsing nor the evaluation, and whoever may write a document writes expressions. So a text is measured before it is parsed,
//! and what was parsed is walked: what is then evaluated costs at most as many steps as it has nodes, times the elements of one list. For that, a macro
//! stands in no other one, and what would copy or search a whole object for each element is refused (`size(status)` in a macro, `+` anywhere).

mod facts;

#[cfg(test)]
mod tests;

use cel::common::ast::{CallExpr, ComprehensionExpr, Expr, IdedExpr, LiteralValue, operators};
use cel::parser::PrattParser;

pub use facts::Facts;

/// Most bytes of an expression.
const MOST_BYTES: usize = 1024;
/// Most literals, names, fields, calls and macros.
const MOST_NODES: usize = 200;
/// Most calls of [`MACROS`].
const MOST_MACROS: usize = 4;
/// How deep calls, fields and brackets may be nested: parsing and evaluating recurse.
const DEEPEST: u16 = 16;
/// Most `?`: the parser does not count how deep they are nested.
const MOST_CONDITIONALS: usize = 16;

const VARIABLES: [&str; 3] = ["metadata", "spec", "status"];
const MACROS: &str = "exists, all, exists_one and filter";
const FUNCTIONS: &str = "has, size, startsWith, endsWith, contains, int and double";

/// An expression that can be evaluated within bounds.
#[derive(Debug)]
pub struct Expression {
    parsed: IdedExpr,
    counted: Walk,
}

/// What a part of an expression may be, as far as the cost of using it in a macro depends on it. The elements of a list are together no larger
/// than the list, so each of them may be used as a whole.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Size {
    /// As large as the expression at most.
    Small,
    /// A part of the element that a macro is at.
    Element,
    /// A part of the object, or all of it.
    Object,
}

impl Expression {
    /// What is allowed, for a fault.
    pub const ALLOWED: &str = "a CEL expression of at most 1,024 bytes, as status.phase == 'ready'";

    /// Reads an expression. The error says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MOST_BYTES {
            return Err(format!("{} bytes, of at most {MOST_BYTES}", text.len()));
        }
        if text.bytes().filter(|byte| *byte == b'?').count() > MOST_CONDITIONALS {
            return Err(format!("more than {MOST_CONDITIONALS} question marks"));
        }
        if deepest_bracket(text) > DEEPEST {
            return Err(too_deep());
        }
        // Brackets are all that the parser counts the depth of.
        let parser = PrattParser::new().max_recursion_depth(DEEPEST + 1).error_recovery_limit(0);
        let parsed = parser.parse(text).map_err(|errors| {
            let error = errors.errors.iter().find(|error| error.pos.0 > 0).or(errors.errors.first());
            error.map_or_else(
                || "it can't be parsed".to_owned(),
                |error| format!("{} (line {}, column {})", error.msg, error.pos.0, error.pos.1),
            )
        })?;
        let mut counted = Walk::default();
        counted.part(&parsed, 0, None)?;
        Ok(Self { parsed, counted })
    }

    /// How many steps it takes at most about an object of which no list has more elements, and that has so many values. A step takes about 0.1 µs.
    fn steps(&self, elements: usize, values: usize) -> usize {
        let Walk { nodes, in_macros, searches, copies, literals, .. } = self.counted;
        nodes + in_macros * elements.max(literals) + (searches + copies) * values
    }
}

/// Those in texts count as well: where a text ends is for the parser to say.
fn deepest_bracket(text: &str) -> u16 {
    let (mut depth, mut deepest) = (0_u16, 0);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

fn too_deep() -> String {
    format!("nested more than {DEEPEST} deep")
}

/// Goes through what was parsed.
#[derive(Debug, Default)]
struct Walk {
    nodes: usize,
    macros: usize,
    /// What is evaluated for each element of a list.
    in_macros: usize,
    /// Elements of the longest list in the expression itself.
    literals: usize,
    /// Calls that may compare or search a whole object; in a macro, all elements together are no more than that.
    searches: usize,
    /// How often macros copy the elements of a list, with all that is in them.
    copies: usize,
}

impl Walk {
    /// A part of the expression; `element` is the variable of the macro around it.
    fn part(&mut self, part: &IdedExpr, depth: u16, element: Option<&str>) -> Result<Size, String> {
        self.nodes += 1;
        if self.nodes > MOST_NODES {
            return Err(format!("more than {MOST_NODES} names, literals and calls"));
        }
        if depth > DEEPEST {
            return Err(too_deep());
        }
        self.in_macros += usize::from(element.is_some());
        match &part.expr {
            Expr::Literal(_) => Ok(Size::Small),
            Expr::Ident(name) if element == Some(name) => Ok(Size::Element),
            Expr::Ident(name) if VARIABLES.contains(&name.as_str()) => Ok(Size::Object),
            Expr::Ident(name) => Err(format!("the variable {name}: there are metadata, spec and status")),
            Expr::Select(select) => {
                let size = self.part(&select.operand, depth + 1, element)?;
                Ok(if select.test { Size::Small } else { size })
            }
            Expr::List(list) => {
                self.literals = self.literals.max(list.elements.len());
                for element_of_list in &list.elements {
                    if !matches!(element_of_list.expr, Expr::Literal(_)) {
                        return Err("a list of anything but literals".to_owned());
                    }
                    self.part(element_of_list, depth + 1, element)?;
                }
                Ok(Size::Small)
            }
            Expr::Comprehension(comprehension) => self.comprehension(comprehension, depth, element),
            Expr::Call(call) => self.call(call, depth, element),
            Expr::Map(_) | Expr::Struct(_) => Err("a map in braces".to_owned()),
            Expr::Unspecified => Err("it can't be parsed".to_owned()),
        }
    }

    fn comprehension(
        &mut self,
        comprehension: &ComprehensionExpr,
        depth: u16,
        element: Option<&str>,
    ) -> Result<Size, String> {
        let Some((body, size)) = body(comprehension) else {
            return Err(format!("the macro map: there are {MACROS}"));
        };
        if element.is_some() {
            return Err("a macro in another one".to_owned());
        }
        self.macros += 1;
        if self.macros > MOST_MACROS {
            return Err(format!("more than {MOST_MACROS} of the macros {MACROS}"));
        }
        // Each element is also named, asked for and put into the result.
        self.in_macros += 3;
        // `cel` copies an element to name it, and twice more to put it into the result of a filter.
        self.copies += if size == Size::Object { 3 } else { 1 };
        let variable = comprehension.iter_var.as_str();
        if VARIABLES.contains(&variable) {
            return Err(format!("{variable} as the variable of a macro"));
        }
        self.part(&comprehension.iter_range, depth + 1, None)?;
        self.part(body, depth + 1, Some(variable))?;
        Ok(size)
    }

    fn call(&mut self, call: &CallExpr, depth: u16, element: Option<&str>) -> Result<Size, String> {
        let mut sizes = Vec::with_capacity(3);
        for operand in call.target.as_deref().into_iter().chain(&call.args) {
            sizes.push(self.part(operand, depth + 1, element)?);
        }
        let (name, smallest) = (call.func_name.as_str(), sizes.iter().min());
        let is_compared = [operators::EQUALS, operators::NOT_EQUALS].contains(&name);
        let is_searched = !is_compared && sizes.iter().any(|size| *size > Size::Small);
        self.searches += usize::from(is_searched || is_compared && smallest > Some(&Size::Small));
        // What is not a boolean is refused by its type, without a look at it.
        let (may_be_large, size) = match (call.func_name.as_str(), call.target.is_some(), sizes.as_slice()) {
            (operators::LOGICAL_AND | operators::LOGICAL_OR, false, [_, _]) | (operators::LOGICAL_NOT, false, [_]) => {
                (true, Size::Small)
            }
            (operators::CONDITIONAL, false, [_, left, right]) => (true, *left.max(right)),
            // They compare as much as the smaller one has.
            (operators::EQUALS | operators::NOT_EQUALS, false, [left, right]) => {
                (left.min(right) < &Size::Object, Size::Small)
            }
            (operators::INDEX, false, [of, _]) => (false, *of),
            (
                operators::LESS
                | operators::LESS_EQUALS
                | operators::GREATER
                | operators::GREATER_EQUALS
                | operators::SUBSTRACT
                | operators::MULTIPLY
                | operators::DIVIDE
                | operators::MODULO
                | operators::IN,
                false,
                [_, _],
            )
            | (operators::NEGATE | "int" | "double" | "size", false, [_])
            | ("size", true, [_])
            | ("startsWith" | "endsWith" | "contains", true, [_, _]) => (false, Size::Small),
            (operators::ADD, ..) => return Err("+, which joins texts and lists: write a - b == c".to_owned()),
            (name, ..) => return Err(format!("{name}(): there are {FUNCTIONS}, {MACROS}")),
        };
        if element.is_some() && !may_be_large && sizes.contains(&Size::Object) {
            return Err("metadata, spec or status in a macro, other than e.field == status.field and has()".to_owned());
        }
        Ok(size)
    }
}

/// What a macro evaluates for each element, and how large its result may be; none of `map`.
fn body(comprehension: &ComprehensionExpr) -> Option<(&IdedExpr, Size)> {
    let is_name = |part: &IdedExpr, name: &str| matches!(&part.expr, Expr::Ident(found) if found == name);
    let is_result = |part: &IdedExpr| is_name(part, &comprehension.accu_var);
    let Expr::Call(CallExpr { func_name, target: None, args }) = &comprehension.loop_step.expr else { return None };
    if comprehension.iter_var2.is_some() {
        return None;
    }
    match (func_name.as_str(), args.as_slice()) {
        (operators::LOGICAL_AND | operators::LOGICAL_OR, [result, body]) if is_result(result) => {
            Some((body, Size::Small))
        }
        (operators::CONDITIONAL, [body, step, result]) if is_result(result) => {
            let Expr::Call(CallExpr { func_name, target: None, args }) = &step.expr else { return None };
            let [before, added] = args.as_slice() else { return None };
            match &added.expr {
                _ if func_name != operators::ADD || !is_result(before) => None,
                Expr::Literal(LiteralValue::Int(_)) => Some((body, Size::Small)),
                Expr::List(list) => match list.elements.as_slice() {
                    [kept] if is_name(kept, &comprehension.iter_var) => Some((body, Size::Object)),
                    _ => None,
                },
                _ => None,
            }
        }
        _ => None,
    }
}
