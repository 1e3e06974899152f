//! Proof that the other end of an idle connection is alive, which costs it no request.
//!
//! A watch without events is silent, and TCP's keep-alive is answered by whatever is next on the way: behind a load balancer or
//! a proxy that stays up, a connection whose far end is gone looks like one on which nothing happens. So the far end is asked
//! through TLS itself: after [`SILENCE`] a `KeyUpdate` is sent that wants one in return (RFC 8446, 4.6.3). An API server, as
//! everything that is built with Go, answers at once, and neither counts nor logs it. What passes TLS through, a tunnel of a
//! proxy included, passes this through. Where nothing comes back within [`ANSWER_WITHIN`], the connection is ended.
//!
//! Not every implementation of TLS answers before it has something else to say. So silence means something only once the
//! server has answered: the first question is asked early, and a server that has never answered is left in peace. Where a
//! proxy ends TLS, it is the proxy that answers; `clusters.<name>.watch_timeout` is for that.

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

/// A connection on which nothing was heard for this long is asked. Go's TLS takes no more than 16 such questions in a row, and a
/// watch lasts no longer than five minutes.
const SILENCE: Duration = Duration::from_secs(25);
/// The same until the server is known to answer.
const FIRST_SILENCE: Duration = Duration::from_secs(3);
/// And gives a sign of life within this. [`SILENCE`] and this are well below a minute.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);

/// As many answers are proof that there will be others. One could be the beginning of something that the server says anyway.
const PROOF: u32 = 2;

/// How often the servers behind a transport's connections have answered.
#[derive(Clone, Debug)]
pub struct Answers {
    /// The server's host and port.
    server: Arc<str>,
    count: Arc<AtomicU32>,
}

impl Answers {
    /// None so far, of this host and port.
    pub fn of(server: &str) -> Self {
        Self { server: server.into(), count: Arc::default() }
    }

    fn are_known(&self) -> bool {
        self.count.load(Ordering::Relaxed) >= PROOF
    }

    fn learn(&self) {
        if !self.are_known() && self.count.fetch_add(1, Ordering::Relaxed) + 1 == PROOF {
            tracing::debug!(server = %self.server, "server answers TLS key updates, by which idle connections are proven alive");
        }
    }
}

/// How much has come over a connection, below TLS.
pub trait Heard {
    /// How often something came.
    fn heard(&self) -> u64;
}

/// A connection that counts what is read of it.
pub struct Counted<T> {
    inner: T,
    heard: u64,
}

impl<T> Counted<T> {
    /// Nothing has been read of it so far.
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
        // That something came is what counts, and not how much.
        this.heard += 1;
        Poll::Ready(outcome)
    }
}

/// A connection to a server that is asked for a sign of life when it is silent.
pub struct Alive<T> {
    inner: MaybeHttpsStream<T>,
    answers: Answers,
    /// What was heard when anything was heard last, and when that was.
    heard: u64,
    last: Instant,
    asked: Asked,
    timer: Pin<Box<Sleep>>,
}

/// What the server was asked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    /// Nothing.
    No,
    /// For a sign of life.
    Yes,
    /// It does not answer such questions.
    InVain,
}

impl<T: Heard> Alive<T> {
    /// Around a connection to the server whose answers these are.
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
        let timer = Box::pin(tokio::time::sleep(if answers.are_known() { SILENCE } else { FIRST_SILENCE }));
        Self { inner, answers, heard, last, asked, timer }
    }

    fn silence(&self) -> Duration {
        if self.answers.are_known() { SILENCE } else { FIRST_SILENCE }
    }
}

impl<T: Read + Write + Heard + Unpin> Alive<T> {
    /// Nothing was there to be read. `Ready` when the server is taken for dead.
    fn poll_silence(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        let heard = self.inner.heard();
        if heard != self.heard {
            self.heard = heard;
            self.last = Instant::now();
            if self.asked == Asked::Yes {
                // Nothing for whoever reads, so it was an answer.
                self.answers.learn();
                self.asked = Asked::No;
            }
        }
        while self.asked != Asked::InVain {
            let patience = if self.asked == Asked::Yes { ANSWER_WITHIN } else { self.silence() };
            let due = self.last + patience;
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
                    let text = format!("the server gave no sign of life for {}", humantime::format_duration(patience));
                    return Poll::Ready(io::Error::new(io::ErrorKind::TimedOut, text));
                }
                self.asked = Asked::InVain;
            } else if let MaybeHttpsStream::Https(stream) = &mut self.inner {
                // From here on the answer is waited for.
                self.last = Instant::now();
                let updated = stream.inner_mut().get_mut().1.refresh_traffic_keys();
                self.asked = if updated.is_ok() { Asked::Yes } else { Asked::InVain };
                // What can't be written now is when the socket takes it; errors show in what is read.
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
