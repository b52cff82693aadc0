//! What a service tells besides the verdict: when a limit resets, counts by rule, metadata.

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate_tests::service::{Service, on_service};
use tidegate_wire::{Kind, Struct};

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

/// Windows of this many seconds; one ends `offset` seconds after the Unix epoch.
fn aligned(secs: u64, offset: u64) -> impl Fn(u64) -> u64 {
    let (period, offset) = (secs * NANOS, offset * NANOS);
    move |at| (at - offset) / period * period + offset + period
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
            check_reset(&service, &format!("{unit}=x"), aligned(secs, 0)).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn windows_of_any_length_and_by_a_local_clock_end_where_these_say() -> anyhow::Result<()> {
    let limits = "
- {key: 90m, rate_limit: {period: 90m, requests: 1}}
- {key: shanghai, rate_limit: {unit: day, requests_per_unit: 1, timezone: '+08:00'}}
- {key: kolkata, rate_limit: {period: 1d, requests: 1, timezone: Asia/Kolkata}}
- {key: week, rate_limit: {unit: week, requests_per_unit: 1, timezone: UTC}}
";
    let service = Service::start(limits, &[]).await?;
    check_reset(&service, "90m=x", aligned(90 * 60, 0)).await?;
    check_reset(&service, "shanghai=x", aligned(DAY, 16 * 3_600)).await?;
    check_reset(&service, "kolkata=x", aligned(DAY, 18 * 3_600 + 1_800)).await?;
    // With a zone a week starts on a Monday, four days after a Thursday.
    check_reset(&service, "week=x", aligned(7 * DAY, 4 * DAY)).await
}

/// The first day of the month, or of the year, after the one that `at` is in; by counting up.
fn next_first(at: u64, of: Of) -> u64 {
    let is_leap =
        |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let days = at / (DAY * NANOS);
    let (mut first, mut year) = (0, 1970);
    loop {
        let february = if is_leap(year) { 29 } else { 28 };
        for month in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
            first += month;
            if first > days && matches!(of, Of::Month) {
                return first * DAY * NANOS;
            }
        }
        if first > days {
            return first * DAY * NANOS;
        }
        year += 1;
    }
}

#[derive(Clone, Copy)]
enum Of {
    Month,
    Year,
}

#[tokio::test]
async fn months_and_years_are_those_of_the_calendar_where_that_is_asked_for() -> anyhow::Result<()>
{
    let limits = "
- {key: period, rate_limit: {period: 1mo, requests: 1}}
- {key: zone, rate_limit: {unit: month, requests_per_unit: 1, timezone: UTC}}
- {key: east, rate_limit: {unit: month, requests_per_unit: 1, timezone: '+14:00'}}
- {key: year, rate_limit: {period: 1y, requests: 1}}
";
    let service = Service::start(limits, &[]).await?;
    check_reset(&service, "period=x", |at| next_first(at, Of::Month)).await?;
    check_reset(&service, "zone=x", |at| next_first(at, Of::Month)).await?;
    let ahead = 14 * 3_600 * NANOS;
    check_reset(&service, "east=x", |at| next_first(at + ahead, Of::Month) - ahead).await?;
    check_reset(&service, "year=x", |at| next_first(at, Of::Year)).await
}

#[tokio::test]
async fn the_time_to_a_reset_counts_down_and_is_told_with_limits_only() -> anyhow::Result<()> {
    let limits = "
- {key: k, rate_limit: {unit: day, requests_per_unit: 100}}
- {key: free, rate_limit: {unlimited: true}}
";
    on_service(limits, &[], async |service| {
        let mut last = i64::MAX;
        for _ in 0..20 {
            let answer = service.ask("k=x & free=x & none=x").await?;
            let times: Vec<_> =
                answer.statuses.iter().map(|status| status.duration_until_reset).collect();
            let [Some(reset), None, None] = times[..] else { anyhow::bail!("{answer:?}") };
            ensure!(reset.seconds <= last && reset.seconds <= 86_400, "{reset:?} after {last}");
            last = reset.seconds;
        }
        Ok(())
    })
    .await
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
    on_service(limits, &[], async |service| {
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
            ("test/two#2", Some("total 3, within 3, near 0, over 0, shadow 0")),
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
    })
    .await
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
    on_service(limits, &[], async |service| {
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
    })
    .await
}

fn as_json(of: &Struct) -> Value {
    let fields = of.fields.iter().map(|(key, value)| (key.clone(), value_as_json(value)));
    Value::Object(fields.collect())
}

fn value_as_json(value: &tidegate_wire::Value) -> Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(value)) => json!(value),
        Some(Kind::NumberValue(value)) => json!(value),
        Some(Kind::StringValue(value)) => json!(value),
        Some(Kind::ListValue(list)) => list.values.iter().map(value_as_json).collect(),
        Some(Kind::StructValue(of)) => as_json(of),
    }
}

const METADATA: &str = "
- key: a
  rate_limit: {unit: day, requests_per_unit: 3}
  metadata: {plan: gold, cost: 2, ratio: 0.5, tags: [x, null, true], owner: {team: t}}
- {key: b, rate_limit: {unit: day, requests_per_unit: 3}, metadata: {plan: iron, region: eu}}
- {key: over, rate_limit: {unit: day, requests_per_unit: 0}, metadata: {over: true}}
- {key: quota, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 0}, metadata: {quota: over}}
- {key: free, rate_limit: {unlimited: true}, metadata: {free: true}}
- {key: detailed, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 3}, metadata: {kept: true}}
- {key: named, rate_limit: {name: named, unit: day, requests_per_unit: 3}, metadata: {named: true}}
- {key: vip, rate_limit: {unit: day, requests_per_unit: 3, replaces: [{name: named}]}}
- {key: plain, rate_limit: {unit: day, requests_per_unit: 9}}
";

#[tokio::test]
async fn dynamic_metadata_tell_of_the_request_and_of_the_rules_that_it_passed() -> anyhow::Result<()>
{
    on_service(METADATA, &["--dynamic-metadata"], async |service| {
        let all = "3x a=x & b=y,c=z & plain=p +2 9/hour & plain=q -1";
        let found = service.ask(all).await?.dynamic_metadata.context("metadata")?;
        let expected = json!({
            "domain": "test",
            "hitsAddend": 3.0,
            "descriptors": [
                {"entries": ["a=x"]},
                {"entries": ["b=y", "c=z"]},
                {
                    "entries": ["plain=p"],
                    "hitsAddend": 2.0,
                    "limit": {"requestsPerUnit": 9.0, "unit": "HOUR"},
                },
                {"entries": ["plain=q"], "hitsAddend": 1.0},
            ],
            "metadata": {
                "plan": "gold", "cost": 2.0, "ratio": 0.5, "tags": ["x", null, true],
                "owner": {"team": "t"},
            },
        });
        ensure!(as_json(&found) == expected, "{:#}", as_json(&found));
        for (ask, metadata) in [
            // Of two values the first wins, in the order of the request.
            (
                "b=x & a=y",
                json!({
                    "plan": "iron", "region": "eu", "cost": 2.0, "ratio": 0.5,
                    "tags": ["x", null, true], "owner": {"team": "t"},
                }),
            ),
            ("free=x & detailed=x", json!({"free": true, "kept": true})),
            // Not of a rule that is over, whether or not it denies.
            ("b=z & over=x", json!({"plan": "iron", "region": "eu"})),
            ("b=z & over=x & quota=x", json!({"plan": "iron", "region": "eu"})),
            ("plain=x & other=x", Value::Null),
            // Nor of one that is replaced.
            ("named=x", json!({"named": true})),
            ("named=x & vip=x", Value::Null),
        ] {
            let found = service.ask(ask).await?.dynamic_metadata.context("metadata")?;
            let found = as_json(&found)["metadata"].clone();
            ensure!(found == metadata, "{ask}: {found:#}");
        }
        Ok(())
    })
    .await
}

#[tokio::test]
async fn dynamic_metadata_are_told_only_when_asked_for() -> anyhow::Result<()> {
    let service = Service::start(METADATA, &[]).await?;
    let answer = service.ask("a=x").await?;
    ensure!(answer.dynamic_metadata.is_none(), "{answer:?}");
    Ok(())
}
