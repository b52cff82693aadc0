//! The callbacks that Envoy calls. Owns the workers of the virtual machine and passes each call to
//! its worker; decides nothing.
//!
//! Envoy configures one root context per plugin and worker, and one more at start in a virtual
//! machine that it discards. So configuring only defines metrics, sets the timer and agrees on the
//! identity of the process. The creation of a request's context is exported because it names the
//! plugin: two plugins may differ only in their configuration, and no property tells them apart.
//!
//! Envoy does not call into a running callback of the same virtual machine, except for memory. It
//! carries out the effects of a host call after the callback, nested in each other (see
//! `worker::resuming`). If Envoy does make a nested call, that call logs an error and does nothing.

// For the names of exports; nothing else here is unsafe. Envoy calls every callback that the module
// exports, so those without use are absent on purpose: start of the virtual machine, bodies,
// trailers, `proxy_on_done` and `proxy_on_log`.
#![allow(unsafe_code)]

use crate::config::Config;
use crate::host::abi::{self, Buffer};
use crate::host::envoy::{self, CurrentStream, Envoy};
use crate::host::{CallId, LogLevel, StreamId};
use crate::worker::call_error::CallError;
use crate::worker::root_contexts::RootContexts;
use crate::worker::{HeadersStatus, TICK, Worker};
use std::cell::RefCell;

/// Result of a headers callback: the request or response continues.
const ACTION_CONTINUE: u32 = 0;
/// Result of a headers callback: the request is paused.
const ACTION_PAUSE: u32 = 1;

type Workers = RootContexts<Worker<Envoy>>;

thread_local! {
    static WORKERS: RefCell<Workers> = const { RefCell::new(RootContexts::new()) };
}

/// Runs a callback for `context`; a nested call returns `otherwise`.
fn callback<T>(context: u32, otherwise: T, run: impl FnOnce(&mut Workers) -> T) -> T {
    WORKERS.with(|workers| match workers.try_borrow_mut() {
        Ok(mut workers) => {
            envoy::enter(context);
            run(&mut workers)
        }
        Err(_) => {
            abi::log(LogLevel::Error, "Envoy nested a callback, which was ignored");
            otherwise
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_context_create(context: u32, parent: u32) {
    // A root context has no parent; it gets its worker when it is configured.
    if parent != 0 {
        callback(context, (), |workers| workers.stream_created(context, parent));
    }
}

/// Returning 0 makes Envoy refuse the configuration.
#[unsafe(no_mangle)]
extern "C" fn proxy_on_configure(root: u32, size: usize) -> u32 {
    callback(root, 0, |workers| match configure(workers, root, size) {
        Ok(()) => 1,
        Err(message) => {
            abi::log(LogLevel::Error, &message);
            0
        }
    })
}

fn configure(workers: &mut Workers, root: u32, size: usize) -> Result<(), String> {
    let config = abi::buffer(Buffer::PluginConfiguration, size, Config::from_envoy);
    let config = config.unwrap_or_else(|_| Config::from_envoy(&[]));
    let config = config.map_err(|error| error.to_string())?;
    let period = u32::try_from(TICK.as_millis()).unwrap_or(u32::MAX);
    abi::set_tick_period(period).map_err(|_| "Envoy refused the timer that maintains leases")?;
    let host = Envoy::new().ok_or("Envoy refused the shared queue that resumes requests")?;
    if let Some(mut before) = workers.insert(root, Worker::new(host, config)) {
        let decided = before.on_end();
        if let Some(worker) = workers.get_mut(root) {
            worker.adopt(decided);
        }
    }
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_tick(root: u32) {
    callback(root, (), |workers| {
        if let Some(worker) = workers.get_mut(root) {
            worker.on_tick();
        }
    });
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_queue_ready(root: u32, queue: u32) {
    callback(root, (), |workers| {
        // The entries are empty.
        abi::empty_queue(queue);
        if let Some(worker) = workers.get_mut(root) {
            worker.on_wake();
        }
    });
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_request_headers(stream: u32, _count: u32, _end_of_stream: u32) -> u32 {
    callback(stream, ACTION_CONTINUE, |workers| {
        let Some(worker) = workers.claim(stream) else { return ACTION_CONTINUE };
        match worker.on_request(StreamId(stream), &CurrentStream) {
            HeadersStatus::Continue => ACTION_CONTINUE,
            HeadersStatus::Pause => ACTION_PAUSE,
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_response_headers(stream: u32, _count: u32, _end_of_stream: u32) -> u32 {
    callback(stream, ACTION_CONTINUE, |workers| {
        // Stream ids are unique in the virtual machine, so other workers ignore them.
        for worker in workers.iter_mut() {
            worker.on_response(StreamId(stream), &CurrentStream);
        }
        ACTION_CONTINUE
    })
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_delete(context: u32) {
    callback(context, (), |workers| {
        if let Some(mut worker) = workers.remove(context) {
            // Envoy ends a plugin after its requests. Their costs may still wait: a plugin that
            // replaces this one counts them.
            let unfinished = worker.on_end();
            match workers.iter_mut().find(|other| other.counts_like(&worker)) {
                Some(other) => other.adopt(unfinished),
                None => worker.abandon(unfinished),
            }
            return;
        }
        workers.stream_deleted(context);
        for worker in workers.iter_mut() {
            worker.on_gone(StreamId(context), &CurrentStream);
        }
    });
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_grpc_receive(root: u32, token: u32, size: usize) {
    callback(root, (), |workers| {
        let Some(worker) = workers.get_mut(root) else { return };
        let call = CallId(token);
        let read =
            abi::buffer(Buffer::GrpcReceive, size, |answer| worker.on_answer(call, Ok(answer)));
        if read.is_err() {
            worker.on_answer(call, Err(CallError::Malformed));
        }
    });
}

#[unsafe(no_mangle)]
extern "C" fn proxy_on_grpc_close(root: u32, token: u32, status: u32) {
    callback(root, (), |workers| {
        let Some(worker) = workers.get_mut(root) else { return };
        let error = abi::grpc_message(|message| CallError::from_grpc_close(status, message));
        let error = error.unwrap_or_else(|_| CallError::from_grpc_close(status, b""));
        worker.on_answer(CallId(token), Err(error));
    });
}
