//! A server of shared counters: what `redis/script.lua` does, in one step for each command.

use super::Command;
use crate::image::{self, Image, Retention};
use std::collections::BTreeMap;
use tidegate_store::{Entry, Hashed};

/// As in the script: a reservation that ends later than this is not believed, in milliseconds.
const MARK: u64 = 10_000;
/// How long changes can be undone, in microseconds.
const UNDONE_WITHIN: u64 = 5_000_000;

/// A server, with the time of the caller.
#[derive(Debug, Default)]
pub struct Server {
    values: BTreeMap<Hashed, Value>,
    /// What was there before each change of late, in their order.
    log: Vec<(u64, Hashed, Option<Value>)>,
    /// A deliberate fault: keys are forgotten so many seconds before their end.
    pub forgets_early_secs: u64,
}

#[derive(Debug, Clone)]
struct Value {
    image: Image,
    ends_secs: u64,
    /// Who is first in line, and until when in milliseconds.
    reserved: Option<(u64, u64)>,
}

/// The answer to a command, with the server's time in microseconds.
#[derive(Debug, Clone)]
pub struct Answer {
    pub(super) micros: u64,
    pub(super) outcome: Outcome,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    Lost(Vec<Image>),
    Early,
    Late,
}

impl Answer {
    /// Whether the command has changed nothing, as another image was there.
    pub fn is_lost(&self) -> bool {
        matches!(self.outcome, Outcome::Lost(_))
    }
}

impl Server {
    /// Compares all images of a command, and then sets all.
    pub fn execute(&mut self, command: &Command, micros: u64) -> Answer {
        let Command { flight, client, reserved_ms } = command;
        let answer = |outcome| Answer { micros, outcome };
        let retention = Retention { slack_secs: crate::remote::SLACK_SECS, jitter_secs: 0 };
        if flight.latest.as_nanos() / 1_000 > micros {
            return answer(Outcome::Early);
        }
        let age = micros.saturating_sub(flight.earliest.as_nanos() / 1_000);
        if age > retention.slack_secs * 1_000_000 {
            return answer(Outcome::Late);
        }
        let millis = micros / 1_000;
        let present: Vec<Option<Value>> =
            flight.changes.iter().map(|change| self.value(&change.key, micros)).collect();
        let is_taken = |value: &Option<Value>| {
            let reserved = value.as_ref().and_then(|value| value.reserved);
            reserved
                .is_some_and(|(by, ends)| by != *client && ends > millis && ends < millis + MARK)
        };
        let image = |value: &Option<Value>| {
            value.as_ref().map_or_else(Image::new, |value| value.image.clone())
        };
        let differs = |(change, value)| {
            let change: &crate::engine::Change = change;
            image(value) != change.before
        };
        let pairs = || flight.changes.iter().zip(&present);
        if pairs().any(differs) || present.iter().any(is_taken) {
            let is_stale = pairs().any(|pair| differs(pair) && !pair.0.before.is_empty());
            if let Some((change, Some(value))) = pairs().find(|(_, value)| value.is_some())
                && is_stale
                && value.reserved.is_none()
            {
                let reserved = Some((*client, millis + reserved_ms));
                self.values.insert(change.key, Value { reserved, ..value.clone() });
            }
            return answer(Outcome::Lost(present.iter().map(image).collect()));
        }
        for (change, value) in pairs() {
            let is_marked = value.as_ref().is_some_and(|value| value.reserved.is_some());
            if change.after.is_empty() {
                self.set(change.key, None, micros);
            } else if change.after != image(value) || is_marked {
                let ends_secs = retention.ends(&change.after, &change.key).unwrap_or(0);
                let image = change.after.clone();
                self.set(change.key, Some(Value { image, ends_secs, reserved: None }), micros);
            }
        }
        answer(Outcome::Done)
    }

    /// The entry of a key.
    pub fn entry(&self, key: &Hashed, micros: u64) -> Option<Entry> {
        image::decode(&self.value(key, micros)?.image, key.class)
    }

    /// Forgets the changes since a time, as a replica that takes the place of its primary. Returns how many.
    pub fn forget_since(&mut self, micros: u64) -> usize {
        let from = self.log.partition_point(|(at, ..)| *at < micros);
        let forgotten = self.log.split_off(from);
        for (_, key, before) in forgotten.iter().rev() {
            match before {
                Some(value) => self.values.insert(*key, value.clone()),
                None => self.values.remove(key),
            };
        }
        forgotten.len()
    }

    fn value(&self, key: &Hashed, micros: u64) -> Option<Value> {
        let ends = |value: &Value| value.ends_secs.saturating_sub(self.forgets_early_secs);
        self.values.get(key).filter(|value| ends(value) > micros / 1_000_000).cloned()
    }

    fn set(&mut self, key: Hashed, value: Option<Value>, micros: u64) {
        let before = match value {
            Some(value) => self.values.insert(key, value),
            None => self.values.remove(&key),
        };
        self.log.push((micros, key, before));
        if self.log.len() > 2 * self.values.len() + 1_000 {
            let old = micros.saturating_sub(UNDONE_WITHIN);
            let from = self.log.partition_point(|(at, ..)| *at < old);
            self.log.drain(..from);
        }
    }
}
