//! The filters of watches and lists, and what they match, written down anew.

use std::collections::BTreeMap;

pub(crate) type Labels = BTreeMap<String, String>;
type Meaning = fn(&Labels) -> bool;

/// What a watch or a list shows.
#[derive(Clone, Debug)]
pub(crate) struct Filter {
    pub(crate) kind: &'static str,
    pub(crate) namespace: Option<&'static str>,
    /// As it stands in a URL, and what it means.
    selector: Option<(&'static str, Meaning)>,
}

impl Filter {
    pub(crate) fn of(kind: &'static str) -> Self {
        Self { kind, namespace: None, selector: None }
    }

    fn inside(self, namespace: &'static str) -> Self {
        Self { namespace: Some(namespace), ..self }
    }

    fn with(self, selector: &'static str, meaning: Meaning) -> Self {
        Self { selector: Some((selector, meaning)), ..self }
    }

    pub(crate) fn all() -> Vec<Self> {
        vec![
            Self::of("clusters"),
            Self::of("secrets"),
            Self::of("clustersyncs"),
            Self::of("clusters").inside("n0"),
            Self::of("clusters").with("tier%3Dgold", |labels| labels.get("tier").is_some_and(|found| found == "gold")),
            Self::of("clusters").with("%21tier", |labels| !labels.contains_key("tier")),
            Self::of("clusters")
                .inside("n1")
                .with("tier%20in%20%28gold%2Csilver%29", |labels| labels.contains_key("tier")),
            Self::of("secrets").inside("n2"),
            Self::of("secrets").with("tier%21%3Dgold", |labels| labels.get("tier").is_none_or(|found| found != "gold")),
            Self::of("clustersyncs").inside("n0"),
        ]
    }

    pub(crate) fn path(&self) -> String {
        let mut parameters = Vec::new();
        parameters.extend(self.namespace.map(|namespace| format!("namespace={namespace}")));
        parameters.extend(self.selector.map(|(selector, _)| format!("labelSelector={selector}")));
        let mark = if parameters.is_empty() { "" } else { "?" };
        format!("/v1/{}{mark}{}", self.kind, parameters.join("&"))
    }

    /// Whether it shows documents of this kind and namespace.
    pub(crate) fn covers(&self, kind: &str, namespace: &str) -> bool {
        self.kind == kind && self.namespace.is_none_or(|wanted| wanted == namespace)
    }

    /// Whether it shows documents with these labels.
    pub(crate) fn selects(&self, labels: &Labels) -> bool {
        self.selector.is_none_or(|(_, meaning)| meaning(labels))
    }
}
