//! Clusters whose kubeconfigs were written by users of an API: where connections go, and what is repeated of an answer.

use http::Uri;
use tokio::task::JoinHandle;

use super::*;
use crate::cluster::full_text;
use crate::http::Network;

fn denied(networks: &[&str]) -> DynamicClusters {
    let networks = networks.iter().map(|text| text.parse::<Network>().unwrap()).collect();
    DynamicClusters::of_many(WITHIN, DEFAULT_MAX_IN_FLIGHT, "many", networks)
}

fn at(clusters: &DynamicClusters, url: &str, proxy: Option<&str>) -> Arc<DynamicCluster> {
    let mut config = Config::new(url.parse().unwrap());
    config.root_cert = Some(Vec::new());
    config.proxy_url = proxy.map(|url| url.parse::<Uri>().unwrap());
    clusters.cluster("team-a", &"west".parse().unwrap(), Credentials { config, fingerprint: fingerprint(1) }).unwrap()
}

/// Accepts connections until one is answered, and says how many there were.
fn answering(listener: TcpListener, body: &'static str) -> JoinHandle<usize> {
    tokio::spawn(async move {
        let mut count = 0;
        while let Ok((mut stream, _)) = listener.accept().await {
            count += 1;
            request(&mut stream).await;
            reply(&mut stream, body).await;
        }
        count
    })
}

#[tokio::test]
async fn no_connection_is_made_into_a_denied_network_in_whatever_way_it_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let local = crate::http::LOCAL_NETWORKS;
    for (url, proxy, told) in [
        (format!("http://127.0.0.1:{port}"), None, "address 127.0.0.1 is in the denied network 127.0.0.0/8"),
        (
            format!("http://[::ffff:127.0.0.1]:{port}"),
            None,
            "address ::ffff:127.0.0.1 is in the denied network 127.0.0.0/8",
        ),
        (format!("http://0.0.0.0:{port}"), None, "address 0.0.0.0 is in the denied network 0.0.0.0/8"),
        (format!("http://localhost:{port}"), None, "all addresses of localhost are in denied networks"),
        // As the system's resolver reads numbers.
        (format!("http://127.1:{port}"), None, "all addresses of 127.1 are in denied networks"),
        (format!("http://2130706433:{port}"), None, "all addresses of 2130706433 are in denied networks"),
        ("http://192.0.2.1".to_owned(), Some("http"), "address 127.0.0.1 is in the denied network 127.0.0.0/8"),
        ("http://192.0.2.1".to_owned(), Some("socks5"), "SOCKS error: failed to create underlying connection"),
        ("http://169.254.169.254".to_owned(), Some("socks5"), "is in the denied network 169.254.0.0/16"),
    ] {
        let proxy = proxy.map(|scheme| format!("{scheme}://127.0.0.1:{port}"));
        let cluster = at(&denied(&local), &url, proxy.as_deref());
        let error = cluster.probe(WITHIN).await.unwrap_err();
        assert!(
            matches!(error, Error::Connect { .. }) && error.message().contains(told),
            "{url}: {}",
            full_text(&error)
        );
    }
    let accepted = futures::FutureExt::now_or_never(listener.accept());
    assert!(accepted.is_none(), "something was connected");
}

#[tokio::test]
async fn a_server_behind_a_proxy_is_denied_by_its_address_and_the_proxy_hears_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = listener.local_addr().unwrap();
    for scheme in ["http", "socks5"] {
        let cluster = at(&denied(&["192.0.2.0/24"]), "https://192.0.2.1", Some(&format!("{scheme}://{proxy}")));
        let error = cluster.probe(WITHIN).await.unwrap_err();
        assert!(error.message().contains("address 192.0.2.1 is in the denied network 192.0.2.0/24"), "{error}");
    }
    assert!(futures::FutureExt::now_or_never(listener.accept()).is_none(), "the proxy was connected");
}

#[tokio::test]
async fn where_nothing_is_denied_connections_go_everywhere() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = answering(listener, "{}");
    for host in ["127.0.0.1", "[::ffff:127.0.0.1]", "localhost"] {
        at(&denied(&[]), &format!("http://{host}:{port}"), None).probe(WITHIN).await.unwrap();
    }
    at(&denied(&["10.0.0.0/8"]), &format!("http://127.0.0.1:{port}"), None).probe(WITHIN).await.unwrap();
    serving.abort();
}

/// The error of a request for an object of a kind, answered with this.
async fn answered(kind: &Kind, answer: &[u8]) -> (Error, String) {
    let (server, clusters) = (Server::new().await, denied(&[]));
    let cluster = server.cluster(&clusters, 1);
    let key = ObjectKey::new("team", "site");
    let serving = async {
        let (mut stream, head) = server.accept().await;
        // It may close the connection before it has read everything.
        let _ = stream.write_all(answer).await;
        let _ = stream.shutdown().await;
        (head, stream)
    };
    let (found, (head, _stream)) = tokio::join!(cluster.read_metadata(kind, &key), serving);
    (found.unwrap_err(), head)
}

fn with_body(status: &str, headers: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}\r\n{body}", body.len()).into_bytes()
}

#[tokio::test]
async fn an_answer_is_neither_followed_elsewhere_nor_decompressed() {
    let kind = Kind::core("ConfigMap", "configmaps", true);
    let target = Server::new().await;
    let location = format!("location: {}api/v1\r\n", target.url);
    for status in ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"] {
        let (error, head) = answered(&kind, &with_body(status, &location, "{}")).await;
        assert_eq!(error.message(), format!("HTTP {}, not a Kubernetes API", status.get(..3).unwrap()));
        assert!(!head.to_lowercase().contains("accept-encoding"), "{head}");
    }
    assert!(futures::FutureExt::now_or_never(target.listener.accept()).is_none(), "a redirect was followed");
    // The client never decompresses a body, whatever its header says.
    let (error, _) = answered(&kind, &with_body("200 OK", "content-encoding: gzip\r\n", "\u{1f}canary")).await;
    assert_eq!(error.message(), "failed to decode the answer: HTTP 200, not a Kubernetes API (line 1, column 1)");
}

#[tokio::test]
async fn of_an_untrusted_answer_only_a_status_is_repeated_without_control_characters_and_not_at_length() {
    let kind = Kind::core("ConfigMap", "configmaps", true);
    for (status, body, told) in [
        ("502 Bad Gateway", "<h1>canary</h1>".to_owned(), "HTTP 502, not a Kubernetes API".to_owned()),
        ("401 Unauthorized", "canary".to_owned(), "HTTP 401, not a Kubernetes API".to_owned()),
        ("404 Not Found", r#"{"message": "canary"}"#.to_owned(), "HTTP 404, not a Kubernetes API".to_owned()),
        ("500 Error", r#"{"kind": "Status", "message": "a\n\u001b[31mb\u0000"}"#.to_owned(), "a  [31mb".to_owned()),
        (
            "500 Error",
            format!(r#"{{"kind": "Status", "message": "{}"}}"#, "ä".repeat(5_000)),
            format!("{} … {}", "ä".repeat(317), "ä".repeat(192)),
        ),
        (
            "500 Error",
            format!(r#"{{"kind": "Status", "message": "x{}"}}"#, "ä".repeat(5_000)),
            format!("x{} … {}", "ä".repeat(317), "ä".repeat(192)),
        ),
        (
            "200 OK",
            "\"canary\"".to_owned(),
            "failed to decode the answer: HTTP 200, not a Kubernetes API (line 1, column 8)".to_owned(),
        ),
    ] {
        let (error, _) = answered(&kind, &with_body(status, "", &body)).await;
        assert_eq!(error.message(), told, "{status}");
        assert!(!format!("{error} {error:?} {}", full_text(&error)).contains("canary"), "{error:?}");
    }
}

#[tokio::test]
async fn of_an_answer_about_a_secret_code_reason_and_fields_are_repeated() {
    let body = r#"{"kind": "Status", "reason": "Invalid", "message": "Invalid value: canary", "details": {"name": "site",
        "causes": [{"reason": "FieldValueInvalid", "message": "canary", "field": "data[.pull]"}, {"message": "canary", "field": "type"}]}}"#;
    let secrets = Kind::core("Secret", "secrets", true);
    let (error, _) = answered(&secrets, &with_body("422 Unprocessable", "", body)).await;
    assert_eq!(error.message(), "HTTP 422 Invalid: data[.pull], type");
    assert!(!format!("{error} {error:?} {}", full_text(&error)).contains("canary"), "{error:?}");
    let (error, _) =
        answered(&Kind::core("ConfigMap", "configmaps", true), &with_body("422 Unprocessable", "", body)).await;
    assert_eq!(error.message(), "Invalid value: canary");
}

#[tokio::test]
async fn an_object_that_does_not_fit_its_schema_is_no_fault_of_the_server() {
    let secrets = Kind::core("Secret", "secrets", true);
    for text in [
        "failed to create typed patch object (a; v1, Kind=Secret): .dat: field not declared",
        "failed to convert new object (canary)",
    ] {
        let body = format!(r#"{{"kind": "Status", "message": "{text}"}}"#);
        let (error, _) = answered(&secrets, &with_body("500 Error", "", &body)).await;
        assert!(matches!(error, Error::SchemaMismatch { .. }), "{error:?}");
        assert_eq!(error.message(), "HTTP 500");
    }
}

#[tokio::test]
async fn an_endless_answer_is_read_up_to_16_mib() {
    let kind = Kind::core("ConfigMap", "configmaps", true);
    let mut answer = b"HTTP/1.1 200 OK\r\n\r\n{\"a\":\"".to_vec();
    answer.resize((16 << 20) + 100, b'a');
    let (error, _) = answered(&kind, &answer).await;
    assert_eq!(error.message(), "failed to decode the answer: the answer has more than 16 MiB");
}

/// Two answers of 16 MiB take what there is for one owner.
#[tokio::test]
async fn large_answers_of_an_owner_s_untrusted_servers_share_a_limit_and_small_ones_and_others_do_not_need_it() {
    let clusters = denied(&[]);
    let kind = Kind::core("ConfigMap", "configmaps", true);
    let key = ObjectKey::new("team", "site");
    let mut body = format!(r#"{}}}, "a": "{}"#, SITE.trim_end_matches('}'), "a".repeat(16 << 20)).into_bytes();
    body.truncate((16 << 20) - 2);
    let (body, head) = (&body, format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", 16 << 20));
    let mut servers = Vec::new();
    for (number, owner) in [(1, "team-a"), (2, "team-a"), (3, "team-a"), (4, "team-b")] {
        let server = Server::new().await;
        let cluster = server.owned(owner, "hub", &clusters, number);
        servers.push((server, cluster));
    }
    let budget = || clusters.untrusted.as_ref().unwrap().replies.budget("team-a");
    // All but the end of it.
    let slowly = async |server: &Server| {
        let (mut stream, _) = server.accept().await;
        stream.write_all(head.as_bytes()).await.unwrap();
        let _ = stream.write_all(body).await;
        stream
    };
    let mut waiting = Vec::new();
    let mut streams = Vec::new();
    for (server, cluster) in &servers[..2] {
        let (cluster, kind, key) = (Arc::clone(cluster), kind.clone(), key.clone());
        waiting.push(tokio::spawn(async move { cluster.read_metadata(&kind, &key).await }));
        streams.push(slowly(server).await);
    }
    while !budget().is_full() {
        tokio::task::yield_now().await;
    }
    let (server, cluster) = &servers[2];
    let (refused, _stream) = tokio::join!(cluster.read_metadata(&kind, &key), slowly(server));
    let told = "failed to decode the answer: the answer has more than 256 KiB, for which there is no room now";
    assert_eq!(refused.unwrap_err().message(), told);
    let small = async {
        let (mut stream, _) = server.accept().await;
        reply(&mut stream, SITE).await;
    };
    let (read, ()) = tokio::join!(cluster.read_metadata(&kind, &key), small);
    assert!(read.is_ok(), "{read:?}");
    let whole = async |server: &Server| {
        let mut stream = slowly(server).await;
        stream.write_all(b"\"}").await.unwrap();
    };
    let (other, of_other) = &servers[3];
    let (read, ()) = tokio::join!(of_other.read_metadata(&kind, &key), whole(other));
    assert!(read.is_ok(), "another owner has as much: {read:?}");
    // What has been read is given back to the budget.
    streams.remove(0).write_all(b"\"}").await.unwrap();
    assert!(waiting.remove(0).await.unwrap().is_ok());
    let (read, ()) = tokio::join!(cluster.read_metadata(&kind, &key), whole(server));
    assert!(read.is_ok(), "{read:?}");
}

#[tokio::test]
async fn endless_pages_end_at_the_limit_and_a_token_stays_in_its_parameter() {
    let (server, clusters) = (Server::new().await, denied(&[]));
    let cluster = server.cluster(&clusters, 1);
    let kind = Kind::core("ConfigMap", "configmaps", true);
    let serving = async {
        let mut stream = server.listener.accept().await.unwrap().0;
        let mut heads = Vec::new();
        for _ in 0..4 {
            heads.push(request(&mut stream).await);
            reply(&mut stream, r#"{"metadata": {"continue": "a&limit=9 "}, "items": []}"#).await;
        }
        heads
    };
    let listing = cluster.list_metadata(&kind, "a=b", 3, |_: Value| {});
    let (listed, heads) = tokio::join!(listing, serving);
    assert_eq!(
        listed.unwrap_err().message(),
        "failed to decode the answer: the list of configmaps has more than 3 objects"
    );
    assert!(heads[0].starts_with("GET /api/v1/configmaps?limit=500&labelSelector=a%3Db HTTP"), "{}", heads[0]);
    let next = "GET /api/v1/configmaps?limit=500&labelSelector=a%3Db&continue=a%26limit%3D9%20 HTTP";
    assert!(heads[1..].iter().all(|head| head.starts_with(next)), "{heads:?}");
}

#[tokio::test]
async fn the_identity_is_read_at_once_and_an_answer_without_one_is_none() {
    let (server, clusters) = (Server::new().await, denied(&[]));
    let cluster = server.cluster(&clusters, 1);
    let serving = async {
        let mut stream = server.listener.accept().await.unwrap().0;
        for body in [r#"{"metadata": {"name": "kube-system", "uid": "u-7"}}"#, "{}"] {
            let head = request(&mut stream).await;
            assert!(head.starts_with("GET /api/v1/namespaces/kube-system HTTP"), "{head}");
            reply(&mut stream, body).await;
        }
    };
    let reading = async { (cluster.read_uid(WITHIN).await, cluster.read_uid(WITHIN).await) };
    let ((known, unknown), ()) = tokio::join!(reading, serving);
    assert_eq!(&*known.unwrap(), "u-7");
    assert_eq!(unknown.unwrap_err().message(), "failed to decode the answer: namespace kube-system has no UID");
}
