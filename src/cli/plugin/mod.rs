//! `kubectl towline …`: the same binary by another name. It finds the replicas of a release by the labels of their pods, forwards requests to
//! their admin servers, and runs the commands of [`Remote`] on all of them as on one daemon.
//!
//! `pods` chooses the replicas, `replicas` merges what they say and finds the one that runs a section: both are pure. `forward` talks to the API
//! server, and `local` serves the page, and the hub's API to commands of jobs, at an address of this machine.

mod forward;
mod local;
mod pods;
mod replicas;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use futures::stream::{FuturesUnordered, StreamExt};
use http::{Method, StatusCode, Uri};
use serde_json::Value;

use super::client::{self, Daemon};
use super::is_typed;
use super::orders::Remote;
use super::release::{Error, NotRun};
use crate::cluster::full_text;
use crate::job::JobList;
use crate::job::command::{Exit, JobCommand, complain};
use crate::telemetry::LONG_VERSION;

pub use forward::PodChoice;
use forward::Pods;
use pods::Replica;
use replicas::{Said, merged, runner, silent};

/// What kubectl calls its plugins' files.
pub(super) const FILE: &str = "kubectl-towline";
/// The options of [`PodChoice`] that take a value.
pub(super) const WITH_VALUES: [&str; 5] = ["--kubeconfig", "--context", "--namespace", "-n", "--release"];
/// The namespace of documents, which other commands call `--namespace`: here that is the one of the release.
pub(super) const OF_DOCUMENTS: &str = "in-namespace";
/// Options of commands that say where something is which this finds by itself.
const ADMIN: &str = "admin";
const HUB: &str = "hub";
/// Deadline for what a replica says of itself: its own reports take five seconds if an actor hangs.
const LONGEST_STATUS: Duration = Duration::from_secs(7);

/// The command line of `kubectl towline`.
#[derive(Debug, PartialEq, Eq, Parser)]
#[command(
    name = FILE,
    bin_name = "kubectl towline",
    version = LONG_VERSION.as_str(),
    about = "Shows and operates the Towline of a cluster: finds its pods, forwards requests to them, and asks all replicas as one"
)]
pub struct Plugin {
    #[command(flatten)]
    choice: PodChoice,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, PartialEq, Eq, Subcommand)]
enum Command {
    #[command(flatten)]
    Remote(Remote),
    /// Forward the page of a daemon to this machine, print its address, and serve it until Ctrl-C
    Ui {
        /// Port of this machine; any free one by default
        #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
        port: u16,
    },
}

/// The whole command line.
pub fn command_line(jobs: JobList) -> clap::Command {
    let own = Plugin::command().mut_subcommands(|command| {
        command.mut_args(|argument| match argument.get_id().as_str() {
            // The address is what this finds by itself.
            ADMIN => argument.hide(true),
            _ => of_no_variable(argument),
        })
    });
    let own = own.mut_subcommand("resync-section", |command| {
        command.override_usage("kubectl towline resync [OPTIONS] <SECTION> [NAME]")
    });
    let own = own.mut_subcommand("explain-section", |command| {
        command.override_usage("kubectl towline explain [OPTIONS] <SECTION> <NAME>")
    });
    own.subcommands(of_jobs(jobs).map(|command| at_found_hub(command.arguments)))
}

/// Variables of a shell may be about another daemon, or another hub: neither their addresses nor their tokens are taken.
fn of_no_variable(argument: clap::Arg) -> clap::Arg {
    argument.env(None::<&'static str>)
}

/// A command whose hub this finds by itself.
fn at_found_hub(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|argument| match argument.get_id().as_str() {
        HUB => of_no_variable(argument)
            .hide_default_value(true)
            .value_name("https://NAME")
            .help("The name in the certificate of the release's hub, where it has TLS"),
        "namespace" => argument.short(None::<char>).long(OF_DOCUMENTS),
        _ => of_no_variable(argument),
    });
    let below = command.get_after_help().map(|text| text.to_string().replace("towline ", "kubectl towline "));
    match below {
        Some(below) => command.after_help(below),
        None => command,
    }
    .mut_subcommands(at_found_hub)
}

/// Whether `--hub` is typed as something else than the name in a certificate.
fn is_other_hub_typed(of_command: &ArgMatches) -> bool {
    let is_name = |hub: &Uri| hub.scheme_str() == Some("https");
    let is_here = is_typed(of_command, HUB) && !of_command.get_one(HUB).is_some_and(is_name);
    is_here || of_command.subcommand().is_some_and(|(_, inner)| is_other_hub_typed(inner))
}

/// The clients of a hub's API.
fn of_jobs(jobs: JobList) -> impl Iterator<Item = JobCommand> {
    jobs.commands().filter(|command| is_of_hub(&command.arguments))
}

fn is_of_hub(command: &clap::Command) -> bool {
    command.get_arguments().any(|argument| argument.get_id() == HUB) || command.get_subcommands().any(is_of_hub)
}

/// What was typed: a command of its own, or one of a job with its arguments.
pub(super) enum Typed {
    Own(Plugin),
    OfJob(PodChoice, Box<JobCommand>, ArgMatches),
}

pub(super) fn parse(arguments: impl IntoIterator<Item = OsString>, jobs: JobList) -> Result<Typed, clap::Error> {
    let mut matches = command_line(jobs).try_get_matches_from(arguments)?;
    let refused = |kind, text: &str| Err(command_line(jobs).error(kind, text));
    let choice = PodChoice::from_arg_matches(&matches)?;
    // clap would see a conflict on one level only.
    if choice.all_namespaces && choice.namespace.is_some() {
        return refused(ErrorKind::ArgumentConflict, "--namespace cannot be used with --all-namespaces");
    }
    if let Some((name, of_command)) = matches.subcommand() {
        if let Some(command) = of_jobs(jobs).find(|command| command.arguments.get_name() == name) {
            if is_other_hub_typed(of_command) {
                let text =
                    "`kubectl towline` finds the hub by itself: --hub is https:// and the name in its certificate";
                return refused(ErrorKind::ValueValidation, text);
            }
            return Ok(Typed::OfJob(choice, Box::new(command), of_command.clone()));
        }
        if is_typed(of_command, ADMIN) {
            let text = "`kubectl towline` finds the daemon by itself: --admin is an option of `towline`";
            return refused(ErrorKind::UnknownArgument, text);
        }
    }
    Plugin::from_arg_matches_mut(&mut matches).map(Typed::Own)
}

/// Does the work of a job's command, with the hub's API of the release that was chosen.
pub async fn at_hub(choice: &PodChoice, work: impl Future<Output = Exit>) -> Result<Exit, client::Error> {
    let pods = Pods::of(choice).await?;
    // It may send a token.
    if !pods.is_named {
        return Err(Error::Token.into());
    }
    Ok(local::at_hub(&pods, work).await?)
}

impl Plugin {
    /// Asks the replicas and writes the answer. Needs a tokio runtime.
    pub async fn execute(self, out: &mut impl Write) -> Result<Exit, client::Error> {
        let pods = Pods::of(&self.choice).await?;
        let remote = match self.command {
            // The page asks for the token.
            Command::Ui { .. } if !pods.is_named => return Err(Error::Token.into()),
            Command::Ui { port } => return local::page(&pods, port, out).await,
            Command::Remote(remote) => remote,
        };
        // Before anything is listed, or somebody is asked.
        if remote.token_file().is_some() && !pods.is_named {
            return Err(Error::Token.into());
        }
        remote.execute_at(&Replicas { pods, told: RefCell::default() }, out).await
    }
}

/// All replicas of a release, as one daemon.
struct Replicas {
    pods: Pods,
    /// The silent replicas that were already reported: each is reported once.
    told: RefCell<BTreeSet<String>>,
}

impl Daemon for Replicas {
    /// A section's replica gets what is for the section, and all are asked for their status.
    async fn ask_within(
        &self,
        within: Duration,
        method: &Method,
        path: &str,
        token_file: Option<&Path>,
    ) -> Result<Value, client::Error> {
        if token_file.is_some() && !self.pods.is_named {
            return Err(Error::Token.into());
        }
        match section_of(path) {
            None => Ok(self.status(path).await?),
            Some(section) => self.ask_runner(section, within, method, path, token_file).await,
        }
    }
}

impl Replicas {
    async fn status(&self, path: &str) -> Result<Value, Error> {
        let said = said_by_all(&self.pods, path).await?;
        let silent = silent(&said);
        if said.iter().all(|said| said.status.is_err()) {
            return Err(NotRun::Silent { silent }.into());
        }
        for line in silent {
            if self.told.borrow_mut().insert(line.clone()) {
                complain(&line);
            }
        }
        Ok(merged(&said))
    }

    /// Asks the replica that runs a section. If one has vanished, or runs the section no longer, the pods are read once more.
    async fn ask_runner(
        &self,
        section: &str,
        within: Duration,
        method: &Method,
        path: &str,
        token_file: Option<&Path>,
    ) -> Result<Value, client::Error> {
        let mut earlier: Option<(Replica, client::Error)> = None;
        let mut is_last = false;
        loop {
            let said = said_of(section, &self.pods).await?;
            match (runner(section, &said), earlier.take()) {
                (Err(_), None) if !is_last && !silent(&said).is_empty() => {}
                (Err(not_run), _) => return Err(Error::from(not_run).into()),
                // It would fail again.
                (Ok(replica), Some((before, error))) if *replica == before => return Err(error),
                (Ok(replica), _) => match self.pods.ask(replica, within, method, path, token_file).await {
                    Err(error) if !is_last && may_be_repeated(method, &error) => {
                        earlier = Some((replica.clone(), error));
                    }
                    answer => return answer,
                },
            }
            is_last = true;
        }
    }
}

/// The section that a path of the admin server names: `/approve/databases?name=a`.
fn section_of(path: &str) -> Option<&str> {
    path.split('?').next()?.split('/').nth(2)
}

/// Whether a request had no effect on the replica, which may have handed the section over or be gone.
fn may_be_repeated(method: &Method, error: &client::Error) -> bool {
    match error {
        client::Error::Release(Error::Unreached { .. }) => true,
        client::Error::Refused { status, .. } => *status == StatusCode::SERVICE_UNAVAILABLE,
        client::Error::Converse(_) => *method == Method::GET,
        _ => false,
    }
}

/// What each replica answers to this path, all asked at once.
async fn said_by_all(pods: &Pods, path: &str) -> Result<Vec<Said>, Error> {
    said_until(pods, path, |_| false).await
}

/// The same, as soon as the replica has answered that runs a section: one that hangs is not waited for.
async fn said_of(section: &str, pods: &Pods) -> Result<Vec<Said>, Error> {
    said_until(pods, "/status?latest=true", |said| runner(section, said).is_ok()).await
}

async fn said_until(pods: &Pods, path: &str, is_enough: impl Fn(&[Said]) -> bool) -> Result<Vec<Said>, Error> {
    let said_by = async |replica: Replica| {
        let asking = pods.ask(&replica, LONGEST_STATUS, &Method::GET, path, None);
        let asked = tokio::time::timeout(LONGEST_STATUS, asking).await;
        let status = match asked {
            Ok(Ok(status)) => Ok(status),
            Ok(Err(client::Error::Release(Error::Unreached { reason, .. }))) => Err(reason),
            Ok(Err(error)) => Err(full_text(&error)),
            Err(_) => Err(format!("no answer within {}", humantime::format_duration(LONGEST_STATUS))),
        };
        Said { replica, status }
    };
    let mut asking: FuturesUnordered<_> = pods.replicas().await?.into_iter().map(said_by).collect();
    let mut said = Vec::new();
    while let Some(one) = asking.next().await {
        said.push(one);
        if is_enough(&said) {
            break;
        }
    }
    said.sort_by(|one, other| one.replica.name.cmp(&other.replica.name));
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Given;
    use crate::jobs::JOBS;

    fn parse(line: &str) -> Result<Plugin, clap::Error> {
        match super::parse(line.split(' ').map(OsString::from), JOBS)? {
            Typed::Own(plugin) => Ok(plugin),
            Typed::OfJob(_, command, _) => panic!("{line}: {}", command.arguments.get_name()),
        }
    }

    #[test]
    fn the_command_line_is_well_formed() {
        command_line(JOBS).debug_assert();
    }

    #[test]
    fn options_that_choose_pods_go_before_and_behind_the_command() {
        for line in [
            "kubectl-towline -n edge --release one --context lab status",
            "kubectl-towline status --namespace edge --release=one --context lab",
        ] {
            let Plugin { choice, command } = parse(line).expect("a command");
            assert_eq!(choice.namespace.as_deref(), Some("edge"), "{line}");
            assert_eq!((choice.release.as_deref(), choice.context.as_deref()), (Some("one"), Some("lab")), "{line}");
            assert!(matches!(command, Command::Remote(Remote::Status(_))), "{line}");
        }
        let kind = |line: &str| parse(line).expect_err("no command").kind();
        for line in [
            "kubectl-towline status -A -n edge",
            "kubectl-towline -n edge status -A",
            "kubectl-towline -A rollout status -n edge",
        ] {
            assert_eq!(kind(line), ErrorKind::ArgumentConflict, "{line}");
        }
        assert_eq!(kind("kubectl-towline run"), ErrorKind::InvalidSubcommand);
    }

    #[test]
    fn the_address_of_a_daemon_is_not_for_people_to_give() {
        let error = parse("kubectl-towline status --admin http://edge:1").expect_err("a usage error");
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("--admin is an option of `towline`"), "{error}");
        for name in ["status", "approve", "detach", "attach", "resync-section", "explain-section"] {
            let mut line = command_line(JOBS);
            let help = line.find_subcommand_mut(name).expect("a command").render_long_help().to_string();
            assert!(!help.contains("--admin") && !help.contains("TOWLINE_"), "{help}");
            assert!(help.contains("Usage: kubectl towline") || !help.contains("Usage: towline"), "{help}");
        }
    }

    #[test]
    fn a_hub_is_not_for_people_or_their_shells_to_give() {
        let of = |line: &str| super::parse(line.split(' ').map(OsString::from), JOBS);
        let error = of("kubectl-towline rollout abort foo/base --hub http://hub:7070").err().expect("a usage error");
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("finds the hub by itself"), "{error}");
        assert!(of("kubectl-towline rollout abort foo/base --hub https://hub").is_ok(), "the name in a certificate");
        let leaves = |command: &clap::Command| match command.get_subcommands().collect::<Vec<_>>() {
            inner if inner.is_empty() => vec![command.clone()],
            inner => inner.into_iter().cloned().collect(),
        };
        let commands: Vec<_> = of_jobs(JOBS).flat_map(|command| leaves(&at_found_hub(command.arguments))).collect();
        assert!(commands.len() > 10, "{commands:?}");
        for mut command in commands {
            let variables: Vec<_> = command.get_arguments().filter_map(clap::Arg::get_env).collect();
            assert!(variables.is_empty(), "{}: {variables:?}", command.get_name());
            let help = command.render_long_help().to_string();
            assert!(help.contains("--hub <https://NAME>") && !help.contains("http://"), "{help}");
            assert!(!help.contains(" --namespace") && !help.contains("-n,"), "{help}");
            let named = help.matches("`towline ").count() + help.matches("Usage: towline").count();
            assert_eq!(named, 0, "{help}");
        }
    }

    #[test]
    fn a_command_of_a_job_has_the_options_that_choose_pods_beside_its_own() {
        for (line, name) in [
            ("kubectl-towline -n edge rollout status foo/base -o json", "rollout"),
            ("kubectl-towline rollout status foo/base -n edge -o json", "rollout"),
            ("kubectl-towline get clusters --in-namespace foo -n edge", "get"),
            ("kubectl-towline -n edge explain foo/west ConfigMap/a/b", "explain"),
            ("kubectl-towline explain west ConfigMap/a/b --in-namespace foo -n edge", "explain"),
            ("kubectl-towline resync --all -n edge", "resync"),
            ("kubectl-towline -n edge resync foo/west", "resync"),
        ] {
            let parsed =
                crate::cli::parse(line.split(' ').map(OsString::from), JOBS).map_err(|error| error.to_string());
            let Ok(Given::OfJob(command, matches, Some(choice))) = parsed else { panic!("{line}: {:?}", parsed.err()) };
            assert_eq!((choice.namespace.as_deref(), command.arguments.get_name()), (Some("edge"), name), "{line}");
            let namespace = matches.try_get_one::<String>("namespace").ok().flatten().map(String::as_str);
            assert_eq!(namespace, line.contains("--in-namespace").then_some("foo"), "{line}");
            assert!(command.execute(&matches, &JOBS).is_ok(), "{line}");
        }
    }

    #[test]
    fn what_is_for_a_section_is_told_apart_from_what_is_for_a_hub() {
        for line in [
            "kubectl-towline -n edge explain databases hu/orders-0",
            "kubectl-towline explain -n edge databases hu/orders-0",
            "kubectl-towline --context explain resync inventory -n edge",
            "kubectl-towline resync -n edge -o json inventory web/shop",
        ] {
            let parsed =
                crate::cli::parse(line.split(' ').map(OsString::from), JOBS).map_err(|error| error.to_string());
            let Ok(Given::Plugin(Plugin { choice, command })) = parsed else { panic!("{line}: {:?}", parsed.err()) };
            assert_eq!(choice.namespace.as_deref(), Some("edge"), "{line}");
            assert!(matches!(command, Command::Remote(Remote::Resync(_) | Remote::Explain(_))), "{line}");
        }
    }

    #[test]
    fn a_path_names_its_section() {
        for (path, section) in [
            ("/status", None),
            ("/status?latest=true", None),
            ("/approve/databases", Some("databases")),
            ("/explain/inventory?name=default%2Fweb", Some("inventory")),
        ] {
            assert_eq!(section_of(path), section, "{path}");
        }
    }

    #[test]
    fn an_order_is_not_repeated_if_it_may_have_had_an_effect() {
        let unreached = || client::Error::from(Error::Unreached { replica: "a".into(), reason: "gone".into() });
        let refused = |status| client::Error::Refused { status, error: "no".into() };
        assert!(may_be_repeated(&Method::POST, &unreached()));
        assert!(may_be_repeated(&Method::POST, &refused(StatusCode::SERVICE_UNAVAILABLE)));
        for error in [
            refused(StatusCode::CONFLICT),
            refused(StatusCode::UNAUTHORIZED),
            client::Error::NotJson { status: StatusCode::OK },
        ] {
            assert!(!may_be_repeated(&Method::POST, &error), "{error}");
        }
    }
}
