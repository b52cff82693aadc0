//! What each algorithm admits, several limits on one descriptor, and all or nothing among many
//! callers at once.
//!
//! Where the clock must move, its limits are short, and what is checked are bounds that hold
//! however late an answer comes: a decision was made between sending the ask and having the answer.

use anyhow::{Context, ensure};
use std::time::SystemTime;
use tidegate_tests::rls::{Rls, parse};
use tidegate_tests::service::{Service, check, on_service};
use tidegate_tests::wait;
use tidegate_wire::rls::Code;

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

#[tokio::test]
async fn every_algorithm_takes_peeks_denies_and_gives_back_alike() -> anyhow::Result<()> {
    on_service(TEN, &[], async |service| {
        for key in KEYS {
            for (ask, expected) in [
                ("K=x +0", "OK: OK 10/10 per day"),
                ("K=x", "OK: OK 9/10 per day"),
                ("5x K=x", "OK: OK 4/10 per day"),
                ("K=x +0", "OK: OK 4/10 per day"),
                ("5x K=x", "OVER: OVER 4/10 per day"),
                ("K=y", "OK: OK 9/10 per day"),
                ("4x K=x", "OK: OK 0/10 per day"),
                ("K=x", "OVER: OVER 0/10 per day"),
                ("K=x +0", "OVER: OVER 0/10 per day"),
                ("K=x -3", "OK: OK 3/10 per day"),
                ("4294967295x K=x", "OVER: OVER 3/10 per day"),
                ("K=x +18446744073709551615", "OVER: OVER 3/10 per day"),
                ("K=x -18446744073709551615", "OK: OK 10/10 per day"),
                ("10x K=x", "OK: OK 0/10 per day"),
            ] {
                service.expect(&ask.replace('K', key), expected).await?;
            }
        }
        Ok(())
    })
    .await
}

/// Denied requests tell when the same ask can fit; allowed ones when there is more.
#[tokio::test]
async fn a_denial_tells_when_the_same_ask_can_fit() -> anyhow::Result<()> {
    let limits = "
- {key: bucket, rate_limit: {algorithm: token_bucket, requests: 1, period: 100d, burst: 5}}
- {key: first, rate_limit: {algorithm: first_hit_window, requests: 5, period: 100d}}
- {key: borrow, rate_limit: {algorithm: first_hit_window, requests: 3, period: 100d, borrow: 2}}
";
    on_service(limits, &[], async |service| {
        // Times from now, in periods: all of them begin with the first ask of this test.
        for (ask, expected, periods) in [
            ("5x bucket=x", "OK: OK 0/5", 1),
            ("bucket=x", "OVER: OVER 0/5", 1),
            ("3x bucket=x", "OVER: OVER 0/5", 3),
            // More than fits at any time: until the bucket is full.
            ("6x bucket=x", "OVER: OVER 0/5", 5),
            ("5x first=x", "OK: OK 0/5", 1),
            ("first=x", "OVER: OVER 0/5", 1),
            ("6x first=x", "OVER: OVER 0/5", 1),
            // The next window pays three of five back, the one after it the rest.
            ("5x borrow=x", "OK: OK 0/5", 1),
            ("3x borrow=x", "OVER: OVER 0/5", 1),
            ("4x borrow=x", "OVER: OVER 0/5", 2),
            ("6x borrow=x", "OVER: OVER 0/5", 2),
        ] {
            let answer = service.ask(ask).await?;
            ensure!(tidegate_tests::rls::summary(&answer) == expected, "{ask}: {answer:?}");
            let reset = answer.statuses[0].duration_until_reset.context("a time")?.seconds;
            // The test takes less than ten minutes.
            let length = periods * 100 * 86_400;
            let possible = length - 600..=length;
            ensure!(possible.contains(&reset), "{ask}: {reset} s, expected {possible:?}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_bucket_has_a_burst_and_may_start_with_less() -> anyhow::Result<()> {
    let limits = "
- {key: burst, rate_limit: {algorithm: token_bucket, requests: 1, period: 365d, burst: 3}}
- {key: initial, rate_limit: {algorithm: token_bucket, requests: 10, period: 365d, initial: 2}}
- {key: both, rate_limit: {algorithm: token_bucket, requests: 1, period: 365d, burst: 9, initial: 4}}
- {key: empty, rate_limit: {algorithm: token_bucket, requests: 1, period: 365d, burst: 9, initial: 0}}
";
    check(
        limits,
        &[],
        &[
            ("burst=x", "OK: OK 2/3"),
            ("2x burst=x", "OK: OK 0/3"),
            ("burst=x", "OVER: OVER 0/3"),
            ("initial=x", "OK: OK 1/10 per year"),
            ("initial=x", "OK: OK 0/10 per year"),
            ("initial=x", "OVER: OVER 0/10 per year"),
            ("4x both=x", "OK: OK 0/9"),
            ("both=x", "OVER: OVER 0/9"),
            ("empty=x", "OVER: OVER 0/9"),
            // A refund is no way to fill a bucket that nothing was taken from.
            ("both=y -9", "OK: OK 4/9"),
        ],
    )
    .await
}

#[tokio::test]
async fn a_window_may_borrow_from_those_that_follow() -> anyhow::Result<()> {
    let limits = "
- {key: fixed, rate_limit: {period: 365d, requests: 3, borrow: 2}}
- {key: first, rate_limit: {algorithm: first_hit_window, period: 365d, requests: 3, borrow: 2}}
";
    check(
        limits,
        &[],
        &[
            ("3x fixed=x", "OK: OK 2/5"),
            ("fixed=x", "OK: OK 1/5"),
            ("2x fixed=x", "OVER: OVER 1/5"),
            ("fixed=x", "OK: OK 0/5"),
            ("fixed=x", "OVER: OVER 0/5"),
            ("5x first=x", "OK: OK 0/5"),
            ("first=x", "OVER: OVER 0/5"),
            ("6x first=y", "OVER: OVER 5/5"),
        ],
    )
    .await
}

#[tokio::test]
async fn the_limits_of_one_descriptor_are_taken_from_together_or_not_at_all() -> anyhow::Result<()>
{
    let limits = "
- key: user
  rate_limits:
  - {name: bucket, algorithm: token_bucket, requests: 3, period: 10d}
  - {name: hour, algorithm: sliding_window, requests: 5, period: 1d}
  - {name: ring, algorithm: sliding_buckets, requests: 6, period: 1d}
  - {name: exact, algorithm: sliding_buckets, exact: true, requests: 7, period: 1d}
  - {name: first, algorithm: first_hit_window, requests: 8, period: 1d}
  - {name: day, requests: 9, period: 1d}
";
    check(
        limits,
        &[],
        &[
            // The one with least left is reported.
            ("user=a", "OK: OK 2/3 (bucket)"),
            ("2x user=a", "OK: OK 0/3 (bucket)"),
            ("user=a", "OVER: OVER 0/3 (bucket)"),
            // Three were taken of each; giving back goes to each.
            ("user=a -1", "OK: OK 1/3 (bucket)"),
            ("2x user=a", "OVER: OVER 1/3 (bucket)"),
            ("user=a", "OK: OK 0/3 (bucket)"),
            ("user=b", "OK: OK 2/3 (bucket)"),
        ],
    )
    .await
}

#[tokio::test]
async fn of_several_limits_that_deny_the_one_that_denies_for_longest_is_told() -> anyhow::Result<()>
{
    let limits = "
- key: user
  rate_limits:
  - {name: short, algorithm: first_hit_window, period: 2d, requests: 1}
  - {name: long, algorithm: first_hit_window, period: 9d, requests: 1}
  - {name: middle, algorithm: first_hit_window, period: 4d, requests: 1}
";
    check(limits, &[], &[("user=a", "OK: OK 0/1 (long)"), ("user=a", "OVER: OVER 0/1 (long)")])
        .await
}

#[tokio::test]
async fn what_one_limit_denies_the_others_do_not_count() -> anyhow::Result<()> {
    let limits = "
- key: user
  rate_limits:
  - {name: many, unit: day, requests_per_unit: 100}
  - {name: few, unit: week, requests_per_unit: 2}
- key: probe
  rate_limits:
  - {name: many, unit: day, requests_per_unit: 100, count_denied: true}
  - {name: few, unit: week, requests_per_unit: 2}
";
    let unlimited_few =
        |limits: &str| limits.replace("requests_per_unit: 2}", "requests_per_unit: 999}");
    on_service(limits, &[], async |service| {
        for (ask, expected) in [
            ("2x user=a", "OK: OK 0/2 per week (few)"),
            ("user=a", "OVER: OVER 0/2 per week (few)"),
            ("7x user=a", "OVER: OVER 0/2 per week (few)"),
            ("2x probe=a", "OK: OK 0/2 per week (few)"),
            ("probe=a", "OVER: OVER 0/2 per week (few)"),
            ("7x probe=a", "OVER: OVER 0/2 per week (few)"),
        ] {
            service.expect(ask, expected).await?;
        }
        // With the small limit out of the way the large one tells what it counted.
        service.put(&unlimited_few(limits))?;
        service.until("user=a +0", "OK: OK 98/100 per day (many)").await?;
        service.expect("probe=a +0", "OK: OK 90/100 per day (many)").await
    })
    .await
}

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

#[tokio::test]
async fn a_first_hit_window_opens_anew_with_the_first_hit_after_its_end() -> anyhow::Result<()> {
    let limits =
        "- {key: k, rate_limit: {algorithm: first_hit_window, period: 500ms, requests: 3}}";
    let service = Service::start(limits, &[]).await?;
    for _ in 0..2 {
        // Whenever it is over, the next hit finds all of a window.
        service.until("k=x +0", "OK: OK 3/3").await?;
        let begun = now()?;
        service.expect("3x k=x", "OK: OK 0/3").await?;
        service.until("k=x +0", "OK: OK 3/3").await?;
        let lasted = now()? - begun;
        ensure!(lasted >= 500_000_000, "over after {lasted} ns");
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
    on_service(MANY, &[], async |service| {
        let mut callers = tokio::task::JoinSet::new();
        for caller in 0..CALLERS {
            let rls = Rls::at(service.dir()).await?;
            callers.spawn(async move {
                let mut passed = [0_usize; USERS];
                for turn in 0..TURNS {
                    let user = (turn * 7 + caller * 3) % USERS;
                    let ask = parse(&format!("seen=x & all=x & user={user}"))?;
                    passed[user] += usize::from(rls.call(ask).await?.overall_code() == Code::Ok);
                    // Always denied, and always without effect on the others.
                    let ask = parse(&format!("all=x & user={user} & seen=x & denied=x"))?;
                    ensure!(rls.call(ask).await?.overall_code() == Code::OverLimit);
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
    })
    .await
}

/// As above, on each algorithm by itself, with hits that do not divide the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_at_once_get_exactly_the_limit_by_every_algorithm() -> anyhow::Result<()> {
    let limits = TEN.replace("requests: 10}", "requests: 100}");
    on_service(&limits, &[], async |service| {
        let mut callers = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let rls = Rls::at(service.dir()).await?;
            callers.spawn(async move {
                let mut passed = [0; KEYS.len()];
                for _ in 0..20 {
                    for (key, passed) in KEYS.iter().zip(&mut passed) {
                        let ask = parse(&format!("3x {key}=x"))?;
                        *passed += u32::from(rls.call(ask).await?.overall_code() == Code::Ok);
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
    })
    .await
}
