//! On which clusters a syncset tracks objects, as a query without parentheses. Each cluster costs one look into the index, however
//! many objects there are.

pub(super) fn tracked(syncset: &str) -> String {
    let first = format!("select a.cluster from towline_applied a where a.syncset = {syncset} and a.tracked");
    format!(
        "with recursive t(cluster) as ( \
           ({first} order by a.cluster limit 1) \
           union all select ({first} and a.cluster > t.cluster order by a.cluster limit 1) from t where t.cluster is not null) \
         select cluster from t where cluster is not null"
    )
}
