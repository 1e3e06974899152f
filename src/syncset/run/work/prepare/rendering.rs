//! Parsing and rendering what a pass sends, which may take long: it runs apart from the runtime. No I/O.

use std::collections::BTreeMap;

use serde_json::Value;
use uuid::Uuid;

use super::PrepareError;
use super::secrets::Contents;
use crate::documents::BlockingPool;
use crate::syncset::plan::reason::Reason;
use crate::syncset::plan::render;
use crate::syncset::plan::render::UnreadableSecret;
use crate::syncset::plan::rows::Failure;
use crate::syncset::plan::spec::{Header, Rendered};
use crate::syncset::run::payloads::{Kept, Parsed};
use crate::syncset::run::store::PayloadRow;

pub(super) struct Batch {
    pub(super) syncsets: Vec<(Header, Parsed)>,
    /// Of the cluster.
    pub(super) labels: BTreeMap<String, String>,
    /// All that the syncsets map.
    pub(super) secrets: Contents,
}

pub(super) async fn parse(
    blocking: &BlockingPool,
    rows: Vec<PayloadRow>,
) -> Result<Vec<(PayloadRow, Parsed)>, PrepareError> {
    let bytes = rows.iter().map(|row| row.text.len()).sum();
    let parse = move || {
        let parsed = rows.into_iter().map(|PayloadRow { id, version, text }| {
            let payload = payload(&text);
            (PayloadRow { id, version, text: String::new() }, payload)
        });
        Ok(parsed.collect())
    };
    blocking.run(bytes, parse).await
}

fn payload(text: &str) -> Parsed {
    // The database has printed it, but perhaps for a release that allows more levels.
    let spec: Value = serde_json::from_str(text).map_err(|error| Failure {
        reason: Reason::ResourceInvalid,
        message: format!("failed to decode spec: {error}"),
    })?;
    Kept::of(&spec)
}

impl Batch {
    /// Whether it takes threads to render it: patches may be YAML, and templates may make much of a short text.
    fn is_rendered_apart(&self) -> bool {
        self.syncsets.iter().any(|(header, parsed)| {
            let has_patches = parsed.as_ref().is_ok_and(|kept| !kept.payload.patches.is_empty());
            has_patches || header.resource_templates
        })
    }

    /// What the syncsets want, by their ids.
    pub(super) async fn render(self, blocking: &BlockingPool) -> Result<BTreeMap<Uuid, Rendered>, PrepareError> {
        let kept = self.syncsets.iter().filter_map(|(_, parsed)| parsed.as_ref().ok());
        let bytes: usize = kept.map(|kept| kept.bytes).sum();
        if self.is_rendered_apart() {
            return blocking.apart(move || Ok(self.rendered())).await;
        }
        blocking.run(bytes, move || Ok(self.rendered())).await
    }

    fn rendered(self) -> BTreeMap<Uuid, Rendered> {
        let secrets = |namespace: &str, name: &str| match self.secrets.get(&(namespace.to_owned(), name.to_owned())) {
            Some(content) => content.as_ref().map_err(|error| *error),
            None => Err(UnreadableSecret::Missing),
        };
        let rendered = self.syncsets.iter().map(|(header, parsed)| {
            let rendered = match parsed {
                Ok(kept) => render::render(header, &kept.payload, &self.labels, &secrets),
                Err(failure) => render::undecodable(failure.clone()),
            };
            (header.id, rendered)
        });
        rendered.collect()
    }
}
