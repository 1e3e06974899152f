//! What expressions are asked about: one object.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use cel::common::types::{CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelString, CelUInt};
use cel::common::value::Val;
use cel::{Context, Env, ExecutionError};
use serde_json::{Map, Value};

use super::{Expression, VARIABLES};

/// Most bytes of an object, as JSON without `managedFields`.
const MOST_BYTES: usize = 64 << 10;
/// Most elements of a list, and fields of an object.
const MOST_ELEMENTS: usize = 1000;

static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| Arc::new(Env::stdlib()));

/// `metadata`, `spec` and `status` of an object.
pub struct Facts<'o> {
    context: Context<'o, 'o>,
    size: Size,
}

/// How large an object is.
struct Size {
    /// Bytes that it may still have.
    room: usize,
    /// Of the longest list, or fields of the largest object in it.
    elements: usize,
    /// All of them. A long text counts as several.
    values: usize,
}

/// An object with more than [`MOST_BYTES`], or a list of more than [`MOST_ELEMENTS`].
#[derive(Debug, PartialEq, Eq)]
pub struct TooLarge;

impl<'o> Facts<'o> {
    pub fn of(object: &'o Value) -> Result<Self, TooLarge> {
        let mut context = Context::with_env(Arc::clone(&ENVIRONMENT));
        let mut size = Size { room: MOST_BYTES, elements: 0, values: 0 };
        for name in VARIABLES {
            let fields = match object.get(name) {
                Some(Value::Object(fields)) => value_of_fields(fields, name == "metadata", &mut size)?,
                // Nothing is in it, so that each of its fields is missing.
                _ => Box::new(CelMap::default()),
            };
            context.add_variable_as_val(name, fields);
        }
        Ok(Self { context, size })
    }

    /// How many steps it takes at most to find out whether an expression is true.
    pub fn steps(&self, expression: &Expression) -> usize {
        expression.steps(self.size.elements, self.size.values)
    }

    /// Whether an expression is true. What is missing is false; the error says why it is neither true nor false, without a value of the object.
    pub fn hold(&self, expression: &Expression) -> Result<bool, String> {
        match cel::Value::resolve_val(&expression.parsed, &self.context) {
            Ok(value) => match value.downcast_ref::<CelBool>() {
                Some(holds) => Ok(*holds.inner()),
                None => Err(format!("the result is of the type {}, and not a bool", value.get_type().name())),
            },
            Err(ExecutionError::NoSuchKey(_) | ExecutionError::IndexOutOfBounds(_)) => Ok(false),
            Err(ExecutionError::NoSuchOverload(error)) => Err(error.to_string()),
            Err(ExecutionError::UnexpectedType { got, want }) => Err(format!("found the type {got}, and not {want}")),
            Err(ExecutionError::DivisionByZero(_) | ExecutionError::RemainderByZero(_)) => {
                Err("division by zero".to_owned())
            }
            Err(ExecutionError::Overflow(..)) => Err("a number that is too large".to_owned()),
            Err(_) => Err("types that don't go together".to_owned()),
        }
    }
}

/// A field that is null is missing, as Kubernetes has it.
fn value_of_fields<'o>(
    fields: &'o Map<String, Value>,
    is_metadata: bool,
    size: &mut Size,
) -> Result<Box<dyn Val + 'o>, TooLarge> {
    let is_left_out = |name: &str, value: &Value| value.is_null() || is_metadata && name == "managedFields";
    size.take(2)?;
    let mut found: HashMap<CelMapKey<'o>, Box<dyn Val + 'o>> = HashMap::new();
    for (name, value) in fields.iter().filter(|(name, value)| !is_left_out(name, value)) {
        size.take(name.len() + 4)?;
        found.insert(CelMapKey::from(name.as_str()), value_of(value, size)?);
        if found.len() > MOST_ELEMENTS {
            return Err(TooLarge);
        }
    }
    size.elements = size.elements.max(found.len());
    Ok(Box::new(CelMap::from(found)))
}

fn value_of<'o>(value: &'o Value, size: &mut Size) -> Result<Box<dyn Val + 'o>, TooLarge> {
    Ok(match value {
        Value::Object(fields) => value_of_fields(fields, false, size)?,
        Value::Array(elements) if elements.len() > MOST_ELEMENTS => return Err(TooLarge),
        Value::Array(elements) => {
            size.take(2 + elements.len())?;
            size.elements = size.elements.max(elements.len());
            let elements: Result<Vec<_>, _> = elements.iter().map(|element| value_of(element, size)).collect();
            Box::new(CelList::from(elements?))
        }
        Value::String(text) => {
            size.take(text.len() + 2)?;
            Box::new(CelString::from(text.as_str()))
        }
        Value::Bool(is_true) => {
            size.take(5)?;
            Box::new(CelBool::from(*is_true))
        }
        Value::Number(number) => {
            size.take(8)?;
            match (number.as_i64(), number.as_u64()) {
                (Some(number), _) => Box::new(CelInt::from(number)),
                (None, Some(number)) => Box::new(CelUInt::from(number)),
                (None, None) => Box::new(CelDouble::from(number.as_f64().unwrap_or(f64::NAN))),
            }
        }
        Value::Null => {
            size.take(4)?;
            Box::new(CelNull)
        }
    })
}

impl Size {
    fn take(&mut self, bytes: usize) -> Result<(), TooLarge> {
        self.room = self.room.checked_sub(bytes).ok_or(TooLarge)?;
        self.values += 1 + bytes / 64;
        Ok(())
    }
}
