//! `towline check --connect` with `[status_sync]`: what is missing on the hub and in the database, all at once.

use integration::postgres::{NOTIFIER, READER, UNPRIVILEGED};
use integration::{Towline, users};

use crate::status_sync::world::{Stage, run};

/// Exit code and everything that was said.
pub(crate) async fn check(stage: &Stage, config: &str) -> (Option<i32>, String) {
    let path = stage.world.hub.directory().join(format!("{}.toml", stage.name));
    std::fs::write(&path, config).expect("a file");
    let output = Towline::command(["check", "--connect", path.to_str().expect("a path")]).await.expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

pub(crate) fn tells(told: &str, expected: &[&str]) {
    for text in expected {
        assert!(told.lines().any(|line| line.contains(text)), "nothing of {text:?} in\n{told}");
    }
}

#[test]
fn the_deployed_role_and_the_reading_account_are_all_that_is_needed() {
    run(async {
        let stage = Stage::new("checked").await;
        let (code, told) = check(&stage, &stage.config("")).await;
        assert_eq!(code, Some(0), "{told}");
        tells(&told, &["the configuration is valid: 1 cluster(s), 1 section(s)"]);
        let (code, told) = check(&stage, &stage.config("notify = true")).await;
        assert_eq!(code, Some(1), "{told}");
        tells(
            &told,
            &[
                "notify: not allowed to create a function in schema status",
                "notify: not allowed to create a trigger on table spec.placements",
                "notify: not allowed to create a trigger on table status.compliance",
                "11 fault(s)",
            ],
        );
        let url = stage.database.url(NOTIFIER);
        let (code, told) = check(&stage, &stage.config_by(&url, &stage.world.kubeconfig, "notify = true")).await;
        assert_eq!(code, Some(0), "{told}");
    });
}

#[test]
fn missing_permissions_and_rights_are_named_together() {
    run(async {
        let stage = Stage::new("checkrights").await;
        let kubeconfig = stage.world.hub.kubeconfig(users::UNPRIVILEGED).expect("a kubeconfig");
        let families = "families = [\"policies\", \"placementdecisions\", \"subscription_reports\"]";
        let (code, told) =
            check(&stage, &stage.config_by(&stage.database.url(UNPRIVILEGED), &kubeconfig, families)).await;
        assert_eq!(code, Some(1), "{told}");
        let place = format!("in namespace {}", stage.name);
        tells(
            &told,
            &[
                &format!(
                    "status-sync: cluster hub: not allowed to get, list, watch policies.policy.open-cluster-management.io {place}"
                ),
                "not allowed to patch policies.policy.open-cluster-management.io/status",
                "not allowed to get, list, watch, create, delete placementdecisions.cluster.open-cluster-management.io",
                "not allowed to get, list, watch, patch, create, delete subscriptionreports.apps.open-cluster-management.io",
                "not allowed to update placements.cluster.open-cluster-management.io/finalizers",
                "not allowed to get, list, watch subscriptions.apps.open-cluster-management.io",
                "not allowed to read table spec.policies",
                "not allowed to read table status.subscription_reports",
            ],
        );
        assert!(!told.contains("placementrules"), "of a family that is not run: {told}");
    });
}

#[test]
fn a_database_that_is_not_there_or_not_whole_is_named() {
    run(async {
        let stage = Stage::new("checkschema").await;
        let older = "DROP TABLE status.placements; ALTER TABLE spec.policies DROP COLUMN deleted; \
                     ALTER TABLE status.placementrules ALTER COLUMN payload TYPE text USING payload::text";
        // The index on the payload's parts is in the way of another type.
        let drop = "DROP INDEX status.placementrules_leaf_hub_name_namespace, status.placementrules_name_namespace";
        stage.sql.batch_execute(drop).await.expect("indexes go");
        stage.sql.batch_execute(older).await.expect("an older schema");
        let (code, told) = check(&stage, &stage.config("")).await;
        assert_eq!(code, Some(1), "{told}");
        tells(
            &told,
            &[
                "there is no table status.placements",
                "table spec.policies has no column deleted",
                "column payload of table status.placementrules is of type text, and should be jsonb",
            ],
        );
        let cases = [
            ("postgres://u:hunter2@127.0.0.1:1/hoh", "127.0.0.1:1/hoh: failed to connect to the database"),
            (&stage.database.url(READER).replace(":reader", ":wrong"), "the database rejected the credentials"),
        ];
        for (url, expected) in cases {
            let (code, told) = check(&stage, &stage.config_by(url, &stage.world.kubeconfig, "")).await;
            assert_eq!(code, Some(1), "{told}");
            tells(&told, &[expected]);
            assert!(!told.contains("hunter2") && !told.contains("wrong"), "{told}");
        }
        let url = format!("database_url = \"{}\"", stage.database.url(READER));
        let file = stage.config("").replace(&url, "database_url_file = \"/does/not/exist\"");
        let (code, told) = check(&stage, &file).await;
        assert_eq!(code, Some(1), "{told}");
        tells(&told, &["failed to read the database URL from /does/not/exist"]);
    });
}
