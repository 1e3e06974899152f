//! Liveness checks of idle connections that cost the server no request.
//!
//! A watch without events is silent, and TCP keep-alive probes are answered by the next hop: behind a load balancer or a proxy
//! that stays up, a connection to a dead server looks like an idle one. So the server is probed through TLS itself: on a
//! silent connection a `KeyUpdate` is sent that requests one in return (RFC 8446, 4.6.3). An API server, like every Go program,
//! answers at once and neither counts nor logs it. Everything that passes TLS through, such as a proxy's tunnel, passes the
//! probe through. If no answer arrives within [`ANSWER_WITHIN`], the connection is closed.
//!
//! Some TLS implementations only answer together with their next data. So silence counts only after the server has answered
//! probes before: the first probe is sent early, and a server that has never answered is not probed again. If a proxy
//! terminates TLS, the proxy answers; `clusters.<name>.watch_timeout` covers that case.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::MaybeHttpsStream;
use hyper_util::client::legacy::connect::{Connected, Connection};
use rustls::ProtocolVersion;
use tokio::time::{Instant, Sleep};

/// A connection that has received nothing for this long is probed, as long as the server is not known to answer probes.
const EARLY: Duration = Duration::from_secs(3);
/// A connection that has received nothing for this long is probed. Go's TLS accepts at most 16 probes without data in between, and a
/// watch lasts at most five minutes.
const SILENCE: Duration = Duration::from_secs(25);
/// Deadline for the answer. A dead server is noticed after at most the sum of this and [`SILENCE`], 40 s.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);

/// After this many answers, the server is expected to answer every probe. A single one could be the start of other data.
const PROOF: u32 = 2;

/// How many probes the server has answered, over all connections of a transport.
#[derive(Clone, Debug)]
pub struct Answers {
    /// The server's host and port.
    server: Arc<str>,
    count: Arc<AtomicU32>,
}

impl Answers {
    /// No answers yet from this host and port.
    pub fn of(server: &str) -> Self {
        Self { server: server.into(), count: Arc::default() }
    }

    fn are_known(&self) -> bool {
        self.count.load(Ordering::Relaxed) >= PROOF
    }

    fn learn(&self) {
        if !self.are_known() && self.count.fetch_add(1, Ordering::Relaxed) + 1 == PROOF {
            tracing::debug!(server = %self.server, "server answers TLS key updates, idle connections are probed with them");
        }
    }
}

/// Counts what a connection receives, below TLS.
pub trait Heard {
    /// How many times data arrived.
    fn heard(&self) -> u64;
}

/// A connection that counts its reads.
pub struct Counted<T> {
    inner: T,
    heard: u64,
}

impl<T> Counted<T> {
    pub fn new(inner: T) -> Self {
        Self { inner, heard: 0 }
    }
}

impl<T> Heard for Counted<T> {
    fn heard(&self) -> u64 {
        self.heard
    }
}

impl<T: Heard> Heard for MaybeHttpsStream<T> {
    fn heard(&self) -> u64 {
        match self {
            Self::Http(stream) => stream.heard(),
            Self::Https(stream) => stream.inner().get_ref().0.inner().heard(),
        }
    }
}

impl<T: Read + Unpin> Read for Counted<T> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let outcome = ready!(Pin::new(&mut this.inner).poll_read(context, buffer));
        // Only whether data arrived matters, not how much.
        this.heard += 1;
        Poll::Ready(outcome)
    }
}

/// A connection whose server is probed when it is silent.
pub struct Alive<T> {
    inner: MaybeHttpsStream<T>,
    answers: Answers,
    /// The count and time of the last read that received data.
    heard: u64,
    last: Instant,
    asked: Asked,
    timer: Pin<Box<Sleep>>,
}

/// The state of the probe.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    No,
    /// One was sent and not answered yet.
    Yes,
    /// The server does not answer probes.
    InVain,
}

impl<T: Heard> Alive<T> {
    /// Wraps a connection to the server that `answers` belongs to.
    pub fn new(inner: MaybeHttpsStream<T>, answers: Answers) -> Self {
        let is_current = match &inner {
            MaybeHttpsStream::Http(_) => false,
            MaybeHttpsStream::Https(stream) => {
                stream.inner().get_ref().1.protocol_version() == Some(ProtocolVersion::TLSv1_3)
            }
        };
        let last = Instant::now();
        let asked = if is_current { Asked::No } else { Asked::InVain };
        let heard = inner.heard();
        let timer = Box::pin(tokio::time::sleep(EARLY));
        Self { inner, answers, heard, last, asked, timer }
    }

    /// When the server is probed if nothing arrives until then.
    fn probe_due(&self) -> Instant {
        self.last + if self.answers.are_known() { SILENCE } else { EARLY }
    }
}

impl<T: Read + Write + Heard + Unpin> Alive<T> {
    /// Called when there is nothing to read. `Ready` if the server counts as dead.
    fn poll_silence(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        let heard = self.inner.heard();
        if heard != self.heard {
            self.heard = heard;
            self.last = Instant::now();
            if self.asked == Asked::Yes {
                // Bytes arrived, but no data for the reader: an answer to the probe.
                self.answers.learn();
                self.asked = Asked::No;
            }
        }
        while self.asked != Asked::InVain {
            let due = if self.asked == Asked::Yes { self.last + ANSWER_WITHIN } else { self.probe_due() };
            if due > Instant::now() {
                if self.timer.deadline() != due {
                    self.timer.as_mut().reset(due);
                }
                if self.timer.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
                continue;
            }
            if self.asked == Asked::Yes {
                if self.answers.are_known() {
                    let text =
                        format!("the server gave no sign of life for {}", humantime::format_duration(ANSWER_WITHIN));
                    return Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, text));
                }
                self.asked = Asked::InVain;
            } else if let MaybeHttpsStream::Https(stream) = &mut self.inner {
                // The deadline of the answer starts now.
                self.last = Instant::now();
                let updated = stream.inner_mut().get_mut().1.refresh_traffic_keys();
                self.asked = if updated.is_ok() { Asked::Yes } else { Asked::InVain };
                // What the socket does not take now is written later; errors show up in reads.
                let _ = Pin::new(&mut self.inner).poll_flush(context);
            } else {
                self.asked = Asked::InVain;
            }
        }
        Poll::Pending
    }
}

impl<T: Read + Write + Heard + Unpin> Read for Alive<T> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match Pin::new(&mut this.inner).poll_read(context, buffer) {
            Poll::Ready(outcome) => {
                this.heard = this.inner.heard();
                this.last = Instant::now();
                if this.asked == Asked::Yes {
                    this.asked = Asked::No;
                }
                Poll::Ready(outcome)
            }
            Poll::Pending => this.poll_silence(context).map(Err),
        }
    }
}

impl<T: Connection> Connection for Counted<T> {
    fn connected(&self) -> Connected {
        self.inner.connected()
    }
}

impl<T: Read + Write + Connection + Unpin> Connection for Alive<T> {
    fn connected(&self) -> Connected {
        self.inner.connected()
    }
}

impl<T: Write + Unpin> Write for Counted<T> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(context, parts)
    }
}

impl<T: Read + Write + Unpin> Write for Alive<T> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(context, parts)
    }
}

#[cfg(test)]
mod tests;
