//! Translates `observedGeneration` in a status: the local cluster counts generations of its own, and a consumer on the remote
//! compares the value with the generation of the remote object. Pure.

use serde_json::{Value, json};

use super::policy::Policy;
use crate::cluster::{CanonicalJson, Object};

const FIELD: &str = "observedGeneration";

/// What is known of which generations belong together.
#[derive(Debug, Clone, Copy)]
struct Generations {
    /// The present generation of the remote object.
    remote: i64,
    /// A remote generation and the local one that resulted from it: those that are noted on the remote object, and the present
    /// ones if the contents are in step.
    known: [Option<(i64, i64)>; 2],
}

impl Generations {
    /// The remote generation that the local controller has observed; `before` is what the remote status says now. Never less than
    /// that, and never more than the present generation.
    fn observed(&self, seen: i64, before: Option<i64>) -> i64 {
        let before = before.filter(|before| (0..=self.remote).contains(before));
        let reached = self.known.iter().flatten().filter(|(_, local)| seen >= *local).map(|(remote, _)| *remote);
        reached.filter(|remote| *remote <= self.remote).chain(before).max().unwrap_or(0)
    }
}

/// The local status with the generations of the remote object, at the top level and in conditions. `in_step`: the content of the
/// local object reflects the present remote generation.
pub(crate) fn translated(local: &Object, remote: &Object, in_step: bool, policy: &Policy) -> Option<CanonicalJson> {
    let status = local.status.as_ref()?;
    if !status.as_str().contains(FIELD) {
        return Some(status.clone());
    }
    let noted = |mark: &str| remote.annotation(mark).and_then(|text| text.parse::<i64>().ok());
    let of_notes = noted(&policy.marks.remote_generation).zip(noted(&policy.marks.local_generation));
    let of_present = in_step.then_some((remote.generation, local.generation));
    let generations = Generations { remote: remote.generation, known: [of_notes, of_present] };
    let before = remote.status.as_ref().map_or(Value::Null, CanonicalJson::value);
    Some(CanonicalJson::of(&translate(status.value(), &before, generations)))
}

fn translate(mut status: Value, before: &Value, generations: Generations) -> Value {
    translate_field(&mut status, before, generations);
    let before_of = |condition: &Value| {
        let mut conditions = before.get("conditions").and_then(Value::as_array).into_iter().flatten();
        conditions.rfind(|before| before.get("type") == condition.get("type")).unwrap_or(&Value::Null)
    };
    for condition in status.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten() {
        let before = before_of(condition);
        translate_field(condition, before, generations);
    }
    status
}

fn translate_field(object: &mut Value, before: &Value, generations: Generations) {
    let Some(field) = object.as_object_mut().and_then(|fields| fields.get_mut(FIELD)) else { return };
    if let Some(seen) = field.as_i64() {
        *field = json!(generations.observed(seen, before.get(FIELD).and_then(Value::as_i64)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(top: i64, ready: i64) -> Value {
        json!({
            "observedGeneration": top, "phase": "Ready",
            "conditions": [
                {"type": "Ready", "status": "True", "observedGeneration": ready},
                {"type": "Synced", "status": "False"},
            ],
        })
    }

    fn generations(remote: i64, noted: (i64, i64), present: Option<(i64, i64)>) -> Generations {
        Generations { remote, known: [Some(noted), present] }
    }

    #[test]
    fn a_generation_is_written_once_the_local_controller_has_observed_its_spec() {
        let none = Value::Null;
        for (what, seen, before, generations, expected) in [
            ("the noted one was observed", (7, 7), status(3, 3), generations(4, (4, 7), None), (4, 4)),
            ("by one of the two", (7, 6), status(3, 3), generations(4, (4, 7), None), (4, 3)),
            ("not yet", (6, 6), status(3, 2), generations(4, (4, 7), None), (3, 2)),
            ("not yet, and nothing was there", (6, 6), none.clone(), generations(4, (4, 7), None), (0, 0)),
            ("the next one waits", (7, 7), status(3, 3), generations(5, (4, 7), None), (4, 4)),
            ("the next one is in step", (8, 7), status(4, 4), generations(5, (4, 7), Some((5, 8))), (5, 4)),
            (
                "the local side has changed for reasons of its own",
                (8, 8),
                status(4, 4),
                generations(4, (4, 9), Some((4, 9))),
                (4, 4),
            ),
            ("a copied count counts for nothing", (8, 8), status(9000, 9000), generations(4, (4, 9), None), (0, 0)),
            ("notes of an earlier object", (8, 8), none, generations(1, (9, 3), None), (0, 0)),
        ] {
            let (top, ready) = seen;
            let translated = translate(status(top, ready), &before, generations);
            assert_eq!(translated, status(expected.0, expected.1), "{what}");
            assert_eq!(translate(status(top, ready), &translated, generations), translated, "{what}: idempotent");
        }
    }

    #[test]
    fn a_translated_generation_never_falls_is_never_ahead_and_other_fields_stay() {
        for remote in 1..6 {
            for (noted, local) in (1..6).flat_map(|noted| (1..6).map(move |local| (noted, local))) {
                for (seen, before) in (0..6).flat_map(|seen| (0..6).map(move |before| (seen, before))) {
                    for present in [None, Some((remote, local))] {
                        let found = generations(remote, (noted, local), present).observed(seen, Some(before));
                        assert!(found <= remote, "ahead of the object");
                        assert!(before > remote || found >= before, "it has fallen");
                        assert!(seen >= local || found <= before, "it was not observed");
                    }
                }
            }
        }
        let odd = json!({"observedGeneration": "text", "conditions": [7, {"observedGeneration": 2}], "n": {"observedGeneration": 2}});
        let expected = json!({"observedGeneration": "text", "conditions": [7, {"observedGeneration": 4}], "n": {"observedGeneration": 2}});
        assert_eq!(translate(odd, &Value::Null, generations(4, (4, 1), None)), expected);
        assert_eq!(translate(json!([1]), &Value::Null, generations(4, (4, 1), None)), json!([1]));
    }
}
