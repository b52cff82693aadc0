//! The conformance cases, which have every algorithm, over counters in a Redis.

use crate::scene::Scene;
use std::rc::Rc;
use tidegate_tests::corpus::holds_over_the_wire;
use tidegate_tests::shared_servers::RedisOptions;

/// A sidecar denies by what it was last told of a counter. So it takes what is left for nothing where a larger request was
/// denied, also for another descriptor of that request, and sees a refund of another descriptor's tokens later.
const DIFFER: [&str; 5] = [
    "A counter may be shared within one request",
    "One descriptor twice is charged twice",
    "The limits of one descriptor are all charged, or none is",
    "Every algorithm takes, peeks, denies and gives back alike",
    "A refund gives back at most the hits that were taken",
];

#[tokio::test]
async fn every_conformance_case_holds_over_redis() -> anyhow::Result<()> {
    let Some(scene) = Scene::start(RedisOptions::default()).await? else { return Ok(()) };
    let url = format!("redis://{}", scene.redis.address());
    // Each sidecar has counters of its own: a case may run twice.
    let flags = move |number: usize| {
        let prefix = format!("{number}:");
        let flags = ["--authority", &url, "--authority-timeout", "2s", "--authority-prefix"];
        flags.into_iter().chain([&*prefix]).map(str::to_owned).collect()
    };
    holds_over_the_wire(Rc::new(flags), &DIFFER).await
}
