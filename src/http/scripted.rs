//! Scripted servers and proxies for tests, over loopback.

use std::sync::Arc;
use std::time::Duration;

use rcgen::CertifiedKey;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// A proxy's answer when it has opened the tunnel.
pub(crate) const OPENED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// Reads until the data ends with `end`, or the connection ends.
pub(crate) async fn up_to(stream: &mut (impl AsyncRead + Unpin), end: &str) -> String {
    let mut read = Vec::new();
    while !read.ends_with(end.as_bytes()) && stream.read_buf(&mut read).await.unwrap_or(0) > 0 {}
    String::from_utf8(read).unwrap()
}

/// The server: answers one request and returns what it received.
pub(crate) async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> String {
    let arrived = up_to(&mut stream, "content").await;
    if !arrived.is_empty() {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
        stream.flush().await.unwrap();
    }
    arrived
}

/// A self-signed certificate and its key, as PEM.
pub(crate) struct Pair {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl Pair {
    pub(crate) fn named(name: &str) -> Self {
        let CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        Self { certificate: cert.pem(), key: signing_key.serialize_pem() }
    }
}

/// A TLS acceptor for this host name, and its certificate.
pub(crate) fn proven(name: &str) -> (TlsAcceptor, Vec<u8>) {
    let (acceptor, pem) = proven_by(name);
    (acceptor, CertificateDer::from_pem_slice(pem.as_bytes()).unwrap().to_vec())
}

/// The same with the certificate as PEM.
pub(crate) fn proven_by(name: &str) -> (TlsAcceptor, String) {
    let Pair { certificate, key } = Pair::named(name);
    let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let provider = rustls::crypto::ring::default_provider().into();
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(chain, key).unwrap();
    (TlsAcceptor::from(Arc::new(config)), certificate)
}

pub(crate) async fn bytes<const COUNT: usize>(stream: &mut (impl AsyncRead + Unpin)) -> [u8; COUNT] {
    let mut bytes = [0; COUNT];
    stream.read_exact(&mut bytes).await.unwrap();
    bytes
}

/// Reads a text that follows its length.
pub(crate) async fn text(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let length = stream.read_u8().await.unwrap();
    let mut text = vec![0; length.into()];
    stream.read_exact(&mut text).await.unwrap();
    String::from_utf8(text).unwrap()
}

/// A proxy's part of RFC 1928 and 1929, up to the open tunnel. Returns user and password, and the requested server.
pub(crate) async fn socks(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
) -> (Option<(String, String)>, String, u16) {
    let [version, methods] = bytes(stream).await;
    assert_eq!((version, methods), (5, 1));
    let [method] = bytes(stream).await;
    stream.write_all(&[5, method]).await.unwrap();
    let who = if method == 2 {
        assert_eq!(bytes(stream).await, [1]);
        let who = (text(stream).await, text(stream).await);
        stream.write_all(&[1, 0]).await.unwrap();
        Some(who)
    } else {
        assert_eq!(method, 0);
        None
    };
    assert_eq!(bytes(stream).await, [5, 1, 0, 3], "to connect, to a name");
    let (server, port) = (text(stream).await, stream.read_u16().await.unwrap());
    stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.unwrap();
    (who, server, port)
}

/// A proxy that opens its one tunnel on a signal, and the server behind it. Returns the request to the proxy, and what the
/// server receives.
pub(crate) async fn proxy() -> (String, oneshot::Sender<()>, oneshot::Receiver<String>, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let ((open, opened), (asked, was_asked)) = (oneshot::channel(), oneshot::channel());
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        asked.send(up_to(&mut stream, "\r\n\r\n").await).unwrap();
        opened.await.unwrap();
        stream.write_all(OPENED).await.unwrap();
        serve(stream).await
    });
    (address, open, was_asked, server)
}

/// Keeps a paused clock from advancing, which it does when all tasks wait, even if only for the kernel.
pub(crate) fn hold_the_clock() -> impl Drop {
    struct Hold(Option<std::sync::mpsc::SyncSender<()>>);
    impl Drop for Hold {
        fn drop(&mut self) {
            drop(self.0.take());
        }
    }
    // The clock stands still while a blocking task runs.
    let (sender, receiver) = std::sync::mpsc::sync_channel::<()>(1);
    tokio::task::spawn_blocking(move || {
        // Afterwards whoever waits in vain runs into its own deadline.
        let _ = receiver.recv_timeout(Duration::from_mins(1));
    });
    Hold(Some(sender))
}
