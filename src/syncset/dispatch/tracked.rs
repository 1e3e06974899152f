//! On which clusters a syncset tracks objects, as queries without parentheses. Each cluster costs one look into the index, however
//! many objects there are. Only objects that were adopted are passed over one by one, within the index, where others are looked for.

use uuid::Uuid;

/// Where it tracks any.
pub(super) fn tracked(syncset: &str) -> String {
    scan(syncset, "")
}

/// Where it tracks some that it may delete: those that were adopted never are.
pub(super) fn deletable(syncset: &str) -> String {
    scan(syncset, " and not a.adopted")
}

/// The same of the clusters above `after` and up to `until`; a null is no limit.
pub(super) fn deletable_within(syncset: &str, after: &str, until: &str) -> String {
    let (lowest, highest) = (Uuid::nil(), Uuid::max());
    let within = format!(
        " and not a.adopted and a.cluster > coalesce({after}, '{lowest}'::uuid) and a.cluster <= coalesce({until}, '{highest}'::uuid)"
    );
    scan(syncset, &within)
}

fn scan(syncset: &str, condition: &str) -> String {
    let first = format!("select a.cluster from towline_applied a where a.syncset = {syncset} and a.tracked{condition}");
    format!(
        "with recursive t(cluster) as ( \
           ({first} order by a.cluster limit 1) \
           union all select ({first} and a.cluster > t.cluster order by a.cluster limit 1) from t where t.cluster is not null) \
         select cluster from t where cluster is not null"
    )
}
