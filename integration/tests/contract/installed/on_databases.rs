//! Presets that need a database: status sync, and the hub in its three uses.

use std::fs;
use std::path::PathBuf;

use futures::StreamExt;
use integration::commands::KubectlTowline;
use integration::leaf_hubs::{self, Counts};
use integration::port::Port;
use integration::postgres::{ADMIN, Database, HUB, READER};
use integration::{Kubelet, RabbitMq, Towline, crds, pod, users};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::Api;
use kube::api::DynamicObject;
use lapin::options::{BasicConsumeOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties, Consumer, ExchangeKind};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::{Value, json};

use super::{LIMIT, Site, account, ends, kind, kubeconfig, make, shows};
use crate::{HUB_KEYS, HUB_TOKEN, HUB_TOKENS, database_server};

/// By its address, since a container has no file of names.
fn url(database: &Database, user: &str) -> String {
    database.url_by(user, &database.address().to_string())
}

/// What leaf hubs have reported of each kind is summed up, in objects that exist and in new ones.
pub(super) async fn status_sync_sums_up(site: &Site<'_>) {
    const RELEASE: &str = "status-sync";
    let database = database_server().await.database("installed_status").await.unwrap();
    site.namespace(RELEASE).await;
    site.secret(RELEASE, "hub-of-hubs-database-secret", json!({"url": url(&database, READER)})).await;
    let counts = Counts { policies: 1, clusters: 1, others: 1 };
    leaf_hubs::fill(&site.client, &database.client(ADMIN).await.unwrap(), RELEASE, counts).await.unwrap();
    site.helm("install", RELEASE, RELEASE, &[]).await;
    let pods = [site.pod(RELEASE).await, site.pod(RELEASE).await];
    for (plural, name, pointer, value) in [
        ("policies", "object-00000", "/status/compliant", json!("Compliant")),
        ("placementrules", "object-00000", "/status/decisions/1/clusterName", json!("cluster-0002")),
        ("placements", "object-00000", "/status/numberOfSelectedClusters", json!(3 * 7)),
        ("placementdecisions", "object-00000-decision-1", "/status/decisions/1/clusterName", json!("cluster-0002")),
        ("subscriptionstatuses", "object-00000", "/statuses/packages/0/name", json!("web")),
        ("subscriptionreports", "object-00000", "/summary/clusters", json!("9")),
    ] {
        let resource = crds::hub_kind(plural).unwrap();
        let api: Api<DynamicObject> = Api::namespaced_with(site.client.clone(), RELEASE, &resource);
        shows(&api, name, pointer, value).await;
    }
    for pod in pods {
        ends(pod).await;
    }
    site.nothing_was_forbidden(&account(RELEASE)).await;
}

/// One release of the hub, which keeps documents, after an upgrade applies them, and after another one publishes them, too. What is sealed with its
/// keys leads to a cluster.
pub(super) async fn the_hub_applies_syncsets_and_publishes_events(site: &Site<'_>) {
    const RELEASE: &str = "hub";
    let database = database_server().await.hub_database("installed_hub").await.unwrap();
    let CertifiedKey { cert, signing_key } = generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    site.namespace(RELEASE).await;
    site.secret(RELEASE, "towline-hub", json!({"POSTGRES_PARAMS": url(&database, HUB)})).await;
    site.secret(RELEASE, "towline-hub-access", json!({"tokens": HUB_TOKENS, "keys": HUB_KEYS})).await;
    let tls = json!({"tls.crt": cert.pem(), "tls.key": signing_key.serialize_pem()});
    site.secret(RELEASE, "towline-hub-tls", tls).await;
    let port = Port::take().unwrap();
    let listen = format!("config.hub.listen=0.0.0.0:{}", port.address().port());
    // The cluster is on this machine.
    let local = "config.syncsets.allow[0]=local-networks".to_owned();
    let people = People::new(&port, &cert.pem());
    let maps = kind(&site.client, "default", "", "ConfigMap");

    let (broker, ()) = tokio::join!(RabbitMq::start("installed"), async {
        site.helm("install", RELEASE, "hub", std::slice::from_ref(&listen)).await;
        let pod = site.pod(RELEASE).await;
        people.apply(&[cluster(site).await, greeting("hello")]).await;
        let found = people.run(&["get", "clusters", "fleet/here", "-o", "name"]).await;
        assert_eq!(found, "Cluster/fleet/here\n");
        people.reach_it_by_kubectl(site, &pod, &port).await;
        ends(pod).await;

        site.helm("upgrade", RELEASE, "hub-syncsets", &[listen.clone(), local.clone()]).await;
        let pod = site.pod(RELEASE).await;
        shows(&maps, "greeting", "/data/text", "hello").await;
        ends(pod).await;
    });

    let broker = broker.unwrap();
    site.secret(RELEASE, "towline-hub", json!({"POSTGRES_PARAMS": url(&database, HUB), "AMQP_URL": broker.url()}))
        .await;
    let mut events = Events::of_selector_syncsets(&broker).await;
    site.helm("upgrade", RELEASE, "rabbitmq", &[listen, local]).await;
    let pod = site.pod(RELEASE).await;
    // What was before the first event is for lists.
    events.until("selectorsyncsets.relist").await;
    people.apply(&[greeting("hello again")]).await;
    events.until("selectorsyncsets.modified").await;
    shows(&maps, "greeting", "/data/text", "hello again").await;
    ends(pod).await;

    // Back to the revision without a broker.
    site.helm.run(&["rollback", RELEASE, "2", "--namespace", RELEASE]).await.unwrap();
    let pod = site.pod(RELEASE).await;
    people.apply(&[greeting("hello as before")]).await;
    shows(&maps, "greeting", "/data/text", "hello as before").await;
    ends(pod).await;
    site.nothing_was_forbidden(FLEET).await;
}

/// The account on a cluster by which syncsets are applied there.
const FLEET: &str = "system:serviceaccount:fleet:towline";

/// A document of the releases' own cluster, by an account with the permissions that docs/operating-syncsets.md asks for.
async fn cluster(site: &Site<'_>) -> Value {
    site.namespace("fleet").await;
    make(&Api::<ServiceAccount>::namespaced(site.client.clone(), "fleet"), json!({"metadata": {"name": "towline"}}))
        .await;
    let role = json!({"kind": "ClusterRole", "metadata": {"name": "fleet"}, "rules": [
        {"apiGroups": [""], "resources": ["namespaces"], "resourceNames": ["kube-system"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "create", "patch", "delete"]},
    ]});
    make(&Api::<ClusterRole>::all(site.client.clone()), role.clone()).await;
    let binding = json!({"metadata": {"name": "fleet"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "fleet"},
        "subjects": [{"kind": "ServiceAccount", "namespace": "fleet", "name": "towline"}]});
    make(&Api::<ClusterRoleBinding>::all(site.client.clone()), binding).await;
    site.permitted(FLEET, [&role].into_iter(), "").await;
    let token = pod::token(&site.client, "fleet", "towline").await.unwrap();
    let kubeconfig = kubeconfig(&site.plane, &json!({"token": token}));
    json!({"kind": "Cluster", "namespace": "fleet", "name": "here", "kubeconfig": kubeconfig})
}

/// A syncset for all clusters.
fn greeting(text: &str) -> Value {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "greeting", "namespace": "default"},
        "data": {"text": text}});
    json!({"kind": "SelectorSyncSet", "name": "greeting",
        "spec": {"clusterDeploymentSelector": {"matchLabels": {}}, "resources": [map]}})
}

/// Who uses the hub by commands, over TLS, with a token.
struct People {
    directory: PathBuf,
    hub: String,
}

impl People {
    fn new(hub: &Port, authority: &str) -> Self {
        let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("installed");
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("token"), HUB_TOKEN).unwrap();
        fs::write(directory.join("ca.crt"), authority).unwrap();
        Self { directory, hub: format!("https://127.0.0.1:{}", hub.address().port()) }
    }

    /// What a command prints, which has to succeed.
    async fn run(&self, args: &[&str]) -> String {
        let file = |name: &str| self.directory.join(name).display().to_string();
        let (token, authority) = (file("token"), file("ca.crt"));
        let access = ["--hub", &self.hub, "--token-file", &token, "--certificate-authority", &authority];
        let output = Towline::command([args, &access].concat()).await.unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The name in the certificate is all that they have to know, and they are told of what they leave out.
    async fn reach_it_by_kubectl(&self, site: &Site<'_>, hub: &Towline, port: &Port) {
        let node = Kubelet::start(&site.client, "installed").await.unwrap();
        let admin = hub.admin_url().strip_prefix("http://").unwrap().parse().unwrap();
        let ports = [("admin", admin), ("api", port.address())];
        pod::show(&node, &site.client, ("hub", "hub"), "hub-0", &ports).await.unwrap();
        let plugin = self.directory.join("plugin");
        drop(fs::remove_dir_all(&plugin));
        fs::create_dir_all(&plugin).unwrap();
        let kubeconfig = site.plane.kubeconfig(users::ADMIN).unwrap();
        let kubectl = KubectlTowline::new(&plugin, &kubeconfig, "hub").await.unwrap();
        let file = |name: &str| self.directory.join(name).display().to_string();
        let (token, authority) = (file("token"), file("ca.crt"));
        let get = ["get", "clusters", "-o", "name", "--token-file", &token];
        let named = ["--hub", "https://127.0.0.1"];
        for (more, code, expected) in [
            (&["--hub", "https://127.0.0.1", "--certificate-authority", &authority][..], 0, "Cluster/fleet/here\n"),
            (&named, 1, "; --certificate-authority FILE adds one\n"),
            (&[], 1, "--hub https://NAME"),
        ] {
            let output = kubectl.run(&[&get[..], more].concat()).await.unwrap();
            let told = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(code), "{more:?}: {told}");
            assert!(told.contains(expected), "{more:?}: {told}");
        }
        node.remove("hub", "hub-0").await.unwrap();
    }

    async fn apply(&self, documents: &[Value]) {
        let file = self.directory.join("documents.json");
        fs::write(&file, json!(documents).to_string()).unwrap();
        self.run(&["apply", "-f", file.to_str().unwrap()]).await;
    }
}

/// A queue of the broker that gets what the hub publishes of selector syncsets.
struct Events {
    consumer: Consumer,
    _connection: Connection,
}

impl Events {
    async fn of_selector_syncsets(broker: &RabbitMq) -> Self {
        let connection = Connection::connect(&broker.url(), ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let (none, durable) =
            (FieldTable::default(), ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() });
        channel.exchange_declare("towline.events".into(), ExchangeKind::Topic, durable, none.clone()).await.unwrap();
        channel.queue_declare("seen".into(), QueueDeclareOptions::default(), none.clone()).await.unwrap();
        let key = "selectorsyncsets.*".into();
        channel
            .queue_bind("seen".into(), "towline.events".into(), key, QueueBindOptions::default(), none.clone())
            .await
            .unwrap();
        let no_ack = BasicConsumeOptions { no_ack: true, ..BasicConsumeOptions::default() };
        let consumer = channel.basic_consume("seen".into(), "".into(), no_ack, none).await.unwrap();
        Self { consumer, _connection: connection }
    }

    /// Waits for an event with this routing key.
    async fn until(&mut self, key: &str) {
        let mut others = Vec::new();
        let next = async {
            while let Some(delivery) = self.consumer.next().await {
                let delivery = delivery.unwrap();
                if delivery.routing_key.as_str() == key {
                    return true;
                }
                others.push(delivery.routing_key.to_string());
            }
            false
        };
        let came = tokio::time::timeout(LIMIT, next).await;
        assert_eq!(came, Ok(true), "{key} did not come, but {others:?}");
    }
}
