//! The manifests at work: a real Envoy with what a control plane makes of them, a sidecar with the arguments and limits
//! of the manifests, and the module, which the tests of the images find whole in them.

use super::manifests::Manifests;
use super::mesh::{Around, gateway, istio};
use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use tidegate_tests::artifacts;
use tidegate_tests::client::{Client, drive};
use tidegate_tests::command::run;
use tidegate_tests::envoy::{Envoy, start_envoy};
use tidegate_tests::sidecar::Sidecar;
use tidegate_tests::upstream::Upstream;
use tidegate_tests::wait;
use tokio::process::Command;

const INBOUND: (&str, &[(&str, &str)]) = ("inbound|http|8080", &[("default", "/")]);

/// A proxy, and what it needs.
struct Scene {
    envoy: Envoy,
    _sidecar: Sidecar,
    _upstream: Upstream,
    _dir: TempDir,
}

impl Scene {
    async fn start(
        manifests: &Manifests,
        control_plane: impl Fn(&Manifests, &Around<'_>) -> anyhow::Result<Value>,
        (host, routes): (&str, &[(&str, &str)]),
    ) -> anyhow::Result<Scene> {
        let manifests = &patient(manifests)?;
        let dir = TempDir::new()?;
        let limits = dir.path().join("limits");
        manifests.write_limits(&limits)?;
        // Paths and addresses are those of the test.
        let own = [
            "serve",
            "--limits=",
            "--data-dir=",
            "--memory-dir=",
            "--grpc=",
            "--http=",
            "--log-format=",
        ];
        let arguments = manifests.arguments()?;
        let others =
            arguments.iter().filter(|argument| !own.iter().any(|own| argument.starts_with(own)));
        // Tokens of a lease that ends before they are spent count as spent. A busy machine may stand still for the usual two
        // seconds.
        let patient = ["--lease-ttl", "60s"];
        let others: Vec<&str> = others.map(String::as_str).chain(patient).collect();
        let sidecar = Sidecar::start_with(dir.path(), &limits, &others).await?;
        let upstream = Upstream::start("127.0.0.1:0").await?;
        let around = Around {
            dir: dir.path(),
            module: &artifacts::filter()?,
            sidecar: &Sidecar::socket(dir.path()),
            upstream: upstream.address,
            host,
            routes,
        };
        let config = control_plane(manifests, &around)?.to_string();
        let envoy = start_envoy(&config, dir.path(), 1).await?;
        wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
        Ok(Scene { envoy, _sidecar: sidecar, _upstream: upstream, _dir: dir })
    }

    /// How many of these requests pass.
    async fn passed(&self, path: &str, client: &str, requests: u32) -> anyhow::Result<u32> {
        let mut connection = Client::connect(self.envoy.address).await?;
        let mut passed = 0;
        for _ in 0..requests {
            let reply = connection.get(path, &[("x-client", client.as_bytes())]).await?;
            ensure!([200, 429].contains(&reply.status.as_u16()), "{reply:?}");
            passed += u32::from(reply.status == 200);
        }
        Ok(passed)
    }
}

/// The same manifests with timeouts of 5 s. Theirs are 20 or 50 ms and let requests pass then, so that a busy machine would
/// decide how many pass.
fn patient(manifests: &Manifests) -> anyhow::Result<Manifests> {
    let mut objects = manifests.all().to_vec();
    let changed: u32 = objects.iter_mut().map(set_timeouts).sum();
    ensure!(changed > 0, "no timeout in {objects:?}");
    let text: Vec<String> = objects.iter().map(Value::to_string).collect();
    Manifests::parse(&text.join("\n---\n"))
}

/// Returns how many there are.
fn set_timeouts(value: &mut Value) -> u32 {
    match value {
        Value::Object(fields) => {
            // The filter of Tidegate, and Envoy's own.
            let timeout = [
                ("cluster", "timeout_ms", json!(5_000)),
                ("rate_limit_service", "timeout", json!("5s")),
            ];
            let mut changed = 0;
            for (beside, name, patient) in timeout {
                if fields.contains_key(beside)
                    && let Some(timeout) = fields.get_mut(name)
                {
                    *timeout = patient;
                    changed += 1;
                }
            }
            changed + fields.values_mut().map(set_timeouts).sum::<u32>()
        }
        Value::Array(values) => values.iter_mut().map(set_timeouts).sum(),
        _ => 0,
    }
}

/// Fifty requests of a client pass, and no more; another client has fifty of its own.
async fn check(manifests: &Manifests) -> anyhow::Result<()> {
    let scene = Scene::start(manifests, istio, INBOUND).await?;
    let address = scene.envoy.address;
    // The manifests let requests pass while the service is silent, which a busy machine may find it at first.
    wait::until("a client that is limited", wait::RETRY, async || {
        let tally = drive(address, ("x-client", "first"), 60, 1).await.ok()?;
        (tally.denied > 0).then_some(())
    })
    .await?;
    for client in ["a", "b"] {
        let tally = drive(address, ("x-client", client), 60, 1).await?;
        ensure!((tally.allowed, tally.denied) == (50, 10), "{client}: {tally:?}");
    }
    Ok(())
}

#[tokio::test]
async fn the_mesh_with_a_deployment_is_limited() -> anyhow::Result<()> {
    check(&Manifests::read(&["istio/deployment"])?).await
}

#[tokio::test]
async fn the_mesh_with_a_socket_on_each_node_is_limited() -> anyhow::Result<()> {
    check(&Manifests::read(&["istio/daemonset"])?).await
}

#[tokio::test]
async fn the_mesh_with_injected_sidecars_is_limited() -> anyhow::Result<()> {
    check(&Manifests::read(&["istio/injected"])?).await
}

/// The service as a Deployment, without the filter that is beside it.
fn deployment() -> anyhow::Result<Manifests> {
    Ok(Manifests::read(&["istio/deployment"])?.without(&["WasmPlugin"]))
}

/// Each of the two resources alone.
#[tokio::test]
async fn waypoints_are_limited_by_a_plugin_or_an_extension() -> anyhow::Result<()> {
    for other in ["WasmPlugin", "TrafficExtension"] {
        let waypoint = Manifests::read(&["istio/waypoint"])?.without(&[other]);
        check(&deployment()?.and(waypoint)).await.with_context(|| format!("without {other}"))?;
    }
    Ok(())
}

#[tokio::test]
async fn the_mesh_without_wasm_is_limited() -> anyhow::Result<()> {
    check(&deployment()?.and(Manifests::read(&["istio/without-wasm"])?)).await
}

/// Routes switch off the filter that is not theirs, so each meets one limit alone.
#[tokio::test]
async fn a_route_switches_off_a_filter_by_its_name() -> anyhow::Result<()> {
    // The folder has limits of its own.
    let sidecar = deployment()?.without(&["ConfigMap"]);
    let manifests = sidecar.and(Manifests::read(&["istio/routes"])?);
    let routes = ("shop", &[("login", "/login"), ("pages", "/")][..]);
    let scene = Scene::start(&manifests, istio, routes).await?;
    // By address: clients have the limit of logins together.
    ensure!(scene.passed("/login", "a", 4).await? == 4, "the first logins");
    ensure!(scene.passed("/login", "b", 4).await? == 1, "the fifth login is the last one");
    ensure!(scene.passed("/", "a", 25).await? == 20, "logins count as no pages");
    ensure!(scene.passed("/", "b", 25).await? == 20, "clients count apart");
    Ok(())
}

#[tokio::test]
async fn a_gateway_with_an_extension_policy_is_limited() -> anyhow::Result<()> {
    let manifests = deployment()?.and(Manifests::read(&["gateway/extension"])?);
    let scene = Scene::start(&manifests, gateway, ("shop", &[("shop", "/")])).await?;
    ensure!(scene.passed("/", "a", 60).await? == 50, "the limit of a client");
    Ok(())
}

/// A name of 160 bytes: Istio's clusters have the namespace and the Service in their names, of up to 63 bytes each. The
/// filter refused names of more than 125 bytes, as their target is no UTF-8 any more.
#[tokio::test]
async fn a_cluster_with_a_long_name_is_called() -> anyhow::Result<()> {
    let manifests = Manifests::read(&["istio/deployment"])?;
    let text: Vec<String> = manifests.all().iter().map(Value::to_string).collect();
    let (service, namespace) = ("s".repeat(63), "n".repeat(63));
    let text = text.join("\n---\n");
    let text = text.replace("tidegate.tidegate.svc", &format!("{service}.{namespace}.svc"));
    let text = text.replace(r#""namespace":"tidegate""#, &format!(r#""namespace":"{namespace}""#));
    let text = text
        .replace(r#""name":"tidegate","namespace""#, &format!(r#""name":"{service}","namespace""#));
    check(&Manifests::parse(&text)?).await
}

/// The containers know each other by names that only their runtime resolves, so Envoy only checks the configuration.
/// Otherwise it is that of the setup on one host, which the tests of the documentation run.
#[tokio::test]
async fn envoy_takes_the_configuration_of_the_containers() -> anyhow::Result<()> {
    let read = |path: &str| std::fs::read_to_string(artifacts::root().join("envoy").join(path));
    let dir = TempDir::new()?;
    let module = artifacts::filter()?;
    let config = read("containers/envoy.yaml")?;
    let path = dir.path().join("envoy.yaml");
    std::fs::write(
        &path,
        config.replace("/etc/envoy/tidegate.wasm", &module.display().to_string()),
    )?;
    let mut command = Command::new(artifacts::envoy()?);
    command.args(["--mode", "validate", "--config-path"]).arg(&path);
    let ran = run(command).await?;
    ensure!(ran.code == Some(0), "{ran:?}");
    let names: [(&str, &str); 6] = [
        ("0.0.0.0, port_value: 10000", "127.0.0.1, port_value: 10000"),
        ("/etc/envoy/tidegate.wasm", "dist/tidegate.wasm"),
        ("service, port", "127.0.0.1, port"),
        ("tidegate, port", "127.0.0.1, port"),
        ("STRICT_DNS", "STATIC"),
        ("Tidegate speaks", "The sidecar speaks"),
    ];
    let on_one_host = names.iter().fold(config, |text, (from, to)| text.replace(from, to));
    let settings = |text: &str| -> Vec<String> {
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    };
    ensure!(settings(&on_one_host) == settings(&read("standalone/envoy.yaml")?), "they differ");
    Ok(())
}
