//! What people see: at most 100 columns; colour and moving lines only on a terminal.

use std::io::{IsTerminal, Write, stdout};
use std::pin::pin;
use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval};

use crate::terminal::Entry;

/// Columns of a plain terminal.
const WIDTH: usize = 100;
/// Columns in front of a step's text: number and title.
const INDENT: usize = 15;
/// Columns in front of what was typed and printed.
const MARGIN: usize = 6;
/// Columns of a latency.
const LATENCY: usize = 11;
/// How often the line that tells what is waited for is painted anew.
const REPAINT: Duration = Duration::from_millis(250);
/// How often the same is told where lines can't be painted anew.
const REMINDER: Duration = Duration::from_secs(5);

/// Empties the line on a terminal.
const CLEAR: &str = "\r\x1b[2K";

#[derive(Clone, Copy, Debug)]
pub(crate) struct Screen {
    /// Lines can be painted anew.
    moves: bool,
    colour: bool,
}

/// How a piece of text looks, where there is colour.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Look {
    Bold,
    Dim,
    Good,
    Bad,
}

impl Screen {
    pub(crate) fn new() -> Self {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty());
        let moves = stdout().is_terminal() && !dumb;
        // https://no-color.org: set and not empty.
        let unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { moves, colour: moves && !unwanted }
    }

    pub(crate) fn paint(self, look: Look, text: &str) -> String {
        if !self.colour {
            return text.to_owned();
        }
        let code = match look {
            Look::Bold => "1",
            Look::Dim => "2",
            Look::Good => "32",
            Look::Bad => "1;31",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    pub(crate) fn line(self, text: &str) {
        let mut out = stdout().lock();
        // In the place of what [`Screen::during`] has painted.
        let start = if self.moves { CLEAR } else { "" };
        // Nobody reads any more: there is nobody to tell.
        let _ = writeln!(out, "{start}{text}").and_then(|()| out.flush());
    }

    /// Something of the set-up is there.
    pub(crate) fn done(self, text: &str, took: Duration) {
        let seconds = format!("{:.1} s", took.as_secs_f64());
        let room = WIDTH - 4 - LATENCY;
        self.line(&format!("  {} {text:<room$}{seconds:>LATENCY$}", self.paint(Look::Good, "✓")));
    }

    /// A step of the story, in one line where it fits.
    pub(crate) fn step(self, number: usize, title: &str, text: &str, latency: Duration) {
        let room = WIDTH - INDENT - LATENCY;
        let lines = wrap(text, room);
        for (index, line) in lines.iter().enumerate() {
            let head = if index == 0 {
                format!(" {number:>2}  {}", self.paint(Look::Bold, &format!("{title:<10}")))
            } else {
                " ".repeat(INDENT)
            };
            let last = index + 1 == lines.len();
            let time = if last {
                self.paint(Look::Good, &format!("{:>LATENCY$}", milliseconds(latency)))
            } else {
                String::new()
            };
            let line = if last { format!("{line:<room$}") } else { line.clone() };
            self.line(&format!("{head}{line}{time}"));
        }
    }

    /// What was typed and printed in a step, below its line.
    pub(crate) fn transcript(self, entries: &[Entry]) {
        let margin = " ".repeat(MARGIN);
        for entry in entries {
            match entry {
                Entry::Typed(command) => {
                    for (index, line) in command.lines().enumerate() {
                        let prompt = if index == 0 { "$ " } else { "" };
                        self.line(&format!("{margin}{}", self.paint(Look::Bold, &format!("{prompt}{line}"))));
                    }
                }
                Entry::Printed(text) => {
                    for line in text.lines() {
                        self.line(&format!("{margin}{}", self.paint(Look::Dim, &shortened(line, WIDTH - MARGIN))));
                    }
                }
            }
        }
        if !entries.is_empty() {
            self.line("");
        }
    }

    /// Does the work, and tells what it waits for meanwhile.
    pub(crate) async fn during<T>(self, what: impl Fn() -> String, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let began = Instant::now();
        let mut ticks = interval(if self.moves { REPAINT } else { REMINDER });
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first is at once.
        ticks.tick().await;
        loop {
            tokio::select! {
                biased;
                result = &mut work => {
                    self.clear();
                    return result;
                }
                _ = ticks.tick() => self.progress(&what(), began.elapsed()),
            }
        }
    }

    /// Takes away what [`Screen::during`] has painted.
    pub(crate) fn clear(self) {
        if self.moves {
            let mut out = stdout().lock();
            let _ = write!(out, "{CLEAR}").and_then(|()| out.flush());
        }
    }

    fn progress(self, what: &str, so_far: Duration) {
        let text = format!("  … {what} ({} s)", so_far.as_secs());
        if self.moves {
            let text: String = text.chars().take(WIDTH - 1).collect();
            let mut out = stdout().lock();
            let _ = write!(out, "{CLEAR}{}", self.paint(Look::Dim, &text)).and_then(|()| out.flush());
        } else {
            self.line(&text);
        }
    }
}

/// Milliseconds for people: `4.2 ms`, `1,234 ms`.
pub(crate) fn milliseconds(duration: Duration) -> String {
    let whole = duration.as_millis();
    match whole {
        0..10 => format!("{:.1} ms", duration.as_secs_f64() * 1000.0),
        10..1000 => format!("{whole} ms"),
        _ => format!("{},{:03} ms", whole / 1000, whole % 1000),
    }
}

/// Breaks the text between words into lines of at most `width` columns.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split(' ') {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}

/// Cuts a JSON document that does not fit. All else is whole, since each word counts.
fn shortened(line: &str, room: usize) -> String {
    if !line.starts_with('{') || line.chars().count() <= room {
        return line.to_owned();
    }
    line.chars().take(room - 2).chain(" …".chars()).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{milliseconds, shortened, wrap};

    #[test]
    fn short_times_have_a_decimal_and_long_ones_a_comma() {
        let spelled = [6_240, 34_900, 2_045_000].map(|micros| milliseconds(Duration::from_micros(micros)));
        assert_eq!(spelled, ["6.2 ms", "34 ms", "2,045 ms"]);
    }

    #[test]
    fn lines_break_between_words_and_lose_none() {
        assert_eq!(wrap("one two three four", 9), ["one two", "three", "four"]);
        assert_eq!(wrap("", 9), [""]);
    }

    #[test]
    fn documents_are_cut_and_nothing_else_is() {
        assert_eq!(shortened("{\"a\":\"äöü\"}", 11), "{\"a\":\"äöü\"}");
        assert_eq!(shortened("{\"a\":\"äöü\"}", 10), "{\"a\":\"äö …");
        assert_eq!(shortened("a diff of one line", 10), "a diff of one line");
    }
}
