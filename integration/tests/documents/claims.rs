//! Leader claims: one process at a time, tokens that only grow, and no grant that is lost unnoticed.

use integration::postgres::ADMIN;
use integration::{Link, eventually};
use tokio::task::JoinHandle;
use towline::actor::Scope;
use towline::cluster::Clock;
use towline::documents::{self, Claims, Holder, Leadership, Role};

use crate::world::{LIMIT, Stage, run, source};

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
fn process<const N: usize>(stage: &Stage, roles: [Role; N]) -> (Running, [Leadership; N]) {
    let mut claims = Claims::new(&stage.database(), Holder::of_this_process(), Clock::Boot);
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
             and application_name like '%claims' and state = 'idle' and query like 'insert into towline_claim%'";
        stage.becomes("both to have asked", asked, 2).await;
        assert!(two.grant().is_none() && grant.check().is_ok());
        first.drained().await;
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
        let until = "select (extract(epoch from until) * 1000)::bigint from towline_claim";
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
        let stage = Stage::new("passed").await;
        let (_running, [mut leadership]) = process(&stage, [Role::Relay]);
        let grant = leadership.granted().await;
        // The holder is compared by name and token: neither alone is enough.
        stage.run("update towline_claim set token = token + 1, until = now() + interval '1 h'").await;
        tokio::time::timeout(LIMIT, grant.expired()).await.expect("it is lost");
        assert_eq!(stage.number("select count(*) from towline_claim where until > now() + interval '30 min'").await, 1);
    });
}

#[test]
fn a_process_without_its_database_stops_before_another_takes_over() {
    run(async {
        let stage = Stage::new("cutoff").await;
        let link = Link::to(stage.place.address()).await.expect("a link");
        let url = stage.place.url_by(ADMIN, &link.address().to_string());
        let mut claims = Claims::new(&documents::open(source(&url)), Holder::of_this_process(), Clock::Boot);
        let mut leadership = claims.role(Role::Relay);
        let _running = Running::start(claims);
        let grant = leadership.granted().await;
        link.cut().await.expect("no packet arrives");
        let left = "select (extract(epoch from until - clock_timestamp()) * 1000)::bigint from towline_claim";
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
