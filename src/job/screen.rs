//! A terminal on which a text is drawn again and again.

use std::io::{IsTerminal, Stdout, Write, stdout};

use rustix::termios::tcgetwinsize;

#[derive(Debug)]
pub struct Screen(Stdout);

impl Screen {
    /// The one that standard output is, if it is one.
    pub fn of_output() -> Option<Self> {
        let output = stdout();
        output.is_terminal().then_some(Self(output))
    }

    /// Draws a text over what was drawn before, as far as it has room.
    pub fn draw(&self, text: &str) -> std::io::Result<()> {
        // Of some terminals the size is not known, or zero.
        let size = tcgetwinsize(&self.0).ok().filter(|size| size.ws_row > 1 && size.ws_col > 0);
        let (rows, columns) = size.map_or((24, 80), |size| (size.ws_row, size.ws_col));
        let mut out = self.0.lock();
        out.write_all(b"\x1b[H")?;
        for line in cut(text, rows.into(), columns.into()) {
            write!(out, "{line}\x1b[K\r\n")?;
        }
        out.write_all(b"\x1b[J")?;
        out.flush()
    }
}

/// The beginnings of so many lines less one, which the cursor has; the last one counts what is left out.
fn cut(text: &str, rows: usize, columns: usize) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let room = rows.saturating_sub(1);
    let beginning = |line: &&str| line.chars().take(columns).collect::<String>();
    if lines.len() <= room {
        return lines.iter().map(beginning).collect();
    }
    let shown = room.saturating_sub(1);
    let more = format!("… and {} more lines", lines.len() - shown);
    lines.iter().take(shown).map(beginning).chain([beginning(&more.as_str())]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_room_is_counted() {
        assert_eq!(cut("ä1\nb2\n", 3, 9), ["ä1", "b2"]);
        assert_eq!(cut("ä1\nb2\nc3\n", 3, 9), ["ä1", "… and 2 mo".chars().take(9).collect::<String>().as_str()]);
        assert_eq!(cut("ä12\n", 3, 2), ["ä1"]);
        assert!(cut("a\nb\n", 1, 9).len() == 1 && cut("a\n", 0, 0).len() == 1);
    }
}
