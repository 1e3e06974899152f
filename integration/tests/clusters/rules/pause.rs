//! Nothing at all is done for a pair of which either side is paused, deletion included.

use integration::{Towline, page};
use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::rules_world::*;

fn paused(value: &Value) -> Value {
    json!({"metadata": {"annotations": {mark("paused"): value}}})
}

async fn pair_in_step(place: &Place) {
    place.make_remote_namespace("a").await;
    place.make_remote("a", "orders", &json!({"spec": {"engine": "postgres-17", "storage": "1Gi"}})).await;
    place.in_step().await;
    place.quiet().await;
}

/// Changes both sides, deletes the remote, and sees that the daemon does nothing.
async fn nothing_is_done(section: &Place) {
    let since = section.mark().await;
    section.patch_remote("a", "orders", &json!({"metadata": {"labels": {"a": "b"}}, "spec": {"storage": "2Gi"}})).await;
    section.patch_local_status("a", "orders", &json!({"phase": "Ready"})).await;
    section.patch_local("a", "orders", &json!({"spec": {"storage": "drift"}})).await;
    section.quiet().await;
    section.delete_remote("a", "orders").await;
    section.quiet().await;
    assert_eq!(section.counted("a", since).await, (counts([]), counts([])));
    let remote = section.remote_has("a", "orders", |_| true).await;
    assert_eq!(remote.finalizers(), [FINALIZER]);
    assert!(section.local("a").get("orders").await.unwrap().metadata.deletion_timestamp.is_none());
}

#[test]
fn a_paused_remote_stops_everything_until_it_is_resumed() {
    run(async {
        let section = Place::shared("paused-remote", databases()).await;
        pair_in_step(&section).await;
        section.patch_remote("a", "orders", &paused(&json!("true"))).await;
        section.event("a", "orders", "Paused").await;
        nothing_is_done(&section).await;
        section.patch_remote("a", "orders", &paused(&Value::Null)).await;
        section.remote_gone("a", "orders").await;
        assert!(section.local("a").get_opt("orders").await.unwrap().is_none());
    });
}

#[test]
fn a_paused_local_object_stops_everything_until_it_is_resumed() {
    run(async {
        let section = Section::start("paused-local", databases(), "").await;
        pair_in_step(&section).await;
        section.patch_local("a", "orders", &paused(&json!("true"))).await;
        section.event("a", "orders", "Paused").await;
        // Where and by what it is paused; that alone is well.
        let by = format!("paused by {}: \"true\" on edge", mark("paused"));
        let listed = section
            .report_has("the paused object", |report| report["not_in_step"][0]["cause"] == json!(by.as_str()))
            .await;
        assert_eq!((&listed["state"], &listed["well"]), (&json!("paused"), &json!(true)), "{listed}");
        let command = async || {
            let admin = section.towline.admin_url();
            let output = Towline::command(["status", "--exit-code", "--admin", &admin]).await.unwrap();
            (output.status.code(), String::from_utf8(output.stdout).unwrap())
        };
        let (code, told) = command().await;
        assert_eq!(code, Some(0), "{told}");
        nothing_is_done(&section).await;
        // Somebody waits for the deletion, and has to know for what.
        let waits = section
            .report_has("the deletion that waits", |report| {
                report["not_in_step"][0]["cause"]
                    .as_str()
                    .is_some_and(|cause| cause.starts_with(&by) && cause.ends_with(" waits"))
            })
            .await;
        assert_eq!((&waits["state"], &waits["well"]), (&json!("waiting"), &json!(false)), "{waits}");
        let message = waits["message"].as_str().unwrap_or_default();
        assert!(message.contains("waiting for the end of the pause on"), "{waits}");
        let (code, told) = command().await;
        assert_eq!(code, Some(3), "{told}");
        let told_of =
            |part: &str| told.lines().any(|line| line.contains("paused-local-a/orders") && line.contains(part));
        assert!(told_of(&by) && told_of("remove the annotation to continue"), "{told}");
        section.patch_local("a", "orders", &paused(&json!("false"))).await;
        section.remote_gone("a", "orders").await;
        assert!(section.local("a").get_opt("orders").await.unwrap().is_none());
    });
}

#[test]
fn what_changed_during_a_pause_is_made_up_for() {
    run(async {
        let section = Place::shared("resumed", databases()).await;
        pair_in_step(&section).await;
        section.patch_remote("a", "orders", &paused(&json!("true"))).await;
        section.event("a", "orders", "Paused").await;
        section.patch_remote("a", "orders", &json!({"spec": {"storage": "2Gi"}})).await;
        section.patch_local_status("a", "orders", &json!({"phase": "Ready"})).await;
        section.patch_remote("a", "orders", &paused(&Value::Null)).await;
        section.in_step().await;
        let local = section.local_has("a", "orders", |_| true).await;
        assert_eq!(local.data["spec"]["storage"], json!("2Gi"));
        assert!(!local.annotations().contains_key(&mark("paused")), "the pause is not taken down");
    });
}

#[test]
fn a_new_remote_that_is_paused_is_not_even_given_a_finalizer() {
    run(async {
        let section = Place::shared("paused-new", databases()).await;
        section.make_remote_namespace("a").await;
        let mut content = paused(&json!("true"));
        content["spec"] = json!({"engine": "postgres-17"});
        section.make_remote("a", "bills", &content).await;
        section.quiet().await;
        let remote = section.remote_has("a", "bills", |_| true).await;
        assert!(remote.finalizers().is_empty());
        assert!(section.local("a").get_opt("bills").await.unwrap().is_none());
        section.remote("a").delete("bills", &DeleteParams::default()).await.unwrap();
        section.remote_gone("a", "bills").await;
    });
}

#[test]
fn a_pause_is_read_as_go_reads_it_and_what_is_neither_true_nor_false_pauses_and_is_told() {
    run(async {
        let section = Section::start("paused-values", databases(), "").await;
        pair_in_step(&section).await;
        let pairs: Vec<(String, &str)> =
            ["1", "t", "T", "TRUE", "true", "True", "0", "f", "F", "FALSE", "false", "False", "yes", "tRUE", ""]
                .into_iter()
                .enumerate()
                .map(|(number, value)| (format!("orders-{number}"), value))
                .collect();
        for (name, value) in &pairs {
            section.make_remote("a", name, &json!({"spec": {"engine": "postgres-17", "storage": "1Gi"}})).await;
            section.local_has("a", name, |_| true).await;
            section.patch_remote("a", name, &paused(&json!(value))).await;
        }
        section.report_has("nine paused pairs", |report| report["objects"]["paused"] == json!(9)).await;
        for (name, _) in &pairs {
            section.patch_remote("a", name, &json!({"spec": {"storage": "2Gi"}})).await;
        }
        section.quiet().await;
        for (name, value) in &pairs {
            let is_false = ["0", "f", "F", "FALSE", "false", "False"].contains(value);
            if is_false {
                section.local_has("a", name, |local| local.data["spec"]["storage"] == "2Gi").await;
                continue;
            }
            let local = section.local_has("a", name, |_| true).await;
            assert_eq!(local.data["spec"]["storage"], json!("1Gi"), "{value:?}");
            let note = section.event("a", name, "Paused").await;
            let is_told = note.contains(&format!("{value:?}, which is neither true nor false"));
            assert_eq!(is_told, ["yes", "tRUE", ""].contains(value), "{value:?}: {note}");
        }
        let log = section.towline.log().unwrap();
        assert_eq!(log.matches("neither true nor false").count(), 3, "{log}");
        // What is changed to something else that can't be read is paused still, and nobody is told again.
        section.patch_remote("a", "orders-12", &paused(&json!("no"))).await;
        section.patch_remote("a", "orders-13", &paused(&json!("false"))).await;
        section.local_has("a", "orders-13", |local| local.data["spec"]["storage"] == "2Gi").await;
        section.quiet().await;
        let local = section.local_has("a", "orders-12", |_| true).await;
        assert_eq!(local.data["spec"]["storage"], json!("1Gi"));
    });
}

#[test]
fn each_of_more_paused_objects_than_are_listed_can_be_found() {
    run(async {
        let section = Section::start("paused-many", databases(), "").await;
        section.make_namespaces("a").await;
        let mut content = paused(&json!("true"));
        content["spec"] = json!({"engine": "postgres-17"});
        for number in 0..51 {
            section.make_remote("a", &format!("orders-{number:02}"), &content).await;
        }
        let report = section.report_has("them", |report| report["objects"]["paused"] == json!(51)).await;
        let listed: Vec<&str> =
            report["not_in_step"].as_array().unwrap().iter().map(|object| object["key"].as_str().unwrap()).collect();
        assert_eq!((listed.len(), &report["not_in_step_more"]), (50, &json!(1)), "{report}");
        page::agrees("/status", "many", &section.towline.admin().status().await.unwrap()).unwrap();
        let all = (0..51).map(|number| format!("paused-many-a/orders-{number:02}"));
        let others: Vec<String> = all.filter(|name| !listed.contains(&name.as_str())).collect();
        let [other] = others.as_slice() else { panic!("{others:?}") };
        let command = async |arguments: &[&str]| {
            let admin = section.towline.admin_url();
            let arguments = [&["status"], arguments, &["--admin", &admin]].concat();
            let output = Towline::command(arguments).await.unwrap();
            (output.status.code(), String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr))
        };
        let (code, told) = command(&[]).await;
        let more = "1 more of paused-many are not listed; one of them: towline status paused-many OBJECT";
        assert!(code == Some(0) && told.lines().any(|line| line == more), "{told}");
        let by = format!("paused by {}: \"true\" on hub → remove the annotation to continue", mark("paused"));
        for name in [other, listed[0]] {
            let (code, told) = command(&["paused-many", name]).await;
            let is_row = |line: &str| line.starts_with(name) && line.contains(" paused ") && line.contains(&by);
            assert!(code == Some(0) && told.lines().count() == 2 && told.lines().any(is_row), "{told}");
        }
        let (code, told) = command(&["paused-many", "paused-many-a/orders-51"]).await;
        let unknown = "section paused-many knows no object paused-many-a/orders-51";
        assert!(code == Some(1) && told.contains(unknown), "{code:?} {told}");
        // One that is in step is found as well.
        section.patch_remote("a", "orders-00", &paused(&Value::Null)).await;
        section.report_has("one in step", |report| report["objects"]["in_step"] == json!(1)).await;
        let (_, told) = command(&["paused-many", "paused-many-a/orders-00", "-o", "json"]).await;
        let found: Value = serde_json::from_str(&told).unwrap();
        assert_eq!(found["objects"][0]["state"], json!("in_step"), "{told}");
    });
}
