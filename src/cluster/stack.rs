//! The HTTP stack under a cluster's client.
//!
//! It replaces kube's default stack for three reasons. It does not retry, because a retried write would hide an unknown
//! outcome. It notices dead peers, by the connections of `http::connector`, and behind a proxy that stays up by [`Alive`].
//! It counts every request under the names that controller-runtime uses. Through a proxy the same stack runs in a tunnel:
//! cancelled requests are dropped there, too, and the claim is checked once the tunnel is open.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Limited};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt};
use kube::{Client, Config};
use tower::util::{BoxCloneSyncService, MapRequestLayer};
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt};

use super::bearer::Bearer;
use super::fenced::{FenceLayer, FencedBody};
use crate::http::{Alive, Answers, DeniedNetworks, Proxy, direct};
use crate::telemetry::RestClientMetrics;

/// Idle connections are closed after this time: a burst opens up to `max_in_flight` of them, each with its TLS buffers.
pub(super) const POOL_IDLE: Duration = Duration::from_secs(20);
/// The same for periodic requests: longer than their usual period, and as long as in Go's clients.
pub(super) const STEADY_POOL_IDLE: Duration = Duration::from_secs(90);

/// The most bytes of an answer that is not a success. A `Status` has a few kilobytes.
pub(super) const LARGEST_REFUSAL: usize = 256 << 10;

/// The most bytes of an answer's head, and of what a connection reads at a time. An API server's head has a kilobyte. hyper would let
/// the buffer grow to 400 KiB with a long list, and keep it for as long as the connection is kept.
const LARGEST_HEAD: usize = 32 << 10;

/// The layers between a request and the API server. A clone of it is cheap, and sends at once, while kube's client passes
/// every request to another task.
pub(super) type Transport = BoxCloneSyncService<Request<Body>, Response<Answer>, BoxError>;

/// The body of an answer, of any client.
pub(super) type Answer = UnsyncBoxBody<Bytes, BoxError>;

fn answer<B>(response: Response<B>) -> Response<Answer>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let is_refusal = !response.status().is_success();
    response.map(|body| {
        if is_refusal {
            // kube's client reads all of it.
            Limited::new(body, LARGEST_REFUSAL).boxed_unsync()
        } else {
            body.map_err(Into::into).boxed_unsync()
        }
    })
}

/// A transport over the client of a test.
#[cfg(test)]
pub(super) fn through(client: Client) -> Transport {
    let send = move |request| {
        let client = client.clone();
        async move { client.send(request).await.map(answer).map_err(BoxError::from) }
    };
    BoxCloneSyncService::new(tower::service_fn(send))
}

/// The settings of a transport, apart from its destination.
pub(super) struct Settings {
    /// Every answer has to begin within this time, also that of a watch.
    pub(super) headers_within: Duration,
    /// An idle connection is closed after this time.
    pub(super) pool_idle: Duration,
    /// The token of the requests, if the configuration has none.
    pub(super) bearer: Option<Bearer>,
    /// The label under which the requests are counted, if it is not the server's address.
    pub(super) counted_as: Option<&'static str>,
    /// The networks to which no connection is made.
    pub(super) denied: DeniedNetworks,
}

/// A transport for one set of credentials, and a kube client over it.
pub(super) fn connect(
    config: Config,
    Settings { headers_within, pool_idle, bearer, counted_as, denied }: Settings,
) -> Result<(Transport, Client), kube::Error> {
    let connector = match &config.proxy_url {
        None => direct(&denied),
        Some(url) => match Proxy::of_url(url) {
            Some(proxy) => proxy.connector(&denied, |tcp| config.rustls_https_connector_with_connector(tcp))?,
            // Without the URL, which may have a password.
            None => return Err(kube::Error::ProxyProtocolUnsupported { proxy_url: Box::default() }),
        },
    };
    let host = config.cluster_url.authority().map(ToString::to_string).unwrap_or_default();
    let answers = Answers::of(&host);
    let requests = Arc::new(RestClientMetrics::new(counted_as.map_or(host, str::to_owned)));
    let count = CountLayer { requests, headers_within };
    let connector = config.rustls_https_connector_with_connector(connector)?;
    let connector = connector.map_response(move |stream| Alive::new(stream, answers.clone()));
    let client: HyperClient<_, FencedBody> = HyperClient::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(pool_idle)
        .http1_max_buf_size(LARGEST_HEAD)
        // hyper retries a request if a reused connection was closed before the request was sent. It never sends twice what
        // it has written, so that stays enabled.
        .build(connector);
    let service = ServiceBuilder::new()
        .layer(count)
        .layer(ConsistentListLayer)
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .option_layer(bearer.map(|bearer| MapRequestLayer::new(move |request| bearer.authorize(request))))
        .layer(config.extra_headers_layer()?)
        .layer(FenceLayer)
        .service(client);
    let transport = BoxCloneSyncService::new(service.map_response(answer));
    Ok((transport.clone(), Client::new(transport, config.default_namespace)))
}

/// kube's watcher requests a streamed list with `resourceVersion=0`, which an API server may answer from an old cache.
/// Without a version the answer is consistent: as new as etcd when the request arrived.
#[derive(Clone)]
struct ConsistentListLayer;

impl<S> Layer<S> for ConsistentListLayer {
    type Service = ConsistentList<S>;

    fn layer(&self, inner: S) -> Self::Service {
        ConsistentList { inner }
    }
}

#[derive(Clone)]
struct ConsistentList<S> {
    inner: S,
}

impl<S, B> Service<Request<B>> for ConsistentList<S>
where
    S: Service<Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        if let Some(uri) = consistent(request.uri()) {
            *request.uri_mut() = uri;
        }
        self.inner.call(request)
    }
}

/// The URI without `resourceVersion=0`, if it requests a streamed list.
fn consistent(uri: &Uri) -> Option<Uri> {
    let query = uri.query()?;
    if !query.split('&').any(|pair| pair == "sendInitialEvents=true") {
        return None;
    }
    let kept: Vec<&str> = query.split('&').filter(|pair| *pair != "resourceVersion=0").collect();
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(format!("{}?{}", uri.path(), kept.join("&")).parse().ok()?);
    Uri::from_parts(parts).ok()
}

/// Counts every request and its status, and cancels one whose answer does not begin in time. That includes watches, whose
/// headers come at once.
#[derive(Clone)]
struct CountLayer {
    requests: Arc<RestClientMetrics>,
    headers_within: Duration,
}

impl<S> Layer<S> for CountLayer {
    type Service = Count<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Count { inner, requests: Arc::clone(&self.requests), headers_within: self.headers_within }
    }
}

#[derive(Clone)]
struct Count<S> {
    inner: S,
    requests: Arc<RestClientMetrics>,
    headers_within: Duration,
}

impl<S, B, R> Service<Request<B>> for Count<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let method = request.method().clone();
        let (requests, within) = (Arc::clone(&self.requests), self.headers_within);
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = match tokio::time::timeout(within, answer).await {
                Ok(answer) => answer.map_err(Into::into),
                Err(elapsed) => Err(BoxError::from(elapsed)),
            };
            requests.answered(answer.as_ref().ok().map(Response::status), &method);
            answer
        })
    }
}

#[cfg(test)]
mod proxy_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_streamed_list_is_never_requested_from_an_old_cache() {
        let uri: Uri =
            "/apis/g/v1/things?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=0"
                .parse()
                .unwrap();
        assert_eq!(
            consistent(&uri).unwrap().to_string(),
            "/apis/g/v1/things?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
        );
        assert!(consistent(&"/apis/g/v1/things?watch=true&resourceVersion=0".parse().unwrap()).is_none());
        assert!(consistent(&"/version".parse().unwrap()).is_none());
    }
}
