//! A cluster of three brokers: its queues last while two of them are there, and work goes on with fewer.

use std::time::Duration;

use integration::RabbitMq;
use towline::documents::{Finished, Purpose};

use crate::work::broker::{URGENT, WORK, holds, stands};
use crate::work::intake::Waiting;
use crate::work::world::{Process, Stage, broker, clusters, run};

/// After that time a worker claims what is ready without a message.
const OVERDUE: Duration = Duration::from_secs(5);

/// Works on so many clusters, and returns which, in order. `by_broker` says that none of them may have been overdue.
async fn works(worker: &Process, waiting: &mut Waiting, count: usize, by_broker: bool) -> Vec<u64> {
    let mut found = Vec::new();
    for _ in 0..count {
        let (work, permit) = waiting.next().await;
        assert!(!by_broker || work.waited < OVERDUE, "{:?}", work.waited);
        found.extend(clusters(std::slice::from_ref(&work)));
        assert_eq!(worker.done(work).await, Finished::Settled);
        drop(permit);
    }
    found.sort_unstable();
    found
}

/// What waits outlasts the node that led its queue, and a worker at another node receives it. Without a majority, work goes on by the
/// database; when the nodes are back, by the broker again.
#[test]
fn one_of_three_nodes_is_not_missed_and_two_delay_work_only() {
    run(async {
        let (stage, nodes) = tokio::join!(Stage::new("nodes"), RabbitMq::cluster("nodes", 3));
        let nodes = nodes.expect("a cluster");
        let [first, second, third] = &nodes[..] else { panic!("{nodes:?}") };
        let process = stage.process();
        let announcer = broker(&first.url());
        let at_first = process.announces(&announcer);
        stands(&announcer, Purpose::Announcer, "ready", "").await;
        process.ask(&[1, 2, 3], false).await;
        process.ask(&[4], true).await;
        holds(second, "what was announced at another node", WORK, (3, 0)).await;
        holds(second, "what is urgent", URGENT, (1, 0)).await;
        let listed = second.control(&["-q", "list_queues", "name", "members", "leader"]).await.expect("the queues");
        for queue in [WORK, URGENT] {
            let line = listed.lines().find(|line| line.starts_with(&format!("{queue}\t"))).unwrap_or_default();
            assert!(nodes.iter().all(|node| line.contains(&node.name())), "each node has a copy: {listed}");
            assert!(line.ends_with(&first.name()), "the node leads that the announcer is connected to: {listed}");
        }
        first.kill().await.expect("it is killed");
        let (worker, at_second) = (stage.process(), broker(&second.url()));
        let mut waiting = Waiting::start_over(&worker, 2, Some(at_second.clone()));
        assert_eq!(works(&worker, &mut waiting, 4, false).await, [1, 2, 3, 4]);
        for queue in [WORK, URGENT] {
            holds(second, "the messages to be acknowledged", queue, (0, 0)).await;
        }
        stands(&at_second, Purpose::Worker, "ready", "").await;
        // An announcer that reaches one of the others.
        drop(at_first);
        let announcer = broker(&third.url());
        let _announces = process.announces(&announcer);
        stands(&announcer, Purpose::Announcer, "ready", "").await;
        process.ask(&[5, 6], false).await;
        assert_eq!(works(&worker, &mut waiting, 2, true).await, [5, 6]);
        first.start_again().await.expect("it starts");
        third.kill().await.expect("it is killed");
        first.kill().await.expect("it is killed");
        process.ask(&[7, 8], false).await;
        assert_eq!(works(&worker, &mut waiting, 2, false).await, [7, 8], "by the database");
        third.start_again().await.expect("it starts");
        first.start_again().await.expect("it starts");
        stands(&announcer, Purpose::Announcer, "ready", "").await;
        stands(&at_second, Purpose::Worker, "ready", "").await;
        process.ask(&[9], true).await;
        process.ask(&[10], false).await;
        assert_eq!(works(&worker, &mut waiting, 2, true).await, [9, 10]);
        for queue in [WORK, URGENT] {
            holds(second, "no message to be left", queue, (0, 0)).await;
        }
    });
}
