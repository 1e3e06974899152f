//! The last look at a claim, below every queue and right above the connection.
//!
//! A request carries its [`Claim`] as an extension. It is looked at when the request is handed to the HTTP client, which
//! may still wait for a connection, and once more when the connection takes the body up: hyper asks for the body after it
//! has put the head into its buffer and before it writes any of it, so that a claim that has ended meanwhile fails the
//! request with nothing on the wire. What has no body (a read) is looked at once.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response};
use http_body::{Frame, SizeHint};
use kube::client::Body;
use tower::{BoxError, Layer, Service};

use super::fence::Claim;

/// Sends what carries a claim only while it holds.
pub(super) struct FenceLayer<B> {
    wrap: fn(Body, Option<Claim>) -> B,
}

impl FenceLayer<FencedBody> {
    /// For a client of ours, down to the body.
    pub(super) fn new() -> Self {
        Self { wrap: |inner, claim| FencedBody { inner, claim } }
    }
}

impl FenceLayer<Body> {
    /// For a client that takes no body but its own: the request is looked at once.
    pub(super) fn once() -> Self {
        Self { wrap: |body, _| body }
    }
}

impl<S, B> Layer<S> for FenceLayer<B> {
    type Service = Fenced<S, B>;

    fn layer(&self, inner: S) -> Self::Service {
        Fenced { inner, wrap: self.wrap }
    }
}

/// See [`FenceLayer`].
pub(super) struct Fenced<S, B> {
    inner: S,
    wrap: fn(Body, Option<Claim>) -> B,
}

/// Whatever the body is: a clone holds none.
impl<S: Clone, B> Clone for Fenced<S, B> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), wrap: self.wrap }
    }
}

impl<S, B, R> Service<Request<Body>> for Fenced<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    B: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let claim = request.extensions_mut().remove::<Claim>();
        let (parts, body) = request.into_parts();
        let request = Request::from_parts(parts, (self.wrap)(body, claim.clone()));
        // hyper's client does nothing before it is polled.
        let exchange = self.inner.call(request);
        Box::pin(async move {
            // In here, so that it is looked at when somebody goes on with the request and not when it was put aside.
            if let Some(claim) = claim {
                claim.left_for_a_request()?;
            }
            exchange.await.map_err(Into::into)
        })
    }
}

/// A body that fails when its claim has ended.
pub(super) struct FencedBody {
    inner: Body,
    claim: Option<Claim>,
}

impl http_body::Body for FencedBody {
    type Data = <Body as http_body::Body>::Data;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        if let Some(Err(expired)) = self.claim.as_ref().map(Claim::left_for_a_request) {
            return Poll::Ready(Some(Err(expired.into())));
        }
        Pin::new(&mut self.inner).poll_frame(context).map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
