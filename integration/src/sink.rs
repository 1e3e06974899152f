//! An HTTP API that records every request, and answers as a test says.
//!
//! It takes JSON over HTTP/1.1, with or without TLS, and knows requests by their `Idempotency-Key`: one that it has accepted before is
//! accepted again and changes nothing.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

use crate::room::Room;
use crate::{Error, eventually};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// This status, with an empty body. A 2xx accepts the request.
    Status(u16),
    /// This status, with this body.
    Saying(u16, &'static str),
    /// This status and `Retry-After` in seconds.
    RetryAfter(u16, u64),
    /// The connection is closed, and the request not accepted.
    CutBefore,
    /// The request is accepted, and the connection closed half way through the answer.
    CutAfter,
    /// The request is accepted, and no answer comes.
    Hang,
}

impl Reply {
    fn accepts(self) -> bool {
        match self {
            Self::Status(status) | Self::Saying(status, _) => (200..300).contains(&status),
            Self::RetryAfter(..) | Self::CutBefore => false,
            Self::CutAfter | Self::Hang => true,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// When it was complete.
    pub at: Instant,
    /// Its method and path.
    pub line: String,
    pub authorization: String,
    /// `Idempotency-Key`.
    pub key: String,
    pub body: Value,
    pub accepted: bool,
}

/// What the connections and the test share, each for a moment.
#[derive(Debug, Default)]
struct State {
    told: Vec<Told>,
    script: VecDeque<Reply>,
    otherwise: Option<Reply>,
}

#[derive(Debug)]
pub struct Sink {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    server: JoinHandle<()>,
    authority: Option<PathBuf>,
    _room: Option<Room>,
}

impl Sink {
    /// A sink without TLS, which answers 200.
    pub async fn start() -> Result<Self, Error> {
        Self::serve(None, None).await
    }

    /// A sink with TLS, for `localhost`.
    pub async fn start_with_tls() -> Result<Self, Error> {
        let room = Room::new("sink")?;
        let key = KeyPair::generate()?;
        let mut authority = CertificateParams::new(Vec::new())?;
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        authority.distinguished_name.push(DnType::CommonName, "sink authority");
        room.write("ca.crt", &authority.self_signed(&key)?.pem())?;
        let issuer = Issuer::new(authority, key);
        let key = KeyPair::generate()?;
        let mut server = CertificateParams::new(vec!["localhost".to_owned()])?;
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = server.signed_by(&key, &issuer)?.pem();
        let failed = |detail: String| Error::Unreadable { what: "the sink's certificate".to_owned(), detail };
        let certificate =
            CertificateDer::from_pem_slice(certificate.as_bytes()).map_err(|error| failed(error.to_string()))?;
        let key =
            PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).map_err(|error| failed(error.to_string()))?;
        let provider = tokio_rustls::rustls::crypto::ring::default_provider().into();
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(vec![certificate], key))
            .map_err(|error| failed(error.to_string()))?;
        Self::serve(Some(TlsAcceptor::from(Arc::new(config))), Some(room)).await
    }

    async fn serve(tls: Option<TlsAcceptor>, room: Option<Room>) -> Result<Self, Error> {
        let unbound = |source| Error::Process { action: "listen for", process: "a sink".to_owned(), source };
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(unbound)?;
        let address = listener.local_addr().map_err(unbound)?;
        let state = Arc::new(Mutex::new(State::default()));
        let shared = Arc::clone(&state);
        let server = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (state, tls) = (Arc::clone(&shared), tls.clone());
                // A connection that ends in the midst of something has ended.
                tokio::spawn(async move {
                    match tls {
                        None => converse(stream, &state).await,
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => converse(stream, &state).await,
                            Err(_) => None,
                        },
                    }
                });
            }
        });
        let authority = room.as_ref().map(|room| room.join("ca.crt"));
        Ok(Self { address, state, server, authority, _room: room })
    }

    pub fn url(&self) -> String {
        match self.authority {
            None => format!("http://127.0.0.1:{}", self.address.port()),
            Some(_) => format!("https://localhost:{}", self.address.port()),
        }
    }

    pub fn authority(&self) -> Option<&PathBuf> {
        self.authority.as_ref()
    }

    /// Answers the next requests so, one after the other.
    pub fn script(&self, replies: impl IntoIterator<Item = Reply>) {
        self.state.lock().script.extend(replies);
    }

    /// Answers so from now on, when no script is left; `None` is 200.
    pub fn answer(&self, otherwise: Option<Reply>) {
        self.state.lock().otherwise = otherwise;
    }

    pub fn told(&self) -> Vec<Told> {
        self.state.lock().told.clone()
    }

    /// What was accepted, each key once, in the order of its acceptance.
    pub fn accepted(&self) -> Vec<Told> {
        let mut accepted: Vec<Told> = Vec::new();
        for told in self.told() {
            if told.accepted && accepted.iter().all(|earlier| earlier.key != told.key) {
                accepted.push(told);
            }
        }
        accepted
    }

    /// Waits until so many requests have come that a condition holds of.
    pub async fn wait_for(
        &self,
        what: &str,
        count: usize,
        limit: Duration,
        is_meant: impl Fn(&Told) -> bool,
    ) -> Result<Vec<Told>, Error> {
        eventually(format!("{count} requests: {what}"), limit, async || {
            let told = self.told();
            let meant: Vec<Told> = told.iter().filter(|told| is_meant(told)).cloned().collect();
            if meant.len() >= count { Ok(meant) } else { Err(format!("{} of {} requests", meant.len(), told.len())) }
        })
        .await
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// Answers the requests of one connection. None when it has ended.
async fn converse(mut stream: impl AsyncRead + AsyncWrite + Unpin, state: &Mutex<State>) -> Option<()> {
    let mut received = Vec::new();
    loop {
        let end = loop {
            if let Some(end) = received.windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            if stream.read_buf(&mut received).await.ok()? == 0 {
                return None;
            }
        };
        let head = String::from_utf8_lossy(received.get(..end)?).into_owned();
        let header = |name: &str| {
            let found = head.lines().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
            });
            found.unwrap_or_default()
        };
        let length: usize = header("content-length").parse().unwrap_or_default();
        while received.len() < end + length {
            if stream.read_buf(&mut received).await.ok()? == 0 {
                return None;
            }
        }
        let body = serde_json::from_slice(received.get(end..end + length)?).unwrap_or(Value::Null);
        received.drain(..end + length);
        let line = head.lines().next().unwrap_or_default().trim_end_matches(" HTTP/1.1").to_owned();
        let reply = {
            let mut state = state.lock();
            let reply = state.script.pop_front().or(state.otherwise).unwrap_or(Reply::Status(200));
            let (authorization, key) = (header("authorization"), header("idempotency-key"));
            let told = Told { at: Instant::now(), line, authorization, key, body, accepted: reply.accepts() };
            state.told.push(told);
            reply
        };
        let answer = match reply {
            Reply::Status(status) => {
                format!("HTTP/1.1 {status} Scripted\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n")
            }
            Reply::Saying(status, text) => {
                format!("HTTP/1.1 {status} Scripted\r\ncontent-length: {}\r\n\r\n{text}", text.len())
            }
            Reply::RetryAfter(status, seconds) => {
                format!("HTTP/1.1 {status} Scripted\r\nretry-after: {seconds}\r\ncontent-length: 0\r\n\r\n")
            }
            Reply::CutBefore => return None,
            Reply::CutAfter => {
                stream.write_all(b"HTTP/1.1 200 Scri").await.ok()?;
                return None;
            }
            Reply::Hang => std::future::pending().await,
        };
        stream.write_all(answer.as_bytes()).await.ok()?;
    }
}
