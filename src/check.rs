//! `towline check`: reports the faults of a configuration, and with `--connect` also of its clusters and databases.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::cluster::{Cluster, full_text};
use crate::config::ClusterName;
use crate::config::fault::{Fault, Faults};
use crate::election;
use crate::job::check::{Surroundings, collected, reach, say};
use crate::job::command::{Exit, remark};
use crate::job::output::Output;
use crate::job::permission::{Permission, PermissionPlace, Reviewer};
use crate::job::{Config, JobList};
use crate::state::Keeping;
use crate::status::read_token;

/// Prints the faults of a file that is not valid, as a document if that is wanted. People read them as the error that ends the command.
pub fn print_faults(faults: &Faults, output: Output) {
    let fault = |fault: &Fault| json!({"path": fault.path, "problem": fault.problem.to_string()});
    let faults: Vec<Value> = faults.as_slice().iter().map(fault).collect();
    output.print(&json!({"valid": false, "faults": faults}), &[], &[]);
}

/// Prints what is wrong with a valid file, and with `connect` with its clusters and databases.
pub async fn print(config: &Config, jobs: JobList, connected: bool, output: Output) -> Exit {
    let checking = async { if connected { connect(config, jobs).await } else { file(config, jobs) } };
    if matches!(output, Output::Table | Output::Wide) {
        return checking.await;
    }
    let (exit, lines) = collected(checking).await;
    let names: Vec<String> = config.sections().map(ToString::to_string).collect();
    let document = json!({"valid": exit == Exit::Done, "clusters": config.clusters.keys().collect::<Vec<_>>(),
        "sections": names, "lines": lines});
    output.print(&document, &names, &[]);
    // Names alone don't say why it fails.
    if output == Output::Name && exit != Exit::Done {
        for line in &lines {
            remark(line);
        }
    }
    exit
}

/// Reports that the file has no faults, and what was not looked into.
fn file(config: &Config, jobs: JobList) -> Exit {
    fine(config, jobs);
    say(
        "kubeconfigs, URLs, tokens and keys in other files were not read; --connect reads them and asks clusters and databases",
    );
    Exit::Done
}

fn fine(config: &Config, jobs: JobList) {
    if config.sections().next().is_none() {
        say(&jobs.nothing_runs());
    }
    for warning in config.warnings() {
        say(&warning);
    }
    say(&format!(
        "the configuration is valid: {} cluster(s), {} section(s)",
        config.clusters.len(),
        config.sections().count()
    ));
}

/// Checks every cluster and database that a section refers to: whether it answers, has the kinds and tables, and grants the
/// permissions.
async fn connect(config: &Config, jobs: JobList) -> Exit {
    let mut faults = 0_usize;
    let mut clusters: BTreeMap<ClusterName, Option<Cluster>> = BTreeMap::new();
    for (name, cluster_config) in &config.clusters {
        match reach(name, cluster_config).await {
            Ok(cluster) => {
                say(&format!("cluster {name}: answers"));
                clusters.insert(name.clone(), Some(cluster));
            }
            Err(reason) => {
                faults += 1;
                say(&format!("cluster {name}: {reason}"));
                clusters.insert(name.clone(), None);
            }
        }
    }
    if let Some(path) = &config.daemon.admin_token_file
        && let Err(error) = read_token(path).await
    {
        faults += 1;
        say(&format!("daemon.admin_token_file: {}", full_text(&error)));
    }
    let keeping = Keeping::new(&config.daemon, config.election.as_ref());
    let surroundings = Surroundings { clusters, configured: &config.clusters, keeping };
    if let Some(election) = &config.election
        && let Some(cluster) = surroundings.cluster(&election.cluster)
    {
        let place = PermissionPlace::Cluster(cluster.name().clone());
        let elected = config.jobs.iter().filter(|job| job.is_elected()).flat_map(|job| job.names());
        let needed = election::needed_access(elected, &election.namespace).into_iter();
        let needed: Vec<_> = needed.map(|request| Permission::required(&place, request)).collect();
        let missing = Reviewer::Cluster(cluster).check("election", &needed).await;
        faults += missing;
        if missing == 0
            && let Err(error) = election::try_lease(election, cluster).await
        {
            faults += 1;
            say(&format!("election: cluster {}: namespace {}: {error}", cluster.name(), election.namespace));
        }
    }
    for job in &config.jobs {
        faults += job.connect(&surroundings).await;
    }
    if faults == 0 {
        fine(config, jobs);
        return Exit::Done;
    }
    say(&format!("{faults} fault(s)"));
    Exit::Failed
}
