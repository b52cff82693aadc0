//! When Envoy calls: each call of it finds its worker here. Owns the workers of the virtual machine;
//! decides nothing.
//!
//! Envoy configures one root context per plugin and worker, and one more at start in a machine that it
//! throws away: so configuring does nothing outside but define metrics, set the timer, and agree on
//! a number for the process. A request's context costs one call when it is created, to learn whose it
//! is: two plugins may differ in nothing but their configuration, and no property tells them apart.
//!
//! Envoy does not call into a callback of the same machine, but for memory: what a host call causes it
//! carries out after the callback, one inside the other (see `worker::settling`). Should it ever, the
//! inner call does nothing and says so.

use crate::config::Config;
use crate::host::abi::{self, Buffer};
use crate::host::envoy::{self, CurrentRequest, Envoy};
use crate::host::{CallId, LogLevel, StreamId};
use crate::worker::call_error::CallError;
use crate::worker::root_contexts::RootContexts;
use crate::worker::{FilterHeadersStatus, TICK, Worker};
use std::cell::RefCell;

/// What header callbacks return: the request or response goes on.
const ACTION_CONTINUE: u32 = 0;
/// It is held.
const ACTION_PAUSE: u32 = 1;

type Workers = RootContexts<Worker<Envoy>>;

thread_local! {
    static WORKERS: RefCell<Workers> = const { RefCell::new(RootContexts::new()) };
}

/// Runs a callback for `context`; `otherwise` is for a call from within a callback.
fn callback<T>(context: u32, otherwise: T, run: impl FnOnce(&mut Workers) -> T) -> T {
    WORKERS.with(|workers| match workers.try_borrow_mut() {
        Ok(mut workers) => {
            envoy::enter(context);
            run(&mut workers)
        }
        Err(_) => {
            envoy::log(LogLevel::Error, "Envoy called from within a call; nothing was done");
            otherwise
        }
    })
}

/// Before anything else. A panic is the end of the machine, and should at least say where it was: on one
/// line, where the standard library would write three to standard error.
pub(crate) fn on_initialize() {
    std::panic::set_hook(Box::new(|panic| {
        envoy::log(LogLevel::Error, &panic.to_string().replace('\n', " "));
    }));
}

pub(crate) fn on_context_create(context: u32, parent: u32) {
    // A root has no parent, and gets its worker when it is configured.
    if parent != 0 {
        callback(context, (), |workers| workers.stream_created(context, parent));
    }
}

/// False makes Envoy refuse the configuration.
pub(crate) fn on_configure(root: u32, size: usize) -> bool {
    callback(root, false, |workers| {
        let config = abi::buffer(Buffer::PluginConfiguration, size, Config::from_envoy);
        match config.unwrap_or_else(|_| Config::from_envoy(&[])) {
            Ok(config) => {
                let period = u32::try_from(TICK.as_millis()).unwrap_or(u32::MAX);
                if abi::set_tick_period(period).is_err() {
                    envoy::log(LogLevel::Error, "Envoy gives no timer, so no lease can be kept");
                    return false;
                }
                let Some(host) = Envoy::new() else {
                    let text = "Envoy gives no shared queue, so no request could be held safely";
                    envoy::log(LogLevel::Error, text);
                    return false;
                };
                if let Some(mut before) = workers.insert(root, Worker::new(host, config)) {
                    let decided = before.on_end();
                    if let Some(worker) = workers.get_mut(root) {
                        worker.adopt(decided);
                    }
                }
                true
            }
            Err(error) => {
                envoy::log(LogLevel::Error, &error.to_string());
                false
            }
        }
    })
}

pub(crate) fn on_tick(root: u32) {
    callback(root, (), |workers| {
        if let Some(worker) = workers.get_mut(root) {
            worker.on_tick();
        }
    });
}

pub(crate) fn on_queue_ready(root: u32, queue: u32) {
    callback(root, (), |workers| {
        // The entries carry nothing.
        abi::empty_queue(queue);
        if let Some(worker) = workers.get_mut(root) {
            worker.on_wake();
        }
    });
}

pub(crate) fn on_request_headers(stream: u32) -> u32 {
    callback(stream, ACTION_CONTINUE, |workers| {
        let Some(worker) = workers.claim(stream) else {
            return ACTION_CONTINUE;
        };
        match worker.on_request(StreamId(stream), &CurrentRequest) {
            FilterHeadersStatus::Continue => ACTION_CONTINUE,
            FilterHeadersStatus::Pause => ACTION_PAUSE,
        }
    })
}

pub(crate) fn on_response_headers(stream: u32) -> u32 {
    callback(stream, ACTION_CONTINUE, |workers| {
        // A stream's number is its own in the whole machine: the others do not know it.
        for worker in workers.iter_mut() {
            worker.on_response(StreamId(stream));
        }
        ACTION_CONTINUE
    })
}

pub(crate) fn on_delete(context: u32) {
    callback(context, (), |workers| {
        if let Some(mut worker) = workers.remove(context) {
            // Envoy ends a plugin after its requests.
            drop(worker.on_end());
            return;
        }
        workers.stream_deleted(context);
        for worker in workers.iter_mut() {
            worker.on_gone(StreamId(context));
        }
    });
}

pub(crate) fn on_grpc_receive(root: u32, token: u32, size: usize) {
    callback(root, (), |workers| {
        let Some(worker) = workers.get_mut(root) else {
            return;
        };
        let call = CallId(token);
        let read =
            abi::buffer(Buffer::GrpcReceive, size, |answer| worker.on_answer(call, Ok(answer)));
        if read.is_err() {
            worker.on_answer(call, Err(CallError::Malformed));
        }
    });
}

pub(crate) fn on_grpc_close(root: u32, token: u32, status: u32) {
    callback(root, (), |workers| {
        let Some(worker) = workers.get_mut(root) else {
            return;
        };
        let error = abi::grpc_message(|message| CallError::from_grpc_close(status, message));
        let error = error.unwrap_or_else(|_| CallError::from_grpc_close(status, b""));
        worker.on_answer(CallId(token), Err(error));
    });
}
