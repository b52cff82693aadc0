//! The messages between the supervisor and a worker. Both run the same program, so they need no version.

use crate::sockets::Endpoint;
use serde::{Deserialize, Serialize};
use tidegate_stats::{RuleUse, Snapshot};
use tidegate_top::{Decision, Summary};

pub(super) const MESSAGE_BYTES_MAX: usize = 128 * 1024 * 1024;

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToWorker {
    /// First: the number of this worker. Carries the file of the limits in force; `sockets` messages follow, each
    /// an [`AssignedSocket`].
    Start {
        index: u32,
        sockets: usize,
    },
    /// Every worker is ready and every socket listens: accept connections.
    Serve,
    Reload,
    /// New limits are in force. Carries their file, for workers that do not follow the sources themselves.
    Limits,
    /// Send the metrics, with this number.
    Report {
        round: u64,
    },
    /// Send the metrics that are few, with this number.
    Brief {
        round: u64,
    },
    /// Send the use of rules, with this number.
    Rules {
        round: u64,
    },
    /// Send who is limited now, with this number.
    Top {
        round: u64,
    },
    /// Send the decisions of the last seconds, with this number.
    Decisions {
        round: u64,
    },
    /// Finish the calls under way and exit.
    Drain,
}

/// A socket to serve. Carries its file descriptor.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct AssignedSocket {
    pub(super) endpoint: Endpoint,
    pub(super) address: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum FromWorker {
    /// Everything is open; the worker waits for [`ToWorker::Serve`].
    Ready,
    /// The worker runs. It sends this or another message every second.
    Alive,
    /// Its metrics. `round` is that of the last `Report` received.
    Metrics { round: u64, snapshot: Snapshot },
    /// The metrics that are few. `round` is that of the last `Brief` received.
    Brief { round: u64, snapshot: Snapshot },
    /// The use of rules. `round` is that of the last `Rules` received.
    Rules { round: u64, used: RuleUse },
    /// Who is limited now. `round` is that of the last `Top` received.
    Top { round: u64, summary: Summary },
    /// Decisions that were not sent before. `round` is that of the last `Decisions` received.
    Decisions { round: u64, decisions: Vec<Decision> },
}
