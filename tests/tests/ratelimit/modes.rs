//! Rules that give way: replaced by another, unlimited, in shadow, by quota.

use tidegate_tests::service::{check, on_service};

/// Categories that endpoints belong to, and endpoints that have more than their category.
const REPLACES: &str = "
- {key: kind, value: read, rate_limit: {name: read, unit: day, requests_per_unit: 2}}
- {key: kind, value: write, rate_limit: {name: write, unit: day, requests_per_unit: 2}}
- {key: all, rate_limit: {unit: day, requests_per_unit: 50}}
- {key: path, value: search, rate_limit: {name: search, unit: day, requests_per_unit: 5, replaces: [{name: read}]}}
- {key: path, value: sync, rate_limit: {name: sync, unit: day, requests_per_unit: 5, replaces: [{name: read}, {name: write}]}}
- {key: path, value: health, rate_limit: {unlimited: true, replaces: [{name: read}]}}
- {key: path, rate_limit: {name: path, unit: day, requests_per_unit: 4}}
- {key: tier, rate_limit: {name: read, unit: day, requests_per_unit: 4}}
- {key: open, rate_limit: {name: open, unlimited: true}}
- {key: strict, rate_limit: {unit: day, requests_per_unit: 3, replaces: [{name: open}]}}
- {key: staff, rate_limit: {unit: day, requests_per_unit: 9, replaces: [{name: search}]}}
";

#[tokio::test]
async fn a_replaced_limit_neither_applies_nor_is_charged() -> anyhow::Result<()> {
    check(
        REPLACES,
        &[],
        &[
            // Each by itself.
            ("kind=read", "OK: OK 1/2 per day (read)"),
            ("kind=write", "OK: OK 1/2 per day (write)"),
            ("path=search", "OK: OK 4/5 per day (search)"),
            // Replaced, in either order, and in full.
            ("kind=read & path=search", "OK: OK no limit, OK 3/5 per day (search)"),
            ("path=search & kind=read", "OK: OK 2/5 per day (search), OK no limit"),
            ("kind=read +0", "OK: OK 1/2 per day (read)"),
            // Not this one.
            ("kind=write & path=search", "OK: OK 0/2 per day (write), OK 1/5 per day (search)"),
            ("kind=write & path=search", "OVER: OVER 0/2 per day (write), OK 1/5 per day (search)"),
            // Two at once; what is over does not matter when it is replaced.
            (
                "kind=read & kind=write & path=sync",
                "OK: OK no limit, OK no limit, OK 4/5 per day (sync)",
            ),
            ("kind=write & path=sync", "OK: OK no limit, OK 3/5 per day (sync)"),
            // Those that are not named stand.
            (
                "kind=read & all=x & path=search",
                "OK: OK no limit, OK 49/50 per day, OK 0/5 per day (search)",
            ),
            // What replaces denies in the place of what it replaces.
            (
                "kind=read & all=x & path=search",
                "OVER: OK no limit, OK 49/50 per day, OVER 0/5 per day (search)",
            ),
            ("kind=read +0", "OK: OK 1/2 per day (read)"),
        ],
    )
    .await
}

#[tokio::test]
async fn limits_replace_by_name_whatever_becomes_of_themselves() -> anyhow::Result<()> {
    check(
        REPLACES,
        &[],
        &[
            // The rule for other values has a name, but replaces nothing.
            ("kind=read & path=x", "OK: OK 1/2 per day (read), OK 3/4 per day (path)"),
            // An unlimited rule may replace.
            ("kind=read & path=health", "OK: OK no limit, OK unlimited"),
            // Replaced itself, it still replaces.
            ("kind=read & path=search & staff=s", "OK: OK no limit, OK no limit, OK 8/9 per day"),
            ("kind=read & staff=s", "OK: OK 0/2 per day (read), OK 7/9 per day"),
            ("path=search +0", "OK: OK 5/5 per day (search)"),
            // All limits of one name, and a rule that has none.
            (
                "kind=read & tier=x & path=sync",
                "OK: OK no limit, OK no limit, OK 4/5 per day (sync)",
            ),
            ("tier=x", "OK: OK 3/4 per day (read)"),
            ("open=x & strict=x", "OK: OK no limit, OK 2/3 per day"),
            ("open=x", "OK: OK unlimited"),
            // By two others at once, it is gone all the same.
            (
                "path=search & path=sync & kind=read",
                "OK: OK 4/5 per day (search), OK 3/5 per day (sync), OK no limit",
            ),
        ],
    )
    .await
}

#[tokio::test]
async fn one_of_several_limits_may_be_replaced_or_replace() -> anyhow::Result<()> {
    let limits = "
- key: user
  rate_limits:
  - {name: burst, unit: hour, requests_per_unit: 2}
  - {name: day, unit: day, requests_per_unit: 5}
- key: vip
  rate_limits:
  - {name: vip-burst, unit: hour, requests_per_unit: 4, replaces: [{name: burst}]}
  - {name: vip-day, unit: day, requests_per_unit: 9}
";
    check(
        limits,
        &[],
        &[
            ("user=a", "OK: OK 1/2 per hour (burst)"),
            ("user=a & vip=a", "OK: OK 3/5 per day (day), OK 3/4 per hour (vip-burst)"),
            ("user=a +0", "OK: OK 1/2 per hour (burst)"),
            ("3x user=a & vip=a", "OK: OK 0/5 per day (day), OK 0/4 per hour (vip-burst)"),
            ("user=a +0", "OVER: OVER 0/5 per day (day)"),
        ],
    )
    .await
}

#[tokio::test]
async fn unlimited_is_told_as_such_and_denies_nobody() -> anyhow::Result<()> {
    let limits = "
- {key: free, rate_limit: {unlimited: true}}
- {key: free, value: named, rate_limit: {unlimited: true, name: named}}
- {key: n, rate_limit: {unit: day, requests_per_unit: 2}}
";
    check(
        limits,
        &[],
        &[
            ("4294967295x free=a", "OK: OK unlimited"),
            ("free=named", "OK: OK unlimited"),
            ("free=a & n=a", "OK: OK unlimited, OK 1/2 per day"),
            ("2x free=a & n=a", "OVER: OK unlimited, OVER 1/2 per day"),
        ],
    )
    .await
}

const SHADOW: &str = "
- {key: seen, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: hard, rate_limit: {unit: day, requests_per_unit: 3}}
";

#[tokio::test]
async fn a_rule_in_shadow_counts_but_does_not_deny() -> anyhow::Result<()> {
    check(
        SHADOW,
        &[],
        &[
            ("seen=a", "OK: OK 0/1 per day"),
            ("seen=a", "OK: OK 0/1 per day"),
            // With one that denies: that one decides, by its own count.
            ("seen=b & hard=b", "OK: OK 0/1 per day, OK 2/3 per day"),
            ("seen=b & hard=b", "OK: OK 0/1 per day, OK 1/3 per day"),
            ("seen=b & hard=b", "OK: OK 0/1 per day, OK 0/3 per day"),
            ("seen=b & hard=b", "OVER: OK 0/1 per day, OVER 0/3 per day"),
            // Denied by the other, a shadow counts nothing either.
            ("seen=c & hard=b", "OVER: OK 1/1 per day, OVER 0/3 per day"),
        ],
    )
    .await
}

#[tokio::test]
async fn in_global_shadow_nothing_is_denied_and_statuses_tell_what_would_be() -> anyhow::Result<()>
{
    on_service(SHADOW, &["--shadow-mode"], async |service| {
        let rows = [
            ("3x hard=a", "OK: OK 0/3 per day"),
            ("hard=a", "OK: OVER 0/3 per day"),
            ("hard=a & seen=a & hard=b", "OK: OVER 0/3 per day, OK 0/1 per day, OK 2/3 per day"),
            ("hard=a & seen=a", "OK: OVER 0/3 per day, OK 0/1 per day"),
            ("seen=a", "OK: OK 0/1 per day"),
            ("hard=b +0", "OK: OK 2/3 per day"),
        ];
        service.expect_all(&rows).await?;
        // Only those that the global mode alone let pass.
        service.expect_metric("tidegate_global_shadow_mode_total 3").await
    })
    .await
}

const QUOTA: &str = "
- {key: q1, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: q2, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 2}}
- {key: hard, rate_limit: {unit: day, requests_per_unit: 3}}
- {key: seen, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 0}}
- {key: both, quota_mode: true, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 0}}
- {key: free, rate_limit: {unlimited: true}}
";

#[tokio::test]
async fn quotas_deny_only_when_all_of_them_are_over() -> anyhow::Result<()> {
    check(
        QUOTA,
        &[],
        &[
            // One alone is all of them.
            ("q1=a", "OK: OK 0/1 per day"),
            ("q1=a", "OVER: OVER 0/1 per day"),
            ("q1=b & q2=b", "OK: OK 0/1 per day, OK 1/2 per day"),
            ("q1=b & q2=b", "OK: OVER 0/1 per day, OK 0/2 per day"),
            ("q1=b & q2=b", "OVER: OVER 0/1 per day, OVER 0/2 per day"),
            ("q1=b & q1=c & q2=b", "OK: OVER 0/1 per day, OK 0/1 per day, OVER 0/2 per day"),
        ],
    )
    .await
}

#[tokio::test]
async fn quotas_do_not_excuse_limits_that_are_none() -> anyhow::Result<()> {
    check(
        QUOTA,
        &[],
        &[
            ("q1=a & hard=a", "OK: OK 0/1 per day, OK 2/3 per day"),
            // All quotas are over, though the limit has room.
            ("q1=a & hard=a", "OVER: OVER 0/1 per day, OK 2/3 per day"),
            ("q1=a & q2=a & hard=a", "OK: OVER 0/1 per day, OK 1/2 per day, OK 1/3 per day"),
            ("hard=a", "OK: OK 0/3 per day"),
            // The limit is over, though quotas have room; they are spared.
            ("q2=a & hard=a", "OVER: OK 1/2 per day, OVER 0/3 per day"),
            // What never denies is no quota with room.
            (
                "q1=a & seen=a & free=a & other=a",
                "OVER: OVER 0/1 per day, OK 0/0 per day, OK unlimited, OK no limit",
            ),
            ("q2=a & seen=a", "OK: OK 0/2 per day, OK 0/0 per day"),
            ("q2=b & both=a", "OK: OK 1/2 per day, OK 0/0 per day"),
            ("both=a", "OK: OK 0/0 per day"),
        ],
    )
    .await
}

#[tokio::test]
async fn in_global_quota_mode_every_limit_is_a_quota_but_those_in_shadow() -> anyhow::Result<()> {
    check(
        QUOTA,
        &["--quota-mode"],
        &[
            ("3x hard=a", "OK: OK 0/3 per day"),
            ("hard=a", "OVER: OVER 0/3 per day"),
            ("hard=a & q1=a", "OK: OVER 0/3 per day, OK 0/1 per day"),
            ("hard=a & q1=a", "OVER: OVER 0/3 per day, OVER 0/1 per day"),
            ("hard=a & hard=b", "OK: OVER 0/3 per day, OK 2/3 per day"),
            ("seen=a & hard=a", "OVER: OK 0/0 per day, OVER 0/3 per day"),
            ("seen=a", "OK: OK 0/0 per day"),
        ],
    )
    .await
}

const Q1_OVER: [(&str, &str); 2] =
    [("q1=a", "OK: OK 0/1 per day"), ("q1=a & q2=a", "OK: OVER 0/1 per day, OK 1/2 per day")];

#[tokio::test]
async fn global_shadow_goes_before_quotas() -> anyhow::Result<()> {
    on_service(QUOTA, &["--shadow-mode", "--quota-mode"], async |service| {
        service.expect_all(&Q1_OVER).await?;
        let rows = [("q1=a", "OK: OVER 0/1 per day"), ("4x hard=a", "OK: OVER 3/3 per day")];
        service.expect_all(&rows).await
    })
    .await
}

/// A quota that is over beside one with room is no denial, so there is nothing to let pass.
#[tokio::test]
async fn global_shadow_counts_only_what_would_have_been_denied() -> anyhow::Result<()> {
    on_service(QUOTA, &["--shadow-mode"], async |service| {
        service.expect_all(&Q1_OVER).await?;
        service.expect_metric("tidegate_global_shadow_mode_total 0").await?;
        service.expect("q1=a", "OK: OVER 0/1 per day").await?;
        service.expect_metric("tidegate_global_shadow_mode_total 1").await
    })
    .await
}
