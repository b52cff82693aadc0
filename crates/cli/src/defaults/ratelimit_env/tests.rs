use super::*;
use crate::defaults::srv::Srv;
use crate::defaults::tests::serve_options;

pub(super) fn environment(set: &[(&'static str, &str)]) -> RatelimitEnv {
    RatelimitEnv::read(Extent::Set, |name| {
        set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into())
    })
}

#[track_caller]
pub(super) fn defaults(set: &[(&'static str, &str)], expected: &[(&str, &str)]) {
    let environment = environment(set);
    // Set for every such environment; it has a test of its own.
    let others = environment.defaults.iter().filter(|default| default.id != "count_denied");
    let found: Vec<(&str, &str)> =
        others.map(|default| (default.id, default.value.as_str())).collect();
    assert_eq!(found, expected, "{set:?}");
    assert_eq!(environment.mistakes(), [] as [&str; 0], "{set:?}");
    assert_eq!(environment.authority_mistakes(), [] as [&str; 0], "{set:?}");
}

#[track_caller]
pub(super) fn warnings(set: &[(&'static str, &str)], expected: &[&str]) {
    let environment = environment(set);
    let found: Vec<&str> = environment.warnings.iter().map(|warning| warning.name).collect();
    assert_eq!(found, expected, "{set:?}");
}

const LIMITS: (&str, &str) = ("limits", "/srv/runtime_data/current/config");

#[test]
fn servers_stay_on_loopback_unless_a_host_is_set() {
    defaults(&[("GRPC_PORT", "9")], &[("grpc", "127.0.0.1:9")]);
    defaults(&[("GRPC_HOST", "0.0.0.0")], &[("grpc", "0.0.0.0:8081")]);
    defaults(&[("GRPC_HOST", "::"), ("GRPC_PORT", "9")], &[("grpc", "[::]:9")]);
    defaults(&[("GRPC_HOST", ""), ("GRPC_PORT", "9")], &[("grpc", "127.0.0.1:9")]);
    defaults(&[("GRPC_UDS", "/run/x.sock"), ("GRPC_PORT", "9")], &[("grpc", "unix:/run/x.sock")]);
    let grpc = ("grpc", "127.0.0.1:9");
    defaults(&[("GRPC_PORT", "9"), ("PORT", "8")], &[grpc, ("http", "127.0.0.1:8")]);
    defaults(&[("GRPC_PORT", "9"), ("HOST", "::1")], &[grpc, ("http", "[::1]:8080")]);
    // As shells set it.
    let shell = [("GRPC_PORT", "9"), ("HOST", "my-laptop"), ("PORT", "8")];
    defaults(&shell, &[grpc, ("http", "127.0.0.1:8")]);
    warnings(&shell, &["HOST"]);
    defaults(&[("GRPC_PORT", "9"), ("HOST", "my-laptop")], &[grpc]);
}

/// The PORT or REDIS_URL of another program must neither change an address nor cause a warning.
#[test]
fn shared_names_count_only_next_to_an_own_name() {
    let others = [
        ("HOST", "0.0.0.0"),
        ("PORT", "80"),
        ("LOG_LEVEL", "verbose"),
        ("LOG_FORMAT", "json"),
        ("REDIS_URL", "redis:6379"),
        ("DEBUG_PORT", "1"),
    ];
    defaults(&others, &[]);
    warnings(&others, &[]);
    let mut with_own = others.to_vec();
    with_own[2].1 = "WARNING";
    with_own.push(("BACKEND_TYPE", "redis"));
    let http = ("http", "0.0.0.0:80");
    let servers = ("authority", "redis://redis:6379");
    defaults(&with_own, &[http, servers, ("log", "warn"), ("log_format", "json")]);
    warnings(&with_own, &["DEBUG_PORT"]);
}

#[test]
fn limits_are_where_the_runtime_is() {
    defaults(&[("RUNTIME_SUBDIRECTORY", "")], &[]);
    defaults(
        &[("RUNTIME_ROOT", "/data"), ("RUNTIME_SUBDIRECTORY", "ratelimit")],
        &[("limits", "/data/ratelimit/config")],
    );
    let all = [
        ("RUNTIME_ROOT", "/data/"),
        ("RUNTIME_SUBDIRECTORY", "/a/"),
        ("RUNTIME_APPDIRECTORY", "limits"),
    ];
    defaults(&all, &[("limits", "/data/a/limits")]);
    defaults(&[("RUNTIME_APPDIRECTORY", "config")], &[LIMITS]);
}

#[test]
fn switches_headers_and_logs_are_taken() {
    defaults(
        &[
            ("SHADOW_MODE", "1"),
            ("QUOTA_MODE", "F"),
            ("MERGE_DOMAIN_CONFIG", "True"),
            ("RESPONSE_DYNAMIC_METADATA", "t"),
            ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
            ("LIMIT_RESET_HEADER", "x-reset"),
            ("LOG_LEVEL", "Fatal"),
            ("LOG_FORMAT", "logfmt"),
            ("GRPC_MAX_CONNECTION_AGE", "1h30m0.5s"),
            ("GRPC_MAX_CONNECTION_AGE_GRACE", "0"),
        ],
        &[
            ("merge_domains", "true"),
            ("shadow_mode", "true"),
            ("quota_mode", "false"),
            ("dynamic_metadata", "true"),
            ("response_headers", "ratelimit"),
            ("ratelimit_reset_header", "x-reset"),
            ("log", "error"),
            ("log_format", "text"),
            ("connection_age", "5400500ms"),
            ("connection_age_grace", "52w"),
        ],
    );
    defaults(&[("LIMIT_RESPONSE_HEADERS_ENABLED", "false")], &[]);
    // Of another program.
    defaults(&[("SHADOW_MODE", "1"), ("QUOTA_MODE", "1")], &[]);
}

#[test]
fn tls_counts_only_where_it_is_on_and_never_half() {
    let files = [
        ("GRPC_SERVER_TLS_CERT", "c"),
        ("GRPC_SERVER_TLS_KEY", "k"),
        ("GRPC_CLIENT_TLS_CACERT", "a"),
        ("GRPC_CLIENT_TLS_SAN", "s"),
    ];
    let mut on = files.to_vec();
    on.push(("GRPC_SERVER_USE_TLS", "true"));
    let ids = ["tls_cert", "tls_key", "tls_client_ca", "tls_client_name"];
    let expected: Vec<(&str, &str)> = ids.into_iter().zip(["c", "k", "a", "s"]).collect();
    defaults(&on, &expected);
    defaults(&files, &[]);
    warnings(&files, &files.map(|(name, _)| name));
    let half = environment(&[("GRPC_SERVER_USE_TLS", "true"), ("GRPC_SERVER_TLS_CERT", "c")]);
    assert_eq!(half.mistakes(), ["GRPC_SERVER_USE_TLS=true: GRPC_SERVER_TLS_KEY must be set too"]);
}

#[test]
fn a_variable_without_effect_is_a_warning_unless_it_asks_for_nothing_else() {
    warnings(
        &[
            ("NEAR_LIMIT_RATIO", "0.8"),
            ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true"),
            ("RUNTIME_IGNOREDOTFILES", "true"),
            ("CONFIG_TYPE", "FILE"),
        ],
        &[],
    );
    warnings(
        &[
            ("NEAR_LIMIT_RATIO", "0.9"),
            ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "false"),
            ("RUNTIME_IGNOREDOTFILES", "0"),
            ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ],
        &["RUNTIME_IGNOREDOTFILES", "NEAR_LIMIT_RATIO"],
    );
}

/// envoyproxy/ratelimit counts denied requests by default: a debit after the fact that was larger than the rest
/// of the limit closed the limit there, and took nothing here.
#[test]
fn denied_requests_count_as_they_did_there() {
    const STOP: &str = "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT";
    for (set, expected) in [
        (vec![("RUNTIME_ROOT", "/r")], Some("its own default")),
        (vec![("BACKEND_TYPE", "redis")], Some("its own default")),
        (vec![(STOP, "false")], Some(STOP)),
        (vec![(STOP, "true"), ("RUNTIME_ROOT", "/r")], None),
        // Of another program.
        (vec![("PORT", "80"), ("SHADOW_MODE", "1")], None),
    ] {
        let environment = environment(&set);
        let counts = environment.defaults.iter().find(|default| default.id == "count_denied");
        assert_eq!(counts.map(|default| default.source), expected, "{set:?}");
        assert!(counts.is_none_or(|default| default.value == "true"));
        let (options, _) = serve_options(&["--limits", "l"], &Srv::default(), &environment);
        assert_eq!(options.count_denied, expected.is_some(), "{set:?}");
    }
}

#[test]
fn invalid_values_are_mistakes_by_name() {
    for (name, value, expected) in [
        ("MERGE_DOMAIN_CONFIG", "yes", "MERGE_DOMAIN_CONFIG=\"yes\": expected true or false"),
        ("GRPC_PORT", "http", "GRPC_PORT=\"http\": expected a port from 0 to 65535"),
        ("GRPC_HOST", "a:1", "GRPC_HOST=\"a:1\": expected a host without a port"),
        ("GRPC_HOST", "a,b", "GRPC_HOST=\"a,b\": expected a host"),
        ("GRPC_UDS", "a,b", "GRPC_UDS=\"a,b\": expected a path without a comma"),
        ("LIMIT_RESET_HEADER", "a b", "LIMIT_RESET_HEADER=\"a b\": expected a header's name"),
        (
            "GRPC_MAX_CONNECTION_AGE",
            "1d",
            "GRPC_MAX_CONNECTION_AGE=\"1d\": expected a time, such as",
        ),
        ("GRPC_MAX_CONNECTION_AGE", "h", "GRPC_MAX_CONNECTION_AGE=\"h\": expected a time, such as"),
        ("GRPC_MAX_CONNECTION_AGE", "-1s", "GRPC_MAX_CONNECTION_AGE=\"-1s\": expected a time"),
    ] {
        let environment = environment(&[(name, value)]);
        let [mistake] = environment.mistakes() else { panic!("{:?}", environment.mistakes()) };
        assert!(mistake.starts_with(expected), "{mistake}");
    }
    let environment = environment(&[("GRPC_PORT", "1"), ("LOG_LEVEL", "loud")]);
    assert!(environment.mistakes()[0].starts_with("LOG_LEVEL=\"loud\": expected panic, fatal"));
}

/// A flag wins, and the variable is not logged as used.
#[test]
fn flags_win_over_the_environment_of_another_service() {
    let environment =
        environment(&[("GRPC_PORT", "9"), ("RUNTIME_ROOT", "/r"), ("DEBUG_PORT", "1")]);
    let flags = ["--grpc", "127.0.0.1:7"];
    let (options, notices) = serve_options(&flags, &Srv::default(), &environment);
    assert_eq!(options.grpc, ["127.0.0.1:7".parse().unwrap()]);
    let used: Vec<&str> = notices.used.iter().map(|(_, flag)| flag.as_str()).collect();
    assert_eq!(used, ["--limits /r/config", "--count-denied true"]);
    assert_eq!(notices.warnings.len(), 1);
    assert_eq!(options.limits, ["/r/config".parse().unwrap()]);
}

const XDS: (&str, &str) = ("CONFIG_TYPE", "GRPC_XDS_SOTW");

#[test]
fn limits_come_by_xds_where_the_type_says_so() {
    defaults(&[XDS], &[("limits", "xds://localhost:18000")]);
    let url = ("CONFIG_GRPC_XDS_SERVER_URL", "dns:///gateway:18001");
    defaults(&[XDS, ("RUNTIME_ROOT", "/data"), url], &[("limits", "xds://gateway:18001")]);
    defaults(
        &[
            XDS,
            url,
            ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
            ("CONFIG_GRPC_XDS_NODE_METADATA", "a=b,c=d"),
            ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "c"),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "k"),
            ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "a"),
            ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "s"),
            ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "x-a:b"),
            ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "3s"),
            ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "10s"),
            ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "1m"),
            ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "0.25"),
            ("XDS_CLIENT_BACKOFF_JITTER", "true"),
            ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "8388608"),
            ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ],
        &[
            ("limits", "xdss://gateway:18001"),
            ("xds_cert", "c"),
            ("xds_key", "k"),
            ("xds_ca", "a"),
            ("xds_server_name", "s"),
            ("xds_node_id", "envoy-ratelimit"),
            ("xds_node_metadata", "a=b,c=d"),
            ("xds_headers", "x-a:b"),
            ("xds_connect_retry", "3000ms"),
            ("xds_backoff_initial", "10000ms"),
            ("xds_backoff_max", "60000ms"),
            ("xds_message_bytes", "8388608"),
            ("xds_backoff_jitter", "0.25"),
            ("start_without_limits", "true"),
        ],
    );
    let pairs = [XDS, ("CONFIG_GRPC_XDS_NODE_METADATA", "a=b,c=d")];
    let (options, _) = serve_options(&[], &Srv::default(), &environment(&pairs));
    assert_eq!(options.xds.xds_node_metadata.len(), 2);
    // Healthy only with limits: so it waits for them.
    let waits = [
        XDS,
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true"),
        ("XDS_CLIENT_BACKOFF_JITTER", "false"),
        ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "0"),
    ];
    defaults(&waits, &[("limits", "xds://localhost:18000"), ("xds_backoff_jitter", "0")]);
    warnings(&[("CONFIG_GRPC_XDS_NODE_ID", "n")], &["CONFIG_GRPC_XDS_NODE_ID"]);
    warnings(&[XDS, ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "s")], &["CONFIG_GRPC_XDS_SERVER_TLS_SAN"]);
    for (name, value) in [
        ("CONFIG_TYPE", "ADS"),
        ("CONFIG_GRPC_XDS_SERVER_URL", "http://gateway"),
        ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "0"),
        ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "2"),
        ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "10"),
    ] {
        let environment = environment(&[XDS, (name, value)]);
        let environment = match name {
            "CONFIG_TYPE" => self::environment(&[(name, value)]),
            _ => environment,
        };
        assert_eq!(environment.mistakes().len(), 1, "{name}: {:?}", environment.mistakes());
    }
}

#[test]
fn metrics_for_prometheus_have_an_address_where_it_is_on() {
    let own = ("GRPC_PORT", "9");
    let grpc = ("grpc", "127.0.0.1:9");
    defaults(&[own, ("USE_PROMETHEUS", "true")], &[grpc, ("prometheus", "127.0.0.1:9090")]);
    defaults(
        &[
            own,
            ("USE_PROMETHEUS", "true"),
            ("PROMETHEUS_ADDR", "0.0.0.0:1"),
            ("PROMETHEUS_PATH", "/m"),
        ],
        &[grpc, ("prometheus", "0.0.0.0:1"), ("prometheus_path", "/m")],
    );
    defaults(&[own, ("PROMETHEUS_ADDR", ":1")], &[grpc]);
}

/// A program in the place of that service has its defaults, not ours.
#[test]
fn the_whole_environment_has_the_defaults_of_the_service() {
    let set = [("USE_PROMETHEUS", "true"), ("PROMETHEUS_ADDR", ":19001"), ("HOST", "::"), XDS];
    let environment = RatelimitEnv::read(Extent::Whole, |name| {
        set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into())
    });
    let found: Vec<(&str, &str)> =
        environment.defaults.iter().map(|default| (default.id, default.value.as_str())).collect();
    let expected = [
        ("grpc", "0.0.0.0:8081"),
        ("http", "[::]:8080"),
        ("prometheus", "0.0.0.0:19001"),
        ("limits", "xds://localhost:18000"),
        ("count_denied", "true"),
    ];
    assert_eq!(found, expected);
    let nothing = RatelimitEnv::read(Extent::Whole, |_| None);
    let limits = nothing.defaults.iter().find(|default| default.id == "limits");
    assert_eq!(limits.unwrap().value, LIMITS.1);
}

/// Every variable in one list only, or it would be used and warned about.
#[test]
fn no_name_is_listed_twice() {
    let mut names: Vec<&str> = names().collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}
