//! What a pair that is not in step waits for, and what somebody can do about it. Pure.

use std::sync::Arc;

use super::ownership::Unproven;
use super::plan::{Harm, Namespace, Observed, Policy, Rest, Step, UPLOAD_SECRET};
use crate::cluster::{Error, Object, ObjectKey, Retry};
use crate::resource_sync::config::SyncConfig;

/// Finalizers of Kubernetes' garbage collector, which stand for an object's dependents.
const COLLECTOR: [&str; 2] = ["foregroundDeletion", "orphan"];

/// Why a pair is not in step, for the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waits {
    /// What is wrong, or what it waits for.
    pub cause: String,
    /// What somebody can do.
    pub next_step: String,
    /// When it is tried again, other than after a delay.
    pub retry: &'static str,
    /// Where it waits for somebody else: for what, and in which cluster.
    awaited: Option<(String, String)>,
}

impl Waits {
    fn awaiting(what: String, cluster: &str, next_step: &str) -> Self {
        Self {
            cause: format!("waits for {what} ({cluster})"),
            next_step: next_step.to_owned(),
            retry: "",
            awaited: Some((what, cluster.to_owned())),
        }
    }

    /// The same as a sentence about the object.
    pub fn sentence(&self, key: &ObjectKey) -> Option<String> {
        let (what, cluster) = self.awaited.as_ref()?;
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
            Some(held) => Self::awaiting(format!("{held} of namespace {name}"), local, "ask its owner"),
            None => {
                Self::awaiting(format!("the end of namespace {name}"), local, "look at what is left in the namespace")
            }
        }
    }

    fn terminating(object: &Object, cluster: &str) -> Self {
        match finalizers(object) {
            Some(held) => Self::awaiting(held, cluster, "ask its owner"),
            None => Self::awaiting("its dependents".to_owned(), cluster, "look at what it owns"),
        }
    }

    /// Whether the remote object is being deleted, and only finalizers of others hold it.
    pub fn is_held_by_others(observed: &Observed) -> bool {
        observed.local.is_none()
            && observed.remote_object().is_some_and(|remote| remote.deleting && !remote.finalizers.is_empty())
    }

    /// A step failed.
    pub fn failing(step: &str, error: &Error, config: &SyncConfig) -> Self {
        let orders = [Step::CreateLocal.name(), Step::CreateNamespace.name(), "patch_local"].contains(&step);
        let deletes = [Step::DeleteLocal.name(), Step::DeleteNamespace.name()].contains(&step);
        let (cause, next_step) = match error {
            Error::Rejected { message, .. } if orders => {
                (brief(message).to_owned(), format!("change it on the {}", config.remote))
            }
            Error::Rejected { message, .. } if deletes => {
                (brief(message).to_owned(), format!("let {} delete it", config.local))
            }
            Error::Rejected { message, .. } => {
                (brief(message).to_owned(), format!("see what {} refuses", config.remote))
            }
            Error::NotFound { message } if step == UPLOAD_SECRET => {
                (brief(message).to_owned(), format!("make the secret on the {}", config.remote))
            }
            Error::Forbidden { .. } => {
                (error.to_string(), "grant it, as `towline check --connect` names it".to_owned())
            }
            Error::NotServed { .. } => (error.to_string(), "install the kind".to_owned()),
            _ => (error.to_string(), "see the API server".to_owned()),
        };
        let retry = match error.retry() {
            Retry::WhenAllowed => "when it is granted",
            Retry::WhenAvailable => "when the cluster answers",
            _ => "on change",
        };
        Self { cause, next_step, retry, awaited: None }
    }

    /// The two sides undo each other's changes.
    pub fn circles(reason: &str) -> Self {
        let next_step = "look for who else writes it".to_owned();
        Self { cause: reason.to_owned(), next_step, retry: "on change", awaited: None }
    }

    /// Why a pair at rest is left alone that looks as if something were to be done; `None`: it does not.
    pub fn left_alone(rest: Rest, observed: &Observed, config: &SyncConfig, policy: &Policy) -> Option<Self> {
        let (cause, next_step) = match rest {
            Rest::Stranger => (
                format!("it was there before its remote object, and adopt is \"{}\"", config.adopt.as_str()),
                format!("make it equal, delete it on {}, or set adopt", config.local),
            ),
            Rest::MappingChanged => {
                let lives = observed.source_lives_at.as_ref().map(|key| format!(" as {key}")).unwrap_or_default();
                (
                    format!("its remote object lives{lives}: mapping changed?"),
                    format!("set the suffix back, or delete it on {}", config.local),
                )
            }
            Rest::OtherCluster => {
                let holder = observed.other_holder(policy);
                let (own, in_place) = if holder.is_some() {
                    ("give each local cluster a finalizer of its own", &config.local)
                } else {
                    ("give the sections of different daemons different names", &config.remote)
                };
                let elsewhere = holder.or_else(|| observed.other_source(policy));
                (
                    elsewhere.map_or_else(|| "it is another cluster's".to_owned(), |elsewhere| elsewhere.to_string()),
                    format!("{own}; `towline approve {}` if {in_place} is in its place", config.name),
                )
            }
            Rest::Circle => (
                "its remote object was made from it: two sections sync in a circle".to_owned(),
                "see which of remote and local is which".to_owned(),
            ),
            Rest::Unclaimed(unproven) if unproven != Unproven::Unmarked => {
                (unproven.to_string(), format!("delete it on {} if nobody needs it", config.local))
            }
            _ => return None,
        };
        Some(Self { cause, next_step, retry: "on change", awaited: None })
    }

    /// The whole section is held.
    pub fn kept_back(cause: String, config: &SyncConfig) -> Self {
        let next_step = format!("`towline approve {}` if it is meant so", config.name);
        Self { cause, next_step, retry: "when it is approved", awaited: None }
    }

    /// The guard holds what would be done to it, with many others.
    pub fn held(harm: Option<Harm>, config: &SyncConfig) -> Self {
        let (remote, local) = (&config.remote, &config.local);
        let cause = match harm {
            None | Some(Harm::Delete) => format!("gone from the {remote} without having been deleted there"),
            Some(Harm::LetGo) => format!("has left the selector on {remote}"),
            Some(Harm::Overwrite) => format!("was on {local} before its remote object, and would be overwritten"),
            Some(Harm::ClearStatus) => {
                format!("has no status on {local}, so that the one on {remote} would be cleared")
            }
        };
        Self {
            cause: format!("{cause}, with many others"),
            next_step: format!("`towline approve {}` if it is meant so", config.name),
            retry: "when it is approved",
            awaited: None,
        }
    }

    /// A change is on its way; `unanswered`: a cluster that it has to wait for.
    pub fn pending(unanswered: Option<&str>, contended: bool) -> Self {
        match unanswered {
            Some(cluster) => Self {
                cause: format!("cluster {cluster} does not answer"),
                next_step: format!("bring {cluster} back"),
                retry: "when it answers",
                awaited: None,
            },
            None if contended => Self {
                cause: "another field manager keeps changing it".to_owned(),
                next_step: "see its Events for who does".to_owned(),
                retry: "",
                awaited: None,
            },
            None => Self {
                cause: "a change is on its way".to_owned(),
                next_step: "none".to_owned(),
                retry: "on change",
                awaited: None,
            },
        }
    }
}

/// A refusal without the name of the refused object in front, which stands beside it anyway.
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
    use crate::resource_sync::config::parsed;

    fn config() -> SyncConfig {
        let text = "[clusters.hub]\nkubeconfig = \"hub\"\n[clusters.edge]\nin_cluster = true\n[[sync]]\nname = \"queues\"\n\
                    remote = \"hub\"\nlocal = \"edge\"\nresource = \"queues.v1.demo.towline.dev\"\n";
        parsed(text).expect("a configuration")
    }

    #[test]
    fn a_failure_is_told_with_what_somebody_can_do() {
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
            ("create_local", rejected(), "change it on the hub", "on change"),
            ("patch_local", rejected(), "change it on the hub", "on change"),
            ("delete_local", rejected(), "let edge delete it", "on change"),
            ("write_remote_status", rejected(), "see what hub refuses", "on change"),
            ("create_local", forbidden, "grant it, as `towline check --connect` names it", "when it is granted"),
            (UPLOAD_SECRET, Error::NotFound { message: message() }, "make the secret on the hub", "on change"),
            ("create_local", Error::NotServed { message: message() }, "install the kind", "on change"),
            ("create_local", throttled, "see the API server", "on change"),
        ] {
            let waits = Waits::failing(step, &error, &config());
            assert_eq!((waits.next_step.as_str(), waits.retry), (next_step, retry), "{step}: {error}");
            assert_eq!(waits.sentence(&ObjectKey::new("n", "a")), None);
        }
        assert_eq!(Waits::failing("patch_local", &rejected(), &config()).cause, "spec.n: 502 > 100");
    }

    #[test]
    fn a_refused_object_is_not_named_twice() {
        let message =
            "Queue.demo \"queue-2\" is invalid: spec.n: Invalid value: 502: spec.n in body should be less than 100";
        assert_eq!(brief(message), "spec.n: Invalid value: 502: spec.n in body should be less than 100");
        assert_eq!(brief("exceeded quota"), "exceeded quota");
    }
}
