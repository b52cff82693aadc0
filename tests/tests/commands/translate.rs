//! `tidegate translate` as a user runs it: what it prints where, and how it ends.

use anyhow::ensure;
use serde_json::json;
use std::process::Stdio;
use tempfile::TempDir;
use tidegate_tests::artifacts;
use tidegate_tests::command::{Ran, run};
use tokio::process::Command;

const FILTER: &str = "\
name: envoy.filters.http.ratelimit
typed_config:
  '@type': type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
  domain: shop
  rate_limit_service: { grpc_service: { envoy_grpc: { cluster_name: tidegate } } }
";

const ROUTES: &str = "\
virtual_hosts:
- name: v
  domains: ['*']
  rate_limits:
  - actions: [ { remote_address: {} } ]
  routes: []
";

/// As [`ROUTES`], with an entry that has no equivalent.
const EXTENSION: &str = "\
virtual_hosts:
- name: v
  domains: ['*']
  rate_limits:
  - actions: [ { remote_address: {} } ]
  - actions:
    - extension: { name: envoy.rate_limit_descriptors.expr, typed_config: {} }
";

struct Home(TempDir);

impl Home {
    fn new() -> anyhow::Result<Home> {
        let home = Home(TempDir::new()?);
        for (name, text) in
            [("filter.yaml", FILTER), ("routes.yaml", ROUTES), ("extension.yaml", EXTENSION)]
        {
            std::fs::write(home.0.path().join(name), text)?;
        }
        Ok(home)
    }

    async fn run(&self, words: &str, input: Option<&str>) -> anyhow::Result<Ran> {
        let mut command = Command::new(artifacts::sidecar()?);
        command.arg("translate").args(words.split_whitespace()).current_dir(self.0.path());
        match input {
            Some(name) => {
                command.stdin(std::fs::File::open(self.0.path().join(name))?);
            }
            None => {
                command.stdin(Stdio::null());
            }
        }
        run(command).await
    }
}

#[tokio::test]
async fn what_is_translated_goes_to_standard_output_and_what_is_not_to_standard_error()
-> anyhow::Result<()> {
    let home = Home::new()?;
    let list = json!([{"actions": [{"remote_address": {}}]}]);
    let expected = json!({
        "domain": "shop",
        "sidecar": {"cluster": "tidegate"},
        "headers": "off",
        "denied": {"body": ""},
        "virtual_hosts": [{"name": "v", "rate_limits": list}],
    });
    let ran = home.run("filter.yaml routes.yaml", None).await?;
    ensure!(ran.code == Some(0) && ran.err.is_empty() && ran.json()? == expected, "{ran:?}");
    let piped = home.run("filter.yaml -", Some("routes.yaml")).await?;
    ensure!(piped.code == Some(0) && piped.out == ran.out, "{piped:?}");

    let ran = home.run("filter.yaml extension.yaml", None).await?;
    ensure!(ran.code == Some(1) && ran.json()? == expected, "{ran:?}");
    let line = "extension.yaml:7:20: virtual host v: rate_limits[1].actions[0].extension: not supported: a Wasm \
                filter cannot call Envoy's descriptor extensions; only that of `jwt_claim` is here; the entry is left out";
    ensure!(ran.err == format!("{line}\n1 thing has no equivalent\n"), "{ran:?}");
    let strict = home.run("--strict filter.yaml extension.yaml", None).await?;
    ensure!(strict.code == Some(1) && strict.out.is_empty(), "{strict:?}");
    ensure!(strict.err.starts_with(line), "{strict:?}");
    let strict = home.run("--strict filter.yaml routes.yaml", None).await?;
    ensure!(strict.code == Some(0) && strict.json()? == expected, "{strict:?}");
    Ok(())
}

#[tokio::test]
async fn flags_stand_in_for_a_filter_that_is_not_in_the_files() -> anyhow::Result<()> {
    let home = Home::new()?;
    let ran = home.run("routes.yaml", None).await?;
    ensure!(
        ran.code == Some(2) && ran.out.is_empty() && ran.err.contains("--domain NAME"),
        "{ran:?}"
    );
    let ran = home.run("--domain d --cluster c routes.yaml", None).await?;
    let config = ran.json()?;
    ensure!(ran.code == Some(0) && ran.err.is_empty(), "{ran:?}");
    ensure!(config["domain"] == "d" && config["sidecar"] == json!({"cluster": "c"}), "{config}");
    let ran = home.run("--domain d --cluster c filter.yaml routes.yaml", None).await?;
    ensure!(ran.json()?["domain"] == "d", "{ran:?}");
    Ok(())
}

#[tokio::test]
async fn input_that_cannot_be_read_is_an_error_of_its_own() -> anyhow::Result<()> {
    let home = Home::new()?;
    std::fs::write(home.0.path().join("bad.yaml"), "a:\n  - b: [\n")?;
    std::fs::write(home.0.path().join("binary"), [0xff, 0xfe, 0x00])?;
    std::fs::write(home.0.path().join("large"), vec![b'\n'; (16 << 20) + 1])?;
    std::fs::write(home.0.path().join("deep"), "[".repeat(100_000))?;
    for (words, message) in [
        ("none.yaml", "cannot read none.yaml"),
        ("bad.yaml", "bad.yaml:"),
        ("binary", "cannot read binary"),
        ("large", "large has more than 16 MiB"),
        ("deep", "nested too deeply"),
        ("", "required"),
        ("--filter other filter.yaml", "no rate limit filter in the input has the name \"other\""),
    ] {
        let ran = home.run(words, None).await?;
        ensure!(ran.code == Some(2) && ran.out.is_empty(), "{words}: {ran:?}");
        ensure!(ran.err.contains(message), "{words}: {ran:?}");
    }
    Ok(())
}
