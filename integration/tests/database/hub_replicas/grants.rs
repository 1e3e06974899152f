//! Tokens that are taken away.

use std::path::Path;

use integration::eventually;
use integration::hub::{Replica, Request, Watch};
use serde_json::json;
use tokio::time::timeout;

use crate::hub_replicas::world::{LIMIT, database, replicas, run};

/// A line of `tokens_file`. The digests are those that `sha256sum` prints.
async fn grant(role: &str, namespaces: &str, token: &str) -> String {
    let script = format!("printf %s {token} | sha256sum | cut -d' ' -f1");
    let output = tokio::process::Command::new("sh").args(["-c", &script]).output().await.expect("a shell");
    format!("{token} {role} {namespaces} {}", String::from_utf8(output.stdout).expect("a digest"))
}

async fn watch(replica: &Replica, token: &str, parameters: &str) -> Watch {
    let path = format!("/v1/secrets?watch=true{parameters}");
    let mut watch = replica.client().with_token(token).watch(&path).await.expect("a watch");
    let state = timeout(LIMIT, watch.next()).await.expect("a bookmark in time").expect("a bookmark");
    assert_eq!(state.expect("a bookmark").kind, "BOOKMARK");
    watch
}

/// Reads until the watch ends in order, and returns the names of the documents that it has shown.
async fn names_until_end(mut watch: Watch) -> Vec<String> {
    let mut names = Vec::new();
    while let Some(event) = timeout(LIMIT, watch.next()).await.expect("an end in time").expect("an end in order") {
        names.extend(event.object["name"].as_str().map(str::to_owned));
    }
    names
}

#[test]
fn watches_end_on_all_replicas_when_their_grant_is_taken_away_or_narrowed_and_others_go_on() {
    run(async {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hub-replicas-tokens");
        let (writer, kept) = (grant("write", "*", "writer").await, grant("read", "team-*", "kept").await);
        let (removed, narrowed) = (grant("read", "team-*", "removed").await, grant("read", "*", "narrowed").await);
        std::fs::write(&path, [writer.as_str(), &kept, &removed, &narrowed].concat()).expect("a file");
        let file = path.display().to_string();
        let replicas = replicas(&database("grants").await, &[("TOWLINE__HUB__TOKENS_FILE", &file)]).await;
        let (mut ending, mut lasting) = (Vec::new(), Vec::new());
        for replica in &replicas {
            ending.push(watch(replica, "removed", "&namespace=team-a").await);
            ending.push(watch(replica, "narrowed", "").await);
            ending.push(watch(replica, "narrowed", "&namespace=team-a").await);
            lasting.push(watch(replica, "narrowed", "&namespace=team-b").await);
            lasting.push(watch(replica, "kept", "&namespace=team-b").await);
            lasting.push(watch(replica, "writer", "").await);
        }
        let for_one = narrowed.replace('*', "team-b");
        std::fs::write(&path, [writer.as_str(), &kept, &for_one].concat()).expect("a file");
        for watch in ending {
            assert_eq!(names_until_end(watch).await, Vec::<String>::new(), "nothing was written");
        }
        let body = json!({"namespace": "team-b", "name": "s", "data": {}});
        let created = replicas[0].client().with_token("writer").send(&Request::post("/v1/secrets", &body)).await;
        assert_eq!(created.expect("an answer").status, 201);
        for watch in &mut lasting {
            eventually("the new document", LIMIT, async || {
                let event = watch.next().await.expect("it goes on").expect("it goes on");
                if event.object["name"] == "s" { Ok(()) } else { Err(event.kind) }
            })
            .await
            .expect("it is shown");
        }
        for replica in &replicas {
            for (token, path, status) in [
                ("removed", "/v1/secrets?namespace=team-a", 401),
                ("narrowed", "/v1/secrets", 403),
                ("narrowed", "/v1/secrets?watch=true&namespace=team-a", 403),
                ("narrowed", "/v1/secrets?namespace=team-b", 200),
                ("kept", "/v1/secrets?namespace=team-a", 200),
            ] {
                let reply = replica.client().with_token(token).send(&Request::get(path)).await.expect("an answer");
                assert_eq!(reply.status, status, "{token} {path}: {reply:?}");
            }
        }
    });
}
