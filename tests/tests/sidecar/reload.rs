//! Limits that change under a running sidecar, in every way in which files change.

use anyhow::{Context, ensure};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use std::fs::{create_dir, remove_dir_all, remove_file, rename, write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use tidegate_tests::rls::{Rls, request};
use tidegate_tests::sidecar::Sidecar;
use tidegate_tests::{client, wait};
use tidegate_wire::rls::{Code, RateLimitResponse};

/// How changes are found: by events of the system, or by polling alone.
const WATCHES: [&str; 2] = ["on", "poll"];

/// Limits with this many requests per hour, for the keys `client` and `other`.
fn limits(domain: &str, requests: u32) -> String {
    format!(
        "domain: {domain}\ndescriptors:\n  - key: client\n    rate_limit: {{ unit: hour, \
         requests_per_unit: {requests} }}\n  - key: other\n    rate_limit: {{ unit: hour, \
         requests_per_unit: 7 }}\n"
    )
}

/// A sidecar whose limits are at `path` below a directory, which `make` makes first.
struct Home {
    dir: TempDir,
    sidecar: Sidecar,
}

impl Home {
    async fn start(
        watch: &str,
        path: &str,
        make: impl FnOnce(&Path) -> std::io::Result<()>,
    ) -> anyhow::Result<Home> {
        let dir = TempDir::new()?;
        // Apart from data and log, as anybody would have it.
        create_dir(dir.path().join("etc"))?;
        make(&dir.path().join("etc"))?;
        let limits = dir.path().join("etc").join(path);
        let flags = ["--capacity", "1000", "--watch", watch];
        let sidecar = Sidecar::start_with(dir.path(), &limits, &flags).await?;
        wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
        Ok(Home { dir, sidecar })
    }

    async fn on_file(watch: &str) -> anyhow::Result<Home> {
        Home::start(watch, "limits.yaml", |etc| write(etc.join("limits.yaml"), limits("d", 3)))
            .await
    }

    fn etc(&self, name: &str) -> PathBuf {
        self.dir.path().join("etc").join(name)
    }

    async fn metric(&self, name: &str) -> anyhow::Result<u64> {
        let metrics = client::get(self.sidecar.http, "/metrics").await?;
        let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
        let line = metrics.lines().find_map(|line| line.strip_prefix(&format!("tidegate_{name} ")));
        Ok(line.with_context(|| format!("no {name} in\n{metrics}"))?.parse()?)
    }

    async fn is_metric(&self, name: &str, expected: u64) -> anyhow::Result<()> {
        let what = format!("{name} to be {expected}");
        let found = wait::until(&what, wait::RELOAD, async || {
            (self.metric(name).await.ok()? == expected).then_some(())
        });
        found.await.with_context(|| self.sidecar.process.log())
    }

    async fn loads(&self, expected: u64) -> anyhow::Result<()> {
        self.is_metric("config_load_success_total", expected).await?;
        self.is_metric("config_current", 1).await
    }

    async fn logged(&self, text: &str) -> anyhow::Result<()> {
        let what = format!("{text:?} in the log");
        let found = wait::until(&what, wait::RELOAD, async || {
            self.sidecar.process.log().contains(text).then_some(())
        });
        found.await.with_context(|| self.sidecar.process.log())
    }

    fn count_logged(&self, text: &str) -> usize {
        self.sidecar.process.log().matches(text).count()
    }

    async fn ask(&self, domain: &str, key: &str) -> anyhow::Result<RateLimitResponse> {
        let rls = Rls::at(self.dir.path()).await?;
        Ok(rls.call(request(domain, &[(key, "a")])).await?)
    }

    /// The code of an ask for one hit, and how many are left; none without a limit.
    async fn left(&self, domain: &str) -> anyhow::Result<(Code, Option<u32>)> {
        let answer = self.ask(domain, "client").await?;
        let status = &answer.statuses[0];
        let left = status.current_limit.as_ref().map(|_| status.limit_remaining);
        Ok((answer.overall_code(), left))
    }

    async fn is_left(&self, left: u32) -> anyhow::Result<()> {
        let found = self.left("d").await?;
        ensure!(found == (Code::Ok, Some(left)), "{found:?}: {}", self.sidecar.process.log());
        Ok(())
    }
}

#[tokio::test]
async fn a_file_is_read_again_when_it_is_written_or_renamed_over() -> anyhow::Result<()> {
    for watch in WATCHES {
        let home = Home::on_file(watch).await?;
        home.is_left(2).await?;
        write(home.etc("limits.yaml"), limits("d", 10))?;
        home.loads(2).await?;
        // What was taken before counts.
        home.is_left(8).await?;
        home.logged("changed d/client (3 per hour -> 10 per hour)").await?;

        // As editors save a file.
        write(home.etc(".limits.yaml.new"), limits("d", 20))?;
        rename(home.etc(".limits.yaml.new"), home.etc("limits.yaml"))?;
        home.loads(3).await?;
        home.is_left(17).await?;
        // And once more, as the file that was watched is another now.
        write(home.etc(".limits.yaml.new"), limits("d", 30))?;
        rename(home.etc(".limits.yaml.new"), home.etc("limits.yaml"))?;
        home.loads(4).await?;
        home.is_left(26).await?;
    }
    Ok(())
}

/// The layout of a mounted ConfigMap: all files change by one rename of a link.
#[tokio::test]
async fn a_config_map_is_read_again_when_kubernetes_changes_it() -> anyhow::Result<()> {
    let version = |etc: &Path, name: &str, requests: u32| {
        create_dir(etc.join(name))?;
        write(etc.join(name).join("limits.yaml"), limits("d", requests))
    };
    let make = |etc: &Path| {
        version(etc, "..2026_1", 3)?;
        symlink("..2026_1", etc.join("..data"))?;
        symlink("..data/limits.yaml", etc.join("limits.yaml"))
    };
    for watch in WATCHES {
        // The directory as a whole, and one file of it.
        for path in ["", "limits.yaml"] {
            let home = Home::start(watch, path, make).await?;
            home.is_left(2).await?;
            for (loads, requests, left) in [(2, 10, 8), (3, 20, 17)] {
                let (old, new) = (format!("..2026_{}", loads - 1), format!("..2026_{loads}"));
                version(&home.etc(""), &new, requests)?;
                symlink(&new, home.etc("..data_tmp"))?;
                rename(home.etc("..data_tmp"), home.etc("..data"))?;
                remove_dir_all(home.etc(&old))?;
                home.loads(loads).await?;
                home.is_left(left).await?;
            }
            // The watch of the old directory goes with it, which nobody needs to be warned of.
            ensure!(home.count_logged("remove the path from the watches") == 0);
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_directory_gains_and_loses_files() -> anyhow::Result<()> {
    for watch in WATCHES {
        let make = |etc: &Path| write(etc.join("d.yaml"), limits("d", 3));
        let home = Home::start(watch, "", make).await?;
        home.is_left(2).await?;
        ensure!(home.left("e").await? == (Code::Ok, None));
        write(home.etc("e.yaml"), limits("e", 5))?;
        home.loads(2).await?;
        ensure!(home.left("e").await? == (Code::Ok, Some(4)));
        home.is_left(1).await?;
        home.logged("added e, e/client, e/other").await?;
        remove_file(home.etc("e.yaml"))?;
        home.loads(3).await?;
        ensure!(home.left("e").await? == (Code::Ok, None));
        home.logged("removed e, e/client, e/other").await?;
        // What is no limits file is no change.
        write(home.etc("notes.txt"), "d")?;
        write(home.etc("f.yaml"), limits("f", 5))?;
        home.loads(4).await?;
    }
    Ok(())
}

#[tokio::test]
async fn bad_limits_are_reported_once_and_the_old_ones_stay_in_force() -> anyhow::Result<()> {
    for watch in WATCHES {
        let home = Home::on_file(watch).await?;
        home.is_left(2).await?;
        let bad = "domain: d\ndescriptors:\n  - key: ''\n    rate_limt: {}\n";
        write(home.etc(".new"), bad)?;
        rename(home.etc(".new"), home.etc("limits.yaml"))?;
        home.is_metric("config_current", 0).await?;
        home.logged("limits.yaml:4:5: unknown key `rate_limt`").await?;
        home.logged("limits not reloaded; the old ones stay in force").await?;
        home.is_left(1).await?;
        ensure!(client::get(home.sidecar.http, "/healthcheck").await?.status == 200);
        ensure!(home.metric("config_load_success_total").await? == 1);

        // A later reload proves that the file was checked in between, and nothing was logged again.
        write(home.etc(".new"), limits("d", 10))?;
        rename(home.etc(".new"), home.etc("limits.yaml"))?;
        home.loads(2).await?;
        home.is_left(7).await?;
        ensure!(home.count_logged("unknown key `rate_limt`") == 1);
        ensure!(home.metric("config_load_error_total").await? == 1);

        // A file that goes is a mistake too; one that comes back as it was needs no reload.
        rename(home.etc("limits.yaml"), home.etc(".away"))?;
        home.is_metric("config_current", 0).await?;
        home.logged("limits.yaml: cannot read: No such file").await?;
        home.is_left(6).await?;
        rename(home.etc(".away"), home.etc("limits.yaml"))?;
        home.is_metric("config_current", 1).await?;
        home.logged("the limits on disk are those in force again").await?;
        ensure!(home.metric("config_load_success_total").await? == 2);
    }
    Ok(())
}

/// Rules that this data directory cannot serve are treated as a mistake.
#[tokio::test]
async fn limits_without_nodes_for_them_are_refused() -> anyhow::Result<()> {
    let dir = TempDir::new()?;
    let path = dir.path().join("limits.yaml");
    write(&path, limits("d", 3))?;
    let flags = ["--capacity", "1000", "--wide-capacity", "0"];
    let sidecar = Sidecar::start_with(dir.path(), &path, &flags).await?;
    let home = Home { dir, sidecar };
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    let wide = "unit: hour, algorithm: sliding_buckets,";
    // Renamed into place: a file that is seen while it is written would be a mistake of its own.
    let next = home.dir.path().join("next");
    write(&next, limits("d", 3).replacen("unit: hour,", wide, 1))?;
    rename(&next, &path)?;
    home.is_metric("config_current", 0).await?;
    home.logged("limit d/client (sliding_buckets) needs wide nodes").await?;
    home.is_left(2).await?;
    ensure!(home.metric("config_load_error_total").await? == 1);
    Ok(())
}

#[tokio::test]
async fn counts_live_on_or_start_anew_as_the_change_says() -> anyhow::Result<()> {
    let home = Home::on_file("on").await?;
    for left in [2, 1, 0] {
        home.is_left(left).await?;
    }
    ensure!(home.left("d").await?.0 == Code::OverLimit);
    write(home.etc("limits.yaml"), limits("d", 5))?;
    home.loads(2).await?;
    home.is_left(1).await?;
    write(home.etc("limits.yaml"), limits("d", 2))?;
    home.loads(3).await?;
    ensure!(home.left("d").await? == (Code::OverLimit, Some(0)));
    write(home.etc("limits.yaml"), limits("d", 5).replacen("unit: hour", "unit: day", 1))?;
    home.loads(4).await?;
    home.is_left(4).await?;
    home.logged("changed d/client (2 per hour -> 5 per day)").await?;
    Ok(())
}

#[tokio::test]
async fn without_a_watch_only_sighup_reads_the_limits() -> anyhow::Result<()> {
    let home = Home::on_file("off").await?;
    home.is_left(2).await?;
    write(home.etc("limits.yaml"), limits("d", 10))?;
    home.sidecar.process.signal(Signal::HUP)?;
    home.loads(2).await?;
    home.is_left(8).await?;
    // On a signal the limits are read whether they changed or not, and mistakes are logged each time.
    home.sidecar.process.signal(Signal::HUP)?;
    home.loads(3).await?;
    home.logged("nothing that affects callers").await?;
    write(home.etc("limits.yaml"), "domain: ''")?;
    for errors in 1..=2 {
        home.sidecar.process.signal(Signal::HUP)?;
        home.is_metric("config_load_error_total", errors).await?;
    }
    wait::until("the mistake twice in the log", wait::RELOAD, async || {
        (home.count_logged("`domain` is required and must not be empty") == 2).then_some(())
    })
    .await?;
    home.is_metric("config_current", 0).await?;
    ensure!(home.metric("config_loaded_timestamp_seconds").await? > 1_700_000_000);
    Ok(())
}

/// A FIFO among the limits held up its reader for ever: there was no reload from then on, nor an
/// error, as opening one waits for a writer. A device that never ends would fill
/// the memory.
#[tokio::test]
async fn what_is_no_file_does_not_hold_up_a_reload() -> anyhow::Result<()> {
    let fifo = |at: &Path| mknodat(CWD, at, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0);
    for watch in WATCHES {
        let make = |etc: &Path| write(etc.join("d.yaml"), limits("d", 3));
        let home = Home::start(watch, "", make).await?;
        let odd = home.etc("z.yaml");
        fifo(&odd)?;
        home.is_metric("config_current", 0).await?;
        home.logged("z.yaml: is a FIFO, not a file").await?;
        remove_file(&odd)?;
        home.is_metric("config_current", 1).await?;
        symlink("/dev/zero", &odd)?;
        home.logged("z.yaml: is a device, not a file").await?;
        home.is_left(2).await?;
        remove_file(&odd)?;
        write(home.etc("d.yaml"), limits("d", 10))?;
        home.is_metric("config_load_success_total", 2).await?;
        home.is_metric("config_current", 1).await?;
        home.is_left(8).await?;

        // On SIGHUP, too.
        fifo(&odd)?;
        home.sidecar.process.signal(Signal::HUP)?;
        home.is_metric("config_current", 0).await?;
        remove_file(&odd)?;
        home.is_metric("config_current", 1).await?;
    }
    Ok(())
}

/// A generated file with one mistake in each of its rules put thousands of lines into the log.
#[tokio::test]
async fn a_flood_of_mistakes_is_cut_short_in_the_log() -> anyhow::Result<()> {
    let home = Home::on_file("on").await?;
    let rules = "  - key: ''\n".repeat(50);
    write(home.etc(".new"), format!("domain: d\ndescriptors:\n{rules}"))?;
    rename(home.etc(".new"), home.etc("limits.yaml"))?;
    let path = home.etc("limits.yaml");
    home.logged(&format!("and 30 more; run `tidegate check {}`", path.display())).await?;
    ensure!(home.count_logged("`key` is required and must not be empty") == 20);
    ensure!(home.count_logged("limits.yaml:22:") == 1 && home.count_logged("limits.yaml:23:") == 0);
    Ok(())
}

/// A path with a typing mistake was said to have "a mistake" in its limits.
#[tokio::test]
async fn limits_that_cannot_be_read_at_the_start_are_said_to_be() -> anyhow::Result<()> {
    let dir = TempDir::new()?;
    for (name, cause) in [("none.yaml", "No such file"), ("pipe", "is a FIFO, not a file")] {
        let path = dir.path().join(name);
        if name == "pipe" {
            mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        }
        let error = Sidecar::start(dir.path(), &path).await.err().context("it started")?;
        let (error, path) = (format!("{error:?}"), path.display());
        ensure!(error.contains(&format!("nothing is served without limits: {path}: ")), "{error}");
        ensure!(error.contains(cause) && !error.contains("has no mistake"), "{error}");
    }
    Ok(())
}
