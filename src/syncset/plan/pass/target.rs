//! What a pass asks of the cluster and of the database, and what comes back.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use uuid::Uuid;

use crate::syncset::plan::name::{Digest, ObjectRef};
use crate::syncset::plan::object::{ADOPTED, MANAGED, PRUNE, SYNCSET_ID};
use crate::syncset::plan::rows::{AppliedRow, PatchedRow, ResultRow};
use crate::syncset::plan::spec::{Behavior, PatchType};

/// What is to be written to the database, in one statement and under the cluster's claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writes {
    /// Rows to insert or replace.
    pub applied: Vec<AppliedRow>,
    /// Rows to delete.
    pub forgotten: Vec<(ObjectRef, Uuid)>,
    /// Those of them whose objects were deleted, or were found to be gone when they were to be deleted.
    pub removed: Vec<(ObjectRef, Uuid)>,
    /// Patches to insert or replace.
    pub patched: Vec<PatchedRow>,
    /// Patches to delete.
    pub unpatched: Vec<(Uuid, usize)>,
    /// Results to insert or replace.
    pub results: Vec<ResultRow>,
    /// Results to delete.
    pub finished: Vec<Uuid>,
}

impl Writes {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the object of a forgotten row was deleted, or was found to be gone when it was to be deleted.
    pub fn has_removed(&self, row: &(ObjectRef, Uuid)) -> bool {
        self.removed.contains(row)
    }
}

/// A cluster and the database of the hub, as a pass needs them. Every request asks for metadata only.
pub trait Target {
    /// Why the pass has to stop: the cluster does not answer, wants fewer requests or has changed, the claim has ended, the process ends, the
    /// database has failed. What was asked was not done, or nobody knows.
    type Stop;

    /// How long ago the pass began.
    fn elapsed(&self) -> Duration;

    /// How much of that the caller has waited for its own turn: it does not count as the cluster's.
    fn waited(&self) -> Duration;

    /// Before each request: waits until the pass may send it.
    fn ready(&mut self) -> impl Future<Output = Result<(), Self::Stop>> + Send;

    /// Whether and how the cluster serves a kind, as `apps/v1`, `Deployment`. `wait`: the pass has applied its definition, so that it is worth
    /// waiting for.
    fn resolve(
        &mut self,
        api_version: &str,
        kind: &str,
        wait: bool,
    ) -> impl Future<Output = Result<Resolution, Failed<Self::Stop>>> + Send;

    /// GET of an object's metadata; none if there is no such object (404).
    fn look(&mut self, at: Address<'_>) -> impl Future<Output = Result<Option<Seen>, Failed<Self::Stop>>> + Send;

    /// One page of each of these lists, of one to four kinds, read at once. Returns what each of them has brought, in their order. It has at
    /// least one; the lists after its end were not asked for.
    fn list(
        &mut self,
        lists: &[List<'_>],
    ) -> impl Future<Output = Result<Vec<Result<Page, Refused>>, Self::Stop>> + Send;

    fn write(
        &mut self,
        at: Address<'_>,
        write: Write<'_>,
    ) -> impl Future<Output = Result<Written, Failed<Self::Stop>>> + Send;

    /// Before a deletion: whether what the pass rests on still holds.
    fn may_delete(&mut self) -> impl Future<Output = Result<bool, Self::Stop>> + Send;

    /// DELETE with Background, of the object with this UID in this `resourceVersion`. Returns what is known of the object if it is still
    /// there; none also if there is no such object any more.
    fn delete(
        &mut self,
        at: Address<'_>,
        uid: &str,
        version: &str,
    ) -> impl Future<Output = Result<Option<Ending>, Failed<Self::Stop>>> + Send;

    /// Writes to the database, before anything else is done.
    fn store(&mut self, writes: Writes) -> impl Future<Output = Result<(), Self::Stop>> + Send;

    /// An object was sent in this way by the last request, or was not. A request that is tried again in another way is none of these.
    fn sent(&mut self, behavior: Behavior, is_success: bool);
}

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failed<S> {
    /// The cluster refused it, and the pass continues.
    Refused(Refused),
    Stopped(S),
}

/// One page of the metadata of all objects of a kind that have our label.
#[derive(Clone, Copy, Debug)]
pub struct List<'a> {
    /// `apps/v1`.
    pub api_version: &'a str,
    pub kind: &'a str,
    /// From 0; a later page continues the one before it.
    pub page: usize,
    /// Which objects are compared: the others need not be answered.
    pub compared: &'a dyn Compared,
}

/// The objects that are compared with a list. On a cluster that others use, too, most of what is listed is not among them.
pub trait Compared: fmt::Debug + Sync {
    /// Whether the object of this namespace and name is among them.
    fn has(&self, namespace: &str, name: &str) -> bool;
}

/// An object, and the version under which it is addressed: `apps/v1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address<'a> {
    /// Without namespace if its kind has none.
    pub object: &'a ObjectRef,
    pub api_version: &'a str,
}

/// How an object is written.
#[derive(Clone, Copy, Debug)]
pub enum Write<'a> {
    /// Server-side apply, forced.
    Apply(&'a Value),
    /// POST.
    Create { body: &'a Value, dry_run: bool },
    /// PATCH.
    Patch { patch_type: PatchType, manager: Manager, body: &'a Value },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Whether the object did not exist before (201).
    pub created: bool,
    /// The object as it is now.
    pub seen: Seen,
}

/// In whose name fields are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Manager {
    /// Server-side applies.
    Apply,
    /// Objects that are created or patched.
    Update,
    Patch,
}

impl Manager {
    /// As `fieldManager` names it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Apply => "towline",
            Self::Update => "towline-update",
            Self::Patch => "towline-patch",
        }
    }

    /// The digest of an entry of this manager. Its last bit says if it is one of [`Manager::Apply`]: it is all that is stored of how
    /// an object was written last.
    pub fn tag(self, digest: Digest) -> Digest {
        let mut tagged = digest;
        let [.., last] = &mut tagged.0;
        *last = (*last & !1) | u8::from(self == Self::Apply);
        tagged
    }
}

/// Whether the digest of an entry is one of [`Manager::Apply`].
pub(super) fn is_of_apply(owned: Digest) -> bool {
    Manager::Apply.tag(owned) == owned
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The objects of the page that are compared, by namespace and name. Others do not matter.
    pub objects: Vec<(String, String, Seen)>,
    pub more: bool,
}

/// How a cluster serves a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    Served {
        /// Whether its objects are in namespaces.
        namespaced: bool,
        /// As paths name it, and its definition if it has one: `deployments`.
        plural: String,
    },
    /// Not in this version, but in another one.
    OtherVersion {
        /// One that is served: `apps/v1`.
        api_version: String,
    },
    /// Its group serves the kind in no version.
    NotServed,
}

/// An object's metadata.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub uid: String,
    /// `resourceVersion`.
    pub version: String,
    pub marks: Marks,
    /// Whether the syncset that the marks name is one of this hub's. Only [`Target::look`] finds that out.
    pub of_this_hub: bool,
    /// Whether a manager of Hive has an entry in `managedFields`.
    pub of_hive: bool,
    /// None unless it is being deleted.
    pub ending: Option<Ending>,
    /// Of the entry of [`Manager::Apply`] in `managedFields`.
    pub owned_by_apply: Option<Digest>,
    /// Of the entry of [`Manager::Update`].
    pub owned_by_update: Option<Digest>,
    /// The manager that has written last to the object itself, besides ours.
    pub last_other: Option<String>,
    /// Who owns a field through a subresource such as `/scale`, and the JSON pointer of the field. A server notes no time of it.
    pub scaled: Vec<(String, String)>,
    /// Only in an answer to [`Target::look`].
    pub takeover: Takeover,
}

/// The state of an object that is being deleted and not gone yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// Since when; none if the cluster gives no time.
    pub since: Option<Timestamp>,
    pub finalizers: Vec<String>,
    /// What a namespace says of what is left in it.
    pub remaining: Option<String>,
}

impl Ending {
    pub fn held_by(&self) -> String {
        let noun = if self.finalizers.len() == 1 { "finalizer" } else { "finalizers" };
        let finalizers =
            (!self.finalizers.is_empty()).then(|| format!("held by {noun} {}", self.finalizers.join(", ")));
        let all: Vec<String> = finalizers.into_iter().chain(self.remaining.clone()).collect();
        if all.is_empty() { "it has no finalizers".to_owned() } else { all.join("; ") }
    }
}

impl Seen {
    pub fn is_terminating(&self) -> bool {
        self.ending.is_some()
    }

    /// Whether an object that is looked at before it is sent existed before us, so that it is never deleted. `uid` and `was_adopted` are what
    /// is known of it so far, and `elsewhere` that this is not the cluster to which the document led first. What existed is ours only if
    /// that is proven, and never what has another UID than the object that was ours.
    pub fn is_adopted(&self, uid: Option<&str>, was_adopted: bool, elsewhere: bool) -> bool {
        let is_another = uid.is_some_and(|uid| uid != self.uid);
        // That it is ours may have been found out before, by what an apply that followed has taken over.
        let is_same = uid.is_some() && !is_another && self.marks.managed && !self.marks.adopted;
        let is_ours = is_same || (self.is_proven() && !elsewhere);
        was_adopted || !is_ours || is_another
    }

    /// Whether an object of which nothing is known is proven to be a syncset's of this hub, or Hive's. The label proves nothing: anybody
    /// may copy it. The marks of another hub's syncset say whose it is, whoever has written to it before.
    fn is_proven(&self) -> bool {
        let is_proven = if self.marks.syncset.is_some() { self.of_this_hub } else { self.of_hive };
        is_proven && self.marks.managed && !self.marks.adopted
    }
}

/// JSON patches by which fields that an object got without server-side apply become those of [`Manager::Apply`], so that an apply
/// removes those that are no longer given. They are refused if the object has changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Takeover {
    /// Of the fields of [`Manager::Update`], if it has some.
    pub ours: Option<Box<Value>>,
    /// Of these and Hive's, if Hive has applied the object.
    pub with_hive: Option<Box<Value>>,
}

/// What labels and annotations say of whose an object is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// It has our label.
    pub managed: bool,
    /// The syncset that sent it last.
    pub syncset: Option<Uuid>,
    /// It existed before us.
    pub adopted: bool,
    pub keep: bool,
}

impl Marks {
    /// Of an object's labels and annotations.
    pub fn of(labels: &BTreeMap<String, String>, annotations: &BTreeMap<String, String>) -> Self {
        let is = |map: &BTreeMap<String, String>, key: &str, value: &str| map.get(key).is_some_and(|is| is == value);
        Self {
            managed: is(labels, MANAGED, "true"),
            syncset: annotations.get(SYNCSET_ID).and_then(|id| id.parse().ok()),
            adopted: is(annotations, ADOPTED, "true"),
            keep: is(annotations, PRUNE, "false"),
        }
    }
}

/// Why the cluster did not do what was asked. No answer at all, a 401 and a 429 of the API server as a whole stop the pass instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub refusal: Refusal,
    /// In a sentence, without values of secrets.
    pub message: String,
}

/// The ways in which a cluster refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// 409 `AlreadyExists`.
    Exists,
    /// Any other 409.
    Conflict,
    /// 404: of the object, or of its namespace.
    NotFound,
    /// 403 with the cause `NamespaceTerminating`.
    NamespaceTerminating,
    /// Any other 403.
    Forbidden,
    /// 422.
    Invalid,
    /// 415.
    UnsupportedMediaType,
    /// 500 with one of the texts by which a server-side apply tells of it.
    SchemaMismatch,
    /// 404 that is not about the object: the kind is no longer served, or what answers is no API server.
    NotServed,
    /// Any other 4xx; a 429 only if it is about this request alone.
    Rejected,
    /// Any other 5xx, or an answer that is none.
    Server,
}
