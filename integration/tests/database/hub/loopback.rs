//! Without tokens, every program of this machine is `admin`, and whoever it speaks for is nobody.

use http::{HeaderName, Method};
use integration::hub::{Client, Request};
use serde_json::{Value, json};

use crate::hub::limits::answered;
use crate::hub::world::{Hub, database, folder, grant, run};

const MERGE: &str = "content-type: application/merge-patch+json";
/// What shows that a request comes from elsewhere: pages of browsers, names that lead here, proxies.
const FOREIGN: [&str; 12] = [
    "host: evil.example",
    "host: 127.0.0.1.evil.example",
    "origin: http://evil.example",
    "origin: null",
    "sec-fetch-site: cross-site",
    "sec-fetch-site: same-site",
    "forwarded: for=192.0.2.1",
    "x-forwarded-for: 192.0.2.1",
    "x-forwarded-host: hub.example",
    "x-forwarded-proto: https",
    "x-real-ip: 192.0.2.1",
    "via: 1.1 proxy",
];

fn cluster(name: &str) -> String {
    json!({"kind": "Cluster", "name": name, "namespace": "foo", "kubeconfig": "k"}).to_string()
}

/// Every way to read and to write, as arguments of `curl` and a path.
fn requests() -> Vec<(&'static str, Vec<String>)> {
    let of = |args: &[&str]| args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>();
    let labels = r#"{"labels": {"a": "b"}}"#;
    vec![
        ("/v1/clusters", of(&[])),
        ("/v1/clusters?watch=true", of(&[])),
        ("/v1/clusters/foo/a", of(&[])),
        ("/v1/clusters/foo/none", of(&[])),
        ("/v1/clusters", of(&["--json", &cluster("b")])),
        ("/v1/apply", of(&["--json", &cluster("b")])),
        ("/v1/clusters/foo/a", of(&["-X", "PUT", "-H", "if-match: \"1\"", "--json", &cluster("a")])),
        ("/v1/clusters/foo/a", of(&["-X", "PATCH", "-H", MERGE, "-d", labels])),
        ("/v1/clusters/foo/a/status", of(&["-X", "PATCH", "-H", MERGE, "-d", r#"{"status": {"a": 1}}"#])),
        ("/v1/clusters/foo/a", of(&["-X", "DELETE"])),
        ("/v1/none", of(&[])),
    ]
}

#[test]
fn without_tokens_a_program_of_this_machine_may_do_everything_and_speaks_for_nobody_else() {
    run(async {
        let hub = Hub::start(&database("loopback").await, &[]).await;
        let created = hub.expect(201, "/v1/clusters", &["--json", &cluster("a")]).await.json();
        // Each request by one of them, and one request by each.
        let one = requests().remove(0);
        let all = requests()
            .into_iter()
            .zip(FOREIGN.iter().cycle())
            .chain(FOREIGN.iter().map(|foreign| (one.clone(), foreign)));
        for ((path, args), foreign) in all {
            let args: Vec<&str> = ["-H", foreign].into_iter().chain(args.iter().map(String::as_str)).collect();
            let answer = hub.expect(403, path, &args).await;
            assert_eq!(answer.json()["type"], "urn:towline:problem:forbidden", "{answer:?}");
            for allowed in ["access-control-allow-origin", "set-cookie"] {
                assert!(!answer.head.contains(allowed), "{answer:?}");
            }
        }
        let list = hub.expect(200, "/v1/clusters", &[]).await.json();
        assert_eq!(list["items"], json!([created]), "nothing was written");
        assert_eq!(answered(&hub, "/v1/clusters/{namespace}/{name}", 403).await, 5);
        // Programs of this machine by any of its names, and pages of this server.
        let port = hub.url.rsplit(':').next().expect("a port");
        let own = [
            format!("host: localhost:{port}"),
            format!("host: [::1]:{port}"),
            format!("origin: http://127.0.0.1:{port}"),
            "sec-fetch-site: same-origin".to_owned(),
            "sec-fetch-site: none".to_owned(),
        ];
        for (number, header) in own.iter().enumerate() {
            // The role `admin` is that of all of them.
            let status = json!({"status": {"seen": number}}).to_string();
            let args = ["-H", header, "-X", "PATCH", "-H", MERGE, "-d", &status];
            let changed = hub.expect(200, "/v1/clusters/foo/a/status", &args).await;
            assert_eq!(changed.json()["status"]["seen"], json!(number));
            hub.expect(200, "/v1/selectorsyncsets", &["-H", header]).await;
        }
    });
}

/// The admin server of a daemon without a token is one more of these.
#[test]
fn the_admin_server_takes_changes_from_programs_of_this_machine_and_from_nobody_that_they_speak_for() {
    run(async {
        let hub = Hub::start(&database("adminloopback").await, &[]).await;
        let address = hub.towline.admin_url();
        let address = address.strip_prefix("http://").and_then(|address| address.parse().ok()).expect("an address");
        let ask = async |header: Option<(&'static str, &str)>| {
            let request = Request::of(Method::POST, "/approve/hub");
            let request = match header {
                Some((name, value)) => request.header(HeaderName::from_static(name), value),
                None => request,
            };
            Client::to(address).send(&request).await.expect("an answer").status
        };
        // The job has nothing to approve.
        let own = ask(None).await;
        assert!(![401, 403, 421].contains(&own), "{own}");
        for foreign in &FOREIGN[2..] {
            let header = foreign.split_once(": ").expect("a header");
            assert_eq!(ask(Some(header)).await, 403, "{foreign}");
        }
        assert_eq!(ask(Some(("authorization", "Bearer guessed"))).await, 401);
        assert_eq!(ask(Some(("host", "evil.example"))).await, 421);
        let log = hub.towline.log().expect("a log");
        let told: Vec<&str> = log.lines().filter(|line| line.contains("a change was refused")).collect();
        assert!(matches!(told[..], [line] if line.contains("peer=127.0.0.1:")), "one a minute: {told:?}");
    });
}

/// A token shows who somebody is, wherever the request comes from.
#[test]
fn with_tokens_a_request_may_come_from_anywhere() {
    run(async {
        let file = folder("anywhere").join("tokens");
        std::fs::write(&file, grant("write", "*", "writer").await).expect("a file");
        let path = file.display().to_string();
        let hub = Hub::start(&database("anywhere").await, &[("TOWLINE__HUB__TOKENS_FILE", &path)]).await;
        let token = "authorization: Bearer writer";
        for foreign in [FOREIGN[0], FOREIGN[2], FOREIGN[7]] {
            let list: Value = hub.expect(200, "/v1/clusters", &["-H", foreign, "-H", token]).await.json();
            assert_eq!(list["items"], json!([]));
            hub.expect(401, "/v1/clusters", &["-H", foreign]).await;
        }
    });
}
