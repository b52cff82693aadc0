//! The cold counters of a data directory, in its databases.

use crate::arguments::cold::ColdPlaces;
use anyhow::Context;
use std::path::Path;
use std::sync::Arc;
use tidegate_authority::clock;
use tidegate_cold::{Cold, ColdError, Row, Size};
use tidegate_core::Timestamp;
use tidegate_store::{Entry, Hashed, View};
use tidegate_tiers::look;
use tokio::runtime::{Builder, Runtime};

const SECOND: u64 = 1_000_000_000;

/// The databases, and what their operations run in.
pub(crate) struct ColdRows {
    pub(crate) cold: Arc<Cold>,
    runtime: Runtime,
}

/// How much a database has of a data directory, or why it does not say.
pub(crate) type ShardSize = (String, Result<Size, String>);

impl ColdRows {
    /// Those of a data directory; none if all its counters are in memory.
    pub(crate) fn of(
        dir: &Path,
        view: &View,
        places: &ColdPlaces,
    ) -> anyhow::Result<Option<ColdRows>> {
        let Some(settings) = places.databases(dir)? else { return Ok(None) };
        let cold = Arc::new(Cold::open(&settings, view.id())?);
        let runtime = Builder::new_current_thread().enable_all().build();
        Ok(Some(ColdRows { cold, runtime: runtime.context("cannot start a runtime")? }))
    }

    /// The entry of a counter that is not in memory.
    pub(crate) fn find(
        &self,
        key: &Hashed,
        view: &View,
        now: Timestamp,
    ) -> anyhow::Result<Option<Entry>> {
        if is_known_absent(key, view, now)? {
            return Ok(None);
        }
        let row = self.runtime.block_on(look::row(&*self.cold, key, secs(now)));
        let row = row.context("--cold")?;
        Ok(row.map(|row| entry_of(&row, view)))
    }

    /// Calls `visit` with each counter that is in a database and not in memory.
    pub(crate) fn for_each(
        &self,
        view: &View,
        now: Timestamp,
        mut visit: impl FnMut(&Hashed, &Entry) -> std::io::Result<()>,
    ) -> anyhow::Result<()> {
        for shard in 0..self.cold.shards() {
            let mut after = None;
            loop {
                let page = self.runtime.block_on(self.cold.page(shard, after, secs(now)));
                let page = page.context("--cold")?;
                for row in &page.rows {
                    let is_hot = view.find(&row.key, now.as_nanos())?.is_some();
                    if !is_hot && !is_known_absent(&row.key, view, now)? {
                        visit(&row.key, &entry_of(row, view))?;
                    }
                }
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Removes all rows. Returns how many there were.
    pub(crate) fn erase(&self) -> anyhow::Result<u64> {
        let (now, mut erased) = (secs(clock::now()), 0);
        for shard in 0..self.cold.shards() {
            let mut after = None;
            loop {
                let erasing = async {
                    let page = self.cold.page(shard, after, now).await?;
                    let all: Vec<(Hashed, u32)> =
                        page.rows.iter().map(|row| (row.key, u32::MAX)).collect();
                    let removed = self.cold.remove(shard, &all, now).await?;
                    Ok::<_, ColdError>((removed, page.next))
                };
                let (removed, next) = self.runtime.block_on(erasing).context("--cold")?;
                (erased, after) = (erased + removed, next);
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(erased)
    }

    pub(crate) fn sizes(&self) -> Vec<ShardSize> {
        let size = |shard| {
            let size = self.runtime.block_on(self.cold.size(shard));
            (self.cold.name(shard).to_owned(), size.map_err(|error| error.to_string()))
        };
        (0..self.cold.shards()).map(size).collect()
    }
}

/// Whether it is known that no row of a counter which is not hot counts.
fn is_known_absent(key: &Hashed, view: &View, now: Timestamp) -> anyhow::Result<bool> {
    let record = look::key_of_record(view.seed(), key);
    Ok(look::is_absent(view.find(&record, now.as_nanos())?.as_ref()))
}

/// With all words that a node of its class has.
fn entry_of(row: &Row, view: &View) -> Entry {
    let words = view.geometry(row.key.class).map_or(0, |geometry| geometry.state_words() as usize);
    let mut entry = Entry::new(&row.state, u64::from(row.expires_at) * SECOND);
    entry.state.resize(words.max(row.state.len()), 0);
    entry
}

fn secs(now: Timestamp) -> u32 {
    u32::try_from(now.as_nanos() / SECOND).unwrap_or(u32::MAX)
}
