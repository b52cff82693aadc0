//! Calls that decide what becomes of a stream, choose the context, and set the timer.
//!
//! Envoy silently ignores a resume or a reply on the root context, and a second one on a stream
//! ends in undefined trouble; both are the usual bugs of filters that hold requests back, so
//! both are refused here.

use wasmi::Caller;

use super::super::guest::{Call, Result, enter};
use super::super::state::{Deferred, Sight, State};
use super::super::types::{ContextId, LocalReply, Outcome, Status};
use super::HostCalls;

const STREAM_REQUEST: u32 = 0;

/// A pointer and a size, as the guest passes bytes.
type Span = (u32, u32);

pub(super) fn link(calls: &mut HostCalls) -> Result<()> {
    host_calls! { calls,
        fn proxy_set_effective_context(call, context: u32) {
            Ok(set_effective_context(call, ContextId(context)))
        }
        fn proxy_set_tick_period_milliseconds(call, period_ms: u32) {
            let root = call.state().active_root();
            call.state().tick_periods_ms.insert(root, period_ms);
            Ok(Status::Ok)
        }
        fn proxy_continue_stream(call, kind: u32) {
            resume(call, kind)
        }
        fn proxy_send_local_response(
            call, status: u32, details: u32, details_size: u32, body: u32, body_size: u32,
            headers: u32, headers_size: u32, grpc_status: i32
        ) {
            let reply = read_reply(
                call,
                (status, grpc_status),
                (details, details_size),
                (body, body_size),
                (headers, headers_size),
            )?;
            send(call, reply)
        }
    }
    Ok(())
}

fn set_effective_context(call: &mut Call<'_>, context: ContextId) -> Status {
    let state = call.state();
    if !state.is_context(context) {
        return Status::BadArgument;
    }
    state.effective = Some(context);
    Status::Ok
}

fn resume(call: &mut Call<'_>, kind: u32) -> Result<Status> {
    if kind != STREAM_REQUEST {
        return Err(call.refuse(format!("unexpected host call: stream type {kind}")));
    }
    let Some(stream) = call.state().stream() else {
        return Err(call.refuse("Envoy ignores a resume on the root context"));
    };
    if stream.outcome != Some(Outcome::Paused) {
        let found = format!("the request is not paused: {:?}", stream.outcome);
        return Err(call.refuse(found));
    }
    stream.outcome = Some(Outcome::Resumed);
    stream.request.sight = Sight::Hidden;
    let state = call.state();
    if state.answers_directly {
        let active = state.active();
        state.deferred.push_back(Deferred::Respond(active));
    }
    Ok(Status::Ok)
}

fn read_reply(
    call: &Call<'_>,
    (status, grpc_status): (u32, i32),
    details: Span,
    body: Span,
    headers: Span,
) -> Result<LocalReply> {
    if !(200..=599).contains(&status) {
        return Err(call.refuse(format!("{status} is not the status of an HTTP response")));
    }
    Ok(LocalReply {
        status,
        headers: call.read_headers(headers.0, headers.1)?,
        body: call.read(body.0, body.1)?,
        grpc_status: u32::try_from(grpc_status).ok(),
        details: call.read_text(details.0, details.1)?,
    })
}

fn send(call: &mut Call<'_>, reply: LocalReply) -> Result<Status> {
    let Some(stream) = call.state().stream() else {
        return Err(call.refuse("Envoy ignores a local reply on the root context"));
    };
    match &stream.outcome {
        None | Some(Outcome::Paused) => {
            stream.outcome = Some(Outcome::LocalReply(reply));
            let active = call.state().active();
            call.state().deferred.push_back(Deferred::Respond(active));
            Ok(Status::Ok)
        }
        Some(earlier) => {
            let found = format!("the request is already decided: {earlier:?}");
            Err(call.refuse(found))
        }
    }
}
