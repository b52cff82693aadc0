//! Events of the authority, for metrics and statistics.

use crate::counters::Undecided;
use crate::holdings::Failure;
use crate::outcome::Outcome;
use std::fmt;
use std::time::Duration;
use tidegate_core::{Entry, Verdict};
use tidegate_limits::{Limit, Rule, Rules};

/// Receives events. They come on the path of requests, so no method may block.
///
/// Endpoints are `grpc`, `http` and `frs`.
pub trait Observer: fmt::Debug + Send + Sync {
    /// New limits are in force. Decisions under them go to the observer that is returned.
    fn limits_replaced(&self, rules: &Rules) -> Box<dyn LimitObserver>;

    /// Whether only the limits concern it, so that no other event need be passed to it.
    fn is_idle(&self) -> bool {
        false
    }

    /// A rate limit call was answered.
    fn answered(&self, _verdict: Verdict) {}
    /// A call was allowed only by the global shadow mode.
    fn shadowed(&self) {}
    /// Descriptors were of a domain that has no limits.
    fn domain_not_found(&self, _descriptors: u64) {}
    /// A return of leased tokens was answered.
    fn tokens_returned(&self) {}
    /// A call was answered with an error.
    fn refused(&self) {}
    /// A call was not decided.
    fn undecided(&self, _error: &Undecided) {}

    /// A holding was refilled with tokens of a shared counter, or got a denial in place of them.
    fn refilled(&self, _tokens: u64) {}
    /// Tokens of a holding went back to their shared counter.
    fn gave_back(&self, _tokens: u64) {}
    /// Shared counters were not updated.
    fn shared_failed(&self, _error: &Undecided) {}
    /// A call was decided by the failure mode, since shared counters could not be reached.
    fn decided_without(&self, _failure: Failure) {}

    /// A call was refused unread, under overload.
    fn shed(&self, _endpoint: &'static str) {}
    /// Calls were answered, each at most this long after it was read.
    fn answered_within(&self, _endpoint: &'static str, _calls: u64, _time: Duration) {}
    /// A connection was accepted.
    fn connection_opened(&self, _endpoint: &'static str) {}
    /// One that was accepted has ended.
    fn connection_closed(&self, _endpoint: &'static str) {}
    /// A TLS handshake failed.
    fn tls_failed(&self, _cause: &'static str) {}
    /// A connection was refused, since there were as many as there may be.
    fn connection_refused(&self, _endpoint: &'static str) {}
    /// A connection was closed for another client.
    fn connection_gave_way(&self, _endpoint: &'static str) {}
    /// The HTTP endpoint answered a request. Paths that do not exist are `other`.
    fn http_answered(&self, _path: &'static str, _status: u16) {}

    /// Limits were read and put in force.
    fn limits_loaded(&self) {}
    /// Limits were read and had a mistake.
    fn limits_failed(&self) {}
    /// Whether the limits in force are those on disk.
    fn limits_current(&self, _is_current: bool) {}
}

/// Receives the decisions of the limits in force.
pub trait LimitObserver: fmt::Debug + Send + Sync {
    /// Whether it ignores everything, so that nothing need be passed to it.
    fn is_idle(&self) -> bool {
        false
    }
    /// The hits of a descriptor were decided, here or by the filter.
    fn decided(&self, outcome: &Outcome<'_>);
    /// Tokens were leased.
    fn leased(&self, of: (&Rule, &Limit), entries: &[Entry], tokens: u32);
    /// Leased tokens were given back.
    fn returned(&self, of: (&Rule, &Limit), entries: &[Entry], tokens: u64);
}

/// Ignores everything.
impl Observer for () {
    fn limits_replaced(&self, _rules: &Rules) -> Box<dyn LimitObserver> {
        Box::new(())
    }
}

impl LimitObserver for () {
    fn is_idle(&self) -> bool {
        true
    }
    fn decided(&self, _outcome: &Outcome<'_>) {}
    fn leased(&self, _of: (&Rule, &Limit), _entries: &[Entry], _tokens: u32) {}
    fn returned(&self, _of: (&Rule, &Limit), _entries: &[Entry], _tokens: u64) {}
}
