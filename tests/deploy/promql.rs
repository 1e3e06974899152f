//! A reader of the part of `PromQL` that the alerts and the dashboard use: it refuses what is not of this part, and tells
//! which series and labels an expression names.

/// What an expression names.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Query {
    /// The series.
    pub(crate) selectors: Vec<Selector>,
    /// The labels of `by` and `on`.
    pub(crate) labels: Vec<String>,
}

/// A choice of series.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Selector {
    pub(crate) name: String,
    /// Label, operator and value.
    pub(crate) matchers: Vec<(String, String, String)>,
    /// Whether values over time are taken: `[5m]`.
    pub(crate) is_range: bool,
    /// The function or aggregation that the selector stands in by itself.
    pub(crate) within: Option<String>,
}

const AGGREGATIONS: [&str; 4] = ["sum", "max", "min", "count"];
const FUNCTIONS: [&str; 7] = ["absent", "changes", "histogram_quantile", "increase", "max_over_time", "rate", "time"];
const OPERATORS: [&str; 13] = ["+", "-", "*", "/", ">", "<", ">=", "<=", "==", "!=", "and", "or", "unless"];

/// Reads an expression.
pub(crate) fn read(text: &str) -> Result<Query, String> {
    let mut reader = Reader { tokens: tokens(text)?, next: 0, query: Query::default() };
    reader.expression(None)?;
    match reader.peek() {
        None => Ok(reader.query),
        Some(token) => Err(format!("{token:?} after the end")),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    /// A name, keyword or operator.
    Word(String),
    /// A quoted text, without the quotes.
    Text(String),
    /// A number or a duration.
    Number(String),
}

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length_of = |is_part: fn(char) -> bool| rest.find(|character| !is_part(character)).unwrap_or(rest.len());
        let (token, length) = if first == '"' {
            let length = rest[1..].find('"').ok_or("a quote is not closed")?;
            (Token::Text(rest[1..=length].to_owned()), length + 2)
        } else if first.is_ascii_digit() {
            let length = length_of(|character| character.is_ascii_alphanumeric() || character == '.');
            (Token::Number(rest[..length].to_owned()), length)
        } else if first.is_ascii_alphabetic() || first == '_' {
            let length = length_of(|character| character.is_ascii_alphanumeric() || matches!(character, '_' | ':'));
            (Token::Word(rest[..length].to_owned()), length)
        } else {
            let is_pair = ["=~", "!~", "!=", "==", ">=", "<="].iter().any(|pair| rest.starts_with(pair));
            let length = if is_pair { 2 } else { first.len_utf8() };
            (Token::Word(rest[..length].to_owned()), length)
        };
        tokens.push(token);
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

struct Reader {
    tokens: Vec<Token>,
    next: usize,
    query: Query,
}

impl Reader {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.next)
    }

    fn take(&mut self) -> Result<Token, String> {
        let token = self.peek().cloned().ok_or("the expression ends too early")?;
        self.next += 1;
        Ok(token)
    }

    fn takes(&mut self, word: &str) -> bool {
        let is_next = self.peek() == Some(&Token::Word(word.to_owned()));
        self.next += usize::from(is_next);
        is_next
    }

    fn expect(&mut self, word: &str) -> Result<(), String> {
        if self.takes(word) { Ok(()) } else { Err(format!("{word} expected, not {:?}", self.peek())) }
    }

    fn operator(&mut self) -> bool {
        OPERATORS.iter().any(|operator| self.takes(operator))
    }

    fn expression(&mut self, within: Option<&str>) -> Result<(), String> {
        self.operand(within)?;
        while self.operator() {
            if self.takes("on") {
                self.labels()?;
            }
            self.operand(None)?;
        }
        Ok(())
    }

    fn operand(&mut self, within: Option<&str>) -> Result<(), String> {
        if self.takes("(") {
            self.expression(within)?;
            return self.expect(")");
        }
        match self.take()? {
            Token::Number(number) => number.parse::<f64>().map(|_| ()).map_err(|_| format!("{number} is no number")),
            Token::Word(name) if AGGREGATIONS.contains(&name.as_str()) => {
                if self.takes("by") {
                    self.labels()?;
                }
                self.arguments(&name)
            }
            Token::Word(name) if self.peek() == Some(&Token::Word("(".to_owned())) => {
                if FUNCTIONS.contains(&name.as_str()) {
                    self.arguments(&name)
                } else {
                    Err(format!("no function {name}"))
                }
            }
            Token::Word(name) if name.starts_with(|first: char| first.is_ascii_alphabetic()) => {
                self.selector(name, within)
            }
            other => Err(format!("{other:?} is no operand")),
        }
    }

    fn arguments(&mut self, of: &str) -> Result<(), String> {
        self.expect("(")?;
        while !self.takes(")") {
            self.expression(Some(of))?;
            if !self.takes(",") {
                return self.expect(")");
            }
        }
        Ok(())
    }

    fn labels(&mut self) -> Result<(), String> {
        self.expect("(")?;
        while !self.takes(")") {
            let label = self.label()?;
            self.query.labels.push(label);
            if !self.takes(",") {
                return self.expect(")");
            }
        }
        Ok(())
    }

    fn label(&mut self) -> Result<String, String> {
        match self.take()? {
            Token::Word(label) if label.starts_with(|first: char| first.is_ascii_alphabetic()) => Ok(label),
            other => Err(format!("{other:?} is no label")),
        }
    }

    fn selector(&mut self, name: String, within: Option<&str>) -> Result<(), String> {
        let mut selector = Selector { name, within: within.map(str::to_owned), ..Selector::default() };
        if self.takes("{") {
            while !self.takes("}") {
                selector.matchers.push(self.matcher()?);
                if !self.takes(",") {
                    self.expect("}")?;
                    break;
                }
            }
        }
        if self.takes("[") {
            selector.is_range = true;
            match self.take()? {
                Token::Number(span) if humantime::parse_duration(&span).is_ok() => self.expect("]")?,
                other => return Err(format!("{other:?} is no duration")),
            }
        }
        self.query.selectors.push(selector);
        Ok(())
    }

    fn matcher(&mut self) -> Result<(String, String, String), String> {
        let label = self.label()?;
        let operator = ["=", "!=", "=~", "!~"].into_iter().find(|operator| self.takes(operator));
        match (operator, self.take()?) {
            (Some(operator), Token::Text(value)) => Ok((label, operator.to_owned(), value)),
            (_, other) => Err(format!("{label} is not compared with a text, but {other:?}")),
        }
    }
}

#[test]
fn an_expression_is_taken_apart() {
    let text = r#"histogram_quantile(0.9, sum by (le, x) (rate(a_bucket{b="c,}", d=~"e|f"}[5m]))) > 3 and on (g) h"#;
    let query = read(text).expect("an expression");
    assert_eq!(query.labels, ["le", "x", "g"]);
    let matcher = |label: &str, operator: &str, value: &str| (label.into(), operator.into(), value.into());
    let expected = [
        Selector {
            name: "a_bucket".into(),
            matchers: vec![matcher("b", "=", "c,}"), matcher("d", "=~", "e|f")],
            is_range: true,
            within: Some("rate".into()),
        },
        Selector { name: "h".into(), ..Selector::default() },
    ];
    assert_eq!(query.selectors, expected);
}

#[test]
fn what_is_no_expression_is_refused() {
    for text in
        ["", "a b", "sum(a", "a{b=c}", "a{b}", "rate(a[x])", "rate(a[5m)", "nonsense(a)", "a >", "a{b=\"c}", "a)"]
    {
        assert!(read(text).is_err(), "{text}: {:?}", read(text));
    }
}
