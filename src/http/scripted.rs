//! Servers and proxies for tests, which follow a script over loopback.

use std::sync::Arc;

use rcgen::CertifiedKey;
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// A proxy's answer when the tunnel is there.
pub(crate) const OPENED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// Reads up to a text that comes at the end of something, or to the connection's end.
pub(crate) async fn up_to(stream: &mut (impl AsyncRead + Unpin), end: &str) -> String {
    let mut read = Vec::new();
    while !read.ends_with(end.as_bytes()) && stream.read_buf(&mut read).await.unwrap_or(0) > 0 {}
    String::from_utf8(read).unwrap()
}

/// The server: what arrives at it, which it answers.
pub(crate) async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> String {
    let arrived = up_to(&mut stream, "content").await;
    if !arrived.is_empty() {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
        stream.flush().await.unwrap();
    }
    arrived
}

/// Who proves to be of this name, and the certificate that says so.
pub(crate) fn proven(name: &str) -> (TlsAcceptor, Vec<u8>) {
    let CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
    let provider = rustls::crypto::ring::default_provider().into();
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![cert.der().clone()], key).unwrap();
    (TlsAcceptor::from(Arc::new(config)), cert.der().to_vec())
}

/// As many bytes.
pub(crate) async fn bytes<const COUNT: usize>(stream: &mut (impl AsyncRead + Unpin)) -> [u8; COUNT] {
    let mut bytes = [0; COUNT];
    stream.read_exact(&mut bytes).await.unwrap();
    bytes
}

/// A text with its length before it.
pub(crate) async fn text(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let length = stream.read_u8().await.unwrap();
    let mut text = vec![0; length.into()];
    stream.read_exact(&mut text).await.unwrap();
    String::from_utf8(text).unwrap()
}

/// A proxy's part of RFC 1928 and 1929, up to the open tunnel: who asked, by user and password, and for which server.
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

/// A proxy that opens its one tunnel when it is told to, with the server behind it: what the proxy is asked, and what
/// arrives at the server, which answers.
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
