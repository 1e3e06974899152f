//! `towline resync`.

use std::collections::BTreeMap;

use crate::syncsets_commands::world::{Stage, make, run};

/// How often full passes of each cluster were demanded, by its name.
async fn demanded(stage: &Stage) -> BTreeMap<String, i64> {
    let statement =
        "select c.name, coalesce(p.resyncs, 0) from clusters c left join towline_cluster p on p.cluster = c.id";
    let rows = stage.sql.query(statement, &[]).await.expect("rows");
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

fn expected(east: i64, north: i64, west: i64) -> BTreeMap<String, i64> {
    BTreeMap::from([("east".to_owned(), east), ("north".to_owned(), north), ("west".to_owned(), west)])
}

#[test]
fn full_passes_become_due_of_the_clusters_that_are_chosen_and_of_no_other() {
    run(async {
        let stage = Stage::new("resync").await;
        let mut client = stage.replica.client();
        for (namespace, name, env) in [("foo", "west", "prod"), ("foo", "east", "test"), ("bar", "north", "prod")] {
            make(&mut client, namespace, name, env, true).await;
        }
        let asked = "select coalesce(sum(wanted), 0)::bigint from towline_work w join clusters c on c.id = w.cluster where c.name = 'west'";
        let before = stage.number(asked).await;
        assert_eq!(stage.expect(&["resync", "foo/west"]).await, "a full pass of 1 cluster is due now\n");
        assert_eq!(demanded(&stage).await, expected(0, 0, 1));
        assert!(stage.number(asked).await > before, "a pass was requested");

        assert_eq!(stage.expect(&["resync", "east", "-n", "foo"]).await, "a full pass of 1 cluster is due now\n");
        assert_eq!(stage.expect(&["resync", "-l", "env=prod"]).await, "full passes of 2 clusters are due now\n");
        assert_eq!(demanded(&stage).await, expected(1, 1, 2));
        assert_eq!(
            stage.expect(&["resync", "-l", "env in (prod)", "-n", "bar"]).await,
            "a full pass of 1 cluster is due now\n"
        );
        assert_eq!(stage.expect(&["resync", "--all", "-n", "foo"]).await, "full passes of 2 clusters are due now\n");
        assert_eq!(stage.expect(&["resync", "--all"]).await, "full passes of 3 clusters are due now\n");
        assert_eq!(demanded(&stage).await, expected(3, 3, 4));

        stage.refused(&["resync", "foo/north"], "there is no clusters/foo/north").await;
        stage.refused(&["resync", "-l", "env=dev"], "no cluster matches").await;
        stage.refused(&["resync", "-l", "env=a b"], "parameter labelSelector is not valid").await;
        let usage = [
            &["resync"][..],
            &["resync", "foo/west", "--all"],
            &["resync", "-l", ""],
            &["resync", "--all", "-n", "A_"],
        ];
        for args in usage {
            let said = stage.command(args).await;
            assert_eq!(said.code, Some(2), "{args:?}: {said:?}");
        }
        assert_eq!(demanded(&stage).await, expected(3, 3, 4));
    });
}

#[test]
fn a_cluster_that_is_being_deleted_has_no_pass_any_more() {
    run(async {
        let stage = Stage::new("deleted").await;
        make(&mut stage.replica.client(), "foo", "west", "prod", true).await;
        let sql = "update clusters set finalizers = '{a.io/b}', deleted_at = now() where name = 'west'";
        stage.sql.execute(sql, &[]).await.expect("it is being deleted");
        stage.refused(&["resync", "foo/west"], "there is no clusters/foo/west").await;
        stage.refused(&["resync", "--all"], "no cluster matches").await;
        assert_eq!(stage.number("select count(*) from towline_cluster where resyncs > 0").await, 0);
    });
}

#[test]
fn a_hub_that_applies_no_syncsets_says_so() {
    run(async {
        let stage = Stage::with("none", "", &[]).await;
        make(&mut stage.replica.client(), "foo", "west", "prod", true).await;
        let reason = "there is no such route: the hub applies no syncsets, its configuration has no [syncsets] \
             (`towline hub`: set SYNCSET_REAPPLY_INTERVAL)";
        stage.refused(&["resync", "--all"], reason).await;
        stage.refused(&["failures"], reason).await;
        stage.refused(&["resync", "foo/west"], reason).await;
    });
}
