//! A job that the daemon does not have is added by one entry in the list of jobs, and is there everywhere: in the
//! configuration, in `check`, in the actor tree, in `/status` and in the metrics.
//!
//! Each test runs this test binary again as a daemon with that list.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a test may fail anywhere, and has no runtime to block; the lints' exemption knows only `#[test]`"
)]

mod pulse;

use std::env;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use towline::test_api::job::JobList;
use towline::test_api::job::command::Exit;
use towline::test_api::lease::LeaseJob;
use towline::test_api::process;
use towline::test_api::resource_sync::SyncJob;
use towline::test_api::status_sync::StatusSyncJob;

use self::pulse::PulseJob;

/// The list of the `towline` binary with one entry more.
const JOBS: JobList = JobList::new(&[&SyncJob, &LeaseJob, &StatusSyncJob, &PulseJob]);

/// The command line of the daemon, one argument a line.
const ARGUMENTS: &str = "TOWLINE_TEST_ARGUMENTS";
/// Many times what anything here takes.
const LIMIT: Duration = Duration::from_mins(1);

/// Not a test: what this binary does when a test runs it as a daemon.
#[test]
fn daemon() {
    let Ok(arguments) = env::var(ARGUMENTS) else { return };
    let exit = process::execute(JOBS, arguments.lines().map(OsString::from));
    std::process::exit(match exit {
        Exit::Done => 0,
        Exit::Failed => 1,
        Exit::Usage => 2,
        Exit::NotWell => 3,
        Exit::Interrupted => 130,
    });
}

fn towline(arguments: &[&str]) -> Command {
    let mut command = Command::new(env::current_exe().expect("a test binary knows its path"));
    let arguments: Vec<&str> = std::iter::once("towline").chain(arguments.iter().copied()).collect();
    command.args(["daemon", "--exact", "--nocapture", "--test-threads=1"]).env(ARGUMENTS, arguments.join("\n"));
    command
}

/// A directory of a test, with a configuration in it.
struct Room {
    path: PathBuf,
    config: PathBuf,
}

impl Room {
    fn new(test: &str, sections: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("one-more-job-{test}"));
        std::fs::create_dir_all(&path).expect("a directory");
        let config = path.join("towline.toml");
        std::fs::write(&config, sections.replace("ROOM", path.to_str().expect("a plain path"))).expect("a file");
        let _ = std::fs::remove_file(path.join("alive"));
        Self { path, config }
    }

    /// The exit code of `towline check`, and what it says.
    fn check(&self, options: &[&str]) -> (Option<i32>, String) {
        let file = self.config.to_str().expect("a plain path");
        let output = towline(&[&["check", file], options].concat()).output().expect("it starts");
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).expect("text"))
    }
}

/// A running daemon, which ends with the test.
struct Daemon {
    child: Child,
    admin: String,
}

impl Daemon {
    fn start(room: &Room) -> Self {
        let mut child = towline(&["run", room.config.to_str().expect("a plain path")])
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
        let mut begin = String::new();
        let admin = loop {
            let line = lines.next().unwrap_or_else(|| panic!("it has ended: {begin}")).expect("text");
            if let Some(starts) = serde_json::from_str::<Value>(&line).ok().filter(|line| line["admin"].is_string()) {
                break starts["admin"].as_str().expect("an address").to_owned();
            }
            begin += &line;
        };
        // Nobody reads what it logs from here on, and it must not wait for a reader.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, admin }
    }

    /// What the admin server answers: the whole response.
    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.admin).expect("the admin server listens");
        write!(stream, "GET {path} HTTP/1.1\r\nhost: towline\r\nconnection: close\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }

    /// The answer, once it has this.
    fn get_with(&self, path: &str, wanted: &str) -> String {
        let begun = Instant::now();
        loop {
            let answer = self.get(path);
            if answer.contains(wanted) {
                return answer;
            }
            assert!(begun.elapsed() < LIMIT, "{path} has no {wanted}: {answer}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const DAEMON: &str = "[daemon]\nlisten = \"127.0.0.1:0\"\n[daemon.log]\nformat = \"json\"\n";
const SECTION: &str = "[[pulse]]\nname = \"alive\"\nfile = \"ROOM/alive\"\ninterval = \"20ms\"\n";

#[test]
fn its_section_is_read_and_checked_as_those_of_other_jobs_are() {
    let room = Room::new("fine", SECTION);
    let (code, said) = room.check(&["--connect"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("0 cluster(s), 1 section(s)"), "{said}");

    let faulty = "[[pulse]]\nname = \"alive\"\nfile = \"\"\nintervall = \"1s\"\n[[lease]]\nname = \"alive\"\n";
    let (code, said) = Room::new("faulty", faulty).check(&[]);
    assert_eq!(code, Some(2), "{said}");
    for fault in ["pulse[0].file: ", "pulse[0].intervall: ", "did you mean `interval`", "pulse[0].name"] {
        assert!(said.contains(fault), "no {fault} in {said}");
    }

    let (code, said) = Room::new("no-folder", &SECTION.replace("ROOM", "ROOM/none")).check(&["--connect"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("pulse alive: there is no folder for"), "{said}");

    let (_, said) = Room::new("empty", "").check(&[]);
    assert!(said.contains("[status_sync] and [[pulse]]"), "{said}");
}

#[test]
fn it_runs_below_the_supervisor_and_shows_in_the_status_and_the_metrics() {
    let room = Room::new("run", &format!("{DAEMON}{SECTION}"));
    let daemon = Daemon::start(&room);
    daemon.get_with("/readyz", "HTTP/1.1 200");
    let status = daemon.get_with("/status", "\"state\":\"ready\"");
    let (_, document) = status.split_once("\r\n\r\n").expect("a body");
    let status: Value = serde_json::from_str(document).expect("JSON");
    let section = &status["sections"]["alive"];
    assert_eq!(section["job"], "pulse", "{status}");
    assert!(section["beats"].as_u64().is_some_and(|beats| beats > 0), "{status}");
    assert!(status["tree"].to_string().contains("\"pulse alive\""), "{status}");

    let metrics = daemon.get("/metrics");
    for line in [
        "# HELP towline_pulse_beats_total Beats that were written",
        "# TYPE towline_pulse_beats_total counter",
        "towline_pulse_beats_total{section=\"alive\"} ",
    ] {
        assert!(metrics.contains(line), "no {line} in {metrics}");
    }
    // It is empty for a moment whenever it is written.
    let begun = Instant::now();
    loop {
        let written = std::fs::read_to_string(room.path.join("alive")).expect("the file");
        if written.parse::<u64>().is_ok_and(|beats| beats > 0) {
            break;
        }
        assert!(begun.elapsed() < LIMIT, "waited for a number of beats; last seen: {written:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
