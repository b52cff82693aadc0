//! Single decisions, for those who watch: a sample of them, in a ring, while somebody asks.
//!
//! Nobody asks most of the time, and then a decision costs the look at one number. While somebody does, a tenth of a
//! second has room for a few that passed and a few that did not, so that many of one kind do not hide the other. Each
//! has a number; who asks again gets those after the last one he got.

use crate::MetKind;
use crate::name::Name;
use crate::respond::{NO_RULE, parameters};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate_authority::{DecidedIn, Fate, Outcome};
use tidegate_core::Charge;
use tidegate_recent::{Last, Pairs};

/// How long decisions are kept after somebody asked.
const LISTENING_MS: u64 = 5_000;
const SLICE_MS: u64 = 100;
/// Of each kind in a slice: 200 a second.
const PER_SLICE: u32 = 20;
/// Several seconds of the decisions of a process. Each takes some 1 KiB at most, and 3 KiB in an answer, where each
/// character may need an escape.
const KEPT_MAX: usize = 1_024;
/// How soon a browser should ask again.
const RETRY_MS: u64 = 500;
const MATCHES_MAX: usize = 8;

/// What became of the hits of a descriptor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    pub domain: String,
    pub entries: Vec<(String, String)>,
    pub is_cut: bool,
    pub met: MetKind,
    pub rule: Option<String>,
    pub verdict: Verdict,
    pub hits: u64,
    pub is_in_envoy: bool,
    pub left: Option<(u64, u32)>,
    pub retry_ms: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Allowed,
    Denied,
    /// By another limit of the request.
    DeniedElsewhere,
    /// A limit in shadow mode would have denied it.
    Shadowed,
}

/// Which decisions are asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    is_denied: bool,
    rule: Option<String>,
    /// All of these entries.
    matches: Vec<(String, String)>,
    /// The number of the last one that is known.
    after: Option<u64>,
}

/// Where threads leave decisions.
#[derive(Debug)]
pub(crate) struct Tap {
    listening_until_ms: AtomicU64,
    ring: Mutex<Ring>,
}

#[derive(Debug)]
struct Ring {
    decisions: VecDeque<(u64, Decision)>,
    next: u64,
    slice: u64,
    /// Of those that passed, and of the others.
    in_slice: [u32; 2],
}

impl From<Fate> for Verdict {
    fn from(fate: Fate) -> Verdict {
        match fate {
            Fate::Allowed => Verdict::Allowed,
            Fate::Denied => Verdict::Denied,
            Fate::DeniedElsewhere => Verdict::DeniedElsewhere,
            Fate::Shadowed => Verdict::Shadowed,
        }
    }
}

impl Default for Tap {
    fn default() -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Larger than the numbers of the process before, as a client may still ask by one of them.
        let next = u64::try_from(since_epoch.as_micros()).unwrap_or(1);
        let ring = Ring { decisions: VecDeque::new(), next, slice: 0, in_slice: [0; 2] };
        Tap { listening_until_ms: AtomicU64::new(0), ring: Mutex::new(ring) }
    }
}

impl Tap {
    /// Whether somebody has asked a short time before `now`. While nobody does, the time is not read.
    pub(crate) fn is_open(&self, now_ms: impl FnOnce() -> u64) -> bool {
        let until_ms = self.listening_until_ms.load(Ordering::Relaxed);
        if until_ms == 0 {
            return false;
        }
        let is_open = now_ms() < until_ms;
        if !is_open {
            // Unless it was opened again.
            let (order, nobody) = (Ordering::Relaxed, 0);
            let _ = self.listening_until_ms.compare_exchange(until_ms, nobody, order, order);
        }
        is_open
    }

    /// Somebody asks.
    pub(crate) fn open(&self, now_ms: u64) {
        self.listening_until_ms.store(now_ms.saturating_add(LISTENING_MS), Ordering::Relaxed);
    }

    /// Keeps a decision, if there is room in this slice.
    pub(crate) fn keep(&self, outcome: &Outcome<'_>, now_ms: u64) {
        let (Charge::Take(hits) | Charge::Force(hits)) = outcome.charge else { return };
        if hits.get() == 0 {
            return;
        }
        let verdict = Verdict::from(outcome.fate);
        let mut ring = self.ring();
        if !ring.has_room(verdict, now_ms) {
            return;
        }
        let mut name = Name::default();
        name.set(outcome.domain, Pairs::of(outcome.entries));
        let Last { retry_at_ms, left, .. } = Last::of(outcome, now_ms);
        ring.push(Decision {
            domain: name.domain().to_owned(),
            entries: name.entries(),
            is_cut: name.is_cut(),
            met: outcome.met.into(),
            rule: outcome.rule().map(|rule| rule.path.clone()),
            verdict,
            hits: hits.get(),
            is_in_envoy: outcome.decided_in == DecidedIn::Envoy,
            left,
            retry_ms: retry_at_ms.map(|at| at.saturating_sub(now_ms)),
        });
    }

    /// Adds those of another process.
    pub(crate) fn add(&self, decisions: Vec<Decision>) {
        let mut ring = self.ring();
        decisions.into_iter().for_each(|decision| ring.push(decision));
    }

    /// Takes all out.
    pub(crate) fn take(&self) -> Vec<Decision> {
        self.ring().decisions.drain(..).map(|(_, decision)| decision).collect()
    }

    /// Those asked for, as server-sent events.
    pub(crate) fn events(&self, filter: &Filter) -> String {
        let ring = self.ring();
        // A number from elsewhere names none of these.
        let after = filter.after.filter(|after| *after < ring.next).unwrap_or(0);
        let mut text = format!("retry: {RETRY_MS}\n\n");
        for (number, decision) in &ring.decisions {
            if *number > after && filter.takes(decision) {
                let _ = write!(text, "id: {number}\ndata: {}\n\n", decision.json());
            }
        }
        text
    }

    /// A ring is whole between any two statements.
    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    fn has_room(&mut self, verdict: Verdict, now_ms: u64) -> bool {
        let slice = now_ms / SLICE_MS;
        if self.slice != slice {
            (self.slice, self.in_slice) = (slice, [0; 2]);
        }
        let count = &mut self.in_slice[usize::from(verdict != Verdict::Allowed)];
        *count += 1;
        *count <= PER_SLICE
    }

    fn push(&mut self, decision: Decision) {
        if self.decisions.len() >= KEPT_MAX {
            self.decisions.pop_front();
        }
        self.decisions.push_back((self.next, decision));
        self.next += 1;
    }
}

impl Decision {
    /// On one line.
    fn json(&self) -> String {
        let entry = |(key, value): &(String, String)| json!({ "key": key, "value": value });
        let document = json!({
            "domain": self.domain,
            "entries": self.entries.iter().map(entry).collect::<Vec<_>>(),
            "cut": self.is_cut,
            "met": self.met,
            "rule": self.rule,
            "verdict": self.verdict,
            "hits": self.hits,
            "decided_in": if self.is_in_envoy { "envoy" } else { "sidecar" },
            "remaining": self.left.map(|(remaining, _)| remaining),
            "capacity": self.left.map(|(_, capacity)| capacity),
            "retry_ms": self.retry_ms,
        });
        document.to_string()
    }
}

impl Filter {
    /// Reads the query of a URL. `last_seen` is what a browser sends beside it.
    ///
    /// # Errors
    /// A message, for a parameter that does not exist or has a wrong value.
    pub fn parse(query: &str, last_seen: Option<u64>) -> Result<Filter, String> {
        let mut filter = Filter { after: last_seen, ..Filter::default() };
        for (name, value) in parameters(query)? {
            match name.as_str() {
                "denied" if value.is_empty() || value == "true" => filter.is_denied = true,
                "denied" => return Err("`denied` has no value".to_owned()),
                "rule" => filter.rule = Some(value),
                "match" => {
                    let pair = value.split_once('=').filter(|_| filter.matches.len() < MATCHES_MAX);
                    let (key, value) = pair.ok_or_else(|| {
                        format!("`match` must be KEY=VALUE, at most {MATCHES_MAX} times")
                    })?;
                    filter.matches.push((key.to_owned(), value.to_owned()));
                }
                "after" => {
                    let number =
                        value.parse().map_err(|_| "`after` must be a number".to_owned())?;
                    filter.after = Some(number);
                }
                _ => {
                    let name: String = name.chars().take(63).collect();
                    return Err(format!("{name:?} is no parameter: denied, rule, match, after"));
                }
            }
        }
        Ok(filter)
    }

    fn takes(&self, decision: &Decision) -> bool {
        let is_of_rule = match self.rule.as_deref() {
            None => true,
            Some(NO_RULE) => matches!(decision.met, MetKind::NoRule | MetKind::UnknownDomain),
            rule => decision.rule.as_deref() == rule,
        };
        is_of_rule
            && (!self.is_denied || decision.verdict == Verdict::Denied)
            && self.matches.iter().all(|entry| decision.entries.contains(entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(value: &str, verdict: Verdict, rule: Option<&str>) -> Decision {
        Decision {
            domain: "d".to_owned(),
            entries: vec![("user".to_owned(), value.to_owned())],
            is_cut: false,
            met: if rule.is_some() { MetKind::Rule } else { MetKind::NoRule },
            rule: rule.map(str::to_owned),
            verdict,
            hits: 1,
            is_in_envoy: false,
            left: Some((0, 3)),
            retry_ms: None,
        }
    }

    /// The numbers and the values of the decisions that a query asks for.
    fn asked(tap: &Tap, query: &str) -> Vec<(u64, String)> {
        let text = tap.events(&Filter::parse(query, None).unwrap());
        let events = text.split("\n\n").filter_map(|event| event.strip_prefix("id: "));
        let parsed = events.map(|event| {
            let (number, data) = event.split_once("\ndata: ").unwrap();
            let data: serde_json::Value = serde_json::from_str(data).unwrap();
            (number.parse().unwrap(), data["entries"][0]["value"].as_str().unwrap().to_owned())
        });
        parsed.collect()
    }

    #[test]
    fn a_filter_picks_decisions_and_each_comes_once() {
        let tap = Tap::default();
        tap.add(vec![
            decision("a\n\nid: 7\ndata: {}", Verdict::Allowed, Some("d/user")),
            decision("b", Verdict::Denied, Some("d/user")),
            decision("c", Verdict::Allowed, None),
        ]);
        let values = |query: &str| -> Vec<String> {
            asked(&tap, query).into_iter().map(|(_, value)| value).collect()
        };
        assert_eq!(values(""), ["a\n\nid: 7\ndata: {}", "b", "c"]);
        assert_eq!(values("denied"), ["b"]);
        assert_eq!(values("rule=none"), ["c"]);
        assert_eq!(values("rule=d/user&match=user%3Db"), ["b"]);
        let first = asked(&tap, "")[0].0;
        assert_eq!(values(&format!("after={first}")), ["b", "c"]);
        assert_eq!(values(&format!("after={}", u64::MAX)).len(), 3, "of another process");
        assert_eq!((tap.take().len(), tap.take().len()), (3, 0));
    }

    #[test]
    fn a_mistake_is_named() {
        let check = |query: &str, message: &str| {
            assert_eq!(Filter::parse(query, None), Err(message.to_owned()), "{query}");
        };
        check("match=a", "`match` must be KEY=VALUE, at most 8 times");
        check(&"match=a=b&".repeat(9), "`match` must be KEY=VALUE, at most 8 times");
        check("denied=no", "`denied` has no value");
        check("after=x", "`after` must be a number");
        check("n=1", "\"n\" is no parameter: denied, rule, match, after");
    }

    #[test]
    fn rates_and_memory_are_bounded_and_denials_have_room_beside_the_rest() {
        let mut ring = Ring { decisions: VecDeque::new(), next: 0, slice: 0, in_slice: [0; 2] };
        let mut kept = |verdict, now| (0..1_000).filter(|_| ring.has_room(verdict, now)).count();
        assert_eq!(kept(Verdict::Allowed, 50), 20);
        assert_eq!(kept(Verdict::Denied, 60), 20);
        assert_eq!(kept(Verdict::Allowed, 99), 0);
        assert_eq!(kept(Verdict::Allowed, 100), 20);
        let tap = Tap::default();
        for _ in 0..5 {
            tap.add(vec![decision("a", Verdict::Allowed, None); 1_000]);
        }
        assert_eq!(tap.take().len(), KEPT_MAX);
    }

    #[test]
    fn nothing_is_kept_while_nobody_asks() {
        let tap = Tap::default();
        assert!(!tap.is_open(|| panic!("the time is read for nothing")));
        tap.open(1_000);
        assert!(tap.is_open(|| 5_999) && !tap.is_open(|| 6_000));
        assert!(!tap.is_open(|| panic!("the time is read for nothing")));
    }
}
