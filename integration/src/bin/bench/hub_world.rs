//! A database and replicas of the hub on it: the world of the hub, of syncsets and of the bus.

use std::cell::RefCell;
use std::ops::Range;
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use integration::hub::{Client, Replica, Reply, Request};
use integration::postgres::{self, Database, Postgres, Transport};
use integration::{Error, eventually};

use crate::measure::Probes;

/// No step takes that long, even on a machine that does other things too.
pub(crate) const LONGEST_STEP: Duration = Duration::from_mins(10);
/// The settings of a server as it is installed, which override those that make the fixture quick. `fsync` stays off.
const SETTINGS: [&str; 2] = ["autovacuum=on", "full_page_writes=on"];

/// Starts the server of all runs. With `fsync` it writes each commit to the disk, as a real one does.
pub(crate) async fn start_server(name: &str, fsync: bool) -> Result<Postgres, Error> {
    let mut settings = SETTINGS.to_vec();
    settings.extend(fsync.then_some("fsync=on"));
    Postgres::start_with(name, Transport::Plain, &settings).await
}

pub(crate) struct HubWorld<'s> {
    server: &'s Postgres,
    name: String,
    database: Database,
    /// An administrator's connection. Its work counts as the database's CPU time, but not as statements.
    sql: tokio_postgres::Client,
    /// Beside `[hub]`.
    sections: String,
    pub(crate) replicas: Vec<Replica>,
}

impl<'s> HubWorld<'s> {
    /// Makes a database and starts replicas, of which the first makes the schema.
    pub(crate) async fn begin(
        server: &'s Postgres,
        name: &str,
        sections: &str,
        replicas: usize,
    ) -> Result<Self, Error> {
        let database = server.hub_database(name).await?;
        let sql = database.client(postgres::ADMIN).await?;
        let (name, sections) = (name.to_owned(), sections.to_owned());
        let mut world = Self { server, name, database, sql, sections, replicas: Vec::new() };
        world.start(replicas).await?;
        Ok(world)
    }

    async fn start(&mut self, replicas: usize) -> Result<(), Error> {
        while self.replicas.len() < replicas {
            let replica = Replica::run(&self.database, &self.sections, &[]).await?;
            replica.wait_ready(LONGEST_STEP).await?;
            self.replicas.push(replica);
        }
        Ok(())
    }

    /// Ends all replicas in order, and starts as many. Returns how long it took until they were ready.
    pub(crate) async fn restart(&mut self) -> Result<Duration, Error> {
        let count = self.replicas.len();
        self.stop().await?;
        let began = Instant::now();
        self.start(count).await?;
        Ok(began.elapsed())
    }

    async fn stop(&mut self) -> Result<(), Error> {
        for replica in self.replicas.drain(..) {
            replica.towline().terminate(LONGEST_STEP).await?;
        }
        Ok(())
    }

    pub(crate) async fn end(mut self) -> Result<(), Error> {
        self.stop().await?;
        drop(self.sql);
        let drop_database = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        let admin = self.server.maintenance().await?;
        admin.batch_execute(&drop_database).await.map_err(Error::database("remove a database"))
    }

    pub(crate) fn probes(&self) -> Probes<'_> {
        let programs = self.replicas.iter().map(|replica| replica.towline() as _).collect();
        Probes { programs, database: Some((self.server, &self.sql)), ..Probes::default() }
    }

    pub(crate) fn client(&self, number: usize) -> Result<Client, Error> {
        let missing = || Error::Unreadable { what: "the hub".to_owned(), detail: "it does not run".to_owned() };
        self.replicas.get(number % self.replicas.len().max(1)).map(Replica::client).ok_or_else(missing)
    }

    /// Sends a request that has to succeed.
    pub(crate) async fn send(&self, request: &Request) -> Result<Reply, Error> {
        self.client(0)?.send(request).await?.success()
    }

    /// So many clients send the requests with these numbers: each takes the next one when its last request was answered. Returns how
    /// long each took.
    pub(crate) async fn by_clients(
        &self,
        clients: usize,
        numbers: Range<usize>,
        request: impl Fn(usize) -> Result<Request, Error>,
        mut replied: impl FnMut(usize, &Reply) -> Result<(), Error>,
    ) -> Result<Vec<Duration>, Error> {
        let state = RefCell::new((numbers, Vec::new(), &mut replied));
        let one = async |mut client: Client| {
            loop {
                let number = state.borrow_mut().0.next();
                let Some(number) = number else { return Ok::<_, Error>(()) };
                let request = request(number)?;
                let sent = Instant::now();
                let reply = client.send(&request).await?.success()?;
                let (_, taken, replied) = &mut *state.borrow_mut();
                taken.push(sent.elapsed());
                replied(number, &reply)?;
            }
        };
        let mut all = Vec::new();
        for number in 0..clients {
            all.push(one(self.client(number)?));
        }
        try_join_all(all).await?;
        Ok(state.into_inner().1)
    }

    /// The newest version of documents.
    pub(crate) async fn newest(&self) -> Result<String, Error> {
        let page = self.send(&Request::get("/v1/clusters?limit=1")).await?.json()?;
        let version = page.get("resourceVersion").and_then(serde_json::Value::as_str);
        let missing = || Error::Unreadable { what: "a page".to_owned(), detail: page.to_string() };
        version.map(str::to_owned).ok_or_else(missing)
    }

    /// Waits until a query gives a number that is right.
    pub(crate) async fn wait_for(&self, what: &str, query: &str, is_right: impl Fn(i64) -> bool) -> Result<(), Error> {
        eventually(what, LONGEST_STEP, async || {
            let row = self.sql.query_one(query, &[]).await.map_err(|error| error.to_string())?;
            let number: i64 = row.get(0);
            if is_right(number) { Ok(()) } else { Err(number.to_string()) }
        })
        .await
    }

    /// Runs statements as the administrator.
    pub(crate) async fn execute(&self, what: &'static str, sql: &str) -> Result<(), Error> {
        self.sql.batch_execute(sql).await.map_err(Error::database(what))
    }
}
