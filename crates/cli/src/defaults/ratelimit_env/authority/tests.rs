use super::super::tests::{defaults, environment, warnings};
use crate::defaults::srv::Srv;
use crate::defaults::tests::serve_options;

const TYPE: (&str, &str) = ("BACKEND_TYPE", "redis");

#[track_caller]
fn mistake(set: &[(&'static str, &str)], expected: &str) {
    let environment = environment(set);
    let [mistake] = environment.authority_mistakes() else {
        panic!("{set:?}: {:?}", environment.authority_mistakes())
    };
    assert!(mistake.contains(expected), "{set:?}: {mistake}");
    assert!(!mistake.contains("secret"), "{set:?}: {mistake}");
    assert_eq!(environment.mistakes(), [] as [&str; 0]);
    let ids = environment.defaults().iter().map(|default| default.id);
    assert!(ids.filter(|id| id.starts_with("authority")).count() == 0, "{set:?}");
}

#[test]
fn a_redis_is_where_its_url_says() {
    let socket = ("REDIS_SOCKET_TYPE", "tcp");
    for (url, kind, expected) in [
        ("redis:6379", None, "redis://redis:6379"),
        ("redis://redis:6379/1", None, "redis://redis:6379/1"),
        ("redis://:p@redis:6379", Some("single"), "redis://:p@redis:6379"),
        ("limits,a:1,b:2", Some("SENTINEL"), "redis+sentinel://a:1,b:2/limits"),
        ("my limits/x,a:1", Some("sentinel"), "redis+sentinel://a:1/my%20limits%2Fx"),
        ("a:1,b:2", Some("Cluster"), "redis+cluster://a:1,b:2"),
        ("redis://u:p@a:1,redis://u:p@b:2", Some("CLUSTER"), "redis+cluster://u:p@a:1,b:2"),
    ] {
        let mut set = vec![socket, ("REDIS_URL", url)];
        set.extend(kind.map(|kind| ("REDIS_TYPE", kind)));
        defaults(&set, &[("authority", expected)]);
        warnings(&set, &[]);
        set.push(("REDIS_TLS", "true"));
        defaults(&set, &[("authority", &expected.replacen("redis", "rediss", 1))]);
    }
    let path = ("REDIS_URL", "/run/redis.sock");
    defaults(&[("REDIS_SOCKET_TYPE", "unix"), path], &[("authority", "unix:/run/redis.sock")]);
    // There a socket is the default.
    defaults(&[TYPE, path], &[("authority", "unix:/run/redis.sock")]);
}

#[test]
fn credentials_files_and_times_are_those_of_the_flags() {
    defaults(
        &[
            TYPE,
            ("REDIS_URL", "limits,a:1"),
            ("REDIS_TYPE", "sentinel"),
            ("REDIS_AUTH", "tide:ga:te"),
            ("REDIS_SENTINEL_AUTH", "sentry"),
            ("REDIS_TLS", "1"),
            ("REDIS_TLS_CACERT", "/ca"),
            ("REDIS_TLS_CLIENT_CERT", "/cert"),
            ("REDIS_TLS_CLIENT_KEY", "/key"),
            ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "true"),
            ("REDIS_TIMEOUT", "1m30s"),
            ("REDIS_POOL_SIZE", "1000"),
            ("REDIS_POOL_ON_EMPTY_BEHAVIOR", "wait"),
            ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true"),
            ("CACHE_KEY_PREFIX", "shop_"),
            ("EXPIRATION_JITTER_MAX_SECONDS", "300"),
        ],
        &[
            ("authority", "rediss+sentinel://a:1/limits"),
            ("authority_user", "tide"),
            ("authority_password", "ga:te"),
            ("authority_sentinel_password", "sentry"),
            ("authority_timeout", "60000ms"),
            ("authority_connections", "64"),
            ("authority_ca", "/ca"),
            ("authority_cert", "/cert"),
            ("authority_key", "/key"),
            ("authority_skip_hostname", "true"),
            ("authority_health", "true"),
            ("authority_prefix", "shop_tidegate:"),
            ("authority_expiry_jitter", "300s"),
        ],
    );
    let second = [
        TYPE,
        ("REDIS_URL", "a:1"),
        ("REDIS_AUTH", ":gate"),
        ("REDIS_PERSECOND", "true"),
        ("REDIS_PERSECOND_URL", "fast,b:1"),
        ("REDIS_PERSECOND_TYPE", "SENTINEL"),
        ("REDIS_PERSECOND_SOCKET_TYPE", "tcp"),
        ("REDIS_PERSECOND_AUTH", "quick:pass"),
        ("REDIS_PERSECOND_SENTINEL_AUTH", "eye:look"),
        ("REDIS_PERSECOND_TLS", "true"),
        ("REDIS_PERSECOND_TIMEOUT", "500us"),
        ("REDIS_PERSECOND_POOL_SIZE", "5"),
        ("REDIS_TLS_CACERT", "/ca"),
    ];
    let expected = [
        ("authority", "redis://a:1"),
        ("authority_password", "gate"),
        ("authority_per_second", "rediss+sentinel://b:1/fast"),
        ("authority_per_second_user", "quick"),
        ("authority_per_second_password", "pass"),
        ("authority_per_second_sentinel_user", "eye"),
        ("authority_per_second_sentinel_password", "look"),
        ("authority_per_second_timeout", "1ms"),
        ("authority_per_second_connections", "5"),
        ("authority_ca", "/ca"),
    ];
    defaults(&second, &expected);
    warnings(&second, &[]);
    let (options, _) =
        serve_options(&["--limits", "l"], &Srv::default(), &environment(&second[..12]));
    let shared = options.authority.settings().unwrap().unwrap();
    let per_second = shared.per_second.unwrap();
    assert!(shared.servers.tls.is_none() && per_second.tls.is_some());
}

#[test]
fn memcached_is_used_where_it_is_the_backend() {
    let backend = ("BACKEND_TYPE", "memcache");
    let set = [
        backend,
        ("MEMCACHE_HOST_PORT", "a:11211,b:1"),
        ("MEMCACHE_MAX_IDLE_CONNS", "4"),
        ("MEMCACHE_TLS", "true"),
        ("MEMCACHE_TLS_CACERT", "/ca"),
        ("EXPIRATION_JITTER_MAX_SECONDS", "0"),
    ];
    let expected = [
        ("authority", "memcacheds://a:11211,b:1"),
        ("authority_ca", "/ca"),
        ("authority_connections", "4"),
        ("authority_expiry_jitter", "0s"),
    ];
    defaults(&set, &expected);
    warnings(&set, &[]);
    let redis = [backend, ("MEMCACHE_HOST_PORT", "a:1"), ("REDIS_URL", "b:1"), ("REDIS_TLS", "1")];
    defaults(&redis, &[("authority", "memcached://a:1")]);
    warnings(&redis, &["REDIS_URL", "REDIS_TLS"]);
    mistake(&[backend], "BACKEND_TYPE=memcache: MEMCACHE_HOST_PORT must be set too");
    mistake(&[backend, ("MEMCACHE_SRV", "_m._tcp.x")], "SRV records are not looked up");
    let both = [backend, ("MEMCACHE_HOST_PORT", "a:1"), ("MEMCACHE_SRV", "x")];
    mistake(&both, "only one of them may be set");
    mistake(&[backend, ("MEMCACHE_HOST_PORT", "a:b")], "MEMCACHE_HOST_PORT: expected a port");
}

/// A variable that has no effect there has none here, and says so.
#[test]
fn without_servers_counters_stay_on_this_machine() {
    let set = [TYPE, ("REDIS_POOL_SIZE", "10"), ("CACHE_KEY_PREFIX", "a")];
    defaults(&set, &[]);
    warnings(&set, &["BACKEND_TYPE", "REDIS_POOL_SIZE", "CACHE_KEY_PREFIX"]);
    let url = ("REDIS_URL", "a:1");
    for (set, expected) in [
        (vec![("EXPIRATION_JITTER_MAX_SECONDS", "1")], vec!["EXPIRATION_JITTER_MAX_SECONDS"]),
        (vec![TYPE, url, ("MEMCACHE_HOST_PORT", "b:1")], vec!["MEMCACHE_HOST_PORT"]),
        (vec![TYPE, url, ("REDIS_PERSECOND_URL", "b:1")], vec!["REDIS_PERSECOND_URL"]),
        (vec![TYPE, url, ("REDIS_TLS_CACERT", "/ca")], vec!["REDIS_TLS_CACERT"]),
        (vec![TYPE, url, ("REDIS_SENTINEL_AUTH", "a")], vec!["REDIS_SENTINEL_AUTH"]),
        (vec![url, ("REDIS_PIPELINE_WINDOW", "1ms")], vec!["REDIS_PIPELINE_WINDOW"]),
        (
            vec![url, ("REDIS_POOL_ON_EMPTY_BEHAVIOR", "ERROR")],
            vec!["REDIS_POOL_ON_EMPTY_BEHAVIOR"],
        ),
    ] {
        warnings(&set, &expected);
    }
}

#[test]
fn each_mistake_names_its_variable() {
    let url = ("REDIS_URL", "a:1");
    mistake(&[("BACKEND_TYPE", "dynamo")], "BACKEND_TYPE=\"dynamo\": expected redis or memcache");
    mistake(&[TYPE, ("REDIS_URL", "http://a")], "REDIS_URL: expected");
    mistake(&[TYPE, ("REDIS_URL", "redis://:secret@")], "REDIS_URL: expected HOST:PORT");
    mistake(&[TYPE, ("REDIS_URL", "a:1,b:2")], "REDIS_URL: several addresses are for");
    let sentinel = ("REDIS_TYPE", "sentinel");
    mistake(&[sentinel, ("REDIS_URL", "limits")], "REDIS_URL: expected the name of the primary");
    mistake(&[url, ("REDIS_TYPE", "ring")], "expected SINGLE, SENTINEL or CLUSTER");
    mistake(&[url, ("REDIS_SOCKET_TYPE", "udp")], "expected tcp or unix");
    let socket = ("REDIS_URL", "/run/redis.sock");
    mistake(&[TYPE, socket, ("REDIS_TLS", "1")], "REDIS_URL: there is no TLS at a Unix socket");
    mistake(&[TYPE, url, ("REDIS_TIMEOUT", "soon")], "REDIS_TIMEOUT=\"soon\": expected a time");
    mistake(&[url, ("REDIS_POOL_SIZE", "0")], "expected a number of connections from 1");
    let jitter = ("EXPIRATION_JITTER_MAX_SECONDS", "5m");
    mistake(&[url, jitter], "expected a number of seconds");
    mistake(&[("REDIS_PERSECOND", "1")], "REDIS_PERSECOND=true: REDIS_URL must be set too");
    let second = ("REDIS_PERSECOND", "1");
    mistake(&[url, second], "REDIS_PERSECOND=true: REDIS_PERSECOND_URL must be set too");
    let tls = ("REDIS_TLS", "true");
    mistake(
        &[TYPE, url, tls, ("REDIS_TLS_CLIENT_KEY", "/k")],
        "REDIS_TLS_CLIENT_KEY: REDIS_TLS_CLIENT_CERT must be set too",
    );
}

/// The password of one Redis must not go to another one, and no password into the log.
#[test]
fn servers_of_a_flag_have_nothing_of_the_environment() {
    let environment = environment(&[
        TYPE,
        ("REDIS_URL", "redis://tide:secret@a:1"),
        ("REDIS_TLS", "true"),
        ("REDIS_TLS_CACERT", "/ca"),
        ("REDIS_SENTINEL_AUTH", "x"),
        ("REDIS_TIMEOUT", "1s"),
        ("CACHE_KEY_PREFIX", "shop"),
    ]);
    let flags = |authority| ["--limits", "l", "--authority", authority];
    let (options, notices) = serve_options(&flags("redis://b"), &Srv::default(), &environment);
    let shared = options.authority.settings().unwrap().unwrap();
    assert_eq!(shared.servers.credentials.password, None);
    assert_eq!(
        (shared.servers.prefix.as_str(), shared.servers.timeout.as_millis()),
        ("tidegate:", 100)
    );
    assert!(!notices.used.iter().any(|(_, flag)| flag.contains("authority")));
    let (options, _) = serve_options(&flags("local"), &Srv::default(), &environment);
    assert!(options.authority.settings().unwrap().is_none());

    let (_, notices) = serve_options(&["--limits", "l"], &Srv::default(), &environment);
    let used: Vec<&str> = notices.used.iter().map(|(_, flag)| flag.as_str()).collect();
    assert!(used.contains(&"--authority rediss://…@a:1"), "{used:?}");
    let password =
        super::super::tests::environment(&[TYPE, ("REDIS_URL", "a"), ("REDIS_AUTH", "secret")]);
    let (options, notices) = serve_options(&["--limits", "l"], &Srv::default(), &password);
    assert!(notices.used.iter().any(|(_, flag)| flag == "--authority-password …"), "{notices:?}");
    assert_eq!(options.authority.authority_password.as_deref(), Some("secret"));
}
