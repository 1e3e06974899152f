//! What towline has asked of an API server.

use std::ops::Sub;

use integration::audit::Record;

/// Requests, counted where they arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Requests {
    /// What changes something.
    pub(crate) writes: usize,
    /// All others: get, list, the beginning of a watch, discovery, questions about its own permissions.
    pub(crate) reads: usize,
}

impl Requests {
    /// Counts them.
    pub(crate) fn of(records: &[Record]) -> Self {
        let writes = records.iter().filter(|record| is_write(record)).count();
        Self { writes, reads: records.len() - writes }
    }
}

impl Sub for Requests {
    type Output = Self;

    /// Those that came since `earlier`.
    fn sub(self, earlier: Self) -> Self {
        Self { writes: self.writes.saturating_sub(earlier.writes), reads: self.reads.saturating_sub(earlier.reads) }
    }
}

fn is_write(record: &Record) -> bool {
    let changes = ["create", "update", "patch", "delete", "deletecollection"].contains(&record.verb.as_str());
    // A review is created, and leaves nothing behind.
    changes && !record.resource.ends_with("accessreviews")
}

#[cfg(test)]
mod tests {
    use integration::audit::Record;

    use super::Requests;

    fn record(verb: &str, resource: &str) -> Record {
        Record {
            user: "towline".to_owned(),
            verb: verb.to_owned(),
            group: String::new(),
            resource: resource.to_owned(),
            subresource: String::new(),
            namespace: String::new(),
            name: String::new(),
            status: 200,
            uri: String::new(),
            received: String::new(),
        }
    }

    #[test]
    fn a_question_about_permissions_is_no_write() {
        let records =
            [record("patch", "databases"), record("create", "selfsubjectaccessreviews"), record("watch", "x")];
        assert_eq!(Requests::of(&records), Requests { writes: 1, reads: 2 });
    }
}
