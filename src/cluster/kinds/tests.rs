//! What is concluded from which answers of discovery.

use serde_json::{Value, json};

use super::*;
use crate::cluster::watch::scripted::Script;

fn id(api_version: &str, kind: &str) -> KindId {
    KindId::of(api_version, kind)
}

fn resources(of: &[(&str, &str, bool)]) -> (u16, Value) {
    let resources: Vec<Value> = of
        .iter()
        .map(|(name, kind, namespaced)| json!({"name": name, "kind": kind, "namespaced": namespaced}))
        .collect();
    (200, json!({"kind": "APIResourceList", "resources": resources}))
}

fn groups(of: &[(&str, &[&str])]) -> (u16, Value) {
    let group = |(name, versions): &(&str, &[&str])| {
        let versions: Vec<Value> = versions.iter().map(|version| json!({"version": version})).collect();
        json!({"name": name, "versions": versions})
    };
    (200, json!({"kind": "APIGroupList", "groups": of.iter().map(group).collect::<Vec<_>>()}))
}

fn missing() -> (u16, Value) {
    (404, json!("404 page not found"))
}

/// Core, `apps` in v1, `demo.test` in v1 and v1beta1, and `down.test`, whose server does not answer.
fn usual(line: &str) -> (u16, Value) {
    match line {
        "GET /api" => (200, json!({"kind": "APIVersions", "versions": ["v1"]})),
        "GET /api/v1" => resources(&[
            ("namespaces", "Namespace", false),
            ("pods/eviction", "Eviction", true),
            ("configmaps", "ConfigMap", true),
            ("namespaces/status", "Namespace", false),
        ]),
        "GET /apis" => groups(&[
            ("apps", &["v1"]),
            ("demo.test", &["v1", "v1beta1"]),
            ("down.test", &["v1", "v2"]),
            ("coming.test", &["v1"]),
        ]),
        "GET /apis/apps/v1" => resources(&[
            ("deployments", "Deployment", true),
            ("deployments/scale", "Scale", true),
            ("../x", "Wrong", true),
        ]),
        "GET /apis/demo.test/v1" => resources(&[("regions", "Region", false)]),
        "GET /apis/demo.test/v1beta1" => resources(&[("queues", "Queue", true)]),
        "GET /apis/down.test/v1" => resources(&[("things", "Thing", true)]),
        "GET /apis/down.test/v2" => (503, json!({"kind": "Status", "message": "service unavailable"})),
        _ => missing(),
    }
}

fn scripted() -> (Cluster, Script) {
    let (cluster, script) = Cluster::scripted("edge");
    script.answer(usual);
    (cluster, script)
}

async fn look_up(
    kinds: &mut Kinds,
    cluster: &Cluster,
    wanted: &[KindId],
    now: Instant,
) -> Vec<Result<Kind, KindError>> {
    let until = Instant::now() + Duration::from_mins(1);
    let mut found = kinds.look_up(cluster, &wanted.iter().cloned().collect(), now, until).await;
    wanted.iter().map(|id| found.remove(id).expect("an outcome for each")).collect()
}

#[tokio::test]
async fn the_kinds_of_a_version_cost_one_request_and_are_kept_for_ten_minutes() {
    let (cluster, script) = scripted();
    let (mut kinds, begun) = (Kinds::default(), Instant::now());
    let wanted = [id("v1", "Namespace"), id("v1", "ConfigMap"), id("apps/v1", "Deployment")];
    let found = look_up(&mut kinds, &cluster, &wanted, begun).await;
    let [Ok(namespaces), Ok(config_maps), Ok(deployments)] = found.as_slice() else { panic!("{found:?}") };
    assert!(!namespaces.namespaced && namespaces.status_subresource && config_maps.namespaced);
    assert_eq!(config_maps, &Kind::core("ConfigMap", "configmaps", true));
    assert_eq!(deployments.collection_path("team"), "/apis/apps/v1/namespaces/team/deployments");
    assert_eq!(script.asked(), ["GET /api/v1", "GET /apis/apps/v1"]);
    assert_eq!(kinds.found.len(), 3, "only the kinds in use are kept");

    let later = begun + KEPT - Duration::from_millis(1);
    look_up(&mut kinds, &cluster, &wanted, later).await;
    assert!(script.asked().is_empty());
    // One that was not in use before is looked for, and does not make the others younger.
    look_up(&mut kinds, &cluster, &[id("demo.test/v1", "Region")], later).await;
    assert_eq!(script.asked(), ["GET /apis/demo.test/v1"]);
    look_up(&mut kinds, &cluster, &wanted[..1], begun + KEPT).await;
    assert_eq!(script.asked(), ["GET /api/v1"]);
    assert_eq!(kinds.found.len(), 2, "what is not in use is dropped");
}

#[tokio::test]
async fn a_kind_that_its_group_has_nowhere_differs_from_one_in_another_version_and_from_one_that_is_not_known() {
    let (cluster, _script) = scripted();
    let now = Instant::now();
    let outcome = async |wanted: KindId| match look_up(&mut Kinds::default(), &cluster, &[wanted], now).await.remove(0)
    {
        Ok(_) => "served".to_owned(),
        Err(KindError::NotServed(_)) => "not served".to_owned(),
        Err(KindError::OtherVersion { api_version, .. }) => format!("in {api_version}"),
        Err(KindError::Unread(_)) => "unread".to_owned(),
    };
    for (wanted, expected) in [
        (id("demo.test/v1", "Region"), "served"),
        (id("demo.test/v1", "Queue"), "in demo.test/v1beta1"),
        (id("demo.test/v2", "Region"), "in demo.test/v1"),
        (id("demo.test/v1", "None"), "not served"),
        (id("v1", "None"), "not served"),
        (id("v2", "ConfigMap"), "in v1"),
        (id("gone.test/v1", "Thing"), "not served"),
        // A version could not be read, and may have it.
        (id("down.test/v1", "Thing"), "served"),
        (id("down.test/v1", "Other"), "unread"),
        (id("down.test/v2", "Thing"), "unread"),
        // Its definition is being installed or removed.
        (id("coming.test/v1", "Thing"), "unread"),
        // Names with a slash are subresources, and other names lead elsewhere.
        (id("v1", "Eviction"), "not served"),
        (id("apps/v1", "Scale"), "not served"),
        (id("apps/v1", "Wrong"), "not served"),
        (id("../v1", "Region"), "not served"),
        (id("demo.test/..", "Region"), "not served"),
        (id("demo.test/v1/x", "Region"), "not served"),
        (id("", "Region"), "not served"),
    ] {
        assert_eq!(outcome(wanted.clone()).await, expected, "{wanted}");
    }
}

#[tokio::test]
async fn a_group_is_missing_only_where_the_list_of_groups_says_so() {
    let (cluster, script) = Cluster::scripted("edge");
    for (code, body) in [missing(), (503, json!({})), (200, json!({})), (403, json!({"kind": "Status"}))] {
        script.answer(move |_| (code, body.clone()));
        let wanted = [id("gone.test/v1", "Thing"), id("v1", "Thing")];
        let found = look_up(&mut Kinds::default(), &cluster, &wanted, Instant::now()).await;
        assert!(found.iter().all(|outcome| matches!(outcome, Err(KindError::Unread(_)))), "{code}: {found:?}");
    }
}

#[tokio::test]
async fn a_kind_that_is_not_served_is_looked_for_each_time() {
    let (cluster, script) = scripted();
    let (mut kinds, now) = (Kinds::default(), Instant::now());
    let wanted = [id("new.test/v1", "Thing")];
    for _ in 0..2 {
        let found = look_up(&mut kinds, &cluster, &wanted, now).await;
        assert!(matches!(found.as_slice(), [Err(KindError::NotServed(_))]), "{found:?}");
        assert_eq!(script.asked(), ["GET /apis/new.test/v1", "GET /apis"]);
    }
    script.answer(|line| match line {
        "GET /apis/new.test/v1" => resources(&[("things", "Thing", true)]),
        line => usual(line),
    });
    assert!(look_up(&mut kinds, &cluster, &wanted, now).await.remove(0).is_ok());
    assert_eq!(script.asked(), ["GET /apis/new.test/v1"]);
}

#[tokio::test]
async fn a_group_with_endless_versions_is_not_looked_through() {
    let (cluster, script) = Cluster::scripted("edge");
    script.answer(|line| match line {
        "GET /apis" => {
            let names: Vec<String> = (0..=MOST_VERSIONS).map(|number| format!("v{number}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            groups(&[("many.test", &names)])
        }
        _ => resources(&[]),
    });
    let found = look_up(&mut Kinds::default(), &cluster, &[id("many.test/v1", "Thing")], Instant::now()).await;
    assert!(matches!(found.as_slice(), [Err(KindError::Unread(Error::Decode { .. }))]), "{found:?}");
    assert_eq!(script.asked(), ["GET /apis/many.test/v1", "GET /apis"]);
}

#[tokio::test]
async fn only_the_named_kinds_of_a_list_are_kept_while_others_are_looked_up() {
    let (cluster, _script) = scripted();
    let named = BTreeSet::from([id("apps/v1", "Deployment"), id("demo.test/v2", "Queue")]);
    let until = Instant::now() + Duration::from_mins(1);
    let mut discovery = Discovery { cluster: &cluster, named, until, lists: BTreeMap::new(), groups: None };
    let listed = discovery.list("apps", "v1").await.unwrap().expect("it is served");
    assert_eq!(listed.keys().collect::<Vec<_>>(), ["Deployment"]);
    assert!(discovery.list("", "v1").await.unwrap().expect("it is served").is_empty());
    assert_eq!(discovery.versions("demo.test").await.unwrap(), ["v1", "v1beta1"]);
    let groups = discovery.groups.expect("they were read").unwrap();
    assert_eq!(groups.keys().collect::<Vec<_>>(), ["apps", "demo.test"]);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_for_after_the_time_for_a_look_up() {
    let (cluster, script) = scripted();
    let mut kinds = Kinds::default();
    let (wanted, now) = (id("v1", "ConfigMap"), Instant::now());
    let found = kinds.look_up(&cluster, &BTreeSet::from([wanted.clone()]), now, now).await.remove(&wanted);
    let Some(Err(KindError::Unread(Error::NoAnswer { source, .. }))) = found else { panic!("{found:?}") };
    assert_eq!(source.to_string(), "the kinds of the cluster were not read in time");
    assert!(script.asked().is_empty());
}

#[tokio::test]
async fn expected_kinds_are_found_in_a_list_that_is_read_for_another_and_cost_no_request_themselves() {
    let (cluster, script) = scripted();
    let (mut kinds, now) = (Kinds::default(), Instant::now());
    let expected = [id("v1", "Namespace"), id("v1", "None"), id("apps/v1", "Deployment")];
    kinds.expect(expected.iter().cloned().collect());
    assert!(look_up(&mut kinds, &cluster, &[id("v1", "ConfigMap")], now).await.remove(0).is_ok());
    assert_eq!(script.asked(), ["GET /api/v1"]);
    assert!(look_up(&mut kinds, &cluster, &[id("v1", "Namespace")], now).await.remove(0).is_ok());
    assert!(script.asked().is_empty());
    let is_known = |kinds: &Kinds, now| expected.each_ref().map(|id| kinds.known(id, now).is_some());
    assert_eq!(is_known(&kinds, now), [true, false, false]);
    assert_eq!(is_known(&kinds, now + KEPT), [false; 3]);
    kinds.forget(&expected[0]);
    assert!(look_up(&mut kinds, &cluster, &expected[..1], now).await.remove(0).is_ok());
    assert_eq!(script.asked(), ["GET /api/v1"]);
}
