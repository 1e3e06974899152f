//! What tokens may ask of syncsets.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use http::header::RETRY_AFTER;
use integration::hub::{Client, Request};
use integration::{Towline, eventually};
use serde_json::json;
use tokio::time::timeout;

use crate::syncsets::script::kubeconfig;
use crate::syncsets::world::SYNCSETS;
use crate::syncsets_commands::failures::fail;
use crate::syncsets_commands::world::{LIMIT, Stage, grant, make, run, shown};

/// A file with this text.
pub(crate) fn file(name: &str, text: &str) -> PathBuf {
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("syncsets-commands-{name}"));
    // Several tests write the same token, and commands of others read it meanwhile.
    let written = path.with_extension(WRITTEN.fetch_add(1, Ordering::Relaxed).to_string());
    std::fs::write(&written, text).expect("a file");
    std::fs::rename(&written, &path).expect("a file");
    path
}

/// A hub that knows these tokens, each named after its grant.
pub(crate) async fn guarded(name: &str, grants: &[(&str, &str)]) -> Stage {
    let mut lines = String::new();
    for (role, namespaces) in grants {
        lines += &grant(role, namespaces, &token(role, namespaces)).await;
    }
    let path = file(&format!("{name}-tokens"), &lines).display().to_string();
    Stage::with(name, "[syncsets]\n", &[("TOWLINE__HUB__TOKENS_FILE", &path)]).await
}

pub(crate) fn token(role: &str, namespaces: &str) -> String {
    format!("{role}-{}", namespaces.replace('*', "all"))
}

/// A file with a token, for `--token-file`.
pub(crate) fn token_file(role: &str, namespaces: &str) -> String {
    let token = token(role, namespaces);
    file(&token, &token).display().to_string()
}

#[test]
fn passes_are_requested_and_clusters_paused_by_those_who_may_write_them() {
    run(async {
        let grants = [("admin", "*"), ("read", "*"), ("write", "foo"), ("read", "foo")];
        let stage = guarded("writing", &grants).await;
        let mut admin = stage.replica.client().with_token(&token("admin", "*"));
        make(&mut admin, "foo", "west", "prod", false).await;
        make(&mut admin, "bar", "east", "prod", false).await;
        let (reader, writer) = (token_file("read", "*"), token_file("write", "foo"));
        let with = |token: &str, args: &[&str]| -> Vec<String> {
            args.iter().copied().chain(["--token-file", token]).map(str::to_owned).collect()
        };
        let of_reader = "the token does not have the role `write`";
        let of_writer = "the token does not have the role `write` in the namespace `bar`";
        for (token, args, error) in [
            (&reader, &["resync", "foo/west"][..], of_reader),
            (&reader, &["resync", "--all"], of_reader),
            (&reader, &["pause", "foo/west"], of_reader),
            (&reader, &["resume", "foo/west"], ""),
            (&writer, &["resync", "bar/east"], of_writer),
            (&writer, &["resync", "--all", "-n", "bar"], of_writer),
            (&writer, &["resync", "--all"], "the token does not have the role `write` for all namespaces"),
            (&writer, &["pause", "bar/east"], "the token does not have the role `read` in the namespace `bar`"),
            (&writer, &["pause", "--all"], "the token does not have the role `read` for all namespaces"),
        ] {
            let args = with(token, args);
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            if error.is_empty() {
                // There is nothing to take back.
                stage.expect(&args).await;
            } else {
                stage.refused(&args, error).await;
            }
        }
        stage.refused(&["resync", "foo/west"], "a token is required").await;
        assert_eq!(stage.number("select count(*) from towline_cluster where resyncs > 0").await, 0);
        assert_eq!(shown(&mut admin, "/v1/clusters/foo/west").await["paused"], false);

        let args = with(&writer, &["resync", "foo/west"]);
        stage.expect(&args.iter().map(String::as_str).collect::<Vec<_>>()).await;
        stage.expect(&["resync", "--all", "-n", "foo", "--token-file", &writer]).await;
        stage.expect(&["pause", "-l", "env", "-n", "foo", "--token-file", &writer]).await;
        let resyncs = "select coalesce(sum(resyncs), 0)::bigint from towline_cluster";
        assert_eq!(stage.number(resyncs).await, 2);
        assert_eq!(shown(&mut admin, "/v1/clusters/foo/west").await["paused"], true);
        assert_eq!(shown(&mut admin, "/v1/clusters/bar/east").await["paused"], false);
    });
}

#[test]
fn a_shell_completes_clusters_that_a_token_may_read_and_none_without_it() {
    run(async {
        let stage = guarded("completing", &[("admin", "*"), ("read", "foo")]).await;
        let mut admin = stage.replica.client().with_token(&token("admin", "*"));
        for (namespace, name) in [("foo", "west"), ("foo", "east"), ("bar", "east")] {
            make(&mut admin, namespace, name, "prod", true).await;
        }
        let (hub, reader) = (format!("http://{}", stage.replica.api()), token_file("read", "foo"));
        // What the script of a shell runs.
        let completed = async |line: &str, variables: &[(&str, &str)]| {
            let words: Vec<&str> = ["--", "towline"].into_iter().chain(line.split(' ')).collect();
            let said = Towline::command_with(words, &[&[("_TOWLINE_COMPLETE", "fish")], variables].concat()).await;
            let said = said.expect("it runs");
            assert!(said.status.success() && said.stderr.is_empty(), "{said:?}");
            String::from_utf8(said.stdout).expect("text").lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let of_shell = [("TOWLINE_HUB", hub.as_str()), ("TOWLINE_TOKEN_FILE", reader.as_str())];
        let typed = format!("resume --hub {hub} --token-file {reader} ");
        for (line, variables, expected) in [
            (typed.as_str(), &[][..], &["foo/east", "foo/west"][..]),
            ("pause --for 1h foo/w", &of_shell, &["foo/west"]),
            ("resync -n foo e", &of_shell, &["east"]),
            ("explain foo/", &of_shell, &["foo/east", "foo/west"]),
        ] {
            // While two cores are busy with something else, a hub may take longer than the 300 ms.
            eventually(format!("{line} to be completed"), LIMIT, async || {
                let found = completed(line, variables).await;
                if found == expected { Ok(()) } else { Err(format!("{found:?}")) }
            })
            .await
            .expect("its clusters");
        }
        // A hub that does not answer in time tells nothing, either: before and behind each of these it tells a name.
        let answers = async || completed("resync -n foo e", &of_shell).await == ["east"];
        let typed_hub = format!("resume --hub {hub} foo/");
        let untold: [(_, &[_]); 5] = [
            ("resume foo/", &of_shell[..1]),
            ("resume bar/", &of_shell),
            ("resume foo/", &[of_shell[0], ("TOWLINE_TOKEN_FILE", "/none")]),
            // The token that belongs to this hub may still be typed, and what is mistyped may have named another hub.
            (&typed_hub, &of_shell),
            ("pause --fro 1h foo/", &of_shell),
        ];
        for (line, variables) in untold {
            eventually(format!("the hub to answer around {line}"), LIMIT, async || {
                let is_quick = answers().await;
                assert_eq!(completed(line, variables).await, [""; 0], "{line} {variables:?}");
                if is_quick && answers().await { Ok(()) } else { Err("it took more than 300 ms".to_owned()) }
            })
            .await
            .expect("answers");
        }
    });
}

/// A hub without syncsets has no states of clusters, and its documents.
#[test]
fn a_shell_completes_clusters_of_a_hub_without_syncsets() {
    run(async {
        let stage = Stage::with("nostates", "", &[]).await;
        let mut client = stage.replica.client();
        for (namespace, name) in [("foo", "west"), ("foo", "east"), ("bar", "east")] {
            make(&mut client, namespace, name, "prod", true).await;
        }
        let hub = format!("http://{}", stage.replica.api());
        for (typed, expected) in
            [("foo/w", &["foo/west"][..]), ("-n foo e", &["east"]), ("", &["bar/east", "foo/east", "foo/west"])]
        {
            eventually(format!("{typed:?} to be completed"), LIMIT, async || {
                let words: Vec<&str> =
                    ["--", "towline", "resume", "--hub", &hub].into_iter().chain(typed.split(' ')).collect();
                let said = Towline::command_with(words, &[("_TOWLINE_COMPLETE", "fish")]).await.expect("it runs");
                let output = String::from_utf8(said.stdout).expect("text");
                let found: Vec<&str> = output.lines().filter(|line| !line.starts_with('-')).collect();
                if found == expected { Ok(()) } else { Err(format!("{found:?}")) }
            })
            .await
            .expect("its clusters");
        }
    });
}

#[test]
fn failures_show_the_clusters_of_namespaces_that_a_token_may_read_alone() {
    run(async {
        let grants = [("admin", "*"), ("read", "foo"), ("write", "team-a*")];
        let stage = guarded("reading", &grants).await;
        let mut admin = stage.replica.client().with_token(&token("admin", "*"));
        for (namespace, name) in [("foo", "a"), ("bar", "b"), ("team-a", "c"), ("team-ab", "d"), ("team-b", "e")] {
            make(&mut admin, namespace, name, "prod", true).await;
            fail(&stage, name, ("SelectorSyncSet", "", "monitoring"), "no").await;
        }
        for (role, namespaces, clusters) in [
            ("read", "foo", &["foo/a"][..]),
            ("write", "team-a*", &["team-a/c", "team-ab/d"]),
            ("admin", "*", &["bar/b", "foo/a", "…"]),
        ] {
            let told = stage.expect(&["failures", "--token-file", &token_file(role, namespaces)]).await;
            let count = if namespaces == "*" { 5 } else { clusters.len() };
            let clusters = clusters.join(", ");
            let expected = format!("{count}          SelectorSyncSet monitoring   Rejected   no        {clusters}");
            assert_eq!(told.lines().skip(1).collect::<Vec<_>>(), [expected], "{role} {namespaces}");
        }
        let of_foo = token_file("read", "foo");
        let told = stage.expect(&["failures", "-n", "foo", "--token-file", &of_foo]).await;
        assert!(told.ends_with("foo/a\n"), "{told}");
        let denied = "the token does not have the role `read` in the namespace `bar`";
        stage.refused(&["failures", "-n", "bar", "--token-file", &of_foo], denied).await;
        stage.refused(&["failures"], "a token is required").await;
    });
}

#[test]
fn routes_of_syncsets_are_counted_as_those_of_the_hub() {
    run(async {
        let stage = Stage::with("described", "[syncsets]\n", &[("TOWLINE__HUB__UI", "false")]).await;
        let mut client = stage.replica.client();
        for path in ["/ui", "/ui/", "/ui/fleet.js"] {
            assert_eq!(client.send(&Request::get(path)).await.expect("an answer").status, 404, "{path}");
        }
        let reply = client.send(&Request::post("/v1/clusters/resync?labelselector=a", &json!({}))).await;
        let reply = reply.expect("an answer");
        let problem = reply.json().expect("JSON");
        assert_eq!((reply.status, &problem["type"]), (400, &json!("urn:towline:problem:parameter")));
        let title = problem["title"].as_str().unwrap_or_default();
        assert!(title.contains("did you mean labelSelector?"), "{title}");
        let metrics = stage.replica.towline().admin().metrics().await.expect("metrics");
        let line = "towline_hub_requests_total{route=\"/v1/clusters/resync\",method=\"POST\",code=\"400\"} 1";
        assert!(metrics.lines().any(|one| one == line), "no {line} in {metrics}");
    });
}

#[test]
fn a_syncset_is_compared_for_those_who_may_write_it() {
    run(async {
        let grants = [("admin", "*"), ("read", "*"), ("write", "foo")];
        let stage = guarded("comparing", &grants).await;
        let (reader, writer) = (token_file("read", "*"), token_file("write", "foo"));
        let syncset = |namespace: &str| {
            let document = json!({"kind": "SyncSet", "namespace": namespace, "name": "base", "spec": {"clusterDeploymentRefs": []}});
            file(&format!("comparing-{namespace}"), &document.to_string()).display().to_string()
        };
        let selecting = json!({"kind": "SelectorSyncSet", "name": "all", "spec": {"clusterDeploymentSelector": {}}});
        let selecting = file("comparing-all", &selecting.to_string()).display().to_string();
        let (foo, bar) = (syncset("foo"), syncset("bar"));
        let told = stage.expect(&["diff", "-f", &foo, "--token-file", &writer]).await;
        assert_eq!(told, "SyncSet foo/base: 0 clusters (0 new, 0 no longer); held: no\n");
        let of_reader = "the token does not have the role `write`";
        stage.refused(&["diff", "-f", &foo, "--token-file", &reader], of_reader).await;
        let of_writer = "the token does not have the role `write` in the namespace `bar`";
        stage.refused(&["diff", "-f", &bar, "--token-file", &writer], of_writer).await;
        let of_writer = "the token does not have the role `write` for all namespaces";
        stage.refused(&["diff", "-f", &selecting, "--token-file", &writer], of_writer).await;
        stage.refused(&["diff", "-f", &foo], "a token is required").await;
        // Of several documents each is compared, and those that are refused are named.
        let both = [
            json!({"kind": "SyncSet", "namespace": "foo", "name": "base", "spec": {"clusterDeploymentRefs": []}}),
            json!({"kind": "SyncSet", "namespace": "bar", "name": "base", "spec": {"clusterDeploymentRefs": []}}),
        ];
        let both = file("comparing-both", &json!(both).to_string()).display().to_string();
        let said = stage.command(&["diff", "-f", &both, "--token-file", &writer]).await;
        assert_eq!((said.code, said.output.as_str()), (Some(1), told.as_str()), "{said:?}");
        let named = "SyncSet bar/base: the token does not have the role `write` in the namespace `bar`";
        assert!(said.error.contains(named), "{said:?}");
    });
}

#[test]
fn an_object_is_explained_to_those_who_may_read_its_cluster() {
    run(async {
        let grants = [("admin", "*"), ("read", "foo")];
        let stage = guarded("explaining", &grants).await;
        let mut admin = stage.replica.client().with_token(&token("admin", "*"));
        for namespace in ["foo", "bar"] {
            make(&mut admin, namespace, "west", "prod", true).await;
        }
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "b", "namespace": "a"}});
        let mistyped = json!({"name": "mistyped", "spec": {"resources": [map],
            "clusterDeploymentSelector": {"matchLabels": {"env": "prod", "tier": "glod"}}}});
        let reply = admin.send(&Request::post("/v1/selectorsyncsets", &mistyped)).await.unwrap();
        assert_eq!(reply.status, 201, "{reply:?}");
        let everywhere = token_file("admin", "*");
        let told = stage.expect(&["explain", "foo/west", "ConfigMap/a/b", "--token-file", &everywhere]).await;
        let live = "live       no syncset wants it, and none has sent it; SelectorSyncSet mistyped names it, and is \
             not for this cluster by its selector, its namespaces or its rollout";
        assert!(told.lines().any(|line| line == live), "{told}");
        // It has no namespace, so it is not for everybody.
        let reader = token_file("read", "foo");
        let told = stage.expect(&["explain", "foo/west", "ConfigMap/a/b", "--token-file", &reader]).await;
        let lines = [
            "cluster    not contacted yet",
            "wanted by  no syncset",
            "live       no syncset wants it, and none has sent it",
            "if dropped nothing: no syncset wants it",
        ];
        assert_eq!(told.lines().collect::<Vec<_>>(), lines);
        let denied = "the token does not have the role `read` in the namespace `bar`";
        for cluster in ["bar/west", "bar/none"] {
            stage.refused(&["explain", cluster, "ConfigMap/a/b", "--token-file", &reader], denied).await;
        }
        let none = "there is no clusters/foo/none\n";
        let said = stage.command(&["explain", "foo/none", "ConfigMap/a/b", "--token-file", &reader]).await;
        assert!(said.code == Some(1) && said.error.ends_with(none), "{said:?}");
        stage.refused(&["explain", "foo/west", "ConfigMap/a/b"], "a token is required").await;
        for wrong in
            [&["explain", "foo/west", "ConfigMap"][..], &["explain", "foo/west"], &["explain", "foo/west", "a/b/c/d"]]
        {
            assert_eq!(stage.command(wrong).await.code, Some(2), "{wrong:?}");
        }
    });
}

/// What a write would refuse, a diff refuses with all faults, before anything is tried.
#[test]
fn a_file_that_has_something_else_than_valid_syncsets_is_refused_by_name() {
    run(async {
        let stage = Stage::new("comparable").await;
        let mut client = stage.replica.client();
        let diff = |name: &str, text: &str| {
            let path = file(&format!("comparable-{name}"), text).display().to_string();
            vec!["diff".to_owned(), "-f".to_owned(), path]
        };
        for (name, text, error) in [
            (
                "cluster",
                "kind: Cluster\nnamespace: foo\nname: west\nkubeconfig: k\n".to_owned(),
                "Cluster foo/west can't be compared: only SyncSets and SelectorSyncSets can",
            ),
            ("unknown", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n".to_owned(), "document 1: "),
            ("broken", "kind: SyncSet\n  namespace: {".to_owned(), "the file can't be read: "),
            ("empty", String::new(), "the file has no document"),
            (
                "faults",
                "kind: SelectorSyncSet\nname: base\nspec: {applyBehavior: Aply, resources: [{kind: ConfigMap}]}\n"
                    .to_owned(),
                "SelectorSyncSet base: the document is not valid",
            ),
        ] {
            let args = diff(name, &text);
            stage.refused(&args.iter().map(String::as_str).collect::<Vec<_>>(), error).await;
        }
        let args = diff(
            "faults",
            "kind: SelectorSyncSet\nname: base\nspec: {applyBehavior: Aply, resources: [{kind: ConfigMap}]}\n",
        );
        let said = stage.command(&args.iter().map(String::as_str).collect::<Vec<_>>()).await;
        for pointer in ["/spec/applyBehavior: ", "/spec/resources/0/apiVersion: ", "did you mean `Apply`?"] {
            assert!(said.error.contains(pointer), "no {pointer}: {said:?}");
        }
        for (path, status) in [
            ("/v1/syncset-diffs?sample=0", 400),
            ("/v1/syncset-diffs?sample=1001", 400),
            ("/v1/syncset-diffs?all=yes", 400),
        ] {
            let body = json!({"kind": "SyncSet", "namespace": "foo", "name": "base", "spec": {}});
            assert_eq!(client.send(&Request::post(path, &body)).await.expect("an answer").status, status, "{path}");
        }
    });
}

/// An attacker with a token for one namespace fills the history, whose records nothing else bounds until the next hour.
#[test]
fn passes_that_are_requested_again_and_again_are_refused_as_other_changes_are() {
    run(async {
        let mut lines = String::new();
        for (role, namespaces) in [("admin", "*"), ("write", "foo"), ("write", "bar")] {
            lines += &grant(role, namespaces, &token(role, namespaces)).await;
        }
        let path = file("often-tokens", &lines).display().to_string();
        let env = [("TOWLINE__HUB__TOKENS_FILE", path.as_str()), ("TOWLINE__HUB__MAX_NAMESPACE_MEBIBYTES", "1")];
        let stage = Stage::with("often", "[syncsets]\n", &env).await;
        let client = |role: &str, namespaces: &str| stage.replica.client().with_token(&token(role, namespaces));
        let (mut admin, mut mallory, mut ada) = (client("admin", "*"), client("write", "foo"), client("write", "bar"));
        make(&mut admin, "foo", "west", "prod", true).await;
        make(&mut admin, "bar", "east", "prod", true).await;
        let resync = |path: &str| Request::post(&format!("/v1/clusters/{path}"), &json!({}));
        // The namespace may change 2 MiB at once. A part of that it changes by documents; each pass and each order to a rollout counts
        // a KiB of the rest.
        let fill = async |client: &mut Client, namespace: &str| {
            let document = json!({"namespace": namespace, "name": "base", "spec": {"clusterDeploymentRefs": []}});
            client
                .send(&Request::post("/v1/syncsets", &document))
                .await
                .expect("an answer")
                .success()
                .expect("a syncset");
            for letter in 'a'..='r' {
                let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "namespace": "default"},
                    "data": {"text": letter.to_string().repeat(100 << 10)}});
                let path = format!("/v1/syncsets/{namespace}/base");
                let change = Request::merge_patch(&path, &json!({"spec": {"resources": [map]}}));
                client.send(&change).await.expect("an answer").success().expect("it is changed");
            }
        };
        fill(&mut mallory, "foo").await;
        for namespace in ["foo", "bar"] {
            let rolled = json!({"kind": "SyncSet", "namespace": namespace, "name": "rolled", "spec": {"clusterDeploymentRefs": [], "rollout": {}}});
            let reply = admin.send(&Request::post("/v1/apply", &rolled)).await.expect("an answer");
            assert_eq!(reply.status, 200);
        }
        let of = |namespace: &str, action: &str| {
            Request::post(&format!("/v1/syncsets/{namespace}/rolled/rollout"), &json!({ "action": action }))
        };
        let order = |action: &str| of("foo", action);
        let mut done = 0;
        let refused = loop {
            let request = match done % 4 {
                0 => order("pause"),
                2 => order("resume"),
                _ => resync("foo/west/resync"),
            };
            let reply = mallory.send(&request).await.expect("an answer");
            if !matches!(reply.status, 200 | 202) {
                break reply;
            }
            done += 1;
            assert!(done < 500, "{done} requests are not refused");
        };
        let problem = refused.json().expect("JSON");
        assert_eq!((refused.status, &problem["type"]), (429, &json!("urn:towline:problem:change-quota")));
        assert!(done >= 100, "{done} requests");
        assert_eq!(mallory.send(&resync("resync?namespace=foo")).await.expect("an answer").status, 429);
        for action in ["pause", "resume"] {
            assert_eq!(mallory.send(&order(action)).await.expect("an answer").status, 429);
        }
        assert_eq!(ada.send(&resync("bar/east/resync")).await.expect("an answer").status, 202, "another namespace");
        // An order that is refused is as much work, and nothing else is counted of this namespace beside its documents.
        fill(&mut ada, "bar").await;
        let mut refused = 0;
        while ada.send(&of("bar", "resume")).await.expect("an answer").status == 409 {
            refused += 1;
            assert!(refused < 500, "{refused} orders are refused and not counted");
        }
        assert!(refused >= 100, "{refused} orders");
        assert_eq!(ada.send(&resync("bar/east/resync")).await.expect("an answer").status, 429);
        assert_eq!(admin.send(&resync("foo/west/resync")).await.expect("an answer").status, 202, "an administrator");
    });
}

/// A tenant asks again and again about an object of his cluster, which takes connections and never says anything.
#[test]
fn a_token_that_looks_at_a_silent_cluster_leaves_looks_to_others() {
    run(async {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = silent.local_addr().unwrap();
        let grants = [grant("write", "foo", "one").await, grant("write", "bar", "other").await];
        let path = file("looks-tokens", &grants.concat()).display().to_string();
        let section = format!("{SYNCSETS}\nmax_in_flight = 16");
        let stage = Stage::with("looks", &section, &[("TOWLINE__HUB__TOKENS_FILE", &path)]).await;
        for (namespace, token, server) in
            [("foo", "one", format!("https://{address}")), ("bar", "other", "https://127.0.0.1:1".to_owned())]
        {
            let mut client = stage.replica.client().with_token(token);
            let cluster = json!({"namespace": namespace, "name": "west", "kubeconfig": kubeconfig(&server).to_string(),
                "paused": true});
            // Of two namespaces, a look asks for the kind first, so that it takes twice as long as anybody waits for a turn.
            let object = |namespace: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": namespace}});
            let spec = json!({"clusterDeploymentRefs": [{"name": "west"}], "resources": [object("x"), object("z")]});
            let syncset = json!({"namespace": namespace, "name": "base", "spec": spec});
            for (path, document) in [("/v1/clusters", cluster), ("/v1/syncsets", syncset)] {
                client.send(&Request::post(path, &document)).await.unwrap().success().unwrap();
            }
        }
        let explain = |namespace: &str, token: &str| {
            let path =
                format!("/v1/clusters/{namespace}/west/explanation?kind=ConfigMap&objectNamespace=x&objectName=a");
            let mut client = stage.replica.client().with_token(token);
            tokio::spawn(async move { client.send(&Request::get(&path)).await.unwrap() })
        };
        let asked: Vec<_> = (0..20).map(|_| explain("foo", "one")).collect();
        // Of four slots, a token has two.
        let mut looking = Vec::new();
        while looking.len() < 2 {
            looking.push(timeout(LIMIT, silent.accept()).await.expect("a look in time").unwrap());
        }
        let mut client = stage.replica.client().with_token("one");
        let proposed =
            json!({"kind": "SyncSet", "namespace": "foo", "name": "base", "spec": {"clusterDeploymentRefs": []}});
        let compared =
            tokio::spawn(async move { client.send(&Request::post("/v1/syncset-diffs", &proposed)).await.unwrap() });
        let reply = explain("bar", "other").await.unwrap();
        assert_eq!(reply.status, 200, "{reply:?}");
        let reply = compared.await.unwrap();
        assert_eq!((reply.status, reply.header(RETRY_AFTER)), (429, Some("5")), "{reply:?}");
        let title = &reply.json().unwrap()["title"];
        assert_eq!(title, "the token has 2 looks at clusters already");
        for asked in asked {
            asked.abort();
        }
    });
}
