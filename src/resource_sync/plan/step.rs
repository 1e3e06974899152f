//! What the plan can come to: a step, a question, or a rest; and the parts of a pair that a step writes and another client can undo.

use std::fmt;
use std::sync::Arc;

use super::ownership::Unproven;
use super::patch::LocalChange;
use super::renewal::{Renewal, RenewedObject};
use crate::guard::GuardedChange;
use crate::resource_sync::metrics::Direction;

pub const UPLOAD_SECRET: &str = "upload_secret";

/// One request to one cluster.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Marks an existing local object as adopted, before anything else is done for the pair.
    AdoptLocal(LocalChange),
    /// Puts the finalizer on the remote object.
    AddFinalizer,
    /// When the local object is gone, and after the object has left the selector.
    RemoveFinalizer,
    /// Removes our marks from the local object of a pair that left the selector.
    ReleaseLocal(LocalChange),
    /// Writes the local status to the remote.
    WriteRemoteStatus,
    /// Writes the secret of this name to the remote.
    UploadSecret(Arc<str>),
    /// Notes the hash on the local secret of this name.
    NoteSecretHash(Arc<str>),
    CreateNamespace,
    CreateLocal,
    /// Brings the local object in step.
    PatchLocal(LocalChange),
    /// Gives a finalizer with a former name its present one, or a namespace the mark of the present remote cluster.
    RenewMarks(Renewal),
    /// Notes on the remote object which generations belong together.
    NoteGenerations {
        /// Generation of the remote object after the note is written.
        remote: i64,
        /// Generation of the local object.
        local: i64,
    },
    /// Notes on the remote object why the local cluster rejects its content; `None` removes the note.
    NoteError(Option<Arc<str>>),
    DeleteLocal,
    /// Deletes a namespace of ours after its last object.
    DeleteNamespace,
    /// Removes our marks from the namespace, when detaching or after the object has left the selector.
    ReleaseNamespace,
}

impl Step {
    /// The step's name in reports and errors.
    pub fn name(&self) -> &'static str {
        match self {
            Self::AdoptLocal(_) => "adopt_local",
            Self::AddFinalizer => "add_finalizer",
            Self::RemoveFinalizer => "remove_finalizer",
            Self::ReleaseLocal(_) => "release_local",
            Self::WriteRemoteStatus => "write_remote_status",
            Self::UploadSecret(_) => UPLOAD_SECRET,
            Self::NoteSecretHash(_) => "note_secret_hash",
            Self::CreateNamespace => "create_namespace",
            Self::CreateLocal => "create_local",
            Self::PatchLocal(_) => "patch_local",
            Self::RenewMarks(_) => "renew_marks",
            Self::NoteGenerations { .. } => "note_generations",
            Self::NoteError(_) => "note_error",
            Self::DeleteLocal => "delete_local",
            Self::DeleteNamespace => "delete_namespace",
            Self::ReleaseNamespace => "release_namespace",
        }
    }

    /// Whether the step applies the remote object's content or deletion to the local cluster.
    pub fn is_order(&self) -> bool {
        matches!(
            self,
            Self::CreateNamespace
                | Self::AdoptLocal(_)
                | Self::CreateLocal
                | Self::PatchLocal(_)
                | Self::DeleteLocal
                | Self::DeleteNamespace
        )
    }
}

/// Why nothing has to be done now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    InStep,
    /// One side is paused.
    Paused,
    /// A local object without a remote one, or the namespace created for it, is not proved to be ours.
    Unclaimed(Unproven),
    /// The local object existed before its remote one, and `adopt` does not allow the section to take it over.
    Existing,
    /// The remote object that the local one came from exists under another key: nothing is deleted.
    MappingChanged,
    /// Another local cluster holds the remote object with the same finalizer, or a section of the same name created the local
    /// object for another remote cluster.
    OtherCluster,
    /// The remote object was itself created from the local one: sections sync in a circle, or `remote` and `local` are swapped.
    Circle,
    /// The local object is being deleted.
    LocalTerminating,
    /// The local namespace is being deleted.
    NamespaceTerminating,
    /// Neither side exists, or the pair was let go.
    Gone,
    /// Another client keeps removing the finalizer, which every other step needs.
    Contended,
    /// The object is of a sort that is never synced.
    LeftOut(LeftOut),
}

/// Why an object is never synced, whatever the configuration says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeftOut {
    /// A token of a service account: it holds for the cluster that made it, and the token controller of any other one deletes it.
    ServiceAccountToken,
}

impl LeftOut {
    /// The reason, for the report.
    pub fn reason(self) -> &'static str {
        match self {
            Self::ServiceAccountToken => {
                "a Secret of type kubernetes.io/service-account-token is only good for the cluster that made it"
            }
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum Next {
    /// Nothing.
    Rest(Rest),
    /// Send a live GET of the remote object, if the guard allows it.
    ConfirmAbsence,
    /// Ask for the guard's permission.
    AskGuard(GuardedChange),
    /// Carry out this step, then ask again.
    Do(Step),
}

impl Next {
    /// What it is, and for the secret of which name. A run in which this recurs again and again does not converge.
    pub fn name(&self) -> (&'static str, Option<Arc<str>>) {
        match self {
            Self::Rest(_) => ("rest", None),
            Self::ConfirmAbsence => ("confirm_absence", None),
            Self::AskGuard(_) => ("ask_guard", None),
            Self::Do(step @ (Step::UploadSecret(secret) | Step::NoteSecretHash(secret))) => {
                (step.name(), Some(Arc::clone(secret)))
            }
            Self::Do(step) => (step.name(), None),
        }
    }
}

/// A part of a pair that another client can undo.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Contended {
    /// The content of the local object.
    Content,
    /// Labels and annotations of the local object.
    Metadata,
    /// The status of the remote object.
    Status,
    /// Our finalizer on the remote object.
    Finalizer,
    /// The generations that are noted on the remote object.
    Generations,
    /// The removal of the error annotation from the remote object.
    SyncError,
    /// The error annotation, which is written for each other rejection.
    Rejection,
    /// The adoption of the local object, which is made anew.
    Adoption,
    /// The name of our finalizer, or the source of a namespace: another daemon still writes the former one.
    Marks(RenewedObject),
    /// The remote copy of the local secret of this name.
    Secret(Arc<str>),
    /// The hash that is noted on the local secret of this name.
    SecretHash(Arc<str>),
    /// The local object, which is deleted and created again.
    Object,
    /// The local namespace, which is deleted and created again.
    Namespace,
    /// What a step takes away from one of the two sides, by the step's name.
    Removal(&'static str),
}

/// For the text of an Event: what the other client does.
impl fmt::Display for Contended {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Content => formatter.write_str("keeps changing fields that the remote object sets"),
            Self::Metadata => formatter.write_str("keeps changing labels or annotations that the remote object sets"),
            Self::Status => formatter.write_str("keeps changing the status of the remote object"),
            Self::Finalizer => formatter.write_str("keeps changing the finalizers of the remote object"),
            Self::Generations => {
                formatter.write_str("keeps raising the generation of the remote object, or changing its notes")
            }
            Self::SyncError => formatter.write_str("keeps changing the error annotation of the remote object"),
            Self::Rejection => formatter.write_str("keeps rejecting the object for different reasons"),
            Self::Adoption => formatter.write_str("keeps replacing the object, or removing this section's marks"),
            Self::Marks(_) => formatter.write_str("keeps changing this section's marks"),
            Self::Secret(name) => write!(formatter, "keeps changing the remote copy of secret {name}"),
            Self::SecretHash(name) => write!(formatter, "keeps changing the hash annotation of secret {name}"),
            Self::Object => formatter.write_str("keeps deleting the object"),
            Self::Namespace => formatter.write_str("keeps deleting the namespace"),
            Self::Removal(step) => write!(formatter, "keeps undoing the step {step}"),
        }
    }
}

impl Contended {
    /// The action of its Event. Events with the same reason and action form one series.
    pub fn action(&self) -> &'static str {
        match self {
            Self::Content => "Sync",
            Self::Metadata => "SyncMetadata",
            Self::Status => "SyncStatus",
            Self::Finalizer => "HoldRemote",
            Self::Generations => "NoteGenerations",
            Self::SyncError | Self::Rejection => "NoteError",
            Self::Adoption => "Adopt",
            Self::Marks(_) => "RenewMarks",
            Self::Secret(_) => "UploadSecret",
            Self::SecretHash(_) => "NoteSecretHash",
            Self::Object => "Create",
            Self::Namespace => "CreateNamespace",
            Self::Removal(_) => "Remove",
        }
    }

    /// The direction of the write that is undone.
    pub fn direction(&self) -> Direction {
        match self {
            Self::Status
            | Self::Finalizer
            | Self::Generations
            | Self::SyncError
            | Self::Rejection
            | Self::Secret(_)
            | Self::Marks(RenewedObject::Remote) => Direction::Status,
            Self::Removal(step) if *step == Step::RemoveFinalizer.name() => Direction::Status,
            Self::Content
            | Self::Metadata
            | Self::Marks(RenewedObject::Namespace)
            | Self::SecretHash(_)
            | Self::Object
            | Self::Adoption
            | Self::Namespace
            | Self::Removal(_) => Direction::Spec,
        }
    }
}
