//! Which document owns a cluster to which several lead: the first one of the namespace, as the database decides it.

use std::collections::BTreeMap;

use towline::test_api::documents::{Change, Expected, Key, Kind, WorkClaim};
use towline::test_api::syncset::store::{PassStore, StoreError};

use crate::documents::world::{Stage, item, row, run};

/// Creates these documents, and claims them.
async fn claims(stage: &Stage, namespace: &str, names: &[&str]) -> BTreeMap<String, WorkClaim> {
    let mut claims = BTreeMap::new();
    for name in names {
        let change = Change::put(&Key::new(Kind::Cluster, namespace, *name), Expected::Absent, row());
        stage.writer().version(item(vec![change])).await;
        let text = format!(
            "insert into towline_work (cluster, ready_at, holder, token, until) select id, now() + interval '1 d', 'me', 17, \
               now() + interval '1 h' from clusters where namespace = '{namespace}' and name = '{name}' returning cluster::text"
        );
        let cluster: String = stage.sql.query_one(&text, &[]).await.expect("a row").get(0);
        let cluster = cluster.parse().expect("an id");
        claims.insert((*name).to_owned(), WorkClaim { cluster, holder: "me".to_owned(), token: 17 });
    }
    claims
}

/// The documents that were asked for since the last call.
async fn asked(stage: &Stage) -> String {
    let text = "with asked as (update towline_work set ready_at = now() + interval '1 d' where ready_at <= now() returning cluster) \
         select coalesce(string_agg(c.name, ' ' order by c.name), '') from asked join clusters c on c.id = asked.cluster";
    stage.sql.query_one(text, &[]).await.expect("a row").get(0)
}

#[test]
fn the_first_document_of_a_namespace_owns_the_cluster_until_it_leads_elsewhere() {
    run(async {
        let stage = Stage::new("owning").await;
        let store = PassStore::new(stage.database());
        let (here, there) = (claims(&stage, "foo", &["c", "b", "a"]).await, claims(&stage, "bar", &["other"]).await);
        let own = async |name: &str, identity: &str| store.own(&here[name], identity).await.expect("it is held");
        let other = store.own(&there["other"], "one").await.expect("it is held");
        assert_eq!((other, own("c", "one").await), (None, None), "each is the first one of its namespace");
        for name in ["b", "a", "b"] {
            assert_eq!(own(name, "one").await.as_deref(), Some("c"));
        }
        assert_eq!(own("c", "one").await, None, "it is asked again");
        let owner = async |name: &str| {
            store
                .snapshot_within(here[name].cluster, usize::MAX)
                .await
                .expect("a snapshot")
                .expect("there is room")
                .owner
        };
        assert_eq!((owner("a").await.as_deref(), owner("c").await), (Some("c"), None));
        assert_eq!(asked(&stage).await, "");
        // The order of names is not the one in which they came.
        assert_eq!((own("c", "two").await, asked(&stage).await.as_str()), (None, "a b"));
        assert_eq!((owner("b").await, owner("a").await.as_deref()), (None, Some("b")));
        assert_eq!(own("c", "one").await.as_deref(), Some("b"), "it comes last now");
        assert_eq!(own("b", "two").await, None);
        assert_eq!((asked(&stage).await.as_str(), own("c", "one").await.as_deref()), ("a c", Some("a")));
    });
}

#[test]
fn of_documents_that_are_found_to_lead_to_one_cluster_at_once_exactly_one_owns_it() {
    run(async {
        let stage = Stage::new("owning_at_once").await;
        let store = PassStore::new(stage.database());
        let all = claims(&stage, "foo", &["a", "b", "c", "d", "e", "f"]).await;
        for round in 0..20 {
            let asks = all.iter().map(|(name, claim)| {
                let (store, identity) = (store.clone(), format!("round-{round}"));
                async move { (name, store.own(claim, &identity).await.expect("it is held")) }
            });
            let found = futures::future::join_all(asks).await;
            let owners: Vec<&String> =
                found.iter().filter(|(_, owner)| owner.is_none()).map(|(name, _)| *name).collect();
            let [owner] = owners[..] else { panic!("round {round}: {found:?}") };
            assert!(found.iter().all(|(_, told)| told.as_ref().is_none_or(|told| told == owner)), "{found:?}");
        }
    });
}

#[test]
fn a_pass_that_has_lost_its_claim_owns_nothing() {
    run(async {
        let stage = Stage::new("owning_late").await;
        let store = PassStore::new(stage.database());
        let all = claims(&stage, "foo", &["a", "b"]).await;
        stage.run("update towline_work set token = 18").await;
        let late = store.own(&all["a"], "one").await;
        assert!(matches!(late, Err(StoreError::ClaimLost)), "{late:?}");
        stage.run("update towline_work set token = 17").await;
        assert_eq!(store.own(&all["b"], "one").await.expect("it is held"), None);
    });
}
