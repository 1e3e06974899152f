//! Why a syncset was not applied, and when it is tried again.

/// Why a syncset was not applied: a closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// A resource is not a valid object.
    ResourceInvalid,
    TemplateInvalid,
    /// A mapping names a secret that the syncset may not read.
    SecretInvalid,
    /// A mapped secret could not be read.
    SecretUnavailable,
    /// The cluster's schema does not allow the object.
    SchemaMismatch,
    /// The cluster does not serve the kind.
    KindNotServed,
    NamespaceMissing,
    /// The object or its namespace is being deleted.
    Terminating,
    /// The object of a patch does not exist.
    PatchTargetMissing,
    /// The cluster's user may not do that.
    Forbidden,
    /// Any other refusal.
    Rejected,
    ServerError,
    /// An object that nobody wants any more could not be deleted.
    DeletionFailed,
    /// An object that nobody wants any more stays because of what somebody has made of it on the cluster.
    NotDeleted,
    /// An object that nobody wants any more was deleted, and is still there.
    DeletionPending,
    /// An object was gone in several full passes in a row.
    DeletedAgain,
}

/// When a syncset that failed is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// With the next change, or the next full pass.
    OnChange,
    Backoff,
    /// With back-off of up to a minute: the deletion is under way, and is only looked at.
    Look,
}

impl Reason {
    const ALL: [Self; 16] = [
        Self::ResourceInvalid,
        Self::TemplateInvalid,
        Self::SecretInvalid,
        Self::SecretUnavailable,
        Self::SchemaMismatch,
        Self::KindNotServed,
        Self::NamespaceMissing,
        Self::Terminating,
        Self::PatchTargetMissing,
        Self::Forbidden,
        Self::Rejected,
        Self::ServerError,
        Self::DeletionFailed,
        Self::NotDeleted,
        Self::DeletionPending,
        Self::DeletedAgain,
    ];

    /// As statuses and metrics name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ResourceInvalid => "ResourceInvalid",
            Self::TemplateInvalid => "TemplateInvalid",
            Self::SecretInvalid => "SecretInvalid",
            Self::SecretUnavailable => "SecretUnavailable",
            Self::SchemaMismatch => "SchemaMismatch",
            Self::KindNotServed => "KindNotServed",
            Self::NamespaceMissing => "NamespaceMissing",
            Self::Terminating => "Terminating",
            Self::PatchTargetMissing => "PatchTargetMissing",
            Self::Forbidden => "Forbidden",
            Self::Rejected => "Rejected",
            Self::ServerError => "ServerError",
            Self::DeletionFailed => "DeletionFailed",
            Self::NotDeleted => "NotDeleted",
            Self::DeletionPending => "DeletionPending",
            Self::DeletedAgain => "DeletedAgain",
        }
    }

    pub fn next_step(self) -> &'static str {
        match self {
            Self::ResourceInvalid | Self::TemplateInvalid => "correct the syncset",
            Self::SecretInvalid => "correct the mapping: a syncset may read Secrets of its own namespace",
            Self::SecretUnavailable => "create the Secret on the hub, or take the mapping out",
            Self::SchemaMismatch => "correct the field, or update what defines the kind on the cluster",
            Self::KindNotServed => "install on the cluster what serves the kind, or take the resource out",
            Self::NamespaceMissing => "create the namespace, on the cluster or by a syncset",
            Self::Terminating | Self::DeletionPending => "see which finalizer holds the object on the cluster",
            Self::PatchTargetMissing => "create the object that is patched, or take the patch out",
            Self::Forbidden => "grant the right to the account of the kubeconfig",
            Self::Rejected => "change what the API server refuses, or ask who runs its webhook",
            Self::ServerError => "see the log of the cluster's API server",
            Self::DeletedAgain => {
                "find what deletes the object on the cluster, or take it out of the syncset; then `towline resync`"
            }
            Self::NotDeleted => {
                "find out who has changed the object on the cluster; delete it there, put its marks back, or let the syncset want it with `towline.dev/prune: \"false\"`"
            }
            Self::DeletionFailed => "see on the cluster why the object can't be deleted",
        }
    }

    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == name)
    }

    pub fn retry(self) -> Retry {
        match self {
            Self::ResourceInvalid
            | Self::TemplateInvalid
            | Self::SecretInvalid
            | Self::SchemaMismatch
            | Self::NotDeleted
            | Self::DeletedAgain => Retry::OnChange,
            Self::SecretUnavailable
            | Self::KindNotServed
            | Self::NamespaceMissing
            | Self::Terminating
            | Self::PatchTargetMissing
            | Self::Forbidden
            | Self::Rejected
            | Self::ServerError
            | Self::DeletionFailed => Retry::Backoff,
            Self::DeletionPending => Retry::Look,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_name_and_configuration_errors_wait_for_a_change() {
        let names = "ResourceInvalid TemplateInvalid SecretInvalid SecretUnavailable SchemaMismatch KindNotServed NamespaceMissing \
             Terminating PatchTargetMissing Forbidden Rejected ServerError DeletionFailed NotDeleted DeletionPending DeletedAgain";
        let names: Vec<&str> = names.split_whitespace().collect();
        assert_eq!(Reason::ALL.map(Reason::as_str).as_slice(), names);
        for reason in Reason::ALL {
            assert_eq!(Reason::of_name(reason.as_str()), Some(reason));
        }
        assert_eq!(Reason::of_name("Success"), None);
        let on_change = Reason::ALL.into_iter().filter(|reason| reason.retry() == Retry::OnChange);
        let on_change: Vec<&str> = on_change.map(Reason::as_str).collect();
        assert_eq!(
            on_change,
            ["ResourceInvalid", "TemplateInvalid", "SecretInvalid", "SchemaMismatch", "NotDeleted", "DeletedAgain"]
        );
    }
}
