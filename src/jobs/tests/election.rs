//! `[election]` in whole files.

use std::time::Duration;

use crate::config::{ElectionConfig, Error};
use crate::job::Config;

fn parse(keys: &str) -> Result<Config, Error> {
    let text = format!("[clusters.edge]\nin_cluster = true\n[election]\n{keys}\n");
    crate::jobs::JOBS.parse(&text, [])
}

fn told(keys: &str) -> Vec<String> {
    match parse(keys) {
        Err(Error::Invalid(faults)) => faults.as_slice().iter().map(ToString::to_string).collect(),
        other => panic!("faults expected, got {other:?}"),
    }
}

#[test]
fn every_key_is_read() {
    let config = parse(
        "cluster = \"edge\"\nnamespace = \"towline\"\nlease_duration = \"7s\"\nrenew_interval = \"2s\"\n\
         identity = \"host-1_a.b\"",
    );
    let expected = ElectionConfig {
        cluster: "edge".parse().expect("a name"),
        namespace: "towline".to_owned(),
        lease_duration: Duration::from_secs(7),
        renew_interval: Duration::from_secs(2),
        identity: Some("host-1_a.b".to_owned()),
    };
    assert_eq!(config.expect("a configuration").election, Some(expected));
}

#[test]
fn all_faults_of_an_election_are_told_at_once() {
    assert_eq!(
        told("cluster = \"egde\"\nlease_duration = \"1500ms\"\nrenew_interval = \"8s\"\nidentity = \"-\"\nname = 1"),
        vec![
            "election.cluster: found \"egde\"; allowed: a name under `[clusters]`: edge; did you mean `edge`?",
            "election.identity: found \"-\"; allowed: 1 to 200 of a-z, A-Z, 0-9, -, _ and ., beginning and ending \
             with a letter or digit",
            "election.lease_duration: found \"1500ms\"; allowed: a duration of whole seconds from 2s to 1h",
            "election.name: unknown key; allowed: cluster, namespace, lease_duration, renew_interval, identity",
            "election.namespace: missing; allowed: the name of a namespace",
        ]
    );
    // Compared if both are what they may be.
    assert_eq!(
        told("cluster = \"edge\"\nnamespace = \"towline\"\nrenew_interval = \"8s\""),
        vec![
            "election: found a renew_interval of 8s beside a lease_duration of 15s; allowed: a renew_interval of \
             at most half the lease_duration"
        ]
    );
}
