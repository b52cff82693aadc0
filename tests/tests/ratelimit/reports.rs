//! What a service reports beside the verdict: when a limit resets by the clock of the system, and counts by rule.

use anyhow::{Context, ensure};
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate_tests::service::Service;

const DAY: u64 = 86_400;
const NANOS: u64 = 1_000_000_000;

/// Nanoseconds since the Unix epoch, by the clock that the sidecar reads too.
fn now() -> anyhow::Result<u64> {
    Ok(u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos())?)
}

/// Calls until no window ended meanwhile, and checks that the reported time is the time to the end of
/// the window, in whole seconds, rounded up. `end_of` is where the window of a time ends.
async fn check_reset(
    service: &Service,
    ask: &str,
    end_of: impl Fn(u64) -> u64,
) -> anyhow::Result<()> {
    loop {
        let before = now()?;
        let answer = service.ask(ask).await?;
        let after = now()?;
        let end = end_of(before);
        if end_of(after) != end {
            continue;
        }
        let reset = answer.statuses[0].duration_until_reset.context("no time")?;
        let secs = u64::try_from(reset.seconds)?;
        let possible = (end - after).div_ceil(NANOS)..=(end - before).div_ceil(NANOS);
        ensure!(possible.contains(&secs) && reset.nanos == 0, "{ask}: {reset:?}, not {possible:?}");
        return Ok(());
    }
}

/// The end of the window of this many seconds that `at` is in.
fn end_of_window(at: u64, secs: u64) -> u64 {
    let period = secs * NANOS;
    at / period * period + period
}

#[tokio::test]
async fn windows_end_at_multiples_of_their_length_since_1970() -> anyhow::Result<()> {
    // 1970-01-01 was a Thursday, so weeks end when one begins. A month has 30 days, a year 365.
    let units = [
        ("second", 1),
        ("minute", 60),
        ("hour", 3_600),
        ("day", DAY),
        ("week", 7 * DAY),
        ("month", 30 * DAY),
        ("year", 365 * DAY),
    ];
    let rule = |(unit, _): (&str, u64)| {
        format!("- {{key: {unit}, rate_limit: {{unit: {unit}, requests_per_unit: 1}}}}\n")
    };
    let limits: String = units.into_iter().map(rule).collect();
    let service = Service::start(&limits, &[]).await?;
    for (unit, secs) in units {
        // Allowed or denied, the time is that to the end.
        for _ in 0..2 {
            check_reset(&service, &format!("{unit}=x"), |at| end_of_window(at, secs)).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn hits_are_counted_by_rule_and_by_what_came_of_them() -> anyhow::Result<()> {
    let limits = "
- {key: k, rate_limit: {unit: day, requests_per_unit: 10}}
- {key: k, value: own, rate_limit: {unit: day, requests_per_unit: 10}}
- {key: k, value: 'w*', rate_limit: {unit: day, requests_per_unit: 10}}
- {key: seen, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 2}}
- {key: free, rate_limit: {unlimited: true}}
- key: a/b
  descriptors:
  - {key: 'c#d', rate_limit: {unit: day, requests_per_unit: 10}}
- key: two
  rate_limits:
  - {name: short, unit: hour, requests_per_unit: 2}
  - {unit: day, requests_per_unit: 10}
- {key: kind, rate_limit: {name: kind, unit: day, requests_per_unit: 10}}
- {key: path, rate_limit: {unit: day, requests_per_unit: 10, replaces: [{name: kind}]}}
- {key: counted, rate_limit: {unit: day, requests_per_unit: 10, count_denied: true}}
";
    let service = Service::start(limits, &[]).await?;
    let asks = [
        // 8 of 10 are not near the limit, the ninth and tenth are, the rest is over.
        "8x k=x",
        "k=x",
        "k=x",
        "k=x",
        "2x k=x",
        // All values that no other rule takes count together.
        "k=y",
        // Peeks and refunds are not hits.
        "k=y +0",
        "k=y -1",
        // In one call; two of them are near.
        "10x k=own",
        "3x k=w1",
        "2x seen=x",
        "3x seen=x",
        "7x free=x",
        "a/b=x,c#d=y",
        "two=x",
        "two=x",
        "two=x",
        "k=z 5/minute",
        // What is replaced is not asked.
        "kind=x",
        "kind=x & path=x",
        // All of an ask that does not fit is over, even if denied hits are counted.
        "6x counted=x",
        "6x counted=x",
    ];
    for ask in asks {
        service.ask(ask).await?;
    }
    let expected = [
        ("test/k", Some("total 14, within 11, near 2, over 3, shadow 0")),
        ("test/k=own", Some("total 10, within 10, near 2, over 0, shadow 0")),
        ("test/k=w*", Some("total 3, within 3, near 0, over 0, shadow 0")),
        ("test/seen", Some("total 5, within 2, near 1, over 3, shadow 3")),
        ("test/free", Some("total 7, within 7, near 0, over 0, shadow 0")),
        ("test/a%2Fb/c%23d", Some("total 1, within 1, near 0, over 0, shadow 0")),
        ("test/two#short", Some("total 3, within 2, near 1, over 1, shadow 0")),
        ("test/two#2", Some("total 3, within 2, near 0, over 0, shadow 0")),
        ("test/kind", Some("total 1, within 1, near 0, over 0, shadow 0")),
        ("test/path", Some("total 1, within 1, near 0, over 0, shadow 0")),
        ("test/counted", Some("total 12, within 6, near 0, over 6, shadow 0")),
        ("(override)", Some("total 1, within 1, near 0, over 0, shadow 0")),
        ("test/k=x", None),
    ];
    for (rule, counts) in expected {
        let found = service.counts(rule).await?;
        ensure!(found.as_deref() == counts, "{rule}: {found:?}, expected {counts:?}");
    }
    service.expect_metric("tidegate_answers_total{code=\"ok\"} 18").await?;
    service.expect_metric("tidegate_answers_total{code=\"over_limit\"} 4").await
}

#[tokio::test]
async fn values_are_part_of_the_name_of_a_metric_where_that_is_asked_for() -> anyhow::Result<()> {
    let limits = "
- key: app
  value_to_metric: true
  descriptors:
  - key: user
    descriptors:
    - {key: path, rate_limit: {unit: day, requests_per_unit: 10}}
- key: tenant
  descriptors:
  - {key: user, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 10}}
- {key: file, value: 'img/*', value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 10}}
- {key: plain, rate_limit: {unit: day, requests_per_unit: 10}}
- {key: free, detailed_metric: true, rate_limit: {unlimited: true}}
- {key: empty, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 10}}
";
    let service = Service::start(limits, &[]).await?;
    for ask in [
        "app=shop,user=a,path=/x",
        "2x app=shop,user=b,path=/y",
        "app=blog,user=a,path=/x",
        "tenant=t,user=u",
        "file=img/1",
        "plain=p",
        "free=f",
        "empty=",
    ] {
        service.ask(ask).await?;
    }
    for (rule, hits) in [
        ("test/app=shop/user/path", Some(3)),
        ("test/app=blog/user/path", Some(1)),
        ("test/app/user/path", Some(0)),
        ("test/tenant=t/user=u", Some(1)),
        ("test/file=img%2F1", Some(1)),
        ("test/plain", Some(1)),
        ("test/plain=p", None),
        ("test/free=f", Some(1)),
        ("test/empty=", Some(1)),
    ] {
        let found = service.counts(rule).await?;
        let expected =
            hits.map(|hits| format!("total {hits}, within {hits}, near 0, over 0, shadow 0"));
        ensure!(found == expected, "{rule}: {found:?}, expected {expected:?}");
    }
    Ok(())
}

/// Only requests that the global mode alone let pass are counted. A quota that is over beside one with room denies
/// nothing.
#[tokio::test]
async fn global_shadow_counts_only_what_would_have_been_denied() -> anyhow::Result<()> {
    let limits = "
- {key: seen, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: hard, rate_limit: {unit: day, requests_per_unit: 3}}
- {key: q1, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: q2, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 2}}
";
    let service = Service::start(limits, &["--shadow-mode"]).await?;
    for (ask, expected, shadowed) in [
        ("3x hard=a", "OK: OK 0/3 per day", 0),
        ("hard=a", "OK: OVER 0/3 per day", 1),
        ("hard=a & seen=a & hard=b", "OK: OVER 0/3 per day, OK 0/1 per day, OK 2/3 per day", 2),
        ("hard=a & seen=a", "OK: OVER 0/3 per day, OK 0/1 per day", 3),
        ("seen=a", "OK: OK 0/1 per day", 3),
        ("hard=b +0", "OK: OK 2/3 per day", 3),
        ("q1=a", "OK: OK 0/1 per day", 3),
        ("q1=a & q2=a", "OK: OVER 0/1 per day, OK 1/2 per day", 3),
        ("q1=a", "OK: OVER 0/1 per day", 4),
    ] {
        service.expect(ask, expected).await?;
        let metric = format!("tidegate_global_shadow_mode_total {shadowed}");
        service.expect_metric(&metric).await?;
    }
    Ok(())
}
