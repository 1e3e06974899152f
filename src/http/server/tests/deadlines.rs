//! How long connections, heads, answers and the farewell may take.

use futures::SinkExt;

use super::*;

/// A connection that has had one answer.
async fn kept(running: &Running) -> Client {
    let _hold = hold_the_clock();
    let mut client = Client::connect(running).await;
    assert_eq!(client.ask("/quick").await, told(200, "quick", false));
    client
}

fn is_about(lasted: Duration, expected: Duration) -> bool {
    lasted >= expected && lasted < expected + Duration::from_secs(1)
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed_after_its_time() {
    let running = start(limits()).await;
    let mut client = kept(&running).await;
    let begun = Instant::now();
    assert!(client.ended().await);
    assert!(is_about(begun.elapsed(), IDLE), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_head_that_has_begun_has_no_more_time_than_the_first_one() {
    let running = start(limits()).await;
    let mut client = kept(&running).await;
    tokio::time::sleep(IDLE / 2).await;
    let hold = hold_the_clock();
    client.send("GET /quick").await;
    assert!(client.is_open().await);
    let begun = Instant::now();
    drop(hold);
    client.ended().await;
    assert!(is_about(begun.elapsed(), HEAD), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_head_that_comes_byte_by_byte_has_no_more_time() {
    let running = start(limits()).await;
    let hold = hold_the_clock();
    let mut client = Client::connect(&running).await;
    let begun = Instant::now();
    drop(hold);
    for byte in ["G", "E", "T", " ", "/"] {
        client.send(byte).await;
        tokio::time::sleep(HEAD / 6).await;
    }
    client.ended().await;
    assert!(is_about(begun.elapsed(), HEAD), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_connection_in_constant_use_has_a_last_request() {
    let running = start(limits()).await;
    let mut client = kept(&running).await;
    let begun = Instant::now();
    while begun.elapsed() + IDLE / 2 < USE {
        tokio::time::sleep(IDLE / 2).await;
        let _hold = hold_the_clock();
        assert_eq!(client.ask("/quick").await, told(200, "quick", false));
    }
    client.get("/slow").await;
    running.begun(1).await;
    tokio::time::sleep(IDLE / 2).await;
    running.script.gate.add_permits(1);
    assert_eq!(client.answer().await, told(200, "slow", true));
    assert!(client.ended().await);
    assert!(begun.elapsed() >= USE && begun.elapsed() < USE + IDLE, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_not_kept_beyond_its_use() {
    let running =
        start(Limits { keep_alive: Some(KeepAlive { longest_idle: USE, longest_use: IDLE }), ..limits() }).await;
    let mut client = kept(&running).await;
    let begun = Instant::now();
    assert!(client.ended().await);
    assert!(is_about(begun.elapsed(), IDLE), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_never_ends_is_cut_off_with_its_connection() {
    let running = start(limits()).await;
    let mut client = kept(&running).await;
    let hold = hold_the_clock();
    client.get("/slow").await;
    running.begun(1).await;
    let begun = Instant::now();
    drop(hold);
    client.ended().await;
    assert!(is_about(begun.elapsed(), LIFE), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_silent_stream_is_not_cut_off() {
    let mut running = start(limits()).await;
    let hold = hold_the_clock();
    let mut client = Client::connect(&running).await;
    client.get("/stream").await;
    assert!(client.head().await.starts_with("HTTP/1.1 200"));
    drop(hold);
    for _ in 0..3 {
        tokio::time::sleep(PROGRESS * 3).await;
        let _hold = hold_the_clock();
        running.stream.send(Ok(b"event".to_vec())).await.unwrap();
        let mut chunk = [0; 10];
        client.0.read_exact(&mut chunk).await.unwrap();
        assert_eq!(&chunk, b"5\r\nevent\r\n");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_not_read_is_cut_off_and_one_that_is_read_slowly_is_not() {
    let running = start(limits()).await;
    let hold = hold_the_clock();
    let mut client = Client::connect(&running).await;
    client.get("/stream").await;
    client.head().await;
    let mut stream = running.stream;
    let feeding = tokio::spawn(async move {
        while stream.send(Ok(vec![b'a'; 1 << 20])).await.is_ok() {}
        Instant::now()
    });
    drop(hold);
    for _ in 0..5 {
        tokio::time::sleep(PROGRESS * 3 / 4).await;
        let _hold = hold_the_clock();
        client.0.read_exact(&mut vec![0; 16 << 20]).await.unwrap();
    }
    let begun = Instant::now();
    let lasted = feeding.await.unwrap().duration_since(begun);
    assert!(lasted >= PROGRESS / 4 && lasted < PROGRESS + Duration::from_secs(1), "{lasted:?}");
}

#[tokio::test(start_paused = true)]
async fn a_whole_answer_has_no_more_time_where_it_is_read_slowly() {
    let running = start(limits()).await;
    let hold = hold_the_clock();
    let mut client = Client::connect(&running).await;
    client.get("/huge").await;
    client.head().await;
    let begun = Instant::now();
    drop(hold);
    let mut read = 0;
    let lasted = loop {
        tokio::time::sleep(WHOLE / 10).await;
        let _hold = hold_the_clock();
        match client.0.read_exact(&mut vec![0; 1 << 20]).await {
            Ok(_) => read += 1 << 20,
            Err(_) => break begun.elapsed(),
        }
        assert!(read < HUGE, "it was read to the end");
    };
    assert!(lasted >= WHOLE, "{lasted:?}");
}

#[tokio::test(start_paused = true)]
async fn at_the_end_idle_connections_close_and_requests_are_finished_within_the_farewell() {
    let running = start(limits()).await;
    let (mut idle, mut busy, mut late) = (kept(&running).await, kept(&running).await, kept(&running).await);
    let hold = hold_the_clock();
    let mut arriving = Client::connect(&running).await;
    arriving.send("GET /qui").await;
    busy.get("/slow").await;
    running.begun(1).await;
    running.stop.cancel();
    assert!(idle.ended().await);
    running.script.gate.add_permits(1);
    assert_eq!(busy.answer().await, told(200, "slow", true));
    assert!(busy.ended().await);
    arriving.send("ck HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(arriving.answer().await, told(200, "quick", true));
    assert!(late.ended().await);
    drop(hold);
    tokio::time::timeout(FAREWELL, running.server).await.expect("waited for the server to stop").unwrap();
}

#[tokio::test(start_paused = true)]
async fn requests_that_outlast_the_farewell_are_cut_off() {
    let running = start(limits()).await;
    let mut busy = kept(&running).await;
    let hold = hold_the_clock();
    busy.get("/slow").await;
    running.begun(1).await;
    let begun = Instant::now();
    running.stop.cancel();
    drop(hold);
    running.server.await.unwrap();
    assert!(is_about(begun.elapsed(), FAREWELL), "{:?}", begun.elapsed());
    busy.ended().await;
}
