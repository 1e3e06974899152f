//! Faults: everything that is wrong with a configuration, each with where it is, what was found and what is allowed.

use std::fmt;
use std::path::PathBuf;

use super::SectionName;

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be read. Retrying helps only when the file changes.
    #[error("failed to read the configuration file {}", path.display())]
    Read {
        /// The file that was asked for.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The file is not TOML, or a variable of the environment is not text.
    #[error("failed to parse the configuration")]
    Parse {
        /// Line, column and what was expected there.
        source: config::ConfigError,
    },
    /// The file is TOML, and not a configuration.
    #[error("the configuration has {}", .0)]
    Invalid(Faults),
}

/// All faults of one configuration, in the order of its paths. Displayed one a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults(Vec<Fault>);

impl Faults {
    /// Sorts by path, so that two runs over one file read the same.
    pub fn new(mut faults: Vec<Fault>) -> Self {
        faults.sort_by(|left, right| left.path.cmp(&right.path));
        Self(faults)
    }

    /// `Ok` when nothing is wrong.
    pub fn into_result(self) -> Result<(), Error> {
        if self.0.is_empty() { Ok(()) } else { Err(Error::Invalid(self)) }
    }

    /// The faults, sorted by path.
    pub fn as_slice(&self) -> &[Fault] {
        &self.0
    }

    /// Whether nothing is wrong.
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

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where: `daemon.listen`, `clusters.hub`, `sync[0].resource`, or the name of a variable of the environment.
    pub path: String,
    /// What.
    pub problem: Problem,
}

impl Fault {
    /// What is wrong at a path.
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
    /// A key that no section of this kind has. Its value is not repeated: it may be a secret in the wrong place.
    #[error("unknown key{}{}; allowed: {}", origin(variable.as_deref()), hint(suggestion.as_deref()), allowed.join(", "))]
    UnknownKey {
        /// The variable of the environment that it comes from, where it does not come from the file.
        variable: Option<String>,
        /// Every key that is allowed here.
        allowed: Vec<&'static str>,
        /// The allowed key that is nearest by edit distance, where one is near.
        suggestion: Option<String>,
    },
    /// A variable of the environment for a named section that the file does not have.
    #[error("no section of this name; there are: {}{}", list(present), hint(suggestion.as_deref()))]
    UnknownSection {
        /// The names in the file.
        present: Vec<String>,
        /// The nearest of them, where one is near.
        suggestion: Option<String>,
    },
    /// Sections that lead in a circle: what one makes, the next takes for its remote object.
    #[error(
        "syncs in a circle: {}; each of their objects would be made from itself. Leave one of them out, or keep their \
         namespaces apart by namespace_prefix", sections.iter().map(ToString::to_string).collect::<Vec<_>>().join(" → ")
    )]
    Circle {
        /// Their names, in the order in which objects go through them.
        sections: Vec<SectionName>,
    },
    /// A required key is not there.
    #[error("missing; allowed: {allowed}")]
    Missing {
        /// What its value may be.
        allowed: String,
    },
    /// A value of the wrong type, or one that is not allowed.
    #[error("found {found}; allowed: {allowed}{}", hint(suggestion.as_deref()))]
    Value {
        /// The value, as the file has it.
        found: String,
        /// What it may be.
        allowed: String,
        /// What was probably meant.
        suggestion: Option<String>,
    },
    /// A name or a list element that was given before.
    #[error("found {found} again; allowed: once (first at {first})")]
    Duplicate {
        /// What was repeated.
        found: String,
        /// Path of its first occurrence.
        first: String,
    },
    /// One cluster on both sides, and nothing tells a remote object from a local one.
    #[error(
        "remote and local are the same cluster, and no name tells which side an object is on; allowed: with a \
         `remote_resource_suffix`{} that keeps them apart",
        if *namespaced { " or a `local_namespace_suffix`" } else { "" }
    )]
    NotInvertible {
        /// Whether the kind has namespaces, so that a namespace suffix would help.
        namespaced: bool,
    },
    /// Two sections may write the same local object.
    #[error(
        "may write the same local objects as section `{other}`{}; allowed: one section per local cluster, kind, \
         namespace and name",
        place(example.as_deref())
    )]
    LocalOverlap {
        /// The section that comes first in the file.
        other: SectionName,
        /// A local namespace that both map to; none for a cluster-scoped kind.
        example: Option<String>,
    },
    /// Two sections follow the same remote objects and would release each other's finalizer.
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

/// The candidate nearest to `found` by edit distance, unless all are further off than a third of its length.
///
/// A third allows one slip in short words and three in long ones; more suggests words that nobody meant.
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
