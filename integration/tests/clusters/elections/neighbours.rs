//! Two sections whose objects share a local namespace, in different replicas: the namespace is deleted by the right section
//! and at the right time, also while sections move between replicas.

use std::collections::BTreeMap;
use std::sync::Arc;

use integration::audit::Mark;
use integration::rbac::{Grant, Side, grant_election};
use integration::{ControlPlane, Filter, Towline, eventually, users};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::elections::world::{Company, LIMIT, make_namespace, run};

/// The namespace of the Leases.
const LEASES: &str = "neighbours";
/// The namespace that both sections have objects in.
const SHARED: &str = "shared-team";
const SECTIONS: [&str; 2] = ["databases", "documents"];

/// Two clusters, and a namespace on the hub with an object of each kind.
struct Quarter {
    hub: Arc<ControlPlane>,
    edge: Arc<ControlPlane>,
    hub_client: Client,
    edge_client: Client,
    replicas: BTreeMap<String, Towline>,
    /// Before any replica was there.
    mark: Mark,
}

fn kind(section: &str) -> ApiResource {
    let name = if section == "databases" { "Database" } else { "Document" };
    let mut kind = ApiResource::from_gvk(&GroupVersionKind::gvk("demo.towline.dev", "v1", name));
    section.clone_into(&mut kind.plural);
    kind
}

impl Quarter {
    async fn start() -> Self {
        // Those of other tests have controllers of namespaces, and no user that is a replica.
        let (hub, edge) = crate::faults::world::shared().await;
        for (plane, side) in [(hub, Side::Remote), (edge, Side::Local)] {
            let admin = plane.client(users::ADMIN).await.unwrap();
            for section in SECTIONS {
                Grant::kind(side, section, "demo.towline.dev").to_group(users::REPLICAS).apply(&admin).await.unwrap();
            }
        }
        let (hub_client, edge_client) =
            (hub.client(users::HUB_USER).await.unwrap(), edge.client(users::EDGE_CONTROLLER).await.unwrap());
        make_namespace(&edge_client, LEASES).await;
        make_namespace(&hub_client, SHARED).await;
        grant_election(&edge_client, LEASES, Some(users::REPLICAS)).await.unwrap();
        let mark = edge.audit().unwrap().mark().await.unwrap();
        Self { hub: Arc::clone(hub), edge: Arc::clone(edge), hub_client, edge_client, replicas: BTreeMap::new(), mark }
    }

    /// Starts a replica as this user, whose name is also its identity.
    async fn join(&mut self, user: &str) {
        let cluster = |name: &str, plane: &ControlPlane| {
            format!("[clusters.{name}]\nkubeconfig = \"{}\"\n", plane.kubeconfig(user).unwrap().display())
        };
        let section = |name: &str| {
            format!(
                "[[sync]]\nname = \"{name}\"\nremote = \"hub\"\nlocal = \"edge\"\n\
                 resource = \"{name}.v1.demo.towline.dev\"\nnamespace_prefix = \"shared-\"\n"
            )
        };
        let config = format!(
            "[daemon.log]\nfilter = \"info,towline=debug\"\n{}{}[election]\ncluster = \"edge\"\nnamespace = \"{LEASES}\"\n\
             lease_duration = \"4s\"\nrenew_interval = \"1300ms\"\n{}",
            cluster("hub", &self.hub),
            cluster("edge", &self.edge),
            SECTIONS.map(section).concat()
        );
        let towline = Towline::start(&config, &[("TOWLINE__ELECTION__IDENTITY", user)]).await.unwrap();
        self.replicas.insert(user.to_owned(), towline);
    }

    /// Ends a replica, by SIGTERM.
    async fn leave(&mut self, user: &str) {
        let towline = self.replicas.remove(user).unwrap();
        let status = towline.terminate(LIMIT).await.unwrap();
        assert!(status.success(), "{status}: {}", towline.log().unwrap());
    }

    /// Makes each section be held by another one of the replicas that there are.
    async fn apart(&self, what: &str) -> BTreeMap<&'static str, String> {
        let leases: Api<Lease> = Api::namespaced(self.edge_client.clone(), LEASES);
        eventually(format!("the sections to be apart {what}"), LIMIT, async || {
            let mut holders = BTreeMap::new();
            for section in SECTIONS {
                let lease = leases.get_opt(&format!("towline-{section}")).await.map_err(|error| error.to_string())?;
                let holder = lease.and_then(|lease| lease.spec).and_then(|spec| spec.holder_identity);
                let holder = holder.filter(|holder| self.replicas.contains_key(holder));
                holders.insert(section, holder.ok_or_else(|| format!("no replica holds {section}"))?);
            }
            if holders["databases"] == holders["documents"] {
                // Struck out by hand, it goes to a replica that has none, when its term is over.
                let free = Patch::Merge(json!({"spec": {"holderIdentity": null}}));
                leases.patch("towline-documents", &PatchParams::default(), &free).await.unwrap();
                return Err(format!("{holders:?}"));
            }
            Ok(holders)
        })
        .await
        .unwrap()
    }

    fn on_hub(&self, section: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.hub_client.clone(), SHARED, &kind(section))
    }

    fn on_edge(&self, section: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.edge_client.clone(), SHARED, &kind(section))
    }

    /// Makes an object on the hub, and waits for its copy.
    async fn make(&self, section: &str, name: &str, spec: &Value) {
        let object = json!({
            "apiVersion": "demo.towline.dev/v1", "kind": kind(section).kind, "metadata": {"name": name}, "spec": spec,
        });
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        self.on_hub(section).create(&PostParams::default(), &object).await.unwrap();
        self.has(section, name, |_| true).await;
    }

    /// Changes an object on the hub, and waits until its copy shows it: its section runs.
    async fn change(&self, section: &str, name: &str, spec: &Value) {
        let patch = Patch::Merge(json!({"spec": spec}));
        self.on_hub(section).patch(name, &PatchParams::default(), &patch).await.unwrap();
        let (key, value) = spec.as_object().and_then(|spec| spec.iter().next()).unwrap();
        self.has(section, name, |local| local.data["spec"][key] == *value).await;
    }

    async fn has(&self, section: &str, name: &str, condition: impl Fn(&DynamicObject) -> bool) {
        eventually(format!("{name} to be as it should on the edge"), LIMIT, async || {
            match self.on_edge(section).get_opt(name).await.map_err(|error| error.to_string())? {
                Some(local) if condition(&local) => Ok(()),
                found => Err(format!("{found:?}")),
            }
        })
        .await
        .unwrap();
    }

    /// Deletes an object on the hub, and waits until it is gone there: its section has dealt with the copy.
    async fn delete(&self, section: &str, name: &str) {
        self.on_hub(section).delete(name, &DeleteParams::background()).await.unwrap();
        eventually(format!("{name} to be gone on the hub"), LIMIT, async || {
            match self.on_hub(section).get_opt(name).await.map_err(|error| error.to_string())? {
                None => Ok(()),
                Some(remote) => Err(format!("{:?}", remote.metadata)),
            }
        })
        .await
        .unwrap();
        assert!(self.on_edge(section).get_opt(name).await.unwrap().is_none(), "{name} is on the edge still");
    }

    async fn namespace(&self) -> Option<Namespace> {
        Api::<Namespace>::all(self.edge_client.clone()).get_opt(SHARED).await.unwrap()
    }

    /// Who did what to namespaces of the edge, by user, of all replicas.
    async fn on_namespaces(&self) -> Vec<(String, String)> {
        let audit = self.edge.audit().unwrap();
        let mut writes = Vec::new();
        for user in users::REPLICA {
            for verb in ["create", "update", "patch", "delete"] {
                let filter = Filter::since(self.mark).user(user).verb(verb).resource("namespaces");
                let records = audit.records(&filter).await.unwrap();
                let done = records.into_iter().filter(|record| record.status < 300);
                writes.extend(done.map(|record| (record.received, user.to_owned(), verb.to_owned())));
            }
        }
        writes.sort();
        writes.into_iter().map(|(_, user, verb)| (user, verb)).collect()
    }
}

#[test]
fn a_namespace_that_sections_in_different_replicas_share_goes_with_the_last_object_by_who_has_its_owner() {
    run(Company::One, async {
        let mut quarter = Box::pin(Quarter::start()).await;
        let [first, second, third, fourth] = users::REPLICA;
        for user in [first, second, third] {
            quarter.join(user).await;
        }
        let holders = quarter.apart("at first").await;
        let maker = holders["databases"].clone();
        quarter.make("databases", "orders", &json!({"engine": "postgres-17"})).await;
        quarter.make("documents", "readme", &json!({"title": "one"})).await;
        let made = quarter.namespace().await.unwrap();
        let marks: Vec<&str> = made.annotations().values().map(String::as_str).collect();
        for mark in ["orders", "databases", "databases.demo.towline.dev"] {
            assert!(marks.contains(&mark), "{marks:?}");
        }

        // The section that made it moves to another replica, and finds it as it was.
        quarter.leave(&maker).await;
        let holders = quarter.apart("when the maker's has moved").await;
        quarter.change("databases", "orders", &json!({"storage": "2Gi"})).await;
        quarter.change("documents", "readme", &json!({"title": "two"})).await;

        // The object that it was made for goes. Another section's keeps it, which no process tells the other.
        quarter.delete("databases", "orders").await;
        quarter.change("documents", "readme", &json!({"title": "three"})).await;
        let kept = quarter.namespace().await.unwrap();
        assert_eq!((kept.uid(), kept.annotations()), (made.uid(), made.annotations()));
        assert!(kept.metadata.deletion_timestamp.is_none());

        // The other section moves, too: a replica that started later knows of the namespace as well.
        quarter.join(fourth).await;
        quarter.leave(&holders["documents"]).await;
        let holders = quarter.apart("when both have moved").await;
        quarter.change("documents", "readme", &json!({"title": "four"})).await;
        assert_eq!(quarter.on_namespaces().await, [(maker.clone(), "create".to_owned())]);

        // The last object goes, and the namespace with it: deleted once, by the holder of its owner's section.
        quarter.delete("documents", "readme").await;
        eventually("the namespace to be gone", LIMIT, async || match quarter.namespace().await {
            None => Ok(()),
            Some(namespace) => Err(format!("{:?} {:?}", namespace.metadata, namespace.status)),
        })
        .await
        .unwrap();
        let ours = |user: &str, verb: &str| (user.to_owned(), verb.to_owned());
        let expected = [ours(&maker, "create"), ours(&holders["databases"], "delete")];
        assert_eq!(quarter.on_namespaces().await, expected);
    });
}
