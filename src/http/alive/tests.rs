//! When idle connections are probed, and when their server counts as dead.

use std::future::poll_fn;
use std::sync::atomic::AtomicBool;

use futures::FutureExt;
use hyper::rt::ReadBuf;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::task::JoinHandle;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;
use crate::http::scripted::Pair;

/// The clock of tests is read in whole milliseconds.
const EXACT: Duration = Duration::from_millis(1);

/// An idle connection whose server answers probes as long as it is told to.
struct Idle {
    answers: Arc<AtomicBool>,
    /// When the client has sent something.
    sent: Arc<Mutex<Vec<Instant>>>,
    reading: JoinHandle<io::Error>,
}

impl Idle {
    async fn connected(pair: &Pair, of_server: Answers) -> Self {
        let certificate = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap();
        let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = [&rustls::version::TLS13];
        let server =
            ServerConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(&versions).unwrap();
        let server = server.with_no_client_auth().with_single_cert(vec![certificate.clone()], key).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate).unwrap();
        let client = ClientConfig::builder_with_provider(provider).with_protocol_versions(&versions).unwrap();
        let client = TlsConnector::from(Arc::new(client.with_root_certificates(roots).with_no_client_auth()));

        let (near, from_client) = duplex(1 << 16);
        let (to_server, far) = duplex(1 << 16);
        let (answers, sent) = (Arc::new(AtomicBool::new(true)), Arc::default());
        let asked = Arc::new(tokio::sync::Notify::new());
        let (accepted, is_accepted) = tokio::sync::oneshot::channel();
        tokio::spawn(relay(from_client, to_server, Arc::clone(&sent), Arc::clone(&asked)));
        let is_answering = Arc::clone(&answers);
        tokio::spawn(async move {
            let mut stream = TlsAcceptor::from(Arc::new(server)).accept(far).await.unwrap();
            stream.flush().await.unwrap();
            // The end of the handshake is no probe.
            let _ = asked.notified().now_or_never();
            accepted.send(()).unwrap();
            loop {
                asked.notified().await;
                if is_answering.load(Ordering::Relaxed) {
                    // As a server answers: with a key update of its own, and no data.
                    stream.get_mut().1.refresh_traffic_keys().unwrap();
                    stream.flush().await.unwrap();
                }
            }
        });
        let stream = TokioIo::new(Counted::new(TokioIo::new(near)));
        let stream = client.connect(ServerName::try_from("hub.test").unwrap(), stream).await.unwrap();
        is_accepted.await.unwrap();
        sent.lock().clear();
        let mut alive = Alive::new(MaybeHttpsStream::Https(TokioIo::new(stream)), of_server);
        let reading = tokio::spawn(async move {
            let mut space = [0; 64];
            let read = poll_fn(|context| {
                let mut buffer = ReadBuf::new(&mut space);
                Pin::new(&mut alive).poll_read(context, buffer.unfilled())
            });
            read.await.expect_err("nothing is there to be read")
        });
        Self { answers, sent, reading }
    }

    fn probes(&self) -> Vec<Instant> {
        self.sent.lock().clone()
    }
}

/// Passes on what both sides send, and notes when the client does.
async fn relay(
    client: DuplexStream,
    server: DuplexStream,
    sent: Arc<Mutex<Vec<Instant>>>,
    asked: Arc<tokio::sync::Notify>,
) {
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let up = async {
        let mut space = [0; 4096];
        while let Ok(length @ 1..) = from_client.read(&mut space).await {
            to_server.write_all(&space[..length]).await.unwrap();
            sent.lock().push(Instant::now());
            asked.notify_one();
        }
    };
    let down = async { tokio::io::copy(&mut from_server, &mut to_client).await.unwrap() };
    tokio::join!(up, down);
}

fn are_close(one: Instant, other: Instant) -> bool {
    one.saturating_duration_since(other).max(other.saturating_duration_since(one)) <= EXACT
}

#[tokio::test(start_paused = true)]
async fn silent_connections_are_probed_and_closed_without_an_answer() {
    let (pair, of_server) = (Pair::named("hub.test"), Answers::of("hub.test"));
    let begun = Instant::now();
    let first = Idle::connected(&pair, of_server.clone()).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let second = Idle::connected(&pair, of_server).await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    for (idle, connected) in [(&first, begun), (&second, begun + Duration::from_secs(1))] {
        let probes = idle.probes();
        // The first one comes early; the server answers them.
        let expected = (0..4).map(|number| connected + EARLY + SILENCE * number);
        assert_eq!(probes.len(), 4, "{probes:?}");
        assert!(probes.iter().zip(expected).all(|(probe, expected)| are_close(*probe, expected)), "{probes:?}");
    }
    // One server is gone; what is in between stays up.
    first.answers.store(false, Ordering::Relaxed);
    let error = first.reading.await.unwrap();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert!(error.to_string().ends_with("no sign of life for 15s"), "{error}");
    let last = *first.sent.lock().last().unwrap();
    assert!(are_close(Instant::now(), last + ANSWER_WITHIN), "{:?}", Instant::now() - last);
    assert!(!second.reading.is_finished(), "the other one's server answers");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_has_never_answered_is_not_probed_again() {
    let (pair, of_server) = (Pair::named("hub.test"), Answers::of("hub.test"));
    let idle = Idle::connected(&pair, of_server).await;
    idle.answers.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(idle.probes().len(), 1);
    assert!(!idle.reading.is_finished(), "its silence means nothing");
}
