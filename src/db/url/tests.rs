//! Connection strings of both forms, and the errors of invalid ones.

use super::*;

fn url(query: &str) -> Result<DatabaseUrl, InvalidUrl> {
    format!("postgres://hoh:se%2Fcret@db.example:5433/hub{query}").parse()
}

#[test]
fn every_sslmode_is_known_and_prefer_is_the_default() {
    assert_eq!(url("").unwrap().tls, TlsMode::Prefer);
    for (word, mode) in TlsMode::ALL {
        assert_eq!(url(&format!("?sslmode={word}&application_name=x")).unwrap().tls, mode);
    }
    assert!(matches!(url("?sslmode=perhaps"), Err(InvalidUrl::Value { parameter: "sslmode", .. })));
}

#[test]
fn require_verifies_where_it_is_told_by_whom() {
    let url = url("?sslmode=require&sslrootcert=%2Fa%20b.pem").unwrap();
    assert_eq!((url.tls, url.roots), (TlsMode::VerifyCa, Roots::File("/a b.pem".into())));
}

#[test]
fn the_roots_of_the_system_go_with_a_verified_name_and_with_nothing_less() {
    for query in ["?sslrootcert=system", "?sslmode=verify-full&sslrootcert=system"] {
        let url = url(query).unwrap();
        assert_eq!((url.tls, url.roots), (TlsMode::VerifyFull, Roots::System), "{query}");
    }
    for (word, mode) in TlsMode::ALL.into_iter().filter(|(_, mode)| *mode != TlsMode::VerifyFull) {
        let outcome = url(&format!("?sslrootcert=system&sslmode={word}"));
        assert!(matches!(outcome, Err(InvalidUrl::Value { parameter: "sslmode", .. })), "{mode:?}: {outcome:?}");
    }
    assert_eq!(url("?sslmode=verify-ca").unwrap().roots, Roots::System, "where nothing is said of roots");
}

#[test]
fn the_pool_is_bounded_by_the_url() {
    assert_eq!(url("?pool_max_conns=50&pool_max_conn_lifetime=1h").unwrap().max_connections, 50);
    assert_eq!(url("").unwrap().max_connections, DEFAULT_MAX_CONNECTIONS);
    for wrong in ["0", "-1", "many", "10001"] {
        assert!(url(&format!("?pool_max_conns={wrong}")).is_err(), "{wrong}");
    }
}

#[test]
fn no_secret_is_shown() {
    let shown = url("?pool_max_conns=2").unwrap();
    assert_eq!(format!("{shown} {shown:?}"), "db.example:5433/hub DatabaseUrl(db.example:5433/hub)");
    assert_eq!(shown.config.get_password(), Some(b"se/cret".as_slice()));
    for wrong in ["mysql://u:hunter2@h/d", "postgres://u:hunter2@h:port/d", "postgres://u:hunter2@h/d?x=hunter2"] {
        let error = wrong.parse::<DatabaseUrl>().unwrap_err().to_string();
        assert!(!error.contains("hunter2"), "{error}");
    }
    assert!(matches!("postgres://".parse::<DatabaseUrl>(), Err(InvalidUrl::NoHost)));
}

fn keywords(text: &str) -> DatabaseUrl {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// An error with its sources.
fn told(text: &str) -> String {
    let error = text.parse::<DatabaseUrl>().expect_err("a fault");
    let source = std::error::Error::source(&error).and_then(std::error::Error::source);
    source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

#[test]
fn keywords_say_the_same_as_a_url() {
    let by_url = url("?sslmode=verify-ca&sslrootcert=%2Fa%20b.pem&pool_max_conns=50&connect_timeout=3").unwrap();
    let by_keywords = keywords(
        "host=db.example port=1 port = 5433 dbname='hub' user=hoh password='se/cret' sslmode=verify-ca \
         sslrootcert='/a b.pem' pool_max_conns=50 connect_timeout=3",
    );
    assert_eq!(by_keywords, by_url);
    assert_eq!(by_keywords.place(), "db.example:5433/hub");
    let quoted = keywords(r"host=h user=u password='it\'s \\ a=b'");
    assert_eq!(quoted.config.get_password(), Some(br"it's \ a=b".as_slice()));
}

#[test]
fn words_are_read_as_libpq_reads_them() {
    let pairs: [(&str, &[(&str, &str)]); 8] = [
        ("  \n", &[]),
        ("host=db  port = 5433\tdbname='the hub'", &[("host", "db"), ("port", "5433"), ("dbname", "the hub")]),
        (r"password=a\ b\'c\\d user=u", &[("password", r"a b'c\d"), ("user", "u")]),
        (r"password='it\'s \\ a=b' user=u", &[("password", r"it's \ a=b"), ("user", "u")]),
        ("host='a'port=1", &[("host", "a"), ("port", "1")]),
        ("user=one host=h user=two", &[("host", "h"), ("user", "two")]),
        ("host='' user=", &[("host", ""), ("user", "")]),
        // libpq skips blanks behind =.
        ("password= secret", &[("password", "secret")]),
    ];
    for (text, expected) in pairs {
        let read = words(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert!(
            read.iter().map(|(name, value)| (name.as_str(), value.as_str())).eq(expected.iter().copied()),
            "{read:?}"
        );
    }
    for wrong in ["host", "host=a port", "=a", "host=a =b", "password='open", r"password='open\'", "a b=c"] {
        assert!(matches!(words(wrong), Err(InvalidUrl::Keywords)), "{wrong}");
    }
}

#[test]
fn every_parameter_of_the_driver_is_known_to_it() {
    for name in DRIVERS {
        let value = match name {
            "host" | "user" | "password" | "dbname" | "options" | "application_name" => "x",
            "hostaddr" => "10.0.0.1",
            "sslnegotiation" => "direct",
            "target_session_attrs" => "read-write",
            "channel_binding" | "load_balance_hosts" => "disable",
            _ => "1",
        };
        keywords(&format!("{name}={value} {}", if name == "hostaddr" { "" } else { "host=h" }));
    }
    keywords(&format!("host=h {}=1", WITHOUT_EFFECT.join("=1 ")));
}

#[test]
fn an_empty_keyword_is_the_default() {
    let url = keywords("host=h port='' sslmode='' pool_max_conns='' sslrootcert=''");
    assert_eq!(
        (url.tls, url.max_connections, url.place().as_str()),
        (TlsMode::Prefer, DEFAULT_MAX_CONNECTIONS, "h:5432/")
    );
    assert!(matches!("host='' user=u".parse::<DatabaseUrl>(), Err(InvalidUrl::NoHost)));
}

#[test]
fn several_hosts_are_taken_in_both_forms() {
    let by_url: DatabaseUrl =
        "postgres://u@one:1,two:2/d?target_session_attrs=read-write&load_balance_hosts=random".parse().unwrap();
    let by_keywords =
        keywords("host=one,two port=1,2 user=u dbname=d target_session_attrs=read-write load_balance_hosts=random");
    assert_eq!(by_url, by_keywords);
    assert_eq!(by_url.config.get_hosts(), [Host::Tcp("one".to_owned()), Host::Tcp("two".to_owned())]);
    assert_eq!(by_url.config.get_ports(), [1, 2]);
    assert_eq!(by_url.longest_connecting(), CONNECT_TIMEOUT * 3);
}

#[test]
fn a_socket_has_no_tls_and_an_address_alone_is_its_own_name() {
    let socket = keywords("host=/run/postgresql user=u dbname=d sslmode=require");
    assert_eq!(socket.tls, TlsMode::Disable);
    assert_eq!(socket.config.get_ssl_mode(), SslMode::Disable);
    assert_eq!(socket.place(), "/run/postgresql:5432/d");
    let mixed = keywords("host=/run/postgresql,db user=u sslmode=require");
    assert_eq!(mixed.tls, TlsMode::Require);
    let address = keywords("hostaddr=10.0.0.7 user=u sslmode=verify-full");
    assert_eq!(address.config.get_hosts(), [Host::Tcp("10.0.0.7".to_owned())]);
    assert_eq!(address.tls, TlsMode::VerifyFull);
}

#[test]
fn a_password_that_is_not_percent_encoded_is_a_fault_and_not_a_host() {
    let wrong = [
        "postgres://u:hun@ter2@h/d",
        "postgres://u:hun@ter2@h:5432",
        "postgres://u:hun@t/er2@h/d",
        "postgres://u:hun@t/er2@h",
        "postgres://u:hun?ter2@h/d",
        "postgres://u:hun?ter2@h/d?sslmode=require",
        "postgres://u:hun@t?er2@h/d?sslmode=require",
        "postgres://me@there:hunter2@h/d",
    ];
    for text in wrong {
        let error = text.parse::<DatabaseUrl>().expect_err(text);
        assert!(matches!(error, InvalidUrl::Unencoded), "{text}: {error}");
    }
    // What a URL takes as it is, and an @ where it has no other meaning.
    for (text, password) in [
        ("postgres://u:hun/ter:2#@h/d", "hun/ter:2#"),
        ("postgres://u:hun%40ter2@h/d", "hun@ter2"),
        ("postgres://h/d?user=u&password=hun@ter2", "hun@ter2"),
        ("postgres://u:hun%ter2@h/d", "hun%ter2"),
    ] {
        let url: DatabaseUrl = text.parse().unwrap();
        assert_eq!(url.config.get_password(), Some(password.as_bytes()), "{text}");
        assert_eq!(url.config.get_hosts(), [Host::Tcp("h".to_owned())], "{text}");
    }
}

#[test]
fn escapes_are_taken_back_in_names_and_values() {
    let url = url("?%73slmode=verify%2Dca&sslrootcert=%2Fa%C3%A4").unwrap();
    assert_eq!((url.tls, url.roots), (TlsMode::VerifyCa, Roots::File("/aä".into())));
    for wrong in ["?sslrootcert=%2", "?sslrootcert=%zz", "?sslrootcert=%ff", "?application_name=100%"] {
        let outcome = self::url(wrong);
        assert!(matches!(outcome, Err(InvalidUrl::Parameters)), "{wrong}: {outcome:?}");
    }
}

#[test]
fn errors_of_connection_strings_do_not_repeat_them() {
    for (text, expected) in [
        ("host=h ssl_mode=hunter2", "its parameter 2 is unknown or not supported; did you mean `sslmode`?"),
        ("host=h hunter2=x", "its parameter 2 is unknown"),
        ("postgres://h/d?sslmode=require&pool_max_con=hunter2", "did you mean `pool_max_conns`?"),
        ("postgres://h/d?hunter2=x", "its parameter 1 is unknown"),
        ("host=h gssencmode=disable", "its parameter 2 is unknown or not supported"),
        ("host=h password=my hunter2", "a keyword is not of the form keyword=value"),
        ("host=h password='hunter2", "a keyword is not of the form keyword=value"),
        ("host=h port=hunter2", "invalid value for option `port`"),
        ("host=h sslmode=hunter2", "its parameter sslmode must be disable, allow"),
        ("host=h sslcert=hunter2", "its parameter sslcert must be given together with sslkey"),
        ("user=u password=hunter2", "it names no host"),
        ("hunter2", "it is neither a postgres://"),
        ("", "it is neither a postgres://"),
        ("mysql://u:hunter2@h/d?a=b", "it is neither a postgres://"),
    ] {
        let told = told(text);
        assert!(told.contains(expected) && !told.contains("hunter2"), "{text}: {told}");
    }
}
