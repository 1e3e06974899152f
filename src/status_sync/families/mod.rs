//! The roll-up of each family, pure: the rows of one hub object in, in order; the fields of the objects on the hub out.

mod json;
mod placement_decisions;
mod placement_rules;
mod placements;
mod policies;
mod subscription_reports;
mod subscription_statuses;

use std::collections::BTreeMap;

use serde_json::Value;

pub use placement_decisions::PlacementDecisions;
pub use placement_rules::PlacementRules;
pub use placements::Placements;
pub use policies::Policies;
pub use subscription_reports::SubscriptionReports;
pub use subscription_statuses::SubscriptionStatuses;

/// The fields of one object that are ours; what is not in it is to be absent.
pub type Fields = BTreeMap<&'static str, Value>;

/// One reported row.
#[derive(Clone, Copy, Debug)]
pub struct StatusRow<'r> {
    /// Who reported it.
    pub leaf_hub: &'r str,
    /// The cluster, or the reported object's name.
    pub name: &'r str,
    /// The word of compliance, or the reported part as JSON; `None` where the leaf hub's object has no such part.
    pub value: Option<&'r str>,
}

/// Rolls up the rows of one hub object.
pub trait RollUp: Send {
    /// Takes the next row. What is wrong with it is told to `faults`; a row that can't be read counts for nothing.
    fn take(&mut self, row: &StatusRow<'_>, faults: &mut Vec<String>);

    /// The objects that there are to be, after the last row. There was at least one.
    fn finish(self: Box<Self>) -> Vec<Fields>;
}
