//! What the filter needs of Envoy, as one trait: the rest of the crate calls nothing else.
//!
//! On wasm32 it is Envoy itself (`envoy`, over `abi`); in tests and in the simulator it is a stand-in. No call can
//! panic: what Envoy refuses comes back as a value.

#[cfg(target_arch = "wasm32")]
pub(crate) mod abi;
#[cfg(target_arch = "wasm32")]
pub(crate) mod envoy;
#[cfg(any(test, target_arch = "wasm32"))]
mod value_buffer;

pub mod stats;

use stats::MetricKind;
use std::borrow::Cow;
use std::time::Duration;
use tidegate_core::Timestamp;
pub use tidegate_wire::headers::Header;

/// One request, by Envoy's number for it. Never used twice in a worker's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

/// One call to the sidecar, by Envoy's number for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u32);

/// A value of the data that all workers of an Envoy process share.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SharedValue {
    /// The bytes; none when the key was never set, or was emptied.
    pub bytes: Option<Vec<u8>>,
    /// What to pass to [`Host::set_shared`] to change just this; 0 when the key was never set.
    pub version: u32,
}

/// The value was changed by another worker since it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conflict;

/// Why a call was not begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsent {
    /// Envoy does not take it: the cluster is not there, for instance.
    Refused,
    /// It failed at once. Why comes as the end of a call that nobody knows, when the callback has returned.
    FailedAtOnce,
}

/// A call to the sidecar.
#[derive(Debug)]
pub struct Call<'a> {
    /// Where to: a serialized `GrpcService`.
    pub target: &'a str,
    /// The call's metadata.
    pub metadata: &'a [(&'static str, String)],
    /// The serialized request.
    pub message: &'a [u8],
    /// After this Envoy ends it.
    pub timeout: Duration,
}

/// A response made by the filter itself.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status.
    pub status: u32,
    /// Headers besides those that Envoy adds.
    pub headers: Vec<Header>,
    /// The body.
    pub body: String,
    /// Why, for Envoy's access log, which has it as `%RESPONSE_CODE_DETAILS%`. Clients never see it.
    pub details: Cow<'static, str>,
}

/// How much a log line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// What an operator may want to know.
    Info,
    /// What an operator should look at.
    Warn,
    /// What stops the filter from working.
    Error,
}

/// Envoy, as one worker sees it.
pub trait Host {
    /// A clock that never steps, common to all workers of the process. Not a time of day.
    fn now(&self) -> Timestamp;
    /// Random bits.
    fn random(&self) -> u64;
    /// Reads a value that all workers share.
    fn shared(&self, key: &str) -> SharedValue;
    /// Writes a value that all workers share, if it still has the version that was read. (For version
    /// 0: if the key is still not there.)
    ///
    /// # Errors
    /// When another worker was first.
    fn set_shared(&self, key: &str, value: &[u8], version: u32) -> Result<(), Conflict>;
    /// Calls the sidecar; its end comes as an event of the worker, even when the stream at hand is
    /// gone by then.
    ///
    /// # Errors
    /// When it was not begun.
    fn call(&self, call: &Call<'_>) -> Result<CallId, Unsent>;
    /// Gives a call up: its end will not come.
    fn cancel(&self, call: CallId);
    /// Has the worker's `on_wake` called soon, by Envoy's event loop itself. False when that cannot be.
    fn wake(&self) -> bool;
    /// Lets a paused request go on, once the callback has returned.
    fn resume(&self, stream: StreamId);
    /// Answers a request that is paused, or whose headers are at hand, once the callback has returned.
    fn reply(&self, stream: StreamId, reply: &Reply);
    /// Adds headers to the response at hand.
    fn add_response_headers(&self, headers: &[Header]);
    /// Defines one of Envoy's stats, or finds it.
    fn define_metric(&self, kind: MetricKind, name: &str) -> Option<u32>;
    /// Adds to a counter (more than 0) or a gauge.
    fn add_to_metric(&self, metric: u32, amount: i64);
    /// Writes a log line.
    fn log(&self, level: LogLevel, message: &str);
}

/// What the filter can see of a request. A value is handed to `read` where it lies, so that reading it
/// needs no memory; none when there is no such value.
pub trait RequestFacts {
    /// The first value of a header. The first, as Envoy's own `request_headers` action takes it,
    /// so that a client cannot change its key by repeating the header.
    fn header<T>(&self, name: &str, read: impl FnOnce(&[u8]) -> T) -> Option<T>;
    /// One of Envoy's properties, such as `source.address`: `ip:port`, after its own reading of
    /// `x-forwarded-for`.
    fn property<T>(&self, path: &[&str], read: impl FnOnce(&[u8]) -> T) -> Option<T>;
}
