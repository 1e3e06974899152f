//! A node that is played: pods on it are processes of a test, and ports of theirs are forwarded as a kubelet does it, over a WebSocket with the
//! protocol `v4.channel.k8s.io`, to which an API server passes its clients through.
//!
//! It answers nothing else: no logs, no exec, and nobody makes the containers of a pod.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use http::HeaderValue;
use http::header::SEC_WEBSOCKET_PROTOCOL;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use parking_lot::Mutex;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio_rustls::server::TlsStream;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::{Bytes, Message};
use tokio_tungstenite::{WebSocketStream, accept_hdr_async};

use crate::{Error, eventually};

/// The channels of the first port of a forward.
const DATA: u8 = 0;
const FAULT: u8 = 1;

/// By namespace and name, the ports that are open in the pods, and what ends with a pod.
type Ports = Arc<Mutex<BTreeMap<(String, String), (Vec<u16>, watch::Sender<()>)>>>;

/// A node, and its pods that run.
pub struct Kubelet {
    node: String,
    client: Client,
    ports: Ports,
    server: JoinHandle<()>,
}

/// How long a namespace may take to admit pods.
const MADE_WITHIN: Duration = Duration::from_mins(1);

impl Kubelet {
    /// Registers a node, on which nothing runs yet.
    pub async fn start(client: &Client, node: &str) -> Result<Self, Error> {
        let unbound = |source| Error::Network { action: "listen as a kubelet", source };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(unbound)?;
        let address = listener.local_addr().map_err(unbound)?;
        let CertifiedKey { cert, signing_key } = generate_simple_self_signed([address.ip().to_string()])?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(signing_key.serialize_der()));
        let provider = tokio_rustls::rustls::crypto::ring::default_provider().into();
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(vec![cert.der().clone()], key))
            .map_err(|error| Error::Unreadable {
                what: "the kubelet's certificate".to_owned(),
                detail: error.to_string(),
            })?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let ports = Ports::default();
        let shared = Arc::clone(&ports);
        let server = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, ports) = (acceptor.clone(), Arc::clone(&shared));
                // A connection that ends in the midst of something has ended.
                tokio::spawn(async move {
                    let stream = acceptor.accept(stream).await.ok()?;
                    forward(stream, &ports).await
                });
            }
        });
        register(client, node, address).await?;
        Ok(Self { node: node.to_owned(), client: client.clone(), ports, server })
    }

    /// Makes a pod with this metadata that runs here, whose ports of these names are those of processes of the test.
    pub async fn run(&self, metadata: &Value, ports: &[(&str, SocketAddr)]) -> Result<(), Error> {
        let named = ports.iter().map(|(name, process)| json!({"name": name, "containerPort": process.port()}));
        let container = json!({"name": "towline", "image": "towline", "ports": named.collect::<Vec<_>>()});
        let spec = json!({"nodeName": self.node, "terminationGracePeriodSeconds": 0, "containers": [container]});
        let pod: Pod = serde_json::from_value(json!({"metadata": metadata, "spec": spec}))
            .map_err(|error| Error::Unreadable { what: "a pod".to_owned(), detail: error.to_string() })?;
        let (namespace, name) = (pod.metadata.namespace.clone().unwrap_or_default(), pod.metadata.name.clone());
        let name = name.unwrap_or_default();
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
        // The service account of a namespace comes a moment after it.
        eventually(format!("the pod {name} to be made"), MADE_WITHIN, async || {
            pods.create(&PostParams::default(), &pod).await.map(drop).map_err(|error| error.to_string())
        })
        .await?;
        let open = ports.iter().map(|(_, process)| process.port()).collect();
        self.ports.lock().insert((namespace, name.clone()), (open, watch::Sender::new(())));
        let status = json!({"status": {"phase": "Running"}});
        pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(status))
            .await
            .map_err(Error::kubernetes("let a pod run"))?;
        Ok(())
    }

    /// Takes a pod away, and then the connections to it.
    pub async fn remove(&self, namespace: &str, name: &str) -> Result<(), Error> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let at_once = DeleteParams::default().grace_period(0);
        pods.delete(name, &at_once).await.map_err(Error::kubernetes("delete a pod"))?;
        self.ports.lock().remove(&(namespace.to_owned(), name.to_owned()));
        Ok(())
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn register(client: &Client, name: &str, address: SocketAddr) -> Result<(), Error> {
    let failed = |error: serde_json::Error| Error::Unreadable { what: "a node".to_owned(), detail: error.to_string() };
    let node: Node = serde_json::from_value(json!({"metadata": {"name": name}})).map_err(failed)?;
    let nodes: Api<Node> = Api::all(client.clone());
    nodes.create(&PostParams::default(), &node).await.map_err(Error::kubernetes("register a node"))?;
    let status = json!({"status": {
        "addresses": [{"type": "InternalIP", "address": address.ip()}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": address.port()}},
    }});
    nodes
        .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
        .await
        .map_err(Error::kubernetes("say where a node is"))?;
    Ok(())
}

/// Carries one connection to a pod: `/portForward/NAMESPACE/POD?port=8384`.
async fn forward(stream: TlsStream<TcpStream>, ports: &Ports) -> Option<()> {
    let mut asked = None;
    #[expect(clippy::result_large_err, reason = "what the library takes")]
    let answer = |request: &Request, mut response: Response| -> Result<Response, ErrorResponse> {
        asked = Some(request.uri().clone());
        let protocol = HeaderValue::from_static("v4.channel.k8s.io");
        response.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, protocol);
        Ok(response)
    };
    let mut socket = accept_hdr_async(stream, answer).await.ok()?;
    let asked = asked?;
    let (namespace, name) = asked.path().strip_prefix("/portForward/")?.split_once('/')?;
    let port: u16 = asked.query()?.strip_prefix("port=")?.parse().ok()?;
    let [low, high] = port.to_le_bytes();
    for channel in [DATA, FAULT] {
        send(&mut socket, &[channel, low, high]).await?;
    }
    let runs = ports.lock().get(&(namespace.to_owned(), name.to_owned())).and_then(|(open, runs)| {
        let is_open = open.contains(&port);
        is_open.then(|| runs.subscribe())
    });
    let connected = match runs {
        Some(runs) => TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.ok().map(|pod| (pod, runs)),
        None => None,
    };
    if let Some((pod, runs)) = connected {
        carry(&mut socket, pod, runs).await?;
    } else {
        let fault = format!("error forwarding port {port} to pod {name}: connection refused");
        send(&mut socket, &[&[FAULT], fault.as_bytes()].concat()).await?;
    }
    socket.close(None).await.ok()
}

async fn send(socket: &mut WebSocketStream<TlsStream<TcpStream>>, frame: &[u8]) -> Option<()> {
    socket.send(Message::Binary(Bytes::copy_from_slice(frame))).await.ok()
}

async fn carry(
    socket: &mut WebSocketStream<TlsStream<TcpStream>>,
    mut pod: TcpStream,
    mut runs: watch::Receiver<()>,
) -> Option<()> {
    let mut buffer = vec![DATA; 32 << 10];
    loop {
        let room = buffer.get_mut(1..)?;
        tokio::select! {
            message = socket.next() => match message?.ok()? {
                Message::Binary(frame) if frame.first() == Some(&DATA) => pod.write_all(frame.get(1..)?).await.ok()?,
                Message::Close(_) => return Some(()),
                _ => {}
            },
            read = pod.read(room) => match read {
                Ok(0) | Err(_) => return Some(()),
                Ok(length) => send(socket, buffer.get(..=length)?).await?,
            },
            // The pod is gone.
            _ = runs.changed() => return Some(()),
        }
    }
}
