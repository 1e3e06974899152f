//! The configuration of status sync: `[status_sync]`.

use std::path::PathBuf;
use std::time::Duration;

use crate::config::fault::Problem;
use crate::config::fields::Fields;
use crate::config::names::{STATUS_SYNC, is_label};
use crate::config::setting::{NamespaceName, PositiveDuration, Setting, Unfit, one_of};
use crate::config::{ClusterName, SectionName};
use crate::db::DatabaseSource;
use crate::job;
use crate::state::Owner;

/// The section `[status_sync]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusSyncConfig {
    /// Name of the section, `status-sync`. `/status` and `towline approve` also accept `status_sync`.
    pub name: SectionName,
    /// The hub: a name under `[clusters]`. By default `[clusters.default]` if that is configured, else the cluster that
    /// the daemon runs in, else the one that kubectl would use.
    pub cluster: ClusterName,
    /// The database, with `sslmode` and `pool_max_conns`: `database_url`, or the file `database_url_file`.
    pub database: DatabaseSource,
    /// Time between the beginnings of two passes; `5s` by default. Each pass costs the database one query per family, so
    /// a shorter interval means fresher status and more load.
    pub interval: Duration,
    /// Longest wait for the next row of a statement; `1m` by default. After that the statement is cancelled, its
    /// connection closed and the pass retried. If it is shorter than the slowest change detection takes, no pass ever
    /// completes.
    pub statement_timeout: Duration,
    /// Only hub objects of this namespace are synced. Empty, the default, means all namespaces.
    pub watch_namespace: String,
    /// Namespace of the Lease for leader election, on the same cluster. Only allowed if this is the only section and
    /// there is no `[election]`. None by default: the section runs in every replica.
    pub election_namespace: Option<String>,
    /// The families that are synced; all by default.
    pub families: Vec<StatusFamily>,
    /// Create triggers in the database and listen, so that a change is written within 100 ms instead of at the next pass;
    /// `false` by default. Costs a connection beside the pool, and the database a notification for each writing
    /// statement and a change detection for each burst of them. Passes at the interval continue.
    pub notify: bool,
}

/// A family of status: a table of reports, and the kind on the hub that they are rolled up into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StatusFamily {
    /// Compliance → `Policy`.
    Policies,
    /// → `PlacementRule`.
    PlacementRules,
    /// → `Placement`.
    Placements,
    /// → `PlacementDecision`.
    PlacementDecisions,
    /// → `SubscriptionStatus`.
    SubscriptionStatuses,
    /// → `SubscriptionReport`.
    SubscriptionReports,
}

impl StatusFamily {
    /// All families, in the order in which reports list them.
    pub const ALL: [Self; 6] = [
        Self::Policies,
        Self::PlacementRules,
        Self::Placements,
        Self::PlacementDecisions,
        Self::SubscriptionStatuses,
        Self::SubscriptionReports,
    ];

    /// Its name in the configuration, reports and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Policies => "policies",
            Self::PlacementRules => "placementrules",
            Self::Placements => "placements",
            Self::PlacementDecisions => "placementdecisions",
            Self::SubscriptionStatuses => "subscription_statuses",
            Self::SubscriptionReports => "subscription_reports",
        }
    }

    /// Name of the change detection statement, in metrics and errors.
    pub fn detection_name(self) -> &'static str {
        match self {
            Self::Policies => "detect_policies",
            Self::PlacementRules => "detect_placementrules",
            Self::Placements => "detect_placements",
            Self::PlacementDecisions => "detect_placementdecisions",
            Self::SubscriptionStatuses => "detect_subscription_statuses",
            Self::SubscriptionReports => "detect_subscription_reports",
        }
    }

    /// Name of the statement that reads the rows, in metrics and errors.
    pub fn rows_name(self) -> &'static str {
        match self {
            Self::Policies => "read_policies",
            Self::PlacementRules => "read_placementrules",
            Self::Placements => "read_placements",
            Self::PlacementDecisions => "read_placementdecisions",
            Self::SubscriptionStatuses => "read_subscription_statuses",
            Self::SubscriptionReports => "read_subscription_reports",
        }
    }
}

impl Setting for StatusFamily {
    const ALLOWED: &'static str =
        "policies, placementrules, placements, placementdecisions, subscription_statuses or subscription_reports";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        one_of(text, &Self::ALL.map(|family| (family.as_str(), family)))
    }
}

impl From<&StatusSyncConfig> for Owner {
    fn from(config: &StatusSyncConfig) -> Self {
        Self { section: config.name.clone(), read_only: false }
    }
}

impl StatusSyncConfig {
    /// A section whose optional keys have their defaults.
    pub fn new(cluster: ClusterName, database: DatabaseSource) -> Self {
        Self {
            name: SectionName::of_table(STATUS_SYNC),
            cluster,
            database,
            interval: Duration::from_secs(5),
            statement_timeout: crate::db::ANSWER_WITHIN,
            watch_namespace: String::new(),
            election_namespace: None,
            families: StatusFamily::ALL.to_vec(),
            notify: false,
        }
    }

    /// Reads the section. Returns none if a required key is missing or invalid.
    pub fn read(mut fields: Fields<'_>) -> Option<Self> {
        let is_default = !fields.has("cluster");
        let cluster = fields.optional("cluster").or_else(|| is_default.then(ClusterName::default));
        let database = job::database(&mut fields);
        let complete = cluster.is_some() && database.is_some();
        // Placeholders for invalid keys, so that the faults of the other keys are found as well.
        let no_database = DatabaseSource::File(PathBuf::new());
        let mut section = Self::new(cluster.unwrap_or_else(ClusterName::stand_in), database.unwrap_or(no_database));
        fields.set_as::<PositiveDuration, _>("interval", &mut section.interval);
        fields.set_as::<PositiveDuration, _>("statement_timeout", &mut section.statement_timeout);
        if let Some(namespace) = fields.optional::<Namespace>("watch_namespace") {
            section.watch_namespace = namespace.0;
        }
        section.election_namespace = fields.optional::<NamespaceName>("election_namespace").map(Into::into);
        let faults = fields.faults();
        fields.set("families", &mut section.families);
        // Invalid names have been reported already.
        if section.families.is_empty() && fields.faults() == faults {
            let allowed = format!("at least one of {}", StatusFamily::ALLOWED);
            fields.fault_at("families", Problem::Value { found: "none".to_owned(), allowed, suggestion: None });
        }
        fields.set("notify", &mut section.notify);
        fields.finish();
        complete.then_some(section)
    }
}

/// A namespace, or empty.
struct Namespace(String);

impl Setting for Namespace {
    const ALLOWED: &'static str = "a namespace, or \"\" for all";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        if text.is_empty() || is_label(text) { Ok(Self(text.to_owned())) } else { Err(Unfit::default()) }
    }
}
