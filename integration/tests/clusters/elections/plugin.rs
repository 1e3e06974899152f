//! `kubectl towline`, with two replicas as pods of a played node: it asks both as one, and goes on when one of them is gone.

use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use integration::{Kubelet, Towline, eventually, programs, users};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use crate::elections::monitor::Monitor;
use crate::elections::replica::Replica;
use crate::elections::sharing::replicas;
use crate::elections::world::{Company, LIMIT, World, kind, run};

const RELEASE: &str = "edges";

/// Somebody who may do with one namespace what docs/command-line.md says, and has the program under its other name.
struct Person {
    program: PathBuf,
    kubeconfig: PathBuf,
    namespace: String,
}

impl Person {
    async fn of(world: &World) -> Self {
        let directory = integration_directory(&world.name);
        let program = directory.join("kubectl-towline");
        symlink(programs::towline().await.unwrap(), &program).unwrap();
        let kubeconfig = world.edge.kubeconfig(users::UNPRIVILEGED).unwrap();
        Self { program, kubeconfig, namespace: world.name.clone() }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).env("KUBECONFIG", &self.kubeconfig).kill_on_drop(true);
        command
    }

    /// Runs a command in the namespace to its end.
    async fn run(&self, arguments: &[&str]) -> Output {
        self.command(&[&["-n", &self.namespace], arguments].concat()).output().await.unwrap()
    }

    /// The document that a command prints, and its lines on standard error.
    async fn document(&self, arguments: &[&str]) -> Result<(Value, String), String> {
        let Output { status, stdout, stderr } = self.run(arguments).await;
        let told = String::from_utf8(stderr).unwrap();
        if !status.success() {
            return Err(told);
        }
        Ok((serde_json::from_slice(&stdout).unwrap(), told))
    }
}

/// An empty directory that lasts as long as the tests.
fn integration_directory(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    drop(std::fs::remove_dir_all(&directory));
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

fn address(towline: &Towline) -> SocketAddr {
    towline.admin_url().strip_prefix("http://").unwrap().parse().unwrap()
}

/// What docs/command-line.md asks for.
async fn grant(world: &World) {
    let name = "kubectl-towline";
    let role: Role = serde_json::from_value(json!({
        "metadata": {"name": name},
        "rules": [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
            {"apiGroups": [""], "resources": ["pods/portforward"], "verbs": ["get", "create"]},
        ],
    }))
    .unwrap();
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": users::UNPRIVILEGED}],
    }))
    .unwrap();
    let (roles, bindings): (Api<Role>, Api<RoleBinding>) = (
        Api::namespaced(world.edge_client.clone(), &world.name),
        Api::namespaced(world.edge_client.clone(), &world.name),
    );
    roles.create(&PostParams::default(), &role).await.unwrap();
    bindings.create(&PostParams::default(), &binding).await.unwrap();
}

fn pod(namespace: &str, name: &str, release: &str) -> Value {
    let labels = json!({"app.kubernetes.io/name": "towline", "app.kubernetes.io/instance": release});
    json!({"namespace": namespace, "name": name, "labels": labels})
}

/// Two replicas as the pods `towline-0` and `towline-1`, of which one holds the deletion of both objects of the first section.
async fn release(world: &World, monitor: &Monitor, node: &Kubelet) -> Vec<Replica> {
    let bills = json!({
        "apiVersion": "demo.towline.dev/v1", "kind": "Database", "metadata": {"name": "bills"},
        "spec": {"engine": "postgres-17", "storage": "2Gi"},
    });
    let bills: DynamicObject = serde_json::from_value(bills).unwrap();
    world.on_hub(0).create(&PostParams::default(), &bills).await.unwrap();
    let section = world.sections()[0].clone();
    let alone = Replica::start(world, 2).await;
    eventually("both objects to be in step", LIMIT, async || {
        let report = alone.towline.admin().section(&section).await.map_err(|error| error.to_string())?;
        if report["objects"]["in_step"] == json!(2) { Ok(()) } else { Err(report.to_string()) }
    })
    .await
    .unwrap();
    alone.terminate().await;
    for name in ["bills", "orders"] {
        let without = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        world.on_hub(0).patch(name, &PatchParams::default(), &without).await.unwrap();
        world.on_hub(0).delete(name, &DeleteParams::default()).await.unwrap();
    }
    let replicas = replicas(world, monitor, 2).await;
    for (number, replica) in replicas.iter().enumerate() {
        let pod = pod(&world.name, &format!("towline-{number}"), RELEASE);
        node.run(&pod, "admin", address(&replica.towline)).await.unwrap();
    }
    replicas
}

/// The names of the first section's objects on the edge, without those that nothing but the garbage collector keeps: there is none.
async fn on_edge(world: &World) -> Vec<String> {
    let api: Api<DynamicObject> = Api::namespaced_with(world.edge_client.clone(), &world.namespace(0), &kind());
    let found = api.list(&kube::api::ListParams::default()).await.unwrap();
    let kept = found.items.iter().filter(|object| object.metadata.deletion_timestamp.is_none());
    kept.map(ResourceExt::name_any).collect()
}

/// `GET` of a path at the address that `kubectl towline ui` printed.
async fn get(base: SocketAddr, path: &str) -> Result<String, String> {
    let exchange = async {
        let mut stream = TcpStream::connect(base).await?;
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: {base}\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = exchange.await.map_err(|error| error.to_string())?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| format!("no answer: {answer:?}"))?;
    if head.starts_with("HTTP/1.1 200") { Ok(body.to_owned()) } else { Err(answer) }
}

/// The address that `ui` prints.
async fn page(child: &mut Child) -> SocketAddr {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines.next_line().await.unwrap().unwrap();
    line.strip_prefix("http://").and_then(|rest| rest.strip_suffix("/ui/")).unwrap().parse().unwrap()
}

/// Which replica serves a page.
async fn identity(base: SocketAddr, section: &str) -> Result<String, String> {
    let status: Value = serde_json::from_str(&get(base, "/status").await?).map_err(|error| error.to_string())?;
    Ok(status["sections"][section]["election"]["identity"].as_str().unwrap_or_default().to_owned())
}

/// A token goes nowhere if nobody has named the namespace.
async fn no_token_is_sent_into_an_unnamed_namespace(person: &Person, section: &str) {
    let token = ["approve", section, "--token-file", "/dev/null"];
    let refused = person.command(&[&["-A"], &token[..]].concat()).output().await.unwrap();
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && told.contains("a token is only sent"), "{refused:?}");
}

/// `status` has the others, as soon as they answer in time, and one line about this pod.
async fn a_silent_pod_is_one_line(person: &Person, name: &str) {
    let status = eventually("a line about the one that does not answer", LIMIT, async || {
        let (status, told) = person.document(&["status", "-o", "json"]).await?;
        let is_it = told.contains(&format!("{name} does not answer: ")) && told.contains("connection refused");
        if is_it && told.lines().count() == 1 { Ok(status) } else { Err(told) }
    });
    let status = status.await.unwrap();
    assert!(status["replicas"][name]["error"].is_string(), "{status}");
}

#[test]
fn kubectl_asks_two_replicas_as_one_and_survives_the_end_of_a_pod() {
    run(Company::One, async {
        let world = World::shared("plugin", Duration::from_secs(5), Duration::from_millis(1500)).await;
        let monitor = Monitor::start(&world).await;
        let node = Kubelet::start(&world.edge_client, "plugin").await.unwrap();
        let person = Person::of(&world).await;
        let (section, namespace) = (world.sections()[0].clone(), world.name.clone());

        let forbidden = person.document(&["status", "-o", "json"]).await.unwrap_err();
        assert!(forbidden.contains("failed to list pods: pods is forbidden"), "{forbidden}");
        grant(&world).await;
        let told = eventually("the role to be there", LIMIT, async || {
            let told = person.document(&["status"]).await.unwrap_err();
            if told.contains("forbidden") { Err(told) } else { Ok(told) }
        });
        let told = told.await.unwrap();
        assert!(
            told.contains(&format!("no pods with the label app.kubernetes.io/name=towline in namespace {namespace}"))
        );
        let replicas = release(&world, &monitor, &node).await;
        let pod_of = |identity: &str| {
            let place = replicas.iter().position(|replica| replica.identity == identity).expect("one of the two");
            format!("towline-{place}")
        };

        // Each section is told by the replica that runs it.
        let status = eventually("a status of both in which the deletions are held", LIMIT, async || {
            let (status, told) = person.document(&["status", "-o", "json"]).await?;
            if status["sections"][&section]["state"] != json!("held") {
                return Err(status["sections"][&section].to_string());
            }
            assert_eq!(told, "", "both answer");
            Ok(status)
        });
        let status = status.await.unwrap();
        assert_eq!(status["replicas"].as_object().unwrap().keys().collect::<Vec<_>>(), ["towline-0", "towline-1"]);
        let sections = status["sections"].as_object().unwrap();
        assert_eq!(sections.keys().cloned().collect::<Vec<_>>(), world.sections());
        for (name, report) in sections {
            assert_eq!(report["election"]["held"], json!(true), "{name}: {report}");
            assert_eq!(report["replica"], json!(pod_of(report["election"]["identity"].as_str().unwrap())), "{name}");
        }
        assert_eq!(status["clusters"].as_object().unwrap().len(), 2, "both agree on both: {}", status["clusters"]);

        // Another release has to be told apart.
        node.run(&pod(&namespace, "other-0", "other"), "admin", address(&replicas[0].towline)).await.unwrap();
        let several = person.run(&["status"]).await;
        assert_eq!(several.status.code(), Some(2), "{several:?}");
        let told = String::from_utf8_lossy(&several.stderr).into_owned();
        let both = format!("{RELEASE} (namespace {namespace}), other (namespace {namespace})");
        assert!(told.contains(&both), "{told}");
        assert!(person.document(&["status", "--release", RELEASE, "-o", "json"]).await.is_ok());
        node.remove(&namespace, "other-0").await.unwrap();

        no_token_is_sent_into_an_unnamed_namespace(&person, &section).await;

        // The order reaches the replica that holds something.
        assert_eq!(on_edge(&world).await, ["bills", "orders"]);
        let approved = person.run(&["approve", &section, "--yes"]).await;
        assert!(approved.status.success(), "{approved:?}");
        let told = String::from_utf8_lossy(&approved.stdout).into_owned();
        assert!(told.contains("2 changes are approved"), "{told}");
        eventually("the approved deletions", LIMIT, async || match on_edge(&world).await {
            left if left.is_empty() => Ok(()),
            left => Err(format!("{left:?}")),
        })
        .await
        .unwrap();
        let holder = status["sections"][&section]["election"]["identity"].as_str().unwrap().to_owned();
        let (first, second): (Vec<_>, Vec<_>) = replicas.iter().partition(|replica| replica.identity == holder);
        let (first, second) = (first[0], second[0]);
        assert!(first.towline.log().unwrap().contains("approval requested"));
        assert!(!second.towline.log().unwrap().contains("approval requested"));

        // The page stays while its pod goes.
        let mut child = person.command(&["-n", &namespace, "ui"]).stdout(Stdio::piped()).spawn().unwrap();
        let base = page(&mut child).await;
        assert!(get(base, "/ui/").await.unwrap().contains("<!doctype html>"));
        let shown = identity(base, &section).await.unwrap();
        let (gone, left) = if shown == first.identity { (first, second) } else { (second, first) };
        gone.kill().await;
        node.remove(&namespace, &pod_of(&gone.identity)).await.unwrap();
        eventually("the page of the other replica", LIMIT, async || {
            let shown = identity(base, &section).await?;
            if shown == left.identity { Ok(()) } else { Err(shown) }
        })
        .await
        .unwrap();
        let id = Pid::from_raw(child.id().unwrap().try_into().unwrap()).unwrap();
        kill_process(id, Signal::INT).unwrap();
        assert_eq!(child.wait().await.unwrap().code(), Some(130));

        // A pod whose daemon does not answer holds up nobody, and orders for its sections say where those were.
        node.run(&pod(&namespace, "towline-9", RELEASE), "admin", address(&gone.towline)).await.unwrap();
        a_silent_pod_is_one_line(&person, "towline-9").await;
        eventually("every section to run in the replica that is left", LIMIT, async || {
            let (status, _) = person.document(&["status", "-o", "json"]).await?;
            let sections = status["sections"].as_object().unwrap();
            let is_left = |report: &Value| {
                report["election"]["identity"] == json!(left.identity) && report["election"]["held"] == json!(true)
            };
            if sections.values().all(is_left) { Ok(()) } else { Err(status.to_string()) }
        })
        .await
        .unwrap();
        let refused = person.run(&["approve", "nothing", "--yes"]).await;
        let told = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(refused.status.code() == Some(1) && told.contains("the release has no section nothing"), "{refused:?}");
    });
}
