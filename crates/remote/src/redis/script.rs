//! The script that compares and sets, its call and its answer.
//!
//! Refuses every answer that the script does not give.

use crate::engine::{Cause, Flight};
use crate::image::{IMAGE_MAX, Image, Retention};
use ::redis::{Pipeline, Value, cmd};
use tidegate_store::{Class, Hashed};

/// The script. Servers know it by its hash, once one client has loaded it.
pub(super) const SCRIPT: &str = include_str!("script.lua");

/// What the script's answer to a flight may take at most besides values, and for each value, in bytes.
const ANSWER_BYTES: usize = 1_024;
const VALUE_BYTES: usize = IMAGE_MAX + 64;

/// What stays the same in all calls.
#[derive(Debug, Clone)]
pub(super) struct Calls {
    pub(super) prefix: String,
    pub(super) retention: Retention,
    /// The name of this client in reservations.
    pub(super) client: [u8; 8],
    /// For how long a reservation holds, in milliseconds.
    pub(super) reserved_ms: u64,
}

/// The answer of the script, with the server's time in microseconds.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) micros: u64,
    pub(super) outcome: Outcome,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    Lost(Vec<Image>),
    /// The server has not reached the time of the updates.
    Early,
    /// The time of an update is too long ago.
    Late,
    /// The key at this index had a value that is too long, or of another type. It was removed.
    Damaged(usize),
}

impl Calls {
    /// The name of `key` in the server.
    pub(super) fn name(&self, key: &Hashed) -> Vec<u8> {
        let mut name = Vec::with_capacity(self.prefix.len() + 17);
        name.extend_from_slice(self.prefix.as_bytes());
        name.extend_from_slice(&key.hash.to_be_bytes());
        if key.class == Class::Wide {
            name.push(b'w');
        }
        name
    }

    pub(super) fn seed_name(&self) -> String {
        format!("{}seed", self.prefix)
    }

    /// Adds the call of the script, by its `hash`, for `flight`.
    pub(super) fn add(&self, pipeline: &mut Pipeline, hash: &str, flight: &Flight) {
        let mut call = cmd("EVALSHA");
        call.arg(hash).arg(flight.changes.len());
        for change in &*flight.changes {
            call.arg(self.name(&change.key));
        }
        let micros = |time: tidegate_core::Timestamp| time.as_nanos() / 1_000;
        call.arg(micros(flight.latest)).arg(micros(flight.earliest));
        call.arg(self.retention.slack_secs * 1_000_000);
        call.arg(&self.client[..]).arg(self.reserved_ms);
        for change in &*flight.changes {
            let end = self.retention.ends(&change.after, &change.key).unwrap_or(0);
            call.arg(&change.before[..]).arg(&change.after[..]).arg(end);
        }
        pipeline.add_command(call);
    }

    /// The bytes that the answer to `flight` may have.
    pub(super) fn answer_bytes_max(flight: &Flight) -> usize {
        ANSWER_BYTES + flight.changes.len() * VALUE_BYTES
    }
}

impl Answer {
    /// Reads an answer to a flight with so many keys.
    pub(super) fn read(value: Value, keys: usize) -> Result<Answer, Cause> {
        let nonsense = || Cause::new("the server answers the script with something else");
        let Value::Array(parts) = value else { return Err(nonsense()) };
        let mut parts = parts.into_iter();
        let mut number = || match parts.next() {
            Some(Value::Int(number)) => u64::try_from(number).ok(),
            _ => None,
        };
        let (Some(kind), Some(micros)) = (number(), number()) else { return Err(nonsense()) };
        let outcome = match kind {
            0 => Outcome::Done,
            1 => {
                let images = parts.by_ref().map(|part| match part {
                    Value::BulkString(bytes) => Some(Image::from_vec(bytes)),
                    _ => None,
                });
                let images: Option<Vec<Image>> = images.collect();
                Outcome::Lost(images.filter(|images| images.len() == keys).ok_or_else(nonsense)?)
            }
            2 => Outcome::Early,
            3 => Outcome::Late,
            4 => {
                let index = number().and_then(|index| usize::try_from(index.checked_sub(1)?).ok());
                Outcome::Damaged(index.filter(|index| *index < keys).ok_or_else(nonsense)?)
            }
            _ => return Err(nonsense()),
        };
        match parts.next() {
            None => Ok(Answer { micros, outcome }),
            Some(_) => Err(nonsense()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(parts: Vec<Value>, expected: Option<Outcome>) {
        let shown = format!("{parts:?}");
        let read = Answer::read(Value::Array(parts), 2).ok();
        let expected = expected.map(|outcome| Answer { micros: 7, outcome });
        assert_eq!(read, expected, "{shown}");
    }

    #[test]
    fn answers_that_the_script_does_not_give_are_refused() {
        let (int, bytes) = (Value::Int, |bytes: &[u8]| Value::BulkString(bytes.to_vec()));
        let image = Image::from_slice(b"a");
        check(vec![int(0), int(7)], Some(Outcome::Done));
        check(
            vec![int(1), int(7), bytes(b"a"), bytes(b"")],
            Some(Outcome::Lost(vec![image, Image::new()])),
        );
        check(vec![int(2), int(7)], Some(Outcome::Early));
        check(vec![int(3), int(7)], Some(Outcome::Late));
        check(vec![int(4), int(7), int(2)], Some(Outcome::Damaged(1)));
        for refused in [
            vec![],
            vec![int(0)],
            vec![int(0), int(-7)],
            vec![int(0), int(7), int(7)],
            vec![int(1), int(7), bytes(b"a")],
            vec![int(1), int(7), bytes(b"a"), bytes(b"b"), bytes(b"c")],
            vec![int(1), int(7), bytes(b"a"), Value::Nil],
            vec![int(4), int(7), int(0)],
            vec![int(4), int(7), int(3)],
            vec![int(5), int(7)],
            vec![bytes(b"0"), int(7)],
        ] {
            check(refused, None);
        }
        assert!(Answer::read(Value::Okay, 2).is_err());
    }
}
