//! Values that must be nowhere, however they are written.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// The ways in which a value can be written: as it is, as a list of bytes, in hexadecimal, in base64 at each of its three offsets.
pub fn spellings(value: &str) -> Vec<String> {
    let bytes = value.as_bytes();
    let decimal: Vec<String> = bytes.iter().map(u8::to_string).collect();
    let hexadecimal = bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    let mut found =
        vec![value.to_owned(), decimal.join(", "), decimal.join(","), hexadecimal.to_uppercase(), hexadecimal];
    for offset in 0..3 {
        let encoded = STANDARD.encode([&vec![0; offset][..], bytes].concat());
        // Characters whose encoding depends on their neighbours are left out.
        found.extend(encoded.get(4..encoded.len() - 4).map(str::to_owned));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_spelling_of_a_value_is_found() {
        const VALUE: &str = "canary-7c3e-kubeconfig";
        for before in ["", "a", "ab", "abc"] {
            let text = format!("{before}{VALUE}more");
            let hexadecimal = text.bytes().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
            for written in [text.clone(), STANDARD.encode(&text), hexadecimal, format!("{:?}", text.as_bytes())] {
                assert!(spellings(VALUE).iter().any(|spelling| written.contains(spelling)), "{written}");
            }
        }
    }
}
