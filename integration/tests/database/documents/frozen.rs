//! A leader that is stopped in the middle of its work, as a whole process: it is replaced, and moves nothing when it continues.

use integration::hub::Replica;
use integration::{Postgres, eventually};

use crate::documents::world::{LIMIT, Stage, run};

/// The token with which a process leads compaction, from its own report; 0 while it does not.
async fn token(replica: &Replica) -> Result<i64, String> {
    let status = replica.towline().admin().status().await.map_err(|error| error.to_string())?;
    let text = status.to_string();
    let at = text.find("\"token\":").map(|at| &text[at + 8..]);
    Ok(at.and_then(|rest| rest.split(|char: char| !char.is_ascii_digit()).next()?.parse().ok()).unwrap_or(0))
}

/// The claim of a stopped process passes on after 30 s, with a higher token. Once it continues, it knows that it leads no
/// longer, and moves neither cursor nor base.
#[test]
fn a_frozen_leader_of_compaction_is_replaced_and_moves_nothing_when_it_continues() {
    run(async {
        let server = Postgres::start("frozen", integration::postgres::Transport::Plain).await.expect("a server");
        let place = server.hub_database("frozen").await.expect("a database");
        let first = Replica::start(&place, &[]).await.expect("a process");
        first.wait_ready(LIMIT).await.expect("it is ready");
        let stage = Stage::of(place).await;
        let claim = "select token from towline_claim where name = 'compaction' and until > now()";
        eventually("the first to lead", LIMIT, async || match token(&first).await? {
            1 => Ok(()),
            other => Err(other.to_string()),
        })
        .await
        .unwrap();
        let second = Replica::start(&stage.place, &[]).await.expect("a process");
        second.wait_ready(LIMIT).await.expect("it is ready");
        first.towline().freeze().expect("it is stopped");
        // Old enough to be compacted: 3,000 versions of one document.
        stage
            .run(
                "insert into towline_log select n, now() - interval '2 h', gen_random_uuid(), 'clusters', \
                 '00000000-0000-4000-8000-000000000000', 'foo', 'c1', '{}', nullif(n - 1, 0), '{}' \
                 from generate_series(1, 3000) n; select setval('towline_version', 3000)",
            )
            .await;
        eventually("the second to lead", LIMIT, async || match token(&second).await? {
            2 => Ok(()),
            other => Err(other.to_string()),
        })
        .await
        .unwrap();
        assert_eq!(stage.number(claim).await, 2);
        let moved = "select cursor from towline_claim where name = 'compaction'";
        stage.becomes("the second to compact", moved, 2_001).await;
        // Were the first to compact now, it would come further.
        stage
            .run(
                "insert into towline_log select n, now() - interval '2 h', gen_random_uuid(), 'clusters', \
                 '00000000-0000-4000-8000-000000000000', 'foo', 'c1', '{}', n - 1, '{}' \
                 from generate_series(3001, 4000) n; select setval('towline_version', 4000)",
            )
            .await;
        second.towline().freeze().expect("it is stopped");
        first.towline().thaw().expect("it continues");
        eventually("the first to know that it was replaced", LIMIT, async || match token(&first).await? {
            0 => Ok(()),
            other => Err(other.to_string()),
        })
        .await
        .unwrap();
        assert_eq!((stage.number(moved).await, stage.number("select base from towline_meta").await), (2_001, 2_001));
        assert_eq!(stage.number("select token from towline_claim where name = 'compaction'").await, 2);
        second.towline().thaw().expect("it continues");
    });
}
