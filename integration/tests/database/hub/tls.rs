//! The API over TLS, with a certificate that is replaced while the hub runs.

use std::path::Path;

use integration::{Towline, eventually};
use tokio::process::Command;

use crate::hub::world::{Hub, LIMIT, database, folder, run};

/// Makes a certificate for this machine and writes it with its key, and again to a file that clients trust.
fn certify(folder: &Path, trusted: &str) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
    let files =
        [("tls.key", made.signing_key.serialize_pem()), ("tls.crt", made.cert.pem()), (trusted, made.cert.pem())];
    for (name, text) in files {
        std::fs::write(folder.join(name), text).expect("a file");
    }
}

/// Whether a client that trusts this certificate alone gets an answer.
async fn is_served(url: &str, trusted: &Path) -> bool {
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--fail", "--max-time", "60", "--http1.1", "--cacert"]).arg(trusted).arg(url);
    curl.output().await.expect("curl is installed").status.success()
}

#[test]
fn the_api_is_served_over_tls_and_a_new_certificate_is_used_without_a_restart() {
    run(async {
        let folder = folder("tls");
        certify(&folder, "first.crt");
        let path = |name: &str| folder.join(name).to_str().expect("a path").to_owned();
        let (certificate, key) = (path("tls.crt"), path("tls.key"));
        let env = [("TOWLINE__HUB__TLS_CERT", certificate.as_str()), ("TOWLINE__HUB__TLS_KEY", &key)];
        let hub = Hub::start(&database("encrypted").await, &env).await;
        let url = format!("{}/v1/clusters", hub.url.replacen("http", "https", 1));
        assert!(is_served(&url, &folder.join("first.crt")).await);
        let plain = Command::new("curl").args(["-sS", "--fail", &hub.url]).output().await.expect("curl is installed");
        assert!(!plain.status.success(), "it was served without TLS: {plain:?}");
        let get = async |more: &[&str]| {
            let output = Towline::command([&["get", "clusters"], more].concat()).await.expect("it runs");
            (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
        };
        let (first, named) = (path("first.crt"), hub.url.replacen("http", "https", 1));
        assert_eq!(get(&["--hub", &named, "--certificate-authority", &first]).await.0, Some(0));
        for (access, expected) in [
            (&["--hub", hub.url.as_str()][..], "--hub https://NAME"),
            (&["--hub", named.as_str()], "; --certificate-authority FILE adds one\n"),
        ] {
            let (code, told) = get(access).await;
            assert!(code == Some(1) && told.contains(expected), "{told}");
        }
        certify(&folder, "second.crt");
        eventually("the new certificate to be used", LIMIT, async || {
            if is_served(&url, &folder.join("second.crt")).await { Ok(()) } else { Err("it is not".to_owned()) }
        })
        .await
        .expect("it is used");
        assert!(!is_served(&url, &folder.join("first.crt")).await);
    });
}
