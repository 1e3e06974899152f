//! Where the hub's credentials come from.

use integration::users;
use k8s_openapi::jiff::Timestamp;
use kube::api::DeleteParams;
use serde_json::json;

use crate::leases::world::{LIMIT, SECRET, World, run};

#[test]
fn a_secret_that_comes_late_or_again_is_used_at_once() {
    run(async {
        let world = World::shared("late", users::TOWLINE).await;
        world.ready_pod().await;
        let side_car = world.side_car(&["--lease-duration=3"]).await;
        let no_secret = json!("there is no such secret");
        world.report(&side_car, "no secret", |report| report["not_held_because"] == no_secret).await;
        side_car.wait_ready(LIMIT).await.unwrap();
        world.offer(users::TOWLINE).await;
        world.renewed_after(Timestamp::now()).await;

        world.secrets().delete(SECRET, &DeleteParams::default()).await.unwrap();
        world.report(&side_car, "no secret", |report| report["not_held_because"] == no_secret).await;
        let mark = world.mark().await;
        world.run_out().await;
        assert_eq!(world.requests(mark).await, []);
        world.offer(users::TOWLINE).await;
        world.renewed_after(Timestamp::now()).await;
    });
}

#[test]
fn keys_of_the_secret_are_files_beside_its_kubeconfig() {
    run(async {
        let world = World::shared("files", users::TOWLINE).await;
        world.ready_pod().await;
        let side_car = world.side_car(&["--lease-duration=3"]).await;
        let token = world.token(users::TOWLINE);
        let by_token = world.kubeconfig(&json!({"tokenFile": "token"}));
        world.put_secret(&[("kubeconfig", &by_token), ("token", &format!("{token}\n"))]).await;
        world.renewed_after(Timestamp::now()).await;

        let certificate = world.hub.client_certificate(users::TOWLINE, LIMIT * 60).unwrap();
        let by_certificate = world.kubeconfig(&json!({"client-certificate": "tls.crt", "client-key": "./tls.key"}));
        let keys = [
            ("kubeconfig", by_certificate.as_str()),
            ("tls.crt", &certificate.certificate_pem),
            ("tls.key", &certificate.key_pem),
        ];
        world.put_secret(&keys).await;
        world.report(&side_car, "new credentials", |report| report["seconds_since_new_credentials"] == json!(0)).await;
        world.renewed_after(Timestamp::now()).await;

        // Nothing of it is told, and nothing of it is in a file.
        let told = side_car.admin().status().await.unwrap().to_string() + &side_car.log().unwrap();
        let key_line = certificate.key_pem.lines().nth(1).unwrap();
        assert!(!told.contains(&token) && !told.contains(key_line), "{told}");
        for entry in std::fs::read_dir(format!("/proc/{}/fd", side_car.process_id())).unwrap() {
            let Ok(target) = std::fs::read_link(entry.unwrap().path()) else { continue };
            let is_file = target.is_file() && target != side_car.log_path().canonicalize().unwrap();
            assert!(!is_file, "{} is open", target.display());
        }
        let beside = std::fs::read_dir(side_car.log_path().parent().unwrap()).unwrap();
        assert_eq!(beside.count(), 1, "nothing but the log");
    });
}
