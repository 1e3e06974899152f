//! Who a request comes from, and what that caller may do. Pure: a request's head and the grants in force give a [`Caller`].
//!
//! Without `tokens_file` the API listens on loopback alone, and whoever can connect may do everything. A page in a browser on
//! this machine can connect, too, and so can the clients of a proxy on it. Their requests show where they come from, and are
//! refused.

use std::net::IpAddr;
use std::sync::Arc;

use http::header::{AUTHORIZATION, FORWARDED, HOST, HeaderName, ORIGIN, VIA};
use http::request::Parts;
use http::uri::Authority;
use tokio::sync::watch;

use super::tokens::{ActionScope, Grant, Grants, Namespaces, Role, TokenDigest, digest_of};
use crate::documents::{Problem, ProblemKind};
use crate::job::routes::{Reach, Right, Rights};

/// Set by browsers: how the page that makes the request relates to this server.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// Set by proxies, as are those that begin with [`X_FORWARDED`].
const OF_PROXIES: [HeaderName; 3] = [FORWARDED, VIA, HeaderName::from_static("x-real-ip")];
/// The first letters of further headers of proxies.
const X_FORWARDED: &str = "x-forwarded";

/// How callers are recognized.
#[derive(Clone)]
pub enum Access {
    /// Everybody on this machine may do everything.
    Local,
    Tokens(watch::Receiver<Arc<Grants>>),
}

/// Who a request comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// Somebody on this machine.
    Local,
    Bearer {
        digest: TokenDigest,
        /// The grants in force when the request came.
        grants: Arc<Grants>,
    },
}

impl Access {
    pub fn has_tokens(&self) -> bool {
        matches!(self, Self::Tokens(_))
    }

    /// The caller of a request. The problem is 401 without a known token, and 403 where a local caller acts on behalf of another
    /// party.
    pub fn caller(&self, request: &Parts) -> Result<Caller, Problem> {
        match self {
            Self::Local => match foreign(request) {
                None => Ok(Caller::Local),
                Some(what) => Err(Problem::new(
                    ProblemKind::Forbidden,
                    format!("without tokens only programs of this machine are served, and the request has {what}"),
                )),
            },
            Self::Tokens(grants) => {
                let grants = Arc::clone(&grants.borrow());
                let digest = bearer(request)?;
                let known = grants.of(&digest).is_some();
                let unknown = || Problem::new(ProblemKind::Unauthenticated, "the token is not known");
                if known { Ok(Caller::Bearer { digest, grants }) } else { Err(unknown()) }
            }
        }
    }

    /// Completes when the caller may no longer do this. Never, if everybody may.
    pub async fn lost(&self, caller: &Caller, role: Role, place: ActionScope<'_>) {
        let (Self::Tokens(grants), Caller::Bearer { digest, .. }) = (self, caller) else {
            return std::future::pending().await;
        };
        let mut grants = grants.clone();
        let ended =
            grants.wait_for(|grants| !allow(Some(grants.of(digest).unwrap_or_default()), role, place)).await.is_err();
        if ended {
            // The server ends with what reads the file.
            std::future::pending::<()>().await;
        }
    }
}

impl Caller {
    /// Whether the caller may do what needs this role at this place.
    pub fn may(&self, role: Role, place: ActionScope<'_>) -> bool {
        allow(self.grants(), role, place)
    }

    /// The problem if the caller may not.
    pub fn require(&self, role: Role, place: ActionScope<'_>) -> Result<(), Problem> {
        if self.may(role, place) { Ok(()) } else { Err(Problem::new(ProblemKind::Forbidden, lacks(role, place))) }
    }

    /// The problem if the caller has the role nowhere: known before the body of a request is.
    pub fn require_somewhere(&self, role: Role) -> Result<(), Problem> {
        let has = |grants: &[Grant]| grants.iter().any(|grant| grant.role >= role);
        if self.grants().is_none_or(has) {
            return Ok(());
        }
        Err(Problem::new(ProblemKind::Forbidden, format!("the token does not have the role `{}`", role.as_str())))
    }

    /// Whether the caller is recognized by being on this machine.
    pub fn is_local(&self) -> bool {
        matches!(self, Self::Local)
    }

    pub fn digest(&self) -> Option<TokenDigest> {
        match self {
            Self::Local => None,
            Self::Bearer { digest, .. } => Some(*digest),
        }
    }

    /// The grants; none for a caller who may do everything.
    fn grants(&self) -> Option<&[Grant]> {
        match self {
            Self::Local => None,
            Self::Bearer { digest, grants } => Some(grants.of(digest).unwrap_or_default()),
        }
    }
}

/// As routes of other jobs see it.
impl Rights for Caller {
    fn require(&self, right: Right, namespace: Option<&str>) -> Result<(), Problem> {
        Self::require(self, right.into(), namespace.map_or(ActionScope::Everywhere, ActionScope::Namespace))
    }

    fn reach(&self, right: Right) -> Reach {
        let Some(grants) = self.grants() else { return Reach::Everywhere };
        let (mut names, mut prefixes) = (Vec::new(), Vec::new());
        for grant in grants.iter().filter(|grant| grant.role >= right.into()) {
            match &grant.namespaces {
                Namespaces::All => return Reach::Everywhere,
                Namespaces::Name(name) => names.push(name.clone()),
                Namespaces::Prefix(prefix) => prefixes.push(prefix.clone()),
            }
        }
        Reach::Within { names, prefixes }
    }
}

/// Without grants everything is allowed.
fn allow(grants: Option<&[Grant]>, role: Role, place: ActionScope<'_>) -> bool {
    grants.is_none_or(|grants| grants.iter().any(|grant| grant.allows(role, place)))
}

fn lacks(role: Role, place: ActionScope<'_>) -> String {
    let role = role.as_str();
    match place {
        ActionScope::Everywhere => format!("the token does not have the role `{role}` for all namespaces"),
        ActionScope::Namespace(namespace) => {
            format!("the token does not have the role `{role}` in the namespace `{namespace}`")
        }
    }
}

/// The digest of the one bearer token of a request.
fn bearer(request: &Parts) -> Result<TokenDigest, Problem> {
    let problem = |title: &str| Problem::new(ProblemKind::Unauthenticated, title);
    let mut given = request.headers.get_all(AUTHORIZATION).iter();
    let (first, second) = (given.next(), given.next());
    let value = match (first, second) {
        (Some(value), None) => value.as_bytes(),
        (None, _) => {
            return Err(problem("a token is required: Authorization: Bearer TOKEN (--token-file of the commands)"));
        }
        (Some(_), Some(_)) => return Err(problem("the header Authorization is repeated")),
    };
    let scheme = value.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case(b"bearer "));
    let token = scheme.and_then(|_| value.get(7..)).map(<[u8]>::trim_ascii).filter(|token| !token.is_empty());
    token.map(digest_of).ok_or_else(|| problem("the header Authorization must be: Bearer TOKEN"))
}

/// What shows that a request on loopback is made on behalf of another party.
fn foreign(request: &Parts) -> Option<&'static str> {
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

    fn head(headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::get("/v1/clusters");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).expect("a request").into_parts().0
    }

    fn denied(headers: &[(&str, &str)]) -> Option<ProblemKind> {
        Access::Local.caller(&head(headers)).err().map(|problem| problem.kind)
    }

    #[test]
    fn without_tokens_programs_of_this_machine_are_served() {
        for host in ["localhost:7070", "LOCALHOST", "127.0.0.1:7070", "127.8.8.8", "[::1]:7070", "[::ffff:127.0.0.1]"] {
            assert_eq!(denied(&[("host", host)]), None, "{host}");
        }
        for host in
            ["evil.example:7070", "127.0.0.1.evil.example", "192.0.2.1:7070", "localhost.evil.example", "", "a b"]
        {
            assert_eq!(denied(&[("host", host)]), Some(ProblemKind::Forbidden), "{host}");
        }
        assert_eq!(denied(&[]), Some(ProblemKind::Forbidden), "no host at all");
        assert_eq!(denied(&[("host", "localhost"), ("host", "evil.example")]), Some(ProblemKind::Forbidden));
    }

    #[test]
    fn without_tokens_foreign_pages_and_proxies_are_refused() {
        let host = ("host", "127.0.0.1:7070");
        for own in [("origin", "http://127.0.0.1:7070"), ("sec-fetch-site", "same-origin"), ("sec-fetch-site", "none")]
        {
            assert_eq!(denied(&[host, own]), None, "{own:?}");
        }
        for foreign in [
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
            assert_eq!(denied(&[host, foreign]), Some(ProblemKind::Forbidden), "{foreign:?}");
        }
        let own = ("origin", "http://127.0.0.1:7070");
        assert_eq!(denied(&[host, own, ("origin", "http://evil.example")]), Some(ProblemKind::Forbidden));
    }

    fn grants() -> Arc<Grants> {
        use std::fmt::Write;
        let mut text = "ada write team-a ".to_owned();
        for byte in digest_of(b"sesame") {
            write!(text, "{byte:02x}").expect("a string");
        }
        Arc::new(Grants::parse(&text).expect("a grant"))
    }

    #[tokio::test]
    async fn with_tokens_a_caller_needs_a_known_one_from_anywhere() {
        let (_file, grants) = watch::channel(grants());
        let access = Access::Tokens(grants);
        let caller = |headers: &[(&str, &str)]| access.caller(&head(headers));
        for known in ["Bearer sesame", "bearer sesame", "BEARER  sesame "] {
            let caller = caller(&[("authorization", known), ("via", "proxy")]).expect("a caller");
            assert!(caller.may(Role::Write, ActionScope::Namespace("team-a")), "{known}");
            let denied = caller.require(Role::Write, ActionScope::Namespace("team-b")).expect_err("a problem");
            assert_eq!(denied.kind, ProblemKind::Forbidden);
            assert!(caller.require_somewhere(Role::Write).is_ok() && caller.require_somewhere(Role::Admin).is_err());
        }
        for unknown in ["Bearer open", "Bearer ", "Bearer", "Basic sesame", "sesame", ""] {
            let problem = caller(&[("authorization", unknown)]).expect_err("a problem");
            assert_eq!(problem.kind, ProblemKind::Unauthenticated, "{unknown}");
            assert!(!problem.title.contains("open"), "{}", problem.title);
        }
        for headers in
            [&[("host", "localhost")][..], &[("authorization", "Bearer sesame"), ("authorization", "Bearer sesame")]]
        {
            assert_eq!(caller(headers).expect_err("a problem").kind, ProblemKind::Unauthenticated);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_learns_when_a_grant_is_taken_away() {
        let (file, receiver) = watch::channel(grants());
        let access = Access::Tokens(receiver);
        let caller = access.caller(&head(&[("authorization", "Bearer sesame")])).expect("a caller");
        let lost =
            |place| tokio::time::timeout(std::time::Duration::from_secs(1), access.lost(&caller, Role::Read, place));
        assert!(lost(ActionScope::Namespace("team-a")).await.is_err());
        file.send_replace(Arc::default());
        assert!(lost(ActionScope::Namespace("team-a")).await.is_ok());
    }
}
