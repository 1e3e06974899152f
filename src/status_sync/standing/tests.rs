//! The standing of a section with a scripted hub identity, state and rows.

use serde_json::{Value, json};

use super::*;
use crate::cluster::watch::scripted::Script;
use crate::db::DatabaseSource;
use crate::state::{Keeping, Owner};

const POLICIES: StatusFamily = StatusFamily::Policies;
const PLACEMENTS: StatusFamily = StatusFamily::Placements;
const PLACE: &str = "db:5432/hoh";

fn database() -> Database {
    let url = format!("postgres://u:p@{PLACE}").parse().expect("a URL");
    Database::new(DatabaseSource::Url(Box::new(url)))
}

fn state_object(identity: Option<&str>, place: &str) -> Value {
    let state = json!({"version": 1, "identities": {"local": identity, "remote": place}}).to_string();
    json!({"metadata": {
        "name": "towline-status-sync", "namespace": "towline", "uid": "state", "resourceVersion": "7",
        "annotations": {"towline.dev/section-state": "status-sync"},
    }, "data": {"state": state}})
}

/// A hub whose state object has this identity, and a section that has read it. The hub's own identity is `hub`.
async fn hub_that_remembers(identity: Option<&str>) -> (HubStanding, Cluster, Script) {
    hub_that_remembers_for(identity, PLACE).await
}

/// The same with a state object of another database.
async fn hub_that_remembers_for(identity: Option<&str>, place: &str) -> (HubStanding, Cluster, Script) {
    let (cluster, script) = Cluster::scripted("hub");
    let name: SectionName = "status-sync".parse().expect("a name");
    let owner = Owner { section: name.clone(), read_only: false };
    let keeper = Keeper::new(owner, cluster.clone(), &Keeping::in_namespace("towline", "this"));
    let standing = HubStanding::new(name, cluster.clone(), keeper, database(), vec![POLICIES, PLACEMENTS]);
    let object = state_object(identity, place);
    script.answer(move |_| (200, object.clone()));
    standing.begin(true);
    assert_eq!(standing.standing(), Standing::Unread, "the state has not been read");
    standing.keeper().work().await.expect("the state is read");
    (standing, cluster, script)
}

fn remembered(standing: &HubStanding) -> Option<String> {
    standing.keeper().current().identities.local
}

fn unknown(cluster: &Cluster) {
    cluster.set_identity(Identity::Unread);
    cluster.set_identity(Identity::Unknown { reason: "forbidden".into() });
}

fn compare(standing: &HubStanding, policies: (usize, usize), placements: (usize, usize)) {
    for (family, (objects, others)) in [(POLICIES, policies), (PLACEMENTS, placements)] {
        standing.compared(family, Compared { objects, others });
    }
}

fn is_held(standing: &HubStanding, words: &str) -> bool {
    matches!(standing.standing(), Standing::Held(objection) if objection.to_string().contains(words))
}

#[tokio::test]
async fn the_remembered_hub_is_clear_without_comparing_rows_and_nothing_is_written() {
    let (standing, _, script) = hub_that_remembers(Some("hub")).await;
    assert_eq!(standing.of(PLACEMENTS), Standing::Clear);
    assert!(!standing.asks_for_rows() && !standing.keeper().has_work());
    assert_eq!(script.asked().len(), 1, "the state was read");
}

#[tokio::test]
async fn another_identity_than_the_stored_one_holds_until_it_is_approved_and_is_remembered_then() {
    let (standing, _, _) = hub_that_remembers(Some("first")).await;
    compare(&standing, (5, 0), (5, 0));
    assert!(is_held(&standing, "its kube-system has UID hub, and had first"));
    assert_eq!(remembered(&standing).as_deref(), Some("first"), "nothing is remembered before it is approved");
    assert!(standing.before_write(POLICIES).await.is_err());
    assert!(standing.approve().is_some());
    assert_eq!(standing.of(POLICIES), Standing::Clear);
    assert_eq!(remembered(&standing).as_deref(), Some("hub"));
    assert!(standing.approve().is_none(), "nothing is held any more");
}

#[tokio::test]
async fn a_hub_that_changes_is_held_and_its_return_is_clear_without_an_approval() {
    let (standing, cluster, _) = hub_that_remembers(Some("hub")).await;
    assert_eq!(standing.standing(), Standing::Clear);
    cluster.set_identity(Identity::Unread);
    assert_eq!(standing.standing(), Standing::Unread);
    cluster.set_identity(Identity::Known("second".into()));
    assert!(is_held(&standing, "has UID second, and had hub"));
    cluster.set_identity(Identity::Known("hub".into()));
    assert_eq!(standing.of(POLICIES), Standing::Clear);
}

#[tokio::test]
async fn a_state_written_for_another_database_proves_nothing() {
    // The daemon of another hub has written the name of its own database.
    let (standing, _, _) = hub_that_remembers_for(Some("hub"), "elsewhere:5432/hoh").await;
    assert_eq!(standing.standing(), Standing::Undecided, "the rows decide");
    compare(&standing, (5, 5), (5, 5));
    assert!(is_held(&standing, "10 of 10"));
    // Nothing is written to a hub that is held.
    standing.keeper().change(|state| state.identities.local = Some("first".into()));
    standing.keeper().work().await.expect("nothing is tried");
    assert!(standing.keeper().has_work());
}

#[tokio::test]
async fn the_state_on_another_cluster_does_not_override_what_this_process_knows() {
    let (standing, cluster, script) = hub_that_remembers(Some("hub")).await;
    assert_eq!(standing.standing(), Standing::Clear);
    cluster.set_identity(Identity::Known("second".into()));
    script.answer(|_| (200, state_object(Some("second"), PLACE)));
    standing.begin(true);
    standing.keeper().work().await.expect("the state is read");
    assert!(is_held(&standing, "has UID second, and had hub"));
}

#[tokio::test]
async fn without_a_remembered_identity_the_rows_of_all_families_decide_and_the_result_is_remembered() {
    let (standing, _, _) = hub_that_remembers(None).await;
    assert_eq!(standing.standing(), Standing::Undecided);
    standing.compared(POLICIES, Compared { objects: 3, others: 1 });
    assert_eq!(standing.of(POLICIES), Standing::Undecided, "another family has not compared");
    assert_eq!(remembered(&standing), None);
    standing.compared(PLACEMENTS, Compared { objects: 0, others: 0 });
    assert_eq!(standing.of(POLICIES), Standing::Clear);
    assert_eq!(remembered(&standing).as_deref(), Some("hub"));

    let (standing, _, _) = hub_that_remembers(None).await;
    compare(&standing, (1, 1), (1, 1));
    assert!(is_held(&standing, "2 of 2 objects in cluster hub have another UID"));
    assert!(standing.approve().is_some());
    assert_eq!(remembered(&standing).as_deref(), Some("hub"), "later starts are clear");
}

#[tokio::test]
async fn a_family_that_cannot_compare_delays_no_other_and_may_not_write_before_it_has() {
    let (standing, _, _) = hub_that_remembers(None).await;
    standing.compared(POLICIES, Compared { objects: 1, others: 1 });
    standing.cannot_compare(PLACEMENTS);
    assert_eq!(standing.of(POLICIES), Standing::Clear);
    assert_eq!(standing.of(PLACEMENTS), Standing::Undecided);
    assert_eq!(remembered(&standing), None, "nothing proves that it is the hub");
    standing.compared(PLACEMENTS, Compared { objects: 1, others: 1 });
    assert!(is_held(&standing, "2 of 2"), "also those that have written already");
}

#[tokio::test]
async fn an_unknown_hub_is_compared_after_each_doubt_and_an_approval_lasts_as_long_as_its_credentials() {
    let (standing, cluster, script) = hub_that_remembers(Some("hub")).await;
    unknown(&cluster);
    compare(&standing, (5, 0), (5, 0));
    assert_eq!(standing.of(POLICIES), Standing::Clear);
    unknown(&cluster);
    assert_eq!(standing.of(POLICIES), Standing::Undecided, "another cluster may answer at the same address");
    compare(&standing, (5, 5), (5, 5));
    assert!(is_held(&standing, "10 of 10"));
    assert!(standing.approve().is_some());
    unknown(&cluster);
    assert_eq!(standing.of(POLICIES), Standing::Clear, "it is approved");
    standing.begin(true);
    standing.keeper().work().await.expect("the state is read");
    assert_eq!(standing.of(POLICIES), Standing::Clear, "for the state of the process");
    cluster.new_session(&script);
    unknown(&cluster);
    assert_eq!(standing.of(POLICIES), Standing::Undecided, "other credentials may lead to another cluster");
}

#[tokio::test]
async fn without_the_right_to_store_it_the_identity_is_remembered_for_the_life_of_the_process() {
    let (standing, cluster, script) = hub_that_remembers(None).await;
    let denied: Value =
        json!({"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "no"});
    script.answer(move |_| (403, denied.clone()));
    compare(&standing, (5, 0), (5, 0));
    assert_eq!(standing.standing(), Standing::Clear);
    assert!(standing.keeper().work().await.is_err());
    // Another replica may have run the section: this one forgets the state that it has read.
    standing.begin(false);
    assert!(standing.keeper().work().await.is_err());
    assert_eq!(standing.standing(), Standing::Clear);
    cluster.set_identity(Identity::Known("second".into()));
    standing.begin(false);
    assert!(standing.keeper().work().await.is_err());
    assert!(is_held(&standing, "has UID second, and had hub"));
}

#[tokio::test]
async fn a_write_waits_while_the_identity_is_read_and_is_sent_to_the_same_hub_only() {
    let (standing, cluster, _) = hub_that_remembers(Some("hub")).await;
    let standing = Arc::new(standing);
    for (found, is_same) in [("hub", true), ("second", false)] {
        cluster.set_identity(Identity::Unread);
        let asked = Arc::clone(&standing);
        let write = tokio::spawn(async move { asked.before_write(POLICIES).await });
        tokio::task::yield_now().await;
        assert!(!write.is_finished(), "it waits");
        cluster.set_identity(Identity::Known(found.into()));
        assert_eq!(write.await.expect("no panic").is_ok(), is_same, "{found}");
    }
}
