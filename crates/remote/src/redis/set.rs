//! New counters, each by a SET of its own: less than half of what the script costs the server for a key.
//!
//! `SET NX` sets a key that has no value, as the script does for a flight of one key. `GETRANGE` after it reads the value of
//! a key that exists, so that the next try starts from that value; of a long value it reads the beginning. It is sent only
//! while keys turn out to exist now and then: without it the script has to read one that does. `TIME` comes last: if the
//! server has not reached the time of a decision by then, nobody gets its answer. The script does the rest: flights of
//! several keys, removals, slots that are moving, values that are no counters.

use super::open::{NO_TIME, micros};
use super::script::{Calls, KEPT, Outcome, image_of};
use crate::engine::{Cause, Flight};
use ::redis::{Cmd, ServerError, Value};
use std::sync::atomic::{AtomicU32, Ordering};
use tidegate_core::Timestamp;

/// So many flights read too, after one whose counter existed.
const READS_AFTER_LOSS: u32 = 1_024;

/// Whether counters that are taken for new have existed lately.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// The flights that are still to read.
    reads: AtomicU32,
}

// Relaxed: an independent number, and a flight more or less that reads does no harm.
impl Losses {
    /// Whether the next flights, so many, are to read.
    pub(super) fn reads(&self, flights: usize) -> bool {
        let flights = u32::try_from(flights).unwrap_or(u32::MAX);
        let reads = self.reads.load(Ordering::Relaxed);
        if reads > 0 {
            self.reads.store(reads.saturating_sub(flights), Ordering::Relaxed);
        }
        reads > 0
    }

    fn note(&self) {
        self.reads.store(READS_AFTER_LOSS, Ordering::Relaxed);
    }
}

/// The commands for one counter.
#[derive(Debug)]
pub(super) struct Commands {
    pub(super) set: Cmd,
    /// None if the counter is not read.
    pub(super) get: Option<Cmd>,
}

/// What the server says of a new counter.
#[derive(Debug, PartialEq)]
pub(super) enum Answer {
    /// At this time, in microseconds.
    Outcome(u64, Outcome),
    /// Only the script can tell.
    AskScript,
    Error(ServerError),
    Nonsense(Cause),
}

impl Calls {
    /// Whether a flight only makes one new counter.
    pub(super) fn is_new(flight: &Flight) -> bool {
        match &flight.changes[..] {
            [change] => {
                let goes_alone = !flight.by_script && !flight.is_asking;
                goes_alone && change.before.is_empty() && !change.after.is_empty()
            }
            _ => false,
        }
    }

    /// The commands for such a flight. None for any other.
    pub(super) fn set(&self, flight: &Flight, reads: bool) -> Option<Commands> {
        let change = flight.changes.first().filter(|_| Calls::is_new(flight))?;
        let end = self.retention.ends(&change.after, &change.key).unwrap_or(0);
        let name = self.name(&change.key);
        let mut set = Cmd::with_capacity(6, name.len() + change.after.len() + 24);
        set.arg("SET").arg(&name[..]).arg(&change.after[..]).arg("NX").arg("EXAT").arg(end);
        let get = reads.then(|| {
            let mut get = Cmd::with_capacity(4, name.len() + 16);
            get.arg("GETRANGE").arg(&name[..]).arg(0).arg(KEPT - 1);
            get
        });
        Some(Commands { set, get })
    }

    /// Reads the answers to them, and that to `TIME`.
    pub(super) fn answer(
        &self,
        flight: &Flight,
        (set, get): (&Value, Option<&Value>),
        time: &Value,
        losses: &Losses,
    ) -> Answer {
        let now = match (micros(time), time) {
            (Some(micros), _) => micros,
            (None, Value::ServerError(error)) => return Answer::Error(error.clone()),
            (None, _) => return Answer::Nonsense(Cause::new(NO_TIME)),
        };
        let in_micros = |time: Timestamp| time.as_nanos() / 1_000;
        let slack = self.retention.slack_secs * 1_000_000;
        if *set == Value::Nil {
            losses.note();
        }
        match (set, get) {
            (Value::Okay, _) if in_micros(flight.latest) > now => {
                Answer::Outcome(now, Outcome::Early)
            }
            (Value::Okay, _) if now.saturating_sub(in_micros(flight.earliest)) > slack => {
                Answer::Outcome(now, Outcome::Late)
            }
            (Value::Okay, _) => Answer::Outcome(now, Outcome::Done),
            (Value::Nil, Some(Value::BulkString(value))) if (1..KEPT).contains(&value.len()) => {
                Answer::Outcome(now, Outcome::Lost(vec![image_of(value)]))
            }
            // It was not read, has no value that a counter may have, or not any more, or nobody may read it so.
            (Value::Nil, None | Some(Value::BulkString(_) | Value::ServerError(_))) => {
                Answer::AskScript
            }
            (Value::ServerError(error), _) => Answer::Error(error.clone()),
            _ => Answer::Nonsense(Cause::new("the server answers SET with something else")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Change, FlightId};
    use crate::image::{Image, Retention};
    use std::sync::Arc;
    use tidegate_core::Timestamp;
    use tidegate_store::Hashed;

    const BEGAN: u64 = 1_000_000_000;

    fn change(number: u128, before: &[u8], after: &[u8]) -> Change {
        let key = Hashed::narrow(number);
        Change { key, before: Image::from_slice(before), after: Image::from_slice(after) }
    }

    /// A flight whose updates were run in this second.
    fn flight(changes: Vec<Change>) -> Flight {
        Flight {
            id: FlightId(1),
            latest: Timestamp::from_secs(BEGAN + 1),
            earliest: Timestamp::from_secs(BEGAN),
            changes: Arc::new(changes.into()),
            hops: 0,
            is_asking: false,
            by_script: false,
        }
    }

    fn calls() -> Calls {
        Calls {
            prefix: "a:".to_owned(),
            has_tags: false,
            retention: Retention { slack_secs: 10, jitter_secs: 0 },
            client: [7; 8],
            reserved_ms: 1,
            replicas: 0,
            replicas_ms: 1,
        }
    }

    /// The image of a state that expires at second 256.
    const IMAGE: &[u8] = &[1, 0, 1, 0, 0, 5];

    #[test]
    fn a_new_counter_is_set_to_expire() {
        let new = flight(vec![change(1, b"", IMAGE)]);
        let commands = |reads| calls().set(&new, reads).expect("commands");
        let name = [&b"a:"[..], &1_u128.to_be_bytes()].concat();
        let bulk =
            |bytes: &[u8]| [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat();
        let packed = |words: &[&[u8]]| {
            let words: Vec<Vec<u8>> = words.iter().map(|word| bulk(word)).collect();
            [format!("*{}\r\n", words.len()).into_bytes(), words.concat()].concat()
        };
        let set = packed(&[b"SET", &name, IMAGE, b"NX", b"EXAT", b"266"]);
        let get = packed(&[b"GETRANGE", &name, b"0", b"299"]);
        let reading = commands(true);
        assert_eq!(reading.set.get_packed_command(), set);
        assert_eq!(reading.get.map(|get| get.get_packed_command()), Some(get));
        assert_eq!(commands(false).set.get_packed_command(), set);
        assert!(commands(false).get.is_none());
    }

    #[test]
    fn counters_are_read_for_a_while_after_one_that_existed() {
        let losses = Losses::default();
        assert!(!losses.reads(1));
        losses.note();
        assert!(losses.reads(READS_AFTER_LOSS as usize - 1) && losses.reads(2));
        assert!(!losses.reads(1));
    }

    #[test]
    fn everything_else_goes_by_the_script() {
        let new = || flight(vec![change(1, b"", IMAGE)]);
        assert!(Calls::is_new(&new()));
        for other in [
            flight(vec![]),
            flight(vec![change(1, IMAGE, IMAGE)]),
            flight(vec![change(1, IMAGE, b"")]),
            flight(vec![change(1, b"", b"")]),
            flight(vec![change(1, b"", IMAGE), change(2, b"", IMAGE)]),
            Flight { is_asking: true, ..new() },
            Flight { by_script: true, ..new() },
        ] {
            assert!(!Calls::is_new(&other) && calls().set(&other, true).is_none(), "{other:?}");
        }
    }

    #[test]
    fn an_answer_tells_what_became_of_it() {
        let error = |line: &str| match ::redis::parse_redis_value(line.as_bytes()) {
            Ok(Value::ServerError(error)) => error,
            other => panic!("{other:?}"),
        };
        let bytes = |bytes: &[u8]| Value::BulkString(bytes.to_vec());
        let number = |number: u64| bytes(number.to_string().as_bytes());
        let answer = |set: Value, get: Value, time: Value| {
            let losses = Losses::default();
            let new = flight(vec![change(1, b"", IMAGE)]);
            let answer = calls().answer(&new, (&set, Some(&get)), &time, &losses);
            assert_eq!(losses.reads(1), set == Value::Nil && micros(&time).is_some());
            // What was read counts only for one that exists.
            let unread = calls().answer(&new, (&set, None), &time, &losses);
            if set == Value::Nil && micros(&time).is_some() {
                assert_eq!(unread, Answer::AskScript);
            } else {
                assert_eq!(unread, answer);
            }
            answer
        };
        let at = |secs: u64| Value::Array(vec![number(BEGAN + secs), number(5)]);
        let outcome = |secs: u64, outcome| Answer::Outcome((BEGAN + secs) * 1_000_000 + 5, outcome);
        let done = |secs: u64| answer(Value::Okay, bytes(IMAGE), at(secs));
        assert_eq!(done(0), outcome(0, Outcome::Early));
        assert_eq!(done(1), outcome(1, Outcome::Done));
        assert_eq!(done(9), outcome(9, Outcome::Done));
        assert_eq!(done(10), outcome(10, Outcome::Late));
        // The key is set, although this user may not read it.
        let refused = Value::ServerError(error("-NOPERM no\r\n"));
        assert_eq!(answer(Value::Okay, refused.clone(), at(1)), outcome(1, Outcome::Done));
        let exists = |value: &[u8]| answer(Value::Nil, bytes(value), at(1));
        let lost = |image: &[u8]| outcome(1, Outcome::Lost(vec![Image::from_slice(image)]));
        assert_eq!(exists(IMAGE), lost(IMAGE));
        let reserved = [&[2], &IMAGE[1..], &[7; 8], b"1700000000000"].concat();
        assert_eq!(exists(&reserved), lost(IMAGE));
        assert_eq!(exists(b""), Answer::AskScript);
        assert_eq!(exists(&[1; KEPT - 1]), lost(&[1; KEPT - 1]));
        assert_eq!(exists(&[1; KEPT]), Answer::AskScript);
        assert_eq!(answer(Value::Nil, refused, at(1)), Answer::AskScript);
        let list = Value::ServerError(error("-WRONGTYPE a list\r\n"));
        assert_eq!(answer(Value::Nil, list, at(1)), Answer::AskScript);
        for line in ["-ERR other\r\n", "-OOM no memory\r\n", "-MOVED 1 h:1\r\n"] {
            let refused = || Value::ServerError(error(line));
            assert_eq!(answer(refused(), refused(), at(1)), Answer::Error(error(line)));
        }
        let nonsense = |set, get, time| matches!(answer(set, get, time), Answer::Nonsense(_));
        assert!(nonsense(Value::Int(1), bytes(b""), at(1)));
        assert!(nonsense(Value::Nil, Value::Nil, at(1)));
        // Nobody knows the time of the changes.
        assert!(nonsense(Value::Okay, bytes(b""), Value::Nil));
        let loading = error("-LOADING the data\r\n");
        let time = Value::ServerError(loading.clone());
        assert_eq!(answer(Value::Okay, bytes(b""), time), Answer::Error(loading));
    }
}
