//! What each algorithm admits by the clock of the system, and all or nothing among many callers at once.
//!
//! Where the clock must move, its limits are short, and the asserted bounds hold however late an answer comes: a
//! decision was made between sending the ask and having the answer.

use anyhow::ensure;
use std::time::SystemTime;
use tidegate_tests::rls::Rls;
use tidegate_tests::service::Service;
use tidegate_tests::wait;
use tidegate_wire::rls::Code;
use tidegate_wire::testing::parse;

/// Every algorithm with ten hits in a long period.
const TEN: &str = "
- {key: default, rate_limit: {period: 1d, requests: 10}}
- {key: fixed_window, rate_limit: {algorithm: fixed_window, period: 1d, requests: 10}}
- {key: first_hit_window, rate_limit: {algorithm: first_hit_window, period: 1d, requests: 10}}
- {key: token_bucket, rate_limit: {algorithm: token_bucket, period: 1d, requests: 10}}
- {key: sliding_window, rate_limit: {algorithm: sliding_window, period: 1d, requests: 10}}
- {key: sliding_buckets, rate_limit: {algorithm: sliding_buckets, period: 1d, requests: 10}}
- {key: exact, rate_limit: {algorithm: sliding_buckets, exact: true, period: 1d, requests: 10}}
";
const KEYS: [&str; 7] = [
    "default",
    "fixed_window",
    "first_hit_window",
    "token_bucket",
    "sliding_window",
    "sliding_buckets",
    "exact",
];

/// When an ask was sent and answered, in nanoseconds since the Unix epoch.
#[derive(Debug, Clone, Copy)]
struct Admitted {
    sent: u64,
    answered: u64,
}

fn now() -> anyhow::Result<u64> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    Ok(u64::try_from(since.as_nanos())?)
}

const REQUESTS: u64 = 5;
/// In nanoseconds.
const PERIOD: u64 = 1_000_000_000;
const SHORT: &str = "
- {key: fixed, rate_limit: {period: 1s, requests: 5}}
- {key: borrow, rate_limit: {period: 1s, requests: 5, borrow: 3}}
- {key: bucket, rate_limit: {algorithm: token_bucket, period: 1s, requests: 5}}
- {key: window, rate_limit: {algorithm: sliding_window, period: 1s, requests: 5}}
- {key: ring, rate_limit: {algorithm: sliding_buckets, period: 1s, requests: 5}}
- {key: exact, rate_limit: {algorithm: sliding_buckets, exact: true, period: 1s, requests: 5}}
";

/// All pairs of an admitted ask and a later one: how many were admitted from the one to the other,
/// and how long that took at most.
fn spans(all: &[Admitted]) -> impl Iterator<Item = (usize, u64)> {
    all.iter().enumerate().flat_map(move |(index, first)| {
        let later = all[index..].iter().enumerate();
        later.map(move |(more, last)| (more + 1, last.answered.saturating_sub(first.sent)))
    })
}

/// The most that may be admitted in a closed span of this many nanoseconds.
fn most(key: &str, span: u64) -> u64 {
    // What one window, the one at the other end, and all between them admit.
    let windows = span / PERIOD + 2;
    match key {
        "fixed" => windows * REQUESTS,
        "borrow" => windows * REQUESTS + 3,
        // Alike at worst: once the limit, and what comes back meanwhile.
        "bucket" | "window" => REQUESTS + REQUESTS * span / PERIOD,
        // No more than the limit in any one period.
        _ => (span / PERIOD + 1) * REQUESTS,
    }
}

#[tokio::test]
async fn no_algorithm_admits_more_than_it_says_and_all_go_on_admitting() -> anyhow::Result<()> {
    let service = Service::start(SHORT, &[]).await?;
    let keys = ["fixed", "borrow", "bucket", "window", "ring", "exact"];
    let mut admitted = keys.map(|_| Vec::new());
    wait::until("each algorithm to have admitted three times its limit", wait::SOON, async || {
        for (key, admitted) in keys.iter().zip(&mut admitted) {
            let sent = now().ok()?;
            let answer = service.ask(&format!("{key}=x")).await.ok()?;
            if answer.overall_code() == Code::Ok {
                admitted.push(Admitted { sent, answered: now().ok()? });
            }
        }
        admitted.iter().all(|all| all.len() as u64 >= 3 * REQUESTS).then_some(())
    })
    .await?;
    for (key, all) in keys.iter().zip(&admitted) {
        for (count, span) in spans(all) {
            let most = most(key, span);
            ensure!(count as u64 <= most, "{key}: {count} in {span} ns, at most {most}: {all:?}");
        }
    }
    let fixed = &admitted[0];
    for window in fixed.iter().map(|of| of.sent / PERIOD) {
        let is_inside =
            |of: &&Admitted| [of.sent, of.answered].map(|at| at / PERIOD) == [window; 2];
        let inside = fixed.iter().filter(is_inside).count();
        ensure!(inside as u64 <= REQUESTS, "{inside} in window {window}: {fixed:?}");
    }
    Ok(())
}

const MANY: &str = "
- {key: all, rate_limit: {unit: day, requests_per_unit: 300}}
- {key: denied, rate_limit: {unit: day, requests_per_unit: 0}}
- {key: seen, rate_limit: {unit: day, requests_per_unit: 100000}}
- key: user
  rate_limits:
  - {name: bucket, algorithm: token_bucket, requests: 90, period: 365d}
  - {name: window, algorithm: sliding_window, requests: 85, period: 365d}
  - {name: ring, algorithm: sliding_buckets, requests: 80, period: 1d}
  - {name: exact, algorithm: sliding_buckets, exact: true, requests: 70, period: 1d}
  - {name: first, algorithm: first_hit_window, requests: 75, period: 1d}
";
const USERS: usize = 6;
const CALLERS: usize = 8;
const TURNS: usize = 100;

/// Callers on connections of their own race for a limit that all share, and for five that each
/// user has. Exactly as many pass as may, and what every counter says afterwards is the number of
/// requests that passed: nothing was taken for one that was denied, nothing twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_at_once_get_exactly_the_limit_and_denials_take_nothing() -> anyhow::Result<()> {
    let service = Service::start(MANY, &[]).await?;
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..CALLERS {
        let rls = Rls::at(service.dir()).await?;
        callers.spawn(async move {
            let mut passed = [0_usize; USERS];
            for turn in 0..TURNS {
                let user = (turn * 7 + caller * 3) % USERS;
                let ask = parse(&format!("seen=x & all=x & user={user}"))?;
                passed[user] += usize::from(rls.decide(ask).await?.overall_code() == Code::Ok);
                // Always denied, and always without effect on the others.
                let ask = parse(&format!("all=x & user={user} & seen=x & denied=x"))?;
                ensure!(rls.decide(ask).await?.overall_code() == Code::OverLimit);
            }
            anyhow::Ok(passed)
        });
    }
    let mut passed = [0; USERS];
    while let Some(caller) = callers.join_next().await {
        for (all, one) in passed.iter_mut().zip(caller??) {
            *all += one;
        }
    }
    ensure!(passed.iter().sum::<usize>() == 300, "{passed:?}");
    service.expect("all=x +0", "OVER: OVER 0/300 per day").await?;
    service.expect("seen=x +0", "OK: OK 99700/100000 per day").await?;
    for (user, passed) in passed.into_iter().enumerate() {
        ensure!(passed <= 70, "user {user} passed {passed} times");
        let code = if passed < 70 { "OK" } else { "OVER" };
        let left = 70 - passed;
        let expected = format!("{code}: {code} {left}/70 per day (exact)");
        service.expect(&format!("user={user} +0"), &expected).await?;
    }
    Ok(())
}

/// As above, on each algorithm by itself, with hits that do not divide the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_at_once_get_exactly_the_limit_by_every_algorithm() -> anyhow::Result<()> {
    let limits = TEN.replace("requests: 10}", "requests: 100}");
    let service = Service::start(&limits, &[]).await?;
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let rls = Rls::at(service.dir()).await?;
        callers.spawn(async move {
            let mut passed = [0; KEYS.len()];
            for _ in 0..20 {
                for (key, passed) in KEYS.iter().zip(&mut passed) {
                    let ask = parse(&format!("3x {key}=x"))?;
                    *passed += u32::from(rls.decide(ask).await?.overall_code() == Code::Ok);
                }
            }
            anyhow::Ok(passed)
        });
    }
    let mut passed = [0; KEYS.len()];
    while let Some(caller) = callers.join_next().await {
        for (all, one) in passed.iter_mut().zip(caller??) {
            *all += one;
        }
    }
    ensure!(passed == [33; KEYS.len()], "{passed:?} of {KEYS:?}");
    for key in KEYS {
        service.expect(&format!("{key}=x +0"), "OK: OK 1/100 per day").await?;
    }
    Ok(())
}
