//! Every call from the filter to Envoy. Nothing else in the crate may make one.
//!
//! The SDK panics on statuses that it does not expect, so each wrapper here says why its call
//! cannot meet one. Values are always bytes: the SDK's string getters panic on what is not UTF-8.

use crate::decide::AskError;
use crate::descriptors::RequestFacts;
use crate::reply::{Header, Reply};
use proxy_wasm::hostcalls;
use proxy_wasm::types::{BufferType, MapType};
use std::time::{Duration, UNIX_EPOCH};
use tidegate_core::Timestamp;

/// The request at hand, seen through Envoy. Only valid while request headers are being handled:
/// at any other time the header map may be gone, and the SDK would panic on the status.
pub(crate) struct CurrentRequest;

impl RequestFacts for CurrentRequest {
    fn header(&self, name: &str) -> Option<Vec<u8>> {
        // Ok and NotFound are the only statuses while the map exists.
        hostcalls::get_map_value_bytes(MapType::HttpRequestHeaders, name).ok().flatten()
    }

    fn source_address(&self) -> Option<Vec<u8>> {
        // Properties answer Ok, NotFound, SerializationFailure or InternalFailure; all are mapped.
        hostcalls::get_property(vec!["source", "address"]).ok().flatten()
    }
}

/// Sends a gRPC call; its end comes as `on_grpc_call_response` of the current context.
///
/// `target` must be a serialized `GrpcService` that names a cluster: then an unknown cluster ends
/// the call with an error, and BadArgument, on which the SDK panics, cannot come back.
pub(crate) fn call(target: &str, message: &[u8], timeout: Duration) -> Result<(), AskError> {
    let (service, method) = (tidegate_wire::RLS_SERVICE, tidegate_wire::RLS_METHOD);
    hostcalls::dispatch_grpc_call(target, service, method, Vec::new(), Some(message), timeout)
        .map(|_token| ())
        .map_err(|_| AskError::NotSent)
}

/// The body of the gRPC answer being handled, of `size` bytes.
pub(crate) fn call_answer(size: usize) -> Result<Vec<u8>, AskError> {
    // Ok and NotFound are the only statuses for a range from 0.
    match hostcalls::get_buffer(BufferType::GrpcReceiveBuffer, 0, size) {
        Ok(body) => Ok(body.unwrap_or_default()),
        Err(_) => Err(AskError::Malformed),
    }
}

/// The plugin configuration, of `size` bytes.
pub(crate) fn plugin_configuration(size: usize) -> Vec<u8> {
    let buffer = BufferType::PluginConfiguration;
    hostcalls::get_buffer(buffer, 0, size).ok().flatten().unwrap_or_default()
}

/// The time, by the host's wall clock.
pub(crate) fn now() -> Timestamp {
    // Ok is the only status.
    let since_epoch =
        hostcalls::get_current_time().ok().and_then(|now| now.duration_since(UNIX_EPOCH).ok());
    let nanos = since_epoch.unwrap_or_default().as_nanos();
    Timestamp::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

// Log lines go through the SDK's logger, whose host call has Ok as its only status for a message
// in the module's own memory.

/// Logs what stops the filter from working.
pub(crate) fn log_error(message: &str) {
    log::error!("tidegate: {message}");
}

/// Logs what an operator should look at.
pub(crate) fn log_warn(message: &str) {
    log::warn!("tidegate: {message}");
}

/// Logs what an operator may want to know.
pub(crate) fn log_info(message: &str) {
    log::info!("tidegate: {message}");
}

/// Lets a paused request go on.
pub(crate) fn resume_request() {
    // Ok is the only status while the stream lives, and it does: its context is being called.
    let _ = hostcalls::resume_http_request();
}

/// Answers the request at hand.
pub(crate) fn send_reply(reply: &Reply) {
    let headers = reply.headers.iter();
    let headers = headers.map(|(name, value)| (*name, value.as_str())).collect();
    // Ok is the only status while the stream lives, and it does: its context is being called.
    let _ = hostcalls::send_http_response(reply.status, headers, Some(reply.body.as_bytes()));
}

/// Adds headers to the response at hand. Only valid while response headers are being handled.
pub(crate) fn add_response_headers(headers: &[Header]) {
    for (name, value) in headers {
        // Ok is the only status while the map exists.
        let _ = hostcalls::add_map_value(MapType::HttpResponseHeaders, name, value);
    }
}
