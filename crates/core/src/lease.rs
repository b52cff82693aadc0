//! Leases: tokens that are charged to a counter in advance and spent by their holder.
//!
//! Only arithmetic: how many tokens a lease may have, and until when they may be spent without exceeding
//! any limit.

use crate::report::is_newer;
use crate::units::{Nanos, Timestamp};

/// What a client with support for leases adds to its request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRequest {
    /// The client's number for this request: unchanged when it is sent again, otherwise new. It determines
    /// the ids of the leases that the request is granted.
    pub call: u64,
    /// The Envoy process that sends the request.
    pub proxy: u64,
    /// The client's clock when it sent the request: any clock that never steps. Leases end by this clock.
    pub clock: Timestamp,
    /// For each descriptor, tokens wanted for future requests.
    pub wanted: Vec<u64>,
    /// For each descriptor, tokens wanted for requests that wait for this answer.
    pub waiting: Vec<u64>,
    /// The headers about limits that the client writes itself, for leased requests too.
    pub headers: HeaderForm,
}

/// The form of the headers about limits in a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HeaderForm {
    /// None.
    Off,
    /// Three headers of configured names, as envoyproxy/ratelimit writes them. No lease client does.
    Plain,
    /// `x-ratelimit-limit`, `-remaining` and `-reset`.
    Draft03,
    /// `RateLimit-Policy` and `RateLimit`.
    #[default]
    Ietf,
}

impl LeaseRequest {
    /// The id of the lease that request `call` is granted for the descriptor at `index`. The client knows
    /// it without the answer, so it can return tokens of a lease that it never received.
    #[must_use]
    pub fn lease_id(call: u64, index: usize) -> u64 {
        call.wrapping_add(index as u64)
    }
}

/// What a client adds to a request that returns tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseReturn {
    /// The client's number for this return: unchanged when it is sent again, otherwise new.
    pub call: u64,
    /// The lease of each descriptor.
    pub leases: Vec<u64>,
}

/// What a client adds to a request whose hits have already happened: they are counted even if they do not
/// fit, and each stream's descriptors by themselves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DebitRequest {
    /// The client's number for this request: unchanged when it is sent again, otherwise higher than all
    /// before it in its sequence (as wrapping numbers).
    pub call: u64,
    /// A random number of the sequence. The requests of a sequence come one after the other, so a request
    /// that is not newer than the last one has been counted.
    pub sequence: u64,
    /// How many of the descriptors belong to the first stream, to the next, and so on.
    pub streams: Vec<usize>,
    /// For each descriptor, how long ago its hits were taken. Only refunds need it.
    pub ages: Vec<Nanos>,
}

impl DebitRequest {
    /// Whether a request with this number comes after the one with number `last`.
    #[must_use]
    pub fn is_newer(&self, last: u64) -> bool {
        is_newer(self.call, last)
    }
}

/// Hits that a client wants beyond those of the request itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Demand {
    /// For requests that wait for the answer.
    pub waiting: u64,
    /// For future requests.
    pub wanted: u64,
}

/// The smallest capacity with tokens for future requests: two proxies would hold a good part of a smaller
/// one without using it.
const CAPACITY_MIN: u32 = 10;
/// A proxy gets one in this many of its even share of the remaining hits for future requests. So the rest
/// lasts for later requests, and leases shrink with it.
const SHARE: u64 = 4;

/// How many tokens to lease of a limit with this `capacity` and `left` remaining hits, which `proxies`
/// processes use. Never more than is left, and always less than [`Lease::UNLIMITED`]. Waiting requests come
/// first.
#[must_use]
pub fn lease_tokens(left: u64, capacity: u32, proxies: u32, demand: Demand) -> u32 {
    let waiting = demand.waiting.min(left);
    let rest = left - waiting;
    let ahead = match capacity {
        ..CAPACITY_MIN => 0,
        _ => demand.wanted.min(rest / (SHARE * u64::from(proxies.max(1)))),
    };
    u32::try_from(waiting + ahead).unwrap_or(u32::MAX).min(Lease::UNLIMITED - 1)
}

/// Tokens that the holder may spend without a call, or a decision that it may rely on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Identifies the lease when tokens are returned.
    pub id: u64,
    /// Hits that may be spent, each once. [`Lease::UNLIMITED`] if no limit applies. Zero if the descriptor
    /// is denied, and would be denied again until the lease ends.
    pub tokens: u32,
    /// The end of the lease, by the clock of the [`LeaseRequest`].
    pub valid_until: Timestamp,
}

impl Lease {
    /// Any number of hits: no limit applies to the descriptor.
    pub const UNLIMITED: u32 = u32::MAX;
    /// The id of leases without tokens to return: unlimited leases and denials.
    pub const NO_ID: u64 = 0;

    /// The end, by the holder's clock, of a lease that ends in `left` by the sidecar's clock. Slightly
    /// early, because the holder's clock may run slower, though never by as much as a thousandth. None if
    /// no time remains.
    #[must_use]
    pub fn deadline(left: Nanos, clock: Timestamp) -> Option<Timestamp> {
        let shortened = left.as_nanos() - left.as_nanos().div_ceil(1024);
        let until = clock.as_nanos().checked_add(shortened)?;
        (shortened > 0).then_some(Timestamp::from_nanos(until))
    }
}
