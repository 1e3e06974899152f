//! Which cluster answers, and as whom it is asked.

use integration::Filter;
use integration::users::{ADMIN, UNPRIVILEGED};
use serde_json::{Value, json};
use towline::test_api::cluster::{Error, Request};

use crate::edges::world::{Edge, LIMIT, config_maps, connect, kubeconfig, run};

/// The kubeconfig of the administrator with further fields of its user.
fn impersonating(edge: &Edge, fields: &Value) -> String {
    let mut document: Value = serde_json::from_str(&kubeconfig(edge.plane, ADMIN)).unwrap();
    let user = document["users"][0]["user"].as_object_mut().unwrap();
    user.extend(fields.as_object().unwrap().clone());
    document.to_string()
}

#[test]
fn the_uid_of_the_cluster_is_read() {
    run(async {
        let edge = Edge::new("uid").await;
        edge.cluster.probe(LIMIT).await.unwrap();
        assert_eq!(*edge.cluster.read_uid(LIMIT).await.unwrap(), *edge.plane.uid().await.unwrap());
    });
}

#[test]
fn a_user_is_impersonated_with_uid_groups_and_extra() {
    run(async {
        let edge = Edge::new("impersonated").await;
        let (kind, key, body) = (config_maps(), edge.key("site"), edge.config_map("site", &json!({})));
        let create = || Request::create(&kind, &key, &body).by("towline-update");
        let nobody = json!({"as": "robot", "as-uid": "u-1", "as-groups": ["crew"], "as-user-extra": {"demo.test/scope": ["s-1"]}});
        let refused = connect(&impersonating(&edge, &nobody)).change(create()).await.unwrap_err();
        assert!(matches!(refused, Error::Forbidden { .. }) && refused.message().contains("\"robot\""), "{refused:?}");
        let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
        let reviews = {
            let mut kind = towline::test_api::cluster::Kind::core("SelfSubjectReview", "selfsubjectreviews", false);
            "authentication.k8s.io".clone_into(&mut kind.resource.group);
            "authentication.k8s.io/v1".clone_into(&mut kind.resource.api_version);
            kind
        };
        let connection = connect(&impersonating(&edge, &nobody)).session().unwrap().connection;
        let myself = towline::test_api::cluster::ObjectKey::new("", "myself");
        let answer: Value =
            connection.send(Request::create(&reviews, &myself, &review), "application/json", LIMIT).await.unwrap().0;
        let user = &answer["status"]["userInfo"];
        assert_eq!((&user["username"], &user["uid"]), (&json!("robot"), &json!("u-1")));
        assert_eq!(user["extra"], json!({"demo.test/scope": ["s-1"]}));
        assert!(user["groups"].as_array().unwrap().contains(&json!("crew")), "{user}");
        // With the administrators' group everything is allowed, and the audit log has both users.
        let admin = json!({"as": "robot", "as-groups": ["system:masters"]});
        connect(&impersonating(&edge, &admin)).change(create()).await.unwrap();
    });
}

#[test]
fn who_may_do_nothing_is_told_apart_from_who_is_unknown() {
    run(async {
        let edge = Edge::new("unprivileged").await;
        let mark = edge.plane.audit().unwrap().mark().await.unwrap();
        let unprivileged = connect(&kubeconfig(edge.plane, UNPRIVILEGED));
        let refused = unprivileged.read_metadata(&config_maps(), &edge.key("site")).await.unwrap_err();
        assert!(matches!(refused, Error::Forbidden { .. }), "{refused:?}");
        unprivileged.probe(LIMIT).await.unwrap();
        let unknown = connect(&kubeconfig(edge.plane, UNPRIVILEGED).replace("unprivileged-on", "nobody-on"));
        let refused = unknown.probe(LIMIT).await.unwrap_err();
        assert!(matches!(refused, Error::Unauthorized { .. }), "{refused:?}");
        let seen = Filter::since(mark).user(UNPRIVILEGED).resource("configmaps").namespace(edge.namespace);
        assert_eq!(edge.plane.audit().unwrap().count(&seen).await.unwrap(), 1);
    });
}
