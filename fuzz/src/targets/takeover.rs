//! Takeover messages in both directions, over a real stream and with files: accepted messages match a simple
//! reader, no file stays open, and memory stays within the limit of a message.

use super::Target;
use crate::input::{Input, pieces};
use crate::memory::Meter;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::{Value, json};
use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use tidegate_process::fuzzing::{new_process, old_process};

pub(super) const TARGET: Target = Target { name: "takeover", run, seeds };

/// A message, one read, and the parsed JSON.
const MEMORY_MAX: usize = 1 << 20;
/// Far below the capacity of a stream without a reader, where each piece counts a kilobyte and more.
const BYTES_MAX: usize = 32 * 1024;
const PIECES_MAX: usize = 64;

fn run(input: &[u8]) {
    let mut input = Input(input);
    let (is_new, files, sizes) = (input.flag(), input.byte(), input.take(2));
    let bytes = input.take(BYTES_MAX);
    let open_before = open_files();
    let (stream, other) = UnixStream::pair().expect("a pair of streams");
    let sent = say(&other, bytes, files, sizes);
    other.shutdown(Shutdown::Write).expect("the stream is open");
    let meter = Meter::begin();
    let messages = messages(bytes);
    if is_new {
        if let Ok(places) = new_process(stream) {
            check_new(&places, &messages, sent);
        }
    } else {
        match old_process(stream) {
            Ok(taken) => assert_eq!(Some(taken), taken_by(&messages)),
            Err(error) => assert!(format!("{error:#}").len() < 128 * 1024),
        }
    }
    let peak = meter.peak();
    assert!(peak <= MEMORY_MAX, "{peak} bytes");
    drop(other);
    assert_eq!(open_files(), open_before, "files are left open");
}

/// Sends the bytes in pieces, with a file on each of the first ones. Returns the number of files sent.
fn say(stream: &UnixStream, bytes: &[u8], files: u8, sizes: &[u8]) -> usize {
    let file = File::open("/dev/null").expect("/dev/null opens");
    let (mut sent, mut rest) = (0, bytes);
    for (number, piece) in pieces(bytes, sizes).enumerate() {
        let mut piece = if number < PIECES_MAX { piece } else { rest };
        rest = &rest[piece.len()..];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds = [file.as_fd()];
        if number < usize::from(files) {
            assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
            sent += 1;
        }
        while !piece.is_empty() {
            let slices = [IoSlice::new(piece)];
            let written = sendmsg(stream, &slices, &mut control, SendFlags::DONTWAIT);
            piece = &piece[written.expect("the stream takes it")..];
            control.clear();
        }
        if rest.is_empty() {
            break;
        }
    }
    sent
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}

/// The values of the messages, up to the first invalid one.
fn messages(mut bytes: &[u8]) -> Vec<Value> {
    let mut found = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
        let length = u32::from_be_bytes(*length) as usize;
        let Some((text, rest)) = rest.split_at_checked(length) else { break };
        let Ok(value) = serde_json::from_slice(text) else { break };
        found.push(value);
        bytes = rest;
    }
    found
}

/// The value at a path of names or list positions, as a message may be written as either.
fn at<'a>(value: &'a Value, path: &[(&str, usize)]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, (name, place)| value.get(name).or_else(|| value.get(place)))
}

fn taken_by(messages: &[Value]) -> Option<Vec<usize>> {
    let version = at(messages.first()?, &[("Hello", 0), ("version", 0)])?;
    assert_eq!(version, &json!(1));
    let places = at(messages.get(1)?, &[("Serving", 0), ("places", 0)])?;
    places.as_array()?.iter().map(|place| usize::try_from(place.as_u64()?).ok()).collect()
}

fn check_new(places: &[(usize, &str, String)], messages: &[Value], sent: usize) {
    let (first, rest) = messages.split_first().expect("a first message");
    assert_eq!(at(first, &[("Sockets", 0), ("version", 0)]), Some(&json!(1)));
    let count = at(first, &[("Sockets", 0), ("count", 1)]).and_then(Value::as_u64);
    let count = usize::try_from(count.expect("a count")).expect("a small count");
    assert!(count <= 240 && count <= rest.len() && count <= sent, "{count} of {sent} files");
    let mut handed: Vec<(u64, &Value)> = Vec::new();
    for message in &rest[..count] {
        let place = at(message, &[("place", 0)]).and_then(Value::as_u64).expect("a place");
        if handed.last().is_none_or(|(last, _)| *last != place) {
            handed.push((place, message));
        }
    }
    assert_eq!(places.len(), handed.len());
    for ((number, door, _), (place, message)) in places.iter().zip(handed) {
        assert_eq!(*number as u64, place);
        let said = at(message, &[("door", 1)]).expect("a door");
        assert!(said == &json!(door) || said.get(door).is_some(), "{said}");
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let seed = |is_new: u8, files: u8, values: &[Value]| {
        let mut seed = vec![is_new, files, 255, 255];
        for value in values {
            let text = value.to_string();
            seed.extend((text.len() as u32).to_be_bytes());
            seed.extend(text.into_bytes());
        }
        seed
    };
    let hello = json!({"Hello": {"version": 1}});
    let handed = |place: usize, door: &str, address: &str| json!({"place": place, "door": door, "address": address});
    let sockets = |count: usize| json!({"Sockets": {"version": 1, "count": count}});
    vec![
        seed(0, 0, &[hello.clone(), json!({"Serving": {"places": [0, 2]}})]),
        seed(0, 0, &[json!({"Hello": {"version": 2}})]),
        seed(0, 0, &[hello]),
        seed(1, 9, &[sockets(0)]),
        seed(1, 9, &[sockets(1), handed(0, "grpc", "127.0.0.1:8081")]),
        seed(
            1,
            9,
            &[
                sockets(3),
                handed(0, "grpc", "127.0.0.1:8081"),
                handed(0, "grpc", "127.0.0.1:8081"),
                handed(1, "frs", "unix:/run/x.sock"),
            ],
        ),
        seed(1, 0, &[json!({"Refused": {"cause": "no"}})]),
    ]
}
