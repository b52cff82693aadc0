//! Charges of entries whose cost is settled when the stream ends, or that refund. Kept apart, so that
//! requests of other configurations do not pay for them.

use super::format::Command;
use super::rate_limit::Source;

/// When an entry is charged, and for what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LateCharge {
    /// Its hits are counted when the stream ends, even if they do not fit (`apply_on_stream_done`).
    DebitAtEnd(LateCost),
    /// Its hits are refunded when the stream ends (with `is_negative_hits`).
    RefundAtEnd(LateCost),
    /// Its hits are refunded when the request arrives (`is_negative_hits` alone).
    RefundAtStart(LateCost),
    /// It takes an estimate when the request arrives. The difference is settled when the stream
    /// ends.
    Estimate {
        /// The hits that are taken at first.
        estimate: u64,
        /// What the stream has cost.
        actual: LateCost,
    },
}

/// The source of a cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LateCost {
    /// A constant.
    Number(u64),
    /// A value of the request, the response or the stream.
    Value(Box<Command>),
}

/// When a cost can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CostMoment {
    /// When the request has arrived. Without a number it is 1, as clients write it.
    Request,
    /// When the response headers have arrived. Without a number nothing is charged.
    Response,
    /// When the stream ends. The same.
    End,
}

impl LateCharge {
    /// The cost of a stream; none if all is charged when the request arrives.
    pub(crate) fn at_end(&self) -> Option<&LateCost> {
        match self {
            LateCharge::DebitAtEnd(cost)
            | LateCharge::RefundAtEnd(cost)
            | LateCharge::Estimate { actual: cost, .. } => Some(cost),
            LateCharge::RefundAtStart(_) => None,
        }
    }
}

impl LateCost {
    /// When it is read. Headers exist only in their phase.
    pub(crate) fn moment(&self) -> CostMoment {
        match self {
            LateCost::Number(_) => CostMoment::Request,
            LateCost::Value(command) => match command.fact.source {
                Source::Header(_) | Source::Parameter(_) | Source::Cookie(_) => CostMoment::Request,
                Source::ResponseHeader(_) => CostMoment::Response,
                Source::Property(_) | Source::Text(_) => CostMoment::End,
            },
        }
    }
}
