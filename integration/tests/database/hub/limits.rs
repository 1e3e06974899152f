//! Clients that are slow, many, or send too much get a clear error, and others don't notice them.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use integration::eventually;
use integration::hub::Request;
use integration::postgres::ADMIN;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::hub::world::{Hub, LIMIT, database, folder, grant, run};

/// Bodies of requests that arrive at a hub at once.
const MOST_BODIES: usize = 256;

/// A client that sends what it likes.
pub(crate) struct Raw(TcpStream);

impl Raw {
    async fn connect(hub: &Hub) -> Self {
        let address: SocketAddr = hub.url.trim_start_matches("http://").parse().expect("an address");
        Self(TcpStream::connect(address).await.expect("a connection"))
    }

    /// One that has sent this.
    pub(crate) async fn sending(hub: &Hub, text: &str) -> Self {
        let mut client = Self::connect(hub).await;
        // What the server has refused may be reset.
        let _ = client.0.write_all(text.as_bytes()).await;
        client
    }

    /// The status of the answer; none where the connection ends without one.
    pub(crate) async fn status(&mut self) -> Option<u16> {
        let mut head = Vec::new();
        let reading = async {
            while !head.windows(2).any(|end| end == b"\r\n") {
                let mut bytes = [0; 1024];
                match self.0.read(&mut bytes).await {
                    Ok(0) | Err(_) => return None,
                    Ok(count) => head.extend_from_slice(&bytes[..count]),
                }
            }
            let head = String::from_utf8_lossy(&head).into_owned();
            head.split(' ').nth(1).map(|status| status.parse().expect("a status"))
        };
        timeout(LIMIT, reading).await.expect("an answer or the end in time")
    }
}

/// The head of a POST of a cluster whose body has this many bytes.
pub(crate) fn post(length: usize) -> String {
    format!(
        "POST /v1/clusters HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    )
}

/// How often requests of this route were answered with this status.
pub(crate) async fn answered(hub: &Hub, route: &str, code: u16) -> u64 {
    let metrics = hub.towline.admin().metrics().await.expect("metrics");
    let is_one = |line: &&str| {
        line.starts_with(&format!("towline_hub_requests_total{{route=\"{route}\","))
            && line.contains(&format!("code=\"{code}\""))
    };
    let counts = metrics.lines().filter(is_one).map(|line| line.rsplit(' ').next().expect("a sample"));
    counts.map(|count| count.parse::<u64>().expect("a count")).sum()
}

fn cluster(name: &str) -> String {
    json!({"name": name, "namespace": "foo", "kubeconfig": "k"}).to_string()
}

#[test]
fn what_the_server_itself_refuses_has_a_status_and_is_counted() {
    run(async {
        let hub = Hub::start(&database("refused").await, &[]).await;
        let long = format!("GET /v1/clusters HTTP/1.1\r\nhost: localhost\r\nx-long: {}\r\n\r\n", "a".repeat(20_000));
        for (text, status) in [(long.as_str(), 431), ("no http at all\r\n\r\n", 400)] {
            assert_eq!(Raw::sending(&hub, text).await.status().await, Some(status));
            eventually(format!("a refused head to be counted as {status}"), LIMIT, async || {
                let count = answered(&hub, "none", status).await;
                if count == 1 { Ok(()) } else { Err(format!("{count}")) }
            })
            .await
            .expect("counted");
        }
        // The beginning of HTTP/2 is no request.
        let of_http_2 = Raw::sending(&hub, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.status().await;
        assert!(of_http_2.is_none_or(|status| status == 400), "{of_http_2:?}");
        // 5 MiB and a byte, announced and not.
        let size = (5 << 20) + 1;
        assert_eq!(Raw::sending(&hub, &post(size)).await.status().await, Some(413));
        let head = "POST /v1/clusters HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
        let chunked = format!("{head}{size:x}\r\n{}", " ".repeat(size));
        assert_eq!(Raw::sending(&hub, &chunked).await.status().await, Some(413));
        assert_eq!((answered(&hub, "/v1/clusters", 413).await, answered(&hub, "/v1/clusters", 400).await), (2, 0));
        let encoded = ["-H", "content-encoding: gzip", "--json", &cluster("a")];
        let answer = hub.expect(415, "/v1/clusters", &encoded).await;
        assert_eq!(answer.json()["type"], "urn:towline:problem:media-type");
        assert!(answer.head.contains("x-content-type-options: nosniff"), "{answer:?}");
        hub.expect(404, "/v1/pods", &[]).await;
        hub.expect(200, "/openapi.json", &[]).await;
        assert_eq!((answered(&hub, "none", 404).await, answered(&hub, "description", 200).await), (1, 1));
        hub.expect(201, "/v1/clusters", &["--json", &cluster("a")]).await;
    });
}

#[test]
fn slow_heads_and_bodies_end_and_others_are_served_meanwhile() {
    run(async {
        let hub = Hub::start(&database("slow").await, &[]).await;
        let mut head = Raw::sending(&hub, "GET /v1/clusters HTTP/1.1\r\nhost: local").await;
        let mut silent = Raw::connect(&hub).await;
        let mut body = Raw::sending(&hub, &format!("{}{{", post(10))).await;
        hub.expect(201, "/v1/clusters", &["--json", &cluster("a")]).await;
        assert_eq!(body.status().await, Some(400));
        assert_eq!(answered(&hub, "/v1/clusters", 400).await, 1);
        hub.expect(200, "/v1/clusters/foo/a", &[]).await;
        // 75 s: as long as the server keeps an idle connection.
        assert_eq!((head.status().await, silent.status().await), (None, None));
        hub.expect(200, "/v1/clusters/foo/a", &[]).await;
    });
}

/// A client beyond a limit gets 429, and its connection is not closed, whatever the other clients do.
#[test]
fn while_256_bodies_arrive_and_all_watches_are_served_one_more_of_each_is_told_to_wait_and_reads_are_answered() {
    const ALL: usize = 400;
    run(async {
        let hub = Hub::start(&database("toomany").await, &[("TOWLINE__HUB__MAX_WATCHERS", "1")]).await;
        hub.expect(201, "/v1/clusters", &["--json", &cluster("a")]).await;
        let mut watch = hub.watch("/v1/clusters?watch=true", &[]);
        assert_eq!(watch.event().await.1["name"], "a");
        // Heads that are complete, and bodies that don't arrive.
        let mut clients = Vec::new();
        for _ in 0..ALL {
            clients.push(Raw::sending(&hub, &post(2)).await);
        }
        let refused = u64::try_from(ALL - MOST_BODIES).expect("a number");
        eventually("all beyond 256 to be refused", LIMIT, async || {
            // A machine that takes 30 s for this sees the first bodies end as too slow, and their places go to others.
            let count = answered(&hub, "/v1/clusters", 429).await;
            let late = answered(&hub, "/v1/clusters", 400).await;
            if count + late >= refused { Ok(()) } else { Err(format!("{count} and {late} of {refused}")) }
        })
        .await
        .expect("refusals");
        let (body, one_watch) =
            (hub.curl("/v1/clusters", &["--json", "[]"]).await, hub.curl("/v1/clusters?watch=true", &[]).await);
        let is_late = answered(&hub, "/v1/clusters", 400).await > 0;
        for busy in [one_watch].into_iter().chain((!is_late).then_some(body)) {
            assert_eq!(busy.status, 429);
            assert!(busy.head.contains("retry-after: 1"), "{busy:?}");
            assert_eq!(busy.json()["type"], "urn:towline:problem:busy");
        }
        hub.expect(200, "/v1/clusters", &[]).await;
        let line = watch.line().await.expect("the watch goes on");
        assert!(line.contains("BOOKMARK"), "{line}");
        let mut statuses = BTreeMap::new();
        for client in &mut clients {
            // Those that were refused have their answer, and the others get one for their body.
            let _ = client.0.write_all(b"[]").await;
            *statuses.entry(client.status().await).or_insert(0) += 1;
        }
        let of = |status| statuses.get(&Some(status)).copied().unwrap_or_default();
        assert_eq!(of(422) + of(429) + of(400), ALL, "{statuses:?}");
        assert!(of(422) <= MOST_BODIES && of(429) > 0, "{statuses:?}");
        if of(400) == 0 {
            assert_eq!((of(422), of(429)), (MOST_BODIES, ALL - MOST_BODIES));
        }
        hub.expect(201, "/v1/clusters", &["--json", &cluster("b")]).await;
        assert_eq!(watch.event().await.1["name"], "b");
    });
}

#[test]
fn a_token_whose_bodies_drip_keeps_no_other_out() {
    const ALL: usize = 300;
    run(async {
        let file = folder("dripping").join("tokens");
        let grants = [grant("write", "foo", "writer").await, grant("admin", "*", "administrator").await];
        std::fs::write(&file, grants.concat()).expect("a file");
        let path = file.display().to_string();
        let hub = Hub::start(&database("dripping").await, &[("TOWLINE__HUB__TOKENS_FILE", path.as_str())]).await;
        let head = post(2).replace("\r\n\r\n", "\r\nauthorization: Bearer writer\r\n\r\n");
        let mut dripping = Vec::new();
        for _ in 0..ALL {
            dripping.push(Raw::sending(&hub, &head).await);
        }
        let refused = async || answered(&hub, "/v1/clusters", 429).await + answered(&hub, "none", 429).await;
        let at_least = u64::try_from(ALL - MOST_BODIES).expect("a number");
        eventually("what has no place to be refused", LIMIT, async || {
            let count = refused().await + answered(&hub, "/v1/clusters", 400).await;
            if count >= at_least { Ok(()) } else { Err(format!("{count} of {at_least}")) }
        })
        .await
        .expect("refusals");
        for number in 0..10 {
            let sent = ["-H", "authorization: Bearer administrator", "--json", &cluster(&format!("c{number}"))];
            hub.expect(201, "/v1/clusters", &sent).await;
        }
        let half = u64::try_from(ALL - MOST_BODIES / 2).expect("a number");
        let late = answered(&hub, "/v1/clusters", 400).await;
        assert!(late > 0 || refused().await == half, "{} of {half}", refused().await);
    });
}

#[test]
fn a_thousand_watches_that_connect_at_once_are_served_at_the_first_attempt_and_again_after_all_were_closed() {
    const ALL: usize = 1_000;
    run(async {
        let hub = Hub::start(&database("reconnect").await, &[]).await;
        let created = hub.expect(201, "/v1/clusters", &["--json", &cluster("a")]).await;
        let version = created.json()["resourceVersion"].as_str().expect("a version").to_owned();
        let watch =
            format!("GET /v1/clusters?watch=true&resourceVersion={version} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        for round in ["first", "second"] {
            let connect = || async {
                let mut client = Raw::sending(&hub, &watch).await;
                (client.status().await, client)
            };
            let clients = futures::future::join_all((0..ALL).map(|_| connect())).await;
            let mut statuses = BTreeMap::new();
            for (status, _) in &clients {
                *statuses.entry(*status).or_insert(0) += 1;
            }
            assert_eq!(statuses, BTreeMap::from([(Some(200), ALL)]), "the {round} time");
            drop(clients);
            eventually("the watches to end", LIMIT, async || {
                let report = hub.towline.admin().section("hub").await.map_err(|error| error.to_string())?;
                if report["watches"] == 0 { Ok(()) } else { Err(report.to_string()) }
            })
            .await
            .expect("no watch");
        }
    });
}

#[test]
fn eight_large_requests_are_under_way_the_next_one_is_told_to_wait_and_small_ones_are_served() {
    // Just large: the hub reads all of it before it waits for a place, and bytes that it has not read would reset the connection.
    const SENT: usize = (32 << 10) + 1;
    const MOST: usize = 8;
    run(async {
        let hub = Hub::start(&database("large").await, &[]).await;
        let part = format!("{}{}", post(5 << 20), " ".repeat(SENT));
        let patch = json!({"apiVersion": "v1", "kind": "ConfigMap", "namespace": "a", "name": "b", "patchType": "merge",
            "patch": "data: &a {b: c}"});
        let syncset = |name: &str, patches: &[Value]| {
            let spec = json!({"clusterDeploymentRefs": [{"name": "a"}], "patches": patches});
            json!({"namespace": "foo", "name": name, "spec": spec}).to_string()
        };
        let mut kept = None;
        eventually("one of the large bodies to be refused", LIMIT, async || {
            let mut clients = Vec::new();
            for _ in 0..=MOST {
                clients.push(Raw::sending(&hub, &part).await);
            }
            let statuses =
                clients.into_iter().map(|mut client| Box::pin(async move { (client.status().await, client) }));
            let ((status, _), _, others) = futures::future::select_all(statuses).await;
            kept = Some(others);
            // The texts of patches are YAML, of which aliases make much.
            let patched =
                hub.curl("/v1/syncsets", &["--json", &syncset("patched", std::slice::from_ref(&patch))]).await;
            match (status, patched.status) {
                (Some(429), 429) => Ok(()),
                // Where all this takes more than 30 s, the first bodies have ended as too slow, and all are sent again.
                other => Err(format!("{other:?}")),
            }
        })
        .await
        .expect("429");
        hub.expect(201, "/v1/syncsets", &["--json", &syncset("plain", &[])]).await;
        hub.expect(201, "/v1/clusters", &["--json", &cluster("small")]).await;
        drop(kept);
        let large = json!({"name": "large", "namespace": "foo", "kubeconfig": "k".repeat(3 << 20)}).to_string();
        eventually("a large document to be created", LIMIT, async || {
            let text = format!("{}{large}", post(large.len()));
            match Raw::sending(&hub, &text).await.status().await {
                Some(201) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await
        .expect("201");
    });
}

/// The rollout to which an order is given.
const ORDERED: &str = "/v1/selectorsyncsets/b/rollout";

/// A request that reads much: its path, the table that it reads, and how a statement of it that waits is recognized.
const SLOW: [(&str, &str, &str); 10] = [
    ("/v1/clusters?labelSelector=a!=b", "towline_documents", "with recursive state%"),
    ("/v1/syncsets/foo/a", "towline_documents", "select s.is_whole, d.*%"),
    ("/v1/selectorsyncsets/a", "towline_documents", "select s.is_whole, d.*%"),
    ("/v1/clustersyncs/foo/a", "towline_documents", "select s.is_whole, d.*%"),
    ("/v1/syncsets/foo/a/rollout", "towline_documents", "%from towline_documents c join towline_rollout r%"),
    ("/v1/selectorsyncsets/a/rollout/revisions", "towline_documents", "select v.revision, v.generation%"),
    (ORDERED, "towline_documents", "%for update of r"),
    (
        "/v1/clusters/foo/a/explanation?kind=ConfigMap&objectNamespace=b&objectName=c",
        "syncsets",
        "%with target as materialized%",
    ),
    ("/v1/syncset-diffs", "syncsets", "%left join towline_guard g on g.syncset = d.id%"),
    ("/v1/syncset-diffs", "clusters", "with place as materialized%"),
];

/// Statements that wait for a lock stand for those that read much.
#[test]
fn a_token_whose_reads_are_slow_takes_a_quarter_of_the_connections_and_others_are_answered() {
    run(async {
        let (place, room) = (database("slow_reads").await, folder("slow-reads"));
        let grants =
            [grant("write", "*", "slow").await, grant("read", "*", "other").await, grant("admin", "*", "chief").await];
        let tokens = room.join("tokens");
        std::fs::write(&tokens, grants.concat()).expect("a file");
        let env = [
            ("TOWLINE__HUB__TOKENS_FILE", tokens.to_str().expect("text")),
            ("TOWLINE__SYNCSETS__ALLOW", "local-networks"),
        ];
        let hub = Hub::start(&place, &env).await;
        let (sql, other) =
            (place.client(ADMIN).await.expect("a connection"), place.client(ADMIN).await.expect("another"));
        // A pass of it would wait, too.
        let paused = json!({"name": "a", "namespace": "foo", "kubeconfig": "k", "paused": true}).to_string();
        hub.expect(201, "/v1/clusters", &["-H", "authorization: Bearer chief", "--json", &paused]).await;
        eventually("the pass of the cluster to end", LIMIT, async || {
            let text = "select count(*) from towline_work where ready_at <= now() or until > now()";
            let due: i64 = sql.query_one(text, &[]).await.expect("a row").get(0);
            if due == 0 { Ok(()) } else { Err(format!("{due} are due")) }
        })
        .await
        .expect("no pass");
        let reading = async |statement: &str| -> i64 {
            let text = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' \
                 and query like $1";
            sql.query_one(text, &[&statement]).await.expect("a row").get(0)
        };
        let syncset = json!({"kind": "SyncSet", "namespace": "foo", "name": "b",
            "spec": {"clusterDeploymentRefs": [{"name": "a"}], "resources": []}});
        let ask = |token: &str, path: &str| {
            let mut client = hub.client().with_token(token);
            let request = match path {
                "/v1/syncset-diffs" => Request::post(path, &syncset),
                ORDERED => Request::post(path, &json!({"action": "pause"})),
                _ => Request::get(path),
            };
            tokio::spawn(async move { client.send(&request).await.expect("an answer").status })
        };
        for (path, table, statement) in SLOW {
            let lock = format!("begin; lock table {table} in access exclusive mode");
            other.batch_execute(&lock).await.expect("the lock");
            let slow: Vec<_> = (0..60).map(|_| ask("slow", path)).collect();
            eventually(format!("requests for {path} to wait"), LIMIT, async || match reading(statement).await {
                2 => Ok(()),
                count => Err(format!("{count} wait")),
            })
            .await
            .expect("a quarter of the eight connections");
            // Neither of these reads documents: all that they need is a connection.
            let one = "/v1/history?kind=clusters&namespace=foo&name=a";
            for (token, path) in [("chief", "/v1/history"), ("other", one)].repeat(4) {
                let reply = hub.client().with_token(token).send(&Request::get(path)).await.expect("an answer");
                assert_eq!(reply.status, 200, "{token}: {reply:?}");
            }
            assert!(reading(statement).await <= 2, "the others wait for their turns at {path}");
            other.batch_execute("commit").await.expect("no lock");
            for status in slow {
                // Whoever has waited in vain for its turn, or for the lock, is told so.
                let status = status.await.expect("no panic");
                assert!([200, 404, 429, 503].contains(&status), "{path}: {status}");
            }
            let status = ask("slow", path).await.expect("no panic");
            assert!([200, 404].contains(&status), "{path}: {status}");
        }
    });
}
