//! A server that wants to know the daemon, and is verified by it. What every `sslmode` does is in `database/db`.

use integration::postgres::{READER, Transport};
use integration::{Postgres, Towline};

use crate::status_sync::world::{Stage, run};

/// Whether a daemon with this URL gets through its first pass; else the kind and text of its failure.
async fn connects(stage: &Stage, url: &str) -> Result<(), String> {
    let settings = "interval = \"200ms\"\nfamilies = [\"policies\"]";
    let config = stage.config_by(url, &stage.world.kubeconfig, settings);
    let towline = Towline::start(&config, &[]).await.expect("the daemon starts");
    let report = stage
        .family(&towline, "policies", "a pass or a failure", |report| {
            report["passes"].as_u64() > Some(0) || !report["failure"].is_null()
        })
        .await;
    if report["passes"].as_u64() > Some(0) { Ok(()) } else { Err(report["failure"].to_string()) }
}

#[test]
fn a_server_that_asks_for_a_certificate_is_shown_the_one_that_the_url_names() {
    run(async {
        let stage = Stage::new("certificates").await;
        let server = Postgres::start("mutual", Transport::Mutual).await.expect("a server");
        let url = server.database("certificates").await.expect("a database").url(READER);
        let verified = format!("{url}?sslmode=verify-full&sslrootcert={}", server.authority().display());
        let showing = |server: &Postgres| {
            let (certificate, key) = server.client_certificate();
            format!("{verified}&sslcert={}&sslkey={}", certificate.display(), key.display())
        };
        assert!(connects(&stage, &verified).await.is_err(), "it was let in without a certificate");
        assert!(
            connects(&stage, &showing(&stage.world.server)).await.is_err(),
            "it was let in with one of another authority"
        );
        assert_eq!(connects(&stage, &showing(&server)).await, Ok(()));
    });
}
