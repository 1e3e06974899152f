//! Builds the actors of the hub from its configuration.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::super::config::Bus;
use super::super::config::HubConfig;
use super::super::metrics::HubMetrics;
use super::super::plan::tokens::Grants;
use super::access::Access;
use super::api::bodies::slots_for_answers;
use super::api::limits;
use super::api::{self, Api};
use super::history;
use super::outages::Outages;
use super::refusals::Refusals;
use crate::actor::{Backoff, BoxError, ChildSpec, GateHandle, RestartPolicy, Scope, gate};
use crate::cluster::{Clock, full_text};
use crate::db::migrations;
use crate::db::{self, Database, column};
use crate::documents::{
    self, Broker, Changes, Claims, Compaction, Documents, Holder, Keeps, Keyring, Leadership, Relay, Role, SCHEMA,
    SchemaState, Shared, Store, Tail, Writer, WriterHandle,
};
use crate::http::{Reloaded, ServerTls, keep_up_to_date};
use crate::job::routes::ApiRoutes;

/// Longest wait for another process that migrates, and longest migration.
pub const MIGRATE_WITHIN: Duration = Duration::from_mins(10);
/// Between two attempts to reach a database, or two looks whether its schema is there.
const AGAIN: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(5));
/// Shortest time between two looks whether the database gives connections, while requests fail.
const PROBE_EVERY: Duration = Duration::from_secs(5);
/// Between two looks whether a newer release has migrated the schema.
const LOOK_EVERY: Duration = Duration::from_secs(15);
/// What only somebody else can help is not tried again: another binary than one that is older than the schema, another address than one that
/// is taken.
const NEVER_AGAIN: RestartPolicy = RestartPolicy { budget: 0, ..RestartPolicy::ACTOR };

/// The hub, wired but not started.
pub struct Hub {
    pub config: HubConfig,
    pub database: Database,
    pub writer: Writer,
    pub handle: WriterHandle,
    pub tail: Tail,
    pub changes: Changes,
    pub claims: Claims,
    pub holder: Holder,
    pub leadership: Leadership,
    /// The message broker, and this replica's candidacy for the relay; with the bus `amqp`.
    pub bus: Option<(Broker, Leadership)>,
    pub tokens: Option<Reloaded<Grants>>,
    pub keys: Option<Reloaded<Keyring>>,
    pub watches: documents::CallerSlots,
    pub metrics: Arc<HubMetrics>,
    pub outages: Arc<Outages>,
    pub schema: watch::Sender<SchemaState>,
    /// What other jobs mount beside the hub's own routes.
    pub routes: Arc<ApiRoutes>,
    /// The first socket of the API, until the API takes it.
    pub bound: watch::Sender<Option<Arc<Mutex<Option<TcpListener>>>>>,
    /// Where the API listens now.
    pub listening: watch::Sender<Option<SocketAddr>>,
}

pub fn wire(config: &HubConfig) -> Arc<Hub> {
    let database = documents::open(config.database.clone());
    let metrics = Arc::new(HubMetrics::new(&config.name));
    let changes = Changes::new(config.quota().kib, config.log_retention);
    let tail = Tail::new(database.clone(), changes.clone());
    let (writer, handle) = Writer::new(database.clone());
    let holder = Holder::of_this_process();
    let claims = Claims::new(&database, holder.clone(), Clock::Boot);
    let leadership = claims.role(Role::Compaction);
    let source = config.amqp.clone().filter(|_| config.bus == Bus::Amqp);
    let bus = source.map(|source| (Broker::new(source, Arc::clone(&metrics) as _), claims.role(Role::Relay)));
    let tokens = config.tokens_file.clone().map(|path| Reloaded::of_text(path, Grants::read, Grants::default()));
    let waiting = SchemaState::Missing {
        reason: "the schema of the database has not been looked at yet".to_owned(),
        told: "the hub has only just started",
    };
    let routes = Arc::new(ApiRoutes::default());
    routes.mount([history::route(database.clone())]);
    Arc::new(Hub {
        config: config.clone(),
        database,
        writer: writer.above(tail.clone()),
        tail,
        changes,
        handle,
        claims,
        holder,
        leadership,
        bus,
        tokens,
        keys: config.keys(),
        watches: limits::for_watches(config.max_watchers.get()),
        metrics,
        outages: Arc::default(),
        schema: watch::Sender::new(waiting),
        routes,
        bound: watch::Sender::new(None),
        listening: watch::Sender::new(None),
    })
}

pub fn into_child(hub: &Arc<Hub>) -> ChildSpec {
    let hub = Arc::clone(hub);
    ChildSpec::supervisor("hub", move || children(&hub))
}

/// Children drain in reverse order: the API stops first, and the writer after what sends to it.
fn children(hub: &Arc<Hub>) -> Vec<ChildSpec> {
    let actor = |name: &str, run: fn(Arc<Hub>, Scope) -> futures::future::BoxFuture<'static, Result<(), BoxError>>| {
        let hub = Arc::clone(hub);
        ChildSpec::new(name, move |scope| run(Arc::clone(&hub), scope))
    };
    let records = hub.config.max_namespace_records.get().try_into().unwrap_or(u64::MAX);
    let keeps = Keeps { log: hub.config.log_retention, history: hub.config.audit_retention, records };
    let compaction = Compaction::new(hub.database.clone(), hub.leadership.clone(), keeps);
    let tail = hub.tail.clone();
    let tail = ChildSpec::new("tail", move |scope| tail.clone().run(scope));
    let relay = hub
        .bus
        .as_ref()
        .map(|(broker, leadership)| Relay::new(hub.database.clone(), leadership.clone(), broker.clone()).child());
    // What reads the database by itself waits until the schema is there.
    let gated = [tail, hub.claims.clone().child(), compaction.child()].into_iter().chain(relay);
    let gated: Vec<_> = gated.map(|child| (gate(), child)).collect();
    let (mut handles, mut waiting) = (Vec::new(), Vec::new());
    for ((handle, gate), child) in gated {
        handles.push(handle);
        waiting.push(child.gated(gate));
    }
    let (of_schema, handles) = (Arc::clone(hub), Arc::new(handles));
    let schema = ChildSpec::new("schema", move |scope| schema(Arc::clone(&of_schema), Arc::clone(&handles), scope));
    let mut children = vec![
        schema.restart(NEVER_AGAIN),
        actor("settings", |hub, scope| Box::pin(settings(hub, scope))),
        hub.writer.clone().child(),
    ];
    children.extend(waiting);
    children.push(actor("listener", |hub, scope| Box::pin(listen(hub, scope))).restart(NEVER_AGAIN));
    children.push(actor("api", |hub, scope| Box::pin(serve(hub, scope))));
    children
}

/// The actor that brings the schema up to date, or waits until it is, and lets the others begin then. It ends the section if a newer
/// release has migrated the schema in a way that this one must not use, before or meanwhile.
async fn schema(hub: Arc<Hub>, handles: Arc<Vec<GateHandle>>, scope: Scope) -> Result<(), BoxError> {
    let mut attempt = 0;
    loop {
        let looked = tokio::select! {
            biased;
            () = scope.draining() => return Ok(()),
            looked = bring_up_to_date(&hub) => looked,
        };
        let (reason, outage) = match looked {
            Ok(None) => break,
            Ok(Some(reason)) => (reason, None),
            Err(error @ migrations::Error::Newer { .. }) => return Err(error.into()),
            Err(error) => (full_text(&error), error.outage()),
        };
        let told = outage.unwrap_or("the database is not ready: its schema is not there yet");
        let missing = SchemaState::Missing { reason: reason.clone(), told };
        if hub.schema.send_replace(missing.clone()) != missing {
            tracing::warn!(reason, "the schema of the hub is not there yet, retrying");
        }
        tokio::select! {
            biased;
            () = scope.draining() => return Ok(()),
            () = tokio::time::sleep(AGAIN.next_delay(attempt)) => attempt += 1,
        }
    }
    hub.schema.send_replace(SchemaState::Current);
    handles.iter().for_each(GateHandle::open);
    let mut look = tokio::time::interval(LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = scope.draining() => return Ok(()),
            _ = look.tick() => {}
            () = hub.outages.met() => if !until_connected(&hub, &scope).await { return Ok(()) },
        }
        match oldest_migration(&hub.database).await {
            Ok(oldest) => {
                // A newer release has migrated the schema meanwhile: who would not begin to use it does not go on to.
                if oldest > SCHEMA.known()
                    && let Ok(status) = SCHEMA.status(&hub.database).await
                {
                    status.check()?;
                }
            }
            Err(error) => tracing::debug!(error = %full_text(&error), "failed to look at the schema"),
        }
    }
}

/// Tries to open a connection until there is one, and waits a while, so that a struggling database gets few more of them. False if
/// the process is to end meanwhile.
async fn until_connected(hub: &Hub, scope: &Scope) -> bool {
    let connected = async {
        let mut attempt = 0;
        while !hub.outages.probe(&hub.database).await {
            tokio::time::sleep(AGAIN.next_delay(attempt)).await;
            attempt += 1;
        }
        tokio::time::sleep(PROBE_EVERY).await;
    };
    tokio::select! {
        biased;
        () = scope.draining() => false,
        () = connected => true,
    }
}

/// None once the schema is as this release needs it, else why it is not.
async fn bring_up_to_date(hub: &Hub) -> Result<Option<String>, migrations::Error> {
    let (status, pending) = if hub.config.migrate {
        (documents::migrate(&hub.database, MIGRATE_WITHIN).await?.before, 0)
    } else {
        let status = SCHEMA.status(&hub.database).await?.check()?;
        let pending = status.pending();
        (status, pending)
    };
    if status.is_newer() {
        let migrations::Status { applied, known, release, .. } = &status;
        let database = hub.database.place();
        tracing::warn!(
            database,
            release,
            applied,
            known,
            "a newer release has migrated the schema, which this one may use"
        );
    }
    Ok((pending > 0).then(|| format!("{pending} migrations of the schema are missing, run `towline migrate`")))
}

/// The last migration that a release has to know. While a dump is being restored, there may be no row.
async fn oldest_migration(database: &Database) -> Result<i32, db::Error> {
    const QUERY: &str = "oldest_migration";
    let rows = database.all(QUERY, "select oldest from towline_meta", &[]).await?;
    rows.first().map_or(Ok(0), |row| column(QUERY, row, 0))
}

/// The actor that reads the files of tokens and keys again when they change.
async fn settings(hub: Arc<Hub>, scope: Scope) -> Result<(), BoxError> {
    tokio::select! {
        () = scope.draining() => {}
        never = keep_up_to_date(hub.tokens.as_ref()) => match never {},
        never = keep_up_to_date(hub.keys.as_ref()) => match never {},
    }
    Ok(())
}

/// The actor that binds the address of the API at the start: where it is taken, the process ends and says so.
async fn listen(hub: Arc<Hub>, scope: Scope) -> Result<(), BoxError> {
    if let Some(address) = hub.config.listen {
        let listener = bind(address).await?;
        hub.bound.send_replace(Some(Arc::new(Mutex::new(Some(listener)))));
    }
    scope.draining().await;
    Ok(())
}

async fn bind(address: SocketAddr) -> Result<TcpListener, String> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|error| format!("failed to listen on {address} (`listen` of the hub): {error}"))
}

/// The actor that serves the API.
async fn serve(hub: Arc<Hub>, scope: Scope) -> Result<(), BoxError> {
    let Some(address) = hub.config.listen else {
        scope.set_state("no address");
        scope.draining().await;
        return Ok(());
    };
    // A former instance may have ended without a word.
    hub.listening.send_replace(None);
    let tls = match hub.config.tls.clone() {
        Some(files) => Some(tokio::task::spawn_blocking(move || ServerTls::load(files)).await??),
        None => None,
    };
    let mut bound = hub.bound.subscribe();
    let first = tokio::select! {
        biased;
        () = scope.draining() => return Ok(()),
        // The sender lives as long as the hub.
        first = bound.wait_for(Option::is_some) => first.ok().and_then(|first| first.as_ref()?.lock().take()),
    };
    let listener = match first {
        Some(listener) => listener,
        // A former instance had the first one.
        None => bind(address).await?,
    };
    let listening = listener.local_addr()?;
    tracing::info!(api = %listening, tls = tls.is_some(), "the hub listens");
    hub.listening.send_replace(Some(listening));
    let stop = CancellationToken::new();
    let store = Store::new(hub.database.clone());
    let documents = Documents::new(store, hub.handle.clone(), hub.keyring(), (hub.config.quota(), hub.changes.clone()));
    let api = Arc::new(Api {
        refusals: Refusals::default(),
        advice: hub.routes.advice(),
        database: hub.database.clone(),
        documents,
        tail: hub.tail.clone(),
        access: hub.tokens.as_ref().map_or(Access::Local, |tokens| Access::Tokens(tokens.content())),
        requests: limits::for_requests(),
        bodies: limits::for_bodies(),
        watches: hub.watches.clone(),
        reads: limits::for_reads(hub.database.state().max),
        metrics: Arc::clone(&hub.metrics),
        answers: slots_for_answers(),
        outages: Arc::clone(&hub.outages),
        schema: hub.schema.subscribe(),
        mounted: hub.routes.all(),
        ui: hub.config.ui,
        stop: stop.clone(),
    });
    let refusals = Arc::clone(&api);
    let _rest = refusals.refusals.log_rest();
    let server = api::serve(api, listener, tls, hub.config.max_watchers.get());
    tokio::pin!(server);
    tokio::select! {
        () = &mut server => {}
        never = refusals.refusals.write(&hub.database) => match never {},
        () = scope.draining() => {
            stop.cancel();
            server.await;
        }
    }
    if let Err(error) = refusals.refusals.finish(&hub.database).await {
        tracing::warn!(error = %full_text(&error), "failed to record the last refused requests");
    }
    hub.listening.send_replace(None);
    Ok(())
}

impl Hub {
    /// What other jobs of the process use of it.
    pub fn shared(&self) -> Shared {
        Shared {
            database: self.database.clone(),
            writer: self.handle.clone(),
            changes: self.changes.clone(),
            claims: self.claims.clone(),
            keyring: self.keyring(),
            broker: self.bus.as_ref().map(|(broker, _)| broker.clone()),
            schema: self.schema.subscribe(),
        }
    }

    /// The keys by which sealed fields are encrypted now; without `keys_file` an empty ring, which stores them as they are.
    fn keyring(&self) -> watch::Receiver<Arc<Keyring>> {
        match &self.keys {
            Some(keys) => keys.content(),
            None => watch::Sender::new(Arc::default()).subscribe(),
        }
    }
}
