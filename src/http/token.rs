//! Bearer tokens.

use http::HeaderValue;
use secrecy::{ExposeSecret, SecretString};

/// The token is empty, or has characters that are not allowed in a header. They are not repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the token is empty or contains invalid characters")]
pub struct NotAToken;

/// A bearer token. Neither `Debug` nor an error shows it.
#[derive(Clone)]
pub struct BearerToken(HeaderValue);

impl BearerToken {
    /// White space around the token is ignored: a file usually ends with a line feed.
    pub fn new(token: &SecretString) -> Result<Self, NotAToken> {
        let token = token.expose_secret().trim();
        if token.is_empty() {
            return Err(NotAToken);
        }
        let mut value = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| NotAToken)?;
        value.set_sensitive(true);
        Ok(Self(value))
    }

    /// The value of the header `authorization`.
    pub fn into_header(self) -> HeaderValue {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_tokens_are_refused_and_not_repeated() {
        for text in ["", " \n", "can\nary", "can\u{0}ary"] {
            let error = BearerToken::new(&SecretString::from(text)).err().expect("refused");
            assert!(!error.to_string().contains("ary"), "{error}");
        }
    }
}
