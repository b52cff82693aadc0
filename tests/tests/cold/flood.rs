//! Clients that invent keys.

use crate::scene::{RULES, Scene, database};
use anyhow::{Context, ensure};
use std::time::Instant;
use tidegate_sql::testing::Kind;
use tidegate_tests::rls::{Rls, request};
use tidegate_tests::wait;
use tidegate_wire::rls::{Code, RateLimitRequest, RateLimitResponse};
use tokio::task::JoinSet;
use tonic::Code as Status;

const INVENTED: u32 = 200_000;
/// Half of what there is room for.
const FEW: u32 = 2_500;
const CLIENTS: u32 = 4;
/// Invented keys of a call: a client can send as many.
const PER_CALL: u32 = 50;
const HONEST: u32 = 100;
/// The counter that honest clients use.
const LIMIT: u32 = RULES[0].limit;
/// Memory for 200,000 invented keys would be more.
const GROWTH_MAX: u64 = 24 << 20;

fn about_invented(first: u32) -> RateLimitRequest {
    let values: Vec<String> =
        (first..first + PER_CALL).map(|number| format!("x{number}")).collect();
    let about: Vec<(&str, &str)> = values.iter().map(|value| ("month", &**value)).collect();
    request("test", &about)
}

/// Asks until it is decided. Returns how often there was no room.
async fn insist(rls: &Rls, asked: RateLimitRequest) -> anyhow::Result<(RateLimitResponse, u64)> {
    let deciding = async {
        let (mut looks, mut refused) = (wait::looks(), 0);
        loop {
            looks.tick().await;
            match rls.call(asked.clone()).await {
                Ok(answer) => return Ok((answer, refused)),
                Err(status)
                    if matches!(status.code(), Status::Aborted | Status::ResourceExhausted) =>
                {
                    refused += 1;
                }
                Err(status) => return Err(status),
            }
        }
    };
    Ok(wait::within("room for a counter", wait::RETRY, deciding).await??)
}

/// Takes a hit of each honest counter. Returns how often there was no room.
async fn honest(rls: &Rls) -> anyhow::Result<u64> {
    let mut all = 0;
    for number in 0..HONEST {
        let asked = request("test", &[("day", &number.to_string())]);
        let (answer, refused) = insist(rls, asked).await?;
        ensure!(answer.overall_code() == Code::Ok, "{number}: {answer:?}");
        all += refused;
    }
    Ok(all)
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
    let scene = Scene::start(&urls, &["--capacity", "5000"]).await?;
    let rls = Rls::at(scene.dir()).await?;
    honest(&rls).await?;
    honest(&rls).await?;
    let before = scene.until_moved("honest ones to be idle", |moved| moved.moved >= 100).await?;
    honest(&rls).await?;
    // While there is room, only counters move that were used more than once.
    for first in (0..FEW).step_by(PER_CALL as usize) {
        insist(&rls, about_invented(INVENTED + first)).await?;
    }
    let after = scene.until_moved("honest ones to be idle again", |moved| {
        moved.moved >= before.moved + u64::from(HONEST)
    });
    let after = after.await?;
    let others = after.moved - before.moved - u64::from(HONEST);
    // Of two keys that share a byte of heat, both seem to be used twice: one in ten, with two bytes a node.
    ensure!(others < u64::from(FEW) / 5, "{others} invented keys have a row");
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
    let mut without_room = 0;
    for _ in 5..LIMIT {
        without_room += honest(&rls).await?;
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
        "{decided} calls decided, {refused} refused in {:?}; {moved:?}; {grown} bytes more; honest ones waited \
         {without_room} times for room",
        began.elapsed()
    );
    for number in 0..HONEST {
        let value = number.to_string();
        let mut peek = request("test", &[("day", &value)]);
        peek.descriptors[0].hits_addend = Some(0);
        let (answer, _) = insist(&rls, peek).await?;
        ensure!(answer.statuses[0].limit_remaining == 1, "{number}: {answer:?}");
    }
    ensure!(decided > 0 && grown < GROWTH_MAX, "{grown}");
    ensure!(moved.moved > after.moved && refused > 0, "the flood is more than there is room for");
    Ok(())
}
