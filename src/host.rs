//! Envoy as the filter uses it: a trait with the host calls, and the values that they exchange.
//!
//! On wasm32 the trait is Envoy itself (`envoy`, over `abi`); tests and the simulator implement it
//! too. No call panics: a refusal by Envoy is a return value.

#[cfg(target_arch = "wasm32")]
pub(crate) mod abi;
#[cfg(target_arch = "wasm32")]
pub(crate) mod envoy;
#[cfg(any(test, target_arch = "wasm32"))]
mod pairs;
#[cfg(any(test, target_arch = "wasm32"))]
mod value_buffer;

pub mod stats;

use stats::MetricKind;
use std::borrow::Cow;
use std::time::Duration;
use tidegate_core::Timestamp;
pub use tidegate_wire::headers::Header;

/// A header whose name is not one of the filter's own.
pub type NamedHeader = (String, String);

/// Envoy's id of a request. Never reused in the life of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u32);

/// Envoy's id of a call to the sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u32);

/// A value of the data that all workers of an Envoy process share.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SharedValue {
    /// The bytes; none if the key was never set, or was emptied.
    pub bytes: Option<Vec<u8>>,
    /// The version to pass to [`Host::set_shared`]; 0 if the key was never set.
    pub version: u32,
}

/// Another worker changed the value since it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conflict;

/// Why a call was not started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsent {
    /// Envoy refused it, for instance because the cluster does not exist.
    Refused,
    /// It failed at once. The cause arrives after the callback, as the end of an unknown call.
    FailedAtOnce,
}

/// A call to the sidecar.
#[derive(Debug)]
pub struct Call<'a> {
    /// The target: a serialized `GrpcService`.
    pub target: &'a [u8],
    /// gRPC metadata.
    pub metadata: &'a [(&'static str, String)],
    /// The serialized request.
    pub message: &'a [u8],
    /// Envoy ends the call after this time.
    pub timeout: Duration,
}

/// A local reply.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status.
    pub status: u32,
    /// Headers besides those that Envoy adds.
    pub headers: Vec<Header>,
    /// Configured headers besides those.
    pub added: Vec<NamedHeader>,
    /// The body.
    pub body: String,
    /// The status for a gRPC client; without one it follows from `status`.
    pub grpc_status: Option<u32>,
    /// The reason in Envoy's access log (`%RESPONSE_CODE_DETAILS%`). Clients never see it.
    pub details: Cow<'static, str>,
}

/// Severity of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// Information for an operator.
    Info,
    /// A problem that an operator should look at.
    Warn,
    /// A problem that stops the filter from working.
    Error,
}

/// Envoy, as one worker sees it.
pub trait Host {
    /// A monotonic clock, common to all workers of the process. Not a time of day.
    fn now(&self) -> Timestamp;
    /// Random bits.
    fn random(&self) -> u64;
    /// Reads a shared value.
    fn shared(&self, key: &str) -> SharedValue;
    /// Writes a shared value if its version is unchanged (for version 0: if the key is still
    /// absent).
    ///
    /// # Errors
    /// If another worker wrote first.
    fn set_shared(&self, key: &str, value: &[u8], version: u32) -> Result<(), Conflict>;
    /// Calls the sidecar. The result arrives as an event of the worker, even if the current stream
    /// is gone by then.
    ///
    /// # Errors
    /// If the call was not started.
    fn call(&self, call: &Call<'_>) -> Result<CallId, Unsent>;
    /// Cancels a call: no result will arrive.
    fn cancel(&self, call: CallId);
    /// Asks Envoy's event loop to call the worker's `on_wake` soon. False if that is impossible.
    fn wake(&self) -> bool;
    /// Resumes a paused request once the callback has returned.
    fn resume(&self, stream: StreamId);
    /// Sends a local reply to a paused request, or to the one whose headers callback runs, once the
    /// callback has returned.
    fn reply(&self, stream: StreamId, reply: &Reply);
    /// Reads the first value of a header of a request that [`Host::reply`] may answer.
    fn request_header<T>(
        &self,
        stream: StreamId,
        name: &str,
        read: impl FnOnce(&[u8]) -> T,
    ) -> Option<T>;
    /// Adds headers to the current response.
    fn add_response_headers(&self, headers: &[Header]);
    /// Adds headers of the service's choice to the current response.
    fn append_response_headers(&self, headers: &[NamedHeader]);
    /// Adds headers of the service's choice to a paused request.
    fn append_request_headers(&self, stream: StreamId, headers: &[NamedHeader]);
    /// Sets `wasm.<name>` in the filter state of a request, which access logs can show.
    fn set_filter_state(&self, stream: StreamId, name: &str, value: &str);
    /// Defines one of Envoy's metrics, or finds it.
    fn define_metric(&self, kind: MetricKind, name: &str) -> Option<u32>;
    /// Adds to a counter (more than 0) or to a gauge.
    fn add_to_metric(&self, metric: u32, amount: i64);
    /// Writes a log line.
    fn log(&self, level: LogLevel, message: &str);
}

/// The parts of a request that the filter can read. A value is passed to `read` in place, so that
/// reading does not allocate; none if there is no such value.
pub trait RequestFacts {
    /// The first value of a header. Only the first, as in Envoy's own `request_headers` action, so
    /// that a client cannot change its key by repeating the header.
    fn header<T>(&self, name: &str, read: impl FnOnce(&[u8]) -> T) -> Option<T>;
    /// Reads each value of a header in turn until `read` finds what it looks for. For headers whose
    /// values belong together.
    fn find_header<T>(&self, name: &str, read: impl FnMut(&[u8]) -> Option<T>) -> Option<T> {
        self.header(name, read).flatten()
    }
    /// The first value of a header of the response; none before it has arrived.
    fn response_header<T>(&self, _name: &str, _read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        None
    }
    /// One of Envoy's properties, such as `source.address`: `ip:port`, after Envoy has evaluated
    /// `x-forwarded-for`.
    fn property<T>(&self, path: &[&str], read: impl FnOnce(&[u8]) -> T) -> Option<T>;
}

/// A stream without readable values, for workers outside of Envoy.
#[derive(Debug, Clone, Copy)]
pub struct NoFacts;

impl RequestFacts for NoFacts {
    fn header<T>(&self, _name: &str, _read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        None
    }

    fn property<T>(&self, _path: &[&str], _read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        None
    }
}
