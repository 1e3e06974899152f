//! Why a pair is not in step, and what an operator can do about it. Pure.

use std::sync::Arc;

use super::conflicts::content_fields;
use super::observed::{Namespace, Observed};
use super::ownership::Unproven;
use super::policy::Policy;
use super::step::{Rest, Step, UPLOAD_SECRET};
use crate::cluster::{Error, Object, ObjectKey, Retry};
use crate::guard::GuardedChange;
use crate::resource_sync::config::SyncConfig;

/// Finalizers of Kubernetes' garbage collector, which stand for an object's dependents.
const COLLECTOR: [&str; 2] = ["foregroundDeletion", "orphan"];

/// Why a pair is not in step, for the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waits {
    /// What is wrong, or what the pair waits for.
    pub cause: String,
    /// What an operator can do.
    pub next_step: String,
    /// What triggers the next attempt, where that is not a delay.
    pub retry: &'static str,
    /// Where another client has to act first: on what, and in which cluster.
    blocker: Option<(String, String)>,
}

impl Waits {
    fn waiting_for(what: String, cluster: &str, next_step: &str) -> Self {
        Self {
            cause: format!("waits for {what} ({cluster})"),
            next_step: next_step.to_owned(),
            retry: "",
            blocker: Some((what, cluster.to_owned())),
        }
    }

    /// What it waits for, as a sentence about the object.
    pub fn sentence(&self, key: &ObjectKey) -> Option<String> {
        let (what, cluster) = self.blocker.as_ref()?;
        Some(format!("waiting for {what} on {key} ({cluster})"))
    }

    /// A pair at rest whose local side, namespace or remote object is being deleted.
    pub fn deleting(rest: Rest, observed: &Observed, config: &SyncConfig) -> Self {
        let (remote, local) = (config.remote.as_str(), config.local.as_str());
        if let Some(local_object) = observed.local.as_deref().filter(|object| object.deleting) {
            return Self::terminating(local_object, local);
        }
        if rest == Rest::Gone
            && let Some(remote_object) = observed.remote_object()
        {
            return Self::terminating(remote_object, remote);
        }
        let name = &observed.pair.local.namespace;
        let held = match &observed.namespace {
            Namespace::Present { object, .. } => finalizers(object),
            Namespace::None | Namespace::Missing => None,
        };
        match held {
            Some(held) => Self::waiting_for(format!("{held} of namespace {name}"), local, "ask its owner"),
            None => {
                Self::waiting_for(format!("the end of namespace {name}"), local, "check what is left in the namespace")
            }
        }
    }

    /// A pair of which a side is paused. A deletion waits for the end of the pause.
    pub fn paused(observed: &Observed, config: &SyncConfig, policy: &Policy) -> Self {
        let marks = &policy.marks;
        let sides =
            [(observed.remote_object().map(AsRef::as_ref), &config.remote), (observed.local.as_deref(), &config.local)];
        let paused: Vec<(String, &str)> = sides
            .iter()
            .filter_map(|(object, cluster)| {
                let object = object.filter(|object| marks.is_paused(object))?;
                let value = object.annotation(&marks.paused).unwrap_or_default();
                Some((format!("{}: {value:?} on {cluster}", marks.paused), cluster.as_str()))
            })
            .collect();
        let by = paused.iter().map(|(by, _)| by.as_str()).collect::<Vec<_>>().join(" and ");
        let deleted: Vec<&str> = sides
            .iter()
            .filter(|(object, _)| object.is_some_and(|object| object.deleting))
            .map(|(_, cluster)| cluster.as_str())
            .collect();
        let cause = if deleted.is_empty() {
            format!("paused by {by}")
        } else {
            format!("paused by {by}; its deletion on {} waits", deleted.join(" and "))
        };
        let blocker = paused.first().filter(|_| !deleted.is_empty());
        Self {
            cause,
            next_step: "remove the annotation to continue".to_owned(),
            retry: "on change",
            blocker: blocker.map(|(_, cluster)| ("the end of the pause".to_owned(), (*cluster).to_owned())),
        }
    }

    fn terminating(object: &Object, cluster: &str) -> Self {
        match finalizers(object) {
            Some(held) => Self::waiting_for(held, cluster, "ask its owner"),
            None => Self::waiting_for("its dependents".to_owned(), cluster, "check what it owns"),
        }
    }

    /// Whether the remote object is being deleted and only finalizers of other controllers keep it.
    pub fn is_held_by_others(observed: &Observed) -> bool {
        observed.local.is_none()
            && observed.remote_object().is_some_and(|remote| remote.deleting && !remote.finalizers.is_empty())
    }

    /// A step failed, and others beside it that did not end the run.
    pub fn failing(step: &str, error: &Error, beside: &[(&'static str, Error)], config: &SyncConfig) -> Self {
        let mut waits = Self::failing_in(step, error, config);
        for (step, error) in beside {
            let other = Self::failing_in(step, error, config);
            waits.cause = format!("{}; and {step}: {}", waits.cause, other.cause);
            if !waits.next_step.split("; ").any(|next_step| next_step == other.next_step) {
                waits.next_step = format!("{}; {}", waits.next_step, other.next_step);
            }
        }
        waits
    }

    fn failing_in(step: &str, error: &Error, config: &SyncConfig) -> Self {
        let orders = [Step::CreateLocal.name(), Step::CreateNamespace.name(), "patch_local"].contains(&step);
        let deletes = [Step::DeleteLocal.name(), Step::DeleteNamespace.name()].contains(&step);
        let (cause, next_step) = match error {
            // The content is not valid there. An existing object may also hold a field that can't change any more.
            Error::Rejected { code: 422, message, .. } if orders => {
                let change = format!("change it on {}", config.remote);
                let anew = format!("{change}, or delete it on {} if the field can't change there", config.local);
                (brief(message).to_owned(), if step == "patch_local" { anew } else { change })
            }
            // A quota, a policy or a webhook: it is not the object alone.
            Error::Rejected { message, .. } if orders => {
                (brief(message).to_owned(), format!("allow it on {}, or change it on {}", config.local, config.remote))
            }
            Error::Rejected { message, .. } if deletes => {
                (brief(message).to_owned(), format!("allow the deletion on {}", config.local))
            }
            Error::Rejected { message, .. } => {
                (brief(message).to_owned(), format!("check why {} rejects it", config.remote))
            }
            Error::NotFound { message } if step == UPLOAD_SECRET => {
                (brief(message).to_owned(), format!("create the secret on {}", config.remote))
            }
            Error::Forbidden { .. } => {
                (error.to_string(), "grant the permission that `towline check --connect` names".to_owned())
            }
            Error::NotServed { .. } => (error.to_string(), "install the kind".to_owned()),
            _ => (error.to_string(), "check the API server".to_owned()),
        };
        let retry = match error.retry() {
            Retry::WhenAllowed => "when the permission is granted",
            Retry::WhenAvailable => "when the cluster answers",
            _ => "on change",
        };
        Self { cause, next_step, retry, blocker: None }
    }

    /// The two sides undo each other's changes.
    pub fn circles(reason: &str) -> Self {
        let next_step = "find the other writer".to_owned();
        Self { cause: reason.to_owned(), next_step, retry: "on change", blocker: None }
    }

    /// Why nothing is done for a pair at rest whose two sides differ; `None` where there is nothing to explain.
    pub fn left_alone(rest: Rest, observed: &Observed, config: &SyncConfig, policy: &Policy) -> Option<Self> {
        let (cause, next_step) = match rest {
            Rest::Existing => {
                let adopt = config.adopt.as_str();
                let fields = match content_fields(observed, policy) {
                    fields if fields.is_empty() => fields,
                    fields => format!("; both sides differ in {fields}"),
                };
                let cause = format!("it existed before its remote object, and `adopt` is \"{adopt}\"{fields}");
                (cause, format!("make the contents equal, delete it on {}, or set `adopt`", config.local))
            }
            Rest::MappingChanged => {
                let key = observed.source_lives_at.as_ref().map(|key| format!(" {key}")).unwrap_or_default();
                (
                    format!("its remote object has another key now{key}: was a suffix changed?"),
                    format!("restore the suffix, or delete it on {}", config.local),
                )
            }
            Rest::OtherCluster => {
                let holder = observed.other_holder(policy);
                let (own, in_place) = if holder.is_some() {
                    ("give each local cluster its own finalizer", &config.local)
                } else {
                    ("give the sections of the two daemons different names", &config.remote)
                };
                let elsewhere = holder.or_else(|| observed.other_source(policy));
                (
                    elsewhere
                        .map_or_else(|| "it belongs to another cluster".to_owned(), |elsewhere| elsewhere.to_string()),
                    format!("{own}; `towline approve {}` if {in_place} replaces that cluster", config.name),
                )
            }
            Rest::Circle => (
                "its remote object was created from it: two sections sync in a circle".to_owned(),
                "check which cluster is `remote` and which is `local`".to_owned(),
            ),
            Rest::Unclaimed(unproven) if unproven != Unproven::Unmarked => {
                (unproven.to_string(), format!("delete it on {} if it is not needed", config.local))
            }
            _ => return None,
        };
        Some(Self { cause, next_step, retry: "on change", blocker: None })
    }

    /// The whole section is held.
    pub fn kept_back(cause: String, config: &SyncConfig) -> Self {
        let next_step = format!("`towline approve {}` if this is intended", config.name);
        Self { cause, next_step, retry: "when an operator approves", blocker: None }
    }

    /// The whole section may not run as it is configured. Approving does not help.
    pub fn refused(cause: String) -> Self {
        let next_step = "correct the kubeconfigs".to_owned();
        Self { cause, next_step, retry: "when the clusters differ", blocker: None }
    }

    /// The guard holds the change to this object, together with those to many others.
    pub fn held(change: Option<GuardedChange>, config: &SyncConfig) -> Self {
        let (remote, local) = (&config.remote, &config.local);
        let cause = match change {
            None | Some(GuardedChange::Delete) => {
                format!("missing on {remote}, although nothing shows that it was deleted there")
            }
            Some(GuardedChange::LetGo) => format!("no longer matches the selector on {remote}"),
            Some(GuardedChange::Overwrite) => {
                format!("existed on {local} before its remote object, and would be overwritten")
            }
            Some(GuardedChange::ClearStatus) => {
                format!("has no status on {local}, so its status on {remote} would be cleared")
            }
        };
        Self {
            cause: format!("{cause}, like many others"),
            next_step: format!("`towline approve {}` if this is intended", config.name),
            retry: "when an operator approves",
            blocker: None,
        }
    }

    /// Another client keeps undoing what the section writes; `cause`: who does what.
    pub fn contended(cause: String) -> Self {
        let next_step = "stop the other client, or take what it changes out of the section".to_owned();
        Self { cause, next_step, retry: "", blocker: None }
    }

    /// A change is being written; `unanswered`: a cluster that it has to wait for.
    pub fn pending(unanswered: Option<&str>) -> Self {
        match unanswered {
            Some(cluster) => Self {
                cause: format!("cluster {cluster} does not answer"),
                next_step: format!("make {cluster} reachable"),
                retry: "when the cluster answers",
                blocker: None,
            },
            None => Self {
                cause: "a change is being written".to_owned(),
                next_step: "none".to_owned(),
                retry: "on change",
                blocker: None,
            },
        }
    }
}

/// A rejection without its first part, the name of the object, which the report shows beside it.
pub fn brief(message: &str) -> &str {
    message.split_once("\" is invalid: ").map_or(message, |(_, faults)| faults)
}

/// The finalizers of an object, as one phrase; `None`: none but the garbage collector's.
fn finalizers(object: &Object) -> Option<String> {
    let held: Vec<&Arc<str>> =
        object.finalizers.iter().filter(|finalizer| !COLLECTOR.contains(&&***finalizer)).collect();
    let names = held.iter().map(|name| &***name).collect::<Vec<_>>().join(", ");
    match held.len() {
        0 => None,
        1 => Some(format!("finalizer {names}")),
        _ => Some(format!("finalizers {names}")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cluster::Verb;
    use crate::resource_sync::tests::parsed;

    fn config() -> SyncConfig {
        let text = "[clusters.hub]\nkubeconfig = \"hub\"\n[clusters.edge]\nin_cluster = true\n[[sync]]\nname = \"queues\"\n\
                    remote = \"hub\"\nlocal = \"edge\"\nresource = \"queues.v1.demo.towline.dev\"\n";
        parsed(text).expect("a configuration")
    }

    #[test]
    fn a_failure_is_reported_with_what_an_operator_can_do() {
        let rejected = || Error::Rejected { code: 422, reason: "Invalid".into(), message: "spec.n: 502 > 100".into() };
        let message = || "said".to_owned();
        let forbidden = Error::Forbidden {
            cluster: config().local,
            verb: Verb::Create,
            resource: "queues".into(),
            message: message(),
        };
        let throttled = Error::Throttled { code: 429, message: message(), retry_after: Some(Duration::from_secs(1)) };
        for (step, error, next_step, retry) in [
            ("create_local", rejected(), "change it on hub", "on change"),
            (
                "patch_local",
                rejected(),
                "change it on hub, or delete it on edge if the field can't change there",
                "on change",
            ),
            (
                "create_local",
                Error::Rejected { code: 403, reason: "Forbidden".into(), message: "exceeded quota".into() },
                "allow it on edge, or change it on hub",
                "on change",
            ),
            ("delete_local", rejected(), "allow the deletion on edge", "on change"),
            ("write_remote_status", rejected(), "check why hub rejects it", "on change"),
            (
                "create_local",
                forbidden,
                "grant the permission that `towline check --connect` names",
                "when the permission is granted",
            ),
            (UPLOAD_SECRET, Error::NotFound { message: message() }, "create the secret on hub", "on change"),
            (
                "create_local",
                Error::NotServed { message: message(), of_namespace: false },
                "install the kind",
                "on change",
            ),
            ("create_local", throttled, "check the API server", "on change"),
        ] {
            let waits = Waits::failing(step, &error, &[], &config());
            assert_eq!((waits.next_step.as_str(), waits.retry), (next_step, retry), "{step}: {error}");
            assert_eq!(waits.sentence(&ObjectKey::new("n", "a")), None);
        }
        assert_eq!(Waits::failing("patch_local", &rejected(), &[], &config()).cause, "spec.n: 502 > 100");
    }

    #[test]
    fn failures_beside_the_one_that_ended_a_run_are_reported_with_it() {
        let rejected = |message: &str| Error::Rejected { code: 422, reason: "Invalid".into(), message: message.into() };
        let missing = Error::NotFound { message: "secrets \"s\" not found".into() };
        let beside = [("write_remote_status", rejected("phase: Degraded")), (UPLOAD_SECRET, missing)];
        let waits = Waits::failing("patch_local", &rejected("size: 11"), &beside, &config());
        assert_eq!(
            (waits.cause.as_str(), waits.next_step.as_str()),
            (
                "size: 11; and write_remote_status: phase: Degraded; and upload_secret: secrets \"s\" not found",
                "change it on hub, or delete it on edge if the field can't change there; check why hub rejects it; create \
                 the secret on hub"
            )
        );
        let alike =
            Waits::failing("write_remote_status", &rejected("one"), &[("add_finalizer", rejected("two"))], &config());
        assert_eq!(alike.next_step, "check why hub rejects it");
    }

    #[test]
    fn a_refused_object_is_not_named_twice() {
        let message =
            "Queue.demo \"queue-2\" is invalid: spec.n: Invalid value: 502: spec.n in body should be less than 100";
        assert_eq!(brief(message), "spec.n: Invalid value: 502: spec.n in body should be less than 100");
        assert_eq!(brief("exceeded quota"), "exceeded quota");
    }
}
