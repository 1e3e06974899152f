//! The clusters of a fleet by state, as its page asks for them.

#![expect(clippy::indexing_slicing, reason = "the allowance for tests does not reach their helpers")]

use std::collections::BTreeMap;

use http::header::CONTENT_TYPE;
use integration::hub::{Client, Request};
use integration::{Towline, eventually, page};
use serde_json::{Value, json};

use crate::syncsets::costs::beside;
use crate::syncsets_commands::failures::fail;
use crate::syncsets_commands::rights::{guarded, token};
use crate::syncsets_commands::world::{LIMIT, Stage, make, run, shown};

/// The status of an answer.
async fn status(client: &mut Client, path: &str) -> u16 {
    client.send(&Request::get(path)).await.expect("an answer").status
}

fn names(page: &Value) -> Vec<String> {
    let name = |item: &Value| item["name"].as_str().expect("a name").to_owned();
    page["items"].as_array().expect("items").iter().map(name).collect()
}

/// The statements of requests so far, by their names.
async fn statements(stage: &Stage) -> BTreeMap<String, u64> {
    beside(&stage.replica.towline().admin().metrics().await.expect("metrics"))
}

#[test]
fn the_clusters_that_a_token_may_read_are_counted_by_state_and_listed_in_pages_of_one_statement() {
    run(async {
        let stage = fleet().await;
        counts_are_of_what_the_token_may_read(&stage).await;
        each_page_is_one_statement(&stage).await;
        each_row_says_why_and_since_when(&stage).await;
        a_query_selects(&stage).await;
        each_cluster_is_explained(&stage).await;
        others_see_theirs_and_the_page_has_no_data(&stage).await;
        what_is_held_of_others_is_not_read(&stage).await;
    });
}

/// Another process is the dispatcher, and makes nothing due. The one that was it has noticed.
pub(crate) async fn make_nothing_due(stage: &Stage) {
    let elsewhere = "update towline_claim set holder = 'elsewhere', token = token + 1, until = now() + interval '1 day' \
                     where name = 'dispatcher'";
    assert_eq!(stage.sql.execute(elsewhere, &[]).await.expect("the claim"), 1);
    eventually("the dispatcher to have stopped", LIMIT, async || {
        let hub = stage.replica.towline().admin().section("hub").await.map_err(|error| error.to_string())?;
        let claims = hub["claims"].as_array().ok_or("no claims")?;
        if claims.iter().any(|claim| claim["role"] == "dispatcher" && claim["holder"] == hub["holder"]) {
            Err(hub.to_string())
        } else {
            Ok(())
        }
    })
    .await
    .expect("another dispatcher");
}

/// 451 clusters of the namespace `foo`, some of which fail, and one of `bar`.
async fn fleet() -> Stage {
    let grants = [("admin", "*"), ("read", "foo"), ("read", "ba*")];
    let stage = guarded("fleet", &grants).await;
    let mut admin = stage.replica.client().with_token(&token("admin", "*"));
    make_nothing_due(&stage).await;
    make(&mut admin, "foo", "west", "prod", true).await;
    make(&mut admin, "bar", "east", "dev", true).await;
    // No worker takes them before tomorrow, so nothing of them changes.
    let copies = "with made as (insert into clusters select kind, gen_random_uuid(), namespace, 'c' || lpad(n::text, 5, '0'), \
                  labels || jsonb_build_object('number', n::text), annotations, \
                  finalizers, generation, version, created_at, updated_at, deleted_at, data || '{\"paused\": false}', status, sealed \
                  from clusters, generate_series(1, 450) n where name = 'west' returning id, namespace) \
                  insert into towline_work (cluster, ready_at, namespace) select id, now() + interval '1 day', namespace from made";
    assert_eq!(stage.sql.execute(copies, &[]).await.expect("clusters"), 450);
    let seen = "insert into towline_cluster (cluster, kubeconfig_generation, reachable, last_contact, attempts, retry_at) \
                select id, 1, name not between 'c00011' and 'c00015', now() - interval '90 seconds', 0, \
                  case when name between 'c00011' and 'c00013' then now() end \
                from clusters where name between 'c00001' and 'c00400'";
    assert_eq!(stage.sql.execute(seen, &[]).await.expect("what was seen of them"), 400);
    for number in 1..=10 {
        let syncset = ("SyncSet", "foo", if number > 7 { "extra" } else { "base" });
        fail(&stage, &format!("c{number:05}"), syncset, "<img src=x onerror=alert(1)>").await;
    }
    let earlier = "update towline_result set since = now() - interval '1 hour' where name = 'base'";
    assert_eq!(stage.sql.execute(earlier, &[]).await.expect("results"), 7);
    fail(&stage, "c00001", ("SyncSet", "foo", "extra"), "no").await;
    tried(&stage, &mut admin).await;
    let held = "with held as (insert into towline_guard (syncset, checked, gone, held, clusters, since, tracks, cause, kind, namespace, name) \
                  select gen_random_uuid(), 1, false, true, 1, now(), 2, 'many', kind, namespace, 'base' \
                  from (values ('SelectorSyncSet', ''), ('SyncSet', 'bar'), ('SyncSet', 'foo')) v(kind, namespace) \
                  returning syncset, namespace) \
                insert into towline_lost select c.id, h.syncset, 5, 0, 0, 0, false, true from held h, clusters c \
                  where h.namespace = 'foo' and c.name = 'c00020'";
    assert_eq!(stage.sql.execute(held, &[]).await.expect("what is held"), 1);
    stage
}

/// The documents of `foo/base` and `foo/extra`, of which the results are; and further results of `base`, on clusters in step: how it was applied there,
/// and what was read of its health.
async fn tried(stage: &Stage, admin: &mut Client) {
    for name in ["base", "extra"] {
        let syncset = json!({"namespace": "foo", "name": name, "spec": {"clusterDeploymentRefs": []}});
        admin.send(&Request::post("/v1/syncsets", &syncset)).await.expect("an answer").success().expect("a syncset");
    }
    let of_documents = "update towline_result r set syncset = s.id from syncsets s where s.namespace = r.namespace and s.name = r.name";
    assert_eq!(stage.sql.execute(of_documents, &[]).await.expect("results"), 11);
    let health = |state: &str, reason: &str, inputs: &str| {
        json!({"state": state, "reason": reason, "message": "no", "inputs": inputs}).to_string()
    };
    for (name, health) in [
        ("c00031", Some(health("Failed", "CrashLoopBackOff", "11"))),
        ("c00032", Some(health("Progressing", "Late", "11"))),
        ("c00033", Some(health("Current", "Current", "11"))),
        // Of what was applied before.
        ("c00034", Some(health("Failed", "CrashLoopBackOff", "10"))),
        ("c00035", None),
        // It does not answer.
        ("c00014", Some(health("Failed", "CrashLoopBackOff", "11"))),
    ] {
        let result = "insert into towline_result select c.id, s.id, 'SyncSet', 'foo', 'base', '\\x11', 1, 'Success', null, null, now(), now(), false, \
                      $2::text::jsonb from clusters c, syncsets s where c.name = $1 and s.name = 'base'";
        assert_eq!(stage.sql.execute(result, &[&name, &health]).await.expect("a result"), 1, "{name}");
    }
    // Of one with `health` nothing has been read yet: one of its clusters does not answer.
    let with_health = json!({"namespace": "foo", "name": "ill", "spec": {"clusterDeploymentRefs": [], "health": {}}});
    admin.send(&Request::post("/v1/syncsets", &with_health)).await.expect("an answer").success().expect("a syncset");
    let unread = "insert into towline_result select c.id, s.id, 'SyncSet', 'foo', 'ill', '\\x11', 4, 'Success', null, null, \
                  now() - interval '70 seconds', now(), false from clusters c, syncsets s \
                  where c.name in ('c00036', 'c00015') and s.name = 'ill'";
    assert_eq!(stage.sql.execute(unread, &[]).await.expect("results"), 2);
}

/// By state and by label, with what is held.
async fn counts_are_of_what_the_token_may_read(stage: &Stage) {
    let states = json!({"paused": 1, "unreachable": 5, "failing": 10, "held": 1, "pending": 50, "in_step": 384});
    let mut of_foo = stage.replica.client().with_token(&token("read", "foo"));
    let mut admin = stage.replica.client().with_token(&token("admin", "*"));
    let mut fleet = shown(&mut of_foo, "/v1/fleet").await;
    let held = fleet["held"].take();
    let expected =
        json!({"clusters": 451, "states": states, "groups": [], "groupsMore": 0, "held": null, "heldMore": 0});
    assert_eq!(fleet, expected);
    let step = "take the change back, or `towline approve syncsets foo/base`";
    let reason = "most of its objects there would be deleted";
    assert_eq!(held, json!([{"syncset": "SyncSet foo/base", "clusters": 1, "reason": reason, "nextStep": step}]));
    for (of, query, expected) in [
        (token("read", "ba*"), "", &["SyncSet bar/base"][..]),
        (token("admin", "*"), "", &["SyncSet bar/base", "SyncSet foo/base", "SelectorSyncSet base"]),
        (token("admin", "*"), "?namespace=foo", &["SyncSet foo/base", "SelectorSyncSet base"]),
    ] {
        let fleet = shown(&mut stage.replica.client().with_token(&of), &format!("/v1/fleet{query}")).await;
        let held: Vec<&str> =
            fleet["held"].as_array().expect("a list").iter().filter_map(|held| held["syncset"].as_str()).collect();
        assert_eq!(held, expected, "{query}");
    }
    let all = shown(&mut admin, "/v1/fleet?groupBy=env").await;
    page::agrees("/v1/fleet", "by a label", &all).expect("what the page reads");
    assert_eq!((&all["clusters"], &all["states"]["paused"]), (&json!(452), &json!(2)));
    assert_eq!(all["groups"][0], json!({"value": "prod", "clusters": 451, "states": states}));
    assert_eq!((&all["groups"][1]["value"], &all["groups"][1]["clusters"]), (&json!("dev"), &json!(1)));
    // A label with a value for each cluster: the two clusters without it, and 199 of the 450 with it.
    let all = shown(&mut admin, "/v1/fleet?groupBy=number").await;
    let groups = all["groups"].as_array().expect("groups");
    assert_eq!((groups.len(), &all["groupsMore"], &all["clusters"]), (200, &json!(251), &json!(452)));
    assert_eq!((groups[0].get("value"), &groups[0]["clusters"]), (None, &json!(2)));
    assert_eq!((&groups[1]["value"], &groups[1]["clusters"]), (&json!("1"), &json!(1)));
}

/// Every cluster is on one page, in order.
async fn each_page_is_one_statement(stage: &Stage) {
    let mut of_foo = stage.replica.client().with_token(&token("read", "foo"));
    let before = statements(stage).await;
    let (mut listed, mut pages, mut after) = (Vec::new(), 0, String::new());
    loop {
        let page = shown(&mut of_foo, &format!("/v1/fleet/clusters?limit=200{after}")).await;
        listed.extend(names(&page));
        pages += 1;
        let Some(next) = page["continue"].as_str() else { break };
        after = format!("&continue={next}");
    }
    assert_eq!((pages, listed.len()), (3, 451));
    assert!(listed.is_sorted() && listed[450] == "west", "{listed:?}");
    let mut sent = statements(stage).await;
    sent.retain(|name, count| {
        *count -= before.get(name).copied().unwrap_or_default();
        *count > 0
    });
    assert_eq!(sent, BTreeMap::from([("page_of_fleet".to_owned(), 3)]));
    // A page that is full is the last one if there is nothing behind it.
    let page = shown(&mut of_foo, "/v1/fleet/clusters?state=failing&limit=10").await;
    assert_eq!((names(&page).len(), page.get("continue")), (10, None));
}

/// What is shown of a cluster.
async fn each_row_says_why_and_since_when(stage: &Stage) {
    let mut of_foo = stage.replica.client().with_token(&token("read", "foo"));
    let page = shown(&mut of_foo, "/v1/fleet/clusters?state=failing&labelSelector=env%3Dprod").await;
    assert_eq!(names(&page).len(), 10);
    let first_of_many = shown(&mut of_foo, "/v1/fleet/clusters?state=failing&limit=1").await;
    page::agrees("/v1/fleet/clusters", "failing", &first_of_many).expect("what the page reads");
    let failures = shown(&mut of_foo, "/v1/syncset-failures").await;
    page::agrees("/v1/syncset-failures", "not applied", &failures).expect("what the page reads");
    // It fails since the first of its failures, and the last one is shown.
    let (first, second) = (&page["items"][0], &page["items"][1]);
    assert_eq!(
        (&first["failing"], &first["syncset"], &first["message"]),
        (&json!(2), &json!("SyncSet foo/extra"), &json!("no"))
    );
    let seconds = |item: &Value| item["forSeconds"].as_u64();
    assert!(seconds(first).is_some_and(|age| (3600..7200).contains(&age)), "{first}");
    // A message is data; the page shows it as text.
    assert_eq!((&second["reason"], &second["message"]), (&json!("Rejected"), &json!("<img src=x onerror=alert(1)>")));
    for (state, is_known) in
        [("unreachable", true), ("in_step", false), ("held", false), ("pending", false), ("paused", false)]
    {
        let page = shown(&mut of_foo, &format!("/v1/fleet/clusters?state={state}&limit=1")).await;
        let first = &page["items"][0];
        assert_eq!(seconds(first).map(|age| age >= 90), is_known.then_some(true), "{first}");
    }
}

/// Filters, and what is no filter.
async fn a_query_selects(stage: &Stage) {
    let mut of_foo = stage.replica.client().with_token(&token("read", "foo"));
    for (query, found) in [
        ("syncset=SyncSet/foo/extra", 4),
        ("syncset=SelectorSyncSet/extra", 0),
        ("syncset=SyncSet/foo/base", 13),
        ("syncset=SyncSet/foo/base&state=failing", 7),
        ("syncset=SyncSet/foo/base&outcome=not_applied&text=foo/c0000", 7),
        ("syncset=SyncSet/bar/base&outcome=held", 0),
        ("state=unreachable", 5),
        ("state=held", 1),
        ("state=paused", 1),
        ("state=pending&limit=200", 50),
        ("text=foo/c0001", 10),
        ("labelSelector=env%3Ddev", 0),
    ] {
        let page = shown(&mut of_foo, &format!("/v1/fleet/clusters?{query}")).await;
        assert_eq!((names(&page).len(), page.get("continue")), (found, None), "{query}");
    }
    for (outcome, expected) in [
        ("failed", &[("c00031", "failed", Some("CrashLoopBackOff"))][..]),
        ("late", &[("c00032", "late", Some("Late"))]),
        ("current", &[("c00033", "current", Some("Current"))]),
        ("progressing", &[("c00034", "progressing", None)]),
        ("applied", &[("c00035", "applied", None)]),
        ("unknown", &[("c00014", "unknown", Some("CrashLoopBackOff"))]),
        // It was not tried there.
        ("held", &[("c00020", "", None)]),
    ] {
        let page = shown(&mut of_foo, &format!("/v1/fleet/clusters?syncset=SyncSet/foo/base&outcome={outcome}")).await;
        let found: Vec<_> = page["items"].as_array().expect("items").iter().collect();
        let told: Vec<_> = found
            .iter()
            .map(|item| {
                let text = |field: &str| item[field].as_str();
                (text("name").unwrap_or_default(), text("outcome").unwrap_or_default(), text("reason"))
            })
            .collect();
        assert_eq!(told, expected, "{outcome}");
    }
    // As the syncset's own counts have it.
    let counts = shown(&mut of_foo, "/v1/syncsets/foo/ill").await["status"]["health"].take();
    assert_eq!(counts, json!({"current": 0, "progressing": 1, "unknown": 1, "failed": 0}));
    for (outcome, expected) in [("progressing", &["c00036"][..]), ("unknown", &["c00015"]), ("applied", &[])] {
        let page = shown(&mut of_foo, &format!("/v1/fleet/clusters?syncset=SyncSet/foo/ill&outcome={outcome}")).await;
        assert_eq!(names(&page), expected, "{outcome}");
    }
    let failed = shown(&mut of_foo, "/v1/fleet/clusters?syncset=SyncSet/foo/base&outcome=failed").await;
    page::agrees("/v1/fleet/clusters", "of a syncset", &failed).expect("what the page reads");
    assert_eq!(failed["items"][0]["syncset"], "SyncSet foo/base");
    for wrong in [
        "outcome=failed",
        "syncset=SyncSet/foo/base&outcome=ill",
        "limit=201",
        "limit=0",
        "state=ill",
        "syncset=Pod/a",
        "continue=a",
        "text=%00",
        "labelSelector=a%3Db%3Dc",
        "page=2",
    ] {
        assert_eq!(status(&mut of_foo, &format!("/v1/fleet/clusters?{wrong}")).await, 400, "{wrong}");
    }
}

/// To operators of the daemon, also one with which nothing is wrong.
async fn each_cluster_is_explained(stage: &Stage) {
    let admin = stage.replica.towline().admin_url();
    for (cluster, code, expected) in [
        (
            "foo/c00036",
            0,
            &["state      in_step, for ", "syncsets   SyncSet foo/ill: generation 4 applied since 20"][..],
        ),
        (
            "foo/c00001",
            0,
            &[
                "state      failing, for 60m",
                "waits      SyncSet foo/extra: no → ",
                "           SyncSet foo/base: generation 1 not applied since 20",
            ],
        ),
        ("foo/c00040", 0, &["state      in_step\n", "syncsets   none"]),
        ("foo/c00011", 0, &["state      unreachable, for "]),
        ("foo/west", 0, &["waits      it is paused → `towline resume foo/west`"]),
        ("foo/c0000", 1, &["section syncsets knows no cluster foo/c0000"]),
        ("west", 1, &["clusters are NAMESPACE/NAME"]),
        ("SyncSet foo/none", 1, &["holds nothing of SyncSet foo/none"]),
    ] {
        let said = Towline::command(["explain", "syncsets", cluster, "--admin", &admin]).await.expect("it runs");
        let told = String::from_utf8_lossy(if code == 0 { &said.stdout } else { &said.stderr });
        assert!(
            said.status.code() == Some(code) && expected.iter().all(|part| told.contains(part)),
            "{cluster}: {said:?}"
        );
    }
}

/// Other namespaces, no token, and the files.
async fn others_see_theirs_and_the_page_has_no_data(stage: &Stage) {
    let mut of_ba = stage.replica.client().with_token(&token("read", "ba*"));
    // The files of the page are the same for everybody, and no data.
    for (path, media) in
        [("/ui/", "text/html"), ("/ui/fleet.js", "text/javascript"), ("/ui/page.js", "text/javascript")]
    {
        let reply = stage.replica.client().send(&Request::get(path)).await.expect("an answer");
        let told = reply.header(CONTENT_TYPE).unwrap_or_default();
        assert!(reply.status == 200 && told.starts_with(media), "{path}: {} {told}", reply.status);
    }
    assert_eq!(names(&shown(&mut of_ba, "/v1/fleet/clusters").await), ["east"]);
    assert_eq!(shown(&mut of_ba, "/v1/fleet").await["clusters"], 1);
    for path in ["/v1/fleet?namespace=foo", "/v1/fleet/clusters?namespace=foo"] {
        assert_eq!(status(&mut of_ba, path).await, 403, "{path}");
        assert_eq!(status(&mut stage.replica.client(), path).await, 401, "{path}");
    }
}

/// A namespace in which the deletions of a thousand syncsets are held.
async fn what_is_held_of_others_is_not_read(stage: &Stage) {
    let crowd = "with held as (insert into towline_guard (syncset, checked, gone, held, clusters, since, tracks, cause, kind, namespace, name) \
                   select gen_random_uuid(), 1, false, true, 1, now(), 2, 'many', 'SyncSet', 'crowd', 'c' || n from generate_series(1, 1000) n \
                   returning syncset) \
                 insert into towline_lost select c.id, h.syncset, 5, 0, 0, 0, false, true from held h, clusters c where c.name = 'c00020'";
    assert_eq!(stage.sql.execute(crowd, &[]).await.expect("what is held"), 1000);
    // The daemon's own statement counts the objects as well.
    let read = async || -> (i64, i64) {
        let text = "select coalesce(sum(s.rows), 0)::int8, coalesce(sum(shared_blks_hit + shared_blks_read), 0)::int8 \
                    from statistics.pg_stat_statements s join pg_database d on d.oid = s.dbid \
                    where d.datname = current_database() and query like '%to_json(since)%' and query not like '%towline_lost%'";
        let row = stage.sql.query_one(text, &[]).await.expect("statistics");
        (row.get(0), row.get(1))
    };
    let shown_to = async |of: &str| {
        let fleet = shown(&mut stage.replica.client().with_token(of), "/v1/fleet").await;
        (fleet["held"].as_array().map(Vec::len), fleet["heldMore"].clone())
    };
    let (before, _) = read().await;
    assert_eq!(shown_to(&token("read", "foo")).await, (Some(1), json!(0)));
    let (rows, blocks) = read().await;
    assert_eq!(rows - before, 1);
    assert_eq!(shown_to(&token("admin", "*")).await, (Some(200), json!(803)));
    // Not even one look for each of what it would delete.
    let (all_rows, all_blocks) = read().await;
    assert!(all_rows - rows == 200 && all_blocks - blocks < 150, "{rows} {all_rows} {blocks} {all_blocks}");
}

/// The database compares what it can, and each cluster is in the state that a pass finds. What it can't compare leaves no gap in a page.
#[test]
fn paused_clusters_are_told_from_others_by_every_mark_and_leave_no_page_short() {
    const UNTIL: &str = "towline.dev/pause-until";
    const SYNCSET: &str = "hive.openshift.io/syncset-pause";
    const RELOCATE: &str = "hive.openshift.io/relocate";
    run(async {
        let stage = Stage::new("pausing").await;
        make_nothing_due(&stage).await;
        let mut client = stage.replica.client();
        make(&mut client, "foo", "west", "prod", true).await;
        let marks = [
            (json!(true), json!({}), true),
            (json!(false), json!({}), false),
            (json!(null), json!({}), false),
            // A pass reads it so.
            (json!("no"), json!({}), true),
            (json!(false), json!({SYNCSET: "True"}), true),
            (json!(false), json!({SYNCSET: "yes"}), false),
            (json!(false), json!({"hive.openshift.io/reconcile-pause": "1"}), true),
            (json!(false), json!({RELOCATE: ""}), true),
            (json!(false), json!({UNTIL: "2040-01-01T00:00:00Z"}), true),
            (json!(false), json!({UNTIL: "2020-01-01T00:00:00Z"}), false),
            (json!(false), json!({SYNCSET: "t", UNTIL: "2020-01-01T00:00:00Z"}), true),
            (json!(false), json!({SYNCSET: "f", UNTIL: "2020-01-01T00:00:00Z"}), false),
            (json!(false), json!({UNTIL: "2040-01-01T00:00:00+02:00"}), true),
            (json!(false), json!({UNTIL: "2020-01-01T00:00:00+02:00"}), false),
            (json!(false), json!({UNTIL: "2020-01-01T00:00:00.5Z"}), false),
            (json!(false), json!({UNTIL: "2020-02-29T00:00:00Z"}), false),
            (json!(false), json!({UNTIL: "2021-02-29T00:00:00Z"}), true),
            (json!(false), json!({UNTIL: "2020-01-01T24:00:00Z"}), true),
            (json!(false), json!({UNTIL: "tomorrow"}), true),
            (json!(false), json!({UNTIL: ""}), true),
        ];
        let make = "insert into clusters select kind, gen_random_uuid(), namespace, $1, labels, $2::text::jsonb, finalizers, generation, version, \
                    created_at, updated_at, deleted_at, data || jsonb_build_object('paused', $3::text::jsonb), status, sealed \
                    from clusters where name = 'west'";
        for (number, (paused, annotations, _)) in marks.iter().enumerate() {
            let (name, annotations, paused) = (format!("a{number:02}"), annotations.to_string(), paused.to_string());
            stage.sql.execute(make, &[&name, &annotations, &paused]).await.expect("a cluster");
        }
        // No pass has ended over any of them, and none is due.
        let due = "insert into towline_work (cluster, ready_at, namespace) select id, now() + interval '1 day', namespace from clusters \
                   on conflict (cluster) do update set ready_at = excluded.ready_at, holder = null, until = null";
        stage.sql.execute(due, &[]).await.expect("work");
        let number = |is_paused: bool| marks.iter().filter(|(.., paused)| *paused == is_paused).count();
        let named = |is_paused: bool| {
            let found = marks.iter().enumerate().filter(move |(_, (.., paused))| *paused == is_paused);
            found.map(|(number, _)| format!("a{number:02}"))
        };
        for (state, expected) in [
            ("pending", named(false).collect::<Vec<_>>()),
            ("paused", named(true).chain(["west".to_owned()]).collect()),
        ] {
            let (mut listed, mut after) = (Vec::new(), String::new());
            loop {
                let page = shown(&mut client, &format!("/v1/fleet/clusters?state={state}&limit=2{after}")).await;
                let (found, next) = (names(&page), page["continue"].as_str());
                assert!(found.len() == 2 || (next.is_none() && !found.is_empty()), "{page}");
                listed.extend(found);
                let Some(next) = next else { break };
                after = format!("&continue={next}");
            }
            assert_eq!(listed, expected, "{state}");
        }
        let fleet = shown(&mut client, "/v1/fleet").await;
        assert_eq!(
            (&fleet["states"]["pending"], &fleet["states"]["paused"]),
            (&json!(number(false)), &json!(number(true) + 1))
        );
    });
}

/// What a tenant's page costs follows from its own clusters, however many others fail.
#[test]
fn a_page_of_few_clusters_reads_nothing_of_the_others() {
    run(async {
        let stage = guarded("tenant", &[("admin", "*"), ("read", "foo"), ("read", "fo*")]).await;
        make_nothing_due(&stage).await;
        let mut admin = stage.replica.client().with_token(&token("admin", "*"));
        make(&mut admin, "foo", "west", "prod", true).await;
        make(&mut admin, "bar", "east", "prod", true).await;
        let copies = "insert into clusters select kind, gen_random_uuid(), namespace, 'c' || n, labels, annotations, finalizers, generation, \
                      version, created_at, updated_at, deleted_at, data || '{\"paused\": false}', status, sealed \
                      from clusters, generate_series(1, case name when 'west' then 3 else 2000 end) n";
        stage.sql.execute(copies, &[]).await.expect("clusters");
        let syncset = json!({"namespace": "foo", "name": "s1", "spec": {"clusterDeploymentRefs": []}});
        admin.send(&Request::post("/v1/syncsets", &syncset)).await.expect("an answer").success().expect("a syncset");
        // Of thirty others the deletions are held, everywhere.
        let rest = "insert into towline_result select c.id, case n when 1 then s.id else gen_random_uuid() end, 'SyncSet', 'foo', 's' || n, '\\x00', 1, \
                      'Failure', 'Rejected', repeat('no ', 100), now(), null, false from syncsets s, clusters c, generate_series(1, 10) n \
                      where c.name <> 'west'; \
                    insert into towline_guard (syncset, checked, gone, held, clusters, since, tracks, cause, kind, namespace, name) \
                      select gen_random_uuid(), 1, false, true, 2004, now(), 2004, 'many', 'SelectorSyncSet', '', 'h' || n from generate_series(1, 30) n; \
                    insert into towline_lost select c.id, g.syncset, 5, 0, 0, 0, false, true from towline_guard g, clusters c; \
                    insert into towline_cluster (cluster, kubeconfig_generation, reachable, attempts) select id, 1, true, 0 from clusters; \
                    insert into towline_work (cluster, ready_at, namespace) select id, now() + interval '1 day', namespace from clusters \
                      on conflict (cluster) do update set ready_at = excluded.ready_at; \
                    analyze";
        stage.sql.batch_execute(rest).await.expect("what passes have stored");
        let forget =
            "select statistics.pg_stat_statements_reset(0, oid, 0) from pg_database where datname = current_database()";
        let read = "select coalesce(sum(shared_blks_hit + shared_blks_read), 0)::int8 from statistics.pg_stat_statements s \
                    where s.dbid = (select oid from pg_database where datname = current_database()) \
                      and (query like 'with mine as%towline_version s) w%' or query like 'with failed as%' or query like '%exists ( select from towline_cluster p%')";
        for path in [
            "/v1/fleet",
            "/v1/fleet/clusters",
            "/v1/fleet/clusters?state=failing",
            "/v1/fleet/clusters?syncset=SyncSet/foo/s1",
            "/v1/fleet/clusters?syncset=SyncSet/foo/s1&outcome=not_applied",
            "/v1/fleet/clusters?syncset=SyncSet/foo/s1&outcome=failed",
            "/v1/syncset-failures",
        ] {
            let mut blocks = Vec::new();
            for (role, places) in [("read", "foo"), ("read", "fo*"), ("admin", "*")] {
                let mut client = stage.replica.client().with_token(&token(role, places));
                stage.sql.execute(forget, &[]).await.expect("it is reset");
                shown(&mut client, path).await;
                blocks.push(stage.number(read).await);
            }
            let [of_foo, of_fo, of_all] = blocks[..] else { panic!("three") };
            assert!(of_foo > 0 && of_foo < 400 && of_fo < 400, "{path}: {blocks:?}");
            let is_first_page = path.starts_with("/v1/fleet/clusters") && !path.contains("state");
            assert!(is_first_page || of_all > 1000, "{path}: {blocks:?}");
        }
    });
}
