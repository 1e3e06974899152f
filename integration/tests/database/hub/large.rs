//! Only a few large documents are in memory at a time, and small ones are served beside them.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use integration::eventually;
use integration::hub::Request;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};

use crate::hub::limits::{Raw, answered, post};
use crate::hub::world::{Hub, LIMIT, database, done, folder, grant, run};

/// Bytes of the text in the large document.
const LARGE: usize = 4_000_000;
/// Large answers to reads that clients have not taken, at most.
const MOST_ANSWERS: usize = 32;
/// Requests with large bodies or documents, at most: until their clients have taken the answers.
const MOST_CHANGES: usize = 8;

/// A hub with a large document and a small one.
async fn hub(name: &str) -> Hub {
    let hub = Hub::start(&database(name).await, &[]).await;
    let mut client = hub.client();
    for (name, length) in [("large", LARGE), ("small", 10)] {
        let cluster = json!({"name": name, "namespace": "foo", "kubeconfig": "k"});
        done(&mut client, &Request::post("/v1/clusters", &cluster)).await;
        let status = json!({"status": {"text": "x".repeat(length)}});
        done(&mut client, &Request::merge_patch(&format!("/v1/clusters/foo/{name}/status"), &status)).await;
    }
    hub
}

/// A client that sends a request and takes nothing of its answer: the kernel has little room for it.
async fn stalled(hub: &Hub, request: &str) -> TcpStream {
    let address: SocketAddr = hub.url.trim_start_matches("http://").parse().expect("an address");
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4096).expect("a small buffer");
    let mut client = socket.connect(address).await.expect("a connection");
    client.write_all(request.as_bytes()).await.expect("the request is sent");
    client
}

/// Sends a request so often by clients that take nothing of the answers, and again wherever the database was too slow. Returns the clients,
/// how many requests were carried out, and how many were too many.
async fn outcomes(hub: &Hub, route: &str, request: &str, all: usize) -> (Vec<TcpStream>, usize, usize) {
    let of = async |code: u16| usize::try_from(answered(hub, route, code).await).expect("a number");
    let mut clients = Vec::new();
    loop {
        let missing = all + of(503).await - clients.len();
        if missing == 0 {
            return (clients, of(200).await, of(429).await);
        }
        for _ in 0..missing {
            clients.push(stalled(hub, request).await);
        }
        eventually("all requests to be carried out or refused", LIMIT, async || {
            let ended = [of(200).await, of(429).await, of(503).await];
            if ended.iter().sum::<usize>() == clients.len() { Ok(()) } else { Err(format!("{ended:?}")) }
        })
        .await
        .expect("outcomes");
    }
}

/// Clients that do not read their answers are cut off after 30 s, and until then keep nobody from changing small documents.
#[test]
fn changes_of_large_documents_have_a_place_until_their_clients_have_the_answer() {
    const ALL: usize = 12;
    run(async {
        let hub = hub("largepatches").await;
        let body = r#"{"labels": {"a": "b"}}"#;
        let patch = format!(
            "PATCH /v1/clusters/foo/large?dryRun=true HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/merge-patch+json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        let route = "/v1/clusters/{namespace}/{name}";
        let begun = Instant::now();
        let (clients, carried_out, refused) = outcomes(&hub, route, &patch, ALL).await;
        // After 30 s the first clients are cut off.
        let is_slow = begun.elapsed() > Duration::from_secs(25);
        assert!(is_slow || (carried_out, refused) == (MOST_CHANGES, ALL - MOST_CHANGES), "{carried_out}, {refused}");
        let mut client = hub.client();
        let labels = json!({"labels": {"a": "b"}});
        done(&mut client, &Request::merge_patch("/v1/clusters/foo/small", &labels)).await;
        drop(clients);
        eventually("a large document to be changed again", LIMIT, async || {
            let reply = client.send(&Request::merge_patch("/v1/clusters/foo/large", &labels)).await.expect("an answer");
            if reply.status == 200 { Ok(()) } else { Err(reply.status.to_string()) }
        })
        .await
        .expect("200");
    });
}

/// Twice as many as there are places: each has its turn.
#[test]
fn large_patches_of_one_token_at_once_are_all_made() {
    const ALL: usize = 2 * MOST_CHANGES;
    // Three times what is large. The second half waits 10 s at most until the first one is made, also on a slow machine.
    const LARGE: usize = 100_000;
    run(async {
        let token = "0123456789abcdef0123456789abcdef";
        let folder = folder("largetoken");
        let file = folder.join("tokens");
        std::fs::write(&file, grant("admin", "*", token).await).expect("a file");
        let env = [("TOWLINE__HUB__TOKENS_FILE", file.to_str().expect("a path"))];
        let hub = Hub::start(&database("largetoken").await, &env).await;
        let client = || hub.client().with_token(token);
        let path = |number: usize| format!("/v1/clusters/foo/c{number}/status");
        let status = |letter: &str| json!({"status": {"text": letter.repeat(LARGE)}});
        for number in 0..ALL {
            let cluster = json!({"name": format!("c{number}"), "namespace": "foo", "kubeconfig": "k"});
            done(&mut client(), &Request::post("/v1/clusters", &cluster)).await;
            done(&mut client(), &Request::merge_patch(&path(number), &status("x"))).await;
        }
        let patched = status("y");
        let changes = (0..ALL).map(|number| {
            let (mut client, request) = (client(), Request::merge_patch(&path(number), &patched));
            async move {
                // The database may be too slow for all at once, which is no lack of room.
                loop {
                    let status = client.send(&request).await.expect("an answer").status;
                    if status != 503 {
                        return status;
                    }
                }
            }
        });
        assert_eq!(futures::future::join_all(changes).await, [200; ALL]);
    });
}

/// A hub with tokens for a namespace each, of the same names, and one for everything.
async fn hub_of_tenants(name: &str, tenants: &[&str]) -> Hub {
    let file = folder(name).join("tokens");
    let mut grants = vec![grant("admin", "*", "administrator").await];
    for tenant in tenants {
        grants.push(grant("write", tenant, tenant).await);
    }
    std::fs::write(&file, grants.concat()).expect("a file");
    Hub::start(&database(name).await, &[("TOWLINE__HUB__TOKENS_FILE", file.to_str().expect("a path"))]).await
}

/// Creates a large cluster of a namespace as this one, and returns the status.
async fn created(hub: &Hub, token: &str, namespace: &str, name: &str) -> u16 {
    let cluster = json!({"name": name, "namespace": namespace, "kubeconfig": "k".repeat(1 << 20)});
    let mut client = hub.client().with_token(token);
    client.send(&Request::post("/v1/clusters", &cluster)).await.expect("an answer").status
}

/// A large body that begins and does not end, of the one with this token.
async fn dripping(hub: &Hub, token: &str) -> Raw {
    // Just large: the hub reads all of it before it waits for a slot.
    let head = post(5 << 20).replace("\r\n\r\n", &format!("\r\nauthorization: Bearer {token}\r\n\r\n"));
    Raw::sending(hub, &format!("{head}{}", " ".repeat((32 << 10) + 1))).await
}

#[test]
fn a_token_whose_large_bodies_drip_keeps_no_other_large_one_out() {
    run(async {
        let hub = hub_of_tenants("drips", &["slow", "other", "third"]).await;
        let of = async |code: u16| usize::try_from(answered(&hub, "/v1/clusters", code).await).expect("a number");
        let refused = async |least: usize| {
            eventually(format!("{least} large bodies to find no slot"), LIMIT, async || {
                // After 30 s, those that have one end as too slow.
                let ended = of(429).await + of(400).await;
                if ended >= least { Ok(()) } else { Err(ended.to_string()) }
            })
            .await
            .expect("refusals");
        };
        let mut clients = Vec::new();
        for _ in 0..=MOST_CHANGES {
            clients.push(dripping(&hub, "slow").await);
        }
        refused(1).await;
        assert_eq!(created(&hub, "other", "other", "c1").await, 201);
        refused(MOST_CHANGES / 2 + 1).await;
        assert_eq!(created(&hub, "other", "other", "c2").await, 201);
        // Two tokens have all but what is left to administrators.
        for token in ["slow", "slow", "slow", "slow", "other", "other", "other", "other"] {
            clients.push(dripping(&hub, token).await);
        }
        refused(MOST_CHANGES / 2 + 2).await;
        assert_eq!(created(&hub, "administrator", "third", "c3").await, 201);
    });
}

#[test]
fn a_token_that_takes_no_large_answer_keeps_nobody_from_theirs() {
    const ALL: usize = 40;
    run(async {
        let hub = hub_of_tenants("untaken", &["slow", "other", "third"]).await;
        for tenant in ["slow", "other", "third"] {
            let cluster = json!({"name": "c", "namespace": tenant, "kubeconfig": "k"});
            done(&mut hub.client().with_token(tenant), &Request::post("/v1/clusters", &cluster)).await;
            let status = json!({"status": {"text": "x".repeat(LARGE)}});
            let path = format!("/v1/clusters/{tenant}/c/status");
            done(&mut hub.client().with_token("administrator"), &Request::merge_patch(&path, &status)).await;
        }
        let small = json!({"name": "small", "namespace": "third", "kubeconfig": "k"});
        done(&mut hub.client().with_token("third"), &Request::post("/v1/clusters", &small)).await;
        let get = |token: &str| {
            format!("GET /v1/clusters/{token}/c HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n")
        };
        let administrator = get("slow").replace("Bearer slow", "Bearer administrator");
        let read = async |token: &str, of: &str| {
            let mut client = hub.client().with_token(token);
            client.send(&Request::get(&format!("/v1/clusters/{of}/c"))).await.expect("an answer").status
        };
        let route = "/v1/clusters/{namespace}/{name}";
        let begun = Instant::now();
        let (mut clients, carried_out, refused) = outcomes(&hub, route, &get("slow"), ALL).await;
        let is_slow = || begun.elapsed() > Duration::from_secs(25);
        let half = MOST_ANSWERS / 2;
        assert!(is_slow() || (carried_out, refused) == (half, ALL - half), "{carried_out}, {refused}");
        assert_eq!(read("other", "other").await, 200);
        for _ in 0..half {
            clients.push(stalled(&hub, &get("other")).await);
        }
        // Two tokens have all but what is left to administrators.
        let left = MOST_ANSWERS / 8;
        let expected = ALL - half + left;
        eventually("the other to have what is left", LIMIT, async || {
            let found = usize::try_from(answered(&hub, route, 429).await).expect("a number");
            if found >= expected || is_slow() { Ok(()) } else { Err(format!("{found} of {expected}")) }
        })
        .await
        .expect("refusals");
        assert_eq!(read("administrator", "third").await, 200);
        let third = read("third", "third").await;
        assert!(third == 429 || is_slow(), "{third}");
        // An administrator has all the others, and one more is refused until clients have what they asked for.
        for _ in 0..left {
            clients.push(stalled(&hub, &administrator).await);
        }
        eventually("all places to be taken", LIMIT, async || match read("administrator", "third").await {
            429 => Ok(()),
            _ if is_slow() => Ok(()),
            other => Err(other.to_string()),
        })
        .await
        .expect("429");
        // Small ones are served beside them.
        done(&mut hub.client().with_token("third"), &Request::get("/v1/clusters/third/small")).await;
        drop(clients);
        eventually("the large document to be read again", LIMIT, async || match read("third", "third").await {
            200 => Ok(()),
            other => Err(other.to_string()),
        })
        .await
        .expect("200");
    });
}
