//! `towline explain`.

use http::StatusCode;
use serde_json::Value;

use super::of_mounted;
use crate::config::text::one_line;
use crate::documents::Kind;
use crate::job::client::{Error, HubAccess, HubClient, encode, path_of};
use crate::job::command::Exit;
use crate::job::output::{Format, plain};

/// `towline explain`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub(super) struct ExplainCommand {
    /// A cluster, with or without its namespace: NAMESPACE/NAME
    cluster: String,
    /// An object: KIND/NAMESPACE/NAME, or KIND/NAME for a kind without namespaces; KIND may be KIND.GROUP
    #[arg(value_parser = object)]
    object: Object,
    /// Namespace of the cluster
    #[arg(short, long)]
    namespace: Option<String>,
    #[command(flatten)]
    format: Format,
    #[command(flatten)]
    access: HubAccess,
}

/// An object as it was typed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Object {
    kind: String,
    group: Option<String>,
    namespace: String,
    name: String,
}

fn object(text: &str) -> Result<Object, String> {
    let allowed = || "an object is KIND/NAMESPACE/NAME, or KIND/NAME for a kind without namespaces".to_owned();
    let parts: Vec<&str> = text.split('/').collect();
    let (kind, namespace, name) = match parts.as_slice() {
        [kind, name] => (*kind, "", *name),
        [kind, namespace, name] => (*kind, *namespace, *name),
        _ => return Err(allowed()),
    };
    if kind.is_empty() || name.is_empty() {
        return Err(allowed());
    }
    // `cm`, `configmaps` and a namespace without its kind are no kinds, and nothing would be found. With its group a kind may be spelled so.
    if !kind.contains('.') && !kind.starts_with(|first: char| first.is_ascii_uppercase()) {
        return Err(format!("{kind} is no kind: write it as manifests do, such as ConfigMap; {}", allowed()));
    }
    let (kind, group) = kind.split_once('.').map_or((kind, None), |(kind, group)| (kind, Some(group.to_owned())));
    Ok(Object { kind: kind.to_owned(), group, namespace: namespace.to_owned(), name: name.to_owned() })
}

pub(super) async fn explain(command: ExplainCommand) -> Result<Exit, Error> {
    let path = path_of(Kind::Cluster, command.namespace.as_deref(), &command.cluster)?;
    let Object { kind, group, namespace, name } = command.object;
    let group = group.map(|group| format!("&group={}", encode(&group))).unwrap_or_default();
    let query =
        format!("kind={}&objectNamespace={}&objectName={}{group}", encode(&kind), encode(&namespace), encode(&name));
    let client = HubClient::new(&command.access).await?;
    let answer = match client.get(&format!("{path}/explanation?{query}")).await {
        // The cluster is missing or the route: the hub says which if there is no such cluster.
        Err(error @ Error::Problem { status: StatusCode::NOT_FOUND, .. }) => {
            client.get(&path).await?;
            return Err(of_mounted(error));
        }
        answer => answer?,
    };
    let wanting = answer.get("wantedBy").and_then(Value::as_array).into_iter().flatten();
    let names: Vec<String> = wanting.map(|wanting| plain(wanting.get("syncset")).replacen(' ', "/", 1)).collect();
    command.format.output.print(&answer, &names, &lines(&answer));
    Ok(Exit::Done)
}

fn lines(answer: &Value) -> Vec<String> {
    // A cluster may choose what the hub tells of it.
    let text = |value: &Value, field: &str| value.get(field).and_then(Value::as_str).map(one_line).unwrap_or_default();
    let mut lines = vec![format!("cluster    {}", text(answer, "cluster"))];
    let wanting: Vec<&Value> = answer.get("wantedBy").and_then(Value::as_array).into_iter().flatten().collect();
    if wanting.is_empty() {
        lines.push("wanted by  no syncset".to_owned());
    }
    for (position, wanting) in wanting.into_iter().enumerate() {
        let label = if position == 0 { "wanted by" } else { "" };
        let of = |field| text(wanting, field);
        lines.push(format!(
            "{label:<9}  {} ({}, {}, {}): {}",
            of("syncset"),
            of("mode"),
            of("behavior"),
            of("place"),
            of("state")
        ));
    }
    lines.push(format!("live       {}", text(answer, "live")));
    if let Some(health) = answer.get("health").and_then(Value::as_str).map(one_line) {
        lines.push(format!("health     {health}"));
    }
    lines.push(format!("if dropped {}", text(answer, "ifDropped")));
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_is_typed_with_its_kind_its_namespace_and_its_name() {
        let of = |text| {
            object(text).map(|object| (object.kind, object.group.unwrap_or_default(), object.namespace, object.name))
        };
        let parts = |parts: [&str; 4]| Ok(parts.map(str::to_owned).into());
        assert_eq!(of("ConfigMap/default/site"), parts(["ConfigMap", "", "default", "site"]));
        assert_eq!(of("Deployment.apps/default/a.b"), parts(["Deployment", "apps", "default", "a.b"]));
        assert_eq!(of("Namespace/team"), parts(["Namespace", "", "", "team"]));
        assert_eq!(of("foo.example.com/a/b"), parts(["foo", "example.com", "a", "b"]));
        for wrong in [
            "",
            "site",
            "/a/b",
            "ConfigMap/default/",
            "A/b/c/d",
            "configmap/default/site",
            "cm/default/site",
            "default/site",
        ] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_a_cluster_has_chosen_of_an_explanation_does_not_reach_the_terminal() {
        let text = "a\u{1b}[31m\u{9b}\nb";
        let wanting = json!({"syncset": text, "mode": text, "behavior": text, "place": text, "state": text});
        let answer = json!({"cluster": text, "live": text, "health": text, "ifDropped": text, "wantedBy": [wanting]});
        let lines = lines(&answer);
        assert!(lines.len() == 5 && !lines.concat().contains(char::is_control), "{lines:?}");
    }

    #[test]
    fn an_explanation_has_a_line_for_each_syncset() {
        let wanting = |syncset: &str, state: &str| json!({"syncset": syncset, "mode": "Sync", "behavior": "Apply", "place": "resource 0", "state": state});
        let answer = json!({"cluster": "reachable", "live": "in step", "ifDropped": "kept (Upsert)",
            "wantedBy": [wanting("SyncSet team-a/base", "superseded"), wanting("SelectorSyncSet monitoring", "wins, sent")]});
        let expected = [
            "cluster    reachable",
            "wanted by  SyncSet team-a/base (Sync, Apply, resource 0): superseded",
            "           SelectorSyncSet monitoring (Sync, Apply, resource 0): wins, sent",
            "live       in step",
            "if dropped kept (Upsert)",
        ];
        assert_eq!(lines(&answer), expected);
        let mut read = answer.clone();
        read["health"] = json!("Current, read 3 min ago; assessed by its conditions");
        assert_eq!(lines(&read)[4], "health     Current, read 3 min ago; assessed by its conditions");
        assert_eq!(lines(&json!({}))[1], "wanted by  no syncset");
    }
}
