//! As clients see it: the database's answer to a change is lost. Whether the log has the change, has it not, or can't be asked, it is made
//! once at most, also by a client that sends it again on the same condition.

use std::sync::Arc;

use integration::hub::{Client, Reply, Request};
use integration::postgres::{self, ADMIN};
use integration::{Link, eventually};
use serde_json::{Value, json};

use crate::hub::world::{CLOSE, GATE, Hub, LIMIT, OPEN, WAITING, database, done, problem_of, run};

const ALL: &str = "/v1/clusters";
/// Lets one statement after the other write, in the order in which they ask.
const LOCK: &str = "select pg_advisory_lock('towline_log'::regclass::bigint)";
const UNLOCK: &str = "select pg_advisory_unlock('towline_log'::regclass::bigint)";
/// How many sessions wait for the lock.
const AWAITED: &str = "select count(*) from pg_locks l join pg_database d on d.oid = l.database \
     where d.datname = current_database() and l.locktype = 'advisory' and not granted";
/// Each way to change a document.
#[derive(Clone, Copy, Debug)]
enum Way {
    Create,
    PutOfVersion,
    PutIfMatch,
    MergePatch,
    JsonPatch,
    JsonPatchWithTest,
    PutOfStatus,
    PatchOfStatus,
    Delete,
    DeleteWithFinalizer,
    LastFinalizer,
    Apply,
}

const WAYS: [Way; 12] = [
    Way::Create,
    Way::PutOfVersion,
    Way::PutIfMatch,
    Way::MergePatch,
    Way::JsonPatch,
    Way::JsonPatchWithTest,
    Way::PutOfStatus,
    Way::PatchOfStatus,
    Way::Delete,
    Way::DeleteWithFinalizer,
    Way::LastFinalizer,
    Way::Apply,
];

/// A change of a document of its own.
struct Change {
    way: Way,
    name: String,
    request: Request,
}

impl Change {
    /// Prepares the document that is changed.
    async fn prepare(way: Way, prefix: &str, client: &mut Client) -> Self {
        let name = format!("{prefix}-{}", format!("{way:?}").to_lowercase());
        let path = format!("{ALL}/foo/{name}");
        let document = |number: u32| {
            json!({"kind": "Cluster", "name": name, "namespace": "foo", "kubeconfig": "k",
                "labels": {"number": number.to_string()}})
        };
        let mut version = 0;
        if !matches!(way, Way::Create) {
            version = done(client, &Request::post(ALL, &document(0))).await.version().expect("a version");
        }
        let status = json!({"status": {"numbers": []}});
        if matches!(way, Way::PatchOfStatus) {
            let put = Request::put(&format!("{path}/status"), &status).if_match(version);
            version = done(client, &put).await.version().expect("a version");
        }
        if matches!(way, Way::DeleteWithFinalizer | Way::LastFinalizer) {
            let change = Request::merge_patch(&path, &json!({"finalizers": ["example.com/a"]}));
            version = done(client, &change).await.version().expect("a version");
        }
        if matches!(way, Way::LastFinalizer) {
            version = done(client, &Request::delete(&path)).await.version().expect("a version");
        }
        let with_version = |mut body: Value| {
            body["resourceVersion"] = json!(version.to_string());
            body
        };
        let add = json!({"op": "add", "path": "/labels/added", "value": "a"});
        let request = match way {
            Way::Create => Request::post(ALL, &document(1)),
            Way::PutOfVersion => Request::put(&path, &with_version(document(1))),
            Way::PutIfMatch => Request::put(&path, &document(1)).if_match(version),
            Way::MergePatch => Request::merge_patch(&path, &json!({"labels": {"number": "1"}})).if_match(version),
            Way::JsonPatch => Request::json_patch(&path, &json!([add])).if_match(version),
            Way::JsonPatchWithTest => {
                let test = json!({"op": "test", "path": "/labels/number", "value": "0"});
                let set = json!({"op": "replace", "path": "/labels/number", "value": "1"});
                Request::json_patch(&path, &json!([test, set]))
            }
            Way::PutOfStatus => {
                Request::put(&format!("{path}/status"), &with_version(json!({"status": {"numbers": [1]}})))
            }
            // Twice, it would add two.
            Way::PatchOfStatus => {
                let add = json!([{"op": "add", "path": "/status/numbers/-", "value": 1}]);
                Request::json_patch(&format!("{path}/status"), &add).if_match(version)
            }
            Way::Delete | Way::DeleteWithFinalizer => Request::delete(&path).if_match(version),
            Way::LastFinalizer => Request::merge_patch(&path, &json!({"finalizers": []})),
            Way::Apply => Request::post("/v1/apply", &json!([document(1)])),
        };
        Self { way, name, request }
    }

    /// The status of its answer.
    fn made(&self) -> &'static str {
        match self.way {
            Way::Create => "201",
            Way::DeleteWithFinalizer => "202",
            Way::Apply => "configured",
            _ => "200",
        }
    }

    /// What it is answered with when it has been made before.
    fn repeated(&self) -> &'static str {
        match self.way {
            Way::Create => "409 exists",
            Way::PutOfVersion | Way::PutOfStatus => "409 conflict",
            Way::PutIfMatch | Way::MergePatch | Way::JsonPatch | Way::PatchOfStatus | Way::DeleteWithFinalizer => {
                "412 precondition"
            }
            Way::JsonPatchWithTest => "409 test-failed",
            Way::Delete | Way::LastFinalizer => "404 not-found",
            Way::Apply => "unchanged",
        }
    }

    /// Sends it, and returns the answer in a few words, with the version that it has.
    async fn send(&self, hub: &Hub) -> (String, Option<i64>) {
        let reply = hub.client().send(&self.request).await.expect("an answer");
        let body = reply.json().expect("JSON");
        if matches!(self.way, Way::Apply) {
            assert_eq!(reply.status, 200, "{body}");
            let item = &body["items"][0];
            return match item["problem"].as_object() {
                Some(problem) => (in_words(&problem["status"], &problem["type"]), None),
                None => (item["result"].as_str().expect("a word").to_owned(), version(item)),
            };
        }
        if reply.status < 300 {
            return (reply.status.to_string(), version(&body));
        }
        assert_eq!(reply.status == 503, has_retry_after(&reply), "{reply:?}");
        (format!("{} {}", reply.status, problem_of(&reply)), None)
    }
}

fn has_retry_after(reply: &Reply) -> bool {
    reply.header(http::header::RETRY_AFTER).is_some()
}

fn in_words(status: &Value, kind: &Value) -> String {
    let kind = kind.as_str().and_then(|kind| kind.strip_prefix("urn:towline:problem:"));
    format!("{status} {}", kind.expect("a type"))
}

fn version(object: &Value) -> Option<i64> {
    object["resourceVersion"].as_str().and_then(|version| version.parse().ok())
}

/// A hub whose way to its database can be cut, and the changes that are lost.
struct Stage {
    hub: Hub,
    place: postgres::Database,
    link: Link,
    sql: tokio_postgres::Client,
    changes: Vec<Change>,
    /// The newest version before they are sent.
    newest: i64,
}

impl Stage {
    async fn new(name: &str) -> Self {
        let place = database(name).await;
        let link = Link::to(place.address()).await.expect("a link");
        let hub = Hub::start_by(&place.url_by(ADMIN, &link.address().to_string()), &[]).await;
        let (sql, mut client) = (place.client(ADMIN).await.expect("a connection"), hub.client());
        let mut changes = Vec::new();
        for way in WAYS {
            changes.push(Change::prepare(way, name, &mut client).await);
        }
        let row = sql.query_one("select max(version) from towline_log", &[]).await.expect("a row");
        Self { hub, place, link, sql, changes, newest: row.get(0) }
    }

    async fn run(&self, sql: &str) {
        self.sql.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }

    /// How often each change has been made, and the version of the last time.
    async fn made(&self, change: &Change) -> (i64, Option<i64>) {
        let text =
            "select count(*), max(version) from towline_log where kind = 'clusters' and name = $1 and version > $2";
        let row = self.sql.query_one(text, &[&change.name, &self.newest]).await.expect("a row");
        (row.get(0), row.get(1))
    }

    /// Waits until a query gives a number.
    async fn becomes(&self, what: &str, sql: &str, expected: i64) {
        eventually(what, LIMIT, async || {
            match self.sql.query_one(sql, &[]).await.map_err(|error| error.to_string())?.get::<_, i64>(0) {
                found if found == expected => Ok(()),
                found => Err(found.to_string()),
            }
        })
        .await
        .expect(what);
    }

    /// Waits until so many sessions wait for the lock of the log.
    async fn lock_is_awaited_by(&self, sessions: i64) {
        self.becomes("sessions to wait for the lock of the log", AWAITED, sessions).await;
    }

    /// Waits until so many changes wait for the writer.
    async fn writer_has(&self, changes: usize) {
        eventually(format!("{changes} changes to wait"), LIMIT, async || {
            let status = self.hub.towline.admin().status().await.map_err(|error| error.to_string())?;
            match depth(&status["tree"], "writer") {
                Some(depth) if depth == json!(changes) => Ok(()),
                depth => Err(format!("{depth:?}")),
            }
        })
        .await
        .expect("changes");
    }

    /// Sends each change again, and compares the answers and the log.
    async fn repeat(&self) {
        for change in &self.changes {
            assert_eq!(change.send(&self.hub).await.0, change.repeated(), "{:?}", change.way);
            // A document is there after a creation, whoever asks again.
            assert_eq!(self.made(change).await.0, 1, "{:?}", change.way);
        }
    }
}

/// How many messages wait in the mailbox of an actor of the tree.
fn depth(tree: &Value, actor: &str) -> Option<Value> {
    if tree["name"] == actor {
        return Some(tree["mailbox"]["depth"].clone());
    }
    tree["children"].as_array()?.iter().find_map(|child| depth(child, actor))
}

#[test]
fn a_change_whose_answer_is_lost_is_answered_from_the_log_and_made_once() {
    run(async {
        let stage = Stage::new("lostfound").await;
        for change in &stage.changes {
            stage.run(LOCK).await;
            let lose = async {
                stage.lock_is_awaited_by(1).await;
                stage.link.mute();
                stage.run(UNLOCK).await;
                eventually("the change to be made", LIMIT, async || match stage.made(change).await {
                    (1, _) => Ok(()),
                    other => Err(format!("{other:?}")),
                })
                .await
                .expect("a change");
                stage.link.hang_up();
            };
            let ((answer, version), ()) = tokio::join!(change.send(&stage.hub), lose);
            let made = stage.made(change).await;
            assert_eq!((answer.as_str(), version), (change.made(), made.1), "{:?}", change.way);
            assert_eq!(made.0, 1, "{:?}", change.way);
        }
        stage.repeat().await;
    });
}

#[test]
fn a_change_that_was_lost_before_it_was_made_is_unknown_and_made_when_it_is_sent_again() {
    run(async {
        let stage = Stage::new("lostunmade").await;
        for change in &stage.changes {
            stage.run(LOCK).await;
            let lose = async {
                stage.lock_is_awaited_by(1).await;
                let end = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
                     where datname = current_database() and application_name like '%writer'";
                assert_eq!(stage.sql.query_one(end, &[]).await.expect("a row").get::<_, i64>(0), 1);
                // The writer looks into the log when nobody writes any more.
                stage.run(UNLOCK).await;
            };
            let ((answer, _), ()) = tokio::join!(change.send(&stage.hub), lose);
            assert_eq!((answer.as_str(), stage.made(change).await.0), ("503 outcome-unknown", 0), "{:?}", change.way);
            let (answer, version) = change.send(&stage.hub).await;
            let made = stage.made(change).await;
            assert_eq!((answer.as_str(), version, made.0), (change.made(), made.1, 1), "{:?}", change.way);
        }
        stage.repeat().await;
    });
}

#[test]
fn a_change_that_was_made_is_unknown_where_the_log_can_not_be_asked_and_not_made_again() {
    run(async {
        let stage = Arc::new(Stage::new("lostunknown").await);
        let other = stage.place.client(ADMIN).await.expect("a connection");
        // A call waits within itself: for the lock of the log it would wait 5 s, which is too short for all that is sent meanwhile.
        stage.run(GATE).await;
        stage.run(CLOSE).await;
        let send = |index: usize| {
            let stage = Arc::clone(&stage);
            tokio::spawn(async move { stage.changes[index].send(&stage.hub).await })
        };
        let first = {
            let mut client = stage.hub.client();
            let first = json!({"name": "first", "namespace": "foo", "kubeconfig": "k"});
            tokio::spawn(async move { client.send(&Request::post(ALL, &first)).await })
        };
        stage.becomes("the first call to wait", WAITING, 1).await;
        let mut answers = Vec::new();
        // All of them wait for the writer, so that they are made together.
        for index in 0..stage.changes.len() {
            answers.push(send(index));
            stage.writer_has(index + 1).await;
        }
        let behind_the_first = async { other.batch_execute(LOCK).await.expect("the lock") };
        let release = async {
            stage.lock_is_awaited_by(1).await;
            stage.run(OPEN).await;
        };
        tokio::join!(behind_the_first, release);
        assert_eq!(first.await.expect("no panic").expect("an answer").status, 201);
        stage.lock_is_awaited_by(1).await;
        stage.link.mute();
        // Behind the changes somebody has the lock for as long as the writer looks for them.
        let behind_the_changes = stage.run(LOCK);
        let release = async {
            eventually("both to wait for the lock", LIMIT, async || {
                match other.query_one(AWAITED, &[]).await.map_err(|error| error.to_string())?.get::<_, i64>(0) {
                    2 => Ok(()),
                    waiting => Err(waiting.to_string()),
                }
            })
            .await
            .expect("they wait");
            other.batch_execute(UNLOCK).await.expect("it is done");
        };
        tokio::join!(behind_the_changes, release);
        stage.link.hang_up();
        for (change, answer) in stage.changes.iter().zip(answers) {
            let (answer, _) = answer.await.expect("no panic");
            assert_eq!((answer.as_str(), stage.made(change).await.0), ("503 outcome-unknown", 1), "{:?}", change.way);
        }
        stage.run(UNLOCK).await;
        stage.repeat().await;
    });
}
