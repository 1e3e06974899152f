//! `towline status --watch`: what a daemon shows, again and again.

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use serde_json::Value;

use super::client::{Daemon, Error};
use super::table;
use crate::config::SectionName;
use crate::config::text::{escaped, one_line};
use crate::job::command::Exit;
use crate::job::output::{Output, plain, yaml};
use crate::job::terminal::{Polling, Screen};

/// A daemon that is slower does not answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Draws the status, or that of a section, again and again where there is a terminal; elsewhere prints what there is, and then each change.
pub(super) async fn watch(
    daemon: &impl Daemon,
    section: Option<&SectionName>,
    output: Output,
    has_tree: bool,
    out: &mut impl Write,
) -> Result<Exit, Error> {
    let screen = Screen::of_output().filter(|_| matches!(output, Output::Table | Output::Wide));
    let (mut seen, mut polling) = (None, Polling::new());
    loop {
        match daemon.ask_within(ANSWER_WITHIN, &Method::GET, "/status?latest=true", None).await {
            Ok(mut status) => {
                polling.succeeded();
                if let Some(section) = section {
                    let part = table::status_of(section.as_str(), &status);
                    status = part.map_err(|reason| Error::Pointless { reason })?;
                }
                let rows = rows(&status);
                if let Some(screen) = &screen {
                    let text = table::status(&status, has_tree, output == Output::Wide);
                    screen.draw(&text).map_err(Error::Write)?;
                } else {
                    let text = changes(seen.as_ref(), &rows, &status, output, Timestamp::now());
                    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Error::Write)?;
                }
                seen = Some(rows);
            }
            Err(error) if error.is_outage() => polling.failed(error)?,
            Err(error) => return Err(error),
        }
        polling.pause().await;
    }
}

/// Each cluster and each section by its name, with its state and why it is in it.
fn rows(status: &Value) -> BTreeMap<String, (String, String)> {
    let mut rows = BTreeMap::new();
    for (key, what, reason) in [("clusters", "cluster", "reason"), ("sections", "section", "message")] {
        for (name, shown) in status.get(key).and_then(Value::as_object).into_iter().flatten() {
            let reason = shown.get(reason).and_then(Value::as_str).map(one_line).unwrap_or_default();
            rows.insert(format!("{what} {}", one_line(name)), (plain(shown.get("state")), reason));
        }
    }
    rows
}

/// A text without the lengths of time in it, which grow while nothing changes.
fn lasting(text: &str) -> Vec<&str> {
    let is_age = |word: &str| {
        let word = word.trim_matches(|letter: char| !letter.is_ascii_alphanumeric());
        word.strip_suffix(['s', 'm', 'h', 'd']).is_some_and(|count| count.parse::<u64>().is_ok())
    };
    text.split(' ').filter(|word| !is_age(word)).collect()
}

/// The lines for what has changed since the status before, or for the whole first status.
fn changes(
    seen: Option<&BTreeMap<String, (String, String)>>,
    rows: &BTreeMap<String, (String, String)>,
    status: &Value,
    output: Output,
    now: Timestamp,
) -> String {
    let is_same = |(name, (state, reason)): &(&String, &(String, String))| {
        let before = seen.and_then(|seen| seen.get(*name));
        before.is_some_and(|(state_then, then)| state_then == state && lasting(then) == lasting(reason))
    };
    let changed: Vec<_> = rows.iter().filter(|row| !is_same(row)).collect();
    let gone: Vec<_> =
        seen.into_iter().flatten().map(|(name, _)| name).filter(|name| !rows.contains_key(*name)).collect();
    if changed.is_empty() && gone.is_empty() {
        return String::new();
    }
    let now = now.strftime("%Y-%m-%dT%H:%M:%SZ");
    match output {
        Output::Json => escaped(&format!("{status}\n")),
        Output::Yaml => format!("---\n{}", yaml(status)),
        Output::Name => {
            changed.into_iter().map(|(name, _)| name).chain(gone).fold(String::new(), |text, name| text + name + "\n")
        }
        Output::Table | Output::Wide => {
            let changed = changed.into_iter().map(|(name, (state, reason))| {
                let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
                format!("{now} {name} {state}{reason}\n")
            });
            changed.chain(gone.into_iter().map(|name| format!("{now} {name} is gone\n"))).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;

    /// What a daemon answers, before it refuses.
    struct Answers(Mutex<Vec<Value>>);

    impl Daemon for Answers {
        async fn ask_within(&self, _: Duration, _: &Method, _: &str, _: Option<&Path>) -> Result<Value, Error> {
            let mut left = self.0.lock();
            if left.is_empty() { Err(Error::Pointless { reason: "no more".to_owned() }) } else { Ok(left.remove(0)) }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn of_one_section_other_changes_are_no_lines() {
        let status =
            |lane: &str, other: &str| json!({"sections": {"lane": {"state": lane}, "other": {"state": other}}});
        let told = async |section: Option<&str>| {
            let answers = [status("in_step", "in_step"), status("in_step", "blocked"), status("blocked", "blocked")];
            let (answers, mut out) = (Answers(Mutex::new(answers.into())), Vec::new());
            let section = section.map(|name| name.parse::<SectionName>().expect("a name"));
            let ended = watch(&answers, section.as_ref(), Output::Name, false, &mut out).await;
            assert!(matches!(ended, Err(Error::Pointless { .. })), "{ended:?}");
            String::from_utf8(out).expect("text")
        };
        assert_eq!(told(Some("lane")).await, "section lane\nsection lane\n");
        assert_eq!(told(None).await, "section lane\nsection other\nsection other\nsection lane\n");
        assert_eq!(told(Some("none")).await, "");
    }

    #[test]
    fn a_change_is_a_line_and_growing_ages_are_none() {
        let status = |edge: &str, lane: &str| json!({"clusters": {"edge": {"state": "unreachable", "reason": edge}}, "sections": {"lane": {"state": "blocked", "message": lane}}});
        let now = "2026-11-29T09:00:00.5Z".parse().expect("a time");
        let shown = |before: Option<&Value>, after: &Value, output| {
            changes(before.map(rows).as_ref(), &rows(after), after, output, now)
        };
        let first = status("refused\nby it", "objects as of 9s ago");
        let all = "2026-11-29T09:00:00Z cluster edge unreachable: refused by it\n2026-11-29T09:00:00Z section lane blocked: objects as of 9s ago\n";
        assert_eq!(shown(None, &first, Output::Table), all);
        let older = status("refused\nby it", "objects as of 11s ago");
        for output in [Output::Table, Output::Wide, Output::Json, Output::Yaml, Output::Name] {
            assert_eq!(shown(Some(&first), &older, output), "");
        }
        let other = status("refused\nby it", "2 failing");
        let line = "2026-11-29T09:00:00Z section lane blocked: 2 failing\n";
        assert_eq!(shown(Some(&older), &other, Output::Table), line);
        assert_eq!(shown(Some(&older), &other, Output::Name), "section lane\n");
        assert_eq!(shown(Some(&older), &other, Output::Json), format!("{other}\n"));
        let without = json!({"clusters": {"edge": first["clusters"]["edge"]}});
        assert_eq!(shown(Some(&first), &without, Output::Table), "2026-11-29T09:00:00Z section lane is gone\n");
    }
}
