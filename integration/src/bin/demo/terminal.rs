//! The commands of the story, typed into a shell as they stand, and what they print.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use integration::{eventually, programs};
use tokio::process::Command;
use tokio::time::timeout;

use crate::cluster::LIMIT;
use crate::error::Error;

/// No command of the story takes a tenth of this.
const LONGEST_COMMAND: Duration = Duration::from_mins(1);

/// A shell at the root of the repository, and what was typed and seen there since the last [`Terminal::take`].
pub(crate) struct Terminal {
    path: OsString,
    kubeconfig: PathBuf,
    lines: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A command, in one line or several.
    Typed(String),
    /// All that it printed.
    Printed(String),
}

impl Terminal {
    /// One in which `towline`, `kubectl` and `helm` are known, and a context for each cluster.
    pub(crate) async fn new(kubeconfig: &Path) -> Result<Self, Error> {
        let (towline, kubectl) = (programs::towline().await?, programs::control_plane("kubectl").await?);
        let mut directories = vec![directory(&towline)?, directory(&kubectl)?, directory(&programs::helm().await?)?];
        directories.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
        let path = env::join_paths(directories).map_err(|error| Error::wrong("PATH", error.to_string()))?;
        Ok(Self { path, kubeconfig: kubeconfig.to_owned(), lines: Vec::new() })
    }

    /// Types a command, which must succeed, and returns what it printed.
    pub(crate) async fn types(&mut self, command: &str) -> Result<String, Error> {
        let printed = self.run(command).await?;
        self.show(command, &printed);
        Ok(printed)
    }

    /// Types a command, which must print this part.
    pub(crate) async fn sees(&mut self, command: &str, part: &str) -> Result<(), Error> {
        let printed = self.types(command).await?;
        if printed.contains(part) {
            return Ok(());
        }
        Err(Error::wrong(format!("what `{command}` prints"), format!("{part} is not in it: {printed}")))
    }

    /// Types a command again and again until it prints this part, and shows the last time: what it printed, and how long it took.
    pub(crate) async fn sees_at_last(&mut self, command: &str, part: &str) -> Result<(String, Duration), Error> {
        let (printed, took) = eventually(format!("`{command}` to print {part}"), LIMIT, async || {
            let began = Instant::now();
            let printed = self.run(command).await.map_err(|error| error.chain())?;
            if printed.contains(part) { Ok((printed, began.elapsed())) } else { Err(printed) }
        })
        .await?;
        self.show(command, &printed);
        Ok((printed, took))
    }

    /// What is there to show since the last time.
    pub(crate) fn take(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.lines)
    }

    fn show(&mut self, command: &str, printed: &str) {
        self.lines.push(Entry::Typed(command.to_owned()));
        let printed = printed.trim_end();
        if !printed.is_empty() {
            self.lines.push(Entry::Printed(printed.to_owned()));
        }
    }

    async fn run(&self, command: &str) -> Result<String, Error> {
        let shell = Command::new("bash")
            .args(["-o", "pipefail", "-c", command])
            .stdin(Stdio::null())
            .env("PATH", &self.path)
            .env("KUBECONFIG", &self.kubeconfig)
            // Everything is on this machine.
            .envs([("NO_PROXY", "127.0.0.1"), ("no_proxy", "127.0.0.1")])
            .kill_on_drop(true)
            .output();
        let what = || format!("`{command}`");
        let late = |_| Error::wrong(what(), format!("has not ended after {} s", LONGEST_COMMAND.as_secs()));
        let output = timeout(LONGEST_COMMAND, shell).await.map_err(late)?.map_err(Error::file("run", "bash"))?;
        let [printed, complaint] =
            [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        if output.status.success() {
            return Ok(printed);
        }
        Err(Error::wrong(what(), format!("{}: {printed}{}", output.status, complaint.trim_end())))
    }
}

pub(crate) fn directory(program: &Path) -> Result<PathBuf, Error> {
    let path = program.parent().unwrap_or(program);
    std::path::absolute(path).map_err(Error::file("find", path))
}
