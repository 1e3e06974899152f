//! Requests through proxies: what these are asked, and what arrives at the server behind them.

use std::time::Duration;

use http::Request;
use kube::Config;
use kube::client::Body;
use rcgen::CertifiedKey;
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tower::{BoxError, ServiceExt};

use super::*;
use crate::cluster::{Clock, Expired, Fence, stack};

const OPENED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// Reads up to a text that comes at the end of something, or to the connection's end.
async fn up_to(stream: &mut (impl AsyncRead + Unpin), end: &str) -> String {
    let mut read = Vec::new();
    while !read.ends_with(end.as_bytes()) && stream.read_buf(&mut read).await.unwrap_or(0) > 0 {}
    String::from_utf8(read).unwrap()
}

/// The server: what arrives at it, which it answers.
async fn serve(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> String {
    let arrived = up_to(&mut stream, "content").await;
    if !arrived.is_empty() {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
        stream.flush().await.unwrap();
    }
    arrived
}

/// Who proves to be of this name, and the certificate that says so.
fn proven(name: &str) -> (TlsAcceptor, Vec<u8>) {
    let CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
    let provider = rustls::crypto::ring::default_provider().into();
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_no_client_auth().with_single_cert(vec![cert.der().clone()], key).unwrap();
    (TlsAcceptor::from(std::sync::Arc::new(config)), cert.der().to_vec())
}

/// As many bytes.
async fn bytes<const COUNT: usize>(stream: &mut (impl AsyncRead + Unpin)) -> [u8; COUNT] {
    let mut bytes = [0; COUNT];
    stream.read_exact(&mut bytes).await.unwrap();
    bytes
}

/// A text with its length before it.
async fn text(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let length = stream.read_u8().await.unwrap();
    let mut text = vec![0; length.into()];
    stream.read_exact(&mut text).await.unwrap();
    String::from_utf8(text).unwrap()
}

/// A proxy's part of RFC 1928 and 1929, up to the open tunnel: who asked, by user and password, and for which server.
async fn socks(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> (Option<(String, String)>, String, u16) {
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
async fn proxy() -> (String, oneshot::Sender<()>, oneshot::Receiver<String>, JoinHandle<String>) {
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

/// A request, under a claim, to a server whose name only the proxy knows.
fn post(proxy: &str, fence: &Fence) -> JoinHandle<Result<u16, BoxError>> {
    send(Config::new(Uri::from_static("http://hub.invalid:6443")), &format!("http://me:word@{proxy}"), fence)
}

/// The same to a server that proves who it is, where these certificates are trusted.
fn post_safely(proxy: &str, trusted: Vec<Vec<u8>>) -> JoinHandle<Result<u16, BoxError>> {
    let mut config = Config::new(Uri::from_static("https://hub.invalid:6443"));
    config.root_cert = Some(trusted);
    send(config, proxy, &held())
}

fn send(mut config: Config, proxy: &str, fence: &Fence) -> JoinHandle<Result<u16, BoxError>> {
    config.proxy_url = Some(proxy.parse().unwrap());
    let long = Duration::from_mins(1);
    let (transport, _client) =
        stack::connect(config, stack::Settings { headers_within: long, pool_idle: long, bearer: None }).unwrap();
    let mut request = Request::post("/things").body(Body::from(b"content".to_vec())).unwrap();
    request.extensions_mut().insert(fence.claim().unwrap());
    tokio::spawn(async move { Ok(transport.oneshot(request).await?.status().as_u16()) })
}

fn held() -> Fence {
    let fence = Fence::new("databases", Clock::Boot);
    fence.open(fence.now() + Duration::from_hours(1));
    fence
}

#[tokio::test]
async fn a_request_goes_through_the_tunnel_of_the_proxy_and_its_credentials_no_further_than_there() {
    let (address, open, asked, server) = proxy().await;
    let sent = post(&address, &held());
    open.send(()).unwrap();
    let asked = asked.await.unwrap();
    assert!(asked.starts_with("CONNECT hub.invalid:6443 HTTP/1.1\r\n"), "{asked}");
    assert!(asked.contains("Proxy-Authorization: Basic bWU6d29yZA==\r\n"), "{asked}");
    assert_eq!(sent.await.unwrap().unwrap(), 200);
    let arrived = server.await.unwrap();
    assert!(arrived.starts_with("POST /things HTTP/1.1\r\n") && arrived.ends_with("content"), "{arrived}");
    assert!(!arrived.to_lowercase().contains("proxy"), "{arrived}");
}

#[tokio::test]
async fn a_claim_that_ends_while_the_proxy_makes_the_tunnel_leaves_nothing_for_the_server() {
    let (address, open, asked, server) = proxy().await;
    let fence = held();
    let sent = post(&address, &fence);
    asked.await.unwrap();
    fence.close();
    open.send(()).unwrap();
    let error = sent.await.unwrap().expect_err("nothing was sent");
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&*error);
    while let Some(inner) = source.filter(|inner| !inner.is::<Expired>()) {
        source = inner.source();
    }
    assert!(source.is_some(), "not for the claim's sake: {error:?}");
    assert_eq!(server.await.unwrap(), "", "something was sent");
}

#[tokio::test]
async fn a_proxy_is_spoken_to_through_tls_where_its_address_says_so_and_the_server_through_that() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let ((proxy, proxys), (hub, hubs)) = (proven("127.0.0.1"), proven("hub.invalid"));
    let serving = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = proxy.accept(stream).await.unwrap();
        let asked = up_to(&mut stream, "\r\n\r\n").await;
        stream.write_all(OPENED).await.unwrap();
        (asked, serve(hub.accept(stream).await.unwrap()).await)
    });
    let sent = post_safely(&format!("https://me:word@{address}"), vec![proxys, hubs]);
    assert_eq!(sent.await.unwrap().unwrap(), 200);
    let (asked, arrived) = serving.await.unwrap();
    assert!(asked.starts_with("CONNECT hub.invalid:6443 HTTP/1.1\r\n"), "{asked}");
    assert!(asked.contains("Proxy-Authorization: Basic bWU6d29yZA==\r\n"), "{asked}");
    assert!(arrived.starts_with("POST /things HTTP/1.1\r\n") && arrived.ends_with("content"), "{arrived}");
    assert!(!arrived.to_lowercase().contains("proxy"), "{arrived}");
}

#[tokio::test]
async fn a_proxy_that_can_not_prove_who_it_is_learns_no_password() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let ((proxy, _), (_, hubs)) = (proven("127.0.0.1"), proven("hub.invalid"));
    let serving = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        match proxy.accept(stream).await {
            Ok(mut stream) => up_to(&mut stream, "\r\n\r\n").await,
            Err(_) => String::new(),
        }
    });
    post_safely(&format!("https://me:word@{address}"), vec![hubs]).await.unwrap().expect_err("it was trusted");
    assert_eq!(serving.await.unwrap(), "");
}

#[tokio::test]
async fn a_socks_proxy_finds_the_server_by_its_name_and_hears_a_password_where_there_is_one() {
    for (credentials, expected) in [("", None), ("me:word@", Some(("me".to_owned(), "word".to_owned())))] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (hub, hubs) = proven("hub.invalid");
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let asked = socks(&mut stream).await;
            (asked, serve(hub.accept(stream).await.unwrap()).await)
        });
        let sent = post_safely(&format!("socks5://{credentials}{address}"), vec![hubs]);
        assert_eq!(sent.await.unwrap().unwrap(), 200);
        let (asked, arrived) = serving.await.unwrap();
        assert_eq!(asked, (expected, "hub.invalid".to_owned(), 6443));
        assert!(arrived.starts_with("POST /things HTTP/1.1\r\n") && arrived.ends_with("content"), "{arrived}");
    }
}

#[test]
fn a_socks_proxy_without_a_port_is_at_1080_and_any_other_where_its_scheme_is() {
    for (proxy, expected) in [
        ("socks5://proxy.test", Some(1080)),
        ("socks5h://me:word@proxy.test", Some(1080)),
        ("socks5://proxy.test:", Some(1080)),
        ("socks5://[fd00::1]", Some(1080)),
        ("socks5://me:word@[fd00::1]:1081", Some(1081)),
        ("socks5://proxy.test:80", Some(80)),
        ("http://proxy.test", None),
        ("https://proxy.test", None),
        ("https://proxy.test:1080", Some(1080)),
    ] {
        let apart = taken_apart(&proxy.parse().unwrap()).unwrap();
        assert_eq!(apart.uri().port_u16(), expected, "{proxy}");
        assert_eq!(apart.raw_auth().is_some(), proxy.starts_with("socks") && proxy.contains("me:word"), "{proxy}");
    }
    assert_eq!(taken("https://hub.test", &[("HTTPS_PROXY", "socks5://p")]), Some("socks5://p/".into()));
}

fn taken(server: &str, environment: &[(&str, &str)]) -> Option<String> {
    let variable =
        |name: &str| environment.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
    of_environment(&server.parse().unwrap(), variable).map(|proxy| proxy.to_string())
}

#[test]
fn the_environments_proxy_is_taken_but_for_whom_no_proxy_names() {
    let set = [("HTTPS_PROXY", "http://me:word@proxy.test:3128"), ("NO_PROXY", "10.0.0.0/8, .inside.test,edge.test")];
    let proxy = Some("http://me:word@proxy.test:3128/".to_owned());
    for (server, expected) in [
        ("https://hub.test:6443", proxy.clone()),
        ("https://11.0.0.1:6443", proxy),
        ("https://10.0.0.1:6443", None),
        ("https://a.inside.test", None),
        ("https://edge.test:6443", None),
        ("https://localhost:6443", None),
        ("https://127.0.0.1:6443", None),
        ("https://[::1]:6443", None),
        ("http://hub.test:8080", None),
    ] {
        assert_eq!(taken(server, &set), expected, "{server}");
    }
    assert_eq!(taken("https://hub.test", &[("https_proxy", "proxy.test:1")]), Some("http://proxy.test:1/".into()));
    assert_eq!(taken("http://hub.test", &[("HTTP_PROXY", "http://proxy.test")]), Some("http://proxy.test/".into()));
    assert_eq!(taken("https://hub.test", &[("HTTPS_PROXY", "http://p"), ("NO_PROXY", "*")]), None);
    assert_eq!(taken("https://hub.test", &[("HTTPS_PROXY", "")]), None);
}

#[test]
fn a_password_is_told_to_the_proxy_and_is_not_part_of_its_address() {
    let apart = taken_apart(&Uri::from_static("http://me:word@proxy.test:3128")).unwrap();
    assert_eq!((apart.uri().to_string().as_str(), apart.raw_auth()), ("http://proxy.test:3128/", None));
    assert_eq!(apart.basic_auth().unwrap(), "Basic bWU6d29yZA==");
    let apart = taken_apart(&Uri::from_static("socks5://me:word@proxy.test:1080")).unwrap();
    assert_eq!((apart.uri().host(), apart.raw_auth()), (Some("proxy.test"), Some(("me", "word"))));
    assert!(taken_apart(&Uri::from_static("ftp://proxy.test")).is_none());
}
