//! The little of WASI that Rust's standard library uses in a filter, answered as Envoy does.
//!
//! No arguments, no environment, no files. Standard output and standard error become log lines.
//! `clock_time_get` reads the test's clock, and must be allowed like any clock of the host.

use wasmi::Caller;

use super::super::guest::{Call, Result, enter_wasi};
use super::super::state::State;
use super::super::types::LogLevel;
use super::HostCalls;

const WASI: &str = "wasi_snapshot_preview1";

const ERRNO_SUCCESS: u32 = 0;
const ERRNO_BADF: u32 = 8;
const ERRNO_INVAL: u32 = 28;
const ERRNO_NOTSUP: u32 = 58;

/// Envoy's bound on one request for random bytes.
const RANDOM_BYTES_MAX: u32 = 64 * 1024;

pub(super) fn link(calls: &mut HostCalls) -> Result<()> {
    calls.func_wrap(WASI, "args_sizes_get", |c: Caller<'_, State>, count: u32, size: u32| {
        enter_wasi(c, "args_sizes_get", |call| write_nothing(call, count, size))
    })?;
    calls.func_wrap(WASI, "args_get", |c: Caller<'_, State>, _: u32, _: u32| {
        enter_wasi(c, "args_get", |_| Ok(ERRNO_SUCCESS))
    })?;
    calls.func_wrap(WASI, "environ_sizes_get", |c: Caller<'_, State>, count: u32, size: u32| {
        enter_wasi(c, "environ_sizes_get", |call| write_nothing(call, count, size))
    })?;
    calls.func_wrap(WASI, "environ_get", |c: Caller<'_, State>, _: u32, _: u32| {
        enter_wasi(c, "environ_get", |_| Ok(ERRNO_SUCCESS))
    })?;
    calls.func_wrap(WASI, "random_get", |c: Caller<'_, State>, out: u32, size: u32| {
        enter_wasi(c, "random_get", |call| random(call, out, size))
    })?;
    calls.func_wrap(
        WASI,
        "clock_time_get",
        |c: Caller<'_, State>, clock: u32, _precision: u64, out: u32| {
            enter_wasi(c, "clock_time_get", |call| time(call, clock, out))
        },
    )?;
    calls.func_wrap(
        WASI,
        "fd_write",
        |c: Caller<'_, State>, file: u32, parts: u32, count: u32, written_out: u32| {
            enter_wasi(c, "fd_write", |call| write(call, file, (parts, count), written_out))
        },
    )?;
    calls.func_wrap(WASI, "proc_exit", |c: Caller<'_, State>, code: u32| -> Result<()> {
        enter_wasi(c, "proc_exit", |call| Err(call.refuse(format!("exit code {code}"))))?;
        Ok(())
    })?;
    Ok(())
}

fn write_nothing(call: &mut Call<'_>, count_out: u32, size_out: u32) -> Result<u32> {
    call.write_u32(count_out, 0)?;
    call.write_u32(size_out, 0)?;
    Ok(ERRNO_SUCCESS)
}

fn random(call: &mut Call<'_>, out: u32, size: u32) -> Result<u32> {
    if size > RANDOM_BYTES_MAX {
        return Ok(ERRNO_INVAL);
    }
    let bytes: Vec<u8> = (0..size).map(|_| call.state().random_byte()).collect();
    call.write(out, &bytes)?;
    Ok(ERRNO_SUCCESS)
}

fn time(call: &mut Call<'_>, clock: u32, out: u32) -> Result<u32> {
    let now = match clock {
        0 => call.state().clock.wall_ns,
        1 => call.state().clock.monotonic_ns,
        _ => return Ok(ERRNO_NOTSUP),
    };
    call.write_u64(out, now)?;
    Ok(ERRNO_SUCCESS)
}

fn write(
    call: &mut Call<'_>,
    file: u32,
    (parts, count): (u32, u32),
    written_out: u32,
) -> Result<u32> {
    let level = match file {
        1 => LogLevel::Info,
        2 => LogLevel::Error,
        _ => return Ok(ERRNO_BADF),
    };
    let table = call.read(parts, count.saturating_mul(8))?;
    let mut text = Vec::new();
    for part in table.chunks_exact(8) {
        let (start, size) = part.split_at(4);
        text.extend(call.read(number(start), number(size))?);
    }
    let written = u32::try_from(text.len()).map_err(|error| call.refuse(error))?;
    if written > 0 {
        call.state().log(level, text.strip_suffix(b"\n").unwrap_or(&text));
    }
    call.write_u32(written_out, written)?;
    Ok(ERRNO_SUCCESS)
}

fn number(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte))
}
