//! `towline failures`.

use serde_json::Value;

use super::of_mounted;
use crate::job::check::say;
use crate::job::client::{Error, HubAccess, HubClient, encode};
use crate::job::command::Exit;

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
    /// Show the hub's answer, with whole messages
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    access: HubAccess,
}

pub(super) async fn failures(command: FailuresCommand) -> Result<Exit, Error> {
    let client = HubClient::new(&command.access).await?;
    let namespace = command.namespace.map(|namespace| format!("&namespace={}", encode(&namespace))).unwrap_or_default();
    let path = format!("/v1/syncset-failures?limit={}{namespace}", command.limit);
    let answer = client.get(&path).await.map_err(of_mounted)?;
    if command.json {
        say(&format!("{answer:#}"));
    } else {
        for line in lines(&answer) {
            say(&line);
        }
    }
    Ok(Exit::Done)
}

/// The groups as a table.
fn lines(answer: &Value) -> Vec<String> {
    let groups: Vec<&Value> = answer.get("items").and_then(Value::as_array).into_iter().flatten().collect();
    if groups.is_empty() {
        return vec!["no syncset fails".to_owned()];
    }
    let rows: Vec<[String; 5]> = groups.iter().map(|group| row(group)).collect();
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: [usize; 4] = std::array::from_fn(|column| width(column).unwrap_or_default());
    let mut lines: Vec<String> = rows
        .iter()
        .map(|[count, syncset, reason, message, clusters]| {
            let [for_count, for_syncset, for_reason, for_message] = widths;
            format!(
                "{count:>for_count$}  {syncset:for_syncset$}  {reason:for_reason$}  {message:for_message$}  {clusters}"
            )
        })
        .collect();
    let total = answer.get("total").and_then(Value::as_u64).and_then(|total| usize::try_from(total).ok());
    if let Some(more) = total.and_then(|total| total.checked_sub(groups.len())).filter(|more| *more > 0) {
        lines.push(format!("and {more} further groups: --limit shows more"));
    }
    lines
}

fn row(group: &Value) -> [String; 5] {
    let text = |value: &Value, field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (count, namespace) = (group.get("count").and_then(Value::as_u64).unwrap_or_default(), text(group, "namespace"));
    let name = if namespace.is_empty() { text(group, "name") } else { format!("{namespace}/{}", text(group, "name")) };
    let clusters = group.get("clusters").and_then(Value::as_array).into_iter().flatten();
    let clusters = clusters.map(|cluster| format!("{}/{}", text(cluster, "namespace"), text(cluster, "name")));
    let mut shown: Vec<String> = clusters.take(MOST_CLUSTERS).collect();
    if count > u64::try_from(shown.len()).unwrap_or(u64::MAX) {
        shown.push("…".to_owned());
    }
    let (kind, reason, message) = (text(group, "kind"), text(group, "reason"), text(group, "message"));
    [count.to_string(), format!("{kind} {name}"), reason, shortened(&message), shown.join(", ")]
}

/// A message in one line.
fn shortened(message: &str) -> String {
    let letters = || message.chars().map(|letter| if letter.is_control() { ' ' } else { letter });
    let count = letters().count();
    if count <= BEGINNING + END + 3 {
        return letters().collect();
    }
    let beginning: String = letters().take(BEGINNING).collect();
    let end: String = letters().skip(count - END).collect();
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
        let expected = [
            format!(
                "214  SelectorSyncSet monitoring  Rejected   {} … {}  foo/a, foo/b, …",
                "m".repeat(80),
                "e".repeat(60)
            ),
            format!("  1  SyncSet foo/base            Forbidden  {:143}  foo/z", "no way"),
            "and 3 further groups: --limit shows more".to_owned(),
        ];
        assert_eq!(lines(&answer), expected);
        assert_eq!(lines(&json!({"total": 0, "items": []})), ["no syncset fails"]);
    }
}
