//! Leases: tokens that are charged to a counter in advance, and spent by the one who holds them.
//!
//! Pure arithmetic, as everything here: how many tokens a lease may have, and until when hits that
//! are charged now may be spent without any limit being exceeded.

use crate::units::{Nanos, Timestamp};

/// What a client that understands leases says beside its request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRequest {
    /// The client's number for this ask: the same when it is sent again, and otherwise a new one. It
    /// names the leases that the ask is granted.
    pub call: u64,
    /// Who asks: one number per Envoy process.
    pub proxy: u64,
    /// What the client's own clock said when it asked. Any clock that never steps; leases are told in it.
    pub clock: Timestamp,
    /// Tokens wanted for requests to come, for each descriptor.
    pub wanted: Vec<u64>,
    /// Tokens wanted for requests that are waiting for this answer, for each descriptor.
    pub waiting: Vec<u64>,
}

impl LeaseRequest {
    /// The id of the lease that ask `call` is granted for the descriptor at `index`. The client knows it
    /// without the answer, and so can give back what it was never told of.
    #[must_use]
    pub fn lease_id(call: u64, index: usize) -> u64 {
        call.wrapping_add(index as u64)
    }
}

/// What a client says beside a request that gives tokens back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseReturn {
    /// The client's number for this return: the same when it is sent again, and otherwise a new one.
    pub call: u64,
    /// The lease of each descriptor.
    pub leases: Vec<u64>,
}

/// Hits that a client would use, beyond those of the request itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Demand {
    /// For requests that wait for the answer.
    pub waiting: u64,
    /// For requests to come.
    pub wanted: u64,
}

/// The smallest limit that has tokens for requests to come: of a smaller one, two proxies would hold
/// a good part without using it.
const CAPACITY_MIN: u32 = 10;
/// Of what is left, a proxy gets one in so many of its even share for requests to come. So the rest
/// lasts for those who ask later, and leases shrink as it does.
const SHARE: u64 = 4;

/// How many tokens to lease of a limit of this `capacity` with so many hits `left`, which so many
/// `proxies` use. Never more than is left, nor [`Lease::UNLIMITED`]. Those who wait come first.
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

/// What a holder may spend, or be sure of, without asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Names it when tokens are given back.
    pub id: u64,
    /// Hits that may be spent, each once. [`Lease::UNLIMITED`] where no limit applies; none where the
    /// descriptor is denied, and would be denied again until then.
    pub tokens: u32,
    /// Until when, by the clock of the [`LeaseRequest`].
    pub valid_until: Timestamp,
}

impl Lease {
    /// Any number of hits: the descriptor meets no limit.
    pub const UNLIMITED: u32 = u32::MAX;
    /// The id of leases that have nothing to give back: free ones, and those of nothing.
    pub const NO_ID: u64 = 0;

    /// How long after the ask the holder may go by a lease that ends in `left` by the sidecar's clock.
    /// A bit less: the holder's clock may run slower, though never by a thousandth. None if that is
    /// no time at all.
    #[must_use]
    pub fn deadline(left: Nanos, clock: Timestamp) -> Option<Timestamp> {
        let told = left.as_nanos() - left.as_nanos().div_ceil(1024);
        let until = clock.as_nanos().checked_add(told)?;
        (told > 0).then_some(Timestamp::from_nanos(until))
    }
}
