//! A `RabbitMQ` broker of its own: the system's programs, a node with a name, directories, ports and a cookie of its own.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use integration::rabbitmq::RabbitMq;
//!
//! let broker = RabbitMq::start("bus").await?; // five seconds
//! let url = broker.url(); // what the daemon is given
//! broker.kill().await?; // SIGKILL; durable queues are still there after `start_again`
//! # drop(url);
//! # Ok(())
//! # }
//! ```
//!
//! As root, everything of it runs as the user `rabbitmq`, whose package makes it; the machine's own service is left alone.

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, geteuid, kill_process_group};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::certificates::Certificates;
use crate::port::Port;
use crate::process::{Process, Spec};
use crate::room::Room;
use crate::usage::Usage;
use crate::{Error, eventually};

/// Where Debian has the programs themselves. Those on the PATH refuse other users than root and `rabbitmq`.
const PROGRAMS: &str = "/usr/lib/rabbitmq/bin";
/// Five seconds on an idle machine.
const LONGEST_START: Duration = Duration::from_mins(2);
/// Longer than any test takes.
const CLIENT_GOOD_FOR: Duration = Duration::from_hours(24);
/// An expression is evaluated within milliseconds on an idle machine.
const LONGEST_EVALUATION: Duration = Duration::from_mins(1);

/// Evaluates what it is sent on a port, one expression at a time, within the broker. `rabbitmqctl` does the same, and takes a second of a
/// processor each time to start a node of its own.
const CONTROL: &str = r#"
spawn(fun() ->
    {ok, Listener} = gen_tcp:listen(PORT, [binary, {ip, {127, 0, 0, 1}}, {packet, 4}, {active, false}, {reuseaddr, true}]),
    Serve = fun Serve() ->
        {ok, Socket} = gen_tcp:accept(Listener),
        Answer = try
            {ok, Text} = gen_tcp:recv(Socket, 0),
            {ok, Tokens, _} = erl_scan:string(unicode:characters_to_list(Text)),
            {ok, Expressions} = erl_parse:parse_exprs(Tokens),
            {value, Value, _} = erl_eval:exprs(Expressions, []),
            io_lib:format("ok ~0tp", [Value])
        catch
            Class:Reason -> io_lib:format("~0tp ~0tp", [Class, Reason])
        end,
        _ = gen_tcp:send(Socket, unicode:characters_to_binary(Answer)),
        _ = gen_tcp:close(Socket),
        Serve()
    end,
    Serve()
end).
"#;

/// A running broker. Killed, and its files removed, when dropped.
#[derive(Debug)]
pub struct RabbitMq {
    process: Mutex<Option<Arc<Process>>>,
    /// Tells the programs where the node is.
    _names: Names,
    env: Vec<(String, String)>,
    authority: PathBuf,
    client: (PathBuf, PathBuf),
    /// Without TLS, with it, for the other nodes, and for [`CONTROL`].
    ports: [Port; 4],
    room: Room,
}

/// `epmd`, which tells the nodes of a machine where they are. It ends with this, unlike the one that a node starts.
#[derive(Debug)]
struct Names {
    port: Port,
    _process: Process,
    _room: Room,
}

/// A broker that is stopped: connections stay open, and nothing is answered. It goes on when this is dropped.
#[derive(Debug)]
pub struct Frozen(Pid);

impl RabbitMq {
    /// Starts a broker, and waits until it takes connections.
    pub async fn start(name: &str) -> Result<Self, Error> {
        Self::start_with(name, "").await
    }

    /// The same with further lines of `rabbitmq.conf`.
    pub async fn start_with(name: &str, settings: &str) -> Result<Self, Error> {
        Self::node(name, settings, Names::start(name).await?).await
    }

    async fn node(name: &str, settings: &str, names: Names) -> Result<Self, Error> {
        let room = Room::brief(&format!("mq-{name}"))?;
        let certificates = Certificates::make(&room)?;
        let authority = room.write("authority.pem", &certificates.authority_pem)?;
        let shown = certificates.client("client", CLIENT_GOOD_FOR)?;
        let client = (room.write("client.crt", &shown.certificate_pem)?, room.write("client.key", &shown.key_pem)?);
        let ports = [Port::take()?, Port::take()?, Port::take()?, Port::take()?];
        let [plain, tls, distribution, control] = &ports;
        let config = format!(
            "listeners.tcp.1 = {plain}\nlisteners.ssl.1 = {tls}\nssl_options.cacertfile = {room}/authority.pem\n\
             ssl_options.certfile = {room}/tls.crt\nssl_options.keyfile = {room}/tls.key\nssl_options.verify = verify_peer\n\
             ssl_options.fail_if_no_peer_cert = true\nlog.file.level = info\n{settings}\n",
            plain = plain.address(),
            tls = tls.address(),
            room = room.path().display(),
        );
        room.write("rabbitmq.conf", &config)?;
        room.write("enabled_plugins", "[].\n")?;
        room.write("env.conf", "")?;
        let script = room.write("control.script", &CONTROL.replace("PORT", &control.number().to_string()))?;
        // The script of the broker splits this at spaces.
        let control = format!("-eval file:script(\"{}\")", script.display());
        room.write(".erlang.cookie", "towlinefixture")?;
        let within = |name: &str| room.join(name).display().to_string();
        let env = [
            ("HOME", room.path().display().to_string()),
            ("LC_ALL", "C.UTF-8".to_owned()),
            ("RABBITMQ_NODENAME", node_name(plain)),
            ("RABBITMQ_DIST_PORT", distribution.number().to_string()),
            ("ERL_EPMD_PORT", names.port.number().to_string()),
            ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
            ("RABBITMQ_CONF_ENV_FILE", within("env.conf")),
            ("RABBITMQ_CONFIG_FILE", within("rabbitmq.conf")),
            ("RABBITMQ_ADVANCED_CONFIG_FILE", within("advanced.config")),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", within("enabled_plugins")),
            ("RABBITMQ_MNESIA_BASE", within("data")),
            ("RABBITMQ_LOG_BASE", within("log")),
            ("RABBITMQ_PID_FILE", within("pid")),
            // The script becomes the broker, so that the broker is what ends with the test.
            ("RUNNING_UNDER_SYSTEMD", "true".to_owned()),
            (
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                format!("+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none {control}"),
            ),
        ];
        let env: Vec<_> = env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        hand_over(&room)?;
        let broker = Self { process: Mutex::new(None), _names: names, env, authority, client, ports, room };
        broker.start_again().await?;
        Ok(broker)
    }

    /// Starts the broker that was killed, with its durable queues.
    pub async fn start_again(&self) -> Result<(), Error> {
        let program = Path::new(PROGRAMS).join("rabbitmq-server");
        let spec = spec("rabbitmq", &program, Vec::new(), &self.env, self.log_path());
        let process = Arc::new(Process::start(spec).await?);
        *self.process.lock() = Some(Arc::clone(&process));
        eventually("rabbitmq to take connections", LONGEST_START, async || {
            if let Err(ended) = process.check() {
                return Ok(Err(ended));
            }
            greeted(self.address()).await?;
            self.evaluated("ok.").await.map(|_| Ok(()))
        })
        .await?
    }

    /// SIGKILL to the broker.
    pub async fn kill(&self) -> Result<(), Error> {
        let process = self.process.lock().take();
        let process = process.ok_or_else(not_running)?;
        process.kill().await?;
        eventually("the broker's port to be free", LONGEST_START, async || {
            match TcpStream::connect(self.address()).await {
                Ok(_) => Err("somebody listens".to_owned()),
                Err(_) => Ok(()),
            }
        })
        .await?;
        // What a killed node has registered goes with its connection.
        Ok(())
    }

    /// Kills the broker and starts another one that knows nothing.
    pub async fn wipe(&self) -> Result<(), Error> {
        self.kill().await?;
        let data = self.room.join("data");
        fs::remove_dir_all(&data).map_err(Error::file("remove", &data))?;
        self.start_again().await
    }

    /// SIGSTOP to the broker.
    pub fn freeze(&self) -> Result<Frozen, Error> {
        let process = self.process.lock().clone().ok_or_else(not_running)?;
        process.check()?;
        let stop = |source: rustix::io::Errno| Error::Process {
            action: "stop",
            process: "rabbitmq".to_owned(),
            source: source.into(),
        };
        let group = Pid::from_raw(process.id()).ok_or_else(not_running)?;
        kill_process_group(group, Signal::STOP).map_err(stop)?;
        Ok(Frozen(group))
    }

    /// Evaluates expressions of Erlang within the broker, which end with a full stop. Returns what the last one comes to.
    pub async fn eval(&self, expressions: &str) -> Result<String, Error> {
        let failed = |detail: String| Error::Process {
            action: "control",
            process: "rabbitmq".to_owned(),
            source: std::io::Error::other(format!("{expressions}: {detail}")),
        };
        self.evaluated(expressions).await.map_err(failed)
    }

    async fn evaluated(&self, expressions: &str) -> Result<String, String> {
        let [.., control] = &self.ports;
        let ask = async {
            let mut stream = TcpStream::connect(control.address()).await?;
            stream.write_u32(u32::try_from(expressions.len()).unwrap_or(u32::MAX)).await?;
            stream.write_all(expressions.as_bytes()).await?;
            stream.read_u32().await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.map(|_| answer)
        };
        let answer = tokio::time::timeout(LONGEST_EVALUATION, ask).await.map_err(|_| "no answer".to_owned())?;
        let answer = answer.map_err(|error| error.to_string())?;
        answer.strip_prefix("ok ").map(str::to_owned).ok_or(answer)
    }

    /// The same for a function that has to return `ok`.
    async fn call(&self, function: &str) -> Result<(), Error> {
        self.eval(&format!("ok = {function}.")).await.map(drop)
    }

    /// Makes a virtual host, in which the account of [`Self::url`] may do everything: a test has it to itself.
    pub async fn add_vhost(&self, name: &str) -> Result<(), Error> {
        self.add_bare_vhost(name).await?;
        self.permit("guest", name, [".*"; 3]).await
    }

    /// Makes a virtual host in which nobody may do anything.
    pub async fn add_bare_vhost(&self, name: &str) -> Result<(), Error> {
        self.call(&format!("rabbit_vhost:add({}, <<\"test\">>)", binary(name))).await
    }

    pub async fn add_user(&self, name: &str, password: &str) -> Result<(), Error> {
        let (name, password) = (binary(name), binary(password));
        self.call(&format!("rabbit_auth_backend_internal:add_user({name}, {password}, <<\"test\">>)")).await
    }

    /// What an account may configure, write and read in a virtual host. Channels may remember what they have looked up before.
    pub async fn permit(&self, user: &str, vhost: &str, patterns: [&str; 3]) -> Result<(), Error> {
        let [configure, write, read] = patterns.map(binary);
        let (user, vhost) = (binary(user), binary(vhost));
        let set = "rabbit_auth_backend_internal:set_permissions";
        self.call(&format!("{set}({user}, {vhost}, {configure}, {write}, {read}, <<\"test\">>)")).await
    }

    /// Closes all connections to a virtual host.
    pub async fn close_connections(&self, vhost: &str) -> Result<(), Error> {
        let close = format!(
            "[rabbit_networking:close_connection(Pid, \"a test\") || \
             [{{pid, Pid}}, {{vhost, {}}}] <- rabbit_networking:connection_info_all([pid, vhost])].",
            binary(vhost)
        );
        self.eval(&close).await.map(drop)
    }

    /// Sets the memory alarm off or clears it: publishers are blocked meanwhile.
    pub async fn alarm(&self, on: bool) -> Result<(), Error> {
        let share = if on { "0.000001" } else { "0.8" };
        self.call(&format!("vm_memory_monitor:set_vm_memory_high_watermark({share})")).await
    }

    /// Sets the disk alarm off or clears it.
    pub async fn fill_disk(&self, on: bool) -> Result<(), Error> {
        let free: u64 = if on { 1_000_000_000_000_000 } else { 1_000_000 };
        self.call(&format!("rabbit_disk_monitor:set_disk_free_limit({free})")).await
    }

    /// The URL of the account that may do everything.
    pub fn url(&self) -> String {
        self.url_by(self.address())
    }

    /// The same by another address.
    pub fn url_by(&self, address: SocketAddr) -> String {
        format!("amqp://guest:guest@{address}/%2F")
    }

    /// The URL of a virtual host.
    pub fn url_of(&self, vhost: &str) -> String {
        self.url().replace("%2F", vhost)
    }

    /// The URL for TLS, with a certificate that the broker demands.
    pub fn tls_url(&self) -> String {
        let [_, tls, ..] = &self.ports;
        let (authority, (certificate, key)) = (self.authority.display(), &self.client);
        let (certificate, key) = (certificate.display(), key.display());
        let address = tls.address();
        format!("amqps://guest:guest@{address}/%2F?cacertfile={authority}&certfile={certificate}&keyfile={key}")
    }

    /// Where it listens without TLS.
    pub fn address(&self) -> SocketAddr {
        let [plain, ..] = &self.ports;
        plain.address()
    }

    /// CPU time since it was started last.
    pub fn cpu(&self) -> Result<Duration, Error> {
        let process = self.process.lock().clone().ok_or_else(not_running)?;
        process.check()?;
        Usage::cpu_with_children(process.id())
    }

    /// What it has logged: connections, and what it has refused.
    pub fn log(&self) -> Result<String, Error> {
        let directory = self.room.join("log");
        let mut text = String::new();
        for entry in fs::read_dir(&directory).map_err(Error::file("list", &directory))?.flatten() {
            let bytes = fs::read(entry.path()).map_err(Error::file("read", &entry.path()))?;
            text.push_str(&String::from_utf8_lossy(&bytes));
        }
        Ok(text)
    }

    /// The file with everything that it has printed, over its restarts.
    pub fn log_path(&self) -> PathBuf {
        self.room.join("rabbitmq.log")
    }
}

impl Names {
    async fn start(name: &str) -> Result<Self, Error> {
        if !Path::new(PROGRAMS).join("rabbitmq-server").exists() {
            let remedy = "install rabbitmq-server 3.10 or newer; hack/setup.sh does it".to_owned();
            return Err(Error::Missing { program: "rabbitmq-server", needed_for: "the bus over AMQP", remedy });
        }
        let room = Room::brief(&format!("mq-{name}-names"))?;
        hand_over(&room)?;
        let port = Port::take()?;
        let args = ["-port".to_owned(), port.number().to_string(), "-address".to_owned(), "127.0.0.1".to_owned()];
        let env = [("LC_ALL".to_owned(), "C.UTF-8".to_owned())];
        let spec = spec("epmd", Path::new("epmd"), args.map(Into::into).into(), &env, room.join("epmd.log"));
        Ok(Self { port, _process: Process::start(spec).await?, _room: room })
    }
}

/// A text as Erlang writes it.
fn binary(text: &str) -> String {
    format!("<<{text:?}>>")
}

fn node_name(plain: &Port) -> String {
    format!("towline{}@localhost", plain.number())
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // One that was killed meanwhile doesn't mind.
        let _ = kill_process_group(self.0, Signal::CONT);
    }
}

fn not_running() -> Error {
    Error::NotRunning { process: "rabbitmq".to_owned() }
}

fn spec(name: &str, program: &Path, args: Vec<OsString>, env: &[(String, String)], log: PathBuf) -> Spec {
    let (program, args) = as_owner(program, args);
    Spec { name: name.to_owned(), program, args, env: env.to_vec(), log, piped_stdin: false }
}

/// The command as the user of the package, if this is root.
fn as_owner(program: &Path, args: Vec<OsString>) -> (PathBuf, Vec<OsString>) {
    if !geteuid().is_root() {
        return (program.to_owned(), args);
    }
    let mut all: Vec<OsString> =
        ["--reuid=rabbitmq", "--regid=rabbitmq", "--init-groups", "--pdeathsig=KILL", "--"].map(Into::into).into();
    all.push(program.into());
    all.extend(args);
    ("setpriv".into(), all)
}

/// Gives the files to the user that the broker runs as.
fn hand_over(room: &Room) -> Result<(), Error> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let accounts = fs::read_to_string("/etc/passwd").map_err(Error::file("read", "/etc/passwd"))?;
    let found = accounts.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next() != Some("rabbitmq") {
            return None;
        }
        Some((fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?))
    });
    let remedy = || "install rabbitmq-server, which makes it".to_owned();
    let (user, group) =
        found.ok_or_else(|| Error::Missing { program: "user rabbitmq", needed_for: "the broker", remedy: remedy() })?;
    let give =
        |path: &Path| std::os::unix::fs::chown(path, Some(user), Some(group)).map_err(Error::file("give away", path));
    give(room.path())?;
    for entry in fs::read_dir(room.path()).map_err(Error::file("list", room.path()))?.flatten() {
        give(&entry.path())?;
    }
    Ok(())
}

/// Whether a broker answers the first bytes of the protocol.
async fn greeted(address: SocketAddr) -> Result<(), String> {
    let greet = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"AMQP\0\0\x09\x01").await?;
        stream.read_u8().await
    };
    match tokio::time::timeout(Duration::from_secs(5), greet).await {
        Ok(Ok(1)) => Ok(()),
        Ok(Ok(other)) => Err(format!("it begins with {other}")),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("no answer".to_owned()),
    }
}
