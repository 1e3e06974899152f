//! The command line: the daemon's own commands, those of the jobs, and those that talk to a running daemon.
//!
//! `process` executes `run` and `check`, each job its own commands, and [`Remote`] calls the admin server.

mod client;
mod completion;
mod orders;
mod plugin;
mod release;
mod table;
mod watch;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::config::ClusterName;
use crate::job::JobList;
use crate::job::command::{ConfigFile, JobCommand};
use crate::job::output::Format;
use crate::telemetry::LONG_VERSION;
pub use client::Error;
pub use completion::{answer as completed, script as completion_script};
use orders::Remote;
pub use plugin::{Plugin, PodChoice, at_hub, command_line as plugin_command_line};

/// The command line of `towline`.
#[derive(Debug, Parser)]
#[command(
    name = "towline",
    version = LONG_VERSION.as_str(),
    about = "Keeps many Kubernetes clusters and a hub in step: syncs resources between clusters, renews leases on a hub, \
             rolls up status from a hub's database, serves a hub of its own and applies its syncsets to clusters, and reports \
             Helm releases to an API"
)]
struct Cli {
    /// What to do.
    #[command(subcommand)]
    command: Command,
}

/// The commands that belong to no job.
#[derive(Debug, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Run every section of a configuration until a signal ends it
    Run(ConfigFile),
    /// Report all faults of a configuration
    Check(CheckCommand),
    /// Print the roles that a configuration needs in its clusters
    Rbac(RbacCommand),
    /// Print the completion of commands for a shell, to be sourced
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a directory
    #[command(hide = true)]
    Man {
        /// The directory, which exists
        directory: PathBuf,
    },
    /// A command for a running daemon.
    #[command(flatten)]
    Remote(Remote),
}

/// `towline check`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct CheckCommand {
    /// The file to check.
    #[command(flatten)]
    pub file: ConfigFile,
    /// Also report unreachable clusters and databases, and missing kinds, tables and permissions
    #[arg(long)]
    pub connect: bool,
    /// How to print what was found.
    #[command(flatten)]
    pub format: Format,
}

/// `towline rbac`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct RbacCommand {
    /// The configuration.
    #[command(flatten)]
    pub file: ConfigFile,
    /// Only those for this cluster of the configuration
    #[arg(long, value_name = "NAME")]
    pub cluster: Option<ClusterName>,
    /// The name of the roles: another one for each daemon of a cluster
    #[arg(long, value_name = "NAME", default_value = "towline")]
    pub name: String,
    /// Also print bindings to this account, which the daemon uses on the cluster
    #[arg(long, value_name = "NAMESPACE/NAME", requires = "cluster")]
    pub service_account: Option<String>,
}

pub enum Given {
    /// One of the daemon's own.
    Own(Command),
    /// One that kubectl runs.
    Plugin(Plugin),
    /// One of a job, with its arguments; through kubectl, with the pods that it is for.
    OfJob(Box<JobCommand>, ArgMatches, Option<PodChoice>),
}

/// What [`to_section`] appends to a command.
const OF_SECTION: &str = "-section";

/// The whole command line.
pub fn command_line(jobs: JobList) -> clap::Command {
    Cli::command().subcommands(jobs.commands().map(|command| command.arguments))
}

/// Writes a man page for each command.
pub fn man_pages(jobs: JobList, directory: &Path) -> std::io::Result<()> {
    clap_mangen::generate_to(command_line(jobs), directory)
}

/// Parses a command line. `--help` and `--version`, too, are errors for clap, which knows their exit codes.
pub fn parse(arguments: impl IntoIterator<Item = OsString>, jobs: JobList) -> Result<Given, clap::Error> {
    let arguments = to_section(arguments.into_iter().collect(), jobs);
    if is_plugin(&arguments) {
        return plugin::parse(arguments, jobs).map(|typed| match typed {
            plugin::Typed::Own(plugin) => Given::Plugin(plugin),
            plugin::Typed::OfJob(pods, command, matches) => Given::OfJob(command, matches, Some(pods)),
        });
    }
    let arguments = jobs.commands().fold(arguments, |arguments, command| command.with_two_dashes(arguments));
    let mut matches = command_line(jobs).try_get_matches_from(arguments)?;
    refuse_two_files(&matches, jobs)?;
    if let Some((name, of_command)) = matches.subcommand()
        && let Some(command) = jobs.commands().find(|command| command.arguments.get_name() == name)
    {
        return Ok(Given::OfJob(Box::new(command), of_command.clone(), None));
    }
    Ok(Given::Own(Cli::from_arg_matches_mut(&mut matches)?.command))
}

/// Whether a program has this name.
fn is_named(program: &OsStr, name: &str) -> bool {
    Path::new(program).file_name() == Some(name.as_ref())
}

/// Whether kubectl has called the program as its plugin.
fn is_plugin(arguments: &[OsString]) -> bool {
    arguments.first().is_some_and(|program| is_named(program, plugin::FILE))
}

/// The command line with another name for a command that is meant for a section of the daemon: `towline resync inventory`. What follows
/// the command tells it apart from a job's own command with the same name.
fn to_section(mut arguments: Vec<OsString>, jobs: JobList) -> Vec<OsString> {
    let is_plugin = is_plugin(&arguments);
    let mut at = 1;
    let text = |at: usize| arguments.get(at).and_then(|argument| argument.to_str()).unwrap_or_default();
    while text(at).starts_with('-') {
        at += if plugin::WITH_VALUES.contains(&text(at)) { 2 } else { 1 };
    }
    let (words, said) = behind(arguments.get(at + 1..).unwrap_or_default(), is_plugin);
    let name = text(at);
    let is_of_job = |section: &&str| jobs.iter().any(|job| job.key() == *section && job.orders().contains(&name));
    let is_order = match name {
        "explain" => said.unwrap_or_else(|| is_of_section(&words)),
        _ => said != Some(false) && words.first().is_some_and(is_of_job),
    };
    if let Some(command) = arguments.get_mut(at).filter(|_| is_order) {
        command.push(OF_SECTION);
    }
    arguments
}

/// What follows a command: the words that are no options, and whether an option says that it is for a section or not. A namespace is one of a
/// hub's documents, but for a plugin that of the pods.
fn behind(arguments: &[OsString], is_plugin: bool) -> (Vec<&str>, Option<bool>) {
    let (mut words, mut left) = (Vec::new(), arguments.iter().filter_map(|argument| argument.to_str()));
    while let Some(argument) = left.next() {
        let option = argument.split('=').next().unwrap_or_default();
        match option {
            "--admin" => return (words, Some(true)),
            "-n" | "--namespace" if !is_plugin => return (words, Some(false)),
            "--hub" | "--certificate-authority" => return (words, Some(false)),
            _ if option.strip_prefix("--") == Some(plugin::OF_DOCUMENTS) => return (words, Some(false)),
            "-o" | "--output" | "--token-file" | "-l" | "--selector" if option == argument => _ = left.next(),
            _ if plugin::WITH_VALUES.contains(&argument) => _ = left.next(),
            _ if option.starts_with('-') => {}
            _ => words.push(argument),
        }
    }
    (words, None)
}

/// Whether `explain` is about an object of a section, and not about one that syncsets want on a cluster: a cluster has its namespace before it or
/// in an option, and the object there a kind in capitals.
fn is_of_section(words: &[&str]) -> bool {
    let is_section = |word: &&str| !word.contains('/');
    // That of a syncset begins with its kind: `SyncSet team-a/base`.
    let is_key = |word: &&str| word.contains(' ') || !word.starts_with(|first: char| first.is_ascii_uppercase());
    words.first().is_some_and(is_section) && words.get(1).is_none_or(is_key)
}

/// FILE beside `--config` is a usage error. clap's `conflicts_with` would count the variable of `--config`, too.
fn refuse_two_files(matches: &ArgMatches, jobs: JobList) -> Result<(), clap::Error> {
    let Some((name, of_command)) = matches.subcommand() else { return Ok(()) };
    if is_typed(of_command, "file") && is_typed(of_command, "config") {
        let text = format!("`towline {name}` takes one configuration file: either FILE or --config FILE");
        return Err(command_line(jobs).error(ErrorKind::ArgumentConflict, text));
    }
    Ok(())
}

/// Whether an option of a command has its value from the command line.
fn is_typed(of_command: &ArgMatches, id: &str) -> bool {
    of_command.ids().any(|given| given == id) && of_command.value_source(id) == Some(ValueSource::CommandLine)
}

#[cfg(test)]
mod tests {
    use std::process::ExitCode;

    use super::client::AdminUrl;
    use super::orders::{Access, ExplainCommand, OrderOptions, ResyncCommand, StatusCommand};
    use super::*;
    use crate::job::command::Exit;
    use crate::job::output::Output;
    use crate::job::terminal::Yes;
    use crate::jobs::JOBS;

    fn parse(line: &str) -> Result<Command, clap::Error> {
        match super::parse(line.split(' ').map(OsString::from), JOBS)? {
            Given::Own(command) => Ok(command),
            Given::OfJob(command, ..) => panic!("{line}: {}", command.arguments.get_name()),
            Given::Plugin(plugin) => panic!("{line}: {plugin:?}"),
        }
    }

    #[test]
    fn a_status_is_of_everything_or_of_one_section_or_of_one_object() {
        let of = |line: &str| match parse(line) {
            Ok(Command::Remote(Remote::Status(StatusCommand { section, object, .. }))) => {
                Some((section.map(|section| section.to_string()), object))
            }
            _ => None,
        };
        assert_eq!(of("towline status"), Some((None, None)));
        let one = (Some("databases".to_owned()), Some("hu/orders-0".to_owned()));
        assert_eq!(of("towline status databases hu/orders-0"), Some(one));
        assert_eq!(of("towline status databases --exit-code"), Some((Some("databases".to_owned()), None)));
        for option in ["--tree", "--watch"] {
            assert_eq!(of(&format!("towline status databases hu/orders-0 {option}")), None);
        }
        assert_eq!(of("towline status databases --tree"), None);
        assert_eq!(of("towline status databases -w"), Some((Some("databases".to_owned()), None)));
        assert_eq!(of("towline status databases hu/orders-0 --exit-code"), None);
        assert_eq!(of("towline status --watch --exit-code"), None);
    }

    #[test]
    fn the_command_line_is_well_formed() {
        command_line(JOBS).debug_assert();
    }

    #[test]
    fn each_command_that_people_type_has_a_man_page() {
        let directory = tempfile::tempdir().expect("a directory");
        man_pages(JOBS, directory.path()).expect("they are written");
        let has = |page: &str| directory.path().join(page).exists();
        assert!(has("towline.1") && has("towline-status.1") && has("towline-diff.1"));
        assert!(!has("towline-explain-section.1") && !has("towline-man.1"));
    }

    #[test]
    fn commands_of_the_daemon_itself_take_a_file_as_an_option_or_as_it_is() {
        for line in ["towline run --config a.toml", "towline run a.toml"] {
            let Ok(Command::Run(file)) = parse(line) else { panic!("{line}") };
            assert_eq!(file.path(), Path::new("a.toml"), "{line}");
        }
        for line in ["towline check --config a.toml --connect", "towline check --connect a.toml"] {
            let Ok(Command::Check(command)) = parse(line) else { panic!("{line}") };
            assert_eq!((command.file.path(), command.connect), (Path::new("a.toml"), true), "{line}");
        }
        for line in [
            "towline run a.toml --config b.toml",
            "towline check --config a.toml b.toml",
            "towline release a.toml --config b.toml --finalizer example.com/edge --list",
        ] {
            let error = super::parse(line.split(' ').map(OsString::from), JOBS).err().expect("a usage error");
            assert_eq!((error.kind(), error.exit_code()), (ErrorKind::ArgumentConflict, 2), "{line}");
            assert!(error.to_string().contains("takes one configuration file"), "{error}");
        }
        let config = command_line(JOBS)
            .find_subcommand("run")
            .and_then(|run| run.get_arguments().find(|argument| argument.get_id() == "config").cloned())
            .expect("an argument");
        assert_eq!(config.get_env(), Some("TOWLINE_CONFIG".as_ref()));
    }

    #[test]
    fn the_help_of_the_single_jobs_says_what_they_require() {
        let help = |name: &str| {
            command_line(JOBS).find_subcommand_mut(name).expect("a command").render_long_help().to_string()
        };
        for required in ["--lease-name", "--lease-namespace", "--hub-kubeconfig-secret", "WATCH_NAMESPACE"] {
            let help = help("lease");
            let (_, told) = help.split_once("Required:").expect("what is required");
            assert!(told.split("\n\n").next().expect("a paragraph").contains(required), "{required} in {told}");
        }
        let help = help("status-sync");
        let (_, told) = help.split_once("Required variable:").expect("what is required");
        assert!(told.trim_start().starts_with("DATABASE_URL"), "{told}");
        assert!(help.contains("--remove-triggers"), "{help}");
    }

    #[test]
    fn status_asks_the_local_daemon_unless_told_otherwise() {
        let status = |admin: &str, output, tree, exit_code| {
            let admin = admin.parse().expect("a URL");
            Command::Remote(Remote::Status(StatusCommand {
                section: None,
                object: None,
                admin,
                format: Format { output },
                tree,
                exit_code,
                watch: false,
            }))
        };
        assert_eq!(
            parse("towline status").expect("a command"),
            status("http://127.0.0.1:8384", Output::Table, false, false)
        );
        assert_eq!(
            parse("towline status --admin http://edge:1 -o json --exit-code").expect("a command"),
            status("http://edge:1", Output::Json, false, true)
        );
        assert_eq!(
            parse("towline status --tree").expect("a command"),
            status("http://127.0.0.1:8384", Output::Table, true, false)
        );
    }

    #[test]
    fn changes_name_a_section() {
        assert_eq!(
            parse("towline detach databases --local-gone --token-file t").expect("a command"),
            Command::Remote(Remote::Detach {
                section: "databases".parse().expect("a name"),
                local_gone: true,
                order: OrderOptions {
                    consent: Yes::default(),
                    format: Format::default(),
                    access: Access { admin: AdminUrl::default(), token_file: Some("t".into()) },
                },
            })
        );
        let Command::Remote(Remote::Approve { section, .. }) = parse("towline approve status_sync").expect("a command")
        else {
            panic!("another command");
        };
        assert_eq!(section.as_str(), "status-sync");
        let listed = parse("towline approve a --list").expect("a command");
        assert!(matches!(listed, Command::Remote(Remote::Approve { list: true, .. })), "{listed:?}");
        let kind = |line: &str| parse(line).expect_err("no command").kind();
        assert_eq!(kind("towline approve"), ErrorKind::MissingRequiredArgument);
        assert_eq!(kind("towline approve a b --list"), ErrorKind::ArgumentConflict);
        assert_eq!(kind("towline approve a --yes --list"), ErrorKind::ArgumentConflict);
        assert_eq!(kind("towline approve Data_Bases"), ErrorKind::ValueValidation);
        assert_eq!(kind("towline approve a --admin https://edge:1"), ErrorKind::ValueValidation);
    }

    #[test]
    fn the_list_of_commands_says_what_each_does() {
        let help = command_line(JOBS).render_help().to_string();
        for (name, about) in [
            ("run", "Run every section of a configuration until a signal ends it"),
            ("lease", "Renew one lease while a pod is ready"),
            ("status-sync", "Run status sync alone, configured by the environment"),
            ("release", "Take a finalizer off that no section of a configuration owns any more"),
            ("explain", "Show what is known of an object of a section, or of syncsets on a cluster"),
            ("resync", "Compare clusters with what syncsets want, or send Helm releases again, now"),
        ] {
            let found = help.lines().any(|line| line.trim_start().starts_with(name) && line.contains(about));
            assert!(found, "{name}: {about} is not in\n{help}");
        }
    }

    #[test]
    fn a_command_of_a_job_is_given_with_its_arguments() {
        for (line, expected) in [
            ("towline lease -lease-name add-on", "lease"),
            ("towline status-sync --remove-triggers", "status-sync"),
            ("towline release a.toml --finalizer example.com/edge --list", "release"),
        ] {
            let Ok(Given::OfJob(command, ..)) = super::parse(line.split(' ').map(OsString::from), JOBS) else {
                panic!("{line}")
            };
            assert_eq!(command.arguments.get_name(), expected);
        }
    }

    #[test]
    fn what_is_meant_for_a_section_is_told_apart_from_a_jobs_command() {
        for (line, object) in
            [("towline resync inventory", None), ("towline resync inventory default/web", Some("default/web"))]
        {
            let Ok(Command::Remote(Remote::Resync(ResyncCommand { section, name, .. }))) = parse(line) else {
                panic!("{line}")
            };
            assert_eq!((section.as_str(), name.as_deref()), ("inventory", object));
        }
        let Ok(Command::Remote(Remote::Explain(ExplainCommand { section, name, .. }))) =
            parse("towline explain inventory default/web")
        else {
            panic!("another command")
        };
        assert_eq!((section.as_str(), name.as_str()), ("inventory", "default/web"));
        for line in [
            "towline explain databases hu/orders-0",
            "towline explain -o json databases hu/orders-0",
            "towline explain --output=json databases hu/orders-0",
            "towline explain databases orders --admin http://edge:1",
        ] {
            let found = parse(line);
            assert!(matches!(found, Ok(Command::Remote(Remote::Explain { .. }))), "{line}: {found:?}");
        }
        let syncset = ["towline", "explain", "syncsets", "SyncSet team-a/base"].map(OsString::from);
        let Ok(Given::Own(Command::Remote(Remote::Explain(ExplainCommand { name, .. })))) = super::parse(syncset, JOBS)
        else {
            panic!("it is held by a section, and wanted on no cluster")
        };
        assert_eq!(name, "SyncSet team-a/base");
        for line in [
            "towline resync foo/inventory",
            "towline explain foo/c1 ConfigMap/default/site",
            "towline explain c1 ConfigMap/default/site -n foo",
            "towline explain --namespace=foo c1 ConfigMap/default/site",
        ] {
            let given = super::parse(line.split(' ').map(OsString::from), JOBS).expect("a command");
            assert!(matches!(given, Given::OfJob(..)), "{line}");
        }
    }

    #[test]
    fn usages_have_the_names_that_are_typed() {
        for (line, usage) in [
            ("towline explain inventory --help", "Usage: towline explain [OPTIONS] <SECTION> <NAME>"),
            ("towline explain inventory", "Usage: towline explain [OPTIONS] <SECTION> <NAME>"),
            ("towline resync inventory --help", "Usage: towline resync [OPTIONS] <SECTION> [NAME]"),
            ("towline resync inventory --fly", "Usage: towline resync [OPTIONS] <SECTION> [NAME]"),
        ] {
            let told = parse(line).expect_err("no command").to_string();
            assert!(told.contains(usage) && !told.contains(OF_SECTION), "{line}: {told}");
        }
    }

    #[test]
    fn commands_that_releases_have_too_say_so() {
        for name in ["explain", "resync"] {
            let help = command_line(JOBS).find_subcommand_mut(name).expect("a command").render_long_help().to_string();
            assert!(help.contains(&format!("towline {name} inventory")), "{help}");
        }
    }

    #[test]
    fn what_has_an_answer_has_one_option_for_its_format() {
        // These run until a signal, print what other programs read as it is, or have commands of their own.
        let without = ["run", "rbac", "completion", "man", "lease", "status-sync", "inventory", "hub", "rollout"];
        let mut left: Vec<clap::Command> = command_line(JOBS).get_subcommands().cloned().collect();
        while let Some(command) = left.pop() {
            left.extend(command.get_subcommands().cloned());
            let name = command.get_name();
            let output = command.get_arguments().find(|argument| argument.get_id() == "output");
            assert_eq!(output.is_none(), without.contains(&name), "{name}");
            let Some(output) = output else { continue };
            let formats = output.get_possible_values();
            let formats: Vec<_> = formats.iter().map(clap::builder::PossibleValue::get_name).collect();
            assert_eq!(formats, ["table", "wide", "json", "yaml", "name"], "{name}");
        }
    }

    #[test]
    fn usage_errors_end_with_code_2() {
        assert_eq!(parse("towline fly").expect_err("no command").exit_code(), 2);
        let without = parse("towline check").expect_err("no file").to_string();
        assert!(without.contains("Usage: towline check --config <FILE>"), "{without}");
        assert_eq!(parse("towline --version").expect_err("a version").exit_code(), 0);
        assert_eq!(ExitCode::from(Exit::Usage), ExitCode::from(2));
    }
}
