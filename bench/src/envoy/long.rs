//! The longest values that Envoy accepts: the cost of matching them, beside Envoy's own filter with the same
//! matchers and Envoy without a filter.

use super::case::plugin;
use super::{Plan, SUITE};
use crate::figures::median;
use crate::progress;
use crate::report::{Row, print_table};
use anyhow::ensure;
use serde_json::{Value, json};
use std::sync::Arc;
use tidegate_tests::bootstrap::Filter;
use tidegate_tests::load::{Headers, Load};
use tidegate_tests::stack::{self, Stack};

/// Every descriptor here has one of these keys.
const LIMITS: &str = "\
domain: bench
descriptors:
  - key: header_match
    rate_limit: { unit: hour, requests_per_unit: 4000000000 }
  - key: query_match
    rate_limit: { unit: hour, requests_per_unit: 4000000000 }
  - key: query_param
    rate_limit: { unit: hour, requests_per_unit: 4000000000 }
";
/// Envoy refuses headers of more than 60 KiB in total.
const LONG: usize = 56_000;

/// Realistic expressions. Half of them read the whole path.
const EXPRESSIONS: [&str; 8] = [
    "/search.*",
    r"/api/v[0-9]+/users/[^/]+(/.*)?",
    r".*\.(png|jpe?g|gif|css|js)",
    "(?i)/static/.*",
    ".*[?&]debug=(1|true)(&.*)?",
    ".*/admin/.*",
    r"/[a-z]{2}(-[A-Z]{2})?/checkout(/\w+)*",
    r"/search\?q=[^&]*(&page=\d+)?",
];

/// Identical requests, and the descriptors that both filters make of them.
struct Workload {
    name: &'static str,
    rate_limits: Value,
    path: String,
    headers: Headers,
}

/// µs of CPU per request of the Envoy process.
struct Costs {
    name: &'static str,
    tidegate: f64,
    native: f64,
    none: f64,
}

pub(super) async fn measure(plan: &Plan) -> anyhow::Result<Vec<Row>> {
    let mut costs = Vec::new();
    let workloads =
        [expressions(), header_expressions(), texts(), parameters(), expressions_of_many_states()];
    for workload in workloads {
        costs.push(measured(&workload, plan).await?);
    }
    progress::clear();
    Ok(report(plan, &costs))
}

impl Workload {
    fn of_path(name: &'static str, rate_limits: Vec<Value>, path: String) -> Workload {
        Workload { name, rate_limits: rate_limits.into(), path, headers: Vec::new() }
    }

    fn of_header(name: &'static str, rate_limits: Vec<Value>, text: Vec<u8>) -> Workload {
        let headers = vec![("x-text", text)];
        Workload { headers, ..Workload::of_path(name, rate_limits, "/".to_owned()) }
    }
}

/// A descriptor if a header passes a test.
fn header_match(value: &str, header: &str, test: &Value) -> Value {
    json!({"actions": [{"header_value_match": {
        "descriptor_value": value,
        "headers": [{"name": header, "string_match": test}],
    }}]})
}

fn regex(regex: &str) -> Value {
    json!({"safe_regex": {"regex": regex}})
}

fn expressions() -> Workload {
    let rules = EXPRESSIONS.map(|expression| header_match(expression, ":path", &regex(expression)));
    let path = format!("/search?q={}", "wheels-and-tyres/".repeat(LONG / 17));
    Workload::of_path("8 expressions, 56 KB path", rules.to_vec(), path)
}

/// Tests that a header does not match these expressions.
fn unmatched(expressions: &[&str]) -> Vec<Value> {
    let rule = |expression: &&str| {
        let mut rule = header_match(expression, "x-text", &regex(expression));
        rule["actions"][0]["header_value_match"]["expect_match"] = json!(false);
        rule
    };
    expressions.iter().map(rule).collect()
}

/// Patterns that restart at every byte.
fn header_expressions() -> Workload {
    let expressions = [r"(\w+\s?)+;", "(a|b|ab)*c", ".*(.*)=(.*).*", "[^,]*(,[^,]*)*;", "(.+)+;"];
    let name = "5 expressions that backtrack elsewhere, 56 KB header";
    Workload::of_header(name, unmatched(&expressions), "ab".repeat(LONG / 2).into_bytes())
}

/// Nearly each byte leads to a new set of states. Envoy refuses larger expressions by default.
fn expressions_of_many_states() -> Workload {
    let mut seed = 1_u32;
    let letter = |_| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if seed >> 31 == 0 { b'a' } else { b'b' }
    };
    let expressions = ["(a|b)*a(a|b){12}c", ".*a.{16};", "(?:a|b)*a[ab]{40}"];
    let name = "3 expressions of very many states, 4 KB header";
    Workload::of_header(name, unmatched(&expressions), (0..4_000).map(letter).collect())
}

fn texts() -> Workload {
    let tests = [
        json!({"exact": "x"}),
        json!({"prefix": "abcabc"}),
        json!({"suffix": "abc"}),
        json!({"contains": "abcd"}),
        json!({"contains": "aaab"}),
        json!({"contains": "ABCD", "ignore_case": true}),
        json!({"prefix": "ABC", "ignore_case": true}),
    ];
    let rules = tests.iter().enumerate();
    let rules = rules.map(|(index, test)| header_match(&format!("test {index}"), "x-text", test));
    let text = "abc".repeat(LONG / 3).into_bytes();
    Workload::of_header("7 tests of a 56 KB header", rules.collect(), text)
}

fn parameters() -> Workload {
    let name = |index: usize| format!("name{index}");
    let presence = (0..4).map(|index| {
        json!({"actions": [
            {"query_parameters": {
                "query_parameter_name": name(index), "descriptor_key": "query_param",
                "skip_if_absent": true,
            }},
            {"generic_key": {"descriptor_key": "query_match", "descriptor_value": "x"}},
        ]})
    });
    let matches = (4..8).map(|index| {
        json!({"actions": [{"query_parameter_value_match": {
            "descriptor_value": name(index),
            "query_parameters": [{"name": name(index), "string_match": regex("[a-z]+[0-9]*")}],
        }}]})
    });
    let path = format!("/search?{}name1=a&name5=b7", "colour=blue%20or%20red&".repeat(LONG / 23));
    Workload::of_path("8 query parameters, 56 KB query", presence.chain(matches).collect(), path)
}

async fn measured(workload: &Workload, plan: &Plan) -> anyhow::Result<Costs> {
    let name = workload.name;
    progress::show(&format!("warming up: {name}"));
    let plugin = plugin(&workload.rate_limits).to_string();
    let native = Filter::Native { domain: "bench", rate_limits: &workload.rate_limits };
    let mut stacks = Vec::new();
    for filter in [Filter::Tidegate(&plugin), native, Filter::None] {
        let stack = stack::Plan::new(LIMITS, filter).start().await?;
        send(&stack, workload, plan.long).await?;
        stacks.push((stack, Vec::new()));
    }
    for round in 1..=plan.rounds {
        progress::show(&format!("round {round} of {}: {name}", plan.rounds));
        for (stack, costs) in &mut stacks {
            let before = stack.envoy.process.cpu_time()?;
            send(stack, workload, plan.long).await?;
            let cost = stack.envoy.process.cpu_time()? - before;
            costs.push(cost.as_secs_f64() * 1e6 / plan.long as f64);
        }
    }
    let [tidegate, native, none] = [0, 1, 2].map(|index| median(&stacks[index].1));
    Ok(Costs { name, tidegate, native, none })
}

async fn send(stack: &Stack, workload: &Workload, requests: u64) -> anyhow::Result<()> {
    let headers = workload.headers.clone();
    let load = Load::of_one_client(stack.addresses(), "", requests);
    let headers = Arc::new(move |_| headers.clone());
    let load = Load { connections: 2, path: workload.path.clone(), headers, ..load };
    let outcome = load.run().await?;
    let statuses = &outcome.statuses;
    ensure!(
        outcome.of(200) == requests,
        "{}: not every request passed: {statuses:?}",
        workload.name
    );
    Ok(())
}

fn report(plan: &Plan, costs: &[Costs]) -> Vec<Row> {
    let title = format!(
        "Long values: Envoy's CPU µs per proxied request, median of {} rounds of {}, one worker",
        plan.rounds, plan.long
    );
    let line = |cost: &Costs| {
        let mut line = vec![cost.name.to_owned()];
        line.extend([cost.tidegate, cost.native, cost.none].map(|micros| format!("{micros:.0}")));
        line.push(format!("{:.2}", cost.tidegate / cost.native));
        line
    };
    let header = ["case", "tidegate", "envoy's own filter", "no filter", "ratio"];
    print_table(&title, &header, &costs.iter().map(line).collect::<Vec<_>>());
    println!("Target: at most 1.5 times Envoy's own filter; of very many states, none.\n");
    let row = |cost: &Costs| {
        Row::new(SUITE, cost.name, ("cpu_envoy_long_values", "us/request"), cost.tidegate)
            .beside(("envoy's own filter, same matchers", cost.native))
    };
    costs.iter().map(row).collect()
}
