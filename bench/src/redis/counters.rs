//! What a Redis has done so far, by its own counters.

use anyhow::Context;
use std::ops::Sub;
use tidegate_tests::shared_servers::Redis;

/// Counters since the start of a Redis.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Counters {
    /// Commands, also those that scripts call.
    pub(super) commands: f64,
    /// Scripts that clients called.
    pub(super) scripts: f64,
    /// µs of CPU.
    pub(super) micros: f64,
}

impl Counters {
    /// Reads them; that counts for nothing.
    pub(super) async fn of(redis: &Redis) -> anyhow::Result<Counters> {
        let mut micros = 0.0;
        for field in ["used_cpu_user", "used_cpu_sys"] {
            micros += redis.info("cpu", field).await?.parse::<f64>()? * 1e6;
        }
        let stats = redis.command(&["INFO", "commandstats"]).await?;
        Counters { micros, ..Counters::default() }.with_calls(&stats)
    }

    /// Adds the calls of `INFO commandstats`.
    fn with_calls(mut self, stats: &str) -> anyhow::Result<Counters> {
        for line in stats.lines().filter_map(|line| line.strip_prefix("cmdstat_")) {
            let (name, rest) = line.split_once(":calls=").context("a command without calls")?;
            let calls: f64 = rest.split(',').next().unwrap_or_default().parse()?;
            match name {
                "info" => continue,
                "eval" | "evalsha" | "fcall" => self.scripts += calls,
                _ => {}
            }
            self.commands += calls;
        }
        Ok(self)
    }
}

impl Sub for Counters {
    type Output = Counters;

    fn sub(self, before: Counters) -> Counters {
        Counters {
            commands: self.commands - before.commands,
            scripts: self.scripts - before.scripts,
            micros: self.micros - before.micros,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_clients_and_scripts_are_counted_without_those_of_the_benchmark() {
        let stats = "# Commandstats\r\n\
            cmdstat_evalsha:calls=3,usec=9,usec_per_call=3.00,rejected_calls=0,failed_calls=0\r\n\
            cmdstat_get:calls=6,usec=9\r\n\
            cmdstat_client|setinfo:calls=2,usec=1\r\n\
            cmdstat_info:calls=50,usec=1\r\n";
        let counters = Counters::default().with_calls(stats).unwrap();
        assert_eq!(counters, Counters { commands: 11.0, scripts: 3.0, micros: 0.0 });
        let later = Counters { commands: 21.0, scripts: 4.0, micros: 7.0 };
        let expected = Counters { commands: 10.0, scripts: 1.0, micros: 7.0 };
        assert_eq!(later - counters, expected);
    }

    #[test]
    fn other_lines_are_errors() {
        assert!(Counters::default().with_calls("cmdstat_get:usec=9").is_err());
        assert!(Counters::default().with_calls("cmdstat_get:calls=x,usec=9").is_err());
    }
}
