//! The URL of a broker, `amqp://user:password@host:port/vhost?cacertfile=…` as `RabbitMQ`'s clients write it, and where it comes from.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use http::Uri;
use percent_encoding::percent_decode_str;
use secrecy::{ExposeSecret, SecretString};

use crate::config::url::{ServerUrl, UrlSource};

/// Where a broker is, and who connects. `Debug` does not show the password.
#[derive(Clone)]
pub struct AmqpUrl {
    pub(super) is_tls: bool,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) user: String,
    pub(super) password: SecretString,
    pub(super) vhost: String,
    pub(super) files: TlsFiles,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TlsFiles {
    /// `cacertfile`: authorities to trust beside the system's.
    pub(super) authorities: Option<PathBuf>,
    /// `certfile` and `keyfile`: what the client shows.
    pub(super) identity: Option<(PathBuf, PathBuf)>,
}

/// Where its URL comes from.
pub type AmqpSource = UrlSource<AmqpUrl>;

/// What is wrong with a URL. It does not repeat it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidUrl {
    #[error("it is no URL with a scheme and a host")]
    Form,
    #[error("its scheme is neither amqp nor amqps")]
    Scheme,
    #[error("its {0} is not percent-encoded UTF-8")]
    Encoding(&'static str),
    #[error("a slash in the virtual host is written %2F")]
    VirtualHost,
    #[error("parameter {0}; cacertfile, certfile and keyfile are known")]
    Parameter(String),
    #[error("certificates are for amqps:// only")]
    NoTls,
    #[error("certfile and keyfile need each other")]
    HalfAnIdentity,
}

impl AmqpUrl {
    /// Host, port and virtual host.
    pub fn place(&self) -> String {
        format!("{}:{}/{}", self.host, self.port, self.vhost)
    }

    /// Whether what is sent can be read on the way: there is no TLS, and the host is not this one.
    pub fn is_exposed(&self) -> bool {
        let bare = self.host.trim_matches(['[', ']']);
        let is_loopback = bare == "localhost" || bare.parse().is_ok_and(|host: std::net::IpAddr| host.is_loopback());
        !self.is_tls && !is_loopback
    }
}

impl ServerUrl for AmqpUrl {
    const NAME: &'static str = "broker URL";
}

impl fmt::Display for AmqpUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.place())
    }
}

fn decoded(part: &'static str, text: &str) -> Result<String, InvalidUrl> {
    percent_decode_str(text).decode_utf8().map(Into::into).map_err(|_| InvalidUrl::Encoding(part))
}

impl FromStr for AmqpUrl {
    type Err = InvalidUrl;

    fn from_str(text: &str) -> Result<Self, InvalidUrl> {
        let uri: Uri = text.parse().map_err(|_| InvalidUrl::Form)?;
        let is_tls = match uri.scheme_str() {
            Some("amqp") => false,
            Some("amqps") => true,
            Some(_) => return Err(InvalidUrl::Scheme),
            None => return Err(InvalidUrl::Form),
        };
        let authority = uri.authority().ok_or(InvalidUrl::Form)?;
        if authority.host().is_empty() {
            return Err(InvalidUrl::Form);
        }
        let account = authority.as_str().rsplit_once('@').map(|(account, _)| account);
        let (user, password) = match account {
            Some(account) => account.split_once(':').unwrap_or((account, "")),
            None => ("guest", "guest"),
        };
        let vhost = match uri.path().strip_prefix('/').unwrap_or_default() {
            // Most programs read the absence of a path so, and many a URL ends with a slash by habit.
            "" => "/".to_owned(),
            path if path.contains('/') => return Err(InvalidUrl::VirtualHost),
            path => decoded("virtual host", path)?,
        };
        Ok(Self {
            is_tls,
            host: authority.host().to_owned(),
            port: authority.port_u16().unwrap_or(if is_tls { 5671 } else { 5672 }),
            user: decoded("user", user)?,
            password: decoded("password", password)?.into(),
            vhost,
            files: TlsFiles::read(uri.query().unwrap_or_default(), is_tls)?,
        })
    }
}

impl TlsFiles {
    fn read(query: &str, is_tls: bool) -> Result<Self, InvalidUrl> {
        let (mut authorities, mut certificate, mut key) = (None, None, None);
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let place = match name {
                "cacertfile" => &mut authorities,
                "certfile" => &mut certificate,
                "keyfile" => &mut key,
                other => return Err(InvalidUrl::Parameter(other.to_owned())),
            };
            if !is_tls {
                return Err(InvalidUrl::NoTls);
            }
            *place = Some(PathBuf::from(decoded("query", value)?));
        }
        let identity = match (certificate, key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err(InvalidUrl::HalfAnIdentity),
        };
        Ok(Self { authorities, identity })
    }
}

impl PartialEq for AmqpUrl {
    fn eq(&self, other: &Self) -> bool {
        let of = |url: &Self| (url.is_tls, url.host.clone(), url.port, url.user.clone(), url.vhost.clone());
        of(self) == of(other)
            && self.files == other.files
            && self.password.expose_secret() == other.password.expose_secret()
    }
}

impl Eq for AmqpUrl {}

impl fmt::Debug for AmqpUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("AmqpUrl");
        shown.field("place", &self.place()).field("user", &self.user).field("is_tls", &self.is_tls);
        shown.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<AmqpUrl, InvalidUrl> {
        text.parse()
    }

    #[test]
    fn a_host_is_enough() {
        let url = parse("amqp://broker").expect("a URL");
        assert_eq!((url.place().as_str(), url.user.as_str(), url.is_tls), ("broker:5672//", "guest", false));
        assert_eq!(parse("amqps://broker/").expect("a URL").place(), "broker:5671//");
    }

    #[test]
    fn every_part_is_read_and_the_password_is_not_shown() {
        let text = "amqps://us%40er:p%2Fa%3Ass@[::1]:7/v%2Fh?cacertfile=/ca%20x&certfile=/c&keyfile=/k";
        let url = parse(text).expect("a URL");
        assert_eq!((url.place().as_str(), url.user.as_str()), ("[::1]:7/v/h", "us@er"));
        assert_eq!(url.password.expose_secret(), "p/a:ss");
        let identity = Some(("/c".into(), "/k".into()));
        assert_eq!(url.files, TlsFiles { authorities: Some("/ca x".into()), identity });
        let shown = format!("{url:?} {:?}", super::super::AmqpSource::Url(Box::new(url.clone())));
        assert!(!shown.contains("a:ss") && shown.contains("us@er"), "{shown}");
    }

    #[test]
    fn what_is_wrong_is_told_without_the_url() {
        for (text, expected) in [
            ("broker:5672", InvalidUrl::Form),
            ("amqp:///x", InvalidUrl::Form),
            ("http://user:hunter2@broker", InvalidUrl::Scheme),
            ("amqp://user:%ff@broker", InvalidUrl::Encoding("password")),
            ("amqp://broker/a/b", InvalidUrl::VirtualHost),
            ("amqps://broker?verify=x", InvalidUrl::Parameter("verify".to_owned())),
            ("amqp://broker?cacertfile=/x", InvalidUrl::NoTls),
            ("amqps://broker?certfile=/x", InvalidUrl::HalfAnIdentity),
        ] {
            assert_eq!(parse(text), Err(expected), "{text}");
        }
    }

    #[test]
    fn plain_text_to_another_host_is_exposed() {
        for (text, expected) in [
            ("amqp://broker", true),
            ("amqp://192.0.2.1", true),
            ("amqps://broker", false),
            ("amqp://localhost", false),
            ("amqp://127.0.0.9", false),
            ("amqp://[::1]", false),
        ] {
            assert_eq!(parse(text).expect("a URL").is_exposed(), expected, "{text}");
        }
    }
}
