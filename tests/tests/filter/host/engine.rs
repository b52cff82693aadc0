//! Modules ready to run: one engine per process, and each module translated once per path.
//!
//! Owns the link between imports and host calls: an import that the host does not implement is
//! still linked, to a function that kills the guest and names itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use anyhow::{Result, bail};
use wasmi::{CompilationMode, Config, Engine, Error, ExternType, Instance, Linker, Module, Store};

use super::calls::HostCalls;
use super::counted;
use super::shared_data::SharedData;
use super::state::State;

/// Instructions that the guest may run in one callback before it counts as hung: a few seconds
/// of the interpreter, and a thousand times what the largest callback of a filter should take.
pub(super) const INSTRUCTIONS_PER_DRIVE: i64 = 1_000_000_000;

/// A module that is translated and linked, ready to be instantiated.
#[derive(Clone)]
pub(super) struct Prepared {
    module: Module,
    linker: Arc<Linker<State>>,
    /// Names of the calls that the host implements.
    pub(super) known: Arc<BTreeSet<String>>,
}

impl Prepared {
    /// One virtual machine. Of the guest only the start function runs, if it has one.
    pub(super) fn instantiate(
        &self,
        shared_data: SharedData,
    ) -> Result<(Store<State>, Instance), Error> {
        let mut store = Store::new(self.linker.engine(), State::new(shared_data));
        let instance = self.linker.instantiate_and_start(&mut store, &self.module)?;
        Ok((store, instance))
    }
}

/// The module at `path`, translated on first use. Tests that start together wait for one translation.
pub(super) fn prepare(path: &Path) -> Result<Prepared> {
    static CACHE: Mutex<BTreeMap<PathBuf, Prepared>> = Mutex::new(BTreeMap::new());

    let mut cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(prepared) = cache.get(path) {
        return Ok(prepared.clone());
    }
    let prepared = translate(path)?;
    cache.insert(path.to_owned(), prepared.clone());
    Ok(prepared)
}

fn translate(path: &Path) -> Result<Prepared> {
    let engine = engine();
    let wasm = counted::counted(&fs::read(path)?, INSTRUCTIONS_PER_DRIVE)?;
    let module = Module::new(engine, wasm)?;
    let known_abi = |name| matches!(name, "proxy_abi_version_0_2_0" | "proxy_abi_version_0_2_1");
    if !module.exports().any(|export| known_abi(export.name())) {
        bail!("the module exports no proxy_abi_version_0_2_*, so Envoy would not load it");
    }

    let mut calls = HostCalls::link(engine)?;
    link_refusals(&mut calls, &module)?;
    let known = calls.names.iter().map(|(_, name)| (*name).to_owned()).collect();
    Ok(Prepared { module, linker: Arc::new(calls.linker), known: Arc::new(known) })
}

/// Links the imports that no host call answers to functions that refuse.
fn link_refusals(calls: &mut HostCalls, module: &Module) -> Result<()> {
    for import in module.imports() {
        let (from, name) = (import.module(), import.name());
        let ExternType::Func(signature) = import.ty() else {
            bail!("the module imports {from}.{name}, which is not a function");
        };
        if !calls.names.contains(&(from, name)) {
            let message = format!("unexpected host call: {from}.{name}");
            let refuse = move |_: wasmi::Caller<'_, State>, _: &[_], _: &mut [_]| {
                Err(Error::new(message.as_str()))
            };
            calls.linker.func_new(from, name, signature.clone(), refuse)?;
        }
    }
    Ok(())
}

fn engine() -> &'static Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();

    ENGINE.get_or_init(|| {
        let mut config = Config::default();
        // On first use, a test might wait for the translation of another.
        config.compilation_mode(CompilationMode::Eager);
        Engine::new(&config)
    })
}
