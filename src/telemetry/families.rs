//! Gauges whose series come and go, such as one for each document of a kind: they are rendered as they are at the scrape.
//!
//! The recorder keeps a series until the process ends, so that one of something that is gone would stay for ever.

use std::fmt::Write;

use super::metrics::Metric;

/// A gauge with the series that it has now. The recorder has none of it.
#[derive(Clone, Debug)]
pub struct Family {
    /// The gauge.
    pub metric: &'static Metric,
    /// Its series; without them nothing is shown of it.
    pub series: Vec<Series>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its label, if it has one.
    pub label: Option<(&'static str, String)>,
    pub value: f64,
}

/// Appends gauges in the text format.
pub fn render(text: &mut String, families: &[Family]) {
    for Family { metric, series } in families.iter().filter(|family| !family.series.is_empty()) {
        let name = metric.name;
        // Writing to a String can't fail.
        let _ = write!(text, "# HELP {name} {}\n# TYPE {name} gauge\n", metric.help);
        for Series { label, value } in series {
            let _ = match label {
                None => writeln!(text, "{name} {value}"),
                Some((key, of)) => writeln!(text, "{name}{{{key}=\"{}\"}} {value}", escaped(of)),
            };
        }
        text.push('\n');
    }
}

/// A label's value as the text format wants it.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    static APPLES: Metric = Metric::gauge("apples", "Apples by tree");
    static TREES: Metric = Metric::gauge("trees", "Trees");

    #[test]
    fn series_are_shown_with_escaped_labels_and_an_empty_family_is_not_there() {
        let of = |tree: &str, value| Series { label: Some(("tree", tree.to_owned())), value };
        let mut text = "before 1\n".to_owned();
        render(
            &mut text,
            &[
                Family { metric: &APPLES, series: vec![of("a", 3.0), of("\"b\\\n", 0.5)] },
                Family { metric: &TREES, series: vec![Series { label: None, value: 2.0 }] },
                Family { metric: &APPLES, series: Vec::new() },
            ],
        );
        assert_eq!(
            text,
            "before 1\n# HELP apples Apples by tree\n# TYPE apples gauge\napples{tree=\"a\"} 3\napples{tree=\"\\\"b\\\\\\n\"} 0.5\n\n\
             # HELP trees Trees\n# TYPE trees gauge\ntrees 2\n\n"
        );
    }
}
