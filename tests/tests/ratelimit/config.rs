//! Limits files on their way through `tidegate check` and `tidegate serve`, and changed under a running sidecar.

use anyhow::ensure;
use std::process::Output;
use tempfile::TempDir;
use tidegate_tests::command::{Ran, run};
use tidegate_tests::service::Service;
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

const DOMAIN: &str = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: day}}]\n";

#[tokio::test]
async fn two_files_of_one_domain_are_refused_unless_merged() -> anyhow::Result<()> {
    let (code, said) = checked(&[("a.yaml", DOMAIN), ("b.yaml", DOMAIN)], &[]).await?;
    let says = "b.yaml:1:9: domain \"d\" is already defined by a.yaml";
    ensure!(code == Some(1) && said.contains(says), "{code:?}: {said}");
    // Merged, they must not say the same thing twice.
    let limit = "rate_limit: {unit: day, requests_per_unit: 5}";
    let file = |key| format!("domain: test\ndescriptors: [{{key: {key}, {limit}}}]\n");
    let (a, b) = (file("a"), file("b"));
    let service =
        Service::start_on(&[("a.yaml", &a), ("b.yaml", &b)], &["--merge-domains"]).await?;
    let expected = "OK: OK 4/5 per day, OK 4/5 per day, OK no limit";
    service.expect("a=x & b=x & c=x", expected).await?;
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

#[tokio::test]
async fn a_limit_that_is_reloaded_keeps_the_counts_of_its_keys() -> anyhow::Result<()> {
    let limit = |limit: &str| format!("- {{key: k, rate_limit: {limit}}}\n");
    let service = Service::start(&limit("{unit: day, requests_per_unit: 5}"), &[]).await?;
    service.expect("3x k=a", "OK: OK 2/5 per day").await?;
    for (changed, expected) in [
        ("{unit: day, requests_per_unit: 9}", "OK: OK 6/9 per day"),
        ("{unit: week, requests_per_unit: 4}", "OK: OK 4/4 per week"),
    ] {
        service.put(&limit(changed))?;
        service.until("k=a +0", expected).await?;
    }
    service.put("- {key: other}\n")?;
    service.until("k=a +0", "OK: OK no limit").await?;
    service.put(&limit("{unit: day, requests_per_unit: 8}"))?;
    service.until("k=a +0", "OK: OK 5/8 per day").await
}

#[tokio::test]
async fn a_bad_change_leaves_the_old_limits_in_force() -> anyhow::Result<()> {
    let service =
        Service::start("- {key: k, rate_limit: {unit: day, requests_per_unit: 5}}", &[]).await?;
    service.expect("k=a", "OK: OK 4/5 per day").await?;
    service.put("- {key: k, rate_limit: {unit: aeon, requests_per_unit: 9}}")?;
    wait::until("the mistake in the log", wait::RELOAD, async || {
        service.sidecar.process.log().contains("aeon").then_some(())
    })
    .await?;
    service.expect("k=a", "OK: OK 3/5 per day").await?;
    service.put("- {key: k, rate_limit: {unit: day, requests_per_unit: 9}}")?;
    service.until("k=a +0", "OK: OK 7/9 per day").await
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
