//! One connection: commands out, answers in, in the same order.
//!
//! Keeps what it has read of the first unfinished answer and of the first unfinished request, and nothing more: a server
//! that sends more than it was asked for breaks its connection. Knows no deadline; a caller that gives up closes the
//! connection.

use super::protocol::{self, Answer};
use crate::engine::Cause;
use crate::stream::Stream;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// The bytes that are read at once.
const CHUNK: usize = 16 * 1024;
/// The requests that wait to be written.
const QUEUE: usize = 16;
/// The lines of `stats`; servers have some 90.
const LINES_MAX: usize = 1_024;

/// Which answers a request has.
#[derive(Debug, Clone, Copy)]
pub(super) enum Expected {
    /// One for each command, whose numbers follow each other from `first` on.
    Numbered { first: u32, count: usize },
    /// One without a number.
    One,
    /// Lines up to `END`.
    Lines,
}

struct Request {
    bytes: Vec<u8>,
    pending: Pending,
}

/// A request that was sent.
struct Pending {
    expected: Expected,
    answers: Vec<Answer>,
    reply: oneshot::Sender<Vec<Answer>>,
}

/// A connection. When the last of its clones is dropped, it is closed.
#[derive(Clone)]
pub(super) struct Wire(mpsc::Sender<Request>);

/// The task of a connection. It returns why the connection was closed.
pub(super) struct Driving(pub(super) JoinHandle<Cause>);

impl Drop for Driving {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Wire {
    pub(super) fn start(stream: Box<dyn Stream>) -> (Wire, Driving) {
        let (requests, receive) = mpsc::channel(QUEUE);
        (Wire(requests), Driving(tokio::spawn(drive(stream, receive))))
    }

    /// The answers to a request; none if the connection is closed.
    pub(super) async fn ask(&self, bytes: Vec<u8>, expected: Expected) -> Option<Vec<Answer>> {
        let (reply, answers) = oneshot::channel();
        let pending = Pending { expected, answers: Vec::new(), reply };
        self.0.send(Request { bytes, pending }).await.ok()?;
        answers.await.ok()
    }
}

type Queue = Mutex<VecDeque<Pending>>;

async fn drive(stream: Box<dyn Stream>, requests: mpsc::Receiver<Request>) -> Cause {
    let (reader, writer) = tokio::io::split(stream);
    let pending = Queue::default();
    tokio::select! {
        cause = send(writer, requests, &pending) => cause,
        cause = receive(reader, &pending) => cause,
    }
}

async fn send(
    mut writer: WriteHalf<Box<dyn Stream>>,
    mut requests: mpsc::Receiver<Request>,
    queue: &Queue,
) -> Cause {
    while let Some(Request { bytes, pending }) = requests.recv().await {
        queue.lock().unwrap_or_else(PoisonError::into_inner).push_back(pending);
        let written = match writer.write_all(&bytes).await {
            Ok(()) => writer.flush().await,
            Err(error) => Err(error),
        };
        if let Err(error) = written {
            return Cause::new(&error.to_string());
        }
    }
    Cause::new("the connection is not used any more")
}

async fn receive(mut reader: ReadHalf<Box<dyn Stream>>, queue: &Queue) -> Cause {
    let (mut bytes, mut chunk) = (Vec::new(), vec![0; CHUNK]);
    loop {
        match reader.read(&mut chunk).await {
            Ok(0) => return Cause::new("the server has closed the connection"),
            Ok(read) => bytes.extend_from_slice(chunk.get(..read).unwrap_or_default()),
            Err(error) => return Cause::new(&error.to_string()),
        }
        match settle(&bytes, &mut queue.lock().unwrap_or_else(PoisonError::into_inner)) {
            Ok(used) => drop(bytes.drain(..used)),
            Err(why) => {
                return Cause::new(&format!("the server gives an answer without sense: {why}"));
            }
        }
        if bytes.is_empty() && bytes.capacity() > CHUNK {
            // A long value is rare.
            bytes = Vec::new();
        }
    }
}

/// Passes all complete answers on. Returns how many bytes they take.
fn settle(bytes: &[u8], queue: &mut VecDeque<Pending>) -> Result<usize, &'static str> {
    let mut used = 0;
    while let Some((answer, number, length)) =
        protocol::read(bytes.get(used..).unwrap_or_default())?
    {
        used += length;
        let pending = queue.front_mut().ok_or("nobody has asked for it")?;
        if pending.takes(answer, number)?
            && let Some(pending) = queue.pop_front()
        {
            // Nobody waits any more if the deadline has passed.
            let _ = pending.reply.send(pending.answers);
        }
    }
    Ok(used)
}

impl Pending {
    /// Takes an answer, and says whether it is the last.
    fn takes(&mut self, answer: Answer, number: Option<u32>) -> Result<bool, &'static str> {
        let index = self.answers.len();
        let is_last = match self.expected {
            Expected::Numbered { first, count } => {
                let expected =
                    u32::try_from(index).map_or(first, |index| first.wrapping_add(index));
                // Errors have no number.
                if number.is_some_and(|number| number != expected) {
                    return Err("it is of another command");
                }
                index + 1 == count
            }
            Expected::One => true,
            Expected::Lines if index == LINES_MAX => return Err("it has too many lines"),
            Expected::Lines => !matches!(answer, Answer::Stat(..)),
        };
        self.answers.push(answer);
        Ok(is_last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answers to two commands and one `stats` after so many bytes, or why there are none.
    #[track_caller]
    fn check(bytes: &[u8], expected: Result<&[usize], &str>) {
        let mut queue = VecDeque::new();
        let mut replies = Vec::new();
        for expected in [Expected::Numbered { first: 7, count: 2 }, Expected::Lines] {
            let (reply, receive) = oneshot::channel();
            queue.push_back(Pending { expected, answers: Vec::new(), reply });
            replies.push(receive);
        }
        let settled = settle(bytes, &mut queue).map(|_| {
            replies
                .iter_mut()
                .filter_map(|reply| reply.try_recv().ok())
                .map(|all| all.len())
                .collect()
        });
        let shown = String::from_utf8_lossy(bytes);
        assert_eq!(settled.as_ref().map(Vec::as_slice).map_err(|why| *why), expected, "{shown:?}");
    }

    #[test]
    fn answers_go_to_their_requests() {
        check(b"HD c1 O7\r\n", Ok(&[]));
        check(b"HD c1 O7\r\nVA 1 c2 O8\r\na\r\nSTAT a", Ok(&[2]));
        check(b"HD c1 O7\r\nSERVER_ERROR no\r\nSTAT a 1\r\nSTAT b 2\r\nEND\r\n", Ok(&[2, 3]));
        check(b"ERROR\r\nERROR\r\nERROR\r\n", Ok(&[2, 1]));
    }

    #[test]
    fn answers_that_nobody_has_asked_for_are_refused() {
        check(b"HD c1 O8\r\n", Err("it is of another command"));
        check(b"HD O7\r\nHD O7\r\n", Err("it is of another command"));
        check(b"EN O7\r\nEN O8\r\nEND\r\nHD\r\n", Err("nobody has asked for it"));
        let lines = [&b"EN O7\r\nEN O8\r\n"[..], &b"STAT a 1\r\n".repeat(2_000)].concat();
        check(&lines, Err("it has too many lines"));
    }
}
