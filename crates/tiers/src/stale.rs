//! Stale rows: those of counters that came back, and those that could not be read when their counters began anew. The first
//! are removed once the snapshot has their counters, the others as soon as their shard answers, and then the records that say
//! so.
//!
//! Done by the thread that moves, some rows at a time while no pass is due. Counters that move come first: they make room in
//! memory, and their rows replace stale ones. A stale row that stays for longer costs nothing but its space.

use crate::mover::{ROWS, now_secs};
use crate::record::Record;
use crate::rows::Away;
use crate::tally::add;
use crate::tiered::Inner;
use std::sync::Arc;
use tidegate_store::Hashed;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

/// The stale rows that the last pass has found: their keys, and the version up to which they are stale.
#[derive(Default)]
pub(crate) struct Stale(Vec<(Hashed, u32)>);

impl Stale {
    pub(crate) fn found(&mut self, stale: Vec<(Hashed, u32)>) {
        self.0 = stale;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes some from all shards at once. Those of a shard that does not do it are found again by the next pass.
    pub(crate) fn remove_some(&mut self, inner: &Arc<Inner>, runtime: &Handle) -> Result<(), Away> {
        let stale = self.0.split_off(self.0.len().saturating_sub(ROWS));
        runtime.block_on(remove_rows(inner, &stale))?;
        for (key, version) in &stale {
            let gone = inner.with_record(key, |_, entries, _| {
                let record = entries.get(1);
                // It may have moved since, or come back once more.
                if let Some((_, Record::Fetched { moved_at, .. })) = Record::read(record.state)
                    && moved_at == *version
                {
                    record.state.fill(0);
                }
            });
            if gone.is_ok() {
                add(&inner.tally.removed, 1);
            }
        }
        Ok(())
    }
}

async fn remove_rows(inner: &Arc<Inner>, stale: &[(Hashed, u32)]) -> Result<(), Away> {
    let mut removing = JoinSet::new();
    for (shard, filter) in inner.filters.iter().enumerate() {
        let may_have = stale.iter().filter(|(key, _)| filter.may_have(key)).copied();
        let keys: Vec<(Hashed, u32)> = may_have.collect();
        if !keys.is_empty() {
            let rows = inner.rows.clone();
            removing.spawn(async move { (shard, rows.remove(shard, &keys, now_secs()).await) });
        }
    }
    let mut done = Ok(());
    while let Some(removed) = removing.join_next().await {
        let (shard, removed) = removed.map_err(|error| Away(error.to_string()))?;
        if let Err(away) = inner.noted(shard, removed) {
            done = Err(away);
        }
    }
    done
}
