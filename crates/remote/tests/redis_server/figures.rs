//! Figures beside plain `INCRBY` and `EXPIRE` in pipelines, over the same server. They are printed, never asserted:
//! `cargo test --release -p tidegate-remote --test redis_server figures -- --ignored --nocapture`

use super::*;
use redis::aio::MultiplexedConnection;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Builder;

/// The first failures are printed.
static FAILURES: AtomicU64 = AtomicU64::new(0);
const TIME: Duration = Duration::from_secs(2);

/// Runs so many tasks, each asking again and again, and returns decisions in a second and CPU time of each.
fn measure<F: Future<Output = bool> + Send + 'static>(
    server: &Server,
    tasks: u64,
    ask: impl Fn(u64) -> F + Send + Sync + 'static,
) -> String {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (ask, asked) = (Arc::new(ask), Arc::new(AtomicU64::new(0)));
    let (is_over, failed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (start, before) = (Instant::now(), (own_cpu(), server.cpu()));
    for _ in 0..tasks {
        let (ask, asked, is_over, failed) =
            (ask.clone(), asked.clone(), is_over.clone(), failed.clone());
        runtime.spawn(async move {
            while !is_over.load(Ordering::Relaxed) {
                let number = asked.fetch_add(1, Ordering::Relaxed);
                if !ask(number).await {
                    failed.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
    std::thread::sleep(TIME);
    is_over.store(true, Ordering::Relaxed);
    let decided = asked.load(Ordering::Relaxed) as f64;
    let each = |now: Duration, before: Duration| (now - before).as_secs_f64() * 1e6 / decided;
    format!(
        "{:9.0}/s  CPU each: {:5.2} µs here, {:5.2} µs in the server  failed: {}",
        decided / start.elapsed().as_secs_f64(),
        each(own_cpu(), before.0),
        each(server.cpu(), before.1),
        failed.load(Ordering::Relaxed),
    )
}

fn own_cpu() -> Duration {
    server::cpu_of("self")
}

#[test]
#[ignore = "prints figures"]
fn figures() {
    let Some(server) = Server::start("figures::figures", &[]) else { return };
    println!();
    for (keys, tasks) in [(1, 1), (1, 512), (1_000, 512), (10_000_000, 512)] {
        let remote = Arc::new(sidecar(&server));
        let own = remote.clone();
        let figures = measure(&server, tasks, move |number| {
            let remote = own.clone();
            async move {
                let hit = hit_later(&remote, &[key(u128::from(number) % keys)]).await;
                if let Err(error) = &hit
                    && FAILURES.fetch_add(1, Ordering::Relaxed) < 5
                {
                    println!("{error}");
                }
                hit.is_ok()
            }
        });
        let counts = remote.counts();
        println!(
            "engine   {keys:8} keys {tasks:3} at once {figures}  commands each: {:.4}",
            counts.commands as f64 / counts.committed as f64
        );
        let connection = plain(&server);
        let figures = measure(&server, tasks, move |number| {
            let mut connection = connection.clone();
            async move {
                let name = format!("plain:{}", u128::from(number) % keys);
                let mut pipeline = redis::pipe();
                pipeline.cmd("INCRBY").arg(&name).arg(1).cmd("EXPIRE").arg(&name).arg(60);
                pipeline.query_async::<(u64, u64)>(&mut connection).await.is_ok()
            }
        });
        println!("pipeline {keys:8} keys {tasks:3} at once {figures}  commands each: 2");
    }
    let sidecars: Vec<_> = (0..3).map(|_| Arc::new(sidecar(&server))).collect();
    let own = sidecars.clone();
    let figures = measure(&server, 512, move |number| {
        let remote = own[number as usize % 3].clone();
        async move { hit_later(&remote, &[key(1 << 40)]).await.is_ok() }
    });
    let sum = |count: fn(&Remote) -> u64| sidecars.iter().map(|one| count(one)).sum::<u64>() as f64;
    let committed = sum(|one| one.counts().committed);
    println!(
        "3 engines       1 key  512 at once {figures}  commands each: {:.4}, lost: {:.4}",
        sum(|one| one.counts().commands) / committed,
        sum(|one| one.counts().lost) / committed,
    );
}

fn plain(server: &Server) -> MultiplexedConnection {
    let address = format!("redis://{}", server.address());
    // Its task lives on this runtime.
    let runtime = Box::leak(Box::new(
        Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap(),
    ));
    let client = redis::Client::open(address).unwrap();
    runtime.block_on(client.get_multiplexed_async_connection()).unwrap()
}
