//! The table of results, the same for every job; the ratios of two programs; and both as JSON.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use crate::measure::{Figures, median};

pub(crate) struct Table {
    /// Names the file.
    pub(crate) job: &'static str,
    /// How it was measured; part of every figure.
    setting: &'static str,
    /// The program that the ratios are of, if two are compared.
    compared: Option<&'static str>,
    rows: Vec<Row>,
}

pub(crate) struct Row {
    /// Among how many objects; may be empty.
    pub(crate) size: String,
    pub(crate) phase: String,
    /// The program, or its setting.
    pub(crate) who: String,
    /// How many of what the requests and the CPU time are divided by; empty where they are all in all.
    pub(crate) count: String,
    pub(crate) runs: Vec<Figures>,
}

#[derive(Debug, PartialEq)]
struct Comparison {
    ours: f64,
    theirs: f64,
    /// Ours by theirs; `None` where theirs is nothing.
    ratio: Option<f64>,
    /// The lowest and the highest ratio of two runs that followed each other.
    range: Option<(f64, f64)>,
}

impl Row {
    fn median(&self, figure: &str) -> Option<f64> {
        median(self.runs.iter().filter_map(|run| run.get(figure)).collect())
    }

    /// For progress: the last run.
    pub(crate) fn line(&self) -> String {
        let figures = self.runs.last().into_iter().flat_map(|run| &run.0);
        let figures: Vec<_> = figures.map(|(name, value)| format!("{name} {}", number(*value))).collect();
        format!("  {:<32} {:<16} {}", self.phase, self.count, figures.join(", "))
    }

    fn is_same_phase(&self, other: &Self) -> bool {
        (&self.size, &self.phase) == (&other.size, &other.phase)
    }

    fn beside(&self, theirs: &Self, figure: &str) -> Option<Comparison> {
        let by = |ours: f64, theirs: f64| (theirs > 0.0).then(|| ours / theirs);
        let pairs = self.runs.iter().zip(&theirs.runs);
        let ratios = pairs.filter_map(|(ours, theirs)| by(ours.get(figure)?, theirs.get(figure)?));
        let range = ratios.fold(None, |range: Option<(f64, f64)>, ratio| {
            Some(range.map_or((ratio, ratio), |(low, high)| (low.min(ratio), high.max(ratio))))
        });
        let (ours, theirs) = (self.median(figure)?, theirs.median(figure)?);
        Some(Comparison { ours, theirs, ratio: by(ours, theirs), range })
    }
}

impl Table {
    pub(crate) fn new(job: &'static str, setting: &'static str) -> Self {
        Self { job, setting, compared: None, rows: Vec::new() }
    }

    /// With the ratios of this program to any other.
    pub(crate) fn compared(mut self, program: &'static str) -> Self {
        self.compared = Some(program);
        self
    }

    /// Adds a run to its row. Rows of the same phase follow each other.
    pub(crate) fn add(&mut self, row: Row) {
        if let Some(known) = self.rows.iter_mut().find(|known| known.is_same_phase(&row) && known.who == row.who) {
            known.runs.extend(row.runs);
            return;
        }
        let last = self.rows.iter().rposition(|known| known.is_same_phase(&row));
        self.rows.insert(last.map_or(self.rows.len(), |last| last + 1), row);
    }

    /// Prints everything, and writes it below the working directory, which `make` makes the repository.
    pub(crate) fn finish(&self) -> Result<(), String> {
        println!("\n{}, medians: {}\n\n{}", self.job, self.setting, self.text());
        let ratios = self.ratios();
        if !ratios.is_empty() {
            println!("{}", lines(&ratios));
        }
        let file = format!("target/bench/{}.json", self.job);
        let failed = |error: std::io::Error| format!("failed to write {file}: {error}");
        let path = PathBuf::from(&file);
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory).map_err(failed)?;
        }
        fs::write(&path, format!("{:#}\n", self.json())).map_err(failed)?;
        println!("all runs: {file}");
        Ok(())
    }

    /// The names of all figures, in their order.
    fn figures(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for run in self.rows.iter().flat_map(|row| &row.runs) {
            // One that is new stands before the one that follows it here.
            let mut next = names.len();
            for (name, _) in run.0.iter().rev() {
                next = names.iter().position(|known| known == name).unwrap_or_else(|| {
                    names.insert(next, name);
                    next
                });
            }
        }
        names
    }

    fn text(&self) -> String {
        let figures = self.figures();
        let mut head = vec!["", "phase", "", "for each of"];
        head.extend(&figures);
        let mut cells: Vec<Vec<String>> = vec![head.into_iter().map(str::to_owned).collect()];
        for row in &self.rows {
            let mut line = vec![row.size.clone(), row.phase.clone(), row.who.clone(), row.count.clone()];
            line.extend(figures.iter().map(|figure| row.median(figure).map_or_else(String::new, number)));
            cells.push(line);
        }
        lines(&cells)
    }

    /// Each figure of the program beside that of the other one, with a head.
    fn ratios(&self) -> Vec<Vec<String>> {
        let Some(program) = self.compared else { return Vec::new() };
        let mut cells: Vec<Vec<String>> = Vec::new();
        for ours in self.rows.iter().filter(|row| row.who == program) {
            for theirs in self.rows.iter().filter(|row| row.is_same_phase(ours) && row.who != program) {
                if cells.is_empty() {
                    let head = ["", "phase", "", "", program, &theirs.who, "ratio", "lowest", "highest"];
                    cells.push(head.map(str::to_owned).to_vec());
                }
                for figure in self.figures() {
                    let Some(found) = ours.beside(theirs, figure) else { continue };
                    let text = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
                    let (low, high) = found.range.unzip();
                    let labels = [ours.size.clone(), ours.phase.clone(), figure.to_owned(), String::new()];
                    let values = [number(found.ours), number(found.theirs), text(found.ratio), text(low), text(high)];
                    cells.push(labels.into_iter().chain(values).collect());
                }
            }
        }
        cells
    }

    fn json(&self) -> Value {
        let rows = self.rows.iter().map(|row| {
            let runs = row.runs.iter().map(|run| {
                let figures = run.0.iter().map(|(name, value)| (name.clone(), json!(value)));
                Value::Object(figures.collect::<Map<_, _>>())
            });
            let runs: Vec<_> = runs.collect();
            json!({"size": row.size, "phase": row.phase, "who": row.who, "for_each_of": row.count, "runs": runs})
        });
        json!({"job": self.job, "setting": self.setting, "rows": rows.collect::<Vec<_>>()})
    }
}

/// Cells in columns: the first four are labels.
fn lines(cells: &[Vec<String>]) -> String {
    let width = |column: usize| cells.iter().filter_map(|line| Some(line.get(column)?.chars().count())).max();
    let mut text = String::new();
    for line in cells {
        for (column, cell) in line.iter().enumerate() {
            let width = width(column).unwrap_or_default();
            // Writing to a string can't fail.
            let _ = if column < 4 { write!(text, "{cell:<width$}  ") } else { write!(text, "{cell:>width$}  ") };
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

/// With as many digits as say something.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        100.0.. => 0,
        10.0.. => 1,
        0.1.. => 2,
        f64::MIN_POSITIVE.. => 3,
        _ => 0,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::{Comparison, Row, Table, number};
    use crate::measure::Figures;

    fn row(phase: &str, who: &str, rate: f64) -> Row {
        let runs = vec![Figures(vec![("per second".to_owned(), rate), ("MiB".to_owned(), 0.0)])];
        Row { size: String::new(), phase: phase.to_owned(), who: who.to_owned(), count: "9 objects".to_owned(), runs }
    }

    fn table(rows: &[(&str, &str, f64)]) -> Table {
        let mut table = Table::new("sync", "here").compared("towline");
        for (phase, who, rate) in rows {
            table.add(row(phase, who, *rate));
        }
        table
    }

    #[test]
    fn a_ratio_is_of_medians_and_its_range_of_runs_that_followed_each_other() {
        let turns =
            [("towline", 300.0), ("go", 100.0), ("towline", 100.0), ("go", 50.0), ("towline", 200.0), ("go", 400.0)];
        let table = table(&turns.map(|(who, rate)| ("create", who, rate)));
        let found = table.rows[0].beside(&table.rows[1], "per second").unwrap();
        assert_eq!(found, Comparison { ours: 200.0, theirs: 100.0, ratio: Some(2.0), range: Some((0.5, 3.0)) });
        assert_eq!(table.rows[0].beside(&table.rows[1], "MiB").unwrap().ratio, None, "nothing has no ratio");
        assert_eq!(table.ratios().len(), 3, "a head and two figures");
    }

    #[test]
    fn rows_of_a_phase_follow_each_other_and_a_figure_that_is_missing_leaves_its_cell_empty() {
        let mut table = table(&[("create", "towline", 1.0), ("idle", "towline", 2.0), ("create", "go", 30.0)]);
        table.rows[2].runs = vec![Figures(vec![("p50 ms".to_owned(), 5.0), ("MiB".to_owned(), 123.4)])];
        let expected = [
            "  phase            for each of  per second  p50 ms  MiB\n",
            "  create  towline  9 objects          1.00            0\n",
            "  create  go       9 objects          30.0            0\n",
            "  idle    towline  9 objects                  5.00  123\n",
        ];
        assert_eq!(table.text(), expected.concat());
    }

    #[test]
    fn a_number_has_as_many_digits_as_say_something() {
        let told = [0.0, 0.012_34, 0.234, 9.87, 45.67, 4_567.8].map(number);
        assert_eq!(told, ["0", "0.012", "0.23", "9.87", "45.7", "4568"]);
    }
}
