//! libpq's `keyword=value` strings, and the parameters that both forms of a connection string share.

use std::path::PathBuf;

use super::url::{InvalidUrl, Roots, TlsMode};
use crate::config::fault::nearest;

/// A larger number is a typing error: no server accepts so many.
const MOST_CONNECTIONS: u32 = 10_000;

/// Parameters that are handled here, since the driver does not know them or supports too few of their values.
const OURS: [&str; 5] = ["sslmode", "sslrootcert", "sslcert", "sslkey", "pool_max_conns"];
/// Parameters that are passed to the driver.
const DRIVERS: [&str; 17] = [
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
    "keepalives_retries",
    "target_session_attrs",
    "channel_binding",
];
/// Passed to the driver, too; libpq has it since version 16.
const LOAD_BALANCE: &str = "load_balance_hosts";
/// libpq's name for the driver's `keepalives_retries`.
const KEEPALIVES_COUNT: &str = "keepalives_count";
/// Further parameters of pgx's pool are accepted and have no effect: idle connections are closed and broken ones replaced
/// without a setting.
const WITHOUT_EFFECT: [&str; 6] = [
    "pool_min_conns",
    "pool_min_idle_conns",
    "pool_max_conn_lifetime",
    "pool_max_conn_lifetime_jitter",
    "pool_max_conn_idle_time",
    "pool_health_check_period",
];
/// Parameters of libpq that are not supported.
const UNSUPPORTED: [&str; 29] = [
    "passfile",
    "require_auth",
    "client_encoding",
    "fallback_application_name",
    "replication",
    "gssencmode",
    "gsslib",
    "gssdelegation",
    "krbsrvname",
    "requiressl",
    "requirepeer",
    "service",
    "servicefile",
    "sslcompression",
    "sslkeylogfile",
    "sslpassword",
    "sslcertmode",
    "sslcrl",
    "sslcrldir",
    "sslsni",
    "ssl_min_protocol_version",
    "ssl_max_protocol_version",
    "min_protocol_version",
    "max_protocol_version",
    "scram_client_key",
    "scram_server_key",
    "oauth_issuer",
    "oauth_client_id",
    "oauth_client_secret",
];

/// The parameters of a connection string that are handled here.
#[derive(Default)]
pub(super) struct Parameters {
    pub(super) tls: Option<TlsMode>,
    pub(super) roots: Option<Roots>,
    pub(super) certificate: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
    pub(super) max_connections: Option<u32>,
}

/// Which side reads a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reader {
    /// [`Parameters`] has stored it.
    Ours,
    /// The driver, by this name.
    Driver(&'static str),
}

impl Parameters {
    /// Stores a parameter, or returns that it belongs to the driver. `position` counts from 1: the name of an unknown
    /// parameter is never repeated, since it may be part of a password that was not quoted or not percent-encoded.
    pub(super) fn take(&mut self, position: usize, name: &str, value: &str) -> Result<Reader, InvalidUrl> {
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
            KEEPALIVES_COUNT => return Ok(Reader::Driver("keepalives_retries")),
            LOAD_BALANCE => return Ok(Reader::Driver(LOAD_BALANCE)),
            name if WITHOUT_EFFECT.contains(&name) => {}
            name => {
                if let Some(known) = DRIVERS.iter().find(|known| **known == name) {
                    return Ok(Reader::Driver(known));
                }
                if let Some(parameter) = UNSUPPORTED.iter().find(|known| **known == name) {
                    return Err(InvalidUrl::Unsupported { parameter });
                }
                let known = OURS.into_iter().chain(DRIVERS).chain([LOAD_BALANCE]);
                return Err(InvalidUrl::Unknown { position, suggestion: nearest(name, known) });
            }
        }
        Ok(Reader::Ours)
    }
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

/// A keyword and value, quoted for the driver.
pub(super) fn quoted(name: &str, value: &str) -> String {
    format!("{name}='{}'", value.replace('\\', "\\\\").replace('\'', "\\'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<(String, String)> {
        words(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn words_are_read_as_libpq_reads_them() {
        assert_eq!(read(""), []);
        assert_eq!(read("  \n"), []);
        assert_eq!(
            read("host=db  port = 5433\tdbname='the hub'"),
            [pair("host", "db"), pair("port", "5433"), pair("dbname", "the hub")]
        );
        assert_eq!(read(r"password=a\ b\'c\\d user=u"), [pair("password", r"a b'c\d"), pair("user", "u")]);
        assert_eq!(read(r"password='it\'s \\ a=b' user=u"), [pair("password", r"it's \ a=b"), pair("user", "u")]);
        assert_eq!(read("host='a'port=1"), [pair("host", "a"), pair("port", "1")]);
        assert_eq!(read("user=one host=h user=two"), [pair("host", "h"), pair("user", "two")]);
        assert_eq!(read("host='' user="), [pair("host", ""), pair("user", "")]);
        assert_eq!(read("password= secret"), [pair("password", "secret")], "libpq skips blanks behind =");
    }

    #[test]
    fn malformed_keywords_are_refused() {
        for wrong in ["host", "host=a port", "=a", "host=a =b", "password='open", r"password='open\'", "a b=c"] {
            assert!(matches!(words(wrong), Err(InvalidUrl::Keywords)), "{wrong}");
        }
    }

    #[test]
    fn quoted_values_are_read_back() {
        for value in ["", "plain", "it's", r"back\slash", r"\'", "a b=c"] {
            assert_eq!(read(&quoted("password", value)), [pair("password", value)]);
        }
    }

    #[test]
    fn every_known_name_has_one_reader() {
        let mut parameters = Parameters::default();
        for name in DRIVERS {
            assert_eq!(parameters.take(1, name, "x").unwrap(), Reader::Driver(name));
        }
        for name in WITHOUT_EFFECT {
            assert_eq!(parameters.take(1, name, "x").unwrap(), Reader::Ours);
        }
        assert_eq!(parameters.take(1, "keepalives_count", "3").unwrap(), Reader::Driver("keepalives_retries"));
        for name in UNSUPPORTED {
            let error = parameters.take(1, name, "x").expect_err("it is not supported");
            assert!(matches!(error, InvalidUrl::Unsupported { parameter } if parameter == name), "{error:?}");
        }
    }

    #[test]
    fn an_unknown_name_is_not_repeated_but_what_was_probably_meant_is_told() {
        let mut parameters = Parameters::default();
        for (name, meant) in
            [("ssl_mode", Some("sslmode")), ("pool_max_con", Some("pool_max_conns")), ("hunter2", None)]
        {
            let error = parameters.take(3, name, "x").expect_err("an unknown name");
            let InvalidUrl::Unknown { position: 3, suggestion } = &error else { panic!("{error:?}") };
            assert_eq!(suggestion.as_deref(), meant);
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }
}
