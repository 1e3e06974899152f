//! `towline failures`.

use std::collections::BTreeSet;

use serde_json::Value;

use super::of_mounted;
use crate::config::text::one_line;
use crate::job::client::{Error, HubAccess, HubClient, filters};
use crate::job::command::Exit;
use crate::job::output::{Format, Output, aligned};

/// Characters that are shown of the beginning of a long message, and of its end, which says what to do.
const BEGINNING: usize = 80;
const END: usize = 60;
/// Most clusters that are shown of a group.
const MOST_CLUSTERS: usize = 2;

/// `towline failures`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(super) struct FailuresCommand {
    /// Only on clusters of this namespace; by default on all that the token may read
    #[arg(short, long)]
    namespace: Option<String>,
    /// Most groups, up to 500
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=500))]
    limit: u32,
    #[command(flatten)]
    format: Format,
    #[command(flatten)]
    access: HubAccess,
}

pub(super) async fn failures(command: FailuresCommand) -> Result<Exit, Error> {
    let client = HubClient::new(&command.access).await?;
    let namespace = filters(command.namespace.as_deref(), None)?;
    let path = format!("/v1/syncset-failures?limit={}{namespace}", command.limit);
    let answer = client.get(&path).await.map_err(of_mounted)?;
    let output = command.format.output;
    let failing: Vec<String> = names(&answer).into_iter().collect();
    output.print(&answer, &failing, &lines(&answer, output == Output::Wide));
    Ok(Exit::Done)
}

/// What fails, each once: `SyncSet/team-a/base`.
fn names(answer: &Value) -> BTreeSet<String> {
    let groups = answer.get("items").and_then(Value::as_array).into_iter().flatten();
    groups.map(|group| syncset(group).replacen(' ', "/", 1)).collect()
}

/// The groups as a table; a wide one shortens nothing.
fn lines(answer: &Value, is_wide: bool) -> Vec<String> {
    let groups: Vec<&Value> = answer.get("items").and_then(Value::as_array).into_iter().flatten().collect();
    let unreachable = unreachable(answer);
    if groups.is_empty() {
        let of_others = if unreachable.is_some() { " on the clusters that answer" } else { "" };
        return [format!("no syncset fails{of_others}")].into_iter().chain(unreachable).collect();
    }
    let headings = ["CLUSTERS", "SYNCSET", "REASON", "MESSAGE", "ON"].map(str::to_owned).to_vec();
    let rows: Vec<_> = [headings].into_iter().chain(groups.iter().map(|group| row(group, is_wide))).collect();
    let mut lines: Vec<String> = aligned(&rows).lines().map(str::to_owned).collect();
    let total = answer.get("total").and_then(Value::as_u64).and_then(|total| usize::try_from(total).ok());
    if let Some(more) = total.and_then(|total| total.checked_sub(groups.len())).filter(|more| *more > 0) {
        lines.push(format!("and {more} further groups: --limit shows more"));
    }
    lines.extend(unreachable);
    lines
}

/// Which clusters say nothing of what is applied there, if there are some.
fn unreachable(answer: &Value) -> Option<String> {
    let count = answer.get("unreachable").and_then(Value::as_u64).filter(|count| *count > 0)?;
    let named = answer.get("unreachableClusters").and_then(Value::as_array).into_iter().flatten();
    let mut named: Vec<String> = named.map(cluster).collect();
    if u64::try_from(named.len()).is_ok_and(|named| named < count) {
        named.push("…".to_owned());
    }
    let clusters = if count == 1 { "cluster is" } else { "clusters are" };
    Some(format!("{count} {clusters} unreachable: {}; why: `towline get clustersyncs`", named.join(", ")))
}

/// `team-a/west-1`.
fn cluster(reference: &Value) -> String {
    format!("{}/{}", text(reference, "namespace"), text(reference, "name"))
}

fn text(value: &Value, field: &str) -> String {
    value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// `SyncSet team-a/base`.
fn syncset(group: &Value) -> String {
    let (kind, namespace, name) = (text(group, "kind"), text(group, "namespace"), text(group, "name"));
    let slash = if namespace.is_empty() { "" } else { "/" };
    format!("{kind} {namespace}{slash}{name}")
}

fn row(group: &Value, is_wide: bool) -> Vec<String> {
    let count = group.get("count").and_then(Value::as_u64).unwrap_or_default();
    let clusters = group.get("clusters").and_then(Value::as_array).into_iter().flatten();
    let mut shown: Vec<String> = clusters.map(cluster).take(if is_wide { usize::MAX } else { MOST_CLUSTERS }).collect();
    if count > u64::try_from(shown.len()).unwrap_or(u64::MAX) {
        shown.push("…".to_owned());
    }
    let message = text(group, "message");
    let message = if is_wide { one_line(&message) } else { shortened(&message) };
    // Of what was applied and does not work, the state of its objects as well.
    let reason = [text(group, "health"), text(group, "reason")];
    let reason = reason.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join("/");
    vec![count.to_string(), syncset(group), reason, message, shown.join(", ")]
}

/// A message in one line.
fn shortened(message: &str) -> String {
    let message = one_line(message);
    let count = message.chars().count();
    if count <= BEGINNING + END + 3 {
        return message;
    }
    let beginning: String = message.chars().take(BEGINNING).collect();
    let end: String = message.chars().skip(count - END).collect();
    format!("{} … {}", beginning.trim_end(), end.trim_start())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn groups_are_rows_of_a_table_with_the_first_clusters() {
        let cluster = |name: &str| json!({"namespace": "foo", "name": name});
        let answer = json!({"total": 5, "items": [
            {"kind": "SelectorSyncSet", "name": "monitoring", "reason": "Rejected", "message": format!("{}{}", "m".repeat(100), "e".repeat(60)), "count": 214,
             "clusters": [cluster("a"), cluster("b"), cluster("c")]},
            {"kind": "SyncSet", "namespace": "foo", "name": "base", "reason": "Forbidden", "message": "no\nway", "count": 1,
             "clusters": [cluster("z")]}]});
        let message = format!("{} … {}", "m".repeat(80), "e".repeat(60));
        let expected = [
            format!("{:<8}   {:<26}   {:<9}   {:<143}   ON", "CLUSTERS", "SYNCSET", "REASON", "MESSAGE"),
            format!("{:<8}   SelectorSyncSet monitoring   Rejected    {message}   foo/a, foo/b, …", 214),
            format!("{:<8}   {:<26}   Forbidden   {:143}   foo/z", 1, "SyncSet foo/base", "no way"),
            "and 3 further groups: --limit shows more".to_owned(),
        ];
        assert_eq!(lines(&answer, false), expected);
        let wide = lines(&answer, true);
        assert!(wide[1].contains(&"m".repeat(100)) && wide[1].ends_with("foo/a, foo/b, foo/c, …"), "{wide:?}");
        assert_eq!(Vec::from_iter(names(&answer)), ["SelectorSyncSet/monitoring", "SyncSet/foo/base"]);
        assert_eq!(lines(&json!({"total": 0, "items": []}), false), ["no syncset fails"]);
        let mut silent =
            json!({"total": 0, "items": [], "unreachable": 3, "unreachableClusters": [cluster("a"), cluster("b")]});
        let told = "3 clusters are unreachable: foo/a, foo/b, …; why: `towline get clustersyncs`";
        assert_eq!(lines(&silent, false), ["no syncset fails on the clusters that answer", told]);
        let ill = json!({"total": 1, "items": [{"kind": "SyncSet", "namespace": "foo", "name": "base", "health": "Failed", "reason": "CrashLoopBackOff",
            "message": "Pod foo/web: container main crashes again and again", "count": 1, "clusters": [cluster("z")]}]});
        assert!(lines(&ill, false)[1].contains("   Failed/CrashLoopBackOff   Pod foo/web"), "{:?}", lines(&ill, false));
        silent["items"] = answer["items"].clone();
        assert_eq!(lines(&silent, false).last().map(String::as_str), Some(told));
    }
}
