//! A change of the key that seals, while clients write through two replicas.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use integration::hub::{Replica, Request};
use integration::postgres::{ADMIN, Database, HUB};
use integration::{Towline, eventually};
use serde_json::{Value, json};

use crate::hub::world::{LIMIT, hub_database, run};

/// Lines of `keys_file`: 32 bytes in base64 each.
const ONE: &str = "one AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n";
const TWO: &str = "two Hx4dHBsaGRgXFhUUExIREA8ODQwLCgkIBwYFBAMCAQA=\n";
const CLUSTERS: usize = 24;

/// A replica with keys of its own.
struct Keyed {
    replica: Replica,
    file: PathBuf,
}

impl Keyed {
    async fn start(database: &Database, name: &str) -> Self {
        let room = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("hub-rotation");
        std::fs::create_dir_all(&room).expect("a directory");
        let file = room.join(name);
        std::fs::write(&file, ONE).expect("a file");
        let path = file.display().to_string();
        let replica = Replica::start(database, &[("TOWLINE__HUB__KEYS_FILE", &path)]).await.expect("a process");
        replica.wait_ready(LIMIT).await.expect("it is ready");
        Self { replica, file }
    }

    /// Writes the file, and waits until the replica uses it.
    async fn keys(&self, lines: &str) {
        let loads = || self.replica.towline().log().expect("a log").matches("files loaded").count();
        let before = loads();
        std::fs::write(&self.file, lines).expect("a file");
        eventually("the keys to be loaded", LIMIT, async || {
            if loads() > before { Ok(()) } else { Err("the old ones are in use".to_owned()) }
        })
        .await
        .expect("it is loaded");
    }
}

fn path(number: usize) -> String {
    format!("/v1/clusters/foo/c{number}")
}

/// `towline hub rotate-key` with these keys.
async fn rotate(database: &Database, file: &std::path::Path, args: &[&str]) -> (Option<i32>, String) {
    let (code, said, _) = rotate_and_complain(database, file, args).await;
    (code, said)
}

/// The same with what it complains about.
async fn rotate_and_complain(
    database: &Database,
    file: &std::path::Path,
    args: &[&str],
) -> (Option<i32>, String, String) {
    let (params, path) = (database.url(HUB), file.display().to_string());
    let env = [("POSTGRES_PARAMS", params.as_str()), ("TOWLINE__HUB__KEYS_FILE", path.as_str())];
    let output = Towline::command_with([&["hub", "rotate-key"], args].concat(), &env).await.expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Changes each cluster of its own again and again: half of the changes set the sealed field. Returns what it set last, by cluster, and
/// the number of changes.
async fn write(replica: std::net::SocketAddr, first: usize, stop: Arc<AtomicBool>) -> (Vec<(usize, String)>, usize) {
    let mut client = integration::hub::Client::to(replica);
    let mut set: Vec<(usize, String)> =
        (first..CLUSTERS).step_by(4).map(|number| (number, format!("k{number}"))).collect();
    let mut changes = 0;
    while !stop.load(Ordering::Relaxed) {
        for (number, value) in &mut set {
            let change = if changes % 2 == 0 {
                *value = format!("k{number}-{changes}");
                json!({"kubeconfig": *value})
            } else {
                json!({"labels": {"round": changes.to_string()}})
            };
            let reply = client.send(&Request::merge_patch(&path(*number), &change)).await.expect("an answer");
            reply.success().expect("it is changed");
            changes += 1;
        }
    }
    (set, changes)
}

/// The new key is added on all replicas, the fields are encrypted again while clients write, and the old key is removed. No
/// change is undone, no version is created, and each value is what its client set last.
#[test]
fn a_key_is_changed_while_clients_write_through_two_replicas() {
    run(async {
        let database = hub_database("rotation").await;
        let replicas = [Keyed::start(&database, "first").await, Keyed::start(&database, "second").await];
        let mut client = replicas[0].replica.client();
        for number in 0..CLUSTERS {
            let document =
                json!({"namespace": "foo", "name": format!("c{number}"), "kubeconfig": format!("k{number}")});
            client
                .send(&Request::post("/v1/clusters", &document))
                .await
                .expect("an answer")
                .success()
                .expect("created");
        }
        let secret = json!({"namespace": "foo", "name": "s", "data": {"a": "YQ==", "b": "Yg=="}});
        client.send(&Request::post("/v1/secrets", &secret)).await.expect("an answer").success().expect("created");
        let stop = Arc::new(AtomicBool::new(false));
        // Clusters 0, 4, … and 1, 5, … are written; the others stay.
        let writers = [0, 1].map(|first| {
            let api = replicas[first].replica.api();
            tokio::spawn(write(api, first, Arc::clone(&stop)))
        });

        for replica in &replicas {
            replica.keys(&[TWO, ONE].concat()).await;
        }
        let file = &replicas[0].file;
        let (code, told) = rotate(&database, file, &["--check"]).await;
        assert_eq!(code, Some(1), "the old key is in use: {told}");
        assert!(told.contains(" sealed fields use one\n"), "{told}");
        let (code, told) = rotate(&database, file, &[]).await;
        assert_eq!(code, Some(0), "{told}");
        let all = format!("{} sealed fields use two\n", CLUSTERS + 1);
        assert!(told.ends_with(&all) && !told.contains("use one"), "{told}");
        // Both have written since.
        stop.store(true, Ordering::Relaxed);
        let mut written = Vec::new();
        for writer in writers {
            written.push(writer.await.expect("no panic"));
        }
        assert_eq!(rotate(&database, file, &["--check"]).await, (Some(0), all));

        for replica in &replicas {
            replica.keys(TWO).await;
        }
        let sql = database.client(ADMIN).await.expect("a connection");
        // The clusters with their ClusterSyncs, the secret, and the changes of the writers: nothing else has drawn a version.
        let log: i64 = sql.query_one("select count(*) from towline_log", &[]).await.expect("a row").get(0);
        let changes: usize = written.iter().map(|(_, changes)| changes).sum();
        assert_eq!(log, i64::try_from(2 * CLUSTERS + 1 + changes).expect("a count"));
        // To set a value that is there is no change: so each client reads its own.
        let untouched =
            (2..CLUSTERS).step_by(4).chain((3..CLUSTERS).step_by(4)).map(|number| (number, format!("k{number}")));
        let expected = written.into_iter().flat_map(|(set, _)| set).chain(untouched);
        for (number, value) in expected {
            let get = async |client: &mut integration::hub::Client| -> Value {
                let reply = client.send(&Request::get(&path(number))).await.expect("an answer");
                reply.success().expect("found").json().expect("JSON")
            };
            let before = get(&mut client).await;
            let same = Request::merge_patch(&path(number), &json!({"kubeconfig": value}));
            client.send(&same).await.expect("an answer").success().expect("decided");
            assert_eq!(get(&mut client).await, before, "c{number} has lost {value}");
        }
        let merged = Request::merge_patch("/v1/secrets/foo/s", &json!({"data": {"b": "Yg=="}}));
        let same = client.send(&merged).await.expect("an answer").success().expect("decided").json().expect("JSON");
        assert_eq!((&same["keys"], same["dataGeneration"].as_i64()), (&json!(["a", "b"]), Some(1)));
    });
}

/// In another order. A replica that has not got the new key yet does not know what is in a value sealed with it: it keeps the
/// value, says so, and changes all else.
#[test]
fn a_replica_without_the_new_key_loses_no_value() {
    run(async {
        let database = hub_database("disorder").await;
        let late = Keyed::start(&database, "late").await;
        let early = Keyed::start(&database, "early").await;
        early.keys(&[TWO, ONE].concat()).await;
        let (mut at_late, mut at_early) = (late.replica.client(), early.replica.client());
        let secret = json!({"namespace": "foo", "name": "s", "data": {"a": "YQ=="}});
        at_early.send(&Request::post("/v1/secrets", &secret)).await.expect("an answer").success().expect("created");
        let path = "/v1/secrets/foo/s";
        let add = Request::merge_patch(path, &json!({"data": {"b": "Yg=="}}));
        let refused = at_late.send(&add).await.expect("an answer");
        assert_eq!(refused.status, 503, "{}", String::from_utf8_lossy(&refused.body));
        let label = Request::merge_patch(path, &json!({"labels": {"a": "b"}}));
        at_late.send(&label).await.expect("an answer").success().expect("it keeps the value");
        late.keys(&[TWO, ONE].concat()).await;
        let merged = at_late.send(&add).await.expect("an answer").success().expect("merged").json().expect("JSON");
        assert_eq!((&merged["keys"], &merged["labels"]), (&json!(["a", "b"]), &json!({"a": "b"})));
        // The old key is removed too early: what it sealed stays, and comes back with it.
        let old = json!({"namespace": "foo", "name": "t", "data": {"a": "YQ=="}});
        late.keys(&[ONE, TWO].concat()).await;
        at_late.send(&Request::post("/v1/secrets", &old)).await.expect("an answer").success().expect("created");
        early.keys(TWO).await;
        let path = "/v1/secrets/foo/t";
        let add = Request::merge_patch(path, &json!({"data": {"b": "Yg=="}}));
        assert_eq!(at_early.send(&add).await.expect("an answer").status, 503);
        assert_eq!(rotate(&database, &early.file, &["--check"]).await.0, Some(1));
        assert_eq!(rotate(&database, &early.file, &[]).await.0, Some(1), "it can't be opened");
        early.keys(&[TWO, ONE].concat()).await;
        assert_eq!(rotate(&database, &early.file, &[]).await.0, Some(0));
        early.keys(TWO).await;
        let merged = at_early.send(&add).await.expect("an answer").success().expect("merged").json().expect("JSON");
        assert_eq!(merged["keys"], json!(["a", "b"]));
    });
}

/// A rotation holds a few MiB of sealed values at a time, and reads only those that use another key.
#[test]
fn a_rotation_reads_pages_of_a_few_mib() {
    run(async {
        let database = hub_database("pages").await;
        let hub = Keyed::start(&database, "pages").await;
        let mut client = hub.replica.client();
        for number in 0..5 {
            let kubeconfig = "k".repeat(9 << 18);
            let document = json!({"namespace": "foo", "name": format!("c{number}"), "kubeconfig": kubeconfig});
            client
                .send(&Request::post("/v1/clusters", &document))
                .await
                .expect("an answer")
                .success()
                .expect("created");
        }
        hub.keys(&[TWO, ONE].concat()).await;
        let (code, told) = rotate(&database, &hub.file, &[]).await;
        assert_eq!((code, told.as_str()), (Some(0), "5 sealed fields encrypted again\n5 sealed fields use two\n"));
        let sql = database.client(ADMIN).await.expect("a connection");
        let read = async |what: &str| -> (i64, i64) {
            let text = format!(
                "select sum(calls)::int8, sum(rows)::int8 from statistics.pg_stat_statements s \
                 join pg_database d on d.oid = s.dbid where d.datname = current_database() and query like '%{what}%'"
            );
            let row = sql.query_one(&text, &[]).await.expect("a row");
            (row.get(0), row.get(1))
        };
        // A page ends with the field that exceeds 4 MiB: two, two, one, none. A second pass finds none to replace: it reads where the
        // fields end, and none behind that.
        assert_eq!(read("then octet_length(sealed)").await, (4 + 2, 5 + 1));
        assert_eq!(read("update towline_documents set sealed").await, (5, 5));
        // Nor does a statement go through more than 1,000 fields, whether they are to be replaced or not.
        sql.batch_execute(
            "select statistics.pg_stat_statements_reset(0, oid, 0) from pg_database where datname = current_database(); \
             insert into clusters select 'clusters', gen_random_uuid(), 'many', 'n' || n, '{}', '{}', '{}', 1, -n, now(), now(), null, \
             '{}', '{}', '\\x010374776f' from generate_series(1, 2500) n",
        )
        .await
        .expect("fields");
        let (code, told) = rotate(&database, &hub.file, &[]).await;
        assert_eq!((code, told.as_str()), (Some(0), "0 sealed fields encrypted again\n2505 sealed fields use two\n"));
        assert_eq!(read("then octet_length(sealed)").await, (4, 3));
    });
}

/// A field that can't be opened stays as it is and is reported, without its value, and all others are encrypted again.
#[test]
fn a_field_that_can_not_be_opened_is_reported_and_costs_no_other_one() {
    run(async {
        let database = hub_database("unopened").await;
        let hub = Keyed::start(&database, "unopened").await;
        let mut client = hub.replica.client();
        for name in ["c1", "c2", "c3", "c4"] {
            let document = json!({"namespace": "foo", "name": name, "kubeconfig": "hunter2"});
            let reply = client.send(&Request::post("/v1/clusters", &document)).await.expect("an answer");
            reply.success().expect("created");
        }
        let sql = database.client(ADMIN).await.expect("a connection");
        // One is damaged, one has a key that nobody has, and one has no form at all.
        let damage = "update clusters set sealed = set_byte(sealed, 20, get_byte(sealed, 20) # 1) where name = 'c1'; \
             update clusters set sealed = '\\x0106' || 'absent'::bytea || substring(sealed from 6) where name = 'c2'; \
             update clusters set sealed = '\\x0268756e74657232' where name = 'c3'";
        sql.batch_execute(damage).await.expect("damage");
        let unopened = "select array_agg(sealed::text order by name) from clusters where name in ('c1', 'c2', 'c3')";
        let values = async || sql.query_one(unopened, &[]).await.expect("a row").get::<_, Vec<String>>(0);
        let before = values().await;
        hub.keys(&[TWO, ONE].concat()).await;
        let (code, said, complained) = rotate_and_complain(&database, &hub.file, &[]).await;
        let counts =
            "1 sealed field uses ?\n1 sealed field uses absent\n1 sealed field uses one\n1 sealed field uses two\n";
        assert_eq!((code, said), (Some(1), format!("1 sealed field encrypted again\n{counts}")), "{complained}");
        let mut complaints: Vec<&str> = complained.lines().filter(|line| line.starts_with("towline: ")).collect();
        complaints.sort_unstable();
        let expected = [
            "towline: failed to open the sealed field of clusters/foo/c1: the value does not fit the key \"one\"",
            "towline: failed to open the sealed field of clusters/foo/c2: the key \"absent\" is not in keys_file",
            "towline: failed to open the sealed field of clusters/foo/c3: the value is in none of the known forms",
        ];
        assert_eq!(complaints, expected);
        assert!(!complained.contains("hunter2") && !complained.contains("68756e74657232"), "{complained}");
        assert_eq!(values().await, before, "it was changed");
        let again = rotate_and_complain(&database, &hub.file, &[]).await;
        assert_eq!((again.0, again.1), (Some(1), format!("0 sealed fields encrypted again\n{counts}")));
        // Once clients have set them anew, nothing is left.
        for name in ["c1", "c2", "c3"] {
            let set = Request::merge_patch(&format!("/v1/clusters/foo/{name}"), &json!({"kubeconfig": "new"}));
            client.send(&set).await.expect("an answer").success().expect("it is set");
        }
        let done = rotate(&database, &hub.file, &[]).await;
        assert_eq!(done, (Some(0), "0 sealed fields encrypted again\n4 sealed fields use two\n".to_owned()));
    });
}
