//! What the cluster is to show, by plain SQL alone: nothing of the daemon's roll-ups is in it.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::status_sync::world::Stage;

/// What each object of a family is to show; no entry where there is to be no object.
pub(super) type Shown = BTreeMap<String, Value>;

/// `{compliant, status}` of policies.
const POLICIES: &str = "
    SELECT s.payload -> 'metadata' ->> 'name', json_build_object(
        'compliant', CASE WHEN bool_or(c.compliance = 'non_compliant') THEN 'NonCompliant'
            WHEN bool_or(c.compliance = 'pending') THEN 'Pending'
            WHEN bool_and(c.compliance = 'compliant') THEN 'Compliant' END,
        'status', json_agg(json_strip_nulls(json_build_object('clustername', c.cluster_name,
            'clusternamespace', c.cluster_name, 'compliant', CASE c.compliance WHEN 'compliant' THEN 'Compliant'
            WHEN 'non_compliant' THEN 'NonCompliant' WHEN 'pending' THEN 'Pending' END))
            ORDER BY c.leaf_hub_name COLLATE \"C\", c.cluster_name COLLATE \"C\") FILTER (WHERE c.id IS NOT NULL))::text
    FROM spec.policies s LEFT JOIN status.compliance c ON c.id = s.id GROUP BY 1";

/// The decisions of placement rules, each once; null without rows.
const PLACEMENT_RULES: &str = "
    WITH decided AS (
        SELECT r.payload -> 'metadata' ->> 'name' AS object, d.value AS decision,
            min(right(r.leaf_hub_name, 1)::int * 1000 + d.ordinality) AS place
        FROM status.placementrules r, jsonb_array_elements(r.payload -> 'status' -> 'decisions') WITH ORDINALITY d
        GROUP BY 1, 2)
    SELECT s.payload -> 'metadata' ->> 'name', CASE WHEN EXISTS (
            SELECT FROM status.placementrules r
            WHERE r.payload -> 'metadata' ->> 'name' = s.payload -> 'metadata' ->> 'name')
        THEN coalesce((SELECT json_agg(decision - 'reason' ORDER BY place) FROM decided
            WHERE object = s.payload -> 'metadata' ->> 'name'), '[]')::text
        ELSE 'null' END
    FROM spec.placementrules s";

/// The numbers of placements.
const PLACEMENTS: &str = "
    SELECT s.payload -> 'metadata' ->> 'name',
        least(coalesce(sum((r.payload -> 'status' ->> 'numberOfSelectedClusters')::bigint), 0), 2147483647)::text
    FROM spec.placements s LEFT JOIN status.placements r
        ON r.payload -> 'metadata' ->> 'name' = s.payload -> 'metadata' ->> 'name'
    GROUP BY 1";

/// The clusters of each placement's decisions.
const DECISIONS: &str = "
    SELECT r.payload -> 'metadata' -> 'labels' ->> 'cluster.open-cluster-management.io/placement',
        coalesce(json_agg(d.value ->> 'clusterName' ORDER BY r.leaf_hub_name COLLATE \"C\",
            r.payload -> 'metadata' ->> 'name' COLLATE \"C\", d.ordinality) FILTER (WHERE d.value IS NOT NULL), '[]')::text
    FROM status.placementdecisions r
        LEFT JOIN LATERAL jsonb_array_elements(r.payload -> 'status' -> 'decisions') WITH ORDINALITY d ON true
    GROUP BY 1";

/// `statuses` of subscription statuses.
const STATUSES: &str = "
    SELECT n.name, json_strip_nulls(json_build_object(
        'packages', (SELECT json_agg(p.value ORDER BY o.leaf_hub_name COLLATE \"C\", p.ordinality)
            FROM status.subscription_statuses o,
                jsonb_array_elements(o.payload -> 'statuses' -> 'packages') WITH ORDINALITY p
            WHERE o.payload -> 'metadata' ->> 'name' = n.name),
        'subscription', (SELECT o.payload -> 'statuses' -> 'subscription' FROM status.subscription_statuses o
            WHERE o.payload -> 'metadata' ->> 'name' = n.name AND o.payload -> 'statuses' ? 'subscription'
            ORDER BY o.payload -> 'statuses' -> 'subscription' ->> 'phase' NOT LIKE '%Failed', o.leaf_hub_name COLLATE \"C\"
            LIMIT 1)))::text
    FROM (SELECT DISTINCT payload -> 'metadata' ->> 'name' AS name FROM status.subscription_statuses) n";

/// `{reportType, resources, results, summary}` of subscription reports.
const REPORTS: &str = "
    SELECT n.name, json_strip_nulls(json_build_object(
        'reportType', (array_agg(r.payload -> 'reportType' ORDER BY r.leaf_hub_name COLLATE \"C\"))[1],
        'resources', (array_agg(r.payload -> 'resources' ORDER BY r.leaf_hub_name COLLATE \"C\"))[1],
        'results', (SELECT json_agg(e.value ORDER BY o.leaf_hub_name COLLATE \"C\", e.ordinality)
            FROM status.subscription_reports o, jsonb_array_elements(o.payload -> 'results') WITH ORDINALITY e
            WHERE o.payload -> 'metadata' ->> 'name' = n.name),
        'summary', json_build_object(
            'deployed', sum(nullif(r.payload -> 'summary' ->> 'deployed', '')::int)::text,
            'failed', coalesce(sum(nullif(r.payload -> 'summary' ->> 'failed', '')::int), 0)::text)))::text
    FROM (SELECT DISTINCT payload -> 'metadata' ->> 'name' AS name FROM status.subscription_reports) n
        JOIN status.subscription_reports r ON r.payload -> 'metadata' ->> 'name' = n.name
    GROUP BY n.name";

/// Every family, in the order of [`super::shown::all`].
pub(super) async fn all(stage: &Stage) -> [Shown; 6] {
    let mut all = Vec::new();
    for sql in [POLICIES, PLACEMENT_RULES, PLACEMENTS, DECISIONS, STATUSES, REPORTS] {
        all.push(rows(stage, sql).await);
    }
    all.try_into().expect("six families")
}

async fn rows(stage: &Stage, sql: &str) -> Shown {
    let found = stage.sql.query(sql, &[]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    let parsed = |row: &tokio_postgres::Row| {
        let text: String = row.get(1);
        (row.get(0), serde_json::from_str(&text).expect("JSON"))
    };
    found.iter().map(parsed).collect()
}
