//! The Helm chart: rendered in all shapes, valid as manifests, refusing values that would loosen a limit, and with
//! arguments that the program takes.

use super::manifests::{Manifests, checked};
use anyhow::{Context, ensure};
use serde_json::Value;
use std::collections::BTreeSet;
use tidegate_tests::artifacts;
use tidegate_tests::command::{Ran, run};
use tokio::process::Command;

const EVERYTHING: &str = "tls.existingSecret=tls,tls.clientCa=true,tls.clientNames={envoy.example.com},\
    podDisruptionBudget.enabled=true,networkPolicy.enabled=true,serviceMonitor.enabled=true,dashboard.enabled=true,\
    prometheusRule.enabled=true,\
    http.tokenSecret=token,http.tlsSecret=http,http.clientCa=true,http.clientNames={ops.example.com},http.console=false,\
    statistics.existingSecret=database,statistics.hasCa=true,statistics.timezone=Europe/Berlin,\
    istio.enabled=true,istio.filter.enabled=true,istio.filter.selector.matchLabels.app=shop,\
    counters.capacity=50000,extraArgs={--count-denied}";
const IDLE: &str = "persistence.enabled=true,cold.existingSecret=counters,warm.url=rediss://tidegate@redis.example.com:6379,\
    warm.existingSecret=warm,warm.hasCa=true";
const SHARED: &str = "authority.url=rediss://redis.example.com:6379,authority.user=tidegate,\
    authority.existingSecret=redis,authority.hasCa=true,replicas=3,autoscaling.enabled=true";

async fn helm(arguments: &[&str], values: &[&str]) -> anyhow::Result<Ran> {
    let mut command = Command::new(artifacts::kubernetes_python()?.with_file_name("helm"));
    command.args(arguments).current_dir(artifacts::root());
    // It looks for plugins and repositories there.
    let home = tempfile::TempDir::new()?;
    for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        command.env(variable, home.path());
    }
    for value in values {
        command.arg("--set").arg(value);
    }
    run(command).await
}

async fn rendered(values: &[&str]) -> anyhow::Result<String> {
    let arguments =
        ["template", "edge", "charts/tidegate", "--namespace", "limits", "--kube-version", "1.35"];
    let ran = helm(&arguments, values).await?;
    ensure!(ran.code == Some(0), "{values:?}: {}", ran.err);
    Ok(ran.out)
}

#[tokio::test]
async fn the_chart_renders_valid_manifests_in_each_shape() -> anyhow::Result<()> {
    let cases: [(&[&str], &str); 7] = [
        (&[], "ConfigMap=1 Deployment=1 Service=1 ServiceAccount=1"),
        (&["shape=daemonset"], "ConfigMap=1 DaemonSet=1 Service=1 ServiceAccount=1"),
        (&["shape=injected"], "ConfigMap=1"),
        (
            &["persistence.enabled=true"],
            "ConfigMap=1 Deployment=1 PersistentVolumeClaim=1 Service=1 ServiceAccount=1",
        ),
        (
            &[EVERYTHING, SHARED],
            "ConfigMap=2 Deployment=1 HorizontalPodAutoscaler=1 NetworkPolicy=1 PodDisruptionBudget=1 PrometheusRule=1 \
             Service=1 ServiceAccount=1 ServiceMonitor=1 WasmPlugin=1",
        ),
        (
            &[
                "shape=daemonset",
                "istio.enabled=true",
                "istio.filter.enabled=true",
                "istio.filter.kind=TrafficExtension",
            ],
            "ConfigMap=1 DaemonSet=1 Service=1 ServiceAccount=1 ServiceEntry=1 TrafficExtension=1",
        ),
        (
            &["shape=injected", "istio.enabled=true", "istio.filter.enabled=true"],
            "ConfigMap=1 ServiceEntry=1 WasmPlugin=1",
        ),
    ];
    for (values, kinds) in cases {
        let ran = checked("1.35", &rendered(values).await?).await?;
        ensure!(ran.code == Some(0) && ran.out.trim() == kinds, "{values:?}: {ran:?}");
    }
    let lint = helm(&["lint", "--strict", "charts/tidegate"], &[]).await?;
    ensure!(lint.code == Some(0), "{lint:?}");
    Ok(())
}

#[tokio::test]
async fn values_that_would_loosen_limits_or_have_no_effect_are_refused() -> anyhow::Result<()> {
    let cases: [(&[&str], &str); 20] = [
        (&["tls.clientCa=true"], "need tls.existingSecret"),
        (&["http.clientCa=true"], "need http.tlsSecret"),
        (
            &["http.tlsSecret=http", "http.clientNames={ops}"],
            "http.clientNames needs http.clientCa",
        ),
        (&["tls.existingSecret=tls", "tls.clientNames={a}"], "tls.clientNames needs tls.clientCa"),
        (&["statistics.hasCa=true"], "statistics.hasCa needs statistics.existingSecret"),
        (&["cold.url=data-dir", "cold.existingSecret=database"], "exclude each other"),
        (&[SHARED, "cold.url=data-dir"], "counters of an authority are in its servers"),
        (&[SHARED, "warm.url=redis://redis"], "counters of an authority are in its servers"),
        (&["warm.existingSecret=warm"], "warm.existingSecret needs warm.url"),
        (&["warm.url=redis://redis", "warm.hasCa=true"], "needs warm.existingSecret"),
        // Nobody reads a password in the arguments of a container.
        (&["warm.url=redis://tidegate:secret@redis"], "does not match pattern"),
        (&["replicas=2"], "several replicas need authority.url"),
        (&["autoscaling.enabled=true"], "several replicas need authority.url"),
        (
            &["shape=daemonset", "replicas=2"],
            "replicas and autoscaling are for `shape: deployment`",
        ),
        (&[SHARED, "persistence.enabled=true"], "cannot share the volume"),
        (&["shape=daemonset", "tls.existingSecret=tls"], "a Unix socket has no TLS"),
        (&["shape=pod"], "value must be one of 'deployment', 'daemonset', 'injected'"),
        (&["replcas=2"], "additional properties 'replcas' not allowed"),
        (&["workers=31"], "maximum"),
        (&["istio.filter.failStrategy=OPEN"], "value must be one of"),
    ];
    for (values, mistake) in cases {
        let ran = helm(&["template", "edge", "charts/tidegate"], values).await?;
        ensure!(ran.code != Some(0) && ran.err.contains(mistake), "{values:?}: {ran:?}");
    }
    Ok(())
}

/// The rendered arguments, before anything is opened: `--help` after them is reached only if all are known.
#[tokio::test]
async fn the_program_takes_the_arguments_of_the_chart() -> anyhow::Result<()> {
    let help = run({
        let mut command = Command::new(artifacts::sidecar()?);
        command.args(["serve", "--help"]);
        command
    });
    let help = help.await?.out;
    for values in [&[EVERYTHING, SHARED][..], &["shape=daemonset"], &[EVERYTHING, IDLE]] {
        for argument in Manifests::parse(&rendered(values).await?)?.arguments()? {
            let flag = argument.split('=').next().context("a flag")?;
            ensure!(flag == "serve" || help.contains(&format!(" {flag}")), "{flag} is no flag");
        }
    }
    Ok(())
}

/// Symptom: as a DaemonSet, the service could not read the password of its authority. Cause: files of Secrets belong to root
/// and the group of the Pod, and only the Deployment had one.
#[tokio::test]
async fn the_user_of_the_container_reads_its_secrets() -> anyhow::Result<()> {
    let secrets = "http.tokenSecret=token,http.tlsSecret=http,statistics.existingSecret=database,statistics.hasCa=true";
    for (shape, kind, server) in [
        ("shape=deployment", "Deployment", "authority"),
        ("shape=daemonset", "DaemonSet", "authority"),
        ("shape=deployment", "Deployment", "warm"),
        ("shape=daemonset", "DaemonSet", "warm"),
    ] {
        let server = format!("{server}.url=redis://redis:6379,{server}.existingSecret=redis");
        let manifests = Manifests::parse(&rendered(&[shape, secrets, &server]).await?)?;
        let pod = &manifests.of(kind).next().context(kind)?["spec"]["template"]["spec"];
        let container = &pod["containers"][0];
        let group = &container["securityContext"]["runAsGroup"];
        ensure!(group.is_u64() && pod["securityContext"]["fsGroup"] == *group, "{pod}");
        let list = |list: &Value| list.as_array().cloned().context("a list");
        let names = |list: &[Value]| -> BTreeSet<String> {
            list.iter().filter_map(|item| item["name"].as_str().map(str::to_owned)).collect()
        };
        let volumes = list(&pod["volumes"])?;
        ensure!(names(&volumes) == names(&list(&container["volumeMounts"])?), "{pod}");
        let secrets: Vec<_> =
            volumes.iter().filter(|volume| volume["secret"].is_object()).collect();
        // `0440`: octal in the YAML of Kubernetes, and not in that of this test.
        let mode = |volume: &Value| volume["secret"]["defaultMode"].as_f64();
        let is_for_group = |volume: &&Value| mode(volume) == Some(440.0);
        ensure!(secrets.len() == 4 && secrets.iter().all(is_for_group), "{secrets:?}");
        // The password of the database is in no argument.
        let variables = list(&container["env"])?;
        let from = &variables[0]["valueFrom"]["secretKeyRef"];
        ensure!(
            variables[0]["name"] == "TIDEGATE_STATISTICS" && from["name"] == "database",
            "{pod}"
        );
    }
    Ok(())
}

/// Probes and Prometheus speak TLS where the port does.
#[tokio::test]
async fn probes_use_the_scheme_of_the_port() -> anyhow::Result<()> {
    for (value, probe, metrics) in
        [("http.tlsSecret=", "HTTP", Value::Null), ("http.tlsSecret=http", "HTTPS", "https".into())]
    {
        let manifests =
            Manifests::parse(&rendered(&[value, "serviceMonitor.enabled=true"]).await?)?;
        let deployment = manifests.of("Deployment").next().context("no Deployment")?;
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        for name in ["startupProbe", "readinessProbe"] {
            ensure!(container[name]["httpGet"]["scheme"] == probe, "{name}: {container}");
        }
        let monitor = manifests.of("ServiceMonitor").next().context("no ServiceMonitor")?;
        ensure!(monitor["spec"]["endpoints"][0]["scheme"] == metrics, "{monitor}");
    }
    Ok(())
}

fn read(path: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(artifacts::root().join(path)).context(path.to_owned())
}

/// The metrics in queries.
fn metrics_of<'q>(queries: impl Iterator<Item = &'q str>) -> BTreeSet<String> {
    let words =
        queries.flat_map(|query| query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
    let is_metric = |word: &&str| word.starts_with("tidegate_") || word.starts_with("process_");
    words.filter(is_metric).map(str::to_owned).collect()
}

/// What asks for a metric without a name in the documentation shows nothing.
fn be_documented(names: BTreeSet<String>) -> anyhow::Result<()> {
    let page = read("docs/reference/metrics.md")?;
    for name in names {
        let name = name.trim_end_matches("_bucket");
        let own = name.strip_prefix("tidegate_store").unwrap_or(name);
        let is_there = [name, own].iter().any(|name| {
            page.contains(&format!("`{name}`")) || page.contains(&format!("`{name}{{"))
        });
        ensure!(is_there, "{name} is not in docs/reference/metrics.md");
    }
    Ok(())
}

#[test]
fn the_dashboard_asks_for_documented_metrics() -> anyhow::Result<()> {
    let dashboard: Value =
        serde_json::from_str(&read("charts/tidegate/dashboards/tidegate.json")?)?;
    let panels = dashboard["panels"].as_array().context("panels")?;
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array()).flatten();
    let names = metrics_of(targets.filter_map(|target| target["expr"].as_str()));
    ensure!(names.len() >= 16, "{names:?}");
    be_documented(names)
}

#[test]
fn alerts_are_about_documented_metrics() -> anyhow::Result<()> {
    let rules: Value = serde_saphyr::from_str(&read("charts/tidegate/rules/tidegate.rules.yaml")?)?;
    let rules = rules["groups"][0]["rules"].as_array().context("rules")?;
    for rule in rules {
        let is_whole = rule["alert"].is_string() && rule["annotations"]["summary"].is_string();
        ensure!(is_whole, "{rule}");
    }
    let names = metrics_of(rules.iter().filter_map(|rule| rule["expr"].as_str()));
    ensure!(names.len() >= 12, "{names:?}");
    be_documented(names)
}

/// The version of the chart, and of the program in it, is that of the workspace.
#[test]
fn the_chart_has_the_version_of_the_workspace() -> anyhow::Result<()> {
    let chart = std::fs::read_to_string(artifacts::root().join("charts/tidegate/Chart.yaml"))?;
    let chart: Value = serde_saphyr::from_str(&chart)?;
    for field in ["version", "appVersion"] {
        ensure!(chart[field] == env!("CARGO_PKG_VERSION"), "{field}: {}", chart[field]);
    }
    Ok(())
}
