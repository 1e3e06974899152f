//! `towline release`: takes a finalizer off that no section owns any more, such as one that was renamed, or whose section
//! was taken out of the configuration.
//!
//! It works from the configuration and the clusters, and asks no running daemon: what is to be let go is just what no daemon
//! cares for. What a section of the configuration owns is never let go, whatever is asked for: it would be put back, and
//! until then a deletion would not wait for the local object.

use serde_json::json;

use crate::check;
use crate::cli::{Exit, ReleaseCommand};
use crate::cluster::{Cluster, Error, FIELD_MANAGER, Kind, Marked, Request, Verb};
use crate::config::{ClusterName, Config, ResourceId};
use crate::resource_sync::names::Mapping;

/// As often an object may have changed since it was read.
const ATTEMPTS: usize = 5;

/// A kind in a cluster.
#[derive(Clone, PartialEq, Eq)]
struct Place {
    cluster: ClusterName,
    resource: ResourceId,
}

/// Lists or releases.
pub async fn release(config: &Config, command: &ReleaseCommand) -> Exit {
    let finalizer = command.finalizer.as_str();
    let places = match places(config, command) {
        Ok(places) => places,
        Err(reason) => {
            say(&reason);
            return Exit::Usage;
        }
    };
    if command.namespace_prefix.is_none()
        && let Some(owner) = config.sync.iter().find(|section| {
            let is_place = |place: &Place| {
                config.is_same_cluster(&place.cluster, &section.remote)
                    && place.resource.same_objects(&section.resource)
            };
            owns(section, finalizer) && places.iter().any(is_place)
        })
    {
        say(&format!(
            "section {} owns {finalizer}: name with --namespace-prefix the namespaces that it no longer covers, or end the \
             section with `towline detach`",
            owner.name
        ));
        return Exit::Failed;
    }
    let (mut released, mut kept, mut faults) = (0_usize, 0_usize, 0_usize);
    for place in &places {
        match in_place(config, place, command).await {
            Ok(counts) => {
                released += counts.released;
                kept += counts.kept;
                faults += counts.faults;
            }
            Err(reason) => {
                faults += 1;
                say(&format!("cluster {}: {}: {reason}", place.cluster, place.resource));
            }
        }
    }
    let done = if command.yes { "released" } else { "would be released" };
    say(&format!("{released} object(s) {done}, {kept} kept for the sections that own them, {faults} fault(s)"));
    if faults == 0 { Exit::Done } else { Exit::Failed }
}

fn owns(section: &crate::config::SyncConfig, finalizer: &str) -> bool {
    section.finalizer_key() == finalizer || section.former_finalizer_keys().iter().any(|former| former == finalizer)
}

/// Where it is looked: the remote of every section, or what the command names.
fn places(config: &Config, command: &ReleaseCommand) -> Result<Vec<Place>, String> {
    if !command.finalizer.contains('/') {
        return Err(format!(
            "found {:?}; allowed: a finalizer in full, such as cloud.teleport.dev/sync-local",
            command.finalizer
        ));
    }
    let mut places: Vec<Place> = Vec::new();
    let mut add = |place: Place| {
        if !places.contains(&place) {
            places.push(place);
        }
    };
    match (&command.cluster, &command.resource) {
        (Some(cluster), Some(resource)) => add(Place { cluster: cluster.clone(), resource: resource.clone() }),
        (cluster, resource) => {
            for section in &config.sync {
                let cluster = cluster.clone().unwrap_or_else(|| section.remote.clone());
                let resource = resource.clone().unwrap_or_else(|| section.resource.clone());
                add(Place { cluster, resource });
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

async fn in_place(config: &Config, place: &Place, command: &ReleaseCommand) -> Result<Counts, String> {
    let Some(access) = config.clusters.get(&place.cluster) else { return Ok(Counts::default()) };
    let cluster = check::reach(&place.cluster, access).await?;
    let kind = Kind::discover(&cluster, &place.resource).await.map_err(|error| error.to_string())?;
    let prefix = command.namespace_prefix.as_deref().unwrap_or_default();
    let owners: Vec<Mapping> = config
        .sync
        .iter()
        .filter(|section| {
            config.is_same_cluster(&section.remote, &place.cluster) && section.resource.same_objects(&place.resource)
        })
        .filter(|section| owns(section, &command.finalizer))
        .map(Mapping::new)
        .collect();
    let mut counts = Counts::default();
    let mut found: Vec<Marked> = Vec::new();
    let is_held = |object: &Marked| object.finalizers.contains(&command.finalizer);
    let look = |object: Marked| {
        if !is_held(&object) || !object.key.namespace.starts_with(prefix) {
            return;
        }
        if owners.iter().any(|owner| owner.local_of(&object.key).is_some()) {
            counts.kept += 1;
        } else {
            found.push(object);
        }
    };
    cluster.each_marked(&kind, look).await.map_err(|error| error.to_string())?;
    for object in found {
        let name = format!("cluster {}: {} {}", place.cluster, place.resource, object.key);
        if !command.yes {
            say(&name);
            counts.released += 1;
            continue;
        }
        match take_off(&cluster, &kind, object, &command.finalizer).await {
            Ok(()) => {
                say(&format!("{name}: released"));
                counts.released += 1;
            }
            Err(error) => {
                say(&format!("{name}: {error}"));
                counts.faults += 1;
            }
        }
    }
    Ok(counts)
}

/// Takes the finalizer off, and no other, from the object as it is.
async fn take_off(cluster: &Cluster, kind: &Kind, mut object: Marked, finalizer: &str) -> Result<(), Error> {
    let mut result = Ok(());
    for _ in 0..ATTEMPTS {
        let Some(index) = object.finalizers.iter().position(|held| held == finalizer) else { return Ok(()) };
        let patch = json!([
            {"op": "replace", "path": "/metadata/resourceVersion", "value": &*object.resource_version},
            {"op": "remove", "path": format!("/metadata/finalizers/{index}")},
        ]);
        let request = Request {
            verb: Verb::Patch,
            kind,
            key: &object.key,
            subresource: "",
            content_type: "application/json-patch+json",
            body: patch.to_string().into_bytes(),
            manager: Some(FIELD_MANAGER),
        };
        result = match cluster.write(request).await {
            Ok(_) | Err(Error::NotFound { .. }) => return Ok(()),
            Err(error @ Error::Conflict { .. }) => Err(error),
            Err(error) => return Err(error),
        };
        let Some(live) = cluster.get(kind, &object.key).await? else { return Ok(()) };
        object.finalizers = live.finalizers.iter().map(ToString::to_string).collect();
        object.resource_version = live.resource_version;
    }
    result
}

#[expect(clippy::print_stdout, reason = "the command's output")]
fn say(text: &str) {
    println!("{text}");
}
