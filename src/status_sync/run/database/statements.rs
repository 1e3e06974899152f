//! The two statements of a family, as SQL.
//!
//! They are sent unprepared, and their columns have built-in types, so that the driver queries no catalogue.

use crate::status_sync::plan::{FamilySpec, Shape};

#[derive(Debug)]
pub struct Statements {
    /// Change detection: for each hub object the number of its `status` rows and the sum of their hashes, which does not
    /// depend on their order; also the number of all rows, and of those that name no object.
    ///
    /// Columns: the kind of the line (`object`, `rows`, `bad`), id, namespace, name, number of rows, sum as text.
    /// `$1` is the namespace; empty for all.
    pub(super) detection: String,
    /// Reads the `status` rows of the hub objects `$1`, one object after the other. The rows of an object are in bytewise
    /// order of leaf hub, namespace and name. An object without rows has one line of nulls; an object that is no longer
    /// in `spec` has none.
    ///
    /// Columns: id, leaf hub, name of the row, value as text, hash.
    pub(super) rows: String,
}

impl Statements {
    pub fn of(spec: &FamilySpec) -> Self {
        Self { detection: detection(spec), rows: rows(spec) }
    }
}

fn detection(spec: &FamilySpec) -> String {
    let FamilySpec { spec_table, status_table, .. } = spec;
    let hash = hash(spec);
    let wanted = format!(
        "wanted AS MATERIALIZED (SELECT id, payload -> 'metadata' ->> 'namespace' AS namespace, \
         payload -> 'metadata' ->> 'name' AS name FROM spec.{spec_table} \
         WHERE NOT deleted AND ($1 = '' OR payload -> 'metadata' ->> 'namespace' = $1))"
    );
    let (reported, join) = if spec.is_compliance() {
        let reported = format!(
            "SELECT id AS subject, count(*) AS rows, sum({hash}) AS hash, 0::int8 AS bad, NULL::text AS example \
             FROM status.{status_table} GROUP BY id"
        );
        (reported, "r.subject = w.id")
    } else {
        let Parts { namespace, name, bad, .. } = Parts::of(spec);
        let reported = format!(
            "SELECT {namespace} AS namespace, {name} AS name, count(*) AS rows, sum({hash}) AS hash, \
             count(*) FILTER (WHERE {bad}) AS bad, min(leaf_hub_name || '/' || id) FILTER (WHERE {bad}) AS example \
             FROM status.{status_table} GROUP BY 1, 2"
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

fn rows(spec: &FamilySpec) -> String {
    let FamilySpec { spec_table, status_table, value, .. } = spec;
    let hash = hash(spec);
    if spec.is_compliance() {
        return format!(
            "SELECT s.id::text, r.leaf_hub_name, r.name, r.value, r.hash FROM spec.{spec_table} s \
             LEFT JOIN (SELECT id, leaf_hub_name, cluster_name AS name, {value}::text AS value, {hash} AS hash \
             FROM status.{status_table} WHERE id = ANY ($1::text[]::uuid[])) r ON r.id = s.id \
             WHERE s.id = ANY ($1::text[]::uuid[]) AND NOT s.deleted \
             ORDER BY s.id, r.leaf_hub_name COLLATE \"C\", r.name COLLATE \"C\""
        );
    }
    let Parts { namespace, name, own_name, .. } = Parts::of(spec);
    format!(
        "SELECT s.id::text, r.leaf_hub_name, r.own_name, r.value, r.hash FROM spec.{spec_table} s \
         LEFT JOIN (SELECT leaf_hub_name, {namespace} AS namespace, {name} AS name, {own_name} AS own_name, \
         ({value})::text AS value, {hash} AS hash FROM status.{status_table}) r \
         ON r.namespace = s.payload -> 'metadata' ->> 'namespace' AND r.name = s.payload -> 'metadata' ->> 'name' \
         WHERE s.id = ANY ($1::text[]::uuid[]) AND NOT s.deleted \
         ORDER BY s.id, r.leaf_hub_name COLLATE \"C\", r.own_name COLLATE \"C\""
    )
}

/// The hash of a row: of everything that the roll-up and its order depend on. The hash of one column is the seed of the
/// next, so that the same values in other columns give another hash.
fn hash(spec: &FamilySpec) -> String {
    let value = spec.value;
    let name = if spec.is_compliance() { "cluster_name" } else { Parts::of(spec).own_name };
    format!(
        "hashtextextended(leaf_hub_name, hashtextextended(coalesce({name}, ''), \
         hashtextextended(coalesce(({value})::text, '-'), 0)))"
    )
}

/// SQL expressions over a reported payload.
struct Parts {
    /// The payload's namespace.
    namespace: &'static str,
    /// The name of the hub object that the payload is about.
    name: &'static str,
    /// The payload's own name.
    own_name: &'static str,
    /// Whether the payload names no object.
    bad: &'static str,
}

impl Parts {
    fn of(spec: &FamilySpec) -> Self {
        let own_name = "(payload -> 'metadata' ->> 'name')";
        let name = match spec.shape {
            Shape::Numbered => {
                "(CASE WHEN payload -> 'metadata' ->> 'name' IS NOT NULL THEN \
                 payload -> 'metadata' -> 'labels' ->> 'cluster.open-cluster-management.io/placement' END)"
            }
            Shape::Itself | Shape::Named => own_name,
        };
        Self {
            namespace: "(payload -> 'metadata' ->> 'namespace')",
            name,
            own_name,
            bad: "payload -> 'metadata' ->> 'namespace' IS NULL OR payload -> 'metadata' ->> 'name' IS NULL",
        }
    }
}
