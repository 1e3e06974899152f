//! Who changed what: records, who sees them, and what is never in them.

use integration::hub::{Client, Request};
use integration::postgres::{ADMIN, Database};
use integration::{Link, Towline, eventually};
use serde_json::{Value, json};

use crate::hub::world::{Hub, LIMIT, database, done, folder, grant, run, shown};

const KEYS: &str = "one AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n";
/// What is sealed; it must be nowhere.
const CANARY: &str = "canary-kubeconfig";
/// The same as a value of a secret, in base64.
const CANARY_DATA: &str = "Y2FuYXJ5LWt1YmVjb25maWc=";
/// Whose tokens there are: name, role and namespaces.
const CALLERS: [(&str, &str, &str); 4] =
    [("ada", "write", "team-a"), ("bob", "read", "team-a"), ("eve", "write", "shop"), ("root", "admin", "*")];

struct World {
    hub: Hub,
    database: Database,
    room: std::path::PathBuf,
}

impl World {
    async fn new(name: &str) -> Self {
        let (database, room) = (database(&format!("history_{name}")).await, folder(&format!("history-{name}")));
        let mut tokens = String::new();
        for (caller, role, namespaces) in CALLERS {
            tokens += &grant(role, namespaces, caller).await.replacen("somebody", caller, 1);
            std::fs::write(room.join(caller), caller).expect("a token");
        }
        let paths = ["tokens", "keys"].map(|file| room.join(file).display().to_string());
        for (path, content) in paths.iter().zip([&tokens, KEYS]) {
            std::fs::write(path, content).expect("a file");
        }
        let env = [("TOWLINE__HUB__TOKENS_FILE", paths[0].as_str()), ("TOWLINE__HUB__KEYS_FILE", &paths[1])];
        let hub = Hub::start(&database, &env).await;
        Self { hub, database, room }
    }

    fn client(&self, token: &str) -> Client {
        self.hub.client().with_token(token)
    }

    /// `towline history` with these arguments, as a caller.
    async fn command(&self, caller: &str, args: &[&str]) -> (Option<i32>, String, String) {
        let token = self.room.join(caller).display().to_string();
        let all = [&["history"], args, &["--hub", &self.hub.url, "--token-file", &token]].concat();
        let output = Towline::command_with(&all, &[]).await.expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    }

    async fn records(&self, token: &str, query: &str) -> Vec<Value> {
        let answer = shown(&mut self.client(token), &format!("/v1/history?{query}")).await;
        answer["items"].as_array().expect("items").clone()
    }

    /// Waits for records of refused requests of which this is true.
    async fn refused(&self, is_it: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        eventually("records of refused requests", LIMIT, async || {
            let mut found = self.records("root", "").await;
            found.retain(|record| record["verb"] == "refused");
            if is_it(&found) { Ok(found) } else { Err(format!("{found:?}")) }
        })
        .await
        .expect("records")
    }
}

/// What a record is compared by.
fn brief(record: &Value) -> Value {
    json!([record["actor"], record["verb"], record["result"], record["resourceVersion"]])
}

#[test]
fn each_change_of_a_document_tells_who_made_it_and_how_it_differs_and_no_sealed_value() {
    run(async {
        let world = World::new("changes").await;
        let (mut ada, mut root) = (world.client("ada"), world.client("root"));
        let path = "/v1/clusters/team-a/west";
        let body = json!({"name": "west", "namespace": "team-a", "kubeconfig": CANARY, "labels": {"env": "test"},
            "finalizers": ["a.io/b"]});
        let version = async |client: &mut Client, request: &Request| {
            done(client, request).await.version().expect("a version").to_string()
        };
        let created = version(&mut ada, &Request::post("/v1/clusters", &body)).await;
        let relabels = Request::merge_patch(path, &json!({"labels": {"env": "prod"}, "paused": true}));
        let patched = version(&mut root, &relabels).await;
        // It changes nothing, and so do the next three: a request that fails its condition, a dry run and a read.
        done(&mut root, &relabels).await;
        assert_eq!(root.send(&relabels.clone().if_match(1 << 30)).await.expect("an answer").status, 412);
        let dry_run = Request::merge_patch(&format!("{path}?dryRun=true"), &json!({"labels": {"env": "dry"}}));
        done(&mut ada, &dry_run).await;
        shown(&mut ada, path).await;
        let sealed =
            version(&mut ada, &Request::merge_patch(path, &json!({"kubeconfig": format!("{CANARY}-2")}))).await;
        let status = Request::merge_patch(&format!("{path}/status"), &json!({"status": {"seen": CANARY}}));
        // A change of the status has no record.
        version(&mut root, &status).await;
        let deleting = version(&mut ada, &Request::delete(path)).await;
        let deleted = version(&mut root, &Request::merge_patch(path, &json!({"finalizers": []}))).await;

        let of_west = "kind=clusters&namespace=team-a&name=west";
        let records = world.records("bob", of_west).await;
        let expected = [
            json!(["root", "patch", "deleted", deleted]),
            json!(["ada", "delete", "waits for its finalizers", deleting]),
            json!(["ada", "patch", "changed", sealed]),
            json!(["root", "patch", "changed", patched]),
            json!(["ada", "create", "created", created]),
        ];
        assert_eq!(records.iter().map(brief).collect::<Vec<_>>(), expected);
        let details = |index: usize| json!([records[index]["changes"], records[index]["hidden"]]);
        let last = json!({"env": "prod"});
        assert_eq!(details(0)[0][1], json!({"path": "/labels", "before": last}));
        assert_eq!([details(1), details(2)], [json!([null, null]), json!([null, ["kubeconfig"]])]);
        let changes = json!([{"path": "/labels/env", "before": "test", "after": "prod"},
            {"path": "/paused", "before": false, "after": true}]);
        assert_eq!(details(3), json!([changes, null]));
        assert_eq!(
            details(4),
            json!([[{"path": "/finalizers", "after": ["a.io/b"]},
            {"path": "/labels", "after": {"env": "test"}}, {"path": "/paused", "after": false}], ["kubeconfig"]])
        );
        for record in &records {
            let place =
                ["kind", "namespace", "name", "via", "address"].map(|field| record[field].as_str().expect("text"));
            assert_eq!(place, ["Cluster", "team-a", "west", "api", "127.0.0.1"]);
            assert_eq!(record["id"], records[0]["id"]);
        }
        // A secret, by an apply; and its name is all that is known of what it has.
        let secret = json!({"kind": "Secret", "namespace": "team-a", "name": "pull", "data": {"token": CANARY_DATA}});
        done(&mut ada, &Request::post("/v1/apply", &secret)).await;
        let records = world.records("ada", "kind=secrets&namespace=team-a&name=pull").await;
        assert_eq!((brief(&records[0])[1].clone(), &records[0]["hidden"]), (json!("apply"), &json!(["data"])));
        assert!(records[0]["changes"].to_string().contains("token"), "{records:?}");
        let sql = world.database.client(ADMIN).await.expect("a connection");
        let canaries = "select count(*) from towline_history h where h::text like $1 or h::text like $2";
        let found =
            sql.query_one(canaries, &[&format!("%{CANARY}%"), &format!("%{CANARY_DATA}%")]).await.expect("a row");
        assert_eq!(found.get::<_, i64>(0), 0, "a sealed value is in a record");

        let (code, told, error) = world.command("bob", &["clusters", "team-a/west"]).await;
        assert_eq!(code, Some(0), "{error}");
        assert_eq!(told.lines().filter(|line| line.contains(" Cluster/team-a/west (version ")).count(), 5, "{told}");
        assert!(told.contains(" ada from 127.0.0.1 create Cluster/team-a/west"), "{told}");
        assert!(told.contains("\n    /labels/env: \"test\" → \"prod\"\n"), "{told}");
        assert!(told.contains("\n    kubeconfig: changed, not shown\n"), "{told}");
        let (_, lines, _) = world.command("bob", &["-n", "team-a", "-o", "json", "--limit", "3"]).await;
        let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(lines, world.records("bob", "namespace=team-a&limit=3").await);
    });
}

#[test]
fn records_are_seen_by_those_who_may_read_the_documents_and_all_others_by_administrators() {
    run(async {
        let world = World::new("rights").await;
        let secret = |namespace: &str, name: &str| {
            Request::post("/v1/secrets", &json!({"namespace": namespace, "name": name, "data": {}}))
        };
        let (mut ada, mut root) = (world.client("ada"), world.client("root"));
        for number in 0..5 {
            done(&mut ada, &secret("team-a", &format!("s{number}"))).await;
        }
        done(&mut root, &secret("shop", "s0")).await;
        // Refused: eve in another namespace thrice, once within an apply, and somebody unknown.
        let mut eve = world.client("eve");
        for _ in 0..3 {
            assert_eq!(eve.send(&secret("team-a", "evil")).await.expect("an answer").status, 403);
        }
        let applied = json!({"kind": "Secret", "namespace": "team-a", "name": "evil", "data": {}});
        done(&mut eve, &Request::post("/v1/apply", &applied)).await;
        let unknown = world.client("nobody").send(&Request::get("/v1/secrets?namespace=shop")).await;
        assert_eq!(unknown.expect("an answer").status, 401);

        let sum = |found: &[Value], actor: &Value, status: u64| -> u64 {
            let of = found.iter().filter(|record| record["actor"] == *actor && record["status"] == status);
            of.map(|record| record["count"].as_u64().expect("a number")).sum()
        };
        let found =
            world.refused(|found| sum(found, &json!("eve"), 403) == 4 && sum(found, &Value::Null, 401) == 1).await;
        let requests: Vec<&str> = found.iter().map(|record| record["request"].as_str().expect("text")).collect();
        assert!(requests.contains(&"GET /v1/secrets") && requests.contains(&"POST /v1/secrets"), "{requests:?}");

        let all = world.records("root", "limit=500").await;
        let of_verb = |verb: &str| all.iter().filter(|record| record["verb"] == verb).count();
        assert_eq!(of_verb("create"), 6);
        // Page by page it is the same.
        let (mut paged, mut next) = (Vec::new(), String::new());
        loop {
            let page = shown(&mut root, &format!("/v1/history?limit=2{next}")).await;
            paged.extend(page["items"].as_array().expect("items").iter().cloned());
            match page["continue"].as_str() {
                Some(token) => next = format!("&continue={token}"),
                None => break,
            }
        }
        assert_eq!(paged, all);
        let newest = all[0]["at"].as_str().expect("a time");
        assert_eq!(world.records("root", &format!("since={newest}")).await, all[..1]);
        for (token, query, expected) in [
            ("bob", "namespace=team-a", Ok(5)),
            ("bob", "namespace=shop", Err(403)),
            ("bob", "kind=secrets&namespace=shop&name=s0", Err(403)),
            ("bob", "", Err(403)),
            ("ada", "kind=selectorsyncsets&name=base", Err(403)),
            ("eve", "namespace=shop", Ok(1)),
            ("nobody", "namespace=shop", Err(401)),
        ] {
            let reply =
                world.client(token).send(&Request::get(&format!("/v1/history?{query}"))).await.expect("an answer");
            let seen = if reply.status == 200 {
                Ok(reply.json().expect("JSON")["items"].as_array().expect("items").len())
            } else {
                Err(reply.status)
            };
            assert_eq!(seen, expected, "{token} {query}");
        }
        let (code, _, error) = world.command("bob", &[]).await;
        assert_eq!(code, Some(1), "{error}");
    });
}

/// The answer of the database to a record is lost: whether it was taken, only the database knows.
#[test]
fn a_refusal_whose_record_may_have_been_written_is_counted_once() {
    run(async {
        let (place, room) = (database("history_lost").await, folder("history-lost"));
        let tokens = room.join("tokens");
        std::fs::write(&tokens, grant("admin", "*", "root").await).expect("a file");
        let link = Link::to(place.address()).await.expect("a link");
        let env = [("TOWLINE__HUB__TOKENS_FILE", tokens.to_str().expect("text"))];
        let hub = Hub::start_by(&place.url_by(ADMIN, &link.address().to_string()), &env).await;
        let [sql, other] =
            [place.client(ADMIN).await.expect("a connection"), place.client(ADMIN).await.expect("a connection")];
        let refuse = async || {
            let reply = hub.client().with_token("nobody").send(&Request::get("/v1/clusters")).await;
            assert_eq!(reply.expect("an answer").status, 401);
        };
        let becomes = async |what: &str, text: &str| -> i64 {
            eventually(what, LIMIT, async || {
                let row = other.query_one(text, &[]).await.map_err(|error| error.to_string())?;
                Some(row.get::<_, i64>(0)).filter(|found| *found > 0).ok_or_else(|| "none".to_owned())
            })
            .await
            .expect(what)
        };
        sql.batch_execute("begin; lock table towline_history in exclusive mode").await.expect("the lock");
        refuse().await;
        let waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' \
             and query like '%towline_history%refused%'";
        becomes("the record to wait", waiting).await;
        link.mute();
        sql.batch_execute("commit").await.expect("no lock");
        becomes("the record", "select count(*) from towline_history where verb = 'refused'").await;
        link.hang_up();
        // What comes later is written after it.
        refuse().await;
        let counted = "select sum((details::jsonb->>'count')::bigint)::bigint as found from towline_history where verb = 'refused'";
        let later = format!("select case when found >= 2 then found else 0 end from ({counted}) s");
        assert_eq!(becomes("the next record", &later).await, 2);
    });
}

/// What the database shall keep does not grow with a flood: each request has another token that nobody knows, and comes from the same address.
#[test]
fn a_flood_of_refused_requests_is_counted_in_a_few_records_and_a_hub_that_is_stopped_records_all_that_was_refused() {
    run(async {
        let (place, room) = (database("history_stop").await, folder("history-stop"));
        let mut lines = String::new();
        for number in 0..40 {
            let token = format!("t{number}");
            lines += &grant("read", "team-a", &token).await.replacen("somebody", &token, 1);
        }
        let tokens = room.join("tokens");
        std::fs::write(&tokens, lines).expect("a file");
        let env = [("TOWLINE__HUB__TOKENS_FILE", tokens.to_str().expect("text"))];
        let hub = Hub::start(&place, &env).await;
        for number in 0..300 {
            let reply = hub.client().with_token(&format!("guess-{number}")).send(&Request::get("/v1/clusters")).await;
            assert_eq!(reply.expect("an answer").status, 401);
        }
        for number in 0..40 {
            let reply = hub.client().with_token(&format!("t{number}")).send(&Request::get("/v1/clusters")).await;
            assert_eq!(reply.expect("an answer").status, 403);
        }
        hub.towline.terminate(LIMIT).await.expect("it ends");
        let sql = place.client(ADMIN).await.expect("a connection");
        let text = "select count(distinct actor), sum((details::jsonb->>'count')::bigint)::bigint from towline_history where verb = 'refused' \
             and details::jsonb->>'note' = 'forbidden'";
        let row = sql.query_one(text, &[]).await.expect("a row");
        assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (40, 40));
        let text = "select count(*), sum((details::jsonb->>'count')::bigint)::bigint from towline_history where verb = 'refused' \
             and details::jsonb->>'status' = '401'";
        let row = sql.query_one(text, &[]).await.expect("a row");
        assert_eq!(row.get::<_, i64>(1), 300);
        assert!(row.get::<_, i64>(0) <= 32, "{} records", row.get::<_, i64>(0));
    });
}

#[test]
fn a_hub_that_is_stopped_without_its_database_logs_what_it_could_not_record() {
    run(async {
        let (place, room) = (database("history_gone").await, folder("history-gone"));
        let tokens = room.join("tokens");
        std::fs::write(&tokens, grant("read", "team-a", "t1").await).expect("a file");
        let env = [("TOWLINE__HUB__TOKENS_FILE", tokens.to_str().expect("text"))];
        let hub = Hub::start(&place, &env).await;
        let sql = place.client(ADMIN).await.expect("a connection");
        sql.batch_execute("alter table towline_history rename to gone").await.expect("it is away");
        for _ in 0..3 {
            let reply = hub.client().with_token("t1").send(&Request::get("/v1/clusters")).await;
            assert_eq!(reply.expect("an answer").status, 403);
        }
        hub.towline.terminate(LIMIT).await.expect("it ends");
        let log = hub.towline.log().expect("a log");
        let told = log.lines().find(|line| line.contains("refused requests may not have been recorded"));
        let told = told.unwrap_or_else(|| panic!("{log}"));
        for part in ["somebody", "127.0.0.1", "403", "forbidden", "GET /v1/clusters", "3"] {
            assert!(told.contains(part), "no {part} in {told}");
        }
    });
}

#[test]
fn commands_that_change_the_database_are_recorded_with_the_account() {
    run(async {
        let world = World::new("commands").await;
        let url = world.database.url(ADMIN);
        let keys = world.room.join("keys").display().to_string();
        for args in [&["hub", "rotate-key"][..], &["hub", "renumber"], &["migrate"]] {
            let env = [("POSTGRES_PARAMS", url.as_str()), ("TOWLINE__HUB__KEYS_FILE", &keys)];
            let output = Towline::command_with(args, &env).await.expect("it runs");
            assert!(output.status.success(), "{args:?}: {output:?}");
        }
        let records = world.records("root", "").await;
        let told: Vec<Value> = records.iter().map(|record| json!([record["via"], record["verb"]])).collect();
        let (commands, migrations) = told.split_at(2);
        assert_eq!(commands, [json!(["database", "renumber"]), json!(["database", "rotate-key"])]);
        // One that had nothing to do is none.
        let sql = world.database.client(ADMIN).await.expect("a connection");
        let last: i32 = sql.query_one("select migration from towline_meta", &[]).await.expect("a row").get(0);
        assert_eq!(migrations, vec![json!(["database", "migrate"]); usize::try_from(last).expect("a number")]);
        let notes: Vec<&str> = records[2..].iter().rev().map(|record| record["note"].as_str().expect("text")).collect();
        assert!(
            (1..).zip(&notes).all(|(number, note)| note.starts_with(&format!("migration {number}: "))),
            "{notes:?}"
        );
        assert!(records.iter().all(|record| record["actor"].is_string()), "{records:?}");
        assert_eq!(records[1]["note"], "to the key one");
    });
}
