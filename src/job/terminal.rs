//! The terminal of a command: whether to do what can't be taken back, what takes long, and a text that is drawn again and again.

use std::error::Error;
use std::io::{IsTerminal, Stdout, Write, stderr, stdin, stdout};
use std::time::Duration;

use rustix::termios::tcgetwinsize;
use tokio::time::{Instant, sleep};

use super::command::{Exit, complain, remark};
use crate::cluster::full_text;

/// Work that ends sooner prints nothing about how long it takes.
const FIRST_LINE: Duration = Duration::from_secs(2);
/// Between two such lines.
const FURTHER_LINES: Duration = Duration::from_secs(10);

/// Between two answers of what is asked again and again.
const EVERY: Duration = Duration::from_secs(2);
/// The longest such pause, after several attempts that failed.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// The option of an order that is otherwise asked about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Yes {
    /// Do it without asking; needed where there is no terminal
    #[arg(long)]
    pub yes: bool,
}

/// Shows what would be done, and asks on the terminal whether to do it. If it is not to be done, the exit code says why.
pub async fn consent(plan: &str) -> Result<(), Exit> {
    remark(plan.trim_end());
    if !stdin().is_terminal() || !stderr().is_terminal() {
        complain("nothing was done: there is no terminal to ask on; --yes does it without asking");
        return Err(Exit::Usage);
    }
    // Somebody may interrupt it instead of an answer, so it is read elsewhere.
    let answer = tokio::task::spawn_blocking(|| {
        let mut answer = String::new();
        write!(stderr(), "Do it? [y/N] ")?;
        stdin().read_line(&mut answer).map(|_| answer)
    });
    match answer.await {
        Ok(Ok(answer)) if matches!(answer.trim().to_lowercase().as_str(), "y" | "yes") => Ok(()),
        _ => {
            complain("nothing was done");
            Err(Exit::Failed)
        }
    }
}

/// Does some work, and says from the third second on what is being done: `applying base.yaml, for 12s`.
pub async fn telling<T>(what: &str, work: impl Future<Output = T>) -> T {
    telling_to(complain, what, work).await
}

async fn telling_to<T>(tell: impl Fn(&str), what: &str, work: impl Future<Output = T>) -> T {
    let begun = Instant::now();
    let mut pause = FIRST_LINE;
    tokio::pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = sleep(pause) => tell(&format!("{what}, for {}s", begun.elapsed().as_secs())),
        }
        pause = FURTHER_LINES;
    }
}

/// Of a command that asks again and again. While it fails, its pauses double, and it complains once of each failure. One that fails
/// before anything was read has most probably a wrong address, and ends.
pub struct Polling {
    pause: Duration,
    complained: String,
    has_succeeded: bool,
}

impl Polling {
    pub fn new() -> Self {
        Self { pause: EVERY, complained: String::new(), has_succeeded: false }
    }

    pub fn succeeded(&mut self) {
        *self = Self { has_succeeded: true, ..Self::new() };
    }

    /// Complains of an error, or returns it if nothing has succeeded so far.
    pub fn failed<E: Error + 'static>(&mut self, error: E) -> Result<(), E> {
        self.failed_to(complain, error)
    }

    fn failed_to<E: Error + 'static>(&mut self, tell: impl Fn(&str), error: E) -> Result<(), E> {
        if !self.has_succeeded {
            return Err(error);
        }
        let text = full_text(&error);
        if text != self.complained {
            tell(&format!("{text}, trying again"));
            self.complained = text;
        }
        Ok(())
    }

    /// Waits until it is asked again.
    pub async fn pause(&mut self) {
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
    }
}

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
    use std::cell::RefCell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_takes_longer_than_two_seconds_is_told() {
        let told = RefCell::new(Vec::new());
        let tell = |line: &str| told.borrow_mut().push(line.to_owned());
        telling_to(tell, "a", sleep(Duration::from_millis(1_900))).await;
        assert!(told.borrow().is_empty());
        telling_to(tell, "b", sleep(Duration::from_secs(13))).await;
        assert_eq!(*told.borrow(), ["b, for 2s", "b, for 12s"]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_fails_is_told_once_and_asked_later_and_later_until_it_succeeds() {
        let told = RefCell::new(Vec::new());
        let tell = |line: &str| told.borrow_mut().push(line.to_owned());
        let mut polling = Polling::new();
        assert!(polling.failed_to(tell, std::io::Error::other("away")).is_err(), "nothing was read before");
        for _ in 0..2 {
            polling.succeeded();
            for pause in [2, 4, 8, 15, 15] {
                assert!(polling.failed_to(tell, std::io::Error::other("away")).is_ok());
                let begun = Instant::now();
                polling.pause().await;
                assert_eq!(begun.elapsed().as_secs(), pause);
            }
        }
        assert_eq!(*told.borrow(), ["away, trying again"; 2]);
    }

    #[test]
    fn what_has_no_room_is_counted() {
        assert_eq!(cut("ä1\nb2\n", 3, 9), ["ä1", "b2"]);
        assert_eq!(cut("ä1\nb2\nc3\n", 3, 9), ["ä1", "… and 2 mo".chars().take(9).collect::<String>().as_str()]);
        assert_eq!(cut("ä12\n", 3, 2), ["ä1"]);
        assert!(cut("a\nb\n", 1, 9).len() == 1 && cut("a\n", 0, 0).len() == 1);
    }
}
