//! The transactions of a fetch: over the counter, its record, or both.

use crate::record::{Record, record_key};
use crate::tally::add;
use crate::tiered::Inner;
use tidegate_authority::clock;
use tidegate_cold::Row;
use tidegate_core::Timestamp;
use tidegate_store::{Entries, Hashed, UpdateError};

/// How long a record of a fetch, or of what one found, is kept, and at least so many times the time that a fetch may take.
const KEPT: u64 = 10;
const KEPT_TIMES: u64 = 3;
const SECOND: u64 = 1_000_000_000;

/// What a look at a counter before its fetch has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Begun {
    /// It is hot, or a record says that no row counts.
    Settled,
    Now,
    /// Another process fetches it.
    Elsewhere,
}

impl Inner {
    /// In seconds.
    fn kept(&self) -> u64 {
        KEPT.max(self.settings.timeout.as_secs().saturating_add(1).saturating_mul(KEPT_TIMES))
    }

    /// Begins a fetch, if nothing is known of the counter. Takes the place of another process's fetch if it must, and of one of
    /// this process, which has ended: there is one of a counter at a time.
    pub(super) fn begin(&self, key: &Hashed, token: u64, must: bool) -> Result<Begun, UpdateError> {
        // A counter that comes back has had uses before, and must not move again at once.
        self.heat.used(key);
        self.with_record(key, |counter_is_new, entries, now| {
            if !counter_is_new {
                return Begun::Settled;
            }
            let record = entries.get(1);
            match Record::read(record.state) {
                Some((_, Record::Absent | Record::Fetched { .. })) => Begun::Settled,
                Some((_, Record::Fetching { token: of }))
                    if !must && !self.tokens.has_taken(of) =>
                {
                    Begun::Elsewhere
                }
                Some((_, Record::Fetching { .. })) | None => {
                    Record::Fetching { token }.write(key, record.state);
                    *record.expires_at = now.as_nanos() + self.kept() * SECOND;
                    Begun::Now
                }
            }
        })
    }

    /// Ends a fetch: the counter gets the state of its row, or is known to have none.
    pub(super) fn settle(
        &self,
        key: &Hashed,
        token: u64,
        row: Option<&Row>,
    ) -> Result<(), UpdateError> {
        let pass = self.hot.completed_pass() as u32;
        let brought = self.with_record(key, |counter_is_new, entries, now| {
            if !is_own(entries.get(1).state, token) {
                // Another process has it, or has had it. The update looks again.
                return false;
            }
            let row = row.filter(|row| u64::from(row.expires_at) * SECOND > now.as_nanos());
            let has_room = row.is_none_or(|row| row.state.len() <= entries.get(0).state.len());
            if let (true, true, Some(row)) = (counter_is_new, has_room, row) {
                let counter = entries.get(0);
                counter.state[..row.state.len()].copy_from_slice(&row.state);
                *counter.expires_at = u64::from(row.expires_at) * SECOND;
            }
            let record = entries.get(1);
            match row {
                Some(row) => {
                    Record::Fetched { moved_at: row.moved_at, pass }.write(key, record.state);
                    *record.expires_at = u64::from(row.expires_at) * SECOND;
                }
                None if counter_is_new => {
                    Record::Absent.write(key, record.state);
                    *record.expires_at = now.as_nanos() + self.kept() * SECOND;
                }
                None => record.state.fill(0),
            }
            row.is_some()
        })?;
        match brought {
            true => add(&self.tally.fetched, 1),
            false => add(&self.tally.fetched_in_vain, 1),
        }
        Ok(())
    }

    /// Ends a fetch that failed, so that the next one need not wait for it.
    pub(super) fn give_up(&self, key: &Hashed, token: u64) {
        let given_up = self.with_record(key, |_, entries, _| {
            let record = entries.get(1);
            if is_own(record.state, token) {
                record.state.fill(0);
            }
        });
        if let Err(error) = given_up {
            // Another process waits for it as for that of a process that was killed.
            tracing::debug!(%error, "the record of a fetch stays");
        }
    }

    /// One transaction over a counter, entry 0, and its record, entry 1.
    pub(crate) fn with_record<T>(
        &self,
        key: &Hashed,
        act: impl FnOnce(bool, &mut Entries<'_>, Timestamp) -> T,
    ) -> Result<T, UpdateError> {
        let (keys, now) = ([*key, record_key(self.hot.seed(), key)], clock::now());
        self.hot.update_many(&keys, now.as_nanos(), |entries| {
            let counter_is_new = entries.get(0).is_new();
            act(counter_is_new, entries, now)
        })
    }
}

/// Whether a record is of the fetch with this token.
fn is_own(record: &[u64], token: u64) -> bool {
    matches!(Record::read(record), Some((_, Record::Fetching { token: of })) if of == token)
}
