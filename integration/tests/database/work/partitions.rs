//! Workers and the announcer are cut off from the broker, each in several ways: nothing is lost, and nothing is done twice.

use std::time::Duration;

use integration::blackhole::Link;
use integration::postgres::HUB;
use integration::{RabbitMq, eventually};
use tokio::time::{Instant, sleep};
use towline::documents::{Broker, Purpose};

use crate::work::broker::{DEAD, URGENT, WORK, holds, stands};
use crate::work::oracle::Oracle;
use crate::work::worker::Worker;
use crate::work::world::{LIMIT, Stage, broker, ids, run};

const CLUSTERS: usize = 300;
const PERMITS: usize = 8;
/// The specification's: work never stops for longer.
const LONGEST_STOP: Duration = Duration::from_secs(15);
/// How long a claim lasts in the database if nobody renews it.
const CLAIM: u64 = 30;

/// Rows that nobody has worked on yet.
const LEFT: &str = "select coalesce(string_agg(w::text || ' at ' || now(), '; '), 'none') from towline_work w \
                    where ready_at <= now() or until is not null";

/// What happens while there is work.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Packets are swallowed both ways.
    Cut,
    /// The broker hears, and is not heard.
    Mute,
    /// The connections end.
    HangUp,
    /// The broker is killed, and started when the work is done.
    Killed,
}

/// Who is cut off.
#[derive(Clone, Copy, Debug)]
enum Whom {
    Workers,
    Announcer,
    Both,
}

#[test]
fn each_request_is_followed_by_one_pass_while_workers_are_cut_off_from_the_broker() {
    rounds("partworkers", Whom::Workers, &[Fault::HangUp, Fault::Cut, Fault::Mute]);
}

#[test]
fn each_request_is_followed_by_one_pass_while_the_announcer_is_cut_off_from_the_broker() {
    rounds("partannouncer", Whom::Announcer, &[Fault::HangUp, Fault::Cut, Fault::Mute]);
}

#[test]
fn each_request_is_followed_by_one_pass_while_nobody_reaches_the_broker() {
    rounds("partboth", Whom::Both, &[Fault::Killed, Fault::Cut]);
}

/// Each round asks for a pass of each cluster, and there is exactly one of each, which has read what was written before the request. It
/// begins with everybody connected, and the fault lasts until the passes have ended.
///
/// A pass has a grant. Another grant has no pass if its answer did not reach the worker in time, as on a busy machine; its claim has to end
/// before the next one. So a cluster has at most one of them for each 30 s.
fn rounds(name: &str, whom: Whom, faults: &[Fault]) {
    run(async {
        let of_broker = format!("work-{name}");
        let (stage, server) = tokio::join!(Stage::new(name), RabbitMq::start(&of_broker));
        let server = server.expect("a broker");
        let (of_workers, of_announcer) = (Link::to(server.address()), Link::to(server.address()));
        let (of_workers, of_announcer) = (of_workers.await.expect("a link"), of_announcer.await.expect("a link"));
        let all = format!(
            "create table changes (cluster uuid primary key, number bigint not null); grant all on changes to public; \
             insert into changes select ('00000000-0000-4000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 0 from generate_series(1, {CLUSTERS}) n"
        );
        stage.run(&all).await;
        let process = stage.process();
        let announcer = broker(&server.url_by(of_announcer.address()));
        let _announces = process.announces(&announcer);
        let mut oracle = Oracle::start().await;
        let (url, at) = (stage.place.url(HUB), server.url_by(of_workers.address()));
        let start = |number| Worker::start_over(&format!("worker-{number}"), &url, &oracle.address, PERMITS, Some(&at));
        let _workers: Vec<Worker> = (0..3).map(start).collect();
        let clusters: Vec<u64> = (1..=u64::try_from(CLUSTERS).expect("small")).collect();
        let links: &[&Link] = match whom {
            Whom::Workers => &[&of_workers],
            Whom::Announcer => &[&of_announcer],
            Whom::Both => &[&of_workers, &of_announcer],
        };
        let (mut round, first) = (0, Instant::now());
        for fault in faults {
            connected(&server, &announcer).await;
            round += 1;
            let begun = Instant::now();
            let before = oracle.sights.borrow().all_ended();
            stage.run("update changes set number = number + 1").await;
            process.queue.ask(&ids(&clusters), round % 2 == 0).await.expect("they are asked for");
            oracle.until("the first passes of a round", |seen| seen.all_ended() >= before + 30).await;
            for link in links {
                match fault {
                    Fault::Cut => link.cut().await.expect("it is cut"),
                    Fault::Mute => link.mute(),
                    Fault::HangUp => link.hang_up(),
                    Fault::Killed => {}
                }
            }
            if matches!(fault, Fault::Killed) {
                server.kill().await.expect("it is killed");
            }
            let (mut ended, mut since, mut longest) = (before, Instant::now(), Duration::ZERO);
            while ended < before + CLUSTERS {
                sleep(Duration::from_millis(50)).await;
                longest = longest.max(since.elapsed());
                if longest >= LONGEST_STOP {
                    let left = stage.text(LEFT).await;
                    panic!("{fault:?} of {whom:?}: no pass since {ended} of {before} + {CLUSTERS}: {left}");
                }
                let now = oracle.sights.borrow().all_ended();
                if now > ended {
                    (ended, since) = (now, Instant::now());
                }
            }
            println!("{fault:?} of {whom:?}: {:?}, {longest:?} without a pass", begun.elapsed());
            for link in links {
                match fault {
                    Fault::Cut => link.restore().await.expect("it is restored"),
                    Fault::Mute => link.hang_up(),
                    Fault::HangUp | Fault::Killed => {}
                }
            }
            if matches!(fault, Fault::Killed) {
                server.start_again().await.expect("it starts");
            }
            let seen = oracle.sights.borrow().clone();
            assert_eq!(seen.violations, [""; 0]);
            assert_eq!((seen.all_ended(), seen.replaced), (before + CLUSTERS, 0), "{fault:?} of {whom:?}");
            let without_pass = i64::try_from(first.elapsed().as_secs() / CLAIM).expect("small");
            let tokens = round..=round + without_pass;
            let exact =
                seen.clusters.values().filter(|cluster| cluster.number == round && tokens.contains(&cluster.token));
            assert_eq!(exact.count(), CLUSTERS, "{fault:?} of {whom:?}: {seen:?}");
        }
        connected(&server, &announcer).await;
        for queue in [WORK, URGENT, DEAD] {
            holds(&server, "no message to be left", queue, (0, 0)).await;
        }
        let ready =
            stage.number("select count(*) from towline_work where ready_at <= now() or until is not null").await;
        assert_eq!(ready, 0, "nobody works, and nothing is to be done");
        assert_eq!(oracle.sights.borrow().all_ended(), faults.len() * CLUSTERS, "no message has caused another pass");
    });
}

/// Waits until the announcer can publish, and the three workers, and nobody who is gone, consume from both queues.
async fn connected(server: &RabbitMq, announcer: &Broker) {
    stands(announcer, Purpose::Announcer, "ready", "").await;
    eventually("the workers to be connected", LIMIT, async || {
        let queues = server.control(&["-q", "list_queues", "name", "consumers"]).await.expect("the queues");
        let is_consumed = |queue: &str| queues.lines().any(|line| line.split_whitespace().eq([queue, "3"]));
        if is_consumed(WORK) && is_consumed(URGENT) { Ok(()) } else { Err(queues.clone()) }
    })
    .await
    .unwrap();
}
