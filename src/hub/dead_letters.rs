//! `towline hub dead-letters`: messages of the work queues that no worker could serve.
//!
//! The database knows which clusters have work, so a dead letter has lost nothing. One that names a cluster is requeued as a request for
//! that cluster, which is as good as its message; one that names none can only be discarded.

use std::sync::Arc;

use super::bus::Bus;
use super::config::HubConfig;
use crate::cluster::{Clock, full_text};
use crate::documents::{self, Broker, Claims, DeadLetter, DeadLetters, Holder, WorkQueue};
use crate::job::check::say;
use crate::job::command::{Exit, complain};

/// Most letters that are read at once. They are kept in memory, and by nobody else meanwhile.
const MOST: usize = 1_000;

/// What is done with dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Subcommand)]
pub(super) enum DeadLettersTask {
    /// Have the clusters worked on that they name, and remove them; those that name no cluster stay
    Requeue,
    /// Remove those that name no cluster
    Discard,
}

pub(super) async fn dead_letters(config: HubConfig, task: Option<DeadLettersTask>) -> Exit {
    let Some(source) = config.amqp.clone().filter(|_| config.bus == Bus::Amqp) else {
        complain("the hub has no message broker: set AMQP_URL, or `bus` and `amqp_url`");
        return Exit::Usage;
    };
    let broker = Broker::new(source, Arc::new(()));
    match run(&config, &broker, task).await {
        Ok(exit) => exit,
        Err(text) => {
            complain(&text);
            Exit::Failed
        }
    }
}

async fn run(config: &HubConfig, broker: &Broker, task: Option<DeadLettersTask>) -> Result<Exit, String> {
    let read = DeadLetters::read(broker, MOST).await.map_err(|error| full_text(&error))?;
    if read.letters().is_empty() {
        say("there are no dead letters");
        return Ok(Exit::Done);
    }
    let (count, is_all, mut exit) = (read.letters().len(), read.is_all(), Exit::Done);
    match task {
        None => read.letters().iter().for_each(|letter| say(&line(letter))),
        Some(DeadLettersTask::Discard) => {
            let removed = read.remove(|letter| letter.cluster().is_none()).await.map_err(|error| full_text(&error))?;
            say(&format!("{removed} dead letters discarded"));
        }
        Some(DeadLettersTask::Requeue) => {
            let clusters: Vec<_> = read.letters().iter().filter_map(DeadLetter::cluster).collect();
            let stay = read.letters().len() - clusters.len();
            if !clusters.is_empty() {
                let database = documents::open(config.database.clone());
                let claims = Claims::new(&database, Holder::of_this_process(), Clock::Boot);
                let asked = WorkQueue::new(&database, &claims).ask(&clusters, true).await;
                asked.map_err(|error| full_text(&error))?;
            }
            // If it ends here, they are requeued once more, which does no harm.
            let removed = read.remove(|letter| letter.cluster().is_some()).await.map_err(|error| full_text(&error))?;
            say(&format!("{removed} dead letters requeued"));
            if stay > 0 {
                say(&format!(
                    "{stay} dead letters name no cluster and stay: `towline hub dead-letters discard` removes them"
                ));
                exit = Exit::Failed;
            }
        }
    }
    if !is_all {
        say(&format!("these were the oldest {count}, there may be more"));
    }
    Ok(exit)
}

/// A letter on a line.
fn line(letter: &DeadLetter) -> String {
    let since = letter.since().map_or_else(|| "at an unknown time".to_owned(), |since| since.to_string());
    format!("{since}  {}  {}  {}", letter.reason(), letter.queue(), letter.text())
}
