//! Text from the cluster, as it may leave it.

/// The most characters of a string. Kubernetes allows no longer names; whoever forges a release can write any.
const LONGEST: usize = 1024;

/// The first 1,024 characters of a text, without control characters.
pub(in crate::inventory) fn tame(text: &str) -> String {
    text.chars().filter(|character| !character.is_control()).take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_is_cut_at_1024_characters_and_has_no_control_characters() {
        assert_eq!(tame("a\u{0}b\nc\u{7f}\u{85}d"), "abcd");
        let long = "é".repeat(LONGEST + 1);
        assert_eq!(tame(&long), "é".repeat(LONGEST));
        assert_eq!(tame(&format!("\n{long}")).chars().count(), LONGEST, "what is removed does not count");
    }
}
