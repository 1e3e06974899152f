//! 429 with `Retry-After`: a cluster is asked for nothing until the time is over that its server names, at most 60 s.

use std::sync::Arc;
use std::time::{Duration, Instant};

use integration::eventually;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::syncsets::guard::{Objects, SECTION, api};
use crate::syncsets::report::report;
use crate::syncsets::script::{Says, Script};
use crate::syncsets::world::{LIMIT, Stage, run};

/// What the server has been asked, and when.
type Log = Arc<Mutex<Vec<(Instant, String)>>>;

/// A cluster that is in step, and whose server can be told to refuse.
struct Throttled {
    stage: Stage,
    objects: Objects,
    log: Log,
    refusals: Arc<Mutex<usize>>,
    /// Requests whose first line begins so are refused, if such a beginning is one of these.
    refused: Arc<Mutex<Vec<String>>>,
    _server: Script,
}

impl Throttled {
    /// Of a server that refuses with this `Retry-After`.
    async fn new(name: &'static str, wait: &'static str) -> Self {
        Self::refusing(name, Says::Throttled(wait)).await
    }

    /// Of a server that refuses so.
    async fn refusing(name: &'static str, refusal: Says) -> Self {
        let stage = Stage::shared(name, SECTION).await;
        let (objects, log, refusals) = (Objects::default(), Log::default(), Arc::new(Mutex::new(0)));
        let refused = Arc::new(Mutex::new(vec!["PATCH ".to_owned()]));
        let (shared, seen, left) = (Arc::clone(&objects), Arc::clone(&log), Arc::clone(&refusals));
        let beginnings = Arc::clone(&refused);
        let server = Script::start_with(move |line, body| {
            seen.lock().push((Instant::now(), line.to_owned()));
            let mut left = left.lock();
            if *left > 0 && beginnings.lock().iter().any(|beginning| line.starts_with(beginning)) {
                *left -= 1;
                return refusal.clone();
            }
            api(&shared, line, body)
        })
        .await;
        let kubeconfig = server.kubeconfig_below("/west-1").to_string();
        stage.create("clusters", &json!({"namespace": name, "name": "west-1", "kubeconfig": kubeconfig})).await;
        stage.syncset("base", "Sync", &[stage.config_map("first", &json!({}))]).await;
        stage.succeeds("west-1", "base", 1).await;
        assert_eq!(objects.lock().len(), 1);
        Self { stage, objects, log, refusals, refused, _server: server }
    }

    /// The syncset gets another object, which is refused so many times. No other change wakes the cluster.
    async fn wants_another(&self, refusals: usize) {
        self.log.lock().clear();
        *self.refusals.lock() = refusals;
        let wanted = ["first", "second"].map(|name| self.stage.config_map(name, &json!({})));
        self.stage.wants("base", &wanted).await;
    }

    /// From now on all requests are refused that begin so.
    fn refuse(&self, beginnings: &[String]) {
        self.log.lock().clear();
        *self.refused.lock() = beginnings.to_vec();
        *self.refusals.lock() = usize::MAX;
    }

    /// A request for a config map of the test.
    fn request(&self, method: &str, name: &str) -> String {
        format!("{method} /west-1/api/v1/namespaces/{}/configmaps/{name}", self.stage.namespace)
    }

    /// How many requests of the log begin so.
    fn count(&self, beginning: &str) -> usize {
        self.log.lock().iter().filter(|(_, line)| line.starts_with(beginning)).count()
    }

    /// Waits until a syncset fails on the cluster for this reason.
    async fn fails(&self, syncset: &str, reason: &str) {
        let fails = |status: &Value| {
            let entries = status["syncSets"].as_array();
            entries.into_iter().flatten().any(|entry| entry["name"] == syncset && entry["reason"] == reason)
        };
        self.stage.status("west-1", &format!("{syncset} to fail with {reason}"), fails).await;
    }

    /// The places of all PATCH requests in the log.
    fn patches(&self) -> Vec<usize> {
        let log = self.log.lock();
        (0..log.len()).filter(|at| log[*at].1.starts_with("PATCH ")).collect()
    }
}

#[test]
fn a_cluster_that_asks_to_wait_is_left_alone_for_as_long_as_it_says() {
    run(async {
        const TOLD: Duration = Duration::from_secs(3);
        let throttled = Throttled::new("asked", "3").await;
        throttled.wants_another(2).await;
        throttled.stage.succeeds("west-1", "base", 2).await;
        assert_eq!(throttled.objects.lock().len(), 2);
        // Each refusal ends what is sent, of any kind, until the time is over.
        let patches = throttled.patches();
        let log = throttled.log.lock().clone();
        assert_eq!(patches.len(), 3, "{log:?}");
        for at in &patches[..2] {
            let (refused, next) = (log[*at].0, &log[*at + 1]);
            assert!(next.0 - refused >= TOLD, "{:?} after the refusal: {}; {log:?}", next.0 - refused, next.1);
        }
    });
}

/// Not even changes make the wait shorter: each of them would be a refused pass.
#[test]
fn changes_do_not_wake_a_cluster_that_asks_to_wait() {
    run(async {
        const TOLD: Duration = Duration::from_secs(6);
        let throttled = Throttled::new("throttled-changed", "6").await;
        throttled.wants_another(1).await;
        let stage = &throttled.stage;
        let (cursor, waits) = (
            "select cursor >= (select max(version) from towline_log) from towline_claim where name = 'dispatcher'",
            "select until is null and ready_at > now() from towline_work",
        );
        let holds = async |what: &str, text: &str| {
            eventually(what.to_owned(), LIMIT, async || {
                let row = stage.sql.query_one(text, &[]).await.map_err(|error| error.to_string())?;
                if row.get::<_, Option<bool>>(0) == Some(true) { Ok(()) } else { Err("not yet".to_owned()) }
            })
            .await
            .unwrap();
        };
        for number in 0..4 {
            stage.change(&stage.path("clusters", "west-1"), &json!({"labels": {"number": number.to_string()}})).await;
            holds("the change to be dispatched", cursor).await;
            holds("the cluster to wait again", waits).await;
        }
        stage.succeeds("west-1", "base", 2).await;
        let (patches, log) = (throttled.patches(), throttled.log.lock().clone());
        let refused = log[patches[0]].0;
        let next = log.iter().find(|(at, _)| *at > refused).unwrap();
        assert!(next.0 - refused >= TOLD, "{:?} after the refusal: {}; {log:?}", next.0 - refused, next.1);
    });
}

/// An hour would be that of a proxy with a wrong clock. When the cluster is asked again is read, and not waited for.
#[test]
fn no_cluster_is_left_alone_for_more_than_a_minute() {
    run(async {
        let throttled = Throttled::new("throttled-long", "3600").await;
        throttled.wants_another(1).await;
        let stage = &throttled.stage;
        let waits = "select extract(epoch from ready_at - clock_timestamp())::float8 from towline_work \
             where coalesce(until, '-infinity') < now() and ready_at > now() + interval '2 s'";
        let wait: f64 = eventually("the cluster to wait", LIMIT, async || {
            let refused = throttled.patches().len();
            let row = stage.sql.query_opt(waits, &[]).await.map_err(|error| error.to_string())?;
            row.filter(|_| refused > 0).map(|row| row.get(0)).ok_or_else(|| format!("refused: {refused}"))
        })
        .await
        .unwrap();
        // By the clock of the database, which is another one.
        assert!(wait < 61.0, "{wait}");
        assert_eq!(throttled.objects.lock().len(), 1);
        // The report counts the cluster as pending, its work stays urgent, and `explain` names the wait.
        let urgent: bool = stage.sql.query_one("select urgent from towline_work", &[]).await.unwrap().get(0);
        assert!(urgent);
        report(stage, "the cluster to be pending", |report| report["objects"]["pending"] == 1).await;
        let told = stage.explained("west-1", "ConfigMap/throttled-long/second").await;
        let first = told.lines().next().unwrap();
        assert!(first.contains(", its API server asks to wait for another "), "{told}");
        // As if the minute were over.
        let over = "update towline_cluster set retry_at = now(); update towline_work set ready_at = now(); \
             select pg_notify('towline_work', '')";
        stage.sql.batch_execute(over).await.unwrap();
        stage.succeeds("west-1", "base", 2).await;
        assert_eq!(throttled.objects.lock().len(), 2);
    });
}

/// The wait after a failure doubles, and a change of what is wanted begins anew.
#[test]
fn a_change_begins_the_retries_of_a_failing_cluster_anew() {
    run(async {
        let failing = Throttled::refusing("retried", Says::Body(500, "{}".to_owned())).await;
        failing.wants_another(usize::MAX).await;
        let stage = &failing.stage;
        let attempts = async |what: &str, range: std::ops::RangeInclusive<i32>| {
            eventually(what.to_owned(), LIMIT, async || {
                let row = stage.sql.query_one("select attempts from towline_work", &[]).await;
                let found: i32 = row.map_err(|error| error.to_string())?.get(0);
                if range.contains(&found) { Ok(()) } else { Err(found.to_string()) }
            })
            .await
            .unwrap();
        };
        attempts("the fourth failure", 4..=i32::MAX).await;
        let wanted = ["first", "third"].map(|name| stage.config_map(name, &json!({})));
        stage.wants("base", &wanted).await;
        attempts("the first failure after the change", 1..=2).await;
        eventually("the third object to be sent", LIMIT, async || {
            let log = failing.log.lock();
            let is_sent = log.iter().any(|(_, line)| line.starts_with("PATCH ") && line.contains("third"));
            if is_sent { Ok(()) } else { Err(format!("{log:?}")) }
        })
        .await
        .unwrap();
        *failing.refusals.lock() = 0;
        stage.succeeds("west-1", "base", 3).await;
    });
}

/// Whatever a pass asks for first may be about that alone, and is not, if the API server answers nothing else either.
#[test]
fn an_api_server_that_answers_everything_with_429_is_left_alone_and_nothing_fails() {
    run(async {
        const PASSES: i64 = 5;
        let throttled = Throttled::new("throttled-all", "60").await;
        let stage = &throttled.stage;
        throttled.refuse(&[String::new()]);
        stage.wants("base", &["first", "second"].map(|name| stage.config_map(name, &json!({})))).await;
        // As if the waits were over.
        let over = "update towline_cluster set retry_at = now(); update towline_work set ready_at = now(); \
             select pg_notify('towline_work', '')";
        let passes =
            "select attempts::bigint, retry_at > now() + interval '30 s' from towline_cluster where attempts > 0";
        for pass in 1..=PASSES {
            eventually(format!("pass {pass} to end"), LIMIT, async || {
                let row = stage.sql.query_opt(passes, &[]).await.map_err(|error| error.to_string())?;
                match row.map(|row| (row.get::<_, i64>(0), row.get::<_, Option<bool>>(1))) {
                    Some((ended, Some(true))) if ended == pass => Ok(()),
                    other => Err(format!("{other:?}")),
                }
            })
            .await
            .unwrap();
            if pass < PASSES {
                stage.sql.batch_execute(over).await.unwrap();
            }
        }
        let (all, probes, log) =
            (throttled.count(""), throttled.count("GET /west-1/version "), throttled.log.lock().clone());
        assert_eq!(
            (all, probes),
            (8, 3),
            "one in each pass, and from the third on whether others are answered: {log:?}"
        );
        assert_eq!(throttled.objects.lock().len(), 1);
        report(stage, "the cluster to be pending", |report| report["objects"]["pending"] == 1).await;
        let status = stage.status("west-1", "the status", |status| status["syncSets"].is_array()).await;
        assert_eq!(
            (&status["syncSets"][0]["result"], &status["syncSets"][0]["reason"]),
            (&json!("Success"), &Value::Null)
        );
        *throttled.refusals.lock() = 0;
        stage.sql.batch_execute(over).await.unwrap();
        stage.succeeds("west-1", "base", 2).await;
        assert_eq!(throttled.objects.lock().len(), 2);
    });
}

#[test]
fn a_deletion_that_is_throttled_alone_fails_in_the_third_pass_and_others_are_sent() {
    run(async {
        let throttled = Throttled::new("throttled-deletion", "0").await;
        let stage = &throttled.stage;
        throttled.wants_another(0).await;
        stage.succeeds("west-1", "base", 2).await;
        throttled.refuse(&[throttled.request("DELETE", "second")]);
        stage.wants("base", &[stage.config_map("first", &json!({}))]).await;
        throttled.fails("base", "DeletionFailed").await;
        let mut requests: Vec<String> = throttled.log.lock().iter().map(|(_, line)| line.clone()).collect();
        let asks = requests.iter().position(|line| line.starts_with("GET /west-1/version ")).unwrap();
        requests.truncate(asks);
        assert_eq!(requests.iter().filter(|line| line.starts_with("DELETE ")).count(), 3, "{requests:?}");
        // It goes on to fail.
        stage.syncset("other", "Sync", &[stage.config_map("third", &json!({}))]).await;
        stage.succeeds("west-1", "other", 1).await;
        assert_eq!(throttled.objects.lock().len(), 3);
        *throttled.refusals.lock() = 0;
        stage.succeeds("west-1", "base", 3).await;
        assert_eq!(throttled.objects.lock().len(), 2);
    });
}

/// Of an API server that sheds load no pass takes all answers for refusals.
#[test]
fn each_further_request_that_is_throttled_alone_ends_one_more_pass_and_then_others_are_sent() {
    run(async {
        let throttled = Throttled::new("throttled-two", "0").await;
        let stage = &throttled.stage;
        // One pass for all.
        stage.pause(true).await;
        let [look, write, sent] = [("GET", "second"), ("PATCH", "third"), ("PATCH", "fourth")]
            .map(|(method, name)| throttled.request(method, name));
        throttled.refuse(&[look.clone(), write.clone()]);
        stage.wants("base", &["first", "second"].map(|name| stage.config_map(name, &json!({})))).await;
        for (syncset, name) in [("c", "third"), ("d", "fourth")] {
            stage.syncset(syncset, "Sync", &[stage.config_map(name, &json!({}))]).await;
        }
        stage.pause(false).await;
        for syncset in ["base", "c"] {
            throttled.fails(syncset, "Rejected").await;
        }
        let mut requests: Vec<String> = throttled.log.lock().iter().map(|(_, line)| line.clone()).collect();
        let end = requests.iter().position(|line| line.starts_with(&sent)).unwrap();
        requests.truncate(end);
        let count = |beginning: &str| requests.iter().filter(|line| line.starts_with(beginning)).count();
        let counts = (count(&look), count(&write), count("GET /west-1/version "));
        assert_eq!(counts, (4, 2, 2), "two passes end at the first one, and the third at the other one: {requests:?}");
        *throttled.refusals.lock() = 0;
        for (syncset, generation) in [("base", 2), ("c", 1), ("d", 1)] {
            stage.succeeds("west-1", syncset, generation).await;
        }
    });
}
