//! The types of values, and how each is read from the file and from the environment.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::fault::{Fault, Problem, nearest};
use super::names::{
    ClusterName, LONGEST_LABEL, LONGEST_SUBDOMAIN, SectionName, is_label, is_qualified_name, is_subdomain,
};
use super::source::Node;

/// Longest duration in a configuration: adding a longer one to an instant may overflow.
const LONGEST: Duration = Duration::from_hours(24 * 365);

/// The value of a key.
pub trait Setting: Sized {
    /// The allowed values, for faults.
    const ALLOWED: &'static str;

    /// Parses text; most settings are strings.
    fn from_text(text: &str) -> Result<Self, Unfit>;

    /// Reads a value, and records a fault if it is not allowed.
    fn read(node: &Node, path: &str, faults: &mut Vec<Fault>) -> Option<Self> {
        let outcome = node.text().ok_or_else(Unfit::default).and_then(Self::from_text);
        record(outcome, Self::ALLOWED, node, path, faults)
    }
}

/// A value that is not allowed.
#[derive(Debug, Default)]
pub struct Unfit {
    /// What exactly is wrong, if [`Setting::ALLOWED`] does not make that clear.
    pub reason: Option<String>,
    /// The value that was probably meant.
    pub suggestion: Option<String>,
}

impl Unfit {
    /// A value that is not allowed for this reason.
    pub fn because(reason: impl Into<String>) -> Self {
        Self { reason: Some(reason.into()), suggestion: None }
    }
}

/// Reads a value that may contain a password: a fault says what is wrong with the `what`, and does not repeat it.
pub fn read_unshown<T: Setting>(node: &Node, path: &str, what: &str, faults: &mut Vec<Fault>) -> Option<T> {
    let found = match node.text().map(T::from_text) {
        Some(Ok(value)) => return Some(value),
        Some(Err(unfit)) => {
            let reason = unfit.reason.unwrap_or_default();
            let origin = node.variable().map_or_else(String::new, |variable| format!(" (from {variable})"));
            format!("an invalid {what}{origin}: {reason} (not shown, as it may hold a password)")
        }
        None => node.to_string(),
    };
    let problem = Problem::Value { found, allowed: T::ALLOWED.to_owned(), suggestion: None };
    faults.push(Fault::new(path, problem));
    None
}

/// Returns the value, or records that it is not allowed.
pub fn record<T>(
    outcome: Result<T, Unfit>,
    allowed: &str,
    node: &Node,
    path: &str,
    faults: &mut Vec<Fault>,
) -> Option<T> {
    match outcome {
        Ok(value) => Some(value),
        Err(unfit) => {
            let found = match unfit.reason {
                Some(reason) => format!("{node}, where {reason}"),
                None => node.to_string(),
            };
            let problem = Problem::Value { found, allowed: allowed.to_owned(), suggestion: unfit.suggestion };
            faults.push(Fault::new(path, problem));
            None
        }
    }
}

/// One of a closed set of words.
pub fn one_of<T: Copy>(text: &str, words: &[(&str, T)]) -> Result<T, Unfit> {
    match words.iter().find(|(word, _)| *word == text) {
        Some((_, value)) => Ok(*value),
        None => Err(Unfit { reason: None, suggestion: nearest(text, words.iter().map(|(word, _)| *word)) }),
    }
}

impl Setting for bool {
    const ALLOWED: &'static str = "true or false";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        one_of(text, &[("true", true), ("false", false)])
    }

    fn read(node: &Node, path: &str, faults: &mut Vec<Fault>) -> Option<Self> {
        let outcome = match node {
            Node::Bool(value) => Ok(*value),
            Node::Variable { value, .. } => Self::from_text(value),
            _ => Err(Unfit::default()),
        };
        record(outcome, Self::ALLOWED, node, path, faults)
    }
}

impl Setting for NonZeroUsize {
    const ALLOWED: &'static str = "a whole number from 1 to 1000000";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        let number = text.parse().map_err(|_| Unfit::default())?;
        // A million is far more than any API server handles; a larger number is a typing error.
        if number <= 1_000_000 { NonZeroUsize::new(number).ok_or_else(Unfit::default) } else { Err(Unfit::default()) }
    }

    fn read(node: &Node, path: &str, faults: &mut Vec<Fault>) -> Option<Self> {
        let outcome = match node {
            Node::Integer(number) => Self::from_text(&number.to_string()),
            Node::Variable { value, .. } => Self::from_text(value),
            _ => Err(Unfit::default()),
        };
        record(outcome, Self::ALLOWED, node, path, faults)
    }
}

impl Setting for String {
    const ALLOWED: &'static str = "a non-empty string";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        if text.is_empty() { Err(Unfit::default()) } else { Ok(text.to_owned()) }
    }
}

impl Setting for PathBuf {
    const ALLOWED: &'static str = "the path of a file, written in full";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        if text == "~" || text.starts_with("~/") {
            return Err(Unfit::because("~ is not expanded"));
        }
        String::from_text(text).map(PathBuf::from)
    }
}

impl Setting for SocketAddr {
    const ALLOWED: &'static str = "an address and a port such as \"127.0.0.1:8384\"";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        text.parse().map_err(|_| Unfit {
            reason: None,
            suggestion: text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}")),
        })
    }
}

impl Setting for Duration {
    const ALLOWED: &'static str = "a duration of at most a year such as \"30s\" or \"1h 30m\"";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        match humantime::parse_duration(text) {
            Ok(duration) if duration <= LONGEST => Ok(duration),
            Ok(_) => Err(Unfit::default()),
            Err(_) => Err(Unfit { reason: None, suggestion: in_seconds(text) }),
        }
    }

    fn read(node: &Node, path: &str, faults: &mut Vec<Fault>) -> Option<Self> {
        read_duration(node, path, faults)
    }
}

/// Reads a duration. A number without a unit was probably meant in seconds.
pub fn read_duration<T: Setting>(node: &Node, path: &str, faults: &mut Vec<Fault>) -> Option<T> {
    let outcome = match node {
        Node::Integer(number) => Err(Unfit { reason: None, suggestion: in_seconds(&number.to_string()) }),
        other => other.text().ok_or_else(Unfit::default).and_then(T::from_text),
    };
    record(outcome, T::ALLOWED, node, path, faults)
}

fn in_seconds(text: &str) -> Option<String> {
    text.parse::<u32>().ok().map(|seconds| format!("{seconds}s"))
}

pub struct PositiveDuration(Duration);

impl Setting for PositiveDuration {
    const ALLOWED: &'static str = "a duration above zero and of at most a year such as \"30s\" or \"1h 30m\"";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        let duration = Duration::from_text(text)?;
        if duration.is_zero() { Err(Unfit::default()) } else { Ok(Self(duration)) }
    }

    fn read(node: &Node, path: &str, faults: &mut Vec<Fault>) -> Option<Self> {
        read_duration(node, path, faults)
    }
}

impl From<PositiveDuration> for Duration {
    fn from(duration: PositiveDuration) -> Self {
        duration.0
    }
}

/// The timeout of a watch: long enough to be worth a request, and at most what kube's client allows.
pub struct WatchTimeout(Duration);

impl Setting for WatchTimeout {
    const ALLOWED: &'static str = "a duration from 5s to 290s";

    fn from_text(text: &str) -> Result<Self, Unfit> {
        let duration = Duration::from_text(text)?;
        let allowed = Duration::from_secs(5)..=Duration::from_secs(290);
        if allowed.contains(&duration) { Ok(Self(duration)) } else { Err(Unfit::default()) }
    }

    fn read(node: &Node, path: &str, faults: &mut Vec<Fault>) -> Option<Self> {
        read_duration(node, path, faults)
    }
}

impl From<WatchTimeout> for Duration {
    fn from(timeout: WatchTimeout) -> Self {
        timeout.0
    }
}

/// The name of a cluster or a section.
fn label<T: FromStr>(text: &str) -> Result<T, Unfit> {
    text.parse().map_err(|_| {
        let tamed = text.to_lowercase().replace(['_', '.', ' '], "-");
        Unfit { reason: None, suggestion: is_label(&tamed).then_some(tamed) }
    })
}

const LABEL: &str = "a name of 1 to 63 of a-z, 0-9 and -, beginning and ending with a letter or digit";

impl Setting for ClusterName {
    const ALLOWED: &'static str = LABEL;

    fn from_text(text: &str) -> Result<Self, Unfit> {
        label(text)
    }
}

impl Setting for SectionName {
    const ALLOWED: &'static str = LABEL;

    fn from_text(text: &str) -> Result<Self, Unfit> {
        label(text)
    }
}

macro_rules! text_setting {
    ($(#[$doc:meta])* $name:ident, $allowed:literal, $accepts:expr) => {
        $(#[$doc])*
        #[derive(Debug, PartialEq)]
        pub struct $name(String);

        impl Setting for $name {
            const ALLOWED: &'static str = $allowed;

            fn from_text(text: &str) -> Result<Self, Unfit> {
                let accepts: fn(&str) -> bool = $accepts;
                if accepts(text) { Ok(Self(text.to_owned())) } else { Err(Unfit::default()) }
            }
        }

        impl From<$name> for String {
            fn from(setting: $name) -> Self {
                setting.0
            }
        }
    };
}

text_setting! {
    SecretName, "the name of a Secret: a DNS subdomain", is_subdomain
}

text_setting! {
    LeaseName, "the name of a Lease: a DNS subdomain", is_subdomain
}

text_setting! {
    PodName, "the name of a Pod: a DNS subdomain", is_subdomain
}

text_setting! {
    NamespaceName, "the name of a namespace: a DNS label", is_label
}

text_setting! {
    /// The domain of annotations and a finalizer.
    Domain, "a DNS subdomain such as \"cloud.teleport.dev\"", is_subdomain
}

text_setting! {
    /// The name part of a finalizer.
    FinalizerName, "1 to 63 letters, digits, -, _ and ., beginning and ending with a letter or digit", is_qualified_name
}

text_setting! {
    /// A prefix of namespaces; may be empty.
    NamespacePrefix, "empty, or at most 62 of a-z, 0-9 and -, beginning with a letter or digit", |text| {
        // A prefix as long as a namespace would leave no character for the rest of the name.
        text.is_empty() || text.len() < LONGEST_LABEL && is_label(&format!("{text}0"))
    }
}

text_setting! {
    /// A suffix of local namespaces; may be empty.
    NamespaceSuffix, "empty, or at most 62 of a-z, 0-9 and -, ending with a letter or digit", |text| {
        text.is_empty() || text.len() < LONGEST_LABEL && is_label(&format!("0{text}"))
    }
}

text_setting! {
    /// A suffix of remote objects' names; may be empty.
    ResourceSuffix, "empty, or at most 252 of a-z, 0-9, - and ., ending with a letter or digit", |text| {
        text.is_empty() || text.len() < LONGEST_SUBDOMAIN && is_subdomain(&format!("0{text}"))
    }
}

/// Lists. In an environment variable, commas separate the elements. No element may occur twice.
impl<T: Setting + PartialEq> Setting for Vec<T> {
    const ALLOWED: &'static str = "a list";

    fn from_text(_: &str) -> Result<Self, Unfit> {
        Err(Unfit::default())
    }

    fn read(node: &Node, path: &str, faults: &mut Vec<Fault>) -> Option<Self> {
        let elements = match node {
            Node::List(elements) => elements.clone(),
            Node::Variable { name, value } => value
                .split(',')
                .map(str::trim)
                .filter(|element| !element.is_empty())
                .map(|element| Node::Variable { name: name.clone(), value: element.to_owned() })
                .collect(),
            _ => return record(Err(Unfit::default()), Self::ALLOWED, node, path, faults),
        };
        let mut values = Vec::with_capacity(elements.len());
        for (index, element) in elements.iter().enumerate() {
            let element_path = format!("{path}[{index}]");
            let Some(value) = T::read(element, &element_path, faults) else {
                continue;
            };
            match values.iter().find(|(_, earlier)| *earlier == value) {
                Some((first, _)) => faults.push(Fault::new(
                    element_path,
                    Problem::Duplicate { found: element.to_string(), first: format!("{path}[{first}]") },
                )),
                None => values.push((index, value)),
            }
        }
        Some(values.into_iter().map(|(_, value)| value).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<T: Setting>(node: &Node) -> Result<T, String> {
        let mut faults = Vec::new();
        T::read(node, "at", &mut faults)
            .filter(|_| faults.is_empty())
            .ok_or_else(|| faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
    }

    fn text(text: &str) -> Node {
        Node::Text(text.to_owned())
    }

    fn variable(value: &str) -> Node {
        Node::Variable { name: "TOWLINE__X".to_owned(), value: value.to_owned() }
    }

    #[test]
    fn the_environment_is_read_as_the_type_that_its_key_wants() {
        assert_eq!(read::<bool>(&variable("true")), Ok(true));
        assert_eq!(read::<NonZeroUsize>(&variable("7")), Ok(NonZeroUsize::new(7).expect("not zero")));
        assert_eq!(read::<Vec<String>>(&variable("a, b,")), Ok(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(read::<Vec<String>>(&variable("")), Ok(vec![]));
    }

    #[test]
    fn the_file_has_types() {
        assert_eq!(read::<bool>(&text("true")), Err("at: found \"true\"; allowed: true or false".to_owned()));
        assert!(read::<NonZeroUsize>(&text("7")).is_err());
        assert!(read::<Vec<String>>(&text("a")).is_err());
        assert!(read::<String>(&Node::Integer(3)).is_err());
    }

    #[test]
    fn numbers_are_bounded_on_both_sides() {
        for wrong in [-1, 0, 1_000_001, i128::MAX] {
            assert!(read::<NonZeroUsize>(&Node::Integer(wrong)).is_err(), "{wrong}");
        }
        assert!(read::<NonZeroUsize>(&Node::Integer(1_000_000)).is_ok());
    }

    #[test]
    fn a_bare_number_of_seconds_is_pointed_at_its_unit() {
        assert!(read::<Duration>(&Node::Integer(30)).expect_err("no unit").ends_with("did you mean `30s`?"));
        assert!(read::<Duration>(&variable("30")).expect_err("no unit").ends_with("did you mean `30s`?"));
        let told = read::<PositiveDuration>(&Node::Integer(30)).err().expect("no unit");
        assert!(told.contains("above zero") && told.ends_with("did you mean `30s`?"), "{told}");
        assert!(read::<WatchTimeout>(&Node::Integer(30)).err().expect("no unit").ends_with("did you mean `30s`?"));
        assert_eq!(read::<Duration>(&text("1h 30m")), Ok(Duration::from_mins(90)));
    }

    #[test]
    fn a_path_of_the_shell_s_is_told_and_one_with_a_tilde_in_it_is_fine() {
        assert_eq!(
            read::<PathBuf>(&text("~/.kube/config")),
            Err("at: found \"~/.kube/config\", where ~ is not expanded; allowed: the path of a file, written in full"
                .to_owned())
        );
        assert_eq!(read::<PathBuf>(&text("/a/~b")), Ok("/a/~b".into()));
    }

    #[test]
    fn durations_that_would_overflow_a_clock_are_refused() {
        assert!(read::<Duration>(&text("366d")).is_err());
        assert!(read::<Duration>(&text("99999999999999y")).is_err());
        assert!(read::<PositiveDuration>(&text("0s")).is_err());
    }

    #[test]
    fn every_faulty_element_of_a_list_is_told_with_its_index() {
        let list = Node::List(vec![text("a"), text(""), text("a"), Node::Bool(true)]);
        assert_eq!(
            read::<Vec<String>>(&list),
            Err("at[1]: found \"\"; allowed: a non-empty string\n\
                 at[2]: found \"a\" again; allowed: once (first at at[0])\n\
                 at[3]: found true; allowed: a non-empty string"
                .to_owned())
        );
    }

    #[test]
    fn a_name_that_is_nearly_a_label_is_suggested_as_one() {
        let unfit = ClusterName::from_text("EU_West").expect_err("not a label");
        assert_eq!(unfit.suggestion.as_deref(), Some("eu-west"));
        assert_eq!(ClusterName::from_text("_").expect_err("not a label").suggestion, None);
    }

    #[test]
    fn prefixes_and_suffixes_can_be_part_of_a_name() {
        for right in ["", "team-", "a", "-"] {
            assert_eq!(NamespacePrefix::from_text(right).is_ok(), right != "-", "prefix {right}");
        }
        for right in ["", "-local", "-a"] {
            assert!(NamespaceSuffix::from_text(right).is_ok(), "suffix {right}");
        }
        for wrong in ["-", "Local", ".a", &"a".repeat(63)] {
            assert!(NamespaceSuffix::from_text(wrong).is_err(), "suffix {wrong}");
        }
        assert!(ResourceSuffix::from_text(".edge-1").is_ok());
        assert!(ResourceSuffix::from_text("..a").is_err());
        assert!(ResourceSuffix::from_text(&"a".repeat(253)).is_err());
    }
}
