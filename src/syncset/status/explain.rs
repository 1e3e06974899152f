//! What is known of a cluster, or of a syncset, to which the report gives a line if it fails or waits.

use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::counter::Counter;
use super::facts;
use crate::cluster::full_text;
use crate::config::SectionName;
use crate::documents::ListError;
use crate::status::{ListedObject, ObjectState, Refused, explained};
use crate::syncset::config::SYNCSETS;
use crate::syncset::plan::reason::Reason;
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
    let message = cluster.message.clone().unwrap_or_default();
    let of_reason = || Some(Reason::of_name(cluster.reason.as_deref()?)?.next_step().to_owned());
    let (cause, next_step) = match (cluster.state, &cluster.syncset) {
        (ObjectState::Failing, Some(syncset)) => (format!("{syncset}: {message}"), of_reason()),
        (ObjectState::Failing, None) | (ObjectState::Unreachable, _) => (message, of_reason()),
        (ObjectState::Held, _) => {
            ("deletions are held".to_owned(), Some(format!("`towline approve {SYNCSETS} --list`")))
        }
        (ObjectState::Pending, _) => ("a pass is due".to_owned(), None),
        (ObjectState::Paused, _) => ("it is paused".to_owned(), Some(format!("`towline resume {name}`"))),
        _ => (String::new(), None),
    };
    // All is applied since the last one of them is.
    let newest = || applied.first()?.age.filter(|_| cluster.state == ObjectState::InStep);
    let since = cluster.age.or_else(newest).and_then(|age| Instant::now().checked_sub(age));
    let mut syncsets: Vec<String> = applied.iter().map(in_words).collect();
    if all > syncsets.len() {
        syncsets.push(format!("and {} more", all - syncsets.len()));
    }
    let also = Map::from_iter([("syncsets".to_owned(), json!(syncsets))]);
    ListedObject { cause, next_step, also, ..ListedObject::new(name, cluster.state, since) }
}

fn in_words(one: &AppliedSyncset) -> String {
    let AppliedSyncset { syncset, generation, is_applied, since, .. } = one;
    format!("{syncset}: generation {generation} {}applied since {since}", if *is_applied { "" } else { "not " })
}
