//! A watch as its client sees it: lines, whatever the chunks in which they arrive.

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::SendRequest;
use serde::Deserialize;
use serde_json::Value;

use crate::Error;

/// A watch that is open. Dropping it closes its connection.
#[derive(Debug)]
pub struct Watch {
    path: String,
    body: Incoming,
    /// What has arrived and not been given yet: whole lines, and perhaps the beginning of another one.
    buffer: Vec<u8>,
    /// So much of the buffer has been given.
    given: usize,
    /// So much of the buffer, behind what was given, has no end of a line.
    searched: usize,
    /// Held, not used: without it the connection would end.
    _connection: Option<SendRequest<Full<Bytes>>>,
}

/// One line of a watch in JSON.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Event {
    /// `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK` or `ERROR`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The document, the bookmark or the problem.
    pub object: Value,
}

impl Watch {
    pub(super) fn new(path: String, body: Incoming, connection: Option<SendRequest<Full<Bytes>>>) -> Self {
        Self { path, body, buffer: Vec::new(), given: 0, searched: 0, _connection: connection }
    }

    /// The next event; `None` when the hub has ended the watch in order. May be cancelled.
    pub async fn next(&mut self) -> Result<Option<Event>, Error> {
        let path = self.path.clone();
        let Some(line) = self.next_line().await? else { return Ok(None) };
        let read = serde_json::from_slice(line);
        let unreadable = |error: serde_json::Error| {
            let detail = format!("{error} in {}", String::from_utf8_lossy(line));
            Error::Unreadable { what: path, detail }
        };
        read.map(Some).map_err(unreadable)
    }

    /// The next line as it is, without its end. May be cancelled. An error if the connection is lost, or ends within a line.
    pub async fn next_line(&mut self) -> Result<Option<&[u8]>, Error> {
        let failed = |detail: String| Error::Http { url: self.path.clone(), detail };
        let line = loop {
            let open = self.buffer.get(self.given + self.searched..).unwrap_or_default();
            if let Some(end) = open.iter().position(|byte| *byte == b'\n') {
                let start = self.given;
                let end = start + self.searched + end;
                (self.given, self.searched) = (end + 1, 0);
                break start..end;
            }
            self.buffer.drain(..self.given);
            (self.given, self.searched) = (0, self.buffer.len());
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                }
                Some(Err(error)) => return Err(failed(format!("{error:?}"))),
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(failed("the watch ended within a line".to_owned())),
            }
        };
        Ok(self.buffer.get(line))
    }
}
