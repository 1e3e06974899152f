//! What is measured: by environment, so that `make bench OBJECTS=1000` is enough.

use std::env;
use std::str::FromStr;
use std::time::Duration;

use crate::daemon::Program;
use crate::load_kind::LoadKind;
use crate::phases::Phase;

/// What a run of the bench is about.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// `OBJECTS=1000,10000`: how many objects, one round of runs for each.
    pub(crate) objects: Vec<usize>,
    /// `RUNS=3`: how often each is measured; the table has the medians.
    pub(crate) runs: usize,
    /// `PHASES=create,spec-paced,…`: which of [`Phase::ALL`]. Objects are made and deleted in any case.
    pub(crate) phases: Vec<Phase>,
    /// `CHANGES=1000`: changes in each of the four phases that change objects.
    pub(crate) changes: usize,
    /// `RATE=50`: changes a second in the paced phases.
    pub(crate) rate: u32,
    /// `AT_ONCE=32`: requests that the load generator has in flight in a burst.
    pub(crate) at_once: usize,
    /// `IDLE=10`: seconds that the idle phase looks on.
    pub(crate) idle: Duration,
    /// `PROPAGATION=Background`: of the section. With `Foreground` the garbage collector runs, and is measured, too.
    pub(crate) propagation: Propagation,
    /// `NAMESPACES=20`: the objects are spread evenly over as many. With 1, all are in one.
    pub(crate) namespaces: usize,
    /// `OWNED=false`: whether the daemon makes the namespaces on the edge, and deletes them with their last objects.
    pub(crate) owned: bool,
    /// `AGAINST=go`: each run is done by that program, too, on the same clusters, and the two are compared.
    pub(crate) against: Option<Program>,
    /// `--kind poddisruptionbudgets` or `KIND=…`.
    pub(crate) kind: LoadKind,
}

/// How local objects are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Propagation {
    /// They are gone at once.
    Background,
    /// The garbage collector ends them.
    Foreground,
}

impl Propagation {
    /// As the section's configuration has it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Background => "Background",
            Self::Foreground => "Foreground",
        }
    }
}

impl FromStr for Propagation {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "Background" => Ok(Self::Background),
            "Foreground" => Ok(Self::Foreground),
            _ => Err(()),
        }
    }
}

/// Which job is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    /// Resource sync.
    Sync,
    /// Heartbeat leases.
    Lease,
    /// Status sync.
    Status,
    Hub,
    Syncsets,
    /// Events and work over the bus.
    Bus,
    Inventory,
}

impl FromStr for Job {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "sync" => Ok(Self::Sync),
            "lease" => Ok(Self::Lease),
            "status" => Ok(Self::Status),
            "hub" => Ok(Self::Hub),
            "syncsets" => Ok(Self::Syncsets),
            "bus" => Ok(Self::Bus),
            "inventory" => Ok(Self::Inventory),
            _ => Err(()),
        }
    }
}

/// A job with its options.
#[derive(Clone, Debug)]
pub(crate) enum Planned {
    /// Resource sync.
    Sync(Box<Options>),
    /// Heartbeat leases.
    Lease(LeaseOptions),
    /// Status sync.
    Status(StatusOptions),
    Hub(HubOptions),
    Syncsets(SyncsetOptions),
    /// Events and work over the bus.
    Bus(BusOptions),
    Inventory(InventoryOptions),
}

/// `JOBS=sync,lease,status,hub,syncsets,bus,inventory`: which jobs, in this order. One name may mean something else to another job, so only the
/// options of these are read.
pub(crate) fn planned() -> Result<Vec<Planned>, String> {
    let all = vec![Job::Sync, Job::Lease, Job::Status, Job::Hub, Job::Syncsets, Job::Bus, Job::Inventory];
    let jobs = list("JOBS", all, "sync, lease, status, hub, syncsets, bus, inventory")?;
    let planned = jobs.into_iter().map(|job| {
        Ok(match job {
            Job::Sync => Planned::Sync(Box::new(Options::read()?)),
            Job::Lease => Planned::Lease(LeaseOptions::read()?),
            Job::Status => Planned::Status(StatusOptions::read()?),
            Job::Hub => Planned::Hub(HubOptions::read()?),
            Job::Syncsets => Planned::Syncsets(SyncsetOptions::read()?),
            Job::Bus => Planned::Bus(BusOptions::read()?),
            Job::Inventory => Planned::Inventory(InventoryOptions::read()?),
        })
    });
    planned.collect()
}

/// How the lease job is measured.
#[derive(Clone, Debug)]
pub(crate) struct LeaseOptions {
    /// `LEASES=5000`: leases of the large fleet.
    pub(crate) leases: usize,
    /// `WINDOW=60`: seconds that the steady state is looked at; the side-car's twice as long.
    pub(crate) window: Duration,
    /// `RUNS=3`.
    pub(crate) runs: usize,
}

impl LeaseOptions {
    /// From the environment.
    pub(crate) fn read() -> Result<Self, String> {
        let options = Self {
            leases: value("LEASES", 5_000, "a number of leases")?,
            window: Duration::from_secs(value("WINDOW", 60, "seconds")?),
            runs: value("RUNS", 3, "a number of runs")?,
        };
        if options.leases == 0 || options.runs == 0 || options.window.is_zero() {
            return Err("LEASES, WINDOW and RUNS are at least 1".to_owned());
        }
        Ok(options)
    }
}

/// Policies, and for each of them a row of each cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Size {
    pub(crate) policies: usize,
    pub(crate) clusters: usize,
}

impl FromStr for Size {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (policies, clusters) = text.split_once('x').ok_or(())?;
        let number = |text: &str| text.parse().ok().filter(|number| *number > 0).ok_or(());
        Ok(Self { policies: number(policies)?, clusters: number(clusters)? })
    }
}

/// How status sync is measured.
#[derive(Clone, Debug)]
pub(crate) struct StatusOptions {
    /// `SIZES=500x200,2000x500`: policies by clusters, one round of runs for each.
    pub(crate) sizes: Vec<Size>,
    /// `OTHERS=200`: placement rules, placements, and subscriptions; each is reported by three leaf hubs.
    pub(crate) others: usize,
    /// `INTERVAL=5`: seconds between passes.
    pub(crate) interval: Duration,
    /// `PASSES=6`: idle passes that are looked at.
    pub(crate) passes: u64,
    /// `FLIPS=3`: how often all rows change at once, each time at another moment between two passes.
    pub(crate) flips: u32,
    /// `TRICKLE=120`: changes of one row, two a second. None with 0.
    pub(crate) trickle: usize,
    /// `NOTIFY=true`: the trickle and a flip once more, with the daemon listening.
    pub(crate) notify: bool,
    /// `RUNS=3`.
    pub(crate) runs: usize,
}

impl StatusOptions {
    /// From the environment.
    pub(crate) fn read() -> Result<Self, String> {
        let sizes = vec![Size { policies: 500, clusters: 200 }, Size { policies: 2_000, clusters: 500 }];
        let options = Self {
            sizes: list("SIZES", sizes, "POLICIESxCLUSTERS, joined by commas")?,
            others: value("OTHERS", 200, "a number of objects")?,
            interval: Duration::from_secs(value("INTERVAL", 5, "seconds")?),
            passes: value("PASSES", 6, "a number of passes")?,
            flips: value("FLIPS", 3, "a number of flips")?,
            trickle: value("TRICKLE", 120, "a number of changes")?,
            notify: value("NOTIFY", true, "true, false")?,
            runs: value("RUNS", 3, "a number of runs")?,
        };
        if options.others == 0 || options.runs == 0 || options.passes == 0 || options.interval.is_zero() {
            return Err("OTHERS, RUNS, PASSES and INTERVAL are at least 1".to_owned());
        }
        if options.sizes.iter().any(|size| size.policies < options.trickle) {
            return Err("there are at least as many policies as changes in TRICKLE: each changes once".to_owned());
        }
        Ok(options)
    }
}

/// How the hub is measured.
#[derive(Clone, Debug)]
pub(crate) struct HubOptions {
    /// `CLUSTERS=10000`: how many clusters are created, changed, read and listed.
    pub(crate) clusters: usize,
    /// `DOCUMENTS=100000`: how many there are for the lists by selector and for the start.
    pub(crate) documents: usize,
    /// `CLIENTS=1,8,64`: clients that write at the same time, one round for each.
    pub(crate) clients: Vec<usize>,
    /// `STEPS=updates,read,…`: which of [`Step::ALL`]. Clusters are created in any case.
    pub(crate) steps: Vec<Step>,
    /// `WINDOW=20`: seconds that documents are read one by one, and that watches are looked at.
    pub(crate) window: Duration,
    /// `READ_RATE=500`: reads of one document a second.
    pub(crate) read_rate: u32,
    /// `WATCHERS=1000`: watches in the crowd, spread over all replicas.
    pub(crate) watchers: usize,
    /// `REPLICAS=3`.
    pub(crate) replicas: usize,
    /// `CHANGE_RATE=10`: changes a second that watches show.
    pub(crate) change_rate: u32,
    /// `IDLE=30`: seconds that a replica without requests is looked at.
    pub(crate) idle: Duration,
    /// `FSYNC=true`: whether the database server writes each commit to the disk, as a real one does.
    pub(crate) fsync: bool,
    /// `RUNS=3`.
    pub(crate) runs: usize,
}

/// A step of the hub's run that may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Conditional updates.
    Updates,
    /// Reads of one document at a steady rate.
    Read,
    /// A list in pages.
    List,
    /// Watches: one alone, and a crowd.
    Watch,
    /// A replica at rest.
    Idle,
    /// Lists by selector among all documents.
    Selectors,
    /// The start of a replica among all documents.
    Start,
}

impl Step {
    /// In the order of a run.
    pub(crate) const ALL: [Self; 7] =
        [Self::Updates, Self::Read, Self::List, Self::Watch, Self::Idle, Self::Selectors, Self::Start];

    fn as_str(self) -> &'static str {
        match self {
            Self::Updates => "updates",
            Self::Read => "read",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Idle => "idle",
            Self::Selectors => "selectors",
            Self::Start => "start",
        }
    }
}

impl FromStr for Step {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|step| step.as_str() == text).ok_or(())
    }
}

impl HubOptions {
    /// From the environment.
    pub(crate) fn read() -> Result<Self, String> {
        let steps = Step::ALL.map(Step::as_str).join(", ");
        let options = Self {
            clusters: value("CLUSTERS", 10_000, "a number of clusters")?,
            documents: value("DOCUMENTS", 100_000, "a number of documents")?,
            clients: list("CLIENTS", vec![1, 8, 64], "numbers of clients, joined by commas")?,
            steps: list("STEPS", Step::ALL.to_vec(), &steps)?,
            window: Duration::from_secs(value("WINDOW", 20, "seconds")?),
            read_rate: value("READ_RATE", 500, "reads a second")?,
            watchers: value("WATCHERS", 1_000, "a number of watches")?,
            replicas: value("REPLICAS", 3, "a number of replicas")?,
            change_rate: value("CHANGE_RATE", 10, "changes a second")?,
            idle: Duration::from_secs(value("IDLE", 30, "seconds")?),
            fsync: value("FSYNC", true, "true, false")?,
            runs: value("RUNS", 3, "a number of runs")?,
        };
        let counts = [options.documents, options.replicas, options.watchers, options.runs, options.clients.len()];
        let rates = [options.read_rate, options.change_rate];
        let is_zero = counts.into_iter().chain(options.clients.iter().copied()).any(|count| count == 0);
        if is_zero || rates.contains(&0) || options.window.is_zero() || options.idle.is_zero() {
            return Err("all numbers of JOBS=hub are at least 1".to_owned());
        }
        if options.watchers < 2 {
            return Err("WATCHERS is at least 2: one watch alone is measured before".to_owned());
        }
        if options.clusters < 100 {
            return Err("CLUSTERS is at least 100: some selectors match one in a hundred".to_owned());
        }
        if options.documents < options.clusters {
            return Err("DOCUMENTS is at least CLUSTERS, which are among them".to_owned());
        }
        Ok(options)
    }

    /// Whether a step is to be done.
    pub(crate) fn has(&self, step: Step) -> bool {
        self.steps.contains(&step)
    }
}

/// What syncsets are measured on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// Real API servers, each of which stands for many clusters.
    Real,
    /// A simulated API server for each cluster.
    Simulated,
}

impl FromStr for Scenario {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "real" => Ok(Self::Real),
            "simulated" => Ok(Self::Simulated),
            _ => Err(()),
        }
    }
}

/// How a tenth of the clusters dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) enum Death {
    /// It refuses connections.
    Refuses,
    /// Its network swallows packets.
    Swallows,
    /// It stops in the midst of each answer.
    Stops,
    /// It answers too late: after 5.5 s.
    Slow,
}

impl FromStr for Death {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "refuses" => Ok(Self::Refuses),
            "swallows" => Ok(Self::Swallows),
            "stops" => Ok(Self::Stops),
            "slow" => Ok(Self::Slow),
            _ => Err(()),
        }
    }
}

/// How syncsets are measured.
#[derive(Clone, Debug)]
pub(crate) struct SyncsetOptions {
    /// `SCENARIOS=real`: of `real` and `simulated`.
    pub(crate) scenarios: Vec<Scenario>,
    /// `CLUSTERS=100`: documents that lead to the API servers.
    pub(crate) clusters: usize,
    /// `EDGES=2`: real API servers.
    pub(crate) edges: usize,
    /// `SYNCSETS=50`: `SelectorSyncSet`s for all simulated clusters, and `EACH=5`: objects of each.
    pub(crate) syncsets: usize,
    pub(crate) each: usize,
    /// `DEAD=refuses,swallows,stops,slow`: how clusters die, in turns.
    pub(crate) dead: Vec<Death>,
    /// `SINGLES=50`: changes of one object, one after the other.
    pub(crate) singles: usize,
    /// `IDLE=30`: seconds without changes.
    pub(crate) idle: Duration,
    /// `RUNS=1`.
    pub(crate) runs: usize,
}

impl SyncsetOptions {
    /// From the environment.
    pub(crate) fn read() -> Result<Self, String> {
        let dead = vec![Death::Refuses, Death::Swallows, Death::Stops, Death::Slow];
        let options = Self {
            scenarios: list("SCENARIOS", vec![Scenario::Real], "real, simulated")?,
            clusters: value("CLUSTERS", 100, "a number of clusters")?,
            edges: value("EDGES", 2, "a number of API servers")?,
            syncsets: value("SYNCSETS", 50, "a number of SelectorSyncSets")?,
            each: value("EACH", 5, "a number of objects")?,
            dead: list("DEAD", dead, "refuses, swallows, stops, slow")?,
            singles: value("SINGLES", 50, "a number of changes")?,
            idle: Duration::from_secs(value("IDLE", 30, "seconds")?),
            runs: value("RUNS", 1, "a number of runs")?,
        };
        let counts = [options.edges, options.singles, options.runs, options.syncsets, options.each];
        if counts.contains(&0) || options.idle.is_zero() {
            return Err("EDGES, SYNCSETS, EACH, SINGLES, IDLE and RUNS are at least 1".to_owned());
        }
        if options.clusters < 10 {
            return Err("CLUSTERS is at least 10: one in ten dies".to_owned());
        }
        if options.syncsets * options.each > 400 {
            return Err("SYNCSETS times EACH is at most 400: a simulated API server has lists of one page".to_owned());
        }
        Ok(options)
    }
}

/// How the bus is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BusOptions {
    /// `CLUSTERS=5000`: clusters that are changed, and then all worked on.
    pub(crate) clusters: usize,
    /// `RATE=50`: changes a second while delays are measured, and `WINDOW=20`: for so many seconds.
    pub(crate) rate: u32,
    pub(crate) window: Duration,
    /// `RUNS=1`.
    pub(crate) runs: usize,
}

impl BusOptions {
    /// From the environment.
    pub(crate) fn read() -> Result<Self, String> {
        let options = Self {
            clusters: value("CLUSTERS", 5_000, "a number of clusters")?,
            rate: value("RATE", 50, "changes a second")?,
            window: Duration::from_secs(value("WINDOW", 20, "seconds")?),
            runs: value("RUNS", 1, "a number of runs")?,
        };
        if options.clusters == 0 || options.rate == 0 || options.runs == 0 || options.window.is_zero() {
            return Err("CLUSTERS, RATE, WINDOW and RUNS are at least 1".to_owned());
        }
        Ok(options)
    }
}

/// How the inventory is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InventoryOptions {
    /// `RELEASES=40`, in `NAMESPACES=50`.
    pub(crate) releases: usize,
    pub(crate) namespaces: usize,
    /// `MANY=1000`: further releases at the end.
    pub(crate) many: usize,
    /// `IDLE=60`: seconds that the idle phase looks on.
    pub(crate) idle: Duration,
    /// `RUNS=1`.
    pub(crate) runs: usize,
}

impl InventoryOptions {
    /// From the environment.
    pub(crate) fn read() -> Result<Self, String> {
        let options = Self {
            releases: value("RELEASES", 40, "a number of releases")?,
            namespaces: value("NAMESPACES", 50, "a number of namespaces")?,
            many: value("MANY", 1_000, "a number of releases")?,
            idle: Duration::from_secs(value("IDLE", 60, "seconds")?),
            runs: value("RUNS", 1, "a number of runs")?,
        };
        if options.releases == 0 || options.namespaces == 0 || options.runs == 0 || options.idle.is_zero() {
            return Err("RELEASES, NAMESPACES, IDLE and RUNS are at least 1".to_owned());
        }
        Ok(options)
    }
}

impl Options {
    /// From the environment and the command line; what can't be read is told with what is allowed.
    pub(crate) fn read() -> Result<Self, String> {
        let kind = arguments(env::args().skip(1))?.or_else(|| env::var("KIND").ok());
        let kinds = LoadKind::ALL.map(LoadKind::as_str).join(", ");
        let phases = Phase::ALL.map(Phase::as_str).join(", ");
        let options = Self {
            objects: list("OBJECTS", vec![1_000, 10_000], "numbers of objects, joined by commas")?,
            runs: value("RUNS", 3, "a number of runs")?,
            phases: list("PHASES", Phase::ALL.to_vec(), &phases)?,
            changes: value("CHANGES", 1_000, "a number of changes")?,
            rate: value("RATE", 50, "changes a second")?,
            at_once: value("AT_ONCE", 32, "requests in flight")?,
            idle: Duration::from_secs(value("IDLE", 10, "seconds")?),
            propagation: value("PROPAGATION", Propagation::Background, "Background, Foreground")?,
            namespaces: value("NAMESPACES", 20, "a number of namespaces")?,
            owned: value("OWNED", false, "true, false")?,
            against: against()?,
            kind: match kind {
                Some(text) => text.parse().map_err(|()| format!("--kind {text}: expected one of {kinds}"))?,
                None => LoadKind::PodDisruptionBudgets,
            },
        };
        let counts = [options.runs, options.changes, options.at_once, options.rate as usize, options.namespaces];
        if counts.into_iter().chain(options.objects.iter().copied()).any(|count| count == 0) {
            return Err("OBJECTS, RUNS, CHANGES, RATE, AT_ONCE and NAMESPACES are at least 1".to_owned());
        }
        if options.owned && options.against.is_some() {
            return Err("OWNED=true goes without AGAINST: the Go controller makes no namespaces".to_owned());
        }
        Ok(options)
    }

    /// The programs to measure, in the order of their turns.
    pub(crate) fn programs(&self) -> impl Iterator<Item = Program> + use<> {
        std::iter::once(Program::Towline).chain(self.against)
    }

    /// Whether a phase is to be reported.
    pub(crate) fn has(&self, phase: Phase) -> bool {
        self.phases.contains(&phase)
    }
}

fn arguments(mut arguments: impl Iterator<Item = String>) -> Result<Option<String>, String> {
    let mut kind = None;
    while let Some(argument) = arguments.next() {
        match argument.split_once('=') {
            Some(("--kind", text)) => kind = Some(text.to_owned()),
            None if argument == "--kind" => kind = Some(arguments.next().ok_or("--kind needs a value")?),
            _ => {
                return Err(format!("unknown argument {argument}: only --kind KIND is taken, the rest is environment"));
            }
        }
    }
    Ok(kind)
}

fn against() -> Result<Option<Program>, String> {
    match env::var("AGAINST") {
        Ok(text) if text == Program::Go.as_str() => Ok(Some(Program::Go)),
        Ok(text) if !text.is_empty() => Err(format!("AGAINST={text}: expected {}", Program::Go.as_str())),
        _ => Ok(None),
    }
}

fn value<T: FromStr>(name: &str, default: T, allowed: &str) -> Result<T, String> {
    match env::var(name) {
        Ok(text) => text.parse().map_err(|_| format!("{name}={text}: expected {allowed}")),
        Err(_) => Ok(default),
    }
}

fn list<T: FromStr>(name: &str, default: Vec<T>, allowed: &str) -> Result<Vec<T>, String> {
    let Ok(text) = env::var(name) else { return Ok(default) };
    let items: Result<Vec<T>, _> = text.split(',').map(|item| item.trim().parse()).collect();
    items.map_err(|_| format!("{name}={text}: expected {allowed}"))
}
