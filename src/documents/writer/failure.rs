//! What a failed call says about its items.

use crate::db::Error;

/// SQLSTATE with which the procedure refuses a database whose origin has changed.
const OTHER_ORIGIN: &str = "TW001";

/// What a failed call says about its items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// None was written, and the reason has nothing to do with what they hold.
    NothingWritten,
    /// None was written, because of what one of them holds.
    Content,
    /// None was written: the versions have to be renumbered.
    OtherOrigin,
    /// They may have been written: the answer is missing, or the error may have come after the commit.
    Unknown,
}

impl Failure {
    /// What this error of a call says. Errors of connecting count, too: then nothing was sent.
    pub(super) fn of(error: &Error) -> Self {
        match error {
            Error::Connect { .. }
            | Error::Unauthorized { .. }
            | Error::SetUp { .. }
            | Error::PoolExhausted { .. }
            | Error::Forbidden { .. }
            | Error::Missing { .. }
            | Error::RolledBack { .. }
            | Error::Encode { .. } => Self::NothingWritten,
            // A statement that was cancelled may have been so between its commit and its answer.
            Error::Lost { .. } | Error::Cancelled { .. } | Error::Silent { .. } | Error::Decode { .. } => Self::Unknown,
            Error::Statement { source, .. } => Self::of_code(source.code()),
        }
    }

    fn of_code(code: &str) -> Self {
        match code.get(..2) {
            _ if code == OTHER_ORIGIN => Self::OtherOrigin,
            // Data exceptions, violated constraints, exceeded limits.
            Some("22" | "23" | "54") => Self::Content,
            // Resources, operator, system, internal: these can strike at any moment.
            Some("53" | "57" | "58" | "XX") | None => Self::Unknown,
            Some(_) => Self::NothingWritten,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_errors_that_come_before_the_commit_say_that_nothing_was_written() {
        for (code, expected) in [
            ("TW001", Failure::OtherOrigin),
            ("TW002", Failure::NothingWritten),
            ("55P03", Failure::NothingWritten),
            ("25006", Failure::NothingWritten),
            ("40P01", Failure::NothingWritten),
            ("22P05", Failure::Content),
            ("23505", Failure::Content),
            ("54000", Failure::Content),
            ("53100", Failure::Unknown),
            ("57014", Failure::Unknown),
            ("XX000", Failure::Unknown),
            ("", Failure::Unknown),
        ] {
            assert_eq!(Failure::of_code(code), expected, "{code}");
        }
        let within = std::time::Duration::from_secs(1);
        assert_eq!(Failure::of(&Error::Silent { query: "write", within }), Failure::Unknown);
        assert_eq!(Failure::of(&Error::RolledBack { name: "write" }), Failure::NothingWritten);
    }
}
