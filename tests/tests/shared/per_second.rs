//! Limits per second in servers of their own.

use crate::scene::{clients, is_up, says};
use anyhow::ensure;
use std::time::Duration;
use tempfile::TempDir;
use tidegate_tests::rls::allowed_at_once;
use tidegate_tests::service::Service;
use tidegate_tests::shared_servers::{
    Memcached, MemcachedProgram, Redis, RedisOptions, RedisPrograms,
};
use tidegate_tests::wait;
use tidegate_wire::rls::Code;

const LIMITS: &str = "  - key: second
    rate_limit: { unit: second, requests_per_unit: 1000000 }
  - key: few_a_second
    rate_limit: { unit: second, requests_per_unit: 5 }
  - key: hour
    rate_limit: { unit: hour, requests_per_unit: 10 }
  - key: debit
    rate_limits: [ { unit: hour, requests_per_unit: 4, count_denied: true } ]
  - key: debit_a_second
    rate_limits: [ { unit: second, requests_per_unit: 1000000, count_denied: true } ]
";

/// The counters of a Redis, without the seed and the wide states of the register.
async fn keys(redis: &Redis) -> anyhow::Result<u32> {
    let count = "local count = 0 for _, key in ipairs(redis.call('KEYS', 'tidegate:*')) do \
        if #key == #'tidegate:' + 16 then count = count + 1 end end return count";
    Ok(redis.command(&["EVAL", count, "0"]).await?.parse()?)
}

async fn two() -> anyhow::Result<Option<(Redis, Redis, [TempDir; 2])>> {
    let Some(programs) = RedisPrograms::find()? else { return Ok(None) };
    let dirs = [TempDir::new()?, TempDir::new()?];
    let main = Redis::start(&programs, dirs[0].path(), RedisOptions::default()).await?;
    let second = Redis::start(&programs, dirs[1].path(), RedisOptions::default()).await?;
    Ok(Some((main, second, dirs)))
}

async fn on(main: &str, second: &str) -> anyhow::Result<Service> {
    let flags = ["--authority", main, "--authority-timeout", "2s", "--authority-failure", "deny"];
    let flags = [&flags[..], &["--authority-per-second", second]].concat();
    let sidecar = Service::start(LIMITS, &flags).await?;
    is_up(&sidecar, true).await?;
    sidecar.until_metric("tidegate_shared_per_second_up 1").await?;
    Ok(sidecar)
}

#[tokio::test]
async fn counters_per_second_are_in_servers_of_their_own() -> anyhow::Result<()> {
    let Some((main, second, _dirs)) = two().await? else { return Ok(()) };
    let urls = [&main, &second].map(|redis| format!("redis://{}", redis.address()));
    let (one, other) = (on(&urls[0], &urls[1]).await?, on(&urls[0], &urls[1]).await?);
    let ask = async |about: &[(&str, &str)]| anyhow::Ok(one.rls.ask(about).await?.overall_code());
    ensure!(ask(&[("second", "a")]).await? == Code::Ok);
    ensure!((keys(&main).await?, keys(&second).await? > 0) == (0, true));
    let before = keys(&second).await?;
    ensure!(ask(&[("hour", "a")]).await? == Code::Ok);
    ensure!(keys(&main).await? > 0 && keys(&second).await? <= before);
    // Both sidecars and both kinds in one request: none takes hits if one has none left.
    let mut allowed = 1;
    for _ in 0..10 {
        for sidecar in [&one, &other] {
            let both = [("hour", "a"), ("second", "b")];
            allowed += u32::from(sidecar.rls.ask(&both).await?.overall_code() == Code::Ok);
        }
    }
    ensure!(allowed == 10, "{allowed} of 10");
    // The same where only the servers decide.
    let mut allowed = 0;
    for _ in 0..6 {
        allowed += u32::from(ask(&[("debit", "a"), ("debit_a_second", "a")]).await? == Code::Ok);
    }
    ensure!(allowed == 4, "{allowed} of 4");
    one.expect_metric("tidegate_shared_per_second_up 1").await?;
    Ok(())
}

#[tokio::test]
async fn a_limit_per_second_holds_over_sidecars() -> anyhow::Result<()> {
    let Some((main, second, _dirs)) = two().await? else { return Ok(()) };
    let urls = [&main, &second].map(|redis| format!("redis://{}", redis.address()));
    let (one, other) = (on(&urls[0], &urls[1]).await?, on(&urls[0], &urls[1]).await?);
    let start = std::time::Instant::now();
    let clients = clients(&[&one, &other], 2).await?;
    let allowed = allowed_at_once(clients, 50, ("few_a_second", "a")).await?;
    // The windows that this has touched.
    let most = 5 * (u32::try_from(start.elapsed().as_secs())? + 2);
    ensure!((5..=most).contains(&allowed), "{allowed} of 5 to {most}");
    Ok(())
}

/// Either set may be away; the other one counts on.
#[tokio::test]
async fn servers_per_second_fail_by_themselves() -> anyhow::Result<()> {
    let Some((mut main, mut second, _dirs)) = two().await? else { return Ok(()) };
    let urls = [&main, &second].map(|redis| format!("redis://{}", redis.address()));
    let sidecar = on(&urls[0], &urls[1]).await?;
    let code = async |key: &str, value: &str| {
        anyhow::Ok(sidecar.rls.ask(&[(key, value)]).await?.overall_code())
    };
    second.kill().await?;
    sidecar.until_metric("tidegate_shared_per_second_up 0").await?;
    ensure!(code("second", "a").await? == Code::OverLimit);
    ensure!(code("hour", "a").await? == Code::Ok);
    says(&sidecar, "of limits per second").await?;
    second.restart().await?;
    is_up(&sidecar, true).await?;
    main.kill().await?;
    is_up(&sidecar, false).await?;
    sidecar.expect_metric("tidegate_shared_per_second_up 1").await?;
    ensure!(code("hour", "b").await? == Code::OverLimit);
    wait::until("a denial to be over", Duration::from_secs(5), async || {
        (code("second", "a").await.ok()? == Code::Ok).then_some(())
    })
    .await?;
    main.restart().await
}

/// The kinds of servers need not be the same.
#[tokio::test]
async fn memcached_may_have_the_limits_per_second() -> anyhow::Result<()> {
    let (Some(programs), Some(program)) = (RedisPrograms::find()?, MemcachedProgram::find()?)
    else {
        return Ok(());
    };
    let dir = TempDir::new()?;
    let main = Redis::start(&programs, dir.path(), RedisOptions::default()).await?;
    let second = Memcached::start(&program, dir.path(), &[]).await?;
    let urls = (format!("redis://{}", main.address()), format!("memcached://{}", second.address()));
    let sidecar = on(&urls.0, &urls.1).await?;
    let mut allowed = 0;
    for _ in 0..6 {
        let both = [("debit", "a"), ("debit_a_second", "a"), ("hour", "b"), ("second", "b")];
        allowed += u32::from(sidecar.rls.ask(&both).await?.overall_code() == Code::Ok);
    }
    ensure!(allowed == 4, "{allowed} of 4");
    ensure!(keys(&main).await? == 2, "one of each limit per hour, which is decided directly");
    Ok(())
}
