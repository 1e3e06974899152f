//! Requests for routes of other jobs: the steps that they share with the hub's own, before and after a job answers them.

use std::sync::Arc;

use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{RawPathParams, Request};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, on};
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use hyper::body::Bytes;

use super::bodies::{self, Arrived};
use super::contract::{DOCUMENTS, JSON, problems_of_mounted};
use super::parameters::QueryParameters;
use super::{Api, admit, author, limits, media, refused};
use crate::documents::{LargeSlot, Problem, ProblemKind};
use crate::hub::metrics::Route;
use crate::hub::run::problem;
use crate::job::routes::{ApiRequest, ApiRoute};

pub(super) fn method(api: &Arc<Api>, route: &Arc<ApiRoute>) -> MethodRouter {
    let filter = MethodFilter::try_from(route.method.clone()).unwrap_or(MethodFilter::TRACE);
    let (api, route) = (Arc::clone(api), Arc::clone(route));
    on(filter, move |variables: Result<RawPathParams, RawPathParamsRejection>, request: Request| {
        let (api, route) = (Arc::clone(&api), Arc::clone(&route));
        async move {
            let outcome = carry_out(&api, &route, variables.ok(), request).await;
            debug_assert!(
                outcome.as_ref().err().is_none_or(|problem| has_status_of(&route, problem.kind)),
                "{route:?} has no such problem: {outcome:?}"
            );
            let mut answer = outcome.unwrap_or_else(|problem| refused(&api, problem));
            answer.extensions_mut().insert(Route::new(route.path));
            answer
        }
    })
}

fn has_status_of(route: &ApiRoute, kind: ProblemKind) -> bool {
    problems_of_mounted(route).into_iter().any(|one| problem::status(one) == problem::status(kind))
}

async fn carry_out(
    api: &Arc<Api>,
    route: &ApiRoute,
    variables: Option<RawPathParams>,
    request: Request,
) -> Result<Response, Problem> {
    let variables = variables.ok_or_else(|| Problem::new(ProblemKind::Malformed, "the path is not UTF-8"))?;
    let (parts, body) = request.into_parts();
    let caller = admit(api, &parts, route.right.into())?;
    let allowed: Vec<&'static str> = route.parameters.iter().map(|parameter| parameter.name).collect();
    let parameters = QueryParameters::read(parts.uri.query(), &allowed).of_mounted(route.parameters)?;
    let slot_owner = caller.slot_owner();
    let arrived = if route.body.is_some() {
        media::of_one_of(DOCUMENTS, &parts.headers, caller.is_local())?;
        bodies::read(api, &caller, &parts.headers, body).await?
    } else {
        Arrived { bytes: Bytes::new(), slot: LargeSlot::default(), request_slot: api.requests.try_take(slot_owner)? }
    };
    let _read_slot = if route.reads_many { Some(api.reads.take(slot_owner, limits::PATIENCE).await?) } else { None };
    // Both slots are kept until the request has been carried out.
    let Arrived { bytes: body, slot: _slot, request_slot: _request_slot } = arrived;
    let author = author(&caller, &parts);
    let variables = variables.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let request = ApiRequest { rights: Arc::new(caller), slot_owner, author, variables, parameters, body };
    let json = route.handle(request).await?.to_string().into_bytes();
    let slot = api.answers.try_take(json.len(), slot_owner)?;
    Ok((route.status, [(CONTENT_TYPE, HeaderValue::from_static(JSON))], bodies::answer(json, slot)).into_response())
}

#[cfg(test)]
pub(in crate::hub) mod tests {
    use axum::body::Body;
    use http::header::{AUTHORIZATION, HOST};
    use http::{Method, StatusCode};
    use serde::Serialize;
    use serde_json::{Value, json};
    use tower::ServiceExt;
    use utoipa::ToSchema;

    use super::super::tests::{api_mounting, send, tokens};
    use super::*;
    use crate::hub::run::access::Access;
    use crate::job::routes::{ApiDescription, ApiRoutes, QueryParameter, QueryValue, Reach, Right};

    /// What a request said.
    #[derive(Serialize, ToSchema)]
    struct Specimen {
        /// The variables of the path.
        path: String,
        /// What the query said.
        query: Vec<String>,
        /// The body.
        body: String,
        /// A part.
        part: SpecimenPart,
    }

    #[derive(Serialize, ToSchema)]
    struct SpecimenPart {
        /// Where the caller may write.
        reach: String,
    }

    #[derive(Serialize, ToSchema)]
    struct Specimens {
        /// Their number.
        count: u32,
    }

    #[derive(ToSchema)]
    #[expect(dead_code, reason = "only its schema is used")]
    struct SpecimenBody {
        /// A text.
        text: String,
    }

    const PARAMETERS: &[QueryParameter] = &[
        QueryParameter { name: "depth", about: "How deep", value: QueryValue::Number { least: 2, most: 9 } },
        QueryParameter { name: "word", about: "A word", value: QueryValue::Text },
    ];

    /// Routes of a job that the hub knows nothing of.
    pub(in crate::hub) fn routes() -> Vec<Arc<ApiRoute>> {
        let description =
            |id| ApiDescription { id, tag: "specimens", summary: "A specimen", answer: "What the request said" };
        let make = ApiRoute::new(
            (Method::POST, "/v1/specimens/{namespace}/{name}"),
            Right::Write,
            description("makeSpecimen"),
            async |request: ApiRequest| specimen(&request),
        );
        let list = ApiRoute::new(
            (Method::GET, "/v1/specimens"),
            Right::Read,
            description("listSpecimens"),
            async |request: ApiRequest| {
                request.rights.require(Right::Read, None)?;
                Ok(Specimens { count: request.number("depth").unwrap_or_default() })
            },
        );
        let mounted = ApiRoutes::default();
        mounted.mount([make
            .with_parameters(PARAMETERS)
            .with_body::<SpecimenBody>()
            .answering(StatusCode::ACCEPTED)
            .failing_with(&[ProblemKind::NotFound])]);
        mounted.mount([list]);
        mounted.all()
    }

    fn specimen(request: &ApiRequest) -> Result<Specimen, Problem> {
        let (namespace, name) = (request.variable("namespace"), request.variable("name"));
        request.rights.require(Right::Write, Some(namespace))?;
        if name == "none" {
            return Err(Problem::new(ProblemKind::NotFound, "there is none"));
        }
        let reach = match request.rights.reach(Right::Write) {
            Reach::Everywhere => "everywhere".to_owned(),
            Reach::Within { names, prefixes } => format!("{names:?} {prefixes:?}"),
        };
        Ok(Specimen {
            path: format!("{namespace}/{name}"),
            query: request.parameters.iter().map(|(name, value)| format!("{name}={value}")).collect(),
            body: String::from_utf8_lossy(&request.body).into_owned(),
            part: SpecimenPart { reach },
        })
    }

    fn post(uri: &str, token: &str, media: &str) -> http::Request<Body> {
        let request = http::Request::post(uri).header(AUTHORIZATION, format!("Bearer {token}"));
        request.header(CONTENT_TYPE, media).header(HOST, "localhost").body(Body::from("{}")).expect("a request")
    }

    #[tokio::test]
    async fn a_mounted_route_gets_what_a_request_says_and_answers_with_its_status() {
        let api = api_mounting(tokens(), routes());
        let (status, answer) =
            send(&api, post("/v1/specimens/foo/a%20b?word=x+y&depth=3", "write-foo", "application/json")).await;
        let expected = json!({"path": "foo/a b", "query": ["depth=3", "word=x y"], "body": "{}",
            "part": {"reach": r#"["foo"] []"#}});
        assert_eq!((status, answer), (StatusCode::ACCEPTED, expected));
        let (_, answer) = send(&api, post("/v1/specimens/bar/a", "admin-*", "application/json")).await;
        assert_eq!(answer["part"]["reach"], "everywhere");
        let (_, answer) =
            send(&api_mounting(Access::Local, routes()), post("/v1/specimens/bar/a", "", "text/json")).await;
        assert_eq!(answer["status"], 415, "{answer}");
    }

    #[tokio::test]
    async fn a_mounted_route_is_as_guarded_as_the_hubs_own() {
        let api = api_mounting(tokens(), routes());
        for (uri, token, media, expected) in [
            ("/v1/specimens/foo/a", "", "application/json", 401),
            ("/v1/specimens/foo/a", "unknown", "application/json", 401),
            ("/v1/specimens/foo/a", "read-foo", "application/json", 403),
            ("/v1/specimens/foo/a", "read-*", "text/plain", 403),
            ("/v1/specimens/bar/a", "write-foo", "application/json", 403),
            ("/v1/specimens/foo/a", "write-foo", "text/plain", 415),
            ("/v1/specimens/foo/a?depth=1", "write-foo", "application/json", 400),
            ("/v1/specimens/foo/a?depth=10", "write-foo", "application/json", 400),
            ("/v1/specimens/foo/a?word=a&word=b", "write-foo", "application/json", 400),
            ("/v1/specimens/foo/a?wrod=a", "write-foo", "application/json", 400),
            ("/v1/specimens/foo/%FF", "write-foo", "application/json", 400),
            ("/v1/specimens/foo/none", "write-foo", "application/json", 404),
            ("/v1/specimens", "write-*", "application/json", 405),
            ("/v1/specimens/foo/a", "write-foo", "application/json", 202),
        ] {
            let (status, answer) = send(&api, post(uri, token, media)).await;
            assert_eq!(status.as_u16(), expected, "{uri} with {token}: {answer}");
            assert!(expected == 202 || answer["type"].as_str().is_some_and(|kind| kind.starts_with("urn:towline:")));
        }
        let get = |uri: &str, token: &str| {
            let request = http::Request::get(uri).header(AUTHORIZATION, format!("Bearer {token}"));
            send(&api, request.body(Body::empty()).expect("a request"))
        };
        assert_eq!(get("/v1/specimens", "read-foo").await.0, StatusCode::FORBIDDEN);
        assert_eq!(get("/v1/specimens", "read-*").await, (StatusCode::OK, json!({"count": 0})));
        let mut foreign = post("/v1/specimens/foo/a", "", "application/json");
        foreign.headers_mut().insert("origin", HeaderValue::from_static("http://evil.example"));
        let (status, _): (_, Value) = send(&api_mounting(Access::Local, routes()), foreign).await;
        assert_eq!(status, StatusCode::FORBIDDEN);
    }

    #[tokio::test]
    async fn requests_for_a_mounted_route_are_counted_under_its_path() {
        let api = api_mounting(tokens(), routes());
        for token in ["write-foo", "unknown"] {
            let answer = api.clone().oneshot(post("/v1/specimens/foo/a", token, "application/json")).await;
            let route = answer.expect("an answer").extensions().get::<Route>().map(|route| format!("{route:?}"));
            assert_eq!(route.as_deref(), Some("Route(\"/v1/specimens/{namespace}/{name}\")"), "{token}");
        }
    }
}
