//! What is left to delete on clusters that syncsets have lost (`towline_lost`), as expressions.

/// Whether anything is left to delete of what a row of `towline_lost` says. Each object is looked up.
pub(in crate::syncset) fn is_left(lost: &str) -> String {
    format!(
        "case when {lost}.objects is null then exists (select from towline_applied a \
             where a.syncset = {lost}.syncset and a.cluster = {lost}.cluster and a.tracked and not a.adopted) \
           else exists (select from jsonb_array_elements({lost}.objects) o cross join lateral (select from towline_applied a \
             where a.cluster = {lost}.cluster and a.api_group = o->>0 and a.kind = o->>1 and a.namespace = o->>2 and a.name = o->>3 \
               and a.syncset = {lost}.syncset and a.tracked and not a.adopted limit 1) a) end"
    )
}
