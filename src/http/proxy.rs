//! The proxy between this process and a server: which one the environment names, and how to connect through it.
//!
//! The environment is read as kubectl reads it: `HTTPS_PROXY` (`HTTP_PROXY` for a server without TLS), unless `NO_PROXY`
//! matches the server or the server is this machine.

use http::Uri;
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use tower::ServiceExt;
use tower::util::BoxCloneSyncService;

use super::connector::{Connector, Tcp, tcp};
use super::networks::{Checked, DeniedNetworks};

/// Default port of a SOCKS proxy (RFC 1928), as in kubectl.
const SOCKS_PORT: &str = ":1080";

/// The environment's proxy for a server, with the user and password of its URL.
pub fn of_environment(server: &Uri, variable: impl Fn(&str) -> Option<String>) -> Option<Uri> {
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

/// Go's clients never use the environment's proxy for this machine.
fn is_this_machine(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// The address of a proxy, separated from the user and password of its URL.
pub struct Proxy(Intercept);

impl Proxy {
    /// The proxy of a URL. None if the scheme is not `http`, `https` or `socks5`.
    pub fn of_url(url: &Uri) -> Option<Self> {
        let (scheme, authority) = (url.scheme_str()?, url.authority()?);
        // The connector knows the default ports of the other two.
        let port = match scheme {
            "http" | "https" => "",
            "socks5" | "socks5h" if url.port().is_some() => "",
            "socks5" | "socks5h" => SOCKS_PORT,
            _ => return None,
        };
        // `NO_PROXY` has been checked: the proxy is for any server.
        let url = format!("{scheme}://{}{port}", authority.as_str().trim_end_matches(':'));
        Matcher::builder().all(url).build().intercept(&Uri::from_static("https://any")).map(Self)
    }

    /// Connects through the proxy's tunnels. `secured` adds TLS to the proxy itself, if its URL requires that. Neither the proxy
    /// nor a server that is named by its address may be in the denied networks; the proxy resolves a server's name.
    pub fn connector<E>(
        &self,
        denied: &DeniedNetworks,
        secured: impl FnOnce(Tcp) -> Result<HttpsConnector<Tcp>, E>,
    ) -> Result<Connector, E> {
        let tunnels = self.tunnels(tcp(denied), secured)?;
        Ok(BoxCloneSyncService::new(Checked::new(tunnels, denied.clone())))
    }

    fn tunnels<E>(
        &self,
        tcp: Tcp,
        secured: impl FnOnce(Tcp) -> Result<HttpsConnector<Tcp>, E>,
    ) -> Result<Connector, E> {
        let Self(proxy) = self;
        let address = proxy.uri().clone();
        Ok(match address.scheme_str() {
            Some("http") => {
                let tunnel = self.authorized(Tunnel::new(address, tcp)).map_request(with_port);
                BoxCloneSyncService::new(tunnel.map_response(MaybeHttpsStream::Http).map_err(Into::into))
            }
            Some("https") => {
                let tunnel = self.authorized(Tunnel::new(address, secured(tcp)?)).map_request(with_port);
                BoxCloneSyncService::new(tunnel.map_err(Into::into))
            }
            _ => {
                let mut socks = SocksV5::new(address, tcp);
                if let Some((user, password)) = proxy.raw_auth() {
                    socks = socks.with_auth(user.to_owned(), password.to_owned());
                }
                let socks = socks.map_request(with_port);
                BoxCloneSyncService::new(socks.map_response(MaybeHttpsStream::Http).map_err(Into::into))
            }
        })
    }

    fn authorized<C>(&self, tunnel: Tunnel<C>) -> Tunnel<C> {
        match self.0.basic_auth() {
            Some(authorization) => tunnel.with_auth(authorization.clone()),
            None => tunnel,
        }
    }
}

/// Adds port 80 to an `http` URL without a port: hyper's tunnels would use 443 for every scheme.
fn with_port(server: Uri) -> Uri {
    let (Some("http"), None, Some(host)) = (server.scheme_str(), server.port(), server.host()) else { return server };
    let Ok(authority) = format!("{host}:80").parse() else { return server };
    let mut parts = server.clone().into_parts();
    parts.authority = Some(authority);
    Uri::from_parts(parts).unwrap_or(server)
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let apart = Proxy::of_url(&proxy.parse().unwrap()).unwrap().0;
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
        let apart = Proxy::of_url(&Uri::from_static("http://me:word@proxy.test:3128")).unwrap().0;
        assert_eq!((apart.uri().to_string().as_str(), apart.raw_auth()), ("http://proxy.test:3128/", None));
        assert_eq!(apart.basic_auth().unwrap(), "Basic bWU6d29yZA==");
        let apart = Proxy::of_url(&Uri::from_static("socks5://me:word@proxy.test:1080")).unwrap().0;
        assert_eq!((apart.uri().host(), apart.raw_auth()), (Some("proxy.test"), Some(("me", "word"))));
        assert!(Proxy::of_url(&Uri::from_static("ftp://proxy.test")).is_none());
    }

    #[test]
    fn a_tunnel_to_a_server_without_tls_and_without_a_port_leads_to_port_80() {
        for (server, expected) in [
            ("http://hub.test/api", Some(80)),
            ("http://[fd00::1]", Some(80)),
            ("http://hub.test:8080", Some(8080)),
            ("https://hub.test", None),
            ("https://hub.test:6443", Some(6443)),
        ] {
            let server: Uri = server.parse().unwrap();
            let with = with_port(server.clone());
            assert_eq!((with.port_u16(), with.host(), with.path()), (expected, server.host(), server.path()));
        }
    }
}
