//! The compared client: a rate limit service that asks Redis about every descriptor of every call.
//!
//! Its commands are those of envoyproxy/ratelimit: INCRBY of the counter of the current window, then EXPIRE, pipelined;
//! commands of a short time go out together (`REDIS_PIPELINE_WINDOW` there). It is a process of one thread with the gRPC
//! server of Tidegate, and does nothing else, so that it costs less than any service that counts like this.

mod client;
mod pipeline;
mod redis;
mod timer;

use super::server::CountedLimit;
use anyhow::Context;
use clap::Args;
use client::Client;
use pipeline::Window;
use redis::Redis;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tidegate_core::{Answer, LimitView, Nanos, Verdict};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinSet, LocalSet, spawn_local};

/// Connections to Redis, as many as Tidegate's sidecar has by default.
const CONNECTIONS: usize = 2;

/// The shortest that envoyproxy/ratelimit recommends.
pub(super) const PIPELINE_WINDOW: Duration = Duration::from_micros(150);

const READ_BYTES_MAX: usize = 32 << 10;

/// The process of the service.
#[derive(Debug, Args)]
pub(crate) struct Part {
    #[arg(long)]
    redis: SocketAddr,
    #[arg(long)]
    grpc: SocketAddr,
    /// Hits that a descriptor may have in a window.
    #[arg(long)]
    requests: u32,
    #[arg(long)]
    seconds: u64,
    #[arg(long)]
    pipeline_micros: u64,
}

impl Part {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let limit = CountedLimit { requests: self.requests, seconds: self.seconds };
        let window = Duration::from_micros(self.pipeline_micros);
        runtime.block_on(LocalSet::new().run_until(async {
            serve(TcpListener::bind(self.grpc).await?, self.redis, limit, window).await
        }))
    }
}

/// Serves until a connection to Redis fails.
async fn serve(
    listener: TcpListener,
    redis: SocketAddr,
    limit: CountedLimit,
    window: Duration,
) -> anyhow::Result<()> {
    let mut connections = JoinSet::new();
    let mut redises = Vec::new();
    for _ in 0..CONNECTIONS {
        let socket = Rc::new(TcpStream::connect(redis).await.context("cannot connect to Redis")?);
        socket.set_nodelay(true)?;
        let redis = Rc::new(Redis::new());
        connections.spawn_local(redis.clone().send(socket.clone(), window));
        connections.spawn_local(redis.clone().receive(socket, limit));
        redises.push(redis);
    }
    for redis in redises.iter().cycle() {
        let socket = tokio::select! {
            accepted = listener.accept() => accepted?.0,
            Some(ended) = connections.join_next() => return ended?,
        };
        socket.set_nodelay(true)?;
        spawn_local(Rc::new(Client::new()).serve(socket, redis.clone(), limit));
    }
    Ok(())
}

/// The count of a write or read. One that would block counts nothing.
fn written(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        result => result,
    }
}

impl CountedLimit {
    fn window_at(self, now: SystemTime) -> Window {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Window { start: now - now % self.seconds, seconds: self.seconds }
    }

    /// The answer to a call with so many hits for each descriptor.
    fn answer(self, counts: &[u64]) -> Answer {
        let status = |&count: &u64| {
            let remaining = u64::from(self.requests).checked_sub(count);
            tidegate_core::Status {
                verdict: if remaining.is_some() { Verdict::Allow } else { Verdict::Deny },
                limit: Some(LimitView { requests: self.requests, unit: None, name: String::new() }),
                remaining: u32::try_from(remaining.unwrap_or(0)).unwrap_or(u32::MAX),
                reset: Nanos::from_secs(self.seconds),
                lease: None,
                details: None,
            }
        };
        let statuses: Vec<_> = counts.iter().map(status).collect();
        let has_room = statuses.iter().all(|status| status.verdict == Verdict::Allow);
        let verdict = if has_room { Verdict::Allow } else { Verdict::Deny };
        Answer { verdict, statuses, metadata: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::ensure;
    use tempfile::TempDir;
    use tidegate_load::{Classes, Descriptor, Distribution, LoadOptions, Target};
    use tidegate_tests::shared_servers::{Redis, RedisOptions, RedisPrograms};

    const LIMIT: CountedLimit = CountedLimit { requests: 100, seconds: 86_400 };

    /// Calls on keys that no other load of the test has.
    async fn load(target: SocketAddr, group: &str, keys: u64) -> anyhow::Result<Classes> {
        let entries = vec![("user".to_owned(), format!("{group}-{{key}}"))];
        let options = LoadOptions {
            target: Target::Tcp(target.to_string()),
            descriptors: vec![Descriptor { entries }],
            keys,
            distribution: Distribution::Sequential,
            rate: 1_500.0,
            duration: Duration::from_millis(100),
            timeout: Duration::from_secs(20),
            ..LoadOptions::default()
        };
        let report = tokio::task::spawn_blocking(move || tidegate_load::measure(&options));
        Ok(report.await??.account.classes)
    }

    #[tokio::test]
    async fn calls_are_counted_in_redis_up_to_the_limit() -> anyhow::Result<()> {
        let Some(programs) = RedisPrograms::find()? else { return Ok(()) };
        let dir = TempDir::new()?;
        let redis = Redis::start(&programs, dir.path(), RedisOptions::default()).await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (address, to) = (listener.local_addr()?, redis.address().parse()?);
        let loads = async {
            let hot = load(address, "hot", 1).await?;
            ensure!((hot.allowed, hot.denied) == (100, 50), "{hot:?}");
            let cold = load(address, "cold", 1_000).await?;
            ensure!((cold.allowed, cold.denied) == (150, 0), "{cold:?}");
            ensure!(redis.calls("INCRBY").await? == 300);
            ensure!(redis.calls("EXPIRE").await? == 300);
            Ok(())
        };
        let serving = serve(listener, to, LIMIT, PIPELINE_WINDOW);
        let both = async {
            tokio::select! { ended = serving => ended, ended = loads => ended }
        };
        LocalSet::new().run_until(both).await
    }
}
