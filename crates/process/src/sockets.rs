//! The listening sockets of a service. They outlive the processes that accept from them.
//!
//! Owns opening an address (never one that another process serves), its number of sockets, their assignment
//! to workers, and the file of a Unix socket. Accepts no connection. `start` opens or takes over all
//! addresses, `takeover` passes them from process to process.

pub(crate) mod start;
pub(crate) mod takeover;

use crate::Settings;
use anyhow::{Context, bail};
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use serde::{Deserialize, Serialize};
use std::fs::Permissions;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tidegate_servers::{Address, Listener};
use tokio::net::{TcpListener, UnixStream};

/// The queue of connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// The kind of service at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Endpoint {
    Grpc,
    Frs,
    Http,
    Prometheus,
}

impl Endpoint {
    /// Whether it decides requests, which is the work of worker processes.
    pub(crate) fn decides(self) -> bool {
        match self {
            Endpoint::Grpc | Endpoint::Frs => true,
            Endpoint::Http | Endpoint::Prometheus => false,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Endpoint::Grpc => "grpc",
            Endpoint::Frs => "frs",
            Endpoint::Http => "http",
            Endpoint::Prometheus => "prometheus",
        }
    }
}

#[derive(Debug)]
pub(crate) struct BoundAddress {
    pub(crate) endpoint: Endpoint,
    pub(crate) address: Address,
    /// One socket, or one for each worker process, among which the kernel distributes connections. A Unix
    /// socket is always one, shared by all workers.
    sockets: Vec<OwnedFd>,
    /// The number of sockets that listen, counted from the first.
    listening: usize,
    file: Option<SocketFile>,
}

/// Removes the file of a Unix socket when dropped.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    /// Device and inode, which distinguish the file from one that another process puts at the same path; none
    /// if there is no file to remove.
    identity: Option<(u64, u64)>,
}

impl SocketFile {
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

/// Each configured endpoint and its address, in the order of opening. All are opened before any is served, so
/// that a service never answers at one address while another cannot be opened.
pub(crate) fn configured(settings: &Settings) -> anyhow::Result<Vec<(Endpoint, Address)>> {
    let grpc = settings.grpc.iter().map(|address| (Endpoint::Grpc, address));
    let others = [
        (Endpoint::Http, &settings.http),
        (Endpoint::Prometheus, &settings.prometheus),
        (Endpoint::Frs, &settings.frs_address),
    ];
    let configured = grpc.chain(others).filter(|(_, address)| **address != Address::Off);
    configured.map(|(endpoint, address)| Ok((endpoint, absolute(address)?))).collect()
}

/// A path independent of the working directory, which another process may not share.
fn absolute(address: &Address) -> anyhow::Result<Address> {
    Ok(match address {
        Address::Unix(path) => Address::Unix(
            std::path::absolute(path).with_context(|| format!("cannot listen on {address}"))?,
        ),
        Address::Tcp(_) | Address::Off => address.clone(),
    })
}

impl BoundAddress {
    /// Opens an address that no process serves.
    pub(crate) async fn open(
        endpoint: Endpoint,
        address: &Address,
        socket_mode: Option<u32>,
    ) -> anyhow::Result<BoundAddress> {
        let refused = || format!("cannot listen on {address}");
        let (socket, file) = match address {
            Address::Off => bail!("the address is off"),
            Address::Tcp(text) => {
                // Without SO_REUSEPORT this fails where any process listens, with the option or without.
                let listener = TcpListener::bind(text).await.with_context(refused)?;
                (OwnedFd::from(listener.into_std()?), None)
            }
            Address::Unix(path) => {
                remove_dead_socket(path).await?;
                let socket = bind_file(path, socket_mode).with_context(refused)?;
                (socket, Some(SocketFile::at(path)))
            }
        };
        // tokio queues 128 connections. Each client of a burst beyond them would lose a second.
        rustix::net::listen(&socket, BACKLOG).with_context(refused)?;
        let address = address.clone();
        Ok(BoundAddress { endpoint, address, sockets: vec![socket], listening: 1, file })
    }

    /// An address opened by another process, which gives it up once this one serves.
    pub(crate) fn inherited(
        endpoint: Endpoint,
        address: Address,
        sockets: Vec<OwnedFd>,
    ) -> BoundAddress {
        BoundAddress { endpoint, address, listening: sockets.len(), sockets, file: None }
    }

    /// This process removes the socket's file from now on.
    pub(crate) fn adopt_file(&mut self) {
        if let (Address::Unix(path), None) = (&self.address, &self.file) {
            self.file = Some(SocketFile::at(path));
        }
    }

    /// This process no longer removes the socket's file.
    pub(crate) fn release_file(&mut self) {
        if let Some(mut file) = self.file.take() {
            file.identity = None;
        }
    }

    /// Binds more sockets, up to `count`. They receive no connection before [`BoundAddress::listen`].
    pub(crate) fn add_sockets(&mut self, count: usize) -> anyhow::Result<()> {
        let refused = || format!("cannot open {count} sockets for {}", self.address);
        let Some(bound) = self.tcp_address() else {
            return Ok(());
        };
        if self.sockets.len() >= count {
            return Ok(());
        }
        // The first socket listens by now, so no other process can bind the address: two that start at once
        // cannot both get here.
        for socket in &self.sockets {
            sockopt::set_socket_reuseport(socket, true).with_context(refused)?;
        }
        while self.sockets.len() < count {
            let socket = bind_again(bound).with_context(refused)?;
            self.sockets.push(socket);
        }
        Ok(())
    }

    pub(crate) fn listen(&mut self) -> anyhow::Result<()> {
        for socket in &self.sockets[self.listening..] {
            rustix::net::listen(socket, BACKLOG)
                .with_context(|| format!("cannot listen on {}", self.address))?;
        }
        self.listening = self.sockets.len();
        Ok(())
    }

    /// The address of a TCP socket, with the real port where port 0 was requested.
    pub(crate) fn tcp_address(&self) -> Option<SocketAddr> {
        if matches!(self.address, Address::Unix(_)) {
            return None;
        }
        rustix::net::getsockname(self.sockets.first()?).ok()?.try_into().ok()
    }

    pub(crate) fn describe(&self) -> String {
        self.tcp_address().map_or_else(|| self.address.to_string(), |bound| bound.to_string())
    }

    /// True if `address` denotes this address.
    pub(crate) async fn matches(&self, address: &Address) -> bool {
        if self.address == *address {
            return true;
        }
        let (Address::Tcp(text), Some(bound)) = (address, self.tcp_address()) else {
            return false;
        };
        // An address can be written in several ways.
        match tokio::net::lookup_host(text).await {
            Ok(mut resolved) => resolved.any(|found| found == bound),
            Err(_) => false,
        }
    }

    /// The sockets of worker `index` of `count`. Every socket is assigned to a worker, even if there are more
    /// sockets than workers.
    pub(crate) fn sockets_of_worker(
        &self,
        index: usize,
        count: usize,
    ) -> impl Iterator<Item = &OwnedFd> {
        let is_shared = matches!(self.address, Address::Unix(_));
        let sockets = self.sockets.iter().enumerate();
        let assigned = sockets.filter(move |(number, _)| is_shared || number % count == index);
        assigned.map(|(_, socket)| socket)
    }

    pub(crate) fn clone_sockets(&self) -> anyhow::Result<Vec<OwnedFd>> {
        let cloned = self.sockets.iter().map(OwnedFd::try_clone);
        cloned.collect::<Result<_, _>>().context("no file descriptor is left")
    }

    /// Listeners on all sockets, for endpoints in this process.
    pub(crate) fn listeners(&self) -> anyhow::Result<Vec<Listener>> {
        let handles = self.clone_sockets()?.into_iter();
        Ok(handles
            .map(|socket| Listener::from_socket(socket, &self.address))
            .collect::<Result<_, _>>()?)
    }
}

fn bind_again(bound: SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = if bound.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(socket.as_fd(), true)?;
    sockopt::set_socket_reuseport(socket.as_fd(), true)?;
    rustix::net::bind(&socket, &bound)?;
    Ok(socket)
}

/// Binds a Unix socket, whose file has these permissions from its first moment.
fn bind_file(path: &Path, mode: Option<u32>) -> anyhow::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    if let Some(mode) = mode {
        // The kernel makes the file with the socket's own, less the umask.
        rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode))?;
    }
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    if let Some(mode) = mode {
        std::fs::set_permissions(path, Permissions::from_mode(mode))?;
    }
    Ok(socket)
}

/// Removes the socket that a killed process left behind, and refuses one that still answers.
async fn remove_dead_socket(path: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    let Ok(metadata) = std::fs::symlink_metadata(path) else {
        return Ok(());
    };
    if !metadata.file_type().is_socket() {
        bail!("cannot listen on unix:{}: the path exists and is not a socket", path.display());
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
        // The owner is alive if it answers, and may be alive if the answer is unknown.
        Ok(_) => bail!("cannot listen on unix:{}: another process listens there", path.display()),
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

    async fn opened(address: &str) -> anyhow::Result<BoundAddress> {
        BoundAddress::open(Endpoint::Grpc, &address.parse().unwrap(), None).await
    }

    #[tokio::test]
    async fn an_address_with_many_sockets_belongs_to_one_process() {
        let mut first = opened("127.0.0.1:0").await.unwrap();
        let address = first.describe();
        let refused = format!("cannot listen on {address}");
        assert_eq!(opened(&address).await.unwrap_err().to_string(), refused);
        first.add_sockets(3).unwrap();
        assert_eq!(opened(&address).await.unwrap_err().to_string(), refused);
        first.listen().unwrap();
        assert_eq!(opened(&address).await.unwrap_err().to_string(), refused);
        drop(first);
        opened(&address).await.unwrap();
    }

    /// Regression: tokio queues 128 connections, and further ones hang until they are retried.
    #[tokio::test]
    async fn a_burst_of_connections_waits_to_be_accepted() {
        let opened = opened("127.0.0.1:0").await.unwrap();
        let bound = opened.tcp_address().unwrap();
        let connect =
            |_| std::net::TcpStream::connect_timeout(&bound, std::time::Duration::from_secs(10));
        let burst: Vec<_> = (0..400).map(connect).collect::<Result<_, _>>().unwrap();
        assert_eq!(burst.len(), 400);
    }

    #[tokio::test]
    async fn connections_are_dealt_out_once_all_listen() {
        let mut opened = opened("127.0.0.1:0").await.unwrap();
        let bound = opened.tcp_address().unwrap();
        opened.add_sockets(2).unwrap();
        let listeners: Vec<std::net::TcpListener> =
            opened.clone_sockets().unwrap().into_iter().map(Into::into).collect();
        let mut connected = Vec::new();
        // None of these may reach the socket that does not listen yet.
        for _ in 0..20 {
            connected.push(std::net::TcpStream::connect(bound).unwrap());
        }
        // A connection that is made may be in the queue a moment later.
        for _ in 0..20 {
            while let Err(error) = listeners[0].accept() {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                std::thread::yield_now();
            }
        }
        opened.listen().unwrap();
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
        let mut tcp = opened("127.0.0.1:0").await.unwrap();
        tcp.add_sockets(5).unwrap();
        for count in 1..=5 {
            let shares: Vec<usize> =
                (0..count).map(|index| tcp.sockets_of_worker(index, count).count()).collect();
            assert_eq!(shares.iter().sum::<usize>(), 5);
            assert!(shares.iter().all(|&share| share > 0), "{shares:?}");
        }
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("socket");
        let mut unix = opened(&format!("unix:{}", path.display())).await.unwrap();
        unix.add_sockets(5).unwrap();
        assert!((0..5).all(|index| unix.sockets_of_worker(index, 5).count() == 1));
        unix.release_file();
        drop(unix);
        assert!(path.exists(), "the file of another process was removed");
        drop(opened(&format!("unix:{}", path.display())).await.unwrap());
        assert!(!path.exists(), "the file was left behind");
    }

    /// Regression: the file was removed under a process that served it, and the next process created its own.
    /// The first one removed that file when it ended, and the second could not be reached.
    #[tokio::test]
    async fn the_file_of_another_process_at_the_same_path_is_left_alone() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("socket");
        let address = format!("unix:{}", path.display());
        let first = opened(&address).await.unwrap();
        // Kept, so that its inode is not reused.
        std::fs::rename(&path, dir.path().join("moved")).unwrap();
        let second = opened(&address).await.unwrap();
        drop(first);
        assert!(path.exists(), "the file of another process was removed");
        drop(second);
        assert!(!path.exists(), "the file was left behind");
    }

    #[tokio::test]
    async fn one_address_may_be_written_in_several_ways() {
        let opened = opened("127.0.0.1:0").await.unwrap();
        let port = opened.tcp_address().unwrap().port();
        for (address, expected) in [
            ("127.0.0.1:0".to_owned(), true),
            (format!("127.0.0.1:{port}"), true),
            (format!("localhost:{port}"), true),
            (format!("127.0.0.2:{port}"), false),
            ("127.0.0.1:1".to_owned(), false),
            ("unix:/run/x.sock".to_owned(), false),
        ] {
            let found = opened.matches(&address.parse().unwrap()).await;
            assert_eq!(found, expected, "for {address}");
        }
    }
}
