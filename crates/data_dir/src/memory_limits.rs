//! Memory limits of the control groups of this process, and the free space of a file system.
//!
//! Counters in a tmpfs count against the limit of the container, and a page beyond it ends a process with
//! SIGKILL. So limits are read before files are created. Reads both versions of cgroups, with all visible
//! ancestors; an unreadable file limits nothing. Decides nothing.

use rustix::fs::statvfs;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

/// Larger limits mean "no limit": version 1 writes a number close to 2^63.
const UNLIMITED: u64 = 1 << 60;

/// A limit of a control group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Limit {
    pub file: PathBuf,
    pub bytes: u64,
    /// Memory in use that cannot be reclaimed: pages of files on disk can, those of a tmpfs cannot.
    pub used: u64,
}

impl Limit {
    pub(crate) fn left(&self) -> u64 {
        self.bytes.saturating_sub(self.used)
    }
}

/// The limits of the control groups of this process, the one with the least memory left first.
pub(crate) fn of_process() -> Vec<Limit> {
    limits(Path::new("/"))
}

/// The same, with /proc and /sys below `root`.
fn limits(root: &Path) -> Vec<Limit> {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let groups = groups(&read("proc/self/cgroup"));
    let mut limits = Vec::new();
    for mount in mounts(&read("proc/self/mountinfo")) {
        let group = groups.iter().find(|(version, _)| *version == mount.version);
        let Some((_, group)) = group else { continue };
        let top = below(root, &mount.point);
        let own = mount.directory_of(group);
        // From the group itself up to the highest visible one.
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

/// Version of cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The groups of a process that may limit memory, from /proc/self/cgroup.
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

/// A mount of the groups of one version.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    version: Version,
    /// The group at the mount point.
    group: PathBuf,
    point: PathBuf,
}

impl Mount {
    /// The directory of a group below the mount point. A group outside of the mount, as with the mounts of
    /// another namespace, is taken for the one at the mount point.
    fn directory_of(&self, group: &Path) -> PathBuf {
        let below = group.strip_prefix(&self.group).unwrap_or(Path::new(""));
        let is_plain = below.components().all(|part| matches!(part, Component::Normal(_)));
        if is_plain { below.to_owned() } else { PathBuf::new() }
    }
}

/// The mounts of cgroups with the memory controller, from /proc/self/mountinfo.
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

/// Decodes a path in which the kernel writes blanks and the like as a backslash and three octal digits.
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
    // Above memory.high, processes are throttled until they make no progress.
    let limits = ["memory.max", "memory.high"].map(|name| directory.join(name));
    let limits = limits.into_iter().filter_map(|file| Some((number(&file)?, file)));
    let (bytes, file) = limits.min()?;
    let cached = cached(directory, ["inactive_file", "active_file"]);
    let used = number(&directory.join("memory.current"))?.saturating_sub(cached);
    Some(Limit { file, bytes, used })
}

fn limit_v1(directory: &Path, is_own: bool) -> Option<Limit> {
    // Without hierarchy, a group does not limit its descendants.
    let is_flat = || number(&directory.join("memory.use_hierarchy")) == Some(0);
    if !is_own && is_flat() {
        return None;
    }
    let file = directory.join("memory.limit_in_bytes");
    let bytes = number(&file)?;
    let cached = cached(directory, ["total_inactive_file", "total_active_file"]);
    let used = number(&directory.join("memory.usage_in_bytes"))?.saturating_sub(cached);
    Some(Limit { file, bytes, used })
}

/// A number of bytes; none for "no limit".
fn number(file: &Path) -> Option<u64> {
    let number = fs::read_to_string(file).ok()?.trim().parse().ok()?;
    (number < UNLIMITED).then_some(number)
}

/// Pages of files on disk, which the kernel reclaims when memory is short.
fn cached(directory: &Path, names: [&str; 2]) -> u64 {
    let text = fs::read_to_string(directory.join("memory.stat")).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    let cached = lines.filter(|(name, _)| names.contains(name));
    cached.filter_map(|(_, bytes)| bytes.parse::<u64>().ok()).fold(0, u64::saturating_add)
}

/// The file system that a directory is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileSystem {
    /// The directory, or its lowest existing ancestor.
    pub directory: PathBuf,
    /// Bytes that this process can still write.
    pub free: u64,
}

/// The file system that `directory` is on, or will be on when it is created.
pub(crate) fn file_system(directory: &Path) -> io::Result<FileSystem> {
    let absolute = std::path::absolute(directory)?;
    let mut result = Err(io::ErrorKind::NotFound.into());
    for directory in absolute.ancestors() {
        result = free_space(directory);
        if !matches!(&result, Err(error) if error.kind() == io::ErrorKind::NotFound) {
            break;
        }
    }
    result
}

fn free_space(directory: &Path) -> io::Result<FileSystem> {
    let space = statvfs(directory)?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    Ok(FileSystem { directory: directory.to_owned(), free })
}

#[cfg(test)]
mod tests;
