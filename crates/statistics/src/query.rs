//! Questions about a statistic, and answers.
//!
//! A question is checked against the statistic before the database hears of it, and each part is bounded: steps, series,
//! and rows of sketches.

mod json;
mod step;

pub use step::Step;

use crate::label::label;
use crate::retention::Calendar;
use crate::series::{Counts, bounded};
use tidegate_limits::{Statistic, duration};

/// Series of one answer.
pub const TOP_MAX: usize = 100;
/// Steps of one series.
pub const STEPS_MAX: i64 = 2_000;
/// Steps of `step=auto`.
const STEPS_AUTO: i64 = 400;
/// The longest range: longer than points are kept by default.
const RANGE_SECONDS_MAX: i64 = 20 * 366 * 86_400;

/// A question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    pub statistic: String,
    /// Under which the database has it.
    pub label: String,
    /// All keys of the statistic, in its order.
    pub keys: Vec<String>,
    /// Seconds since 1970, up to and without `to`.
    pub from: i64,
    pub to: i64,
    /// None: chosen by the range.
    pub step: Option<Step>,
    /// Numbers of keys, and the value of each.
    pub filters: Vec<(usize, String)>,
    /// Numbers of keys. One series for each combination of their values; none: one series in all.
    pub by: Vec<usize>,
    /// At most so many series.
    pub top: usize,
    /// What the series are ordered by, largest first.
    pub order: Order,
    /// Whether distinct values are counted, too.
    pub distinct: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Requests,
    Allowed,
    Denied,
    Hits,
}

impl Order {
    /// The count by which series are ordered.
    pub(crate) fn of(self, counts: Counts) -> u64 {
        match self {
            Order::Requests => counts.requests(),
            Order::Allowed => counts.allowed,
            Order::Denied => counts.denied,
            Order::Hits => counts.hits,
        }
    }

    /// The same of a row; the columns begin with `of`, such as the name of a table and a dot.
    pub(crate) fn column(self, of: &str) -> String {
        match self {
            Order::Requests => format!("{of}allowed + {of}denied"),
            Order::Allowed => format!("{of}allowed"),
            Order::Denied => format!("{of}denied"),
            Order::Hits => format!("{of}hits"),
        }
    }
}

/// A question that cannot be asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct QueryError(String);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub statistic: String,
    /// The keys whose values name the series.
    pub by: Vec<String>,
    /// From the beginning of a step.
    pub from: i64,
    pub to: i64,
    pub step: Step,
    /// Whether distinct values were asked for.
    pub counts_distinct: bool,
    pub series: Vec<AnswerSeries>,
    /// Whether there are more series.
    pub has_more: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerSeries {
    /// None for those that had no room.
    pub values: Option<Vec<String>>,
    pub total: Counts,
    /// None also if they are in too many points to be counted in time.
    pub distinct: Option<u64>,
    /// Steps in which anything was counted, in order.
    pub points: Vec<AnswerPoint>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnswerPoint {
    pub start: i64,
    pub counts: Counts,
    pub distinct: Option<u64>,
}

impl Query {
    /// Reads parameters as of a URL: `last` or `from` and `to`, `step`, `by`, `top`, `order`; every other one is a key and
    /// the value that it must have. `key.` may precede a key, for those with the name of a parameter.
    ///
    /// # Errors
    /// A message that names the parameter.
    pub fn parse<'p>(
        statistic: &Statistic,
        parameters: impl IntoIterator<Item = (&'p str, &'p str)>,
        now: i64,
    ) -> Result<Query, QueryError> {
        let mut query = Query {
            statistic: statistic.name.clone(),
            label: label(statistic).to_string(),
            keys: statistic.by.clone(),
            from: now - 86_400,
            to: now,
            step: None,
            filters: Vec::new(),
            by: Vec::new(),
            top: 0,
            order: Order::Requests,
            distinct: statistic.distinct.is_some(),
        };
        let mut seen: Vec<&str> = Vec::new();
        for (name, value) in parameters {
            if seen.contains(&name) {
                return error(format!("`{}` is there twice", short(name)));
            }
            seen.push(name);
            query.set(name, value, now)?;
        }
        if seen.contains(&"last") && (seen.contains(&"from") || seen.contains(&"to")) {
            return error("`last` and `from` or `to` exclude each other");
        }
        query.finish(seen.contains(&"by"))
    }

    fn set(&mut self, name: &str, value: &str, now: i64) -> Result<(), QueryError> {
        match name {
            "last" => {
                self.from = now
                    - seconds(value).ok_or_else(|| {
                        wrong(name, value, "a duration such as 30m, 24h, 7d or 4w")
                    })?;
            }
            "from" => self.from = time(name, value)?,
            "to" => self.to = time(name, value)?,
            "step" => self.step = step(value)?,
            "top" => {
                let top = value.parse().ok().filter(|top| (1..=TOP_MAX).contains(top));
                self.top = top.ok_or_else(|| wrong(name, value, "a number from 1 to 100"))?;
            }
            "order" => self.order = order(value)?,
            "by" => {
                for key in value.split(',').filter(|key| !key.is_empty()) {
                    let key = self.key(key)?;
                    if self.by.contains(&key) {
                        return Err(wrong("by", value, "different keys"));
                    }
                    self.by.push(key);
                }
            }
            key => {
                let key = self.key(key.strip_prefix("key.").unwrap_or(key))?;
                self.filters.push((key, bounded(value).into_owned()));
            }
        }
        Ok(())
    }

    fn key(&self, name: &str) -> Result<usize, QueryError> {
        let found = self.keys.iter().position(|key| key == name);
        found.ok_or_else(|| {
            let (name, keys) = (short(name), self.keys.join(", "));
            QueryError(format!(
                "`{name}` is neither a parameter nor a key of this statistic ({keys})"
            ))
        })
    }

    fn finish(mut self, has_by: bool) -> Result<Query, QueryError> {
        if self.from >= self.to || self.to - self.from > RANGE_SECONDS_MAX {
            return error("expected a range of more than nothing and at most 20 years");
        }
        if self.top > 0 && !has_by {
            let is_free = |key: &usize| self.filters.iter().all(|(filtered, _)| filtered != key);
            self.by = (0..self.keys.len()).filter(is_free).collect();
        }
        if self.top == 0 {
            self.top = if self.by.is_empty() { 1 } else { 10 };
        }
        Ok(self)
    }

    /// The step, when there are no points of a width below `narrowest` seconds at the beginning of the range.
    pub(crate) fn chosen_step(&self, narrowest: i64) -> Result<Step, QueryError> {
        let range = self.to - self.from;
        let fits = |step: &Step, steps: i64| {
            step.seconds() >= narrowest && range / step.seconds() <= steps
        };
        match self.step {
            Some(step) => {
                let mut wide_enough = Step::ALL.into_iter().filter(|wide| *wide >= step);
                let step =
                    wide_enough.find(|step| step.seconds() >= narrowest).unwrap_or(Step::Week);
                if range / step.seconds() > STEPS_MAX {
                    let (step, range) = (step.name(), range / 3_600);
                    return error(format!("a step of {step} is too short for {range} h"));
                }
                Ok(step)
            }
            None => {
                let auto = Step::ALL.into_iter().find(|step| fits(step, STEPS_AUTO));
                Ok(auto.unwrap_or(Step::Week))
            }
        }
    }

    /// Whether each group is one series, as each key is named or grouped by.
    pub(crate) fn is_by_series(&self) -> bool {
        let is_named = |key: usize| self.filters.iter().any(|(named, _)| *named == key);
        (0..self.keys.len()).all(|key| self.by.contains(&key) || is_named(key))
    }

    /// The range, from the beginning of a step.
    pub(crate) fn start(&self, step: Step, calendar: &Calendar) -> i64 {
        step.floor(calendar, self.from)
    }
}

fn error<T>(message: impl Into<String>) -> Result<T, QueryError> {
    Err(QueryError(message.into()))
}

fn wrong(name: &str, value: &str, expected: &str) -> QueryError {
    QueryError(format!("`{name}`: expected {expected}, found {:?}", short(value)))
}

/// The beginning of a word that is too long for a message.
fn short(word: &str) -> String {
    word.chars().take(64).collect()
}

fn seconds(text: &str) -> Option<i64> {
    let seconds = duration::parse(text)?.as_nanos() / 1_000_000_000;
    i64::try_from(seconds).ok().filter(|seconds| (1..=RANGE_SECONDS_MAX).contains(seconds))
}

/// Seconds since 1970, or a time such as `2026-11-25T10:00:00Z`.
fn time(name: &str, text: &str) -> Result<i64, QueryError> {
    let parsed = match text.parse::<jiff::Timestamp>() {
        Ok(time) => Some(time.as_second()),
        Err(_) => text.parse().ok(),
    };
    let is_near = |time: &i64| (-100_000_000_000..100_000_000_000).contains(time);
    let expected = "a time such as 2026-11-25T10:00:00Z, or seconds since 1970";
    parsed.filter(is_near).ok_or_else(|| wrong(name, text, expected))
}

fn step(text: &str) -> Result<Option<Step>, QueryError> {
    if text == "auto" {
        return Ok(None);
    }
    let found = Step::ALL.into_iter().find(|step| step.name() == text);
    found.map(Some).ok_or_else(|| {
        let names = Step::ALL.map(Step::name).join(", ");
        wrong("step", text, &format!("auto or one of {names}"))
    })
}

fn order(text: &str) -> Result<Order, QueryError> {
    match text {
        "requests" => Ok(Order::Requests),
        "allowed" => Ok(Order::Allowed),
        "denied" => Ok(Order::Denied),
        "hits" => Ok(Order::Hits),
        _ => Err(wrong("order", text, "requests, allowed, denied or hits")),
    }
}

#[cfg(test)]
mod tests;
