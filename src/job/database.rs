//! The database of a section: `database_url` or `database_url_file`.

use std::path::PathBuf;

use crate::cluster::full_text;
use crate::config::fault::{Fault, Problem};
use crate::config::fields::Fields;
use crate::config::setting::{Setting, Unfit, read_unshown};
use crate::config::source::Node;
use crate::db::{DatabaseSource, DatabaseUrl, InvalidUrl};

/// A connection string may contain a password, so faults never repeat it.
impl Setting for DatabaseUrl {
    const ALLOWED: &'static str = "a URL such as postgres://user:password@host:5432/database?sslmode=verify-full, \
         or libpq's keywords such as host=db dbname=hub user=me";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        text.parse().map_err(|error: InvalidUrl| Unfit::because(full_text(&error)))
    }

    fn read(node: &Node, path: &str, faults: &mut Vec<Fault>) -> Option<Self> {
        read_unshown(node, path, "database URL", faults)
    }
}

/// Reads the database of a section, from exactly one of `database_url` and `database_url_file`.
pub fn database(fields: &mut Fields<'_>) -> Option<DatabaseSource> {
    let given = [fields.has("database_url"), fields.has("database_url_file")];
    let url = fields.optional::<DatabaseUrl>("database_url").map(|url| DatabaseSource::Url(Box::new(url)));
    let file = fields.optional::<PathBuf>("database_url_file").map(DatabaseSource::File);
    let allowed = || "exactly one of `database_url` and `database_url_file`".to_owned();
    match given {
        [false, false] => fields.fault(Problem::Missing { allowed: allowed() }),
        [true, true] => {
            let found = "`database_url` beside `database_url_file`".to_owned();
            fields.fault(Problem::Value { found, allowed: allowed(), suggestion: None });
        }
        _ => {}
    }
    url.or(file)
}
