//! Starting gRPC calls. They are only recorded: the test answers them through the host.

use wasmi::Caller;

use super::super::guest::{Call, Result, enter};
use super::super::state::{Deferred, State};
use super::super::types::{GrpcCall, Status, Token};
use super::HostCalls;

/// A pointer and a size, as the guest passes bytes.
type Span = (u32, u32);

/// The arguments of `proxy_grpc_call` but the last.
struct Arguments {
    cluster: Span,
    service: Span,
    method: Span,
    metadata: Span,
    message: Span,
    timeout_ms: u32,
}

pub(super) fn link(calls: &mut HostCalls) -> Result<()> {
    host_calls! { calls,
        fn proxy_grpc_call(
            call, cluster: u32, cluster_size: u32, service: u32, service_size: u32, method: u32,
            method_size: u32, metadata: u32, metadata_size: u32, message: u32, message_size: u32,
            timeout_ms: u32, token_out: u32
        ) {
            let arguments = Arguments {
                cluster: (cluster, cluster_size),
                service: (service, service_size),
                method: (method, method_size),
                metadata: (metadata, metadata_size),
                message: (message, message_size),
                timeout_ms,
            };
            start(call, &arguments, token_out)
        }
        fn proxy_grpc_cancel(call, token: u32) {
            let known = call.state().grpc.in_flight.remove(&token).is_some();
            Ok(if known { Status::Ok } else { Status::NotFound })
        }
        fn proxy_get_status(call, code_out: u32, data: u32, size: u32) {
            let closed = call.state().grpc.closed_with.clone();
            let (code, message) = closed.unwrap_or_default();
            call.write_u32(code_out, code)?;
            call.give(message.as_bytes(), data, size)?;
            Ok(Status::Ok)
        }
    }
    Ok(())
}

fn start(call: &mut Call<'_>, arguments: &Arguments, token_out: u32) -> Result<Status> {
    let Arguments { cluster, service, method, metadata, message, timeout_ms } = *arguments;
    let cluster = call.read(cluster.0, cluster.1)?;
    let service = call.read_text(service.0, service.1)?;
    let method = call.read_text(method.0, method.1)?;
    let metadata = call.read_headers(metadata.0, metadata.1)?;
    let message = call.read(message.0, message.1)?;
    let (context, root) = (call.state().active(), call.state().active_root());

    let grpc = &mut call.state().grpc;
    if grpc.status != Status::Ok {
        let status = grpc.status;
        if status == Status::InternalFailure {
            call.state().deferred.push_back(Deferred::Close(root));
        }
        return Ok(status);
    }
    let token = grpc.token_next;
    grpc.token_next += 2;
    grpc.in_flight.insert(token, root);
    grpc.started.push(GrpcCall {
        token: Token(token),
        context,
        cluster,
        service,
        method,
        metadata,
        message,
        timeout_ms,
    });
    call.write_u32(token_out, token)?;
    Ok(Status::Ok)
}
