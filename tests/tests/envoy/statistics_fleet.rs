//! Statistics of a fleet: two machines, each with a sidecar and a filter of two workers in a real Envoy, write into one
//! PostgreSQL. After quiet its sums are what the clients and the upstreams saw, to the hit, whichever sidecar is asked.

use anyhow::{Context, anyhow, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidegate_tests::bootstrap::Filter;
use tidegate_tests::client::{Client, get};
use tidegate_tests::load::{Load, Outcome};
use tidegate_tests::plugin::plugin;
use tidegate_tests::process;
use tidegate_tests::shared_servers::{Postgres, PostgresPrograms};
use tidegate_tests::sidecar::Sidecar;
use tidegate_tests::stack::{Plan, Stack};
use tidegate_tests::wait;

/// An interface of an app is denied after 300 requests on each machine, and no user ever is.
const LIMITS: &str = "
domain: test
statistics:
- {name: apps, by: [app]}
- {name: interfaces, by: [app, interface]}
- {name: users, by: [app], distinct: user}
descriptors:
- key: app
  descriptors:
  - {key: interface, rate_limit: {unit: hour, requests_per_unit: 300}}
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 1000000}}
";
/// The filter reports within 5 seconds, and a sidecar writes every 15, in the next two if the database is well.
const WRITTEN: Duration = Duration::from_secs(22);
/// Each asks the sidecar, so these requests pass at the rate of a busy machine.
const DISTINCT: Duration = Duration::from_secs(120);

struct Fleet {
    machines: [Stack; 2],
    // Ends last.
    _postgres: Postgres,
}

impl Fleet {
    /// None if there is no PostgreSQL here.
    async fn start() -> anyhow::Result<Option<Fleet>> {
        let Some(programs) = PostgresPrograms::find()? else { return Ok(None) };
        let postgres = Postgres::start(&programs).await?;
        let header = |key: &str| json!({"request_headers": {"header_name": format!("x-{key}"), "descriptor_key": key}});
        let mut plugin = plugin();
        plugin["rate_limits"] = json!([
            {"actions": [header("app"), header("interface")]},
            {"actions": [header("app"), header("user")]},
        ]);
        plugin["failure_mode"] = json!("deny");
        let (plugin, url) = (plugin.to_string(), postgres.url());
        let flags = ["--capacity", "200000", "--statistics", &url];
        let plan = Plan::new(LIMITS, Filter::Tidegate(&plugin));
        let plan = Plan { workers: 2, flags: &flags, ..plan };
        let machines = Plan::start_each_shared(&[plan, plan]).await?;
        let machines = machines.try_into().map_err(|_| anyhow!("two machines"))?;
        wait::for_room_in_window(wait::HOUR, DISTINCT).await?;
        Ok(Some(Fleet { machines, _postgres: postgres }))
    }

    fn served(&self) -> u64 {
        self.machines.iter().map(|machine| machine.upstream.served()).sum()
    }

    /// Requests of an app, each with another header: one of `several` values of it.
    fn load(&self, app: &str, header: &'static str, several: u64, requests: u64) -> Load {
        let app = app.as_bytes().to_vec();
        let headers = Arc::new(move |number| {
            let value = format!("{header}-{}", number % several).into_bytes();
            vec![("x-app", app.clone()), (header, value)]
        });
        let targets = self.machines.iter().flat_map(Stack::addresses).collect();
        Load { headers, ..Load::of_one_client(targets, "", requests) }
    }

    /// Waits until each sidecar answers a question as expected.
    async fn both_answer(&self, question: &str, expected: &Value) -> anyhow::Result<()> {
        for machine in &self.machines {
            let mut last = Value::Null;
            let look = async || {
                last = total(&machine.sidecar, question).await.ok()?;
                (last == *expected).then_some(())
            };
            let found = wait::until("the statistics", WRITTEN, look).await;
            found.with_context(|| format!("{question}: {last} in place of {expected}"))?;
        }
        Ok(())
    }
}

/// The sums of the first series.
async fn total(sidecar: &Sidecar, question: &str) -> anyhow::Result<Value> {
    let reply = get(sidecar.http, &format!("/v1/statistics/{question}")).await?;
    ensure!(reply.status == 200, "{question}: {reply:?}");
    let answer: Value = serde_json::from_slice(&reply.body)?;
    Ok(answer["series"][0]["total"].clone())
}

/// The allowed, the denied and all hits of a load.
fn counted(outcome: &Outcome) -> Value {
    let (allowed, denied) = (outcome.of(200), outcome.of(429));
    json!({"allowed": allowed, "denied": denied, "hits": allowed + denied})
}

/// What a metric of the fleet says of each rule.
async fn by_rule(fleet: &Fleet, metric: &str) -> anyhow::Result<BTreeMap<String, u64>> {
    let mut sums = BTreeMap::new();
    for machine in &fleet.machines {
        let page = machine.sidecar.metrics().await?;
        for line in page.lines() {
            let rest = line.strip_prefix(metric).and_then(|rest| rest.strip_prefix("{rule=\""));
            let Some((rule, value)) = rest.and_then(|rest| rest.split_once("\"} ")) else {
                continue;
            };
            *sums.entry(rule.to_owned()).or_default() += value.parse::<u64>()?;
        }
    }
    Ok(sums)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_counts_by_app_and_by_rule_what_clients_and_upstreams_saw() -> anyhow::Result<()> {
    const REQUESTS: u64 = 4_000;
    let Some(fleet) = Fleet::start().await? else { return Ok(()) };
    let load = |app| fleet.load(app, "x-interface", 4, REQUESTS).run();
    let (web, mobile, partner) = tokio::join!(load("web"), load("mobile"), load("partner"));
    let outcomes = [("web", web?), ("mobile", mobile?), ("partner", partner?)];
    let mut sums = [0; 2];
    for (app, outcome) in &outcomes {
        let (allowed, denied) = (outcome.of(200), outcome.of(429));
        ensure!(allowed + denied == REQUESTS && denied > REQUESTS / 4, "{:?}", outcome.statuses);
        sums[0] += allowed;
        sums[1] += denied;
        fleet.both_answer(&format!("apps?app={app}"), &counted(outcome)).await?;
    }
    ensure!(fleet.served() == sums[0], "{} of {}", fleet.served(), sums[0]);
    let rule = "test/app/interface".to_owned();
    for (metric, sum) in [
        ("tidegate_within_limit_total", sums[0]),
        ("tidegate_over_limit_total", sums[1]),
        ("tidegate_total_hits_total", sums[0] + sums[1]),
    ] {
        let found = by_rule(&fleet, metric).await?;
        ensure!(found.get(&rule) == Some(&sum), "{metric} {found:?}, expected {sum}");
    }
    // Otherwise the sidecars decided them, and the test is about nothing.
    let in_envoy = by_rule(&fleet, "tidegate_decided_in_envoy_total").await?;
    ensure!(in_envoy.get(&rule) > Some(&(sums[1] / 2)), "{in_envoy:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_knows_its_distinct_users_within_two_percent() -> anyhow::Result<()> {
    const USERS: u64 = 12_000;
    let Some(fleet) = Fleet::start().await? else { return Ok(()) };
    // A tenth of them come twice, mostly to another machine.
    let first = fleet.load("crowd", "x-user", USERS, USERS).run().await?;
    let second = fleet.load("crowd", "x-user", USERS / 10, USERS / 10).run().await?;
    let sent = USERS + USERS / 10;
    ensure!(first.of(200) + second.of(200) == sent, "{first:?}, {second:?}");
    fleet
        .both_answer("apps?app=crowd", &json!({"allowed": sent, "denied": 0, "hits": sent}))
        .await?;
    for machine in &fleet.machines {
        let distinct = total(&machine.sidecar, "users?app=crowd").await?["distinct"].as_u64();
        let range = USERS - USERS / 50..=USERS + USERS / 50;
        ensure!(distinct.is_some_and(|of| range.contains(&of)), "{distinct:?} of {USERS}");
    }
    Ok(())
}

/// What had come to the killed sidecar since its last write is lost. What its Envoy had not yet reported is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_sidecar_loses_its_last_statistics_and_no_count_of_a_limit() -> anyhow::Result<()>
{
    const REQUESTS: u64 = 3_000;
    let Some(mut fleet) = Fleet::start().await? else { return Ok(()) };
    let before = fleet.load("kept", "x-user", 50, REQUESTS).run().await?;
    ensure!(before.of(200) == REQUESTS, "{:?}", before.statuses);
    fleet.both_answer("apps?app=kept", &counted(&before)).await?;
    let [at_first, _] = fleet.machines.each_ref().map(|machine| machine.upstream.served());

    let load = fleet.load("kept", "x-user", 50, 2 * REQUESTS).start();
    wait::until("requests to pass at the first machine", wait::ANSWER, async || {
        (fleet.machines[0].upstream.served() > at_first + REQUESTS / 4).then_some(())
    })
    .await?;
    let sidecar = &mut fleet.machines[0].sidecar;
    for worker in sidecar.process.children()? {
        process::signal(worker, Signal::KILL)?;
    }
    sidecar.kill().await?;
    let lost_max = fleet.machines[0].upstream.served() - at_first;
    fleet.machines[0].sidecar.restart().await?;
    let outcome = load.end().await?;
    // Circuit breakers of its Envoy's workers may still be open. Only connections that are open at once are at both workers.
    let first = &fleet.machines[0].envoy;
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(Client::connect(first.address).await?);
    }
    let (mut probes, mut asked) = (0, 0);
    wait::until("the first machine to decide again", wait::RETRY, async || {
        for client in &mut clients {
            // Each time another user: one that was leased is decided without the sidecar, also by a worker that does
            // not call it.
            asked += 1;
            let user = format!("probe-{asked}");
            let headers: [(&str, &[u8]); 2] = [("x-app", b"probe"), ("x-user", user.as_bytes())];
            let reply = client.get("/", &headers).await.ok()?;
            probes += u64::from(reply.status == 200);
            (reply.status == 200).then_some(())?;
        }
        (first.filter_stat("breakers_open").await.ok()? == 0).then_some(())
    })
    .await?;
    let after = fleet.load("kept", "x-user", 50, REQUESTS).run().await?;
    ensure!(after.of(200) == REQUESTS, "{:?}", after.statuses);

    let sent = before.sent() + outcome.sent() + after.sent();
    let allowed = before.of(200) + outcome.of(200) + after.of(200);
    ensure!(fleet.served() == allowed + probes, "{} of {allowed}", fleet.served());
    let mut last = Value::Null;
    let all_but_the_last = wait::until("the statistics", WRITTEN, async || {
        last = total(&fleet.machines[1].sidecar, "apps?app=kept").await.ok()?;
        (last["allowed"].as_u64()? >= allowed - lost_max).then_some(())
    });
    all_but_the_last.await.with_context(|| format!("{last}; {lost_max} of {allowed} may miss"))?;
    // Each writes the rest when it ends.
    for machine in &mut fleet.machines {
        machine.sidecar.process.stop().await?;
        machine.sidecar.restart().await?;
    }
    let last = total(&fleet.machines[0].sidecar, "apps?app=kept").await?;
    ensure!(last["hits"].as_u64() <= Some(sent), "{last}, and {sent} were sent");

    // Every request that passed is counted, however the tokens of its lease were returned.
    for machine in &fleet.machines {
        let mut used = 0;
        for user in 0..50 {
            used += 1_000_000 - left(machine, &format!("x-user-{user}")).await?;
        }
        let passed = machine.upstream.served() - std::mem::take(&mut probes);
        ensure!(used >= passed, "{used} counted, and {passed} have passed");
    }
    Ok(())
}

/// What is left of a user's limit.
async fn left(machine: &Stack, user: &str) -> anyhow::Result<u64> {
    let entries = json!([{"key": "app", "value": "kept"}, {"key": "user", "value": user}]);
    let descriptor = json!({"entries": entries, "hitsAddend": "0"});
    let ask = json!({"domain": "test", "descriptors": [descriptor]}).to_string();
    let headers: [(&str, &[u8]); 1] = [("content-type", b"application/json")];
    let reply =
        tidegate_tests::client::send(machine.sidecar.http, "POST", "/json", &headers, ask).await?;
    let answer: Value = serde_json::from_slice(&reply.body)?;
    answer["statuses"][0]["limitRemaining"].as_u64().with_context(|| answer.to_string())
}
