//! What a request takes: hits, peeks, refunds, limits that it brings along, several descriptors at
//! once; and which requests are refused.

use anyhow::ensure;
use tidegate_tests::rls::parse;
use tidegate_tests::service::{Service, check, on_service};
use tidegate_wire::rls::{DescriptorStatus, RateLimitDescriptor, RateLimitRequest};

#[tokio::test]
async fn a_first_hit_leaves_one_less() -> anyhow::Result<()> {
    let limits = "- {key: key1, rate_limit: {unit: second, requests_per_unit: 50}}";
    check(limits, &[], &[("key1=foo", "OK: OK 49/50 per second")]).await
}

#[tokio::test]
async fn a_limit_is_counted_down_to_zero_and_then_denies() -> anyhow::Result<()> {
    let limits = "- {key: key2, rate_limit: {unit: minute, requests_per_unit: 20}}";
    on_service(limits, &[], async |service| {
        for left in (0..20).rev() {
            service.expect("key2=x", &format!("OK: OK {left}/20 per minute")).await?;
        }
        for _ in 20..25 {
            service.expect("key2=x", "OVER: OVER 0/20 per minute").await?;
        }
        service.expect("key2=y", "OK: OK 19/20 per minute").await
    })
    .await
}

const TWO: &str = "
- {key: key2, rate_limit: {unit: minute, requests_per_unit: 20}}
- {key: key3, rate_limit: {unit: hour, requests_per_unit: 10}}
";

#[tokio::test]
async fn a_denied_request_takes_nothing_from_limits_that_have_room() -> anyhow::Result<()> {
    on_service(TWO, &[], async |service| {
        for i in 1..=10 {
            let (left2, left3) = (20 - i, 10 - i);
            let expected = format!("OK: OK {left2}/20 per minute, OK {left3}/10 per hour");
            service.expect("key2=x & key3=x", &expected).await?;
        }
        for _ in 11..=25 {
            let expected = "OVER: OK 10/20 per minute, OVER 0/10 per hour";
            service.expect("key2=x & key3=x", expected).await?;
        }
        service.expect("key2=x", "OK: OK 9/20 per minute").await
    })
    .await
}

/// As a plain envoyproxy/ratelimit counts.
#[tokio::test]
async fn with_count_denied_a_denied_request_counts() -> anyhow::Result<()> {
    let limits = TWO.replace("rate_limit: {", "rate_limit: {count_denied: true, ");
    on_service(&limits, &[], async |service| {
        for i in 1..=25_u32 {
            let (left2, left3) = (20_u32.saturating_sub(i), 10_u32.saturating_sub(i));
            let code = |limit| if i <= limit { "OK" } else { "OVER" };
            let (all, code2, code3) = (code(10), code(20), code(10));
            let expected =
                format!("{all}: {code2} {left2}/20 per minute, {code3} {left3}/10 per hour");
            service.expect("key2=x & key3=x", &expected).await?;
        }
        // Three do not fit where two are left, and take those two along.
        service
            .expect_all(&[
                ("18x key2=y", "OK: OK 2/20 per minute"),
                ("3x key2=y", "OVER: OVER 0/20 per minute"),
                ("key2=y", "OVER: OVER 0/20 per minute"),
            ])
            .await
    })
    .await
}

const TEN: &str = "
- {key: n, rate_limit: {unit: day, requests_per_unit: 10}}
- {key: one, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: none, rate_limit: {unit: day}}
";

#[tokio::test]
async fn hits_are_those_of_the_descriptor_or_else_of_the_request_or_else_one() -> anyhow::Result<()>
{
    check(
        TEN,
        &[],
        &[
            ("n=a", "OK: OK 9/10 per day"),
            ("0x n=a", "OK: OK 8/10 per day"),
            ("3x n=a", "OK: OK 5/10 per day"),
            ("3x n=a +2", "OK: OK 3/10 per day"),
            ("3x n=a & n=b +1 & n=c", "OK: OK 0/10 per day, OK 9/10 per day, OK 7/10 per day"),
            ("n=d +10", "OK: OK 0/10 per day"),
        ],
    )
    .await
}

#[tokio::test]
async fn an_ask_for_more_than_is_left_takes_nothing() -> anyhow::Result<()> {
    check(
        TEN,
        &[],
        &[
            ("8x n=a", "OK: OK 2/10 per day"),
            ("3x n=a", "OVER: OVER 2/10 per day"),
            ("n=a +18446744073709551615", "OVER: OVER 2/10 per day"),
            ("4294967295x n=a", "OVER: OVER 2/10 per day"),
            ("2x n=a", "OK: OK 0/10 per day"),
            ("11x n=b", "OVER: OVER 10/10 per day"),
            ("10x n=b", "OK: OK 0/10 per day"),
        ],
    )
    .await
}

#[tokio::test]
async fn a_descriptor_of_no_hits_asks_without_taking() -> anyhow::Result<()> {
    check(
        TEN,
        &[],
        &[
            ("n=a +0", "OK: OK 10/10 per day"),
            ("9x n=a +0", "OK: OK 10/10 per day"),
            ("9x n=a", "OK: OK 1/10 per day"),
            ("n=a +0", "OK: OK 1/10 per day"),
            ("n=a", "OK: OK 0/10 per day"),
            // A peek answers for one hit.
            ("n=a +0", "OVER: OVER 0/10 per day"),
            ("n=a +0 & n=b", "OVER: OVER 0/10 per day, OK 10/10 per day"),
        ],
    )
    .await
}

#[tokio::test]
async fn a_limit_of_zero_denies_everything() -> anyhow::Result<()> {
    check(
        TEN,
        &[],
        &[
            ("none=a", "OVER: OVER 0/0 per day"),
            ("none=a +0", "OVER: OVER 0/0 per day"),
            ("n=a & none=a", "OVER: OK 10/10 per day, OVER 0/0 per day"),
            ("none=a -", "OK: OK 0/0 per day"),
        ],
    )
    .await
}

#[tokio::test]
async fn one_descriptor_twice_is_charged_twice() -> anyhow::Result<()> {
    check(
        TEN,
        &[],
        &[
            ("n=a & n=a", "OK: OK 9/10 per day, OK 8/10 per day"),
            ("one=a & one=a", "OVER: OK 1/1 per day, OVER 0/1 per day"),
            ("one=a", "OK: OK 0/1 per day"),
        ],
    )
    .await
}

/// Usage that is known only afterwards: the request peeks, the end of the stream debits. The debit
/// has happened, so it must count even if it is more than was left.
#[tokio::test]
async fn tokens_are_debited_after_the_fact() -> anyhow::Result<()> {
    let limits = "
- key: user
  descriptors:
  - {key: tokens, rate_limit: {unit: day, requests_per_unit: 100, count_denied: true}}
  - {key: requests, rate_limit: {unit: day, requests_per_unit: 10}}
";
    check(
        limits,
        &[],
        &[
            ("user=u,tokens= +0 & user=u,requests=", "OK: OK 100/100 per day, OK 9/10 per day"),
            ("70x user=u,tokens=", "OK: OK 30/100 per day"),
            ("user=u,tokens= +0 & user=u,requests=", "OK: OK 30/100 per day, OK 8/10 per day"),
            ("70x user=u,tokens=", "OVER: OVER 0/100 per day"),
            // Denied before it costs a request.
            ("user=u,tokens= +0 & user=u,requests=", "OVER: OVER 0/100 per day, OK 8/10 per day"),
            ("user=v,tokens= +0 & user=v,requests=", "OK: OK 100/100 per day, OK 9/10 per day"),
        ],
    )
    .await
}

#[tokio::test]
async fn a_refund_gives_back_at_most_what_was_taken() -> anyhow::Result<()> {
    check(
        TEN,
        &[],
        &[
            ("5x n=a", "OK: OK 5/10 per day"),
            ("n=a -2", "OK: OK 7/10 per day"),
            ("n=a -", "OK: OK 8/10 per day"),
            ("n=a -0", "OK: OK 8/10 per day"),
            ("3x n=a -", "OK: OK 10/10 per day"),
            ("n=a -18446744073709551615", "OK: OK 10/10 per day"),
            ("n=a", "OK: OK 9/10 per day"),
            ("n=new -5", "OK: OK 10/10 per day"),
            ("n=new", "OK: OK 9/10 per day"),
            // What is given back can be taken again.
            ("10x n=b", "OK: OK 0/10 per day"),
            ("n=b", "OVER: OVER 0/10 per day"),
            ("n=b -1", "OK: OK 1/10 per day"),
            ("n=b", "OK: OK 0/10 per day"),
            // Even at once, and where there is no rule.
            ("n=b -1 & n=b", "OK: OK 1/10 per day, OK 0/10 per day"),
            ("other=b -1", "OK: OK no limit"),
        ],
    )
    .await
}

#[tokio::test]
async fn a_denied_request_gives_nothing_back() -> anyhow::Result<()> {
    check(
        TEN,
        &[],
        &[
            ("5x n=a", "OK: OK 5/10 per day"),
            ("n=a -2 & none=x", "OVER: OK 5/10 per day, OVER 0/0 per day"),
            ("n=a +0", "OK: OK 5/10 per day"),
        ],
    )
    .await
}

/// A refund always fits, so it is never what is over, even where nothing is left.
#[tokio::test]
async fn a_refund_is_not_over_in_a_request_that_others_deny() -> anyhow::Result<()> {
    check(
        TEN,
        &[],
        &[
            ("10x n=a", "OK: OK 0/10 per day"),
            ("n=a -2 & none=x", "OVER: OK 0/10 per day, OVER 0/0 per day"),
            ("n=a +0", "OVER: OVER 0/10 per day"),
        ],
    )
    .await
}

#[tokio::test]
async fn a_limit_in_the_request_takes_the_place_of_the_rule() -> anyhow::Result<()> {
    let limits = "
- {key: user, rate_limit: {name: user, unit: day, requests_per_unit: 5}, shadow_mode: true}
- {key: free, rate_limit: {unlimited: true}}
- {key: vip, rate_limit: {unit: day, requests_per_unit: 9, replaces: [{name: user}]}}
";
    check(
        limits,
        &[],
        &[
            ("user=a 3/hour", "OK: OK 2/3 per hour"),
            ("2x user=a 3/hour", "OK: OK 0/3 per hour"),
            // Neither in shadow, as the rule is, nor with its name.
            ("user=a 3/hour", "OVER: OVER 0/3 per hour"),
            ("user=a", "OK: OK 4/5 per day (user)"),
            // Nor does it count where the rule does, though the period is the same.
            ("user=a 9/day", "OK: OK 8/9 per day"),
            ("user=a", "OK: OK 3/5 per day (user)"),
            // Where no rule is, or one without a limit.
            ("other=a 2/minute", "OK: OK 1/2 per minute"),
            ("other=a,and=b 2/month", "OK: OK 1/2 per month"),
            ("free=a 2/year", "OK: OK 1/2 per year"),
            ("free=a 2/week", "OK: OK 1/2 per week"),
            ("free=a 2/second", "OK: OK 1/2 per second"),
            ("user=b 0/day", "OVER: OVER 0/0 per day"),
            // It has no name to be replaced by.
            ("user=c 2/day & vip=c", "OK: OK 1/2 per day, OK 8/9 per day"),
            ("user=d & vip=d", "OK: OK no limit, OK 8/9 per day"),
        ],
    )
    .await
}

/// The request that is written as an ask, changed, and what it is refused with.
async fn check_refused(
    service: &Service,
    change: impl FnOnce(&mut RateLimitRequest),
    message: &str,
) -> anyhow::Result<()> {
    let mut request = parse("n=a")?;
    change(&mut request);
    match service.rls.call(request).await {
        Ok(answer) => anyhow::bail!("answered {answer:?}, expected {message:?}"),
        Err(status) => {
            let found = (status.code(), status.message());
            ensure!(found == (tonic::Code::InvalidArgument, message), "{found:?}, not {message:?}");
            Ok(())
        }
    }
}

#[tokio::test]
async fn requests_without_meaning_are_refused_and_say_why() -> anyhow::Result<()> {
    let service = Service::start(TEN, &[]).await?;
    let check = async |change: fn(&mut RateLimitRequest), message| {
        check_refused(&service, change, message).await
    };
    check(|request| request.domain.clear(), "rate limit domain must not be empty").await?;
    check(|request| request.descriptors.clear(), "rate limit descriptor list must not be empty")
        .await?;
    check(
        |request| request.descriptors.push(RateLimitDescriptor::default()),
        "descriptors[1]: entries must not be empty",
    )
    .await?;
    check(
        |request| request.descriptors[0].entries[0].key.clear(),
        "descriptors[0].entries[0]: key must not be empty",
    )
    .await?;
    check(
        |request| {
            let limit = tidegate_wire::rls::RateLimitOverride { requests_per_unit: 1, unit: 0 };
            request.descriptors[0].limit = Some(limit);
        },
        "descriptors[0].limit.unit: 0 is not a unit (expected 1 to 7)",
    )
    .await?;
    check(
        |request| request.descriptors = vec![request.descriptors[0].clone(); 129],
        "too many descriptors for one request (maximum 128)",
    )
    .await?;
    // None of it was counted.
    service.expect("n=a", "OK: OK 9/10 per day").await
}

/// One request locks all of its counters at once, so there is a bound on them.
#[tokio::test]
async fn a_request_of_more_counters_than_one_update_holds_is_refused_whole() -> anyhow::Result<()> {
    let limits = "
- key: two
  rate_limits: [{unit: day, requests_per_unit: 5}, {unit: week, requests_per_unit: 9}]
- key: three
  rate_limits:
  - {unit: day, requests_per_unit: 5}
  - {unit: week, requests_per_unit: 9}
  - {unit: month, requests_per_unit: 9}
";
    let service = Service::start(limits, &[]).await?;
    let all = |key: &str| (0..128).map(|value| format!("{key}={value}")).collect::<Vec<_>>();
    let answer = service.ask(&all("two").join(" & ")).await?;
    let is_told = |status: &DescriptorStatus| status.limit_remaining == 4;
    ensure!(answer.statuses.len() == 128 && answer.statuses.iter().all(is_told), "{answer:?}");
    match service.rls.call(parse(&all("three").join(" & "))?).await {
        Ok(answer) => anyhow::bail!("answered {answer:?}"),
        Err(status) => {
            // It is refused as soon as it is known to be too much.
            let says = "257 keys of 2313 words are too much for one update";
            let is_such = status.code() == tonic::Code::ResourceExhausted;
            ensure!(is_such && status.message().starts_with(says), "{status:?}");
        }
    }
    service.expect("three=0", "OK: OK 4/5 per day").await
}
