//! The cases: keys and pace of the calls, and the rounds in which the services take turns.

use super::Plan;
use super::counters::Counters;
use super::figures::{CaseFigures, Figures};
use super::server::{CountedLimit, Software, Subject, descriptor};
use crate::generator::{Ask, From, Load, Order, Pace};
use crate::progress;
use crate::server::Cores;
use std::time::Duration;
use tidegate_tests::shared_servers::RedisPrograms;

/// Nobody is denied.
const LIMIT: CountedLimit = CountedLimit { requests: 4_000_000_000, seconds: 60 };

/// More keys than any round has calls.
const COLD_KEYS: u64 = 100_000_000;

/// Concurrent calls on each connection on cold keys.
const STREAMS: u32 = 20;

/// The kind of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keys {
    /// This many, again and again.
    Hot(u64),
    /// Each once.
    Cold,
}

/// One case.
#[derive(Debug, Clone)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) keys: Keys,
    pub(super) pace: Pace,
    /// Measured rounds, besides the warm-up.
    pub(super) rounds: usize,
    duration: Duration,
}

/// All cases.
pub(super) fn all(plan: &Plan) -> Vec<Case> {
    let hot = |keys, rate| {
        let name = if keys == 1 { "one hot key".to_owned() } else { format!("{keys} hot keys") };
        let name = format!("{name}, {rate} a second");
        let pace = Pace::Open { rate };
        let (rounds, duration) = (plan.rounds, plan.duration);
        Case { name, keys: Keys::Hot(keys), pace, rounds, duration }
    };
    vec![
        hot(plan.hot_keys, plan.rate),
        hot(1, plan.rate),
        hot(plan.steady_rate * plan.hot_keys / plan.rate, plan.steady_rate),
        Case {
            name: "cold keys".to_owned(),
            keys: Keys::Cold,
            pace: Pace::Closed { streams: STREAMS },
            // Rates are compared, so the machine must be as fast for all: short rounds, and many.
            rounds: plan.rounds * 2 - 1,
            duration: plan.duration / 5,
        },
    ]
}

impl Case {
    /// The start of its latency.
    fn from(&self) -> From {
        match self.pace {
            Pace::Closed { .. } | Pace::Alone => From::Written,
            Pace::Open { .. } => From::Due,
        }
    }

    /// Measures every service.
    pub(super) async fn measure(
        self,
        plan: &Plan,
        programs: &RedisPrograms,
    ) -> anyhow::Result<CaseFigures> {
        let mut peers = Vec::new();
        for software in Software::all() {
            progress::show(&format!("starting {}", software.name()));
            let subject = Subject::start(software, programs, LIMIT, 1, plan.capacity).await?;
            peers.push((subject, Vec::new()));
        }
        for round in 0..=self.rounds {
            // Back and forth, so that nobody has the same neighbour in all rounds.
            let mut turn: Vec<_> = peers.iter_mut().collect();
            if round % 2 == 1 {
                turn.reverse();
            }
            for (subject, rounds) in turn {
                let (name, who) = (&self.name, subject.software.name());
                progress::show(&format!("{name}, round {round} of {}: {who}", self.rounds));
                let figures = self.round(plan, round, subject).await?;
                // The first round is the warm-up.
                if round > 0 {
                    rounds.push(figures);
                }
            }
        }
        let median = |(subject, rounds): (Subject, Vec<Figures>)| {
            (subject.software, Figures::medians(&rounds))
        };
        let figures = peers.into_iter().map(median).collect();
        Ok(CaseFigures { case: self, figures })
    }

    async fn round(&self, plan: &Plan, round: usize, subject: &Subject) -> anyhow::Result<Figures> {
        let [server] = subject.servers.as_slice() else { anyhow::bail!("one server was started") };
        let (keys, order, group) = match self.keys {
            Keys::Hot(keys) => (keys, Order::Random, "hot".to_owned()),
            Keys::Cold => (COLD_KEYS, Order::InTurn, format!("cold{round}")),
        };
        let counters = async || match &subject.redis {
            Some(redis) => Counters::of(redis).await,
            None => Ok(Counters::default()),
        };
        let descriptor = descriptor(&group);
        let ask = Ask::Rls { descriptor: &descriptor };
        let (target, pace) = (server.address, self.pace);
        let load = |duration| Load { target, ask, keys, order, pace, duration, cores: Cores::Two };
        if let Keys::Hot(_) = self.keys {
            // What is measured is keys that have been hot for a while: other services had their turn meanwhile.
            load(plan.warmup).run().await?;
        }
        let (redis_before, cpu_before) = (counters().await?, server.cpu_micros()?);
        let report = load(self.duration).run().await?;
        let (redis, cpu) = (counters().await? - redis_before, server.cpu_micros()? - cpu_before);
        let decided = report.decided();
        Ok(Figures {
            rate: decided / report.seconds(),
            decided: decided / report.due(),
            service_micros: cpu / decided,
            redis_micros: redis.micros / decided,
            commands: redis.commands / decided,
            scripts: redis.scripts / decided,
            p50: report.served_micros(self.from(), "p50"),
            p99: report.served_micros(self.from(), "p99"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::{FULL, QUICK};

    #[test]
    fn hot_keys_are_as_busy_in_the_steady_case() {
        #[track_caller]
        fn check(plan: &Plan, expected: [&str; 4]) {
            let cases = all(plan);
            assert_eq!(cases.iter().map(|case| case.name.as_str()).collect::<Vec<_>>(), expected);
        }
        let full = [
            "1000 hot keys, 100000 a second",
            "one hot key, 100000 a second",
            "50 hot keys, 5000 a second",
            "cold keys",
        ];
        check(&FULL, full);
        let quick = [
            "20 hot keys, 2000 a second",
            "one hot key, 2000 a second",
            "5 hot keys, 500 a second",
            "cold keys",
        ];
        check(&QUICK, quick);
    }

    #[test]
    fn cold_keys_have_room() {
        for plan in [FULL, QUICK] {
            // The most decisions of the store over one endpoint, see docs/performance.md.
            let cases = all(&plan);
            let cold = cases.iter().find(|case| case.keys == Keys::Cold).unwrap();
            let decisions = cold.duration.as_secs_f64() * 1e6 * (cold.rounds + 1) as f64;
            assert!(decisions <= f64::from(plan.capacity));
        }
    }
}
