//! How many connections and requests there may be.

use super::*;

#[tokio::test]
async fn a_connection_serves_one_request_after_the_other() {
    let running = start(limits()).await;
    let mut client = Client::connect(&running).await;
    for _ in 0..3 {
        assert_eq!(client.ask("/quick").await, told(200, "quick", false));
    }
    client.send("GET /quick HTTP/1.1\r\nhost: a\r\n\r\nGET /probe HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(client.answer().await, told(200, "quick", false));
    assert_eq!(client.answer().await, told(200, "probe", false));
}

#[tokio::test]
async fn without_keep_alive_a_connection_serves_one_request() {
    let running = start(Limits { keep_alive: None, ..limits() }).await;
    let mut client = Client::connect(&running).await;
    assert_eq!(client.ask("/quick").await, told(200, "quick", true));
    assert!(client.ended().await);
}

#[tokio::test]
async fn so_many_requests_are_served_and_one_more_is_refused_while_reserved_places_are_left() {
    let running = start(limits()).await;
    let mut held = Vec::new();
    for _ in 0..3 {
        let mut client = Client::connect(&running).await;
        client.get("/slow").await;
        held.push(client);
    }
    running.begun(3).await;
    assert_eq!(Client::connect(&running).await.ask("/quick").await, told(503, BUSY, false));
    let mut probe = Client::connect(&running).await;
    assert_eq!(probe.ask("/probe").await, told(200, "probe", false));
    // Every one of them had a place: none was refused.
    running.script.gate.add_permits(3);
    for client in &mut held {
        assert_eq!(client.answer().await, told(200, "slow", false));
    }
    assert_eq!(probe.ask("/quick").await.status, 200);
}

#[tokio::test]
async fn an_idle_connection_holds_no_place() {
    let running = start(Limits { most_requests: 1, ..limits() }).await;
    let mut idle = Vec::new();
    for _ in 0..4 {
        let mut client = Client::connect(&running).await;
        assert_eq!(client.ask("/quick").await, told(200, "quick", false));
        idle.push(client);
    }
    assert_eq!(idle[0].ask("/quick").await, told(200, "quick", false));
}

#[tokio::test]
async fn an_answer_has_its_place_until_it_has_been_written() {
    let running = start(Limits { most_requests: 1, ..limits() }).await;
    let mut reader = Client::connect(&running).await;
    reader.get("/huge").await;
    assert!(reader.head().await.starts_with("HTTP/1.1 200"));
    let mut other = Client::connect(&running).await;
    assert_eq!(other.ask("/quick").await, told(503, BUSY, false));
    reader.0.read_exact(&mut vec![0; HUGE]).await.unwrap();
    assert_eq!(until(&running, "/quick", 200).await, told(200, "quick", false));
}

#[tokio::test]
async fn an_idle_connection_is_closed_for_a_newer_one_the_oldest_first_and_no_more_than_needed() {
    let running = start(limits()).await;
    let mut kept = Vec::new();
    for _ in 0..9 {
        let mut client = Client::connect(&running).await;
        assert_eq!(client.ask("/quick").await.status, 200);
        kept.push(client);
    }
    // The first has been idle for less long than the second now.
    assert_eq!(kept[0].ask("/quick").await.status, 200);
    let mut newer = Client::connect(&running).await;
    assert_eq!(newer.ask("/quick").await, told(200, "quick", false));
    assert!(kept[1].ended().await);
    kept.remove(1);
    for client in &mut kept {
        assert!(client.is_open().await, "more were closed than had to be");
    }
}

#[tokio::test]
async fn a_connection_beyond_those_with_requests_is_closed() {
    let limits = Limits { most_connections: 2, ..limits() };
    let running = start(limits).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut client = Client::connect(&running).await;
        client.get("/slow").await;
        running.begun(1).await;
        held.push(client);
    }
    assert!(Client::connect(&running).await.ended().await);
    running.script.gate.add_permits(2);
    for client in &mut held {
        assert_eq!(client.answer().await, told(200, "slow", false));
    }
}

#[tokio::test]
async fn a_second_head_arrives_within_the_bound_too() {
    let running = start(Limits { most_arriving: 1, ..limits() }).await;
    let mut kept = Client::connect(&running).await;
    assert_eq!(kept.ask("/quick").await.status, 200);
    kept.send("GET /qui").await;
    assert!(kept.is_open().await);
    let mut newer = Client::connect(&running).await;
    assert_eq!(newer.ask("/quick").await.status, 200);
    assert!(kept.ended().await, "it was answered");
}
