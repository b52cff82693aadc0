//! Metrics: every definition gives a new id, even for a name that has one; the name's value is
//! shared by its ids. The low two bits of an id are the kind of the metric, as in Envoy.

use wasmi::Caller;

use super::super::guest::{Call, Result, enter};
use super::super::state::State;
use super::super::types::Status;
use super::HostCalls;

const KIND_COUNTER: u32 = 0;
const KIND_GAUGE: u32 = 1;
const KIND_HISTOGRAM: u32 = 2;
const KIND_MASK: u32 = 3;
const ID_STEP: u32 = KIND_MASK + 1;

pub(super) fn link(calls: &mut HostCalls) -> Result<()> {
    host_calls! { calls,
        fn proxy_define_metric(call, kind: u32, name: u32, name_size: u32, id_out: u32) {
            define(call, kind, (name, name_size), id_out)
        }
        fn proxy_increment_metric(call, id: u32, offset: i64) {
            Ok(increment(call, id, offset))
        }
        fn proxy_record_metric(call, id: u32, value: u64) {
            Ok(record(call, id, value))
        }
    }
    Ok(())
}

fn define(
    call: &mut Call<'_>,
    kind: u32,
    (name, name_size): (u32, u32),
    id_out: u32,
) -> Result<Status> {
    let name = call.read_text(name, name_size)?;
    let metrics = &mut call.state().metrics;
    match kind {
        KIND_COUNTER | KIND_GAUGE => drop(metrics.values.entry(name.clone()).or_default()),
        KIND_HISTOGRAM => drop(metrics.samples.entry(name.clone()).or_default()),
        _ => return Ok(Status::BadArgument),
    }
    let count = u32::try_from(metrics.names.len()).map_err(|error| call.refuse(error))?;
    let id = (count + 1) * ID_STEP + kind;
    call.state().metrics.names.insert(id, name);
    call.write_u32(id_out, id)?;
    Ok(Status::Ok)
}

fn increment(call: &mut Call<'_>, id: u32, offset: i64) -> Status {
    let metrics = &mut call.state().metrics;
    let kind = id & KIND_MASK;
    if kind > KIND_GAUGE {
        return Status::BadArgument;
    }
    let Some(value) = metrics.names.get(&id).and_then(|name| metrics.values.get_mut(name)) else {
        return Status::NotFound;
    };
    if kind == KIND_COUNTER && offset <= 0 {
        return Status::BadArgument;
    }
    *value = value.wrapping_add_signed(offset);
    Status::Ok
}

fn record(call: &mut Call<'_>, id: u32, value: u64) -> Status {
    let metrics = &mut call.state().metrics;
    let Some(name) = metrics.names.get(&id) else {
        return Status::NotFound;
    };
    match id & KIND_MASK {
        KIND_COUNTER => {
            let total = metrics.values.entry(name.clone()).or_default();
            *total = total.wrapping_add(value);
        }
        KIND_GAUGE => *metrics.values.entry(name.clone()).or_default() = value,
        _ => metrics.samples.entry(name.clone()).or_default().push(value),
    }
    Status::Ok
}
