//! [`Host`] and [`RequestFacts`] implemented by Envoy. Owns the effective context of the next host
//! call and the ids of the metrics. A refusal by Envoy becomes none, or an error value.

use super::abi::{self, Map};
use super::{
    Call, CallId, Conflict, Header, Host, LogLevel, NamedHeader, Reply, RequestFacts, SharedValue,
    StreamId, Unsent, pairs,
};
use crate::host::stats::MetricKind;
use std::cell::{Cell, RefCell};
use tidegate_core::Timestamp;

thread_local! {
    /// The context that Envoy called.
    static CURRENT: Cell<u32> = const { Cell::new(0) };
    /// The context that the next host call acts on.
    static EFFECTIVE: Cell<u32> = const { Cell::new(0) };
    static METRICS: RefCell<Vec<(String, u32)>> = const { RefCell::new(Vec::new()) };
    static PATH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Starts a callback; Envoy has made its context the effective one.
pub(crate) fn enter(context: u32) {
    CURRENT.set(context);
    EFFECTIVE.set(context);
}

/// Makes host calls act on this context; false if Envoy no longer knows it.
fn act_on(context: u32) -> bool {
    if EFFECTIVE.get() == context {
        return true;
    }
    let set = abi::set_effective_context(context).is_ok();
    if set {
        EFFECTIVE.set(context);
    }
    set
}

fn act_on_current() -> bool {
    act_on(CURRENT.get())
}

/// Envoy, for one plugin.
#[derive(Debug)]
pub(crate) struct Envoy {
    /// A queue that only this plugin in this worker uses. Envoy's event loop calls the plugin for
    /// each entry: the only way to be called soon, and outside of any other callback.
    wake_queue: u32,
}

impl Envoy {
    /// Must run while the plugin's root is the current context. None if Envoy gives no queue.
    pub(crate) fn new() -> Option<Envoy> {
        // Workers share queues by name, so each needs its own name.
        let own = u64::from_le_bytes(abi::random()?);
        let wake_queue = abi::register_queue(&format!("tidegate.wake.{own:016x}")).ok()?;
        Some(Envoy { wake_queue })
    }
}

/// An impossible version, passed for a key that was never set, so that only one of two workers can
/// create it; with 0 the later one would win. Envoy counts versions per process, so after 2^32
/// writes a version could equal it: then two workers may both create a key, once.
const CREATE: u32 = u32::MAX;

impl Host for Envoy {
    fn now(&self) -> Timestamp {
        // Without a clock every lease has expired: better a call than a token spent too late.
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
        let metadata = pairs::encoded(call.metadata, &[]);
        // In Envoy 0 means no timeout.
        let timeout_ms = u32::try_from(call.timeout.as_millis()).unwrap_or(u32::MAX).max(1);
        let method = (tidegate_wire::RLS_SERVICE, tidegate_wire::RLS_METHOD);
        let sent = abi::grpc_call(call.target, method, &metadata, call.message, timeout_ms);
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
            let headers = pairs::encoded(&reply.headers, &reply.added);
            let _ = abi::send_local_response(reply, &headers);
        }
    }

    fn request_header<T>(
        &self,
        stream: StreamId,
        name: &str,
        read: impl FnOnce(&[u8]) -> T,
    ) -> Option<T> {
        if !act_on(stream.0) {
            return None;
        }
        abi::header(Map::RequestHeaders, name, read).ok()
    }

    fn add_response_headers(&self, headers: &[Header]) {
        if act_on_current() {
            for (name, value) in headers {
                let _ = abi::add_header(Map::ResponseHeaders, name, value);
            }
        }
    }

    fn append_response_headers(&self, headers: &[NamedHeader]) {
        if act_on_current() {
            append(Map::ResponseHeaders, headers);
        }
    }

    fn append_request_headers(&self, stream: StreamId, headers: &[NamedHeader]) {
        if act_on(stream.0) {
            append(Map::RequestHeaders, headers);
        }
    }

    fn set_filter_state(&self, stream: StreamId, name: &str, value: &str) {
        if act_on(stream.0) {
            let _ = abi::set_property(name, value.as_bytes());
        }
    }

    /// Once per name in the life of the virtual machine, for all plugins: Envoy keeps every id that
    /// it gives out.
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
        abi::log(level, message);
    }
}

fn append(map: Map, headers: &[NamedHeader]) {
    for (name, value) in headers {
        let _ = abi::add_header(map, name, value);
    }
}

/// The stream whose callback runs. Headers exist only in their own callback.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CurrentStream;

impl RequestFacts for CurrentStream {
    fn header<T>(&self, name: &str, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        if !act_on_current() {
            return None;
        }
        abi::header(Map::RequestHeaders, name, read).ok()
    }

    fn find_header<T>(&self, name: &str, read: impl FnMut(&[u8]) -> Option<T>) -> Option<T> {
        if !act_on_current() {
            return None;
        }
        let find = |headers: &[u8]| pairs::values_of(headers, name).find_map(read);
        abi::all_headers(Map::RequestHeaders, find).ok().flatten()
    }

    fn response_header<T>(&self, name: &str, read: impl FnOnce(&[u8]) -> T) -> Option<T> {
        if !act_on_current() {
            return None;
        }
        abi::header(Map::ResponseHeaders, name, read).ok()
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
