//! The actor that posts to the API.
//!
//! State it owns: the client, the token, and the posts under way. The reconciler sends it [`Deliver`]; each carries the way for its
//! answer. It sends nothing else, and publishes how often the token has changed. Full mailbox: the reconciler never has more posts under
//! way than there is room for. Restart: the answers of the posts under way are lost, which counts as no answer, so that they are
//! repeated under their keys. Drain: it ends at once, since the reconciler has waited for its posts before.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use http::header::{AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::{oneshot, watch};

use super::super::config::{ApiUrl, InventoryConfig, TokenSource, Wire};
use super::super::plan::index::{Post, Refusal};
use crate::actor::{BoxError, Inbox, Scope};
use crate::cluster::{Fence, full_text};
use crate::http::{Ask, BearerToken, Client, ClientSettings, Error, NotAToken, Reloaded, keep_up_to_date};

/// An answer that has not come by then does not come.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// The most bytes that are read of an answer.
const LARGEST_ANSWER: usize = 64 << 10;
/// The header with the key of a post.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

pub struct Deliver {
    /// The body and where it goes.
    pub post: Post,
    /// The way for its answer.
    pub reply: oneshot::Sender<Delivered>,
}

/// How a post has ended.
pub struct Delivered {
    pub outcome: Result<(), Refusal>,
    /// How often the token had changed when it was sent.
    pub token: u64,
}

/// The API's token, kept up to date with its file.
pub struct Token {
    /// The header with it; none if there is no usable one.
    header: watch::Receiver<Arc<Option<HeaderValue>>>,
    file: Option<Reloaded<Option<HeaderValue>>>,
}

/// The poster: what all its runs have in common.
pub struct Poster {
    api: ApiUrl,
    token: Token,
    fence: Option<Fence>,
    /// How often the token has changed.
    changes: watch::Sender<u64>,
}

/// What every post needs.
#[derive(Clone)]
struct Means {
    client: Client,
    authorization: Option<HeaderValue>,
    token: u64,
}

impl Token {
    /// Reads its file, and may block on the disk.
    pub fn of(config: &InventoryConfig) -> Self {
        let wire = config.wire;
        let read = move |token: &SecretString| header(wire, token).map(Some).ok_or_else(|| NotAToken.to_string());
        match &config.token {
            TokenSource::File(path) => {
                let file = Reloaded::of_text(path.clone(), read, None);
                Self { header: file.content(), file: Some(file) }
            }
            TokenSource::Given(token) => {
                let given = read(token).unwrap_or_else(|error| {
                    tracing::error!("{error}");
                    None
                });
                Self { header: watch::channel(Arc::new(given)).1, file: None }
            }
        }
    }

    /// Why there is no usable token, or only the one that the file had before; `None` if there is one.
    pub fn fault(&self) -> Option<String> {
        match &self.file {
            Some(file) => file.fault().borrow().as_deref().map(|error| full_text(error)),
            None => self.header.borrow().is_none().then(|| NotAToken.to_string()),
        }
    }
}

impl Poster {
    pub fn new(config: &InventoryConfig, fence: Option<Fence>) -> Self {
        let (api, token) = (config.api_url.clone(), Token::of(config));
        Self { api, token, fence, changes: watch::Sender::new(0) }
    }

    /// [`Token::fault`] of its token.
    pub fn token_fault(&self) -> Option<String> {
        self.token.fault()
    }

    /// Follows how often the token has changed.
    pub fn token_changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub async fn run(self: Arc<Self>, scope: Scope, mut inbox: Inbox<Deliver>) -> Result<(), BoxError> {
        let mut authorization = self.token.header.clone();
        let reloading = keep_up_to_date(self.token.file.as_ref());
        tokio::pin!(reloading);
        let mut client = None;
        let mut under_way: FuturesUnordered<BoxFuture<'static, ()>> = FuturesUnordered::new();
        loop {
            tokio::select! {
                // The reconciler is drained before: nobody waits for what is still under way.
                () = scope.draining() => return Ok(()),
                Some(()) = under_way.next(), if !under_way.is_empty() => {}
                deliver = inbox.next() => {
                    let Some(deliver) = deliver else { return Ok(()) };
                    if client.is_none() {
                        client = self.connect().await;
                    }
                    let token = *self.changes.borrow();
                    if let Some(client) = &client {
                        let authorization = authorization.borrow().as_ref().clone();
                        let means = Means { client: client.clone(), authorization, token };
                        under_way.push(Box::pin(Arc::clone(&self).deliver(means, deliver)));
                    } else {
                        let outcome = Err(Refusal::Later { reason: "NoClient".to_owned(), after: None, may_have_arrived: false });
                        // Nobody waits for it if the reconciler has ended.
                        let _ = deliver.reply.send(Delivered { outcome, token });
                    }
                }
                Ok(()) = authorization.changed() => self.changes.send_modify(|changes| *changes += 1),
                never = &mut reloading => match never {},
            }
        }
    }

    async fn connect(&self) -> Option<Client> {
        let settings = ClientSettings {
            server: self.api.uri().clone(),
            authorities: None,
            largest_answer: LARGEST_ANSWER,
            forwarded: None,
        };
        match Client::new(settings).await {
            Ok(client) => Some(client),
            Err(error) => {
                tracing::error!(error = %full_text(&error), "failed to set up the client of the API");
                None
            }
        }
    }

    async fn deliver(self: Arc<Self>, means: Means, Deliver { post, reply }: Deliver) {
        let token = means.token;
        let outcome = self.send(means, &post).await;
        // Nobody waits for it if the reconciler has ended.
        let _ = reply.send(Delivered { outcome, token });
    }

    async fn send(&self, means: Means, post: &Post) -> Result<(), Refusal> {
        let Some(authorization) = means.authorization else { return Err(Refusal::Unauthorized) };
        let Ok(claim) = self.fence.as_ref().map(Fence::claim).transpose() else { return Err(Refusal::NotSent) };
        // In the last second of a lease, nothing begins.
        if claim.as_ref().is_some_and(|claim| claim.left_for_a_request().is_err()) {
            return Err(Refusal::NotSent);
        }
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, authorization);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // Hexadecimal digits.
        headers.extend(HeaderValue::try_from(&post.idempotency_key).ok().map(|key| (IDEMPOTENCY_KEY, key)));
        let (method, body) = (Method::POST, post.body.clone().into());
        let request = Ask { method, path: &post.path, headers, token: None, body, deadline: ANSWER_WITHIN };
        let expired = async {
            match &claim {
                Some(claim) => drop(claim.expired().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = expired => Err(Refusal::Interrupted),
            answer = means.client.ask(request) => match answer {
                Ok(answer) if answer.status.is_success() => Ok(()),
                Ok(answer) => {
                    tracing::debug!(status = %answer.status, "post refused");
                    Err(refused(answer.status, &answer.headers))
                }
                Err(error) => {
                    tracing::debug!(error = %full_text(&error), "post failed");
                    Err(unanswered(&error))
                }
            }
        }
    }
}

/// `Bearer TOKEN`, or `Basic TOKEN` with the token as it is.
fn header(wire: Wire, token: &SecretString) -> Option<HeaderValue> {
    match wire {
        Wire::Instances => BearerToken::new(token).ok().map(BearerToken::into_header),
        Wire::Single => {
            let token = token.expose_secret().trim();
            let mut value = HeaderValue::try_from(format!("Basic {token}")).ok().filter(|_| !token.is_empty())?;
            value.set_sensitive(true);
            Some(value)
        }
    }
}

/// When a post that was answered with another status than 2xx is tried again. A post that is too much for the API (429) it has not taken; a server that fails, or
/// a proxy before it, may have.
fn refused(status: StatusCode, headers: &HeaderMap) -> Refusal {
    let reason = format!("HTTP{}", status.as_u16());
    // It may be a date, too.
    let after = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let after = after.map(Duration::from_secs);
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Refusal::Unauthorized,
        StatusCode::TOO_MANY_REQUESTS => Refusal::Later { reason, after, may_have_arrived: false },
        StatusCode::REQUEST_TIMEOUT => Refusal::Later { reason, after, may_have_arrived: true },
        status if status.is_server_error() => Refusal::Later { reason, after, may_have_arrived: true },
        _ => Refusal::Rejected { reason },
    }
}

/// When a post that got no answer is tried again.
fn unanswered(error: &Error) -> Refusal {
    let reason = "NoAnswer".to_owned();
    if !error.is_outage() {
        return Refusal::Rejected { reason };
    }
    let may_have_arrived = !matches!(error, Error::Connect { .. } | Error::UnknownAuthority { .. });
    Refusal::Later { reason, after: None, may_have_arrived }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::setting::Setting;

    fn later(reason: &str, after: Option<Duration>, may_have_arrived: bool) -> Refusal {
        Refusal::Later { reason: reason.to_owned(), after, may_have_arrived }
    }

    fn of(status: u16, retry_after: Option<&'static str>) -> Refusal {
        let after = retry_after.map(|after| (RETRY_AFTER, HeaderValue::from_static(after)));
        refused(StatusCode::from_u16(status).unwrap(), &after.into_iter().collect())
    }

    #[test]
    fn every_answer_has_its_next_try() {
        for status in [500, 502, 503, 504, 408, 429] {
            assert_eq!(of(status, None), later(&format!("HTTP{status}"), None, status != 429));
        }
        let after = Some(Duration::from_secs(7));
        assert_eq!(of(429, Some("7")), later("HTTP429", after, false));
        assert_eq!(of(503, Some(" 7")), later("HTTP503", after, true));
        assert_eq!(of(503, Some("Fri, 31 Dec 1999 23:59:59 GMT")), later("HTTP503", None, true));
        for status in [401, 403] {
            assert_eq!(of(status, None), Refusal::Unauthorized);
        }
        for status in [400, 404, 409, 410, 413, 422, 301, 302, 307] {
            assert_eq!(of(status, Some("9")), Refusal::Rejected { reason: format!("HTTP{status}") });
        }
        let lost = Error::NoAnswer { server: "api".into(), within: ANSWER_WITHIN };
        assert_eq!(unanswered(&lost), later("NoAnswer", None, true));
        let lost = Error::Exchange { server: "api".into(), source: "reset".into() };
        assert_eq!(unanswered(&lost), later("NoAnswer", None, true));
        let unconnected = Error::Connect { server: "api".into(), source: "refused".into() };
        assert_eq!(unanswered(&unconnected), later("NoAnswer", None, false), "nothing was sent");
        let untrusted = Error::UnknownAuthority { server: "api".into(), source: "unknown issuer".into() };
        assert_eq!(unanswered(&untrusted), later("NoAnswer", None, false), "nothing was sent");
    }

    #[test]
    fn a_token_that_can_not_be_sent_is_reported_without_its_content() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        for (name, content) in [("good", "hunter2\n"), ("empty", ""), ("two-lines", "hunter2\nhunter3\n")] {
            std::fs::write(path(name), content).unwrap();
        }
        std::fs::create_dir(path("directory")).unwrap();
        let url = ApiUrl::from_text("https://api.example").expect("a URL");
        let fault = |source| Token::of(&InventoryConfig::new(url.clone(), source)).fault();
        assert_eq!(fault(TokenSource::File(path("good"))), None);
        for name in ["empty", "two-lines", "directory", "missing"] {
            let fault = fault(TokenSource::File(path(name))).expect("a fault");
            assert!(fault.contains(name) && !fault.contains("hunter"), "{fault}");
        }
        assert_eq!(fault(TokenSource::Given("hunter2".into())), None);
        assert_eq!(fault(TokenSource::Given("".into())), Some(NotAToken.to_string()));
    }

    #[test]
    fn each_wire_has_its_header() {
        let text = |wire, token: &str| {
            let header = header(wire, &SecretString::from(token))?;
            assert!(header.is_sensitive());
            header.to_str().ok().map(str::to_owned)
        };
        assert_eq!(text(Wire::Instances, "hunter2\n").as_deref(), Some("Bearer hunter2"));
        assert_eq!(text(Wire::Single, "dTpw\n").as_deref(), Some("Basic dTpw"));
        for wire in [Wire::Instances, Wire::Single] {
            assert_eq!((text(wire, " \n"), text(wire, "a\nb")), (None, None));
        }
    }
}
