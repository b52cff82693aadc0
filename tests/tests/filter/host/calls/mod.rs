//! The host calls that a guest may import, by subject. Each file links its own.
//!
//! A call that Envoy would answer with a status answers so here. A call that Envoy would quietly
//! ignore, or that no Tidegate filter has business making, kills the guest and says why.

use wasmtime::{Linker, Result};

use super::state::State;

/// Links host calls, each under the name of its function.
macro_rules! host_calls {
    ($linker:ident, $(fn $name:ident($call:ident $(, $argument:ident: $type:ty)*) $body:block)*) => {
        $($linker.func_wrap(
            "env",
            stringify!($name),
            |caller: Caller<'_, State> $(, $argument: $type)*| {
                enter(caller, stringify!($name), |$call| $body)
            },
        )?;)*
    };
}

mod data;
mod grpc;
mod headers;
mod metrics;
mod queue;
mod stream;
mod wasi;

/// Links every call that the host implements.
pub(super) fn link(linker: &mut Linker<State>) -> Result<()> {
    data::link(linker)?;
    grpc::link(linker)?;
    headers::link(linker)?;
    metrics::link(linker)?;
    queue::link(linker)?;
    stream::link(linker)?;
    wasi::link(linker)
}
