//! Claims end by the server's clock alone, also where it is ahead.

use std::time::Duration;

use towline::test_api::documents::Role;

use crate::work::world::{LIMIT, SHORT, Stage, run};

/// A server that is promoted and whose clock is ahead, by half of the time between the end of a claim at its holder and in the database:
/// everything ends earlier by it. What is not done is ready at once, so that only its claim is waited for.
const AHEAD: &str = "update towline_claim set until = until - interval '1.5 s' where holder is not null; \
     update towline_work set until = until - interval '1.5 s', ready_at = now()";

/// With a server whose clock is ahead of the one that has granted the claims, nobody else is granted one before it has ended
/// there, and by then its holder has stopped. So it makes no difference what the clocks of the replicas say.
#[test]
fn a_server_whose_clock_is_ahead_grants_nothing_that_its_holder_still_uses() {
    run(async {
        let stage = Stage::new("clock_ahead").await;
        let holder = stage.process_lasting(SHORT);
        let grant = holder.claims.role(Role::Dispatcher).granted().await;
        holder.ask(&[1], false).await;
        let work = holder.claim_one().await;
        // It renews nothing any more, and hands nothing back.
        drop(holder.actor);
        stage.run(AHEAD).await;
        let ends = async |table: &str| {
            let ends =
                format!("select (extract(epoch from until) * 1000000)::int8 from {table} where holder is not null");
            stage.number(&ends).await
        };
        let (role_ends, work_ends) = (ends("towline_claim").await, ends("towline_work").await);
        let now = async || stage.number("select (extract(epoch from clock_timestamp()) * 1000000)::int8").await;

        let next = stage.process_lasting(SHORT);
        let mut leadership = next.claims.role(Role::Dispatcher);
        let leads = async {
            let later = tokio::time::timeout(LIMIT, leadership.granted()).await.expect("it is granted");
            assert!(grant.check().is_err(), "two processes lead");
            let now = now().await;
            assert!(role_ends < now, "granted {} µs before its end", role_ends - now);
            assert_eq!((grant.token, later.token), (1, 2));
        };
        let works = async {
            let begun = tokio::time::Instant::now();
            let later = loop {
                assert!(begun.elapsed() < LIMIT, "the cluster is granted");
                if let Some(later) = next.claim(1).await.pop() {
                    break later;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            };
            assert!(work.check().is_err(), "two processes work on a cluster");
            let now = now().await;
            assert!(work_ends < now, "granted {} µs before its end", work_ends - now);
            assert_eq!((work.token, later.token), (1, 2));
        };
        tokio::join!(leads, works);
    });
}
