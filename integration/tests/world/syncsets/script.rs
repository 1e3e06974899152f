//! A server that says what a test tells it to, in plain HTTP, and notes who asks for what.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

/// What the server does with a request.
#[derive(Clone, Debug)]
pub(crate) enum Says {
    /// This status and body.
    Body(u16, String),
    /// 429, with this `Retry-After`.
    Throttled(&'static str),
    /// A body without an end: a list of which more follows.
    Endless,
    /// What is no HTTP.
    Garbage,
    /// Nothing, ever.
    Nothing,
    /// This status and body, once the test has added a permit, which it takes.
    Later(Arc<Semaphore>, u16, String),
}

/// A running server. It ends when dropped.
pub(crate) struct Script {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
    heads: Arc<Mutex<Vec<Vec<String>>>>,
    server: JoinHandle<()>,
}

impl Script {
    /// A server that answers by the first line of a request: `GET /version HTTP/1.1`.
    pub(crate) async fn start(says: impl Fn(&str) -> Says + Clone + Send + 'static) -> Self {
        Self::start_with(move |line, _| says(line)).await
    }

    /// The same by the first line and the body.
    pub(crate) async fn start_with(says: impl Fn(&str, &[u8]) -> Says + Clone + Send + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (requests, heads) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
        let (seen, seen_heads) = (Arc::clone(&requests), Arc::clone(&heads));
        let server = tokio::spawn(async move {
            // Aborted with this task.
            let mut running = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (seen, heads, says) = (Arc::clone(&seen), Arc::clone(&seen_heads), says.clone());
                running.spawn(serve(stream, move |request, head, body| {
                    seen.lock().push(request.to_owned());
                    heads.lock().push(head);
                    says(request, body)
                }));
            }
        });
        Self { address, requests, heads, server }
    }

    /// The first lines of the requests so far.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.requests.lock().clone()
    }

    /// The header fields of the requests so far, as `name: value`.
    pub(crate) fn heads(&self) -> Vec<Vec<String>> {
        self.heads.lock().clone()
    }

    /// A kubeconfig that leads to it.
    pub(crate) fn kubeconfig(&self) -> Value {
        self.kubeconfig_below("")
    }

    /// A kubeconfig that leads to a path of it.
    pub(crate) fn kubeconfig_below(&self, path: &str) -> Value {
        kubeconfig(&format!("http://{}{path}", self.address))
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// A kubeconfig that leads to this URL, with a token.
pub(crate) fn kubeconfig(server: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": server}}], "users": [{"name": "u", "user": {"token": TOKEN}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]})
}

/// The token in kubeconfigs of this file, which nobody may ever see.
pub(crate) const TOKEN: &str = "canary-token-7f31";

async fn serve(stream: TcpStream, says: impl Fn(&str, Vec<String>, &[u8]) -> Says) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut first, mut length, mut head) = (String::new(), 0, Vec::new());
        if stream.read_line(&mut first).await? == 0 {
            return Ok(());
        }
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await?;
            if line.trim().is_empty() {
                break;
            }
            if let Some(text) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = text.trim().parse().unwrap_or(0);
            }
            head.push(line.trim().to_owned());
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let mut says = says(first.trim(), head, &body);
        if let Says::Later(permits, status, body) = says {
            // Nobody closes it.
            permits.acquire().await.unwrap().forget();
            says = Says::Body(status, body);
        }
        match says {
            Says::Body(status, body) => {
                let head = format!(
                    "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                    body.len()
                );
                stream.write_all((head + &body).as_bytes()).await?;
            }
            Says::Throttled(wait) => {
                let head = format!("HTTP/1.1 429 X\r\nretry-after: {wait}\r\ncontent-length: 0\r\n\r\n");
                stream.write_all(head.as_bytes()).await?;
            }
            Says::Endless => {
                let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
                stream.write_all(format!("{head}1\r\n{{\r\n").as_bytes()).await?;
                let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
                loop {
                    stream.write_all(chunk.as_bytes()).await?;
                }
            }
            Says::Garbage => {
                stream.write_all(b"\0\xff\xfe SSH-2.0-OpenSSH_9.9\r\n\r\n").await?;
                return Ok(());
            }
            Says::Nothing | Says::Later(..) => std::future::pending().await,
        }
    }
}
