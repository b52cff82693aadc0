//! The cold counters of a data directory, in its databases and its warm server.

use crate::arguments::cold::ColdPlaces;
use anyhow::Context;
use std::path::Path;
use std::sync::Arc;
use tidegate_authority::clock;
use tidegate_cold::{Row, Size};
use tidegate_core::Timestamp;
use tidegate_store::{Entry, Hashed, View};
use tidegate_tiers::{Away, Rows, look};
use tokio::runtime::{Builder, Runtime};

const SECOND: u64 = 1_000_000_000;
/// The keys of a query.
const KEYS: usize = 1_000;
/// The flags that name where rows are.
const PLACE: &str = "--cold, --warm";

/// The databases, and what their operations run in.
pub(crate) struct ColdRows {
    pub(crate) rows: Arc<dyn Rows>,
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
        let Some(rows) = places.levels(dir)?.open(view.id())? else { return Ok(None) };
        let runtime = Builder::new_current_thread().enable_all().build();
        Ok(Some(ColdRows { rows, runtime: runtime.context("cannot start a runtime")? }))
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
        let row = self.runtime.block_on(look::row(&*self.rows, key, secs(now)));
        let row = row.context(PLACE)?;
        Ok(row.map(|row| entry_of(&row, view)))
    }

    /// Calls `visit` with each counter that is in a database and not in memory.
    pub(crate) fn for_each(
        &self,
        view: &View,
        now: Timestamp,
        mut visit: impl FnMut(&Hashed, &Entry) -> std::io::Result<()>,
    ) -> anyhow::Result<()> {
        for shard in 0..self.rows.shards().len() {
            let mut after = None;
            loop {
                let page = self.runtime.block_on(self.rows.page(shard, after, secs(now)));
                let page = page.context(PLACE)?;
                for row in self.that_count(shard, &page.rows, secs(now))? {
                    let row = &row;
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

    /// The rows of a shard that count. A row that moves from one shard to another is in both for a moment: the newer one
    /// counts, and of equal ones that of the first shard.
    fn that_count(&self, shard: usize, rows: &[Row], now: u32) -> anyhow::Result<Vec<Row>> {
        let mut counts = Vec::with_capacity(rows.len());
        for rows in rows.chunks(KEYS) {
            let keys: Vec<Hashed> = rows.iter().map(|row| row.key).collect();
            let mut left: Vec<Option<&Row>> = rows.iter().map(Some).collect();
            for other in (0..self.rows.shards().len()).filter(|other| *other != shard) {
                let fetched = self.runtime.block_on(self.rows.fetch(other, &keys, now));
                for (row, found) in left.iter_mut().zip(fetched.context(PLACE)?) {
                    let is_less = |row: &mut &Row| {
                        let of = |row: &Row, shard| (row.moved_at, std::cmp::Reverse(shard));
                        found.is_some_and(|found| of(&found, other) > of(row, shard))
                    };
                    row.take_if(is_less);
                }
            }
            counts.extend(left.into_iter().flatten().cloned());
        }
        Ok(counts)
    }

    /// Removes all rows. Returns how many there were.
    pub(crate) fn erase(&self) -> anyhow::Result<u64> {
        let (now, mut erased) = (secs(clock::now()), 0);
        for shard in 0..self.rows.shards().len() {
            let mut after = None;
            loop {
                let erasing = async {
                    let page = self.rows.page(shard, after, now).await?;
                    let all: Vec<(Hashed, u32)> =
                        page.rows.iter().map(|row| (row.key, u32::MAX)).collect();
                    let removed = self.rows.remove(shard, &all, now).await?;
                    Ok::<_, Away>((removed, page.next))
                };
                let (removed, next) = self.runtime.block_on(erasing).context(PLACE)?;
                (erased, after) = (erased + removed, next);
                if after.is_none() {
                    break;
                }
            }
        }
        Ok(erased)
    }

    pub(crate) fn sizes(&self) -> Vec<ShardSize> {
        let size = |(shard, name)| {
            let size = self.runtime.block_on(self.rows.size(shard));
            (name, size.map_err(|error| error.to_string()))
        };
        self.rows.shards().into_iter().enumerate().map(size).collect()
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
