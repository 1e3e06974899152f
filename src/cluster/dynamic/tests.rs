//! Clusters over connections of their own to a server of the test.

use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

use super::*;
use crate::cluster::{Error, Kind, ObjectKey, PARTIAL_METADATA, Request, Urgency};

mod untrusted;

const WITHIN: Duration = Duration::from_secs(10);
const SITE: &str = r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata":
    {"name": "site", "namespace": "team", "uid": "u-1", "resourceVersion": "7"}}"#;

struct Server {
    listener: TcpListener,
    url: http::Uri,
}

impl Server {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        Self { listener, url }
    }

    /// The cluster with these credentials on this server.
    fn cluster(&self, clusters: &DynamicClusters, credentials: u16) -> Arc<DynamicCluster> {
        self.named("hub", clusters, credentials)
    }

    fn named(&self, name: &str, clusters: &DynamicClusters, credentials: u16) -> Arc<DynamicCluster> {
        self.owned("team-a", name, clusters, credentials)
    }

    fn owned(&self, owner: &str, name: &str, clusters: &DynamicClusters, credentials: u16) -> Arc<DynamicCluster> {
        let mut config = Config::new(self.url.clone());
        // The system's are read anew for each client.
        config.root_cert = Some(Vec::new());
        config.auth_info.token = Some(format!("token-{credentials}").into());
        let credentials = Credentials { config, fingerprint: fingerprint(credentials) };
        clusters.cluster(owner, &name.parse().unwrap(), credentials).unwrap()
    }

    /// Accepts a connection and reads one request on it, which has no body.
    async fn accept(&self) -> (TcpStream, String) {
        let (mut stream, _) = timeout(WITHIN, self.listener.accept()).await.expect("nobody connects").unwrap();
        let request = request(&mut stream).await;
        (stream, request)
    }

    /// Accepts a connection and answers one request on it.
    async fn answer(&self) -> TcpStream {
        let (mut stream, _) = self.accept().await;
        reply(&mut stream, "{}").await;
        stream
    }
}

fn fingerprint(credentials: u16) -> Fingerprint {
    let mut bytes = [0; 32];
    bytes[..2].copy_from_slice(&credentials.to_be_bytes());
    Fingerprint(bytes)
}

async fn request(stream: &mut TcpStream) -> String {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(timeout(WITHIN, stream.read_u8()).await.expect("no request").unwrap());
    }
    String::from_utf8(request).unwrap()
}

async fn reply(stream: &mut TcpStream, body: &str) {
    let text = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(text.as_bytes()).await.unwrap();
}

async fn get(cluster: &Cluster) -> Result<Value, Error> {
    let (kind, key) = (Kind::lease(), ObjectKey::new("n", "a"));
    let request = || Request::get(&kind, &key);
    cluster.exchange_when_admitted(request, PARTIAL_METADATA, WITHIN, Urgency::WhenAdmitted).await.answer
}

async fn is_closed(mut stream: TcpStream) -> bool {
    timeout(WITHIN, stream.read(&mut [0])).await.is_ok_and(|read| !read.is_ok_and(|bytes| bytes > 0))
}

#[tokio::test]
async fn equal_credentials_share_a_cluster_and_its_connection_until_the_last_user_is_gone() {
    let (server, clusters) = (Server::new().await, DynamicClusters::default());
    let one = server.cluster(&clusters, 1);
    let same = server.cluster(&clusters, 1);
    assert!(Arc::ptr_eq(&one, &same));
    let (answer, connection) = tokio::join!(get(&one), server.answer());
    answer.unwrap();
    drop(one);
    assert_eq!(clusters.entries.lock().len(), 1, "it is still in use");
    drop(same);
    assert!(clusters.entries.lock().is_empty(), "an entry is left");
    assert!(is_closed(connection).await, "the connection stays open");
}

#[tokio::test]
async fn other_credentials_replace_a_cluster_without_disturbing_who_still_uses_it() {
    let (server, clusters) = (Server::new().await, DynamicClusters::default());
    let before = server.cluster(&clusters, 1);
    let (answer, first) = tokio::join!(get(&before), server.answer());
    answer.unwrap();
    let after = server.cluster(&clusters, 2);
    assert_ne!(before.fingerprint(), after.fingerprint());
    let (answer, second) = tokio::join!(get(&after), server.answer());
    answer.unwrap();
    drop(before);
    assert!(is_closed(first).await, "the connection of the old credentials stays open");
    assert_eq!(clusters.entries.lock().keys().cloned().collect::<Vec<_>>(), [("hub".parse().unwrap(), fingerprint(2))]);
    // Put back: a new cluster, since the old one is gone.
    let again = server.cluster(&clusters, 1);
    assert_eq!(clusters.entries.lock().len(), 2);
    drop((after, again));
    assert!(clusters.entries.lock().is_empty() && is_closed(second).await);
}

#[tokio::test]
async fn equal_credentials_under_another_name_are_another_cluster() {
    let (server, clusters) = (Server::new().await, DynamicClusters::default());
    let (west, east) = (server.named("west", &clusters, 1), server.named("east", &clusters, 1));
    assert_eq!((west.name().as_str(), east.name().as_str()), ("west", "east"));
    assert_eq!(clusters.entries.lock().len(), 2);
}

#[tokio::test]
async fn the_requests_of_many_clusters_are_counted_under_one_label() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _recording = metrics::set_default_local_recorder(&recorder);
    for (clusters, host) in [
        (DynamicClusters::of_many(WITHIN, DEFAULT_MAX_IN_FLIGHT, "many", DeniedNetworks::default()), Some("many")),
        (DynamicClusters::default(), None),
    ] {
        let server = Server::new().await;
        let cluster = server.cluster(&clusters, 1);
        let (answer, _connection) = tokio::join!(get(&cluster), server.answer());
        answer.unwrap();
        let host = host.map_or_else(|| server.url.authority().unwrap().to_string(), str::to_owned);
        let line = format!("rest_client_requests_total{{code=\"200\",method=\"GET\",host=\"{host}\"}} 1");
        let rendered = recorder.handle().render();
        assert!(rendered.lines().any(|found| found == line), "{rendered}");
    }
}

#[tokio::test]
async fn a_thousand_idle_clusters_have_no_connections() {
    let (server, clusters) = (Server::new().await, DynamicClusters::default());
    let all: Vec<_> = (0..1000).map(|number| server.cluster(&clusters, number)).collect();
    assert_eq!(clusters.entries.lock().len(), all.len());
    // Connections are accepted in the order in which they were opened: one that no request opened comes first, and is silent.
    for number in [999, 0] {
        let accepted = async {
            let (mut stream, head) = server.accept().await;
            reply(&mut stream, "{}").await;
            head
        };
        let (answer, head) = tokio::join!(get(&all[number]), accepted);
        answer.unwrap();
        assert!(head.contains(&format!("authorization: Bearer token-{number}\r\n")), "{head}");
    }
    drop(all);
    assert!(clusters.entries.lock().is_empty());
}

#[tokio::test]
async fn a_request_in_flight_ends_by_itself_when_its_cluster_is_dropped() {
    let (server, clusters) = (Server::new().await, DynamicClusters::default());
    let dropped = server.cluster(&clusters, 1);
    let (kind, key) = (Kind::core("ConfigMap", "configmaps", true), ObjectKey::new("team", "site"));
    let handle = Cluster::clone(&dropped);
    let reading = tokio::spawn(async move { handle.get(&kind, &key).await });
    let (mut stream, head) = server.accept().await;
    assert!(head.starts_with("GET /api/v1/namespaces/team/configmaps/site HTTP/1.1\r\n"), "{head}");
    drop(dropped);
    assert!(clusters.entries.lock().is_empty(), "an entry is left");
    // Needed again before that: a cluster of its own, which the end of the old one leaves alone.
    let again = server.cluster(&clusters, 1);
    reply(&mut stream, SITE).await;
    assert_eq!(&*reading.await.unwrap().unwrap().unwrap().uid, "u-1");
    assert!(is_closed(stream).await, "the connection stays open");
    assert!(Arc::ptr_eq(&again, &server.cluster(&clusters, 1)));
}

#[tokio::test]
async fn a_cluster_that_can_not_be_connected_to_is_asked_again_when_it_listens() {
    let clusters = DynamicClusters::of_many(WITHIN, DEFAULT_MAX_IN_FLIGHT, "many", DeniedNetworks::default());
    let (socket, address) = (TcpSocket::new_v4().unwrap(), "127.0.0.1:0".parse().unwrap());
    socket.bind(address).unwrap();
    let url = format!("http://{}", socket.local_addr().unwrap()).parse().unwrap();
    let config = Config::new(url);
    let cluster = clusters
        .cluster("team-a", &"west".parse().unwrap(), Credentials { config, fingerprint: fingerprint(1) })
        .unwrap();
    let (kind, key) = (Kind::core("ConfigMap", "configmaps", true), ObjectKey::new("team", "site"));
    let error = cluster.get(&kind, &key).await.unwrap_err();
    assert_eq!(error.to_string(), "failed to connect to cluster west: connection refused");
    let server = Server { listener: socket.listen(16).unwrap(), url: http::Uri::default() };
    let (found, ()) = tokio::join!(cluster.get(&kind, &key), async {
        let (mut stream, _) = server.accept().await;
        reply(&mut stream, SITE).await;
    });
    assert_eq!(&*found.unwrap().unwrap().uid, "u-1");
}
