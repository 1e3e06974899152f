use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::syncset::rules::name::SyncSetKind;
use crate::syncset::rules::render::{UnreadableSecret, render};
use crate::syncset::rules::spec::{Known, Payload, Rendering};

const REGION: &str = "{{ fromCDLabel \"region\" }}";

fn name() -> SyncSetName {
    SyncSetName { kind: SyncSetKind::SelectorSyncSet, namespace: String::new(), name: "base".to_owned() }
}

fn spec(mode: &str) -> Value {
    json!({"resourceApplyMode": mode, "enableResourceTemplates": true, "secretMappings": [
        {"sourceRef": {"name": "pull", "namespace": "a"}, "targetRef": {"name": "pull", "namespace": "b"}}]})
}

fn resource(version: &str, kind: &str, namespace: &str, name: &str) -> [Option<String>; 4] {
    [version, kind, namespace, name].map(|text| (!text.is_empty()).then(|| text.to_owned()))
}

/// A config map `site-<region>`, one named `plain`, and a deployment in a namespace of the zone's name.
fn naming(mode: &str) -> Naming {
    let resources = [
        resource("v1", "ConfigMap", "default", &format!("site-{REGION}")),
        resource("v1", "ConfigMap", "default", "plain"),
        resource("apps/v1", "Deployment", "{{ fromCDLabel \"zone\" }}", "agent"),
    ];
    Naming::read(&name(), &spec(mode), Some(&resources))
}

fn labels(labels: &[(&str, &str)]) -> BTreeMap<String, String> {
    labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn in_region(region: &str) -> BTreeMap<String, String> {
    labels(&[("region", region), ("zone", "z")])
}

fn map(name: &str) -> [String; 4] {
    ["", "ConfigMap", "default", name].map(str::to_owned)
}

fn maps(names: &[&str]) -> Objects {
    names.iter().map(|name| map(name)).collect()
}

fn noted(names: &[&str], back: bool, counts: bool) -> Noted {
    Noted::Renamed { objects: maps(names), back, counts }
}

fn judge(region: &str, tracked: &[&str], noted: Option<&Noted>) -> Finding {
    naming("Sync").judge(&in_region(region), &maps(tracked), noted, false)
}

#[test]
fn other_labels_lose_what_only_the_former_ones_name() {
    assert_eq!(judge("a", &["site-a", "plain"], None), Finding::Unchanged);
    assert_eq!(judge("b", &["site-a", "plain"], None), Finding::Loses(maps(&["site-a"])));
    assert_eq!(judge("b", &["plain"], None), Finding::Unchanged, "it was never applied, or adopted");
    let in_zone = |zone: &str| ["apps", "Deployment", zone, "agent"].map(str::to_owned);
    let tracked = [in_zone("y"), in_zone("z")].into();
    assert_eq!(naming("Sync").judge(&in_region("a"), &tracked, None, false), Finding::Loses([in_zone("y")].into()));
}

#[test]
fn what_no_template_could_have_made_goes_because_of_edits() {
    let others = [
        ["", "ConfigMap", "default", "former"],
        ["", "ConfigMap", "other", "site-a"],
        ["", "Secret", "default", "site-a"],
        ["apps", "Deployment", "y", "other"],
    ];
    let others: Objects = others.map(|object| object.map(str::to_owned)).into();
    assert_eq!(naming("Sync").judge(&in_region("b"), &others, None, false), Finding::Unchanged);
    let tracked = maps(&["site-a"]);
    assert_eq!(naming("Sync").judge(&in_region("b"), &tracked, None, true), Finding::Unchanged, "only what is noted");
}

#[test]
fn a_name_that_does_not_render_holds_back_its_kind_and_what_may_have_it_within() {
    let labels = labels(&[("region", "a/b"), ("zone", "z")]);
    let deployment = ["apps", "Deployment", "y", "agent"].map(str::to_owned);
    let tracked = [map("site-a"), deployment.clone()].into();
    assert_eq!(naming("Sync").judge(&labels, &tracked, None, false), Finding::Loses([deployment].into()));
    let namespace = |name: &str| ["", "Namespace", "", name].map(str::to_owned);
    let resources =
        [resource("v1", "Namespace", "", REGION), resource("v1", "ConfigMap", "default", "{{ fromCDLabel \"x\" }}")];
    let naming = Naming::read(&name(), &spec("Sync"), Some(&resources));
    let tracked = [namespace("a")].into();
    assert_eq!(naming.judge(&in_region("b"), &tracked, None, false), Finding::Unchanged);
    let with_x = in_region("b").into_iter().chain([("x".to_owned(), "y".to_owned())]).collect();
    assert_eq!(naming.judge(&with_x, &tracked, None, false), Finding::Loses([namespace("a")].into()));
}

#[test]
fn a_kind_without_namespaces_is_found_whatever_namespace_is_given() {
    let resources = [resource("v1", "PersistentVolume", "ignored", REGION)];
    let naming = Naming::read(&name(), &spec("Sync"), Some(&resources));
    let tracked: Objects = [["", "PersistentVolume", "", "a"].map(str::to_owned)].into();
    assert_eq!(naming.judge(&in_region("a"), &tracked, None, false), Finding::Unchanged);
    assert_eq!(naming.judge(&in_region("b"), &tracked, None, false), Finding::Loses(tracked));
}

#[test]
fn what_deletes_nothing_loses_nothing() {
    let tracked = maps(&["site-a"]);
    for naming in [
        naming("Upsert"),
        naming("Later"),
        Naming::read(&name(), &spec("Sync"), None),
        Naming::read(&name(), &spec("Sync"), Some(&[resource("v1", "", "", "x")])),
    ] {
        assert_eq!(naming.judge(&in_region("b"), &tracked, None, false), Finding::Unchanged, "{naming:?}");
    }
    let noted = noted(&["site-a"], false, true);
    assert_eq!(naming("Upsert").judge(&in_region("b"), &tracked, Some(&noted), false), Finding::Nothing);
}

/// Region b came after region a.
#[test]
fn labels_that_are_restored_take_back_what_was_not_deleted_yet() {
    let lost = noted(&["site-a"], false, true);
    for (region, tracked, expected) in [
        ("b", vec!["site-a"], Finding::Unchanged),
        ("b", vec!["site-a", "site-b"], Finding::Unchanged),
        ("b", vec!["site-b"], Finding::Unchanged),
        ("a", vec!["site-a"], Finding::Nothing),
        ("a", vec!["site-a", "site-b"], Finding::Restored(maps(&["site-b"]))),
        ("a", vec!["site-b"], Finding::Back(maps(&["site-b"]))),
        ("a", vec![], Finding::Back(maps(&[]))),
        // A third region does not make of what is to go what has to stay.
        ("c", vec!["site-a", "site-b"], Finding::Unchanged),
        ("c", vec!["site-b"], Finding::Loses(maps(&["site-b"]))),
    ] {
        assert_eq!(judge(region, &tracked, Some(&lost)), expected, "{region} {tracked:?}");
    }
}

#[test]
fn what_was_approved_taken_back_or_counts_no_longer_does_not_hide_the_next_loss() {
    for (noted, region, tracked, expected) in [
        // Approved, or long ago.
        (noted(&["site-a"], false, false), "b", vec!["site-a", "site-b"], Finding::Unchanged),
        (noted(&["site-a"], false, false), "b", vec!["site-b"], Finding::Nothing),
        (noted(&["site-a"], false, false), "a", vec!["site-b"], Finding::Loses(maps(&["site-b"]))),
        (noted(&["site-a"], false, false), "a", vec!["site-a"], Finding::Nothing),
        // Taken back.
        (noted(&["site-b"], true, true), "a", vec!["site-a", "site-b"], Finding::Unchanged),
        (noted(&["site-b"], true, true), "a", vec!["site-a"], Finding::Left(maps(&[]))),
        (noted(&["site-b"], true, true), "b", vec!["site-a"], Finding::Loses(maps(&["site-a"]))),
        // Matched again, which counts by itself.
        (Noted::Unmatched { back: true }, "a", vec!["site-a"], Finding::Unchanged),
        (Noted::Unmatched { back: true }, "b", vec!["site-a"], Finding::Loses(maps(&["site-a"]))),
        (Noted::Unmatched { back: false }, "a", vec!["site-a"], Finding::Nothing),
        (Noted::Unmatched { back: false }, "b", vec!["site-a"], Finding::Loses(maps(&["site-a"]))),
    ] {
        assert_eq!(judge(region, &tracked, Some(&noted)), expected, "{noted:?} {region} {tracked:?}");
    }
}

#[test]
fn what_is_named_again_of_several_objects_is_not_lost_any_more() {
    let resources = [
        resource("v1", "ConfigMap", "default", &format!("one-{REGION}")),
        resource("v1", "ConfigMap", "default", "two-{{ fromCDLabel \"zone\" }}"),
    ];
    let naming = Naming::read(&name(), &spec("Sync"), Some(&resources));
    let noted = noted(&["one-a", "two-y"], false, true);
    let tracked = maps(&["one-a", "two-y"]);
    assert_eq!(naming.judge(&in_region("a"), &tracked, Some(&noted), false), Finding::Left(maps(&["two-y"])));
}

fn after(noted: Option<Noted>, finding: Finding) -> Option<Noted> {
    let (was_back, did_count) = match &noted {
        Some(Noted::Renamed { back, counts, .. }) => (*back, *counts),
        _ => (false, false),
    };
    match finding {
        Finding::Unchanged => noted,
        Finding::Nothing => None,
        Finding::Loses(objects) => Some(Noted::Renamed { objects, back: false, counts: true }),
        Finding::Left(objects) => Some(Noted::Renamed { objects, back: was_back, counts: did_count }),
        Finding::Restored(objects) => Some(Noted::Renamed { objects, back: false, counts: false }),
        Finding::Back(objects) => Some(Noted::Renamed { objects, back: true, counts: did_count }),
    }
}

fn some_maps() -> impl Strategy<Value = Objects> {
    proptest::collection::btree_set(
        prop_oneof!["site-[a-c]", Just("plain".to_owned())].prop_map(|name| map(&name)),
        0..5,
    )
}

fn some_noted() -> impl Strategy<Value = Option<Noted>> {
    let renamed = (some_maps(), any::<bool>(), any::<bool>());
    let renamed = renamed.prop_map(|(objects, back, counts)| Noted::Renamed { objects, back, counts });
    proptest::option::of(prop_oneof![any::<bool>().prop_map(|back| Noted::Unmatched { back }), renamed])
}

proptest! {
    /// A turn that is repeated finds what it has noted.
    #[test]
    fn judging_again_changes_nothing(region in "[a-c]", tracked in some_maps(), noted in some_noted()) {
        let naming = naming("Sync");
        let first = naming.judge(&in_region(&region), &tracked, noted.as_ref(), false);
        let noted = after(noted, first.clone());
        let second = naming.judge(&in_region(&region), &tracked, noted.as_ref(), false);
        prop_assert_eq!(second, Finding::Unchanged, "after {:?}", first);
    }

    /// Whatever was noted: what a pass would delete counts, or is what goes since labels are restored, or has not to be counted again.
    #[test]
    fn nothing_is_deleted_that_is_not_noted(region in "[a-c]", tracked in some_maps(), noted in some_noted()) {
        let naming = naming("Sync");
        let finding = naming.judge(&in_region(&region), &tracked, noted.as_ref(), false);
        let kept = map(&format!("site-{region}"));
        let deleted: Objects = tracked.iter().filter(|object| **object != kept && **object != map("plain")).cloned().collect();
        match after(noted, finding) {
            Some(Noted::Renamed { back: false, counts: true, .. }) => {}
            Some(Noted::Renamed { objects, .. }) => prop_assert!(deleted.is_subset(&objects)),
            Some(Noted::Unmatched { .. }) | None => prop_assert!(deleted.is_empty()),
        }
    }

    /// Judging names objects as a pass does.
    #[test]
    fn names_are_those_of_a_pass(
        names in proptest::collection::vec(("(x|v1|a/v1|a/b/c)", "(Kind|List|)", some_segment(), some_segment()), 0..6),
        region in proptest::option::of("(|a|b|\\.\\.|a/b)"),
    ) {
        let resources: Vec<_> =
            names.iter().map(|(version, kind, namespace, name)| resource(version, kind, namespace, name)).collect();
        let labels: BTreeMap<String, String> = region.into_iter().map(|region| ("region".to_owned(), region)).collect();
        let mut spec = spec("Sync");
        spec["secretMappings"] = json!([]);
        let identity = Identity { id: Uuid::nil(), name: name(), version: 0, generation: 0 };
        let header = parse::header(identity, &spec).expect("a header");
        let values = names.iter().map(|(version, kind, namespace, name)| {
            json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace}})
        });
        let payload = Payload { resources: values.collect(), patches: Vec::new() };
        let rendered = render(&header, &payload, &labels, &|_, _| Err(UnreadableSecret::Missing));
        let (mut objects, mut unknown, mut anything) = (Objects::new(), BTreeSet::new(), false);
        for rendering in rendered.resources {
            let known = match rendering {
                Rendering::Ready(desired) => Known::Object(desired.object),
                Rendering::Failed { known, .. } => known,
            };
            match known {
                Known::Object(ObjectRef { group, kind, namespace, name }) => {
                    objects.insert([group, kind, namespace, name]);
                }
                Known::Kind { group, kind } => drop(unknown.insert([group, kind])),
                Known::Nothing => anything = true,
            }
        }
        match Naming::read(&name(), &spec, Some(&resources)).named {
            None => prop_assert!(anything),
            Some(named) => {
                let found = Names::of(&named, &labels);
                prop_assert!(!anything);
                prop_assert_eq!((found.objects, found.unknown), (objects, unknown));
            }
        }
    }
}

fn some_segment() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "[ab./%]{1,2}", Just(REGION.to_owned()), "x-[ab]".prop_map(|text| text + REGION)]
}
