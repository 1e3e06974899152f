//! The identification of a section with a scripted hub identity, state and rows.

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
async fn hub_that_remembers(identity: Option<&str>) -> (HubIdentification, Cluster, Script) {
    hub_that_remembers_for(identity, PLACE).await
}

/// The same with a state object of another database.
async fn hub_that_remembers_for(identity: Option<&str>, place: &str) -> (HubIdentification, Cluster, Script) {
    let (cluster, script) = Cluster::scripted("hub");
    let name: SectionName = "status-sync".parse().expect("a name");
    let owner = Owner { section: name.clone(), read_only: false };
    let store = StateStore::new(owner, cluster.clone(), &Keeping::in_namespace("towline", "this"));
    let identification = HubIdentification::new(name, cluster.clone(), store, database(), vec![POLICIES, PLACEMENTS]);
    let object = state_object(identity, place);
    script.answer(move |_| (200, object.clone()));
    identification.begin(true);
    assert_eq!(identification.current(), Identification::Unread, "the state has not been read");
    identification.store().work().await.expect("the state is read");
    (identification, cluster, script)
}

fn remembered(identification: &HubIdentification) -> Option<String> {
    identification.store().current().identities.local
}

fn unknown(cluster: &Cluster) {
    cluster.set_identity(Identity::Unread);
    cluster.set_identity(Identity::Unknown { reason: "forbidden".into() });
}

fn compare(identification: &HubIdentification, policies: (usize, usize), placements: (usize, usize)) {
    for (family, (objects, others)) in [(POLICIES, policies), (PLACEMENTS, placements)] {
        identification.compared(family, Compared { objects, others });
    }
}

fn is_held(identification: &HubIdentification, words: &str) -> bool {
    matches!(identification.current(), Identification::Held(objection) if objection.to_string().contains(words))
}

#[tokio::test]
async fn the_remembered_hub_is_clear_without_comparing_rows_and_nothing_is_written() {
    let (identification, _, script) = hub_that_remembers(Some("hub")).await;
    assert_eq!(identification.of(PLACEMENTS), Identification::Clear);
    assert!(!identification.asks_for_rows() && !identification.store().has_work());
    assert_eq!(script.asked().len(), 1, "the state was read");
}

#[tokio::test]
async fn another_identity_than_the_stored_one_holds_until_it_is_approved_and_is_remembered_then() {
    let (identification, _, _) = hub_that_remembers(Some("first")).await;
    compare(&identification, (5, 0), (5, 0));
    assert!(is_held(&identification, "its kube-system has UID hub, and had first"));
    assert_eq!(remembered(&identification).as_deref(), Some("first"), "nothing is remembered before it is approved");
    assert!(identification.before_write(POLICIES).await.is_err());
    assert!(identification.approve().is_some());
    assert_eq!(identification.of(POLICIES), Identification::Clear);
    assert_eq!(remembered(&identification).as_deref(), Some("hub"));
    assert!(identification.approve().is_none(), "nothing is held any more");
}

#[tokio::test]
async fn a_hub_that_changes_is_held_and_its_return_is_clear_without_an_approval() {
    let (identification, cluster, _) = hub_that_remembers(Some("hub")).await;
    assert_eq!(identification.current(), Identification::Clear);
    cluster.set_identity(Identity::Unread);
    assert_eq!(identification.current(), Identification::Unread);
    cluster.set_identity(Identity::Known("second".into()));
    assert!(is_held(&identification, "has UID second, and had hub"));
    cluster.set_identity(Identity::Known("hub".into()));
    assert_eq!(identification.of(POLICIES), Identification::Clear);
}

#[tokio::test]
async fn a_state_written_for_another_database_proves_nothing() {
    // The daemon of another hub has written the name of its own database.
    let (identification, _, _) = hub_that_remembers_for(Some("hub"), "elsewhere:5432/hoh").await;
    assert_eq!(identification.current(), Identification::Undecided, "the rows decide");
    compare(&identification, (5, 5), (5, 5));
    assert!(is_held(&identification, "10 of 10"));
    // Nothing is written to a hub that is held.
    identification.store().change(|state| state.identities.local = Some("first".into()));
    identification.store().work().await.expect("nothing is tried");
    assert!(identification.store().has_work());
}

#[tokio::test]
async fn the_state_on_another_cluster_does_not_override_what_this_process_knows() {
    let (identification, cluster, script) = hub_that_remembers(Some("hub")).await;
    assert_eq!(identification.current(), Identification::Clear);
    cluster.set_identity(Identity::Known("second".into()));
    script.answer(|_| (200, state_object(Some("second"), PLACE)));
    identification.begin(true);
    identification.store().work().await.expect("the state is read");
    assert!(is_held(&identification, "has UID second, and had hub"));
}

#[tokio::test]
async fn without_a_remembered_identity_the_rows_of_all_families_decide_and_the_result_is_remembered() {
    let (identification, _, _) = hub_that_remembers(None).await;
    assert_eq!(identification.current(), Identification::Undecided);
    identification.compared(POLICIES, Compared { objects: 3, others: 1 });
    assert_eq!(identification.of(POLICIES), Identification::Undecided, "another family has not compared");
    assert_eq!(remembered(&identification), None);
    identification.compared(PLACEMENTS, Compared { objects: 0, others: 0 });
    assert_eq!(identification.of(POLICIES), Identification::Clear);
    assert_eq!(remembered(&identification).as_deref(), Some("hub"));

    let (identification, _, _) = hub_that_remembers(None).await;
    compare(&identification, (1, 1), (1, 1));
    assert!(is_held(&identification, "2 of 2 objects in cluster hub have another UID"));
    assert!(identification.approve().is_some());
    assert_eq!(remembered(&identification).as_deref(), Some("hub"), "later starts are clear");
}

#[tokio::test]
async fn a_family_that_cannot_compare_delays_no_other_and_may_not_write_before_it_has() {
    let (identification, _, _) = hub_that_remembers(None).await;
    identification.compared(POLICIES, Compared { objects: 1, others: 1 });
    identification.cannot_compare(PLACEMENTS);
    assert_eq!(identification.of(POLICIES), Identification::Clear);
    assert_eq!(identification.of(PLACEMENTS), Identification::Undecided);
    assert_eq!(remembered(&identification), None, "nothing proves that it is the hub");
    identification.compared(PLACEMENTS, Compared { objects: 1, others: 1 });
    assert!(is_held(&identification, "2 of 2"), "also those that have written already");
}

#[tokio::test]
async fn an_unknown_hub_is_compared_after_each_doubt_and_an_approval_lasts_as_long_as_its_credentials() {
    let (identification, cluster, script) = hub_that_remembers(Some("hub")).await;
    unknown(&cluster);
    compare(&identification, (5, 0), (5, 0));
    assert_eq!(identification.of(POLICIES), Identification::Clear);
    unknown(&cluster);
    assert_eq!(
        identification.of(POLICIES),
        Identification::Undecided,
        "another cluster may answer at the same address"
    );
    compare(&identification, (5, 5), (5, 5));
    assert!(is_held(&identification, "10 of 10"));
    assert!(identification.approve().is_some());
    unknown(&cluster);
    assert_eq!(identification.of(POLICIES), Identification::Clear, "it is approved");
    identification.begin(true);
    identification.store().work().await.expect("the state is read");
    assert_eq!(identification.of(POLICIES), Identification::Clear, "for the state of the process");
    cluster.new_session(&script);
    unknown(&cluster);
    assert_eq!(identification.of(POLICIES), Identification::Undecided, "other credentials may lead to another cluster");
}

#[tokio::test]
async fn without_the_right_to_store_it_the_identity_is_remembered_for_the_life_of_the_process() {
    let (identification, cluster, script) = hub_that_remembers(None).await;
    let denied: Value =
        json!({"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "no"});
    script.answer(move |_| (403, denied.clone()));
    compare(&identification, (5, 0), (5, 0));
    assert_eq!(identification.current(), Identification::Clear);
    assert!(identification.store().work().await.is_err());
    // Another replica may have run the section: this one forgets the state that it has read.
    identification.begin(false);
    assert!(identification.store().work().await.is_err());
    assert_eq!(identification.current(), Identification::Clear);
    cluster.set_identity(Identity::Known("second".into()));
    identification.begin(false);
    assert!(identification.store().work().await.is_err());
    assert!(is_held(&identification, "has UID second, and had hub"));
}

#[tokio::test]
async fn a_write_waits_while_the_identity_is_read_and_is_sent_to_the_same_hub_only() {
    let (identification, cluster, _) = hub_that_remembers(Some("hub")).await;
    let identification = Arc::new(identification);
    for (found, is_same) in [("hub", true), ("second", false)] {
        cluster.set_identity(Identity::Unread);
        let asked = Arc::clone(&identification);
        let write = tokio::spawn(async move { asked.before_write(POLICIES).await });
        tokio::task::yield_now().await;
        assert!(!write.is_finished(), "it waits");
        cluster.set_identity(Identity::Known(found.into()));
        assert_eq!(write.await.expect("no panic").is_ok(), is_same, "{found}");
    }
}
