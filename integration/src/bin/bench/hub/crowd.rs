//! Cheap clients of watches. A thousand of them share two cores with the replicas, so that whatever they take makes the hub look
//! slower than it is.
//!
//! Each has a connection and a task of its own, reads every byte that the hub sends it, and notes when each change arrived. All
//! read into one buffer, and compare a line with the one before: most clients receive the same, so that its time is parsed once.

use std::future::poll_fn;
use std::io::{self, BufRead};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use integration::Error;
use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;

/// More than a client has to read at once.
const BUFFER: usize = 64 * 1024;
const LONGEST_HEAD: usize = 16 * 1024;

/// What all clients share. A lock, since each of them reads into it; nobody waits while it is held.
pub(crate) struct Sight(Mutex<Seen>);

struct Seen {
    buffer: Vec<u8>,
    /// The line that was looked at last, and the time of its change.
    last: (Vec<u8>, Option<Timestamp>),
    /// From the time of a change to its arrival, of each change at each client.
    delays: Vec<Duration>,
}

/// A watch that is open.
pub(crate) struct Onlooker {
    path: String,
    stream: TcpStream,
    body: Chunked,
    /// The beginning of a line whose end has not arrived.
    line: Vec<u8>,
}

impl Sight {
    /// With room for so many delays.
    pub(crate) fn with_room_for(delays: usize) -> Arc<Self> {
        let (buffer, last) = (vec![0; BUFFER], (Vec::new(), None));
        Arc::new(Self(Mutex::new(Seen { buffer, last, delays: Vec::with_capacity(delays) })))
    }

    /// A line has arrived by another way than a watch.
    pub(crate) fn sees(&self, line: &[u8]) {
        self.0.lock().sees(line, Timestamp::now());
    }

    /// How many changes have arrived.
    pub(crate) fn arrived(&self) -> usize {
        self.0.lock().delays.len()
    }

    pub(crate) fn delays(&self) -> Vec<Duration> {
        std::mem::take(&mut self.0.lock().delays)
    }
}

impl Seen {
    /// A line has arrived.
    fn sees(&mut self, line: &[u8], arrived: Timestamp) {
        if self.last.0 != line {
            self.last.0.clear();
            self.last.0.extend_from_slice(line);
            self.last.1 = changed(line);
        }
        if let Some(changed) = self.last.1 {
            self.delays.push(Duration::try_from(arrived.duration_since(changed)).unwrap_or_default());
        }
    }
}

impl Onlooker {
    /// Opens a watch: `path` has the parameters, and a version among them, so that changes alone arrive.
    pub(crate) async fn open(hub: SocketAddr, path: &str) -> Result<Self, Error> {
        let lost = |source| Error::Network { action: "open a watch", source };
        let mut stream = TcpStream::connect(hub).await.map_err(lost)?;
        stream.set_nodelay(true).map_err(lost)?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {hub}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.map_err(lost)?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.map_err(lost)?);
            if head.len() > LONGEST_HEAD {
                break;
            }
        }
        let text = String::from_utf8_lossy(&head).to_lowercase();
        if !text.starts_with("http/1.1 200 ") || !text.contains("\r\ntransfer-encoding: chunked\r\n") {
            return Err(Error::Http { url: path.to_owned(), detail: text });
        }
        Ok(Self { path: path.to_owned(), stream, body: Chunked::default(), line: Vec::new() })
    }

    /// Notes when changes arrive, until the watch ends: it should not.
    pub(crate) async fn look(mut self, sight: Arc<Sight>) -> Result<(), Error> {
        poll_fn(|context| self.poll_read(context, &mut sight.0.lock())).await
    }

    fn poll_read(&mut self, context: &mut Context<'_>, seen: &mut Seen) -> Poll<Result<(), Error>> {
        // Borrowed from what all share until the next await.
        let mut buffer = std::mem::take(&mut seen.buffer);
        let read = loop {
            let mut room = ReadBuf::new(&mut buffer);
            match Pin::new(&mut self.stream).poll_read(context, &mut room) {
                Poll::Pending => break Poll::Pending,
                Poll::Ready(Ok(())) if room.filled().is_empty() => {
                    break Poll::Ready(Err(self.unreadable("the hub has ended it")));
                }
                Poll::Ready(Ok(())) => {
                    if let Err(error) = self.take(room.filled(), seen) {
                        break Poll::Ready(Err(error));
                    }
                }
                Poll::Ready(Err(source)) => {
                    break Poll::Ready(Err(Error::Network { action: "read a watch", source }));
                }
            }
        };
        seen.buffer = buffer;
        read
    }

    fn take(&mut self, bytes: &[u8], seen: &mut Seen) -> Result<(), Error> {
        let arrived = Timestamp::now();
        let Self { body, line, .. } = self;
        let read = body.read(bytes, |mut data| {
            while !data.is_empty() {
                data.read_until(b'\n', line)?;
                if line.ends_with(b"\n") {
                    seen.sees(line, arrived);
                    line.clear();
                }
            }
            Ok(())
        });
        read.map_err(|error| self.unreadable(&error.to_string()))
    }

    fn unreadable(&self, detail: &str) -> Error {
        Error::Unreadable { what: self.path.clone(), detail: detail.to_owned() }
    }
}

/// A body in chunks, cut anywhere.
#[derive(Debug, Default)]
struct Chunked {
    /// Bytes of this chunk that are still to come.
    left: usize,
    /// What has arrived between two chunks.
    size: Vec<u8>,
}

impl Chunked {
    /// Hands over the bytes of chunks. The end of the body is an error: the hub does not end a watch that is measured.
    fn read(&mut self, mut bytes: &[u8], mut data: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        while !bytes.is_empty() {
            if self.left == 0 {
                // The end of the chunk before, and the size of the next one.
                bytes.read_until(b'\n', &mut self.size)?;
                let size = self.size.trim_ascii();
                if !self.size.ends_with(b"\n") || size.is_empty() {
                    continue;
                }
                let text = String::from_utf8_lossy(size);
                self.left = usize::from_str_radix(&text, 16).map_err(io::Error::other)?;
                if self.left == 0 {
                    return Err(io::Error::other("the hub has ended it"));
                }
                self.size.clear();
            }
            let here = self.left.min(bytes.len());
            let (now, later) = bytes.split_at(here);
            data(now)?;
            (bytes, self.left) = (later, self.left - here);
        }
        Ok(())
    }
}

/// When the change of an event was made; `None` of a bookmark.
fn changed(line: &[u8]) -> Option<Timestamp> {
    let line = std::str::from_utf8(line).ok()?;
    let (head, _) = line.split_once("\"object\"")?;
    if !head.contains("MODIFIED") {
        return None;
    }
    let (_, behind) = line.split_once("\"updatedAt\"")?;
    behind.split('"').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{Chunked, changed};

    #[test]
    fn the_time_of_a_change_is_found_with_and_without_blanks_and_a_bookmark_has_none() {
        for line in [
            r#"{"type":"MODIFIED","object":{"kind":"Cluster","updatedAt":"2026-11-22T22:00:00.000001Z","status":{}}}"#,
            r#"{"type": "MODIFIED", "object": {"kind": "Cluster", "updatedAt": "2026-11-22T22:00:00.000001Z"}}"#,
        ] {
            assert_eq!(changed(line.as_bytes()).unwrap().to_string(), "2026-11-22T22:00:00.000001Z");
        }
        assert!(changed(br#"{"type":"BOOKMARK","object":{"updatedAt":"2026-11-22T22:00:00Z"}}"#).is_none());
    }

    #[test]
    fn chunks_are_read_however_they_are_cut() {
        let body = b"3\r\nabc\r\nB\r\n\r\n3\r\ndefghi\r\n1\r\n\n\r\n";
        for step in 1..=body.len() {
            let (mut chunked, mut data) = (Chunked::default(), Vec::new());
            for part in body.chunks(step) {
                let mut add = |bytes: &[u8]| {
                    data.extend_from_slice(bytes);
                    Ok(())
                };
                chunked.read(part, &mut add).unwrap();
            }
            assert_eq!(data, b"abc\r\n3\r\ndefghi\n", "in parts of {step}");
        }
    }

    #[test]
    fn the_end_of_a_body_is_an_error() {
        for body in [&b"1\r\na\r\n0\r\n\r\n"[..], b"x\r\n"] {
            assert!(Chunked::default().read(body, |_| Ok(())).is_err());
        }
    }
}
