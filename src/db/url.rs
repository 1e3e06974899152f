//! The URL of a database, as libpq and pgx write it.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

/// Connections of the pool where the URL does not say: one for each family of status sync, and two to spare.
pub(super) const DEFAULT_MAX_CONNECTIONS: u32 = 8;
/// More than any server takes is a slip of the pen.
const MOST_CONNECTIONS: u32 = 10_000;
/// Where the URL does not say; longer only keeps a report of an outage waiting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Idle connections are probed after this, so that a database that vanished without a word is noticed.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(10);
/// Unacknowledged data for so long ends a connection.
const USER_TIMEOUT: Duration = Duration::from_secs(20);

/// How TLS is used, by libpq's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TlsMode {
    /// Never.
    Disable,
    /// Only where the server refuses to do without.
    Allow,
    /// Where the server has it. The default.
    Prefer,
    /// Always; the certificate is verified only where `sslrootcert` is given.
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

/// Whose signatures are trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Roots {
    /// `sslrootcert` is not given, or `system`.
    System,
    /// A file.
    File(PathBuf),
}

/// Where a database is and who asks. It holds a password: `Debug` and `Display` tell the place only.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseUrl {
    pub(super) config: Config,
    pub(super) tls: TlsMode,
    pub(super) roots: Roots,
    /// Certificate and key of the client.
    pub(super) client: Option<(PathBuf, PathBuf)>,
    pub(super) max_connections: u32,
}

/// Why a text is no URL of a database. Nothing of the text is repeated: it may hold a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidUrl {
    /// Another scheme, or none.
    #[error("it does not begin with postgres:// or postgresql://")]
    Scheme,
    /// A parameter that is not `name=value`, or badly escaped.
    #[error("its parameters, behind the ?, are not all of the form name=value, or one is badly escaped (% is %25)")]
    Parameters,
    /// A parameter with a value that it can't have.
    #[error("its parameter {parameter} is not {allowed}")]
    Value {
        /// The parameter's name.
        parameter: &'static str,
        /// What it can be.
        allowed: &'static str,
    },
    /// No host.
    #[error("it names no host between // and the database")]
    NoHost,
    /// The driver's objection.
    #[error("{0}")]
    Driver(String),
}

impl DatabaseUrl {
    /// Host, port and database, which are no secret.
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

    /// `sslmode`.
    pub fn tls(&self) -> TlsMode {
        self.tls
    }

    /// How long making a connection may take in all: `connect_timeout` for reaching each of the hosts, and once more
    /// for the rest.
    pub(super) fn longest_connecting(&self) -> Duration {
        let each = self.config.get_connect_timeout().copied().unwrap_or(CONNECT_TIMEOUT);
        let hosts = u32::try_from(self.config.get_hosts().len()).unwrap_or(1).max(1);
        each.saturating_mul(hosts.saturating_add(1))
    }

    /// `pool_max_conns`: most connections of the pool.
    pub fn max_connections(&self) -> u32 {
        self.max_connections
    }
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
        if !text.starts_with("postgres://") && !text.starts_with("postgresql://") {
            return Err(InvalidUrl::Scheme);
        }
        let (base, query) = text.split_once('?').unwrap_or((text, ""));
        let mut ours = Parameters::default();
        let mut theirs = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').ok_or(InvalidUrl::Parameters)?;
            if !ours.take(name, &unescape(value)?)? {
                theirs.push(pair);
            }
        }
        let kept = if theirs.is_empty() { base.to_owned() } else { format!("{base}?{}", theirs.join("&")) };
        let mut config: Config = kept.parse().map_err(|error: tokio_postgres::Error| {
            let reason = std::error::Error::source(&error).map(ToString::to_string);
            InvalidUrl::Driver(reason.unwrap_or_else(|| error.to_string()))
        })?;
        if config.get_hosts().is_empty() {
            return Err(InvalidUrl::NoHost);
        }
        config.application_name(config.get_application_name().map_or_else(|| "towline".to_owned(), str::to_owned));
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        config.keepalives_idle(KEEPALIVE_AFTER).tcp_user_timeout(USER_TIMEOUT);
        let tls = match (&ours.roots, ours.tls) {
            // libpq's: whom everybody trusts is no proof of who it is, without the name.
            (Some(Roots::System), None | Some(TlsMode::VerifyFull)) => TlsMode::VerifyFull,
            (Some(Roots::System), Some(_)) => {
                let allowed = "verify-full, which alone goes with sslrootcert=system";
                return Err(InvalidUrl::Value { parameter: "sslmode", allowed });
            }
            (_, tls) => tls.unwrap_or(TlsMode::Prefer),
        };
        config.ssl_mode(match tls {
            TlsMode::Disable | TlsMode::Allow => SslMode::Disable,
            TlsMode::Prefer => SslMode::Prefer,
            TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull => SslMode::Require,
        });
        // libpq's: with a root file, `require` verifies like `verify-ca`.
        let verified = tls == TlsMode::Require && matches!(ours.roots, Some(Roots::File(_)));
        let client = match (ours.certificate, ours.key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err(InvalidUrl::Value { parameter: "sslcert", allowed: "given together with sslkey" }),
        };
        Ok(Self {
            config,
            tls: if verified { TlsMode::VerifyCa } else { tls },
            roots: ours.roots.unwrap_or(Roots::System),
            client,
            max_connections: ours.max_connections.unwrap_or(DEFAULT_MAX_CONNECTIONS),
        })
    }
}

/// The parameters that the driver does not know, or knows too few words of.
#[derive(Default)]
struct Parameters {
    tls: Option<TlsMode>,
    roots: Option<Roots>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    max_connections: Option<u32>,
}

impl Parameters {
    /// Returns whether the parameter is one of ours.
    fn take(&mut self, name: &str, value: &str) -> Result<bool, InvalidUrl> {
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
            // What pgx's pool takes beyond that has no counterpart that matters here: idle connections are closed and
            // broken ones replaced without being told.
            "pool_min_conns"
            | "pool_min_idle_conns"
            | "pool_max_conn_lifetime"
            | "pool_max_conn_lifetime_jitter"
            | "pool_max_conn_idle_time"
            | "pool_health_check_period" => {}
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Takes `%xx` back.
fn unescape(text: &str) -> Result<String, InvalidUrl> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|digit| char::from(digit).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else { return Err(InvalidUrl::Parameters) };
        bytes.push(u8::try_from(high * 16 + low).map_err(|_| InvalidUrl::Parameters)?);
    }
    String::from_utf8(bytes).map_err(|_| InvalidUrl::Parameters)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(query: &str) -> Result<DatabaseUrl, InvalidUrl> {
        format!("postgres://hoh:se%2Fcret@db.example:5433/hub{query}").parse()
    }

    #[test]
    fn every_sslmode_is_known_and_prefer_is_the_default() {
        assert_eq!(url("").unwrap().tls, TlsMode::Prefer);
        for (word, mode) in TlsMode::ALL {
            assert_eq!(url(&format!("?sslmode={word}&application_name=x")).unwrap().tls, mode);
        }
        assert!(matches!(url("?sslmode=perhaps"), Err(InvalidUrl::Value { parameter: "sslmode", .. })));
    }

    #[test]
    fn require_verifies_where_it_is_told_by_whom() {
        let url = url("?sslmode=require&sslrootcert=%2Fa%20b.pem").unwrap();
        assert_eq!((url.tls, url.roots), (TlsMode::VerifyCa, Roots::File("/a b.pem".into())));
    }

    #[test]
    fn the_roots_of_the_system_go_with_a_verified_name_and_with_nothing_less() {
        for query in ["?sslrootcert=system", "?sslmode=verify-full&sslrootcert=system"] {
            let url = url(query).unwrap();
            assert_eq!((url.tls, url.roots), (TlsMode::VerifyFull, Roots::System), "{query}");
        }
        for (word, mode) in TlsMode::ALL.into_iter().filter(|(_, mode)| *mode != TlsMode::VerifyFull) {
            let outcome = url(&format!("?sslrootcert=system&sslmode={word}"));
            assert!(matches!(outcome, Err(InvalidUrl::Value { parameter: "sslmode", .. })), "{mode:?}: {outcome:?}");
        }
        assert_eq!(url("?sslmode=verify-ca").unwrap().roots, Roots::System, "where nothing is said of roots");
    }

    #[test]
    fn the_pool_is_bounded_by_the_url() {
        assert_eq!(url("?pool_max_conns=50&pool_max_conn_lifetime=1h").unwrap().max_connections, 50);
        assert_eq!(url("").unwrap().max_connections, DEFAULT_MAX_CONNECTIONS);
        for wrong in ["0", "-1", "many", "10001"] {
            assert!(url(&format!("?pool_max_conns={wrong}")).is_err(), "{wrong}");
        }
    }

    #[test]
    fn no_secret_is_shown() {
        let shown = url("?pool_max_conns=2").unwrap();
        assert_eq!(format!("{shown} {shown:?}"), "db.example:5433/hub DatabaseUrl(db.example:5433/hub)");
        assert_eq!(shown.config.get_password(), Some(b"se/cret".as_slice()));
        for wrong in ["mysql://u:hunter2@h/d", "postgres://u:hunter2@h:port/d", "postgres://u:hunter2@h/d?x=hunter2"] {
            let error = wrong.parse::<DatabaseUrl>().unwrap_err().to_string();
            assert!(!error.contains("hunter2"), "{error}");
        }
        assert_eq!("postgres://".parse::<DatabaseUrl>(), Err(InvalidUrl::NoHost));
    }
}
