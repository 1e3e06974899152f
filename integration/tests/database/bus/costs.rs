//! What the relay costs: statements, counted by the server, and messages.

use std::time::Duration;

use integration::eventually;
use integration::hub::Replica;
use integration::postgres::{ADMIN, HUB};
use lapin::types::FieldTable;
use tokio_postgres::Client;

use crate::bus::consumer::Queue;
use crate::bus::world::{LIMIT, World, label, metric, ready, run, stands};

const READS: &str = "%cross join towline_version s cross join (select cursor from towline_claim%";
const MOVES: &str = "with moved as (%";
const LAGS: &str = "select extract(%clock_timestamp() - at)%";
const RELISTS: &str = "insert into towline_claim (name, cursor)%";

/// Counts statements of the hub's account.
struct Statements(Client);

impl Statements {
    async fn of(world: &World) -> Self {
        Self(world.place.client(ADMIN).await.expect("a connection"))
    }

    async fn calls(&self, pattern: &str) -> i64 {
        let text = "select coalesce(sum(s.calls), 0)::int8 from statistics.pg_stat_statements s join pg_roles r on r.oid = s.userid \
             where r.rolname = $2 and s.dbid = (select oid from pg_database where datname = current_database()) and s.query like $1";
        self.0.query_one(text, &[&pattern, &HUB]).await.expect("a count").get(0)
    }

    async fn forget(&self) {
        let reset =
            "select statistics.pg_stat_statements_reset(0, oid, 0) from pg_database where datname = current_database()";
        self.0.execute(reset, &[]).await.expect("it is reset");
    }

    /// The server's time.
    async fn seconds(&self) -> f64 {
        let now = "select extract(epoch from clock_timestamp())::float8";
        self.0.query_one(now, &[]).await.expect("the time").get(0)
    }
}

async fn confirmed(replica: &Replica) -> f64 {
    metric(replica, "towline_bus_published_total{outcome=\"confirmed\"}").await
}

fn float(count: i64) -> f64 {
    f64::from(i32::try_from(count).expect("few"))
}

/// *Costs*: a message and a move of the cursor for each event that comes alone, and a read before and after it; one move for hundreds of
/// events that wait; when idle, a read a second, a look at the lag each 5 s, and nothing else.
#[test]
fn an_event_is_a_message_and_a_batch_is_a_read_and_a_move_of_the_cursor() {
    run(async {
        const ALONE: i64 = 20;
        const WAIT: usize = 300;
        let world = World::new("relaycosts").await;
        let mut replica = world.relaying().await;
        stands(&replica, "relay", "ready", "").await;
        let statements = Statements::of(&world).await;
        let mut queue = Queue::open(&world.url(), "costs", FieldTable::default()).await.expect("a queue");
        let received = async |queue: &mut Queue, count: usize| {
            for _ in 0..count {
                queue.next().await.ack().await.expect("it is acknowledged");
            }
            assert!(queue.next_within(Duration::from_secs(1)).await.is_none(), "more than {count} messages");
        };

        let before = confirmed(&replica).await;
        statements.forget().await;
        let begun = statements.seconds().await;
        let mut api = replica.client();
        for number in 0..ALONE {
            label(&mut api, "first", &number.to_string()).await;
            world.relayed().await;
        }
        let (reads, passed) = (statements.calls(READS).await, statements.seconds().await - begun);
        // The notification of a row that the read of each second has found causes another read.
        assert!(reads >= ALONE && float(reads) <= float(3 * ALONE) + passed + 1.0, "{reads} reads in {passed} s");
        assert_eq!((statements.calls(MOVES).await, statements.calls(RELISTS).await), (ALONE, 0));
        assert!((confirmed(&replica).await - before - float(ALONE)).abs() < 0.5);
        received(&mut queue, usize::try_from(ALONE).expect("few")).await;

        let before = confirmed(&replica).await;
        statements.forget().await;
        let begun = statements.seconds().await;
        let reads = eventually("twelve reads", LIMIT, async || match statements.calls(READS).await {
            reads if reads >= 12 => Ok(reads),
            reads => Err(reads.to_string()),
        })
        .await
        .unwrap();
        let (lags, passed) = (statements.calls(LAGS).await, statements.seconds().await - begun);
        // The first one may come at once.
        assert!(passed >= float(reads - 1) * 0.95, "{reads} reads in {passed} s");
        assert!(float(lags) <= passed / 5.0 + 1.0 && lags >= 2, "{lags} looks at the lag in {passed} s");
        assert_eq!((statements.calls(MOVES).await, statements.calls(RELISTS).await), (0, 0));
        assert!((confirmed(&replica).await - before).abs() < 0.5);

        replica.towline().terminate(LIMIT).await.expect("it ends");
        let writer = Replica::start(&world.place, &[]).await.expect("it starts");
        ready(&writer).await;
        for number in 0..WAIT {
            label(&mut writer.client(), "first", &number.to_string()).await;
        }
        writer.towline().terminate(LIMIT).await.expect("it ends");
        statements.forget().await;
        let begun = statements.seconds().await;
        replica.start_again().await.expect("it starts");
        ready(&replica).await;
        world.relayed().await;
        let (reads, passed) = (statements.calls(READS).await, statements.seconds().await - begun);
        assert!(reads >= 1 && float(reads) <= passed + 2.0, "{reads} reads in {passed} s");
        assert_eq!((statements.calls(MOVES).await, statements.calls(RELISTS).await), (1, 0));
        received(&mut queue, WAIT).await;
        assert!((confirmed(&replica).await - 300.0).abs() < 0.5);
    });
}
