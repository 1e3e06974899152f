//! From a syncset to what is sent to a cluster: [`render`].
//!
//! Everything is rendered before anything is sent, and every element for itself, so that what fails can be told with its place.
//! Names come first: which object an element is, is known even if the rest of it does not render, so that a pass deletes nothing
//! that is still wanted.
//!
//! An object that occurs twice, perhaps only after rendering, fails at the later place: which of the two should win is not known.
//! A kind with versions or without namespaces may hide that two are one; the order of the pass decides then.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value};

use super::digest;
use super::name::{ObjectRef, SyncSetKind};
use super::object::{self, SecretContent};
use super::reason::Reason;
use super::rows::Failure;
use super::spec::{
    Desired, DesiredPatch, Header, Known, Patch, PatchType, Payload, Position, Rendered, Rendering,
    SERVICE_ACCOUNT_TOKEN, SecretMapping,
};
use crate::cluster::BuiltIn;
use crate::config::text::{described, quoted};
use crate::documents::{
    PATH_SEGMENT, PatchForm, PatchReader, Template, TextBudget, group_of, is_directive, is_forbidden_kind, is_kind,
    is_path_segment,
};
use crate::yaml::Path;

/// The namespace of patches that name none.
pub(in crate::syncset) const DEFAULT_NAMESPACE: &str = "default";

/// Why there is no content of a mapped secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnreadableSecret {
    #[error("not found")]
    Missing,
    /// Its data can't be opened with the keys that this replica has.
    #[error("its data can't be opened")]
    Sealed,
    /// Somebody without the key may have written it to the database.
    #[error("its data is stored unencrypted, which accept_unsealed does not allow")]
    Unsealed,
    #[error("its data does not fit its key")]
    Mismatch,
}

/// The secrets of the hub, as far as they were read: by namespace and name.
pub type Secrets<'s> = &'s dyn Fn(&str, &str) -> Result<&'s SecretContent, UnreadableSecret>;

/// What a syncset wants on a cluster with these labels.
pub fn render(header: &Header, payload: &Payload, labels: &BTreeMap<String, String>, secrets: Secrets<'_>) -> Rendered {
    let mut renderer = Renderer { header, labels, budget: TextBudget::default(), seen: HashMap::new() };
    let identified = payload.resources.iter().enumerate();
    let identified: Vec<_> = identified.map(|(index, value)| renderer.identify(index, value)).collect();
    let resources = payload.resources.iter().zip(identified).enumerate();
    let mappings = header.secrets.iter().enumerate();
    let mut reader = PatchReader::default();
    Rendered {
        resources: resources.map(|(index, (value, known))| renderer.resource(index, value, known)).collect(),
        secrets: mappings.map(|(index, mapping)| renderer.secret(index, mapping, secrets)).collect(),
        patches: payload
            .patches
            .iter()
            .enumerate()
            .map(|(index, patch)| renderer.patch(index, patch, &mut reader))
            .collect(),
    }
}

/// What a syncset wants that can't be read: nothing is known, so that nothing is deleted.
pub fn undecodable(failure: Failure) -> Rendered {
    Rendered { resources: vec![Rendering::Failed { known: Known::Nothing, failure }], ..Rendered::default() }
}

struct Renderer<'r> {
    header: &'r Header,
    labels: &'r BTreeMap<String, String>,
    /// Shared by all templates of the syncset.
    budget: TextBudget,
    /// Where objects occur first.
    seen: HashMap<ObjectRef, Position>,
}

/// An element that fails, with its message as far as it is known.
struct Fault {
    reason: Reason,
    place: String,
    text: String,
}

/// Which object a resource is, and its version; or what is known of it and the fault.
type Identified = Result<(ObjectRef, String), Box<(Known, Fault)>>;

impl Fault {
    fn invalid(place: impl Into<String>, text: impl Into<String>) -> Self {
        Self { reason: Reason::ResourceInvalid, place: place.into(), text: text.into() }
    }

    fn template(text: impl Into<String>) -> Self {
        Self { reason: Reason::TemplateInvalid, place: String::new(), text: text.into() }
    }

    fn below(mut self, parent: &str) -> Self {
        self.place.insert_str(0, parent);
        self
    }

    /// The failure of an element: `failed to decode resource 2: …`.
    fn of(self, element: &str) -> Failure {
        let step = if self.reason == Reason::TemplateInvalid { "parameterize" } else { "decode" };
        let place = if self.place.is_empty() { String::new() } else { format!("{}: ", self.place) };
        Failure { reason: self.reason, message: format!("failed to {step} {element}: {place}{}", self.text) }
    }
}

impl Renderer<'_> {
    /// Finds out which object a resource is.
    fn identify(&mut self, index: usize, value: &Value) -> Identified {
        let unknown = |place: &str, text: String| Err(Box::new((Known::Nothing, Fault::invalid(place, text))));
        let Value::Object(fields) = value else {
            return unknown("", "no object".to_owned());
        };
        let Some(api_version) = fields.get("apiVersion").and_then(Value::as_str) else {
            return unknown("/apiVersion", "no string".to_owned());
        };
        let Some(group) = group_of(api_version) else {
            let allowed = "a version such as \"v1\" or \"apps/v1\"";
            return unknown("/apiVersion", format!("{}; allowed: {allowed}", quoted(api_version)));
        };
        let Some(kind) = fields.get("kind").and_then(Value::as_str).filter(|kind| is_kind(kind)) else {
            return unknown("/kind", "no string of 1 to 63 characters".to_owned());
        };
        if kind == "List" || fields.get("items").is_some_and(Value::is_array) {
            return unknown("", "a list of objects".to_owned());
        }
        let known = || Known::Kind { group: group.to_owned(), kind: kind.to_owned() };
        let Some(Value::Object(metadata)) = fields.get("metadata") else {
            return Err(Box::new((known(), Fault::invalid("/metadata", "no object"))));
        };
        let name = self.segment(metadata, "name").map_err(|fault| Box::new((known(), fault)))?;
        let namespace = self.segment(metadata, "namespace").map_err(|fault| Box::new((known(), fault)))?;
        let object = ObjectRef { group: group.to_owned(), kind: kind.to_owned(), namespace, name };
        if is_forbidden_kind(group, kind) {
            let fault = Fault::invalid("/kind", format!("{kind} of {group} is not allowed"));
            return Err(Box::new((Known::Object(object), fault)));
        }
        match self.again(&object, Position::Resource(index)) {
            Some(text) => Err(Box::new((Known::Object(object), Fault::invalid("", text)))),
            None => Ok((object, api_version.to_owned())),
        }
    }

    /// A name or namespace, rendered and checked. Only a namespace may be absent; one that renders to nothing is not.
    fn segment(&mut self, metadata: &Map<String, Value>, field: &str) -> Result<String, Fault> {
        let place = format!("/metadata/{field}");
        let given = match metadata.get(field) {
            None | Some(Value::Null) => "",
            Some(Value::String(text)) => text.as_str(),
            Some(other) => return Err(Fault::invalid(place, format!("{}; allowed: a string", described(other)))),
        };
        if given.is_empty() && field == "namespace" {
            return Ok(String::new());
        }
        let is_template = self.header.resource_templates && is_template(given);
        let text = if is_template { self.text(given).map_err(|fault| fault.below(&place))? } else { given.to_owned() };
        if is_path_segment(&text) {
            return Ok(text);
        }
        let reason = if is_template { Reason::TemplateInvalid } else { Reason::ResourceInvalid };
        Err(Fault { reason, place, text: format!("{}; allowed: {PATH_SEGMENT}", quoted(&text)) })
    }

    /// Notes an object, or says that it was there before.
    fn again(&mut self, object: &ObjectRef, place: Position) -> Option<String> {
        if let Some(first) = self.seen.get(object) {
            return Some(format!("{object} again, which is {first} already"));
        }
        self.seen.insert(object.clone(), place);
        None
    }

    fn resource(&mut self, index: usize, value: &Value, identified: Identified) -> Rendering<Desired> {
        let place = Position::Resource(index);
        let element = place.to_string();
        let (object, api_version) = match identified {
            Ok(identified) => identified,
            Err(unidentified) => {
                let (known, fault) = *unidentified;
                return Rendering::Failed { known, failure: fault.of(&element) };
            }
        };
        match self.body(value, &object) {
            Ok(body) => Rendering::Ready(Desired {
                content: digest::of_object(self.header.behavior, &body),
                may_adopt: object::may_adopt(&body),
                may_recreate: object::may_recreate(&body, &object.group, &object.kind),
                place,
                object,
                api_version,
                body,
            }),
            Err(fault) => Rendering::Failed { known: Known::Object(object), failure: fault.of(&element) },
        }
    }

    /// The whole object, whose name has been rendered.
    fn body(&mut self, value: &Value, object: &ObjectRef) -> Result<Value, Fault> {
        refuse_directives(value)?;
        let mut body = value.clone();
        if self.header.resource_templates {
            let fields = body.as_object_mut().into_iter().flatten();
            for (field, value) in fields.filter(|(field, _)| !matches!(field.as_str(), "apiVersion" | "kind")) {
                let part = if field == "metadata" { value.as_object_mut() } else { None };
                if let Some(metadata) = part {
                    for (field, text) in [("name", &object.name), ("namespace", &object.namespace)] {
                        if let Some(value) = metadata.get_mut(field) {
                            *value = Value::from(text.as_str());
                        }
                    }
                    let others = metadata.iter_mut();
                    for (field, value) in others.filter(|(field, _)| !matches!(field.as_str(), "name" | "namespace")) {
                        self.fill(value)
                            .map_err(|fault| fault.below(&format!("/metadata{}", Path::Root.field(field))))?;
                    }
                } else {
                    self.fill(value).map_err(|fault| fault.below(&Path::Root.field(field).to_string()))?;
                }
            }
        }
        let normalized = object::normalize(&mut body, &self.header.name, self.header.id);
        normalized.map_err(|error| Fault::invalid("", error.to_string()))?;
        // Sending these fields would take back what the cluster's own controllers have written.
        if let Some(built_in) = BuiltIn::of_kind(&object.group, &object.kind) {
            built_in.reduce_manifest(&mut body);
        }
        object::check_left_alone(&body).map_err(|error| Fault::invalid("/metadata/annotations", error))?;
        Ok(body)
    }

    /// Renders the texts of a value; keys are none.
    fn fill(&mut self, value: &mut Value) -> Result<(), Fault> {
        match value {
            Value::String(text) if is_template(text) => *text = self.text(text)?,
            Value::Object(fields) => {
                for (field, value) in fields {
                    self.fill(value).map_err(|fault| fault.below(&Path::Root.field(field).to_string()))?;
                }
            }
            Value::Array(elements) => {
                for (index, value) in elements.iter_mut().enumerate() {
                    self.fill(value).map_err(|fault| fault.below(&format!("/{index}")))?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// What a text makes that is a template.
    fn text(&mut self, text: &str) -> Result<String, Fault> {
        let template = Template::parse(text).map_err(|error| Fault::template(error.to_string()))?;
        let label = |key: &str| self.labels.get(key).map(String::as_str);
        template.render(&label, &mut self.budget).map_err(|error| Fault::template(error.to_string()))
    }

    fn secret(&mut self, index: usize, mapping: &SecretMapping, secrets: Secrets<'_>) -> Rendering<Desired> {
        let place = Position::Secret(index);
        let object = ObjectRef {
            group: String::new(),
            kind: "Secret".to_owned(),
            namespace: mapping.target_namespace.clone(),
            name: mapping.target_name.clone(),
        };
        let again = self.again(&object, place);
        let failed = |reason, message: String| Rendering::Failed {
            known: Known::Object(object.clone()),
            failure: Failure { reason, message },
        };
        let Header { name, id, behavior, .. } = self.header;
        // What was checked when it was written is checked again: it decides whose secrets leave the hub.
        let is_foreign = match name.kind {
            SyncSetKind::SyncSet => mapping.source_namespace != name.namespace,
            SyncSetKind::SelectorSyncSet => mapping.source_namespace.is_empty(),
        };
        if is_foreign {
            return failed(Reason::SecretInvalid, format!("source in wrong namespace for {place}"));
        }
        if let Some(again) = again {
            return failed(Reason::SecretInvalid, format!("failed to decode {place}: {again}"));
        }
        let content = match secrets(&mapping.source_namespace, &mapping.source_name) {
            Ok(content) => content,
            Err(error) => {
                let (namespace, name) = (&mapping.source_namespace, &mapping.source_name);
                let message = format!("failed to read {place}: Secret {namespace}/{name}: {error}");
                return failed(Reason::SecretUnavailable, message);
            }
        };
        if content.source.secret_type == SERVICE_ACCOUNT_TOKEN {
            let (namespace, name) = (&mapping.source_namespace, &mapping.source_name);
            let message =
                format!("failed to copy {place}: Secret {namespace}/{name} has the type {SERVICE_ACCOUNT_TOKEN}");
            return failed(Reason::SecretInvalid, message);
        }
        let mut body = object::of_secret(mapping, content);
        let normalized = object::normalize(&mut body, name, *id).map_err(|error| error.to_string());
        if let Err(error) = normalized.and_then(|()| object::check_left_alone(&body)) {
            return failed(Reason::SecretInvalid, format!("failed to decode {place}: {error}"));
        }
        Rendering::Ready(Desired {
            place,
            object,
            api_version: "v1".to_owned(),
            content: digest::of_secret(*behavior, (name, *id), &content.source.copied_by(&std::iter::once(mapping))),
            may_adopt: object::may_adopt(&body),
            may_recreate: object::may_recreate(&body, "", "Secret"),
            body,
        })
    }

    fn patch(&mut self, index: usize, patch: &Patch, reader: &mut PatchReader) -> Rendering<DesiredPatch> {
        let place = Position::Patch(index);
        let namespace = if patch.namespace.is_empty() { DEFAULT_NAMESPACE } else { &patch.namespace };
        let object = ObjectRef {
            group: group_of(&patch.api_version).unwrap_or_default().to_owned(),
            kind: patch.kind.clone(),
            namespace: namespace.to_owned(),
            name: patch.name.clone(),
        };
        match self.patch_body(patch, reader) {
            Ok(body) => Rendering::Ready(DesiredPatch {
                place,
                object,
                api_version: patch.api_version.clone(),
                patch_type: patch.patch_type,
                content: digest::of_patch(patch, namespace, &body),
                body,
            }),
            Err(fault) => Rendering::Failed { known: Known::Object(object), failure: fault.of(&place.to_string()) },
        }
    }

    fn patch_body(&mut self, patch: &Patch, reader: &mut PatchReader) -> Result<Value, Fault> {
        let is_template = self.header.patch_templates && is_template(&patch.text);
        let rendered = is_template.then(|| self.text(&patch.text)).transpose()?;
        let form = match patch.patch_type {
            PatchType::Strategic | PatchType::Merge => PatchForm::Object,
            PatchType::Json => PatchForm::Operations,
        };
        reader.read(rendered.as_deref().unwrap_or(&patch.text), form).map_err(|error| {
            let text = format!("{error}; allowed: {}", error.allowed(form));
            if is_template { Fault::template(text) } else { Fault::invalid("", text) }
        })
    }
}

/// Whether a text has an action. One without is itself, also where Go would say so after parsing.
fn is_template(text: &str) -> bool {
    text.contains("{{")
}

/// Finds a key that strategic merge patches obey instead of setting it, anywhere in an object.
fn refuse_directives(value: &Value) -> Result<(), Fault> {
    match value {
        Value::Object(fields) => fields.iter().try_for_each(|(field, value)| {
            let place = Path::Root.field(field).to_string();
            if is_directive(field) {
                return Err(Fault::invalid(place, "a directive of strategic merge patches"));
            }
            refuse_directives(value).map_err(|fault| fault.below(&place))
        }),
        Value::Array(elements) => elements
            .iter()
            .enumerate()
            .try_for_each(|(index, value)| refuse_directives(value).map_err(|fault| fault.below(&format!("/{index}")))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
