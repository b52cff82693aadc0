//! Envoy's own rate limit filter and ours on the same generated configurations and requests: the same
//! descriptors, hits and replies.
//!
//! Both are in one Envoy and ask one service, which records their descriptors. Those of `apply_on_stream_done` are added
//! up for each configuration, as ours may send those of several streams together. What may differ is in
//! `differences`. A seed picks everything; a failure prints it. `TIDEGATE_TWIN_SEED` and
//! `TIDEGATE_TWIN_CASES` (configurations) run others.

mod actions;
mod blocks;
mod configuration;
mod dice;
mod differences;
mod hits;
mod matchers;
mod pools;
mod recorder;
mod requests;
mod seen;
mod stack;

use anyhow::{Context, ensure};
use configuration::{ADDED, Configuration};
use dice::Dice;
use differences::{
    all_of_ours, is_enforced, is_same_reply, of_ours, reply_of_ours, with_same_debits,
    without_other_hits,
};
use recorder::{Debits, Descriptor, Recorder};
use requests::Request;
use seen::Seen;
use stack::{FILTERS, Stack, domain};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tidegate_tests::client::{Client, Reply};
use tidegate_tests::wait;

/// Configurations, each with [`REQUESTS`]. A hundred take 10 s of processor time.
const CASES: u64 = 100;
const REQUESTS: usize = 50;
/// Configurations of one Envoy.
const BATCH: usize = 50;

fn variable(name: &str, default: u64) -> anyhow::Result<u64> {
    match std::env::var(name) {
        Ok(value) => value.parse().with_context(|| format!("{name}={value} is no number")),
        Err(_) => Ok(default),
    }
}

/// What a filter did with a request.
#[derive(Debug, PartialEq, Eq)]
struct Done {
    /// The status, and the headers that filters may set.
    reply: String,
    descriptors: Vec<Descriptor>,
    /// At most so long it took from the service's answer to the reply.
    waited: Duration,
}

/// Other headers that filters may set.
const SHOWN: [&str; 5] = [
    "grpc-status",
    "grpc-message",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
];

fn shown(reply: &Reply) -> String {
    let mut shown = reply.status.as_str().to_owned();
    for name in ADDED.iter().chain(&SHOWN) {
        for value in reply.headers.get_all(*name) {
            shown += &format!(" {name}: {}", value.as_bytes().escape_ascii());
        }
    }
    shown + &format!(", {} bytes", reply.body.len())
}

/// A filter of a configuration, and a connection to its listener.
struct Front {
    domain: String,
    address: SocketAddr,
    client: Client,
}

impl Front {
    async fn connect(stack: &Stack, filter: &str, index: usize) -> anyhow::Result<Front> {
        let address = stack.address(filter, index)?;
        Ok(Front {
            domain: domain(filter, index),
            address,
            client: Client::connect(address).await?,
        })
    }

    async fn send(&mut self, request: &Request) -> anyhow::Result<String> {
        let headers: Vec<(&str, &[u8])> =
            request.headers.iter().map(|(name, value)| (*name, value.as_slice())).collect();
        let reply = self.client.send(request.method, &request.path, &headers, "").await?;
        if reply.header("connection") == Some("close") {
            self.client = Client::connect(self.address).await?;
        }
        Ok(shown(&reply))
    }
}

/// A configuration of a batch.
struct Case<'a> {
    configuration: &'a Configuration,
    recorder: &'a Recorder,
    fronts: [Front; 2],
    /// What streams have owed at their ends, in the form of ours. Ours groups it, so calls may differ.
    debits: [Debits; 2],
    /// The numbers of the requests that were denied.
    denied: BTreeSet<Vec<u8>>,
    /// Those of requests with hits that differ as documented.
    with_other_hits: BTreeSet<Vec<u8>>,
}

impl Case<'_> {
    async fn run(&mut self, number: usize, request: &Request) -> anyhow::Result<[Done; 2]> {
        let [native, ours] = &mut self.fronts;
        let began = Instant::now();
        let replies = tokio::try_join!(native.send(request), ours.send(request))?;
        let waited = began.elapsed();
        let [of_native, of_ours] = self.calls();
        let done = |mut calls: Vec<Vec<Descriptor>>, reply| {
            ensure!(calls.len() < 2, "two calls: {calls:?}");
            Ok(Done { reply, descriptors: calls.pop().unwrap_or_default(), waited })
        };
        let done = [done(of_native, replies.0)?, done(of_ours, replies.1)?];
        let number = number.to_string().into_bytes();
        let [native, ours] = done.each_ref().map(|done| &done.descriptors);
        if all_of_ours(native) != *ours {
            self.with_other_hits.insert(number.clone());
        }
        if ours.iter().any(recorder::is_denied) && is_enforced(self.configuration) {
            self.denied.insert(number);
        }
        Ok(done)
    }

    /// The calls since the last time, but those at the ends of streams, which are added up.
    fn calls(&mut self) -> [Vec<Vec<Descriptor>>; 2] {
        let mut all = self.fronts.each_ref().map(|front| self.recorder.take(&front.domain));
        for (calls, debits) in all.iter_mut().zip(&mut self.debits) {
            let late = calls.extract_if(.., |call| call.iter().any(Descriptor::is_late));
            for descriptor in late.flatten().filter(|descriptor| descriptor.hits > 0) {
                let key = Descriptor { hits: 0, ..of_ours(&descriptor) };
                *debits.entry(key).or_default() += descriptor.hits;
            }
        }
        all
    }

    /// Whether streams have owed the same at their ends.
    async fn owes_the_same(&mut self) -> bool {
        let same = wait::until("the same debits", wait::SOON, async || {
            let early = self.calls();
            let [native, ours] =
                with_same_debits(self.debits.clone(), &self.denied, &self.with_other_hits);
            (early.iter().all(Vec::is_empty) && native == ours).then_some(())
        });
        same.await.is_ok()
    }

    /// Whether it is as documented.
    fn is_same(&self, request: &Request, [native, ours]: &[Done; 2]) -> bool {
        let expected = all_of_ours(&native.descriptors);
        if expected == ours.descriptors {
            let expected = reply_of_ours(&native.reply, self.configuration);
            return is_same_reply(&expected, &ours.reply, ours.waited);
        }
        let rest = |descriptors: &[Descriptor]| {
            without_other_hits(descriptors, &self.configuration.entries, request)
        };
        rest(&expected) == rest(&ours.descriptors)
    }
}

async fn batch(seed: u64, cases: &[u64], seen: &mut Seen) -> anyhow::Result<()> {
    let mut dice: Vec<Dice> = cases.iter().map(|case| Dice::new(seed, *case)).collect();
    let configurations: Vec<Configuration> = dice.iter_mut().map(Configuration::new).collect();
    let stack = Stack::start(&configurations).await?;
    let mut sent = Vec::new();
    for (index, (configuration, mut dice)) in configurations.iter().zip(dice).enumerate() {
        let [native, ours] = FILTERS.map(|filter| Front::connect(&stack, filter, index));
        let fronts = [native.await?, ours.await?];
        let mut case = Case {
            configuration,
            recorder: &stack.recorder,
            fronts,
            debits: Default::default(),
            denied: BTreeSet::new(),
            with_other_hits: BTreeSet::new(),
        };
        let wrong = seen.wrong.len();
        for number in 0..REQUESTS {
            let request = Request::new(&mut dice, number);
            let case_of = cases[index];
            let told = || format!("seed {seed}, case {case_of}: {configuration}\n{request}");
            let done = case.run(number, &request).await.with_context(told)?;
            seen.count(configuration, &done);
            if !case.is_same(&request, &done) {
                seen.wrong.push(format!("{}\n{done:#?}", told()));
                // Others of the same configuration would tell the same.
                break;
            }
        }
        if seen.wrong.len() == wrong {
            sent.push((cases[index], case));
        }
    }
    for (case_of, case) in &mut sent {
        if !case.owes_the_same().await {
            let configuration = case.configuration;
            let told = format!("seed {seed}, case {case_of}: {configuration}\n{:#?}", case.debits);
            seen.wrong.push(told);
        }
        seen.count_debits(&case.debits[1]);
    }
    Ok(())
}

#[tokio::test]
async fn generated_requests_have_the_same_descriptors_and_replies() -> anyhow::Result<()> {
    let seed = variable("TIDEGATE_TWIN_SEED", 1)?;
    let cases: Vec<u64> = (0..variable("TIDEGATE_TWIN_CASES", CASES)?).collect();
    let mut seen = Seen::default();
    for cases in cases.chunks(BATCH) {
        batch(seed, cases, &mut seen).await?;
    }
    seen.judge()
}
