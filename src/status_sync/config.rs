//! `[status_sync]`: what leaf hubs report in a database, rolled up on the hub.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use crate::cluster::full_text;
use crate::config::fault::{Fault, Problem};
use crate::config::fields::Fields;
use crate::config::names::{NamespaceName, STATUS_SYNC};
use crate::config::setting::{PositiveDuration, Setting, Unfit, one_of};
use crate::config::source::Node;
use crate::config::{ClusterName, DEFAULT_MAX_IN_FLIGHT, SectionName};
use crate::db::{DatabaseSource, DatabaseUrl, InvalidUrl};
use crate::state::Owner;

/// Status that is rolled up from a database: `[status_sync]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusSyncConfig {
    /// Name of the section in `/status` and for `towline approve`, which also take `status_sync`: `status-sync`.
    pub name: SectionName,
    /// The hub: a name under `[clusters]`. Where none is named: `[clusters.default]` if that is configured, else the
    /// cluster that the daemon runs in, else what kubectl would use.
    pub cluster: ClusterName,
    /// The database, with `sslmode` and `pool_max_conns`: `database_url`, or the file `database_url_file`.
    pub database: DatabaseSource,
    /// Between the beginnings of passes; `5s` by default. Shorter is fresher and costs the database a query a family
    /// each time.
    pub interval: Duration,
    /// Longest wait for the next row of a statement; `1m` by default. Then the statement is cancelled, its connection closed
    /// and the pass tried again. Too short for the slowest change detection, and no pass ever comes to its end.
    pub statement_timeout: Duration,
    /// Only hub objects of this namespace; empty, the default: of all.
    pub watch_namespace: String,
    /// Namespace of the Lease by which replicas elect the one that runs, on the same cluster, where this is the only section
    /// and there is no `[election]`; none by default: it runs in every replica.
    pub election_namespace: Option<String>,
    /// Which families are rolled up; all by default.
    pub families: Vec<StatusFamily>,
    /// Most writes at the same time, over all families; 64 by default.
    pub max_in_flight: NonZeroUsize,
    /// Make triggers in the database and listen, so that a change is written within 100 ms instead of at the next pass;
    /// `false` by default. Costs a connection beside the pool, and the database a notification for each writing
    /// statement and a change detection for each burst of them. Passes at the interval go on.
    pub notify: bool,
}

/// A family of status: a table, and the kind on the hub that it is rolled up into.
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
    /// All, in the order of a report.
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

    /// Name of the statement that finds changes, in metrics and errors.
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

    /// Name of the statement that reads rows, in metrics and errors.
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

/// A connection string holds a password: what was found is never repeated.
impl Setting for DatabaseUrl {
    const ALLOWED: &'static str = "a URL such as postgres://user:password@host:5432/database?sslmode=verify-full, \
         or libpq's keywords such as host=db dbname=hub user=me";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        text.parse().map_err(|error: InvalidUrl| Unfit::because(full_text(&error)))
    }

    fn read(node: &Node, path: &str, faults: &mut Vec<Fault>) -> Option<Self> {
        let found = match node.text().map(Self::from_text) {
            Some(Ok(url)) => return Some(url),
            Some(Err(unfit)) => {
                let reason = unfit.reason.unwrap_or_default();
                let origin = node.variable().map_or_else(String::new, |variable| format!(" (from {variable})"));
                format!("an invalid database URL{origin}: {reason} (not shown, as it may hold a password)")
            }
            None => node.to_string(),
        };
        let problem = Problem::Value { found, allowed: Self::ALLOWED.to_owned(), suggestion: None };
        faults.push(Fault::new(path, problem));
        None
    }
}

impl From<&StatusSyncConfig> for Owner {
    fn from(config: &StatusSyncConfig) -> Self {
        Self { section: config.name.clone(), former: Vec::new(), read_only: false }
    }
}

impl StatusSyncConfig {
    /// A section with the default of everything that has one.
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
            max_in_flight: DEFAULT_MAX_IN_FLIGHT,
            notify: false,
        }
    }

    /// None where a required key has a fault.
    pub fn read(mut fields: Fields<'_>) -> Option<Self> {
        let names_none = !fields.has("cluster");
        let cluster = fields.optional("cluster").or_else(|| names_none.then(ClusterName::default));
        let given = [fields.has("database_url"), fields.has("database_url_file")];
        let url = fields.optional::<DatabaseUrl>("database_url").map(|url| DatabaseSource::Url(Box::new(url)));
        let file = fields.optional::<PathBuf>("database_url_file").map(DatabaseSource::File);
        let allowed = || "exactly one of `database_url` and `database_url_file`".to_owned();
        match given {
            [false, false] => fields.fault(Problem::Missing { allowed: allowed() }),
            [true, true] => {
                let found = "`database_url` beside `database_url_file`".to_owned();
                fields.fault(Problem::Value { found, allowed: allowed(), suggestion: None });
            }
            _ => {}
        }
        let database = url.or(file);
        let complete = cluster.is_some() && database.is_some();
        let nowhere = DatabaseSource::File(PathBuf::new());
        let mut section = Self::new(cluster.unwrap_or_else(ClusterName::stand_in), database.unwrap_or(nowhere));
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
        fields.set("max_in_flight", &mut section.max_in_flight);
        fields.set("notify", &mut section.notify);
        fields.finish();
        complete.then_some(section)
    }
}

/// A namespace, or none.
struct Namespace(String);

impl Setting for Namespace {
    const ALLOWED: &'static str = "a namespace, or \"\" for all";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        let fits = text.len() <= 63
            && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
            && !text.starts_with('-')
            && !text.ends_with('-');
        if fits { Ok(Self(text.to_owned())) } else { Err(Unfit::default()) }
    }
}
