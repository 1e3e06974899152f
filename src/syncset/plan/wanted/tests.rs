//! Who wants what.

use super::*;
use crate::syncset::plan::name::{SyncSetKind, SyncSetName};
use crate::syncset::plan::reason::Reason;
use crate::syncset::plan::spec::{Behavior, Mode, Position};

fn object(group: &str, kind: &str, namespace: &str, name: &str) -> ObjectRef {
    ObjectRef { group: group.to_owned(), kind: kind.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() }
}

fn map(name: &str) -> ObjectRef {
    object("", "ConfigMap", "default", name)
}

fn live(id: u128, rendered: Option<Vec<Rendering<Desired>>>) -> Live {
    Live {
        header: Header {
            id: Uuid::from_u128(id),
            name: SyncSetName { kind: SyncSetKind::SelectorSyncSet, namespace: String::new(), name: format!("s{id}") },
            version: 1,
            generation: 2,
            behavior: Behavior::Apply,
            mode: Mode::Sync,
            resource_templates: false,
            patch_templates: false,
            health: None,
            secrets: Vec::new(),
        },
        inputs: Digest([3; 32]),
        rendered: rendered.map(|resources| Rendered { resources, ..Rendered::default() }),
        deletions: Deletions::Allowed,
    }
}

fn ready(object: ObjectRef) -> Rendering<Desired> {
    Rendering::Ready(Desired {
        place: Position::Resource(0),
        object,
        api_version: "v1".to_owned(),
        body: serde_json::Value::Null,
        content: Digest([4; 32]),
        may_adopt: false,
        may_recreate: false,
    })
}

fn failed(known: Known) -> Rendering<Desired> {
    let failure = Failure { reason: Reason::TemplateInvalid, message: "no".to_owned() };
    Rendering::Failed { known, failure }
}

fn row(id: u128, object: ObjectRef, is_sent: bool) -> AppliedRow {
    AppliedRow {
        object,
        syncset: Uuid::from_u128(id),
        api_version: "v1".to_owned(),
        content: is_sent.then_some(Digest([4; 32])),
        wanted: true,
        tracked: true,
        adopted: false,
        uid: None,
        version: None,
        owned: None,
        resent: 0,
        gone: 0,
    }
}

#[test]
fn the_last_claimant_wins_whether_it_is_due_or_not() {
    let live = [live(1, Some(vec![ready(map("a")), ready(map("b"))])), live(2, None)];
    let wanted = Wanted::new(&live, &[row(2, map("a"), true), row(1, map("old"), true)], |_| Scope::Namespaced);
    assert_eq!(wanted.claimants(&map("a")).collect::<Vec<_>>(), [0, 1]);
    assert_eq!((wanted.winner(&map("a")), wanted.winner(&map("b"))), (Some(1), Some(0)));
    assert_eq!(wanted.winner(&map("old")), None);
}

#[test]
fn a_syncset_that_does_not_render_wants_what_it_wanted_and_what_it_is_known_to_want() {
    let live = [live(1, Some(vec![ready(map("a")), failed(Known::Object(map("b")))]))];
    let wanted = Wanted::new(&live, &[row(1, map("old"), true)], |_| Scope::Namespaced);
    assert_eq!(wanted.objects().collect::<Vec<_>>(), [&map("a"), &map("b"), &map("old")]);
    assert!(live[0].obstacle().is_some());
}

#[test]
fn a_namespace_counts_only_for_kinds_that_have_one() {
    let (with, without) = (object("", "Node", "default", "n"), object("", "Node", "", "n"));
    let live = [live(1, Some(vec![ready(with.clone())]))];
    let of = |scope: Scope| Wanted::new(&live, &[], |_| scope);
    assert!(of(Scope::Cluster).winner(&without).is_some() && of(Scope::Cluster).winner(&with).is_none());
    assert!(!of(Scope::Namespaced).may_want(&without));
    assert!(of(Scope::Unknown).may_want(&without));
}

#[test]
fn an_unknown_name_may_be_any_object_of_its_kind_or_one_within_a_namespace() {
    let live = [live(1, Some(vec![failed(Known::Kind { group: "apps".to_owned(), kind: "Deployment".to_owned() })]))];
    let wanted = Wanted::new(&live, &[], |_| Scope::Namespaced);
    assert!(wanted.may_want(&object("apps", "Deployment", "default", "d")));
    assert!(wanted.may_want(&object("", "Namespace", "", "n")));
    assert!(wanted.may_want(&object("apiextensions.k8s.io", "CustomResourceDefinition", "", "x.apps")));
    assert!(!wanted.may_want(&object("apiextensions.k8s.io", "CustomResourceDefinition", "", "x.other")));
    assert!(!wanted.may_want(&map("a")));
}

#[test]
fn whoever_has_to_send_what_another_drops_is_due() {
    let rows = [row(1, map("a"), false), row(2, map("a"), true)];
    let dropped = [live(1, None), live(2, Some(Vec::new()))];
    assert_eq!(also_due(&dropped, &rows), BTreeSet::from([Uuid::from_u128(1)]));
    let kept = [live(1, None), live(2, Some(vec![ready(map("a"))]))];
    assert!(also_due(&kept, &rows).is_empty());
}
