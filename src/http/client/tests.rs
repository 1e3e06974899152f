//! Posts to scripted servers, directly and through scripted proxies.

use std::path::Path;
use std::time::Duration;

use secrecy::SecretString;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::*;
use crate::http::scripted::{OPENED, hold_the_clock, proven_by, proxy, serve, up_to};

const DEADLINE: Duration = Duration::from_mins(1);

fn settings(server: &str) -> ClientSettings {
    ClientSettings { server: server.parse().unwrap(), authorities: None, largest_answer: 10, forwarded: None }
}

/// A client of a server without TLS; if the system has no authorities, it still needs those of a file.
async fn client(server: &str, environment: &[(&str, &str)]) -> Result<Client, Error> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ca.crt");
    std::fs::write(&path, proven_by("unused.test").1).unwrap();
    trusting(server, environment, &path).await
}

async fn trusting(server: &str, environment: &[(&str, &str)], authorities: &Path) -> Result<Client, Error> {
    let variable =
        |name: &str| environment.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
    Client::within(ClientSettings { authorities: Some(authorities.to_owned()), ..settings(server) }, variable).await
}

fn post(path: &str) -> Ask<'_> {
    let token = Some(BearerToken::new(&SecretString::from("canary")).unwrap());
    let headers =
        HeaderMap::from_iter([(http::header::HeaderName::from_static("idempotency-key"), "1".parse().unwrap())]);
    Ask { method: Method::POST, path, headers, token, body: Bytes::from_static(b"\"content"), deadline: DEADLINE }
}

fn kind(error: &Error) -> &'static str {
    match error {
        Error::Address | Error::Proxy | Error::Trust(_) | Error::Build(_) => "settings",
        Error::UnknownAuthority { .. } => "unknown_authority",
        Error::Connect { .. } => "connect",
        Error::Exchange { .. } => "exchange",
        Error::NoAnswer { .. } => "no_answer",
    }
}

/// A server that gives this answer to one request, and what it was asked.
async fn answering(answer: &'static str) -> (String, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let asked = up_to(&mut stream, "content").await;
        stream.write_all(answer.as_bytes()).await.unwrap();
        asked
    });
    (address, serving)
}

#[tokio::test]
async fn a_post_carries_its_token_and_headers_below_the_servers_own_path() {
    for (base, path, expected) in [
        ("", "", "/"),
        ("/api/", "", "/api/"),
        ("/api", "", "/api"),
        ("/api/", "/apps", "/api/apps"),
        ("", "/apps?a=b", "/apps?a=b"),
    ] {
        let (address, asked) = answering("HTTP/1.1 201 Created\r\ncontent-length: 2\r\n\r\n{}").await;
        let client = client(&format!("http://{address}{base}"), &[]).await.unwrap();
        let answer = client.ask(post(path)).await.unwrap();
        assert_eq!((answer.status, answer.body), (StatusCode::CREATED, Some(Bytes::from_static(b"{}"))));
        let asked = asked.await.unwrap();
        assert!(asked.starts_with(&format!("POST {expected} HTTP/1.1\r\n")), "{asked}");
        for header in ["authorization: Bearer canary", "idempotency-key: 1"] {
            assert!(asked.contains(&format!("{header}\r\n")), "{asked}");
        }
    }
}

#[tokio::test]
async fn an_answer_is_read_up_to_a_bound_and_counts_all_the_same_and_a_redirect_is_not_followed() {
    for (status, answer, body) in [
        (200, "200 OK\r\ncontent-length: 10\r\n\r\n0123456789", Some(Bytes::from_static(b"0123456789"))),
        (200, "200 OK\r\ncontent-length: 11\r\n\r\n0123456789a", None),
        (200, "200 OK\r\ntransfer-encoding: chunked\r\n\r\nb\r\n0123456789a\r\n0\r\n\r\n", None),
        (503, "503 Busy\r\ncontent-length: 2\r\n\r\nno", Some(Bytes::from_static(b"no"))),
        (302, "302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n", Some(Bytes::new())),
    ] {
        let answer: &'static str = format!("HTTP/1.1 {answer}").leak();
        let (address, _asked) = answering(answer).await;
        let client = client(&format!("http://{address}"), &[]).await.unwrap();
        let answer = client.ask(post("")).await.unwrap();
        assert_eq!((answer.status.as_u16(), answer.body), (status, body));
    }
}

#[tokio::test]
async fn a_refused_and_a_lost_connection_are_different_errors() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let client = client(&format!("http://{address}"), &[]).await.unwrap();
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        up_to(&mut stream, "content").await;
    });
    let error = client.ask(post("")).await.unwrap_err();
    assert!(kind(&error) == "exchange" && error.is_outage(), "{error:?}");
    serving.await.unwrap();
    let error = client.ask(post("")).await.unwrap_err();
    assert!(kind(&error) == "connect" && error.is_outage(), "{error:?}");
    assert_eq!(error.to_string(), format!("failed to connect to {address}"));
    assert!(std::error::Error::source(&error).is_some(), "the cause is kept");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_answers_ends_at_the_deadline() {
    // One that accepts, one that begins an answer, one that does not end it.
    for beginning in ["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n1"] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let client = client(&format!("http://{address}"), &[]).await.unwrap();
        // The clock stands still until there is nothing to do but to wait for the answer.
        let hold = hold_the_clock();
        let posting = tokio::spawn(async move { (client.ask(post("")).await, Instant::now()) });
        let (mut stream, _) = listener.accept().await.unwrap();
        up_to(&mut stream, "content").await;
        stream.write_all(beginning.as_bytes()).await.unwrap();
        drop(hold);
        let begun = Instant::now();
        let (outcome, ended) = posting.await.unwrap();
        let error = outcome.unwrap_err();
        assert!(kind(&error) == "no_answer" && error.is_outage(), "{error:?}");
        assert_eq!(error.to_string(), format!("no answer from {address} within 1m"));
        let lasted = ended.duration_since(begun);
        assert!(lasted >= DEADLINE && lasted < DEADLINE + Duration::from_secs(1), "{lasted:?}");
    }
}

#[tokio::test]
async fn a_post_goes_through_the_tunnel_of_the_environments_proxy() {
    let (address, open, asked, server) = proxy().await;
    let environment = [("HTTP_PROXY", format!("http://me:word@{address}"))];
    let client = client("http://hub.invalid:8080", &[(environment[0].0, &environment[0].1)]).await.unwrap();
    let posting = tokio::spawn(async move { client.ask(post("/apps")).await });
    open.send(()).unwrap();
    let asked = asked.await.unwrap();
    assert!(asked.starts_with("CONNECT hub.invalid:8080 HTTP/1.1\r\n"), "{asked}");
    assert!(asked.contains("Proxy-Authorization: Basic bWU6d29yZA==\r\n") && !asked.contains("canary"), "{asked}");
    assert_eq!(posting.await.unwrap().unwrap().status, StatusCode::OK);
    let arrived = server.await.unwrap();
    assert!(arrived.starts_with("POST /apps HTTP/1.1\r\n") && arrived.contains("Bearer canary"), "{arrived}");
    assert!(!arrived.to_lowercase().contains("proxy"), "{arrived}");
}

#[tokio::test]
async fn a_server_proves_who_it_is_behind_a_proxy_too_and_to_nobody_else_is_posted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ca.crt");
    for trusted in [true, false] {
        let (hub, hubs) = proven_by("hub.invalid");
        let (_, anothers) = proven_by("hub.invalid");
        std::fs::write(&path, if trusted { hubs } else { anothers }).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let serving = tokio::spawn(async move {
            let (mut stream, _): (TcpStream, _) = listener.accept().await.unwrap();
            let asked = up_to(&mut stream, "\r\n\r\n").await;
            stream.write_all(OPENED).await.unwrap();
            let arrived = match hub.accept(stream).await {
                Ok(stream) => serve(stream).await,
                Err(_) => String::new(),
            };
            (asked, arrived)
        });
        let client = trusting("https://hub.invalid", &[("https_proxy", &address)], &path).await.unwrap();
        let outcome = client.ask(post("")).await;
        let (asked, arrived) = serving.await.unwrap();
        assert!(asked.starts_with("CONNECT hub.invalid:443 HTTP/1.1\r\n"), "{asked}");
        if trusted {
            assert_eq!(outcome.unwrap().body, Some(Bytes::from_static(b"{}")));
            assert!(arrived.starts_with("POST / HTTP/1.1\r\nidempotency-key"), "{arrived}");
        } else {
            assert_eq!(kind(&outcome.unwrap_err()), "unknown_authority");
            assert_eq!(arrived, "");
        }
    }
}

#[tokio::test]
async fn invalid_addresses_are_refused_and_not_repeated() {
    for server in ["ftp://hub.test", "/path", "https://me:canary@hub.test", "https://hub.test/a?token=canary"] {
        let error = client(server, &[]).await.err().expect("refused");
        assert!(matches!(error, Error::Address) && !error.is_outage(), "{server}");
        assert!(!format!("{error:?} {error}").contains("canary"));
    }
    let error =
        client("https://hub.test", &[("HTTPS_PROXY", "socks4://me:canary@proxy.test")]).await.err().expect("refused");
    assert!(matches!(error, Error::Proxy) && !format!("{error:?} {error}").contains("canary"));
    let error = trusting("https://hub.test", &[], Path::new("/nonexistent")).await.err().expect("refused");
    assert!(matches!(error, Error::Trust(_)), "{error:?}");
}
