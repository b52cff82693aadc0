//! `tidegate check` and `tidegate explain` from outside: for people and for programs, and how they
//! end.

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Stdio;
use tempfile::TempDir;
use tidegate_tests::command::{Ran, run, run_with_output_closed};
use tidegate_tests::rls::Rls;
use tidegate_tests::sidecar::Sidecar;
use tidegate_tests::{artifacts, wait};
use tidegate_wire::rls::Code;
use tidegate_wire::testing::parse;
use tokio::process::Command;

const LIMITS: &str = "\
domain: shop
descriptors:
  - key: app
    value: web
    descriptors:
      - key: user
        rate_limit: { name: per-user, unit: hour, requests_per_unit: 3 }
      - key: user
        value: vip
        rate_limit: { algorithm: token_bucket, unit: hour, requests_per_unit: 1000, burst: 200 }
  - key: client
    rate_limit: { unit: hour, requests_per_unit: 5 }
  - key: watched
    shadow_mode: true
    rate_limit: { unit: hour, requests_per_unit: 0 }
  - key: closed
    rate_limit: { unit: hour, requests_per_unit: 0 }
  - key: free
    rate_limit: { unlimited: true }
";

/// A directory of limits files, in which commands run.
struct Home(TempDir);

impl Home {
    fn new() -> anyhow::Result<Home> {
        let home = Home(TempDir::new()?);
        home.write("limits.yaml", LIMITS)?;
        Ok(home)
    }

    fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let path = self.0.path().join(name);
        std::fs::create_dir_all(path.parent().context("a directory")?)?;
        Ok(std::fs::write(path, text)?)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, words: &str) -> anyhow::Result<Command> {
        let mut command = Command::new(artifacts::sidecar()?);
        command.args(words.split_whitespace()).current_dir(self.0.path()).stdin(Stdio::null());
        for variable in ["TIDEGATE_LIMITS", "TIDEGATE_DATA_DIR", "TIDEGATE_MERGE_DOMAINS"] {
            command.env_remove(variable);
        }
        Ok(command)
    }

    async fn run(&self, words: &str) -> anyhow::Result<Ran> {
        run(self.command(words)?).await
    }

    /// Runs `tidegate explain` on the limits with `--json`.
    async fn explain_json(&self, words: &str) -> anyhow::Result<Value> {
        let ran = self.run(&format!("explain --limits limits.yaml --json {words}")).await?;
        ensure!(ran.code == Some(0) && ran.err.is_empty(), "{words}: {ran:?}");
        ran.json()
    }

    /// That a command ends like this, and what it says is exactly this.
    async fn check(&self, words: &str, code: i32, out: &str) -> anyhow::Result<()> {
        let ran = self.run(words).await?;
        ensure!(ran.code == Some(code) && ran.err.is_empty(), "{words}: {ran:?}");
        ensure!(ran.out == out, "{words}:\n{}\nexpected\n{out}", ran.out);
        Ok(())
    }
}

/// Asks a sidecar for a hit of one descriptor.
async fn ask(home: &Home, entries: &[(&str, &str)]) -> anyhow::Result<Code> {
    let entries: Vec<String> =
        entries.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let request = parse(&format!("@shop {}", entries.join(",")))?;
    Ok(Rls::at(home.0.path()).await?.call(request).await?.overall_code())
}

/// Checks what is written to the command's standard input.
async fn check_input(home: &Home, input: &str) -> anyhow::Result<Ran> {
    home.write("input", input)?;
    let mut command = home.command("check -")?;
    command.stdin(std::fs::File::open(home.path("input"))?);
    run(command).await
}

#[tokio::test]
async fn check_reads_standard_input() -> anyhow::Result<()> {
    let home = Home::new()?;
    let good = check_input(&home, LIMITS).await?;
    ensure!(good.code == Some(0) && good.out == "ok: 5 limits in 1 domain (shop)\n", "{good:?}");
    let bad = check_input(&home, "domain: d\ndescriptors: [{ key: '' }]\n").await?;
    ensure!(bad.code == Some(1) && bad.out.starts_with("stdin.yaml:2:22: `key`"), "{bad:?}");
    let map = "<map><business id=\"b\" max=\"5\" interval=\"1h\"/></map>\n";
    let map = check_input(&home, map).await?;
    ensure!(map.code == Some(0) && map.out.starts_with("ok: 1 limit in 1 domain"), "{map:?}");
    Ok(())
}

#[tokio::test]
async fn time_zones_and_statistics_are_named() -> anyhow::Result<()> {
    let home = Home::new()?;
    let limits = |zone: &str, by: &str| {
        format!(
            "domain: d\nstatistics: [{{ name: s, by: [{by}] }}]\ndescriptors:\n  - key: k\n    \
             rate_limit: {{ unit: day, requests_per_unit: 5, timezone: {zone} }}\n"
        )
    };
    home.write("old.yaml", &limits("Europe/Berlin", "k"))?;
    home.write("new.yaml", &limits("America/New_York", "k, l"))?;
    let diff = home.run("check --diff old.yaml new.yaml").await?;
    let lines: Vec<&str> = diff.out.lines().collect();
    ensure!(lines[0] == "~ d/k: time zone Europe/Berlin -> America/New_York", "{diff:?}");
    ensure!(lines[2] == "~ statistic s: by k -> by k, l" && lines[4] == "2 changed", "{diff:?}");
    let explained = home.run("explain --limits old.yaml k=1").await?;
    let allows = "allows   5 per day, in Europe/Berlin, by fixed_window";
    ensure!(explained.out.contains(allows), "{explained:?}");
    let explained = home.run("explain --limits old.yaml --json k=1").await?.json()?;
    ensure!(explained.to_string().contains("\"timezone\":\"Europe/Berlin\""), "{explained}");
    Ok(())
}

#[tokio::test]
async fn check_lists_what_is_wrong_with_its_place() -> anyhow::Result<()> {
    let home = Home::new()?;
    home.check("check limits.yaml", 0, "ok: 5 limits in 1 domain (shop)\n").await?;
    let good = home.run("check limits.yaml --json").await?;
    let expected = json!({
        "ok": true,
        "errors": [],
        "warnings": [],
        "domains": [{"name": "shop", "limits": 5, "rules": 6}],
        "statistics": [],
    });
    ensure!(good.code == Some(0) && good.json()? == expected, "{good:?}");

    let counted = "domain: d\nstatistics: [{name: users, by: [app], distinct: user}]\n";
    home.write("counted.yaml", counted)?;
    home.check("check counted.yaml", 0, "ok: 0 limits in 1 domain (d), 1 statistic\n").await?;
    let counted = home.run("check counted.yaml --json").await?;
    let expected = json!([{"name": "users", "domain": "d", "by": ["app"], "distinct": "user"}]);
    ensure!(counted.json()?["statistics"] == expected, "{counted:?}");

    home.write("bad.yaml", "domain: d\ndescriptors:\n  - key: ''\n    rate_limt: {}\n")?;
    let bad = home.run("check bad.yaml").await?;
    ensure!(bad.code == Some(1) && bad.err.is_empty(), "{bad:?}");
    let lines: Vec<&str> = bad.out.lines().collect();
    ensure!(lines.len() == 3 && lines[2] == "2 errors in the limits", "{bad:?}");
    ensure!(
        lines[..2].iter().any(|line| line.starts_with("bad.yaml:4:5: unknown key `rate_limt`"))
    );
    let bad = home.run("check --json bad.yaml").await?;
    let document = bad.json()?;
    ensure!(bad.code == Some(1) && document["ok"] == false, "{bad:?}");
    ensure!(document["domains"] == json!([]), "{bad:?}");
    let errors = document["errors"].as_array().context("errors")?;
    let unknown = errors.iter().find(|error| error["line"] == 4).context("line 4")?;
    ensure!(unknown["file"] == "bad.yaml" && unknown["column"] == 5, "{unknown}");
    ensure!(unknown["message"].as_str().is_some_and(|text| text.starts_with("unknown key")));

    let none = home.run("check --json none").await?;
    let error = &none.json()?["errors"][0];
    ensure!(none.code == Some(1) && error["line"].is_null() && error["file"] == "none", "{error}");
    Ok(())
}

#[tokio::test]
async fn check_reads_directories_and_merges_domains_when_asked() -> anyhow::Result<()> {
    let home = Home::new()?;
    home.write("limits.d/a.yaml", LIMITS)?;
    home.write("limits.d/b.yaml", "domain: other\ndescriptors: [{key: k}]\n")?;
    home.check("check limits.d", 0, "ok: 5 limits in 2 domains (other, shop)\n").await?;
    let more = "domain: shop\ndescriptors: [{key: k, rate_limit: {unit: day}}]\n";
    home.write("limits.d/b.yaml", more)?;
    let twice = home.run("check limits.d").await?;
    ensure!(
        twice.code == Some(1) && twice.out.contains("b.yaml:1:9: domain \"shop\""),
        "{twice:?}"
    );
    home.check("check --merge-domains limits.d", 0, "ok: 6 limits in 1 domain (shop)\n").await
}

#[tokio::test]
async fn diff_says_what_changes_for_whom() -> anyhow::Result<()> {
    let home = Home::new()?;
    let same = LIMITS.replace("domain: shop\n", "# Another wording of the same.\ndomain: 'shop'\n");
    home.write("same.yaml", &same)?;
    let words = "check --diff limits.yaml same.yaml";
    home.check(words, 0, "no change for anybody: 5 limits in 1 domain\n").await?;
    let none = home.run(&format!("{words} --json")).await?;
    ensure!(none.json()? == json!({"same": true, "changes": []}), "{none:?}");

    let new = LIMITS
        .replace("requests_per_unit: 3 ", "requests_per_unit: 4 ")
        .replace("unit: hour, requests_per_unit: 5 ", "unit: minute, requests_per_unit: 5 ")
        .replace("    shadow_mode: true\n", "")
        .replace("  - key: free\n    rate_limit: { unlimited: true }\n", "")
        + "  - key: client\n    value: bad\n    rate_limit: { unit: day, requests_per_unit: 1 }\n";
    home.write("new.yaml", &new)?;
    let expected = "\
~ shop/app=web/user: 3 per hour -> 4 per hour
    callers matching shop/app=web/user get 4 per hour instead of 3 now; live counts are kept
~ shop/client: 5 per hour -> 5 per minute
    callers matching shop/client get 5 per minute now; counts start anew, because the period changed
+ shop/client=bad: 1 per day
    callers matching shop/client=bad are limited now; they met shop/client (5 per hour) before; \
counts start anew
- shop/free: unlimited
    callers matching shop/free meet no rule; they still pass
~ shop/watched: in shadow -> enforced
    callers matching shop/watched are denied over the limit now
1 added, 1 removed, 3 changed
";
    home.check("check --diff limits.yaml new.yaml", 1, expected).await?;
    let ran = home.run("check --json --diff limits.yaml new.yaml").await?;
    let document = ran.json()?;
    ensure!(ran.code == Some(1) && document["same"] == false, "{ran:?}");
    let added = json!({
        "path": "shop/client=bad",
        "change": "added",
        "what": "1 per day",
        "means": "callers matching shop/client=bad are limited now; they met shop/client \
                  (5 per hour) before; counts start anew",
    });
    ensure!(document["changes"][2] == added, "{document:#}");

    let trouble = home.run("check --diff limits.yaml none.yaml").await?;
    ensure!(trouble.code == Some(2) && trouble.out.is_empty(), "{trouble:?}");
    ensure!(trouble.err.contains("none.yaml: cannot read"), "{trouble:?}");
    let trouble = home.run("check --json --diff none.yaml limits.yaml").await?;
    ensure!(trouble.code == Some(2), "{trouble:?}");
    ensure!(trouble.json()?["errors"][0]["file"] == "none.yaml", "{trouble:?}");
    Ok(())
}

#[tokio::test]
async fn explain_teaches_which_limit_a_descriptor_meets() -> anyhow::Result<()> {
    let home = Home::new()?;
    let fresh = "(with fresh counters; --data-dir DIR uses the live ones)";
    let explain = |words: &str| format!("explain --limits limits.yaml {words}");
    let expected = format!(
        "\
domain shop
descriptor app=web user=17
  1. app=web: matches its value
  2. user=17: matches the key alone, as it is none of vip; each value has a counter of its own
  rule shop/app=web/user
  limit shop/app=web/user (per-user)
    allows   3 per hour, by fixed_window
    counter  shop app=web user=17
    says     allowed: 2 left after it
allowed: 2 left
{fresh}
"
    );
    home.check(&explain("app=web user=17"), 0, &expected).await?;
    for (words, says) in [
        ("app=web", "longer rules begin like this and go on with user"),
        (
            "ap=web",
            "no rule has the key \"ap\" here; the keys are app, client, closed, free, watched",
        ),
        ("ap=web", "(did you mean app?)"),
        ("app=wbe", "no rule has the value \"wbe\" for app here"),
        ("app=wbe", "the values are web (did you mean web?)"),
        ("user=17 app=web", "in the order app=web user=17 it would meet shop/app=web/user"),
        ("client=a x=1", "without x=1 it would meet shop/client"),
        ("free=1", "rule shop/free: unlimited, so it has no counter and never denies"),
        ("free=1", "\nallowed: no limit applies\n"),
        ("watched=1", "over, but in shadow mode"),
        ("watched=1", "\nallowed: no limit applies\n"),
        ("closed=1", "\ndenied by shop/closed: never fits\n"),
        ("--hits 6 client=1", "\ndenied 6 hits by shop/client: never fits\n"),
        ("--hits 6 client=1", "denied: 6 hits never fit: it allows at most 5"),
        ("--hits 5 client=1", "\nallowed 5 hits: 0 left\n"),
        ("--domain shpo client=1", "no file has the domain \"shpo\"; there is shop (did you mean"),
        ("client=1 --and closed=2", "has room, but nothing is taken: 5 left"),
        ("client=1 --and app=web,user=2", "\ndescriptor app=web user=2\n"),
        ("client=1 --and client=a\\,b,x=2", "\ndescriptor client=a,b x=2\n"),
    ] {
        let ran = home.run(&explain(words)).await?;
        ensure!(
            ran.code == Some(0) && ran.out.contains(says),
            "{words}: {says:?} is not in {ran:?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn explain_reads_counters_under_a_live_sidecar_and_takes_nothing() -> anyhow::Result<()> {
    let home = Home::new()?;
    let limits = home.path("limits.yaml");
    let _sidecar = Sidecar::start(home.0.path(), &limits).await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    let user = [("app", "web"), ("user", "17")];
    ensure!(ask(&home, &user).await? == Code::Ok);
    for _ in 0..2 {
        let explaining = home.explain_json("--data-dir data app=web user=17");
        let (expected, explained) = wait::reset_during(wait::HOUR, explaining).await?;
        ensure!(explained["verdict"] == "allow" && explained["left"] == 1, "{explained:#}");
        let limit = &explained["descriptors"][0]["limits"][0];
        ensure!(limit["now"]["used"] == 1 && limit["now"]["left"] == 2, "{limit:#}");
        ensure!(limit["name"] == "per-user" && limit["period_ms"] == 3_600_000, "{limit:#}");
        let more = limit["now"]["more_in_ms"].as_u64().context("a time")?;
        ensure!(expected.contains(&more.div_ceil(1_000)), "{more} ms, expected {expected:?} s");
    }
    // The key is the one that the store knows.
    let explained = home.explain_json("--data-dir data app=web user=17").await?;
    let key =
        explained["descriptors"][0]["limits"][0]["keys"][0].as_str().context("a key")?.to_owned();
    let entry = home.run(&format!("store get data {key} --json")).await?;
    ensure!(entry.code == Some(0) && entry.json()?["found"] == true, "{entry:?}");

    let too_many = home.explain_json("--data-dir data --hits 3 app=web user=17").await?;
    ensure!(too_many["verdict"] == "deny" && too_many["can_ever"] == true, "{too_many:#}");
    ensure!(ask(&home, &user).await? == Code::Ok && ask(&home, &user).await? == Code::Ok);
    let over = home.run("explain --limits limits.yaml --data-dir data app=web user=17").await?;
    ensure!(over.code == Some(0) && over.err.is_empty(), "{over:?}");
    for says in [
        "    now      3 of 3 used, 0 left; more in ",
        "\n    says     denied: try again in ",
        "\ndenied by shop/app=web/user: try again in ",
        &format!("\n    key      {key}\n"),
    ] {
        ensure!(over.out.contains(says), "{says:?} is not in {}", over.out);
    }
    ensure!(!over.out.contains("fresh counters"), "{over:?}");
    // All or nothing: the other descriptor has room, and keeps it.
    let explaining = home.explain_json("--data-dir data client=a --and app=web,user=17");
    let (expected, both) = wait::reset_during(wait::HOUR, explaining).await?;
    ensure!(both["denied_by"] == json!(["shop/app=web/user"]), "{both:#}");
    let other = &both["descriptors"][0]["limits"][0];
    ensure!(other["verdict"] == "allow" && other["left"] == 5, "{other:#}");
    let retry = both["retry_after_ms"].as_u64().context("a time")?;
    ensure!(expected.contains(&retry.div_ceil(1_000)), "{retry} ms, expected {expected:?} s");
    ensure!(ask(&home, &user).await? == Code::OverLimit);
    Ok(())
}

/// Before the first `serve` there is no data directory, and `explain` failed: a newcomer could not
/// try limits with the command that the documentation prints.
#[tokio::test]
async fn explain_answers_before_the_first_serve() -> anyhow::Result<()> {
    let home = Home::new()?;
    let explain = "explain --limits limits.yaml --data-dir none client=1";
    for _ in ["without a directory", "in an empty one"] {
        let ran = home.run(explain).await?;
        ensure!(ran.code == Some(0) && ran.err.is_empty(), "{ran:?}");
        let note = "(none has no counters yet: this is the answer for fresh ones)\n";
        ensure!(ran.out.ends_with(&format!("\nallowed: 4 left\n{note}")), "{ran:?}");
        let explained = home.explain_json("--data-dir none client=1").await?;
        ensure!(explained["counters"] == "fresh" && explained["left"] == 4, "{explained:#}");
        // A look makes no data directory, and nothing in one.
        let inside = std::fs::read_dir(home.path("none")).map(Iterator::count);
        ensure!(inside.unwrap_or(0) == 0, "a look made something");
        std::fs::create_dir_all(home.path("none"))?;
    }
    Ok(())
}

/// Patterns, several limits on a descriptor, limits that give way, quotas.
const RICH: &str = "\
domain: shop
descriptors:
  - key: ip
    match: { cidr: [10.0.0.0/8, 192.168.0.0/16] }
    share_threshold: true
    descriptors:
      - key: path
        value: /api/*
        rate_limits:
          - { name: short, algorithm: token_bucket, requests: 200, period: 10s, burst: 300, initial: 100 }
          - { name: exact, algorithm: sliding_buckets, exact: true, requests: 5000, period: 1h }
          - { name: day, requests: 20000, period: 1d, borrow: 300, count_denied: true }
  - key: user
    rate_limit: { name: base, unit: minute, requests_per_unit: 10 }
  - key: user
    value: vip*
    rate_limit: { name: vip, unit: minute, requests_per_unit: 100, replaces: [{ name: base }] }
  - key: user
    value: vip1*
    rate_limit: { unit: minute, requests_per_unit: 100 }
  - key: budget
    quota_mode: true
    rate_limit: { unit: day, requests_per_unit: 0 }
  - key: spare
    quota_mode: true
    rate_limit: { unit: day, requests_per_unit: 7 }
";

#[tokio::test]
async fn explain_shows_patterns_shares_and_what_gives_way() -> anyhow::Result<()> {
    let home = Home::new()?;
    home.write("limits.yaml", RICH)?;
    let _sidecar = Sidecar::start(home.0.path(), &home.path("limits.yaml")).await?;
    let words = "explain --limits limits.yaml --data-dir data ip=10.1.2.3 path=/api/x";
    let ran = home.run(words).await?;
    ensure!(ran.code == Some(0) && ran.err.is_empty(), "{ran:?}");
    for says in [
        "  1. ip=10.1.2.3: matches a pattern, in 10.0.0.0/8, 192.168.0.0/16; all values of the pattern \
         share one counter\n",
        "  2. path=/api/x: matches a pattern, like \"/api/*\"; each value has a counter of its own\n",
        "    allows   200 per 10s, burst 300, initial 100, by token_bucket\n",
        "    now      100 of 300 tokens left; more in 1s, at ",
        "    allows   5,000 per hour, by sliding_buckets, exact\n",
        "    now      0 of 5,000 used, 5,000 left\n",
        "    allows   20,000 per day, borrow 300, by fixed_window\n",
        "    counts   denied requests and debits after the fact\n",
        "path=/api/x #day\n",
        "\nallowed: 99 left\n",
    ] {
        ensure!(ran.out.contains(says), "{says:?} is not in {}", ran.out);
    }
    // The exact window keeps its counter in several parts.
    let explained = home.explain_json("--data-dir data ip=10.1.2.3 path=/api/x").await?;
    let limits = explained["descriptors"][0]["limits"].as_array().context("limits")?;
    let keys = limits.iter().map(|limit| limit["keys"].as_array().map_or(0, Vec::len));
    ensure!(keys.collect::<Vec<_>>() == [1, 5, 1], "{explained:#}");

    let explained = home.explain_json("user=7 --and user=vip9").await?;
    let replaced = json!([{"limit": "shop/user", "replaced_by": "shop/user=vip*"}]);
    ensure!(explained["descriptors"][0]["replaced"] == replaced, "{explained:#}");
    ensure!(
        explained["descriptors"][0]["limits"] == json!([]) && explained["left"] == 99,
        "{explained:#}"
    );
    let words = "explain --limits limits.yaml user=7 --and user=vip9";
    let says = "replaced: shop/user=vip*, which the request meets too, replaces base\n";
    ensure!(home.run(words).await?.out.contains(says));

    // Quotas deny only together, so what is left is what the roomiest has, where no other limit is met.
    for (words, left) in [
        ("budget=1 --and spare=1", 6),
        ("spare=1 --and budget=1 --and user=3", 6),
        ("spare=1 --and user=3 --hits 5", 2),
    ] {
        let explained = home.explain_json(words).await?;
        ensure!(
            explained["verdict"] == "allow" && explained["left"] == left,
            "{words}: {explained:#}"
        );
    }
    let explained = home.explain_json("budget=1 --and user=3").await?;
    ensure!(explained["denied_by"] == json!(["shop/budget"]), "{explained:#}");
    ensure!(explained["descriptors"][0]["limits"][0]["enforcement"] == "quota", "{explained:#}");
    Ok(())
}

#[tokio::test]
async fn warnings_are_printed_and_strict_takes_them_for_errors() -> anyhow::Result<()> {
    let home = Home::new()?;
    home.write("limits.yaml", RICH)?;
    let lenient = home.run("check limits.yaml").await?;
    ensure!(lenient.code == Some(0), "{lenient:?}");
    let lines: Vec<&str> = lenient.out.lines().collect();
    ensure!(lines.len() == 2 && lines[0].starts_with("limits.yaml:18:5: warning: "), "{lenient:?}");
    ensure!(lines[1] == "ok: 8 limits in 1 domain (shop); 1 warning", "{lenient:?}");
    let strict = home.run("check --strict limits.yaml").await?;
    ensure!(strict.code == Some(1), "{strict:?}");
    ensure!(strict.out.contains("1 warning in the limits, errors with --strict\n"));
    let strict = home.run("check --strict --json limits.yaml").await?;
    let document = strict.json()?;
    ensure!(strict.code == Some(1) && document["ok"] == false, "{strict:?}");
    ensure!(document["warnings"][0]["line"] == 18 && document["errors"] == json!([]), "{strict:?}");
    Ok(())
}

#[tokio::test]
async fn diff_shows_an_order_that_matters() -> anyhow::Result<()> {
    let home = Home::new()?;
    let limits = |places: &[&str]| {
        let place =
            |place: &&str| format!("  - {{ key: k, {place}, rate_limit: {{ unit: day }} }}\n");
        format!("domain: d\ndescriptors:\n{}", places.iter().map(place).collect::<String>())
    };
    let (wild, cidr) = ("value: '10.*'", "match: { cidr: 10.1.0.0/16 }");
    home.write("old.yaml", &limits(&[cidr, wild]))?;
    home.write("new.yaml", &limits(&[wild, cidr]))?;
    let expected = "\
~ d/k=10.*: another rule matches first
    callers such as k=10.1.0.0 meet d/k=10.* now instead of d/k=cidr=10.1.0.0%2F16; \
live counts are kept
1 changed
";
    home.check("check --diff old.yaml new.yaml", 1, expected).await
}

/// A place without a limit lets through what ends there, and shared counters are others.
#[tokio::test]
async fn diff_shows_an_allow_list_and_shared_counters() -> anyhow::Result<()> {
    let home = Home::new()?;
    let limits = |share: &str, more: &str| {
        format!(
            "domain: d\ndescriptors:\n  - {{ key: k, rate_limit: {{ unit: day }} }}\n  - {{ key: p, \
             value: 'x*', share_threshold: {share}, rate_limit: {{ unit: day }} }}\n{more}"
        )
    };
    home.write("old.yaml", &limits("false", ""))?;
    home.write("new.yaml", &limits("true", "  - { key: k, value: friend }\n"))?;
    let expected = "\
~ d/k: takes fewer callers
    callers such as k=friend met d/k, and meet nothing now: a branch without a rule matches first
~ d/p=x*: share_threshold on
    all values of the pattern share one counter now; counts of d/p=x* start anew
2 changed
";
    home.check("check --diff old.yaml new.yaml", 1, expected).await
}

#[tokio::test]
async fn mistakes_end_with_their_code_and_say_what_to_do() -> anyhow::Result<()> {
    let home = Home::new()?;
    home.write("two/a.yaml", "domain: a\ndescriptors: []\n")?;
    home.write("two/b.yaml", "domain: b\ndescriptors: []\n")?;
    home.write("bad.yaml", "domain: ''\n")?;
    for (words, code, says) in [
        ("check", 2, "<PATH>"),
        ("check", 2, "tidegate check [OPTIONS] --diff <OLD> <NEW>"),
        ("check --diff limits.yaml", 2, "2 values required for '--diff <OLD> <NEW>'"),
        ("check limits.yaml --diff limits.yaml limits.yaml", 2, "cannot be used with"),
        ("explain --limits limits.yaml", 2, "<KEY=VALUE>"),
        ("explain client=1", 2, "--limits <PATH>"),
        ("explain --limits limits.yaml client", 2, "entry \"client\": expected KEY=VALUE"),
        ("explain --limits limits.yaml client=1 --and x", 2, "entry \"x\": expected KEY=VALUE"),
        ("explain --limits two client=1", 2, "--domain is needed: the limits have a, b"),
        ("explain --limits limits.yaml --hits x client=1", 2, "invalid value 'x'"),
        ("explain --limits bad.yaml client=1", 1, "bad.yaml:1:9: `domain` is required"),
        ("explain --limits limits.yaml --data-dir limits.yaml client=1", 1, "limits.yaml/cluster"),
    ] {
        let ran = home.run(words).await?;
        ensure!(ran.code == Some(code) && ran.err.contains(says), "{words}: {ran:?}");
        ensure!(ran.out.is_empty(), "{words}: {ran:?}");
    }
    for command in ["check", "explain"] {
        let help = home.run(&format!("{command} --help")).await?;
        let examples = format!("Examples:\n  tidegate {command} ");
        ensure!(help.code == Some(0) && help.out.contains(&examples), "{help:?}");
        ensure!(help.out.contains("Exit code:"), "{help:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_reader_that_has_read_enough_is_no_error() -> anyhow::Result<()> {
    let home = Home::new()?;
    let many = |requests: u32| {
        let limit = format!("rate_limit: {{ unit: hour, requests_per_unit: {requests} }}");
        let rules = (0..2_000).map(|key| format!("  - {{ key: k{key}, {limit} }}\n"));
        format!("domain: d\ndescriptors:\n{}", rules.collect::<String>())
    };
    home.write("old.yaml", &many(1))?;
    home.write("new.yaml", &many(2))?;
    home.write("bad.yaml", &many(1).replace("hour", "eon"))?;
    // Each says more than a pipe holds.
    for (words, code) in [
        ("check --diff old.yaml new.yaml", 1),
        ("check --diff old.yaml new.yaml --json", 1),
        ("check bad.yaml", 1),
        ("check bad.yaml --json", 1),
    ] {
        let ended = run_with_output_closed(home.command(words)?).await?;
        ensure!(ended.code() == Some(code), "{words}: {ended}");
    }
    Ok(())
}
