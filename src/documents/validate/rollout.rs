//! `spec.rollout` of a syncset: in which waves a change of its content reaches the clusters.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::faults::Faults;
use super::fields::{boolean, list, object, required, word};
use super::selector;
use crate::config::Requirement;
use crate::config::names::is_label;
use crate::config::text::{described, quoted};
use crate::documents::body::Path;

/// The field of `spec`.
pub(super) const ROLLOUT: &str = "rollout";
/// The wave of the clusters that are in no other.
const REST: &str = "rest";
/// Most waves of a rollout, that one aside.
const WAVES: usize = 20;
/// Most values that the selectors of all waves compare: each look at a rollout compares them with the labels of its clusters.
pub const MOST_WAVE_VALUES: usize = 1_000;
/// How long a wave may be watched before the next begins.
const SOAK: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_hours(30 * 24);
/// Most clusters that are counted.
const MOST: u64 = 100_000;

/// How many clusters: `3`, or `"10%"` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Amount {
    Count(u64),
    Percent(u64),
}

/// Reads a count or a percentage.
fn amount(value: &Value) -> Option<Amount> {
    if let Some(count) = value.as_u64() {
        return (count <= MOST).then_some(Amount::Count(count));
    }
    let percent = value.as_str()?.strip_suffix('%')?;
    let percent = Some(percent).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?.parse().ok()?;
    (percent <= 100).then_some(Amount::Percent(percent))
}

/// Reads `soak` of a wave.
fn soak(value: &Value) -> Option<Duration> {
    let soak = humantime::parse_duration(value.as_str()?).ok()?;
    SOAK.contains(&soak).then_some(soak)
}

/// Checks `spec.rollout`, and fills in its defaults.
pub(super) fn rollout(spec: &mut Map<String, Value>, parent: &Path<'_>, faults: &mut Faults) {
    let path = parent.field(ROLLOUT);
    let Some(fields) = spec.get(ROLLOUT).and_then(|rollout| object(rollout, &path, faults)) else { return };
    faults.unknown_fields(fields, &path, &["waves", "maxConcurrent", "maxFailures", "onFailure"]);
    let waves = waves(list(fields, "waves", WAVES, &path, faults), &path.field("waves"), faults);
    let is_some = |amount| !matches!(amount, Amount::Count(0) | Amount::Percent(0));
    let concurrent = "a number of clusters from 1 to 100000, or a percentage of a wave from \"1%\" to \"100%\"";
    let concurrent = clusters(fields, "maxConcurrent", (json!("10%"), concurrent), is_some, &path, faults);
    let failures = "a number of clusters from 0 to 100000, or a percentage of a wave from \"0%\" to \"100%\"";
    let failures = clusters(fields, "maxFailures", (json!(0), failures), |_| true, &path, faults);
    let on_failure = word(fields, "onFailure", &["pause", "rollback"], &path, faults);
    let rollout =
        json!({"waves": waves, "maxConcurrent": concurrent, "maxFailures": failures, "onFailure": on_failure});
    spec.insert(ROLLOUT.to_owned(), rollout);
}

fn clusters(
    fields: &Map<String, Value>,
    name: &str,
    (default, allowed): (Value, &str),
    is_allowed: impl Fn(Amount) -> bool,
    parent: &Path<'_>,
    faults: &mut Faults,
) -> Value {
    let Some(value) = fields.get(name).filter(|value| !value.is_null()) else { return default };
    if !amount(value).is_some_and(is_allowed) {
        faults.add(&parent.field(name), described(value), allowed);
    }
    value.clone()
}

fn waves(given: &[Value], path: &Path<'_>, faults: &mut Faults) -> Vec<Value> {
    let (mut names, mut percent_before, mut values) = (Vec::new(), 0, 0);
    let mut waves = Vec::with_capacity(given.len());
    for (index, wave) in given.iter().enumerate() {
        let path = path.element(index);
        let Some(fields) = object(wave, &path, faults) else { continue };
        faults.unknown_fields(fields, &path, &["name", "clusterSelector", "percent", "soak", "pause"]);
        if let Some(name) = required(fields, "name", &path, faults) {
            let path = path.field("name");
            match name {
                REST => faults.add(&path, quoted(name), "another name: this one has the wave of all other clusters"),
                _ if !is_label(name) => faults.add(&path, quoted(name), "a DNS label"),
                _ if names.contains(&name) => faults.add(&path, format!("{} again", quoted(name)), "each name once"),
                _ => names.push(name),
            }
        }
        let mut wave = fields.clone();
        wave.retain(|_, value| !value.is_null());
        if let Some(selector) = wave.get("clusterSelector") {
            let path = path.field("clusterSelector");
            if let Some(selector) = object(selector, &path, faults) {
                values +=
                    selector::requirements(selector, &path, faults).iter().map(Requirement::weight).sum::<usize>();
            }
        }
        if let Some(percent) = wave.get("percent") {
            percent_before = percentage(percent, percent_before, &path.field("percent"), faults);
        }
        let whom = "one of clusterSelector and percent: which clusters are in the wave";
        match (wave.contains_key("clusterSelector"), wave.contains_key("percent")) {
            (true, true) => faults.add(&path, "clusterSelector beside percent", whom),
            (false, false) => faults.add(&path, "neither clusterSelector nor percent", whom),
            _ => {}
        }
        match wave.get("soak") {
            Some(given) if soak(given).is_none() => {
                faults.add(&path.field("soak"), described(given), "a duration from \"0s\" to \"30d\"");
            }
            Some(_) => {}
            None => {
                wave.insert("soak".to_owned(), json!("0s"));
            }
        }
        wave.insert("pause".to_owned(), json!(boolean(fields, "pause", &path, faults)));
        waves.push(Value::Object(wave));
    }
    if values > MOST_WAVE_VALUES {
        faults.add(
            path,
            format!("{values} values of labels"),
            format!("at most {MOST_WAVE_VALUES} in all waves together"),
        );
    }
    waves
}

/// A percentage counts the clusters of all earlier waves too, so it can't be less than one before.
fn percentage(value: &Value, before: u64, path: &Path<'_>, faults: &mut Faults) -> u64 {
    match value.as_u64().filter(|percent| (1..=100).contains(percent)) {
        Some(percent) if percent >= before => return percent,
        Some(percent) => {
            let allowed = format!(
                "at least {before}, the percent of a wave before: it counts the clusters of all earlier waves too"
            );
            faults.add(path, percent.to_string(), allowed);
        }
        None => faults.add(path, described(value), "a number from 1 to 100"),
    }
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(rollout: Value) -> Result<Value, Vec<(String, String)>> {
        let (mut faults, mut spec) = (Faults::default(), Map::from_iter([(ROLLOUT.to_owned(), rollout)]));
        super::rollout(&mut spec, &Path::Root.field("spec"), &mut faults);
        let told = |fault: crate::documents::problem::Fault| {
            assert!(fault.allowed.is_some() || fault.suggestion.is_some(), "{fault:?}");
            (fault.pointer, fault.found)
        };
        match faults.into_result() {
            Ok(()) => Ok(spec.remove(ROLLOUT).expect("it stays")),
            Err(problem) => Err(problem.faults.into_iter().map(told).collect()),
        }
    }

    #[test]
    fn defaults_are_filled_in_and_what_was_checked_stays_as_it_is() {
        let empty = json!({"waves": [], "maxConcurrent": "10%", "maxFailures": 0, "onFailure": "pause"});
        assert_eq!(checked(json!({})), Ok(empty.clone()));
        assert_eq!(
            checked(json!({"waves": null, "maxConcurrent": null, "maxFailures": null, "onFailure": ""})),
            Ok(empty)
        );
        let given = json!({"maxConcurrent": 3, "maxFailures": "5%", "onFailure": "rollback", "waves": [
            {"name": "canary", "clusterSelector": {"matchLabels": {"tier": "canary"}}, "percent": null, "soak": "30m", "pause": true},
            {"name": "tenth", "percent": 10}]});
        let taken = json!({"maxConcurrent": 3, "maxFailures": "5%", "onFailure": "rollback", "waves": [
            {"name": "canary", "clusterSelector": {"matchLabels": {"tier": "canary"}}, "soak": "30m", "pause": true},
            {"name": "tenth", "percent": 10, "soak": "0s", "pause": false}]});
        assert_eq!(checked(given), Ok(taken.clone()));
        assert_eq!(checked(taken.clone()), Ok(taken));
    }

    #[test]
    fn each_fault_of_a_rollout_has_its_place() {
        let wave = |wave: Value| json!({"waves": [{"name": "a", "percent": 50}, wave]});
        for (given, place, what) in [
            (json!("fast"), "", "a string"),
            (json!({"wave": []}), "/wave", "an unknown field"),
            (json!({"waves": {}}), "/waves", "an object"),
            (json!({"waves": vec![json!({}); 21]}), "/waves", "a list of 21 elements"),
            (json!({"maxConcurrent": 0}), "/maxConcurrent", "0"),
            (json!({"maxConcurrent": "0%"}), "/maxConcurrent", "\"0%\""),
            (json!({"maxConcurrent": "101%"}), "/maxConcurrent", "\"101%\""),
            (json!({"maxConcurrent": "+1%"}), "/maxConcurrent", "\"+1%\""),
            (json!({"maxConcurrent": "10"}), "/maxConcurrent", "\"10\""),
            (json!({"maxConcurrent": 100_001}), "/maxConcurrent", "100001"),
            (json!({"maxFailures": -1}), "/maxFailures", "-1"),
            (json!({"maxFailures": 1.5}), "/maxFailures", "1.5"),
            (json!({"onFailure": "undo"}), "/onFailure", "\"undo\""),
            (wave(json!(7)), "/waves/1", "a number"),
            (wave(json!({"percent": 60})), "/waves/1/name", "missing"),
            (wave(json!({"name": "a", "percent": 60})), "/waves/1/name", "\"a\" again"),
            (wave(json!({"name": "rest", "percent": 60})), "/waves/1/name", "\"rest\""),
            (wave(json!({"name": "B b", "percent": 60})), "/waves/1/name", "\"B b\""),
            (wave(json!({"name": "b"})), "/waves/1", "neither clusterSelector nor percent"),
            (
                wave(json!({"name": "b", "percent": 60, "clusterSelector": {}})),
                "/waves/1",
                "clusterSelector beside percent",
            ),
            (wave(json!({"name": "b", "percent": 49})), "/waves/1/percent", "49"),
            (wave(json!({"name": "b", "percent": 0})), "/waves/1/percent", "0"),
            (wave(json!({"name": "b", "percent": 101})), "/waves/1/percent", "101"),
            (wave(json!({"name": "b", "percent": "60%"})), "/waves/1/percent", "\"60%\""),
            (wave(json!({"name": "b", "percent": 60, "soak": "31d"})), "/waves/1/soak", "\"31d\""),
            (wave(json!({"name": "b", "percent": 60, "soak": 60})), "/waves/1/soak", "60"),
            (wave(json!({"name": "b", "percent": 60, "pause": "yes"})), "/waves/1/pause", "\"yes\""),
            (wave(json!({"name": "b", "percent": 60, "paused": true})), "/waves/1/paused", "an unknown field"),
            (
                wave(json!({"name": "b", "clusterSelector": {"matchLabels": {"a b": "c"}}})),
                "/waves/1/clusterSelector/matchLabels",
                "the key \"a b\"",
            ),
        ] {
            let expected = vec![(format!("/spec/rollout{place}"), what.to_owned())];
            assert_eq!(checked(given.clone()), Err(expected), "{given}");
        }
    }

    #[test]
    fn the_values_of_all_waves_are_limited_together() {
        let wave = |name: &str, count: usize| {
            let values = |count: usize| (0..count).map(|at| format!("v{at}")).collect::<Vec<_>>();
            let expression = |operator: &str, count| json!({"key": "k", "operator": operator, "values": values(count)});
            let by = [
                expression("NotIn", count / 2),
                expression("In", count - count / 2 - 2),
                json!({"key": "k", "operator": "Exists"}),
            ];
            json!({"name": name, "clusterSelector": {"matchLabels": {"a": "b"}, "matchExpressions": by}})
        };
        let waves = |last: usize| json!({"waves": [wave("a", 400), wave("b", 400), wave("c", last)]});
        assert!(checked(waves(200)).is_ok());
        let found = vec![("/spec/rollout/waves".to_owned(), "1001 values of labels".to_owned())];
        assert_eq!(checked(waves(201)), Err(found));
    }

    #[test]
    fn all_faults_of_a_rollout_are_told_at_once() {
        let found = checked(json!({"onFailure": "stop", "maxFailures": "many", "waves": [{"soak": "long"}]}))
            .expect_err("faults");
        let places: Vec<_> = found.iter().map(|(place, _)| place.as_str()).collect();
        let of_wave = ["/waves/0/name", "/waves/0", "/waves/0/soak", "/maxFailures", "/onFailure"];
        assert_eq!(places, of_wave.map(|place| format!("/spec/rollout{place}")));
    }
}
