//! Answers that the owner hands in later.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::frame::{END_HEADERS, END_STREAM, HEADERS};
use crate::testing::{
    REQUEST, block, call, data, envelope, frame, headers_to, reset, settings, window_update,
};

const LATER: &str = "/test.Echo/Later";

/// A whole call that is answered later.
fn later(stream: u32, message: &[u8]) -> Vec<u8> {
    [headers_to(LATER, stream, 0), data(stream, END_STREAM, &envelope(message))].concat()
}

fn status(code: Code) -> Status {
    Status::new(code, "")
}

/// A connection with a large window, and pending calls on these streams.
fn with_pending(limits: Limits, streams: impl Iterator<Item = u32>) -> (Connection, Vec<CallId>) {
    let mut connection = greeted(limits);
    let mut service = Echo::default();
    connection.receive(&window_update(0, 1 << 24), &mut service).unwrap();
    for stream in streams {
        connection.receive(&later(stream, &stream.to_be_bytes()), &mut service).unwrap();
    }
    assert_eq!(take_output(&mut connection), []);
    (connection, service.later)
}

fn odd(count: u32) -> impl Iterator<Item = u32> {
    (0..count).map(|number| 2 * number + 1)
}

const DONE: &str = ":status: 200\ncontent-type: application/grpc\ngrpc-status: 0\n";

#[test]
fn thousands_are_answered_in_any_order_and_each_once() {
    const CALLS: u32 = 5_000;
    let limits = Limits {
        streams_max: CALLS,
        header_bytes_max: 1 << 20,
        buffered_bytes_max: 8 << 20,
        ..LIMITS
    };
    let (mut connection, ids) = with_pending(limits, odd(CALLS));
    assert_eq!((connection.calls(), connection.pending()), (5_000, 5_000));
    let is_reset = |index: usize| index % 3 == 1;
    let mut output = Vec::new();
    for turn in 0..ids.len() {
        // Visits every index once, in a scattered order. Some streams are reset before their answer, some
        // after it.
        let index = turn * 2_657 % ids.len();
        let to_reset = (turn + 700) * 2_657 % ids.len();
        if is_reset(to_reset) {
            said(&mut connection, &reset(ids[to_reset].stream));
        }
        let (id, message) = (ids[index], ids[index].stream.to_be_bytes());
        let was_reset = is_reset(index) && turn >= 700;
        assert_eq!(connection.answer(id, Ok(&message)), !was_reset, "call {index}");
        assert!(!connection.answer(id, Ok(&message)), "call {index}, again");
        output.extend(take_output(&mut connection));
    }
    assert_eq!((connection.calls(), connection.pending()), (0, 0));
    let mut answers: BTreeMap<u32, (String, Vec<u8>)> = BTreeMap::new();
    for (head, payload) in output {
        let (text, data) = answers.entry(head.stream).or_default();
        match head.kind {
            HEADERS => text.push_str(std::str::from_utf8(&payload).unwrap()),
            _ => data.extend(payload),
        }
    }
    assert!(answers.len() > 3_333 && answers.len() < 5_000, "{} were answered", answers.len());
    for (stream, (text, data)) in answers {
        assert_eq!((text.as_str(), data), (DONE, envelope(&stream.to_be_bytes())));
    }
}

/// A reset frees no work of the owner, so it allows no further call.
#[test]
fn calls_that_were_given_up_count_until_they_are_answered() {
    let (mut connection, ids) = with_pending(LIMITS, odd(10));
    said(&mut connection, &odd(10).flat_map(reset).collect::<Vec<u8>>());
    assert_eq!((connection.calls(), connection.pending()), (0, 10));
    assert_eq!(reset_of(&said(&mut connection, &call(21, b"x")), 21), Some(7));
    assert!(!connection.answer(ids[3], Ok(b"late")));
    assert_eq!(connection.pending(), 9);
    let frames = said(&mut connection, &[call(23, b"x"), call(25, b"y")].concat());
    assert_eq!(data_of(&frames, 23), envelope(b"x"));
    assert_eq!(data_of(&frames, 25), envelope(b"y"));
    connection.set_time(Duration::from_secs(9));
    connection.end_pending(Duration::from_secs(1), &status(Code::DeadlineExceeded));
    assert_eq!((connection.pending(), connection.pending_since()), (0, None));
    assert_eq!(take_output(&mut connection), []);
}

/// More resets than the budget for useless frames allows, each before the answer to its call.
#[test]
fn a_reset_of_a_pending_call_costs_no_budget_once_it_is_answered() {
    let mut connection = greeted(LIMITS);
    let mut service = Echo::default();
    for stream in odd(20_000) {
        connection.receive(&[later(stream, b"x"), reset(stream)].concat(), &mut service).unwrap();
        assert!(!connection.answer(service.later.pop().unwrap(), Ok(b"x")));
    }
    let mut connection = greeted(LIMITS);
    let given_up = odd(20_000).map(|stream| [later(stream, b"x"), reset(stream)].concat());
    let mut results = given_up.map(|input| connection.receive(&input, &mut service));
    let broken = results.find_map(Result::err).unwrap();
    assert_eq!(broken.code, ErrorCode::EnhanceYourCalm as u32);
    assert!(!connection.answer(service.later[0], Ok(b"x")), "after the end of the connection");
}

#[test]
fn a_drain_waits_for_pending_calls() {
    let (mut connection, ids) = with_pending(LIMITS, odd(2));
    connection.shut_down();
    said(&mut connection, &frame(frame::PING, frame::ACK, 0, &DRAIN_PING));
    connection.written(usize::MAX);
    assert!(!connection.is_done());
    assert!(connection.answer(ids[0], Ok(b"one")));
    assert!(!connection.is_done());
    said(&mut connection, &reset(3));
    assert!(connection.is_done(), "the answer to a call that was given up need not be awaited");
    assert!(!connection.answer(ids[1], Ok(b"two")));
    assert!(connection.is_done());
}

/// Delays of the owner are not the client's fault, and have a deadline of their own.
#[test]
fn the_owner_ends_what_is_pending_for_too_long() {
    let mut connection = greeted(LIMITS);
    let mut service = Echo::default();
    for (second, stream) in [(10, 1), (20, 3)] {
        connection.set_time(Duration::from_secs(second));
        connection.receive(&later(stream, b"x"), &mut service).unwrap();
    }
    let open = [headers_to(LATER, 5, 0), data(5, 0, &envelope(b"x"))].concat();
    connection.receive(&open, &mut service).unwrap();
    connection.set_time(Duration::from_secs(60));
    let late = status(Code::DeadlineExceeded);
    assert_eq!(connection.unfinished_since(), None);
    assert_eq!(connection.end_unfinished(Duration::from_secs(50), &late), Ok(()));
    assert_eq!(connection.pending_since(), Some(Duration::from_secs(10)));
    connection.end_pending(Duration::from_secs(11), &late);
    assert_eq!(connection.pending_since(), Some(Duration::from_secs(20)));
    let frames = take_output(&mut connection);
    assert!(headers_of(&frames, 1).ends_with("grpc-status: 4\n"));
    assert_eq!(frames.len(), 1);
    // After the answer, the client has to end its side in time.
    assert!(connection.answer(service.later[2], Ok(b"y")));
    assert_eq!(connection.unfinished_since(), Some(Duration::from_secs(60)));
    assert_eq!(connection.end_unfinished(Duration::from_secs(61), &late), Ok(()));
    let frames = take_output(&mut connection);
    assert_eq!((headers_of(&frames, 5).as_str(), reset_of(&frames, 5)), (DONE, Some(0)));
}

#[test]
fn a_late_answer_waits_for_windows_and_for_a_client_that_reads() {
    let (mut connection, ids) = with_pending(LIMITS, odd(4));
    said(&mut connection, &settings(&[(4, 0)]));
    let large = vec![b'x'; 600 << 10];
    for id in &ids[..2] {
        assert!(connection.answer(*id, Ok(&large)));
        assert_eq!(data_of(&take_output(&mut connection), id.stream), b"");
    }
    assert!(connection.answer(ids[2], Ok(&large)));
    let refused = headers_of(&take_output(&mut connection), 5);
    assert!(
        refused.ends_with("grpc-status: 8\ngrpc-message: the client does not read its answers\n")
    );
    assert!(connection.answer(ids[3], Err(status(Code::Unavailable))), "a status needs no window");
    assert!(headers_of(&take_output(&mut connection), 7).ends_with("grpc-status: 14\n"));
    let frames = said(&mut connection, &window_update(1, 1 << 20));
    assert_eq!(data_of(&frames, 1), envelope(&large));
    assert!(headers_of(&frames, 1).ends_with("grpc-status: 0\n"));
}

#[test]
fn a_pending_call_keeps_little_of_its_headers() {
    let limits = Limits {
        streams_max: 128,
        message_bytes_max: 1 << 20,
        header_bytes_max: 16 << 10,
        buffered_bytes_max: 8 << 20,
    };
    let mut connection = greeted(limits);
    let mut service = Echo::default();
    let (path, value) = (format!("{LATER}{}", "p".repeat(6_000)), "v".repeat(6_000));
    let fields = [REQUEST[0], REQUEST[1], (":path", &path), REQUEST[3], ("x", &value)];
    for stream in odd(128) {
        let headers = frame(HEADERS, END_HEADERS, stream, &block(&fields));
        let message = data(stream, END_STREAM, &envelope(&[b'm'; 10_000]));
        connection.receive(&[headers, message].concat(), &mut service).unwrap();
    }
    assert_eq!(connection.pending(), 128);
    assert!(
        connection.capacity_bytes() < 128 * 2048,
        "{} bytes are held",
        connection.capacity_bytes()
    );
}

/// An event of the client, of the owner, or of time.
#[derive(Debug, Clone)]
enum Event {
    Call {
        path: &'static str,
        ends: bool,
    },
    /// Of an open stream.
    End(prop::sample::Index),
    SecondMessage(prop::sample::Index),
    Reset(prop::sample::Index),
    /// For any call that was ever pending.
    Answer(prop::sample::Index, Result<(), Code>),
    Time,
    EndPending {
        seconds_ago: u64,
    },
    Drain,
}

fn any_event() -> impl Strategy<Value = Event> {
    let index = any::<prop::sample::Index>;
    let path = prop_oneof![3 => Just(LATER), 1 => Just("/test.Echo/Unary")];
    let answer = prop_oneof![2 => Just(Ok(())), 1 => Just(Err(Code::NotFound))];
    prop_oneof![
        12 => (path, any::<bool>()).prop_map(|(path, ends)| Event::Call { path, ends }),
        4 => index().prop_map(Event::End),
        1 => index().prop_map(Event::SecondMessage),
        4 => index().prop_map(Event::Reset),
        12 => (index(), answer).prop_map(|(index, answer)| Event::Answer(index, answer)),
        2 => Just(Event::Time),
        1 => (0_u64..5).prop_map(|seconds_ago| Event::EndPending { seconds_ago }),
        1 => Just(Event::Drain),
    ]
}

/// The slow twin of a connection.
#[derive(Debug, Default)]
struct Model {
    /// By stream: whether the client has ended it, and since when its call is pending.
    open: BTreeMap<u32, (bool, Option<u64>)>,
    /// Pending calls whose stream has closed.
    abandoned: BTreeMap<u32, u64>,
    is_drained: bool,
    now: u64,
    /// Expected output: `headers`, `data`, `end` with a status, `reset` with a code.
    sent: Vec<(u32, String)>,
}

impl Model {
    fn say(&mut self, stream: u32, what: &str) {
        self.sent.push((stream, what.to_owned()));
    }

    /// The server ends a call.
    fn end(&mut self, stream: u32, code: Code) {
        self.say(stream, &format!("end {}", code as u8));
        if let Some((false, _)) = self.open.remove(&stream) {
            self.say(stream, "reset 0");
        }
    }

    fn answer(&mut self, stream: u32, answer: Result<(), Code>) -> bool {
        let Some((ended, since @ Some(_))) = self.open.get_mut(&stream) else {
            self.abandoned.remove(&stream);
            return false;
        };
        *since = None;
        let has_ended = *ended;
        match answer {
            Ok(()) => {
                self.say(stream, "headers");
                self.say(stream, "data");
                if has_ended {
                    self.end(stream, Code::Ok);
                }
            }
            Err(code) => self.end(stream, code),
        }
        true
    }

    fn close(&mut self, stream: u32) {
        if let Some((_, Some(since))) = self.open.remove(&stream) {
            self.abandoned.insert(stream, since);
        }
    }
}

/// A connection and its model.
struct Pair {
    connection: Connection,
    service: Echo,
    model: Model,
    next_stream: u32,
}

impl Pair {
    fn receive(&mut self, input: &[u8]) {
        self.connection.receive(input, &mut self.service).unwrap();
    }

    /// Any open stream, or one that the client has not ended.
    fn pick(&self, index: prop::sample::Index, only_unended: bool) -> Option<u32> {
        let open = self.model.open.iter().filter(|(_, (ended, _))| !(only_unended && *ended));
        let open: Vec<u32> = open.map(|(stream, _)| *stream).collect();
        (!open.is_empty()).then(|| *index.get(&open))
    }

    fn call(&mut self, path: &'static str, ends: bool) {
        let stream = self.next_stream;
        self.next_stream += 2;
        let flags = if ends { END_STREAM } else { 0 };
        let message = data(stream, flags, &envelope(&stream.to_be_bytes()));
        self.receive(&[headers_to(path, stream, 0), message].concat());
        let model = &mut self.model;
        if model.is_drained {
            return;
        }
        if model.open.len() + model.abandoned.len() >= LIMITS.streams_max as usize {
            return model.say(stream, "reset 7");
        }
        model.open.insert(stream, (ends, Some(model.now)));
        if path != LATER {
            model.answer(stream, Ok(()));
        }
    }

    fn apply(&mut self, event: &Event) {
        match *event {
            Event::Call { path, ends } => self.call(path, ends),
            Event::End(index) => {
                let Some(stream) = self.pick(index, true) else { return };
                self.receive(&data(stream, END_STREAM, b""));
                let (ended, since) = self.model.open.get_mut(&stream).unwrap();
                *ended = true;
                if since.is_none() {
                    self.model.end(stream, Code::Ok);
                }
            }
            Event::SecondMessage(index) => {
                let Some(stream) = self.pick(index, true) else { return };
                self.receive(&data(stream, 0, &envelope(b"again")));
                self.model.say(stream, "end 12");
                self.model.say(stream, "reset 0");
                self.model.close(stream);
            }
            Event::Reset(index) => {
                let Some(stream) = self.pick(index, false) else { return };
                self.receive(&reset(stream));
                self.model.close(stream);
            }
            Event::Answer(index, answer) => {
                if self.service.later.is_empty() {
                    return;
                }
                let id = *index.get(&self.service.later);
                let bytes = id.stream.to_be_bytes();
                let handed_in = answer.map(|()| &bytes[..]).map_err(status);
                let is_sent = self.connection.answer(id, handed_in);
                assert_eq!(is_sent, self.model.answer(id.stream, answer));
            }
            Event::Time => {
                self.model.now += 1;
                self.connection.set_time(Duration::from_secs(self.model.now));
            }
            Event::EndPending { seconds_ago } => {
                let then = self.model.now.saturating_sub(seconds_ago);
                self.connection.end_pending(Duration::from_secs(then), &status(Code::Aborted));
                self.model.abandoned.retain(|_, since| *since >= then);
                let open = self.model.open.iter();
                let late = open.filter(|(_, (_, since))| since.is_some_and(|since| since < then));
                for stream in late.map(|(stream, _)| *stream).collect::<Vec<u32>>() {
                    self.model.answer(stream, Err(Code::Aborted));
                }
            }
            Event::Drain => {
                self.connection.shut_down();
                self.receive(&frame(frame::PING, frame::ACK, 0, &DRAIN_PING));
                self.model.is_drained = true;
            }
        }
    }

    fn compare(&mut self) {
        let mut sent = Vec::new();
        for (head, payload) in take_output(&mut self.connection) {
            let text = String::from_utf8_lossy(&payload);
            let status = text.lines().find_map(|line| line.strip_prefix("grpc-status: "));
            match (head.stream, head.kind) {
                (0, _) => {}
                (stream, HEADERS) => {
                    let end = status.map_or("headers".to_owned(), |code| format!("end {code}"));
                    sent.push((stream, end));
                }
                (stream, frame::DATA) => {
                    assert_eq!(payload, envelope(&stream.to_be_bytes()));
                    sent.push((stream, "data".to_owned()));
                }
                (stream, frame::RST_STREAM) => {
                    sent.push((stream, format!("reset {}", frame::word(&payload).unwrap())));
                }
                other => panic!("unexpected frame {other:?}"),
            }
        }
        assert_eq!(sent, std::mem::take(&mut self.model.sent));
        let model = &self.model;
        let since = model.open.values().filter_map(|(_, since)| *since);
        let since: Vec<u64> = since.chain(model.abandoned.values().copied()).collect();
        assert_eq!(self.connection.calls(), model.open.len());
        assert_eq!(self.connection.pending(), since.len());
        let oldest = since.into_iter().min().map(Duration::from_secs);
        assert_eq!(self.connection.pending_since(), oldest);
        assert_eq!(self.connection.is_done(), model.is_drained && model.open.is_empty());
    }
}

proptest! {
    #[test]
    fn calls_end_as_in_the_model(events in prop::collection::vec(any_event(), 0..120)) {
        let mut pair = Pair {
            connection: greeted(LIMITS),
            service: Echo::default(),
            model: Model::default(),
            next_stream: 1,
        };
        for event in &events {
            pair.apply(event);
            pair.compare();
        }
    }
}
