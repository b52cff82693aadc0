//! Ports for servers that cannot have one picked by the system.

use anyhow::Context;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Below the ports that the system gives to connections (Linux: from 32768), so nobody has that of a server which is down.
/// Above those of the documentation, whose commands are tested.
const RANGE: Range<u16> = 20_000..32_000;

/// How many ports this process has tried.
static TRIED: AtomicU32 = AtomicU32::new(0);

/// A TCP port of loopback where nothing listens. Another process may be faster to listen there, so a server that ends
/// at its start is started at another one.
///
/// # Errors
/// When every port is taken.
pub(crate) fn free() -> anyhow::Result<u16> {
    let count = u32::from(RANGE.end - RANGE.start);
    // Processes at the same time begin at different ports.
    let first = std::process::id().wrapping_mul(257);
    let ports = (0..count).map(|_| {
        let index = first.wrapping_add(TRIED.fetch_add(1, Ordering::Relaxed)) % count;
        RANGE.start + index as u16
    });
    let mut ports = ports.filter(|&port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok());
    ports.next().context("no port of loopback is free")
}
