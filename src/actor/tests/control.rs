//! Control beside work: a flooded, busy or blocked body never delays an answer.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Instant;

use futures::FutureExt;
use tokio::sync::Semaphore;
use tokio::task::yield_now;

use super::*;

/// An actor that reads a message and then works on it until the gate opens.
fn busy(inbox: Inbox<u32>, gate: &Arc<Semaphore>) -> ChildSpec {
    let gate = Arc::clone(gate);
    let gauge = inbox.gauge();
    ChildSpec::new("busy", move |scope| {
        let (mut inbox, gate) = (inbox.clone(), Arc::clone(&gate));
        async move {
            scope.set_state("working");
            while !scope.is_draining()
                && let Some(_message) = inbox.next().await
            {
                gate.acquire().await?.forget();
            }
            Ok(())
        }
    })
    .gauge(gauge)
    .restart(policy(0))
}

#[tokio::test(start_paused = true)]
async fn a_flooded_actor_answers_control_while_its_body_is_busy() {
    on_control_lane(async {
        let (mailbox, inbox) = mailbox(16);
        let gate = Arc::new(Semaphore::new(0));
        let tree = Supervisor::start("test", vec![busy(inbox, &gate)]);
        for number in 0..500 {
            let mailbox = mailbox.clone();
            tokio::spawn(async move { mailbox.send(number).await });
        }
        let gauge = mailbox.gauge();
        until("one message is in hand and the mailbox full", || gauge.read().accepted == 17).await;
        assert_eq!(mailbox.send(500).now_or_never(), None, "the mailbox is not full");

        // Neither the clock nor the gate moves: the answer does not depend on the body.
        let asked = tokio::time::Instant::now();
        let report = tree.report().await;
        assert_eq!(asked.elapsed(), Duration::ZERO, "the answer waited for something");
        let child = &report.children[0];
        assert_eq!((child.state.as_str(), child.mailbox.unwrap().depth), ("working", 16));

        let mut drain = Box::pin(tree.drain(Duration::from_secs(30)));
        assert_eq!(drain.as_mut().now_or_never(), None, "a busy body was not waited for");
        while tree.report().await.children[0].state != "draining" {
            yield_now().await;
        }
        assert_eq!(gauge.read().accepted, 17);
        gate.add_permits(1);
        assert_eq!(drain.await, Vec::<String>::new());
        assert_eq!(gauge.read().accepted, 17, "a draining actor read on");
    })
    .await;
}

#[test]
fn a_thread_full_of_work_does_not_delay_control() {
    // A wide limit: this is a law about order, not about speed, and machines stutter.
    const PROMPT: Duration = Duration::from_secs(5);
    let longest = run(1, |_liveness| async {
        let (mailbox, inbox) = mailbox::<u32>(4);
        let gauge = inbox.gauge();
        let spec = ChildSpec::new("spinning", move |_| {
            let mut inbox = inbox.clone();
            async move {
                while let Some(message) = inbox.next().await {
                    std::hint::black_box((0..20_000_u32).fold(message, u32::wrapping_add));
                }
                Ok(())
            }
        });
        for sender in 0..8 {
            let mailbox = mailbox.clone();
            tokio::spawn(async move { while mailbox.send(sender).await.is_ok() {} });
        }
        let tree = Supervisor::start("test", vec![spec]);
        let mut longest = Duration::ZERO;
        for _ in 0..50 {
            let before = gauge.read().accepted;
            let asked = Instant::now();
            assert_eq!(tree.report().await.children.len(), 1);
            longest = longest.max(asked.elapsed());
            until("the actor has read on", || gauge.read().accepted > before).await;
        }
        assert_eq!(tree.drain(Duration::ZERO).await.len(), 1);
        longest
    })
    .unwrap();
    assert!(longest < PROMPT, "control took {longest:?}");
}

#[test]
fn a_body_that_blocks_its_thread_is_replaced_and_its_successor_reads_on() {
    let (release, blocked) = mpsc::sync_channel::<()>(0);
    let blocked = Arc::new(parking_lot::Mutex::new(blocked));
    run(2, |_liveness| async move {
        let (mailbox, inbox) = mailbox::<u32>(4);
        let (read, mut was_read) = tokio::sync::mpsc::channel(4);
        let spec = ChildSpec::new("blocking", move |scope| {
            let (mut inbox, read, blocked) = (inbox.clone(), read.clone(), Arc::clone(&blocked));
            async move {
                while let Some(message) = inbox.next().await {
                    let _work = scope.work();
                    if message == 0 {
                        // Holds the thread until the test is over: no abort gets through to it.
                        let _released = blocked.lock().recv();
                    }
                    read.send(message).await?;
                }
                Ok(())
            }
        })
        .stall_after(Duration::from_millis(100))
        .restart(policy(3));
        let tree = Supervisor::start("test", vec![spec]);
        mailbox.send(0).await.unwrap();
        mailbox.send(7).await.unwrap();
        assert_eq!(was_read.recv().await, Some(7), "the successor read something else");
        let child = &tree.report().await.children[0];
        assert_eq!(child.restarts, 1);
        assert!(matches!(child.last_exit, Some(ExitReason::Stalled { .. })), "{:?}", child.last_exit);
        drop(release);
    })
    .unwrap();
}
