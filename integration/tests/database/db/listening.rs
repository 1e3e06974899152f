//! The connection that listens: it reconnects, and the subscriber is then asked to check everything.

use std::sync::Arc;
use std::time::Duration;

use integration::Postgres;
use integration::postgres::Transport;
use tokio::sync::watch;
use towline::test_api::db::{Error, Listener, Session, Subscriber};

use crate::db::world::{LIMIT, Stage, run};

/// What a subscriber was told.
#[derive(Clone, Debug, Default)]
struct Told {
    connecting: u32,
    listening: u32,
    notified: Vec<(String, String)>,
    /// Kinds of the errors.
    failed: Vec<&'static str>,
}

struct Recorder(watch::Sender<Told>);

impl Subscriber for Recorder {
    fn connecting(&self) {
        self.0.send_modify(|told| told.connecting += 1);
    }

    async fn listening(&self, session: &Session) -> Result<(), Error> {
        // The connection is good for statements, too.
        let rows = session.stream("look", "SELECT 1 FROM generate_series(1, 3)", &[]).await?.rest().await?;
        assert_eq!(rows.len(), 3);
        self.0.send_modify(|told| told.listening += 1);
        Ok(())
    }

    fn notified(&self, channel: &str, payload: &str) {
        self.0.send_modify(|told| told.notified.push((channel.to_owned(), payload.to_owned())));
    }

    fn failed(&self, error: &Error) {
        self.0.send_modify(|told| told.failed.push(error.kind()));
    }
}

/// A subscriber that listens to two channels until it is dropped.
struct Listening {
    told: watch::Receiver<Told>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Listening {
    fn start(stage: &Stage) -> Self {
        let (sender, told) = watch::channel(Told::default());
        let listener = Listener::new(stage.database(""), "listener", &["one", "Two \"2\""]);
        let recorder = Arc::new(Recorder(sender));
        let task = tokio::spawn(async move { match listener.run(&*recorder).await {} });
        Self { told, task }
    }

    async fn until(&mut self, what: &str, holds: impl FnMut(&Told) -> bool) -> Told {
        let told = tokio::time::timeout(LIMIT, self.told.wait_for(holds)).await;
        let told = told.ok().map(|told| told.expect("it runs").clone());
        told.unwrap_or_else(|| panic!("waited for {what}: {:?}", *self.told.borrow()))
    }
}

#[test]
fn after_a_restart_of_the_server_it_listens_again_and_says_look_at_everything() {
    run(async {
        let server = Postgres::start("listening", Transport::Plain).await.expect("a server");
        let stage = Stage::on(&server, "restarted").await;
        let mut listening = Listening::start(&stage);
        listening.until("it to listen", |told| told.listening == 1).await;
        stage.run("NOTIFY one, 'a'; NOTIFY \"Two \"\"2\"\"\", 'b'; NOTIFY three, 'c'; NOTIFY one").await;
        let heard = [("one", "a"), ("Two \"2\"", "b"), ("one", "")].map(|(on, text)| (on.to_owned(), text.to_owned()));
        let told = listening.until("three notifications", |told| told.notified.len() == 3).await;
        assert_eq!(told.notified, heard);
        server.kill().await.expect("it is killed");
        let told = listening.until("two failures", |told| told.failed.len() >= 2).await;
        assert_eq!(told.failed[..2], ["lost", "connect"]);
        assert_eq!(told.listening, 1);
        server.start_again().await.expect("it is back");
        let told = listening.until("it to listen again", |told| told.listening == 2).await;
        assert_eq!(told.notified.len(), 3, "nobody has told it anything meanwhile");
        let sql = stage.place.client(integration::postgres::ADMIN).await.expect("a connection");
        sql.batch_execute("NOTIFY one, 'd'").await.expect("it is sent");
        let told = listening.until("another notification", |told| told.notified.len() == 4).await;
        assert_eq!(told.notified[3], ("one".to_owned(), "d".to_owned()));
        let tries = usize::try_from(told.connecting).expect("a number");
        assert_eq!(tries, told.failed.len() + 1, "each try but the one that stands has failed");
    });
}

#[test]
fn a_connection_that_the_server_ends_is_made_anew_and_one_that_nobody_wants_is_hung_up() {
    run(async {
        let stage = Stage::new("hungup").await;
        let mut listening = Listening::start(&stage);
        let listeners = "SELECT count(*) FROM pg_stat_activity \
                         WHERE datname = current_database() AND application_name = 'towline listener'";
        for round in 1..=3 {
            listening.until("it to listen", |told| told.listening == round).await;
            assert_eq!(stage.number(listeners).await, 1);
            stage
                .run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'towline listener'")
                .await;
        }
        listening.until("it to listen", |told| told.listening == 4).await;
        drop(listening);
        stage.becomes("nobody to listen", listeners, 0).await;
    });
}

/// A subscriber whose own statement fails.
struct Failing(watch::Sender<u32>);

impl Subscriber for Failing {
    async fn listening(&self, session: &Session) -> Result<(), Error> {
        session.run("nonsense", "SELECT nonsense").await
    }

    fn notified(&self, _channel: &str, _payload: &str) {}

    fn failed(&self, error: &Error) {
        assert_eq!(error.kind(), "missing");
        self.0.send_modify(|failures| *failures += 1);
    }
}

#[test]
fn an_error_of_the_subscriber_ends_the_connection_and_is_tried_again_with_back_off() {
    run(async {
        let stage = Stage::new("failing").await;
        let (sender, mut failures) = watch::channel(0);
        let listener = Listener::new(stage.database(""), "listener", &["one"]);
        let task = tokio::spawn(async move { match listener.run(&Failing(sender)).await {} });
        let third = tokio::time::timeout(Duration::from_mins(1), failures.wait_for(|failures| *failures == 3)).await;
        assert!(third.is_ok_and(|third| third.is_ok()), "three failures in a row");
        task.abort();
    });
}
