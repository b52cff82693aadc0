//! A fetch that has begun: the shards that it waits for, and what they have answered.
//!
//! It waits for the shards of its counter alone, whatever others ask them for. It fails with the first of them that fails.
//!
//! Rows go on from an upper level of shards to a lower one while they are looked for. So the lower level is looked at after
//! the upper one has answered: a row that is not there any more is below, and the filter says so.

use super::{Asked, lock};
use crate::tiered::Inner;
use smallvec::SmallVec;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tidegate_authority::Undecided;
use tidegate_cold::Row;
use tidegate_store::Hashed;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    /// Of shards whose rows go on.
    Upper,
    Lower,
}

#[derive(Debug)]
pub(super) struct LookUp {
    pub(super) key: Hashed,
    token: u64,
    since: Instant,
    /// None when it has ended.
    open: Mutex<Option<Open>>,
}

#[derive(Debug)]
struct Open {
    asked: Asked,
    level: Level,
    /// The shards of the level that have not answered.
    left: usize,
    newest: Option<Row>,
}

impl LookUp {
    pub(super) fn new(asked: Asked, token: u64) -> LookUp {
        let key = asked.key;
        let open = Open { asked, level: Level::Upper, left: 0, newest: None };
        LookUp { key, token, since: Instant::now(), open: Mutex::new(Some(open)) }
    }

    pub(super) fn is_open(&self) -> bool {
        lock(&self.open).is_some()
    }

    /// How long it may still wait in a queue.
    pub(super) fn left(&self, timeout: Duration) -> Duration {
        timeout.saturating_sub(self.since.elapsed())
    }

    fn expect(&self, level: Level, shards: usize) {
        if let Some(open) = &mut *lock(&self.open) {
            (open.level, open.left) = (level, shards);
        }
    }

    /// Notes the answer of a shard. Returns the level if it was the last one of it.
    fn note(&self, row: Option<Row>) -> Option<Level> {
        let mut open = lock(&self.open);
        let open = open.as_mut()?;
        // Several shards have one only while counters move from one to the other: the newest counts.
        let newer = row
            .filter(|row| open.newest.as_ref().is_none_or(|other| other.moved_at < row.moved_at));
        open.newest = newer.or_else(|| open.newest.take());
        open.left -= 1;
        (open.left == 0).then_some(open.level)
    }

    fn close(&self) -> Option<Open> {
        lock(&self.open).take()
    }
}

impl Inner {
    /// Asks the shards of a level that may have a row, or of the next one. Without any, the counter has none.
    pub(super) fn ask(&self, look_up: &Arc<LookUp>, level: Level) {
        let shards = self.shards_at(level, &look_up.key);
        if shards.is_empty() {
            return self.go_on(look_up, level);
        }
        look_up.expect(level, shards.len());
        for shard in shards {
            if let Err(cause) = self.fetches.queues[shard].push(look_up) {
                self.fail(look_up, cause);
            }
        }
    }

    /// After a level.
    fn go_on(&self, look_up: &Arc<LookUp>, level: Level) {
        match level {
            Level::Upper => self.ask(look_up, Level::Lower),
            Level::Lower => self.succeed(look_up),
        }
    }

    fn shards_at(&self, level: Level, key: &Hashed) -> SmallVec<[usize; 4]> {
        let is_there = |shard: &usize| {
            let is_upper = self.rows.below(*shard, key).is_some();
            is_upper == (level == Level::Upper) && self.filters[*shard].may_have(key)
        };
        (0..self.filters.len()).filter(is_there).collect()
    }

    /// A shard has answered.
    pub(super) fn answered(&self, look_up: &Arc<LookUp>, row: Option<Row>) {
        if let Some(level) = look_up.note(row) {
            self.go_on(look_up, level);
        }
    }

    /// A shard has not answered.
    pub(super) fn fail(&self, look_up: &LookUp, cause: String) {
        let Some(open) = look_up.close() else { return };
        self.give_up(&look_up.key, look_up.token);
        open.asked.end(Err(Undecided::Unreachable { cause }));
    }

    fn succeed(&self, look_up: &LookUp) {
        let Some(open) = look_up.close() else { return };
        let settled = self.settle(&look_up.key, look_up.token, open.newest.as_ref());
        if settled.is_err() {
            // Without room for the counter, say.
            self.give_up(&look_up.key, look_up.token);
        }
        open.asked.end(settled.map_err(Into::into));
    }
}
