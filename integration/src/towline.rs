//! The daemon as its own process, as people run it.

use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output};
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use rustix::process::Signal;
use serde_json::Value;

use crate::http_client::{Answer, Http};
use crate::port::Port;
use crate::process::{Process, Spec};
use crate::room::Room;
use crate::usage::Usage;
use crate::{Error, eventually, programs};

/// Goes over the admin address of the configuration file.
const LISTEN: &str = "TOWLINE__DAEMON__LISTEN";
/// Of the image.
const ENTRYPOINT: &str = "/usr/bin/towline";

/// Waits until the state of a section says with which settings it runs.
pub async fn settings_noted(cluster: &Client, namespace: &str, section: &str, limit: Duration) -> Result<(), Error> {
    let states: Api<ConfigMap> = Api::namespaced(cluster.clone(), namespace);
    eventually(format!("the settings of {section} to be noted"), limit, async || {
        let found = states.get_opt(&format!("towline-{section}")).await.map_err(|error| error.to_string())?;
        let data = found.and_then(|found| found.data).unwrap_or_default();
        if data.values().any(|text| text.contains("annotation_domain")) { Ok(()) } else { Err(format!("{data:?}")) }
    })
    .await
}

/// A daemon that was started, and perhaps killed since. A failing test shows the end of its log.
#[derive(Debug)]
pub struct Towline {
    process: Process,
    admin: Admin,
    binary: PathBuf,
    args: Vec<OsString>,
    env: Vec<(String, String)>,
    config: PathBuf,
    log: PathBuf,
    address: SocketAddr,
    /// Held, not read: the address and the files stay ours while this value lives.
    _port: Option<Port>,
    _room: Option<Room>,
}

impl Towline {
    /// Runs `towline run` with this configuration, and this environment over it. The admin address is a free port,
    /// whatever the configuration says. Returns at once: [`Towline::wait_ready`] waits.
    pub async fn start(config: &str, env: &[(&str, &str)]) -> Result<Self, Error> {
        let room = Room::new("towline")?;
        let args = run_args(&room.write("towline.toml", config)?);
        Self::start_program(room, programs::towline().await?, args, env).await
    }

    /// Runs the binary as a container of the image runs: with these arguments and this environment, as its user, and in a root that
    /// nobody can write, which has the system's libraries and what is mounted: each path here, and where it is in the container.
    pub async fn start_in_container(
        args: &[&str],
        env: &[(&str, &str)],
        mounts: &[(PathBuf, &str)],
    ) -> Result<Self, Error> {
        Self::in_container(Room::new("container")?, args, env, mounts).await
    }

    /// The same with a directory of its own, in which there may be what is mounted.
    pub(crate) async fn in_container(
        room: Room,
        args: &[&str],
        env: &[(&str, &str)],
        mounts: &[(PathBuf, &str)],
    ) -> Result<Self, Error> {
        const SCRIPT: &str = r#"set -e; root=$1; shift; mount -t tmpfs none "$root"
            for path in /lib /lib64 /usr/lib /etc/ssl /proc /dev; do
                [ ! -e $path ] || { mkdir -p "$root$path"; mount --rbind $path "$root$path"; }
            done
            while [ "$1" != -- ]; do
                if [ -d "$1" ]; then mkdir -p "$root$2"; else mkdir -p "$root${2%/*}"; touch "$root$2"; fi
                mount --rbind "$1" "$root$2"; shift 2
            done
            mount -o remount,ro "$root"
            exec unshare --user --map-user=65532 --map-group=65532 --root "$root" "$@""#;
        let directory = room.join("root");
        std::fs::create_dir(&directory).map_err(Error::file("create", &directory))?;
        let mut of_shell: Vec<OsString> =
            ["--map-root-user", "--mount", "--propagation", "private", "sh", "-c", SCRIPT, "sh"].map(Into::into).into();
        of_shell.extend([directory.into(), programs::towline().await?.into(), ENTRYPOINT.into()]);
        for (here, there) in mounts {
            of_shell.extend([here.into(), there.into()]);
        }
        of_shell.extend(["--", ENTRYPOINT].iter().chain(args).map(Into::into));
        Self::start_program(room, "unshare".into(), of_shell, env).await
    }

    /// Runs a program with these arguments. The admin address is a free port.
    async fn start_program(
        room: Room,
        binary: PathBuf,
        args: Vec<OsString>,
        env: &[(&str, &str)],
    ) -> Result<Self, Error> {
        let port = Port::take()?;
        let mut env: Vec<_> = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let address = port.address();
        env.push((LISTEN.to_owned(), address.to_string()));
        let (config, log) = (room.join("towline.toml"), room.join("towline.log"));
        let process = Process::start(spec(&binary, &args, &env, &log)).await?;
        let admin = Admin { http: Http::to(address) };
        Ok(Self { process, admin, binary, args, env, config, log, address, _port: Some(port), _room: Some(room) })
    }

    /// Runs `towline lease` with these flags, and this environment. The admin server is at a free port of loopback; both
    /// its flags begin with these dashes.
    pub async fn start_lease(flags: &[&str], env: &[(&str, &str)], dashes: &str) -> Result<Self, Error> {
        let binary = programs::towline().await?;
        let room = Room::new("lease")?;
        let port = Port::take()?;
        let env: Vec<_> = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let address = port.address();
        let mut args: Vec<OsString> =
            std::iter::once("lease").chain(flags.iter().copied()).map(OsString::from).collect();
        args.push(format!("{dashes}metrics-host={}", address.ip()).into());
        args.push(format!("{dashes}metrics-port={}", address.port()).into());
        let (config, log) = (room.join("none"), room.join("towline.log"));
        let process = Process::start(spec(&binary, &args, &env, &log)).await?;
        let admin = Admin { http: Http::to(address) };
        Ok(Self { process, admin, binary, args, env, config, log, address, _port: Some(port), _room: Some(room) })
    }

    /// Runs `towline status-sync` with this environment. The admin server is at a free port of loopback.
    pub async fn start_status_sync(env: &[(&str, &str)]) -> Result<Self, Error> {
        Self::start_alone("status-sync", env).await
    }

    /// Runs `towline hub` with this environment. The admin server is at a free port of loopback.
    pub async fn start_hub(env: &[(&str, &str)]) -> Result<Self, Error> {
        Self::start_alone("hub", env).await
    }

    /// Runs `towline inventory` with this environment. The admin server is at a free port of loopback.
    pub async fn start_inventory(env: &[(&str, &str)]) -> Result<Self, Error> {
        Self::start_alone("inventory", env).await
    }

    /// Runs the command of a single job with this environment.
    async fn start_alone(command: &str, env: &[(&str, &str)]) -> Result<Self, Error> {
        let binary = programs::towline().await?;
        Self::start_program(Room::new(command)?, binary, vec![command.into()], env).await
    }

    /// Runs `towline run` with a file as it is, in the working directory of this process. `listen` is the admin address
    /// that the file names; where somebody else has it, a free port takes its place. The log is begun anew.
    pub async fn start_file(config: &Path, listen: SocketAddr, log: &Path) -> Result<Self, Error> {
        let binary = programs::towline().await?;
        let taken = TcpListener::bind(listen).is_err();
        let port = if taken { Some(Port::take()?) } else { None };
        let address = port.as_ref().map_or(listen, Port::address);
        let env = if taken { vec![(LISTEN.to_owned(), address.to_string())] } else { Vec::new() };
        std::fs::write(log, "").map_err(Error::file("write", log))?;
        let args = run_args(config);
        let process = Process::start(spec(&binary, &args, &env, log)).await?;
        let (config, log) = (config.to_owned(), log.to_owned());
        let admin = Admin { http: Http::to(address) };
        Ok(Self { process, admin, binary, args, env, config, log, address, _port: port, _room: None })
    }

    /// Runs a command of the binary to its end: `check`, `status`, `approve`, `detach`.
    pub async fn command<I>(args: I) -> Result<Output, Error>
    where
        I: IntoIterator,
        I::Item: Into<OsString>,
    {
        Self::command_with(args, &[]).await
    }

    pub async fn command_with<I>(args: I, env: &[(&str, &str)]) -> Result<Output, Error>
    where
        I: IntoIterator,
        I::Item: Into<OsString>,
    {
        let mut command = tokio::process::Command::new(programs::towline().await?);
        command.args(args.into_iter().map(Into::into)).envs(env.iter().copied()).kill_on_drop(true);
        let process = "a towline command".to_owned();
        command.output().await.map_err(|source| Error::Process { action: "run", process, source })
    }

    pub fn process_id(&self) -> i32 {
        self.process.id()
    }

    /// Starts the daemon again after its end, with the same configuration file, environment and admin address.
    pub async fn start_again(&mut self) -> Result<(), Error> {
        self.kill9().await?;
        self.process = Process::start(spec(&self.binary, &self.args, &self.env, &self.log)).await?;
        Ok(())
    }

    /// Kills the daemon with SIGKILL and waits until it is gone.
    pub async fn kill9(&self) -> Result<(), Error> {
        self.process.kill().await
    }

    /// Asks the daemon to end (SIGTERM) and waits for its exit status.
    pub async fn terminate(&self, limit: Duration) -> Result<ExitStatus, Error> {
        self.process.signal(Signal::TERM)?;
        self.process.wait(limit).await
    }

    /// Asks the daemon to end (SIGTERM) and does not wait.
    pub fn ask_to_end(&self) -> Result<(), Error> {
        self.process.signal(Signal::TERM)
    }

    /// Closes the daemon's terminal, as it were (SIGHUP), and waits for its exit status.
    pub async fn hang_up(&self, limit: Duration) -> Result<ExitStatus, Error> {
        self.process.signal(Signal::HUP)?;
        self.process.wait(limit).await
    }

    /// Stops the daemon in the middle of whatever it does (SIGSTOP).
    pub fn freeze(&self) -> Result<(), Error> {
        self.process.signal(Signal::STOP)
    }

    /// Lets a frozen daemon go on (SIGCONT).
    pub fn thaw(&self) -> Result<(), Error> {
        self.process.signal(Signal::CONT)
    }

    /// Waits until the daemon ends by itself.
    pub async fn wait_exited(&self, limit: Duration) -> Result<ExitStatus, Error> {
        self.process.wait(limit).await
    }

    /// Waits until `/readyz` says yes. An error at once where the daemon ends instead.
    pub async fn wait_ready(&self, limit: Duration) -> Result<(), Error> {
        self.wait_well("/readyz", limit).await
    }

    /// The same of any probe.
    pub(crate) async fn wait_well(&self, probe: &str, limit: Duration) -> Result<(), Error> {
        eventually(format!("{probe} of towline to say yes"), limit, async || {
            if let Err(ended) = self.process.check() {
                return Ok(Err(ended));
            }
            let answer = self.admin.http.get(probe).await.map_err(|error| error.to_string())?;
            if answer.status == 200 { Ok(Ok(())) } else { Err(answer.body) }
        })
        .await?
    }

    pub fn admin(&self) -> &Admin {
        &self.admin
    }

    /// The admin server's address, as `--admin` takes it.
    pub fn admin_url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn config_path(&self) -> PathBuf {
        self.config.clone()
    }

    /// The file with everything the daemon has written so far, over its restarts.
    pub fn log_path(&self) -> PathBuf {
        self.log.clone()
    }

    /// Everything the daemon has written so far.
    pub fn log(&self) -> Result<String, Error> {
        let path = self.log_path();
        std::fs::read_to_string(&path).map_err(Error::file("read", &path))
    }

    /// CPU time and memory since the daemon was started last.
    pub fn usage(&self) -> Result<Usage, Error> {
        self.process.usage()
    }

    /// Begins the peak of memory anew, at what is used now.
    pub fn reset_rss_peak(&self) -> Result<(), Error> {
        self.process.reset_rss_peak()
    }
}

impl Drop for Towline {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the last lines of towline:\n{}", self.process.log_tail());
        }
    }
}

fn run_args(config: &Path) -> Vec<OsString> {
    vec!["run".into(), "--config".into(), config.into()]
}

/// What the Dockerfile sets for the allocator.
fn as_in_the_image() -> impl Iterator<Item = (String, String)> {
    let set = [("MIMALLOC_ALLOW_THP", "0"), ("MIMALLOC_PURGE_DELAY", "0")];
    set.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()))
}

fn spec(binary: &Path, args: &[OsString], env: &[(String, String)], log: &Path) -> Spec {
    Spec {
        name: "towline".to_owned(),
        program: binary.to_owned(),
        args: args.to_vec(),
        env: as_in_the_image().chain(env.iter().cloned()).collect(),
        log: log.to_owned(),
        piped_stdin: false,
    }
}

/// `GET /metrics` of a daemon that somebody else holds.
pub async fn metrics_at(address: SocketAddr) -> Result<String, Error> {
    Admin { http: Http::to(address) }.metrics().await
}

#[derive(Clone, Debug)]
pub struct Admin {
    http: Http,
}

impl Admin {
    /// `GET /status`.
    pub async fn status(&self) -> Result<Value, Error> {
        self.get("/status").await
    }

    /// What is at this path.
    pub async fn get(&self, path: &str) -> Result<Value, Error> {
        let body = self.http.get(path).await?.success(path)?;
        json(path, &body)
    }

    /// The report of one section in `GET /status`.
    pub async fn section(&self, section: &str) -> Result<Value, Error> {
        let status = self.status().await?;
        status.pointer(&format!("/sections/{section}")).cloned().ok_or_else(|| Error::Unreadable {
            what: "/status".to_owned(),
            detail: format!("no section {section} in {status}"),
        })
    }

    /// `GET /metrics`.
    pub async fn metrics(&self) -> Result<String, Error> {
        self.http.get("/metrics").await?.success("/metrics")
    }

    /// `GET /healthz`, whatever the status.
    pub async fn healthz(&self) -> Result<Answer, Error> {
        self.http.get("/healthz").await
    }

    /// `GET /readyz`, whatever the status.
    pub async fn readyz(&self) -> Result<Answer, Error> {
        self.http.get("/readyz").await
    }

    /// `GET /readyz/{section}`, whatever the status.
    pub async fn section_readyz(&self, section: &str) -> Result<Answer, Error> {
        self.http.get(&format!("/readyz/{section}")).await
    }

    /// `POST /approve/{section}`.
    pub async fn approve(&self, section: &str) -> Result<Value, Error> {
        self.order(&format!("/approve/{section}")).await
    }

    /// `POST /detach/{section}`.
    pub async fn detach(&self, section: &str, local_gone: bool) -> Result<Value, Error> {
        self.order(&format!("/detach/{section}?local_gone={local_gone}")).await
    }

    async fn order(&self, path: &str) -> Result<Value, Error> {
        let body = self.http.post(path, "").await?.success(path)?;
        json(path, &body)
    }
}

fn json(what: &str, body: &str) -> Result<Value, Error> {
    serde_json::from_str(body).map_err(|error| Error::Unreadable { what: what.to_owned(), detail: error.to_string() })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Room, Towline};
    use crate::Error;

    async fn start_ls() -> Towline {
        let room = Room::new("towline").unwrap();
        // Any program that fails on an option with a message will do.
        Towline::start_program(room, "ls".into(), vec!["--config".into()], &[]).await.unwrap()
    }

    #[tokio::test]
    async fn a_daemon_that_ends_instead_of_getting_ready_is_told_at_once_with_its_log() {
        let daemon = start_ls().await;
        let error = daemon.wait_ready(Duration::from_mins(1)).await.unwrap_err();
        let Error::Exited { status, log, .. } = error else { panic!("{error}") };
        assert!(status.contains("exit status: 2") && log.contains("--config"), "{status} {log}");
    }

    #[tokio::test]
    async fn a_killed_daemon_keeps_its_admin_address_and_its_log() {
        let mut daemon = start_ls().await;
        let address = daemon.admin_url();
        daemon.wait_exited(Duration::from_mins(1)).await.unwrap();
        daemon.start_again().await.unwrap();
        daemon.wait_exited(Duration::from_mins(1)).await.unwrap();
        assert_eq!(daemon.admin_url(), address);
        assert_eq!(daemon.log().unwrap().matches("--config").count(), 2);
    }
}
