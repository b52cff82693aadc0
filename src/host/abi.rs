//! The proxy-wasm ABI 0.2.1 between the filter and Envoy: what the module imports, as safe functions
//! that return what Envoy said, and what it exports.
//!
//! Why no SDK. The proxy-wasm SDK for Rust
//! - gives the answer of a gRPC call to the request that made it, and drops it when that request is
//!   gone; here other requests wait for the same answer;
//! - panics on statuses that it does not expect and on strings that are not UTF-8, and a panic is the
//!   end of the worker's virtual machine;
//! - exports every callback there is, and Envoy calls each export that it finds: about ten calls into
//!   the machine for a request, where the filter has a use for four;
//! - allocates for every value that it reads.
//!
//! The only file of the crate with unsafe code: calls of imports that take pointers, and the names of
//! exports. Invariant: Envoy reads and writes memory only during a call, only where the call says, and
//! in memory that it asked for itself (`proxy_on_memory_allocate`, see `room`). Refuses to panic, and to
//! keep a pointer after its call.

// Imports and export names cannot be written without.
#![allow(unsafe_code)]

pub(crate) use super::value_buffer::Status;
use super::value_buffer::{self, receive};
use crate::entry;

/// Envoy's buffers that the filter reads.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Buffer {
    /// The answer of a gRPC call, while it is delivered.
    GrpcReceive = 5,
    /// The plugin's configuration, while it is delivered.
    PluginConfiguration = 7,
}

/// Envoy's header maps that the filter uses. Each exists only in its phase.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Map {
    /// Read.
    RequestHeaders = 0,
    /// Added to.
    ResponseHeaders = 2,
}

/// The stream type of a request, for `proxy_continue_stream`.
const STREAM_REQUEST: u32 = 0;
/// Lets Envoy choose the gRPC status of a local reply from its HTTP status.
const GRPC_STATUS_UNSET: i32 = -1;
/// WASI's clock that never steps.
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
    /// Runs what must run before anything else; made by the linker.
    fn __wasm_call_ctors();
}

// Calls that give a value.

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

/// A property of the effective context; the parts of the path are separated by NUL.
pub(crate) fn property<T>(path: &[u8], read: impl FnOnce(&[u8]) -> T) -> Result<T, Status> {
    let call = |data: &mut usize, size: &mut usize| {
        // SAFETY: Envoy reads the path and writes the two words; all live until it returns.
        unsafe { proxy_get_property(path.as_ptr(), path.len(), data, size) }
    };
    receive(call, read)
}

/// A value of shared data, and its number for a compare-and-swap. An emptied value has one too.
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

/// Takes all entries out of a queue.
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

// Calls that give no value.

/// The queue of this name, whose entries the effective context's plugin is called for.
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

/// Writes a value of shared data. Envoy compares `cas` only if the key is there; 0 always wins.
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

/// A line of Envoy's log, at one of the ABI's levels.
pub(crate) fn log(level: u32, text: &str) {
    // SAFETY: Envoy reads the text, which lives until it returns.
    let _ = unsafe { proxy_log(level, text.as_ptr(), text.len()) };
}

/// A new number for a metric. Envoy remembers each that it gives.
pub(crate) fn define_metric(kind: u32, name: &str) -> Result<u32, Status> {
    let mut id = 0;
    // SAFETY: Envoy reads the name and writes the word; both live until it returns.
    unsafe { proxy_define_metric(kind, name.as_ptr(), name.len(), &mut id) }.ok()?;
    Ok(id)
}

/// Adds to a metric; to a counter only more than 0.
pub(crate) fn increment_metric(metric: u32, offset: i64) -> Result<(), Status> {
    proxy_increment_metric(metric, offset).ok()
}

/// A call of a gRPC method, with `metadata` as [`pairs`] writes it.
#[derive(Debug)]
pub(crate) struct GrpcCall<'a> {
    /// A serialized `GrpcService`.
    pub(crate) target: &'a [u8],
    /// The service's full name.
    pub(crate) service: &'a str,
    /// The method.
    pub(crate) method: &'a str,
    /// Names and values.
    pub(crate) metadata: &'a [u8],
    /// The serialized request.
    pub(crate) message: &'a [u8],
    /// After this Envoy ends it, with gRPC status 14.
    pub(crate) timeout_ms: u32,
}

/// Sends a call. Its end comes to the root of the effective context, as a receive or a close.
pub(crate) fn grpc_call(call: &GrpcCall<'_>) -> Result<u32, Status> {
    let mut token = 0;
    // SAFETY: Envoy reads what `call` borrows and writes the word; all live until it returns.
    unsafe {
        proxy_grpc_call(
            call.target.as_ptr(),
            call.target.len(),
            call.service.as_ptr(),
            call.service.len(),
            call.method.as_ptr(),
            call.method.len(),
            call.metadata.as_ptr(),
            call.metadata.len(),
            call.message.as_ptr(),
            call.message.len(),
            call.timeout_ms,
            &mut token,
        )
    }
    .ok()?;
    Ok(token)
}

/// Gives a call up.
pub(crate) fn cancel_grpc_call(token: u32) -> Result<(), Status> {
    proxy_grpc_cancel(token).ok()
}

/// Answers the request of the effective context, with `headers` as [`pairs`] writes them. `details` is
/// what the access log shows as the reason.
pub(crate) fn send_local_response(
    status: u32,
    details: &str,
    body: &[u8],
    headers: &[u8],
) -> Result<(), Status> {
    // SAFETY: Envoy reads details, body and headers, which live until it returns.
    unsafe {
        proxy_send_local_response(
            status,
            details.as_ptr(),
            details.len(),
            body.as_ptr(),
            body.len(),
            headers.as_ptr(),
            headers.len(),
            GRPC_STATUS_UNSET,
        )
    }
    .ok()
}

/// Lets the request of the effective context go on.
pub(crate) fn continue_request() -> Result<(), Status> {
    proxy_continue_stream(STREAM_REQUEST).ok()
}

/// Makes another context the effective one, until this callback returns. Fails when it is gone.
pub(crate) fn set_effective_context(context: u32) -> Result<(), Status> {
    proxy_set_effective_context(context).ok()
}

/// Has `proxy_on_tick` called this often.
pub(crate) fn set_tick_period(period_ms: u32) -> Result<(), Status> {
    proxy_set_tick_period_milliseconds(period_ms).ok()
}

/// Nanoseconds of the clock that never steps.
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

/// Names and values in the ABI's form: how many, the sizes of all, then each with a NUL after it.
pub(crate) fn pairs<'a>(
    pairs: impl ExactSizeIterator<Item = (&'a str, &'a str)> + Clone,
) -> Vec<u8> {
    let size = |part: usize| u32::try_from(part).unwrap_or(u32::MAX).to_le_bytes();
    // The count; for each two sizes and two NULs.
    let parts = pairs.clone().map(|(name, value)| name.len().saturating_add(value.len()));
    let room = parts.fold(4, |room: usize, part| room.saturating_add(part).saturating_add(10));
    let mut bytes = Vec::with_capacity(room);
    bytes.extend(size(pairs.len()));
    for (name, value) in pairs.clone() {
        bytes.extend(size(name.len()));
        bytes.extend(size(value.len()));
    }
    for (name, value) in pairs {
        for part in [name, value] {
            bytes.extend(part.as_bytes());
            bytes.push(0);
        }
    }
    bytes
}

// What Envoy calls. Nothing else of the module has a name outside it, `memory` apart. Not there on
// purpose, since Envoy would call them and they have nothing to do: start of the machine, bodies,
// trailers, `proxy_on_done` and `proxy_on_log`.

#[unsafe(no_mangle)]
extern "C" fn proxy_abi_version_0_2_1() {}

/// Once, before all. Naming the constructors here also keeps the linker from running them at each export.
#[unsafe(no_mangle)]
extern "C" fn _initialize() {
    // SAFETY: called once, by Envoy, before anything else of this module runs.
    unsafe { __wasm_call_ctors() };
    entry::on_initialize();
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_memory_allocate(size: usize) -> *mut u8 {
    value_buffer::allocate(size)
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_context_create(context: u32, parent: u32) {
    entry::on_context_create(context, parent);
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_configure(root: u32, size: usize) -> u32 {
    entry::on_configure(root, size).into()
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_tick(root: u32) {
    entry::on_tick(root);
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_queue_ready(root: u32, queue: u32) {
    entry::on_queue_ready(root, queue);
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_request_headers(stream: u32, _count: u32, _end_of_stream: u32) -> u32 {
    entry::on_request_headers(stream)
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_response_headers(stream: u32, _count: u32, _end_of_stream: u32) -> u32 {
    entry::on_response_headers(stream)
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_delete(context: u32) {
    entry::on_delete(context);
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_grpc_receive(root: u32, token: u32, size: usize) {
    entry::on_grpc_receive(root, token, size);
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_grpc_close(root: u32, token: u32, status: u32) {
    entry::on_grpc_close(root, token, status);
}
