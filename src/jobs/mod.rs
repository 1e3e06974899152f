//! The jobs of the `towline` binary. Nothing else in the program names them; what else a new one needs is in `ARCHITECTURE.md`, "Adding a
//! job".

#[cfg(test)]
mod tests;

use crate::hub::HubJob;
use crate::inventory::InventoryJob;
use crate::job::JobList;
use crate::lease::LeaseJob;
use crate::resource_sync::SyncJob;
use crate::status_sync::StatusSyncJob;
use crate::syncset::SyncsetJob;

/// Every job, in the order in which its sections are wired and shown.
pub const JOBS: JobList = JobList::new(&[&SyncJob, &LeaseJob, &StatusSyncJob, &HubJob, &SyncsetJob, &InventoryJob]);
