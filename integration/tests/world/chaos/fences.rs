//! One cluster is never worked on by two: each request was sent under a claim that its process held.

use std::collections::BTreeMap;

use http::Method;
use integration::eventually;
use integration::hub::Request;
use serde_json::{Value, json};

use crate::chaos::claims::{Claim, Claims};
use crate::chaos::endpoint::{Asked, Hold, Moment};
use crate::chaos::fleet::{Fleet, LIMIT, run};
use crate::chaos::oracle::Kind;

/// A process that is thawed sends at once what it was about to send.
const ABOUT_TO: Moment = 1_000_000;

/// The longest that a claim lasts which nobody renews.
const CLAIM: Moment = 30_000_000;

/// A request, and the claim under which it was sent.
pub(crate) struct Fenced {
    pub(crate) cluster: usize,
    pub(crate) asked: Asked,
    pub(crate) claim: Option<Claim>,
}

/// Of so many requests one may be of nobody knows which process: one that was killed before anybody looked.
const ONE_UNKNOWN_OF: usize = 50;

/// All requests of known processes, each with its claim. Fails if one had none, but for what a process was about to send to a cluster
/// when it was frozen; or if there are none, or too many of which nobody knows the process.
pub(crate) fn fenced(fleet: &Fleet, claims: &Claims) -> Vec<Fenced> {
    let (mut all, mut unknown) = (Vec::new(), Vec::new());
    let mut late: BTreeMap<(i32, Moment, usize), Vec<Asked>> = BTreeMap::new();
    for (cluster, place) in fleet.places.iter().enumerate() {
        for asked in place.endpoint.asked() {
            let Some(process) = asked.process else {
                unknown.push(asked);
                continue;
            };
            let claim = claims.of(&place.id, &fleet.holders[&process], asked.at).cloned();
            // `pg_restore` drops triggers before tables. Claims that were granted in between run out before others are granted.
            let may_be_unnoted = |(from, until): &(Moment, Moment)| (*from..until + CLAIM).contains(&asked.at);
            if claim.is_none() && fleet.restored.iter().any(may_be_unnoted) {
                continue;
            }
            if claim.is_none() {
                let thawed = fleet.thawed.iter().rev().find(|(of, at)| *of == process && *at <= asked.at);
                let at = thawed.map_or(0, |(_, at)| *at);
                late.entry((process, at, cluster)).or_default().push(asked.clone());
            }
            all.push(Fenced { cluster, asked, claim });
        }
    }
    let few = all.len() / ONE_UNKNOWN_OF;
    assert!(
        !all.is_empty() && unknown.len() <= few,
        "of {} requests {} are of nobody: {unknown:#?}",
        all.len(),
        unknown.len()
    );
    for ((process, thawed, cluster), late) in late {
        let is_harmless = late.len() == 1 && late[0].at < thawed + ABOUT_TO;
        assert!(is_harmless, "process {process} worked on {cluster} without a claim: {late:#?}\n{}", fleet.log());
    }
    all
}

/// The database, and the namespace of the documents.
const NAME: &str = "change";
const CLUSTERS: usize = 8;
/// Of the pass over a change: it applies twice, looks twice, and deletes twice.
const STEPS: usize = 6;
/// A request may be held for long.
const KEYS: &str = "mass_delete_guard = false\nrequest_timeout = \"2m\"";

fn resource(name: &str, data: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": data},
        "metadata": {"name": name, "namespace": "{{ fromCDLabel \"ns\" }}"}})
}

/// One worker is frozen while its pass over each cluster is at another step, another one takes over all of them, and then the first
/// one is thawed.
#[test]
fn a_worker_that_is_frozen_at_any_step_of_a_change_sends_nothing_more_when_another_one_has_taken_over() {
    run(async {
        let mut fleet = Fleet::new(NAME).await;
        for number in 0..CLUSTERS {
            let labels = [("ns", format!("{NAME}-{number}"))].map(|(key, value)| (key.to_owned(), value));
            fleet.register(NAME, &format!("c{number}"), &labels.into()).await;
        }
        let resources = ["a", "b", "c", "d"].map(|name| resource(name, "1"));
        let spec = json!({"clusterDeploymentSelector": {}, "enableResourceTemplates": true, "resourceApplyMode": "Sync",
            "resources": resources});
        fleet.send(&Request::post("/v1/selectorsyncsets", &json!({"name": "all", "spec": spec}))).await;
        fleet.start_worker(KEYS).await;
        all_done(&fleet, 1).await;
        hold_each_at_another_step(&fleet);
        change(&fleet, &json!([resource("a", "2"), resource("c", "2")])).await;
        let first = fleet.workers[0].process_id();
        let held = eventually("all passes to be held or done", LIMIT, async || {
            let mut held = 0;
            for (number, place) in fleet.places.iter().enumerate() {
                let is_held = place.endpoint.is_holding();
                held += usize::from(is_held);
                if !is_held && !is_done(&fleet, number, 2).await {
                    return Err(format!("cluster {number} was asked {} times", place.endpoint.asked().len()));
                }
            }
            Ok(held)
        });
        assert_eq!(held.await.unwrap(), STEPS);
        fleet.workers[0].freeze().unwrap();
        let asked: Vec<usize> = fleet.places.iter().map(|place| place.endpoint.asked().len()).collect();
        // The server carries out requests that were on their way.
        fleet.places.iter().for_each(|place| place.endpoint.hold(Hold::None));
        fleet.start_worker(KEYS).await;
        all_done(&fleet, 2).await;
        fleet.workers[1].terminate(LIMIT).await.unwrap();
        fleet.thaw(0);
        // It works on a cluster again when it knows that its claims had run out.
        change(&fleet, &json!([resource("e", "3")])).await;
        all_done(&fleet, 3).await;
        let claims = Claims::read(&fleet.database).await;
        fenced(&fleet, &claims);
        // No write was on its way when the first worker was frozen, so there is no exception for one. A look that was about to connect is sent
        // after the thaw: reads, which do no harm, are checked only when they begin.
        for (number, place) in fleet.places.iter().enumerate() {
            let after = place.endpoint.asked().split_off(asked[number]);
            for asked in after.iter().filter(|asked| asked.process == Some(first) && asked.method != Method::GET) {
                let claim = claims.of(&place.id, &fleet.holders[&first], asked.at);
                assert!(claim.is_some(), "cluster {number}: {asked:?} in {after:#?}");
            }
            let left: Vec<_> = fleet.held(number).await.into_iter().collect();
            let data = [("a".to_owned(), "3".to_owned())].into();
            assert_eq!(left, [((Kind::ConfigMap, "e".to_owned()), data)], "cluster {number}");
        }
        assert!(claims.takeovers() >= STEPS, "{}", claims.takeovers());
    });
}

/// Holds the next request to the first cluster, the one after it to the second, and so on.
fn hold_each_at_another_step(fleet: &Fleet) {
    for (number, place) in fleet.places.iter().enumerate() {
        place.endpoint.hold(Hold::Request(place.endpoint.asked().len() + number));
    }
}

async fn change(fleet: &Fleet, resources: &Value) {
    fleet.send(&Request::merge_patch("/v1/selectorsyncsets/all", &json!({"spec": {"resources": resources}}))).await;
}

async fn all_done(fleet: &Fleet, generation: u64) {
    for number in 0..CLUSTERS {
        let done = eventually(format!("generation {generation} on cluster {number}"), LIMIT, async || {
            if is_done(fleet, number, generation).await { Ok(()) } else { Err("it is not there".to_owned()) }
        });
        if let Err(error) = done.await {
            panic!("{error}\n{}", fleet.log());
        }
    }
}

async fn is_done(fleet: &Fleet, number: usize, generation: u64) -> bool {
    let status = fleet.send(&Request::get(&format!("/v1/clustersyncs/{NAME}/c{number}"))).await;
    let entry = &status["status"]["selectorSyncSets"][0];
    entry["result"] == "Success" && entry["observedGeneration"] == generation
}
