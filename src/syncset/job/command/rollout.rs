//! `towline rollout`: how a change of a syncset goes through its clusters, and what to do about it.

use http::Method;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::of_mounted;
use crate::config::text::one_line;
use crate::documents::Kind;
use crate::job::client::{Error, HubAccess, HubClient, path_of};
use crate::job::command::{Exit, complain};
use crate::job::output::{Format, Output, age, or_nothing, plain, table};
use crate::job::terminal::{Polling, Screen, Yes, consent};

/// The part of `--help` about names and exit codes.
pub(super) const HELP: &str = "\
SYNCSET is NAMESPACE/NAME of a SyncSet, or NAME of a SelectorSyncSet.
Exit codes of `status --watch`, which ends with the rollout: 0 complete; 3 stopped or rolled back.";

/// `towline rollout`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(super) struct RolloutCommand {
    #[command(subcommand)]
    task: Task,
}

#[derive(Clone, Debug, PartialEq, Eq, clap::Subcommand)]
enum Task {
    /// Show how far a rollout is, what it waits for, and the next step; without a syncset: all rollouts
    Status(StatusTask),
    /// Show the revisions of a syncset that are kept, and how many clusters have each
    History(Order),
    /// Let no further cluster change until it is resumed
    Pause(Order),
    /// Go on where it was paused or has stopped; clusters that have failed so far don't stop it again, unless its waves are changed
    Resume(Order),
    /// Let the next wave begin
    Promote(PromoteTask),
    /// End it: clusters stay at what they have until the syncset is edited, or undone
    Abort(AbortTask),
    /// Bring clusters back to the stable revision, or to another one that is kept
    Undo(UndoTask),
}

#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
struct StatusTask {
    /// The syncset; all that have a rollout by default
    syncset: Option<String>,
    /// Show it again and again until the rollout has ended
    #[arg(short, long, requires = "syncset")]
    watch: bool,
    #[command(flatten)]
    format: Format,
    #[command(flatten)]
    access: HubAccess,
}

#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
struct Order {
    /// The syncset
    syncset: String,
    #[command(flatten)]
    format: Format,
    #[command(flatten)]
    access: HubAccess,
}

#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
struct PromoteTask {
    #[command(flatten)]
    order: Order,
    /// The wave that waits; the order is refused if another one waits by then, so that it can be repeated
    wave: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
struct AbortTask {
    #[command(flatten)]
    order: Order,
    #[command(flatten)]
    yes: Yes,
}

#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
struct UndoTask {
    #[command(flatten)]
    order: Order,
    /// The number of a revision that `history` shows; the stable one by default
    #[arg(long, value_name = "REVISION", value_parser = clap::value_parser!(u32).range(1..))]
    to: Option<u32>,
    #[command(flatten)]
    yes: Yes,
}

pub(super) async fn rollout(command: RolloutCommand) -> Result<Exit, Error> {
    match command.task {
        Task::Status(task) => status(task).await,
        Task::History(order) => history(order).await,
        Task::Pause(order) => carry_out(&order, json!({"action": "pause"})).await,
        Task::Resume(order) => carry_out(&order, json!({"action": "resume"})).await,
        Task::Promote(PromoteTask { order, wave }) => {
            carry_out(&order, json!({"action": "promote", "wave": wave})).await
        }
        Task::Abort(AbortTask { order, yes }) => abort(&order, yes).await,
        Task::Undo(UndoTask { order, to, yes }) => undo(&order, to, yes).await,
    }
}

/// The path of a syncset's rollout.
fn path(syncset: &str) -> Result<String, Error> {
    let kind = if syncset.contains('/') { Kind::SyncSet } else { Kind::SelectorSyncSet };
    Ok(format!("{}/rollout", path_of(kind, None, syncset)?))
}

async fn status(task: StatusTask) -> Result<Exit, Error> {
    let StatusTask { syncset, watch, format: Format { output }, access } = task;
    let client = HubClient::new(&access).await?;
    let Some(syncset) = syncset else {
        let answer = client.get("/v1/rollouts").await.map_err(of_mounted)?;
        let items: Vec<&Value> = answer.get("items").and_then(Value::as_array).into_iter().flatten().collect();
        let names: Vec<String> = items.iter().map(|item| label(item).replacen(' ', "/", 1)).collect();
        output.print(&answer, &names, &list(&answer, &items));
        return Ok(Exit::Done);
    };
    let path = path(&syncset)?;
    if watch {
        return follow(&client, &path, output).await;
    }
    show(&client.get(&path).await?, output);
    Ok(Exit::Done)
}

fn show(answer: &Value, output: Output) {
    output.print(answer, &[label(answer).replacen(' ', "/", 1)], &lines(answer, output == Output::Wide));
}

/// Draws it again and again where there is a terminal; elsewhere prints it, and then each change.
async fn follow(client: &HubClient, path: &str, output: Output) -> Result<Exit, Error> {
    let screen = Screen::of_output().filter(|_| matches!(output, Output::Table | Output::Wide));
    let (mut seen, mut polling) = (None, Polling::new());
    loop {
        match client.get(path).await {
            Ok(mut answer) => {
                polling.succeeded();
                let text = lines(&answer, output == Output::Wide).join("\n");
                let drawn = screen.as_ref().map(|screen| screen.draw(&text));
                if drawn.is_none_or(|drawn| drawn.is_err()) {
                    let shown = answer.clone();
                    // It grows while nothing changes.
                    answer.as_object_mut().and_then(|fields| fields.remove("forSeconds"));
                    if seen.as_ref() != Some(&answer) {
                        show(&shown, output);
                    }
                    seen = Some(answer.clone());
                }
                if let Some(exit) = end(&answer) {
                    return Ok(exit);
                }
            }
            Err(error) if error.is_outage() => polling.failed(error)?,
            Err(error) => return Err(error),
        }
        polling.pause().await;
    }
}

/// The exit code of a rollout that moves no more clusters by itself.
fn end(answer: &Value) -> Option<Exit> {
    match text(answer, "state").as_str() {
        "Complete" => Some(Exit::Done),
        "Stopped" | "RolledBack" => Some(Exit::NotWell),
        _ => None,
    }
}

async fn history(order: Order) -> Result<Exit, Error> {
    let answer = HubClient::new(&order.access).await?.get(&format!("{}/revisions", path(&order.syncset)?)).await?;
    let items: Vec<&Value> = answer.get("items").and_then(Value::as_array).into_iter().flatten().collect();
    let names: Vec<String> = items.iter().map(|item| plain(item.get("revision"))).collect();
    let headings = ["REVISION", "GENERATION", "MADE", "BY", "CLUSTERS", "IS"];
    let rows = items.iter().map(|item| {
        let is = |field: &str| item.get(field) == Some(&Value::Bool(true));
        let roles: Vec<&str> = ["newest", "goal", "stable"].into_iter().filter(|role| is(role)).collect();
        let cells = ["revision", "generation", "made", "author", "clusters"].map(|field| plain(item.get(field)));
        cells.into_iter().chain([or_nothing(&roles.join(", "))]).collect()
    });
    let text = table(&headings, rows);
    order.format.output.print(&answer, &names, &[text.trim_end().to_owned()]);
    Ok(Exit::Done)
}

async fn carry_out(order: &Order, body: Value) -> Result<Exit, Error> {
    let client = HubClient::new(&order.access).await?;
    let body = ("application/json", body.to_string().into());
    show(&client.order(Method::POST, &path(&order.syncset)?, Some(body)).await?, order.format.output);
    Ok(Exit::Done)
}

async fn abort(order: &Order, yes: Yes) -> Result<Exit, Error> {
    if !yes.yes {
        let answer = HubClient::new(&order.access).await?.get(&path(&order.syncset)?).await?;
        let plan = format!(
            "the rollout of {} would end: its clusters keep what each has now until the syncset is edited, or undone",
            order.syncset
        );
        if let Some(exit) = declined(abort_refused(&answer), &plan).await {
            return Ok(exit);
        }
    }
    carry_out(order, json!({"action": "abort"})).await
}

async fn undo(order: &Order, to: Option<u32>, yes: Yes) -> Result<Exit, Error> {
    if !yes.yes {
        let (client, path) = (HubClient::new(&order.access).await?, path(&order.syncset)?);
        let answer = client.get(&path).await?;
        let mut refused = undo_refused(&order.syncset, to, &answer);
        if let (Some(to), None) = (to, &refused) {
            let kept = client.get(&format!("{path}/revisions")).await?;
            let mut kept = kept.get("items").and_then(Value::as_array).into_iter().flatten();
            let is_kept = kept.any(|one| one.get("revision") == Some(&json!(to)));
            refused =
                (!is_kept).then(|| format!("revision {to} is not kept: `towline rollout history {}`", order.syncset));
        }
        let (revision, stable) = (plain(answer.get("newest")), plain(answer.get("stable")));
        let to = to.map_or_else(|| stable.clone(), |to| to.to_string());
        let plan = format!(
            "{}: clusters with another revision would go to revision {to} (newest {revision}, stable {stable}); the document stays as it is",
            label(&answer)
        );
        if let Some(exit) = declined(refused, &plan).await {
            return Ok(exit);
        }
    }
    let mut body = json!({"action": "undo"});
    if let (Some(to), Some(body)) = (to, body.as_object_mut()) {
        body.insert("to".to_owned(), json!(to));
    }
    carry_out(order, body).await
}

/// Says what the hub would refuse, or asks. The exit code if nothing is to be done.
async fn declined(refused: Option<String>, plan: &str) -> Option<Exit> {
    if let Some(refused) = refused {
        complain(&refused);
        return Some(Exit::Failed);
    }
    consent(plan).await.err()
}

/// Why the state of a rollout does not allow to abort it.
fn abort_refused(rollout: &Value) -> Option<String> {
    let possible = possible(rollout);
    (!possible.iter().any(|command| command == "abort")).then(|| {
        let possible = if possible.is_empty() { "none".to_owned() } else { possible.join(", ") };
        format!("abort: the rollout is {}; possible now: {possible}", state(rollout))
    })
}

/// Why clusters can't go back to a revision, kept or not, and how to find another one. What is possible is that of the stable one.
fn undo_refused(syncset: &str, to: Option<u32>, rollout: &Value) -> Option<String> {
    let Some(stable) = rollout.get("stable").and_then(Value::as_u64) else {
        let reason = "there is no stable revision to go back to: the first content has not reached all clusters yet";
        return Some(format!("undo: {reason}"));
    };
    let is_stable = to.is_none_or(|to| u64::from(to) == stable);
    let is_possible = possible(rollout).iter().any(|command| command == "undo");
    (is_stable && !is_possible).then(|| {
        format!(
            "undo: all clusters have the stable revision {stable} already: name another one by `--to`; \
             `towline rollout history {syncset}` shows those that are kept"
        )
    })
}

fn possible(rollout: &Value) -> Vec<String> {
    let commands = rollout.get("commands").and_then(Value::as_array).into_iter().flatten();
    commands.map(|command| plain(Some(command))).collect()
}

/// `Running (Guarding)`.
fn state(rollout: &Value) -> String {
    let reason = text(rollout, "reason");
    let reason = if reason.is_empty() { reason } else { format!(" ({reason})") };
    text(rollout, "state") + &reason
}

fn text(value: &Value, field: &str) -> String {
    value.get(field).and_then(Value::as_str).map(one_line).unwrap_or_default()
}

/// `SyncSet team-a/base`.
fn label(rollout: &Value) -> String {
    let (kind, namespace, name) = (text(rollout, "kind"), text(rollout, "namespace"), text(rollout, "name"));
    let slash = if namespace.is_empty() { "" } else { "/" };
    format!("{kind} {namespace}{slash}{name}")
}

/// `3 → 4`, or what all clusters have.
fn revisions(rollout: &Value) -> String {
    let of = |field| rollout.get(field).filter(|value| !value.is_null());
    match (of("stable"), of("revision")) {
        (Some(stable), revision) if revision == Some(stable) => plain(Some(stable)),
        (stable, revision) => format!("{} → {}", plain(stable), plain(revision)),
    }
}

fn list(answer: &Value, items: &[&Value]) -> Vec<String> {
    if items.is_empty() {
        return vec!["no syncset has a rollout".to_owned()];
    }
    let headings = ["SYNCSET", "STATE", "REASON", "WAVE", "REVISION", "FOR", "NEXT STEP"];
    let rows = items.iter().map(|item| {
        let cell = |field: &str| or_nothing(&text(item, field));
        vec![
            label(item),
            cell("state"),
            cell("reason"),
            cell("wave"),
            revisions(item),
            age(item.get("forSeconds")),
            cell("nextStep"),
        ]
    });
    let mut lines: Vec<String> = table(&headings, rows).lines().map(str::to_owned).collect();
    if let Some(more) = answer.get("more").and_then(Value::as_u64).filter(|more| *more > 0) {
        lines.push(format!("and {more} more: give the name of one"));
    }
    lines
}

/// One rollout: a line for its state, its waves, what it waits for, and the next step.
fn lines(rollout: &Value, is_wide: bool) -> Vec<String> {
    let mut lines = vec![format!(
        "{}: {} for {}, revision {}",
        label(rollout),
        state(rollout),
        age(rollout.get("forSeconds")),
        revisions(rollout)
    )];
    let waves = rollout.get("waves").and_then(Value::as_array).into_iter().flatten();
    let rows = waves.map(|wave| {
        let name = text(wave, "name");
        let count = |field: &str| plain(wave.get(field));
        vec![
            name,
            text(wave, "state"),
            count("clusters"),
            count("released"),
            count("done"),
            count("failed"),
            count("away"),
        ]
    });
    let headings = ["WAVE", "STATE", "CLUSTERS", "RELEASED", "DONE", "FAILED", "AWAY"];
    lines.extend(table(&headings, rows).lines().map(str::to_owned));
    for (what, field) in [("now", "message"), ("next step", "nextStep"), ("by", "actor")] {
        let told = text(rollout, field);
        if !told.is_empty() {
            lines.push(format!("{what}: {told}"));
        }
    }
    let again = rollout.get("sentAgain").and_then(Value::as_array).into_iter().flatten();
    let again: Vec<String> = again.map(|object| plain(Some(object))).collect();
    if !again.is_empty() {
        lines.push(format!("sent again where deleted: {}", again.join("; ")));
    }
    if is_wide {
        lines.push(format!("possible: {}", or_nothing(&possible(rollout).join(", "))));
        lines.push(format!("since: {}", since(rollout)));
    }
    lines
}

fn since(rollout: &Value) -> String {
    let time = text(rollout, "since").parse::<Timestamp>();
    time.map_or_else(|_| or_nothing(""), |time| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;

    fn shown() -> Value {
        json!({"kind": "SyncSet", "namespace": "team-a", "name": "base", "state": "Running", "reason": "AwaitingPromotion",
            "message": "wave canary is done, and waits to be promoted", "revision": 4, "newest": 4, "stable": 3, "wave": "canary",
            "forSeconds": 720, "since": "2026-11-29T09:00:00.5Z", "actor": "ada",
            "nextStep": "`towline rollout promote team-a/base`", "commands": ["pause", "promote", "abort", "undo"], "waves": [
                {"name": "canary", "state": "running", "clusters": 3, "released": 2, "done": 1, "failed": 1, "away": 1},
                {"name": "rest", "state": "waiting", "clusters": 97, "released": 0, "done": 0, "failed": 0, "away": 4}]})
    }

    #[test]
    fn a_rollout_is_its_state_its_waves_and_the_next_step() {
        let expected = "\
SyncSet team-a/base: Running (AwaitingPromotion) for 12m, revision 3 → 4
WAVE     STATE     CLUSTERS   RELEASED   DONE   FAILED   AWAY
canary   running   3          2          1      1        1
rest     waiting   97         0          0      0        4
now: wave canary is done, and waits to be promoted
next step: `towline rollout promote team-a/base`
by: ada";
        assert_eq!(lines(&shown(), false).join("\n"), expected);
        let wide = lines(&shown(), true);
        assert_eq!(wide[7..], ["possible: pause, promote, abort, undo", "since: 2026-11-29T09:00:00Z"]);
        let complete = json!({"kind": "SelectorSyncSet", "name": "base", "state": "Complete", "revision": 4, "stable": 4, "newest": 4,
            "forSeconds": 3});
        assert_eq!(lines(&complete, false), ["SelectorSyncSet base: Complete for 3s, revision 4"]);
        assert_eq!(revisions(&json!({"revision": 1})), "- → 1", "the first content has none before it");
    }

    #[test]
    fn all_rollouts_are_a_table() {
        let answer = json!({"items": [shown()], "more": 2});
        let expected = "\
SYNCSET               STATE     REASON              WAVE     REVISION   FOR   NEXT STEP
SyncSet team-a/base   Running   AwaitingPromotion   canary   3 → 4      12m   `towline rollout promote team-a/base`
and 2 more: give the name of one";
        assert_eq!(list(&answer, &[&shown()]).join("\n"), expected);
        assert_eq!(list(&json!({}), &[]), ["no syncset has a rollout"]);
    }

    #[test]
    fn following_ends_with_the_rollout() {
        for (state, exit) in [
            ("Running", None),
            ("RollingBack", None),
            ("Complete", Some(Exit::Done)),
            ("Stopped", Some(Exit::NotWell)),
            ("RolledBack", Some(Exit::NotWell)),
        ] {
            assert_eq!(end(&json!({ "state": state })), exit, "{state}");
        }
    }

    #[test]
    fn an_undo_that_leads_nowhere_is_refused_with_what_to_ask_for() {
        let told = |to, rollout: &Value| undo_refused("team-a/base", to, rollout).unwrap_or_default();
        let complete = json!({"state": "Complete", "stable": 3, "newest": 3, "commands": []});
        for to in [None, Some(3)] {
            let told = told(to, &complete);
            let has = |part: &str| told.contains(part);
            assert!(has("revision 3 already") && has("`--to`") && has("rollout history team-a/base"), "{told}");
            assert_eq!(undo_refused("team-a/base", to, &shown()), None);
        }
        assert_eq!(undo_refused("team-a/base", Some(2), &complete), None);
        let first = json!({"state": "Running", "newest": 1, "commands": ["pause", "abort"]});
        for to in [None, Some(1)] {
            assert!(told(to, &first).contains("no stable revision"), "{to:?}");
        }
    }

    #[test]
    fn a_name_with_a_namespace_is_that_of_a_syncset() {
        assert_eq!(path("team-a/base").ok().as_deref(), Some("/v1/syncsets/team-a/base/rollout"));
        assert_eq!(path("base").ok().as_deref(), Some("/v1/selectorsyncsets/base/rollout"));
        assert!(path("a/b/c").is_err() && path("B b").is_err());
        let parse = |line: &str| {
            let command = <RolloutCommand as clap::Args>::augment_args(clap::Command::new("rollout"));
            command
                .try_get_matches_from(line.split(' '))
                .ok()
                .and_then(|found| RolloutCommand::from_arg_matches(&found).ok())
        };
        assert!(parse("rollout status").is_some() && parse("rollout undo --to 3 --yes base").is_some());
        for wrong in
            ["rollout", "rollout status -w", "rollout pause", "rollout undo --to 0 base", "rollout promote --yes base"]
        {
            assert!(parse(wrong).is_none(), "{wrong}");
        }
    }
}
