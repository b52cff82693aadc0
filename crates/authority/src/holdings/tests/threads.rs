//! Real threads, and an engine with a thread of its own: nobody sleeps for ever, and limits hold.

use super::world::{Memory, START, key};
use crate::holdings::{Failure, Shared, Task};
use crate::testing::LaterCounters;
use crate::{Authority, Counters, Modes, wait};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use tidegate_core::{Hits, Nanos, Request, Timestamp, Verdict};
use tidegate_limits::{Rules, SameDomain, load};

fn rules(limit: usize) -> Rules {
    let dir = tempfile::TempDir::new().expect("a directory");
    let file = dir.path().join("limits.yaml");
    let limits = format!("- {{key: k, rate_limit: {{unit: day, requests_per_unit: {limit}}}}}");
    std::fs::write(&file, format!("domain: d\ndescriptors:\n{limits}\n")).expect("a file");
    load(&file, SameDomain::Refuse).expect("good rules").rules
}

fn sidecar(counters: Arc<dyn Counters>, number: u64, start: Instant, limit: usize) -> Authority {
    let shared = Shared {
        counters,
        clock: Arc::new(move || {
            let passed = Nanos::new(start.elapsed().as_nanos() as u64);
            Some(Timestamp::from_nanos(START * 1_000_000).saturating_add(passed))
        }),
        spawn: Arc::new(|task: Task| {
            std::thread::spawn(move || wait(task));
        }),
        sidecar: number,
        failure: Failure::Deny,
    };
    let authority = Authority::with_shared(
        Memory::new(number),
        shared,
        rules(limit),
        Modes::default(),
        Arc::new(()),
    );
    authority.expect("an authority")
}

#[test]
fn threads_of_several_sidecars_share_a_limit() {
    const LIMIT: usize = 600;
    let counters: Arc<dyn Counters> = Arc::new(LaterCounters::default());
    let start = Instant::now();
    let sidecars: Vec<_> =
        (0..3).map(|number| sidecar(counters.clone(), number, start, LIMIT)).collect();
    let allowed = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for thread in 0..9 {
            let (authority, allowed) = (&sidecars[thread % 3], &allowed);
            scope.spawn(move || {
                let request =
                    Request { domain: "d".into(), descriptors: key("v"), hits: Hits::ONE };
                for _ in 0..LIMIT {
                    let answer = wait(authority.decide(&request, Timestamp::default()));
                    if answer.expect("an answer").verdict == Verdict::Allow {
                        allowed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    // A sidecar whose threads are done first may hold a few tokens.
    let allowed = allowed.into_inner();
    assert!((LIMIT - 60..=LIMIT).contains(&allowed), "{allowed} of {LIMIT}");
}
