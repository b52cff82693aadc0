//! Non-blocking sockets, and waiting for them with microsecond precision.
//!
//! Waiting is epoll_pwait2 (Linux 5.11), whose timeout is in nanoseconds. The thread's timer slack is lowered
//! from Linux's 50 µs. So a thread sleeps until the next request is due and keeps no core busy.

use crate::options::Target;
use anyhow::{Context, bail};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt,
};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, ToSocketAddrs};
use std::num::NonZero;
use std::time::{Duration, Instant};

/// A resolved address.
#[derive(Debug, Clone)]
pub(crate) enum Endpoint {
    Tcp(SocketAddr),
    Unix(SocketAddrUnix),
}

/// A socket, and whether it is connected.
#[derive(Debug)]
pub(crate) enum Opened {
    Connected(OwnedFd),
    /// Connected once it becomes writable without an error.
    Connecting(OwnedFd),
}

impl Endpoint {
    /// All addresses of a target.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn of(target: &Target) -> anyhow::Result<Vec<Endpoint>> {
        match target {
            Target::Unix(path) => {
                let address = SocketAddrUnix::new(path.as_path());
                let address =
                    address.with_context(|| format!("{target} is not a valid socket path"))?;
                Ok(vec![Endpoint::Unix(address)])
            }
            Target::Tcp(text) => {
                let found = text.to_socket_addrs();
                let found = found.with_context(|| format!("cannot look up {text}"))?;
                Ok(found.map(Endpoint::Tcp).collect())
            }
        }
    }

    /// Begins to connect.
    pub(crate) fn open(&self) -> Result<Opened, Errno> {
        let family = match self {
            Endpoint::Tcp(SocketAddr::V4(_)) => AddressFamily::INET,
            Endpoint::Tcp(SocketAddr::V6(_)) => AddressFamily::INET6,
            Endpoint::Unix(_) => AddressFamily::UNIX,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        let connected = match self {
            Endpoint::Tcp(address) => {
                sockopt::set_tcp_nodelay(&socket, true)?;
                connect(&socket, address)
            }
            Endpoint::Unix(address) => connect(&socket, address),
        };
        match connected {
            Ok(()) => Ok(Opened::Connected(socket)),
            Err(Errno::INPROGRESS) => Ok(Opened::Connecting(socket)),
            Err(error) => Err(error),
        }
    }

    /// Connects, and waits until it is connected.
    fn connect(&self, timeout: Duration) -> Result<OwnedFd, Errno> {
        let start = Instant::now();
        loop {
            match self.open() {
                Ok(Opened::Connected(socket)) => return Ok(socket),
                Ok(Opened::Connecting(socket)) => {
                    let mut fds = [PollFd::new(&socket, PollFlags::OUT)];
                    if poll(&mut fds, Some(&timespec(timeout)))? == 0 {
                        return Err(Errno::TIMEDOUT);
                    }
                    finish(&socket)?;
                    return Ok(socket);
                }
                // A Unix socket whose backlog is full cannot queue connections.
                Err(Errno::AGAIN) if start.elapsed() < timeout => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Whether a connecting socket is connected by now.
pub(crate) fn finish(socket: &OwnedFd) -> Result<(), Errno> {
    sockopt::socket_error(socket)?
}

/// Opens `count` connections to the first address of a target that accepts one.
///
/// # Errors
/// When none does.
pub(crate) fn connect_all(
    target: &Target,
    count: u32,
    timeout: Duration,
) -> anyhow::Result<(Endpoint, Vec<OwnedFd>)> {
    let mut last = None;
    for endpoint in Endpoint::of(target)? {
        let sockets = (0..count).map(|_| endpoint.connect(timeout)).collect();
        match sockets {
            Ok(sockets) => return Ok((endpoint, sockets)),
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) => Err(error).with_context(|| format!("cannot connect to {target}")),
        None => bail!("{target} has no address"),
    }
}

/// The readiness to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interest {
    Read,
    ReadAndWrite,
}

impl Interest {
    fn flags(self) -> EventFlags {
        match self {
            Interest::Read => EventFlags::IN,
            Interest::ReadAndWrite => EventFlags::IN | EventFlags::OUT,
        }
    }
}

/// Waits for many sockets, each identified by a number. A closed socket is removed by the kernel.
#[derive(Debug)]
pub(crate) struct Poller {
    epoll: OwnedFd,
}

/// The most sockets that one wait reports. The next wait reports the rest.
const EVENTS_MAX: usize = 256;

impl Poller {
    pub(crate) fn new() -> Result<Poller, Errno> {
        Ok(Poller { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    pub(crate) fn add(
        &self,
        socket: impl AsFd,
        number: usize,
        interest: Interest,
    ) -> Result<(), Errno> {
        epoll::add(&self.epoll, socket, EventData::new_u64(number as u64), interest.flags())
    }

    pub(crate) fn change(
        &self,
        socket: impl AsFd,
        number: usize,
        interest: Interest,
    ) -> Result<(), Errno> {
        epoll::modify(&self.epoll, socket, EventData::new_u64(number as u64), interest.flags())
    }

    /// Waits until a socket is ready or the time is over, and replaces `ready` by the numbers of the ready
    /// sockets.
    pub(crate) fn wait(&self, time: Duration, ready: &mut Vec<usize>) -> Result<(), Errno> {
        ready.clear();
        let mut events = [const { MaybeUninit::uninit() }; EVENTS_MAX];
        match epoll::wait(&self.epoll, &mut events, Some(&timespec(time))) {
            Ok((events, _)) => {
                ready.extend(events.iter().map(|event| event.data.u64() as usize));
                Ok(())
            }
            // A signal ends the wait like a timeout.
            Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Lets this thread wake up within a microsecond of the requested time.
pub(crate) fn wake_punctually() {
    // Where this is not allowed, wake-ups are 50 µs less precise, and the schedule's lag shows it.
    let _ = rustix::thread::set_current_timer_slack(NonZero::new(1_000));
}

fn timespec(time: Duration) -> Timespec {
    Timespec {
        // The options bound times to days.
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos().into(),
    }
}
