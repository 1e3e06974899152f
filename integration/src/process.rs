//! Child processes that can't outlive the test.
//!
//! A child is killed by the kernel when the thread that made it ends (`PR_SET_PDEATHSIG`, set by `setpriv`). A test's
//! thread ends with its test, a runtime's with the runtime, but a shared server has to outlive both: so all children
//! are made by one thread that lives as long as the process, and a SIGKILL of the process takes them along.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::usage::Usage;
use crate::{Error, eventually};

/// How many lines of a log are shown where a process has failed.
const SHOWN_LINES: usize = 40;

/// How long a killed process may take to be gone: the kernel frees its memory first.
const LONGEST_DEATH: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(crate) struct Spec {
    /// What it is called in errors.
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<OsString>,
    /// Added to this process's environment, of which nothing that begins with `TOWLINE_` is handed on.
    pub(crate) env: Vec<(String, String)>,
    /// Takes stdout and stderr, behind what is already in it.
    pub(crate) log: PathBuf,
    /// Whether the child reads what [`Process::take_stdin`] writes; else its input is empty.
    pub(crate) piped_stdin: bool,
}

/// A running child, the leader of a process group of its own. Killed with its group when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    pid: Pid,
    child: Mutex<Child>,
    log: PathBuf,
}

impl Process {
    /// Starts the child. That it keeps running is for the caller to see.
    pub(crate) async fn start(spec: Spec) -> Result<Self, Error> {
        let name = spec.name.clone();
        let log = spec.log.clone();
        let (reply, started) = tokio::sync::oneshot::channel();
        let gone = |_| io::Error::other("the thread that makes children is gone");
        let begun = match maker().send((spec, reply)) {
            Ok(()) => started.await.map_err(gone).flatten(),
            Err(_) => Err(io::Error::other("the thread that makes children is gone")),
        };
        let child = begun.map_err(|source| spawn_error(&name, source))?;
        let pid = Pid::from_child(&child);
        Ok(Self { name, pid, child: Mutex::new(child), log })
    }

    pub(crate) fn id(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// The way to the child's input, once.
    pub(crate) fn take_stdin(&self) -> Option<std::process::ChildStdin> {
        self.child.lock().stdin.take()
    }

    /// The exit status, once there is one.
    pub(crate) fn exited(&self) -> Option<ExitStatus> {
        self.child.lock().try_wait().ok().flatten()
    }

    /// An error where the process has ended.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.exited() {
            None => Ok(()),
            Some(status) => {
                Err(Error::Exited { process: self.name.clone(), status: status.to_string(), log: self.log_tail() })
            }
        }
    }

    pub(crate) async fn wait(&self, limit: Duration) -> Result<ExitStatus, Error> {
        eventually(format!("the end of {}", self.name), limit, async || {
            self.exited().ok_or_else(|| "it still runs".to_owned())
        })
        .await
    }

    /// Sends a signal to the process alone; one that has ended doesn't mind.
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), Error> {
        // Without this look the id could be another process's by now. It stays ours until somebody waits for it.
        let mut child = self.child.lock();
        if matches!(child.try_wait(), Ok(Some(_))) {
            return Ok(());
        }
        kill_process(self.pid, signal).map_err(|source| Error::Process {
            action: "signal",
            process: self.name.clone(),
            source: source.into(),
        })
    }

    /// SIGKILL to the whole group, and waits until the process is gone.
    pub(crate) async fn kill(&self) -> Result<(), Error> {
        self.kill_group();
        self.wait(LONGEST_DEATH).await.map(|_| ())
    }

    /// CPU time and memory so far.
    pub(crate) fn usage(&self) -> Result<Usage, Error> {
        self.check()?;
        Usage::of(self.pid.as_raw_nonzero().get())
    }

    /// Forgets the highest memory so far: the next [`Process::usage`] tells it since now.
    pub(crate) fn reset_rss_peak(&self) -> Result<(), Error> {
        self.check()?;
        Usage::reset_peak(self.pid.as_raw_nonzero().get())
    }

    pub(crate) fn log_tail(&self) -> String {
        let text = fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines.iter().skip(lines.len().saturating_sub(SHOWN_LINES)).fold(String::new(), |all, line| all + line + "\n")
    }

    fn kill_group(&self) {
        let mut child = self.child.lock();
        if matches!(child.try_wait(), Ok(None)) {
            // ESRCH says that it is gone, which is what was wanted.
            let _ = kill_process_group(self.pid, Signal::KILL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill_group();
        // A killed process is gone within milliseconds, and a zombie must not stay.
        drop(self.child.lock().wait());
    }
}

type Order = (Spec, tokio::sync::oneshot::Sender<io::Result<Child>>);

/// The way to the thread that makes children.
fn maker() -> &'static SyncSender<Order> {
    static MAKER: OnceLock<SyncSender<Order>> = OnceLock::new();
    MAKER.get_or_init(|| {
        let (orders, received) = sync_channel::<Order>(8);
        std::thread::spawn(move || {
            for (spec, reply) in received {
                // Whoever has given up waiting must not leave a child behind.
                if let Err(Ok(mut unwanted)) = reply.send(spawn(&spec)) {
                    drop(unwanted.kill());
                    drop(unwanted.wait());
                }
            }
        });
        orders
    })
}

fn spawn(spec: &Spec) -> io::Result<Child> {
    let log = File::options().create(true).append(true).open(&spec.log)?;
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]);
    // Tests that run under `nohup` would hand on that a hang-up is ignored.
    command.args(["env", "--default-signal=HUP"]).arg(&spec.program).args(&spec.args);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TOWLINE_") {
            command.env_remove(name);
        }
    }
    command.envs(spec.env.iter().map(|(name, value)| (name, value)));
    command.stdin(if spec.piped_stdin { Stdio::piped() } else { Stdio::null() });
    command.stdout(log.try_clone()?).stderr(log);
    // Its own group, so that Ctrl-C in a terminal reaches the test alone, which then stops its children in order.
    command.process_group(0).spawn()
}

fn spawn_error(name: &str, source: io::Error) -> Error {
    if source.kind() == io::ErrorKind::NotFound {
        return Error::Missing {
            program: "setpriv",
            needed_for: "children die with the test",
            remedy: "install util-linux".to_owned(),
        };
    }
    Error::Process { action: "start", process: name.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::path::{Path, PathBuf};
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::{Process, Spec};
    use crate::eventually;
    use crate::room::Room;

    /// Makes the test below hold a child until it is killed; unset, it passes at once.
    const HOLD: &str = "FIXTURE_TEST_HOLDS_A_CHILD";
    const LIMIT: Duration = Duration::from_mins(1);

    fn sleeper(room: &Room) -> Spec {
        Spec {
            name: "sleep".to_owned(),
            program: PathBuf::from("sleep"),
            args: vec!["600".into()],
            env: Vec::new(),
            log: room.join("log"),
            piped_stdin: false,
        }
    }

    /// Gone, or dead and not yet waited for by whoever inherited it.
    fn is_dead(pid: i32) -> bool {
        let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
        stat.is_ok_and(|stat| stat.contains(") Z ")) || !Path::new("/proc").join(pid.to_string()).exists()
    }

    #[tokio::test]
    async fn a_killed_or_dropped_child_is_gone() {
        let room = Room::new("killed").unwrap();
        let (killed, dropped) =
            (Process::start(sleeper(&room)).await.unwrap(), Process::start(sleeper(&room)).await.unwrap());
        assert_eq!(killed.exited(), None);
        killed.kill().await.unwrap();
        assert!(killed.exited().is_some() && killed.usage().is_err());
        let pid = dropped.pid.as_raw_nonzero().get();
        drop(dropped);
        assert!(is_dead(pid));
    }

    #[tokio::test]
    async fn held_child() {
        if std::env::var_os(HOLD).is_none() {
            return;
        }
        let room = Room::new("held").unwrap();
        let held = Process::start(sleeper(&room)).await.unwrap();
        println!("\nheld {}", held.pid.as_raw_nonzero());
        std::future::pending::<()>().await;
    }

    #[tokio::test]
    async fn a_child_dies_with_its_killed_parent() {
        let mut parent = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "process::tests::held_child", "--nocapture"])
            .env(HOLD, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(parent.stdout.take().unwrap()).lines();
        let held = lines.map_while(Result::ok).find_map(|line| line.strip_prefix("held ")?.parse::<i32>().ok());
        let held = held.expect("the parent tells the child's id");
        assert!(!is_dead(held));
        // Before that the wrapper may not have tied it to its parent's life yet.
        eventually("the wrapper to become the child", LIMIT, async || {
            let name = std::fs::read_to_string(format!("/proc/{held}/comm")).map_err(|error| error.to_string())?;
            if ["setpriv", "env"].contains(&name.trim()) { Err(name) } else { Ok(()) }
        })
        .await
        .unwrap();
        parent.kill().unwrap();
        parent.wait().unwrap();
        eventually("the end of the killed parent's child", LIMIT, async || {
            if is_dead(held) { Ok(()) } else { Err("it still runs".to_owned()) }
        })
        .await
        .unwrap();
    }
}
