//! The seed of the counters' keys, as servers have it: 16 hexadecimal digits under a name of its own.
//!
//! Whatever a server has first becomes the seed of this process. Refuses another one from then on, as the keys of this
//! process would be others.

use crate::shared::Shared;
use std::fmt;

/// A seed, as text in a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seed(pub(crate) u64);

/// What a server has in the place of our seed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WrongSeed {
    #[error(
        "key {name} of the server should be the seed of the counters' keys, 16 hexadecimal digits; delete it, or \
         choose another prefix"
    )]
    Unreadable { name: String },
    #[error(
        "key {name} of the server is {there}, but the keys of this sidecar are hashed with {own}; restart the sidecar \
         to use the server's"
    )]
    Other { name: String, there: Seed, own: Seed },
}

impl Seed {
    /// The name of the key that has it.
    pub(crate) fn name(prefix: &str) -> String {
        format!("{prefix}seed")
    }

    fn read(text: &[u8]) -> Option<Seed> {
        let text = str::from_utf8(text).ok().filter(|text| text.len() == 16)?;
        u64::from_str_radix(text, 16).ok().map(Seed)
    }
}

impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl Shared {
    /// Compares the seed that was found in a server with ours. The first one becomes ours.
    pub(crate) fn compare_seed(&self, prefix: &str, found: &[u8]) -> Result<(), WrongSeed> {
        let name = Seed::name(prefix);
        let Some(there) = Seed::read(found) else { return Err(WrongSeed::Unreadable { name }) };
        let own = Seed(*self.seed.get_or_init(|| there.0));
        if own == there { Ok(()) } else { Err(WrongSeed::Other { name, there, own }) }
    }
}
