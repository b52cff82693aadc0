//! Rows of counters that were counted long ago, written before a sidecar knows the databases.

use crate::scene::RULES;
use anyhow::{Context, bail, ensure};
use std::path::Path;
use std::sync::Arc;
use tidegate_authority::{Hashing, clock, counter_keys};
use tidegate_cold::{Cold, Row, Settings};
use tidegate_core::{Charge, Entry, Hits, Identity, Timestamp, decide};
use tidegate_limits::{Limit, Lookup, Match, Rules, SameDomain, load};
use tidegate_store::{Class, Hashed, View};
use tokio::task::JoinSet;

/// The rows of one transaction. They are in the order of their buckets, so each bucket is written once or twice.
const ROWS: usize = 10_000;
/// As a sidecar has it for so many counters.
const PER_BUCKET: u64 = 24;
const SECOND: u64 = 1_000_000_000;

/// A counter, by the index of its rule and a number, and the hits that it has counted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counted {
    pub(crate) rule: usize,
    pub(crate) number: u32,
    pub(crate) count: u32,
}

/// Writes them to their databases, as a sidecar on this data directory would have done.
pub(crate) async fn write(
    dir: &Path,
    urls: &[String],
    counters: impl ExactSizeIterator<Item = Counted>,
) -> anyhow::Result<()> {
    let view = View::open(&dir.join("data"))?;
    let limits = load(&dir.join("limits.yaml"), SameDomain::Refuse)?.rules;
    let each = counters.len() as u64 / urls.len() as u64;
    let urls = urls.iter().map(|url| match url.strip_prefix("sqlite:") {
        Some(path) => tidegate_sql::sqlite_url(path.as_ref()),
        None => url.clone(),
    });
    let bits = (each / PER_BUCKET).max(256).ilog2();
    let settings = Settings { buckets_log2: bits.try_into()?, ..Settings::new(urls) };
    let cold = Arc::new(Cold::open(&settings, view.id())?);
    let now = clock::now();
    let states = Arc::new(states(&limits, now)?);
    // The key, the rule and the count of each.
    let mut all = Vec::with_capacity(counters.len());
    for Counted { rule, number, count } in counters {
        let key = key(&limits, view.seed(), (rule, number), now)?;
        all.push((key.hash, rule as u8, count as u8));
    }
    all.sort_unstable();
    let all = Arc::new(all);
    let mut writing = JoinSet::new();
    for shard in 0..cold.shards() {
        let (cold, states, all) = (cold.clone(), states.clone(), all.clone());
        writing.spawn(async move {
            let secs = u32::try_from(now.as_nanos() / SECOND)?;
            let mut rows = Vec::with_capacity(ROWS);
            for (hash, rule, count) in &*all {
                let key = Hashed::narrow(*hash);
                if cold.shard_of(&key) == shard {
                    let of = &states[usize::from(*rule)][usize::from(*count)];
                    rows.push(Row { key, moved_at: secs, ..of.clone() });
                }
                if rows.len() == ROWS {
                    cold.put(shard, &rows, secs).await?;
                    rows.clear();
                }
            }
            cold.put(shard, &rows, secs).await?;
            anyhow::Ok(())
        });
    }
    while let Some(written) = writing.join_next().await {
        written??;
    }
    Ok(())
}

/// The key of a counter.
fn key(
    limits: &Rules,
    seed: u64,
    (rule, number): (usize, u32),
    now: Timestamp,
) -> anyhow::Result<Hashed> {
    let entries = [Entry::new(RULES[rule].key, number.to_string())];
    let (found, limit) = limit_of(limits, &entries)?;
    let (shared, quota, label) = (&found.shared, &limit.quota, &limit.label);
    let of = Identity { domain: "test", entries: &entries, shared, quota, label };
    let keys = counter_keys(Hashing::undivided(seed).hash(&of, [quota]), quota, seed, now);
    match keys[..] {
        [key] if key.class == Class::Narrow => Ok(key),
        _ => bail!("{entries:?} has more than a narrow counter"),
    }
}

/// The one limit that a descriptor has.
fn limit_of<'l>(limits: &'l Rules, entries: &[Entry]) -> anyhow::Result<(Match<'l>, &'l Limit)> {
    match limits.find("test", entries) {
        Lookup::Rule(found) => {
            let limit = found.rule.limits().first().context("a limit")?;
            Ok((found, limit))
        }
        _ => bail!("no rule of {entries:?}"),
    }
}

/// Rows of each narrow rule with each count, but for their keys.
fn states(limits: &Rules, now: Timestamp) -> anyhow::Result<Vec<Vec<Row>>> {
    let mut all = Vec::new();
    for rule in RULES.iter().take(crate::scene::WIDE) {
        let entries = [Entry::new(rule.key, "any")];
        let (_, limit) = limit_of(limits, &entries)?;
        let mut of_rule = Vec::new();
        for count in 0..=rule.limit {
            let mut state = [0; 4];
            let hits = Charge::Take(Hits::new(count.into()));
            let decision = decide(&mut state, &limit.quota, hits, now);
            ensure!(decision.is_allow() || count == 0, "{count} of {rule:?}");
            let expires_at = u32::try_from(decision.keep_until.as_nanos().div_ceil(SECOND))?;
            let (key, state) = (Hashed::narrow(0), state.into_iter().collect());
            of_rule.push(Row { key, state, expires_at, moved_at: 0 });
        }
        all.push(of_rule);
    }
    Ok(all)
}
