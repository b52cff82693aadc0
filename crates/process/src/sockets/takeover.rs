//! Takeover: a new process receives the listening sockets of the one that serves, which drains once the new
//! one serves. No connection is refused in between, since the sockets stay open.
//!
//! The serving process listens on `takeover.sock` in the data directory. Owns that socket, its access check
//! (the same user), and both sides of the protocol. Knows neither endpoints nor workers.

use super::{BoundAddress, Endpoint};
use crate::channel::Channel;
use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use std::fs::{File, Permissions};
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidegate_servers::Address;
use tokio::net::UnixListener;

/// Incremented with every change of a message.
const VERSION: u32 = 1;
const SOCKET_NAME: &str = "takeover.sock";
const LOCK_NAME: &str = "takeover.lock";
/// The longest path in the address of a Unix socket, without the final zero byte.
const PATH_BYTES_MAX: usize = 107;
/// A message contains one address at most.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// 30 workers with a socket each for eight addresses.
const SOCKETS_MAX: usize = 240;
/// How long each side waits for a message that the other can send at once.
const REPLY_MAX: Duration = Duration::from_secs(5);
/// How often to retry opening the takeover socket while another process has it.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Messages of the new process. Field names are part of the protocol.
#[derive(Debug, Serialize, Deserialize)]
enum FromNew {
    /// First, so that each side can refuse an unknown version.
    Hello { version: u32 },
    /// The new process serves, with the sockets of these addresses.
    Serving {
        #[serde(rename = "places")]
        taken: Vec<usize>,
    },
}

/// Messages of the serving process.
#[derive(Debug, Serialize, Deserialize)]
enum FromOld {
    /// No sockets are offered.
    Refused { cause: String },
    /// `count` messages follow, each an [`OfferedSocket`].
    Sockets { version: u32, count: usize },
    /// It has stopped accepting connections.
    Draining,
}

/// A socket; carries its file descriptor. The sockets of one address have the same index.
#[derive(Debug, Serialize, Deserialize)]
struct OfferedSocket {
    #[serde(rename = "place")]
    index: usize,
    #[serde(rename = "door")]
    endpoint: Endpoint,
    address: String,
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The path of the socket. A path too long for a socket address goes through the open directory.
fn path_of(data_dir: &Path, open: &File) -> PathBuf {
    let path = data_dir.join(SOCKET_NAME);
    if path.as_os_str().len() <= PATH_BYTES_MAX {
        return path;
    }
    PathBuf::from(format!("/proc/self/fd/{}/{SOCKET_NAME}", open.as_raw_fd()))
}

/// The file whose lock designates the process that can be taken over. Any user who may open a file may lock
/// it, so it is for this user alone, unlike the directory, which others may read.
fn lock_file(data_dir: &Path) -> anyhow::Result<File> {
    let path = data_dir.join(LOCK_NAME);
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.open(&path).with_context(|| format!("cannot open {}", path.display()))
}

/// The sockets offered by the serving process, and the connection to it.
#[derive(Debug)]
pub(crate) struct Offer {
    channel: Channel,
    addresses: Vec<(usize, BoundAddress)>,
    taken: Vec<usize>,
}

/// Requests the sockets of the process that serves `data_dir`; none if there is no such process. Blocks.
pub(crate) fn request_sockets(data_dir: &Path) -> anyhow::Result<Option<Offer>> {
    let stream =
        File::open(data_dir).and_then(|open| UnixStream::connect(path_of(data_dir, &open)));
    let stream = match stream {
        Ok(stream) => stream,
        Err(error)
            if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error).context("cannot connect to its takeover socket"),
    };
    let user = rustix::net::sockopt::socket_peercred(&stream)?.uid.as_raw();
    ensure!(user == own_user(), "it runs as another user ({user}); run this one as the same");
    stream.set_read_timeout(Some(REPLY_MAX))?;
    stream.set_write_timeout(Some(REPLY_MAX))?;
    receive_offer(stream).map(Some)
}

fn receive_offer(stream: UnixStream) -> anyhow::Result<Offer> {
    let mut channel = Channel::new(stream, MESSAGE_BYTES_MAX);
    channel.send(&FromNew::Hello { version: VERSION })?;
    let answer = channel.receive().context("it did not answer; is another takeover under way?")?;
    let count = match answer {
        Some(FromOld::Sockets { version: VERSION, count }) if count <= SOCKETS_MAX => count,
        Some(FromOld::Refused { cause }) => bail!("it refused: {cause}"),
        Some(other) => bail!("its answer is unknown to this version: {other:?}"),
        None => bail!("it closed the connection"),
    };
    let mut sockets: Vec<(OfferedSocket, OwnedFd)> = Vec::new();
    for _ in 0..count {
        sockets.push(channel.receive_with()?);
    }
    Ok(Offer { channel, addresses: group_by_address(sockets)?, taken: Vec::new() })
}

fn group_by_address(
    sockets: Vec<(OfferedSocket, OwnedFd)>,
) -> anyhow::Result<Vec<(usize, BoundAddress)>> {
    let mut groups: Vec<(OfferedSocket, Vec<OwnedFd>)> = Vec::new();
    for (offered, socket) in sockets {
        match groups.last_mut() {
            Some((last, sockets)) if last.index == offered.index => sockets.push(socket),
            _ => groups.push((offered, vec![socket])),
        }
    }
    let address = |(offered, sockets): (OfferedSocket, Vec<OwnedFd>)| {
        let address: Address = offered.address.parse().map_err(anyhow::Error::msg)?;
        Ok((offered.index, BoundAddress::inherited(offered.endpoint, address, sockets)))
    };
    groups.into_iter().map(address).collect()
}

impl Offer {
    /// Takes `address` from the offer, for `endpoint` from now on. An address whose port the kernel chose
    /// stays with its endpoint.
    pub(crate) async fn take(
        &mut self,
        endpoint: Endpoint,
        address: &Address,
    ) -> Option<BoundAddress> {
        let is_port_chosen = matches!(address, Address::Tcp(text) if text.ends_with(":0"));
        for of_other_endpoints in [false, true] {
            for position in 0..self.addresses.len() {
                let bound = &self.addresses[position].1;
                if (bound.endpoint != endpoint) == of_other_endpoints
                    && !(of_other_endpoints && is_port_chosen)
                    && bound.matches(address).await
                {
                    let (index, mut bound) = self.addresses.remove(position);
                    self.taken.push(index);
                    bound.endpoint = endpoint;
                    return Some(bound);
                }
            }
        }
        None
    }

    /// Tells the old process to give up the sockets, as this one serves. Blocks.
    pub(crate) fn confirm_serving(mut self) -> anyhow::Result<()> {
        self.channel.send(&FromNew::Serving { taken: self.taken })?;
        match self.channel.receive()? {
            Some(FromOld::Draining) => Ok(()),
            other => bail!("an unexpected answer: {other:?}"),
        }
    }
}

/// True while a new process may have the sockets and serve with them, whatever happens to this process.
#[derive(Debug, Default)]
pub(crate) struct Handover(AtomicBool);

impl Handover {
    fn set(&self, is_in_progress: bool) {
        self.0.store(is_in_progress, Ordering::Relaxed);
    }

    /// Leaves the files of `addresses` to the new process, if there may be one. The next start removes any
    /// that it does not use.
    pub(crate) fn leave_files(&self, addresses: &mut [BoundAddress]) {
        if self.0.load(Ordering::Relaxed) {
            addresses.iter_mut().for_each(BoundAddress::release_file);
        }
    }
}

/// Serves `takeover.sock` until a new process has taken over, and returns the indexes of the addresses that
/// it took.
pub(crate) async fn serve_until_taken(
    data_dir: &Path,
    addresses: &[BoundAddress],
    handover: &Handover,
) -> Vec<usize> {
    loop {
        let socket = match TakeoverSocket::open(data_dir) {
            Ok(Some(socket)) => socket,
            Ok(None) => {
                tokio::time::sleep(RETRY_INTERVAL).await;
                continue;
            }
            Err(error) => {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "takeover is not possible from this process"
                );
                return std::future::pending().await;
            }
        };
        loop {
            let stream = match socket.accept().await {
                Ok(stream) => stream,
                Err(error) => {
                    tracing::warn!(%error, "a takeover could not start");
                    tokio::time::sleep(RETRY_INTERVAL).await;
                    continue;
                }
            };
            handover.set(true);
            match hand_over(stream, addresses).await {
                Ok((taken, new)) => {
                    // First, so that the new process can open the takeover socket.
                    drop(socket);
                    if let Err(error) = send_on_thread(new, FromOld::Draining).await {
                        tracing::debug!(%error, "the new process did not wait for an answer");
                    }
                    return taken;
                }
                Err(error) => {
                    handover.set(false);
                    let error = format!("{error:#}");
                    tracing::warn!(
                        error,
                        "a takeover was not finished; this process continues to serve"
                    );
                }
            }
        }
    }
}

/// The socket where new processes request a takeover.
struct TakeoverSocket {
    listener: UnixListener,
    /// Removed with the socket.
    file: PathBuf,
    /// Locked: of several processes on one data directory, one at a time can be taken over.
    _lock: File,
    /// The path of the socket may go through it.
    _data_dir: File,
}

impl Drop for TakeoverSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

impl TakeoverSocket {
    /// None if another process has it.
    fn open(data_dir: &Path) -> anyhow::Result<Option<TakeoverSocket>> {
        let open = File::open(data_dir)?;
        let lock = lock_file(data_dir)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Ok(None),
            Err(std::fs::TryLockError::Error(error)) => return Err(error.into()),
        }
        let file = path_of(data_dir, &open);
        // The process that left it is dead; otherwise it would hold the lock.
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let listener = UnixListener::bind(&file)?;
        // A connection made before this call is checked by its user.
        std::fs::set_permissions(&file, Permissions::from_mode(0o600))?;
        Ok(Some(TakeoverSocket { listener, file, _lock: lock, _data_dir: open }))
    }

    async fn accept(&self) -> std::io::Result<UnixStream> {
        let (stream, _) = self.listener.accept().await?;
        stream.into_std()
    }
}

/// Sends the sockets, and waits until the new process serves.
async fn hand_over(
    stream: UnixStream,
    addresses: &[BoundAddress],
) -> anyhow::Result<(Vec<usize>, Channel)> {
    let user = rustix::net::sockopt::socket_peercred(&stream)?.uid.as_raw();
    ensure!(user == own_user(), "user {user} is not the user of this process");
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(REPLY_MAX))?;
    stream.set_write_timeout(Some(REPLY_MAX))?;
    let mut sockets = Vec::new();
    for (index, bound) in addresses.iter().enumerate() {
        for socket in bound.clone_sockets()? {
            let address = bound.address.to_string();
            sockets.push((OfferedSocket { index, endpoint: bound.endpoint, address }, socket));
        }
    }
    let count = addresses.len();
    // Ends the thread's wait when this future is dropped, as on SIGTERM.
    let _shutdown = ShutdownOnDrop(stream.try_clone()?);
    let sent = tokio::task::spawn_blocking(move || send_sockets(stream, sockets));
    let (taken, channel) = sent.await??;
    ensure!(taken.iter().all(|&index| index < count), "it took what was not offered: {taken:?}");
    Ok((taken, channel))
}

fn send_sockets(
    stream: UnixStream,
    sockets: Vec<(OfferedSocket, OwnedFd)>,
) -> anyhow::Result<(Vec<usize>, Channel)> {
    let timeouts = stream.try_clone()?;
    let mut channel = Channel::new(stream, MESSAGE_BYTES_MAX);
    match channel.receive().context("it sent no request")? {
        Some(FromNew::Hello { version: VERSION }) => {}
        Some(FromNew::Hello { version }) => {
            let cause =
                format!("it speaks version {VERSION} of the takeover protocol, not {version}");
            channel.send(&FromOld::Refused { cause })?;
            bail!(
                "the new process speaks version {version} of the takeover protocol, this one {VERSION}"
            );
        }
        other => bail!("its first message is {other:?}"),
    }
    tracing::info!("a new process requests the sockets");
    channel.send(&FromOld::Sockets { version: VERSION, count: sockets.len() })?;
    for (offered, socket) in &sockets {
        use std::os::fd::AsFd;
        channel.send_with(offered, socket.as_fd())?;
    }
    drop(sockets);
    // The new process opens the data directory and starts its workers, however long that takes.
    timeouts.set_read_timeout(None)?;
    match channel.receive()? {
        Some(FromNew::Serving { taken }) => Ok((taken, channel)),
        Some(other) => bail!("it sent {other:?} instead of Serving"),
        None => bail!("the new process ended before it served"),
    }
}

/// Wakes the thread that reads from a connection.
struct ShutdownOnDrop(UnixStream);

impl Drop for ShutdownOnDrop {
    fn drop(&mut self) {
        // A completed takeover still gets an answer, so only reading ends.
        let _ = self.0.shutdown(std::net::Shutdown::Read);
    }
}

async fn send_on_thread(channel: Channel, message: FromOld) -> anyhow::Result<()> {
    tokio::task::spawn_blocking(move || channel.send(&message)).await?
}

/// Both sides of a takeover, against any bytes from the other side.
#[cfg(feature = "fuzzing")]
pub mod fuzzing {
    use super::{Offer, UnixStream, send_sockets};

    /// The new process: index, endpoint and address of each address offered.
    ///
    /// # Errors
    /// Why nothing is taken over.
    pub fn new_process(stream: UnixStream) -> anyhow::Result<Vec<(usize, &'static str, String)>> {
        let Offer { addresses, .. } = super::receive_offer(stream)?;
        let offered = |(index, bound): &(usize, super::BoundAddress)| {
            (*index, bound.endpoint.name(), bound.address.to_string())
        };
        Ok(addresses.iter().map(offered).collect())
    }

    /// The serving process, without sockets to send: the indexes that the new process took.
    ///
    /// # Errors
    /// Why it continues to serve.
    pub fn old_process(stream: UnixStream) -> anyhow::Result<Vec<usize>> {
        send_sockets(stream, Vec::new()).map(|(taken, _)| taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    async fn open(address: &str) -> BoundAddress {
        BoundAddress::open(Endpoint::Grpc, &address.parse().unwrap(), None).await.unwrap()
    }

    async fn request(data_dir: &Path) -> anyhow::Result<Option<Offer>> {
        let data_dir = data_dir.to_owned();
        tokio::task::spawn_blocking(move || request_sockets(&data_dir)).await.unwrap()
    }

    /// The offer in `dir`, once there is one.
    async fn offered(dir: &Path) -> Offer {
        loop {
            match request(dir).await.unwrap() {
                Some(offer) => return offer,
                None => tokio::task::yield_now().await,
            }
        }
    }

    /// Serves `takeover.sock` while `new` runs.
    async fn while_serving<T>(
        dir: &Path,
        addresses: &[BoundAddress],
        new: impl Future<Output = T>,
    ) -> T {
        let handover = Handover::default();
        tokio::select! {
            taken = serve_until_taken(dir, addresses, &handover) => panic!("{taken:?} were taken"),
            done = new => done,
        }
    }

    #[tokio::test]
    async fn without_a_serving_process_there_is_no_offer() {
        let dir = TempDir::new().unwrap();
        assert!(request(dir.path()).await.unwrap().is_none());
        drop(UnixListener::bind(dir.path().join(SOCKET_NAME)).unwrap());
        assert!(request(dir.path()).await.unwrap().is_none());
        assert!(request(&dir.path().join("none")).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn wanted_sockets_are_handed_over() {
        let dir = TempDir::new().unwrap();
        // Longer than an address can be.
        let long = dir.path().join("x".repeat(120));
        std::fs::create_dir(&long).unwrap();
        let mut addresses = [open("127.0.0.1:0").await, open("127.0.0.1:0").await];
        addresses[1].add_sockets(3).unwrap();
        let wanted: Address = addresses[1].describe().parse().unwrap();
        let new = async {
            let mut offer = offered(&long).await;
            let any = "127.0.0.1:0".parse().unwrap();
            assert!(offer.take(Endpoint::Http, &any).await.is_none(), "a port of another endpoint");
            let mode = std::fs::metadata(long.join(SOCKET_NAME)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            assert!(offer.take(Endpoint::Frs, &"127.0.0.1:1".parse().unwrap()).await.is_none());
            let taken = offer.take(Endpoint::Frs, &wanted).await.unwrap();
            assert!(offer.take(Endpoint::Frs, &wanted).await.is_none(), "taken twice");
            assert_eq!(taken.endpoint, Endpoint::Frs);
            assert_eq!(taken.clone_sockets().unwrap().len(), 3);
            tokio::task::spawn_blocking(move || offer.confirm_serving()).await.unwrap().unwrap();
            taken
        };
        let handover = Handover::default();
        let (indexes, taken) = tokio::join!(serve_until_taken(&long, &addresses, &handover), new);
        assert_eq!(indexes, [1]);
        assert!(!long.join(SOCKET_NAME).exists());
        drop(addresses);
        let bound = taken.tcp_address().unwrap();
        std::net::TcpStream::connect(bound).expect("the socket lives on");
    }

    #[tokio::test]
    async fn an_abandoned_takeover_changes_nothing() {
        let dir = TempDir::new().unwrap();
        let addresses = [open("127.0.0.1:0").await];
        while_serving(dir.path(), &addresses, async {
            drop(offered(dir.path()).await);
            // The next request is served.
            let mut offer = offered(dir.path()).await;
            assert!(offer.take(Endpoint::Grpc, &addresses[0].address).await.is_some());
        })
        .await;
    }

    #[tokio::test]
    async fn other_versions_are_refused_by_either_side() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join(SOCKET_NAME);
        let refused = while_serving(dir.path(), &[], async {
            drop(offered(dir.path()).await);
            let path = path.clone();
            let request = tokio::task::spawn_blocking(move || {
                let mut channel = Channel::new(UnixStream::connect(path)?, MESSAGE_BYTES_MAX);
                channel.send(&FromNew::Hello { version: 9 })?;
                channel.receive::<FromOld>()
            });
            request.await.unwrap().unwrap()
        });
        let Some(FromOld::Refused { cause }) = refused.await else {
            panic!("an unknown version was not refused")
        };
        assert_eq!(cause, "it speaks version 1 of the takeover protocol, not 9");

        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let old = tokio::task::spawn_blocking(move || {
            let mut channel = Channel::new(listener.accept().unwrap().0, MESSAGE_BYTES_MAX);
            channel.receive::<FromNew>().unwrap();
            channel.send(&FromOld::Sockets { version: 2, count: 0 }).unwrap();
        });
        let error = request(dir.path()).await.unwrap_err().to_string();
        assert!(error.starts_with("its answer is unknown to this version"), "{error}");
        old.await.unwrap();
    }

    #[tokio::test]
    async fn one_process_at_a_time_can_be_taken_over() {
        let dir = TempDir::new().unwrap();
        let first = TakeoverSocket::open(dir.path()).unwrap().unwrap();
        assert!(TakeoverSocket::open(dir.path()).unwrap().is_none());
        let mode = std::fs::metadata(dir.path().join(LOCK_NAME)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "another user can lock it");
        drop(first);
        // Any user may lock the directory, which all may read.
        let directory = File::open(dir.path()).unwrap();
        directory.lock().unwrap();
        assert!(TakeoverSocket::open(dir.path()).unwrap().is_some());
    }
}
