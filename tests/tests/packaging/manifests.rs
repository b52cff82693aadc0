//! Manifests of Kubernetes as values, and the check of all of them against the schemas of their kinds.

use anyhow::{Context, ensure};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tidegate_tests::artifacts;
use tidegate_tests::command::{Ran, run};
use tokio::process::Command;

/// The oldest version of Kubernetes that has all kinds and fields in use, and the newest with schemas.
const VERSIONS: [&str; 2] = ["1.35", "1.37"];

/// The objects of some files.
#[derive(Debug)]
pub(crate) struct Manifests(Vec<Value>);

impl Manifests {
    /// All files in these folders of `envoy/`.
    pub(crate) fn read(folders: &[&str]) -> anyhow::Result<Manifests> {
        let mut text = String::new();
        for folder in folders {
            for file in yaml_files(&artifacts::root().join("envoy").join(folder))? {
                text += &format!("---\n{}", std::fs::read_to_string(file)?);
            }
        }
        Manifests::parse(&text)
    }

    pub(crate) fn parse(text: &str) -> anyhow::Result<Manifests> {
        let documents = serde_saphyr::from_multiple::<Value>(text).context("YAML")?;
        Ok(Manifests(documents.into_iter().filter(|document| !document.is_null()).collect()))
    }

    pub(crate) fn all(&self) -> &[Value] {
        &self.0
    }

    /// All objects but those of these kinds.
    pub(crate) fn without(mut self, kinds: &[&str]) -> Manifests {
        self.0.retain(|object| !kinds.iter().any(|kind| object["kind"] == *kind));
        self
    }

    pub(crate) fn and(mut self, others: Manifests) -> Manifests {
        self.0.extend(others.0);
        self
    }

    pub(crate) fn of(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.0.iter().filter(move |object| object["kind"] == kind)
    }

    /// Writes the limits files of the ConfigMaps into a directory.
    pub(crate) fn write_limits(&self, dir: &Path) -> anyhow::Result<()> {
        std::fs::create_dir(dir)?;
        for object in self.of("ConfigMap") {
            for (name, text) in object["data"].as_object().context("data")? {
                std::fs::write(dir.join(name), text.as_str().context("a text")?)?;
            }
        }
        Ok(())
    }

    /// The arguments of the container `tidegate`, wherever it is.
    pub(crate) fn arguments(&self) -> anyhow::Result<Vec<String>> {
        let template = "/sidecarInjectorWebhook/templates/tidegate";
        let mut pods: Vec<Value> =
            self.0.iter().map(|object| object["spec"]["template"]["spec"].clone()).collect();
        for text in self.0.iter().filter_map(|object| object.pointer(template)?.as_str()) {
            let parsed = Manifests::parse(text)?;
            pods.extend(parsed.0.iter().map(|template| template["spec"].clone()));
        }
        let lists = pods.iter().flat_map(|pod| [&pod["containers"], &pod["initContainers"]]);
        let mut containers = lists.filter_map(Value::as_array).flatten();
        let found = containers.find(|container| container["name"] == "tidegate");
        let arguments = found.context("no container `tidegate`")?["args"].as_array();
        let text = |argument: &Value| argument.as_str().map(str::to_owned).context("a text");
        arguments.context("no arguments")?.iter().map(text).collect()
    }
}

fn yaml_files(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(dir).with_context(|| dir.display().to_string())?;
    let mut files: Vec<PathBuf> =
        entries.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<_>>()?;
    files.retain(|path| path.extension().is_some_and(|end| end == "yaml"));
    files.sort();
    ensure!(!files.is_empty(), "no manifests in {}", dir.display());
    Ok(files)
}

/// The folders with manifests, below `envoy/`.
pub(crate) const FOLDERS: [&str; 8] = [
    "istio/deployment",
    "istio/daemonset",
    "istio/injected",
    "istio/waypoint",
    "istio/routes",
    "istio/without-wasm",
    "gateway/extension",
    "gateway/image",
];

/// Checks a text of manifests, and returns what the check prints.
pub(crate) async fn checked(version: &str, text: &str) -> anyhow::Result<Ran> {
    let dir = tempfile::TempDir::new()?;
    let path = dir.path().join("manifests.yaml");
    std::fs::write(&path, text)?;
    checked_files(version, &[path]).await
}

async fn checked_files(version: &str, files: &[PathBuf]) -> anyhow::Result<Ran> {
    let mut command = Command::new(artifacts::kubernetes_python()?);
    command.arg(artifacts::root().join("tests/manifests/check.py")).arg(version).args(files);
    command.env("PYTHONDONTWRITEBYTECODE", "1").stdin(Stdio::null());
    run(command).await
}

#[tokio::test]
async fn all_manifests_are_valid() -> anyhow::Result<()> {
    let mut files = Vec::new();
    for folder in FOLDERS {
        files.extend(yaml_files(&artifacts::root().join("envoy").join(folder))?);
    }
    for version in VERSIONS {
        let ran = checked_files(version, &files).await?;
        ensure!(ran.code == Some(0), "Kubernetes {version}: {}{}", ran.out, ran.err);
        for kind in ["WasmPlugin=6", "TrafficExtension=1", "EnvoyFilter=2", "DaemonSet=1"] {
            ensure!(ran.out.contains(kind), "{kind} in {}", ran.out);
        }
    }
    Ok(())
}

/// Each mistake is one that a server of Kubernetes would drop without a word, or refuse.
#[tokio::test]
async fn a_mistake_in_a_manifest_is_found() -> anyhow::Result<()> {
    let read = |file: &str| std::fs::read_to_string(artifacts::root().join("envoy").join(file));
    let (sidecar, filter) =
        (read("istio/deployment/sidecar.yaml")?, read("istio/deployment/filter.yaml")?);
    let patch = read("istio/without-wasm/filter.yaml")?;
    let extension = read("gateway/extension/filter.yaml")?;
    let values = read("istio/injected/istiod-values.yaml")?;
    let workload = read("istio/daemonset/workload.yaml")?;
    let cases = [
        (&sidecar, "readOnlyRootFilesystem", "readOnlyRootFileSystem", "readOnlyRootFileSystem"),
        (&sidecar, "replicas: 1", "replicas: one", "'one' is not of type"),
        (&filter, "failStrategy: FAIL_OPEN", "failStrategy: FAIL", "'FAIL' is none of"),
        (&filter, "pluginConfig", "pluginConf", "spec.pluginConf: unknown field"),
        (&filter, "  url: oci", "  uri: oci", "spec.url: missing"),
        (&patch, "INSERT_BEFORE", "BEFORE", "'BEFORE' is none of"),
        (&extension, "failOpen: true", "failOpen: 1", "1 is not a boolean"),
        (
            &values,
            "mountPath: /run/tidegate }",
            "mountPaths: /run/tidegate }",
            "volumeMounts.1: 'mountPath' is a required",
        ),
        (&workload, "\"readOnly\":true}}", "\"readOnly\":true}", "annotation"),
    ];
    for (text, from, to, mistake) in cases {
        ensure!(text.contains(from), "{from}");
        let ran = checked(VERSIONS[1], &text.replacen(from, to, 1)).await?;
        ensure!(ran.code == Some(1) && ran.out.contains(mistake), "{to}: {ran:?}");
    }
    Ok(())
}

/// The examples name images of this version.
#[test]
fn manifests_name_images_of_this_version() -> anyhow::Result<()> {
    for folder in FOLDERS {
        for file in yaml_files(&artifacts::root().join("envoy").join(folder))? {
            let text = std::fs::read_to_string(&file)?;
            for word in text.split(|c: char| c.is_whitespace() || "\"'".contains(c)) {
                let Some((_, image)) = word.split_once("registry.example.com/") else { continue };
                let tag = image.rsplit_once(':').map(|(_, tag)| tag);
                ensure!(tag == Some(env!("CARGO_PKG_VERSION")), "{}: {image}", file.display());
            }
        }
    }
    Ok(())
}
