//! Finds the files that hold limits and reads their bytes: bounded, each file once, and only from regular
//! files, which can neither block nor be endless.

use crate::diagnostic::{Diagnostic, LoadErrors};
use std::ffi::OsStr;
use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The largest file, in bytes: 200,000 rules of some 300 bytes each.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// All files of a directory, which are in memory together: four of the largest.
const ALL_BYTES_MAX: u64 = 4 * FILE_BYTES_MAX;

/// How a path to neither a file nor a directory is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pipes {
    /// As an error: it would be read repeatedly, and may block for ever.
    Refuse,
    /// Like a file, which is read once, for a shell's `<(command)`. In a directory it is still an error.
    Allow,
}

/// Limits that were read once: those at a path, or those that feeds have brought.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    /// The files, or why they cannot be listed.
    files: Result<Vec<SourceFile>, String>,
    origin: Origin,
}

/// Where the limits of a source come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A path, where no file at all is a mistake.
    Path,
    /// Feeds that have all brought their limits. They may have none.
    Feeds,
    /// Feeds, and at least one has not brought its limits yet. An unknown domain may be among those.
    AwaitedFeeds,
}

#[derive(Debug, Clone)]
pub struct SourceFile {
    pub path: PathBuf,
    /// The contents, or why they cannot be read.
    pub bytes: Result<Vec<u8>, String>,
}

impl Source {
    /// Blocks.
    pub fn read(path: &Path, pipes: Pipes) -> Source {
        Source::read_with(path, pipes, || {})
    }

    /// Calls `between` after each file.
    pub fn read_with(path: &Path, pipes: Pipes, mut between: impl FnMut()) -> Source {
        let mut files = Vec::new();
        let listed = each_file(path, pipes, |file| {
            files.push(file);
            between();
        });
        Source { path: path.to_owned(), files: listed.map(|()| files), origin: Origin::Path }
    }

    /// Reads `input` to its end, whose messages go by the name `stdin.yaml`, or `stdin.xml` if it is XML.
    pub fn read_from(mut input: impl Read) -> Source {
        let bytes = read_bounded(&mut input, FILE_BYTES_MAX);
        let is_xml = bytes.as_ref().is_ok_and(|bytes| bytes.trim_ascii_start().starts_with(b"<"));
        let path = PathBuf::from(if is_xml { "stdin.xml" } else { "stdin.yaml" });
        let file = SourceFile { path: path.clone(), bytes };
        Source { path, files: Ok(vec![file]), origin: Origin::Path }
    }

    /// Limits that feeds have brought, each with a name in place of a path. `path` names them all.
    pub fn brought(path: &Path, files: Vec<SourceFile>, origin: Origin) -> Source {
        Source { path: path.to_owned(), files: Ok(files), origin }
    }

    /// The files, at least one where a path must have one.
    pub fn listed(&self) -> Result<&[SourceFile], LoadErrors> {
        let whole = |message: &str| LoadErrors(vec![Diagnostic::new(&self.path, None, message)]);
        match self.files() {
            Ok([]) if self.origin == Origin::Path => {
                Err(whole("no *.yaml, *.yml or *.xml file in this directory"))
            }
            files => files.map_err(whole),
        }
    }

    pub fn origin(&self) -> Origin {
        self.origin
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn files(&self) -> Result<&[SourceFile], &str> {
        self.files.as_deref().map_err(String::as_str)
    }

    /// Serializes the files for another process; none unless all could be read.
    pub fn to_bytes(&self) -> Option<Vec<u8>> {
        let mut bytes = vec![match self.origin {
            Origin::Path => 0,
            Origin::Feeds => 1,
            Origin::AwaitedFeeds => 2,
        }];
        for file in self.files().ok()? {
            for part in [file.path.as_os_str().as_bytes(), file.bytes.as_ref().ok()?] {
                bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
                bytes.extend_from_slice(part);
            }
        }
        Some(bytes)
    }

    /// Deserializes the files that another process read at `path`; none if the bytes are incomplete.
    pub fn from_bytes(path: &Path, bytes: &[u8]) -> Option<Source> {
        let (origin, mut bytes) = bytes.split_first()?;
        let origin = match origin {
            0 => Origin::Path,
            1 => Origin::Feeds,
            2 => Origin::AwaitedFeeds,
            _ => return None,
        };
        let mut files = Vec::new();
        while !bytes.is_empty() {
            let name = OsStr::from_bytes(next_part(&mut bytes)?);
            let text = next_part(&mut bytes)?.to_vec();
            files.push(SourceFile { path: name.into(), bytes: Ok(text) });
        }
        Some(Source { path: path.to_owned(), files: Ok(files), origin })
    }

    /// Why nothing at all could be read at the path, if so.
    pub fn unreadable(&self) -> Option<&str> {
        match self.files() {
            Err(cause) => Some(cause),
            Ok([file]) if file.path == self.path => file.bytes.as_ref().err().map(String::as_str),
            Ok(_) => None,
        }
    }
}

/// Removes the first of several length-prefixed parts.
fn next_part<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = bytes.split_first_chunk()?;
    let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
    let (part, rest) = rest.split_at_checked(length)?;
    *bytes = rest;
    Some(part)
}

/// The files with limits at `path`, sorted. Links are followed, because a mounted Kubernetes ConfigMap
/// consists of links.
pub fn limits_files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs::metadata(path)?.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path)? {
        let file = entry?.path();
        let hidden = file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        let is_limits =
            |extension: &OsStr| ["yaml", "yml", "xml"].iter().any(|of| extension == *of);
        if file.extension().is_some_and(is_limits) && !hidden {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

/// Reads each file with limits at `path` in order. Fails if the files cannot be listed.
pub fn each_file(
    path: &Path,
    pipes: Pipes,
    mut take: impl FnMut(SourceFile),
) -> Result<(), String> {
    let mut room = ALL_BYTES_MAX;
    for file in limits_files(path).map_err(|error| format!("cannot read: {error}"))? {
        let pipes = if file == path { pipes } else { Pipes::Refuse };
        let bytes = read(&file, pipes, room);
        room = room.saturating_sub(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64));
        take(SourceFile { path: file, bytes });
    }
    Ok(())
}

/// The bytes of a file, of at most `room`.
fn read(file: &Path, pipes: Pipes, room: u64) -> Result<Vec<u8>, String> {
    let cannot = |cause: io::Error| format!("cannot read: {cause}");
    let opened = match pipes {
        Pipes::Allow => File::open(file).map_err(cannot)?,
        Pipes::Refuse => {
            // Checked before opening, because opening a device may have effects; and again below, because
            // the file may have been replaced since. Opening never waits.
            be_file(fs::metadata(file).map_err(cannot)?.file_type())?;
            let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
            let flags = flags.bits().cast_signed();
            OpenOptions::new().read(true).custom_flags(flags).open(file).map_err(cannot)?
        }
    };
    let metadata = opened.metadata().map_err(cannot)?;
    if pipes == Pipes::Refuse {
        be_file(metadata.file_type())?;
    }
    let most = FILE_BYTES_MAX.min(room);
    let mut bytes = Vec::new();
    if metadata.len() <= most {
        // One more byte reveals a file that is larger than its metadata says.
        opened.take(most + 1).read_to_end(&mut bytes).map_err(cannot)?;
    }
    if metadata.len().max(bytes.len() as u64) <= most {
        return Ok(bytes);
    }
    Err(if most == FILE_BYTES_MAX {
        format!("more than {FILE_BYTES_MAX} bytes; split the file")
    } else {
        format!("this file and those before it have more than {ALL_BYTES_MAX} bytes")
    })
}

/// All bytes of an input without a size.
fn read_bounded(input: &mut impl Read, most: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = input.take(most + 1).read_to_end(&mut bytes);
    read.map_err(|cause| format!("cannot read: {cause}"))?;
    match bytes.len() as u64 <= most {
        true => Ok(bytes),
        false => Err(format!("more than {most} bytes; split the file")),
    }
}

/// Refuses anything but a regular file.
fn be_file(kind: FileType) -> Result<(), String> {
    let name = match kind {
        kind if kind.is_file() => return Ok(()),
        kind if kind.is_dir() => "directory",
        kind if kind.is_fifo() => "FIFO",
        kind if kind.is_socket() => "socket",
        _ => "device",
    };
    Err(format!("is a {name}, not a file"))
}

/// The text of a file.
pub(super) fn text(file: &SourceFile) -> Result<&str, Diagnostic> {
    let bytes = file.bytes.as_ref().map_err(|cause| Diagnostic::new(&file.path, None, cause))?;
    std::str::from_utf8(bytes).map_err(|cause| {
        let before = String::from_utf8_lossy(&bytes[..cause.valid_up_to()]);
        let position = tidegate_xml::position(&before, before.len());
        Diagnostic::new(&file.path, position, "this is not UTF-8")
    })
}
