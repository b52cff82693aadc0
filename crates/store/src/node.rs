//! One node: a key and two copies of its entry, written in turn so that a kill never tears both.
//!
//! Owns the order of the stores (docs/store-format.md, "Writing"), on which the crash promise rests:
//! whatever number of stores of an update has been made, the node reads as before it or as after it.
//! Takes no lock: the caller holds the one of the chain. Reads no clock, never allocates.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::key::{Entry, Key, halves};
use crate::region::Region;

/// Words of a node: two of key, two copies of seven words. 16 words are 128 bytes, so two cache
/// lines; the key and most of the first copy share the first one.
pub(crate) const NODE_WORDS: usize = 16;

const KEY_LOW: usize = 0;
const KEY_HIGH: usize = 1;
/// Where each copy starts in a node.
const COPIES: [usize; 2] = [2, 9];
/// Where each word is in a copy. The check is last, in the file and in time.
const VERSION: usize = 0;
const EXPIRES_AT: usize = 1;
const STATE: usize = 2;
const CHECK: usize = 6;
const COPY_WORDS: usize = CHECK + 1;

const _: () = assert!(STATE + 4 == CHECK);
const _: () = assert!(COPIES[0] == KEY_HIGH + 1);
const _: () = assert!(COPIES[1] == COPIES[0] + COPY_WORDS);
const _: () = assert!(COPIES[1] + COPY_WORDS == NODE_WORDS);

/// A node of the file.
#[derive(Clone, Copy)]
pub(crate) struct Node<'a> {
    region: &'a Region,
    /// Index of the node's first word.
    base: usize,
    seed: u64,
}

/// The valid copy of a node, with the highest version if both are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// Which copy: an index of [`COPIES`].
    copy: usize,
    version: u64,
    pub(crate) entry: Entry,
}

impl<'a> Node<'a> {
    pub(crate) const fn new(region: &'a Region, base: usize, seed: u64) -> Self {
        Self { region, base, seed }
    }

    /// Whether the node has no key.
    pub(crate) fn is_free(&self) -> bool {
        self.load(KEY_LOW) == 0 && self.load(KEY_HIGH) == 0
    }

    /// Whether this is the node of `key`. Says nothing about its copies.
    pub(crate) fn is_of(&self, key: Key) -> bool {
        let [low, high] = halves(key.bits());
        self.load(KEY_LOW) == low && self.load(KEY_HIGH) == high
    }

    /// The current copy, or nothing if neither is valid under the node's key.
    pub(crate) fn read(&self) -> Option<Held> {
        let [a, b] = COPIES.map(|copy| self.load(copy + VERSION));
        // The newer copy is nearly always the valid one, so this costs one check and not two.
        let newer = usize::from(b > a);
        self.read_copy(newer).or_else(|| self.read_copy(1 - newer))
    }

    /// Replaces the entry which `held`, just read from this node, describes.
    ///
    /// Seven stores, all in the copy that is not current. Until the last one, that copy's check is
    /// one of another version, so `held` stays the node's answer.
    pub(crate) fn update(&self, held: &Held, entry: &Entry) {
        let other = 1 - held.copy;
        // Wraps after 2^64 updates of one key: centuries at any rate that a machine can reach.
        self.write_copy(other, held.version.wrapping_add(1), entry);
    }

    /// Gives the node, which is free, invalid or expired, to another key.
    ///
    /// Both copies are revoked before the key changes, so no word of the former key's can ever be
    /// valid again, under this key or another; only then may versions start afresh.
    pub(crate) fn claim(&self, key: Key, entry: &Entry) {
        self.revoke();
        self.store_key(key.bits());
        self.write_copy(0, 1, entry);
    }

    /// Frees the node, which is invalid or expired.
    pub(crate) fn free(&self) {
        self.revoke();
        self.store_key(0);
    }

    /// Makes both copies invalid: no valid check is zero.
    ///
    /// The current copy goes last. Were it first, a kill in between would bring back the copy before
    /// it, which may have a later expiry.
    fn revoke(&self) {
        let current = self.read().map_or(0, |held| held.copy);
        self.store(COPIES[1 - current] + CHECK, 0);
        self.store(COPIES[current] + CHECK, 0);
    }

    /// Two stores. Between them the key is half one and half the other, which is why no copy may be
    /// valid at this time.
    fn store_key(&self, bits: u128) {
        let [low, high] = halves(bits);
        self.store(KEY_LOW, low);
        self.store(KEY_HIGH, high);
    }

    fn write_copy(&self, copy: usize, version: u64, entry: &Entry) {
        let at = COPIES[copy];
        self.store(at + VERSION, version);
        self.store(at + EXPIRES_AT, entry.expires_at);
        for (index, word) in entry.state.into_iter().enumerate() {
            self.store(at + STATE + index, word);
        }
        self.store(at + CHECK, self.check(version, entry));
    }

    fn read_copy(&self, copy: usize) -> Option<Held> {
        let at = COPIES[copy];
        let version = self.load(at + VERSION);
        let entry = Entry {
            state: std::array::from_fn(|index| self.load(at + STATE + index)),
            expires_at: self.load(at + EXPIRES_AT),
        };
        let is_valid = self.load(at + CHECK) == self.check(version, &entry);
        is_valid.then_some(Held { copy, version, entry })
    }

    /// The check of a copy, under the key that is in the node now. Never zero.
    ///
    /// xxh3 because it is here for the header anyway, mixes every bit of its 64 bytes into all 64 bits
    /// of the result, and takes the seed as its key: bytes from another store do not pass.
    fn check(&self, version: u64, entry: &Entry) -> u64 {
        let [a, b, c, d] = entry.state;
        let low = self.load(KEY_LOW);
        let high = self.load(KEY_HIGH);
        let mut bytes = [0; 64];
        let (words, _) = bytes.as_chunks_mut::<8>();
        for (to, word) in words.iter_mut().zip([low, high, version, entry.expires_at, a, b, c, d]) {
            *to = word.to_le_bytes();
        }
        xxh3_64_with_seed(&bytes, self.seed).max(1)
    }

    fn load(&self, word: usize) -> u64 {
        self.region.load(self.base + word)
    }

    fn store(&self, word: usize, value: u64) {
        self.region.store(self.base + word, value);
    }
}

#[cfg(test)]
mod tests;
