//! Metrics of the process itself, read from `/proc` at each scrape, with the names that all Prometheus client libraries use.

use std::fmt::Write;
use std::fs;
use std::time::Duration;

use super::metrics::{PROCESS_CPU_SECONDS_TOTAL, PROCESS_RESIDENT_MEMORY_BYTES, PROCESS_START_TIME_SECONDS};

/// Length of a tick in `/proc`: the kernel shows times to programs in hundredths of a second (`USER_HZ`) on every
/// architecture that Rust's standard library is built for.
const TICK: Duration = Duration::from_millis(10);

/// The values from `/proc`.
#[derive(Debug, PartialEq, Eq)]
struct Process {
    cpu: Duration,
    resident_bytes: u64,
    /// Since the Unix epoch.
    started: Duration,
}

/// Appends the metrics in the text format; nothing if there is no `/proc`.
pub fn render(text: &mut String) {
    let read = |path| fs::read_to_string(path).ok();
    let (Some(stat), Some(status), Some(system)) =
        (read("/proc/self/stat"), read("/proc/self/status"), read("/proc/stat"))
    else {
        return;
    };
    if let Some(process) = parse(&stat, &status, &system) {
        append(text, &process);
    }
}

/// Reads `/proc/self/stat`, `/proc/self/status` and `/proc/stat`, see proc(5).
fn parse(stat: &str, status: &str, system: &str) -> Option<Process> {
    // The second field is the program's name, which may hold spaces and parentheses; the third follows the last one.
    let (_, after_name) = stat.rsplit_once(") ")?;
    let field = |number: usize| -> Option<u32> { after_name.split_ascii_whitespace().nth(number - 3)?.parse().ok() };
    let line = |text: &str, key: &str| -> Option<u64> {
        let rest = text.lines().find_map(|line| line.strip_prefix(key))?;
        rest.split_ascii_whitespace().next()?.parse().ok()
    };
    Some(Process {
        cpu: TICK * field(14)? + TICK * field(15)?,
        resident_bytes: line(status, "VmRSS:")? * 1024,
        started: Duration::from_secs(line(system, "btime ")?) + TICK * field(22)?,
    })
}

fn append(text: &mut String, process: &Process) {
    let mut metric = |name: &str, kind: &str, help: &str, value: &dyn std::fmt::Display| {
        // Writing to a String can't fail.
        let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n\n");
    };
    let cpu = process.cpu.as_secs_f64();
    metric(PROCESS_CPU_SECONDS_TOTAL, "counter", "Total user and system CPU time spent in seconds", &cpu);
    metric(PROCESS_RESIDENT_MEMORY_BYTES, "gauge", "Resident memory size in bytes", &process.resident_bytes);
    let started = process.started.as_secs_f64();
    metric(PROCESS_START_TIME_SECONDS, "gauge", "Start time of the process since the Unix epoch in seconds", &started);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_found_behind_a_name_with_parentheses() {
        let stat = "7 (a) b (c) S 1 2 3 0 -1 4 5 6 7 8 1234 66 0 0 20 0 9 0 4200 999 88 1";
        let status = "Name:\ta\nVmPeak:\t  9 kB\nVmRSS:\t  2048 kB\n";
        let system = "cpu  1 2 3\nbtime 1700000000\n";
        assert_eq!(
            parse(stat, status, system),
            Some(Process {
                cpu: Duration::from_secs(13),
                resident_bytes: 2048 * 1024,
                started: Duration::from_secs(1_700_000_042),
            })
        );
        assert_eq!(parse("", status, system), None);
        assert_eq!(parse(stat, "", system), None);
    }

    #[test]
    fn this_process_has_used_memory() {
        let mut text = String::new();
        render(&mut text);
        let resident = text
            .lines()
            .find_map(|line| line.strip_prefix("process_resident_memory_bytes "))
            .and_then(|value| value.parse::<u64>().ok());
        assert!(resident.is_some_and(|bytes| bytes > 100_000), "{text}");
    }
}
