//! The command line: what `towline` can be told, and the commands that only ask a running daemon.
//!
//! `run`, `lease` and `check` are carried out by the application; [`Remote`] carries itself out against the admin server.

mod client;
mod lease;
mod table;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use http::Method;
use serde_json::Value;

use crate::config::{InvalidName, SectionName};
pub use client::{AdminUrl, Error, InvalidUrl};
pub use lease::LeaseCommand;

/// The command line of `towline`.
#[derive(Debug, Parser)]
#[command(name = "towline", version, about = "Keeps many Kubernetes clusters and a hub in step")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What `towline` does.
#[derive(Debug, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Run every section of a configuration until a signal ends it
    Run {
        /// Configuration file
        #[arg(long, value_name = "FILE", env = "TOWLINE_CONFIG")]
        config: PathBuf,
    },
    /// Tell all faults of a configuration
    Check {
        /// Configuration file
        #[arg(long, value_name = "FILE", env = "TOWLINE_CONFIG")]
        config: PathBuf,
        /// Also tell which clusters can't be reached, and which permissions are missing
        #[arg(long)]
        connect: bool,
    },
    /// Run status sync alone, told by the variables `DATABASE_URL`, `HOH_STATUS_SYNC_INTERVAL`, `WATCH_NAMESPACE`
    /// and `POD_NAMESPACE`
    StatusSync,
    /// Renew one lease while a pod is ready, as a side-car told by flags and the variables `WATCH_NAMESPACE`, `POD_NAME`
    /// and `POD_NAMESPACE`
    Lease(LeaseCommand),
    /// A command for a running daemon.
    #[command(flatten)]
    Remote(Remote),
}

impl Cli {
    /// The command line of this process. A wrong one ends it, with code 2.
    pub fn from_process() -> Self {
        Self::parse_from(lease::with_two_dashes(std::env::args_os()))
    }
}

/// A command for a running daemon, sent to its admin server.
#[derive(Debug, PartialEq, Eq, Subcommand)]
pub enum Remote {
    /// Show the sections and the actor tree of a running daemon
    Status {
        /// Admin server of the daemon
        #[arg(long, value_name = "URL", default_value_t)]
        admin: AdminUrl,
        /// Form of the answer
        #[arg(short, long, value_name = "FORMAT", default_value = "table")]
        output: Output,
    },
    /// Let a section go on with what it holds for someone to look at, such as a mass deletion
    Approve {
        /// Section of the running daemon
        #[arg(value_parser = section_name)]
        section: SectionName,
        /// Where the daemon is and what opens it.
        #[command(flatten)]
        access: Access,
    },
    /// End a section for good: finalizers are released on the remote, local objects stay without marks
    Detach {
        /// Section of the running daemon
        section: SectionName,
        /// The local cluster will never answer again; release the remote without it
        #[arg(long)]
        local_gone: bool,
        /// Where the daemon is and what opens it.
        #[command(flatten)]
        access: Access,
    },
}

/// A section by its name, or by its key in the file (`status_sync`) where there is one of the kind.
fn section_name(text: &str) -> Result<SectionName, InvalidName> {
    let own_key = text == "status_sync";
    if own_key { "status-sync".parse() } else { text.parse() }
}

/// Where the daemon is, and what opens it for changes.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct Access {
    /// Admin server of the daemon
    #[arg(long, value_name = "URL", default_value_t)]
    pub admin: AdminUrl,
    /// File with the admin token; not needed on the daemon's own machine
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// Form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Lines for people
    Table,
    /// The daemon's document
    Json,
}

impl Remote {
    /// Asks the daemon and writes its answer. Needs a tokio runtime.
    pub async fn execute(&self, out: &mut impl Write) -> Result<(), Error> {
        let text = match self {
            Self::Status { admin, output } => {
                let status = client::ask(admin, &Method::GET, "/status", None).await?;
                match output {
                    Output::Table => table::status(&status),
                    Output::Json => indented(&status),
                }
            }
            Self::Approve { section, access } => change(access, &format!("/approve/{section}")).await?,
            Self::Detach { section, local_gone, access } => {
                change(access, &format!("/detach/{section}?local_gone={local_gone}")).await?
            }
        };
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Error::Write)
    }
}

async fn change(access: &Access, path: &str) -> Result<String, Error> {
    let token_file = access.token_file.as_deref();
    let answer = client::ask(&access.admin, &Method::POST, path, token_file).await?;
    Ok(indented(&answer))
}

fn indented(document: &Value) -> String {
    format!("{document:#}\n")
}

/// How the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Done.
    Done,
    /// Failed at run time.
    Failed,
    /// The command line or the configuration is wrong; clap ends the process so by itself.
    Usage,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Done => Self::SUCCESS,
            Exit::Failed => Self::FAILURE,
            Exit::Usage => Self::from(2),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use clap::error::ErrorKind;

    use super::*;

    fn parse(line: &str) -> Result<Command, clap::Error> {
        Cli::try_parse_from(line.split(' ')).map(|cli| cli.command)
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn commands_of_the_daemon_itself_take_a_file() {
        assert_eq!(parse("towline run --config a.toml").expect("a command"), Command::Run { config: "a.toml".into() });
        assert_eq!(
            parse("towline check --config a.toml --connect").expect("a command"),
            Command::Check { config: "a.toml".into(), connect: true }
        );
        let config = Cli::command()
            .find_subcommand("run")
            .and_then(|run| run.get_arguments().find(|argument| argument.get_id() == "config").cloned())
            .expect("an argument");
        assert_eq!(config.get_env(), Some("TOWLINE_CONFIG".as_ref()));
    }

    #[test]
    fn status_asks_the_local_daemon_unless_told_otherwise() {
        let status =
            |admin: &str, output| Command::Remote(Remote::Status { admin: admin.parse().expect("a URL"), output });
        assert_eq!(parse("towline status").expect("a command"), status("http://127.0.0.1:8384", Output::Table));
        assert_eq!(
            parse("towline status --admin http://edge:1 -o json").expect("a command"),
            status("http://edge:1", Output::Json)
        );
    }

    #[test]
    fn changes_name_a_section() {
        assert_eq!(
            parse("towline detach databases --local-gone --token-file t").expect("a command"),
            Command::Remote(Remote::Detach {
                section: "databases".parse().expect("a name"),
                local_gone: true,
                access: Access { admin: AdminUrl::default(), token_file: Some("t".into()) },
            })
        );
        let Command::Remote(Remote::Approve { section, .. }) = parse("towline approve status_sync").expect("a command")
        else {
            panic!("another command");
        };
        assert_eq!(section.as_str(), "status-sync");
        let kind = |line: &str| parse(line).expect_err("no command").kind();
        assert_eq!(kind("towline approve"), ErrorKind::MissingRequiredArgument);
        assert_eq!(kind("towline approve Data_Bases"), ErrorKind::ValueValidation);
        assert_eq!(kind("towline approve a --admin https://edge:1"), ErrorKind::ValueValidation);
    }

    #[test]
    fn usage_errors_end_with_code_2() {
        assert_eq!(parse("towline fly").expect_err("no command").exit_code(), 2);
        assert_eq!(parse("towline --version").expect_err("a version").exit_code(), 0);
        assert_eq!(ExitCode::from(Exit::Usage), ExitCode::from(2));
    }
}
