//! Decides which request of a renewal is next, by the answer to the last one. Pure.
//!
//! | request | done | not found | already exists | conflict | forbidden |
//! |---|---|---|---|---|---|
//! | patch | ✓ | create | – | – | read, and update from now on |
//! | take | ✓ | create | – | read | read, and update from now on |
//! | create | ✓ | – | read | – | – |
//! | read | take, or update | create | – | – | – |
//! | update | ✓ | create | – | read | patch the next time |
//!
//! A lease is taken as it was read, so that a holder that is replaced raises `leaseTransitions`: by a patch, which fails if the lease has
//! changed since.
//!
//! In the steady state a renewal is one request: a patch of two fields or, where only `update` is granted, an update of
//! the last reply.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use super::super::config::LeaseConfig;
use crate::cluster::Payload;

/// Most requests of one renewal. It is enough for a lease that is missing, then created by another client, then read, and
/// changed meanwhile.
pub const MOST_STEPS: usize = 6;

/// How an existing lease is renewed.
#[derive(Clone, Debug, PartialEq)]
pub enum Method {
    /// By a patch of two fields.
    Patch,
    /// By an update of the last reply; `None` where there is no reply.
    Update(Option<Box<Value>>),
}

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub enum RenewalStep {
    Patch,
    /// Patch this lease, with us as its holder.
    Take(Box<Value>),
    Create,
    /// Read the lease, in order to take or update it.
    Read,
    Update(Box<Value>),
}

impl RenewalStep {
    /// Whether it needs the permission to patch.
    pub fn is_patch(&self) -> bool {
        matches!(self, Self::Patch | Self::Take(_))
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum RenewalAnswer {
    /// Success, with the lease in the reply.
    Done(Box<Value>),
    Missing,
    Exists,
    /// The lease has changed since it was read.
    Conflict,
    Forbidden,
}

/// The consequence of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum After {
    /// The lease is renewed. The next renewal uses this method.
    Renewed(Method),
    Then(RenewalStep),
    /// The lease cannot be renewed now. The next attempt uses this method.
    Failed(Method),
}

/// What is known of the lease before a renewal.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Found {
    #[default]
    Unknown,
    /// The hub has just answered that it does not exist.
    Missing,
    Lease(Box<Value>),
}

pub fn first(method: &mut Method, found: Found, take: bool) -> RenewalStep {
    match (method, found) {
        (_, Found::Missing) => RenewalStep::Create,
        (Method::Patch, Found::Lease(lease)) if take => RenewalStep::Take(lease),
        (Method::Patch, Found::Unknown) if take => RenewalStep::Read,
        (Method::Patch, _) => RenewalStep::Patch,
        (Method::Update(last), _) => last.take().map_or(RenewalStep::Read, RenewalStep::Update),
    }
}

/// The request after this answer, or the end. `updates` says that patches are known to be forbidden.
pub fn after(step: &RenewalStep, answer: RenewalAnswer, updates: bool) -> After {
    let method = if updates { Method::Update(None) } else { Method::Patch };
    match (step, answer) {
        (RenewalStep::Read, RenewalAnswer::Done(lease)) => {
            After::Then(if updates { RenewalStep::Update(lease) } else { RenewalStep::Take(lease) })
        }
        (_, RenewalAnswer::Done(lease)) if updates => After::Renewed(Method::Update(Some(lease))),
        (_, RenewalAnswer::Done(_)) => After::Renewed(Method::Patch),
        (RenewalStep::Patch | RenewalStep::Take(_), RenewalAnswer::Forbidden)
        | (RenewalStep::Take(_) | RenewalStep::Update(_), RenewalAnswer::Conflict)
        | (RenewalStep::Create, RenewalAnswer::Exists) => After::Then(RenewalStep::Read),
        (
            RenewalStep::Patch | RenewalStep::Take(_) | RenewalStep::Read | RenewalStep::Update(_),
            RenewalAnswer::Missing,
        ) => After::Then(RenewalStep::Create),
        // Both verbs are forbidden: alternating between them finds the one that is granted first.
        (RenewalStep::Update(_), RenewalAnswer::Forbidden) => After::Failed(Method::Patch),
        _ => After::Failed(method),
    }
}

/// The content of a renewal.
#[derive(Clone, Debug)]
pub struct Stamp<'a> {
    pub config: &'a LeaseConfig,
    pub holder: &'a str,
    /// The time of the renewal by the wall clock.
    pub at: SystemTime,
    /// Whether an update acquires the lease, and does not only renew it.
    pub take: bool,
}

impl Stamp<'_> {
    fn time(&self) -> String {
        humantime::format_rfc3339_micros(self.at).to_string()
    }

    fn seconds(duration: Duration) -> u64 {
        duration.as_secs()
    }

    /// The fields of `spec`, without those of the holder.
    fn renewal(&self) -> Value {
        json!({"leaseDurationSeconds": Self::seconds(self.config.duration), "renewTime": self.time()})
    }

    /// The fields of `spec` with which the lease is taken, as it was before.
    fn acquisition(&self, before: Option<&Value>) -> Value {
        let mut spec = self.renewal();
        if let Some(fields) = spec.as_object_mut() {
            fields.insert("holderIdentity".into(), json!(self.holder));
            fields.insert("acquireTime".into(), json!(self.time()));
            if let Some(transitions) = before.and_then(|before| self.transitions(before)) {
                fields.insert("leaseTransitions".into(), json!(transitions));
            }
        }
        spec
    }

    /// The number of changes of holders, if taking this lease is one more.
    fn transitions(&self, before: &Value) -> Option<i64> {
        let field = |name: &str| before.get("spec").and_then(|spec| spec.get(name));
        let holder = field("holderIdentity").and_then(Value::as_str).unwrap_or_default();
        let is_another = !holder.is_empty() && holder != self.holder;
        is_another.then(|| field("leaseTransitions").and_then(Value::as_i64).unwrap_or(0).saturating_add(1))
    }

    pub fn payload(&self, step: &RenewalStep) -> Payload {
        match step {
            // This body is sent once a period for every lease. It is formatted by hand, since no value needs escaping.
            RenewalStep::Patch => Payload::merge_patch(&format_args!(
                "{{\"spec\":{{\"leaseDurationSeconds\":{},\"renewTime\":\"{}\"}}}}",
                Self::seconds(self.config.duration),
                self.time()
            )),
            RenewalStep::Take(lease) => Payload::merge_patch(&json!({
                "metadata": {"resourceVersion": lease.pointer("/metadata/resourceVersion")},
                "spec": self.acquisition(Some(lease)),
            })),
            RenewalStep::Create => Payload::json(&json!({
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": self.config.lease_name, "namespace": self.config.lease_namespace},
                "spec": self.acquisition(None),
            })),
            RenewalStep::Read => Payload::none(),
            RenewalStep::Update(lease) => Payload::json(&self.updated(lease)),
        }
    }

    /// The lease as it was read with our fields set. Fields of other writers stay.
    fn updated(&self, lease: &Value) -> Value {
        let mut lease = lease.clone();
        if let Some(metadata) = lease.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
        let take = self.take || lease.pointer("/spec/holderIdentity").is_none();
        let fields = if take { self.acquisition(Some(&lease)) } else { self.renewal() };
        if let (Some(lease), Value::Object(fields)) = (lease.as_object_mut(), fields) {
            let spec = lease.entry("spec").or_insert_with(|| json!({}));
            match spec.as_object_mut() {
                Some(spec) => spec.extend(fields),
                None => *spec = Value::Object(fields),
            }
        }
        lease
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done() -> RenewalAnswer {
        RenewalAnswer::Done(Box::new(json!({"metadata": {"resourceVersion": "7"}})))
    }

    fn stamp(config: &LeaseConfig, take: bool) -> Stamp<'_> {
        let at = SystemTime::UNIX_EPOCH + Duration::from_micros(1_700_000_000_123_456);
        Stamp { config, holder: "add-on-0", at, take }
    }

    fn config() -> LeaseConfig {
        LeaseConfig {
            name: "heartbeat".parse().expect("a name"),
            cluster: "edge".parse().expect("a name"),
            lease_name: "add-on".into(),
            lease_namespace: "edge-west".into(),
            secret_name: "hub".into(),
            secret_namespace: "add-ons".into(),
            pod: None,
            duration: Duration::from_secs(30),
            renew_interval: Duration::from_secs(10),
            startup_delay: Duration::ZERO,
        }
    }

    /// Plays a renewal against scripted answers and returns its requests.
    fn play(mut method: Method, found: Found, take: bool, answers: Vec<RenewalAnswer>) -> (Vec<RenewalStep>, After) {
        let mut updates = matches!(method, Method::Update(_));
        let mut step = first(&mut method, found, take);
        let mut steps = Vec::new();
        for answer in answers {
            updates |= step.is_patch() && answer == RenewalAnswer::Forbidden;
            steps.push(step.clone());
            match after(&step, answer, updates) {
                After::Then(next) => step = next,
                end => return (steps, end),
            }
        }
        panic!("the renewal continues with {step:?}")
    }

    #[test]
    fn the_steady_state_is_one_request() {
        assert_eq!(
            play(Method::Patch, Found::Unknown, false, vec![done()]),
            (vec![RenewalStep::Patch], After::Renewed(Method::Patch))
        );
        let RenewalAnswer::Done(lease) = done() else { unreachable!() };
        let (steps, end) = play(Method::Update(Some(lease.clone())), Found::Unknown, false, vec![done()]);
        assert_eq!(steps, [RenewalStep::Update(lease.clone())]);
        assert_eq!(end, After::Renewed(Method::Update(Some(lease))));
    }

    #[test]
    fn a_lease_that_is_gone_is_created_in_the_same_renewal() {
        let (steps, end) = play(Method::Patch, Found::Unknown, false, vec![RenewalAnswer::Missing, done()]);
        assert_eq!((steps, end), (vec![RenewalStep::Patch, RenewalStep::Create], After::Renewed(Method::Patch)));
        let RenewalAnswer::Done(lease) = done() else { unreachable!() };
        let (steps, _) = play(Method::Patch, Found::Missing, true, vec![RenewalAnswer::Exists, done(), done()]);
        assert_eq!(
            steps,
            [RenewalStep::Create, RenewalStep::Read, RenewalStep::Take(lease)],
            "another client created it meanwhile"
        );
    }

    #[test]
    fn a_lease_is_taken_as_it_was_read_and_read_again_if_it_has_changed() {
        let RenewalAnswer::Done(lease) = done() else { unreachable!() };
        let (steps, end) = play(Method::Patch, Found::Lease(lease.clone()), true, vec![done()]);
        assert_eq!((steps, end), (vec![RenewalStep::Take(lease.clone())], After::Renewed(Method::Patch)));
        let (steps, _) =
            play(Method::Patch, Found::Unknown, true, vec![done(), RenewalAnswer::Conflict, done(), done()]);
        assert_eq!(
            steps,
            [RenewalStep::Read, RenewalStep::Take(lease.clone()), RenewalStep::Read, RenewalStep::Take(lease.clone())]
        );
        let (steps, _) = play(Method::Patch, Found::Lease(lease.clone()), false, vec![done()]);
        assert_eq!(steps, [RenewalStep::Patch], "it is only renewed");
        let answers = vec![RenewalAnswer::Forbidden, done(), done()];
        let (steps, _) = play(Method::Patch, Found::Lease(lease.clone()), true, answers);
        assert_eq!(steps, [RenewalStep::Take(lease.clone()), RenewalStep::Read, RenewalStep::Update(lease)]);
    }

    #[test]
    fn where_patch_is_forbidden_it_is_updated_and_a_conflict_costs_one_read() {
        let RenewalAnswer::Done(lease) = done() else { unreachable!() };
        let (steps, end) = play(Method::Patch, Found::Unknown, false, vec![RenewalAnswer::Forbidden, done(), done()]);
        assert_eq!(steps, [RenewalStep::Patch, RenewalStep::Read, RenewalStep::Update(lease.clone())]);
        let After::Renewed(method) = end else { panic!("{end:?}") };
        let (steps, _) = play(method, Found::Unknown, false, vec![RenewalAnswer::Conflict, done(), done()]);
        assert_eq!(steps, [RenewalStep::Update(lease.clone()), RenewalStep::Read, RenewalStep::Update(lease)]);
    }

    #[test]
    fn where_neither_verb_is_granted_both_are_tried_the_next_time() {
        let (_, end) = play(
            Method::Patch,
            Found::Unknown,
            false,
            vec![RenewalAnswer::Forbidden, done(), RenewalAnswer::Forbidden],
        );
        assert_eq!(end, After::Failed(Method::Patch));
    }

    #[test]
    fn a_renewal_writes_two_fields_and_acquiring_two_more() {
        let config = config();
        let text = |step: &RenewalStep| stamp(&config, true).payload(step).parts().1.to_owned();
        assert_eq!(
            text(&RenewalStep::Patch),
            r#"{"spec":{"leaseDurationSeconds":30,"renewTime":"2023-11-14T22:13:20.123456Z"}}"#
        );
        let take =
            |lease: Value| -> Value { serde_json::from_str(&text(&RenewalStep::Take(Box::new(lease)))).expect("JSON") };
        let taken = take(
            json!({"metadata": {"resourceVersion": "7"}, "spec": {"holderIdentity": "add-on-0", "leaseTransitions": 3}}),
        );
        assert_eq!(taken["metadata"], json!({"resourceVersion": "7"}));
        assert_eq!(taken["spec"].get("leaseTransitions"), None, "the holder is the same");
        assert_eq!(taken["spec"]["holderIdentity"], "add-on-0");
        assert_eq!(taken["spec"]["acquireTime"], "2023-11-14T22:13:20.123456Z");
        let created: Value =
            serde_json::from_str(stamp(&config, false).payload(&RenewalStep::Create).parts().1).expect("JSON");
        assert_eq!(created["spec"]["holderIdentity"], "add-on-0", "a new lease has a holder");
    }

    #[test]
    fn a_holder_that_is_replaced_raises_the_number_of_transitions() {
        let config = config();
        for (spec, expected) in [
            (json!({"holderIdentity": "someone", "leaseTransitions": 3}), json!(4)),
            (json!({"holderIdentity": "someone"}), json!(1)),
            (json!({"holderIdentity": "add-on-0", "leaseTransitions": 3}), json!(null)),
            (json!({"holderIdentity": "", "leaseTransitions": 3}), json!(null)),
            (json!({}), json!(null)),
        ] {
            let lease = Box::new(json!({"metadata": {"resourceVersion": "7"}, "spec": spec}));
            let body = |step: &RenewalStep| -> Value {
                serde_json::from_str(stamp(&config, true).payload(step).parts().1).expect("JSON")
            };
            assert_eq!(body(&RenewalStep::Take(lease.clone()))["spec"]["leaseTransitions"], expected, "{lease}");
            let kept = if expected.is_null() { spec_of(&lease) } else { expected };
            assert_eq!(body(&RenewalStep::Update(lease.clone()))["spec"]["leaseTransitions"], kept, "{lease}");
        }
    }

    fn spec_of(lease: &Value) -> Value {
        lease["spec"]["leaseTransitions"].clone()
    }

    #[test]
    fn an_update_keeps_what_others_wrote() {
        let config = config();
        let read = json!({
            "metadata": {"resourceVersion": "7", "labels": {"a": "b"}, "managedFields": [1]},
            "spec": {"holderIdentity": "someone", "leaseTransitions": 3, "renewTime": "old"},
        });
        let body: Value =
            serde_json::from_str(stamp(&config, false).payload(&RenewalStep::Update(Box::new(read))).parts().1)
                .expect("JSON");
        assert_eq!(body["metadata"], json!({"resourceVersion": "7", "labels": {"a": "b"}}));
        assert_eq!(body["spec"]["leaseTransitions"], 3);
        assert_eq!(body["spec"]["holderIdentity"], "someone");
        assert_eq!(body["spec"]["renewTime"], "2023-11-14T22:13:20.123456Z");
    }
}
