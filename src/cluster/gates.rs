//! Denied permissions: asked for once for all who wait.
//!
//! After a 403 the same verb on the same resource in the same namespace is not sent again; the cluster's actor asks the
//! API server (`SelfSubjectAccessReview`) with back-off whether the permission has been given, first for all namespaces,
//! then for one that waits. When it has, everybody who waits for it goes on together.

use std::collections::{BTreeMap, BTreeSet};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::Verb;
use super::access::AccessRequest;

/// A verb on a resource (`plural.group/subresource`).
type Gate = (Verb, String);

/// What exactly was denied: the namespace, and for kinds that RBAC grants by name (secrets) the name.
type Denied = (String, String);

#[derive(Default)]
pub(super) struct Gates {
    closed: Mutex<BTreeMap<Gate, BTreeSet<Denied>>>,
    /// Opened because a review said so, and not used with success since. Denied again, it was not a permission that was
    /// missing: admission (a quota, a webhook) refuses the content.
    unproven: Mutex<BTreeSet<(Gate, Denied)>>,
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
        let unproven = self.unproven.lock();
        !unproven.is_empty() && unproven.contains(&(Self::gate(request), denial(request)))
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

    /// One question for each verb and resource that is denied, and where it was denied: for all namespaces first.
    pub(super) fn questions(&self, round: usize) -> Vec<(AccessRequest, Vec<AccessRequest>)> {
        let closed = self.closed.lock();
        closed
            .iter()
            .filter_map(|((verb, resource), denied)| {
                let (namespace, name) = denied.iter().nth(round % denied.len().max(1))?;
                let at = |namespace: &str| AccessRequest::new(*verb, resource, namespace, name);
                let mut narrower = Vec::new();
                if !namespace.is_empty() {
                    narrower.push(at(namespace));
                }
                Some((at(""), narrower))
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
                        unproven.insert((gate.clone(), (denied_namespace.clone(), denied_name.clone())));
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
    fn secrets_are_denied_by_name() {
        let gates = Gates::default();
        let ask = |name: &str| AccessRequest::new(Verb::Update, "secrets", "a", name);
        gates.close(&ask("one"));
        assert!(gates.is_closed(&ask("one")) && !gates.is_closed(&ask("two")));
    }
}
