//! Why an operation was not done.

use tidegate_remote::LinkError;

/// Why an operation on counters in a server was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WarmError {
    /// There is no connection, or no answer in time, or one that nobody asked for.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The server refuses.
    #[error("{0}")]
    Refused(String),
    /// Another answer than the command has.
    #[error("the server answers {0} with something else")]
    Nonsense(&'static str),
    /// Something that this program did not write.
    #[error("{key} has what is no counter; its counters are lost if you delete it")]
    Damaged {
        /// The key in the server.
        key: String,
    },
    /// A state that no counter has.
    #[error("a state of {words} words is longer than one may be")]
    TooLong {
        /// Its words.
        words: usize,
    },
    /// The numbers of buckets of this program and of the server cannot both be right.
    #[error("the number of buckets in {key} changed during the operation")]
    Buckets {
        /// The key in the server.
        key: String,
    },
    /// Others took the fence in each try.
    #[error("other processes changed counters during each of {tries} tries")]
    Contended {
        /// How often it was tried.
        tries: u32,
    },
    /// A number of buckets that is not possible.
    #[error("2^{found} buckets are not allowed (2^0 to 2^{max})")]
    BucketsMax {
        /// The logarithm of the number that was asked for.
        found: u8,
        /// The highest logarithm.
        max: u8,
    },
    /// [`crate::Warm::close`] was called.
    #[error("the connection is closed")]
    Closed,
}
