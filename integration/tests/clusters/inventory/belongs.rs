//! What belongs to a release, and where releases are, when neither labels nor namespaces say so.

use std::collections::BTreeSet;

use integration::{Chart, Filter, eventually, users};
use k8s_openapi::api::batch::v1::CronJob;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::Api;
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use serde_json::{Value, json};

use crate::inventory::world::{LIMIT, World, run, small_chart};

/// A template with labels as charts had them before those that Kubernetes recommends; `spec` has `TEMPLATE` for that of its pods.
fn template(api: &str, kind: &str, name: &str, spec: &str) -> String {
    let labels = "labels: {app: old, release: \"{{ .Release.Name }}\", heritage: \"{{ .Release.Service }}\"}";
    let selector = format!("{{app: old, part: {name}}}");
    let pods = format!(
        "metadata: {{labels: {selector}}}, spec: {{restartPolicy: RESTART, tolerations: [{{operator: Exists}}], containers: [{{name: main, image: \"{name}:1\"}}]}}"
    );
    let spec = spec.replace("TEMPLATE", &pods).replace("SELECTOR", &selector);
    let restart = if kind.ends_with("Job") { "Never" } else { "Always" };
    format!(
        "apiVersion: {api}\nkind: {kind}\nmetadata: {{name: \"{{{{ .Release.Name }}}}-{name}\", {labels}}}\nspec: {}\n",
        spec.replace("RESTART", restart)
    )
}

fn old_chart() -> Chart {
    let claim = "accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}";
    let files = [
        ("v1", "Pod", "pod", "{containers: [{name: main, image: \"pod:1\"}]}".to_owned()),
        ("apps/v1", "Deployment", "deployment", "{selector: {matchLabels: SELECTOR}, template: {TEMPLATE}}".to_owned()),
        ("apps/v1", "DaemonSet", "daemonset", "{selector: {matchLabels: SELECTOR}, template: {TEMPLATE}}".to_owned()),
        (
            "apps/v1",
            "StatefulSet",
            "statefulset",
            format!(
                "{{serviceName: none, selector: {{matchLabels: SELECTOR}}, template: {{TEMPLATE}}, \
                 volumeClaimTemplates: [{{metadata: {{name: data}}, spec: {{{claim}}}}}]}}"
            ),
        ),
        ("batch/v1", "Job", "job", "{template: {TEMPLATE}}".to_owned()),
        (
            "batch/v1",
            "CronJob",
            "cronjob",
            "{schedule: \"0 0 1 1 *\", jobTemplate: {spec: {template: {TEMPLATE}}}}".to_owned(),
        ),
        ("v1", "Service", "service", "{ports: [{port: 80}]}".to_owned()),
        ("v1", "PersistentVolumeClaim", "claim", format!("{{{claim}}}")),
        (
            "networking.k8s.io/v1",
            "Ingress",
            "ingress",
            "{defaultBackend: {service: {name: a, port: {number: 80}}}}".to_owned(),
        ),
    ];
    files.iter().fold(Chart::new("old", "1"), |chart, (api, kind, name, spec)| {
        chart.with(&format!("templates/{name}.yaml"), template(api, kind, name, spec))
    })
}

/// The images of a report's pods, and the names of its other objects.
fn parts(report: &Value) -> BTreeSet<String> {
    let texts = |list: &str, field: &str| {
        let items = report["app_info"][list].as_array().cloned().unwrap_or_default();
        items.into_iter().map(|item| item[field].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let of_kind = ["service_info", "volume_info", "ingress_info"].map(|list| texts(list, "name"));
    texts("pod_info", "image").into_iter().chain(of_kind.concat()).collect()
}

#[test]
fn what_names_no_release_belongs_to_the_one_whose_manifest_lists_it_or_what_has_made_it() {
    run(async {
        let world = World::with_workloads("belongs").await;
        // For which the DaemonSet makes a pod, whose tolerations are for a node that is not ready.
        world.create(&json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "one"}})).await;
        // Its label of the old kind proves nothing.
        world
            .create(&json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "foreign", "namespace": "default"},
                "spec": {"selector": {"matchLabels": {"app": "foreign"}}, "template": {
                    "metadata": {"labels": {"app": "foreign", "release": "web"}}, "spec": {"containers": [{"name": "main", "image": "foreign:1"}]}}}}))
            .await;
        let mut daemon = world.start("").await;
        let chart = world.helm.chart(&old_chart()).unwrap();
        world.helm.run(&["install", "web", &chart]).await.unwrap();
        // As the controller makes it when its time has come.
        let cron_job = Api::<CronJob>::namespaced(world.admin.clone(), "default").get("web-cronjob").await.unwrap();
        let owner = json!({"apiVersion": "batch/v1", "kind": "CronJob", "name": "web-cronjob", "uid": cron_job.metadata.uid, "controller": true});
        let spec = cron_job.spec.job_template.spec;
        world
            .create(&json!({"apiVersion": "batch/v1", "kind": "Job", "spec": spec,
                "metadata": {"name": "web-cronjob-29388123", "namespace": "default", "ownerReferences": [owner]}}))
            .await;
        let all: BTreeSet<String> = [
            "pod:1",
            "deployment:1",
            "daemonset:1",
            "statefulset:1",
            "job:1",
            "cronjob:1",
            "web-service",
            "web-claim",
            "data-web-statefulset-0",
            "web-ingress",
        ]
        .map(str::to_owned)
        .into();
        let reports = async |expected: &BTreeSet<String>| {
            eventually(format!("a report of {expected:?}"), LIMIT, async || {
                let reports = world.accepted("web");
                let last = reports.last().map(parts).unwrap_or_default();
                if last == *expected { Ok(reports.len()) } else { Err(format!("{last:?}")) }
            })
            .await
            .unwrap()
        };
        let before = reports(&all).await;
        world.wait_until_acknowledged("web").await;

        // A restart reads the manifest again, and misses nothing.
        daemon.kill9().await.unwrap();
        let audit = world.plane.audit().unwrap();
        let mark = audit.mark().await.unwrap();
        daemon.start_again().await.unwrap();
        daemon.wait_ready(LIMIT).await.unwrap();
        let pods = Api::<Pod>::namespaced(world.admin.clone(), "default");
        pods.delete("web-pod", &DeleteParams::default().grace_period(0)).await.unwrap();
        let rest: BTreeSet<String> = all.iter().filter(|part| *part != "pod:1").cloned().collect();
        assert_eq!(reports(&rest).await, before + 1, "nothing else was told");
        let reads = Filter::since(mark).user(users::TOWLINE).verb("get").resource("secrets");
        assert_eq!(audit.count(&reads).await.unwrap(), 1);
        world.helm.run(&["uninstall", "web"]).await.unwrap();
        assert_eq!(world.told("web", before + 2).await[before + 1]["app_info"]["pod_info"], json!([]));
    });
}

/// Stores the record of a release's first revision in other namespaces, one after the other, instead of its own.
async fn store(world: &World, release: &str, namespaces: [&str; 2]) {
    let secrets = |namespace: &str| Api::<Secret>::namespaced(world.admin.clone(), namespace);
    let name = format!("sh.helm.release.v1.{release}.v1");
    let mut record = secrets("apps").get(&name).await.unwrap();
    record.metadata =
        ObjectMeta { name: record.metadata.name, labels: record.metadata.labels, ..ObjectMeta::default() };
    for (place, namespace) in namespaces.into_iter().enumerate() {
        secrets(namespace).create(&PostParams::default(), &record).await.unwrap();
        if place == 0 {
            secrets("apps").delete(&name, &DeleteParams::default()).await.unwrap();
            stored_in(world, release, namespace).await;
        }
    }
}

async fn stored_in(world: &World, release: &str, namespace: &str) {
    eventually(format!("{release} to be stored in {namespace}"), LIMIT, async || {
        let status = world.status().await;
        let entries = status["helmStatus"].as_array().cloned().unwrap_or_default();
        let is_so = |entry: &Value| {
            entry["name"] == release && entry["namespace"] == "apps" && entry["storageNamespace"] == namespace
        };
        if entries.iter().any(is_so) { Ok(()) } else { Err(status.to_string()) }
    })
    .await
    .unwrap();
}

#[test]
fn of_several_places_of_a_release_the_first_that_is_not_denied_counts_in_whatever_order_they_are_seen() {
    run(async {
        let world = World::without_project().await;
        world.project("main", &json!({"denyNamespaces": []})).await;
        let mut daemon = world.start("delay = \"5s\"\n").await;
        for name in ["apps", "flux-system", "zoo"] {
            world.namespace(name).await;
        }
        let chart = world.helm.chart(&small_chart()).unwrap();
        let places = [("one", ["flux-system", "zoo"]), ("two", ["zoo", "flux-system"])];
        for (release, _) in places {
            world.helm.run(&["install", release, &chart, "--namespace", "apps"]).await.unwrap();
            world.told(release, 1).await;
            world.wait_until_acknowledged(release).await;
        }
        for (release, namespaces) in places {
            store(&world, release, namespaces).await;
        }
        let both_in = async |namespace: &str| {
            for (release, _) in places {
                stored_in(&world, release, namespace).await;
            }
        };
        both_in("flux-system").await;
        world.change_project("main", &json!({"denyNamespaces": ["flux-system"]})).await;
        both_in("zoo").await;
        world.change_project("main", &json!({"denyNamespaces": ["flux-system", "zoo"]})).await;
        world.wait_until_forgotten().await;
        assert_eq!(world.sink.told().len(), 3, "the registration, and each release once");
        // Who starts with that has never known them, and learns of them as the others do.
        daemon.start_again().await.unwrap();
        daemon.wait_ready(LIMIT).await.unwrap();
        world.change_project("main", &json!({"denyNamespaces": ["zoo"]})).await;
        both_in("flux-system").await;
        for (release, _) in places {
            world.told(release, 2).await;
            assert_eq!(world.accepted(release).len(), 2);
        }
    });
}
