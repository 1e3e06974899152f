//! Revisions of releases, by the labels that Helm gives the objects that it stores them in.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::cluster::{Object, ObjectKey, Projection};

/// Which objects store releases.
pub(in crate::inventory) const OWNER: &str = "owner=helm";
/// Which Secrets do. `ConfigMap`s have no type.
pub(in crate::inventory) const TYPE: &str = "type=helm.sh/release.v1";
/// The beginning of the names of these objects, before the release's name.
const PREFIX: &str = "sh.helm.release.v1.";
/// The labels that are read.
const NAME: &str = "name";
const STATUS: &str = "status";
const VERSION: &str = "version";

/// The status of a revision, as far as reports depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::inventory) enum Stage {
    Deployed,
    Failed,
    /// Helm is working on it, or was interrupted there: `pending-…`, `uninstalling`.
    UnderWay,
    /// It is uninstalled, and its history was kept.
    Uninstalled,
    /// `superseded`, `unknown`, or what no Helm writes: it is no newest revision for long.
    Other,
}

impl Stage {
    fn of(label: &str) -> Self {
        match label {
            "deployed" => Self::Deployed,
            "failed" => Self::Failed,
            "uninstalling" => Self::UnderWay,
            "uninstalled" => Self::Uninstalled,
            label if label.starts_with("pending-") => Self::UnderWay,
            _ => Self::Other,
        }
    }

    /// As Helm writes it.
    pub(in crate::inventory) fn as_str(self) -> &'static str {
        match self {
            Self::Deployed => "deployed",
            Self::Failed => "failed",
            Self::UnderWay => "pending",
            Self::Uninstalled => "uninstalled",
            Self::Other => "unknown",
        }
    }

    /// By what [`Self::as_str`] has written.
    pub(in crate::inventory) fn parse(text: &str) -> Self {
        Self::of(text)
    }

    /// Whether a release is reported whose newest revision has it.
    pub(in crate::inventory) fn is_reported(self) -> bool {
        matches!(self, Self::Deployed | Self::Failed)
    }
}

/// A revision, as the watch shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::inventory) struct Revision {
    pub(in crate::inventory) number: u64,
    /// Its status.
    pub(in crate::inventory) stage: Stage,
    /// The object that stores it. Its namespace need not be the release's.
    pub(in crate::inventory) object: ObjectKey,
    /// The version of that object. A release that is replaced by another one has another.
    pub(in crate::inventory) version: Arc<str>,
}

/// Drops what is not read of these objects.
pub(in crate::inventory) fn projection() -> Projection {
    Arc::new(|object| {
        object.annotations.clear();
        object.finalizers.clear();
        object.owned = Vec::new();
        object.controller = None;
        object.labels.retain(|label, _| [NAME, STATUS, VERSION].contains(&&**label));
    })
}

/// The release and the revision that an object stores. None for an object that only looks so.
fn read(object: &Object) -> Option<(&Arc<str>, Revision)> {
    let label = |label| object.labels.get(label);
    let number = label(VERSION)?.parse().ok()?;
    let stage = Stage::of(label(STATUS)?);
    let version = Arc::clone(&object.resource_version);
    Some((label(NAME)?, Revision { number, stage, object: object.key.clone(), version }))
}

/// The revisions of a release that matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::inventory) struct Revisions {
    pub(in crate::inventory) newest: Option<Revision>,
    /// The newest one that is deployed or has failed: while Helm works on a newer one, this one runs.
    pub(in crate::inventory) reported: Option<Revision>,
}

impl Revisions {
    fn add(&mut self, revision: Revision) {
        let is_newer = |known: &Option<Revision>| known.as_ref().is_none_or(|known| known.number < revision.number);
        if revision.stage.is_reported() && is_newer(&self.reported) {
            self.reported = Some(revision.clone());
        }
        if is_newer(&self.newest) {
            self.newest = Some(revision);
        }
    }
}

/// The revisions of each release in a namespace, by the release's name.
pub(in crate::inventory) fn revisions<'o>(
    objects: impl IntoIterator<Item = &'o Arc<Object>>,
) -> BTreeMap<Arc<str>, Revisions> {
    let mut found: BTreeMap<Arc<str>, Revisions> = BTreeMap::new();
    for (name, revision) in objects.into_iter().filter_map(|object| read(object)) {
        found.entry(Arc::clone(name)).or_default().add(revision);
    }
    found
}

/// The release of an object by its name, also of one that is gone: `sh.helm.release.v1.NAME.vNUMBER`.
pub(in crate::inventory) fn release_of(key: &ObjectKey) -> Option<ObjectKey> {
    let (name, _) = key.name.strip_prefix(PREFIX)?.rsplit_once(".v")?;
    Some(ObjectKey::new(Arc::clone(&key.namespace), name))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::object::Decoded;

    fn object(name: &str, number: &str, status: &str) -> Arc<Object> {
        let metadata = json!({"name": format!("{PREFIX}{name}.v{number}"), "namespace": "n", "resourceVersion": format!("9{number}"),
            "labels": {"name": name, "status": status, "version": number, "owner": "helm", "team": "canary"},
            "annotations": {"a": "canary"}});
        let mut object = serde_json::from_value::<Decoded>(json!({"metadata": metadata})).unwrap().into_object();
        projection()(&mut object);
        assert!(!format!("{object:?}").contains("canary"));
        Arc::new(object)
    }

    #[test]
    fn the_newest_revision_is_the_one_with_the_greatest_number_and_what_runs_is_the_newest_reported_one() {
        let objects = [
            object("a.b", "9", "superseded"),
            object("a.b", "10", "deployed"),
            object("a.b", "2", "failed"),
            object("c", "1", "pending-install"),
            object("d", "x", "deployed"),
        ];
        let found = revisions(&objects);
        assert_eq!(found.keys().map(|name| &**name).collect::<Vec<_>>(), ["a.b", "c"]);
        let expected = Revision {
            number: 10,
            stage: Stage::Deployed,
            object: ObjectKey::new("n", "sh.helm.release.v1.a.b.v10"),
            version: "910".into(),
        };
        assert_eq!(found["a.b"], Revisions { newest: Some(expected.clone()), reported: Some(expected) });
        assert_eq!(found["c"].newest.as_ref().map(|newest| newest.stage), Some(Stage::UnderWay));
        assert_eq!(found["c"].reported, None);
        let objects =
            [object("e", "3", "pending-upgrade"), object("e", "2", "deployed"), object("e", "1", "superseded")];
        let found = &revisions(&objects)["e"];
        let numbers = [&found.newest, &found.reported].map(|of| of.as_ref().map(|revision| revision.number));
        assert_eq!(numbers, [Some(3), Some(2)]);
    }

    #[test]
    fn deployed_and_failed_revisions_are_reported() {
        for (status, expected, is_reported) in [
            ("deployed", Stage::Deployed, true),
            ("failed", Stage::Failed, true),
            ("pending-install", Stage::UnderWay, false),
            ("pending-upgrade", Stage::UnderWay, false),
            ("pending-rollback", Stage::UnderWay, false),
            ("uninstalling", Stage::UnderWay, false),
            ("uninstalled", Stage::Uninstalled, false),
            ("superseded", Stage::Other, false),
            ("unknown", Stage::Other, false),
            ("Deployed", Stage::Other, false),
        ] {
            let stage = Stage::of(status);
            assert_eq!((stage, stage.is_reported()), (expected, is_reported), "{status}");
            if matches!(stage, Stage::Deployed | Stage::Failed | Stage::Uninstalled) {
                assert_eq!((stage.as_str(), Stage::parse(stage.as_str())), (status, stage));
            }
        }
    }

    #[test]
    fn a_release_is_known_by_the_name_of_an_object_that_is_gone() {
        let of = |name: &str| release_of(&ObjectKey::new("n", name)).map(|key| key.to_string());
        assert_eq!(of("sh.helm.release.v1.keycloak.v3").as_deref(), Some("n/keycloak"));
        assert_eq!(of("sh.helm.release.v1.a.v1.b.v10").as_deref(), Some("n/a.v1.b"));
        for other in ["uuid", "sh.helm.release.v1.keycloak", "keycloak.v3"] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
