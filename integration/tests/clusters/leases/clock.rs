//! A clock that is not the hub's.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use http::header::{AUTHORIZATION, CONTENT_LENGTH, DATE, HOST, HeaderValue, TRANSFER_ENCODING};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use integration::users;
use k8s_openapi::jiff::fmt::rfc2822::DateTimePrinter;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::Client;
use kube::client::Body;
use serde_json::json;
use tokio::net::TcpListener;

use crate::leases::world::{World, run};

/// The hub, as it would answer if its clock were ahead of ours by so many seconds.
#[derive(Clone)]
struct Shifted {
    hub: Client,
    seconds: Arc<AtomicI64>,
}

impl Shifted {
    async fn start(hub: Client) -> (Self, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shifted = Self { hub, seconds: Arc::default() };
        let served = shifted.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shifted = served.clone();
                let service = service_fn(move |request| {
                    let shifted = shifted.clone();
                    async move { Ok::<_, Infallible>(shifted.answer(request).await) }
                });
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
                );
            }
        });
        (shifted, address)
    }

    async fn answer(&self, request: http::Request<Incoming>) -> http::Response<Full<Bytes>> {
        let (mut parts, body) = request.into_parts();
        for header in [HOST, AUTHORIZATION, CONTENT_LENGTH] {
            parts.headers.remove(header);
        }
        let body = body.collect().await.unwrap().to_bytes().to_vec();
        let answer = self.hub.send(http::Request::from_parts(parts, Body::from(body))).await.unwrap();
        let (mut parts, body) = answer.into_parts();
        for header in [TRANSFER_ENCODING, CONTENT_LENGTH] {
            parts.headers.remove(header);
        }
        let date = Timestamp::now() + SignedDuration::from_secs(self.seconds.load(Ordering::SeqCst));
        let date = DateTimePrinter::new().timestamp_to_rfc9110_string(&date).unwrap();
        parts.headers.insert(DATE, HeaderValue::from_str(&date).unwrap());
        http::Response::from_parts(parts, Full::new(body.collect().await.unwrap().to_bytes()))
    }
}

#[test]
fn a_clock_that_is_wrong_by_more_than_a_third_of_the_duration_is_told_until_it_is_right() {
    run(async {
        let world = World::shared("clock", users::TOWLINE).await;
        let (hub, address) = Shifted::start(world.hub.client(users::TOWLINE).await.unwrap()).await;
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "hub", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "add-on", "user": {"token": world.token(users::TOWLINE)}}],
            "contexts": [{"name": "hub", "context": {"cluster": "hub", "user": "add-on"}}],
            "current-context": "hub",
        });
        world.put_secret(&[("kubeconfig", &kubeconfig.to_string())]).await;
        world.ready_pod().await;
        let side_car = world.side_car(&["--lease-duration=6"]).await;
        let right = |report: &serde_json::Value| {
            report["held"] == true && report["readiness"]["state"] == "ready" && report.get("clock_fault").is_none()
        };
        let report = world.report(&side_car, "a lease that is held", right).await;
        assert_eq!(report["clock_skew_seconds"], json!(0.0), "{report}");

        hub.seconds.store(600, Ordering::SeqCst);
        let behind = "this machine's clock is 9m 5";
        let report = world
            .report(&side_car, "a clock that is behind", |report| {
                let cause = report["not_held_because"].as_str().unwrap_or_default();
                report["held"] == false && cause.starts_with(behind) && cause.contains("behind")
            })
            .await;
        let skew = report["clock_skew_seconds"].as_f64().unwrap();
        assert!((-600.0..-595.0).contains(&skew), "{report}");
        assert_eq!(report["readiness"]["state"], "unreachable", "{report}");
        assert!(report["readiness"]["reason"].as_str().unwrap_or_default().starts_with(behind), "{report}");
        assert_eq!(side_car.admin().readyz().await.unwrap().status, 200, "an add-on is not unready for its clock");
        let metrics = side_car.admin().metrics().await.unwrap();
        assert!(metrics.contains("towline_lease_held{section=\"add-on\"} 0"), "{metrics}");

        hub.seconds.store(-600, Ordering::SeqCst);
        let ahead = |report: &serde_json::Value| {
            let fault = report["clock_fault"].as_str().unwrap_or_default();
            fault.contains("ahead") && report["held"] == true && report["readiness"]["state"] == "unreachable"
        };
        world.report(&side_car, "a clock that is ahead", ahead).await;
        hub.seconds.store(0, Ordering::SeqCst);
        world.report(&side_car, "a clock that is right", right).await;
        let log = side_car.log().unwrap();
        let told = log.lines().filter(|line| line.contains("WARN") && line.contains("clock of this machine is wrong"));
        assert_eq!(told.count(), 1, "{log}");
    });
}
