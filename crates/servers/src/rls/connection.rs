//! One connection: moves bytes between its socket and HTTP/2, and decides when it ends.
//!
//! Bytes are read into a buffer shared by the connections of a thread, since they are processed before
//! anything else happens; an idle connection has no buffer of its own. Pending output is bounded by not
//! reading on. A connection ends
//!
//! - when its peer closes it, breaks the protocol, or does not complete the preface within [`PREFACE_MAX`];
//! - when output has not been written for [`WRITE_STALL_MAX`];
//! - when a frame or a header block is incomplete after [`INCOMPLETE_MAX`]; an incomplete message, an incomplete
//!   answer or one that has not come ends only its call;
//! - when all connections together hold too much memory, this one has waited longest ([`super::memory`]), and
//!   ending its waiting calls does not help;
//! - when all slots are taken and it has had no call for longest ([`super::slots`]);
//! - when it is too old, or the endpoint stops: it sends GOAWAY and lets calls under way finish.

use super::health::ServingState;
use super::later::{CALLS_MAX, LaterCalls};
use super::memory::{FAIR_BYTES, MemoryShare};
use super::service::{Admission, Methods};
use super::slots::{IDLE_MIN, Slot};
use super::{Endpoint, health};
use crate::later::no_answer;
use crate::overload::Turn;
use std::cell::RefCell;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tidegate_authority::wakes;
use tidegate_grpc::server::{Broken, Connection, Limits};
use tidegate_grpc::{Code, Status};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::sync::watch;
use tokio::time::Instant;

const LIMITS: Limits = Limits {
    // Bounds the number of calls under way, and so how long one of them waits for all others, see
    // `crate::overload`. A client with more calls at once waits, or opens another connection, as Envoy does.
    // With answers within 1 ms it is enough for 128,000 calls a second on each connection.
    streams_max: CALLS_MAX as u32,
    // More than the filter sends (128 descriptors of ten values, each at most 1 KiB, of which U+FFFD may make
    // 3), and more than Envoy's own filter makes of 60 KiB of headers in a handful of descriptors.
    message_bytes_max: 4 * 1024 * 1024,
    // A common default, and twice what a lease of 128 descriptors needs.
    header_bytes_max: 16 * 1024,
    // One message of the largest size and some more of usual size.
    buffered_bytes_max: 8 * 1024 * 1024,
};

/// The most that one turn reads: 128 calls of 256 bytes.
const READ_BYTES_MAX: usize = 32 * 1024;

/// A client sends its preface and settings with its first packet.
const PREFACE_MAX: Duration = Duration::from_secs(5);

/// The time to complete whatever has begun: 4 MiB at 1.7 Mbit/s. Equal to the limit for pending output.
const INCOMPLETE_MAX: Duration = Duration::from_secs(20);

/// How often an active connection is checked for stalled calls. One without activity since the last check
/// frees spare memory, and is not checked again until something arrives.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// Longer than a short network failure or a process that is stopped for some seconds.
const WRITE_STALL_MAX: Duration = Duration::from_secs(20);

/// How long a client may take to acknowledge GOAWAY. If it never does, as it should, its calls are still answered.
const GOAWAY_ACK_MAX: Duration = Duration::from_secs(1);

/// The time to send GOAWAY, and for the peer to close the connection after it.
const CLOSE_MAX: Duration = Duration::from_secs(1);

thread_local! {
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BYTES_MAX].into());
}

pub(super) async fn serve<S>(
    endpoint: &Arc<Endpoint>,
    socket: S,
    slot: Slot,
    state: watch::Receiver<ServingState>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut connection = ServedConnection {
        endpoint,
        socket,
        http2: Connection::new(LIMITS),
        opened: Instant::now(),
        received: 0,
        slot,
        last_call: Instant::now(),
        must_set_idle: false,
        check: Check::Suspended,
        pending: PendingOutput::default(),
        memory: endpoint.memory.share(),
        later: LaterCalls::new(endpoint.clone()),
        is_unflushed: false,
        shutdown: Shutdown::NotStarted,
    };
    let mut deadlines = Deadlines::new(endpoint, connection.opened);
    match run(&mut connection, &mut deadlines, state).await {
        End::Done => {}
        End::Broken(broken) => tracing::debug!(error = %broken, "a connection was closed"),
        End::Failed(error) => tracing::debug!(%error, "a connection failed"),
        End::Closed(cause) => tracing::debug!(cause, "a connection was closed"),
    }
    // Nobody waits for their answers any more, but they go on meanwhile.
    let mut later = std::mem::replace(&mut connection.later, LaterCalls::new(endpoint.clone()));
    let closing = async {
        let _ = tokio::time::timeout(CLOSE_MAX, connection.close()).await;
        connection.into_slot()
    };
    let (_slot, ()) = tokio::join!(closing, later.all_ended());
}

enum End {
    /// The peer closed it, or everything is done.
    Done,
    Broken(Broken),
    Failed(io::Error),
    /// This side closes it, for the given reason.
    Closed(&'static str),
}

async fn run<S>(
    connection: &mut ServedConnection<'_, S>,
    deadlines: &mut Deadlines,
    mut state: watch::Receiver<ServingState>,
) -> End
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut now = ServingState::Serving;
    let timer = tokio::time::sleep_until(deadlines.opened);
    tokio::pin!(timer);
    loop {
        let due = deadlines.next(connection);
        timer.as_mut().reset(due);
        tokio::select! {
            biased;
            progress = std::future::poll_fn(|context| connection.poll(context)) => match progress {
                Progress::Reschedule => {}
                Progress::Ended(end) => return end,
            },
            changed = state.changed(), if now != ServingState::Stopping => {
                now = match changed {
                    Ok(()) => *state.borrow_and_update(),
                    Err(_) => ServingState::Stopping,
                };
                connection.http2.set_time(connection.opened.elapsed());
                connection.http2.notify_watchers(&health::watch_message(now));
                if now == ServingState::Stopping {
                    connection.shut_down();
                }
            }
            () = &mut timer => if let Some(end) = deadlines.check(connection) {
                return end;
            },
        }
    }
}

struct Deadlines {
    opened: Instant,
    /// When the connection is too old, and when its calls are cut off after that.
    old: Option<(Instant, Instant)>,
    is_old: bool,
}

impl Deadlines {
    fn new(endpoint: &Endpoint, opened: Instant) -> Deadlines {
        let old = endpoint.connection_age.map(|age| {
            let old = opened + with_jitter(age);
            (old, old + endpoint.connection_age_grace)
        });
        Deadlines { opened, old, is_old: false }
    }

    /// When the next deadline may expire.
    fn next<S>(&self, connection: &ServedConnection<'_, S>) -> Instant {
        let greeting = (!connection.http2.has_preface()).then_some(self.opened + PREFACE_MAX);
        let check = match connection.check {
            Check::At { due, .. } => Some(due),
            Check::Suspended => None,
        };
        let pending = connection.pending.since.map(|since| since + WRITE_STALL_MAX);
        let old = self.old.map(|(old, end)| if self.is_old { end } else { old });
        let heard = match connection.shutdown {
            Shutdown::Announced(since) => Some(since + GOAWAY_ACK_MAX),
            Shutdown::NotStarted | Shutdown::Unacknowledged => None,
        };
        // A day stands for never, and timers can count it.
        let deadlines = [greeting, check, pending, old, heard].into_iter().flatten();
        deadlines.min().unwrap_or_else(|| Instant::now() + Duration::from_secs(86_400))
    }

    /// Checks all deadlines; returns why the connection ends, if it does.
    fn check<S>(&mut self, connection: &mut ServedConnection<'_, S>) -> Option<End> {
        let now = Instant::now();
        if !connection.http2.has_preface() && now >= self.opened + PREFACE_MAX {
            return Some(End::Closed("the client preface is incomplete"));
        }
        if let Err(broken) = connection.check_calls(now) {
            return Some(End::Broken(broken));
        }
        if connection.pending.since.is_some_and(|since| now >= since + WRITE_STALL_MAX) {
            return Some(End::Closed("the peer does not read its answers"));
        }
        if matches!(connection.shutdown, Shutdown::Announced(since) if now >= since + GOAWAY_ACK_MAX)
        {
            connection.shutdown = Shutdown::Unacknowledged;
        }
        let (old, end) = self.old?;
        if now >= end {
            return Some(End::Closed("calls continued too long after the maximum connection age"));
        }
        if now >= old && !self.is_old {
            self.is_old = true;
            connection.shut_down();
        }
        None
    }
}

/// A random tenth more or less, so that connections opened together do not return together.
fn with_jitter(age: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish() % 2_001;
    age.mul_f64(0.9 + random as f64 / 10_000.0)
}

enum Progress {
    /// The deadlines have changed.
    Reschedule,
    Ended(End),
}

struct ServedConnection<'a, S> {
    endpoint: &'a Arc<Endpoint>,
    socket: S,
    http2: Connection,
    opened: Instant,
    received: u64,
    slot: Slot,
    /// When the last message was answered; at first, when the connection opened.
    last_call: Instant,
    /// The connection has become idle, and its slot does not know yet.
    must_set_idle: bool,
    check: Check,
    pending: PendingOutput,
    memory: MemoryShare<'a>,
    later: LaterCalls,
    /// TLS may buffer written bytes until it is flushed.
    is_unflushed: bool,
    shutdown: Shutdown,
}

/// Output that the peer has not read. A slow peer that reads all output in time differs from one that has
/// stopped reading, although both always have some pending.
#[derive(Default)]
struct PendingOutput {
    /// Since when the oldest bytes are pending; none if none are.
    since: Option<Instant>,
    /// How many of the bytes pending then still are.
    bytes: usize,
}

impl PendingOutput {
    /// Records that `written` bytes were written and `remaining` are pending.
    fn written(&mut self, taken: usize, waiting: usize, now: impl FnOnce() -> Instant) {
        if self.since.is_none() {
            return;
        }
        self.bytes = self.bytes.saturating_sub(taken);
        if self.bytes == 0 {
            *self = PendingOutput { since: (waiting > 0).then(now), bytes: waiting };
        }
    }
}

/// The schedule of checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Check {
    /// No check: no call is incomplete, nothing has arrived since the last check, and the slot is marked idle.
    Suspended,
    /// The next check, and the bytes received at the last one.
    At { due: Instant, received: u64 },
}

/// The progress of a shutdown by GOAWAY.
enum Shutdown {
    NotStarted,
    Announced(Instant),
    /// The peer did not acknowledge it in time.
    Unacknowledged,
}

impl<S> ServedConnection<'_, S> {
    /// Closes the socket and frees all memory, except the slot.
    fn into_slot(self) -> Slot {
        self.slot
    }

    fn shut_down(&mut self) {
        self.http2.shut_down();
        if matches!(self.shutdown, Shutdown::NotStarted) {
            self.shutdown = Shutdown::Announced(Instant::now());
        }
    }

    /// True if the connection has nothing left to do.
    fn is_done(&self) -> bool {
        let is_left = matches!(self.shutdown, Shutdown::Unacknowledged) && self.http2.calls() == 0;
        self.http2.is_done() || (is_left && self.http2.output().is_empty())
    }

    /// Runs the check if it is due: ends calls that have stalled, and frees the spare memory of a quiet connection.
    fn check_calls(&mut self, now: Instant) -> Result<(), Broken> {
        let Check::At { due, received } = self.check else { return Ok(()) };
        if now < due {
            return Ok(());
        }
        let time = now - self.opened;
        self.http2.set_time(time);
        if let Some(then) = time.checked_sub(INCOMPLETE_MAX) {
            let late = Status::new(Code::DeadlineExceeded, "the call was not completed in time");
            self.http2.end_unfinished(then, &late)?;
            let unanswered = Status::new(Code::Unavailable, "the counters do not answer");
            for _ in 0..self.http2.end_pending(then, &unanswered) {
                // It reports its outcome when it has one.
                self.endpoint.shared.observer.undecided(&no_answer());
            }
        }
        let is_quiet = received == self.received && self.http2.unfinished_since().is_none();
        if is_quiet {
            self.http2.trim();
        }
        self.must_set_idle = now - self.last_call >= IDLE_MIN && self.later.is_empty();
        self.check = if is_quiet && self.must_set_idle {
            Check::Suspended
        } else {
            Check::At { due: now + CHECK_INTERVAL, received: self.received }
        };
        Ok(())
    }

    /// Ends the calls that wait, to free memory. False if that is not enough.
    fn free_memory(&mut self) -> bool {
        let now = self.opened.elapsed();
        self.http2.set_time(now);
        let reason = "all connections together hold too much memory";
        let status = Status::new(Code::ResourceExhausted, reason);
        self.http2.end_unfinished_calls(now + Duration::from_nanos(1), &status);
        self.http2.trim();
        let is_enough = self.http2.capacity_bytes() <= FAIR_BYTES;
        if is_enough {
            self.memory.freed();
        }
        is_enough
    }

    /// Reports the memory in use.
    fn update_memory(&mut self, waker: &Waker) {
        let since = || {
            let opened = self.opened;
            let unfinished = self.http2.unfinished_since().map(|since| opened + since);
            let since = unfinished.into_iter().chain(self.pending.since).min();
            since.unwrap_or_else(Instant::now).into_std()
        };
        self.memory.update(self.http2.capacity_bytes(), since, waker);
    }

    /// Hands in the answers that have come.
    fn answer_later(&mut self, context: &mut Context<'_>) {
        if self.later.is_empty() {
            return;
        }
        // What the calls need from elsewhere is asked for together.
        let _held = wakes::hold();
        let turn = Turn::begin();
        let mut answered = false;
        while let Poll::Ready(Some((call, answer))) = self.later.poll_next(context) {
            if !answered {
                answered = true;
                self.last_call = Instant::now();
                self.http2.set_time(self.last_call - self.opened);
            }
            self.http2.answer(call, answer.as_deref().map_err(Clone::clone));
        }
        self.endpoint.shared.overload.record_turn(&turn);
    }
}

impl<S> ServedConnection<'_, S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    /// Reads, answers and writes as far as possible.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Progress> {
        let mut read = 0;
        if self.memory.must_free() && !self.free_memory() {
            let cause = "all connections together hold too much memory";
            return Poll::Ready(Progress::Ended(End::Closed(cause)));
        }
        if self.must_set_idle {
            self.must_set_idle = false;
            self.slot.set_idle(self.last_call.into_std(), context.waker());
        }
        if self.slot.is_evicted() {
            self.http2.shut_down();
            let cause = "all slots are taken, and the connection was idle";
            return Poll::Ready(Progress::Ended(End::Closed(cause)));
        }
        loop {
            self.answer_later(context);
            match self.poll_write(context) {
                Poll::Ready(Ok(())) => self.pending = PendingOutput::default(),
                Poll::Ready(Err(error)) => return Poll::Ready(Progress::Ended(End::Failed(error))),
                Poll::Pending if self.pending.since.is_none() => {
                    let bytes = self.http2.output().len();
                    self.pending = PendingOutput { since: Some(Instant::now()), bytes };
                    return Poll::Ready(Progress::Reschedule);
                }
                Poll::Pending => {}
            }
            self.update_memory(context.waker());
            if self.is_done() {
                return Poll::Ready(Progress::Ended(End::Done));
            }
            if self.http2.is_congested() {
                return Poll::Pending;
            }
            if read >= READ_BYTES_MAX {
                // There may be more input, but others have waited for their turn. A task that wakes itself
                // queues behind all that are ready.
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            match ready!(self.poll_turn(context)) {
                Ok(bytes) => read += bytes,
                Err(end) => return Poll::Ready(Progress::Ended(end)),
            }
            if self.check == Check::Suspended {
                self.check =
                    Check::At { due: Instant::now() + CHECK_INTERVAL, received: self.received };
                return Poll::Ready(Progress::Reschedule);
            }
        }
    }

    /// Reads once, and answers the calls in it.
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
            let overload = &self.endpoint.shared.overload;
            let turn = Turn::begin();
            let admission = if overload.is_late() { Admission::Shed } else { Admission::Decide };
            let now = turn.began().saturating_duration_since(self.opened.into_std());
            let methods = &mut Methods {
                endpoint: self.endpoint,
                admission,
                later: &mut self.later,
                answered: 0,
            };
            let taken = self.http2.receive_at(now, input, methods);
            let took = overload.record_turn(&turn);
            if methods.answered > 0 {
                self.endpoint.shared.observer.answered_within("grpc", methods.answered, took);
            }
            if taken.map_err(End::Broken)? > 0 {
                self.last_call = self.opened + now;
                self.slot.set_active();
            }
            Poll::Ready(Ok(input.len()))
        })
    }

    /// Ready when no output is pending.
    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.http2.output().is_empty() {
            let socket = Pin::new(&mut self.socket);
            let written = ready!(socket.poll_write(context, self.http2.output()))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.http2.written(written);
            self.pending.written(written, self.http2.output().len(), Instant::now);
            self.is_unflushed = true;
        }
        if self.is_unflushed {
            ready!(Pin::new(&mut self.socket).poll_flush(context))?;
            self.is_unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Sends pending output and a close, and reads until the peer closes: closing a socket with unread input
    /// resets the connection, which may overtake GOAWAY.
    async fn close(&mut self) {
        let flushed = std::future::poll_fn(|context| self.poll_write(context)).await;
        if flushed.is_err() || self.socket.shutdown().await.is_err() {
            return;
        }
        while std::future::poll_fn(|context| self.poll_discard(context)).await {}
    }

    /// Reads and discards input; false at its end.
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

    /// Symptom: a client that read slowly but steadily was closed after [`WRITE_STALL_MAX`]. Cause: the time
    /// counted from the first pending byte, whatever was read since.
    #[test]
    fn reading_the_oldest_output_restarts_the_time_limit() {
        let began = Instant::now();
        let later = began + Duration::from_secs(19);
        let mut pending = PendingOutput { since: Some(began), bytes: 100 };
        // More output is added than is read, so some is always pending.
        pending.written(60, 200, || later);
        assert_eq!((pending.since, pending.bytes), (Some(began), 40));
        pending.written(40, 300, || later);
        assert_eq!((pending.since, pending.bytes), (Some(later), 300));
        pending.written(300, 0, || later);
        assert_eq!(pending.since, None);
    }
}
