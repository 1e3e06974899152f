//! What commands share: the configuration file that they take, and how the process ends.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The configuration file of a command.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct ConfigFile {
    /// Configuration file
    #[arg(value_name = "FILE", required_unless_present = "config")]
    file: Option<PathBuf>,
    /// The same as an option, where FILE is not given
    #[arg(long, value_name = "FILE", env = "TOWLINE_CONFIG")]
    config: Option<PathBuf>,
}

impl ConfigFile {
    /// The file: the one of the command line goes over the variable's.
    pub fn path(&self) -> &Path {
        // One of them is there, or the command line was refused.
        self.file.as_deref().or(self.config.as_deref()).unwrap_or(Path::new(""))
    }
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
