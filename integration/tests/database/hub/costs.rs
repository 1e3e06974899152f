//! What a request costs the database: statements, counted by the server itself.

use std::time::{Duration, Instant};

use integration::eventually;
use integration::hub::{Replica, Request};
use integration::postgres::{ADMIN, Database, HUB};
use serde_json::json;
use tokio_postgres::Client;

use crate::hub::world::{LIMIT, hub_database, run};

/// What a replica sends by itself: the tail, its claims, compaction and the estimate of the log's size; and the set-up of a new connection.
const BY_ITSELF: [&str; 7] = [
    "select m.origin, %",
    "set lock_timeout%",
    "with mine as%towline_claim%",
    "with free as%towline_claim%",
    "%towline_compact(%",
    "%pg_catalog.pg_class%",
    "do $$%",
];

/// A replica, and the statements of its account.
struct Counted {
    database: Database,
    replica: Replica,
    sql: Client,
}

impl Counted {
    async fn start(name: &str) -> Self {
        let database = hub_database(name).await;
        let replica = Replica::start(&database, &[]).await.expect("a process");
        replica.wait_ready(LIMIT).await.expect("it is ready");
        let sql = database.client(ADMIN).await.expect("a connection");
        Self { database, replica, sql }
    }

    /// How often the replica has sent anything at all since the last count.
    async fn all(&self) -> i64 {
        let text = format!(
            "select coalesce(sum(s.calls), 0)::int8 from statistics.pg_stat_statements s join pg_roles r on r.oid = s.userid \
             where r.rolname = '{HUB}' and s.dbid = (select oid from pg_database where datname = current_database())"
        );
        self.sql.query_one(&text, &[]).await.expect("a count").get(0)
    }

    /// The statements that requests have caused since the last count.
    async fn count(&self) -> Vec<(String, i64)> {
        let own: Vec<String> = BY_ITSELF.iter().map(|pattern| format!("query not like '{pattern}'")).collect();
        let text = format!(
            "select left(s.query, 60), s.calls from statistics.pg_stat_statements s join pg_roles r on r.oid = s.userid \
             where r.rolname = '{HUB}' and s.dbid = (select oid from pg_database where datname = current_database()) and {} \
             order by 1",
            own.join(" and ")
        );
        let rows = self.sql.query(&text, &[]).await.expect("the statements");
        let reset =
            "select statistics.pg_stat_statements_reset(0, oid, 0) from pg_database where datname = current_database()";
        self.sql.execute(reset, &[]).await.expect("it is reset");
        rows.iter().map(|row| (row.get(0), row.get(1))).collect()
    }

    /// Sends a request, which must have this status, and returns its version. It must cost so many reads and writes.
    async fn costs(&self, request: &Request, status: u16, reads: i64, writes: i64) -> u64 {
        let mut client = self.replica.client();
        // Whatever ran before.
        self.count().await;
        let reply = client.send(request).await.expect("an answer");
        assert_eq!(reply.status, status, "{request:?}: {}", String::from_utf8_lossy(&reply.body));
        let statements = self.count().await;
        let of = |is_write: bool| {
            let is = |text: &str| text.starts_with("call towline_write(") == is_write;
            statements.iter().filter(|(text, _)| is(text)).map(|(_, calls)| calls).sum::<i64>()
        };
        assert_eq!((of(false), of(true)), (reads, writes), "{request:?}: {statements:?}");
        reply.version().unwrap_or_default()
    }
}

/// *Costs*: see the steps.
#[test]
fn each_request_and_an_idle_replica_cost_the_statements_that_are_promised() {
    run(async {
        let hub = Counted::start("costs").await;
        hub.claims().await;
        hub.idle().await;
        hub.requests().await;
    });
}

impl Counted {
    /// A read and a page are one statement, a creation is one call, other writes read once before it, and what changes nothing reads once.
    async fn requests(&self) {
        let hub = self;
        let (all, one) = ("/v1/clusters", "/v1/clusters/foo/c1");
        let document = json!({"name": "c1", "namespace": "foo", "kubeconfig": "k", "labels": {"env": "prod"}});
        let patch = |value: &str| Request::merge_patch(one, &json!({"labels": {"env": value}}));
        let version = hub.costs(&Request::post(all, &document), 201, 0, 1).await;
        hub.costs(&Request::post(all, &document), 409, 0, 1).await;
        hub.costs(&Request::get(one), 200, 1, 0).await;
        hub.costs(&Request::get("/v1/clusters/foo/c2"), 404, 1, 0).await;
        hub.costs(&Request::get("/v1/clusters?labelSelector=env%3Dprod&limit=1"), 200, 1, 0).await;
        assert_eq!(hub.costs(&patch("prod"), 200, 1, 0).await, version);
        hub.costs(&patch("test").if_match(version + 7), 412, 1, 0).await;
        let dry = Request::merge_patch(&format!("{one}?dryRun=true"), &json!({"labels": {"env": "test"}}));
        hub.costs(&dry, 200, 1, 0).await;
        let version = hub.costs(&patch("test").if_match(version), 200, 1, 1).await;
        hub.costs(&Request::put(one, &json!({"paused": true})).if_match(version), 200, 1, 1).await;
        hub.costs(&Request::merge_patch(&format!("{one}/status"), &json!({"status": {"a": 1}})), 200, 1, 1).await;
        hub.costs(&Request::delete(one), 200, 1, 1).await;
        hub.costs(&Request::delete(one), 404, 1, 0).await;
        // What is refused for itself costs nothing.
        hub.costs(&Request::post(all, &json!({"name": "c1", "namespace": "foo"})), 422, 0, 0).await;
        hub.costs(&Request::get("/v1/clusters?limit=none"), 400, 0, 0).await;
    }

    /// An idle replica reads the log once a second, and sends nothing else but renewals of its claim.
    async fn idle(&self) {
        let hub = self;
        hub.count().await;
        let of_tail = "select coalesce(sum(calls), 0)::int8 from statistics.pg_stat_statements s join pg_database d on d.oid = s.dbid \
             where d.datname = current_database() and query like '%m.origin = towline_origin()%'";
        let reads = async || -> i64 { hub.sql.query_one(of_tail, &[]).await.expect("a count").get(0) };
        let (begun, before) = (Instant::now(), reads().await);
        let after = eventually("the tail to read five times", LIMIT, async || match reads().await {
            after if after >= before + 5 => Ok(after),
            other => Err(other.to_string()),
        })
        .await
        .expect("reads");
        let passed = begun.elapsed().as_secs_f64();
        // The first one may come at once.
        assert!(passed >= f64::from(u32::try_from(after - before - 1).expect("few")) * 0.95, "{passed} s");
        // Beside them a renewal each 6 s, a request for roles each 10 s, and compaction each minute with the estimate of the log's size.
        let (all, seconds) = (hub.all().await, begun.elapsed().as_secs_f64());
        #[expect(clippy::cast_possible_truncation, reason = "few seconds")]
        let most = seconds.ceil() as i64 + 1 + (seconds / 6.0) as i64 + 1 + (seconds / 10.0) as i64 + 1 + 2;
        assert!(all <= most, "{all} statements in {seconds} s");
        assert_eq!(hub.count().await, [], "nothing else");
    }

    /// Two replicas without requests. Both read the log each second; the one that holds the role renews its claim each 6 s and
    /// compacts each minute, and the other asks for the role each 10 s.
    async fn claims(&self) {
        let hub = self;
        let calls = async |pattern: &str| -> i64 {
            let text = "select coalesce(sum(calls), 0)::int8 from statistics.pg_stat_statements s join pg_database d on d.oid = s.dbid \
                 where d.datname = current_database() and query like $1";
            hub.sql.query_one(text, &[&pattern]).await.expect("a count").get(0)
        };
        let compacted = async |times: i64| {
            eventually("compaction", Duration::from_secs(150), async || {
                match calls("select scanned, removed, expired from towline_compact(%").await {
                    seen if seen >= times => Ok(seen),
                    other => Err(other.to_string()),
                }
            })
            .await
            .expect("compaction")
        };
        let first = compacted(1).await;
        let seen = Instant::now();
        let follower = Replica::start(&hub.database, &[]).await.expect("a process");
        follower.wait_ready(LIMIT).await.expect("it is ready");
        let begun = Instant::now();
        let before = [calls("with mine as%towline_claim%").await, calls("with free as%towline_claim%").await];
        assert_eq!(compacted(first + 1).await, first + 1);
        let after = [calls("with mine as%towline_claim%").await, calls("with free as%towline_claim%").await];
        let passed = begun.elapsed().as_secs_f64();
        // A start can be late on a busy machine, also that of the follower, so that little time is left; and none comes early.
        for (what, every, most) in [("renewals", 6.0, after[0] - before[0]), ("demands", 10.0, after[1] - before[1])] {
            #[expect(clippy::cast_precision_loss, reason = "few")]
            let most = most as f64;
            assert!(most <= passed / every + 1.0, "{most} {what} in {passed} s");
            assert!(most + 1.0 >= passed / every / 2.0, "{most} {what} in {passed} s");
        }
        // The first one was seen soon after it was made.
        let between = seen.elapsed();
        assert!(between >= Duration::from_secs(50), "{between:?}");
    }
}
