//! Secrets that can't be used.

use integration::users;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::leases::world::{SECRET, World, run};

#[test]
fn what_can_not_be_used_is_refused_named_and_never_sent() {
    run(async {
        let world = World::shared("refused", users::TOWLINE).await;
        world.ready_pod().await;
        let side_car = world.side_car(&["--lease-duration=3"]).await;
        let mark = world.mark().await;
        let secret = "hunter2-in-the-secret";
        let kubeconfig = |user: Value| world.kubeconfig(&user);
        let exec = json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": secret}});
        let cases = [
            (vec![("other", secret.to_owned())], "no key `kubeconfig`"),
            (vec![("kubeconfig", format!("users: [{{token: {secret}"))], "not a kubeconfig: "),
            (vec![("kubeconfig", kubeconfig(exec))], "`users[0].user.exec` is refused"),
            (
                vec![("kubeconfig", kubeconfig(json!({"tokenFile": "/etc/passwd"})))],
                "`users[0].user.tokenFile` is refused: it refers to a file outside of the secret",
            ),
            (
                vec![("kubeconfig", kubeconfig(json!({"tokenFile": "../token"})))],
                "`users[0].user.tokenFile` is refused: it refers to a file outside of the secret",
            ),
            (
                vec![("kubeconfig", kubeconfig(json!({"tokenFile": "token"})))],
                "`users[0].user.tokenFile` refers to the key `token`",
            ),
        ];
        for (keys, expected) in cases {
            let keys: Vec<(&str, &str)> = keys.iter().map(|(key, value)| (*key, value.as_str())).collect();
            world.put_secret(&keys).await;
            // The pod may be listed after the Secret: until then, the lease waits for its watches.
            let names_it = |report: &Value| {
                let told = [&report["credentials_fault"], &report["not_in_step"][0]["cause"]];
                told.iter().all(|told| told.as_str().is_some_and(|told| told.contains(expected)))
            };
            let report = world.report(&side_car, expected, names_it).await;
            assert_eq!(report["held"], false, "{report}");
            let listed = &report["not_in_step"][0];
            let next = format!("check `kubeconfig` in the Secret {}/{SECRET} on ", world.namespace);
            assert!(listed["next_step"].as_str().is_some_and(|step| step.starts_with(&next)), "{report}");
        }
        assert_eq!(world.requests(mark).await, []);
        let told = side_car.admin().status().await.unwrap().to_string() + &side_car.log().unwrap();
        assert!(!told.contains(secret), "{told}");
        world.offer(users::TOWLINE).await;
        world.renewed_after(Timestamp::now()).await;
    });
}
