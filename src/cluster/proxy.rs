//! The proxy between this process and a cluster, chosen as kubectl does.
//!
//! A kubeconfig's `proxy-url` counts for its cluster whatever the environment says. Without one it is `HTTPS_PROXY`
//! (`HTTP_PROXY` for a server without TLS), unless `NO_PROXY` names the server or the server is this machine. kube, as it
//! is built here, reads `HTTPS_PROXY` and knows no `NO_PROXY`, and with its own support for proxies it would hold
//! `NO_PROXY` against the proxy's name in the place of the server's. So what it found counts only where the kubeconfig
//! itself names a proxy.

use http::Uri;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use kube::config::{KubeConfigOptions, Kubeconfig};

/// Whether the chosen context's cluster names a proxy of its own.
pub(super) fn is_named(kubeconfig: &Kubeconfig, options: &KubeConfigOptions) -> bool {
    let chosen = options.context.as_ref().or(kubeconfig.current_context.as_ref());
    let context = kubeconfig.contexts.iter().find(|named| Some(&named.name) == chosen);
    let name = context.and_then(|named| named.context.as_ref()).map(|context| &context.cluster);
    let cluster = kubeconfig.clusters.iter().find(|named| Some(&named.name) == name);
    let url = cluster.and_then(|named| named.cluster.as_ref()).and_then(|cluster| cluster.proxy_url.as_ref());
    url.is_some_and(|url| !url.is_empty())
}

/// The environment's proxy for a server. A user and a password are left in it.
pub(super) fn of_environment(server: &Uri, variable: impl Fn(&str) -> Option<String>) -> Option<Uri> {
    let first = |names: [&str; 2]| {
        names.into_iter().filter_map(&variable).find(|value| !value.trim().is_empty()).unwrap_or_default()
    };
    if server.host().is_none_or(is_this_machine) {
        return None;
    }
    let proxy = match server.scheme_str() {
        Some("http") => first(["HTTP_PROXY", "http_proxy"]),
        _ => first(["HTTPS_PROXY", "https_proxy"]),
    };
    let environment = Matcher::builder().all(proxy.clone()).no(first(["NO_PROXY", "no_proxy"])).build();
    environment.intercept(server)?;
    let with_scheme = if proxy.contains("://") { proxy } else { format!("http://{proxy}") };
    with_scheme.parse().ok()
}

/// Go's clients never take the environment's proxy to get there.
fn is_this_machine(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// The address of a proxy, and apart from it the user and the password that were in front of its host. None where it is
/// none of `http://`, `https://` and `socks5://`.
pub(super) fn taken_apart(proxy: &Uri) -> Option<Intercept> {
    let scheme = proxy.scheme_str()?;
    if !matches!(scheme, "http" | "https" | "socks5" | "socks5h") {
        return None;
    }
    // For every server.
    Matcher::builder().all(proxy.to_string()).build().intercept(&Uri::from_static("https://any"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::Request;
    use kube::Config;
    use kube::client::Body;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::sync::oneshot;
    use tokio::task::JoinHandle;
    use tower::{BoxError, ServiceExt};

    use super::*;
    use crate::cluster::{Clock, Expired, Fence, stack};

    /// Reads up to a text that comes at the end of something, or to the connection's end.
    async fn up_to(stream: &mut (impl AsyncReadExt + Unpin), end: &str) -> String {
        let mut read = Vec::new();
        while !read.ends_with(end.as_bytes()) && stream.read_buf(&mut read).await.unwrap_or(0) > 0 {}
        String::from_utf8(read).unwrap()
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
            stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.unwrap();
            let arrived = up_to(&mut stream, "content").await;
            if !arrived.is_empty() {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
            }
            arrived
        });
        (address, open, was_asked, server)
    }

    /// A request, under a claim, to a server whose name only the proxy knows.
    fn post(proxy: &str, fence: &Fence) -> JoinHandle<Result<u16, BoxError>> {
        let mut config = Config::new(Uri::from_static("http://hub.invalid:6443"));
        config.proxy_url = Some(format!("http://me:word@{proxy}").parse().unwrap());
        let long = Duration::from_mins(1);
        let (transport, _client) = stack::connect(config, long, long).unwrap();
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

    fn taken(server: &str, environment: &[(&str, &str)]) -> Option<String> {
        let variable =
            |name: &str| environment.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        of_environment(&server.parse().unwrap(), variable).map(|proxy| proxy.to_string())
    }

    #[test]
    fn the_environments_proxy_is_taken_but_for_whom_no_proxy_names() {
        let set =
            [("HTTPS_PROXY", "http://me:word@proxy.test:3128"), ("NO_PROXY", "10.0.0.0/8, .inside.test,edge.test")];
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
}
