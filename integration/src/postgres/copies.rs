//! Copies of a server and of its databases: what a failover or a restore makes of them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use tokio::process::Command;

use super::{ADMIN, Database, LONGEST_START, Postgres, Transport, connect, execute, find_programs};
use crate::port::Port;
use crate::room::Room;
use crate::{Error, eventually};

impl Postgres {
    /// A standby that follows this server until it is [cut off](Self::cut_off).
    pub async fn standby(&self, name: &str) -> Result<Self, Error> {
        self.copied(name, &["--write-recovery-conf"]).await
    }

    /// A server from a snapshot of this one's disk: with the same identity, and without what comes later.
    pub async fn snapshot(&self, name: &str) -> Result<Self, Error> {
        self.copied(name, &[]).await
    }

    /// From now on this standby hears nothing from its primary.
    pub async fn cut_off(&self) -> Result<(), Error> {
        let admin = connect(self.room.path(), self.port.number(), ADMIN, "postgres").await?;
        execute(&admin, "forget the primary", "ALTER SYSTEM SET primary_conninfo = ''").await?;
        execute(&admin, "forget the primary", "SELECT pg_reload_conf()").await?;
        eventually("the standby to be cut off", LONGEST_START, async || {
            let receivers = admin.query_one("SELECT count(*) FROM pg_stat_wal_receiver", &[]).await;
            match receivers.map_err(|error| error.to_string())?.get::<_, i64>(0) {
                0 => Ok(()),
                receivers => Err(format!("{receivers} receivers")),
            }
        })
        .await
    }

    pub async fn promote(&self) -> Result<(), Error> {
        let admin = connect(self.room.path(), self.port.number(), ADMIN, "postgres").await?;
        execute(&admin, "promote a standby", "SELECT pg_promote(true)").await?;
        eventually("the standby to be promoted", LONGEST_START, async || {
            let in_recovery = admin.query_one("SELECT pg_is_in_recovery()", &[]).await;
            let in_recovery: bool = in_recovery.map_err(|error| error.to_string())?.get(0);
            if in_recovery { Err("it is in recovery".to_owned()) } else { Ok(()) }
        })
        .await
    }

    /// A database that was copied with the server.
    pub fn copied_database(&self, original: &Database) -> Database {
        Database { host: self.room.path().to_owned(), port: self.port.number(), name: original.name.clone() }
    }

    async fn copied(&self, name: &str, options: &[&str]) -> Result<Self, Error> {
        let room = Room::brief(&format!("pg-{name}"))?;
        let copy = Self {
            process: Mutex::new(None),
            programs: self.programs.clone(),
            transport: Transport::Plain,
            authority: self.authority.clone(),
            client: self.client.clone(),
            port: Port::take()?,
            settings: self.settings.clone(),
            room,
        };
        copy.hand_over()?;
        let mut args: Vec<OsString> = vec!["-D".into(), copy.data().into(), "-h".into(), self.room.path().into()];
        args.extend(["-p".into(), self.port.number().to_string().into(), "-U".into(), ADMIN.into()]);
        args.extend(["--checkpoint=fast", "--no-sync"].iter().chain(options).map(OsString::from));
        let (program, args) = Self::as_owner(&self.programs.join("pg_basebackup"), args);
        run("a copy of a PostgreSQL cluster", &program, args).await?;
        copy.start_again().await?;
        Ok(copy)
    }
}

#[derive(Debug)]
pub struct Dump {
    room: Room,
}

impl Database {
    pub async fn dump(&self) -> Result<Dump, Error> {
        self.dump_with(&[]).await
    }

    /// The same without a schema, which stays as it is when the dump replaces everything else.
    pub async fn dump_without(&self, schema: &str) -> Result<Dump, Error> {
        self.dump_with(&["--exclude-schema", schema]).await
    }

    async fn dump_with(&self, options: &[&str]) -> Result<Dump, Error> {
        let dump = Dump { room: Room::new("dump")? };
        let mut args = self.address_args();
        args.extend(options.iter().map(OsString::from));
        args.extend(["--format=custom".into(), "--file".into(), dump.file().into(), self.name.clone().into()]);
        run("a dump of a database", &find_programs()?.join("pg_dump"), args).await?;
        Ok(dump)
    }

    /// Dumps it as text, with these options of `pg_dump`.
    pub async fn dump_text(&self, options: &[&str]) -> Result<String, Error> {
        let room = Room::new("dump")?;
        let path = room.join("dump.sql");
        let mut args = self.address_args();
        args.extend(options.iter().map(OsString::from));
        args.extend(["--file".into(), path.clone().into(), self.name.clone().into()]);
        run("a dump of a database", &find_programs()?.join("pg_dump"), args).await?;
        std::fs::read_to_string(&path).map_err(Error::file("read", &path))
    }

    fn address_args(&self) -> Vec<OsString> {
        let port = self.port.to_string();
        vec!["-h".into(), self.host.clone().into(), "-p".into(), port.into(), "-U".into(), ADMIN.into()]
    }
}

impl Dump {
    /// Restores it into a database, which is empty.
    pub async fn restore(&self, database: &Database) -> Result<(), Error> {
        run(
            "a database from a dump",
            &find_programs()?.join("pg_restore"),
            self.restore_args(database, &["--exit-on-error"]),
        )
        .await
    }

    /// Restores it into a database, and replaces what is there of the same names.
    pub async fn replace(&self, database: &Database) -> Result<(), Error> {
        let args = self.restore_args(database, &["--clean", "--if-exists"]);
        match run("a database from a dump", &find_programs()?.join("pg_restore"), args).await {
            // It tries to drop the constraints of partitions, which go with those of the whole table.
            Err(Error::Build { detail, .. }) if are_harmless(&detail) => Ok(()),
            outcome => outcome,
        }
    }

    fn restore_args(&self, database: &Database, options: &[&str]) -> Vec<OsString> {
        let mut args = database.address_args();
        args.extend(options.iter().map(OsString::from));
        args.extend(["--dbname".into(), database.name.clone().into(), self.file().into()]);
        args
    }

    fn file(&self) -> PathBuf {
        self.room.join("dump")
    }
}

/// Whether these are only errors of `pg_restore` that it goes on after, and that change nothing.
fn are_harmless(detail: &str) -> bool {
    let mut errors = detail.lines().filter(|line| line.starts_with("pg_restore: error:"));
    errors.all(|error| error.contains("cannot drop inherited constraint"))
}

async fn run(what: &'static str, program: &Path, args: Vec<OsString>) -> Result<(), Error> {
    let process = || program.display().to_string();
    let output = Command::new(program).args(args).current_dir("/").kill_on_drop(true).output().await;
    let output = output.map_err(|source| Error::Process { action: "run", process: process(), source })?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::Build { what, detail: String::from_utf8_lossy(&output.stderr).into_owned() })
}
