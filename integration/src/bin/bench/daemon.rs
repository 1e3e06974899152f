//! Whose work is measured: Towline's, or that of the controller that it is compared with.

use std::process::ExitStatus;
use std::time::{Duration, Instant};

use integration::{Error, Reference, Towline, Usage, eventually, users};
use serde::Serialize;
use serde_json::Value;

use crate::world::{LONGEST_PHASE, SECTION};

/// A program that does the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Program {
    /// The daemon.
    Towline,
    /// The Go controller in `integration/reference`.
    Go,
}

impl Program {
    /// As the tables have it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Towline => "towline",
            Self::Go => "go",
        }
    }

    /// As whom its requests are counted.
    pub(crate) fn user(self) -> &'static str {
        match self {
            Self::Towline => users::TOWLINE,
            Self::Go => users::REFERENCE,
        }
    }
}

/// One of them, running.
pub(crate) enum Daemon {
    /// See [`Program::Towline`].
    Towline(Box<Towline>),
    /// See [`Program::Go`].
    Go(Box<Reference>),
}

impl Daemon {
    /// Which it is.
    pub(crate) fn program(&self) -> Program {
        match self {
            Self::Towline(_) => Program::Towline,
            Self::Go(_) => Program::Go,
        }
    }

    /// Waits until its first lists have ended.
    pub(crate) async fn wait_ready(&self) -> Result<(), Error> {
        match self {
            Self::Towline(towline) => towline.wait_ready(LONGEST_PHASE).await,
            Self::Go(reference) => reference.wait_ready(LONGEST_PHASE).await,
        }
    }

    /// Waits until it says itself that all pairs are in step. The Go controller has no such report: it is in step when
    /// it is at rest, and what it has done is compared afterwards, as it is for both.
    pub(crate) async fn wait_in_step(&self, objects: usize) -> Result<(), Error> {
        let Self::Towline(towline) = self else { return Ok(()) };
        eventually(format!("{objects} objects to be in step"), LONGEST_PHASE, async || {
            let report = towline.admin().section(SECTION).await.map_err(|error| error.to_string())?;
            let in_step = report.pointer("/objects/in_step").and_then(Value::as_u64);
            if in_step == u64::try_from(objects).ok() { Ok(()) } else { Err(report.to_string()) }
        })
        .await
    }

    /// Waits until it does nothing any more: what follows a phase belongs to it.
    pub(crate) async fn wait_at_rest(&self) -> Result<(), Error> {
        /// In looks of 20 ms. The kernel counts CPU time in steps of 10 ms, and idling takes less than that in this time.
        const QUIET_LOOKS: u32 = 10;
        let (mut last, mut quiet) = (self.usage()?.cpu, 0);
        eventually(format!("{} to be at rest", self.program().as_str()), LONGEST_PHASE, async || {
            let now = self.usage().map_err(|error| error.to_string())?.cpu;
            quiet = if now == last { quiet + 1 } else { 0 };
            last = now;
            if quiet >= QUIET_LOOKS { Ok(()) } else { Err(format!("{now:?} of CPU time")) }
        })
        .await
    }

    /// What it has used since it was started last.
    pub(crate) fn usage(&self) -> Result<Usage, Error> {
        match self {
            Self::Towline(towline) => towline.usage(),
            Self::Go(reference) => reference.usage(),
        }
    }

    /// Begins its peak of memory anew.
    pub(crate) fn reset_rss_peak(&self) -> Result<(), Error> {
        match self {
            Self::Towline(towline) => towline.reset_rss_peak(),
            Self::Go(reference) => reference.reset_rss_peak(),
        }
    }

    /// Asks it to end, and waits for that.
    pub(crate) async fn terminate(&self) -> Result<ExitStatus, Error> {
        match self {
            Self::Towline(towline) => towline.terminate(LONGEST_PHASE).await,
            Self::Go(reference) => reference.terminate(LONGEST_PHASE).await,
        }
    }

    /// Starts it again, and waits until it is ready; how long that took.
    pub(crate) async fn start_again(&mut self) -> Result<Duration, Error> {
        let started = Instant::now();
        match self {
            Self::Towline(towline) => towline.start_again().await?,
            Self::Go(reference) => reference.start_again().await?,
        }
        self.wait_ready().await?;
        Ok(started.elapsed())
    }
}
