//! Which objects a syncset names on a cluster: names and namespaces of resources may be templates, of which the cluster's labels make
//! the names.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use uuid::Uuid;

use super::name::{ObjectRef, SyncSetName};
use super::parse::{self, Identity};
use super::spec::{Header, Mode};
use super::wanted::{is_within, may_be_in};
use crate::documents::{Template, TextBudget, group_of, is_kind, is_path_segment};

/// Group, kind, namespace and name of objects.
pub type Objects = BTreeSet<[String; 4]>;
/// Version, kind, namespace and name of a resource, as a document gives them.
pub type Resource = [Option<String>; 4];

/// The resources of a syncset and the targets of its secrets, before labels are known.
#[derive(Clone, Debug, PartialEq)]
pub struct Naming(Vec<Named>);

#[derive(Clone, Debug, PartialEq)]
struct Named {
    group: String,
    kind: String,
    namespace: Segment,
    name: Segment,
}

/// A name or a namespace.
#[derive(Clone, Debug, PartialEq)]
enum Segment {
    Plain(String),
    Template(Template),
    /// The API server would accept no object of this name.
    Invalid,
}

/// The objects that a syncset names on a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    objects: Objects,
    /// Group, kind and name of each: kinds without namespaces have none on clusters.
    bare: BTreeSet<[String; 3]>,
    /// Kinds of which a name or namespace does not render: nothing of them is deleted.
    unknown: BTreeSet<[String; 2]>,
    /// They may be any objects.
    anything: bool,
}

impl Naming {
    /// How a document names objects; none if it deletes none of those that it no longer names, or can't be read. `spec` may be without
    /// resources and patches; `resources` is none if they are no list.
    pub fn read(name: &SyncSetName, spec: &Value, resources: Option<&[Resource]>) -> Option<Self> {
        let identity = Identity { id: Uuid::nil(), name: name.clone(), version: 0, generation: 0 };
        let header = parse::header(identity, spec).ok().filter(|header| header.mode == Mode::Sync)?;
        Self::of(&header, resources)
    }

    /// The same whether it deletes something or not.
    pub fn of_any(name: &SyncSetName, spec: &Value, resources: Option<&[Resource]>) -> Option<Self> {
        let identity = Identity { id: Uuid::nil(), name: name.clone(), version: 0, generation: 0 };
        Self::of(&parse::header(identity, spec).ok()?, resources)
    }

    fn of(header: &Header, resources: Option<&[Resource]>) -> Option<Self> {
        let resources = resources?.iter().map(|resource| Named::of(resource, header.resource_templates));
        let targets = header.secrets.iter().map(|mapping| Named {
            group: String::new(),
            kind: "Secret".to_owned(),
            namespace: Segment::Plain(mapping.target_namespace.clone()),
            name: Segment::Plain(mapping.target_name.clone()),
        });
        resources.chain(targets.map(Some)).collect::<Option<_>>().map(Self)
    }

    /// How many objects it names on each cluster.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The objects that it names on each cluster, whatever its labels are.
    pub fn plain(&self) -> Objects {
        let plain = |named: &Named| match (&named.namespace, &named.name) {
            (Segment::Plain(namespace), Segment::Plain(name)) => {
                Some([named.group.clone(), named.kind.clone(), namespace.clone(), name.clone()])
            }
            _ => None,
        };
        self.0.iter().filter_map(plain).collect()
    }

    /// The objects that it names on a cluster with these labels.
    pub fn names(&self, labels: &BTreeMap<String, String>) -> Names {
        let (mut found, mut budget) = (Names::default(), TextBudget::default());
        for Named { group, kind, namespace, name } in &self.0 {
            // In the order in which a pass renders them, since they share what they may make.
            let name = name.render(labels, &mut budget);
            let namespace = name.as_ref().and_then(|_| namespace.render(labels, &mut budget));
            if let (Some(name), Some(namespace)) = (name, namespace) {
                found.bare.insert([group.clone(), kind.clone(), name.clone()]);
                found.objects.insert([group.clone(), kind.clone(), namespace, name]);
            } else {
                found.unknown.insert([group.clone(), kind.clone()]);
            }
        }
        found
    }
}

impl Named {
    /// None if it can't be read what kind it is.
    fn of([version, kind, namespace, name]: &Resource, has_templates: bool) -> Option<Self> {
        let group = group_of(version.as_deref()?)?;
        let kind = kind.as_deref().filter(|kind| is_kind(kind) && *kind != "List")?;
        let segment = |text: &str| if has_templates { Segment::of(text) } else { Segment::plain(text) };
        Some(Self {
            group: group.to_owned(),
            kind: kind.to_owned(),
            namespace: match namespace.as_deref().unwrap_or_default() {
                "" => Segment::Plain(String::new()),
                text => segment(text),
            },
            name: segment(name.as_deref().unwrap_or_default()),
        })
    }
}

impl Segment {
    fn plain(text: &str) -> Self {
        if is_path_segment(text) { Self::Plain(text.to_owned()) } else { Self::Invalid }
    }

    fn of(text: &str) -> Self {
        if text.contains("{{") {
            Template::parse(text).map_or(Self::Invalid, Self::Template)
        } else {
            Self::plain(text)
        }
    }

    /// None if it does not render, or to nothing that could be sent.
    fn render(&self, labels: &BTreeMap<String, String>, budget: &mut TextBudget) -> Option<String> {
        match self {
            Self::Plain(text) => Some(text.clone()),
            Self::Template(template) => {
                let label = |key: &str| labels.get(key).map(String::as_str);
                template.render(&label, budget).ok().filter(|text| is_path_segment(text))
            }
            Self::Invalid => None,
        }
    }
}

impl Names {
    /// Those of a syncset that can't be read.
    pub fn anything() -> Self {
        Self { anything: true, ..Self::default() }
    }

    /// Whether this object may be one of them, or one in which one of them is.
    pub fn need(&self, object: &ObjectRef) -> bool {
        let ObjectRef { group, kind, namespace, name } = object.clone();
        let is_inner = |[group, kind, namespace, name]: &[String; 4]| {
            let [group, kind, namespace, name] = [group, kind, namespace, name].map(String::clone);
            is_within(&ObjectRef { group, kind, namespace, name }, object)
        };
        self.anything || self.may_have(&[group, kind, namespace, name]) || self.objects.iter().any(is_inner)
    }

    /// Whether they name such an object: without a group, one of any, and without a namespace on either side, one in any.
    pub fn include(&self, group: Option<&str>, kind: &str, namespace: &str, name: &str) -> bool {
        self.objects.iter().any(|[of_group, of_kind, within, named]| {
            let is_place = namespace.is_empty() || within.is_empty() || within == namespace;
            is_place && group.is_none_or(|group| group == of_group) && kind == of_kind && name == named
        })
    }

    /// Whether this object may be one of them, or one in which such an object may be: then it is not deleted.
    pub fn may_have(&self, object: &[String; 4]) -> bool {
        let [group, kind, namespace, name] = object.clone();
        if self.objects.contains(object)
            || (namespace.is_empty() && self.bare.contains(&[group.clone(), kind.clone(), name.clone()]))
        {
            return true;
        }
        let object = ObjectRef { group, kind, namespace, name };
        self.unknown.iter().any(|[group, kind]| may_be_in(group, kind, &object))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::syncset::plan::name::SyncSetKind;
    use crate::syncset::plan::render::{UnreadableSecret, render};
    use crate::syncset::plan::spec::{Known, Payload, Rendering};

    const REGION: &str = "{{ fromCDLabel \"region\" }}";

    fn object(kind: &str, namespace: &str, name: &str) -> [String; 4] {
        ["", kind, namespace, name].map(str::to_owned)
    }

    fn resource(kind: &str, namespace: &str, name: &str) -> Resource {
        ["v1", kind, namespace, name].map(|text| Some(text.to_owned()))
    }

    fn name() -> SyncSetName {
        SyncSetName { kind: SyncSetKind::SyncSet, namespace: "team".to_owned(), name: "base".to_owned() }
    }

    fn naming(spec: &Value, resources: Option<&[Resource]>) -> Option<Naming> {
        Naming::read(&name(), spec, resources)
    }

    #[test]
    fn labels_make_the_names_of_templates_and_no_others() {
        let resources = [
            resource("ConfigMap", "default", "plain"),
            resource("ConfigMap", "{{ fromCDLabel \"env\" }}", "site-{{ fromCDLabel \"region\" }}"),
            resource("Namespace", "ignored", "monitoring"),
        ];
        let spec = json!({"resourceApplyMode": "Sync", "enableResourceTemplates": true,
            "secretMappings": [{"sourceRef": {"name": "s"}, "targetRef": {"name": "t", "namespace": "default"}}]});
        let naming = naming(&spec, Some(&resources)).expect("it names objects");
        assert_eq!(naming.count(), 4);
        let plain = [
            object("ConfigMap", "default", "plain"),
            object("Namespace", "ignored", "monitoring"),
            object("Secret", "default", "t"),
        ];
        assert_eq!(naming.plain(), plain.into());
        let labels = |env: &str, region: &str| {
            BTreeMap::from([("env".to_owned(), env.to_owned()), ("region".to_owned(), region.to_owned())])
        };
        let named = naming.names(&labels("a", "b"));
        for (group, kind, namespace, name, expected) in [
            (None, "ConfigMap", "a", "site-b", true),
            (None, "ConfigMap", "", "site-b", true),
            (Some("apps"), "ConfigMap", "a", "site-b", false),
            (None, "ConfigMap", "b", "site-b", false),
            (None, "Secret", "a", "site-b", false),
        ] {
            assert_eq!(named.include(group, kind, namespace, name), expected, "{group:?} {kind} {namespace}/{name}");
        }
        for (labels, object, expected) in [
            (labels("a", "b"), object("ConfigMap", "a", "site-b"), true),
            (labels("a", "c"), object("ConfigMap", "a", "site-b"), false),
            (labels("a", "b"), object("ConfigMap", "default", "plain"), true),
            (labels("a", "b"), object("ConfigMap", "default", "other"), false),
            (labels("a", "b"), object("Namespace", "", "monitoring"), true),
            (labels("a", "b"), object("Namespace", "", "other"), false),
            // While a name does not render, nothing of its kind is deleted, nor a namespace.
            (labels("a", "b/c"), object("ConfigMap", "a", "site-b"), true),
            (labels("a", "b/c"), object("Namespace", "", "other"), true),
            (labels("a", "b/c"), object("Secret", "a", "other"), false),
        ] {
            assert_eq!(naming.names(&labels).may_have(&object), expected, "{object:?} {labels:?}");
        }
    }

    #[test]
    fn what_deletes_nothing_or_can_not_be_read_names_nothing() {
        let resources = [resource("ConfigMap", "default", "a")];
        let sync = json!({"resourceApplyMode": "Sync", "secretMappings": []});
        assert!(naming(&sync, Some(&resources)).is_some());
        for (spec, resources) in [
            (json!({"resourceApplyMode": "Upsert", "secretMappings": []}), Some(&resources[..])),
            (json!({"resourceApplyMode": "Other", "secretMappings": []}), Some(&resources)),
            (sync.clone(), None),
            (sync.clone(), Some(&[resource("List", "default", "a")])),
            (sync, Some(&[resource("", "default", "a")])),
        ] {
            assert_eq!(naming(&spec, resources), None, "{spec}");
        }
    }

    fn some_segment() -> impl Strategy<Value = String> {
        prop_oneof![
            Just(String::new()),
            "[ab./%]{1,2}",
            Just(REGION.to_owned()),
            "x-[ab]".prop_map(|text| text + REGION)
        ]
    }

    proptest! {
        /// The guard names objects as a pass does.
        #[test]
        fn names_are_those_of_a_pass(
            named in proptest::collection::vec(("(x|v1|a/v1|a/b/c)", "(Kind|List|)", some_segment(), some_segment()), 0..6),
            region in proptest::option::of("(|a|b|\\.\\.|a/b)"),
        ) {
            let given = |text: &String| (!text.is_empty()).then(|| text.clone());
            let resources: Vec<Resource> = named
                .iter()
                .map(|(version, kind, namespace, name)| [given(version), given(kind), given(namespace), given(name)])
                .collect();
            let labels: BTreeMap<String, String> = region.into_iter().map(|region| ("region".to_owned(), region)).collect();
            let spec = json!({"resourceApplyMode": "Sync", "enableResourceTemplates": true, "secretMappings": []});
            let identity = Identity { id: Uuid::nil(), name: name(), version: 0, generation: 0 };
            let header = parse::header(identity, &spec).expect("a header");
            let values = named.iter().map(|(version, kind, namespace, name)| {
                json!({"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace}})
            });
            let payload = Payload { resources: values.collect(), patches: Vec::new() };
            let rendered = render(&header, &payload, &labels, &|_, _| Err(UnreadableSecret::Missing));
            let (mut objects, mut unknown, mut anything) = (Objects::new(), BTreeSet::new(), false);
            for rendering in rendered.resources {
                let known = match rendering {
                    Rendering::Ready(desired) => Known::Object(desired.object),
                    Rendering::Failed { known, .. } => known,
                };
                match known {
                    Known::Object(ObjectRef { group, kind, namespace, name }) => {
                        objects.insert([group, kind, namespace, name]);
                    }
                    Known::Kind { group, kind } => drop(unknown.insert([group, kind])),
                    Known::Nothing => anything = true,
                }
            }
            match naming(&spec, Some(&resources)) {
                None => prop_assert!(anything),
                Some(naming) => {
                    let found = naming.names(&labels);
                    prop_assert!(!anything);
                    prop_assert_eq!((found.objects, found.unknown), (objects, unknown));
                }
            }
        }
    }
}
