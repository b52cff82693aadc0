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

const NO_XDS: &str = "limits do not come by xDS; write them to files, and set --limits";
const NO_STATSD: &str = "nothing is sent to statsd; scrape /metrics at --http";
const NO_TRACES: &str = "no traces are exported; set --log debug to see what is refused and why";

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
        &["FORCE_START_WITHOUT_INITIAL_CONFIG", "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED"],
        "nothing is served before the limits are read without a mistake",
    ),
    (
        NameKind::Own,
        &[
            "CONFIG_TYPE",
            "CONFIG_GRPC_XDS_NODE_ID",
            "CONFIG_GRPC_XDS_NODE_METADATA",
            "CONFIG_GRPC_XDS_SERVER_URL",
            "CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL",
            "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS",
            "CONFIG_GRPC_XDS_SERVER_USE_TLS",
            "CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
            "CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
            "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
            "CONFIG_GRPC_XDS_SERVER_TLS_SAN",
            "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL",
            "XDS_CLIENT_BACKOFF_MAX_INTERVAL",
            "XDS_CLIENT_BACKOFF_RANDOM_FACTOR",
            "XDS_CLIENT_BACKOFF_JITTER",
            "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES",
        ],
        NO_XDS,
    ),
    (
        NameKind::Own,
        &["USE_DOG_STATSD", "USE_DOG_STATSD_MOGRIFIERS", "USE_STATSD", "STATS_FLUSH_INTERVAL"],
        NO_STATSD,
    ),
    (NameKind::Shared, &["STATSD_HOST", "STATSD_PORT", "EXTRA_TAGS", "DISABLE_STATS"], NO_STATSD),
    (
        NameKind::Own,
        &["PROMETHEUS_MAPPER_YAML", "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS"],
        "metrics need no mapping; /metrics at --http has them by rule",
    ),
    (
        NameKind::Shared,
        &["USE_PROMETHEUS", "PROMETHEUS_ADDR", "PROMETHEUS_PATH"],
        "metrics are at --http under /metrics, always",
    ),
    (
        NameKind::Shared,
        &["DEBUG_HOST", "DEBUG_PORT"],
        "there is no debug port; /rlconfig and /metrics are at --http",
    ),
    (
        NameKind::Shared,
        &[
            "TRACING_ENABLED",
            "TRACING_SERVICE_NAME",
            "TRACING_SERVICE_NAMESPACE",
            "TRACING_SERVICE_INSTANCE_ID",
            "TRACING_EXPORTER_PROTOCOL",
            "TRACING_SAMPLING_RATE",
        ],
        NO_TRACES,
    ),
];
