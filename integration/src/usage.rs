//! What a process has used, as the kernel counts it.

use std::collections::BTreeMap;
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
    /// How often its threads gave their core up: what waking up costs, where there is little else to do.
    pub switches: Switches,
}

/// How often each living thread of a process gave its core up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Switches(BTreeMap<String, u64>);

impl Switches {
    /// How often one did since an earlier time. What is not in it: threads that have ended since.
    pub fn since(&self, earlier: &Self) -> u64 {
        let before = |thread: &String| earlier.0.get(thread).copied().unwrap_or_default();
        self.0.iter().map(|(thread, count)| count.saturating_sub(before(thread))).sum()
    }
}

impl Usage {
    /// What this process has used.
    pub fn own() -> Result<Self, Error> {
        Self::of(rustix::process::getpid().as_raw_nonzero().get())
    }

    pub(crate) fn of(pid: i32) -> Result<Self, Error> {
        let status = read(pid, "status")?;
        let rss_peak = peak_kibibytes(&status).ok_or_else(|| unreadable("/proc/…/status", &status))? * 1024;
        let own = kibibytes(&status, "RssAnon:").ok_or_else(|| unreadable("/proc/…/status", &status))? * 1024;
        Ok(Self { cpu: cpu(pid)?, rss_peak, anonymous: own, switches: switches(pid)? })
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

    /// Memory of a process and of its living children, in bytes. What several of them map counts once (`Pss`).
    pub(crate) fn memory_with_children(pid: i32) -> Result<u64, Error> {
        let processes = fs::read_dir("/proc").map_err(Error::file("list", "/proc"))?;
        let is_child = |path: &PathBuf| {
            let stat = fs::read_to_string(path.join("stat")).ok();
            stat.and_then(|stat| Ticks::of(&stat)).is_some_and(|ticks| ticks.parent == pid)
        };
        let children = processes.flatten().map(|process| process.path()).filter(is_child);
        // One that ends meanwhile holds no memory.
        let shares = children.filter_map(|child| fs::read_to_string(child.join("smaps_rollup")).ok());
        let own = read(pid, "smaps_rollup")?;
        let all = shares.chain([own]).filter_map(|rollup| kibibytes(&rollup, "Pss:"));
        Ok(all.sum::<u64>() * 1024)
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

/// The kernel counts them for each thread.
fn switches(pid: i32) -> Result<Switches, Error> {
    let path = proc_file(pid, "task");
    let threads = fs::read_dir(&path).map_err(Error::file("read", &path))?;
    // A thread that ends meanwhile is none of the living.
    let counts = threads.flatten().filter_map(|thread| {
        let status = fs::read_to_string(thread.path().join("status")).ok()?;
        Some((thread.file_name().to_string_lossy().into_owned(), thread_switches(&status)?))
    });
    Ok(Switches(counts.collect()))
}

fn thread_switches(status: &str) -> Option<u64> {
    let count = |name: &str| -> Option<u64> {
        status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?.trim().parse().ok()
    };
    Some(count("voluntary_ctxt_switches")? + count("nonvoluntary_ctxt_switches")?)
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

fn peak_kibibytes(status: &str) -> Option<u64> {
    kibibytes(status, "VmHWM:")
}

fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{Switches, Ticks, peak_kibibytes, thread_switches};

    #[test]
    fn a_name_with_blanks_and_parentheses_shifts_no_field() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 1 2 3 4 700 11 5 6 20 0 9 0 1000 1 2";
        assert_eq!(Ticks::of(stat), Some(Ticks { parent: 1, own: 711, waited_for: 11 }));
    }

    #[test]
    fn the_peak_is_read_and_not_the_present_size() {
        assert_eq!(peak_kibibytes("Name:\tx\nVmHWM:\t   5120 kB\nVmRSS:\t    1024 kB\n"), Some(5120));
    }

    #[test]
    fn a_thread_that_has_ended_takes_nothing_from_what_others_did_since() {
        let of = |counts: &[(&str, u64)]| {
            Switches(counts.iter().map(|(thread, count)| ((*thread).to_owned(), *count)).collect())
        };
        assert_eq!(of(&[("1", 12), ("3", 5)]).since(&of(&[("1", 10), ("2", 400)])), 7);
    }

    #[test]
    fn switches_of_both_kinds_count() {
        assert_eq!(thread_switches("x\nvoluntary_ctxt_switches:\t40\nnonvoluntary_ctxt_switches:\t2\n"), Some(42));
    }
}
