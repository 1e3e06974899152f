//! What fails is told, once, and retried; the rest goes on.

use std::time::Instant;

use integration::{Filter, Towline, eventually, page, users};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::rules_world::*;

#[test]
fn a_local_schema_s_refusal_is_told_once_and_again_when_it_is_over() {
    run(async {
        let section = Section::start("refused", widgets(), "").await;
        section.make_namespaces("a").await;
        section.make_remote("a", "gear", &json!({"spec": {"size": 1}})).await;
        section.local_has("a", "gear", |_| true).await;
        let since = mark_of(&section.world.edge).await;
        section.patch_remote("a", "gear", &json!({"spec": {"size": 50}})).await;
        let note = section.event("a", "gear", "SyncFailed").await;
        assert!(note.contains("patch_local") && note.contains("spec.size"), "{note}");
        let report = section.report_has("the failure", |report| report["objects"]["failing"] == json!(1)).await;
        let failure = &report["not_in_step"][0];
        assert_eq!(failure["key"], json!(format!("{}/gear", section.namespace("a"))), "{failure}");
        assert!(failure["cause"].as_str().is_some_and(|cause| cause.contains("spec.size")), "{failure}");
        // Neither further attempts nor another order that fails make it younger.
        let failed = (Instant::now(), Timestamp::now());
        eventually("an attempt a second later", LIMIT, async || {
            let filter = Filter::since(since).user(users::TOWLINE).verb("patch").resource("widgets").name("gear");
            let records = section.world.edge.audit().map_err(|error| error.to_string())?.records(&filter).await;
            let mut attempts = records.map_err(|error| error.to_string())?;
            attempts.retain(|record| record.namespace == section.namespace("a") && record.status == 422);
            let last = attempts.last().and_then(|record| record.received.parse::<Timestamp>().ok());
            let is_later = |last: Timestamp| last.duration_since(failed.1) >= SignedDuration::from_secs(1);
            if last.is_some_and(is_later) { Ok(()) } else { Err(format!("{attempts:?}")) }
        })
        .await
        .unwrap();
        section.patch_remote("a", "gear", &json!({"spec": {"size": 51}})).await;
        let (waited, report) = eventually("the next failure", LIMIT, async || {
            let waited = failed.0.elapsed();
            let report = section.towline.admin().section(&section.name).await.map_err(|error| error.to_string())?;
            let first = &report["not_in_step"][0];
            let is_next = first["cause"].as_str().is_some_and(|cause| cause.contains("51"));
            if first["state"] == "failing" && is_next { Ok((waited, report)) } else { Err(report.to_string()) }
        })
        .await
        .unwrap();
        // While an attempt is under way, no time is told for the next one.
        eventually("what the page reads", LIMIT, async || {
            let admin = section.towline.admin();
            let status = admin.status().await.map_err(|error| error.to_string())?;
            page::agrees("/status", "failing", &status)?;
            let objects = admin.get(&format!("/objects/{}", section.name)).await.map_err(|error| error.to_string())?;
            page::agrees("/objects/", "failing", &objects)
        })
        .await
        .unwrap();
        let listed = report["not_in_step"][0]["for_seconds"].as_u64();
        assert!(listed.is_some_and(|age| age >= waited.as_secs()), "{waited:?}: {report}");
        let oldest = report["oldest_unsynced_seconds"]["spec"].as_f64();
        assert!(oldest.is_some_and(|age| age >= waited.as_secs_f64()), "{waited:?}: {report}");
        // One that can't even be made, and one that is fine.
        section.make_remote("a", "wheel", &json!({"spec": {"size": 99}})).await;
        section.make_remote("a", "axle", &json!({"spec": {"size": 2}})).await;
        section.local_has("a", "axle", |_| true).await;
        section.report_has("two failures", |report| report["objects"]["failing"] == json!(2)).await;
        // The status goes up all the same.
        section.patch_local_status("a", "gear", &json!({"phase": "Ready"})).await;
        section.remote_has("a", "gear", |remote| remote.data["status"]["phase"] == "Ready").await;
        // A change retries at once, whatever the back-off has come to.
        for (name, size) in [("gear", 3), ("wheel", 4)] {
            section.patch_remote("a", name, &json!({"spec": {"size": size}})).await;
            section.local_has("a", name, |local| local.data["spec"]["size"] == size).await;
        }
        section.event("a", "gear", "Synced").await;
        section.report_has("no failure", |report| report["objects"]["failing"] == json!(0)).await;
        assert_eq!(section.events("a", "gear").await, counts([("SyncFailed", 1), ("Synced", 1)]));
        let log = section.towline.log().unwrap();
        let told = log.lines().filter(|line| line.contains("sync failed") && line.contains("/gear")).count();
        assert_eq!(told, 1, "one line for one failure");
        let line = log.lines().find(|line| line.contains("sync failed")).unwrap_or_default();
        for part in ["refused", "edge", "patch_local", "spec.size"] {
            assert!(line.contains(part), "{part} in {line}");
        }
    });
}

/// What the remote object says of the edge's refusal.
fn sync_error(object: &DynamicObject) -> Option<&String> {
    object.annotations().get(&mark("sync-error"))
}

/// Waits until the remote object says that the edge rejects this size.
async fn rejected(section: &Place, name: &str, step: &str, size: u64) -> DynamicObject {
    let begins = format!("{step}: spec.size: Invalid value: {size}");
    section.remote_has("a", name, |remote| sync_error(remote).is_some_and(|text| text.starts_with(&begins))).await
}

/// Waits for an Event on the hub.
async fn event_on_the_hub(section: &Place) -> Event {
    let events: Api<Event> = Api::namespaced(section.hub.clone(), &section.namespace("a"));
    eventually("an Event on the hub", LIMIT, async || {
        let listed = events.list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        listed.items.into_iter().next().ok_or_else(|| "none".to_owned())
    })
    .await
    .unwrap()
}

#[test]
fn what_the_edge_rejects_shows_on_the_remote_object_until_it_is_mended() {
    run(async {
        let mut section = Section::start("told-up", widgets(), "").await;
        section.make_namespaces("a").await;
        section.make_remote("a", "gear", &json!({"spec": {"size": 1}})).await;
        section.quiet().await;
        let since = section.mark().await;
        section.patch_remote("a", "gear", &json!({"spec": {"size": 50}})).await;
        rejected(&section, "gear", "patch_local", 50).await;
        let event = event_on_the_hub(&section).await;
        assert_eq!(event.reason.as_deref(), Some("SyncFailed"));
        assert_eq!(event.regarding.unwrap().name.as_deref(), Some("gear"));
        let note = event.note.unwrap();
        assert!(note.starts_with("cluster edge rejects the object: patch_local: spec.size"), "{note}");
        section.report_has("the failure", |report| report["objects"]["failing"] == json!(1)).await;

        // Tried again, at the next change and with back-off, it is not told again; and neither after a restart.
        section.patch_remote("a", "gear", &json!({"metadata": {"labels": {"try": "again"}}})).await;
        section.quiet().await;
        let told = counts([("patch widgets", 1), ("create events", 1)]);
        assert_eq!(section.counted_with_events("a", since).await.0, told, "one annotation and one Event");
        section.towline.kill9().await.unwrap();
        section.towline.start_again().await.unwrap();
        section.report_has("the failure again", |report| report["objects"]["failing"] == json!(1)).await;
        section.quiet().await;
        assert_eq!(section.counted_with_events("a", since).await.0, told, "a restart tells nothing anew");
        let local = section.local_has("a", "gear", |_| true).await;
        assert_eq!(sync_error(&local), None, "it stays on the hub");

        // Another reason takes its place.
        section.patch_remote("a", "gear", &json!({"spec": {"size": 60}})).await;
        rejected(&section, "gear", "patch_local", 60).await;
        section.quiet().await;
        assert_eq!(section.counted("a", since).await.0["patch widgets"], 2);

        // Mended, it goes with the generations.
        section.patch_remote("a", "gear", &json!({"spec": {"size": 3}})).await;
        section.remote_has("a", "gear", |remote| sync_error(remote).is_none()).await;
        section.local_has("a", "gear", |local| local.data["spec"]["size"] == 3).await;
        section.quiet().await;
        assert_eq!(section.counted("a", since).await.0["patch widgets"], 3);
        section.report_has("no failure", |report| report["objects"]["failing"] == json!(0)).await;
    });
}

#[test]
fn a_paused_object_keeps_its_error_and_a_deletion_a_resumption_and_a_detachment_take_it_off() {
    run(async {
        let section = Section::start("told-paused", widgets(), "").await;
        section.make_namespaces("a").await;
        for (name, size) in [("gear", 50), ("wheel", 60), ("axle", 70)] {
            section.make_remote("a", name, &json!({"spec": {"size": size}})).await;
            rejected(&section, name, "create_local", size).await;
        }
        let pause = |paused: &str| json!({"metadata": {"annotations": {mark("paused"): paused}}, "spec": {"size": 2}});
        section.patch_remote("a", "gear", &pause("true")).await;
        section.report_has("the pause", |report| report["objects"]["paused"] == json!(1)).await;
        section.delete_remote("a", "wheel").await;
        section.remote_gone("a", "wheel").await;
        section.quiet().await;
        rejected(&section, "gear", "create_local", 50).await;
        section.patch_remote("a", "gear", &pause("false")).await;
        section.remote_has("a", "gear", |remote| sync_error(remote).is_none()).await;
        section.local_has("a", "gear", |local| local.data["spec"]["size"] == 2).await;

        section.delete_remote("a", "gear").await;
        section.remote_gone("a", "gear").await;
        let since = section.mark().await;
        let args = ["detach", "--yes", "told-paused", "--admin", &section.towline.admin_url()];
        assert!(Towline::command(args).await.unwrap().status.success());
        let remote = section.remote_has("a", "axle", |remote| remote.finalizers().is_empty()).await;
        assert_eq!(sync_error(&remote), None);
        assert_eq!(section.counted("a", since).await.0["patch widgets"], 1, "one write for both");
    });
}

#[test]
fn a_refusal_by_admission_is_a_rejection_whatever_its_code() {
    run(async {
        let section = Place::shared("told-denied", documents()).await;
        section.make_namespaces("a").await;
        let name = "deny-told-denied";
        let policy: ValidatingAdmissionPolicy = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "matchConstraints": {"resourceRules": [{"apiGroups": ["demo.towline.dev"], "apiVersions": ["v1"],
                    "operations": ["CREATE"], "resources": ["documents"]}]},
                "matchConditions": [{"name": "here",
                    "expression": format!("object.metadata.namespace == '{}'", section.namespace("a"))}],
                "validations": [{"expression": "!has(object.metadata.labels) || !('denied' in object.metadata.labels)",
                    "message": "not on this edge", "reason": "Forbidden"}],
            },
        }))
        .unwrap();
        let binding: ValidatingAdmissionPolicyBinding = serde_json::from_value(json!({
            "metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]},
        }))
        .unwrap();
        Api::all(section.edge.clone()).create(&PostParams::default(), &policy).await.unwrap();
        Api::all(section.edge.clone()).create(&PostParams::default(), &binding).await.unwrap();
        let labelled = json!({"metadata": {"labels": {"denied": "yes"}}, "spec": {"size": 1}});
        eventually("the edge to refuse", LIMIT, async || {
            let trial = section.object("trial", &labelled);
            let dry_run = PostParams { dry_run: true, ..PostParams::default() };
            match section.local("a").create(&dry_run, &trial).await {
                Err(kube::Error::Api(status)) if status.code == 403 => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await
        .unwrap();
        let since = section.mark().await;
        section.make_remote("a", "page", &labelled).await;
        let denied = |remote: &DynamicObject| {
            sync_error(remote)
                .is_some_and(|text| text.starts_with("create_local: ") && text.contains("not on this edge"))
        };
        section.remote_has("a", "page", denied).await;
        section.quiet().await;
        assert_eq!(section.counted("a", since).await.0["patch documents"], 2, "the finalizer and the error");
        // Mended by a label; the object is made, and with its generations the error goes.
        section.patch_remote("a", "page", &json!({"metadata": {"labels": {"denied": null}}})).await;
        section.remote_has("a", "page", |remote| sync_error(remote).is_none()).await;
        section.in_step().await;
        section.quiet().await;
        assert_eq!(section.counted("a", since).await.0["patch documents"], 3);
        let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(section.edge.clone());
        bindings.delete(name, &DeleteParams::default()).await.unwrap();
        let policies: Api<ValidatingAdmissionPolicy> = Api::all(section.edge.clone());
        policies.delete(name, &DeleteParams::default()).await.unwrap();
    });
}

/// The remote role without its optional rule, for another user than that of the other tests.
async fn grant_without_events(world: &World, user: &str) {
    let client = admin(&world.hub).await;
    let group = "rbac.authorization.k8s.io";
    let role: ClusterRole = serde_json::from_value(json!({
        "metadata": {"name": "widgets-without-events"},
        "rules": [
            {"apiGroups": ["demo.towline.dev"], "resources": ["widgets"], "verbs": ["get", "list", "watch", "patch"]},
            {"apiGroups": ["demo.towline.dev"], "resources": ["widgets/status"], "verbs": ["patch"]},
            {"apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["kube-system"], "verbs": ["get"]},
        ],
    }))
    .unwrap();
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": {"name": "widgets-without-events"},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "widgets-without-events"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }))
    .unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &role).await.unwrap();
    Api::all(client).create(&PostParams::default(), &binding).await.unwrap();
}

#[test]
fn without_the_grant_no_event_is_sent_to_the_hub_and_check_says_so() {
    run(async {
        let world = world().await;
        let user = users::UNPRIVILEGED;
        grant_without_events(world, user).await;
        let hub = world.hub.kubeconfig(user).unwrap();
        let config = format!(
            "[clusters.hub]\nkubeconfig = {hub:?}\n[clusters.edge]\nkubeconfig = {:?}\n{}",
            world.edge_kubeconfig,
            sync("told-without", &widgets(), "")
        );
        let since = mark_of(&world.hub).await;
        let section = Section::start_config("told-without", widgets(), &config, |_| {}).await;
        section.make_namespaces("a").await;
        section.make_remote("a", "gear", &json!({"spec": {"size": 1}})).await;
        section.local_has("a", "gear", |_| true).await;
        section.patch_remote("a", "gear", &json!({"spec": {"size": 50}})).await;
        rejected(&section, "gear", "patch_local", 50).await;
        // Events are written one after the other: the one for the hub was due first.
        section.event("a", "gear", "SyncFailed").await;
        let filter = Filter::since(since).user(user);
        let asked = world.hub.audit().unwrap().records(&filter).await.unwrap();
        assert!(asked.iter().any(|record| record.verb == "patch" && record.resource == "widgets"), "{asked:?}");
        assert!(!asked.iter().any(|record| record.resource == "events"), "nothing is sent to be refused: {asked:?}");
        let path = section.towline.config_path();
        let output = Towline::command(["check", "--connect", "--config", path.to_str().unwrap()]).await.unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        assert_eq!(output.status.code(), Some(0), "it is no fault: {told}");
        let line = "sync told-without: cluster hub: optional, for Events on objects that edge rejects: \
             not allowed to create, patch events.events.k8s.io";
        assert!(told.lines().any(|told| told == line), "{told}");
    });
}
