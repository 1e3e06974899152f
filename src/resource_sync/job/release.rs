//! `towline release`: removes a finalizer that no section owns any more, for example a renamed one, or that of a removed
//! section.
//!
//! It works from the configuration and the clusters, without a running daemon. A finalizer delays the deletion of an object
//! for a reason, so the command removes it only if three conditions hold: no section of the configuration owns it there;
//! towline added it, according to the object's managed fields (a mistyped name may be another controller's finalizer); and no
//! annotation of the object says that a local cluster holds it that the configuration does not have.

use std::collections::HashSet;
use std::sync::Arc;

use futures::FutureExt;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use serde_json::{Value, json};

use crate::cluster::object::is_of_towline;
use crate::cluster::{Cluster, Error, FIELD_MANAGER, Kind, Object, ObjectKey, Payload, Request};
use crate::config::{ClusterName, ResourceId};
use crate::job::check::{collected, reach, say};
use crate::job::command::{ConfigFile, Exit, JobCommand, Order, complain, remark};
use crate::job::output::{Format, Output, Results};
use crate::job::terminal::{Yes, consent};
use crate::job::{Config, JobList};
use crate::resource_sync::config::SyncConfig;
use crate::resource_sync::job::sections;
use crate::resource_sync::plan::marks::{Note, local_cluster_mark};
use crate::resource_sync::plan::names::Mapping;
use crate::resource_sync::plan::patch::replace_version;
use crate::yaml::escape;

/// `towline release`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct ReleaseCommand {
    /// The configuration with the sections and clusters.
    #[command(flatten)]
    pub file: ConfigFile,
    /// The finalizer in full, such as cloud.teleport.dev/sync-local
    #[arg(long, value_name = "FINALIZER")]
    pub finalizer: String,
    /// Only objects in namespaces that begin so
    #[arg(long, value_name = "PREFIX")]
    pub namespace_prefix: Option<String>,
    /// Look in this cluster, and not in the remote ones of all sections
    #[arg(long, value_name = "NAME")]
    pub cluster: Option<ClusterName>,
    /// Look at this kind (plural.version.group), and not at those of all sections
    #[arg(long, value_name = "RESOURCE")]
    pub resource: Option<ResourceId>,
    /// Also release what this local cluster holds (UID of its namespace kube-system), since it is gone
    #[arg(long, value_name = "UID")]
    pub held_for: Option<String>,
    /// Also release what this field manager added, such as that of a previous controller
    #[arg(long, value_name = "FIELD MANAGER")]
    pub put_on_by: Option<String>,
    /// Show what would be released
    #[arg(long, conflicts_with = "yes")]
    pub list: bool,
    /// Whether to ask.
    #[command(flatten)]
    pub consent: Yes,
    /// How to print what was done.
    #[command(flatten)]
    pub format: Format,
}

/// The command, for the list of the job.
pub fn command() -> JobCommand {
    let execute = |command: ReleaseCommand, jobs: &JobList| {
        let config = jobs.load(command.file.path())?;
        Ok(Order::Task(async move { release(&config, &command).await }.boxed()))
    };
    JobCommand::new("release", "Take a finalizer off that no section of a configuration owns any more", execute)
}

/// A write is tried this often on an object that keeps changing.
const ATTEMPTS: usize = 5;

#[derive(Clone, PartialEq, Eq)]
struct KindInCluster {
    cluster: ClusterName,
    resource: ResourceId,
}

/// What is done with a finalizer that may go.
enum Doing {
    /// It is listed. The UIDs of the objects are kept for the question whether to release them.
    List { found: HashSet<Arc<str>> },
    /// It is released, on these objects alone if they were listed before.
    Release { only: Option<HashSet<Arc<str>>> },
}

/// Lists the finalizers that may be released, or releases them.
async fn release(config: &Config, command: &ReleaseCommand) -> Exit {
    let finalizer = command.finalizer.as_str();
    let places = match places(config, command) {
        Ok(places) => places,
        Err(reason) => {
            complain(&reason);
            return Exit::Usage;
        }
    };
    if command.namespace_prefix.is_none()
        && let Some(owner) = sections(config).iter().find(|section| {
            let is_place = |place: &KindInCluster| {
                config.is_same_cluster(&place.cluster, &section.remote)
                    && place.resource.same_objects(&section.resource)
            };
            owns(section, finalizer) && places.iter().any(is_place)
        })
    {
        complain(&format!(
            "section {} owns {finalizer}: name with --namespace-prefix the namespaces that it no longer covers, or end the \
             section with `towline detach`",
            owner.name
        ));
        return Exit::Failed;
    }
    let output = command.format.output;
    let search = Search { config, command, places, ours: identities(config).await };
    if command.consent.yes {
        return search.everywhere(&mut Doing::Release { only: None }, output).await.0;
    }
    let mut listing = Doing::List { found: HashSet::new() };
    if command.list {
        return search.everywhere(&mut listing, output).await.0;
    }
    let ((exit, document), lines) = collected(search.everywhere(&mut listing, Output::Table)).await;
    let Doing::List { found } = listing else { return exit };
    if found.is_empty() {
        match output.document(&document) {
            Some(text) => say(text.trim_end()),
            None => remark(&lines.join("\n")),
        }
        return exit;
    }
    match consent(&lines.join("\n")).await {
        Ok(()) => search.everywhere(&mut Doing::Release { only: Some(found) }, output).await.0,
        Err(refused) => refused,
    }
}

fn owns(section: &SyncConfig, finalizer: &str) -> bool {
    section.finalizer_key() == finalizer || section.former_finalizer_keys().iter().any(|former| former == finalizer)
}

/// The kinds and clusters to search: the remote ones of every section, or those that the command names.
fn places(config: &Config, command: &ReleaseCommand) -> Result<Vec<KindInCluster>, String> {
    if !command.finalizer.contains('/') {
        return Err(format!(
            "found {:?}; allowed: a finalizer in full, such as cloud.teleport.dev/sync-local",
            command.finalizer
        ));
    }
    let mut places: Vec<KindInCluster> = Vec::new();
    let mut add = |place: KindInCluster| {
        if !places.contains(&place) {
            places.push(place);
        }
    };
    match (&command.cluster, &command.resource) {
        (Some(cluster), Some(resource)) => add(KindInCluster { cluster: cluster.clone(), resource: resource.clone() }),
        (cluster, resource) => {
            for section in sections(config) {
                let cluster = cluster.clone().unwrap_or_else(|| section.remote.clone());
                let resource = resource.clone().unwrap_or_else(|| section.resource.clone());
                add(KindInCluster { cluster, resource });
            }
        }
    }
    if let Some(unknown) = places.iter().find(|place| !config.clusters.contains_key(&place.cluster)) {
        return Err(format!("there is no cluster {} in the configuration", unknown.cluster));
    }
    if places.is_empty() {
        return Err("the configuration has no [[sync]] section: say where to look with --cluster and --resource".into());
    }
    Ok(places)
}

#[derive(Default)]
struct Counts {
    released: usize,
    kept: usize,
    faults: usize,
}

/// The identities of all clusters of the configuration that can be read. The others are named: what they hold is kept, and
/// must not be taken for that of a cluster that is gone.
async fn identities(config: &Config) -> Vec<Arc<str>> {
    let mut identities = Vec::new();
    for (name, access) in &config.clusters {
        let found = reach(name, access).await;
        match found.as_ref().map(|cluster| cluster.identity().uid().cloned()) {
            Ok(Some(uid)) => identities.push(uid),
            Ok(None) => complain(&format!("cluster {name}: its UID can't be read, so objects that it holds are kept")),
            Err(reason) => complain(&format!("cluster {name}: {reason}; objects that it holds are kept")),
        }
    }
    identities
}

/// Where and how a command looks for a finalizer.
struct Search<'c> {
    config: &'c Config,
    command: &'c ReleaseCommand,
    places: Vec<KindInCluster>,
    /// The UIDs of all clusters of the configuration that answer.
    ours: Vec<Arc<str>>,
}

impl Search<'_> {
    /// Prints what it does, and returns that as a document, too.
    async fn everywhere(&self, doing: &mut Doing, output: Output) -> (Exit, Value) {
        let (mut counts, mut results) = (Counts::default(), Results::new(output));
        for place in &self.places {
            if let Err(reason) = self.in_place(place, doing, &mut counts, &mut results).await {
                counts.faults += 1;
                let item = json!({"cluster": place.cluster, "resource": place.resource.to_string(), "error": reason});
                results.add_failed(item, &format!("cluster {}: {}: {reason}", place.cluster, place.resource));
            }
        }
        let Counts { released, kept, faults } = counts;
        let (field, done) = match doing {
            Doing::List { .. } => ("releasable", "would be released"),
            Doing::Release { .. } => ("released", "released"),
        };
        let line = format!("{released} object(s) {done}, {kept} kept, {faults} fault(s)");
        let document = results.end(json!({field: released, "kept": kept, "faults": faults}), &[line]);
        (if faults == 0 { Exit::Done } else { Exit::Failed }, document)
    }

    async fn in_place(
        &self,
        place: &KindInCluster,
        doing: &mut Doing,
        counts: &mut Counts,
        results: &mut Results,
    ) -> Result<(), String> {
        let Self { config, command, .. } = self;
        let Some(access) = config.clusters.get(&place.cluster) else { return Ok(()) };
        let cluster = reach(&place.cluster, access).await?;
        let kind = Kind::discover(&cluster, &place.resource).await.map_err(|error| error.to_string())?;
        let prefix = command.namespace_prefix.as_deref().unwrap_or_default();
        let owners: Vec<Mapping> = sections(config)
            .iter()
            .filter(|section| {
                config.is_same_cluster(&section.remote, &place.cluster)
                    && section.resource.same_objects(&place.resource)
            })
            .filter(|section| owns(section, &command.finalizer))
            .map(Mapping::new)
            .collect();
        let held = cluster.held_by(&kind, |finalizer| finalizer == command.finalizer).await;
        for key in held.map_err(|error| error.to_string())? {
            if !key.namespace.starts_with(prefix) {
                continue;
            }
            if owners.iter().any(|owner| owner.covers_remote(&key)) {
                counts.kept += 1;
                continue;
            }
            let name = format!("{}/{key}", place.resource);
            let line = format!("cluster {}: {} {key}", place.cluster, place.resource);
            let item = |outcome: &str, reason: Option<&str>| {
                json!({"cluster": place.cluster, "resource": place.resource.to_string(), "object": key.to_string(),
                    "outcome": outcome, "reason": reason})
            };
            match self.take_off(&cluster, &kind, &key, doing).await {
                Ok(Outcome::Releasable) => {
                    counts.released += 1;
                    results.add(item("releasable", None), &name, &line);
                }
                Ok(Outcome::Released) => {
                    counts.released += 1;
                    results.add(item("released", None), &name, &format!("{line}: released"));
                }
                Ok(Outcome::Kept(reason)) => {
                    counts.kept += 1;
                    // No name: nothing is done with it.
                    match command.format.output {
                        Output::Name => remark(&format!("{line}: kept, {reason}")),
                        _ => results.add(item("kept", Some(&reason)), &name, &format!("{line}: kept, {reason}")),
                    }
                }
                Ok(Outcome::Gone) => {}
                Err(error) => {
                    counts.faults += 1;
                    results.add_failed(item("failed", Some(&error.to_string())), &format!("{line}: {error}"));
                }
            }
        }
        Ok(())
    }
}

/// The result for one object.
enum Outcome {
    /// The finalizer would be removed.
    Releasable,
    Released,
    /// The finalizer stays, for this reason.
    Kept(String),
    /// The object or its finalizer was gone already.
    Gone,
}

/// The annotation that names the local cluster that holds the object by finalizers of this domain, and its key.
fn holder_note<'o>(object: &'o Object, finalizer: &str) -> Option<(String, Note<'o>)> {
    let mark = local_cluster_mark(finalizer.split_once('/')?.0);
    let note = object.annotation(&mark).and_then(Note::parse)?;
    Some((mark, note))
}

/// Why the finalizer stays; `None`: it may be removed.
fn kept_because(
    object: &Object,
    managers: &[ManagedFieldsEntry],
    command: &ReleaseCommand,
    ours: &[Arc<str>],
) -> Option<String> {
    let finalizer = command.finalizer.as_str();
    let field = format!("v:\"{finalizer}\"");
    let has_field = |entry: &&ManagedFieldsEntry| {
        let fields = entry.fields_v1.as_ref().map(|fields| &fields.0);
        fields.and_then(|fields| fields.get("f:metadata")?.get("f:finalizers")?.get(&field)).is_some()
    };
    let put_on_by: Vec<&str> = managers.iter().filter(has_field).filter_map(|entry| entry.manager.as_deref()).collect();
    let is_named = |manager: &&str| is_of_towline(manager) || command.put_on_by.as_deref() == Some(manager);
    if !put_on_by.iter().any(is_named) {
        return Some(match put_on_by.first() {
            Some(manager) => {
                format!("{manager} put the finalizer on, and not towline: `--put-on-by {manager}` if it may go")
            }
            None => "no field manager is recorded for the finalizer: edit the object if it may go".to_owned(),
        });
    }
    let (_, note) = holder_note(object, finalizer)?;
    let is_about_this = *note.object == *object.uid && note.finalizer == finalizer;
    let may_go = ours.iter().any(|uid| **uid == *note.cluster) || command.held_for.as_deref() == Some(note.cluster);
    (is_about_this && !may_go).then(|| {
        let cluster = note.cluster;
        format!(
            "the local cluster whose kube-system has UID {cluster} holds it: `--held-for {cluster}` if that is gone"
        )
    })
}

impl Search<'_> {
    /// Removes this one finalizer from the object, or only finds out whether it may.
    async fn take_off(
        &self,
        cluster: &Cluster,
        kind: &Kind,
        key: &ObjectKey,
        doing: &mut Doing,
    ) -> Result<Outcome, Error> {
        let finalizer = self.command.finalizer.as_str();
        let mut refused = Error::Conflict { message: format!("{key} keeps changing"), exists: true };
        for _ in 0..ATTEMPTS {
            let Some(live) = cluster.get(kind, key).await? else { return Ok(Outcome::Gone) };
            let Some(index) = live.finalizers.iter().position(|held| **held == *finalizer) else {
                return Ok(Outcome::Gone);
            };
            let managers = match cluster.managed_fields(kind, &live).await {
                Err(error @ Error::Conflict { .. }) => {
                    refused = error;
                    continue;
                }
                result => result?,
            };
            if let Some(reason) = kept_because(&live, &managers, self.command, &self.ours) {
                return Ok(Outcome::Kept(reason));
            }
            match doing {
                Doing::List { found } => {
                    found.insert(Arc::clone(&live.uid));
                    return Ok(Outcome::Releasable);
                }
                Doing::Release { only: Some(listed) } if !listed.contains(&live.uid) => {
                    return Ok(Outcome::Kept("it was not among what was listed".to_owned()));
                }
                Doing::Release { .. } => {}
            }
            let mut patch =
                vec![replace_version(&live), json!({"op": "remove", "path": format!("/metadata/finalizers/{index}")})];
            if let Some((mark, note)) = holder_note(&live, finalizer)
                && note.finalizer == finalizer
            {
                patch.push(json!({"op": "remove", "path": format!("/metadata/annotations/{}", escape(&mark))}));
            }
            let request = Request::patch(kind, key, Payload::json_patch(&json!(patch))).by(FIELD_MANAGER);
            match cluster.write(request).await {
                Ok(_) => return Ok(Outcome::Released),
                Err(Error::NotFound { .. }) => return Ok(Outcome::Gone),
                Err(error @ Error::Conflict { .. }) => refused = error,
                Err(error) => return Err(error),
            }
        }
        Err(refused)
    }
}
