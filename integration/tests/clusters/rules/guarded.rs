//! The guard against mass changes, over restarts and typos.

use kube::ResourceExt;
use kube::api::DeleteParams;
use serde_json::json;

use crate::rules_world::*;

/// Makes this many objects `o0`, `o1`, … and waits until they are in step.
async fn pairs(section: &Place, count: usize, labels: &serde_json::Value) {
    section.make_namespaces("a").await;
    for number in 0..count {
        let content = json!({"metadata": {"labels": labels}, "spec": {"engine": "postgres-17"}});
        section.make_remote("a", &format!("o{number}"), &content).await;
    }
    section.in_step().await;
}

/// Deletes these remote objects behind the daemon's back: without their finalizers, while it is away.
async fn vanish(section: &Place, numbers: std::ops::Range<usize>) {
    for number in numbers {
        let name = format!("o{number}");
        section.patch_remote("a", &name, &json!({"metadata": {"finalizers": null}})).await;
        section.remote("a").delete(&name, &DeleteParams::default()).await.unwrap();
    }
}

async fn locals(section: &Place) -> usize {
    section.local("a").list(&kube::api::ListParams::default()).await.unwrap().items.len()
}

#[test]
fn what_went_before_a_restart_counts_after_it() {
    run(async {
        let mut section = Section::start("counted", databases(), "").await;
        pairs(&section, 18, &json!({})).await;
        for numbers in [0..6, 6..12] {
            section.towline.kill9().await.unwrap();
            vanish(&section, numbers.clone()).await;
            section.towline.start_again().await.unwrap();
            section.towline.wait_ready(LIMIT).await.unwrap();
            if numbers.start == 0 {
                for number in numbers {
                    section.local_gone("a", &format!("o{number}")).await;
                }
            } else {
                // With those of the first round they would be more than ten within ten minutes.
                section.report_has("held deletions", |report| report["held"]["delete"] == json!(6)).await;
            }
        }
        section.quiet().await;
        assert_eq!(locals(&section).await, 18 - 6);
        let url = section.towline.admin_url();
        let approved =
            integration::Towline::command(["approve", "--yes", &section.name, "--admin", &url]).await.unwrap();
        assert!(approved.status.success(), "{approved:?}");
        section.in_step().await;
        assert_eq!(locals(&section).await, 18 - 12);
    });
}

#[test]
fn a_typo_in_a_selector_lets_nothing_go_until_it_is_approved_or_mended() {
    run(async {
        let selector = "selector = \"place=west\"";
        let mut section = Section::start_with("typo", databases(), selector, |mapping| {
            mapping.selector = "place=west".to_owned();
        })
        .await;
        pairs(&section, 4, &json!({"place": "west"})).await;
        for (settings, held) in [(selector.replace("west", "wset"), 4), (selector.to_owned(), 0)] {
            let now = sync(&section.name, &section.kind, &settings);
            section.restart_with(&now).await;
            let is_so = |report: &serde_json::Value| report["held"]["let_go"].as_u64().unwrap_or_default() == held;
            let report = section.report_has("what is held", is_so).await;
            if held > 0 {
                assert_eq!(report["state"], json!("held"), "{report}");
            }
            for number in 0..4 {
                let name = format!("o{number}");
                let remote = section.remote_has("a", &name, |_| true).await;
                assert_eq!(remote.finalizers(), [FINALIZER], "{name} is not let go");
                let local = section.local_has("a", &name, |_| true).await;
                assert!(local.annotations().contains_key(&mark("sync-remote-uid")), "{local:?}");
            }
        }
        section.in_step().await;
        section.report_has("all in step", |report| report["objects"]["in_step"] == json!(4)).await;
    });
}

#[test]
fn a_section_that_can_not_keep_its_state_deletes_nothing_that_vanished_until_it_is_approved() {
    run(async {
        let world = world().await;
        let config = format!("[daemon]\nstate_namespace = \"forbidden\"\n{}", clusters(world));
        let config = config + &sync("stateless", &databases(), "");
        let mut section = Section::start_config("stateless", databases(), &config, |_| {}).await;
        pairs(&section, 4, &json!({})).await;
        section
            .report_has("that its state is not kept", |report| report["stored_state"]["state"] == json!("unavailable"))
            .await;
        section.towline.kill9().await.unwrap();
        vanish(&section, 0..1).await;
        section.towline.start_again().await.unwrap();
        // The daemon does not know how many deletions it sent before the restart: perhaps as many as the limit allows.
        section.report_has("one held deletion", |report| report["held"]["delete"] == json!(1)).await;
        section.quiet().await;
        assert_eq!(locals(&section).await, 4);
        let url = section.towline.admin_url();
        // In the moment of another try to store the state nothing is held.
        let approve = async || {
            let approved =
                integration::Towline::command(["approve", "--yes", &section.name, "--admin", &url]).await.unwrap();
            let told = String::from_utf8_lossy(&approved.stdout).into_owned();
            if approved.status.success() { Ok(told) } else { Err(format!("{approved:?}")) }
        };
        let told = integration::eventually("an approval", LIMIT, approve).await.unwrap();
        assert!(told.contains("; a restart forgets it: "), "{told}");
        section.local_gone("a", "o0").await;
        section.in_step().await;
    });
}
