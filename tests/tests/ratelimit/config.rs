//! Limits files as operators write them: what is refused and with which words, what is taken, and
//! what becomes of counters when a file changes under a running sidecar.

use anyhow::ensure;
use std::process::Output;
use tempfile::TempDir;
use tidegate_tests::service::{Service, check, on_service};
use tidegate_tests::{artifacts, wait};
use tokio::process::Command;

/// The exit code of `tidegate check` on a directory of these files, and what it says, with the
/// directory left out.
async fn checked(files: &[(&str, &str)], flags: &[&str]) -> anyhow::Result<(Option<i32>, String)> {
    let dir = TempDir::new()?;
    for (name, text) in files {
        std::fs::write(dir.path().join(name), text)?;
    }
    let mut command = Command::new(artifacts::sidecar()?);
    let Output { status, stdout, stderr } =
        command.arg("check").args(flags).arg(dir.path()).output().await?;
    let said = String::from_utf8([stderr, stdout].concat())?;
    Ok((status.code(), said.replace(&format!("{}/", dir.path().display()), "")))
}

/// That a file is refused, with exactly one mistake, at this place and with words like these.
async fn check_refused(text: &str, says: &str) -> anyhow::Result<()> {
    let (code, said) = checked(&[("x.yaml", text)], &[]).await?;
    let mistakes = said.lines().filter(|line| line.starts_with("x.yaml:")).count();
    ensure!(
        code == Some(1) && mistakes == 1 && said.contains(says),
        "{text}\nexit {code:?}, expected {says:?} in\n{said}"
    );
    Ok(())
}

/// As [`check_refused`], for one descriptor of a good file.
async fn check_descriptor_refused(descriptor: &str, says: &str) -> anyhow::Result<()> {
    check_refused(&format!("domain: d\ndescriptors:\n- {descriptor}\n"), says).await
}

#[tokio::test]
async fn what_envoyproxy_ratelimit_refuses_in_a_file_is_refused() -> anyhow::Result<()> {
    for (text, says) in [
        ("descriptors: []", "`domain` is required and must not be empty"),
        ("domain: ''\n", "x.yaml:1:9: `domain` is required and must not be empty"),
        ("domain: d\ndescriptors: k\n", "x.yaml:2:14: `descriptors`: expected a list"),
        ("domain: d\ndescriptors: [k]\n", "x.yaml:2:15: expected a descriptor"),
        ("domain: d\ndescriptors:\n- {1: x, key: k}\n", "x.yaml:3:4: unknown key `1`"),
        ("domain: d\ndescriptor: []\n", "x.yaml:2:1: unknown key `descriptor`"),
        ("domain: d\n  descriptors: [\n", "x.yaml:"),
        ("- domain: d\n", "x.yaml:1:1: expected a limits file"),
    ] {
        check_refused(text, says).await?;
    }
    Ok(())
}

#[tokio::test]
async fn what_envoyproxy_ratelimit_refuses_in_a_descriptor_is_refused() -> anyhow::Result<()> {
    for (descriptor, says) in [
        ("{value: v}", "x.yaml:3:4: `key` is required and must not be empty"),
        ("{key: ''}", "x.yaml:3:9: `key` is required and must not be empty"),
        ("{key: k}\n- {key: k}", "x.yaml:4:4: duplicate descriptor d/k"),
        ("{key: k, value: v}\n- {key: k, value: v}", "x.yaml:4:4: duplicate descriptor d/k=v"),
        ("{key: k}\n- {key: k, value: ''}", "x.yaml:4:4: duplicate descriptor d/k"),
        ("{key: k, rate_limit: {unit: foo}}", "x.yaml:3:31: unknown unit \"foo\""),
        ("{key: k, rate_limit: {requests_per_unit: 1}}", "needs `unit`"),
        ("{key: k, rate_limit: {unlimited: true, unit: day}}", "`unit` contradicts"),
        ("{key: k, ratelimit: {unit: day}}", "did you mean `rate_limit`?"),
        ("{key: k, rate_limit: {unit: day, request_per_unit: 1}}", "`requests_per_unit`?"),
        ("{key: k, rate_limit: {unit: day, requests_per_unit: 1.5}}", "expected a whole number"),
        ("{key: k, rate_limit: {unit: day, requests_per_unit: -1}}", "expected a whole number"),
        (
            "{key: k, rate_limit: {unit: day, requests_per_unit: 4294967296}}",
            "expected a whole number from 0 to 4294967295",
        ),
        ("{key: k, rate_limit: {unit: day, replaces: [{name: ''}]}}", "`name` is required"),
        ("{key: k, rate_limit: {unit: day, replaces: [{}]}}", "`name` is required"),
        (
            "{key: k, rate_limit: {unit: day, name: n, replaces: [{name: n}]}}",
            "must not name a limit of the same descriptor",
        ),
        ("{key: k, value: v, share_threshold: true}", "`share_threshold` is only for"),
        ("{key: k, share_threshold: true}", "`share_threshold` is only for"),
        ("{key: k, shadow_mode: 7}", "expected true or false"),
        ("{key: k, descriptors: {key: l}}", "`descriptors`: expected a list"),
        ("{key: k, value: 1.5}", "expected a string"),
        ("{key: k, rate_limit: {unit: day}, metadata: 7}", "`metadata`: expected a map"),
    ] {
        check_descriptor_refused(descriptor, says).await?;
    }
    Ok(())
}

#[tokio::test]
async fn numbers_and_words_that_do_not_go_together_are_refused() -> anyhow::Result<()> {
    let limits = [
        ("{period: 5, requests: 1}", "is not a period"),
        ("{period: 1h, unit: hour, requests: 1}", "exclude each other"),
        ("{period: 1h}", "needs `requests`"),
        ("{period: 0s, requests: 1}", "period 0 is not allowed"),
        ("{unit: day, requests: 1, requests_per_unit: 1}", "keep one"),
        ("{unit: day, requests: 1, algorithm: leaky}", "unknown algorithm \"leaky\""),
        ("{unit: day, requests: 1, burst: 2}", "`burst` is for token_bucket only"),
        ("{unit: day, requests: 1, initial: 1}", "`initial` is for token_bucket only"),
        ("{unit: day, requests: 1, exact: true}", "`exact` is for sliding_buckets only"),
        ("{unit: day, requests: 0, borrow: 1}", "borrow 1 needs requests"),
        ("{unit: day, requests: 1, timezone: Europe/Berln}", "did you mean `Europe/Berlin`?"),
        ("{algorithm: token_bucket, unit: day, requests: 0}", "requests 0 is not allowed"),
        ("{algorithm: token_bucket, unit: day, requests: 1, burst: 0}", "burst 0 is not allowed"),
        ("{algorithm: token_bucket, unit: day, requests: 1, initial: 2}", "more than burst 1"),
        ("{algorithm: token_bucket, unit: day, requests: 1, borrow: 2}", "`borrow` is for"),
        ("{algorithm: sliding_window, period: 1mo, requests: 1}", "are for fixed_window only"),
        ("{algorithm: sliding_buckets, exact: true, period: 2d, requests: 1}", "with exact"),
    ];
    for (limit, says) in limits {
        check_descriptor_refused(&format!("{{key: k, rate_limit: {limit}}}"), says).await?;
    }
    for (descriptor, says) in [
        ("{key: k, rate_limits: []}", "expected 1 to 16, found 0"),
        ("{key: k, rate_limit: {unit: day}, rate_limits: [{unit: hour}]}", "exclude each other"),
        ("{key: k, rate_limits: [{unit: day}, {unit: day}]}", "give them names"),
        (
            "{key: k, rate_limits: [{name: n, unit: day}, {name: n, unit: hour}]}",
            "already has this name",
        ),
        ("{key: k, rate_limits: [{unlimited: true}]}", "is for `rate_limit`, not for"),
        ("{key: k, value: v, match: {prefix: p}}", "exclude each other"),
        ("{key: k, match: {}}", "a match needs exactly one of"),
        ("{key: k, match: {prefix: p, regex: r}}", "a match needs exactly one of"),
        ("{key: k, match: {cidr: 10.0.0.0/33}}", "`cidr`: "),
        ("{key: k, match: {regex: '('}}", "`regex`: "),
        ("{key: k, match: {prefix: p}}\n- {key: k, match: {prefix: p}}", "duplicate descriptor"),
    ] {
        check_descriptor_refused(descriptor, says).await?;
    }
    Ok(())
}

const DOMAIN: &str = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day}}]\n";

#[tokio::test]
async fn two_files_of_one_domain_are_refused_unless_merged() -> anyhow::Result<()> {
    let (code, said) = checked(&[("a.yaml", DOMAIN), ("b.yaml", DOMAIN)], &[]).await?;
    let says = "b.yaml:1:9: domain \"d\" is already defined by a.yaml";
    ensure!(code == Some(1) && said.contains(says), "{code:?}: {said}");
    // Merged, they must not say the same thing twice.
    let files = [("a.yaml", DOMAIN), ("b.yaml", DOMAIN)];
    let files = files.map(|(name, text)| (name, text.replace("key: k", &format!("key: {name}"))));
    let files = files.each_ref().map(|(name, text)| (*name, text.as_str()));
    match Service::start_on(&files, &["--merge-domains"]).await {
        Ok(_) => {}
        Err(error) => anyhow::bail!("two keys in two files: {error:#}"),
    }
    let files = [("a.yaml", DOMAIN), ("b.yaml", DOMAIN)];
    let error = Service::start_on(&files, &["--merge-domains"]).await.err();
    let error = error.map(|error| format!("{error:#}")).unwrap_or_default();
    ensure!(error.contains("duplicate descriptor d/k"), "{error:?}");
    Ok(())
}

#[tokio::test]
async fn every_mistake_is_told_at_once() -> anyhow::Result<()> {
    let text = "domain: d\ndescriptors:\n- {key: ''}\n- {key: k, rate_limit: {unit: eon}}\n- {kye: k, key: l}\n";
    let (code, said) = checked(&[("a.yaml", text), ("b.yaml", "domain: ''")], &[]).await?;
    ensure!(code == Some(1), "{said}");
    for place in ["a.yaml:3:9: ", "a.yaml:4:31: ", "a.yaml:5:4: ", "b.yaml:1:9: "] {
        ensure!(said.contains(place), "no {place} in {said}");
    }
    Ok(())
}

/// The original takes any key that it knows at any level, without effect; such a file is served.
#[tokio::test]
async fn known_keys_in_the_wrong_place_are_no_mistake() -> anyhow::Result<()> {
    let limits = "
- key: k
  unit: day
  requests_per_unit: 1
  rate_limit: {unit: day, requests_per_unit: 3, shadow_mode: true, value: v}
";
    check(limits, &[], &[("3x k=a", "OK: OK 0/3 per day"), ("k=a", "OVER: OVER 0/3 per day")]).await
}

#[tokio::test]
async fn units_are_read_in_any_case_and_values_as_they_are_written() -> anyhow::Result<()> {
    let limits = "
- {key: a, rate_limit: {unit: SECOND, requests_per_unit: 2}}
- {key: b, rate_limit: {unit: Minute, requests_per_unit: 2}}
- {key: c, rate_limit: {unit: hOUR, requests_per_unit: 2}}
- {key: d, rate_limit: {unit: WeeK, requests_per_unit: 2}}
- {key: e, rate_limit: {unit: MONTH, requests_per_unit: 2}}
- {key: f, rate_limit: {unit: Year, requests_per_unit: 2, name: ''}}
- {key: status, value: 404, rate_limit: {unit: day, requests_per_unit: 5}}
- {key: code, value: 007, rate_limit: {unit: day, requests_per_unit: 5}}
- {key: flag, value: true, rate_limit: {unit: day, requests_per_unit: 5}}
- {key: 12, rate_limit: {unit: day, requests_per_unit: 5}}
- {key: null-limit, rate_limit: null, descriptors: null}
";
    check(
        limits,
        &[],
        &[
            ("a=x", "OK: OK 1/2 per second"),
            ("b=x", "OK: OK 1/2 per minute"),
            ("c=x", "OK: OK 1/2 per hour"),
            ("d=x", "OK: OK 1/2 per week"),
            ("e=x", "OK: OK 1/2 per month"),
            ("f=x", "OK: OK 1/2 per year"),
            ("status=404", "OK: OK 4/5 per day"),
            ("code=007", "OK: OK 4/5 per day"),
            ("code=7", "OK: OK no limit"),
            ("flag=true", "OK: OK 4/5 per day"),
            ("12=x", "OK: OK 4/5 per day"),
            ("null-limit=x", "OK: OK no limit"),
        ],
    )
    .await
}

#[tokio::test]
async fn periods_may_have_any_length_and_are_told_as_a_unit_where_there_is_one()
-> anyhow::Result<()> {
    let limits = "
- {key: a, rate_limit: {period: 30d, requests: 2}}
- {key: b, rate_limit: {period: 5d, requests: 2}}
- {key: c, rate_limit: {period: 24h, requests_per_unit: 2}}
- {key: d, rate_limit: {unit: day, requests: 2}}
- {key: e, rate_limit: {period: 1mo, requests: 2}}
- {key: f, rate_limit: {period: 3mo, requests: 2}}
- {key: g, rate_limit: {period: 1y, requests: 2}}
- {key: h, rate_limit: {period: 1w, requests: 2}}
";
    check(
        limits,
        &[],
        &[
            ("a=x", "OK: OK 1/2 per month"),
            ("b=x", "OK: OK 1/2"),
            ("c=x", "OK: OK 1/2 per day"),
            ("d=x", "OK: OK 1/2 per day"),
            ("e=x", "OK: OK 1/2 per month"),
            ("f=x", "OK: OK 1/2"),
            ("g=x", "OK: OK 1/2 per year"),
            ("h=x", "OK: OK 1/2 per week"),
        ],
    )
    .await
}

#[tokio::test]
async fn a_changed_limit_keeps_the_counts_of_its_keys() -> anyhow::Result<()> {
    let limit = |limit: &str| format!("- {{key: k, rate_limit: {limit}}}\n");
    on_service(&limit("{unit: day, requests_per_unit: 5}"), &[], async |service| {
        service.expect("3x k=a", "OK: OK 2/5 per day").await?;
        for (changed, expected) in [
            ("{unit: day, requests_per_unit: 9}", "OK: OK 6/9 per day"),
            ("{unit: day, requests_per_unit: 2}", "OVER: OVER 0/2 per day"),
            ("{unit: day, requests_per_unit: 7, name: n}", "OK: OK 4/7 per day (n)"),
            ("{period: 24h, requests: 6, borrow: 2}", "OK: OK 5/8"),
            // Another period or algorithm counts by itself.
            ("{unit: week, requests_per_unit: 4}", "OK: OK 4/4 per week"),
            ("{algorithm: token_bucket, period: 1d, requests: 3}", "OK: OK 3/3 per day"),
            ("{unlimited: true}", "OK: OK unlimited"),
            ("{unit: day, requests_per_unit: 5}", "OK: OK 2/5 per day"),
        ] {
            service.put(&limit(changed))?;
            service.until("k=a +0", expected).await?;
        }
        service.put("- {key: other}\n")?;
        service.until("k=a +0", "OK: OK no limit").await?;
        service.put(&limit("{unit: day, requests_per_unit: 8}"))?;
        service.until("k=a +0", "OK: OK 5/8 per day").await
    })
    .await
}

#[tokio::test]
async fn a_bad_change_leaves_the_old_limits_in_force() -> anyhow::Result<()> {
    on_service("- {key: k, rate_limit: {unit: day, requests_per_unit: 5}}", &[], async |service| {
        service.expect("k=a", "OK: OK 4/5 per day").await?;
        service.put("- {key: k, rate_limit: {unit: aeon, requests_per_unit: 9}}")?;
        wait::until("the mistake in the log", wait::RELOAD, async || {
            service.sidecar.process.log().contains("aeon").then_some(())
        })
        .await?;
        service.expect("k=a", "OK: OK 3/5 per day").await?;
        service.put("- {key: k, rate_limit: {unit: day, requests_per_unit: 9}}")?;
        service.until("k=a +0", "OK: OK 7/9 per day").await
    })
    .await
}

#[tokio::test]
async fn a_directory_without_limits_is_not_served() -> anyhow::Result<()> {
    let files = [("notes.txt", "domain: d"), (".hidden.yaml", DOMAIN)];
    let error = Service::start_on(&files, &[]).await.err();
    let error = error.map(|error| format!("{error:#}")).unwrap_or_default();
    ensure!(error.contains("no *.yaml, *.yml or *.xml file in this directory"), "{error:?}");
    Ok(())
}

#[tokio::test]
async fn a_bad_file_is_not_served() -> anyhow::Result<()> {
    let error = Service::start("- {key: k, rate_limit: {unit: aeon}}", &[]).await.err();
    let error = error.map(|error| format!("{error:#}")).unwrap_or_default();
    ensure!(error.contains("limits.yaml:3:31: unknown unit"), "{error:?}");
    Ok(())
}
