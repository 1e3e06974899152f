//! Denied permissions: one access review asks again for all requests that wait for the same permission.
//!
//! After a 403 the same verb on the same resource in the same namespace is not sent again. The cluster's actor asks the API
//! server with back-off (`SelfSubjectAccessReview`) whether the permission has been granted, first for all namespaces, then
//! for some of the waiting ones. Once it is granted, all requests that wait for it may be sent.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::Verb;
use super::access::AccessRequest;

/// The most namespaces that one round of reviews asks for, for each verb and resource.
const NAMESPACES_PER_ROUND: usize = 10;
/// Whoever waited for a permission uses it within this time.
const USED_WITHIN: Duration = Duration::from_mins(1);
/// A request that is refused although the permission is granted is retried with back-off; this is longer than its maximum.
const RETRIED_WITHIN: Duration = Duration::from_mins(10);

/// A verb on a resource (`plural.group/subresource`).
type Permission = (Verb, String);

/// Where it was denied: the namespace, and for kinds that RBAC grants by name (secrets) the name.
type NamespaceAndName = (String, String);

#[derive(Default)]
pub(super) struct DeniedPermissions {
    state: Mutex<Denials>,
    /// Counts the grants.
    granted: watch::Sender<u64>,
}

#[derive(Default)]
struct Denials {
    denied: BTreeMap<Permission, BTreeSet<NamespaceAndName>>,
    /// Granted by a review, and not used successfully since. If such a request is denied again, no permission is missing:
    /// admission (a quota, a webhook) refuses the content. The value is how long a denial is read in this way.
    unproven: BTreeMap<(Permission, NamespaceAndName), Instant>,
}

fn permission(request: &AccessRequest) -> Permission {
    (request.verb, request.full_resource())
}

/// Secrets are granted by name (`resourceNames`), so the denial of one name says nothing about another.
fn place(request: &AccessRequest) -> NamespaceAndName {
    let name = if request.resource == "secrets" { request.name.clone() } else { String::new() };
    (request.namespace.clone(), name)
}

impl DeniedPermissions {
    /// Whether this request is known to be denied.
    pub(super) fn is_denied(&self, request: &AccessRequest) -> bool {
        let state = self.state.lock();
        !state.denied.is_empty()
            && state.denied.get(&permission(request)).is_some_and(|places| places.contains(&place(request)))
    }

    /// Whether a review granted this, so that a denial has another cause.
    pub(super) fn is_granted(&self, request: &AccessRequest) -> bool {
        let mut state = self.state.lock();
        let now = Instant::now();
        state.unproven.retain(|_, until| *until > now);
        let Some(until) = state.unproven.get_mut(&(permission(request), place(request))) else { return false };
        *until = now + RETRIED_WITHIN;
        true
    }

    /// Whether a granted permission has not been used successfully yet.
    pub(super) fn any_unproven(&self) -> bool {
        !self.state.lock().unproven.is_empty()
    }

    /// A request succeeded.
    pub(super) fn prove(&self, request: &AccessRequest) {
        self.state.lock().unproven.remove(&(permission(request), place(request)));
    }

    /// Records a denial; returns whether it is the first of its verb and resource.
    pub(super) fn deny(&self, request: &AccessRequest) -> bool {
        let mut state = self.state.lock();
        let places = state.denied.entry(permission(request)).or_default();
        let is_first = places.is_empty();
        places.insert(place(request));
        is_first
    }

    /// The reviews of one round: for each denied verb and resource one for all namespaces, and some for single places. All
    /// places take turns from round to round.
    pub(super) fn reviews(&self, round: usize) -> Vec<(AccessRequest, Vec<AccessRequest>)> {
        let state = self.state.lock();
        let reviews = state.denied.iter().filter_map(|((verb, resource), places)| {
            let first = (round * NAMESPACES_PER_ROUND) % places.len().max(1);
            let in_turn = || places.iter().cycle().skip(first).take(places.len().min(NAMESPACES_PER_ROUND));
            let at = |namespace: &str, name: &str| AccessRequest::new(*verb, resource, namespace, name);
            let (_, name) = in_turn().next()?;
            let single = in_turn().filter(|(namespace, _)| !namespace.is_empty());
            Some((at("", name), single.map(|(namespace, name)| at(namespace, name)).collect()))
        });
        reviews.collect()
    }

    /// The permission was granted: in all namespaces if the request names none.
    pub(super) fn grant(&self, request: &AccessRequest) {
        {
            let mut state = self.state.lock();
            let Denials { denied, unproven } = &mut *state;
            let permission = permission(request);
            if let Some(places) = denied.get_mut(&permission) {
                let (namespace, name) = place(request);
                let granted = |(at, of): &NamespaceAndName| (namespace.is_empty() || namespace == *at) && name == *of;
                for place in places.extract_if(.., granted) {
                    unproven.insert((permission.clone(), place), Instant::now() + USED_WITHIN);
                }
                if places.is_empty() {
                    denied.remove(&permission);
                }
            }
        }
        self.granted.send_modify(|count| *count += 1);
    }

    /// New credentials may have other permissions: everything may be sent again.
    pub(super) fn forget_all(&self) {
        *self.state.lock() = Denials::default();
        self.granted.send_modify(|count| *count += 1);
    }

    pub(super) fn any(&self) -> bool {
        !self.state.lock().denied.is_empty()
    }

    pub(super) fn grants(&self) -> u64 {
        *self.granted.borrow()
    }

    pub(super) fn granted(&self) -> watch::Receiver<u64> {
        self.granted.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_holds_for_its_namespace_only_and_a_grant_for_all_namespaces_ends_all_denials() {
        let permissions = DeniedPermissions::default();
        let ask =
            |namespace: &str| AccessRequest::new(Verb::Patch, "databases.demo.towline.dev/status", namespace, "orders");
        assert!(permissions.deny(&ask("a")));
        assert!(!permissions.deny(&ask("b")));
        assert!(
            permissions.is_denied(&ask("a")) && permissions.is_denied(&ask("b")) && !permissions.is_denied(&ask("c"))
        );
        assert_eq!(permissions.reviews(0).len(), 1, "one review for one verb and resource");
        permissions.grant(&ask("a"));
        assert!(!permissions.is_denied(&ask("a")) && permissions.is_denied(&ask("b")));
        permissions.grant(&ask(""));
        assert!(!permissions.any());
    }

    #[test]
    fn a_request_that_is_denied_although_it_is_granted_lacks_no_permission() {
        let permissions = DeniedPermissions::default();
        let ask = AccessRequest::new(Verb::Create, "databases.demo.towline.dev", "a", "orders");
        permissions.deny(&ask);
        assert!(!permissions.is_granted(&ask));
        permissions.grant(&AccessRequest::new(Verb::Create, "databases.demo.towline.dev", "", "orders"));
        assert!(permissions.is_granted(&ask));
        permissions.prove(&ask);
        assert!(!permissions.is_granted(&ask), "it succeeded since: the next denial is a new one");
    }

    #[test]
    fn every_waiting_namespace_is_reviewed_ten_in_a_round() {
        let permissions = DeniedPermissions::default();
        let namespaces: BTreeSet<String> = (0..25).map(|number| format!("n{number}")).collect();
        for namespace in &namespaces {
            permissions.deny(&AccessRequest::new(Verb::Create, "databases.demo.towline.dev", namespace, "orders"));
        }
        let asked = (0..3).flat_map(|round| {
            let reviews = permissions.reviews(round);
            let [(everywhere, single)] = reviews.as_slice() else { panic!("{reviews:?}") };
            assert_eq!((everywhere.namespace.as_str(), single.len()), ("", 10));
            single.iter().map(|review| review.namespace.clone()).collect::<Vec<_>>()
        });
        assert_eq!(asked.collect::<BTreeSet<_>>(), namespaces);
    }

    #[tokio::test(start_paused = true)]
    async fn a_grant_that_nobody_used_says_nothing_about_a_later_denial() {
        let permissions = DeniedPermissions::default();
        let ask = AccessRequest::new(Verb::Create, "databases.demo.towline.dev", "a", "orders");
        permissions.deny(&ask);
        permissions.grant(&ask);
        tokio::time::advance(USED_WITHIN / 2).await;
        assert!(permissions.is_granted(&ask));
        // Refused all the time: every retry gets the same refusal.
        for _ in 0..5 {
            tokio::time::advance(Duration::from_mins(6)).await;
            assert!(permissions.is_granted(&ask));
        }
        permissions.deny(&ask);
        permissions.grant(&ask);
        tokio::time::advance(USED_WITHIN * 2).await;
        assert!(!permissions.is_granted(&ask));
    }

    #[test]
    fn secrets_are_denied_by_name() {
        let permissions = DeniedPermissions::default();
        let ask = |name: &str| AccessRequest::new(Verb::Update, "secrets", "a", name);
        permissions.deny(&ask("one"));
        assert!(permissions.is_denied(&ask("one")) && !permissions.is_denied(&ask("two")));
    }
}
