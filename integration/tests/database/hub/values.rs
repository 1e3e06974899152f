//! Numbers, sizes and characters of documents, as clients read them back from the real database.

use integration::hub::{Client, Request};
use integration::postgres::ADMIN;
use serde_json::{Value, json};

use crate::hub::world::{LIMIT, done, run, shared};

/// A cluster of a namespace.
struct Cluster {
    client: Client,
    namespace: &'static str,
    path: String,
}

impl Cluster {
    async fn create(namespace: &'static str) -> Self {
        let mut client = shared().await.0.client();
        let document = json!({"name": "c1", "namespace": namespace, "kubeconfig": "k"});
        done(&mut client, &Request::post("/v1/clusters", &document)).await;
        Self { client, namespace, path: format!("/v1/clusters/{namespace}/c1") }
    }

    /// Sends a status as it is written here.
    async fn send(&mut self, status: &str) -> (u16, Value) {
        let request = Request::of("PATCH".parse().expect("a method"), &format!("{}/status", self.path));
        let request = request.body("application/merge-patch+json", format!("{{\"status\": {status}}}"));
        let reply = self.client.send(&request).await.expect("an answer");
        (reply.status, reply.json().expect("JSON"))
    }

    async fn status(&mut self) -> Value {
        done(&mut self.client, &Request::get(&self.path)).await.json().expect("JSON")["status"].take()
    }

    async fn version(&mut self) -> u64 {
        done(&mut self.client, &Request::get(&self.path)).await.version().expect("a version")
    }

    /// The bytes of the largest document of the namespace, as PostgreSQL prints it.
    async fn largest(&self) -> i64 {
        let printed = "select max(octet_length(document::text))::int8 from towline_log where namespace = $1";
        let sql = shared().await.1.client(ADMIN).await.expect("a connection");
        sql.query_one(printed, &[&self.namespace]).await.expect("a row").get(0)
    }
}

/// A number counts with the digits that PostgreSQL prints.
#[test]
fn numbers_count_with_all_their_digits() {
    run(async {
        let mut cluster = Cluster::create("digits").await;
        // 301 digits each, and a comma with a blank.
        let (fits, too_large) = (13_000, 14_000);
        let many = |count: usize| format!("{{\"n\": [{}]}}", vec!["1e300"; count].join(","));
        assert_eq!(cluster.send(&many(fits)).await.0, 200);
        let found = cluster.status().await;
        assert_eq!(found["n"].as_array().map(Vec::len), Some(fits));
        assert!(found["n"].as_array().expect("numbers").iter().all(|number| number.as_f64() == Some(1e300)));
        let bytes = cluster.largest().await;
        assert!((3_900_000..=4 << 20).contains(&bytes), "{bytes}");
        // Its text is a fiftieth of what would be read back.
        for count in [too_large, 650_000] {
            let (code, problem) = cluster.send(&many(count)).await;
            assert_eq!((code, problem["type"].as_str()), (413, Some("urn:towline:problem:too-large")), "{count}");
        }
        assert_eq!(cluster.status().await["n"].as_array().map(Vec::len), Some(fits), "nothing was written");
    });
}

/// A document of 100 levels is read back everywhere, in a list and in a watch as well, which put it into something else.
#[test]
fn the_deepest_document_is_shown_and_watched_like_any_other() {
    run(async {
        let mut cluster = Cluster::create("deepest").await;
        // The document and its status are two of them.
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels - 2), "]".repeat(levels - 2));
        let of = |levels: usize| format!("{{\"a\": {}}}", nested(levels));
        let before = cluster.version().await;
        assert_eq!(cluster.send(&of(101)).await.0, 422);
        let (code, written) = cluster.send(&of(100)).await;
        assert_eq!(code, 200, "{written}");
        let expected: Value = serde_json::from_str(&of(100)).expect("JSON");
        assert_eq!((&written["status"], &cluster.status().await), (&expected, &expected));
        let list = done(&mut cluster.client, &Request::get("/v1/clusters?namespace=deepest")).await;
        let list = list.json().expect("JSON");
        assert_eq!(list["items"][0]["status"], expected);
        let path = format!("/v1/clusters?watch=true&namespace=deepest&resourceVersion={before}");
        let mut watch = cluster.client.watch(&path).await.expect("a watch");
        let event = tokio::time::timeout(LIMIT, watch.next())
            .await
            .expect("an event in time")
            .expect("an event")
            .expect("an event");
        assert_eq!((event.kind.as_str(), &event.object["status"]), ("MODIFIED", &expected));
    });
}

/// A document of 4 MiB is the largest.
#[test]
fn a_document_has_at_most_4_mib() {
    run(async {
        let mut cluster = Cluster::create("sizes").await;
        // The other fields take less than 1 KiB.
        let text = |bytes: usize| format!("{{\"text\": \"{}\"}}", "x".repeat(bytes));
        assert_eq!(cluster.send(&text((4 << 20) - 1_024)).await.0, 200);
        let bytes = cluster.largest().await;
        assert!(((4 << 20) - 1_024..=4 << 20).contains(&bytes), "{bytes}");
        assert_eq!(cluster.send(&text((4 << 20) - 64)).await.0, 413);
    });
}

/// 64-bit integers and doubles are read back equal, and larger integers become doubles.
#[test]
fn numbers_are_read_back_as_they_were_sent() {
    run(async {
        let mut cluster = Cluster::create("numbers").await;
        let kept = [
            "0",
            "-1",
            "9223372036854775807",
            "-9223372036854775808",
            "18446744073709551615",
            "9007199254740993",
            "0.1",
            "-0.5",
            "1e-7",
            "1.7976931348623157e308",
            "2.2250738585072014e-308",
            "5e-324",
            "123456.789",
            "3.141592653589793",
        ];
        assert_eq!(cluster.send(&format!("{{\"n\": [{}]}}", kept.join(","))).await.0, 200);
        let found = cluster.status().await;
        for (index, text) in kept.iter().enumerate() {
            let sent: Value = serde_json::from_str(text).expect("a number");
            let same = match (sent.as_i64(), sent.as_u64()) {
                (Some(integer), _) => found["n"][index].as_i64() == Some(integer),
                (None, Some(integer)) => found["n"][index].as_u64() == Some(integer),
                (None, None) => found["n"][index].as_f64() == sent.as_f64(),
            };
            assert!(same, "{text} became {}", found["n"][index]);
        }
        let larger = ["18446744073709551616", "-9223372036854775809", "123456789012345678901234567890"];
        assert_eq!(cluster.send(&format!("{{\"n\": [{}]}}", larger.join(","))).await.0, 200);
        let found = cluster.status().await;
        for (index, text) in larger.iter().enumerate() {
            assert_eq!(found["n"][index].as_f64(), text.parse().ok(), "{text}");
        }
        // The same again, in other words, is no change.
        let version = cluster.version().await;
        let other = "{\"n\": [1.8446744073709551616e19, -9223372036854775809, 1.2345678901234567890123456789e29]}";
        let (code, same) = cluster.send(other).await;
        assert_eq!((code, same["resourceVersion"].as_str()), (200, Some(version.to_string().as_str())));
    });
}

/// JSONB has no U+0000, neither in a string nor in a key.
#[test]
fn a_null_character_is_refused() {
    run(async {
        let mut cluster = Cluster::create("characters").await;
        for text in ["{\"a\": \"x\\u0000\"}", "{\"\\u0000\": 1}", "{\"a\": [{\"b\\u0000\": {}}]}"] {
            let (code, problem) = cluster.send(text).await;
            assert_eq!((code, problem["type"].as_str()), (422, Some("urn:towline:problem:invalid")), "{text}");
        }
        // Other control characters are fine.
        assert_eq!(cluster.send("{\"a\": \"x\\u0001\\u001f\\ud83d\\ude00\"}").await.0, 200);
        assert_eq!(cluster.status().await, json!({"a": "x\u{1}\u{1f}\u{1f600}"}));
    });
}
