//! Two replicas: one of them reports, and what one has told the other does not tell again.

use integration::rbac::{grant_election, grant_inventory};
use integration::{Towline, eventually, users};

use crate::world::{LIMIT, World, run, small_chart};

#[test]
fn one_replica_reports_and_a_handover_tells_nothing_twice() {
    run(async {
        let world = World::new("elected").await;
        grant_inventory(&world.admin, Some(users::REPLICAS)).await.unwrap();
        grant_election(&world.admin, "default", Some(users::REPLICAS)).await.unwrap();
        let election = "[election]\ncluster = \"edge\"\nnamespace = \"default\"\nlease_duration = \"5s\"\nrenew_interval = \"1s\"\n";
        let mut replicas = Vec::new();
        for user in &users::REPLICA[..2] {
            let config = world.config_as(user, "").replace("[inventory]", &format!("{election}[inventory]"));
            replicas.push(Towline::start(&config, &[]).await.unwrap());
        }
        for replica in &replicas {
            replica.wait_ready(LIMIT).await.unwrap();
        }
        let chart = world.helm.chart(&small_chart()).unwrap();
        for name in ["a", "b"] {
            world.helm.run(&["install", name, &chart]).await.unwrap();
            world.told(name, 1).await;
            world.wait_until_acknowledged(name).await;
        }
        let holder = eventually("a replica to hold the section", LIMIT, async || {
            for (position, replica) in replicas.iter().enumerate() {
                let section = replica.admin().section("inventory").await.map_err(|error| error.to_string())?;
                if section["releases"] == 2 && section["state"] == "ready" {
                    return Ok(position);
                }
            }
            Err("none".to_owned())
        })
        .await
        .unwrap();
        let gone = replicas.remove(holder);
        assert!(gone.terminate(LIMIT).await.unwrap().success());
        world.helm.run(&["upgrade", "a", &chart, "--set", "value=2"]).await.unwrap();
        world.told("a", 2).await;
        assert_eq!(world.sink.told().len(), 4, "the registration, two releases and one change");
    });
}
