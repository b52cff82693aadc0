//! The script that compares and sets, its calls and its answers. A call has several flights, each with an outcome of its own.
//!
//! Refuses every answer that the script does not give.

use crate::engine::{Cause, Flight};
use crate::image::{IMAGE_MAX, Image, Retention};
use crate::seed::Seed;
use crate::slots::tag;
use ::redis::{Pipeline, Value, cmd};
use smallvec::SmallVec;
use tidegate_store::{Class, Hashed};

/// The script. Servers know it by its hash, once one client has loaded it.
pub(super) const SCRIPT: &str = include_str!("script.lua");

/// What the script's answer to a flight may take at most besides values, and for each value, in bytes.
const ANSWER_BYTES: usize = 1_024;
const VALUE_BYTES: usize = IMAGE_MAX + 64;

/// No value of a counter is as long; `KEPT` of the script.
pub(super) const KEPT: usize = 300;

/// The bytes of a reservation at the end of a value; `LEN` of the script.
const RESERVATION: usize = 21;

/// What stays the same in all calls.
#[derive(Debug, Clone)]
pub(super) struct Calls {
    pub(super) prefix: String,
    /// Whether names have a hash tag, as in a cluster.
    pub(super) has_tags: bool,
    pub(super) retention: Retention,
    /// The name of this client in reservations.
    pub(super) client: [u8; 8],
    /// For how long a reservation holds, in milliseconds.
    pub(super) reserved_ms: u64,
    /// How many replicas must have a change, and how long the server waits for them.
    pub(super) replicas: u32,
    pub(super) replicas_ms: u64,
}

/// The keys of one call. The server does nothing else for less than half a millisecond while it commits so many.
const CALL_KEYS: usize = 128;

/// The answer of the script, with the server's time in microseconds.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answers {
    pub(super) micros: u64,
    /// One for each flight.
    pub(super) outcomes: Vec<Outcome>,
}

/// What became of a flight.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Done,
    Lost(Vec<Image>),
    /// The server has not reached the time of the updates.
    Early,
    /// The time of an update is too long ago.
    Late,
    /// The key at this index had a value that is too long. It was removed.
    Damaged(usize),
}

impl Calls {
    /// The name of `key` in the server.
    pub(super) fn name(&self, key: &Hashed) -> SmallVec<[u8; 64]> {
        let mut name = SmallVec::with_capacity(self.prefix.len() + 23);
        name.extend_from_slice(self.prefix.as_bytes());
        if self.has_tags {
            name.push(b'{');
            name.extend_from_slice(&tag(key));
            name.push(b'}');
        }
        name.extend_from_slice(&key.hash.to_be_bytes());
        if key.class == Class::Wide {
            name.push(b'w');
        }
        name
    }

    pub(super) fn seed_name(&self) -> String {
        Seed::name(&self.prefix)
    }

    /// Adds a call of the script, by its `hash`, for these flights.
    pub(super) fn add(&self, pipeline: &mut Pipeline, hash: &str, flights: &[Flight]) {
        if is_asking(flights) {
            pipeline.add_command(cmd("ASKING"));
        }
        let changes = || flights.iter().flat_map(|flight| &*flight.changes);
        let mut call = cmd("EVALSHA");
        call.arg(hash).arg(changes().count());
        for change in changes() {
            call.arg(&self.name(&change.key)[..]);
        }
        let micros = |time: tidegate_core::Timestamp| time.as_nanos() / 1_000;
        call.arg(self.retention.slack_secs * 1_000_000);
        call.arg(&self.client[..]).arg(self.reserved_ms);
        for flight in flights {
            call.arg(flight.changes.len()).arg(micros(flight.latest)).arg(micros(flight.earliest));
            for change in &*flight.changes {
                let end = self.retention.ends(&change.after, &change.key).unwrap_or(0);
                call.arg(&change.before[..]).arg(&change.after[..]).arg(end);
            }
        }
        pipeline.add_command(call);
    }

    /// The flights of each call of the script. In a cluster each has its own: it may have another slot than the next
    /// one, and may have to go on to another server.
    pub(super) fn of<'f>(
        &self,
        flights: &'f [Flight],
    ) -> impl Iterator<Item = &'f [Flight]> + use<'f> {
        calls_of(flights, if self.has_tags { 0 } else { CALL_KEYS })
    }

    /// The bytes that the answer to `flight` may have.
    pub(super) fn answer_bytes_max(flight: &Flight) -> usize {
        ANSWER_BYTES + flight.changes.len() * VALUE_BYTES
    }
}

/// The key with this name, with or without a hash tag. None if it is the name of something else.
pub(super) fn key_of(prefix: &str, name: &[u8]) -> Option<Hashed> {
    let name = name.strip_prefix(prefix.as_bytes())?;
    let (own_tag, (hash, class)) = match name {
        [b'{', a, b, c, d, b'}', rest @ ..] if rest.len() >= 16 => {
            (Some([*a, *b, *c, *d]), rest.split_first_chunk()?)
        }
        _ => (None, name.split_first_chunk()?),
    };
    let hash = u128::from_be_bytes(*hash);
    let key = match class {
        [] => Hashed::narrow(hash),
        [b'w'] => Hashed::wide(hash),
        _ => return None,
    };
    own_tag.is_none_or(|own| own == tag(&key)).then_some(key)
}

/// A value without the reservation that it may have.
pub(super) fn image_of(value: &[u8]) -> Image {
    match value.split_first() {
        Some((2, rest)) if value.len() > RESERVATION => {
            let mut image = Image::from_slice(&[1]);
            image.extend_from_slice(&rest[..rest.len() - RESERVATION]);
            image
        }
        _ => Image::from_slice(value),
    }
}

/// Whether the server is asked for a slot that is on its way to it.
pub(super) fn is_asking(call: &[Flight]) -> bool {
    call.iter().any(|flight| flight.is_asking)
}

/// The flights of each call of the script, which are as many as have room for so many keys.
fn calls_of(flights: &[Flight], keys_max: usize) -> impl Iterator<Item = &[Flight]> {
    let mut rest = flights;
    std::iter::from_fn(move || {
        let mut keys = 0;
        let has_room = |flight: &&Flight| {
            keys += flight.changes.len();
            keys <= keys_max
        };
        let count = rest.iter().take_while(has_room).count().max(1).min(rest.len());
        let (call, others) = rest.split_at(count);
        rest = others;
        (!call.is_empty()).then_some(call)
    })
}

impl Answers {
    /// Reads an answer to flights with so many keys each.
    pub(super) fn read(
        value: Value,
        keys: impl ExactSizeIterator<Item = usize>,
    ) -> Result<Answers, Cause> {
        let nonsense = || Cause::new("the server answers the script with something else");
        let Value::Array(parts) = value else { return Err(nonsense()) };
        if parts.len() != keys.len() + 1 {
            return Err(nonsense());
        }
        let mut parts = parts.into_iter();
        let micros = parts.next().as_ref().and_then(number).ok_or_else(nonsense)?;
        let outcomes: Option<Vec<Outcome>> =
            parts.zip(keys).map(|(part, keys)| Outcome::read(part, keys)).collect();
        Ok(Answers { micros, outcomes: outcomes.ok_or_else(nonsense)? })
    }
}

impl Outcome {
    fn read(value: Value, keys: usize) -> Option<Outcome> {
        let parts = match value {
            Value::Array(parts) => parts,
            kind => {
                return match number(&kind)? {
                    0 => Some(Outcome::Done),
                    2 => Some(Outcome::Early),
                    3 => Some(Outcome::Late),
                    _ => None,
                };
            }
        };
        let mut parts = parts.into_iter();
        let outcome = match number(&parts.next()?)? {
            1 => {
                let images = parts.by_ref().map(|part| match part {
                    Value::BulkString(bytes) => Some(Image::from_vec(bytes)),
                    _ => None,
                });
                let images: Vec<Image> = images.collect::<Option<_>>()?;
                (images.len() == keys).then_some(Outcome::Lost(images))?
            }
            4 => {
                let index = usize::try_from(number(&parts.next()?)?.checked_sub(1)?).ok()?;
                (index < keys).then_some(Outcome::Damaged(index))?
            }
            _ => return None,
        };
        parts.next().is_none().then_some(outcome)
    }
}

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Change, FlightId};
    use std::sync::Arc;

    fn check(parts: Vec<Value>, expected: Option<Vec<Outcome>>) {
        let shown = format!("{parts:?}");
        let read = Answers::read(Value::Array(parts), [2, 1].into_iter()).ok();
        let expected = expected.map(|outcomes| Answers { micros: 7, outcomes });
        assert_eq!(read, expected, "{shown}");
    }

    fn calls(has_tags: bool) -> Calls {
        Calls {
            prefix: "a:".to_owned(),
            has_tags,
            retention: Retention { slack_secs: 0, jitter_secs: 0 },
            client: [7; 8],
            reserved_ms: 1,
            replicas: 0,
            replicas_ms: 1,
        }
    }

    #[test]
    fn names_and_values_are_read_back() {
        for has_tags in [false, true] {
            let calls = calls(has_tags);
            for key in [Hashed::narrow(5), Hashed::wide(u128::MAX)] {
                assert_eq!(key_of("a:", &calls.name(&key)), Some(key));
                assert_eq!(key_of("a", &calls.name(&key)), None);
            }
            assert_eq!(key_of("a:", calls.seed_name().as_bytes()), None);
        }
        // The tag of another key.
        let name = [&b"a:{0006}"[..], &5_u128.to_be_bytes()].concat();
        assert_eq!(key_of("a:", &name), None);
        let reserved = [&[2, 9, 8, 7][..], &[7; 8], b"1700000000000"].concat();
        assert_eq!(image_of(&reserved)[..], [1, 9, 8, 7]);
        assert_eq!(image_of(&[1, 9, 8, 7])[..], [1, 9, 8, 7]);
        assert_eq!(image_of(&[2, 9])[..], [2, 9]);
    }

    #[test]
    fn answers_that_the_script_does_not_give_are_refused() {
        let (int, bytes) = (Value::Int, |bytes: &[u8]| Value::BulkString(bytes.to_vec()));
        let array = Value::Array;
        let image = Image::from_slice(b"a");
        check(vec![int(7), int(0), int(2)], Some(vec![Outcome::Done, Outcome::Early]));
        check(
            vec![int(7), array(vec![int(1), bytes(b"a"), bytes(b"")]), int(3)],
            Some(vec![Outcome::Lost(vec![image, Image::new()]), Outcome::Late]),
        );
        check(
            vec![int(7), array(vec![int(4), int(2)]), int(0)],
            Some(vec![Outcome::Damaged(1), Outcome::Done]),
        );
        check(vec![], None);
        check(vec![int(7)], None);
        check(vec![int(7), int(0)], None);
        check(vec![int(-7), int(0), int(0)], None);
        check(vec![int(7), int(0), int(0), int(0)], None);
        for refused in [
            int(1),
            int(4),
            int(5),
            bytes(b"0"),
            array(vec![]),
            array(vec![int(0)]),
            array(vec![int(1), bytes(b"a")]),
            array(vec![int(1), bytes(b"a"), bytes(b"b"), bytes(b"c")]),
            array(vec![int(1), bytes(b"a"), Value::Nil]),
            array(vec![int(4), int(0)]),
            array(vec![int(4), int(3)]),
            array(vec![int(4), int(1), int(1)]),
        ] {
            check(vec![int(7), refused, int(0)], None);
        }
        assert!(Answers::read(Value::Okay, [2].into_iter()).is_err());
    }

    #[test]
    fn a_call_has_flights_of_so_many_keys_and_at_least_one() {
        let flight = |number: u64, keys: usize| {
            let change = |key: usize| {
                let key = Hashed::narrow(u128::from(number) << 64 | key as u128);
                Change { key, before: Image::new(), after: Image::new() }
            };
            let (latest, earliest) = Default::default();
            let changes = Arc::new((0..keys).map(change).collect());
            let (hops, is_asking) = (0, false);
            Flight {
                id: FlightId(number),
                latest,
                earliest,
                changes,
                hops,
                is_asking,
                by_script: true,
            }
        };
        let check_for = |has_tags: bool, keys: &[usize], expected: &[usize]| {
            let flights: Vec<Flight> =
                (0..).zip(keys).map(|(number, keys)| flight(number, *keys)).collect();
            let calls: Vec<usize> = calls(has_tags).of(&flights).map(<[Flight]>::len).collect();
            assert_eq!(calls, expected, "{keys:?}");
        };
        let check = |keys: &[usize], expected: &[usize]| check_for(false, keys, expected);
        check(&[], &[]);
        check(&[2], &[1]);
        check(&[2; 130], &[64, 64, 2]);
        check(&[200, 2, 126, 1, 200], &[1, 2, 1, 1]);
        // Each may have another slot in a cluster.
        check_for(true, &[2, 2, 200], &[1, 1, 1]);
    }
}
