//! The permissions of the broker's account: those that `docs/bus.md` names are enough, and none of them is too many.

use std::fs;

use integration::hub::Replica;
use integration::{Towline, eventually};
use lapin::BasicProperties;
use lapin::options::BasicPublishOptions;

use crate::bus::consumer::connect;
use crate::bus::world::{LIMIT, SYNCSETS, World, create_unreachable, find, run, stands};

const DOCUMENT: &str = include_str!("../../../../docs/bus.md");
const CONNECTIONS: [&str; 2] = ["relay", "worker"];
const NOTHING: &str = "^$";

/// What the page says the account needs: virtual host, user, and what it may configure, write and read.
fn documented() -> Vec<String> {
    let command = DOCUMENT.lines().find_map(|line| line.strip_prefix("rabbitmqctl set_permissions -p "));
    let words = command.expect("the page has the command").split_whitespace();
    words.map(|word| word.trim_matches('\'').to_owned()).collect()
}

/// An account with nothing but these permissions in a virtual host of its own.
struct Account<'a> {
    world: &'a World,
    vhost: String,
    user: String,
}

impl<'a> Account<'a> {
    async fn new(world: &'a World, vhost: &str, user: &str) -> Self {
        world.broker.add_bare_vhost(vhost).await.expect("a virtual host");
        world.broker.add_user(user, "secret").await.expect("a user");
        Self { world, vhost: vhost.to_owned(), user: user.to_owned() }
    }

    fn url(&self) -> String {
        format!("amqp://{}:secret@{}/{}", self.user, self.world.broker.address(), self.vhost)
    }

    async fn may(&self, configure: &str, write: &str, read: &str) {
        self.world.broker.permit(&self.user, &self.vhost, [configure, write, read]).await.expect("permissions");
    }

    /// What channels have looked up they may remember.
    async fn reconnects(&self) {
        self.world.broker.close_connections(&self.vhost).await.expect("closed");
    }

    async fn replica(&self) -> Replica {
        let config = format!("bus = \"amqp\"\namqp_url = {:?}\n{SYNCSETS}", self.url());
        let replica = Replica::run(&self.world.place, &config, &[]).await.expect("it starts");
        replica.wait_ready(LIMIT).await.expect("it is ready");
        replica
    }
}

/// Events, work, what another client has published, and the check: with all permissions the broker refuses nothing.
async fn nothing_is_refused(world: &World, account: &Account<'_>, replica: &Replica) {
    create_unreachable(&mut replica.client(), "c1").await;
    world.reconciled(1).await;
    world.relayed().await;
    for connection in CONNECTIONS {
        stands(replica, connection, "ready", "").await;
    }
    // A program that may write to the queue puts something else into it.
    let connection = connect(&account.url()).await.expect("a connection");
    let channel = connection.create_channel().await.expect("a channel");
    let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
    channel.basic_publish("".into(), "towline.work.clusters".into(), options, b"junk", properties).await.expect("sent");
    eventually("the junk to be rejected", LIMIT, async || {
        let log = replica.towline().log().map_err(|error| error.to_string())?;
        if log.contains("no cluster's id") { Ok(()) } else { Err("no warning".to_owned()) }
    })
    .await
    .unwrap();
    let checked = check(world, &account.url()).await;
    assert!(checked.0, "{}", checked.1);
    let log = world.broker.log().expect("the broker's log");
    for connection in CONNECTIONS {
        assert!(log.contains(&format!("client-provided name: towline {connection}")), "{connection}: {log}");
    }
    assert!(!log.contains("refused for user") && !log.contains("access_refused"), "{log}");
}

/// Whether `towline check --connect` finds nothing wrong with the broker at this URL, and what it says.
async fn check(world: &World, url: &str) -> (bool, String) {
    let config = format!(
        "[hub]\ndatabase_url = {:?}\nbus = \"amqp\"\namqp_url = {url:?}\n",
        world.place.url(integration::postgres::HUB)
    );
    let path = std::env::temp_dir().join(format!("towline-check-{}.toml", std::process::id()));
    fs::write(&path, config).expect("a file");
    let checked = Towline::command(["check", "--config", &path.display().to_string(), "--connect"]).await;
    let checked = checked.expect("it runs");
    let text = String::from_utf8_lossy(&checked.stdout).into_owned() + &String::from_utf8_lossy(&checked.stderr);
    (checked.status.success(), text)
}

/// Each of the documented permissions is needed: without it, `/status` names what is refused, and clusters are reconciled all the same. As soon
/// as it is given, the broker is used.
#[test]
fn the_documented_permissions_are_enough_and_one_that_is_missing_is_named_and_work_goes_on_without_the_broker() {
    run(async {
        let world = World::alone("refuses", "").await;
        let documented = documented();
        let [vhost, user, configure, write, read] = &documented[..] else { panic!("{documented:?}") };
        let account = Account::new(&world, vhost, user).await;
        account.may(configure, write, read).await;
        let replica = account.replica().await;
        nothing_is_refused(&world, &account, &replica).await;
        let (is_good, text) = check(&world, &world.url().replace("guest:guest", "guest:canary1234")).await;
        assert!(!is_good && text.contains("ACCESS_REFUSED") && !text.contains("canary1234"), "{text}");
        let mut clusters = 1;
        for (missing, may, refused) in [
            ("configure", [NOTHING, write, read], &CONNECTIONS[..]),
            ("read from queues", [configure, write, NOTHING], &["worker"]),
            ("write", [configure, NOTHING, read], &CONNECTIONS[..]),
            // What is published to a queue goes by this exchange.
            ("write to queues", [configure, r"^towline\.", read], &["worker"]),
            ("nothing", [configure, write, read], &[]),
        ] {
            println!("missing: {missing}");
            let before = CONNECTIONS.map(|connection| attempts(&world, connection));
            account.may(may[0], may[1], may[2]).await;
            account.reconnects().await;
            // A hint for which there is no connection yet is not sent, and causes no refusal.
            eventually("both to have connected anew", LIMIT, async || {
                let section = replica.towline().admin().section("hub").await.map_err(|error| error.to_string())?;
                let connections = find(&section, "connections").unwrap_or_default();
                let is_known = |of: &str| ["ready", "away"].iter().any(|state| connections[of]["state"] == *state);
                // Each of them: one that is refused tries again and again while the other one still has its connection from before.
                let tried = CONNECTIONS.map(|connection| attempts(&world, connection));
                let have = tried.iter().zip(&before).all(|(tried, before)| tried > before);
                let have = have && CONNECTIONS.into_iter().all(is_known);
                if have { Ok(()) } else { Err(section.to_string()) }
            })
            .await
            .expect("connections");
            clusters += 1;
            create_unreachable(&mut replica.client(), &format!("c{clusters}")).await;
            for connection in CONNECTIONS {
                if refused.contains(&connection) {
                    // A hint for which there was no connection yet was not sent, and so not refused: then there is another one.
                    eventually(format!("{connection} to be refused"), LIMIT, async || {
                        let section =
                            replica.towline().admin().section("hub").await.map_err(|error| error.to_string())?;
                        let found = find(&section, "connections").unwrap_or_default()[connection].clone();
                        if found["state"] == "away" && found.to_string().contains("ACCESS_REFUSED") {
                            return Ok(());
                        }
                        clusters += 1;
                        create_unreachable(&mut replica.client(), &format!("c{clusters}")).await;
                        Err(found.to_string())
                    })
                    .await
                    .unwrap();
                } else {
                    stands(&replica, connection, "ready", "").await;
                }
            }
            world.reconciled(clusters).await;
            for (connection, before) in CONNECTIONS.into_iter().zip(before) {
                let attempts = attempts(&world, connection) - before;
                assert!(
                    attempts <= 40,
                    "{missing}: {attempts} connections of {connection}: there is no pause between them"
                );
            }
        }
    });
}

/// How often the replica has made this connection, or tried to.
fn attempts(world: &World, connection: &str) -> usize {
    let name = format!("client-provided name: towline {connection}");
    world.broker.log().expect("the broker's log").matches(&name).count()
}
