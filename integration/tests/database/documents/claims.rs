//! Leader claims: one process at a time, tokens that only grow, and no grant that is lost unnoticed.

use integration::postgres::ADMIN;
use integration::{Link, eventually};
use tokio::task::JoinHandle;
use towline::test_api::actor::Scope;
use towline::test_api::cluster::Clock;
use towline::test_api::documents::{self, Claims, Holder, Leadership, Role};

use crate::documents::world::{LIMIT, Stage, run, source};

/// A running actor. Aborted when dropped.
pub(crate) struct Running {
    drain: Box<dyn Fn() + Send + Sync>,
    body: JoinHandle<()>,
}

impl Running {
    pub(crate) fn start(claims: Claims) -> Self {
        let (scope, drain) = Scope::standalone("claims");
        let body = tokio::spawn(async move { claims.run(scope).await.expect("claims don't fail") });
        Self { drain: Box::new(move || drain.cancel()), body }
    }

    /// Asks it to drain, and waits for its end.
    async fn drained(mut self) {
        (self.drain)();
        tokio::time::timeout(LIMIT, &mut self.body).await.expect("it ends").expect("no panic");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.body.abort();
    }
}

/// A process that tries to fill these roles.
pub(crate) fn process<const N: usize>(stage: &Stage, roles: [Role; N]) -> (Running, [Leadership; N]) {
    let claims = Claims::new(&stage.database(), Holder::of_this_process(), Clock::Boot);
    let leaderships = roles.map(|role| claims.role(role));
    (Running::start(claims), leaderships)
}

/// Ends the claims in the database, as if the holder had been stopped for 30 s.
const END: &str = "update towline_claim set until = now() - interval '1 s'";

#[test]
fn one_process_fills_a_role_and_hands_it_back_at_its_end() {
    run(async {
        let stage = Stage::new("roles").await;
        let (first, [mut one, mut dispatcher]) = process(&stage, [Role::Compaction, Role::Dispatcher]);
        let (grant, other_role) = (one.granted().await, dispatcher.granted().await);
        assert_eq!((grant.token, grant.cursor, other_role.token), (1, 0, 1));
        stage.run("update towline_claim set cursor = 41 where name = 'compaction'").await;
        let (second, [mut two]) = process(&stage, [Role::Compaction]);
        let asked = "select count(*) from pg_stat_activity where datname = current_database() \
             and application_name like '%claims' and state = 'idle' and query like 'with free as%towline_claim%'";
        stage.becomes("both to have asked", asked, 2).await;
        assert!(two.grant().is_none() && grant.check().is_ok());
        first.drained().await;
        // Nobody else wants this one: it ended because it was handed back.
        let handed_back = "select count(*) from towline_claim where name = 'dispatcher' and until <= now()";
        assert_eq!(stage.number(handed_back).await, 1);
        assert!(grant.check().is_err() && one.grant().is_none() && dispatcher.grant().is_none());
        let next = tokio::time::timeout(LIMIT, two.granted()).await.expect("the role is taken over");
        assert_eq!((next.token, next.cursor), (2, 41));
        assert_ne!(next.holder, grant.holder);
        drop(second);
    });
}

#[test]
fn a_claim_is_renewed_and_one_that_has_ended_is_lost_and_never_revived() {
    run(async {
        let stage = Stage::new("renewed").await;
        let (_running, [mut leadership]) = process(&stage, [Role::Relay]);
        let first = leadership.granted().await;
        let until = "select (extract(epoch from until) * 1000)::bigint from towline_claim where name = 'relay'";
        let granted = stage.number(until).await;
        eventually("a renewal", LIMIT, async || match stage.number(until).await {
            found if found > granted => Ok(()),
            found => Err(found.to_string()),
        })
        .await
        .unwrap();
        assert!(first.check().is_ok());
        stage.run(END).await;
        tokio::time::timeout(LIMIT, first.expired()).await.expect("the renewal says that it has ended");
        // A new grant, with another token, and not the old one again.
        let second = tokio::time::timeout(LIMIT, leadership.granted()).await.expect("it is granted again");
        assert_eq!((first.token, second.token), (1, 2));
        assert!(first.check().is_err() && second.check().is_ok());
    });
}

#[test]
fn a_claim_that_was_granted_to_another_process_is_lost() {
    run(async {
        // The holder is compared by name and token: neither alone is enough.
        for (name, other) in [("passed", "token = token + 1"), ("passed_on", "holder = 'other'")] {
            let stage = Stage::new(name).await;
            let (_running, [mut leadership]) = process(&stage, [Role::Relay]);
            let grant = leadership.granted().await;
            stage
                .run(&format!("update towline_claim set {other}, until = now() + interval '1 h' where name = 'relay'"))
                .await;
            tokio::time::timeout(LIMIT, grant.expired()).await.expect("it is lost");
            let kept = "select count(*) from towline_claim where until > now() + interval '30 min'";
            assert_eq!(stage.number(kept).await, 1, "{other}");
        }
    });
}

#[test]
fn a_process_without_its_database_stops_before_another_takes_over() {
    run(async {
        let stage = Stage::new("cutoff").await;
        let link = Link::to(stage.place.address()).await.expect("a link");
        let url = stage.place.url_by(ADMIN, &link.address().to_string());
        let claims = Claims::new(&documents::open(source(&url)), Holder::of_this_process(), Clock::Boot);
        let mut leadership = claims.role(Role::Relay);
        let _running = Running::start(claims);
        let grant = leadership.granted().await;
        link.cut().await.expect("no packet arrives");
        let left = "select (extract(epoch from until - clock_timestamp()) * 1000)::bigint from towline_claim where name = 'relay'";
        // Whoever stops does so at the end of its own claim; in the database it has not ended by then.
        tokio::time::timeout(LIMIT, grant.expired()).await.expect("the holder stops by itself");
        eventually("the claim to end", LIMIT, async || {
            grant.check().map_or(Ok(()), |left| Err(format!("{left:?} left")))
        })
        .await
        .unwrap();
        let left = stage.number(left).await;
        assert!(left > 0, "the claim had ended {} ms before", -left);
        link.restore().await.expect("packets arrive");
        let next = tokio::time::timeout(LIMIT, leadership.granted()).await.expect("it is granted again");
        assert_eq!(next.token, grant.token + 1);
    });
}

/// One statement renews all claims of a process, and what it does not return is lost alone. Each grant has a token of its own.
#[test]
fn one_statement_renews_all_claims_and_one_that_has_ended_takes_no_other_along() {
    run(async {
        let stage = Stage::new("several").await;
        let (_running, [mut relay, mut compaction, mut dispatcher]) =
            process(&stage, [Role::Relay, Role::Compaction, Role::Dispatcher]);
        let kept = [relay.granted().await, compaction.granted().await];
        let lost = dispatcher.granted().await;
        // The time of a statement: all three were granted by one, and are renewed by one.
        let ends = "select count(distinct until) from towline_claim where holder is not null";
        let newest = "select (extract(epoch from max(until)) * 1000)::bigint from towline_claim";
        let mut until = stage.number(newest).await;
        assert_eq!(stage.number(ends).await, 1);
        // Of the 30 s a renewal is due after 6: what is left is never less than 24, but for a busy machine.
        let of_30_s = "select count(*) from towline_claim where holder is not null \
             and until between now() + interval '15 s' and now() + interval '30 s'";
        assert_eq!(stage.number(of_30_s).await, 3);
        for _ in 0..2 {
            until = eventually("a renewal", LIMIT, async || match stage.number(newest).await {
                found if found > until => Ok(found),
                found => Err(found.to_string()),
            })
            .await
            .unwrap();
            assert_eq!((stage.number(ends).await, stage.number(of_30_s).await), (1, 3));
        }
        stage.run(&format!("{END} where name = 'dispatcher'")).await;
        tokio::time::timeout(LIMIT, lost.expired()).await.expect("the renewal says that it has ended");
        assert!(kept.iter().all(|grant| grant.check().is_ok()), "another claim was lost with it");
        let again = tokio::time::timeout(LIMIT, dispatcher.granted()).await.expect("it is granted again");
        assert_eq!((lost.token, again.token), (1, 2));
        let present = [relay.grant(), compaction.grant()].map(|grant| grant.map(|grant| grant.token));
        assert_eq!(present, [Some(1), Some(1)], "another claim was granted anew");
    });
}

/// A request for a role that gets no answer delays no renewal of another.
#[test]
fn a_request_that_hangs_costs_no_claim() {
    run(async {
        let stage = Stage::new("hangs").await;
        stage
            .run("update towline_claim set holder = 'other', until = now() + interval '1 h' where name = 'relay'")
            .await;
        let (_running, [mut compaction, mut relay]) = process(&stage, [Role::Compaction, Role::Relay]);
        let grant = compaction.granted().await;
        // Requests read this table, and renewals do not.
        let other = stage.place.client(ADMIN).await.expect("a connection");
        other.batch_execute("begin; lock table towline_meta in access exclusive mode").await.expect("a lock");
        let until = "select (extract(epoch from until) * 1000)::bigint from towline_claim where name = 'compaction'";
        let mut last = stage.number(until).await;
        let waits = "select count(*) from pg_stat_activity where datname = current_database() \
             and wait_event_type = 'Lock' and query like 'with free as%towline_claim%'";
        stage.becomes("the request to hang", waits, 1).await;
        for _ in 0..3 {
            last = eventually("a renewal", LIMIT, async || match stage.number(until).await {
                found if found > last => Ok(found),
                found => Err(found.to_string()),
            })
            .await
            .unwrap();
            assert!(grant.check().is_ok());
        }
        stage.run(&format!("{END} where name = 'relay'")).await;
        other.batch_execute("commit").await.expect("it is committed");
        let next = tokio::time::timeout(LIMIT, relay.granted()).await.expect("it is granted");
        assert_eq!((next.token, compaction.grant().map(|grant| grant.token)), (1, Some(1)));
        assert!(grant.check().is_ok());
    });
}

/// A request waits for no other process: what somebody else is changing is left to them.
#[test]
fn a_row_that_another_process_is_changing_is_asked_for_later() {
    run(async {
        let stage = Stage::new("locked_row").await;
        let other = stage.place.client(ADMIN).await.expect("a connection");
        let lock = "begin; select from towline_claim where name = 'relay' for update";
        other.batch_execute(lock).await.expect("a lock");
        let (_running, [mut relay, mut compaction]) = process(&stage, [Role::Relay, Role::Compaction]);
        compaction.granted().await;
        // Both were asked for by the same statement.
        assert!(relay.grant().is_none());
        other.batch_execute("rollback").await.expect("it is done");
        let next = tokio::time::timeout(LIMIT, relay.granted()).await.expect("it is granted");
        assert_eq!(next.token, 1);
    });
}

/// A restore without the data of the claims leaves no rows. A role gets one again, above all tokens that it can have had, and is
/// blocked until grants of before have ended.
#[test]
fn a_role_without_a_row_is_granted_after_30_s_with_a_token_above_all_earlier_ones() {
    run(async {
        let stage = Stage::new("left_out").await;
        stage.run("update towline_claim set token = 1000000 where name = 'relay'").await;
        let (first, [mut relay]) = process(&stage, [Role::Relay]);
        let before = relay.granted().await;
        first.drained().await;
        // As before the end of a restore: rows that are still to come must not collide.
        stage.run("delete from towline_claim; alter table towline_claim drop constraint towline_claim_pkey").await;
        let (_running, [mut relay, mut compaction]) = process(&stage, [Role::Relay, Role::Compaction]);
        let asked = "select count(*) from pg_stat_activity where datname = current_database() \
             and application_name like '%claims' and state = 'idle' and query like 'with free as%towline_claim%'";
        stage.becomes("the claims to be asked for", asked, 1).await;
        assert_eq!(stage.number("select count(*) from towline_claim").await, 0);
        let restored = "insert into towline_claim (name, token) values ('dispatcher', 5); \
             alter table towline_claim add primary key (name)";
        stage.run(restored).await;
        stage.becomes("the rows", "select count(*) from towline_claim where name <> 'dispatcher'", 2).await;
        let until = "select (extract(epoch from min(until)) * 1000)::bigint from towline_claim";
        let blocked = "select count(*) from towline_claim where holder is null and until > now() + interval '15 s'";
        let (free_at, blocked) = (stage.number(until).await, stage.number(blocked).await);
        assert_eq!(blocked, 2, "they are blocked");
        let mut tokens = Vec::new();
        for leadership in [&mut relay, &mut compaction] {
            let grant = tokio::time::timeout(LIMIT, leadership.granted()).await.expect("it is granted at last");
            assert!(grant.token > before.token, "{} after {}", grant.token, before.token);
            tokens.push(grant.token);
        }
        // By the server's clock: a claim ends 30 s after its grant.
        let granted = "select (extract(epoch from min(until)) * 1000)::bigint - 30000 from towline_claim where holder is not null";
        let granted_at = stage.number(granted).await;
        assert!(granted_at >= free_at, "it was granted {} ms too early", free_at - granted_at);
        // Lost once more: the tokens go on rising. A role that has a row keeps it.
        stage.run("delete from towline_claim where name = 'relay'").await;
        stage.becomes("the row", "select count(*) from towline_claim where name = 'relay'", 1).await;
        let again = "select token from towline_claim where name in ('relay', 'dispatcher') order by name";
        let again = stage.numbers(again).await;
        assert!(again[0] == 5 && again[1] > tokens[0], "{again:?} after {tokens:?}");
    });
}

/// After a renewal of the versions nothing is granted for 30 s, of a role that nobody ever led as of any other: a transaction
/// that the database has lost may have granted it.
#[test]
fn a_renumbering_blocks_also_roles_that_nobody_ever_led() {
    run(async {
        let stage = Stage::new("never").await;
        documents::renumber(&stage.database(), true).await.expect("an answer").expect("a base");
        let blocked = "select count(*) from towline_claim where token = 1 and holder is null \
             and until between now() + interval '1 s' and now() + interval '30 s'";
        let until = "select (extract(epoch from max(until)) * 1000)::bigint from towline_claim";
        assert_eq!(stage.number(blocked).await, 3);
        let free_at = stage.number(until).await;
        let (_running, [mut relay, mut compaction]) = process(&stage, [Role::Relay, Role::Compaction]);
        for leadership in [&mut relay, &mut compaction] {
            let grant = tokio::time::timeout(LIMIT, leadership.granted()).await.expect("it is granted at last");
            assert_eq!(grant.token, 2);
        }
        // By the server's clock: a claim ends 30 s after its grant.
        let granted = "select (extract(epoch from min(until)) * 1000)::bigint - 30000 from towline_claim where holder is not null";
        let granted_at = stage.number(granted).await;
        assert!(granted_at >= free_at, "it was granted {} ms too early", free_at - granted_at);
    });
}
