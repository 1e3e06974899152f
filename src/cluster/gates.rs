//! Denied permissions: asked for once for all who wait.
//!
//! After a 403 the same verb on the same resource in the same namespace is not sent again; the cluster's actor asks the
//! API server (`SelfSubjectAccessReview`) with back-off whether the permission has been given, first for all namespaces,
//! then for some that wait. When it has, everybody who waits for it goes on together.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::Verb;
use super::access::AccessRequest;

/// So many of those that wait are asked about in one round, for each verb and resource.
const A_ROUND: usize = 10;
/// Whoever waited for a permission uses it within this.
const USED_WITHIN: Duration = Duration::from_mins(1);
/// What is refused though it is granted is tried again with back-off; this is longer than the longest one.
const TRIED_AGAIN_WITHIN: Duration = Duration::from_mins(10);

/// A verb on a resource (`plural.group/subresource`).
type Gate = (Verb, String);

/// What exactly was denied: the namespace, and for kinds that RBAC grants by name (secrets) the name.
type Denied = (String, String);

#[derive(Default)]
pub(super) struct Gates {
    closed: Mutex<BTreeMap<Gate, BTreeSet<Denied>>>,
    /// Opened because a review said so, and not used with success since. Denied again, it was not a permission that was
    /// missing: admission (a quota, a webhook) refuses the content. Until when that is taken for so.
    unproven: Mutex<BTreeMap<(Gate, Denied), Instant>>,
    /// Counts the openings.
    opened: watch::Sender<u64>,
}

/// Secrets are granted by name (`resourceNames`), so a denial of one name says nothing of another.
fn denial(request: &AccessRequest) -> Denied {
    let name = if request.resource == "secrets" { request.name.clone() } else { String::new() };
    (request.namespace.clone(), name)
}

impl Gates {
    fn gate(request: &AccessRequest) -> Gate {
        (request.verb, request.full_resource())
    }

    /// Whether this request is known to be denied.
    pub(super) fn is_closed(&self, request: &AccessRequest) -> bool {
        let closed = self.closed.lock();
        !closed.is_empty() && closed.get(&Self::gate(request)).is_some_and(|denied| denied.contains(&denial(request)))
    }

    /// Whether a denial of this can't be for lack of permission.
    pub(super) fn is_granted(&self, request: &AccessRequest) -> bool {
        let mut unproven = self.unproven.lock();
        let now = Instant::now();
        unproven.retain(|_, until| *until > now);
        let Some(until) = unproven.get_mut(&(Self::gate(request), denial(request))) else { return false };
        *until = now + TRIED_AGAIN_WITHIN;
        true
    }

    /// Whether there is anything to prove.
    pub(super) fn any_unproven(&self) -> bool {
        !self.unproven.lock().is_empty()
    }

    /// A request went through.
    pub(super) fn prove(&self, request: &AccessRequest) {
        let mut unproven = self.unproven.lock();
        if !unproven.is_empty() {
            unproven.remove(&(Self::gate(request), denial(request)));
        }
    }

    /// Notes a denial; returns whether it is the first of its verb and resource.
    pub(super) fn close(&self, request: &AccessRequest) -> bool {
        let mut closed = self.closed.lock();
        let first = !closed.contains_key(&Self::gate(request));
        closed.entry(Self::gate(request)).or_default().insert(denial(request));
        first
    }

    /// One question for each verb and resource that is denied, for all namespaces, and those for some of the places where
    /// it was denied; round after round for all of them.
    pub(super) fn questions(&self, round: usize) -> Vec<(AccessRequest, Vec<AccessRequest>)> {
        let closed = self.closed.lock();
        closed
            .iter()
            .filter_map(|((verb, resource), denied)| {
                let first = (round * A_ROUND) % denied.len().max(1);
                let in_turn = || denied.iter().cycle().skip(first).take(denied.len().min(A_ROUND));
                let at = |namespace: &str, name: &str| AccessRequest::new(*verb, resource, namespace, name);
                let (_, name) = in_turn().next()?;
                let narrower = in_turn().filter(|(namespace, _)| !namespace.is_empty());
                Some((at("", name), narrower.map(|(namespace, name)| at(namespace, name)).collect()))
            })
            .collect()
    }

    /// The permission was given: everywhere where the namespace is empty, else in this one.
    pub(super) fn open(&self, request: &AccessRequest) {
        {
            let mut closed = self.closed.lock();
            let gate = Self::gate(request);
            if let Some(denied) = closed.get_mut(&gate) {
                let (namespace, name) = denial(request);
                let mut unproven = self.unproven.lock();
                denied.retain(|(denied_namespace, denied_name)| {
                    let stays = !((namespace.is_empty() || namespace == *denied_namespace) && name == *denied_name);
                    if !stays {
                        let denied = (denied_namespace.clone(), denied_name.clone());
                        unproven.insert((gate.clone(), denied), Instant::now() + USED_WITHIN);
                    }
                    stays
                });
                if denied.is_empty() {
                    closed.remove(&gate);
                }
            }
        }
        self.opened.send_modify(|count| *count += 1);
    }

    /// New credentials may have other rights: everybody may try again.
    pub(super) fn open_all(&self) {
        self.closed.lock().clear();
        self.unproven.lock().clear();
        self.opened.send_modify(|count| *count += 1);
    }

    pub(super) fn any_closed(&self) -> bool {
        !self.closed.lock().is_empty()
    }

    /// How many openings there were.
    pub(super) fn openings(&self) -> u64 {
        *self.opened.borrow()
    }

    /// Follows the openings.
    pub(super) fn opened(&self) -> watch::Receiver<u64> {
        self.opened.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_holds_its_namespace_only_and_a_grant_for_all_opens_all() {
        let gates = Gates::default();
        let ask =
            |namespace: &str| AccessRequest::new(Verb::Patch, "databases.demo.towline.dev/status", namespace, "orders");
        assert!(gates.close(&ask("a")));
        assert!(!gates.close(&ask("b")));
        assert!(gates.is_closed(&ask("a")) && gates.is_closed(&ask("b")) && !gates.is_closed(&ask("c")));
        assert_eq!(gates.questions(0).len(), 1, "one question for one verb and resource");
        gates.open(&ask("a"));
        assert!(!gates.is_closed(&ask("a")) && gates.is_closed(&ask("b")));
        gates.open(&ask(""));
        assert!(!gates.any_closed());
    }

    #[test]
    fn what_is_denied_again_though_granted_is_not_a_matter_of_permission() {
        let gates = Gates::default();
        let ask = AccessRequest::new(Verb::Create, "databases.demo.towline.dev", "a", "orders");
        gates.close(&ask);
        assert!(!gates.is_granted(&ask));
        gates.open(&AccessRequest::new(Verb::Create, "databases.demo.towline.dev", "", "orders"));
        assert!(gates.is_granted(&ask));
        gates.prove(&ask);
        assert!(!gates.is_granted(&ask), "it worked since: the next denial is a new one");
    }

    #[test]
    fn every_namespace_that_waits_is_asked_about_ten_in_a_round() {
        let gates = Gates::default();
        let namespaces: BTreeSet<String> = (0..25).map(|number| format!("n{number}")).collect();
        for namespace in &namespaces {
            gates.close(&AccessRequest::new(Verb::Create, "databases.demo.towline.dev", namespace, "orders"));
        }
        let asked = (0..3).flat_map(|round| {
            let questions = gates.questions(round);
            let [(everywhere, narrower)] = questions.as_slice() else { panic!("{questions:?}") };
            assert_eq!((everywhere.namespace.as_str(), narrower.len()), ("", 10));
            narrower.iter().map(|question| question.namespace.clone()).collect::<Vec<_>>()
        });
        assert_eq!(asked.collect::<BTreeSet<_>>(), namespaces);
    }

    #[tokio::test(start_paused = true)]
    async fn a_grant_that_nobody_used_says_nothing_of_a_later_denial() {
        let gates = Gates::default();
        let ask = AccessRequest::new(Verb::Create, "databases.demo.towline.dev", "a", "orders");
        gates.close(&ask);
        gates.open(&ask);
        tokio::time::advance(USED_WITHIN / 2).await;
        assert!(gates.is_granted(&ask));
        // Refused all the while: every try is the same refusal.
        for _ in 0..5 {
            tokio::time::advance(Duration::from_mins(6)).await;
            assert!(gates.is_granted(&ask));
        }
        gates.close(&ask);
        gates.open(&ask);
        tokio::time::advance(USED_WITHIN * 2).await;
        assert!(!gates.is_granted(&ask));
    }

    #[test]
    fn secrets_are_denied_by_name() {
        let gates = Gates::default();
        let ask = |name: &str| AccessRequest::new(Verb::Update, "secrets", "a", name);
        gates.close(&ask("one"));
        assert!(gates.is_closed(&ask("one")) && !gates.is_closed(&ask("two")));
    }
}
