//! The parameters of requests: what a query says, with all that is wrong with it at once.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::RangeInclusive;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use rand::Rng;

use crate::config::fault::nearest;
use crate::config::names::{is_label, is_subdomain};
use crate::config::text::quoted;
use crate::documents::{
    Continue, DEFAULT_LIMIT, Fields, Filter, Kind, ListQuery, MAX_LIMIT, Problem, ProblemKind, WatchQuery,
};
use crate::job::routes::{QueryParameter, QueryValue};

/// How long a watch lasts unless its client says. At random, so that watches which began together do not end together.
const WATCH_SECONDS: RangeInclusive<u64> = 1_800..=3_600;
const LONGEST_WATCH: u64 = 3_600;
/// Parameters that only a list has.
const ONLY_LIST: [&str; 2] = ["limit", "continue"];
/// Parameters that only a watch has.
const ONLY_WATCH: [&str; 2] = ["resourceVersion", "timeoutSeconds"];

/// The parameters of a request by name.
#[derive(Debug, Default)]
pub(super) struct QueryParameters {
    given: BTreeMap<String, String>,
    faults: Vec<String>,
}

/// What a list request asks for.
#[derive(Debug)]
pub(super) enum Listing {
    /// A page.
    List(ListQuery),
    /// A watch, and how long it lasts.
    Watch(WatchQuery, Duration),
}

impl QueryParameters {
    /// Reads a query. Unknown and repeated parameters are faults.
    pub(super) fn read(query: Option<&str>, allowed: &[&'static str]) -> Self {
        let mut parameters = Self::default();
        for part in query.unwrap_or_default().split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let (Some(name), Some(value)) = (decode(name), decode(value)) else {
                parameters.faults.push("a parameter is not UTF-8".to_owned());
                continue;
            };
            if !allowed.contains(&name.as_str()) {
                let suggestion = nearest(&name, allowed.iter().copied());
                let hint = suggestion.map_or_else(String::new, |suggestion| format!(", did you mean {suggestion}?"));
                parameters.faults.push(format!("parameter {} is unknown{hint}", quoted(&name)));
                continue;
            }
            match parameters.given.entry(name) {
                Entry::Vacant(place) => {
                    place.insert(value);
                }
                Entry::Occupied(earlier) => parameters.faults.push(format!("parameter {} is repeated", earlier.key())),
            }
        }
        parameters
    }

    /// `dryRun`.
    pub(super) fn dry_run(mut self) -> Result<bool, Problem> {
        let dry_run = self.flag("dryRun");
        self.finish()?;
        Ok(dry_run)
    }

    /// Those of a route of another job: the values that were given.
    pub(super) fn of_mounted(mut self, parameters: &[QueryParameter]) -> Result<BTreeMap<String, String>, Problem> {
        for parameter in parameters {
            match parameter.value {
                QueryValue::Number { least, most } => {
                    let _ = self.number(parameter.name, u64::from(least)..=u64::from(most));
                }
                // The database has no such text.
                QueryValue::Text if self.given.get(parameter.name).is_some_and(|text| text.contains('\0')) => {
                    self.wrong(parameter.name, "it has a NUL character");
                }
                QueryValue::Text => {}
            }
        }
        let given = std::mem::take(&mut self.given);
        self.finish()?;
        Ok(given)
    }

    /// No parameter.
    pub(super) fn none(self) -> Result<(), Problem> {
        self.finish()
    }

    /// What a list request asks for. `last_event` is the version of a client that resumes by server-sent events.
    pub(super) fn listing(mut self, kind: Kind, last_event: Option<&str>) -> Result<Listing, Problem> {
        let is_watch = self.flag("watch");
        let (foreign, reason) =
            if is_watch { (ONLY_LIST, "can't be used with watch=true") } else { (ONLY_WATCH, "needs watch=true") };
        for name in foreign {
            if self.given.contains_key(name) {
                self.faults.push(format!("parameter {name} {reason}"));
            }
        }
        let fields = match self.given.get("fields").map(String::as_str) {
            None => Fields::All,
            Some("metadata") => Fields::Metadata,
            Some(_) => {
                self.wrong("fields", "it must be metadata");
                Fields::All
            }
        };
        let limit = self.number("limit", 1..=u64::from(MAX_LIMIT)).and_then(|limit| u32::try_from(limit).ok());
        let seconds = self.number("timeoutSeconds", 1..=LONGEST_WATCH);
        let from = match last_event.filter(|_| is_watch) {
            Some(version) => self.version("Last-Event-ID", version),
            None => self.given.get("resourceVersion").cloned().and_then(|text| self.version("resourceVersion", &text)),
        };
        let filter = self.filter(kind);
        let after = match self.given.get("continue") {
            Some(token) if !token.is_empty() => match Continue::decode(token, &filter) {
                Ok(after) => Some(after),
                Err(problem) => {
                    self.faults.push(problem.title);
                    None
                }
            },
            _ => None,
        };
        self.finish()?;
        if is_watch {
            let seconds = seconds.unwrap_or_else(|| rand::rng().random_range(WATCH_SECONDS));
            return Ok(Listing::Watch(WatchQuery { filter, fields, from }, Duration::from_secs(seconds)));
        }
        Ok(Listing::List(ListQuery { filter, fields, limit: limit.unwrap_or(DEFAULT_LIMIT), after }))
    }

    /// Namespace, name and labels.
    fn filter(&mut self, kind: Kind) -> Filter {
        let mut namespace = self.given.get("namespace").cloned();
        let mut name = None;
        if let Some(selector) = self.given.get("fieldSelector").cloned() {
            for term in selector.split(',').map(str::trim).filter(|term| !term.is_empty()) {
                let (field, value) = term.split_once('=').unwrap_or((term, ""));
                let (field, value) = (field.trim(), value.strip_prefix('=').unwrap_or(value).trim());
                let place = match field {
                    "metadata.name" | "name" => &mut name,
                    "metadata.namespace" | "namespace" => &mut namespace,
                    _ => {
                        let allowed = "it must have terms such as name=a and namespace=b, separated by commas";
                        self.wrong("fieldSelector", allowed);
                        continue;
                    }
                };
                if place.as_deref().is_some_and(|earlier| earlier != value) {
                    let what = quoted(field);
                    self.faults
                        .push(format!("the namespaces or names that parameters require contradict each other: {what}"));
                }
                *place = Some(value.to_owned());
            }
        }
        let mut filter = Filter::of(kind);
        if let Some(namespace) = namespace {
            if !kind.is_namespaced() {
                self.faults.push(format!("{} have no namespace", kind.plural()));
            } else if !is_label(&namespace) {
                self.wrong("namespace", "it is no DNS label");
            } else {
                filter = self.tried(filter, |filter| filter.in_namespace(&namespace));
            }
        }
        if let Some(name) = name {
            if is_subdomain(&name) {
                filter = self.tried(filter, |filter| filter.named(&name));
            } else {
                self.wrong("fieldSelector", "the name is no DNS subdomain");
            }
        }
        if let Some(selector) = self.given.get("labelSelector").cloned().filter(|selector| !selector.is_empty()) {
            filter = self.tried(filter, |filter| filter.selected_by(&selector));
        }
        filter
    }

    fn tried(&mut self, filter: Filter, step: impl FnOnce(Filter) -> Result<Filter, Problem>) -> Filter {
        match step(filter.clone()) {
            Ok(filter) => filter,
            Err(problem) => {
                self.faults.push(problem.title);
                filter
            }
        }
    }

    fn flag(&mut self, name: &'static str) -> bool {
        match self.given.get(name).map(String::as_str) {
            None | Some("false") => false,
            Some("true") => true,
            Some(_) => {
                self.wrong(name, "it must be true or false");
                false
            }
        }
    }

    fn number(&mut self, name: &'static str, allowed: RangeInclusive<u64>) -> Option<u64> {
        let text = self.given.get(name)?;
        let number = text.parse().ok().filter(|number| allowed.contains(number));
        if number.is_none() {
            self.wrong(name, &format!("it must be a whole number from {} to {}", allowed.start(), allowed.end()));
        }
        number
    }

    fn version(&mut self, name: &str, text: &str) -> Option<i64> {
        let version = text.parse().ok().filter(|version| *version >= 0);
        if version.is_none() {
            self.wrong(name, "it is no version");
        }
        version
    }

    fn wrong(&mut self, name: &str, reason: &str) {
        self.faults.push(format!("parameter {name} is not valid: {reason}"));
    }

    fn finish(self) -> Result<(), Problem> {
        if self.faults.is_empty() { Ok(()) } else { Err(Problem::new(ProblemKind::Parameter, self.faults.join("; "))) }
    }
}

/// As forms are encoded: `+` is a space.
fn decode(text: &str) -> Option<String> {
    let text = text.replace('+', " ");
    percent_decode_str(&text).decode_utf8().ok().map(std::borrow::Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::super::routes::Action;
    use super::*;

    fn listing(query: &str) -> Result<Listing, String> {
        let parameters = QueryParameters::read(Some(query), Action::List.parameters());
        parameters.listing(Kind::Cluster, None).map_err(|problem| {
            assert_eq!(problem.kind, ProblemKind::Parameter);
            problem.title
        })
    }

    fn list(query: &str) -> ListQuery {
        match listing(query) {
            Ok(Listing::List(list)) => list,
            other => panic!("{query}: {other:?}"),
        }
    }

    #[test]
    fn a_list_has_filters_a_limit_and_a_place_to_continue() {
        let plain = list("");
        assert_eq!((plain.limit, plain.fields, plain.after), (500, Fields::All, None));
        let full = list(
            "namespace=foo&labelSelector=env%3Dprod,tier+in+(a,b)&fieldSelector=metadata.name%3Dc1&limit=7&fields=metadata",
        );
        assert_eq!((full.filter.namespace(), full.filter.name()), (Some("foo"), Some("c1")));
        assert_eq!(full.filter.selector().as_str(), "env=prod,tier in (a,b)");
        assert_eq!((full.limit, full.fields), (7, Fields::Metadata));
        assert_eq!(list("fieldSelector=name=c1").filter.name(), Some("c1"));
        for query in ["fieldSelector=metadata.namespace%3D%3Dfoo", "fieldSelector=namespace=foo&namespace=foo"] {
            assert_eq!(list(query).filter.namespace(), Some("foo"), "{query}");
        }
    }

    #[test]
    fn a_watch_begins_at_a_version_and_has_an_end() {
        let Ok(Listing::Watch(watch, lasts)) = listing("watch=true&resourceVersion=57&timeoutSeconds=9") else {
            panic!("a watch")
        };
        assert_eq!((watch.from, lasts), (Some(57), Duration::from_secs(9)));
        let Ok(Listing::Watch(watch, lasts)) = listing("watch=true") else { panic!("a watch") };
        assert_eq!(watch.from, None);
        assert!((1_800..=3_600).contains(&lasts.as_secs()), "{lasts:?}");
        let parameters = QueryParameters::read(Some("watch=true&resourceVersion=57"), Action::List.parameters());
        let Ok(Listing::Watch(watch, _)) = parameters.listing(Kind::Cluster, Some("60")) else { panic!("a watch") };
        assert_eq!(watch.from, Some(60), "a browser repeats its first address");
    }

    #[test]
    fn everything_that_is_wrong_is_told_at_once() {
        let told =
            listing("limit=0&limit=5&labelSelecter=a&watch=yes&fields=all&namespace=A_&fieldSelector=spec%3Da&%FF=1")
                .expect_err("faults");
        for fault in [
            "parameter limit is not valid: it must be a whole number from 1 to 1000",
            "parameter limit is repeated",
            "parameter \"labelSelecter\" is unknown, did you mean labelSelector?",
            "parameter watch is not valid: it must be true or false",
            "parameter fields is not valid: it must be metadata",
            "parameter namespace is not valid: it is no DNS label",
            "parameter fieldSelector is not valid: it must have terms",
            "a parameter is not UTF-8",
        ] {
            assert!(told.contains(fault), "no {fault} in {told}");
        }
        for query in [
            "limit=1001",
            "resourceVersion=5",
            "timeoutSeconds=5",
            "watch=true&limit=5",
            "watch=true&continue=a",
            "watch=true&resourceVersion=-1",
            "watch=true&resourceVersion=one",
            "watch=true&timeoutSeconds=3601",
            "continue=a",
            "labelSelector=a=b=c",
            "namespace=a&fieldSelector=namespace=b",
            "fieldSelector=name=A",
            "dryRun=true",
            "Limit=5",
        ] {
            assert!(listing(query).is_err(), "{query}");
        }
        let of_no_namespace = QueryParameters::read(Some("namespace=a"), Action::List.parameters());
        assert!(of_no_namespace.listing(Kind::SelectorSyncSet, None).is_err());
    }

    #[test]
    fn a_change_may_be_tried() {
        let dry_run = |query| QueryParameters::read(Some(query), Action::Create.parameters()).dry_run();
        assert_eq!(
            (dry_run("").ok(), dry_run("dryRun=true").ok(), dry_run("dryRun=false").ok()),
            (Some(false), Some(true), Some(false))
        );
        for query in ["dryRun=All", "dryRun", "dryRun=true&dryRun=true", "watch=true"] {
            assert!(dry_run(query).is_err(), "{query}");
        }
    }
}
