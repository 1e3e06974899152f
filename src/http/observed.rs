//! Reports reads and writes of a server's connection to its [`Shared`] standing.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use http_body::{Frame, SizeHint};
use hyper::body::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::standing::Shared;

/// The socket: reports whether the kernel takes what is written.
pub(super) struct Socket {
    stream: TcpStream,
    standing: Shared,
}

impl Socket {
    pub(super) fn new(stream: TcpStream, standing: Shared) -> Self {
        Self { stream, standing }
    }

    fn took(&self, outcome: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match outcome {
            Poll::Pending => self.standing.stalls(),
            Poll::Ready(Ok(_)) => self.standing.progresses(),
            Poll::Ready(Err(_)) => {}
        }
        outcome
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.stream).poll_write(context, bytes);
        this.took(outcome)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let outcome = Pin::new(&mut this.stream).poll_write_vectored(context, parts);
        this.took(outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

/// The bytes of HTTP, above TLS where there is TLS.
pub(super) enum Transport {
    Plain(Socket),
    Tls(Box<TlsStream<Socket>>),
}

/// The stream that hyper uses: reports when data arrives and when everything has been written.
pub(super) struct Observed {
    transport: Transport,
    standing: Shared,
}

impl Observed {
    pub(super) fn new(transport: Transport, standing: Shared) -> Self {
        Self { transport, standing }
    }
}

impl AsyncRead for Observed {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        ready!(match &mut this.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Transport::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        })?;
        if buffer.filled().len() > before {
            this.standing.received();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Observed {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.standing.writes(bytes);
        match &mut this.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Transport::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.standing.writes(parts.first().map_or(&[], |part| part));
        match &mut this.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_write_vectored(context, parts),
            Transport::Tls(stream) => Pin::new(stream).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.transport {
            Transport::Plain(stream) => stream.is_write_vectored(),
            Transport::Tls(stream) => stream.is_write_vectored(),
        }
    }

    /// hyper flushes when it has nothing left to write.
    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(match &mut this.transport {
            Transport::Plain(stream) => Pin::new(stream).poll_flush(context),
            Transport::Tls(stream) => Pin::new(stream).poll_flush(context),
        })?;
        this.standing.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().transport {
            Transport::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Transport::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

/// The body of an answer. hyper drops it after reading its end.
pub(super) struct Answer {
    body: Body,
    standing: Shared,
}

impl Answer {
    pub(super) fn new(body: Body, standing: Shared) -> Self {
        Self { body, standing }
    }
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.standing.answer_ended();
    }
}
