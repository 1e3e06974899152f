//! Towline keeps many Kubernetes clusters and a hub in step: one daemon, a tree of actors.
//!
//! ```text
//! towline                              restarts its children with back-off; budget spent -> the process exits with 1
//! ├─ admin                             HTTP: /metrics /healthz /readyz /status /held, POST /approve /detach /attach
//! ├─ cluster <name>                    one for each cluster
//! │  ├─ session                        credentials, availability, denied permissions
//! │  └─ watcher <kind> [selector]      list + watch -> cache; tells its followers the keys that changed
//! ├─ roll                              looks at the Leases for all electors at once
//! ├─ election <section>                one Lease for each section: takes it, renews it, opens the section's gate meanwhile
//! ├─ lease <name>                      one for each [[lease]] section: renews its Lease while its pod is ready
//! ├─ status_sync                       where there is `[status_sync]`
//! │  ├─ state                          reads and writes what outlives the process
//! │  ├─ poller <family>                reads what changed in the database, rolls it up, writes differences
//! │  └─ listener                       where `notify = true`: the database tells of changes, it tells the pollers
//! ├─ sync <name>                       one for each [[sync]] section
//! │  ├─ dispatcher ── reconciler <key> one run at a time for a key, many keys at once, passivated when idle
//! │  ├─ attendant                      wakes what waits for a cluster or a permission
//! │  ├─ state                          reads and writes what outlives the process
//! │  └─ events                         writes Events
//! └─ membership                        says that this replica lives
//! ```
//!
//! Watchers are shared by cluster, kind and selector, so they belong to the cluster, not to a section. Dependencies
//! point one way: [`app`] → [`jobs`] → the jobs ([`resource_sync`], [`lease`], [`status_sync`]) → [`job`] → [`election`], [`state`]
//! → [`cluster`], [`db`] → [`telemetry`] → [`config`], [`http`], [`actor`]; a job never imports another job.

pub mod actor;
pub mod app;
pub mod check;
pub mod cli;
pub mod cluster;
pub mod config;
pub mod db;
pub mod election;
pub mod http;
pub mod job;
pub mod jobs;
pub mod lease;
pub mod resource_sync;
pub mod state;
pub mod status_sync;
pub mod telemetry;
