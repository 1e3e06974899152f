//! A server that is stopped in the middle of whatever it does.

use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use super::{LONGEST_START, Postgres};
use crate::{Error, eventually};

/// A server that is stopped. It goes on when this is dropped.
#[derive(Debug)]
pub struct Frozen {
    processes: Vec<Pid>,
}

impl Postgres {
    /// SIGSTOP to the server and everything that serves a connection: connections stay open, new ones are accepted by the kernel, and
    /// nothing is answered.
    pub async fn freeze(&self) -> Result<Frozen, Error> {
        let process = self.process.lock().clone();
        let process = process.ok_or_else(|| Error::NotRunning { process: "postgres".to_owned() })?;
        process.check()?;
        // The one that makes the others comes first. Its id stays ours, since nobody waits for its end before `frozen` is dropped.
        let mut frozen = Frozen { processes: Vec::new() };
        frozen.stop(process.id())?;
        let data = fs::canonicalize(self.data()).map_err(Error::file("find", &self.data()))?;
        eventually("all processes of postgres to be stopped", LONGEST_START, async || {
            let running: Vec<i32> = processes_in(&data).filter(|id| !is_stopped(*id)).collect();
            for id in &running {
                frozen.stop(*id).map_err(|error| error.to_string())?;
            }
            if running.is_empty() { Ok(()) } else { Err(format!("{running:?} were running")) }
        })
        .await?;
        Ok(frozen)
    }
}

impl Postgres {
    /// The same for the processes of this server that serve these sessions: nobody else notices.
    pub fn freeze_sessions(&self, processes: &[i32]) -> Result<Frozen, Error> {
        let data = fs::canonicalize(self.data()).map_err(Error::file("find", &self.data()))?;
        let own: Vec<i32> = processes_in(&data).collect();
        let mut frozen = Frozen { processes: Vec::new() };
        for id in processes.iter().filter(|id| own.contains(id)) {
            frozen.stop(*id)?;
        }
        Ok(frozen)
    }
}

impl Frozen {
    fn stop(&mut self, id: i32) -> Result<(), Error> {
        let failed = |source: rustix::io::Errno| Error::Process {
            action: "stop",
            process: "postgres".to_owned(),
            source: source.into(),
        };
        let Some(pid) = Pid::from_raw(id) else { return Ok(()) };
        match kill_process(pid, Signal::STOP) {
            Ok(()) => self.processes.push(pid),
            // It has just ended.
            Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(failed(error)),
        }
        Ok(())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        for pid in &self.processes {
            // One that was killed meanwhile doesn't mind.
            let _ = kill_process(*pid, Signal::CONT);
        }
    }
}

/// The processes with this working directory.
fn processes_in(folder: &Path) -> impl Iterator<Item = i32> {
    let is_there = move |entry: &fs::DirEntry| fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == folder);
    let found = fs::read_dir("/proc").into_iter().flatten().flatten().filter(is_there);
    found.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn is_stopped(id: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    // The state follows the name, which is in parentheses. A process that has ended is as good as stopped.
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['T', 't', 'Z', 'X']))
}
