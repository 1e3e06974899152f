//! A watch is a position, and no buffer: what many of them show does not stay in memory.

use futures::future::{join_all, try_join_all};
use integration::eventually;
use integration::hub::{Client, Request, Watch};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::hub::world::{Hub, LIMIT, database, done, run};

const WATCHES: usize = 150;
/// Changes that all watches see, before the memory is measured for the first time and after it.
const WARM_UP: u64 = 60;
const CHANGES: u64 = 150;
/// Clusters that are changed at the same time.
const WRITERS: u64 = 8;
/// The length of an annotation.
const TEXT: usize = 4_000;
/// What the process may have more in the end: as much again as the ring, and some. A queue of these events for each watch has twice
/// as much.
const MORE: u64 = 48 << 20;

/// What the process has in memory, in bytes.
async fn resident(hub: &Hub) -> u64 {
    let metrics = hub.towline.admin().metrics().await.expect("metrics");
    let sample = metrics.lines().find_map(|line| line.strip_prefix("process_resident_memory_bytes "));
    sample.and_then(|sample| sample.parse::<f64>().ok()).map(bytes).expect("the sample")
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count of bytes")]
fn bytes(sample: f64) -> u64 {
    sample as u64
}

fn path(writer: u64) -> String {
    format!("/v1/clusters/small/c{writer}")
}

/// Changes every writer's cluster in turn until each has the last number.
async fn change(hub: &Hub, numbers: std::ops::Range<u64>) {
    let writers = (0..WRITERS).map(|writer| {
        let (mut client, numbers) = (hub.client(), numbers.clone());
        async move {
            for number in numbers.filter(|number| number % WRITERS == writer) {
                let change = json!({"annotations": {"number": number.to_string(), "text": "x".repeat(TEXT)}});
                done(&mut client, &Request::merge_patch(&path(writer), &change)).await;
            }
        }
    });
    join_all(writers).await;
}

/// Fills the ring of 32 MiB with changes that no watch sees.
async fn fill(client: &mut Client) {
    for number in 0..34 {
        let status = json!({"status": {"number": number, "text": "x".repeat(1 << 20)}});
        done(client, &Request::merge_patch("/v1/clusters/large/c/status", &status)).await;
    }
}

/// The version in a line. The line is not read as JSON: there are many.
fn version(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once("\"resourceVersion\":\"")?;
    rest.split_once('"')?.0.parse().ok()
}

/// Reads a watch until it has shown this many changes, in the order of their versions.
async fn follow(watch: &mut Watch, changes: u64) -> Result<(), String> {
    let (mut seen, mut last) = (0, 0);
    while seen < changes {
        let line = timeout(LIMIT, watch.next_line()).await.map_err(|_| format!("{seen} of {changes}"))?;
        let line = line.map_err(|error| error.to_string())?.ok_or("the watch has ended")?;
        let line = std::str::from_utf8(line).map_err(|error| error.to_string())?;
        if line.starts_with("{\"type\":\"MODIFIED\"") {
            let version = version(line).filter(|version| *version > last).ok_or(line)?;
            (seen, last) = (seen + 1, version);
        } else if !line.starts_with("{\"type\":\"BOOKMARK\"") {
            return Err(line.to_owned());
        }
    }
    Ok(())
}

async fn follow_all(watches: &mut [Watch], changes: u64) {
    try_join_all(watches.iter_mut().map(|watch| follow(watch, changes))).await.expect("every change");
}

#[test]
fn the_memory_of_a_replica_is_flat_while_many_watches_see_many_changes() {
    run(async {
        let hub = Hub::start(&database("flat").await, &[]).await;
        let mut client = hub.client();
        let create = |namespace: &str, name: &str| {
            Request::post("/v1/clusters", &json!({"name": name, "namespace": namespace, "kubeconfig": "k"}))
        };
        done(&mut client, &create("large", "c")).await;
        let mut version = Value::Null;
        for writer in 0..WRITERS {
            let created = done(&mut client, &create("small", &format!("c{writer}"))).await;
            version = created.json().expect("JSON")["resourceVersion"].clone();
        }
        let version = version.as_str().expect("a version");
        let watch = format!("/v1/clusters?watch=true&namespace=small&resourceVersion={version}");
        let opened = (0..WATCHES).map(|_| client.watch(&watch));
        let mut watches = try_join_all(opened).await.expect("the watches");
        fill(&mut client).await;
        tokio::join!(change(&hub, 0..WARM_UP), follow_all(&mut watches, WARM_UP));
        let before = resident(&hub).await;
        tokio::join!(change(&hub, WARM_UP..WARM_UP + CHANGES), follow_all(&mut watches, CHANGES));
        fill(&mut client).await;
        // The allocator gives back what is free after a while.
        eventually("the memory to be as before", LIMIT, async || match resident(&hub).await {
            after if after <= before + MORE => Ok(()),
            after => Err(format!("{before} bytes before, {after} bytes after")),
        })
        .await
        .expect("flat memory");
        drop(watches);
        hub.serves(0).await;
    });
}
