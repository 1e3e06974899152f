//! Monitors the Leases and each replica's metrics, and in the end checks every write.
//!
//! Scrapes of two replicas are never at the same moment. So if two replicas report a section as running, both are scraped
//! again: if both report it in both scrapes, it ran in both at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::join_all;
use integration::audit::{Mark, Record};
use integration::{ControlPlane, Filter, eventually};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, ResourceExt};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;

use crate::elections::replica::claims;
use crate::elections::world::{LIMIT, PLURAL, World};

/// The pause between two scrapes.
const PAUSE: Duration = Duration::from_millis(200);
/// A replica that does not answer within this is skipped.
const ANSWER: Duration = Duration::from_millis(500);

/// One term of a holder, by the times that holders write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Term {
    pub(crate) holder: String,
    /// When the holder acquired the section: a time before it sent the request, in RFC 3339 with microseconds.
    pub(crate) acquired: String,
}

#[derive(Default)]
struct Seen {
    /// The terms of each section, in order.
    terms: BTreeMap<String, Vec<Term>>,
    /// The current holder of each section.
    holders: BTreeMap<String, Option<String>>,
    /// How often each section was released.
    releases: BTreeMap<String, usize>,
    /// Replicas by their addresses.
    replicas: BTreeMap<String, String>,
    violations: Vec<String>,
    looks: usize,
}

/// Watches a world until it is dropped.
pub(crate) struct Monitor {
    world: World,
    seen: Arc<Mutex<Seen>>,
    marks: [Mark; 2],
    tasks: Vec<JoinHandle<()>>,
}

impl Monitor {
    pub(crate) async fn start(world: &World) -> Self {
        let seen = Arc::new(Mutex::new(Seen::default()));
        let marks =
            [world.hub.audit().unwrap().mark().await.unwrap(), world.edge.audit().unwrap().mark().await.unwrap()];
        let tasks = vec![
            tokio::spawn(follow_leases(world.clone(), Arc::clone(&seen))),
            tokio::spawn(follow_metrics(Arc::clone(&seen))),
        ];
        Self { world: world.clone(), seen, marks, tasks }
    }

    pub(crate) async fn add(&self, identity: &str, admin_url: &str) {
        self.seen.lock().await.replicas.insert(identity.to_owned(), admin_url.to_owned());
    }

    /// The holder of each section, by the Leases.
    pub(crate) async fn holders(&self) -> BTreeMap<String, String> {
        let seen = self.seen.lock().await;
        seen.holders.iter().filter_map(|(section, holder)| Some((section.clone(), holder.clone()?))).collect()
    }

    /// How many terms there have been, over all sections.
    pub(crate) async fn terms(&self) -> usize {
        self.seen.lock().await.terms.values().map(Vec::len).sum()
    }

    /// How often a holder released a section. Expired Leases don't count.
    pub(crate) async fn releases_of(&self, section: &str) -> usize {
        self.seen.lock().await.releases.get(section).copied().unwrap_or_default()
    }

    /// Waits until these hold every section; returns the sections of each.
    pub(crate) async fn shared(
        &self,
        among: &[&str],
        what: &str,
        limit: Duration,
    ) -> BTreeMap<String, BTreeSet<String>> {
        let what = format!("every section to be held {what}");
        eventually(what, limit, async || self.shares(among).await).await.unwrap()
    }

    /// The sections of each, if these hold every section.
    async fn shares(&self, among: &[&str]) -> Result<BTreeMap<String, BTreeSet<String>>, String> {
        let holders = self.holders().await;
        let mut shares: BTreeMap<String, BTreeSet<String>> =
            among.iter().map(|identity| ((*identity).to_owned(), BTreeSet::new())).collect();
        for section in self.world.sections() {
            let holder = holders.get(&section).ok_or_else(|| format!("no replica holds {section}: {holders:?}"))?;
            let share = shares.get_mut(holder).ok_or_else(|| format!("{holder} has {section}: {holders:?}"))?;
            share.insert(section);
        }
        Ok(shares)
    }

    /// Waits until these hold every section, and each runs exactly those that it holds. If a section moves once more in
    /// between, because a busy machine delayed a renewal, this waits for that as well.
    pub(crate) async fn all_run(&self, among: &[&str], what: &str) {
        eventually(format!("every section to be held and to run {what}"), LIMIT, async || {
            let shares = self.shares(among).await?;
            self.do_run(&shares).await
        })
        .await
        .unwrap();
    }

    /// Waits until the metrics of each of these show that exactly its share runs in it.
    pub(crate) async fn running(&self, shares: &BTreeMap<String, BTreeSet<String>>, what: &str) {
        eventually(format!("the shares to run {what}"), LIMIT, async || self.do_run(shares).await).await.unwrap();
    }

    async fn do_run(&self, shares: &BTreeMap<String, BTreeSet<String>>) -> Result<(), String> {
        let replicas = self.seen.lock().await.replicas.clone();
        for (identity, share) in shares {
            let claims = scrape(&replicas[identity]).await.ok_or_else(|| format!("{identity} does not answer"))?;
            let running: BTreeSet<String> =
                claims.into_iter().filter(|(_, runs)| *runs).map(|(section, _)| section).collect();
            if running != *share {
                return Err(format!("{identity} runs {running:?} and holds {share:?}"));
            }
        }
        Ok(())
    }

    pub(crate) async fn terms_of(&self, section: &str) -> Vec<Term> {
        self.seen.lock().await.terms.get(section).cloned().unwrap_or_default()
    }

    /// Fails if two replicas ever reported that they run one section.
    pub(crate) async fn check(&self) {
        let seen = self.seen.lock().await;
        assert!(seen.looks > 0, "nothing was scraped");
        assert!(seen.violations.is_empty(), "two at once: {:#?}", seen.violations);
    }

    /// Fails if a write of a section came from a replica that did not hold the section when it arrived. Returns the number of
    /// writes.
    pub(crate) async fn check_writes(&self) -> usize {
        self.check().await;
        let mut checked = 0;
        for (plane, mark) in [(&self.world.hub, self.marks[0]), (&self.world.edge, self.marks[1])] {
            for (section, write) in section_writes(&self.world, plane, mark).await {
                let terms = self.terms_of(&section).await;
                // The last term that had begun when the write arrived.
                let term = terms.iter().rev().find(|term| *term.acquired <= *write.received);
                let holder = term.map(|term| term.holder.as_str());
                assert!(
                    holder.is_some_and(|holder| holder.starts_with(&write.user)),
                    "{} wrote {} in {section} at {}, when {holder:?} had it: {write:?}, {terms:#?}",
                    write.user,
                    write.name,
                    write.received
                );
                checked += 1;
            }
        }
        checked
    }

    /// Waits until there are more writes than these, and checks them all. Returns the number of writes.
    pub(crate) async fn more_writes(&self, than: usize) -> usize {
        eventually("the sections to write", LIMIT, async || {
            let writes = self.check_writes().await;
            if writes > than { Ok(writes) } else { Err(format!("{writes} writes")) }
        })
        .await
        .unwrap()
    }

    /// Waits until each section has written again.
    pub(crate) async fn all_write(&self, what: &str) {
        let marks = [
            self.world.hub.audit().unwrap().mark().await.unwrap(),
            self.world.edge.audit().unwrap().mark().await.unwrap(),
        ];
        eventually(format!("each section to write {what}"), LIMIT, async || {
            let mut silent: BTreeSet<String> = self.world.sections().into_iter().collect();
            for (plane, mark) in [(&self.world.hub, marks[0]), (&self.world.edge, marks[1])] {
                for (section, _) in section_writes(&self.world, plane, mark).await {
                    silent.remove(&section);
                }
            }
            if silent.is_empty() { Ok(()) } else { Err(format!("{silent:?} did not")) }
        })
        .await
        .unwrap();
    }

    /// The writes of a user in the world's sections.
    pub(crate) async fn writes_of(&self, user: &str) -> Vec<Record> {
        let mut all = Vec::new();
        for (plane, mark) in [(&self.world.hub, self.marks[0]), (&self.world.edge, self.marks[1])] {
            all.extend(section_writes(&self.world, plane, mark).await.into_iter().map(|(_, write)| write));
        }
        all.retain(|write| write.user == user);
        all
    }

    /// What this user read since then (gets, lists and watches of anything but Leases), before and after this replica acquired
    /// a section again.
    pub(crate) async fn reads_around_a_claim(
        &self,
        user: &str,
        identity: &str,
        since: &str,
    ) -> (Vec<Record>, Vec<Record>) {
        let terms = self.seen.lock().await.terms.clone();
        let claims = terms.into_values().flatten().filter(|term| term.holder == identity && *term.acquired > *since);
        let claimed = claims.map(|term| term.acquired).min().unwrap();
        let mut reads = Vec::new();
        for (plane, mark) in [(&self.world.hub, self.marks[0]), (&self.world.edge, self.marks[1])] {
            let all = Filter::since(mark).user(user).with_watches();
            reads.extend(plane.audit().unwrap().records(&all).await.unwrap());
        }
        let is_read = |record: &Record| matches!(record.verb.as_str(), "get" | "list" | "watch");
        // The cluster's identity is read whenever it answers again, whatever runs here.
        let is_of_a_section =
            |record: &Record| !matches!(record.resource.as_str(), "" | "leases") && record.name != "kube-system";
        reads.retain(|record| is_read(record) && is_of_a_section(record) && *record.received > *since);
        reads.into_iter().partition(|record| record.received < claimed)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Every write by a replica to an object or a namespace of a section, with the section.
async fn section_writes(world: &World, plane: &ControlPlane, mark: Mark) -> Vec<(String, Record)> {
    let records = plane.audit().unwrap().records(&Filter::since(mark)).await.unwrap();
    let sections = world.sections();
    let writes = records.into_iter().filter(|record| {
        record.user.starts_with("replica-") && matches!(record.verb.as_str(), "create" | "update" | "patch" | "delete")
    });
    let of = |record: &Record| {
        let concerned = match record.resource.as_str() {
            PLURAL | "events" => record.namespace.as_str(),
            // The name of a new namespace is not in the path, and so not always in the log.
            "namespaces" if !record.name.is_empty() => record.name.as_str(),
            _ => return None,
        };
        sections.iter().find(|section| concerned.starts_with(&format!("{section}-"))).cloned()
    };
    writes.filter_map(|record| Some((of(&record)?, record))).collect()
}

async fn follow_leases(world: World, seen: Arc<Mutex<Seen>>) {
    let leases: Api<Lease> = Api::namespaced(world.edge_client.clone(), &world.name);
    let sections = world.sections();
    let config = watcher::Config::default().labels("towline.dev/election=section");
    let changes = watcher(leases, config).applied_objects();
    changes
        .for_each(async |change| {
            let Ok(lease) = change else {
                // Some tests stop the server.
                tokio::time::sleep(PAUSE).await;
                return;
            };
            let name = lease.name_any();
            let Some(section) = name.strip_prefix("towline-").filter(|name| sections.iter().any(|known| known == name))
            else {
                return;
            };
            let spec = lease.spec.unwrap_or_default();
            let holder = spec.holder_identity.filter(|holder| !holder.is_empty());
            let acquired = spec.acquire_time.map(|time| rfc3339(time.0));
            let mut seen = seen.lock().await;
            let before = seen.holders.insert(section.to_owned(), holder.clone()).flatten();
            if before.is_some() && holder.is_none() {
                *seen.releases.entry(section.to_owned()).or_default() += 1;
            }
            let terms = seen.terms.entry(section.to_owned()).or_default();
            if let (Some(holder), Some(acquired)) = (holder, acquired) {
                let term = Term { holder, acquired };
                if terms.last() != Some(&term) {
                    terms.push(term);
                }
            }
        })
        .await;
}

/// The format of times in the audit log, which sort as texts.
pub(crate) fn rfc3339(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

async fn scrape(url: &str) -> Option<BTreeMap<String, bool>> {
    let address = url.strip_prefix("http://")?.parse().ok()?;
    let metrics = tokio::time::timeout(ANSWER, integration::towline::metrics_at(address)).await.ok()?.ok()?;
    claims(&metrics)
}

async fn follow_metrics(seen: Arc<Mutex<Seen>>) {
    let mut before: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    loop {
        let replicas = seen.lock().await.replicas.clone();
        let answers =
            join_all(replicas.iter().map(async |(identity, url)| (identity.clone(), scrape(url).await))).await;
        let mut now: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (identity, claims) in answers {
            for section in claims.into_iter().flatten().filter(|(_, runs)| *runs).map(|(section, _)| section) {
                now.entry(section).or_default().insert(identity.clone());
            }
        }
        let mut seen = seen.lock().await;
        seen.looks += 1;
        for (section, runners) in &now {
            let earlier = before.get(section).cloned().unwrap_or_default();
            // A handover may show both in one scrape. Both in two scrapes is a violation.
            if runners.len() > 1 && runners.intersection(&earlier).count() > 1 {
                seen.violations.push(format!("{section} in {runners:?}"));
            }
        }
        drop(seen);
        before = now;
        tokio::time::sleep(PAUSE).await;
    }
}
