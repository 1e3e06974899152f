//! Who a request comes from, and what that caller may do. Pure: a request's head and the grants in force give a [`Caller`].
//!
//! Without `tokens_file` the API listens on loopback alone, and whoever can connect may do everything. A page in a browser on
//! this machine can connect, too, and so can the clients of a proxy on it. Their requests show where they come from, and are
//! refused.

use std::sync::Arc;

use http::HeaderValue;
use http::header::AUTHORIZATION;
use http::request::Parts;

use super::tokens::{ActionScope, Grant, Grants, Namespaces, Role, TokenDigest, digest_of};
use crate::documents::{Problem, ProblemKind, SlotOwner};
use crate::http::foreign;
use crate::job::routes::{Reach, Right, Rights};

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

impl Caller {
    /// The caller of a request without tokens; the problem if it acts on behalf of another party.
    pub fn on_this_machine(request: &Parts) -> Result<Self, Problem> {
        match foreign(request) {
            None => Ok(Self::Local),
            Some(what) => Err(Problem::new(
                ProblemKind::Forbidden,
                format!("without tokens only programs of this machine are served, and the request has {what}"),
            )),
        }
    }

    /// The caller whose token a request has; the problem if it has none that these grants know.
    pub fn with_token(request: &Parts, grants: Arc<Grants>) -> Result<Self, Problem> {
        let digest = bearer(request)?;
        let unknown = || Problem::new(ProblemKind::Unauthenticated, "the token is not known");
        if grants.of(&digest).is_some() { Ok(Self::Bearer { digest, grants }) } else { Err(unknown()) }
    }

    /// Whose token this header has, if these grants know it.
    pub fn named(authorization: &HeaderValue, grants: Arc<Grants>) -> Option<String> {
        let digest = digest_in(authorization.as_bytes())?;
        Some(Self::Bearer { digest, grants }.name()).filter(|name| !name.is_empty())
    }

    /// The same caller under other grants.
    pub fn with(&self, grants: &Arc<Grants>) -> Self {
        match self {
            Self::Local => Self::Local,
            Self::Bearer { digest, .. } => Self::Bearer { digest: *digest, grants: Arc::clone(grants) },
        }
    }

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

    /// The name of the token, as its line of `tokens_file` has it; those of all its lines if they differ. Empty without a token.
    pub fn name(&self) -> String {
        let mut names: Vec<&str> = self.grants().into_iter().flatten().map(|grant| grant.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names.join(",")
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

    /// As whom the caller takes slots.
    pub fn slot_owner(&self) -> SlotOwner {
        SlotOwner { token: self.digest(), is_administrator: self.may(Role::Admin, ActionScope::Everywhere) }
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
    digest_in(value).ok_or_else(|| problem("the header Authorization must be: Bearer TOKEN"))
}

/// The digest of the token in the header's value.
fn digest_in(value: &[u8]) -> Option<TokenDigest> {
    let scheme = value.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case(b"bearer "));
    let token = scheme.and_then(|_| value.get(7..)).map(<[u8]>::trim_ascii).filter(|token| !token.is_empty());
    token.map(digest_of)
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

    #[test]
    fn without_tokens_programs_of_this_machine_are_served_and_nobody_on_whose_behalf_they_ask() {
        let caller = |host| Caller::on_this_machine(&head(&[("host", host)]));
        assert_eq!(caller("localhost:7070").ok(), Some(Caller::Local));
        assert_eq!(caller("evil.example").err().map(|problem| problem.kind), Some(ProblemKind::Forbidden));
    }

    fn grants() -> Arc<Grants> {
        use std::fmt::Write;
        let mut text = "ada write team-a ".to_owned();
        for byte in digest_of(b"sesame") {
            write!(text, "{byte:02x}").expect("a string");
        }
        Arc::new(Grants::parse(&text).expect("a grant"))
    }

    #[test]
    fn with_tokens_a_caller_needs_a_known_one_from_anywhere() {
        let caller = |headers: &[(&str, &str)]| Caller::with_token(&head(headers), grants());
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
}
