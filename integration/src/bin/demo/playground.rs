//! What is there to play with once the story has ended.

use std::path::{Path, PathBuf};

use integration::programs;

use crate::error::Error;
use crate::inventory::API_LOG;
use crate::kubeconfigs::FLEET;
use crate::screen::{Look, Screen};
use crate::stage::Stage;
use crate::story::{EDITED_SYNCSET, GATEWAY};
use crate::terminal::directory;

/// Where [`Towline`](integration::Towline) listens by default, and `towline status` asks.
const DEFAULT_ADMIN: &str = "http://127.0.0.1:8384";

pub(crate) async fn show(screen: Screen, stage: &Stage) -> Result<(), Error> {
    let kubectl = directory(&programs::control_plane("kubectl").await?)?;
    let towline = directory(&programs::towline().await?)?;
    let helm = directory(&programs::helm().await?)?;
    let title = |text: &str| screen.line(&screen.paint(Look::Bold, &format!("\n{text}")));
    title("Everything stays up until Ctrl-C. To play with it, in another terminal:");
    screen.line(&format!("export KUBECONFIG={}", stage.kubeconfig.display()));
    screen.line(&format!("export PATH={}:{}:{}:$PATH", kubectl.display(), towline.display(), helm.display()));
    title("Databases, from the hub to the edges and back");
    for command in databases() {
        screen.line(command);
    }
    title("Status sync, from the database to the hub");
    screen.line(&format!(
        "psql {} -c \"UPDATE status.compliance SET compliance = 'non_compliant'\"",
        stage.leaf_hubs.url()
    ));
    screen.line("kubectl --context hub get policies -A -o yaml");
    title("Syncsets, from the hub server to the edges");
    syncsets(stage)?.iter().for_each(|command| screen.line(command));
    title("The inventory, from Helm on east to an API");
    screen.line(&format!("helm --kube-context east install again {}", stage.inventory.chart()));
    screen.line(&format!("tail {}", absolute(Path::new(API_LOG))?.display()));
    title("What Towline reports");
    let admin = stage.towline.admin_url();
    let option = if admin == DEFAULT_ADMIN { String::new() } else { format!(" --admin {admin}") };
    let hub_admin = stage.hub_server.admin_url();
    screen.line(&format!("towline status{option}"));
    screen.line(&format!("towline status --admin {hub_admin}   # the hub server's"));
    screen.line(&format!("curl -s {admin}/metrics"));
    let log = absolute(&stage.towline.log_path())?;
    screen.line(&format!("\ntowline's log  {}", log.display()));
    Ok(())
}

fn databases() -> [&'static str; 4] {
    [
        "kubectl --context hub get databases -A",
        "kubectl --context west get databases -A",
        "kubectl --context hub -n west-shop patch database carts --type merge -p '{\"spec\":{\"storage\":\"99Gi\"}}'",
        "kubectl --context west -n west-shop get database carts -o yaml",
    ]
}

/// Each can be typed as it stands, and after all those before it.
fn syncsets(stage: &Stage) -> Result<Vec<String>, Error> {
    let (url, option) = (stage.hub_server.url(), stage.hub_server.option());
    let file = absolute(Path::new(EDITED_SYNCSET))?;
    let file = file.display();
    let site = "kubectl -n monitoring get configmap site -o jsonpath='{.data}{\"\\n\"}' --context";
    Ok(vec![
        format!("curl -N '{url}/v1/clusters?watch=true&timeoutSeconds=5'   # 5 s of a watch"),
        format!("towline get clusters{option}"),
        format!("sed -i 's/10s/5s/' {file}"),
        format!("towline diff -f {file}{option}"),
        format!("towline apply -f {file}{option}"),
        format!("{site} west"),
        format!("towline explain {FLEET}/west ConfigMap/monitoring/site{option}"),
        format!("towline pause {FLEET}/east --for 10m --reason demo{option}"),
        format!(
            "curl -X PATCH {url}/v1/clusters/{FLEET}/east -H 'content-type: application/merge-patch+json' -d \
             '{{\"labels\":{{\"region\":\"south\"}}}}'"
        ),
        format!("{site} east   # still north"),
        format!("towline resume {FLEET}/east{option}"),
        format!("{site} east"),
        format!("towline failures{option}"),
        format!("towline rollout history {GATEWAY}{option}"),
        format!("towline delete selectorsyncsets monitoring{option}"),
        "kubectl --context west get namespaces   # monitoring goes".to_owned(),
    ])
}

fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path).map_err(Error::file("find", path))
}
