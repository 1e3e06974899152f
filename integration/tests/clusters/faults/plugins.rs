//! Commands that make credentials, and credentials that break: neither stops anybody who has nothing to do with them.

use std::fs;
use std::path::{Path, PathBuf};

use integration::rbac::{Side, grant_election};
use integration::{Towline, eventually, users};
use serde_json::{Value, json};

use crate::faults::credentials::Account;
use crate::faults::world::{LIMIT, Lane, make_namespace, run, start};

/// A credential plugin that does what a file says, and notes each run.
struct Plugin {
    order: PathBuf,
    runs: PathBuf,
}

impl Plugin {
    fn at(directory: &Path) -> Self {
        fs::create_dir(directory).unwrap();
        Self { order: directory.join("order"), runs: directory.join("runs") }
    }

    /// A kubeconfig's user.
    fn user(&self) -> Value {
        let script = format!("echo run >> {}; . {}", self.runs.display(), self.order.display());
        json!({"exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "interactiveMode": "Never",
            "command": "sh",
            "args": ["-c", script],
        }})
    }

    fn order(&self, script: &str) {
        // Whole at any time.
        fs::write(self.order.with_extension("next"), script).unwrap();
        fs::rename(self.order.with_extension("next"), &self.order).unwrap();
    }

    /// It prints a token that, as far as it says, never expires.
    fn issue(&self, token: &str) {
        let credential = json!({"kind": "ExecCredential", "status": {"token": token}});
        self.order(&format!("echo '{credential}'"));
    }

    fn runs(&self) -> usize {
        fs::read_to_string(&self.runs).unwrap_or_default().lines().count()
    }

    async fn has_run_again(&self, what: &str) {
        let before = self.runs();
        eventually(format!("the plugin to be run, {what}"), LIMIT, async || {
            if self.runs() > before { Ok(()) } else { Err(format!("{before} runs")) }
        })
        .await
        .unwrap();
    }
}

async fn log_says(towline: &Towline, text: &str) {
    eventually(format!("the log to say {text:?}"), LIMIT, async || {
        let log = towline.log().map_err(|error| error.to_string())?;
        if log.contains(text) { Ok(()) } else { Err(log.lines().rev().take(5).collect::<Vec<_>>().join("\n")) }
    })
    .await
    .unwrap();
}

#[test]
fn a_plugin_that_hangs_or_fails_holds_nobody_else_up_and_a_refused_token_is_asked_for_anew() {
    run(async {
        let near = Lane::shared("plugin-near", "databases").await;
        let far = near.beside("plugin-far", "databases").await;
        let mut account = Account::on(&near.hub, Side::Remote, "plugin").await;
        make_namespace(&near.edge_client, "plugin-election").await;
        grant_election(&near.edge.client(users::ADMIN).await.unwrap(), "plugin-election", None).await.unwrap();
        for lane in [&near, &far] {
            lane.make_namespace("team").await;
            lane.order_many("team", 3).await;
        }
        let plugin = Plugin::at(&near.hub.directory().join("plugin"));
        let kubeconfig = near.hub.directory().join("plugin.kubeconfig");
        fs::write(&kubeconfig, account.kubeconfig(plugin.user())).unwrap();
        plugin.order("sleep 1000");
        let config = near.clusters()
            + &Lane::cluster("behind", &kubeconfig)
            + "request_timeout = \"2s\"\n"
            + "[election]\ncluster = \"edge\"\nnamespace = \"plugin-election\"\nlease_duration = \"6s\"\nrenew_interval = \"1s\"\n"
            + &near.section("near", "")
            + &far.section_between("far", "behind", "edge", "");
        let towline = Towline::start(&config, &[]).await.unwrap();
        towline.wait_ready(LIMIT).await.unwrap();
        near.in_step("while the plugin hangs").await;
        log_says(&towline, "did not end within 2s and was killed").await;
        for round in 0..3 {
            plugin.has_run_again("which hangs").await;
            assert_eq!(towline.admin().healthz().await.unwrap().status, 200);
            near.resize_many("team", 3, &format!("1{round}Gi")).await;
            near.in_step("while the plugin hangs again").await;
        }
        plugin.order("exit 3");
        plugin.has_run_again("which fails").await;
        log_says(&towline, "command for credentials failed (exit status: 3)").await;
        near.resize_many("team", 3, "20Gi").await;
        near.in_step("while the plugin fails").await;

        let first = account.issue().await;
        plugin.issue(&first);
        let before = far.in_step("with the plugin's token").await;
        let runs = plugin.runs();
        // Refused, it is asked for again, though it was to be good for ever.
        account.revoke(1, &first).await;
        far.resize_many("team", 3, "2Gi").await;
        plugin.has_run_again("since its token is refused").await;
        let second = account.issue().await;
        plugin.issue(&second);
        assert_eq!(far.in_step("with the plugin's second token").await, before);
        assert!(plugin.runs() > runs);
        // What works goes on, though the kubeconfig has been touched and its plugin hangs.
        plugin.order("sleep 1000");
        let runs = plugin.runs();
        fs::write(&kubeconfig, account.kubeconfig(plugin.user()) + "\n").unwrap();
        log_says(&towline, "new credentials do not work, the old ones stay in use").await;
        assert!(plugin.runs() > runs);
        far.resize_many("team", 3, "3Gi").await;
        assert_eq!(far.in_step("while new credentials hang").await, before);
        near.in_step("at the end").await;
        let log = towline.log().unwrap();
        assert!(!log.contains(&first) && !log.contains(&second), "a token is told");
        assert!(!log.contains("lease lost"), "the election went on: {log}");
    });
}

#[test]
fn credentials_that_break_never_replace_those_that_work() {
    run(async {
        let lane = Lane::shared("broken-credentials", "databases").await;
        let (mut hub, mut edge) = (
            Account::on(&lane.hub, Side::Remote, "broken").await,
            Account::on(&lane.edge, Side::Local, "broken").await,
        );
        lane.make_namespace("team").await;
        lane.order_many("team", 3).await;
        let path = |name: &str| lane.hub.directory().join(format!("broken-{name}"));
        let (hub_file, edge_file, token_file) = (path("hub"), path("edge"), path("token"));
        let hub_token = hub.issue().await;
        let proper = hub.kubeconfig(json!({"token": hub_token}));
        fs::write(&hub_file, &proper).unwrap();
        fs::write(&edge_file, edge.kubeconfig(json!({"tokenFile": token_file}))).unwrap();
        let edge_token = edge.issue().await;
        // With a line feed at the end, as an editor leaves it.
        fs::write(&token_file, format!("{edge_token}\n")).unwrap();
        let clusters = Lane::cluster("hub", &hub_file) + &Lane::cluster("edge", &edge_file);
        let towline = start(&(clusters + &lane.section("lane", ""))).await;
        let before = lane.in_step("with credentials that work").await;

        let nowhere = proper.replacen(&lane.hub.address().to_string(), "127.0.0.1:1", 1);
        assert_ne!(nowhere, proper);
        let broken: [(&str, Option<String>, &str); 7] = [
            ("is gone", None, "No such file"),
            ("is empty", Some(String::new()), "the file is empty"),
            ("is cut off", Some(proper[..proper.len() / 2].to_owned()), "not a kubeconfig"),
            (
                "has a wrong token",
                Some(hub.kubeconfig(json!({"token": "nobody's"}))),
                "does not accept the credentials",
            ),
            ("has nobody in it", Some(hub.kubeconfig(json!({}))), "neither a token nor a client certificate"),
            ("leads nowhere", Some(nowhere), "failed to connect"),
            (
                "has a plugin that is not there",
                Some(hub.kubeconfig(
                    json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "/nonexistent"}}),
                )),
                "failed to start the kubeconfig's command",
            ),
        ];
        for (round, (how, content, told)) in broken.into_iter().enumerate() {
            match content {
                Some(content) => fs::write(&hub_file, content).unwrap(),
                None => fs::remove_file(&hub_file).unwrap(),
            }
            log_says(&towline, told).await;
            lane.resize_many("team", 3, &format!("1{round}Gi")).await;
            lane.report_many("team", 3, &format!("round-{round}")).await;
            assert_eq!(lane.in_step(&format!("while the kubeconfig {how}")).await, before);
        }
        for (round, content) in ["", "not-a-token\n", "two\nlines"].into_iter().enumerate() {
            fs::write(&token_file, content).unwrap();
            let told = ["the token is empty", "cluster edge does not accept", "contains invalid characters"];
            log_says(&towline, told[round]).await;
            lane.resize_many("team", 3, &format!("2{round}Gi")).await;
            assert_eq!(lane.in_step("while the token file is broken").await, before);
        }
        let log = towline.log().unwrap();
        assert!(!log.contains("cluster is not available"), "what worked went on: {log}");
        // It works, and is not well: somebody has to act before the old ones expire.
        let exit = async || {
            let admin = towline.admin_url();
            let output = Towline::command(["status", "--exit-code", "--admin", &admin]).await.unwrap();
            (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let failing = async || towline.admin().metrics().await.unwrap();
        let series = |cluster: &str, value: u8| {
            format!("towline_cluster_new_credentials_fail{{cluster=\"{cluster}\"}} {value}\n")
        };
        for cluster in ["hub", "edge"] {
            let metrics = failing().await;
            assert!(metrics.contains(&series(cluster, 1)), "{metrics}");
        }
        let (code, table) = exit().await;
        assert!(
            code == Some(3) && table.contains("available") && table.contains("new credentials do not work"),
            "{table}"
        );

        // Good ones are taken up, and those before them are not missed.
        let second = hub.issue().await;
        fs::write(&hub_file, hub.kubeconfig(json!({"token": second}))).unwrap();
        hub.revoke(1, &hub_token).await;
        let new_token = edge.issue().await;
        fs::write(&token_file, &new_token).unwrap();
        edge.revoke(1, &edge_token).await;
        lane.resize_many("team", 3, "30Gi").await;
        lane.report_many("team", 3, "at-last").await;
        assert_eq!(lane.in_step("with the credentials that came last").await, before);
        for cluster in ["hub", "edge"] {
            let metrics = failing().await;
            assert!(metrics.contains(&series(cluster, 0)), "{metrics}");
        }
        for token in [&hub_token, &edge_token, &second, &new_token] {
            assert!(!towline.log().unwrap().contains(token.as_str()), "a token is told");
        }
    });
}
