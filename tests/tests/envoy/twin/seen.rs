//! What the generated cases had.

use super::Done;
use super::configuration::Configuration;
use super::recorder::{Debits, Descriptor, is_denied};
use anyhow::ensure;
use std::collections::BTreeMap;

/// The kinds of calls and debits that [`Seen`] counts.
const KINDS: usize = 7;

/// What the cases had, so that a generator of nothing fails.
#[derive(Debug, Default)]
pub(super) struct Seen {
    requests: u64,
    /// Requests with descriptors.
    calls: u64,
    denied: u64,
    /// Requests with a documented difference.
    differing: u64,
    /// Calls and debits of these kinds.
    kinds: BTreeMap<&'static str, u64>,
    pub(super) wrong: Vec<String>,
}

impl Seen {
    pub(super) fn count(&mut self, configuration: &Configuration, [native, ours]: &[Done; 2]) {
        self.requests += 1;
        self.calls += u64::from(!ours.descriptors.is_empty());
        self.denied += u64::from(ours.descriptors.iter().any(is_denied));
        self.differing += u64::from(native.descriptors != ours.descriptors);
        let any = |is: fn(&Descriptor) -> bool| ours.descriptors.iter().any(is);
        self.note("blocks", configuration.blocks.is_some() && any(|_| true));
        self.note("refund", any(|descriptor| descriptor.is_refund));
        self.note("domain of a route", any(|descriptor| descriptor.is_elsewhere));
        self.note("limit in headers", ours.reply.contains("x-ratelimit-limit"));
    }

    pub(super) fn count_debits(&mut self, debits: &Debits) {
        for descriptor in debits.keys() {
            self.note("debit", !descriptor.is_refund);
            self.note("refund at the end", descriptor.is_refund);
            self.note("debit in the domain of a route", descriptor.is_elsewhere);
        }
    }

    fn note(&mut self, kind: &'static str, is_there: bool) {
        *self.kinds.entry(kind).or_default() += u64::from(is_there);
    }

    pub(super) fn judge(&self) -> anyhow::Result<()> {
        let shown: Vec<&str> = self.wrong.iter().take(5).map(String::as_str).collect();
        ensure!(shown.is_empty(), "{} wrong:\n{}", self.wrong.len(), shown.join("\n\n"));
        let Seen { requests, calls, denied, differing, kinds, .. } = self;
        ensure!(calls * 4 > *requests && denied * 3 > *calls && differing * 3 < *calls, "{self:?}");
        ensure!(kinds.len() == KINDS && kinds.values().all(|count| *count > 0), "{self:?}");
        println!("{self:?}");
        Ok(())
    }
}
