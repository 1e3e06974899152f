//! Laws of the mailboxes.

use futures::FutureExt;
use tokio::task::yield_now;
use tokio::time::advance;

use super::*;

#[tokio::test(start_paused = true)]
async fn a_blocked_receiver_lets_exactly_the_capacity_in_however_many_send() {
    let (mailbox, inbox) = mailbox::<usize>(16);
    let tasks: Vec<_> = (0..1_000)
        .map(|number| {
            let sender = mailbox.clone();
            tokio::spawn(async move { sender.send(number).await })
        })
        .collect();
    while inbox.gauge().read().waits < 984 {
        yield_now().await;
    }
    let reading = inbox.gauge().read();
    assert_eq!((reading.depth, reading.accepted, reading.waits), (16, 16, 984));
    assert_eq!(tasks.iter().filter(|task| task.is_finished()).count(), 16, "senders that got through");

    (0..50).for_each(|number| mailbox.offer(number));
    let reading = inbox.gauge().read();
    assert_eq!((reading.dropped, reading.depth, reading.accepted), (50, 16, 16));
}

#[tokio::test(start_paused = true)]
async fn a_sender_waits_until_there_is_room_and_only_that_time_counts() {
    let (mailbox, mut inbox) = mailbox::<&str>(1);
    mailbox.send("first").await.unwrap();
    assert_eq!(mailbox.gauge().read().waited, Duration::ZERO, "a send with room counted as waiting");

    let mut second = std::pin::pin!(mailbox.send("second"));
    assert_eq!(second.as_mut().now_or_never(), None, "the second send did not wait for room");
    advance(Duration::from_secs(3)).await;
    assert_eq!(inbox.next().await, Some("first"));
    second.await.unwrap();
    let reading = mailbox.gauge().read();
    assert_eq!((reading.waits, reading.waited), (1, Duration::from_secs(3)));
    assert_eq!(inbox.next().await, Some("second"));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_sender_sends_nothing_and_frees_its_turn() {
    let (mailbox, mut inbox) = mailbox::<u8>(1);
    mailbox.send(1).await.unwrap();
    {
        let mut cancelled = std::pin::pin!(mailbox.send(2));
        assert_eq!(cancelled.as_mut().now_or_never(), None);
        advance(Duration::from_secs(2)).await;
    }
    assert_eq!(mailbox.gauge().read().waited, Duration::from_secs(2), "time of a cancelled sender");
    assert_eq!(inbox.next().await, Some(1));
    mailbox.offer(3);
    assert_eq!(inbox.next().await, Some(3));
}

#[tokio::test]
async fn a_cloned_inbox_takes_over_and_loses_nothing() {
    let (mailbox, template) = mailbox::<u8>(4);
    let mut old = template.clone();
    mailbox.send(1).await.unwrap();
    assert_eq!(old.next().await, Some(1));
    let waiting = tokio::spawn(async move { (old.next().await, old) });
    yield_now().await;
    let mut young = template.clone();
    mailbox.send(2).await.unwrap();
    let (read, old) = waiting.await.unwrap();
    assert_eq!(read, None, "an inbox that was taken over still reads");
    drop(old);
    assert_eq!(young.next().await, Some(2));
    mailbox.send(3).await.expect("the mailbox closed while an inbox was left");
}

#[tokio::test]
async fn a_mailbox_closes_with_its_last_inbox_and_waiting_senders_learn_it() {
    let (mailbox, inbox) = key_mailbox::<u8>(1);
    let second = inbox.clone();
    drop(inbox);
    mailbox.request(1).await.unwrap();
    let waiting = tokio::spawn({
        let sender = mailbox.clone();
        async move { sender.request(2).await }
    });
    yield_now().await;
    drop(second);
    assert_eq!(waiting.await.unwrap(), Err(Closed));
    assert_eq!(mailbox.request(1).await, Err(Closed), "merged with a request that nobody reads");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_threads_lose_and_double_nothing() {
    const SENDERS: usize = 16;
    const EACH: usize = 2_000;
    let (mailbox, mut inbox) = mailbox::<usize>(8);
    for sender in 0..SENDERS {
        let mailbox = mailbox.clone();
        tokio::spawn(async move {
            for number in 0..EACH {
                mailbox.send(sender * EACH + number).await.unwrap();
            }
        });
    }
    drop(mailbox);
    let mut next_of = [0; SENDERS];
    while let Some(message) = inbox.next().await {
        assert_eq!(next_of[message / EACH], message % EACH, "out of order from sender {}", message / EACH);
        next_of[message / EACH] += 1;
        assert!(inbox.gauge().read().depth <= 8);
    }
    assert_eq!(next_of, [EACH; SENDERS]);
}

#[tokio::test]
async fn a_blocked_receiver_lets_exactly_the_capacity_of_different_keys_in() {
    let (mailbox, inbox) = key_mailbox::<usize>(16);
    for number in 0..1_000 {
        let sender = mailbox.clone();
        tokio::spawn(async move { sender.request(number % 100).await });
    }
    let gauge = inbox.gauge();
    while gauge.read().merged + gauge.read().accepted + gauge.read().waits < 1_000 {
        yield_now().await;
    }
    let reading = gauge.read();
    // 16 of 100 keys fit; the 10 requests for each are 1 accepted and 9 merged, all others wait.
    assert_eq!((reading.depth, reading.accepted, reading.merged, reading.waits), (16, 16, 16 * 9, 84 * 10));
}

#[tokio::test]
async fn a_sender_that_finds_its_key_after_waiting_gives_its_place_away() {
    let (mailbox, mut inbox) = key_mailbox::<&str>(2);
    let read = |mailbox: &KeyMailbox<&'static str>| {
        let reading = mailbox.gauge().read();
        (reading.depth, reading.accepted, reading.merged)
    };
    mailbox.request("a").await.unwrap();
    mailbox.request("b").await.unwrap();
    let mut first = Box::pin(mailbox.request("c"));
    let mut second = Box::pin(mailbox.request("c"));
    let mut other = Box::pin(mailbox.request("d"));
    for waiting in [&mut first, &mut second, &mut other] {
        assert_eq!(waiting.as_mut().now_or_never(), None);
    }
    assert_eq!((inbox.next().await, inbox.next().await), (Some("a"), Some("b")));
    first.await.unwrap();
    assert_eq!(read(&mailbox), (1, 3, 0));
    second.await.unwrap();
    assert_eq!(read(&mailbox), (1, 3, 1), "c is queued: the second request needs no run of its own");
    other.await.unwrap();
    assert_eq!((inbox.next().await, inbox.next().await), (Some("c"), Some("d")));
}
