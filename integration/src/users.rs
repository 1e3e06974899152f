//! Who may talk to a control plane of the fixtures, and the files that say so.

use std::net::SocketAddr;

use serde_json::json;

use crate::Error;

/// A user of every control plane, known by a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// The name, as it is in the audit log and in role bindings.
    pub name: &'static str,
    /// The groups, joined by commas.
    groups: &'static str,
}

/// May do everything; the tests' own doings.
pub const ADMIN: &str = "admin";
/// The daemon: what it may do, the test grants.
pub const TOWLINE: &str = "towline";
/// A hub server that applies syncsets. May do everything, as a kubeconfig that is registered with it usually may.
pub const HUB_SERVER: &str = "towline-hub";
/// The Go controller that the bench compares with.
pub const REFERENCE: &str = "reference";
/// The controller that a test plays on an edge, so that its requests are counted apart. May do everything.
pub const EDGE_CONTROLLER: &str = "edge-controller";
/// Another one, of a test that counts all requests of its user on a cluster that it shares.
pub const OTHER_CONTROLLER: &str = "other-controller";
/// Whoever orders things on the hub, so that these requests are counted apart. May do everything.
pub const HUB_USER: &str = "hub-user";
/// Somebody who may do nothing, until a test grants it.
pub const UNPRIVILEGED: &str = "unprivileged";
/// Replicas of one daemon, each a user of its own, so that the audit log tells which of them asked; granted rights as
/// [`REPLICAS`].
pub const REPLICA: [&str; 4] = ["replica-1", "replica-2", "replica-3", "replica-4"];
pub const REPLICAS: &str = "replicas";
/// The name under which the controller manager's requests are known.
pub(crate) const CONTROLLER_MANAGER: &str = "system:kube-controller-manager";

pub const USERS: [User; 13] = [
    User { name: ADMIN, groups: "system:masters" },
    User { name: TOWLINE, groups: "" },
    User { name: HUB_SERVER, groups: "system:masters" },
    User { name: REFERENCE, groups: "" },
    User { name: EDGE_CONTROLLER, groups: "system:masters" },
    User { name: OTHER_CONTROLLER, groups: "system:masters" },
    User { name: HUB_USER, groups: "system:masters" },
    User { name: UNPRIVILEGED, groups: "" },
    User { name: REPLICA[0], groups: REPLICAS },
    User { name: REPLICA[1], groups: REPLICAS },
    User { name: REPLICA[2], groups: REPLICAS },
    User { name: REPLICA[3], groups: REPLICAS },
    User { name: CONTROLLER_MANAGER, groups: "system:masters" },
];

pub(crate) fn named(user: &str) -> Result<&'static User, Error> {
    USERS.iter().find(|known| known.name == user).ok_or_else(|| Error::UnknownUser(user.to_owned()))
}

/// The user's token on the control plane of this name: one cluster's is worth nothing on another.
pub(crate) fn token(user: &User, cluster: &str) -> String {
    format!("{}-on-{cluster}", user.name.replace(':', "-"))
}

/// The file for `--token-auth-file`.
pub(crate) fn token_file(cluster: &str) -> String {
    USERS.iter().fold(String::new(), |lines, user| {
        format!("{lines}{},{},{},\"{}\"\n", token(user, cluster), user.name, user.name, user.groups)
    })
}

/// A kubeconfig for one user. It is JSON, which every reader of YAML reads.
pub(crate) fn kubeconfig(user: &User, cluster: &str, address: SocketAddr, authority_pem: &str) -> String {
    let authority = base64(authority_pem.as_bytes());
    let document = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": cluster,
            "cluster": {"server": format!("https://{address}"), "certificate-authority-data": authority},
        }],
        "users": [{"name": user.name, "user": {"token": token(user, cluster)}}],
        "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": user.name}}],
        "current-context": cluster,
    });
    format!("{document:#}\n")
}

/// `k8s-openapi`'s byte string is the one base64 encoder that is in the tree anyway.
fn base64(bytes: &[u8]) -> String {
    let encoded = serde_json::to_value(k8s_openapi::ByteString(bytes.to_vec())).unwrap_or_default();
    encoded.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::{ADMIN, base64, token_file};

    #[test]
    fn a_user_with_groups_has_them_in_the_token_file() {
        assert!(token_file("hub").contains(&format!("admin-on-hub,{ADMIN},admin,\"system:masters\"\n")));
    }

    #[test]
    fn base64_is_padded() {
        assert_eq!(base64(b"data1"), "ZGF0YTE=");
    }
}
