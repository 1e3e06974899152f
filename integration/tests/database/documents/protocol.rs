//! No client blocks the writers of others, wherever it stops.

use towline::test_api::documents::{Item, Outcome};

use crate::documents::raw::{Messages, Raw};
use crate::documents::world::{Stage, create, put, run};

const CALL: &str = "call towline_write($1::jsonb, null)";

fn messages(item: &Item) -> Messages {
    Messages::of(CALL, &serde_json::to_string(&[item]).expect("JSON"))
}

#[test]
fn a_client_that_stops_after_any_message_or_within_it_blocks_no_writer() {
    run(async {
        let stage = Stage::new("stopped").await;
        let writer = stage.writer();
        // Kept open until the end.
        let mut stopped = Vec::new();
        for sent in 0..=5 {
            for is_cut in [false, true] {
                let name = format!("raw{sent}{is_cut}");
                let statement = messages(&create(&name));
                let all = statement.all();
                let mut client = Raw::connect(&stage.place, "stopped").await;
                for message in &all[..sent] {
                    client.send(message).await;
                }
                if let Some(next) = all.get(sent).filter(|_| is_cut) {
                    client.send(&next[..next.len() / 2]).await;
                }
                if sent >= 4 {
                    // Its call has been carried out.
                    let there = format!("select count(*) from clusters where name = '{name}'");
                    stage.becomes("the call of the raw client", &there, 1).await;
                }
                stopped.push(client);
                let outcome = writer.handle.write(put("ours")).await;
                assert!(matches!(outcome, Ok(Outcome::Written { .. })), "{sent} messages, {is_cut}: {outcome:?}");
            }
        }
        assert_eq!(stage.number("select count(*) from clusters where name like 'raw%'").await, 4);
        drop(stopped);
    });
}

#[test]
fn a_client_that_takes_no_byte_of_its_answer_blocks_no_writer() {
    run(async {
        let stage = Stage::new("unread").await;
        let writer = stage.writer();
        // An answer that is larger than all buffers between.
        let names: Vec<String> = (0..3_000).map(|number| format!("raw{number}")).collect();
        let items: Vec<Item> = names.iter().map(|name| create(name)).collect();
        let statement = Messages::of(CALL, &serde_json::to_string(&items).expect("JSON"));
        let mut client = Raw::connect(&stage.place, "unread").await;
        for message in statement.all() {
            client.send(message).await;
        }
        let stuck = "select count(*) from pg_stat_activity \
             where datname = current_database() and wait_event = 'ClientWrite'";
        stage.becomes("the server to wait for the raw client", stuck, 1).await;
        writer.version(create("ours")).await;
        // It reads it at last.
        client.until(b'Z').await;
    });
}
