//! Objects of the kinds whose health is assessed, with statuses as their controllers write them, whole or in part.

use integration::soak::Random;
use serde_json::{Map, Value, json};

/// Group and kind, and the version by which manifests name them.
pub(crate) const KINDS: [(&str, &str, &str); 11] = [
    ("apps", "Deployment", "apps/v1"),
    ("apps", "StatefulSet", "apps/v1"),
    ("apps", "DaemonSet", "apps/v1"),
    ("apps", "ReplicaSet", "apps/v1"),
    ("batch", "Job", "batch/v1"),
    ("", "Pod", "v1"),
    ("", "Service", "v1"),
    ("", "PersistentVolumeClaim", "v1"),
    ("apiextensions.k8s.io", "CustomResourceDefinition", "apiextensions.k8s.io/v1"),
    ("policy", "PodDisruptionBudget", "policy/v1"),
    ("db.example.com", "Postgres", "db.example.com/v1"),
];

pub(crate) struct Draw(Random);

impl Draw {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Random::new(seed))
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.0.index(of.len())]
    }

    fn mostly(&mut self) -> bool {
        self.0.below(8) > 0
    }

    /// Counts of replicas, all equal more often than by chance.
    fn counts(&mut self, status: &mut Map<String, Value>, wanted: i64, fields: &[&str]) {
        for field in fields {
            let count = if self.mostly() { wanted } else { i64::try_from(self.0.below(4)).unwrap_or_default() };
            if self.mostly() {
                status.insert((*field).to_owned(), json!(count));
            }
        }
    }

    fn conditions(&mut self, status: &mut Map<String, Value>, kinds: &[(&str, &[&str])]) {
        let mut conditions = Vec::new();
        for (kind, reasons) in kinds {
            if self.0.below(10) < 6 {
                let status = if kind.starts_with(['S', 'F', 'R']) && *kind != "Ready" {
                    self.one(&["True", "False", "False", "False", "Unknown"])
                } else {
                    self.one(&["True", "True", "True", "False", "Unknown"])
                };
                conditions
                    .push(json!({"type": kind, "status": status, "reason": self.one(reasons), "message": "so it is"}));
            }
        }
        if !conditions.is_empty() || self.mostly() {
            status.insert("conditions".to_owned(), conditions.into());
        }
    }

    /// Which kind of [`KINDS`], and an object of it.
    pub(crate) fn object(&mut self) -> (usize, Value) {
        let at = self.0.index(KINDS.len());
        let (_, kind, api_version) = KINDS[at];
        let (mut spec, mut status) = (json!({}), Map::new());
        let wanted = i64::try_from(self.0.below(3)).unwrap_or_default();
        if self.mostly() && kind != "Pod" {
            spec["replicas"] = json!(wanted);
        }
        let wanted = if spec["replicas"].is_null() { 1 } else { wanted };
        self.fill(kind, wanted, &mut spec, &mut status);
        let mut metadata =
            json!({"name": "a", "namespace": "b", "generation": 3, "creationTimestamp": "2026-01-01T00:00:00Z"});
        if self.mostly() {
            status.insert("observedGeneration".to_owned(), json!(self.one(&[3, 3, 3, 3, 2])));
        }
        if self.0.below(20) == 0 {
            metadata["deletionTimestamp"] = json!("2026-01-02T00:00:00Z");
        }
        (at, json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec, "status": status}))
    }

    /// What the controller of a kind, and who orders an object of it, write.
    fn fill(&mut self, kind: &str, wanted: i64, spec: &mut Value, status: &mut Map<String, Value>) {
        match kind {
            "Deployment" => {
                self.counts(status, wanted, &["replicas", "updatedReplicas", "readyReplicas", "availableReplicas"]);
                let reasons: &[&str] = &[
                    "NewReplicaSetAvailable",
                    "NewReplicaSetAvailable",
                    "ReplicaSetUpdated",
                    "ProgressDeadlineExceeded",
                ];
                self.conditions(status, &[("Progressing", reasons), ("Available", &["MinimumReplicasAvailable"])]);
                spec["progressDeadlineSeconds"] =
                    self.one(&[Some(600), Some(600), Some(i32::MAX), None]).map_or(Value::Null, Value::from);
            }
            "StatefulSet" => {
                self.counts(status, wanted, &["replicas", "readyReplicas", "currentReplicas", "updatedReplicas"]);
                for field in ["currentRevision", "updateRevision"] {
                    status.insert(field.to_owned(), json!(self.one(&["r1", "r1", "r1", "r2"])));
                }
                match self.0.below(5) {
                    0 => spec["updateStrategy"] = json!({"type": "OnDelete"}),
                    1 => {
                        spec["updateStrategy"] =
                            json!({"type": "RollingUpdate", "rollingUpdate": {"partition": self.0.below(4)}});
                    }
                    _ => {}
                }
            }
            "DaemonSet" => self.counts(
                status,
                wanted,
                &[
                    "desiredNumberScheduled",
                    "currentNumberScheduled",
                    "updatedNumberScheduled",
                    "numberAvailable",
                    "numberReady",
                ],
            ),
            "ReplicaSet" => {
                self.counts(
                    status,
                    wanted,
                    &["replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas"],
                );
                self.conditions(status, &[("ReplicaFailure", &["FailedCreate"])]);
            }
            "Job" => {
                self.conditions(
                    status,
                    &[("Failed", &["BackoffLimitExceeded"]), ("Complete", &["CompletionsReached"])],
                );
                status.insert("startTime".to_owned(), json!("2026-01-01T00:00:00Z"));
                if self.0.below(5) == 0 {
                    spec["suspend"] = json!(true);
                }
            }
            "Pod" => {
                status.insert(
                    "phase".to_owned(),
                    json!(self.one(&["Pending", "Running", "Running", "Succeeded", "Failed"])),
                );
                self.conditions(
                    status,
                    &[("Ready", &["PodCompleted", "ContainersNotReady"]), ("PodScheduled", &["Unschedulable"])],
                );
                let state = self.one(&["running", "waiting"]);
                let reason = self.one(&["CrashLoopBackOff", "ContainerCreating"]);
                let list = self.one(&["containerStatuses", "initContainerStatuses"]);
                status.insert(list.to_owned(), json!([{"name": "main", "state": {state: {"reason": reason}}}]));
            }
            "Service" => {
                spec["type"] = json!(self.one(&["ClusterIP", "LoadBalancer"]));
                spec["clusterIP"] = json!("10.0.0.1");
                if self.0.below(2) == 0 {
                    status.insert("loadBalancer".to_owned(), json!({"ingress": [{"ip": "192.0.2.1"}]}));
                }
            }
            "PersistentVolumeClaim" => {
                status.insert("phase".to_owned(), json!(self.one(&["Bound", "Pending", "Lost"])));
            }
            "CustomResourceDefinition" => {
                let established: &[&str] = &["InitialNamesAccepted", "Installing", "NotAccepted"];
                self.conditions(status, &[("NamesAccepted", &["NoConflicts"]), ("Established", established)]);
            }
            "PodDisruptionBudget" => self.counts(status, wanted, &["currentHealthy", "desiredHealthy"]),
            _ => {
                self.conditions(status, &[("Stalled", &["BadSpec"]), ("Reconciling", &["Working"])]);
                let ready = self.one(&["True", "True", "False", "Unknown"]);
                let conditions = status.entry("conditions").or_insert_with(|| json!([]));
                if let Value::Array(conditions) = conditions {
                    conditions.push(json!({"type": "Ready", "status": ready, "reason": "So", "message": "so it is"}));
                }
            }
        }
    }
}
