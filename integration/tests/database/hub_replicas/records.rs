//! Who did what: each version that clients have made has its record, whatever happens to replicas.

use integration::soak::{Random, rounds, seed};

use crate::hub_replicas::chaos::{Chaos, Progress};
use crate::hub_replicas::history::{self, History};
use crate::hub_replicas::world::{addresses, database, replicas, run, sql};
use crate::hub_replicas::writers::Writers;

/// Versions that are written in a round, at least.
const VERSIONS: i64 = 600;

/// Versions and records that have no counterpart, and what records tell of a write that is not the one of their version. The log has a
/// row for each version, and a cluster brings a `ClusterSync` along that no client has asked for.
const WRONG: &str = "select coalesce(l.version, h.version), l.version is not null, h.records, h.told \
     from (select * from kept.log where kind <> 'clustersyncs') l \
     full join ( \
       select version, count(*) as records, min(kind) as kind, min(namespace) as namespace, min(name) as name, min(id::text) as id, \
         min(verb || details) as told from towline_history where version is not null group by version) h on h.version = l.version \
     where (h.records, h.kind, h.namespace, h.name, h.id) is distinct from (1, l.kind, l.namespace, l.name, l.id::text) \
       or (l.document is null) <> (h.told like 'delete%') \
       or l.document is not null and not exists ( \
         select from towline_history t, jsonb_array_elements(t.details::jsonb->'changes') c where t.version = l.version \
           and l.document->'annotations'->'number' = case c->>'path' \
             when '/annotations' then c->'after'->'number' when '/annotations/number' then c->'after' end)";

/// It is written by the same statement. So what a client was answered does not matter, and neither does whether it was answered.
#[test]
fn each_version_that_a_client_made_has_exactly_one_record_while_replicas_are_killed_and_frozen() {
    run(async {
        let database = database("records").await;
        history::keep(&database).await;
        let (mut random, progress) = (Random::new(seed()), Progress::new());
        let replicas = replicas(&database, &[]).await;
        let writers = Writers::start(&addresses(&replicas), &mut random, &progress);
        let mut chaos = Chaos::new(replicas, &database, random.split(), &progress, 60).await;
        for round in 1..=rounds(2) {
            chaos.during(progress.reaches(VERSIONS * i64::try_from(round).unwrap())).await;
        }
        // Replicas that were frozen carry out what they were asked before.
        let answers = writers.end().await;
        let incidents = chaos.incidents();
        println!("{incidents:?}");
        answers.check(&History::read(&database).await);
        let rows = sql(&database).await.query(WRONG, &[]).await.expect("rows");
        let wrong: Vec<(i64, bool, Option<i64>, Option<String>)> =
            rows.iter().map(|row| (row.get(0), row.get(1), row.get(2), row.get(3))).collect();
        assert_eq!(wrong, [], "version, whether it is one, its records, and what they tell");
        let by_others = "select count(*) from towline_history where version is null and verb <> 'migrate'";
        let by_others: i64 = sql(&database).await.query_one(by_others, &[]).await.expect("a row").get(0);
        assert_eq!(by_others, 0, "records of nothing");
        assert!(incidents.killed > 0, "{incidents:?}");
    });
}
