//! The bounds of a message, and why one is refused.

/// The most descriptors in one request. A route has a handful. A request locks all its counters together,
/// and the work grows with the square of their number.
pub const DESCRIPTORS_MAX: usize = 128;

/// The most entries in one descriptor. A limit is at most 30 levels deep, while the largest message has room
/// for a million entries.
pub const ENTRIES_MAX: usize = 256;

/// Why a message is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The domain is missing.
    #[error("rate limit domain must not be empty")]
    EmptyDomain,
    /// There are no descriptors.
    #[error("rate limit descriptor list must not be empty")]
    NoDescriptors,
    /// More descriptors than one request may have.
    #[error("too many descriptors for one request (maximum {DESCRIPTORS_MAX})")]
    TooManyDescriptors,
    /// More entries than a descriptor may have.
    #[error(
        "descriptors[{descriptor}]: too many entries for one descriptor (maximum {ENTRIES_MAX})"
    )]
    TooManyEntries {
        /// Index of the descriptor.
        descriptor: usize,
    },
    /// An entry without a key.
    #[error("descriptors[{descriptor}].entries[{entry}]: key must not be empty")]
    EmptyKey {
        /// Index of the descriptor.
        descriptor: usize,
        /// Index of the entry in it.
        entry: usize,
    },
    /// A descriptor without entries.
    #[error("descriptors[{0}]: entries must not be empty")]
    NoEntries(usize),
    /// A limit with an unknown unit.
    #[error("descriptors[{descriptor}].limit.unit: {unit} is not a unit (expected 1 to 7)")]
    UnknownUnit {
        /// Index of the descriptor.
        descriptor: usize,
        /// The number.
        unit: i32,
    },
    /// The bytes are not a response.
    #[error("not a RateLimitResponse: {0}")]
    Malformed(#[from] prost::DecodeError),
    /// The bytes are not a request.
    #[error("not a RateLimitRequest: {0}")]
    MalformedRequest(prost::DecodeError),
    /// The bytes are not a request, or a long one in an unusual encoding, which only short requests may use.
    #[error("not a RateLimitRequest, or one with groups, for which {0} bytes are too many")]
    OddRequest(usize),
    /// Malformed metadata of a lease or of a return.
    #[error("metadata {name}: {value:?} is not {expected}")]
    Metadata {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: String,
        /// The expected form.
        expected: &'static str,
    },
    /// The answer contains no decision.
    #[error("overall_code {0} is neither OK (1) nor OVER_LIMIT (2)")]
    UnknownCode(i32),
}
