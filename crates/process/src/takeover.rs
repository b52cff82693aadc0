//! Taking over: a new process gets the listening sockets of the one that serves, which drains once the new
//! one serves. No connection is refused in between, since the very sockets live on.
//!
//! The serving process listens on `takeover.sock` in the data directory. Owns that socket, who may speak
//! there (the same user), and both sides of the conversation. Knows nothing of doors and workers.

use crate::channel::Channel;
use crate::sockets::{BoundAddress, Endpoint};
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

/// Changes whenever a message does.
const VERSION: u32 = 1;
const NAME: &str = "takeover.sock";
const LOCK_NAME: &str = "takeover.lock";
/// What the system takes for the address of a Unix socket, without the zero at its end.
const PATH_BYTES_MAX: usize = 107;
/// A message has an address at most.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// 30 workers with a socket each for eight addresses.
const SOCKETS_MAX: usize = 240;
/// How long either side waits for what the other has at hand.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often it is tried to become the one that can be taken over, where another process still is.
const RETRY: Duration = Duration::from_secs(1);

/// What the new process says.
#[derive(Debug, Serialize, Deserialize)]
enum FromNew {
    /// First, so that both know whether they understand each other.
    Hello { version: u32 },
    /// All is served, with the sockets of these places.
    Serving { places: Vec<usize> },
}

/// What the serving process says.
#[derive(Debug, Serialize, Deserialize)]
enum FromOld {
    /// There is nothing to be had.
    Refused { cause: String },
    /// So many messages with a socket each follow.
    Sockets { version: u32, count: usize },
    /// It accepts nothing any more.
    Draining,
}

/// One socket, which comes along. Those of one place have its number.
#[derive(Debug, Serialize, Deserialize)]
struct Handed {
    place: usize,
    door: Endpoint,
    address: String,
}

/// The user that this process runs as.
fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The way to the socket. A path that is too long for an address goes by the directory, which is open.
fn path_of(data_dir: &Path, open: &File) -> PathBuf {
    let path = data_dir.join(NAME);
    if path.as_os_str().len() <= PATH_BYTES_MAX {
        return path;
    }
    PathBuf::from(format!("/proc/self/fd/{}/{NAME}", open.as_raw_fd()))
}

/// The file whose lock says who can be taken over. Who may open a file may lock it, so it is for this user
/// alone, whereas the directory may be for all to read.
fn lock_file(data_dir: &Path) -> anyhow::Result<File> {
    let path = data_dir.join(LOCK_NAME);
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.open(&path).with_context(|| format!("cannot open {}", path.display()))
}

/// The sockets of a process that serves, and the way to tell it to let go of them.
#[derive(Debug)]
pub(crate) struct Offer {
    channel: Channel,
    places: Vec<(usize, BoundAddress)>,
    taken: Vec<usize>,
}

/// Asks the process that serves `data_dir` for its sockets; none if there is no such process. Blocks.
pub(crate) fn ask(data_dir: &Path) -> anyhow::Result<Option<Offer>> {
    let stream =
        File::open(data_dir).and_then(|open| UnixStream::connect(path_of(data_dir, &open)));
    let stream = match stream {
        Ok(stream) => stream,
        Err(error)
            if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(error).context("cannot ask who serves"),
    };
    let user = rustix::net::sockopt::socket_peercred(&stream)?.uid.as_raw();
    ensure!(user == own_user(), "it runs as another user ({user}); run this one as the same");
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    offered(stream).map(Some)
}

/// What the process at the other end offers.
fn offered(stream: UnixStream) -> anyhow::Result<Offer> {
    let mut channel = Channel::new(stream, MESSAGE_BYTES_MAX);
    channel.send(&FromNew::Hello { version: VERSION })?;
    let answer = channel.receive().context("it did not answer; is another takeover under way?")?;
    let count = match answer {
        Some(FromOld::Sockets { version: VERSION, count }) if count <= SOCKETS_MAX => count,
        Some(FromOld::Refused { cause }) => bail!("it refused: {cause}"),
        Some(other) => bail!("it gave an answer that this version does not know: {other:?}"),
        None => bail!("it closed the conversation"),
    };
    let mut sockets: Vec<(Handed, OwnedFd)> = Vec::new();
    for _ in 0..count {
        sockets.push(channel.receive_with()?);
    }
    Ok(Offer { channel, places: places(sockets)?, taken: Vec::new() })
}

/// The places that these sockets belong to.
fn places(sockets: Vec<(Handed, OwnedFd)>) -> anyhow::Result<Vec<(usize, BoundAddress)>> {
    let mut found: Vec<(Handed, Vec<OwnedFd>)> = Vec::new();
    for (handed, socket) in sockets {
        match found.last_mut() {
            Some((last, sockets)) if last.place == handed.place => sockets.push(socket),
            _ => found.push((handed, vec![socket])),
        }
    }
    let place = |(handed, sockets): (Handed, Vec<OwnedFd>)| {
        let address: Address = handed.address.parse().map_err(anyhow::Error::msg)?;
        Ok((handed.place, BoundAddress::inherited(handed.door, address, sockets)))
    };
    found.into_iter().map(place).collect()
}

impl Offer {
    /// The place at this address, if it is among those offered, for `door` from now on. Where the system
    /// was to choose ports, each door keeps its own.
    pub(crate) async fn take(&mut self, door: Endpoint, address: &Address) -> Option<BoundAddress> {
        let is_chosen = matches!(address, Address::Tcp(text) if text.ends_with(":0"));
        for of_other_doors in [false, true] {
            for index in 0..self.places.len() {
                let place = &self.places[index].1;
                if (place.door != door) == of_other_doors
                    && !(of_other_doors && is_chosen)
                    && place.is_at(address).await
                {
                    let (number, mut place) = self.places.remove(index);
                    self.taken.push(number);
                    place.door = door;
                    return Some(place);
                }
            }
        }
        None
    }

    /// Tells the old process to let go of everything, as this one serves. Blocks.
    pub(crate) fn serving(mut self) -> anyhow::Result<()> {
        self.channel.send(&FromNew::Serving { places: self.taken })?;
        match self.channel.receive()? {
            Some(FromOld::Draining) => Ok(()),
            other => bail!("an answer that was not expected: {other:?}"),
        }
    }
}

/// Whether a new process may have the sockets by now, and serve by them whatever becomes of this one.
#[derive(Debug, Default)]
pub(crate) struct UnderWay(AtomicBool);

impl UnderWay {
    fn set(&self, is_under_way: bool) {
        self.0.store(is_under_way, Ordering::Relaxed);
    }

    /// Leaves the files of `places` to the new process, if there may be one. What it does not want either
    /// is a dead socket, which the next start removes.
    pub(crate) fn leave(&self, places: &mut [BoundAddress]) {
        if self.0.load(Ordering::Relaxed) {
            places.iter_mut().for_each(BoundAddress::disown);
        }
    }
}

/// Serves `takeover.sock` until a new process has taken over, and returns which of `places` it took.
pub(crate) async fn given(
    data_dir: &Path,
    places: &[BoundAddress],
    under_way: &UnderWay,
) -> Vec<usize> {
    loop {
        let desk = match Desk::open(data_dir) {
            Ok(Some(desk)) => desk,
            Ok(None) => {
                tokio::time::sleep(RETRY).await;
                continue;
            }
            Err(error) => {
                tracing::warn!(
                    error = format!("{error:#}"),
                    "nobody can take over from this process"
                );
                return std::future::pending().await;
            }
        };
        loop {
            let taker = match desk.accept().await {
                Ok(taker) => taker,
                Err(error) => {
                    tracing::warn!(%error, "a takeover could not begin");
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            };
            under_way.set(true);
            match give(taker, places).await {
                Ok((taken, new)) => {
                    // First, so that the new process can have its place.
                    drop(desk);
                    if let Err(error) = answer(new, FromOld::Draining).await {
                        tracing::debug!(%error, "the new process did not wait for an answer");
                    }
                    return taken;
                }
                Err(error) => {
                    under_way.set(false);
                    let error = format!("{error:#}");
                    tracing::warn!(error, "a takeover was not finished; this process goes on");
                }
            }
        }
    }
}

/// The socket where new processes ask.
struct Desk {
    listener: UnixListener,
    /// Gone with the socket.
    file: PathBuf,
    /// Locked: of several processes on one data directory one can be taken over at a time.
    _lock: File,
    /// The way to the socket may go by it.
    _data_dir: File,
}

impl Drop for Desk {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.file);
    }
}

impl Desk {
    /// None where another process has it.
    fn open(data_dir: &Path) -> anyhow::Result<Option<Desk>> {
        let open = File::open(data_dir)?;
        let lock = lock_file(data_dir)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Ok(None),
            Err(std::fs::TryLockError::Error(error)) => return Err(error.into()),
        }
        let file = path_of(data_dir, &open);
        // Whoever left it is dead, or it would have the lock.
        match std::fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let listener = UnixListener::bind(&file)?;
        // Who connects before this is seen by the user that it is of.
        std::fs::set_permissions(&file, Permissions::from_mode(0o600))?;
        Ok(Some(Desk { listener, file, _lock: lock, _data_dir: open }))
    }

    async fn accept(&self) -> std::io::Result<UnixStream> {
        let (stream, _) = self.listener.accept().await?;
        stream.into_std()
    }
}

/// Hands the sockets over, and waits until the new process serves.
async fn give(taker: UnixStream, places: &[BoundAddress]) -> anyhow::Result<(Vec<usize>, Channel)> {
    let user = rustix::net::sockopt::socket_peercred(&taker)?.uid.as_raw();
    ensure!(user == own_user(), "user {user} is not the one that this process runs as");
    taker.set_nonblocking(false)?;
    taker.set_read_timeout(Some(PATIENCE))?;
    taker.set_write_timeout(Some(PATIENCE))?;
    let mut sockets = Vec::new();
    for (number, place) in places.iter().enumerate() {
        for socket in place.handles()? {
            let address = place.address.to_string();
            sockets.push((Handed { place: number, door: place.door, address }, socket));
        }
    }
    let (count, hangup) = (places.len(), taker.try_clone()?);
    // Ends the wait below if this is not waited for to its end, as on SIGTERM.
    let _hangup = Hangup(hangup);
    let handed = tokio::task::spawn_blocking(move || hand_over(taker, sockets));
    let (taken, channel) = handed.await??;
    ensure!(taken.iter().all(|&place| place < count), "it took what was not offered: {taken:?}");
    Ok((taken, channel))
}

fn hand_over(
    taker: UnixStream,
    sockets: Vec<(Handed, OwnedFd)>,
) -> anyhow::Result<(Vec<usize>, Channel)> {
    let patient = taker.try_clone()?;
    let mut channel = Channel::new(taker, MESSAGE_BYTES_MAX);
    match channel.receive().context("it did not say what it wants")? {
        Some(FromNew::Hello { version: VERSION }) => {}
        Some(FromNew::Hello { version }) => {
            let cause = format!("it speaks version {VERSION} of takeovers, and not {version}");
            channel.send(&FromOld::Refused { cause })?;
            bail!("the new process speaks version {version} of takeovers, this one {VERSION}");
        }
        other => bail!("it began with {other:?}"),
    }
    tracing::info!("a new process asks for the sockets");
    channel.send(&FromOld::Sockets { version: VERSION, count: sockets.len() })?;
    for (handed, socket) in &sockets {
        use std::os::fd::AsFd;
        channel.send_with(handed, socket.as_fd())?;
    }
    drop(sockets);
    // It opens the data directory and starts its workers, which takes as long as it takes.
    patient.set_read_timeout(None)?;
    match channel.receive()? {
        Some(FromNew::Serving { places }) => Ok((places, channel)),
        Some(other) => bail!("it said {other:?} where it should serve"),
        None => bail!("the new process ended before it served"),
    }
}

/// Closes a conversation under whoever waits for it.
struct Hangup(UnixStream);

impl Drop for Hangup {
    fn drop(&mut self) {
        // One that came to its end is to be answered yet.
        let _ = self.0.shutdown(std::net::Shutdown::Read);
    }
}

async fn answer(channel: Channel, message: FromOld) -> anyhow::Result<()> {
    tokio::task::spawn_blocking(move || channel.send(&message)).await?
}

/// Both sides of a takeover, beside a stream that says anything.
#[cfg(feature = "fuzzing")]
pub mod fuzzing {
    use super::{Offer, UnixStream, hand_over};

    /// The new process: number, door and address of each place that is offered.
    ///
    /// # Errors
    /// Why nothing is taken over.
    pub fn new_process(stream: UnixStream) -> anyhow::Result<Vec<(usize, &'static str, String)>> {
        let Offer { places, .. } = super::offered(stream)?;
        let place = |(number, place): &(usize, super::BoundAddress)| {
            (*number, place.door.name(), place.address.to_string())
        };
        Ok(places.iter().map(place).collect())
    }

    /// The process that serves, with nothing to hand over: which places the other one took.
    ///
    /// # Errors
    /// Why it goes on serving.
    pub fn old_process(stream: UnixStream) -> anyhow::Result<Vec<usize>> {
        hand_over(stream, Vec::new()).map(|(taken, _)| taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    async fn place(address: &str) -> BoundAddress {
        BoundAddress::open(Endpoint::Grpc, &address.parse().unwrap()).await.unwrap()
    }

    async fn asked(data_dir: &Path) -> anyhow::Result<Option<Offer>> {
        let data_dir = data_dir.to_owned();
        tokio::task::spawn_blocking(move || ask(&data_dir)).await.unwrap()
    }

    /// What is offered in `dir`, once somebody does.
    async fn offered(dir: &Path) -> Offer {
        loop {
            match asked(dir).await.unwrap() {
                Some(offer) => return offer,
                None => tokio::task::yield_now().await,
            }
        }
    }

    /// Serves `takeover.sock` while `new` runs.
    async fn beside<T>(dir: &Path, places: &[BoundAddress], new: impl Future<Output = T>) -> T {
        let under_way = UnderWay::default();
        tokio::select! {
            taken = given(dir, places, &under_way) => panic!("{taken:?} were taken"),
            done = new => done,
        }
    }

    #[tokio::test]
    async fn nobody_is_taken_over_from_nobody() {
        let dir = TempDir::new().unwrap();
        assert!(asked(dir.path()).await.unwrap().is_none());
        drop(UnixListener::bind(dir.path().join(NAME)).unwrap());
        assert!(asked(dir.path()).await.unwrap().is_none());
        assert!(asked(&dir.path().join("none")).await.unwrap().is_none());
    }

    #[tokio::test]
    async fn sockets_are_handed_over_by_who_wants_them() {
        let dir = TempDir::new().unwrap();
        // Longer than an address can be.
        let long = dir.path().join("x".repeat(120));
        std::fs::create_dir(&long).unwrap();
        let mut places = [place("127.0.0.1:0").await, place("127.0.0.1:0").await];
        places[1].widen(3).unwrap();
        let wanted: Address = places[1].describe().parse().unwrap();
        let new = async {
            let mut offer = offered(&long).await;
            let any = "127.0.0.1:0".parse().unwrap();
            assert!(offer.take(Endpoint::Http, &any).await.is_none(), "a port of another door");
            let mode = std::fs::metadata(long.join(NAME)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            assert!(offer.take(Endpoint::Frs, &"127.0.0.1:1".parse().unwrap()).await.is_none());
            let taken = offer.take(Endpoint::Frs, &wanted).await.unwrap();
            assert!(offer.take(Endpoint::Frs, &wanted).await.is_none(), "taken twice");
            assert_eq!(taken.door, Endpoint::Frs);
            assert_eq!(taken.handles().unwrap().len(), 3);
            tokio::task::spawn_blocking(move || offer.serving()).await.unwrap().unwrap();
            taken
        };
        let under_way = UnderWay::default();
        let (given, taken) = tokio::join!(given(&long, &places, &under_way), new);
        assert_eq!(given, [1]);
        assert!(!long.join(NAME).exists());
        drop(places);
        let bound = taken.bound().unwrap();
        std::net::TcpStream::connect(bound).expect("the socket lives on");
    }

    #[tokio::test]
    async fn who_gives_up_leaves_all_as_it_was() {
        let dir = TempDir::new().unwrap();
        let places = [place("127.0.0.1:0").await];
        beside(dir.path(), &places, async {
            drop(offered(dir.path()).await);
            // The next one is served.
            let mut offer = offered(dir.path()).await;
            assert!(offer.take(Endpoint::Grpc, &places[0].address).await.is_some());
        })
        .await;
    }

    #[tokio::test]
    async fn other_versions_are_refused_by_either_side() {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join(NAME);
        let refused = beside(dir.path(), &[], async {
            drop(offered(dir.path()).await);
            let path = path.clone();
            let asked = tokio::task::spawn_blocking(move || {
                let mut channel = Channel::new(UnixStream::connect(path)?, MESSAGE_BYTES_MAX);
                channel.send(&FromNew::Hello { version: 9 })?;
                channel.receive::<FromOld>()
            });
            asked.await.unwrap().unwrap()
        });
        let Some(FromOld::Refused { cause }) = refused.await else {
            panic!("a version that nobody knows was not refused")
        };
        assert_eq!(cause, "it speaks version 1 of takeovers, and not 9");

        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let old = tokio::task::spawn_blocking(move || {
            let mut channel = Channel::new(listener.accept().unwrap().0, MESSAGE_BYTES_MAX);
            channel.receive::<FromNew>().unwrap();
            channel.send(&FromOld::Sockets { version: 2, count: 0 }).unwrap();
        });
        let error = asked(dir.path()).await.unwrap_err().to_string();
        assert!(error.starts_with("it gave an answer that this version does not know"), "{error}");
        old.await.unwrap();
    }

    #[tokio::test]
    async fn one_process_at_a_time_can_be_taken_over() {
        let dir = TempDir::new().unwrap();
        let first = Desk::open(dir.path()).unwrap().unwrap();
        assert!(Desk::open(dir.path()).unwrap().is_none());
        let mode = std::fs::metadata(dir.path().join(LOCK_NAME)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "another user can lock it");
        drop(first);
        // What all may read anybody may lock.
        let directory = File::open(dir.path()).unwrap();
        directory.lock().unwrap();
        assert!(Desk::open(dir.path()).unwrap().is_some());
    }
}
