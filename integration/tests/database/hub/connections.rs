//! A replica has a connection each for writes, the tail and the claims, beside its pool. What becomes of one says nothing of the others, and
//! one on which the server says nothing any more is given up and made anew, without a loss.

use integration::eventually;
use integration::hub::{Request, Watch};
use integration::postgres::{ADMIN, Frozen};
use serde_json::{Value, json};

use crate::hub::world::{Hub, LIMIT, database, done, problem_of, readiness, run};
use crate::servers::of_hubs;

const ALL: &str = "/v1/clusters";

/// A hub with one connection in its pool, and what the server says of its connections.
struct Stage {
    hub: Hub,
    sql: tokio_postgres::Client,
}

impl Stage {
    async fn new(name: &str) -> Self {
        let place = database(name).await;
        let url = format!("{}?pool_max_conns=1&application_name=hub", place.url(ADMIN));
        let hub = Hub::start_by(&url, &[]).await;
        Self { hub, sql: place.client(ADMIN).await.expect("a connection") }
    }

    /// The processes that serve connections of this name, and whether they do nothing now. One that is being set up has no state yet.
    async fn sessions(&self, name: &str) -> Vec<(i32, bool)> {
        let text = "select pid, coalesce(state = 'idle', false) from pg_stat_activity \
             where datname = current_database() and application_name = $1 order by pid";
        let rows = self.sql.query(text, &[&name]).await.expect("rows");
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    /// Stops the one process that serves the connection of this name while it has nothing to do, and so no locks.
    async fn freeze(&self, name: &str) -> (i32, Frozen) {
        eventually(format!("the connection {name:?} to be idle"), LIMIT, async || {
            let sessions = self.sessions(name).await;
            let [(process, _)] = sessions[..] else { return Err(format!("{sessions:?}")) };
            let frozen = of_hubs().await.freeze_sessions(&[process]).map_err(|error| error.to_string())?;
            let sessions = self.sessions(name).await;
            if sessions == [(process, true)] { Ok((process, frozen)) } else { Err(format!("{sessions:?}")) }
        })
        .await
        .expect("a frozen connection")
    }

    /// Waits until there is another connection of this name.
    async fn connects_again(&self, name: &str, before: i32) -> i32 {
        eventually(format!("a new connection {name:?}"), LIMIT, async || {
            let sessions = self.sessions(name).await;
            let other = sessions.iter().find(|(process, _)| *process != before);
            other.map(|(process, _)| *process).ok_or_else(|| format!("{sessions:?}"))
        })
        .await
        .expect("a new connection")
    }

    async fn create(&self, name: &str) {
        let document = json!({"name": name, "namespace": "foo", "kubeconfig": "k"});
        let reply = self.hub.client().send(&Request::post(ALL, &document)).await.expect("an answer");
        assert_eq!(reply.status, 201, "{name}: {reply:?}");
    }

    /// A watch from now on.
    async fn watch(&self) -> Watch {
        let client = self.hub.client();
        let mut watch = client.watch(&format!("{ALL}?watch=true")).await.expect("a watch");
        while bookmark(&mut watch).await.is_none() {}
        watch
    }

    /// The claim of compaction: its holder and token, and when it ends, in milliseconds.
    async fn claim(&self) -> (String, i64, i64) {
        let text = "select coalesce(holder, ''), token, (extract(epoch from until) * 1000)::bigint \
             from towline_claim where name = 'compaction' and until is not null";
        let rows = self.sql.query(text, &[]).await.expect("a claim");
        rows.first().map_or_else(Default::default, |row| (row.get(0), row.get(1), row.get(2)))
    }

    /// Waits until this process has the claim.
    async fn leads(&self) -> (String, i64, i64) {
        eventually("the replica to lead", LIMIT, async || {
            let (holder, token, until) = self.claim().await;
            let claims = &self.report().await["claims"];
            let is_held = claims[0]["holder"] == *holder && claims[0]["token"] == token;
            if is_held { Ok((holder, token, until)) } else { Err(claims.to_string()) }
        })
        .await
        .expect("a claim")
    }

    /// Waits for the renewal after this one, of the same claim.
    async fn renews(&self, (holder, token, until): &(String, i64, i64)) -> (String, i64, i64) {
        eventually("the claim to be renewed", LIMIT, async || {
            let claim = self.claim().await;
            if claim.2 > *until { Ok(claim) } else { Err(format!("{claim:?}")) }
        })
        .await
        .inspect(|claim| assert_eq!((&claim.0, claim.1), (holder, *token), "it is the same claim"))
        .expect("a renewal")
    }

    async fn report(&self) -> Value {
        self.hub.towline.admin().section("hub").await.expect("a report")
    }
}

/// The next event, if it is no bookmark; the version if it is one.
async fn bookmark(watch: &mut Watch) -> Option<u64> {
    let event = watch.next().await.expect("an event").expect("the watch goes on");
    (event.kind == "BOOKMARK").then(|| event.object["resourceVersion"].as_str()?.parse().ok()).flatten()
}

/// The names in the next events that are no bookmarks.
async fn names(watch: &mut Watch, count: usize) -> Vec<String> {
    let mut names = Vec::new();
    while names.len() < count {
        let event = watch.next().await.expect("an event").expect("the watch goes on");
        if event.kind != "BOOKMARK" {
            assert_eq!(event.kind, "ADDED");
            names.push(event.object["name"].as_str().expect("a name").to_owned());
        }
    }
    names
}

/// Reads that get no answer delay neither a write, nor the tail, nor a renewal. And each read asks the database, though the ring has all.
#[test]
fn reads_without_an_answer_delay_neither_writes_nor_watches_nor_renewals() {
    run(async {
        let stage = Stage::new("reads").await;
        let claim = stage.leads().await;
        stage.create("a").await;
        let mut watch = stage.watch().await;
        let one = Request::get("/v1/clusters/foo/a");
        done(&mut stage.hub.client(), &one).await;
        let (_, frozen) = stage.freeze("hub").await;
        let mut client = stage.hub.client();
        let first = client.send(&one);
        let meanwhile = async {
            eventually("the read to have the one connection of the pool", LIMIT, async || {
                let pool = stage.report().await["pool"].clone();
                if pool["in_use"] == 1 { Ok(()) } else { Err(pool.to_string()) }
            })
            .await
            .expect("a read under way");
            let mut renewed = claim;
            for name in ["b", "c", "d"] {
                stage.create(name).await;
                assert_eq!(names(&mut watch, 1).await, [name]);
                renewed = stage.renews(&renewed).await;
            }
            for path in ["/v1/clusters/foo/a", ALL] {
                let refused = stage.hub.client().send(&Request::get(path)).await.expect("an answer");
                assert_eq!((refused.status, problem_of(&refused).as_str()), (503, "unavailable"));
            }
            drop(frozen);
        };
        let (first, ()) = tokio::join!(first, meanwhile);
        assert!([200, 503].contains(&first.expect("an answer").status));
        readiness(&stage.hub, 200).await;
        done(&mut stage.hub.client(), &one).await;
    });
}

#[test]
fn a_silent_connection_of_the_tail_is_replaced_and_watches_go_on_without_a_loss() {
    run(async {
        let stage = Stage::new("silenttail").await;
        stage.create("a").await;
        let mut watch = stage.watch().await;
        let (process, frozen) = stage.freeze("hub tail").await;
        for name in ["b", "c", "d"] {
            stage.create(name).await;
        }
        readiness(&stage.hub, 503).await;
        stage.connects_again("hub tail", process).await;
        assert_eq!(names(&mut watch, 3).await, ["b", "c", "d"], "each change once, and in order");
        readiness(&stage.hub, 200).await;
        stage.create("e").await;
        assert_eq!(names(&mut watch, 1).await, ["e"]);
        drop(frozen);
    });
}

#[test]
fn a_silent_or_closed_connection_of_the_claims_is_replaced_and_no_claim_is_lost() {
    run(async {
        let stage = Stage::new("silentclaims").await;
        let claim = stage.leads().await;
        let (process, frozen) = stage.freeze("hub claims").await;
        let last = stage.claim().await;
        let other = stage.connects_again("hub claims", process).await;
        let renewed = stage.renews(&last).await;
        drop(frozen);
        stage.sql.execute("select pg_terminate_backend($1)", &[&other]).await.expect("it is ended");
        stage.connects_again("hub claims", other).await;
        let renewed = stage.renews(&renewed).await;
        assert_eq!((&renewed.0, renewed.1), (&claim.0, claim.1));
        let log = stage.hub.towline.log().expect("a log");
        assert!(log.contains("failed to renew leader claims, retrying"), "{log}");
    });
}

#[test]
fn a_silent_connection_of_the_writer_is_replaced_and_what_was_sent_by_it_is_made_once_at_most() {
    run(async {
        let stage = Stage::new("silentwriter").await;
        stage.create("a").await;
        let mut watch = stage.watch().await;
        let (process, frozen) = stage.freeze("hub writer").await;
        let document = json!({"name": "b", "namespace": "foo", "kubeconfig": "k"});
        let mut client = stage.hub.client();
        let lost = client.send(&Request::post(ALL, &document)).await.expect("an answer");
        assert_eq!((lost.status, problem_of(&lost).as_str()), (503, "outcome-unknown"));
        stage.create("c").await;
        stage.connects_again("hub writer", process).await;
        assert_eq!(names(&mut watch, 1).await, ["c"]);
        // The server carries out what has arrived, or finds that nobody waits for it any more.
        drop(frozen);
        eventually("the old connection to end", LIMIT, async || {
            let sessions = stage.sessions("hub writer").await;
            if sessions.iter().all(|(other, _)| *other != process) { Ok(()) } else { Err(format!("{sessions:?}")) }
        })
        .await
        .expect("an end");
        let made = "select count(*) from towline_log where kind = 'clusters' and name = 'b'";
        let made: i64 = stage.sql.query_one(made, &[]).await.expect("a row").get(0);
        let again = client.send(&Request::post(ALL, &document)).await.expect("an answer");
        assert_eq!((again.status, made), if made == 0 { (201, 0) } else { (409, 1) });
        assert_eq!(names(&mut watch, 1).await, ["b"], "it is there once");
    });
}

#[test]
fn a_silent_connection_on_which_a_lost_answer_was_looked_for_takes_no_other_write() {
    run(async {
        let stage = Stage::new("silentlook").await;
        stage.create("a").await;
        let (mut client, (process, _)) = (stage.hub.client(), stage.sessions("hub writer").await[0]);
        stage.sql.batch_execute("select pg_advisory_lock('towline_log'::regclass::bigint)").await.expect("the lock");
        let document = json!({"name": "b", "namespace": "foo", "kubeconfig": "k"});
        let request = Request::post(ALL, &document);
        let incident = async {
            let awaits = async |process: Option<i32>| {
                eventually("a connection of the writer to wait for the lock", LIMIT, async || {
                    let text = "select pid from pg_stat_activity where datname = current_database() \
                         and application_name = 'hub writer' and wait_event_type = 'Lock' and pid is distinct from $1";
                    let waiting = stage.sql.query(text, &[&process]).await.map_err(|error| error.to_string())?;
                    waiting.first().map(|row| row.get::<_, i32>(0)).ok_or_else(|| "none".to_owned())
                })
                .await
                .expect("a connection")
            };
            awaits(None).await;
            stage.sql.execute("select pg_terminate_backend($1)", &[&process]).await.expect("it is ended");
            let looks = awaits(Some(process)).await;
            of_hubs().await.freeze_sessions(&[looks]).expect("it is stopped")
        };
        let (lost, frozen) = tokio::join!(client.send(&request), incident);
        let lost = lost.expect("an answer");
        assert_eq!((lost.status, problem_of(&lost).as_str()), (503, "outcome-unknown"));
        // By another connection: its outcome is known.
        let refused = client.send(&request).await.expect("an answer");
        assert_eq!((refused.status, problem_of(&refused).as_str()), (503, "unavailable"));
        drop(frozen);
        eventually("the look to end", LIMIT, async || {
            let sessions = stage.sessions("hub writer").await;
            if sessions.len() == 1 { Ok(()) } else { Err(format!("{sessions:?}")) }
        })
        .await
        .expect("an end");
        stage.sql.batch_execute("select pg_advisory_unlock_all()").await.expect("it is done");
        let again = client.send(&request).await.expect("an answer");
        assert_eq!(again.status, 201, "{again:?}");
    });
}
