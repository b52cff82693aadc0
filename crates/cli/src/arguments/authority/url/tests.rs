use super::*;

fn tcp(host: &str, port: u16) -> Address {
    Address::Tcp { host: host.to_owned(), port }
}

fn single(address: Address) -> Location {
    Location {
        servers: Servers::Single(address),
        credentials: Credentials::default(),
        database: 0,
        is_tls: false,
    }
}

fn credentials(user: Option<&str>, password: Option<&str>) -> Credentials {
    let owned = |text: Option<&str>| text.map(str::to_owned);
    Credentials { user: owned(user), password: owned(password) }
}

#[track_caller]
fn check(text: &str, expected: Location) {
    assert_eq!(parse(text), Ok(Some(expected)), "for {text:?}");
}

#[track_caller]
fn mistake(text: &str, expected: &str) {
    let mistake = parse(text).unwrap_err();
    assert!(mistake.contains(expected), "for {text:?}: {mistake}");
    assert!(!mistake.contains("secret"), "for {text:?}: {mistake}");
}

#[test]
fn one_server() {
    assert_eq!(parse("local"), Ok(None));
    check("redis://limits:7000", single(tcp("limits", 7000)));
    check("redis://limits", single(tcp("limits", 6379)));
    check("valkey://10.0.0.1/", single(tcp("10.0.0.1", 6379)));
    check("redis://[::1]:7000/3", Location { database: 3, ..single(tcp("::1", 7000)) });
    check("redis://[::1]", single(tcp("::1", 6379)));
    check("rediss://limits", Location { is_tls: true, ..single(tcp("limits", 6379)) });
    for text in ["unix:/run/r.sock", "unix:///run/r.sock", "redis+unix:///run/r.sock"] {
        check(text, single(Address::Unix("/run/r.sock".into())));
    }
    for (text, user, password) in [
        ("redis://tide:secret@limits", Some("tide"), Some("secret")),
        ("redis://:secret@limits", None, Some("secret")),
        ("redis://tide@limits", Some("tide"), None),
        ("redis://:s%40%2Fc%3A@limits", None, Some("s@/c:")),
        ("redis://:a/b@c@limits", None, Some("a/b@c")),
    ] {
        let credentials = credentials(user, password);
        check(text, Location { credentials, ..single(tcp("limits", 6379)) });
    }
}

#[test]
fn several_servers() {
    let plain = single(tcp("none", 1));
    let sentinels = vec![tcp("a", 1), tcp("b", 26379)];
    let sentinel = |primary: &str| Servers::Sentinel {
        sentinels: sentinels.clone(),
        primary: primary.to_owned(),
    };
    let of = |servers| Location { servers, ..plain.clone() };
    check("redis+sentinel://a:1,b/limits", of(sentinel("limits")));
    let named = Location {
        credentials: credentials(Some("tide"), Some("secret")),
        database: 2,
        is_tls: true,
        ..of(sentinel("my limits"))
    };
    check("rediss+sentinel://tide:secret@a:1,b/my%20limits/2", named);
    let nodes = vec![tcp("a", 6379), tcp("::1", 7000)];
    check("redis+cluster://a,[::1]:7000", of(Servers::Cluster { nodes: nodes.clone() }));
    let tls = Location { is_tls: true, ..of(Servers::Cluster { nodes }) };
    check("rediss+cluster://a,[::1]:7000/0", tls);
    let servers = vec![tcp("a", 11211), tcp("b", 1)];
    check("memcached://a,b:1", of(Servers::Memcached { servers: servers.clone() }));
    check("memcacheds://a,b:1", Location { is_tls: true, ..of(Servers::Memcached { servers }) });
}

#[test]
fn each_mistake_says_what_is_expected() {
    mistake("", "expected local, redis://HOST:PORT");
    mistake("http://limits", "expected local, redis://HOST:PORT");
    mistake("limits", "expected local, redis://HOST:PORT");
    mistake("limits:6379", "the kind of server is missing, such as redis://limits:6379");
    mistake("unix:", "unix: needs a path");
    mistake("redis://", "expected HOST:PORT, not \"\"");
    mistake("redis://:secret@", "expected HOST:PORT, not \"\"");
    mistake("redis://:secret@limits:99999", "expected a port from 1 to 65535 after \"limits\"");
    mistake("redis://tide:secret", "expected a port from 1 to 65535 after \"tide\"");
    mistake("redis+cluster://a:secret@b,a:secret@c", "stand once, before the first address");
    mistake("redis://limits:0", "expected a port from 1 to 65535");
    mistake("redis://::1", "an IPv6 address has brackets");
    mistake("redis://[::1", "an IPv6 address has brackets");
    mistake("redis://a,b", "several addresses are for redis+cluster:// or redis+sentinel://");
    mistake("redis://limits/shop", "expected the number of a database after /, not \"shop\"");
    mistake("redis://limits?timeout=1", "there are no options after ?");
    mistake("redis://:sec?secret@limits", "there are no options after ?");
    mistake("redis://:%FF@limits", "is not UTF-8");
    mistake("redis+sentinel://a,b", "the name of the primary is missing");
    mistake("redis+sentinel://a,,b/limits", "expected HOST:PORT, not \"\"");
    mistake("redis+cluster://a,b/1", "a cluster has no database \"1\"");
    mistake("memcached://a/1", "memcached has no database \"1\"");
    mistake("memcached://tide:secret@a", "memcached has no users here");
    let many = vec!["a"; ADDRESSES_MAX + 1].join(",");
    mistake(&format!("redis+cluster://{many}"), "65 addresses; at most 64 are read");
}

#[test]
fn a_url_is_shown_without_its_password() {
    assert_eq!(shown("redis://tide:sec@ret@limits:1"), "redis://…@limits:1");
    assert_eq!(shown("redis://limits:1"), "redis://limits:1");
    assert_eq!(shown("local"), "local");
}
