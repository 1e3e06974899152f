//! Rows that stop coming half way, while writes are under way: those are finished and known, and nothing else is touched.

use std::collections::BTreeMap;

use integration::audit::Mark;
use integration::postgres::READER;
use integration::{Filter, Link, Towline, eventually, users};
use serde_json::{Value, json};

use crate::status_sync::faults::{all_have, comply_in, entries, policies};
use crate::status_sync::world::{INTERVAL, LIMIT, Stage, run};

const POLICIES: usize = 20;
const CLUSTERS: usize = 200;
/// What the database says of one policy takes about so many bytes.
const A_POLICY: usize = 40_000;

/// A daemon with a link to the hub and one to the database.
struct Halfway {
    stage: Stage,
    hub: Link,
    base: Link,
    towline: Towline,
}

impl Halfway {
    /// When it has served policies of which each has a row for each of `clusters`: there are connections to the hub, on
    /// which requests arrive while answers don't.
    async fn new(name: &str, clusters: usize, interval: &str) -> Self {
        let stage = Stage::new(name).await;
        policies(&stage, POLICIES, clusters).await;
        let hub = Link::to(stage.world.hub.address()).await.expect("a link");
        let base = Link::to(stage.database.address()).await.expect("a link");
        let kubeconfig = stage.world.hub.kubeconfig_by(users::TOWLINE, hub.address()).expect("a kubeconfig");
        let url = stage.database.url_by(READER, &base.address().to_string());
        let settings = format!("interval = \"{interval}\"\nfamilies = [\"policies\"]");
        let towline = Towline::start(&stage.config_by(&url, &kubeconfig, &settings), &[]).await;
        let towline = towline.expect("the daemon starts");
        towline.wait_ready(LIMIT).await.expect("the daemon is ready");
        let halfway = Self { stage, hub, base, towline };
        halfway.wrote(POLICIES).await;
        halfway
    }

    /// Waits for so many connections on which a statement is running.
    async fn asks(&self, in_use: u64) {
        eventually(format!("{in_use} connections in use"), LIMIT, async || {
            let report = self.towline.admin().section("status-sync").await.map_err(|error| error.chain())?;
            if report["pool"]["in_use"] == json!(in_use) { Ok(()) } else { Err(report["pool"].to_string()) }
        })
        .await
        .unwrap();
    }

    async fn wrote(&self, count: usize) {
        let all = |report: &Value| report["written"] == json!(count);
        self.stage.family(&self.towline, "policies", &format!("{count} writes"), all).await;
    }

    /// How often each policy was written since then, as the API server has it.
    async fn patches(&self, since: Mark) -> BTreeMap<String, usize> {
        let audit = self.stage.world.hub.audit().expect("an audit log");
        let filter = Filter::since(since).user(users::TOWLINE).verb("patch").resource("policies");
        let mut counts = BTreeMap::new();
        for record in audit.records(&filter).await.expect("records") {
            if record.namespace == self.stage.name {
                *counts.entry(record.name).or_default() += 1;
            }
        }
        counts
    }

    /// The hub does not answer, and the database has told of some policies and of a part of the next: it is lost. Of
    /// them all, `written` are written already, and the others have `before` entries.
    async fn loses_the_database(&self, since: Mark, written: usize, before: usize) {
        eventually("a write whose answer is held", LIMIT, async || {
            let found = self.patches(since).await.len();
            if found > written { Ok(()) } else { Err(format!("{found} writes")) }
        })
        .await
        .unwrap();
        self.base.hang_up();
        self.asks(0).await;
        let found = entries(&self.stage).await;
        assert!(found.iter().all(|count| [before, CLUSTERS].contains(count)), "half-written: {found:?}");
        let complete = found.iter().filter(|count| **count == CLUSTERS).count();
        assert!((written + 1..POLICIES).contains(&complete), "half way: {found:?}");
    }

    /// Everything is written in the end, and the daemon knows of each write.
    async fn has_written_each_once(&self, since: Mark) {
        all_have(&self.stage, CLUSTERS).await;
        self.wrote(2 * POLICIES).await;
        let once = (0..POLICIES).map(|index| (format!("p{index:03}"), 1)).collect();
        assert_eq!(self.patches(since).await, once);
        let failed = self.towline.log().expect("a log").matches("pass failed, retrying").count();
        assert_eq!(failed, 1, "reads that stopped half way");
    }
}

/// The poller's mailbox: how many keys watches have shown, and how many of them wait.
async fn keys(towline: &Towline) -> (u64, u64) {
    let status = towline.admin().status().await.expect("a status");
    let mailbox = find(&status["tree"], "poller policies").expect("the poller")["mailbox"].clone();
    let number = |name: &str| mailbox[name].as_u64().unwrap_or_else(|| panic!("{name} in {mailbox}"));
    (number("accepted") + number("merged"), number("depth"))
}

/// An actor of the tree.
fn find<'t>(tree: &'t Value, name: &str) -> Option<&'t Value> {
    if tree["name"].as_str().is_some_and(|found| found.ends_with(name)) {
        return Some(tree);
    }
    tree["children"].as_array()?.iter().find_map(|child| find(child, name))
}

#[test]
fn writes_under_way_when_a_pass_loses_the_database_are_finished_and_known() {
    run(async {
        let halfway = Halfway::new("halfpass", 1, INTERVAL).await;
        let since = halfway.stage.mark().await;
        halfway.hub.hold_after(0);
        halfway.base.hold_after(5 * A_POLICY);
        comply_in(&halfway.stage, 2..=CLUSTERS).await;
        halfway.loses_the_database(since, 0, 1).await;
        halfway.hub.release();
        halfway.has_written_each_once(since).await;
        // Further passes have nothing to add.
        halfway.stage.passes(&halfway.towline, "policies", 3).await;
        halfway.has_written_each_once(since).await;
    });
}

#[test]
fn writes_under_way_when_a_look_between_passes_loses_the_database_are_finished_and_known() {
    run(async {
        let halfway = Halfway::new("halflook", CLUSTERS, "1h").await;
        let since = halfway.stage.mark().await;
        let (before, _) = keys(&halfway.towline).await;
        // One look begins, and all other edits are for the next.
        halfway.base.hold_after(0);
        let edit = json!({"status": null, "compliant": null});
        halfway.stage.edit_status("policies", "p000", &edit).await;
        halfway.asks(1).await;
        for index in 1..POLICIES {
            halfway.stage.edit_status("policies", &format!("p{index:03}"), &edit).await;
        }
        eventually("the watch to show every edit", LIMIT, async || match keys(&halfway.towline).await {
            (shown, 0) if shown >= before + POLICIES as u64 => Ok(()),
            other => Err(format!("{other:?}, before {before}")),
        })
        .await
        .unwrap();
        // The first look ends, and the second has not got a whole policy.
        halfway.base.hold_after(A_POLICY * 3 / 2);
        halfway.wrote(POLICIES + 1).await;
        halfway.hub.hold_after(0);
        halfway.base.hold_after(4 * A_POLICY);
        halfway.loses_the_database(since, 1, 0).await;
        halfway.hub.release();
        halfway.has_written_each_once(since).await;
    });
}
