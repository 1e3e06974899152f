//! Whether a request names this server as its own clients do, and whether one on loopback is of this machine's own programs. A page in a browser on this machine can connect, too, and so can
//! the clients of a proxy on it. Their requests show where they come from.

use std::net::IpAddr;

use http::HeaderMap;
use http::header::{FORWARDED, HOST, HeaderName, ORIGIN, VIA};
use http::request::Parts;
use http::uri::Authority;

/// Set by browsers: how the page that makes the request relates to this server.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// Set by proxies, as are those that begin with [`X_FORWARDED`].
const OF_PROXIES: [HeaderName; 3] = [FORWARDED, VIA, HeaderName::from_static("x-real-ip")];
/// The first letters of further headers of proxies.
const X_FORWARDED: &str = "x-forwarded";

/// Returns which header or address shows that a proxy or a page in a browser has made this request on loopback, if one does.
pub fn foreign(request: &Parts) -> Option<&'static str> {
    let is_of_proxy = |header: &HeaderName| OF_PROXIES.contains(header) || header.as_str().starts_with(X_FORWARDED);
    if request.headers.keys().any(is_of_proxy) {
        return Some("a header of a proxy");
    }
    let mut hosts = request.headers.get_all(HOST).iter();
    let host = hosts.next().and_then(|host| host.to_str().ok());
    let Some(host) = host.filter(|host| hosts.next().is_none() && is_local(host)) else {
        return Some("a foreign Host");
    };
    if request.uri.authority().is_some_and(|authority| !is_local(authority.as_str())) {
        return Some("a foreign address");
    }
    let of_this_server = |origin: &http::HeaderValue| {
        let origin = origin.as_bytes();
        ["http://", "https://"].iter().any(|scheme| origin.strip_prefix(scheme.as_bytes()) == Some(host.as_bytes()))
    };
    if !request.headers.get_all(ORIGIN).iter().all(of_this_server) {
        return Some("a foreign Origin");
    }
    // `none`: a person has entered the address.
    let is_own = |site: &http::HeaderValue| site == "same-origin" || site == "none";
    if !request.headers.get_all(SEC_FETCH_SITE).iter().all(is_own) {
        return Some("a foreign Sec-Fetch-Site");
    }
    None
}

/// Whether all `Host` headers name a server as those do who are inside its cluster, on its machine or have its address: an address,
/// `localhost`, a name without a dot, a Service, or one of `hosts`. A page in a browser whose own name was made to lead here names itself.
pub fn has_own_host(headers: &HeaderMap, hosts: &[String]) -> bool {
    let is_own = |host: &http::HeaderValue| {
        let Some(authority) = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok()) else { return false };
        let name = authority.host().trim_end_matches('.').to_ascii_lowercase();
        let address = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(&name);
        address.parse::<IpAddr>().is_ok()
            || !name.contains('.')
            || name.strip_suffix(".cluster.local").unwrap_or(&name).rsplit('.').next() == Some("svc")
            || hosts.contains(&name)
    };
    headers.get_all(HOST).iter().all(is_own)
}

/// Whether a host with an optional port is this machine by its name: a page that has made its own name lead here has another.
fn is_local(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host();
    let address = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost")
        || address.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn denied(headers: &[(&str, &str)]) -> bool {
        let mut request = Request::get("/v1/clusters");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        foreign(&request.body(()).expect("a request").into_parts().0).is_some()
    }

    #[test]
    fn programs_of_this_machine_are_served() {
        for host in ["localhost:7070", "LOCALHOST", "127.0.0.1:7070", "127.8.8.8", "[::1]:7070", "[::ffff:127.0.0.1]"] {
            assert!(!denied(&[("host", host)]), "{host}");
        }
        for host in
            ["evil.example:7070", "127.0.0.1.evil.example", "192.0.2.1:7070", "localhost.evil.example", "", "a b"]
        {
            assert!(denied(&[("host", host)]), "{host}");
        }
        assert!(denied(&[]), "no host at all");
        assert!(denied(&[("host", "localhost"), ("host", "evil.example")]));
    }

    #[test]
    fn a_host_is_own_if_no_page_of_elsewhere_can_have_it() {
        let hosts = ["edge-1.example.com".to_owned()];
        let is_own = |host: &str| {
            let mut headers = HeaderMap::new();
            headers.append(HOST, host.parse().expect("a value"));
            has_own_host(&headers, &hosts)
        };
        for own in [
            "127.0.0.1:8384",
            "10.0.0.7",
            "[::1]:8384",
            "[2001:db8::1]",
            "localhost:8384",
            "towline",
            "TOWLINE:8384",
            "towline.edge.svc",
            "towline.edge.svc:8384",
            "towline.edge.svc.cluster.local.",
            "edge-1.example.com:8384",
            "Edge-1.Example.com",
        ] {
            assert!(is_own(own), "{own}");
        }
        for foreign in [
            "evil.example",
            "evil.example:8384",
            "127.0.0.1.evil.example",
            "towline.svc.evil.example",
            ".svc.evil.example",
            "edge-2.example.com",
            "x.edge-1.example.com",
            "a b",
            "",
        ] {
            assert!(!is_own(foreign), "{foreign}");
        }
        assert!(has_own_host(&HeaderMap::new(), &[]), "a browser always sends one");
        let mut two = HeaderMap::new();
        two.append(HOST, "localhost".parse().expect("a value"));
        two.append(HOST, "evil.example".parse().expect("a value"));
        assert!(!has_own_host(&two, &[]));
    }

    #[test]
    fn foreign_pages_and_proxies_are_refused() {
        let host = ("host", "127.0.0.1:7070");
        for own in [("origin", "http://127.0.0.1:7070"), ("sec-fetch-site", "same-origin"), ("sec-fetch-site", "none")]
        {
            assert!(!denied(&[host, own]), "{own:?}");
        }
        for header in [
            ("origin", "http://evil.example"),
            ("origin", "http://127.0.0.1:7071"),
            ("origin", "null"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
            ("forwarded", "for=192.0.2.1"),
            ("x-forwarded-for", "192.0.2.1"),
            ("x-forwarded-host", "hub.example"),
            ("x-forwarded-proto", "https"),
            ("x-real-ip", "192.0.2.1"),
            ("via", "1.1 proxy"),
        ] {
            assert!(denied(&[host, header]), "{header:?}");
        }
        let own = ("origin", "http://127.0.0.1:7070");
        assert!(denied(&[host, own, ("origin", "http://evil.example")]));
    }
}
