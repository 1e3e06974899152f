//! Hashes that are kept in place of objects and rows.

use std::fmt;
use std::sync::Arc;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::families::Fields;
use super::family::{FamilySpec, Home, is_label_of_ours};
use crate::cluster::{CanonicalJson, Object};

/// The hash of our fields of an object: 128 bits of SHA-256 over their canonical JSON. A field that is absent and one
/// that is null are the same.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Digest(u128);

impl Digest {
    /// The digest of the desired fields of an object.
    pub fn of(fields: &Fields) -> Self {
        Self::over(fields.iter().map(|(name, value)| (*name, value)))
    }

    /// The digest of fields that are sorted by name.
    fn over<'v>(fields: impl Iterator<Item = (&'static str, &'v Value)>) -> Self {
        let mut hash = Sha256::new();
        for (name, value) in fields.filter(|(_, value)| !value.is_null()) {
            hash.update(name);
            hash.update(b":");
            hash.update(value.to_string());
            hash.update(b"\n");
        }
        let bytes = hash.finalize();
        Self(bytes.iter().take(16).fold(0, |all, byte| all << 8 | u128::from(*byte)))
    }

    /// The digest that the cache holds in place of an object's content, after [`projection`].
    pub fn held(object: &Object) -> Option<Self> {
        u128::from_str_radix(object.content.as_str().trim_matches('"'), 16).ok().map(Self)
    }

    fn to_content(self) -> CanonicalJson {
        CanonicalJson::of(&Value::String(format!("{:032x}", self.0)))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:032x}", self.0)
    }
}

/// Reduces an object as it comes from the watch: the digest of our fields replaces its content, and of its metadata
/// only the part remains that shows to whom the object belongs. One object may be 55 KB; its entry in the cache is
/// small.
pub fn projection(spec: FamilySpec) -> Arc<dyn Fn(&mut Object) + Send + Sync> {
    Arc::new(move |object| {
        let home = match spec.home {
            Home::Status => object.status.take(),
            Home::Root => Some(object.content.clone()),
        };
        let home = home.map(|text| text.value());
        let fields = spec.fields.iter().filter_map(|name| Some((*name, home.as_ref()?.get(*name)?)));
        object.content = Digest::over(fields).to_content();
        object.status = None;
        object.annotations.clear();
        object.finalizers.clear();
        object.owned = Vec::new();
        object.labels.retain(|key, _| is_label_of_ours(key));
    })
}

/// The `status` rows of one hub object: how many there are, and the sum of their hashes, which does not depend on their
/// order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint {
    rows: i64,
    sum: i128,
}

impl Fingerprint {
    /// The fingerprint as change detection returns it.
    pub fn new(rows: i64, sum: i128) -> Self {
        Self { rows, sum }
    }

    pub fn add(&mut self, hash: i64) {
        self.rows += 1;
        self.sum += i128::from(hash);
    }

    pub fn rows(&self) -> i64 {
        self.rows
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::family_spec;
    use super::*;
    use crate::cluster::object::Decoded;
    use crate::status_sync::config::StatusFamily;

    fn project(family: StatusFamily, object: &Value) -> Object {
        let mut object = serde_json::from_value::<Decoded>(object.clone()).unwrap().into_object();
        projection(family_spec(family))(&mut object);
        object
    }

    #[test]
    fn an_object_with_the_desired_fields_has_their_digest_whatever_else_it_holds() {
        let desired = Fields::from([("status", json!([{"clustername": "a"}]))]);
        let held = project(
            StatusFamily::Policies,
            &json!({"metadata": {"name": "p", "namespace": "n", "annotations": {"a": "b"}}, "spec": {"big": "x"},
                "status": {"placement": [1], "compliant": null, "status": [{"clustername": "a"}]}}),
        );
        assert_eq!(Digest::held(&held), Some(Digest::of(&desired)));
        assert!(held.status.is_none() && held.annotations.is_empty());
    }

    #[test]
    fn the_digest_of_a_kind_without_a_status_is_of_its_own_fields() {
        let desired = Fields::from([("statuses", json!({"packages": []}))]);
        let held = project(
            StatusFamily::SubscriptionStatuses,
            &json!({"metadata": {"name": "p"}, "statuses": {"packages": []}, "status": {"statuses": 1}}),
        );
        assert_eq!(Digest::held(&held), Some(Digest::of(&desired)));
    }

    #[test]
    fn a_field_more_or_less_is_another_digest() {
        let one = Fields::from([("compliant", json!("Compliant"))]);
        let other = Fields::from([("compliant", json!("Compliant")), ("status", json!([]))]);
        assert_ne!(Digest::of(&one), Digest::of(&other));
        assert_ne!(Digest::of(&one), Digest::of(&Fields::new()));
    }

    proptest! {
        #[test]
        fn a_fingerprint_does_not_depend_on_the_order_of_rows(mut hashes: Vec<i64>, seed: usize) {
            let sum = |hashes: &[i64]| {
                let mut fingerprint = Fingerprint::default();
                for hash in hashes {
                    fingerprint.add(*hash);
                }
                fingerprint
            };
            let before = sum(&hashes);
            let length = hashes.len().max(1);
            hashes.rotate_left(seed % length);
            hashes.reverse();
            prop_assert_eq!(before, sum(&hashes));
            prop_assert_eq!(before, Fingerprint::new(i64::try_from(hashes.len()).unwrap(), hashes.iter().map(|hash| i128::from(*hash)).sum()));
        }
    }
}
