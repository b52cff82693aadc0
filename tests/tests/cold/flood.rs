//! Clients that invent keys.

use crate::scene::{RULES, Scene, database};
use anyhow::{Context, ensure};
use std::time::Instant;
use tidegate_sql::testing::Kind;
use tidegate_tests::rls::{Rls, request};
use tidegate_wire::rls::{Code, RateLimitRequest};
use tokio::task::JoinSet;

const INVENTED: u32 = 200_000;
const CLIENTS: u32 = 4;
/// Invented keys of a call: a client can send as many.
const PER_CALL: u32 = 50;
const HONEST: u32 = 100;
/// The counter that honest clients use.
const LIMIT: u32 = RULES[0].limit;
/// Memory for 200,000 invented keys would be more.
const GROWTH_MAX: u64 = 24 << 20;

fn about_invented(first: u32) -> RateLimitRequest {
    let values: Vec<String> = (first..first + PER_CALL).map(|number| format!("x{number}")).collect();
    let about: Vec<(&str, &str)> = values.iter().map(|value| ("month", &**value)).collect();
    request("test", &about)
}

/// Takes a hit of each honest counter.
async fn honest(rls: &Rls) -> anyhow::Result<()> {
    for number in 0..HONEST {
        let answer = rls.decide(request("test", &[("day", &number.to_string())])).await?;
        ensure!(answer.overall_code() == Code::Ok, "{number}: {answer:?}");
    }
    Ok(())
}

/// The memory of a process that is no file's, in bytes.
fn anonymous(pid: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kilobytes = status.lines().find_map(|line| {
        line.strip_prefix("RssAnon:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    });
    Ok(kilobytes.context("no RssAnon")? * 1024)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_invented_keys_moves_few_counters_and_forgets_none() -> anyhow::Result<()> {
    let Some((_server, urls)) = database(Kind::Sqlite).await else { return Ok(()) };
    let scene = Scene::start(&urls, &["--capacity", "5000", "--cold-moves", "2000"]).await?;
    let rls = Rls::at(scene.dir()).await?;
    honest(&rls).await?;
    honest(&rls).await?;
    let before = scene.until_moved("honest ones to be idle", |moved| moved.moved >= 100).await?;
    honest(&rls).await?;
    let memory = anonymous(scene.sidecar.process.pid()?)?;
    let began = Instant::now();
    let mut flood = JoinSet::new();
    for client in 0..CLIENTS {
        let rls = Rls::at(scene.dir()).await?;
        flood.spawn(async move {
            let (mut decided, mut refused) = (0_u64, 0_u64);
            let own = INVENTED / CLIENTS;
            for first in (client * own..(client + 1) * own).step_by(PER_CALL as usize) {
                match rls.call(about_invented(first)).await {
                    Ok(_) => decided += 1,
                    // There is no room for them.
                    Err(_) => refused += 1,
                }
            }
            (decided, refused)
        });
    }
    // Meanwhile honest ones take what they have left but one.
    for _ in 4..LIMIT {
        honest(&rls).await?;
    }
    let (mut decided, mut refused) = (0, 0);
    while let Some(client) = flood.join_next().await {
        let (some, others) = client?;
        decided += some;
        refused += others;
    }
    let moved = scene.moved().await?;
    let grown = anonymous(scene.sidecar.process.pid()?)?.saturating_sub(memory);
    println!(
        "{decided} calls decided, {refused} refused in {:?}; {moved:?}; {grown} bytes more",
        began.elapsed()
    );
    for number in 0..HONEST {
        let value = number.to_string();
        let mut peek = request("test", &[("day", &value)]);
        peek.descriptors[0].hits_addend = Some(0);
        let answer = rls.decide(peek).await?;
        ensure!(answer.statuses[0].limit_remaining == 1, "{number}: {answer:?}");
    }
    ensure!(decided > 0 && grown < GROWTH_MAX, "{grown}");
    let rows = moved.moved - before.moved;
    ensure!(rows < u64::from(INVENTED) / 4, "{rows} moved");
    Ok(())
}
