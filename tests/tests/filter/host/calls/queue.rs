//! Shared queues, for the only use that the filter has for them: each entry has Envoy's event loop call
//! the plugin that registered the queue, in a turn of its own.

use wasmi::Caller;

use super::super::guest::{Call, Result, enter};
use super::super::state::{Queue, State};
use super::super::types::Status;
use super::HostCalls;

pub(super) fn link(calls: &mut HostCalls) -> Result<()> {
    host_calls! { calls,
        fn proxy_register_shared_queue(call, name: u32, name_size: u32, out: u32) {
            register(call, (name, name_size), out)
        }
        fn proxy_enqueue_shared_queue(call, queue: u32, value: u32, value_size: u32) {
            enqueue(call, queue, (value, value_size))
        }
        fn proxy_dequeue_shared_queue(call, queue: u32, data: u32, size: u32) {
            dequeue(call, queue, (data, size))
        }
    }
    Ok(())
}

fn register(call: &mut Call<'_>, name: (u32, u32), out: u32) -> Result<Status> {
    let name = call.read_text(name.0, name.1)?;
    let root = call.state().active_root();
    let queues = &mut call.state().queues;
    let known = queues.iter().position(|queue| queue.name == name);
    let index = known.unwrap_or(queues.len());
    if known.is_none() {
        queues.push(Queue { name, root, entries: Vec::new() });
    }
    // As in Envoy, the last one to register is called.
    queues[index].root = root;
    call.write_u32(out, u32::try_from(index).map_err(|error| call.refuse(error))? + 1)?;
    Ok(Status::Ok)
}

fn enqueue(call: &mut Call<'_>, queue: u32, value: (u32, u32)) -> Result<Status> {
    let value = call.read(value.0, value.1)?;
    let state = call.state();
    let Some(found) = (queue as usize).checked_sub(1).and_then(|at| state.queues.get_mut(at))
    else {
        return Ok(Status::NotFound);
    };
    found.entries.push(value);
    state.posted.push_back((found.root, queue));
    Ok(Status::Ok)
}

fn dequeue(call: &mut Call<'_>, queue: u32, (data, size): (u32, u32)) -> Result<Status> {
    let queues = &mut call.state().queues;
    let Some(found) = (queue as usize).checked_sub(1).and_then(|at| queues.get_mut(at)) else {
        return Ok(Status::NotFound);
    };
    if found.entries.is_empty() {
        return Ok(Status::Empty);
    }
    let value = found.entries.remove(0);
    call.give(&value, data, size)?;
    Ok(Status::Ok)
}
