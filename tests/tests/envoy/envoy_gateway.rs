//! Envoy Gateway with Tidegate in the place of its rate limit service: the environment and the root of its container,
//! limits by xDS over mutual TLS, and the routes, descriptors and cluster that it generates, in a real Envoy.

use anyhow::{Context, ensure};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use tempfile::TempDir;
use tidegate_tests::ads::{AdsServer, domain, level, limit};
use tidegate_tests::bare_root::BareRoot;
use tidegate_tests::client::{Client, get};
use tidegate_tests::envoy::{Envoy, start_envoy};
use tidegate_tests::process::Process;
use tidegate_tests::shared_servers::{Redis, RedisOptions, RedisPrograms};
use tidegate_tests::sidecar::{start_until_ready, tcp_in};
use tidegate_tests::upstream::Upstream;
use tidegate_tests::{not_run, wait};

const LISTENER: &str = "default/eg/http";

/// What Envoy Gateway sets, as of its version 1.9, and which Redis has the counters; without one, the user's word that
/// there is none. The ports are the system's choice, since others test here too, and the log is for this test.
fn environment(xds_port: u16, redis: Option<&Redis>) -> Vec<(&'static str, String)> {
    let fixed = [
        ("RUNTIME_ROOT", "/data"),
        ("RUNTIME_SUBDIRECTORY", "ratelimit"),
        ("RUNTIME_IGNOREDOTFILES", "true"),
        ("RUNTIME_WATCH_ROOT", "false"),
        ("LOG_LEVEL", "info"),
        ("USE_STATSD", "false"),
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", "/certs/tls.crt"),
        ("GRPC_SERVER_TLS_KEY", "/certs/tls.key"),
        ("GRPC_SERVER_TLS_CA_CERT", "/certs/ca.crt"),
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "/certs/tls.crt"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "/certs/tls.key"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "/certs/ca.crt"),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_ADDR", ":0"),
        ("PROMETHEUS_MAPPER_YAML", "/etc/statsd-exporter/conf.yaml"),
        ("PORT", "0"),
        ("GRPC_PORT", "0"),
        ("LOG_FORMAT", "json"),
    ];
    let mut all: Vec<_> = fixed.map(|(name, value)| (name, value.to_owned())).into();
    all.push(("CONFIG_GRPC_XDS_SERVER_URL", format!("envoy-gateway:{xds_port}")));
    match redis {
        Some(redis) => {
            all.push(("REDIS_URL", redis.address()));
            // A busy machine may take longer than the default, and the service does without Redis then.
            all.push(("REDIS_TIMEOUT", "30s".to_owned()));
        }
        None => {
            all.push(("REDIS_URL", "unused.invalid:6379".to_owned()));
            all.push(("TIDEGATE_AUTHORITY", "local".to_owned()));
        }
    }
    all
}

/// An authority, and one certificate for all sides, as of Envoy Gateway's `certgen`.
fn write_certificates(certs: &Path) -> anyhow::Result<()> {
    let mut params = CertificateParams::new(Vec::new())?;
    params.distinguished_name.push(DnType::CommonName, "envoy-gateway");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate()?;
    std::fs::write(certs.join("ca.crt"), params.self_signed(&key)?.pem())?;
    let authority = Issuer::new(params, key);
    let key = KeyPair::generate()?;
    let names = ["envoy-gateway", "envoy-ratelimit"].map(str::to_owned).to_vec();
    let certificate = CertificateParams::new(names)?.signed_by(&key, &authority)?;
    std::fs::write(certs.join("tls.crt"), certificate.pem())?;
    std::fs::write(certs.join("tls.key"), key.serialize_pem())?;
    Ok(())
}

/// The service in its container.
struct Service {
    process: Process,
    http: SocketAddr,
    grpc: SocketAddr,
    prometheus: SocketAddr,
}

impl Service {
    async fn start(
        root: &BareRoot,
        dir: &Path,
        xds_port: u16,
        redis: Option<&Redis>,
    ) -> anyhow::Result<Service> {
        let command = root.command(&environment(xds_port, redis));
        let (process, _) = start_until_ready(command, "ratelimit", dir, "http").await?;
        let log = process.log();
        let address = |endpoint| {
            let address = tcp_in(&log, endpoint)?;
            ensure!(address.ip() == Ipv4Addr::UNSPECIFIED, "{endpoint} is at {address}");
            Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, address.port())))
        };
        let (http, grpc) = (address("http")?, address("grpc")?);
        Ok(Service { process, http, grpc, prometheus: address("prometheus")? })
    }

    /// The value of a series at `PROMETHEUS_ADDR`; 0 if it is absent.
    async fn metric(&self, series: &str) -> anyhow::Result<u64> {
        let page = get(self.prometheus, "/metrics").await?;
        let page = String::from_utf8(page.body.into())?;
        let found = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        Ok(found.map(str::parse).transpose()?.unwrap_or(0))
    }
}

/// A directory with the container's root and certificates.
fn prepared() -> anyhow::Result<Option<(TempDir, BareRoot)>> {
    let dir = TempDir::new()?;
    let made = BareRoot::create(dir.path());
    let Some(root) = not_run::or_named("root, to make a root without anything", made)? else {
        return Ok(None);
    };
    write_certificates(&root.at("certs"))?;
    Ok(Some((dir, root)))
}

async fn ads(root: &BareRoot, port: u16) -> anyhow::Result<AdsServer> {
    let files = ["certs/ca.crt", "certs/tls.crt", "certs/tls.key"].map(|path| root.at(path));
    AdsServer::start(port, Some(files.each_ref().map(|path| path.as_path()))).await
}

/// A rule of a route, as Envoy Gateway names it.
fn route(name: &str, below: &[Value]) -> Value {
    level(name, name, below)
}

fn generic_key(route: &str) -> Value {
    json!({"genericKey": {"descriptorKey": route, "descriptorValue": route}})
}

/// One that has the limits of its route, which are those of `entries`.
fn envoy_route(name: &str, entries: &[Value]) -> Value {
    json!({
        "match": {"pathSeparatedPrefix": format!("/{name}")},
        "name": name,
        "route": {"cluster": "upstream"},
        "typedPerFilterConfig": {"envoy.filters.http.ratelimit": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute",
            "rateLimits": entries,
        }},
    })
}

/// A listener, routes and clusters, as Envoy Gateway sends them to Envoy.
fn envoy_config(
    certs: &Path,
    service: SocketAddr,
    upstream: SocketAddr,
    routes: &[Value],
) -> Value {
    let file = |name: &str| json!({"filename": certs.join(name)});
    let address = |of: SocketAddr| json!({"socketAddress": {"address": of.ip().to_string(), "portValue": of.port()}});
    let endpoint = |name: &str, of| {
        let endpoint = json!({"endpoint": {"address": address(of)}, "loadBalancingWeight": 1});
        json!({"clusterName": name, "endpoints": [{"lbEndpoints": [endpoint]}]})
    };
    json!({
        "admin": {"address": address(([127, 0, 0, 1], 0).into())},
        "staticResources": {
            "listeners": [{
                "name": LISTENER,
                "address": address(([127, 0, 0, 1], 0).into()),
                "filterChains": [{"filters": [{
                    "name": "envoy.filters.network.http_connection_manager",
                    "typedConfig": {
                        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                        "statPrefix": "http",
                        "useRemoteAddress": true,
                        "httpFilters": [
                            {"name": "envoy.filters.http.ratelimit", "typedConfig": {
                                "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit",
                                "domain": LISTENER,
                                "enableXRatelimitHeaders": "DRAFT_VERSION_03",
                                "rateLimitService": {
                                    "grpcService": {"envoyGrpc": {"clusterName": "ratelimit_cluster"}},
                                    "transportApiVersion": "V3",
                                },
                                // A busy machine must not decide.
                                "timeout": "5s",
                            }},
                            {"name": "envoy.filters.http.router", "typedConfig": {
                                "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
                            }},
                        ],
                        "routeConfig": {
                            "name": LISTENER,
                            "ignorePortInHostMatching": true,
                            "virtualHosts": [{"name": "all", "domains": ["*"], "routes": routes}],
                        },
                    },
                }]}],
            }],
            "clusters": [
                {"name": "upstream", "type": "STATIC", "connectTimeout": "10s",
                 "loadAssignment": endpoint("upstream", upstream)},
                {"name": "ratelimit_cluster", "type": "STRICT_DNS", "connectTimeout": "10s",
                 "lbPolicy": "LEAST_REQUEST", "dnsLookupFamily": "V4_PREFERRED",
                 "respectDnsTtl": true, "perConnectionBufferLimitBytes": 32_768,
                 "loadAssignment": endpoint("ratelimit_cluster", service),
                 "transportSocket": {"name": "envoy.transport_sockets.tls", "typedConfig": {
                    "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
                    "commonTlsContext": {
                        "tlsCertificates": [
                            {"certificateChain": file("tls.crt"), "privateKey": file("tls.key")},
                        ],
                        "validationContext": {"trustedCa": file("ca.crt")},
                    },
                 }},
                 "typedExtensionProtocolOptions": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                    "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                    "explicitHttpConfig": {"http2ProtocolOptions": {
                        "initialConnectionWindowSize": 1_048_576, "initialStreamWindowSize": 65_536,
                    }},
                 }}},
            ],
        },
    })
}

/// The statuses of requests, one after the other.
async fn statuses(
    envoy: &Envoy,
    count: usize,
    path: &str,
    headers: &[(&str, &[u8])],
) -> anyhow::Result<Vec<u16>> {
    let mut client = Client::connect(envoy.address).await?;
    let mut found = Vec::new();
    for _ in 0..count {
        found.push(client.get(path, headers).await?.status.as_u16());
    }
    Ok(found)
}

#[tokio::test]
async fn limits_arrive_change_are_refused_and_kept_in_its_container() -> anyhow::Result<()> {
    let Some((dir, root)) = prepared()? else { return Ok(()) };
    // The port of a server that is not there yet.
    let server = ads(&root, 0).await?;
    let port = server.port;
    server.kill().await?;
    let service = Service::start(&root, dir.path(), port, None).await?;
    let health = get(service.http, "/healthcheck").await?;
    ensure!(health.status == 200, "{health:?}");
    let log = service.process.log();
    for said in ["counters are in the memory of this process", "have not arrived yet"] {
        ensure!(log.contains(said), "{said}: {log}");
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", service.process.pid()?))?;
    ensure!(status.contains("\nUid:\t65534\t65534\t65534\t65534\n"), "{status}");

    let upstream = Upstream::start("127.0.0.1:0").await?;
    let entry = json!({"actions": [generic_key("all")]});
    let config = envoy_config(
        &root.at("certs"),
        service.grpc,
        upstream.address,
        &[envoy_route("all", &[entry])],
    );
    let envoy = start_envoy(&config.to_string(), dir.path(), 1).await?;
    // Without limits there is no decision, and Envoy allows.
    ensure!(statuses(&envoy, 2, "/all", &[]).await? == [200, 200]);

    let of = |requests| {
        json!([domain(
            LISTENER,
            &[json!({
                "key": "all", "value": "all", "rate_limit": {"unit": "YEAR", "requests_per_unit": requests},
            })]
        )])
    };
    let mut server = ads(&root, port).await?;
    server.set("1", &of(2)).await?;
    let accepted = server.accepted("1").await?;
    ensure!(accepted["node"] == "envoy-ratelimit", "{accepted}");
    ensure!(statuses(&envoy, 3, "/all", &[]).await? == [200, 200, 429]);

    server.set("2", &of(5)).await?;
    server.accepted("2").await?;
    // Denied requests have counted, as in the service whose place this is.
    ensure!(statuses(&envoy, 3, "/all", &[]).await? == [200, 200, 429]);

    let bad = [domain(LISTENER, &[limit("", "", "HOUR", 1), limit("k", "v", "UNKNOWN", 1)])];
    server.set("3", &json!(bad)).await?;
    let refused = server.refused().await?;
    ensure!(refused["version"] == "2", "{refused}");
    ensure!(refused["error"].as_str().is_some_and(|error| error.lines().count() == 2), "{refused}");
    server.kill().await?;
    ensure!(statuses(&envoy, 1, "/all", &[]).await? == [429], "the old limit is kept");

    // With new certificates, which both sides read again.
    write_certificates(&root.at("certs"))?;
    let mut server = ads(&root, port).await?;
    server.set("4", &of(100)).await?;
    server.accepted("4").await?;
    ensure!(statuses(&envoy, 1, "/all", &[]).await? == [200]);

    let rule = format!("{{domain=\"{LISTENER}\",key1=\"all_all\"}}");
    let hits = format!("ratelimit_service_rate_limit_total_hits{rule}");
    ensure!(service.metric(&hits).await? == 8, "{hits}");
    let loaded = service.metric("ratelimit_service_config_load_success").await?;
    let failed = service.metric("ratelimit_service_config_load_error").await?;
    ensure!((loaded, failed) == (3, 1), "{loaded} {failed}");
    let calls = "ratelimit_service_total_requests{grpc_method=\"ShouldRateLimit\"}";
    ensure!(service.metric(calls).await? == 10, "{}", service.metric(calls).await?);
    Ok(())
}

#[tokio::test]
async fn a_real_envoy_is_limited_exactly_by_what_it_generates() -> anyhow::Result<()> {
    let Some((dir, root)) = prepared()? else { return Ok(()) };
    let mut server = ads(&root, 0).await?;
    let mask = |value: &str, requests| limit("masked_remote_address", value, "YEAR", requests);
    let first = "rule-0-match-0";
    let descriptors = [
        route("header", &[limit(first, first, "YEAR", 3)]),
        // Each value has a limit of its own, and one value another limit.
        route("distinct", &[limit(first, "", "YEAR", 2), limit(first, "vip", "YEAR", 4)]),
        route(
            "two",
            &[level(first, first, &[limit("rule-0-match-1", "rule-0-match-1", "YEAR", 2)])],
        ),
        route("network", &[mask("127.0.0.0/8", 2)]),
        route("others", &[limit(first, first, "YEAR", 1)]),
        route("usage", &[limit(first, first, "HOUR", 21)]),
    ];
    server.set("1", &json!([domain(LISTENER, &descriptors)])).await?;
    let service = Service::start(&root, dir.path(), server.port, None).await?;
    server.accepted("1").await?;

    let header = |match_key: &str, name: &str, value: &str, expect: bool| {
        json!({"headerValueMatch": {
            "descriptorKey": match_key, "descriptorValue": match_key, "expectMatch": expect,
            "headers": [{"name": name, "stringMatch": {"exact": value}}],
        }})
    };
    let entry = |route: &str, actions: &[Value]| {
        let actions = [&[generic_key(route)][..], actions].concat();
        json!({"actions": actions})
    };
    let mut peek = entry("usage", &[header(first, "x-user-id", "one", true)]);
    let mut debit = peek.clone();
    peek["hitsAddend"] = json!({"number": 0});
    debit["hitsAddend"] = json!({"number": 10});
    debit["applyOnStreamDone"] = json!(true);
    let routes = [
        envoy_route("header", &[entry("header", &[header(first, "x-user-id", "one", true)])]),
        envoy_route(
            "distinct",
            &[entry(
                "distinct",
                &[json!({"requestHeaders": {
                    "descriptorKey": first, "headerName": "x-user-id",
                }})],
            )],
        ),
        envoy_route(
            "two",
            &[entry(
                "two",
                &[
                    header(first, "x-user-id", "one", true),
                    header("rule-0-match-1", "x-org-id", "acme", true),
                ],
            )],
        ),
        envoy_route(
            "network",
            &[entry(
                "network",
                &[json!({"maskedRemoteAddress": {
                    "v4PrefixMaskLen": 8,
                }})],
            )],
        ),
        envoy_route("others", &[entry("others", &[header(first, "x-user-id", "admin", false)])]),
        envoy_route("usage", &[peek, debit]),
    ];
    let upstream = Upstream::start("127.0.0.1:0").await?;
    let config = envoy_config(&root.at("certs"), service.grpc, upstream.address, &routes);
    let envoy = start_envoy(&config.to_string(), dir.path(), 1).await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;

    let one: (&str, &[u8]) = ("x-user-id", b"one");
    let org: (&str, &[u8]) = ("x-org-id", b"acme");
    let user = |name: &'static [u8]| ("x-user-id", name);
    for (path, headers, expected) in [
        ("/header", &[one][..], vec![200, 200, 200, 429]),
        ("/header", &[user(b"two")], vec![200; 5]),
        ("/distinct", &[user(b"a")], vec![200, 200, 429]),
        ("/distinct", &[user(b"b")], vec![200, 200, 429]),
        ("/distinct", &[user(b"vip")], vec![200, 200, 200, 200, 429]),
        ("/two", &[one], vec![200; 4]),
        ("/two", &[one, org], vec![200, 200, 429]),
        ("/network", &[], vec![200, 200, 429]),
        ("/others", &[user(b"admin")], vec![200; 3]),
        ("/others", &[user(b"eve")], vec![200, 429]),
    ] {
        let found = statuses(&envoy, expected.len(), path, headers).await?;
        ensure!(found == expected, "{path} {headers:?}: {found:?}");
    }
    let mut client = Client::connect(envoy.address).await?;
    let reply = client.get("/header", &[one]).await?;
    ensure!(
        reply.header("x-ratelimit-limit").is_some_and(|limit| limit.starts_with("3")),
        "{reply:?}"
    );

    // 21 an hour: nothing when a request comes, and 10 when it is done, also when it was denied.
    let series = format!(
        "ratelimit_service_rate_limit_total_hits{{domain=\"{LISTENER}\",key1=\"usage_usage\",key2=\"{first}_{first}\"}}"
    );
    let mut found = Vec::new();
    for debited in [10, 20, 30, 40] {
        found.push(client.get("/usage", &[one]).await?.status.as_u16());
        wait::until("the debit", wait::SOON, async || {
            (service.metric(&series).await.ok()? == debited).then_some(())
        })
        .await
        .with_context(|| format!("after {found:?}"))?;
    }
    ensure!(found == [200, 200, 200, 429], "{found:?}");
    Ok(())
}

/// The Redis that Envoy Gateway asks for has the counters, so replicas have one limit, and no restart forgets it.
#[tokio::test]
async fn replicas_have_one_limit_in_the_redis_of_envoy_gateway() -> anyhow::Result<()> {
    let Some((dir, root)) = prepared()? else { return Ok(()) };
    let Some(programs) = RedisPrograms::find()? else { return Ok(()) };
    let redis = Redis::start(&programs, dir.path(), RedisOptions::default()).await?;
    let mut server = ads(&root, 0).await?;
    let year = json!({"unit": "YEAR", "requests_per_unit": 5});
    let all = json!({"key": "all", "value": "all", "rate_limit": year});
    server.set("1", &json!([domain(LISTENER, &[all])])).await?;
    let upstream = Upstream::start("127.0.0.1:0").await?;
    let entry = json!({"actions": [generic_key("all")]});
    let mut replicas = Vec::new();
    for name in ["first", "second", "third"] {
        let dir = dir.path().join(name);
        std::fs::create_dir(&dir)?;
        let service = Service::start(&root, &dir, server.port, Some(&redis)).await?;
        let routes = [envoy_route("all", std::slice::from_ref(&entry))];
        let config = envoy_config(&root.at("certs"), service.grpc, upstream.address, &routes);
        let envoy = start_envoy(&config.to_string(), &dir, 1).await?;
        let expected = match name {
            "first" => [200, 200, 200],
            "second" => [200, 200, 429],
            // After the end of both.
            _ => [429, 429, 429],
        };
        let found = statuses(&envoy, 3, "/all", &[]).await?;
        ensure!(found == expected, "{name}: {found:?}");
        replicas.push((service, envoy));
        if name == "second" {
            for (mut service, _envoy) in replicas.drain(..) {
                service.process.kill().await?;
            }
        }
    }
    Ok(())
}
