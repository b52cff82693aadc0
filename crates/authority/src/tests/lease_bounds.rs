//! Proxies that ask, hold, spend late and give back as chance has it: no algorithm admits more than its
//! own bound, whatever they do.

use super::leases::{Held, leasing, wants};
use super::*;

const SECOND: u64 = 1_000_000_000;
const TTL: u64 = 2 * SECOND;
const LIMIT: u64 = 40;
/// Of every limit here.
const PERIOD: u64 = 10 * SECOND;

/// Of each algorithm.
const RUNS: u64 = 20;

/// Hits, and when they were spent.
type Spent = Vec<(u64, u64)>;
/// Whether so many hits may be admitted from a first time to a last, both included.
type Fits = fn(first: u64, last: u64, hits: u64) -> bool;

/// Numbers of chance, the same in each run (splitmix64).
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// All that is spent in a run on a counter of its own. A run begins when the leases of the one before have ended.
fn run(engine: &Fixture, number: u64) -> Spent {
    let of_value = || vec![descriptor(&[("k", &number.to_string())])];
    let (mut chance, mut now) = (Chance(number * 1_000), number * 1_000 * SECOND + 3 * SECOND);
    let (mut spent, mut held) = (Spent::new(), Vec::<Held>::new());
    for _ in 0..250 {
        now += match chance.below(10) {
            0..4 => 0,
            4..8 => chance.below(SECOND / 10),
            8 => chance.below(SECOND),
            _ => chance.below(3 * SECOND),
        };
        held.retain(|held| held.tokens > 0 && now < held.until);
        let index = chance.below(held.len().max(1) as u64) as usize;
        match (chance.below(6), held.get_mut(index)) {
            (0..2, Some(held)) => {
                let tokens = 1 + chance.below(held.tokens);
                held.tokens -= tokens;
                spent.push((now, tokens));
            }
            (2 | 3, Some(held)) => {
                let tokens = 1 + chance.below(held.tokens);
                held.tokens -= tokens;
                engine.give_back_to(of_value(), now, held.id, tokens);
            }
            _ => {
                let ask = wants(chance.below(4), chance.below(60), chance.below(12));
                let answer = engine.ask_leasing(now, of_value(), &ask);
                if answer.verdict == Verdict::Allow {
                    spent.push((now, 1));
                }
                held.extend(answer.statuses[0].lease.map(|lease| Held::of(lease, now)));
            }
        }
    }
    spent
}

fn check(limit: &str, fits: Fits) {
    let engine = leasing(&format!("- {{key: k, rate_limit: {limit}}}"));
    let mut admitted = 0;
    for number in 0..RUNS {
        let spent = run(&engine, number);
        for (index, (first, _)) in spent.iter().enumerate() {
            let mut hits = 0;
            for (last, more) in &spent[index..] {
                hits += more;
                assert!(
                    fits(*first, *last, hits),
                    "{limit}, run {number}: {hits} in {first}..={last}"
                );
            }
        }
        admitted += spent.iter().map(|(_, hits)| hits).sum::<u64>();
    }
    assert!(admitted > RUNS * LIMIT, "{limit}: only {admitted}");
}

#[test]
fn a_window_admits_its_limit() {
    check("{period: 10s, requests: 40}", |first, last, hits| {
        // The tests start with a window.
        first / PERIOD != last / PERIOD || hits <= LIMIT
    });
}

#[test]
fn a_first_hit_window_admits_its_limit_from_one_opening_to_the_next() {
    check("{algorithm: first_hit_window, period: 10s, requests: 40}", |first, last, hits| {
        hits <= LIMIT * ((last - first) / PERIOD + 2)
    });
}

#[test]
fn a_sliding_window_admits_what_a_bucket_of_its_limit_does() {
    check("{algorithm: sliding_window, period: 10s, requests: 40}", |first, last, hits| {
        hits <= LIMIT + LIMIT * (last - first).saturating_sub(1) / PERIOD
    });
}

#[test]
fn a_ring_admits_its_limit_in_any_period() {
    check("{algorithm: sliding_buckets, period: 10s, requests: 40}", |first, last, hits| {
        last - first > PERIOD || hits <= LIMIT
    });
}

#[test]
fn an_exact_window_admits_its_limit_in_any_period() {
    let limit = "{algorithm: sliding_buckets, exact: true, period: 10s, requests: 40}";
    check(limit, |first, last, hits| last - first > PERIOD || hits <= LIMIT);
}

#[test]
fn a_bucket_admits_its_burst_and_what_refills_in_the_time_and_that_of_a_lease() {
    let limit = "{algorithm: token_bucket, requests: 40, period: 10s, burst: 40}";
    check(limit, |first, last, hits| {
        hits * PERIOD <= LIMIT * PERIOD + LIMIT * (last - first + TTL)
    });
}
