//! The page that shows a daemon or a fleet: static files in the binary, the same for everybody.
//!
//! What a page shows it asks for as JSON, with the token that its reader has typed, which it keeps in memory: so it has the rights of the
//! command line, and there are no cookies. It loads nothing from elsewhere, and its policy lets no text become code. There is no build step:
//! the files here are what browsers get. `lit-html.js` is that of lit-html 3.3.3 without its source map; its
//! licence (BSD-3-Clause) is beside it.

use axum::Router;
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue, StatusCode};
use sha2::{Digest, Sha256};

/// What a server shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// One daemon, from its admin server.
    Daemon,
    /// All clusters of a hub, from its API.
    Fleet,
}

/// Only files of this server, and no text that becomes a script, an address of one, or markup that lit-html has not made.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; \
     form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types lit-html",
);

const SCRIPT: &str = "text/javascript; charset=utf-8";
/// The files that all pages have: name, media type, content.
const SHARED: [(&str, &str, &str); 4] = [
    ("page.css", "text/css; charset=utf-8", include_str!("page.css")),
    ("page.js", SCRIPT, include_str!("page.js")),
    ("lit-html.js", SCRIPT, include_str!("lit-html.js")),
    ("icon.svg", "image/svg+xml", include_str!("icon.svg")),
];

impl Page {
    /// The page itself, and its script.
    fn own(self) -> (&'static str, (&'static str, &'static str)) {
        match self {
            Self::Daemon => (include_str!("daemon.html"), ("daemon.js", include_str!("daemon.js"))),
            Self::Fleet => (include_str!("fleet.html"), ("fleet.js", include_str!("fleet.js"))),
        }
    }

    /// `/ui/` and the files below it.
    pub fn router<S: Clone + Send + Sync + 'static>(self) -> Router<S> {
        let (page, (name, script)) = self.own();
        let files = SHARED.into_iter().chain([("", "text/html; charset=utf-8", page), (name, SCRIPT, script)]);
        let redirect = get(async || Redirect::permanent("ui/"));
        files.fold(Router::new().route("/ui", redirect), |router, (name, media, content)| {
            router.route(&format!("/ui/{name}"), get(async move |asked: HeaderMap| file(&asked, media, content)))
        })
    }
}

/// A file with its digest as `ETag`; 304 without it if the browser says that it has it.
fn file(asked: &HeaderMap, media: &'static str, content: &'static str) -> Response {
    let tag = format!("\"{:x}\"", Sha256::digest(content));
    let known = asked.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let is_known = known.flat_map(|tags| tags.split(',')).any(|known| known.trim().trim_start_matches("W/") == tag);
    let kept = [(ETAG, tag), (CACHE_CONTROL, "no-cache".to_owned())];
    if is_known {
        return (StatusCode::NOT_MODIFIED, kept).into_response();
    }
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(media)),
        (CONTENT_SECURITY_POLICY, POLICY),
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ];
    (kept, headers, content).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use http::Request;
    use http::header::LOCATION;
    use tower::ServiceExt;

    use super::*;

    async fn ask(page: Page, path: &str, known: Option<&HeaderValue>) -> Response {
        let mut request = Request::get(path);
        if let Some(known) = known {
            request = request.header(IF_NONE_MATCH, known);
        }
        let request = request.body(Body::empty()).expect("a request");
        page.router::<()>().oneshot(request).await.expect("routes never fail")
    }

    #[tokio::test]
    async fn every_file_has_the_policy_and_is_sent_once() {
        for (page, path, media) in [
            (Page::Daemon, "/ui/", "text/html"),
            (Page::Daemon, "/ui/daemon.js", "text/javascript"),
            (Page::Fleet, "/ui/", "text/html"),
            (Page::Fleet, "/ui/fleet.js", "text/javascript"),
            (Page::Fleet, "/ui/page.js", "text/javascript"),
            (Page::Fleet, "/ui/lit-html.js", "text/javascript"),
            (Page::Fleet, "/ui/page.css", "text/css"),
            (Page::Fleet, "/ui/icon.svg", "image/svg+xml"),
        ] {
            let first = ask(page, path, None).await;
            assert_eq!(first.status(), StatusCode::OK, "{path}");
            let header = |name| first.headers()[name].to_str().expect("text");
            assert!(header(CONTENT_TYPE).starts_with(media), "{path}");
            let policy = header(CONTENT_SECURITY_POLICY);
            for part in ["default-src 'none'", "script-src 'self'", "require-trusted-types-for 'script'"] {
                assert!(policy.contains(part), "{path}: {policy}");
            }
            assert!(!policy.contains("unsafe"), "{policy}");
            let tag = first.headers()[ETAG].to_str().expect("text");
            for (known, expected) in [
                (tag.to_owned(), StatusCode::NOT_MODIFIED),
                (format!("\"other\", W/{tag}"), StatusCode::NOT_MODIFIED),
                ("\"other\"".to_owned(), StatusCode::OK),
            ] {
                let known = HeaderValue::from_str(&known).expect("a header");
                assert_eq!(ask(page, path, Some(&known)).await.status(), expected, "{path}");
            }
        }
        let redirect = ask(Page::Daemon, "/ui", None).await;
        assert_eq!(
            (redirect.status().is_redirection(), &redirect.headers()[LOCATION]),
            (true, &HeaderValue::from_static("ui/"))
        );
    }

    /// The policy would refuse it anyway; this says so before a browser does.
    #[tokio::test]
    async fn no_file_has_a_script_a_style_or_an_address_of_elsewhere_in_its_markup() {
        for page in [Page::Daemon, Page::Fleet] {
            let body = to_bytes(ask(page, "/ui/", None).await.into_body(), 1 << 20).await.expect("a body");
            let page = String::from_utf8(body.to_vec()).expect("UTF-8");
            for foreign in ["<style", " style=", "onclick", "http:", "https:", "src=\"/", "href=\"/"] {
                assert!(!page.contains(foreign), "{foreign} in {page}");
            }
            assert_eq!(page.matches("<script").count(), page.matches("<script type=\"module\" src=\"").count());
        }
        for script in [include_str!("page.js"), include_str!("daemon.js"), include_str!("fleet.js")] {
            for risky in ["innerHTML", "unsafeHTML", "eval(", "document.cookie", "localStorage", "sessionStorage"] {
                assert!(!script.contains(risky), "{risky}");
            }
        }
    }
}
