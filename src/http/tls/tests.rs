//! Certificates of a running server that change.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::http::files::EVERY;
use crate::http::scripted::{Pair, hold_the_clock};
use crate::http::server::{Limits, Server};

const HEAD: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_mins(1);

fn limits() -> Limits {
    Limits {
        most_connections: 9,
        longest_head: HEAD,
        largest_head: 8192,
        longest_stall: Duration::from_secs(30),
        keep_alive: true,
        farewell: Duration::from_secs(2),
    }
}

struct Running {
    directory: TempDir,
    address: SocketAddr,
    fault: watch::Receiver<Option<Arc<CertificateError>>>,
}

impl Running {
    fn write(&self, name: &str, content: &str) {
        write(&self.directory, name, content);
    }

    async fn fault(&mut self, wanted: impl Fn(&CertificateError) -> bool) {
        let found = self.fault.wait_for(|fault| fault.as_ref().is_some_and(|fault| wanted(fault)));
        tokio::time::timeout(PATIENCE, found).await.expect("waited for the fault").unwrap();
    }

    async fn mended(&mut self) {
        let found = self.fault.wait_for(Option::is_none);
        tokio::time::timeout(PATIENCE, found).await.expect("waited for the fault's end").unwrap();
    }
}

/// As the kubelet does it: never half a file.
fn write(directory: &TempDir, name: &str, content: &str) {
    let (temporary, path) = (directory.path().join("temporary"), directory.path().join(name));
    std::fs::write(&temporary, content).unwrap();
    std::fs::rename(temporary, path).unwrap();
}

fn files(directory: &TempDir) -> CertificateFiles {
    CertificateFiles { certificate: directory.path().join("tls.crt"), key: directory.path().join("tls.key") }
}

async fn start(pair: &Pair) -> Running {
    let directory = tempfile::tempdir().unwrap();
    write(&directory, "tls.crt", &pair.certificate);
    write(&directory, "tls.key", &pair.key);
    let tls = ServerTls::load(files(&directory)).unwrap();
    let fault = tls.certificate().fault();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::new("test", limits()).with_tls(tls);
    let router = Router::new().route("/quick", get(async || "quick"));
    tokio::spawn(server.serve(listener, router, CancellationToken::new()));
    Running { directory, address, fault }
}

/// Asks a server that has to have this certificate, twice on one connection.
async fn ask(address: SocketAddr, pair: &Pair, version: &'static SupportedProtocolVersion) -> std::io::Result<()> {
    let _hold = hold_the_clock();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap()).unwrap();
    let provider = rustls::crypto::ring::default_provider().into();
    let config = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap();
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let name = ServerName::try_from("hub.test").unwrap();
    let stream = TcpStream::connect(address).await?;
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]), "HTTP/2 is not spoken");
    for _ in 0..2 {
        stream.write_all(b"GET /quick HTTP/1.1\r\nhost: a\r\n\r\n").await?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\nquick") {
            answer.push(stream.read_u8().await?);
        }
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn both_versions_of_tls_are_spoken_and_requests_follow_each_other() {
    let pair = Pair::named("hub.test");
    let running = start(&pair).await;
    for version in [&TLS12, &TLS13] {
        ask(running.address, &pair, version).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn who_speaks_plain_http_is_told_of_tls_and_gets_nothing_else() {
    let running = start(&Pair::named("hub.test")).await;
    let _hold = hold_the_clock();
    let mut stream = TcpStream::connect(running.address).await.unwrap();
    stream.write_all(b"POST /quick HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nabc").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("https://"), "{answer}");
    assert!(!answer.contains("quick") && !answer.contains("towline/"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_new_certificate_is_served_after_its_files_have_changed() {
    let (first, second) = (Pair::named("hub.test"), Pair::named("hub.test"));
    let mut running = start(&first).await;
    ask(running.address, &first, &TLS13).await.unwrap();
    running.write("tls.crt", &second.certificate);
    running.fault(|fault| matches!(fault, CertificateError::Pair { .. })).await;
    // Half of the pair: the last one stays.
    ask(running.address, &first, &TLS13).await.unwrap();
    running.write("tls.key", &second.key);
    running.mended().await;
    ask(running.address, &second, &TLS13).await.unwrap();
    ask(running.address, &first, &TLS13).await.expect_err("the first certificate is no longer served");
}

#[tokio::test(start_paused = true)]
async fn unusable_files_keep_the_last_certificate_until_the_next_change() {
    let (first, second) = (Pair::named("hub.test"), Pair::named("hub.test"));
    let mut running = start(&first).await;
    let cut_off = &first.certificate[..first.certificate.len() / 2];
    let no_key = "no private key in PEM";
    for (name, content, expected) in [
        ("tls.crt", cut_off, "a PEM section has no end"),
        ("tls.key", "", no_key),
        ("tls.crt", "", "no certificate in PEM"),
        ("tls.key", &first.certificate, no_key),
    ] {
        // Never a good pair in between.
        running.write(name, content);
        let other = if name == "tls.crt" { ("tls.key", &second.key) } else { ("tls.crt", &second.certificate) };
        running.write(other.0, other.1);
        let is_it = |path: &Path, reason: &str| path.ends_with(name) && reason == expected;
        running.fault(|fault| matches!(fault, CertificateError::Decode { path, reason } if is_it(path, reason))).await;
        ask(running.address, &first, &TLS13).await.unwrap();
    }
    std::fs::remove_file(running.directory.path().join("tls.key")).unwrap();
    running.fault(|fault| matches!(fault, CertificateError::Read { path, .. } if path.ends_with("tls.key"))).await;
    ask(running.address, &first, &TLS13).await.unwrap();
    running.write("tls.crt", &second.certificate);
    running.write("tls.key", &second.key);
    running.mended().await;
    ask(running.address, &second, &TLS13).await.unwrap();
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn unusable_files_are_logged_once() {
    let lines = Lines::default();
    let writer = lines.clone();
    // While there is only one subscriber, whether an event is of interest is asked on the thread of whichever test logs it first.
    let _another = tracing::Dispatch::new(tracing_subscriber::registry());
    let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let _guard = tracing::subscriber::set_default(log);
    let (first, second) = (Pair::named("hub.test"), Pair::named("hub.test"));
    let mut running = start(&first).await;
    for key in [&second.key, &first.key] {
        running.write("tls.key", "half a key");
        running.fault(|fault| matches!(fault, CertificateError::Decode { .. })).await;
        tokio::time::sleep(EVERY * 5).await;
        running.write("tls.crt", if key == &second.key { &second.certificate } else { &first.certificate });
        running.fault(|_| true).await;
        tokio::time::sleep(EVERY * 5).await;
        running.write("tls.key", key);
        running.mended().await;
    }
    let text = String::from_utf8(lines.0.lock().clone()).unwrap();
    let told: Vec<&str> = text.lines().filter(|line| line.contains("ERROR ")).collect();
    assert_eq!(told.len(), 2, "once each time: {text}");
    assert!(told.iter().all(|line| line.contains("failed to load files, what was loaded before")), "{text}");
    assert!(!text.contains("half a key"), "{text}");
    assert_eq!(text.matches("files loaded").count(), 2, "{text}");
}

#[tokio::test]
async fn a_server_does_not_start_without_a_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let error = ServerTls::load(files(&directory)).err().expect("refused");
    assert_eq!(error.to_string(), format!("failed to read {}", directory.path().join("tls.crt").display()));
    assert!(std::error::Error::source(&error).is_some(), "the cause is kept");
    write(&directory, "tls.crt", &Pair::named("hub.test").certificate);
    write(&directory, "tls.key", &Pair::named("hub.test").key);
    let error = ServerTls::load(files(&directory)).err().expect("refused");
    assert!(matches!(error, CertificateError::Pair { .. }), "{error:?}");
    // Each file in the place of the other.
    let pair = Pair::named("hub.test");
    write(&directory, "tls.key", &pair.certificate);
    let error = ServerTls::load(files(&directory)).err().expect("refused");
    assert!(error.to_string().ends_with("tls.key: no private key in PEM"), "{error}");
    write(&directory, "tls.crt", &pair.key);
    let error = ServerTls::load(files(&directory)).err().expect("refused");
    assert!(error.to_string().ends_with("tls.crt: no certificate in PEM"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_handshake_has_no_more_time_than_a_head() {
    let running = start(&Pair::named("hub.test")).await;
    let hold = hold_the_clock();
    let mut silent = TcpStream::connect(running.address).await.unwrap();
    let begun = Instant::now();
    drop(hold);
    assert_eq!(silent.read(&mut [0; 1]).await.unwrap_or(0), 0);
    let lasted = begun.elapsed();
    assert!(lasted >= HEAD && lasted < HEAD * 2, "{lasted:?}");
}
