//! Changes of the sealed field.

use std::collections::{BTreeMap, BTreeSet};

use json_patch::jsonptr::Pointer;
use json_patch::{AddOperation, CopyOperation, MoveOperation, PatchOperation, ReplaceOperation};
use secrecy::{ExposeSecret, SecretSlice, SecretString};
use serde_json::Value;

use super::{Context, Stored};
use crate::config::text::kind_of;
use crate::documents::body::Path;
use crate::documents::document::Document;
use crate::documents::keyring::OpenError;
use crate::documents::kind::Sealed;
use crate::documents::problem::{Fault, Problem, ProblemKind};
use crate::documents::validate::{Faults, SealedValue, secret_data, secret_entry};

/// The field of a secret that shows the names of its values.
pub(super) const NAMES: &str = "keys";

/// A change of the sealed field. It has no `Debug`.
pub(super) enum Edit {
    Kubeconfig(SecretString),
    /// Values by name, `None` for those that are removed.
    Data {
        /// Whether all others are removed.
        replaces: bool,
        entries: BTreeMap<String, Option<SecretString>>,
    },
}

/// A value to be sealed, and the names that are shown of it.
pub(super) struct NewValue {
    pub(super) plain: SecretSlice<u8>,
    pub(super) names: Option<Vec<String>>,
}

/// The fields that show something of the sealed one.
pub(super) fn shown_fields(document: &Document) -> Vec<&'static str> {
    match document.kind.sealed() {
        Some(sealed @ Sealed::Kubeconfig) => vec![sealed.generation_field()],
        Some(sealed @ Sealed::Data) => vec![sealed.generation_field(), NAMES],
        None => Vec::new(),
    }
}

impl Edit {
    /// The value of a new document that has none.
    pub(super) fn empty(sealed: Sealed) -> Self {
        match sealed {
            Sealed::Kubeconfig => Self::Kubeconfig(SecretString::from("")),
            Sealed::Data => Self::Data { replaces: true, entries: BTreeMap::new() },
        }
    }

    /// A value that replaces the present one.
    pub(super) fn of(value: SealedValue) -> Self {
        match value {
            SealedValue::Kubeconfig(text) => Self::Kubeconfig(text),
            SealedValue::Data(data) => {
                let entries = data.into_iter().map(|(name, value)| (name, Some(value))).collect();
                Self::Data { replaces: true, entries }
            }
        }
    }

    /// The field in a merge patch: a kubeconfig is replaced, and values of `data` are merged by name.
    pub(super) fn merge(sealed: Sealed, value: Value, faults: &mut Faults) -> Option<Self> {
        let path = Path::Root.field(sealed.field());
        match (sealed, value) {
            (sealed, Value::Null) => Some(Self::empty(sealed)),
            (Sealed::Kubeconfig, Value::String(text)) => Some(Self::Kubeconfig(text.into())),
            (Sealed::Data, Value::Object(fields)) => {
                let mut entries = BTreeMap::new();
                for (name, value) in fields {
                    let entry = if value.is_null() { None } else { secret_entry(&name, &value, &path, faults) };
                    entries.insert(name, entry);
                }
                Some(Self::Data { replaces: false, entries })
            }
            (Sealed::Kubeconfig, other) => {
                faults.add(&path, kind_of(&other), "a string");
                None
            }
            (Sealed::Data, other) => {
                faults.add(&path, kind_of(&other), "an object with values in base64");
                None
            }
        }
    }

    /// The new value; `None` if it is the present one. A dry run never compares, so that it confirms no guess.
    pub(super) fn resolve(
        self,
        present: Option<&Stored>,
        dry_run: bool,
        context: &Context<'_>,
    ) -> Result<Option<NewValue>, Problem> {
        match self {
            Self::Kubeconfig(text) => {
                let is_present = !dry_run && {
                    // A value that can't be opened is replaced.
                    let opened = present.and_then(|present| open(present, context)?.ok());
                    opened.is_some_and(|opened| opened.expose_secret() == text.expose_secret().as_bytes())
                };
                let plain = || SecretSlice::from(text.expose_secret().as_bytes().to_vec());
                Ok((!is_present).then(|| NewValue { plain: plain(), names: None }))
            }
            Self::Data { replaces: false, entries } if entries.is_empty() => Ok(None),
            Self::Data { replaces, entries } => {
                // A value that is replaced is opened only to be compared.
                let is_opened = !(dry_run && replaces);
                let opened = present.filter(|_| is_opened).and_then(|present| open(present, context)).transpose();
                let old = match opened {
                    Ok(opened) => opened.as_ref().map(data_of).transpose()?,
                    Err(_) if replaces => None,
                    Err(error) => return Err(error.into()),
                };
                let mut new: BTreeMap<String, SecretString> =
                    if replaces { BTreeMap::new() } else { old.clone().unwrap_or_default() };
                for (name, value) in entries {
                    match value {
                        Some(value) => drop(new.insert(name, value)),
                        None => drop(new.remove(&name)),
                    }
                }
                if !dry_run && old.is_some_and(|old| exposed(&old) == exposed(&new)) {
                    return Ok(None);
                }
                let plain = serde_json::to_vec(&exposed(&new)).map_err(|_| unreadable())?;
                Ok(Some(NewValue { plain: plain.into(), names: Some(new.into_keys().collect()) }))
            }
        }
    }
}

/// Opens the present value; `None` if there is none.
fn open(present: &Stored, context: &Context<'_>) -> Option<Result<SecretSlice<u8>, OpenError>> {
    let Stored { document, sealed } = present;
    sealed.as_deref().map(|sealed| context.keyring.open(&document.key(), document.id, sealed))
}

/// Values of a secret as they are sealed: a JSON object.
fn data_of(opened: &SecretSlice<u8>) -> Result<BTreeMap<String, SecretString>, Problem> {
    let data: BTreeMap<String, String> = serde_json::from_slice(opened.expose_secret()).map_err(|_| unreadable())?;
    Ok(data.into_iter().map(|(name, value)| (name, value.into())).collect())
}

fn exposed(data: &BTreeMap<String, SecretString>) -> BTreeMap<&str, &str> {
    data.iter().map(|(name, value)| (name.as_str(), value.expose_secret())).collect()
}

/// The sealed value is none of this program's.
fn unreadable() -> Problem {
    Problem::new(ProblemKind::Unavailable, "the sealed field of the document can't be read")
}

fn names(document: Option<&Document>) -> BTreeSet<String> {
    let names = document.and_then(|document| document.data.get(NAMES)).and_then(Value::as_array);
    names.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The sealed field under the operations of a JSON patch.
pub(super) struct Patching {
    sealed: Option<Sealed>,
    edit: Option<Edit>,
    /// The names of the values that there are.
    names: BTreeSet<String>,
}

impl Patching {
    pub(super) fn of(document: &Document) -> Self {
        Self { sealed: document.kind.sealed(), edit: None, names: names(Some(document)) }
    }

    /// The change that all operations make.
    pub(super) fn into_edit(self) -> Option<Edit> {
        self.edit
    }

    /// Carries out an operation on the sealed field; false if it is about another one.
    pub(super) fn intercept(&mut self, operation: &PatchOperation, place: &str) -> Result<bool, Problem> {
        let Some(sealed) = self.sealed else {
            return Ok(false);
        };
        let is_sealed = |at: &Pointer| at.first().is_some_and(|name| name.decoded() == sealed.field());
        let at = operation.path();
        let value = match operation {
            PatchOperation::Add(AddOperation { value, .. })
            | PatchOperation::Replace(ReplaceOperation { value, .. }) => Some(value),
            PatchOperation::Remove(_) => None,
            PatchOperation::Test(_) if is_sealed(at) => return Err(revealing(place, "test", at)),
            PatchOperation::Move(MoveOperation { from, .. }) | PatchOperation::Copy(CopyOperation { from, .. })
                if is_sealed(from) || is_sealed(at) =>
            {
                let name = if matches!(operation, PatchOperation::Move(_)) { "move" } else { "copy" };
                return Err(revealing(place, name, if is_sealed(from) { from } else { at }));
            }
            PatchOperation::Test(_) | PatchOperation::Move(_) | PatchOperation::Copy(_) => return Ok(false),
        };
        if !is_sealed(at) {
            return Ok(false);
        }
        let names: Vec<_> = at.tokens().map(|name| name.decoded().into_owned()).collect();
        // Of an unknown place below the field no more than the field is shown.
        let misfit = |found: String| {
            Problem::invalid(vec![Fault::new(format!("{place}/path"), found).allowed("a place of the document")])
        };
        match (sealed, names.as_slice()) {
            (_, [_]) => {
                let mut faults = Faults::default();
                let value = value.cloned().unwrap_or(Value::Null);
                let is_removed = value.is_null() && matches!(operation, PatchOperation::Remove(_));
                let edit = match (sealed, value) {
                    (sealed, _) if is_removed => Some(Edit::empty(sealed)),
                    (Sealed::Kubeconfig, Value::String(text)) => Some(Edit::Kubeconfig(text.into())),
                    (Sealed::Data, value @ Value::Object(_)) => {
                        Some(Edit::of(SealedValue::Data(secret_data(&value, &mut faults))))
                    }
                    (sealed, other) => {
                        let allowed = if sealed == Sealed::Kubeconfig { "a string" } else { "an object" };
                        faults.add(&Path::Root.field(sealed.field()), kind_of(&other), allowed);
                        None
                    }
                };
                faults.into_result()?;
                if let Some(Edit::Data { entries, .. }) = &edit {
                    self.names = entries.keys().cloned().collect();
                }
                self.edit = edit;
            }
            (Sealed::Data, [_, name]) => {
                let is_add = matches!(operation, PatchOperation::Add(_));
                if !is_add && !self.names.contains(name) {
                    return Err(misfit("a name that data does not have".to_owned()));
                }
                let mut faults = Faults::default();
                let path = Path::Root.field(sealed.field());
                let entry = value.and_then(|value| secret_entry(name, value, &path, &mut faults));
                faults.into_result()?;
                if entry.is_some() {
                    self.names.insert(name.clone())
                } else {
                    self.names.remove(name)
                };
                match &mut self.edit {
                    Some(Edit::Data { entries, .. }) => drop(entries.insert(name.clone(), entry)),
                    edit => {
                        let entries = BTreeMap::from([(name.clone(), entry)]);
                        *edit = Some(Edit::Data { replaces: false, entries });
                    }
                }
            }
            _ => return Err(misfit(format!("a place below /{}", sealed.field()))),
        }
        Ok(true)
    }
}

/// The operation would show the value: by success or failure, or at another place.
fn revealing(place: &str, operation: &str, at: &Pointer) -> Problem {
    let field = at.first().map(|name| name.decoded().into_owned()).unwrap_or_default();
    let fault = Fault::new(place, format!("{operation} at the sealed field {field}"));
    Problem::invalid(vec![fault.allowed("add, replace and remove, because the value is never shown")])
}
