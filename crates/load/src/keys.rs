//! The key of each request: a number from 0, drawn from a distribution.

use crate::random::Random;
use anyhow::Context;
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
    /// A share of the requests on the first keys, evenly, and the others on each of the other keys in turn.
    Hot {
        /// From 0 to 1.
        share: f64,
        /// How many keys are hot.
        keys: u64,
    },
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
                "`{text}` is not a distribution; use uniform, zipf, zipf:S, single, sequential or hot:SHARE:KEYS"
            )
        };
        if let Some((share, keys)) = text.strip_prefix("hot:").and_then(|rest| rest.split_once(':'))
        {
            let wrong = || format!("`{text}` needs a share of 0 to 1, and a number of hot keys");
            let share = share.parse().ok().filter(|share| (0.0..=1.0).contains(share));
            let keys = keys.parse().ok().filter(|keys| *keys > 0);
            let (share, keys) = share.zip(keys).ok_or_else(wrong)?;
            return Ok(Distribution::Hot { share, keys });
        }
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
            Distribution::Hot { share, keys } => write!(formatter, "hot:{share}:{keys}"),
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
    Hot { share: f64, hot: u64, others: Box<Draw> },
}

impl Keys {
    /// Keys below `keys` for thread `index` of `of`.
    ///
    /// # Errors
    /// When there are no keys, or none but hot ones, or the exponent is not positive.
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
            Distribution::Hot { share, keys: hot } => {
                let others = keys.checked_sub(hot).filter(|others| *others > 0);
                let others =
                    others.with_context(|| format!("all of {keys} keys are hot; raise --keys"))?;
                let others = Draw::Sequential { next: index % others, step: of, keys: others };
                Draw::Hot { share, hot, others: Box::new(others) }
            }
        };
        Ok(Keys { draw, random })
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.draw.next(&mut self.random)
    }
}

impl Draw {
    fn next(&mut self, random: &mut Random) -> u64 {
        match self {
            Draw::Uniform { keys } => random.below(*keys),
            // Ranks count from 1, and the last one may be exceeded by rounding.
            Draw::Zipf { ranks, keys } => (random.sample(ranks) as u64).min(*keys) - 1,
            Draw::Single => 0,
            Draw::Sequential { next, step, keys } => {
                let key = *next;
                *next = (*next + *step) % *keys;
                key
            }
            Draw::Hot { share, hot, .. } if random.fraction() < *share => random.below(*hot),
            Draw::Hot { hot, others, .. } => *hot + others.next(random),
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
    fn hot_keys_have_their_share_and_the_others_come_in_turn() {
        let hot = Distribution::Hot { share: 0.9, keys: 10 };
        let counts = counts(hot, 1_010, 10_000);
        let (hot, others) = counts.split_at(10);
        assert!((8_800..9_200).contains(&hot.iter().sum::<u64>()), "{hot:?}");
        check_fit(hot, |_| 1.0);
        let (least, most) = (others.iter().min(), others.iter().max());
        assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 1), "{others:?}");
    }

    #[test]
    fn some_key_is_not_hot() {
        let hot = Distribution::Hot { share: 0.9, keys: 10 };
        let error = Keys::new(hot, 10, (0, 1), Random::new(0, 0)).unwrap_err();
        assert!(error.to_string().contains("--keys"), "{error}");
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
        for text in ["uniform", "zipf:1.2", "single", "sequential", "hot:0.99:1000"] {
            assert_eq!(text.parse::<Distribution>().unwrap().to_string(), text);
        }
        assert_eq!("zipf".parse(), Ok(Distribution::Zipf(1.0)));
        for text in ["zipf:0", "zipf:x", "zipf:11", "zipf:nan", "normal", ""] {
            assert!(text.parse::<Distribution>().is_err(), "{text}");
        }
        for text in ["hot", "hot:0.5", "hot:1.5:10", "hot:0.5:0", "hot:nan:10"] {
            assert!(text.parse::<Distribution>().is_err(), "{text}");
        }
    }
}
