//! One connection to the service: a non-blocking socket, the protocol, and the requests under way. A lost
//! connection reports each request as broken, and is reopened after growing pauses.

use crate::ending::{Breakage, Ending};
use crate::options::{LoadOptions, Protocol, Target};
use crate::socket::{self, Endpoint, Interest, Opened, Poller};
use crate::template::Template;
use crate::{frs, rls};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::SendFlags;
use std::collections::HashMap;

/// The half of a pair that a request is. All other requests are `First`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Half {
    First,
    Second,
}

/// A request that is due.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) due_ns: u64,
    /// When the generator noticed that it was due.
    pub(crate) picked_ns: u64,
    pub(crate) key: u64,
    pub(crate) half: Half,
    /// False in the warm-up.
    pub(crate) is_measured: bool,
}

/// A request under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flight {
    pub(crate) request: Request,
    pub(crate) written_ns: u64,
    /// It was counted as timed out.
    pub(crate) is_overdue: bool,
}

/// What the connections of a thread share.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    pub(crate) endpoint: Endpoint,
    target: Target,
    protocol: Protocol,
    streams: usize,
    first: Template,
    second: Option<Template>,
}

impl Service {
    pub(crate) fn new(endpoint: Endpoint, options: &LoadOptions) -> Service {
        let (first, second) = match options.protocol {
            Protocol::Rls => (rls::request(options), None),
            Protocol::Frs => {
                let (first, second) = frs::commands(options.command);
                (frs::request(options, first), second.map(|name| frs::request(options, name)))
            }
        };
        let streams = options.streams_per_connection() as usize;
        let (target, protocol) = (options.target.clone(), options.protocol);
        Service { endpoint, target, protocol, streams, first, second }
    }

    /// Whether an allowed request is followed by a second one.
    pub(crate) fn is_of_pairs(&self) -> bool {
        self.second.is_some()
    }

    fn wire(&self) -> Wire {
        match self.protocol {
            Protocol::Rls => Wire::Rls(Box::new(rls::connect(&self.target))),
            Protocol::Frs => Wire::Frs(Box::default()),
        }
    }

    fn message(&mut self, request: &Request) -> &[u8] {
        match (&mut self.second, request.half) {
            (Some(second), Half::Second) => second.message(request.key),
            _ => self.first.message(request.key),
        }
    }
}

#[derive(Debug)]
enum Wire {
    Rls(Box<tidegate_grpc::client::Connection>),
    Frs(Box<frs::Connection>),
}

impl Wire {
    fn may_call(&self) -> bool {
        match self {
            Wire::Rls(connection) => connection.may_call(),
            Wire::Frs(connection) => !connection.is_leaving(),
        }
    }

    fn call(&mut self, message: &[u8]) -> Option<u32> {
        match self {
            Wire::Rls(connection) => connection.call(message),
            Wire::Frs(connection) => Some(connection.call(message)),
        }
    }

    fn receive(&mut self, input: &[u8], mut ended: impl FnMut(u32, Ending)) -> Result<(), ()> {
        match self {
            Wire::Rls(connection) => connection
                .receive(input, &mut |call, end| ended(call, rls::ending(&end)))
                .map_err(|_| ()),
            Wire::Frs(connection) => connection.receive(input, ended).map_err(|_| ()),
        }
    }

    fn output(&self) -> &[u8] {
        match self {
            Wire::Rls(connection) => connection.output(),
            Wire::Frs(connection) => connection.output(),
        }
    }

    fn written(&mut self, bytes: usize) {
        match self {
            Wire::Rls(connection) => connection.written(bytes),
            Wire::Frs(connection) => connection.written(bytes),
        }
    }

    fn is_leaving(&self) -> bool {
        match self {
            Wire::Rls(connection) => connection.is_leaving(),
            Wire::Frs(connection) => connection.is_leaving(),
        }
    }
}

#[derive(Debug)]
enum State {
    /// Closed, to be reopened at this time.
    Waiting {
        until_ns: u64,
    },
    Connecting(OwnedFd),
    Open(Open),
}

#[derive(Debug)]
struct Open {
    socket: OwnedFd,
    wire: Wire,
    /// The socket took only a part of the output.
    is_blocked: bool,
    /// The socket takes nothing any more. Answers that the server sent before can still be read.
    is_shut: bool,
    /// The server's limits are known. Before its SETTINGS, an RLS server may refuse streams beyond a limit
    /// that the client does not know. HTTP/1.1 has no such message.
    knows_limits: bool,
}

impl Open {
    fn new(socket: OwnedFd, service: &Service) -> Open {
        let wire = service.wire();
        let knows_limits = matches!(wire, Wire::Frs(_));
        Open { socket, wire, is_blocked: false, is_shut: false, knows_limits }
    }
}

/// Counts of connections.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct ConnectionCounts {
    /// Opened, including those at the start.
    pub opened: u64,
    /// Closed by the service, broken, or given up because all requests on it timed out.
    pub lost: u64,
    /// Failed attempts to open one.
    pub failed: u64,
}

/// One connection of a thread.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Its number in its thread.
    number: usize,
    state: State,
    flights: HashMap<u32, Flight>,
    /// Begun, and not written yet.
    fresh: Vec<u32>,
    /// Flights that are not overdue.
    live: usize,
    /// Since the last answer.
    losses: u32,
    /// The thread has it on the list of connections with output.
    pub(crate) is_listed: bool,
}

/// Pauses before a connection is opened again: none at first, then doubling from 10 ms to 1 s.
fn pause_ns(losses: u32) -> u64 {
    match losses {
        0 => 0,
        losses => (10_000_000 << (losses - 1).min(7)).min(1_000_000_000),
    }
}

impl Connection {
    /// A connection on a connected socket.
    pub(crate) fn new(
        number: usize,
        socket: OwnedFd,
        service: &Service,
        poller: &Poller,
    ) -> Result<Connection, Errno> {
        poller.add(&socket, number, Interest::Read)?;
        let open = Open::new(socket, service);
        Ok(Connection {
            number,
            state: State::Open(open),
            flights: HashMap::new(),
            fresh: Vec::new(),
            live: 0,
            losses: 0,
            is_listed: false,
        })
    }

    /// Requests under way that are not overdue.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    pub(crate) fn has_room(&self, service: &Service) -> bool {
        match &self.state {
            State::Open(open) => {
                open.knows_limits
                    && !open.is_blocked
                    && !open.is_shut
                    && self.flights.len() < service.streams
                    && open.wire.may_call()
            }
            State::Waiting { .. } | State::Connecting(_) => false,
        }
    }

    /// Begins a request. False if that is not possible now.
    pub(crate) fn begin(&mut self, request: &Request, service: &mut Service) -> bool {
        let State::Open(open) = &mut self.state else { return false };
        let Some(call) = open.wire.call(service.message(request)) else { return false };
        self.flights.insert(call, Flight { request: *request, written_ns: 0, is_overdue: false });
        self.fresh.push(call);
        self.live += 1;
        true
    }

    /// Writes the output. Requests begun since the last call count as written at `now_ns`, and are passed to
    /// `written`.
    pub(crate) fn flush(
        &mut self,
        now_ns: u64,
        poller: &Poller,
        mut written: impl FnMut(&Flight),
    ) -> Result<(), Breakage> {
        let State::Open(open) = &mut self.state else { return Ok(()) };
        for call in self.fresh.drain(..) {
            if let Some(flight) = self.flights.get_mut(&call) {
                flight.written_ns = now_ns;
                written(flight);
            }
        }
        let was_blocked = std::mem::take(&mut open.is_blocked);
        while !open.is_shut && !open.wire.output().is_empty() {
            match rustix::net::send(&open.socket, open.wire.output(), SendFlags::NOSIGNAL) {
                Ok(bytes) => open.wire.written(bytes),
                Err(Errno::AGAIN) => {
                    open.is_blocked = true;
                    break;
                }
                Err(Errno::INTR) => {}
                // The read side reports the loss.
                Err(_) => open.is_shut = true,
            }
        }
        if open.is_blocked != was_blocked {
            let interest = if open.is_blocked { Interest::ReadAndWrite } else { Interest::Read };
            poller.change(&open.socket, self.number, interest).map_err(|_| Breakage::Lost)?;
        }
        Ok(())
    }

    /// Reads what the socket has, and passes on how each request ended.
    pub(crate) fn receive(
        &mut self,
        buffer: &mut [u8],
        mut ended: impl FnMut(&Flight, Ending),
    ) -> Result<(), Breakage> {
        let State::Open(open) = &mut self.state else { return Ok(()) };
        let bytes = match rustix::io::read(&open.socket, &mut *buffer) {
            Ok(0) => return Err(Breakage::Closed),
            Ok(bytes) => bytes,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(_) => return Err(Breakage::Lost),
        };
        let (flights, live, losses) = (&mut self.flights, &mut self.live, &mut self.losses);
        let received = open.wire.receive(&buffer[..bytes], |call, ending| {
            let Some(flight) = flights.remove(&call) else { return };
            *live -= usize::from(!flight.is_overdue);
            *losses = 0;
            ended(&flight, ending);
        });
        open.knows_limits = true;
        received.map_err(|()| Breakage::Protocol)
    }

    /// Whether the service takes no more requests here, and none is under way.
    pub(crate) fn is_finished(&self) -> bool {
        match &self.state {
            State::Open(open) => self.live == 0 && open.wire.is_leaving(),
            State::Waiting { .. } | State::Connecting(_) => false,
        }
    }

    /// Passes on each request that has been due for longer than `timeout_ns`, once. False if these requests
    /// have taken up the whole connection for one more timeout; it should be given up then.
    pub(crate) fn mark_overdue(
        &mut self,
        now_ns: u64,
        timeout_ns: u64,
        service: &Service,
        mut overdue: impl FnMut(&Flight),
    ) -> bool {
        let mut youngest_ns = 0;
        for flight in self.flights.values_mut() {
            youngest_ns = youngest_ns.max(flight.request.due_ns);
            if !flight.is_overdue && now_ns.saturating_sub(flight.request.due_ns) > timeout_ns {
                flight.is_overdue = true;
                self.live -= 1;
                overdue(flight);
            }
        }
        let is_stuck = !self.flights.is_empty()
            && self.live == 0
            && now_ns.saturating_sub(youngest_ns) > 2 * timeout_ns
            && !self.has_room(service);
        !is_stuck
    }

    /// Closes the connection, and passes on each request under way that was not counted as timed out.
    pub(crate) fn close(&mut self, now_ns: u64, mut lost: impl FnMut(&Flight)) {
        for (_, flight) in self.flights.drain() {
            if !flight.is_overdue {
                lost(&flight);
            }
        }
        self.fresh.clear();
        self.live = 0;
        self.state = State::Waiting { until_ns: now_ns + pause_ns(self.losses) };
        self.losses = self.losses.saturating_add(1);
    }

    /// When to reopen it, if it is closed.
    pub(crate) fn opens_ns(&self) -> Option<u64> {
        match self.state {
            State::Waiting { until_ns } => Some(until_ns),
            State::Connecting(_) | State::Open(_) => None,
        }
    }

    /// Starts to reopen it.
    pub(crate) fn open(&mut self, now_ns: u64, service: &Service, poller: &Poller) -> Opening {
        let opened = service.endpoint.open().and_then(|opened| {
            match &opened {
                Opened::Connected(socket) => poller.add(socket, self.number, Interest::Read)?,
                Opened::Connecting(socket) => {
                    poller.add(socket, self.number, Interest::ReadAndWrite)?;
                }
            }
            Ok(opened)
        });
        match opened {
            Ok(Opened::Connected(socket)) => {
                self.state = State::Open(Open::new(socket, service));
                Opening::Opened
            }
            Ok(Opened::Connecting(socket)) => {
                self.state = State::Connecting(socket);
                Opening::UnderWay
            }
            Err(_) => {
                self.close(now_ns, |_| {});
                Opening::Failed
            }
        }
    }

    /// Checks whether a connecting socket is connected by now.
    pub(crate) fn finish_opening(
        &mut self,
        now_ns: u64,
        service: &Service,
        poller: &Poller,
    ) -> Opening {
        let State::Connecting(socket) = &self.state else { return Opening::UnderWay };
        let finished = socket::finish(socket)
            .and_then(|()| poller.change(socket, self.number, Interest::Read));
        let state = std::mem::replace(&mut self.state, State::Waiting { until_ns: now_ns });
        match (state, finished) {
            (State::Connecting(socket), Ok(())) => {
                self.state = State::Open(Open::new(socket, service));
                Opening::Opened
            }
            _ => {
                self.close(now_ns, |_| {});
                Opening::Failed
            }
        }
    }
}

/// The result of an attempt to open a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opening {
    Opened,
    /// Includes a connection that was open already.
    UnderWay,
    Failed,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: answers that the server gave before it closed the connection were counted as broken when
    /// the next request noticed the close.
    #[test]
    fn what_was_answered_before_a_write_failed_is_read() {
        use std::io::{Read, Write};
        use std::os::unix::net::UnixStream;
        let options = LoadOptions {
            protocol: Protocol::Frs,
            command: crate::options::FrsCommand::Acquire,
            ..LoadOptions::default()
        };
        let nowhere = rustix::net::SocketAddrUnix::new("/nowhere").unwrap();
        let mut service = Service::new(Endpoint::Unix(nowhere), &options);
        let poller = Poller::new().unwrap();
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut connection = Connection::new(0, ours.into(), &service, &poller).unwrap();
        let request =
            Request { due_ns: 0, picked_ns: 0, key: 1, half: Half::First, is_measured: true };
        assert!(connection.begin(&request, &mut service));
        connection.flush(1, &poller, |_| {}).unwrap();
        let _ = theirs.read(&mut [0; 4_096]).unwrap();
        let body = "<frs><item verdict=\"allow\"/></frs>";
        write!(theirs, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        drop(theirs);

        assert!(connection.begin(&request, &mut service));
        connection.flush(2, &poller, |_| {}).unwrap();
        assert!(!connection.has_room(&service));
        let mut endings = Vec::new();
        let mut receive = || connection.receive(&mut [0; 4_096], |_, ending| endings.push(ending));
        assert_eq!(receive(), Ok(()));
        assert_eq!(receive(), Err(Breakage::Closed));
        assert_eq!(endings, [Ending::Allowed]);
        assert_eq!(connection.live(), 1);
    }

    #[test]
    fn pauses_grow_up_to_a_second() {
        let millis: Vec<u64> = (0..10).map(|losses| pause_ns(losses) / 1_000_000).collect();
        assert_eq!(millis, [0, 10, 20, 40, 80, 160, 320, 640, 1_000, 1_000]);
        assert_eq!(pause_ns(u32::MAX), 1_000_000_000);
    }
}
