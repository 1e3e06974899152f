//! Alerts and dashboard ask for series and labels that there are.

use std::collections::BTreeSet;

use serde_json::Value;

use super::metrics::SERIES;
use super::promql::{self, Query, Selector};
use super::{document, elements, text, texts};

/// What Prometheus adds to every series that the `PodMonitor` brings.
const TARGET_LABELS: [&str; 6] = ["container", "endpoint", "instance", "job", "namespace", "pod"];

fn alerts() -> Vec<Value> {
    let rule = document("deploy/base/monitoring/prometheus-rule.yaml");
    elements(&rule["spec"]["groups"]).iter().flat_map(|group| elements(&group["rules"]).to_vec()).collect()
}

fn dashboard() -> Value {
    serde_json::from_str(&text("deploy/base/monitoring/dashboard.json")).expect("JSON")
}

/// Every expression with where it stands. Grafana's own variables get a value.
fn expressions() -> Vec<(String, String)> {
    let mut expressions = Vec::new();
    for alert in alerts() {
        let expression = alert["expr"].as_str().expect("an expression");
        expressions.push((format!("alert {}", alert["alert"]), expression.to_owned()));
    }
    let dashboard = dashboard();
    for panel in elements(&dashboard["panels"]) {
        for target in elements(&panel["targets"]) {
            let expression = target["expr"].as_str().expect("an expression").replace("$__rate_interval", "5m");
            expressions.push((format!("panel {}", panel["title"]), expression));
        }
    }
    for variable in elements(&dashboard["templating"]["list"]) {
        if let Some((selector, label)) = variable["definition"].as_str().and_then(label_values) {
            expressions.push((format!("variable {}", variable["name"]), format!("max by ({label}) ({selector})")));
        }
    }
    expressions
}

/// Grafana's `label_values(selector, label)`.
fn label_values(definition: &str) -> Option<(&str, &str)> {
    definition.strip_prefix("label_values(")?.strip_suffix(')')?.rsplit_once(", ")
}

fn queries() -> Vec<(String, Query)> {
    let read = |(place, text): (String, String)| match promql::read(&text) {
        Ok(query) => (place, query),
        Err(error) => panic!("{place}: {error} in {text}"),
    };
    expressions().into_iter().map(read).collect()
}

/// The labels that a series has once it is stored.
fn labels_of(name: &str) -> BTreeSet<&str> {
    let own = SERIES.get(name).into_iter().flatten().flat_map(|labels| labels.keys().map(String::as_str));
    own.chain(TARGET_LABELS).collect()
}

#[test]
fn every_series_that_is_asked_for_is_there() {
    let queries = queries();
    assert!(queries.len() > 30, "{} expressions", queries.len());
    for (place, query) in queries {
        assert!(query.selectors.len() <= 3, "{place}: {query:?}");
        for selector in query.selectors {
            assert!(SERIES.contains_key(selector.name.as_str()), "{place}: no {}", selector.name);
        }
    }
}

#[test]
fn every_label_that_is_asked_for_is_there() {
    for (place, query) in queries() {
        for Selector { name, matchers, .. } in &query.selectors {
            for (label, operator, value) in matchers {
                assert!(labels_of(name).contains(label.as_str()), "{place}: {name} has no {label}");
                if operator == "=" {
                    let has_value = SERIES[name.as_str()].iter().any(|labels| labels.get(label) == Some(value));
                    assert!(has_value, "{place}: {label} of {name} is never {value}");
                }
            }
        }
        for label in &query.labels {
            let is_known = |selector: &Selector| labels_of(&selector.name).contains(label.as_str());
            assert!(query.selectors.iter().any(is_known), "{place}: nothing has the label {label}");
        }
    }
}

#[test]
fn what_only_grows_is_looked_at_as_a_rate() {
    for (place, query) in queries() {
        for Selector { name, is_range, within, .. } in &query.selectors {
            let is_hives_gauge =
                name.starts_with("hive_selectorsyncset_clusters_") || name.starts_with("hive_syncsets_");
            let grows = name.ends_with("_total") && !is_hives_gauge || name.ends_with("_bucket");
            let function = within
                .as_deref()
                .filter(|function| ["rate", "increase", "changes", "max_over_time"].contains(function));
            assert_eq!(*is_range, function.is_some(), "{place}: {name} in {within:?}");
            assert!(!grows || *is_range && within.as_deref() != Some("max_over_time"), "{place}: {name} in {within:?}");
        }
    }
}

#[test]
fn what_the_guard_holds_is_on_the_dashboard_by_kind() {
    let shown: BTreeSet<String> =
        queries().into_iter().flat_map(|(_, query)| query.selectors).map(|selector| selector.name).collect();
    assert!(shown.contains("towline_held_changes"));
    let kinds: BTreeSet<&str> = SERIES["towline_held_changes"].iter().map(|labels| &*labels["kind"]).collect();
    assert_eq!(kinds, BTreeSet::from(["clear_status", "delete", "let_go", "overwrite"]));
}

#[test]
fn health_and_rollouts_of_syncsets_are_on_the_dashboard_by_state() {
    let dashboard = dashboard();
    for name in ["towline_syncset_health", "towline_syncset_rollouts"] {
        let shown = elements(&dashboard["panels"]).iter().flat_map(|panel| elements(&panel["targets"])).any(|target| {
            let query = promql::read(&target["expr"].as_str().unwrap_or_default().replace("$__rate_interval", "5m"));
            let query = query.expect("checked elsewhere");
            query.labels == ["state"] && query.selectors.iter().any(|selector| selector.name == name)
        });
        assert!(shown, "no panel shows {name}");
    }
}

#[test]
fn every_series_of_ours_is_asked_for() {
    let whole = |name: &str| {
        let cut = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
        cut.unwrap_or(name).to_owned()
    };
    let asked: BTreeSet<String> =
        queries().into_iter().flat_map(|(_, query)| query.selectors).map(|selector| whole(&selector.name)).collect();
    let ours = SERIES.keys().filter(|name| name.starts_with("towline_")).map(|name| whole(name));
    let others: Vec<String> = ours.filter(|name| !asked.contains(name)).collect();
    assert!(others.is_empty(), "no alert and no panel shows {others:?}");
}

#[test]
fn no_label_of_ours_is_one_that_prometheus_sets() {
    for (name, series) in SERIES.iter() {
        for label in series.iter().flat_map(|labels| labels.keys()) {
            assert!(!TARGET_LABELS.contains(&label.as_str()), "{name} has the label {label}, which would be renamed");
        }
    }
}

#[test]
fn every_alert_says_what_to_do() {
    let mut names = BTreeSet::new();
    for alert in alerts() {
        let name = alert["alert"].as_str().expect("a name").to_owned();
        assert!(name.starts_with("Towline"), "{name}");
        for pointer in ["/annotations/summary", "/annotations/description"] {
            let found = alert.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
            assert!(!found.is_empty(), "{name} has no {pointer}");
        }
        let severity = alert["labels"]["severity"].as_str().unwrap_or_default();
        assert!(["critical", "warning"].contains(&severity), "{name}: {severity}");
        names.insert(name);
    }
    assert_eq!(names.len(), alerts().len(), "two alerts of one name");
    for needed in [
        "Down",
        "Restarting",
        "SectionNotRun",
        "ClusterUnavailable",
        "NewCredentialsFail",
        "SectionNotWell",
        "ChangesHeld",
        "ChangeStuck",
        "LeaseStale",
        "HubUnavailable",
        "SyncsetsUnhealthy",
        "RolloutStopped",
        "ClustersUnreachable",
        "DispatchLag",
        "WorkWaits",
    ] {
        assert!(names.contains(&format!("Towline{needed}")), "no alert Towline{needed}");
    }
}

#[test]
fn a_lease_that_was_never_renewed_since_a_restart_is_as_stale_as_one_that_ran_out() {
    let stale = alerts().into_iter().find(|alert| alert["alert"] == "TowlineLeaseStale").expect("an alert");
    let query = promql::read(stale["expr"].as_str().expect("an expression")).expect("checked elsewhere");
    let named: Vec<&str> = query.selectors.iter().map(|selector| selector.name.as_str()).collect();
    assert_eq!(
        named,
        ["towline_lease_held"],
        "when the last renewal was is not known after a restart, nor the duration"
    );
}

#[test]
fn the_side_cars_metrics_are_scraped_where_it_listens() {
    let monitor = document("deploy/side-car/monitoring/pod-monitor.yaml");
    let side_car = document("deploy/side-car/stateful-set.yaml");
    let labels = &side_car["spec"]["template"]["metadata"]["labels"];
    assert_eq!(&monitor["spec"]["selector"]["matchLabels"], labels);
    let kustomization = |directory: &str| document(&format!("deploy/{directory}/kustomization.yaml"));
    assert_eq!(kustomization("side-car/monitoring")["namespace"], kustomization("side-car")["namespace"]);
    let endpoint = &elements(&monitor["spec"]["podMetricsEndpoints"])[0];
    let containers = elements(&side_car["spec"]["template"]["spec"]["containers"]);
    let ports = containers.iter().flat_map(|container| elements(&container["ports"]));
    assert!(ports.into_iter().any(|port| port["name"] == endpoint["port"]), "{endpoint}");
}

/// The labels that a template such as `{{ $labels.section }}` or `{{section}}` names.
fn template_labels<'t>(template: &'t str, before: &str) -> Vec<&'t str> {
    let inside = template.split("{{").skip(1).filter_map(|rest| rest.split("}}").next());
    inside.filter_map(|name| name.trim().strip_prefix(before)).collect()
}

#[test]
fn texts_name_only_labels_that_the_expression_leaves() {
    for alert in alerts() {
        let query = promql::read(alert["expr"].as_str().expect("an expression")).expect("checked elsewhere");
        for text in alert["annotations"].as_object().expect("annotations").values() {
            for label in template_labels(text.as_str().expect("a text"), "$labels.") {
                assert!(query.labels.iter().any(|left| left == label), "{}: {label}", alert["alert"]);
            }
        }
    }
    for panel in elements(&dashboard()["panels"]) {
        for target in elements(&panel["targets"]) {
            let text = target["expr"].as_str().expect("an expression").replace("$__rate_interval", "5m");
            let query = promql::read(&text).expect("checked elsewhere");
            for label in template_labels(target["legendFormat"].as_str().unwrap_or_default(), "") {
                let is_left = query.labels.iter().any(|left| left == label);
                assert!(is_left || query.labels.is_empty() && TARGET_LABELS.contains(&label), "{}", panel["title"]);
            }
        }
    }
}

#[test]
fn the_dashboard_can_be_imported() {
    let dashboard = dashboard();
    assert!(dashboard.get("id").is_none(), "an id belongs to one Grafana");
    let variables: Vec<&str> =
        elements(&dashboard["templating"]["list"]).iter().filter_map(|variable| variable["name"].as_str()).collect();
    assert_eq!(variables, ["datasource", "job", "section"]);
    assert_eq!(dashboard["templating"]["list"][0]["type"], "datasource");
    let panels = elements(&dashboard["panels"]);
    let ids: BTreeSet<u64> = panels.iter().filter_map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len(), "every panel has an id of its own");
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        for source in elements(&panel["targets"]).iter().chain([panel]) {
            assert_eq!(source["datasource"]["uid"], "${datasource}", "{}", panel["title"]);
        }
    }
    let generator = &document("deploy/base/monitoring/kustomization.yaml")["configMapGenerator"][0];
    assert_eq!(texts(&generator["files"]), ["towline.json=dashboard.json"]);
}

#[test]
fn panels_do_not_overlap() {
    let dashboard = dashboard();
    let place = |panel: &Value| {
        let at = |key: &str| panel["gridPos"][key].as_u64().expect("a number");
        (at("x"), at("x") + at("w"), at("y"), at("y") + at("h"))
    };
    let panels = elements(&dashboard["panels"]);
    for (index, first) in panels.iter().enumerate() {
        let (left, right, top, bottom) = place(first);
        assert!(right <= 24, "{} is too wide", first["title"]);
        for second in panels.iter().skip(index + 1) {
            let (other_left, other_right, other_top, other_bottom) = place(second);
            let apart = right <= other_left || other_right <= left || bottom <= other_top || other_bottom <= top;
            assert!(apart, "{} and {}", first["title"], second["title"]);
        }
    }
}
