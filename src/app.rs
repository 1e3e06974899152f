//! `towline run`: mailboxes, watches and sections first, then the tree that runs them, until a signal ends it.

use std::net::TcpListener as StdListener;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures::future::{BoxFuture, OptionFuture};
use metrics_exporter_prometheus::PrometheusHandle;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::actor::{self, BoxError, ChildSpec, Liveness, Scope, Supervisor, SupervisorHandle};
use crate::cluster::{Cluster, WatchRegistry};
use crate::config::{DaemonConfig, SectionName};
use crate::election::{Elected, Election};
use crate::job::command::Exit;
use crate::job::{Config, JobList, Wiring};
use crate::state::Keeping;
use crate::status::{Admin, Denials, History, Section, Tree, serve};
use crate::telemetry::{self, VERSION};

/// Threads for the bodies of actors; the control lane has its own. One is enough for several times what two API servers
/// on the same machine take, and saves the wake-ups between threads: a sixth of the CPU time of a paced load, measured.
const WORKER_THREADS: usize = 1;

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("failed to set up the log")]
    Log(#[source] telemetry::InstallLog),
    #[error("failed to set up metrics")]
    Metrics(#[source] telemetry::InstallMetrics),
    #[error("failed to listen on {address}")]
    Listen {
        /// `daemon.listen`.
        address: std::net::SocketAddr,
        source: std::io::Error,
    },
    /// The runtime or the signal handlers can't be made.
    #[error("failed to start the runtime")]
    Runtime(#[source] std::io::Error),
}

/// Runs the daemon until a signal or a crash loop ends it.
pub fn run(config: Config, jobs: JobList) -> Result<Exit, StartError> {
    telemetry::install_log(&config.daemon.log).map_err(StartError::Log)?;
    let metrics = telemetry::install_metrics(jobs.metrics()).map_err(StartError::Metrics)?;
    let address = config.daemon.listen;
    let listener = StdListener::bind(address)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener))
        .map_err(|source| StartError::Listen { address, source })?;
    actor::run(WORKER_THREADS, |liveness| supervise(config, jobs, metrics, listener, liveness))
        .map_err(StartError::Runtime)?
}

async fn supervise(
    config: Config,
    jobs: JobList,
    metrics: PrometheusHandle,
    listener: StdListener,
    liveness: Liveness,
) -> Result<Exit, StartError> {
    let mut signals = Signals::new().map_err(StartError::Runtime)?;
    let listening = listener.local_addr().map(|address| address.to_string()).unwrap_or_default();
    let count = config.sections().count();
    tracing::info!(version = VERSION, admin = %listening, sections = count, "towline starts");
    if count == 0 {
        tracing::warn!("{}", jobs.nothing_runs());
    }
    for job in &config.jobs {
        job.announce();
    }

    let tree = Arc::new(LiveTree { handle: OnceLock::new(), liveness });
    let children = children(&config, metrics, listener, &tree);
    let root = Supervisor::start("towline", children);
    // Set once, here.
    let _ = tree.handle.set(root.clone());

    tokio::select! {
        reason = root.exited() => {
            tracing::error!(%reason, "towline ends: the tree can't be kept up");
            return Ok(Exit::Failed);
        }
        () = signals.end() => {}
    }
    Ok(shut_down(&root, config.daemon.shutdown_grace, &mut signals).await)
}

/// What runs below the root: mailboxes, watches and sections are made here, and nothing of it has started.
fn children(config: &Config, metrics: PrometheusHandle, listener: StdListener, tree: &Arc<LiveTree>) -> Vec<ChildSpec> {
    let mut watches = WatchRegistry::new(&config.clusters);
    let elected = config.jobs.iter().filter(|job| job.is_elected());
    let names: Vec<SectionName> = elected.flat_map(|job| job.names()).cloned().collect();
    let election = config.election.as_ref().map(|election| Election::new(election, &names, &mut watches));
    let keeping = Keeping::new(&config.daemon, config.election.as_ref());
    let mut wiring = Wiring::new(&mut watches, &keeping, election.as_deref());
    for job in &config.jobs {
        job.wire(&mut wiring);
    }
    let (sections, runs) = wiring.into_parts();
    let admin = AdminChild {
        daemon: config.daemon.clone(),
        started: Instant::now(),
        metrics,
        sections,
        clusters: watches.clusters(),
        election: election.clone(),
        tree: Arc::clone(tree),
        listener: Arc::new(listener),
    };
    // The admin server first, so that it is there to watch the others start, and the last to be drained.
    let mut children = vec![admin.into_child()];
    children.extend(watches.into_children());
    // Drained in reverse: sections end, and each one's Lease is released as soon as it has.
    children.extend(election.iter().flat_map(|election| election.electors()));
    children.extend(runs);
    children
}

/// The signals that end the daemon.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// None where the process was started to outlive its terminal (`nohup`).
    hangup: Option<Signal>,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        let hangup = if ignores_hangup() { None } else { Some(signal(SignalKind::hangup())?) };
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())?, hangup })
    }

    async fn end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
            Some(_) = OptionFuture::from(self.hangup.as_mut().map(Signal::recv)) => {}
        }
    }

    /// Waits for a second SIGTERM or SIGINT. SIGHUP does not count: a closed terminal may send it twice, itself and by its shell.
    async fn end_again(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Whether this process was started with SIGHUP ignored: the lowest bit of a mask in hexadecimal digits.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & 1 == 1)
}

/// Drains the tree within the grace period; a second signal ends it at once.
async fn shut_down(root: &SupervisorHandle, grace: Duration, signals: &mut Signals) -> Exit {
    tracing::info!(?grace, "towline shuts down");
    let unfinished = tokio::select! {
        unfinished = root.drain(grace) => unfinished,
        () = signals.end_again() => {
            tracing::warn!("second signal: work is aborted");
            root.drain(Duration::ZERO).await
        }
    };
    if unfinished.is_empty() {
        tracing::info!("towline has shut down");
        Exit::Done
    } else {
        tracing::warn!(unfinished = unfinished.join(", "), "towline has shut down with work undone");
        Exit::Failed
    }
}

/// The tree, once it has started.
struct LiveTree {
    handle: OnceLock<SupervisorHandle>,
    liveness: Liveness,
}

impl Tree for LiveTree {
    fn report(&self) -> BoxFuture<'_, Value> {
        Box::pin(async {
            match self.handle.get() {
                // Plain data always serializes.
                Some(handle) => serde_json::to_value(handle.report().await).unwrap_or(Value::Null),
                None => Value::Null,
            }
        })
    }

    fn ask(&self) -> Duration {
        self.liveness.ask()
    }
}

/// What the admin server needs to be started, and started again.
struct AdminChild {
    daemon: DaemonConfig,
    started: Instant,
    metrics: PrometheusHandle,
    sections: Vec<Arc<dyn Section>>,
    clusters: Vec<Cluster>,
    election: Option<Arc<Election>>,
    tree: Arc<LiveTree>,
    listener: Arc<StdListener>,
}

impl AdminChild {
    fn into_child(self) -> ChildSpec {
        let this = Arc::new(self);
        ChildSpec::new("admin", move |scope| {
            let this = Arc::clone(&this);
            async move { this.serve(scope).await }
        })
    }

    async fn serve(&self, scope: Scope) -> Result<(), BoxError> {
        let listener = TcpListener::from_std(self.listener.try_clone()?)?;
        let election = self.election.clone();
        let shown = |section: &Arc<dyn Section>| match &self.election {
            Some(election) => Elected::around(election, Arc::clone(section)),
            None => Arc::clone(section),
        };
        let shown: Vec<Arc<dyn Section>> = self.sections.iter().map(shown).collect();
        let (reported, clusters, watched) = (shown.clone(), self.clusters.clone(), self.clusters.clone());
        let admin = Admin {
            started: self.started,
            metrics: self.metrics.clone(),
            before_scrape: Arc::new(move || {
                for cluster in &watched {
                    telemetry::cluster_available(cluster.name(), cluster.is_available());
                    telemetry::cluster_new_credentials_fail(cluster.name(), cluster.has_credentials_fault());
                }
                for section in &reported {
                    let facts = section.facts();
                    telemetry::section_well(section.name(), facts.condition(section.name()).well);
                    for (state, objects) in facts.objects.by_state() {
                        telemetry::section_objects(section.name(), state, objects);
                    }
                    section.refresh();
                    if election.is_none() {
                        telemetry::leader_election_master_status(section.name(), true);
                    }
                }
                if let Some(election) = &election {
                    election.refresh();
                }
            }),
            sections: shown,
            clusters: Arc::new(move || clusters.iter().map(Cluster::status).collect()),
            tree: Arc::clone(&self.tree) as Arc<dyn Tree>,
            history: self.daemon.ui.then(|| History::new(self.sections.len(), self.clusters.len())),
            hosts: self.daemon.hosts.clone(),
            token_file: self.daemon.admin_token_file.clone(),
            denials: Denials::default(),
        };
        let stop = CancellationToken::new();
        let server = serve(listener, admin, stop.clone());
        tokio::pin!(server);
        tokio::select! {
            () = &mut server => return Ok(()),
            () = scope.draining() => stop.cancel(),
        }
        server.await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::SocketAddr;
    use std::sync::mpsc;

    use metrics_exporter_prometheus::PrometheusBuilder;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;
    use crate::actor::ActorReport;
    use crate::jobs::JOBS;

    /// Many times what the health check allows the lane to be silent for.
    const LIMIT: Duration = Duration::from_mins(1);

    async fn ask_for_health(address: SocketAddr) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: towline\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }

    /// Every job, and everything that a section can have. Nothing of it answers.
    const EVERYTHING: &str = r#"
        [daemon]
        listen = "127.0.0.1:0"
        state_namespace = "towline"
        [clusters.hub]
        kubeconfig = "/nonexistent/hub"
        [clusters.edge]
        kubeconfig = "/nonexistent/edge"
        [[sync]]
        name = "databases"
        remote = "hub"
        local = "edge"
        resource = "databases.v1.demo.towline.dev"
        [[lease]]
        name = "heartbeat"
        cluster = "edge"
        lease_name = "add-on"
        lease_namespace = "edge"
        secret_name = "hub"
        secret_namespace = "add-on"
        [status_sync]
        cluster = "hub"
        database_url = "postgres://nobody@127.0.0.1:1/none"
        notify = true
        [hub]
        listen = "127.0.0.1:0"
        database_url = "postgres://nobody@127.0.0.1:1/none"
        bus = "amqp"
        amqp_url = "amqp://nobody@127.0.0.1:1"
        [syncsets]
        [inventory]
        cluster = "edge"
        api_url = "http://127.0.0.1:1"
        token_file = "/nonexistent/token"
    "#;

    const ARCHITECTURE: &str = include_str!("../ARCHITECTURE.md");

    /// The drawing of the actors.
    fn drawing() -> &'static str {
        let (_, from) = ARCHITECTURE.split_once("## The tree\n\n```\n").expect("a drawing");
        from.split_once("```").expect("its end").0
    }

    /// The actors in the drawing, each behind those that supervise it: `hub/tail`.
    fn drawn() -> BTreeSet<String> {
        let mut path: Vec<&str> = Vec::new();
        let actor = |line: &'static str| {
            let name = line.trim_start_matches(['│', '├', '└', '─', ' ']);
            let depth = (line.chars().count() - name.chars().count()) / 3;
            path.truncate(depth - 1);
            path.extend(name.split(' ').next());
            path.join("/")
        };
        drawing().lines().skip(1).map(actor).collect()
    }

    /// The actors of a report in the same way, by the first words of their names.
    fn running(report: &ActorReport, below: &str, found: &mut BTreeSet<String>) {
        for child in &report.children {
            let path = format!("{below}{}", child.name.split(' ').next().unwrap_or_default());
            running(child, &format!("{path}/"), found);
            found.insert(path);
        }
    }

    #[test]
    fn every_actor_is_drawn_and_every_drawn_actor_runs() {
        let election = "[election]\ncluster = \"edge\"\nnamespace = \"towline\"\n";
        let mut found = BTreeSet::new();
        for text in [EVERYTHING.to_owned(), EVERYTHING.to_owned() + election] {
            let config = JOBS.parse(&text, []).unwrap_or_else(|error| panic!("{error:?}"));
            let listener = StdListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            let report = actor::run(WORKER_THREADS, |liveness| async move {
                let tree = Arc::new(LiveTree { handle: OnceLock::new(), liveness });
                let metrics = PrometheusBuilder::new().build_recorder().handle();
                let root = Supervisor::start("towline", children(&config, metrics, listener, &tree));
                let report = root.report().await;
                root.drain(LIMIT).await;
                report
            });
            running(&report.unwrap(), "", &mut found);
        }
        assert_eq!(found, drawn());
    }

    /// Asks until an answer has this status; an error with the last answer where none has.
    async fn health_is(status: &str, address: SocketAddr) -> Result<(), String> {
        let begun = Instant::now();
        loop {
            let answer = ask_for_health(address).await.unwrap_or_else(|error| error.to_string());
            if answer.starts_with(&format!("HTTP/1.1 {status} ")) {
                return Ok(());
            }
            if begun.elapsed() > LIMIT {
                return Err(format!("waited {LIMIT:?} for {status}; the last answer: {answer}"));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    #[test]
    fn a_stuck_control_lane_fails_the_health_check_until_it_goes_on() {
        let listener = StdListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let answers = actor::run(WORKER_THREADS, |liveness| async move {
            let admin = AdminChild {
                daemon: DaemonConfig::default(),
                started: Instant::now(),
                metrics: PrometheusBuilder::new().build_recorder().handle(),
                sections: Vec::new(),
                clusters: Vec::new(),
                election: None,
                tree: Arc::new(LiveTree { handle: OnceLock::new(), liveness }),
                listener: Arc::new(listener),
            };
            let root = Supervisor::start("towline", vec![admin.into_child()]);
            let before = health_is("200", address).await;
            let (tell, told) = mpsc::sync_channel(1);
            tokio::spawn(async move { tell.send(health_is("503", address).await) });
            // This thread is the control lane: nothing on it goes on until the answer is there.
            let stuck = told.recv().unwrap();
            let after = health_is("200", address).await;
            root.drain(LIMIT).await;
            [("before", before), ("while it is stuck", stuck), ("when it goes on", after)]
        });
        for (when, answer) in answers.unwrap() {
            assert_eq!(answer, Ok(()), "{when}");
        }
    }
}
