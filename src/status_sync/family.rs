//! The six families: their names, the kinds they write and follow, and their two statements.

use super::config::StatusFamily;
use super::families::{self, RollUp};
use crate::config::ResourceId;

/// Where the fields of a family stand in the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// In `status`, which is a subresource.
    Status,
    /// Beside `metadata`.
    Root,
}

/// What is made for a hub object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Nothing: the hub object itself has the fields.
    Itself,
    /// `<name>-decision-1`, `-2`, …, each labelled with the placement's name.
    Numbered,
    /// One object of the hub object's name, labelled with what hosts it.
    Named,
}

/// What a family is, beyond its name.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// The kind that is written, as (plural, version, group).
    target: (&'static str, &'static str, &'static str),
    /// The kind that owns what is written, with its kind's name; none where the hub object itself is written.
    owner: Option<(&'static str, &'static str, &'static str, &'static str)>,
    /// Where the fields stand.
    pub home: Home,
    /// The fields that are ours; nobody else's are touched.
    pub fields: &'static [&'static str],
    /// Which objects are written.
    pub shape: Shape,
    /// Table of schema `spec`.
    spec: &'static str,
    /// Table of schema `status`.
    status: &'static str,
    /// The part of a reported payload that is rolled up, as SQL.
    value: &'static str,
}

const APPS: &str = "apps.open-cluster-management.io";
const CLUSTER: &str = "cluster.open-cluster-management.io";
/// Label of a placement decision: the placement's name.
pub const PLACEMENT_LABEL: &str = "cluster.open-cluster-management.io/placement";

/// What a family is.
pub fn facts(family: StatusFamily) -> Facts {
    let subscription = Some(("subscriptions", "v1", APPS, "Subscription"));
    match family {
        StatusFamily::Policies => Facts {
            target: ("policies", "v1", "policy.open-cluster-management.io"),
            owner: None,
            home: Home::Status,
            fields: &["compliant", "status"],
            shape: Shape::Itself,
            spec: "policies",
            status: "compliance",
            value: "compliance",
        },
        StatusFamily::PlacementRules => Facts {
            target: ("placementrules", "v1", APPS),
            owner: None,
            home: Home::Status,
            fields: &["decisions"],
            shape: Shape::Itself,
            spec: "placementrules",
            status: "placementrules",
            value: "payload -> 'status' -> 'decisions'",
        },
        StatusFamily::Placements => Facts {
            target: ("placements", "v1beta1", CLUSTER),
            owner: None,
            home: Home::Status,
            fields: &["numberOfSelectedClusters"],
            shape: Shape::Itself,
            spec: "placements",
            status: "placements",
            value: "payload -> 'status' -> 'numberOfSelectedClusters'",
        },
        StatusFamily::PlacementDecisions => Facts {
            target: ("placementdecisions", "v1beta1", CLUSTER),
            owner: Some(("placements", "v1beta1", CLUSTER, "Placement")),
            home: Home::Status,
            fields: &["decisions"],
            shape: Shape::Numbered,
            spec: "placements",
            status: "placementdecisions",
            value: "payload -> 'status' -> 'decisions'",
        },
        StatusFamily::SubscriptionStatuses => Facts {
            target: ("subscriptionstatuses", "v1alpha1", APPS),
            owner: subscription,
            home: Home::Root,
            fields: &["statuses"],
            shape: Shape::Named,
            spec: "subscriptions",
            status: "subscription_statuses",
            value: "payload -> 'statuses'",
        },
        StatusFamily::SubscriptionReports => Facts {
            target: ("subscriptionreports", "v1alpha1", APPS),
            owner: subscription,
            home: Home::Root,
            fields: &["reportType", "resources", "results", "summary"],
            shape: Shape::Named,
            spec: "subscriptions",
            status: "subscription_reports",
            value: "jsonb_build_object('reportType', payload -> 'reportType', 'summary', payload -> 'summary', \
                    'results', payload -> 'results', 'resources', payload -> 'resources')",
        },
    }
}

/// Begins the roll-up of one hub object's rows.
pub fn begin(family: StatusFamily) -> Box<dyn RollUp> {
    match family {
        StatusFamily::Policies => Box::<families::Policies>::default(),
        StatusFamily::PlacementRules => Box::<families::PlacementRules>::default(),
        StatusFamily::Placements => Box::<families::Placements>::default(),
        StatusFamily::PlacementDecisions => Box::<families::PlacementDecisions>::default(),
        StatusFamily::SubscriptionStatuses => Box::<families::SubscriptionStatuses>::default(),
        StatusFamily::SubscriptionReports => Box::<families::SubscriptionReports>::default(),
    }
}

impl Facts {
    /// The kind that is written.
    pub fn target(&self) -> ResourceId {
        let (plural, version, group) = self.target;
        ResourceId { plural: plural.into(), version: version.into(), group: group.into() }
    }

    /// The kind that owns what is written.
    pub fn owner(&self) -> Option<ResourceId> {
        let (plural, version, group, _) = self.owner?;
        Some(ResourceId { plural: plural.into(), version: version.into(), group: group.into() })
    }

    /// `apiVersion` and `kind` of the owner.
    pub fn owner_type(&self) -> Option<(String, &'static str)> {
        let (_, version, group, kind) = self.owner?;
        Some((format!("{group}/{version}"), kind))
    }

    /// What finds changes: for each hub object how many rows there are and the sum of their hashes, which does not
    /// depend on their order; and how many rows there are in all, and how many that name nobody.
    ///
    /// Columns: what the line is (`object`, `rows`, `bad`), id, namespace, name, number of rows, sum as text.
    /// `$1` is the namespace, or empty.
    pub fn detection(&self) -> String {
        let Self { spec, status, .. } = self;
        let hash = self.hash();
        let wanted = format!(
            "wanted AS MATERIALIZED (SELECT id, payload -> 'metadata' ->> 'namespace' AS namespace, \
             payload -> 'metadata' ->> 'name' AS name FROM spec.{spec} \
             WHERE NOT deleted AND ($1 = '' OR payload -> 'metadata' ->> 'namespace' = $1))"
        );
        let (reported, join) = if self.is_compliance() {
            let reported = format!(
                "SELECT id AS subject, count(*) AS rows, sum({hash}) AS hash, 0::int8 AS bad, NULL::text AS example \
                 FROM status.{status} GROUP BY id"
            );
            (reported, "r.subject = w.id")
        } else {
            let Parts { namespace, name, bad, .. } = self.parts();
            let reported = format!(
                "SELECT {namespace} AS namespace, {name} AS name, count(*) AS rows, sum({hash}) AS hash, \
                 count(*) FILTER (WHERE {bad}) AS bad, min(leaf_hub_name || '/' || id) FILTER (WHERE {bad}) AS example \
                 FROM status.{status} GROUP BY 1, 2"
            );
            (reported, "r.namespace = w.namespace AND r.name = w.name")
        };
        format!(
            "WITH {wanted}, reported AS MATERIALIZED ({reported}) \
             SELECT 'object', w.id::text, w.namespace, w.name, coalesce(r.rows, 0), coalesce(r.hash, 0)::text \
             FROM wanted w LEFT JOIN reported r ON {join} \
             UNION ALL SELECT 'rows', NULL, NULL, NULL, coalesce(sum(rows), 0)::int8, '0' FROM reported \
             UNION ALL SELECT 'bad', min(example), NULL, NULL, sum(bad)::int8, '0' FROM reported HAVING sum(bad) > 0"
        )
    }

    /// What reads the rows of the hub objects `$1`, one object after the other, each object's in the order of leaf hub,
    /// namespace and name, bytewise. An object without rows has one line of nulls; one that is no longer wanted has none.
    ///
    /// Columns: id, leaf hub, name of the row, value as text, hash.
    pub fn rows(&self) -> String {
        let Self { spec, status, value, .. } = self;
        let hash = self.hash();
        if self.is_compliance() {
            return format!(
                "SELECT s.id::text, r.leaf_hub_name, r.name, r.value, r.hash FROM spec.{spec} s \
                 LEFT JOIN (SELECT id, leaf_hub_name, cluster_name AS name, {value}::text AS value, {hash} AS hash \
                 FROM status.{status} WHERE id = ANY ($1::text[]::uuid[])) r ON r.id = s.id \
                 WHERE s.id = ANY ($1::text[]::uuid[]) AND NOT s.deleted \
                 ORDER BY s.id, r.leaf_hub_name COLLATE \"C\", r.name COLLATE \"C\""
            );
        }
        let Parts { namespace, name, own_name, .. } = self.parts();
        format!(
            "SELECT s.id::text, r.leaf_hub_name, r.own_name, r.value, r.hash FROM spec.{spec} s \
             LEFT JOIN (SELECT leaf_hub_name, {namespace} AS namespace, {name} AS name, {own_name} AS own_name, \
             ({value})::text AS value, {hash} AS hash FROM status.{status}) r \
             ON r.namespace = s.payload -> 'metadata' ->> 'namespace' AND r.name = s.payload -> 'metadata' ->> 'name' \
             WHERE s.id = ANY ($1::text[]::uuid[]) AND NOT s.deleted \
             ORDER BY s.id, r.leaf_hub_name COLLATE \"C\", r.own_name COLLATE \"C\""
        )
    }

    /// The table of schema `spec` that it reads.
    pub fn spec_table(&self) -> &'static str {
        self.spec
    }

    /// The tables that it reads, of schema `spec` and of schema `status`.
    pub fn tables(&self) -> [String; 2] {
        [format!("spec.{}", self.spec), format!("status.{}", self.status)]
    }

    /// The columns that are read of [`tables`](Self::tables), each with its type where only that one will do.
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

    fn is_compliance(&self) -> bool {
        self.status == "compliance"
    }

    /// The hash of a row: of everything that the roll-up or its order depends on. Each hash is the seed of the next, so
    /// that no two columns can be taken for one.
    fn hash(&self) -> String {
        let value = self.value;
        let name = if self.is_compliance() { "cluster_name" } else { self.parts().own_name };
        format!(
            "hashtextextended(leaf_hub_name, hashtextextended(coalesce({name}, ''), \
             hashtextextended(coalesce(({value})::text, '-'), 0)))"
        )
    }

    fn parts(&self) -> Parts {
        let own_name = "(payload -> 'metadata' ->> 'name')";
        let name = match self.shape {
            Shape::Numbered => {
                "(CASE WHEN payload -> 'metadata' ->> 'name' IS NOT NULL THEN \
                 payload -> 'metadata' -> 'labels' ->> 'cluster.open-cluster-management.io/placement' END)"
            }
            Shape::Itself | Shape::Named => own_name,
        };
        Parts {
            namespace: "(payload -> 'metadata' ->> 'namespace')",
            name,
            own_name,
            bad: "payload -> 'metadata' ->> 'namespace' IS NULL OR payload -> 'metadata' ->> 'name' IS NULL",
        }
    }
}

/// What a reported payload is asked for, as SQL.
struct Parts {
    /// Its namespace.
    namespace: &'static str,
    /// The name of the hub object that it is about.
    name: &'static str,
    /// Its own name.
    own_name: &'static str,
    /// Whether it names nobody.
    bad: &'static str,
}
