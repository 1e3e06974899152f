//! The database stops answering, or accepts no connections or writes, and recovers, and the answers that clients get meanwhile.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use integration::hub::{Client, Request};
use integration::postgres::{ADMIN, Database, Transport};
use integration::{Postgres, eventually};
use serde_json::{Value, json};

use crate::hub::files::unready;
use crate::hub::world::{Answer, Hub, LIMIT, readiness, run};

const MERGE: &str = "content-type: application/merge-patch+json";

fn body(name: &str) -> String {
    json!({"name": name, "namespace": "foo", "kubeconfig": "k"}).to_string()
}

/// The answer is a problem of this type, and says when to try again.
fn assert_outage(answer: &Answer, kind: &str) {
    assert!(answer.head.contains("retry-after: "), "{answer:?}");
    assert!(answer.head.contains("content-type: application/problem+json"), "{answer:?}");
    assert_eq!(answer.json()["type"], format!("urn:towline:problem:{kind}"), "{answer:?}");
}

async fn names(hub: &Hub) -> Vec<String> {
    let (mut names, mut next) = (Vec::new(), String::new());
    loop {
        let path = format!("/v1/clusters?fields=metadata&limit=1000{next}");
        let page = hub.expect(200, &path, &[]).await.json();
        let items = page["items"].as_array().expect("items");
        names.extend(items.iter().filter_map(|item| item["name"].as_str().map(str::to_owned)));
        match page["continue"].as_str() {
            Some(token) => next = format!("&continue={token}"),
            None => return names,
        }
    }
}

/// A line of the hub's log has both parts.
fn logged(hub: &Hub, line: &str, part: &str) {
    let log = hub.towline.log().expect("a log");
    assert!(log.lines().any(|one| one.contains(line) && one.contains(part)), "no line with {line:?} and {part:?}");
}

/// An apply answers for each of its documents, and only the first one waits for the database.
async fn an_apply_ends_at_the_first_document_that_is_not_taken(hub: &Hub) {
    let cluster = |name: &str| json!({"kind": "Cluster", "namespace": "foo", "name": name, "kubeconfig": "k"});
    let file = json!([{"kind": "Pod"}, cluster("x"), cluster("y"), {"kind": "Clyster"}, cluster("z")]).to_string();
    let answer = hub.expect(200, "/v1/apply", &["--json", &file]).await.json();
    let told: Vec<(&Value, &Value, &Value)> = answer["items"]
        .as_array()
        .expect("items")
        .iter()
        .map(|item| (&item["name"], &item["problem"]["status"], &item["problem"]["title"]))
        .collect();
    let not_tried = json!("not tried, since the database has failed at an earlier document");
    let statuses: Vec<&Value> = told.iter().map(|(_, status, _)| *status).collect();
    assert_eq!(statuses, [422, 503, 503, 422, 503], "{answer}");
    assert_eq!([told[1].0, told[2].0, told[4].0], ["x", "y", "z"]);
    assert_ne!(told[1].2, &not_tried);
    assert_eq!((told[2].2, told[4].2), (&not_tried, &not_tried));
}

async fn a_read_only_database_is_read_and_not_written(hub: &Hub, database: &Database) {
    let made = hub.expect(200, "/v1/clusters/foo/a", &[]).await.json();
    let sql = database.client(ADMIN).await.expect("a connection");
    let set = async |value: &str| {
        sql.batch_execute("set default_transaction_read_only = off").await.expect("this session writes");
        sql.batch_execute(&format!("alter system set default_transaction_read_only = {value}")).await.expect("set");
        sql.batch_execute("select pg_reload_conf()").await.expect("in force");
    };
    set("on").await;
    // Nobody has to ask for it: the claims are renewed by writes.
    readiness(hub, 503).await;
    let told = hub.towline.admin().section_readyz("hub").await.expect("an answer").body;
    assert!(told.contains("read-only transaction"), "{told}");
    assert_eq!(hub.expect(200, "/v1/clusters/foo/a", &[]).await.json(), made);
    for (path, args) in [
        ("/v1/clusters", &["--json", &body("c")][..]),
        ("/v1/clusters/foo/a", &["-X", "DELETE"]),
        ("/v1/clusters/foo/a", &["-X", "PATCH", "-H", MERGE, "-d", r#"{"paused":true}"#]),
    ] {
        assert_outage(&hub.expect(503, path, args).await, "unavailable");
    }
    set("off").await;
    readiness(hub, 200).await;
    assert_eq!(names(hub).await, ["a", "b"]);
    assert_eq!(hub.expect(200, "/v1/clusters/foo/a", &[]).await.json(), made, "nothing is half written");
    hub.expect(201, "/v1/clusters", &["--json", &body("c")]).await;
}

#[test]
fn requests_are_503_while_the_database_is_away_and_writes_while_it_is_read_only_and_served_again_when_that_is_over() {
    run(async {
        let server = Postgres::start("hub-outage", Transport::Plain).await.expect("a server");
        let database = server.empty_database("outage").await.expect("a database");
        let hub = Hub::start(&database, &[]).await;
        hub.expect(201, "/v1/clusters", &["--json", &body("a")]).await;
        server.kill().await.expect("it is killed");
        readiness(&hub, 503).await;
        for (path, args) in [
            ("/v1/clusters", &[][..]),
            ("/v1/clusters/foo/a", &[]),
            ("/v1/clusters", &["--json", &body("b")]),
            ("/v1/clusters/foo/a", &["-X", "DELETE"]),
        ] {
            let answer = hub.expect(503, path, args).await;
            assert_outage(&answer, "unavailable");
            if args.is_empty() {
                assert_eq!(answer.json()["title"], "the database does not answer");
            }
        }
        logged(&hub, "requests could not be carried out", "requests=1");
        an_apply_ends_at_the_first_document_that_is_not_taken(&hub).await;
        assert_eq!(
            hub.towline.admin().readyz().await.expect("an answer").status,
            200,
            "one outage takes no daemon out"
        );
        server.start_again().await.expect("it starts");
        readiness(&hub, 200).await;
        assert_eq!(names(&hub).await, ["a"], "what was answered with 503 and nothing written is not there");
        hub.expect(201, "/v1/clusters", &["--json", &body("b")]).await;
        a_read_only_database_is_read_and_not_written(&hub, &database).await;
    });
}

/// A request waits at most 5 s for a connection of the pool, then it is 503.
#[test]
fn a_frozen_database_is_an_outage_and_what_was_under_way_is_made_once_at_most() {
    run(async {
        let server = Postgres::start("hub-frozen", Transport::Plain).await.expect("a server");
        let database = server.empty_database("frozen").await.expect("a database");
        let hub = Hub::start_by(&format!("{}?pool_max_conns=1", database.url(ADMIN)), &[]).await;
        hub.expect(201, "/v1/clusters", &["--json", &body("a")]).await;
        hub.expect(200, "/v1/clusters/foo/a", &[]).await;
        let frozen = server.freeze().await.expect("it is stopped");
        let write = async || hub.curl("/v1/clusters", &["--json", &body("b")]).await;
        let first = async || hub.curl("/v1/clusters/foo/a", &[]).await;
        let meanwhile = async {
            eventually("the first request to have the one connection of the pool", LIMIT, async || {
                let report = hub.towline.admin().section("hub").await.map_err(|error| error.to_string())?;
                if report["pool"]["in_use"] == 1 { Ok(()) } else { Err(report["pool"].to_string()) }
            })
            .await
            .expect("a request under way");
            // The first one waits 35 s for an answer.
            assert_outage(&hub.expect(503, "/v1/clusters/foo/a", &[]).await, "unavailable");
            logged(&hub, "requests could not be carried out", "no database connection became free within 5 s");
            readiness(&hub, 503).await;
            drop(frozen);
        };
        let (written, read, ()) = tokio::join!(write(), first(), meanwhile);
        // It goes on where it was, unless the hub has given up before.
        assert!([200, 503].contains(&read.status), "{read:?}");
        readiness(&hub, 200).await;
        let is_made = written.status == 201;
        if !is_made {
            assert_eq!(written.status, 503, "{written:?}");
            assert_outage(&written, "outcome-unknown");
        }
        let again = write().await;
        assert!(again.status == 409 || again.status == 201 && !is_made, "{written:?} {again:?}");
        assert_eq!(names(&hub).await, ["a", "b"]);
        let sql = database.client(ADMIN).await.expect("a connection");
        assert_eq!(creations(&sql).await, BTreeMap::from([("a".to_owned(), 1), ("b".to_owned(), 1)]));
    });
}

/// As clients see it: the server is killed while they write, again and again.
#[test]
fn an_answer_that_was_lost_is_never_applied_twice() {
    const CLIENTS: usize = 4;
    const KILLS: usize = 3;
    const BETWEEN: usize = 40;
    run(async {
        let server = Postgres::start("hub-lost", Transport::Plain).await.expect("a server");
        let database = server.empty_database("lost").await.expect("a database");
        let hub = Hub::start(&database, &[]).await;
        let address = hub.url.trim_start_matches("http://").parse().expect("an address");
        let (stop, created) = (AtomicBool::new(false), AtomicUsize::new(0));
        let client = async |client: usize| {
            let mut connection = Client::to(address);
            let mut told = Vec::new();
            for number in 0.. {
                let name = format!("c{client}-{number}");
                let document = json!({"name": name, "namespace": "foo", "kubeconfig": "k"});
                let reply = connection.send(&Request::post("/v1/clusters", &document)).await.expect("an answer");
                let kind = reply.json().expect("JSON")["type"].as_str().unwrap_or_default().to_owned();
                told.push((name, reply.status, kind));
                created.fetch_add(usize::from(reply.status == 201), Ordering::Relaxed);
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
            told
        };
        let killing = async {
            for _ in 0..KILLS {
                let before = created.load(Ordering::Relaxed);
                eventually("documents to be created", LIMIT, async || {
                    let created = created.load(Ordering::Relaxed) - before;
                    if created >= BETWEEN { Ok(()) } else { Err(format!("{created}")) }
                })
                .await
                .expect("writes");
                server.kill().await.expect("it is killed");
                server.start_again().await.expect("it starts");
            }
            readiness(&hub, 200).await;
            stop.store(true, Ordering::Relaxed);
        };
        let clients = futures::future::join_all((0..CLIENTS).map(client));
        let (told, ()) = tokio::join!(clients, killing);
        let made = creations(&database.client(ADMIN).await.expect("a connection")).await;
        let listed = names(&hub).await;
        let mut lost = 0;
        for (name, status, kind) in told.into_iter().flatten() {
            let times = made.get(&name).copied().unwrap_or_default();
            match (status, kind.as_str()) {
                (201, _) => assert_eq!(times, 1, "{name} was acknowledged"),
                (503, "urn:towline:problem:unavailable") => assert_eq!(times, 0, "{name} was refused"),
                (503, "urn:towline:problem:outcome-unknown") => {
                    lost += 1;
                    assert!(times <= 1, "{name} was made {times} times");
                }
                _ => panic!("{name}: {status} {kind}"),
            }
            assert_eq!(listed.contains(&name), times == 1, "{name}");
        }
        eprintln!("{} documents, {lost} lost answers", made.len());
    });
}

/// How often the log says that each cluster was created.
async fn creations(sql: &tokio_postgres::Client) -> BTreeMap<String, i64> {
    let text = "select name, count(*) from towline_log where kind = 'clusters' and old_version is null group by name";
    let rows = sql.query(text, &[]).await.expect("rows");
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

#[test]
fn without_free_connections_reads_are_503_and_writes_of_new_documents_go_on() {
    run(async {
        let settings = ["max_connections=20", "autovacuum=off"];
        let server = Postgres::start_with("hub-full", Transport::Plain, &settings).await.expect("a server");
        let database = server.empty_database("crowded").await.expect("a database");
        let hub = Hub::start(&database, &[]).await;
        hub.expect(201, "/v1/clusters", &["--json", &body("a")]).await;
        let sql = database.client(ADMIN).await.expect("a connection");
        let mut others = Vec::new();
        // Whatever connections the pool has had so far, others have them now.
        eventually("others to have all connections but three", LIMIT, async || {
            while let Ok(other) = database.client(ADMIN).await {
                others.push(other);
            }
            let text = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
                 where application_name = (select replace(min(application_name), ' writer', '') \
                   from pg_stat_activity where application_name like '% writer')";
            match sql.query_one(text, &[]).await.map_err(|error| error.to_string())?.get::<_, i64>(0) {
                0 => Ok(()),
                ended => Err(format!("the pool had {ended}")),
            }
        })
        .await
        .expect("all connections to be taken");
        for (path, args) in [
            ("/v1/clusters", &[][..]),
            ("/v1/clusters/foo/a", &[]),
            ("/v1/clusters/foo/a", &["-X", "DELETE"]),
            ("/v1/clusters/foo/a", &["-X", "PATCH", "-H", MERGE, "-d", r#"{"paused":true}"#]),
        ] {
            assert_outage(&hub.expect(503, path, args).await, "unavailable");
        }
        logged(&hub, "requests could not be carried out", "too many clients already");
        // The writer has a connection of its own, and a creation reads nothing.
        hub.expect(201, "/v1/clusters", &["--json", &body("b")]).await;
        readiness(&hub, 503).await;
        let told = hub.towline.admin().section_readyz("hub").await.expect("an answer").body;
        assert!(told.contains("too many clients already"), "{told}");
        drop(others);
        readiness(&hub, 200).await;
        assert_eq!(names(&hub).await, ["a", "b"]);
        assert_eq!(hub.expect(200, "/v1/clusters/foo/a", &[]).await.json()["paused"], false);
    });
}

/// A server in recovery is refused, by the hub and by `check --connect`.
#[test]
fn a_standby_is_refused_until_it_is_promoted() {
    run(async {
        let server = Postgres::start("hub-primary", Transport::Plain).await.expect("a server");
        let database = server.empty_database("standby").await.expect("a database");
        let hub = Hub::start(&database, &[]).await;
        hub.expect(201, "/v1/clusters", &["--json", &body("a")]).await;
        let standby = server.standby("hub-standby").await.expect("a standby");
        let copy = standby.copied_database(&database);
        drop(hub);
        let params = copy.url(ADMIN);
        let hub = unready(&[("POSTGRES_PARAMS", params.as_str())]).await;
        let refused = eventually("the standby to be refused", LIMIT, async || {
            let answer = hub.towline.admin().section_readyz("hub").await.map_err(|error| error.to_string())?;
            if answer.body.contains("the server is in recovery") { Ok(answer) } else { Err(answer.body) }
        });
        assert_eq!(refused.await.expect("a refusal").status, 503);
        assert_outage(&hub.expect(503, "/v1/clusters/foo/a", &[]).await, "unavailable");
        standby.cut_off().await.expect("it follows nobody");
        standby.promote().await.expect("it is a primary");
        readiness(&hub, 200).await;
        assert_eq!(names(&hub).await, ["a"]);
    });
}
