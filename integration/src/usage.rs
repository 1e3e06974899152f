//! What a process has used, as the kernel counts it.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;

use crate::Error;

/// CPU time and memory of one process, since it was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// CPU time in user and kernel mode, of all its threads, those that have ended included.
    pub cpu: Duration,
    /// The most memory it ever held at once, in bytes (`VmHWM`).
    pub rss_peak: u64,
    /// What it holds now that is its own alone, in bytes (`RssAnon`): not the pages of its program file, of which the kernel
    /// maps as many as it has cached around those that are used.
    pub anonymous: u64,
}

impl Usage {
    pub(crate) fn of(pid: i32) -> Result<Self, Error> {
        let status = read(pid, "status")?;
        let bytes = |name| {
            let kibibytes = kibibytes(&status, name).ok_or_else(|| unreadable("/proc/…/status", &status));
            kibibytes.map(|kibibytes| kibibytes * 1024)
        };
        Ok(Self { cpu: cpu(pid)?, rss_peak: bytes("VmHWM:")?, anonymous: bytes("RssAnon:")? })
    }

    /// CPU time of a process and of its children, be they alive or waited for.
    pub(crate) fn cpu_with_children(pid: i32) -> Result<Duration, Error> {
        let parent = read(pid, "stat")?;
        let own = Ticks::of(&parent).ok_or_else(|| unreadable("/proc/…/stat", &parent))?;
        let processes = fs::read_dir("/proc").map_err(Error::file("list", "/proc"))?;
        // One that ends meanwhile is among those that were waited for.
        let stats = processes.flatten().filter_map(|process| fs::read_to_string(process.path().join("stat")).ok());
        let children = stats.filter_map(|stat| Ticks::of(&stat)).filter(|ticks| ticks.parent == pid);
        Ok(duration(own.own + own.waited_for + children.map(|ticks| ticks.own).sum::<u64>()))
    }

    pub(crate) fn reset_peak(pid: i32) -> Result<(), Error> {
        let path = proc_file(pid, "clear_refs");
        // 5: "reset the peak resident set size", proc(5).
        fs::write(&path, "5").map_err(Error::file("write", &path))
    }
}

/// From the process's own clock: `/proc/…/stat` counts in steps of 10 ms, which is what an idle process takes in a minute.
fn cpu(pid: i32) -> Result<Duration, Error> {
    let now = clock_getcpuclockid(Pid::from_raw(pid)).and_then(ClockId::now);
    now.map(Duration::from).map_err(|error| unreadable("the clock of a process", error.desc()))
}

fn proc_file(pid: i32, name: &str) -> PathBuf {
    PathBuf::from("/proc").join(pid.to_string()).join(name)
}

fn read(pid: i32, name: &str) -> Result<String, Error> {
    let path = proc_file(pid, name);
    fs::read_to_string(&path).map_err(Error::file("read", &path))
}

fn unreadable(what: &str, content: &str) -> Error {
    Error::Unreadable { what: what.to_owned(), detail: content.to_owned() }
}

/// What `stat` tells of CPU time, in ticks.
#[derive(Debug, PartialEq, Eq)]
struct Ticks {
    parent: i32,
    own: u64,
    /// Of children that have ended, and of theirs.
    waited_for: u64,
}

impl Ticks {
    /// Fields 4 and 14 to 17, counted behind the name in parentheses, which may hold anything.
    fn of(stat: &str) -> Option<Self> {
        let (_, fields) = stat.rsplit_once(')')?;
        let mut fields = fields.split_whitespace().skip(1);
        let parent = fields.next()?.parse().ok()?;
        let mut times = fields.skip(9).map(|field| field.parse::<u64>().ok());
        let mut next = || times.next()?;
        let (user, system, children_user, children_system) = (next()?, next()?, next()?, next()?);
        Some(Self { parent, own: user + system, waited_for: children_user + children_system })
    }
}

fn duration(ticks: u64) -> Duration {
    let ticks_per_second = rustix::param::clock_ticks_per_second().max(1);
    Duration::from_nanos(ticks.saturating_mul(1_000_000_000) / ticks_per_second)
}

fn kibibytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{Ticks, kibibytes};

    #[test]
    fn a_name_with_blanks_and_parentheses_shifts_no_field() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 1 2 3 4 700 11 5 6 20 0 9 0 1000 1 2";
        assert_eq!(Ticks::of(stat), Some(Ticks { parent: 1, own: 711, waited_for: 11 }));
    }

    #[test]
    fn the_peak_is_read_and_not_the_present_size() {
        assert_eq!(kibibytes("Name:\tx\nVmHWM:\t   5120 kB\nVmRSS:\t    1024 kB\n", "VmHWM:"), Some(5120));
    }
}
