//! What a pass asks its caller to do, and what comes back.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use jiff::Timestamp;
use serde_json::Value;
use uuid::Uuid;

use super::item::KindKey;
use super::stored::is_undetermined;
use crate::syncset::plan::name::{Digest, ObjectRef};
use crate::syncset::plan::object::{ADOPTED, MANAGED, SYNCSET_ID};
use crate::syncset::plan::rows::{AppliedRow, Failure, PatchedRow, ResultRow};
use crate::syncset::plan::spec::PatchType;
use crate::syncset::plan::status::Retry;

/// What the caller does next. Every request asks for metadata only.
#[derive(Debug)]
pub enum Step<'a> {
    /// Find out whether and how the cluster serves a kind. Answered by [`Answer::Kind`].
    Resolve {
        /// `apps/v1`.
        api_version: &'a str,
        kind: &'a str,
        /// Whether this pass has applied its definition, so that it is worth waiting for.
        wait: bool,
    },
    /// GET of an object's metadata. Answered by [`Answer::Found`].
    Look { target: Target<'a> },
    /// One page of each of these lists, of one to four kinds, read at once. Answered by [`Answer::Pages`].
    Lists(Vec<List<'a>>),
    /// Server-side apply, forced. Answered by [`Answer::Written`].
    Apply { target: Target<'a>, body: Cow<'a, Value> },
    /// POST. Answered by [`Answer::Written`].
    Create { target: Target<'a>, body: Cow<'a, Value>, dry_run: bool },
    /// PATCH. Answered by [`Answer::Written`].
    Patch { target: Target<'a>, patch_type: PatchType, manager: Manager, body: Cow<'a, Value> },
    /// DELETE with Background and preconditions. Answered by [`Answer::Deleted`], also if there is no such object any more.
    Delete {
        target: Target<'a>,
        /// The UID that it must have.
        uid: &'a str,
        /// The `resourceVersion` that it must have.
        version: &'a str,
    },
    /// Writes that have to be stored before anything else is done. Answered by [`Answer::Stored`].
    Store(Writes),
    /// The pass is over; what it answers is not asked for again.
    Done(Box<Outcome>),
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// Which object; without namespace if its kind has none.
    pub object: &'a ObjectRef,
    /// The version under which it is addressed: `apps/v1`.
    pub api_version: Cow<'a, str>,
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

#[derive(Clone, Debug)]
pub enum Answer {
    /// Of [`Step::Resolve`].
    Kind(Resolution),
    /// Of [`Step::Look`]; none if there is no such object (404).
    Found(Option<Seen>),
    /// Of [`Step::Lists`]: what each of them has brought, in their order. It has at least one; the lists after its end were not asked for.
    Pages(Vec<Result<Page, Refused>>),
    /// Of [`Step::Apply`], [`Step::Create`] and [`Step::Patch`].
    Written {
        /// Whether the object did not exist before (201).
        created: bool,
        /// The object as it is now.
        seen: Seen,
    },
    /// Of [`Step::Delete`]; with what is known of the object if it is still there.
    Deleted(Option<Ending>),
    /// Of [`Step::Store`].
    Stored,
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
    /// Whether the syncset that the marks name is one of this hub's. Who carries out a step finds that out ([`Answer::marked`]).
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
    /// Only in an answer to [`Step::Look`].
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

impl Answer {
    /// The syncset that the marks of a found object name, and where it is to be noted whether that is one of this hub's.
    pub fn marked(&mut self) -> Option<(Uuid, &mut bool)> {
        let Self::Found(Some(seen)) = self else { return None };
        Some((seen.marks.syncset?, &mut seen.of_this_hub))
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

/// The annotation that keeps an object which nobody wants any more, if it is `false`.
pub const PRUNE: &str = "towline.dev/prune";

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

/// Why the cluster did not do what a step says. No answer at all, a 401 and a 429 of the API server as a whole end the pass instead
/// ([`Pass::interrupt`](super::Pass::interrupt)).
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
    /// 429, again and again, from an API server that answers other requests.
    Throttled,
    /// Any other 4xx.
    Rejected,
    /// Any other 5xx, or an answer that is none.
    Server,
}

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

/// Why nothing was deleted although nobody wants an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Release {
    /// It is a wanted object under another name of its kind.
    Wanted,
    /// It does not have our label.
    Unlabelled,
    /// Another syncset sent it last, or none.
    AnotherOwner,
    /// It existed before us, or was created anew by somebody else.
    Adopted,
    /// It is marked to be kept.
    Kept,
}

impl Release {
    /// Why the object of a row that nobody wants is not its syncset's to delete, if it is not. `rows` are all of the cluster.
    pub fn of<'r>(
        row: &AppliedRow,
        seen: &Seen,
        rows: impl IntoIterator<Item = &'r AppliedRow>,
        is_wanted: impl Fn(&ObjectRef) -> bool,
    ) -> Option<Self> {
        let is_another = row.uid.as_ref().is_some_and(|uid| *uid != seen.uid);
        // Who wants the object may not have sent it yet: then a row of somebody who no longer wants it knows its UID.
        let is_of_wanted = |of: &AppliedRow| of.uid.as_ref() == Some(&seen.uid) && is_wanted(&of.object);
        if rows.into_iter().any(is_of_wanted) {
            Some(Self::Wanted)
        } else if !seen.marks.managed {
            Some(Self::Unlabelled)
        } else if seen.marks.syncset != Some(row.syncset) {
            Some(Self::AnotherOwner)
        } else if seen.marks.adopted || is_another || (row.adopted && !is_undetermined(row)) {
            Some(Self::Adopted)
        } else if seen.marks.keep {
            Some(Self::Kept)
        } else {
            None
        }
    }

    /// In words, as what is said of the object.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Wanted => "a syncset wants it under another name of its kind",
            Self::Unlabelled => "it does not have the label hive.openshift.io/managed",
            Self::AnotherOwner => "it does not have the annotation of a syncset that has sent it",
            Self::Adopted => "it existed before, or was created by somebody else",
            Self::Kept => "it is marked to be kept",
        }
    }

    /// As the metric names it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Wanted => "wanted",
            Self::Unlabelled => "unlabelled",
            Self::AnotherOwner => "another_owner",
            Self::Adopted => "adopted",
            Self::Kept => "kept",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Everything that was due was tried.
    Finished,
    /// It has made as many requests, or taken as long, as a pass may: the cluster is to be requeued.
    Yielded,
    /// The caller ended it.
    Interrupted,
}

#[derive(Clone, Debug)]
pub struct Outcome {
    pub end: End,
    /// What is still to be stored.
    pub writes: Writes,
    /// All results, for the status.
    pub results: Vec<ResultRow>,
    /// When it is tried again, by the failure that is tried again soonest, or with back-off if something that was deleted has to be gone
    /// first; none if nothing fails and nothing is waited for.
    pub retry: Option<Retry>,
    /// Whether deletions wait until the dispatcher has checked them, or were put off: it is tried again after 1 s.
    pub awaits_check: bool,
    /// Whether deletions are suspended.
    pub is_suspended: bool,
    /// What was not deleted, and why.
    pub releases: BTreeMap<Release, usize>,
    /// What this pass has sent although nothing of it is new, as the full passes before have, with the manager that has changed it
    /// each time, as far as that is known.
    pub contended: Vec<(ObjectRef, Option<String>)>,
    /// Syncsets that are gone and of which nothing is left but objects that are being deleted.
    pub ending: BTreeSet<Uuid>,
    /// Requests to the cluster, without discovery.
    pub requests: usize,
    /// What the next pass need not ask again, since this one had to end early. After a pass that finished it says only which kinds
    /// are asked for last.
    pub progress: Progress,
}

/// What a full pass has found in step or has sent, and what failed in a pass that yielded. Without it, a full pass over more objects than
/// one pass may send requests for would never end, and later syncsets would never have a turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub(super) objects: BTreeSet<ObjectRef>,
    pub(super) patches: BTreeSet<(Uuid, usize)>,
    /// Looks that failed, of the syncsets that send the objects, with the inputs of these.
    pub(super) looks: BTreeMap<(ObjectRef, Uuid), (Digest, Failure)>,
    /// Objects that could not be deleted.
    pub(super) removals: BTreeMap<(ObjectRef, Uuid), Failure>,
    /// Objects that are being deleted: they are forgotten when they are gone. They may take any time: a pass that goes on does
    /// not look at them again, or many of them would keep all others from their turns.
    pub(super) ending: BTreeSet<(ObjectRef, Uuid)>,
    /// Syncsets that could not be sent, with their inputs. Their deletions may still be pending.
    pub(super) failed: BTreeMap<Uuid, (Digest, Failure)>,
    /// Syncsets whose turn ended in a failure, with their inputs.
    pub(super) ended: BTreeMap<Uuid, Digest>,
    /// Kinds whose list had not ended when the pass did: it may have no end. Of lists that are read at once it is the longest one.
    pub(super) unlisted: BTreeSet<KindKey>,
    /// Kinds for which the cluster gave no answer, which may take long each time.
    pub(super) slow_kinds: BTreeSet<KindKey>,
    /// Those of them that were asked for because of what is deleted. A pass that goes on does not ask again, or it would never get
    /// further.
    pub(super) unknown_within: BTreeSet<KindKey>,
    /// How often in a row the API server has answered 429 to these requests. It is kept from pass to pass.
    pub(super) throttled: BTreeMap<Throttled, u8>,
}

/// A request that was answered with 429: what it does, and to what.
pub(super) type Throttled = (Verb, ObjectRef);

/// What a request does. Several requests of a pass may be about one object, and an answer to one of them says nothing of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Verb {
    Discover,
    List,
    /// It reads an object before it is sent.
    Look,
    /// It reads an object whose write was refused.
    Identify,
    /// It reads an object that exists although it was to be created.
    Owner,
    /// It reads an object that is to be deleted.
    Examine,
    /// It reads an object that is to be patched.
    LookForPatch,
    TakeOver,
    Apply,
    Create,
    /// It sends an object as a strategic merge patch.
    Update,
    /// It sends an object as a merge patch.
    Merge,
    /// It tries whether an object could be created.
    Probe,
    /// It deletes an object that is to be created anew.
    Replace,
    /// It sends a patch of this content: an object may have several.
    Patch(Digest),
    /// The same as a merge patch.
    MergePatch(Digest),
    Delete,
}
