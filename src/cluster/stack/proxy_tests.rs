//! Requests through proxies: what these are asked, and what arrives at the server behind them.

use std::time::Duration;

use http::{Request, Uri};
use kube::Config;
use kube::client::Body;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tower::{BoxError, ServiceExt};

use crate::cluster::{Clock, Expired, Fence, stack};
use crate::http::DeniedNetworks;
use crate::http::scripted::{OPENED, proven, proxy, serve, socks, up_to};

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
    let (transport, _client) = stack::connect(
        config,
        stack::Settings {
            headers_within: long,
            pool_idle: long,
            bearer: None,
            counted_as: None,
            denied: DeniedNetworks::default(),
        },
    )
    .unwrap();
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
