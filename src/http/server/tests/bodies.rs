//! How large a request's body may be, by route, and how long it may take.

use super::*;

const TOO_LARGE: &str = r#"{"error":"the body is too large"}"#;

#[tokio::test]
async fn each_route_takes_bodies_up_to_its_own_bound() {
    let running = start(limits()).await;
    for (path, largest) in [("/small", 10), ("/large", 100)] {
        let mut client = Client::connect(&running).await;
        let answer = client.post(path, &"a".repeat(largest)).await;
        assert_eq!(answer, told(200, &largest.to_string(), false), "{path}");
        let answer = client.post(path, &"a".repeat(largest + 1)).await;
        assert_eq!((answer.status, answer.body.as_str()), (413, TOO_LARGE), "{path}");
    }
}

#[tokio::test]
async fn a_body_that_does_not_say_its_length_is_cut_off_at_the_bound() {
    let running = start(limits()).await;
    for (path, largest) in [("/small", 10_usize), ("/large", 100)] {
        for (length, expected) in [(largest, 200), (largest + 1, 413)] {
            let mut client = Client::connect(&running).await;
            let (half, rest) = (length / 2, length - length / 2);
            client.send(&format!("POST {path} HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")).await;
            client.send(&format!("{half:x}\r\n{}\r\n{rest:x}\r\n", "a".repeat(half))).await;
            client.send(&format!("{}\r\n0\r\n\r\n", "a".repeat(rest))).await;
            let answer = client.answer().await;
            let body = if expected == 200 { length.to_string() } else { TOO_LARGE.to_owned() };
            assert_eq!((answer.status, answer.body), (expected, body), "{path}");
        }
    }
}

#[tokio::test]
async fn a_large_body_is_refused_by_a_route_that_reads_none() {
    let running = start(limits()).await;
    let answer = Client::connect(&running).await.post("/unread", &"a".repeat(11)).await;
    assert_eq!((answer.status, answer.body.as_str()), (413, TOO_LARGE));
}

#[tokio::test]
async fn axums_own_bound_does_not_cut_off_what_a_route_may_take() {
    let size = 3 << 20;
    let running = start(Limits { largest_bodies: vec![("/large", size)], ..limits() }).await;
    let body = "a".repeat(usize::try_from(size).unwrap());
    let answer = Client::connect(&running).await.post("/large", &body).await;
    assert_eq!(answer, told(200, &size.to_string(), false));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_arrive_in_time_is_given_up() {
    let running = start(limits()).await;
    let hold = hold_the_clock();
    let mut client = Client::connect(&running).await;
    client.send("POST /large HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\nhalf").await;
    assert!(client.is_open().await);
    let begun = Instant::now();
    drop(hold);
    let answer = client.answer().await;
    let within = r#"{"error":"the body did not arrive in time"}"#;
    assert_eq!((answer.status, answer.body.as_str()), (408, within));
    let lasted = begun.elapsed();
    assert!(lasted >= BODY && lasted < BODY * 2, "{lasted:?}");
    client.ended().await;
}
