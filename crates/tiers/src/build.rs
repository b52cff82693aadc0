//! Builds of filters: from the rows of a shard, page by page.
//!
//! Done by the thread that moves, between passes, so that counters move while millions of rows are listed. What moves to a
//! shard meanwhile is added to the filter by the move. A shard that does not answer is asked again later for the same page.

use crate::mover::{AWAY, now_secs};
use crate::rows::Away;
use crate::tiered::Inner;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidegate_cold::Cursor;
use tokio::runtime::Handle;

/// A filter is built again when it has got as many keys as it has room for, but not before this time.
const BUILD_MIN: Duration = Duration::from_secs(600);
/// How long pages are listed until it is looked what else is due.
const GO: Duration = Duration::from_millis(50);

/// The builds of all filters.
pub(crate) struct Builds {
    inner: Arc<Inner>,
    runtime: Handle,
    shards: Vec<Build>,
}

#[derive(Debug, Clone, Default)]
struct Build {
    /// When this process has built it last.
    built: Option<Instant>,
    under_way: Option<Next>,
    /// After a page that failed.
    rests_until: Option<Instant>,
}

/// Where the next page begins.
#[derive(Debug, Clone, Copy)]
struct Next(Option<Cursor>);

impl Builds {
    pub(crate) fn new(inner: Arc<Inner>, runtime: Handle) -> Builds {
        let shards = vec![Build::default(); inner.filters.len()];
        Builds { inner, runtime, shards }
    }

    /// Whether there is a page to list now.
    pub(crate) fn is_due(&self) -> bool {
        (0..self.shards.len()).any(|shard| self.needs(shard) && !self.rests(shard))
    }

    /// Whether a shard has no filter, or a full one.
    fn needs(&self, shard: usize) -> bool {
        let (filter, build) = (&self.inner.filters[shard], &self.shards[shard]);
        let is_old = || build.built.is_none_or(|built| built.elapsed() >= BUILD_MIN);
        let is_full = || filter.added() > filter.capacity();
        build.under_way.is_some() || !filter.is_complete() || (is_full() && is_old())
    }

    fn rests(&self, shard: usize) -> bool {
        self.shards[shard].rests_until.is_some_and(|until| Instant::now() < until)
    }

    /// Lists some pages of the first shard that needs it.
    pub(crate) fn list_some(&mut self) {
        let begun = Instant::now();
        let mut shards = 0..self.shards.len();
        let Some(shard) = shards.find(|shard| self.needs(*shard) && !self.rests(*shard)) else {
            return;
        };
        while self.needs(shard) && begun.elapsed() < GO {
            if self.list(shard).is_err() {
                self.shards[shard].rests_until = Some(Instant::now() + AWAY);
                return;
            }
        }
    }

    /// Lists all, whatever else is due. Other shards are listed, too, if one is away.
    pub(crate) fn list_all(&mut self) -> Result<(), Away> {
        let mut done = Ok(());
        for shard in 0..self.shards.len() {
            while self.needs(shard) {
                if let Err(away) = self.list(shard) {
                    done = Err(away);
                    break;
                }
            }
        }
        done
    }

    /// Lists the next page of a shard.
    pub(crate) fn list(&mut self, shard: usize) -> Result<(), Away> {
        let (filter, build) = (&self.inner.filters[shard], &mut self.shards[shard]);
        let Next(after) = *build.under_way.get_or_insert_with(|| {
            filter.begin();
            Next(None)
        });
        let page = self.runtime.block_on(self.inner.rows.page(shard, after, now_secs()));
        let page = self.inner.noted(shard, page)?;
        page.rows.iter().for_each(|row| filter.add_to_next(&row.key));
        if page.next.is_some() {
            build.under_way = Some(Next(page.next));
            return Ok(());
        }
        filter.complete();
        (build.under_way, build.built) = (None, Some(Instant::now()));
        let (rows, capacity) = (filter.added(), filter.capacity());
        let name = &self.inner.rows.shards()[shard];
        tracing::info!(shard = name, rows, "it is known which counters are cold");
        if rows > capacity {
            tracing::warn!(
                shard = name,
                rows,
                capacity,
                "more counters are cold than filters have room for, so new ones are looked up in vain; raise \
                 --cold-capacity, and restart all processes of the data directory"
            );
        }
        Ok(())
    }
}
