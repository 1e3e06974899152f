//! What is there to play with once the story has ended.

use std::fs;
use std::path::{Path, PathBuf};

use integration::{programs, users};
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::error::Error;
use crate::screen::{Look, Screen};
use crate::stage::{FILES, Stage};

/// Where [`Towline`](integration::Towline) listens by default, and `towline status` asks.
const DEFAULT_ADMIN: &str = "http://127.0.0.1:8384";

/// Tells how to reach everything.
pub(crate) async fn show(screen: Screen, stage: &Stage) -> Result<(), Error> {
    let kubeconfig = write_kubeconfig(&[&stage.hub, &stage.west, &stage.east])?;
    let kubectl = directory(&programs::control_plane("kubectl").await?)?;
    let towline = directory(&programs::towline().await?)?;
    let admin = stage.towline.admin_url();
    let option = if admin == DEFAULT_ADMIN { String::new() } else { format!(" --admin {admin}") };
    let log = stage.towline.log_path();
    screen
        .line(&screen.paint(Look::Bold, "\nEverything stays up until Ctrl-C. To play with it, in another terminal:\n"));
    screen.line(&format!("export KUBECONFIG={}", kubeconfig.display()));
    screen.line(&format!("export PATH={}:{}:$PATH", kubectl.display(), towline.display()));
    screen.line("kubectl --context hub get databases -A");
    screen.line("kubectl --context west get databases -A");
    screen.line(
        "kubectl --context hub -n west-shop patch database carts --type merge -p '{\"spec\":{\"storage\":\"99Gi\"}}'",
    );
    screen.line("kubectl --context west -n west-shop get database carts -o yaml");
    screen.line(&format!(
        "psql {} -c \"UPDATE status.compliance SET compliance = 'non_compliant'\"",
        stage.leaf_hubs.url()
    ));
    screen.line("kubectl --context hub get policies -A -o yaml");
    let hub_server = stage.hub_server.api();
    screen.line(&format!("curl -N 'http://{hub_server}/v1/clusters?watch=true'"));
    screen.line(&format!("towline get clusters --hub http://{hub_server}"));
    screen.line(&format!("towline status{option}"));
    screen.line(&format!("curl -s {admin}/metrics"));
    screen.line(&format!("\nadmin address  {admin}\ntowline's log  {}", absolute(&log)?.display()));
    Ok(())
}

/// One kubeconfig with a context for each cluster, each with all rights.
fn write_kubeconfig(clusters: &[&Cluster]) -> Result<PathBuf, Error> {
    let mut merged = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "hub", "clusters": [], "users": [], "contexts": [],
    });
    let mut made = PathBuf::new();
    for cluster in clusters {
        made = cluster.plane.kubeconfig(users::ADMIN)?;
        let text = fs::read_to_string(&made).map_err(Error::file("read", &made))?;
        let unreadable = |detail: String| Error::Unreadable { path: made.clone(), detail };
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
    // A copy takes the permissions along: nobody else may read it.
    fs::copy(&made, &path).map_err(Error::file("write", &path))?;
    fs::write(&path, format!("{merged:#}\n")).map_err(Error::file("write", &path))?;
    absolute(&path)
}

fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path).map_err(Error::file("find", path))
}

fn directory(program: &Path) -> Result<PathBuf, Error> {
    absolute(program.parent().unwrap_or(program))
}
