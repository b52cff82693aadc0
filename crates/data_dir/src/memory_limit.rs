//! How much memory there is: the limits of the control groups of this process, and the space of a file system.
//!
//! Counters in a tmpfs count against the limit of the container, and a page beyond it ends a process with
//! SIGKILL. So limits are looked at before files are made. Reads both versions of cgroups, with all ancestors
//! that can be seen; what cannot be read limits nothing. Decides nothing.

use rustix::fs::statvfs;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

/// Limits from here on are none: version 1 says "no limit" by a number close to 2^63.
const UNLIMITED: u64 = 1 << 60;

/// A limit of a control group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Limit {
    /// The file that has it.
    pub file: PathBuf,
    pub bytes: u64,
    /// How much of it is in use and cannot be given up: pages of files on disk can, those of a tmpfs cannot.
    pub used: u64,
}

impl Limit {
    pub(crate) fn left(&self) -> u64 {
        self.bytes.saturating_sub(self.used)
    }
}

/// The limits of the control groups of this process, the one with least left first.
pub(crate) fn of_process() -> Vec<Limit> {
    limits(Path::new("/"))
}

/// The same, where /proc and /sys are below `root`.
fn limits(root: &Path) -> Vec<Limit> {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let groups = groups(&read("proc/self/cgroup"));
    let mut limits = Vec::new();
    for mount in mounts(&read("proc/self/mountinfo")) {
        let group = groups.iter().find(|(version, _)| *version == mount.version);
        let Some((_, group)) = group else { continue };
        let top = below(root, &mount.point);
        let own = mount.directory_of(group);
        // From the group itself up to the highest one that can be seen.
        for ancestor in own.ancestors() {
            let directory = top.join(ancestor);
            let is_own = ancestor == own;
            limits.extend(match mount.version {
                Version::One => limit_v1(&directory, is_own),
                Version::Two => limit_v2(&directory),
            });
        }
    }
    limits.sort_by_key(Limit::left);
    limits
}

/// Of the interface to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The groups of a process that may limit memory, as /proc/self/cgroup has them.
fn groups(text: &str) -> Vec<(Version, PathBuf)> {
    let group = |line: &str| {
        let mut fields = line.splitn(3, ':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let version = if id == "0" && controllers.is_empty() {
            Version::Two
        } else if controllers.split(',').any(|controller| controller == "memory") {
            Version::One
        } else {
            return None;
        };
        Some((version, PathBuf::from(path)))
    };
    text.lines().filter_map(group).collect()
}

/// Where the groups of one version can be seen.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    version: Version,
    /// The group that is seen at the top.
    group: PathBuf,
    point: PathBuf,
}

impl Mount {
    /// The directory of a group below the mount point. A group that is not below the one at the top, as with
    /// the mounts of another namespace, is taken for that.
    fn directory_of(&self, group: &Path) -> PathBuf {
        let below = group.strip_prefix(&self.group).unwrap_or(Path::new(""));
        let is_plain = below.components().all(|part| matches!(part, Component::Normal(_)));
        if is_plain { below.to_owned() } else { PathBuf::new() }
    }
}

/// The mounts of cgroups with memory, as /proc/self/mountinfo has them.
fn mounts(text: &str) -> Vec<Mount> {
    let mount = |line: &str| {
        let (place, kind) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (group, point) = (unescaped(place.next()?), unescaped(place.next()?));
        let mut kind = kind.split(' ');
        let (name, options) = (kind.next()?, kind.nth(1)?);
        let version = match name {
            "cgroup2" => Version::Two,
            "cgroup" if options.split(',').any(|option| option == "memory") => Version::One,
            _ => return None,
        };
        Some(Mount { version, group, point })
    };
    text.lines().filter_map(mount).collect()
}

/// A path in which the kernel has written blanks and the like as a backslash and three octal digits.
fn unescaped(path: &str) -> PathBuf {
    let mut parts = path.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code.filter(u8::is_ascii) {
            Some(code) => {
                plain.push(char::from(code));
                plain.push_str(&part[3..]);
            }
            None => {
                plain.push('\\');
                plain.push_str(part);
            }
        }
    }
    plain.into()
}

/// An absolute path in the tree below `root`.
fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn limit_v2(directory: &Path) -> Option<Limit> {
    // Above memory.high processes are held up until they stand still.
    let limits = ["memory.max", "memory.high"].map(|name| directory.join(name));
    let limits = limits.into_iter().filter_map(|file| Some((number(&file)?, file)));
    let (bytes, file) = limits.min()?;
    let used = number(&directory.join("memory.current"))?;
    let cached = cached(directory, ["inactive_file", "active_file"]);
    Some(Limit { file, bytes, used: used.saturating_sub(cached) })
}

fn limit_v1(directory: &Path, is_own: bool) -> Option<Limit> {
    // Such a group does not limit the ones below it.
    let is_flat = || number(&directory.join("memory.use_hierarchy")) == Some(0);
    if !is_own && is_flat() {
        return None;
    }
    let file = directory.join("memory.limit_in_bytes");
    let bytes = number(&file)?;
    let used = number(&directory.join("memory.usage_in_bytes"))?;
    let cached = cached(directory, ["total_inactive_file", "total_active_file"]);
    Some(Limit { file, bytes, used: used.saturating_sub(cached) })
}

/// A number of bytes; none where it means that there is no limit.
fn number(file: &Path) -> Option<u64> {
    let number = fs::read_to_string(file).ok()?.trim().parse().ok()?;
    (number < UNLIMITED).then_some(number)
}

/// Pages of files on disk, which the kernel gives up when memory is short.
fn cached(directory: &Path, names: [&str; 2]) -> u64 {
    let text = fs::read_to_string(directory.join("memory.stat")).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    let cached = lines.filter(|(name, _)| names.contains(name));
    cached.filter_map(|(_, bytes)| bytes.parse::<u64>().ok()).fold(0, u64::saturating_add)
}

/// The file system that a directory is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileSystem {
    /// The directory, or the lowest one above it that is there.
    pub directory: PathBuf,
    /// Bytes that this process may still write.
    pub free: u64,
}

/// Asks about the file system that `directory` is on, or would be if it were made.
pub(crate) fn file_system(directory: &Path) -> io::Result<FileSystem> {
    let absolute = std::path::absolute(directory)?;
    let mut result = Err(io::ErrorKind::NotFound.into());
    for directory in absolute.ancestors() {
        result = look(directory);
        if !matches!(&result, Err(error) if error.kind() == io::ErrorKind::NotFound) {
            break;
        }
    }
    result
}

fn look(directory: &Path) -> io::Result<FileSystem> {
    let space = statvfs(directory)?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    Ok(FileSystem { directory: directory.to_owned(), free })
}

#[cfg(test)]
mod tests;
