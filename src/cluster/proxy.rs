//! The proxy between this process and a cluster, chosen as kubectl does.
//!
//! A kubeconfig's `proxy-url` counts for its cluster whatever the environment says. Without one it is `HTTPS_PROXY`
//! (`HTTP_PROXY` for a server without TLS), unless `NO_PROXY` names the server or the server is this machine. kube, as it
//! is built here, reads `HTTPS_PROXY` and knows no `NO_PROXY`, and with its own support for proxies it would hold
//! `NO_PROXY` against the proxy's name in the place of the server's. So what it found counts only where the kubeconfig
//! itself names a proxy. A proxy that is spoken to through TLS proves who it is by the cluster's certificate authority.

use http::Uri;
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use kube::config::{KubeConfigOptions, Kubeconfig};

/// Where a SOCKS proxy listens that names no port (RFC 1928), also for kubectl.
const SOCKS_PORT: &str = ":1080";

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
    let (scheme, authority) = (proxy.scheme_str()?, proxy.authority()?);
    // That of the two others the connection knows.
    let port = match scheme {
        "http" | "https" => "",
        "socks5" | "socks5h" if proxy.port().is_some() => "",
        "socks5" | "socks5h" => SOCKS_PORT,
        _ => return None,
    };
    // For every server.
    let proxy = format!("{scheme}://{}{port}", authority.as_str().trim_end_matches(':'));
    Matcher::builder().all(proxy).build().intercept(&Uri::from_static("https://any"))
}

#[cfg(test)]
mod tests;
