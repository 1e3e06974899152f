//! The configuration of the hub: `[hub]`.

use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;

use crate::amqp::{AmqpSource, AmqpUrl, InvalidUrl};
use crate::config::SectionName;
use crate::config::fault::{Fault, Problem};
use crate::config::fields::Fields;
use crate::config::setting::{Setting, Unfit, one_of, read_unshown};
use crate::config::source::Node;
use crate::db::DatabaseSource;
use crate::documents::{Keyring, Quota};
use crate::http::{CertificateFiles, Reloaded};
use crate::job;

/// The key of the table, and the name of its section.
pub const HUB: &str = "hub";
/// Default of `listen`.
const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7070);
/// Shortest `log_retention`: clients need time to notice that a watch has ended, and to resume it.
const SHORTEST_LOG_RETENTION: Duration = Duration::from_mins(5);
/// Default of `log_retention`.
const LOG_RETENTION: Duration = Duration::from_hours(1);
const SHORTEST_AUDIT_RETENTION: Duration = Duration::from_hours(1);
/// Default of `audit_retention`.
const AUDIT_RETENTION: Duration = Duration::from_hours(90 * 24);
/// Default of `max_namespace_documents`: ten for each of 10,000 clusters.
const MAX_NAMESPACE_DOCUMENTS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(99_999);
/// Default of `max_namespace_mebibytes`: 20 KiB for each of these.
const MAX_NAMESPACE_MEBIBYTES: NonZeroUsize = NonZeroUsize::MIN.saturating_add(2047);
/// Default of `max_namespace_records`: with full records it is 8 GiB, four times what a namespace may have.
const MAX_NAMESPACE_RECORDS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(999_999);
/// Default of `max_watchers`.
const MAX_WATCHERS: NonZeroUsize = NonZeroUsize::MIN.saturating_add(999);

/// The section `[hub]`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a key")]
pub struct HubConfig {
    /// Name of the section, `hub`.
    pub name: SectionName,
    /// Address of the REST API; `127.0.0.1:7070` by default. None, written as `""`: there is no API. On another address than
    /// loopback, `tokens_file`, `keys_file`, and a certificate or `plaintext` are required.
    pub listen: Option<SocketAddr>,
    /// The database, which must be a primary: `database_url`, or the file `database_url_file`.
    pub database: DatabaseSource,
    /// Whether the API's address has a page at `/ui/`; `true` by default.
    pub ui: bool,
    /// Whether the schema is brought up to date at start; `true` by default. Otherwise `towline migrate` does it, and the
    /// section waits until the schema is there.
    pub migrate: bool,
    /// Certificate and key of the API. None by default: no TLS.
    pub tls: Option<CertificateFiles>,
    /// Accept tokens without TLS, for an API behind a proxy that ends TLS; `false` by default.
    pub plaintext: bool,
    /// Who may do what. None by default: then everybody on this machine may do everything.
    pub tokens_file: Option<PathBuf>,
    /// The keys by which sealed fields are encrypted. None by default: then they are stored as they are.
    pub keys_file: Option<PathBuf>,
    /// Whether values that are stored unencrypted are used although there is a `keys_file`; `false` by default. For the time until
    /// `towline hub rotate-key` has encrypted what was stored before there were keys.
    pub accept_unsealed: bool,
    /// How events are distributed; `postgres` by default.
    pub bus: Bus,
    /// The message broker: `amqp_url`, or the file `amqp_url_file`. Required by the bus `amqp`, and not used otherwise.
    pub amqp: Option<AmqpSource>,
    /// How far back a watch can resume; `1h` by default. The log of the database grows with it.
    pub log_retention: Duration,
    /// How long the database keeps who changed what (`towline history`); `90d` by default. Each change of a document by a client but those of
    /// its status has a record, with up to 8 KiB.
    pub audit_retention: Duration,
    /// Limit of the documents of each namespace; 100,000 by default. Too small: owners of large fleets can't register clusters. Too large:
    /// who may write in one namespace can fill the database.
    pub max_namespace_documents: NonZeroUsize,
    /// Limit of the MiB that they have, uncompressed; 2,048 by default.
    pub max_namespace_mebibytes: NonZeroUsize,
    /// Limit of the records of who changed what in each namespace; 1,000,000 by default. The oldest ones beyond it are dropped, also before
    /// `audit_retention`. Too small: who may write in a namespace can make their traces disappear. Too large: they can fill the database.
    pub max_namespace_records: NonZeroUsize,
    /// Limit of the watches of this process; 1,000 by default. One token may hold at most half of them, and an eighth is left to administrators of everything.
    pub max_watchers: NonZeroUsize,
}

impl HubConfig {
    /// A section whose optional keys have their defaults.
    pub fn new(database: DatabaseSource) -> Self {
        Self {
            name: SectionName::of_table(HUB),
            listen: Some(LISTEN),
            database,
            ui: true,
            migrate: true,
            tls: None,
            plaintext: false,
            tokens_file: None,
            keys_file: None,
            accept_unsealed: false,
            bus: Bus::Postgres,
            amqp: None,
            log_retention: LOG_RETENTION,
            audit_retention: AUDIT_RETENTION,
            max_namespace_documents: MAX_NAMESPACE_DOCUMENTS,
            max_namespace_mebibytes: MAX_NAMESPACE_MEBIBYTES,
            max_namespace_records: MAX_NAMESPACE_RECORDS,
            max_watchers: MAX_WATCHERS,
        }
    }

    /// Reads the section. Returns none if a required key is missing or invalid.
    pub fn read(mut fields: Fields<'_>) -> Option<Self> {
        let before = fields.faults();
        let database = job::database(&mut fields);
        let is_complete = database.is_some();
        // A placeholder for an invalid key, so that the faults of the other keys are found as well.
        let mut section = Self::new(database.unwrap_or(DatabaseSource::File(PathBuf::new())));
        if let Some(Listen(listen)) = fields.optional("listen") {
            section.listen = listen;
        }
        fields.set("ui", &mut section.ui);
        fields.set("migrate", &mut section.migrate);
        section.tls = read_tls(&mut fields);
        fields.set("plaintext", &mut section.plaintext);
        section.tokens_file = fields.optional("tokens_file");
        section.keys_file = fields.optional("keys_file");
        fields.set("accept_unsealed", &mut section.accept_unsealed);
        fields.set("bus", &mut section.bus);
        section.amqp = read_amqp(&mut fields, section.bus);
        fields.set_as::<LogRetention, _>("log_retention", &mut section.log_retention);
        fields.set_as::<AuditRetention, _>("audit_retention", &mut section.audit_retention);
        fields.set("max_namespace_documents", &mut section.max_namespace_documents);
        fields.set("max_namespace_mebibytes", &mut section.max_namespace_mebibytes);
        fields.set("max_namespace_records", &mut section.max_namespace_records);
        fields.set("max_watchers", &mut section.max_watchers);
        if fields.faults() == before {
            section.check(&mut fields);
        }
        fields.finish();
        is_complete.then_some(section)
    }

    /// What each namespace may have.
    pub fn quota(&self) -> Quota {
        let number = |number: NonZeroUsize| u64::try_from(number.get()).unwrap_or(u64::MAX);
        // The database calculates with 63 bits.
        let most = |number: u64| number.min(i64::MAX.unsigned_abs());
        let kib = number(self.max_namespace_mebibytes).saturating_mul(1024);
        Quota { documents: most(number(self.max_namespace_documents)), kib: most(kib) }
    }

    /// The keys that seal fields, which follow their file; none without one.
    pub fn keys(&self) -> Option<Reloaded<Keyring>> {
        let accepts_unsealed = self.accept_unsealed;
        let read = move |text: &SecretString| {
            let keyring = Keyring::parse(text).map_err(|error| error.to_string())?;
            Ok(keyring.accepting_unsealed(accepts_unsealed))
        };
        self.keys_file.clone().map(|path| Reloaded::of_text(path, read, Keyring::unread()))
    }

    /// Whether only this machine can connect to the API.
    pub fn is_local(&self) -> bool {
        self.listen.is_none_or(|address| address.ip().to_canonical().is_loopback())
    }

    /// Whether what is sent to the broker can be read on the way.
    pub fn exposes_events(&self) -> bool {
        let used = self.amqp.as_ref().filter(|_| self.bus == Bus::Amqp);
        used.and_then(|source| source.url().ok()).is_some_and(|url| url.is_exposed())
    }

    /// An API that other machines can connect to must know its callers, encrypt what they send, and store secrets encrypted.
    fn check(&self, fields: &mut Fields<'_>) {
        let Some(listen) = self.listen.filter(|_| !self.is_local()) else { return };
        let mut require = |key: &str, what: &str| {
            let allowed = format!("{what}, since `listen` ({listen}) is not a loopback address");
            fields.fault_at(key, Problem::Missing { allowed });
        };
        if self.tokens_file.is_none() {
            require("tokens_file", "the path of a file with the grants of callers");
        }
        if self.keys_file.is_none() {
            require("keys_file", "the path of a file with keys for sealed fields");
        }
        if self.tls.is_none() && !self.plaintext {
            require("tls_cert", "`tls_cert` and `tls_key`, or `plaintext = true` behind a proxy that ends TLS");
        }
    }
}

/// Both files or none.
fn read_tls(fields: &mut Fields<'_>) -> Option<CertificateFiles> {
    let given = ["tls_cert", "tls_key"].map(|key| fields.has(key));
    let (certificate, key) = (fields.optional("tls_cert"), fields.optional("tls_key"));
    let missing = match given {
        [true, false] => Some(("tls_key", "the path of the key of `tls_cert`")),
        [false, true] => Some(("tls_cert", "the path of the certificate of `tls_key`")),
        _ => None,
    };
    if let Some((key, allowed)) = missing {
        fields.fault_at(key, Problem::Missing { allowed: allowed.to_owned() });
    }
    Some(CertificateFiles { certificate: certificate?, key: key? })
}

/// An address, or empty.
struct Listen(Option<SocketAddr>);

impl Setting for Listen {
    const ALLOWED: &'static str = "an address and a port such as \"127.0.0.1:7070\", or \"\" for no API";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        if text.is_empty() { Ok(Self(None)) } else { SocketAddr::from_text(text).map(|address| Self(Some(address))) }
    }
}

struct LogRetention(Duration);

impl Setting for LogRetention {
    const ALLOWED: &'static str = "a duration from 5m to a year such as \"1h\"";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        let retention = Duration::from_text(text)?;
        if retention >= SHORTEST_LOG_RETENTION { Ok(Self(retention)) } else { Err(Unfit::default()) }
    }
}

impl From<LogRetention> for Duration {
    fn from(retention: LogRetention) -> Self {
        retention.0
    }
}

struct AuditRetention(Duration);

impl Setting for AuditRetention {
    const ALLOWED: &'static str = "a duration from 1h to a year such as \"90d\"";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        let retention = Duration::from_text(text)?;
        if retention >= SHORTEST_AUDIT_RETENTION { Ok(Self(retention)) } else { Err(Unfit::default()) }
    }
}

impl From<AuditRetention> for Duration {
    fn from(retention: AuditRetention) -> Self {
        retention.0
    }
}

// The keys of the section that say how events are distributed.

/// How events are distributed. Work is distributed by the database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bus {
    /// By the database alone.
    #[default]
    Postgres,
    /// By a message broker, too.
    Amqp,
}

impl Setting for Bus {
    const ALLOWED: &'static str = "postgres, amqp";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        one_of(text, &[("postgres", Self::Postgres), ("amqp", Self::Amqp)])
    }
}

/// A URL may contain a password, so faults never repeat it.
impl Setting for AmqpUrl {
    const ALLOWED: &'static str = "a URL such as amqps://user:password@host:5671/vhost?cacertfile=/etc/towline/ca.pem";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        text.parse().map_err(|error: InvalidUrl| Unfit::because(error.to_string()))
    }

    fn read(node: &Node, path: &str, faults: &mut Vec<Fault>) -> Option<Self> {
        read_unshown(node, path, "URL", faults)
    }
}

/// Reads the broker's URL, from at most one of `amqp_url` and `amqp_url_file`. It may be given where it is not used, so that switching
/// takes one key.
pub fn read_amqp(fields: &mut Fields<'_>, bus: Bus) -> Option<AmqpSource> {
    let given = [fields.has("amqp_url"), fields.has("amqp_url_file")];
    let url = fields.optional::<AmqpUrl>("amqp_url").map(|url| AmqpSource::Url(Box::new(url)));
    let file = fields.optional::<PathBuf>("amqp_url_file").map(AmqpSource::File);
    let allowed = || "exactly one of `amqp_url` and `amqp_url_file`".to_owned();
    match given {
        [false, false] if bus == Bus::Amqp => fields.fault_at("amqp_url", Problem::Missing { allowed: allowed() }),
        [true, true] => {
            let found = "`amqp_url` beside `amqp_url_file`".to_owned();
            fields.fault_at("amqp_url", Problem::Value { found, allowed: allowed(), suggestion: None });
        }
        _ => {}
    }
    url.or(file)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::source::Node;

    fn read(keys: &[(&str, &str)]) -> (Option<HubConfig>, Vec<String>) {
        let mut table: BTreeMap<String, Node> =
            keys.iter().map(|(key, value)| ((*key).to_owned(), Node::Text((*value).to_owned()))).collect();
        table.entry("database_url".to_owned()).or_insert(Node::Text("host=db user=hub".to_owned()));
        if table.contains_key("plaintext") {
            table.insert("plaintext".to_owned(), Node::Bool(true));
        }
        let mut faults = Vec::new();
        let section = HubConfig::read(Fields::of(HUB, table, &mut faults));
        (section, faults.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_database_is_enough_and_only_this_machine_can_connect_then() {
        let (section, faults) = read(&[]);
        assert_eq!(faults, Vec::<String>::new());
        let section = section.expect("a section");
        assert_eq!(section.listen.expect("an address").to_string(), "127.0.0.1:7070");
        assert!(section.is_local() && section.migrate && section.tokens_file.is_none() && section.keys_file.is_none());
        assert_eq!((section.log_retention, section.max_watchers.get()), (Duration::from_hours(1), 1000));
        assert_eq!(section.quota(), Quota { documents: 100_000, kib: 2 << 20 });
        let (section, faults) = read(&[("listen", "")]);
        assert_eq!((section.expect("a section").listen, faults.len()), (None, 0));
    }

    #[test]
    fn an_address_that_others_reach_requires_tokens_keys_and_tls() {
        for listen in ["0.0.0.0:7070", "[::]:7070", "192.0.2.1:7070", "[::ffff:192.0.2.1]:1"] {
            let (_, faults) = read(&[("listen", listen)]);
            let paths: Vec<&str> = faults.iter().filter_map(|fault| fault.split(':').next()).collect();
            assert_eq!(paths, ["hub.tokens_file", "hub.keys_file", "hub.tls_cert"], "{listen}");
            assert!(faults.iter().all(|fault| fault.contains("is not a loopback address")), "{faults:?}");
        }
        for listen in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert_eq!(read(&[("listen", listen)]).1.len(), 0, "{listen}");
        }
        let files = [("listen", "0.0.0.0:1"), ("tokens_file", "/t"), ("keys_file", "/k")];
        assert_eq!(read(&[&files[..], &[("plaintext", "")]].concat()).1.len(), 0);
        let tls = [("tls_cert", "/c"), ("tls_key", "/d")];
        let (section, faults) = read(&[&files[..], &tls].concat());
        assert_eq!(faults.len(), 0);
        let tls = section.expect("a section").tls.expect("TLS");
        assert_eq!((tls.certificate, tls.key), ("/c".into(), "/d".into()));
        assert_eq!(read(&files[..2]).1.len(), 2);
    }

    #[test]
    fn a_bus_over_amqp_needs_one_url_and_no_fault_shows_it() {
        let amqp = |keys: &[(&str, &str)]| read(&[&[("bus", "amqp")], keys].concat());
        let (section, faults) = amqp(&[("amqp_url", "amqp://me:hunter2@broker")]);
        assert_eq!(faults, Vec::<String>::new());
        let section = section.expect("a section");
        assert_eq!(section.amqp.as_ref().map(AmqpSource::place).as_deref(), Some("broker:5672//"));
        assert!(section.bus == Bus::Amqp && !format!("{section:?}").contains("hunter2"));
        assert_eq!(amqp(&[("amqp_url_file", "/u")]).0.expect("a section").amqp, Some(AmqpSource::File("/u".into())));
        assert_eq!(read(&[("amqp_url_file", "/u")]).1.len(), 0, "it may be given beforehand");
        for (keys, fault) in [
            (&[][..], "hub.amqp_url: missing; allowed: exactly one of `amqp_url` and `amqp_url_file`"),
            (&[("amqp_url", "amqp://b"), ("amqp_url_file", "/u")], "hub.amqp_url: found `amqp_url` beside"),
            (&[("amqp_url", "http://me:hunter2@broker")], "hub.amqp_url: found an invalid URL: its scheme is neither"),
        ] {
            let (_, faults) = amqp(keys);
            assert!(faults.len() == 1 && faults[0].starts_with(fault), "{fault}: {faults:?}");
            assert!(!faults[0].contains("hunter2"));
        }
    }

    #[test]
    fn every_fault_is_reported() {
        let (_, faults) = read(&[
            ("listen", "localhost:7070"),
            ("tls_cert", "/c"),
            ("bus", "kafka"),
            ("log_retention", "4m"),
            ("max_watchers", "many"),
            ("token_file", "/t"),
        ]);
        let all = faults.join("\n");
        for fault in [
            "hub.listen: found \"localhost:7070\"; allowed: an address and a port such as \"127.0.0.1:7070\", or \"\" for no API; \
             did you mean `127.0.0.1:7070`?",
            "hub.tls_key: missing",
            "hub.bus: found \"kafka\"; allowed: postgres, amqp",
            "hub.log_retention: found \"4m\"; allowed: a duration from 5m",
            "hub.max_watchers: found \"many\"",
            "hub.token_file: unknown key; did you mean `tokens_file`?",
        ] {
            assert!(all.contains(fault), "no {fault} in {all}");
        }
        assert_eq!(faults.len(), 6, "{all}");
    }
}
