//! The images: made twice, read back by the rules of Istio's fetcher, unpacked and run in a root of their own.

use anyhow::{Context, bail, ensure};
use serde_json::Value;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tidegate_tests::command::run;
use tidegate_tests::sidecar::start_until_ready;
use tidegate_tests::{artifacts, client, memory, not_run};
use tokio::process::Command;

const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const RAW_LAYER: &str = "application/vnd.module.wasm.content.layer.v1+wasm";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Runs a program that has to succeed.
async fn succeed(program: impl AsRef<OsStr>, arguments: &[&OsStr]) -> anyhow::Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(artifacts::root());
    let ran = run(command).await?;
    ensure!(ran.code == Some(0), "{ran:?}");
    Ok(ran.out)
}

/// Makes images in `out`.
async fn build(out: &Path, more: &[&OsStr]) -> anyhow::Result<()> {
    let script = artifacts::root().join("packaging/images/build");
    let arguments = [&["--out".as_ref(), out.as_os_str()], more].concat();
    succeed(script, &arguments).await.map(drop)
}

/// An image layout, unpacked.
struct Layout(PathBuf);

impl Layout {
    async fn unpack(archive: &Path, to: &Path) -> anyhow::Result<Layout> {
        std::fs::create_dir_all(to)?;
        let arguments = ["-xf".as_ref(), archive.as_os_str(), "-C".as_ref(), to.as_os_str()];
        succeed("tar", &arguments).await?;
        Ok(Layout(to.to_owned()))
    }

    fn blob(&self, descriptor: &Value) -> anyhow::Result<PathBuf> {
        let digest = descriptor["digest"].as_str().context("a digest")?;
        let path = self.0.join("blobs").join(digest.replace(':', "/"));
        let size = path.metadata().with_context(|| digest.to_owned())?.len();
        ensure!(descriptor["size"] == size, "{descriptor}: {size} bytes");
        Ok(path)
    }

    fn document(&self, descriptor: &Value) -> anyhow::Result<Value> {
        Ok(serde_json::from_slice(&std::fs::read(self.blob(descriptor)?)?)?)
    }

    /// The only image that the layout names.
    fn image(&self) -> anyhow::Result<Value> {
        let index: Value = serde_json::from_slice(&std::fs::read(self.0.join("index.json"))?)?;
        let [image] = index["manifests"].as_array().context("manifests")?.as_slice() else {
            bail!("not one image: {index}");
        };
        Ok(image.clone())
    }

    /// The file of the module, by the rules of the fetchers of Istio and Envoy Gateway: a manifest, not an index, whose
    /// last layer is a compressed archive with `plugin.wasm`; else two layers, and one is the bare module.
    async fn fetch(&self) -> anyhow::Result<PathBuf> {
        let image = self.image()?;
        ensure!(image["mediaType"] == MANIFEST, "a single manifest: {image}");
        let manifest = self.document(&image)?;
        let layers = manifest["layers"].as_array().context("layers")?;
        let last = layers.last().context("a layer")?;
        if last["mediaType"] == LAYER {
            let layer = self.blob(last)?;
            let arguments = ["-xzf".as_ref(), layer.as_os_str(), "-C".as_ref(), self.0.as_os_str()];
            succeed("tar", &arguments).await?;
            return Ok(self.0.join("plugin.wasm"));
        }
        ensure!(layers.len() == 2, "{} layers", layers.len());
        let raw = layers.iter().find(|layer| layer["mediaType"] == RAW_LAYER);
        self.blob(raw.context("no layer of a module")?)
    }
}

fn files(dir: &Path) -> anyhow::Result<Vec<(PathBuf, Vec<u8>)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        found.push((path.strip_prefix(dir)?.to_owned(), std::fs::read(&path)?));
    }
    found.sort();
    Ok(found)
}

#[tokio::test]
async fn images_of_the_filter_are_fetched_whole_and_built_alike_twice() -> anyhow::Result<()> {
    let dir = TempDir::new()?;
    let modules = [artifacts::filter()?, artifacts::filter_with_conditions()?];
    let more = [
        "--module".as_ref(),
        modules[0].as_os_str(),
        "--module-cel".as_ref(),
        modules[1].as_os_str(),
    ];
    let outs = ["first", "second"].map(|name| dir.path().join(name));
    for out in &outs {
        build(out, &more).await?;
    }
    let [first, second] = [files(&outs[0])?, files(&outs[1])?];
    // Two layouts and a bill of materials for each module.
    ensure!(first.len() == 6 && first == second, "{outs:?}");
    let names =
        ["tidegate-wasm", "tidegate-wasm-raw", "tidegate-cel-wasm", "tidegate-cel-wasm-raw"];
    for (name, module) in names.iter().zip([&modules[0], &modules[0], &modules[1], &modules[1]]) {
        let archive = outs[0].join(format!("{name}.oci.tar"));
        let layout = Layout::unpack(&archive, &dir.path().join(name)).await?;
        let fetched = std::fs::read(layout.fetch().await?)?;
        ensure!(fetched == std::fs::read(module)?, "{name}: another module");
        let said = &layout.document(&layout.image()?)?["annotations"];
        ensure!(said["org.opencontainers.image.version"] == env!("CARGO_PKG_VERSION"), "{said}");
    }
    let bill = |name: &str| std::fs::read_to_string(outs[0].join(name));
    let (plain, with_conditions) =
        (bill("tidegate-wasm.cdx.json")?, bill("tidegate-cel-wasm.cdx.json")?);
    ensure!(
        plain.contains("pkg:cargo/regex-automata@") && !plain.contains("pkg:cargo/cel@"),
        "{plain}"
    );
    ensure!(with_conditions.contains("pkg:cargo/cel@"), "{with_conditions}");
    Ok(())
}

#[tokio::test]
async fn a_binary_that_needs_libraries_makes_no_image() -> anyhow::Result<()> {
    let dir = TempDir::new()?;
    let architecture = architecture();
    let other = if architecture == "amd64" { "arm64" } else { "amd64" };
    let dynamic = artifacts::envoy()?.with_file_name("python/bin/python");
    let dynamic = if dynamic.is_file() { dynamic } else { PathBuf::from("/bin/sh") };
    let cases = [
        (architecture, dynamic.as_path(), "it loads libraries at start"),
        (other, Path::new("/bin/sh"), "expected"),
        (architecture, &artifacts::root().join("LICENSE"), "not a 64-bit program"),
    ];
    for (architecture, path, mistake) in cases {
        let binary = format!("{architecture}={}", path.display());
        let made = build(dir.path(), &["--binary".as_ref(), binary.as_ref()]).await;
        let error = format!("{:?}", made.err());
        ensure!(error.contains(mistake), "{binary}: {error}");
    }
    Ok(())
}

/// As in a Pod: another user, a root where nothing is writable, and volumes for limits, data and memory.
#[tokio::test]
async fn the_image_of_the_service_runs_in_a_root_of_its_own() -> anyhow::Result<()> {
    let Some(binary) = not_run::or_named("`make build-static`", artifacts::static_sidecar())?
    else {
        return Ok(());
    };
    if not_run::or_named("root", not_run::root())?.is_none() {
        return Ok(());
    }
    let dir = TempDir::new()?;
    let binary = format!("{}={}", architecture(), binary.display());
    let outs = ["first", "second"].map(|name| dir.path().join(name));
    for out in &outs {
        build(out, &["--binary".as_ref(), binary.as_ref()]).await?;
    }
    ensure!(files(&outs[0])? == files(&outs[1])?, "two builds differ");
    let layout =
        Layout::unpack(&outs[0].join("tidegate.oci.tar"), &dir.path().join("layout")).await?;
    let index = layout.document(&layout.image()?)?;
    let of_this_machine =
        |manifest: &&Value| manifest["platform"]["architecture"] == architecture();
    let manifests = index["manifests"].as_array().context("platforms")?;
    let manifest =
        layout.document(manifests.iter().find(of_this_machine).context("no image for here")?)?;
    let config = layout.document(&manifest["config"])?["config"].clone();
    ensure!(config["User"] == "65534:65534", "{config}");
    ensure!(config["Entrypoint"] == serde_json::json!(["/bin/tidegate"]), "{config}");
    let root = unpacked_root(&layout, &manifest, dir.path()).await?;
    ensure!(
        std::fs::read_link(root.join("bin/ratelimit"))? == Path::new("tidegate"),
        "the other name"
    );
    check_service(&root, dir.path()).await
}

/// Unpacks the layers, and adds what a runtime adds: places for volumes, and a device.
async fn unpacked_root(layout: &Layout, manifest: &Value, dir: &Path) -> anyhow::Result<PathBuf> {
    let root = dir.join("root");
    std::fs::create_dir(&root)?;
    for layer in manifest["layers"].as_array().context("layers")? {
        let layer = layout.blob(layer)?;
        let arguments = [
            "-xzpf".as_ref(),
            layer.as_os_str(),
            "--numeric-owner".as_ref(),
            "-C".as_ref(),
            root.as_os_str(),
        ];
        succeed("tar", &arguments).await?;
    }
    for folder in ["memory", "dev"] {
        std::fs::create_dir(root.join(folder))?;
    }
    std::fs::write(root.join("dev/urandom"), "")?;
    let limits = root.join("etc/tidegate/limits.yaml");
    std::fs::write(limits, tidegate_tests::plugin::limits("{ unit: hour, requests_per_unit: 3 }"))?;
    // A runtime writes this file into each container.
    std::fs::write(root.join("etc/hosts"), "127.0.0.1 localhost\n")?;
    Ok(root)
}

async fn check_service(root: &Path, dir: &Path) -> anyhow::Result<()> {
    // The last program replaces the shell, so it has the process id that the test ends.
    let script = "\
set -e
mount --bind \"$0\" \"$0\"
mount --bind /dev/urandom \"$0/dev/urandom\"
mount -o remount,bind,ro \"$0\"
mount -t tmpfs -o size=64m,mode=0777 memory \"$0/memory\"
mount -t tmpfs -o size=64m,mode=0777 data \"$0/data\"
cd \"$0\"
exec chroot --userspec=65534:65534 --groups=65534 . \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation=private", "--", "sh", "-c", script]).arg(root);
    command.args([
        "/bin/tidegate",
        "serve",
        "--limits=/etc/tidegate",
        "--data-dir=/data",
        "--memory-dir=/memory",
    ]);
    // By name: the C library is a part of the binary, and its look-up must be, too.
    command.args(["--grpc=localhost:0", "--http=localhost:0", "--frs=off", "--log-format=json"]);
    let _ = memory::dir();
    let (mut process, http) = start_until_ready(command, "image", dir, "http").await?;
    let health = client::get(http, "/healthcheck").await?;
    ensure!(health.status == 200 && health.body.starts_with(b"OK"), "{health:?}");
    let user = std::fs::read_to_string(format!("/proc/{}/status", process.pid()?))?;
    ensure!(user.contains("\nUid:\t65534\t65534\t65534\t65534\n"), "{user}");
    process.signal(rustix::process::Signal::TERM)?;
    let ended = process.wait().await?;
    ensure!(ended.success(), "{ended}: {}", process.log());
    Ok(())
}

/// The architecture of this machine, as images call it.
fn architecture() -> &'static str {
    if std::env::consts::ARCH == "aarch64" { "arm64" } else { "amd64" }
}
