//! Asks before an order that can't be taken back is carried out.

use std::io::{IsTerminal, Write, stderr, stdin};

use super::command::{Exit, complain, remark};

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
