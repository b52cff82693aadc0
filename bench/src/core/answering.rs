//! Answers a call of the rate limit protocol inside the sidecar: from the bytes of the request to those of
//! the answer, with store and rules, without transport.

use super::limits::START_SECS;
use super::subject::{Answers, Subject, Work};
use anyhow::Context;
use std::fmt::Write;
use tidegate_authority::{Authority, open_standalone};
use tidegate_core::{Descriptor, Entry, HeaderForm, Hits, LeaseRequest, Nanos, Request, Timestamp};
use tidegate_wire::{RequestReader, encode_answer, encode_request, lease_request_metadata};

const DOMAIN: &str = "shop";
/// Each pick moves on by this many keys, so that all keys are equally frequent.
const TURN: usize = 1_000;
/// The time between two calls. No day ends during all rounds, and leases fit their table.
const STEP: Nanos = Nanos::new(1_000_000);
const LEASE_TTL: Nanos = Nanos::from_secs(2);

/// The requests of a case, and its limits.
#[derive(Debug, Clone, Copy)]
struct Case {
    name: &'static str,
    keys: usize,
    descriptors: usize,
    rules: usize,
    asks: Asks,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asks {
    Decision,
    Lease,
}

const CASES: [Case; 5] = [
    Case { name: "1 key", keys: 1, descriptors: 1, rules: 1, asks: Asks::Decision },
    Case { name: "3 descriptors", keys: 1, descriptors: 3, rules: 1, asks: Asks::Decision },
    Case { name: "100k keys", keys: 100_000, descriptors: 1, rules: 1, asks: Asks::Decision },
    Case { name: "10k rules", keys: 10_000, descriptors: 1, rules: 10_000, asks: Asks::Decision },
    Case { name: "lease", keys: 1_000, descriptors: 1, rules: 1, asks: Asks::Lease },
];

pub(super) fn subjects() -> Vec<Subject> {
    let subject = |case: Case| {
        let name = format!("answer a call, {}", case.name);
        Subject::new(name, Answers::Yes, move || Ok(Box::new(Calls::of(case)?)))
    };
    CASES.into_iter().map(subject).collect()
}

struct Calls {
    authority: Authority,
    messages: Vec<Vec<u8>>,
    asks: Asks,
    reader: RequestReader,
    calls: u64,
    bytes: Vec<u8>,
    /// The counters.
    _dir: tempfile::TempDir,
}

impl Calls {
    fn of(case: Case) -> anyhow::Result<Calls> {
        let dir = tempfile::TempDir::new()?;
        let limits = dir.path().join("limits.yaml");
        std::fs::write(&limits, limits_of(case)?)?;
        let counters = (case.keys.max(40_000) * case.descriptors) as u64;
        let data = dir.path().join("data");
        let authority = open_standalone(counters, &data, &limits, LEASE_TTL)?;
        let messages = (0..case.keys).map(|key| encode_request(&request(case, key))).collect();
        let (asks, reader, bytes) = (case.asks, RequestReader::new(), Vec::new());
        let mut calls = Calls { authority, messages, asks, reader, calls: 0, bytes, _dir: dir };
        for key in 0..case.keys {
            calls.call(key)?;
        }
        Ok(calls)
    }

    /// Whether the request of this key is allowed.
    fn call(&mut self, key: usize) -> anyhow::Result<bool> {
        let now = Timestamp::from_secs(START_SECS);
        let now = now.saturating_add(Nanos::new(STEP.as_nanos() * self.calls));
        self.calls += 1;
        self.bytes.clear();
        let message = self.messages.get(key).context("no such key")?;
        match self.asks {
            Asks::Decision => {
                let none = |_| None;
                let answered =
                    self.authority.answer_call(&mut self.reader, message, none, || now)?;
                let (_, answer) = answered.answered().context("the store answers at once")?;
                encode_answer(&answer, Vec::new(), &mut self.bytes);
            }
            Asks::Lease => {
                let ask = LeaseRequest {
                    call: self.calls * 128,
                    proxy: 7,
                    clock: now,
                    wanted: vec![50],
                    waiting: vec![0],
                    headers: HeaderForm::Ietf,
                };
                let words = lease_request_metadata(&ask);
                let value_of = |name| {
                    let found = words.iter().find(|(known, _)| *known == name);
                    found.map(|(_, value)| value.as_bytes())
                };
                let answered =
                    self.authority.answer_call(&mut self.reader, message, value_of, || now)?;
                let (_, answer) = answered.answered().context("the store answers at once")?;
                encode_answer(&answer, Vec::new(), &mut self.bytes);
            }
        }
        Ok(self.bytes.starts_with(&[0x08, 1]))
    }
}

impl Work for Calls {
    fn decide_each(&mut self, picks: &[u32]) -> u64 {
        let mut allowed = 0;
        for (index, &pick) in picks.iter().enumerate() {
            let key = (pick as usize + index * TURN) % self.messages.len();
            allowed += u64::from(self.call(key).is_ok_and(|may_pass| may_pass));
        }
        allowed
    }
}

/// A limits file with this many rules for each descriptor.
fn limits_of(case: Case) -> anyhow::Result<String> {
    let mut text = format!("domain: {DOMAIN}\ndescriptors:\n");
    for descriptor in 0..case.descriptors {
        for rule in 0..case.rules {
            write!(
                text,
                "- {{key: app{descriptor}, value: app-{rule}, descriptors: [{{key: user, "
            )?;
            writeln!(
                text,
                "rate_limit: {{name: user_{rule}, unit: day, requests_per_unit: 4000000000}}}}]}}"
            )?;
        }
    }
    Ok(text)
}

fn request(case: Case, key: usize) -> Request {
    let descriptor = |descriptor: usize| {
        let app = Entry::new(format!("app{descriptor}"), format!("app-{}", key % case.rules));
        Descriptor::new(vec![app, Entry::new("user", format!("user-{key:07}"))])
    };
    let descriptors = (0..case.descriptors).map(descriptor).collect();
    Request { domain: DOMAIN.to_owned(), descriptors, hits: Hits::ONE }
}
