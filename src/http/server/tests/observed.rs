//! An observer sees every answer once, whoever has given it.

use super::*;

/// What was observed: the method, unless the head can't be read, the status, and whether the route's extensions are there.
#[derive(Default)]
struct Seen(Mutex<Vec<(Option<Method>, u16, bool)>>);

impl Observer for Seen {
    fn answers(&self, method: &Method, answer: &Response<Body>, _: Duration) {
        let is_of_route = answer.extensions().get::<Peer>().is_some();
        self.0.lock().push((Some(method.clone()), answer.status().as_u16(), is_of_route));
    }

    fn refuses_head(&self, code: StatusCode) {
        self.0.lock().push((None, code.as_u16(), false));
    }
}

async fn served() -> (Running, Arc<Seen>) {
    let seen = Arc::new(Seen::default());
    (start_observed(limits(), Arc::clone(&seen) as _).await, seen)
}

#[tokio::test]
async fn answers_of_routes_and_those_that_the_server_gives_itself_are_seen() {
    let (running, seen) = served().await;
    assert_eq!(Client::connect(&running).await.ask("/quick").await.status, 200);
    assert_eq!(Client::connect(&running).await.ask("/none").await.status, 404);
    assert_eq!(Client::connect(&running).await.post("/small", "more than ten bytes").await.status, 413);
    let mut slow = Vec::new();
    for _ in 0..3 {
        let mut client = Client::connect(&running).await;
        client.get("/slow").await;
        slow.push(client);
    }
    running.begun(3).await;
    assert_eq!(Client::connect(&running).await.ask("/quick").await, told(503, BUSY, false));
    let get = |status| (Some(Method::GET), status, false);
    assert_eq!(*seen.0.lock(), [get(200), get(404), (Some(Method::POST), 413, false), get(503)]);
}

#[tokio::test]
async fn heads_that_cannot_be_read_are_seen() {
    let (running, seen) = served().await;
    for (head, status) in [
        (format!("GET /quick HTTP/1.1\r\nx: {}\r\n\r\n", "a".repeat(9000)), "431"),
        ("no http\r\n\r\n".to_owned(), "400"),
    ] {
        let mut client = Client::connect(&running).await;
        client.send(&head).await;
        let answer = client.head().await;
        assert_eq!(answer.split(' ').nth(1), Some(status), "{answer}");
        let mut rest = Vec::new();
        // What the server has not read resets the connection.
        let _ = client.0.read_to_end(&mut rest).await;
    }
    assert_eq!(*seen.0.lock(), [(None, 431, false), (None, 400, false)]);
}

#[tokio::test]
async fn a_head_that_cannot_be_read_is_seen_even_if_its_client_does_not_take_the_answer() {
    let (running, seen) = served().await;
    let mut client = Client::connect(&running).await;
    client.send(&format!("GET /quick HTTP/1.1\r\nx: {}\r\n\r\n", "a".repeat(9000))).await;
    client.0.set_zero_linger().unwrap();
    drop(client);
    let is_seen = async {
        while seen.0.lock().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_mins(1), is_seen).await.expect("waited for the refusal to be seen");
    assert_eq!(*seen.0.lock(), [(None, 431, false)]);
}

#[tokio::test]
async fn an_answer_that_the_server_replaces_is_seen_once_with_the_extensions_of_its_route() {
    let seen = Arc::new(Seen::default());
    let marked = async |request: axum::extract::Request| {
        let body = http_body_util::BodyExt::collect(request.into_body()).await;
        let mut answer = Response::new(Body::from(if body.is_ok() { "whole" } else { "cut off" }));
        answer.extensions_mut().insert(Peer(([127, 0, 0, 1], 1).into()));
        answer
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::new("test", limits(), Refusal::into_json).observed_by(Arc::clone(&seen) as _);
    let router = Router::new().route("/marked", post(marked));
    let server = tokio::spawn(server.serve(listener, router, CancellationToken::new()));
    let mut client = Client(TcpStream::connect(address).await.unwrap());
    client
        .send("POST /marked HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nb\r\n01234567890\r\n0\r\n\r\n")
        .await;
    assert_eq!(client.answer().await.status, 413);
    assert_eq!(*seen.0.lock(), [(Some(Method::POST), 413, true)]);
    server.abort();
}
