//! Leases as sections of the daemon.

use std::fmt::Write;

use integration::rbac::{LeaseSide, grant_lease};
use integration::{Filter, Towline, eventually, users};

use crate::leases::world::{LIMIT, SECRET, World, run};

const SECTIONS: usize = 12;

fn configuration(world: &World) -> String {
    let mut text = format!("[clusters.managed]\nkubeconfig = \"{}\"\n", world.managed_kubeconfig().display());
    for number in 0..SECTIONS {
        // Writing to a String can't fail.
        let _ = write!(
            text,
            "[[lease]]\nname = \"add-on-{number}\"\ncluster = \"managed\"\nlease_name = \"add-on-{number}\"\n\
             lease_namespace = \"{0}\"\nsecret_name = \"{SECRET}\"\nsecret_namespace = \"{0}\"\nduration = \"3s\"\n\
             startup_delay = \"0s\"\n",
            world.namespace
        );
    }
    text
}

/// A world whose daemon may renew leases of any name, where `deploy/` names one.
async fn world(name: &str, user: &'static str) -> World {
    let world = World::shared(name, user).await;
    let verbs = ["get", "create", "patch"];
    grant_lease(&world.hub_admin, LeaseSide::Hub, &world.namespace, world.user, Some(&verbs)).await.unwrap();
    world
}

#[test]
fn many_leases_share_a_watch_and_a_client() {
    run(async {
        let world = world("many", users::REPLICA[2]).await;
        world.offer(world.user).await;
        let mark = world.managed.audit().unwrap().mark().await.unwrap();
        let towline = Towline::start(&configuration(&world), &[]).await.unwrap();
        towline.wait_ready(LIMIT).await.unwrap();
        eventually("every lease to be held", LIMIT, async || {
            let metrics = towline.admin().metrics().await.map_err(|error| error.to_string())?;
            let held =
                metrics.lines().filter(|line| line.starts_with("towline_lease_held{") && line.ends_with(" 1")).count();
            if held == SECTIONS { Ok(()) } else { Err(format!("{held} of {SECTIONS}")) }
        })
        .await
        .unwrap();
        let watches = Filter::since(mark).user(world.user).verb("watch");
        assert_eq!(world.managed.audit().unwrap().count(&watches).await.unwrap(), 1);
        let holder = world.leases().get("add-on-7").await.unwrap().spec.unwrap().holder_identity.unwrap();
        assert!(!holder.is_empty(), "the host's name");
        let refused = towline.admin().approve("add-on-7").await.unwrap_err().to_string();
        assert!(refused.contains("501") && refused.contains("does not support"), "{refused}");
        let table = Towline::command(["status", "--tree", "--admin", &towline.admin_url()]).await.unwrap();
        let table = String::from_utf8(table.stdout).unwrap();
        assert!(
            table.lines().any(|line| line.starts_with("add-on-7 ") && line.contains("leases") && line.contains("1/1")),
            "{table}"
        );
        assert!(table.contains("lease add-on-11"), "{table}");
    });
}

#[test]
fn check_tells_what_is_missing_on_either_cluster() {
    run(async {
        let world = world("checked", users::REPLICA[3]).await;
        let file = world.managed.directory().join("checked.toml");
        std::fs::write(&file, configuration(&world)).unwrap();
        let check = async || {
            let output = Towline::command(["check", "--connect", "--config", file.to_str().unwrap()]).await.unwrap();
            (output.status.code(), String::from_utf8(output.stdout).unwrap())
        };
        let (code, told) = check().await;
        assert!(code == Some(1) && told.contains("there is no such secret"), "{told}");
        world.offer(world.user).await;
        let (code, told) = check().await;
        assert!(code == Some(0) && told.contains("the configuration is valid"), "{told}");
        let verbs = ["get", "create", "update"];
        grant_lease(&world.hub_admin, LeaseSide::Hub, &world.namespace, world.user, Some(&verbs)).await.unwrap();
        assert_eq!(check().await.0, Some(0), "update does in the place of patch");
        grant_lease(&world.hub_admin, LeaseSide::Hub, &world.namespace, world.user, Some(&["create"])).await.unwrap();
        let (code, told) = check().await;
        assert!(
            code == Some(1) && told.contains("hub: not allowed to get leases.coordination.k8s.io add-on-0"),
            "{told}"
        );
        assert!(told.contains("not allowed to patch or update leases.coordination.k8s.io"), "{told}");
    });
}
