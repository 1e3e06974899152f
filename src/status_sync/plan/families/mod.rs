//! The roll-up of each family: the rows of one hub object go in, in order, and the desired fields of the objects on the
//! hub come out.

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

/// The desired fields of one object. Fields of ours that are not in it must be absent.
pub type Fields = BTreeMap<&'static str, Value>;

#[derive(Clone, Copy, Debug)]
pub struct StatusRow<'r> {
    /// The leaf hub that reported it.
    pub leaf_hub: &'r str,
    /// The name of the cluster, or of the reported object.
    pub name: &'r str,
    /// The compliance, or the reported part as JSON; `None` if the leaf hub's object has no such part.
    pub value: Option<&'r str>,
}

/// Rolls up the rows of one hub object.
pub trait RollUp: Send {
    /// Takes the next row, and adds its faults to `faults`. A row that cannot be decoded is left out.
    fn take(&mut self, row: &StatusRow<'_>, faults: &mut Vec<String>);

    /// The desired objects, after the last row. There was at least one row.
    fn finish(self: Box<Self>) -> Vec<Fields>;
}
