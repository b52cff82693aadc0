//! The counter store of Tidegate: many small counters in one preallocated, memory-mapped file.
//!
//! Owns the file, its format (specified in `docs/store-format.md`) and the locks around it. One
//! process owns a store at a time, and any number of its threads update it. A counter is four words
//! of state and an expiry; what the words mean is the caller's business.
//!
//! Invariant: a process killed at any instruction loses no completed update, and leaves every
//! counter as it was either before or after the update that was interrupted.
//! Invariant: a live counter is never evicted. A full chain is an error, never a looser limit.
//! Invariant: this crate knows no limit and no algorithm, and reads no clock.
//!
//! ```
//! use tidegate_store::{Key, Options, Store};
//! use xxhash_rust::xxh3::xxh3_128_with_seed;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! let store = Store::open(dir.path(), &Options { capacity: 1024 })?;
//! let key = Key::from_hash(xxh3_128_with_seed(b"user=7", store.seed()));
//!
//! let now = 1_700_000_000_000_000_000;
//! let hits = store.update_many(&[key], now, |entries| {
//!     entries[0].state[0] += 1;
//!     entries[0].expires_at = now + 60_000_000_000;
//!     entries[0].state[0]
//! })?;
//! assert_eq!(hits, 1);
//! # Ok(())
//! # }
//! ```

#[cfg(not(all(target_pointer_width = "64", target_endian = "little")))]
compile_error!("the counter file is little-endian and mapped whole: a 64-bit target is needed");

mod error;
mod file;
mod header;
mod key;
mod node;
mod region;
mod stats;
mod store;
mod stripes;

pub use error::{OpenError, UpdateError};
pub use file::Options;
pub use key::{Entry, Key};
pub use stats::Stats;
pub use store::Store;
