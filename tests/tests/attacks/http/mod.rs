//! The HTTP and FRS endpoints under attack, on raw sockets against a real sidecar: thousands of clients that hold
//! connections and do little, and floods of bytes that are dear to read. Judged by whether others are
//! answered meanwhile, by memory, and by CPU beside valid traffic in the same run.

mod floods;
mod slow;

use anyhow::{Context, ensure};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::net::SocketAddr;
use std::path::PathBuf;
use tempfile::TempDir;
use tidegate_tests::client::get;
use tidegate_tests::sidecar::Sidecar;
use tidegate_tests::wait;

const LIMITS: &str = "\
domain: test
descriptors:
  - key: client
    rate_limit: { unit: hour, requests_per_unit: 1000000000 }
";
const MAP: &str = "<map><business id='login' max='1000000000' interval='1h'/></map>";

/// A sidecar whose HTTP and FRS endpoints listen on loopback.
struct Served {
    sidecar: Sidecar,
    http: SocketAddr,
    frs: SocketAddr,
    _dir: TempDir,
}

impl Served {
    async fn start() -> anyhow::Result<Served> {
        allow_files()?;
        let dir = TempDir::new()?;
        let limits: PathBuf = dir.path().join("limits");
        std::fs::create_dir(&limits)?;
        std::fs::write(limits.join("limits.yaml"), LIMITS)?;
        std::fs::write(limits.join("map.xml"), MAP)?;
        let flags = ["--capacity", "10000", "--frs", "127.0.0.1:0"];
        let sidecar = Sidecar::start_with(dir.path(), &limits, &flags).await?;
        let (http, frs) = (sidecar.http, sidecar.tcp("frs")?);
        Ok(Served { sidecar, http, frs, _dir: dir })
    }

    /// The value of a metric of this endpoint.
    async fn metric(&self, name: &str, endpoint: &str) -> anyhow::Result<u64> {
        let page = get(self.http, "/metrics").await?;
        let page = String::from_utf8(page.body.into())?;
        let series = format!("{name}{{door=\"{endpoint}\"}} ");
        let value = page.lines().find_map(|line| line.strip_prefix(&series));
        Ok(value.map_or(Ok(0), str::parse)?)
    }
}

/// Lets this process have as many files open as it may.
fn allow_files() -> anyhow::Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit)?;
    let current = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    ensure!(current >= 8_192, "the hard limit of open files is {current}; this test needs 8192");
    Ok(())
}

/// Waits for what an honest client asks. An endpoint that is held makes it wait for a minute.
async fn in_time<T>(
    what: &str,
    asked: impl Future<Output = anyhow::Result<T>>,
) -> anyhow::Result<T> {
    wait::within(what, wait::SOON, asked).await?.with_context(|| what.to_owned())
}
