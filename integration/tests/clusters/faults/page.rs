//! The page of a daemon: its files, and what it asks for.

use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use integration::eventually;
use serde_json::{Value, json};
use tokio::net::TcpStream;

use crate::faults::world::{LIMIT, Lane, run, start};

struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    text: String,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap()
    }
}

/// As a browser asks: with a `Host`, and perhaps other headers.
async fn ask(url: &str, method: Method, path: &str, headers: &[(&str, &str)]) -> Reply {
    let address = url.strip_prefix("http://").unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut request = Request::builder().method(method).uri(path);
    if headers.iter().all(|(name, _)| *name != "host") {
        request = request.header("host", address);
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = sender.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await.unwrap();
    let (status, headers) = (response.status(), response.headers().clone());
    let body = response.into_body().collect().await.unwrap().to_bytes();
    connection.abort();
    Reply { status, headers, text: String::from_utf8(body.to_vec()).unwrap() }
}

#[test]
fn the_page_gets_all_objects_in_pages_and_changes_nothing_without_the_token() {
    run(async {
        let lane = Lane::shared("page", "databases").await;
        lane.make_namespace("team").await;
        lane.order_many("team", 5).await;
        let token = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("page-token");
        std::fs::write(&token, "sesame").unwrap();
        let daemon = format!("[daemon]\nadmin_token_file = {token:?}\n");
        let towline = start(&(daemon + &lane.clusters() + &lane.section("lane", ""))).await;
        let url = towline.admin_url();
        let get = async |path: &str| ask(&url, Method::GET, path, &[]).await;

        for (file, media) in [("", "text/html"), ("daemon.js", "text/javascript"), ("lit-html.js", "text/javascript")] {
            let reply = get(&format!("/ui/{file}")).await;
            assert_eq!(reply.status, 200, "{file}");
            let header = |name: &str| reply.headers[name].to_str().unwrap().to_owned();
            assert!(header("content-type").starts_with(media), "{file}");
            let policy = header("content-security-policy");
            assert!(policy.starts_with("default-src 'none'; script-src 'self'"), "{policy}");
            assert!(policy.contains("require-trusted-types-for 'script'") && !policy.contains("unsafe"), "{policy}");
            let known = header("etag");
            let again = ask(&url, Method::GET, &format!("/ui/{file}"), &[("if-none-match", &known)]).await;
            assert_eq!((again.status.as_u16(), again.text.as_str()), (304, ""), "{file}");
        }
        for path in ["/ui/", "/objects/lane", "/history", "/history/lane", "/status?latest=true"] {
            let foreign = ask(&url, Method::GET, path, &[("host", "evil.example")]).await;
            assert_eq!(foreign.status, 421, "{path}");
        }

        // In step, and not listed by /status: the page of objects has them all.
        let key = |number: usize| format!("{}/o{number}", lane.namespace("team"));
        let found = eventually("all objects on a page", LIMIT, async || {
            let found = get("/objects/lane?sort=key&limit=2&offset=3").await.json();
            if found["matching"] == 5 { Ok(found) } else { Err(found.to_string()) }
        })
        .await
        .unwrap();
        let keys: Vec<&str> =
            found["objects"].as_array().unwrap().iter().map(|object| object["key"].as_str().unwrap()).collect();
        assert_eq!((keys, &found["listed"]), (vec![key(3).as_str(), key(4).as_str()], &json!(5)));
        let one = eventually("the object that is selected", LIMIT, async || {
            let found = get("/objects/lane?state=in_step&text=o1").await.json();
            if found["matching"] == 1 { Ok(found) } else { Err(found.to_string()) }
        })
        .await
        .unwrap();
        assert_eq!(one["objects"][0]["key"], key(1));
        assert_eq!(get("/objects/lane?limit=201").await.status, 400);
        assert_eq!(get("/objects/nosuch").await.status, 404);
        let sampled = eventually("a first sample of the last hour", LIMIT, async || {
            let history = get("/history/lane").await.json();
            if history["section"]["in_step"][0].is_number() { Ok(history) } else { Err(history.to_string()) }
        })
        .await
        .unwrap();
        assert_eq!((&sampled["step_seconds"], &sampled["window_seconds"]), (&json!(15), &json!(3600)));
        let of_clusters = get("/history").await.json();
        assert_eq!(of_clusters["clusters"]["edge"]["requests"][0], Value::Null, "{of_clusters}");

        let approve = async |headers: &[(&str, &str)]| {
            let reply = ask(&url, Method::POST, "/approve/lane", headers).await;
            (reply.status.as_u16(), reply.json()["error"].as_str().unwrap().to_owned())
        };
        let needs = "changes need the admin token: --token-file FILE".to_owned();
        assert_eq!(approve(&[("origin", &url)]).await, (401, needs));
        assert_eq!(approve(&[("authorization", "Bearer open")]).await, (401, "wrong admin token".to_owned()));
        assert_eq!(approve(&[("authorization", "Bearer sesame")]).await, (409, "nothing is held".to_owned()));
        // What is held has a digest, also if it is nothing, and an approval of something else is refused.
        let digest = get("/held/lane").await.json()["digest"].as_str().unwrap().to_owned();
        let changed = "what is held has changed since it was listed: list it again";
        for (digest, error) in [(digest.as_str(), "nothing is held"), ("0", changed)] {
            let reply = ask(
                &url,
                Method::POST,
                &format!("/approve/lane?digest={digest}"),
                &[("authorization", "Bearer sesame")],
            )
            .await;
            assert_eq!((reply.status.as_u16(), &reply.json()["error"]), (409, &json!(error)));
        }

        let without =
            start(&("[daemon]\nui = false\n".to_owned() + &lane.clusters() + &lane.section("other", ""))).await;
        for (path, status) in [("/ui/", 404), ("/ui/page.js", 404), ("/history", 404), ("/objects/other", 200)] {
            assert_eq!(ask(&without.admin_url(), Method::GET, path, &[]).await.status, status, "{path}");
        }
    });
}
