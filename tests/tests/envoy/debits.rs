//! Costs that are known at the end of a stream, as those of a language model: debited by the filter in a real Envoy,
//! beside Envoy's own filter, and when a sidecar dies in between.

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};
use std::collections::VecDeque;
use tidegate_tests::bootstrap::{Before, Filter};
use tidegate_tests::client::{Client, Reply};
use tidegate_tests::plugin::plugin;
use tidegate_tests::stack::{Plan, Stack};
use tidegate_tests::wait;
use tokio::task::JoinHandle;

const COST: &str = "%DYNAMIC_METADATA(llm:cost)%";

fn limits(rate_limit: &str) -> String {
    format!("domain: test\ndescriptors:\n  - key: client\n    rate_limit: {rate_limit}\n")
}

fn entry(rest: &Value) -> Value {
    let mut entry = json!({"actions": [
        {"request_headers": {"header_name": "x-client", "descriptor_key": "client"}},
    ]});
    for (name, value) in rest.as_object().into_iter().flatten() {
        entry[name] = value.clone();
    }
    entry
}

/// A peek when the request arrives, and a debit when its stream has ended.
fn peek_and_debit(hits: &Value) -> Vec<Value> {
    vec![
        entry(&json!({"hits_addend": {"number": 0}})),
        entry(&json!({"apply_on_stream_done": true, "hits_addend": hits})),
    ]
}

fn configured(rate_limits: &[Value]) -> String {
    let mut plugin = plugin();
    plugin["rate_limits"] = json!(rate_limits);
    plugin["failure_mode"] = json!("deny");
    plugin.to_string()
}

/// A plan with one worker, and a filter before ours that reads the cost.
fn planned<'a>(limits: &'a str, plugin: &'a str) -> Plan<'a> {
    // Tokens of a lease that has ended are lost. A busy machine may need more than the usual two seconds to give back
    // what has been idle for some tenths of one.
    let flags = &["--capacity", "100000", "--lease-ttl", "10s"];
    let plan = Plan::new(limits, Filter::Tidegate(plugin));
    Plan { before: Before::ReadsCost, flags, ..plan }
}

async fn started(limits: &str, plugin: &str, workers: u32) -> anyhow::Result<Stack> {
    // A stream may take longer than Envoy's default of 15 s.
    let routes =
        [json!({"match": {"prefix": "/"}, "route": {"cluster": "upstream", "timeout": "0s"}})];
    Plan { workers, routes: &routes, ..planned(limits, plugin) }.start_shared().await
}

/// Begins a stream of a cost that only its end knows. It ends when the upstream releases it.
fn begin(stack: &Stack, client: &str, cost: u64) -> JoinHandle<anyhow::Result<Reply>> {
    let (address, client, cost) = (stack.envoy.address, client.to_owned(), cost.to_string());
    tokio::spawn(async move {
        let headers: [(&str, &[u8]); 3] =
            [("x-client", client.as_bytes()), ("x-cost", cost.as_bytes()), ("x-held", b"")];
        Client::connect(address).await?.get("/", &headers).await
    })
}

/// The hits that were charged to the limit and not returned. Those that the filter decided were charged with their
/// lease. All is read from one page, since a report adds to two of these metrics.
async fn counted(stack: &Stack) -> anyhow::Result<f64> {
    let page = stack.sidecar.metrics().await?;
    let of = |name: &str| {
        let values = page.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{'));
        let values = values.filter_map(|rest| rest.rsplit_once(' ')?.1.parse::<f64>().ok());
        values.sum::<f64>()
    };
    Ok(of("tidegate_total_hits_total") - of("tidegate_decided_in_envoy_total")
        + of("tidegate_leased_tokens_total")
        - of("tidegate_returned_tokens_total"))
}

async fn debited(stack: &Stack, hits: u64) -> anyhow::Result<()> {
    let what = format!("{hits} hits to be debited");
    wait::until(&what, wait::SOON, async || {
        (stack.envoy.filter_stat("debits").await.ok()? >= hits).then_some(())
    })
    .await?;
    ensure!(stack.envoy.filter_stat("debits").await? == hits);
    ensure!(stack.envoy.filter_stat("debits_lost").await? == 0);
    Ok(())
}

#[tokio::test]
async fn what_a_stream_has_cost_is_read_at_its_end_whoever_says_it() -> anyhow::Result<()> {
    let cases = [
        (json!({"format": COST}), "41", true, 41),
        (json!({"format": COST}), "2.5", true, 3),
        (json!({"format": COST}), "none", true, 0),
        (json!({"response_header": "x-cost"}), "42", true, 42),
        (json!({"format": "%RESP(x-cost)%"}), "43", true, 43),
        (json!({"format": "%REQ(x-cost)%"}), "44", true, 44),
        (json!({"header": "x-cost"}), "", false, 1),
        (json!({"number": 45}), "", false, 45),
        // "hello from the upstream\n" and "cost 9\n".
        (json!({"format": "%BYTES_SENT%"}), "9", true, 24 + 7),
    ];
    let limits = limits("{ unit: hour, requests_per_unit: 1000 }");
    let plugins = cases.each_ref().map(|(hits, ..)| configured(&peek_and_debit(hits)));
    let plans = plugins.each_ref().map(|plugin| planned(&limits, plugin));
    for (stack, (hits, cost, sent, expected)) in
        Plan::start_each_shared(&plans).await?.iter().zip(cases)
    {
        let headers: [(&str, &[u8]); 2] = [("x-client", b"a"), ("x-cost", cost.as_bytes())];
        let reply = stack.get("/", &headers[..1 + usize::from(sent)]).await?;
        ensure!(reply.status == 200, "{reply:?}");
        debited(stack, expected).await?;
        ensure!(counted(stack).await? == expected as f64, "{hits}: {}", counted(stack).await?);
    }
    Ok(())
}

/// What Envoy's own filter and this one make of the same requests: their statuses, and the hits of debits counted.
async fn both(
    entries: &[Value],
    limits: &str,
    act: impl AsyncFn(&Stack) -> anyhow::Result<Vec<u16>>,
) -> anyhow::Result<[(Vec<u16>, f64); 2]> {
    let filter = json!({"rate_limits": entries});
    let native = Filter::NativeWith { domain: "test", filter: &filter, host: &json!({}) };
    let plugin = configured(entries);
    let mut results = Vec::new();
    for filter in [native, Filter::Tidegate(&plugin)] {
        let plan = Plan {
            before: Before::ReadsCost,
            flags: &["--count-denied", "--capacity", "1000"],
            ..Plan::new(limits, filter)
        };
        let stack = plan.start_shared().await?;
        wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
        let statuses = act(&stack).await?;
        results.push((statuses, counted(&stack).await?));
    }
    Ok(results.try_into().expect("two"))
}

/// Sends one request, and waits until so many hits are counted.
async fn served(stack: &Stack, cost: &str, hits: f64) -> anyhow::Result<u16> {
    let headers: [(&str, &[u8]); 2] = [("x-client", b"a"), ("x-cost", cost.as_bytes())];
    let status = stack.get("/", &headers).await?.status.as_u16();
    let what = format!("{hits} hits to be counted");
    let enough = async || (counted(stack).await.ok()? >= hits).then_some(());
    wait::until(&what, wait::SOON, enough).await?;
    Ok(status)
}

#[tokio::test]
async fn the_same_requests_are_decided_as_by_envoys_own_filter() -> anyhow::Result<()> {
    let limits = limits("{ unit: hour, requests_per_unit: 100 }");
    for hits in [json!({"format": COST}), json!({"format": "%RESP(x-cost)%"})] {
        let [native, ours] = both(&peek_and_debit(&hits), &limits, async |stack: &Stack| {
            let mut statuses = Vec::new();
            for (cost, counted) in
                [("40", 40.0), ("55", 95.0), ("5", 100.0), ("7", 107.0), ("9", 107.0)]
            {
                statuses.push(served(stack, cost, counted).await?);
            }
            Ok(statuses)
        })
        .await?;
        ensure!(native.0 == [200, 200, 200, 200, 429], "{native:?}");
        ensure!(native == ours, "{hits}: Envoy's {native:?}, ours {ours:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_denied_request_owes_what_it_owes_in_envoys_own_filter() -> anyhow::Result<()> {
    let limits = limits("{ unit: hour, requests_per_unit: 2 }");
    let [native, ours] =
        both(&peek_and_debit(&json!({"number": 3})), &limits, async |stack: &Stack| {
            let mut statuses = Vec::new();
            // Denied ones owe as much.
            for hits in [3.0, 6.0, 9.0, 12.0] {
                statuses.push(served(stack, "1", hits).await?);
            }
            // Until more debits would have come.
            let (mut last, mut same) = (0.0, 0);
            wait::until("the counts to rest", wait::SOON, async || {
                let now = counted(stack).await.ok()?;
                same = if now == last { same + 1 } else { 0 };
                last = now;
                (same > 20).then_some(())
            })
            .await?;
            Ok(statuses)
        })
        .await?;
    println!("Envoy's {native:?}, ours {ours:?}");
    ensure!(native == ours, "Envoy's {native:?}, ours {ours:?}");
    Ok(())
}

/// A number that looks random, from 1 to 5,000.
fn cost_of(stream: u64) -> u64 {
    (stream.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) % 5_000 + 1
}

/// Keeps `width` streams in flight until one is denied, and ends all: the costs of those that passed, in the order of
/// their ends.
async fn flood(stack: &Stack, width: usize) -> anyhow::Result<Vec<u64>> {
    let mut flights: VecDeque<(u64, JoinHandle<anyhow::Result<Reply>>)> = VecDeque::new();
    let (mut spent, mut next, mut is_denied) = (Vec::new(), 0, false);
    loop {
        while !is_denied && flights.len() < width {
            next += 1;
            let cost = cost_of(next);
            let passed = stack.upstream.served();
            let flight = begin(stack, "a", cost);
            // It reaches the upstream, or it is denied.
            wait::until("a stream to begin", wait::ANSWER, async || {
                (flight.is_finished() || stack.upstream.served() > passed).then_some(())
            })
            .await?;
            if flight.is_finished() {
                let status = flight.await??.status;
                ensure!(status == 429, "{status}");
                is_denied = true;
            } else {
                flights.push_back((cost, flight));
            }
        }
        let Some((cost, flight)) = flights.pop_front() else { return Ok(spent) };
        stack.upstream.release(1);
        let reply = flight.await??;
        ensure!(reply.status == 200, "{reply:?}");
        spent.push(cost);
        // The client sees the end before the debit is under way.
        wait::until("the debit", wait::ANSWER, async || {
            let debits = stack.envoy.filter_stat("debits").await.ok()?;
            (debits >= spent.iter().sum()).then_some(())
        })
        .await?;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_of_usage_is_exceeded_by_no_more_than_what_was_in_flight() -> anyhow::Result<()> {
    let limits = limits("{ unit: hour, requests_per_unit: 100000 }");
    let plugin = configured(&peek_and_debit(&json!({"format": COST})));
    let stack = started(&limits, &plugin, 2).await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    let spent = flood(&stack, 4).await?;
    let (mut sum, mut before) = (0, 0);
    for cost in &spent {
        sum += cost;
        before += usize::from(sum <= 100_000);
    }
    // The next one reached the limit. Three more were in flight, and one may begin at the worker that still has tokens.
    let later = spent.len() - before - 1;
    println!(
        "{sum} of 100000 spent by {} streams, {later} after the limit was reached",
        spent.len()
    );
    ensure!(sum >= 100_000 && later <= 4, "{sum}, {spent:?}");
    debited(&stack, sum).await?;
    for _ in 0..20 {
        ensure!(stack.send(b"a").await?.status == 429, "it is closed until the window ends");
    }
    ensure!(stack.send(b"b").await?.status == 200);
    Ok(())
}

/// Begins streams, a hundred at a time, until all of them are in flight.
async fn begun(
    stack: &Stack,
    count: u64,
    client_of: impl Fn(u64) -> String,
) -> anyhow::Result<Vec<JoinHandle<anyhow::Result<Reply>>>> {
    let served = stack.upstream.served();
    let mut streams = Vec::new();
    for stream in 0..count {
        streams.push(begin(stack, &client_of(stream), cost_of(stream)));
        if streams.len() % 100 == 0 {
            let all = served + streams.len() as u64;
            wait::until("all streams to begin", wait::ANSWER, async || {
                (stack.upstream.served() == all).then_some(())
            })
            .await?;
        }
    }
    ensure!(!streams.iter().any(JoinHandle::is_finished), "a stream was denied");
    Ok(streams)
}

async fn ended(streams: Vec<JoinHandle<anyhow::Result<Reply>>>) -> anyhow::Result<()> {
    for stream in streams {
        let reply = stream.await??;
        ensure!(reply.status == 200, "{reply:?}");
    }
    Ok(())
}

/// Without leases, the count is exactly that of the debits. With them, it never is below, and above it
/// by what two returns of one lease have left charged: one in 32 collides.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_streams_that_end_at_once_are_all_debited() -> anyhow::Result<()> {
    const STREAMS: u64 = 2_000;
    let limits = limits("{ unit: hour, requests_per_unit: 100000 }");
    let sum = (0..STREAMS).map(cost_of).sum::<u64>();
    for (slots, workers, above) in [(0, 2, 0), (8_192, 2, sum / 20), (8_192, 1, sum / 20)] {
        let plugin = configured(&peek_and_debit(&json!({"format": COST})));
        let mut plugin: Value = serde_json::from_str(&plugin)?;
        plugin["leases"] = json!({"slots": slots});
        let stack = started(&limits, &plugin.to_string(), workers).await?;
        wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
        let streams = begun(&stack, STREAMS, |stream| format!("client-{}", stream % 700)).await?;
        stack.upstream.release(STREAMS as usize);
        ended(streams).await?;
        debited(&stack, sum).await?;
        // Once unneeded tokens have been returned.
        let (range, mut last) = (sum as f64..=(sum + above) as f64, 0.0);
        let all = wait::until("the debits to be counted", wait::RECALL, async || {
            last = counted(&stack).await.ok()?;
            range.contains(&last).then_some(())
        });
        all.await.with_context(|| format!("{slots} slots, {workers} workers: {last} of {sum}"))?;
        let calls = stack.envoy.filter_stat("asks").await?;
        println!("{calls} calls for {STREAMS} peeks and debits of 700 clients, {slots} slots");
    }
    Ok(())
}

/// What is left of a client's limit.
async fn left(stack: &Stack, client: &str) -> anyhow::Result<u64> {
    let descriptor = json!({"entries": [{"key": "client", "value": client}], "hitsAddend": "0"});
    let ask = json!({"domain": "test", "descriptors": [descriptor]}).to_string();
    let mut http = Client::connect(stack.sidecar.http).await?;
    let reply = http.send("POST", "/json", &[("content-type", b"application/json")], ask).await?;
    let answer: Value = serde_json::from_slice(&reply.body)?;
    Ok(answer["statuses"][0]["limitRemaining"].as_u64().unwrap_or(0))
}

/// Has a client take a turn, and another one if too much stays charged to it: two workers may each return a part of a lease,
/// and in one of 32 such cases the second part is refused.
async fn in_turns(mut turn: impl AsyncFnMut(&str) -> anyhow::Result<bool>) -> anyhow::Result<()> {
    for client in ["a", "b", "c"] {
        if turn(client).await? {
            return Ok(());
        }
    }
    bail!("too much is charged to each client")
}

/// Waits until this is left of a client's limit. Whether it came to that, or stayed below.
async fn comes_to(stack: &Stack, client: &str, expected: u64) -> anyhow::Result<bool> {
    let mut last = 0;
    let come = wait::until("all to be settled", wait::RECALL, async || {
        last = left(stack, client).await.ok()?;
        (last == expected).then_some(())
    });
    let come = come.await;
    println!("{client}: {last} left, {expected} expected");
    ensure!(last <= expected, "{last} left, {expected} expected");
    Ok(come.is_ok())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_of_the_sidecar_loses_no_debit_and_counts_none_twice() -> anyhow::Result<()> {
    let limits = limits("{ unit: hour, requests_per_unit: 10000000 }");
    let plugin = configured(&peek_and_debit(&json!({"format": COST})));
    // It may take long until the filter calls the sidecar again.
    let flags = &["--capacity", "100000", "--lease-ttl", "60s"];
    let mut stack = Plan { workers: 2, flags, ..planned(&limits, &plugin) }.start_shared().await?;
    in_turns(async |client| is_counted_over_a_kill(&mut stack, client).await).await
}

async fn is_counted_over_a_kill(stack: &mut Stack, client: &str) -> anyhow::Result<bool> {
    const STREAMS: u64 = 400;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    let sum = (0..STREAMS).map(cost_of).sum::<u64>();
    let before = stack.envoy.filter_stat("debits").await?;
    let streams = begun(stack, STREAMS, |_| client.to_owned()).await?;
    // Some end before it dies, some while it dies, and some while it is away.
    stack.upstream.release(100);
    wait::until("the first debits", wait::SOON, async || {
        (left(stack, client).await.ok()? < 10_000_000).then_some(())
    })
    .await?;
    stack.upstream.release(150);
    stack.sidecar.kill().await?;
    stack.upstream.release(150);
    ended(streams).await?;
    stack.sidecar.restart().await?;
    wait::until("all debits", wait::RETRY, async || {
        (stack.envoy.filter_stat("debits").await.ok()? >= before + sum).then_some(())
    })
    .await?;
    ensure!(stack.envoy.filter_stat("debits_lost").await? == 0);
    // Once unneeded tokens have been returned, exactly the debits are counted.
    comes_to(stack, client, 10_000_000 - sum).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_estimate_holds_back_what_is_in_flight_and_is_settled() -> anyhow::Result<()> {
    let limits = limits("{ unit: hour, requests_per_unit: 100000 }");
    let hits = json!({"hits_addend": {"estimate": ESTIMATE, "actual": {"format": COST}}});
    let stack = started(&limits, &configured(&[entry(&hits)]), 2).await?;
    in_turns(async |client| is_settled(&stack, client).await).await
}

const ESTIMATE: u64 = 2_500;

async fn is_settled(stack: &Stack, client: &str) -> anyhow::Result<bool> {
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    let before = stack.upstream.served();
    // Far more at once than fit.
    let mut flights: Vec<_> =
        (0..1_000).map(|n| (cost_of(n), begin(stack, client, cost_of(n)))).collect();
    wait::until("the streams to be decided", wait::ANSWER, async || {
        let denied = flights.iter().filter(|(_, flight)| flight.is_finished()).count() as u64;
        (denied + stack.upstream.served() == before + 1_000).then_some(())
    })
    .await?;
    let served = stack.upstream.served() - before;
    ensure!((30..=100_000 / ESTIMATE).contains(&served), "{served} at once");
    stack.upstream.release(served as usize);
    let mut spent = 0;
    for (cost, flight) in flights.drain(..) {
        let reply = flight.await??;
        spent += if reply.status == 200 { cost } else { 0 };
    }
    // What was estimated too high is free again, and what was estimated too low is gone.
    println!("{served} streams of 1000 spent {spent} of 100000");
    comes_to(stack, client, 100_000 - spent.min(100_000)).await
}

/// A request does not wait for the decision about its descriptors in shadow, so its stream can end first: its whole cost
/// was debited, and the sidecar took the estimate as well.
#[tokio::test]
async fn an_estimate_in_shadow_counts_once_though_its_answer_comes_after_the_end()
-> anyhow::Result<()> {
    let limits = limits("{ unit: hour, requests_per_unit: 1000 }");
    let hits = json!({"estimate": 20, "actual": {"format": COST}});
    let mut plugin = plugin();
    plugin["rate_limits"] = json!([entry(&json!({"hits_addend": hits, "shadow": true}))]);
    let stack = started(&limits, &plugin.to_string(), 1).await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    for (client, cost) in [("more", 41), ("less", 5)] {
        stack.sidecar.process.freeze().await?;
        let cost_text = cost.to_string();
        let headers: [(&str, &[u8]); 2] =
            [("x-client", client.as_bytes()), ("x-cost", cost_text.as_bytes())];
        let reply = stack.get("/", &headers).await?;
        ensure!(reply.status == 200, "{reply:?}");
        stack.sidecar.process.thaw()?;
        let what = format!("a cost of {cost} to be counted");
        wait::until(&what, wait::RECALL, async || {
            (left(&stack, client).await.ok()? == 1_000 - cost).then_some(())
        })
        .await?;
    }
    // What was more than the estimate, and no more.
    debited(&stack, 41 - 20).await
}
