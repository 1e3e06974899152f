//! The state machine itself: phases, limits, and the end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use super::Input;
use super::ask::Ask;
use super::item::{Item, KindKey, Removal, Work};
use super::list::Listing;
use super::step::{Answer, End, Outcome, Page, Progress, Refusal, Refused, Release, Resolution, Step, Writes};
use super::stored::StoredRows;
use crate::syncset::plan::name::ObjectRef;
use crate::syncset::plan::rows::{Failure, ResultRow};
use crate::syncset::plan::spec::Position;
use crate::syncset::plan::status::Retry;
use crate::syncset::plan::wanted::{Deletions, Live, Scope, Wanted};

/// Requests and time of one pass.
pub(super) const MOST_REQUESTS: usize = 500;
const MOST_TIME: Duration = Duration::from_mins(1);
/// After this time a pass looks up no further kinds before it begins: what does not answer must not take all of its time.
const MOST_TIME_FOR_KINDS: Duration = Duration::from_secs(30);
/// After so many passes in a row that ended at the same request with a 429, this may be about one object.
const MOST_THROTTLED: u8 = 3;
/// Why an object is not deleted to be created again.
pub(super) const CHANGED: &str = "documents have changed meanwhile";
/// What a pass has done so far is stored after so many requests, or after this time.
const STORE_AFTER_REQUESTS: usize = 100;
const STORE_AFTER: Duration = Duration::from_secs(10);

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "what a pass is and what it has met are independent facts")]
pub struct Pass {
    pub(super) live: Vec<Live>,
    pub(super) gone: BTreeMap<Uuid, Deletions>,
    pub(super) full: bool,
    pub(super) elsewhere: bool,
    pub(super) progress: Progress,
    pub(super) stored: StoredRows,
    pub(super) wanted: Wanted,
    pub(super) kinds: BTreeMap<KindKey, Result<Resolution, Refused>>,
    /// Whether objects of a group and kind are in namespaces.
    pub(super) scopes: BTreeMap<(String, String), bool>,
    /// By group and kind, the plural by which a definition is named.
    pub(super) plurals: BTreeMap<(String, String), String>,
    pub(super) unresolved: BTreeSet<KindKey>,
    pub(super) listings: VecDeque<Listing>,
    pub(super) unprepared: VecDeque<Box<Item>>,
    /// By syncset and place, so the first one belongs to the first syncset that is not done.
    pub(super) works: BTreeMap<(usize, Position), Work>,
    /// Objects that syncsets want and others send, with the version under which they would be sent.
    pub(super) superseded: BTreeMap<(ObjectRef, usize), String>,
    pub(super) gone_removals: VecDeque<Removal>,
    /// Those of them that wait for what live syncsets delete in their turns.
    pub(super) late_removals: VecDeque<Removal>,
    /// How many turns in a row have given way to another one without any progress.
    pub(super) given_way: usize,
    /// Whether this pass deletes nothing more.
    pub(super) are_deletions_off: bool,
    pub(super) removals: BTreeMap<usize, VecDeque<Removal>>,
    /// Syncsets that are due and not done.
    pub(super) turns: VecDeque<usize>,
    /// First failures in sending, by syncset.
    pub(super) failures: BTreeMap<usize, Failure>,
    /// Failures that keep nothing else from being sent, by syncset: patches that don't render, and objects that somebody deletes again
    /// and again.
    pub(super) left_out: BTreeMap<usize, Failure>,
    pub(super) deletion_failures: BTreeMap<Uuid, Failure>,
    pub(super) wrote: BTreeSet<ObjectRef>,
    /// Group and kind of the definitions that this pass has applied.
    pub(super) defined: BTreeSet<(String, String)>,
    pub(super) releases: BTreeMap<Release, usize>,
    pub(super) contended: Vec<(ObjectRef, Option<String>)>,
    /// Whether rows have changed that have to be stored before the next object is written.
    pub(super) awaits_store: bool,
    /// How many objects were looked at in advance since the last store.
    pub(super) ahead: usize,
    pub(super) follow_up: Option<Ask>,
    asked: Option<Ask>,
    phase: Phase,
    end: Option<End>,
    started: Timestamp,
    elapsed: Duration,
    /// How much of that the caller has waited for its own turn.
    waited: Duration,
    stored_at: Duration,
    pub(super) requests: usize,
    /// Kinds that were looked up after the phase of kinds.
    late_kinds: usize,
    requests_at_store: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Kinds,
    Lists,
    Looks,
    Commit,
    Gone,
    Turns,
    End,
}

impl Pass {
    pub fn new(input: Input) -> Self {
        let mut stored = StoredRows::new(input.applied, input.patched, input.results);
        if input.another_cluster {
            stored.forget_objects();
        }
        let unresolved = super::plan::kinds_in_use(&input.live);
        let mut progress = if input.another_cluster { Progress::default() } else { input.progress };
        if !input.full {
            progress.objects.clear();
            progress.patches.clear();
            progress.unlisted.clear();
        }
        Self {
            turns: input
                .live
                .iter()
                .enumerate()
                .filter(|(_, live)| {
                    live.rendered.is_some() && progress.ended.get(&live.header.id) != Some(&live.inputs)
                })
                .map(|(at, _)| at)
                .collect(),
            live: input.live,
            gone: input.gone,
            full: input.full || input.another_cluster,
            elsewhere: input.elsewhere,
            progress,
            stored,
            wanted: Wanted::default(),
            kinds: BTreeMap::new(),
            scopes: BTreeMap::new(),
            plurals: BTreeMap::new(),
            unresolved,
            listings: VecDeque::new(),
            unprepared: VecDeque::new(),
            works: BTreeMap::new(),
            superseded: BTreeMap::new(),
            gone_removals: VecDeque::new(),
            late_removals: VecDeque::new(),
            given_way: 0,
            are_deletions_off: false,
            removals: BTreeMap::new(),
            failures: BTreeMap::new(),
            left_out: BTreeMap::new(),
            deletion_failures: BTreeMap::new(),
            wrote: BTreeSet::new(),
            defined: BTreeSet::new(),
            releases: BTreeMap::new(),
            contended: Vec::new(),
            awaits_store: false,
            ahead: 0,
            follow_up: None,
            asked: None,
            phase: Phase::Kinds,
            end: None,
            started: input.now,
            elapsed: Duration::ZERO,
            waited: Duration::ZERO,
            stored_at: Duration::ZERO,
            requests: 0,
            late_kinds: 0,
            requests_at_store: 0,
        }
    }

    /// The kinds that it is going to ask for, and those of all stored objects, which it may ask for: as `apps/v1`, `Deployment`.
    pub fn kinds(&self) -> impl Iterator<Item = (&str, &str)> {
        let stored = self.stored.rows().map(|row| (row.api_version.as_str(), row.object.kind.as_str()));
        self.unresolved.iter().map(|(api_version, kind)| (api_version.as_str(), kind.as_str())).chain(stored)
    }

    /// The step that waits for its reply.
    pub(super) fn asked(&self) -> Option<&Ask> {
        self.asked.as_ref()
    }

    /// What to do next, `elapsed` after the pass began. Before there was a reply it is the same step again.
    pub fn next(&mut self, elapsed: Duration) -> Step<'_> {
        self.elapsed = elapsed;
        if self.asked.is_none() && self.end.is_none() {
            self.asked = self.choose();
            self.requests += self.asked.as_ref().map_or(0, Ask::requests);
            if self.phase != Phase::Kinds && matches!(self.asked, Some(Ask::Kind { .. })) {
                self.late_kinds += 1;
            }
        }
        if self.asked.is_none() {
            let end = self.end.unwrap_or(End::Finished);
            return Step::Done(Box::new(self.outcome(end)));
        }
        self.step()
    }

    /// What came of the step. A reply that does not fit to it counts as a failure of the server.
    pub fn reply(&mut self, reply: Result<Answer, Refused>) {
        let Some(ask) = self.asked.take() else { return };
        // Each list has an answer of its own.
        if !is_throttled(&reply) && !matches!(ask, Ask::Lists(_)) {
            for throttled in ask.throttled() {
                self.progress.throttled.remove(&throttled);
            }
        }
        match ask {
            Ask::Kind { key, wait } => self.resolved(key, wait, reply),
            Ask::Lists(listings) => self.listed(listings, reply),
            Ask::Look(item) => self.looked(item, reply),
            // Later steps rely on these writes.
            Ask::Store(_) if !matches!(reply, Ok(Answer::Stored)) => self.end = Some(End::Interrupted),
            Ask::Store(_) => {
                self.requests_at_store = self.requests;
                self.stored_at = self.elapsed;
            }
            Ask::TakeOver(item) => self.taken_over(item, reply),
            Ask::Apply(item) => self.applied(item, reply),
            Ask::Create(item) => self.created(item, reply),
            Ask::Update(item) => self.updated(item, reply),
            Ask::Identify(item, refused) => self.identified(item, refused, reply),
            Ask::Owner(item) => self.owner_seen(item, reply),
            Ask::Probe(item, refused, seen) => self.probed(item, refused, seen, &reply),
            Ask::Replace(item, refused, _) => self.replaced(&item, &refused, reply),
            Ask::LookForPatch(patch) => self.looked_for_patch(patch, reply),
            Ask::Patch(patch) => self.patched(patch, reply),
            Ask::Examine(removal) => self.examined(removal, reply),
            Ask::Delete(removal, _) => self.deleted(removal, reply),
        }
    }

    /// Ends the pass, since the cluster does not answer, wants fewer requests, or the caller has to stop. What is
    /// known to have been done is in the outcome; the syncsets that were not done keep their results, and stay due.
    pub fn interrupt(&mut self) -> Outcome {
        if let Some(Ask::Lists(listings)) = self.asked.take() {
            self.wait_for(listings);
        }
        self.end = Some(End::Interrupted);
        self.outcome(End::Interrupted)
    }

    /// The API server has answered 429 to the step, which ends the pass. Returns whether it has done so for several passes in a
    /// row: then it may be about this object alone, such as that of a webhook. If the API server answers other requests, the caller
    /// replies with the refusal, and the pass continues with what comes after.
    ///
    /// `lists` is what the lists of [`Step::Lists`] have brought, in their order; of those that were answered with 429 it is
    /// [`Refusal::Throttled`], and those after its end were not asked for. It is empty for any other step. From now on the step is those
    /// that were answered with 429: the refusal is theirs alone, and each of them has to have been answered so for several passes.
    pub fn throttled(&mut self, lists: Vec<Result<Page, Refused>>) -> bool {
        let ask = match self.asked.take() {
            Some(Ask::Lists(listings)) => Ask::Lists(self.brought(listings, lists)),
            Some(ask) => ask,
            None => return false,
        };
        let all_throttled = ask.throttled();
        self.asked = Some(ask);
        if self.progress.throttled.len() + all_throttled.len() > MOST_REQUESTS {
            self.progress.throttled.clear();
        }
        let mut is_alone = !all_throttled.is_empty();
        for throttled in all_throttled {
            let tries = self.progress.throttled.entry(throttled).or_default();
            *tries = tries.saturating_add(1);
            is_alone &= *tries >= MOST_THROTTLED;
        }
        is_alone
    }

    /// The documents have changed since the pass was planned, so an object that it is about to delete may be wanted again. It deletes
    /// nothing more but goes on sending: otherwise nothing would be sent while documents change more often than passes reach a deletion.
    pub fn put_off_deletions(&mut self) {
        self.are_deletions_off = true;
        self.asked = match self.asked.take() {
            Some(Ask::Delete(..)) => None,
            Some(Ask::Replace(item, refused, _)) => {
                self.refuse_to_recreate(&item, &refused, CHANGED);
                None
            }
            asked => return self.asked = asked,
        };
        self.requests = self.requests.saturating_sub(1);
    }

    /// The caller has waited for its own turn; that time does not count as the cluster's.
    pub fn has_waited(&mut self, waited: Duration) {
        self.waited += waited;
    }

    /// The time that the cluster has had.
    fn taken(&self) -> Duration {
        self.elapsed.saturating_sub(self.waited)
    }

    /// The time at the current step.
    pub(super) fn now(&self) -> Timestamp {
        let elapsed = SignedDuration::try_from(self.elapsed).unwrap_or(SignedDuration::MAX);
        self.started.checked_add(elapsed).unwrap_or(Timestamp::MAX)
    }

    pub(super) fn scope(&self, object: &ObjectRef) -> Scope {
        match self.scopes.get(&(object.group.clone(), object.kind.clone())) {
            Some(true) => Scope::Namespaced,
            Some(false) => Scope::Cluster,
            None => Scope::Unknown,
        }
    }

    /// The position of a syncset, if it is live.
    pub(super) fn position(&self, syncset: Uuid) -> Option<usize> {
        self.live.iter().position(|live| live.header.id == syncset)
    }

    fn choose(&mut self) -> Option<Ask> {
        loop {
            if let Some(ask) = self.follow_up.take() {
                return Some(ask);
            }
            let has_begun = self.requests > 0 || self.late_kinds > 0;
            if has_begun && (self.requests >= MOST_REQUESTS || self.taken() >= MOST_TIME) && !self.is_done() {
                // The result of a finished turn is recorded even if there is no time for the next one.
                if self.is_turn_over() {
                    self.enter_next_phase();
                    continue;
                }
                self.end = Some(End::Yielded);
                return None;
            }
            let is_time = self.requests >= self.requests_at_store + STORE_AFTER_REQUESTS
                || self.elapsed >= self.stored_at.saturating_add(STORE_AFTER);
            if is_time && self.stored.is_unwritten() && !self.is_last_turn_over() {
                return Some(self.store());
            }
            let chosen = match self.phase {
                Phase::Kinds => self.next_kind(),
                Phase::Lists => self.next_lists(),
                Phase::Looks => self.next_look(),
                Phase::Commit => self.stored.has_changed().then(|| self.store()),
                Phase::Gone => self.next_gone_removal(),
                Phase::Turns => {
                    self.given_way = 0;
                    self.next_of_turn()
                }
                Phase::End => {
                    self.end = Some(End::Finished);
                    return None;
                }
            };
            if chosen.is_some() {
                return chosen;
            }
            self.enter_next_phase();
        }
    }

    /// Those that did not answer in the pass before come last, so that in the end each one is looked up that answers.
    fn next_kind(&mut self) -> Option<Ask> {
        if self.taken() >= MOST_TIME_FOR_KINDS {
            let message = "there was no time to find out whether the cluster serves the kind";
            let refused = Refused { refusal: Refusal::Server, message: message.to_owned() };
            // What was read of a version for one kind is known for the others, as long as none of them turns out to be slow.
            let kinds = &self.kinds;
            let is_known = |(version, _): &KindKey| {
                let mut found = kinds.iter().filter(|((of, _), _)| of == version).map(|(_, found)| found).peekable();
                found.peek().is_some() && found.all(Result::is_ok)
            };
            let (known, unasked): (BTreeSet<_>, BTreeSet<_>) =
                std::mem::take(&mut self.unresolved).into_iter().partition(is_known);
            self.unresolved = known;
            self.kinds.extend(unasked.into_iter().map(|key| (key, Err(refused.clone()))));
        }
        let next = self.unresolved.iter().find(|key| !self.progress.slow_kinds.contains(*key));
        let key = next.or(self.unresolved.first()).cloned()?;
        self.unresolved.remove(&key);
        Some(Ask::Kind { key, wait: false })
    }

    fn enter_next_phase(&mut self) {
        self.phase = match self.phase {
            Phase::Kinds => {
                self.plan();
                Phase::Lists
            }
            Phase::Lists => Phase::Looks,
            Phase::Looks => {
                self.open_patches();
                Phase::Commit
            }
            // A commit that has been stored leaves no changes.
            Phase::Commit => Phase::Gone,
            Phase::Gone => Phase::Turns,
            Phase::Turns => {
                if self.finish_turn() {
                    Phase::Turns
                } else if self.late_removals.is_empty() {
                    self.finish_deletions();
                    Phase::End
                } else {
                    std::mem::swap(&mut self.gone_removals, &mut self.late_removals);
                    Phase::Gone
                }
            }
            Phase::End => Phase::End,
        };
    }

    /// Whether the rows of everything that was ready have been stored.
    pub(super) fn is_committed(&self) -> bool {
        matches!(self.phase, Phase::Gone | Phase::Turns | Phase::End)
    }

    fn is_done(&self) -> bool {
        self.phase == Phase::End
            || (self.phase == Phase::Turns && self.turns.is_empty() && self.late_removals.is_empty())
    }

    /// Whether the first syncset that is not done has nothing left to do.
    fn is_turn_over(&self) -> bool {
        let Some(turn) = self.turns.front().filter(|_| self.phase == Phase::Turns) else { return false };
        let works = self.works.first_key_value().is_some_and(|((syncset, _), _)| syncset == turn);
        !works && self.removals.get(turn).is_none_or(VecDeque::is_empty)
    }

    /// Whether the pass ends without another request, so that what came of it is stored right away.
    fn is_last_turn_over(&self) -> bool {
        self.phase == Phase::End || (self.turns.len() == 1 && self.is_turn_over() && self.late_removals.is_empty())
    }

    /// Work of the first syncset that is not done.
    pub(super) fn next_of_turn(&mut self) -> Option<Ask> {
        let turn = *self.turns.front()?;
        if let Some(failure) = self.earlier_failure(turn).filter(|_| !self.failures.contains_key(&turn)) {
            self.fail(turn, failure);
        }
        while self.works.first_key_value().is_some_and(|((syncset, _), _)| *syncset == turn) {
            let (_, work) = self.works.pop_first()?;
            let ask = match work {
                Work::Item(item) => self.begin(item),
                Work::Patch(patch) => self.begin_patch(patch),
                Work::Broken(failure) => {
                    self.fail(turn, failure);
                    None
                }
            };
            if ask.is_some() {
                return ask;
            }
        }
        self.next_removal(turn)
    }

    /// A syncset sends nothing more after its first failure.
    pub(super) fn fail(&mut self, syncset: usize, failure: Failure) {
        self.works.retain(|(of, _), _| *of != syncset);
        (self.awaits_store, self.ahead) = (false, 0);
        if let Some(live) = self.live.get(syncset) {
            self.progress.failed.insert(live.header.id, (live.inputs, failure.clone()));
        }
        self.failures.entry(syncset).or_insert(failure);
    }

    /// Why a syncset could not be sent in the pass from which this one goes on, unless it has changed since: what it deletes may be all
    /// that is left to do.
    pub(super) fn earlier_failure(&self, syncset: usize) -> Option<Failure> {
        let live = self.live.get(syncset)?;
        let (inputs, failure) = self.progress.failed.get(&live.header.id)?;
        (*inputs == live.inputs).then(|| failure.clone())
    }

    /// What is to be stored now. Syncsets that are not done count as unfinished, in whatever the next pass finds.
    pub(super) fn store(&mut self) -> Ask {
        Ask::Store(self.take_writes())
    }

    fn take_writes(&mut self) -> Writes {
        if self.stored.has_changed() {
            for live in self.turns.iter().filter_map(|turn| self.live.get(*turn)) {
                let header = &live.header;
                let mut row = self.stored.result(header.id).cloned().unwrap_or_else(|| ResultRow {
                    syncset: header.id,
                    name: header.name.clone(),
                    inputs: ResultRow::UNFINISHED,
                    generation: 0,
                    failure: None,
                    since: self.started,
                    first_success: None,
                    has_pending_deletions: false,
                });
                row.inputs = ResultRow::UNFINISHED;
                self.stored.put_result(row);
            }
        }
        self.stored.take()
    }

    fn outcome(&mut self, end: End) -> Outcome {
        let writes = self.take_writes();
        let pending = self.stored.rows().filter(|row| !row.wanted && row.tracked);
        let deletions: BTreeSet<_> = pending
            .map(|row| match self.deletions_of(row.syncset) {
                Deletions::Allowed => 0,
                Deletions::Suspended => 1,
                Deletions::Unchecked => 2,
            })
            .collect();
        let failures = self.stored.results().filter_map(|row| row.failure.as_ref());
        let mut retries: Vec<Retry> = failures.map(|failure| failure.reason.retry()).collect();
        retries.extend((!self.progress.ending.is_empty()).then_some(Retry::Look));
        let awaits_check = deletions.contains(&2) || (self.are_deletions_off && deletions.contains(&0));
        // No wait for a look is longer than the back-off of as many attempts.
        let mut by_time = [Retry::Look, Retry::Backoff];
        if awaits_check {
            by_time.reverse();
        }
        let soonest = by_time.into_iter().find(|retry| retries.contains(retry));
        Outcome {
            end,
            writes,
            results: self.stored.results().cloned().collect(),
            retry: soonest.or(retries.first().copied()),
            awaits_check,
            is_suspended: deletions.contains(&1),
            releases: self.releases.clone(),
            contended: self.contended.clone(),
            ending: self.ending(),
            requests: self.requests,
            progress: self.progress_after(end),
        }
    }

    /// Failures are carried over only to a pass that continues at once: after an interruption the next pass comes later and tries
    /// everything again.
    fn progress_after(&self, end: End) -> Progress {
        let Progress { objects, patches, unlisted, slow_kinds, throttled, .. } = &self.progress;
        let (slow_kinds, throttled) = (slow_kinds.clone(), throttled.clone());
        let mut progress = match end {
            End::Yielded => self.progress.clone(),
            End::Interrupted if self.full => {
                let (objects, patches, unlisted) = (objects.clone(), patches.clone(), unlisted.clone());
                Progress { objects, patches, unlisted, slow_kinds, throttled, ..Progress::default() }
            }
            End::Interrupted | End::Finished => Progress { slow_kinds, throttled, ..Progress::default() },
        };
        progress.unlisted.extend(self.longest_list());
        progress
    }

    fn step(&self) -> Step<'_> {
        self.asked.as_ref().map_or_else(|| Step::Store(Writes::default()), Ask::step)
    }
}

/// Whether the API server has answered 429.
pub(super) fn is_throttled<T>(reply: &Result<T, Refused>) -> bool {
    reply.as_ref().is_err_and(|refused| refused.refusal == Refusal::Throttled)
}

/// The refusal that stands for a reply which does not belong to its step.
pub(super) fn unexpected() -> Refused {
    Refused { refusal: Refusal::Server, message: "unexpected answer".to_owned() }
}
