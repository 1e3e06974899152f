//! `kubectl towline`, with three replicas as pods of a played node: it asks them as one, prints each answer in each format, sends orders to the
//! replica that runs the section, and goes on when one of them is gone.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use integration::commands::{FORMATS, KubectlTowline, Printed, in_each_format, pod_of_release};
use integration::{Kubelet, Towline, eventually, users};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::Child;

use crate::elections::monitor::Monitor;
use crate::elections::replica::Replica;
use crate::elections::sharing::replicas;
use crate::elections::world::{Company, LIMIT, SECTIONS, World, kind, run};
use crate::rules::asking::Asking;

const RELEASE: &str = "edges";
/// The first sections, as many as there are formats, each hold the deletion of two objects. The last one has none.
const HOLDING: usize = FORMATS.len();
const OBJECTS: [&str; 2] = ["bills", "orders"];

/// A release with three replicas, and somebody who may do with its namespace what docs/command-line.md says.
struct Scene {
    world: World,
    node: Kubelet,
    person: KubectlTowline,
    kubeconfig: PathBuf,
    /// The file with the token that orders need.
    token: String,
    replicas: Vec<Replica>,
}

/// What was on standard error.
fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

impl Scene {
    /// Without pods and rights.
    async fn new(name: &str) -> Self {
        let mut world = World::shared(name, Duration::from_secs(5), Duration::from_millis(1500)).await;
        let node = Kubelet::start(&world.edge_client, name).await.unwrap();
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        drop(std::fs::remove_dir_all(&directory));
        std::fs::create_dir_all(&directory).unwrap();
        let (token, kubeconfig) = (directory.join("token"), directory.join("kubeconfig"));
        std::fs::write(&token, "sesame").unwrap();
        std::fs::copy(world.edge.kubeconfig(users::UNPRIVILEGED).unwrap(), &kubeconfig).unwrap();
        let person = KubectlTowline::new(&directory, &kubeconfig, &world.name).await.unwrap();
        world.token_file = Some(token.clone());
        Self { world, node, person, kubeconfig, token: token.display().to_string(), replicas: Vec::new() }
    }

    /// The document that a command prints, and its lines on standard error.
    async fn document(&self, arguments: &[&str]) -> Result<(Value, String), String> {
        let output = self.person.run(arguments).await.unwrap();
        if !output.status.success() {
            return Err(told(&output));
        }
        Ok((serde_json::from_slice(&output.stdout).unwrap(), told(&output)))
    }

    /// An order, with its token.
    async fn order(&self, arguments: &[&str]) -> Output {
        self.person.run(&[arguments, &["--token-file", &self.token]].concat()).await.unwrap()
    }

    async fn run_pod(&self, name: &str, towline: &Towline) {
        let admin = towline.admin_url().strip_prefix("http://").unwrap().parse().unwrap();
        self.node.run(&pod_of_release(&self.world.name, name, RELEASE), &[("admin", admin)]).await.unwrap();
    }

    fn pod_of(&self, identity: &str) -> String {
        let place = self.replicas.iter().position(|replica| replica.identity == identity).unwrap();
        format!("towline-{place}")
    }

    /// Starts three replicas as the pods `towline-0` to `towline-2`.
    async fn release(&mut self, monitor: &Monitor) {
        let world = &self.world;
        for number in 0..HOLDING {
            let bills = json!({
                "apiVersion": "demo.towline.dev/v1", "kind": "Database", "metadata": {"name": "bills"},
                "spec": {"engine": "postgres-17", "storage": "2Gi"},
            });
            let bills: DynamicObject = serde_json::from_value(bills).unwrap();
            world.on_hub(number).create(&PostParams::default(), &bills).await.unwrap();
        }
        world.on_hub(HOLDING).delete("orders", &DeleteParams::default()).await.unwrap();
        let alone = Replica::start(world, 3).await;
        eventually("all objects to be in step", LIMIT, async || {
            for section in &world.sections()[..HOLDING] {
                let report = alone.towline.admin().section(section).await.map_err(|error| error.to_string())?;
                if report["objects"]["in_step"] != json!(2) {
                    return Err(report.to_string());
                }
            }
            Ok(())
        })
        .await
        .unwrap();
        alone.terminate().await;
        for number in 0..HOLDING {
            for name in OBJECTS {
                let without = Patch::Merge(json!({"metadata": {"finalizers": null}}));
                world.on_hub(number).patch(name, &PatchParams::default(), &without).await.unwrap();
                world.on_hub(number).delete(name, &DeleteParams::default()).await.unwrap();
            }
        }
        self.replicas = replicas(world, monitor, 3).await;
        for (number, replica) in self.replicas.iter().enumerate() {
            self.run_pod(&format!("towline-{number}"), &replica.towline).await;
        }
    }

    /// The names of a section's objects on the edge, without those that nothing but the garbage collector keeps: there is none.
    async fn on_edge(&self, number: usize) -> Vec<String> {
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.world.edge_client.clone(), &self.world.namespace(number), &kind());
        let found = api.list(&kube::api::ListParams::default()).await.unwrap();
        let kept = found.items.iter().filter(|object| object.metadata.deletion_timestamp.is_none());
        kept.map(ResourceExt::name_any).collect()
    }

    /// How often the logs of these pods tell of a request about a section.
    fn requested(&self, what: &str, section: &str) -> Vec<(String, usize)> {
        let count = |replica: &Replica| {
            let log = replica.towline.log().unwrap();
            log.lines().filter(|line| line.contains(what) && line.contains(section)).count()
        };
        self.replicas.iter().map(|replica| (self.pod_of(&replica.identity), count(replica))).collect()
    }
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

/// Who may not list pods, and a namespace without any.
async fn rights_and_pods_are_missed_by_name(scene: &Scene) {
    let forbidden = scene.document(&["status", "-o", "json"]).await.unwrap_err();
    assert!(forbidden.contains("failed to list pods: pods is forbidden"), "{forbidden}");
    grant(&scene.world).await;
    let told = eventually("the role to be there", LIMIT, async || {
        let told = scene.document(&["status"]).await.unwrap_err();
        if told.contains("forbidden") { Err(told) } else { Ok(told) }
    });
    let (told, namespace) = (told.await.unwrap(), &scene.world.name);
    let missed = format!("no pods with the label app.kubernetes.io/name=towline in namespace {namespace}");
    assert!(told.contains(&missed), "{told}");
}

/// Each section is told by the replica that runs it.
async fn status_of_all(scene: &Scene) -> Value {
    let status = eventually("a status of all in which the deletions are held", LIMIT, async || {
        let (status, told) = scene.document(&["status", "-o", "json"]).await?;
        for section in &scene.world.sections()[..HOLDING] {
            if status["sections"][section]["state"] != json!("held") {
                return Err(status["sections"][section].to_string());
            }
        }
        assert_eq!(told, "", "all answer");
        Ok(status)
    });
    let status = status.await.unwrap();
    let pods: Vec<_> = status["replicas"].as_object().unwrap().keys().collect();
    assert_eq!(pods, ["towline-0", "towline-1", "towline-2"]);
    let sections = status["sections"].as_object().unwrap();
    assert_eq!(sections.keys().cloned().collect::<Vec<_>>(), scene.world.sections());
    for (name, report) in sections {
        assert_eq!(report["election"]["held"], json!(true), "{name}: {report}");
        let identity = report["election"]["identity"].as_str().unwrap();
        assert_eq!(report["replica"], json!(scene.pod_of(identity)), "{name}");
    }
    assert_eq!(status["clusters"].as_object().unwrap().len(), 2, "all agree on both: {}", status["clusters"]);
    status
}

async fn another_release_has_to_be_told_apart(scene: &Scene) {
    let namespace = &scene.world.name;
    let other = pod_of_release(namespace, "other-0", "other");
    scene.node.run(&other, &[("admin", SocketAddr::from(([127, 0, 0, 1], 1)))]).await.unwrap();
    let several = scene.person.run(&["status"]).await.unwrap();
    assert_eq!(several.status.code(), Some(2), "{several:?}");
    let both = format!("{RELEASE} (namespace {namespace}), other (namespace {namespace})");
    assert!(told(&several).contains(&both), "{several:?}");
    assert!(scene.document(&["status", "--release", RELEASE, "-o", "json"]).await.is_ok());
    scene.node.remove(namespace, "other-0").await.unwrap();
}

/// What is not done, or not well, has its exit code, prints nothing but why, and that on standard error.
async fn each_end_has_its_exit_code(scene: &Scene) {
    let sections = scene.world.sections();
    let (holding, last) = (sections[0].as_str(), sections[HOLDING].as_str());
    let with_token = ["--token-file", scene.token.as_str()];
    let wrong = scene.kubeconfig.with_file_name("wrong").display().to_string();
    std::fs::write(&wrong, "open").unwrap();
    for (arguments, code, expected) in [
        (vec!["status", "--exit-code", last], 0, ""),
        (vec!["status", "--exit-code"], 3, ""),
        (vec!["status", "none"], 1, "no section none; sections: "),
        (vec!["explain", holding, "none"], 1, "knows no object none"),
        (vec!["approve", holding, "--yes"], 1, "401"),
        (vec!["approve", holding, "--yes", "--token-file", &wrong], 1, "401"),
        ([&["approve", "nothing", "--yes"][..], &with_token].concat(), 1, "the release has no section nothing"),
        ([&["approve", last, "--yes"][..], &with_token].concat(), 1, "nothing is held"),
        ([&["attach", last][..], &with_token].concat(), 1, "the section is not detached"),
        (vec!["resync", "inventory"], 1, "the release has no section inventory"),
        (vec!["get", "clusters"], 1, "the release has no section hub"),
        (vec!["explain", "foo/west", "ConfigMap/a/b"], 1, "the release has no section hub"),
        (vec!["rollout", "status"], 1, "the release has no section hub"),
        ([&["detach", last][..], &with_token].concat(), 2, "there is no terminal to ask on"),
        (vec!["approve", holding, "-A"], 2, "--namespace cannot be used with --all-namespaces"),
        (vec!["status", "--fly"], 2, "unexpected argument '--fly'"),
        (vec!["status", "--admin", "http://127.0.0.1:1"], 2, "--admin is an option of `towline`"),
        (vec!["status", "-o", "xml"], 2, "[possible values: table, wide, json, yaml, name]"),
    ] {
        let output = scene.person.run(&arguments).await.unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {output:?}");
        assert!(told(&output).contains(expected), "{arguments:?}: {output:?}");
        let is_told = !expected.is_empty();
        assert_eq!(
            (is_told, output.stdout.is_empty()),
            (!output.stderr.is_empty(), is_told),
            "{arguments:?}: {output:?}"
        );
    }
    // A token goes nowhere if nobody has named the namespace.
    for command in [&["approve", holding, "--token-file", "/dev/null"][..], &["rollout", "status"], &["ui"]] {
        let refused = scene.person.command(&[&["-A"], command].concat()).output().await.unwrap();
        let is_told = told(&refused).contains("a token is only sent");
        assert!(refused.status.code() == Some(2) && is_told, "{command:?}: {refused:?}");
    }
    assert_eq!(scene.on_edge(0).await, OBJECTS, "nothing was approved");
}

/// What was printed in each format, with nothing beside it.
fn clean(arguments: &[&str], printed: Result<Printed, String>) -> Printed {
    let printed = printed.unwrap_or_else(|wrong| unreachable!("{arguments:?}: {wrong}"));
    assert_eq!(printed.code, Some(0), "{arguments:?}: {printed:?}");
    assert!(printed.told.values().all(String::is_empty), "{arguments:?}: {printed:?}");
    printed
}

async fn each_answer_is_printed_in_each_format(scene: &Scene) {
    let sections = scene.world.sections();
    let section = sections[0].as_str();
    let keys = OBJECTS.map(|name| format!("{}/{name}", scene.world.namespace(0)));
    let (key, config) = (keys[0].as_str(), scene.replicas[0].towline.config_path());
    let names = |of: &[&str]| of.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    for (arguments, expected, in_table) in [
        (vec!["status"], sections.clone(), "REPLICA"),
        (vec!["status", "--tree"], sections.clone(), "ACTOR"),
        (vec!["status", section], names(&[section]), "held"),
        (vec!["status", section, key], names(&[key]), "CAUSE → NEXT STEP"),
        (vec!["explain", section, key], names(&[key]), "held"),
        (vec!["approve", section, "--list"], keys.to_vec(), "REASON"),
    ] {
        let printed = eventually(format!("{arguments:?} in each format"), LIMIT, async || {
            in_each_format(async |format| scene.person.run(&[&arguments[..], &["-o", format]].concat()).await).await
        });
        let mut printed = clean(&arguments, printed.await.map_err(|error| error.to_string()));
        printed.names.sort();
        assert_eq!(printed.names, expected, "{arguments:?}");
        assert!(printed.table.contains(in_table), "{arguments:?}: {}", printed.table);
    }
    // Those that ask no daemon.
    let config = config.to_str().unwrap();
    for (arguments, expected) in [
        (vec!["check", config], sections.clone()),
        (vec!["check", config, "--connect"], sections.clone()),
        (vec!["release", config, "--finalizer", "nobody.example/has-it", "--list"], Vec::new()),
    ] {
        let printed = in_each_format(async |format| Towline::command([&arguments[..], &["-o", format]].concat()).await);
        let printed = printed.await.unwrap_or_else(|wrong| unreachable!("{arguments:?}: {wrong}"));
        assert_eq!((printed.code, &printed.names), (Some(0), &expected), "{arguments:?}: {printed:?}");
    }
}

/// Each order reaches the replica that runs its section, and no other.
async fn orders_reach_the_one_that_runs_the_section(scene: &Scene, status: &Value) {
    let sections = scene.world.sections();
    let reaches = |what: &str, section: &str, count: usize| {
        let runner = status["sections"][section]["replica"].as_str().unwrap();
        for (pod, times) in scene.requested(what, section) {
            assert_eq!(times, if pod == runner { count } else { 0 }, "{what} of {section} in {pod}, run by {runner}");
        }
    };
    let mut left = sections[..HOLDING].iter();
    let approved = in_each_format(async |format| {
        let section = left.next().unwrap();
        Ok(scene.order(&["approve", section, "--yes", "-o", format]).await)
    });
    let approved = clean(&["approve"], approved.await);
    assert_eq!(approved.document, json!({"approved": 2, "remembered": true}));
    assert_eq!(approved.names, [sections[HOLDING - 1].as_str()]);
    assert_eq!(approved.table, format!("{}: 2 changes are approved; a restart remembers that\n", sections[0]));
    for (number, section) in sections[..HOLDING].iter().enumerate() {
        eventually("the approved deletions", LIMIT, async || match scene.on_edge(number).await {
            left if left.is_empty() => Ok(()),
            left => Err(format!("{left:?}")),
        })
        .await
        .unwrap();
        // The first one was refused twice before, for want of the token.
        reaches("approval requested", section, 1);
    }
    let last = sections[HOLDING].as_str();
    let (detach, attach) = (["detach", last, "--yes"], ["attach", last]);
    let detached = in_each_format(async |format| {
        let output = scene.order(&[&detach[..], &["-o", format]].concat()).await;
        assert!(scene.order(&attach).await.status.success());
        Ok(output)
    });
    let attached = in_each_format(async |format| {
        assert!(scene.order(&detach).await.status.success());
        Ok(scene.order(&[&attach[..], &["-o", format]].concat()).await)
    });
    for (order, printed, document) in [
        (&detach[..], detached.await, json!({"detaching": 0, "remembered": true})),
        (&attach[..], attached.await, json!({"attached": 0, "remembered": true})),
    ] {
        let printed = clean(order, printed);
        assert_eq!((printed.document, printed.names), (document, vec![last.to_owned()]), "{order:?}");
    }
    reaches("detach requested", last, 2 * FORMATS.len());
    reaches("attach requested", last, 2 * FORMATS.len() + 1);
}

/// On a terminal it asks and redraws; in a pipe a change is a line, and there is nothing that only a terminal understands.
async fn a_terminal_and_a_pipe_are_told_apart(scene: &Scene) {
    let last = &scene.world.sections()[HOLDING];
    let line = scene.person.line(&["detach", last, "--token-file", &scene.token]);
    let (code, shown) = Asking::line(&line, "[y/N] ").await.answer("n\n").await;
    assert!(code == Some(1) && shown.contains("nothing was done"), "{shown}");
    let (code, shown) = Asking::line(&line, "[y/N] ").await.answer("y\n").await;
    assert!(code == Some(0) && shown.contains("with 0 objects") && shown.contains(": detaching, 0 objects"), "{shown}");
    assert!(scene.order(&["attach", last]).await.status.success());

    let watch = ["status", "--watch"];
    let (code, shown) = Asking::line(&scene.person.line(&watch), "\u{1b}[J").await.answer("\u{3}").await;
    assert!(code == Some(130) && shown.contains("\u{1b}[H") && shown.contains("SECTION"), "{shown}");
    let arguments = [&["-n", scene.world.name.as_str()], &watch[..]].concat();
    let mut child = scene.person.command(&arguments).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = lines.next_line().await.unwrap().unwrap();
    assert!(line.contains(" cluster edge available") && !line.contains('\u{1b}'), "{line:?}");
    interrupted(child).await;
}

async fn interrupted(mut child: Child) {
    let id = Pid::from_raw(child.id().unwrap().try_into().unwrap()).unwrap();
    kill_process(id, Signal::INT).unwrap();
    assert_eq!(child.wait().await.unwrap().code(), Some(130));
}

/// Makes another context of a kubeconfig the current one, that of a cluster without the release.
fn switch_context(kubeconfig: &Path, other: &Path) {
    let read = |path: &Path| serde_json::from_slice::<Value>(&std::fs::read(path).unwrap()).unwrap();
    let (mut both, other) = (read(kubeconfig), read(other));
    for list in ["clusters", "contexts"] {
        both[list].as_array_mut().unwrap().push(other[list][0].clone());
    }
    both["current-context"] = other["current-context"].clone();
    std::fs::write(kubeconfig, both.to_string()).unwrap();
}

/// The page stays while its pod goes, and another context becomes the current one. Returns the place of the replica that was killed.
async fn the_page_stays_while_its_pod_goes(scene: &Scene) -> usize {
    let (section, namespace) = (&scene.world.sections()[0], &scene.world.name);
    let mut child = scene.person.command(&["-n", namespace, "ui"]).stdout(Stdio::piped()).spawn().unwrap();
    let base = page(&mut child).await;
    assert!(get(base, "/ui/").await.unwrap().contains("<!doctype html>"));
    let before = std::fs::read(&scene.kubeconfig).unwrap();
    switch_context(&scene.kubeconfig, &scene.world.hub.kubeconfig(users::UNPRIVILEGED).unwrap());
    let shown = identity(base, section).await.unwrap();
    let gone = scene.replicas.iter().position(|replica| replica.identity == shown).unwrap();
    scene.replicas[gone].kill().await;
    scene.node.remove(namespace, &scene.pod_of(&shown)).await.unwrap();
    let others: Vec<_> = scene.replicas.iter().filter(|replica| replica.identity != shown).collect();
    eventually("the page of another replica", LIMIT, async || {
        let shown = identity(base, section).await?;
        if others.iter().any(|other| other.identity == shown) { Ok(()) } else { Err(shown) }
    })
    .await
    .unwrap();
    // Its sections expire, which takes longer than a changed kubeconfig stays unread.
    eventually("every section to run in a replica that is left", LIMIT, async || {
        let status: Value = serde_json::from_str(&get(base, "/status").await?).map_err(|error| error.to_string())?;
        let sections = status["sections"].as_object().unwrap();
        let is_left = |report: &Value| others.iter().any(|other| report["election"]["holder"] == json!(other.identity));
        if sections.values().all(is_left) { Ok(()) } else { Err(status.to_string()) }
    })
    .await
    .unwrap();
    interrupted(child).await;
    std::fs::write(&scene.kubeconfig, before).unwrap();
    gone
}

/// A pod whose daemon does not answer holds up nobody: `status` has the others and one line about this one, and orders go to the others.
async fn a_silent_pod_is_one_line(scene: &Scene, gone: usize) {
    scene.run_pod("towline-9", &scene.replicas[gone].towline).await;
    let status = eventually("a line about the one that does not answer", LIMIT, async || {
        let (status, told) = scene.document(&["status", "-o", "json"]).await?;
        let is_it = told.contains("towline-9 does not answer: ") && told.contains("connection refused");
        if is_it && told.lines().count() == 1 { Ok(status) } else { Err(told) }
    });
    let status = status.await.unwrap();
    assert!(status["replicas"]["towline-9"]["error"].is_string(), "{status}");
    for number in 0..SECTIONS {
        let section = &scene.world.sections()[number];
        eventually("an order for a section that has moved, or not", LIMIT, async || {
            let output = scene.order(&["detach", section, "--yes"]).await;
            if output.status.success() { Ok(()) } else { Err(told(&output)) }
        })
        .await
        .unwrap();
    }
}

#[test]
fn kubectl_asks_three_replicas_as_one_and_survives_the_end_of_a_pod() {
    run(Company::One, async {
        let mut scene = Scene::new("plugin").await;
        let monitor = Monitor::start(&scene.world).await;
        rights_and_pods_are_missed_by_name(&scene).await;
        scene.release(&monitor).await;
        let status = status_of_all(&scene).await;
        another_release_has_to_be_told_apart(&scene).await;
        each_end_has_its_exit_code(&scene).await;
        each_answer_is_printed_in_each_format(&scene).await;
        orders_reach_the_one_that_runs_the_section(&scene, &status).await;
        a_terminal_and_a_pipe_are_told_apart(&scene).await;
        let gone = the_page_stays_while_its_pod_goes(&scene).await;
        a_silent_pod_is_one_line(&scene, gone).await;
    });
}
