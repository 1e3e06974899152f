//! What an API server does not keep as it was written: defaulted, pruned, and kept once its definition allows it.

use integration::rbac::{Grant, Side};
use integration::{crds, users};
use kube::ResourceExt;
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use serde_json::{Value, json};

use crate::rules_world::*;

/// A kind of this test alone, whose definitions it may change.
struct OwnKind {
    plural: &'static str,
    kind: &'static str,
}

impl OwnKind {
    fn resource(&self) -> ApiResource {
        ApiResource::from_gvk(&GroupVersionKind::gvk("demo.towline.dev", "v1", self.kind))
    }

    /// The definition with these properties of spec and status, and with or without a status subresource.
    fn manifest(&self, spec: &str, status: &str, subresource: bool) -> String {
        let Self { plural, kind } = self;
        let subresources = if subresource { "subresources: {status: {}}" } else { "subresources: {}" };
        format!(
            "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {{name: {plural}.demo.towline.dev}}
spec:
  group: demo.towline.dev
  scope: Namespaced
  names: {{kind: {kind}, listKind: {kind}List, plural: {plural}, singular: {singular}}}
  versions:
    - name: v1
      served: true
      storage: true
      {subresources}
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec: {{type: object, properties: {{{spec}}}}}
            status: {{type: object, properties: {{{status}}}}}
",
            singular = kind.to_lowercase(),
        )
    }

    async fn install(&self, side: Side, manifest: &str) {
        let world = world().await;
        let plane = if side == Side::Remote { &world.hub } else { &world.edge };
        crds::install(&plane.client(users::ADMIN).await.unwrap(), manifest).await.unwrap();
    }

    /// Both definitions, and the roles of `deploy/` for both sides.
    async fn introduce(&self, hub: &str, edge: &str) {
        let world = world().await;
        for (side, plane, manifest) in [(Side::Remote, &world.hub, hub), (Side::Local, &world.edge, edge)] {
            self.install(side, manifest).await;
            Grant::kind(side, self.plural, "demo.towline.dev").apply(&admin(plane).await).await.unwrap();
        }
    }
}

const SIZE: &str = "size: {type: integer}";
const SIZE_AND_SHAPE: &str =
    "size: {type: integer}, shape: {type: string}, tooth: {type: object, properties: {depth: {type: integer}}}";
const PHASE: &str = "phase: {type: string}";

fn gear() -> Value {
    json!({"spec": {"size": 1, "shape": "round", "tooth": {"depth": 3}}})
}

#[test]
fn a_field_that_the_edge_prunes_is_named_and_is_in_step_when_the_definition_keeps_it() {
    run(async {
        let kind = OwnKind { plural: "cogs", kind: "Cog" };
        let (new, old) = (kind.manifest(SIZE_AND_SHAPE, PHASE, true), kind.manifest(SIZE, PHASE, true));
        kind.introduce(&new, &old).await;
        let section = Section::start("pruned", kind.resource(), "").await;
        section.make_namespaces("a").await;
        section.make_remote("a", "gear", &gear()).await;
        section.make_remote("a", "plain", &json!({"spec": {"size": 2}})).await;
        section.local_has("a", "gear", |local| local.data["spec"] == json!({"size": 1})).await;
        // Named in the report, in an Event and once in the log; counted.
        let report = section.report_has("the pruned fields", |report| report["unkept"]["objects"] == json!(1)).await;
        assert_eq!(report["unkept"]["fields"], json!(2));
        let named = &report["unkept"]["first"][0];
        assert_eq!(named["key"], json!(format!("{}/gear", section.namespace("a"))));
        assert_eq!(named["cluster"], json!("edge"));
        assert_eq!(named["fields"], json!(["spec.shape", "spec.tooth"]));
        let note = section.event("a", "gear", "FieldsNotKept").await;
        assert!(note.contains("spec.shape") && note.contains("spec.tooth") && note.contains("edge"), "{note}");
        section.quiet_with(&json!({"spec": {"size": 7}})).await;
        // It settles: what else happens to the pair writes nothing to the edge.
        let since = section.mark().await;
        section.patch_local_status("a", "gear", &json!({"phase": "Ready"})).await;
        section.remote_has("a", "gear", |remote| remote.data["status"]["phase"] == "Ready").await;
        section.quiet_with(&json!({"spec": {"size": 7}})).await;
        assert_eq!(section.counted("a", since).await, (counts([("patch cogs/status", 1)]), counts([])));

        // The definition is upgraded: nothing else happens to the pair, and the daemon runs on.
        kind.install(Side::Local, &new).await;
        let whole = gear();
        section.local_has("a", "gear", |local| local.data["spec"] == whole["spec"]).await;
        section.report_has("nothing pruned", |report| report.get("unkept").is_none()).await;
        assert_eq!(section.events("a", "gear").await, counts([("FieldsNotKept", 1)]), "told once");
        let log = section.towline.log().unwrap();
        assert_eq!(log.matches("the API server does not keep fields").count(), 1, "{log}");
        assert_eq!(section.events("a", "plain").await, counts([]));
    });
}

#[test]
fn a_restart_writes_a_pruned_field_once_more_and_what_is_only_defaulted_never() {
    run(async {
        let kind = OwnKind { plural: "levers", kind: "Lever" };
        let defaulting = "size: {type: integer}, colour: {type: string, default: grey}";
        kind.introduce(&kind.manifest(SIZE_AND_SHAPE, PHASE, true), &kind.manifest(defaulting, PHASE, true)).await;
        let mut section = Section::start("pruned-restart", kind.resource(), "").await;
        section.make_namespaces("a").await;
        section.make_namespaces("b").await;
        section.make_remote("a", "pruned", &gear()).await;
        section.make_remote("b", "defaulted", &json!({"spec": {"size": 2}})).await;
        let noted =
            |remote: &kube::core::DynamicObject| remote.annotations().contains_key(&mark("sync-local-generation"));
        for (suffix, name) in [("a", "pruned"), ("b", "defaulted")] {
            section.local_has(suffix, name, |local| local.data["spec"]["colour"] == "grey").await;
            section.remote_has(suffix, name, noted).await;
        }
        section.quiet_with(&json!({"spec": {"size": 7}})).await;
        section.towline.kill9().await.unwrap();
        let since = section.mark().await;
        section.towline.start_again().await.unwrap();
        section.towline.wait_ready(LIMIT).await.unwrap();
        section.report_has("three pairs in step", |report| report["objects"]["in_step"] == json!(3)).await;
        section.quiet_with(&json!({"spec": {"size": 7}})).await;
        assert_eq!(section.counted("a", since).await, (counts([]), counts([("patch levers", 1)])));
        assert_eq!(section.counted("b", since).await, (counts([]), counts([])));
        // And a change is a change all the same, from either side.
        section.patch_remote("b", "defaulted", &json!({"spec": {"size": 3}})).await;
        section.local_has("b", "defaulted", |local| local.data["spec"] == json!({"size": 3, "colour": "grey"})).await;
        section.patch_local("b", "defaulted", &json!({"spec": {"size": 4, "colour": "red"}})).await;
        section.local_has("b", "defaulted", |local| local.data["spec"] == json!({"size": 3, "colour": "grey"})).await;
        // The definition is upgraded while no daemon runs.
        section.towline.kill9().await.unwrap();
        kind.install(Side::Local, &kind.manifest(SIZE_AND_SHAPE, PHASE, true)).await;
        section.towline.start_again().await.unwrap();
        section.local_has("a", "pruned", |local| local.data["spec"] == gear()["spec"]).await;
    });
}

#[test]
fn a_local_field_that_left_the_settings_is_the_remotes_again_and_goes_where_the_remote_has_none() {
    run(async {
        let settings = "local_fields = [\"/spec/replicas\"]";
        let mut section = Section::start_with("local-field-gone", documents(), settings, |mapping| {
            mapping.local_fields = vec!["/spec/replicas".to_owned()];
        })
        .await;
        section.make_namespaces("a").await;
        section.make_namespaces("b").await;
        for (suffix, name, spec) in [
            ("a", "web", json!({"name": "web"})),
            ("a", "other", json!({"name": "other"})),
            ("b", "web", json!({"replicas": 1, "name": "web"})),
        ] {
            section.make_remote(suffix, name, &json!({"spec": spec})).await;
        }
        section.in_step().await;
        for suffix in ["a", "b"] {
            section.patch_local(suffix, "web", &json!({"spec": {"replicas": 9}})).await;
        }
        section.in_step().await;
        section.quiet().await;
        section.towline.terminate(LIMIT).await.unwrap();
        let path = section.towline.config_path();
        let config = std::fs::read_to_string(&path).unwrap();
        assert!(config.contains(settings));
        std::fs::write(&path, config.replace(settings, "")).unwrap();
        let since = section.mark().await;
        section.towline.start_again().await.unwrap();
        section.local_has("a", "web", |local| local.data["spec"] == json!({"name": "web"})).await;
        section.local_has("b", "web", |local| local.data["spec"] == json!({"replicas": 1, "name": "web"})).await;
        section.place_mut().mapping.local_fields.clear();
        section.in_step().await;
        section.quiet().await;
        let once = (counts([("patch documents", 1)]), counts([("patch documents", 1)]));
        assert_eq!(section.counted("a", since).await, once, "one write, and its generations");
        // Nothing is left to be done at the next restart.
        section.towline.kill9().await.unwrap();
        section.towline.start_again().await.unwrap();
        section.quiet().await;
        assert_eq!(section.counted("a", since).await, once);
    });
}

#[test]
fn a_kind_that_gains_and_loses_a_status_subresource_has_its_status_written_the_way_it_is_served() {
    run(async {
        let kind = OwnKind { plural: "pulleys", kind: "Pulley" };
        let (without, with) = (kind.manifest(SIZE, PHASE, false), kind.manifest(SIZE, PHASE, true));
        kind.introduce(&without, &without).await;
        let section = Section::start("status-way", kind.resource(), "").await;
        section.make_namespaces("a").await;
        section.make_remote("a", "one", &json!({"spec": {"size": 1}})).await;
        section.local_has("a", "one", |_| true).await;
        let report = async |phase: &str, subresource: bool| {
            let status = json!({"status": {"phase": phase}});
            if subresource {
                section.patch_local_status("a", "one", &status["status"]).await;
            } else {
                section.patch_local("a", "one", &status).await;
            }
            section.remote_has("a", "one", |remote| remote.data["status"]["phase"] == phase).await;
        };
        report("without", false).await;
        kind.install(Side::Remote, &with).await;
        report("the hub gained it", false).await;
        kind.install(Side::Local, &with).await;
        report("both have it", true).await;
        kind.install(Side::Remote, &without).await;
        report("the hub lost it", true).await;
    });
}
