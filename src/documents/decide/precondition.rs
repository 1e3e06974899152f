//! The conditions of a request: `If-Match`, and version and id in the body.

use super::{Action, Part, Request, Stored};
use crate::documents::body::Body;
use crate::documents::problem::{Problem, ProblemKind};
use crate::documents::validate::{Faults, Identity, identity, version_of};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IfMatch {
    /// `*`: the document exists.
    Any,
    /// It has one of these versions.
    Versions(Vec<i64>),
}

impl IfMatch {
    /// Parses the header's value: `*`, or entity tags. A weak tag, and one that is no version, matches nothing.
    pub fn parse(value: &str) -> Result<Self, Problem> {
        let value = value.trim();
        if value == "*" {
            return Ok(Self::Any);
        }
        let malformed =
            || Problem::new(ProblemKind::Malformed, "If-Match has to be * or a version such as \"41\" in quotes");
        let mut versions = Vec::new();
        for tag in value.split(',').map(str::trim) {
            let strong = tag.strip_prefix("W/").unwrap_or(tag);
            let content = strong.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
            let content = content.filter(|content| !content.contains('"')).ok_or_else(malformed)?;
            versions.extend(version_of(content).filter(|_| strong.len() == tag.len()));
        }
        Ok(Self::Versions(versions))
    }

    fn holds(&self, version: i64) -> bool {
        match self {
            Self::Any => true,
            Self::Versions(versions) => versions.contains(&version),
        }
    }
}

/// A document that is to be created can't have a version.
pub(super) fn check_absent(request: &Request) -> Result<(), Problem> {
    if request.condition.is_some() {
        return Err(Problem::new(ProblemKind::Precondition, format!("there is no {} for If-Match", request.key)));
    }
    Ok(())
}

/// A request that replaces has to say which version.
pub(super) fn check_given(request: &Request, body: &Body) -> Result<(), Problem> {
    let version = body.fields().get("resourceVersion");
    if request.condition.is_some() || version.is_some_and(|version| !version.is_null()) {
        return Ok(());
    }
    let title = "a PUT needs If-Match, or resourceVersion in the body, so that it can't undo another change";
    Err(Problem::new(ProblemKind::PreconditionRequired, title))
}

/// Checks the conditions of a request about a document that exists.
pub(super) fn check(present: &Stored, request: &Request, given: &Identity) -> Result<(), Problem> {
    let document = &present.document;
    if request.condition.as_ref().is_some_and(|condition| !condition.holds(document.version)) {
        let title = format!("{} has version {}, which If-Match does not name", request.key, document.version);
        return Err(Problem::new(ProblemKind::Precondition, title));
    }
    if let Some(version) = given.version
        && version != document.version
    {
        let title = format!("{} has version {} and not {version}", request.key, document.version);
        return Err(Problem::new(ProblemKind::Conflict, title));
    }
    if let Some(id) = given.id
        && id != document.id
    {
        return Err(Problem::new(
            ProblemKind::Identity,
            format!("{} has the id {} and not {id}", request.key, document.id),
        ));
    }
    Ok(())
}

/// What a body says about the document's identity. Of a status only the version counts.
pub(super) fn identity_of(request: &Request, body: &Body, faults: &mut Faults) -> Identity {
    let part = match &request.action {
        Action::Replace(part, _) | Action::Merge(part, _) | Action::Patch(part, _) => *part,
        _ => Part::Document,
    };
    let mut fields = body.fields().clone();
    match part {
        Part::Document => identity(&request.key, &fields, false, faults),
        Part::Status => {
            fields.retain(|field, _| field == "resourceVersion");
            identity(&request.key, &fields, false, faults)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entity_tags_are_versions_in_quotes() {
        for (header, expected) in [
            ("*", IfMatch::Any),
            ("\"41\"", IfMatch::Versions(vec![41])),
            (" \"41\" , \"7\"", IfMatch::Versions(vec![41, 7])),
            ("W/\"41\"", IfMatch::Versions(vec![])),
            ("\"041\", \"x\", \"-1\"", IfMatch::Versions(vec![])),
        ] {
            assert_eq!(IfMatch::parse(header), Ok(expected), "{header}");
        }
        for wrong in ["", "41", "\"41", "\"41\"\"", "*, \"41\""] {
            assert_eq!(IfMatch::parse(wrong).expect_err(wrong).kind, ProblemKind::Malformed);
        }
    }
}
