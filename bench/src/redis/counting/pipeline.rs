//! The commands of one connection to Redis and their replies, in order, without its socket.

use anyhow::{Context, bail};
use std::collections::VecDeque;
use std::io::Write;
use tidegate_core::Request;

/// What is counted in one window of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    /// Its start, in seconds since the epoch.
    pub(super) start: u64,
    pub(super) seconds: u64,
}

/// Replies to a descriptor's commands.
const REPLIES: usize = 2;

/// The state of a connection. A call is named by a `T`.
#[derive(Debug)]
pub(super) struct Pipeline<T> {
    unsent: Vec<u8>,
    /// In the order of their commands.
    calls: VecDeque<Pending<T>>,
    /// A part of a reply.
    partial: Vec<u8>,
    key: Vec<u8>,
}

/// A call whose replies have not all arrived.
#[derive(Debug)]
struct Pending<T> {
    call: T,
    replies: usize,
    counts: Vec<u64>,
    error: Option<String>,
}

/// The hits of each descriptor in its window, or the first error reply.
pub(super) type Counts = Result<Vec<u64>, String>;

impl<T> Pipeline<T> {
    pub(super) fn new() -> Pipeline<T> {
        let (unsent, partial, key) = (Vec::new(), Vec::new(), Vec::new());
        Pipeline { unsent, calls: VecDeque::new(), partial, key }
    }

    /// Adds INCRBY and EXPIRE for each descriptor. Returns whether nothing else waits to be sent.
    pub(super) fn add(&mut self, call: T, request: &Request, window: Window) -> bool {
        let is_first = self.unsent.is_empty();
        for descriptor in &request.descriptors {
            self.key.clear();
            self.key.extend_from_slice(request.domain.as_bytes());
            for entry in &descriptor.entries {
                for part in [&entry.key, &entry.value] {
                    self.key.push(b'_');
                    self.key.extend_from_slice(part.as_bytes());
                }
            }
            let _ = write!(self.key, "_{}", window.start);
            let hits = descriptor.hits.unwrap_or(request.hits).get();
            command("INCRBY", &self.key, hits, &mut self.unsent);
            command("EXPIRE", &self.key, window.seconds, &mut self.unsent);
        }
        let replies = REPLIES * request.descriptors.len();
        let counts = Vec::with_capacity(request.descriptors.len());
        self.calls.push_back(Pending { call, replies, counts, error: None });
        is_first
    }

    /// The bytes to send; `spare` takes their place.
    pub(super) fn take_unsent(&mut self, spare: Vec<u8>) -> Vec<u8> {
        std::mem::replace(&mut self.unsent, spare)
    }

    /// Takes what has arrived, and passes on each call whose replies are complete.
    ///
    /// # Errors
    /// When a reply is neither an integer nor an error, or belongs to no command.
    pub(super) fn receive(
        &mut self,
        bytes: &[u8],
        mut counted: impl FnMut(T, Counts),
    ) -> anyhow::Result<()> {
        let mut input = std::mem::take(&mut self.partial);
        input.extend_from_slice(bytes);
        let mut rest = input.as_slice();
        while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
            let (line, after) = rest.split_at(end + 1);
            rest = after;
            self.reply(line.trim_ascii_end(), &mut counted)?;
        }
        let used = input.len() - rest.len();
        input.drain(..used);
        self.partial = input;
        Ok(())
    }

    fn reply(&mut self, line: &[u8], counted: &mut impl FnMut(T, Counts)) -> anyhow::Result<()> {
        let pending = self.calls.front_mut().context("a reply to no command")?;
        match line.split_first() {
            Some((b':', number)) => {
                // The replies to EXPIRE say nothing.
                if pending.replies.is_multiple_of(REPLIES) {
                    pending.counts.push(std::str::from_utf8(number)?.parse()?);
                }
            }
            Some((b'-', error)) => {
                let error = String::from_utf8_lossy(error).into_owned();
                pending.error.get_or_insert(error);
            }
            _ => bail!("an unknown reply: {:?}", String::from_utf8_lossy(line)),
        }
        pending.replies -= 1;
        if pending.replies == 0
            && let Some(Pending { call, counts, error, .. }) = self.calls.pop_front()
        {
            counted(call, error.map_or(Ok(counts), Err));
        }
        Ok(())
    }
}

fn command(name: &str, key: &[u8], number: u64, bytes: &mut Vec<u8>) {
    let digits = number.checked_ilog10().unwrap_or(0) + 1;
    // Writing to a vector cannot fail.
    let _ = write!(bytes, "*3\r\n$6\r\n{name}\r\n${}\r\n", key.len());
    bytes.extend_from_slice(key);
    let _ = write!(bytes, "\r\n${digits}\r\n{number}\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::{Descriptor, Entry, Hits};

    const WINDOW: Window = Window { start: 120, seconds: 60 };

    fn request(values: &[&str], hits: u64) -> Request {
        let descriptor = |value: &&str| Descriptor::new(vec![Entry::new("user", *value)]);
        let descriptors = values.iter().map(descriptor).collect();
        Request { domain: "shop".to_owned(), descriptors, hits: Hits::new(hits) }
    }

    #[test]
    fn commands_are_those_of_the_protocol() {
        let mut pipeline = Pipeline::new();
        assert!(pipeline.add((), &request(&["a"], 10), WINDOW));
        assert!(!pipeline.add((), &request(&["b"], 1), WINDOW));
        let sent = String::from_utf8(pipeline.take_unsent(Vec::new())).unwrap();
        let of = |key: &str, hits: &str| {
            format!(
                "*3\r\n$6\r\nINCRBY\r\n$15\r\n{key}\r\n${}\r\n{hits}\r\n\
                 *3\r\n$6\r\nEXPIRE\r\n$15\r\n{key}\r\n$2\r\n60\r\n",
                hits.len()
            )
        };
        assert_eq!(sent, of("shop_user_a_120", "10") + &of("shop_user_b_120", "1"));
        assert!(pipeline.add((), &request(&["c"], 1), WINDOW), "all was sent");
    }

    #[test]
    fn replies_end_calls_in_order_wherever_they_are_cut() {
        let replies = b":1\r\n:1\r\n:42\r\n:0\r\n:7\r\n:1\r\n-ERR full\r\n-ERR no\r\n";
        for size in 1..=replies.len() {
            let mut pipeline = Pipeline::new();
            for (call, values) in [&["a"][..], &["b", "c"], &["d"]].into_iter().enumerate() {
                pipeline.add(call, &request(values, 1), WINDOW);
            }
            let mut ended = Vec::new();
            for part in replies.chunks(size) {
                pipeline.receive(part, |call, counts| ended.push((call, counts))).unwrap();
            }
            let expected =
                [(0, Ok(vec![1])), (1, Ok(vec![42, 7])), (2, Err("ERR full".to_owned()))];
            assert_eq!(ended, expected, "in parts of {size} bytes");
        }
    }

    #[test]
    fn other_replies_are_errors() {
        #[track_caller]
        fn check(reply: &str, expected: &str) {
            let mut pipeline = Pipeline::new();
            pipeline.add((), &request(&["a"], 1), WINDOW);
            let error = pipeline.receive(reply.as_bytes(), |(), _| {}).unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
        check("+OK\r\n", "an unknown reply: \"+OK\"");
        check(":x\r\n", "invalid digit found in string");
        check(":1\r\n:1\r\n:1\r\n", "a reply to no command");
    }
}
