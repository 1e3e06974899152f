//! The pool against scripted servers, which know only as much of the protocol as a test needs.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use super::*;

/// A server that accepts the account.
const WELCOME: &[u8] = b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I";
/// The answer to a statement without rows: parsed, bound, no parameters, no columns, complete, ready.
const NOTHING: &[u8] = b"1\0\0\0\x04\x32\0\0\0\x04t\0\0\0\x06\0\0n\0\0\0\x04C\0\0\0\x0dSELECT 0\0Z\0\0\0\x05I";

/// A server's address, and a pool of one connection to it.
async fn server() -> (TcpListener, Database) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let url = format!("postgres://u:p@127.0.0.1:{port}/d?sslmode=disable&pool_max_conns=1");
    (listener, Database::new(DatabaseSource::Url(Box::new(url.parse().expect("a URL")))))
}

/// Takes one connection and lets the account in.
async fn welcome(listener: &TcpListener) -> TcpStream {
    let (mut stream, _) = listener.accept().await.expect("a connection");
    let length = stream.read_u32().await.expect("a startup message");
    let mut startup = vec![0; usize::try_from(length).expect("a length") - 4];
    stream.read_exact(&mut startup).await.expect("the rest of it");
    stream.write_all(WELCOME).await.expect("it is sent");
    stream
}

async fn answer(stream: &mut TcpStream) {
    let mut asked = Vec::new();
    while !asked.ends_with(b"S\0\0\0\x04") {
        asked.push(stream.read_u8().await.expect("a statement"));
    }
    stream.write_all(NOTHING).await.expect("it is sent");
}

/// A statement, read to its end.
async fn ask(database: &Database) -> Result<(), Error> {
    let mut rows = database.rows("test", "SELECT", &[]).await?;
    while rows.next().await?.is_some() {}
    Ok(())
}

/// Kind and text of an error, with its sources.
fn told(outcome: Result<(), Error>) -> String {
    let error = outcome.expect_err("an error");
    let mut texts = vec![error.kind().to_owned(), error.to_string()];
    let mut source = std::error::Error::source(&error);
    while let Some(inner) = source {
        texts.push(inner.to_string());
        source = inner.source();
    }
    texts.join(": ")
}

#[tokio::test]
async fn a_refused_connection_is_told_at_once_to_everybody_who_waits() {
    let (listener, database) = server().await;
    drop(listener);
    let (one, other) = tokio::join!(ask(&database), ask(&database));
    for outcome in [one, other] {
        assert!(matches!(outcome, Err(Error::Connect { .. })), "{outcome:?}");
    }
    assert_eq!(database.state().in_use, 0);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_accepts_and_then_says_nothing_is_given_up_and_keeps_no_place() {
    let (listener, database) = server().await;
    let silent = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("a connection");
        (listener, stream)
    });
    let outcome = ask(&database).await;
    assert_eq!(told(outcome), "connect: failed to connect to the database: no answer within 20s");
    let (listener, _stream) = silent.await.expect("no panic");
    // The one place of the pool is free again: the next connection is answered.
    tokio::time::resume();
    let answering = tokio::spawn(async move {
        let mut stream = welcome(&listener).await;
        answer(&mut stream).await;
        stream
    });
    ask(&database).await.expect("an answer");
    answering.await.expect("no panic");
}

#[tokio::test]
async fn waiting_for_a_connection_fails_after_half_a_minute() {
    let (listener, database) = server().await;
    let server = tokio::spawn(async move { welcome(&listener).await });
    let held = database.connection().await.expect("a connection");
    let _stream = server.await.expect("no panic");
    assert_eq!(database.state(), PoolState { max: 1, idle: 0, in_use: 1 });
    tokio::time::pause();
    let begun = Instant::now();
    let outcome = ask(&database).await;
    let waited = PATIENCE.as_secs();
    assert!(matches!(outcome, Err(Error::PoolExhausted { seconds }) if seconds == waited), "{outcome:?}");
    assert!(begun.elapsed() >= PATIENCE, "{:?}", begun.elapsed());
    drop(held);
    assert_eq!(database.state(), PoolState { max: 1, idle: 1, in_use: 0 });
}

#[tokio::test]
async fn a_connection_that_broke_while_nobody_used_it_is_replaced() {
    let (listener, database) = server().await;
    let server = tokio::spawn(async move {
        for _ in 0..2 {
            let mut stream = welcome(&listener).await;
            answer(&mut stream).await;
            stream.shutdown().await.expect("it hangs up");
        }
    });
    ask(&database).await.expect("an answer");
    // Until the driver has seen the end of the connection, the pool can't know of it.
    while ask(&database).await.is_err() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    server.await.expect("two connections, each for one statement");
}

#[tokio::test]
async fn a_result_that_breaks_off_is_no_result() {
    let (listener, database) = server().await;
    let server = tokio::spawn(async move {
        let mut stream = welcome(&listener).await;
        let mut asked = Vec::new();
        while !asked.ends_with(b"S\0\0\0\x04") {
            asked.push(stream.read_u8().await.expect("a statement"));
        }
        // All but the last message.
        let cut = NOTHING.len() - 6 - 14;
        stream.write_all(&NOTHING[..cut]).await.expect("it is sent");
    });
    let outcome = ask(&database).await;
    assert!(matches!(outcome, Err(Error::Lost { query: "test", .. })), "{outcome:?}");
    server.await.expect("no panic");
}

#[tokio::test]
async fn a_statement_that_gets_no_answer_is_cancelled_on_the_server_and_its_connection_is_not_used_again() {
    let (listener, database) = server().await;
    let database = database.answering_within(Duration::from_millis(100));
    let asked = tokio::spawn({
        let database = database.clone();
        async move { ask(&database).await }
    });
    let mut silent = welcome(&listener).await;
    // A connection of its own, with nothing but the request: its length, its code, process and secret.
    let (mut cancel, _) = listener.accept().await.expect("a connection");
    let mut request = [0; 16];
    cancel.read_exact(&mut request).await.expect("a request");
    assert_eq!(request[..8], [0, 0, 0, 16, 4, 210, 22, 46]);
    let outcome = asked.await.expect("no panic");
    assert_eq!(told(outcome), "silent: statement test was cancelled: no answer within 100ms");
    // The one place of the pool is free again.
    let answering = tokio::spawn(async move {
        let mut stream = welcome(&listener).await;
        answer(&mut stream).await;
    });
    let patient = database.answering_within(Duration::from_mins(1));
    ask(&patient).await.expect("an answer");
    answering.await.expect("no panic");
    // The server answers the cancelled statement, which ends its connection.
    silent.write_all(NOTHING).await.expect("it is sent");
    let mut said = Vec::new();
    silent.read_to_end(&mut said).await.expect("it is closed");
}
