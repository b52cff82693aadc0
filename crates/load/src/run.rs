//! A whole load: opens connections, starts threads, and adds up their results.

use crate::connection::{Connection, Service};
use crate::generator::{Account, Bounds, Generator, Pace, Rounds};
use crate::keys::Keys;
use crate::options::LoadOptions;
use crate::progress::{EVERY, Live, Progress, Snapshot};
use crate::random::Random;
use crate::report::{Measured, Report};
use crate::schedule::{Gaps, Plan, Schedule, Share};
use crate::socket::{self, Poller, connect_all};
use anyhow::{Context, bail};
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// The delay from when all connections are ready to the first request, so that all threads are up.
const HEAD_START: Duration = Duration::from_millis(5);
/// How long to wait for a server's limits. The load begins without them after that.
const GREETING_MAX: Duration = Duration::from_secs(1);

/// Runs a load until everything is sent or `stop` is set.
///
/// # Errors
/// When the options are invalid, no connection can be opened, or a system call fails.
pub(crate) fn measure(
    options: &LoadOptions,
    stop: &AtomicBool,
    mut progress: Option<Progress>,
) -> anyhow::Result<Report> {
    options.check()?;
    let (endpoint, sockets) = connect_all(&options.target, options.connections, options.timeout)?;
    let service = Service::new(endpoint, options);
    let threads = options.threads as usize;
    let lives: Vec<Live> = (0..threads).map(|_| Live::default()).collect();
    let start = Instant::now();

    // Connections are dealt out to threads in turn.
    let mut dealt: Vec<Vec<_>> = (0..threads).map(|_| Vec::new()).collect();
    for (number, socket) in sockets.into_iter().enumerate() {
        dealt[number % threads].push(socket);
    }
    let mut generators = Vec::new();
    for (index, (sockets, live)) in dealt.into_iter().zip(&lives).enumerate() {
        let poller = Poller::new()?;
        let connections = sockets.into_iter().enumerate();
        let connections = connections
            .map(|(number, socket)| Connection::new(number, socket, &service, &poller))
            .collect::<Result<Vec<_>, _>>()?;
        let (pace, keys) = share(options, index as u64)?;
        let mut account = Account::new()?;
        account.connections.opened = connections.len() as u64;
        let mut generator = Generator {
            start,
            pace,
            keys,
            bounds: bounds(options),
            service: service.clone(),
            poller,
            connections,
            stop,
            live: progress.is_some().then_some(live),
            account,
            state: Rounds::default(),
        };
        generator.wait_until_ready(options.timeout.min(GREETING_MAX))?;
        generators.push(generator);
    }
    let start = Instant::now() + HEAD_START;
    for generator in &mut generators {
        generator.start = start;
    }
    let watch = |elapsed| {
        if let Some(progress) = &mut progress {
            progress.show(elapsed, &Snapshot::of(&lives));
        }
    };
    let (account, cpu_seconds) = run_all(generators, start, watch)?;
    if let Some(progress) = &progress {
        progress.clear();
    }
    Report::new(
        options,
        Measured { account, cpu_seconds, was_stopped: stop.load(Ordering::Relaxed) },
    )
}

/// The schedule and the keys of thread `index`.
fn share(options: &LoadOptions, index: u64) -> anyhow::Result<(Pace, Keys)> {
    let of = u64::from(options.threads);
    let length = options.warmup + options.duration;
    let pace = if options.closed {
        Pace::Closed { end_ns: length.as_nanos() as u64 }
    } else {
        let gaps = if options.poisson { Gaps::Poisson } else { Gaps::Fixed };
        let plan = Plan { rate: options.rate, gaps, length };
        let random = Random::new(options.seed, 2 * index);
        Pace::Open(Schedule::new(&plan, Share { index, of }, random))
    };
    let random = Random::new(options.seed, 2 * index + 1);
    Ok((pace, Keys::new(options.distribution, options.keys, (index, of), random)?))
}

fn bounds(options: &LoadOptions) -> Bounds {
    Bounds {
        timeout_ns: options.timeout.as_nanos() as u64,
        slice_ns: options.slice.as_nanos() as u64,
        measured_from_ns: options.warmup.as_nanos() as u64,
        queue_max: (options.queue / options.threads) as usize,
    }
}

/// Runs each on a thread, and adds up their results and CPU time.
fn run_all(
    generators: Vec<Generator<'_>>,
    start: Instant,
    mut watch: impl FnMut(Duration),
) -> anyhow::Result<(Account, f64)> {
    std::thread::scope(|scope| {
        // Nothing is ever sent: the channel closes when all threads are done.
        let (running, ended) = mpsc::channel::<()>();
        let mut threads = Vec::new();
        for generator in generators {
            let running = running.clone();
            let body = move || {
                let _running = running;
                socket::wake_punctually();
                std::thread::sleep(start.saturating_duration_since(Instant::now()));
                let account = generator.run()?;
                anyhow::Ok((account, cpu_seconds()))
            };
            let thread = std::thread::Builder::new().name("load".to_owned());
            threads.push(thread.spawn_scoped(scope, body).context("cannot start a thread")?);
        }
        drop(running);
        while ended.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
            watch(start.elapsed());
        }
        let mut total = Account::new()?;
        let mut total_cpu = 0.0;
        for thread in threads {
            let Ok(ran) = thread.join() else { bail!("a thread of the load panicked") };
            let (account, cpu) = ran?;
            total.add(&account)?;
            total_cpu += cpu;
        }
        Ok((total, total_cpu))
    })
}

/// CPU time of the current thread since it started.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
