//! The OpenAPI document of the REST API, and Swagger UI to read it.
//!
//! Neither needs a token: both are the same for everybody and show nothing of the documents. The description of a hub without tokens
//! asks for none.

mod operations;
mod schemas;
mod types;

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::Bytes;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use http::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{InfoBuilder, License, OpenApi, OpenApiBuilder, SecurityRequirement};

use crate::job::routes::ApiRoute;

/// Swagger UI 5.35.0, compressed. The licence is beside it.
const SCRIPT: &[u8] = include_bytes!("swagger/swagger-ui-bundle.js.gz");
const STYLE: &[u8] = include_bytes!("swagger/swagger-ui.css.gz");
const PAGE: &str = include_str!("swagger/index.html");
const START: &str = include_str!("swagger/start.js");

/// The name of the security scheme.
const BEARER: &str = "token";

/// The document as it is served.
fn rendered(has_tokens: bool, mounted: &[Arc<ApiRoute>]) -> Bytes {
    // Serializing schemas, which are plain data, does not fail.
    Bytes::from(serde_json::to_vec_pretty(&document(has_tokens, mounted)).unwrap_or_default())
}

/// `/openapi.json` and `/docs` of a hub with tokens or without, which serves these routes of other jobs.
pub fn router<S: Clone + Send + Sync + 'static>(has_tokens: bool, mounted: Vec<Arc<ApiRoute>>) -> Router<S> {
    // It is rendered when it is first asked for.
    let document = Arc::new(OnceLock::new());
    let description = move || document.get_or_init(|| rendered(has_tokens, &mounted)).clone();
    let asset = |media: &'static str, content: &'static [u8]| {
        get(move || async move {
            // Every browser accepts gzip, and there is no other copy.
            let headers = [(CONTENT_TYPE, media), (CONTENT_ENCODING, "gzip"), (CACHE_CONTROL, "public, max-age=86400")];
            (headers, content).into_response()
        })
    };
    Router::new()
        .route("/openapi.json", get(async move || ([(CONTENT_TYPE, "application/json")], description())))
        .route("/docs", get(async || Redirect::permanent("/docs/")))
        .route("/docs/", get(page))
        .route("/docs/start.js", get(async || ([(CONTENT_TYPE, "text/javascript")], START)))
        .route("/docs/swagger-ui-bundle.js", asset("text/javascript", SCRIPT))
        .route("/docs/swagger-ui.css", asset("text/css", STYLE))
}

async fn page() -> Response {
    // Swagger UI sets styles in its elements and has its pictures in its own files.
    let policy = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'";
    ([(CONTENT_TYPE, "text/html; charset=utf-8"), (CONTENT_SECURITY_POLICY, policy)], PAGE).into_response()
}

/// The document of a hub with tokens or without, which serves these routes of other jobs.
fn document(has_tokens: bool, mounted: &[Arc<ApiRoute>]) -> OpenApi {
    let mut components = schemas::all(mounted);
    if has_tokens {
        let mut bearer = Http::new(HttpAuthScheme::Bearer);
        bearer.description = Some("A token of `tokens_file`. On loopback without that file none is needed.".to_owned());
        components.add_security_scheme(BEARER, SecurityScheme::Http(bearer));
    }
    let info = InfoBuilder::new()
        .title("Towline hub")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some("Desired state for many clusters: documents with optimistic concurrency, lists and watches."))
        .license(Some(License::new("Apache-2.0")));
    OpenApiBuilder::new()
        .info(info)
        .paths(operations::all(has_tokens, mounted))
        .components(Some(components))
        .security(has_tokens.then(|| [SecurityRequirement::new(BEARER, [""; 0])]))
        .build()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use http::StatusCode;
    use serde_json::Value;

    use super::*;
    use crate::documents::Kind;
    use crate::hub::run::api::routes::operations;
    use crate::hub::run::problem;

    fn rendered() -> Value {
        serde_json::from_slice(&super::rendered(true, &[])).expect("JSON")
    }

    /// Every value of this key, anywhere.
    fn all_of<'v>(value: &'v Value, key: &str, found: &mut Vec<&'v Value>) {
        match value {
            Value::Object(map) => {
                found.extend(map.get(key));
                map.values().for_each(|inner| all_of(inner, key, found));
            }
            Value::Array(list) => list.iter().for_each(|inner| all_of(inner, key, found)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_leads_to_a_schema_and_every_schema_is_referred_to() {
        let document = rendered();
        let mut references = Vec::new();
        all_of(&document, "$ref", &mut references);
        let referred: BTreeSet<&str> = references.iter().filter_map(|reference| reference.as_str()).collect();
        let schemas = document["components"]["schemas"].as_object().expect("schemas");
        let there: BTreeSet<String> = schemas.keys().map(|name| format!("#/components/schemas/{name}")).collect();
        assert_eq!(referred, there.iter().map(String::as_str).collect());
    }

    #[test]
    fn no_schema_allows_null_which_generators_for_openapi_3_0_can_not_read() {
        let document = rendered();
        assert_eq!(document["openapi"], "3.1.0");
        let mut types = Vec::new();
        all_of(&document, "type", &mut types);
        assert!(types.len() > 100, "{} types", types.len());
        for of_type in types {
            assert!(of_type.is_string() || of_type.is_object(), "{of_type}");
            assert_ne!(of_type, "null");
        }
    }

    #[test]
    fn every_operation_is_described_with_the_parameters_that_it_has() {
        let document = rendered();
        for operation in operations() {
            let described = &document["paths"][&operation.path][operation.method.as_str().to_lowercase()];
            let parameters = described["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
            let of = |place: &str| -> BTreeSet<&str> {
                let here = parameters.iter().filter(|parameter| parameter["in"] == place);
                here.filter_map(|parameter| parameter["name"].as_str()).collect()
            };
            let mut expected: BTreeSet<&str> = operation.action.parameters().iter().copied().collect();
            if operation.kind == Some(Kind::SelectorSyncSet) {
                // It has none to select by.
                expected.remove("namespace");
            }
            assert_eq!(of("query"), expected, "{operation:?}");
            let variables = operation.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
            assert_eq!(of("path"), variables.collect(), "{operation:?}");
        }
        let described: usize = document["paths"]
            .as_object()
            .map_or(0, |paths| paths.values().filter_map(|path| path.as_object()).map(serde_json::Map::len).sum());
        assert_eq!(described, operations().len() + 1, "something that the API does not have is described");
    }

    /// The keys of an object; none of anything else.
    fn keys(value: &Value) -> BTreeSet<String> {
        value.as_object().map(|map| map.keys().cloned().collect()).unwrap_or_default()
    }

    #[test]
    fn every_operation_is_described_with_the_bodies_headers_and_answers_that_it_has() {
        let document = rendered();
        for operation in operations() {
            let (action, described) =
                (operation.action, &document["paths"][&operation.path][operation.method.as_str().to_lowercase()]);
            let parameters = described["parameters"].as_array().map(Vec::as_slice).unwrap_or_default();
            let headers = parameters.iter().filter(|parameter| parameter["in"] == "header");
            let headers: BTreeSet<&str> = headers.filter_map(|header| header["name"].as_str()).collect();
            assert_eq!(headers, action.headers().iter().copied().collect(), "{operation:?}");
            let bodies = action.bodies().iter().map(|(name, _)| (*name).to_owned());
            assert_eq!(keys(&described["requestBody"]["content"]), bodies.collect(), "{operation:?}");

            let (responses, mut statuses) = (&described["responses"], BTreeSet::new());
            let expect = |status: StatusCode, media: &[&str], headers: &[&str]| {
                let response = &responses[status.as_str()];
                let of = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
                assert_eq!(keys(&response["content"]), of(media), "{operation:?} {status}");
                assert_eq!(keys(&response["headers"]), of(headers), "{operation:?} {status}");
                status.as_str().to_owned()
            };
            for success in action.successes() {
                statuses.insert(expect(success.status, success.media, success.headers));
            }
            for kind in action.problems() {
                let status = problem::status(kind);
                statuses.insert(expect(status, &["application/problem+json"], problem::headers(status)));
                let about = responses[status.as_str()]["description"].as_str().unwrap_or_default();
                assert!(about.contains(&format!("`{}`", kind.as_str())), "{operation:?} {kind:?}: {about}");
            }
            assert_eq!(keys(responses), statuses, "{operation:?}");
        }
    }

    #[test]
    fn routes_of_other_jobs_are_described_like_those_of_the_hub() {
        let routes = crate::hub::run::api::mounted::tests::routes();
        let document: Value = serde_json::from_slice(&super::rendered(true, &routes)).expect("JSON");
        let post = &document["paths"]["/v1/specimens/{namespace}/{name}"]["post"];
        assert_eq!((&post["operationId"], &post["tags"][0]), (&"makeSpecimen".into(), &"specimens".into()));
        let parameters = post["parameters"].as_array().expect("parameters");
        let told: Vec<_> = parameters.iter().map(|one| (one["in"].as_str(), one["name"].as_str())).collect();
        let expected = [("path", "namespace"), ("path", "name"), ("query", "depth"), ("query", "word")];
        assert_eq!(told, expected.map(|(place, name)| (Some(place), Some(name))));
        assert_eq!(parameters[2]["schema"]["maximum"], 9);
        assert_eq!(
            post["requestBody"]["content"]["application/json"]["schema"]["$ref"],
            "#/components/schemas/SpecimenBody"
        );
        assert_eq!(
            post["responses"]["202"]["content"]["application/json"]["schema"]["$ref"],
            "#/components/schemas/Specimen"
        );
        // Those of all requests, those of bodies, and its own.
        let statuses = ["202", "400", "401", "403", "404", "413", "415", "422", "429", "503"];
        assert_eq!(keys(&post["responses"]), statuses.map(str::to_owned).into());
        let get = &document["paths"]["/v1/specimens"]["get"];
        assert_eq!(
            keys(&get["responses"]),
            ["200", "400", "401", "403", "413", "429", "503"].map(str::to_owned).into()
        );
        assert_eq!(get["requestBody"], Value::Null);
        let schemas = keys(&document["components"]["schemas"]);
        for schema in ["Specimen", "SpecimenBody", "SpecimenPart"] {
            assert!(schemas.contains(schema), "{schema}");
        }
    }

    #[test]
    fn what_may_be_absent_is_not_required() {
        let schemas = &rendered()["components"]["schemas"];
        let required = |schema: &str| -> Vec<String> {
            let names = schemas[schema]["required"].as_array().map(Vec::as_slice).unwrap_or_default();
            let mut names: Vec<String> = names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect();
            names.sort();
            names
        };
        assert_eq!(required("ClusterCreate"), ["kubeconfig", "name", "namespace"]);
        assert_eq!(required("SelectorSyncSetCreate"), ["name"]);
        assert!(required("SecretReplace").is_empty() && required("Which").is_empty());
        for kind in Kind::ALL {
            let required = required(kind.name());
            let has = |name: &str| required.iter().any(|required| required == name);
            // A document that is being deleted has `deletedAt`, and a list of metadata no status and no own fields.
            assert!(has("id") && has("labels") && !has("status") && !has("deletedAt") && !has("spec"), "{required:?}");
            assert_eq!(has("namespace"), kind.is_namespaced(), "{required:?}");
        }
    }

    #[test]
    fn every_parameter_header_and_property_says_what_it_is() {
        let document = rendered();
        let mut described = Vec::new();
        for key in ["parameters", "headers", "properties"] {
            let mut found = Vec::new();
            all_of(&document, key, &mut found);
            for group in found {
                match group {
                    Value::Array(list) => described.extend(list),
                    Value::Object(map) => described.extend(map.values()),
                    _ => {}
                }
            }
        }
        assert!(described.len() > 200, "{}", described.len());
        for one in described {
            let is_described =
                one.get("$ref").is_some() || one["description"].as_str().is_some_and(|text| !text.is_empty());
            assert!(is_described, "{one}");
        }
    }

    /// Removes this key from all objects.
    fn remove_all(value: &mut Value, key: &str) {
        match value {
            Value::Object(map) => {
                map.remove(key);
                map.values_mut().for_each(|inner| remove_all(inner, key));
            }
            Value::Array(list) => list.iter_mut().for_each(|inner| remove_all(inner, key)),
            _ => {}
        }
    }

    #[test]
    fn a_hub_without_tokens_asks_for_none_and_is_otherwise_described_alike() {
        let local: Value = serde_json::from_slice(&super::rendered(false, &[])).expect("JSON");
        let mut guarded = rendered();
        assert_eq!(guarded["security"], serde_json::json!([{BEARER: []}]));
        assert_eq!(guarded["paths"]["/openapi.json"]["get"]["security"], serde_json::json!([{}]));
        for key in ["security", "securitySchemes"] {
            let mut found = Vec::new();
            all_of(&local, key, &mut found);
            assert!(found.is_empty(), "{key}: {found:?}");
            remove_all(&mut guarded, key);
        }
        assert_eq!(local, guarded);
    }

    #[test]
    fn every_operation_has_an_id_of_its_own() {
        let document = rendered();
        let mut ids = Vec::new();
        all_of(&document, "operationId", &mut ids);
        let distinct: BTreeSet<&str> = ids.iter().filter_map(|id| id.as_str()).collect();
        assert_eq!(distinct.len(), ids.len(), "{ids:?}");
        assert!(distinct.contains("patchClusterStatus") && distinct.contains("listSelectorSyncSets"), "{distinct:?}");
    }
}
