//! A client that speaks the protocol message by message, and may stop after any of them.

use integration::postgres::{ADMIN, Database};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// A connection over the server's socket, which asks for no password.
pub(crate) struct Raw(UnixStream);

/// The messages of one statement, each as it is sent.
pub(crate) struct Messages {
    pub(crate) parse: Vec<u8>,
    pub(crate) bind: Vec<u8>,
    pub(crate) describe: Vec<u8>,
    pub(crate) execute: Vec<u8>,
    pub(crate) sync: Vec<u8>,
}

impl Raw {
    pub(crate) async fn connect(place: &Database, name: &str) -> Self {
        let path = place.socket_directory().join(format!(".s.PGSQL.{}", place.address().port()));
        let mut raw = Self(UnixStream::connect(path).await.expect("a connection"));
        let mut start = 196_608_i32.to_be_bytes().to_vec();
        for text in ["user", ADMIN, "database", name, ""] {
            start.extend(text.as_bytes());
            start.push(0);
        }
        let mut packet = length(start.len()).to_vec();
        packet.extend(start);
        raw.send(&packet).await;
        raw.until(b'Z').await;
        raw
    }

    pub(crate) async fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).await.expect("the server reads");
    }

    /// Reads until a message of this type.
    pub(crate) async fn until(&mut self, wanted: u8) {
        loop {
            let of_type = self.0.read_u8().await.expect("a message");
            let length = self.0.read_i32().await.expect("its length");
            let mut body = vec![0; usize::try_from(length - 4).expect("a length")];
            self.0.read_exact(&mut body).await.expect("its body");
            assert_ne!(of_type, b'E', "{}", String::from_utf8_lossy(&body));
            if of_type == wanted {
                return;
            }
        }
    }
}

impl Messages {
    /// A statement with one parameter, both as text.
    pub(crate) fn of(statement: &str, parameter: &str) -> Self {
        let mut parse = vec![0];
        parse.extend(statement.as_bytes());
        parse.extend([0, 0, 0]);
        let mut bind = vec![0, 0, 0, 0, 0, 1];
        bind.extend(i32::try_from(parameter.len()).expect("a short text").to_be_bytes());
        bind.extend(parameter.as_bytes());
        bind.extend([0, 0]);
        Self {
            parse: message(b'P', &parse),
            bind: message(b'B', &bind),
            describe: message(b'D', b"P\0"),
            execute: message(b'E', &[0, 0, 0, 0, 0]),
            sync: message(b'S', &[]),
        }
    }

    /// All of them in order.
    pub(crate) fn all(&self) -> [&[u8]; 5] {
        [&self.parse, &self.bind, &self.describe, &self.execute, &self.sync]
    }
}

fn message(of_type: u8, body: &[u8]) -> Vec<u8> {
    let mut message = vec![of_type];
    message.extend(length(body.len()));
    message.extend(body);
    message
}

/// A length counts itself.
fn length(body: usize) -> [u8; 4] {
    i32::try_from(body + 4).expect("a short message").to_be_bytes()
}
