//! The sidecar from outside: its command line, its endpoints, its signals.

use anyhow::{Context, ensure};
use rustix::process::Signal;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::TempDir;
use tidegate_tests::command::{Ran, run};
use tidegate_tests::process::Process;
use tidegate_tests::rls::{Rls, allowed_at_once, request};
use tidegate_tests::sidecar::{Sidecar, home};
use tidegate_tests::{artifacts, client, memory, wait};
use tidegate_wire::rls::{Code, RateLimitResponse};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tonic::transport::Endpoint;

const LIMITS: &str = "\
domain: test
descriptors:
  - key: client
    rate_limit: { name: per-client, unit: hour, requests_per_unit: 3 }
  - key: many
    rate_limit: { unit: hour, requests_per_unit: 300 }
  - key: watched
    shadow_mode: true
    rate_limit: { unit: hour, requests_per_unit: 1 }
  - key: free
    rate_limit: { unlimited: true }
";

async fn started(limits: &str) -> anyhow::Result<(TempDir, Sidecar)> {
    let (dir, limits) = home(limits)?;
    let sidecar = Sidecar::start(dir.path(), &limits).await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    Ok((dir, sidecar))
}

/// The codes of an answer, overall first, and what remains of each descriptor.
fn summary(answer: &RateLimitResponse) -> (Code, Vec<(Code, u32)>) {
    let statuses = answer.statuses.iter().map(|status| (status.code(), status.limit_remaining));
    (answer.overall_code(), statuses.collect())
}

#[tokio::test]
async fn a_limit_is_counted_down_and_reported() -> anyhow::Result<()> {
    let (dir, _sidecar) = started(LIMITS).await?;
    let rls = Rls::at(dir.path()).await?;
    let asking = async { Ok(rls.ask(&[("client", "a")]).await?) };
    let (expected, first) = wait::reset_during(wait::HOUR, asking).await?;
    ensure!(summary(&first) == (Code::Ok, vec![(Code::Ok, 2)]), "{first:?}");
    let limit = first.statuses[0].current_limit.as_ref().context("a limit")?;
    ensure!((limit.requests_per_unit, limit.unit, limit.name.as_str()) == (3, 3, "per-client"));
    let reset = first.statuses[0].duration_until_reset.context("a time")?.seconds;
    ensure!(expected.contains(&u64::try_from(reset)?), "{reset} s, expected {expected:?}");

    rls.ask(&[("client", "a")]).await?;
    rls.ask(&[("client", "a")]).await?;
    let over = rls.ask(&[("client", "a")]).await?;
    ensure!(summary(&over) == (Code::OverLimit, vec![(Code::OverLimit, 0)]), "{over:?}");
    let other = rls.ask(&[("client", "b")]).await?;
    ensure!(summary(&other) == (Code::Ok, vec![(Code::Ok, 2)]), "{other:?}");
    Ok(())
}

#[tokio::test]
async fn several_descriptors_are_taken_from_together_or_not_at_all() -> anyhow::Result<()> {
    let (dir, _sidecar) = started(LIMITS).await?;
    let rls = Rls::at(dir.path()).await?;
    let both = [("many", "x"), ("client", "a")];
    for remaining in (0..3).rev() {
        let answer = rls.ask(&both).await?;
        let expected = (Code::Ok, vec![(Code::Ok, 297 + remaining), (Code::Ok, remaining)]);
        ensure!(summary(&answer) == expected, "{answer:?}");
    }
    for _ in 0..5 {
        let answer = rls.ask(&both).await?;
        // The broad limit stays as it is while the narrow one denies.
        let expected = (Code::OverLimit, vec![(Code::Ok, 297), (Code::OverLimit, 0)]);
        ensure!(summary(&answer) == expected, "{answer:?}");
    }
    Ok(())
}

#[tokio::test]
async fn hits_are_charged_as_the_request_says() -> anyhow::Result<()> {
    let (dir, _sidecar) = started(LIMITS).await?;
    let rls = Rls::at(dir.path()).await?;
    let hits = |request_hits: u32, own: Option<u64>| {
        let mut asked = request("test", &[("many", "x")]);
        asked.hits_addend = request_hits;
        asked.descriptors[0].hits_addend = own;
        asked
    };
    for (asked, code, remaining) in [
        (hits(0, None), Code::Ok, 299),
        (hits(9, None), Code::Ok, 290),
        (hits(9, Some(40)), Code::Ok, 250),
        (hits(9, Some(0)), Code::Ok, 250),
        (hits(251, None), Code::OverLimit, 250),
        (hits(1, Some(u64::MAX)), Code::OverLimit, 250),
        (hits(250, None), Code::Ok, 0),
        (hits(1, Some(0)), Code::OverLimit, 0),
    ] {
        let answer = rls.call(asked.clone()).await?;
        ensure!(summary(&answer) == (code, vec![(code, remaining)]), "{asked:?}: {answer:?}");
    }
    Ok(())
}

#[tokio::test]
async fn what_meets_no_limit_passes_and_shadows_only_watch() -> anyhow::Result<()> {
    let (dir, sidecar) = started(LIMITS).await?;
    let rls = Rls::at(dir.path()).await?;
    let none = rls.call(request("elsewhere", &[("client", "a")])).await?;
    ensure!(summary(&none) == (Code::Ok, vec![(Code::Ok, 0)]), "{none:?}");
    ensure!(none.statuses[0].current_limit.is_none(), "{none:?}");
    let free = rls.ask(&[("free", "a"), ("unknown", "b")]).await?;
    ensure!(summary(&free) == (Code::Ok, vec![(Code::Ok, u32::MAX), (Code::Ok, 0)]), "{free:?}");
    for _ in 0..3 {
        ensure!(rls.ask(&[("watched", "a")]).await?.overall_code() == Code::Ok);
    }
    let metrics = client::get(sidecar.http, "/metrics").await?;
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    for line in [
        "tidegate_total_hits_total{rule=\"test/watched\"} 3",
        "tidegate_within_limit_total{rule=\"test/watched\"} 1",
        "tidegate_over_limit_total{rule=\"test/watched\"} 2",
        "tidegate_shadow_mode_total{rule=\"test/watched\"} 2",
        "tidegate_answers_total{code=\"ok\"} 5",
        "tidegate_store_created_total 1",
    ] {
        ensure!(metrics.lines().any(|found| found == line), "no {line:?} in\n{metrics}");
    }
    Ok(())
}

#[tokio::test]
async fn requests_without_meaning_are_refused_and_the_sidecar_lives_on() -> anyhow::Result<()> {
    let (dir, sidecar) = started(LIMITS).await?;
    let rls = Rls::at(dir.path()).await?;
    let refused = |result: Result<RateLimitResponse, tonic::Status>| {
        result.err().map(|status| (status.code(), status.message().to_owned()))
    };
    let invalid = |message: &str| Some((tonic::Code::InvalidArgument, message.to_owned()));
    let no_domain = refused(rls.call(request("", &[("client", "a")])).await);
    ensure!(no_domain == invalid("rate limit domain must not be empty"), "{no_domain:?}");
    let nothing = refused(rls.ask(&[]).await);
    ensure!(nothing == invalid("rate limit descriptor list must not be empty"), "{nothing:?}");
    let long = "x".repeat(5 * 1024 * 1024);
    ensure!(rls.ask(&[("client", &long)]).await.is_err(), "a request of 5 MiB is too large");

    // Bytes that are neither HTTP/2 nor anything else.
    let mut garbage = tokio::net::UnixStream::connect(Sidecar::socket(dir.path())).await?;
    garbage.write_all(&[0xff; 4096]).await?;
    let mut rest = Vec::new();
    // A reset says the same as an end.
    let _ = wait::within("an end", wait::SOON, garbage.read_to_end(&mut rest)).await?;
    ensure!(rls.ask(&[("client", "a")]).await?.overall_code() == Code::Ok);
    ensure!(client::get(sidecar.http, "/healthcheck").await?.status == 200);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_at_once_get_exactly_the_limit() -> anyhow::Result<()> {
    let (dir, _sidecar) = started(LIMITS).await?;
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(Rls::at(dir.path()).await?);
    }
    let allowed = allowed_at_once(clients, 100, ("many", "x")).await?;
    ensure!(allowed == 300, "{allowed} of 800");
    Ok(())
}

#[tokio::test]
async fn limits_are_read_again_on_sighup_and_bad_ones_are_not_put_in_force() -> anyhow::Result<()> {
    let (dir, sidecar) = started(LIMITS).await?;
    let rls = Rls::at(dir.path()).await?;
    for _ in 0..3 {
        rls.ask(&[("client", "a")]).await?;
    }
    let limits = dir.path().join("limits.yaml");
    std::fs::write(&limits, LIMITS.replace("requests_per_unit: 3 ", "requests_per_unit: 5 "))?;
    sidecar.process.signal(Signal::HUP)?;
    wait::until("the new limits", wait::RELOAD, async || {
        sidecar.process.log().contains("limits reloaded").then_some(())
    })
    .await?;
    // The three hits that were taken still count.
    let answer = rls.ask(&[("client", "a")]).await?;
    ensure!(summary(&answer) == (Code::Ok, vec![(Code::Ok, 1)]), "{answer:?}");

    std::fs::write(&limits, LIMITS.replace("unit: hour", "unit: eon"))?;
    sidecar.process.signal(Signal::HUP)?;
    wait::until("the mistakes in the log", wait::RELOAD, async || {
        let log = sidecar.process.log();
        (log.contains("limits.yaml:4:43: unknown unit") && log.contains("old ones stay in force"))
            .then_some(())
    })
    .await?;
    let answer = rls.ask(&[("client", "a")]).await?;
    ensure!(summary(&answer) == (Code::Ok, vec![(Code::Ok, 0)]), "{answer:?}");
    Ok(())
}

#[tokio::test]
async fn sigterm_drains_and_leaves_nothing_behind() -> anyhow::Result<()> {
    let (dir, mut sidecar) = started(LIMITS).await?;
    let rls = Rls::at(dir.path()).await?;
    rls.ask(&[("client", "a")]).await?;
    let status = sidecar.process.stop().await?;
    ensure!(status.success(), "{status}: {}", sidecar.process.log());
    ensure!(!Sidecar::socket(dir.path()).exists(), "the socket is still there");
    sidecar.restart().await?;
    let answer = Rls::at(dir.path()).await?.ask(&[("client", "a")]).await?;
    ensure!(summary(&answer) == (Code::Ok, vec![(Code::Ok, 1)]), "{answer:?}");
    Ok(())
}

#[tokio::test]
async fn draining_is_reported_and_a_second_signal_cuts_it_short() -> anyhow::Result<()> {
    let (dir, mut sidecar) = started(LIMITS).await?;
    let rls = Rls::at(dir.path()).await?;
    let held = rls.hold(&[("client", "a")]).await?;
    sidecar.process.signal(Signal::TERM)?;
    sidecar.reports_drain().await?;
    ensure!(!held.is_finished(), "a call under way was cut off");
    sidecar.process.signal(Signal::TERM)?;
    ensure!(sidecar.process.wait().await?.success(), "{}", sidecar.process.log());
    held.abort();
    let log = sidecar.process.log();
    let line =
        |text: &str| log.lines().find(|line| line.contains(text)).with_context(|| log.clone());
    let start = line(r#""starting","version""#)?;
    ensure!(start.contains(r#""limits":3"#) && start.contains("/data"), "{start}");
    line(r#""stopped""#)?;
    Ok(())
}

#[tokio::test]
async fn tcp_and_unix_endpoints_share_the_counters() -> anyhow::Result<()> {
    let (dir, limits) = home(LIMITS)?;
    let socket = Sidecar::socket(dir.path());
    let mut command = Command::new(artifacts::sidecar()?);
    command
        .args([
            "serve",
            "--http",
            "off",
            "--frs",
            "off",
            "--capacity",
            "1000",
            "--grpc",
            "127.0.0.1:0",
            "--grpc",
        ])
        .arg(format!("unix:{}", socket.display()))
        .arg("--limits")
        .arg(&limits)
        .arg("--data-dir")
        .arg(dir.path().join("data"));
    let mut process = Process::start(command, "sidecar", dir.path())?;
    let tcp = wait::until("both endpoints", wait::START, async || {
        let log = process.log();
        let (_, after) = log.split_once("address=\"127.0.0.1:")?;
        let port: u16 = after.split('"').next()?.parse().ok()?;
        log.contains("ready").then_some(port)
    })
    .await?;
    let tcp = Endpoint::from_shared(format!("http://127.0.0.1:{tcp}"))?.connect().await?;
    let (tcp, unix) = (Rls(tcp), Rls::at(dir.path()).await?);
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    for (client, remaining) in [(&tcp, 2), (&unix, 1), (&tcp, 0)] {
        let answer = client.ask(&[("client", "a")]).await?;
        ensure!(summary(&answer) == (Code::Ok, vec![(Code::Ok, remaining)]), "{answer:?}");
    }
    ensure!(process.stop().await?.success());
    Ok(())
}

/// Runs `tidegate` to its end.
async fn tidegate(args: &[&str]) -> anyhow::Result<(Option<i32>, String)> {
    let mut command = Command::new(artifacts::sidecar()?);
    command.args(args);
    let Ran { code, out, err } = run(command).await?;
    Ok((code, out + &err))
}

#[tokio::test]
async fn what_cannot_be_served_is_an_error_that_says_why() -> anyhow::Result<()> {
    let (dir, limits) = home(LIMITS)?;
    let bad = dir.path().join("bad.yaml");
    std::fs::write(&bad, "domain: test\ndescriptors:\n  - key: ''\n    rate_limt: {}\n")?;
    let plain = dir.path().join("plain");
    std::fs::write(&plain, "no socket")?;
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let taken = taken.local_addr()?.to_string();
    let text = |path: &Path| path.display().to_string();
    let (limits, bad, data) = (text(&limits), text(&bad), text(&dir.path().join("data")));
    let socket = format!("unix:{}", plain.display());
    let serve = |limits: &str, data: &str, grpc: &str| {
        [
            "serve",
            "--http",
            "off",
            "--frs",
            "off",
            "--limits",
            limits,
            "--data-dir",
            data,
            "--grpc",
            grpc,
        ]
        .map(str::to_owned)
        .to_vec()
    };
    let with_log = |mut args: Vec<String>| {
        args.extend(["--log".to_owned(), "verbose".to_owned()]);
        args
    };
    for (args, code, says) in [
        (serve(&bad, &data, "127.0.0.1:0"), 1, "bad.yaml:4:5: unknown key `rate_limt`"),
        (serve(&bad, &data, "127.0.0.1:0"), 1, "2 errors in the limits"),
        (serve("/none", &data, "127.0.0.1:0"), 1, "limits: /none: cannot read: No such file"),
        (serve(&limits, &limits, "127.0.0.1:0"), 1, &limits),
        (serve(&limits, &data, &taken), 1, &format!("cannot listen on {taken}")),
        (serve(&limits, &data, &socket), 1, "the path exists and is not a socket"),
        (serve(&limits, &data, "off"), 1, "--grpc off leaves nothing to serve"),
        (with_log(serve(&limits, &data, "127.0.0.1:0")), 1, "--log \"verbose\": expected off"),
        (serve(&limits, &data, "8081"), 2, "expected host:port, unix:PATH or off"),
    ] {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let (ended, said) = tidegate(&args).await?;
        ensure!(ended == Some(code) && said.contains(says), "{args:?}: {ended:?}: {said}");
    }
    ensure!(std::fs::read_to_string(&plain)? == "no socket", "the file was touched");
    ensure!(!Path::new(&data).exists(), "a start that failed has made a data directory");
    Ok(())
}

#[tokio::test]
async fn a_unix_socket_has_the_permissions_that_are_asked_for() -> anyhow::Result<()> {
    let (dir, limits) = home(LIMITS)?;
    let flags = ["--socket-mode", "0606"];
    let _sidecar = Sidecar::start_with(dir.path(), &limits, &flags).await?;
    let mode = std::fs::metadata(Sidecar::socket(dir.path()))?.permissions().mode();
    ensure!(mode & 0o777 == 0o606, "{mode:o}");
    for wrong in ["0999", "01777", "rw"] {
        let args = ["serve", "--limits", "l", "--data-dir", "d", "--socket-mode", wrong];
        let (ended, said) = tidegate(&args).await?;
        ensure!(ended == Some(2) && said.contains("octal digits"), "{wrong}: {said}");
    }
    Ok(())
}

/// As in an upgrade: the new version counts on where the old one is, before, while and after that drains
/// or dies.
#[tokio::test]
async fn sidecars_share_a_data_directory() -> anyhow::Result<()> {
    let (dir, mut first) = started(LIMITS).await?;
    let other = TempDir::new()?;
    std::os::unix::fs::symlink(dir.path().join("data"), other.path().join("data"))?;
    let second = Sidecar::start(other.path(), &dir.path().join("limits.yaml")).await?;

    let (old, new) = (Rls::at(dir.path()).await?, Rls::at(other.path()).await?);
    let mut allowed = 0;
    for _ in 0..100 {
        for client in [&old, &new] {
            let answer = client.decide(request("test", &[("many", "a")])).await?;
            allowed += u32::from(answer.overall_code() == Code::Ok);
        }
    }
    ensure!(allowed == 200, "{allowed} of 200 were allowed below a limit of 300");
    // Two at once, from here on in the middle of an update as likely as not.
    let (a, b) = tokio::join!(drain(&old, 100), drain(&new, 100));
    ensure!(a? + b? == 100, "300 less 200 were left");

    first.kill().await?;
    for (client, expected) in
        [("b", Code::Ok), ("b", Code::Ok), ("b", Code::Ok), ("b", Code::OverLimit)]
    {
        ensure!(new.ask(&[("client", client)]).await?.overall_code() == expected);
    }
    let metrics = client::get(second.http, "/metrics").await?;
    let metrics = String::from_utf8_lossy(&metrics.body);
    ensure!(metrics.contains("tidegate_store_dropped_torn_total 0"), "{metrics}");
    Ok(())
}

/// Makes this many calls about one counter, and counts the allowed ones.
async fn drain(client: &Rls, times: u32) -> anyhow::Result<u32> {
    let mut allowed = 0;
    for _ in 0..times {
        let answer = client.decide(request("test", &[("many", "a")])).await?;
        allowed += u32::from(answer.overall_code() == Code::Ok);
    }
    Ok(allowed)
}

const EVICTED_TWO: &str = "tidegate_store_evicted_live_total 2";

/// With room for one counter, the policy says whose limit holds.
#[tokio::test]
async fn a_full_store_refuses_new_counters_or_forgets_those_that_expire_soonest()
-> anyhow::Result<()> {
    for (policy, second, first_again, count) in [
        ("refuse", None, Code::OverLimit, "tidegate_store_refused_total 1"),
        ("evict-soonest-expiry", Some(Code::Ok), Code::Ok, EVICTED_TWO),
        // The name that it had before.
        ("evict-oldest", Some(Code::Ok), Code::Ok, EVICTED_TWO),
    ] {
        let (dir, limits) = home(LIMITS)?;
        let flags = ["--geometry", "1x1x1", "--eviction", policy];
        let sidecar = Sidecar::start_with(dir.path(), &limits, &flags).await?;
        wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
        let rls = Rls::at(dir.path()).await?;
        for _ in 0..3 {
            ensure!(rls.ask(&[("client", "a")]).await?.overall_code() == Code::Ok);
        }
        match (rls.ask(&[("client", "b")]).await, second) {
            (Ok(answer), Some(code)) => ensure!(answer.overall_code() == code),
            (Err(status), None) => {
                ensure!(status.code() == tonic::Code::ResourceExhausted, "{status:?}");
                ensure!(status.message().contains("no room for key"), "{status:?}");
            }
            (found, expected) => anyhow::bail!("{policy}: {found:?}, expected {expected:?}"),
        }
        ensure!(rls.ask(&[("client", "a")]).await?.overall_code() == first_again, "{policy}");
        let metrics = client::get(sidecar.http, "/metrics").await?;
        let metrics = String::from_utf8_lossy(&metrics.body);
        ensure!(metrics.lines().any(|line| line == count), "{policy}: no {count:?} in {metrics}");
        let full = "tidegate_store_chains{class=\"narrow\",length=\"1\"} 1";
        ensure!(metrics.lines().any(|line| line == full), "{policy}: no {full:?} in {metrics}");
    }
    Ok(())
}

/// A file that is cut short under a running sidecar would end it with SIGBUS; it stays up, says what
/// is wrong, and answers nothing that it cannot know.
#[tokio::test]
async fn a_file_cut_short_is_an_error_and_not_the_end() -> anyhow::Result<()> {
    let (dir, mut sidecar) = started(LIMITS).await?;
    let rls = Rls::at(dir.path()).await?;
    ensure!(rls.ask(&[("client", "a")]).await?.overall_code() == Code::Ok);
    let nodes = memory::of(&dir.path().join("data"))?.join("narrow-000.tide");
    std::fs::OpenOptions::new().write(true).open(&nodes)?.set_len(4096)?;
    let error = rls.ask(&[("client", "a")]).await.expect_err("an answer without its counter");
    ensure!(error.message().contains("truncated"), "{error:?}");
    wait::until("the health check to fail", wait::CHECK, async || {
        let health = client::get(sidecar.http, "/healthcheck").await.ok()?;
        (health.status == 500).then_some(())
    })
    .await?;
    sidecar.process.check_running()?;
    let said = wait::until("a word in the log", wait::CHECK, async || {
        let log = sidecar.process.log();
        log.contains("no request can be decided").then_some(log)
    })
    .await?;
    ensure!(said.contains("a file in memory was cut short"), "{said}");
    Ok(())
}

#[tokio::test]
async fn check_exits_by_what_it_finds() -> anyhow::Result<()> {
    let (dir, limits) = home(LIMITS)?;
    let limits = limits.display().to_string();
    let (code, said) = tidegate(&["check", &limits]).await?;
    ensure!((code, said.as_str()) == (Some(0), "ok: 3 limits in 1 domain (test)\n"), "{said}");
    let bad = dir.path().join("bad.yaml").display().to_string();
    std::fs::write(&bad, "domain: ''")?;
    let (code, said) = tidegate(&["check", &bad]).await?;
    let expected = format!("{bad}:1:9: `domain` is required and must not be empty\n");
    ensure!(code == Some(1) && said.starts_with(&expected), "{said}");
    let (code, said) = tidegate(&[]).await?;
    ensure!(code == Some(2) && said.contains("Examples:"), "{said}");
    Ok(())
}
