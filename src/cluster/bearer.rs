//! The token that a connection's requests carry. It is replaced while the connection stays, so that a rotated token costs
//! no list; a candidate is tried with one request of its own beside the current one.

use std::sync::Arc;

use http::header::AUTHORIZATION;
use http::{HeaderValue, Request};
use parking_lot::RwLock;
use secrecy::{ExposeSecret, SecretString};

/// The token has characters that no header may have. They are not repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the token is empty or has characters that a token can't have")]
pub(super) struct NotAToken;

/// A token as requests carry it. Neither `Debug` nor an error shows it.
#[derive(Clone)]
pub(super) struct Token(HeaderValue);

impl Token {
    /// White space around the token is not part of it: a file usually ends with a line feed.
    pub(super) fn new(token: &SecretString) -> Result<Self, NotAToken> {
        let token = token.expose_secret().trim();
        if token.is_empty() {
            return Err(NotAToken);
        }
        let mut value = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| NotAToken)?;
        value.set_sensitive(true);
        Ok(Self(value))
    }
}

/// The current token; clones share it.
#[derive(Clone)]
pub(super) struct Bearer(Arc<RwLock<Token>>);

impl Bearer {
    pub(super) fn new(token: Token) -> Self {
        Self(Arc::new(RwLock::new(token)))
    }

    /// Requests carry this token from now on, those of watches that go on at their next one.
    pub(super) fn replace(&self, token: Token) {
        *self.0.write() = token;
    }

    /// Puts the request's own candidate on it, or the current token.
    pub(super) fn authorize<B>(&self, mut request: Request<B>) -> Request<B> {
        let token = request.extensions_mut().remove::<Token>().unwrap_or_else(|| self.0.read().clone());
        request.headers_mut().insert(AUTHORIZATION, token.0);
        request
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str) -> Result<Token, NotAToken> {
        Token::new(&SecretString::from(text))
    }

    fn carried(bearer: &Bearer, candidate: Option<Token>) -> String {
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

    #[test]
    fn what_can_not_be_in_a_header_is_refused_and_not_repeated() {
        for text in ["", " \n", "can\nary", "can\u{0}ary"] {
            let error = token(text).err().expect("refused");
            assert!(!error.to_string().contains("ary"), "{error}");
        }
    }
}
