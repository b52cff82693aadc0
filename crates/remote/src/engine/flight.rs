//! What travels to a server and back: the changes of one group of keys, and what became of them.

use crate::image::Image;
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;
use tidegate_core::Timestamp;
use tidegate_store::Hashed;

/// The number of a batch. Never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FlightId(pub(crate) u64);

/// Changes that a server makes all or none, if every key still has the image that the change was made from.
#[derive(Debug, Clone)]
pub(crate) struct Flight {
    pub(crate) id: FlightId,
    /// The latest and the earliest time that an update in it was run at.
    pub(crate) latest: Timestamp,
    pub(crate) earliest: Timestamp,
    /// In the order of the keys, each once.
    pub(crate) changes: Arc<Changes>,
    /// How often a server has sent it to another one.
    pub(crate) hops: u8,
    /// Whether the server is to serve a slot that is on its way to it.
    pub(crate) is_asking: bool,
    /// Whether a server has said that it takes more than its plain commands.
    pub(crate) by_script: bool,
}

/// The change of one key. Equal images say that the key must not have changed.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) key: Hashed,
    pub(crate) before: Image,
    pub(crate) after: Image,
}

/// The changes of a flight. Most flights have one.
pub(crate) type Changes = SmallVec<[Change; 1]>;

/// How a flight ended.
#[derive(Debug, Clone)]
pub(crate) enum Landing {
    /// The server has made the changes.
    Done,
    /// It made none: another image was present, or another client is first in line. One image for each change.
    Lost(Vec<Image>),
    /// Nobody knows whether it made them.
    Failed(Cause),
}

/// Why a flight failed, in words. Many updates share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cause(Arc<str>);

impl Cause {
    /// The longest text that is kept of what a server says, in bytes.
    const MAX: usize = 300;

    /// A cause in words that may come from a server: shortened, and without control characters.
    pub(crate) fn new(text: &str) -> Cause {
        let printable = |char: char| if char.is_control() { ' ' } else { char };
        let mut words = String::with_capacity(text.len().min(Cause::MAX));
        for char in text.chars().map(printable) {
            if words.len() + char.len_utf8() > Cause::MAX {
                words.push('…');
                break;
            }
            words.push(char);
        }
        Cause(words.into())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
