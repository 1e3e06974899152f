//! Work over the broker, as replicas and operators see it.

use integration::hub::Replica;
use lapin::BasicProperties;
use lapin::options::BasicPublishOptions;

use crate::consumer::connect;
use crate::world::{LIMIT, SYNCSETS, World, create_unreachable, metric, run, stands};

const WORK: &str = "towline.work.clusters";

/// Replicas with syncsets work on what the broker delivers; what no cluster is told of is a dead letter that operators see, requeue and
/// discard.
#[test]
fn clusters_are_visited_and_dead_letters_are_listed_requeued_and_discarded() {
    run(async {
        let world = World::new("working").await;
        let url = world.broker.url();
        let replica = Replica::run(&world.place, &format!("bus = \"amqp\"\namqp_url = {url:?}\n{SYNCSETS}"), &[])
            .await
            .expect("it starts");
        replica.wait_ready(LIMIT).await.expect("it is ready");
        for connection in ["worker", "announcer"] {
            stands(&replica, connection, "ready", "").await;
        }
        create_unreachable(&mut replica.client(), "c1").await;
        world.visited(1).await;

        let connection = connect(&url).await.expect("a connection");
        let channel = connection.create_channel().await.expect("a channel");
        let publish = async |queue: &'static str, exchange: &'static str, body: &str| {
            let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
            channel
                .basic_publish(exchange.into(), queue.into(), options, body.as_bytes(), properties)
                .await
                .expect("sent");
        };
        publish(WORK, "", "junk\u{1b}[2J").await;
        integration::eventually("the junk to be rejected", LIMIT, async || {
            match metric(&replica, "towline_bus_dead_total").await {
                count if count > 0.5 => Ok(()),
                other => Err(other.to_string()),
            }
        })
        .await
        .unwrap();
        let id = world.text("select id::text from clusters").await;
        publish("", "towline.dead", &id).await;
        let command = async |arguments: &[&str]| world.dead_letters(&url, arguments).await;
        let listed = integration::eventually("both to be listed", LIMIT, async || match command(&[]).await {
            (Some(0), text) if text.lines().count() == 2 => Ok(text),
            other => Err(format!("{other:?}")),
        })
        .await
        .unwrap();
        assert!(listed.contains("rejected  towline.work.clusters  junk\\u{1b}[2J"), "{listed}");
        assert!(listed.contains(&id), "{listed}");
        let wanted = "select coalesce(sum(wanted), 0)::bigint from towline_work";
        let before = world.number(wanted).await;
        let (code, text) = command(&["requeue"]).await;
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("1 dead letters requeued") && text.contains("1 dead letters name no cluster"), "{text}");
        assert!(world.number(wanted).await > before);
        let (code, text) = command(&["discard"]).await;
        assert_eq!((code, text.as_str()), (Some(0), "1 dead letters discarded\n"));
        let (code, text) = command(&[]).await;
        assert_eq!((code, text.as_str()), (Some(0), "there are no dead letters\n"));
    });
}
