//! Parsing and rendering what a pass sends, which may take long: it runs apart from the runtime. No I/O.

use std::collections::BTreeMap;
use std::sync::Arc;

use uuid::Uuid;

use super::PrepareError;
use super::secrets::Contents;
use crate::documents::{Aside, Weight};
use crate::syncset::payloads::{Kept, Parsed};
use crate::syncset::rules::parse;
use crate::syncset::rules::render::{self, UnreadableSecret};
use crate::syncset::rules::rows::Failure;
use crate::syncset::rules::spec::{Header, Payload, Rendered, Rendering};
use crate::syncset::rules::status::Reason;
use crate::syncset::store::PayloadRow;

/// What an object takes beside its content.
const OBJECT: usize = 512;

/// What is rendered together.
pub(super) struct Batch {
    /// Each with its payload.
    pub(super) syncsets: Vec<(Header, Parsed)>,
    /// Of the cluster.
    pub(super) labels: BTreeMap<String, String>,
    /// All that the syncsets map.
    pub(super) secrets: Contents,
}

/// A syncset that was rendered.
pub(super) struct Made {
    pub(super) syncset: Uuid,
    pub(super) rendered: Rendered,
    /// The memory that it takes, about.
    pub(super) bytes: usize,
}

/// How much there is to parse. To read the texts takes long, too.
pub(super) async fn weigh(aside: &Aside, rows: Vec<PayloadRow>) -> Result<Vec<(PayloadRow, Weight)>, PrepareError> {
    let bytes = rows.iter().map(|row| row.text.len()).sum();
    let weigh = move || {
        let weighed = rows.into_iter().map(|row| {
            let weight = Weight::of_json(row.text.as_bytes());
            (row, weight)
        });
        Ok(weighed.collect())
    };
    aside.run(bytes, weigh).await
}

/// The payloads of these texts.
pub(super) async fn parse(
    aside: &Aside,
    rows: Vec<(PayloadRow, Weight)>,
) -> Result<Vec<(PayloadRow, Parsed)>, PrepareError> {
    let bytes = rows.iter().map(|(_, weight)| weight.bytes).sum();
    let parse = move || {
        let parsed = rows.into_iter().map(|(row, weight)| {
            let PayloadRow { id, version, text } = row;
            let payload = payload(&text).map(|payload| Kept { payload: Arc::new(payload), weight });
            (PayloadRow { id, version, text: String::new() }, payload)
        });
        Ok(parsed.collect())
    };
    aside.run(bytes, parse).await
}

fn payload(text: &str) -> Result<Payload, Failure> {
    // The database has printed it, but perhaps for a release that allows more levels.
    let spec = serde_json::from_str(text).map_err(|error| Failure {
        reason: Reason::ResourceInvalid,
        message: format!("failed to decode spec: {error}"),
    })?;
    parse::payload(&spec)
}

impl Batch {
    /// Whether it takes threads to render it: patches may be YAML, and templates may make much of a short text.
    fn is_rendered_apart(&self) -> bool {
        self.syncsets.iter().any(|(header, parsed)| {
            let has_patches = parsed.as_ref().is_ok_and(|kept| !kept.payload.patches.is_empty());
            has_patches || header.resource_templates
        })
    }

    /// What the syncsets want.
    pub(super) async fn render(self, aside: &Aside) -> Result<Vec<Made>, PrepareError> {
        let weights = self.syncsets.iter().filter_map(|(_, parsed)| parsed.as_ref().ok());
        let bytes: usize = weights.map(|kept| kept.weight.bytes).sum();
        if self.is_rendered_apart() {
            return aside.apart(move || self.rendered()).await;
        }
        aside.run(bytes, move || self.rendered()).await
    }

    fn rendered(self) -> Result<Vec<Made>, PrepareError> {
        let secrets = |namespace: &str, name: &str| match self.secrets.get(&(namespace.to_owned(), name.to_owned())) {
            Some(content) => content.as_ref().map_err(|error| *error),
            None => Err(UnreadableSecret::Missing),
        };
        let made = self.syncsets.iter().map(|(header, parsed)| {
            let rendered = match parsed {
                Ok(kept) => render::render(header, &kept.payload, &self.labels, &secrets),
                Err(failure) => render::undecodable(failure.clone()),
            };
            let bytes = bytes(&rendered);
            Ok(Made { syncset: header.id, rendered, bytes })
        });
        made.collect()
    }
}

/// The memory that it takes, about.
fn bytes(rendered: &Rendered) -> usize {
    let objects = rendered.resources.iter().chain(&rendered.secrets).map(|rendering| match rendering {
        Rendering::Ready(desired) => OBJECT + Weight::of_value(&desired.body).built,
        Rendering::Failed { .. } => OBJECT,
    });
    let patches = rendered.patches.iter().map(|rendering| match rendering {
        Rendering::Ready(desired) => OBJECT + Weight::of_value(&desired.body).built,
        Rendering::Failed { .. } => OBJECT,
    });
    objects.chain(patches).sum()
}
