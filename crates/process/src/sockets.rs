//! The listening sockets of a service, which live longer than those who accept from them.
//!
//! Owns how an address is opened (never one that somebody else serves), how many sockets it has, which
//! worker has which, and the file of a Unix socket. Accepts nothing.

use crate::Settings;
use anyhow::{Context, bail};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tidegate_servers::{Address, Listener};
use tokio::net::{TcpListener, UnixListener, UnixStream};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// What is served at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Endpoint {
    Grpc,
    Frs,
    Http,
}

impl Endpoint {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Endpoint::Grpc => "grpc",
            Endpoint::Frs => "frs",
            Endpoint::Http => "http",
        }
    }
}

/// One address, and the sockets that are bound to it.
#[derive(Debug)]
pub(crate) struct BoundAddress {
    pub(crate) door: Endpoint,
    pub(crate) address: Address,
    /// One, or with worker processes one for each of them that the system deals connections out to. A
    /// Unix socket is always one, which all share.
    sockets: Vec<OwnedFd>,
    /// So many of them, from the first one on, listen.
    listening: usize,
    file: Option<SocketFile>,
}

/// Removes a Unix socket's file when the service ends.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// Device and inode, by which it is told from what another process may have put in its place; none if
    /// it is not there.
    identity: Option<(u64, u64)>,
}

impl SocketFile {
    /// The one that is at this path now.
    fn at(path: &Path) -> SocketFile {
        SocketFile { path: path.to_owned(), identity: identity(path) }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// Each door and where it is wanted, in the order in which they are opened. All of them come before
/// anything is served: a door that cannot be opened must not be found out while another one already
/// answers.
pub(crate) fn wanted(settings: &Settings) -> anyhow::Result<Vec<(Endpoint, Address)>> {
    let grpc = settings.grpc.iter().map(|address| (Endpoint::Grpc, address));
    let others = [(Endpoint::Http, &settings.http), (Endpoint::Frs, &settings.frs_address)];
    let wanted = grpc.chain(others).filter(|(_, address)| **address != Address::Off);
    wanted.map(|(door, address)| Ok((door, absolute(address)?))).collect()
}

/// Another process may be in another directory.
fn absolute(address: &Address) -> anyhow::Result<Address> {
    Ok(match address {
        Address::Unix(path) => Address::Unix(
            std::path::absolute(path).with_context(|| format!("cannot listen on {address}"))?,
        ),
        Address::Tcp(_) | Address::Off => address.clone(),
    })
}

impl BoundAddress {
    /// Opens one that nobody has.
    pub(crate) async fn open(door: Endpoint, address: &Address) -> anyhow::Result<BoundAddress> {
        let refused = || format!("cannot listen on {address}");
        let (socket, file) = match address {
            Address::Off => bail!("an address that is off cannot be listened on"),
            Address::Tcp(text) => {
                // It does not ask for SO_REUSEPORT, so that it fails where anybody listens, with or
                // without.
                let listener = TcpListener::bind(text).await.with_context(refused)?;
                (OwnedFd::from(listener.into_std()?), None)
            }
            Address::Unix(path) => {
                remove_dead_socket(path).await?;
                let listener = UnixListener::bind(path).with_context(refused)?;
                (OwnedFd::from(listener.into_std()?), Some(SocketFile::at(path)))
            }
        };
        // The library lets 128 wait, and a burst of clients beyond would each lose a second.
        rustix::net::listen(&socket, BACKLOG).with_context(refused)?;
        let address = address.clone();
        Ok(BoundAddress { door, address, sockets: vec![socket], listening: 1, file })
    }

    /// One that another process opened, and has let go of once this one serves.
    pub(crate) fn inherited(
        door: Endpoint,
        address: Address,
        sockets: Vec<OwnedFd>,
    ) -> BoundAddress {
        BoundAddress { door, address, listening: sockets.len(), sockets, file: None }
    }

    /// The file of the socket is this process's to remove from now on.
    pub(crate) fn own(&mut self) {
        if let (Address::Unix(path), None) = (&self.address, &self.file) {
            self.file = Some(SocketFile::at(path));
        }
    }

    /// The file of the socket is no longer this process's to remove.
    pub(crate) fn disown(&mut self) {
        if let Some(mut file) = self.file.take() {
            file.identity = None;
        }
    }

    /// Binds more sockets, up to `count`. They get no connection before [`BoundAddress::listen`].
    pub(crate) fn widen(&mut self, count: usize) -> anyhow::Result<()> {
        let refused = || format!("cannot open {count} sockets for {}", self.address);
        let Some(bound) = self.bound() else {
            return Ok(());
        };
        if self.sockets.len() >= count {
            return Ok(());
        }
        // The first one listens by now, so nobody else can have the address: two that start at once
        // cannot both have come so far.
        for socket in &self.sockets {
            sockopt::set_socket_reuseport(socket, true).with_context(refused)?;
        }
        while self.sockets.len() < count {
            let socket = another(bound).with_context(refused)?;
            self.sockets.push(socket);
        }
        Ok(())
    }

    /// Lets connections come to all sockets.
    pub(crate) fn listen(&mut self) -> anyhow::Result<()> {
        for socket in &self.sockets[self.listening..] {
            rustix::net::listen(socket, BACKLOG)
                .with_context(|| format!("cannot listen on {}", self.address))?;
        }
        self.listening = self.sockets.len();
        Ok(())
    }

    /// The address of a TCP socket, with the real port where 0 was asked for.
    pub(crate) fn bound(&self) -> Option<SocketAddr> {
        if matches!(self.address, Address::Unix(_)) {
            return None;
        }
        rustix::net::getsockname(self.sockets.first()?).ok()?.try_into().ok()
    }

    /// The address as others reach it.
    pub(crate) fn describe(&self) -> String {
        self.bound().map_or_else(|| self.address.to_string(), |bound| bound.to_string())
    }

    /// Whether who wants `address` wants this.
    pub(crate) async fn is_at(&self, address: &Address) -> bool {
        if self.address == *address {
            return true;
        }
        let (Address::Tcp(text), Some(bound)) = (address, self.bound()) else {
            return false;
        };
        // One address may be written in several ways.
        match tokio::net::lookup_host(text).await {
            Ok(mut resolved) => resolved.any(|found| found == bound),
            Err(_) => false,
        }
    }

    /// The sockets of the worker of this number among `count`. All sockets have an owner, also where
    /// there are more than workers.
    pub(crate) fn of_worker(&self, index: usize, count: usize) -> impl Iterator<Item = &OwnedFd> {
        let is_shared = matches!(self.address, Address::Unix(_));
        let sockets = self.sockets.iter().enumerate();
        let owned = sockets.filter(move |(number, _)| is_shared || number % count == index);
        owned.map(|(_, socket)| socket)
    }

    /// Further handles of all sockets.
    pub(crate) fn handles(&self) -> anyhow::Result<Vec<OwnedFd>> {
        let cloned = self.sockets.iter().map(OwnedFd::try_clone);
        cloned.collect::<Result<_, _>>().context("no file descriptor is left")
    }

    /// Listeners of all sockets, for doors in this process.
    pub(crate) fn listeners(&self) -> anyhow::Result<Vec<Listener>> {
        let handles = self.handles()?.into_iter();
        Ok(handles.map(|socket| Listener::of(socket, &self.address)).collect::<Result<_, _>>()?)
    }
}

/// Another socket of an address that has one.
fn another(bound: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = if bound.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(socket.as_fd(), true)?;
    sockopt::set_socket_reuseport(socket.as_fd(), true)?;
    rustix::net::bind(&socket, &bound)?;
    Ok(socket)
}

/// A process that was killed leaves its socket behind; one that still answers is another matter.
async fn remove_dead_socket(path: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    let Ok(metadata) = std::fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !metadata.file_type().is_socket() {
        bail!("cannot listen on unix:{}: the path exists and is no socket", path.display());
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
        // Whoever answers is alive, and so may be who cannot be asked.
        Ok(_) => bail!("cannot listen on unix:{}: another process does", path.display()),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot listen on unix:{}", path.display()));
        }
    }
    std::fs::remove_file(path)
        .with_context(|| format!("cannot remove the dead socket {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    async fn place(address: &str) -> anyhow::Result<BoundAddress> {
        BoundAddress::open(Endpoint::Grpc, &address.parse().unwrap()).await
    }

    #[tokio::test]
    async fn an_address_with_many_sockets_is_nobody_elses() {
        let mut first = place("127.0.0.1:0").await.unwrap();
        let address = first.describe();
        let refused = format!("cannot listen on {address}");
        assert_eq!(place(&address).await.unwrap_err().to_string(), refused);
        first.widen(3).unwrap();
        assert_eq!(place(&address).await.unwrap_err().to_string(), refused);
        first.listen().unwrap();
        assert_eq!(place(&address).await.unwrap_err().to_string(), refused);
        drop(first);
        place(&address).await.unwrap();
    }

    /// The library asks for 128 places to wait in, and connections beyond hang until they are tried again.
    #[tokio::test]
    async fn a_burst_of_connections_waits_to_be_accepted() {
        let place = place("127.0.0.1:0").await.unwrap();
        let bound = place.bound().unwrap();
        let connect =
            |_| std::net::TcpStream::connect_timeout(&bound, std::time::Duration::from_secs(10));
        let burst: Vec<_> = (0..400).map(connect).collect::<Result<_, _>>().unwrap();
        assert_eq!(burst.len(), 400);
    }

    #[tokio::test]
    async fn connections_are_dealt_out_once_all_listen() {
        let mut place = place("127.0.0.1:0").await.unwrap();
        let bound = place.bound().unwrap();
        place.widen(2).unwrap();
        let listeners: Vec<std::net::TcpListener> =
            place.handles().unwrap().into_iter().map(Into::into).collect();
        let mut connected = Vec::new();
        // None of these may go where it is not awaited yet.
        for _ in 0..20 {
            connected.push(std::net::TcpStream::connect(bound).unwrap());
        }
        for _ in 0..20 {
            listeners[0].accept().unwrap();
        }
        place.listen().unwrap();
        let mut seen = HashSet::new();
        while seen.len() < 2 {
            connected.push(std::net::TcpStream::connect(bound).unwrap());
            for (number, listener) in listeners.iter().enumerate() {
                if listener.accept().is_ok() {
                    seen.insert(number);
                }
            }
        }
    }

    #[tokio::test]
    async fn every_socket_has_a_worker_and_every_worker_a_socket() {
        let mut tcp = place("127.0.0.1:0").await.unwrap();
        tcp.widen(5).unwrap();
        for count in 1..=5 {
            let shares: Vec<usize> =
                (0..count).map(|index| tcp.of_worker(index, count).count()).collect();
            assert_eq!(shares.iter().sum::<usize>(), 5);
            assert!(shares.iter().all(|&share| share > 0), "{shares:?}");
        }
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("socket");
        let mut unix = place(&format!("unix:{}", path.display())).await.unwrap();
        unix.widen(5).unwrap();
        assert!((0..5).all(|index| unix.of_worker(index, 5).count() == 1));
        unix.disown();
        drop(unix);
        assert!(path.exists(), "the file of another process was removed");
        drop(place(&format!("unix:{}", path.display())).await.unwrap());
        assert!(!path.exists(), "the file was left behind");
    }

    /// The file was removed under a process that served it, and the next one had made its own: that was
    /// removed at the end of the first, and nobody could reach the second any more.
    #[tokio::test]
    async fn the_file_of_another_process_at_the_same_path_is_left_alone() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("socket");
        let address = format!("unix:{}", path.display());
        let first = place(&address).await.unwrap();
        // Kept, so that its inode is not used again.
        std::fs::rename(&path, dir.path().join("moved")).unwrap();
        let second = place(&address).await.unwrap();
        drop(first);
        assert!(path.exists(), "the file of another process was removed");
        drop(second);
        assert!(!path.exists(), "the file was left behind");
    }

    #[tokio::test]
    async fn one_address_may_be_written_in_several_ways() {
        let place = place("127.0.0.1:0").await.unwrap();
        let port = place.bound().unwrap().port();
        for (address, expected) in [
            ("127.0.0.1:0".to_owned(), true),
            (format!("127.0.0.1:{port}"), true),
            (format!("localhost:{port}"), true),
            (format!("127.0.0.2:{port}"), false),
            ("127.0.0.1:1".to_owned(), false),
            ("unix:/run/x.sock".to_owned(), false),
        ] {
            let found = place.is_at(&address.parse().unwrap()).await;
            assert_eq!(found, expected, "for {address}");
        }
    }
}
