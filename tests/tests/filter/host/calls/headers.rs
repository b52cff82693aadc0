//! Calls on header maps: headers are read and changed; those of a request, only while it is paused.
//!
//! A map exists only in its phase. Outside of it a single header is `BadArgument` and the list of
//! all headers is empty, as in Envoy. Trailers, metadata, and other changes to a request are refused.

use wasmi::Caller;

use super::super::guest::{Call, Result, enter};
use super::super::headers::Headers;
use super::super::state::{HeaderMap, Sight, State, Stream};
use super::super::types::{Outcome, Status};
use super::HostCalls;

const MAP_REQUEST_HEADERS: u32 = 0;
const MAP_RESPONSE_HEADERS: u32 = 2;

/// How a header is written into a map that may hold it already.
type Change = fn(&mut Headers, &[u8], &[u8]) -> std::result::Result<(), String>;

pub(super) fn link(calls: &mut HostCalls) -> Result<()> {
    host_calls! { calls,
        fn proxy_get_header_map_value(
            call, map: u32, name: u32, name_size: u32, data: u32, size: u32
        ) {
            value(call, map, (name, name_size), (data, size))
        }
        fn proxy_get_header_map_pairs(call, map: u32, data: u32, size: u32) {
            pairs(call, map, data, size)
        }
        fn proxy_add_header_map_value(
            call, map: u32, name: u32, name_size: u32, data: u32, size: u32
        ) {
            change(call, map, (name, name_size), (data, size), Headers::add)
        }
        fn proxy_replace_header_map_value(
            call, map: u32, name: u32, name_size: u32, data: u32, size: u32
        ) {
            change(call, map, (name, name_size), (data, size), Headers::replace)
        }
    }
    Ok(())
}

fn value(
    call: &mut Call<'_>,
    map: u32,
    (name, name_size): (u32, u32),
    (data_out, size_out): (u32, u32),
) -> Result<Status> {
    let name = call.read_text(name, name_size)?;
    let Some(map) = visible(call, map)? else {
        return Ok(Status::BadArgument);
    };
    let Some(value) = map.headers.get(&name).map(<[u8]>::to_vec) else {
        return Ok(Status::NotFound);
    };
    call.give(&value, data_out, size_out)?;
    Ok(Status::Ok)
}

fn pairs(call: &mut Call<'_>, map: u32, data_out: u32, size_out: u32) -> Result<Status> {
    let map = visible(call, map)?;
    let bytes = map.map(|map| map.headers.encode()).unwrap_or_default();
    call.give(&bytes, data_out, size_out)?;
    Ok(Status::Ok)
}

fn change(
    call: &mut Call<'_>,
    map: u32,
    (name, name_size): (u32, u32),
    (data, size): (u32, u32),
    change: Change,
) -> Result<Status> {
    let name = call.read(name, name_size)?;
    let value = call.read(data, size)?;
    let is_paused = |stream: &mut Stream| stream.outcome == Some(Outcome::Paused);
    let least = match map {
        MAP_RESPONSE_HEADERS => Sight::Writable,
        MAP_REQUEST_HEADERS if call.state().stream().is_some_and(is_paused) => Sight::Readable,
        _ => return Err(call.refuse(format!("unexpected host call: a change to header map {map}"))),
    };
    let Some(map) = visible(call, map)?.filter(|map| map.sight == least) else {
        return Ok(Status::BadArgument);
    };
    match change(&mut map.headers, &name, &value) {
        Ok(()) => Ok(Status::Ok),
        Err(reason) => Err(call.refuse(reason)),
    }
}

/// The map of the active stream, if the guest may see it now.
fn visible<'a>(call: &'a mut Call<'_>, map: u32) -> Result<Option<&'a mut HeaderMap>> {
    let select = match map {
        MAP_REQUEST_HEADERS => |stream: &'a mut Stream| &mut stream.request,
        MAP_RESPONSE_HEADERS => |stream: &'a mut Stream| &mut stream.response,
        _ => return Err(call.refuse(format!("unexpected host call: header map {map}"))),
    };
    let map = call.state().stream().map(select);
    Ok(map.filter(|map| map.sight != Sight::Hidden))
}
