//! Conditional writes and reads of a few documents by many clients, while replicas are killed and frozen: the history is
//! linearizable.

use std::net::SocketAddr;
use std::time::Instant;

use integration::hub::Request;
use integration::soak::{Random, rounds, seed};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::hub_replicas::chaos::{Chaos, Progress};
use crate::hub_replicas::linearizability::{Op, Operation, Outcome, check};
use crate::hub_replicas::world::{self, Roaming, addresses, database, replicas, run};

const CLIENTS: usize = 8;
const DOCUMENTS: usize = 10;
/// Operations of each client with one seed, those without an answer not counted.
const OPERATIONS: usize = 40;
const SEEDS: u64 = 8;

struct Client {
    number: usize,
    roaming: Roaming,
    random: Random,
    begin: Instant,
    namespace: String,
    /// The versions that it knows.
    known: [u64; DOCUMENTS],
    writes: u64,
    history: Vec<Operation>,
}

impl Client {
    async fn run(mut self, progress: Progress) -> Vec<Operation> {
        for _ in 0..OPERATIONS {
            let document = self.random.index(DOCUMENTS);
            if self.random.below(5) < 2 {
                self.get(document).await;
            } else {
                self.put(document).await;
            }
            progress.add_one();
        }
        self.history
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_nanos()).expect("a few minutes")
    }

    fn path(&self, document: usize) -> String {
        format!("/v1/secrets/{}/d{document}", self.namespace)
    }

    fn note(&mut self, document: usize, op: Op, call: u64, expected: u64, value: String, outcome: Outcome) {
        let end = (outcome != Outcome::Unknown).then(|| self.now());
        let version = if outcome == Outcome::Ok { self.known[document] } else { 0 };
        let (client, document) = (self.number, format!("{}/d{document}", self.namespace));
        self.history.push(Operation { client, document, op, call, end, expected, value, outcome, version });
    }

    /// Reads a document, at any time.
    async fn get(&mut self, document: usize) {
        let call = self.now();
        let world::Outcome::Answered(reply) = self.roaming.send(&Request::get(&self.path(document))).await else {
            return;
        };
        let reply = reply.success().expect("the document is there");
        self.known[document] = reply.version().expect("a version");
        let value = value(&reply.json().expect("a document"));
        self.note(document, Op::Get, call, 0, value, Outcome::Ok);
    }

    /// Replaces the version that the client knows, be it the present one or not; 0 creates the document.
    async fn put(&mut self, document: usize) {
        self.writes += 1;
        let (expected, value) = (self.known[document], format!("{}-{}", self.number, self.writes));
        let mut body = json!({"data": {}, "annotations": {"value": value}});
        let request = if expected == 0 {
            (body["namespace"], body["name"]) = (json!(self.namespace), json!(format!("d{document}")));
            Request::post("/v1/secrets", &body)
        } else {
            Request::put(&self.path(document), &body).if_match(expected)
        };
        let call = self.now();
        let outcome = match self.roaming.send(&request).await {
            world::Outcome::Answered(reply) if reply.status < 300 => {
                self.known[document] = reply.version().expect("a version");
                Outcome::Ok
            }
            world::Outcome::Answered(reply) => {
                let expects = if expected == 0 { 409 } else { 412 };
                assert_eq!(reply.status, expects, "{request:?}: {reply:?}");
                Outcome::Conflict
            }
            // Nothing was written; if something was, some read has a value that nobody wrote.
            world::Outcome::Refused => return,
            world::Outcome::Unknown => Outcome::Unknown,
        };
        self.note(document, Op::Put, call, expected, value, outcome);
    }
}

fn value(document: &Value) -> String {
    document["annotations"]["value"].as_str().unwrap_or_else(|| panic!("{document}")).to_owned()
}

/// The history of one seed.
async fn history(
    addresses: &[SocketAddr],
    random: &mut Random,
    namespace: String,
    progress: &Progress,
) -> Vec<Operation> {
    let begin = Instant::now();
    let mut client = |number| Client {
        number,
        roaming: Roaming::new(addresses, random.split()),
        random: random.split(),
        begin,
        namespace: namespace.clone(),
        known: [0; DOCUMENTS],
        writes: 0,
        history: Vec::new(),
    };
    let mut first = client(CLIENTS);
    for document in 0..DOCUMENTS {
        // An answer that is lost leaves open whether the document is there.
        while first.known[document] == 0 {
            first.put(document).await;
            if first.known[document] == 0 {
                first.find(document).await;
            }
        }
    }
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let known = first.known;
        clients.spawn(Client { known, ..client(number) }.run(progress.clone()));
    }
    let mut history = first.history;
    history.extend(clients.join_all().await.into_iter().flatten());
    history
}

impl Client {
    /// Reads a document that may not be there.
    async fn find(&mut self, document: usize) {
        let reply = self.roaming.read(&self.path(document)).await;
        if reply.status == 200 {
            self.get(document).await;
        }
    }
}

#[test]
fn conditional_writes_and_reads_are_linearizable_while_replicas_are_killed_and_frozen() {
    run(async {
        let database = database("conditional").await;
        let (seed, progress) = (seed(), Progress::new());
        let replicas = replicas(&database, &[]).await;
        let addresses = addresses(&replicas);
        let mut chaos = Chaos::new(replicas, &database, Random::new(seed), &progress, 150).await;
        let mut counts = [0; 3];
        let work = async {
            for number in seed..seed + SEEDS * rounds(1) {
                let history = history(&addresses, &mut Random::new(number), format!("s{number}"), &progress).await;
                let (is_linearizable, said) = check(&history).await;
                assert!(is_linearizable, "SEED={number}: {said}");
                for operation in history.iter().filter(|operation| operation.op == Op::Put) {
                    counts[operation.outcome as usize] += 1;
                }
            }
        };
        chaos.during(work).await;
        let incidents = chaos.incidents();
        println!("{incidents:?}; writes that were made, in conflict, and without an answer: {counts:?}");
        assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
        assert!(incidents.killed > 0 && incidents.frozen > 0 && incidents.disconnected > 0, "{incidents:?}");
    });
}
