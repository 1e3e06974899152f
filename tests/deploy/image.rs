//! The Dockerfile fits the manifests and the crate.

use serde_json::Value;

use super::text;

/// The values of an instruction, in the order of the file. Instructions of one line only.
fn instructions(name: &str) -> Vec<String> {
    let dockerfile = text("Dockerfile");
    let prefix = format!("{name} ");
    dockerfile.lines().filter_map(|line| line.strip_prefix(&prefix)).map(str::to_owned).collect()
}

#[test]
fn the_image_runs_as_the_user_that_the_pod_names() {
    let pod = &super::pod("deploy/base").0["securityContext"];
    assert_eq!(instructions("USER"), [format!("{}:{}", pod["runAsUser"], pod["runAsGroup"])]);
    assert_eq!(pod["fsGroup"], pod["runAsGroup"]);
    assert_ne!(pod["runAsUser"], 0);
}

#[test]
fn the_image_listens_where_the_configuration_says() {
    let listen = super::daemon::configuration("deploy/base/towline.toml").daemon.listen;
    assert!(instructions("ENV").contains(&format!("TOWLINE__DAEMON__LISTEN={listen}")));
    assert_eq!(instructions("EXPOSE"), [listen.port().to_string()]);
}

#[test]
fn the_image_runs_what_the_pod_runs() {
    let list = |name: &str| -> Value { serde_json::from_str(&instructions(name).join(" ")).expect("a list") };
    let (_, container) = super::pod("deploy/base");
    assert_eq!(list("CMD"), container["args"]);
    assert!(container.get("command").is_none(), "the image's entry point");
    assert_eq!(list("ENTRYPOINT"), serde_json::json!(["/usr/bin/towline"]));
}

#[test]
fn the_image_is_built_with_the_oldest_rust_that_is_promised() {
    let builder = instructions("FROM").into_iter().next().expect("a stage");
    let promised = env!("CARGO_PKG_RUST_VERSION");
    assert!(builder.starts_with(&format!("rust:{promised}-")), "{builder}, promised {promised}");
    assert_eq!(instructions("FROM").last().map(String::as_str), Some("scratch"), "no shell, no packages");
}

#[test]
fn what_is_copied_from_the_context_is_let_into_it() {
    let ignored = text(".dockerignore");
    let rules: Vec<&str> = ignored.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    assert_eq!(rules.first(), Some(&"*"), "everything else stays out");
    let allowed: Vec<&str> = rules.iter().skip(1).map(|rule| rule.strip_prefix('!').expect("an exception")).collect();
    let mut copied = Vec::new();
    for instruction in instructions("COPY").iter().filter(|instruction| !instruction.starts_with("--from")) {
        let words: Vec<&str> = instruction.split_whitespace().collect();
        let (_, sources) = words.split_last().expect("sources and a destination");
        copied.extend(sources.iter().map(|source| (*source).to_owned()));
    }
    assert_eq!(copied, allowed);
}
