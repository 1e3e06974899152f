//! YAML as Towline reads it, against the decoder of kubectl.

use serde_json::Value;
use towline::test_api::yaml::{Error, documents};

use crate::templates::drawn::Draw;
use crate::templates::go;

/// Whether two values are the same. Go prints a float that is whole as an integer, a negative zero, too; its own decoder then takes
/// what an integer of 64 bits can't hold for a float again.
fn same(ours: &Value, theirs: &Value) -> bool {
    match (ours, theirs) {
        (Value::Number(ours), Value::Number(theirs)) => {
            ours == theirs || ours.as_f64() == theirs.as_f64() && (ours.is_f64() || ours.as_u64() == Some(0))
        }
        (Value::Array(ours), Value::Array(theirs)) => {
            ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(ours, theirs)| same(ours, theirs))
        }
        (Value::Object(ours), Value::Object(theirs)) => {
            let is_same = |key: &String, ours: &Value| theirs.get(key).is_some_and(|theirs| same(ours, theirs));
            ours.len() == theirs.len() && ours.iter().all(|(key, ours)| is_same(key, ours))
        }
        (ours, theirs) => ours == theirs,
    }
}

/// What both make of the texts: how many documents, and how many refusals. Texts in which a key occurs twice are left out: kubectl
/// takes the last one.
async fn compared(texts: &[String]) -> (usize, usize) {
    let (mut read, mut refused) = (0, 0);
    for (text, answer) in texts.iter().zip(go::of_yaml(texts).await) {
        let ours = documents(text, &|_, _| Ok(()));
        if matches!(ours, Err(Error::Text { reason: "a key that occurs twice", .. })) {
            continue;
        }
        let ours = ours.map(|mut documents| documents.pop().unwrap_or_default());
        let theirs = answer.text.as_deref().map(|json| serde_json::from_str::<Value>(json).expect("JSON"));
        let are_same = match (&ours, &theirs) {
            (Ok(ours), Some(theirs)) => same(ours, theirs),
            // kubectl does not look at what a merge overwrites.
            (Err(_), theirs) => theirs.is_none() || text.contains("<<"),
            (Ok(_), None) => false,
        };
        assert!(are_same, "{text:?}: {ours:?}, kubectl: {theirs:?} {}", answer.error);
        if ours.is_ok() { read += 1 } else { refused += 1 }
    }
    (read, refused)
}

fn drawn() -> Draw {
    let seed = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7);
    println!("SEED={seed}");
    Draw::new(seed)
}

/// All texts of up to so many of these letters.
fn combined(letters: &[&str], most: usize) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut last = all.clone();
    for _ in 0..most {
        last = last.iter().flat_map(|text| letters.iter().map(move |letter| format!("{text}{letter}"))).collect();
        all.extend_from_slice(&last);
    }
    all
}

#[tokio::test]
async fn every_short_scalar_means_what_it_means_to_kubectl() {
    let letters = ["0", "1", "7", "8", "_", "-", "+", ".", "e", "x", "b", "o", "f", "E"];
    let mut texts = combined(&letters, 4);
    for word in ["y", "yes", "n", "no", "on", "off", "true", "false", "null", "~", ".inf", "+.inf", "-.inf", ".nan"] {
        let mut capital = word.to_uppercase();
        texts.push(capital.clone());
        texts.push(word.to_owned());
        capital.replace_range(1.., &word[1..]);
        texts.extend([format!("{word}x"), format!("-{word}"), capital]);
    }
    let texts: Vec<String> = texts.iter().map(|scalar| format!("v: {scalar}")).collect();
    let (read, _) = compared(&texts).await;
    assert!(read > 40_000, "{read} documents say little");
}

#[tokio::test]
async fn drawn_scalars_and_keys_mean_what_they_mean_to_kubectl() {
    let mut draw = drawn();
    let mut texts = Vec::new();
    for _ in 0..50_000 {
        let scalar = draw.scalar();
        texts.extend([
            format!("v: {scalar}"),
            format!("{scalar}: v"),
            format!("- '{scalar}'"),
            format!("- !!str {scalar}"),
        ]);
        let tag = draw.one_of(&["!!int", "!!float", "!!bool", "!!null", "!!str", "!other"]);
        texts.push(format!("v: {tag} \"{scalar}\""));
    }
    let (read, refused) = compared(&texts).await;
    assert!(read > 100_000 && refused > 10_000, "{read} documents and {refused} refusals say little");
}

#[tokio::test]
async fn drawn_documents_mean_what_they_mean_to_kubectl() {
    let mut draw = drawn();
    let texts: Vec<String> = (0..20_000).map(|_| draw.document()).collect();
    let (read, _) = compared(&texts).await;
    assert!(read > 10_000, "{read} documents say little");
}
