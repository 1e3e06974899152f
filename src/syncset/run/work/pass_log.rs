//! What the log says of a pass: what was kept although nobody wants it, and what others change again and again.

use crate::syncset::plan::pass::Outcome;

/// Most objects of a pass that are named: each full pass names them again.
const MOST_NAMED: usize = 20;

pub(super) fn write(cluster: &str, outcome: &Outcome) {
    if !outcome.releases.is_empty() {
        let kept: Vec<String> =
            outcome.releases.iter().map(|(why, count)| format!("{} {count}", why.as_str())).collect();
        tracing::info!(cluster, kept = kept.join(", "), "objects that no syncset wants were not deleted");
    }
    for (object, manager) in outcome.contended.iter().take(MOST_NAMED) {
        let manager = manager.as_deref().unwrap_or("unknown");
        tracing::warn!(cluster, %object, manager, "an object had to be mended by two full passes in a row; towline.dev/ignore-fields leaves fields to others");
    }
}
