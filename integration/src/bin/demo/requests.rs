//! What towline has asked of an API server.

use std::ops::Sub;

use integration::audit::Record;

/// Requests, counted where they arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Requests {
    /// What changes something.
    pub(crate) writes: usize,
    /// All others: get, list, the beginning of a watch, discovery, dry runs, questions about its own permissions.
    pub(crate) reads: usize,
    /// What goes to Leases, whatever it is: they are renewed all the while, whether anything happens or not.
    pub(crate) leases: usize,
}

impl Requests {
    pub(crate) fn of(records: &[Record]) -> Self {
        let leases = records.iter().filter(|record| record.resource == "leases").count();
        let writes = records.iter().filter(|record| record.resource != "leases" && is_write(record)).count();
        Self { writes, reads: records.len() - writes - leases, leases }
    }
}

impl Sub for Requests {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            writes: self.writes.saturating_sub(earlier.writes),
            reads: self.reads.saturating_sub(earlier.reads),
            leases: self.leases.saturating_sub(earlier.leases),
        }
    }
}

fn is_write(record: &Record) -> bool {
    let changes = ["create", "update", "patch", "delete", "deletecollection"].contains(&record.verb.as_str());
    // A review is created, and leaves nothing behind; nor does a dry run.
    changes && !record.resource.ends_with("accessreviews") && !record.uri.contains("dryRun=All")
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
        assert_eq!(Requests::of(&records), Requests { writes: 1, reads: 2, leases: 0 });
    }

    #[test]
    fn a_dry_run_is_no_write() {
        let tried =
            Record { uri: "/api/v1/namespaces/n/configmaps/c?dryRun=All".to_owned(), ..record("patch", "configmaps") };
        assert_eq!(Requests::of(&[tried]), Requests { writes: 0, reads: 1, leases: 0 });
    }

    #[test]
    fn a_renewal_is_counted_apart() {
        let records = [record("patch", "leases"), record("watch", "leases"), record("create", "databases")];
        assert_eq!(Requests::of(&records), Requests { writes: 1, reads: 0, leases: 2 });
    }
}
