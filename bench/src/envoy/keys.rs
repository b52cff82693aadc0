//! Clients with one request each: the memory that Envoy keeps for them.

use super::case::{LIMITS, one, plugin};
use super::{Plan, SUITE};
use crate::progress;
use crate::report::{Row, print_table};
use anyhow::ensure;
use tidegate_tests::bootstrap::Filter;
use tidegate_tests::load::Load;
use tidegate_tests::stack;

pub(super) async fn measure(plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let plugin = plugin(&one()).to_string();
    // Each key has a counter, and a lease while that lasts. The rest allows for uneven hashes.
    let capacity = (plan.keys * 3).to_string();
    let flags = ["--capacity", &capacity];
    let stack =
        stack::Plan { flags: &flags, ..stack::Plan::new(LIMITS, Filter::Tidegate(&plugin)) };
    let stack = stack.start().await?;
    let resident = || anyhow::Ok(stack.envoy.process.resident_bytes()? as f64);
    let mut memory = Vec::new();
    let first = plan.keys / 10;
    for (prefix, keys) in [("one", 1), ("first", first), ("later", plan.keys - first)] {
        progress::show(&format!("{keys} clients that come once"));
        let sent = Load::of_clients(stack.addresses(), prefix, keys, keys).run().await?;
        ensure!(sent.of(200) == keys, "not every request passed: {:?}", sent.statuses);
        memory.push(resident()?);
    }
    progress::clear();
    let mebibytes = |from: usize, to: usize| (memory[to] - memory[from]) / f64::from(1 << 20);
    let (table, later) = (mebibytes(0, 1), mebibytes(1, 2));
    let cases = [
        (format!("the first {first} keys"), table),
        (format!("{} keys more", plan.keys - first), later),
    ];
    let line = |(case, grown): &(String, f64)| vec![case.clone(), format!("{grown:.1}")];
    let lines: Vec<Vec<String>> = cases.iter().map(line).collect();
    print_table("Envoy's memory, in MiB more", &["clients that come once", "MiB"], &lines);
    println!("Target: the table of leases fills up, and then nothing grows.\n");
    let row = |(case, grown)| Row::new(SUITE, case, ("resident_memory_growth", "MiB"), grown);
    Ok(cases.into_iter().map(row).collect())
}
