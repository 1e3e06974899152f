//! Everything that the story plays on: three clusters, a database, the daemon between them, the edges' own controllers.

use std::cell::RefCell;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::rc::Rc;
use std::time::{Duration, Instant};

use integration::compare::{Mapping, differences};
use integration::rbac::{Grant, LeaseSide, Side, grant_election, grant_lease, grant_status_sync};
use integration::{Towline, crds, eventually, users};
use serde::Deserialize;
use serde_json::Value;
use tokio::task::JoinSet;

use crate::cluster::{Cluster, LIMIT, databases};
use crate::controller::CREDENTIALS;
use crate::error::Error;
use crate::hub_server::HubServer;
use crate::inventory::Inventory;
use crate::kubeconfigs::write_merged;
use crate::leaf_hubs::LeafHubs;
use crate::requests::Requests;
use crate::screen::Screen;
use crate::terminal::Terminal;

/// What the daemon is started with.
const CONFIG: &str = "config/demo.toml";
/// The kubeconfigs that [`CONFIG`] names, and the log.
pub(crate) const FILES: &str = ".cache/demo";
/// The database's URL, in [`FILES`], as [`CONFIG`] names it.
const DATABASE_URL: &str = "database.url";
/// Longer than the grace that the daemon has by default.
const LONGEST_SHUTDOWN: Duration = Duration::from_secs(45);

/// Where the Leases of the election are, on the hub.
pub(crate) const ELECTION_NAMESPACE: &str = "towline";
/// Where west's heartbeat is, on the hub.
pub(crate) const HEARTBEAT_NAMESPACE: &str = "west-heartbeats";
/// Where the add-on is, on west.
pub(crate) const ADD_ON_NAMESPACE: &str = "add-ons";

/// What is waited for at the moment, for whoever watches.
pub(crate) type Note = Rc<RefCell<String>>;

pub(crate) struct Stage {
    // Dropped in this order: the daemon before the clusters.
    pub(crate) controllers: JoinSet<()>,
    /// `towline inventory` on east.
    pub(crate) inventory: Inventory,
    pub(crate) towline: Towline,
    /// Where people order databases.
    pub(crate) hub: Cluster,
    /// An edge that will fail.
    pub(crate) west: Cluster,
    /// An edge that goes on meanwhile.
    pub(crate) east: Cluster,
    /// `towline hub`, in two replicas.
    pub(crate) hub_server: HubServer,
    /// What they report to the hub's database.
    pub(crate) leaf_hubs: LeafHubs,
    pub(crate) terminal: Terminal,
    /// The kubeconfig of whoever types them.
    pub(crate) kubeconfig: PathBuf,
    pub(crate) note: Note,
    /// Keeps other demos away from the files.
    _lock: File,
}

impl Stage {
    /// Starts everything, and tells so line by line.
    pub(crate) async fn set(screen: Screen) -> Result<Self, Error> {
        let lock = lock()?;
        let began = Instant::now();
        let starting =
            || "starting etcd, three API servers, three controller managers and a database server".to_owned();
        let url_file = Path::new(FILES).join(DATABASE_URL);
        let clusters = Box::pin(async {
            tokio::try_join!(
                Cluster::start("hub", users::HUB_USER, &[crds::POLICIES]),
                Cluster::start("west", users::EDGE_CONTROLLER, &[]),
                Cluster::start("east", users::EDGE_CONTROLLER, &[crds::HOSSTED_PROJECTS]),
                LeafHubs::start(&url_file),
            )
        });
        let (mut hub, mut west, mut east, leaf_hubs) = screen.during(starting, clusters).await?;
        screen.done("one hub, two edges: three Kubernetes API servers; a PostgreSQL server", began.elapsed());
        let began = Instant::now();
        Grant::demo(Side::Remote).apply(&hub.admin).await?;
        Grant::demo(Side::Local).apply(&west.admin).await?;
        Grant::demo(Side::Local).apply(&east.admin).await?;
        hub.make_namespace(ELECTION_NAMESPACE).await?;
        hub.make_namespace(HEARTBEAT_NAMESPACE).await?;
        west.make_namespace(ADD_ON_NAMESPACE).await?;
        grant_election(&hub.admin, ELECTION_NAMESPACE, None).await?;
        grant_status_sync(&hub.admin).await?;
        grant_lease(&west.admin, LeaseSide::Managed, ADD_ON_NAMESPACE, users::TOWLINE, None).await?;
        grant_lease(&hub.admin, LeaseSide::Hub, HEARTBEAT_NAMESPACE, users::TOWLINE, None).await?;
        screen.done("user towline may do what the roles in deploy grant, and no more", began.elapsed());
        for cluster in [&mut hub, &mut west, &mut east] {
            write_kubeconfig(cluster)?;
            cluster.begin_to_count().await?;
        }
        let kubeconfig = write_merged(&[&hub, &west, &east])?;
        let terminal = Terminal::new(&kubeconfig).await?;
        let began = Instant::now();
        let towline = Towline::start_file(Path::new(CONFIG), listen()?, &Path::new(FILES).join("towline.log")).await?;
        let until_ready = towline.wait_ready(LIMIT);
        screen.during(|| "waiting for towline to be ready".to_owned(), until_ready).await?;
        screen.done(&format!("towline run --config {CONFIG}, ready at {}", towline.admin_url()), began.elapsed());
        let began = Instant::now();
        let database = leaf_hubs.hub_database().await?;
        let serving = HubServer::start(&database);
        let hub_server = screen.during(|| "waiting for towline hub to be ready".to_owned(), serving).await?;
        screen.done(
            &format!("towline hub with syncsets, two replicas on a database, ready at {}", hub_server.url()),
            began.elapsed(),
        );
        let began = Instant::now();
        let serving = Inventory::start(&east);
        let inventory = screen.during(|| "waiting for towline inventory to be ready".to_owned(), serving).await?;
        screen.done(
            "towline inventory on east, configured by its environment alone, and an API that is told",
            began.elapsed(),
        );
        let (controllers, note) = (JoinSet::new(), Note::default());
        Ok(Self {
            controllers,
            inventory,
            towline,
            hub,
            west,
            east,
            hub_server,
            leaf_hubs,
            terminal,
            kubeconfig,
            note,
            _lock: lock,
        })
    }

    /// Starts another replica of the daemon, at another address, and waits until it takes part.
    pub(crate) async fn start_replica(&self) -> Result<Towline, Error> {
        let log = Path::new(FILES).join("towline-2.log");
        let replica = Towline::start_file(Path::new(CONFIG), listen()?, &log).await?;
        replica.wait_ready(LIMIT).await?;
        Ok(replica)
    }

    /// The kubeconfig of towline for the hub, as text.
    pub(crate) fn hub_kubeconfig(&self) -> Result<String, Error> {
        let path = self.hub.plane.kubeconfig(users::TOWLINE)?;
        fs::read_to_string(&path).map_err(Error::file("read", &path))
    }

    pub(crate) fn waits_for(&self, what: impl Into<String>) {
        *self.note.borrow_mut() = what.into();
    }

    /// Waits until every edge that runs is in step with the hub, object by object, and towline has nothing left to do.
    pub(crate) async fn rest(&self) -> Result<(), Error> {
        for edge in [&self.west, &self.east] {
            if !edge.is_up {
                continue;
            }
            self.waits_for(format!("waiting for {} to be in step with the hub", edge.name));
            eventually(format!("{} to be in step with the hub", edge.name), LIMIT, async || {
                let section = self.towline.admin().section(edge.name).await.map_err(|error| error.chain())?;
                busy(&section).map_or(Ok(()), Err)?;
                let found = self.differences(edge).await.map_err(|error| error.chain())?;
                found.first().map_or(Ok(()), |first| Err(format!("{} differences: {first}", found.len())))
            })
            .await?;
        }
        Ok(())
    }

    /// In what an edge differs from its part of the hub.
    pub(crate) async fn differences(&self, edge: &Cluster) -> Result<Vec<String>, Error> {
        let mapping = Mapping {
            namespace_prefix: format!("{}-", edge.name),
            finalizer: format!("sync-{}", edge.name),
            secret_names: vec![CREDENTIALS.to_owned()],
            ..Mapping::default()
        };
        Ok(differences(&self.hub.admin, &edge.admin, &databases(), &mapping).await?)
    }

    /// The requests of towline so far, at hub, west and east.
    pub(crate) async fn requests(&mut self) -> Result<[Requests; 3], Error> {
        Ok([self.hub.requests().await?, self.west.requests().await?, self.east.requests().await?])
    }

    /// Stops everything, the daemon as an operator would, and tells how the daemon ended.
    pub(crate) async fn stop(mut self) -> Result<ExitStatus, Error> {
        self.controllers.shutdown().await;
        self.inventory.stop(LONGEST_SHUTDOWN).await?;
        let ended = self.towline.terminate(LONGEST_SHUTDOWN).await?;
        for cluster in [self.hub, self.west, self.east] {
            cluster.plane.stop().await?;
        }
        self.hub_server.stop(LONGEST_SHUTDOWN).await?;
        self.leaf_hubs.stop(LONGEST_SHUTDOWN).await?;
        Ok(ended)
    }
}

/// What a section still has to do, by its own report.
fn busy(section: &Value) -> Option<String> {
    let busy = ["/objects/pending", "/objects/failing", "/objects/deleting", "/queue/running", "/queue/waiting"];
    busy.into_iter().find_map(|pointer| {
        let count = section.pointer(pointer).and_then(Value::as_u64).unwrap_or_default();
        (count > 0).then(|| format!("{pointer}: {count}"))
    })
}

/// Takes the demo's files for this process.
fn lock() -> Result<File, Error> {
    fs::create_dir_all(FILES).map_err(Error::file("create", FILES))?;
    let path = Path::new(FILES).join("lock");
    let lock = File::create(&path).map_err(Error::file("create", &path))?;
    lock.try_lock().map_err(|_| Error::Busy)?;
    Ok(lock)
}

/// The daemon reads its kubeconfigs where the configuration says.
fn write_kubeconfig(cluster: &Cluster) -> Result<(), Error> {
    let made = cluster.plane.kubeconfig(users::TOWLINE)?;
    let path = Path::new(FILES).join(format!("{}.kubeconfig", cluster.name));
    // Takes the permissions along: nobody else may read it.
    fs::copy(made, &path).map(|_| ()).map_err(Error::file("write", &path))
}

/// The admin address that the configuration names.
fn listen() -> Result<SocketAddr, Error> {
    #[derive(Deserialize)]
    struct Configuration {
        daemon: Daemon,
    }
    #[derive(Deserialize)]
    struct Daemon {
        listen: SocketAddr,
    }
    let text = fs::read_to_string(CONFIG).map_err(Error::file("read", CONFIG))?;
    let read: Result<Configuration, _> = toml::from_str(&text);
    let unreadable = |error: toml::de::Error| Error::Unreadable { path: CONFIG.into(), detail: error.to_string() };
    Ok(read.map_err(unreadable)?.daemon.listen)
}
