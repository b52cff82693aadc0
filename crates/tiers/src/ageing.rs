//! Ageing: rows that nobody has asked for go on from a warm shard to a cold one.
//!
//! Done by the thread that moves, some rows in each pass, and more while it waits for the next one. A row is written below
//! before it is removed above, so it is always somewhere; one that is in both is the same.

use crate::mover::{LEFT_MIN, ROWS, now_secs};
use crate::rows::Away;
use crate::tally::add;
use crate::tiered::Inner;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tidegate_cold::{Cursor, Row};
use tidegate_store::Hashed;
use tokio::runtime::Handle;

/// The pages of a pass.
const PAGES: usize = 16;
/// A pass ends after so many rows, as idle counters wait for it: about a second of a database on one disk.
const PASS_ROWS: u64 = 20_000;

/// How far the rounds over the warm shards are.
pub(crate) struct Ageing {
    /// For how long a row stays warm.
    after: Duration,
    /// The shard, and where its next page begins.
    at: (usize, Option<Cursor>),
    /// None while a round is under way.
    next_round: Option<Instant>,
}

impl Ageing {
    pub(crate) fn new(after: Duration) -> Ageing {
        Ageing { after, at: (0, None), next_round: None }
    }

    /// Whether a round has begun and not ended.
    pub(crate) fn is_under_way(&self) -> bool {
        self.next_round.is_none() && self.at != (0, None)
    }

    /// Moves what is old enough in the next pages.
    pub(crate) fn pass(&mut self, inner: &Inner, runtime: &Handle) -> Result<(), Away> {
        if self.next_round.is_some_and(|at| Instant::now() < at) {
            return Ok(());
        }
        self.next_round = None;
        let mut moved = 0;
        for _ in 0..PAGES {
            if moved >= PASS_ROWS {
                return Ok(());
            }
            let (shard, after) = self.at;
            if shard >= inner.filters.len() {
                self.at = (0, None);
                self.next_round = Some(Instant::now() + self.after / 16);
                return Ok(());
            }
            if inner.rows.below(shard, &Hashed::narrow(0)).is_none() {
                self.at = (shard + 1, None);
                continue;
            }
            let page = runtime.block_on(inner.rows.page(shard, after, now_secs()));
            let page = inner.noted(shard, page)?;
            moved += self.move_on(inner, runtime, shard, page.rows)?;
            self.at = match page.next {
                Some(next) => (shard, Some(next)),
                None => (shard + 1, None),
            };
        }
        Ok(())
    }

    fn move_on(
        &self,
        inner: &Inner,
        runtime: &Handle,
        shard: usize,
        rows: Vec<Row>,
    ) -> Result<u64, Away> {
        let (now, mut all) = (now_secs(), 0);
        let stays = u32::try_from(self.after.as_secs()).unwrap_or(u32::MAX);
        let mut below: BTreeMap<usize, Vec<Row>> = BTreeMap::new();
        for row in rows {
            let is_old = row.moved_at.saturating_add(stays) <= now;
            if is_old
                && row.expires_at.saturating_sub(now) >= LEFT_MIN
                && let Some(to) = inner.rows.below(shard, &row.key)
            {
                below.entry(to).or_default().push(row);
            }
        }
        let chunks = below.iter().flat_map(|(to, rows)| rows.chunks(ROWS).map(|rows| (*to, rows)));
        for (to, rows) in chunks {
            rows.iter().for_each(|row| inner.filters[to].add(&row.key));
            inner.noted(to, runtime.block_on(inner.rows.put(to, rows, now)))?;
            let moved: Vec<(Hashed, u32)> =
                rows.iter().map(|row| (row.key, row.moved_at)).collect();
            inner.noted(shard, runtime.block_on(inner.rows.remove(shard, &moved, now)))?;
            add(&inner.tally.moved_on, moved.len() as u64);
            all += moved.len() as u64;
        }
        Ok(all)
    }
}
