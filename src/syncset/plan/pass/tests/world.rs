//! Documents, and a cluster of maps.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::super::{
    Address, Ending, List, Manager, Marks, Page, Refusal, Refused, Resolution, Seen, Takeover, Write, Written,
};
use crate::syncset::plan::name::{Digest, ObjectRef, SyncSetKind, SyncSetName};
use crate::syncset::plan::reason::Reason;
use crate::syncset::plan::rows::Failure;
use crate::syncset::plan::spec::{
    Behavior, Desired, DesiredPatch, Header, Known, Mode, PatchType, Position, Rendered, Rendering,
};
use crate::syncset::plan::wanted::{Deletions, Live};

/// The manager of Hive.
pub(super) const HIVE: &str = "hive6-clustersync";

pub(super) const OF_ANOTHER_HUB: Uuid = Uuid::max();

/// An object as the cluster has it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Object {
    pub(super) uid: u64,
    pub(super) version: u64,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) annotations: BTreeMap<String, String>,
    pub(super) data: Value,
    pub(super) patches: BTreeSet<String>,
    pub(super) terminating: bool,
    pub(super) deleted_at: Option<Timestamp>,
    pub(super) finalizers: Vec<String>,
    /// The message of a terminating namespace about its remaining objects.
    pub(super) remaining: Option<String>,
    pub(super) owned: BTreeMap<&'static str, Digest>,
    /// Created by somebody else.
    pub(super) foreign: bool,
    /// The fields of `data` of those managers of which we take fields over, and of ours: one for each content that was sent. An apply
    /// leaves its own last one; those of the others stay.
    pub(super) fields: BTreeMap<String, BTreeSet<String>>,
    pub(super) touched_by: Option<String>,
}

#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a trait of its own")]
pub(super) struct World {
    pub(super) objects: BTreeMap<ObjectRef, Object>,
    /// What the cluster serves, and whether it is in namespaces.
    pub(super) kinds: BTreeMap<(String, String), bool>,
    pub(super) log: Vec<String>,
    /// By the request as it is logged.
    pub(super) refusals: BTreeMap<String, Refusal>,
    /// What follows each of their messages.
    pub(super) words: String,
    pub(super) without_strategic: bool,
    /// Objects that can't be changed, only created.
    pub(super) immutable: BTreeSet<ObjectRef>,
    /// Each page of a list is empty and not the last one.
    pub(super) endless_lists: bool,
    /// A namespace that is deleted is there until [`World::finish_namespaces`].
    pub(super) slow_namespaces: bool,
    /// Definitions bring no kind.
    pub(super) defines_nothing: bool,
    /// How often a kind was asked for until it was to be served.
    pub(super) waits: usize,
    /// What time it is, and how much of it passes have waited for their own turn.
    pub(super) clock: Duration,
    pub(super) waited: Duration,
    /// As passes have counted what they sent.
    pub(super) sent: Vec<(Behavior, bool)>,
    counter: u64,
}

/// A syncset's document.
#[derive(Clone, Debug)]
pub(super) struct Set {
    pub(super) id: Uuid,
    pub(super) name: SyncSetName,
    pub(super) generation: i64,
    pub(super) behavior: Behavior,
    pub(super) mode: Mode,
    pub(super) resources: Vec<Resource>,
    pub(super) secrets: Vec<Resource>,
    pub(super) patches: Vec<(ObjectRef, String)>,
    pub(super) deletions: Deletions,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Resource {
    Ready(ObjectRef, String, Flags),
    Broken(Known),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flags {
    pub(super) may_adopt: bool,
    pub(super) may_recreate: bool,
    pub(super) keep: bool,
}

pub(super) fn object(group: &str, kind: &str, namespace: &str, name: &str) -> ObjectRef {
    ObjectRef { group: group.to_owned(), kind: kind.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() }
}

pub(super) fn map(name: &str) -> ObjectRef {
    object("", "ConfigMap", "default", name)
}

pub(super) fn api_version(object: &ObjectRef) -> String {
    if object.group.is_empty() { "v1".to_owned() } else { format!("{}/v1", object.group) }
}

pub(super) fn digest(value: &impl ToString) -> Digest {
    Digest(Sha256::digest(value.to_string()).into())
}

pub(super) fn set(kind: SyncSetKind, name: &str) -> Set {
    let namespace = if kind == SyncSetKind::SyncSet { "team-a" } else { "" };
    Set {
        id: Uuid::from_slice(&digest(&format!("{kind:?} {name}")).0[..16]).expect("16 bytes"),
        name: SyncSetName { kind, namespace: namespace.to_owned(), name: name.to_owned() },
        generation: 1,
        behavior: Behavior::Apply,
        mode: Mode::Sync,
        resources: Vec::new(),
        secrets: Vec::new(),
        patches: Vec::new(),
        deletions: Deletions::Allowed,
    }
}

impl Set {
    /// Resources by name, `a` or `a=content`.
    pub(super) fn maps(mut self, names: &[&str]) -> Self {
        self.resources = names
            .iter()
            .map(|text| {
                let (name, content) = text.split_once('=').unwrap_or((text, "1"));
                Resource::Ready(map(name), content.to_owned(), Flags::default())
            })
            .collect();
        self.generation += 1;
        self
    }

    pub(super) fn objects(mut self, objects: &[ObjectRef]) -> Self {
        self.resources =
            objects.iter().map(|object| Resource::Ready(object.clone(), "1".to_owned(), Flags::default())).collect();
        self.generation += 1;
        self
    }

    pub(super) fn flags(mut self, flags: Flags) -> Self {
        for resource in &mut self.resources {
            if let Resource::Ready(_, _, own) = resource {
                *own = flags;
            }
        }
        self
    }

    pub(super) fn mode(mut self, mode: Mode) -> Self {
        self.generation += i64::from(self.mode != mode);
        self.mode = mode;
        self
    }

    pub(super) fn behavior(mut self, behavior: Behavior) -> Self {
        self.behavior = behavior;
        self.generation += 1;
        self
    }

    pub(super) fn patch(mut self, object: ObjectRef, text: &str) -> Self {
        self.patches.push((object, text.to_owned()));
        self.generation += 1;
        self
    }

    pub(super) fn inputs(&self) -> Digest {
        digest(&format!("{} {}", self.id, self.generation))
    }

    fn rendering(&self, place: Position, resource: &Resource) -> Rendering<Desired> {
        match resource {
            Resource::Broken(known) => {
                let failure = Failure { reason: Reason::TemplateInvalid, message: "failed to parameterize".to_owned() };
                Rendering::Failed { known: known.clone(), failure }
            }
            Resource::Ready(object, content, flags) => {
                let mut annotations = json!({"towline.dev/syncset-id": self.id.to_string()});
                if flags.keep {
                    annotations["towline.dev/prune"] = json!("false");
                }
                let body = json!({
                    "kind": object.kind,
                    "metadata": {
                        "name": object.name,
                        "labels": {"hive.openshift.io/managed": "true"},
                        "annotations": annotations,
                    },
                    "data": content,
                    "spec": {"group": object.name.split_once('.').map(|(_, group)| group), "names": {"kind": "Widget"}},
                });
                Rendering::Ready(Desired {
                    place,
                    object: object.clone(),
                    api_version: api_version(object),
                    content: digest(&format!("{:?} {body}", self.behavior)),
                    body,
                    may_adopt: flags.may_adopt,
                    may_recreate: flags.may_recreate,
                })
            }
        }
    }

    pub(super) fn rendered(&self) -> Rendered {
        let resources = self.resources.iter().enumerate();
        let secrets = self.secrets.iter().enumerate();
        let patches = self.patches.iter().enumerate();
        Rendered {
            resources: resources.map(|(at, resource)| self.rendering(Position::Resource(at), resource)).collect(),
            secrets: secrets.map(|(at, resource)| self.rendering(Position::Secret(at), resource)).collect(),
            patches: patches
                .map(|(at, (object, text))| {
                    Rendering::Ready(DesiredPatch {
                        place: Position::Patch(at),
                        object: object.clone(),
                        api_version: api_version(object),
                        patch_type: PatchType::Strategic,
                        body: json!(text),
                        content: digest(text),
                    })
                })
                .collect(),
        }
    }

    pub(super) fn live(&self, is_due: bool) -> Live {
        Live {
            header: Header {
                id: self.id,
                name: self.name.clone(),
                version: self.generation,
                generation: self.generation,
                behavior: self.behavior,
                mode: self.mode,
                resource_templates: false,
                patch_templates: false,
                health: None,
                secrets: Vec::new(),
            },
            inputs: self.inputs(),
            rendered: is_due.then(|| self.rendered()),
            deletions: self.deletions,
        }
    }
}

impl World {
    pub(super) fn new() -> Self {
        let mut world = Self::default();
        for (group, kind, namespaced) in [
            ("", "ConfigMap", true),
            ("", "Secret", true),
            ("", "Namespace", false),
            ("apps", "Deployment", true),
            ("extensions", "Deployment", true),
            ("apiextensions.k8s.io", "CustomResourceDefinition", false),
        ] {
            world.kinds.insert((api_version(&object(group, "", "", "")), kind.to_owned()), namespaced);
        }
        world
    }

    fn next(&mut self) -> u64 {
        self.counter += 1;
        self.counter
    }

    /// Somebody else creates an object.
    pub(super) fn create(&mut self, object: &ObjectRef) -> &mut Object {
        let (uid, version) = (self.next(), self.next());
        let created = Object {
            uid,
            version,
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            data: json!("foreign"),
            patches: BTreeSet::new(),
            terminating: false,
            deleted_at: None,
            finalizers: Vec::new(),
            remaining: None,
            owned: BTreeMap::new(),
            foreign: true,
            fields: BTreeMap::new(),
            touched_by: None,
        };
        self.objects.insert(object.clone(), created);
        self.objects.get_mut(object).expect("it was inserted")
    }

    /// What somebody has given an object otherwise than by apply: it stays when it is no longer given.
    pub(super) fn leftovers(&self, object: &ObjectRef) -> Vec<&str> {
        let found = &self.objects[object];
        ["towline-update", HIVE].into_iter().filter(|manager| found.fields.contains_key(*manager)).collect()
    }

    pub(super) fn create_by_hive(&mut self, object: &ObjectRef) -> &mut Object {
        let created = self.create(object);
        created.foreign = false;
        created.fields.insert(HIVE.to_owned(), BTreeSet::from(["of Hive".to_owned()]));
        created.labels.insert("hive.openshift.io/managed".to_owned(), "true".to_owned());
        created
    }

    /// Somebody else changes an object; `owned` if that touches our fields.
    pub(super) fn touch(&mut self, object: &ObjectRef, owned: bool) {
        let version = self.next();
        let touched = self.objects.get_mut(object).expect("an object");
        touched.version = version;
        touched.touched_by = Some("kubectl-edit".to_owned());
        if owned {
            touched.data = json!("touched");
            touched.owned.values_mut().for_each(|owned| *owned = digest(&version));
        }
    }

    pub(super) fn seen(object: &Object) -> Seen {
        let owned = |manager: Manager| object.owned.get(manager.as_str()).map(|owned| manager.tag(*owned));
        Seen {
            uid: object.uid.to_string(),
            version: object.version.to_string(),
            marks: Marks::of(&object.labels, &object.annotations),
            of_this_hub: object
                .annotations
                .get("towline.dev/syncset-id")
                .is_some_and(|id| *id != OF_ANOTHER_HUB.to_string()),
            of_hive: object.fields.contains_key(HIVE),
            ending: object.terminating.then(|| Ending {
                since: object.deleted_at,
                finalizers: object.finalizers.clone(),
                remaining: object.remaining.clone(),
            }),
            owned_by_apply: owned(Manager::Apply),
            owned_by_update: owned(Manager::Update),
            last_other: object.touched_by.clone(),
            scaled: Vec::new(),
            takeover: Takeover::default(),
        }
    }

    /// As a look at the object alone shows it.
    fn looked_at(object: &Object) -> Seen {
        let has = |manager: &str| object.fields.contains_key(manager);
        let patch = |managers: &[&str]| Box::new(json!([{"value": object.version.to_string()}, {"value": managers}]));
        let takeover = Takeover {
            ours: has("towline-update").then(|| patch(&["towline-update"])),
            with_hive: has(HIVE).then(|| patch(&["towline-update", HIVE])),
        };
        Seen { takeover, ..Self::seen(object) }
    }

    /// Whether a server refuses a body because of its UID, or its version.
    fn is_another(&self, object: &ObjectRef, body: &Value) -> Option<Refusal> {
        if body["metadata"].get("resourceVersion").is_some() {
            return self.objects.contains_key(object).then_some(Refusal::Conflict);
        }
        let uid = body["metadata"]["uid"].as_str()?;
        match self.objects.get(object) {
            None => Some(Refusal::Conflict),
            Some(found) => (found.uid.to_string() != uid).then_some(Refusal::Invalid),
        }
    }

    fn put(&mut self, object: &ObjectRef, body: &Value, manager: &'static str) -> Written {
        let created = !self.objects.contains_key(object);
        if created {
            self.create(object).foreign = false;
        }
        let version = self.next();
        let written = self.objects.get_mut(object).expect("it is there");
        let before = written.clone();
        let texts = |part: &str| -> BTreeMap<String, String> {
            let texts = body["metadata"][part].as_object().expect("a map");
            texts.iter().map(|(key, value)| (key.clone(), value.as_str().expect("a text").to_owned())).collect()
        };
        let fields = written.fields.entry(manager.to_owned()).or_default();
        if manager == "towline" {
            fields.clear();
            written.annotations.clear();
        }
        fields.insert(body["data"].as_str().expect("a text").to_owned());
        written.labels.extend(texts("labels"));
        written.annotations.extend(texts("annotations"));
        written.data = body["data"].clone();
        // The UID is a precondition, and no field of an entry.
        let mut owned = body.clone();
        owned["metadata"].as_object_mut().expect("a map").retain(|name, _| name != "uid" && name != "resourceVersion");
        written.owned.insert(manager, digest(&owned));
        if *written != before {
            written.version = version;
        }
        Written { created, seen: Self::seen(written) }
    }

    /// A request as the log has it.
    fn logged(&mut self, verb: &str, object: &ObjectRef) -> Result<(), Refused> {
        let line = format!("{verb} {object}");
        self.log.push(line.clone());
        let Some(refusal) = self.refusals.get(&line) else { return Ok(()) };
        let refused = refused(*refusal);
        Err(Refused { message: format!("{}{}", refused.message, self.words), ..refused })
    }

    pub(super) fn resolve(&mut self, api_version: &str, kind: &str, wait: bool) -> Resolution {
        self.waits += usize::from(wait);
        let served = self.kinds.get(&(api_version.to_owned(), kind.to_owned()));
        served.map_or(Resolution::NotServed, |namespaced| Resolution::Served {
            namespaced: *namespaced,
            plural: format!("{}s", kind.to_lowercase()),
        })
    }

    pub(super) fn look(&mut self, at: Address<'_>) -> Result<Option<Seen>, Refused> {
        self.logged("GET", at.object)?;
        Ok(self.objects.get(at.object).map(Self::looked_at))
    }

    pub(super) fn write(&mut self, at: Address<'_>, write: Write<'_>) -> Result<Written, Refused> {
        let object = at.object;
        self.logged(verb(write), object)?;
        let is_there = self.objects.contains_key(object);
        match write {
            Write::Apply(_) | Write::Create { .. } if !is_there && self.without_namespace(object) => {
                Err(refused(Refusal::NotFound))
            }
            Write::Apply(body)
                if self.immutable.contains(object) && is_there && self.objects[object].data != body["data"] =>
            {
                Err(refused(Refusal::Invalid))
            }
            Write::Apply(body) => {
                self.is_another(object, body).map_or(Ok(()), |refusal| Err(refused(refusal)))?;
                let written = self.put(object, body, "towline");
                self.define(object);
                Ok(written)
            }
            Write::Create { .. } if is_there => Err(refused(Refusal::Exists)),
            Write::Create { body, dry_run } => {
                assert!(!dry_run, "a try of what does not exist");
                Ok(self.put(object, body, "towline-update"))
            }
            Write::Patch { .. } if !is_there => Err(refused(Refusal::NotFound)),
            Write::Patch { patch_type: PatchType::Strategic, .. } if self.without_strategic => {
                Err(refused(Refusal::UnsupportedMediaType))
            }
            Write::Patch { patch_type: PatchType::Json, body, .. } => self.take_over(object, body),
            Write::Patch { body, .. } if body.is_object() => {
                self.is_another(object, body).map_or(Ok(()), |refusal| Err(refused(refusal)))?;
                Ok(self.put(object, body, "towline-update"))
            }
            Write::Patch { body, .. } => {
                let version = self.next();
                let patched = self.objects.get_mut(object).expect("it is there");
                if patched.patches.insert(body.to_string()) {
                    patched.version = version;
                }
                Ok(Written { created: false, seen: Self::seen(patched) })
            }
        }
    }

    fn take_over(&mut self, object: &ObjectRef, body: &Value) -> Result<Written, Refused> {
        let version = self.next();
        let patched = self.objects.get_mut(object).expect("it is there");
        if body[0]["value"] != json!(patched.version.to_string()) {
            return Err(refused(Refusal::Conflict));
        }
        for manager in body[1]["value"].as_array().expect("a list") {
            let taken = patched.fields.remove(manager.as_str().expect("a text")).unwrap_or_default();
            patched.fields.entry("towline".to_owned()).or_default().extend(taken);
        }
        patched.owned.remove("towline-update");
        patched.version = version;
        Ok(Written { created: false, seen: Self::seen(patched) })
    }

    /// A page of two objects.
    pub(super) fn list(&mut self, list: &List<'_>) -> Result<Page, Refused> {
        let List { api_version: of, kind, page, compared } = *list;
        let line = format!("LIST {kind} {page}");
        self.log.push(line.clone());
        if let Some(refusal) = self.refusals.get(&line) {
            return Err(refused(*refusal));
        }
        if self.endless_lists {
            return Ok(Page { objects: Vec::new(), more: true });
        }
        let is_listed = |(object, found): &(&ObjectRef, &Object)| {
            object.kind == kind && api_version(object) == of && Self::seen(found).marks.managed
        };
        let found: Vec<_> = self.objects.iter().filter(is_listed).collect();
        let objects = found
            .iter()
            .skip(page * 2)
            .take(2)
            .filter(|(object, _)| compared.has(&object.namespace, &object.name))
            .map(|(object, found)| (object.namespace.clone(), object.name.clone(), Self::seen(found)));
        Ok(Page { objects: objects.collect(), more: found.len() > page * 2 + 2 })
    }

    fn without_namespace(&self, of: &ObjectRef) -> bool {
        let is_known = of.namespace.is_empty() || of.namespace == "default";
        !is_known && !self.objects.contains_key(&object("", "Namespace", "", &of.namespace))
    }

    fn define(&mut self, of: &ObjectRef) {
        if let Some((_, group)) =
            of.name.split_once('.').filter(|_| of.kind == "CustomResourceDefinition" && !self.defines_nothing)
        {
            self.kinds.insert((format!("{group}/v1"), "Widget".to_owned()), true);
        }
    }

    pub(super) fn delete(&mut self, at: Address<'_>, uid: &str, version: &str) -> Result<Option<Ending>, Refused> {
        self.logged("DELETE", at.object)?;
        let Some(found) = self.objects.get_mut(at.object) else { return Ok(None) };
        if found.uid.to_string() != uid || found.version.to_string() != version {
            return Err(refused(Refusal::Conflict));
        }
        if !found.finalizers.is_empty() {
            (found.terminating, found.deleted_at) = (true, Some(Timestamp::UNIX_EPOCH));
            return Ok(Self::seen(found).ending);
        }
        if at.object.kind == "Namespace" {
            found.terminating = true;
            if !self.slow_namespaces {
                self.finish_namespaces();
            }
        } else {
            self.objects.remove(at.object);
        }
        Ok(self.objects.get(at.object).and_then(|left| Self::seen(left).ending))
    }

    /// Namespaces that are being deleted are gone, with all that is in them.
    pub(super) fn finish_namespaces(&mut self) {
        let is_ended = |(object, found): (&ObjectRef, &Object)| object.kind == "Namespace" && found.terminating;
        let ended: Vec<String> = self.objects.iter().filter(|of| is_ended(*of)).map(|of| of.0.name.clone()).collect();
        self.objects.retain(|object, _| {
            let outer = if object.kind == "Namespace" { &object.name } else { &object.namespace };
            !ended.contains(outer)
        });
    }
}

pub(super) fn refused(refusal: Refusal) -> Refused {
    Refused { refusal, message: format!("{refusal:?}").to_lowercase() }
}

pub(super) fn verb(write: Write<'_>) -> &'static str {
    match write {
        Write::Apply(_) => "APPLY",
        Write::Create { dry_run: true, .. } => "TRY",
        Write::Create { .. } => "POST",
        Write::Patch { patch_type: PatchType::Merge, .. } => "MERGE",
        Write::Patch { patch_type: PatchType::Json, .. } => "TAKE",
        Write::Patch { .. } => "PATCH",
    }
}
