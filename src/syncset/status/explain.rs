//! What is known of a cluster, or of a syncset, to which the report gives a line if it fails or waits.

use serde_json::{Value, json};
use tokio::time::Instant;

use super::counter::Counter;
use super::{facts, failure, unreachable};
use crate::cluster::full_text;
use crate::config::SectionName;
use crate::documents::ListError;
use crate::status::{ListedObject, ObjectState, Refused, explained};
use crate::syncset::config::SYNCSETS;
use crate::syncset::plan::status::Unreachable;
use crate::syncset::run::counts::FailingSyncset;
use crate::syncset::run::counts::fleet::{AppliedSyncset, ListedCluster, applied_on};

/// Syncsets of a cluster that is explained.
const MOST_APPLIED: i64 = 20;

/// A cluster as it is in the database now; of a syncset what is held of it.
pub(super) async fn explain(section: &SectionName, counter: &Counter, name: &str) -> Result<Value, Refused> {
    let answer = |found: &[ListedObject], nothing: String| explained(section, found, || nothing);
    if name.contains(' ') {
        let mut held = facts(&counter.latest()).objects.not_in_step;
        held.retain(|object| object.key == name);
        let nothing = format!("holds nothing of {name}; `towline get` and `towline failures` show syncsets");
        return answer(&held, nothing).await;
    }
    let (database, (namespace, of_cluster)) = (counter.database(), name.split_once('/').unwrap_or_default());
    let Some(cluster) = ListedCluster::read(database, namespace, of_cluster).await.map_err(unread)? else {
        return answer(&[], format!("knows no cluster {name}: clusters are NAMESPACE/NAME")).await;
    };
    let applied = applied_on(database, &cluster, MOST_APPLIED).await;
    let (applied, all) = applied.map_err(|error| unread(error.into()))?;
    answer(&[of_cluster_with(&cluster, &applied, all)], String::new()).await
}

fn unread(error: ListError) -> Refused {
    match error {
        ListError::Database(error) if !error.is_unreachable() => {
            Refused::Failed { step: "read the cluster", source: error.into() }
        }
        error => Refused::Unavailable { reason: full_text(&error) },
    }
}

/// Why a cluster is in its state, and which versions of its syncsets it has.
fn of_cluster_with(cluster: &ListedCluster, applied: &[AppliedSyncset], all: usize) -> ListedObject {
    let name = format!("{}/{}", cluster.namespace, cluster.name);
    // All is applied since the last one of them is.
    let newest = || applied.first()?.age.filter(|_| cluster.state == ObjectState::InStep);
    let since = cluster.age.or_else(newest).and_then(|age| Instant::now().checked_sub(age));
    let told = |cause: &str, next_step: Option<String>| {
        let shown = ListedObject::new(&name, cluster.state, since);
        ListedObject { cause: cause.to_owned(), next_step, ..shown }
    };
    let (reason, message) = (cluster.reason.as_deref(), cluster.message.as_deref().unwrap_or_default());
    let mut explained = match cluster.state {
        ObjectState::Failing => {
            let (syncset, reason) = (cluster.syncset.clone(), reason.unwrap_or_default().to_owned());
            let (message, age) = (message.to_owned(), cluster.age.unwrap_or_default());
            failure(&FailingSyncset { cluster: name.clone(), syncset, reason, message, age }, since)
        }
        ObjectState::Unreachable => {
            unreachable(&name, reason.and_then(Unreachable::of_name).map(|reason| (reason, message)), since)
        }
        ObjectState::Held => told("deletions are held", Some(format!("`towline approve {SYNCSETS} --list`"))),
        ObjectState::Pending => told("a pass is due", None),
        ObjectState::Paused => told("it is paused", Some(format!("`towline resume {name}`"))),
        _ => told("", None),
    };
    let mut syncsets: Vec<String> = applied.iter().map(in_words).collect();
    if all > syncsets.len() {
        syncsets.push(format!("and {} more", all - syncsets.len()));
    }
    explained.also.insert("syncsets".to_owned(), json!(syncsets));
    explained
}

fn in_words(one: &AppliedSyncset) -> String {
    let AppliedSyncset { syncset, generation, is_applied, since, .. } = one;
    format!("{syncset}: generation {generation} {}applied since {since}", if *is_applied { "" } else { "not " })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn what_does_not_go_on_by_itself_has_its_own_next_step() {
        use ObjectState::{Failing, Held, InStep, Paused, Pending, Unreachable};
        let connects = "see whether its API server can be reached from here";
        let accepts = "give its document a kubeconfig with valid credentials";
        let identifies = "grant the account of its kubeconfig `get` of the namespace kube-system";
        let fewer = "let fewer syncsets name or select it, and fewer of them fail";
        let may = "grant the right to the account of the kubeconfig";
        for (state, syncset, reason, cause, next_step) in [
            (Unreachable, None, Some("ErrorConnectingToCluster"), "told", Some(connects)),
            (Unreachable, None, Some("Unauthorized"), "told", Some(accepts)),
            (Unreachable, None, Some("Forbidden"), "told", Some(identifies)),
            (
                Unreachable,
                None,
                Some("KubeconfigInvalid"),
                "told",
                Some("give its document a kubeconfig that is allowed, or extend `syncsets.allow`"),
            ),
            (
                Unreachable,
                None,
                Some("Duplicate"),
                "told",
                Some("delete this document or the one that owns the cluster, or correct the kubeconfig"),
            ),
            (Unreachable, None, None, "", None),
            (Failing, Some("SyncSet team-a/base"), Some("Forbidden"), "SyncSet team-a/base: told", Some(may)),
            (Failing, None, Some("TooManySyncsets"), "told", Some(fewer)),
            (Held, None, None, "deletions are held", Some("`towline approve syncsets --list`")),
            (Pending, None, None, "a pass is due", None),
            (Paused, None, None, "it is paused", Some("`towline resume team-a/west-1`")),
            (InStep, None, None, "", None),
        ] {
            let cluster = ListedCluster {
                namespace: "team-a".to_owned(),
                name: "west-1".to_owned(),
                labels: BTreeMap::new(),
                state,
                age: None,
                failing: 0,
                syncset: syncset.map(str::to_owned),
                outcome: None,
                reason: reason.map(str::to_owned),
                message: reason.map(|_| "told".to_owned()),
            };
            let explained = of_cluster_with(&cluster, &[], 1);
            let told =
                (explained.key.as_str(), explained.state, explained.cause.as_str(), explained.next_step.as_deref());
            assert_eq!(told, ("team-a/west-1", state, cause, next_step), "{reason:?}");
            assert_eq!(explained.also["syncsets"], json!(["and 1 more"]));
        }
    }
}
