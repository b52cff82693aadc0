//! [`Host`] and [`RequestFacts`] as Envoy itself. Owns which context the next host call acts on, and the
//! numbers of the metrics. What Envoy refuses becomes nothing, or a value that says so.

use super::abi::{self, Map};
use super::{Call, CallId, Conflict, Host, LogLevel, SharedValue, StreamId, Unsent};
use super::{Header, Reply, RequestFacts};
use crate::host::stats::MetricKind;
use std::cell::{Cell, RefCell};
use tidegate_core::Timestamp;

/// The contexts of the callback that runs.
#[derive(Clone, Copy)]
struct Contexts {
    /// What Envoy called for.
    current: u32,
    /// What the next host call acts on.
    effective: u32,
}

thread_local! {
    static CONTEXTS: Cell<Contexts> = const { Cell::new(Contexts { current: 0, effective: 0 }) };
    static METRICS: RefCell<Vec<(String, u32)>> = const { RefCell::new(Vec::new()) };
    static PATH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A callback for this context begins; Envoy has made it the effective one.
pub(crate) fn enter(context: u32) {
    CONTEXTS.with(|contexts| contexts.set(Contexts { current: context, effective: context }));
}

/// Makes host calls act on this context; false when Envoy knows it no more.
fn act_on(context: u32) -> bool {
    CONTEXTS.with(|contexts| {
        let now = contexts.get();
        if now.effective == context {
            return true;
        }
        let set = abi::set_effective_context(context).is_ok();
        if set {
            contexts.set(Contexts { effective: context, ..now });
        }
        set
    })
}

fn act_on_current() -> bool {
    act_on(CONTEXTS.with(Cell::get).current)
}

/// Envoy, for one plugin.
#[derive(Debug)]
pub(crate) struct Envoy {
    /// A queue that only this plugin in this worker reads and writes: Envoy's event loop calls the plugin
    /// for each entry, which is the only way to be called soon and from nothing else.
    wake_queue: u32,
}

impl Envoy {
    /// To be called while the plugin's root is the current context. None when Envoy gives no queue.
    pub(crate) fn new() -> Option<Envoy> {
        // Queues are common to all workers by name, so each has a name of its own.
        let own = u64::from_le_bytes(abi::random()?);
        let wake_queue = abi::register_queue(&format!("tidegate.wake.{own:016x}")).ok()?;
        Some(Envoy { wake_queue })
    }
}

/// Writes a log line.
pub(crate) fn log(level: LogLevel, message: &str) {
    let level = match level {
        LogLevel::Info => 2,
        LogLevel::Warn => 3,
        LogLevel::Error => 4,
    };
    abi::log(level, &format!("tidegate: {message}"));
}

/// The impossible version: passed for a key that was never set, so that of two workers that create it
/// only one succeeds. Envoy's 0 would let the later one win. Versions count the writes of the whole
/// process and so could come to it after four thousand million; then two workers may both believe
/// that they created a key, once.
const CREATE: u32 = u32::MAX;

impl Host for Envoy {
    fn now(&self) -> Timestamp {
        // Without a clock every lease has ended: better to ask than to spend too late.
        Timestamp::from_nanos(abi::monotonic_nanos().unwrap_or(u64::MAX))
    }

    fn random(&self) -> u64 {
        abi::random().map_or_else(|| self.now().as_nanos(), u64::from_le_bytes)
    }

    fn shared(&self, key: &str) -> SharedValue {
        match abi::shared_data(key, <[u8]>::to_vec) {
            Ok((bytes, version)) => {
                SharedValue { bytes: Some(bytes).filter(|bytes| !bytes.is_empty()), version }
            }
            Err(_) => SharedValue::default(),
        }
    }

    fn set_shared(&self, key: &str, value: &[u8], version: u32) -> Result<(), Conflict> {
        let cas = if version == 0 { CREATE } else { version };
        abi::set_shared_data(key, value, cas).map_err(|_| Conflict)
    }

    fn call(&self, call: &Call<'_>) -> Result<CallId, Unsent> {
        let metadata = call.metadata.iter().map(|(name, value)| (*name, value.as_str()));
        let metadata = abi::pairs(metadata);
        let sent = abi::grpc_call(&abi::GrpcCall {
            target: call.target.as_bytes(),
            service: tidegate_wire::RLS_SERVICE,
            method: tidegate_wire::RLS_METHOD,
            metadata: &metadata,
            message: call.message,
            // To Envoy 0 is no timeout at all.
            timeout_ms: u32::try_from(call.timeout.as_millis()).unwrap_or(u32::MAX).max(1),
        });
        sent.map(CallId).map_err(|status| match status {
            abi::Status::INTERNAL_FAILURE => Unsent::FailedAtOnce,
            _ => Unsent::Refused,
        })
    }

    fn cancel(&self, call: CallId) {
        let _ = abi::cancel_grpc_call(call.0);
    }

    fn wake(&self) -> bool {
        abi::add_to_queue(self.wake_queue).is_ok()
    }

    fn resume(&self, stream: StreamId) {
        if act_on(stream.0) {
            let _ = abi::continue_request();
        }
    }

    fn reply(&self, stream: StreamId, reply: &Reply) {
        if act_on(stream.0) {
            let headers = reply.headers.iter().map(|(name, value)| (*name, value.as_str()));
            let headers = abi::pairs(headers);
            let body = reply.body.as_bytes();
            let _ = abi::send_local_response(reply.status, &reply.details, body, &headers);
        }
    }

    fn add_response_headers(&self, headers: &[Header]) {
        if act_on_current() {
            for (name, value) in headers {
                let _ = abi::add_header(Map::ResponseHeaders, name, value);
            }
        }
    }

    /// Once per name in the life of the machine, however many plugins ask: Envoy keeps every number
    /// that it gives.
    fn define_metric(&self, kind: MetricKind, name: &str) -> Option<u32> {
        METRICS.with(|metrics| {
            let mut metrics = metrics.try_borrow_mut().ok()?;
            if let Some((_, id)) = metrics.iter().find(|(known, _)| known == name) {
                return Some(*id);
            }
            let kind = match kind {
                MetricKind::Counter => 0,
                MetricKind::Gauge => 1,
            };
            let id = abi::define_metric(kind, name).ok()?;
            metrics.push((name.to_owned(), id));
            Some(id)
        })
    }

    fn add_to_metric(&self, metric: u32, amount: i64) {
        let _ = abi::increment_metric(metric, amount);
    }

    fn log(&self, level: LogLevel, message: &str) {
        log(level, message);
    }
}

/// The request whose headers have just come. At any other time it has no headers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CurrentRequest;

impl RequestFacts for CurrentRequest {
    fn header<T>(&self, name: &str, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        if !act_on_current() {
            return None;
        }
        abi::header(Map::RequestHeaders, name, read).ok()
    }

    fn property<T>(&self, path: &[&str], read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        if !act_on_current() {
            return None;
        }
        PATH.with(|joined| {
            let mut joined = joined.try_borrow_mut().ok()?;
            joined.clear();
            for (index, part) in path.iter().enumerate() {
                if index > 0 {
                    joined.push(0);
                }
                joined.extend_from_slice(part.as_bytes());
            }
            abi::property(&joined, read).ok()
        })
    }
}
