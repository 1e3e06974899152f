//! Every `sslmode` against servers with and without TLS.

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
fn every_sslmode_does_what_its_name_says() {
    run(async {
        let stage = Stage::new("sslmodes").await;
        let tls = Postgres::start("tls", Transport::Tls).await.expect("a server");
        let both = Postgres::start("both", Transport::Both).await.expect("a server");
        let (tls_url, both_url) = (
            tls.database("sslmodes").await.expect("a database").url(READER),
            both.database("sslmodes").await.expect("a database").url(READER),
        );
        let elsewhere = tls_url.replace("@localhost:", "@elsewhere.example:");
        let plain_url = stage.database.url(READER);
        let (own, others) = (tls.authority().display().to_string(), both.authority().display().to_string());
        let cases = [
            (&plain_url, "disable".to_owned(), true),
            (&plain_url, "allow".to_owned(), true),
            (&plain_url, "prefer".to_owned(), true),
            (&plain_url, "require".to_owned(), false),
            (&both_url, "prefer".to_owned(), true),
            (&tls_url, "disable".to_owned(), false),
            (&tls_url, "allow".to_owned(), true),
            (&tls_url, "prefer".to_owned(), true),
            (&tls_url, "require".to_owned(), true),
            (&tls_url, format!("require&sslrootcert={others}"), false),
            (&tls_url, format!("verify-ca&sslrootcert={own}"), true),
            (&tls_url, format!("verify-ca&sslrootcert={others}"), false),
            (&tls_url, "verify-full".to_owned(), false),
            (&tls_url, format!("verify-full&sslrootcert={own}"), true),
            // The server by a name that its certificate does not have.
            (&elsewhere, format!("require&hostaddr=127.0.0.1&sslrootcert={own}"), true),
            (&elsewhere, format!("verify-ca&hostaddr=127.0.0.1&sslrootcert={own}"), true),
            (&elsewhere, format!("verify-full&hostaddr=127.0.0.1&sslrootcert={own}"), false),
        ];
        for (url, mode, works) in cases {
            let outcome = connects(&stage, &format!("{url}?sslmode={mode}")).await;
            assert_eq!(outcome.is_ok(), works, "sslmode={mode}: {outcome:?}");
        }
    });
}

#[test]
fn a_server_that_asks_for_a_certificate_is_shown_the_one_that_the_url_names() {
    run(async {
        let stage = Stage::new("certificates").await;
        let server = Postgres::start("mutual", Transport::Mutual).await.expect("a server");
        let other = Postgres::start("unrelated", Transport::Mutual).await.expect("a server");
        let url = server.database("certificates").await.expect("a database").url(READER);
        let verified = format!("{url}?sslmode=verify-full&sslrootcert={}", server.authority().display());
        let showing = |server: &Postgres| {
            let (certificate, key) = server.client_certificate();
            format!("{verified}&sslcert={}&sslkey={}", certificate.display(), key.display())
        };
        assert!(connects(&stage, &verified).await.is_err(), "it was let in without a certificate");
        assert!(connects(&stage, &showing(&other)).await.is_err(), "it was let in with one of another authority");
        assert_eq!(connects(&stage, &showing(&server)).await, Ok(()));
    });
}
