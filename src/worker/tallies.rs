//! Decisions of this worker that the sidecar was not told of yet, beside those in the records of the
//! local table: of records that were evicted, of descriptors without a record, and of reports
//! without an answer.
//!
//! One report is under way at a time, and a report without an answer is sent again unchanged before
//! any other of its sequence: the sidecar knows the number of the last one that it has counted.
//! Bounded: beyond [`WAITING_MAX`] or [`WAITING_BYTES_MAX`] hits are dropped, and the caller counts
//! them.

use crate::config::encoded::{decoded, domain_of, override_of};
use crate::leases::local_table::KeyTally;
use crate::request::descriptors::LeaseKey;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use tidegate_core::{Report, TalliedHits, Tally};
use tidegate_wire::TALLIES_MAX;

/// Descriptors in a report.
pub(crate) const REPORT_MAX: usize = TALLIES_MAX / 2;
/// Their bytes. One descriptor alone may have more.
pub(crate) const REPORT_BYTES_MAX: usize = 16 << 10;
/// Descriptors that wait beside the table. One that was evicted has been decided by a lease or a
/// denial, so a call for it has gone out before, which could carry 32 others.
const WAITING_MAX: usize = 4_096;
const WAITING_BYTES_MAX: usize = 1 << 20;
/// A report without an answer gets a call of its own once in this many ticks.
const REPEAT_TICKS: u32 = 5;
/// Reports without an answer: one of this worker, and those of workers that have ended.
const UNANSWERED_MAX: usize = 16;

/// A report that was sent, or is about to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SentReport {
    pub(crate) sequence: u64,
    pub(crate) number: u64,
    /// Never empty, and all of one domain.
    pub(crate) tallies: Vec<KeyTally>,
}

/// What an ended worker was still to report.
#[derive(Debug, Default)]
pub(crate) struct LeftTallies {
    pub(crate) unanswered: VecDeque<SentReport>,
    pub(crate) others: Vec<KeyTally>,
}

type WaitingKey = (LeaseKey, Vec<String>);

#[derive(Debug, Default)]
pub(crate) struct Tallies {
    /// By key and names of the limits that denied.
    waiting: BTreeMap<WaitingKey, (Box<[u8]>, TalliedHits)>,
    waiting_bytes: usize,
    /// The last key of `waiting` that a report looked at: the next look is behind it.
    looked_at: Option<WaitingKey>,
    /// Where the next report continues in the local table.
    pub(crate) next_record: usize,
    unanswered: VecDeque<SentReport>,
    pub(crate) is_under_way: bool,
    /// The number of this worker's sequence, once it has sent a report.
    pub(crate) sequence: Option<u64>,
    /// Ticks since something waits, or since the last round began.
    pub(crate) ticks: u32,
    /// Whether the round that has begun concerns those that wait.
    is_round: bool,
}

impl SentReport {
    pub(crate) fn to_wire(&self) -> Report {
        let tally = |tally: &KeyTally| {
            let (entries, rest) = decoded(&tally.entries);
            let (hits, over) = (tally.hits, tally.over.clone());
            Tally { entries, limit: override_of(rest), hits, over }
        };
        let tallies = self.tallies.iter().map(tally).collect();
        Report { sequence: self.sequence, number: self.number, tallies }
    }

    /// The entries of one of its descriptors.
    pub(crate) fn entries(&self) -> &[u8] {
        self.tallies.first().map_or(&[], |tally| &tally.entries)
    }

    pub(crate) fn hits(&self) -> u64 {
        self.tallies.iter().map(|tally| tally.hits.all()).fold(0, u64::saturating_add)
    }
}

impl LeftTallies {
    pub(crate) fn hits(&self) -> u64 {
        let unanswered = self.unanswered.iter().map(SentReport::hits);
        let others = self.others.iter().map(|tally| tally.hits.all());
        unanswered.chain(others).fold(0, u64::saturating_add)
    }
}

/// How much of the bounds a tally may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Share {
    All,
    /// Of descriptors that no record of this worker has known: clients may invent them.
    Half,
}

impl Tallies {
    /// Whether nothing waits here and no report is without an answer.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.unanswered.is_empty()
    }

    /// Adds hits to those that wait. Returns those that find no room.
    pub(crate) fn add(&mut self, tally: KeyTally, share: Share) -> Result<(), u64> {
        let (most, bytes_most) = match share {
            Share::All => (WAITING_MAX, WAITING_BYTES_MAX),
            Share::Half => (WAITING_MAX / 2, WAITING_BYTES_MAX / 2),
        };
        let bytes = bytes_of(&tally);
        let is_full =
            self.waiting.len() >= most || self.waiting_bytes.saturating_add(bytes) > bytes_most;
        let KeyTally { key, entries, hits, over } = tally;
        let key = (key, over);
        if let Some((_, known)) = self.waiting.get_mut(&key) {
            known.add(hits);
            return Ok(());
        }
        if is_full {
            return Err(hits.all());
        }
        self.waiting_bytes = self.waiting_bytes.saturating_add(bytes);
        self.waiting.insert(key, (entries, hits));
        Ok(())
    }

    /// Takes one of those that wait and belong to `domain`, looking at a few.
    pub(crate) fn take(&mut self, is_of_domain: impl Fn(&[u8]) -> bool) -> Option<KeyTally> {
        const LOOKS: usize = 8;
        for _ in 0..LOOKS.min(self.waiting.len()) {
            let (key, entries) = self.next_waiting()?;
            let (key, fits) = (key.clone(), is_of_domain(entries));
            self.looked_at = Some(key.clone());
            if fits {
                return self.remove(key);
            }
        }
        None
    }

    /// The next one to look at.
    fn next_waiting(&self) -> Option<(&WaitingKey, &[u8])> {
        let behind = self
            .looked_at
            .as_ref()
            .and_then(|key| self.waiting.range((Bound::Excluded(key), Bound::Unbounded)).next());
        let (key, (entries, _)) = behind.or_else(|| self.waiting.first_key_value())?;
        Some((key, entries))
    }

    fn remove(&mut self, key: WaitingKey) -> Option<KeyTally> {
        let (entries, hits) = self.waiting.remove(&key)?;
        let (key, over) = key;
        let tally = KeyTally { key, entries, hits, over };
        self.waiting_bytes = self.waiting_bytes.saturating_sub(bytes_of(&tally));
        Some(tally)
    }

    /// Begins a round: what waits now is due.
    pub(crate) fn begin_round(&mut self) {
        self.is_round = !self.waiting.is_empty();
    }

    /// Whether what waits here is worth a call of its own.
    pub(crate) fn is_due(&mut self) -> bool {
        self.is_round &= !self.waiting.is_empty();
        // A sidecar that is overloaded does not get one at each tick.
        let repeats =
            !self.unanswered.is_empty() && self.ticks.checked_rem(REPEAT_TICKS) == Some(0);
        repeats || self.is_round || self.waiting.len() >= REPORT_MAX
    }

    /// The entries of the descriptor that is next here.
    pub(crate) fn any(&self) -> Option<&[u8]> {
        let unanswered = self.unanswered.front().map(SentReport::entries);
        unanswered.or_else(|| self.next_waiting().map(|(_, entries)| entries))
    }

    /// Whether a new report of this worker must wait for the answer to one before it.
    pub(crate) fn must_repeat(&self) -> bool {
        self.unanswered.iter().any(|report| Some(report.sequence) == self.sequence)
    }

    /// The first report without an answer whose domain is this one, with none of its sequence
    /// before it.
    pub(crate) fn take_unanswered(&mut self, domain: &str, default: &str) -> Option<SentReport> {
        let is_of_it =
            |report: &SentReport| domain_of(report.entries()).unwrap_or(default) == domain;
        let index = self.unanswered.iter().position(is_of_it)?;
        let sequence = self.unanswered.get(index)?.sequence;
        let mut before = self.unanswered.iter().take(index);
        if before.any(|report| report.sequence == sequence) {
            return None;
        }
        self.unanswered.remove(index)
    }

    /// A report has no answer. The sidecar may have counted it.
    pub(crate) fn failed(&mut self, report: SentReport) {
        self.is_under_way = false;
        self.unanswered.push_front(report);
    }

    /// Takes over a report of a worker that has ended. Returns its hits if there is no room.
    pub(crate) fn adopt(&mut self, report: SentReport) -> Result<(), u64> {
        if self.unanswered.len() >= UNANSWERED_MAX {
            return Err(report.hits());
        }
        self.unanswered.push_back(report);
        Ok(())
    }

    /// Takes everything.
    pub(crate) fn take_all(&mut self) -> LeftTallies {
        let mut others = Vec::new();
        while let Some(tally) = self.take(|_| true) {
            others.push(tally);
        }
        LeftTallies { unanswered: std::mem::take(&mut self.unanswered), others }
    }
}

fn bytes_of(tally: &KeyTally) -> usize {
    const FIXED: usize = 128;
    let names = tally.over.iter().map(String::len).fold(0, usize::saturating_add);
    tally.entries.len().saturating_add(names).saturating_add(FIXED)
}

#[cfg(test)]
mod tests;
