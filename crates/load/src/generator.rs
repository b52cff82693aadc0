//! One thread of the load. It takes due requests from its schedule, sends them over its connections, and
//! counts each exactly once.
//!
//! A round takes everything that is due, begins it where there is room, writes once for each connection, and
//! sleeps until the next request is due (a slice at least) or an answer arrives.

use crate::connection::ConnectionCounts;
use crate::connection::{Connection, Flight, Half, Opening, Request, Service};
use crate::ending::{Breakage, Ending};
use crate::keys::Keys;
use crate::progress::{Live, Snapshot};
use crate::schedule::Schedule;
use crate::socket::Poller;
use crate::tally::{Tally, Times};
use std::collections::VecDeque;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The most bytes of one read: some hundred answers.
const READ_BYTES: usize = 64 * 1024;
/// The longest sleep, so that a stop is noticed.
const SLEEP_NS_MAX: u64 = 100_000_000;

/// When requests are sent.
#[derive(Debug)]
pub(crate) enum Pace {
    /// As they are due.
    Open(Schedule),
    /// Whenever a stream is free, until this time.
    Closed { end_ns: u64 },
}

/// The limits of a thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) timeout_ns: u64,
    pub(crate) slice_ns: u64,
    /// Requests before this are warm-up.
    pub(crate) measured_from_ns: u64,
    /// Requests that may wait for a stream.
    pub(crate) queue_max: usize,
}

/// The results of a thread.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) measured: Tally,
    pub(crate) warmup: Tally,
    pub(crate) connections: ConnectionCounts,
    /// When the last request ended.
    pub(crate) ended_ns: u64,
}

/// One thread.
#[derive(Debug)]
pub(crate) struct Generator<'a> {
    pub(crate) start: Instant,
    pub(crate) pace: Pace,
    pub(crate) keys: Keys,
    pub(crate) bounds: Bounds,
    pub(crate) service: Service,
    pub(crate) poller: Poller,
    pub(crate) connections: Vec<Connection>,
    pub(crate) stop: &'a AtomicBool,
    pub(crate) live: Option<&'a Live>,
    pub(crate) account: Account,
    pub(crate) state: Rounds,
}

/// What changes from round to round.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    /// Due, and waiting for a stream.
    queue: VecDeque<Request>,
    /// The connection to try next, so that all get their turn.
    turn: usize,
    /// Connections with output to write.
    listed: Vec<usize>,
    /// When to look for overdue requests next.
    scan_ns: u64,
    is_stopped: bool,
}

impl Generator<'_> {
    /// Waits until every connection is ready or lost, or the time is over. Nothing is due yet.
    ///
    /// # Errors
    /// When the system refuses to wait for sockets.
    pub(crate) fn wait_until_ready(&mut self, timeout: Duration) -> anyhow::Result<()> {
        let begun = Instant::now();
        let mut ready = Vec::new();
        let mut buffer = vec![0; READ_BYTES];
        for number in 0..self.connections.len() {
            self.list(number);
        }
        loop {
            let is_settled = |connection: &Connection| {
                connection.has_room(&self.service) || connection.opens_ns().is_some()
            };
            if self.connections.iter().all(is_settled) {
                return Ok(());
            }
            let Some(left) = timeout.checked_sub(begun.elapsed()) else { return Ok(()) };
            self.flush(0);
            self.poller.wait(left, &mut ready)?;
            for &number in &ready {
                self.receive(number, &mut buffer);
            }
        }
    }

    /// Runs until every due request is accounted for.
    ///
    /// # Errors
    /// When the system refuses to wait for sockets.
    pub(crate) fn run(mut self) -> anyhow::Result<Account> {
        let mut ready = Vec::new();
        let mut buffer = vec![0; READ_BYTES];
        for number in 0..self.connections.len() {
            self.list(number);
        }
        loop {
            let now_ns = self.now_ns();
            self.stop_if_told(now_ns);
            self.pick(now_ns);
            self.dispatch(now_ns);
            self.flush(now_ns);
            if now_ns >= self.state.scan_ns {
                self.scan(now_ns);
            }
            if self.is_over(now_ns) {
                break;
            }
            self.poller.wait(self.sleep(now_ns), &mut ready)?;
            for &number in &ready {
                self.receive(number, &mut buffer);
            }
        }
        self.account.ended_ns = self.now_ns();
        self.publish();
        Ok(self.account)
    }

    fn now_ns(&self) -> u64 {
        // A run of 584 years does not fit.
        Instant::now().saturating_duration_since(self.start).as_nanos() as u64
    }

    fn stop_if_told(&mut self, now_ns: u64) {
        if self.state.is_stopped || !self.stop.load(Ordering::Relaxed) {
            return;
        }
        self.state.is_stopped = true;
        self.pace = match self.pace {
            Pace::Open(_) => Pace::Open(Schedule::empty()),
            Pace::Closed { .. } => Pace::Closed { end_ns: now_ns },
        };
        for request in std::mem::take(&mut self.state.queue) {
            self.account.of(&request).not_sent += 1;
        }
    }

    /// Takes what is due by now.
    fn pick(&mut self, now_ns: u64) {
        while let Some(due_ns) = self.take_due(now_ns) {
            let request = self.request(due_ns, now_ns);
            self.account.of(&request).due += 1;
            if self.state.queue.len() >= self.bounds.queue_max {
                // A waiting request, or this one, may find a free stream by now.
                self.dispatch(now_ns);
            }
            if self.state.queue.len() < self.bounds.queue_max {
                self.state.queue.push_back(request);
            } else if !(self.state.queue.is_empty() && self.begin(&request)) {
                self.account.of(&request).not_sent += 1;
            }
        }
    }

    /// The next request.
    fn request(&mut self, due_ns: u64, picked_ns: u64) -> Request {
        let is_measured = due_ns >= self.bounds.measured_from_ns;
        Request { due_ns, picked_ns, key: self.keys.next(), half: Half::First, is_measured }
    }

    fn take_due(&mut self, now_ns: u64) -> Option<u64> {
        match &mut self.pace {
            Pace::Open(schedule) => schedule.take(now_ns),
            Pace::Closed { .. } => None,
        }
    }

    /// Begins waiting requests while streams are free.
    fn dispatch(&mut self, now_ns: u64) {
        while let Some(request) = self.state.queue.front().copied() {
            if now_ns.saturating_sub(request.due_ns) > self.bounds.timeout_ns {
                self.account.of(&request).not_sent += 1;
            } else if !self.begin(&request) {
                return;
            }
            self.state.queue.pop_front();
        }
        if matches!(self.pace, Pace::Closed { end_ns } if now_ns < end_ns) {
            self.fill(now_ns);
        }
    }

    /// Begins a request on any connection with a free stream.
    fn fill(&mut self, now_ns: u64) {
        while let Some(number) = self.with_room() {
            let request = self.request(now_ns, now_ns);
            if !self.begin_on(number, &request) {
                return;
            }
            self.account.of(&request).due += 1;
        }
    }

    fn begin(&mut self, request: &Request) -> bool {
        self.with_room().is_some_and(|number| self.begin_on(number, request))
    }

    fn begin_on(&mut self, number: usize, request: &Request) -> bool {
        let is_begun = self.connections[number].begin(request, &mut self.service);
        if is_begun {
            self.list(number);
        }
        is_begun
    }

    /// The next connection in turn with a free stream.
    fn with_room(&mut self) -> Option<usize> {
        let count = self.connections.len();
        let mut numbers = (0..count).map(|step| (self.state.turn + step) % count);
        let number = numbers.find(|&number| self.connections[number].has_room(&self.service))?;
        self.state.turn = (number + 1) % count;
        Some(number)
    }

    fn list(&mut self, number: usize) {
        let connection = &mut self.connections[number];
        if !connection.is_listed {
            connection.is_listed = true;
            self.state.listed.push(number);
        }
    }

    /// Writes once for each connection with output.
    fn flush(&mut self, round_ns: u64) {
        let mut listed = std::mem::take(&mut self.state.listed);
        for number in listed.drain(..) {
            let now_ns = self.now_ns();
            let (connection, account) = (&mut self.connections[number], &mut self.account);
            connection.is_listed = false;
            let flushed = connection.flush(now_ns, &self.poller, |flight| {
                let request = flight.request;
                if request.half == Half::First {
                    // The wait for a stream is the service's part; the generator's own part is how late it
                    // noticed that the request was due.
                    let is_at_once = request.picked_ns == round_ns;
                    let done_ns = if is_at_once { now_ns } else { request.picked_ns };
                    let lag_ns = done_ns.saturating_sub(request.due_ns);
                    account.of(&request).lag.saturating_record(lag_ns);
                }
            });
            if let Err(breakage) = flushed {
                self.lose(number, breakage);
            }
        }
        self.state.listed = listed;
    }

    /// Reads from a connection.
    fn receive(&mut self, number: usize, buffer: &mut [u8]) {
        let opened_ns = self.now_ns();
        match self.connections[number].finish_opening(opened_ns, &self.service, &self.poller) {
            Opening::Opened => self.account.connections.opened += 1,
            Opening::Failed => self.account.connections.failed += 1,
            Opening::UnderWay => {}
        }
        let start = self.start;
        let (account, queue) = (&mut self.account, &mut self.state.queue);
        let has_second = self.service.is_of_pairs();
        let timeout_ns = self.bounds.timeout_ns;
        let mut answered_ns = None;
        let received = self.connections[number].receive(buffer, |flight, ending| {
            // One time for all answers of a read.
            let now_ns = *answered_ns.get_or_insert_with(|| {
                Instant::now().saturating_duration_since(start).as_nanos() as u64
            });
            let is_in_time = account.end(flight, ending, now_ns, timeout_ns);
            let is_used = is_in_time && ending == Ending::Allowed;
            if has_second && is_used && flight.request.half == Half::First {
                let (due_ns, picked_ns, half) = (now_ns, now_ns, Half::Second);
                let request = Request { due_ns, picked_ns, half, ..flight.request };
                account.of(&request).due += 1;
                queue.push_front(request);
            }
        });
        match received {
            Ok(()) => self.list(number),
            Err(breakage) => self.lose(number, breakage),
        }
    }

    fn lose(&mut self, number: usize, breakage: Breakage) {
        let now_ns = self.now_ns();
        let (account, timeout_ns) = (&mut self.account, self.bounds.timeout_ns);
        account.connections.lost += 1;
        self.connections[number].close(now_ns, |flight| {
            account.end(flight, Ending::Broken(breakage), now_ns, timeout_ns);
        });
        self.state.scan_ns = now_ns;
    }

    /// Rare work: overdue requests, connections to give up or to reopen.
    fn scan(&mut self, now_ns: u64) {
        let timeout_ns = self.bounds.timeout_ns;
        let mut next_ns = now_ns + (timeout_ns / 10).clamp(1_000_000, SLEEP_NS_MAX);
        for number in 0..self.connections.len() {
            let (connection, account) = (&mut self.connections[number], &mut self.account);
            let is_fit = connection.mark_overdue(now_ns, timeout_ns, &self.service, |flight| {
                account.of(&flight.request).timed_out += 1;
            });
            if !is_fit || connection.is_finished() {
                account.connections.lost += 1;
                connection.close(now_ns, |_| {});
            }
            let Some(opens_ns) = connection.opens_ns() else { continue };
            if opens_ns > now_ns {
                next_ns = next_ns.min(opens_ns);
                continue;
            }
            match connection.open(now_ns, &self.service, &self.poller) {
                Opening::Opened => {
                    account.connections.opened += 1;
                    self.list(number);
                }
                Opening::UnderWay => {}
                Opening::Failed => account.connections.failed += 1,
            }
        }
        self.state.scan_ns = next_ns;
        self.publish();
    }

    fn is_over(&self, now_ns: u64) -> bool {
        let is_all_due = match &self.pace {
            Pace::Open(schedule) => schedule.next_ns().is_none(),
            Pace::Closed { end_ns } => now_ns >= *end_ns,
        };
        let is_idle = |connection: &Connection| connection.live() == 0;
        is_all_due && self.state.queue.is_empty() && self.connections.iter().all(is_idle)
    }

    /// How long to sleep unless something arrives.
    fn sleep(&self, round_ns: u64) -> Duration {
        let due_ns = match &self.pace {
            Pace::Open(schedule) => {
                schedule.next_ns().map(|due_ns| due_ns.max(round_ns + self.bounds.slice_ns))
            }
            Pace::Closed { end_ns } => Some(*end_ns).filter(|&end_ns| end_ns > round_ns),
        };
        let wake_ns = self.state.scan_ns.min(round_ns + SLEEP_NS_MAX);
        let wake_ns = due_ns.map_or(wake_ns, |due_ns| wake_ns.min(due_ns));
        Duration::from_nanos(wake_ns.saturating_sub(self.now_ns()))
    }

    fn publish(&self) {
        if let Some(live) = self.live {
            let snapshot = Snapshot::new(&self.account.measured, &self.account.warmup);
            *live.lock().unwrap_or_else(PoisonError::into_inner) = snapshot;
        }
    }
}

impl Account {
    pub(crate) fn new() -> anyhow::Result<Account> {
        let connections = ConnectionCounts::default();
        Ok(Account { measured: Tally::new()?, warmup: Tally::new()?, connections, ended_ns: 0 })
    }

    fn of(&mut self, request: &Request) -> &mut Tally {
        if request.is_measured { &mut self.measured } else { &mut self.warmup }
    }

    /// Counts the end of a request, unless it was counted as timed out before. Returns whether it ended in
    /// time.
    fn end(&mut self, flight: &Flight, ending: Ending, now_ns: u64, timeout_ns: u64) -> bool {
        let request = &flight.request;
        let tally = self.of(request);
        let is_late = now_ns.saturating_sub(request.due_ns) > timeout_ns;
        if !flight.is_overdue && is_late {
            tally.timed_out += 1;
        }
        if flight.is_overdue || is_late {
            tally.late += u64::from(!matches!(ending, Ending::Broken(_)));
            return false;
        }
        let (due_ns, written_ns) = (request.due_ns, flight.written_ns);
        tally.count(ending, &Times { due_ns, written_ns, answered_ns: now_ns });
        let is_decision = matches!(ending, Ending::Allowed | Ending::Denied);
        tally.pairs += u64::from(is_decision && request.half == Half::Second);
        true
    }

    /// Adds the results of another thread.
    pub(crate) fn add(&mut self, other: &Account) -> anyhow::Result<()> {
        self.measured.add(&other.measured)?;
        self.warmup.add(&other.warmup)?;
        self.connections.opened += other.connections.opened;
        self.connections.lost += other.connections.lost;
        self.connections.failed += other.connections.failed;
        self.ended_ns = self.ended_ns.max(other.ended_ns);
        Ok(())
    }
}
