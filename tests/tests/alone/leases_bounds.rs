//! The filter in a real Envoy has a bounded size and cannot be broken, whatever clients send.

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use std::sync::Arc;
use tidegate_tests::bootstrap::Filter;
use tidegate_tests::client::Client;
use tidegate_tests::load::{Headers, Load};
use tidegate_tests::plugin::{limits, plugin};
use tidegate_tests::stack::{Plan, Stack};
use tidegate_tests::wait;

const MEBIBYTE: u64 = 1 << 20;

/// Each key that the table kept would be over 100 bytes of shared data, 5 MB for all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_thousand_keys_need_no_more_memory_than_the_table() -> anyhow::Result<()> {
    const WARM_UP: u64 = 20_000;
    const KEYS: u64 = 50_000;
    /// 256 slots of four leases of 100 bytes are 0.1 MiB; the rest is Envoy's allocator and V8's.
    const GROWTH_MAX: u64 = 4 * MEBIBYTE;
    let mut plugin = plugin();
    plugin["leases"] = json!({"slots": 256});
    let plugin = plugin.to_string();
    let limits = limits("{ unit: hour, requests_per_unit: 1000 }");
    let stack = Stack::start(&limits, Filter::Tidegate(&plugin), 1).await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    let warm = Load::of_clients(stack.addresses(), "warm", WARM_UP, WARM_UP).run().await?;
    ensure!(warm.of(200) == WARM_UP, "{:?}", warm.statuses);
    let before = stack.envoy.process.resident_bytes()?;
    let load = Load::of_clients(stack.addresses(), "k", KEYS, KEYS).run().await?;
    ensure!(load.of(200) == KEYS, "{:?}", load.statuses);
    let growth = stack.envoy.process.resident_bytes()?.saturating_sub(before);
    println!("{} KiB more for {KEYS} keys", growth / 1024);
    ensure!(growth <= GROWTH_MAX, "{growth} bytes more for {KEYS} keys");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_filter_needs_at_most_60_mebibytes_a_worker() -> anyhow::Result<()> {
    let limits = limits("{ unit: hour, requests_per_unit: 1000000 }");
    let plugin = plugin().to_string();
    let mut resident = Vec::new();
    for filter in [Filter::None, Filter::Tidegate(&plugin)] {
        let stack = Plan::new(&limits, filter).start().await?;
        let load = Load::of_clients(stack.addresses(), "c", 100, 5_000).run().await?;
        ensure!(load.of(200) == 5_000, "{:?}", load.statuses);
        resident.push(stack.envoy.process.resident_bytes()?);
    }
    let more = resident[1].saturating_sub(resident[0]);
    println!("{} MiB with the filter, {} MiB more", resident[1] / MEBIBYTE, more / MEBIBYTE);
    ensure!(more <= 60 * MEBIBYTE, "{more} bytes more than without the filter");
    Ok(())
}

/// Pseudo-random bytes, the same in every run.
struct Odd(u64);

impl Odd {
    fn below(&mut self, end: u64) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }

    /// A value of bytes that HTTP/1.1 can carry, of any length from none to some thousands.
    fn value(&mut self) -> Vec<u8> {
        let length = match self.below(8) {
            0 => self.below(4_000),
            1 => self.below(2),
            _ => self.below(40),
        };
        let byte = |odd: &mut Odd| loop {
            match odd.below(256) as u8 {
                0..=8 | 10..=31 | 127 => {}
                byte => break byte,
            }
        };
        (0..length).map(|_| byte(self)).collect()
    }

    /// A path with a query of odd bytes, each as it may stand in one.
    fn path(&mut self) -> String {
        let bytes = self.value();
        let mut path = "/odd?".to_owned();
        for byte in bytes.iter().take(200) {
            path += &match byte {
                b'=' | b'&' | b'a'..=b'z' | b'+' | b';' => char::from(*byte).to_string(),
                byte => format!("%{byte:02x}"),
            };
        }
        path
    }
}

/// Actions that read all that clients can set.
fn curious() -> Value {
    let mut plugin = plugin();
    let header = |name: &str| {
        json!({"actions": [{"request_headers":
            {"header_name": name, "descriptor_key": "client", "skip_if_absent": true}}]})
    };
    plugin["rate_limits"] = json!([
        header("x-client"),
        header(":path"),
        header("cookie"),
        {"actions": [{"remote_address": {}}]},
        {"actions": [{"query_parameters":
            {"query_parameter_name": "a", "descriptor_key": "client"}}]},
        {"actions": [{"header_value_match": {"descriptor_value": "odd", "headers": [
            {"name": "x-match", "string_match": {"contains": "é", "ignore_case": true}}]}}]},
        {"actions": [{"generic_key": {"descriptor_value": "all"}}],
         "hits_addend": {"format": "%REQ(x-hits)%"}},
    ]);
    plugin
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_odd_requests_leave_the_worker_alive() -> anyhow::Result<()> {
    const SEED: u64 = 0x7469_6465;
    let limits = limits("{ unit: hour, requests_per_unit: 5 }");
    let plugin = curious().to_string();
    let stack = Stack::start(&limits, Filter::Tidegate(&plugin), 1).await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    let mut odd = Odd(SEED);
    let mut client = Client::connect(stack.envoy.address).await?;
    let names = ["x-client", "x-match", "x-hits", "cookie", "x-forwarded-for", "x-request-id"];
    for number in 0..2_000 {
        let path = odd.path();
        let mut headers: Vec<(&str, Vec<u8>)> = Vec::new();
        for _ in 0..odd.below(6) {
            let name = names[odd.below(names.len() as u64) as usize];
            headers.push((name, odd.value()));
        }
        let sent: Vec<(&str, &[u8])> =
            headers.iter().map(|(name, value)| (*name, value.as_slice())).collect();
        let reply = client.get(&path, &sent).await;
        let reply = reply.with_context(|| format!("request {number}: {path:?} {headers:?}"))?;
        // Envoy itself refuses some; 503 is what a broken machine of the filter answers.
        let status = reply.status.as_u16();
        ensure!([200, 400, 429, 431].contains(&status), "{number}: {reply:?} to {headers:?}");
        if status != 200 || reply.header("connection") == Some("close") {
            client = Client::connect(stack.envoy.address).await?;
        }
    }
    // A path and a client that no odd request can have had; both are limited.
    for status in [200, 200, 200, 200, 200, 429] {
        let reply = stack.get("/even", &[("x-client", b"even")]).await?;
        ensure!(reply.status == status, "the worker still decides: {reply:?}");
    }
    let log = stack.envoy.process.log();
    ensure!(!log.contains("Wasm VM failed") && !log.contains("panicked"), "{log}");
    Ok(())
}

/// Leases are nodes of the store as well, which new counters must not lack.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_a_small_store_leases_cost_no_new_counter_its_place() -> anyhow::Result<()> {
    const KEYS: u64 = 3_000;
    let mut plugin = plugin();
    plugin["failure_mode"] = json!("deny");
    let plugin = plugin.to_string();
    let limits = limits("{ unit: hour, requests_per_unit: 1000 }");
    let flags: &[&str] = &["--capacity", "3000"];
    let plan = Plan { workers: 2, flags, ..Plan::new(&limits, Filter::Tidegate(&plugin)) };
    let stack = plan.start().await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    // Each comes several times in a row, so that there is a demand to lease for.
    let headers =
        |number: u64| -> Headers { vec![("x-client", format!("k{}", number / 6).into_bytes())] };
    let load = Load::of_one_client(stack.addresses(), "", 6 * KEYS);
    let load = Load { headers: Arc::new(headers), ..load }.run().await?;
    ensure!(load.of(200) == 6 * KEYS, "{:?}", load.statuses);
    let granted = stack.metric("tidegate_leases_granted_total").await?;
    ensure!(granted > 100.0, "only {granted} leases were granted");
    ensure!(stack.metric("tidegate_store_refused_total").await? == 0.0);
    Ok(())
}

/// Many clients that come once, beside one that comes often: it keeps its lease, or gets another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_new_keys_does_not_loosen_a_limit() -> anyhow::Result<()> {
    let mut plugin = plugin();
    plugin["leases"] = json!({"slots": 16});
    plugin["failure_mode"] = json!("deny");
    let plugin = plugin.to_string();
    let limits = limits("{ unit: hour, requests_per_unit: 1000 }");
    let plan = Plan { workers: 2, ..Plan::new(&limits, Filter::Tidegate(&plugin)) };
    let stack = plan.start().await?;
    wait::for_room_in_window(wait::HOUR, wait::ROOM).await?;
    // Every other request is of the one.
    let headers = |number: u64| -> Headers {
        let client = if number.is_multiple_of(2) { "one".to_owned() } else { format!("{number}") };
        vec![("x-client", client.into_bytes())]
    };
    let load = Load::of_one_client(stack.addresses(), "", 8_000);
    let load = Load { headers: Arc::new(headers), ..load }.run().await?;
    let allowed_of_one = load.of(200) - 4_000;
    ensure!(load.of(200) + load.of(429) == 8_000, "{:?}", load.statuses);
    ensure!((980..=1_000).contains(&allowed_of_one), "{allowed_of_one} allowed of the one");
    Ok(())
}
