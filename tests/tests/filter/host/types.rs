//! The words of the interface between a test and the host: identities, outcomes, recorded calls.
//!
//! Owns the numbering of the proxy-wasm ABI (`Status`, `LogLevel`). Holds no behaviour beyond
//! reading the values back.

use std::fmt;

use super::headers::Headers;

/// What a host call returns to the guest; the numbers are those of the proxy-wasm ABI.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Status {
    Ok = 0,
    NotFound = 1,
    BadArgument = 2,
    SerializationFailure = 3,
    ParseFailure = 4,
    /// A queue has no entries.
    Empty = 7,
    CasMismatch = 8,
    InternalFailure = 10,
}

/// Severity of a line that the guest logged; ordered from the most verbose.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum LogLevel {
    Trace = 0,
    Debug = 1,
    Info = 2,
    Warn = 3,
    Error = 4,
    Critical = 5,
}

impl LogLevel {
    /// The level with this ABI number.
    pub(super) fn from_abi(number: u32) -> Option<Self> {
        let all = [Self::Trace, Self::Debug, Self::Info, Self::Warn, Self::Error, Self::Critical];
        all.into_iter().find(|level| *level as u32 == number)
    }
}

/// One line that the guest logged, or wrote to standard output (info) or standard error (error).
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct LogLine {
    pub(crate) level: LogLevel,
    pub(crate) text: String,
}

/// A guest context: the root of the plugin, or one HTTP stream.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct ContextId(pub(super) u32);

impl ContextId {
    /// The root context of the first plugin. Each plugin's owns its ticks and callouts.
    pub(crate) const ROOT: Self = Self(1);
}

impl fmt::Display for ContextId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::ROOT { f.write_str("root") } else { write!(f, "stream {}", self.0) }
    }
}

/// Names one gRPC call in flight. Odd, as Envoy keeps the even numbers for gRPC streams.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub(crate) struct Token(pub(super) u32);

/// A gRPC call that the guest started.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct GrpcCall {
    pub(crate) token: Token,
    /// The effective context at the time of the call. Envoy runs the call on the root context
    /// whatever this is, so the call outlives the stream.
    pub(crate) context: ContextId,
    /// A cluster name or a serialized `GrpcService`, as the guest passed it.
    pub(crate) cluster: Vec<u8>,
    pub(crate) service: String,
    pub(crate) method: String,
    pub(crate) metadata: Headers,
    pub(crate) message: Vec<u8>,
    pub(crate) timeout_ms: u32,
}

/// What became of a request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Outcome {
    /// Let through at once.
    Continued,
    /// Held back, and still waiting.
    Paused,
    /// Held back, then let through.
    Resumed,
    /// Answered by the filter.
    LocalReply(LocalReply),
}

/// The answer that a filter gave in place of the upstream.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct LocalReply {
    pub(crate) status: u32,
    pub(crate) headers: Headers,
    pub(crate) body: Vec<u8>,
    /// `None` when the guest passed a negative number, which leaves the choice to Envoy.
    pub(crate) grpc_status: Option<u32>,
    /// Envoy's `response_code_details`; empty when the guest gave none.
    pub(crate) details: String,
}

impl LocalReply {
    /// The headers of the response that Envoy makes of it.
    pub(super) fn response_headers(&self) -> Headers {
        let status = self.status.to_string();
        let mut headers: Vec<(&str, &[u8])> = vec![(":status", status.as_bytes())];
        headers.extend(self.headers.iter());
        Headers::new(&headers)
    }
}

/// The guest is dead: it trapped, or did what the host refuses.
#[derive(Clone, Debug)]
pub(crate) struct Trap {
    pub(crate) message: String,
    pub(super) logs: Vec<LogLine>,
}

impl fmt::Display for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Enough to see a panic message and what led to it, without drowning the test's output.
        const LINES_MAX: usize = 30;

        write!(f, "{}", self.message)?;
        let skipped = self.logs.len().saturating_sub(LINES_MAX);
        write!(f, "\nthe guest's log ({skipped} earlier lines left out):")?;
        for line in self.logs.iter().skip(skipped) {
            write!(f, "\n  {:?}: {}", line.level, line.text)?;
        }
        Ok(())
    }
}
