//! The compared ways to run Envoy, and the cost of each.

use crate::figures::median;
use anyhow::ensure;
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use tidegate_tests::artifacts;
use tidegate_tests::bootstrap::Filter;
use tidegate_tests::decisions::Decisions;
use tidegate_tests::load::Load;
use tidegate_tests::stack::{Plan, Stack};

/// An unreachable limit for each client, for each address and for all together, and one that denies every
/// request of one client.
pub(super) const LIMITS: &str = "\
domain: bench
descriptors:
  - key: client
    rate_limit: { name: client, unit: hour, requests_per_unit: 4000000000 }
  - key: client
    value: denied
    rate_limit: { name: denied, unit: hour, requests_per_unit: 0 }
  - key: remote_address
    rate_limit: { name: address, unit: hour, requests_per_unit: 4000000000 }
  - key: generic_key
    value: all
    rate_limit: { name: all, unit: hour, requests_per_unit: 4000000000 }
";

/// A way to run Envoy, in the order of [`Setup::ALL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Setup {
    NoFilter,
    NativeLocal,
    NoopAbi,
    NoopSdk,
    LeaseOfOne,
    LeasesOfThree,
    LeasesOfThreeWithHeaders,
    LeasesOfThreeWithConditions,
    DeniedLocally,
    AskingEveryTime,
    NativeOfOne,
    NativeOfThree,
}

impl Setup {
    pub(super) const ALL: [(Setup, &str); 12] = [
        (Setup::NoFilter, "no filter"),
        (Setup::NativeLocal, "envoy's local filter"),
        (Setup::NoopAbi, "wasm that does nothing"),
        (Setup::NoopSdk, "wasm that does nothing, on the SDK"),
        (Setup::LeaseOfOne, "tidegate, lease held"),
        (Setup::LeasesOfThree, "tidegate, three leases held"),
        (Setup::LeasesOfThreeWithHeaders, "tidegate, three leases, ietf headers"),
        (Setup::LeasesOfThreeWithConditions, "tidegate, three leases, a condition each"),
        (Setup::DeniedLocally, "tidegate, denying by itself"),
        (Setup::AskingEveryTime, "tidegate, asking every time"),
        (Setup::NativeOfOne, "envoy's own filter, asking tidegate"),
        (Setup::NativeOfThree, "envoy's own filter, three descriptors"),
    ];

    pub(super) fn name(self) -> &'static str {
        Setup::ALL[self as usize].1
    }

    /// The plugin's configuration. None without Tidegate in Envoy.
    fn plugin(self) -> Option<Value> {
        match self {
            Setup::NoFilter | Setup::NativeLocal | Setup::NoopAbi | Setup::NoopSdk => None,
            Setup::NativeOfOne | Setup::NativeOfThree => None,
            Setup::LeaseOfOne | Setup::DeniedLocally => Some(plugin(&one())),
            Setup::LeasesOfThree => Some(plugin(&three())),
            Setup::LeasesOfThreeWithHeaders => {
                let mut plugin = plugin(&three());
                plugin["headers"] = json!("ietf");
                Some(plugin)
            }
            Setup::LeasesOfThreeWithConditions => Some(plugin(&three_with_conditions())),
            Setup::AskingEveryTime => {
                let mut plugin = plugin(&one());
                plugin["leases"] = json!({"slots": 0});
                Some(plugin)
            }
        }
    }

    /// The expected status, and the client that sends the requests.
    fn expected(self) -> (u16, &'static str) {
        match self {
            Setup::DeniedLocally => (429, "denied"),
            _ => (200, "a"),
        }
    }

    async fn stack(self) -> anyhow::Result<Stack> {
        let plugin = self.plugin().map(|plugin| plugin.to_string());
        let (one, three) = (one(), three());
        let noop;
        let filter = match (self, &plugin) {
            (Setup::LeasesOfThreeWithConditions, Some(plugin)) => {
                Filter::TidegateWithConditions(plugin)
            }
            (_, Some(plugin)) => Filter::Tidegate(plugin),
            (Setup::NativeLocal, None) => Filter::NativeLocal { tokens: 1_000_000_000 },
            (Setup::NoopAbi, None) => {
                noop = artifacts::noop_abi_filter()?;
                Filter::Wasm(&noop)
            }
            (Setup::NoopSdk, None) => {
                noop = artifacts::noop_sdk_filter()?;
                Filter::Wasm(&noop)
            }
            (Setup::NativeOfOne, None) => Filter::Native { domain: "bench", rate_limits: &one },
            (Setup::NativeOfThree, None) => Filter::Native { domain: "bench", rate_limits: &three },
            (_, None) => Filter::None,
        };
        Plan::new(LIMITS, filter).start().await
    }
}

/// One descriptor, in the form of a route's `rate_limits`.
pub(super) fn one() -> Value {
    json!([{"actions": [
        {"request_headers": {"header_name": "x-client", "descriptor_key": "client"}},
    ]}])
}

fn three() -> Value {
    json!([
        one()[0],
        {"actions": [{"remote_address": {}}]},
        {"actions": [{"generic_key": {"descriptor_value": "all"}}]},
    ])
}

/// The same, each with a condition that every request meets.
fn three_with_conditions() -> Value {
    let mut entries = three();
    let conditions = [
        "request.method == 'GET'",
        "request.headers['x-client'] != 'nobody'",
        "request.url_path.startsWith('/')",
    ];
    for (index, when) in conditions.into_iter().enumerate() {
        entries[index]["when"] = json!(when);
    }
    entries
}

/// A plugin configuration. The timeout is generous, as a stall of a shared machine is not a failure.
pub(super) fn plugin(rate_limits: &Value) -> Value {
    json!({
        "domain": "bench",
        "sidecar": {"cluster": "tidegate", "timeout_ms": 5000},
        "failure_mode": "deny",
        "rate_limits": rate_limits,
        "headers": "off",
    })
}

/// A way to run Envoy, and its cost in each round.
pub(super) struct Case {
    pub(super) kind: Setup,
    stack: Stack,
    /// µs of Envoy's CPU per request.
    envoy: Vec<f64>,
    /// µs of the sidecar's CPU per request.
    sidecar: Vec<f64>,
    /// Latencies in nanoseconds, over all rounds.
    latencies: Histogram<u64>,
    /// The decisions before the first round.
    decided_before: Option<Decisions>,
    /// Those of all rounds. None without Tidegate in Envoy.
    decisions: Option<Decisions>,
    /// Envoy's memory after the last round.
    resident_bytes: u64,
}

impl Case {
    pub(super) async fn start(kind: Setup, warm_up: u64) -> anyhow::Result<Case> {
        let stack = kind.stack().await?;
        let outcome = Load::of_one_client(stack.addresses(), kind.expected().1, warm_up).run();
        let mut latencies = outcome.await?.latencies;
        latencies.reset();
        Ok(Case {
            kind,
            stack,
            envoy: Vec::new(),
            sidecar: Vec::new(),
            latencies,
            decided_before: None,
            decisions: None,
            resident_bytes: 0,
        })
    }

    pub(super) async fn measure(&mut self, requests: u64) -> anyhow::Result<()> {
        let (status, client) = self.kind.expected();
        let has_tidegate = self.kind.plugin().is_some();
        let decided = match has_tidegate {
            true => Some(self.stack.envoy.decisions().await?),
            false => None,
        };
        let before = self.cpu_micros()?;
        let outcome = Load::of_one_client(self.stack.addresses(), client, requests).run().await?;
        let after = self.cpu_micros()?;
        let (name, statuses) = (self.kind.name(), &outcome.statuses);
        ensure!(outcome.of(status) == requests, "{name}: expected {status}, found {statuses:?}");

        self.envoy.push((after.0 - before.0) / requests as f64);
        self.sidecar.push((after.1 - before.1) / requests as f64);
        self.latencies.add(&outcome.latencies)?;
        self.resident_bytes = self.stack.envoy.process.resident_bytes()?;
        if let Some(decided) = decided {
            let now = self.stack.envoy.decisions_of(decided.total() + requests).await?;
            self.decisions = Some(now.since(self.decided_before.get_or_insert(decided)));
        }
        Ok(())
    }

    fn cpu_micros(&self) -> anyhow::Result<(f64, f64)> {
        let envoy = self.stack.envoy.process.cpu_time()?;
        let sidecar = self.stack.sidecar.process.cpu_time()?;
        Ok((envoy.as_secs_f64() * 1e6, sidecar.as_secs_f64() * 1e6))
    }

    pub(super) fn envoy_micros(&self) -> f64 {
        median(&self.envoy)
    }

    pub(super) fn sidecar_micros(&self) -> f64 {
        median(&self.sidecar)
    }

    pub(super) fn both_micros(&self) -> f64 {
        self.envoy_micros() + self.sidecar_micros()
    }

    pub(super) fn latency_micros(&self, percent: f64) -> f64 {
        self.latencies.value_at_percentile(percent) as f64 / 1e3
    }

    pub(super) fn local_share(&self) -> Option<f64> {
        self.decisions.map(|decisions| decisions.local_share())
    }

    pub(super) fn resident_mebibytes(&self) -> f64 {
        self.resident_bytes as f64 / f64::from(1 << 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setups_are_in_their_order() {
        assert!(Setup::ALL.iter().enumerate().all(|(index, (setup, _))| *setup as usize == index));
    }
}
