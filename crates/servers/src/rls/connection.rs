//! One connection: moves bytes between its socket and HTTP/2, and knows when it is over.
//!
//! Bytes are read into a buffer that the connections of a thread share, as they are answered before
//! anything else happens; so a connection that says nothing takes no buffer. What waits to be written is
//! bounded by not reading on. A connection ends
//!
//! - when its peer ends it, breaks the protocol, or says nothing it can be known by in [`GREETING_MAX`];
//! - when bytes have waited to be written for [`UNREAD_MAX`];
//! - when a frame or a block of headers is not whole after [`UNFINISHED_MAX`]; a message or an answer that is
//!   not ends its call;
//! - when all connections together hold too much, this one has waited longest ([`super::held`]), and to end
//!   the calls that wait does not help;
//! - when all slots are taken and it has made no call for longest ([`super::slots`]);
//! - when it is too old, or the door is to stop: it says so (GOAWAY) and lets calls under way finish.

use super::health::State;
use super::held::{FAIR_BYTES, Share};
use super::service::{Load, Methods};
use super::slots::{IDLE_MIN, Slot};
use super::{Door, health};
use crate::overload::Turn;
use std::cell::RefCell;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tidegate_grpc::server::{Broken, Connection, Limits};
use tidegate_grpc::{Code, Status};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::watch;
use tokio::time::Instant;

const LIMITS: Limits = Limits {
    // Bounds how many calls can be under way, and so how long one of them waits for all others, see
    // `crate::overload`. A client with more to ask at once waits, or makes another connection, as Envoy does.
    // Answered within 1 ms, it is enough for 128,000 calls a second on each connection.
    streams_max: 128,
    // Above what the filter sends (128 descriptors of ten values, each at most 1 KiB that U+FFFD may
    // make 3), and what Envoy's own filter makes of 60 KiB of headers in a handful of descriptors.
    message_bytes_max: 4 * 1024 * 1024,
    // What others have as a default, twice what a lease of 128 descriptors needs.
    header_bytes_max: 16 * 1024,
    // Room for one message of the largest size and some more of usual ones.
    buffered_bytes_max: 8 * 1024 * 1024,
};

/// One turn reads no more: 128 calls of 256 bytes.
const READ_BYTES_MAX: usize = 32 * 1024;

/// A client sends its preface and its settings with its first packet.
const GREETING_MAX: Duration = Duration::from_secs(5);

/// Whatever has begun is whole within this time: 4 MiB by 1.7 Mbit/s. As long as what waits to be read may
/// take.
const UNFINISHED_MAX: Duration = Duration::from_secs(20);

/// How often a connection on which something happens is looked at, to see that it does; one on which nothing
/// did since gives memory back, and is not looked at until something does.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A network may be away for some seconds, a process may be stopped for some.
const UNREAD_MAX: Duration = Duration::from_secs(20);

/// How long a client may take to say that it has heard that no calls are taken any more. One that never
/// says so, as it should, has its calls answered all the same.
const HEARD_MAX: Duration = Duration::from_secs(1);

/// How long the last words (GOAWAY) may take, and the peer to close the connection after them.
const FAREWELL_MAX: Duration = Duration::from_secs(1);

thread_local! {
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES_MAX].into());
}

/// Serves one connection to its end.
pub(super) async fn serve<S>(door: &Door, socket: S, slot: Slot, state: watch::Receiver<State>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut connection = Served {
        door,
        socket,
        http2: Connection::new(LIMITS),
        opened: Instant::now(),
        received: 0,
        slot,
        called: Instant::now(),
        is_idle: false,
        look: Look::Resting,
        unread: Unread::default(),
        held: door.held.share(),
        is_unflushed: false,
        leaving: Leaving::No,
    };
    let mut times = Times::new(door, connection.opened);
    match run(&mut connection, &mut times, state).await {
        End::Done => {}
        End::Broken(broken) => tracing::debug!(error = %broken, "a connection was closed"),
        End::Failed(error) => tracing::debug!(%error, "a connection failed"),
        End::Late(cause) => tracing::debug!(cause, "a connection was closed"),
    }
    let _ = tokio::time::timeout(FAREWELL_MAX, connection.part()).await;
}

/// Why a connection is over.
enum End {
    /// The peer ended it, or all is done that there was to do.
    Done,
    Broken(Broken),
    Failed(io::Error),
    /// Something took too long.
    Late(&'static str),
}

async fn run<S>(
    connection: &mut Served<'_, S>,
    times: &mut Times,
    mut state: watch::Receiver<State>,
) -> End
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut now = State::Serving;
    let timer = tokio::time::sleep_until(times.opened);
    tokio::pin!(timer);
    loop {
        let due = times.next(connection);
        timer.as_mut().reset(due);
        tokio::select! {
            biased;
            moved = std::future::poll_fn(|context| connection.poll(context)) => match moved {
                Moved::Due => {}
                Moved::Ended(end) => return end,
            },
            changed = state.changed(), if now != State::Stopping => {
                now = match changed {
                    Ok(()) => *state.borrow_and_update(),
                    Err(_) => State::Stopping,
                };
                connection.http2.set_time(connection.opened.elapsed());
                connection.http2.notify_watchers(&health::message(now));
                if now == State::Stopping {
                    connection.shut_down();
                }
            }
            () = &mut timer => if let Some(end) = times.passed(connection) {
                return end;
            },
        }
    }
}

/// When a connection is too old, and what else has its time.
struct Times {
    opened: Instant,
    /// When it is too old, and when calls under way on it are cut off.
    old: Option<(Instant, Instant)>,
    is_old: bool,
}

impl Times {
    fn new(door: &Door, opened: Instant) -> Times {
        let old = door.age.map(|age| {
            let old = opened + with_jitter(age);
            (old, old + door.age_grace)
        });
        Times { opened, old, is_old: false }
    }

    /// When there is something to look at again.
    fn next<S>(&self, connection: &Served<'_, S>) -> Instant {
        let greeting = (!connection.http2.has_preface()).then_some(self.opened + GREETING_MAX);
        let look = match connection.look {
            Look::At { due, .. } => Some(due),
            Look::Resting => None,
        };
        let unread = connection.unread.since.map(|since| since + UNREAD_MAX);
        let old = self.old.map(|(old, end)| if self.is_old { end } else { old });
        let heard = match connection.leaving {
            Leaving::Since(since) => Some(since + HEARD_MAX),
            Leaving::No | Leaving::Unheard => None,
        };
        // A day is as good as never, and within what timers can count.
        let times = [greeting, look, unread, old, heard].into_iter().flatten();
        times.min().unwrap_or_else(|| Instant::now() + Duration::from_secs(86_400))
    }

    /// Looks at it; says so when the connection is over.
    fn passed<S>(&mut self, connection: &mut Served<'_, S>) -> Option<End> {
        let now = Instant::now();
        if !connection.http2.has_preface() && now >= self.opened + GREETING_MAX {
            return Some(End::Late("its peer did not say what it speaks"));
        }
        if let Err(broken) = connection.look_at(now) {
            return Some(End::Broken(broken));
        }
        if connection.unread.since.is_some_and(|since| now >= since + UNREAD_MAX) {
            return Some(End::Late("its peer does not read what it is sent"));
        }
        if matches!(connection.leaving, Leaving::Since(since) if now >= since + HEARD_MAX) {
            connection.leaving = Leaving::Unheard;
        }
        let (old, end) = self.old?;
        if now >= end {
            return Some(End::Late("calls were still under way long after it was too old"));
        }
        if now >= old && !self.is_old {
            self.is_old = true;
            connection.shut_down();
        }
        None
    }
}

/// Give or take a tenth, so that connections that were made at once do not come back at once.
fn with_jitter(age: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish() % 2_001;
    age.mul_f64(0.9 + random as f64 / 10_000.0)
}

/// What came of moving bytes, when it cannot go on by itself.
enum Moved {
    /// There is something new to wait for.
    Due,
    Ended(End),
}

struct Served<'a, S> {
    door: &'a Door,
    socket: S,
    http2: Connection,
    opened: Instant,
    /// Bytes so far.
    received: u64,
    slot: Slot,
    /// When the last message was answered, or none yet.
    called: Instant,
    /// That was long ago, and its place is to be told.
    is_idle: bool,
    look: Look,
    unread: Unread,
    held: Share<'a>,
    /// TLS may keep what it was given until it is told to pass it on.
    is_unflushed: bool,
    leaving: Leaving,
}

/// What the peer has not taken. A peer that is slow, but takes everything in time, is not to be mistaken
/// for one that has stopped to read, though there is always something that waits.
#[derive(Default)]
struct Unread {
    /// Since when the oldest bytes wait, none when none do.
    since: Option<Instant>,
    /// How many waited then and still do.
    bytes: usize,
}

impl Unread {
    /// So many bytes were taken, and so many wait now.
    fn took(&mut self, taken: usize, waiting: usize, now: impl FnOnce() -> Instant) {
        if self.since.is_none() {
            return;
        }
        self.bytes = self.bytes.saturating_sub(taken);
        if self.bytes == 0 {
            *self = Unread { since: (waiting > 0).then(now), bytes: waiting };
        }
    }
}

/// Whether the connection is looked at now and then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Nothing has begun, nothing came since it was last looked at, and its place knows that it is idle.
    Resting,
    /// Then; so many bytes had come when it was looked at last.
    At { due: Instant, received: u64 },
}

/// Whether the peer was told that no calls are taken any more.
enum Leaving {
    No,
    Since(Instant),
    /// It did not say that it has heard it.
    Unheard,
}

impl<S> Served<'_, S> {
    fn shut_down(&mut self) {
        self.http2.shut_down();
        if matches!(self.leaving, Leaving::No) {
            self.leaving = Leaving::Since(Instant::now());
        }
    }

    /// Whether there is nothing left to do.
    fn is_done(&self) -> bool {
        let is_left = matches!(self.leaving, Leaving::Unheard) && self.http2.calls() == 0;
        self.http2.is_done() || (is_left && self.http2.output().is_empty())
    }

    /// Looks at it, if it is time. What has begun and does not become whole ends; what rests gives memory
    /// back.
    fn look_at(&mut self, now: Instant) -> Result<(), Broken> {
        let Look::At { due, received } = self.look else { return Ok(()) };
        if now < due {
            return Ok(());
        }
        let time = now - self.opened;
        self.http2.set_time(time);
        if let Some(then) = time.checked_sub(UNFINISHED_MAX) {
            let late = Status::new(Code::DeadlineExceeded, "the call has begun and does not go on");
            self.http2.end_unfinished(then, &late)?;
        }
        let is_quiet = received == self.received && self.http2.unfinished_since().is_none();
        if is_quiet {
            self.http2.trim();
        }
        self.is_idle = now - self.called >= IDLE_MIN;
        self.look = if is_quiet && self.is_idle {
            Look::Resting
        } else {
            Look::At { due: now + LOOK_EVERY, received: self.received }
        };
        Ok(())
    }

    /// Ends the calls that wait, so that others have room. False when that does not help.
    fn make_room(&mut self) -> bool {
        let now = self.opened.elapsed();
        self.http2.set_time(now);
        let reason = "too much is held for all connections together";
        let status = Status::new(Code::ResourceExhausted, reason);
        self.http2.end_unfinished_calls(now + Duration::from_nanos(1), &status);
        self.http2.trim();
        let is_enough = self.http2.capacity_bytes() <= FAIR_BYTES;
        if is_enough {
            self.held.has_made_room();
        }
        is_enough
    }

    /// Says how much is held.
    fn hold(&mut self, waker: &Waker) {
        let since = || {
            let opened = self.opened;
            let unfinished = self.http2.unfinished_since().map(|since| opened + since);
            let since = unfinished.into_iter().chain(self.unread.since).min();
            since.unwrap_or_else(Instant::now).into_std()
        };
        self.held.hold(self.http2.capacity_bytes(), since, waker);
    }
}

impl<S> Served<'_, S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    /// Reads, answers and writes as far as that goes.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Moved> {
        let mut read = 0;
        if self.held.makes_room() && !self.make_room() {
            let cause = "too much is held for all connections together";
            return Poll::Ready(Moved::Ended(End::Late(cause)));
        }
        if self.is_idle {
            self.is_idle = false;
            self.slot.rest(self.called.into_std(), context.waker());
        }
        if self.slot.makes_room() {
            self.http2.shut_down();
            let cause = "all slots are taken, and its peer made no calls";
            return Poll::Ready(Moved::Ended(End::Late(cause)));
        }
        loop {
            match self.poll_write(context) {
                Poll::Ready(Ok(())) => self.unread = Unread::default(),
                Poll::Ready(Err(error)) => return Poll::Ready(Moved::Ended(End::Failed(error))),
                Poll::Pending if self.unread.since.is_none() => {
                    let bytes = self.http2.output().len();
                    self.unread = Unread { since: Some(Instant::now()), bytes };
                    return Poll::Ready(Moved::Due);
                }
                Poll::Pending => {}
            }
            self.hold(context.waker());
            if self.is_done() {
                return Poll::Ready(Moved::Ended(End::Done));
            }
            if self.http2.is_congested() {
                return Poll::Pending;
            }
            if read >= READ_BYTES_MAX {
                // There may be more, but others have waited for their turn. A task that wakes itself
                // goes behind all that are ready.
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            match ready!(self.poll_turn(context)) {
                Ok(bytes) => read += bytes,
                Err(end) => return Poll::Ready(Moved::Ended(end)),
            }
            if self.look == Look::Resting {
                self.look = Look::At { due: Instant::now() + LOOK_EVERY, received: self.received };
                return Poll::Ready(Moved::Due);
            }
        }
    }

    /// Reads once, and answers what has come.
    fn poll_turn(&mut self, context: &mut Context<'_>) -> Poll<Result<usize, End>> {
        BUFFER.with_borrow_mut(|buffer| {
            let mut buffer = ReadBuf::new(buffer);
            if let Err(error) = ready!(Pin::new(&mut self.socket).poll_read(context, &mut buffer)) {
                return Poll::Ready(Err(End::Failed(error)));
            }
            let input = buffer.filled();
            if input.is_empty() {
                return Poll::Ready(Err(End::Done));
            }
            self.received = self.received.wrapping_add(input.len() as u64);
            let overload = &self.door.overload;
            let turn = Turn::begin();
            let load = if overload.is_late() { Load::Shed } else { Load::Decided };
            let now = turn.began().saturating_duration_since(self.opened.into_std());
            let methods = &mut Methods { door: self.door, load };
            let taken = self.http2.receive_at(now, input, methods);
            overload.turned(&turn);
            if taken.map_err(End::Broken)? > 0 {
                self.called = self.opened + now;
                self.slot.work();
            }
            Poll::Ready(Ok(input.len()))
        })
    }

    /// Ready when nothing waits to be written.
    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.http2.output().is_empty() {
            let socket = Pin::new(&mut self.socket);
            let written = ready!(socket.poll_write(context, self.http2.output()))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.http2.written(written);
            self.unread.took(written, self.http2.output().len(), Instant::now);
            self.is_unflushed = true;
        }
        if self.is_unflushed {
            ready!(Pin::new(&mut self.socket).poll_flush(context))?;
            self.is_unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Says what is left to say, and that nothing follows, and hears the peer out: where something is
    /// unread, a close is a reset, which may overtake the last words.
    async fn part(&mut self) {
        let said = std::future::poll_fn(|context| self.poll_write(context)).await;
        if said.is_err() || self.socket.shutdown().await.is_err() {
            return;
        }
        while std::future::poll_fn(|context| self.poll_discard(context)).await {}
    }

    /// Reads what is of no use any more; false at its end.
    fn poll_discard(&mut self, context: &mut Context<'_>) -> Poll<bool> {
        BUFFER.with_borrow_mut(|buffer| {
            let mut buffer = ReadBuf::new(buffer);
            let read = ready!(Pin::new(&mut self.socket).poll_read(context, &mut buffer));
            Poll::Ready(read.is_ok() && !buffer.filled().is_empty())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Symptom: a client that read slowly, but all the time, was closed after [`UNREAD_MAX`]. Cause: the
    /// time counted from when something had begun to wait, whatever was taken since.
    #[test]
    fn a_peer_that_takes_what_waited_has_time_again() {
        let began = Instant::now();
        let later = began + Duration::from_secs(19);
        let mut unread = Unread { since: Some(began), bytes: 100 };
        // More comes than goes, so that something waits without a break.
        unread.took(60, 200, || later);
        assert_eq!((unread.since, unread.bytes), (Some(began), 40));
        unread.took(40, 300, || later);
        assert_eq!((unread.since, unread.bytes), (Some(later), 300));
        unread.took(300, 0, || later);
        assert_eq!(unread.since, None);
    }
}
