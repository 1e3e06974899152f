//! `towline pause` and `resume`: the field and the annotations of clusters that pause them.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::{StreamExt, stream};
use http::StatusCode;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::which::{Chosen, Which};
use crate::documents::Kind;
use crate::job::client::{Error, HubAccess, HubClient};
use crate::job::command::{Exit, complain};
use crate::job::output::{Format, Output, Results};
use crate::syncset::plan::action::{PAUSE_REASON, PAUSE_UNTIL, hive_pauses};

/// Clusters that are changed at the same time.
const AT_ONCE: usize = 8;
/// Attempts to change a cluster that others are changing.
const ATTEMPTS: u32 = 5;

/// `towline pause`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(super) struct PauseCommand {
    #[command(flatten)]
    which: Which,
    /// For how long, such as 2h or 90m; without it until they are resumed
    #[arg(long = "for", value_name = "DURATION", value_parser = length)]
    length: Option<Duration>,
    /// Why
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    #[command(flatten)]
    format: Format,
    #[command(flatten)]
    access: HubAccess,
}

/// `towline resume`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(super) struct ResumeCommand {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    format: Format,
    #[command(flatten)]
    access: HubAccess,
}

/// What a document says of the pause of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Marks {
    path: String,
    /// `NAMESPACE/NAME`.
    cluster: String,
    version: String,
    is_paused: bool,
    annotations: BTreeMap<String, String>,
}

/// What is to be done with a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Order {
    Pause { until: Option<Timestamp>, reason: Option<String> },
    Resume,
}

pub(super) async fn pause(command: PauseCommand) -> Result<Exit, Error> {
    let until = command.length.map(|length| end(Timestamp::now(), length)).transpose()?;
    let order = Order::Pause { until, reason: command.reason };
    carry_out(&command.access, &command.which, &order, command.format.output).await
}

pub(super) async fn resume(command: ResumeCommand) -> Result<Exit, Error> {
    carry_out(&command.access, &command.which, &Order::Resume, command.format.output).await
}

/// A length of time that is not zero.
fn length(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(length) if length.is_zero() => Err("a pause of no length is none".to_owned()),
        Ok(length) => Ok(length),
        Err(_) => Err("not a length of time such as 2h or 90m".to_owned()),
    }
}

/// When a pause ends, in whole seconds and never too early.
fn end(now: Timestamp, length: Duration) -> Result<Timestamp, Error> {
    let seconds = i64::try_from(length.as_millis().div_ceil(1000)).ok();
    let rest = i64::from(now.subsec_nanosecond() > 0);
    let end = seconds.and_then(|seconds| now.as_second().checked_add(seconds)?.checked_add(rest));
    let end = end.and_then(|end| Timestamp::from_second(end).ok());
    end.ok_or_else(|| Error::Name("the pause would end after the year 9999: leave out --for".to_owned()))
}

async fn carry_out(access: &HubAccess, which: &Which, order: &Order, output: Output) -> Result<Exit, Error> {
    let client = HubClient::new(access).await?;
    let clusters = match which.chosen()? {
        Chosen::One(path) => vec![marks(&client.get(&path).await?)],
        Chosen::Many(filters) => {
            let mut clusters = Vec::new();
            client.each(Kind::Cluster.plural(), &filters, u64::MAX, |document| clusters.push(marks(document))).await?;
            clusters
        }
    };
    if clusters.is_empty() {
        complain("no cluster matches");
        return Ok(Exit::Failed);
    }
    let (mut exit, mut results) = (Exit::Done, Results::new(output));
    let changes = clusters.into_iter().map(|marks| change(&client, marks, order));
    let mut changes = stream::iter(changes).buffered(AT_ONCE);
    while let Some((cluster, changed)) = changes.next().await {
        match changed {
            Ok(told) => {
                let name = format!("{}/{cluster}", Kind::Cluster.name());
                results.add(json!({"cluster": cluster, "result": told}), &name, &format!("{cluster} {told}"));
            }
            // The other clusters may have no such problem.
            Err(Error::Problem { told, .. }) => {
                exit = Exit::Failed;
                results.add_failed(json!({"cluster": cluster, "error": told}), &format!("{cluster}: {told}"));
            }
            // The others would fail likewise. What was done is told all the same.
            Err(other) => {
                results.end(Value::Null, &[]);
                return Err(other);
            }
        }
    }
    results.end(Value::Null, &[]);
    Ok(exit)
}

/// Changes a cluster, and returns what became of it. It is decided again as long as others change it meanwhile.
async fn change(client: &HubClient, first: Marks, order: &Order) -> (String, Result<String, Error>) {
    let (cluster, path) = (first.cluster.clone(), first.path.clone());
    let mut marks_now = first;
    let mut attempt = 1;
    let changed = loop {
        let told = order.told(&marks_now);
        let Some(changes) = order.patch(&marks_now) else { break Ok(told) };
        match client.merge(&path, &marks_now.version, &changes).await {
            Ok(_) => break Ok(told),
            Err(Error::Problem { status: StatusCode::CONFLICT | StatusCode::PRECONDITION_FAILED, .. })
                if attempt < ATTEMPTS =>
            {
                attempt += 1;
            }
            Err(error) => break Err(error),
        }
        match client.get(&path).await {
            Ok(document) => marks_now = marks(&document),
            Err(error) => break Err(error),
        }
    };
    (cluster, changed)
}

fn marks(document: &Value) -> Marks {
    let text = |field: &str| document.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (namespace, name) = (text("namespace"), text("name"));
    let annotations = document.get("annotations").and_then(Value::as_object).into_iter().flatten();
    let annotations = annotations.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    Marks {
        path: format!("/v1/clusters/{namespace}/{name}"),
        cluster: format!("{namespace}/{name}"),
        version: text("resourceVersion"),
        is_paused: document.get("paused").and_then(Value::as_bool).unwrap_or_default(),
        annotations: annotations.collect(),
    }
}

impl Order {
    /// The change of the document; none if there is nothing to change.
    fn patch(&self, marks: &Marks) -> Option<Value> {
        match self {
            // The end of an earlier pause is not that of this one, and neither is its reason.
            Self::Pause { until: None, reason } => {
                Some(json!({"paused": true, "annotations": {PAUSE_UNTIL: null, PAUSE_REASON: reason}}))
            }
            Self::Pause { until: Some(until), reason } => {
                Some(json!({"annotations": {PAUSE_UNTIL: until.to_string(), PAUSE_REASON: reason}}))
            }
            Self::Resume => {
                let ours = [PAUSE_UNTIL, PAUSE_REASON].into_iter().filter(|key| marks.annotations.contains_key(*key));
                let removed: Map<String, Value> = ours.map(|key| (key.to_owned(), Value::Null)).collect();
                let mut patch = Map::new();
                if marks.is_paused {
                    patch.insert("paused".to_owned(), Value::Bool(false));
                }
                if !removed.is_empty() {
                    patch.insert("annotations".to_owned(), Value::Object(removed));
                }
                (!patch.is_empty()).then_some(Value::Object(patch))
            }
        }
    }

    /// What becomes of a cluster with these marks.
    fn told(&self, marks: &Marks) -> String {
        match self {
            Self::Pause { until: None, .. } => "paused".to_owned(),
            Self::Pause { until: Some(until), .. } if marks.is_paused => {
                format!("paused until {until}, and by its field `paused` until it is resumed")
            }
            Self::Pause { until: Some(until), .. } => format!("paused until {until}"),
            Self::Resume => {
                let is_paused = marks.is_paused || marks.annotations.contains_key(PAUSE_UNTIL);
                let told = if is_paused { "resumed" } else { "was not paused by Towline" };
                let of_hive: Vec<&str> = hive_pauses(&marks.annotations).collect();
                if of_hive.is_empty() {
                    return told.to_owned();
                }
                format!("{told}, but remains paused by Hive's {}, which resume leaves alone", of_hive.join(" and "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(paused: bool, annotations: &[(&str, &str)]) -> Marks {
        let annotations: BTreeMap<_, _> = annotations.iter().copied().collect();
        marks(&json!({"namespace": "foo", "name": "west", "resourceVersion": "7", "paused": paused,
            "annotations": annotations}))
    }

    fn at(nanoseconds: i128) -> Timestamp {
        Timestamp::from_nanosecond(nanoseconds).expect("a time")
    }

    #[test]
    fn a_pause_ends_after_its_length_and_never_earlier() {
        let hour = Duration::from_hours(1);
        assert_eq!(end(at(0), hour).expect("an end").to_string(), "1970-01-01T01:00:00Z");
        assert_eq!(end(at(1), hour).expect("an end").to_string(), "1970-01-01T01:00:01Z");
        assert_eq!(end(at(0), Duration::from_millis(1)).expect("an end").to_string(), "1970-01-01T00:00:01Z");
        assert!(end(at(0), Duration::MAX).is_err() && end(at(0), Duration::from_hours(24 * 366 * 9000)).is_err());
        assert_eq!(length("2h"), Ok(2 * hour));
        for wrong in ["0s", "", "2", "-2h", "tomorrow"] {
            assert!(length(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_pause_replaces_the_marks_of_an_earlier_one() {
        let reason = Some("an upgrade".to_owned());
        let forever = Order::Pause { until: None, reason: reason.clone() };
        let earlier = cluster(false, &[(PAUSE_UNTIL, "2027-01-01T00:00:00Z"), ("a.io/b", "c")]);
        assert_eq!(
            forever.patch(&earlier),
            Some(json!({"paused": true, "annotations": {PAUSE_UNTIL: null, PAUSE_REASON: "an upgrade"}}))
        );
        let limited = Order::Pause { until: Some(at(0)), reason: None };
        assert_eq!(
            limited.patch(&cluster(true, &[])),
            Some(json!({"annotations": {PAUSE_UNTIL: "1970-01-01T00:00:00Z", PAUSE_REASON: null}}))
        );
        assert_eq!(limited.told(&cluster(false, &[])), "paused until 1970-01-01T00:00:00Z");
        let told = limited.told(&cluster(true, &[]));
        assert!(told.contains("by its field `paused` until it is resumed"), "{told}");
    }

    #[test]
    fn resume_takes_back_what_pause_did_and_leaves_hives_annotations() {
        let paused = cluster(true, &[(PAUSE_UNTIL, "soon"), (PAUSE_REASON, "x"), ("a.io/b", "c")]);
        let expected = json!({"paused": false, "annotations": {PAUSE_UNTIL: null, PAUSE_REASON: null}});
        assert_eq!((Order::Resume.patch(&paused), Order::Resume.told(&paused).as_str()), (Some(expected), "resumed"));
        let never = cluster(false, &[("a.io/b", "c")]);
        assert_eq!(
            (Order::Resume.patch(&never), Order::Resume.told(&never).as_str()),
            (None, "was not paused by Towline")
        );
        let of_hive = cluster(true, &[("hive.openshift.io/syncset-pause", "true"), ("hive.openshift.io/relocate", "")]);
        assert_eq!(Order::Resume.patch(&of_hive), Some(json!({"paused": false})));
        assert_eq!(
            Order::Resume.told(&of_hive),
            "resumed, but remains paused by Hive's hive.openshift.io/syncset-pause and hive.openshift.io/relocate, which resume \
             leaves alone"
        );
    }
}
