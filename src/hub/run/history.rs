//! Who did what: the route.

use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::config::names::{is_label, is_subdomain};
use crate::db::{self, Database};
use crate::documents::{
    FORGOTTEN, HistoryQuery, Key, Kind, Position, Problem, ProblemKind, StoredRecord, Subject, Timestamp, history_page,
};
use crate::job::routes::{ApiDescription, ApiRequest, ApiRoute, QueryParameter, QueryValue, Right};

/// Records of a page unless its request says.
const DEFAULT_LIMIT: u32 = 100;
/// Most records of a page.
const MOST: u32 = 500;

const PARAMETERS: &[QueryParameter] = &[
    QueryParameter {
        name: "kind",
        about: "Kind of one document, as in paths: syncsets. Needs name",
        value: QueryValue::Text,
    },
    QueryParameter { name: "namespace", about: "Only documents of this namespace", value: QueryValue::Text },
    QueryParameter { name: "name", about: "Name of one document. Needs kind", value: QueryValue::Text },
    QueryParameter { name: "since", about: "Nothing before this time (RFC 3339)", value: QueryValue::Text },
    QueryParameter {
        name: "limit",
        about: "Most records of the page; 100 by default. It may have fewer",
        value: QueryValue::Number { least: 1, most: MOST },
    },
    QueryParameter { name: "continue", about: "What the page before has under continue", value: QueryValue::Text },
];

/// Who did what, the newest first.
#[derive(Debug, Serialize, ToSchema)]
struct History {
    items: Vec<HistoryRecord>,
    /// Continues the list; absent on its last page.
    #[serde(rename = "continue", skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    next: Option<String>,
}

/// A change of a document by a client, or what else an operator did.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct HistoryRecord {
    /// When, by the database's clock.
    at: String,
    /// The name of the token, or the account of a command that uses the database itself. Absent without a token.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    actor: Option<String>,
    /// The address that it came from; behind a proxy that of the proxy.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    address: Option<String>,
    /// The way in: api, admin (a daemon's admin server) or database (a command, or the hub itself).
    via: String,
    /// What was asked for: create, apply, replace, patch, delete, resync, approve, rotate-key, renumber, migrate; pause-rollout,
    /// resume-rollout, promote-rollout, abort-rollout, undo-rollout;
    /// refused for requests that were answered with 401, 403 or 429; forget where the hub dropped older records of the namespace, of
    /// which it had too many.
    verb: String,
    /// The document's kind. Absent in what concerns no document.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    namespace: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    name: Option<String>,
    /// The document's id.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    id: Option<String>,
    /// The version that the document became.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    resource_version: Option<String>,
    #[serde(flatten)]
    details: HistoryDetails,
}

/// What a record tells besides.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
struct HistoryDetails {
    /// What became of the document: created, changed, deleted, or waits for its finalizers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    result: Option<String>,
    /// What changed in labels, annotations, finalizers and own fields.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<HistoryChange>)]
    changes: Vec<Value>,
    /// Sealed fields that changed, which are not shown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    hidden: Vec<String>,
    /// How many more changes there are, for which there was no room in 8 KiB: the shortest ones are stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    left_out: Option<u64>,
    /// The first one of refused requests: its method and its path.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    request: Option<String>,
    /// The status of refused requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    status: Option<u16>,
    /// The number of refused requests, of clusters, of fields or of dropped records.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    note: Option<String>,
}

/// A change at one place of a document.
#[derive(ToSchema)]
#[expect(dead_code, reason = "only its schema is used: what is stored is sent as it is")]
struct HistoryChange {
    /// A JSON pointer.
    path: String,
    /// What was there; absent if nothing was.
    #[schema(value_type = Value, required = false)]
    before: Option<Value>,
    /// What is there now; absent if nothing is.
    #[schema(value_type = Value, required = false)]
    after: Option<Value>,
    /// Instead of `before`, if there was no room for it: its bytes as JSON.
    #[serde(rename = "beforeBytes")]
    #[schema(nullable = false)]
    before_bytes: Option<u64>,
    /// Instead of `after`, if there was no room for it: its bytes as JSON.
    #[serde(rename = "afterBytes")]
    #[schema(nullable = false)]
    after_bytes: Option<u64>,
}

pub fn route(database: Database) -> ApiRoute {
    let list = move |request| {
        let database = database.clone();
        async move { list(&database, &request).await }
    };
    let description = ApiDescription {
        id: "listHistory",
        tag: "history",
        summary: "Who changed which document when, and how it changed; without parameters also what concerns no document, for \
                  administrators of all namespaces",
        answer: "A page of records, the newest first",
    };
    ApiRoute::new::<History, _>((Method::GET, "/v1/history"), Right::Read, description, list)
        .with_parameters(PARAMETERS)
        .reading_many()
}

async fn list(database: &Database, request: &ApiRequest) -> Result<History, Problem> {
    let query = query(request)?;
    let page = history_page(database, &query).await.map_err(unread)?;
    let items = page.records.into_iter().map(record).collect();
    Ok(History { items, next: page.next.as_ref().map(Position::encode) })
}

fn unread(error: db::Error) -> Problem {
    let outage = error.outage();
    let title = outage.map_or_else(|| "failed to read the history".to_owned(), str::to_owned);
    Problem::new(ProblemKind::Unavailable, title).caused_by(error, outage.is_some())
}

/// What a request asks for, if its caller may see it: documents that it may read, and what concerns none if it is an administrator.
fn query(request: &ApiRequest) -> Result<HistoryQuery, Problem> {
    let wrong = |parameter: &str, allowed: &str| {
        Problem::new(ProblemKind::Parameter, format!("parameter {parameter} is not valid: {allowed}"))
    };
    let given = |name: &str| request.parameter(name).filter(|text| !text.is_empty());
    let namespace = given("namespace");
    if namespace.is_some_and(|namespace| !is_label(namespace)) {
        return Err(wrong("namespace", "it is no DNS label"));
    }
    let kind = given("kind").map(|kind| Kind::of_plural(kind).ok_or_else(|| wrong("kind", "it is none of the kinds")));
    let subject = match (kind.transpose()?, given("name")) {
        (Some(kind), Some(name)) if kind.is_namespaced() == namespace.is_some() => {
            if !is_subdomain(name) {
                return Err(wrong("name", "it is no DNS subdomain"));
            }
            Subject::Document(Key::new(kind, namespace.unwrap_or_default(), name))
        }
        (Some(kind), Some(_)) if kind.is_namespaced() => {
            return Err(wrong("namespace", "documents of this kind have one"));
        }
        (Some(_), Some(_)) => return Err(wrong("namespace", "documents of this kind have none")),
        (Some(_), None) => return Err(wrong("kind", "it needs name")),
        (None, Some(_)) => return Err(wrong("name", "it needs kind")),
        (None, None) => namespace.map_or(Subject::Everything, |namespace| Subject::Namespace(namespace.to_owned())),
    };
    request.rights.require(Right::Read, namespace)?;
    let is_administrator = || request.rights.require(Right::Admin, None).is_ok();
    let subject = if subject == Subject::Everything && !is_administrator() { Subject::AllDocuments } else { subject };
    let since = given("since").map(|since| {
        let time = since.parse::<Timestamp>().ok().filter(Timestamp::is_storable);
        time.ok_or_else(|| wrong("since", "it is no time such as 2026-11-28T17:11:04Z"))
    });
    let after =
        given("continue").map(|text| Position::decode(text).ok_or_else(|| wrong("continue", "it comes from no page")));
    Ok(HistoryQuery {
        subject,
        since: since.transpose()?,
        after: after.transpose()?,
        limit: request.number("limit").unwrap_or(DEFAULT_LIMIT),
    })
}

fn record(stored: StoredRecord) -> HistoryRecord {
    let StoredRecord { at, actor, address, via, verb, kind, namespace, name, id, version, details } = stored;
    let some = |text: String| Some(text).filter(|text| !text.is_empty());
    // That of a refusal is no document's.
    let id = id.filter(|_| !kind.is_empty());
    HistoryRecord {
        at: at.to_string(),
        actor: some(actor),
        address: some(address),
        via,
        verb,
        kind: Kind::of_plural(&kind)
            .map(|kind| kind.name().to_owned())
            .or_else(|| some(kind).filter(|kind| kind != FORGOTTEN)),
        namespace: some(namespace),
        name: some(name),
        id,
        resource_version: version.map(|version| version.to_string()),
        // What a newer release has written may have more.
        details: serde_json::from_str(&details).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use crate::documents::{Author, SlotOwner};
    use crate::hub::run::access::Access;
    use crate::job::routes::Rights;

    fn asked(access: &Access, token: &str, parameters: &[(&str, &str)]) -> Result<Subject, ProblemKind> {
        let head = http::Request::get("/v1/history").header("authorization", format!("Bearer {token}"));
        let rights: Arc<dyn Rights> =
            Arc::new(access.caller(&head.body(()).expect("a request").into_parts().0).expect("a caller"));
        let parameters: BTreeMap<_, _> =
            parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let author = Author::of_api(String::new(), None);
        let request = ApiRequest {
            rights,
            slot_owner: SlotOwner::default(),
            author,
            variables: BTreeMap::new(),
            parameters,
            body: hyper::body::Bytes::new(),
        };
        query(&request).map(|query| query.subject).map_err(|problem| problem.kind)
    }

    #[test]
    fn who_may_read_documents_sees_their_records_and_only_administrators_see_all_else() {
        let access = crate::hub::run::api::tests::tokens();
        let document = |kind, namespace, name| Ok(Subject::Document(Key::new(kind, namespace, name)));
        let of_foo: &[(&str, &str)] = &[("kind", "syncsets"), ("namespace", "foo"), ("name", "base")];
        let of_all: &[(&str, &str)] = &[("kind", "selectorsyncsets"), ("name", "base")];
        let namespace = Ok(Subject::Namespace("foo".to_owned()));
        for (token, parameters, expected) in [
            ("read-foo", of_foo, document(Kind::SyncSet, "foo", "base")),
            ("read-foo", of_all, Err(ProblemKind::Forbidden)),
            ("read-*", of_all, document(Kind::SelectorSyncSet, "", "base")),
            ("read-foo", &[("namespace", "foo")], namespace.clone()),
            ("admin-*", &[("namespace", "foo")], namespace),
            ("admin-foo", &[("namespace", "bar")], Err(ProblemKind::Forbidden)),
            ("admin-foo", &[], Err(ProblemKind::Forbidden)),
            ("read-*", &[], Ok(Subject::AllDocuments)),
            ("write-*", &[], Ok(Subject::AllDocuments)),
            ("admin-*", &[], Ok(Subject::Everything)),
            ("admin-*", &[("kind", "syncsets")], Err(ProblemKind::Parameter)),
            ("admin-*", &[("name", "base")], Err(ProblemKind::Parameter)),
            ("admin-*", &[("kind", "syncsets"), ("name", "base")], Err(ProblemKind::Parameter)),
            ("admin-*", &[("kind", "pods"), ("name", "base")], Err(ProblemKind::Parameter)),
            ("admin-*", &[("since", "yesterday")], Err(ProblemKind::Parameter)),
            ("admin-*", &[("continue", "2")], Err(ProblemKind::Parameter)),
        ] {
            assert_eq!(asked(&access, token, parameters), expected, "{token} {parameters:?}");
        }
    }

    #[test]
    fn a_record_of_null_keeps_it() {
        let details: HistoryDetails =
            serde_json::from_str(r#"{"changes": [{"path": "/a", "before": null}], "newer": 1}"#).expect("details");
        let shown = serde_json::to_value(details).expect("JSON");
        assert_eq!(shown, serde_json::json!({"changes": [{"path": "/a", "before": null}]}));
    }
}
