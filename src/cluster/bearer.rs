//! The bearer token of a connection. It is replaced without a new connection, so that a rotated token causes no list. A
//! candidate is first tried with a request of its own, while all other requests carry the current token.

use std::sync::Arc;

use http::Request;
use http::header::AUTHORIZATION;
use parking_lot::RwLock;

use crate::http::BearerToken;

/// The current token; clones share it.
#[derive(Clone)]
pub(super) struct Bearer(Arc<RwLock<BearerToken>>);

impl Bearer {
    pub(super) fn new(token: BearerToken) -> Self {
        Self(Arc::new(RwLock::new(token)))
    }

    /// All requests carry this token from now on. A running watch carries it in its next request.
    pub(super) fn replace(&self, token: BearerToken) {
        *self.0.write() = token;
    }

    /// Adds the request's own candidate, or else the current token.
    pub(super) fn authorize<B>(&self, mut request: Request<B>) -> Request<B> {
        let token = request.extensions_mut().remove::<BearerToken>().unwrap_or_else(|| self.0.read().clone());
        request.headers_mut().insert(AUTHORIZATION, token.into_header());
        request
    }
}

#[cfg(test)]
mod tests {
    use secrecy::SecretString;

    use super::*;
    use crate::http::NotAToken;

    fn token(text: &str) -> Result<BearerToken, NotAToken> {
        BearerToken::new(&SecretString::from(text))
    }

    fn carried(bearer: &Bearer, candidate: Option<BearerToken>) -> String {
        let mut request = Request::new(());
        if let Some(candidate) = candidate {
            request.extensions_mut().insert(candidate);
        }
        let request = bearer.authorize(request);
        let header = &request.headers()[AUTHORIZATION];
        assert!(header.is_sensitive());
        header.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_candidate_is_carried_by_its_own_request_alone() {
        let bearer = Bearer::new(token("first\n").unwrap());
        assert_eq!(carried(&bearer, token("second").ok()), "Bearer second");
        assert_eq!(carried(&bearer, None), "Bearer first");
        bearer.replace(token("second").unwrap());
        assert_eq!(carried(&bearer, None), "Bearer second");
    }
}
