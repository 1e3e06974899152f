//! The clusters of a fleet by state, as its page asks for them.

use integration::hub::{Client, Request};
use serde_json::{Value, json};

use crate::syncsets_commands::failures::fail;
use crate::syncsets_commands::rights::{guarded, token};
use crate::syncsets_commands::world::{make, run, shown};

/// The status of an answer.
async fn status(client: &mut Client, path: &str) -> u16 {
    client.send(&Request::get(path)).await.expect("an answer").status
}

fn names(page: &Value) -> Vec<String> {
    let name = |item: &Value| item["name"].as_str().expect("a name").to_owned();
    page["items"].as_array().expect("items").iter().map(name).collect()
}

#[test]
fn the_clusters_that_a_token_may_read_are_counted_by_state_and_listed_in_pages_of_one_statement() {
    run(async {
        let grants = [("admin", "*"), ("read", "foo"), ("read", "ba*")];
        let stage = guarded("fleet", &grants).await;
        let mut admin = stage.replica.client().with_token(&token("admin", "*"));
        // Another process is the dispatcher, and makes nothing due.
        let elsewhere = "update towline_claim set holder = 'elsewhere', token = token + 1, until = now() + interval '1 day' \
                         where name = 'dispatcher'";
        assert_eq!(stage.sql.execute(elsewhere, &[]).await.expect("the claim"), 1);
        make(&mut admin, "foo", "west", "prod", true).await;
        make(&mut admin, "bar", "east", "dev", true).await;
        // No worker takes them before tomorrow, so nothing of them changes.
        let copies = "with made as (insert into clusters select kind, gen_random_uuid(), namespace, 'c' || lpad(n::text, 5, '0'), labels, annotations, \
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

        let states = json!({"paused": 1, "unreachable": 5, "failing": 10, "held": 0, "due": 50, "in_step": 385});
        let mut of_foo = stage.replica.client().with_token(&token("read", "foo"));
        let fleet = shown(&mut of_foo, "/v1/fleet").await;
        let expected = json!({"clusters": 451, "states": states, "groups": [], "held": [], "heldMore": 0});
        assert_eq!(fleet, expected);
        let all = shown(&mut admin, "/v1/fleet?groupBy=env").await;
        assert_eq!((&all["clusters"], &all["states"]["paused"]), (&json!(452), &json!(2)));
        assert_eq!(all["groups"][0], json!({"value": "prod", "clusters": 451, "states": states}));
        assert_eq!((&all["groups"][1]["value"], &all["groups"][1]["clusters"]), (&json!("dev"), &json!(1)));

        // Every cluster is on one page, in order, and each page is one statement.
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
        let calls = "select sum(calls)::int8 from statistics.pg_stat_statements s \
                     where s.dbid = (select oid from pg_database where datname = current_database()) and query like '%page as (select%'";
        assert_eq!(stage.number(calls).await, 3);

        let page = shown(&mut of_foo, "/v1/fleet/clusters?state=failing&labelSelector=env%3Dprod").await;
        assert_eq!(names(&page).len(), 10);
        let first = &page["items"][0];
        assert_eq!((&first["failing"], &first["syncset"]), (&json!(1), &json!("SyncSet foo/base")));
        // A message is data; the page shows it as text.
        assert_eq!((&first["reason"], &first["message"]), (&json!("Rejected"), &json!("<img src=x onerror=alert(1)>")));
        for (query, found) in [
            ("syncset=SyncSet/foo/extra", 3),
            ("syncset=SelectorSyncSet/extra", 0),
            ("state=unreachable", 5),
            ("state=paused", 1),
            ("state=due&limit=200", 50),
            ("text=foo/c0001", 10),
            ("labelSelector=env%3Ddev", 0),
        ] {
            let page = shown(&mut of_foo, &format!("/v1/fleet/clusters?{query}")).await;
            assert_eq!((names(&page).len(), page.get("continue")), (found, None), "{query}");
        }
        for wrong in [
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

        let mut of_ba = stage.replica.client().with_token(&token("read", "ba*"));
        assert_eq!(names(&shown(&mut of_ba, "/v1/fleet/clusters").await), ["east"]);
        assert_eq!(shown(&mut of_ba, "/v1/fleet").await["clusters"], 1);
        for path in ["/v1/fleet?namespace=foo", "/v1/fleet/clusters?namespace=foo"] {
            assert_eq!(status(&mut of_ba, path).await, 403, "{path}");
            assert_eq!(status(&mut stage.replica.client(), path).await, 401, "{path}");
        }
    });
}
