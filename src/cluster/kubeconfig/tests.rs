//! Kubeconfigs as users write them, by mistake or on purpose.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::http::scripted::Pair;

const CANARY: &str = "canary7f3a";
const ALL: Allowed = Allowed { insecure_tls: true, proxy_url: true, plain_http: true };

/// A kubeconfig with everything that is honoured, and another cluster, user and context.
fn complete() -> Value {
    let Pair { certificate, key } = Pair::named("hub.test");
    let (certificate, key) = (STANDARD.encode(certificate), STANDARD.encode(key));
    json!({
        "apiVersion": "v1", "kind": "Config", "preferences": {},
        "clusters": [
            {"name": "other", "cluster": {"server": "https://other.test"}},
            {"name": "west", "cluster": {
                "server": "https://west.test:6443/prefix", "certificate-authority-data": certificate,
                "tls-server-name": "inner.test", "proxy-url": "http://me:word@proxy.test:3128"}},
        ],
        "users": [
            {"name": "other", "user": {"token": "other"}},
            {"name": "me", "user": {
                "token": "word", "client-certificate-data": certificate, "client-key-data": key,
                "as": "robot", "as-uid": "u-1", "as-groups": ["g-1", "g-2"], "as-user-extra": {"scopes": ["s-1"]}}},
        ],
        "contexts": [
            {"name": "other", "context": {"cluster": "other", "user": "other"}},
            {"name": "current", "context": {"cluster": "west", "user": "me", "namespace": "team"}},
        ],
        "current-context": "current",
    })
}

/// The same with another value at a place; null removes it.
fn with(path: &str, value: Value) -> String {
    let mut document = complete();
    let (parent, field) = path.rsplit_once('/').unwrap();
    let parent = document.pointer_mut(parent).unwrap();
    match (parent, value) {
        (Value::Object(fields), Value::Null) => drop(fields.remove(field)),
        (parent, value) => parent[field] = value,
    }
    document.to_string()
}

fn read(text: &str, allowed: Allowed) -> Result<Credentials, Fault> {
    of_user(text.as_bytes(), allowed)
}

fn told(text: &str, allowed: Allowed) -> String {
    read(text, allowed).expect_err(text).to_string()
}

#[test]
fn an_empty_file_is_an_empty_kubeconfig_and_one_of_several_documents_is_none() {
    assert!(parse(b"# nothing yet\n").unwrap().contexts.is_empty());
    let two = format!("{}\n---\n{}\n", complete(), complete());
    assert!(matches!(parse(two.as_bytes()), Err(Fault::Malformed(yaml::Error::Documents(2)))));
}

#[test]
fn what_a_kubeconfig_says_of_the_current_context_is_taken_over_and_nothing_else() {
    let Credentials { config, .. } = read(&complete().to_string(), ALL).unwrap();
    assert_eq!(config.cluster_url.to_string(), "https://west.test:6443/prefix");
    assert_eq!(config.default_namespace, "team");
    assert_eq!(config.root_cert.map(|certificates| certificates.len()), Some(1));
    assert_eq!(config.tls_server_name.as_deref(), Some("inner.test"));
    assert_eq!(config.proxy_url.unwrap().host(), Some("proxy.test"));
    assert!(!config.accept_invalid_certs && config.headers.is_empty() && config.root_cert_file.is_none());
    let info = config.auth_info;
    assert_eq!(info.token.as_ref().map(ExposeSecret::expose_secret), Some("word"));
    assert!(info.client_certificate_data.is_some() && info.client_key_data.is_some());
    assert_eq!((info.impersonate.as_deref(), info.impersonate_uid.as_deref()), (Some("robot"), Some("u-1")));
    assert_eq!(info.impersonate_groups, Some(vec!["g-1".to_owned(), "g-2".to_owned()]));
    assert_eq!(info.impersonate_user_extra.unwrap()["scopes"], ["s-1"]);
    assert!(info.exec.is_none() && info.auth_provider.is_none() && info.token_file.is_none());
    assert!(info.client_certificate.is_none() && info.client_key.is_none());
}

#[test]
fn ours_may_name_files_and_commands_and_leaves_a_token_file_to_be_read_later() {
    let Pair { certificate, key } = Pair::named("hub.test");
    let files = [("/k/ca.crt", &certificate), ("/k/tls.crt", &certificate), ("/k/tls.key", &key)];
    let text = "current-context: c\ncontexts: [{name: c, context: {cluster: w, user: u}}]\n\
                clusters: [{name: w, cluster: {server: 'http://w.test', insecure-skip-tls-verify: true, certificate-authority: ca.crt}}]\n\
                users:\n- {name: other, user: {client-key: missing}}\n\
                - name: u\n  user: {tokenFile: ../token, client-certificate: tls.crt, client-key: /k/tls.key,\n    \
                exec: {command: ./run, provideClusterInfo: true}}\n";
    let read = |policy: &mut Policy<'_>| {
        let mut kubeconfig = parse(text.as_bytes()).unwrap();
        place_in(&mut kubeconfig, Path::new("/k"));
        configured(kubeconfig, None, policy)
    };
    let mut content = |path: &str| {
        let found = files.iter().find(|(name, _)| *name == path);
        found.map(|(_, content)| content.as_bytes().to_vec()).ok_or_else(|| FieldProblem::Unread("it is gone".into()))
    };
    let config = read(&mut Policy::Ours(&mut content)).unwrap();
    assert!(config.accept_invalid_certs && config.root_cert.is_some());
    let info = config.auth_info;
    assert_eq!(info.client_certificate_data, Some(STANDARD.encode(&certificate)));
    assert_eq!(info.client_key_data.unwrap().expose_secret(), STANDARD.encode(&key));
    assert_eq!(info.token_file.as_deref(), Some("/k/../token"));
    let exec = info.exec.unwrap();
    assert_eq!(exec.command.as_deref(), Some("/k/./run"));
    let told = exec.cluster.unwrap().certificate_authority_data;
    assert_eq!(told.as_deref(), Some(certificate.as_bytes()));
    let mut nothing = |_: &str| Err(FieldProblem::Unread("it is gone".into()));
    let error = read(&mut Policy::Ours(&mut nothing)).unwrap_err().to_string();
    assert_eq!(error, "`clusters[0].cluster.certificate-authority` refers to a file that can't be read: it is gone");
    let error = read(&mut Policy::Secret(&mut nothing)).unwrap_err().to_string();
    assert!(error.starts_with("`users[1].user.exec` is refused: it runs"), "{error}");
}

#[test]
fn a_context_that_is_asked_for_by_name_takes_the_place_of_the_current_one() {
    let of = |context| {
        let kubeconfig = parse(complete().to_string().as_bytes()).unwrap();
        let mut none = |_: &str| Err(FieldProblem::File);
        configured(kubeconfig, Some(context), &mut Policy::Ours(&mut none))
    };
    assert_eq!(of("other").unwrap().cluster_url.host(), Some("other.test"));
    assert_eq!(of("third").unwrap_err().to_string(), "there is no context of the name third");
}

#[test]
fn yaml_is_read_like_json() {
    let text = "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- name: west\n  cluster: &west\n    server: https://west.test\n\
                users: null\ncontexts:\n- name: c\n  context:\n    cluster: west\n";
    let config = read(text, Allowed::default()).unwrap().config;
    assert_eq!(config.cluster_url.to_string(), "https://west.test/");
    assert!(config.auth_info.token.is_none() && config.root_cert.is_none() && config.proxy_url.is_none());
    let json = "\t{\"current-context\": \"c\\ud83d\\ude00\", \"clusters\": [{\"name\": \"w\", \"cluster\": {\"server\": \"https:\\/\\/w\"}}],\
                \"contexts\": [{\"name\": \"c\\ud83d\\ude00\", \"context\": {\"cluster\": \"w\"}}]}";
    assert_eq!(read(json, Allowed::default()).unwrap().config.cluster_url.to_string(), "https://w/");
}

#[test]
fn commands_and_files_are_refused_in_any_user_and_any_cluster() {
    for (path, value, expected) in [
        ("/users/1/user/exec", json!({"command": "sh"}), "`users[1].user.exec` is refused: it runs"),
        ("/users/0/user/exec", json!({}), "`users[0].user.exec` is refused: it runs"),
        ("/users/0/user/exec", json!("sh"), "not a kubeconfig: `users[0].user.exec` is of a wrong type"),
        ("/users/1/user/auth-provider", json!({"name": "gcp"}), "`users[1].user.auth-provider` is refused: it runs"),
        (
            "/users/0/user/auth-provider",
            json!([]),
            "not a kubeconfig: `users[0].user.auth-provider` is of a wrong type",
        ),
        ("/users/1/user/tokenFile", json!("/t"), "`users[1].user.tokenFile` is refused: it refers to a file"),
        ("/users/0/user/tokenFile", json!("t"), "`users[0].user.tokenFile` is refused: it refers to a file"),
        ("/users/0/user/client-certificate", json!("c"), "`users[0].user.client-certificate` is refused: it refers"),
        ("/users/0/user/client-key", json!("k"), "`users[0].user.client-key` is refused: it refers"),
        (
            "/clusters/0/cluster/certificate-authority",
            json!("ca"),
            "`clusters[0].cluster.certificate-authority` is refused: it refers",
        ),
        (
            "/clusters/1/cluster/certificate-authority",
            json!("/ca"),
            "`clusters[1].cluster.certificate-authority` is refused: it refers",
        ),
    ] {
        let told = told(&with(path, value.clone()), ALL);
        assert!(told.starts_with(expected), "{path} {value}: {told}");
    }
    // Absent for kubectl, too.
    for path in ["/users/1/user/tokenFile", "/users/1/user/client-key", "/clusters/1/cluster/certificate-authority"] {
        read(&with(path, json!("")), ALL).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
    let mut document = complete();
    document["users"][0]["user"]["exec"] = Value::Null;
    read(&document.to_string(), ALL).unwrap();
}

#[test]
fn a_server_is_named_by_nothing_but_scheme_host_port_and_path() {
    for server in [
        "https://me@west.test",
        "https://me:word@west.test",
        "https://west.test?a=b",
        "https://west.test/?",
        "https://west.test#f",
        "https://west.test/path#f",
        "https://",
        "https:///path",
        "west.test:6443",
        "west.test",
        "/path",
        "ftp://west.test",
        "file:///etc/passwd",
        "unix:///run/sock",
        "https://west.test:99999",
        "https://west.test:0",
        "https://west.test:port",
        "https://west .test",
        "https://west.test\n",
    ] {
        let told = told(&with("/clusters/1/cluster/server", json!(server)), ALL);
        let expected = "`clusters[1].cluster.server` is not an https:// URL without user, password, query and fragment";
        assert_eq!(told, expected, "{server}");
    }
    let long =
        |length: usize| with("/clusters/1/cluster/server", json!(format!("https://h/{}", "a".repeat(length - 10))));
    assert!(told(&long(LONGEST_URL + 1), ALL).contains("is not an https:// URL"), "paths of requests come behind it");
    assert!(read(&long(LONGEST_URL), ALL).is_ok());
    for server in
        ["https://west.test", "https://192.0.2.1:6443/k8s/c-1", "https://[2001:db8::1]:6443", "https://[2001:db8::1]"]
    {
        read(&with("/clusters/1/cluster/server", json!(server)), ALL)
            .unwrap_or_else(|error| panic!("{server}: {error}"));
    }
    for (index, server) in [json!(null), json!("")].into_iter().enumerate() {
        let told = told(&with("/clusters/1/cluster/server", server), ALL);
        assert_eq!(told, "`clusters[1].cluster.server` is missing, or names something that is missing", "{index}");
    }
}

#[test]
fn a_user_impersonates_with_few_headers() {
    let of = |field: &str, value: Value| {
        let mut document = complete();
        let user = document.pointer_mut("/users/1/user").expect("a user");
        user["as"] = json!("somebody");
        user[field] = value;
        document.to_string()
    };
    let many = |count: usize| json!((0..count).map(|n| format!("g{n}")).collect::<Vec<_>>());
    assert!(read(&of("as-groups", many(MOST_IMPERSONATED)), ALL).is_ok());
    assert!(
        told(&of("as-groups", many(MOST_IMPERSONATED + 1)), ALL).contains("as-groups` is not a list of at most 100")
    );
    assert!(read(&of("as-user-extra", json!({"a": many(MOST_IMPERSONATED)})), ALL).is_ok());
    for extra in [json!({"a": many(60), "b": many(60)}), json!({"a": many(MOST_IMPERSONATED + 1)})] {
        assert!(told(&of("as-user-extra", extra), ALL).contains("at most 100 names and values"));
    }
}

#[test]
fn what_weakens_a_connection_needs_to_be_allowed() {
    let without: Value = serde_json::from_str(&with("/clusters/1/cluster/proxy-url", Value::Null)).unwrap();
    let without_proxy = |field: &str, value: Value| {
        let mut document = without.clone();
        document["clusters"][1]["cluster"][field] = value;
        document.to_string()
    };
    for (field, value, word, allowed) in [
        ("server", json!("http://west.test"), "plain-http", Allowed { plain_http: true, ..Allowed::default() }),
        ("insecure-skip-tls-verify", json!(true), "insecure-tls", Allowed { insecure_tls: true, ..Allowed::default() }),
        ("proxy-url", json!("socks5://proxy.test"), "proxy-url", Allowed { proxy_url: true, ..Allowed::default() }),
    ] {
        let text = without_proxy(field, value);
        let expected = format!("`clusters[1].cluster.{field}` is refused: `syncsets.allow` does not have \"{word}\"");
        assert_eq!(told(&text, Allowed::default()), expected);
        read(&text, allowed).unwrap_or_else(|error| panic!("{field}: {error}"));
    }
    read(&without_proxy("insecure-skip-tls-verify", json!(false)), Allowed::default()).unwrap();
    // In what the current context does not use, it does no harm.
    let mut document = without.clone();
    document["clusters"][0]["cluster"] =
        json!({"server": "http://h", "insecure-skip-tls-verify": true, "proxy-url": "p"});
    read(&document.to_string(), Allowed::default()).unwrap();
}

#[test]
fn a_field_that_can_not_be_used_is_named() {
    for (path, value, expected) in [
        ("/current-context", json!("none"), "`current-context` is missing, or names something that is missing"),
        ("/current-context", Value::Null, "`current-context` is missing, or names something that is missing"),
        ("/contexts/0/name", json!("current"), "`current-context` names something that is there more than once"),
        ("/contexts/1/context", Value::Null, "`contexts[1].context` is missing, or names something that is missing"),
        (
            "/contexts/1/context/cluster",
            json!("x"),
            "`contexts[1].context.cluster` is missing, or names something that is missing",
        ),
        (
            "/contexts/1/context/user",
            json!("x"),
            "`contexts[1].context.user` is missing, or names something that is missing",
        ),
        (
            "/clusters/0/name",
            json!("west"),
            "`contexts[1].context.cluster` names something that is there more than once",
        ),
        ("/users/0/name", json!("me"), "`contexts[1].context.user` names something that is there more than once"),
        (
            "/clusters/1/cluster/certificate-authority-data",
            json!("?"),
            "`clusters[1].cluster.certificate-authority-data` is not base64 of certificates in PEM",
        ),
        (
            "/clusters/1/cluster/tls-server-name",
            json!("a b"),
            "`clusters[1].cluster.tls-server-name` is not the name of a server",
        ),
        (
            "/clusters/1/cluster/proxy-url",
            json!("ftp://proxy.test"),
            "`clusters[1].cluster.proxy-url` is not an http://, https:// or socks5:// URL",
        ),
        ("/users/1/user/token", json!("a\nb"), "`users[1].user.token` is not a token"),
        ("/users/1/user/token", json!("ä\u{7f}"), "`users[1].user.token` is not a token"),
        (
            "/users/1/user/client-key-data",
            Value::Null,
            "`users[1].user.client-certificate-data` is of no use without `client-key-data`",
        ),
        (
            "/users/1/user/client-certificate-data",
            Value::Null,
            "`users[1].user.client-key-data` is of no use without `client-certificate-data`",
        ),
        (
            "/users/1/user/client-certificate-data",
            json!("AAAA"),
            "`users[1].user.client-certificate-data` is not base64 of certificates in PEM",
        ),
        (
            "/users/1/user/client-key-data",
            json!("AAAA"),
            "`users[1].user.client-key-data` is not base64 of a private key in PEM",
        ),
        ("/users/1/user/as", json!("a\r\nX: y"), "`users[1].user.as` is not the value of a header"),
        ("/users/1/user/as-uid", json!("\n"), "`users[1].user.as-uid` is not the value of a header"),
        ("/users/1/user/as-groups", json!(["a", "\n"]), "`users[1].user.as-groups` is not the value of a header"),
        (
            "/users/1/user/as-user-extra",
            json!({"a": ["\n"]}),
            "`users[1].user.as-user-extra` is not the value of a header",
        ),
        ("/users/1/user/as", Value::Null, "`users[1].user.as-uid` is of no use without `as`"),
    ] {
        assert_eq!(told(&with(path, value), ALL), expected, "{path}");
    }
}

#[test]
fn a_kubeconfig_is_bounded_in_size_depth_and_aliases() {
    let fits = complete().to_string();
    let largest = format!("{fits}{}", " ".repeat(LARGEST_OF_USER - fits.len()));
    read(&largest, ALL).unwrap();
    assert_eq!(told(&format!("{largest} "), ALL), "the kubeconfig has more than 256 KiB");
    let mut bomb = String::from("a: &a [x, x, x, x, x, x, x, x, x, x]\n");
    for (letter, before) in ('b'..='k').zip('a'..) {
        let ten = vec![format!("*{before}"); 10].join(", ");
        bomb.extend([letter.to_string(), format!(": &{letter} [{ten}]\n")]);
    }
    let minimal = "current-context: c\nclusters: [{name: w, cluster: {server: 'https://w'}}]\n\
                   contexts: [{name: c, context: {cluster: w}}]\n";
    read(minimal, Allowed::default()).unwrap();
    for text in [
        format!("{bomb}{minimal}"),
        format!("{minimal}extensions: {}{}\n", "[".repeat(5_000), "]".repeat(5_000)),
        format!("{{\"extensions\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000)),
        format!("{minimal}extensions: {}\n", "- ".repeat(100_000)),
        format!("{minimal}extensions: [{}]\n", "x,".repeat(MOST_BUILT_OF_USER / 100)),
        format!("{{\"other\": [{}0]}}", "{\"a\": 0},".repeat(MOST_BUILT_OF_USER / 200)),
        format!("{minimal}current-context: c\n"),
        "a: &a [*a]".to_owned(),
        String::new(),
        "null".to_owned(),
        "[]".to_owned(),
        "\u{0}".to_owned(),
    ] {
        let told = told(&text, Allowed::default());
        let is_told = told.starts_with("not a kubeconfig") || told.starts_with("`current-context` is missing");
        assert!(is_told, "{told}, of {}", text.get(..60).unwrap_or(&text));
    }
}

/// Every place of a document that has no members.
fn leaves(value: &Value, path: String, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(name, inner)| leaves(inner, format!("{path}/{}", name.replace('/', "~1")), found));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, inner)| leaves(inner, format!("{path}/{index}"), found));
        }
        _ => found.push(path),
    }
}

#[test]
fn a_fault_never_repeats_a_value() {
    let (mut places, document) = (Vec::new(), complete());
    leaves(&document, String::new(), &mut places);
    assert!(places.len() > 20, "{places:?}");
    let canary = Value::from(CANARY);
    for place in &places {
        for value in [
            canary.clone(),
            json!(format!("https://{CANARY}:{CANARY}@h")),
            json!(format!("{CANARY}\n")),
            json!([CANARY]),
            json!({CANARY: CANARY}),
            Value::Object(Map::from_iter([("exec".to_owned(), canary.clone())])),
        ] {
            let mut changed = document.clone();
            *changed.pointer_mut(place).unwrap() = value;
            let text = changed.to_string();
            for text in [text.clone(), text.replace('}', "\n}"), text.trim_end_matches('}').to_owned()] {
                for allowed in [ALL, Allowed::default()] {
                    let outcome = read(&text, allowed);
                    let shown = match &outcome {
                        Ok(credentials) => format!("{credentials:?}"),
                        Err(error) => format!("{error} {error:?}"),
                    };
                    assert!(!shown.contains(CANARY), "{place}: {shown}");
                }
            }
        }
    }
}

#[test]
fn another_kubeconfig_has_another_fingerprint() {
    let one = read(&complete().to_string(), ALL).unwrap().fingerprint;
    let other = read(&with("/users/1/user/token", json!("another")), ALL).unwrap().fingerprint;
    assert_ne!(one, other);
}

proptest! {
    #[test]
    fn nothing_that_is_read_panics(
        mutations in prop::collection::vec((any::<prop::sample::Index>(), prop::char::any(), 0..3_u8), 1..6)
    ) {
        let mut letters: Vec<char> = complete().to_string().chars().collect();
        for (place, letter, how) in mutations {
            let place = place.index(letters.len());
            match how {
                0 => letters[place] = letter,
                1 => letters.insert(place, letter),
                _ => letters.truncate(place.max(1)),
            }
        }
        let text: String = letters.into_iter().collect();
        let _ = read(&text, ALL);
    }

    #[test]
    fn no_text_panics(text in "(?s).{0,200}") {
        let _ = read(&text, ALL);
        let _ = read(&format!("{{{text}"), ALL);
    }
}
