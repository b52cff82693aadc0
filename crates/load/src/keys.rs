//! The key of each request: a number from 0, drawn from a distribution.

use crate::random::Random;
use rand_distr::Zipf;
use std::fmt;
use std::str::FromStr;

/// The distribution of requests over keys.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Distribution {
    /// Every key as likely as any other.
    Uniform,
    /// Key number k with a probability proportional to 1 / (k + 1)^s: few keys have most requests.
    Zipf(f64),
    /// Always key 0.
    Single,
    /// Each key in turn, again and again.
    Sequential,
}

/// Beyond this exponent nearly all requests are on key 0.
const EXPONENT_MAX: f64 = 10.0;

impl FromStr for Distribution {
    type Err = String;

    fn from_str(text: &str) -> Result<Distribution, String> {
        match text {
            "uniform" => return Ok(Distribution::Uniform),
            "zipf" => return Ok(Distribution::Zipf(1.0)),
            "single" => return Ok(Distribution::Single),
            "sequential" => return Ok(Distribution::Sequential),
            _ => {}
        }
        let unknown = || {
            format!(
                "`{text}` is not a distribution; use uniform, zipf, zipf:S, single or sequential"
            )
        };
        let exponent = text.strip_prefix("zipf:").ok_or_else(unknown)?;
        match exponent.parse() {
            Ok(s) if s > 0.0 && s <= EXPONENT_MAX => Ok(Distribution::Zipf(s)),
            _ => Err(format!(
                "the exponent `{exponent}` of zipf must be above 0 and at most {EXPONENT_MAX}"
            )),
        }
    }
}

impl fmt::Display for Distribution {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Distribution::Uniform => formatter.write_str("uniform"),
            Distribution::Zipf(s) => write!(formatter, "zipf:{s}"),
            Distribution::Single => formatter.write_str("single"),
            Distribution::Sequential => formatter.write_str("sequential"),
        }
    }
}

/// Draws the keys of one thread.
#[derive(Debug)]
pub(crate) struct Keys {
    draw: Draw,
    random: Random,
}

#[derive(Debug)]
enum Draw {
    Uniform { keys: u64 },
    Zipf { ranks: Zipf<f64>, keys: u64 },
    Single,
    Sequential { next: u64, step: u64, keys: u64 },
}

impl Keys {
    /// Keys below `keys` for thread `index` of `of`.
    ///
    /// # Errors
    /// When there are no keys, or the exponent is not positive.
    pub(crate) fn new(
        distribution: Distribution,
        keys: u64,
        (index, of): (u64, u64),
        random: Random,
    ) -> anyhow::Result<Keys> {
        let draw = match distribution {
            Distribution::Uniform => Draw::Uniform { keys },
            Distribution::Zipf(s) => {
                let ranks = Zipf::new(keys as f64, s).map_err(anyhow::Error::msg)?;
                Draw::Zipf { ranks, keys }
            }
            Distribution::Single => Draw::Single,
            Distribution::Sequential => Draw::Sequential { next: index % keys, step: of, keys },
        };
        Ok(Keys { draw, random })
    }

    pub(crate) fn next(&mut self) -> u64 {
        match &mut self.draw {
            Draw::Uniform { keys } => self.random.below(*keys),
            // Ranks count from 1, and the last one may be exceeded by rounding.
            Draw::Zipf { ranks, keys } => (self.random.sample(ranks) as u64).min(*keys) - 1,
            Draw::Single => 0,
            Draw::Sequential { next, step, keys } => {
                let key = *next;
                *next = (*next + *step) % *keys;
                key
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(distribution: Distribution, keys: u64, draws: u64) -> Vec<u64> {
        let mut source = Keys::new(distribution, keys, (0, 1), Random::new(11, 5)).unwrap();
        let mut counts = vec![0; keys as usize];
        for _ in 0..draws {
            counts[source.next() as usize] += 1;
        }
        counts
    }

    /// Pearson's statistic against the exact probabilities; its mean is n - 1 and its deviation
    /// √(2 (n - 1)), and five deviations are a chance of about one in a million.
    fn check_fit(counts: &[u64], weight: impl Fn(f64) -> f64) {
        let draws = counts.iter().sum::<u64>() as f64;
        let total: f64 = (1..=counts.len()).map(|rank| weight(rank as f64)).sum();
        let statistic: f64 = counts
            .iter()
            .enumerate()
            .map(|(key, &count)| {
                let expected = draws * weight(key as f64 + 1.0) / total;
                (count as f64 - expected).powi(2) / expected
            })
            .sum();
        let freedom = counts.len() as f64 - 1.0;
        assert!(statistic < freedom + 5.0 * (2.0 * freedom).sqrt(), "{statistic} of {freedom}");
    }

    #[test]
    fn zipf_has_its_probabilities_for_any_exponent() {
        for s in [0.3, 0.99, 1.0, 1.01, 2.0] {
            let counts = counts(Distribution::Zipf(s), 100, 400_000);
            check_fit(&counts, |rank| rank.powf(-s));
        }
    }

    #[test]
    fn zipf_of_few_and_of_very_many_keys_stays_in_range() {
        assert_eq!(counts(Distribution::Zipf(1.0), 1, 100), [100]);
        check_fit(&counts(Distribution::Zipf(1.0), 2, 100_000), |rank| 1.0 / rank);
        for s in [0.5, 1.0, 10.0] {
            let mut keys =
                Keys::new(Distribution::Zipf(s), 1_000_000_000, (0, 1), Random::new(2, 0)).unwrap();
            assert!((0..10_000).all(|_| keys.next() < 1_000_000_000), "{s}");
        }
    }

    #[test]
    fn uniform_single_and_sequential_are_what_they_say() {
        check_fit(&counts(Distribution::Uniform, 50, 100_000), |_| 1.0);
        assert_eq!(counts(Distribution::Single, 3, 10), [10, 0, 0]);
        assert_eq!(counts(Distribution::Sequential, 3, 10), [4, 3, 3]);
    }

    #[test]
    fn threads_in_sequence_cover_all_keys_together() {
        let mut seen = vec![0; 10];
        for index in 0..3 {
            let mut keys =
                Keys::new(Distribution::Sequential, 10, (index, 3), Random::new(0, 0)).unwrap();
            for _ in 0..10 {
                seen[keys.next() as usize] += 1;
            }
        }
        assert_eq!(seen, [3; 10]);
    }

    #[test]
    fn distributions_are_read_as_they_are_written() {
        for text in ["uniform", "zipf:1.2", "single", "sequential"] {
            assert_eq!(text.parse::<Distribution>().unwrap().to_string(), text);
        }
        assert_eq!("zipf".parse(), Ok(Distribution::Zipf(1.0)));
        for text in ["zipf:0", "zipf:x", "zipf:11", "zipf:nan", "normal", ""] {
            assert!(text.parse::<Distribution>().is_err(), "{text}");
        }
    }
}
