//! Which items go into one call.

use std::collections::HashMap;

use futures::FutureExt;
use tokio::task::unconstrained;
use uuid::Uuid;

use super::{Waiting, WriteError};
use crate::actor::Inbox;
use crate::documents::item::Outcome;

/// Items of one call. Larger batches gain little: at 32 the commit is a small part of a call.
const MOST_ITEMS: usize = 64;
/// Bytes of one call, unless it has a single item. It bounds how long the others wait for it.
const MOST_BYTES: usize = 4 << 20;

/// Puts what waits together.
pub(super) struct Batches {
    inbox: Inbox<Waiting>,
    /// The item that did not fit into the last batch.
    next: Option<Waiting>,
}

/// The items of one call, in order.
pub(super) struct Batch(Vec<Waiting>);

impl Batches {
    pub(super) fn new(inbox: Inbox<Waiting>) -> Self {
        Self { inbox, next: None }
    }

    /// Waits for an item, and takes with it what waits already. `None` when nobody can send any more.
    ///
    /// Cancel safe: a future that is dropped before it completes takes nothing.
    pub(super) async fn next(&mut self) -> Option<Batch> {
        loop {
            let first = match self.next.take() {
                Some(first) => first,
                None => self.inbox.next().await?,
            };
            // From here on nothing is awaited.
            let mut bytes = first.text.len();
            let mut items = vec![first];
            while items.len() < MOST_ITEMS
                // Without a budget: the runtime's would end a batch early.
                && let Some(waiting) = unconstrained(self.inbox.next()).now_or_never().flatten()
            {
                bytes += waiting.text.len();
                if bytes > MOST_BYTES {
                    self.next = Some(waiting);
                    break;
                }
                items.push(waiting);
            }
            items.retain(Waiting::is_to_be_sent);
            if !items.is_empty() {
                // The budget of what is sent is free for others.
                for waiting in &mut items {
                    waiting.budget = None;
                }
                return Some(Batch(items));
            }
        }
    }
}

impl Waiting {
    /// Whether it is sent. If it is not, its caller has gone away or has taken it back.
    fn is_to_be_sent(&self) -> bool {
        !self.reply.is_closed() && self.fate.decide()
    }
}

impl Batch {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The array that the procedure takes.
    pub(super) fn text(&self) -> String {
        let bytes: usize = self.0.iter().map(|waiting| waiting.text.len() + 1).sum();
        let mut text = String::with_capacity(bytes + 1);
        text.push('[');
        for (index, waiting) in self.0.iter().enumerate() {
            if index > 0 {
                text.push(',');
            }
            text.push_str(&waiting.text);
        }
        text.push(']');
        text
    }

    /// The ids under which the log shows them.
    pub(super) fn requests(&self) -> Vec<String> {
        self.0.iter().map(|waiting| waiting.request.to_string()).collect()
    }

    /// One batch for each item, in order.
    pub(super) fn singly(self) -> impl DoubleEndedIterator<Item = Self> {
        self.0.into_iter().map(|waiting| Self(vec![waiting]))
    }

    /// Answers each item. A caller that has gone away is no error.
    pub(super) fn answer(self, outcomes: Vec<Outcome>) {
        for (waiting, outcome) in self.0.into_iter().zip(outcomes) {
            drop(waiting.reply.send(Ok(outcome)));
        }
    }

    /// Answers those items whose outcome is known, and returns the others.
    pub(super) fn answer_some(self, outcomes: &HashMap<Uuid, Outcome>) -> Option<Self> {
        let mut others = Vec::new();
        for waiting in self.0 {
            match outcomes.get(&waiting.request) {
                Some(outcome) => drop(waiting.reply.send(Ok(outcome.clone()))),
                None => others.push(waiting),
            }
        }
        (!others.is_empty()).then_some(Self(others))
    }

    /// Answers all items with this error.
    pub(super) fn fail(self, error: &WriteError) {
        for waiting in self.0 {
            drop(waiting.reply.send(Err(error.clone())));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::{Semaphore, oneshot};

    use super::super::Fate;
    use super::*;
    use crate::actor::{Mailbox, mailbox};

    type Answer = oneshot::Receiver<Result<Outcome, WriteError>>;

    fn budget() -> Arc<Semaphore> {
        Arc::new(Semaphore::new(super::super::MOST_WAITING_BYTES))
    }

    async fn send(mailbox: &Mailbox<Waiting>, budget: &Arc<Semaphore>, text: String) -> Answer {
        let (reply, answer) = oneshot::channel();
        let bytes = u32::try_from(text.len()).unwrap();
        let budget = Some(Arc::clone(budget).try_acquire_many_owned(bytes).unwrap());
        mailbox.send(Waiting { request: Uuid::new_v4(), text, budget, fate: Fate::default(), reply }).await.unwrap();
        answer
    }

    fn texts(batch: &Batch) -> Vec<usize> {
        batch.0.iter().map(|waiting| waiting.text.len()).collect()
    }

    #[tokio::test]
    async fn a_batch_takes_what_waits_in_order_up_to_64_items() {
        let ((mailbox, inbox), budget) = (mailbox(1_000), budget());
        let mut answers = Vec::new();
        for number in 0..150 {
            answers.push(send(&mailbox, &budget, number.to_string()).await);
        }
        let mut batches = Batches::new(inbox);
        let mut found = Vec::new();
        for expected in [64, 64, 22] {
            let batch = batches.next().await.unwrap();
            assert_eq!(batch.len(), expected);
            let array: Vec<u32> = serde_json::from_str(&batch.text()).unwrap();
            found.extend(array);
        }
        assert_eq!(found, (0..150).collect::<Vec<_>>());
        assert!(batches.next().now_or_never().is_none(), "an item was made up");
        assert_eq!(budget.available_permits(), super::super::MOST_WAITING_BYTES, "what was sent still waits");
    }

    #[tokio::test]
    async fn a_batch_ends_at_4_mib_and_a_larger_item_goes_alone() {
        let ((mailbox, inbox), budget) = (mailbox(1_000), budget());
        let sizes = [10, MOST_BYTES - 10, 1, MOST_BYTES + 1, MOST_BYTES, 7];
        let mut answers = Vec::new();
        for size in sizes {
            answers.push(send(&mailbox, &budget, "x".repeat(size)).await);
        }
        let mut batches = Batches::new(inbox);
        let mut found = Vec::new();
        for _ in 0..5 {
            found.push(texts(&batches.next().await.unwrap()));
        }
        let expected = [vec![10, MOST_BYTES - 10], vec![1], vec![MOST_BYTES + 1], vec![MOST_BYTES], vec![7]];
        assert_eq!(found, expected);
    }

    #[tokio::test]
    async fn a_caller_that_goes_away_takes_its_item_along_and_no_other() {
        let ((mailbox, inbox), budget) = (mailbox(1_000), budget());
        let mut answers = Vec::new();
        for size in 1..=4 {
            answers.push(send(&mailbox, &budget, "x".repeat(size)).await);
        }
        drop(answers.remove(2));
        drop(answers.remove(0));
        let mut batches = Batches::new(inbox);
        assert_eq!(texts(&batches.next().await.unwrap()), [2, 4]);
        assert_eq!(budget.available_permits(), super::super::MOST_WAITING_BYTES);
        drop(send(&mailbox, &budget, "gone".to_owned()).await);
        assert!(batches.next().now_or_never().is_none(), "nobody waits for it");
    }

    #[tokio::test]
    async fn what_is_found_is_answered_and_the_others_are_left_in_order() {
        let ((mailbox, inbox), budget) = (mailbox(1_000), budget());
        let mut answers = Vec::new();
        for size in 1..=3 {
            answers.push(send(&mailbox, &budget, "x".repeat(size)).await);
        }
        let batch = Batches::new(inbox).next().await.unwrap();
        let found = HashMap::from([(batch.0[1].request, Outcome::Fenced)]);
        assert_eq!(texts(&batch.answer_some(&found).expect("two are left")), [1, 3]);
        assert_eq!(answers[1].try_recv().unwrap().unwrap(), Outcome::Fenced);
    }
}
