//! The host calls that a guest may import, by subject. Each file links its own.
//!
//! A call that Envoy would answer with a status answers so here. A call that Envoy would quietly
//! ignore, or that no Tidegate filter has business making, kills the guest and says why.

use std::collections::BTreeSet;

use wasmi::{Engine, IntoFunc, Linker};

use super::guest::Result;
use super::state::State;

/// Links host calls, each under the name of its function.
macro_rules! host_calls {
    ($calls:ident, $(fn $name:ident($call:ident $(, $argument:ident: $type:ty)*) $body:block)*) => {
        $($calls.func_wrap(
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

/// A linker, and the names in it, which it does not list by itself.
pub(super) struct HostCalls {
    pub(super) linker: Linker<State>,
    /// Each with its module.
    pub(super) names: BTreeSet<(&'static str, &'static str)>,
}

impl HostCalls {
    /// Links every call that the host implements.
    pub(super) fn link(engine: &Engine) -> Result<Self> {
        let mut calls = Self { linker: Linker::new(engine), names: BTreeSet::new() };
        data::link(&mut calls)?;
        grpc::link(&mut calls)?;
        headers::link(&mut calls)?;
        metrics::link(&mut calls)?;
        queue::link(&mut calls)?;
        stream::link(&mut calls)?;
        wasi::link(&mut calls)?;
        Ok(calls)
    }

    fn func_wrap<Parameters, Results>(
        &mut self,
        module: &'static str,
        name: &'static str,
        function: impl IntoFunc<State, Parameters, Results>,
    ) -> Result<()> {
        self.linker.func_wrap(module, name, function)?;
        self.names.insert((module, name));
        Ok(())
    }
}
