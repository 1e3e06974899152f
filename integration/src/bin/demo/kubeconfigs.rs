//! Files with the credentials of clusters: one for people, and those with which the edges are registered in the hub.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use integration::users;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::error::Error;
use crate::stage::FILES;

/// The namespace in the hub of both edges.
pub(crate) const FLEET: &str = "fleet";

/// Writes one kubeconfig with a context for each cluster, each with all rights.
pub(crate) fn write_merged(clusters: &[&Cluster]) -> Result<PathBuf, Error> {
    let mut merged = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "hub", "clusters": [], "users": [], "contexts": [],
    });
    for cluster in clusters {
        let (path, text) = kubeconfig(cluster, users::ADMIN)?;
        let unreadable = |detail: String| Error::Unreadable { path: path.clone(), detail };
        let mut one: Value = serde_json::from_str(&text).map_err(|error| unreadable(error.to_string()))?;
        // The same name with another token on each cluster.
        let user = format!("{}-{}", cluster.name, users::ADMIN);
        for pointer in ["/users/0/name", "/contexts/0/context/user"] {
            *one.pointer_mut(pointer).ok_or_else(|| unreadable(format!("no {pointer}")))? = json!(user);
        }
        for list in ["clusters", "users", "contexts"] {
            let entries = one.get_mut(list).and_then(Value::as_array_mut).map(std::mem::take).unwrap_or_default();
            if let Some(all) = merged.get_mut(list).and_then(Value::as_array_mut) {
                all.extend(entries);
            }
        }
    }
    let path = Path::new(FILES).join("kubeconfig");
    write_private(&path, &format!("{merged:#}\n"))?;
    std::path::absolute(&path).map_err(Error::file("find", &path))
}

/// Writes the document with which an edge is registered in the hub, as a production cluster of its region.
pub(crate) fn write_registration(edge: &Cluster) -> Result<PathBuf, Error> {
    let (_, kubeconfig) = kubeconfig(edge, users::HUB_SERVER)?;
    let document = json!({
        "namespace": FLEET, "name": edge.name, "labels": {"env": "prod", "region": edge.name}, "kubeconfig": kubeconfig,
    });
    let path = Path::new(FILES).join(format!("{}.json", edge.name));
    write_private(&path, &format!("{document:#}\n"))?;
    Ok(path)
}

fn kubeconfig(cluster: &Cluster, user: &str) -> Result<(PathBuf, String), Error> {
    let path = cluster.plane.kubeconfig(user)?;
    let text = fs::read_to_string(&path).map_err(Error::file("read", &path))?;
    Ok((path, text))
}

/// Writes a file that nobody else may read.
fn write_private(path: &Path, text: &str) -> Result<(), Error> {
    let remains = match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        // The mode counts only for a new file.
        _ => Ok(()),
    };
    remains.map_err(Error::file("replace", path))?;
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    opened.and_then(|mut file| file.write_all(text.as_bytes())).map_err(Error::file("write", path))
}
