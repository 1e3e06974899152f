//! The laws of resource sync: the plan's decisions, rule by rule, and that every plan ends with nothing left to do.
//!
//! `ending`, `living`, `ownership` and `content` test the rules one by one, `patches` that JSON patches have the effect that the plan
//! expects, and `server_result` which contents count as a server's result. The other modules are a small simulated world, in which
//! users, controllers, crashes and deliveries come in any order: `server` and `watch` are the clusters, `world` and `requests` the
//! reconciler, `users` the actions of people, and `convergence` the properties that have to hold. Tests with real
//! API servers (`clusters rules_costs`) count what a change costs.

mod content;
mod convergence;
mod elsewhere;
mod ending;
mod living;
mod ownership;
mod patches;
mod rejected;
mod renamed;
mod requests;
mod server;
mod server_result;
mod users;
mod watch;
mod world;

use std::sync::Arc;

use serde_json::{Value, json};

use crate::cluster::object::Decoded;
use crate::cluster::{Object, ObjectKey, Written};
use crate::guard::GuardedChange;
use crate::resource_sync::config::SyncConfig;
use crate::resource_sync::plan::elsewhere::Clusters;
use crate::resource_sync::plan::names::PairKey;
use crate::resource_sync::plan::next;
use crate::resource_sync::plan::observed::{Absence, Namespace, Observed, Remote};
use crate::resource_sync::plan::policy::Policy;
use crate::resource_sync::plan::secrets::SecretView;
use crate::resource_sync::plan::server_result::ServerResult;
use crate::resource_sync::plan::step::{Next, Step};
use crate::resource_sync::tests::parsed;

const FINALIZER: &str = "cloud.teleport.dev/sync-local";
const PAUSED: &str = "cloud.teleport.dev/paused";
const OWNER: &str = "cloud.teleport.dev/sync-owner";
const REMOTE_UID: &str = "cloud.teleport.dev/sync-remote-uid";
const LOCAL_NAME: &str = "cloud.teleport.dev/sync-local-name";
const ADOPTED: &str = "cloud.teleport.dev/sync-adopted";
/// The field manager of the section's writes to the local cluster.
const MANAGER: &str = "towline-databases";
const REMOTE_GENERATION: &str = "cloud.teleport.dev/sync-remote-generation";
const LOCAL_GENERATION: &str = "cloud.teleport.dev/sync-local-generation";
const SYNC_ERROR: &str = "cloud.teleport.dev/sync-error";
const UPLOADED_HASH: &str = "cloud.teleport.dev/last-uploaded-hash";

/// A section with these keys.
fn config(keys: &str) -> SyncConfig {
    let text = format!(
        "[clusters.hub]\nkubeconfig = \"hub\"\n[clusters.edge]\nin_cluster = true\n[[sync]]\nname = \"databases\"\n\
         remote = \"hub\"\nlocal = \"edge\"\nresource = \"databases.v1.demo.towline.dev\"\n{keys}\n"
    );
    parsed(&text).unwrap_or_else(|error| panic!("{keys}: {error}"))
}

fn policy(keys: &str) -> Policy {
    Policy::new(&config(keys))
}

/// An object as a watch delivers it.
fn object(value: &Value) -> Object {
    serde_json::from_str::<Decoded>(&value.to_string()).expect("an object").into_object()
}

fn shared(value: &Value) -> Option<Arc<Object>> {
    (!value.is_null()).then(|| Arc::new(object(value)))
}

impl Observed {
    /// The observation after a step.
    #[must_use]
    fn after(mut self, step: &Step, written: &Written, policy: &Policy) -> Self {
        self.apply(step, written, policy);
        self
    }
}

/// One pair as JSON, which a test can change; `Null` stands for a missing object.
#[expect(clippy::struct_excessive_bools, reason = "each is an observation of its own")]
#[derive(Clone)]
struct Scene {
    policy: Policy,
    remote: Value,
    absence: Absence,
    local: Value,
    namespace: Value,
    namespace_is_ours: bool,
    namespace_in_use: bool,
    namespace_end_is_awaited: bool,
    namespace_is_of_another: bool,
    local_was_there: bool,
    source_lives_at: Option<ObjectKey>,
    permitted: Option<GuardedChange>,
    secrets: Vec<SecretView>,
    server_result: ServerResult,
}

impl Scene {
    /// A pair that is in step, under a policy with these keys. Every field has a different value.
    fn in_step(keys: &str) -> Self {
        Self {
            policy: policy(keys),
            remote: json!({
                "metadata": {
                    "name": "orders", "namespace": "team", "uid": "remote-uid", "resourceVersion": "11",
                    "generation": 3, "finalizers": ["other/first", FINALIZER], "labels": {"app": "shop"},
                    "annotations": {"note": "hello", REMOTE_GENERATION: "3", LOCAL_GENERATION: "5"},
                },
                "spec": {"size": 2},
                "status": {"ready": true},
            }),
            absence: Absence::Unexplained,
            local: json!({
                "metadata": {
                    "name": "orders", "namespace": "team", "uid": "local-uid", "resourceVersion": "21", "generation": 5,
                    "labels": {"app": "shop"}, "annotations": {"note": "hello", REMOTE_UID: "remote-uid", LOCAL_NAME: "team/orders"},
                    "managedFields": [{"manager": MANAGER, "operation": "Update", "fieldsV1": {"f:metadata": {
                        "f:labels": {"f:app": {}},
                        "f:annotations": {"f:note": {}, format!("f:{REMOTE_UID}"): {}, format!("f:{LOCAL_NAME}"): {}},
                    }}}],
                },
                "spec": {"size": 2},
                "status": {"ready": true},
            }),
            namespace: json!({"metadata": {"name": "team", "uid": "namespace-uid", "resourceVersion": "7"}}),
            namespace_is_ours: false,
            namespace_in_use: false,
            namespace_end_is_awaited: false,
            namespace_is_of_another: false,
            local_was_there: false,
            source_lives_at: None,
            permitted: None,
            secrets: Vec::new(),
            server_result: ServerResult::default(),
        }
    }

    /// The same pair with `metadata = "mirror"`.
    fn mirrored(keys: &str) -> Self {
        let mut scene = Self::in_step(&format!("metadata = \"mirror\"\n{keys}"));
        scene.local["metadata"]["annotations"] = json!({"note": "hello"});
        scene
    }

    /// The same pair with a terminating remote object.
    fn remote_terminating(keys: &str) -> Self {
        let mut scene = Self::in_step(keys);
        scene.remote["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        scene
    }

    /// The same pair without a remote object.
    fn remote_absent(keys: &str, absence: Absence) -> Self {
        Self { remote: Value::Null, absence, ..Self::in_step(keys) }
    }

    /// A local object that was never ours.
    fn foreign_local(mut self) -> Self {
        let metadata = self.local["metadata"].as_object_mut().expect("a map");
        metadata.remove("annotations");
        metadata.remove("managedFields");
        self
    }

    fn owned_namespace(mut self) -> Self {
        self.namespace["metadata"]["annotations"] = json!({OWNER: "orders"});
        self.namespace_is_ours = true;
        self
    }

    fn observed(&self) -> Observed {
        Observed {
            pair: PairKey::alike("team", "orders"),
            remote: shared(&self.remote).map_or_else(|| Remote::Absent(self.absence.clone()), Remote::Present),
            local: shared(&self.local),
            local_status_unknown: false,
            remote_generation_unknown: false,
            namespace: match shared(&self.namespace) {
                Some(object) => Namespace::Present { object, ours: self.namespace_is_ours },
                None => Namespace::Missing,
            },
            namespace_in_use: self.namespace_in_use,
            namespace_end_is_awaited: self.namespace_end_is_awaited,
            namespace_is_of_another: self.namespace_is_of_another,
            local_was_there: self.local_was_there,
            source_lives_at: self.source_lives_at.clone(),
            clusters: Clusters::default(),
            permitted: self.permitted,
            secrets: self.secrets.clone(),
            server_result: self.server_result.clone(),
            contended: Vec::new(),
        }
    }

    fn next(&self) -> Next {
        next::next(&self.observed(), &self.policy)
    }

    /// The change that is asked for.
    fn change(&self) -> crate::resource_sync::plan::patch::LocalChange {
        match self.next() {
            Next::Do(Step::PatchLocal(change)) => change,
            other => panic!("a patch of the local object was expected, not {other:?}"),
        }
    }
}

fn terminating(value: &mut Value) {
    value["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
}
