//! The Go controller that the bench compares with (`integration/reference`), as its own process.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::Signal;

use crate::http_client::Http;
use crate::port::Port;
use crate::process::{Process, Spec};
use crate::room::Room;
use crate::usage::Usage;
use crate::{ControlPlane, Error, eventually, programs, users};

/// A running controller; its log is kept as long as this value.
#[derive(Debug)]
pub struct Reference {
    process: Process,
    binary: PathBuf,
    args: Vec<OsString>,
    log: PathBuf,
    http: Http,
    /// Held, not read: the address and the files stay ours while this value lives.
    _port: Port,
    _room: Room,
}

impl Reference {
    /// Runs it between two clusters as [`users::REFERENCE`]. Returns at once: [`Reference::wait_ready`] waits.
    ///
    /// `resource` is as a section of Towline has it.
    pub async fn start(remote: &ControlPlane, local: &ControlPlane, resource: &str) -> Result<Self, Error> {
        let binary = programs::reference().await?;
        let (room, port) = (Room::new("reference")?, Port::take()?);
        let (remote, local) = (remote.kubeconfig(users::REFERENCE)?, local.kubeconfig(users::REFERENCE)?);
        let args: Vec<OsString> = [
            format!("--remote-kubeconfig={}", remote.display()),
            format!("--local-kubeconfig={}", local.display()),
            format!("--resource={resource}"),
            // Without a controller manager nobody would end an object that waits for its dependents.
            "--propagation-policy=Background".to_owned(),
            format!("--listen={}", port.address()),
        ]
        .map(OsString::from)
        .into();
        let log = room.join("reference.log");
        let process = Process::start(spec(&binary, &args, &log)).await?;
        Ok(Self { process, binary, args, log, http: Http::to(port.address()), _port: port, _room: room })
    }

    pub fn process_id(&self) -> i32 {
        self.process.id()
    }

    /// Starts it again after its end, with the same arguments.
    pub async fn start_again(&mut self) -> Result<(), Error> {
        self.process.kill().await?;
        self.process = Process::start(spec(&self.binary, &self.args, &self.log)).await?;
        Ok(())
    }

    /// Asks it to end (SIGTERM) and waits for its exit status.
    pub async fn terminate(&self, limit: Duration) -> Result<ExitStatus, Error> {
        self.process.signal(Signal::TERM)?;
        self.process.wait(limit).await
    }

    /// Waits until its caches are filled. An error at once where it ends instead.
    pub async fn wait_ready(&self, limit: Duration) -> Result<(), Error> {
        eventually("the reference to be ready", limit, async || {
            if let Err(ended) = self.process.check() {
                return Ok(Err(ended));
            }
            let answer = self.http.get("/readyz").await.map_err(|error| error.to_string())?;
            if answer.status == 200 { Ok(Ok(())) } else { Err(answer.body) }
        })
        .await?
    }

    /// Everything it has written so far.
    pub fn log(&self) -> Result<String, Error> {
        std::fs::read_to_string(&self.log).map_err(Error::file("read", &self.log))
    }

    /// CPU time and memory since it was started last.
    pub fn usage(&self) -> Result<Usage, Error> {
        self.process.usage()
    }

    /// Begins the peak of memory anew, at what is used now.
    pub fn reset_rss_peak(&self) -> Result<(), Error> {
        self.process.reset_rss_peak()
    }
}

fn spec(binary: &std::path::Path, args: &[OsString], log: &std::path::Path) -> Spec {
    Spec {
        name: "the reference".to_owned(),
        program: binary.to_owned(),
        args: args.to_vec(),
        env: Vec::new(),
        log: log.to_owned(),
        piped_stdin: false,
    }
}
