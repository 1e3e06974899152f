//! The six families: their kinds, their fields and their tables.

use super::families::{self, RollUp};
use crate::config::ResourceId;
use crate::status_sync::config::StatusFamily;

/// Where our fields are in the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// In `status`, which is a subresource.
    Status,
    /// At the root, beside `metadata`.
    Root,
}

/// Which objects are written for a hub object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// The hub object itself.
    Itself,
    /// `<name>-decision-1`, `-2`, …, each labelled with the placement's name.
    Numbered,
    /// One object with the hub object's name, labelled with what hosts it.
    Named,
}

#[derive(Clone, Copy, Debug)]
pub struct FamilySpec {
    /// The kind that is written, as (plural, version, group).
    target: (&'static str, &'static str, &'static str),
    /// The kind that owns the written objects, with its name; `None` where the hub object itself is written.
    owner: Option<(&'static str, &'static str, &'static str, &'static str)>,
    /// Where our fields are.
    pub home: Home,
    /// Our fields; no others are touched.
    pub fields: &'static [&'static str],
    /// Which objects are written.
    pub shape: Shape,
    /// The table of schema `spec`.
    pub spec_table: &'static str,
    /// The table of schema `status`.
    pub status_table: &'static str,
    /// The part of a reported payload that is rolled up, as SQL.
    pub value: &'static str,
}

const APPS: &str = "apps.open-cluster-management.io";
const CLUSTER: &str = "cluster.open-cluster-management.io";
/// Label of a placement decision, whose value is the placement's name.
pub(super) const PLACEMENT_LABEL: &str = "cluster.open-cluster-management.io/placement";
/// Label and annotation that name the subscription of a status or report.
pub(super) const HOSTING_LABEL: &str = "apps.open-cluster-management.io/hosting-subscription";

/// Whether a label marks an object as made for a hub object.
pub(super) fn is_label_of_ours(key: &str) -> bool {
    key == PLACEMENT_LABEL || key == HOSTING_LABEL
}

pub fn family_spec(family: StatusFamily) -> FamilySpec {
    let subscription = Some(("subscriptions", "v1", APPS, "Subscription"));
    match family {
        StatusFamily::Policies => FamilySpec {
            target: ("policies", "v1", "policy.open-cluster-management.io"),
            owner: None,
            home: Home::Status,
            fields: &["compliant", "status"],
            shape: Shape::Itself,
            spec_table: "policies",
            status_table: "compliance",
            value: "compliance",
        },
        StatusFamily::PlacementRules => FamilySpec {
            target: ("placementrules", "v1", APPS),
            owner: None,
            home: Home::Status,
            fields: &["decisions"],
            shape: Shape::Itself,
            spec_table: "placementrules",
            status_table: "placementrules",
            value: "payload -> 'status' -> 'decisions'",
        },
        StatusFamily::Placements => FamilySpec {
            target: ("placements", "v1beta1", CLUSTER),
            owner: None,
            home: Home::Status,
            fields: &["numberOfSelectedClusters"],
            shape: Shape::Itself,
            spec_table: "placements",
            status_table: "placements",
            value: "payload -> 'status' -> 'numberOfSelectedClusters'",
        },
        StatusFamily::PlacementDecisions => FamilySpec {
            target: ("placementdecisions", "v1beta1", CLUSTER),
            owner: Some(("placements", "v1beta1", CLUSTER, "Placement")),
            home: Home::Status,
            fields: &["decisions"],
            shape: Shape::Numbered,
            spec_table: "placements",
            status_table: "placementdecisions",
            value: "payload -> 'status' -> 'decisions'",
        },
        StatusFamily::SubscriptionStatuses => FamilySpec {
            target: ("subscriptionstatuses", "v1alpha1", APPS),
            owner: subscription,
            home: Home::Root,
            fields: &["statuses"],
            shape: Shape::Named,
            spec_table: "subscriptions",
            status_table: "subscription_statuses",
            value: "payload -> 'statuses'",
        },
        StatusFamily::SubscriptionReports => FamilySpec {
            target: ("subscriptionreports", "v1alpha1", APPS),
            owner: subscription,
            home: Home::Root,
            fields: &["reportType", "resources", "results", "summary"],
            shape: Shape::Named,
            spec_table: "subscriptions",
            status_table: "subscription_reports",
            value: "jsonb_build_object('reportType', payload -> 'reportType', 'summary', payload -> 'summary', \
                    'results', payload -> 'results', 'resources', payload -> 'resources')",
        },
    }
}

/// Begins the roll-up of one hub object's rows.
pub fn begin_roll_up(family: StatusFamily) -> Box<dyn RollUp> {
    match family {
        StatusFamily::Policies => Box::<families::Policies>::default(),
        StatusFamily::PlacementRules => Box::<families::PlacementRules>::default(),
        StatusFamily::Placements => Box::<families::Placements>::default(),
        StatusFamily::PlacementDecisions => Box::<families::PlacementDecisions>::default(),
        StatusFamily::SubscriptionStatuses => Box::<families::SubscriptionStatuses>::default(),
        StatusFamily::SubscriptionReports => Box::<families::SubscriptionReports>::default(),
    }
}

impl FamilySpec {
    /// The kind that is written.
    pub fn target(&self) -> ResourceId {
        let (plural, version, group) = self.target;
        ResourceId { plural: plural.into(), version: version.into(), group: group.into() }
    }

    /// The kind that owns the written objects.
    pub fn owner(&self) -> Option<ResourceId> {
        let (plural, version, group, _) = self.owner?;
        Some(ResourceId { plural: plural.into(), version: version.into(), group: group.into() })
    }

    /// `apiVersion` and `kind` of the owner.
    pub fn owner_type(&self) -> Option<(String, &'static str)> {
        let (_, version, group, kind) = self.owner?;
        Some((format!("{group}/{version}"), kind))
    }

    /// The tables that the family reads, of schema `spec` and of schema `status`.
    pub fn tables(&self) -> [String; 2] {
        [format!("spec.{}", self.spec_table), format!("status.{}", self.status_table)]
    }

    /// The columns that the family reads of [`tables`](Self::tables), each with its type if it must have that one.
    pub fn columns(&self) -> [&'static [(&'static str, Option<&'static str>)]; 2] {
        const UUID: Option<&str> = Some("uuid");
        const JSON: Option<&str> = Some("jsonb");
        let spec: &[_] = &[("id", UUID), ("payload", JSON), ("deleted", Some("boolean"))];
        let status: &[_] = if self.is_compliance() {
            &[("id", UUID), ("cluster_name", None), ("leaf_hub_name", None), ("compliance", None)]
        } else {
            &[("id", None), ("leaf_hub_name", None), ("payload", JSON)]
        };
        [spec, status]
    }

    /// Whether the rows are of `status.compliance`, which has no payload.
    pub fn is_compliance(&self) -> bool {
        self.status_table == "compliance"
    }
}
