//! What rollouts do while their dispatchers are killed: a trigger notes each step when it is committed, with the turns of its clusters.

use std::collections::{BTreeMap, BTreeSet};

use integration::postgres::{self, ADMIN};
use serde::Deserialize;
use serde_json::{Value, json};
use towline::test_api::db::DatabaseSource;
use towline::test_api::documents::{self, Author, Key};
use towline::test_api::syncset::rollouts::{Order, OrderError, carry_out};

use crate::chaos::fleet::Fleet;

/// So many clusters of a rollout change at the same time.
const AT_ONCE: usize = 2;
/// How long each wave is watched, in milliseconds.
const SOAK: u64 = 500;
/// Besides the last one.
const WAVES: usize = 2;

/// Of a step, the turns in the present rollout of clusters that the syncset is for.
const TRIGGER: &str = "\
create schema if not exists noted;
create table noted.rollouts (number bigserial primary key, note jsonb not null);
create function noted.note_rollout() returns trigger language plpgsql security definer as $$
begin
  insert into noted.rollouts (note)
    select jsonb_build_object('syncset', r.syncset, 'number', r.number, 'state', r.state, 'wave', r.wave, 'clock', r.clock, 'settled', r.settled,
      'turns', (select coalesce(jsonb_agg(jsonb_build_object('cluster', t.cluster, 'wave', t.wave, 'ended', t.done or exists (
            select from public.towline_result f where f.cluster = t.cluster and f.syncset = t.syncset and f.result = 'Failure'
              and f.reason in ('ResourceInvalid', 'TemplateInvalid', 'SecretInvalid', 'SchemaMismatch', 'DeletedAgain')),
          'is_there', exists (select from public.towline_result a where a.cluster = t.cluster and a.syncset = t.syncset))), '[]')
        from public.towline_turn t where t.syncset = r.syncset and t.number = r.number and t.revision = r.goal))
    from public.towline_rollout r where r.syncset = new.syncset;
  return null;
end $$;
create constraint trigger note_rollout after insert or update on towline_rollout deferrable initially deferred
  for each row execute function noted.note_rollout();";

/// A rollout after a step.
#[derive(Clone, Debug, Deserialize)]
struct Step {
    syncset: String,
    number: i64,
    state: String,
    wave: usize,
    clock: u64,
    settled: Option<u64>,
    turns: Vec<Turn>,
}

#[derive(Clone, Debug, Deserialize)]
struct Turn {
    cluster: String,
    wave: usize,
    /// Whether it is done, or has failed.
    ended: bool,
    /// Whether the syncset was tried on the cluster, and has not left it since.
    is_there: bool,
}

/// How much was seen.
#[derive(Debug, Default)]
pub(crate) struct Rolled {
    pub(crate) released: usize,
    pub(crate) waves: usize,
    pub(crate) complete: usize,
}

/// `spec.rollout` of the syncsets that have one, whose first wave waits to be promoted. What a cluster refuses by lot does not stop it.
pub(crate) fn rollout() -> Value {
    let soak = format!("{SOAK}ms");
    let wave =
        |name: &str, percent: u32, pause: bool| json!({"name": name, "percent": percent, "soak": soak, "pause": pause});
    let waves = [wave("some", 30, true), wave("more", 60, false)];
    json!({"waves": waves, "maxConcurrent": AT_ONCE, "maxFailures": "100%"})
}

/// Orders this of rollouts, whose states may allow none of it. The front has no syncsets, so it can't be asked. Returns how many orders were
/// carried out.
pub(crate) async fn steer(fleet: &Fleet, orders: Vec<(Key, Order)>) -> usize {
    let url = fleet.database.url(ADMIN);
    let source = DatabaseSource::Url(Box::new(url.parse().unwrap_or_else(|error| panic!("{error}"))));
    let database = documents::open(source);
    let (by, mut carried_out) = (Author::of_api("storm".to_owned(), None), 0);
    for (key, order) in orders {
        match carry_out(&database, &key, order, &by).await {
            Ok(_) => carried_out += 1,
            Err(OrderError::NoRollout | OrderError::Refused { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    carried_out
}

/// From now on steps are noted.
pub(crate) async fn note(database: &postgres::Database) {
    database.client(ADMIN).await.unwrap().batch_execute(TRIGGER).await.unwrap();
}

/// Whether all have come to their end, but for those of syncsets for no cluster; and whether each cluster has the revision that the record of
/// its rollout says.
pub(crate) async fn complete(database: &postgres::Database) -> Result<(), String> {
    let text = "select coalesce(string_agg(to_jsonb(r)::text, ' '), '') from towline_rollout r \
        where (r.state <> 'Complete' or r.started < r.edited) and r.reason <> 'EmptyWave'";
    let others = "select coalesce(string_agg(to_jsonb(a)::text, ' '), '') from towline_rollout r \
        join towline_result a on a.syncset = r.syncset left join towline_turn t on t.syncset = r.syncset and t.cluster = a.cluster \
        left join towline_revision v on v.syncset = r.syncset and v.revision = coalesce(t.revision, r.stable) \
        where a.generation is distinct from v.generation";
    let client = database.client(ADMIN).await.map_err(|error| error.to_string())?;
    for (what, text) in [("not complete", text), ("at another revision", others)] {
        let left: String = client.query_one(text, &[]).await.map_err(|error| error.to_string())?.get(0);
        if !left.is_empty() {
            return Err(format!("{what}: {left}"));
        }
    }
    Ok(())
}

/// Never more clusters at once than may be, and no wave before the one before it was done and has soaked.
pub(crate) async fn check(database: &postgres::Database) -> Rolled {
    let text = "select note::text from noted.rollouts order by number";
    let rows = database.client(ADMIN).await.unwrap().query(text, &[]).await.unwrap();
    let (mut last, mut released, mut rolled) = (BTreeMap::<String, Step>::new(), BTreeSet::new(), Rolled::default());
    for row in rows {
        let step: Step = serde_json::from_str(row.get(0)).unwrap();
        let under_way = step.turns.iter().filter(|turn| !turn.ended).count();
        assert!(under_way <= AT_ONCE, "{under_way} clusters change at once: {step:#?}");
        let turns = step.turns.iter();
        released.extend(turns.map(|turn| (step.syncset.clone(), step.number, turn.cluster.clone())));
        if let Some(before) = last.get(&step.syncset).filter(|before| before.number == step.number) {
            if step.wave > before.wave {
                rolled.waves += 1;
                assert!(under_way == 0 && step.wave == before.wave + 1, "a gate was left out: {before:#?} {step:#?}");
                let has_soaked = before.settled.is_some_and(|settled| step.clock - settled >= SOAK);
                let mut members = step.turns.iter().filter(|turn| turn.wave == before.wave && turn.is_there);
                assert!(has_soaked || members.next().is_none(), "not soaked: {before:#?} {step:#?}");
            }
            if before.state == "Running" && step.state == "Complete" {
                rolled.complete += 1;
                assert_eq!(step.wave, WAVES, "it ended before its last wave: {before:#?} {step:#?}");
            }
        }
        last.insert(step.syncset.clone(), step);
    }
    Rolled { released: released.len(), ..rolled }
}
