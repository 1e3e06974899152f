//! The actor that decides what is told of each release.
//!
//! State it owns: the [`Index`], which knows every release by its key, and what its steps have under way: records that are read, the
//! project's status that is written, posts. The watches send it [`Changed`] keys, operators [`Ask`]s; it sends [`Deliver`] to the
//! poster. Full mailbox: a watch waits, and its stream is not read further. Restart: the index begins with the project's status and with
//! new lists. Drain: what is under way may end, and what was acknowledged is written to the status.
//!
//! While no project counts, or it is stopped, only the kind of the projects is watched.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::{BoxFuture, select_all};
use futures::stream::FuturesUnordered;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::super::config::Storage;
use super::super::plan::contents::is_entry;
use super::super::plan::ignored::IgnoredConditions;
use super::super::plan::index::{
    Index, IndexStep, Moment, Obstacle, Post, PostKey, ReadFailure, Refusal, Settings, View,
};
use super::super::plan::project::{Choice, Ignored, Project};
use super::super::plan::release::Recorded;
use super::super::plan::status::{Remembered, others};
use super::caches::{Caches, Homes, Owners};
use super::follower::Changed;
use super::kinds;
use super::latest::{LatestState, ProjectState};
use super::poster::{Deliver, Delivered};
use super::record;
use crate::actor::{BoxError, Inbox, KeyInbox, Mailbox, Scope, sleep_until};
use crate::cluster::{
    Cluster, Demand, FIELD_MANAGER, Fence, Listed, ObjectKey, Payload, Request, Watch, full_text, is_at_least,
};

/// How long a drain waits for what is under way: a post that hangs is repeated under its key.
const DRAIN_WITHIN: Duration = Duration::from_secs(5);
/// Rounds of a turn in which releases are observed again because others take their places: more wait for the next turn, so that the
/// process goes on whatever happens.
const MOST_ROUNDS: usize = 8;
/// The next turn after one that had as many.
const NEXT_TURN: Duration = Duration::from_secs(1);

/// What an operator asks.
pub enum Ask {
    /// To send a release again, or all of them.
    Resync {
        /// The release; all if none is named.
        only: Option<ObjectKey>,
        /// How many are sent again.
        reply: oneshot::Sender<usize>,
    },
    /// What is known of a release.
    Explain {
        key: ObjectKey,
        /// The lines; none for a release that is not known.
        reply: oneshot::Sender<Option<Vec<String>>>,
    },
}

/// The reconciler: what all its runs have in common.
pub struct Reconciler {
    pub settings: Settings,
    pub storage: Storage,
    /// Under the section's fence.
    pub cluster: Cluster,
    pub fence: Option<Fence>,
    pub projects: Arc<Watch>,
    pub caches: Caches,
    pub poster: Mailbox<Deliver>,
    pub token: watch::Receiver<u64>,
    pub latest: Arc<LatestState>,
}

/// What has ended.
enum Done {
    /// A step of the index with this number.
    Step { index: u64, end: End },
    /// The status of a project with this UID was written, or not.
    Status { index: u64, uid: String, outcome: Result<Arc<str>, String> },
    /// The condition of an ignored project was written, or not.
    Marked { uid: String, is_done: bool },
}

/// How a step has ended.
enum End {
    Read { key: ObjectKey, version: Arc<str>, object: ObjectKey, outcome: Result<Recorded, ReadFailure> },
    Answered { key: PostKey, delivered: Option<Delivered> },
}

struct Run {
    reconciler: Arc<Reconciler>,
    project_demand: Demand,
    index: Option<Index>,
    /// How many there were: what was begun for one is none of the next one's, even if both are for one project.
    indexes: u64,
    /// Empty while nothing is collected.
    demands: Vec<Demand>,
    owners: Owners,
    homes: Homes,
    /// What has changed and was not looked at yet.
    changed: BTreeSet<ObjectKey>,
    changed_namespaces: BTreeSet<Arc<str>>,
    everything: bool,
    projects: bool,
    token: watch::Receiver<u64>,
    under_way: FuturesUnordered<BoxFuture<'static, Done>>,
    until: Option<Instant>,
    /// The version of the project after the last write of its status.
    last_written: Option<Arc<str>>,
    /// The conditions of ignored projects.
    ignored: IgnoredConditions,
    /// UIDs of projects whose statuses are being written. One that is ignored meanwhile is given its condition afterwards.
    writing: Vec<String>,
}

impl Reconciler {
    pub async fn run(
        self: Arc<Self>,
        scope: Scope,
        mut inbox: KeyInbox<Changed>,
        mut asks: Inbox<Ask>,
    ) -> Result<(), BoxError> {
        let watches: Vec<Arc<Watch>> = std::iter::once(&self.projects).chain(self.caches.all()).cloned().collect();
        let mut listed: Vec<_> = watches.iter().map(|watch| watch.store().listed()).collect();
        let mut availability = self.cluster.availability();
        let mut permissions = self.cluster.permissions_given();
        let mut run = Run {
            project_demand: self.projects.demand(self.fence.as_ref()),
            index: None,
            indexes: 0,
            demands: Vec::new(),
            owners: Owners::default(),
            homes: Homes::default(),
            changed: BTreeSet::new(),
            changed_namespaces: BTreeSet::new(),
            everything: true,
            projects: true,
            token: self.token.clone(),
            under_way: FuturesUnordered::new(),
            until: None,
            last_written: None,
            ignored: IgnoredConditions::default(),
            writing: Vec::new(),
            reconciler: self,
        };
        loop {
            run.turn(&scope);
            // The receivers' senders are in the watches and in the cluster.
            let relisted = select_all(listed.iter_mut().map(|listed| Box::pin(listed.changed())));
            tokio::select! {
                () = scope.draining() => break,
                Some(done) = run.under_way.next(), if !run.under_way.is_empty() => run.ended(done),
                changed = inbox.next() => {
                    let Some(changed) = changed else { break };
                    run.note(changed);
                    while let Some(changed) = inbox.try_next() {
                        run.note(changed);
                    }
                }
                ask = asks.next() => match ask {
                    Some(ask) => run.answer(ask),
                    None => break,
                },
                _ = relisted => {}
                Ok(()) = run.token.changed() => {
                    if let Some(index) = &mut run.index {
                        index.token_changed();
                    }
                }
                _ = availability.changed() => run.cluster_changed(),
                _ = permissions.changed() => run.cluster_changed(),
                () = sleep_until(run.until) => {}
            }
        }
        run.finish().await;
        Ok(())
    }

    fn now() -> Moment {
        Moment { at: Instant::now(), wall: jiff::Timestamp::now() }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.reconciler.latest.ended();
    }
}

impl Run {
    fn note(&mut self, changed: Changed) {
        match changed {
            Changed::Project => self.projects = true,
            Changed::Release(key) => {
                let release = self.homes.release(&key);
                self.homes.changed(&key, &self.reconciler.caches);
                self.changed.extend([release, key]);
            }
            Changed::Content(kind, key) => {
                for owner in self.reconciler.caches.concerned(&mut self.owners, kind, &key) {
                    if is_entry(&owner) {
                        let listing = self.index.iter().flat_map(|index| index.listing(&key.namespace, &owner));
                        self.changed.extend(listing.cloned());
                    } else {
                        self.changed.insert(ObjectKey::new(Arc::clone(&key.namespace), owner));
                    }
                }
            }
            Changed::Namespace(namespace) => drop(self.changed_namespaces.insert(namespace)),
            Changed::Everything => (self.everything, self.projects) = (true, true),
        }
    }

    fn cluster_changed(&mut self) {
        if let Some(index) = &mut self.index {
            index.cluster_changed();
        }
        self.ignored.cluster_changed(Instant::now());
        self.projects = true;
    }

    /// Looks at what has changed, and begins what is to be done.
    fn turn(&mut self, scope: &Scope) {
        let now = Reconciler::now();
        let mut state = ProjectState::Unknown;
        if self.project_demand.is_met() {
            let is_condition_due = self.ignored.until().is_some_and(|until| until <= now.at);
            if std::mem::take(&mut self.projects) || is_condition_due {
                self.choose(now.at);
            }
            state = match &self.index {
                None => ProjectState::None,
                Some(index) if index.project().spec.stop => ProjectState::Stopped,
                Some(_) => ProjectState::Counts,
            };
        }
        self.demand(state == ProjectState::Counts);
        let obstacle = self.obstacle(state);
        let is_complete = state == ProjectState::Counts && obstacle.is_none() && self.is_complete();
        if is_complete {
            self.look(now);
        }
        let view = match &obstacle {
            Some(obstacle) => View::Obstructed(obstacle),
            None if is_complete => View::Complete,
            None => View::Listing,
        };
        self.until = None;
        let mut steps = Vec::new();
        for round in 0..MOST_ROUNDS {
            let Some(index) = &mut self.index else { break };
            let next = index.next(view, now);
            self.until = next.until;
            steps.extend(next.steps);
            if next.observe.is_empty() {
                break;
            }
            self.changed.extend(next.observe);
            self.look(now);
            if round + 1 == MOST_ROUNDS {
                self.until = Some(now.at + NEXT_TURN);
            }
        }
        // Without the list of projects, no condition can be written.
        let of_ignored = self.ignored.until().filter(|_| self.project_demand.is_met());
        self.until = self.until.into_iter().chain(of_ignored).min();
        for step in steps {
            self.begin(step);
        }
        scope.set_state(match (state, view) {
            (ProjectState::Unknown, _) => "connecting",
            (ProjectState::None, _) => "no project",
            (ProjectState::Stopped, _) => "stopped",
            (ProjectState::Counts, View::Complete) => "collecting",
            (ProjectState::Counts, _) => "listing",
        });
        self.reconciler.latest.observed(state, self.index.as_ref().map(Index::summary));
    }

    /// Finds the project that counts.
    fn choose(&mut self, now: Instant) {
        let objects = self.reconciler.projects.store().objects();
        let Choice { chosen, ignored } = Choice::among(objects.iter().map(|object| Project::of(object)).collect());
        self.notice_pruning(chosen.as_ref());
        let Some(project) = chosen else {
            self.index = None;
            self.mark(&ignored, now);
            return;
        };
        match &mut self.index {
            Some(index) if index.project().uid == project.uid => {
                self.everything |= index.project().spec != project.spec;
                index.project_changed(project);
            }
            _ => {
                self.last_written = None;
                self.reconciler.latest.prunes(false);
                self.index = Some(Index::new(self.reconciler.settings.clone(), project, rand::random()));
                self.indexes += 1;
                self.everything = true;
                for (stored, home) in self.index.iter().flat_map(Index::stored_elsewhere) {
                    self.homes.learn(&stored, &home);
                }
            }
        }
        self.mark(&ignored, now);
    }

    /// Whether a CRD without `sentHash` has dropped the hashes from the status that was written.
    fn notice_pruning(&self, chosen: Option<&Project>) {
        let (Some(project), Some(written), Some(index)) = (chosen, &self.last_written, &self.index) else { return };
        if index.project().uid != project.uid {
            // Nothing was written to this one yet.
            return;
        }
        let objects = self.reconciler.projects.store().objects();
        let held = objects.iter().find(|object| *object.uid == *project.uid);
        if !held.is_some_and(|held| is_at_least(&held.resource_version, written)) {
            return;
        }
        let remembered = Remembered::of(&project.status());
        let has_hash = remembered.entries.values().any(|entry| !entry.sent_hash.is_empty());
        self.reconciler.latest.prunes(index.has_written_hashes() && !has_hash);
    }

    /// Gives ignored projects their condition.
    fn mark(&mut self, ignored: &[(Project, Ignored)], now: Instant) {
        self.ignored.retain(|uid| ignored.iter().any(|(project, _)| project.uid == *uid));
        for (project, why) in ignored.iter().filter(|(project, _)| !self.writing.contains(&project.uid)) {
            let (reason, message) = why.explanation();
            let status = project.status();
            let ignored = json!({"type": "Ignored", "status": "True", "reason": reason, "message": message});
            let conditions = json!(others(&status).chain([&ignored]).collect::<Vec<_>>());
            let is_marked = status.get("conditions") == Some(&conditions);
            if !self.ignored.begin(&project.uid, reason, is_marked, now) {
                continue;
            }
            let test = json!({"op": "test", "path": "/metadata/uid", "value": project.uid});
            // What was built of a status replaces no other one: the watch shows that soon, and it is built again.
            let is_as_seen = json!({"op": "test", "path": "/metadata/resourceVersion", "value": project.version});
            let add = if status.is_object() {
                json!({"op": "add", "path": "/status/conditions", "value": conditions})
            } else {
                json!({"op": "add", "path": "/status", "value": {"conditions": conditions}})
            };
            let writing = self.reconciler.write(project.name.clone(), json!([test, is_as_seen, add]));
            let uid = project.uid.clone();
            self.under_way.push(Box::pin(async move { Done::Marked { uid, is_done: writing.await.is_ok() } }));
        }
    }

    /// Has the watches run, or not.
    fn demand(&mut self, collects: bool) {
        if !collects {
            self.demands.clear();
        } else if self.demands.is_empty() {
            let fence = self.reconciler.fence.as_ref();
            self.demands = self.reconciler.caches.all().map(|watch| watch.demand(fence)).collect();
            self.everything = true;
        }
    }

    /// Why nothing can be collected, if that does not pass by itself.
    fn obstacle(&self, state: ProjectState) -> Option<Obstacle> {
        match state {
            ProjectState::Unknown | ProjectState::None => None,
            ProjectState::Stopped => {
                Some(Obstacle { reason: "Stopped", message: "spec.stop is true: nothing is collected".to_owned() })
            }
            ProjectState::Counts => self.demands.iter().find_map(|demand| {
                let listed = demand.watch().store().listed();
                let message = match &*listed.borrow() {
                    Listed::No { reason: Some(reason), unreachable: false } => reason.clone(),
                    _ => return None,
                };
                Some(Obstacle { reason: "NotListed", message })
            }),
        }
    }

    /// Whether the caches show the cluster as it is now. After a lost connection only a new list proves that: an absence that another
    /// cluster shows must not be told.
    fn is_complete(&self) -> bool {
        let is_current = |watch: &Arc<Watch>| {
            let is_current = watch.is_current();
            if !is_current {
                watch.become_current();
            }
            is_current
        };
        let current = std::iter::once(&self.reconciler.projects)
            .chain(self.reconciler.caches.all())
            .filter(|watch| is_current(watch));
        let count = current.count();
        count == self.demands.len() + 1 && self.demands.iter().all(Demand::is_met)
    }

    /// Takes what the caches show of what has changed.
    fn look(&mut self, now: Moment) {
        let Some(index) = &mut self.index else { return };
        let caches = &self.reconciler.caches;
        let denied = index.project().spec.deny_namespaces.clone();
        if std::mem::take(&mut self.everything) {
            self.owners = caches.owners();
            self.homes.retain_stored(caches);
            self.changed_namespaces.extend(caches.namespaces(&self.homes));
            self.changed_namespaces.extend(index.keys().map(|key| Arc::clone(&key.namespace)));
        }
        for namespace in std::mem::take(&mut self.changed_namespaces) {
            self.changed.retain(|key| key.namespace != namespace);
            let view = caches.view(&namespace, None, &self.homes, &denied);
            let known = index.keys().filter(|key| key.namespace == namespace).map(|key| Arc::clone(&key.name));
            let names: BTreeSet<Arc<str>> = known.chain(view.names().cloned()).collect();
            for name in names {
                let key = ObjectKey::new(Arc::clone(&namespace), name);
                index.observe(&key, view.seen(&key.name, &index.unlabelled(&key)), now);
            }
        }
        for key in std::mem::take(&mut self.changed) {
            let view = caches.view(&key.namespace, Some(&key.name), &self.homes, &denied);
            index.observe(&key, view.seen(&key.name, &index.unlabelled(&key)), now);
        }
    }

    fn begin(&mut self, step: IndexStep) {
        let Some(index) = &self.index else { return };
        let reconciler = &self.reconciler;
        let (name, number) = (index.project().name.clone(), self.indexes);
        let end: BoxFuture<'static, End> = match step {
            IndexStep::Read { key, object, version } => {
                let read =
                    record::read(reconciler.cluster.clone(), reconciler.storage, object.clone(), Arc::clone(&version));
                Box::pin(async move { End::Read { key, version, object, outcome: read.await } })
            }
            IndexStep::Write(patch) => {
                let (writing, uid) = (reconciler.write(name, patch), index.project().uid.clone());
                self.writing.push(uid.clone());
                self.under_way
                    .push(Box::pin(async move { Done::Status { index: number, uid, outcome: writing.await } }));
                return;
            }
            IndexStep::Post(post) => Box::pin(deliver(reconciler.poster.clone(), post)),
        };
        self.under_way.push(Box::pin(async move { Done::Step { index: number, end: end.await } }));
    }

    fn ended(&mut self, done: Done) {
        let now = Reconciler::now();
        let end = match done {
            Done::Marked { uid, is_done } => {
                self.ignored.ended(&uid, is_done, now.at);
                // The reason may have changed meanwhile.
                self.projects = true;
                return;
            }
            Done::Status { index, uid, outcome } => {
                if let Some(place) = self.writing.iter().position(|writing| *writing == uid) {
                    self.writing.swap_remove(place);
                }
                self.projects = true;
                if index == self.indexes {
                    self.written(outcome, now);
                }
                return;
            }
            Done::Step { index, end } => {
                if index != self.indexes {
                    return;
                }
                end
            }
        };
        let Some(index) = &mut self.index else { return };
        match end {
            End::Read { key, version, object, outcome } => {
                let stored = ObjectKey::new(Arc::clone(&object.namespace), Arc::clone(&key.name));
                let outcome = outcome.and_then(|recorded| {
                    let home = recorded.namespace.as_deref().unwrap_or(&stored.namespace);
                    self.homes.learn(&stored, home);
                    if *home == *key.namespace { Ok(recorded) } else { Err(ReadFailure::Elsewhere) }
                });
                index.read(&key, &version, outcome, now);
                self.changed.extend([self.homes.release(&stored), key]);
            }
            End::Answered { key, delivered } => {
                let is_stale = delivered.as_ref().is_some_and(|delivered| delivered.token != *self.token.borrow());
                let outcome = match delivered.map(|delivered| delivered.outcome) {
                    // The token has changed meanwhile.
                    Some(Err(Refusal::Unauthorized)) if is_stale => Err(Refusal::NotSent),
                    Some(outcome) => outcome,
                    None => Err(Refusal::Later { reason: "NoAnswer".to_owned(), after: None, may_have_arrived: true }),
                };
                index.answered(&key, outcome, now);
                if let PostKey::Release(key) = key {
                    self.changed.insert(key);
                }
            }
        }
    }

    /// The status of the project that counts was written, or not. The watch may have shown it before the answer came: what was kept of it
    /// is compared again.
    fn written(&mut self, outcome: Result<Arc<str>, String>, now: Moment) {
        let Some(index) = &mut self.index else { return };
        if let Ok(version) = &outcome {
            self.last_written = Some(Arc::clone(version));
        }
        index.written(outcome.map(drop), now);
    }

    fn answer(&mut self, ask: Ask) {
        // Nobody waits for a reply whose request was given up.
        match ask {
            Ask::Resync { only, reply } => {
                let count = self.index.as_mut().map_or(0, |index| index.resync(only.as_ref()));
                self.everything |= count > 0;
                let _ = reply.send(count);
            }
            Ask::Explain { key, reply } => {
                let explanation = self.index.as_ref().and_then(|index| index.explain(&key, Reconciler::now()));
                let _ = reply.send(explanation.map(|explanation| explanation.0));
            }
        }
    }

    /// Waits for what is under way, and writes what was acknowledged.
    async fn finish(&mut self) {
        let deadline = Instant::now() + DRAIN_WITHIN;
        loop {
            if let Some(patch) = self.index.as_mut().and_then(|index| index.last_write(Reconciler::now())) {
                self.begin(IndexStep::Write(patch));
            }
            if self.under_way.is_empty() {
                return;
            }
            let next = tokio::time::timeout_at(deadline, self.under_way.next());
            match next.await {
                Ok(Some(done)) => self.ended(done),
                Ok(None) | Err(_) => return,
            }
        }
    }
}

impl Reconciler {
    /// Writes the status of a project. Returns its version after that.
    fn write(&self, name: String, patch: Value) -> impl Future<Output = Result<Arc<str>, String>> + Send + use<> {
        let cluster = self.cluster.clone();
        async move {
            let kind = kinds::projects();
            let key = ObjectKey::new("", name);
            let request = Request::patch(&kind, &key, Payload::json_patch(&patch)).on("status").by(FIELD_MANAGER);
            match cluster.write(request).await {
                Ok(written) => Ok(written.resource_version),
                Err(error) => {
                    tracing::debug!(project = %key, error = %full_text(&error), "failed to write the status");
                    Err(error.to_string())
                }
            }
        }
    }
}

async fn deliver(poster: Mailbox<Deliver>, post: Post) -> End {
    let key = post.key.clone();
    let (reply, answer) = oneshot::channel();
    // The mailbox is closed, and the reply dropped, only while the process ends or when the poster restarts.
    let delivered = match poster.send(Deliver { post, reply }).await {
        Ok(()) => answer.await.ok(),
        Err(_) => None,
    };
    End::Answered { key, delivered }
}
