//! Tests of whole files: the checked-in ones, and what is told about faulty ones.

mod documents;
mod election;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use crate::config::setting::Setting;
use crate::config::{ClusterAccess, ClusterConfig, ClusterName, DaemonConfig, ElectionConfig, Error, Problem};
use crate::db::DatabaseSource;
use crate::hub::config::HubConfig;
use crate::inventory::config::{InventoryConfig, TokenSource};
use crate::job::Config;
use crate::lease::config::LeaseConfig;
use crate::resource_sync::config::{Adopt, Metadata, PropagationPolicy, Scope, SyncConfig, Unclaimed, conflicts};
use crate::status_sync::config::{StatusFamily, StatusSyncConfig};
use crate::syncset::config::SyncsetsConfig;
use crate::{hub, inventory, lease, resource_sync, status_sync, syncset};

fn parse(text: &str) -> Result<Config, Error> {
    crate::jobs::JOBS.parse(text, [])
}

fn told(text: &str) -> Vec<String> {
    match parse(text) {
        Err(Error::Invalid(faults)) => faults.as_slice().iter().map(ToString::to_string).collect(),
        other => panic!("faults expected, got {other:?}"),
    }
}

fn checked_in(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

const CLUSTERS: &str = "[clusters.hub]\nkubeconfig = \"hub\"\n[clusters.edge]\nin_cluster = true\n";

fn with_section(keys: &str) -> String {
    format!(
        "{CLUSTERS}[[sync]]\nname = \"databases\"\nremote = \"hub\"\nlocal = \"edge\"\n\
         resource = \"databases.v1.demo.towline.dev\"\n{keys}\n"
    )
}

/// It may be meant for another file, which has the rest.
#[test]
fn a_variable_that_makes_a_table_by_itself_is_named_with_what_is_missing() {
    for (variable, value, table) in [
        ("TOWLINE__HUB__LISTEN", "127.0.0.1:7070", "hub"),
        ("TOWLINE__STATUS_SYNC__NOTIFY", "true", "status_sync"),
        ("TOWLINE__INVENTORY__CONTEXT_NAME", "west", "inventory"),
        ("TOWLINE__SYNCSETS__MAX_IN_FLIGHT", "5", "syncsets"),
        ("TOWLINE__ELECTION__LEASE_DURATION", "20s", "election"),
        ("TOWLINE__CLUSTERS__EU_WEST__MAX_IN_FLIGHT", "5", "clusters.eu-west"),
    ] {
        let read = crate::jobs::JOBS.parse("", [(variable.to_owned(), value.to_owned())]);
        let Err(Error::Invalid(faults)) = read else { panic!("{variable}: {read:?}") };
        assert!(!faults.is_empty(), "{variable}");
        for fault in faults.as_slice() {
            let named = format!("; `{table}` is there by variables alone, such as {variable}");
            assert!(fault.path.starts_with(table) && fault.to_string().ends_with(&named), "{fault}");
        }
    }
    let of_file = "[hub]\nmigrate = false\n";
    let read = crate::jobs::JOBS.parse(of_file, [("TOWLINE__HUB__LISTEN".to_owned(), "127.0.0.1:7070".to_owned())]);
    let Err(Error::Invalid(faults)) = read else { panic!("{read:?}") };
    assert!(!faults.to_string().contains("TOWLINE__"), "{faults}");
}

#[test]
fn clusters_and_brokers_that_nothing_uses_are_warned_of() {
    let hub = "[hub]\ndatabase_url = \"postgres://hub@db/hub\"\namqp_url = \"amqp://broker\"\n";
    let election = "[election]\ncluster = \"edge\"\nnamespace = \"towline\"\n";
    let warned = |text: &str| parse(text).expect("a configuration").warnings();
    let spare = "[clusters.spare]\nkubeconfig = \"spare\"\n";
    assert_eq!(warned(&(with_section("") + spare)), ["cluster spare: no section uses it"]);
    assert_eq!(
        warned(&format!("{CLUSTERS}{election}{hub}")),
        ["cluster hub: no section uses it", "hub: the message broker is not used without `bus = \"amqp\"`"]
    );
    assert_eq!(warned(&format!("{hub}bus = \"amqp\"\n")), Vec::<String>::new());
}

#[test]
fn the_hub_does_not_listen_where_the_daemon_does() {
    let file = |daemon: &str, hub: &str| {
        format!(
            "[daemon]\nlisten = \"{daemon}\"\n[hub]\ndatabase_url = \"postgres://hub@db/hub\"\nlisten = \"{hub}\"\n"
        )
    };
    for (daemon, hub) in [("127.0.0.1:8080", "127.0.0.1:8080"), ("0.0.0.0:8080", "127.0.0.1:8080")] {
        let told = told(&file(daemon, hub));
        let expected =
            format!("hub.listen: found \"{hub}\"; allowed: another port than that of `daemon.listen` ({daemon})");
        assert_eq!(told, [expected]);
    }
    for (daemon, hub) in [
        ("127.0.0.1:8080", "127.0.0.1:8081"),
        ("127.0.0.2:8080", "127.0.0.1:8080"),
        ("0.0.0.0:8080", "[::1]:8080"),
        ("127.0.0.1:0", "127.0.0.1:0"),
    ] {
        assert!(parse(&file(daemon, hub)).is_ok(), "{daemon} and {hub}");
    }
}

#[test]
fn every_checked_in_file_is_a_configuration() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    let mut files = 0;
    for entry in std::fs::read_dir(&folder).expect("the folder config/ is there") {
        let path = entry.expect("an entry of config/").path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let text = std::fs::read_to_string(&path).expect("a readable file");
            parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            files += 1;
        }
    }
    assert!(files >= 2, "only {files} files in {}", folder.display());
}

#[test]
fn the_reference_file_holds_the_defaults() {
    let config = parse(&checked_in("towline.toml")).expect("a configuration");
    assert_eq!(config.daemon, DaemonConfig::default());
    let kubeconfig = ClusterAccess::Kubeconfig { path: "/etc/towline/hub.kubeconfig".into(), context: None };
    let clusters = [("hub", kubeconfig), ("edge", ClusterAccess::InCluster)]
        .map(|(name, access)| (name.parse().expect("a name"), ClusterConfig::new(access)));
    assert_eq!(config.clusters, BTreeMap::from(clusters));
    assert_eq!(config.election, Some(ElectionConfig::new("edge".parse().expect("a name"), "towline")));
    let section = SyncConfig::new(
        "databases".parse().expect("a name"),
        "hub".parse().expect("a name"),
        "edge".parse().expect("a name"),
        "databases.v1.demo.towline.dev".parse().expect("a kind"),
    );
    assert_eq!(resource_sync::sections(&config), [section]);
    let url = "postgres://towline@database.example:5432/hoh?sslmode=verify-full&pool_max_conns=8";
    let expected = StatusSyncConfig::new(
        "hub".parse().expect("a name"),
        DatabaseSource::Url(Box::new(url.parse().expect("a URL"))),
    );
    assert_eq!(status_sync::section(&config), Some(&expected));
    let url = "postgres://towline@database.example:5432/hub?sslmode=verify-full";
    let expected = HubConfig::new(DatabaseSource::Url(Box::new(url.parse().expect("a URL"))));
    assert_eq!(hub::section(&config), Some(&expected));
    assert_eq!(syncset::section(&config), Some(&SyncsetsConfig::default()));
    let expected = InventoryConfig {
        cluster: "edge".parse().expect("a name"),
        ..InventoryConfig::new(
            Setting::from_text("https://api.example/v1").expect("a URL"),
            TokenSource::File("/etc/towline/api-token".into()),
        )
    };
    assert_eq!(inventory::section(&config), Some(&expected));
    let expected = LeaseConfig {
        name: "heartbeat".parse().expect("a name"),
        cluster: "edge".parse().expect("a name"),
        lease_name: "add-on".into(),
        lease_namespace: "edge".into(),
        secret_name: "hub-kubeconfig".into(),
        secret_namespace: "add-on".into(),
        pod: None,
        duration: LeaseConfig::DEFAULT_DURATION,
        renew_interval: LeaseConfig::DEFAULT_DURATION / 3,
        startup_delay: LeaseConfig::DEFAULT_STARTUP_DELAY,
    };
    assert_eq!(lease::sections(&config), [expected]);
}

#[test]
fn the_reference_file_names_every_key() {
    let text = "zz = 1\n[daemon]\nzz = 1\n[daemon.log]\nzz = 1\n[clusters.a]\nin_cluster = true\nzz = 1\n[election]\nzz = 1\n\
                [[sync]]\nzz = 1\n[[lease]]\nzz = 1\n[status_sync]\nzz = 1\n[hub]\nzz = 1\n[syncsets]\nzz = 1\n[inventory]\nzz = 1\n";
    let Err(Error::Invalid(faults)) = parse(text) else { panic!("each zz is a fault") };
    let reference = checked_in("towline.toml");
    let mut keys = 0;
    for fault in faults.as_slice() {
        let Problem::UnknownKey { allowed, .. } = &fault.problem else {
            continue;
        };
        for key in allowed {
            let is_named = reference.lines().any(|line| {
                let line = line.trim_start_matches("# ");
                line.starts_with(&format!("{key} =")) || line.starts_with('[') && line.contains(key)
            });
            assert!(is_named, "{key} ({}) is not in config/towline.toml", fault.path);
            keys += 1;
        }
    }
    assert!(keys > 90, "the walk tells of {keys} keys only");
}

#[test]
fn an_empty_file_is_the_default() {
    let config = parse("").expect("a configuration");
    assert_eq!((config.daemon, config.clusters.len(), config.election), (DaemonConfig::default(), 0, None));
    assert!(config.jobs.iter().all(|job| job.names().is_empty()));
}

#[test]
fn every_key_of_a_section_is_read() {
    let config = parse(&with_section(
        "remote_resource_suffix = \"-r\"\nlocal_namespace_suffix = \"-l\"\nnamespace_prefix = \"team-\"\n\
         selector = \"a=b\"\nsecret_names = [\"s1\", \"s2\"]\nsecret_metadata = [\"y\"]\npropagation_policy = \"Orphan\"\n\
         metadata = \"mirror\"\nmetadata_exclude = [\"x/*\"]\nunclaimed = \"delete\"\n\
         adopt = \"equal\"\ndelete_adopted = true\n\
         local_fields = [\"/spec/replicas\"]\nwrite_back = false\nannotation_domain = \"d.example\"\n\
         finalizer = \"f\"\nformer_finalizers = [\"g\"]\ndry_run = true",
    ))
    .expect("a configuration");
    let section = &resource_sync::sections(&config)[0];
    assert_eq!(section.remote_resource_suffix, "-r");
    assert_eq!(section.local_namespace_suffix, "-l");
    assert_eq!(section.namespace_prefix, "team-");
    assert_eq!(section.selector.as_str(), "a=b");
    assert_eq!(section.secret_names, ["s1", "s2"]);
    assert!(section.secret_metadata[0].matches("y", ""));
    assert_eq!(section.propagation_policy, PropagationPolicy::Orphan);
    assert_eq!(section.metadata, Metadata::Mirror);
    assert!(section.metadata_exclude[0].matches("x/y", ""));
    assert_eq!(section.unclaimed, Unclaimed::Delete);
    assert_eq!(section.adopt, Adopt::Equal);
    assert!(section.delete_adopted);
    assert_eq!(section.local_fields[0].segments(), ["spec", "replicas"]);
    assert!(!section.write_back);
    assert_eq!(section.finalizer_key(), "d.example/f");
    assert_eq!(section.former_finalizer_keys(), ["d.example/g"]);
    assert!(section.dry_run);
}

#[test]
fn all_faults_are_told_at_once() {
    let text = "\
[daemon]
listne = \"127.0.0.1:1\"
shutdown_grace = 30
log = { format = \"yaml\", filter = \"info\" }
[clusters.hub]
kubeconfig = \"hub\"
in_cluster = true
[clusters.Edge_1]
request_timeout = \"0s\"
[[sync]]
name = \"databases\"
remote = \"hubb\"
local = \"hub\"
resource = \"databases\"
unclaimed = \"deleted\"
local_fields = [\"/spec/a\", \"spec.b\"]
[[sync]]
name = \"databases\"
[elections]
[election]
";
    assert_eq!(
        told(text),
        vec![
            "clusters.Edge_1: found \"Edge_1\"; allowed: a name of 1 to 63 of a-z, 0-9 and -, beginning and ending \
             with a letter or digit; did you mean `edge-1`?",
            "clusters.Edge_1: missing; allowed: exactly one of `kubeconfig` and `in_cluster = true`",
            "clusters.Edge_1.request_timeout: found \"0s\"; allowed: a duration above zero and of at most a year such \
             as \"30s\" or \"1h 30m\"",
            "clusters.hub: found `kubeconfig` beside `in_cluster = true`; allowed: exactly one of `kubeconfig` (with \
             an optional `context`) and `in_cluster = true`",
            "daemon.listne: unknown key; did you mean `listen`?; allowed: listen, shutdown_grace, hosts, ui, log, admin_token_file, state_namespace",
            "daemon.log.format: found \"yaml\"; allowed: text or json",
            "daemon.shutdown_grace: found 30; allowed: a duration above zero and of at most a year such as \"30s\" or \"1h 30m\"; did \
             you mean `30s`?",
            "election.cluster: missing; allowed: a name under `[clusters]`: Edge_1, hub",
            "election.namespace: missing; allowed: the name of a namespace",
            "elections: unknown key; did you mean `election`?; allowed: daemon, clusters, election, sync, lease, status_sync, hub, syncsets, inventory",
            "sync[0].local_fields[1]: found \"spec.b\"; allowed: a JSON pointer under /spec such as \
             \"/spec/replicas\"; did you mean `/spec/b`?",
            "sync[0].remote: found \"hubb\"; allowed: a name under `[clusters]`: Edge_1, hub; did you mean `hub`?",
            "sync[0].resource: found \"databases\", where the version is missing; allowed: plural.version.group such \
             as \"databases.v1.demo.towline.dev\", or plural.version for the core group",
            "sync[0].unclaimed: found \"deleted\"; allowed: keep or delete; did you mean `delete`?",
            "sync[1].local: missing; allowed: a name under `[clusters]`: Edge_1, hub",
            "sync[1].name: found \"databases\" again; allowed: once (first at sync[0].name)",
            "sync[1].remote: missing; allowed: a name under `[clusters]`: Edge_1, hub",
            "sync[1].resource: missing; allowed: plural.version.group such as \"databases.v1.demo.towline.dev\", or \
             plural.version for the core group",
        ]
    );
}

#[test]
fn syncsets_need_the_hub_and_a_faulty_one_is_not_missing() {
    let missing = "syncsets: found no section `[hub]`; allowed: beside `[hub]`, on whose documents it works";
    assert_eq!(told("[syncsets]\n"), [missing]);
    let faulty = told("[syncsets]\n[hub]\ndatabase_url = \"hostt=foo\"\n");
    assert!(faulty.len() == 1 && faulty[0].starts_with("hub.database_url: "), "{faulty:?}");
}

#[test]
fn a_section_of_the_wrong_shape_is_a_fault_of_its_own() {
    assert_eq!(told("[sync]\nname = \"a\"\n"), vec!["sync: found a table; allowed: sections `[[sync]]`"]);
    assert_eq!(told("sync = [1]\n"), vec!["sync[0]: found 1; allowed: a table"]);
    assert_eq!(told("daemon = true\n"), vec!["daemon: found true; allowed: a table"]);
    assert_eq!(told("clusters = \"hub\"\n"), vec!["clusters: found \"hub\"; allowed: a table"]);
    assert_eq!(told("[clusters]\nhub = \"hub\"\n"), vec!["clusters.hub: found \"hub\"; allowed: a table"]);
}

#[test]
fn sections_that_overlap_are_told_with_an_example() {
    let text = format!(
        "{}[[sync]]\nname = \"more\"\nremote = \"hub\"\nlocal = \"edge\"\nresource = \"databases.v2.demo.towline.dev\"\n\
         finalizer = \"sync-more\"\nnamespace_prefix = \"team-\"\nwrite_back = false\n",
        with_section("")
    );
    assert_eq!(
        told(&text),
        vec![
            "sync[1]: may write the same local objects as section `databases` (in a namespace such as `team-x`); \
             allowed: one section per local cluster, kind, namespace and name"
        ]
    );
}

#[test]
fn conflicts_are_evaluated_anew_once_scopes_are_known() {
    let text = format!(
        "{}[[sync]]\nname = \"more\"\nremote = \"hub\"\nlocal = \"edge\"\nresource = \"databases.v1.demo.towline.dev\"\n\
         namespace_prefix = \"base-\"\n",
        with_section("namespace_prefix = \"team-\"")
    );
    let config = parse(&text).expect("apart by namespace");
    let sections: Vec<(usize, &SyncConfig)> = resource_sync::sections(&config).iter().enumerate().collect();
    assert!(conflicts(&sections, &config.clusters, |_| Scope::Namespaced).is_empty());
    assert_eq!(conflicts(&sections, &config.clusters, |_| Scope::Cluster).len(), 3);
}

#[test]
fn the_environment_overrides_and_its_faults_name_the_variable() {
    let environment = |name: &str, value: &str| [(name.to_owned(), value.to_owned())];
    let config = crate::jobs::JOBS
        .parse(
            &with_section("dry_run = false"),
            environment("TOWLINE__SYNC__DATABASES__LOCAL_FIELDS", "/spec/a, /spec/b"),
        )
        .expect("a configuration");
    assert_eq!(resource_sync::sections(&config)[0].local_fields.len(), 2);
    let error = crate::jobs::JOBS
        .parse(&with_section(""), environment("TOWLINE__SYNC__DATABASES__DRY_RUN", "yes"))
        .expect_err("yes is no bool");
    assert_eq!(
        error.to_string(),
        "the configuration has 1 fault:\n  sync[0].dry_run: found \"yes\" (from TOWLINE__SYNC__DATABASES__DRY_RUN); \
         allowed: true or false"
    );
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("none.toml");
    let error = crate::jobs::JOBS.load(&path).expect_err("no file");
    assert!(error.to_string().ends_with("none.toml"), "{error}");
}

const STATUS_SYNC: &str = "[status_sync]\ncluster = \"hub\"\n";

#[test]
fn every_key_of_status_sync_is_read() {
    let config = parse(&format!(
        "{CLUSTERS}{STATUS_SYNC}database_url = \"postgres://u:hunter2@db/hoh?sslmode=require\"\ninterval = \"7s\"\n\
         watch_namespace = \"team\"\nfamilies = [\"placements\", \"policies\"]"
    ))
    .expect("a configuration");
    let section = status_sync::section(&config).expect("the section");
    assert_eq!(section.name.as_str(), "status-sync");
    assert_eq!((section.cluster.as_str(), section.interval.as_secs()), ("hub", 7));
    assert_eq!(section.watch_namespace, "team");
    assert_eq!(section.families, [StatusFamily::Placements, StatusFamily::Policies]);
    assert_eq!(section.database.url().expect("a URL").place(), "db:5432/hoh");
}

#[test]
fn status_sync_alone_may_name_its_election_s_namespace() {
    let alone = "[status_sync]\ndatabase_url_file = \"/url\"\nelection_namespace = \"hoh\"\n";
    let election = parse(alone).expect("a configuration").election.expect("an election");
    assert_eq!((election.cluster, election.namespace.as_str()), (ClusterName::default(), "hoh"));
    let elected = format!("{CLUSTERS}[election]\ncluster = \"hub\"\nnamespace = \"towline\"\n");
    for beside in [format!("{alone}{LEASE}"), elected + alone] {
        let faults = told(&beside);
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(
            faults[0].starts_with("status_sync.election_namespace: found \"hoh\"; allowed: only without"),
            "{faults:?}"
        );
    }
}

#[test]
fn a_missing_cluster_of_a_section_is_told_with_the_clusters_that_there_are() {
    let text = with_section("").replace("remote = \"hub\"\n", "");
    assert_eq!(told(&text), ["sync[0].remote: missing; allowed: a name under `[clusters]`: edge, hub"]);
}

#[test]
fn status_sync_without_a_cluster_takes_the_one_around_it() {
    let url = "[status_sync]\ndatabase_url_file = \"/url\"\n";
    let config = parse(url).expect("a configuration");
    let section = status_sync::section(&config).expect("the section");
    assert_eq!(config.clusters[&section.cluster].access, ClusterAccess::Inferred);
    let named = format!("[clusters.default]\nin_cluster = true\n{url}");
    let config = parse(&named).expect("a configuration");
    let section = status_sync::section(&config).expect("the section");
    assert_eq!(config.clusters[&section.cluster].access, ClusterAccess::InCluster);
    assert_eq!(told(&format!("{url}cluster = \"hub\"\n")).len(), 1);
    assert!(
        told(&format!("{url}families = []\n"))[0]
            .starts_with("status_sync.families: found none; allowed: at least one")
    );
    assert_eq!(told(&format!("{url}families = [\"policy\"]\n")).len(), 1, "a name that is none is one fault");
}

#[test]
fn a_fault_of_a_database_url_never_repeats_it() {
    for url in ["mysql://u:hunter2@db/hoh", "postgres://u:hunter2@db/hoh?sslmode=hunter2"] {
        let faults = told(&format!("{CLUSTERS}{STATUS_SYNC}database_url = \"{url}\"\ninterval = \"0s\""));
        assert!(faults.iter().any(|fault| fault.contains("found an invalid database URL: ")), "{faults:?}");
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(faults.iter().all(|fault| !fault.contains("hunter2")), "{faults:?}");
        assert!(faults.iter().any(|fault| fault.starts_with("status_sync.interval: found \"0s\"")), "{faults:?}");
    }
    let missing = told(&format!("{CLUSTERS}[status_sync]\ncluster = \"hubb\""));
    assert!(missing[1].contains("did you mean `hub`?"), "{missing:?}");
    assert!(missing[0].starts_with("status_sync: missing; allowed: exactly one of `database_url`"), "{missing:?}");
}

#[test]
fn no_other_section_is_called_as_the_one_of_which_there_is_one() {
    let faults = told(&with_section("").replace("\"databases\"", "\"status-sync\""));
    assert!(faults[0].contains("this one is kept for `[status_sync]`"), "{faults:?}");
}

const LEASE: &str = "[[lease]]\nname = \"heartbeat\"\nlease_name = \"add-on\"\nlease_namespace = \"edge\"\n\
                     secret_name = \"hub\"\nsecret_namespace = \"add-ons\"\n";

#[test]
fn a_lease_without_a_cluster_uses_the_default_one_or_what_is_around() {
    let config = parse(LEASE).expect("a configuration");
    let access = |config: &Config| config.clusters[&lease::sections(config)[0].cluster].access.clone();
    assert_eq!(access(&config), ClusterAccess::Inferred);
    let config = parse(&format!("[clusters.default]\nin_cluster = true\n{LEASE}")).expect("a configuration");
    assert_eq!(access(&config), ClusterAccess::InCluster);
    assert_eq!(
        told(&format!("{CLUSTERS}{LEASE}cluster = \"egde\"\n")),
        ["lease[0].cluster: found \"egde\"; allowed: a name under `[clusters]`: edge, hub; did you mean `edge`?"]
    );
}

#[test]
fn section_names_are_unique_over_all_jobs() {
    let lease = LEASE.replace("heartbeat", "databases");
    assert_eq!(
        told(&(with_section("") + &lease)),
        ["lease[0].name: found \"databases\" again; allowed: once (first at sync[0].name)"]
    );
}

#[test]
fn variables_reach_a_lease_by_its_name() {
    let variables = [("TOWLINE__LEASE__HEARTBEAT__DURATION".to_owned(), "30s".to_owned())];
    let config = crate::jobs::JOBS.parse(LEASE, variables).expect("a configuration");
    assert_eq!(lease::sections(&config)[0].duration, Duration::from_secs(30));
}

#[test]
fn one_lease_has_one_section() {
    let again = LEASE.replacen("name = \"", "name = \"again-", 1);
    let faults = told(&format!("{CLUSTERS}{LEASE}{again}"));
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0].starts_with("lease[1].lease_name: found Lease "), "{faults:?}");
    assert!(faults[0].ends_with("on the hub of the same Secret again; allowed: once (first at lease[0].lease_name)"));
}

#[test]
fn an_unknown_key_of_the_environment_is_told_with_its_variable() {
    let variables = [("TOWLINE__DAEMON__LISTNE".to_owned(), "x".to_owned())];
    let Err(Error::Invalid(faults)) = crate::jobs::JOBS.parse(CLUSTERS, variables) else {
        panic!("a fault is expected")
    };
    let told = faults.to_string();
    assert!(told.contains("daemon.listne: unknown key (from the variable TOWLINE__DAEMON__LISTNE)"), "{told}");
}
