//! How many watches a replica serves, and what a client that does not read costs the others.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures::future::join_all;
use integration::eventually;
use integration::hub::Request;
use integration::postgres::ADMIN;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use crate::hub::limits::Raw;
use crate::hub::world::{Hub, LIMIT, database, done, folder, grant, run};

/// More than sockets hold whose client has a small buffer.
const LARGE: usize = 3_900_000;

impl Hub {
    /// The watches that it serves now, as its metrics have them.
    async fn watchers(&self) -> Result<usize, String> {
        let metrics = self.towline.admin().metrics().await.map_err(|error| error.to_string())?;
        let sample = metrics.lines().find_map(|line| line.strip_prefix("towline_hub_watchers "));
        sample.and_then(|sample| sample.parse().ok()).ok_or_else(|| "no sample".to_owned())
    }

    pub(crate) async fn serves(&self, watchers: usize) {
        eventually(format!("the number of watches to be {watchers}"), LIMIT, async || match self.watchers().await? {
            count if count == watchers => Ok(()),
            count => Err(count.to_string()),
        })
        .await
        .expect("the watches");
    }
}

/// After 30 s without progress a watch is ended. Until then the others get every event, and so does the one that comes back.
#[test]
fn a_watch_whose_client_does_not_read_is_ended_and_costs_the_others_nothing() {
    run(async {
        let database = database("stalled").await;
        let hub = Hub::start(&database, &[]).await;
        let body = json!({"namespace": "foo", "name": "c1", "kubeconfig": "foobar"}).to_string();
        let created = hub.expect(201, "/v1/clusters", &["-H", "Content-Type: application/json", "-d", &body]).await;
        let from = created.json()["resourceVersion"].as_str().expect("a version").to_owned();
        let path = format!("/v1/clusters?watch=true&resourceVersion={from}");
        let mut prompt = hub.watch(&path, &[]);
        let address = hub.url.strip_prefix("http://").expect("a URL").to_owned();
        let mut stalled = TcpStream::connect(&address).await.expect("a connection");
        let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n");
        stalled.write_all(request.as_bytes()).await.expect("it is sent");
        hub.serves(2).await;
        // More than the sockets hold: the kernel takes several MiB for a client that does not read.
        let directory = std::env::temp_dir().join(format!("towline-stalled-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let file = directory.join("status.json");
        let mut versions = Vec::new();
        for number in 0..12 {
            let status = json!({"status": {"number": number, "text": "x".repeat(2 * 1024 * 1024)}});
            std::fs::write(&file, status.to_string()).expect("a file");
            let data = format!("@{}", file.display());
            let media = "Content-Type: application/merge-patch+json";
            // Without it, `curl` would wait for an answer before it sends a large body.
            let args = ["-X", "PATCH", "-H", media, "-H", "Expect:", "--data-binary", &data];
            let changed = hub.expect(200, "/v1/clusters/foo/c1/status", &args).await;
            versions.push(changed.json()["resourceVersion"].as_str().expect("a version").to_owned());
            let (kind, object) = prompt.event().await;
            assert_eq!((kind.as_str(), &object["resourceVersion"]), ("MODIFIED", &json!(versions[versions.len() - 1])));
        }
        std::fs::remove_dir_all(&directory).expect("the directory");
        hub.serves(1).await;
        // Its client resumes anywhere, and gets what it had not read.
        let mut resumed = hub.watch(&path, &[]);
        for version in versions {
            let (kind, object) = resumed.event().await;
            assert_eq!((kind.as_str(), &object["resourceVersion"]), ("MODIFIED", &json!(version)));
        }
        let label = json!({"labels": {"last": "true"}}).to_string();
        let args = ["-X", "PATCH", "-H", "Content-Type: application/merge-patch+json", "-d", &label];
        hub.expect(200, "/v1/clusters/foo/c1", &args).await;
        for watch in [&mut prompt, &mut resumed] {
            assert_eq!(watch.event().await.1["labels"], json!({"last": "true"}));
        }
        drop(stalled);
    });
}

/// Its client reads too late what fits into the sockets, and then the end of an answer that is complete.
#[test]
fn a_watch_that_falls_behind_between_two_objects_has_a_clean_end_and_resumes_without_a_loss() {
    // Small enough to be written at once (16 KiB), and together more than the sockets hold.
    const LENGTH: usize = 15_000;
    const EACH: usize = 32;
    const PART: usize = 1_500_000;
    async fn take(from: &mut TcpStream, bytes: usize, rest: &mut Vec<u8>) {
        let mut some = vec![0; bytes];
        from.read_exact(&mut some).await.expect("a part");
        rest.extend_from_slice(&some);
    }
    run(async {
        let hub = Hub::start(&database("late").await, &[]).await;
        let mut client = hub.client();
        let create = |namespace: &str, name: &str| {
            Request::post("/v1/clusters", &json!({"namespace": namespace, "name": name, "kubeconfig": "foobar"}))
        };
        for writer in 0..8 {
            done(&mut client, &create("foo", &format!("c{writer}"))).await;
        }
        let from = done(&mut client, &create("large", "c")).await.version().expect("a version");
        let path = format!("/v1/clusters?watch=true&namespace=foo&resourceVersion={from}");
        let address: SocketAddr = hub.url.strip_prefix("http://").expect("a URL").parse().expect("an address");
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(4096).expect("a size");
        let mut late = socket.connect(address).await.expect("a connection");
        let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        late.write_all(head.as_bytes()).await.expect("it is sent");
        hub.serves(1).await;
        // The ring has 32 MiB. Of a client that takes nothing for 30 s the answer is cut off, and the kernel tells the hub of what it took only
        // once that is a third of what the sockets hold.
        let (mut versions, mut rest) = (Vec::new(), Vec::new());
        for (part, taken) in [0, 0, PART, PART, PART].into_iter().enumerate() {
            let writers = (0..8).map(|writer| {
                let mut client = hub.client();
                async move {
                    let mut versions = Vec::new();
                    for number in 0..EACH {
                        let status = json!({"status": {"number": [part, number], "text": "x".repeat(LENGTH)}});
                        let change = Request::merge_patch(&format!("/v1/clusters/foo/c{writer}/status"), &status);
                        versions.push(done(&mut client, &change).await.version().expect("a version"));
                    }
                    versions
                }
            });
            versions.extend(join_all(writers).await.concat());
            take(&mut late, taken, &mut rest).await;
        }
        versions.sort_unstable();
        for number in 0..34 {
            let status = json!({"status": {"number": number, "text": "x".repeat(1 << 20)}});
            done(&mut client, &Request::merge_patch("/v1/clusters/large/c/status", &status)).await;
            take(&mut late, PART / 6, &mut rest).await;
        }

        late.read_to_end(&mut rest).await.expect("the rest, and no error");
        let rest = String::from_utf8(rest).expect("text");
        assert!(rest.ends_with("}\n\r\n0\r\n\r\n"), "{:?}", &rest[rest.len() - 100..]);
        hub.serves(0).await;
        let of_line = |line: &str| line.split_once('"')?.0.parse::<u64>().ok();
        let seen: Vec<u64> = rest.split("\"resourceVersion\":\"").skip(1).filter_map(of_line).collect();
        let seen = versions.iter().take_while(|version| seen.binary_search(version).is_ok()).count();
        assert!(seen < versions.len(), "it fell behind");
        let last = versions[..seen].last().copied().unwrap_or(from);
        let path = format!("/v1/clusters?watch=true&namespace=foo&resourceVersion={last}");
        let mut resumed = client.watch(&path).await.expect("a watch");
        for version in &versions[seen..] {
            let mut event = resumed.next().await.expect("an event").expect("it goes on");
            while event.kind == "BOOKMARK" {
                event = resumed.next().await.expect("an event").expect("it goes on");
            }
            assert_eq!(event.object["resourceVersion"], version.to_string());
        }
    });
}

/// A client that takes a large object slowly keeps it in no memory: when it has left the ring, so has the watch.
#[test]
fn a_watch_ends_with_the_object_that_it_was_sending_and_resumes_without_a_loss() {
    run(async {
        let hub = Hub::start(&database("slowobject").await, &[]).await;
        let mut client = hub.client();
        let body = json!({"namespace": "foo", "name": "c1", "kubeconfig": "foobar"});
        let from = done(&mut client, &Request::post("/v1/clusters", &body)).await.version().expect("a version");
        let path = format!("/v1/clusters?watch=true&resourceVersion={from}");
        let mut prompt = client.watch(&path).await.expect("a watch");
        let address: SocketAddr = hub.url.strip_prefix("http://").expect("a URL").parse().expect("an address");
        let socket = TcpSocket::new_v4().expect("a socket");
        // So that the kernel holds little of the object for it.
        socket.set_recv_buffer_size(4096).expect("a size");
        let mut slow = socket.connect(address).await.expect("a connection");
        let head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        slow.write_all(head.as_bytes()).await.expect("it is sent");
        hub.serves(2).await;
        let (mut versions, mut taken, began) = (Vec::new(), 0, Instant::now());
        // The ring has 32 MiB, and the slow client is never silent for long.
        for number in 0..10 {
            let status = json!({"status": {"number": number, "text": "x".repeat(LARGE)}});
            let change = Request::merge_patch("/v1/clusters/foo/c1/status", &status);
            versions.push(done(&mut client, &change).await.version().expect("a version"));
            while prompt.next().await.expect("an event").expect("it goes on").kind == "BOOKMARK" {}
            let mut some = vec![0; 4096];
            // A machine that takes 30 s for a few of them has not seen it take anything, and cuts it off for that.
            if slow.read_exact(&mut some).await.is_err() {
                assert!(began.elapsed() > Duration::from_secs(25), "it is cut off at once");
                break;
            }
            taken += some.len();
        }
        let mut rest = Vec::new();
        // The connection is cut off.
        drop(slow.read_to_end(&mut rest).await);
        taken += rest.len();
        assert!(taken < LARGE, "{taken} bytes");
        hub.serves(1).await;
        let mut resumed = client.watch(&path).await.expect("a watch");
        for version in versions {
            let mut event = resumed.next().await.expect("an event").expect("it goes on");
            while event.kind == "BOOKMARK" {
                event = resumed.next().await.expect("an event").expect("it goes on");
            }
            assert_eq!(event.object["resourceVersion"], version.to_string());
        }
    });
}

/// A client that takes a large object slowly gets no more of it once its grant is gone.
#[test]
fn a_lost_grant_ends_a_watch_in_the_middle_of_an_object() {
    run(async {
        let file = folder("slowgrant").join("tokens");
        let (writer, reader) = (grant("admin", "*", "writer").await, grant("read", "*", "reader").await);
        std::fs::write(&file, [writer.as_str(), &reader].concat()).expect("a file");
        let path = file.display().to_string();
        let hub = Hub::start(&database("slowgrant").await, &[("TOWLINE__HUB__TOKENS_FILE", path.as_str())]).await;
        let mut client = hub.client().with_token("writer");
        let body = json!({"namespace": "foo", "name": "c1", "kubeconfig": "foobar"});
        done(&mut client, &Request::post("/v1/clusters", &body)).await;
        let status = json!({"status": {"text": "x".repeat(LARGE)}});
        done(&mut client, &Request::merge_patch("/v1/clusters/foo/c1/status", &status)).await;

        let address: SocketAddr = hub.url.strip_prefix("http://").expect("a URL").parse().expect("an address");
        let socket = TcpSocket::new_v4().expect("a socket");
        // So that the kernel holds little of the object for it.
        socket.set_recv_buffer_size(4096).expect("a size");
        let mut slow = socket.connect(address).await.expect("a connection");
        slow.write_all(watch_by(Some("reader")).as_bytes()).await.expect("it is sent");
        let mut some = vec![0; 16 * 1024];
        slow.read_exact(&mut some).await.expect("its beginning");
        hub.serves(1).await;
        std::fs::write(&file, writer).expect("a file");
        eventually("the grant to be gone", LIMIT, async || {
            let reply = hub.client().with_token("reader").send(&Request::get("/v1/clusters/foo/c1")).await;
            let status = reply.map_err(|error| error.to_string())?.status;
            if status == 401 { Ok(()) } else { Err(status.to_string()) }
        })
        .await
        .expect("no grant");
        let mut rest = Vec::new();
        // The connection is cut off, or ends.
        drop(slow.read_to_end(&mut rest).await);
        let taken = some.len() + rest.len();
        assert!(taken < LARGE, "{taken} bytes");
        hub.serves(0).await;
        let answer = hub.curl("/v1/clusters/foo/c1", &["-H", "authorization: Bearer writer"]).await;
        assert_eq!(answer.status, 200);
        assert!(answer.body.len() > LARGE, "a prompt client has all of it");
    });
}

/// A watch whose time is over before its first statement has been answered ends as any other does: its client begins again.
#[test]
fn a_watch_whose_time_ends_before_it_could_begin_ends_without_events() {
    run(async {
        let database = database("patient").await;
        let hub = Hub::start(&database, &[]).await;
        let body = json!({"namespace": "foo", "name": "c1", "kubeconfig": "foobar"}).to_string();
        hub.expect(201, "/v1/clusters", &["--json", &body]).await;
        let mut sql = database.client(ADMIN).await.expect("a connection");
        let locked = sql.transaction().await.expect("a transaction");
        locked.batch_execute("lock table towline_documents in access exclusive mode").await.expect("the lock");
        let path = "/v1/clusters?watch=true&timeoutSeconds=1";
        for (accept, media) in [("*/*", "application/x-ndjson"), ("text/event-stream", "text/event-stream")] {
            let answer = hub.expect(200, path, &["-H", &format!("Accept: {accept}")]).await;
            assert_eq!(answer.body, "");
            assert!(answer.head.contains(&format!("content-type: {media}")), "{answer:?}");
        }
        locked.rollback().await.expect("the lock is released");
        hub.serves(0).await;
        let answer = hub.expect(200, path, &[]).await;
        assert!(answer.body.contains("ADDED") && answer.body.contains("initial-events-end"), "{answer:?}");
    });
}

/// The head of a watch by this token.
fn watch_by(token: Option<&str>) -> String {
    let token = token.map_or_else(String::new, |token| format!("authorization: Bearer {token}\r\n"));
    format!("GET /v1/clusters?watch=true HTTP/1.1\r\nhost: localhost\r\n{token}\r\n")
}

/// Opens a watch, which must be served.
async fn opened(hub: &Hub, token: Option<&str>) -> Raw {
    let mut client = Raw::sending(hub, &watch_by(token)).await;
    assert_eq!(client.status().await, Some(200));
    client
}

/// Asks for a watch that is one too many, and returns the title of the problem.
async fn refused(hub: &Hub, token: Option<&str>) -> String {
    let token = token.map(|token| format!("authorization: Bearer {token}"));
    let args: Vec<&str> = token.iter().flat_map(|token| ["-H", token.as_str()]).collect();
    let answer = hub.expect(429, "/v1/clusters?watch=true", &args).await;
    assert!(answer.head.contains("retry-after: 1"), "{answer:?}");
    assert!(answer.head.contains("content-type: application/problem+json"), "{answer:?}");
    let problem = answer.json();
    assert_eq!((&problem["type"], &problem["status"]), (&json!("urn:towline:problem:busy"), &json!(429)));
    problem["title"].as_str().expect("a title").to_owned()
}

/// Asks for a watch until it is served.
async fn let_in(hub: &Hub, token: Option<&str>) -> Raw {
    eventually("another watch to be let in", LIMIT, async || {
        let mut client = Raw::sending(hub, &watch_by(token)).await;
        match client.status().await {
            Some(200) => Ok(client),
            other => Err(format!("{other:?}")),
        }
    })
    .await
    .expect("a watch")
}

#[test]
fn one_watch_more_than_max_watchers_is_refused_until_another_one_ends() {
    run(async {
        let hub = Hub::start(&database("mostwatches").await, &[("TOWLINE__HUB__MAX_WATCHERS", "3")]).await;
        let mut open = Vec::new();
        for _ in 0..3 {
            open.push(opened(&hub, None).await);
        }
        hub.serves(3).await;
        for _ in 0..3 {
            assert_eq!(refused(&hub, None).await, "this replica serves 3 watches already");
        }
        hub.expect(200, "/v1/clusters", &[]).await;
        assert_eq!(hub.watchers().await, Ok(3), "those that are there go on");
        open.pop();
        open.push(let_in(&hub, None).await);
        refused(&hub, None).await;
        drop(open);
        hub.serves(0).await;
        let again = [let_in(&hub, None).await, let_in(&hub, None).await, let_in(&hub, None).await];
        hub.serves(again.len()).await;
    });
}

#[test]
fn one_token_holds_at_most_half_of_max_watchers_and_an_eighth_is_left_to_administrators() {
    run(async {
        let file = folder("halfwatches").join("tokens");
        let grants = [("read", "one"), ("read", "two"), ("read", "three"), ("admin", "operator")];
        let grants = grants.map(|(role, token)| grant(role, "*", token));
        std::fs::write(&file, futures::future::join_all(grants).await.concat()).expect("a file");
        let path = file.display().to_string();
        let env = [("TOWLINE__HUB__MAX_WATCHERS", "8"), ("TOWLINE__HUB__TOKENS_FILE", path.as_str())];
        let hub = Hub::start(&database("halfwatches").await, &env).await;
        let (one, two) = (Some("one"), Some("two"));
        let mut of_one = Vec::new();
        for _ in 0..4 {
            of_one.push(opened(&hub, one).await);
        }
        for _ in 0..5 {
            assert_eq!(refused(&hub, one).await, "the token has 4 watches already", "it takes no slot of others");
        }
        let of_two = [opened(&hub, two).await, opened(&hub, two).await, opened(&hub, two).await];
        for other in [two, Some("three")] {
            assert_eq!(refused(&hub, other).await, "this replica serves 7 watches already");
        }
        let of_operator = opened(&hub, Some("operator")).await;
        assert_eq!(refused(&hub, Some("operator")).await, "this replica serves 8 watches already");
        of_one.pop();
        of_one.push(let_in(&hub, one).await);
        drop((of_one, of_two, of_operator));
        hub.serves(0).await;
    });
}

/// A watch that can't go on ends with a line that says so, in the form of its stream. A row of the log that nobody can read ends those
/// that it may concern, and no other one.
#[test]
fn a_row_that_can_not_be_read_ends_the_watches_of_its_place_with_an_error_line() {
    run(async {
        let database = database("unreadable").await;
        let hub = Hub::start(&database, &[]).await;
        let create = async |namespace: &str, name: &str| {
            let body = json!({"namespace": namespace, "name": name, "kubeconfig": "k"}).to_string();
            hub.expect(201, "/v1/clusters", &["--json", &body]).await.json()
        };
        let version = create("foo", "a").await["resourceVersion"].as_str().expect("a version").to_owned();
        let path = |parameters: &str| format!("/v1/clusters?watch=true&resourceVersion={version}{parameters}");
        let mut lines = hub.watch(&path("&namespace=foo"), &[]);
        let mut events = hub.watch(&path("&labelSelector=a%3Db"), &["-H", "accept: text/event-stream"]);
        let mut others =
            [hub.watch(&path("&namespace=bar"), &[]), hub.watch(&path("&fieldSelector=metadata.name%3Dc"), &[])];
        hub.serves(4).await;
        let row = "insert into towline_log values (nextval('towline_version'), now(), gen_random_uuid(), 'clusters', \
             gen_random_uuid(), 'foo', 'b', '{}', null, '{}'); notify towline";
        database.client(ADMIN).await.expect("a connection").batch_execute(row).await.expect("a row");
        let gone = json!({"type": "ERROR", "object":
            {"type": "urn:towline:problem:gone", "title": "the version is no longer available", "status": 410}});
        for (watch, begin) in [(&mut lines, ""), (&mut events, "data: ")] {
            let line = loop {
                let line = watch.line().await.expect("a line");
                if !line.contains("BOOKMARK") && !line.is_empty() && !line.starts_with("id: ") {
                    break line;
                }
            };
            let json = line.strip_prefix(begin).unwrap_or_else(|| panic!("{line}"));
            assert_eq!(serde_json::from_str::<serde_json::Value>(json).expect("JSON"), gone);
            while let Some(line) = watch.line().await {
                assert_eq!(line, "", "it ends in order");
            }
        }
        let created = create("bar", "c").await;
        for watch in &mut others {
            assert_eq!(watch.event().await, ("ADDED".to_owned(), created.clone()));
        }
        let report = hub.towline.admin().section("hub").await.expect("a report");
        assert_eq!(report["unreadable_rows"], json!(1), "{report}");
        hub.serves(2).await;
    });
}
