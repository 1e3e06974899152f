//! What a watch shows of status sync's work.

use integration::arrivals::{Arrivals, Change};
use integration::{ControlPlane, Error, crds::hub_kind, users};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::options::Size;

/// What is looked at of an object, whatever its kind.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Seen {
    metadata: Metadata,
    status: Option<Status>,
    statuses: Option<IgnoredAny>,
    summary: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    compliant: Option<Word>,
    #[serde(rename = "status")]
    entries: Vec<Entry>,
    decisions: Vec<IgnoredAny>,
    number_of_selected_clusters: Option<u32>,
}

#[derive(Deserialize)]
struct Entry {
    compliant: Option<Word>,
}

/// A word of compliance, in the words of the kind.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
pub(crate) enum Word {
    /// Of a row that complies.
    Compliant,
    /// Of one that does not.
    NonCompliant,
    /// Not used here, and known to the kind.
    Pending,
}

impl Word {
    /// The word of the database.
    pub(crate) fn reported(self) -> &'static str {
        match self {
            Self::Compliant => "compliant",
            Self::NonCompliant => "non_compliant",
            Self::Pending => "pending",
        }
    }

    /// The other one of the two that are used here.
    pub(crate) fn other(self) -> Self {
        if self == Self::Compliant { Self::NonCompliant } else { Self::Compliant }
    }
}

/// What the policies are to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The same word everywhere.
    All(Word),
    /// One row differs from the others.
    One,
}

impl Status {
    fn is(&self, wanted: Wanted, clusters: usize) -> bool {
        let Some(first) = self.entries.first().and_then(|entry| entry.compliant) else { return false };
        let same = self.entries.iter().all(|entry| entry.compliant == Some(first));
        self.entries.len() == clusters
            && match wanted {
                Wanted::All(word) => same && first == word && self.compliant == Some(word),
                Wanted::One => !same,
            }
    }
}

/// Begins to watch the policies; each one's name is noted when it shows what is wanted.
pub(crate) async fn policies(hub: &ControlPlane, size: Size, wanted: Wanted) -> Result<Arrivals, Error> {
    let client = hub.client(users::ADMIN).await?;
    Arrivals::watch_as(&client, &hub_kind("policies")?, move |_: &Change, policy: &Seen| {
        let shows = policy.status.as_ref().is_some_and(|status| status.is(wanted, size.clusters));
        shows.then(|| policy.metadata.name.clone())
    })
    .await
}

/// Begins to watch the objects of another family; each one's name is noted when it has its fields.
pub(crate) async fn others(hub: &ControlPlane, plural: &'static str) -> Result<Arrivals, Error> {
    let client = hub.client(users::ADMIN).await?;
    Arrivals::watch_as(&client, &hub_kind(plural)?, move |_: &Change, object: &Seen| {
        let status = object.status.as_ref();
        let is_served = match plural {
            "placements" => status.is_some_and(|status| status.number_of_selected_clusters.is_some()),
            "subscriptionstatuses" => object.statuses.is_some(),
            "subscriptionreports" => object.summary.is_some(),
            _ => status.is_some_and(|status| !status.decisions.is_empty()),
        };
        is_served.then(|| object.metadata.name.clone())
    })
    .await
}
