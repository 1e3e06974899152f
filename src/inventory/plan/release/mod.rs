//! What is read of a release: Helm's record of it, decoded while it is read.
//!
//! A Secret of Helm's driver holds the release as JSON, usually compressed by gzip, in base64; the API server encodes it once more. A
//! `ConfigMap` holds Helm's base64 as it is. A record of 900 KB may unpack to many megabytes, of which a few short strings and the names
//! of some objects of the manifest are of interest: all else passes by, and nothing of it is held.

mod manifest;
mod shortened;

use std::collections::BTreeSet;
use std::io::{self, BufReader, Read};
use std::sync::Arc;

use base64::engine::general_purpose::STANDARD;
use base64::read::DecoderReader;
use flate2::read::GzDecoder;
use serde::Deserialize;

use super::text::tame;
use crate::config::names::is_label;
use crate::inventory::config::Storage;
use manifest::Manifest;
use shortened::Shortened;

/// The most bytes that a release may have unpacked.
const LARGEST: u64 = 64 << 20;
/// The most bytes of a string, as it is written, of which the manifest is the longest one. The end of a longer one is not read.
const LONGEST: usize = 4 << 20;
/// How gzip begins. Helm, too, tells by this whether a record is compressed.
const GZIP: [u8; 3] = [0x1f, 0x8b, 0x08];

/// What is read of a release.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::inventory) struct Facts {
    /// `info.last_deployed`, as Helm wrote it.
    pub(in crate::inventory) updated: String,
    /// `chart.metadata.name`.
    pub(in crate::inventory) chart: String,
    /// `chart.metadata.appVersion`.
    pub(in crate::inventory) app_version: String,
}

/// A record that was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::inventory) struct Recorded {
    /// The namespace of the release, unless the record has none that could be one.
    pub(in crate::inventory) namespace: Option<String>,
    /// What is told of it.
    pub(in crate::inventory) facts: Facts,
    /// What its manifest lists of objects that do not name the release themselves.
    pub(in crate::inventory) unlabelled: BTreeSet<Arc<str>>,
}

/// Why a release can't be decoded. Nothing of it is repeated: a decoder's error quotes what it has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::inventory) enum Undecodable {
    /// It unpacks to more than is read.
    #[error("the release unpacks to more than 64 MiB")]
    TooLarge,
    /// It is not what Helm writes.
    #[error("the record is no release of Helm")]
    Malformed,
}

#[derive(Deserialize)]
struct Record {
    #[serde(default)]
    name: String,
    #[serde(default)]
    namespace: Option<String>,
    #[serde(default)]
    manifest: Manifest,
    info: Info,
    chart: Chart,
}

#[derive(Deserialize)]
struct Info {
    #[serde(default)]
    last_deployed: String,
}

#[derive(Deserialize)]
struct Chart {
    metadata: Metadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    #[serde(default)]
    app_version: Option<String>,
}

/// Reads a release from the text of `data.release` of the object that stores it.
pub(in crate::inventory) fn decode(stored: &str, storage: Storage) -> Result<Recorded, Undecodable> {
    let once = DecoderReader::new(stored.as_bytes(), &STANDARD);
    match storage {
        Storage::Secret => unpack(DecoderReader::new(BufReader::new(once), &STANDARD)),
        Storage::ConfigMap => unpack(once),
    }
}

fn unpack(mut packed: impl Read) -> Result<Recorded, Undecodable> {
    let mut head = Vec::with_capacity(GZIP.len());
    let mut beginning = packed.by_ref().take(GZIP.len() as u64);
    beginning.read_to_end(&mut head).map_err(|_| Undecodable::Malformed)?;
    let is_packed = head == GZIP;
    let whole = io::Cursor::new(head).chain(packed);
    if is_packed { read(GzDecoder::new(BufReader::new(whole))) } else { read(whole) }
}

fn read(document: impl Read) -> Result<Recorded, Undecodable> {
    let mut bounded = document.take(LARGEST + 1);
    let mut deserializer =
        serde_json::Deserializer::from_reader(BufReader::new(Shortened::new(bounded.by_ref(), LONGEST)));
    let record = Record::deserialize(&mut deserializer).and_then(|record| deserializer.end().map(|()| record));
    drop(deserializer);
    if bounded.limit() == 0 {
        return Err(Undecodable::TooLarge);
    }
    let record = record.map_err(|_| Undecodable::Malformed)?;
    let Record { name, namespace, manifest, info, chart: Chart { metadata } } = record;
    let namespace = namespace.filter(|namespace| is_label(namespace));
    Ok(Recorded {
        unlabelled: manifest.unlabelled(&name, namespace.as_deref()),
        namespace,
        facts: Facts {
            updated: tame(&info.last_deployed),
            chart: tame(&metadata.name),
            app_version: tame(&metadata.app_version.unwrap_or_default()),
        },
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use base64::Engine;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn decode(stored: &str, storage: Storage) -> Result<Facts, Undecodable> {
        super::decode(stored, storage).map(|recorded| recorded.facts)
    }

    #[test]
    fn the_namespace_of_a_release_is_that_of_its_record_if_it_can_be_one() {
        let namespace = |value: Value| {
            let mut release = release();
            release["namespace"] = value;
            let text = stored(release.to_string().as_bytes(), Storage::Secret);
            super::decode(&text, Storage::Secret).unwrap().namespace
        };
        assert_eq!(namespace(json!("team-1")).as_deref(), Some("team-1"));
        for none in [json!(""), Value::Null, json!("Team"), json!("a/b"), json!("a".repeat(64))] {
            assert_eq!(namespace(none.clone()), None, "{none}");
        }
    }

    fn packed(document: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(document).unwrap();
        encoder.finish().unwrap()
    }

    fn stored(bytes: &[u8], storage: Storage) -> String {
        let once = STANDARD.encode(bytes);
        if storage == Storage::Secret { STANDARD.encode(once) } else { once }
    }

    fn release() -> Value {
        json!({
            "name": "keycloak", "namespace": "default", "version": 3, "manifest": "kind: Secret\ncanary",
            "info": {"first_deployed": "2025-01-01T00:00:00Z", "last_deployed": "2026-11-21T21:58:40.338988+05:30",
                "status": "deployed", "notes": "canary"},
            "chart": {"metadata": {"name": "keycloak-chart", "version": "18.0.0", "appVersion": "23.0.5", "icon": null},
                "templates": [{"name": "a", "data": "Y2FuYXJ5"}], "values": {"deep": [[{"password": "canary"}]]}},
            "config": {"password": "canary"}, "hooks": null,
        })
    }

    fn facts() -> Facts {
        Facts {
            updated: "2026-11-21T21:58:40.338988+05:30".into(),
            chart: "keycloak-chart".into(),
            app_version: "23.0.5".into(),
        }
    }

    #[test]
    fn a_release_is_read_packed_or_not_from_a_secret_or_a_config_map() {
        let document = release().to_string();
        for storage in [Storage::Secret, Storage::ConfigMap] {
            for bytes in [packed(document.as_bytes()), document.clone().into_bytes()] {
                assert_eq!(decode(&stored(&bytes, storage), storage), Ok(facts()), "{storage:?}");
            }
            let other = if storage == Storage::Secret { Storage::ConfigMap } else { Storage::Secret };
            let text = stored(&packed(document.as_bytes()), storage);
            assert_eq!(decode(&text, other), Err(Undecodable::Malformed), "{storage:?}");
        }
    }

    #[test]
    fn a_chart_without_a_version_of_its_application_has_an_empty_one() {
        for absent in [None, Some(Value::Null), Some(json!(""))] {
            let mut release = release();
            let metadata = release["chart"]["metadata"].as_object_mut().unwrap();
            metadata.remove("appVersion");
            metadata.extend(absent.map(|absent| ("appVersion".to_owned(), absent)));
            let text = stored(&packed(release.to_string().as_bytes()), Storage::Secret);
            assert_eq!(decode(&text, Storage::Secret).unwrap().app_version, "");
        }
    }

    #[test]
    fn a_release_that_unpacks_to_more_than_64_mib_is_not_read_to_its_end() {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(b"{\"manifest\":\"").unwrap();
        let part = vec![b'a'; 1 << 20];
        for _ in 0..65 {
            encoder.write_all(&part).unwrap();
        }
        let bomb = encoder.finish().unwrap();
        assert_eq!(decode(&stored(&bomb, Storage::Secret), Storage::Secret), Err(Undecodable::TooLarge));
    }

    #[test]
    fn what_helm_does_not_write_is_malformed() {
        let document = release().to_string();
        let cut = packed(document.as_bytes());
        let without = |field: &str| {
            let mut release = release();
            release.as_object_mut().unwrap().remove(field);
            release.to_string().into_bytes()
        };
        let mut other_type = release();
        other_type["chart"]["metadata"]["name"] = json!(7);
        let samples = [
            Vec::new(),
            b"{}".to_vec(),
            b"null".to_vec(),
            GZIP.to_vec(),
            cut[..cut.len() / 2].to_vec(),
            document.as_bytes()[..document.len() - 1].to_vec(),
            format!("{document}x").into_bytes(),
            without("info"),
            without("chart"),
            other_type.to_string().into_bytes(),
        ];
        for sample in samples {
            let text = stored(&sample, Storage::Secret);
            assert_eq!(decode(&text, Storage::Secret), Err(Undecodable::Malformed), "{sample:?}");
        }
        assert_eq!(decode("no base64!", Storage::Secret), Err(Undecodable::Malformed));
    }

    #[test]
    fn strings_of_a_release_are_tamed() {
        let mut release = release();
        release["chart"]["metadata"]["name"] = json!(format!("a\u{0}\n{}", "b".repeat(100_000)));
        let text = stored(release.to_string().as_bytes(), Storage::ConfigMap);
        assert_eq!(decode(&text, Storage::ConfigMap).unwrap().chart, format!("a{}", "b".repeat(1023)));
    }

    proptest! {
        #[test]
        fn no_record_makes_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), packs: bool) {
            let bytes = if packs { packed(&bytes) } else { bytes };
            let _ = decode(&stored(&bytes, Storage::Secret), Storage::Secret);
            let _ = decode(&String::from_utf8_lossy(&bytes), Storage::ConfigMap);
        }
    }
}
