//! One limit that two servers reach together: hits that were allowed over it, and those that nobody got.

use super::server::{CountedLimit, Software, Subject, descriptor};
use super::{Plan, SUITE};
use crate::generator::{Ask, Load, Order, Pace};
use crate::progress;
use crate::report::{Row, print_table};
use crate::server::Cores;
use std::time::Duration;
use tidegate_tests::shared_servers::RedisPrograms;
use tidegate_tests::wait;

const CASE: &str = "a limit reached by two servers";

/// Its window is longer than the suite.
const DAY: Duration = Duration::from_secs(86_400);

/// Hits are asked for so many times the limit.
const EXCESS: f64 = 2.0;

/// The worst round of a service.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Worst {
    over: f64,
    unused: f64,
}

impl Worst {
    fn add(&mut self, allowed: f64, limit: f64) {
        self.over = self.over.max(allowed - limit);
        self.unused = self.unused.max(limit - allowed);
    }
}

pub(super) async fn measure(plan: &Plan, programs: &RedisPrograms) -> anyhow::Result<Vec<Row>> {
    let limit = CountedLimit { requests: plan.reached, seconds: DAY.as_secs() };
    wait::for_room_in_window(DAY, 2 * wait::ROOM).await?;
    let mut peers = Vec::new();
    for software in Software::all().into_iter().filter(|software| software.has_redis()) {
        progress::show(&format!("starting {}", software.name()));
        let subject = Subject::start(software, programs, limit, 2, plan.capacity).await?;
        peers.push((subject, Worst::default()));
    }
    for round in 1..=plan.rounds {
        for (subject, worst) in &mut peers {
            let (rounds, who) = (plan.rounds, subject.software.name());
            progress::show(&format!("{CASE}, round {round} of {rounds}: {who}"));
            worst.add(allowed(round, subject, plan).await?, limit.requests.into());
        }
    }
    progress::clear();
    let peers: Vec<(Software, Worst)> =
        peers.into_iter().map(|(subject, worst)| (subject.software, worst)).collect();
    print(plan, &peers);
    Ok(rows(&peers))
}

/// The hits that both servers allow on a key of this round.
async fn allowed(round: usize, subject: &Subject, plan: &Plan) -> anyhow::Result<f64> {
    let [first, second] = subject.servers.as_slice() else {
        anyhow::bail!("two servers were started")
    };
    let descriptor = descriptor(&format!("reached{round}"));
    let per_second = f64::from(plan.reached) * EXCESS / plan.duration.as_secs_f64();
    let load = |target| Load {
        target,
        ask: Ask::Rls { descriptor: &descriptor },
        keys: 1,
        order: Order::Random,
        pace: Pace::Open { rate: (per_second / 2.0).ceil() as u64 },
        duration: plan.duration,
        cores: Cores::Two,
    };
    let (first, second) = (load(first.address), load(second.address));
    let (first, second) = tokio::try_join!(first.run(), second.run())?;
    Ok(first.class("allowed") + second.class("allowed"))
}

fn print(plan: &Plan, peers: &[(Software, Worst)]) {
    let title = format!(
        "One key with a limit of {} hits, asked for {EXCESS} times as many by two servers on one Redis: the worst of {} \
         rounds",
        plan.reached, plan.rounds
    );
    let line = |(who, worst): &(Software, Worst)| {
        vec![who.name().to_owned(), format!("{:.0}", worst.over), format!("{:.0}", worst.unused)]
    };
    let lines: Vec<_> = peers.iter().map(line).collect();
    print_table(&title, &["service", "hits over the limit", "hits unused"], &lines);
}

/// Both figures of Tidegate beside each peer.
fn rows(peers: &[(Software, Worst)]) -> Vec<Row> {
    let Some(((Software::Shared, ours), peers)) = peers.split_first() else { return Vec::new() };
    let mut rows = Vec::new();
    for (peer, theirs) in peers {
        let over = Row::new(SUITE, CASE, ("hits_over_limit", "hits"), ours.over);
        rows.push(over.beside((peer.name(), theirs.over)));
        let unused = Row::new(SUITE, CASE, ("hits_unused", "hits"), ours.unused);
        rows.push(unused.beside((peer.name(), theirs.unused)));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_of_all_rounds_counts_on_both_sides() {
        let mut worst = Worst::default();
        for allowed in [100.0, 97.0, 104.0, 99.0] {
            worst.add(allowed, 100.0);
        }
        assert_eq!(worst, Worst { over: 4.0, unused: 3.0 });
    }

    #[test]
    fn rows_are_those_of_tidegate_beside_each_peer() {
        let of = |over, unused| Worst { over, unused };
        let peers = [(Software::Shared, of(0.0, 20.0)), (Software::LimitadorCached, of(50.0, 0.0))];
        let rows = rows(&peers);
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[0].value, rows[0].peer_value), (0.0, Some(50.0)));
        assert_eq!(rows[1].value, 20.0);
        assert_eq!(self::rows(&peers[1..]), []);
    }
}
