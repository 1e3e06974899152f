//! Figures beside what they have to be. Nothing depends on them but the text: a bench is no test.

use std::fmt::Write;

use serde::Serialize;

/// A figure, and what it has to be.
#[derive(Debug, Serialize)]
pub(crate) struct Mark {
    what: String,
    ours: f64,
    wanted: Option<Wanted>,
    kept: bool,
}

/// A bound.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Wanted {
    AtLeast(f64),
    AtMost(f64),
    Below(f64),
}

impl Mark {
    /// A figure with its bound, if it has one.
    pub(crate) fn new(what: &str, ours: f64, wanted: Option<Wanted>) -> Self {
        let kept = match wanted {
            None => true,
            Some(Wanted::AtLeast(least)) => ours >= least,
            Some(Wanted::AtMost(most)) => ours <= most,
            Some(Wanted::Below(bound)) => ours < bound,
        };
        Self { what: what.to_owned(), ours, wanted, kept }
    }
}

/// One line for each figure.
pub(crate) fn table(title: &str, marks: &[Mark]) -> String {
    let mut text = format!("{:<66}{:>10}  {:<10}\n", format!("{title}, marks (medians)"), "towline", "wanted");
    for mark in marks {
        let wanted = match mark.wanted {
            None => String::new(),
            Some(Wanted::AtLeast(least)) => format!(">= {least}"),
            Some(Wanted::AtMost(most)) => format!("<= {most}"),
            Some(Wanted::Below(bound)) => format!("< {bound}"),
        };
        let kept = if mark.kept { "" } else { "missed" };
        // Writing to a string can't fail.
        let _ = writeln!(text, "{:<66}{:>10.3}  {wanted:<10}{kept}", mark.what, mark.ours);
    }
    text
}
