//! The key of each request: a number from 0, drawn from a distribution.

use crate::random::Random;
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
    Zipf(Zipf),
    Single,
    Sequential { next: u64, step: u64, keys: u64 },
}

impl Keys {
    /// Keys below `keys` for thread `index` of `of`.
    pub(crate) fn new(
        distribution: Distribution,
        keys: u64,
        (index, of): (u64, u64),
        random: Random,
    ) -> Keys {
        let draw = match distribution {
            Distribution::Uniform => Draw::Uniform { keys },
            Distribution::Zipf(s) => Draw::Zipf(Zipf::new(keys, s)),
            Distribution::Single => Draw::Single,
            Distribution::Sequential => Draw::Sequential { next: index % keys, step: of, keys },
        };
        Keys { draw, random }
    }

    pub(crate) fn next(&mut self) -> u64 {
        match &mut self.draw {
            Draw::Uniform { keys } => self.random.below(*keys),
            Draw::Zipf(zipf) => zipf.sample(&mut self.random) - 1,
            Draw::Single => 0,
            Draw::Sequential { next, step, keys } => {
                let key = *next;
                *next = (*next + *step) % *keys;
                key
            }
        }
    }
}

/// Ranks 1 to n with probability proportional to rank^-s, in constant time and memory: rejection- inversion
/// (W. Hörmann, G. Derflinger, "Rejection-inversion to generate variates from monotone discrete
/// distributions", 1996). The integral of x^-s is inverted at a random point. The rank there is kept unless
/// the point is in the part of its step that the histogram does not cover.
#[derive(Debug)]
struct Zipf {
    ranks: f64,
    s: f64,
    /// The integral at 3/2, minus the first step.
    low: f64,
    /// The integral at n + 1/2.
    high: f64,
    /// A point this close below its rank is kept without a further check.
    near: f64,
}

impl Zipf {
    fn new(ranks: u64, s: f64) -> Zipf {
        let ranks = ranks as f64;
        let low = integral(1.5, s) - 1.0;
        let high = integral(ranks + 0.5, s);
        let near = 2.0 - inverse(integral(2.5, s) - 2_f64.powf(-s), s);
        Zipf { ranks, s, low, high, near }
    }

    fn sample(&self, random: &mut Random) -> u64 {
        loop {
            let place = self.high + random.fraction() * (self.low - self.high);
            let x = inverse(place, self.s);
            let rank = x.round().clamp(1.0, self.ranks);
            let is_kept =
                rank - x <= self.near || place >= integral(rank + 0.5, self.s) - rank.powf(-self.s);
            if is_kept {
                return rank as u64;
            }
        }
    }
}

/// The integral of t^-s from 1 to x.
fn integral(x: f64, s: f64) -> f64 {
    let (log, power) = (x.ln(), 1.0 - s);
    if power.abs() < 1e-9 { log } else { (power * log).exp_m1() / power }
}

/// The x at which [`integral`] is `area`.
fn inverse(area: f64, s: f64) -> f64 {
    let power = 1.0 - s;
    // Below -1 only by rounding, where the tail of a steep distribution is flat.
    if power.abs() < 1e-9 { area.exp() } else { ((area * power).max(-1.0).ln_1p() / power).exp() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(distribution: Distribution, keys: u64, draws: u64) -> Vec<u64> {
        let mut source = Keys::new(distribution, keys, (0, 1), Random::new(11, 5));
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
                Keys::new(Distribution::Zipf(s), 1_000_000_000, (0, 1), Random::new(2, 0));
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
            let mut keys = Keys::new(Distribution::Sequential, 10, (index, 3), Random::new(0, 0));
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
