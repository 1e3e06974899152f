//! Payloads of syncsets and data of mapped secrets, shared by all passes of the process: what is applied to a thousand clusters is read once.
//!
//! A payload that can't be decoded is kept as the reason for that, so that it is not tried again by each pass. Secrets stay sealed, and are
//! read again when the keys have changed: they may have been encrypted again, which makes no new version.
//!
//! They are counted in the bytes that their values take, about.

use std::sync::{Arc, Weak};

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};
use serde_json::Value;
use uuid::Uuid;

use super::super::plan::parse;
use super::super::plan::rows::Failure;
use super::super::plan::spec::Payload;
use super::store::SealedSecret;
use crate::documents::{Keyring, sizes};

/// Bytes of a payload for which there is room at least in the number of entries; what the cache itself takes for an entry is small beside
/// that.
const TYPICAL: u64 = 16 << 10;

/// A document in one version.
type Key = (Uuid, i64);

/// Keeps payloads and secrets up to a total size, and drops first what was not used for long. Clones are the same cache.
#[derive(Clone)]
pub struct Payloads(Arc<Cache<Key, Content, Bytes>>);

#[derive(Clone)]
enum Content {
    Syncset(Parsed),
    /// With the keys that there were when it was read.
    Secret(Arc<SealedSecret>, Weak<Keyring>),
}

/// A payload, or why it is none.
pub type Parsed = Result<Kept, Failure>;

/// A payload, and how large it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    pub payload: Arc<Payload>,
    /// Bytes of the text that it was read from.
    pub bytes: usize,
    /// Bytes that its values take, about.
    pub built: usize,
}

impl Kept {
    pub fn of(spec: &Value) -> Parsed {
        let (bytes, built) = sizes(spec);
        Ok(Self { payload: Arc::new(parse::payload(spec)?), bytes, built })
    }
}

#[derive(Clone)]
struct Bytes;

impl Weighter<Key, Content> for Bytes {
    fn weight(&self, _key: &Key, content: &Content) -> u64 {
        let bytes = match content {
            Content::Syncset(Ok(kept)) => kept.built,
            Content::Syncset(Err(failure)) => failure.message.len(),
            Content::Secret(secret, _) => secret.sealed.as_ref().map_or(0, Vec::len),
        };
        // One without weight would never be dropped.
        u64::try_from(bytes).unwrap_or(u64::MAX).max(1)
    }
}

impl Payloads {
    /// A cache of this many bytes.
    #[expect(clippy::expect_used, reason = "it fails without one of the capacities")]
    pub fn of_bytes(capacity: u64) -> Self {
        let entries = usize::try_from(capacity / TYPICAL).unwrap_or(usize::MAX).max(1);
        // A shard keeps nothing that is larger than it is, and all passes run on one thread.
        let options =
            OptionsBuilder::new().shards(1).estimated_items_capacity(entries).weight_capacity(capacity).build();
        let options = options.expect("both capacities are given");
        Self(Arc::new(Cache::with_options(options, Bytes, DefaultHashBuilder::default(), DefaultLifecycle::default())))
    }

    /// The payload of this version of a syncset, if it is there.
    pub fn get(&self, syncset: Uuid, version: i64) -> Option<Parsed> {
        match self.0.get(&(syncset, version))? {
            Content::Syncset(parsed) => Some(parsed),
            Content::Secret(..) => None,
        }
    }

    /// Keeps a payload. One that is larger than the cache is not kept.
    pub fn keep(&self, syncset: Uuid, version: i64, payload: Parsed) {
        self.0.insert((syncset, version), Content::Syncset(payload));
    }

    /// This version of a secret, if it is there and was read under these keys.
    pub fn secret(&self, secret: Uuid, version: i64, keys: &Arc<Keyring>) -> Option<Arc<SealedSecret>> {
        match self.0.get(&(secret, version))? {
            Content::Secret(secret, of) => Weak::ptr_eq(&of, &Arc::downgrade(keys)).then_some(secret),
            Content::Syncset(_) => None,
        }
    }

    /// Keeps a secret that was read while there were these keys.
    pub fn keep_secret(&self, secret: &Arc<SealedSecret>, keys: &Arc<Keyring>) {
        self.0.insert((secret.id, secret.version), Content::Secret(Arc::clone(secret), Arc::downgrade(keys)));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::syncset::plan::reason::Reason;

    fn payload(number: u128, bytes: usize) -> Kept {
        let payload = Arc::new(Payload { resources: vec![json!(number.to_string())], patches: Vec::new() });
        Kept { payload, bytes: bytes / 5, built: bytes }
    }

    #[test]
    fn a_payload_is_found_by_its_syncset_and_version() {
        let payloads = Payloads::of_bytes(1 << 20);
        payloads.keep(Uuid::from_u128(1), 7, Ok(payload(1, 100)));
        payloads.keep(Uuid::from_u128(2), 7, Ok(payload(2, 100)));
        assert_eq!(payloads.get(Uuid::from_u128(1), 7), Some(Ok(payload(1, 100))));
        assert_eq!(payloads.get(Uuid::from_u128(2), 7), Some(Ok(payload(2, 100))));
        assert_eq!(payloads.get(Uuid::from_u128(1), 8), None, "another version");
        let failure = Failure { reason: Reason::ResourceInvalid, message: "not an object".to_owned() };
        payloads.keep(Uuid::from_u128(1), 8, Err(failure.clone()));
        assert_eq!(payloads.get(Uuid::from_u128(1), 8), Some(Err(failure)), "it is not decoded again");
    }

    #[test]
    fn a_secret_is_read_again_when_the_keys_have_changed() {
        let payloads = Payloads::of_bytes(1 << 20);
        let (keys, others) = (Arc::new(Keyring::default()), Arc::new(Keyring::default()));
        let secret = SealedSecret { id: Uuid::from_u128(1), version: 7, sealed: Some(vec![1]) };
        payloads.keep_secret(&Arc::new(secret), &keys);
        assert!(payloads.secret(Uuid::from_u128(1), 7, &keys).is_some());
        assert!(payloads.secret(Uuid::from_u128(1), 8, &keys).is_none(), "another version");
        assert!(payloads.secret(Uuid::from_u128(1), 7, &others).is_none(), "it may have been encrypted again");
    }

    #[test]
    fn all_together_never_take_more_than_the_capacity() {
        let payloads = Payloads::of_bytes(1 << 20);
        for number in 0..500 {
            payloads.keep(Uuid::from_u128(number), 1, Ok(payload(number, 16 << 10)));
            assert!(payloads.0.weight() <= 1 << 20);
        }
        let kept = (0..500).filter(|number| payloads.get(Uuid::from_u128(*number), 1).is_some()).count();
        assert!((1..=64).contains(&kept), "{kept}");
        payloads.keep(Uuid::from_u128(998), 1, Ok(payload(998, 1 << 19)));
        assert_eq!(payloads.get(Uuid::from_u128(998), 1), Some(Ok(payload(998, 1 << 19))), "half of it");
        payloads.keep(Uuid::from_u128(999), 1, Ok(payload(999, 2 << 20)));
        assert_eq!(payloads.get(Uuid::from_u128(999), 1), None);
    }
}
