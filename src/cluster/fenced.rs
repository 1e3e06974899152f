//! The last check of a claim, below every queue and directly above the connection.
//!
//! A request carries its [`Claim`] as an extension. The claim is checked when the request is passed to the HTTP client,
//! which may still wait for a connection, and again when the connection starts with the body: hyper polls the body after
//! it has put the head into its buffer and before it writes any of it, so a claim that has expired meanwhile fails the
//! request before anything is sent. A request without a body (a read) is checked once.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response};
use http_body::{Frame, SizeHint};
use kube::client::Body;
use tower::{BoxError, Layer, Service};

use super::fence::Claim;

/// Sends a request with a claim only while that holds.
pub(super) struct FenceLayer;

impl<S> Layer<S> for FenceLayer {
    type Service = Fenced<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Fenced { inner }
    }
}

#[derive(Clone)]
pub(super) struct Fenced<S> {
    inner: S,
}

impl<S, R> Service<Request<Body>> for Fenced<S>
where
    S: Service<Request<FencedBody>, Response = Response<R>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let claim = request.extensions_mut().remove::<Claim>();
        let (parts, inner) = request.into_parts();
        let request = Request::from_parts(parts, FencedBody { inner, claim: claim.clone() });
        // hyper's client does nothing before it is polled.
        let exchange = self.inner.call(request);
        Box::pin(async move {
            // Inside the future, so that it is checked when the request is polled and not when it was created.
            if let Some(claim) = claim {
                claim.left_for_a_request()?;
            }
            exchange.await.map_err(Into::into)
        })
    }
}

/// A body that fails once its claim has expired.
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

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use http::Uri;
    use hyper_util::client::legacy::Client as HyperClient;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use tokio::io::AsyncReadExt;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::Semaphore;
    use tokio::task::JoinHandle;
    use tower::{ServiceBuilder, ServiceExt, service_fn};

    use super::*;
    use crate::cluster::clock::Clock;
    use crate::cluster::fence::{Expired, Fence};

    /// Sends a request under a claim, whose connection is opened when the semaphore has a permit. Returns what the server
    /// receives: everything up to the blank line after the head, or to the end of the connection.
    async fn request(
        fence: &Fence,
        connect: Arc<Semaphore>,
    ) -> (JoinHandle<Result<Response<hyper::body::Incoming>, BoxError>>, JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connector = service_fn(move |_: Uri| {
            let connect = Arc::clone(&connect);
            Box::pin(async move {
                connect.acquire().await.map_err(io::Error::other)?.forget();
                Ok::<_, io::Error>(TokioIo::new(TcpStream::connect(address).await?))
            })
        });
        let client: HyperClient<_, FencedBody> = HyperClient::builder(TokioExecutor::new()).build(connector);
        let service = ServiceBuilder::new().layer(FenceLayer).service(client);
        let mut request = Request::post(format!("http://{address}/x")).body(Body::from(b"content".to_vec())).unwrap();
        request.extensions_mut().insert(fence.claim().unwrap());
        let sent = tokio::spawn(service.oneshot(request));
        let arrived = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut arrived = Vec::new();
            while !arrived.ends_with(b"content") && stream.read_buf(&mut arrived).await.unwrap_or(0) > 0 {}
            String::from_utf8(arrived).unwrap()
        });
        (sent, arrived)
    }

    #[tokio::test]
    async fn a_claim_that_ends_while_the_connection_is_made_leaves_nothing_on_the_wire() {
        let connect = Arc::new(Semaphore::new(0));
        let fence = Fence::new("databases", Clock::Boot);
        fence.open(fence.now() + std::time::Duration::from_hours(1));
        let (sent, arrived) = request(&fence, Arc::clone(&connect)).await;
        // The connector has its own clone while it waits.
        while Arc::strong_count(&connect) < 3 {
            tokio::task::yield_now().await;
        }
        fence.close();
        connect.add_permits(1);
        let error = sent.await.unwrap().expect_err("nothing was sent");
        let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&*error);
        while let Some(inner) = source.filter(|inner| !inner.is::<Expired>()) {
            source = inner.source();
        }
        assert!(source.is_some(), "not for the claim's sake: {error:?}");
        assert_eq!(arrived.await.unwrap(), "", "something was written");
    }

    #[tokio::test]
    async fn a_claim_that_holds_lets_the_whole_request_through() {
        let fence = Fence::new("databases", Clock::Boot);
        fence.open(fence.now() + std::time::Duration::from_hours(1));
        let (sent, arrived) = request(&fence, Arc::new(Semaphore::new(1))).await;
        let arrived = arrived.await.unwrap();
        assert!(arrived.starts_with("POST /x HTTP/1.1\r\n") && arrived.ends_with("content"), "{arrived}");
        sent.abort();
    }
}
