//! Calls that read or keep data: log, clock, buffers, properties, shared data.

use wasmi::Caller;

use super::super::guest::{Call, Result, enter};
use super::super::state::State;
use super::super::types::{LogLevel, Status};
use super::HostCalls;

const BUFFER_GRPC_RECEIVE: u32 = 5;
const BUFFER_VM_CONFIGURATION: u32 = 6;
const BUFFER_PLUGIN_CONFIGURATION: u32 = 7;

pub(super) fn link(calls: &mut HostCalls) -> Result<()> {
    host_calls! { calls,
        fn proxy_log(call, level: u32, p: u32, n: u32) {
            log(call, level, p, n)
        }
        fn proxy_get_log_level(call, out: u32) {
            let level = call.state().log_level as u32;
            call.write_u32(out, level).map(|()| Status::Ok)
        }
        fn proxy_get_current_time_nanoseconds(call, out: u32) {
            let now = call.state().clock.wall_ns;
            call.write_u64(out, now).map(|()| Status::Ok)
        }
        fn proxy_get_buffer_bytes(call, kind: u32, start: u32, max: u32, data: u32, size: u32) {
            buffer_bytes(call, kind, (start, max), (data, size))
        }
        fn proxy_get_property(call, path: u32, path_size: u32, data: u32, size: u32) {
            property(call, (path, path_size), (data, size))
        }
        fn proxy_set_property(call, path: u32, path_size: u32, value: u32, value_size: u32) {
            set_property(call, (path, path_size), (value, value_size))
        }
        fn proxy_get_shared_data(call, key: u32, key_size: u32, data: u32, size: u32, cas: u32) {
            shared_data(call, (key, key_size), (data, size), cas)
        }
        fn proxy_set_shared_data(call, key: u32, key_size: u32, data: u32, size: u32, cas: u32) {
            let key = call.read(key, key_size)?;
            let value = call.read(data, size)?;
            Ok(call.state().shared_data.set(key, &value, cas))
        }
    }
    Ok(())
}

fn log(call: &mut Call<'_>, level: u32, start: u32, size: u32) -> Result<Status> {
    let text = call.read(start, size)?;
    let Some(level) = LogLevel::from_abi(level) else {
        return Ok(Status::BadArgument);
    };
    call.state().log(level, &text);
    Ok(Status::Ok)
}

fn buffer_bytes(
    call: &mut Call<'_>,
    kind: u32,
    (start, max): (u32, u32),
    (data_out, size_out): (u32, u32),
) -> Result<Status> {
    let buffers = &call.state().buffers;
    let bytes = match kind {
        // Envoy has this buffer always, and keeps it empty outside of an answer.
        BUFFER_GRPC_RECEIVE => Some(buffers.grpc_receive.clone().unwrap_or_default()),
        BUFFER_VM_CONFIGURATION => Some(buffers.vm_configuration.clone()),
        BUFFER_PLUGIN_CONFIGURATION => buffers.plugin_configuration.clone(),
        _ => return Err(call.refuse(format!("unexpected host call: buffer {kind}"))),
    };
    let Some(bytes) = bytes else {
        return Ok(Status::NotFound);
    };
    let Some(end) = start.checked_add(max) else {
        return Ok(Status::BadArgument);
    };
    let end = bytes.len().min(end as usize);
    let part = bytes.get(start as usize..end).unwrap_or_default();
    call.give(part, data_out, size_out)?;
    Ok(Status::Ok)
}

fn property(
    call: &mut Call<'_>,
    (path, path_size): (u32, u32),
    (data_out, size_out): (u32, u32),
) -> Result<Status> {
    let path = call.read(path, path_size)?;
    let Some(value) = call.state().property(&path).cloned() else {
        return Ok(Status::NotFound);
    };
    call.give(&value, data_out, size_out)?;
    Ok(Status::Ok)
}

/// Envoy keeps it in the filter state of a request, as `wasm.` and the path.
fn set_property(
    call: &mut Call<'_>,
    (path, path_size): (u32, u32),
    (value, value_size): (u32, u32),
) -> Result<Status> {
    let path = call.read_text(path, path_size)?;
    let value = call.read_text(value, value_size)?;
    let Some(stream) = call.state().stream() else {
        return Err(call.refuse("the root context has no filter state"));
    };
    stream.filter_state.insert(format!("wasm.{path}"), value);
    Ok(Status::Ok)
}

fn shared_data(
    call: &mut Call<'_>,
    (key, key_size): (u32, u32),
    (data_out, size_out): (u32, u32),
    cas_out: u32,
) -> Result<Status> {
    let key = call.read(key, key_size)?;
    let Some((value, cas)) = call.state().shared_data.get(key) else {
        return Ok(Status::NotFound);
    };
    call.give(&value, data_out, size_out)?;
    call.write_u32(cas_out, cas)?;
    Ok(Status::Ok)
}
