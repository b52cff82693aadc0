//! The proxy-wasm ABI 0.2.1: Envoy's functions as safe functions that return Envoy's status, and
//! the exports that need nothing else. `entry` exports the callbacks.
//!
//! Written by hand. The Rust SDK (proxy-wasm 0.2.5, and its main branch of July 2026)
//! - delivers the response of a gRPC call to the context that was active when the call was made,
//!   and drops the response once that context is gone. Here other requests wait for it too.
//! - panics on every status that it does not expect, and a panic ends the worker's virtual machine.
//!   Header values that are not UTF-8 panic only in some functions (not in `get_map_value_bytes`),
//!   but unexpected statuses and gRPC messages that are not UTF-8 (`get_grpc_status`) always do.
//! - always exports 25 callbacks. Envoy calls each export that it finds: about ten calls into the
//!   virtual machine for a request, where the filter needs four. `make bench-envoy` measures that:
//!   a filter that does nothing costs 1.7 µs more for each request, and has 95 KB instead of 310
//!   bytes.
//! - passes no details to a local reply (`send_http_response`), so the access log could not name
//!   the limit.
//! - allocates for every value that it reads.
//!
//! Contains all unsafe calls of the crate. Invariant: Envoy reads and writes memory only during a
//! call, only where the call says, and in memory that it requested itself
//! (`proxy_on_memory_allocate`, see `value_buffer`). Refuses to panic, and to keep a pointer after
//! its call.

// For imports and the names of exports.
#![allow(unsafe_code)]

pub(crate) use super::value_buffer::Status;
use super::value_buffer::{self, receive};
use super::{LogLevel, Reply};

/// Envoy's buffers that the filter reads.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Buffer {
    /// The response of a gRPC call, while it is delivered.
    GrpcReceive = 5,
    /// The plugin's configuration, while it is delivered.
    PluginConfiguration = 7,
}

/// Envoy's header maps that the filter uses. Each exists only in its phase.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Map {
    /// Read by the filter, and extended where the service asks for that.
    RequestHeaders = 0,
    /// Extended by the filter.
    ResponseHeaders = 2,
}

/// The stream type of a request, for `proxy_continue_stream`.
const STREAM_REQUEST: u32 = 0;
/// Lets Envoy derive the gRPC status of a local reply from its HTTP status.
const GRPC_STATUS_UNSET: i32 = -1;
/// WASI's monotonic clock.
const CLOCK_MONOTONIC: u32 = 1;

#[link(wasm_import_module = "env")]
unsafe extern "C" {
    safe fn proxy_continue_stream(stream_type: u32) -> Status;
    safe fn proxy_set_effective_context(context: u32) -> Status;
    safe fn proxy_set_tick_period_milliseconds(period: u32) -> Status;
    safe fn proxy_grpc_cancel(token: u32) -> Status;
    safe fn proxy_increment_metric(metric: u32, offset: i64) -> Status;
    fn proxy_register_shared_queue(
        name: *const u8,
        name_size: usize,
        queue_out: *mut u32,
    ) -> Status;
    fn proxy_enqueue_shared_queue(queue: u32, value: *const u8, value_size: usize) -> Status;
    fn proxy_dequeue_shared_queue(queue: u32, data_out: *mut usize, size_out: *mut usize)
    -> Status;
    fn proxy_get_status(
        code_out: *mut u32,
        message_out: *mut usize,
        size_out: *mut usize,
    ) -> Status;
    fn proxy_log(level: u32, text: *const u8, text_size: usize) -> Status;
    fn proxy_get_buffer_bytes(
        buffer: u32,
        start: usize,
        size_max: usize,
        data_out: *mut usize,
        size_out: *mut usize,
    ) -> Status;
    fn proxy_get_header_map_value(
        map: u32,
        name: *const u8,
        name_size: usize,
        data_out: *mut usize,
        size_out: *mut usize,
    ) -> Status;
    fn proxy_get_header_map_pairs(map: u32, data_out: *mut usize, size_out: *mut usize) -> Status;
    fn proxy_add_header_map_value(
        map: u32,
        name: *const u8,
        name_size: usize,
        value: *const u8,
        value_size: usize,
    ) -> Status;
    fn proxy_get_property(
        path: *const u8,
        path_size: usize,
        data_out: *mut usize,
        size_out: *mut usize,
    ) -> Status;
    fn proxy_set_property(
        path: *const u8,
        path_size: usize,
        value: *const u8,
        value_size: usize,
    ) -> Status;
    fn proxy_get_shared_data(
        key: *const u8,
        key_size: usize,
        data_out: *mut usize,
        size_out: *mut usize,
        cas_out: *mut u32,
    ) -> Status;
    fn proxy_set_shared_data(
        key: *const u8,
        key_size: usize,
        value: *const u8,
        value_size: usize,
        cas: u32,
    ) -> Status;
    fn proxy_define_metric(
        kind: u32,
        name: *const u8,
        name_size: usize,
        id_out: *mut u32,
    ) -> Status;
    fn proxy_send_local_response(
        status: u32,
        details: *const u8,
        details_size: usize,
        body: *const u8,
        body_size: usize,
        headers: *const u8,
        headers_size: usize,
        grpc_status: i32,
    ) -> Status;
    fn proxy_grpc_call(
        target: *const u8,
        target_size: usize,
        service: *const u8,
        service_size: usize,
        method: *const u8,
        method_size: usize,
        metadata: *const u8,
        metadata_size: usize,
        message: *const u8,
        message_size: usize,
        timeout_ms: u32,
        token_out: *mut u32,
    ) -> Status;
}

#[link(wasm_import_module = "wasi_snapshot_preview1")]
unsafe extern "C" {
    fn clock_time_get(clock: u32, precision: u64, time_out: *mut u64) -> u32;
    fn random_get(bytes: *mut u8, size: usize) -> u32;
}

unsafe extern "C" {
    /// Runs the static constructors; generated by the linker.
    fn __wasm_call_ctors();
}

// Calls that return a value.

/// The bytes of a buffer, at most `size` of them.
pub(crate) fn buffer<T>(
    buffer: Buffer,
    size: usize,
    read: impl FnOnce(&[u8]) -> T,
) -> Result<T, Status> {
    let call = |data: &mut usize, given: &mut usize| {
        // SAFETY: Envoy writes the two words, which live until it returns.
        unsafe { proxy_get_buffer_bytes(buffer as u32, 0, size, data, given) }
    };
    receive(call, read)
}

/// The first value of a header of the effective context.
pub(crate) fn header<T>(map: Map, name: &str, read: impl FnOnce(&[u8]) -> T) -> Result<T, Status> {
    let call = |data: &mut usize, size: &mut usize| {
        // SAFETY: Envoy reads the name and writes the two words; all live until it returns.
        unsafe { proxy_get_header_map_value(map as u32, name.as_ptr(), name.len(), data, size) }
    };
    receive(call, read)
}

/// All headers of a map of the effective context, as encoded [`pairs`](super::pairs).
pub(crate) fn all_headers<T>(map: Map, read: impl FnOnce(&[u8]) -> T) -> Result<T, Status> {
    let call = |data: &mut usize, size: &mut usize| {
        // SAFETY: Envoy writes the two words, which live until it returns.
        unsafe { proxy_get_header_map_pairs(map as u32, data, size) }
    };
    receive(call, read)
}

/// A property of the effective context; NUL separates the parts of the path.
pub(crate) fn property<T>(path: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<T, Status> {
    let call = |data: &mut usize, size: &mut usize| {
        // SAFETY: Envoy reads the path and writes the two words; all live until it returns.
        unsafe { proxy_get_property(path.as_ptr(), path.len(), data, size) }
    };
    receive(call, read)
}

/// A value of shared data and its version for a compare-and-swap. An emptied value has a version
/// too.
pub(crate) fn shared_data<T>(key: &str, read: impl FnOnce(&[u8]) -> T) -> Result<(T, u32), Status> {
    let mut cas = 0;
    let call = |data: &mut usize, size: &mut usize| {
        // SAFETY: Envoy reads the key and writes the three words; all live until it returns.
        unsafe { proxy_get_shared_data(key.as_ptr(), key.len(), data, size, &mut cas) }
    };
    let value = receive(call, read)?;
    Ok((value, cas))
}

/// The message of the gRPC status that a call has just ended with.
pub(crate) fn grpc_message<T>(read: impl FnOnce(&[u8]) -> T) -> Result<T, Status> {
    let mut code = 0;
    let call = |data: &mut usize, size: &mut usize| {
        // SAFETY: Envoy writes the three words, which live until it returns.
        unsafe { proxy_get_status(&mut code, data, size) }
    };
    receive(call, read)
}

/// Removes all entries of a queue.
pub(crate) fn empty_queue(queue: u32) {
    let take = || {
        let call = |data: &mut usize, size: &mut usize| {
            // SAFETY: Envoy writes the two words, which live until it returns.
            unsafe { proxy_dequeue_shared_queue(queue, data, size) }
        };
        receive(call, |_| ())
    };
    while take().is_ok() {}
}

// Calls that return no value.

/// The queue of this name. Envoy calls the effective context's plugin for each entry.
pub(crate) fn register_queue(name: &str) -> Result<u32, Status> {
    let mut queue = 0;
    // SAFETY: Envoy reads the name and writes the word; both live until it returns.
    unsafe { proxy_register_shared_queue(name.as_ptr(), name.len(), &mut queue) }.ok()?;
    Ok(queue)
}

/// Adds an empty entry to a queue.
pub(crate) fn add_to_queue(queue: u32) -> Result<(), Status> {
    let entry: [u8; 0] = [];
    // SAFETY: Envoy reads the entry, which has no bytes and lives until it returns.
    unsafe { proxy_enqueue_shared_queue(queue, entry.as_ptr(), entry.len()) }.ok()
}

/// Writes a value of shared data. Envoy compares `cas` only if the key exists; 0 always wins.
pub(crate) fn set_shared_data(key: &str, value: &[u8], cas: u32) -> Result<(), Status> {
    let (key, key_size) = (key.as_ptr(), key.len());
    // SAFETY: Envoy reads key and value, which live until it returns.
    unsafe { proxy_set_shared_data(key, key_size, value.as_ptr(), value.len(), cas) }.ok()
}

/// Adds a header to a map of the effective context.
pub(crate) fn add_header(map: Map, name: &str, value: &str) -> Result<(), Status> {
    let (name, name_size) = (name.as_ptr(), name.len());
    // SAFETY: Envoy reads name and value, which live until it returns.
    unsafe { proxy_add_header_map_value(map as u32, name, name_size, value.as_ptr(), value.len()) }
        .ok()
}

/// Sets a property of the effective context: Envoy keeps it as `wasm.<path>` in the filter state of
/// the request.
pub(crate) fn set_property(path: &str, value: &[u8]) -> Result<(), Status> {
    let (path, path_size) = (path.as_ptr(), path.len());
    // SAFETY: Envoy reads path and value, which live until it returns.
    unsafe { proxy_set_property(path, path_size, value.as_ptr(), value.len()) }.ok()
}

pub(crate) fn log(level: LogLevel, message: &str) {
    let level = match level {
        LogLevel::Info => 2,
        LogLevel::Warn => 3,
        LogLevel::Error => 4,
    };
    let text = format!("tidegate: {message}");
    // SAFETY: Envoy reads the text, which lives until it returns.
    let _ = unsafe { proxy_log(level, text.as_ptr(), text.len()) };
}

/// A new id for a metric. Envoy keeps every id that it gives out.
pub(crate) fn define_metric(kind: u32, name: &str) -> Result<u32, Status> {
    let mut id = 0;
    // SAFETY: Envoy reads the name and writes the word; both live until it returns.
    unsafe { proxy_define_metric(kind, name.as_ptr(), name.len(), &mut id) }.ok()?;
    Ok(id)
}

/// Adds to a metric; to a counter, only more than 0.
pub(crate) fn increment_metric(metric: u32, offset: i64) -> Result<(), Status> {
    proxy_increment_metric(metric, offset).ok()
}

/// Starts a call, with `metadata` as encoded [`pairs`](super::pairs). Its result goes to the root of
/// the effective context, as a receive or a close. Envoy ends the call after `timeout_ms`, with gRPC
/// status 14.
pub(crate) fn grpc_call(
    target: &[u8],
    (service, method): (&str, &str),
    metadata: &[u8],
    message: &[u8],
    timeout_ms: u32,
) -> Result<u32, Status> {
    let mut token = 0;
    // SAFETY: Envoy reads the slices and writes the word; all live until it returns.
    unsafe {
        proxy_grpc_call(
            target.as_ptr(),
            target.len(),
            service.as_ptr(),
            service.len(),
            method.as_ptr(),
            method.len(),
            metadata.as_ptr(),
            metadata.len(),
            message.as_ptr(),
            message.len(),
            timeout_ms,
            &mut token,
        )
    }
    .ok()?;
    Ok(token)
}

pub(crate) fn cancel_grpc_call(token: u32) -> Result<(), Status> {
    proxy_grpc_cancel(token).ok()
}

/// Sends a local reply to the request of the effective context, with `headers` as encoded
/// [`pairs`](super::pairs).
pub(crate) fn send_local_response(reply: &Reply, headers: &[u8]) -> Result<(), Status> {
    let (details, body) = (&reply.details, &reply.body);
    let grpc_status = reply.grpc_status.and_then(|status| i32::try_from(status).ok());
    // SAFETY: Envoy reads details, body and headers, which live until it returns.
    unsafe {
        proxy_send_local_response(
            reply.status,
            details.as_ptr(),
            details.len(),
            body.as_ptr(),
            body.len(),
            headers.as_ptr(),
            headers.len(),
            grpc_status.unwrap_or(GRPC_STATUS_UNSET),
        )
    }
    .ok()
}

/// Resumes the request of the effective context.
pub(crate) fn continue_request() -> Result<(), Status> {
    proxy_continue_stream(STREAM_REQUEST).ok()
}

/// Makes another context the effective one, until this callback returns. Fails if the context is
/// gone.
pub(crate) fn set_effective_context(context: u32) -> Result<(), Status> {
    proxy_set_effective_context(context).ok()
}

/// Sets the period of `proxy_on_tick`.
pub(crate) fn set_tick_period(period_ms: u32) -> Result<(), Status> {
    proxy_set_tick_period_milliseconds(period_ms).ok()
}

pub(crate) fn monotonic_nanos() -> Option<u64> {
    let mut nanos = 0;
    // SAFETY: Envoy writes the number, which lives until it returns.
    let errno = unsafe { clock_time_get(CLOCK_MONOTONIC, 1, &mut nanos) };
    (errno == 0).then_some(nanos)
}

/// Random bytes.
pub(crate) fn random<const N: usize>() -> Option<[u8; N]> {
    let mut bytes = [0; N];
    // SAFETY: Envoy writes the bytes, which live until it returns.
    let errno = unsafe { random_get(bytes.as_mut_ptr(), N) };
    (errno == 0).then_some(bytes)
}

// Exports that need only this file.

#[unsafe(no_mangle)]
extern "C" fn proxy_abi_version_0_2_1() {}

/// Envoy calls this once, before anything else. Naming the constructors keeps the linker from
/// running them at each export. A panic ends the virtual machine; the hook logs its location on one
/// line, where the standard library would write three lines to standard error.
#[unsafe(no_mangle)]
extern "C" fn _initialize() {
    // SAFETY: called once, by Envoy, before anything else of this module runs.
    unsafe { __wasm_call_ctors() };
    std::panic::set_hook(Box::new(|panic| {
        log(LogLevel::Error, &panic.to_string().replace('\n', " "));
    }));
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_memory_allocate(size: usize) -> *mut u8 {
    value_buffer::allocate(size)
}
