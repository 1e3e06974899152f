//! Commands of single jobs, and what all commands share: the configuration file and the exit codes.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{ArgMatches, Args, FromArgMatches};
use futures::future::BoxFuture;
use http::HeaderMap;
use http::header::SERVER;

use super::{Config, JobList};
use crate::config::Error;
use crate::http::RELEASE;

/// A command that belongs to one job: `towline lease`.
pub struct JobCommand {
    /// Its name, help and arguments.
    pub arguments: clap::Command,
    /// Whether its long options may also have one dash, as in Go's `flag` package.
    pub takes_single_dashes: bool,
    execute: Box<Execute>,
}

type Execute = dyn Fn(&ArgMatches, &JobList) -> Result<Order, Error> + Send + Sync;

/// The result of parsing a command.
pub enum Order {
    /// Run the daemon with this configuration.
    Run(Box<Config>),
    /// Run a task that ends by itself.
    Task(BoxFuture<'static, Exit>),
}

impl JobCommand {
    /// A command with the arguments of `A`; `about` is its line in the list of commands.
    pub fn new<A: Args + FromArgMatches>(
        name: &'static str,
        about: &'static str,
        execute: impl Fn(A, &JobList) -> Result<Order, Error> + Send + Sync + 'static,
    ) -> Self {
        Self {
            // The documentation of `A` would overwrite a text that is set before.
            arguments: A::augment_args(clap::Command::new(name)).about(about).long_about(None),
            takes_single_dashes: false,
            execute: Box::new(move |matches, jobs| {
                // The command that `A` defines has parsed the arguments.
                execute(A::from_arg_matches(matches).unwrap_or_else(|error| error.exit()), jobs)
            }),
        }
    }

    /// Adds a text below the help.
    #[must_use]
    pub fn after_help(mut self, text: &'static str) -> Self {
        self.arguments = self.arguments.after_help(text);
        self
    }

    #[must_use]
    pub fn with_single_dashes(mut self) -> Self {
        self.takes_single_dashes = true;
        self
    }

    /// Executes the command with its parsed arguments.
    pub fn execute(&self, matches: &ArgMatches, jobs: &JobList) -> Result<Order, Error> {
        (self.execute)(matches, jobs)
    }

    /// The command line with two dashes, where this command accepts one. Arguments that are no options, such as negative numbers
    /// and single letters, stay as they are.
    pub fn with_two_dashes(&self, mut arguments: Vec<OsString>) -> Vec<OsString> {
        let is_this = arguments.get(1).is_some_and(|command| command == self.arguments.get_name());
        if self.takes_single_dashes && is_this {
            for argument in arguments.iter_mut().skip(2) {
                let flag = argument.to_str().and_then(|text| text.strip_prefix('-'));
                let is_long =
                    |name: &&str| name.len() > 1 && name.starts_with(|first: char| first.is_ascii_lowercase());
                if let Some(name) = flag.filter(is_long) {
                    *argument = OsString::from(format!("--{name}"));
                }
            }
        }
        arguments
    }
}

/// The configuration file of a command.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct ConfigFile {
    /// Configuration file; `--config` may also be left out
    #[arg(long, value_name = "FILE", env = "TOWLINE_CONFIG", required_unless_present = "file")]
    config: Option<PathBuf>,
    /// The file without `--config`.
    #[arg(value_name = "FILE", hide = true)]
    file: Option<PathBuf>,
}

impl ConfigFile {
    /// The file. The command line takes precedence over the variable.
    pub fn path(&self) -> &Path {
        // The parser requires one of them.
        self.file.as_deref().or(self.config.as_deref()).unwrap_or(Path::new(""))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Done,
    Failed,
    /// With `--exit-code`: there is an answer, and not a good one.
    NotWell,
    /// The command line or the configuration is wrong; clap ends the process so by itself.
    Usage,
    /// By SIGINT.
    Interrupted,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Done => Self::SUCCESS,
            Exit::Failed => Self::FAILURE,
            Exit::Usage => Self::from(2),
            Exit::NotWell => Self::from(3),
            Exit::Interrupted => Self::from(130),
        }
    }
}

/// Prints to standard error why the process ends.
#[expect(clippy::print_stderr, reason = "the process has to report why it ends")]
pub fn complain(text: &str) {
    eprintln!("towline: {text}");
}

/// Whether somebody was warned of a server of another release, or is not to be.
static WARNED: AtomicBool = AtomicBool::new(false);

/// Where nobody wants a warning.
pub fn compare_no_releases() {
    WARNED.store(true, Ordering::Relaxed);
}

/// Warns once if a server is of another minor release than this program.
pub fn compare_releases(headers: &HeaderMap) {
    let server = headers.get(SERVER).and_then(|server| server.to_str().ok());
    if let Some(warning) = server.and_then(|server| of_another_release(server, RELEASE))
        && !WARNED.swap(true, Ordering::Relaxed)
    {
        complain(&warning);
    }
}

/// Something without our name may be a proxy, and is no reason to warn.
fn of_another_release(server: &str, own: &str) -> Option<String> {
    let (_, own) = own.split_once('/')?;
    let theirs = server.strip_prefix("towline/").filter(|theirs| *theirs != own)?;
    Some(format!(
        "warning: the server is towline {theirs}, this command {own}: one may not know what the other one does"
    ))
}

/// Prints to standard error what is neither an answer nor a complaint.
#[expect(clippy::print_stderr, reason = "standard output is for answers")]
pub fn remark(text: &str) {
    eprintln!("{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_minor_release_is_warned_of_and_nothing_else() {
        let warned = |server: &str| of_another_release(server, "towline/1.4");
        assert_eq!((warned("towline/1.4"), warned("nginx"), warned("towline")), (None, None, None));
        for other in ["1.3", "1.40", "2.4"] {
            let warning = warned(&format!("towline/{other}")).expect("a warning");
            assert!(warning.contains(&format!("towline {other}, this command 1.4")), "{warning}");
        }
        assert!(RELEASE.starts_with("towline/") && RELEASE.matches('.').count() == 1, "{RELEASE}");
    }
}
