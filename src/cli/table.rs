//! Lines for people: a daemon's status as two tables.
//!
//! The document is read as it comes, so that a newer daemon's status is still shown by an older command.

use std::fmt::Write;

use serde_json::{Map, Value};

/// What stands where there is nothing to tell.
const NOTHING: &str = "-";

/// A daemon's `/status`: the sections, and below them the actor tree.
pub(super) fn status(status: &Value) -> String {
    let mut text = String::new();
    let seconds = status.get("started_seconds_ago").and_then(Value::as_u64).unwrap_or_default();
    let age = humantime::format_duration(std::time::Duration::from_secs(seconds));
    // Writing to a String can't fail.
    let _ = writeln!(text, "towline {}, started {age} ago\n", plain(status.get("version")));
    text.push_str(&sections(status.get("sections").and_then(Value::as_object)));
    text.push('\n');
    text.push_str(&tree(status.get("tree")));
    text
}

fn sections(sections: Option<&Map<String, Value>>) -> String {
    let mut rows = vec![["SECTION", "JOB", "STATE", "DETAIL"].map(str::to_owned).to_vec()];
    for (name, section) in sections.into_iter().flatten() {
        let readiness = section.get("readiness");
        let state = readiness.and_then(|readiness| readiness.get("state"));
        let reason = readiness.and_then(|readiness| readiness.get("reason"));
        let mut details: Vec<String> = reason.map(|reason| plain(Some(reason))).into_iter().collect();
        let report = section.as_object().into_iter().flatten();
        details.extend(
            report
                .filter(|(key, _)| !["job", "readiness"].contains(&key.as_str()))
                .filter_map(|(key, value)| detail(key, value)),
        );
        rows.push(vec![name.clone(), plain(section.get("job")), plain(state), or_nothing(&details.join(", "))]);
    }
    aligned(&rows)
}

/// One entry of a report in a few words: zeros, nulls and what is empty are left out, lists are counted.
fn detail(key: &str, value: &Value) -> Option<String> {
    match value {
        Value::Null | Value::Bool(false) => None,
        Value::Bool(true) => Some(key.to_owned()),
        Value::Number(number) => (number.as_f64() != Some(0.0)).then(|| format!("{key} {number}")),
        Value::String(text) => (!text.is_empty()).then(|| format!("{key} {}", one_line(text))),
        Value::Array(list) => (!list.is_empty()).then(|| format!("{key} {}", list.len())),
        Value::Object(entries) => {
            let inner: Vec<String> = entries.iter().filter_map(|(key, value)| detail(key, value)).collect();
            (!inner.is_empty()).then(|| format!("{key} ({})", inner.join(", ")))
        }
    }
}

fn tree(tree: Option<&Value>) -> String {
    if let Some(error) = tree.and_then(|tree| tree.get("error")) {
        return format!("actor tree: {}\n", plain(Some(error)));
    }
    let headings = ["ACTOR", "STATE", "RESTARTS", "MAILBOX", "LAST EXIT"];
    let mut rows = vec![headings.map(str::to_owned).to_vec()];
    if let Some(root) = tree {
        actor(root, "", "", &mut rows);
    }
    aligned(&rows)
}

/// One actor and those below it. `before` leads to its name, `below` to those of its children.
fn actor(report: &Value, before: &str, below: &str, rows: &mut Vec<Vec<String>>) {
    let mailbox = report
        .get("mailbox")
        .filter(|mailbox| mailbox.is_object())
        .map(|mailbox| format!("{}/{}", plain(mailbox.get("depth")), plain(mailbox.get("capacity"))));
    rows.push(vec![
        format!("{before}{}", plain(report.get("name"))),
        plain(report.get("state")),
        plain(report.get("restarts")),
        or_nothing(&mailbox.unwrap_or_default()),
        or_nothing(&report.get("last_exit").map(exit_reason).unwrap_or_default()),
    ]);
    let children = report.get("children").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for (index, child) in children.iter().enumerate() {
        let is_last = index + 1 == children.len();
        let (branch, trunk) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        actor(child, &format!("{below}{branch}"), &format!("{below}{trunk}"), rows);
    }
}

/// `"finished"`, or `{"failed": {"error": "…"}}` as `failed: …`.
fn exit_reason(reason: &Value) -> String {
    let Some(entries) = reason.as_object() else {
        return plain(Some(reason));
    };
    let told = entries.iter().map(|(kind, fields)| {
        let fields: Vec<String> = match fields {
            Value::Object(fields) => fields.values().map(|field| plain(Some(field))).collect(),
            other => vec![plain(Some(other))],
        };
        format!("{kind}: {}", fields.join(", "))
    });
    told.collect::<Vec<_>>().join("; ")
}

/// A value as text, on one line.
fn plain(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => NOTHING.to_owned(),
        Some(Value::String(text)) => one_line(text),
        Some(other) => one_line(&other.to_string()),
    }
}

/// Control characters come from errors of other programs, and would reach the terminal.
fn one_line(text: &str) -> String {
    text.chars().map(|character| if character.is_control() { ' ' } else { character }).collect()
}

fn or_nothing(text: &str) -> String {
    if text.is_empty() { NOTHING.to_owned() } else { text.to_owned() }
}

/// Columns as wide as their widest cell; the last one as it comes.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
        })
        .collect();
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text.push_str(cells.join("   ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sections_and_the_tree_are_shown_in_columns() {
        let document = json!({
            "version": "0.1.0",
            "started_seconds_ago": 3700,
            "sections": {
                "databases": {
                    "job": "sync",
                    "readiness": { "state": "ready" },
                    "objects": { "in_step": 12, "failing": 1, "paused": 0 },
                    "failures": [{ "key": "a/b" }],
                    "mass_delete_held": true,
                    "note": null,
                },
                "q": { "job": "sync", "readiness": { "state": "unreachable", "reason": "no\nanswer" } },
                "r": { "job": "sync", "readiness": { "state": "ready" } },
            },
            "tree": {
                "name": "root", "state": "running", "restarts": 0,
                "children": [
                    {
                        "name": "sync databases", "state": "running", "restarts": 0,
                        "children": [{
                            "name": "dispatcher", "state": "running", "restarts": 2,
                            "mailbox": { "depth": 3, "capacity": 64, "accepted": 9 },
                            "last_exit": { "failed": { "error": "reset" } },
                        }],
                    },
                    { "name": "admin", "state": "running", "restarts": 0, "last_exit": "finished" },
                ],
            },
        });
        let expected = "\
towline 0.1.0, started 1h 1m 40s ago

SECTION     JOB    STATE         DETAIL
databases   sync   ready         failures 1, mass_delete_held, objects (failing 1, in_step 12)
q           sync   unreachable   no answer
r           sync   ready         -

ACTOR                  STATE     RESTARTS   MAILBOX   LAST EXIT
root                   running   0          -         -
├─ sync databases      running   0          -         -
│  └─ dispatcher       running   2          3/64      failed: reset
└─ admin               running   0          -         finished
";
        // How far the first column reaches depends on its widest cell; compare without runs of spaces.
        let squeezed = |text: &str| {
            let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
            lines.collect::<Vec<_>>().join("\n")
        };
        assert_eq!(squeezed(&status(&document)), squeezed(expected));
    }

    #[test]
    fn cells_begin_at_the_same_place_in_every_row() {
        let rows = [["a", "b"], ["└─ längere", "c"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(aligned(&rows), "a            b\n└─ längere   c\n");
    }

    #[test]
    fn a_tree_that_did_not_answer_and_an_unknown_document_are_shown() {
        let text = status(&json!({ "tree": { "error": "no answer" } }));
        assert!(text.ends_with("actor tree: no answer\n"), "{text}");
        assert!(status(&json!([])).starts_with("towline -, started 0s ago"));
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(plain(Some(&json!("a\u{1b}[31mb\r\nc"))), "a [31mb  c");
    }
}
