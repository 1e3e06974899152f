//! A PostgreSQL server of its own: the system's binaries, a private cluster, ready in about a second.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use integration::postgres::{self, Postgres, Transport};
//!
//! let server = Postgres::start("hub", Transport::Plain).await?;
//! let database = server.database("one").await?; // the schemas `spec` and `status`, and everybody's rights
//! let admin = database.client(postgres::ADMIN).await?;
//! let url = database.url(postgres::READER); // what the daemon is given
//! server.kill().await?; // SIGKILL; what was committed is still there after `start_again`
//! # drop((admin, url));
//! # Ok(())
//! # }
//! ```
//!
//! `initdb` refuses to run as root, so as root everything of it runs as the user `postgres`.

use std::ffi::OsString;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Signal, geteuid};
use tokio::process::Command;
use tokio_postgres::{Client, NoTls};

use crate::certificates::Certificates;
use crate::port::Port;
use crate::process::{Process, Spec};
use crate::room::Room;
use crate::usage::Usage;
use crate::{Error, eventually};

mod copies;
mod frozen;

pub use copies::Dump;
pub use frozen::Frozen;

/// May do everything; the tests' own doings, and the leaf hubs'.
pub const ADMIN: &str = "postgres";
/// The daemon: may read, and nothing else.
pub const READER: &str = "towline_reader";
/// The daemon with `notify = true`.
pub const NOTIFIER: &str = "towline_notifier";
/// A replica of the hub: owns its [database](Postgres::hub_database), and has no rights beyond it.
pub const HUB: &str = "towline_hub";
/// Somebody who may log in, and read nothing.
pub const UNPRIVILEGED: &str = "towline_unprivileged";

/// Passwords by user, as they stand in a URL: one has characters that a URL must escape.
const PASSWORDS: [(&str, &str); 5] = [
    (ADMIN, "admin"),
    (READER, "reader%20p%40ss%2Fword"),
    (NOTIFIER, "notifier"),
    (HUB, "hub"),
    (UNPRIVILEGED, "unprivileged"),
];

/// Ready within a second on an idle machine.
const LONGEST_START: Duration = Duration::from_mins(1);
/// Longer than any test takes.
const CLIENT_GOOD_FOR: Duration = Duration::from_hours(24);

const ROLES: &str = include_str!("../sql/roles.sql");
const SPEC: &str = include_str!("../sql/spec.sql");
const STATUS: &str = include_str!("../sql/status.sql");
const RIGHTS: &str = include_str!("../sql/rights.sql");

/// Whom the server talks to over TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Nobody with TLS.
    Plain,
    /// Everybody, with TLS and without.
    Both,
    /// Only who uses TLS.
    Tls,
    /// Only who uses TLS and shows a certificate of the [authority](Postgres::authority).
    Mutual,
}

/// A running server. Killed, and its files removed, when dropped.
#[derive(Debug)]
pub struct Postgres {
    process: Mutex<Option<Arc<Process>>>,
    programs: PathBuf,
    transport: Transport,
    settings: Vec<String>,
    authority: PathBuf,
    client: (PathBuf, PathBuf),
    port: Port,
    room: Room,
}

/// A database with the two schemas.
#[derive(Clone, Debug)]
pub struct Database {
    host: PathBuf,
    port: u16,
    name: String,
}

impl Postgres {
    /// Makes a cluster, starts it, and waits until it takes connections.
    pub async fn start(name: &str, transport: Transport) -> Result<Self, Error> {
        Self::start_with(name, transport, &[]).await
    }

    /// The same with settings of one's own, as `name=value`, over those of the fixture.
    pub async fn start_with(name: &str, transport: Transport, settings: &[&str]) -> Result<Self, Error> {
        let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
        let programs = find_programs()?;
        let room = Room::brief(&format!("pg-{name}"))?;
        let certificates = Certificates::make(&room)?;
        let authority = room.write("authority.pem", &certificates.authority_pem)?;
        let shown = certificates.client("client", CLIENT_GOOD_FOR)?;
        let client = (room.write("client.crt", &shown.certificate_pem)?, room.write("client.key", &shown.key_pem)?);
        let password = room.write("password", "admin")?;
        let (process, port) = (Mutex::new(None), Port::take()?);
        let server = Self { process, programs, transport, settings, authority, client, port, room };
        server.hand_over()?;
        server.initialize(&password).await?;
        server.start_again().await?;
        let admin = server.maintenance().await?;
        execute(&admin, "make the roles", ROLES).await?;
        Ok(server)
    }

    /// Makes a database with the schemas and everybody's rights.
    pub async fn database(&self, name: &str) -> Result<Database, Error> {
        let database = self.empty_database(name).await?;
        let admin = database.client(ADMIN).await?;
        for (what, sql) in [("make schema spec", SPEC), ("make schema status", STATUS), ("grant rights", RIGHTS)] {
            execute(&admin, what, sql).await?;
        }
        execute(&admin, "count statements", "CREATE EXTENSION pg_stat_statements").await?;
        Ok(database)
    }

    /// Makes a database with nothing in it.
    pub async fn empty_database(&self, name: &str) -> Result<Database, Error> {
        let admin = self.maintenance().await?;
        execute(&admin, "make a database", &format!("CREATE DATABASE {name}")).await?;
        Ok(Database { host: self.room.path().to_owned(), port: self.port.number(), name: name.to_owned() })
    }

    /// Makes an empty database that belongs to [`HUB`]. Statements are counted in `statistics.pg_stat_statements`.
    pub async fn hub_database(&self, name: &str) -> Result<Database, Error> {
        let database = self.empty_database(name).await?;
        let admin = database.client(ADMIN).await?;
        let owned = format!(
            "ALTER DATABASE {name} OWNER TO {HUB}; CREATE SCHEMA statistics; \
             CREATE EXTENSION pg_stat_statements SCHEMA statistics"
        );
        execute(&admin, "give a database away", &owned).await?;
        Ok(database)
    }

    /// A connection of the administrator to a database that no test uses.
    pub async fn maintenance(&self) -> Result<Client, Error> {
        connect(self.room.path(), self.port.number(), ADMIN, "postgres").await
    }

    /// The authority that has signed the server's certificate, as `sslrootcert` names it.
    pub fn authority(&self) -> &Path {
        &self.authority
    }

    /// Certificate and key that the authority has signed for clients, as `sslcert` and `sslkey` name them.
    pub fn client_certificate(&self) -> (&Path, &Path) {
        (&self.client.0, &self.client.1)
    }

    /// Starts the server that was killed, with everything that it had acknowledged.
    pub async fn start_again(&self) -> Result<(), Error> {
        let mut args: Vec<OsString> = vec!["-D".into(), self.data().into()];
        let socket = format!("unix_socket_directories={}", self.room.path().display());
        let port = format!("port={}", self.port.number());
        let ssl = if self.transport == Transport::Plain { "ssl=off" } else { "ssl=on" };
        for setting in [
            socket.as_str(),
            port.as_str(),
            ssl,
            "ssl_cert_file=../tls.crt",
            "ssl_key_file=../tls.key",
            "ssl_ca_file=../authority.pem",
            "listen_addresses=127.0.0.1",
            "shared_preload_libraries=pg_stat_statements",
            // Of more statements than that, all tests together, it forgets some, and tests count them.
            "pg_stat_statements.max=20000",
            // A machine that loses its power is no case here; a killed server loses nothing without these two.
            "fsync=off",
            "full_page_writes=off",
            "autovacuum=off",
            // Of 1 GB that each of twenty servers would keep otherwise, nobody needs anything.
            "min_wal_size=32MB",
            "max_wal_size=96MB",
            // All tests of a suite share one server.
            "max_connections=600",
        ] {
            args.extend(["-c".into(), setting.into()]);
        }
        for setting in &self.settings {
            args.extend(["-c".into(), setting.into()]);
        }
        let (program, args) = Self::as_owner(&self.programs.join("postgres"), args);
        let process = Process::start(Spec {
            name: "postgres".to_owned(),
            program,
            args,
            env: vec![("LC_ALL".to_owned(), "C".to_owned())],
            log: self.log_path(),
            piped_stdin: false,
        })
        .await?;
        let process = Arc::new(process);
        *self.process.lock() = Some(Arc::clone(&process));
        eventually("postgres to take connections", LONGEST_START, async || {
            if let Err(ended) = process.check() {
                return Ok(Err(ended));
            }
            let tried = self.maintenance().await;
            tried.map(|_| Ok(())).map_err(|error| error.chain())
        })
        .await?
    }

    /// SIGKILL to the server and everything that serves a connection.
    pub async fn kill(&self) -> Result<(), Error> {
        let process = self.process.lock().take();
        let process = process.ok_or_else(|| Error::NotRunning { process: "postgres".to_owned() })?;
        process.kill().await?;
        // What serves a connection notices by itself that the server is gone, and until then no other can be started.
        let data = fs::canonicalize(self.data()).map_err(Error::file("find", &self.data()))?;
        eventually("what served connections to end", LONGEST_START, async || {
            let is_left = |entry: &fs::DirEntry| fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == data);
            let left = fs::read_dir("/proc").into_iter().flatten().flatten().filter(is_left).count();
            if left == 0 { Ok(()) } else { Err(format!("{left} are left")) }
        })
        .await?;
        Ok(())
    }

    /// Asks the server to end at once and in order (SIGINT), and waits for its end.
    pub async fn stop(&self, limit: Duration) -> Result<(), Error> {
        let process = self.process.lock().take();
        let process = process.ok_or_else(|| Error::NotRunning { process: "postgres".to_owned() })?;
        process.signal(Signal::INT)?;
        process.wait(limit).await.map(|_| ())
    }

    /// CPU time of the server since it was started last, with everything that serves a connection or did.
    pub fn cpu(&self) -> Result<Duration, Error> {
        let process = self.process.lock().clone();
        let process = process.ok_or_else(|| Error::NotRunning { process: "postgres".to_owned() })?;
        process.check()?;
        Usage::cpu_with_children(process.id())
    }

    /// The file with everything that the server has logged, over its restarts.
    pub fn log_path(&self) -> PathBuf {
        self.room.join("postgres.log")
    }

    fn data(&self) -> PathBuf {
        self.room.join("data")
    }

    /// Gives the files to the user that the server runs as.
    fn hand_over(&self) -> Result<(), Error> {
        if !geteuid().is_root() {
            return Ok(());
        }
        let (user, group) = postgres_user()?;
        let give = |path: &Path| {
            std::os::unix::fs::chown(path, Some(user), Some(group)).map_err(Error::file("give away", path))
        };
        give(self.room.path())?;
        for entry in fs::read_dir(self.room.path()).map_err(Error::file("list", self.room.path()))?.flatten() {
            give(&entry.path())?;
        }
        Ok(())
    }

    async fn initialize(&self, password: &Path) -> Result<(), Error> {
        let args: Vec<OsString> = vec![
            "-D".into(),
            self.data().into(),
            "--username".into(),
            ADMIN.into(),
            "--encoding=UTF8".into(),
            "--locale=C.UTF-8".into(),
            "--auth-local=trust".into(),
            "--auth-host=scram-sha-256".into(),
            "--no-sync".into(),
            "--pwfile".into(),
            password.into(),
        ];
        let (program, args) = Self::as_owner(&self.programs.join("initdb"), args);
        let output = Command::new(program).args(args).current_dir("/").kill_on_drop(true).output().await;
        let output = output.map_err(|source| Error::Process { action: "run", process: "initdb".to_owned(), source })?;
        if !output.status.success() {
            let detail = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(Error::Build { what: "a PostgreSQL cluster", detail });
        }
        let demanded = match self.transport {
            Transport::Plain | Transport::Both => None,
            Transport::Tls => Some(""),
            Transport::Mutual => Some(" clientcert=verify-ca"),
        };
        if let Some(demanded) = demanded {
            let path = self.data().join("pg_hba.conf");
            let rules = format!("local all all trust\nhostssl all all 127.0.0.1/32 scram-sha-256{demanded}\n");
            fs::write(&path, rules).map_err(Error::file("write", &path))?;
        }
        Ok(())
    }

    /// The command as the user that may run it. A change of user forgets the signal that ties a child to its parent's
    /// life, so that it is set again behind it.
    fn as_owner(program: &Path, args: Vec<OsString>) -> (PathBuf, Vec<OsString>) {
        if !geteuid().is_root() {
            return (program.to_owned(), args);
        }
        let wrapper = ["--reuid=postgres", "--regid=postgres", "--init-groups", "--pdeathsig", "KILL", "--"];
        let all = wrapper.into_iter().map(OsString::from).chain([program.into()]).chain(args).collect();
        (PathBuf::from("setpriv"), all)
    }
}

impl Database {
    /// A connection over the server's socket.
    pub async fn client(&self, user: &str) -> Result<Client, Error> {
        connect(&self.host, self.port, user, &self.name).await
    }

    /// The URL by which a user reaches it over TCP, without parameters.
    pub fn url(&self, user: &str) -> String {
        self.url_by(user, &format!("localhost:{}", self.port))
    }

    /// The same by another host and port, such as a link's.
    pub fn url_by(&self, user: &str, address: &str) -> String {
        let password = PASSWORDS.iter().find(|(name, _)| *name == user).map_or("", |(_, password)| *password);
        format!("postgres://{user}:{password}@{address}/{}", self.name)
    }

    /// libpq's keywords by which a user reaches it, without a password. `host` is a name or the
    /// [directory of sockets](Self::socket_directory).
    pub fn keywords(&self, user: &str, host: &str) -> String {
        format!("host={host} port={} dbname={} user={user}", self.port, self.name)
    }

    pub fn socket_directory(&self) -> &Path {
        &self.host
    }

    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port))
    }
}

async fn connect(host: &Path, port: u16, user: &str, database: &str) -> Result<Client, Error> {
    let mut config = tokio_postgres::Config::new();
    config.host_path(host).port(port).user(user).dbname(database).application_name("fixture");
    let (client, connection) = config.connect(NoTls).await.map_err(Error::database("connect to postgres"))?;
    tokio::spawn(connection);
    Ok(client)
}

async fn execute(client: &Client, what: &'static str, sql: &str) -> Result<(), Error> {
    client.batch_execute(sql).await.map_err(Error::database(what))
}

/// The newest server binaries that are installed; Debian keeps each version's in a directory of its own.
fn find_programs() -> Result<PathBuf, Error> {
    let installed = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = installed
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse::<u32>().ok()?, entry.path().join("bin"))))
        .filter(|(_, programs)| programs.join("initdb").exists() && programs.join("postgres").exists())
        .max();
    if let Some((_, programs)) = newest {
        return Ok(programs);
    }
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths)
        .find(|path| path.join("initdb").exists() && path.join("postgres").exists())
        .ok_or_else(|| Error::Missing {
            program: "postgres",
            needed_for: "the hub's database",
            remedy: "install the server, 15 or newer (Debian: apt-get install postgresql)".to_owned(),
        })
}

fn postgres_user() -> Result<(u32, u32), Error> {
    let users = fs::read_to_string("/etc/passwd").map_err(Error::file("read", "/etc/passwd"))?;
    let ids = users.lines().find_map(|line| {
        let mut fields = line.strip_prefix("postgres:")?.split(':').skip(1);
        Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
    });
    ids.ok_or_else(|| Error::Missing {
        program: "the user postgres",
        needed_for: "initdb refuses to run as root",
        remedy: "install the server (Debian: apt-get install postgresql), or run as another user than root".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{ADMIN, Postgres, READER, Transport};

    #[tokio::test]
    async fn a_killed_server_comes_back_with_what_was_committed_and_the_reader_only_reads() {
        let server = Postgres::start("fixture", Transport::Plain).await.unwrap();
        let database = server.database("one").await.unwrap();
        let admin = database.client(ADMIN).await.unwrap();
        let insert = "INSERT INTO status.compliance VALUES (gen_random_uuid(), 'c', 'l', 'none', 'pending')";
        assert_eq!(admin.execute(insert, &[]).await.unwrap(), 1);
        server.kill().await.unwrap();
        server.start_again().await.unwrap();
        let reader = database.client(READER).await.unwrap();
        let count: i64 = reader.query_one("SELECT count(*) FROM status.compliance", &[]).await.unwrap().get(0);
        assert_eq!(count, 1);
        assert!(reader.execute(insert, &[]).await.is_err(), "the daemon's account may write");
        server.stop(Duration::from_secs(30)).await.unwrap();
    }
}
