//! The connection string of a database in the forms of libpq and pgx: a URL, or keywords and values.
//!
//! The driver reads both. What it does not know, or knows too few values of, is taken out before. Every name is looked up
//! here, too: the driver's error would repeat an unknown one, which may be part of a password.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

use crate::config::fault::nearest;
use crate::config::url::ServerUrl;

/// Default size of the pool: one connection for each family of status sync, and two spare ones.
pub(super) const DEFAULT_MAX_CONNECTIONS: u32 = 8;
/// Default of `connect_timeout`; a longer one would only delay the report of an outage.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Idle connections are probed after this, to notice a database that vanished without closing them.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(10);
/// Data that is not acknowledged for this long ends a connection.
const USER_TIMEOUT: Duration = Duration::from_secs(20);
/// A larger number is a typing error: no server accepts so many.
const MOST_CONNECTIONS: u32 = 10_000;

/// Parameters that are read here.
const OURS: [&str; 5] = ["sslmode", "sslrootcert", "sslcert", "sslkey", "pool_max_conns"];
/// Parameters that the driver reads; libpq's name of `keepalives_retries` is `keepalives_count`.
const DRIVERS: [&str; 19] = [
    "user",
    "password",
    "dbname",
    "options",
    "application_name",
    "sslnegotiation",
    "host",
    "hostaddr",
    "port",
    "connect_timeout",
    "tcp_user_timeout",
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "keepalives_retries",
    "target_session_attrs",
    "channel_binding",
    "load_balance_hosts",
];
/// Parameters of pgx's pool that have no effect: idle connections are closed and broken ones replaced without a setting.
const WITHOUT_EFFECT: [&str; 6] = [
    "pool_min_conns",
    "pool_min_idle_conns",
    "pool_max_conn_lifetime",
    "pool_max_conn_lifetime_jitter",
    "pool_max_conn_idle_time",
    "pool_health_check_period",
];

/// How TLS is used: libpq's `sslmode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsMode {
    Disable,
    /// Only if the server refuses connections without TLS.
    Allow,
    /// If the server offers it. The default.
    Prefer,
    /// Always; the certificate is verified only if `sslrootcert` is given.
    Require,
    /// Always; the certificate must be signed by a known authority.
    VerifyCa,
    /// Always; the certificate must also name the host.
    VerifyFull,
}

impl TlsMode {
    const ALL: [(&'static str, Self); 6] = [
        ("disable", Self::Disable),
        ("allow", Self::Allow),
        ("prefer", Self::Prefer),
        ("require", Self::Require),
        ("verify-ca", Self::VerifyCa),
        ("verify-full", Self::VerifyFull),
    ];
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Roots {
    /// The system's: `sslrootcert` is not given, or is `system`.
    System,
    File(PathBuf),
}

/// The address and account of a database: a `postgres://` URL, or libpq's keywords. It holds a password, so `Debug` and
/// `Display` show only host, port and database.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseUrl {
    pub(super) config: Config,
    pub(super) tls: TlsMode,
    pub(super) roots: Roots,
    /// The client's certificate and key.
    pub(super) client: Option<(PathBuf, PathBuf)>,
    pub(super) max_connections: u32,
}

/// Why a connection string is invalid. No part of it is repeated: it may hold a password.
#[derive(Clone, Debug, thiserror::Error)]
pub enum InvalidUrl {
    /// A URL with another scheme, or neither a URL nor keywords.
    #[error("it is neither a postgres:// or postgresql:// URL nor keywords such as host=db user=me")]
    Scheme,
    /// The user name, the password or the database's name contains a reserved character.
    #[error(
        "its user name, password or database name has a character that must be percent-encoded \
         (@ is %40, / is %2F, ? is %3F, # is %23, % is %25)"
    )]
    Unencoded,
    /// A parameter of a URL that is not `name=value`, or has an invalid escape.
    #[error("a parameter after the ? is not of the form name=value, or has an invalid escape (% is %25)")]
    Parameters,
    #[error(
        "a keyword is not of the form keyword=value, or a quote is not closed (put values with blanks in single quotes, and \
         \\ before ' and \\)"
    )]
    Keywords,
    #[error("its parameter {position} is unknown or not supported{}", hint(suggestion.as_deref()))]
    Unknown {
        /// Its position, from 1. Its name is not repeated.
        position: usize,
        suggestion: Option<String>,
    },
    /// A parameter with a value that is not allowed.
    #[error("its parameter {parameter} must be {allowed}")]
    Value { parameter: &'static str, allowed: &'static str },
    #[error("it names no host")]
    NoHost,
    /// The driver rejects it. Its error names at most the parameter.
    #[error("the driver rejects it")]
    Driver { source: Arc<tokio_postgres::Error> },
}

fn hint(suggestion: Option<&str>) -> String {
    suggestion.map_or_else(String::new, |suggestion| format!("; did you mean `{suggestion}`?"))
}

impl DatabaseUrl {
    /// Host, port and database, which are not secret.
    pub fn place(&self) -> String {
        let host = match self.config.get_hosts().first() {
            Some(Host::Tcp(name)) => name.clone(),
            #[cfg(unix)]
            Some(Host::Unix(path)) => path.display().to_string(),
            None => String::new(),
        };
        let port = self.config.get_ports().first().copied().unwrap_or(5432);
        format!("{host}:{port}/{}", self.config.get_dbname().unwrap_or_default())
    }

    /// Time limit for connecting: `connect_timeout` once for each host, and once more for TLS and login.
    pub(super) fn longest_connecting(&self) -> Duration {
        let each = self.config.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT);
        let hosts = u32::try_from(self.config.get_hosts().len()).unwrap_or(1).max(1);
        each.saturating_mul(hosts.saturating_add(1))
    }
}

impl ServerUrl for DatabaseUrl {
    const NAME: &'static str = "database URL";
}

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.place())
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "DatabaseUrl({})", self.place())
    }
}

impl FromStr for DatabaseUrl {
    type Err = InvalidUrl;

    fn from_str(text: &str) -> Result<Self, InvalidUrl> {
        let mut ours = UrlParameters::default();
        let text = match text.strip_prefix("postgres://").or_else(|| text.strip_prefix("postgresql://")) {
            Some(rest) => url_for_driver(rest, &mut ours)?,
            None => keywords_for_driver(text, &mut ours)?,
        };
        let config = text.parse().map_err(|source| InvalidUrl::Driver { source: Arc::new(source) })?;
        Self::new(config, ours)
    }
}

impl DatabaseUrl {
    /// Applies the defaults, and combines the TLS parameters.
    fn new(mut config: Config, ours: UrlParameters) -> Result<Self, InvalidUrl> {
        if config.get_hosts().is_empty() {
            // Without a host name, a certificate has to name the address.
            for address in config.get_hostaddrs().to_vec() {
                config.host(address.to_string());
            }
        }
        if config.get_hosts().is_empty() {
            return Err(InvalidUrl::NoHost);
        }
        config.application_name(config.get_application_name().map_or_else(|| "towline".to_owned(), str::to_owned));
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        config.keepalives_idle(KEEPALIVE_AFTER).tcp_user_timeout(USER_TIMEOUT);
        let tls = match (&ours.roots, ours.tls) {
            // As in libpq: a publicly trusted issuer proves nothing without the host name.
            (Some(Roots::System), None | Some(TlsMode::VerifyFull)) => TlsMode::VerifyFull,
            (Some(Roots::System), Some(_)) => {
                let allowed = "verify-full with sslrootcert=system";
                return Err(InvalidUrl::Value { parameter: "sslmode", allowed });
            }
            // As in libpq: with a root file, `require` verifies like `verify-ca`.
            (Some(Roots::File(_)), Some(TlsMode::Require)) => TlsMode::VerifyCa,
            (_, tls) => tls.unwrap_or(TlsMode::Prefer),
        };
        // As in libpq: a Unix socket has no TLS.
        let is_local = config.get_hosts().iter().all(|host| matches!(host, Host::Unix(_)));
        let tls = if is_local && config.get_hostaddrs().is_empty() { TlsMode::Disable } else { tls };
        config.ssl_mode(match tls {
            TlsMode::Disable | TlsMode::Allow => SslMode::Disable,
            TlsMode::Prefer => SslMode::Prefer,
            TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull => SslMode::Require,
        });
        let client = match (ours.certificate, ours.key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err(InvalidUrl::Value { parameter: "sslcert", allowed: "given together with sslkey" }),
        };
        Ok(Self {
            config,
            tls,
            roots: ours.roots.unwrap_or(Roots::System),
            client,
            max_connections: ours.max_connections.unwrap_or(DEFAULT_MAX_CONNECTIONS),
        })
    }
}

/// The parameters of a connection string that are read here.
#[derive(Default)]
struct UrlParameters {
    tls: Option<TlsMode>,
    roots: Option<Roots>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    max_connections: Option<u32>,
}

impl UrlParameters {
    /// Stores a parameter, or returns the name by which the driver reads it. `position` counts from 1.
    fn take<'n>(&mut self, position: usize, name: &'n str, value: &str) -> Result<Option<&'n str>, InvalidUrl> {
        match name {
            "sslmode" => {
                let found = TlsMode::ALL.iter().find(|(word, _)| *word == value).map(|(_, mode)| *mode);
                let allowed = "disable, allow, prefer, require, verify-ca or verify-full";
                self.tls = Some(found.ok_or(InvalidUrl::Value { parameter: "sslmode", allowed })?);
            }
            "sslrootcert" if value == "system" => self.roots = Some(Roots::System),
            "sslrootcert" => self.roots = Some(Roots::File(value.into())),
            "sslcert" => self.certificate = Some(value.into()),
            "sslkey" => self.key = Some(value.into()),
            "pool_max_conns" => {
                let number = value.parse().ok().filter(|number| (1..=MOST_CONNECTIONS).contains(number));
                let allowed = "a whole number from 1 to 10000";
                self.max_connections = Some(number.ok_or(InvalidUrl::Value { parameter: "pool_max_conns", allowed })?);
            }
            "keepalives_count" => return Ok(Some("keepalives_retries")),
            name if DRIVERS.contains(&name) => return Ok(Some(name)),
            name if WITHOUT_EFFECT.contains(&name) => {}
            name => {
                let suggestion = nearest(name, OURS.into_iter().chain(DRIVERS));
                return Err(InvalidUrl::Unknown { position, suggestion });
            }
        }
        Ok(None)
    }
}

/// The URL for the driver, without the parameters that are read here; `rest` is the text after the scheme.
fn url_for_driver(rest: &str, ours: &mut UrlParameters) -> Result<String, InvalidUrl> {
    let (base, query) = rest.split_once('?').unwrap_or((rest, ""));
    // The driver ends user and password at the first @, and would resolve the rest of a password as a host name.
    let place = base.split_once('@').map_or(base, |(_, place)| place);
    if place.contains('@') {
        return Err(InvalidUrl::Unencoded);
    }
    let mut theirs = Vec::new();
    for (index, pair) in query.split('&').filter(|pair| !pair.is_empty()).enumerate() {
        let (name, value) = match pair.split_once('=') {
            Some((name, value)) if !name.contains('@') => (name, value),
            // The ? was part of a password: the host follows it.
            _ if pair.contains('@') => return Err(InvalidUrl::Unencoded),
            _ => return Err(InvalidUrl::Parameters),
        };
        if let Some(name) = ours.take(index + 1, &decoded(name)?, &decoded(value)?)? {
            // The driver takes the first @ of the whole text as the end of user and password.
            theirs.push(format!("{name}={}", value.replace('@', "%40")));
        }
    }
    let mark = if theirs.is_empty() { "" } else { "?" };
    Ok(format!("postgres://{base}{mark}{}", theirs.join("&")))
}

/// The keywords for the driver, without those that are read here and those without a value, which mean the default.
fn keywords_for_driver(text: &str, ours: &mut UrlParameters) -> Result<String, InvalidUrl> {
    // Another scheme, or only a password.
    let first = text.split('=').next().unwrap_or_default();
    if first.contains("://") || first.len() == text.len() {
        return Err(InvalidUrl::Scheme);
    }
    let mut theirs = Vec::new();
    for (index, (name, value)) in words(text)?.into_iter().enumerate().filter(|(_, (_, value))| !value.is_empty()) {
        if let Some(name) = ours.take(index + 1, &name, &value)? {
            theirs.push(format!("{name}='{}'", value.replace('\\', "\\\\").replace('\'', "\\'")));
        }
    }
    Ok(theirs.join(" "))
}

/// Splits a string as libpq does: blanks around `=`, values in single quotes, `\` before any character; of a repeated
/// keyword the last value counts. An empty value means the default.
pub(super) fn words(text: &str) -> Result<Vec<(String, String)>, InvalidUrl> {
    let is_blank = |letter: &char| letter.is_ascii_whitespace();
    let mut words: Vec<(String, String)> = Vec::new();
    let mut letters = text.chars().peekable();
    loop {
        while letters.next_if(is_blank).is_some() {}
        let mut name = String::new();
        while let Some(letter) = letters.next_if(|letter| *letter != '=' && !is_blank(letter)) {
            name.push(letter);
        }
        while letters.next_if(is_blank).is_some() {}
        let has_value = letters.next_if_eq(&'=').is_some();
        if name.is_empty() && !has_value && letters.peek().is_none() {
            return Ok(words);
        }
        if name.is_empty() || !has_value {
            return Err(InvalidUrl::Keywords);
        }
        while letters.next_if(is_blank).is_some() {}
        let is_quoted = letters.next_if_eq(&'\'').is_some();
        let mut value = String::new();
        loop {
            match letters.next_if(|letter| is_quoted || !is_blank(letter)) {
                Some('\'') if is_quoted => break,
                Some('\\') => value.extend(letters.next()),
                Some(letter) => value.push(letter),
                None if is_quoted => return Err(InvalidUrl::Keywords),
                None => break,
            }
        }
        words.retain(|(earlier, _)| *earlier != name);
        words.push((name, value));
    }
}

/// Percent-decodes a text; a `%` without two hexadecimal digits is an error.
fn decoded(text: &str) -> Result<String, InvalidUrl> {
    let is_escape = |rest: &str| rest.bytes().take(2).filter(u8::is_ascii_hexdigit).count() == 2;
    if !text.split('%').skip(1).all(is_escape) {
        return Err(InvalidUrl::Parameters);
    }
    let decoded = percent_decode_str(text).decode_utf8().map_err(|_| InvalidUrl::Parameters)?;
    Ok(decoded.into_owned())
}

#[cfg(test)]
mod tests;
