//! A daemon's status as tables for people, the most urgent first.
//!
//! The document is read without a schema, so that an older command can show the status of a newer daemon.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::config::text::one_line;
use crate::job::output::{NOTHING, age, aligned, or_nothing, plain, table};
use crate::status::SectionState;

/// Whether every cluster answers, none has new credentials that do not work, and every section is well. Of several replicas each answers.
pub(super) fn is_well(status: &Value) -> bool {
    let entries = |key: &str| status.get(key).and_then(Value::as_object).into_iter().flatten();
    let is_fine = |cluster: &Value| {
        cluster.get("state").and_then(Value::as_str) == Some("available")
            && cluster.get("reason").is_none_or(Value::is_null)
    };
    entries("replicas").all(|(_, replica)| replica.get("error").is_none())
        && entries("clusters").all(|(_, cluster)| is_fine(cluster))
        && entries("sections").all(|(_, section)| section.get("well") == Some(&Value::Bool(true)))
}

/// A daemon's `/status`: the clusters, the sections, the objects that fail or wait, the replicas where they were several, and on request the
/// actor tree.
pub(super) fn status(status: &Value, with_tree: bool, is_wide: bool) -> String {
    let sections = by_state(status.get("sections").and_then(Value::as_object));
    let mut parts = vec![
        clusters(status.get("clusters").and_then(Value::as_object)),
        section_rows(&sections, is_wide),
        objects(&sections),
        replicas(status.get("replicas").and_then(Value::as_object)),
    ];
    if with_tree {
        parts.push(tree(status.get("tree")));
    }
    let version = plain(status.get("version"));
    parts.push(format!("towline {version}, started {} ago\n", age(status.get("started_seconds_ago"))));
    parts.retain(|part| !part.is_empty());
    parts.join("\n")
}

/// The names of the sections, the worst first.
pub(super) fn names(status: &Value) -> String {
    let sections = by_state(status.get("sections").and_then(Value::as_object));
    sections.into_iter().fold(String::new(), |names, (name, _)| names + &one_line(name) + "\n")
}

/// The names of the objects that a section holds.
pub(super) fn held_names(held: &Value) -> String {
    let objects = held.get("objects").and_then(Value::as_array).into_iter().flatten();
    objects.fold(String::new(), |names, object| names + &plain(object.get("key")) + "\n")
}

/// The changes that a section holds until an operator approves them.
pub(super) fn held(held: &Value) -> String {
    let objects = held.get("objects").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let rows = objects.iter().map(|object| ["key", "kind", "reason"].map(|key| plain(object.get(key))).to_vec());
    let because = held.get("because").and_then(Value::as_str).map(one_line);
    let lines = because.map(|because| format!("the whole section is held: {because}\n"));
    let text = lines.unwrap_or_default() + &table(&["OBJECT", "KIND", "REASON"], rows);
    let text = if text.is_empty() { "nothing is held\n".to_owned() } else { text };
    let counting = held.get("counting").and_then(Value::as_array).into_iter().flatten();
    let told = |name| format!("deletions of {} are being counted, and wait for that\n", plain(Some(name)));
    text + &counting.map(told).collect::<String>()
}

/// Most objects that are listed before somebody is asked.
const MOST_ASKED: usize = 50;

/// Whether a section lets what it holds proceed by name: most know all or nothing.
pub(super) fn is_approved_by_name(held: &Value) -> bool {
    held.get("by_name") != Some(&Value::Bool(false))
}

/// What an approval would let proceed; none if nothing is held under this name.
pub(super) fn approved(section: &str, name: Option<&str>, held: &Value) -> Option<String> {
    if let Some(because) = held.get("because").and_then(Value::as_str) {
        let because = one_line(because);
        return Some(format!(
            "section {section} is held as a whole: {because}\nits clusters would be approved as they are now\n"
        ));
    }
    // Of a syncset, the kind may be left out: `SyncSet team-a/base`.
    let is_named = |key: &str| name.is_none_or(|name| key == name || key.split(' ').next_back() == Some(name));
    let objects = held.get("objects").and_then(Value::as_array).into_iter().flatten();
    let rows: Vec<Vec<String>> = objects
        .map(|object| ["key", "kind", "reason"].map(|key| plain(object.get(key))).to_vec())
        .filter(|row| row.first().is_some_and(|key| is_named(key)))
        .collect();
    let count = rows.len();
    let more = count.checked_sub(MOST_ASKED).filter(|more| *more > 0);
    let more = more.map(|more| format!("and {more} more: towline approve {section} --list\n")).unwrap_or_default();
    let rows = table(&["OBJECT", "KIND", "REASON"], rows.into_iter().take(MOST_ASKED));
    let what = if count == 1 { "1 change".to_owned() } else { format!("{count} changes") };
    (count > 0).then(|| format!("{rows}{more}{what} of section {section} would proceed\n"))
}

/// The report of a section, or that there is none.
pub(super) fn section<'s>(name: &str, status: &'s Value) -> Result<&'s Value, String> {
    let sections = status.get("sections").and_then(Value::as_object);
    sections.and_then(|sections| sections.get(name)).ok_or_else(|| {
        let names: Vec<String> = sections.into_iter().flatten().map(|(name, _)| one_line(name)).collect();
        let known = if names.is_empty() { "there are none".to_owned() } else { names.join(", ") };
        format!("no section {name}; sections: {known}")
    })
}

/// The part of a status about one section.
pub(super) fn status_of(name: &str, status: &Value) -> Result<Value, String> {
    let (version, started) = (status.get("version"), status.get("started_seconds_ago"));
    Ok(json!({"version": version, "started_seconds_ago": started, "sections": {name: section(name, status)?}}))
}

/// What a detach would do, or why the daemon would not do it.
pub(super) fn detached(name: &str, local_gone: bool, status: &Value) -> Result<String, String> {
    let report = section(name, status)?;
    match report.get("job").and_then(Value::as_str) {
        Some("sync") | None => {}
        Some(job) => return Err(format!("section {name}: the job {job} has nothing to detach")),
    }
    if report.get("mode").and_then(Value::as_str) == Some("dry_run") {
        return Err(format!("section {name} is a dry run, which writes nothing: set `dry_run = false` to detach it"));
    }
    if report.pointer("/election/held") == Some(&Value::Bool(false)) {
        return Err(format!("section {name}: {}", plain(report.get("message"))));
    }
    // Without its local cluster it needs less than its report is about.
    if let (false, Some(reason)) = (local_gone, report.get("waits_for").and_then(Value::as_str)) {
        return Err(format!("section {name}: {}", one_line(reason)));
    }
    let overview = report.get("overview");
    let of = |key: &str| plain(overview.and_then(|overview| overview.get(key)));
    let (flow, subject, total) = (of("flow"), of("subject"), of("total"));
    let local = if local_gone {
        "the local cluster is taken for gone for good, and is not asked; "
    } else {
        "its marks would be taken off the local objects; "
    };
    Ok(format!(
        "section {name} ({subject}, {flow}) would end for good, with {total} objects, which stay:\n\
         its finalizers would be taken off the remote objects; {local}nothing is synced any more\n"
    ))
}

/// What a section answers to an order, in a sentence, with whether a restart remembers it where that is known.
pub(super) fn done(section: &str, answer: &Value) -> String {
    let count = |field: &str, one: &str, more: &str| {
        let count = answer.get(field)?.as_u64()?;
        Some(if count == 1 { format!("1 {one}") } else { format!("{count} {more}") })
    };
    let done = if let Some(overruled) = answer.get("overruled") {
        format!("the clusters are approved as they are now: {}", plain(Some(overruled)))
    } else if let Some(syncsets) = answer.get("approved").and_then(Value::as_array) {
        let names = syncsets.iter().map(|held| plain(held.get("syncset"))).collect::<Vec<_>>().join(", ");
        format!("deletions approved: {names}")
    } else {
        count("approved", "change is approved", "changes are approved")
            .or_else(|| Some(format!("detaching, {}", count("detaching", "object is left", "objects are left")?)))
            .or_else(|| Some(format!("attached again, with {}", count("attached", "object", "objects")?)))
            .or_else(|| count("releases", "release is sent again", "releases are sent again"))
            .unwrap_or_else(|| one_line(&answer.to_string()))
    };
    let remembered = match (answer.get("remembered"), answer.get("reason")) {
        (Some(Value::Bool(true)), _) => "; a restart remembers that".to_owned(),
        (_, Some(reason)) => format!("; {}", plain(Some(reason))),
        _ => String::new(),
    };
    format!("{section}: {done}{remembered}\n")
}

/// The sections, the worst first.
fn by_state(sections: Option<&Map<String, Value>>) -> Vec<(&String, &Value)> {
    let mut sections: Vec<_> = sections.into_iter().flatten().collect();
    sections.sort_by_key(|(_, section)| rank(section));
    sections
}

/// A section's state, the worst first. One that is not known, of a newer daemon, comes before all of them.
pub(super) fn rank(section: &Value) -> Option<SectionState> {
    SectionState::deserialize(section.get("state")?).ok()
}

fn clusters(clusters: Option<&Map<String, Value>>) -> String {
    let rows = clusters.into_iter().flatten().map(|(name, cluster)| {
        let cell = |key: &str| plain(cluster.get(key));
        vec![name.clone(), cell("state"), age(cluster.get("since_seconds")), cell("reason")]
    });
    table(&["CLUSTER", "STATE", "SINCE", "REASON"], rows)
}

fn replicas(replicas: Option<&Map<String, Value>>) -> String {
    let rows = replicas.into_iter().flatten().map(|(name, replica)| {
        let cell = |key: &str| plain(replica.get(key));
        vec![one_line(name), cell("version"), age(replica.get("started_seconds_ago")), cell("error")]
    });
    table(&["REPLICA", "VERSION", "STARTED", "ERROR"], rows)
}

fn section_rows(sections: &[(&String, &Value)], is_wide: bool) -> String {
    let rows = sections.iter().map(|(name, section)| {
        let overview = |key: &str| section.get("overview").and_then(|overview| overview.get(key));
        let in_step = match section.get("state").and_then(Value::as_str) {
            Some("elsewhere") | None => NOTHING.to_owned(),
            // Such as a hub, which has no objects.
            Some(_) if overview("total") == Some(&Value::from(0)) => NOTHING.to_owned(),
            Some(_) => format!("{}/{}", plain(overview("in_step")), plain(overview("total"))),
        };
        let mut row = vec![
            (*name).clone(),
            plain(overview("flow")),
            plain(overview("subject")),
            plain(section.get("state")),
            in_step,
            age(overview("oldest_seconds")),
        ];
        if is_wide {
            row.push(plain(section.get("job")));
            row.push(plain(section.pointer("/readiness/state")));
            row.push(plain(section.get("replica")));
        }
        row.push(message(section));
        row
    });
    let mut headings = vec!["SECTION", "REMOTE→LOCAL", "RESOURCE", "STATE", "IN STEP", "OLDEST"];
    if is_wide {
        headings.extend(["JOB", "READINESS", "REPLICA"]);
    }
    headings.push("MESSAGE");
    table(&headings, rows)
}

/// What a section says, and how old that is where it is counted from time to time.
fn message(section: &Value) -> String {
    let message = or_nothing(&plain(section.get("message")));
    match section.get("as_of_seconds").filter(|seconds| seconds.is_number()) {
        None => message,
        Some(seconds) if message == NOTHING => format!("as of {} ago", age(Some(seconds))),
        Some(seconds) => format!("{message}, as of {} ago", age(Some(seconds))),
    }
}

/// The objects that fail or wait, by section.
fn objects(sections: &[(&String, &Value)]) -> String {
    let rows = sections.iter().flat_map(|(name, section)| {
        let listed = section.get("not_in_step").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        listed.iter().map(|object| object_row(name, object))
    });
    let more = sections.iter().filter_map(|(name, section)| {
        let more = section.get("not_in_step_more")?.as_u64()?;
        Some(format!("{more} more of {name} are not listed; one of them: towline status {name} OBJECT\n"))
    });
    [table(&OBJECT_HEADINGS, rows)].into_iter().chain(more).collect::<Vec<_>>().concat()
}

const OBJECT_HEADINGS: [&str; 5] = ["OBJECT", "SECTION", "STATE", "FOR", "CAUSE → NEXT STEP"];

fn object_row(section: &str, object: &Value) -> Vec<String> {
    let cell = |key: &str| plain(object.get(key));
    vec![cell("key"), section.to_owned(), cell("state"), age(object.get("for_seconds")), what_to_do(object)]
}

/// The objects of a section in an answer; none if it explains in lines.
pub(super) fn objects_of(section: &str, answer: &Value) -> Option<String> {
    let objects = answer.get("objects").and_then(Value::as_array)?;
    Some(table(&OBJECT_HEADINGS, objects.iter().map(|object| object_row(section, object))))
}

/// What is known of an object, in lines; none if the answer has lines of its own.
pub(super) fn explained(answer: &Value) -> Option<String> {
    let objects = answer.get("objects").and_then(Value::as_array)?;
    let explained = objects.iter().map(|object| {
        let cell = |key: &str| plain(object.get(key));
        let since = object.get("for_seconds").filter(|seconds| seconds.is_number());
        let since = since.map(|seconds| format!(", for {}", age(Some(seconds)))).unwrap_or_default();
        let mut rows = vec![vec!["object".to_owned(), cell("key")], vec!["state".to_owned(), cell("state") + &since]];
        for (name, side) in object.get("sides").and_then(Value::as_object).into_iter().flatten() {
            rows.push(vec![name.clone(), self::side(side)]);
        }
        let cause = object.get("cause").and_then(Value::as_str).filter(|cause| !cause.is_empty());
        rows.extend(cause.map(|_| vec!["waits".to_owned(), what_to_do(object)]));
        let known = ["key", "state", "for_seconds", "sides", "cause", "next_step", "retry", "retry_in_seconds"];
        let others = object.as_object().into_iter().flatten().filter(|(key, _)| !known.contains(&key.as_str()));
        for (key, value) in others {
            let values = match value.as_array() {
                None => vec![plain(Some(value))],
                Some(none) if none.is_empty() => vec!["none".to_owned()],
                Some(all) => all.iter().map(|one| plain(Some(one))).collect(),
            };
            let labels = std::iter::once(one_line(key)).chain(std::iter::repeat(String::new()));
            rows.extend(labels.zip(values).map(|(label, value)| vec![label, value]));
        }
        aligned(&rows)
    });
    Some(explained.collect::<Vec<_>>().join("\n"))
}

/// What a cluster has of an object: `hub hu/orders-0: generation 4, version 17; finalizer a/b; a/sync-remote-generation 4`.
fn side(side: &Value) -> String {
    let cell = |key: &str| plain(side.get(key));
    let of = format!("{} {}", cell("cluster"), cell("object"));
    if side.get("exists") != Some(&Value::Bool(true)) {
        return format!("{of}: does not exist");
    }
    let mut parts = vec![format!("generation {}, version {}", cell("generation"), cell("resource_version"))];
    if side.get("deleting") == Some(&Value::Bool(true)) {
        parts.push("is being deleted".to_owned());
    }
    let finalizers = side.get("finalizers").and_then(Value::as_array).into_iter().flatten();
    parts.extend(finalizers.map(|finalizer| format!("finalizer {}", plain(Some(finalizer)))));
    let marks = side.get("marks").and_then(Value::as_object).into_iter().flatten();
    parts.extend(marks.map(|(mark, value)| format!("{} {}", one_line(mark), plain(Some(value)))));
    format!("{of}: {}", parts.join("; "))
}

/// `spec.n: too large → change it on the hub; retried on change, else in 40s`.
fn what_to_do(object: &Value) -> String {
    let text = |key: &str| object.get(key).and_then(Value::as_str).map(one_line).filter(|text| !text.is_empty());
    let delay = object.get("retry_in_seconds").filter(|seconds| seconds.is_number()).map(|seconds| age(Some(seconds)));
    let retried = match (text("retry"), delay) {
        (Some(when), Some(delay)) => Some(format!("retried {when}, else in {delay}")),
        (Some(when), None) => Some(format!("retried {when}")),
        (None, Some(delay)) => Some(format!("retried in {delay}")),
        (None, None) => None,
    };
    let then: Vec<String> = text("next_step").filter(|step| step != "none").into_iter().chain(retried).collect();
    let cause = or_nothing(&plain(object.get("cause")));
    if then.is_empty() { cause } else { format!("{cause} → {}", then.join("; ")) }
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

/// One actor and its children. `before` is the indentation of its own line, `below` that of its children.
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document() -> Value {
        json!({
            "version": "0.1.0",
            "started_seconds_ago": 3 * 3600 + 59,
            "clusters": {
                "edge": { "state": "unreachable", "since_seconds": 27, "reason": "connection refused (10.0.0.7:6443)" },
                "hub": { "state": "available", "since_seconds": 7200, "reason": null },
            },
            "sections": {
                "addons": {
                    "job": "lease", "state": "ready", "well": true, "message": "", "as_of_seconds": 8,
                    "overview": { "flow": "edge→hub", "subject": "leases", "total": 1, "in_step": 1, "oldest_seconds": null },
                },
                "databases": {
                    "job": "sync", "state": "blocked", "well": false,
                    "message": "cluster edge unreachable; 1 paused, 1 deleting",
                    "overview": { "flow": "hub→edge", "subject": "databases", "total": 12, "in_step": 10, "oldest_seconds": 27.4 },
                    "not_in_step": [{
                        "key": "hu/orders-0", "state": "deleting", "for_seconds": 12 * 60 + 5,
                        "cause": "waits for finalizer example.com/never (edge)", "next_step": "ask its owner",
                    }],
                },
                "others": {
                    "job": "sync", "state": "elsewhere", "well": true, "message": "runs in replica b",
                    "overview": { "flow": "hub→edge", "subject": "users", "total": 0, "in_step": 0, "oldest_seconds": null },
                },
                "queues": {
                    "job": "sync", "state": "failing", "well": false, "message": "hu/queue-2: spec.n: 502 > 100; 1 failing",
                    "overview": { "flow": "hub→edge", "subject": "queues", "total": 3, "in_step": 2, "oldest_seconds": 3 },
                    "not_in_step": [{
                        "key": "hu/queue-2", "state": "failing", "for_seconds": 3, "cause": "spec.n: 502 > 100",
                        "next_step": "change it on the hub", "retry": "on change", "retry_in_seconds": 40,
                    }],
                    "not_in_step_more": 7,
                },
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
        })
    }

    #[test]
    fn clusters_come_first_then_the_worst_sections_then_what_fails_or_waits() {
        let expected = "\
CLUSTER   STATE         SINCE   REASON
edge      unreachable   27s     connection refused (10.0.0.7:6443)
hub       available     2h      -

SECTION     REMOTE→LOCAL   RESOURCE    STATE       IN STEP   OLDEST   MESSAGE
databases   hub→edge       databases   blocked     10/12     27s      cluster edge unreachable; 1 paused, 1 deleting
queues      hub→edge       queues      failing     2/3       3s       hu/queue-2: spec.n: 502 > 100; 1 failing
others      hub→edge       users       elsewhere   -         -        runs in replica b
addons      edge→hub       leases      ready       1/1       -        as of 8s ago

OBJECT        SECTION     STATE      FOR   CAUSE → NEXT STEP
hu/orders-0   databases   deleting   12m   waits for finalizer example.com/never (edge) → ask its owner
hu/queue-2    queues      failing    3s    spec.n: 502 > 100 → change it on the hub; retried on change, else in 40s
7 more of queues are not listed; one of them: towline status queues OBJECT

towline 0.1.0, started 3h ago
";
        assert_eq!(status(&document(), false, false), expected);
    }

    #[test]
    fn a_section_without_objects_has_no_count_of_them() {
        let overview = json!({"flow": "api", "subject": "documents", "total": 0, "in_step": 0});
        let document = json!({"sections": {"hub": {"state": "in_step", "overview": overview}}});
        let expected = "\
SECTION   REMOTE→LOCAL   RESOURCE    STATE     IN STEP   OLDEST   MESSAGE
hub       api            documents   in_step   -         -        -
";
        assert!(status(&document, false, false).contains(expected), "{}", status(&document, false, false));
    }

    #[test]
    fn several_replicas_are_listed_and_one_that_does_not_answer_is_not_well() {
        let mut document = json!({
            "sections": {"addons": {"well": true, "state": "ready", "job": "lease", "replica": "towline-0"}},
            "replicas": {"towline-0": {"version": "0.1.0", "started_seconds_ago": 61}},
        });
        assert!(is_well(&document));
        document["replicas"]["towline-1"] = json!({"error": "connection refused"});
        assert!(!is_well(&document));
        let text = status(&document, false, true);
        let expected = "\
REPLICA     VERSION   STARTED   ERROR
towline-0   0.1.0     61s       -
towline-1   -         -         connection refused
";
        assert!(text.contains(expected), "{text}");
        assert!(
            text.contains("READINESS   REPLICA     MESSAGE") && text.contains("lease   -           towline-0"),
            "{text}"
        );
    }

    #[test]
    fn held_changes_are_listed_with_kind_and_reason() {
        let objects = json!([
            { "key": "hu/a", "kind": "delete", "reason": "gone\nfrom the hub" },
            { "key": "hu/orders-7", "kind": "overwrite", "reason": "was on edge before" },
        ]);
        let expected = "\
OBJECT        KIND        REASON
hu/a          delete      gone from the hub
hu/orders-7   overwrite   was on edge before
";
        assert_eq!(held(&json!({ "because": null, "objects": objects })), expected);
        let whole = held(&json!({ "because": "another cluster answers as edge", "objects": [] }));
        assert_eq!(whole, "the whole section is held: another cluster answers as edge\n");
        assert_eq!(held(&json!({ "because": null, "objects": [] })), "nothing is held\n");
        let counted = held(&json!({ "because": null, "objects": [], "counting": ["SyncSet team/s1"] }));
        assert_eq!(counted, "nothing is held\ndeletions of SyncSet team/s1 are being counted, and wait for that\n");
    }

    #[test]
    fn what_an_approval_lets_proceed_is_listed_before() {
        let held = |count: usize| {
            let objects: Vec<Value> = (0..count)
                .map(|n| json!({"key": format!("SyncSet team/s{n}"), "kind": "delete", "reason": format!("r{n}")}))
                .collect();
            json!({"because": null, "objects": objects, "digest": "d"})
        };
        let one = "OBJECT            KIND     REASON\nSyncSet team/s1   delete   r1\n1 change of section lane would proceed\n";
        assert_eq!(approved("lane", Some("team/s1"), &held(3)).as_deref(), Some(one));
        assert_eq!(approved("lane", Some("SyncSet team/s1"), &held(3)).as_deref(), Some(one));
        assert_eq!(approved("lane", Some("s1"), &held(3)), None);
        assert_eq!(approved("lane", None, &held(0)), None);
        let many = approved("lane", None, &held(52)).expect("some are held");
        assert_eq!(many.lines().count(), 1 + 50 + 2, "{many}");
        assert!(many.ends_with("and 2 more: towline approve lane --list\n52 changes of section lane would proceed\n"));
        let whole = approved("lane", None, &json!({"because": "another\ncluster", "objects": []})).expect("it is held");
        assert_eq!(
            whole,
            "section lane is held as a whole: another cluster\nits clusters would be approved as they are now\n"
        );
    }

    #[test]
    fn the_status_of_one_section_has_its_row_and_its_objects_alone() {
        let told = status(&status_of("queues", &document()).expect("a section"), false, false);
        assert!(
            told.starts_with("SECTION") && told.contains("hu/queue-2") && told.ends_with("started 3h ago\n"),
            "{told}"
        );
        assert!(!told.contains("databases") && !told.contains("unreachable"), "{told}");
        let missing = status_of("other", &document()).expect_err("there is none");
        assert_eq!(missing, "no section other; sections: addons, databases, others, queues");
        assert!(is_well(&status_of("addons", &document()).expect("a section")), "others are not well");
    }

    #[test]
    fn what_a_detach_ends_is_said_before() {
        let plan = detached("databases", false, &document()).expect("a section");
        assert!(
            plan.starts_with("section databases (databases, hub→edge) would end for good, with 12 objects"),
            "{plan}"
        );
        assert!(detached("databases", true, &document()).expect("a section").contains("taken for gone"));
        let refused =
            |section: &str, status: &Value| detached(section, false, status).expect_err("it can't be detached");
        assert_eq!(refused("other", &document()), "no section other; sections: addons, databases, others, queues");
        assert_eq!(refused("other", &json!({"sections": {}})), "no section other; sections: there are none");
        assert_eq!(refused("addons", &document()), "section addons: the job lease has nothing to detach");
        let mut lost = document();
        lost["sections"]["databases"]["readiness"] = json!({"state": "unreachable", "reason": "refused"});
        assert!(detached("databases", false, &lost).is_ok(), "what it has listed is enough");
        lost["sections"]["databases"]["waits_for"] = "databases in cluster edge: refused".into();
        assert_eq!(refused("databases", &lost), "section databases: databases in cluster edge: refused");
        assert!(detached("databases", true, &lost).is_ok());
        let mut elsewhere = document();
        elsewhere["sections"]["databases"]["election"] = json!({"held": false});
        elsewhere["sections"]["databases"]["message"] = "runs in replica b".into();
        assert_eq!(refused("databases", &elsewhere), "section databases: runs in replica b");
        let mut dry = document();
        dry["sections"]["databases"]["mode"] = "dry_run".into();
        assert!(refused("databases", &dry).starts_with("section databases is a dry run"));
    }

    #[test]
    fn an_object_is_explained_by_its_sides_and_by_what_it_waits_for() {
        let remote = json!({"cluster": "hub", "object": "hu/a", "exists": true, "deleting": true, "generation": 4,
            "resource_version": "17", "finalizers": ["a.io/b"], "marks": {"a.io/sync-remote-generation": "3"}});
        let local = json!({"cluster": "edge", "object": "hu-x/a", "exists": false});
        let object = json!({"key": "hu/a", "state": "failing", "for_seconds": 3, "cause": "too large",
            "next_step": "change it on the hub", "retry": "on change", "family": "p", "notes": [], "syncsets": ["one", "two"],
            "sides": {"remote": remote, "local": local}});
        let expected = "\
object     hu/a
state      failing, for 3s
local      edge hu-x/a: does not exist
remote     hub hu/a: generation 4, version 17; is being deleted; finalizer a.io/b; a.io/sync-remote-generation 3
waits      too large → change it on the hub; retried on change
family     p
notes      none
syncsets   one
           two
";
        assert_eq!(explained(&json!({"objects": [object]})).as_deref(), Some(expected));
        assert_eq!(explained(&json!({"lines": []})), None);
    }

    #[test]
    fn an_order_is_answered_in_a_sentence() {
        let forgotten = json!({"approved": 12, "remembered": false, "reason": "a restart forgets it: forbidden"});
        for (answer, expected) in [
            (json!({"approved": 1, "remembered": true}), "1 change is approved; a restart remembers that"),
            (forgotten, "12 changes are approved; a restart forgets it: forbidden"),
            (
                json!({"approved": 0, "overruled": "another cluster answers as hub", "remembered": true}),
                "the clusters are approved as they are now: another cluster answers as hub; a restart remembers that",
            ),
            (
                json!({"approved": [{"syncset": "SyncSet a/b", "clusters": 2}, {"syncset": "SelectorSyncSet c", "clusters": 3}]}),
                "deletions approved: SyncSet a/b, SelectorSyncSet c",
            ),
            (json!({"detaching": 3, "remembered": true}), "detaching, 3 objects are left; a restart remembers that"),
            (json!({"attached": 1}), "attached again, with 1 object"),
            (json!({"releases": 2}), "2 releases are sent again"),
            (json!({"later": "x"}), "{\"later\":\"x\"}"),
        ] {
            assert_eq!(done("lane", &answer), format!("lane: {expected}\n"));
        }
    }

    #[test]
    fn the_tree_is_shown_where_it_is_asked_for() {
        let expected = "\
ACTOR               STATE     RESTARTS   MAILBOX   LAST EXIT
root                running   0          -         -
├─ sync databases   running   0          -         -
│  └─ dispatcher    running   2          3/64      failed: reset
└─ admin            running   0          -         finished
";
        assert!(status(&document(), true, false).contains(expected), "{}", status(&document(), true, false));
        assert!(!status(&document(), false, false).contains("ACTOR"));
    }

    #[test]
    fn all_is_well_where_every_cluster_answers_and_every_section_does_well() {
        let well = |cluster: &str, section: Value| {
            is_well(&json!({ "clusters": { "edge": { "state": cluster } }, "sections": { "a": section } }))
        };
        assert!(well("available", json!({ "well": true })));
        assert!(!well("available", json!({ "well": false })));
        assert!(!well("unreachable", json!({ "well": true })));
        assert!(!well("starting", json!({ "well": true })));
        let faulty = json!({ "state": "available", "reason": "new credentials: not a kubeconfig" });
        assert!(!is_well(&json!({ "clusters": { "edge": faulty }, "sections": {} })), "credentials that do not work");
        assert!(!well("available", json!({})), "a daemon that does not say so");
    }

    #[test]
    fn a_tree_that_did_not_answer_and_an_unknown_document_are_shown() {
        let text = status(&json!({ "tree": { "error": "no answer" } }), true, false);
        assert!(text.starts_with("actor tree: no answer\n"), "{text}");
        assert_eq!(status(&json!([]), false, false), "towline -, started - ago\n");
    }
}
