//! The labels and annotations by which other tools know what they applied. A copy that bears them looks like an object of that tool
//! in the other cluster, which then prunes it.

use super::built_in::begins_or_is;

/// kubectl's copy of the applied object. In a Secret, it has the data in base64.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// The marks of tools that prune, as patterns ([`is_match`]): kubectl, Argo CD, Flux, Helm, kustomize and cli-utils, kapp, Rancher.
/// Helm's label counts only with Helm's value.
pub const TOOL_MARKS: [&str; 11] = [
    LAST_APPLIED,
    "argocd.argoproj.io/*",
    "kustomize.toolkit.fluxcd.io/*",
    "helm.toolkit.fluxcd.io/*",
    "meta.helm.sh/*",
    "app.kubernetes.io/managed-by=Helm",
    "config.kubernetes.io/owning-inventory",
    "config.k8s.io/owning-inventory",
    "applyset.kubernetes.io/*",
    "kapp.k14s.io/*",
    "objectset.rio.cattle.io/*",
];

/// What a pattern may be.
pub const KEY_PATTERN: &str = "the key of a label or annotation, or how it begins and a `*`, such as \"argocd.argoproj.io/*\", or key and value, such as \
     \"app.kubernetes.io/managed-by=Helm\"";

/// Whether a text is a pattern, as [`is_match`] takes it.
pub fn is_key_pattern(text: &str) -> bool {
    let (key, value) = text.split_once('=').unwrap_or((text, ""));
    let plain = key.strip_suffix('*').unwrap_or(key);
    let legal = |character: char| character.is_ascii_alphanumeric() || "-_./".contains(character);
    !key.is_empty() && !value.contains('*') && plain.chars().all(legal) && plain.matches('/').count() <= 1
}

/// Whether a label or annotation matches a pattern: a key, how a key begins and a `*`, or a key, `=` and the one value that counts.
pub fn is_match(pattern: &str, key: &str, value: &str) -> bool {
    match pattern.split_once('=') {
        Some((of_key, of_value)) => begins_or_is(of_key, key) && of_value == value,
        None => begins_or_is(pattern, key),
    }
}

/// Whether a label or annotation is one of [`TOOL_MARKS`].
pub fn is_tool_mark(key: &str, value: &str) -> bool {
    TOOL_MARKS.iter().any(|pattern| is_match(pattern, key, value))
}
