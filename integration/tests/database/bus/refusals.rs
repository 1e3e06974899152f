//! A broker that refuses: it is named in the report and the metrics, and documents are served meanwhile.

use integration::Towline;
use lapin::ExchangeKind;
use lapin::options::{ExchangeDeclareOptions, ExchangeDeleteOptions};
use lapin::types::FieldTable;

use crate::bus::consumer::{Queue, connect};
use crate::bus::world::{World, create, metric, run, stands};

const CONNECTED: &str = "towline_bus_connected{connection=\"relay\"}";

/// Memory and disk alarms: publishing stops, documents go on, and the events come when the alarm is over. If it ends while the database is
/// away, the connection that was blocked is gone with the database's, and the next one never was.
#[test]
fn an_alarm_of_the_broker_is_named_holds_up_nobody_but_events_and_leaves_nothing_behind() {
    run(async {
        let world = World::alone("alarms", "").await;
        let replica = world.relaying().await;
        stands(&replica, "relay", "ready", "").await;
        let mut queue = Queue::open(&world.url(), "alarms", FieldTable::default()).await.expect("a queue");
        let mut api = replica.client();
        for (number, is_of_disk) in [(0, false), (1000, true)] {
            let set = async |on| {
                let set = if is_of_disk { world.broker.fill_disk(on).await } else { world.broker.alarm(on).await };
                set.expect("an alarm");
            };
            set(true).await;
            // The broker says so to who publishes.
            create(&mut api, &format!("c{number}")).await;
            stands(&replica, "relay", "blocked", "memory or disk").await;
            assert!(metric(&replica, CONNECTED).await < 0.5);
            for more in 1..100 {
                create(&mut api, &format!("c{}", number + more)).await;
            }
            integration::eventually("the relay to be behind", crate::bus::world::LIMIT, async || {
                let lag = metric(&replica, "towline_bus_lag_seconds").await;
                if lag > 1.0 { Ok(()) } else { Err(lag.to_string()) }
            })
            .await
            .unwrap();
            set(false).await;
            stands(&replica, "relay", "ready", "").await;
            let mut seen = 0;
            while seen < 100 {
                let received = queue.next().await;
                received.ack().await.expect("it is acknowledged");
                seen += usize::from(received.body["type"] == "ADDED");
            }
            world.relayed().await;
        }

        world.broker.alarm(true).await.expect("an alarm");
        create(&mut api, "last").await;
        stands(&replica, "relay", "blocked", "memory or disk").await;
        world.server.kill().await.expect("it is killed");
        world.broker.alarm(false).await.expect("no alarm");
        world.server.start_again().await.expect("it starts");
        world.relayed().await;
        stands(&replica, "relay", "ready", "").await;
        assert!(metric(&replica, CONNECTED).await > 0.5);
    });
}

/// 406: what exists with other arguments is named, and the broker is used as soon as it is gone.
#[test]
fn an_object_with_other_arguments_is_named_and_used_by_nobody() {
    run(async {
        let world = World::new("mismatch").await;
        let connection = connect(&world.url()).await.expect("a connection");
        let channel = connection.create_channel().await.expect("a channel");
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let none = FieldTable::default();
        channel.exchange_declare("towline.events".into(), ExchangeKind::Direct, options, none).await.expect("declared");
        let replica = world.replica().await;
        stands(&replica, "relay", "refused", "towline.events").await;
        assert!(metric(&replica, CONNECTED).await < 0.5);
        create(&mut replica.client(), "c1").await;
        channel.exchange_delete("towline.events".into(), ExchangeDeleteOptions::default()).await.expect("deleted");
        stands(&replica, "relay", "ready", "").await;
        world.relayed().await;
        drop(connection);
    });
}

/// Wrong credentials are named, and no password is.
#[test]
fn refused_credentials_are_named_without_the_password() {
    run(async {
        let world = World::new("refused").await;
        let url = world.url().replace("guest:guest", "guest:canary1234");
        let replica = world.replica_at(&url).await;
        stands(&replica, "relay", "away", "ACCESS_REFUSED").await;
        create(&mut replica.client(), "c1").await;
        let admin = replica.towline().admin();
        let status = admin.status().await.expect("a report").to_string();
        let log = replica.towline().log().expect("a log");
        let metrics = admin.metrics().await.expect("metrics");
        for text in [status, log, metrics] {
            assert!(!text.contains("canary1234"), "{text}");
        }
    });
}

/// `towline check --connect` says what is wrong with the broker, too.
#[test]
fn a_check_covers_the_broker() {
    run(async {
        let world = World::new("checked").await;
        let check = async |url: &str| {
            let config = format!(
                "[hub]\ndatabase_url = {:?}\nbus = \"amqp\"\namqp_url = {url:?}\n",
                world.place.url(integration::postgres::HUB)
            );
            let path = std::env::temp_dir().join(format!("towline-check-{}.toml", std::process::id()));
            std::fs::write(&path, config).expect("a file");
            let path = path.display().to_string();
            let output = Towline::command(["check", "--config", &path, "--connect"]).await.expect("it runs");
            let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
            (output.status.success(), text)
        };
        let (is_good, text) = check(&world.broker.tls_url().replace("%2F", "checked")).await;
        assert!(is_good, "{text}");
        let (is_good, text) = check(&world.url().replace("guest:guest", "guest:canary1234")).await;
        assert!(!is_good && text.contains("ACCESS_REFUSED") && !text.contains("canary1234"), "{text}");
    });
}
