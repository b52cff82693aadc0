//! Which requests are refused, and the largest that are answered.

use anyhow::ensure;
use tidegate_tests::service::Service;
use tidegate_wire::rls::{DescriptorStatus, RateLimitDescriptor, RateLimitRequest};
use tidegate_wire::testing::parse;

const TEN: &str = "- {key: n, rate_limit: {unit: day, requests_per_unit: 10}}";

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

#[tokio::test]
async fn values_of_a_mebibyte_have_counters_of_their_own() -> anyhow::Result<()> {
    let service = Service::start(TEN, &[]).await?;
    let long = "x".repeat(1024 * 1024);
    service.expect(&format!("n={long}"), "OK: OK 9/10 per day").await?;
    service.expect(&format!("n={long}x"), "OK: OK 9/10 per day").await?;
    service.expect(&format!("n={long}"), "OK: OK 8/10 per day").await
}
