//! What a client that does not read costs the others (T6).

use integration::eventually;
use integration::postgres::ADMIN;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::world::{Hub, LIMIT, database, run};

impl Hub {
    /// The watches that it serves now, as its metrics have them.
    async fn watchers(&self) -> Result<usize, String> {
        let metrics = self.towline.admin().metrics().await.map_err(|error| error.to_string())?;
        let sample = metrics.lines().find_map(|line| line.strip_prefix("towline_hub_watchers "));
        sample.and_then(|sample| sample.parse().ok()).ok_or_else(|| "no sample".to_owned())
    }

    async fn serves(&self, watchers: usize) {
        eventually(format!("the number of watches to be {watchers}"), LIMIT, async || match self.watchers().await? {
            count if count == watchers => Ok(()),
            count => Err(count.to_string()),
        })
        .await
        .expect("the watches");
    }
}

/// T6: after 30 s without progress a watch is ended. Until then the others get every event, and so does the one that comes back.
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
