//! Text from the cluster, as it may leave it.

/// The most characters of a string. Kubernetes allows no longer names; whoever forges a release can write any.
const LONGEST: usize = 1024;

/// The first 1,024 characters of a text, without control characters.
pub(in crate::inventory) fn tame(text: &str) -> String {
    text.chars().filter(|character| !character.is_control()).take(LONGEST).collect()
}

/// The most bytes of a string in the project's status, as JSON. The API server takes 1.4 MiB for the whole object.
const BRIEF: usize = 128;

/// The beginning of a text that the status has room for.
pub(in crate::inventory) fn brief(text: &str) -> &str {
    let mut left = BRIEF;
    for (position, character) in text.char_indices() {
        let Some(rest) = left.checked_sub(stored_bytes(character)) else { return text.get(..position).unwrap_or(text) };
        left = rest;
    }
    text
}

/// The bytes of a text in the API server's store.
pub(in crate::inventory) fn stored_size(text: &str) -> usize {
    text.chars().map(stored_bytes).sum()
}

/// Go's JSON escapes some characters that `serde_json` leaves as they are.
fn stored_bytes(character: char) -> usize {
    match character {
        '"' | '\\' => 2,
        '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => 6,
        other => other.len_utf8(),
    }
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

    #[test]
    fn the_status_has_room_for_128_bytes_of_a_string() {
        for (character, count) in [("a", 128), ("é", 64), ("😀", 32), ("\"", 64), ("&", 21), ("\u{2028}", 21)] {
            let kept = character.repeat(count);
            assert_eq!((brief(&kept), brief(&character.repeat(count + 1))), (kept.as_str(), kept.as_str()));
            assert!(stored_size(&kept) <= BRIEF && stored_size(&kept) > BRIEF - 6, "{character}");
        }
        assert_eq!((brief(""), stored_size("")), ("", 0));
    }
}
