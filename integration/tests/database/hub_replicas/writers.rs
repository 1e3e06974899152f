//! Clients that write until they are asked to end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use integration::hub::Request;
use integration::soak::Random;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::hub_replicas::chaos::Progress;
use crate::hub_replicas::history::History;
use crate::hub_replicas::world::{Outcome, Roaming, number, version};

/// What the writers were answered.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// The number of each write that was made, and its version.
    made: Vec<(u64, i64)>,
    /// Those that were not made.
    refused: Vec<u64>,
    /// Those of which nothing is known.
    unknown: Vec<u64>,
    /// The numbers of the documents that were deleted.
    deleted: Vec<u64>,
}

pub(crate) struct Writers {
    is_ending: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<Answers>>,
}

struct Writer {
    roaming: Roaming,
    random: Random,
    numbers: Arc<AtomicU64>,
    progress: Progress,
    answers: Answers,
}

impl Writers {
    /// Starts eight writers.
    pub(crate) fn start(addresses: &[SocketAddr], random: &mut Random, progress: &Progress) -> Self {
        let (is_ending, numbers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(1)));
        let tasks = (0..8).map(|_| {
            let mut writer = Writer {
                roaming: Roaming::new(addresses, random.split()),
                random: random.split(),
                numbers: Arc::clone(&numbers),
                progress: progress.clone(),
                answers: Answers::default(),
            };
            let is_ending = Arc::clone(&is_ending);
            tokio::spawn(async move {
                while !is_ending.load(Ordering::Relaxed) {
                    writer.write().await;
                }
                writer.answers
            })
        });
        let tasks = tasks.collect();
        Self { is_ending, tasks }
    }

    /// Ends them, and returns what they were answered.
    pub(crate) async fn end(self) -> Answers {
        self.is_ending.store(true, Ordering::Relaxed);
        let mut all = Answers::default();
        for task in self.tasks {
            let answers = task.await.expect("a writer");
            all.made.extend(answers.made);
            all.refused.extend(answers.refused);
            all.unknown.extend(answers.unknown);
            all.deleted.extend(answers.deleted);
        }
        all
    }
}

impl Writer {
    async fn write(&mut self) {
        let kind = ["clusters", "secrets"][self.random.index(2)];
        let namespace = format!("n{}", self.random.below(3));
        // These names show whether the order is bytewise.
        let name = format!("c{}{}", ["-", "", "."][self.random.index(3)], self.random.below(8));
        let path = format!("/v1/{kind}/{namespace}/{name}");
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let tier = match self.random.index(3) {
            0 => json!("gold"),
            1 => json!("silver"),
            _ => Value::Null,
        };
        let annotations = json!({"number": number.to_string()});
        let labels = if tier.is_null() { json!({}) } else { json!({"tier": tier}) };
        let request = match self.random.below(10) {
            0 => return self.delete(&path).await,
            1..=2 => {
                let Outcome::Answered(reply) = self.roaming.send(&Request::get(&path)).await else { return };
                let Ok(present) = reply.version() else { return };
                Request::put(&path, &json!({"labels": labels, "annotations": annotations})).if_match(present)
            }
            3..=4 => {
                let mut body =
                    json!({"namespace": namespace, "name": name, "labels": labels, "annotations": annotations});
                let (field, value) = if kind == "clusters" {
                    ("kubeconfig", json!("text"))
                } else {
                    ("data", json!({"key": "dmFsdWU="}))
                };
                body[field] = value;
                Request::post(&format!("/v1/{kind}"), &body)
            }
            _ => Request::merge_patch(&path, &json!({"labels": {"tier": tier}, "annotations": annotations})),
        };
        match self.roaming.send(&request).await {
            Outcome::Answered(reply) if reply.status < 300 => {
                let document = reply.json().expect("a document");
                let made = version(&document);
                assert_eq!(i64::try_from(reply.version().expect("an ETag")), Ok(made));
                self.answers.made.push((number, made));
                self.progress.reached(made);
            }
            Outcome::Answered(reply) => {
                assert!([404, 409, 412].contains(&reply.status), "{request:?}: {reply:?}");
                self.answers.refused.push(number);
            }
            Outcome::Refused => self.answers.refused.push(number),
            Outcome::Unknown => self.answers.unknown.push(number),
        }
    }

    async fn delete(&mut self, path: &str) {
        if let Outcome::Answered(reply) = self.roaming.send(&Request::delete(path)).await {
            match reply.status {
                200 => self.answers.deleted.extend(number(&reply.json().expect("a document"))),
                404 | 409 => {}
                _ => panic!("{path}: {reply:?}"),
            }
        }
    }
}

impl Answers {
    /// Compares what the writers were answered with what was written.
    pub(crate) fn check(&self, history: &History) {
        let found = history.by_number();
        for (number, version) in &self.made {
            assert_eq!(found.get(number), Some(version), "write {number} was answered as made");
        }
        for number in &self.refused {
            assert_eq!(found.get(number), None, "write {number} was answered as not made");
        }
        for number in &self.deleted {
            assert!(history.is_removed_after(found[number]), "the document of write {number} was answered as deleted");
        }
        let all = self.made.len() + self.refused.len() + self.unknown.len();
        let lost = self.unknown.iter().filter(|number| found.contains_key(number)).count();
        let versions = history.versions();
        println!(
            "{all} writes, of which {} were answered as made, {} deletions, {versions} versions; the answers of {} were lost, of \
             which {lost} were made",
            self.made.len(),
            self.deleted.len(),
            self.unknown.len(),
        );
        assert!(!self.made.is_empty() && !self.refused.is_empty() && !self.deleted.is_empty());
    }
}
