//! A write whose outcome is unknown is followed by one live GET, and is not made twice.

use integration::audit::Mark;
use integration::{ControlPlane, Filter, Link, eventually, users};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::rules_costs::ALONE;
use crate::rules_costs::rules_world::*;

/// The side whose answers get lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lost {
    Hub,
    Edge,
}

/// A section of databases that reaches one side by a link, with a namespace on both sides.
async fn behind(name: &str, lost: Lost) -> (Section, Link) {
    let world = world().await;
    let server = plane(world, lost);
    let link = Link::to(server.address()).await.unwrap();
    let by_link = server.kubeconfig_by(users::TOWLINE, link.address()).unwrap();
    let (hub, edge) = match lost {
        Lost::Hub => (&by_link, &world.edge_kubeconfig),
        Lost::Edge => (&world.hub_kubeconfig, &by_link),
    };
    let clusters = format!(
        "[clusters.hub]\nkubeconfig = \"{}\"\n[clusters.edge]\nkubeconfig = \"{}\"\n",
        hub.display(),
        edge.display()
    );
    let config = clusters + &sync(name, &databases(), "");
    let section = Section::start_config(name, databases(), &config, |_| {}).await;
    section.make_namespaces("a").await;
    section.quiet().await;
    (section, link)
}

fn plane(world: &World, lost: Lost) -> &ControlPlane {
    match lost {
        Lost::Hub => &world.hub,
        Lost::Edge => &world.edge,
    }
}

impl Lost {
    /// Waits until the daemon's write was carried out; its answer is lost.
    async fn carried_out(self, section: &Section, since: (Mark, Mark), verb: &str, subresource: &str) {
        let since = if self == Self::Hub { since.0 } else { since.1 };
        let write = Filter::since(since).user(users::TOWLINE).verb(verb).resource("databases").name("orders");
        let write = write.subresource(subresource);
        let audit = plane(section.world, self).audit().unwrap();
        eventually(format!("the {verb} to be carried out on the {self:?}"), LIMIT, async || {
            let all = audit.records(&write).await.map_err(|error| error.to_string())?;
            let ours = |namespace: &str| namespace == section.namespace("a");
            if all.iter().any(|record| ours(&record.namespace) && record.status < 300) {
                Ok(())
            } else {
                Err(format!("{all:?}"))
            }
        })
        .await
        .unwrap();
    }
}

const CONTENT: &str =
    r#"{"metadata": {"labels": {"team": "a"}}, "spec": {"engine": "postgres-17", "storage": "10Gi"}}"#;

async fn make(section: &Section) {
    section.make_remote("a", "orders", &serde_json::from_str(CONTENT).unwrap()).await;
}

#[test]
fn a_create_whose_answer_is_lost_costs_one_read_and_no_second_create() {
    run(async {
        let _together = ALONE.read().await;
        let (section, link) = behind("lost-create", Lost::Edge).await;
        let since = section.mark().await;
        link.mute();
        make(&section).await;
        Lost::Edge.carried_out(&section, since, "create", "").await;
        link.hang_up();
        section.in_step().await;
        section.quiet().await;
        let expected = (counts([("patch databases", 2)]), counts([("create databases", 1), ("get databases", 1)]));
        assert_eq!(section.counted("a", since).await, expected);
    });
}

#[test]
fn a_change_whose_answer_is_lost_costs_one_read_and_no_second_change() {
    run(async {
        let _together = ALONE.read().await;
        let (section, link) = behind("lost-change", Lost::Edge).await;
        make(&section).await;
        section.in_step().await;
        section.quiet().await;
        let since = section.mark().await;
        link.mute();
        section.patch_remote("a", "orders", &json!({"spec": {"storage": "20Gi"}})).await;
        Lost::Edge.carried_out(&section, since, "patch", "").await;
        link.hang_up();
        section.in_step().await;
        section.quiet().await;
        let expected = (counts([("patch databases", 1)]), counts([("patch databases", 1), ("get databases", 1)]));
        assert_eq!(section.counted("a", since).await, expected);
    });
}

#[test]
fn a_status_whose_answer_is_lost_costs_one_read_and_no_second_status() {
    run(async {
        let _together = ALONE.read().await;
        let (section, link) = behind("lost-status", Lost::Hub).await;
        make(&section).await;
        section.in_step().await;
        section.quiet().await;
        let since = section.mark().await;
        link.mute();
        let status = Patch::Merge(json!({"status": {"phase": "Ready", "endpoint": "orders:5432"}}));
        section.local("a").patch_status("orders", &PatchParams::default(), &status).await.unwrap();
        Lost::Hub.carried_out(&section, since, "patch", "status").await;
        link.hang_up();
        section.in_step().await;
        section.quiet().await;
        let expected = (counts([("patch databases/status", 1), ("get databases", 1)]), counts([]));
        assert_eq!(section.counted("a", since).await, expected);
    });
}

#[test]
fn a_deletion_whose_answer_is_lost_costs_one_read_and_no_second_deletion() {
    run(async {
        let _together = ALONE.read().await;
        let (section, link) = behind("lost-delete", Lost::Edge).await;
        make(&section).await;
        section.in_step().await;
        section.quiet().await;
        let since = section.mark().await;
        link.mute();
        section.delete_remote("a", "orders").await;
        Lost::Edge.carried_out(&section, since, "delete", "").await;
        link.hang_up();
        section.remote_gone("a", "orders").await;
        section.quiet().await;
        let expected = (counts([("patch databases", 1)]), counts([("delete databases", 1), ("get databases", 1)]));
        assert_eq!(section.counted("a", since).await, expected);
    });
}
