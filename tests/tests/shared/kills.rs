//! Sidecars that are killed under load, again and again, beside one that lives.
//!
//! `TIDEGATE_KILLS` is the number of kills, a few if it is not set. Prints what was stranded.

use crate::scene::{Scene, is_up};
use anyhow::{Context, ensure};
use std::time::Duration;
use tidegate_tests::rls::Rls;
use tidegate_tests::service::Service;
use tidegate_tests::shared_servers::RedisOptions;
use tidegate_tests::wait;
use tidegate_wire::rls::Code;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// A limit that outlives the test, and two that recover in two seconds.
const LIMITS: &str = "  - key: long
    rate_limit: { unit: day, requests_per_unit: 100 }
  - key: window
    rate_limit: { requests: 200, period: 2s }
  - key: bucket
    rate_limit: { algorithm: token_bucket, requests: 200, period: 2s }
";
const LONG: u32 = 100;
const SHORT: u32 = 200;
const CLIENTS: u32 = 4;
/// What one refill takes at most: what all clients wait for, and a quarter of the limit ahead.
const STRANDED_MAX: u32 = CLIENTS + LONG / 4;
const KILLS: u32 = 3;

/// What became of the hits of a round.
#[derive(Debug, Clone, Copy)]
struct Round {
    /// Allowed to a client before the kill.
    acknowledged: u32,
    /// Allowed to nobody: of requests whose answers were lost, and of a refill that was.
    missing: u32,
}

/// Asks until the sidecar ends or denies. Counts the hits that were allowed.
async fn load(rls: Rls, value: String, allowed: watch::Sender<u32>) {
    let about = [("long", &*value), ("window", &*value), ("bucket", &*value)];
    while let Ok(answer) = rls.ask(&about).await
        && answer.overall_code() == Code::Ok
    {
        allowed.send_modify(|allowed| *allowed += 1);
    }
}

/// The hits that a sidecar still allows.
async fn rest(sidecar: &Service, value: &str) -> anyhow::Result<u32> {
    let mut allowed = 0;
    while sidecar.rls.ask(&[("long", value)]).await?.overall_code() == Code::Ok {
        allowed += 1;
        ensure!(allowed <= LONG, "more than the limit");
    }
    Ok(allowed)
}

/// Kills a sidecar after so many hits of this value, and has both sidecars admit the rest.
async fn round(
    killed: &mut Service,
    other: &Service,
    value: &str,
    after: u32,
) -> anyhow::Result<Round> {
    let (allowed, mut seen) = watch::channel(0);
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let rls = Rls::at(killed.dir()).await?;
        clients.spawn(load(rls, value.to_owned(), allowed.clone()));
    }
    wait::within("hits", wait::RETRY, seen.wait_for(|allowed| *allowed >= after)).await??;
    killed.sidecar.kill().await?;
    wait::within("the clients", wait::RETRY, clients.join_all()).await?;
    let acknowledged = *allowed.borrow();
    killed.sidecar.restart().await?;
    is_up(killed, true).await?;
    killed.rls = Rls::at(killed.dir()).await?;
    let later = rest(killed, value).await? + rest(other, value).await?;
    let missing = LONG.checked_sub(acknowledged + later);
    let missing = missing.with_context(|| {
        format!("{value}: {acknowledged} and {later} of {LONG} were allowed, killed after {after}")
    })?;
    ensure!(
        missing <= CLIENTS + STRANDED_MAX,
        "{value}: {acknowledged} and {later} of {LONG}, {missing} are missing, killed after {after}"
    );
    Ok(Round { acknowledged, missing })
}

/// No hit that a client knows of is forgotten, and what is stranded ends with its window.
#[tokio::test]
async fn kills_lose_no_hit_and_strand_no_token_for_longer_than_its_window() -> anyhow::Result<()> {
    let Some(scene) = Scene::start(RedisOptions::default()).await? else { return Ok(()) };
    let kills = match std::env::var("TIDEGATE_KILLS") {
        Ok(kills) => kills.parse()?,
        Err(_) => KILLS,
    };
    let url = format!("redis://{}", scene.redis.address());
    // A busy machine may take long to answer, and hits that a failure rule allows are none of the limit.
    let flags = ["--authority", &url, "--authority-timeout", "5s", "--authority-failure", "deny"];
    let mut killed = Service::start(LIMITS, &flags).await?;
    let other = Service::start(LIMITS, &flags).await?;
    is_up(&killed, true).await?;
    is_up(&other, true).await?;
    let mut rounds = Vec::new();
    for number in 0..kills {
        // Any number of hits up to nine tenths, in an order without pattern.
        let after = 1 + number.wrapping_mul(2_654_435_761) % (LONG * 9 / 10);
        rounds.push(round(&mut killed, &other, &number.to_string(), after).await?);
    }
    for number in 0..kills {
        for key in ["window", "bucket"] {
            let value = number.to_string();
            let all = format!("all of {key} {value}");
            // A peek: looks that count spend as fast as the bucket refills.
            let peek = format!("{key}={value} +0");
            wait::until(&all, Duration::from_secs(20), async || {
                let answer = other.ask(&peek).await.ok()?;
                (answer.statuses.first()?.limit_remaining == SHORT).then_some(())
            })
            .await?;
        }
    }
    let sum = |of: fn(&Round) -> u32| rounds.iter().map(of).sum::<u32>();
    let with = rounds.iter().filter(|round| round.missing > 0).count();
    let most = rounds.iter().map(|round| round.missing).max().unwrap_or(0);
    println!(
        "{kills} kills: {} hits acknowledged before them; {} were allowed to nobody, after {with} kills, at most {most} \
         after one",
        sum(|round| round.acknowledged),
        sum(|round| round.missing),
    );
    Ok(())
}
