//! Grants the daemon exactly the rights that the roles of `deploy/` grant, so that a test fails where they are too few.
//!
//! Those roles are written for the demo kind and its secrets. For another kind, the same rules are granted with that
//! kind in its place.

use std::fs;
use std::time::Duration;

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, PolicyRule, RoleBinding, Subject};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::room::repository;
use crate::{Error, eventually, users};

const RBAC: &str = "rbac.authorization.k8s.io";
/// The role of a lease's renewer where the Secret and the pod are.
const MANAGED_ROLE: &str = "towline-lease-managed";
/// The same where the Lease is.
const HUB_ROLE: &str = "towline-lease-hub";
/// The role of what sections remember.
const STATE_ROLE: &str = "towline-state";
/// The checked-in role of a section, for what it remembers and where it has one for its Lease.
const SECTION_ROLE: &str = "towline:databases";
/// The checked-in role of the inventory.
const INVENTORY_ROLE: &str = "towline:towline-inventory:towline-inventory:inventory";
/// Where sections keep that whose clusters are reached by a kubeconfig that names no namespace.
const STATE_NAMESPACE: &str = "default";
/// The group of the kind in the checked-in roles.
const DEMO_GROUP: &str = "demo.towline.dev";
const DEMO_PLURAL: &str = "databases";
/// The server's authorizer learns of a role by a watch of its own.
const LONGEST_SPREAD: Duration = Duration::from_secs(30);

/// Which end of a pair of clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The source of the spec.
    Remote,
    /// Where the local controllers are.
    Local,
}

/// What the daemon is to be granted for one kind on one cluster.
#[derive(Clone, Debug)]
pub struct Grant {
    pub side: Side,
    /// The kind's group; empty for the core group.
    pub group: String,
    pub plural: String,
    /// To which group; `None`: to the user [`users::TOWLINE`].
    pub group_of_users: Option<&'static str>,
    /// The secrets of the section. `None` leaves those of the checked-in role.
    pub secret_names: Option<Vec<String>>,
}

impl Grant {
    /// The checked-in role as it is.
    pub fn demo(side: Side) -> Self {
        Self::kind(side, DEMO_PLURAL, DEMO_GROUP)
    }

    /// The checked-in role with another kind.
    pub fn kind(side: Side, plural: &str, group: &str) -> Self {
        Self { side, group: group.to_owned(), plural: plural.to_owned(), secret_names: None, group_of_users: None }
    }

    #[must_use]
    pub fn secrets(mut self, names: &[&str]) -> Self {
        self.secret_names = Some(names.iter().map(|name| (*name).to_owned()).collect());
        self
    }

    /// The same to a group of users.
    #[must_use]
    pub fn to_group(mut self, group: &'static str) -> Self {
        self.group_of_users = Some(group);
        self
    }

    fn role_name(&self) -> &'static str {
        match self.side {
            Side::Remote => "towline-resource-sync-remote",
            Side::Local => "towline-resource-sync-local",
        }
    }

    /// The file of the checked-in role, and its name there.
    fn checked_in(&self) -> (&'static str, &'static str) {
        match self.side {
            Side::Remote => ("deploy/hub/resource-sync-remote.yaml", self.role_name()),
            Side::Local => ("deploy/base/towline.yaml", "towline:towline:towline:resource-sync-local"),
        }
    }

    /// Name of the role as it is granted: kinds are granted and revoked one by one, and to each by itself.
    fn granted_name(&self) -> String {
        let whom = self.group_of_users.map_or_else(String::new, |group| format!(":{group}"));
        format!("{}:{}.{}{whom}", self.role_name(), self.plural, self.group)
    }

    /// Grants it, and waits until the API server acts accordingly.
    pub async fn apply(&self, client: &Client) -> Result<(), Error> {
        let path = repository().join(self.checked_in().0);
        let manifest = fs::read_to_string(&path).map_err(Error::file("read", &path))?;
        let rules = self.rules(&manifest)?;
        Box::pin(bind(client, None, &self.granted_name(), &rules, subject(self.group_of_users))).await?;
        if self.side == Side::Local {
            Box::pin(grant_state(client, STATE_NAMESPACE, self.group_of_users)).await?;
        }
        // Large, and part of whatever starts a control plane.
        Box::pin(self.wait_for(client, true)).await
    }

    /// Takes it back, and waits until the API server acts accordingly.
    pub async fn revoke(&self, client: &Client) -> Result<(), Error> {
        let name = self.granted_name();
        let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
        let gone = bindings.delete(&name, &DeleteParams::default()).await;
        gone.map_err(Error::kubernetes(format!("revoke {name}")))?;
        Box::pin(self.wait_for(client, false)).await
    }

    /// Both roles grant `patch` on the kind.
    async fn wait_for(&self, client: &Client, allowed: bool) -> Result<(), Error> {
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(users::TOWLINE.to_owned()).filter(|_| self.group_of_users.is_none()),
                groups: self.group_of_users.map(|group| vec![group.to_owned()]),
                resource_attributes: Some(ResourceAttributes {
                    group: Some(self.group.clone()),
                    resource: Some(self.plural.clone()),
                    verb: Some("patch".to_owned()),
                    ..Default::default()
                }),
                ..Default::default()
            },
            ..Default::default()
        };
        let what = format!("{} to be {}", self.granted_name(), if allowed { "granted" } else { "revoked" });
        wait_for_answer(client, what, &review, allowed).await
    }

    /// The rules of the role in the manifest, with the kind and the secrets of this grant.
    fn rules(&self, manifest: &str) -> Result<Vec<PolicyRule>, Error> {
        let (file, name) = self.checked_in();
        let mut rules = find(file, manifest, "ClusterRole", name)?;
        for rule in &mut rules {
            self.fill(rule);
        }
        Ok(rules)
    }

    fn fill(&self, rule: &mut PolicyRule) {
        let groups = rule.api_groups.get_or_insert_default();
        if groups.iter().any(|group| group == DEMO_GROUP) {
            *groups = vec![self.group.clone()];
            for resource in rule.resources.iter_mut().flatten() {
                let subresource = resource.split_once('/').map(|(_, subresource)| format!("/{subresource}"));
                *resource = format!("{}{}", self.plural, subresource.unwrap_or_default());
            }
        } else if rule.resources.as_ref().is_some_and(|resources| resources.iter().any(|name| name == "secrets"))
            && rule.resource_names.is_some()
            && let Some(names) = &self.secret_names
        {
            rule.resource_names = Some(names.clone());
        }
    }
}

fn subject(group: Option<&str>) -> Subject {
    group.map_or_else(|| user(users::TOWLINE), |group| named("Group", group))
}

fn user(name: &str) -> Subject {
    named("User", name)
}

fn named(kind: &str, name: &str) -> Subject {
    Subject { api_group: Some(RBAC.to_owned()), kind: kind.to_owned(), name: name.to_owned(), namespace: None }
}

/// The rules of the role of this kind and name in a manifest.
fn find(file: &str, manifest: &str, kind: &str, name: &str) -> Result<Vec<PolicyRule>, Error> {
    let bad = |detail: String| Error::Manifest { what: file.to_owned(), detail };
    let documents: Vec<Value> = serde_saphyr::from_multiple(manifest).map_err(|error| bad(error.to_string()))?;
    let is_role = |document: &&Value| {
        document.get("kind").and_then(Value::as_str) == Some(kind)
            && document.pointer("/metadata/name").and_then(Value::as_str) == Some(name)
    };
    let found = documents.iter().find(is_role).ok_or_else(|| bad(format!("there is no {kind} {name}")))?;
    let rules = found.get("rules").cloned().unwrap_or_default();
    serde_json::from_value(rules).map_err(|error| bad(error.to_string()))
}

/// The rules of a role of `deploy/`.
fn rules(file: &str, kind: &str, name: &str) -> Result<Vec<PolicyRule>, Error> {
    let path = repository().join(file);
    let manifest = fs::read_to_string(&path).map_err(Error::file("read", &path))?;
    find(file, &manifest, kind, name)
}

/// The same rules without the names of objects, which are those of `deploy/`: sections of tests have others.
fn for_any_object(mut rules: Vec<PolicyRule>) -> Vec<PolicyRule> {
    for rule in &mut rules {
        rule.resource_names = None;
    }
    rules
}

/// Makes a role of these rules, or gives them to the one that is there, and binds it: in a namespace, or in all of them.
async fn bind(
    client: &Client,
    namespace: Option<&str>,
    name: &str,
    rules: &[PolicyRule],
    subject: Subject,
) -> Result<(), Error> {
    let kind = if namespace.is_some() { "Role" } else { "ClusterRole" };
    let role = json!({"rules": rules});
    let binding = json!({"roleRef": {"apiGroup": RBAC, "kind": kind, "name": name}, "subjects": [subject]});
    for (kind, mut object) in [(kind.to_owned(), role), (format!("{kind}Binding"), binding)] {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(RBAC, "v1", &kind));
        if let Some(object) = object.as_object_mut() {
            object.insert("apiVersion".to_owned(), resource.api_version.clone().into());
            object.insert("kind".to_owned(), kind.into());
            object.insert("metadata".to_owned(), json!({"name": name}));
        }
        let api: Api<DynamicObject> = match namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        let applied = api.patch(name, &PatchParams::apply("fixture").force(), &Patch::Apply(&object)).await;
        applied.map_err(Error::kubernetes(format!("grant {name} in {}", namespace.unwrap_or("all namespaces"))))?;
    }
    Ok(())
}

/// Grants the group, or with `None` the user [`users::TOWLINE`], what `deploy/` grants for what sections remember, in a
/// namespace; waits until the API server acts accordingly for that user.
pub async fn grant_state(client: &Client, namespace: &str, group: Option<&'static str>) -> Result<(), Error> {
    let rules = for_any_object(rules("deploy/base/towline.yaml", "Role", SECTION_ROLE)?);
    // Each group has a binding of its own: the one of the user stays as it is.
    let name = group.map_or_else(|| STATE_ROLE.to_owned(), |group| format!("{STATE_ROLE}:{group}"));
    bind(client, Some(namespace), &name, &rules, subject(group)).await?;
    if group.is_some() {
        return Ok(());
    }
    wait_for_access(client, users::TOWLINE, namespace, ("", "configmaps", "", "create"), true).await
}

/// Takes back what [`grant_state`] has granted to the user [`users::TOWLINE`], and waits until the API server acts
/// accordingly.
pub async fn revoke_state(client: &Client, namespace: &str) -> Result<(), Error> {
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), namespace);
    let gone = bindings.delete(STATE_ROLE, &DeleteParams::default()).await;
    gone.map_err(Error::kubernetes(format!("revoke {STATE_ROLE}")))?;
    wait_for_access(client, users::TOWLINE, namespace, ("", "configmaps", "", "create"), false).await
}

/// Grants the group, or with `None` the user [`users::TOWLINE`], what `deploy/` grants for an election, in a namespace; and
/// there, too, sections keep what they remember.
pub async fn grant_election(client: &Client, namespace: &str, group: Option<&'static str>) -> Result<(), Error> {
    const NAME: &str = "towline-election";
    let rules = for_any_object(rules("deploy/overlays/replicated/towline.yaml", "Role", SECTION_ROLE)?);
    bind(client, Some(namespace), NAME, &rules, subject(group)).await?;
    Box::pin(grant_state(client, namespace, group)).await
}

/// Grants the user [`users::TOWLINE`] what `deploy/` grants to status sync on its hub, and waits until the API server acts
/// accordingly.
pub async fn grant_status_sync(client: &Client) -> Result<(), Error> {
    grant_changed_status_sync(client, users::TOWLINE, |_| ()).await?;
    let probe = ("policy.open-cluster-management.io", "policies", "", "patch");
    wait_for_access(client, users::TOWLINE, "", probe, true).await
}

/// Grants a user what `deploy/` grants to status sync, after a change, in the place of what it was granted so before.
pub async fn grant_changed_status_sync(
    client: &Client,
    to: &str,
    change: impl FnOnce(&mut Vec<PolicyRule>),
) -> Result<(), Error> {
    const NAME: &str = "towline-status-sync";
    const CHECKED_IN: &str = "towline:open-cluster-management:towline-status-sync:status-sync";
    let mut rules = rules("deploy/status-sync/towline.yaml", "ClusterRole", CHECKED_IN)?;
    change(&mut rules);
    bind(client, None, &format!("{NAME}:{to}"), &rules, user(to)).await
}

/// Grants the group, or with `None` the user [`users::TOWLINE`], what `deploy/` grants to the inventory, and waits until the API server
/// acts accordingly.
pub async fn grant_inventory(client: &Client, group: Option<&'static str>) -> Result<(), Error> {
    let rules = rules("deploy/inventory/towline.yaml", "ClusterRole", INVENTORY_ROLE)?;
    bind(client, None, "towline-inventory", &rules, subject(group)).await?;
    if group.is_some() {
        return Ok(());
    }
    wait_for_access(client, users::TOWLINE, "", ("", "secrets", "", "watch"), true).await
}

/// Grants the user [`users::TOWLINE`] what `deploy/` grants to the inventory of releases in `ConfigMap`s, in the place of what
/// [`grant_inventory`] grants, and waits until the API server acts accordingly.
pub async fn grant_inventory_of_config_maps(client: &Client) -> Result<(), Error> {
    let rules = rules("deploy/inventory-configmaps/towline.yaml", "ClusterRole", INVENTORY_ROLE)?;
    bind(client, None, "towline-inventory", &rules, subject(None)).await?;
    wait_for_access(client, users::TOWLINE, "", ("", "configmaps", "", "watch"), true).await?;
    wait_for_access(client, users::TOWLINE, "", ("", "secrets", "", "watch"), false).await
}

/// Grants the user [`users::REFERENCE`] everything on a kind, and waits until the API server acts accordingly.
pub async fn grant_reference(client: &Client, plural: &str, group: &str) -> Result<(), Error> {
    let rule = PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        resources: Some(vec![plural.to_owned(), format!("{plural}/status")]),
        verbs: ["get", "list", "watch", "create", "update", "patch", "delete"].map(str::to_owned).to_vec(),
        ..Default::default()
    };
    bind(client, None, &format!("towline-reference:{plural}"), &[rule], user(users::REFERENCE)).await?;
    wait_for_access(client, users::REFERENCE, "", (group, plural, "", "patch"), true).await
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseSide {
    /// Where the Secret and the pod are.
    Managed,
    /// Where the Lease is.
    Hub,
}

/// Grants a user in a namespace what `deploy/side-car` grants on that side, with other verbs and on all leases where some are
/// given, and waits until the API server acts accordingly.
pub async fn grant_lease(
    client: &Client,
    side: LeaseSide,
    namespace: &str,
    to: &str,
    verbs: Option<&[&str]>,
) -> Result<(), Error> {
    let (file, role, mut probe) = match side {
        LeaseSide::Managed => {
            ("deploy/side-car/rbac.yaml", MANAGED_ROLE, ("", "secrets", "add-on-hub-kubeconfig", "watch"))
        }
        LeaseSide::Hub => ("deploy/side-car/hub/rbac.yaml", HUB_ROLE, ("coordination.k8s.io", "leases", "", "create")),
    };
    let mut rules = rules(file, "Role", role)?;
    if let Some(verbs) = verbs {
        rules = for_any_object(rules);
        probe = ("coordination.k8s.io", "leases", "another", verbs.first().copied().unwrap_or_default());
        for rule in &mut rules {
            rule.verbs = verbs.iter().map(|verb| (*verb).to_owned()).collect();
        }
    }
    bind(client, Some(namespace), &format!("{role}:{to}"), &rules, user(to)).await?;
    wait_for_access(client, to, namespace, probe, true).await
}

/// Takes back from a user what [`grant_lease`] has granted on the hub, and waits until the API server acts accordingly.
pub async fn revoke_lease(client: &Client, namespace: &str, user: &str) -> Result<(), Error> {
    let name = format!("{HUB_ROLE}:{user}");
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), namespace);
    let gone = bindings.delete(&name, &DeleteParams::default()).await;
    gone.map_err(Error::kubernetes(format!("revoke {name}")))?;
    wait_for_access(client, user, namespace, ("coordination.k8s.io", "leases", "", "create"), false).await
}

/// `probe`: group, resource, name and verb.
async fn wait_for_access(
    client: &Client,
    user: &str,
    namespace: &str,
    probe: (&str, &str, &str, &str),
    allowed: bool,
) -> Result<(), Error> {
    let (group, resource, name, verb) = probe;
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.to_owned()),
            resource_attributes: Some(ResourceAttributes {
                group: Some(group.to_owned()),
                resource: Some(resource.to_owned()),
                namespace: Some(namespace.to_owned()),
                name: Some(name.to_owned()),
                verb: Some(verb.to_owned()),
                ..Default::default()
            }),
            ..Default::default()
        },
        ..Default::default()
    };
    let what = format!("{user} to be {}allowed to {verb} {resource}", if allowed { "" } else { "no longer " });
    wait_for_answer(client, what, &review, allowed).await
}

/// Waits until the API server's authorizer answers so.
async fn wait_for_answer(
    client: &Client,
    what: String,
    review: &SubjectAccessReview,
    allowed: bool,
) -> Result<(), Error> {
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    eventually(what, LONGEST_SPREAD, async || {
        let answer = reviews.create(&PostParams::default(), review).await.map_err(|error| error.to_string())?;
        match answer.status {
            Some(status) if status.allowed == allowed => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::{Grant, Side};

    const MANIFEST: &str = "
apiVersion: v1
kind: ServiceAccount
metadata: {name: towline-resource-sync-remote}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: towline-resource-sync-remote}
rules:
- {apiGroups: [demo.towline.dev], resources: [databases, databases/status], verbs: [get, patch]}
- {apiGroups: [''], resources: [secrets], resourceNames: [database-connection], verbs: [update]}
- {apiGroups: [''], resources: [namespaces], verbs: [create]}
";

    #[test]
    fn the_kind_and_the_secrets_are_replaced_and_nothing_else() {
        let grant = Grant::kind(Side::Remote, "poddisruptionbudgets", "policy").secrets(&["a", "b"]);
        let rules = grant.rules(MANIFEST).unwrap();
        assert_eq!(rules[0].api_groups.as_deref(), Some(["policy".to_owned()].as_slice()));
        assert_eq!(
            rules[0].resources.as_deref(),
            Some(["poddisruptionbudgets".to_owned(), "poddisruptionbudgets/status".to_owned()].as_slice())
        );
        assert_eq!(rules[0].verbs, ["get", "patch"]);
        assert_eq!(rules[1].resource_names.as_deref(), Some(["a".to_owned(), "b".to_owned()].as_slice()));
        assert_eq!(rules[2].resources.as_deref(), Some(["namespaces".to_owned()].as_slice()));
    }

    #[test]
    fn a_manifest_without_the_role_is_an_error_that_names_it() {
        let error = Grant::demo(Side::Local).rules(MANIFEST).unwrap_err().to_string();
        assert!(error.contains("deploy/base/towline.yaml") && error.contains(":resource-sync-local"), "{error}");
    }
}
