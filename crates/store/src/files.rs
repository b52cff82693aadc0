//! The files of a cluster: finding or making them, judging them, mapping them; and joining.
//!
//! Invariant: the directory under its final name is whole. It is made under another name, with all its
//! space set aside, and renamed when it is on the disk.
//! Invariant: one process at a time opens a cluster, and who finds nobody else there checks every node
//! before anybody uses one.
//!
//! Never changes a file that it refuses, and never deletes one but its own unfinished work.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{self, Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::retry_on_intr;
use xxhash_rust::xxh3::xxh3_64;

use crate::crew::Crew;
use crate::error::OpenError;
use crate::geometry::{Class, Geometry, HEADER_BYTES};
use crate::header::{self, Identity, Role};
use crate::memory::{ClassMemory, CleanedUp, Memory};
use crate::options::Options;
use crate::process::{Life, Lives};
use crate::region::{Access, Region, WORD_BYTES};
use crate::seat::{CONTROL_BYTES, PROCESSES_MAX};
use crate::verify;

/// The directory of the files, within the one that was asked for.
const CLUSTER: &str = "cluster";
/// The same in the making. One that is left over is replaced.
const CLUSTER_NEW: &str = "cluster.new";
/// Held while a process opens the cluster.
const GATE: &str = "cluster.lock";

/// Opening a cluster takes about a second for each 5 GiB.
const GATE_PATIENCE: Duration = Duration::from_secs(60);
const GATE_PAUSE: Duration = Duration::from_millis(5);

/// A cluster that this process has joined.
pub(crate) struct Opened {
    pub(crate) memory: Memory,
    pub(crate) crew: Crew,
    pub(crate) origin: Origin,
}

/// Opens the cluster in `dir`, and makes both if they are missing.
pub(crate) fn open(dir: &Path, options: &Options) -> Result<Opened, OpenError> {
    // The files are looked for again later, wherever the process works then.
    let dir = &path::absolute(dir).map_err(io_error("make sense of the path", dir))?;
    make_directory(dir)?;
    let _gate = pass_gate(dir)?;
    let cluster = dir.join(CLUSTER);
    if let Err(error) = fs::symlink_metadata(&cluster) {
        if error.kind() != io::ErrorKind::NotFound {
            return Err(io_error("look for the directory", &cluster)(error));
        }
        make(dir, &new_identity(options)?)?;
    }
    let (memory, origin, control) = map(&cluster, Access::Write)?;
    let lives = Lives::File(Arc::new(control));
    let Roll { mut free, is_alone } = call_the_roll(&cluster, &memory, &lives)?;
    if is_alone {
        verify::restore(&memory, boot());
    }
    let cleaned = free
        .iter()
        .map(|(process, _)| memory.clean_up_after(*process))
        .fold(CleanedUp::default(), CleanedUp::and);
    let Some((process, life)) = free.drain(..).next() else {
        return Err(OpenError::TooManyProcesses { path: dir.to_owned(), max: PROCESSES_MAX });
    };
    let crew = Crew::join(&memory, lives, life, process);
    if let Ok(seated) = crew.sit(&memory) {
        cleaned.count(&seated.seat);
    }
    Ok(Opened { memory, crew, origin })
}

/// A number for this boot of the machine: what was written in another one may be lost in part. 0 where it
/// cannot be told.
pub(crate) fn boot() -> u64 {
    let id = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    if id.is_empty() { 0 } else { xxh3_64(&id).max(1) }
}

/// Maps the cluster in `dir` for somebody who only looks. The file is the control file.
pub(crate) fn look(dir: &Path) -> Result<(Memory, Origin, File), OpenError> {
    let cluster = dir.join(CLUSTER);
    match fs::metadata(&cluster) {
        Ok(_) => map(&cluster, Access::Read),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(OpenError::NoCluster { path: dir.to_owned() })
        }
        Err(error) => Err(io_error("look for the directory", &cluster)(error)),
    }
}

fn make_directory(dir: &Path) -> Result<(), OpenError> {
    if dir.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(dir).map_err(io_error("create the directory", dir))?;
    match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_directory(parent),
        _ => Ok(()),
    }
}

/// Waits until no other process is opening the cluster.
fn pass_gate(dir: &Path) -> Result<File, OpenError> {
    let path = dir.join(GATE);
    let since = Instant::now();
    loop {
        let gate = open_gate(&path)?;
        match gate.try_lock() {
            Ok(()) => return Ok(gate),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(io_error("lock the file", &path)(error)),
        }
        if since.elapsed() >= GATE_PATIENCE {
            return Err(OpenError::Opening { path, seconds: GATE_PATIENCE.as_secs() });
        }
        thread::sleep(GATE_PAUSE);
    }
}

/// Opens the gate, and makes it if it is missing. Never waits: opening a FIFO would, until somebody reads.
fn open_gate(path: &Path) -> Result<File, OpenError> {
    let is_other = |metadata: fs::Metadata| !metadata.is_file();
    let not_a_file = || OpenError::NotAFile { path: path.to_owned() };
    // Before it is opened, which some devices take for an order.
    if fs::metadata(path).is_ok_and(is_other) {
        return Err(not_a_file());
    }
    let gate = OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed())
        .open(path)
        .map_err(io_error("open the file", path))?;
    let metadata = gate.metadata().map_err(io_error("look at the file", path))?;
    if is_other(metadata) { Err(not_a_file()) } else { Ok(gate) }
}

/// Who is there.
struct Roll {
    /// The numbers that are not taken by a living process, with the right to them.
    free: Vec<(u32, Life)>,
    is_alone: bool,
}

/// Waits while somebody who was killed in the middle of a restoration is not quite gone yet: what it left
/// may only be used after another one.
fn call_the_roll(cluster: &Path, memory: &Memory, lives: &Lives) -> Result<Roll, OpenError> {
    let since = Instant::now();
    loop {
        let mut roll = Roll { free: Vec::new(), is_alone: true };
        let path = cluster.join(Role::Control.file_name());
        for process in 0..PROCESSES_MAX {
            match lives.try_take(process).map_err(io_error("lock the file", &path))? {
                Some(life) => roll.free.push((process, life)),
                None => roll.is_alone = false,
            }
        }
        if roll.is_alone || !verify::is_being_restored(memory) {
            return Ok(roll);
        }
        if since.elapsed() >= GATE_PATIENCE {
            return Err(OpenError::Opening { path, seconds: GATE_PATIENCE.as_secs() });
        }
        drop(roll);
        thread::sleep(GATE_PAUSE);
    }
}

fn new_identity(options: &Options) -> Result<Identity, OpenError> {
    let path = Path::new("/dev/urandom");
    let mut bytes = [0; 24];
    File::open(path)
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(io_error("read a random seed", path))?;
    let [a, b, c] = [0, 1, 2].map(|index| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[8 * index..][..8]);
        u64::from_le_bytes(word)
    });
    let cluster = u128::from(a) << 64 | u128::from(b);
    Ok(Identity { cluster, seed: c, narrow: options.narrow, wide: options.wide })
}

/// Makes the cluster in `dir`, all at once as far as anybody can see.
fn make(dir: &Path, identity: &Identity) -> Result<(), OpenError> {
    let (new, cluster) = (dir.join(CLUSTER_NEW), dir.join(CLUSTER));
    match fs::remove_dir_all(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(io_error("remove an unfinished cluster", &new)(error));
        }
        _ => {}
    }
    fs::create_dir(&new).map_err(io_error("create the directory", &new))?;
    let made = fill(&new, identity).and_then(|()| {
        fs::rename(&new, &cluster).map_err(io_error("rename the new cluster", &cluster))
    });
    if made.is_err() {
        // Best effort, so that a disk which was too full is not left full; the first error counts.
        let _ = fs::remove_dir_all(&new);
    }
    made?;
    // The rename is on the disk once the directory is.
    sync_directory(dir)
}

fn fill(new: &Path, identity: &Identity) -> Result<(), OpenError> {
    for role in roles(identity) {
        let path = new.join(role.file_name());
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(io_error("create the file", &path))?;
        set_aside(&file, file_bytes(identity, role), &path)?;
        file.write_all_at(&header::encode(identity, role), 0)
            .and_then(|()| file.sync_all())
            .map_err(io_error("write the header", &path))?;
    }
    sync_directory(new)
}

/// Where a file of the cluster in `dir` is.
pub(crate) fn path(dir: &Path, role: Role) -> PathBuf {
    dir.join(CLUSTER).join(role.file_name())
}

/// Where all files of the cluster in `dir` are, the control file first.
pub(crate) fn paths(dir: &Path, identity: &Identity) -> Vec<PathBuf> {
    roles(identity).map(|role| path(dir, role)).collect()
}

/// All files of a cluster, the control file first.
fn roles(identity: &Identity) -> impl Iterator<Item = Role> {
    let files = Class::ALL
        .map(|class| (class, identity.geometry(class).map_or(0, |geometry| geometry.files())));
    let nodes = files
        .into_iter()
        .flat_map(|(class, files)| (0..files).map(move |file| Role::Nodes { class, file }));
    std::iter::once(Role::Control).chain(nodes)
}

fn file_bytes(identity: &Identity, role: Role) -> u64 {
    match role {
        Role::Control => CONTROL_BYTES,
        Role::Nodes { class, .. } => {
            identity.geometry(class).map_or(0, |geometry| geometry.file_bytes())
        }
    }
}

/// Maps all files of the cluster in the directory `cluster`.
fn map(cluster: &Path, access: Access) -> Result<(Memory, Origin, File), OpenError> {
    let control_path = cluster.join(Role::Control.file_name());
    let control_file = open_file(&control_path, access)?;
    let identity = read_header(&control_file, Role::Control, &control_path)?;
    let mut origin = Origin::default();
    let mut map_file = |file: &File, role: Role| {
        let path = cluster.join(role.file_name());
        let bytes = file_bytes(&identity, role);
        check_length(file, bytes, &path)?;
        if access == Access::Write {
            // A copy of a cluster, as from a backup, may have holes where the cluster had zeros.
            set_aside(file, bytes, &path)?;
        }
        let region = Region::map(file, (bytes / WORD_BYTES) as usize, access)
            .map_err(io_error("map the file", &path))?;
        origin.note(file, path)?;
        Ok(region)
    };
    let control = map_file(&control_file, Role::Control)?;
    let mut map_class = |class, geometry: Geometry| {
        let files = (0..geometry.files()).map(|file| {
            let role = Role::Nodes { class, file };
            let path = cluster.join(role.file_name());
            let file = open_file(&path, access)?;
            if read_header(&file, role, &path)? != identity {
                return Err(OpenError::WrongPlace { path, what: "a file of another cluster" });
            }
            map_file(&file, role)
        });
        Ok(ClassMemory::new(class, geometry, files.collect::<Result<_, OpenError>>()?))
    };
    let narrow = map_class(Class::Narrow, identity.narrow)?;
    let wide = identity.wide.map(|geometry| map_class(Class::Wide, geometry)).transpose()?;
    Ok((Memory::new(identity, control, narrow, wide), origin, control_file))
}

fn open_file(path: &Path, access: Access) -> Result<File, OpenError> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => {}
        Ok(_) => return Err(OpenError::NotAFile { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(OpenError::Missing { path: path.to_owned() });
        }
        Err(source) => return Err(io_error("look for the file", path)(source)),
    }
    OpenOptions::new()
        .read(true)
        .write(access == Access::Write)
        .open(path)
        .map_err(io_error("open the file", path))
}

/// Reads and judges the header.
fn read_header(file: &File, role: Role, path: &Path) -> Result<Identity, OpenError> {
    let found = file.metadata().map_err(io_error("read the length", path))?.len();
    if found < HEADER_BYTES as u64 {
        let expected = HEADER_BYTES as u64;
        return Err(OpenError::NoHeader { path: path.to_owned(), found, expected });
    }
    let mut bytes = [0; HEADER_BYTES];
    file.read_exact_at(&mut bytes, 0).map_err(io_error("read the header", path))?;
    header::decode(&bytes, role, path)
}

fn check_length(file: &File, expected: u64, path: &Path) -> Result<(), OpenError> {
    let found = file.metadata().map_err(io_error("read the length", path))?.len();
    if found == expected {
        return Ok(());
    }
    Err(OpenError::Length { path: path.to_owned(), found, expected })
}

/// Gives the first `bytes` bytes of the file their space on the disk, and changes none of them. Space
/// which is missing now would be missed in the middle of an update, as SIGBUS.
fn set_aside(file: &File, bytes: u64, path: &Path) -> Result<(), OpenError> {
    retry_on_intr(|| fallocate(file, FallocateFlags::empty(), 0, bytes))
        .map_err(|errno| OpenError::NoSpace { path: path.to_owned(), bytes, source: errno.into() })
}

fn sync_directory(dir: &Path) -> Result<(), OpenError> {
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(io_error("write the directory to the disk", dir))
}

fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    move |source| OpenError::Io { action, path: path.to_owned(), source }
}

/// Which files are mapped, so that it can be noticed when others are in their place.
#[derive(Debug, Default)]
pub(crate) struct Origin(Vec<Mapped>);

#[derive(Debug)]
struct Mapped {
    path: PathBuf,
    device: u64,
    inode: u64,
    bytes: u64,
}

impl Origin {
    fn note(&mut self, file: &File, path: PathBuf) -> Result<(), OpenError> {
        let metadata = file.metadata().map_err(io_error("read the length", &path))?;
        let (device, inode) = (metadata.dev(), metadata.ino());
        self.0.push(Mapped { path, device, inode, bytes: metadata.len() });
        Ok(())
    }

    /// Whether every file is still in its place, and as long as it was.
    pub(crate) fn check(&self) -> io::Result<()> {
        for mapped in &self.0 {
            let path = mapped.path.display();
            let metadata = fs::metadata(&mapped.path).map_err(|error| {
                io::Error::new(error.kind(), format!("{path}: the file in use is gone: {error}"))
            })?;
            if (metadata.dev(), metadata.ino()) != (mapped.device, mapped.inode) {
                let text = format!("{path}: another file is in the place of the one in use");
                return Err(io::Error::other(text));
            }
            if metadata.len() != mapped.bytes {
                let (found, expected) = (metadata.len(), mapped.bytes);
                let text = format!("{path}: found {found} bytes, expected {expected}");
                return Err(io::Error::other(text));
            }
        }
        Ok(())
    }
}
