//! Where the things under test are: built by `make`, each replaceable by an environment variable.

use anyhow::{Context, bail};
use std::path::{Path, PathBuf};

/// The root of the repository.
#[must_use]
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

/// The sidecar's binary, built as the caller is: for tests with checks of overflows and debug assertions, for
/// benchmarks as it is released. `TIDEGATE` names another.
///
/// # Errors
/// When it is not built.
pub fn sidecar() -> anyhow::Result<PathBuf> {
    if cfg!(debug_assertions) {
        find("TIDEGATE", "target/debug/tidegate", "cargo build --workspace --tests --bin tidegate")
    } else {
        find("TIDEGATE", "target/release/tidegate", "make build")
    }
}

/// The filter; `TIDEGATE_WASM` names another.
///
/// # Errors
/// When it is not built.
pub fn filter() -> anyhow::Result<PathBuf> {
    find("TIDEGATE_WASM", "dist/tidegate.wasm", "make build-wasm")
}

/// The filter with conditions; `TIDEGATE_CEL_WASM` names another.
///
/// # Errors
/// When it is not built.
pub fn filter_with_conditions() -> anyhow::Result<PathBuf> {
    find("TIDEGATE_CEL_WASM", "dist/tidegate-cel.wasm", "make build-wasm-cel")
}

/// A filter that does nothing, on the bare ABI; `TIDEGATE_NOOP_ABI_WASM` names another.
///
/// # Errors
/// When it is not built.
pub fn noop_abi_filter() -> anyhow::Result<PathBuf> {
    find("TIDEGATE_NOOP_ABI_WASM", "target/wasm32-wasip1/wasm/noop_abi.wasm", "make build-noop")
}

/// The same on the proxy-wasm SDK; `TIDEGATE_NOOP_SDK_WASM` names another.
///
/// # Errors
/// When it is not built.
pub fn noop_sdk_filter() -> anyhow::Result<PathBuf> {
    find("TIDEGATE_NOOP_SDK_WASM", "target/wasm32-wasip1/wasm/noop_sdk.wasm", "make build-noop")
}

/// Envoy's binary; `ENVOY` names another.
///
/// # Errors
/// When it is not there.
pub fn envoy() -> anyhow::Result<PathBuf> {
    find("ENVOY", ".tools/envoy", "make envoy")
}

/// A Python that has gRPC's own client; `TIDEGATE_PYTHON` names another.
///
/// # Errors
/// When it is not there.
pub fn python() -> anyhow::Result<PathBuf> {
    // As it is named: a link followed would lead out of its environment.
    there("TIDEGATE_PYTHON", ".tools/clients/bin/python", "make test-end-to-end")
}

/// The packages of gRPC's JavaScript client; `TIDEGATE_GRPC_JS` names the lock file beside others.
///
/// # Errors
/// When they are not there.
pub fn node_modules() -> anyhow::Result<PathBuf> {
    let lock = ".tools/grpc_js/package-lock.json";
    let lock = there("TIDEGATE_GRPC_JS", lock, "make test-end-to-end")?;
    Ok(lock.with_file_name("node_modules"))
}

/// The package that drives a Chromium; `TIDEGATE_PLAYWRIGHT` names the lock file beside others.
///
/// # Errors
/// When it is not there.
pub fn playwright() -> anyhow::Result<PathBuf> {
    let lock = ".tools/playwright/package-lock.json";
    let lock = there("TIDEGATE_PLAYWRIGHT", lock, "make test-end-to-end")?;
    Ok(lock.with_file_name("node_modules"))
}

/// A Chromium: Debian's, or the one that `CHROMIUM` names.
///
/// # Errors
/// When it is not there.
pub fn chromium() -> anyhow::Result<PathBuf> {
    there("CHROMIUM", "/usr/bin/chromium", "apt-get install chromium")
}

/// A sidecar's binary that needs no libraries, as images have it; `TIDEGATE_STATIC` names another.
///
/// # Errors
/// When it is not built.
pub fn static_sidecar() -> anyhow::Result<PathBuf> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    find("TIDEGATE_STATIC", &format!("target/{target}/release/tidegate"), "make build-static")
}

/// A Python that has the schemas of Kubernetes, with helm beside it; `TIDEGATE_KUBERNETES` names another.
///
/// # Errors
/// When it is not there.
pub fn kubernetes_python() -> anyhow::Result<PathBuf> {
    there("TIDEGATE_KUBERNETES", ".tools/kubernetes/bin/python", "make test-end-to-end")
}

fn find(variable: &str, built: &str, make: &str) -> anyhow::Result<PathBuf> {
    let path = there(variable, built, make)?;
    path.canonicalize().with_context(|| format!("cannot resolve {}", path.display()))
}

fn there(variable: &str, built: &str, make: &str) -> anyhow::Result<PathBuf> {
    let path = match std::env::var_os(variable).filter(|value| !value.is_empty()) {
        Some(path) => PathBuf::from(path),
        None => root().join(built),
    };
    if !path.is_file() {
        bail!("{} is not there; run `{make}`, or set {variable}", path.display());
    }
    Ok(path)
}
