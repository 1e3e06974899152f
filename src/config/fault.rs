//! Faults: everything that is wrong with a configuration, each with its path, what was found and what is allowed.

use std::fmt;
use std::path::PathBuf;

use super::SectionName;

/// Why the configuration can't be loaded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be read. A retry helps only after the file has changed.
    #[error("failed to read the configuration file {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// The file is not TOML, or an environment variable is not text.
    #[error("failed to parse the configuration")]
    Parse {
        /// The line and column, and what was expected there.
        source: config::ConfigError,
    },
    /// The file is TOML but not a valid configuration.
    #[error("the configuration has {}", .0)]
    Invalid(Faults),
}

/// All faults of a configuration, sorted by path. Displayed one per line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults(Vec<Fault>);

impl Faults {
    /// Sorts by path, so that the output for a file is always the same.
    pub fn new(mut faults: Vec<Fault>) -> Self {
        faults.sort_by(|left, right| left.path.cmp(&right.path));
        Self(faults)
    }

    /// `Ok` if there is no fault.
    pub fn into_result(self) -> Result<(), Error> {
        if self.0.is_empty() { Ok(()) } else { Err(Error::Invalid(self)) }
    }

    /// The faults, sorted by path.
    pub fn as_slice(&self) -> &[Fault] {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let noun = if self.0.len() == 1 { "fault" } else { "faults" };
        write!(formatter, "{} {noun}:", self.0.len())?;
        for fault in &self.0 {
            write!(formatter, "\n  {fault}")?;
        }
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where: `daemon.listen`, `clusters.hub`, `sync[0].resource`, or the name of an environment variable.
    pub path: String,
    pub problem: Problem,
}

impl Fault {
    pub fn new(path: impl Into<String>, problem: Problem) -> Self {
        Self { path: path.into(), problem }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.path, self.problem)
    }
}

/// What is wrong at a path.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// An unknown key. Its value is not repeated, since it may be a secret in the wrong place.
    #[error("unknown key{}{}; allowed: {}", origin(variable.as_deref()), hint(suggestion.as_deref()), allowed.join(", "))]
    UnknownKey {
        /// The environment variable that it comes from, unless it comes from the file.
        variable: Option<String>,
        /// Every key that is allowed here.
        allowed: Vec<&'static str>,
        /// The nearest allowed key by edit distance, if one is near.
        suggestion: Option<String>,
    },
    /// An environment variable for a named section that the file does not have.
    #[error("no section of this name; there are: {}{}", list(present), hint(suggestion.as_deref()))]
    UnknownSection {
        /// The names in the file.
        present: Vec<String>,
        /// The nearest of them, if one is near.
        suggestion: Option<String>,
    },
    /// Sections that form a circle: the local objects of one are the remote objects of the next.
    #[error(
        "syncs in a circle: {}; each of their objects would be made from itself. Leave one of them out, or keep their \
         namespaces apart by namespace_prefix", sections.iter().map(ToString::to_string).collect::<Vec<_>>().join(" → ")
    )]
    Circle {
        /// Their names, in the direction of the sync.
        sections: Vec<SectionName>,
    },
    #[error("missing; allowed: {allowed}")]
    Missing { allowed: String },
    /// A value of the wrong type, or one that is not allowed.
    #[error("found {found}; allowed: {allowed}{}", hint(suggestion.as_deref()))]
    Value {
        /// The value, as the file has it.
        found: String,
        allowed: String,
        /// The value that was probably meant.
        suggestion: Option<String>,
    },
    /// A name or a list element that occurs twice.
    #[error("found {found} again; allowed: once (first at {first})")]
    Duplicate {
        found: String,
        /// Path of its first occurrence.
        first: String,
    },
    /// One cluster on both sides, and the names of remote and local objects don't differ.
    #[error(
        "remote and local are the same cluster, so the names of their objects have to differ; allowed: with a \
         `remote_resource_suffix`{} that keeps them apart",
        if *namespaced { " or a `local_namespace_suffix`" } else { "" }
    )]
    NotInvertible {
        /// Whether the kind has namespaces, so that a namespace suffix would help.
        namespaced: bool,
    },
    /// A kind whose objects mean something in their own cluster only.
    #[error("`{found}` can't be synced: {reason}")]
    Unsyncable { found: String, reason: String },
    /// Two sections may write the same local object.
    #[error(
        "may write the same local objects as section `{other}`{}; allowed: one section per local cluster, kind, \
         namespace and name",
        place(example.as_deref())
    )]
    LocalOverlap {
        /// The section that comes first in the file.
        other: SectionName,
        /// A local namespace that both sections write to; none for a cluster-scoped kind.
        example: Option<String>,
    },
    /// Two sections follow the same remote objects with one finalizer, so that each would remove the other's.
    #[error(
        "follows the same remote objects as section `{other}`{} with the same finalizer `{finalizer}`; allowed: a \
         `finalizer` (or `annotation_domain`) of its own",
        place(example.as_deref())
    )]
    SharedFinalizer {
        /// The section that comes first in the file.
        other: SectionName,
        /// A remote namespace that both follow; none for a cluster-scoped kind.
        example: Option<String>,
        /// The finalizer in full.
        finalizer: String,
    },
    /// Two sections would write status, secrets and generations of the same remote objects.
    #[error(
        "writes back to the same remote objects as section `{other}`{}; allowed: `write_back = false` in all but one \
         of them, or a `namespace_prefix` that keeps them apart (a `selector` does not: labels change)",
        place(example.as_deref())
    )]
    SecondWriter {
        /// The section that comes first in the file.
        other: SectionName,
        /// A remote namespace that both follow; none for a cluster-scoped kind.
        example: Option<String>,
    },
}

/// The candidate nearest to `found` by edit distance, if the distance is at most a third of the candidate's length.
///
/// A third allows one typing error in short words and three in long ones; more would suggest unrelated words.
pub fn nearest<'c>(found: &str, candidates: impl IntoIterator<Item = &'c str>) -> Option<String> {
    let wanted = found.to_lowercase().replace('-', "_");
    candidates
        .into_iter()
        .map(|candidate| {
            let comparable = candidate.to_lowercase().replace('-', "_");
            (strsim::damerau_levenshtein(&wanted, &comparable), candidate)
        })
        .filter(|(distance, candidate)| *distance <= (candidate.chars().count() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate.to_owned())
}

fn hint(suggestion: Option<&str>) -> String {
    suggestion.map_or_else(String::new, |suggestion| format!("; did you mean `{suggestion}`?"))
}

fn origin(variable: Option<&str>) -> String {
    variable.map_or_else(String::new, |variable| format!(" (from the variable {variable})"))
}

fn place(namespace: Option<&str>) -> String {
    namespace.map_or_else(String::new, |namespace| format!(" (in a namespace such as `{namespace}`)"))
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_near_word_is_suggested_and_a_far_one_is_not() {
        let candidates = ["listen", "shutdown_grace", "log"];
        assert_eq!(nearest("listne", candidates).as_deref(), Some("listen"));
        assert_eq!(nearest("shutdown-grace", candidates).as_deref(), Some("shutdown_grace"));
        assert_eq!(nearest("LOG", candidates).as_deref(), Some("log"));
        assert_eq!(nearest("password", candidates), None);
    }

    #[test]
    fn faults_are_displayed_one_a_line_sorted_by_path() {
        let missing = |path: &str| Fault::new(path, Problem::Missing { allowed: "a name".to_owned() });
        let faults = Faults::new(vec![missing("sync[0].name"), missing("daemon.listen")]);
        assert_eq!(
            faults.to_string(),
            "2 faults:\n  daemon.listen: missing; allowed: a name\n  sync[0].name: missing; allowed: a name"
        );
        assert!(matches!(faults.into_result(), Err(Error::Invalid(_))));
        assert!(Faults::default().into_result().is_ok());
    }
}
