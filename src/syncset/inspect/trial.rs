//! What a syncset would do on one cluster, found out with `dryRun=All`: nothing that is sent here changes anything.
//!
//! An object counts as changed if its labels, its annotations or the entry of a manager in its `managedFields` would be others. What is
//! applied is compared by the entry of our manager: the server gives it the time of the write if that changes anything, also a value alone.
//! Times are whole seconds, so that within a second after another write of ours a changed value is not seen ([`Tried::may_be_outdated`]),
//! and the object has to be tried again. What is patched is tried by a manager that owns nothing: it has an entry if anything changes.
//! Of an object that was created without any field the API server notes no managers until it is applied, so that no patch of a value is seen.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::conflict::{conflicts, told};
use super::fields::taken;
use crate::cluster::{Cluster, Error, Kind, KindError, KindId, ManagedFields, Metadata, ObjectKey, Request, full_text};
use crate::syncset::plan::name::ObjectRef;
use crate::syncset::plan::object::left_alone;
use crate::syncset::plan::ownership::without;
use crate::syncset::plan::pass::{Manager, Release, Seen, telling};
use crate::syncset::plan::render::DEFAULT_NAMESPACE;
use crate::syncset::plan::rows::AppliedRow;
use crate::syncset::plan::seen::{seen, taken_over};
use crate::syncset::plan::snapshot::Snapshot;
use crate::syncset::plan::spec::{Behavior, Desired, DesiredPatch, PatchType, Position, Rendered, Rendering};
use crate::syncset::plan::unions;
use crate::syncset::plan::wanted::{Scope, Wanted, group_defined_by, is_namespace};
use crate::syncset::run::store::{PassStore, StoreError};
use crate::syncset::run::work::{By, ObjectOnCluster, check_merge};

/// The code of a kind without strategic merge patches.
const UNSUPPORTED_PATCH: u16 = 415;
/// The code of an object that is not valid.
const INVALID: u16 = 422;

/// The manager of patches that are tried.
const TRIED_BY: &str = "towline-diff";
/// How far the clock of a cluster may be behind ours, so that an object that seems to be written so long ago may have been written just now.
const CLOCKS_DIFFER_BY: Duration = Duration::from_mins(5);

/// What was found out about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tried {
    pub(super) outcome: DryRun,
    /// Whether a changed value may have been missed, since the object was written in the same second. It is not if the object is tried
    /// again a second after this.
    pub(super) may_be_outdated: bool,
}

impl From<DryRun> for Tried {
    fn from(outcome: DryRun) -> Self {
        Self { outcome, may_be_outdated: false }
    }
}

/// What would become of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DryRun {
    Create,
    Change,
    /// It can't be changed, and would be deleted and created again.
    Recreate,
    /// It would stay as it is.
    Same,
    /// Fields would be taken from other managers: which, and from whom.
    Conflict(Vec<String>),
    /// It can't be sent, or would be refused.
    Failed(String),
}

/// What a syncset itself brings, and which therefore need not be there.
#[derive(Debug, Default, PartialEq, Eq)]
struct Brought {
    /// With their places, since an object may need one that is sent before it.
    objects: BTreeMap<ObjectRef, Position>,
    namespaces: BTreeSet<String>,
    groups: BTreeSet<String>,
}

impl Brought {
    fn by(rendered: &Rendered) -> Self {
        let mut brought = Self::default();
        for desired in ready(rendered) {
            if is_namespace(&desired.object) {
                brought.namespaces.insert(desired.object.name.clone());
            }
            brought.groups.extend(group_defined_by(&desired.object).map(str::to_owned));
            brought.objects.insert(desired.object.clone(), desired.place);
        }
        brought
    }

    /// Whether it brings what a patch is for. A patch that names no namespace is for one in `default`, if its kind has namespaces.
    fn has_patched(&self, object: &ObjectRef) -> bool {
        let is_without = |brought: &ObjectRef| {
            brought.namespace.is_empty() && object.namespace == DEFAULT_NAMESPACE && {
                (&brought.group, &brought.kind, &brought.name) == (&object.group, &object.kind, &object.name)
            }
        };
        self.objects.contains_key(object) || self.objects.keys().any(is_without)
    }

    /// Whether it brings a `ServiceAccount` before this place. Each namespace gets one of the name `default`.
    fn has_account(&self, account: &ObjectRef, place: Position) -> bool {
        let is_default = account.name == "default" && self.namespaces.contains(&account.namespace);
        is_default || self.objects.get(account).is_some_and(|brought| *brought < place)
    }
}

/// The objects of a syncset that render.
pub(super) fn ready(rendered: &Rendered) -> impl Iterator<Item = &Desired> {
    rendered.resources.iter().chain(&rendered.secrets).filter_map(|rendering| match rendering {
        Rendering::Ready(desired) => Some(desired),
        Rendering::Failed { .. } => None,
    })
}

/// The kinds that a syncset needs.
pub(super) fn kinds(rendered: &Rendered) -> BTreeSet<KindId> {
    let of_patches = rendered.patches.iter().filter_map(|rendering| match rendering {
        Rendering::Ready(patch) => Some(KindId::of(&patch.api_version, &patch.object.kind)),
        Rendering::Failed { .. } => None,
    });
    let of_objects = ready(rendered).map(|desired| KindId::of(&desired.api_version, &desired.object.kind));
    of_objects.chain(of_patches).collect()
}

/// What decides whose an object is, beside the object itself: what a pass would know.
#[derive(Clone, Copy)]
pub(super) struct Known<'k> {
    pub(super) store: &'k PassStore,
    pub(super) snapshot: &'k Snapshot,
    /// All rows of the cluster.
    pub(super) applied: &'k [AppliedRow],
    pub(super) wanted: &'k Wanted,
}

impl Known<'_> {
    fn rows_of(&self, object: &ObjectRef) -> impl Iterator<Item = &AppliedRow> {
        self.applied.iter().filter(move |row| row.object == *object)
    }

    /// Whether this is not the cluster to which the document led first, as far as it was found out.
    fn is_elsewhere(&self) -> bool {
        self.snapshot
            .cluster_row
            .as_ref()
            .is_some_and(|cluster_row| cluster_row.is_elsewhere(cluster_row.identity.as_deref()))
    }

    /// An object that is there, and whether it existed before us.
    async fn seen(&self, object: &ObjectRef, before: &Metadata) -> Result<(Seen, bool), StoreError> {
        let mut seen = seen(before);
        if let Some(syncset) = seen.marks.syncset {
            seen.of_this_hub = self.store.knows(self.snapshot, syncset).await?;
        }
        let is_adopted = match telling(self.rows_of(object)) {
            // A pass relies on its row as long as the UID is the same.
            Some(row) if row.uid.as_ref() == Some(&seen.uid) => row.adopted,
            Some(row) => seen.is_adopted(row.uid.as_deref(), row.adopted, self.is_elsewhere()),
            None => seen.is_adopted(None, false, self.is_elsewhere()),
        };
        Ok((seen, is_adopted))
    }

    /// Whether a pass may delete an object to create it again.
    fn may_delete(&self, object: &ObjectRef, seen: &Seen, is_adopted: bool) -> bool {
        let is_wanted = |other: &ObjectRef| other != object && self.wanted.winner(other).is_some();
        self.rows_of(object).any(|row| {
            let row = AppliedRow { uid: Some(seen.uid.clone()), adopted: is_adopted, ..row.clone() };
            Release::of(&row, seen, self.applied, is_wanted).is_none()
        })
    }
}

pub(super) struct Trial<'k> {
    cluster: Cluster,
    kinds: &'k BTreeMap<KindId, Result<Kind, KindError>>,
    brought: Brought,
    behavior: Behavior,
}

impl<'k> Trial<'k> {
    /// On this cluster, which serves these kinds.
    pub(super) fn new(
        cluster: Cluster,
        kinds: &'k BTreeMap<KindId, Result<Kind, KindError>>,
        rendered: &Rendered,
        behavior: Behavior,
    ) -> Self {
        Self { cluster, kinds, brought: Brought::by(rendered), behavior }
    }

    /// Whether objects of a kind have namespaces.
    pub(super) fn scope(&self, object: &ObjectRef) -> Scope {
        let mut kinds = self.kinds.iter().filter(|(id, _)| id.group == object.group && id.kind == object.kind);
        match kinds.find_map(|(_, kind)| kind.as_ref().ok()) {
            Some(kind) if kind.namespaced => Scope::Namespaced,
            Some(_) => Scope::Cluster,
            None => Scope::Unknown,
        }
    }

    /// What would become of an object. An error says that the cluster does not answer.
    pub(super) async fn object(&self, desired: &Desired, known: Known<'_>) -> Result<Tried, Error> {
        let (kind, key) = match self.place(&desired.api_version, &desired.object) {
            Ok(place) => place,
            Err(NoPlace::Unread(error)) => return settled(error).map(Tried::from),
            Err(NoPlace::Unserved(_)) if self.brought.groups.contains(&desired.object.group) => {
                return Ok(DryRun::Create.into());
            }
            Err(NoPlace::Unserved(text)) => return Ok(DryRun::Failed(text).into()),
        };
        let desired = if kind.namespaced { desired.clone() } else { desired.clone().without_namespace() };
        let before = match self.cluster.read_metadata(kind, &key).await {
            Ok(before) => before,
            Err(error) => return settled(error).map(Tried::from),
        };
        let found = match &before {
            None => None,
            Some(before) => match known.seen(&desired.object, before).await {
                Ok(found) => Some(found),
                Err(error) => return Ok(DryRun::Failed(full_text(&error)).into()),
            },
        };
        let is_adopted = found.as_ref().is_some_and(|(_, is_adopted)| *is_adopted);
        // As a pass marks it.
        let mark = match self.behavior {
            Behavior::CreateOnly => None,
            _ if desired.may_adopt && !known.is_elsewhere() => Some(false),
            _ => is_adopted.then_some(true),
        };
        let may_recreate = desired.may_recreate
            && found.is_some_and(|(seen, is_adopted)| known.may_delete(&desired.object, &seen, is_adopted));
        let whole = desired.sent(mark, None);
        let place = ObjectOnCluster { cluster: &self.cluster, kind, key: &key, object: &desired.object };
        let is_brought = |account: &ObjectRef| self.brought.has_account(account, desired.place);
        if let Err(error) = place.check_account(&whole, is_brought).await {
            return settled(error).map(Tried::from);
        }
        let manager = if self.behavior == Behavior::Apply { Manager::Apply } else { Manager::Update };
        let pointers = left_alone(&whole);
        let mut body = Cow::Borrowed(&*whole);
        if before.is_some() && !pointers.is_empty() {
            body = Cow::Owned(without(&whole, &pointers));
        }
        let apply = || Request::apply(kind, &key, &body).by(Manager::Apply.as_str()).tried();
        let Some(before) = before else {
            let request = match self.behavior {
                Behavior::Apply => apply(),
                _ => Request::create(kind, &key, &unions::without_nulls(&body).0).by(Manager::Update.as_str()).tried(),
            };
            let created = match self.cluster.change(request).await {
                Ok(created) => match place.given_up(manager, &pointers, &whole, &created.body).await {
                    Ok(_) => DryRun::Create,
                    Err(error) => settled(error)?,
                },
                Err(error) if self.is_explained(&error, &key) => DryRun::Create,
                Err(error) => settled(error)?,
            };
            return Ok(created.into());
        };
        if before.deletion.is_some() {
            return Ok(DryRun::Failed("it is being deleted".to_owned()).into());
        }
        if self.behavior != Behavior::CreateOnly
            && let Err(error) = place.given_up(manager, &pointers, &whole, &before).await
        {
            return settled(error).map(Tried::from);
        }
        let outcome = match self.behavior {
            Behavior::CreateOnly => DryRun::Same,
            Behavior::CreateOrUpdate => {
                let as_merge = check_merge(&pointers, &whole);
                let patched = patched(place, &body, PatchType::Strategic, as_merge).await;
                if is_invalid(&patched) && may_recreate && self.is_valid_as_new(kind, &key, &desired).await? {
                    return Ok(DryRun::Recreate.into());
                }
                compared(&before, patched, is_same_patched)?
            }
            Behavior::Apply => match self.cluster.change(apply()).await {
                Err(Error::Conflict { message, exists: false }) => {
                    let forced = self.cluster.change(apply().forced()).await.map(|forced| forced.body);
                    let owners = owners(&message, &body, &before, &taken_over(&before, !is_adopted));
                    match compared(&before, forced, is_same_applied)? {
                        DryRun::Failed(text) => DryRun::Failed(text),
                        outcome if owners.is_empty() => outcome,
                        _ => DryRun::Conflict(owners),
                    }
                }
                Err(error @ Error::Rejected { code: INVALID, .. }) => match refused(place, &body, error).await? {
                    DryRun::Failed(_) if may_recreate && self.is_valid_as_new(kind, &key, &desired).await? => {
                        return Ok(DryRun::Recreate.into());
                    }
                    outcome => outcome,
                },
                applied => {
                    let outcome = compared(&before, applied.map(|applied| applied.body), is_same_applied)?;
                    let may_be_outdated = outcome == DryRun::Same && was_applied_lately(&before, Timestamp::now());
                    return Ok(Tried { outcome, may_be_outdated });
                }
            },
        };
        Ok(outcome.into())
    }

    /// Whether an object that can't be changed would be valid as a new one.
    async fn is_valid_as_new(&self, kind: &Kind, key: &ObjectKey, desired: &Desired) -> Result<bool, Error> {
        let plain = unions::without_nulls(&desired.body).0;
        let create = Request::create(kind, key, &plain).by(Manager::Update.as_str()).tried();
        match self.cluster.change(create).await {
            Err(Error::Conflict { exists: true, .. }) => Ok(true),
            Err(error) if says_nothing_of_objects(&error) => Err(error),
            _ => Ok(false),
        }
    }

    /// What would become of an object that is patched.
    pub(super) async fn patch(&self, patch: &DesiredPatch) -> Result<DryRun, Error> {
        let is_brought = self.brought.has_patched(&patch.object);
        let (kind, key) = match self.place(&patch.api_version, &patch.object) {
            Ok(place) => place,
            Err(_) if is_brought => return Ok(DryRun::Same),
            Err(NoPlace::Unread(error)) => return settled(error),
            Err(NoPlace::Unserved(text)) => return Ok(DryRun::Failed(text)),
        };
        match self.cluster.read_metadata(kind, &key).await {
            Ok(Some(before)) => {
                let place = ObjectOnCluster { cluster: &self.cluster, kind, key: &key, object: &patch.object };
                let patched = patched(place, &patch.body, patch.patch_type, Ok(())).await;
                compared(&before, patched, is_same_patched)
            }
            Ok(None) if is_brought => Ok(DryRun::Same),
            Ok(None) => Ok(DryRun::Failed("there is no such object to patch".to_owned())),
            Err(error) => settled(error),
        }
    }

    fn place(&self, api_version: &str, object: &ObjectRef) -> Result<(&Kind, ObjectKey), NoPlace> {
        let id = KindId::of(api_version, &object.kind);
        match self.kinds.get(&id) {
            Some(Ok(kind)) if kind.namespaced && object.namespace.is_empty() => {
                Err(NoPlace::Unserved("the kind has namespaces, and none is given".to_owned()))
            }
            Some(Ok(kind)) => {
                let namespace = if kind.namespaced { object.namespace.as_str() } else { "" };
                Ok((kind, ObjectKey::new(namespace, object.name.as_str())))
            }
            Some(Err(KindError::Unread(error))) => Err(NoPlace::Unread(error.clone())),
            Some(Err(unserved)) => Err(NoPlace::Unserved(unserved.to_string())),
            None => Err(NoPlace::Unserved(format!("the cluster does not serve {id}"))),
        }
    }

    /// Whether an object is refused only because its namespace is not there yet.
    fn is_explained(&self, error: &Error, key: &ObjectKey) -> bool {
        let is_missing = matches!(error, Error::NotFound { .. } | Error::NotServed { .. });
        is_missing && self.brought.namespaces.contains(key.namespace.as_ref())
    }
}

/// Tries a patch, in place of a strategic one also a merge patch, unless that is refused.
async fn patched(
    place: ObjectOnCluster<'_>,
    body: &serde_json::Value,
    patch_type: PatchType,
    as_merge: Result<(), Error>,
) -> Result<Metadata, Error> {
    let by = By { manager: TRIED_BY, is_tried: true };
    let patched = match place.patch(body, patch_type, by).await {
        Err(Error::Rejected { code: UNSUPPORTED_PATCH, .. }) if patch_type == PatchType::Strategic => {
            as_merge?;
            place.patch(body, PatchType::Merge, by).await
        }
        patched => patched,
    };
    patched.map(|changed| changed.body)
}

/// What a refusal of an apply means: a pass clears what the object can't go along with, if that is all there is to it.
async fn refused(place: ObjectOnCluster<'_>, body: &serde_json::Value, error: Error) -> Result<DryRun, Error> {
    let cleared = unions::cleared(place.object, body);
    if cleared.is_none() && unions::without_nulls(body).1.is_empty() {
        return settled(error);
    }
    let body = cleared.as_ref().unwrap_or(body);
    match patched(place, body, PatchType::Strategic, Ok(())).await {
        Ok(_) => Ok(DryRun::Change),
        Err(_) => settled(error),
    }
}

/// Why it is not known where an object is.
enum NoPlace {
    Unread(Error),
    Unserved(String),
}

/// What a refusal says of the object; an error if it says something about the cluster.
fn settled(error: Error) -> Result<DryRun, Error> {
    if says_nothing_of_objects(&error) { Err(error) } else { Ok(DryRun::Failed(error.message())) }
}

/// Whether it is the cluster that does not answer, or not to us.
pub(super) fn says_nothing_of_objects(error: &Error) -> bool {
    error.is_unreachable() || matches!(error, Error::Unauthorized { .. })
}

/// Whether a change was refused as invalid.
fn is_invalid<T>(changed: &Result<T, Error>) -> bool {
    matches!(changed, Err(Error::Rejected { code: INVALID, .. }))
}

fn compared(
    before: &Metadata,
    after: Result<Metadata, Error>,
    is_same: fn(&Metadata, &Metadata) -> bool,
) -> Result<DryRun, Error> {
    match after {
        Ok(after) if is_same(before, &after) => Ok(DryRun::Same),
        Ok(_) => Ok(DryRun::Change),
        Err(error) => settled(error),
    }
}

/// Whether an apply by our manager has changed nothing, if it was not made within a second after another one.
fn is_same_applied(before: &Metadata, after: &Metadata) -> bool {
    before.labels == after.labels && before.annotations == after.annotations && applied(before) == applied(after)
}

/// Whether a patch by a manager that owned nothing has changed nothing: it owns nothing then, and nobody has lost a field.
fn is_same_patched(before: &Metadata, after: &Metadata) -> bool {
    let has = |metadata: &Metadata, entry: &ManagedFields| metadata.managers.contains(entry);
    let are_same =
        before.managers.len() == after.managers.len() && after.managers.iter().all(|entry| has(before, entry));
    before.labels == after.labels && before.annotations == after.annotations && are_same
}

/// What our manager owns by applies.
fn applied(metadata: &Metadata) -> Option<&ManagedFields> {
    metadata.managers.iter().find(|entry| {
        entry.manager == Manager::Apply.as_str() && entry.operation == "Apply" && entry.subresource.is_empty()
    })
}

/// Whether the object may have been applied in this second of the cluster's clock.
fn was_applied_lately(before: &Metadata, now: Timestamp) -> bool {
    let Some(entry) = applied(before) else { return false };
    let time = entry.time.as_ref().and_then(|time| time.parse::<Timestamp>().ok());
    time.is_none_or(|time| now.duration_since(time) < CLOCKS_DIFFER_BY.try_into().unwrap_or_default())
}

/// The fields that an apply would take, each with its owner, but those of managers whose fields are ours. About a Secret the message
/// names no managers.
fn owners(message: &str, body: &serde_json::Value, before: &Metadata, ours: &[&str]) -> Vec<String> {
    let is_other = |manager: &str| !ours.contains(&manager);
    let named = conflicts(message);
    if !named.is_empty() {
        let others = named.iter().filter(|(manager, _)| is_other(manager));
        return others.map(|(manager, fields)| told(fields, manager)).collect();
    }
    let taken = taken(body, &before.managers, Manager::Apply.as_str());
    let others = taken.iter().filter(|taken| is_other(&taken.manager));
    others.map(|taken| told(&taken.fields, &taken.manager)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn metadata(labels: &Value, managers: &Value) -> Metadata {
        let object = json!({"metadata": {"name": "site", "namespace": "team", "uid": "u", "resourceVersion": "7",
            "labels": labels, "managedFields": managers}});
        serde_json::from_value(object).expect("metadata")
    }

    fn entry(manager: &str, operation: &str, time: &str) -> Value {
        json!({"manager": manager, "operation": operation, "apiVersion": "v1", "time": time, "fieldsV1": {"f:data": {"f:a": {}}}})
    }

    #[test]
    fn an_account_is_brought_before_what_comes_after_it_or_with_its_namespace() {
        let account = |namespace: &str, name: &str| ObjectRef {
            group: String::new(),
            kind: "ServiceAccount".to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        let brought = Brought {
            objects: BTreeMap::from([(account("team", "agent"), Position::Resource(1))]),
            namespaces: BTreeSet::from(["new".to_owned()]),
            ..Brought::default()
        };
        let has = |namespace: &str, name: &str, place| brought.has_account(&account(namespace, name), place);
        assert!(!has("team", "agent", Position::Resource(0)) && has("team", "agent", Position::Resource(2)));
        assert!(has("team", "agent", Position::Secret(0)) && !has("other", "agent", Position::Secret(0)));
        assert!(has("new", "default", Position::Resource(0)) && !has("team", "default", Position::Resource(2)));
        assert!(!has("new", "agent", Position::Resource(2)));
    }

    #[test]
    fn an_object_changes_with_our_entry_and_its_labels_and_not_with_those_of_others() {
        let ours = |time: &str| json!([entry("towline", "Apply", time), entry("hpa", "Update", "t0")]);
        let before = metadata(&json!({"a": "b"}), &ours("t1"));
        let is_same = |after: &Metadata| is_same_applied(&before, after);
        assert!(is_same(&metadata(&json!({"a": "b"}), &json!([entry("towline", "Apply", "t1")]))));
        assert!(!is_same(&metadata(&json!({"a": "b"}), &ours("t2"))));
        assert!(!is_same(&metadata(&json!({"a": "c"}), &ours("t1"))));
        assert!(!is_same(&metadata(&json!({"a": "b"}), &json!([entry("towline", "Update", "t1")]))));
    }

    #[test]
    fn a_patch_changes_an_object_if_who_tries_it_owns_a_field_then_or_somebody_has_lost_one() {
        let theirs = [entry("towline-update", "Update", "t1"), entry("hpa", "Update", "t0")];
        let before = metadata(&json!({"a": "b"}), &json!(theirs));
        let is_same = |labels: Value, managers: Value| is_same_patched(&before, &metadata(&labels, &managers));
        assert!(is_same(json!({"a": "b"}), json!([theirs[1], theirs[0]])));
        assert!(!is_same(json!({"a": "c"}), json!(theirs)));
        assert!(!is_same(json!({"a": "b"}), json!([theirs[0], theirs[1], entry(TRIED_BY, "Update", "t1")])));
        let mut less = theirs.clone();
        less[1]["fieldsV1"] = json!({});
        assert!(!is_same(json!({"a": "b"}), json!(less)));
        assert!(!is_same(json!({"a": "b"}), json!([theirs[0]])));
    }

    #[test]
    fn what_was_applied_in_the_last_minutes_or_at_an_unknown_time_may_have_been_applied_just_now() {
        let now: Timestamp = "2026-11-24T02:10:00Z".parse().expect("a time");
        for (manager, time, expected) in [
            ("towline", "2026-11-24T02:10:00Z", true),
            ("towline", "2026-11-24T02:05:01Z", true),
            ("towline", "2026-11-24T02:05:00Z", false),
            ("towline", "2026-11-24T03:00:00Z", true),
            ("towline", "?", true),
            ("hpa", "2026-11-24T02:10:00Z", false),
        ] {
            let before = metadata(&json!({}), &json!([entry(manager, "Apply", time)]));
            assert_eq!(was_applied_lately(&before, now), expected, "{manager} {time}");
        }
    }

    #[test]
    fn a_conflict_about_a_secret_names_the_managers_of_the_fields_that_we_set() {
        let before = metadata(&json!({}), &json!([entry("kubectl-edit", "Update", "t1")]));
        let body = json!({"data": {"a": "canary", "b": "canary"}});
        assert_eq!(owners("HTTP 409 Conflict: .data.a", &body, &before, &[]), [".data.a belongs to kubectl-edit"]);
        let message = "Apply failed with 1 conflict: conflict with \"hpa\" using v1: .data.b";
        assert_eq!(owners(message, &body, &before, &[]), [".data.b belongs to hpa"]);
    }

    #[test]
    fn fields_that_a_pass_takes_over_are_no_conflict() {
        let last_applied = json!({"f:metadata": {"f:annotations": {"f:kubectl.kubernetes.io/last-applied-configuration": {}}},
            "f:data": {"f:a": {}}});
        let mut of_hive = entry("hive6-clustersync", "Update", "t1");
        of_hive["fieldsV1"] = last_applied;
        let managers = json!([entry("towline-update", "Update", "t1"), entry("hpa", "Update", "t1"), of_hive]);
        let before = metadata(&json!({}), &managers);
        let body = json!({"data": {"a": "x"}});
        let message = "Apply failed with 3 conflicts: conflict with \"towline-update\" using v1: .data.a\n\
             conflict with \"hive6-clustersync\" using v1: .data.a\nconflict with \"hpa\" using v1: .data.a";
        let owners = |message: &str, is_ours| owners(message, &body, &before, &taken_over(&before, is_ours));
        for message in [message, "HTTP 409 Conflict"] {
            assert_eq!(owners(message, true), [".data.a belongs to hpa"]);
            let mut of_others = owners(message, false);
            of_others.sort();
            assert_eq!(of_others, [".data.a belongs to hive6-clustersync", ".data.a belongs to hpa"]);
        }
    }
}
