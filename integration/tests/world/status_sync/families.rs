//! What holds for policies holds for the other five families.

use integration::{Towline, eventually};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::status_sync::world::{LIMIT, PLACEMENT_LABEL, Stage, run};

/// A family: what a leaf hub reports, and where it is shown.
struct Case {
    family: &'static str,
    /// The table of `status`.
    table: &'static str,
    /// The kind that is written.
    target: &'static str,
    /// What the name of the written object has behind the hub object's.
    suffix: &'static str,
    /// What is reported, of a hub object of this name.
    reported: fn(&str) -> Value,
    /// Where it is shown.
    pointer: &'static str,
    shown: Value,
    /// What somebody else makes of it, as a merge.
    edit: Value,
    /// What is there without rows; none where the written object goes.
    cleared: Option<Value>,
}

fn cases() -> [Case; 5] {
    let decision = json!([{"clusterName": "c", "clusterNamespace": "n"}]);
    [
        Case {
            family: "placementrules",
            table: "placementrules",
            target: "placementrules",
            suffix: "",
            reported: |_| json!({"status": {"decisions": [{"clusterName": "c", "clusterNamespace": "n"}]}}),
            pointer: "/status/decisions",
            shown: decision,
            edit: json!({"status": {"decisions": []}}),
            cleared: Some(Value::Null),
        },
        Case {
            family: "placements",
            table: "placements",
            target: "placements",
            suffix: "",
            reported: |_| json!({"status": {"numberOfSelectedClusters": 3}}),
            pointer: "/status/numberOfSelectedClusters",
            shown: json!(3),
            edit: json!({"status": {"numberOfSelectedClusters": 9}}),
            cleared: Some(json!(0)),
        },
        Case {
            family: "placementdecisions",
            table: "placementdecisions",
            target: "placementdecisions",
            suffix: "-decision-1",
            reported: |placement| {
                json!({"labels": {PLACEMENT_LABEL: placement},
                    "status": {"decisions": [{"clusterName": "c", "reason": "r", "score": 0}]}})
            },
            pointer: "/status/decisions",
            shown: json!([{"clusterName": "c", "reason": "r", "score": 0}]),
            edit: json!({"status": {"decisions": []}}),
            cleared: None,
        },
        Case {
            family: "subscription_statuses",
            table: "subscription_statuses",
            target: "subscriptionstatuses",
            suffix: "",
            reported: |_| json!({"statuses": {"packages": [{"name": "p"}]}}),
            pointer: "/statuses/packages",
            shown: json!([{"name": "p"}]),
            edit: json!({"statuses": {"packages": []}}),
            cleared: None,
        },
        Case {
            family: "subscription_reports",
            table: "subscription_reports",
            target: "subscriptionreports",
            suffix: "",
            reported: |_| json!({"reportType": "Application"}),
            pointer: "/reportType",
            shown: json!("Application"),
            edit: json!({"reportType": "Cluster"}),
            cleared: None,
        },
    ]
}

impl Case {
    /// The object that is written for a hub object.
    fn written(&self, name: &str) -> String {
        format!("{name}{}", self.suffix)
    }

    async fn is_reported(&self, stage: &Stage, name: &str) {
        stage.report(self.table, "hub", name, &(self.reported)(name)).await;
    }

    async fn is_shown(&self, stage: &Stage, name: &str) {
        stage.shows(self.target, &self.written(name), self.pointer, &self.shown).await;
    }

    /// Whether what is reported stands anywhere.
    async fn stands(&self, stage: &Stage, name: &str) -> bool {
        let found = stage.api(self.target).get_opt(&self.written(name)).await.expect("an answer");
        found.is_some_and(|object| object.data.pointer(self.pointer) == Some(&self.shown))
    }
}

/// A UUID of no object.
const NOBODY: &str = "00000000-0000-4000-8000-00000000000";

/// The kinds of the hub objects, which are the tables of `spec`, too; two of them have two families.
const HUB: [&str; 3] = ["placementrules", "placements", "subscriptions"];

/// Makes a hub object of each kind.
async fn each_hub_kind(stage: &Stage, name: &str) {
    for hub in HUB {
        stage.make(hub, name, &json!({"spec": {"of": name}})).await;
    }
}

#[test]
fn an_object_that_comes_after_its_rows_is_served_and_another_writers_edit_is_taken_back() {
    run(async {
        let stage = Stage::new("latefamilies").await;
        for (index, hub) in HUB.into_iter().enumerate() {
            stage.spec(hub, &format!("{NOBODY}{index}"), "late").await;
        }
        for case in cases() {
            case.is_reported(&stage, "late").await;
        }
        let towline = stage.start_with("interval = \"1h\"").await;
        for case in cases() {
            stage.family(&towline, case.family, "a waiting row", |report| report["waiting"]["absent"] == 1).await;
        }
        // The next pass is an hour away: it is the watch that tells.
        each_hub_kind(&stage, "late").await;
        for case in cases() {
            case.is_shown(&stage, "late").await;
        }
        for case in cases() {
            let name = case.written("late");
            let (api, params) = (stage.api(case.target), PatchParams::default());
            let patch = Patch::Merge(&case.edit);
            let edited = if case.edit.get("status").is_some() {
                api.patch_status(&name, &params, &patch).await
            } else {
                api.patch(&name, &params, &patch).await
            };
            assert_ne!(edited.expect("it is edited").data.pointer(case.pointer), Some(&case.shown), "{}", case.family);
            case.is_shown(&stage, "late").await;
        }
    });
}

/// `towline explain` says of an object that it is in step, of one that is not written why, and of one without a row that it is not known.
async fn each_object_is_explained(stage: &Stage, towline: &Towline) {
    let mut all: Vec<_> = cases().iter().map(|case| case.family).collect();
    all.sort_unstable();
    for (name, state, cause, families) in [
        ("kept", "in_step", "", &all[..]),
        ("duplicate", "in_step", "", &all),
        ("existing", "missing", "the UID", &all),
        ("kept-decision-1", "in_step", "", &["placementdecisions"]),
    ] {
        let path = format!("/explain/status-sync?name={}%2F{name}", stage.name);
        eventually(format!("{name} to be explained"), LIMIT, async || {
            let answer = towline.admin().get(&path).await.map_err(|error| error.chain())?;
            let objects = answer["objects"].as_array().ok_or("no objects")?;
            let is_so = |object: &Value| {
                let is_known = object["sides"]["hub"]["exists"] == true && object["rows"] == 1;
                let is_since = object["for_seconds"].is_u64() || state != "in_step";
                object["state"] == state
                    && object["cause"].as_str().is_some_and(|told| told.contains(cause))
                    && is_known
                    && is_since
            };
            let mut found: Vec<_> =
                objects.iter().filter(|object| is_so(object)).map(|object| &object["family"]).collect();
            found.sort_by_key(ToString::to_string);
            if found == families { Ok(()) } else { Err(answer.to_string()) }
        })
        .await
        .unwrap();
    }
    let (name, admin) = (format!("{}/nothing", stage.name), towline.admin_url());
    let unknown = Towline::command(["explain", "status_sync", &name, "--admin", &admin]).await.expect("it runs");
    let told = String::from_utf8_lossy(&unknown.stderr);
    assert!(unknown.status.code() == Some(1) && told.contains(&format!("knows no object {name}")), "{unknown:?}");
}

/// Of rows of one name the one with the live UID counts, and without it nothing is written. What is written goes with its last row, and
/// comes back with the next, beside what others have written. A deleted row of `spec` ends all writing.
#[test]
fn rows_of_each_family_are_told_apart_by_their_uids_come_and_go_and_end_with_the_row_of_spec() {
    run(async {
        let stage = Stage::new("rowsoffamilies").await;
        for (index, hub) in HUB.into_iter().enumerate() {
            for name in ["kept", "duplicate", "vanishing"] {
                stage.wanted(hub, name).await;
            }
            stage.spec(hub, &format!("{NOBODY}{index}"), "duplicate").await;
            stage.make(hub, "existing", &json!({"spec": {"of": "existing"}})).await;
            for duplicate in [3, 6] {
                stage.spec(hub, &format!("{NOBODY}{}", index + duplicate), "existing").await;
            }
        }
        let others = json!({"conditions": [{"type": "Kept"}], "decisionGroups": [{"kept": true}]});
        for name in ["kept", "vanishing"] {
            stage.edit_status("placements", name, &others).await;
        }
        for case in cases() {
            for name in ["kept", "existing", "duplicate", "vanishing"] {
                case.is_reported(&stage, name).await;
            }
        }
        let towline = stage.start().await;
        for case in cases() {
            for name in ["kept", "duplicate", "vanishing"] {
                case.is_shown(&stage, name).await;
            }
            let ambiguous = |report: &Value| report["waiting"] == json!({"ambiguous": 2});
            stage.family(&towline, case.family, "two ambiguous rows", ambiguous).await;
            stage.passes(&towline, case.family, 2).await;
            assert!(!case.stands(&stage, "existing").await, "{}", case.family);
        }
        each_object_is_explained(&stage, &towline).await;
        for case in cases() {
            let vanishing =
                format!("DELETE FROM status.{} WHERE payload -> 'metadata' ->> 'name' = 'vanishing'", case.table);
            assert_eq!(stage.execute(&vanishing, &[]).await, 1);
        }
        for case in cases() {
            let written = case.written("vanishing");
            match &case.cleared {
                Some(value) => drop(stage.shows(case.target, &written, case.pointer, value).await),
                None => stage.gone(case.target, &written).await,
            }
            assert!(case.stands(&stage, "kept").await, "{}", case.family);
            for name in ["kept", "vanishing"] {
                let status = stage.has("placements", name, |_| true).await.data["status"].clone();
                assert_eq!(status["conditions"], others["conditions"], "{name}: {}", case.family);
                assert_eq!(status["decisionGroups"], others["decisionGroups"], "{name}: {}", case.family);
            }
            case.is_reported(&stage, "vanishing").await;
            case.is_shown(&stage, "vanishing").await;
        }
        for hub in HUB {
            stage.execute(&format!("UPDATE spec.{hub} SET deleted = true"), &[]).await;
        }
        for case in cases() {
            stage.family(&towline, case.family, "no object", |report| report["objects"] == 0).await;
        }
        let since = stage.mark().await;
        for case in cases() {
            stage.execute(&format!("DELETE FROM status.{}", case.table), &[]).await;
        }
        for case in cases() {
            stage.passes(&towline, case.family, 3).await;
            assert!(case.stands(&stage, "kept").await, "{}", case.family);
        }
        assert_eq!(stage.requests(since).await.len(), 0, "nothing is written or deleted any more");
    });
}

#[test]
fn a_table_that_must_not_be_read_is_named_clears_nothing_and_holds_up_no_other_family() {
    run(async {
        let stage = Stage::new("revoked").await;
        let uid = stage.wanted("policies", "p").await;
        for hub in HUB {
            stage.wanted(hub, "same").await;
        }
        let mut others = Vec::from(cases());
        let revoked = others.remove(others.iter().position(|case| case.family == "placements").expect("a family"));
        revoked.is_reported(&stage, "same").await;
        stage.edit_status("placements", "same", &json!({"numberOfSelectedClusters": 5})).await;
        stage.sql.batch_execute("REVOKE SELECT ON status.placements FROM towline_reader").await.expect("it is revoked");
        let towline = Towline::start(&stage.config("interval = \"200ms\""), &[]).await.expect("the daemon starts");
        let forbidden = |report: &Value| report["failure"]["kind"] == "forbidden";
        let report = stage.family(&towline, "placements", "a missing right", forbidden).await;
        assert!(report["failure"]["error"].as_str().unwrap_or_default().contains("placements"), "{report}");
        // What changes from here on changes beside the failing passes.
        stage.comply(&uid, "hub", "c", "non_compliant").await;
        for case in &others {
            case.is_reported(&stage, "same").await;
        }
        stage.shows("policies", "p", "/status/compliant", &json!("NonCompliant")).await;
        for case in &others {
            case.is_shown(&stage, "same").await;
            stage.family(&towline, case.family, "no failure", |report| report["failure"].is_null()).await;
        }
        let report = stage.family(&towline, "placements", "a missing right still", forbidden).await;
        assert_eq!((&report["passes"], &report["written"]), (&json!(0), &json!(0)), "{report}");
        stage.shows("placements", "same", "/status/numberOfSelectedClusters", &json!(5)).await;
        stage.sql.batch_execute("GRANT SELECT ON status.placements TO towline_reader").await.expect("it is granted");
        revoked.is_shown(&stage, "same").await;
        stage.family(&towline, "placements", "no failure", |report| report["failure"].is_null()).await;
    });
}

#[test]
fn other_namespaces_than_the_watched_one_are_left_alone() {
    run(async {
        let stage = Stage::new("watchedfamilies").await;
        let other = Stage::new("otherfamilies").await;
        let since = other.mark().await;
        for hub in HUB {
            stage.wanted(hub, "same").await;
            let uid = other.make(hub, "same", &json!({})).await.metadata.uid.unwrap_or_default();
            let payload = json!({"metadata": {"name": "same", "namespace": other.name}}).to_string();
            let insert = format!("INSERT INTO spec.{hub} (id, payload) VALUES ($1::text::uuid, $2::text::jsonb)");
            stage.execute(&insert, &[&uid, &payload]).await;
        }
        for case in cases() {
            case.is_reported(&stage, "same").await;
            let elsewhere = format!(
                "INSERT INTO status.{table} SELECT gen_random_uuid(), leaf_hub_name, \
                 jsonb_set(payload, '{{metadata,namespace}}', to_jsonb($1::text)) FROM status.{table}",
                table = case.table
            );
            stage.execute(&elsewhere, &[&other.name]).await;
        }
        let towline = stage.start().await;
        for case in cases() {
            case.is_shown(&stage, "same").await;
            let report = stage.family(&towline, case.family, "one object", |report| report["objects"] == 1).await;
            assert_eq!(report["waiting"], json!({}), "{report}");
            assert!(!case.stands(&other, "same").await, "{}", case.family);
        }
        assert_eq!(other.requests(since).await.len(), 0);
        towline.terminate(LIMIT).await.expect("it ends");
    });
}
