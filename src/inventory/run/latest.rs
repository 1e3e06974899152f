//! The latest state of the section, for operators.

use tokio::sync::watch;

use super::super::plan::index::Summary;

/// Whether a project asks for anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProjectState {
    /// They have not been listed.
    #[default]
    Unknown,
    None,
    /// One counts, and is stopped.
    Stopped,
    Counts,
}

impl ProjectState {
    /// Its name in `/status`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::None => "none",
            Self::Stopped => "stopped",
            Self::Counts => "counts",
        }
    }
}

/// The latest state of the section.
#[derive(Debug, Default)]
pub struct InventoryState {
    /// Whether a project asks for anything.
    pub project: ProjectState,
    pub summary: Summary,
    /// Whether the cluster's CRD drops `sentHash`.
    pub prunes: bool,
}

/// The latest state of the section, written by its reconciler and read by the admin server.
#[derive(Debug, Default)]
pub struct LatestState(watch::Sender<InventoryState>);

impl LatestState {
    pub fn state(&self) -> watch::Ref<'_, InventoryState> {
        self.0.borrow()
    }

    /// Records what the reconciler knows. What is not delivered is logged when it changes.
    pub fn observed(&self, project: ProjectState, summary: Option<Summary>) {
        let summary = summary.unwrap_or_default();
        self.0.send_if_modified(|state| {
            if state.project == project && state.summary == summary {
                return false;
            }
            if state.summary.undelivered != summary.undelivered {
                if let Some(reason) = &summary.undelivered {
                    tracing::warn!(reason, "releases are not delivered, retrying");
                } else {
                    tracing::info!("releases are delivered again");
                }
            }
            if state.summary.status_failure != summary.status_failure
                && let Some(error) = &summary.status_failure
            {
                tracing::warn!(error, "failed to write the project's status, retrying");
            }
            if state.project != project {
                tracing::info!(project = project.as_str(), "the project's state has changed");
            }
            (state.project, state.summary) = (project, summary);
            true
        });
    }

    /// Forgets all of it: the reconciler has ended, and the next one, of whichever replica, observes for itself.
    pub fn ended(&self) {
        self.0.send_replace(InventoryState::default());
    }

    pub fn prunes(&self, prunes: bool) {
        self.0.send_if_modified(|state| {
            let is_news = state.prunes != prunes;
            if is_news && prunes {
                tracing::warn!("the CRD of the cluster drops sentHash: a restart sends all releases again");
            }
            state.prunes = prunes;
            is_news
        });
    }
}
