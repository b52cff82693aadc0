use super::*;
use crate::arguments::{self, Cli};
use clap::CommandFactory;

fn inherited(set: &[(&'static str, &str)]) -> Inherited {
    Inherited::of(|name| {
        set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into())
    })
}

#[track_caller]
fn defaults(set: &[(&'static str, &str)], expected: &[(&str, &str)]) {
    let inherited = inherited(set);
    // Of every such environment; it has a test of its own.
    let others = inherited.defaults.iter().filter(|default| default.id != "count_denied");
    let found: Vec<(&str, &str)> =
        others.map(|default| (default.id, default.value.as_str())).collect();
    assert_eq!(found, expected, "{set:?}");
    assert_eq!(inherited.mistakes(), [] as [&str; 0], "{set:?}");
}

#[track_caller]
fn warnings(set: &[(&'static str, &str)], expected: &[&str]) {
    let inherited = inherited(set);
    let found: Vec<&str> = inherited.warnings.iter().map(|warning| warning.name).collect();
    assert_eq!(found, expected, "{set:?}");
}

const LIMITS: (&str, &str) = ("limits", "/srv/runtime_data/current/config");

#[test]
fn doors_stay_on_loopback_unless_a_host_is_said() {
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

/// Another program's PORT or REDIS_URL must not move a door, nor be warned about.
#[test]
fn names_that_others_use_count_only_in_company() {
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
    let mut in_company = others.to_vec();
    in_company[2].1 = "WARNING";
    in_company.push(("BACKEND_TYPE", "redis"));
    defaults(&in_company, &[("http", "0.0.0.0:80"), ("log", "warn"), ("log_format", "json")]);
    warnings(&in_company, &["REDIS_URL", "BACKEND_TYPE", "DEBUG_PORT"]);
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
    let half = inherited(&[("GRPC_SERVER_USE_TLS", "true"), ("GRPC_SERVER_TLS_CERT", "c")]);
    assert_eq!(half.mistakes(), ["GRPC_SERVER_USE_TLS=true: GRPC_SERVER_TLS_KEY must be set too"]);
}

#[test]
fn what_has_no_effect_is_told_unless_it_is_so_anyway() {
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
        &["CONFIG_TYPE", "RUNTIME_IGNOREDOTFILES", "NEAR_LIMIT_RATIO"],
    );
}

/// There, denied requests count unless it is said otherwise: a debit after the fact that was larger than what
/// was left closed its limit there, and took nothing here.
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
        let inherited = inherited(&set);
        let counts = inherited.defaults.iter().find(|default| default.id == "count_denied");
        assert_eq!(counts.map(|default| default.from), expected, "{set:?}");
        assert!(counts.is_none_or(|default| default.value == "true"));
        let args = ["tidegate", "serve", "--data-dir", "d", "--limits", "l"];
        let matches = inherited.defaults(Cli::command()).try_get_matches_from(args).unwrap();
        let serve = matches.subcommand_matches("serve").unwrap();
        assert_eq!(serve.get_flag("count_denied"), expected.is_some(), "{set:?}");
    }
}

#[test]
fn values_that_make_no_sense_are_mistakes_by_name() {
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
        let inherited = inherited(&[(name, value)]);
        let [mistake] = inherited.mistakes() else { panic!("{:?}", inherited.mistakes()) };
        assert!(mistake.starts_with(expected), "{mistake}");
    }
    let inherited = inherited(&[("GRPC_PORT", "1"), ("LOG_LEVEL", "loud")]);
    assert!(inherited.mistakes()[0].starts_with("LOG_LEVEL=\"loud\": expected panic, fatal"));
}

/// A flag wins, and what it overrules is not told as taken.
#[test]
fn flags_win_over_the_environment_of_another_service() {
    let inherited = inherited(&[("GRPC_PORT", "9"), ("RUNTIME_ROOT", "/r"), ("REDIS_URL", "x")]);
    let args = ["tidegate", "serve", "--data-dir", "d", "--grpc", "127.0.0.1:7"];
    let matches = inherited.defaults(Cli::command()).try_get_matches_from(args).unwrap();
    let serve = matches.subcommand_matches("serve").unwrap();
    let grpc: Vec<_> = serve.get_many::<tidegate_servers::Address>("grpc").unwrap().collect();
    assert_eq!(grpc, [&"127.0.0.1:7".parse().unwrap()]);
    let notices = inherited.notices(serve);
    let taken: Vec<&str> = notices.taken.iter().map(|(_, taken)| taken.as_str()).collect();
    assert_eq!(taken, ["--limits /r/config", "--count-denied true"]);
    assert_eq!(notices.warnings.len(), 1);
    let options =
        <arguments::ServeOptions as clap::FromArgMatches>::from_arg_matches(serve).unwrap();
    assert_eq!(options.limits, std::path::Path::new("/r/config"));
}

/// Every variable in one place only, or it would be taken and warned about.
#[test]
fn no_name_is_listed_twice() {
    let ignored = IGNORED.iter().flat_map(|(_, names, _)| names.iter().copied());
    let mut names: Vec<&str> = TAKEN.into_iter().chain(TAKEN_IN_COMPANY).chain(ignored).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}
