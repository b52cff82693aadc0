//! Checks docs/reference/algorithms.md against the code: replays its worked examples, and recomputes its figures.
//!
//! An example is a table below a line `<!-- replay: algorithm key=value … -->`. Its times count from a moment
//! where a minute, an hour and a day begin. Other checked tables have such a line too.

use super::algorithms;
use super::traffic::{self, BOUNDARY_SECS};
use crate::counter::Counter;
use std::collections::{BTreeMap, BTreeSet};
use tidegate_core::{
    Charge, FirstHitWindow, FixedWindow, Hits, Nanos, Outcome, Quota, SlidingBuckets, SlidingExact,
    SlidingWindow, StateSize, Timestamp, TokenBucket, decide,
};

const DOCUMENT: &str = include_str!("../../../docs/reference/algorithms.md");
/// Bytes of a node without its state.
const NODE_HEAD: usize = 24;

/// The tables below lines that begin with `mark`: the rest of the line, and the cells.
fn tables(mark: &str) -> Vec<(&'static str, Vec<Vec<&'static str>>)> {
    let mut tables = Vec::new();
    let mut lines = DOCUMENT.lines();
    while let Some(line) = lines.next() {
        let Some(rest) = line.strip_prefix("<!-- ").and_then(|line| line.strip_prefix(mark)) else {
            continue;
        };
        let rest = rest.strip_suffix(" -->").unwrap().trim_start_matches(':').trim();
        let table = lines.by_ref().skip_while(|line| line.is_empty());
        let rows = table.take_while(|line| line.starts_with('|')).skip(2);
        let cells = |row: &'static str| row.trim_matches('|').split('|').map(str::trim).collect();
        let rows: Vec<Vec<&str>> = rows.map(cells).collect();
        assert!(!rows.is_empty(), "{line} has no table below it");
        tables.push((rest, rows));
    }
    assert!(!tables.is_empty(), "nothing is marked as {mark}");
    tables
}

/// The only table below this mark.
fn table(mark: &str) -> Vec<Vec<&'static str>> {
    let mut tables = tables(mark);
    assert_eq!(tables.len(), 1, "{mark}");
    tables.remove(0).1
}

/// Parses a time such as `1 h 0.5 s` to milliseconds.
fn millis(text: &str) -> i64 {
    let words: Vec<&str> = text.split_whitespace().collect();
    let millis = |pair: &[&str]| {
        let unit = match pair[1] {
            "ms" => 1.0,
            "s" => 1e3,
            "min" => 60e3,
            "h" => 3_600e3,
            "d" => 86_400e3,
            unit => panic!("{unit} is no unit"),
        };
        (pair[0].parse::<f64>().unwrap() * unit).round() as i64
    };
    words.chunks(2).map(millis).sum()
}

fn nanos(text: &str) -> Nanos {
    Nanos::new(millis(text) as u64 * 1_000_000)
}

fn quota(algorithm: &str, settings: &BTreeMap<&str, &str>) -> Quota {
    let number = |key| settings.get(key).map(|value| value.parse::<u32>().unwrap());
    let requests = number("requests").unwrap();
    let period = settings["period"];
    let unit = period.trim_start_matches(|c: char| c.is_ascii_digit());
    let period = nanos(&period.replace(unit, &format!(" {unit}")));
    let borrow = number("borrow").unwrap_or(0);
    match algorithm {
        "fixed_window" => {
            let window = FixedWindow::new(requests, period).unwrap();
            Quota::FixedWindow(window.with_borrow(borrow).unwrap())
        }
        "first_hit_window" => {
            let window = FirstHitWindow::new(requests, period).unwrap();
            Quota::FirstHitWindow(window.with_borrow(borrow).unwrap())
        }
        "token_bucket" => {
            let burst = number("burst").unwrap_or(requests);
            let initial = number("initial").unwrap_or(burst);
            Quota::TokenBucket(TokenBucket::new(requests, period, burst, initial).unwrap())
        }
        "sliding_window" => Quota::SlidingWindow(SlidingWindow::new(requests, period).unwrap()),
        "sliding_buckets" if settings.contains_key("exact") => {
            Quota::SlidingExact(SlidingExact::new(requests, period).unwrap())
        }
        "sliding_buckets" => Quota::SlidingBuckets(SlidingBuckets::new(requests, period).unwrap()),
        _ => panic!("{algorithm} is no algorithm"),
    }
}

fn charge(ask: &str) -> Charge {
    let hits = |text: &str| Hits::new(text.parse().unwrap());
    match ask.split_once(' ') {
        None if ask == "peek" => Charge::PEEK,
        None => Charge::Take(hits(ask)),
        Some(("force", number)) => Charge::Force(hits(number)),
        Some(("refund", number)) => Charge::Refund(hits(number)),
        Some(_) => panic!("{ask} is nothing to ask"),
    }
}

#[test]
fn worked_examples_are_what_the_code_answers() {
    let mut replayed = BTreeSet::new();
    for (spec, rows) in tables("replay") {
        let (algorithm, rest) = spec.split_once(' ').unwrap();
        let pairs = rest.split(' ').map(|setting| setting.split_once('=').unwrap());
        let mut settings: BTreeMap<&str, &str> = pairs.collect();
        replayed.insert((algorithm, settings.contains_key("exact")));
        let mut counter = Counter::default();
        for row in rows {
            let [at, ask, answer, left, retry_after] = row[..] else { panic!("{spec}: {row:?}") };
            if let Some(requests) = ask.strip_prefix("limit becomes ") {
                settings.insert("requests", requests);
                continue;
            }
            let now = Timestamp::from_secs(BOUNDARY_SECS).saturating_add(nanos(at));
            let decision = counter.decide(&quota(algorithm, &settings), charge(ask), now);
            let outcome = match answer {
                "allow" => Outcome::Allow,
                "deny" => Outcome::Deny { retry_after: nanos(retry_after) },
                _ => panic!("{answer} is no answer"),
            };
            let context = format!("{spec}: {row:?}");
            assert_eq!(decision.outcome, outcome, "{context}");
            assert_eq!(decision.remaining, left.parse::<u64>().unwrap(), "{context}");
        }
    }
    assert_eq!(replayed.len(), 6, "{replayed:?}");
}

#[test]
fn the_figures_of_the_charts_are_those_in_the_document() {
    let stated: Vec<(String, u64, u64)> = table("peaks")
        .iter()
        .map(|row| (row[0].to_owned(), row[1].parse().unwrap(), row[2].parse().unwrap()))
        .collect();
    let counted: Vec<(String, u64, u64)> = algorithms::all()
        .unwrap()
        .iter()
        .map(|algorithm| {
            let peak = traffic::admit(&algorithm.quota).peak().1;
            (algorithm.name.to_owned(), peak, algorithm.bound)
        })
        .collect();
    assert_eq!(stated, counted);
}

#[test]
fn every_chart_is_shown() {
    for (name, _) in super::files().unwrap() {
        assert!(DOCUMENT.contains(&format!("](algorithms/{name})")), "{name} is not shown");
    }
}

#[test]
fn states_are_as_large_as_the_document_says() {
    let narrow = StateSize::Narrow.words() * 8;
    let wide = StateSize::Wide.words() * 8;
    for row in table("sizes") {
        let (state, node): (usize, usize) = (row[1].parse().unwrap(), row[2].parse().unwrap());
        let expected = if row[0].starts_with("sliding_buckets") { wide } else { narrow };
        assert_eq!((state, node), (expected, expected + NODE_HEAD), "{row:?}");
    }
}

/// The most parts that are live at once for a caller that never stops.
fn live_parts(period: Nanos) -> usize {
    let quota = Quota::SlidingExact(SlidingExact::new(u32::MAX, period).unwrap());
    let words = quota.state_size().words();
    let mut parts: BTreeMap<u64, (Timestamp, Vec<u64>)> = BTreeMap::new();
    let mut most = 0;
    let secs = period.as_nanos() / 1_000_000_000;
    // The parts of a minute live longest in its last second. Runs for more than an hour, so that an hour ends
    // during it.
    for second in (0..2 * secs + 4_200).filter(|second| secs < 3_600 || second % 60 == 59) {
        let now = Timestamp::from_secs(BOUNDARY_SECS + second);
        parts.retain(|_, (keep_until, _)| *keep_until > now);
        let labels = quota.parts(now);
        let unused = vec![0; words];
        let of = |label| parts.get(label).map_or(&unused, |(_, words)| words);
        let before: Vec<u64> = labels.labels().iter().flat_map(of).copied().collect();
        let mut after = before.clone();
        let decision = decide(&mut after, &quota, Charge::ONE, now);
        assert!(decision.is_allow());
        // As in the sidecar, only changed parts get a new expiry.
        for (place, label) in labels.labels().iter().enumerate() {
            let range = place * words..(place + 1) * words;
            if before[range.clone()] != after[range.clone()] {
                parts.insert(*label, (decision.keep_until, after[range].to_vec()));
            }
        }
        most = most.max(parts.len());
    }
    most
}

#[test]
fn an_exact_window_has_as_many_parts_as_the_document_says() {
    for row in table("parts") {
        let parts = live_parts(nanos(row[0]));
        let bytes = parts * (StateSize::Wide.words() * 8 + NODE_HEAD);
        let stated: (usize, usize) = (row[1].parse().unwrap(), row[2].parse().unwrap());
        assert_eq!((parts, bytes), stated, "{row:?}");
    }
}
