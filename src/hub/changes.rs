//! Carries out changes of documents: reads, decides, and writes what was decided, again if another write came in between.

use std::sync::Arc;

use tokio::sync::watch;

use crate::documents::{
    Action, Context, Document, Fresh, Keyring, Outcome, Problem, ProblemKind, Request, Store, Verdict, WriterHandle,
    decide, exists,
};

/// How often a change is decided before its client is told of the conflict.
const MOST_ROUNDS: usize = 5;

/// What changes go through.
#[derive(Clone)]
pub struct Changes {
    store: Store,
    writer: WriterHandle,
    /// None while `keys_file` has never been readable.
    keyring: watch::Receiver<Arc<Option<Keyring>>>,
}

/// A change that was made, or that there was no need to make.
#[derive(Clone, Debug)]
pub struct Done {
    /// What was done.
    pub verdict: Verdict,
    /// The document after it; of a deletion, its last state.
    pub document: Document,
}

impl Changes {
    /// Changes that are read by this store and written by this writer.
    pub fn new(store: Store, writer: WriterHandle, keyring: watch::Receiver<Arc<Option<Keyring>>>) -> Self {
        Self { store, writer, keyring }
    }

    /// Carries out a request. A POST sends one statement, a share of a call; another request reads before. A PUT, and what has a
    /// condition, is decided from a newer version again only to say what is wrong with it.
    pub async fn carry_out(&self, request: &Request) -> Result<Done, Problem> {
        let keyring = Arc::clone(&self.keyring.borrow());
        let Some(keyring) = &*keyring else {
            return Err(Problem::new(ProblemKind::Unavailable, "keys_file can't be used, so nothing can be sealed"));
        };
        // A new document is expected to be absent; the write finds out whether it is.
        let mut is_known_absent = matches!(request.action, Action::Create(_)) && !request.dry_run;
        for _ in 0..MOST_ROUNDS {
            let present = if is_known_absent { None } else { self.store.stored(&request.key).await? };
            is_known_absent = false;
            let decision = decide(present.as_ref(), request, &Context { keyring, fresh: Fresh::draw() })?;
            let item = decision.item.clone().filter(|_| !request.dry_run);
            let Some(item) = item else {
                return Ok(Done { verdict: decision.verdict, document: decision.document });
            };
            match self.writer.write(item).await? {
                Outcome::Written { version, at } => {
                    return Ok(Done { verdict: decision.verdict, document: decision.written(version, &at) });
                }
                Outcome::Conflict { .. } if matches!(request.action, Action::Create(_)) => {
                    return Err(exists(&request.key));
                }
                Outcome::Conflict { .. } => {}
                // Requests of clients have no claim.
                Outcome::Fenced => break,
            }
        }
        let title = format!("{} was changed by others {MOST_ROUNDS} times meanwhile", request.key);
        Err(Problem::new(ProblemKind::Conflict, title))
    }
}
