//! Limits of usage: a peek before, a debit after the fact, which counts whether or not it fits. How that is
//! said for a limit, a file or all of them, and what each algorithm makes of it, as tables of asks and answers.

use anyhow::ensure;
use tempfile::TempDir;
use tidegate_tests::artifacts;
use tidegate_tests::command::{Ran, run};
use tidegate_tests::service::{Service, check};
use tokio::process::Command;

const COUNT: &[&str] = &["--count-denied"];
const DAY: &str = "- {key: k, rate_limit: {unit: day, requests_per_unit: 100}}\n";

/// As of envoyproxy/ratelimit: the count may pass the limit, and the window is over once it has.
#[tokio::test]
async fn a_fixed_window_counts_debits_in_full() -> anyhow::Result<()> {
    check(
        DAY,
        COUNT,
        &[
            ("k=a +0", "OK: OK 100/100 per day"),
            ("70x k=a", "OK: OK 30/100 per day"),
            ("k=a +0", "OK: OK 30/100 per day"),
            ("30x k=a", "OK: OK 0/100 per day"),
            // All is used up, and nothing beyond it.
            ("k=a +0", "OK: OK 0/100 per day"),
            ("5x k=a", "OVER: OVER 0/100 per day"),
            ("k=a +0", "OVER: OVER 0/100 per day"),
            ("1000x k=a", "OVER: OVER 0/100 per day"),
            // What was counted is what can be given back.
            ("k=a -1005", "OK: OK 0/100 per day"),
            ("k=a +0", "OK: OK 0/100 per day"),
            ("k=a -40", "OK: OK 40/100 per day"),
        ],
    )
    .await
}

#[tokio::test]
async fn a_debit_larger_than_what_is_left_closes_every_algorithm() -> anyhow::Result<()> {
    for algorithm in [
        "fixed_window",
        "fixed_window, timezone: UTC",
        "first_hit_window",
        "token_bucket",
        "sliding_window",
        "sliding_buckets",
        "sliding_buckets, exact: true",
    ] {
        let limits = format!(
            "- {{key: k, rate_limit: {{unit: day, requests_per_unit: 100, algorithm: {algorithm}}}}}\n"
        );
        let closed = [
            ("k=a +0", "OK: OK 100/100 per day"),
            ("70x k=a", "OK: OK 30/100 per day"),
            ("k=a +0", "OK: OK 30/100 per day"),
            ("70x k=a", "OVER: OVER 0/100 per day"),
            ("k=a +0", "OVER: OVER 0/100 per day"),
            ("70x k=a", "OVER: OVER 0/100 per day"),
            ("k=a +0", "OVER: OVER 0/100 per day"),
        ];
        check(&limits, COUNT, &closed).await?;
        let open = [
            ("70x k=a", "OK: OK 30/100 per day"),
            ("70x k=a", "OVER: OVER 30/100 per day"),
            ("k=a +0", "OK: OK 30/100 per day"),
        ];
        check(&limits, &[], &open).await?;
    }
    Ok(())
}

/// What a request brings along says nothing of it itself.
#[tokio::test]
async fn limits_that_are_brought_along_follow_the_flag() -> anyhow::Result<()> {
    let asks = |last| {
        [
            ("7x k=a 10/day", "OK: OK 3/10 per day"),
            (
                "k=a +7 10/day",
                if last == 0 { "OVER: OVER 0/10 per day" } else { "OVER: OVER 3/10 per day" },
            ),
        ]
    };
    check(DAY, COUNT, &asks(0)).await?;
    check(DAY, &[], &asks(3)).await
}

#[tokio::test]
async fn a_limit_overrules_its_file_and_that_the_flag() -> anyhow::Result<()> {
    let file = |name: &str, said: &str| {
        format!(
            "domain: {name}\n{said}\ndescriptors:\n- {{key: plain, rate_limit: {{unit: day, requests: 10}}}}\n\
             - {{key: counts, rate_limit: {{unit: day, requests: 10, count_denied: true}}}}\n\
             - {{key: spares, rate_limit: {{unit: day, requests: 10, count_denied: false}}}}\n"
        )
    };
    let files = [
        ("a.yaml", file("silent", "")),
        ("b.yaml", file("counts", "count_denied: true")),
        ("c.yaml", file("spares", "count_denied: false")),
    ];
    let files: Vec<(&str, &str)> =
        files.iter().map(|(name, text)| (*name, text.as_str())).collect();
    for flags in [&[][..], COUNT] {
        let service = Service::start_on(&files, flags).await?;
        let silent = !flags.is_empty();
        for (domain, plain) in [("silent", silent), ("counts", true), ("spares", false)] {
            for (key, counts) in [("plain", plain), ("counts", true), ("spares", false)] {
                let ask = format!("@{domain} 11x {key}=a");
                let left = if counts { 0 } else { 10 };
                service.expect(&ask, &format!("OVER: OVER {left}/10 per day")).await?;
            }
        }
    }
    Ok(())
}

/// A limits file does not show how its limits are asked, but an operator knows.
#[tokio::test]
async fn check_says_which_limits_of_usage_take_nothing_of_large_debits() -> anyhow::Result<()> {
    let dir = TempDir::new()?;
    let text = "domain: llm\ndescriptors:\n- {key: user, rate_limit: {unit: day, requests: 10}}\n\
                - key: team\n  rate_limits:\n  - {name: short, unit: hour, requests: 9, count_denied: true}\n\
                \x20 - {name: long, unit: day, requests: 90}\n- {key: path, rate_limit: {unit: day, requests: 7}}\n";
    std::fs::write(dir.path().join("limits.yaml"), text)?;
    let checked = async |flags: &[&str]| -> anyhow::Result<Ran> {
        let mut command = Command::new(artifacts::sidecar()?);
        command.current_dir(dir.path()).args(["check", "limits.yaml"]).args(flags);
        run(command).await
    };
    let takes_nothing = |at: &str, limit: &str| {
        format!(
            "limits.yaml:{at}: warning: limit {limit} ignores a debit larger than its remaining \
             hits, so the next peek passes; set `count_denied: true`\n"
        )
    };
    let [user, team] = [takes_nothing("3:4", "llm/user"), takes_nothing("4:3", "llm/team#long")];
    let found = checked(&["--usage-based", "llm/user", "--usage-based", "llm/team"]).await?;
    let expected = format!("{user}{team}ok: 4 limits in 1 domain (llm); 2 warnings\n");
    ensure!(found.code == Some(0) && found.out == expected, "{}\nexpected\n{expected}", found.out);
    let found = checked(&["--usage-based", "llm", "--strict"]).await?;
    ensure!(
        found.code == Some(1) && found.out.matches("warning: limit").count() == 3,
        "{}",
        found.out
    );
    let found = checked(&["--usage-based", "llm", "--count-denied"]).await?;
    ensure!(found.out == "ok: 4 limits in 1 domain (llm)\n", "{}", found.out);
    let found = checked(&["--usage-based", "llm/us"]).await?;
    let says = "limits.yaml: `--usage-based llm/us`: there is no limit at or below this path\n";
    ensure!(found.code == Some(1) && found.out.starts_with(says), "{}", found.out);
    Ok(())
}
