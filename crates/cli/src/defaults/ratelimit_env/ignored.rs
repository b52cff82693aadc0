//! The variables of envoyproxy/ratelimit without effect here, with advice.

/// The programs that use a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NameKind {
    /// envoyproxy/ratelimit alone: the environment was made for it.
    Own,
    /// Others as well.
    Shared,
}

/// Names with the same advice.
type Group = (NameKind, &'static [&'static str], &'static str);

const NO_STATSD: &str = "nothing is sent to statsd; scrape /metrics at --http or --prometheus";

pub(super) const IGNORED: &[Group] = &[
    (
        NameKind::Own,
        &[
            "REDIS_PIPELINE_WINDOW",
            "REDIS_PIPELINE_LIMIT",
            "REDIS_CLUSTER_PIPELINE_PARALLELISM",
            "REDIS_PERSECOND_PIPELINE_WINDOW",
            "REDIS_PERSECOND_PIPELINE_LIMIT",
            "REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM",
        ],
        "what is due at the same time is sent together, whatever the load",
    ),
    (
        NameKind::Own,
        &[
            "REDIS_STARTUP_INITIAL_INTERVAL",
            "REDIS_STARTUP_MAX_INTERVAL",
            "REDIS_STARTUP_MAX_ELAPSED_TIME",
        ],
        "connections that fail are made again after 10ms to 5s, for as long as it takes",
    ),
    (
        NameKind::Own,
        &["LOCAL_CACHE_SIZE_IN_BYTES"],
        "all counters are in memory; the filter in Envoy caches denials",
    ),
    (
        NameKind::Own,
        &["RUNTIME_WATCH_ROOT"],
        "changes of any kind are found, behind links too; see --watch",
    ),
    (
        NameKind::Own,
        &["USE_DOG_STATSD", "USE_DOG_STATSD_MOGRIFIERS", "USE_STATSD", "STATS_FLUSH_INTERVAL"],
        NO_STATSD,
    ),
    (
        NameKind::Own,
        &["GRPC_SERVER_TLS_CA_CERT"],
        "envoyproxy/ratelimit ignores it, too; GRPC_CLIENT_TLS_CACERT checks the certificates of clients",
    ),
    (NameKind::Shared, &["STATSD_HOST", "STATSD_PORT", "EXTRA_TAGS", "DISABLE_STATS"], NO_STATSD),
    (
        NameKind::Own,
        &["PROMETHEUS_MAPPER_YAML", "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS"],
        "metrics need no mapping; --prometheus has the usual names already",
    ),
    (
        NameKind::Shared,
        &["DEBUG_HOST", "DEBUG_PORT"],
        "there is no debug port; /rlconfig and /metrics are at --http",
    ),
];
