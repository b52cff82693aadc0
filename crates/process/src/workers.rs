//! Worker processes: a supervisor starts them, hands them their sockets, and starts again those that end.

mod backoff;
mod messages;
mod supervised;
mod supervisor;
mod table;
mod worker;

pub(crate) use supervisor::serve as supervise;
pub(crate) use worker::run as run_worker;
