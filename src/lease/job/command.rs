//! `towline lease`: the lease job alone, as a side-car, configured by flags and variables instead of a file.
//!
//! It accepts the command line of Open Cluster Management's add-on lease controller: flags with one dash or two, switches
//! with or without a value, and three variables without a prefix. Values are read as text here and checked with the
//! configuration, so that all faults are reported together, each under the name that the user wrote.

use clap::Args;

use super::side_car::LeaseFlags;
use crate::config::Error;
use crate::job::command::{JobCommand, Order};
use crate::job::{Config, JobList};

/// The values of a switch, as for Go's flags.
const YES: [&str; 6] = ["1", "t", "T", "true", "TRUE", "True"];
const NO: [&str; 6] = ["0", "f", "F", "false", "FALSE", "False"];

/// The part of `towline lease --help` about required values.
const VARIABLES: &str = "\
Required: --lease-name, --lease-namespace, --hub-kubeconfig-secret, and the variable WATCH_NAMESPACE.

Variables:
  WATCH_NAMESPACE  Namespace of the secret
  POD_NAME         Pod whose readiness gates the lease [default: none, the lease is always renewed]
  POD_NAMESPACE    Its namespace; both or none";

/// The flags and variables of `towline lease`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
struct LeaseCommand {
    /// Lease on the hub
    #[arg(long, value_name = "NAME")]
    lease_name: Option<String>,
    /// Namespace of the lease, on the hub
    #[arg(long, value_name = "NAMESPACE")]
    lease_namespace: Option<String>,
    /// Secret with the hub's kubeconfig, on the managed cluster in the namespace `WATCH_NAMESPACE`
    #[arg(long, value_name = "NAME")]
    hub_kubeconfig_secret: Option<String>,
    /// How long the lease is good after a renewal, in seconds [default: 60]
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true)]
    lease_duration: Option<String>,
    /// Wait before the first action, in seconds [default: 10]
    #[arg(long, value_name = "SECONDS", allow_hyphen_values = true)]
    startup_delay: Option<String>,
    /// Elect one among several replicas of the side-car, by a Lease in the pod's namespace, else the secret's
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
          default_value = "false", value_parser = switch)]
    leader_election: bool,
    /// Address of the admin server [default: 0.0.0.0]
    #[arg(long, value_name = "ADDRESS")]
    metrics_host: Option<String>,
    /// Port of the admin server [default: 8384]
    #[arg(long, value_name = "PORT", allow_hyphen_values = true)]
    metrics_port: Option<String>,
    /// Namespace of the secret
    #[arg(skip)]
    watch_namespace: Option<String>,
    /// Pod whose readiness gates the lease
    #[arg(skip)]
    pod_name: Option<String>,
    /// Its namespace
    #[arg(skip)]
    pod_namespace: Option<String>,
}

fn switch(text: &str) -> Result<bool, String> {
    match text {
        yes if YES.contains(&yes) => Ok(true),
        no if NO.contains(&no) => Ok(false),
        _ => Err("allowed: true or false".to_owned()),
    }
}

impl LeaseCommand {
    /// The equivalent configuration, with the variables of `environment`.
    fn config(self, environment: impl Fn(&str) -> Option<String>) -> Result<Config, Error> {
        LeaseFlags {
            lease_name: self.lease_name,
            lease_namespace: self.lease_namespace,
            hub_kubeconfig_secret: self.hub_kubeconfig_secret,
            lease_duration: self.lease_duration,
            startup_delay: self.startup_delay,
            metrics_host: self.metrics_host,
            metrics_port: self.metrics_port,
            watch_namespace: environment("WATCH_NAMESPACE"),
            pod_name: environment("POD_NAME"),
            pod_namespace: environment("POD_NAMESPACE"),
            leader_election: self.leader_election,
        }
        .config()
    }
}

/// The command, for the list of the job.
pub fn command() -> JobCommand {
    let execute = |command: LeaseCommand, _: &JobList| {
        let environment = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        Ok(Order::Run(Box::new(command.config(environment)?)))
    };
    let about = "Renew one lease while a pod is ready, as a side-car told by flags and the environment";
    JobCommand::new("lease", about, execute).after_help(VARIABLES).with_single_dashes()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::FromArgMatches;

    use super::*;

    fn parse(line: &str) -> Result<LeaseCommand, clap::Error> {
        let command = command();
        let arguments = command.with_two_dashes(line.split(' ').map(OsString::from).collect());
        let towline = clap::Command::new("towline").subcommand(command.arguments);
        let matches = towline.try_get_matches_from(arguments)?;
        LeaseCommand::from_arg_matches(matches.subcommand_matches("lease").expect("the command"))
    }

    fn environment(name: &str) -> Option<String> {
        [("WATCH_NAMESPACE", "add-ons"), ("POD_NAME", "add-on-0"), ("POD_NAMESPACE", "pods")]
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| (*value).to_owned())
    }

    const ONE_DASH: &str = "towline lease -lease-name add-on -lease-namespace=edge -hub-kubeconfig-secret hub \
                            -lease-duration 30 -startup-delay=0 -leader-election -metrics-port 0 -metrics-host ::1";

    #[test]
    fn flags_have_one_dash_or_two() {
        let one = parse(ONE_DASH).expect("a command");
        assert_eq!(parse(&ONE_DASH.replace(" -", " --")).expect("a command"), one);
        let config = one.config(environment).expect("a configuration");
        let section = &super::super::sections(&config)[0];
        assert_eq!((section.lease_name.as_str(), section.lease_namespace.as_str()), ("add-on", "edge"));
        assert_eq!((section.secret_name.as_str(), section.secret_namespace.as_str()), ("hub", "add-ons"));
        assert_eq!(
            section.pod.as_ref().map(|pod| (pod.name.as_str(), pod.namespace.as_str())),
            Some(("add-on-0", "pods"))
        );
        assert!(config.election.is_some());
        assert_eq!(config.daemon.listen, "[::1]:0".parse().expect("an address"));
    }

    #[test]
    fn a_switch_takes_what_gos_flags_take() {
        let elects = |flag: &str| parse(&format!("towline lease {flag}")).map(|command| command.leader_election);
        assert!(elects("--leader-election=1").expect("yes") && !elects("-leader-election=false").expect("no"));
        assert_eq!(elects("--leader-election=maybe").expect_err("neither").exit_code(), 2);
        assert!(!parse("towline lease").expect("a command").leader_election);
    }

    #[test]
    fn negative_numbers_are_values_and_not_flags() {
        let told = parse("towline lease --lease-duration -1").expect("a command").config(environment);
        let Err(Error::Invalid(faults)) = told else { panic!("{told:?}") };
        assert!(faults.to_string().contains("--lease-duration: found \"-1\""), "{faults}");
    }

    #[test]
    fn other_commands_keep_their_dashes() {
        let line = ["towline", "status", "-o", "json", "-output"].map(OsString::from);
        assert_eq!(command().with_two_dashes(line.to_vec()), line);
    }
}
