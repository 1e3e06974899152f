//! The keys of the section that say how events are distributed.

use std::path::PathBuf;

use crate::amqp::{AmqpSource, AmqpUrl, InvalidUrl};
use crate::config::fault::{Fault, Problem};
use crate::config::fields::Fields;
use crate::config::setting::{Setting, Unfit, one_of};
use crate::config::source::Node;

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
        let found = match node.text().map(Self::from_text) {
            Some(Ok(url)) => return Some(url),
            Some(Err(unfit)) => {
                let reason = unfit.reason.unwrap_or_default();
                let origin = node.variable().map_or_else(String::new, |variable| format!(" (from {variable})"));
                format!("an invalid URL{origin}: {reason} (not shown, as it may hold a password)")
            }
            None => node.to_string(),
        };
        let problem = Problem::Value { found, allowed: Self::ALLOWED.to_owned(), suggestion: None };
        faults.push(Fault::new(path, problem));
        None
    }
}

/// Reads the broker's URL, from at most one of `amqp_url` and `amqp_url_file`. It may be given where it is not used, so that switching
/// takes one key.
pub(super) fn read_amqp(fields: &mut Fields<'_>, bus: Bus) -> Option<AmqpSource> {
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
